"""What the queue of each GPU was doing, from an export of nsys: the tables `gpu_utilization`, `gpu_gaps` and
`gpu_launch_summary`.

A row is one GPU. Processes number the GPUs that they see; which GPU a number means stands in TARGET_INFO_CUDA_DEVICE
(in files since 2025), and is clear where the machine has but one. Where neither tells, the numbers of two processes
are taken for two GPUs. A GPU that several processes worked on has no pid, and the number that the recording gave it.

Launches are joined to work on the process and the correlation id, which different processes share. Work has the
process in globalPid, a call in globalTid, whose lower 24 bits are the thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.gpu_queue import (
    CHUNK,
    COPY,
    GRAPH,
    KERNEL,
    LAST,
    SET,
    Gaps,
    Host,
    Launches,
    Spans,
    Work,
    distinct,
    gap_columns,
    gaps,
    launch_columns,
    utilization,
)
from orchestrator.formats.kernel_names import communicates
from orchestrator.formats.nsys_export import CLOCK_ERROR_NS, MEMSET, Export, without_version
from orchestrator.tables import Table

SOURCES = (
    (KERNEL, "CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    (GRAPH, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "graphId"),
    (COPY, "CUPTI_ACTIVITY_KIND_MEMCPY", "copyKind"),
    (SET, "CUPTI_ACTIVITY_KIND_MEMSET", "memKind"),
)
"""The tables of work, and the column that names each piece."""

ENDED = "end IS NOT NULL"
THREAD = 0xFFFFFF
OS_CALL = 27
RANGE_TYPES = (59, 60, 70, 71)
DENSE = 16
"""Correlation ids are looked up in an array up to this many times as long as the calls are many."""

Device: TypeAlias = tuple[int, int]
"""globalPid, and the number of the device in that process."""


def gpu_utilization(export: Export) -> Iterator[Table]:
    """How busy each GPU was, and how many launches waited."""
    yield _tables(export)["gpu_utilization"]


def gpu_gaps(export: Export) -> Iterator[Table]:
    """The longest times that each GPU had nothing to do, and what the thread that launched its next work did then."""
    yield _tables(export)["gpu_gaps"]


def gpu_launches(export: Export) -> Iterator[Table]:
    """How long the launches of each kernel (and of graphs traced as a whole) took."""
    yield _tables(export)["gpu_launch_summary"]


def _tables(export: Export) -> dict[str, Table]:
    """All three, made together GPU by GPU and kept with the export: they share what is large."""
    made: dict[str, Table] | None = vars(export).get("gpu_queue")
    if made is None:
        made = vars(export)["gpu_queue"] = _made(export)
    return made


def _made(export: Export) -> dict[str, Table]:
    recorded = _Recorded(export)
    busy: list[dict[str, Any]] = []
    idle: list[dict[str, Any]] = []
    launched: list[dict[str, Any]] = []
    for gpu in recorded.gpus():
        queue = recorded.queue(gpu)
        launched += [recorded.launch_columns(queue, *part) for part in queue.parts if part[1] in (KERNEL, GRAPH)]
        found = gaps(queue.work)
        where = {"pid": gpu.pid, "device": gpu.device}
        idle.append({**_same(len(found), **where), **recorded.gap_columns(queue, found)})
        busy.append({**where, "gpu": gpu.name, **utilization(queue.work)})
        del queue
    return {
        "gpu_utilization": _of_gpus(export, busy),
        "gpu_gaps": _of_gaps(export, _joined(idle)),
        "gpu_launch_summary": Table("gpu_launch_summary", _joined(launched)),
    }


def _same(length: int, **values: int | None) -> dict[str, Any]:
    return {name: [value] * length for name, value in values.items()}


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of the parts, one below another."""
    columns = {name: [part[name] for part in parts] for name in parts[0]} if parts else {}
    return {n: np.concatenate(c) if isinstance(c[0], np.ndarray) else [*chain(*c)] for n, c in columns.items()}


def _of_gpus(export: Export, rows: list[dict[str, Any]]) -> Table:
    """One row a GPU, in the order of their numbers."""
    rows.sort(key=lambda row: (row["device"], row["pid"] or 0))
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    columns["start_ns"] = [row["start_ns"] + (export.start_epoch_ns or 0) for row in rows]
    if any(abs(time) > LAST for name in ("start_ns", "span_ns") for time in columns.get(name, ())):
        raise OverflowError("it holds times that no clock shows")
    if export.start_epoch_ns is None:
        return Table("gpu_utilization", columns)
    return Table("gpu_utilization", columns, clock="epoch", clock_error_ns=CLOCK_ERROR_NS)


