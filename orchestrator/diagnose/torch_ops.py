"""Rules over what torch.profiler has counted: operators, the loader, the optimizer, compilation, allocator calls."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.gpu_seen import no_more_than_idle
from orchestrator.judging import MINOR_PCT, Confidence, Severity, confidence, severity, steady
from orchestrator.model import Abstention, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

STEP = "ProfilerStep*"
DISPATCH_NS = 3_000.0
"""What PyTorch spends on one operator before it computes: some microseconds on a CPU of today (PyTorch's dispatcher,
type checks, allocation of the result)."""
SMALL_NS = 10_000.0
"""An operator whose own time is under this is mostly dispatch."""
SMALL_PER_STEP = 200
"""So many of them in a step are worth a word."""
REAL_ELEMENTS, REAL_NS = 10_000, 20_000.0
"""A conversion of fewer elements, or where the shapes are unknown of less time, moves no data to speak of: counters,
labels."""
OPTIMIZER_FROM = 100
"""Updates of single tensors in a step, from which on one fused update is worth it."""
FUSED_GAIN = 0.5
"""Of the optimizer's time, what fused or foreach updates save at least (PyTorch docs, torch.optim, "Algorithms")."""
HEAVY_PCT, HEAVY_NS = 30.0, 1e6
"""An operator with this share of the steps, and this long each time, is where the program really computes."""


@dataclass(frozen=True)
class Op:
    """All calls of one operator, whatever its shapes. Times in ns."""

    count: int = 0
    cpu_self: float = 0.0
    cpu_total: float = 0.0
    gpu_self: float = 0.0
    gpu_total: float = 0.0


@dataclass(frozen=True)
class Recording:
    """What torch.profiler has seen of one process. window_ns: the recorded steps, or, without steps, all operators'
    own time; steps: None where they are unknown."""

    capture: str
    ops: Mapping[str, Op]
    real_conversions_ns: float
    window_ns: float
    steps: int | None
    gpu_ns: float
    has_gpu: bool
    confidence: Confidence

    def op(self, *names: str) -> Op:
        found = [self.ops[name] for name in names if name in self.ops]
        return Op(
            sum(op.count for op in found),
            sum(op.cpu_self for op in found),
            sum(op.cpu_total for op in found),
            sum(op.gpu_self for op in found),
            sum(op.gpu_total for op in found),
        )

    def named(self, test: Callable[[str], bool]) -> dict[str, Op]:
        return {name: op for name, op in self.ops.items() if test(name)}

    def pct(self, ns: float) -> float:
        return min(100.0, 100 * ns / self.window_ns) if self.window_ns else 0.0

    def evidence(self, name: str, value: float, unit: str) -> Evidence:
        return Evidence("torch_ops", name, float(f"{value:.4g}"), unit)


def _recordings(report: Report) -> list[Recording]:
    """Of each capture the first process: of several ranks what is said of one goes for all."""
    frame = report.table("torch_ops")
    if frame is None or not len(frame):
        return []
    found = []
    for capture, rows in frame.groupby("capture", sort=False):
        own = rows[rows["pid"].isna() | (rows["pid"] == rows["pid"].iloc[0])]
        found.append(_recording(str(capture), own, report))
    return found


def _recording(capture: str, rows: pandas.DataFrame, report: Report) -> Recording:
    host = rows[rows["device"] == "cpu"]
    columns = ["count", "cpu_self_ns", "cpu_total_ns", "gpu_self_ns", "gpu_total_ns"]
    sums = host.groupby("name")[columns].sum()
    ops = {str(name): Op(int(row[0]), *map(float, row[1:])) for name, *row in sums.itertuples()}
    casts = host[host["name"] == "aten::_to_copy"]
    sized = zip(casts["input_shapes"], casts["count"], casts["cpu_total_ns"], strict=True)
    casts_ns = float(sum(ns for shapes, count, ns in sized if _is_real(shapes, count, ns)))
    step = ops.get(STEP)
    window = step.cpu_total if step else sum(op.cpu_self for op in ops.values())
    has_gpu = bool((rows["device"] != "cpu").any()) or any(name.startswith(("cuda", "hip")) for name in ops)
    gpu_ns = sum(op.gpu_self for op in ops.values())
    sure = confidence(report, [capture])
    return Recording(capture, ops, casts_ns, window, step.count if step else None, gpu_ns, has_gpu, sure)


def _is_real(shapes: Any, count: int, total_ns: float) -> bool:
    """Whether so many conversions of tensors of these shapes, as `[[64, 128], []]`, move data to speak of."""
    first = re.match(r"\[\[([\d, ]*)\]", shapes) if isinstance(shapes, str) else None
    if first is None:
        return total_ns >= REAL_NS * count
    return math.prod(int(size) for size in first[1].split(",") if size.strip()) >= REAL_ELEMENTS


