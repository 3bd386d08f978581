"""Rules about copies between the host and the GPU, in the window and before it.

nsys's expert rules cuda_memcpy_async, cuda_memcpy_sync and cuda_memset_sync list such copies; here they are told when
they cost a part of the window: the time in which the GPU does nothing but copy, and that in which it waits for a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.gpu_seen import Seen, seen
from orchestrator.locating.gpu_names import ASYNCHRONOUS
from orchestrator.model import Evidence, Finding
from orchestrator.report import Report
from orchestrator.units import show_bytes, show_duration

if TYPE_CHECKING:
    import pandas

CAUSE = "copies"
SMALL_BYTES = 64 << 10
"""Up to this size a copy takes as long as its setting up: 64 KiB need 5 us at 12 GB/s."""
PAGEABLE_FROM = 0.9
MANY = 100
"""So many small ones are worth one large one."""


def _cost_ns(gpu: Seen) -> int:
    """The GPU does nothing but copy, or waits for a copy."""
    return gpu.ns("copying", "copy")


def copies(report: Report) -> Iterator[Finding]:
    """Copies without a kernel beside them, and waits for them. (HTA: exposed memory time.)"""
    for gpu in seen(report):
        moves = gpu.of_kind("transfer")
        if not len(moves):
            continue
        within = _is_inside(moves)
        yield from gpu.finding(
            "copies",
            "transfers",
            _title(gpu, moves, within),
            "Avoid them: write results where they are read, and reuse buffers."
            if within
            else "Keep on the GPU what is used there again, and copy only what is new; copy the next batch while the "
            "GPU computes (pin_memory=True, `.to(device, non_blocking=True)`, a stream of its own).",
            _cost_ns(gpu),
            evidence=(gpu.state("copying"), gpu.state("copy"), *_rows(moves)),
            cause=CAUSE,
        )


def _title(gpu: Seen, moves: pandas.DataFrame, within: bool) -> str:
    """Whether it is the copies that take the time, or the waits in the calls that make them."""
    waits, share = gpu.gaps[gpu.gaps["cause"] == "copy"], gpu.share(_cost_ns(gpu))
    if gpu.ns("copy") > gpu.ns("copying") and len(waits):
        longest = show_duration(int(waits["duration_ns"].max()) / 1e9)
        calls = gpu.calls("copy").nlargest(1, "total_ns")["name"].tolist()
        named = f" ({calls[0]})" if calls else ""
        return f"The GPU waits for {share} for copies that block{named}, at the longest {longest}: {_told(moves)}"
    also = " and the waits for them" if gpu.ns("copy") > gpu.ns("copying") / 10 else ""
    which = "within the memory of the GPU" if within else "between host and GPU"
    return f"Copies {which}{also} take {share}: {_told(moves)}"


def _is_inside(moves: pandas.DataFrame) -> bool:
    """Most of the time is that of copies inside the GPU's memory, and of sets."""
    inside = moves["name"].str.contains("DtoD|Device-to-Device|memset", regex=True)
    return bool(moves[inside]["total_ns"].sum() > moves[~inside]["total_ns"].sum())


def _told(moves: pandas.DataFrame) -> str:
    """How many there are of each kind, with their sizes."""
    parts = []
    kinds = moves.groupby("name").agg({"count": "sum", "total_ns": "sum", "bytes": "sum"}).nlargest(2, "total_ns")
    for name, row in kinds.iterrows():
        size = f" of {show_bytes(int(row['bytes']))}" if row["bytes"] else ""
        parts.append(f"{int(row['count']):,} x {str(name).strip('[]').removeprefix('CUDA ')}{size}")
    slow = int(moves[moves["pageable"].fillna(False).astype(bool)]["total_ns"].sum())
    pageable = ", from or to pageable memory" if slow > PAGEABLE_FROM * moves["total_ns"].sum() else ""
    return ", ".join(parts) + pageable


def _rows(moves: pandas.DataFrame) -> Iterator[Evidence]:
    for _, row in moves.nlargest(2, "total_ns").iterrows():
        yield Evidence("gpu_work", str(row["name"]), round(int(row["total_ns"]) / 1e9, 6), "s")
        yield Evidence("gpu_work", str(row["name"]), int(row["count"]), "copies")


