"""Rules over what the monitor has sampled of the machine: too many threads for its processors, memory that is made anew
or runs short, a disk that all wait for, GPUs held down or left idle, and others at work beside the program.

Only samples of the steady steps count, where the pass has steps: importing takes page faults by the hundred thousand.
A rate covers the time since the reading before, so the first reading of the window is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator import judging
from orchestrator.model import USABLE, Abstention, Capture, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

CROWDED = 1.5
"""Ready threads for each processor from which on they stand in each other's way. A training loop of as many threads as
processors never has more than one."""
OTHERS = 0.25
"""Processors' worth of others' work, for each processor, that is worth a word."""
FAULTS_PER_S = 2_000.0
"""Minor faults of the whole program, from which on they are looked at: 8 MB of fresh memory a second."""
FAULT_S = (0.5e-6, 10e-6)
"""What a minor fault takes: entering the kernel and clearing 4 KiB take half a microsecond at least; 5 to 9 us on a
virtual machine (measured: first touch of 256 MB, less a second touch)."""
MAJOR_PER_S = 20.0
"""Major faults wait for the disk: milliseconds each on a hard disk, 0.1 ms on flash."""
SCARCE = 0.05
"""Of the machine's memory still available: below it the kernel gives up caches and begins to swap."""
HELD_DOWN = 0.1
"""Share of the samples in which a GPU said that it was too hot, or without power."""
OWN_TRAFFIC = 0.5
"""Share of the disks' traffic that has to be the program's own for their load to be its own."""
UNSEEN_BYTES = 64 << 20
"""A process with less memory on a GPU than this only has its context there."""
FEWEST = 3
"""Fewer samples of the steady steps say nothing."""

HOT = ("throttle_sw_thermal_slowdown", "throttle_hw_thermal_slowdown", "throttle_hw_slowdown",
       "throttle_hw_power_brake_slowdown")  # fmt: skip
"""A GPU at its power cap works as it is meant to; these are what nvml.h calls slowdowns."""


MUCH_FAULTING_PCT = 25.0
"""Healthy programs with large activations lose up to 15 % in this way, and are told calmly."""
ALSO_TOLD_BY_OTHERS = ("page_faults", "oversubscribed")
"""Rules whose matter other rules see as well, under its category; each other one has a cause of its own."""
MOST_NATIVE = 0.6
"""Page faults are put to a function that does this share of the native work."""


@dataclass(frozen=True)
class Sampled:
    """The samples of one pass. frame: of its steady steps where it has some; all: of the whole pass."""

    report: Report
    capture: Capture
    frame: pandas.DataFrame
    all: pandas.DataFrame
    pid: int | None
    """The process whose steps they are, else the target's first."""

    def mean(self, source: str, metric: str, subject: str | None = None) -> float | None:
        """Over the window; None where there are too few values."""
        values = self._values(source, metric, subject)
        return float(values.mean()) if len(values) >= FEWEST else None

    def _values(self, source: str, metric: str, subject: str | None) -> pandas.Series:
        rows = self.frame[(self.frame["source"] == source) & (self.frame["metric"] == metric)]
        return (rows if subject is None else rows[rows["subject"] == subject])["value"].dropna()

    def total(self, metric: str) -> float | None:
        """Of all processes of the target: the sum of their means, each over the whole window."""
        rows = self.frame[(self.frame["source"] == "process") & (self.frame["metric"] == metric)].dropna(
            subset=["value"]
        )
        readings = rows.groupby("subject")["value"].count().max() if len(rows) else 0
        return float(rows["value"].sum() / readings) if readings else None

    def main(self, metric: str) -> float | None:
        """Of the process whose steps these are. What is read by thread has fewer values than the others."""
        values = self._values("process", metric, str(self.pid))
        return float(values.mean()) if len(values) else None

    @cached_property
    def cpus(self) -> int | None:
        """Processors that the program may use."""
        cpu = self.report.machine.get("cpu") or {}
        allowed = [python.cpus for python in (self.capture.run.pythons if self.capture.run else ()) if python.cpus]
        known = max((_number_of(text) for text in allowed), default=None)
        return known or cpu.get("usable") or cpu.get("logical")

    @cached_property
    def online(self) -> int | None:
        return (self.report.machine.get("cpu") or {}).get("logical") or self.cpus


