"""The canonical tables: one name, one meaning, whatever tool filled them. Times are ns; units stand in the column
names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import pyarrow
    from numpy.typing import NDArray

    from orchestrator.model import Task

Dtype = Literal["str", "int", "float", "bool"]


@dataclass(frozen=True)
class Column:
    """One column: its type, its unit, and what it says. Every column may hold None (unknown) unless it is a key."""

    name: str
    dtype: Dtype
    meaning: str
    unit: str | None = None
    key: bool = False


class Coded(Sequence[Any]):
    """A column of few values in many rows. codes: array of places in `texts`, -1 for unknown; texts may repeat."""

    __slots__ = ("codes", "texts")

    def __init__(self, codes: NDArray[np.integer[Any]], texts: Sequence[Any]) -> None:
        self.codes, self.texts = codes, list(texts)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Coded(self.codes[place], self.texts)
        code = int(self.codes[place])
        return self.texts[code] if code >= 0 else None

    def __iter__(self) -> Iterator[Any]:
        shown = [*self.texts, None]  # None is the last, at -1
        return (shown[code] for code in self.codes.tolist())

    def take(self, places: Any) -> Coded:
        return Coded(self.codes[places], self.texts)


class Masked(Sequence[Any]):
    """A column of numbers some of which are unknown. known: array of booleans; `numbers` means nothing elsewhere."""

    __slots__ = ("known", "numbers")

    def __init__(self, numbers: NDArray[Any], known: NDArray[np.bool_]) -> None:
        self.numbers, self.known = numbers, known

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.take(place)
        return self.numbers[place].item() if self.known[place] else None

    def __iter__(self) -> Iterator[Any]:
        pairs = zip(self.numbers.tolist(), self.known.tolist(), strict=True)
        return (number if known else None for number, known in pairs)

    def take(self, places: Any) -> Masked:
        return Masked(self.numbers[places], self.known[places])


@dataclass(frozen=True)
class Table:
    """A canonical table in memory: `columns` maps each column name to a sequence (list, NumPy array), all of one
    length.

    clock: `epoch` when its times are ns since the Unix epoch, `relative` when only their differences mean something.
    dropped: rows that the tool's file held and that could not be read.
    """

    name: str
    columns: Mapping[str, Sequence[Any]]
    clock: Literal["epoch", "relative"] = "relative"
    clock_error_ns: int | None = None
    dropped: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @classmethod
    def of(cls, name: str, rows: Iterable[Sequence[Any]], columns: Sequence[str] | None = None, **more: Any) -> Table:
        """A table from rows. `columns` defaults to the schema's columns without `capture`; a row is a tuple in that
        order."""
        names = list(columns) if columns is not None else [c.name for c in SCHEMAS[name] if c.name != "capture"]
        data: dict[str, list[Any]] = {n: [] for n in names}
        stores = list(data.values())
        for row in rows:
            for store, value in zip(stores, row, strict=True):
                store.append(value)
        return cls(name, data, **more)

    def rows(self) -> Iterable[dict[str, Any]]:
        """The rows as dicts, for small tables and for tests."""
        names = list(self.columns)
        for values in zip(*self.columns.values(), strict=True):
            yield dict(zip(names, values, strict=True))

    def with_capture(self, capture: str, rank: int | None = None) -> Table:
        """The same table with the name of the capture that it comes from as its first column."""
        first: dict[str, Sequence[Any]] = {"capture": [capture] * len(self)}
        if rank is not None:
            first["rank"] = [rank] * len(self)
        return replace(self, columns={**first, **self.columns})

    def with_ranks(self, ranks: Mapping[int, int]) -> Table:
        """The same table with each row's rank by its `pid` as its first column; itself where none is known."""
        pids = self.columns.get("pid", ())
        if isinstance(pids, Coded) and any(pid in ranks for pid in pids.texts):
            return replace(
                self, columns={"rank": Coded(pids.codes, [ranks.get(pid) for pid in pids.texts]), **self.columns}
            )
        found = [ranks.get(pid) for pid in pids]
        return self if found.count(None) == len(found) else replace(self, columns={"rank": found, **self.columns})

    def led_by(self, task: Task) -> Table:
        """The same table of that task on the clock of the host that leads its job: the one place where the clocks of
        several hosts are made one. Itself where they were not compared."""
        if task.clock_offset_ns is None or (self.clock != "epoch" and self.name != "runs"):
            return self
        moved = {n: _led(column, task) if n in _MOMENTS else column for n, column in self.columns.items()}
        error_ns = (self.clock_error_ns or 0) + (task.clock_error_ns or 0)
        return replace(self, columns=moved, clock_error_ns=error_ns if self.clock == "epoch" else None)

    def only(self, name: str, wanted: Collection[Any]) -> Table:
        """The rows in which that column has one of the wanted values."""
        places = [place for place, value in enumerate(self.columns[name]) if value in wanted]
        if len(places) == len(self):
            return self
        return replace(self, columns={n: [column[place] for place in places] for n, column in self.columns.items()})


_MOMENTS = frozenset({"start_ns", "started_ns", "time_ns"})
"""The columns that say when something was; all others say for how long."""


def _led(column: Sequence[Any], task: Task) -> Sequence[Any]:
    if isinstance(column, Masked):
        return Masked(_led(column.numbers, task), column.known)  # type: ignore[arg-type]
    if not hasattr(column, "dtype"):
        return [task.led(moment) for moment in column]
    array: Any = column
    grown = (task.clock_drift * (array - task.clock_at_ns)).round().astype("int64")
    return array + ((task.clock_offset_ns or 0) + grown)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Stored:
    """A part of a canonical table that lies in a file, as the report will have it. columns: the names of those that it
    has, beside what the schema fills in."""

    name: str
    path: Path
    rows: int
    columns: frozenset[str]
    clock: Literal["epoch", "relative"] = "relative"
    clock_error_ns: int | None = None
    dropped: int = 0

    def __len__(self) -> int:
        return self.rows


Piece: TypeAlias = "Table | Stored"


def _columns(*columns: Column) -> tuple[Column, ...]:
    return (Column("capture", "str", "the capture that the row comes from", key=True), *columns)


