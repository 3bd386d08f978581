"""Where the GPU's time goes: how its work lies in the window, and what each gap waited for.

Tables in, tables out: `gpu_time` (by state), `gpu_work` (by name), and `gpu_gaps` with causes. The window is that of
`gpu_window.window`; everything is clipped to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.formats.events import MISSING, Ints, groups, statistics
from orchestrator.locating import gpu_causes
from orchestrator.locating.gpu_arrays import Times, ints, shared_ns, texts, within
from orchestrator.locating.gpu_causes import Row, beside, explained, with_steps
from orchestrator.locating.gpu_names import call_kind, family
from orchestrator.locating.gpu_window import Gpu, Parts, Window, Work, gpus, window
from orchestrator.model import Capture, PassRecord
from orchestrator.tables import Table

CAUSES = ("host", "data", "copy", "communication", "sync", "between", "unknown")

IDLE_UP_TO = 0.1
"""The GPU is dense in work when it is idle for no more than this share of the window, whatever parts its work."""
SPARSE_FROM = 0.5
"""It is sparse when it had nothing queued for this share of the window: most of the time it waits for the host."""
LONG_NS = 100_000
"""A gap of this length parts two stretches: an operator takes 5 to 100 us to launch, so it is more than one."""
LONG_SHARE = 0.5
"""Dense with gaps: gaps that long hold at least this share of the idle time."""

ALIKE = 2
"""Of more gaps than `gpu_gaps` has room for, those that it leaves out share their time among the causes as the
shortest do that it has: those up to this many times the shortest."""

LONGEST_SEQUENCE = 200_000
"""So many kernels are looked at for a sequence that repeats."""
REPEATS_FROM = 0.95
"""A sequence repeats when this share of its kernels is what came one period before."""


def located(parts: Parts, captures: Sequence[Capture], passes: Sequence[PassRecord]) -> dict[str, list[Table]]:
    """The tables `gpu_time` and `gpu_work`, and `gpu_gaps` with causes."""
    gaps = _Gaps(parts)
    times: dict[str, list[Table]] = {"gpu_time": [], "gpu_work": []}
    for gpu in gpus(parts):
        rows = explained(gpu, gaps.of(gpu), beside(gpu, parts, captures))
        chosen = window(gpu, _steps(gpu, parts, captures))
        if chosen is not None:
            if chosen.steps is not None:
                rows = with_steps(rows, chosen.steps, int(chosen.times.end[-1]))
            times["gpu_time"].append(_time_table(gpu, chosen, rows))
            times["gpu_work"].append(_work_table(gpu, chosen))
        gaps.put(gpu, rows)
    found = {name: tables for name, tables in times.items() if tables}
    return {**found, "gpu_gaps": gaps.tables()} if gaps.parts else found


def _steps(gpu: Gpu, parts: Parts, captures: Sequence[Capture]) -> list[Table]:
    """The tables of steps of the GPU's pass."""
    passes = {capture.id: capture.pass_id for capture in captures}
    own = passes.get(gpu.capture)
    return [t for t in parts.get("steps", ()) if len(t) and passes.get(str(t.columns["capture"][0]), own) == own]


class _Gaps:
    """The parts of `gpu_gaps`, GPU by GPU."""

    def __init__(self, parts: Parts) -> None:
        self.parts = [table for table in parts.get("gpu_gaps", ()) if len(table)]
        self._rows = [list(table.rows()) for table in self.parts]
        self._places: dict[tuple[Any, ...], tuple[int, list[int]]] = {}
        for number, rows in enumerate(self._rows):
            for place, row in enumerate(rows):
                self._places.setdefault(_owner(row), (number, []))[1].append(place)

    def of(self, gpu: Gpu) -> list[Row]:
        number, places = self._places.get(_owner(gpu.row), (0, []))
        return [self._rows[number][place] for place in places]

    def put(self, gpu: Gpu, rows: Sequence[Row]) -> None:
        number, places = self._places.get(_owner(gpu.row), (0, []))
        for place, row in zip(places, rows, strict=True):
            self._rows[number][place] = row

    def tables(self) -> list[Table]:
        return [gpu_causes.as_table(table, rows) for table, rows in zip(self.parts, self._rows, strict=True)]


def _owner(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row.get(name) for name in ("capture", "rank", "pid", "device"))


# ---------------------------------------------------------------- time by state


