"""Plots of series in characters: one column a night with its value and interval, and lines one character high.

Cells rather than braille: a point, its interval and a change of level stay apart at a glance and by colour, and plain
ASCII shows the same. plotext would draw them, too; it knows neither intervals nor what to do without UTF-8."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

HEIGHT = 9
_FAR = 2.0
"""So many times the median, or so little of it, lies outside of the plot: else one night would flatten the others."""


@dataclass(frozen=True)
class Point:
    """A night: its value, its interval (None: unknown) and the style of its character. first: of a new level."""

    value: float
    low: float | None = None
    high: float | None = None
    style: str = ""
    first: bool = False


@dataclass(frozen=True)
class Glyphs:
    """What is drawn with. bars: from the least to the most."""

    point: str
    range: str
    first: str
    above: str
    below: str
    axis: str
    bars: str


UNICODE = Glyphs("●", "│", "┊", "▲", "▼", "┤", "▁▂▃▄▅▆▇█")
ASCII = Glyphs("o", "|", ":", "^", "v", "+", "_.-=+*#@")

Cell = tuple[str, str]
"""A character and its style."""


def binned(points: Sequence[Point], width: int) -> tuple[list[Point], int]:
    """At most `width` points, and how many nights stand behind each: their median with the range of their values."""
    each = max(1, -(-len(points) // width))
    if each == 1:
        return list(points), 1
    return [_merged(points[at : at + each]) for at in range(0, len(points), each)], each


def _merged(points: Sequence[Point]) -> Point:
    values = [point.value for point in points]
    style = next((point.style for point in points if point.style), "")
    return Point(statistics.median(values), min(values), max(values), style, any(point.first for point in points))


def bounds(points: Sequence[Point]) -> tuple[float, float]:
    """The least and the largest value to be drawn."""
    middle = statistics.median(point.value for point in points)
    near = [p for p in points if middle / _FAR <= p.value <= middle * _FAR] or list(points)
    ends = [end for p in near for end in (p.value, p.low, p.high) if end is not None]
    ends = [min(max(end, middle / _FAR), middle * _FAR) for end in ends] if middle > 0 else ends
    return min(ends), max(ends)


def chart(points: Sequence[Point], low: float, high: float, glyphs: Glyphs, height: int = HEIGHT) -> list[list[Cell]]:
    """The rows from the top, one column a point; a column before a new level has its mark."""
    columns: list[list[Cell]] = []
    for number, point in enumerate(points):
        if point.first and number:
            columns.append([(glyphs.first, "bold")] * height)
        columns.append(_column(point, low, high, glyphs, height))
    return [[column[row] for column in columns] for row in range(height)]


def _column(point: Point, low: float, high: float, glyphs: Glyphs, height: int) -> list[Cell]:
    def row(value: float) -> int:
        share = (high - min(max(value, low), high)) / (high - low) if high > low else 0.5
        return round(share * (height - 1))

    cells: list[Cell] = [(" ", "")] * height
    if point.low is not None and point.high is not None:
        for place in range(row(point.high), row(point.low) + 1):
            cells[place] = (glyphs.range, "dim")
    mark = glyphs.above if point.value > high else glyphs.below if point.value < low else glyphs.point
    cells[row(point.value)] = (mark, point.style)
    return cells


def line(values: Sequence[float | None], low: float, high: float, glyphs: Glyphs) -> str:
    """One character a value, from `low` to `high`; what is unknown is a space."""
    most = len(glyphs.bars) - 1
    span = high - low

    def bar(value: float) -> str:
        share = min(max((value - low) / span, 0.0), 1.0) if span > 0 else 0.5
        return glyphs.bars[round(share * most)]

    return "".join(" " if value is None else bar(value) for value in values)
