"""torch: PyTorch's own profiler on a few steps, switched on and off inside the target without a change to its code."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestrator import armed
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.model import Beside, Capture, Check, Child, Clock, Expect, Job, Launch, Sign, Tool
from orchestrator.units import Duration, Size, show_bytes

if TYPE_CHECKING:
    from orchestrator.machine import Machine
    from orchestrator.tables import Table

SKIP, STEPS = 5, 10
"""The steps that are recorded where the plan has no window: the first are warm-up."""
WITHOUT_STEPS_AFTER_S, WITHOUT_STEPS_FOR_S = 5.0, 2.0
"""A program that shows no sign of a step is recorded for this stretch of time after its import of torch."""
WITHOUT_STEPS_BYTES = 64 << 20
"""And no further than to this growth: torch takes six times as much again while it makes the trace, which then has
about as many bytes. Within steps more is let through, as a program's own memory goes up and down in them."""


class Torch(Collector):
    """torch.profiler over the plan's window, or over a few steps: never over the whole program, whose trace would fill
    the memory and could not be opened."""

    use: Literal["torch"] = "torch"
    activities: tuple[Literal["cpu", "cuda"], ...] | None = Field(
        None, min_length=1, description="what to record; what this torch offers when left out"
    )
    shapes: bool = Field(True, description="record the shapes of the operators' inputs")
    stacks: bool = Field(False, description="record Python stacks; ten times the data and the time")
    memory: bool = Field(False, description="record every allocation and release, with its operator")
    flops: bool = Field(False, description="estimate floating-point operations of matrix products and convolutions")
    history: bool = Field(False, description="a snapshot of CUDA's memory with its history, for pytorch.org/memory_viz")
    history_entries: int = Field(100_000, ge=1, description="how many allocations the history holds")
    max_time: Annotated[Duration, Field(gt=0)] = Field(
        60.0, description="end the recording after so long, wherever it is"
    )
    max_memory: Size = Field(1 << 30, gt=0, description="end the recording when the target has grown by so much")

    claims: ClassVar[frozenset[str]] = frozenset({"cupti", "torch.profiler"})
    purpose: ClassVar[str] = (
        "PyTorch operators, GPU kernels and memory over a window of steps, as a trace and as tables"
    )
    slowdown: ClassVar[float] = 1.5
    raw_bytes: ClassVar[int] = 64 << 20
    can_attach: ClassVar[bool] = False
    injects: ClassVar[bool] = True

    def tool(self, machine: Machine) -> Tool:
        """It comes with the target's own torch, of which nothing is known before the run."""
        return Tool("torch.profiler", None)

    def checks(self, machine: Machine) -> list[Check]:
        if self.stacks:
            said = "with stacks each step costs about ten times the data: keep the window to a few steps"
            return [Check(self.use, "warn", said)]
        return [Check(self.use, "ok", "the target's own torch.profiler is switched on inside it")]

    def held(self) -> frozenset[str]:
        """Without the GPU's activities it leaves CUPTI to others."""
        return self.claims - {"cupti"} if self.activities == ("cpu",) else self.claims

    def does_without(self, claim: str) -> str | None:
        return "activities: [cpu]" if claim == "cupti" else None

    def without_kernels(self) -> str | None:
        return "activities: [cpu, cuda]" if self.activities and "cuda" not in self.activities else None

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        if machine.armed or armed.open_to_us(machine.attached):
            return None
        said = "torch.profiler is switched on from inside the program, which was not started for that"
        return Check(self.use, "missing", said, "start it with: profrun arm -- COMMAND, then profrun wake --pid PID")

    def launch(self, job: Job) -> Launch:
        settings = {
            **self._when(job),
            "activities": list(self.activities) if self.activities else None,
            "shapes": self.shapes,
            "stacks": self.stacks,
            "memory": self.memory,
            "flops": self.flops,
            "history": self.history_entries if self.history else 0,
            "max_s": self.max_time,
            "max_rss_bytes": self.max_memory,
            "by_time_max_rss_bytes": self.max_memory if job.window else min(self.max_memory, WITHOUT_STEPS_BYTES),
        }
        if job.pids:
            return _wake(job, settings, self.flush)
        return Launch(
            # without it the profiler writes its own log among the target's output
            child=Child({"KINETO_LOG_LEVEL": "6"}, inject={"torch": {**settings, "dir": job.dir}}),
            artifacts=ARTIFACTS,
        )

    @staticmethod
    def _when(job: Job) -> dict[str, Any]:
        """In steps or in time, as the plan's window has it; without one, the steps after the first few."""
        window = job.window
        if window is None:
            after_s, for_s = WITHOUT_STEPS_AFTER_S, WITHOUT_STEPS_FOR_S
            return {"skip": SKIP, "steps": STEPS, "without_steps_after_s": after_s, "for_s": for_s}
        if window.steps is not None:
            return {"skip": window.skip, "steps": window.steps}
        return {"skip": None, "after_s": window.after_s, "for_s": window.for_s}

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        """Table `torch_ops`, equal to key_averages, and from the trace kernels, transfers, ranges and memory; one trace
        a process that made steps, so one a rank."""
        recorded = [_Recording.read(path) for path in capture.paths("facts")]
        found = [one for one in recorded if one.trace]
        if not found and (failures := [str(one.facts["said"]) for one in recorded if one.facts.get("why") == "failed"]):
            return Parsed(status="tool_failed", reason="; ".join(dict.fromkeys(failures)))
        if not found:
            return Parsed(status="empty", reason=_why_none(recorded))
        contents = _telling([(one, *one.tables()) for one in found])
        tables = tuple(table for _, tables, *_ in contents for table in tables)
        notes = tuple(dict.fromkeys(note for _, _, notes, *_ in contents for note in notes))
        cut = sorted({one.cut or _NO_END for one, _, _, truncated, _ in contents if one.cut or truncated})
        clock = next((clock for *_, clock in contents if clock), None)
        notes += _told_inside(capture)
        # what was recorded of one task is to hold its own rank; the others of its host have captures of their own
        own = None if capture.rank is None else (capture.rank,)
        wanted = own or (capture.run.ranks_chosen if capture.run else None)
        lost = [*([f"truncated: {'; '.join(cut)}"] if cut else []), *_missing(recorded, wanted)]
        notes = (*_ranks(recorded), *notes)
        return Parsed(tables, notes, "degraded" if lost else None, "; ".join(lost) or None, clock=clock)


