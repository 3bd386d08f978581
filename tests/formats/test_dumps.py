"""formats/dumps.py: what each thread is in, and whether it has moved, from two real looks and from made ones."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParseError
from orchestrator.formats import dumps

PIP = "/opt/venv/lib/python3.11/site-packages/"
LIB = "/usr/lib/python3.11/"
SECOND_NS = 10**9


def frame(function: str, file: str, line: int = 1, module: str | None = None) -> dict[str, Any]:
    return {
        "name": function,
        "filename": file,
        "short_filename": file.rpartition("/")[2],
        "line": line,
        "module": module,
    }


OWN = frame("train", "/srv/train.py", 30)


def look(at_ns: int, *frames: dict[str, Any], **more: Any) -> dict[str, Any]:
    """One process with one thread; its innermost frame is the last here."""
    thread = {"name": "python", "state": "S", "wchan": "0", "syscall": [], "at": None, **more.pop("thread", {})}
    stack = [{"os_thread_id": 9, "thread_name": "MainThread", "frames": list(reversed(frames))}]
    process = {
        "pid": 9, "born": 5, "argv": ["python", "train.py"], "state": "S", "tracer": 0, "python": True,
        "local_world_size": None, "recorder": False, "threads": {"9": thread}, "nonblocking": False,
        "dump": {"threads": stack}, "used": {"9": [0, 0, 0, 0]}, **more,
    }  # fmt: skip
    return {"version": 1, "machine": "x86_64", "began_ns": at_ns, "ended_ns": at_ns, "processes": [process]}


def read(folder: Path, first: Any, second: Any) -> dumps.Looks:
    paths = [folder / f"look.{number}.json" for number in (0, 1)]
    for path, content in zip(paths, (first, second), strict=True):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return dumps.read(*paths)


def thread(folder: Path, *frames: dict[str, Any], later: Any = None, **more: Any) -> dumps.Thread:
    """The thread after two looks a second apart, of which the second is given by `later`, or the same."""
    first = look(0, *frames, **copy.deepcopy(more))
    second = look(SECOND_NS, *frames, **copy.deepcopy(more)) if later is None else later
    return read(folder, first, second).processes[0].threads[0]


def test_two_ranks_one_of_which_has_not_come(golden: Path) -> None:
    looks = dumps.read(golden / "dumps" / "look.0.json", golden / "dumps" / "look.1.json")
    mains = {process.pid: process.threads[0] for process in looks.processes}
    launcher, first, second = mains.values()
    assert launcher.doing == "launcher"
    assert (first.doing, first.what, first.moved, first.syscall) == ("collective", "all_reduce", False, "futex")
    assert (second.doing, second.what, second.moved) == ("file lock", "/srv/job/lock", False)
    place = second.place()
    assert place is not None and (place.function, place.file) == ("load_batch", "/srv/job/job.py")
    assert dumps.text(second.frames) == "<module> (job.py:41);train (job.py:20);load_batch (job.py:9)"
    assert "c10d::Work::wait (libtorch_cpu.so)" in (dumps.text(first.native) or "")
    assert "0x" not in (dumps.text(first.native) or ""), "addresses tell nothing"
    assert [process.local_world_size for process in looks.processes] == [None, 2, 2]
    assert [one["fresh"] for one in looks.recorders] == [True, True]
    assert 1.5 * SECOND_NS < looks.apart_ns < 4 * SECOND_NS


@pytest.mark.parametrize(
    ("frames", "call", "doing"),
    [
        ([frame("barrier", f"{PIP}torch/distributed/distributed_c10d.py")], [], ("collective", "barrier")),
        ([frame("all_gather_object", f"{PIP}torch/distributed/distributed_c10d.py"),
          frame("all_gather", f"{PIP}torch/distributed/distributed_c10d.py")], [], ("collective", "all_gather_object")),
        ([frame("_MultiProcessingDataLoaderIter._next_data", f"{PIP}torch/utils/data/dataloader.py"),
          frame("Queue.get", f"{LIB}multiprocessing/queues.py")], [], ("data loader", None)),
        ([frame("_SingleProcessDataLoaderIter._next_data", f"{PIP}torch/utils/data/dataloader.py"),
          frame("__getitem__", "/srv/data.py")], ["0", "0x5"], ("file", "/data/a.bin")),
        ([frame("synchronize", f"{PIP}torch/cuda/__init__.py")], [], ("CUDA", None)),
        ([frame("Thread.join", f"{LIB}threading.py")], ["202", "0x1"], ("thread join", None)),
        ([frame("Condition.wait", f"{LIB}threading.py")], ["202", "0x1"], ("lock", None)),
        ([], ["202", "0x1"], ("lock", None)),
        ([frame("Queue.get", f"{LIB}queue.py"), frame("Condition.wait", f"{LIB}threading.py")], [], ("queue", None)),
        ([frame("Popen.wait", f"{LIB}subprocess.py")], ["61", "0x1"], ("child", None)),
        ([], ["230", "0x1"], ("sleep", None)),
        ([], ["23", "0x0", "0x0"], ("sleep", None)),
        ([frame("_worker", f"{LIB}concurrent/futures/thread.py")], ["202"], ("idle worker", None)),
        ([frame("_worker", f"{LIB}concurrent/futures/thread.py"), frame("task", "/srv/t.py")], ["202"], ("lock", None)),
        ([frame("BaseEventLoop._run_once", f"{LIB}asyncio/base_events.py"),
          frame("EpollSelector.select", f"{LIB}selectors.py")], ["232"], ("events", None)),
        ([frame("BaseEventLoop._run_once", f"{LIB}asyncio/base_events.py"),
          frame("answer", "/srv/t.py")], ["230"], ("sleep", None)),
    ],
)  # fmt: skip
def test_what_a_thread_is_in(frames: Any, call: list[str], doing: Any, tmp_path: Path) -> None:
    seen = {"syscall": call, "at": "/data/a.bin" if call[:1] == ["0"] else None}
    found = thread(tmp_path, OWN, *frames, thread=seen)
    assert (found.doing, found.what) == doing


@pytest.mark.parametrize(
    ("at", "doing"),
    [("socket:[77]", "network"), ("pipe:[5]", "pipe"), ("/data/x", "file"), ("anon_inode:[eventfd]", "events")],
)
def test_a_read_is_of_what_its_descriptor_is(at: str, doing: str, tmp_path: Path) -> None:
    found = thread(tmp_path, OWN, thread={"syscall": ["0", "0x4"], "at": at})
    assert (found.doing, found.what) == (doing, at)


def test_native_frames_tell_of_ddp_and_of_cuda(tmp_path: Path) -> None:
    backward = frame("_engine_run_backward", f"{PIP}torch/autograd/graph.py")
    for symbol, doing in (
        ("c10d::Reducer::finalize_backward", ("collective", "all_reduce of gradients")),
        ("c10d::ProcessGroupNCCL::WorkNCCL::synchronize", ("collective", "Work.wait")),
        ("cudaStreamSynchronize", ("CUDA", "cudaStreamSynchronize")),
    ):
        native = [{"os_thread_id": 9, "thread_name": "M", "frames": [frame(symbol, "?", 0, "/x/libtorch.so"), OWN]}]
        second = look(SECOND_NS, OWN, backward, native={"threads": native})
        found = thread(tmp_path, OWN, backward, later=second)
        assert (found.doing, found.what) == doing


def test_a_thread_has_moved_when_its_stack_differs_or_it_has_used_the_processor(tmp_path: Path) -> None:
    def moved(frames: Any, later: Any, cpu_ns: int, switches: int, **more: Any) -> bool | None:
        second = look(SECOND_NS, *later, used={"9": [cpu_ns, switches, 0, 0]}, **more)
        return thread(tmp_path, *frames, later=second).moved

    assert moved([OWN], [OWN], 0, 0) is False
    assert moved([OWN], [{**OWN, "line": 31}], 0, 0) is True
    assert moved([OWN], [OWN], SECOND_NS // 2, 3) is True, "it computes"
    assert moved([OWN], [OWN], 1000, 100) is True, "it is woken again and again"
    assert moved([OWN], [OWN], 1000, 10, thread={"syscall": ["230"]}) is False, "it polls, and goes back to sleep"
    waits = [OWN, frame("all_reduce", f"{PIP}torch/distributed/distributed_c10d.py")]
    assert moved(waits, waits, SECOND_NS, 3) is None, "it may only spin"


def test_what_py_spy_itself_has_cost_is_left_out(tmp_path: Path) -> None:
    first = look(0, OWN, used={"9": [100, 1, 7_000_100, 21]})
    second = look(SECOND_NS, OWN, used={"9": [7_000_300, 22, 9_000_000, 50]})
    found = read(tmp_path, first, second).processes[0].threads[0]
    assert (found.cpu_ns, found.switches, found.moved) == (200, 1, False)


def test_a_wait_that_py_spy_has_interrupted_keeps_its_name(tmp_path: Path) -> None:
    second = look(SECOND_NS, OWN, thread={"syscall": ["219", "0x0"]})
    first = look(0, OWN, thread={"syscall": ["7", "0x1", "0x0"]})
    found = read(tmp_path, first, second).processes[0].threads[0]
    assert (found.syscall, found.doing) == ("poll", "sleep")


def test_a_process_that_has_ended_meanwhile_or_given_its_number_to_another(tmp_path: Path) -> None:
    ended = {**look(SECOND_NS), "processes": []}
    for second in (ended, look(SECOND_NS, OWN, born=6)):
        process = read(tmp_path, look(0, OWN), second).processes[0]
        assert (process.state, process.threads[0].state, process.threads[0].moved) == ("ended", "ended", True)


def test_a_process_that_could_not_be_read_says_why_and_is_judged_by_its_times(tmp_path: Path) -> None:
    unread = {"dump": {"why": "py-spy had not read it after 20 s"}}
    found = thread(tmp_path, **unread)
    assert (found.unread, found.frames, found.moved) == ("py-spy had not read it after 20 s", None, False)
    half = thread(tmp_path, OWN, later=look(SECOND_NS, **unread))
    assert half.moved is None, "where it stands now is not known"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"version": 1}', '{"version": 2}', "{" * 100_000, "\x00"])
def test_what_is_no_look_is_refused(content: str, tmp_path: Path) -> None:
    with pytest.raises(ParseError):
        read(tmp_path, content, content)


@given(cut=st.integers(0, 12_000), at=st.integers(0, 12_000), text=st.text(max_size=3))
def test_only_parse_errors_come_out_of_damaged_looks(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, text: str
) -> None:
    folder = Path(__file__).parents[1] / "golden" / "dumps"
    first, second = ((folder / f"look.{n}.json").read_text() for n in (0, 1))
    for damaged in (first[:cut], first[:at] + text + first[at + 1 :]):
        with suppress(ParseError):
            read(tmp_path_factory.mktemp("look"), damaged, second)
