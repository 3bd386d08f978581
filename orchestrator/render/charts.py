"""The geometry of the page's small charts, in SVG user units; the template draws them, so they need no script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.render import view

if TYPE_CHECKING:
    from orchestrator.report import Report

WIDTH, HEIGHT = 760.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 12.0, 16.0, 30.0
HEADROOM = 0.6
"""Warm-up runs may stretch the axis by this part of the bare runs' spread; those further away are drawn at its edge."""


@dataclass(frozen=True)
class Dot:
    """One run, by its pass. `beyond`: it lies outside the axis and is drawn at its edge. `label`: its time."""

    x: float
    y: float
    role: str
    name: str
    label: str
    text: str
    outlier: bool
    beyond: bool


@dataclass(frozen=True)
class Strip:
    """Wall time of each warm-up and bare run in the order in which they ran."""

    dots: tuple[Dot, ...]
    ticks: tuple[tuple[float, str], ...]
    warm_until: float | None
    """Right edge of the shaded warm-up zone; None without warm-up."""
    mean_y: float | None
    band: tuple[float, float] | None
    """Top and height of the mean's 95 % interval."""
    label: str
    outliers: tuple[str, ...]


@dataclass(frozen=True)
class Whisker:
    """A slowdown and its interval, 0 to 100 along a logarithmic axis that all passes share; `one`: where 1.0 lies."""

    one: float
    at: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Axis:
    """A linear axis from `low` (bottom) to `high` (top)."""

    low: float
    high: float

    def y(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(HEIGHT - BOTTOM - part * (HEIGHT - BOTTOM - TOP), 1)


def strip(report: Report) -> Strip | None:
    """The dot strip of the timing passes, or None when none of them was timed."""
    runs = [(p, p.run.wall_s) for p in report.passes if p.role != "profiled" and p.run and not p.run.start_error]
    bare = [wall for p, wall in runs if p.role == "bare"]
    if not bare:
        return None
    metric = report.metrics.get("wall_s")
    interval = metric.ci95 if metric else None
    axis = _axis([*bare, *(interval or ())], [wall for _, wall in runs])
    step = (WIDTH - LEFT - RIGHT) / len(runs)
    labels = view.aligned([wall for _, wall in runs], "s")
    dots = tuple(
        Dot(
            x=round(LEFT + step * (i + 0.5), 1),
            y=axis.y(wall),
            role=record.role,
            name=record.id,
            label=label or "",
            text=f"{record.id}, {record.role} run: {label}",
            outlier=bool(metric and record.id in metric.outliers),
            beyond=not axis.low <= wall <= axis.high,
        )
        for i, ((record, wall), label) in enumerate(zip(runs, labels, strict=True))
    )
    leading = next(i for i, (record, _) in enumerate(runs) if record.role == "bare")
    return Strip(
        dots,
        _ticks(axis),
        warm_until=round(LEFT + step * leading, 1) if leading else None,
        mean_y=axis.y(metric.value) if metric and metric.value is not None else None,
        band=(axis.y(interval[1]), round(axis.y(interval[0]) - axis.y(interval[1]), 1)) if interval else None,
        label=_label(len(runs) - len(bare), bare),
        outliers=metric.outliers if metric else (),
    )


def _label(warmups: int, bare: Sequence[float]) -> str:
    low, high = view.aligned([min(bare), max(bare)], "s")
    span = f"{len(bare)} bare runs, from {low} to {high}" if len(bare) > 1 else f"one bare run, {low}"
    return f"Wall time of {span}" + (f", after {warmups} warm-up" if warmups else "")


def _axis(inner: Sequence[float], outer: Sequence[float]) -> Axis:
    """Spans the bare runs and their interval, with at least 1 % of their size, and warm-ups that lie near."""
    low, high = min(inner), max(inner)
    span = max(high - low, 0.01 * high, 1e-9)
    near = [v for v in outer if low - HEADROOM * span <= v <= high + HEADROOM * span]
    low, high = min([low, *near]), max([high, *near])
    margin = max(0.12 * (high - low), (span - (high - low)) / 2)
    return Axis(max(0.0, low - margin), high + margin)


def _ticks(axis: Axis) -> tuple[tuple[float, str], ...]:
    """Three to six round values with their heights."""
    rough = (axis.high - axis.low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= rough)
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    first = math.ceil(axis.low / step)
    values = [step * i for i in range(first, math.floor(axis.high / step) + 1)]
    return tuple((axis.y(v), f"{v:,.{places}f} s") for v in values)


def whiskers(report: Report) -> dict[str, Whisker]:
    """By pass: its slowdown against the bare runs, for a picture beside the figure."""
    known = {p.id: (p.slowdown, p.slowdown_ci95) for p in report.passes if p.slowdown and p.slowdown > 0}
    ends = [v for value, interval in known.values() for v in (value, *(interval or ())) if v > 0]
    if not ends:
        return {}
    low, high = math.log(min([0.9, *ends])), math.log(max([1.5, *ends]))

    def at(value: float | None) -> float | None:
        return None if value is None or value <= 0 else round(3 + 94 * (math.log(value) - low) / (high - low), 1)

    one = at(1.0) or 0.0
    plain = {name: Whisker(one, at(value) or 0.0, None, None) for name, (value, _) in known.items()}
    return {
        name: replace(plain[name], low=at(interval[0]), high=at(interval[1])) if interval else plain[name]
        for name, (_, interval) in known.items()
    }
