"""Rules about what the GPU waits for: idle time by its cause, as the locating stage has traced it.

All costs are idle time of the GPU in the window, of which the whole is what a better program could give back at most.
What parts a window from what was before it, and what each cause means, is told in `locating/gpu*.py`. nsys's own expert
rules (gpu_gaps, gpu_time_util, cuda_api_sync) and HTA (idle time breakdown, launch statistics) look at the same things
with fixed thresholds in ms; here a finding is told from the share of the window on that `judging.severity` names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.formats.kernel_names import function
from orchestrator.formats.stacks import split_frame
from orchestrator.gpu_seen import GPU_FEED, Seen, seen, shown_pct
from orchestrator.judging import MINOR_PCT
from orchestrator.locating.gpu_names import BUSY_PART, BY_STEPS, call_kind
from orchestrator.model import USABLE, Abstention, Evidence, Finding
from orchestrator.report import Report
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas

LONG_NS = 1_000_000
"""A gap of the host's from which on the program did something else than to launch: an operator of PyTorch takes 5 to
200 us on the host, under a profiler some more."""
LOADING_NS = 1_000_000
"""A call that launches takes some us (HTA calls one of more than 50 us an outlier); one of a ms in an idle GPU loads a
module, which CUDA does at the first launch of a kernel."""
STARTING_NS = 100_000_000
"""And a call of any kind that lasts as long makes the context of the process, as the first one does."""
LOADED_PART = 0.95
"""The warm-up ends where this part of all loading is done."""
SHORT_KERNEL_NS = 10_000
"""Shorter than what an operator takes on the host: a GPU with such kernels can't be kept busy by launching them one by
one."""
CHUNKS, LOW_BUSY = 30, 0.5
"""nsys's rule gpu_time_util: the recording in 30 parts, of which those that are busy for less than half are told."""

STACKS_FEED = "collectors: [{together: [{use: nsys, trace: [cuda, nvtx, osrt]}, {use: py-spy}]}]"

LAUNCH_ADVICE = (
    "Launch less: larger batches, fused operators (torch.compile, fused optimizers with `fused=True`), no "
    "Python loop over small tensors."
)
GRAPH_ADVICE = (
    "The same {period:,} kernels come again and again: a CUDA graph launches them with one call "
    "(torch.cuda.graphs, or torch.compile with mode='reduce-overhead')."
)


# ---------------------------------------------------------------- waits with a name


def data_waits(report: Report) -> Iterator[Finding]:
    """The GPU had nothing to do while the thread that launches was in the DataLoader's next."""
    for gpu in seen(report):
        where = _where(_of(gpu, "data"))
        yield from gpu.finding(
            "gpu_waits_for_data",
            "input_pipeline",
            f"The GPU waits for the DataLoader for {gpu.share(gpu.ns('data'))}",
            "Make batches beside the GPU's work: more workers (num_workers) that stay (persistent_workers=True), "
            f"pin_memory=True; or make a sample cheaper{_place(where, ': the time goes in {}')}.",
            gpu.ns("data"),
            where=where,
            evidence=(gpu.state("data"), *_longest(gpu, _of(gpu, "data"))),
            cause="input_pipeline",
        )


def collectives_of_the_host(report: Report) -> Iterator[Finding]:
    """The GPU had nothing to do while the thread that launches was in a collective: one of the CPU (Gloo, MPI), or the
    making of an NCCL communicator."""
    for gpu in seen(report):
        gaps = _of(gpu, "communication")
        yield from gpu.finding(
            "gpu_waits_for_collective",
            "communication",
            f"The GPU waits for a collective of the host for {gpu.share(gpu.ns('communication'))}",
            "Use NCCL for tensors on GPUs, and call collectives with async_op=True where the result is needed later.",
            gpu.ns("communication"),
            where=_where(gaps),
            evidence=(gpu.state("communication"), *_longest(gpu, gaps)),
            cause="gpu waits: communication",
        )