@dataclass(frozen=True)
class _Idle:
    """The idle times of a window: how long each is, its cause, and whether nothing was queued in it."""

    ns: Ints
    cause: Ints
    starved: Ints

    @property
    def total_ns(self) -> int:
        return int(self.ns.sum())


def _time_table(gpu: Gpu, chosen: Window, rows: Sequence[Row]) -> Table:
    times = chosen.times
    busy, in_kernels = gpu.busy.within(times), gpu.in_kernels.within(times)
    computes = ~gpu.communicating
    computing = Times.union(gpu.kernels.start[computes], gpu.kernels.end[computes]).within(times)
    found = {
        "busy": (busy.ns, len(busy)),
        "computing": (computing.ns, len(computing)),
        "communicating": in_kernels.without(computing),
        "copying": busy.without(in_kernels),
    }
    idle = _idle(busy.rest(times), rows)
    for number, cause in enumerate(CAUSES):
        mine = idle.cause == number
        found[cause] = (int(idle.ns[mine].sum()), int(np.count_nonzero(mine)))
    same = {
        "window_ns": times.ns,
        "window": chosen.words,
        "start_ns": int(times.start[0]),
        "queue": queue(times.ns, idle.ns, idle.starved),
        "steps": None if chosen.steps is None else len(chosen.steps.start),
        "period": _period(gpu.kernels, times),
    }
    columns = {
        **_keys(gpu, len(found)),
        "state": list(found),
        "total_ns": [ns for ns, _ in found.values()],
        "count": [count for _, count in found.values()],
        **{name: [value] * len(found) for name, value in same.items()},
    }
    return _timed(gpu, Table("gpu_time", columns))


def _keys(gpu: Gpu, length: int) -> dict[str, list[Any]]:
    return {name: [gpu.row[name]] * length for name in ("capture", "rank", "pid", "device") if name in gpu.row}


def _timed(gpu: Gpu, table: Table) -> Table:
    return table if gpu.clock_error_ns is None else replace(table, clock="epoch", clock_error_ns=gpu.clock_error_ns)


def _idle(idle: Times, rows: Sequence[Row]) -> _Idle:
    """Each idle time of the window with the cause of the gap that it is part of. What is in none of the gaps lies at
    the ends of the recording, or was too short for the table: the latter is shared among the causes, by its
    alikes."""
    ns = idle.end - idle.start
    start = np.array([row["start_ns"] for row in rows], np.int64)
    end = start + np.array([row["duration_ns"] for row in rows], np.int64)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    place = np.searchsorted(start, idle.start, "right") - 1
    listed = place >= 0
    listed[listed] = idle.end[listed] <= end[place[listed]]
    cause = np.full(len(idle), CAUSES.index("unknown"))
    starved = np.zeros(len(idle), np.int64)
    known = np.array([CAUSES.index(row["cause"]) for row in rows], np.int64)[order]
    host = np.array([row["kind"] == "host" for row in rows], np.int64)[order]
    cause[listed], starved[listed] = known[place[listed]], host[place[listed]]
    shortest = int((end - start).min()) if len(start) else 0
    left = np.flatnonzero(~listed & (ns <= shortest) & (ns > 0))
    if len(left):
        alike = end - start <= ALIKE * shortest
        short = ns[left] * ALIKE < shortest
        cause[left[short]] = CAUSES.index("between")
        _share(left[~short], ns, cause, starved, known[alike], host[alike], (end - start)[alike])
    return _Idle(ns, cause, starved)


def _share(left: Ints, ns: Ints, cause: Ints, starved: Ints, known: Ints, host: Ints, length: Ints) -> None:
    """Gives these idle times the causes of others, in the same proportions of time."""
    if not len(left):
        return
    kinds, number = np.unique(known * 2 + host, return_inverse=True)
    upto = np.cumsum(np.bincount(number, length)) / length.sum()
    spent = np.cumsum(ns[left]) - ns[left] / 2
    taken = kinds[np.minimum(np.searchsorted(upto, spent / ns[left].sum()), len(kinds) - 1)]
    cause[left], starved[left] = taken // 2, taken % 2


def queue(window_ns: int, idle_ns: Ints, starved: Ints) -> str:
    """How the GPU's work lies in the window. idle_ns: the gaps; starved: of each whether nothing was queued in it.

    sparse: it waits for the host most of the time, or in many short gaps that are nobody's but the host's. dense: it
    always has work, or only parts of it that were queued follow slowly. dense with gaps: look before and after each."""
    total = int(idle_ns.sum())
    if window_ns <= 0 or total <= IDLE_UP_TO * window_ns:
        return "dense"
    waiting = int(idle_ns[starved > 0].sum())
    if waiting >= SPARSE_FROM * window_ns:
        return "sparse"
    if int(idle_ns[idle_ns >= LONG_NS].sum()) >= LONG_SHARE * total:
        return "dense with gaps"
    return "sparse" if waiting > IDLE_UP_TO * window_ns else "dense"


