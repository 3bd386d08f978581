"""The events of a torch.profiler (Kineto) trace as arrays: what is in the file, before any table is made of it.

Kineto writes the file in libkineto/src/output_json.cpp; the categories are those of ActivityType.cpp, and capitalised
words in 2020 and 2021. Times are microseconds: with three decimals and counted from `baseTimeNanoseconds` since 2024,
whole and counted from the Unix epoch before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ParseError
from orchestrator.formats.events import MISSING, Ints, groups
from orchestrator.formats.longarray import LongArray

OP, RANGE, PYTHON, CALL, KERNEL, COPY, SET, SPAN, OTHER = range(9)
"""What an event is. CALL: of the CUDA or HIP runtime or driver. SPAN: how long the GPU was in what a range launched.
In this order: operators and ranges first, and up to CALL what ran on the CPU."""

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


class FewArgs(msgspec.Struct, gc=False):
    """The arguments of an event that say what belongs together, in the order of the file: the decoder is quicker so."""

    external: int | None = msgspec.field(name="External id", default=0)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw())
    device: int | None = MISSING
    stream: int | str | None = MISSING
    correlation: int | None = MISSING
    graph: int | None = msgspec.field(name="graph id", default=MISSING)
    external_2021: int | None = msgspec.field(name="external id", default=0)


class Args(FewArgs, gc=False):
    """All arguments that some table needs."""

    registers: int | None = msgspec.field(name="registers per thread", default=MISSING)
    shared: int | None = msgspec.field(name="shared memory", default=MISSING)
    grid: msgspec.Raw = msgspec.Raw()  # of a kernel a list; Triton's own events tell it in words
    block: msgspec.Raw = msgspec.Raw()
    bytes: int | str | None = MISSING
    source: int | None = msgspec.field(name="fromDevice", default=MISSING)  # of a copy between two devices
    target: int | None = msgspec.field(name="toDevice", default=MISSING)
    device_type: int | None = msgspec.field(name="Device Type", default=MISSING)
    device_id: int | None = msgspec.field(name="Device Id", default=MISSING)
    address: int | None = msgspec.field(name="Addr", default=MISSING)
    changed: int | None = msgspec.field(name="Bytes", default=MISSING)
    allocated: int | None = msgspec.field(name="Total Allocated", default=MISSING)
    reserved: int | None = msgspec.field(name="Total Reserved", default=MISSING)


NO_ARGS = Args()
RESOURCES = ("registers", "shared")
WORK_ARGS = (
    "external", "correlation", "device", "stream", "bytes", "source", "target", "grid", "block", "registers", "shared",
    "graph",
)  # fmt: skip
MEMORY_ARGS = ("device_type", "device_id", "address", "changed", "allocated", "reserved")


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


class SmallEvent(Event, gc=False):
    """The same where launches and memory are not asked for: half the time goes into objects, by their size."""

    args: FewArgs | None = None  # type: ignore[assignment]


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


Columns = TypeVar("Columns", "Calls", "Work", "Memory")


def at(events: Columns, places: NDArray[Any]) -> Columns:
    """The events at these places."""
    return type(events)(**{name: values[places] for name, values in vars(events).items()})


def _of_kinds(kind: Ints, kinds: tuple[int, ...]) -> NDArray[np.intp]:
    return np.flatnonzero(np.logical_or.reduce([kind == one for one in kinds]))


@dataclass(frozen=True)
class Calls:
    """What ran on the CPU, one array item each, in the order of their start; of those that begin together the longest
    first, then as in the file. Times in ns; MISSING, and -1 in `external`: none."""

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

    def only(self, *kinds: int) -> Calls:
        return at(self, _of_kinds(self.kind, kinds))


@dataclass(frozen=True)
class Work:
    """What ran on GPUs, in the order of its start. Times in ns; MISSING: unknown, or none."""

    kind: Ints
    name: Ints
    start: Ints
    duration: Ints
    external: Ints
    correlation: Ints
    device: Ints
    stream: Ints
    bytes: Ints
    source: Ints
    target: Ints
    grid: Ints
    block: Ints
    registers: Ints
    shared: Ints
    graph: Ints

    def __len__(self) -> int:
        return len(self.kind)

    def only(self, *kinds: int) -> Work:
        return at(self, _of_kinds(self.kind, kinds))


@dataclass(frozen=True)
class Memory:
    """Allocations and releases in the order of time (ns). MISSING: unknown."""

    time: Ints
    thread: Ints
    device_type: Ints
    device_id: Ints
    address: Ints
    changed: Ints
    allocated: Ints
    reserved: Ints

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True)
class Trace:
    """A trace. Names, threads (process and thread id), and input shapes, grids and blocks (as they stand in the file)
    are numbers in the events: places in the lists here."""

    about: Mapping[str, Any]
    """What the file says of itself."""
    counted: Mapping[str, int]
    """Number of events with a duration, by category."""
    names: list[str]
    raws: list[bytes]
    threads: list[tuple[int | None, int | None]]
    calls: Calls
    work: Work
    memory: Memory
    failed_allocations: int
    dropped: int
    """Events that could not be read."""
    cut: bool
    """The end is missing, or could not be read."""


def load(path: Path, operators: bool = True, launches: bool = True) -> Trace:
    """The trace in a file, .json or gzip; of a file that is cut off, what is whole. Without operators: of what
    ran on the CPU only the calls of the CUDA or HIP runtime and driver. Without launches: the GPU's work without its
    shape, its resources and sizes, and no memory.

    Raises ParseError for a file that is no such trace, or in which nothing can be read."""
    try:
        first = OP if operators else CALL
        reading = _Reading(path, Event if launches else SmallEvent, first, launches)
        if reading.is_blurred:
            reading = _Reading(path, ExactEvent, first, launches, int(reading.first_us))
        return reading.trace()
    except (OverflowError, ValueError, TypeError, RecursionError) as error:
        raise ParseError(f"{path.name} is no readable trace of torch.profiler: {error}") from error


class _Numbered(dict[Any, int]):
    """Numbers things in the order of their first appearance."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number

    def of(self, things: list[Any]) -> Ints:
        return np.fromiter(map(self.__getitem__, things), np.int64, len(things))


