"""The parts of a run: its start-up, its warm-up, its steady steps, its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.model import Capture
from orchestrator.tables import Table


@dataclass(frozen=True)
class Part:
    """A part of a run, in ns since the Unix epoch."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class Course:
    """How one pass went: the process whose steps are looked at (None: there were none), and its parts in time."""

    pid: int | None
    parts: tuple[Part, ...]
    steps: int = 0
    """Steady steps."""
    tid: int | None = None
    """The thread that made the steps; None where that is unknown, then it is taken to be the first."""

    @property
    def steady(self) -> Part | None:
        return next((part for part in self.parts if part.name == "steady"), None)


def of_pass(parts: Mapping[str, Sequence[Table]], captures: Sequence[Capture], pass_id: str) -> Course:
    """By the steps of that pass; of several processes (ranks) the first. Without steps all is one part."""
    ours = {capture.id for capture in captures if capture.pass_id == pass_id}
    for table in parts.get("steps", ()):
        if len(table) and table.columns["capture"][0] in ours:
            return _by_steps(table)
    return Course(None, (Part("all", 0, 1 << 62),))


def _by_steps(table: Table) -> Course:
    steps = [step for step in _steps(table) if step[0] is not None]
    if not steps:
        return Course(None, (Part("all", 0, 1 << 62),))
    pid = table.columns["pid"][0]
    first_ns, last_ns = steps[0][0], max(start + duration for start, duration, _ in steps)
    unknown = all(is_warm is None for *_, is_warm in steps)  # then all but the first, as everywhere (judging.py)
    steady = [one[:2] for place, one in enumerate(steps) if (place > 0 if unknown else one[2] is False)]
    begun_ns = steady[0][0] if steady else last_ns
    found = (
        Part("start-up", 0, first_ns),
        Part("warm-up", first_ns, begun_ns),
        Part("steady", begun_ns, last_ns),
        Part("end", last_ns, 1 << 62),
    )
    tid = table.columns["tid"][0] if "tid" in table.columns else None
    return Course(int(pid), tuple(part for part in found if part.end_ns > part.start_ns), len(steady), tid)


def _steps(table: Table) -> Iterator[tuple[Any, int, bool | None]]:
    """Start, duration and whether it is warm-up. A first step whose start was not seen has no duration."""
    columns = table.columns
    pid = columns["pid"][0]
    for one, start, duration, warm in zip(
        columns["pid"], columns["start_ns"], columns["duration_ns"], columns["warmup"], strict=True
    ):
        if one == pid:
            yield start, duration or 0, warm
