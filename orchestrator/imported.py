"""Files that somebody already has, as captures: which collector each kind belongs to, and how it is read.

A collector's own `parse` reads what it would have left itself. It may not assume what only a run of profrun knows (how
often was sampled, which time strace counted), so the other kinds are read here, with what is unknown left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import registry
from orchestrator.collectors.base import Parsed
from orchestrator.errors import ParseError
from orchestrator.model import Capture, Metric
from orchestrator.tables import Table

if TYPE_CHECKING:
    from orchestrator.formats.perf import Script
    from orchestrator.formats.stacks import Row

READABLE = 0.5
"""A log of which less can be read is `degraded`; some are excerpts, with a shell's prompt among the calls."""


@dataclass(frozen=True)
class Seen(Parsed):
    """What an imported file says, also of where it was made: the tool's version, the GPUs, the rank of the process."""

    tool: str | None = None
    version: str | None = None
    gpus: tuple[str, ...] = ()
    rank: int | None = None


@dataclass(frozen=True)
class Kind:
    """How files of a kind (`formats.sniff`) become captures. `read` None: as the collector reads its own, and `about`
    says where it was made."""

    collector: str
    role: str
    read: Callable[[Path], Seen] | None = None
    about: Callable[[Path], Mapping[str, Any]] = lambda _: {}
    options: Mapping[str, Any] = field(default_factory=dict)
    opens_gzip: bool = False
    holds_env: bool = False


def parse(capture: Capture) -> Seen:
    """The tables of an imported capture. Raises ParseError when its file can't be read."""
    kind = KINDS[capture.options["kind"]]
    path = capture.path(kind.role)
    if path is None:
        raise ParseError("its file is missing from the report's folder")
    seen = kind.read(path) if kind.read else replace(_as_own(capture, kind), **kind.about(path))
    found = [gpu for table in seen.tables for gpu in dict.fromkeys(table.columns.get("gpu", ())) if gpu]
    metrics = {**gpu_metrics(seen.tables), **_counts(seen.tables), **seen.metrics}
    return replace(seen, gpus=seen.gpus or tuple(found), metrics=metrics)


def _as_own(capture: Capture, kind: Kind) -> Seen:
    collector = registry.collector(kind.collector).model_validate({"use": kind.collector, **kind.options})
    parsed = collector.parse(replace(capture, options={}))
    return Seen(**{f.name: getattr(parsed, f.name) for f in fields(Parsed)}, tool=kind.collector)


# ---------------------------------------------------------------- GPU time


def gpu_metrics(tables: Iterable[Table]) -> dict[str, Metric]:
    """Sums over all devices of what ran on them; n: one capture. Graphs that were traced as a whole are time of the
    GPU, too, and their kernels are in no other figure."""
    metrics: dict[str, Metric] = {}
    total_ns = 0
    for table in tables:
        if table.name == "gpu_kernel_summary":
            kernels, count = (sum(map(int, table.columns[name])) for name in ("total_ns", "count"))
            metrics |= {"gpu_kernels": Metric(count, "launches", n=1), "gpu_kernel_time_s": _seconds(kernels)}
            total_ns += kernels
        elif table.name == "gpu_graphs":
            graphs = sum(int(ns) for ns in table.columns["duration_ns"] if ns is not None)
            metrics |= {"gpu_graphs": Metric(len(table), "launches", n=1), "gpu_graph_time_s": _seconds(graphs)}
            total_ns += graphs
    return metrics | ({"gpu_time_s": _seconds(total_ns)} if "gpu_graphs" in metrics else {})


def _counts(tables: Iterable[Table]) -> dict[str, Metric]:
    """How much there is in the other tables, so that a reader sees that all of the file has come in."""
    metrics: dict[str, Metric] = {}
    for table in tables:
        for name, column, unit in _COUNTS.get(table.name, ()):
            known = [int(value) for value in table.columns[column] if value is not None]
            if known and unit == "s":
                metrics[name] = _seconds(sum(known))
            elif known:
                metrics[name] = Metric(len(known) if unit == "launches" else sum(known), unit, n=1)
    return metrics


_COUNTS = {
    "stacks": (("samples", "samples", "samples"), ("sampled_time_s", "weight_ns", "s")),
    "syscalls": (("syscalls", "count", "calls"), ("syscall_time_s", "total_ns", "s")),
    "kernel_profiles": (("profiled_launches", "launch", "launches"),),
}
"""By table: name of the figure, column that is added up (or, for launches, counted), unit."""


