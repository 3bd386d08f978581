"""What a thread was doing, by its stack: the native function at the leaf tells what it waits for, the frames of the
standard library why, the innermost frame of the program's own code where.

The names are those of glibc, of CPython 3.8 to 3.14 (Modules/*.c, Python/ceval_gil.c, Python/thread_pthread.h) and of
PyTorch; a stack without native frames tells only where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from orchestrator.formats.stacks import is_own, split_frame

WAITS = frozenset(
    {"gil", "lock", "file", "network", "child", "pipe", "sleep", "device", "idle", "events", "collective"}
)
"""The states in which a thread is not at work itself."""


@dataclass(frozen=True)
class Frame:
    """A frame taken apart. is_python: of Python's own code; else native, and `file` is its library or source."""

    function: str
    file: str
    line: int | None
    is_python: bool

    @classmethod
    def of(cls, text: str) -> Frame:
        function, file, line = split_frame(text)
        file = file or ""
        return cls(function, file, line, file.endswith((".py", ".pyx")) or file.startswith("<"))

    @property
    def shown(self) -> str:
        return f"{self.function} ({PurePosixPath(self.file).name or self.file})" if self.file else self.function


@dataclass(frozen=True)
class Doing:
    """What a stack says. `code`: whose code was at the leaf: own, library, framework (PyTorch, NumPy and what they
    stand on), profrun (what it has added), or none."""

    state: str
    code: str
    function: str | None = None
    file: str | None = None
    line: int | None = None
    below: str | None = None
    native: str | None = None
    op: str | None = None
    phase: str | None = None
    outer: Frame | None = None
    """In the data phase: the outermost function of the program below PyTorch's loader."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_FILE = _words(
    "open openat open64 openat64 creat stat lstat fstat stat64 lstat64 fstat64 fstatat fstatat64 newfstatat statx "
    "access faccessat eaccess euidaccess readlink readlinkat getdents getdents64 readdir readdir64 opendir closedir "
    "scandir mkdir mkdirat rmdir unlink unlinkat remove rename renameat renameat2 link linkat symlink symlinkat chmod "
    "fchmod fchmodat chown fchown lchown utimensat futimens truncate ftruncate ftruncate64 fsync fdatasync sync syncfs "
    "sync_file_range msync pread pread64 pwrite pwrite64 preadv pwritev preadv2 pwritev2 lseek lseek64 sendfile "
    "sendfile64 copy_file_range fallocate posix_fallocate posix_fadvise statfs statvfs fstatvfs statvfs64 getxattr "
    "setxattr listxattr io_getevents io_submit aio_suspend"
)
_READS = _words("read write readv writev close fcntl fcntl64 ioctl dup dup2 fread fwrite fflush")
"""Of a file, a pipe or a socket: what stands above tells."""
_NETWORK = _words(
    "recv recvfrom recvmsg recvmmsg send sendto sendmsg sendmmsg connect getaddrinfo gethostbyname "
    "gethostbyname_r gethostbyaddr getnameinfo __res_msend __res_context_send shutdown socket bind listen"
)
_SERVES = _words("accept accept4")
"""Waiting for somebody to ask is no work, and nobody waits for it."""
_POLLS = _words("poll ppoll select pselect epoll_wait epoll_pwait epoll_pwait2 __poll")
_CHILD = _words(
    "wait4 waitpid waitid wait3 wait vfork fork __fork _Fork posix_spawn posix_spawnp execve execv execvp clone clone3 "
    "system do_system pclose popen"
)
_SLEEP = _words("clock_nanosleep nanosleep usleep sleep pause sigtimedwait sigwait sigsuspend")
_MEMORY = _words("mmap mmap64 munmap madvise mprotect mremap brk sbrk malloc_trim sysmalloc systrim malloc_consolidate")
_FLOCK = frozenset({"flock", "lockf", "lockf64"})
_COND_TIMED = frozenset({"pthread_cond_timedwait", "pthread_cond_clockwait", "take_gil", "_PyThread_cond_wait"})
_PY_LOCK = re.compile(
    r"PyThread_acquire_lock|lock_acquire|lock_PyThread_acquire|rlock_acquire|SimpleQueue_get|_PySemaphore_Wait|PyMutex_Lock|"
    r"_PyParkingLot_Park|semlock_acquire|SemLock_acquire|sem_(timed|clock)?wait|PyEvent_Wait"
)
_TAKES_GIL = re.compile(r"gil_scoped_(acquire|release)|PyGILState_|PyEval_(Restore|Acquire)Thread|take_gil")
_LOCK_OBJECT = re.compile(r"PyThread_acquire_lock_timed|_PySemaphore|PyMutex|_PyParkingLot|semlock|sem_")
_GC = re.compile(
    r"^(gc_collect|_PyGC_Collect|PyGC_Collect|deduce_unreachable|visit_(decref|reachable)|_Py_RunGC|gc_mark)"
)
_DEVICE = re.compile(
    r"^(cu(da)?(StreamSynchronize|DeviceSynchronize|CtxSynchronize|EventSynchronize|Memcpy|Memset|LaunchHostFunc|"
    r"StreamWaitEvent)|hip(StreamSynchronize|DeviceSynchronize|EventSynchronize|Memcpy))"
)
_NATIVE_IN_PYTHON = re.compile(
    r"^_?(sre_|zlib|pickle|load_|save_|scan_once|scanstring|encoder_|py_encode|list_sort|merge_|sha\d|md5|blake|bz2|"
    r"lzma|binascii|crc32|csv_|Reader_iternext|sqlite|parse_|datetime|struct_|unicodedata)"
)
"""Work of C code that lies inside of a Python built as one piece."""
_PYTHON_ITSELF = re.compile(r"^(lib)?python\d?(\.\d+)?|^libpython")
_FRAMEWORK_LIBRARY = re.compile(
    r"^lib(torch|c10|caffe2|mkl|openblas|blas|lapack|gomp|iomp|omp|dnnl|shm|cud|cublas|nccl|nvrtc|cusolver|cusparse|"
    r"scipy|nvidia)|^_(multiarray|umath|pocketfft|flapack|fblas)|^_C\b|^(multiarray|umath)"
)
_FRAMEWORK_CODE = re.compile(
    r"/(site|dist)-packages/(torch|numpy|scipy|torchvision|lightning|pytorch_lightning|accelerate|transformers|triton)/|"
    r"/torchinductor_[^/]*/"
)
_NAMELESS = re.compile(r"((^|\.<locals>\.)<(listcomp|setcomp|dictcomp|genexpr|lambda)>)+$")
"""Functions for Python, until 3.12 also comprehensions, and part of the one that they stand in for everybody else."""
HELD = re.compile(r"(lock|rlock|RLock)_|_thread_R?Lock|fcntl_|flock|PyMutex")
"""C functions by which a program itself takes a lock: what it waits for is the lock, not the work of others."""
_OURS = re.compile(r"/_profrun/|/orchestrator/inject/")
_LIBC = re.compile(r"^(libc|libpthread|ld-linux|libm|linux-vdso|\[vdso\]|libc-)")
_OPS = (
    re.compile(r"at::_ops::(\w+)::(?:call|redispatch)"),
    re.compile(r"at::native::(?:structured_)?([a-z]\w+)(?!.*::)"),
)
"""The dispatcher's own call names it for sure, a kernel's namespace where there is none."""
_OVERLOAD = re.compile(
    r"(_(impl|cpu|cuda|out|functional|kernel|stub|Tensor|Scalar|self|other|dim|IntList|int|default|generic))+_?$"
)

_NUMPY = re.compile(r"^array_(?!dealloc|assign|function)([a-z]\w*)$")
"""What NumPy calls the C functions behind its own (numpy/_core/src/multiarray): array_concatenate."""

_SPAWNERS = re.compile(
    r"/(subprocess|multiprocessing/(popen_\w+|process|forkserver|spawn|resource_tracker|util))\.py$|/os\.py$|/pty\.py$"
)
_POOL_LIFE = re.compile(r"Pool\.(__init__|_repopulate_pool|_terminate_pool|terminate|join|__exit__|_help_stuff_finish)")
_CONNECTION = re.compile(r"/multiprocessing/(connection|queues|managers)\.py$")
_SOCKETS = re.compile(
    r"/(socket|ssl|socketserver|ftplib|smtplib|imaplib|poplib|telnetlib|nntplib|http/\w+|urllib/\w+|xmlrpc/\w+)\.py$|"
    r"/(urllib3|requests|httpx|httpcore|aiohttp|botocore|boto3|grpc|paramiko|redis|psycopg\w*|pymysql|pymongo)/"
)
_IMPORTS = re.compile(r"^<frozen (importlib|zipimport)")
_COMPILES = re.compile(
    r"/torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py|/torch/_inductor/(graph|scheduler|codecache|"
    r"async_compile|codegen/)|/torch/fx/experimental/|/numba/core/|/triton/compiler/|/torch/utils/cpp_extension"
)
"""What compiles; what is compiled runs through other files of theirs."""
_EVENTS = re.compile(r"/asyncio/|/(uvloop|trio|anyio|tornado|gevent)/")
_SERVERS = re.compile(r"\bserve_forever$")
_CLIENTS = re.compile(r"^(libpq|libmysql|libmariadb|libcurl|libssl|_ssl|libzmq|libgrpc)")
_COLLECTIVE = re.compile(r"\b(c10d|gloo)::")
_LOADER = re.compile(r"/torch/utils/data/")
_BACKWARD = re.compile(r"/torch/autograd/(__init__|graph|function)\.py$|/torch/_tensor\.py$")
_OPTIMIZER = re.compile(r"/torch/optim/")
_SAVES = re.compile(r"/torch/(serialization|distributed/checkpoint/)")
_IDLE_BELOW = re.compile(
    r"/concurrent/futures/(thread|process)\.py$|/multiprocessing/(pool|queues)\.py$|/torch/utils/data/_utils/(worker|pin_memory)\.py$|"
    r"/socketserver\.py$|/asyncio/|/selectors\.py$|/threading\.py$|/queue\.py$|/multiprocessing/resource_sharer\.py$|/tqdm/"
)


def holds_lock(doing: Doing) -> bool:
    """Whether the wait is for a lock that the program's own code takes there, not for what others have to do first."""
    return doing.state == "lock" and doing.below is None and bool(HELD.match(doing.native or ""))


