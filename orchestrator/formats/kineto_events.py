"""The events of a torch.profiler (Kineto) trace as arrays: what is in the file, before any table is made of it.

Kineto writes the file in libkineto/src/output_json.cpp; the categories are those of ActivityType.cpp, and capitalised
words in 2020 and 2021. Times are microseconds: with three decimals and counted from `baseTimeNanoseconds` since 2024,
whole and counted from the Unix epoch before.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.errors import ParseError
from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.longarray import LongArray

OP, RANGE, PYTHON, CALL, KERNEL, COPY, SET, SPAN = range(8)
"""What an event is. CALL: of the CUDA or HIP runtime or driver. SPAN: how long the GPU was in what a range launched."""

KINDS = {
    "cpu_op": OP, "Operator": OP, "user_annotation": RANGE, "python_function": PYTHON,
    "cuda_runtime": CALL, "cuda_driver": CALL, "Runtime": CALL,
    "kernel": KERNEL, "Kernel": KERNEL, "gpu_memcpy": COPY, "Memcpy": COPY, "gpu_memset": SET, "Memset": SET,
    "gpu_user_annotation": SPAN,
}  # fmt: skip

EXACT_BELOW_US = 2**43
"""A float of more microseconds than this has no room for their third decimal."""
LATEST_US = 2**53
"""In the year 2255."""


# ---------------------------------------------------------------- in the file


class Args(msgspec.Struct, gc=False):
    """The arguments of an event that some table needs."""

    external: int | None = msgspec.field(name="External id", default=None)
    external_2021: int | None = msgspec.field(name="external id", default=None)
    correlation: int | None = None
    device: int | None = None
    stream: int | str | None = None
    bytes: int | str | None = None
    grid: Any = None  # of a kernel a list; Triton's own events tell it in words
    block: Any = None
    registers: int | None = msgspec.field(name="registers per thread", default=None)
    shared: int | None = msgspec.field(name="shared memory", default=None)
    graph: int | None = msgspec.field(name="graph id", default=None)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    device_type: int | None = msgspec.field(name="Device Type", default=None)
    device_id: int | None = msgspec.field(name="Device Id", default=None)
    address: int | None = msgspec.field(name="Addr", default=None)
    changed: int | None = msgspec.field(name="Bytes", default=None)
    allocated: int | None = msgspec.field(name="Total Allocated", default=None)
    reserved: int | None = msgspec.field(name="Total Reserved", default=None)


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event. ph: X has a duration, i is an instant; others are flows and labels."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float | None = None
    args: Args | None = None


class ExactEvent(Event, gc=False):
    """The same where a float would not hold the time. Slower."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]


class Document(msgspec.Struct):
    """The file. What stands beside the events varies with versions and devices, and is looked at when it is there."""

    traceEvents: msgspec.Raw
    schemaVersion: Any = None
    baseTimeNanoseconds: Any = None
    deviceProperties: Any = None
    distributedInfo: Any = None
    record_shapes: Any = None
    profile_memory: Any = None
    with_stack: Any = None
    with_flops: Any = None
    with_modules: Any = None
    host_name: Any = None
    trace_id: Any = None
    cupti_version: Any = None
    cuda_driver_version: Any = None
    cuda_runtime_version: Any = None
    hip_driver_version: Any = None
    hip_runtime_version: Any = None
    INFO: Any = None
    WARNING: Any = None
    ERROR: Any = None


NAME = re.compile(rb'("name": ")(.*?)("(?:,?\s*\n|, "(?:ph|cat|pid|ts)"))')
NO_NUMBER = re.compile(rb"(?<=[:\[,])(\s*)-?(?:nan|inf|NaN|Infinity)(?=\s*[,\]}])")
CONTROLS = bytes({*range(32)} - {*b"\t\n\r"})


def mended(text: bytes) -> bytes:
    """JSON of what Kineto writes without care: quotes in the names of ranges, nan and inf, bytes that are no UTF-8."""
    text = text.translate(bytes.maketrans(CONTROLS, b" " * len(CONTROLS)))
    text = NAME.sub(lambda m: m[1] + re.sub(rb'(?<!\\)"', rb"\"", m[2]) + m[3], text)
    return NO_NUMBER.sub(rb"\1null", text).decode("utf-8", "replace").encode()


# ---------------------------------------------------------------- in memory


