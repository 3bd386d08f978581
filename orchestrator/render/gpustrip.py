"""The queue of each GPU over the window as a strip: how busy it was, and its gaps by what they waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import gpu, plots, view
from orchestrator.render.plots import Box, Scale, Shape
from orchestrator.render.where import CAUSES

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray

    from orchestrator.report import Report

BOX = Box(1000, 64, 0, 0, 2, 0)
BINS = 250
"""Of the window: each shows which part of it the GPU was busy, and which part it waited for what."""
SHOWN = 8
"""GPUs; the others are in the tables."""
TOP = 8
"""Gaps that are told one by one."""


@dataclass(frozen=True)
class Gap:
    """One gap as text, with what the launching thread did in it. None: not known."""

    id: str
    at: str
    ns: int
    lasted: str
    share: float
    """Of the window, 0 to 1."""
    kind: str
    cause: str
    phase: str | None
    python: str | None
    did: str
    syscall: str | None
    told_by: tuple[str, ...]


@dataclass(frozen=True)
class Queue:
    """The strip of one GPU. `known`: work and gaps; without work only the longest gaps are drawn."""

    serial: int
    device: gpu.Device
    shapes: tuple[Shape, ...]
    ticks: tuple[tuple[float, str], ...]
    known: bool
    label: str
    window_ns: int
    window: str | None
    """Which part of the recording that is; None: the span of its work."""
    gaps: tuple[Gap, ...]
    kinds: tuple[tuple[str, str], ...]
    """Class and words of each cause that is drawn."""
    box: Box = BOX


def left_out(report: Report) -> int:
    """How many GPUs did work that are not shown one by one."""
    return max(0, len(gpu.known_rows(report)) - SHOWN)


def queues(report: Report) -> list[Queue]:
    """The GPUs that did any work, capture by capture; of many, those that were idle most."""
    rows = gpu.most_idle(report, SHOWN)
    pairs = zip(rows, gpu.devices(report, rows), strict=True)
    return [_queue(report, i, row, device) for i, (row, device) in enumerate(pairs, 1)]


def moments(found: Sequence[Queue]) -> dict[float, str]:
    """By how long it lasted, in s as findings give it, the id of each gap that is listed."""
    return {round(gap.ns / 1e9, 6): gap.id for queue in reversed(found) for gap in reversed(queue.gaps)}


def _queue(report: Report, serial: int, row: dict[str, Any], device: gpu.Device) -> Queue:
    start, length, window = _window(report, row)
    found = gpu.gaps_of(report, row)
    gaps = None if found is None else _inside(found, start, length)
    work = _work(report, row)
    there = set() if gaps is None else {*gaps["cause"].unique()}
    causes = [cause for cause in CAUSES if cause in there]
    return Queue(
        serial,
        device,
        tuple(_layers(gaps, causes, work, start, length)),
        plots.ticks(Scale(0.0, length / 1e9, 0.0, BOX.width), "s", 8),
        known=work is not None,
        label=f"Queue of {device.name} over {view.duration(length / 1e9)}",
        window_ns=length,
        window=window,
        gaps=tuple(_gap(f"gap-{serial}-{i}", gap, start, length) for i, gap in enumerate(_longest(gaps), 1)),
        kinds=tuple((CAUSES[cause][1], CAUSES[cause][0]) for cause in causes),
    )


def _window(report: Report, row: dict[str, Any]) -> tuple[int, int, str | None]:
    """Start, length and name of what `gpu_time` tells of; without it, of the span of the GPU's work."""
    frame = report.table("gpu_time")
    own = [] if frame is None else gpu.records(gpu.rows_of(frame, row))
    told = next((r for r in own if r["window_ns"] and r["start_ns"] is not None), None)
    if told is None:
        return row["start_ns"] or 0, row["span_ns"], None
    return told["start_ns"], told["window_ns"], told["window"]


def _inside(gaps: pandas.DataFrame, start: int, length: int) -> pandas.DataFrame:
    """The gaps of the window, each with a cause that has words."""
    gaps = gaps[gaps["start_ns"].notna() & (gaps["duration_ns"].fillna(0) > 0)]
    gaps = gaps[(gaps["start_ns"] < start + length) & (gaps["start_ns"] + gaps["duration_ns"] > start)]
    known = gaps["cause"] if "cause" in gaps.columns else gaps["kind"]
    return gaps.assign(cause=known.where(known.isin([*CAUSES]).fillna(False), "unknown").fillna("unknown"))