_PID = Column("pid", "int", "process id")
_START = Column("start_ns", "int", "start", "ns")
_DURATION = Column("duration_ns", "int", "duration", "ns")
_SPAN = (_PID, Column("thread", "int", "thread id"), _START, _DURATION)
"""What a thread did, and when."""


def _statistics(*keys: Column) -> tuple[Column, ...]:
    """Keys followed by the statistics that every `*_summary` table has; medians and deviations as `nsys stats`
    computes them."""
    return _columns(
        *keys,
        Column("count", "int", "number of occurrences"),
        Column("total_ns", "int", "sum of the durations", "ns"),
        Column("mean_ns", "float", "mean duration", "ns"),
        Column("median_ns", "float", "median duration", "ns"),
        Column("min_ns", "int", "shortest", "ns"),
        Column("max_ns", "int", "longest", "ns"),
        Column("stddev_ns", "float", "sample standard deviation (n - 1)", "ns"),
    )


_NAME = Column("name", "str", "name as the tool gives it", key=True)

SCHEMAS: dict[str, tuple[Column, ...]] = {
    "runs": _columns(
        Column("pass_id", "str", "the pass"),
        Column("role", "str", "warmup, bare or profiled"),
        Column("repeat", "int", "serial number of the repeat, from 1"),
        Column("started_ns", "int", "start of the target, Unix epoch", "ns"),
        Column("wall_s", "float", "wall time of the target", "s"),
        Column("user_s", "float", "user CPU time of the target and the children it waited for", "s"),
        Column("sys_s", "float", "system CPU time, likewise", "s"),
        Column("max_rss_bytes", "int", "largest resident set of one process of the target", "bytes"),
        Column("exit_status", "int", "exit status as a shell shows it (128 + signal)"),
    ),
    "stacks": _columns(
        _PID,
        Column("process", "str", "command of the process"),
        Column("thread", "str", "name of the thread"),
        Column(
            "kind",
            "str",
            "wall: all time; gil: time holding Python's GIL; cpu: time on a processor; time, samples: of an imported "
            "file that does not say of what",
        ),
        Column(
            "stack", "str", "frames from the root to the leaf, separated by ';', each `function (file:line)`", key=True
        ),
        Column("samples", "int", "number of samples (estimated from the time where the tool gives spans)"),
        Column("weight_ns", "int", "time of the samples", "ns"),
    ),
    "functions": _columns(
        _PID,
        Column("thread", "str", "name of the thread"),
        Column("kind", "str", "as in stacks"),
        Column("function", "str", "qualified name", key=True),
        Column("file", "str", "file as the tool gives it", key=True),
        Column("line", "int", "the line where most of its self time was spent, else of its total time"),
        Column("self_samples", "int", "samples with the function at the leaf"),
        Column("total_samples", "int", "samples with the function anywhere on the stack, counted once"),
        Column(
            "self_pct",
            "float",
            "share of its self time in all time of that kind in the capture (of samples, without times)",
            "%",
        ),
        Column("total_pct", "float", "share of its total time, likewise", "%"),
    ),
    "syscalls": _columns(
        _PID,
        Column("thread", "int", "thread id; unknown in a summary"),
        Column("name", "str", "system call", key=True),
        Column("class", "str", "file, network, process, memory, desc, futex or other"),
        Column("count", "int", "calls"),
        Column("errors", "int", "calls that failed"),
        Column("total_ns", "int", "time in the call", "ns"),
        Column("mean_ns", "float", "mean time", "ns"),
        Column("min_ns", "int", "shortest", "ns"),
        Column("max_ns", "int", "longest", "ns"),
        Column("time", "str", "wall (from entry to return) or system (CPU time in the kernel)"),
    ),
    "syscall_paths": _columns(
        Column("path", "str", "file, socket or pipe, as strace shows it", key=True),
        Column("count", "int", "calls"),
        Column("errors", "int", "calls that failed"),
        Column("total_ns", "int", "time in them", "ns"),
        Column("bytes", "int", "bytes read and written", "bytes"),
        Column("names", "str", "the system calls, most frequent first, separated by commas"),
    ),
    "syscall_events": _columns(
        *_SPAN,
        Column("name", "str", "system call"),
        Column("args", "str", "arguments as shown"),
        Column("result", "str", "return value and error as shown"),
    ),
    "gpu_kernels": _columns(
        _PID,
        Column("device", "int", "device number inside the process"),
        Column("stream", "int", "stream id"),
        _START,
        _DURATION,
        Column("name", "str", "demangled name"),
        Column("short_name", "str", "base name"),
        Column("grid", "str", "grid as x,y,z", "blocks"),
        Column("block", "str", "block as x,y,z", "threads"),
        Column("registers", "int", "registers per thread"),
        Column("shared_bytes", "int", "static and dynamic shared memory per block", "bytes"),
        Column("correlation", "int", "joins to the launch within the process"),
        Column("graph_id", "int", "CUDA graph that launched it"),
    ),
    "gpu_kernel_summary": _statistics(_NAME),
    "cuda_api_summary": _statistics(_NAME),
    "os_calls_summary": _statistics(_NAME),
    "gpu_graphs": _columns(
        _PID,
        Column("device", "int", "device number inside the process"),
        Column("stream", "int", "stream id"),
        _START,
        _DURATION,
        Column("graph_id", "int", "CUDA graph"),
        Column("graph_exec_id", "int", "executable graph that was launched"),
        Column("correlation", "int", "joins to the launch within the process"),
    ),
    "gpu_transfers": _columns(
        _PID,
        Column("device", "int", "device number inside the process"),
        Column("stream", "int", "stream id"),
        _START,
        _DURATION,
        Column("kind", "str", "as `nsys stats` names it, such as CUDA memcpy HtoD"),
        Column("bytes", "int", "size", "bytes"),
        Column("source", "str", "memory that it was read from: pageable, pinned, device, managed, array"),
        Column("target", "str", "memory that it was written to, likewise"),
        Column("peer_device", "int", "the other device of a copy between two"),
        Column("correlation", "int", "joins to the call within the process"),
    ),
    "gpu_transfer_summary": (
        *_statistics(_NAME),
        Column("bytes", "int", "sum of the sizes", "bytes"),
        Column("pageable_count", "int", "of the copies, those from or to pageable memory"),
        Column("pageable_ns", "int", "their time", "ns"),
        Column("pageable_bytes", "int", "their sizes", "bytes"),
    ),
    "gpu_transfer_sizes": _columns(
        _NAME,
        Column("count", "int", "number of copies or sets"),
        Column("total_bytes", "int", "sum of the sizes", "bytes"),
        Column("mean_bytes", "float", "mean size", "bytes"),
        Column("median_bytes", "float", "median size", "bytes"),
        Column("min_bytes", "int", "smallest", "bytes"),
        Column("max_bytes", "int", "largest", "bytes"),
        Column("stddev_bytes", "float", "sample standard deviation (n - 1)", "bytes"),
    ),
    "gpu_utilization": _columns(
        Column("pid", "int", "process id; unknown where several processes shared the GPU"),
        Column(
            "device",
            "int",
            "device number inside the process; where several shared the GPU, its number in the recording",
            key=True,
        ),
        Column("gpu", "str", "name of the GPU"),
        Column("start_ns", "int", "start of its first work", "ns"),
        Column("span_ns", "int", "from there to the end of its last work: what all shares are of", "ns"),
        Column("busy_ns", "int", "of the span, with at least one kernel, graph, copy or set on the device", "ns"),
        Column("idle_ns", "int", "of the span, with none", "ns"),
        Column("kernel_ns", "int", "of the span, with at least one kernel or graph", "ns"),
        Column("transfer_ns", "int", "of the span, with at least one copy or set", "ns"),
        Column("communication_ns", "int", "of the span, with at least one communication kernel (NCCL, RCCL)", "ns"),
        Column("exposed_transfer_ns", "int", "of transfer_ns, with no kernel beside it", "ns"),
        Column("exposed_communication_ns", "int", "of communication_ns, with no computing kernel beside it", "ns"),
        Column("overlapped_ns", "int", "of the span, with two or more pieces of work at once", "ns"),
        Column("concurrency", "float", "mean number of pieces of work at once while it was busy"),
        Column("max_concurrency", "int", "most pieces of work at once"),
        Column("kernels", "int", "kernels"),
        Column("graphs", "int", "launches of CUDA graphs that were traced as a whole"),
        Column("transfers", "int", "copies and sets"),
        Column("streams", "int", "streams with work"),
        Column("gaps", "int", "times of idleness between two pieces of work, of any length"),
        Column(
            "queue_mean",
            "float",
            "mean number of pieces of work launched (counted from the call's start) and not begun, in the span",
        ),
        Column("queue_max", "int", "most of them at once"),
        Column("queue_empty_ns", "int", "of the span, with nothing launched that had not begun", "ns"),
    ),
    "gpu_gaps": _columns(
        Column("pid", "int", "as in gpu_utilization"),
        Column("device", "int", "as in gpu_utilization", key=True),
        _START,
        _DURATION,
        Column("before", "str", "work that ended last before it"),
        Column("after", "str", "work that began at its end"),
        Column("thread", "int", "thread that launched what came after it"),
        Column("kind", "str", "host: that work was launched only after the gap had begun; queued: it was there before"),
        Column(
            "launched_ns",
            "int",
            "from the gap's start to the call that launched what came after it; negative if it was before",
            "ns",
        ),
        Column("api", "str", "CUDA call that took most of the gap in that thread"),
        Column("api_ns", "int", "how much of the gap it took", "ns"),
        Column("range", "str", "innermost NVTX range or record_function that covers most of the gap in that thread"),
        Column("os_call", "str", "operating-system call that took most of the gap in that thread"),
        Column("os_call_ns", "int", "how much of the gap it took", "ns"),
        Column("samples", "int", "CPU samples of that thread in the gap, where there are any"),
        Column("function", "str", "function at the top of most of them"),
        Column(
            "cause",
            "str",
            "what the GPU waited for: host (the program had launched nothing), data, copy, communication, sync, "
            "between (from one queued kernel to the next); unknown where nothing tells",
        ),
        Column("phase", "str", "phase of the step in which most of it lies: data, forward, backward, optimizer ..."),
        Column("step", "int", "the step in which it begins"),
        Column(
            "python", "str", "function of the program in which the launching thread then was, as `function (file:line)`"
        ),
        Column("syscall", "str", "system call in which that thread spent most of it"),
        Column("path", "str", "what that call was about: file, socket, pipe"),
        Column("told_by", "str", "the captures of other tools that say so, separated by commas"),
    ),
    "gpu_time": _columns(
        Column("pid", "int", "as in gpu_utilization"),
        Column("device", "int", "as in gpu_utilization", key=True),
        Column(
            "state",
            "str",
            "busy: at work; host, data, copy, communication, sync, between, unknown: idle, by the causes of gpu_gaps; "
            "copying: of the busy time, that with no kernel beside the copy; communicating: that with no computing "
            "kernel beside it; computing: the rest of it",
            key=True,
        ),
        Column("total_ns", "int", "time in that state within the window", "ns"),
        Column("count", "int", "stretches of it"),
        Column("window_ns", "int", "length of the window: what shares are of", "ns"),
        Column("window", "str", "which part of the recording that is: the steady steps, or first to last kernel"),
        Column("start_ns", "int", "start of the window", "ns"),
        Column("queue", "str", "sparse, dense, or dense with gaps: how the GPU's work lies in the window"),
        Column("steps", "int", "steps in the window; unknown where it was not laid out by steps"),
        Column("period", "int", "kernels after which the same sequence of kernels comes again; unknown if none does"),
    ),
    "gpu_work": _columns(
        Column("pid", "int", "as in gpu_utilization"),
        Column("device", "int", "as in gpu_utilization", key=True),
        Column("part", "str", "window: as in gpu_time; before: earlier", key=True),
        Column("kind", "str", "kernel, graph, transfer; call: of the CUDA runtime or driver by its process", key=True),
        Column("name", "str", "name as in gpu_kernels, gpu_transfers or cuda_calls", key=True),
        Column(
            "family",
            "str",
            "of a kernel: matrix product, convolution, attention, normalisation, elementwise, reduction, "
            "communication; of a call: launch, sync, copy, allocation, loading; unknown where its name does not tell",
        ),
        Column("pageable", "bool", "of a transfer: from or to pageable memory; unknown where it does not tell"),
        Column("count", "int", "of them that began in that part"),
        Column("total_ns", "int", "their time within that part", "ns"),
        Column("median_ns", "float", "median of that", "ns"),
        Column("bytes", "int", "of transfers: sum of the sizes", "bytes"),
        Column("median_bytes", "float", "median size", "bytes"),
    ),
    "cuda_calls": _columns(
        *_SPAN,
        Column("name", "str", "call of the CUDA runtime or driver"),
        Column("correlation", "int", "joins to the work that it launched, within the process"),
    ),
    "os_calls": _columns(
        *_SPAN,
        Column("name", "str", "call of the operating system's runtime, as nsys traces it"),
    ),
    "op_spans": _columns(
        *_SPAN,
        Column("name", "str", "operator, or function of Python"),
        Column("kind", "str", "op, range or python"),
    ),
    "syscall_spans": _columns(
        *_SPAN,
        Column("name", "str", "system call"),
        Column("class", "str", "as in syscalls"),
        Column("path", "str", "what it was about: file, socket, pipe"),
        Column("error", "str", "why it failed, such as ENOENT"),
    ),
    "stack_spans": _columns(
        _PID,
        Column("tid", "int", "thread id of the operating system"),
        Column("thread", "str", "name of the thread"),
        _START,
        _DURATION,
        Column("stack", "str", "frames from the root to the leaf, as in stacks"),
    ),
    "host_time": _columns(
        _PID,
        Column("tid", "int", "thread id of the operating system"),
        Column("thread", "str", "name of the thread"),
        Column(
            "role",
            "str",
            "main: the thread whose steps these are; thread: another of its process; child: of a process "
            "that it has started",
        ),
        Column("part", "str", "start-up, warm-up, steady, end: of the run, by its steps; all: where it has none"),
        Column("part_ns", "int", "length of that part of the thread's life: what shares are of", "ns"),
        Column("phase", "str", "phase of the step, as the stack tells: data, forward, backward, optimizer, checkpoint"),
        Column(
            "state",
            "str",
            "python, native, gil, lock, file, network, child, memory, sleep, gc, device, import, compile, pipe, idle, "
            "events (sockets or timers of an event loop), collective (other ranks); "
            "unknown where the sample does not tell",
            key=True,
        ),
        Column("function", "str", "innermost function of the program's own code, else of any", key=True),
        Column("file", "str", "its file", key=True),
        Column("line", "int", "its line with the most of this time"),
        Column("below", "str", "library function that it had called, the outermost"),
        Column("code", "str", "whose code that was: own, library, framework (PyTorch, NumPy), none"),
        Column("native", "str", "native function that tells the state, as `function (library)`"),
        Column("op", "str", "operator of PyTorch or function of NumPy, where native frames name it"),
        Column("behind", "str", "of a wait: function the other threads were in meanwhile, as `function (file:line)`"),
        Column("behind_state", "str", "what those threads were doing there, as in state"),
        Column("behind_code", "str", "whose code that was, as in code"),
        Column(
            "behind_pct", "float", "share of what they did meanwhile, idle threads left out; the row's own part", "%"
        ),
        Column("samples", "int", "number of samples (estimated from the time where the tool gives spans)"),
        Column("total_ns", "int", "time of the samples", "ns"),
    ),
    "gpu_launch_summary": _columns(
        _PID,
        Column("device", "int", "device number inside the process"),
        _NAME,
        Column("count", "int", "kernels (or graphs that were traced as a whole) whose launch was seen"),
        Column("api_total_ns", "int", "time in the calls that launched them", "ns"),
        Column("api_median_ns", "float", "median of it", "ns"),
        Column("latency_mean_ns", "float", "mean time from the start of the call to the start of the kernel", "ns"),
        Column("latency_median_ns", "float", "median of it", "ns"),
        Column("latency_min_ns", "int", "shortest", "ns"),
        Column("latency_max_ns", "int", "longest", "ns"),
        Column(
            "queued_median_ns",
            "float",
            "median time from the end of the call to the start of the kernel; 0 where it began before",
            "ns",
        ),
        Column("kernel_total_ns", "int", "sum of the kernels' durations", "ns"),
    ),
    "range_summary": (*_statistics(_NAME), Column("style", "str", "PushPop or StartEnd")),
    "ranges": _columns(
        _PID,
        Column("thread", "int", "thread id"),
        Column("domain", "str", "NVTX domain"),
        Column("name", "str", "text of the range"),
        _START,
        _DURATION,
        Column("gpu_ns", "int", "time of the GPU between CUDA events at the ends of a range of the plan", "ns"),
    ),
    "steps": _columns(
        Column("rank", "int", "global rank of the process"),
        _PID,
        Column("tid", "int", "thread whose steps these are"),
        Column("kind", "str", "train (ends with the optimizer's step) or inference (one call of the outermost module)"),
        Column("step", "int", "serial number within the process, from 0", key=True),
        Column("start_ns", "int", "start, Unix epoch", "ns"),
        Column("duration_ns", "int", "wall time; unknown for a first step whose start was not seen", "ns"),
        Column("data_wait_ns", "int", "time in the DataLoader's next", "ns"),
        Column("forward_ns", "int", "time in the outermost module, without what is nested in it", "ns"),
        Column("backward_ns", "int", "time in backward, likewise", "ns"),
        Column("optimizer_ns", "int", "time in the optimizer's step, likewise", "ns"),
        Column("zero_grad_ns", "int", "time in the optimizer's zero_grad", "ns"),
        Column("checkpoint_ns", "int", "time in torch.save", "ns"),
        Column("evaluation_ns", "int", "time in the outermost module in evaluation mode, of a training step", "ns"),
        Column("cpu_ns", "int", "CPU time of the whole process; of steps under 1 ms the mean of 16", "ns"),
        Column("gpu_ns", "int", "time between CUDA events at the step's ends", "ns"),
        Column("warmup", "bool", "before the steps had become steady; in no average"),
        Column("profiled", "bool", "inside a window in which tools looked closely; in no average"),
        Column("stall", "str", "why it took much longer than the others: checkpoint, evaluation, data or unknown"),
        Column("loss", "float", "value that backward was called on, where the run was checked for repeatability"),
        Column("digest", "str", "fingerprint of the parameters after the step, likewise"),
    ),
    "ranks": _columns(
        Column("host", "str", "host that it ran on; unknown where nobody was told of one"),
        Column("rank", "int", "global rank", key=True),
        Column("local_rank", "int", "its number on its host"),
        _PID,
        Column("gpu", "str", "name of its GPU"),
        Column("steps", "int", "steps that it made; unknown where none were seen"),
        Column("step_median_ns", "float", "median of its steady steps", "ns"),
        Column("step_p95_ns", "float", "95 % of its steady steps were shorter", "ns"),
        Column("data_wait_pct", "float", "share of its steady steps in the DataLoader's next", "%"),
        Column("cpu_pct", "float", "CPU time of its process as a share of its steady steps: 100 is one core", "%"),
        Column("collective_pct", "float", "share of its recorded steady steps spent waiting in collectives", "%"),
        Column("gpu_busy_pct", "float", "share of the window with work on its GPU", "%"),
        Column("comm_pct", "float", "likewise with a communication kernel", "%"),
        Column("exposed_comm_pct", "float", "likewise with communication and no computing kernel beside it", "%"),
        Column("common_steps", "int", "steady steps that can be compared with those of all other ranks"),
        Column("slowest_steps", "int", "of these, those in which it came last"),
        Column("own_median_ns", "float", "median of its own work in them", "ns"),
        Column("behind_ns", "float", "mean of how much longer than the median rank it took for them", "ns"),
        Column(
            "judged_by",
            "str",
            "own work: the step without waiting in collectives; whole steps: what ranks waited there is not known; "
            "unknown where steps can't be compared",
        ),
        Column("told_by", "str", "the capture that tells what it waited in collectives"),
        Column("exit_code", "int", "exit status of its process"),
        Column("exit_signal", "int", "number of the signal that killed it"),
        Column("missing", "bool", "it was to be there, and was not seen"),
    ),
    "rank_steps": _columns(
        Column("rank", "int", "global rank of the process", key=True),
        _PID,
        Column("step", "int", "serial number within the process, from 0", key=True),
        Column("start_ns", "int", "start, Unix epoch, on the clock of the host that leads", "ns"),
        Column("duration_ns", "int", "wall time", "ns"),
        Column("data_wait_ns", "int", "time in the DataLoader's next", "ns"),
        Column("collective_ns", "int", "time waiting in collectives; unknown where it was not recorded", "ns"),
        Column("told_by", "str", "the capture that tells so"),
        Column("own_ns", "int", "what is compared of a steady step, as judged_by of ranks says", "ns"),
        Column("behind_ns", "int", "how much longer that is than the median rank's", "ns"),
        Column("is_slowest", "bool", "it is the longest of all ranks; unknown for a step that not all ranks have"),
    ),
    "samples": _columns(
        Column("time_ns", "int", "when it was read, Unix epoch; a rate covers the time since the reading before", "ns"),
        Column(
            "source",
            "str",
            "host, core, process, memory (the maps of a process), tree (all processes of the target), gpu, "
            "gpu_process, or the monitor itself",
            key=True,
        ),
        Column("subject", "str", "which one: a core, a pid, a GPU's UUID, UUID/pid; else empty", key=True),
        Column("metric", "str", "what was read, with its unit in the name", key=True),
        Column("value", "float", "the value; a metric that was never known has one row without"),
    ),
    "counters": _columns(
        Column("event", "str", "event as perf names it", key=True),
        Column("value", "float", "its count, scaled by perf where it ran for a part of the time"),
        Column("unit", "str", "unit of the value, where it is no plain count"),
        Column("running_pct", "float", "share of the time for which it was counted", "%"),
        Column("variance_pct", "float", "relative standard deviation over repeats", "%"),
        Column("metric", "float", "the figure that perf derives from it"),
        Column("metric_unit", "str", "what that figure is, such as `CPUs utilized`"),
    ),
    "torch_ops": _columns(
        Column("rank", "int", "global rank of the process"),
        _PID,
        Column("name", "str", "operator, range or CUDA call", key=True),
        Column("device", "str", "cpu or cuda: where the row's own events ran", key=True),
        Column("input_shapes", "str", "shapes of its inputs, where they were recorded", key=True),
        Column("count", "int", "calls"),
        Column("cpu_total_ns", "int", "time on the CPU with all that it calls", "ns"),
        Column("cpu_self_ns", "int", "the same without what it calls", "ns"),
        Column("gpu_total_ns", "int", "time of the GPU's work that it and what it calls have launched", "ns"),
        Column("gpu_self_ns", "int", "of the GPU's work that it has launched itself", "ns"),
        Column("cpu_memory_bytes", "int", "allocated less freed on the CPU, with what it calls", "bytes"),
        Column("cpu_self_memory_bytes", "int", "the same without what it calls", "bytes"),
        Column("gpu_memory_bytes", "int", "allocated less freed on the GPU, with what it calls", "bytes"),
        Column("gpu_self_memory_bytes", "int", "the same without what it calls", "bytes"),
        Column("flops", "int", "floating-point operations as torch estimates them from the shapes"),
    ),
    "memory": _columns(
        Column("rank", "int", "global rank of the process"),
        _PID,
        Column("thread", "int", "thread id"),
        Column("time_ns", "int", "when", "ns"),
        Column("device", "str", "cpu, cuda:0, ..."),
        Column("address", "int", "address of the block"),
        Column("bytes", "int", "size of the block; negative when it was freed", "bytes"),
        Column("allocated_bytes", "int", "allocated on that device after it", "bytes"),
        Column("reserved_bytes", "int", "reserved by the allocator after it", "bytes"),
        Column("op", "str", "innermost operator in which it happened"),
    ),
    "threads": _columns(
        _PID,
        Column("process", "str", "command of the process; unknown for a rank that was not found"),
        Column("tid", "int", "thread id; that of the main thread is the pid"),
        Column("thread", "str", "name of the thread"),
        Column(
            "state",
            "str",
            "the kernel's letter at the second look (R, S, D, T, t ...); ended: meanwhile; gone: a rank whose process "
            "is no more; not seen: a rank on another machine, or outside of what was looked at",
        ),
        Column("moved", "bool", "whether it got anywhere between the two looks; unknown where it may only spin"),
        Column("apart_ms", "float", "time between the two looks", "ms"),
        Column("cpu_ms", "float", "CPU time that it used meanwhile", "ms"),
        Column("switches", "int", "context switches meanwhile: how often it woke, or was put aside"),
        Column("wchan", "str", "function of the kernel in which it waits"),
        Column("syscall", "str", "system call in which it is, or its number"),
        Column(
            "doing",
            "str",
            "collective, rendezvous, data loader, CUDA, thread join, lock, queue, child, pipe, network, file, file "
            "lock, sleep, events, idle worker, launcher, stopped, running; unknown where nothing tells",
        ),
        Column("what", "str", "which collective, file, socket or pipe that is"),
        Column("function", "str", "innermost function of the program's own code, else of any"),
        Column("file", "str", "its file"),
        Column("line", "int", "its line"),
        Column("stack", "str", "frames at the first look, as in stacks; native ones, of the second, without a file"),
        Column("stack_later", "str", "frames at the second look, where they differ"),
        Column("unread", "str", "why Python frames are missing"),
        Column("recorder", "bool", "whether its process was started with a flight recorder that can be asked"),
        Column("world_size", "int", "ranks of the job, as its environment says"),
    ),
    "collectives": _columns(
        _PID,
        Column("group", "str", "process group", key=True),
        Column("description", "str", "what its maker calls it"),
        Column("ranks", "str", "its members, as 0,1; unknown where the recorder was not told"),
        Column("seq", "int", "serial number within the group, counted by each rank; of send and receive their own"),
        Column("op", "str", "all_reduce, broadcast ...", key=True),
        Column("is_p2p", "bool", "send or receive: between two ranks"),
        Column("state", "str", "scheduled, started or completed, as far as the recorder follows it"),
        Column("done", "bool", "whether it has ended"),
        Column("input_sizes", "str", "shapes of its input tensors"),
        Column("output_sizes", "str", "shapes of its output tensors"),
        Column("dtypes", "str", "types of its input"),
        Column("created_ns", "int", "when the program called it", "ns"),
        Column("waited_ns", "int", "from there to the writing of the file; unknown where it has ended", "ns"),
        Column("function", "str", "function of the program that called it"),
        Column("file", "str", "its file"),
        Column("line", "int", "its line"),
        Column("fresh", "bool", "the file was written when profrun asked; else it is older"),
    ),
    "kernel_metrics": _columns(
        _PID,
        Column("launch", "int", "serial number of the launch in the report", key=True),
        Column("kernel", "str", "demangled name", key=True),
        Column("grid", "str", "grid as x,y,z", "blocks"),
        Column("block", "str", "block as x,y,z", "threads"),
        Column("metric", "str", "name of the metric", key=True),
        Column("value", "float", "value; unknown where the tool gives none"),
        Column("unit", "str", "unit of the value"),
    ),
    "kernel_profiles": _columns(
        _PID,
        Column("launch", "int", "serial number of the launch in the report", key=True),
        Column("kernel", "str", "demangled name", key=True),
        Column("short_name", "str", "base name"),
        Column("grid", "str", "grid as x,y,z", "blocks"),
        Column("block", "str", "block as x,y,z", "threads"),
        Column("gpu", "str", "name of the GPU"),
        Column(
            "bound",
            "str",
            "compute, memory, balanced (both alike, and neither at its peak) or latency (neither near its peak), as "
            "ncu's rule SOLBottleneck has it; unknown without throughputs",
        ),
        Column("duration_ns", "float", "duration", "ns"),
        Column("sm_pct", "float", "throughput of the SMs, of their peak", "%"),
        Column("memory_pct", "float", "throughput of memory as a whole, of its peak", "%"),
        Column("dram_pct", "float", "throughput of DRAM, of its peak", "%"),
        Column("l1_pct", "float", "throughput of the L1 cache, of its peak", "%"),
        Column("l2_pct", "float", "throughput of the L2 cache, of its peak", "%"),
        Column("tensor_pct", "float", "use of the tensor cores, of their peak", "%"),
        Column("dram_bytes", "float", "read from and written to DRAM", "bytes"),
        Column(
            "precision",
            "str",
            "what the next columns are of: fp64, fp32, fp16, or tensor cores (fp16 tensor, ...): of those that were "
            "counted the one nearest to its peak",
        ),
        Column("flops", "float", "floating-point operations of that precision"),
        Column("flops_per_byte", "float", "arithmetic intensity: operations for each byte of DRAM traffic"),
        Column("ridge_flops_per_byte", "float", "intensity from which the roof is compute, not DRAM"),
        Column("roof_pct", "float", "operations per second, of the roof at that intensity", "%"),
        Column("achieved_occupancy_pct", "float", "active warps on a multiprocessor, of the most that fit", "%"),
        Column("theoretical_occupancy_pct", "float", "the most that the launch allows", "%"),
        Column(
            "occupancy_limit",
            "str",
            "what keeps that below 100 %, several where they tie: registers, shared memory, warps, blocks, barriers",
        ),
        Column("blocks", "int", "blocks of the grid"),
        Column("threads", "int", "threads of the grid"),
        Column("sms", "int", "multiprocessors of the GPU"),
        Column("waves", "float", "waves: how many times the grid fills the GPU"),
        Column("registers", "int", "registers per thread"),
        Column("static_shared_bytes", "int", "static shared memory per block", "bytes"),
        Column("dynamic_shared_bytes", "int", "dynamic shared memory per block", "bytes"),
    ),
    "kernel_rules": _columns(
        _PID,
        Column("launch", "int", "serial number of the launch in the report", key=True),
        Column("kernel", "str", "demangled name", key=True),
        Column("section", "str", "section of the rule"),
        Column("rule", "str", "identifier of the rule", key=True),
        Column("kind", "str", "ok, optimization, warning or error"),
        Column("message", "str", "what ncu says"),
        Column("speedup_pct", "float", "estimated speed-up, where ncu gives one", "%"),
        Column("speedup_scope", "str", "what would gain: global (the launch) or local (the part the rule looks at)"),
    ),
}

