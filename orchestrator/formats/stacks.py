"""Call stacks, whatever tool took them: their frames as text, and the tables `stacks` and `functions` made of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from orchestrator.tables import Table

NO_FRAMES = "(no Python frame)"
"""Stands for the stack of a thread that has none yet, or no longer."""
_FRAME = re.compile(r"(.*) \((.*?)(?::(\d+))?\)", re.S)


class Row(NamedTuple):
    """A stack of one thread with the time spent in it; frames from the root to the leaf, each `function (file:line)`."""

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
    """The table `functions`, the one with the most time of its own first; a recursive function counts once in a stack."""
    groups: dict[tuple[Any, ...], _Functions] = defaultdict(_Functions)
    all_ns: dict[str, int] = defaultdict(int)
    for row in rows:
        groups[row.pid, row.thread, row.kind].add(row.frames, row.weight_ns)
        all_ns[row.kind] += row.weight_ns
    lines = []
    for (pid, thread, kind), group in groups.items():
        for name, file, line, self_ns, total_ns in group.lines():
            counts = (_samples(self_ns, rate_hz), _samples(total_ns, rate_hz))
            shares = (100 * self_ns / all_ns[kind], 100 * total_ns / all_ns[kind])
            lines.append((-self_ns, -total_ns, (pid, thread, kind, name, file, line, *counts, *shares)))
    lines.sort(key=lambda line: line[:2])
    return Table.of("functions", (values for _, _, values in lines))


def _samples(weight_ns: int, rate_hz: float) -> int:
    return round(weight_ns * rate_hz / 1e9)


class _Functions:
    """Self and total time of the functions of one thread, in ns."""

    def __init__(self) -> None:
        self.function_of = _FunctionOf()
        self.leaf_ns: dict[str, int] = defaultdict(int)
        """By frame, that is by line: time at the leaf."""
        self.frame_ns: dict[str, int] = defaultdict(int)
        """By frame: time anywhere on the stack."""
        self.total_ns: dict[tuple[str, str | None], int] = defaultdict(int)

    def add(self, frames: tuple[str, ...], weight_ns: int) -> None:
        if frames:
            self.leaf_ns[frames[-1]] += weight_ns
        distinct = set(frames)
        for frame in distinct:
            self.frame_ns[frame] += weight_ns
        for function in set(map(self.function_of.__getitem__, distinct)):
            self.total_ns[function] += weight_ns

    def lines(self) -> Iterable[tuple[str, str | None, int | None, int, int]]:
        """(function, file, line with the most time, self, total)"""
        own: dict[tuple[str, str | None], int] = defaultdict(int)
        best: dict[tuple[str, str | None], tuple[int, int, str]] = {}
        for frame, ns in self.frame_ns.items():
            function, leaf_ns = self.function_of[frame], self.leaf_ns.get(frame, 0)
            own[function] += leaf_ns
            best[function] = max(best.get(function, (-1, -1, "")), (leaf_ns, ns, frame))
        for function, total_ns in self.total_ns.items():
            yield (*function, split_frame(best[function][2])[2], own[function], total_ns)


class _FunctionOf(dict[str, tuple[str, "str | None"]]):
    """The function and file of a frame, taken apart once."""

    def __missing__(self, frame: str) -> tuple[str, str | None]:
        self[frame] = split_frame(frame)[:2]
        return self[frame]
