"""What a torch.profiler trace knows of GPUs: kernels, copies and their summaries, how busy each GPU was, its gaps, and
how long launches took. All of it is empty for a trace without work of a GPU.

The names of copies, and of memory, stand in an event's name: `Memcpy HtoD (Pageable -> Device)` (libkineto's
CuptiActivity.cpp and cupti_strings.cpp). Kineto writes one process to a file, so that a correlation id is enough to
join work to the call that launched it; all kernels of a CUDA graph have that of the graph's launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import msgspec
import numpy as np

from orchestrator.formats import gpu_queue
from orchestrator.formats.events import MISSING, Ints, names, nullable, summary
from orchestrator.formats.gpu_queue import Host, Launches, Spans
from orchestrator.formats.kernel_names import communicates, function
from orchestrator.formats.kineto_events import CALL, COPY, KERNEL, RANGE, SET, SPAN, Calls, Trace, Work, at
from orchestrator.formats.kineto_ops import ROOT, joined
from orchestrator.tables import Table

MEMORY_KINDS = {
    "Pageable": "pageable", "Pinned": "pinned", "Device": "device", "Device Static": "device",
    "Managed": "managed", "Managed Static": "managed", "Array": "array",
}  # fmt: skip
QUEUE_KINDS = {KERNEL: gpu_queue.KERNEL, COPY: gpu_queue.COPY, SET: gpu_queue.SET}


def kernels(trace: Trace) -> Iterator[Table]:
    """Every kernel. The span of a range on the GPU is none."""
    work = trace.work.only(KERNEL)
    columns = {
        "device": nullable(work.device),
        "stream": nullable(work.stream),
        "start_ns": work.start,
        "duration_ns": work.duration,
        "name": names(work.name, trace.names.__getitem__),
        "short_name": names(work.name, lambda n: function(trace.names[n])),
        "grid": names(work.grid, lambda n: triple(trace.raws[n])),
        "block": names(work.block, lambda n: triple(trace.raws[n])),
        "registers": nullable(work.registers),
        "shared_bytes": nullable(work.shared),
        "correlation": nullable(work.correlation),
        "graph_id": nullable(work.graph),
    }
    yield Table("gpu_kernels", columns)


def kernel_summary(trace: Trace) -> Iterator[Table]:
    """The same by name."""
    work = trace.work.only(KERNEL)
    yield summary("gpu_kernel_summary", work.name, work.duration, trace.names.__getitem__)


def transfers(trace: Trace) -> Iterator[Table]:
    """Copies and memory sets under the names of `nsys stats`, and their summaries by time and by size."""
    work = trace.work.only(COPY, SET)
    used = np.unique(work.name).tolist()
    kinds = list(dict.fromkeys(transfer_name(trace.names[n]) for n in used))
    number = dict(zip(used, (kinds.index(transfer_name(trace.names[n])) for n in used), strict=True))
    kind = np.array([number[n] for n in work.name.tolist()], np.int64)
    memory = {n: memory_kinds(trace.names[n]) for n in used}
    columns = {
        "device": nullable(work.device),
        "stream": nullable(work.stream),
        "start_ns": work.start,
        "duration_ns": work.duration,
        "kind": names(kind, kinds.__getitem__),
        "bytes": nullable(work.bytes),
        "source": names(work.name, lambda n: memory[n][0]),
        "target": names(work.name, lambda n: memory[n][1]),
        "peer_device": nullable(np.where(work.source == work.device, work.target, work.source)),
        "correlation": nullable(work.correlation),
    }
    yield Table("gpu_transfers", columns)
    by_time = summary("gpu_transfer_summary", kind, work.duration, kinds.__getitem__, work.bytes)
    yield Table(by_time.name, {**by_time.columns, **_pageable(trace, work, memory, kind, kinds, by_time)})
    known = work.bytes != MISSING
    yield summary("gpu_transfer_sizes", kind[known], work.bytes[known], kinds.__getitem__, unit="bytes")


def _pageable(
    trace: Trace,
    work: Work,
    memory: Mapping[int, tuple[str | None, str | None]],
    kind: Ints,
    kinds: Sequence[str],
    by_time: Table,
) -> dict[str, list[int | None]]:
    """Of each kind in the summary the copies from or to pageable memory; unknown where a copy doesn't tell its memory,
    as none does on AMD."""
    columns: dict[str, list[int | None]] = {"pageable_count": [], "pageable_ns": [], "pageable_bytes": []}
    told = {n for n, (source, target) in memory.items() if target and (source or trace.names[n].startswith("Memset"))}
    pageable = np.isin(work.name, [n for n, found in memory.items() if "pageable" in found])
    for name in by_time.columns.get("name", ()):
        same = kind == kinds.index(name)
        known = {*np.unique(work.name[same]).tolist()} <= told
        size = work.bytes[same & pageable]
        columns["pageable_count"].append(len(size) if known else None)
        columns["pageable_ns"].append(int(work.duration[same & pageable].sum()) if known else None)
        columns["pageable_bytes"].append(int(size.sum()) if known and MISSING not in size else None)
    return columns


def cuda_api_summary(trace: Trace) -> Iterator[Table]:
    """Calls of the CUDA or HIP runtime and driver."""
    calls = trace.calls.only(CALL)
    yield summary("cuda_api_summary", calls.name, calls.end - calls.start, trace.names.__getitem__)


# ---------------------------------------------------------------- queues


QUEUES = ("gpu_utilization", "gpu_gaps", "gpu_launch_summary")


def queues(trace: Trace, wanted: Collection[str] = QUEUES) -> Iterator[Table]:
    """Those of QUEUES that are wanted, with all GPUs whose work says where it ran."""
    calls, ranges = trace.calls.only(CALL), trace.calls.only(RANGE)
    host = Host(_spans(trace, calls), _spans(trace, ranges))
    work = at(trace.work, np.flatnonzero((trace.work.kind != SPAN) & (trace.work.device != MISSING)))
    gpus = [_Gpu(trace, device, at(work, work.device == device), calls) for device in np.unique(work.device).tolist()]
    made: dict[str, Callable[[_Gpu], Mapping[str, Any]]] = {
        "gpu_utilization": _Gpu.utilization,
        "gpu_gaps": partial(_Gpu.gaps, host=host),
        "gpu_launch_summary": _Gpu.launches,
    }
    for name in QUEUES:
        if name in wanted:
            yield _stacked(name, [made[name](gpu) for gpu in gpus])


def _spans(trace: Trace, calls: Calls) -> Spans | None:
    return Spans(calls.thread, calls.start, calls.end, calls.name, trace.names.__getitem__) if len(calls) else None


def _stacked(name: str, parts: Sequence[Mapping[str, Any]]) -> Table:
    """The rows of all GPUs below one another."""
    columns = {column: [value for part in parts for value in _listed(part[column])] for column in (parts or ({},))[0]}
    return Table(name, columns)


def _listed(values: Any) -> list[Any]:
    return list(values.tolist() if isinstance(values, np.ndarray) else values)


class _Gpu:
    """One GPU: its work, and for each piece the place in `calls` of the call that launched it."""

    def __init__(self, trace: Trace, device: int, work: Work, calls: Calls) -> None:
        self.trace, self.device, self.work, self.calls = trace, device, work, calls
        # of several calls of one id the first is meant
        self.call = joined(calls.correlation[::-1], np.arange(len(calls))[::-1], work.correlation)
        communicating = [n for n in np.unique(work.name).tolist() if communicates(trace.names[n])]
        self.queue = gpu_queue.Work(
            start=work.start,
            end=work.start + work.duration,
            kind=np.array([QUEUE_KINDS.get(kind, 0) for kind in range(SPAN)], np.uint8)[work.kind],
            stream=work.stream,
            communication=np.isin(work.name, communicating) & (work.kind == KERNEL),
            launched=np.append(calls.start, MISSING)[self.call],
        )

    def utilization(self) -> dict[str, list[Any]]:
        row = {"device": self.device, "gpu": gpu_name(self.trace, self.device), **gpu_queue.utilization(self.queue)}
        return {name: [value] for name, value in row.items()}

    def gaps(self, host: Host) -> dict[str, Any]:
        found = gpu_queue.gaps(self.queue)
        thread = np.append(self.calls.thread, MISSING)[self.call[found.after]]
        return {
            "device": [self.device] * len(found),
            "before": self._names(found.before),
            "after": self._names(found.after),
            "thread": [None if number == MISSING else self.trace.threads[number][1] for number in thread.tolist()],
            **gpu_queue.gap_columns(found, thread, host),
        }

    def launches(self) -> dict[str, Any]:
        work, seen = self.work, np.flatnonzero((self.work.kind == KERNEL) & (self.call != ROOT))
        start, call = work.start[seen], self.call[seen]
        found = Launches(work.name[seen], start, start + work.duration[seen], call, self.calls.start, self.calls.end)
        columns = gpu_queue.launch_columns(found, self.trace.names.__getitem__)
        return {"device": [self.device] * len(columns["name"]), **columns}

    def _names(self, places: Ints) -> list[str]:
        return [work_name(self.trace.names[number]) for number in self.work.name[places].tolist()]


# ---------------------------------------------------------------- names


def gpu_name(trace: Trace, device: int) -> str | None:
    """What the trace calls this device."""
    listed = trace.about.get("deviceProperties")
    found = [one for one in listed if isinstance(one, dict) and one.get("id") == device] if listed else []
    return str(found[0]["name"]) if found and "name" in found[0] else None


def work_name(name: str) -> str:
    """A kernel's name, or that of `nsys stats` for a copy or memory set."""
    return transfer_name(name) if name.startswith(("Memcpy ", "Memset ")) else name


@cache
def transfer_name(name: str) -> str:
    """`[CUDA memcpy HtoD]` for `Memcpy HtoD (Pageable -> Device)`."""
    if name.startswith("Memset"):
        return "[CUDA memset]"
    found = re.match(r"Memcpy (\w+)", name)
    return f"[CUDA memcpy {found[1] if found else 'Unknown'}]"


def memory_kinds(name: str) -> tuple[str | None, str | None]:
    """The memory that was read from (of a memory set none) and written to. On AMD a copy says `Host`, which may be
    either pageable or pinned."""
    if found := re.search(r"\((?:([\w ]+) -> )?([\w ]+)\)", name):
        return MEMORY_KINDS.get(found[1]), MEMORY_KINDS.get(found[2])
    return None, None


def triple(raw: bytes) -> str | None:
    """`16,1,1` of a grid or block as the file has it; Triton's own events tell it in words."""
    values = msgspec.json.decode(raw) if raw else None
    return ",".join(map(str, values)) if isinstance(values, list) and len(values) == 3 else None