ROW_IS: dict[str, str] = {
    "runs": "a start of the program",
    "stacks": "a call stack, and how often it was seen",
    "functions": "a function, and how often it was seen",
    "syscalls": "a system call by name",
    "syscall_paths": "a file or socket that system calls used",
    "syscall_events": "a single system call, of the slowest",
    "gpu_kernels": "a single kernel on a GPU",
    "gpu_kernel_summary": "a kernel by name",
    "cuda_api_summary": "a CUDA call by name",
    "os_calls_summary": "a library call into the operating system, by name",
    "gpu_graphs": "a single run of a CUDA graph",
    "gpu_transfers": "a single copy or set of GPU memory",
    "gpu_transfer_summary": "a kind of copy or set, by its time",
    "gpu_transfer_sizes": "a kind of copy or set, by its bytes",
    "gpu_utilization": "a GPU from its first work to its last",
    "gpu_gaps": "a time without work on a GPU, and its cause",
    "gpu_time": "a state of a GPU in the window: busy, or idle for one cause",
    "gpu_work": "a kind of work on a GPU, in one part of the run",
    "cuda_calls": "a single CUDA call",
    "os_calls": "a single library call into the operating system",
    "op_spans": "a single PyTorch operator",
    "syscall_spans": "a single system call that took a while",
    "stack_spans": "a stretch in which a thread's stack stayed the same",
    "host_time": "a state and place of a thread, in one part of the run",
    "gpu_launch_summary": "a kernel by name, as its launches",
    "range_summary": "a range by name",
    "ranges": "a single named stretch of the program",
    "steps": "a step of the program",
    "ranks": "a rank of a job, in one pass",
    "rank_steps": "a step of a rank, beside the same step of the others",
    "samples": "a reading of the monitor",
    "counters": "an event that perf has counted",
    "torch_ops": "a PyTorch operator by name, device and shapes",
    "memory": "a block of memory that was taken or given back",
    "threads": "a thread of a program that hung",
    "collectives": "a collective that a rank has called",
    "kernel_metrics": "a metric of a kernel that was looked at in depth",
    "kernel_profiles": "a kernel that was looked at in depth",
    "kernel_rules": "a piece of ncu's advice on a kernel",
}
"""What one row of each table is."""