def synchronisations(report: Report) -> Iterator[Finding]:
    """The program waited until the GPU had done everything, and only then launched more: cudaStreamSynchronize,
    `.item()`, printing a tensor. (nsys: cuda_api_sync.)

    Without the wait the host's work lies beside the GPU's. Of H ns of host work after the waits and B ns of work of the
    GPU, min(H, B) is saved; the rest of H stays and is the host's own matter."""
    for gpu in seen(report):
        gaps = _of(gpu, "sync")
        calls = gpu.calls("sync")
        count = int(calls["count"].sum())
        name = str(calls["name"].iloc[0]) if count else "a copy of a number to the host"
        often = f" ({gpu.often(count)})" if count else ""
        ops = _torch_syncs(report)
        yield from gpu.finding(
            "synchronisations",
            "host_sync",
            f"The program waits for the GPU in {name}{often}, and the GPU then for the program: it is idle for "
            f"{gpu.share(min(gpu.ns('sync'), gpu.ns('busy')))} after that",
            "Don't look at values of the GPU in each step: `.item()`, `float(loss)`, `print(tensor)`, `if tensor:`, "
            "`.nonzero()` and torch.cuda.synchronize() wait for all of its work. Keep them on the GPU, and look every "
            f"100 steps.{f' torch.profiler saw {ops}.' if ops else ''}",
            min(gpu.ns("sync"), gpu.ns("busy")),
            where=_where(gaps),
            evidence=(gpu.state("sync"), *_sums(calls), *_longest(gpu, gaps)),
            cause="values to host",
        )


def _torch_syncs(report: Report) -> str:
    """The operators that fetch a number, with how often they were called."""
    ops = report.table("torch_ops")
    if ops is None:
        return ""
    found = ops[ops["name"].isin(["aten::item", "aten::nonzero", "aten::is_nonzero"]) & (ops["device"] == "cpu")]
    counts = found.groupby("name")["count"].sum()
    return ", ".join(f"{name} {int(count):,} times" for name, count in counts.items())


def unexplained(report: Report) -> Iterator[Finding]:
    """Nothing that was recorded tells what the GPU waited for: work was there and did not begin (it waits for another
    stream's event, or the driver held it back), or nobody saw who launched it."""
    for gpu in seen(report):
        gaps = _of(gpu, "unknown")
        yield from gpu.finding(
            "gpu_idle_unexplained",
            "idle_wait",
            f"The GPU is idle for {gpu.share(gpu.ns('unknown'))}, and nothing that was recorded tells why",
            "Look before and after the longest gaps on the timeline: work that was queued and did not begin waits for "
            "an event of another stream, or for the driver.",
            gpu.ns("unknown"),
            most="major",
            sure="low",
            evidence=(gpu.state("unknown"), *_longest(gpu, gaps)),
            cause="gpu waits: unknown",
        )


# ---------------------------------------------------------------- the host comes late


@dataclass(frozen=True)
class _Late:
    """The gaps in which the host came late: `short` ones between launches, and long ones. warm_until: where the
    warm-up ends, in a window that was not laid out by steps."""

    short_ns: float
    long: pandas.DataFrame
    warming: pandas.DataFrame


def _late(gpu: Seen) -> _Late:
    """What stays of synchronisations, above what leaving them out would save, is the host's, too."""
    sync, busy = gpu.ns("sync"), gpu.ns("busy")
    left = max(0, sync - busy) / sync if sync else 0.0
    gaps = gpu.gaps[gpu.gaps["cause"].isin(["host", "sync"] if left else ["host"])]
    gaps = gaps.assign(ns=gaps["duration_ns"] * gaps["cause"].map({"host": 1.0, "sync": left}).astype(float))
    long = gaps[gaps["duration_ns"] >= LONG_NS]
    warm = long["start_ns"] < _warm_until(gpu, long)
    short_ns = gpu.ns("host") + sync * left - float(long["ns"].sum())
    return _Late(max(0.0, short_ns), long[~warm], long[warm])


def _warm_until(gpu: Seen, long: pandas.DataFrame) -> int:
    """The end of the warm-up, where steps do not tell it: most modules have then been loaded."""
    if gpu.window == BY_STEPS:
        return 0
    loading = long[_is_loading(long)].sort_values("start_ns")
    if not len(loading):
        return 0
    done = loading["api_ns"].cumsum()
    last = loading[done >= LOADED_PART * done.iloc[-1]].iloc[0]
    return int(last["start_ns"] + last["duration_ns"])


