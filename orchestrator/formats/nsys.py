"""Reads what `nsys export --type sqlite` writes, in any schema since 2021, into canonical tables.

The schema is described in NVIDIA's Nsight Systems user guide ("SQLite Schema Reference"). Tables are made when they get
rows, columns come and go with the versions: everything is asked for before it is read.
The figures of the summaries follow the SQL of `nsys stats` and are equal to its output, digit for digit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.errors import ParseError
from orchestrator.formats.events import MISSING, Ints, names, nullable, summary, triples
from orchestrator.tables import Table

CLOCK_ERROR_NS = 10_000
"""How far the session's start in epoch time was found to be off, against clocks read inside the traced program."""

COPY_KINDS = (
    "Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
)  # fmt: skip
MANAGED_KINDS = {11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""CUDA_MEMCPY_OPER: migrations of managed memory are numbered after the copies."""
MEMSET = -1
"""Stands beside the kinds of copies for setting memory, which has a table of its own."""

OS_CALL = 27
"""Event class of a finished call in OSRT_API; others mark the start and end of tracing."""
RANGE_TYPES = (59, 60, 70, 71)
"""NVTX_EVENTS.eventType of push/pop and start/end ranges, live and imported from text."""
DOMAIN_CREATED = 75


@dataclass(frozen=True)
class Content:
    """What one export holds. Tables without rows are left out: nothing of the kind was traced, or nothing happened."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    version: str | None = None
    start_epoch_ns: int | None = None
    """Start of the session; None in files of 2021, whose times are relative."""


def read(path: Path) -> Content:
    """The tables of an export. Raises ParseError for a file that is none, or that is damaged."""
    with _opened(path) as export:
        tables = [table for make in TABLES for table in make(export) if len(table)]
        return Content(tuple(tables), tuple(_notes(export)), export.gpus, export.version, export.start_epoch_ns)


# ---------------------------------------------------------------- the file


@contextmanager
def _opened(path: Path) -> Iterator[Export]:
    """The export, opened so that nothing beside it is written or locked; whatever SQLite minds becomes a ParseError."""
    if not path.is_file() or not path.stat().st_size:
        raise ParseError(f"{path.name} is {'empty' if path.is_file() else 'missing'}")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.text_factory = lambda raw: raw.decode("utf-8", "replace")  # paths and names may be any bytes
            export = Export(db)
            if not export.has("StringIds", "value"):
                raise ParseError(f"{path.name} is a database, but no export of nsys: it has no table StringIds")
            yield export
    except (sqlite3.Error, ValueError, TypeError, OverflowError) as error:
        raise ParseError(f"{path.name} is no readable export of nsys: {error}") from error


@dataclass
class Export:
    """An open export: which tables and columns it has, its strings, its clock."""

    db: sqlite3.Connection
    columns: dict[str, set[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = "SELECT m.name, c.name FROM sqlite_master m, pragma_table_info(m.name) c WHERE m.type = 'table'"
        for table, column in self.db.execute(asked):
            self.columns.setdefault(table, set()).add(column)

    def has(self, table: str, column: str) -> bool:
        return column in self.columns.get(table, ())

    def holds(self, table: str) -> bool:
        """Whether the table has rows; some exports also make the empty ones."""
        return any(True for _ in self.rows(table, where="1 LIMIT 1"))

    def rows(self, table: str, *columns: str, where: str = "1") -> Iterable[tuple[Any, ...]]:
        """The table's rows; columns that it does not have are None, a missing table has no rows."""
        if table not in self.columns:
            return ()
        shown = [f'"{c}"' if c in self.columns[table] else "NULL" for c in columns] or ["1"]
        return self.db.execute(f'SELECT {", ".join(shown)} FROM "{table}" WHERE {where}')

    def ints(self, table: str, *columns: str, where: str = "1") -> tuple[Ints, ...]:
        """The columns as arrays, with MISSING for NULL and for columns that this schema lacks."""
        if table not in self.columns:
            return tuple(np.empty(0, np.int64) for _ in columns)
        shown = [f'ifnull("{c}", {MISSING})' if c in self.columns[table] else str(MISSING) for c in columns]
        cursor = self.db.execute(f'SELECT {", ".join(shown)} FROM "{table}" WHERE {where}')
        flat = np.fromiter(chain.from_iterable(cursor), np.int64)
        return tuple(np.ascontiguousarray(column) for column in flat.reshape(-1, len(columns)).T)

    def events(self, table: str, *columns: str, where: str = "1") -> tuple[Ints, ...]:
        """Duration and the columns of the events that have an end."""
        start, end, *more = self.ints(table, "start", "end", *columns, where=f"{where} AND end IS NOT NULL")
        return (end - start, *more)

    @cached_property
    def strings(self) -> dict[int, str]:
        return dict(self.db.execute("SELECT id, value FROM StringIds"))

    def string(self, number: int) -> str:
        return self.strings.get(number) or ("(unnamed)" if number == MISSING else f"(string {number})")

    @cached_property
    def start_epoch_ns(self) -> int | None:
        found = next(iter(self.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), (None,))
        return found[0] or None

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        return tuple(str(name or "unnamed GPU") for (name,) in self.rows("TARGET_INFO_GPU", "name"))

    @cached_property
    def version(self) -> str | None:
        tables = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # since 2023.3; 2022.1 to 2023.2; none before
        found = chain.from_iterable(self.rows(t, "value", where="name = 'EXPORT_PRODUCT_VERSION'") for t in tables)
        return next((value for (value,) in found), None)

    def timed(self, name: str, start: Ints, columns: Mapping[str, Any]) -> Table:
        """A table of events in the order of their start (ns of the session), on the best clock that there is."""
        order = np.argsort(start, kind="stable")
        places = order.tolist()
        data = {"start_ns": start + (self.start_epoch_ns or 0), **columns}
        data = {k: v[order] if isinstance(v, np.ndarray) else [v[i] for i in places] for k, v in data.items()}
        if self.start_epoch_ns is None:
            return Table(name, data)
        return Table(name, data, clock="epoch", clock_error_ns=CLOCK_ERROR_NS)


# ---------------------------------------------------------------- one function a table


def os_calls_summary(export: Export) -> Iterator[Table]:
    """OSRT_API as `nsys stats` osrtsum / osrt_sum shows it."""
    where = f"eventClass = {OS_CALL}" if export.has("OSRT_API", "eventClass") else "1"
    durations, name = export.events("OSRT_API", "nameId", where=where)
    yield summary("os_calls_summary", name, durations, export.string)


def cuda_api_summary(export: Export) -> Iterator[Table]:
    """Calls of the CUDA runtime and driver, as cudaapisum / cuda_api_sum shows them."""
    durations, name = export.events("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId")
    yield summary("cuda_api_summary", name, durations, lambda n: _without_version(export.string(n)))


def gpu_kernels(export: Export) -> Iterator[Table]:
    """Every kernel, and their summary by name over all grids and blocks, as cuda_gpu_kern_sum shows it."""
    fields = ("start", "end", "demangledName", "shortName", "deviceId", "streamId", "globalPid", "registersPerThread",
              "staticSharedMemory", "dynamicSharedMemory", "correlationId", "graphId")  # fmt: skip
    shape = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    start, end, name, short, device, stream, pid, registers, static, dynamic, correlation, graph, *sizes = export.ints(
        "CUPTI_ACTIVITY_KIND_KERNEL", *fields, *shape, where="end IS NOT NULL"
    )
    columns = {
        "pid": nullable(_pid(pid)),
        "device": nullable(device),
        "stream": nullable(stream),
        "duration_ns": end - start,
        "name": names(name, export.string),
        "short_name": names(short, export.string),
        "grid": triples(*sizes[:3]),
        "block": triples(*sizes[3:]),
        "registers": nullable(registers),
        "shared_bytes": nullable(np.where((static == MISSING) | (dynamic == MISSING), MISSING, static + dynamic)),
        "correlation": nullable(correlation),
        "graph_id": nullable(np.where(graph == 0, MISSING, graph)),
    }
    yield export.timed("gpu_kernels", start, columns)
    yield summary("gpu_kernel_summary", name, end - start, export.string)


def gpu_transfers(export: Export) -> Iterator[Table]:
    """Copies and memory sets, and their summary as gpumemtimesum and gpumemsizesum show it."""
    fields = ("start", "end", "bytes", "deviceId", "streamId", "globalPid", "correlationId")
    copies = export.ints("CUPTI_ACTIVITY_KIND_MEMCPY", *fields, "copyKind", where="end IS NOT NULL")
    sets = export.ints("CUPTI_ACTIVITY_KIND_MEMSET", *fields, where="end IS NOT NULL")
    both = (*sets, np.full(len(sets[0]), MEMSET))
    start, end, size, device, stream, pid, correlation, kind = map(np.concatenate, zip(copies, both, strict=True))
    columns = {
        "pid": nullable(_pid(pid)),
        "device": nullable(device),
        "stream": nullable(stream),
        "duration_ns": end - start,
        "kind": names(kind, transfer_name),
        "bytes": nullable(size),
        "correlation": nullable(correlation),
    }
    yield export.timed("gpu_transfers", start, columns)
    yield summary("gpu_transfer_summary", kind, end - start, transfer_name, size)


def ranges(export: Export) -> Iterator[Table]:
    """NVTX ranges of all domains. One that was still open when the recording ended has no duration."""
    domains = _domains(export)
    wanted = f"eventType IN ({', '.join(map(str, RANGE_TYPES))})"
    rows = export.rows("NVTX_EVENTS", "start", "end", "globalTid", "domainId", "text", "textId", where=wanted)
    found = [
        (start, _span(start, end), *_ids(tid), domains.get((_ids(tid)[0], domain)), _text(export, text, text_id))
        for start, end, tid, domain, text, text_id in rows
    ]
    start, *more = zip(*found, strict=True) if found else ((), (), (), (), (), ())
    columns = dict(zip(("duration_ns", "pid", "thread", "domain", "name"), more, strict=True))
    yield export.timed("ranges", np.array(start, np.int64), columns)


TABLES: tuple[Callable[[Export], Iterator[Table]], ...] = (
    os_calls_summary, cuda_api_summary, gpu_kernels, gpu_transfers, ranges,
)  # fmt: skip


def transfer_name(kind: int) -> str:
    """The short spelling of `nsys stats`; versions from 2023 write Host-to-Device for HtoD and so on."""
    if kind == MEMSET:
        return "[CUDA memset]"
    if kind in MANAGED_KINDS:
        return f"[CUDA Unified Memory memcpy {MANAGED_KINDS[kind]}]"
    return f"[CUDA memcpy {COPY_KINDS[kind] if 0 <= kind < len(COPY_KINDS) else f'kind {kind}'}]"


def _domains(export: Export) -> dict[tuple[int | None, int], str]:
    """The names of the NVTX domains, by process and number. Number 0 is the default domain and is never announced."""
    rows = export.rows("NVTX_EVENTS", "globalTid", "domainId", "text", "textId", where=f"eventType = {DOMAIN_CREATED}")
    named = {(_ids(tid)[0], domain): _text(export, text, text_id) for tid, domain, text, text_id in rows}
    pids = {_ids(tid)[0] for (tid,) in export.rows("NVTX_EVENTS", "globalTid")}
    return {**{(pid, 0): "default" for pid in pids}, **named}


def _text(export: Export, text: str | None, text_id: int | None) -> str:
    """A registered string, or the text that came with the event."""
    return export.string(text_id) if text_id is not None else (text or "")


def _span(start: int, end: int | None) -> int | None:
    return None if end is None else end - start


def _ids(global_tid: int | None) -> tuple[int | None, int | None]:
    """Process and thread id, 24 bits each, of a serialised GlobalId."""
    return (None, None) if global_tid is None else (global_tid >> 24 & 0xFFFFFF, global_tid & 0xFFFFFF)


def _pid(global_pid: Ints) -> Ints:
    return np.where(global_pid == MISSING, MISSING, global_pid >> 24 & 0xFFFFFF)


def _without_version(name: str) -> str:
    """cudaMalloc for cudaMalloc_v3020: four digits are cut off, as nsys does; longer ones are part of the name."""
    return name[:-6] if name[-6:-4] == "_v" else name


# ---------------------------------------------------------------- what the reader should know


def _notes(export: Export) -> Iterator[str]:
    kernels = export.holds("CUPTI_ACTIVITY_KIND_KERNEL")
    yield from _hidden_in_graphs(export)
    if not kernels and not export.gpus:
        yield "no GPU to trace: the recording names no NVIDIA GPU"
    for severity, text, times in _diagnostics(export):
        explains = not kernels and bool(export.gpus) and "CUDA" in text
        if severity >= 3 or explains or text.startswith("Not all CUDA events"):
            yield f"nsys says: {text}" + (f" ({times} times)" if times > 1 else "")


def _hidden_in_graphs(export: Export) -> Iterator[str]:
    (durations,) = export.events("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    if len(durations):
        yield (
            f"{len(durations)} launches of CUDA graphs ({durations.sum() / 1e6:.1f} ms of GPU time) were traced as a "
            "whole: their kernels are not among gpu_kernels (--cuda-graph-trace=node shows them, at a cost)"
        )


def _diagnostics(export: Export) -> list[tuple[int, str, int]]:
    """Warnings (2) and errors (3) of the collection, each text once, with the number of processes that gave it."""
    counted: dict[tuple[int, str], int] = {}
    for severity, text in export.rows("DIAGNOSTIC_EVENT", "severity", "text", where="severity >= 2"):
        key = (severity, " ".join(str(text).split()))
        counted[key] = counted.get(key, 0) + 1
    return [(severity, text, times) for (severity, text), times in sorted(counted.items(), reverse=True)]
