"""Reads traces of torch.profiler (Kineto's Chrome traces, since 2020), and dumps of key_averages(), into canonical
tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orchestrator.errors import ParseError
from orchestrator.formats.events import Ints, names, nullable, summary
from orchestrator.formats.kineto_events import CALL, COPY, KERNEL, OP, RANGE, SET, Trace, load
from orchestrator.formats.kineto_ops import ROOT, device_name, innermost, torch_ops
from orchestrator.tables import Table

CLOCK_ERROR_NS = 36_000
"""How far times were found to be off, against clocks read inside the traced program."""
EPOCH_FROM_NS = 10**18
"""Times after September 2001 are counted from the Unix epoch, smaller ones from a start of their own."""


@dataclass(frozen=True)
class Content:
    """What one trace holds. Tables without rows are left out; all carry the rank, where the trace names one."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    pid: int | None = None
    gpus: tuple[str, ...] = ()
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    """What the trace says of itself: schemaVersion, record_shapes, cupti_version, ..."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Number of events with a duration by category, as the file names them."""
    truncated: bool = False
    """The file ends too early, or the profiler says that it stopped early."""


def read(path: Path) -> Content:
    """The tables of a trace, .json or gzip, under any name; of a file that is cut off, of what is whole, with a note.

    Raises ParseError for a file that is no such trace, or in which nothing can be read."""
    trace = load(path)
    rank = _distributed(trace, "rank")
    same = {} if rank is None else {"rank": rank}
    tables = [_with(table, **same) for table in _tables(trace) if len(table)]
    return Content(
        tables=tuple(tables),
        notes=tuple(_notes(trace)),
        rank=rank,
        world_size=_distributed(trace, "world_size"),
        pid=_pid(trace),
        gpus=_gpus(trace),
        facts={k: v for k, v in trace.about.items() if isinstance(v, (int, float, str))},
        counted={category: count for category, count in trace.counted.items() if category},
        truncated=trace.cut or any(EARLY in line for line in _log(trace, "INFO")),
    )


# ---------------------------------------------------------------- one function a table


def _tables(trace: Trace) -> Iterator[Table]:
    yield from gpu_kernels(trace)
    yield from gpu_transfers(trace)
    yield cuda_api_summary(trace)
    yield ranges(trace)
    yield memory(trace)
    yield _with(torch_ops(trace, has_gpu=bool(len(trace.work) or _gpus(trace))), pid=_pid(trace))


def gpu_kernels(trace: Trace) -> Iterator[Table]:
    """Every kernel, and their summary by name. The span of a range on the GPU is no kernel."""
    work = trace.work.only(KERNEL)
    columns = {
        "device": nullable(work.ints(lambda a: a.device)),
        "stream": nullable(work.ints(lambda a: a.stream)),
        "start_ns": work.start,
        "duration_ns": work.duration,
        "name": names(work.name, trace.names.__getitem__),
        "short_name": names(work.name, lambda n: short_name(trace.names[n])),
        "grid": [_triple(a.grid) for a in work.args],
        "block": [_triple(a.block) for a in work.args],
        "registers": nullable(work.ints(lambda a: a.registers)),
        "shared_bytes": nullable(work.ints(lambda a: a.shared)),
        "correlation": nullable(work.ints(lambda a: a.correlation)),
        "graph_id": nullable(work.ints(lambda a: a.graph or None)),
    }
    yield _with(_timed(trace, "gpu_kernels", columns), pid=_pid(trace))
    yield summary("gpu_kernel_summary", work.name, work.duration, trace.names.__getitem__)