@dataclass(frozen=True)
class Calls:
    """What ran on the CPU, one array item each, in the order of their start; of those that begin together the longest
    first, then as in the file. Times in ns; -1 in `shapes`, `external` and `correlation`: none."""

    kind: Ints
    name: Ints
    start: Ints
    end: Ints
    thread: Ints
    shapes: Ints
    external: Ints
    correlation: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def at(self, places: Ints) -> Calls:
        return Calls(**{name: values[places] for name, values in vars(self).items()})

    def only(self, *kinds: int) -> Calls:
        return self.at(np.flatnonzero(np.isin(self.kind, kinds)))


@dataclass(frozen=True)
class Work:
    """What ran on GPUs, in the order of its start. Times in ns."""

    kind: Ints
    name: Ints
    start: Ints
    duration: Ints
    args: list[Args]

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, *kinds: int) -> Work:
        return self.at(np.flatnonzero(np.isin(self.kind, kinds)))

    def at(self, places: Ints) -> Work:
        args = [self.args[i] for i in places.tolist()]
        return Work(self.kind[places], self.name[places], self.start[places], self.duration[places], args)

    def ints(self, value: Callable[[Args], int | str | None]) -> Ints:
        return _ints(self.args, value)


@dataclass(frozen=True)
class Memory:
    """Allocations and releases in the order of time (ns)."""

    time: Ints
    thread: Ints
    args: list[Args]

    def ints(self, value: Callable[[Args], int | str | None]) -> Ints:
        return _ints(self.args, value)


@dataclass(frozen=True)
class Trace:
    """A trace. Names, input shapes and threads (process and thread id) stand in the events as their number here."""

    about: Mapping[str, Any]
    """What the file says of itself."""
    counted: Mapping[str, int]
    """Number of events with a duration, by category."""
    names: list[str]
    shapes: list[bytes]
    threads: list[tuple[int | None, int | None]]
    calls: Calls
    work: Work
    memory: Memory
    failed_allocations: int
    dropped: int
    """Events that could not be read."""
    cut: bool
    """The end is missing, or could not be read."""


def load(path: Path) -> Trace:
    """The trace in a file, .json or gzip; of a file that is cut off, what is whole.

    Raises ParseError for a file that is no such trace, or in which nothing can be read."""
    try:
        reading = _Reading(path, Event)
        if reading.is_blurred:
            reading = _Reading(path, ExactEvent, int(reading.first_us))
        return reading.trace()
    except (OverflowError, ValueError, TypeError, RecursionError) as error:
        raise ParseError(f"{path.name} is no readable trace of torch.profiler: {error}") from error