ARTIFACTS = (
    Expect("trace", "traces/*.trace.json", "kineto", required=False),
    Expect("averages", "*.averages.json", "key_averages", required=False),
    Expect("history", "*.memory.pickle", "memory-snapshot", required=False),
    Expect("facts", "*.facts.json", "json", required=False),
)
_WAKE = str(Path(armed.__file__).parent / "standalone" / "wake.py")
_LET_IN = str(Path(armed.__file__).parent / "standalone" / "let_in.py")


def _wake(job: Job, settings: dict[str, Any], grace_s: float) -> Launch:
    """Wakes the program's processes for as long as the window is open; those of a Python that can are made ready for it
    first, by an interpreter of their own."""
    under_nsys = job.armed is not None and job.armed.session is not None and bool(job.facts.get("gpus"))
    if under_nsys:  # of two clients of CUPTI in a process, the second gets nothing
        settings["activities"] = ["cpu"]
    opened = () if job.armed else armed.open_to_us(job.attached)
    argv = [sys.executable, "-I", "-S", _WAKE, job.dir, "{pids}", json.dumps(settings)]
    argv += ["--folder", job.armed.folder] if job.armed else []
    argv += [word for one in opened for word in ("--let-in", f"{one.pid}={one.folder}")]
    lets = (
        Beside((one.exe, "-I", "-S", _LET_IN, str(one.pid), one.folder), when="start", name="let in")
        for one in opened
        if not one.is_in
    )
    wake = Beside(tuple(argv), when="window", ready="says", ready_value="^recording$", grace_s=grace_s, name="wake")
    return Launch(
        beside=(*lets, wake),
        artifacts=(
            *(replace(expect, required=expect.role == "facts") for expect in ARTIFACTS),
            Expect("diary", "*.diary", "diary", required=False),
        ),
        signs=(Sign(r"(?m)^(?:wake|let in): (.+)$", "tool_failed", "{0}"),),
        notes=("the GPU's activities are left to nsys, under which the program was started",) if under_nsys else (),
    )


