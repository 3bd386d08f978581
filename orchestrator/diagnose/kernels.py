"""Rules about single kernels, from what ncu has measured of them: what holds each back, and what that costs the run.

Definitions and thresholds are NVIDIA's own: the rule files that come with Nsight Compute 2022.3 to 2025.1
(SpeedOfLight, Occupancy, LaunchStatistics, UncoalescedAccess, SpeedOfLight_Roofline) and its Kernel Profiling Guide."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.formats.kernel_names import communicates
from orchestrator.judging import MAJOR_PCT, Severity, severity
from orchestrator.kernel_seen import Launch, Weights, launches, weights
from orchestrator.model import Abstention, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    pass

LATENCY_PCT, HIGH_PCT = 60.0, 80.0
"""latency_bound_threshold and no_bound_threshold of the rule SOLBottleneck: below the one in both computing and memory
a kernel waits for latencies; from the other on it makes good use of the GPU."""
TAIL_FROM, TAIL_OCCUPANCY = 0.2, 0.8
"""The rule LaunchConfiguration tells a tail from this share of the time on, where the occupancy achieved is below this
part of the theoretical."""
LOW_OCCUPANCY_PCT = 50.0
"""Occupancy above this seldom makes a kernel faster (CUDA C++ Best Practices Guide, "Occupancy")."""
FP64_FROM = 15.0
"""low_utilization_threshold of the rule SOLFPRoofline: fp64 at more of its peak is worth a word."""
FLOOR_NS = 2000.0
"""No kernel takes less: an empty one is on the GPU for 1.2 to 2.5 us."""
TENSOR_GAIN = 0.5
"""With tensor cores matrix products take half the time, at least: by NVIDIA's data sheets the peak of fp16 with fp32
sums is 2 times that of plain fp32 on the GeForce RTX, 8 on T4, 8 on V100, and 16 on A100."""
SHOWN_AT_LIMIT = 3
"""Of so many kernels is told that they are at a limit."""
FEED = "collectors: [{use: nsys}, {use: ncu, kernels: {from: nsys, top: 5}, set: full}]"


# ---------------------------------------------------------------- what a launch could do without


@dataclass(frozen=True)
class Lost:
    """Why a launch takes longer than it would have to. share: of its time, None where nothing tells; says: the
    predicate of a sentence about it."""

    cause: str
    share: float | None
    says: str
    evidence: tuple[Evidence, ...]
    advice: str = ""


@dataclass(frozen=True)
class Cause:
    """What findings of one cause have in common. many: what several kernels are said to do."""

    category: str
    many: str
    advice: str


CAUSES = {
    "small_grid": Cause(
        "small_grid",
        "have too few blocks for the GPU",
        "Give it more work at a time (a larger batch, several small products as one batched one), split the work into "
        "more and smaller blocks, or let other kernels run beside it on other streams.",
    ),
    "tail": Cause(
        "small_grid",
        "end in a wave of blocks that leaves most of the GPU empty",
        "Choose a grid that fills whole waves: another block or tile size, or a batch that divides evenly.",
    ),
    "occupancy": Cause("low_occupancy", "have few warps at work", ""),
    "latency": Cause(
        "gpu_compute",
        "use neither the multiprocessors nor memory to 60 %",
        "Too few of its warps are ready at a time: more independent work for each thread, fewer barriers, wider loads. "
        "A kernel of an operator is best joined with its neighbours (torch.compile, a fused operator).",
    ),
    "uncoalesced": Cause(
        "gpu_memory_bound",
        "move memory that they do not ask for",
        "Let neighbouring threads read neighbouring addresses: another layout (`contiguous()`, channels_last), another "
        "mapping of threads to data, or a tile in shared memory.",
    ),
    "bank_conflicts": Cause(
        "gpu_memory_bound",
        "wait for banks of shared memory",
        "Pad or swizzle the tiles in shared memory so that the threads of a warp use different banks.",
    ),
    "spills": Cause(
        "gpu_memory_bound",
        "keep data of threads in local memory",
        "Fewer live values for each thread (smaller tiles, less unrolling), a higher register limit, and no arrays "
        "whose index is known at run time only.",
    ),
    "fp64": Cause(
        "gpu_compute",
        "compute in double precision",
        "Use float32 where the result allows it; a constant such as 0.5 without `f`, or a NumPy array, makes doubles "
        "unasked.",
    ),
    "tensor_cores": Cause("gpu_compute", "multiply in fp32 and leave the tensor cores idle", ""),
    "cache": Cause(
        "gpu_memory_bound",
        "are held by a cache",
        "Use each value more often once it is in registers or shared memory (tiles), and read several at once; `set: "
        "full` on ncu tells how far the roof is.",
    ),
    "imbalance": Cause(
        "low_occupancy",
        "load the multiprocessors unevenly",
        "Spread the work evenly over the blocks, or make them smaller.",
    ),
    "divergence": Cause(
        "gpu_compute",
        "have threads of a warp on different ways",
        "Sort or group the data so that the threads of a warp take the same branch.",
    ),
}
_BY_LIMIT = {
    "registers": "Use fewer registers a thread (smaller tiles, __launch_bounds__; in Triton more warps).",
    "shared memory": "Use less shared memory a block: smaller tiles or fewer stages.",
    "warps": "Choose a block size that divides what fits on a multiprocessor.",
    "blocks": "Choose larger blocks: so small ones use up the places for blocks first.",
    "barriers": "Use fewer barriers a block.",
}
_GPUS_SMS = re.compile(r"GPU's (\d+) multiprocessors")
_OF_TOTAL = re.compile(r"\((\d+(?:\.\d+)?)% of the total")
_LOCAL = re.compile(r"accounting for (\d+(?:\.\d+)?)% of all sectors")
SECTOR_BYTES = 32
SAME_PCT = 0.05
"""Two throughputs no further apart are those of one unit, which both count."""
LOCAL_FROM = 0.1
"""Local memory is told from this part of the memory sectors on: less is the stack of calls."""
FP64_RATIO_FROM = 8.0
"""Where doubles are only half as fast, as on GPUs for data centres, they are there to be used."""


def _short_of(pct: float | None) -> float | None:
    """What a launch would gain if it reached the 60 % from which ncu no longer calls it latency-bound."""
    return None if pct is None else max(0.0, 1 - pct / LATENCY_PCT)


def _small_grid(launch: Launch) -> Lost | None:
    """Fewer blocks than multiprocessors: the others have nothing to do (rule LaunchConfiguration; its estimate is the
    same 1 - blocks / multiprocessors). Fewer than a wave: SOLBottleneck calls it a small grid, too."""
    blocks, sms, waves = launch.get("blocks"), launch.get("sms") or _told_sms(launch), launch.get("waves")
    if launch.row["bound"] not in ("latency", None) or blocks is None:
        return None
    evidence = (launch.evidence("blocks", "blocks"), *launch.quoted("LaunchConfiguration", "SOLBottleneck"))
    if sms and blocks < sms:
        share = 1 - blocks / sms
        s = "s" if blocks > 1 else ""
        says = (
            f"has {blocks:.0f} block{s} for {sms:.0f} multiprocessors: {100 * share:.0f} % of the GPU has nothing to do"
        )
        return Lost("small_grid", share, says, evidence)
    if waves is None or waves >= 1 or (launch.get("theoretical_occupancy_pct") or 0) <= LOW_OCCUPANCY_PCT:
        return None
    says = f"has too few blocks: {blocks:.0f} fill the GPU to {100 * waves:.0f} %"
    return Lost("small_grid", _short_of(launch.highest_pct), says, evidence)


def _told_sms(launch: Launch) -> float | None:
    texts = (rule.message for rule in launch.rules.get("LaunchConfiguration", ()))
    return next((float(found[1]) for text in texts if (found := _GPUS_SMS.search(text))), None)


def _tail(launch: Launch) -> Lost | None:
    """The last, partial wave of blocks takes as long as a full one: of w waves 1 - w / ceil(w) is lost, at most. Told
    where LaunchConfiguration tells it."""
    waves, achieved = launch.get("waves"), launch.get("achieved_occupancy_pct")
    theoretical = launch.get("theoretical_occupancy_pct")
    if waves is None or achieved is None or theoretical is None or waves <= 1 or waves == int(waves):
        return None
    if 1 / math.ceil(waves) < TAIL_FROM or achieved >= TAIL_OCCUPANCY * theoretical:
        return None
    says = f"ends in a wave that fills the GPU to {100 * (waves % 1):.0f} % only ({waves:.3g} waves)"
    evidence = (launch.evidence("waves", "waves"), launch.evidence("achieved_occupancy_pct"))
    return Lost("tail", 1 - waves / math.ceil(waves), says, (*evidence, *launch.quoted("LaunchConfiguration")))


def _occupancy(launch: Launch) -> Lost | None:
    """Few warps fit on a multiprocessor, so there are too few to hide the waiting of the others. A kernel near a limit
    of the hardware needs no more of them (Best Practices Guide, "Occupancy"): only where it is latency-bound."""
    theoretical, achieved = launch.get("theoretical_occupancy_pct"), launch.get("achieved_occupancy_pct")
    if launch.row["bound"] != "latency" or theoretical is None or theoretical > LOW_OCCUPANCY_PCT:
        return None
    limit = launch.row["occupancy_limit"]
    says = f"has at most {theoretical:.3g} % of the warps that fit" + (f", limited by {limit}" if limit else "")
    says += f", and is busy with {achieved:.3g} %" if achieved is not None else ""
    evidence = (launch.evidence("theoretical_occupancy_pct"), launch.evidence("achieved_occupancy_pct"))
    quoted = launch.quoted("Occupancy", "TheoreticalOccupancy")
    advice = " ".join(text for name, text in _BY_LIMIT.items() if limit and name in limit.split(", "))
    return Lost("occupancy", _short_of(launch.highest_pct), says, (*evidence, *quoted), advice)


def _latency(launch: Launch) -> Lost | None:
    """Neither the multiprocessors nor memory reach 60 % of their peak (rule SOLBottleneck)."""
    sm, memory = launch.get("sm_pct"), launch.get("memory_pct")
    if launch.row["bound"] != "latency" or sm is None or memory is None:
        return None
    says = f"waits for latencies: computing reaches {sm:.3g} % of its peak, memory {memory:.3g} %"
    evidence = (launch.evidence("sm_pct"), launch.evidence("memory_pct"))
    return Lost("latency", _short_of(max(sm, memory)), says, (*evidence, *launch.quoted("CPIStall", "SOLBottleneck")))


SAME = 0.1
"""Of two reasons for one waiting whose shares are this close, the first in order is the root."""


def _waiting(launch: Launch) -> Lost | None:
    """Why the launch waits: of the reasons that explain it the costliest; latency as such only where none does."""
    found = [lost for lens in (_small_grid, _tail, _occupancy) if (lost := lens(launch)) is not None]
    most = max((lost.share or 0.0 for lost in found), default=0.0)
    return next((lost for lost in found if (lost.share or 0.0) >= most - SAME), None) or _latency(launch)


def _uncoalesced(launch: Launch) -> Lost | None:
    """Sectors of 32 bytes moved for a few bytes of each (rule UncoalescedGlobalAccess, with its estimate; where it has
    none, the excess as far as memory is used). What the caches have absorbed costs nothing where DRAM is the limit."""
    excess = _excess(launch)
    if excess is None or excess <= 0:
        return None
    share = launch.gain("UncoalescedGlobalAccess")
    if share is None:
        share = excess * (launch.get("memory_pct") or 0.0) / 100
    dram, memory, moved = (launch.get(name) for name in ("dram_pct", "memory_pct", "dram_bytes"))
    ideal = launch.metrics.get("ideal_sectors")
    if dram is not None and memory is not None and dram >= memory and moved and ideal is not None:
        share = min(share, max(0.0, 1 - ideal * SECTOR_BYTES / moved))
    evidence = Evidence("kernel_metrics", f"{launch.shown} launch {launch.number}: excess", round(100 * excess, 1), "%")
    says = f"moves {100 * excess:.0f} % of its memory sectors for nothing, as neighbouring threads read scattered data"
    return Lost("uncoalesced", share, says, (evidence, *launch.quoted("UncoalescedGlobalAccess")))


def _excess(launch: Launch) -> float | None:
    total, ideal = launch.metrics.get("sectors"), launch.metrics.get("ideal_sectors")
    if total and ideal is not None:
        return 1 - ideal / total
    texts = (rule.message for rule in launch.rules.get("UncoalescedGlobalAccess", ()))
    return next((float(found[1]) / 100 for text in texts if (found := _OF_TOTAL.search(text))), None)


def _spills(launch: Launch) -> Lost | None:
    """Local memory, where registers are spilled to, lies in DRAM: the part of the sectors that are of it, as far as
    memory is used. ncu's own estimate (rule LocalMemoryUsage) goes up to 20 % for 0.4 % of the sectors."""
    texts = (rule.message for rule in launch.rules.get("LocalMemoryUsage", ()))
    told = next((float(found[1]) / 100 for text in texts if (found := _LOCAL.search(text))), None)
    local, all_ = launch.metrics.get("local_sectors"), launch.metrics.get("sectors")
    part = told if told is not None else local / (local + all_) if local and all_ is not None else None
    if part is None or part < LOCAL_FROM:
        return None
    evidence = (launch.evidence("registers", "registers"), *launch.quoted("LocalMemoryUsage"))
    says = f"moves {100 * part:.0f} % of its memory sectors for local memory, where registers are spilled to"
    return Lost("spills", part * (launch.get("memory_pct") or 0.0) / 100, says, evidence)


