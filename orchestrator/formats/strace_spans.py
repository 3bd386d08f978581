"""The single calls of a strace log, in arrays: all of them up to a limit, and of more the longest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import Codes, Ints, groups
from orchestrator.tables import Coded

NONE = -1
"""Stands for no thread, no file, no error."""

_COLUMNS = {
    "start": np.int64, "ns": np.int64, "thread": np.int32, "name": np.int16, "path": np.int32, "error": np.int16,
}  # fmt: skip


class Spans:
    """Calls with their start and duration in ns, their thread, and numbers for the call, its file and its error."""

    def __init__(self, most: int) -> None:
        self.count = 0
        """All calls, also those that are not kept."""
        self.floor_ns = -1
        """None that took no longer is kept any more."""
        self._most = most
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _COLUMNS}
        self._few: list[tuple[int, ...]] = []
        self._rows = 0

    def add(self, count: int, **columns: Ints) -> None:
        """Takes calls: `count` of them, some of which are already left out as too quick."""
        self.count += count
        for name, kind in _COLUMNS.items():
            self._parts[name].append(columns[name].astype(kind))
        self._rows += len(columns["ns"])
        if self._rows > 2 * self._most:
            self._choose()

    def add_one(self, start: int, ns: int, thread: int, name: int, path: int, error: int) -> None:
        if ns <= self.floor_ns:
            self.count += 1
            return
        self._few.append((start, ns, thread, name, path, error))
        if len(self._few) > 1 << 12:
            self._add_few()

    def skip(self) -> None:
        """A call of which it is not known when it began."""
        self.count += 1

    def _add_few(self) -> None:
        few, self._few = self._few, []
        if few:
            self.add(len(few), **dict(zip(_COLUMNS, np.array(few, np.int64).T, strict=True)))

    def _choose(self) -> None:
        """Keeps the longest; of equally long ones those that came first."""
        columns = {name: np.concatenate([np.empty(0, _COLUMNS[name]), *parts]) for name, parts in self._parts.items()}
        ns = columns["ns"]
        if (over := len(ns) - self._most) > 0:
            self.floor_ns = int(np.partition(ns, over - 1)[over - 1 :].min())
            longest = ns > self.floor_ns
            longest[np.flatnonzero(ns == self.floor_ns)[: self._most - np.count_nonzero(longest)]] = True
            columns = {name: values[longest] for name, values in columns.items()}
        self._parts = {name: [values] for name, values in columns.items()}
        self._rows = len(columns["ns"])

    def columns(
        self,
        process: Callable[[int], int | None],
        calls: list[tuple[str, str]],
        paths: list[str],
        errors: list[str],
    ) -> dict[str, Any]:
        """Those of the table `syscall_spans`, by start. `process`: of a thread. The lists: what the numbers stand for;
        of a call its name and class."""
        self._add_few()
        self._choose()
        found = {name: parts[0] for name, parts in self._parts.items()}
        order = np.argsort(found["start"], kind="stable")
        found = {name: values[order] for name, values in found.items()}
        threads, codes = _numbered(found["thread"])
        return {
            "pid": Coded(codes, [process(thread) for thread in threads]),
            "thread": Coded(codes, [None if thread == NONE else thread for thread in threads]),
            "start_ns": found["start"],
            "duration_ns": found["ns"],
            "name": Coded(found["name"], [name for name, _ in calls]),
            "class": Coded(found["name"], [kind for _, kind in calls]),
            "path": Coded(found["path"], paths),
            "error": Coded(found["error"], errors),
        }


def _numbered(threads: NDArray[Any]) -> tuple[list[int], Codes]:
    distinct, codes = groups(threads.astype(np.int64))
    return distinct.tolist(), codes
