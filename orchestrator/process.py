"""DOOR: the only starter of processes. Short questions go through `sh`; the measured target and the profilers are
started so that nothing is added to their run: real files for output, their own session, no shell, no pipe to be
filled."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import mmap
import os
import re
import resource
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from orchestrator.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND
from orchestrator.model import Child, Exit, Process, Target
from orchestrator.names import numbers_in

MARKER = "PROFRUN_RUN"
"""The environment variable by which everything that a run started is found again, also when it left the session."""

_PROC = Path("/proc")
_WAITED_FOR: set[int] = set()
"""Children whose end somebody here waits for; `reap_orphans` leaves them alone."""
_ANSWER_LIMIT_BYTES = 16 << 20
_FORK_BYTES = 4 << 20
"""What a forked child may touch before its exec."""
_SYS = Path("/sys")
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
"""The number of the system call, by architecture: glibc has no function for it."""
_MPOL_PREFERRED = 1
_PERSONALITY_AS_IT_IS = 0xFFFFFFFF
_PF_KTHREAD = 0x00200000
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
_PIDFD_INFO = struct.Struct("<Q52xi")
"""The first version of `struct pidfd_info`: which of its fields are asked for, or given, and the wait status."""
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 0xC000FF0B | _PIDFD_INFO.size << 16


# ---------------------------------------------------------------- short questions


@dataclass(frozen=True)
class Answer:
    """What a short command said. `exit` is None when it could not be started or had to be killed; `error` then says
    why."""

    argv: tuple[str, ...]
    exit: Exit | None
    stdout: str
    stderr: str
    error: str | None = None

    @property
    def ok(self) -> bool:
        return self.exit is not None and self.exit.status == 0


def ask(
    argv: Sequence[str],
    *,
    timeout_s: float = 10.0,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    give_up: Callable[[], bool] = lambda: False,
    answer_bytes: int = _ANSWER_LIMIT_BYTES,
) -> Answer:
    """Runs a short command to its end. After `timeout_s`, or when `give_up` says so, its whole group is ended. Of what
    it writes the first `answer_bytes` are kept. Never raises for what the command does."""
    import sh

    words, environment = tuple(argv), dict(os.environ if env is None else env)
    program = _program(words[0], environment, cwd)
    if program is None:
        return Answer(words, None, "", "", f"{words[0]} can't be started: command not found")
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, Path(os.devnull).open("rb") as nothing:
            options: dict[str, Any] = {
                "_bg": 1,  # not True: with that, sh would let the command ignore SIGHUP
                "_bg_exc": False, "_return_cmd": True, "_new_session": True, "_tty_out": False,
                "_in": nothing, "_out": out, "_err": err, "_ok_code": range(-64, 256),
                "_env": environment, **({"_cwd": cwd} if cwd else {}),
            }  # fmt: skip
            command: Any = sh.Command(program)
            with _no_thread_left():
                error_text, code = _attend(command(*words[1:], **options), timeout_s, give_up)
            exit_ = None if error_text else _exit_of(code)
            return Answer(words, exit_, _text(out, answer_bytes), _text(err, answer_bytes), error_text)
    except (sh.ForkException, OSError, UnicodeError) as error:
        said = str(error).strip().splitlines()[-1].strip()  # sh tells of a failed exec with a whole traceback
        said = re.sub(r"^\w+Error: (?:\[Errno \d+\] )?(.*?)(?:: b?'.*')?$", r"\1", said)
        return Answer(words, None, "", "", f"{words[0]} can't be started: {said}")


_BROWSERS = ("xdg-open", "x-www-browser", "firefox", "chromium", "google-chrome")


def browse(address: str) -> bool:
    """Shows an address in the user's own browser: the first that is there of those that BROWSER names, and on a desktop
    of the usual ones. It outlives us, and its output goes nowhere. False where there is none."""
    named = [word for word in os.environ.get("BROWSER", "").split(os.pathsep) if word.strip()]
    desktop = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    for words in (shlex.split(text) for text in (*named, *(_BROWSERS if desktop else ()))):
        argv = [word.replace("%s", address) for word in words] + ([] if "%s" in "".join(words) else [address])
        nothing = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            subprocess.Popen(argv, stdin=nothing, stdout=nothing, stderr=nothing, start_new_session=True)
            return True
    return False


def _program(word: str, env: Mapping[str, str], cwd: str | None) -> str | None:
    """The command's file, looked for as a shell would in that environment and directory; None when there is none."""
    place = os.path.join(cwd or "", word) if os.sep in word else word  # noqa: PTH118 - "./x" must keep its slash
    return shutil.which(place, path=env.get("PATH", os.defpath))