PIECE_ROWS = 1 << 17
"""So many rows stand together in a file: who wants those of one capture, or of a part of its time, reads few others."""


def arrow(name: str, tables: Iterable[Table], like: Sequence[Piece] | None = None) -> pyarrow.Table:
    """The given parts of one canonical table as one Arrow table with the schema's types, units and meanings in its
    metadata. like: all parts of it, where these are some of them.

    A column outside the schema is a programming error and raises KeyError; a missing one is filled with nulls. Texts
    that a part has as Coded stay encoded (a dictionary) until `pieces`: many rows of long names would take much
    room."""
    import pyarrow as pa

    parts = list(tables)
    whole = schema(name, parts if like is None else like)
    encoded = {n for part in parts for n, column in part.columns.items() if isinstance(column, Coded)}
    fields = [f.with_type(_codes_of(pa, f.type)) if f.name in encoded and f.type == pa.string() else f for f in whole]
    used = pa.schema(fields, metadata=whole.metadata)
    return pa.concat_tables([_part(pa, part, used) for part in parts] or [used.empty_table()])


def schema(name: str, parts: Sequence[Piece]) -> pyarrow.Schema:
    """The columns of a canonical table as it is stored, with what is to be said of them and of all these parts."""
    import pyarrow as pa

    types = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}
    columns = {c.name: c for c in SCHEMAS[name]}
    columns.setdefault("rank", Column("rank", "int", "global rank"))
    names = [n for n in columns if n != "rank"]
    if any("rank" in part.columns for part in parts):
        names.insert(1, "rank")
    metadata = {"table": name, "clock": _clock(parts), "dropped": str(sum(p.dropped for p in parts))}
    return pa.schema([_field(pa, columns[n], types) for n in names], metadata=metadata)


