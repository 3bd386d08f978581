"""Times of the GPU by CUDA events. No GPU is here: events that are reached when the test says so stand for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from orchestrator.formats import injected
from orchestrator.inject.gputimes import GpuTimes, may_be_asked
from orchestrator.inject.steps import TRAIN, Steps
from orchestrator.inject.window import Window


class Cuda:
    """torch.cuda as far as it is asked: a stream that stands still until `pass_` is called."""

    def __init__(self, initialized: bool = True, capturing: bool = False) -> None:
        self.initialized, self.capturing = initialized, capturing
        self.events: list[Cuda.Made] = []

    def is_initialized(self) -> bool:
        return self.initialized

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        raise AssertionError("nothing may wait for the GPU")

    def Event(self, enable_timing: bool) -> Made:
        assert enable_timing
        self.events.append(Cuda.Made())
        return self.events[-1]

    class Made:
        at_ms: float | None = None
        recorded = False

        def record(self) -> None:
            self.recorded = True

        def query(self) -> bool:
            return self.at_ms is not None

        def elapsed_time(self, other: Cuda.Made) -> float:
            assert self.at_ms is not None and other.at_ms is not None
            return other.at_ms - self.at_ms


def test_a_time_is_told_when_the_gpu_has_got_there_and_not_before() -> None:
    cuda, times, told = Cuda(), GpuTimes(), list[int]()
    marks = [times.mark(cuda) for _ in range(3)]
    assert all(event.recorded for event in cuda.events)
    times.between(marks[0], marks[1], told.append)
    times.between(marks[1], marks[2], told.append)
    assert told == []
    cuda.events[0].at_ms, cuda.events[1].at_ms = 10.0, 12.5
    times.collect()
    assert told == [2_500_000]
    cuda.events[2].at_ms = 13.0
    times.collect()
    assert told == [2_500_000, 500_000]


def test_without_cuda_and_while_a_graph_is_captured_no_event_is_made() -> None:
    for cuda in (Cuda(initialized=False), Cuda(capturing=True)):
        assert not may_be_asked(cuda)
        assert GpuTimes.mark(cuda) is None
        assert cuda.events == []


def test_a_place_without_an_event_has_no_time() -> None:
    cuda, times, told = Cuda(), GpuTimes(), list[int]()
    times.between(None, times.mark(cuda), told.append)
    cuda.events[0].at_ms = 1.0
    times.collect()
    assert told == []


def test_a_gpu_that_does_not_answer_costs_no_endless_memory() -> None:
    cuda, times = Cuda(), GpuTimes()
    began = times.mark(cuda)
    for _ in range(10_500):
        times.between(began, began, lambda _ns: None)
    assert len(times._pending) == 10_000


class Running(Cuda):
    """A GPU that is always up to date. It stands still for 5 s where the window waits, which is between two steps."""

    now_ms = 0.0

    def synchronize(self) -> None:
        self.now_ms += 5000.0

    def Event(self, enable_timing: bool) -> Cuda.Made:
        event = super().Event(enable_timing)
        event.at_ms = self.now_ms
        return event


def test_the_time_for_which_a_window_opens_or_closes_is_no_step_s(tmp_path: Path) -> None:
    cuda = Running()
    torch = SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.4", hip=None))
    steps = Steps(str(tmp_path / "1.0.steps"), None)
    steps.turn_to(TRAIN)
    Window(torch, {"window": {"skip": 2, "steps": 1, "look": True}}, steps, False)
    for _ in range(5):
        cuda.now_ms += 3.0
        steps.tick()
    found = injected.read_steps(tmp_path / "1.0.steps")
    assert found is not None
    assert cuda.now_ms == 5 * 3.0 + 2 * 5000.0
    assert found.gpu_ns == [None, *[3_000_000] * 4]
