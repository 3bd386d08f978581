"""Counting steps and what they were spent on, and reading it back."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ParseError
from orchestrator.formats import injected
from orchestrator.inject import around, diary, mapped, steps
from orchestrator.inject.steps import INFERENCE, TRAIN, Steps

DATA, FORWARD, BACKWARD, OPTIMIZER, ZERO_GRAD, CHECKPOINT, EVALUATION = range(7)
EPOCH_NS = 1_700_000_000_000_000_000


@dataclass
class Clock:
    """Time that goes on only when a test says so."""

    now_ns: int = 5_000_000_000
    cpu_ns: int = 700_000_000

    def go_on(self, ns: int, cpu_ns: int = 0) -> None:
        self.now_ns += ns
        self.cpu_ns += cpu_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(steps, "perf_counter_ns", lambda: clock.now_ns)
    monkeypatch.setattr(steps, "process_time_ns", lambda: clock.cpu_ns)
    monkeypatch.setattr(steps, "time_ns", lambda: EPOCH_NS + clock.now_ns)
    return clock


@pytest.fixture
def counted(tmp_path: Path, clock: Clock) -> Steps:
    return begun(tmp_path)


def begun(folder: Path) -> Steps:
    counted = Steps(str(folder / "1.0.steps"), 3)
    counted.turn_to(TRAIN)
    return counted


def read(counted: Steps) -> injected.Steps:
    assert counted._file.path
    found = injected.read_steps(Path(counted._file.path))
    assert found is not None
    return found


def phase(counted: Steps, clock: Clock, number: int, ns: int, inner: Any = None) -> None:
    """A phase in which as much time goes by before as after what is inside it."""
    end = counted.begin(number)
    assert end is not None
    clock.go_on(ns, ns // 2)
    if inner is not None:
        inner()
        clock.go_on(ns, ns // 2)
    end()


def test_each_part_of_a_step_is_counted_once(counted: Steps, clock: Clock) -> None:
    for _ in range(3):
        phase(counted, clock, DATA, 1_000_000)
        clock.go_on(5_000)
        backward = partial(phase, counted, clock, BACKWARD, 40_000_000)
        phase(counted, clock, OPTIMIZER, 300_000_000, partial(phase, counted, clock, FORWARD, 20_000_000, backward))
        counted.tick()
    found = read(counted)
    assert (len(found), found.kind, found.profiled) == (3, "train", [False] * 3)
    assert {name: set(column) for name, column in found.phases.items()} == {
        "data": {1_000_000}, "forward": {2 * 20_000_000}, "backward": {40_000_000}, "optimizer": {2 * 300_000_000},
        "zero_grad": {None}, "checkpoint": {None}, "evaluation": {None},
    }  # fmt: skip
    assert found.duration_ns == [681_005_000] * 3
    assert found.cpu_ns == [340_500_000] * 3
    assert found.start_ns == [EPOCH_NS + 5_000_000_000 + n * 681_005_000 for n in range(3)]


def test_steps_are_on_the_clock_of_the_machine(tmp_path: Path) -> None:
    counted, before_ns = begun(tmp_path), time.time_ns()
    for _ in range(2):
        assert counted.begin(FORWARD) is not None
        counted.tick()
    (first, second), minute_ns = read(counted).start_ns, 60_000_000_000
    assert before_ns - minute_ns < first <= second < time.time_ns() + minute_ns


def test_steps_follow_one_another_without_a_gap(counted: Steps, clock: Clock) -> None:
    for number in range(50):
        phase(counted, clock, FORWARD, number * 1000)
        counted.tick()
    found = read(counted)
    ends = [start + (duration or 0) for start, duration in zip(found.start_ns, found.duration_ns, strict=True)]
    assert ends[:-1] == found.start_ns[1:]
    assert found.duration_ns == [number * 1000 for number in range(50)]


def test_many_steps(counted: Steps) -> None:
    """More than the file has room for at first, and twice over."""
    for number in range(9000):
        counted.loss = float(number) if number % 2 else None
        counted.digest = number
        counted.tick()
    found = read(counted)
    assert len(found) == 9000
    assert found.loss[8998:] == [None, 8999.0]
    assert found.digest[8999] == f"{8999:016x}"
    assert found.duration_ns[0] is None  # its beginning was not seen
    assert None not in found.duration_ns[1:]


def test_training_takes_the_place_of_a_trial_run(counted: Steps) -> None:
    counted.turn_to(INFERENCE)
    for _ in range(5):
        counted.tick()
    assert read(counted).kind == "inference"
    counted.turn_to(TRAIN)
    counted.tick()
    assert (read(counted).kind, len(read(counted))) == ("train", 1)


def test_what_is_done_at_a_window_is_no_step_s_time(counted: Steps, clock: Clock) -> None:
    def wake() -> None:
        counted.profiled += 1
        clock.go_on(50_000_000)

    counted.wake, counted.on_wake = 2, wake
    phase(counted, clock, DATA, 1000)
    for _ in range(4):
        clock.go_on(7000)
        counted.tick()
    found = read(counted)
    assert found.profiled == [False, False, True, True]
    assert found.duration_ns == [8000, 7000, 7000, 7000]
    assert found.start_ns[2] - found.start_ns[1] == 7000 + 50_000_000


def test_the_gpu_s_time_comes_later(counted: Steps) -> None:
    for _ in range(3):
        counted.tick()
    counted.set_gpu_ns(1, 77)
    counted.set_gpu_ns(3, 88)  # has not ended
    assert read(counted).gpu_ns == [None, 77, None]


def in_thread(function: Any) -> Any:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_the_thread_that_trains_is_the_one_that_counts(counted: Steps) -> None:
    assert in_thread(lambda: counted.begin(DATA)) is not None  # one that reads ahead
    assert counted.begin(FORWARD) is not None
    assert in_thread(lambda: counted.begin(FORWARD)) is None
    assert counted.begin(OPTIMIZER) is not None
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    assert in_thread(lambda: counted.begin(OPTIMIZER)) is None
    counted.owner = other.ident
    end.set()
    other.join()
    assert counted.begin(FORWARD) is None
    assert counted.begin(OPTIMIZER) is not None  # that thread has ended, and this one goes on training


def test_the_diary_tells_the_thread_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(diary, "write", lambda event, **facts: told.append(facts["tid"]))
    counted = Steps(str(tmp_path / "1.0.steps"), None)
    counted.begin(FORWARD)
    counted.begin(OPTIMIZER)
    assert told == [threading.get_native_id()]


def test_an_end_of_a_phase_after_that_of_its_step_does_nothing(counted: Steps, clock: Clock) -> None:
    end = counted.begin(FORWARD)
    assert end is not None
    counted.tick()
    later = counted.begin(BACKWARD)
    assert later is not None
    end()
    clock.go_on(2000)
    later()
    counted.tick()
    found = read(counted)
    assert (found.phases["forward"][1], found.phases["backward"][1]) == (0, 2000)


def test_short_steps_share_the_cpu_time_that_is_asked_for_now_and_then(counted: Steps, clock: Clock) -> None:
    for _ in range(40):
        clock.go_on(999_999, 160_000)
        counted.tick()
    assert read(counted).cpu_ns == [None, *[160_000] * 32, *[None] * 7]  # nothing was asked before the first


def test_a_step_that_is_not_short_has_a_cpu_time_of_its_own(counted: Steps, clock: Clock) -> None:
    for number in range(5):
        clock.go_on(1_000_000, number * 1000)
        counted.tick()
    assert read(counted).cpu_ns == [None, 1000, 2000, 3000, 4000]


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path) -> None:
    for path in (None, "/dev/null/no.steps", str(tmp_path)):
        counted = Steps(path, None)
        counted.turn_to(TRAIN)
        counted.tick()
        counted.set_gpu_ns(0, 5)
        assert counted.count == 1


def test_a_full_disk_is_noticed_before_memory_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    counted = Steps(str(tmp_path / "1.0.steps"), None)
    counted.tick()
    assert counted._file.memory is None


def test_memory_holds_no_descriptor(tmp_path: Path) -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    file = mapped.Mapped(str(tmp_path / "x"), 112)
    file.place(0)
    file.place(5000)
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert file.memory is not None


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("data", [b"", b"prsteps", b"x" * 200])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "1.0.steps").write_bytes(data)
    with pytest.raises(ParseError, match=r"1\.0\.steps holds no steps"):
        injected.read_steps(tmp_path / "1.0.steps")


def test_a_file_that_was_cut_gives_its_whole_steps(counted: Steps, tmp_path: Path) -> None:
    for _ in range(4):
        counted.tick()
    data = (tmp_path / "1.0.steps").read_bytes()
    (tmp_path / "2.0.steps").write_bytes(data[: 64 + 8 * (1 + 2 * 2) + 5])  # of what kind, two steps
    found = injected.read_steps(tmp_path / "2.0.steps")
    assert found is not None
    assert len(found) == 2


def test_a_damaged_process_costs_only_itself(counted: Steps, tmp_path: Path) -> None:
    counted.tick()
    (tmp_path / "1.0.diary").write_text("{'event': 'start', 'pid': 1, 'rank': 3, 'time_ns': 5}\n{'event': 'sta")
    (tmp_path / "2.0.diary").write_text("{'event': 'start', 'pid': 2, 'rank': 0, 'time_ns': 4}\nnonsense (\n")
    (tmp_path / "2.0.steps").write_bytes(b"broken")
    content = injected.read(tmp_path)
    assert [process.pid for process in content.processes] == [2, 1]
    assert [process.rank for process in content.stepping()] == [3]
    assert content.notes == ("pid 2: 2.0.steps holds no steps",)


# ---------------------------------------------------------------- around calls


class Thing:
    def __call__(self, x: int) -> int:
        return 10 // x

    def method(self, x: int = 1) -> int:
        return 10 // x

    @staticmethod
    def fixed(x: int) -> int:
        return x

    @classmethod
    def made(cls) -> str:
        return cls.__name__


@pytest.fixture
def watched() -> tuple[Any, list[str]]:
    """A class whose calls are written down as they begin and end."""
    from opcode import opmap

    around.learn(opmap)
    kind, log = type("Thing", (Thing,), dict(vars(Thing))), []

    def before(name: str) -> Any:
        def begin(_instance: Any) -> Any:
            log.append(name)
            return lambda: log.append("/" + name)

        return begin

    around.around_special(kind, "__call__", before("call"))
    for name in ("method", "fixed", "made"):
        around.around_method(kind, name, before(name))
    return kind, log


def test_calls_are_seen_from_begin_to_end(watched: tuple[Any, list[str]]) -> None:
    kind, log = watched
    thing = kind()
    assert [thing(5), thing.method(), thing.method(x=2), thing.fixed(3), kind.fixed(4), kind.made()][:4] == [
        2,
        10,
        5,
        3,
    ]
    names = ["call", "method", "method", "fixed", "fixed", "made"]
    assert log == [word for name in names for word in (name, "/" + name)]


def test_what_is_only_looked_at_is_not_called(watched: tuple[Any, list[str]]) -> None:
    kind, log = watched
    thing = kind()
    kept, call = thing.method, thing.__call__
    assert (hasattr(thing, "method"), kept.__name__, kept.__self__ is thing, kept == thing.method) == (
        True,
        "method",
        True,
        True,
    )
    assert kind.method is Thing.method
    assert log == []
    assert [kept(), kept(2), call(5)] == [10, 5, 2]
    assert log == ["method", "/method"] * 2  # a kept __call__ is the method itself


def test_an_exception_passes_without_a_frame_of_ours(watched: tuple[Any, list[str]]) -> None:
    kind, log = watched
    for call in (lambda: kind()(0), lambda: kind().method(0)):
        with pytest.raises(ZeroDivisionError) as caught:
            call()
        files = {str(entry.path) for entry in caught.traceback}
        assert not [file for file in files if "inject/around" in file]
    del caught
    assert log == ["call", "/call", "method", "/method"]


def test_a_fault_of_ours_stays_ours() -> None:
    def broken(_instance: Any) -> Any:
        raise RuntimeError("ours")

    def late(_instance: Any) -> Any:
        return lambda: 1 // 0

    for before in (broken, late):
        kind = type("Thing", (Thing,), dict(vars(Thing)))
        around.around_special(kind, "__call__", before)
        assert kind()(5) == 2
