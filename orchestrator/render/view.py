"""What every renderer says in the same words: the verdict, quantities with units, the order and shares of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import units
from orchestrator.model import (
    IMPORT,
    USABLE,
    Abstention,
    Attached,
    Capture,
    Exit,
    Finding,
    Metric,
    PassRecord,
    Process,
    Trust,
)

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

Tone = Literal["good", "warn", "bad"]

UNKNOWN = "unknown"

_LADDERS: Mapping[str, tuple[tuple[float, str], ...]] = {
    "ns": ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")),
    "s": ((1, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "MHz": ((1e3, "GHz"), (1, "MHz")),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B")),
}

TABLES: Mapping[str, tuple[str, str]] = {
    "threads": ("Threads", "every thread at two looks: whether it has moved between them, and what it is in"),
    "collectives": ("Collectives", "what the flight recorders had kept of each rank's calls, the oldest first"),
    "steps": ("Steps", "what each step of the program took, phase by phase; the chart draws them"),
    "ranks": ("Ranks", "each rank of the job in each pass, beside the others"),
    "rank_steps": ("Steps by rank", "what each rank had to do in each step, and how far it was behind the median rank"),
    "functions": ("Functions", "self: the function was running itself; total: it was anywhere on the stack"),
    "host_time": ("Time of threads", "by state and place, joined from the captures of several tools"),
    "gpu_time": ("Time of GPUs", "busy, and idle by cause, in the window"),
    "gpu_work": ("Work of GPUs", "by name, in each part of the run"),
    "syscalls_by_class": ("System calls by class", "the table of system calls, added up"),
    "syscalls": ("System calls", "wall time from entering the kernel to leaving it, unless it says system"),
    "syscall_paths": ("Files and sockets", "the calls that named them or used a descriptor of theirs"),
    "syscall_events": ("Slowest system calls", "single calls, the longest first"),
    "os_calls_summary": ("Operating system calls", "library calls into the operating system, as nsys traced them"),
    "gpu_kernel_summary": ("GPU kernels by name", "time on the device"),
    "gpu_launch_summary": ("Kernel launches", "from the start of the call to the start of the kernel"),
    "gpu_transfer_summary": ("GPU transfers by kind", "copies and sets, time on the device"),
    "gpu_transfer_sizes": ("GPU transfers by size", "bytes of a copy or set"),
    "gpu_utilization": ("GPU utilisation", "each GPU from its first work to the end of its last"),
    "gpu_gaps": ("GPU gaps", "times without work on a GPU, the longest of each, and what the launching thread did"),
    "cuda_api_summary": ("CUDA calls", "time of the calling thread in the CUDA interface"),
    "torch_ops": ("PyTorch operators", "as torch.profiler's key_averages has them, each set of input shapes alone"),
    "memory": ("Allocations", "single blocks taken and given back, by PyTorch's allocators, the largest first"),
    "counters": ("Counters", "events of the processor and the kernel, counted by perf over the whole recording"),
    "kernel_profiles": ("Kernels in depth", "the launches that ncu measured, one row each"),
    "kernel_metrics": ("Kernel metrics", "hardware counters of the kernels looked at in depth"),
    "kernel_rules": ("Kernel advice", "what ncu's own rules say about these kernels"),
    "range_summary": ("Ranges by name", "NVTX ranges, as nsys adds them up; what is nested counts in both"),
    "ranges": ("Ranges", "named stretches of the program"),
    "gpu_kernels": ("GPU kernels", "single launches, the longest first"),
    "gpu_transfers": ("GPU transfers", "single transfers, the longest first"),
    "gpu_graphs": ("CUDA graphs", "single runs of graphs that were traced as a whole, the longest first"),
    "cuda_calls": ("Single CUDA calls", "the longest first"),
    "op_spans": ("Single operators", "the longest first"),
    "os_calls": ("Single operating system calls", "library calls, the longest first"),
    "syscall_spans": ("Single system calls", "those that took a while, the longest first"),
    "samples": ("Samples", "every reading of the monitor; the small charts draw the main ones"),
    "stacks": ("Stacks", "whole call stacks; the flame graph draws them"),
    "stack_spans": ("Stacks over time", "stretches in which a thread's stack stayed the same"),
    "runs": ("Runs", "every start of the program"),
}  # fmt: skip
"""Heading and explanation of the tables, in the order in which a reader wants them. Tables of other names follow."""

COSTS = ("total_ns", "duration_ns", "self_samples", "weight_ns", "samples", "speedup_pct", "cpu_self_ns", "bytes")
_PARTITIONS = ("functions", "syscalls", "syscalls_by_class", "syscall_paths", "stacks")
"""Tables (besides `*_summary`) whose rows add up to a whole, so that a share of it says something."""

_TRUSTS: tuple[Trust, ...] = ("high", "distorted", "low")


@dataclass(frozen=True)
class Verdict:
    """The outcome for a reader: a word, one sentence, and how the target ended."""

    tone: Tone
    word: str
    sentence: str
    target: str


@dataclass(frozen=True)
class PassRow:
    """A pass as text. What is None is not known."""

    id: str
    role: str
    collectors: str
    wall: str | None
    slowdown: str | None
    step_slowdown: str | None
    """Of the usual step, likewise."""
    trust: Trust | None
    remark: str
    """Why it has no slowdown or no trust, where it can't have one."""
    ended: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Looked:
    """A process that was looked at while it ran, as text, over all passes."""

    pid: int
    rank: str
    """`1 of 2`; "" where it has none, or none is known."""
    what: str
    """Its command line, without secrets."""
    role: str
    """Whether it was named or whose child it is, and as what it only starts others."""
    course: str
    """Its state before the first look and after the last."""
    left: str
    """What it does now: whether it goes on."""
    tone: Tone