def _is_loading(gaps: pandas.DataFrame) -> Any:
    kinds = gaps["api"].map(lambda name: call_kind(name) if isinstance(name, str) else None)
    spent = gaps["api_ns"].fillna(0)
    starting = ~kinds.isin(["sync", "copy"]) & (spent >= STARTING_NS)
    return (kinds.isin(["launch", "loading"]) & (spent >= LOADING_NS)) | starting


def launch_bound(report: Report) -> Iterator[Finding]:
    """The GPU is done before the next launch: in many short gaps nothing was queued. (HTA: augmented launch statistics;
    queue length.) Each gap is too short for anything but launching."""
    for gpu in seen(report):
        late, median_ns = _late(gpu), gpu.kernel_median_ns
        tiny = median_ns is not None and median_ns <= SHORT_KERNEL_NS
        size = f"{gpu.kernels:,} {'tiny ' if tiny else ''}kernels"
        size += f" (median {show_duration(median_ns / 1e9)})" if median_ns else ""
        graph = f" {GRAPH_ADVICE.format(period=gpu.period)}" if gpu.period and gpu.period > 1 else ""
        yield from gpu.finding(
            "launch_bound",
            "launch_bound",
            f"The GPU waits for launches for {gpu.share(late.short_ns)}: between {size} nothing is queued",
            f"{LAUNCH_ADVICE}{graph}",
            late.short_ns,
            evidence=(gpu.state("host"), *_launches(gpu), *_queue(report, gpu)),
            cause="launch_bound",
        )


def graph_opportunity(report: Report) -> Iterator[Finding]:
    """Tiny kernels that are queued in time follow one another in a same sequence, and the way from one to the next
    takes a good part of the time. In a CUDA graph that way is about half as long."""
    for gpu in seen(report):
        median_ns = gpu.kernel_median_ns
        if not gpu.period or gpu.period < 2 or median_ns is None or median_ns > SHORT_KERNEL_NS:
            continue
        yield from gpu.finding(
            "cuda_graph_opportunity",
            "launch_bound",
            f"From one queued kernel to the next go {gpu.share(gpu.ns('between'))}: {gpu.kernels:,} kernels of "
            f"{show_duration(median_ns / 1e9)} each",
            GRAPH_ADVICE.format(period=gpu.period),
            gpu.ns("between") / 2,
            most="minor",
            sure="medium",
            evidence=(gpu.state("between"),),
            cause="launch_bound",
        )


def host_late(report: Report) -> Iterator[Finding | Abstention]:
    """In long gaps the program did something else than to launch; the finding is of what the launching thread then did:
    an allocation, a file, a child, a lock, or Python."""
    for gpu in seen(report):
        for what, gaps in _by_doing(gpu, _late(gpu).long):
            yield from _host_late(gpu, what, gaps)
            unseen = float(gaps[gaps["python"].isna()]["ns"].sum())
            if what == "python_cpu" and gpu.pct(unseen) >= MINOR_PCT and not report.run.imported:
                yield Abstention("gpu_gaps_in_python", "what Python did while the GPU waited", STACKS_FEED)


def _by_doing(gpu: Seen, long: pandas.DataFrame) -> list[tuple[str, pandas.DataFrame]]:
    """The gaps by what the launching thread did in them."""
    if not len(long):
        return []
    is_python = _is_python(gpu)
    doing = [_doing(gap, is_python) for _, gap in long.iterrows()]
    return [(str(what), gaps) for what, gaps in long.assign(doing=doing).groupby("doing")]


def _host_late(gpu: Seen, what: str, gaps: pandas.DataFrame) -> Iterator[Finding]:
    ns = float(gaps["ns"].sum())
    where = _where(gaps) or _by_proportion(gpu, what)
    words, advice = _DOING[what]
    longest = gaps.loc[gaps["duration_ns"].idxmax()]
    count = "a gap" if len(gaps) == 1 else f"{len(gaps):,} gaps, the longest"
    title = (
        f"The GPU waits for the program{_place(where, ' in {}')} for {gpu.share(ns)}: {words.format(**_names(gaps))}"
    )
    title += f"; {count} of {show_duration(longest['duration_ns'] / 1e9)} before {_short(longest['after'])}"
    yield from gpu.finding(
        f"gpu_waits_for_host.{what}",
        what,
        title,
        advice,
        ns,
        sure="low" if "from" in where else "high" if where else "medium",
        where={name: value for name, value in where.items() if name != "from"},
        evidence=(gpu.state("host"), *_longest(gpu, gaps)),
        cause=f"gpu waits: {what}",
    )