def _period(kernels: Work, times: Times) -> int | None:
    """After how many kernels the same sequence of kernels comes again: the distance from one to the next of the rarest
    that comes at least three times, where nearly all others keep to it."""
    first, last = np.searchsorted(kernels.start, (int(times.start[0]), int(times.end[-1])))
    names = kernels.name[first : min(last, first + LONGEST_SEQUENCE)]
    count = np.bincount(names) if len(names) else np.zeros(0, np.int64)
    often = np.flatnonzero(count >= 3)
    for name in often[np.argsort(count[often], kind="stable")][:3].tolist():
        distance = int(np.median(np.diff(np.flatnonzero(names == name))))
        if distance and np.mean(names[distance:] == names[:-distance]) >= REPEATS_FROM:
            return distance
    return None


# ---------------------------------------------------------------- work by name


def _work_table(gpu: Gpu, chosen: Window) -> Table:
    before = Times(np.array([-(2**62)]), chosen.times.start[:1])
    parts = [("window", chosen.times), ("before", before)]
    rows = [row for part, times in parts for row in (*_kernels(gpu, part, times), *_transfers(gpu, part, times))]
    rows += _calls(gpu, chosen.times)
    names = ("part", "kind", "name", "family", "pageable", "count", "total_ns", "median_ns", "bytes", "median_bytes")
    columns = {name: [row.get(name) for row in rows] for name in names}
    return Table("gpu_work", {**_keys(gpu, len(rows)), **columns})


def _kernels(gpu: Gpu, part: str, times: Times) -> Iterator[Row]:
    work = gpu.kernels
    for name, row, _ in _summed(work.names, work.name, work.start, work.end, times):
        kind = "graph" if name.startswith("[CUDA graph") else "kernel"
        yield {"part": part, "kind": kind, "name": name, "family": family(name), **row}


def _transfers(gpu: Gpu, part: str, times: Times) -> Iterator[Row]:
    work = gpu.transfers
    for slow, said in ((1, True), (0, False), (MISSING, None)):
        mine = np.flatnonzero(gpu.pageable == slow)
        found = _summed(work.names, work.name[mine], work.start[mine], work.end[mine], times)
        for name, row, places in found:
            size = gpu.bytes[mine[places]]
            sizes = {} if MISSING in size else {"bytes": int(size.sum()), "median_bytes": float(np.median(size))}
            yield {"part": part, "kind": "transfer", "name": name, "pageable": said, **row, **sizes}


def _calls(gpu: Gpu, times: Times) -> Iterator[Row]:
    """Of the GPU's process, those that have to do with it."""
    if gpu.calls is None:
        return
    code, names = texts(gpu.calls, "name")
    kinds = [call_kind(name) if name else None for name in names]
    mine = np.array([kind is not None for kind in kinds], bool)[code]
    if gpu.pid is not None:
        mine &= ints(gpu.calls, "pid") == gpu.pid
    start = ints(gpu.calls, "start_ns")[mine]
    end = start + ints(gpu.calls, "duration_ns")[mine]
    for name, row, _ in _summed([name or "" for name in names], code[mine], start, end, times):
        yield {"part": "window", "kind": "call", "name": name, "family": call_kind(name), **row}


def _summed(names: Sequence[str], code: Ints, start: Ints, end: Ints, times: Times) -> Iterator[tuple[str, Row, Ints]]:
    """By name, the longest total first: what began in the window, and the places of those."""
    ns = shared_ns(start, end, times)
    there = np.flatnonzero((ns > 0) | within(start, times))
    kinds, places = groups(code[there])
    if not len(kinds):
        return
    found = statistics(places, ns[there])
    order = np.argsort(-found["total"], kind="stable")
    by_kind = np.split(there[np.argsort(places, kind="stable")], np.cumsum(found["count"])[:-1])
    for kind in order.tolist():
        figures = {"count": int(found["count"][kind]), "total_ns": int(found["total"][kind])}
        yield names[kinds[kind]], {**figures, "median_ns": float(found["median"][kind])}, by_kind[kind]
