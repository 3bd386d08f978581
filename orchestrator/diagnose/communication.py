"""Rules about communication between GPUs: what of it has no computing beside it, and which rank the others wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestrator.formats.kernel_names import function
from orchestrator.gpu_seen import Seen, seen, shown_pct
from orchestrator.model import Evidence, Finding
from orchestrator.report import Report


def exposed(report: Report) -> Iterator[Finding]:
    """Communication kernels run with no computing beside them. (HTA: communication computation overlap.) A kernel of a
    collective also waits for the other ranks in it: where several were recorded, what all of them have is the
    collective's own, and what only some have is waiting (see `stragglers`)."""
    gpus = [gpu for gpu in seen(report) if gpu.ns("communicating")]
    for group in _groups(gpus):
        least = min(gpu.pct(gpu.ns("communicating")) for gpu in group)
        for gpu in group if len(group) == 1 else group[:1]:
            ns = gpu.window_ns * least / 100
            kernels = gpu.of_kind("kernel")
            mine = kernels[(kernels["family"] == "communication").fillna(False)].sort_values(
                "total_ns", ascending=False
            )
            name = function(str(mine["name"].iloc[0])) if len(mine) else "communication"
            alone = "" if len(group) > 1 else " Waiting for other ranks is part of it: record all ranks to tell."
            yield from gpu.finding(
                "exposed_communication",
                "communication",
                f"Communication ({name}) takes {gpu.share(ns)} with no computing beside it",
                "Let it run beside the backward pass: DistributedDataParallel with larger or smaller buckets "
                "(bucket_cap_mb), gradient accumulation with no_sync(), compressed gradients "
                f"(bf16_compress_hook); see that NCCL uses NVLink or RDMA (NCCL_DEBUG=INFO).{alone}",
                ns,
                sure="high" if len(group) > 1 else "medium",
                where={"kernel": str(mine["name"].iloc[0])} if len(mine) else {},
                evidence=(gpu.state("communicating"), gpu.state("computing")),
                cause="exposed communication",
            )


def stragglers(report: Report) -> Iterator[Finding]:
    """All ranks leave a collective together, and the last to come waits least in it: the rank with the least time in
    communication kernels. The others lose, on the mean, what they have more. (HTA: straggler detection.)"""
    gpus = [gpu for gpu in seen(report) if gpu.ns("communicating")]
    for group in _groups(gpus):
        if len(group) < 2:
            continue
        waits = {gpu: gpu.pct(gpu.ns("communicating")) for gpu in group}
        late = min(waits, key=lambda gpu: waits[gpu])
        others = [gpu for gpu in group if gpu is not late]
        lost = sum(waits[gpu] - waits[late] for gpu in others) / len(group)
        yield from late.finding(
            "straggler",
            "communication",
            f"The other ranks wait for {_who(late)} for {shown_pct(lost)} of {late.of}: it {_why(late, others)}",
            "Give all ranks equal work (batches of equal length and number), and look at what that rank does, and at "
            "its GPU's clocks.",
            late.window_ns * lost / 100,
            sure="medium",
            evidence=tuple(
                Evidence("gpu_time", _who(gpu), round(waits[gpu], 2), "% in communication") for gpu in group[:8]
            ),
            cause="straggler",
        )


def _groups(gpus: Sequence[Seen]) -> list[list[Seen]]:
    """GPUs that were recorded together, by one tool in one pass, each once."""
    passes = {capture.id: (capture.pass_id, capture.collector) for gpu in gpus for capture in gpu.report.captures}
    found: dict[object, list[Seen]] = {}
    for gpu in gpus:
        found.setdefault(passes.get(gpu.capture, gpu.capture), []).append(gpu)
    return list(found.values())


def _who(gpu: Seen) -> str:
    return gpu.label.strip(" ()") or gpu.capture


def _why(late: Seen, others: Sequence[Seen]) -> str:
    """Where it spends what the others wait: computing, or waiting for its host."""

    def mean(*states: str) -> float:
        return sum(gpu.pct(gpu.ns(*states)) for gpu in others) / len(others)

    computes = late.pct(late.ns("computing")) - mean("computing")
    idle = ("host", "data", "copy", "sync", "unknown")
    waits = late.pct(late.ns(*idle)) - mean(*idle)
    if max(computes, waits) <= 0:
        return "comes last to the collectives"
    return "computes longer" if computes >= waits else "waits longer for its host"


RULES = (exposed, stragglers)
