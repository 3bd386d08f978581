"""Rules over PyTorch's allocations: what holds the peak, memory that is reserved and not used, blocks that come and go
at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.judging import confidence, severity, steady
from orchestrator.model import Abstention, Evidence, Finding
from orchestrator.report import Report
from orchestrator.units import show_bytes

if TYPE_CHECKING:
    import pandas

HOST_PEAK_BYTES = 1 << 30
"""On the CPU less at once is nothing to tell."""
UNUSED_PCT, UNUSED_BYTES = 30.0, 1 << 30
"""From this part of what the allocator has reserved, and this much, what lies unused is told."""
ALWAYS_MAPPED_BYTES = 32 << 20
"""malloc asks the kernel for larger blocks anew each time (mallopt(3): M_MMAP_THRESHOLD is at most 32 MiB), which then
come page by page, each cleared first."""
PAGE_BYTES, PAGE_NS = 4096, 250.0
"""What the kernel needs to hand out and clear a page: at least this long on the processors of today."""


@dataclass(frozen=True, eq=False)
class Held:
    """The allocations on one device in the first process of a capture, in the order of time."""

    capture: str
    device: str
    rows: pandas.DataFrame

    @property
    def peak(self) -> int:
        """The place of the row after which most was allocated."""
        return int(self.rows["allocated_bytes"].astype("int64").to_numpy().argmax())

    def holders(self) -> pandas.Series:
        """By operator, the bytes of its blocks that were alive at the peak, the most first; what was there before the
        recording is in none."""
        until = self.rows.iloc[: self.peak + 1]
        last = until[until["address"].notna()].groupby("address", sort=False).tail(1)
        alive = last[last["bytes"] > 0]
        held: pandas.Series = alive["bytes"].groupby(alive["op"].fillna("outside of operators")).sum()
        return held.sort_values(ascending=False)


def _held(report: Report) -> Iterator[Held]:
    frame = report.table("memory")
    if frame is None:
        return
    known = frame[frame["allocated_bytes"].notna() & frame["time_ns"].notna()]
    for (capture, device), rows in known.groupby(["capture", "device"], sort=False):
        own = rows[rows["pid"].isna() | (rows["pid"] == rows["pid"].iloc[0])]
        yield Held(str(capture), str(device), own.sort_values("time_ns", kind="stable"))


def memory_peak(report: Report) -> Iterator[Finding]:
    """How much was allocated at once, and whose blocks that was: no fault in itself, and the first thing to know where
    memory runs out."""
    for held in _held(report):
        most = int(held.rows["allocated_bytes"].iloc[held.peak])
        if held.device == "cpu" and most < HOST_PEAK_BYTES:
            continue
        by_op = held.holders()
        known = int(by_op.sum())
        first = f", the most of it by {by_op.index[0]} ({show_bytes(int(by_op.iloc[0]))})" if len(by_op) else ""
        before = f"; {show_bytes(most - known)} were there before the recording" if known < 0.99 * most else ""
        yield Finding(
            rule="memory_peak",
            category="memory_management",
            severity="info",
            title=f"PyTorch holds at most {show_bytes(most)} at once on {held.device}{first}{before}",
            advice="Where memory is short: free what is no longer needed before the peak, activation checkpointing "
            "(torch.utils.checkpoint), a smaller batch with gradient accumulation, or a narrower type.",
            confidence="high",
            where={"op": str(by_op.index[0])} if len(by_op) else {},
            evidence=(
                Evidence("memory", f"{held.device}: most at once", most, "bytes"),
                *(Evidence("memory", f"at the peak: {op}", int(size), "bytes") for op, size in by_op.head(3).items()),
            ),
            sources=(held.capture,),
            healthy=True,
        )


def reserved_unused(report: Report) -> Iterator[Finding]:
    """The allocator has reserved much more than was ever in use: the free blocks do not fit what is asked for
    (fragmentation), or the peak came before the recording (PyTorch docs, "Memory management")."""
    for held in _held(report):
        reserved = held.rows["reserved_bytes"].max()
        if held.device == "cpu" or reserved is None or reserved != reserved or not reserved:
            continue
        unused = int(reserved) - int(held.rows["allocated_bytes"].max())
        pct = 100 * unused / int(reserved)
        if pct < UNUSED_PCT or unused < UNUSED_BYTES:
            continue
        yield Finding(
            rule="reserved_unused",
            category="memory_management",
            severity="minor",
            title=f"{show_bytes(unused)} of GPU memory are reserved and not in use at the peak ({pct:.0f} % of "
            f"{show_bytes(int(reserved))} on {held.device})",
            advice="If it was not needed earlier, the cache is fragmented: PYTORCH_CUDA_ALLOC_CONF="
            "expandable_segments:True, and shapes that stay the same. It costs room, not time.",
            confidence="medium",
            evidence=(
                Evidence("memory", f"{held.device}: reserved", int(reserved), "bytes"),
                Evidence("memory", f"{held.device}: most at once", int(held.rows["allocated_bytes"].max()), "bytes"),
            ),
            sources=(held.capture,),
            cause=f"reserved on {held.device}",
        )


def blocks_anew(report: Report) -> Iterator[Finding]:
    """On the CPU, where PyTorch keeps no cache: large blocks that each step takes from the kernel and gives back, page
    by page. Told by the least that clearing those pages takes."""
    ops = report.table("torch_ops")
    for held in _held(report):
        if held.device != "cpu" or ops is None:
            continue
        own = ops[(ops["capture"] == held.capture) & (ops["name"] == "ProfilerStep*") & (ops["device"] == "cpu")]
        steps, window_ns = int(own["count"].sum()), float(own["cpu_total_ns"].sum())
        large = held.rows[held.rows["bytes"] >= ALWAYS_MAPPED_BYTES]
        again = large[large.groupby("bytes")["bytes"].transform("size") >= max(2, steps)]
        if not steps or not window_ns or not len(again):
            continue
        size = int(again["bytes"].sum())
        pct = min(100.0, 100 * size / PAGE_BYTES * PAGE_NS / window_ns)
        told, whole = severity(pct), steady(report)
        if told is None:
            continue
        op = again.groupby(again["op"].fillna("outside of operators"))["bytes"].sum().idxmax()
        yield Finding(
            rule="blocks_anew",
            category="memory_management",
            severity="minor",
            title=f"Each step takes {show_bytes(size // steps)} in large blocks from the kernel, and gives them back",
            advice="Write into tensors that are kept (out=, in-place operators), or work on smaller pieces; jemalloc "
            "or tcmalloc by LD_PRELOAD keep large blocks.",
            confidence=confidence(report, [held.capture], "low"),
            where={"op": str(op)},
            cost_s=whole.cost_s(pct),
            cost_pct=round(pct, 1),
            of=whole.of if whole.seconds is not None else f"the {steps} steps that torch.profiler recorded",
            evidence=(Evidence("memory", f"cpu: blocks of {op}", len(again) / steps, "a step"),),
            sources=(held.capture,),
            cause="blocks anew",
        )


def not_recorded(report: Report) -> Iterator[Abstention]:
    """PyTorch has used a GPU, and its allocations were not recorded."""
    ops, memory = report.table("torch_ops"), report.table("memory")
    if ops is None or (memory is not None and len(memory)) or not (ops["device"] != "cpu").any():
        return
    lacks = "PyTorch's allocations: how much GPU memory it holds at its peak, and for which operators"
    yield Abstention("memory_peak", lacks, "collectors: [{use: torch, memory: true}]")


RULES = (memory_peak, reserved_unused, blocks_anew, not_recorded)
