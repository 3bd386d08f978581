"""What a thread was doing, by its stack: chains of frames as py-spy's native stacks have shown them (Python 3.11, glibc
2.36, torch 2.13), the leaf last."""

from __future__ import annotations

import pytest

from orchestrator.locating import frames

LIBC, PY = "/usr/lib/x86_64-linux-gnu/libc.so.6", "/opt/python/lib/libpython3.11.so.1.0"
STD, SITE = "/opt/python/lib/python3.11", "/srv/.venv/lib/python3.11/site-packages"
MAIN = ("0x7f5d7d04524a (libc.so.6)", "<module> (/home/me/train.py:21)", "work (/home/me/train.py:12)")
FUTEX = (f"PyThread_acquire_lock_timed ({PY})", f"0x7f5d7d0aed90 ({LIBC})", f"0x7f5d7d0a3f16 ({LIBC})")
GIL = (f"pthread_cond_timedwait ({LIBC})", f"0x7f5d7d0a3f16 ({LIBC})")
WORKER = (
    f"Thread._bootstrap ({STD}/threading.py:1002)",
    f"Thread.run ({STD}/threading.py:982)",
    f"_worker ({STD}/concurrent/futures/thread.py:81)",
)
RUN = f"run ({STD}/subprocess.py:550)"
LOADER = f"_BaseDataLoaderIter.__next__ ({SITE}/torch/utils/data/dataloader.py:733)"
POLL = ("select_poll_poll (/build/Modules/clinic/selectmodule.c.h:223)", f"poll ({LIBC})")
BACKWARD = (f"Tensor.backward ({SITE}/torch/_tensor.py:647)", f"backward ({SITE}/torch/autograd/__init__.py:354)")
TORCH = f"{SITE}/torch/lib/libtorch_cpu.so"