def gpu_transfers(trace: Trace) -> Iterator[Table]:
    """Copies and memory sets under the names of `nsys stats`, and their summary."""
    work = trace.work.only(COPY, SET)
    kinds: dict[str, int] = {}
    kind = np.array([kinds.setdefault(transfer_name(trace.names[n]), len(kinds)) for n in work.name], np.int64)
    size = work.ints(lambda a: a.bytes)
    columns = {
        "device": nullable(work.ints(lambda a: a.device)),
        "stream": nullable(work.ints(lambda a: a.stream)),
        "start_ns": work.start,
        "duration_ns": work.duration,
        "kind": names(kind, list(kinds).__getitem__),
        "bytes": nullable(size),
        "correlation": nullable(work.ints(lambda a: a.correlation)),
    }
    yield _with(_timed(trace, "gpu_transfers", columns), pid=_pid(trace))
    yield summary("gpu_transfer_summary", kind, work.duration, list(kinds).__getitem__, size)


def cuda_api_summary(trace: Trace) -> Table:
    """Calls of the CUDA or HIP runtime and driver."""
    calls = trace.calls.only(CALL)
    return summary("cuda_api_summary", calls.name, calls.end - calls.start, trace.names.__getitem__)


def ranges(trace: Trace) -> Table:
    """record_function, and the steps of the profiler's schedule."""
    calls = trace.calls.only(RANGE)
    columns = {
        **_threads(trace, calls.thread),
        "name": names(calls.name, trace.names.__getitem__),
        "start_ns": calls.start,
        "duration_ns": calls.end - calls.start,
    }
    return _timed(trace, "ranges", columns)


def memory(trace: Trace) -> Table:
    """Every allocation and release, with the innermost operator or range that was open on its thread."""
    events = trace.memory
    where = innermost(trace.calls, events.time, events.thread).tolist()
    columns = {
        **_threads(trace, events.thread),
        "time_ns": events.time,
        "device": [device_name(a) for a in events.args],
        "address": nullable(events.ints(lambda a: a.address)),
        "bytes": nullable(events.ints(lambda a: a.changed)),
        "allocated_bytes": nullable(events.ints(lambda a: a.allocated)),
        "reserved_bytes": nullable(events.ints(lambda a: a.reserved)),
        "op": [None if place == ROOT else trace.names[trace.calls.name[place]] for place in where],
    }
    return _timed(trace, "memory", columns)


# ---------------------------------------------------------------- columns


def transfer_name(name: str) -> str:
    """`[CUDA memcpy HtoD]` for `Memcpy HtoD (Pageable -> Device)`."""
    if name.startswith("Memset"):
        return "[CUDA memset]"
    found = re.match(r"Memcpy (\w+)", name)
    return f"[CUDA memcpy {found[1] if found else 'Unknown'}]"


@cache
def short_name(name: str) -> str:
    """The base name of a demangled kernel: without return type, namespaces, template arguments and parameters."""
    plain = name.replace("(anonymous namespace)::", "")
    while (shorter := re.sub(r"(?<!operator)<[^<>]*>", "", plain)) != plain:
        plain = shorter
    return plain.partition("(")[0].strip().rpartition(" ")[2].rpartition("::")[2] or name


def _triple(values: Any) -> str | None:
    return ",".join(map(str, values)) if isinstance(values, list) and len(values) == 3 else None


def _threads(trace: Trace, numbers: Ints) -> dict[str, list[int | None]]:
    found = [trace.threads[n] for n in numbers.tolist()]
    return {"pid": [pid for pid, _ in found], "thread": [thread for _, thread in found]}


def _timed(trace: Trace, name: str, columns: Mapping[str, Any]) -> Table:
    if (_first_ns(trace) or 0) < EPOCH_FROM_NS:
        return Table(name, columns)
    return Table(name, columns, clock="epoch", clock_error_ns=CLOCK_ERROR_NS)


def _with(table: Table, **same: int | None) -> Table:
    """The table with columns in front that are the same in all rows, or that are unknown."""
    return replace(table, columns={**{name: [value] * len(table) for name, value in same.items()}, **table.columns})


# ---------------------------------------------------------------- what the trace says of itself


def _first_ns(trace: Trace) -> int | None:
    starts = (trace.calls.start, trace.work.start, trace.memory.time)
    return min((int(times[0]) for times in starts if len(times)), default=None)