@dataclass(frozen=True)
class Figure:
    """A metric as text. What is None is not known."""

    name: str
    label: str
    value: str | None
    interval: str | None
    half_width_pct: str | None
    median: str | None
    stddev: str | None
    smallest: str | None
    largest: str | None
    n: int | None
    outliers: tuple[str, ...]


def verdict(report: Report) -> Verdict:
    """The outcome in one sentence."""
    outcome = report.outcome
    ended_so = Exit(outcome.target_exit_code, outcome.target_signal)
    known = (outcome.target_exit_code, outcome.target_signal) != (None, None)
    last = next((p for p in reversed(report.passes) if p.run), None) if attached(report) else None
    target = ended_so.describe() if known else (ended(last) if last else None) or "end unknown"
    told = stop(outcome.reason or _bounds(report))
    told = told[0].upper() + told[1:] if told.startswith(("the ", "a ")) else told
    return Verdict("bad" if outcome.exit_code else "good", words(outcome.status), told, target)


def _bounds(report: Report) -> str:
    """What bounds the program; without a diagnosis its costliest finding or its time, and who gave data."""
    if report.headline is not None:
        return report.headline.sentence
    first = _costliest(report) or (IMPORTED if report.run.imported else _timed(report))
    return f"{first}; {_gave(report)}"


BOUNDS: Mapping[str, str] = {
    "cpu": "the program on the CPU",
    "gpu": "the GPU",
    "gaps": "gaps between the GPU's work",
    "none": "something outside of it",
    "unknown": "what is not known",
}
"""What a headline's `bound` says."""


def findings(report: Report) -> tuple[list[Finding], list[Finding]]:
    """Those that ask for something to be done, and those that only say where the time goes; each in their order."""
    return [f for f in report.findings if not f.healthy], [f for f in report.findings if f.healthy]


def price(finding: Finding) -> str:
    """`40.8 % of the bare run's wall time (1.31 s)`; "" where nothing recoverable was measured."""
    seconds = duration(finding.cost_s) or ""
    if finding.cost_pct is None:
        return seconds
    share = f"{finding.cost_pct:.3g} % of {finding.of or UNKNOWN}"
    return f"{share} ({seconds})" if seconds else share


def places(finding: Finding) -> list[tuple[str, str]]:
    """Where it is, as (label, text); a file and its line are one place."""
    known = {key: plain(value) or "" for key, value in finding.where.items() if value is not None}
    if "file" in known and "line" in known:
        known["file"] += f":{finding.where['line']}"
        del known["line"]
    return [(label(key), text) for key, text in known.items()]


