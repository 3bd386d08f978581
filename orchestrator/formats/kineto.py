"""Reads traces of torch.profiler (Kineto's Chrome traces, since 2020), and dumps of key_averages(), into canonical
tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from orchestrator.errors import ParseError
from orchestrator.formats import heap, kineto_gpu
from orchestrator.formats.events import Ints, names, narrow, nullable
from orchestrator.formats.kineto_events import CALL, OP, PYTHON, RANGE, Calls, Trace, load
from orchestrator.formats.kineto_ops import ROOT, device_name, innermost, torch_ops
from orchestrator.model import Clock
from orchestrator.tables import SCHEMAS, Coded, Table

CLOCK_ERROR_NS = 36_000
"""How far times were found to be off, against clocks read inside the traced program."""
EPOCH_FROM_NS = 10**18
"""Times after September 2001 are counted from the Unix epoch, smaller ones from a start of their own."""


@dataclass(frozen=True)
class Content:
    """What one trace holds. Tables without rows are left out; all carry the rank."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int = 0
    world_size: int | None = None
    pid: int | None = None
    gpus: tuple[str, ...] = ()
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    """What the trace says of itself: schemaVersion, record_shapes, cupti_version, ..."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """Number of events with a duration by category, as the file names them."""
    truncated: bool = False
    """The file ends too early, or the profiler says that it stopped early."""

    @property
    def clock(self) -> Clock | None:
        """Microseconds after the trace's base, or (in older versions) after the epoch; None: after something else."""
        if not any(table.clock == "epoch" for table in self.tables):
            return None
        base = self.facts.get("baseTimeNanoseconds")
        return Clock(base if isinstance(base, int) else 0, 1e3, CLOCK_ERROR_NS, "the base time in the trace")


def read(path: Path, wanted: Set[str] | None = None) -> Content:
    """The tables of a trace, .json or gzip, under any name; of a file that is cut off, of what is whole, with a note.

    wanted: names of tables; all, if left out. Those of the GPU alone, without any of OF_OPERATORS, are there in two
    thirds of the time; nor is anything read that only tables outside of WITHOUT_LAUNCHES show.

    Raises ParseError for a file that is no such trace, or in which nothing can be read."""
    wanted = ALL if wanted is None else wanted
    with heap.kept():
        return _read(path, wanted)


def _read(path: Path, wanted: Set[str]) -> Content:
    trace = load(path, operators=bool(wanted & OF_OPERATORS), launches=bool(wanted - WITHOUT_LAUNCHES))
    rank, guessed = _rank(trace, path)
    tables = [_with(table, rank=rank) for table in _tables(trace, wanted) if len(table)]
    return Content(
        tables=tuple(tables),
        notes=(*_notes(trace), *guessed),
        rank=rank,
        world_size=_distributed(trace, "world_size"),
        pid=_pid(trace),
        gpus=_gpus(trace),
        facts={k: v for k, v in trace.about.items() if isinstance(v, (int, float, str))},
        counted={category: count for category, count in trace.counted.items() if category},
        truncated=trace.cut or any(EARLY in line for line in _log(trace, "INFO")),
    )


# ---------------------------------------------------------------- one function a table


TABLES: tuple[tuple[tuple[str, ...], Callable[[Trace], Iterator[Table]]], ...] = (
    (("gpu_kernels",), kineto_gpu.kernels),
    (("gpu_kernel_summary",), kineto_gpu.kernel_summary),
    (("gpu_transfers", "gpu_transfer_summary", "gpu_transfer_sizes"), kineto_gpu.transfers),
    (("cuda_api_summary",), kineto_gpu.cuda_api_summary),
    (("cuda_calls",), lambda trace: iter([cuda_calls(trace)])),
    (("op_spans",), lambda trace: iter([op_spans(trace)])),
    (("torch_ops",), lambda trace: iter([torch_ops(trace, has_gpu=bool(len(trace.work) or _gpus(trace)))])),
    (("ranges",), lambda trace: iter([ranges(trace)])),
    (("memory",), lambda trace: iter([memory(trace)])),
)
"""What is made of a trace, beside the queues of its GPUs, and by what."""
SPAN_KINDS = {OP: "op", RANGE: "range", PYTHON: "python"}
ALL = frozenset(name for names, _ in TABLES for name in names) | {*kineto_gpu.QUEUES}
OF_OPERATORS = {"gpu_gaps", "torch_ops", "op_spans", "ranges", "memory"}
"""Those for which it matters what ran on the CPU, beside the calls that launch."""
WITHOUT_LAUNCHES = {
    "gpu_kernel_summary", "gpu_utilization", "cuda_api_summary", "cuda_calls", "torch_ops", "op_spans", "ranges",
}  # fmt: skip
"""Those that show of the GPU's work only its names and times."""


