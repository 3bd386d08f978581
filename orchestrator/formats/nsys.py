"""Reads what `nsys export --type sqlite` writes, in any schema since 2020, into canonical tables.

The figures of the summaries follow the SQL of `nsys stats` and are equal to its output, digit for digit. Columns of
many rows with few values stay encoded (tables.Coded): of ten million kernels a few hundred are of different shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from orchestrator.errors import ParseError
from orchestrator.formats import heap
from orchestrator.formats.events import MISSING, Ints, names, narrow, nullable, summary
from orchestrator.formats.nsys_export import CLOCK_ERROR_NS, MEMSET, Export, opened, without_version
from orchestrator.formats.nsys_gpu import gpu_gaps, gpu_launches, gpu_utilization
from orchestrator.formats.sqlite_pages import distinct
from orchestrator.model import Clock
from orchestrator.tables import Coded, Table

KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
SETS = "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"

ENDED = "end IS NOT NULL"

SHAPE = (
    "globalPid", "deviceId", "streamId", "demangledName", "shortName", "registersPerThread", "graphId",
    "staticSharedMemory", "dynamicSharedMemory", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip
"""What kernels have in common with many others."""

MEMORY = ("pageable", "pinned", "device", "array", "managed", "device", "managed")
"""ENUM_CUDA_MEM_KIND of the exports (5 and 6 are static memory); CUpti_ActivityMemoryKind of CUPTI has the same from 1
on. Seven is unknown."""
PAGEABLE = 0
PEER_TO_PEER = 10

OS_CALL = 27
"""Event class of a finished call in OSRT_API; others mark the start and end of tracing."""
RANGE_STYLES = {59: "PushPop", 60: "StartEnd", 70: "PushPop", 71: "StartEnd"}
"""NVTX_EVENTS.eventType of ranges, live and imported from text."""
CREATED = 75
"""Of the domain of ranges."""
STYLES = ("PushPop", "StartEnd")


@dataclass(frozen=True)
class Content:
    """What one export holds. Tables without rows are left out: nothing of the kind was traced, or nothing happened."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    version: str | None = None
    start_epoch_ns: int | None = None
    """Start of the session; None in files of 2021, whose times are relative."""
    lost: tuple[str, ...] = ()
    """Which of the notes say that rows are missing."""

    @property
    def clock(self) -> Clock | None:
        start = self.start_epoch_ns
        return None if start is None else Clock(start, 1.0, CLOCK_ERROR_NS, "the session's start as nsys has noted it")


def read(path: Path) -> Content:
    """The tables of an export; of a damaged one what is left of it, with the loss in its tables and notes.

    Raises ParseError for a file that is none, or of which nothing can be read."""
    with heap.kept(), opened(path) as export:
        export.encode(KERNELS, SHAPE, ("start", "end", "correlationId"))
        export.ints(CALLS, "start", "end", "nameId", "globalTid", "correlationId")
        # numpy lets go of the interpreter while it works: what the queues did is found out beside all the rest
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(partial(_made, export), (QUEUES, TABLES)))
        tables = [
            replace(table, dropped=export.lost.get(SOURCES.get(table.name, ""), 0))
            for table in chain(*made)
            if len(table)
        ]
        notes = tuple(_notes(export, tables))
        if export.lost and not tables:
            raise ParseError(f"{path.name} is no readable export of nsys: it is damaged, and no row of it can be read")
        lost = tuple(_lost(export)) if export.lost else ()
        return Content(tuple(tables), notes, export.gpus, export.version, export.start_epoch_ns, lost)


def _made(export: Export, makers: Sequence[Maker]) -> list[Table]:
    return [table for make in makers for table in make(export)]


def summaries(path: Path) -> list[Table]:
    """What gpukernsum, cudaapisum and gpumemtimesum of `nsys stats` show, and nothing else. Raises ParseError."""
    with heap.kept(), opened(path) as export:
        return [table for make in (_kernel_summary, cuda_api_summary, _transfer_summary) for table in make(export)]