def _of_gaps(export: Export, columns: dict[str, Any]) -> Table:
    return export.timed("gpu_gaps", columns.pop("start_ns"), columns) if columns else Table("gpu_gaps", {})


def _pid(global_pid: int) -> int | None:
    return None if global_pid == MISSING else global_pid >> 24 & THREAD


# ---------------------------------------------------------------- what was recorded


@dataclass(frozen=True)
class _Source:
    """One table of work; pieces without an end are left out."""

    kind: int
    start: Ints
    end: Ints
    device: Ints
    stream: Ints
    correlation: Ints
    pid: Ints
    name: Ints

    def of(self, member: Device) -> Ints:
        """The places of one process's work on one device."""
        return np.flatnonzero((self.pid == member[0]) & (self.device == member[1]))

    @property
    def members(self) -> set[Device]:
        """The processes and devices that occur."""
        new = (self.pid[1:] != self.pid[:-1]) | (self.device[1:] != self.device[:-1])
        first = np.flatnonzero(np.append(True, new))[: len(self.pid)]
        return set(zip(self.pid[first].tolist(), self.device[first].tolist(), strict=True))


@dataclass(frozen=True)
class _Calls:
    """The calls of the CUDA runtime and driver, of all processes."""

    start: Ints
    end: Ints
    thread: Ints
    name: Ints
    correlation: Ints

    def of(self, pid: int) -> Iterator[Ints]:
        """The places of those of one process, the last ones first, in portions."""
        for last in range(len(self.start), 0, -CHUNK):
            first = max(last - CHUNK, 0)
            mine = (self.thread[first:last] & ~THREAD == pid) & (self.correlation[first:last] >= 0)
            yield np.flatnonzero(mine)[::-1] + first


class _Launchers:
    """The calls of one process by their correlation id: in an array, or searched where the ids are far apart."""

    def __init__(self, calls: _Calls, pid: int) -> None:
        high = int(calls.correlation.max(initial=0))
        self.is_dense = high < DENSE * len(calls.start) + CHUNK
        if self.is_dense:
            self.table = np.full(high + 2, -1, np.int32)
            for rows in calls.of(pid):
                self.table[calls.correlation[rows]] = rows  # of several with one id, the first comes last
        else:
            rows = np.concatenate([*calls.of(pid)])[::-1]
            rows = rows[np.argsort(calls.correlation[rows], kind="stable")]
            self.rows, self.number = np.append(rows, -1), np.append(calls.correlation[rows], LAST)

    def places(self, number: Ints) -> Ints:
        """The place of the call with each correlation id, of several the first, -1 where there is none."""
        if self.is_dense:
            known = (number >= 0) & (number < len(self.table))
            return self.table[np.where(known, number, -1)].astype(np.int64)  # the last item is none
        found = np.searchsorted(self.number, number)
        return np.where(self.number[found] == number, self.rows[found], -1)


@dataclass(frozen=True)
class _Gpu:
    """A GPU that worked: how it is shown, and what processes call it."""

    pid: int | None
    device: int
    name: str | None
    members: list[Device]

    @classmethod
    def of(cls, number: int | Device, members: list[Device], names: dict[int, str]) -> _Gpu:
        """`number` is the one of TARGET_INFO_GPU, or what the only member calls it."""
        ((pid, device), *others) = members
        known = device if isinstance(number, tuple) else number
        shared = any(other != pid for other, _ in others)
        return cls(None if shared else _pid(pid), known if others else device, names.get(known), members)


@dataclass(frozen=True)
class _Queue:
    """All work of one GPU, what each piece is called, and which call launched it (-1: not seen)."""

    work: Work
    name: Ints
    call: Ints
    parts: list[tuple[Device, int, slice]]
    """Where the work of each process and table lies."""

    @classmethod
    def of_length(cls, length: int) -> _Queue:
        """One that is still to be filled."""
        start, end, stream, launched, name, call = (np.empty(length, np.int64) for _ in range(6))
        kind, communication = np.empty(length, np.uint8), np.empty(length, bool)
        return cls(Work(start, end, kind, stream, communication, launched), name, call, [])