_DOING: Mapping[str, tuple[str, str]] = {
    "memory_management": (
        "it allocates or frees memory of the GPU ({api})",
        "Keep buffers: cudaMalloc and cudaFree wait for the GPU. In PyTorch the caching allocator does it, unless "
        "torch.cuda.empty_cache() is called, or shapes vary (expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF).",
    ),
    "warmup": (
        "it loads modules of kernels ({api})",
        "Launch every kernel once before the steps that count, or load them all at the start "
        "(CUDA_MODULE_LOADING=EAGER); shapes that change make libraries choose new kernels.",
    ),
    "file_io": ("it reads or writes files ({os_call})", "Do it in another thread or process, beside the GPU's work."),
    "network_io": ("it waits for the network ({os_call})", "Do it in another thread, beside the GPU's work."),
    "process_spawn": ("it starts or awaits a process ({os_call})", "Start it once, before the steps."),
    "idle_wait": ("it sleeps or waits ({os_call})", "Look at what it waits for there."),
    "lock_contention": ("it waits for a lock or another thread ({os_call})", "Look at who holds it meanwhile."),
    "python_cpu": (
        "it runs Python instead of launching",
        "Take that work out of the step, or do it while the GPU is busy: launch first, compute then.",
    ),
    "native_cpu": (
        "it does other things than to launch",
        "Take that work out of the loop, or do it while the GPU is busy: launch first, compute then.",
    ),
}

_SYSTEM_CALLS = (
    ("process_spawn", r"^(v?fork|clone\d?|posix_spawn\w*|execve?\w*|wait(pid|id|4)?|system|popen)$"),
    ("idle_wait", r"sleep"),
    ("network_io", r"^(recv|send|accept|connect)\w*$"),
    (
        "file_io",
        r"^(p?read|p?write|open|f?open|fread|fwrite|getc|f?getc|fgets|f(data)?sync|stat|fstat|lstat)(v|at|64)*2?$",
    ),
    ("lock_contention", r"^(futex|pthread_(cond|mutex|rwlock)\w*|sem_\w*wait)$"),
    ("idle_wait", r"^(poll|ppoll|p?select6?|epoll_p?wait)$"),
)
"""By what nsys (functions of the C library) and strace (system calls) call them."""


def _doing(gap: Any, is_python: bool) -> str:
    """What the launching thread did in a gap: a call of CUDA for a good part of it, or of the system for half."""
    length = int(gap["duration_ns"])
    kind = call_kind(gap["api"]) if _known(gap["api"]) and _known(gap["api_ns"]) else None
    if kind in ("allocation", "loading") and gap["api_ns"] >= BUSY_PART * length:
        return "memory_management" if kind == "allocation" else "warmup"
    if kind == "launch" and 2 * gap["api_ns"] >= length:
        return "warmup"
    os_call = gap["os_call"] if _known(gap["os_call_ns"]) and 2 * gap["os_call_ns"] >= length else None
    for call in (str(name) for name in (gap["syscall"], os_call) if _known(name)):
        found = next((kind for kind, names in _SYSTEM_CALLS if re.search(names, call)), None)
        if found:
            return found
    return "python_cpu" if is_python or _known(gap["python"]) else "native_cpu"


def _is_python(gpu: Seen) -> bool:
    """Whether the program is Python, as far as PyTorch's kernels or what was seen of its processes tell."""
    names = gpu.of_kind("kernel")["name"]
    pythons = any(record.run is not None and record.run.pythons for record in gpu.report.passes)
    return pythons or bool(names.str.contains(r"at::|triton_", regex=True).any())