def read(texts: Sequence[str], has_native: bool = True) -> Doing:
    """What a stack says; frames from the root to the leaf, each `function (file:line)`.

    has_native: stacks were taken with native frames; without them Python at its leaf may be at work or wait."""
    frames = _of_this_process([Frame.of(text) for text in texts])
    place = next((i for i in range(len(frames) - 1, -1, -1) if frames[i].is_python), -1)
    pythons = [one for one in frames if one.is_python]
    native = frames[place + 1 :][::-1]
    depth = next((i for i in range(len(pythons) - 1, -1, -1) if _is_own(pythons[i])), -1)
    own, inner = (pythons[depth] if depth >= 0 else None), pythons[depth + 1 :]
    if any(_OURS.search(one.file) for one in inner):
        return Doing("ours", "profrun")
    state, telling = _state(native, pythons, inner, own)
    if state == "python" and not has_native:
        state = _by_library(inner)
    code = _code(native, inner, own, pythons)
    where = own or (pythons[-1] if pythons else None)
    phase = _phase(pythons)
    return Doing(
        state,
        code,
        _named(pythons, depth) if own else where.function if where else None,
        where.file if where else None,
        where.line if where else None,
        inner[0].shown if own and inner else None,
        telling.shown if telling else None,
        _operator(native) if code == "framework" else None,
        phase,
        _fetched(pythons) if phase == "data" else None,
    )