def _longest(gaps: pandas.DataFrame | None) -> list[dict[str, Any]]:
    if gaps is None:
        return []
    return gpu.records(gaps.sort_values("duration_ns", ascending=False, kind="stable").head(TOP))


def _work(report: Report, row: dict[str, Any]) -> pandas.DataFrame | None:
    """All work of the GPU; None where single pieces of it were not kept."""
    import pandas

    names = ("capture", "rank", "pid", "device", "start_ns", "duration_ns")
    frames = (report.rows(name, [row["capture"]], names) for name in ("gpu_kernels", "gpu_graphs", "gpu_transfers"))
    own = [gpu.rows_of(frame, row)[["start_ns", "duration_ns"]] for frame in frames if frame is not None]
    found = pandas.concat(own).dropna() if own else pandas.DataFrame()
    return None if found.empty else found


def _layers(
    gaps: pandas.DataFrame | None, causes: Sequence[str], work: pandas.DataFrame | None, start: int, length: int
) -> Iterator[Shape]:
    """From the bottom: the part of each bin in which the GPU was busy, then what it waited for; the rest of its
    idleness, in gaps too short to be kept, is left open."""
    import numpy

    edges = numpy.linspace(0.0, float(length), BINS + 1)
    floor = numpy.zeros(BINS)
    if work is not None:
        floor = covered(work["start_ns"].to_numpy("int64") - start, work["duration_ns"].to_numpy("int64"), edges)
        yield Shape("native", _bins(numpy.zeros(BINS), floor))
    for cause in causes:
        if gaps is None:
            return
        own = gaps[gaps["cause"] == cause]
        begins, lengths = own["start_ns"].to_numpy("int64") - start, own["duration_ns"].to_numpy("int64")
        top = numpy.minimum(1.0, floor + covered(begins, lengths, edges))
        yield Shape(CAUSES[cause][1], _bins(floor, top))
        floor = top


def covered(starts: NDArray[np.int64], lengths: NDArray[np.int64], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """The part of each bin (0 to 1) that at least one of the spans covers."""
    import numpy

    order = numpy.argsort(starts, kind="stable")
    begins, ends = starts[order], numpy.maximum.accumulate((starts + lengths)[order])
    fresh = numpy.concatenate([[True], begins[1:] > ends[:-1]])  # begins after all before it have ended
    first, last = begins[fresh], ends[numpy.concatenate([fresh[1:], [True]])]
    spent = numpy.cumsum(last - first)
    times = numpy.stack([first, last], axis=1).ravel()
    until = numpy.stack([spent - (last - first), spent], axis=1).ravel()
    found: NDArray[np.float64] = numpy.diff(numpy.interp(edges, times, until)) / numpy.diff(edges)
    return found


def _bins(lows: NDArray[np.float64], highs: NDArray[np.float64]) -> str:
    """Bars side by side from `lows` to `highs`; equal neighbours as one."""
    y = Scale(0.0, 1.0, BOX.height, BOX.top)
    width, drawn, i = BOX.width / BINS, [], 0
    rows = [(y.at(low), y.at(high)) for low, high in zip(lows.tolist(), highs.tolist(), strict=True)]
    while i < BINS:
        j = next((k for k in range(i, BINS) if rows[k] != rows[i]), BINS)
        if rows[i][0] > rows[i][1]:
            drawn.append(f"M{i * width:g} {rows[i][0]:g}V{rows[i][1]:g}H{j * width:g}V{rows[i][0]:g}z")
        i = j
    return "".join(drawn)


def _gap(name: str, gap: dict[str, Any], start: int, length: int) -> Gap:
    cause = gap["cause"]
    about = f" {gap['path']}" if gap.get("path") else ""
    return Gap(
        id=name,
        at=view.duration((gap["start_ns"] - start) / 1e9) or "",
        ns=gap["duration_ns"],
        lasted=view.duration(gap["duration_ns"] / 1e9) or "",
        share=gap["duration_ns"] / length,
        kind=CAUSES[cause][1],
        cause=CAUSES[cause][0].removeprefix("idle: "),
        phase=gap.get("phase"),
        python=gap.get("python"),
        did=gpu.did(gap),
        syscall=f"{gap['syscall']}{about}" if gap.get("syscall") else None,
        told_by=tuple(filter(None, (gap.get("told_by") or "").split(","))),
    )
