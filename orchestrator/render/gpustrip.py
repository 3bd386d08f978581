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


def queues(report: Report) -> list[Queue]:
    """The GPUs that did any work, capture by capture."""
    pairs = zip(gpu.known_rows(report), gpu.devices(report), strict=True)
    return [_queue(report, i, row, device) for i, (row, device) in enumerate(pairs, 1)]


def moments(found: Sequence[Queue]) -> dict[float, str]:
    """By how long it lasted, in s as findings give it, the id of each gap that is listed."""
    return {round(gap.ns / 1e9, 6): gap.id for queue in reversed(found) for gap in reversed(queue.gaps)}


def _queue(report: Report, serial: int, row: dict[str, Any], device: gpu.Device) -> Queue:
    start, length, window = _window(report, row)
    frame = report.table("gpu_gaps")
    found = [] if frame is None else gpu.records(gpu.rows_of(frame, row))
    gaps = [gap for gap in found if _inside(gap, start, length)]
    work = _work(report, row)
    causes = [cause for cause in CAUSES if any(_cause(gap) == cause for gap in gaps)]
    return Queue(
        serial,
        device,
        tuple(_layers(gaps, causes, work, start, length)),
        plots.ticks(Scale(0.0, length / 1e9, 0.0, BOX.width), "s", 8),
        known=work is not None,
        label=f"Queue of {device.name} over {view.duration(length / 1e9)}",
        window_ns=length,
        window=window,
        gaps=tuple(
            _gap(f"gap-{serial}-{i}", gap, start, length)
            for i, gap in enumerate(sorted(gaps, key=lambda g: -g["duration_ns"])[:TOP], 1)
        ),
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


def _inside(gap: dict[str, Any], start: int, length: int) -> bool:
    if gap["start_ns"] is None or not gap["duration_ns"]:
        return False
    return bool(gap["start_ns"] < start + length and gap["start_ns"] + gap["duration_ns"] > start)


def _cause(gap: dict[str, Any]) -> str:
    cause = gap.get("cause")
    return str(cause) if cause in CAUSES else "unknown"


def _work(report: Report, row: dict[str, Any]) -> pandas.DataFrame | None:
    """All work of the GPU; None where single pieces of it were not kept."""
    import pandas

    frames = (report.table(name) for name in ("gpu_kernels", "gpu_graphs", "gpu_transfers"))
    own = [gpu.rows_of(frame, row)[["start_ns", "duration_ns"]] for frame in frames if frame is not None]
    found = pandas.concat(own).dropna() if own else pandas.DataFrame()
    return None if found.empty else found


def _layers(
    gaps: Sequence[dict[str, Any]], causes: Sequence[str], work: pandas.DataFrame | None, start: int, length: int
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
        own = [(gap["start_ns"] - start, gap["duration_ns"]) for gap in gaps if _cause(gap) == cause]
        begins, lengths = (numpy.array(column, "int64") for column in zip(*own, strict=True))
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
    cause = _cause(gap)
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