def _found(
    report: Report,
    seen: Recording,
    rule: str,
    category: str,
    pct: float,
    title: str,
    advice: str,
    evidence: tuple[Evidence, ...],
    *,
    most: Severity = "critical",
    sure: Confidence | None = None,
    op: str | None = None,
    cause: str = "",
    healthy: bool = False,
) -> Iterator[Finding]:
    """The finding, where its share of the steps is worth telling; no more severe than `most`."""
    told = severity(pct)
    if told is None:
        return
    order: tuple[Severity, ...] = ("info", "minor", "major", "critical")
    whole = steady(report)
    known = seen.steps is not None
    yield Finding(
        rule=rule,
        category=category,
        severity=min(told, most, key=order.index),
        title=title,
        advice=advice,
        confidence=sure or seen.confidence,
        where={"op": op} if op else {},
        cost_s=whole.cost_s(pct) if known and whole.seconds is not None else round(seen.window_ns * pct / 1e11, 6),
        cost_pct=round(pct, 1),
        of=whole.of if known and whole.seconds is not None else _of(seen),
        evidence=evidence,
        sources=(seen.capture,),
        cause=cause,
        healthy=healthy,
    )


def _of(seen: Recording) -> str:
    return f"the {seen.steps} steps that torch.profiler recorded" if seen.steps else "the recorded operators' time"


# ---------------------------------------------------------------- the loader

_SINGLE, _SEVERAL = "_SingleProcessDataLoaderIter", "_MultiProcessingDataLoaderIter"


def loader_waits(report: Report) -> Iterator[Finding]:
    """The time in the DataLoader's next, which PyTorch records as a range of its own. Its name tells whether workers
    load: without them the time is the dataset's own work, with them it is waiting for what they have not done yet
    (PyTorch's performance tuning guide, "Enable asynchronous data loading")."""
    for seen in _recordings(report):
        for kind in (_SINGLE, _SEVERAL):
            for name, op in seen.named(lambda name, kind=kind: kind in name).items():  # type: ignore[misc]
                pct = no_more_than_idle(report, seen.pct(op.cpu_total))
                alone = kind == _SINGLE
                title = (
                    f"The program loads its data itself, without workers: {pct:.0f} % of {_of(seen)}"
                    if alone
                    else f"The loader's workers do not keep up: the program waits {pct:.0f} % of {_of(seen)}"
                )
                advice = (
                    "Let workers load the next batches meanwhile: DataLoader(num_workers=4, persistent_workers=True), "
                    "on a GPU with pin_memory=True."
                    if alone
                    else "Make an item of the dataset cheaper (decode and transform less, ahead of time), or raise "
                    "num_workers as far as there are cores, and prefetch_factor."
                )
                evidence = (seen.evidence(name, op.cpu_total / 1e6, "ms"), seen.evidence(name, op.count, "batches"))
                yield from _found(
                    report, seen, "loader_waits", "input_pipeline", pct, title, advice, evidence, cause="input_pipeline"
                )


# ---------------------------------------------------------------- the optimizer and small operators

_UPDATES = ("aten::addcdiv_", "aten::add_", "aten::lerp_", "aten::mul_")


def optimizer_by_tensor(report: Report) -> Iterator[Finding]:
    """The optimizer updates tensor by tensor, some operators for each: no `_foreach_` or `_fused_` operator ran. On a
    GPU that is foreach=False; on a CPU the default, where only fused=True is faster."""
    for seen in _recordings(report):
        steps = seen.named(lambda name: name.startswith("Optimizer.step#"))
        fast = seen.named(lambda name: "::_foreach_" in name or "::_fused_" in name)
        updates = max((seen.op(name).count for name in _UPDATES), default=0)
        if not steps or fast or not seen.steps or updates < OPTIMIZER_FROM * seen.steps:
            continue
        name, op = max(steps.items(), key=lambda item: item[1].cpu_total)
        pct = seen.pct(op.cpu_total)
        how = "fused=True (or foreach=True)" if seen.has_gpu else "fused=True"
        yield from _found(
            report,
            seen,
            "optimizer_by_tensor",
            "launch_bound",
            FUSED_GAIN * pct,
            f"The optimizer updates one tensor at a time: {pct:.0f} % of {_of(seen)}",
            f"Give it {how}: one operator then updates many tensors. At least half of that time goes.",
            (seen.evidence(name, op.cpu_total / 1e6, "ms"), seen.evidence("updates", updates / seen.steps, "a step")),
            most="major" if seen.has_gpu else "minor",
            sure="medium",
            op=name,
        )