def _named(pythons: Sequence[Frame], depth: int) -> str:
    """The name of an own function; of a nameless one that in which it stands. Only Python 3.11 and later tell it in the
    name itself; before that it is taken to be the caller, in the same file."""
    while depth > 0 and _NAMELESS.fullmatch(pythons[depth].function) and pythons[depth - 1].file == pythons[depth].file:
        depth -= 1
    name = pythons[depth].function
    return _NAMELESS.sub("", name) or name


def _is_own(frame: Frame) -> bool:
    return bool(frame.file) and is_own(frame.file) and not frame.file.startswith("<") and not _OURS.search(frame.file)


def _of_this_process(frames: list[Frame]) -> list[Frame]:
    """A forked child carries its parent's frames below its own."""
    for place in range(len(frames) - 1, -1, -1):
        frame = frames[place]
        if frame.function.endswith("_bootstrap") and frame.file.endswith("multiprocessing/process.py"):
            return frames[place:]
    return frames


def _state(
    native: Sequence[Frame], pythons: Sequence[Frame], inner: Sequence[Frame], own: Frame | None
) -> tuple[str, Frame | None]:
    """The state, and the native frame that tells it. native: from the leaf up to the first frame of Python."""
    whole, native = native, [one for one in native if not one.function.startswith("0x")]
    names = [_plain(one.function) for one in native]
    spawns = any(_SPAWNERS.search(one.file) or _POOL_LIFE.match(one.function) for one in inner)
    if any(_IMPORTS.match(one.file) for one in inner):
        return "import", None
    if any(_COMPILES.search(one.file) for one in pythons):
        return "compile", None
    for name, frame in zip(names, native, strict=True):
        if _GC.match(name):
            return "gc", frame
    if names[:1] in (["pthread_cond_wait"], ["pthread_cond_timedwait"]) and _is_collective(native, inner):
        return "collective", native[0]
    if _waits_for_python(names) and not _through_library(native):
        return ("gil", native[0]) if not _without_program(pythons, own) else ("idle", native[0])
    for name, frame in zip(names, native, strict=True):
        state = _told_by(name, names, native, inner, spawns)
        if state:
            idle = state in ("lock", "pipe", "network", "child") and _without_program(pythons, own)
            return ("idle" if idle else state), native[-1] if _PY_LOCK.search(name) else frame
        if _FRAMEWORK_LIBRARY.match(PurePosixPath(frame.file).name):
            break
    if spawns:
        return "child", native[0] if native else None
    if _is_python(whole):
        return "python", None
    if not native:
        return "native", whole[0]
    return "native", next((one for one in native if not _LIBC.match(PurePosixPath(one.file).name)), native[0])