def amount(value: float | str | None, unit: str | None) -> str | None:
    """A value of a finding's evidence in the multiple of its unit in which it reads well."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and unit in ("s", "ns", "bytes"):
        return size(value) if unit == "bytes" else duration(value if unit == "s" else value / 1e9)
    told = plain(value)
    return None if told is None else f"{told} {unit or ''}".rstrip()


def abstentions(report: Report) -> list[tuple[str, list[Abstention]]]:
    """The rules that had nothing to judge by, by the part of a plan that would feed them."""
    found: dict[str, list[Abstention]] = {}
    for one in report.abstentions:
        found.setdefault(one.feed.strip("\n"), []).append(one)
    return list(found.items())


def trusts(report: Report) -> dict[str, Trust]:
    """By capture, how far to trust it, where that is known."""
    return {capture.id: capture.trust for capture in report.captures if capture.trust}


def attached(report: Report) -> bool:
    """Whether the run looked at processes that ran already: what profrun starts has an end that it sees."""
    runs = [p.run for p in report.passes if p.run]
    return bool(runs) and all(run.exit is None and not run.start_error for run in runs)


STATES: Mapping[str, str] = {
    "R": "running", "S": "sleeping", "D": "waiting for a device", "I": "idle", "T": "stopped", "t": "held by a tracer",
}  # fmt: skip
"""What the kernel's letters mean (proc(5))."""


def processes(report: Report) -> list[Looked]:
    """Every process that was looked at, parents before children; empty where profrun had started the program."""
    seen: dict[tuple[int, int | None], list[Attached]] = {}
    for one in (one for p in report.passes if p.run for one in p.run.attached):
        seen.setdefault((one.pid, one.born), []).append(one)
    last = next((p.run.attached for p in reversed(report.passes) if p.run and p.run.attached), ())
    return [_looked(found[0], found[-1], found[-1] in last) for found in seen.values()]


def _looked(first: Attached, last: Attached, until_the_end: bool) -> Looked:
    before = "not there yet" if first.state_before is None else _state(first.state_before, first.tracer_before)
    after = "ended" if last.state_after is None or not until_the_end else _state(last.state_after, last.tracer_after)
    stood, stands = first.state_before in ("T", "t"), last.state_after in ("T", "t")
    left, tone = _LEFT[after == "ended", stands, stood]
    size = f" of {last.world_size}" if last.world_size is not None else ""
    return Looked(
        pid=last.pid,
        rank="" if last.rank is None else f"{last.rank}{size}",
        what=" ".join(last.argv) or "(no command line)",
        role=("named" if last.parent is None else f"child of {last.parent}")
        + (f", only starts others ({last.wrapper})" if last.wrapper else ""),
        course=before if before == after else f"{before} → {after}",
        left=left,
        tone=tone,
    )


_LEFT: Mapping[tuple[bool, bool, bool], tuple[str, Tone]] = {
    (False, False, False): ("goes on", "good"),
    (False, False, True): ("goes on, and was stopped before", "warn"),
    (False, True, True): ("stopped, as before", "good"),
    (False, True, False): ("stopped, and was not before", "bad"),
    **{(True, stands, stood): ("ended by itself", "good") for stands in (False, True) for stood in (False, True)},
}
"""By whether it has ended, stands now, and stood before."""


def _state(letter: str, tracer: int) -> str:
    return STATES.get(letter, letter) + (f" (traced by {tracer})" if tracer else "")


def _costliest(report: Report) -> str | None:
    """The first finding that matters, with its price. What casts doubt on figures does not take their place."""
    grave = (f for f in report.findings if f.severity in ("critical", "major"))
    first = next((f for f in grave if f.severity == "critical" or f.category != "environment"), None)
    if first is None:
        return None
    price = f" ({first.cost_pct:.3g} % of {first.of})" if first.cost_pct is not None and first.of else ""
    return f"{first.title.rstrip('.')}{price}"


def _timed(report: Report) -> str:
    wall = report.metrics.get("wall_s")
    if wall is None or wall.value is None:
        return "a process that ran already was looked at" if attached(report) else "the bare run was not timed"
    shown = figure("wall_s", wall)
    runs = f"mean of {wall.n} bare runs" if (wall.n or 1) > 1 else "one bare run"
    return f"the program takes {shown.value} ({', '.join(t for t in (runs, shown.half_width_pct) if t)})"


