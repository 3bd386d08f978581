"""The chart of a process's steps: how long each took and on what, its warm-up shaded, its stalls marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.render import plots, view
from orchestrator.render.plots import Mark, Plot, Series, Zone
from orchestrator.render.stepping import OTHER, PHASES, Course, other_ns, phase_ns

if TYPE_CHECKING:
    import pandas

BARS = 1_200
"""More steps than this are drawn as so many bars, each the mean of some, with a line up to the longest of them."""
REACH = 6.0
RARE = 0.97
"""The axis ends at so many times the median, or where so many of the steady steps are shorter, if that is more. What is
longer is cut there, marked, and told."""
LABELLED = 5
_ROOM = 0.07
"""Of the axis, between two labels."""


@dataclass(frozen=True)
class Bars:
    """The steps as they are drawn. One list an entry, one entry a bar; times in ns."""

    first: list[int]
    last: list[int]
    mean: list[float | None]
    longest: list[float | None]
    parts: dict[str, list[float | None]]
    stalls: list[dict[str, int]]


def top_ns(courses: Sequence[Course]) -> float:
    """Where the axis that all of them share ends."""
    longest = max((_longest(c.table["duration_ns"]) for c in courses), default=0.0)
    usual = max((max(REACH * c.median_ns, c.nearly_all_ns(RARE)) for c in courses if c.median_ns), default=longest)
    return 1.04 * min(longest, usual)


def _longest(column: pandas.Series) -> float:
    return float(column.max()) if column.notna().any() else 0.0


def chart(course: Course, high_ns: float) -> Plot:
    """The steps of one process on an axis up to `high_ns`."""
    found = gathered(course)
    size = found.last[0] - found.first[0] + 1
    whole = [Series("mean" if size > 1 else "took", _in_s(found.mean), role="told")]
    whole += [Series("longest", _in_s(found.longest), role="high")] if size > 1 else []
    parts = [
        Series(PHASES[key][0] if key in PHASES else OTHER, _in_s(column), key)
        for key, column in found.parts.items()
        if any(column)
    ]
    return plots.plot(
        f"Duration of each of {course.count:,} steps{f' of {course.name}' if course.name else ''}, by phase",
        found.first,
        [*whole, *parts],
        over="step",
        unit="s",
        high=high_ns / 1e9,
        size=size,
        ends=(found.first[0], found.last[-1]),
        zones=tuple(_zones(course)),
        marks=tuple(_marks(course, found, high_ns)),
        notes={i: _why(course, found, i).removeprefix("; ") for i, causes in enumerate(found.stalls) if causes},
        mean=None if course.mean_ns is None else course.mean_ns / 1e9,
        note=_note(course, found),
    )


def gathered(course: Course) -> Bars:
    """Each step for itself, or so many neighbours together that BARS are not exceeded."""
    frame = course.table
    place = plots.grouped(len(frame), BARS)
    took = frame["duration_ns"].astype("Float64")
    parts = {key: phase_ns(frame, key) for key in PHASES} | {OTHER: other_ns(frame)}
    stalls: list[dict[str, int]] = [{} for _ in range(place[-1] + 1)]
    for at, cause in zip(place, view.values(frame["stall"]), strict=True):
        if cause is not None:
            stalls[at][cause] = stalls[at].get(cause, 0) + 1
    known = took.notna()

    def mean(column: pandas.Series) -> list[float | None]:
        return view.values(column.astype("Float64").where(known).groupby(place).mean())

    return Bars(
        first=frame["step"].groupby(place).min().tolist(),
        last=frame["step"].groupby(place).max().tolist(),
        mean=mean(took),
        longest=view.values(took.groupby(place).max()),
        parts={key: mean(column) for key, column in parts.items() if column is not None},
        stalls=stalls,
    )


def _zones(course: Course) -> Iterator[Zone]:
    """Warm-up, and the steps at which tools looked closely."""
    for kind, words in (("warmup", "warm-up"), ("profiled", "profiled")):
        chosen = course.table["step"][course.table[kind].fillna(False).astype(bool)].tolist()
        for first, last in _stretches(chosen):
            yield Zone("warm" if kind == "warmup" else kind, first, last + 1, words)


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first and the last of each run of neighbours."""
    begin = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[begin], numbers[i - 1]
            begin = i


def _marks(course: Course, found: Bars, high_ns: float) -> Iterator[Mark]:
    """A sign above each stall, and one where a bar is cut; the longest of those have their time written beside them."""
    cut = {i: v for i, v in enumerate(found.longest) if v is not None and v > high_ns}
    room = _ROOM * (found.last[-1] + 1 - found.first[0])
    labelled: list[int] = []
    for i in sorted(cut, key=lambda i: -cut[i]):
        if len(labelled) < LABELLED and all(abs(found.first[i] - found.first[k]) > room for k in labelled):
            labelled.append(i)
    for i, longest in enumerate(found.longest):
        if longest is None or not (i in cut or found.stalls[i]):
            continue
        kind = " ".join([*(["stall"] if found.stalls[i] else []), *(["cut"] if i in cut else [])])
        label = view.duration(longest / 1e9) or "" if i in labelled else ""
        text = f"{_names(found)[i]}: {view.duration(longest / 1e9)}{_why(course, found, i)}"
        yield Mark(kind, (found.first[i] + found.last[i] + 1) / 2, longest / 1e9, text, label)


def _names(found: Bars) -> list[str]:
    return [f"step {a:,}" if a == b else f"steps {a:,} to {b:,}" for a, b in zip(found.first, found.last, strict=True)]


def _why(course: Course, found: Bars, i: int) -> str:
    """, stall: checkpoint, 8.1 times the median"""
    causes = found.stalls[i]
    if not causes:
        return ""
    one = sum(causes.values()) == 1
    named = [cause if cause != "unknown" else "cause unknown" for cause in causes]
    words = named[0] if one else ", ".join(f"{n} {c}" for n, c in zip(named, causes.values(), strict=True))
    times = f", {(found.longest[i] or 0.0) / course.median_ns:.1f} times the median" if course.median_ns else ""
    return f"; stall{'' if one else 's'}: {words}{times}"


def _in_s(values: Sequence[float | None]) -> list[float | None]:
    return [None if v is None else v / 1e9 for v in values]


def _note(course: Course, found: Bars) -> str:
    size = math.ceil(course.count / len(found.first))
    return "" if size == 1 else f"Each bar is the mean of {size:,} steps; the line above it reaches up to the longest."