def _tables(trace: Trace, wanted: Set[str]) -> Iterator[Table]:
    made = [table for names, make in TABLES if wanted & {*names} for table in make(trace) if table.name in wanted]
    if wanted & {*kineto_gpu.QUEUES}:
        made += kineto_gpu.queues(trace, wanted)
    pid = _pid(trace)
    for table in made:
        keyed = "pid" not in table.columns and any(column.name == "pid" for column in SCHEMAS[table.name])
        yield _with(_timed(trace, table), **({"pid": pid} if keyed else {}))


def ranges(trace: Trace) -> Table:
    """record_function, and the steps of the profiler's schedule."""
    return Table("ranges", _spans(trace, trace.calls.only(RANGE)))


def cuda_calls(trace: Trace) -> Table:
    """Calls of the CUDA or HIP runtime and driver."""
    calls = trace.calls.only(CALL)
    return Table("cuda_calls", {**_spans(trace, calls), "correlation": nullable(narrow(calls.correlation))})


def op_spans(trace: Trace) -> Table:
    """Operators, the same ranges once more, and Python functions where they were recorded: what they lie within."""
    calls = trace.calls.only(*SPAN_KINDS)
    return Table("op_spans", {**_spans(trace, calls), "kind": names(calls.kind, SPAN_KINDS.__getitem__)})


def _spans(trace: Trace, calls: Calls) -> dict[str, Any]:
    """The columns of all that runs on threads."""
    return {
        **_threads(trace, calls.thread),
        "name": Coded(narrow(calls.name), trace.names),
        "start_ns": calls.start,
        "duration_ns": calls.end - calls.start,
    }


def memory(trace: Trace) -> Table:
    """Every allocation and release, with the innermost operator or range that was open on its thread."""
    events = trace.memory
    where = innermost(trace.calls, events.time, events.thread).tolist()
    columns: dict[str, Any] = {
        **_threads(trace, events.thread),
        "time_ns": events.time,
        "device": list(map(device_name, events.device_type.tolist(), events.device_id.tolist())),
        "address": nullable(events.address),
        "bytes": nullable(events.changed),
        "allocated_bytes": nullable(events.allocated),
        "reserved_bytes": nullable(events.reserved),
        "op": [None if place == ROOT else trace.names[trace.calls.name[place]] for place in where],
    }
    return Table("memory", columns)


# ---------------------------------------------------------------- columns


def _threads(trace: Trace, numbers: Ints) -> dict[str, Coded]:
    codes = narrow(numbers)
    return {
        "pid": Coded(codes, [pid for pid, _ in trace.threads]),
        "thread": Coded(codes, [thread for _, thread in trace.threads]),
    }


def _timed(trace: Trace, table: Table) -> Table:
    """With what is known of its clock, where it has times that stand for themselves."""
    if not {"start_ns", "time_ns"} & table.columns.keys() or (_first_ns(trace) or 0) < EPOCH_FROM_NS:
        return table
    return replace(table, clock="epoch", clock_error_ns=CLOCK_ERROR_NS)


def _with(table: Table, **same: int | None) -> Table:
    """The table with columns in front that are the same in all rows, or that are unknown."""
    return replace(table, columns={**{name: [value] * len(table) for name, value in same.items()}, **table.columns})


# ---------------------------------------------------------------- what the trace says of itself


def _first_ns(trace: Trace) -> int | None:
    starts = (trace.calls.start, trace.work.start, trace.memory.time)
    return min((int(times[0]) for times in starts if len(times)), default=None)


def _rank(trace: Trace, path: Path) -> tuple[int, list[str]]:
    """The rank, and what is to be said when it had to be guessed: not even all traces of many processes name one."""
    if (rank := _distributed(trace, "rank")) is not None:
        return rank, []
    if found := re.search(r"rank[-_]?(\d{1,9})(?!\d)", path.name, re.I):
        return int(found[1]), [f"the trace names no rank: {found[1]}, from the name of the file"]
    return 0, ["the trace names no rank: taken for rank 0"]


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
    threads = trace.calls.thread[trace.calls.kind != PYTHON]
    found = Counter({trace.threads[thread][0]: int(n) for thread, n in enumerate(np.bincount(threads)) if n})
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
    elif not len(trace.work):
        yield "no GPU events" + (f", though the process saw {_gpus(trace)[0]}" if _gpus(trace) else "")
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