def small_operators(report: Report) -> Iterator[Finding]:
    """On a CPU: so many operators with so little to do that PyTorch's dispatch is what takes the time. With a GPU the
    launches tell that better."""
    for seen in _recordings(report):
        small = seen.named(lambda name: name.startswith("aten::"))
        small = {name: op for name, op in small.items() if op.count and op.cpu_self < SMALL_NS * op.count}
        count = sum(op.count for op in small.values())
        if seen.has_gpu or not seen.steps or count < SMALL_PER_STEP * seen.steps:
            continue
        spent = sum(min(op.cpu_self, DISPATCH_NS * op.count) for op in small.values())
        most = max(small, key=lambda name: small[name].count)
        yield from _found(
            report,
            seen,
            "small_operators",
            "launch_bound",
            seen.pct(spent),
            f"{count / seen.steps:,.0f} operators a step are so small that calling them takes longer than their work",
            "Work on larger tensors (batch, stack, one operator in place of a loop), or join them by torch.compile.",
            (seen.evidence("operators under 10 us", count / seen.steps, "a step"),),
            most="minor",
            sure="medium",
            op=most,
        )


# ---------------------------------------------------------------- compilation, allocator, synchronisation

_COMPILING = ("_compile.compile_inner (dynamo_timed)", "_compile.compile_inner", "entire_frame_compile")


def compiling(report: Report) -> Iterator[Finding]:
    """torch.compile was at work within the recorded steps: a guard failed and a graph was compiled anew, or the first
    compilation came late. torch marks it as a range for its profiler (torch/_dynamo/utils.py, dynamo_timed)."""
    for seen in _recordings(report):
        ops = [(name, seen.ops[name]) for name in _COMPILING if name in seen.ops]
        if not ops:
            continue
        name, op = max(ops, key=lambda item: item[1].cpu_total)
        s = "s" if op.count > 1 else ""
        yield from _found(
            report,
            seen,
            "compiling",
            "warmup",
            seen.pct(op.cpu_total),
            f"torch.compile compiled {op.count} graph{s} within {_of(seen)}: {seen.pct(op.cpu_total):.0f} % of them",
            "TORCH_LOGS=recompiles tells which guard failed. Mark sizes that change (torch._dynamo.mark_dynamic, "
            "dynamic=True) or pad them to a few; where it is the first compilation, begin the window later.",
            (seen.evidence(name, op.cpu_total / 1e6, "ms"), seen.evidence(name, op.count, "graphs")),
            cause="compiling",
        )


def allocator_calls(report: Report) -> Iterator[Finding]:
    """The caching allocator asks the driver for memory in steady steps, or gives it back: each cudaFree waits for the
    GPU (PyTorch docs, "Memory management": it frees its cache and tries again when a block does not fit)."""
    names = ("cudaMalloc", "cudaFree", "cudaMallocAsync", "cudaFreeAsync", "hipMalloc", "hipFree")
    for seen in _recordings(report):
        op = seen.op(*names)
        known = {name: seen.ops[name].count for name in names if name in seen.ops}
        counted = ", ".join(f"{count} {name}" for name, count in known.items())
        yield from _found(
            report,
            seen,
            "allocator_calls",
            "memory_management",
            seen.pct(op.cpu_total),
            f"GPU memory is taken from the driver and given back within {_of(seen)}: {counted}",
            "Keep shapes the same from step to step (or the largest first), call no empty_cache(), leave memory free, "
            "and try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. cudnn.benchmark does it at each new shape, too; "
            "in first steps it is warm-up.",
            tuple(seen.evidence(name, seen.ops[name].cpu_total / 1e6, "ms") for name in known),
            most="critical" if seen.steps else "minor",  # without steps it may all be warm-up
            op=max(known, key=lambda name: seen.ops[name].cpu_total) if known else None,
        )


def values_to_host(report: Report) -> Iterator[Finding]:
    """Values read from the GPU in each step (`.item()`, `if tensor:`, `float()`): the program waits there until the GPU
    has done all that it was given. How much of that is lost only the GPU's queue tells, so no cost is given."""
    for seen in _recordings(report):
        op = seen.op("aten::_local_scalar_dense")
        if not seen.has_gpu or not seen.steps or op.count < seen.steps or seen.pct(op.cpu_total) < MINOR_PCT:
            continue
        yield Finding(
            rule="values_to_host",
            category="host_sync",
            severity="minor",
            title=f"Each step reads {op.count / seen.steps:.3g} values from the GPU and waits for it: "
            f"{seen.pct(op.cpu_total):.0f} % of {_of(seen)} pass there",
            advice="Keep what is only logged on the GPU and read it every so many steps; replace `if tensor:` by "
            "torch.where.",
            confidence=seen.confidence,
            where={"op": "aten::_local_scalar_dense"},
            evidence=(seen.evidence("aten::_local_scalar_dense", op.count / seen.steps, "a step"),),
            sources=(seen.capture,),
            cause="gpu waits: sync",
        )


