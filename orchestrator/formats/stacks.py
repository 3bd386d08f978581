"""Call stacks, whatever tool took them: their frames as text, and the tables `stacks` and `functions` made of them."""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from orchestrator.tables import Coded, Table

NO_FRAMES = "(no Python frame)"
"""Stands for the stack of a thread that has none yet, or no longer."""
_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)", re.S)

_NOT_OWN = re.compile(r"/(site|dist)-packages/|/lib(64)?/p(ython|ypy)\d[\d.]*/|^<frozen |/torchinductor_[^/]*/")


def is_own(file: str) -> bool:
    """Whether a file is the program's own: none of Python's library, no installed package."""
    return not _NOT_OWN.search(file)


class Row(NamedTuple):
    """A stack of one thread and the time spent in it; frames from the root to the leaf, each `function (file:line)`."""

    pid: int | None
    process: str | None
    thread: str | None
    kind: str
    frames: tuple[str, ...]
    weight_ns: int


def split_frame(frame: str) -> tuple[str, str | None, int | None]:
    """`function (file:line)` as its parts; file and line are None where the frame has none."""
    found = _FRAME.fullmatch(frame)
    return (found[1], found[2], int(found[3]) if found[3] else None) if found else (frame, None, None)


def stacks_table(rows: Iterable[Row], rate_hz: float) -> Table:
    """The table `stacks`, the heaviest stack first; rows of the same stack are added up."""
    weights: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        weights[row[:5]] += row.weight_ns
    heaviest = sorted(weights.items(), key=lambda item: -item[1])
    return Table.of(
        "stacks", ((*key[:4], ";".join(key[4]) or NO_FRAMES, _samples(ns, rate_hz), ns) for key, ns in heaviest)
    )


def functions_table(rows: Sequence[Row], rate_hz: float) -> Table:
    """The table `functions`, the most time of its own first; a recursive function counts once in a stack."""
    groups: dict[tuple[Any, ...], _Functions] = {}
    all_ns: dict[str, int] = defaultdict(int)
    known = _Known()
    for row in rows:
        key = (row.pid, row.thread, row.kind)
        group = groups.get(key) or groups.setdefault(key, _Functions(known))
        group.rows.append((row.frames, row.weight_ns))
        all_ns[row.kind] += row.weight_ns
    lines = []
    for (pid, thread, kind), group in groups.items():
        for name, file, line, self_ns, total_ns in group.lines():
            counts = (_samples(self_ns, rate_hz), _samples(total_ns, rate_hz))
            shares = (100 * self_ns / all_ns[kind], 100 * total_ns / all_ns[kind])
            lines.append((-self_ns, -total_ns, (pid, thread, kind, name, file, line, *counts, *shares)))
    lines.sort(key=lambda line: line[:2])
    return Table.of("functions", (values for _, _, values in lines))


class Spans:
    """Stacks in time: which was on top in a thread, from when and how long."""

    def __init__(self) -> None:
        self.owners: list[tuple[int | None, int | None, str | None, tuple[str, ...]]] = []
        """Pid, OS thread id, thread name and frames of each distinct stack."""
        self.columns = (array("q"), array("q"), array("q"))
        """The place in `owners`, start in ns since the Unix epoch, duration in ns."""

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(
        self, owner: tuple[int | None, int | None, str | None, tuple[str, ...]], times: Iterable[tuple[int, int]]
    ) -> None:
        place = len(self.owners)
        self.owners.append(owner)
        for start_ns, duration_ns in times:
            for column, value in zip(self.columns, (place, start_ns, duration_ns), strict=True):
                column.append(value)

    def table(self, error_ns: int) -> Table:
        """The table `stack_spans`, by start."""
        import numpy as np

        place, start_ns, duration_ns = (np.frombuffer(column, np.int64) for column in self.columns)
        order = np.argsort(start_ns, kind="stable")
        place = place[order]
        pid, tid, thread, frames = zip(*self.owners, strict=True)
        columns: dict[str, Any] = {
            "pid": Coded(place, pid),
            "tid": Coded(place, tid),
            "thread": Coded(place, thread),
            "start_ns": start_ns[order],
            "duration_ns": duration_ns[order],
            "stack": Coded(place, [";".join(one) for one in frames]),
        }
        return Table("stack_spans", columns, clock="epoch", clock_error_ns=error_ns)


def _samples(weight_ns: int, rate_hz: float) -> int:
    return round(weight_ns * rate_hz / 1e9)


class _Known(dict[str, int]):
    """A number for each frame's function, so that a frame is taken apart once and totals are kept by small integers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[tuple[str, str | None]] = []
        self._numbers: dict[tuple[str, str | None], int] = {}

    def __missing__(self, frame: str) -> int:
        name = split_frame(frame)[:2]
        number = self[frame] = self._numbers.setdefault(name, len(self.names))
        if number == len(self.names):
            self.names.append(name)
        return number


class _Functions:
    """Self and total time of the functions of one thread, in ns."""

    def __init__(self, known: _Known) -> None:
        self.known = known
        self.rows: list[tuple[tuple[str, ...], int]] = []

    def lines(self) -> Iterator[tuple[str, str | None, int | None, int, int]]:
        """(function, file, line with the most time, self, total)"""
        function_of = self.known.__getitem__
        leaf_ns: dict[str, int] = defaultdict(int)
        total_ns: dict[int, int] = defaultdict(int)
        for frames, weight_ns in self.rows:
            if frames:
                leaf_ns[frames[-1]] += weight_ns
            for function in set(map(function_of, frames)):
                total_ns[function] += weight_ns
        self_ns: dict[int, int] = defaultdict(int)
        for frame, ns in leaf_ns.items():
            self_ns[function_of(frame)] += ns
        line_of = {**self._lines(self._passing(set(self_ns))), **self._lines(leaf_ns)}
        for function, ns in total_ns.items():
            yield (*self.known.names[function], line_of[function], self_ns[function], ns)

    def _passing(self, leaves: set[int]) -> dict[str, int]:
        """Time on the stack of the frames of functions that have none of their own."""
        frames_ns: dict[str, int] = defaultdict(int)
        wanted = {frame for frame, function in self.known.items() if function not in leaves}
        for frames, weight_ns in self.rows:
            for frame in wanted.intersection(frames):
                frames_ns[frame] += weight_ns
        return frames_ns

    def _lines(self, frames_ns: dict[str, int]) -> dict[int, int | None]:
        """The line of the heaviest frame of each function; among equals the text decides: a rebuild must be equal."""
        by_weight = sorted(frames_ns, key=lambda frame: (frames_ns[frame], frame))
        return {self.known[frame]: split_frame(frame)[2] for frame in by_weight}