def _seconds(ns: int) -> Metric:
    return Metric(ns / 1e9, "s", n=1)


# ---------------------------------------------------------------- one function a kind


def _about_nsys(path: Path) -> Mapping[str, Any]:
    from orchestrator.formats.nsys_export import opened

    with opened(path) as export:
        return {"version": export.version, "gpus": export.gpus}


def _kineto(path: Path) -> Seen:
    from orchestrator.formats import kineto

    content = kineto.read(path)
    about: dict[str, Any] = {"tool": "torch.profiler", "gpus": content.gpus, "rank": content.rank}
    if not content.tables:
        return Seen((), content.notes, "empty", "the trace holds nothing that profrun has a table for", **about)
    cut = "the end of the trace is missing" if content.truncated else None
    return Seen(content.tables, content.notes, "degraded" if cut else None, cut, **about)


def _memory(path: Path) -> Seen:
    from orchestrator.formats import memsnap

    content = memsnap.read(path)
    metrics = {
        "cuda_allocated_bytes": Metric(content.allocated_bytes, "bytes", n=1),
        "cuda_reserved_bytes": Metric(content.reserved_bytes, "bytes", n=1),
        "cuda_segments": Metric(content.segments, "segments", n=1),
    }
    notes = (f"{content.segments:,} segments when the snapshot was taken; events: {sum(content.events.values()):,}",)
    if content.events:
        return Seen((content.memory,), notes, metrics=metrics, tool="torch.cuda.memory")
    why = "no history was recorded (torch.cuda.memory._record_memory_history): only what was held at its end is known"
    return Seen((), notes, "degraded", why, metrics=metrics, tool="torch.cuda.memory")


def _speedscope(path: Path) -> Seen:
    from orchestrator.formats import speedscope

    content = speedscope.read(path)
    tool, _, version = (content.exporter or "").partition("@")
    samples = [count for _, _, count, _ in content.profiles if count is not None]
    notes = (f"{len(content.profiles)} profiles, {sum(samples):,} samples",) if samples else ()
    return Seen(content.tables, notes, tool=tool or None, version=version or None)


def _folded(path: Path) -> Seen:
    from orchestrator.formats import folded

    content = folded.read(path, "samples")
    note = "counts as the file has them: what they count, and how often, it does not say"
    return Seen(content.tables, (*content.notes, note))


def _chrometrace(path: Path) -> Seen:
    """py-spy writes spans, so that time is known and the number of samples is not."""
    from orchestrator.formats import pyspy
    from orchestrator.formats.stacks import Row

    profile = pyspy.read(path, _LAST_SAMPLE_NS)
    names = pyspy.thread_names(stack.thread for stack in profile.stacks)
    rows = [
        Row(t.pid, t.process, names.get((t.pid, t.tid)) if t.tid is not None else t.name, "time", frames, weight_ns)
        for t, frames, weight_ns in profile.stacks
    ]
    tables = _stacks(rows, None)
    return Seen(tables, (), "degraded" if profile.damage else None, profile.damage, tool="py-spy")


_LAST_SAMPLE_NS = 10_000_000
"""What the last sample of a process stands for: py-spy's default of 100 Hz."""


def _script(path: Path) -> Seen:
    from orchestrator.formats import perf

    script = perf.read_script(path)
    events = script.events()
    event = script.clock() or next(iter(events), None)
    if event is None:
        return Seen((), (), "empty", "it holds no samples", tool="perf")
    notes = [f"{script.count(event):,} samples of {event}"]
    others = [f"{other} ({script.count(other):,})" for other in events if other != event]
    notes += [f"other events are left out: {', '.join(others)}"] if others else []
    notes += [f"lines that could not be read: {script.dropped}"] if script.dropped else []
    rate_hz = _rate_hz(script, event)
    if rate_hz is None:
        rows = [row._replace(kind="samples") for row in script.rows(event, 1e9)]
        tables = tuple(_blank(table, "weight_ns") for table in _stacks(rows, 1e9))
        notes.append("the file does not say how often was sampled: samples are not times")
    else:
        tables = _stacks(script.rows(event, rate_hz), rate_hz)
    lost = f"perf lost {script.lost:,} samples" if script.lost else None
    return Seen(tables, tuple(notes), "degraded" if lost else None, lost, tool="perf")