def _fp64(launch: Launch) -> Lost | None:
    """Doubles on a GPU that has few units for them (rule SOLFPRoofline, "FP64/32 Utilization"): for the part of the
    time that these are busy, floats take one over the ratio of the peaks."""
    pcts = launch.get("flops_per_byte"), launch.get("ridge_flops_per_byte"), launch.get("roof_pct")
    single, double = launch.metrics.get("fp32_peak"), launch.metrics.get("fp64_peak")
    intensity, ridge, roof = pcts
    if launch.row["precision"] != "fp64" or intensity is None or not ridge or roof is None or not single or not double:
        return None
    height, ratio = min(1.0, intensity / ridge) * roof, single / double
    if height < FP64_FROM or ratio < FP64_RATIO_FROM:
        return None
    says = f"computes in fp64, at {height:.3g} % of its peak; fp32 is {ratio:.3g} times as fast on this GPU"
    evidence = (launch.evidence("roof_pct"), *launch.quoted("SOLFPRoofline"))
    return Lost("fp64", height / 100 * (1 - 1 / ratio), says, evidence)


_PLAIN = re.compile(r"(?:^|_)sgemm|simt_\w*sgemm|scudnn|convolve_sgemm|xmma_\w+_f32f32_f32f32")
_TENSOR = re.compile(r"tensorop|tf32|[shid]\d{3,}")
_HAS_TENSOR = re.compile(r"RTX|V100|TITAN V|\bT4\b|\bA\d{1,3}G?\b|\b[HBL]\d{1,3}\w*|\bG[HB]\d+")
_WITHOUT_TF32 = re.compile(r"V100|TITAN V|\bT4\b|RTX 20|Quadro RTX|TITAN RTX")
"""Volta and Turing: their tensor cores take 16 bits at most."""