@contextlib.contextmanager
def _no_thread_left() -> Iterator[None]:
    """The threads of `sh` end a moment after its command; until then no fork of ours would be a safe one."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(1.0)


def _attend(running: Any, timeout_s: float, give_up: Callable[[], bool]) -> tuple[str | None, int]:
    """(why it had to be ended, or None; its exit code as `sh` counts)."""
    deadline, pause_s, why = time.monotonic() + timeout_s, 0.001, None
    try:
        while running.is_alive():
            if time.monotonic() > deadline or give_up():
                why = "it was interrupted" if give_up() else f"no answer in {timeout_s:g} s"
                break
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, 0.05)
    finally:
        _dismiss(running)
    return why, 0 if running.is_alive() else running.exit_code


def _dismiss(running: Any) -> None:
    """Ends what still runs of it, also when an exception is on its way."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 1.0
        if running.is_alive():
            with contextlib.suppress(OSError):
                running.signal_group(number)
        while running.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)


def _exit_of(code: int) -> Exit:
    return Exit(signal=-code) if code < 0 else Exit(code=code)


def _text(file: IO[bytes], most_bytes: int) -> str:
    file.seek(0)
    return file.read(most_bytes).decode("utf-8", "replace")


# ---------------------------------------------------------------- the measured target


@dataclass(frozen=True)
class Spec:
    """How to start the target. File descriptors stay the caller's."""

    exe: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    stdin: int
    stdout: int
    stderr: int
    child: Child


