"""The window: at which steps profrun's tools begin and cease to look. Whatever that takes happens between two steps and
enters the time of none."""

from __future__ import annotations

from . import bell, diary, nvtx, pending
from .gputimes import GpuTimes, may_be_asked
from .profiler import Profiler
from .steps import NEVER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial
    from typing import Any

    from .steps import Steps

    Action = Callable[[], object]
else:
    from _functools import partial


class Window:
    """What happens at which step of this process. Numbers are of steps that have ended."""

    def __init__(
        self, torch: Any, settings: dict[str, Any], steps: Steps, is_child: bool, looked: bool = False
    ) -> None:
        """`looked`: the tools outside have had their window already."""
        self._torch, self._steps, self._settings = torch, steps, settings
        self._plan = settings.get("window")
        self._profiler = Profiler(torch, settings["torch"], steps) if settings.get("torch") else None
        self._agenda: dict[int, list[Action]] = {}
        self._began = self._is_open = False
        self._looked = looked
        self._ranges = nvtx.ranges(torch) if settings.get("nvtx") else None
        times = not settings.get("armed") and (torch.version.cuda or torch.version.hip)
        self._events = GpuTimes() if times else None
        self._last: Any = None
        """The event at the end of the last step."""
        if self._ranges or self._events:
            steps.on_end, steps.on_begin = self._at_end, self._at_begin
        if self._plan and self._plan["look"] and not looked:
            self._at(self._plan["skip"], self._open)
            self._at(self._plan["skip"] + self._plan["steps"], self._close)
        if self._profiler and self._profiler.first is not None:
            self._plan_profiler(self._profiler, self._profiler.first)
        if self._plan:
            self._at(self._plan["skip"] + self._plan["steps"], self._done)
        if self._profiler and not is_child:
            self._profiler.begin_by_time()
        self._set_alarm()

    def first(self) -> None:
        """Something that belongs to the first step is about to happen."""
        if self._began:
            return
        self._began = True
        if self._steps.count == 0 and 0 in self._agenda:
            self._turn()
        self._at_begin(0)

    def again(self) -> Window:
        """The window of the training, when what came before only looked like steps; the same one where that has no step
        before it, as it is too late for another."""
        if self._settings.get("armed"):
            self._join_anew()
            return self
        first = self._profiler.first if self._profiler else None
        if not (self._plan["skip"] if self._plan else first):
            return self
        if self._is_open:
            self._close()
        if self._looked:
            diary.write("note", text="the window of the tools beside the program was at steps before its training")
        if self._profiler:
            self._profiler.cancel()
        other = Window(self._torch, self._settings, self._steps, True, self._looked)
        other._began = True
        other._set_alarm()
        return other

    def abandon(self) -> None:
        """Forgets everything, as another process of the same memory has it."""
        self._agenda.clear()
        if self._profiler:
            self._profiler.abandon()

    def before_profiler(self, other: Any) -> None:
        """The program starts a profiler of its own, unless it is ours."""
        if self._profiler:
            self._profiler.before_other(other)

    def finish(self, why: str) -> None:
        if self._is_open:
            self._close()
        if self._profiler:
            self._profiler.finish(why)
        if self._events:
            self._events.collect()

    # ------------------------------------------------------------ woken from outside

    def wake(self, options: dict[str, Any]) -> Profiler:
        """From any thread: torch.profiler begins at once or, where the window is in steps, with the next one."""
        self._profiler = profiler = Profiler(self._torch, options, self._steps)
        if profiler.first is None:
            profiler.record_now()
        else:
            self._join_with_next_step(profiler)
        return profiler

    def drop(self, profiler: Profiler) -> None:
        """Who has woken it is gone."""
        if self._profiler is profiler:
            self._agenda.clear()
        profiler.drop()

    def _join_with_next_step(self, profiler: Profiler) -> None:
        """In the thread of the steps, whose agenda it is."""
        self._steps.on_wake, self._steps.wake = partial(self._join, profiler), 0

    def _join(self, profiler: Profiler) -> None:
        if not profiler.is_over():
            first = profiler.first_from(self._steps.count)
            self._plan_profiler(profiler, first)
        self._turn()

    def _join_anew(self) -> None:
        """What was recorded, or would have been, only looked like steps."""
        profiler = self._profiler
        if profiler is not None and profiler.first is not None and not profiler.is_over():
            self._agenda.clear()
            profiler.begin_anew()
            self._join_with_next_step(profiler)

    # ------------------------------------------------------------ the agenda

    def _at(self, step: int, action: Action) -> None:
        self._agenda.setdefault(step, []).append(action)

    def _set_alarm(self) -> None:
        coming = [step for step in self._agenda if step > self._steps.count or (step == 0 and not self._began)]
        self._steps.on_wake, self._steps.wake = self._turn, min(coming, default=NEVER)

    def _turn(self) -> None:
        for action in self._agenda.pop(self._steps.count, ()):
            try:
                action()
            except BaseException as error:
                pending.fault(action, error)
        if self._events:  # what that took is no step's time on the GPU either
            self._last = self._events.mark(self._torch.cuda)
        self._set_alarm()

    def _plan_profiler(self, profiler: Profiler, first: int) -> None:
        """torch.profiler begins a step early, as its own start would be in its first."""
        self._agenda.setdefault(max(first - 1, 0), []).insert(0, profiler.start)
        for step in range(max(first, 1), first + profiler.count + 1):
            self._at(step, profiler.step)

    # ------------------------------------------------------------ what happens

    def _open(self) -> None:
        """The tools outside begin to look: they have all the time they need."""
        self._synchronise()
        self._is_open = self._looked = True
        self._steps.profiled += 1
        diary.write("window", what="open", step=self._steps.count)
        self._answered(bell.ring("open"))
        if self._settings.get("cuda_profiler") and self._torch.cuda.is_initialized():
            self._torch.cuda.cudart().cudaProfilerStart()

    def _close(self) -> None:
        self._synchronise()
        if self._settings.get("cuda_profiler") and self._torch.cuda.is_initialized():
            self._torch.cuda.cudart().cudaProfilerStop()
        self._steps.profiled -= 1
        self._is_open = False
        diary.write("window", what="close", step=self._steps.count)
        self._answered(bell.ring("close"))

    @staticmethod
    def _done() -> None:
        """After everything else at that step: what runs now may be stopped, if the plan says so."""
        bell.tell("done")

    @staticmethod
    def _answered(answered: bool) -> None:
        if not answered:
            diary.write("note", text="profrun did not answer at the window: its tools may not hold exactly these steps")

    def _synchronise(self) -> None:
        if may_be_asked(self._torch.cuda):
            self._torch.cuda.synchronize()

    def _at_end(self, step: int) -> None:
        if self._events:
            event = self._events.mark(self._torch.cuda)
            self._events.between(self._last, event, partial(self._steps.set_gpu_ns, step))
            self._last = event
        if self._ranges:
            self._ranges.pop()

    def _at_begin(self, step: int) -> None:
        if self._ranges:
            self._ranges.push(f"step {step}")