class _Recorded:
    """The arrays of an export that the queues are made of."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.sources = [self._source(*source) for source in SOURCES if export.has(source[1], "start")]
        columns = ("start", "end", "globalTid", "nameId", "correlationId")
        self.calls = _Calls(*export.ints("CUPTI_ACTIVITY_KIND_RUNTIME", *columns, where=ENDED))
        self.latest: tuple[int, _Launchers] | None = None
        self.ranges, self.os_calls, self.samples = _ranges(export), _os_calls(export), _samples(export)

    def _source(self, kind: int, table: str, name: str) -> _Source:
        columns = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", name)
        return _Source(kind, *self.export.ints(table, *columns, where=ENDED))

    def gpus(self) -> list[_Gpu]:
        """The GPUs that worked."""
        members = sorted({member for source in self.sources for member in source.members})
        names = {number: str(name) for number, name in self.export.rows("TARGET_INFO_GPU", "id", "name")}
        told = self.export.rows("TARGET_INFO_CUDA_DEVICE", "pid", "cudaId", "gpuId")
        numbers = {(pid, device): gpu for pid, device, gpu in told}
        if len(names) == 1 and len({device for _, device in members}) == 1:
            numbers = {(_pid(pid), device): next(iter(names)) for pid, device in members}
        meant: dict[int | Device, list[Device]] = {}
        for pid, device in members:
            meant.setdefault(numbers.get((_pid(pid), device), (pid, device)), []).append((pid, device))
        return [_Gpu.of(number, users, names) for number, users in meant.items()]

    def queue(self, gpu: _Gpu) -> _Queue:
        """All work of one GPU, put together."""
        taken = [(member, source, source.of(member)) for member in gpu.members for source in self.sources]
        ends = np.cumsum([0, *(len(rows) for _, _, rows in taken)]).tolist()
        queue = _Queue.of_length(ends[-1])
        for (member, source, rows), first, last in zip(taken, ends[:-1], ends[1:], strict=True):
            launchers = self._launchers(member[0])
            for offset in range(0, len(rows), CHUNK):
                there = slice(first + offset, min(first + offset + CHUNK, last))
                self._fill(queue, there, source, rows[offset : offset + CHUNK], launchers)
            queue.work.stream[first:last] += gpu.members.index(member) << 32  # processes number their streams alike
            queue.parts.append((member, source.kind, slice(first, last)))
        return queue

    def _fill(self, queue: _Queue, there: slice, source: _Source, rows: Ints, launchers: _Launchers) -> None:
        """Puts some pieces of work into the queue."""
        work, name = queue.work, source.name[rows]
        call = launchers.places(source.correlation[rows])
        work.start[there], work.end[there] = source.start[rows], source.end[rows]
        work.kind[there], work.stream[there] = source.kind, source.stream[rows]
        work.launched[there] = MISSING
        work.launched[there][call >= 0] = self.calls.start[call[call >= 0]]
        work.communication[there] = (source.kind == KERNEL) & np.isin(name, self.communicating)
        queue.name[there], queue.call[there] = name, call

    @cached_property
    def communicating(self) -> list[int]:
        """The names of kernels that pass data between GPUs."""
        kernels = [name for source in self.sources if source.kind == KERNEL for name in distinct(source.name)]
        return [name for name in kernels if communicates(self.text(KERNEL, name))]

    def _launchers(self, pid: int) -> _Launchers:
        """The latest are kept: work of one process comes table by table, and GPU by GPU."""
        if self.latest is None or self.latest[0] != pid:
            self.latest = None
            self.latest = (pid, _Launchers(self.calls, pid))
        return self.latest[1]

    def text(self, kind: int, name: int) -> str:
        """What a piece of work is called."""
        if kind == KERNEL:
            return self.export.string(name)
        if kind == GRAPH:
            return "[CUDA graph]" if name == MISSING else f"[CUDA graph {name}]"
        return self.export.transfer_name(MEMSET if kind == SET else name)

    def launch_columns(self, queue: _Queue, member: Device, kind: int, part: slice) -> dict[str, Any]:
        """Of one process's kernels, or graphs, on the GPU."""
        name, start, end, call = (a[part] for a in (queue.name, queue.work.start, queue.work.end, queue.call))
        seen = slice(None) if (call >= 0).all() else call >= 0
        launches = Launches(name[seen], start[seen], end[seen], call[seen], self.calls.start, self.calls.end)
        columns = launch_columns(launches, partial(self.text, kind))
        return {**_same(len(columns["name"]), pid=_pid(member[0]), device=member[1]), **columns}

    def gap_columns(self, queue: _Queue, found: Gaps) -> dict[str, Any]:
        """Of the gaps of one GPU."""
        calls = self.calls
        called = Spans(calls.thread, calls.start, calls.end, calls.name, self._api) if len(calls.start) else None
        call = queue.call[found.after]
        thread = np.full(len(found), MISSING)
        thread[call >= 0] = calls.thread[call[call >= 0]]
        columns = gap_columns(found, thread, Host(called, self.ranges, self.os_calls, self.samples))
        return {
            "before": self._texts(queue, found.before),
            "after": self._texts(queue, found.after),
            "thread": [None if tid == MISSING else tid & THREAD for tid in thread.tolist()],
            **columns,
        }

    def _texts(self, queue: _Queue, places: Ints) -> list[str]:
        kinds, names = queue.work.kind[places].tolist(), queue.name[places].tolist()
        shown = {item: self.text(*item) for item in set(zip(kinds, names, strict=True))}
        return [shown[item] for item in zip(kinds, names, strict=True)]

    def _api(self, name: int) -> str:
        return without_version(self.export.string(name))