IMPORTED = "the files were measured elsewhere: there is no bare run to compare with"


def file_name(capture: Capture) -> str:
    """The file that an imported capture was made of."""
    return str(capture.options.get("file") or capture.id)


def _gave(report: Report) -> str:
    if report.run.imported:
        read = sum(c.status in USABLE for c in report.captures)
        return f"{read} of {_files(len(report.captures))} with usable data"
    usable, lost = collectors(report)
    total = len(usable) + len(lost)
    if not total:
        return "no collector took part"
    if not lost:
        named = {1: "its one collector", 2: "both collectors"}.get(total, f"all {total} collectors")
        return f"{named} gave usable data"
    why = ", ".join(f"{name}: {words(status)}" for name, status in lost.items())
    return f"{len(usable)} of {total} collectors gave usable data ({why})"


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


def collectors(report: Report) -> tuple[list[str], dict[str, str]]:
    """The collectors whose captures are all usable, and the others with the status of the first that is not."""
    lost: dict[str, str] = {}
    for capture in report.captures:
        if capture.status not in USABLE:
            lost.setdefault(capture.collector, capture.status)
    return [n for n in dict.fromkeys(c.collector for c in report.captures) if n not in lost], lost


def tone(status: str) -> Tone:
    """How good a capture's or a step's status is."""
    if status in ("ok", "applied", "already"):
        return "good"
    return (
        "bad" if status in ("tool_failed", "blocked", "unreadable", "timed_out", "target_failed", "failed") else "warn"
    )


def words(name: str) -> str:
    """`tool_failed` -> tool failed."""
    return name.replace("_", " ")


def stop(text: str) -> str:
    """With a full stop at its end."""
    text = text.strip()
    return f"{text}." if text and not text.endswith((".", "!", "?", "…", ":")) else text


def duration(seconds: float | None) -> str | None:
    return None if seconds is None else units.show_duration(seconds).replace(" us", " µs")


def moment(iso: str) -> str:
    """2026-09-21T10:13:20Z -> 2026-09-21 10:13:20 UTC."""
    return iso.replace("T", " ").removesuffix("+00:00").removesuffix("Z") + " UTC"


def size(count: float | None) -> str | None:
    return None if count is None else units.show_bytes(count)


def scale(unit: str | None, magnitude: float) -> tuple[float, str]:
    """The factor and the name of the unit in which a quantity of that magnitude reads well."""
    ladder = _LADDERS.get(unit or "", ((1.0, unit or ""),))
    return next((step for step in ladder if abs(magnitude) >= step[0]), ladder[-1] if magnitude else ladder[0])


def decimals(resolution: float) -> int:
    """How many decimals show two significant digits of `resolution`, at most 6."""
    if not resolution or not math.isfinite(resolution):
        return 0
    return max(0, min(6, 1 - math.floor(math.log10(abs(resolution)))))


def aligned(values: Sequence[float | None], unit: str) -> list[str | None]:
    """Quantities in the one unit and with the decimals that suit the largest, so that they compare at a glance."""
    known = [abs(v) for v in values if v is not None]
    factor, name = scale(unit, max(known, default=0.0))
    places = decimals(max(known, default=0.0) / factor / 100)
    least: float = 10.0**-places

    def show(value: float) -> str:
        tiny = 0 < value / factor < least / 2
        return f"<{least:.{places}f} {name}" if tiny else f"{value / factor:,.{places}f} {name}"

    return [None if v is None else show(v) for v in values]


def percent(part: float) -> str:
    """12.3 %; a little that is not nothing is <0.1 %."""
    return "<0.1 %" if 0 < part < 0.0005 else f"{100 * part:.1f} %"


def silent(capture: Capture) -> bool:
    """Whether there is nothing to tell of it but that it went well: the captures of the bare runs."""
    return capture.status == "ok" and not (capture.artifacts or capture.notes or capture.commands)


def figures(report: Report) -> list[Figure]:
    """All metrics as text, profrun's own first."""
    own = ("wall_s", "step_s", "user_s", "sys_s", "max_rss_bytes")
    names = [n for n in own if n in report.metrics] + sorted(set(report.metrics) - set(own))
    return [figure(name, report.metrics[name]) for name in names]