# ---------------------------------------------------------------- copies that compute nothing


def conversions(report: Report) -> Iterator[Finding]:
    """Tensors copied into another type (`aten::_to_copy`), as `.float()`, `.to(dtype)` and autocast do it. On a GPU by
    the GPU's time without copies from and to the host, which other rules judge."""
    for seen in _recordings(report):
        copied = seen.op("aten::_to_copy")
        ns = max(0.0, copied.gpu_total - _host_copies_ns(report, seen.capture)) if seen.has_gpu else 0.0
        pct = 100 * ns / seen.gpu_ns if seen.has_gpu and seen.gpu_ns else 0.0
        pct = pct if seen.has_gpu else seen.pct(seen.real_conversions_ns)
        yield from _found(
            report,
            seen,
            "conversions",
            "memory_management",
            pct,
            f"Tensors are converted to another type {_often(copied.count, seen)}: {pct:.0f} % of {_part(seen)}",
            "Make them in the type in which they are used (dtype= where they are created, weights in that type once), "
            "not anew at each use.",
            (seen.evidence("aten::_to_copy", copied.count, "calls"),),
            most="major",
            sure="medium",
            op="aten::_to_copy",
        )


def layout_copies(report: Report) -> Iterator[Finding]:
    """Tensors copied because an operator needs them in one piece (`aten::contiguous`, which copies only then)."""
    for seen in _recordings(report):
        made = seen.op("aten::contiguous")
        ns, whole = (made.gpu_total, seen.gpu_ns) if seen.has_gpu else (made.cpu_total, seen.window_ns)
        pct = min(100.0, 100 * ns / whole) if whole else 0.0
        yield from _found(
            report,
            seen,
            "layout_copies",
            "memory_management",
            pct,
            f"Tensors are copied into one piece {_often(made.count, seen)}: {pct:.0f} % of {_part(seen)}",
            "Keep one layout from end to end (channels_last for convolutions), and transpose weights once, not in each "
            "step.",
            (seen.evidence("aten::contiguous", made.count, "calls"),),
            most="major",
            sure="medium",
            op="aten::contiguous",
        )


def _often(count: int, seen: Recording) -> str:
    if not seen.steps:
        return f"{count:,} times"
    return "once a step" if count == seen.steps else f"{count / seen.steps:,.3g} times a step"


def _part(seen: Recording) -> str:
    return "the GPU's work" if seen.has_gpu else _of(seen)


def _host_copies_ns(report: Report, capture: str) -> float:
    frame = report.table("gpu_transfer_summary")
    if frame is None:
        return 0.0
    own = frame[(frame["capture"] == capture) & frame["name"].str.contains("HtoD|DtoH", regex=True, na=False)]
    return float(own["total_ns"].sum())


# ---------------------------------------------------------------- where it computes


def heavy_operator(report: Report) -> Iterator[Finding]:
    """On a CPU: the operator that most of the steps is spent in, where each call does much at once. That is work, not
    waste. With a GPU its kernels tell more."""
    for seen in _recordings(report):
        own = {name: op for name, op in seen.ops.items() if name.startswith("aten::") and op.count}
        if seen.has_gpu or not own:
            continue
        name, op = max(own.items(), key=lambda item: item[1].cpu_self)
        pct = seen.pct(op.cpu_self)
        if pct < HEAVY_PCT or op.cpu_self < HEAVY_NS * op.count:
            continue
        yield from _found(
            report,
            seen,
            "heavy_operator",
            "native_cpu",
            pct,
            f"{name} computes for {pct:.0f} % of {_of(seen)}, {op.cpu_self / op.count / 1e6:.3g} ms at a time",
            "That is real work: fewer or smaller products, a narrower type (bfloat16 where the processor has it), or a "
            "GPU make it faster.",
            (seen.evidence(name, op.cpu_self / 1e6, "ms"), seen.evidence(name, op.count, "calls")),
            most="minor",
            op=name,
            healthy=True,
        )


def not_recorded(report: Report) -> Iterator[Abstention]:
    """A program with PyTorch's steps of which torch.profiler saw nothing."""
    steps = report.table("steps")
    if steps is not None and len(steps) and not _recordings(report):
        lacks = "PyTorch's operators: which of them, the loader, the optimizer or torch.compile takes the time"
        yield Abstention("torch_ops", lacks, "collectors: [{use: torch}]")


RULES = (
    loader_waits,
    optimizer_by_tensor,
    small_operators,
    compiling,
    allocator_calls,
    values_to_host,
    conversions,
    layout_copies,
    heavy_operator,
    not_recorded,
)