# ---------------------------------------------------------------- what threads did


def _ranges(export: Export) -> Spans | None:
    """NVTX ranges of all domains. One that has no end is open to the end of all time."""
    start, end, kind, thread, text = export.ints("NVTX_EVENTS", "start", "end", "eventType", "globalTid", "textId")
    rows = np.flatnonzero(np.isin(kind, RANGE_TYPES))
    if not len(rows):
        return None
    end = np.where(end == MISSING, LAST, end)
    texts = _Texts(export, text)
    return Spans(thread[rows], start[rows], end[rows], rows, texts.of)


class _Texts:
    """The texts of NVTX_EVENTS, which are registered strings or stand in the row. Those are long and many, and few are
    asked for: they are read one by one where the numbers of the rows have no holes."""

    def __init__(self, export: Export, registered: Ints) -> None:
        self.export, self.registered = export, registered

    def of(self, row: int) -> str:
        """The text of a row, counted as the rows lie in the table."""
        if self.registered[row] != MISSING:
            return self.export.string(int(self.registered[row]))
        if self.first is None:
            return self.all[row] if len(self.all) == len(self.registered) else "(unknown)"  # damage has shifted them
        found = self.export.rows("NVTX_EVENTS", "text", where=f"rowid = {self.first + row}")
        return next((str(text or "") for (text,) in found), "")

    @cached_property
    def first(self) -> int | None:
        """The number of the first row, None where they have holes or no numbers at all."""
        try:
            first, last = next(self.export.db.execute("SELECT min(rowid), max(rowid) FROM NVTX_EVENTS"))
        except sqlite3.DatabaseError:
            return None
        return int(first) if last - first + 1 == len(self.registered) else None

    @cached_property
    def all(self) -> list[str]:
        return [str(text or "") for (text,) in self.export.rows("NVTX_EVENTS", "text")]


def _os_calls(export: Export) -> Spans | None:
    where = f"{ENDED} AND eventClass = {OS_CALL}" if export.has("OSRT_API", "eventClass") else ENDED
    start, end, thread, name = export.ints("OSRT_API", "start", "end", "globalTid", "nameId", where=where)
    return Spans(thread, start, end, name, export.string) if len(start) else None


def _samples(export: Export) -> Spans | None:
    """CPU samples, with the function that ran: the symbol at the top of the stack, or the file if it has no name."""
    number, start, thread = export.ints("COMPOSITE_EVENTS", "id", "start", "globalTid")
    if not len(number):
        return None
    of, symbol, module, unresolved, depth = export.ints(
        "SAMPLING_CALLCHAINS", "id", "symbol", "module", "unresolved", "stackDepth"
    )
    top = np.flatnonzero(depth == 0)
    name = np.where((unresolved == 1)[top], -1 - module[top], symbol[top])
    order = np.argsort(of[top], kind="stable")
    found = np.searchsorted(of[top][order], number)
    known = np.append(of[top][order], MISSING)[found] == number
    function = np.where(known, np.append(name[order], MISSING)[found], MISSING)
    return Spans(thread, start, start + 1, function, partial(_function, export))


def _function(export: Export, name: int) -> str:
    if name == MISSING:
        return "(unknown)"
    return export.string(name) if name >= 0 else f"(in {export.string(-1 - name).rpartition('/')[2]})"