def mapped(table: pyarrow.Table, change: Callable[[str], str]) -> pyarrow.Table:
    """The table with every text passed through `change`, each distinct text once."""
    import pyarrow as pa

    def of(texts: Any) -> Any:
        return pa.array([None if t is None else change(t) for t in texts.to_pylist()], pa.string())

    for index, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            chunks = [pa.DictionaryArray.from_arrays(c.indices, of(c.dictionary)) for c in table.column(index).chunks]
            table = table.set_column(index, field, pa.chunked_array(chunks, field.type))
        elif pa.types.is_string(field.type):
            coded = table.column(index).combine_chunks().dictionary_encode()
            table = table.set_column(index, field, of(coded.dictionary).take(coded.indices))
    return table


def pieces(table: pyarrow.Table) -> Iterator[pyarrow.Table]:
    """The table as it is stored, with every text in full; so many rows at a time, and one piece if it is empty."""
    import pyarrow as pa

    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    schema = pa.schema(fields, metadata=table.schema.metadata)
    for first in range(0, max(table.num_rows, 1), PIECE_ROWS):
        yield table.slice(first, PIECE_ROWS).cast(schema)


def _field(pa: Any, column: Column, types: Mapping[str, Any]) -> Any:
    metadata = {"meaning": column.meaning} | ({"unit": column.unit} if column.unit else {})
    return pa.field(column.name, types[column.dtype], nullable=True, metadata=metadata)