def figure(name: str, metric: Metric) -> Figure:
    """A metric as text: all its values in one unit, with as many decimals as its interval deserves."""
    known = [v for v in (metric.value, metric.median) if v is not None and math.isfinite(v)]
    factor, unit = scale(_unit(name, metric), known[0] if known else 0.0)
    half = (metric.ci95[1] - metric.ci95[0]) / 2 if metric.ci95 else None
    counted = metric.unit in _COUNTED and all(v.is_integer() for v in map(float, known))
    places = 0 if counted else decimals((half or abs(known[0] if known else 0.0) / 100) / factor)

    def show(value: float | None) -> str | None:
        if value is None or not math.isfinite(value):
            return None
        return f"{value / factor:,.{places}f} {unit}".rstrip()

    least = 0.0 if name in LABELS else -math.inf  # of few runs the interval reaches below what a time can be
    low, high = (show(max(v, least)) for v in metric.ci95) if metric.ci95 else (None, None)
    return Figure(
        name,
        label=_metric_label(name),
        value=show(metric.value),
        interval=f"{low.removesuffix(unit).rstrip()} to {high}" if low and high else None,
        half_width_pct=_half_width(100 * half / metric.value) if half is not None and metric.value else None,
        median=show(metric.median),
        stddev=show(metric.stddev),
        smallest=show(metric.min),
        largest=show(metric.max),
        n=metric.n,
        outliers=metric.outliers,
    )


def _metric_label(name: str) -> str:
    """Of a figure of one of several files with the name of its capture."""
    base, _, number = name.partition(f".{IMPORT}-")
    label = LABELS.get(base, words(base))
    return f"{label}, {IMPORT}-{number}" if number else label


def _half_width(pct: float) -> str:
    return f"±{pct:.2g} %" if pct < 99.5 else f"±{pct:,.0f} %"


LABELS: Mapping[str, str] = {
    "wall_s": "Wall time",
    "step_s": "Steady step",
    "quick_step_s": "Quickest steps",
    "steps": "Steps",
    "warmup_steps": "Warm-up steps",
    "user_s": "User CPU time",
    "sys_s": "System CPU time",
    "max_rss_bytes": "Peak memory",
    "host_cpu_pct": "Processors busy, host",
    "tree_cpu_pct": "Processor time, all processes",
    "tree_rss_peak_bytes": "Peak memory, all processes",
    "monitor_cpu_pct": "Processor time, monitor",
    "cpus_utilized": "Processors used",
    "context_switches_per_s": "Context switches",
    "instructions_per_cycle": "Instructions a cycle",
    "syscalls_per_s": "System calls a second",
    "gpu_time_s": "GPU time, graphs and kernels",
    "gpu_kernel_time_s": "GPU kernel time",
    "gpu_graph_time_s": "GPU time of CUDA graphs",
    "gpu_kernels": "GPU kernels",
    "gpu_graphs": "CUDA graphs",
    "cuda_allocated_bytes": "CUDA memory allocated",
    "cuda_reserved_bytes": "CUDA memory reserved",
    "cuda_segments": "CUDA allocator",
    "profiled_launches": "Kernels in depth",
    "samples": "Sampled",
    "sampled_time_s": "Sampled time",
    "syscalls": "System calls",
    "syscall_time_s": "Time in system calls",
}
_COUNTED = ("steps", "launches", "segments", "samples", "calls")
"""Units of figures that are whole numbers."""


def _unit(name: str, metric: Metric) -> str | None:
    if metric.unit:
        return metric.unit
    return next(
        (unit for ending, unit in (("_s", "s"), ("_ns", "ns"), ("_bytes", "bytes")) if name.endswith(ending)), None
    )


def passes(report: Report) -> list[PassRow]:
    """The passes as text, their wall times in one unit."""
    walls = aligned([p.run.wall_s if p.run and not p.run.start_error else None for p in report.passes], "s")
    return [_pass(report, record, wall) for record, wall in zip(report.passes, walls, strict=True)]


