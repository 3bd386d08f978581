"""The parts of charts over steps or time, in SVG user units: scales from 0, round ticks, bars, lines, bands; and the
values behind them, for whoever points at one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import pagedata, view

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Values = Sequence[float | None]


@dataclass(frozen=True)
class Box:
    """The size of a drawing and the edges of the area that its axes span."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


@dataclass(frozen=True)
class Scale:
    """A linear scale of values, low to high, onto a line from `start` to `end`; what lies beyond is put at its end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        part = (min(max(value, self.low), self.high) - self.low) / ((self.high - self.low) or 1.0)
        return round(self.start + part * (self.end - self.start), 1)


@dataclass(frozen=True)
class Shape:
    """A path and the class that colours it."""

    kind: str
    path: str


@dataclass(frozen=True)
class Zone:
    """A stretch of the horizontal axis that is told apart by its ground."""

    kind: str
    x: float
    width: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point worth a sign. `label` is written beside it where there is room."""

    kind: str
    x: float
    y: float
    text: str
    label: str = ""


@dataclass(frozen=True)
class Series:
    """The values of one curve for whoever points at them, in one unit; `kind` is the class of its colour."""

    name: str
    values: Values
    unit: str = ""
    kind: str = ""


@dataclass(frozen=True)
class Plot:
    """A chart. `label` says in words what it shows; `data` is the JSON block that answers a pointer: {x: [...],
    names: [...], series: [{name, kind, unit, places, values}], notes: {index: text}}."""

    box: Box
    label: str
    x_name: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    shapes: tuple[Shape, ...]
    data: str
    zones: tuple[Zone, ...] = ()
    marks: tuple[Mark, ...] = ()
    mean_y: float | None = None
    note: str = ""
    """How to read it, where that does not go without saying."""


def horizontal(box: Box, low: float, high: float) -> Scale:
    return Scale(low, high, box.left, box.width - box.right)


def vertical(box: Box, high: float) -> Scale:
    """From 0 at the bottom."""
    return Scale(0.0, high or 1.0, box.height - box.bottom, box.top)


def round_step(span: float, about: int) -> float:
    """The round distance (1, 2, 2.5 or 5 of a decimal place) of about so many ticks."""
    rough = span / about
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * f for f in (1, 2, 2.5, 5, 10) if power * f >= rough * 0.999)


def ticks(scale: Scale, unit: str, about: int = 4) -> tuple[tuple[float, str], ...]:
    """Round values with their places, in the unit in which the highest reads well."""
    factor, name = view.scale(unit, scale.high)
    step = round_step((scale.high - scale.low) / factor, about)
    places = next(p for p in range(13) if math.isclose(round(step, p), step) or p == 12)
    first = math.ceil(scale.low / factor / step - 1e-9)
    last = math.floor(scale.high / factor / step + 1e-9)
    return tuple(
        (scale.at(step * i * factor), f"{step * i:,.{places}f} {name}".rstrip()) for i in range(first, last + 1)
    )


def counted(scale: Scale, about: int = 8) -> tuple[tuple[float, str], ...]:
    """Round whole numbers with their places."""
    step = max(1, round(round_step(max(scale.high - scale.low, 1.0), about)))
    first = math.ceil(scale.low / step)
    return tuple((scale.at(step * i), f"{step * i:,}") for i in range(first, math.floor(scale.high / step) + 1))


def grouped(count: int, most: int) -> NDArray[np.int64]:
    """For each of `count` neighbours in which of at most `most` groups, all of one size but the last, it is drawn."""
    import numpy

    return numpy.arange(count) // max(1, -(-count // most))


def bars(edges: Sequence[tuple[float, float]], lows: Values, highs: Values, y: Scale) -> str:
    """A bar from `lows` to `highs` between each pair of edges; none where it has no height or is not known."""
    drawn = []
    for (left, right), low, high in zip(edges, lows, highs, strict=True):
        if low is not None and high is not None and y.at(low) > y.at(high):
            drawn.append(f"M{left:g} {y.at(low):g}V{y.at(high):g}H{right:g}V{y.at(low):g}z")
    return "".join(drawn)


def line(xs: Sequence[float], values: Values, y: Scale, *, stepped: bool = False) -> str:
    """A line through the known values, broken where one is missing. `stepped`: each holds until the next."""
    drawn, pen_down = [], False
    for x, value in zip(xs, values, strict=True):
        if value is not None:
            drawn.append(
                (f"H{x:g}V" if stepped else f"L{x:g} ") + f"{y.at(value):g}" if pen_down else f"M{x:g} {y.at(value):g}"
            )
        pen_down = value is not None
    return "".join(drawn)


def band(xs: Sequence[float], lows: Values, highs: Values, y: Scale, *, stepped: bool = False) -> str:
    """The area between two lines, broken where one is missing."""
    drawn = []
    for run in _known_runs(lows, highs):
        there = line([xs[i] for i in run], [highs[i] for i in run], y, stepped=stepped)
        back = [f"L{xs[i]:g} {y.at(lows[i] or 0.0):g}" for i in reversed(run)]
        flat = all(not lows[i] for i in run)
        drawn.append(there + (f"V{y.at(0):g}H{xs[run[0]]:g}" if flat else "".join(back)) + "z")
    return "".join(drawn)


def _known_runs(*columns: Values) -> Iterable[list[int]]:
    """The stretches in which every column has a value."""
    run: list[int] = []
    for index, values in enumerate(zip(*columns, strict=True)):
        if None not in values:
            run.append(index)
        elif run:
            yield run
            run = []
    if run:
        yield run


def answers(
    xs: Sequence[float], names: Sequence[str], series: Sequence[Series], notes: Mapping[int, str] | None = None
) -> str:
    """The JSON block of a plot; curves of one unit share its multiple and decimals, to compare at a glance."""
    largest: dict[str, float] = {}
    for one in series:
        known = [abs(v) for v in one.values if v is not None]
        largest[one.unit] = max([largest.get(one.unit, 0.0), *known])
    told = {"x": list(xs), "names": list(names), "series": [_answer(one, largest[one.unit]) for one in series]}
    return pagedata.inert({**told, "notes": {str(index): view.visible(text) for index, text in (notes or {}).items()}})


def _answer(series: Series, largest: float) -> dict[str, Any]:
    factor, unit = view.scale(series.unit, largest)
    places = view.decimals(largest / factor / 100)
    values = [None if v is None else _rounded(v / factor, places) for v in series.values]
    return {"name": series.name, "kind": series.kind, "unit": unit, "places": places, "values": values}


def _rounded(value: float, places: int) -> float:
    found = round(value, places)
    return int(found) if found == int(found) else found
