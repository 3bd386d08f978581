"""Columns of tables as arrays, and sets of times: sorted, disjoint, half-open intervals of ns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import MISSING, Ints
from orchestrator.tables import Coded, Masked, Table

Flags: TypeAlias = NDArray[np.bool_]


def ints(table: Table, name: str) -> Ints:
    """A column of integers; MISSING where it is unknown, and everywhere where the table has no such column."""
    column = table.columns.get(name)
    if column is None:
        return np.full(len(table), MISSING)
    if isinstance(column, np.ndarray):
        whole: Ints = column.astype(np.int64, copy=False)
        return whole
    if isinstance(column, Masked):
        return np.where(column.known, column.numbers, MISSING).astype(np.int64)
    if isinstance(column, Coded):
        return taken(np.array([*_known(column.texts), MISSING], np.int64), column.codes)
    return np.array(_known(column), np.int64)


def taken(values: NDArray[Any], places: Any) -> NDArray[Any]:
    """values[places], as an array for the type checker, too."""
    found: NDArray[Any] = values[places]
    return found


def _known(values: Iterable[Any]) -> list[int]:
    return [MISSING if value is None else int(value) for value in values]


def texts(table: Table, name: str) -> tuple[Ints, list[str | None]]:
    """A column of texts: the number of each, and the distinct texts."""
    column: Sequence[Any] = table.columns.get(name, ())
    numbers: dict[str | None, int] = {}
    if not len(column):
        return np.zeros(len(table), np.int64), [None]
    if isinstance(column, Coded):
        of = [numbers.setdefault(text, len(numbers)) for text in (*column.texts, None)]  # None is the last, at -1
        return np.array(of, np.int64)[column.codes], list(numbers)
    return np.fromiter((numbers.setdefault(t, len(numbers)) for t in column), np.int64, len(column)), list(numbers)


@dataclass(frozen=True)
class Times:
    """A set of times."""

    start: Ints
    end: Ints

    def __len__(self) -> int:
        return len(self.start)

    @property
    def ns(self) -> int:
        return int((self.end - self.start).sum())

    @classmethod
    def union(cls, start: Ints, end: Ints) -> Times:
        """All times in which at least one of these spans, in any order, lasts; those that touch are one."""
        lasting = end > start
        if not lasting.all():
            start, end = start[lasting], end[lasting]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            start, end = start[order], end[order]
        if not len(start):
            return cls(start, end)
        until = np.maximum.accumulate(end)
        last = np.flatnonzero(np.append(start[1:] > until[:-1], True))
        return cls(start[np.append(0, last[:-1] + 1)], until[last])

    def within(self, window: Times) -> Times:
        """The part that lies in the window, which is of few pieces."""
        return Times._joined([self._cut(begin, finish) for begin, finish in window.pieces()])

    def rest(self, window: Times) -> Times:
        """What of the window, which is of few pieces, is not in this set."""
        parts = []
        for begin, finish in window.pieces():
            start, end = self._cut(begin, finish)
            free = np.append(begin, end), np.append(start, finish)
            some = free[1] > free[0]
            parts.append((free[0][some], free[1][some]))
        return Times._joined(parts)

    def pieces(self) -> Iterator[tuple[int, int]]:
        return zip(self.start.tolist(), self.end.tolist(), strict=True)

    @classmethod
    def _joined(cls, parts: Sequence[tuple[Ints, Ints]]) -> Times:
        none = np.empty(0, np.int64)
        start, end = (np.concatenate((none, *column)) for column in zip(*parts, strict=True)) if parts else (none, none)
        return cls(start, end)

    def _cut(self, begin: int, finish: int) -> tuple[Ints, Ints]:
        first, last = np.searchsorted(self.end, begin, "right"), np.searchsorted(self.start, finish, "left")
        return np.maximum(self.start[first:last], begin), np.minimum(self.end[first:last], finish)

    def without(self, part: Times) -> tuple[int, int]:
        """How much time is left without a part of this set, and in how many stretches: as many as there are of both
        together, but for those edges that they share."""
        shared = _common(self.start, part.start) + _common(self.end, part.end)
        return self.ns - part.ns, len(self) + len(part) - shared

    def bridged(self, gap_ns: int) -> Times:
        """The same without the gaps shorter than that."""
        if not len(self):
            return self
        cut = np.flatnonzero(self.start[1:] - self.end[:-1] >= gap_ns)
        return Times(self.start[np.append(0, cut + 1)], self.end[np.append(cut, len(self) - 1)])


def _common(times: Ints, some: Ints) -> int:
    """How many values two sorted arrays have in common."""
    if not len(times) or not len(some):
        return 0
    place = np.minimum(np.searchsorted(times, some), len(times) - 1)
    return int(np.count_nonzero(times[place] == some))


def shared_ns(start: Ints, end: Ints, window: Times) -> Ints:
    """How much of each span lies in the window, which is of few pieces."""
    total = np.zeros(len(start), np.int64)
    for begin, finish in zip(window.start.tolist(), window.end.tolist(), strict=True):
        total += np.maximum(np.minimum(end, finish) - np.maximum(start, begin), 0)
    return total


def within(times: Ints, window: Times) -> Flags:
    """Which of the times lie in the window."""
    place = np.searchsorted(window.start, times, "right") - 1
    return (place >= 0) & (times < window.end[np.maximum(place, 0)]) if len(window) else np.zeros(len(times), bool)