CASES = {
    "python": ((), "python", "own"),
    "python of objects": ((f"unicode_dealloc ({PY})",), "python", "own"),
    "sleep": ((f"time_sleep ({PY})", f"clock_nanosleep ({LIBC})"), "sleep", "own"),
    "fsync": ((f"os_fsync ({PY})", f"fsync ({LIBC})"), "file", "own"),
    "stat": ((f"os_stat ({PY})", f"fstatat64 ({LIBC})"), "file", "own"),
    "read": ((f"os_read ({PY})", f"read ({LIBC})"), "file", "own"),
    "back from a read": ((f"os_read ({PY})", *GIL), "gil", "own"),
    "gil in Python": (GIL, "gil", "own"),
    "lock": ((f"lock_PyThread_acquire_lock ({PY})", *FUTEX), "lock", "own"),
    "gil after a lock": ((f"lock_PyThread_acquire_lock ({PY})", *GIL), "gil", "own"),
    "queue": (
        (f"Queue.get ({STD}/queue.py:171)", f"Condition.wait ({STD}/threading.py:327)", *FUTEX),
        "lock",
        "library",
    ),
    "file lock": (("fcntl_flock_impl (/build/Modules/fcntlmodule.c:297)", f"flock ({LIBC})"), "lock", "library"),
    "recv": (("sock_call_ex (/build/Modules/socketmodule.c:920)", f"recv ({LIBC})"), "network", "library"),
    "spawned": ((RUN, "do_fork_exec (/build/Modules/_posixsubprocess.c:797)", f"vfork ({LIBC})"), "child", "library"),
    "communicate": ((RUN, f"Popen._communicate ({STD}/subprocess.py:2115)", *POLL), "child", "library"),
    "a pool's end": (
        (f"Pool.terminate ({STD}/multiprocessing/pool.py:654)", f"os_waitpid ({PY})", f"wait4 ({LIBC})"),
        "child",
        "library",
    ),
    "munmap": (
        ("THPVariable_dealloc (libtorch_python.so)", f"free ({LIBC})", f"munmap ({LIBC})"),
        "memory",
        "framework",
    ),
    "gc": ((f"gc_collect_main ({PY})",), "gc", "own"),
    "import": (("_find_and_load (<frozen importlib._bootstrap>:1176)",), "import", "library"),
    "regex": ((f"sre_ucs1_match ({PY})",), "native", "own"),
    "compression": (("BZ2_compressBlock (/usr/lib/x86_64-linux-gnu/libbz2.so.1.0.4)",), "native", "library"),
    "sync": ((f"at::native::item ({TORCH})", "cudaStreamSynchronize (libcudart.so.12)"), "device", "framework"),
    "omp": (("GOMP_parallel (libgomp.so.1.0.0)", "0x7f12 (libgomp.so.1.0.0)"), "native", "framework"),
    "gil in torch": ((f"pybind11::gil_scoped_acquire::gil_scoped_acquire ({TORCH})", *GIL), "gil", "framework"),
    "other ranks": (
        (f"c10d::ProcessGroupGloo::AsyncWork::wait ({TORCH})", f"pthread_cond_wait ({LIBC})"),
        "collective",
        "framework",
    ),
    "database": (("PQexec (/usr/lib/libpq.so.5)", f"poll ({LIBC})"), "network", "library"),
    "event loop": ((f"BaseEventLoop._run_once ({STD}/asyncio/base_events.py:1898)", *POLL), "events", "library"),
    "server": ((f"BaseServer.serve_forever ({STD}/socketserver.py:232)", *POLL), "idle", "library"),
    "no symbols": (("0x7f5d7d04524a (libtokenizer.so)",), "native", "library"),
    "compiled": (
        (f"CompiledFxGraph.__call__ ({SITE}/torch/_inductor/output_code.py:721)", f"mkl ({TORCH})"),
        "native",
        "framework",
    ),
    "generated": (
        ("call (/tmp/torchinductor_me/ab/cab.py:9)", "cpp_fused (/tmp/torchinductor_me/xy/c.so)"),
        "native",
        "framework",
    ),
    "compiling": ((f"GraphLowering.run ({SITE}/torch/_inductor/graph.py:900)",), "compile", "framework"),
    "ours": (("Steps.put (/srv/orchestrator/inject/steps.py:91)",), "ours", "profrun"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_state_that_a_stack_tells(case: str) -> None:
    below, state, code = CASES[case]
    doing = frames.read((*MAIN, *below))
    assert (doing.state, doing.code) == (state, code)
    if state != "ours":
        assert (doing.function, doing.file, doing.line) == ("work", "/home/me/train.py", 12)


def test_a_thread_that_waits_for_work_is_idle() -> None:
    waiting = ("_queue_SimpleQueue_get_impl (/build/Modules/_queuemodule.c:253)", *FUTEX)
    assert frames.read((*WORKER, *waiting)).state == "idle"
    assert frames.read((*WORKER, "work (/home/me/train.py:12)", *FUTEX)).state == "lock"


def test_work_of_the_framework_with_its_operator_and_phase() -> None:
    op = (f"at::_ops::addmm::call(at::Tensor const&) ({TORCH})", f"at::native::addmm_impl_cpu_ ({TORCH})")
    forward = frames.read((*MAIN, f"Module._call_impl ({SITE}/torch/nn/modules/module.py:1789)", *op))
    assert (forward.state, forward.code, forward.phase) == ("native", "framework", "forward")
    assert forward.op is not None
    assert forward.op.startswith("aten::addmm")
    backward = frames.read((*MAIN, *BACKWARD, f"mkl_blas_sgemm ({TORCH})"))
    assert (backward.state, backward.code, backward.phase) == ("native", "framework", "backward")


def test_the_loader_s_work_is_that_of_the_dataset() -> None:
    item = "Images.__getitem__ (/home/me/data.py:31)"
    stack = (*MAIN, LOADER, item, "decode (/home/me/data.py:12)", f"time_sleep ({PY})", f"clock_nanosleep ({LIBC})")
    doing = frames.read(stack)
    assert (doing.state, doing.phase, doing.function) == ("sleep", "data", "decode")
    assert doing.outer is not None
    assert doing.outer.function == "Images.__getitem__"


def test_a_forked_child_is_not_where_its_parent_was() -> None:
    child = (f"BaseProcess._bootstrap ({STD}/multiprocessing/process.py:314)", "score (/home/me/train.py:5)")
    assert frames.read((*MAIN, LOADER, *child)).function == "score"
    assert frames.read((*MAIN, LOADER, *child)).phase is None


def test_without_native_frames_a_leaf_in_python_tells_only_where() -> None:
    assert frames.read(MAIN, has_native=False).state == "unknown"
    assert frames.read((*MAIN, f"Condition.wait ({STD}/threading.py:327)"), has_native=False).state == "lock"
    assert frames.read((*MAIN, f"SocketIO.readinto ({STD}/socket.py:705)"), has_native=False).state == "network"


@pytest.mark.parametrize("nameless", ["<lambda>", "<listcomp>", "score.<locals>.<lambda>", "score.<locals>.<genexpr>"])
def test_a_nameless_function_is_part_of_the_one_it_stands_in(nameless: str) -> None:
    doing = frames.read((*MAIN[:2], "score (/home/me/train.py:12)", f"{nameless} (/home/me/train.py:13)"))
    assert (doing.function, doing.line) == ("score", 13)