class _Collected:
    """Columns that grow by a piece at a time."""

    def __init__(self, *names: str) -> None:
        self._pieces: dict[str, list[NDArray[Any]]] = {name: [np.empty(0, np.int64)] for name in names}

    def add(self, **columns: NDArray[Any]) -> None:
        for name, values in columns.items():
            self._pieces[name].append(values)

    def column(self, name: str) -> NDArray[Any]:
        self._pieces[name] = [np.concatenate(self._pieces[name])]
        return self._pieces[name][0]

    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: self.column(name) for name in self._pieces}

    def without_unfinished(self) -> tuple[int, dict[str, NDArray[Any]]]:
        """How many events have no duration, and the columns of the others."""
        columns = self.columns()
        unfinished = np.isnan(columns["duration_us"])
        lost = int(unfinished.sum())
        return lost, {name: values[~unfinished] for name, values in columns.items()} if lost else columns


class _Reading:
    """Collects the events of a file, from the kind `first` on, piece by piece, in the file's microseconds after
    `origin_us`.

    Each piece is gone through column by column: on traces of millions of events that takes a third of the time of a
    loop over the events."""

    def __init__(self, path: Path, event: type[Event], first: int, launches: bool, origin_us: int = 0) -> None:
        self.first, self.launches, self.origin_us = first, launches, origin_us
        self.categories, self.names, self.pids, self.tids = _Numbered(), _Numbered(), _Numbered(), _Numbered()
        self.raws = _Numbered({b"": 0})
        self.counts = np.zeros(0, np.int64)
        self.failed_allocations = 0
        self.calls, self.work, self.memory = (
            _Collected("kind", "name", "us", "duration_us", "pid", "tid", "shapes", "external", "correlation"),
            _Collected("kind", "name", "us", "duration_us", *WORK_ARGS),
            _Collected("us", "pid", "tid", *MEMORY_ARGS),
        )
        self.file = LongArray(path, "traceEvents", event, Document, mended)
        for events in self.file:
            self._add_spans([event for event in events if event.ph == "X"])
            self._add_instants([event for event in events if event.ph == "i"])
        if not self.counts.any() and (self.file.cut or self.file.dropped):
            damage = "is cut off or damaged before its first event" if self.file.cut else "holds no events of a trace"
            raise ParseError(f"{path.name} {damage}")

    def _add_spans(self, events: list[Event]) -> None:
        category = self.categories.of([event.cat or "" for event in events])
        counts = np.bincount(category, minlength=len(self.categories))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        kind = np.array([KINDS.get(name, OTHER) for name in self.categories], np.int64)[category]
        calls = np.flatnonzero((kind >= self.first) & (kind <= CALL))
        work = np.flatnonzero((kind > CALL) & (kind < OTHER))
        self._add_calls([events[place] for place in calls.tolist()], kind[calls])
        self._add_work([events[place] for place in work.tolist()], kind[work])

    def _add_calls(self, events: list[Event], kind: Ints) -> None:
        operators, calls = np.flatnonzero(kind <= RANGE), np.flatnonzero(kind == CALL)
        args = [events[place].args or NO_ARGS for place in operators.tolist()]
        shapes, external, correlation = (
            np.zeros(len(kind), np.int64),
            np.full(len(kind), -1),
            np.full(len(kind), MISSING),
        )
        shapes[operators] = self.raws.of([bytes(a.shapes) for a in args])
        external[operators] = _ints([a.external or a.external_2021 or -1 for a in args])
        correlation[calls] = _ints([(events[place].args or NO_ARGS).correlation for place in calls.tolist()])
        self.calls.add(
            **self._span_columns(events),
            **self._thread(events),
            kind=kind,
            shapes=shapes,
            external=external,
            correlation=correlation,
        )

    def _add_work(self, events: list[Event], kind: Ints) -> None:
        args = [event.args or NO_ARGS for event in events]
        self.work.add(
            **self._span_columns(events),
            kind=kind,
            external=_ints([a.external or a.external_2021 or MISSING for a in args]),
            correlation=_ints([a.correlation for a in args]),
            # work on a GPU stands in the row of its device, as if that were its process
            device=_ints([e.pid if a.device == MISSING else a.device for e, a in zip(events, args, strict=True)]),
            stream=_ints([a.stream for a in args]),
            graph=_ints([a.graph or MISSING for a in args]),
            **self._launch_columns(args),
        )

    def _launch_columns(self, args: list[Args]) -> dict[str, Ints]:
        if not self.launches:
            none, unknown = np.broadcast_to(np.int64(0), len(args)), np.broadcast_to(np.int64(MISSING), len(args))
            return {"grid": none, "block": none, **dict.fromkeys(("bytes", "source", "target", *RESOURCES), unknown)}
        return {
            "bytes": _ints([a.bytes for a in args]),
            "source": _ints([a.source for a in args]),
            "target": _ints([a.target for a in args]),
            "grid": self.raws.of([bytes(a.grid) for a in args]),
            "block": self.raws.of([bytes(a.block) for a in args]),
            "registers": _ints([a.registers for a in args]),
            "shared": _ints([a.shared for a in args]),
        }

    def _span_columns(self, events: list[Event]) -> dict[str, NDArray[Any]]:
        return {
            "name": self.names.of([event.name for event in events]),
            "us": self._us(events),
            "duration_us": np.array([event.dur for event in events], np.float64),  # nan for None
        }

    def _thread(self, events: list[Event]) -> dict[str, Ints]:
        pids = [event.pid for event in events]
        same = bool(pids) and pids.count(pids[0]) == len(pids)  # as they nearly always are
        pid = np.full(len(pids), self.pids[pids[0]]) if same else self.pids.of(pids)
        return {"pid": pid, "tid": self.tids.of([event.tid for event in events])}

    def _add_instants(self, events: list[Event]) -> None:
        self.failed_allocations += sum(event.name == "[OutOfMemory]" for event in events)
        if not self.launches:
            return
        events = [e for e in events if e.name == "[memory]" and e.args and e.args.changed not in (None, MISSING)]
        self.memory.add(
            us=self._us(events),
            **self._thread(events),
            **{name: _ints([getattr(event.args, name) for event in events]) for name in MEMORY_ARGS},
        )

    def _us(self, events: list[Event]) -> NDArray[np.float64]:
        times = [event.ts for event in events]
        return np.array([time - self.origin_us for time in times] if self.origin_us else times, np.float64)

    @property
    def starts_us(self) -> NDArray[np.float64]:
        return np.concatenate([part.column("us") for part in (self.calls, self.work, self.memory)])

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
        unfinished_calls, calls = self.calls.without_unfinished()
        unfinished_work, work = self.work.without_unfinished()
        memory = self.memory.columns()
        threads, calls["thread"], memory["thread"] = self._threads(calls, memory)
        return Trace(
            about=about,
            counted=dict(zip(self.categories, self.counts.tolist(), strict=True)),
            names=list(self.names),
            raws=list(self.raws),
            threads=threads,
            calls=_calls(base_ns, **calls),
            work=_work(base_ns, **work),
            memory=_memory(base_ns, **memory),
            failed_allocations=self.failed_allocations,
            dropped=self.file.dropped + unfinished_calls + unfinished_work,
            cut=self.file.cut,
        )

    def _threads(self, *parts: dict[str, NDArray[Any]]) -> tuple[list[tuple[int | None, int | None]], Ints, Ints]:
        """Process and thread id of all threads, and for each of the parts their numbers, instead of `pid` and `tid`."""
        pids, tids = list(map(_id, self.pids)), list(map(_id, self.tids))
        both = [part.pop("pid") * len(tids) + part.pop("tid") for part in parts]
        found, places = groups(np.concatenate(both))
        calls, memory = np.split(places.astype(np.int64), [len(both[0])])
        return [(pids[number // len(tids)], tids[number % len(tids)]) for number in found.tolist()], calls, memory


def _calls(base_ns: int, us: NDArray[np.float64], duration_us: NDArray[np.float64], **more: Ints) -> Calls:
    start = nanoseconds(us) + base_ns
    end = start + nanoseconds(duration_us)
    return at(Calls(start=start, end=end, **more), np.lexsort((-end, start)))


def _work(base_ns: int, us: NDArray[np.float64], duration_us: NDArray[np.float64], **more: Ints) -> Work:
    start = nanoseconds(us) + base_ns
    return at(Work(start=start, duration=nanoseconds(duration_us), **more), np.argsort(start, kind="stable"))


def _memory(base_ns: int, us: NDArray[np.float64], **more: Ints) -> Memory:
    time = nanoseconds(us) + base_ns
    return at(Memory(time=time, **more), np.argsort(time, kind="stable"))


def nanoseconds(us: NDArray[np.float64]) -> Ints:
    """Microseconds with three decimals as ns, exact below EXACT_BELOW_US. A plain product with 1000 would be off by one
    now and then, and calls would no longer lie within one another."""
    if np.any(np.abs(us) > LATEST_US):
        raise OverflowError("it holds times that no clock shows")
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def _ints(values: list[Any]) -> Ints:
    """MISSING for what is no number or does not fit: some traces have ids above 2**63."""
    if values and values.count(values[0]) == len(values):
        return np.full(len(values), _int64(values[0]))
    array = np.array(values)
    return array if array.dtype == np.int64 else np.array([_int64(value) for value in values], np.int64)


def _int64(value: int | str | None) -> int:
    return value if isinstance(value, int) and -(2**63) < value < 2**63 else MISSING


def _id(value: int | str | None) -> int | None:
    """A process or thread id; in 2020 and 2021 some were texts."""
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    return None if (known := _int64(number)) == MISSING else known