# ---------------------------------------------------------------- one function a table


def os_calls(export: Export) -> Iterator[Table]:
    """OSRT_API as `nsys stats` osrtsum / osrt_sum shows it, and call by call."""
    where = f"eventClass = {OS_CALL}" if export.has("OSRT_API", "eventClass") else "1"
    durations, name = export.events("OSRT_API", "nameId", where=where)
    yield summary("os_calls_summary", name, durations, export.string)
    yield _calls(export, "os_calls", "OSRT_API", export.string, f"{where} AND {ENDED}")


def cuda_api_summary(export: Export) -> Iterator[Table]:
    """Calls of the CUDA runtime and driver, as cudaapisum / cuda_api_sum shows them."""
    durations, name = export.events(CALLS, "nameId")
    yield summary("cuda_api_summary", name, durations, lambda n: without_version(export.string(n)))


def cuda_calls(export: Export) -> Iterator[Table]:
    """The same call by call."""
    (correlation,) = export.ints(CALLS, "correlationId", where=ENDED)
    more = {"correlation": nullable(narrow(correlation))}
    yield _calls(export, "cuda_calls", CALLS, lambda n: without_version(export.string(n)), ENDED, more)


def _calls(
    export: Export,
    table: str,
    source: str,
    name: Callable[[int], str],
    where: str,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Table:
    """The calls that threads made. Process, thread and name are of the same codes: those of their combinations."""
    start, end, *both = export.ints(source, "start", "end", "nameId", "globalTid", where=where)
    codes, (named, thread) = distinct(both)
    columns = {
        "pid": Coded(codes, [_pid(tid) for tid in thread.tolist()]),
        "thread": Coded(codes, [_tid(tid) for tid in thread.tolist()]),
        "duration_ns": end - start,
        "name": Coded(codes, [name(number) for number in named.tolist()]),
    }
    return export.timed(table, start, {**columns, **more})


def gpu_kernels(export: Export) -> Iterator[Table]:
    """Every kernel, and their summary by name."""
    yield from _kernel_summary(export)
    start, end, correlation = export.ints(KERNELS, "start", "end", "correlationId", where=ENDED)
    columns = {"duration_ns": end - start, "correlation": nullable(narrow(correlation)), **_shapes(export)}
    yield export.timed("gpu_kernels", start, columns)


def _kernel_summary(export: Export) -> Iterator[Table]:
    """By name over all grids and blocks, as cuda_gpu_kern_sum shows it; the older gpukernsum tells grids apart."""
    durations, name = export.events(KERNELS, "demangledName")
    yield summary("gpu_kernel_summary", name, durations, export.string)


def _shapes(export: Export) -> dict[str, Coded]:
    """The columns that kernels have in common with many others. All are of the same codes: those of the combinations
    of everything that they are made of."""
    codes, found = export.combinations(KERNELS, *SHAPE, where=ENDED)
    pid, device, stream, name, short, registers, graph, *sizes = (column.tolist() for column in found)
    texts: dict[str, list[Any]] = {
        "pid": [_pid(p) for p in pid],
        "device": [_known(d) for d in device],
        "stream": [_known(s) for s in stream],
        "name": [export.string(n) for n in name],
        "short_name": [export.string(n) for n in short],
        "grid": [_triple(*size) for size in zip(*sizes[2:5], strict=True)],
        "block": [_triple(*size) for size in zip(*sizes[5:], strict=True)],
        "registers": [_known(r) for r in registers],
        "shared_bytes": [None if MISSING in pair else sum(pair) for pair in zip(*sizes[:2], strict=True)],
        "graph_id": [_known(g) or None for g in graph],
    }
    return {column: Coded(codes, values) for column, values in texts.items()}


def gpu_graphs(export: Export) -> Iterator[Table]:
    """Launches of CUDA graphs that were traced as a whole: GPU time whose kernels are not among gpu_kernels, and that
    no report of `nsys stats` counts."""
    fields = ("start", "end", "globalPid", "deviceId", "streamId", "correlationId", "graphId", "graphExecId")
    start, end, pid, *more = export.ints(GRAPHS, *fields, where=ENDED)
    columns = ("device", "stream", "correlation", "graph_id", "graph_exec_id")
    shown = {column: nullable(values) for column, values in zip(columns, more, strict=True)}
    yield export.timed("gpu_graphs", start, {"pid": names(pid, _pid), "duration_ns": end - start, **shown})


def gpu_transfers(export: Export) -> Iterator[Table]:
    """Copies and memory sets, and their summaries by time and by size (gpumemsizesum / cuda_gpu_mem_size_sum)."""
    moves = _Transfers(export)
    yield moves.summary()
    yield summary("gpu_transfer_sizes", moves.kind[moves.sized], moves.bytes[moves.sized], moves.name, unit="bytes")
    columns = {
        "pid": names(moves.pid, _pid),
        "device": nullable(moves.device),
        "stream": nullable(moves.stream),
        "duration_ns": moves.duration,
        "kind": names(moves.kind, moves.name),
        "bytes": nullable(moves.bytes),
        "source": names(moves.source, _memory),
        "target": names(moves.target, _memory),
        "peer_device": nullable(moves.peer),
        "correlation": nullable(moves.correlation),
    }
    yield export.timed("gpu_transfers", moves.start, columns)


def _transfer_summary(export: Export) -> Iterator[Table]:
    yield _Transfers(export).summary()


class _Transfers:
    """Copies, and behind them the memory sets, which have a table of their own."""

    def __init__(self, export: Export) -> None:
        fields = ("start", "end", "bytes", "deviceId", "streamId", "globalPid", "correlationId")
        more = ("copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId")
        *copies, kind, source, target, read_on, written_on = export.ints(COPIES, *fields, *more, where=ENDED)
        *sets, memory = export.ints(SETS, *fields, "memKind", where=ENDED)
        none = np.full(len(memory), MISSING)
        peer = np.where(kind == PEER_TO_PEER, np.where(read_on == copies[3], written_on, read_on), MISSING)
        copies += [kind, source, target, peer]
        sets += [np.full(len(memory), MEMSET), none, memory, none]
        start, end, *found = (np.concatenate(pair) for pair in zip(copies, sets, strict=True))
        self.start, self.duration = start, end - start
        self.bytes, self.device, self.stream, self.pid, self.correlation, self.kind, *kinds = found
        self.source, self.target, self.peer = kinds
        self.sized = self.bytes != MISSING
        self.name = export.transfer_name

    def summary(self) -> Table:
        """As gpumemtimesum / cuda_gpu_mem_time_sum shows it; with the sizes, and of each the part with pageable
        memory."""
        summed = {"bytes": self.bytes}
        if (self.source != MISSING).any():
            slow = (self.source == PAGEABLE) | (self.target == PAGEABLE)
            summed |= {"pageable_count": slow.astype(np.int64), "pageable_ns": slow * self.duration}
            summed["pageable_bytes"] = slow * self.bytes
        if not self.sized.all():
            summed = {column: values for column, values in summed.items() if not column.endswith("bytes")}
        return summary("gpu_transfer_summary", self.kind, self.duration, self.name, summed=summed)


def ranges(export: Export) -> Iterator[Table]:
    """NVTX ranges of all domains, and their summary. One that was still open when the recording ended has no duration
    among the ranges, and lasts until the end in the summary, as in that of `nsys stats`."""
    found = _Ranges(export)
    if not len(found.start):
        return
    columns = {
        "duration_ns": nullable(np.where(found.end == MISSING, MISSING, found.end - found.start)),
        "pid": names(found.thread, _pid),
        "thread": names(found.thread, _tid),
        "domain": found.domain,
        "name": found.name,
    }
    yield export.timed("ranges", found.start, columns)
    yield found.summary()


class _Ranges:
    """The rows of NVTX_EVENTS that are ranges, with their names, which are registered strings or stand in the row."""

    def __init__(self, export: Export) -> None:
        where = f"eventType IN ({', '.join(map(str, RANGE_STYLES))})"
        fields = ("start", "end", "globalTid", "eventType", "domainId", "textId")
        self.start, self.end, self.thread, self.kind, domain, text_id = export.ints("NVTX_EVENTS", *fields, where=where)
        self.domain = _domains(export, self.thread, domain)
        self.name = names(text_id, export.string)
        inline = text_id == MISSING
        if inline.any():
            seen: dict[str, int] = {}
            rows = export.rows("NVTX_EVENTS", "text", where=where)
            codes = np.fromiter((seen.setdefault(text or "", len(seen)) for (text,) in rows), np.int32)
            if len(codes) == len(inline):  # else some of a damaged file's are lost, and nobody knows which
                registered = len(self.name.texts)
                codes = np.where(inline, codes + registered, self.name.codes)
                self.name = Coded(codes, [*self.name.texts, *seen])
        last = export.ints("NVTX_EVENTS", "start", "end")
        self.until = max((int(times.max()) for times in last if len(times)), default=0)

    def summary(self) -> Table:
        """As nvtxsum / nvtx_sum shows it. Versions since 2024.6 put a colon before names of the default domain, too."""
        started = np.isin(self.kind, [kind for kind, style in RANGE_STYLES.items() if style == "StartEnd"])
        codes, found = distinct(column.astype(np.int64) for column in (self.domain.codes, self.name.codes, started))
        rows: dict[tuple[str, str], int] = {}
        place = [
            rows.setdefault((_full(self.domain.texts[domain], self.name.texts[name]), STYLES[style]), len(rows))
            for domain, name, style in zip(*(column.tolist() for column in found), strict=True)
        ]
        ends = np.where(self.end == MISSING, self.until, self.end)
        table = summary("range_summary", np.array(place)[codes], ends - self.start, list(rows).__getitem__)
        name, style = zip(*table.columns["name"], strict=True)
        return replace(table, columns={**table.columns, "name": name, "style": style})


Maker: TypeAlias = Callable[[Export], Iterator[Table]]
TABLES: tuple[Maker, ...] = (
    os_calls, cuda_api_summary, cuda_calls, gpu_graphs, gpu_transfers, ranges, gpu_kernels,
)  # fmt: skip
QUEUES: tuple[Maker, ...] = (gpu_utilization, gpu_gaps, gpu_launches)

SOURCES = {
    "os_calls_summary": "OSRT_API",
    "os_calls": "OSRT_API",
    "cuda_api_summary": CALLS,
    "cuda_calls": CALLS,
    "gpu_graphs": GRAPHS,
    "gpu_transfers": COPIES,
    "gpu_transfer_summary": COPIES,
    "gpu_transfer_sizes": COPIES,
    "ranges": "NVTX_EVENTS",
    "range_summary": "NVTX_EVENTS",
    "gpu_kernels": KERNELS,
    "gpu_kernel_summary": KERNELS,
}
"""Where the rows of a table come from: what is lost there is missing here."""


def _domains(export: Export, thread: Ints, domain: Ints) -> Coded:
    """The names of the ranges' domains. Number 0 is the default domain and is never announced."""
    announced = export.rows("NVTX_EVENTS", "globalTid", "domainId", "text", "textId", where=f"eventType = {CREATED}")
    named: dict[tuple[int | None, int], str] = {}
    for tid, number, text, text_id in announced:
        name = export.string(text_id) if text_id is not None else (text or "")
        named.setdefault((_pid(MISSING if tid is None else tid), number), name)
    codes, (threads, domains) = distinct((thread, domain))
    pairs = zip(threads.tolist(), domains.tolist(), strict=True)
    return Coded(codes, [named.get((_pid(tid), number), None if number else "default") for tid, number in pairs])


def _full(domain: str | None, name: str) -> str:
    return f"{domain}:{name}" if domain and domain != "default" else name


def _pid(global_id: int) -> int | None:
    """The process, 24 bits of a serialised GlobalId."""
    return None if global_id == MISSING else global_id >> 24 & 0xFFFFFF


def _tid(global_id: int) -> int | None:
    """The thread, its lower 24 bits."""
    return None if global_id == MISSING else global_id & 0xFFFFFF


def _known(number: int) -> int | None:
    return None if number == MISSING else number


def _memory(kind: int) -> str | None:
    return MEMORY[kind] if 0 <= kind < len(MEMORY) else None


def _triple(x: int, y: int, z: int) -> str | None:
    return None if MISSING in (x, y, z) else f"{x},{y},{z}"


# ---------------------------------------------------------------- what the reader should know


def _notes(export: Export, tables: Sequence[Table]) -> Iterator[str]:
    kernels = next((table for table in tables if table.name == "gpu_kernels"), None)
    yield from _lost(export)
    yield from _hidden_in_graphs(tables)
    yield from _shared(export, kernels)
    if kernels is None and not export.gpus:
        yield "no GPU to trace: the recording names no NVIDIA GPU"
    for severity, text, times in _diagnostics(export):
        explains = kernels is None and bool(export.gpus) and "CUDA" in text
        if severity >= 3 or explains or text.startswith("Not all CUDA events"):
            yield f"nsys says: {text}" + (f" ({times} times)" if times > 1 else "")


def _lost(export: Export) -> Iterator[str]:
    if export.lost:
        shown = ", ".join(f"{count} of {table}" for table, count in sorted(export.lost.items()))
        yield f"the file is damaged; rows that could not be read, at least: {shown}"
    elif export.damaged:
        yield "the file is damaged; what was needed of it could be read"


def _hidden_in_graphs(tables: Sequence[Table]) -> Iterator[str]:
    graphs = next((table for table in tables if table.name == "gpu_graphs"), None)
    if graphs is not None:
        total_ms = sum(graphs.columns["duration_ns"]) / 1e6
        yield (
            f"{len(graphs)} launches of CUDA graphs ({total_ms:.1f} ms of GPU time) were traced as a whole: their "
            "kernels are not among gpu_kernels (--cuda-graph-trace=node shows them, at a cost)"
        )


def _shared(export: Export, kernels: Table | None) -> Iterator[str]:
    """Who used which GPU, where it was not one process on one."""
    if kernels is None or not isinstance(pids := kernels.columns["pid"], Coded):
        return
    devices = kernels.columns["device"]
    used = set(zip(pids.texts, devices.texts, strict=True)) if isinstance(devices, Coded) else set()
    if len(used) > 1 and None not in chain(*used):
        names_ = {pid: name for pid, name in export.rows("PROCESSES", "pid", "name") if name}
        shown = (
            f"process {pid}" + (f" ({names_[pid]})" if pid in names_ else "") + f" device {device}"
            for pid, device in sorted(used)
        )
        yield f"kernels of several processes or GPUs: {', '.join(shown)}"


def _diagnostics(export: Export) -> list[tuple[int, str, int]]:
    """Warnings (2) and errors (3) of the collection, each text once, with the number of processes that gave it."""
    counted: dict[tuple[int, str], int] = {}
    for severity, text in export.rows("DIAGNOSTIC_EVENT", "severity", "text", where="severity >= 2"):
        key = (severity, " ".join(str(text).split()))
        counted[key] = counted.get(key, 0) + 1
    return [(severity, text, times) for (severity, text), times in sorted(counted.items(), reverse=True)]
