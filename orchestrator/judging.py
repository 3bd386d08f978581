"""How rules judge: what is worth telling, how severe it is, and the part of the run that shares are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestrator import trust
from orchestrator.model import USABLE
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

Severity = Literal["critical", "major", "minor", "info"]
Confidence = Literal["high", "medium", "low"]

CRITICAL_PCT, MAJOR_PCT, MINOR_PCT = 30.0, 10.0, 3.0
"""From which share of the window on a finding is that severe. Below the last it is not told: the interval of a mean of
five runs is rarely narrower."""


def severity(cost_pct: float | None) -> Severity | None:
    """How severe something is that could give back this share of the window; None: not worth telling."""
    if cost_pct is None or cost_pct < MINOR_PCT:
        return None
    return "critical" if cost_pct >= CRITICAL_PCT else "major" if cost_pct >= MAJOR_PCT else "minor"


@dataclass(frozen=True)
class Whole:
    """What a share is of: its length without tools, where that is known, and its name, as the end of a sentence."""

    seconds: float | None
    of: str

    def cost_s(self, pct: float | None) -> float | None:
        return None if pct is None or self.seconds is None else round(self.seconds * pct / 100, 6)


def steady(report: Report) -> Whole:
    """The steady steps of one bare run; without steps that run as a whole.

    What a tool has seen as a share of its own pass is told in seconds of the bare run: the tool stretched its own."""
    step, count, warm = (report.metrics.get(name) for name in ("step_s", "steps", "warmup_steps"))
    if step and step.value and count and count.value:
        steps = max(0.0, count.value - (warm.value or 0.0 if warm else 0.0))
        return Whole(step.value * steps, "the steady steps of a bare run")
    wall = report.metrics.get("wall_s")
    return Whole(wall.value if wall else None, "a bare run")


def of_capture(frame: pandas.DataFrame | None, captures: Iterable[str]) -> pandas.DataFrame | None:
    """The rows of these captures; None where there are none."""
    if frame is None:
        return None
    found = frame[frame["capture"].isin(list(captures))]
    return found if len(found) else None


COPYING = frozenset({"aten::cat", "aten::clone", "aten::copy_", "numpy.concatenate", "numpy.copy"})
"""Operators that compute nothing: outside of the phases of a step, who spends much in them copies again what has been
copied, into fresh memory."""


@dataclass(frozen=True)
class Window:
    """The steady steps of one pass, on the epoch clock. pid: of the process whose steps they are; `spent_ns` is what
    they took themselves."""

    pid: int
    start_ns: int
    end_ns: int
    steps: int
    spent_ns: int


def steps_of(report: Report, pass_id: str) -> pandas.DataFrame | None:
    """The steps of the first process of a pass: of the lowest rank, where there are ranks. Those of other hosts may
    have the same pid. None where there are none."""
    steps = of_capture(report.table("steps"), (c.id for c in report.captures if c.pass_id == pass_id))
    if steps is None:
        return None
    if "rank" in steps.columns and steps["rank"].notna().any():
        steps = steps[(steps["rank"] == steps["rank"].min()).fillna(False)]
    first = steps.iloc[0]
    return steps[(steps["capture"] == first["capture"]) & (steps["pid"] == first["pid"])]


def settled(steps: pandas.DataFrame) -> pandas.DataFrame:
    """Those that were timed, without the warm-up; where nobody can tell that, without the first."""
    timed = steps[steps["duration_ns"].notna()]
    return timed[~timed["warmup"].fillna(timed["step"] == timed["step"].min()).astype(bool)]


def steady_window(report: Report, pass_id: str) -> Window | None:
    """That of the first process with steps; None where the pass has none."""
    steps = steps_of(report, pass_id)
    if steps is None or not len(steady := settled(steps[steps["start_ns"].notna()])):
        return None
    end_ns = int((steady["start_ns"] + steady["duration_ns"]).max())
    pid, start_ns = int(steady["pid"].iloc[0]), int(steady["start_ns"].min())
    return Window(pid, start_ns, end_ns, len(steady), int(steady["duration_ns"].sum()))


_LESS: dict[Confidence, Confidence] = {"high": "medium", "medium": "low", "low": "low"}


def confidence(report: Report, captures: Iterable[str], best: Confidence = "high") -> Confidence:
    """`best`, or less where all of these captures are of passes that were bent by measuring (`trust`). One whose steps
    took as long as the bare ones is taken at its word, however slow its start-up was: findings are of the steps."""
    records, wanted = {record.id: record for record in report.passes}, set(captures)
    bent = []
    for capture in (c for c in report.captures if c.id in wanted and c.status in USABLE):
        record = records.get(capture.pass_id)
        held = record is not None and record.step_slowdown is not None and not trust.has_other_steps(record)
        bent.append("high" if held else capture.trust or "high")
    if not bent or "high" in bent:
        return best
    return _LESS[best] if "distorted" in bent else "low"
