"""Makes recordings of programs on a GPU whose bottleneck is known: a small model of a host thread and of streams,
written as nsys exports it (SQLite) or as torch.profiler does (Kineto's JSON)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

US, MS = 1_000, 1_000_000
EPOCH_NS = 1_700_000_000_000_000_000

GEMM = "ampere_sgemm_128x64_tn"
ADD = "void at::native::vectorized_elementwise_kernel<(int)4, at::native::CUDAFunctor_add<float>>(int, T2, T3)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)"
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
KINDS = {"HtoD": (1, "Pageable", "Device"), "DtoH": (2, "Device", "Pageable")}


@dataclass(frozen=True)
class Work:
    """A kernel or a copy on the GPU. size: bytes of a copy."""

    kind: str
    name: str
    start: int
    end: int
    stream: int
    correlation: int
    size: int = 0
    pinned: bool = False


@dataclass(frozen=True)
class Span:
    """A call or a range of the host's thread."""

    name: str
    start: int
    end: int
    correlation: int = 0


@dataclass
class Program:
    """What has happened so far. Times in ns from the start of the recording; the host is at `now`."""

    now: int = 10 * MS
    pid: int = 4321
    tid: int = 4321
    rank: int | None = None
    call_ns: int = 5 * US
    work: list[Work] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    ranges: list[Span] = field(default_factory=list)
    os_calls: list[Span] = field(default_factory=list)
    free: dict[int, int] = field(default_factory=dict)

    def compute(self, ns: int) -> None:
        """The host does something else."""
        self.now += ns

    def call(self, name: str, ns: int) -> int:
        """A call of CUDA; its correlation id."""
        number = len(self.calls) + 1
        self.calls.append(Span(name, self.now, self.now + ns, number))
        self.now += ns
        return number

    def os_call(self, name: str, ns: int) -> None:
        self.os_calls.append(Span(name, self.now, self.now + ns))
        self.now += ns

    def kernel(self, name: str, ns: int, stream: int = 7, after: int | None = None) -> None:
        """Launches a kernel; `after`: a stream whose work it waits for."""
        start = max(self.now + 3 * US, self.free.get(stream, 0) + US, self.free.get(-1 if after is None else after, 0))
        self._put("kernel", name, start, ns, stream, self.call("cudaLaunchKernel", self.call_ns))

    def copy(self, kind: str, size: int, ns: int, *, pinned: bool = False) -> None:
        """A copy; from or to pageable memory the call waits for it."""
        start = max(self.now + 4 * US, self.free.get(7, 0) + US)
        call_ns = self.call_ns if pinned else start + ns + 2 * US - self.now
        self._put(f"copy {kind}", kind, start, ns, 7, self.call("cudaMemcpyAsync", call_ns), size, pinned)

    def sync(self, name: str = "cudaStreamSynchronize") -> None:
        self.call(name, max(max(self.free.values(), default=0) - self.now, 0) + 2 * US)

    def item(self) -> None:
        """`.item()`: four bytes are copied to the host, and it waits for them."""
        self.copy("DtoH", 4, 2 * US)
        self.sync()

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        start = self.now
        yield
        self.ranges.append(Span(name, start, self.now))

    def _put(self, kind: str, name: str, start: int, ns: int, stream: int, number: int, *more: Any) -> None:
        self.work.append(Work(kind, name, start, start + ns, stream, number, *more))
        self.free[stream] = start + ns


# ---------------------------------------------------------------- as nsys writes it