def _pass(report: Report, record: PassRecord, wall: str | None) -> PassRow:
    run = record.run
    more = (
        *(["leftover processes: " + leftovers(run.leftovers)] if run and run.leftovers else []),
        *(run.notes if run else ()),
    )
    tries = (f"{record.attempts} attempts",) if record.attempts > 1 else ()
    return PassRow(
        id=record.id,
        role=f"{record.role} {record.repeat}" if record.role == "bare" else record.role.replace("warmup", "warm-up"),
        collectors=", ".join(record.collectors) or "none",
        wall=wall,
        slowdown=slowdown(record.slowdown, record.slowdown_ci95),
        step_slowdown=slowdown(record.step_slowdown, record.step_slowdown_ci95),
        trust=trust(report, record),
        remark={"bare": "the reference", "warmup": "not counted", "profiled": "no usable data"}[record.role],
        ended=ended(record),
        notes=tuple(dict.fromkeys((*tries, *record.notes, *more))),
    )


def leftovers(processes: Sequence[Process]) -> str:
    return "; ".join(f"{p.pid} {short(' '.join(p.argv), 80)}" for p in processes)


def slowdown(ratio: float | None, interval: tuple[float, float] | None) -> str | None:
    """2.75× (2.61 to 2.90); None where it was not compared."""
    if ratio is None:
        return None
    return _times(ratio) + (f"× ({_times(interval[0])} to {_times(interval[1])})" if interval else "×")


def _times(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.1f}"


def trust(report: Report, record: PassRecord) -> Trust | None:
    """The least trust among the usable captures of a profiled pass; None where there is none."""
    found = [c.trust for c in report.captures if c.pass_id == record.id and c.status in USABLE and c.trust]
    return max(found, key=_TRUSTS.index, default=None) if record.role == "profiled" else None


def ended(record: PassRecord) -> str | None:
    """How the target of a pass ended."""
    run = record.run
    if run is None:
        return None
    if run.start_error:
        return f"not started: {run.start_error}"
    if run.exit is None:
        return "ended; how is unknown" if run.ended_by == "itself" else "still running"
    return run.exit.describe() + _ENDERS.get(run.ended_by, "")


_ENDERS = {"window": " (ended with the window)", "timeout": " (time-out)", "interrupt": " (interrupted)"}


def tool(capture: Capture) -> str:
    """strace 6.1; what needs no tool, or was not started, says so."""
    found = capture.tool
    if capture.imported:
        return f"{found.name} {found.version or '(version unknown)'}" if found else "tool unknown"
    if found and found.path:
        return f"{found.name} {found.version or '(version unknown)'}"
    return "no tool needed" if found else "not started"


def drifted(report: Report) -> list[str]:
    """What was not as the plan had set it when the target really started, each with its reason."""
    return [
        stop(f"{s.use}: {s.reason or 'it is not as the plan wants it'}")
        for s in report.environment
        if s.status == "drifted"
    ]