def _tensor_cores(launch: Launch) -> Lost | None:
    """A matrix product or convolution in fp32 that leaves the tensor cores idle, by the names that cuBLAS, CUTLASS and
    cuDNN give such kernels: `ampere_sgemm_128x64_tn`, not `ampere_s1688gemm`. PyTorch has TF32 off for matrix products
    since 1.12 (docs, "TensorFloat-32 on Ampere and later devices")."""
    used, gpu = launch.get("tensor_pct"), launch.row["gpu"] or ""
    if used is None or used >= 1 or not _PLAIN.search(launch.name) or _TENSOR.search(launch.name):
        return None
    if not _HAS_TENSOR.search(gpu):
        return None
    has_tf32 = not _WITHOUT_TF32.search(gpu)
    types = "torch.set_float32_matmul_precision('high') for TF32, or bfloat16" if has_tf32 else "float16"
    advice = f"Where the results allow it: {types} under torch.autocast. A {gpu} then takes half the time or less."
    says = "multiplies in fp32 and leaves the tensor cores idle"
    return Lost("tensor_cores", TENSOR_GAIN, says, (launch.evidence("tensor_pct"),), advice)


def _cache(launch: Launch) -> Lost | None:
    """L1 or L2 at its peak while DRAM is not: data goes back and forth that could stay in registers. A launch whose
    computing and memory are used to the very same part is limited by the unit that counts for both: L1's."""
    sm, memory, dram = (launch.get(name) for name in ("sm_pct", "memory_pct", "dram_pct"))
    if sm is None or memory is None or dram is None or memory < LATENCY_PCT or dram >= LATENCY_PCT:
        return None
    if (launch.row["bound"] == "compute" and abs(sm - memory) > SAME_PCT) or (launch.get("tensor_pct") or 0) > 1:
        return None
    is_l2 = (launch.get("l2_pct") or 0) > (launch.get("l1_pct") or 0)
    unit = "the L2 cache" if is_l2 else "loads and stores through the L1 cache"
    says = f"is held by {unit} ({memory:.3g} % of the peak) while DRAM is at {dram:.2g} %"
    known = launch.row["precision"] and launch.get("flops")
    evidence = (launch.evidence("memory_pct"), launch.evidence("dram_pct"))
    share = _short_of(launch.get("roof_pct")) if known else None
    return Lost("cache", share, says, (*evidence, *launch.quoted("SOLBottleneck", "MemoryCacheAccessPattern")))


