"""What charts over steps or time are made of: curves, zones and marks, as the JSON that the page's script draws; and
scales with round ticks for the pictures that need no script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.render import pagedata, view

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Values = Sequence[float | None]


@dataclass(frozen=True)
class Box:
    """The size of a picture and the edges of the area that its axes span."""

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
    """A stretch of the horizontal axis, in its unit, that is told apart by its ground."""

    kind: str
    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A point worth a sign, in the units of the axes. `label` is written beside it where there is room."""

    kind: str
    x: float
    y: float
    text: str
    label: str = ""


@dataclass(frozen=True)
class Series:
    """The values of one curve, all curves of one chart in one unit. `kind` is the class of its colour; what has none is
    told to whoever points at it, and drawn as `role` says."""

    name: str
    values: Values
    kind: str = ""
    role: Literal["part", "line", "high", "low", "told"] = "part"
    """part: stacked on the others; line; high and low: the edges of a band; told: not drawn."""


@dataclass(frozen=True)
class Plot:
    """A chart over steps or time. `label` says in words what it shows.

    `data`: {x: [...], over: step or s, size: steps a bar, ends: [from, to], series: [{name, kind, role, values}],
    y: {unit, places, high}, mean, zones, marks, notes: {index: text}}."""

    label: str
    data: str
    zones: tuple[Zone, ...] = ()
    marks: tuple[Mark, ...] = ()
    mean: float | None = None
    note: str = ""
    """How to read it, where that does not go without saying."""
    kinds: frozenset[str] = frozenset()
    """The classes of what is drawn."""


def plot(
    label: str,
    x: Sequence[float],
    series: Sequence[Series],
    *,
    over: Literal["step", "s"],
    unit: str,
    high: float,
    size: int = 1,
    ends: tuple[float, float] | None = None,
    zones: Sequence[Zone] = (),
    marks: Sequence[Mark] = (),
    notes: Mapping[int, str] | None = None,
    mean: float | None = None,
    note: str = "",
) -> Plot:
    """A chart whose values are in `unit`; they are written in the multiple of it in which `high`, where the axis ends,
    reads well. `ends`: of the horizontal axis, where that is longer than x."""
    factor, name = view.scale(unit, high)
    places = view.decimals(high / factor / 100)

    def scaled(value: float | None) -> float | None:
        return None if value is None else _rounded(value / factor, places)

    data: dict[str, Any] = {
        "x": [_rounded(v, 6) for v in x],
        "over": over,
        "size": size,
        "ends": list(ends or (min(x, default=0.0), max(x, default=0.0))),
        "series": [
            {"name": s.name, "kind": s.kind, "role": s.role, "values": [scaled(v) for v in s.values]} for s in series
        ],
        "y": {"unit": name, "places": places, "high": high / factor},
        "mean": None if mean is None else mean / factor,
        "zones": [asdict(zone) for zone in zones],
        "marks": [{"kind": m.kind, "x": m.x, "y": m.y / factor, "label": view.visible(m.label)} for m in marks],
        "notes": {str(index): view.visible(text) for index, text in (notes or {}).items()},
    }
    kinds = frozenset(s.kind for s in series if any(s.values))
    return Plot(label, pagedata.inert(data), tuple(zones), tuple(marks), mean, note, kinds)


def _rounded(value: float, places: int) -> float:
    found = round(value, places)
    return int(found) if found == int(found) else found


def grouped(count: int, most: int) -> NDArray[np.int64]:
    """For each of `count` neighbours in which of at most `most` groups, all of one size but the last, it is drawn."""
    import numpy

    return numpy.arange(count) // max(1, -(-count // most))


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