def _number_of(cpus: str) -> int:
    """Of a list such as 0-3,8."""
    ends = (part.split("-") for part in cpus.split(","))
    return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)


def sampled(report: Report) -> Iterator[Sampled]:
    """Each capture of a monitor with enough samples, the most trusted first."""
    rank = {"high": 0, "distorted": 1, "low": 2}
    captures = [c for c in report.captures if c.status in USABLE and c.collector == "monitor"]
    for capture in sorted(captures, key=lambda c: rank.get(c.trust or "high", 0)):
        rows = judging.of_capture(report.table("samples"), [capture.id])
        if rows is None:
            continue
        window, run = judging.steady_window(report, capture.pass_id), capture.run
        times = rows["time_ns"]
        inside = rows if window is None else rows[(times > window.start_ns) & (times <= window.end_ns)]
        first = inside["time_ns"].min()
        later = inside[inside["time_ns"] > first] if len(inside) else inside
        yield Sampled(report, capture, later, rows, window.pid if window else run.pid if run else None)


def _said(
    one: Sampled, rule: str, category: str, pct: float | None, title: str, advice: str, *evidence: Evidence,
    most: judging.Severity | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """The finding, where it costs enough. `most`: however much it costs, no more severe than this."""
    severe, whole = judging.severity(pct), judging.steady(one.report)
    if severe is None or pct is None:
        return
    if most and judging.severity(pct) in ("critical", "major"):
        severe = most
    yield Finding(
        rule=rule,
        category=category,
        severity=severe,
        title=f"{title}: {pct:.0f} % of {whole.of}",
        advice=advice,
        confidence=judging.confidence(one.report, [one.capture.id], "medium"),
        cost_s=whole.cost_s(pct),
        cost_pct=round(pct, 2),
        of=whole.of,
        evidence=evidence,
        sources=(one.capture.id,),
        cause=category if rule in ALSO_TOLD_BY_OTHERS else rule,
    )


def _proof(metric: str, value: float | None, unit: str) -> Evidence:
    return Evidence("samples", metric, None if value is None else round(value, 3), unit)


# ---------------------------------------------------------------- processors


def oversubscribed(one: Sampled) -> Iterator[Finding]:
    """More threads are ready than there are processors, and the program's own: each waits for its turn, a thread that
    others wait for among them (the barrier of an OpenMP loop waits for the slowest).

    Ready threads are those that run (CPU time over wall time) and those in the queue (schedstat of each thread): as
    many threads as processors never make 1.5 for each, however busy the machine is with other things. The cost lies
    between what the main thread spent in the queue itself and what all ready threads did: a thread in the queue holds
    up those that wait for it at the end of a parallel loop. Their middle is told, as far as those before them in the
    queue were the program's own: by its share of all that were ready on the machine (procs_running of /proc/stat)."""
    cpus, busy, queued, waited = one.cpus, one.total("cpu_pct"), one.total("queue_pct"), one.main("main_queue_pct")
    if not cpus or busy is None or queued is None or waited is None:
        return
    ready = (busy + queued) / 100
    if ready < CROWDED * cpus:
        return
    everyone = max(one.mean("host", "runnable") or 0.0, ready)
    least, most = min(waited, 100.0), 100 * queued / (busy + queued)
    pct = (least + max(least, most)) / 2 * (ready - 1) / (everyone - 1)
    threads, processes = one.mean("tree", "threads"), one.mean("tree", "processes")
    title = f"{ready:.0f} threads at a time want {_processors(cpus)}, and wait for their turn and for one another"
    advice = (
        f"Run no more threads than processors ({cpus}): OMP_NUM_THREADS, torch.set_num_threads, the DataLoader's "
        f"num_workers; workers times threads count.{_omp(one)}"
    )
    proof = (
        _proof("process main_queue_pct", waited, "% of the time"),
        _proof("process queue_pct", queued, "% (all threads)"),
        _proof("process cpu_pct", busy, "% (all threads)"),
        _proof("host runnable", one.mean("host", "runnable"), "threads of all programs"),
        _proof("tree threads", threads, "threads"),
        _proof("tree processes", processes, "processes"),
    )
    yield from _said(one, "oversubscribed", "cpu_oversubscription", pct, title, advice, *proof)


def _processors(count: int) -> str:
    return f"{count} processor{'' if count == 1 else 's'}"


def _omp(one: Sampled) -> str:
    environs = (python.environ or {} for python in (one.capture.run.pythons if one.capture.run else ()))
    value = next((env["OMP_NUM_THREADS"] for env in environs if env.get("OMP_NUM_THREADS")), None)
    return f" OMP_NUM_THREADS was {value}." if value else ""


def quota(one: Sampled) -> Iterator[Finding]:
    """The control group (a container's CPU limit) held the program back: it had used up its share of the period of
    100 ms, and stood still until the next. The counter adds up over processors, so it is told of each."""
    held = one.mean("host", "throttled_pct")
    if held is None or not one.cpus:
        return
    pct = min(100.0, held / one.cpus)
    title = "The container's CPU limit held the program back"
    advice = "Raise the limit (`--cpus`, resources.limits.cpu), or run as many threads as it allows."
    yield from _said(
        one, "quota", "cpu_oversubscription", pct, title, advice, _proof("host throttled_pct", held, "% (all groups)")
    )


def neighbours(one: Sampled) -> Iterator[Finding]:
    """Others were at work while the program was measured: more than a quarter of each processor is neither the
    program's nor the monitor's own, or the hypervisor took its share (steal). Passes with other tools beside the
    monitor don't tell. It is nothing that the program could mend, and its times are those of a busy machine."""
    host, busy, steal = one.mean("host", "cpu_pct"), one.mean("tree", "cpu_pct"), one.mean("host", "cpu_steal_pct")
    beside = [c for c in one.report.captures if c.pass_id == one.capture.pass_id and c.id != one.capture.id]
    if steal is not None and steal >= judging.MAJOR_PCT:
        title = "The hypervisor gave the processors to others (steal)"
        advice = "Measure on a machine with processors of its own, or repeat when it is quieter."
        yield from _said(
            one, "steal", "environment", steal, title, advice, _proof("host cpu_steal_pct", steal, "%"), most="minor"
        )
    if host is None or busy is None or not one.online or beside:
        return
    own = busy + (one.mean("monitor", "cpu_pct") or 0.0)
    others = (host * one.online - own) / 100
    if others < OTHERS * one.online:
        return
    whole = judging.steady(one.report)
    yield Finding(
        rule="neighbours",
        category="environment",
        severity="minor",
        title=f"Other programs kept {others:.1f} of {_processors(one.online)} busy while it was measured",
        advice="End them or wait (`use: cpu_idle` in the plan), or keep some processors for the program (`affinity`).",
        confidence=judging.confidence(one.report, [one.capture.id]),
        of=whole.of,
        evidence=(_proof("host cpu_pct", host, "%"), _proof("tree cpu_pct", busy, "%")),
        sources=(one.capture.id,),
        cause="neighbours",
    )


# ---------------------------------------------------------------- memory and disks


def page_faults(one: Sampled) -> Iterator[Finding]:
    """Fresh memory is taken all the time: each page is cleared and mapped at its first touch, in the kernel. The cost
    is the main process's time in the kernel, as far as the faults explain it: at least 0.5, at most 10 us for each; it
    is that of all its threads, so each of those at work has its part of it."""
    faults, system = one.main("minor_faults_per_s"), one.main("cpu_system_pct")
    if faults is None or faults < FAULTS_PER_S:
        return
    least, most = (100 * faults * seconds for seconds in FAULT_S)
    at_work = max(1.0, (one.main("cpu_pct") or 0.0) / 100)
    pct = min(100.0, (least if system is None else min(max(system, least), most)) / at_work)
    title = f"The program touches {faults * 4096 / 1e6:,.0f} MB of fresh memory a second"
    advice = (
        "Keep buffers and write into them (`out=`, in-place operators, preallocated batches); or let the allocator "
        "keep what is freed (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_; jemalloc, tcmalloc by LD_PRELOAD)."
    )
    proof = (_proof("process minor_faults_per_s", faults, "1/s"), _proof("process cpu_system_pct", system, "%"))
    limit: judging.Severity | None = "minor" if pct < MUCH_FAULTING_PCT else None
    for finding in _said(one, "page_faults", "memory_management", pct, title, advice, *proof, most=limit):
        yield replace(finding, where=_where_native(one.report, pct))


def _where_native(report: Report, pct: float) -> dict[str, Any]:
    """The function in which most of the native work is done: memory is first touched by who works on it, in no frame of
    its own. Else the one that copies, beside the phases of the step, for as long as the faults take: that is into fresh
    memory."""
    frame = report.table("host_time")
    if frame is None:
        return {}
    steady = frame[(frame["role"] == "main") & frame["part"].isin(["steady", "all"])]
    native = steady[steady["state"].isin(["native", "memory"])]
    copying = native[native["op"].isin(list(judging.COPYING)) & native["phase"].isna()]
    for rows, least_ns in (
        (native, MOST_NATIVE * native["total_ns"].sum()),
        (copying, pct / 100 * steady["part_ns"].max() if len(steady) else 0.0),
    ):
        spent = rows.groupby(["function", "file"])["total_ns"].sum()
        if len(spent) and spent.max() >= least_ns:
            function, file = spent.idxmax()
            return {"function": str(function), "file": str(file)}
    return {}


def memory_short(one: Sampled) -> Iterator[Finding]:
    """Memory runs out: tasks wait for it (pressure), pages come back from the disk (major faults), and next to none is
    left. What it costs is the share of the time in which some task waited for memory."""
    pressure, major = one.mean("host", "pressure_memory_some_pct"), one.main("major_faults_per_s")
    whole_bytes = float(one.report.machine.get("memory_bytes") or 0)
    left = one.frame[(one.frame["source"] == "host") & (one.frame["metric"] == "memory_available_bytes")]["value"].min()
    scarce = bool(whole_bytes) and bool(left == left) and left < SCARCE * whole_bytes
    if pressure is None or not (scarce or (major or 0.0) >= MAJOR_PER_S):
        return
    title = "Memory runs short: the kernel takes pages away and brings them back"
    advice = "Use smaller batches or fewer workers, read through a map instead of copies, or take a larger machine."
    proof = (
        _proof("host pressure_memory_some_pct", pressure, "%"),
        _proof("process major_faults_per_s", major, "1/s"),
        _proof("host memory_available_bytes", float(left) if scarce else None, "bytes"),
    )
    yield from _said(one, "memory_short", "memory_management", pressure, title, advice, *proof)


def disk(one: Sampled) -> Iterator[Finding]:
    """Tasks wait for the disk (pressure, psi.rst of the kernel), and most of its traffic is the program's own. It is
    told as evidence of file_io; which thread waited, a profiler tells."""
    waited = one.mean("host", "pressure_io_full_pct")
    traffic = sum(one.mean("host", f"disk_{way}_bytes_per_s") or 0.0 for way in ("read", "write"))
    own = sum(one.total(f"disk_{way}_bytes_per_s") or 0.0 for way in ("read", "write"))
    if waited is None or not traffic or own < OWN_TRAFFIC * traffic:
        return
    title = f"The program waits for the disk, to which it moves {own / 1e6:,.1f} MB/s"
    advice = "Read ahead in workers, write in larger pieces, or keep the data on a faster disk or in memory."
    proof = (_proof("host pressure_io_full_pct", waited, "%"), _proof("process disk_bytes_per_s", own, "bytes/s"))
    yield from _said(one, "disk", "file_io", waited, title, advice, *proof)


# ---------------------------------------------------------------- GPUs


def gpu_held_down(one: Sampled) -> Iterator[Finding]:
    """A GPU ran slower because it was too hot or without power. How much faster it would have been can't be told."""
    slowed = one.frame[(one.frame["source"] == "gpu") & one.frame["metric"].isin(HOT)]
    for gpu, rows in slowed.groupby("subject"):
        shares = rows.groupby("metric")["value"].mean()
        if not len(shares) or shares.max() < HELD_DOWN:
            continue
        reason = str(shares.idxmax()).removeprefix("throttle_").replace("_", " ")
        yield Finding(
            rule="gpu_held_down",
            category="environment",
            severity="minor",
            title=f"The GPU slowed itself down in {100 * shares.max():.0f} % of the samples ({reason})",
            advice="Look after its cooling and power supply; lock a clock that it can hold (`use: gpu_clocks`).",
            confidence="high",
            where={"gpu": str(gpu)},
            evidence=tuple(_proof(f"gpu {name}", float(share), "of the samples") for name, share in shares.items()),
            sources=(one.capture.id,),
        )


def gpu_shared(one: Sampled) -> Iterator[Finding]:
    """A process that is none of the target's has memory on a GPU that the program may use."""
    frame = one.all
    own = set(frame[frame["source"] == "process"]["subject"])
    rows = frame[(frame["source"] == "gpu_process") & (frame["metric"] == "memory_used_bytes")]
    others = rows[~rows["subject"].str.split("/").str[-1].isin(own) & (rows["value"] >= UNSEEN_BYTES)]
    hidden = frame[(frame["metric"] == "visible_to_target") & (frame["value"] == 0)]["subject"]
    others = others[~others["subject"].str.split("/").str[0].isin(hidden)]
    if not len(others) or not own:
        return
    pids = sorted({str(subject).rpartition("/")[2] for subject in others["subject"]})
    yield Finding(
        rule="gpu_shared",
        category="environment",
        severity="minor",
        title=f"{len(pids)} other process{'' if len(pids) == 1 else 'es'} had memory on the GPU meanwhile",
        advice="Times on a shared GPU say little: wait for an idle one (`use: gpu_idle`), or choose another.",
        confidence="high",
        where={"pids": ", ".join(pids)},
        evidence=(_proof("gpu_process memory_used_bytes", float(others["value"].max()), "bytes"),),
        sources=(one.capture.id,),
    )


def gpu_left_idle(one: Sampled) -> Iterator[Finding]:
    """A PyTorch program made its steps on the CPU while a GPU, which its torch could have used, did nothing."""
    used = one.frame[(one.frame["source"] == "gpu") & (one.frame["metric"] == "gpu_util_pct")]["value"].dropna()
    steps = judging.steady_window(one.report, one.capture.pass_id)
    version = str((one.report.machine.get("target") or {}).get("torch") or "")
    traced = any(one.report.table(name) is not None for name in ("gpu_kernels", "gpu_graphs"))
    if steps is None or "+cu" not in version or traced or len(used) < FEWEST or used.max() > 0:
        return
    yield Finding(
        rule="gpu_left_idle",
        category="environment",
        severity="minor",
        title="The steps were made on the CPU, while a GPU that torch could use did nothing",
        advice="Move the model and the batches to it (`.to('cuda')`); see that CUDA_VISIBLE_DEVICES lets it be seen.",
        confidence="medium",
        evidence=(_proof("gpu gpu_util_pct", float(used.max()), "% at most"),),
        sources=(one.capture.id,),
    )


CHECKS: tuple[Callable[[Sampled], Iterator[Finding]], ...] = (
    oversubscribed, quota, neighbours, page_faults, memory_short, disk, gpu_held_down, gpu_shared, gpu_left_idle,
)  # fmt: skip

FEED = "collectors:\n  - {use: monitor}"


def machine_use(report: Report) -> Iterator[Finding | Abstention]:
    """Each of the rules above, by the first monitor that has something to say of it."""
    found = list(sampled(report))
    for check in CHECKS:
        yield from next((told for one in found if (told := list(check(one)))), [])
    if not found and not report.run.imported and any(record.run for record in report.passes):
        yield Abstention("machine_use", "nothing was sampled while the program ran", FEED)


RULES = (machine_use,)