def _estimated(cause: str, says: str, *rules: str) -> Callable[[Launch], Lost | None]:
    """What only ncu's own rules tell, by their estimate for the launch as a whole; not where DRAM is the limit, nor
    where there are too few blocks to load all multiprocessors."""

    def lens(launch: Launch) -> Lost | None:
        gain = launch.gain(*rules)
        if not gain or (launch.get("dram_pct") or 0) >= HIGH_PCT or _small_grid(launch):
            return None
        return Lost(cause, gain, f"{says} (ncu's estimate: {100 * gain:.0f} % of its time)", launch.quoted(*rules))

    return lens


_conflicts = _estimated(
    "bank_conflicts", "waits for banks of shared memory", "SharedMemoryConflicts", "UncoalescedSharedAccess"
)
_imbalance = _estimated("imbalance", "loads the multiprocessors unevenly", "WorkloadImbalance")
_divergence = _estimated("divergence", "has threads of a warp on different ways", "ThreadDivergence")
LENSES = (_waiting, _uncoalesced, _conflicts, _spills, _fp64, _tensor_cores, _cache, _imbalance, _divergence)


def losses(launch: Launch) -> Iterator[Lost]:
    """All that holds the launch back, none of it with more than what is above the time of an empty kernel."""
    most = max(0.0, 1 - FLOOR_NS / launch.ns)
    for lens in LENSES:
        lost = lens(launch)
        if lost is not None:
            yield lost if lost.share is None else _with_share(lost, min(lost.share, most))