def write_nsys(program: Program, path: Path) -> Path:
    """An SQLite export of nsys 2024."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers) + 1)

    pid, tid = program.pid << 24, program.pid << 24 | program.tid
    kernels = [
        (w.start, w.end, 0, 1, w.stream, w.correlation, pid, number(w.name), number(w.name), number(w.name), 64, 256)
        for w in program.work
        if w.kind == "kernel"
    ]
    copies = [
        (w.start, w.end, 0, 1, w.stream, w.correlation, pid, w.size, KINDS[w.name][0], *_memory(w))
        for w in program.work
        if w.kind != "kernel"
    ]
    calls = [(c.start, c.end, 0, tid, c.correlation, number(f"{c.name}_v7000")) for c in program.calls]
    ranges = [(r.start, r.end, 59, tid, 0, r.name) for r in program.ranges]
    os_calls = [(c.start, c.end, 27, tid, number(c.name)) for c in program.os_calls]
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as db:
        _table(db, "StringIds", "id INTEGER PRIMARY KEY, value TEXT", [(n, text) for text, n in numbers.items()])
        _table(db, "TARGET_INFO_SESSION_START_TIME", "utcEpochNs INTEGER", [(EPOCH_NS,)])
        _table(db, "TARGET_INFO_GPU", "id INTEGER, name TEXT", [(0, "NVIDIA A100-SXM4-80GB")])
        sizes = "gridX, blockX"
        _table(db, "CUPTI_ACTIVITY_KIND_KERNEL", f"{_WORK}, demangledName, shortName, mangledName, {sizes}", kernels)
        _table(db, "CUPTI_ACTIVITY_KIND_MEMCPY", f"{_WORK}, bytes, copyKind, srcKind, dstKind", copies)
        _table(db, "CUPTI_ACTIVITY_KIND_RUNTIME", "start, end, eventClass, globalTid, correlationId, nameId", calls)
        _table(db, "NVTX_EVENTS", "start, end, eventType, globalTid, domainId, text", ranges)
        _table(db, "OSRT_API", "start, end, eventClass, globalTid, nameId", os_calls)
    db.close()
    return path


_WORK = "start, end, deviceId, contextId, streamId, correlationId, globalPid"


def _table(db: sqlite3.Connection, name: str, columns: str, rows: list[tuple[Any, ...]]) -> None:
    """Tables without rows are not there, as in real exports."""
    if rows:
        typed = columns if " " in columns.split(", ")[0] else ", ".join(f"{c} {_type(c)}" for c in columns.split(", "))
        db.execute(f"CREATE TABLE {name} ({typed})")
        db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def _type(column: str) -> str:
    return "TEXT" if column == "text" else "INTEGER"


def _memory(work: Work) -> tuple[int, int]:
    """ENUM_CUDA_MEM_KIND: pageable 0, pinned 1, device 2."""
    host = int(work.pinned)
    return (host, 2) if work.name == "HtoD" else (2, host)


# ---------------------------------------------------------------- as torch.profiler writes it


def write_kineto(program: Program, path: Path) -> Path:
    """A trace of torch.profiler."""
    events = [_on_gpu(work, program.rank or 0) for work in program.work]
    host = [("cuda_runtime", span) for span in program.calls] + [("user_annotation", span) for span in program.ranges]
    events += [
        _event(cat, span.name, span.start, span.end, program.pid, program.tid, correlation=span.correlation)
        for cat, span in host
    ]
    about: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
        "baseTimeNanoseconds": EPOCH_NS,
    }
    if program.rank is not None:
        about["distributedInfo"] = {"backend": "nccl", "rank": program.rank, "world_size": 2}
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def _on_gpu(work: Work, device: int) -> dict[str, Any]:
    args = {"device": device, "stream": work.stream, "correlation": work.correlation}
    if work.kind == "kernel":
        return _event("kernel", work.name, work.start, work.end, device, work.stream, **args)
    _, *memory = KINDS[work.name]
    read, written = (side.replace("Pageable", "Pinned") if work.pinned else side for side in memory)
    name = f"Memcpy {work.name} ({read} -> {written})"
    return _event("gpu_memcpy", name, work.start, work.end, device, work.stream, bytes=work.size, **args)


def _event(cat: str, name: str, start: int, end: int, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    times = {"ts": start / 1000, "dur": (end - start) / 1000}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, **times, "args": args}


# ---------------------------------------------------------------- programs, each with one bottleneck


def launch_bound(steps: int = 12) -> Program:
    """150 tiny kernels a step, and 15 us of the host for each."""
    program = Program()
    for _ in range(steps):
        for _ in range(50):
            for name in (ADD, GEMM, ADD):
                program.compute(10 * US)
                program.kernel(name, 3 * US)
    return program


def graphed(steps: int = 12) -> Program:
    """The same repaired: what was launched one by one is now in few large kernels."""
    program = Program()
    for _ in range(steps):
        for _ in range(20):
            program.compute(10 * US)
            program.kernel(GEMM, 100 * US)
    return program


def host_sync(steps: int = 12, every: int = 1) -> Program:
    """The loss is fetched in each step (or not so often), and the GPU waits for what the host does then."""
    program = Program()
    for step in range(steps):
        for _ in range(20):
            program.kernel(GEMM, 150 * US)
        if step % every == 0:
            program.item()
        program.compute(2 * MS)
    return program


def transfers(steps: int = 12, pinned: bool = False) -> Program:
    """Each batch comes from pageable memory while the GPU waits; or once, before the first step."""
    program = Program()
    for step in range(steps):
        if not pinned or not step:
            program.copy("HtoD", 48 << 20, 8 * MS)
        for _ in range(20):
            program.kernel(GEMM, 200 * US)
    return program


def input_pipeline(steps: int = 12, wait_ns: int = 20 * MS) -> Program:
    """Each batch is awaited."""
    program = Program()
    for _ in range(steps):
        with program.range(NEXT):
            program.compute(wait_ns)
        for _ in range(20):
            program.compute(15 * US)
            program.kernel(GEMM, 250 * US)
    return program


def communication(
    steps: int = 12, overlapped: bool = False, rank: int | None = None, compute_ns: int = 6 * MS
) -> Program:
    """Gradients are reduced after the backward pass, with nothing beside that; or beside it."""
    program = Program(rank=rank, pid=4321 + (rank or 0), tid=4321 + (rank or 0))
    for _ in range(steps):
        for _ in range(20):
            program.kernel(GEMM, compute_ns // 20)
        program.kernel(ALL_REDUCE, 4 * MS, stream=20, after=None if overlapped else 7)
        program.free[7] = max(program.free[7], 0 if overlapped else program.free[20])
    return program


def python_between(steps: int = 12, ns: int = 15 * MS) -> Program:
    """Python computes between the steps, and nothing is queued meanwhile."""
    program = Program()
    for _ in range(steps):
        for _ in range(20):
            program.kernel(ADD, 200 * US)
        program.compute(ns)
    return program


def allocations(steps: int = 12) -> Program:
    """Memory is taken from the driver in each step, and given back; cudaFree waits for the GPU."""
    program = Program()
    for _ in range(steps):
        program.call("cudaMalloc", 3 * MS)
        for _ in range(20):
            program.kernel(GEMM, 200 * US)
        program.sync()
        program.call("cudaFree", 3 * MS)
    return program


def files(steps: int = 12) -> Program:
    """Each step reads a file between its launches."""
    program = Program()
    for _ in range(steps):
        for _ in range(20):
            program.kernel(GEMM, 200 * US)
        program.os_call("read", 12 * MS)
    return program


def dense(steps: int = 40, look: bool = False) -> Program:
    """Matrix products that are queued ahead; with `look` the loss is fetched in each step, which costs nothing as the
    steps are long."""
    program = Program()
    program.copy("HtoD", 8 << 20, 2 * MS)
    for _ in range(steps):
        for _ in range(20):
            program.kernel(GEMM, 400 * US)
        if look:
            program.item()
    return program
