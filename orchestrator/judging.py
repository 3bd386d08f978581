"""How rules judge: what is worth telling, how severe it is, and the part of the run that shares are of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

Severity = Literal["critical", "major", "minor", "info"]

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