def _with_share(lost: Lost, share: float) -> Lost:
    return Lost(lost.cause, share, lost.says, lost.evidence, lost.advice)


# ---------------------------------------------------------------- the rules


@dataclass(frozen=True)
class Held:
    """A kernel with one cause, over all its launches. pct: of the whole; None where the cause tells no share."""

    name: str
    shown: str
    worst: Lost
    pct: float | None
    share_pct: float
    captures: tuple[str, ...]


def held_back(report: Report) -> Iterator[Finding]:
    """What holds single kernels back, weighed by each kernel's part of the run: a kernel and cause each, the costliest
    first. Those too small to be told alone are told together where they add up."""
    seen = [launch for launch in launches(report) if not communicates(launch.name, launch.shown)]
    if not seen:
        return
    weighed = weights(report, seen)
    held = _held(seen, weighed)
    for one in held:
        told = _severity(one.pct, weighed)
        if told is not None:
            yield _finding(one, told, weighed)
        elif one.pct is None and one.share_pct >= MAJOR_PCT:
            yield _finding(one, "minor", weighed)
    for cause in CAUSES:
        few = [one for one in held if one.worst.cause == cause and one.pct and _severity(one.pct, weighed) is None]
        yield from _together(cause, few, weighed)


def _held(seen: Sequence[Launch], weighed: Weights) -> list[Held]:
    by_kernel: dict[str, list[Launch]] = {}
    for launch in seen:
        by_kernel.setdefault(launch.name, []).append(launch)
    found = []
    for name, own in by_kernel.items():
        told = [(launch, lost) for launch in own for lost in losses(launch)]
        captures = tuple(dict.fromkeys(launch.capture for launch in own))
        share_pct, all_ns = weighed.of(name), sum(launch.ns for launch in own)
        for cause in dict.fromkeys(lost.cause for _, lost in told):
            same = [(launch, lost) for launch, lost in told if lost.cause == cause]
            known = [(launch.ns, lost.share) for launch, lost in same if lost.share is not None]
            lost_ns = sum(ns * share for ns, share in known)
            worst = max(same, key=lambda pair: pair[0].ns * (pair[1].share or 0.0))[1]
            pct = share_pct * lost_ns / all_ns if known else None
            found.append(Held(name, own[0].shown, worst, pct, share_pct, captures))
    return sorted(found, key=lambda one: -(one.pct or 0.0))