class _Reading:
    """Collects the events of a file piece by piece, in the file's microseconds after `origin_us`."""

    def __init__(self, path: Path, event: type[Event], origin_us: int = 0) -> None:
        self.origin_us = origin_us
        self.counted: Counter[str] = Counter()
        self.failed_allocations = 0
        self.unfinished = 0
        self.names: dict[str, int] = {}
        self.shapes: dict[bytes, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.calls = array("d")  # all columns of Calls, row by row: the bulk of a trace at 64 bytes an event
        self.work: list[tuple[int, int, float, float, Args]] = []
        self.memory: list[tuple[float, int, Args]] = []
        self.file = LongArray(path, "traceEvents", event, Document, mended)
        for events in self.file:
            self._add(events)
        if not self.counted and (self.file.cut or self.file.dropped):
            damage = "is cut off or damaged before its first event" if self.file.cut else "holds no events of a trace"
            raise ParseError(f"{path.name} {damage}")

    def _add(self, events: list[Event]) -> None:
        number, threads, shapes_of, origin_us = self.names, self.threads, self.shapes, self.origin_us
        for event in events:
            if event.ph != "X":
                self._instant(event)
                continue
            category = event.cat or ""
            self.counted[category] += 1
            kind = KINDS.get(category)
            if kind is None:
                continue
            if event.dur is None:
                self.unfinished += 1
                continue
            args = event.args or NO_ARGS
            name = number.setdefault(event.name, len(number))
            if kind >= KERNEL:
                self.work.append((kind, name, event.ts - origin_us, event.dur, args))
                continue
            thread = threads.setdefault((event.pid, event.tid), len(threads))
            raw = bytes(args.shapes)
            shapes = shapes_of.setdefault(raw, len(shapes_of)) if raw else -1
            external = args.external or args.external_2021 or -1
            correlation = -1 if args.correlation is None else args.correlation
            self.calls.extend((kind, name, event.ts - origin_us, event.dur, thread, shapes, external, correlation))

    def _instant(self, event: Event) -> None:
        if event.name == "[memory]" and event.args is not None and event.args.changed is not None:
            thread = self.threads.setdefault((event.pid, event.tid), len(self.threads))
            self.memory.append((event.ts - self.origin_us, thread, event.args))
        elif event.name == "[OutOfMemory]":
            self.failed_allocations += 1

    @property
    def starts_us(self) -> NDArray[np.float64]:
        starts = (np.frombuffer(self.calls)[2::8], [w[2] for w in self.work], [m[0] for m in self.memory])
        return np.concatenate([np.asarray(times, np.float64) for times in starts])

    @property
    def first_us(self) -> float:
        return float(self.starts_us.min(initial=np.inf))

    @property
    def is_blurred(self) -> bool:
        """Times since the epoch with decimals, as some versions of 2023 and 2024 wrote them: a float holds quarters."""
        times = self.starts_us
        return bool(np.any((times >= EXACT_BELOW_US) & (times != np.floor(times))))

    def about(self) -> dict[str, Any]:
        """What the file says before and behind the events."""
        parts = [msgspec.structs.asdict(part) for part in (self.file.head, self.file.tail) if part]
        return {k: v for part in parts for k, v in part.items() if v is not None and k != "traceEvents"}

    def trace(self) -> Trace:
        about = self.about()
        base = about.get("baseTimeNanoseconds")
        base_ns = (base if isinstance(base, int) else 0) + self.origin_us * 1000
        return Trace(
            about=about,
            counted=self.counted,
            names=list(self.names),
            shapes=list(self.shapes),
            threads=[(_id(pid), _id(tid)) for pid, tid in self.threads],
            calls=self._calls(base_ns),
            work=self._work(base_ns),
            memory=self._memory(base_ns),
            failed_allocations=self.failed_allocations,
            dropped=self.file.dropped + self.unfinished,
            cut=self.file.cut,
        )

    def _calls(self, base_ns: int) -> Calls:
        kind, name, us, duration_us, *more = np.frombuffer(self.calls).reshape(-1, 8).T
        start = nanoseconds(us) + base_ns
        end = start + nanoseconds(duration_us)
        order = np.lexsort((-end, start))
        columns = (column.astype(np.int64) for column in more)
        return Calls(kind.astype(np.int64), name.astype(np.int64), start, end, *columns).at(order)

    def _work(self, base_ns: int) -> Work:
        kind, name, us, duration_us, args = zip(*self.work, strict=True) if self.work else ((),) * 5
        start = nanoseconds(us) + base_ns
        work = Work(np.array(kind, np.int64), np.array(name, np.int64), start, nanoseconds(duration_us), list(args))
        return work.at(np.argsort(start, kind="stable"))

    def _memory(self, base_ns: int) -> Memory:
        us, thread, args = zip(*self.memory, strict=True) if self.memory else ((),) * 3
        time = nanoseconds(us) + base_ns
        order = np.argsort(time, kind="stable")
        return Memory(time[order], np.array(thread, np.int64)[order], [args[i] for i in order.tolist()])


def nanoseconds(us: ArrayLike) -> Ints:
    """Microseconds with three decimals as ns, exact below EXACT_BELOW_US. A plain product with 1000 would be off by one
    now and then, and calls would no longer lie within one another."""
    values = np.asarray(us, np.float64)
    if np.any(np.abs(values) > LATEST_US):
        raise OverflowError("it holds times that no clock shows")
    whole = np.floor(values)
    return whole.astype(np.int64) * 1000 + np.rint((values - whole) * 1000).astype(np.int64)


def _ints(args: list[Args], value: Callable[[Args], int | str | None]) -> Ints:
    """One number of each, MISSING where it is unknown."""
    return np.array([_int64(value(a)) for a in args], np.int64)


def _int64(value: int | str | None) -> int:
    """The number, or MISSING for what is none or does not fit: some traces have ids above 2**63."""
    return value if isinstance(value, int) and -(2**63) < value < 2**63 else MISSING


def _id(value: int | str | None) -> int | None:
    """A process or thread id; in 2020 and 2021 some were texts."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return None if (known := _int64(number)) == MISSING else known