@dataclass(frozen=True)
class _Recording:
    """What torch.profiler left in one process."""

    facts: Mapping[str, Any]
    trace: Path | None
    averages: Path | None

    @classmethod
    def read(cls, path: Path) -> _Recording:
        stem = path.name.removesuffix(".facts.json")
        try:
            facts = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ParseError(f"{path.name} can't be read: {error}") from error
        trace, averages = path.parent / "traces" / f"{stem}.trace.json", path.with_name(f"{stem}.averages.json")
        return cls(facts, trace if trace.exists() else None, averages if averages.exists() else None)

    @property
    def rank(self) -> int | None:
        return self.facts.get("rank")

    def ranks_here(self) -> range:
        """All ranks of the program on this machine, as far as this process knows."""
        first, count = self.facts.get("ranks_here") or (0, 0)
        return range(first, first + count)

    @property
    def cut(self) -> str | None:
        return self.facts.get("cut")

    def tables(self) -> tuple[list[Table], list[str], bool, Clock | None]:
        """The tables of this process, what is to be said of it, whether the trace's end is missing, and its clock."""
        from orchestrator.formats import kineto

        if self.trace is None:
            return [], [], False, None
        content, rank, pid = kineto.read(self.trace), self.rank, self.facts.get("pid")
        tables = [table for table in content.tables if table.name != "torch_ops" or self.averages is None]
        if self.averages is not None:
            tables.append(kineto.averages(self.averages, rank, pid))
        size = self.trace.stat().st_size
        spent_s = [self.facts[name] for name in ("start_s", "save_s") if self.facts.get(name) is not None]
        who = f"rank {rank}: " if rank is not None else ""
        whole = "truncated" if self.cut or content.truncated else "not truncated"
        said = f"{who}a trace of {show_bytes(size)}, {whole}"
        took = f"{sum(spent_s):.1f} s" if len(spent_s) == 2 else "an unknown time"
        where = "beside the program's own threads" if self.facts.get("beside") else "of the run, between steps"
        cost = f"to start and to save it took {took} {where}"
        time = () if self.facts.get("by_steps") else (_BY_TIME,)
        return tables, [*content.notes, f"{said}; {cost}", *time], content.truncated, content.clock


_Content = tuple[_Recording, "list[Table]", list[str], bool, "Clock | None"]
_NO_END = "the end of the trace is missing"


def _telling(contents: Sequence[_Content]) -> Sequence[_Content]:
    """Without the processes in which no operator ran, such as a launcher, where there are others."""
    return [content for content in contents if any(t.name == "torch_ops" and len(t) for t in content[1])] or contents


def _ranks(recorded: Sequence[_Recording]) -> list[str]:
    ranks = sorted(one.rank for one in recorded if one.rank is not None and one.trace)
    return [f"{len(ranks)} ranks: {', '.join(map(str, ranks))}"] if len(ranks) > 1 else []


def _told_inside(capture: Capture) -> tuple[str, ...]:
    """What the processes have noted of themselves while they were awake."""
    from orchestrator.formats import injected

    diaries = capture.paths("diary")
    return injected.read(diaries[0].parent).notes if diaries else ()


def _missing(recorded: Sequence[_Recording], wanted: Collection[int] | None) -> list[str]:
    """The ranks that ran here, as the others know from their launcher, and have left no trace; of those alone that were
    to be recorded, where not all were (None)."""
    expected = {rank for one in recorded for rank in one.ranks_here() if wanted is None or rank in wanted}
    missing = sorted(expected - {one.rank for one in recorded if one.trace})
    return [f"no trace of rank {', '.join(map(str, missing))}"] if missing else []


_BY_TIME = "recorded by time: the steps in it are not whole"


def _why_none(recorded: Sequence[_Recording]) -> str:
    """Why there is no trace, told by the process that got furthest."""
    if any(one.facts.get("why") == "aside" for one in recorded):
        return "the target profiles itself with torch.profiler: profrun's stepped aside, as two would spoil both"
    steps = max((one.facts.get("steps") or 0 for one in recorded), default=None)
    if steps is None:
        return "nothing was recorded: no Python process with torch came to its end in the target, or it could not write"
    if not steps:
        return "no training or inference step was seen: give the plan a window in time, such as {after: 60s, for: 5s}"
    return f"the target ended after {steps} steps, before the window opened"