def warming_up(report: Report) -> Iterator[Finding]:
    """The recording holds the first launches, and no steps tell where they end: CUDA loads a module at its first
    launch, libraries choose kernels, Python imports. It happens once; where it is most of the recording, the rest is
    too short to judge the program by."""
    for gpu in seen(report):
        gaps = _late(gpu).warming
        if not len(gaps):
            continue
        until_s = (int((gaps["start_ns"] + gaps["duration_ns"]).max()) - gpu.start_ns) / 1e9
        ns = float(gaps["ns"].sum())
        yield from gpu.finding(
            "warming_up",
            "warmup",
            f"The GPU waits for {gpu.share(ns)} while kernels are launched for the first time, up to "
            f"{show_duration(until_s)} after the first one",
            "It happens once in each process. To see the steady state record longer, or record a window of steps "
            "(`window: {skip: 10, steps: 20}`).",
            ns,
            most="major" if until_s >= gpu.window_ns / 2e9 else "minor",
            evidence=(gpu.state("host"), *_sums(gpu.calls("loading")), *_longest(gpu, gaps)),
            cause="gpu waits: first launches",
        )


# ---------------------------------------------------------------- stretches


def low_stretches(report: Report) -> Iterator[Finding]:
    """The GPU is busy most of the time, and yet there are whole stretches in which it is not (nsys: gpu_time_util). It
    is told with the cause of most of that idle time, or by itself."""
    for gpu in seen(report):
        idle = _idle_by_chunk(gpu)
        length = gpu.window_ns / CHUNKS
        low = [ns for ns in idle if ns > (1 - LOW_BUSY) * length]
        if not low or len(low) > CHUNKS / 2:
            continue
        yield Finding(
            rule="low_utilisation",
            category="idle_wait",
            severity="info",
            title=f"In {len(low)} of {CHUNKS} equal parts of {gpu.of} the GPU is busy for less than half of it, in the "
            f"worst for {shown_pct(max(0.0, 100 - 100 * max(low) / length))}{gpu.label}",
            advice="Look at these stretches on the timeline: the gaps say what the program did.",
            confidence="high",
            evidence=(Evidence("gpu_gaps", f"{len(low)} of {CHUNKS} parts", round(sum(low) / 1e9, 6), "s idle"),),
            sources=(gpu.capture,),
            cause=_main_cause(gpu),
        )


def _idle_by_chunk(gpu: Seen) -> list[float]:
    """How long the GPU was idle in each of equal parts of the window, as far as its gaps are listed."""
    length = gpu.window_ns / CHUNKS
    start = (gpu.gaps["start_ns"] - gpu.start_ns).to_numpy(float)
    end = start + gpu.gaps["duration_ns"].to_numpy(float)
    return [
        float((end.clip(max=(n + 1) * length) - start.clip(min=n * length)).clip(min=0).sum()) for n in range(CHUNKS)
    ]


def _main_cause(gpu: Seen) -> str:
    """The cause, as findings have it, to which most of the idle time goes."""
    late = _late(gpu)
    costs = {_CAUSES[state]: float(gpu.ns(state)) for state in _CAUSES}
    costs["launch_bound"] = late.short_ns
    costs["gpu waits: first launches"] = float(late.warming["ns"].sum())
    for what, gaps in _by_doing(gpu, late.long):
        costs[f"gpu waits: {what}"] = float(gaps["ns"].sum())
    return max(costs, key=lambda cause: costs[cause])


_CAUSES = {
    "data": "input_pipeline",
    "copy": "copies",
    "sync": "values to host",
    "communication": "gpu waits: communication",
    "unknown": "gpu waits: unknown",
}


# ---------------------------------------------------------------- parts of findings


def _known(value: Any) -> bool:
    """Cells of tables that are empty are None, NaN or pandas.NA."""
    return value is not None and str(value) not in ("<NA>", "nan")


def _of(gpu: Seen, cause: str) -> pandas.DataFrame:
    return gpu.gaps[gpu.gaps["cause"] == cause]