def _distributed(trace: Trace, key: str) -> int | None:
    info = trace.about.get("distributedInfo")
    value = info.get(key) if isinstance(info, dict) else None
    return value if isinstance(value, int) else None


def _gpus(trace: Trace) -> tuple[str, ...]:
    devices = trace.about.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    return tuple(str(device.get("name", "unnamed GPU")) for device in listed if isinstance(device, dict))


def _pid(trace: Trace) -> int | None:
    """The process that most calls were made in. Python functions may stand under process 0."""
    calls = trace.calls.only(OP, RANGE, CALL)
    found = Counter({trace.threads[thread][0]: int(n) for thread, n in enumerate(np.bincount(calls.thread)) if n})
    return found.most_common(1)[0][0] if found else None


EARLY = "stopped early? = 1"


def _log(trace: Trace, level: str) -> list[str]:
    """What Kineto logged while it recorded, which it puts into the trace."""
    lines = trace.about.get(level)
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _notes(trace: Trace) -> Iterator[str]:
    """What a reader of the tables should know."""
    if trace.cut:
        yield f"the trace is cut off or damaged: {sum(trace.counted.values())} events could be read"
    if trace.dropped:
        yield f"{trace.dropped} of {sum(trace.counted.values()) + trace.dropped} events could not be read"
    if not any(trace.counted.values()):
        yield "the trace holds no events"
    elif _gpus(trace) and not len(trace.work):
        yield f"the trace holds no work of a GPU, though the process saw {_gpus(trace)[0]}"
    if any(EARLY in line for line in _log(trace, "INFO")):
        yield "torch.profiler says: CUPTI stopped early, so that the end of the GPU's work is missing"
    said = Counter(line.partition("] ")[2] or line for level in ("ERROR", "WARNING") for line in _log(trace, level))
    for line, times in said.items():
        yield f"torch.profiler says: {line}" + (f" ({times} times)" if times > 1 else "")
    if trace.failed_allocations:
        yield f"allocations that failed for want of memory: {trace.failed_allocations}"


# ---------------------------------------------------------------- key_averages()


class Average(msgspec.Struct):
    """One row of `key_averages()`, times in microseconds. null: not recorded."""

    key: str
    device_type: str
    count: int
    input_shapes: str | None = None
    cpu_time_total: float | None = None
    self_cpu_time_total: float | None = None
    device_time_total: float | None = None
    self_device_time_total: float | None = None
    cpu_memory_usage: int | None = None
    self_cpu_memory_usage: int | None = None
    device_memory_usage: int | None = None
    self_device_memory_usage: int | None = None
    flops: int | None = None


class Averages(msgspec.Struct):
    """A dump of them."""

    schema: int
    rows: list[Average]


def averages(path: Path, rank: int | None = None, pid: int | None = None) -> Table:
    """The table `torch_ops` from a dump of key_averages() that was written inside the program.

    Raises ParseError for a file that is none."""
    try:
        dump = msgspec.json.decode(path.read_bytes(), type=Averages)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ParseError(f"{path.name} is no dump of key_averages(): {error}") from error
    if dump.schema != 1:
        raise ParseError(
            f"{path.name} is a dump of key_averages() in version {dump.schema}; this profrun reads version 1"
        )
    rows = (
        (
            rank, pid, row.key, row.device_type.lower(), row.input_shapes, row.count,
            _ns(row.cpu_time_total), _ns(row.self_cpu_time_total),
            _ns(row.device_time_total), _ns(row.self_device_time_total),
            row.cpu_memory_usage, row.self_cpu_memory_usage, row.device_memory_usage, row.self_device_memory_usage,
            row.flops,
        )
        for row in dump.rows
    )  # fmt: skip
    return Table.of("torch_ops", rows)


def _ns(us: float | None) -> int | None:
    return None if us is None else round(us * 1000)