def plain(value: Any) -> str | None:
    """Any JSON-able value in one line; None stays unknown."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{label(str(k))}: {plain(v) or UNKNOWN}" for k, v in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(v) or UNKNOWN for v in value) or "none"
    return str(value)


def settings(value: Any) -> str | None:
    """Options or wishes in one line; one that is None or an empty list was left to itself, so it is no setting."""
    if isinstance(value, Mapping):
        return plain({k: v for k, v in value.items() if v not in (None, [], ())})
    return plain(value)


def facts(machine: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str | None]]]]:
    """The machine as groups of (label, text): what is nested becomes a group, numbered if there are several. Of a job
    on several hosts each has one."""
    own = {key: value for key, value in machine.items() if key != "hosts"}
    top = {k: v for k, v in own.items() if not _nested(v)}
    groups = [("host", top)] if top else []
    groups += [(f"host {name}", _outline(told)) for name, told in (machine.get("hosts") or {}).items()]
    for key, value in own.items():
        members = [] if not _nested(value) else [value] if isinstance(value, Mapping) else value
        numbered = len(members) > 1
        groups += [(f"{label(key)} {i}" if numbered else label(key), m) for i, m in enumerate(members)]
    return [(name, list(_pairs(group))) for name, group in groups]


def _outline(told: Mapping[str, Any]) -> dict[str, Any]:
    """What a host of a job says of itself, in one group."""
    gpus = [str(gpu.get("name")) for gpu in told.get("gpus") or ()]
    known = {"cpu": (told.get("cpu") or {}).get("model"), "gpus": ", ".join(gpus) or "none"}
    return {**{key: value for key, value in told.items() if not _nested(value)}, **known}


def _nested(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _pairs(group: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    for key, value in group.items():
        if key.endswith("_bytes") and (value is None or isinstance(value, (int, float))):
            yield label(key.removesuffix("_bytes")), size(value)
        else:
            yield label(key), plain(value)


def label(key: str) -> str:
    """`cpu_model` -> CPU model; names in capitals, such as environment variables, stay as they are."""
    return (
        key
        if key.isupper()
        else re.sub(r"\b(cpu|gpu|os|smt|numa|pci|uuid|pid)(s?)\b", lambda m: m[1].upper() + m[2], words(key))
    )


def table_names(report: Report) -> list[str]:
    """The tables of the report in reading order."""
    return sorted(report.tables, key=lambda n: (list(TABLES).index(n) if n in TABLES else len(TABLES), n))


def title(name: str) -> str:
    return TABLES[name][0] if name in TABLES else label(name)[:1].upper() + label(name)[1:]


def cost_column(frame: pandas.DataFrame) -> str | None:
    """The column that says what a row costs; None where the rows have an order of their own."""
    return next((c for c in COSTS if c in frame.columns and frame[c].notna().any()), None)


def ranked(frame: pandas.DataFrame, rows: int) -> pandas.DataFrame:
    """The first `rows` rows by cost, or as they stand."""
    cost = cost_column(frame)
    if cost is None:
        return frame.head(rows)
    return frame.sort_values(cost, ascending=False, na_position="last", kind="stable").head(rows)


def values(series: pandas.Series) -> list[Any]:
    """A column as Python objects, None for what is unknown or no number; what is no whole number with nine digits."""
    found = series.astype(object).where(series.notna(), None).tolist()
    return [_digits(v) if isinstance(v, float) else v for v in found]


def _digits(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    return value if value.is_integer() and abs(value) < 2**53 else float(f"{value:.9g}")


def shares(report: Report, name: str, frame: pandas.DataFrame) -> tuple[pandas.Series, str] | None:
    """Each row's part (0 to 1) of the cost of all rows of the same capture and kind, and the words for that whole.

    None where rows are no parts of a whole, or cost is unknown."""
    if "self_pct" in frame.columns:
        return frame["self_pct"] / 100, sampled(report, frame)
    cost = cost_column(frame)
    if cost is None or not (name.endswith("_summary") or name in _PARTITIONS):
        return None
    keys = [frame[k] for k in ("capture", "kind", "time") if k in frame.columns]
    grouped = frame[cost].groupby(keys, dropna=False)
    whole = grouped.transform("sum")
    parts = frame[cost].astype("Float64") / whole
    wholes = [float(w) for w in grouped.sum()]
    words_for_it = _WHOLES if len(wholes) > 1 else _amount(wholes[0], cost)
    return parts.where(parts.notna() & (whole != 0)), words_for_it


def sampled(report: Report, frame: pandas.DataFrame) -> str:
    """What the percentages of the table `functions` are a share of: the time of all stacks, or else their samples."""
    kinds = frame[["capture", "kind"]].drop_duplicates()
    if len(kinds) > 1:
        return _WHOLES
    stacks = report.table("stacks")
    if stacks is not None:
        own = stacks[(stacks["capture"] == kinds.iloc[0, 0]) & (stacks["kind"] == kinds.iloc[0, 1])]
        for cost in ("weight_ns", "samples"):
            if own[cost].notna().any():
                return _amount(float(own[cost].sum()), cost)
    return "all samples"


_WHOLES = "its capture and kind"


def _amount(whole: float, cost: str) -> str:
    return f"{whole:,.0f} samples" if cost.endswith("samples") else duration(whole / 1e9) or UNKNOWN


def short(text: str, length: int) -> str:
    """`text` with its middle left out when it is too long; both ends of a name tell names apart."""
    if len(text) <= length:
        return text
    keep = (length - 1) // 2
    return f"{text[: length - 1 - keep]}…{text[-keep:]}"


_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def visible(text: str) -> str:
    """Control characters, direction marks, lone surrogates as escapes: a name must not change what stands around it."""
    return _INVISIBLE.sub(lambda m: f"\\x{ord(m[0]):02x}" if ord(m[0]) < 256 else f"\\u{ord(m[0]):04x}", text)