def _waits_for_python(names: Sequence[str]) -> bool:
    """Whether it takes Python's own lock (take_gil): a timed wait on a condition that is not that of a Lock object."""
    place = next((i for i, name in enumerate(names[:3]) if name in _COND_TIMED), None)
    return place is not None and not any(map(_LOCK_OBJECT.match, names[place + 1 : place + 2]))


def _by_library(inner: Sequence[Frame]) -> str:
    """Without native frames: what Python's own library was called for."""
    if any(_SOCKETS.search(one.file) for one in inner):
        return "network"
    if any(_CONNECTION.search(one.file) for one in inner):
        return "pipe"
    waits = ("Condition.wait", "Event.wait", "Thread.join", "_wait_for_tstate_lock")
    return "lock" if any(one.function.endswith(waits) for one in inner) else "unknown"


def _plain(name: str) -> str:
    """Without what glibc and versions of symbols add."""
    name = name.partition("@")[0]
    for prefix in ("__libc_", "__GI_", "__new_"):
        name = name.removeprefix(prefix)
    return name


def _told_by(
    name: str, names: Sequence[str], native: Sequence[Frame], inner: Sequence[Frame], spawns: bool
) -> str | None:
    if _DEVICE.match(name):
        return "device"
    if name in _SLEEP:
        return "sleep"
    if name in _CHILD:
        return "child"
    if name in _SERVES:
        return "idle"
    if name in _NETWORK:
        return "network"
    if name in _FLOCK or any("fcntl_lockf" in one or "fcntl_flock" in one for one in names):
        return "lock"
    if name in _FILE:
        return "child" if spawns else "file"
    if name in _READS or name in _POLLS:
        return _of_descriptor(name, names, native, inner, spawns)
    if _PY_LOCK.search(name):
        return "lock"
    return "memory" if name in _MEMORY else None