def _where(gaps: pandas.DataFrame) -> dict[str, Any]:
    """The place in the program where most of the time of these gaps goes, and the system call, as far as known."""
    where: dict[str, Any] = {}
    if python := _heaviest(gaps, "python"):
        function_, file, line = split_frame(python)
        where |= {"function": function_, "file": file, "line": line}
    elif name := _heaviest(gaps, "range"):
        where["op"] = name[:120]
    where |= {name: found for name in ("syscall", "path") if (found := _heaviest(gaps, name))}
    return where


def _heaviest(gaps: pandas.DataFrame, column: str) -> str | None:
    """The value that stands in most of these gaps, by time; at least half of it."""
    known = gaps[gaps[column].notna()] if column in gaps else gaps.iloc[:0]
    if not len(known):
        return None
    by_value = known.groupby(column)["duration_ns"].sum().sort_values()
    return str(by_value.index[-1]) if 2 * by_value.iloc[-1] >= gaps["duration_ns"].sum() else None


def _by_proportion(gpu: Seen, what: str) -> dict[str, Any]:
    """Where the main thread is most in the steady steps, from a pass of its own: a guess by proportion."""
    frame = gpu.report.table("host_time")
    if what != "python_cpu" or frame is None:
        return {}
    mine = frame[
        (frame["role"] == "main") & frame["state"].isin(["python", "native"]) & frame["part"].isin(["steady", "all"])
    ]
    mine = mine[mine["function"].notna()]
    if not len(mine):
        return {}
    row = mine.loc[mine["total_ns"].idxmax()]
    found = {name: row[name] for name in ("function", "file", "line") if _known(row[name])}
    return {**found, "from": row["capture"]}


def _place(where: Mapping[str, Any], words: str) -> str:
    name = where.get("function") or where.get("op")
    return words.format(name) if name else ""


def _names(gaps: pandas.DataFrame) -> dict[str, str]:
    """The calls of the CUDA and the operating system in which most of the time goes."""
    os_call = _heaviest(gaps, "syscall") or _heaviest(gaps, "os_call") or "several calls"
    return {"api": _heaviest(gaps, "api") or "several calls", "os_call": os_call}


def _short(work: Any) -> str:
    return function(str(work)) if _known(work) else "the next work"


def _longest(gpu: Seen, gaps: pandas.DataFrame) -> Iterator[Evidence]:
    for _, gap in gaps.nlargest(3, "duration_ns").iterrows():
        row = f"{gap['capture']}, at {(int(gap['start_ns']) - gpu.start_ns) / 1e9:.6f} s of the window"
        yield Evidence("gpu_gaps", row, round(int(gap["duration_ns"]) / 1e9, 6), "s")


def _sums(calls: pandas.DataFrame) -> Iterator[Evidence]:
    for _, row in calls.nlargest(3, "total_ns").iterrows():
        yield Evidence("gpu_work", str(row["name"]), int(row["count"]), "calls")
        yield Evidence("gpu_work", str(row["name"]), round(int(row["total_ns"]) / 1e9, 6), "s")


def _launches(gpu: Seen) -> Iterator[Evidence]:
    for _, row in gpu.calls("launch").nlargest(1, "total_ns").iterrows():
        yield Evidence("gpu_work", str(row["name"]), round(float(row["median_ns"]) / 1e3, 2), "us, median call")


def _queue(report: Report, gpu: Seen) -> Iterator[Evidence]:
    frame = report.table("gpu_utilization")
    rows = () if frame is None else frame[frame["capture"] == gpu.capture].iterrows()
    for _, row in rows:
        if _known(row["queue_mean"]):
            yield Evidence(
                "gpu_utilization", f"device {row['device']}", round(float(row["queue_mean"]), 2), "launches queued"
            )


def not_recorded(report: Report) -> Iterator[Abstention]:
    """There are GPUs, and nothing that ran on them was recorded."""
    if report.run.imported or not report.machine.get("gpus") or seen(report):
        return
    if any(c.collector in ("nsys", "torch") and c.status in (*USABLE, "empty") for c in report.captures):
        return
    yield Abstention("gpu", "what ran on the GPU", GPU_FEED)


RULES = (
    data_waits, synchronisations, launch_bound, host_late, collectives_of_the_host, unexplained, warming_up,
    graph_opportunity, low_stretches, not_recorded,
)  # fmt: skip