def _severity(pct: float | None, weighed: Weights) -> Severity | None:
    """Of what is no part of the run, nothing is critical."""
    found = severity(pct)
    return "major" if found == "critical" and not weighed.is_run else found


def _finding(held: Held, told: Severity, weighed: Weights) -> Finding:
    cause = CAUSES[held.worst.cause]
    pct = None if held.pct is None else round(held.pct, 1)
    part = Evidence("kernel_profiles", f"{held.shown}: part of {weighed.whole.of}", round(held.share_pct, 1), "%")
    return Finding(
        rule=f"kernel_{held.worst.cause}",
        category=cause.category,
        severity=told,
        title=f"{held.shown} {held.worst.says}",
        advice=" ".join(filter(None, (held.worst.advice, cause.advice))) or "Look at it in ncu's own window.",
        confidence="medium" if pct is not None else "low",
        where={"kernel": held.name},
        cost_s=weighed.whole.cost_s(held.pct),
        cost_pct=pct,
        of=None if pct is None else weighed.whole.of,
        evidence=(*(one for one in held.worst.evidence if one.value is not None), part),
        sources=(*held.captures, *weighed.sources),
        cause=f"{held.worst.cause} in {held.name}",
    )


def _together(cause: str, few: Sequence[Held], weighed: Weights) -> Iterator[Finding]:
    total = sum(one.pct or 0.0 for one in few)
    told = _severity(total, weighed)
    if told is None or len(few) < 2:
        return
    names = list(dict.fromkeys(one.shown for one in few))
    listed = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    yield Finding(
        rule=f"kernel_{cause}",
        category=CAUSES[cause].category,
        severity=told,
        title=f"{len(few)} kernels {CAUSES[cause].many}: {listed}",
        advice=CAUSES[cause].advice or few[0].worst.advice,
        confidence="medium",
        where={"kernel": few[0].name},
        cost_s=weighed.whole.cost_s(total),
        cost_pct=round(total, 1),
        of=weighed.whole.of,
        evidence=tuple(e for one in few[:3] for e in one.worst.evidence[:1]),
        sources=(*dict.fromkeys(c for one in few for c in one.captures), *weighed.sources),
        cause=f"{cause} in many kernels",
    )