def _part(pa: Any, part: Table, schema: Any) -> Any:
    unknown = set(part.columns) - {*schema.names, "rank"}
    if unknown:
        raise KeyError(f"table {part.name} has no column {sorted(unknown)}")
    length = len(part)
    arrays = [
        _array(pa, part.columns[f.name], f.type) if f.name in part.columns else pa.nulls(length, f.type) for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _codes_of(pa: Any, texts: Any) -> Any:
    return pa.dictionary(pa.int32(), texts)


def _array(pa: Any, column: Sequence[Any], kind: Any) -> Any:
    if isinstance(column, Masked):
        return pa.array(column.numbers, kind, mask=~column.known)
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not isinstance(column, Coded):
        values = pa.array(column, plain, from_pandas=False)
        return values if plain is kind else values.dictionary_encode()
    if not column.texts:
        return pa.nulls(len(column), kind)
    unknown = column.codes < 0
    codes = pa.array(column.codes, pa.int32(), mask=unknown if unknown.any() else None)
    texts = pa.array(column.texts, plain)
    return texts.take(codes) if plain is kind else pa.DictionaryArray.from_arrays(codes, texts)


def _clock(parts: Iterable[Piece]) -> str:
    clocks = {(p.clock, p.clock_error_ns) for p in parts}
    if len(clocks) != 1:
        return "mixed" if clocks else "relative"
    clock, error = clocks.pop()
    return clock if error is None else f"{clock} +-{error} ns"


def read(path: Path, columns: Sequence[str] | None = None, captures: Sequence[str] | None = None) -> pandas.DataFrame:
    """A table of a report as a DataFrame with nullable dtypes. In its `.attrs`: the `table`'s name, what a `row` is,
    unit and meaning of each of the `columns`, the `clock` of its times, how many rows were `dropped`.

    columns, captures: only these, as far as the table has them. A column that an older report has not yet is unknown in
    all its rows. Raises OSError, ValueError."""
    import pyarrow.parquet as pq

    # without pyarrow's threads: where the limit on memory leaves no room for one, it would wait for it for ever
    with pq.ParquetFile(path) as file:
        known = [name for name in columns if name in file.schema_arrow.names] if columns is not None else None
        if captures is None:
            return _frame(_as_today(file.read(known, use_threads=False), columns), path)
        groups = [n for n in range(file.num_row_groups) if _may_hold(file, n, captures)]
        table = file.read_row_groups(groups, None if known is None else [*known, "capture"], use_threads=False)
    table = table.filter(_is_of(table, captures))
    return _frame(_as_today(table if known is None else table.select(known), columns), path)


def _as_today(table: pyarrow.Table, columns: Sequence[str] | None) -> pyarrow.Table:
    """With the columns (of these) that the schema has gained since the table was written."""
    import pyarrow as pa

    name = (table.schema.metadata or {}).get(b"table", b"").decode()
    if name not in SCHEMAS:
        return table
    for field in schema(name, ()):
        if field.name not in table.schema.names and (columns is None or field.name in columns):
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table


def _may_hold(file: Any, group: int, captures: Sequence[str]) -> bool:
    """Whether a row of one of these captures may be in that row group, as the file's statistics say."""
    found = file.metadata.row_group(group).column(file.schema_arrow.names.index("capture")).statistics
    return found is None or not found.has_min_max or any(found.min <= one <= found.max for one in captures)


def _is_of(table: pyarrow.Table, captures: Sequence[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.is_in(table["capture"], value_set=pa.array(list(captures), pa.string()))


def longest(path: Path, count: int, by: Sequence[str]) -> tuple[pandas.DataFrame, int]:
    """The rows with the largest values, in their order, of a table that need not fit into memory, and how many it has.
    by: the first of these columns that is known of any row counts; where there is none, the first rows are taken."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        total, groups = file.metadata.num_rows, range(file.num_row_groups)
        cost = next((name for name in by if name in file.schema_arrow.names and _is_known(file, name)), None)
        kept = file.schema_arrow.empty_table()
        for place in groups:
            piece = file.read_row_group(place)
            if cost is not None and len(piece) > count:
                value = piece[cost].cast("float64").fill_null(-np.inf).to_numpy()
                piece = piece.take(np.sort(np.argpartition(-value, count - 1)[:count]))
            kept = pa.concat_tables([kept, piece])
            if cost is not None and len(kept) > count:
                value = kept[cost].cast("float64").fill_null(-np.inf).to_numpy()
                kept = kept.take(np.sort(np.argsort(-value, kind="stable")[:count]))
            elif cost is None and len(kept) >= count:
                break
        return _frame(kept.slice(0, count).replace_schema_metadata(file.schema_arrow.metadata), path), total


def _is_known(file: Any, name: str) -> bool:
    """Whether any row has a value there, as the file's statistics say."""
    place, groups = file.schema_arrow.names.index(name), range(file.num_row_groups)
    found = (file.metadata.row_group(n).column(place).statistics for n in groups)
    return any(one is None or one.num_values > 0 for one in found)


class Described(dict[str, dict[str, str]]):
    """Unit and meaning of each column. One for all copies of a DataFrame: pandas copies attributes deeply at every
    operation, and these would cost more than most of those."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Described:
        return self


def _frame(table: pyarrow.Table, path: Path) -> pandas.DataFrame:
    import pandas as pd

    frame: pd.DataFrame = table.to_pandas(types_mapper=_nullable)
    described = {f.name: {k.decode(): v.decode() for k, v in (f.metadata or {}).items()} for f in table.schema}
    frame.attrs["columns"] = Described(described)
    frame.attrs.update({k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items() if k != b"pandas"})
    frame.attrs["row"] = ROW_IS.get(frame.attrs.get("table", path.stem), "")
    return frame


def _nullable(dtype: Any) -> Any:
    import pandas as pd
    import pyarrow as pa

    return {
        pa.int64(): pd.Int64Dtype(),
        pa.float64(): pd.Float64Dtype(),
        pa.string(): pd.StringDtype(),
        pa.bool_(): pd.BooleanDtype(),
    }.get(dtype)