def pageable_copies(report: Report) -> Iterator[Finding]:
    """Pageable memory is copied through a buffer of the driver, at a part of the speed, and the call waits for it even
    where it is an asynchronous one. (nsys: cuda_memcpy_async.) The cost is their part of the time of all copies."""
    for gpu in seen(report):
        moves = gpu.of_kind("transfer")
        slow = moves[moves["pageable"].fillna(False).astype(bool)]
        whole_ns = int(moves["total_ns"].sum())
        if not len(slow) or not whole_ns:
            continue
        part = int(slow["total_ns"].sum()) / whole_ns
        yield from gpu.finding(
            "pageable_copies",
            "transfers",
            f"Copies take {gpu.share(_cost_ns(gpu) * part)}: {_told(slow)}",
            "Pin the memory (pin_memory=True in the DataLoader, `.pin_memory()`, cudaHostAlloc): the copy is up to "
            "three times as fast, and can run beside kernels.",
            _cost_ns(gpu) * part,
            evidence=tuple(_rows(slow)),
            cause=CAUSE,
        )


def small_copies(report: Report) -> Iterator[Finding]:
    """Many small copies where one would do: what they cost is the setting up, and the waits between them."""
    for gpu in seen(report):
        moves = gpu.of_kind("transfer")
        between = moves[~moves["name"].str.contains("DtoD|Device-to-Device|memset", regex=True)]
        small = between[(between["median_bytes"] <= SMALL_BYTES).fillna(False) & (between["count"] >= MANY)]
        whole = int(between["count"].sum())
        if not len(small):
            continue
        count = int(small["count"].sum())
        yield from gpu.finding(
            "small_copies",
            "transfers",
            f"{count:,} small copies (median {show_bytes(float(small['median_bytes'].median()))}) and the waits for "
            f"them take {gpu.share(small['total_ns'].sum() + gpu.ns('copy') * count / whole)}",
            "Put small tensors together on the host and copy them at once.",
            int(small["total_ns"].sum()) + gpu.ns("copy") * count / whole,
            evidence=tuple(_rows(small)),
            cause=CAUSE,
        )


def synchronous_copies(report: Report) -> Iterator[Finding]:
    """cudaMemcpy without Async: the program waits for each. (nsys: cuda_memcpy_sync.) They cost at most what all copies
    do."""
    for gpu in seen(report):
        calls = gpu.calls("copy")
        waiting = calls[~calls["name"].str.contains(ASYNCHRONOUS.pattern.replace("(", "(?:"), regex=True)]
        if not len(waiting):
            continue
        ns = min(int(waiting["total_ns"].sum()), _cost_ns(gpu))
        yield from gpu.finding(
            "synchronous_copies",
            "transfers",
            f"{int(waiting['count'].sum()):,} synchronous copies ({waiting['name'].iloc[0]}) take {gpu.share(ns)}",
            "Copy asynchronously from pinned memory (cudaMemcpyAsync; `non_blocking=True`), and go on meanwhile.",
            ns,
            evidence=tuple(
                Evidence("gpu_work", str(r["name"]), int(r["count"]), "calls") for _, r in waiting.iterrows()
            ),
            cause=CAUSE,
        )


def copies_first(report: Report) -> Iterator[Finding]:
    """Before the first kernel of the window, copies took longer than all of the window: weights, or data that stays. It
    is no part of the window, and happens once; the shorter the program, the more it matters."""
    for gpu in seen(report):
        moves = gpu.of_kind("transfer", part="before")
        ns = int(moves["total_ns"].sum())
        if gpu.steps is not None or ns <= gpu.window_ns:
            continue
        yield Finding(
            rule="copies_first",
            category="transfers",
            severity="minor",
            title=f"Copies before the first kernel took longer ({show_duration(ns / 1e9)}) than all from the first "
            f"kernel to the last ({show_duration(gpu.window_ns / 1e9)}): {_told(moves)}{gpu.label}",
            advice="It happens once: load weights from pinned or mapped memory (safetensors), or straight to the GPU "
            "(map_location).",
            confidence="high",
            cost_s=round(ns / 1e9, 6),
            of="the time before the first kernel",
            evidence=(*_rows(moves), Evidence("gpu_time", gpu.capture, round(gpu.window_ns / 1e9, 6), "s of window")),
            sources=(gpu.capture,),
        )


RULES = (copies, pageable_copies, small_copies, synchronous_copies, copies_first)