class Started:
    """A process of ours that was started by `start`. `wait` gives its end; `fileno` becomes readable when it ends."""

    def __init__(self, pid: int, failure: int) -> None:
        self.pid = pid
        self.started_ns, self._started = time.time_ns(), time.perf_counter()
        self._failure = failure
        self._end = _end_of(pid)
        _WAITED_FOR.add(pid)
        self._floor_bytes = own_rss_bytes() + _FORK_BYTES
        self.exit: Exit | None = None
        self.start_error: str | None = None
        """Why its exec failed; known after its end, None when it did not fail."""
        self.wall_s: float | None = None
        self.ended_ns: int | None = None
        self.usage: resource.struct_rusage | None = None

    def fileno(self) -> int:
        return self._end

    def open_gate(self) -> None:
        """Lets a target that waits before its exec go on; its clock starts now."""
        self.started_ns, self._started = time.time_ns(), time.perf_counter()
        os.kill(self.pid, signal.SIGCONT)

    def executing(self) -> bool:
        """Whether it has become the program it is to be (or has ended)."""
        return self.exit is not None or bool(select.select([self._failure], [], [], 0)[0])

    def elapsed_s(self) -> float:
        return time.perf_counter() - self._started

    def wait(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` for its end; True when it has ended."""
        if self.exit is None and select.select([self._end], [], [], max(0.0, timeout_s))[0]:
            self._reap()
        return self.exit is not None

    def _reap(self) -> None:
        self.wall_s = self.elapsed_s()
        self.ended_ns = self.started_ns + round(self.wall_s * 1e9)  # a wall clock may be set meanwhile
        _, status, self.usage = os.wait4(self.pid, 0)
        self.exit = wait_status(status)
        self.start_error = os.read(self._failure, 4096).decode("utf-8", "replace") or None
        os.close(self._failure)
        os.close(self._end)
        _WAITED_FOR.discard(self.pid)

    def max_rss_bytes(self) -> int | None:
        """Its peak resident set; None where that is not above our own size at its start, which the kernel counts as its
        first (a forked child's memory is its parent's until the exec)."""
        peak = self.usage.ru_maxrss * 1024 if self.usage else 0
        return peak if peak > self._floor_bytes else None


def _end_of(pid: int) -> int:
    """A descriptor that becomes readable when our child ends: a pidfd, or a pipe where there is none (Linux before 5.3,
    Python built with older headers, as those of conda and uv were for years)."""
    with contextlib.suppress(AttributeError, OSError):
        return os.pidfd_open(pid)
    end, other_end = os.pipe2(os.O_CLOEXEC)

    def watch() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(other_end)

    threading.Thread(target=watch, daemon=True).start()
    return end


def start(spec: Spec, *, gated: bool = False) -> Started:
    """Starts the target. `gated`: it is stopped just before its exec, for tools to attach; `open_gate` lets it go
    on."""
    failure, failure_write = os.pipe2(os.O_CLOEXEC)
    tracer, bind = _yama_tracer(), _bound_to_us()
    pid = os.fork()
    if pid == 0:
        _become(spec, gated, failure_write, tracer, bind)
    os.close(failure_write)
    if gated:  # WNOWAIT: one that failed before it could stop must still be there to be waited for
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return Started(pid, failure)


def become(target: Target, env: Mapping[str, str], argv: Sequence[str] = ()) -> NoReturn:
    """This process becomes the program, with the number, descriptors and terminal that it has; `argv`: what is to
    start it. Raises OSError when it can't."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.chdir(target.cwd)
    if argv:
        os.execve(argv[0], [*argv, target.exe, *target.argv[1:]], env)
    os.execve(target.exe, target.argv, env)


@contextlib.contextmanager
def stopped_child() -> Iterator[int]:
    """The pid of a child that stands still before its exec, as a gated target does: to try what may be done to one."""
    with Path(os.devnull).open("r+b") as null:
        fd = null.fileno()
        child = start(Spec("/bin/true", ("true",), {}, "/", fd, fd, fd, Child()), gated=True)
    try:
        yield child.pid
    finally:
        send(child.pid, signal.SIGKILL)
        child.wait(5.0)


def _become(
    spec: Spec, gated: bool, failure: int, tracer: Callable[[], object] | None, bind: Callable[[int], None]
) -> NoReturn:
    """The child's side: becomes the target, or says why not. Python ignores SIGPIPE and SIGXFSZ, and profrun notes what
    would end it; the target must not. Until its exec it does not outlive profrun: it bears no mark yet by which it
    could be found."""
    code = EXIT_NOT_FOUND
    try:
        bind(signal.SIGKILL)
        os.setsid()
        noted = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *noted):
            signal.signal(number, signal.SIG_DFL)
        for fd, standard in ((spec.stdin, 0), (spec.stdout, 1), (spec.stderr, 2)):
            os.dup2(fd, standard)
        os.chdir(spec.cwd)
        _apply(spec.child)
        if tracer:
            tracer()
        if gated:
            os.kill(os.getpid(), signal.SIGSTOP)
        bind(0)
        os.execve(spec.exe, spec.argv, spec.env)
    except BaseException as error:  # nothing may escape into the parent's code, whatever it is
        with contextlib.suppress(BaseException):
            code = EXIT_NOT_FOUND if isinstance(error, FileNotFoundError) else EXIT_NOT_EXECUTABLE
            os.write(failure, _why(error).encode("utf-8", "replace"))
    finally:
        os._exit(code)
    raise AssertionError  # os._exit does not return


def _why(error: BaseException) -> str:
    """What went wrong with which file. The kernel names a script where it misses the script's interpreter."""
    if not isinstance(error, OSError):
        return f"{type(error).__name__}: {error}"
    said, file = error.strerror or str(error), error.filename
    if error.errno == errno.ENOEXEC:
        return f"{said}: {file}; a script's first line names what is to run it, as #!/bin/sh does"
    if error.errno != errno.ENOENT or not (file and Path(file).is_file()):
        return f"{said}: {file}" if file else said
    with Path(file).open("rb") as script:
        first = script.readline(512)
    words = os.fsdecode(first[2:]).split(" ") if first.startswith(b"#!") else []
    wanted = next((repr(word.rstrip("\n")) for word in words if word), "its loader")
    return f"{said}: {wanted}, which is to run {file}"


def _apply(child: Child) -> dict[str, OSError]:
    """Makes of this process what is wanted of it. What is refused is no reason not to go on; it is given back."""
    changes: dict[str, Callable[[Any], object]] = {
        "numa_node": _settle_on, "affinity": lambda cpus: os.sched_setaffinity(0, cpus),
        "nice": _renice, "personality": _add_personality,
    }  # fmt: skip
    refused = {}
    for name, change in changes.items():
        wanted = getattr(child, name)
        try:
            _ = None if wanted is None else change(wanted)
        except OSError as error:
            refused[name] = error
    return refused


def _settle_on(node: int) -> None:
    """The CPUs of a NUMA node, and its memory before that of others (set_mempolicy(2), MPOL_PREFERRED)."""
    cpus = (_SYS / f"devices/system/node/node{node}/cpulist").read_text()
    os.sched_setaffinity(0, numbers_in(cpus))
    call = _SET_MEMPOLICY.get(os.uname().machine)
    if call is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.syscall(call, _MPOL_PREFERRED, mask, ctypes.c_ulong(64 * len(mask) + 1)))


def _renice(value: int) -> None:
    """Where the kernel groups processes by session, a nice value counts within the group alone: the group, which is the
    target's own, gets the same (sched(7), autogroup)."""
    os.setpriority(os.PRIO_PROCESS, 0, value)
    with contextlib.suppress(OSError):
        (_PROC / "self/autogroup").write_text(str(value))


def _add_personality(bits: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.personality.argtypes = [ctypes.c_ulong]
    _checked(libc.personality(_checked(libc.personality(_PERSONALITY_AS_IT_IS)) | bits))


def _checked(result: int) -> int:
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


@dataclass(frozen=True)
class Tried:
    """What a process would come to: the CPUs that it could use, and by attribute the number of the error that refused
    it."""

    cpus: tuple[int, ...]
    refused: Mapping[str, int]


def tried(child: Child) -> Tried:
    """Tries out on a process of ours, which then ends, what is wanted of the target's."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            refused = {name: error.errno or errno.EIO for name, error in _apply(child).items()}
            os.write(writing, json.dumps([sorted(os.sched_getaffinity(0)), refused]).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:  # noqa: PTH123 - a descriptor
        cpus, refused = json.loads(answer.read())
    os.waitpid(pid, 0)
    return Tried(tuple(cpus), refused)


def _yama_tracer() -> Callable[[], object] | None:
    """Where only ancestors may trace (yama 1), what the child calls to let our tools, its siblings, trace it as
    well."""
    try:
        if (_PROC / "sys/kernel/yama/ptrace_scope").read_text().strip() != "1":
            return None
    except OSError:
        return None
    libc, us = ctypes.CDLL(None), os.getpid()
    return lambda: libc.prctl(_PR_SET_PTRACER, us, 0, 0, 0)


def wait_status(status: int) -> Exit:
    """A wait status as an Exit."""
    return Exit(signal=os.WTERMSIG(status)) if os.WIFSIGNALED(status) else Exit(code=os.WEXITSTATUS(status))


def own_rss_bytes() -> int:
    """Our resident set now."""
    return int((_PROC / "self/statm").read_text().split()[1]) * resource.getpagesize()


class Onlooker:
    """The end of a process that is another's child: that it has come, and how, as far as the kernel tells."""

    def __init__(self, pid: int) -> None:
        self.pid, self._born = pid, born(pid)
        self._fd: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # before Linux 5.3, or gone by now
            self._fd = os.pidfd_open(pid)

    def fileno(self) -> int | None:
        """Becomes readable at the end; None where the kernel has no such thing."""
        return self._fd

    def ended(self) -> bool:
        if self._fd is not None:
            return bool(select.select([self._fd], [], [], 0)[0])
        return not alive(self.pid) or born(self.pid) != self._born

    def exit(self) -> Exit | None:
        """How it has ended; None where nobody tells. Until its parent has taken note of it /proc does (proc(5), field
        52 of /proc/PID/stat), and from Linux 6.15 on the pidfd (linux/pidfd.h, PIDFD_GET_INFO)."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            fields = (_PROC / str(self.pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[0] == "Z" and int(fields[19]) == self._born and is_readable(self.pid):
                return wait_status(int(fields[49]))
        with contextlib.suppress(OSError, TypeError):
            told = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
            fcntl.ioctl(self._fd, _PIDFD_GET_INFO, told)  # type: ignore[arg-type]
            mask, status = _PIDFD_INFO.unpack(told)
            return wait_status(status) if mask & _PIDFD_INFO_EXIT else None
        return None

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


# ---------------------------------------------------------------- the profilers beside it


class Helper:
    """A profiler that runs beside the target, with its output in files. profrun's own death asks it to end, too."""

    def __init__(
        self,
        argv: Sequence[str],
        stdout: Path,
        stderr: Path,
        env: Mapping[str, str],
        cwd: Path,
        end_signal: int = signal.SIGINT,
    ) -> None:
        """Raises OSError when it can't be started."""
        self.argv, self.logs = tuple(argv), (stdout, stderr)
        with stdout.open("ab") as out, stderr.open("ab") as err, _hearing_interrupts():
            self._popen = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(env),
                cwd=cwd,
                start_new_session=True,
                preexec_fn=_outlived_by(end_signal),
            )
        self.pid = self._popen.pid
        _WAITED_FOR.add(self.pid)
        self.asked_to_stop = self.killed = False

    def ended(self) -> bool:
        return self._popen.poll() is not None

    def status(self) -> int | None:
        """Its exit status as a shell shows it; None while it runs."""
        code = self._popen.poll()
        return None if code is None else _exit_of(code).status

    def mishap(self) -> str | None:
        """The signal that it died of without having been asked to end; None for every other end."""
        code = self._popen.poll()
        return _exit_of(code).describe() if code is not None and code < 0 and not self.asked_to_stop else None

    def wait(self, timeout_s: float, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Waits for its end, up to `timeout_s` or until `give_up`; True when it has ended."""
        deadline = time.monotonic() + timeout_s
        while not give_up():
            try:
                self._popen.wait(min(0.2, max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                if time.monotonic() < deadline:
                    continue
            break
        return self.ended()

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ask_to_stop(self, number: int) -> None:
        """Asks it once to end, without waiting for it."""
        if not self.asked_to_stop:
            self.asked_to_stop = True
            self.signal(number)

    def stop(self, number: int, grace_s: float, give_up: Callable[[], bool] = lambda: False) -> None:
        """Asks it to end with `number`, then with SIGTERM, then kills it; `give_up` leaves out the waiting. Nothing
        that it has started in its session lives on."""
        if not self.ended():
            self.ask_to_stop(number)
            if not self.wait(grace_s, give_up):
                self.signal(signal.SIGTERM)
                self.killed = not self.wait(5.0, give_up)
        end(lambda: [pid for pid in descendants(os.getpid()) if session(pid) == self.pid], patience_s=0.0)
        self.wait(5.0)


def _outlived_by(number: int) -> Callable[[], None]:
    """What a child calls before its exec to get this signal when profrun is gone, whatever has killed it. SIGKILL would
    not do: a profiler that dies amid a sample may leave the target stopped."""
    bind = _bound_to_us()
    return lambda: bind(number)


def _bound_to_us() -> Callable[[int], None]:
    """What a child calls to get a signal when we are gone; 0: it gets none any more. One that is late ends itself."""
    libc, us = ctypes.CDLL(None), os.getpid()

    def bind(number: int) -> None:
        libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if number and os.getppid() != us:
            os._exit(EXIT_NOT_EXECUTABLE)

    return bind


class Attendant:
    """A process of its own session that lives as long as we hold the other end of its stdin, and a little longer: it
    learns of our death by the end of that pipe. `says` gives what it writes."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, fds: Sequence[int] = (), *, deaf: bool = False
    ) -> None:
        """`fds` are passed on under their own numbers. `deaf`: it ignores from its first moment on what ends others.

        Raises OSError when it can't be started."""
        self._popen = subprocess.Popen(
            tuple(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=None if env is None else dict(env),
            cwd="/",
            pass_fds=tuple(fds),
            start_new_session=True,
            preexec_fn=_deafen if deaf else None,
        )
        self.pid = self._popen.pid
        _WAITED_FOR.add(self.pid)

    def tell(self, line: str) -> bool:
        """Whether the line could be given to it."""
        try:
            os.write(_fileno(self._popen.stdin), line.encode("utf-8", "surrogateescape") + b"\n")
        except OSError:
            return False
        return True

    def says(self, timeout_s: float) -> str:
        """What it writes next, "" when that is nothing."""
        fd = _fileno(self._popen.stdout)
        return os.read(fd, 4096).decode("utf-8", "replace") if select.select([fd], [], [], timeout_s)[0] else ""

    def ended(self) -> bool:
        return self._popen.poll() is not None

    def close(self, timeout_s: float = 5.0) -> bool:
        """Closes the pipe and waits for its end; True when it has ended. It is not killed."""
        for stream in (self._popen.stdin, self._popen.stdout):
            if stream:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout_s)
        if self.ended():
            _WAITED_FOR.discard(self.pid)
        return self.ended()


def _fileno(stream: IO[bytes] | None) -> int:
    return -1 if stream is None or stream.closed else stream.fileno()


def _deafen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _hearing_interrupts() -> Iterator[None]:
    """What is started now does not inherit that SIGINT is ignored, as a script's `profrun ... &` has it: that is how
    profilers are stopped. A handler is no inheritance, and this one ignores the signal for us meanwhile."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


# ---------------------------------------------------------------- copies of ourselves


class Lost(Exception):
    """A worker has given nothing back: it was killed, or has ended itself."""


class Worker:
    """A copy of this process that does one piece of work beside it. `fileno` becomes readable when it has ended.

    Where memory runs out the kernel is to end it, and not us: a worker's loss is that of its work. It ends with us, and
    leaves what a terminal sends to us."""

    def __init__(self, work: Callable[[Callable[[int], None]], object]) -> None:
        """`work` gets a function that notes where it is (`at`), and gives back what can be pickled.

        Raises OSError where there is no room for another process."""
        self._answer: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open until its result is taken
        self._at = mmap.mmap(-1, 8)  # shared with the copy
        bind = _bound_to_us()
        with warnings.catch_warnings():  # that other threads are not copied: those of numpy know
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _work(work, self._answer, self._at, bind)
        self._end = _end_of(self.pid)
        _WAITED_FOR.add(self.pid)

    def fileno(self) -> int:
        return self._end

    @property
    def at(self) -> int:
        """What it has noted last; 0: nothing."""
        return int.from_bytes(self._at[:8], "little")

    def result(self) -> Any:
        """Waits for its end, and gives back what it has. Raises Lost with how it has ended; MemoryError where it had
        too little; the OSError that the work has raised; RuntimeError with its traceback for anything else."""
        _, status = os.waitpid(self.pid, 0)
        self._close()
        if status:
            raise Lost(wait_status(status).describe())
        import pickle

        self._answer.seek(0)
        how, what = pickle.load(self._answer)
        if how == "memory":
            raise MemoryError(what)
        if how == "failed":
            raise RuntimeError(what)
        if how == "raised":
            raise what
        return what

    def kill(self) -> None:
        """Ends it, whatever it does."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._close()

    def _close(self) -> None:
        os.close(self._end)
        _WAITED_FOR.discard(self.pid)


def _work(
    work: Callable[[Callable[[int], None]], object], answer: IO[bytes], at: mmap.mmap, bind: Callable[[int], None]
) -> NoReturn:
    """What the copy does. It never comes back, and flushes nothing that is its parent's to flush."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        bind(signal.SIGKILL)
        with contextlib.suppress(OSError):
            (_PROC / "self/oom_score_adj").write_text("900")
        try:
            told = "done", work(lambda number: at.__setitem__(slice(0, 8), number.to_bytes(8, "little")))
        except MemoryError as error:
            told = "memory", str(error)
        except OSError as error:
            told = "raised", error
        except Exception:
            told = "failed", traceback.format_exc()
        try:
            _hand_over(told, answer)
        except Exception:  # what can't be handed over is a bug, and has to be told as one
            answer.seek(0)
            answer.truncate()
            _hand_over(("failed", traceback.format_exc()), answer)
        os._exit(0)
    finally:
        os._exit(1)


def _hand_over(told: tuple[str, object], answer: IO[bytes]) -> None:
    """Pickles it, memoryviews (columns of numbers) with it."""
    import copyreg
    import pickle

    pickler = pickle.Pickler(answer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = copyreg.dispatch_table | {memoryview: lambda view: (_view, (view.tobytes(), view.format))}
    pickler.dump(told)
    answer.flush()


def _view(data: bytes, kind: str) -> memoryview:
    return memoryview(data).cast(kind)  # type: ignore[call-overload, no-any-return]


def first_ended(workers: Sequence[Worker]) -> Worker:
    """Waits until one of them has ended."""
    return select.select(workers, [], [])[0][0]


def room_bytes() -> int | None:
    """How much memory can still be had without swapping; None where the kernel does not say."""
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = (_PROC / "meminfo").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) << 10
    return None


# ---------------------------------------------------------------- who is there


def become_subreaper() -> None:
    """From now on, orphans of our descendants become our children instead of init's: none is lost from sight."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children(pid: int) -> list[int]:
    """The direct children of a process, of all its threads."""
    found: list[int] = []
    for task in names_in(_PROC / str(pid) / "task"):
        with contextlib.suppress(OSError):
            found += map(int, (_PROC / str(pid) / "task" / task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """All living descendants, parents before children."""
    found: list[int] = []
    queue = [pid]
    while queue:
        queue = [child for parent in queue for child in children(parent)]
        found += queue
    return found


def marked(mark: str) -> list[int]:
    """Every living process whose marker begins with `mark`; ours excepted."""
    sign = b"\0" + f"{MARKER}={mark}".encode()
    us = os.getpid()
    found = []
    for name in names_in(_PROC):
        if name.isdigit() and int(name) != us:
            with contextlib.suppress(OSError):
                if sign in b"\0" + (_PROC / name / "environ").read_bytes():
                    found.append(int(name))
    return found


def state(pid: int) -> str | None:
    """The state letter of /proc/PID/stat (R, S, D, T, t, Z ...); None when it is gone."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]


def everybody() -> list[int]:
    """The pids of all processes that can be seen."""
    return [int(name) for name in names_in(_PROC) if name.isdigit()]


def session(pid: int) -> int | None:
    """The session it belongs to; None when it is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def alive(pid: int) -> bool:
    return state(pid) not in (None, "Z", "X")


def born(pid: int) -> int | None:
    """Its start, in clock ticks since boot: with the pid it names one process for ever. None when it is gone."""
    found = image(pid)
    return None if found is None else found[1]


def born_ns(pid: int) -> int | None:
    """Its start in ns since the Unix epoch, right to a tick (10 ms); None when it is gone."""
    ticks = born(pid)
    boot_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return None if ticks is None else boot_ns + ticks * 10**9 // os.sysconf("SC_CLK_TCK")


def image(pid: int) -> tuple[int, ...] | None:
    """What tells one program in a process from the next: pid, start of the process, and the start of its stack, which
    changes with every exec (proc(5), /proc/PID/stat, fields 22 and 28). None when it is gone."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return pid, int(fields[19]), int(fields[25])
    except (OSError, IndexError, ValueError):
        return None


def status_of(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status by name (Name, Tgid, PPid, TracerPid, Uid ...); empty when it is gone."""
    try:
        text = (_PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def tracer_of(pid: int) -> int:
    """The pid of its ptrace tracer; 0 when it has none or is gone."""
    return int(status_of(pid).get("TracerPid", 0))


def is_of_kernel(pid: int) -> bool:
    """Whether it is a thread of the kernel, which runs no program (proc(5), flags of /proc/PID/stat: PF_KTHREAD)."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return bool(int(fields[6]) & _PF_KTHREAD)
    except (OSError, IndexError, ValueError):
        return False


def is_readable(pid: int) -> bool:
    """Whether we may know what it executes: what is refused there is refused to the profilers, too."""
    try:
        (_PROC / str(pid) / "exe").readlink()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


def may_trace(pid: int) -> bool:
    """Whether we may trace it, as the kernel says of reading its memory (proc(5)); it is not touched, nor even read."""
    try:
        os.close(os.open(_PROC / str(pid) / "mem", os.O_RDONLY | os.O_CLOEXEC))
    except PermissionError:
        return False
    except OSError:  # it has ended
        return True
    return True


def argv_of(pid: int) -> tuple[str, ...]:
    """Its command line; empty when it is gone or a kernel thread."""
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ()
    return tuple(os.fsdecode(word) for word in raw.split(b"\0")[:-1])


def environ_of(pid: int) -> dict[str, str] | None:
    """The environment that its program was started with; None when it is gone or not ours to know."""
    try:
        pairs = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return {os.fsdecode(name): os.fsdecode(text) for name, _, text in (pair.partition(b"=") for pair in pairs) if name}


def attributes_of(pid: int) -> tuple[str | None, int | None, int | None]:
    """(the CPUs that it may use, as 0-3,8; its nice value; its personality); None where that can't be read."""

    def text(name: str) -> str:
        try:
            return (_PROC / str(pid) / name).read_text(errors="replace")
        except OSError:
            return ""

    cpus = cpus_allowed(text("status"))
    fields, bits = text("stat").rpartition(")")[2].split(), text("personality").strip()
    return cpus, int(fields[16]) if fields else None, int(bits, 16) if bits else None


def cpus_allowed(status: str | None) -> str | None:
    """The CPUs that a process may use, as 0-3,8: from the text of /proc/PID/status."""
    found = re.search(r"^Cpus_allowed_list:\s*(\S+)", status or "", re.M)
    return found[1] if found else None


def exe_of(pid: int) -> str | None:
    """The file it executes; None when it is gone or not ours to know."""
    try:
        return os.readlink(_PROC / str(pid) / "exe").removesuffix(" (deleted)")  # noqa: PTH115 - a deleted file is no Path
    except OSError:
        return None


def pid_namespace(pid: int | str) -> int | None:
    """The inode of the namespace that its children's and its own pids belong to; None when it is not ours to know."""
    try:
        return (_PROC / str(pid) / "ns/pid").stat().st_ino
    except OSError:
        return None


def pid_here(pid: int, namespace: int) -> int | None:
    """The pid, as it is seen from here, of a process that has another one in its own namespace (proc(5), NSpid of
    /proc/PID/status); None when there is none, or which one it is can't be told."""
    found = [
        number
        for number in everybody()
        if status_of(number).get("NSpid", "").split()[1:][-1:] == [str(pid)]
        and pid_namespace(number) in (namespace, None)
    ]
    return found[0] if len(found) == 1 else None


def sees(pid: int, path: str) -> bool | None:
    """Whether there is such a file for that process, whose root may be a container's; None when it is not ours to
    know."""
    try:
        (_PROC / str(pid) / "root" / path.lstrip("/")).stat()
    except FileNotFoundError:
        return False if alive(pid) else None
    except OSError:
        return None
    return True


def describe(pid: int) -> Process:
    return Process(pid, argv_of(pid))


def is_python(pid: int) -> bool:
    """Whether a Python interpreter runs in it, by its executable's name or its libpython."""
    exe = os.path.basename(exe_of(pid) or "")  # noqa: PTH119
    if exe.startswith(("python", "pypy")):
        return True
    try:
        return b"/libpython" in (_PROC / str(pid) / "maps").read_bytes()
    except OSError:
        return False


def perf_descriptors(pid: int) -> int:
    """How many perf_event descriptors it holds: perf has attached when there are some."""
    count = 0
    for fd in names_in(_PROC / str(pid) / "fd"):
        with contextlib.suppress(OSError):
            count += "perf_event" in os.readlink(_PROC / str(pid) / "fd" / fd)  # noqa: PTH115
    return count


def names_in(path: Path | str) -> list[str]:
    """The names in a folder, in no order; none where it is gone, or not ours to read."""
    try:
        return os.listdir(path)  # noqa: PTH208 - names are wanted, and this is asked often
    except OSError:
        return []


# ---------------------------------------------------------------- ending what was started


def send(pid: int, number: int) -> bool:
    """Sends a signal; False when the process is gone or not ours to signal."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def send_group(pid: int, number: int) -> None:
    """To the process and those of its descendants that stayed in its group: what a terminal does on Ctrl-C."""
    try:
        group = os.getpgid(pid)
    except ProcessLookupError:
        return
    if group == pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        return
    for member in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(member) == group:
                send(member, number)


def continue_stopped(pids: Iterable[int]) -> list[int]:
    """Continues those that are stopped without a tracer; gives back which they were."""
    stopped = [pid for pid in pids if state(pid) == "T" and tracer_of(pid) == 0]
    return [pid for pid in stopped if send(pid, signal.SIGCONT)]


def end(pids: Callable[[], list[int]], patience_s: float = 3.0) -> list[Process]:
    """Ends every process that `pids` names, deepest last-started first: SIGTERM, then SIGKILL until none is left.

    Gives back whom it had to end."""
    seen: dict[int, Process] = {}
    for number, limit_s in ((signal.SIGTERM, patience_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + limit_s
        told: set[int] = set()
        while True:
            living = [pid for pid in pids() if alive(pid)]
            for pid in reversed(living):
                seen.setdefault(pid, describe(pid))
                if pid not in told or number == signal.SIGKILL:
                    send(pid, number)
                    send(pid, signal.SIGCONT)
                    told.add(pid)
            reap_orphans()
            if not living or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        if not living:
            break
    return list(seen.values())


def take_exit(pid: int) -> Exit | None:
    """The end of a dead process that became our child; None when it is not ours to know."""
    with contextlib.suppress(ChildProcessError):
        found, status = os.waitpid(pid, os.WNOHANG)
        return wait_status(status) if found else None
    return None


def reap_orphans(but: int | None = None) -> None:
    """Takes the exit status of dead processes that became our children and that nobody waits for, as `but` does."""
    for pid in children(os.getpid()):
        if pid not in _WAITED_FOR and pid != but and state(pid) == "Z":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