def _of_descriptor(
    name: str, names: Sequence[str], native: Sequence[Frame], inner: Sequence[Frame], spawns: bool
) -> str | None:
    """Of a file, a pipe or a socket: by the C function that asked, then by the library."""
    if any(one.startswith(("time_sleep", "pysleep")) for one in names):
        return "sleep"
    if any(one.startswith(("sock_", "internal_connect", "internal_select", "_ssl_", "_ssl__")) for one in names):
        return "network"
    if any(_CLIENTS.match(PurePosixPath(one.file).name) for one in native):
        return "network"
    if spawns:
        return "child"
    if any(_SERVERS.search(one.function) for one in inner):
        return "idle"
    if name in _POLLS and any(_EVENTS.search(one.file) for one in inner):
        return "events"
    if any(_CONNECTION.search(one.file) for one in inner):
        return "pipe"
    if any(_SOCKETS.search(one.file) for one in inner):
        return "network"
    if name in _POLLS:
        return "pipe"
    return "file"


def _is_collective(native: Sequence[Frame], inner: Sequence[Frame]) -> bool:
    return any(_COLLECTIVE.search(one.function) for one in native) or any(
        "/torch/distributed/" in one.file for one in inner
    )


def _through_library(native: Sequence[Frame]) -> bool:
    """Whether a library stands between the wait and Python: then it is its own wait, not one for Python's lock, unless
    it is about to take that."""
    if any(_TAKES_GIL.search(one.function) for one in native[:4]):
        return False
    libraries = [PurePosixPath(one.file).name for one in native[:4]]
    return any(_FRAMEWORK_LIBRARY.match(one) for one in libraries)


def _without_program(pythons: Sequence[Frame], own: Frame | None) -> bool:
    """A thread of a pool, a server or a loader that waits for work: the code that waits is no part of the program."""
    return own is None and bool(pythons) and bool(_IDLE_BELOW.search(pythons[-1].file) or len(pythons) < 3)


def _is_python(native: Sequence[Frame]) -> bool:
    """Whether the native code is the interpreter at its own work: objects, calls, arithmetic."""
    for one in native:
        library = PurePosixPath(one.file).name
        if _LIBC.match(library):
            continue
        if _NATIVE_IN_PYTHON.match(one.function):
            return False
        return bool(_PYTHON_ITSELF.match(library)) or ("/Python-3." in one.file and "/Modules/" not in one.file)
    return True


def _code(native: Sequence[Frame], inner: Sequence[Frame], own: Frame | None, pythons: Sequence[Frame]) -> str:
    """Whose code is at work: what the framework calls, such as Python's library, is the framework's own."""
    for one in native:
        library = PurePosixPath(one.file).name
        if _LIBC.match(library) or _PYTHON_ITSELF.match(library):
            continue
        if _FRAMEWORK_LIBRARY.match(library) or _FRAMEWORK_CODE.search(one.file):
            return "framework"
        break
    if any(_FRAMEWORK_CODE.search(one.file) for one in inner):
        return "framework"
    if not pythons:
        return "none"
    return "own" if own is not None and not inner and not _is_library(native) else "library"


def _is_library(native: Sequence[Frame]) -> bool:
    names = (PurePosixPath(one.file).name for one in native)
    return any(not _LIBC.match(name) and not _PYTHON_ITSELF.match(name) for name in names)


def _operator(native: Sequence[Frame]) -> str | None:
    """`aten::mm`, of the innermost operator that native frames name, without its overload and its device; else the
    function of NumPy that was called: `numpy.concatenate`."""
    for pattern in _OPS:
        if found := next((found for one in native if (found := pattern.search(one.function))), None):
            return f"aten::{_OVERLOAD.sub('', found[1])}"
    outermost = next((found for one in reversed(native) if (found := _NUMPY.match(one.function))), None)
    return f"numpy.{outermost[1]}" if outermost else None


def _phase(pythons: Sequence[Frame]) -> str | None:
    """The phase of the step, by PyTorch's own frames."""
    for one in pythons:
        if _LOADER.search(one.file):
            return "data"
        if _BACKWARD.search(one.file) and "backward" in one.function:
            return "backward"
        if _OPTIMIZER.search(one.file) and "zero_grad" not in one.function:
            return "optimizer"
        if _SAVES.search(one.file):
            return "checkpoint"
        if one.file.endswith("/torch/nn/modules/module.py"):
            return "forward"
    return None


def _fetched(pythons: Sequence[Frame]) -> Frame | None:
    """The outermost function of the program that the loader has called."""
    below = False
    for one in pythons:
        if _LOADER.search(one.file):
            below = True
        elif below and _is_own(one):
            return one
    return None