def at_a_limit(report: Report) -> Iterator[Finding]:
    """Kernels that make good use of the GPU: computing, tensor cores or DRAM at 60 % of their peak or more, and nothing
    found that holds them back. They only get faster by doing less."""
    seen = [launch for launch in launches(report) if not communicates(launch.name, launch.shown)]
    if not seen:
        return
    weighed = weights(report, seen)
    blamed = {one.name for one in _held(seen, weighed) if one.pct is None or severity(one.pct)}
    longest = {launch.name: launch for launch in sorted(seen, key=lambda launch: launch.ns)}
    told = [
        (weighed.of(name), launch, limit)
        for name, launch in longest.items()
        if name not in blamed and (limit := _limit(launch)) is not None
    ]
    for pct, launch, (unit, category, reached, advice) in sorted(told, key=lambda one: -one[0])[:SHOWN_AT_LIMIT]:
        if pct < MAJOR_PCT:
            continue
        yield Finding(
            rule="kernel_at_a_limit",
            category=category,
            severity="minor",
            title=f"{launch.shown} makes good use of the GPU: {reached:.3g} % of what {unit} can do",
            advice=advice,
            confidence="high",
            where={"kernel": launch.name},
            cost_s=weighed.whole.cost_s(pct),
            cost_pct=round(pct, 1),
            of=weighed.whole.of,
            evidence=tuple(
                launch.evidence(column)
                for column in ("sm_pct", "memory_pct", "dram_pct", "tensor_pct")
                if launch.get(column) is not None
            ),
            sources=(launch.capture, *weighed.sources),
            cause=f"limit of {launch.name}",
            healthy=True,
        )


def _limit(launch: Launch) -> tuple[str, str, float, str] | None:
    """The best used unit, its category, what it reaches, and what is left to do."""
    compute = "It gets faster by computing less, or in a narrower type."
    memory = "It gets faster by moving less: join it with its neighbours (torch.compile, a fused operator), or use a "
    units = (
        ("tensor_pct", "the tensor cores", "gpu_compute", compute),
        ("dram_pct", "DRAM", "gpu_memory_bound", f"{memory}narrower type."),
        ("sm_pct", "the multiprocessors", "gpu_compute", compute),
    )
    known = [(launch.get(column), name, category, advice) for column, name, category, advice in units]
    best = max((one for one in known if one[0] is not None), key=lambda one: one[0] or 0.0, default=None)
    if best is None or best[0] is None or best[0] < LATENCY_PCT:
        return None
    return best[1], best[2], best[0], best[3]


def not_looked_into(report: Report) -> Iterator[Abstention]:
    """Kernels were seen to run, and nobody has looked inside; or their throughputs were not collected."""
    seen = launches(report)
    if seen and all(launch.get(name) is None for launch in seen for name in ("sm_pct", "dram_pct")):
        lacks = "the throughputs of the kernels' launches (ncu's section SpeedOfLight)"
        yield Abstention("held_back", lacks, FEED)
    ran = report.table("gpu_kernel_summary")
    if not seen and ran is not None and len(ran):
        lacks = "what limits each kernel (ncu's counters); nsys and torch only tell how long it took"
        yield Abstention("held_back", lacks, FEED)


RULES = (held_back, at_a_limit, not_looked_into)