def _rate_hz(script: Script, event: str) -> float | None:
    """How often was sampled: as the header says, or as the periods of a clock say; None where nothing does."""
    from orchestrator.formats.perf import base_event

    if script.rate_hz is not None and script.clock() == event:
        return script.rate_hz
    periods = [tally for sampled, tally in script.periods.items() if sampled.event == event]
    if base_event(event) not in ("cpu-clock", "task-clock") or any(None in tally for tally in periods):
        return None
    total_ns = sum((period or 0) * count for tally in periods for period, count in tally.items())
    return script.count(event) * 1e9 / total_ns if total_ns else None


def _strace(path: Path) -> Seen:
    from orchestrator.formats.strace import read_trace

    trace = read_trace(path)
    tables = tuple(table for table in (trace.syscalls, trace.paths, trace.events, trace.spans) if len(table))
    notes = [f"{trace.calls:,} system calls"]
    if trace.unreturned:
        notes.append(f"calls that never returned in it, and that the tables leave out: {trace.unreturned:,}")
    if trace.calls and all(ns is None for ns in trace.syscalls.columns["total_ns"]):
        notes.append("the log has no times (strace -T): calls are counted, not timed")
    dropped = trace.syscalls.dropped
    if dropped:
        notes.append(f"lines that are no part of a log: {dropped:,}")
    if not trace.calls:
        return Seen((), tuple(notes), "empty", "no system call returned in it", tool="strace")
    why = f"{dropped} lines could not be read, beside {trace.calls} calls that could"
    bad = dropped > (1 - READABLE) * (trace.calls + dropped)
    return Seen(tables, tuple(notes), "degraded" if bad else None, why if bad else None, tool="strace")


def _strace_summary(path: Path) -> Seen:
    """Which time it counted is unknown: `-w` leaves no trace in it."""
    from orchestrator.formats.strace import read_summary

    summary = read_summary(path)
    cut = None if summary.complete else "the summary is cut: its total is missing or differs"
    notes = ("times are of the CPU in the kernel, or from entry to return (strace -w): the file does not say which",)
    return Seen((_blank(summary.syscalls, "time"),), notes, "degraded" if cut else None, cut, tool="strace")


# ---------------------------------------------------------------- what is unknown


def _stacks(rows: Sequence[Row], rate_hz: float | None) -> tuple[Table, Table]:
    """`stacks` and `functions`; without a rate the number of samples is unknown."""
    from orchestrator.formats.stacks import functions_table, stacks_table

    stacks, functions = stacks_table(rows, rate_hz or 1.0), functions_table(rows, rate_hz or 1.0)
    if rate_hz is None:
        return _blank(stacks, "samples"), _blank(functions, "self_samples", "total_samples")
    return stacks, functions


def _blank(table: Table, *names: str) -> Table:
    """The table with nothing known in these columns, as far as it has them."""
    unknown = {name: [None] * len(table) for name in names if name in table.columns}
    return replace(table, columns={**table.columns, **unknown})


KINDS: Mapping[str, Kind] = {
    "nsys-sqlite": Kind("nsys", "sqlite", about=_about_nsys, holds_env=True),
    "nsys-rep": Kind("nsys", "sqlite", about=_about_nsys, holds_env=True),
    "ncu-rep": Kind("ncu", "report", holds_env=True),
    "ncu-csv": Kind("ncu", "report", opens_gzip=True),
    "kineto": Kind("torch", "trace", _kineto, opens_gzip=True, holds_env=True),
    "memory-snapshot": Kind("torch", "history", _memory),
    "speedscope": Kind("speedscope", "profile", _speedscope, opens_gzip=True),
    "py-spy-trace": Kind("py-spy", "profile", _chrometrace),
    "folded": Kind("folded", "profile", _folded),
    "perf-script": Kind("perf", "script", _script),
    "perf-stat": Kind("perf", "counters", options={"mode": "stat"}),
    "strace-log": Kind("strace", "trace", _strace),
    "strace-summary": Kind("strace", "summary", _strace_summary),
}
"""By the name of the kind. A report of nsys is read through the export that was made of it."""
