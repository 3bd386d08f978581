"""The kernels that ncu looked at: how near each is to the GPU's limits, what limits it, ncu's advice, the roofline."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.formats.kernel_names import function
from orchestrator.render import view
from orchestrator.render.gpu import records
from orchestrator.render.plots import Box

if TYPE_CHECKING:
    from orchestrator.report import Report

SHOWN = 24
"""Launches in the page; all are in the table `kernel_profiles`."""
DOTS = 20
"""Launches in the roofline: the longest."""
ADVICE = 6
"""Rules shown for each."""
_ORDER = {"error": 0, "warning": 1, "optimization": 2}


@dataclass(frozen=True)
class Meter:
    """A throughput or an occupancy, in percent of what `of` says; `mark`: the limit that the launch itself sets."""

    name: str
    pct: float | None
    of: str
    mark: float | None = None


@dataclass(frozen=True)
class Advice:
    kind: str
    text: str
    speedup: str | None


@dataclass(frozen=True)
class Kernel:
    """One launch that was measured."""

    capture: str
    launch: int
    name: str
    full_name: str
    shape: str
    bound: str | None
    duration: str | None
    meters: tuple[Meter, ...]
    facts: tuple[tuple[str, str | None], ...]
    advice: tuple[Advice, ...]


@dataclass(frozen=True)
class Point:
    """A launch in the chart, by its number, and what the table beside it says of it."""

    number: int
    x: float
    y: float
    text: str
    name: str
    bound: str
    intensity: float
    reached: float
    """Percent of the roof at its intensity."""
    duration: str | None


@dataclass(frozen=True)
class Roof:
    """`x`: where its ridge is."""

    path: str
    x: float
    text: str


@dataclass(frozen=True)
class Roofline:
    """Arithmetic intensity against the share of the peak rate of operations, both axes logarithmic."""

    box: Box
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    label: str


def kernels(report: Report) -> list[Kernel]:
    """The measured launches, the longest first."""
    frame = report.table("kernel_profiles")
    if frame is None:
        return []
    rules = _rules(report)
    rows = sorted(records(frame), key=lambda row: -(row["duration_ns"] or 0))[:SHOWN]
    return [_kernel(row, rules.get((row["capture"], row["launch"]), [])) for row in rows]


def _kernel(row: dict[str, Any], advice: list[Advice]) -> Kernel:
    return Kernel(
        capture=row["capture"],
        launch=row["launch"],
        name=row["short_name"] or function(row["kernel"]),
        full_name=row["kernel"],
        shape=" × ".join(f"({text})" for text in (row["grid"], row["block"]) if text) or view.UNKNOWN,
        bound=row["bound"],
        duration=None if row["duration_ns"] is None else view.duration(row["duration_ns"] / 1e9),
        meters=_meters(row),
        facts=_facts(row),
        advice=tuple(advice[:ADVICE]),
    )


def _meters(row: dict[str, Any]) -> tuple[Meter, ...]:
    peak = "of its peak"
    named = (("SMs", "sm_pct"), ("memory", "memory_pct"), ("DRAM", "dram_pct"), ("L1", "l1_pct"), ("L2", "l2_pct"))
    units = [Meter(name, row[key], peak) for name, key in named if row[key] is not None]
    if row["tensor_pct"]:
        units.append(Meter("tensor cores", row["tensor_pct"], peak))
    occupancy = Meter(
        "occupancy", row["achieved_occupancy_pct"], "of the warps that fit", row["theoretical_occupancy_pct"]
    )
    return (*units, *([] if occupancy.pct is None and occupancy.mark is None else [occupancy]))


def _facts(row: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
    found = (
        ("grid against GPU", _fill(row)),
        ("theoretical occupancy", _limit(row)),
        ("registers per thread", view.plain(row["registers"])),
        ("shared memory per block", _shared(row)),
        ("DRAM traffic", view.size(row["dram_bytes"])),
        ("roofline", _roof(row)),
    )
    return tuple((name, text) for name, text in found if text is not None)


def _fill(row: dict[str, Any]) -> str | None:
    """The chapter's first question of a launch: does it have as many blocks as the GPU has multiprocessors?"""
    if row["blocks"] is None or row["sms"] is None:
        return None
    waves = "" if row["waves"] is None else f", {row['waves']:.3g} waves"
    short = f": {row['sms'] - row['blocks']:,} have nothing to do" if row["blocks"] < row["sms"] else ""
    return f"{row['blocks']:,} blocks on {row['sms']:,} multiprocessors{waves}{short}"


def _limit(row: dict[str, Any]) -> str | None:
    if row["theoretical_occupancy_pct"] is None:
        return None
    limit = f", limited by {row['occupancy_limit']}" if row["occupancy_limit"] else ""
    return f"{row['theoretical_occupancy_pct']:.3g} %{limit}"


def _shared(row: dict[str, Any]) -> str | None:
    static, dynamic = row["static_shared_bytes"], row["dynamic_shared_bytes"]
    return None if static is None or dynamic is None else f"{view.size(static)} static, {view.size(dynamic)} dynamic"


def _roof(row: dict[str, Any]) -> str | None:
    if row["flops_per_byte"] is None or row["roof_pct"] is None:
        return None
    ridge = row["ridge_flops_per_byte"]
    side = "" if ridge is None else f" (memory is the roof below {ridge:.3g})"
    return f"{row['roof_pct']:.3g} % of the roof at {row['flops_per_byte']:.3g} operations per byte{side}"


def _rules(report: Report) -> dict[tuple[str, int], list[Advice]]:
    """What ncu says of each launch: what is wrong before what could be better, the most to be won first."""
    frame = report.table("kernel_rules")
    if frame is None:
        return {}
    told = [row for row in records(frame) if row["kind"] in _ORDER and row["message"]]
    found: dict[tuple[str, int], list[Advice]] = {}
    for row in sorted(told, key=lambda r: (_ORDER[r["kind"]], -(r["speedup_pct"] or 0))):
        gain = None if row["speedup_pct"] is None else f"{row['speedup_pct']:.3g} %"
        found.setdefault((row["capture"], row["launch"]), []).append(Advice(row["kind"], row["message"], gain))
    return found


# ---------------------------------------------------------------- the roofline

BOX = Box(width=760.0, height=300.0, left=64.0, right=16.0, top=14.0, bottom=40.0)


def roofline(report: Report) -> Roofline | None:
    """The chart, or None where no launch has both an intensity and a roof."""
    frame = report.table("kernel_profiles")
    rows = [row for row in (records(frame) if frame is not None else []) if _height(row) is not None]
    known = sorted(rows, key=lambda row: -(row["duration_ns"] or 0))[:DOTS]
    if not known:
        return None
    ridges = sorted({_ridge(row) for row in known})
    heights = [_height(row) or 0.0 for row in known]
    xs = [row["flops_per_byte"] for row in known]
    across = _decades(min([*xs, ridges[0] / 10]), max([*xs, ridges[-1] * 10]))
    up = _decades(min(heights), 1.0)
    points = tuple(
        _point(number, row, _x(row["flops_per_byte"], across), _y(height, up), height)
        for number, (row, height) in enumerate(zip(known, heights, strict=True), 1)
    )
    return Roofline(
        BOX,
        tuple(Roof(_roof_path(ridge, across, up), _x(ridge, across), _roof_text(ridge, known)) for ridge in ridges),
        points,
        tuple((_x(10.0**e, across), f"{10.0**e:g}") for e in range(across[0], across[1] + 1)),
        tuple((_y(10.0**e, up), f"{100 * 10.0**e:g} %") for e in range(up[0], up[1] + 1)),
        f"Roofline of {len(points)} launches: operations per second against operations per byte of DRAM traffic",
    )


def _ridge(row: dict[str, Any]) -> float:
    return float(f"{row['ridge_flops_per_byte']:.3g}")


def _roof_text(ridge: float, rows: list[dict[str, Any]]) -> str:
    of = sorted({row["precision"] for row in rows if _ridge(row) == ridge and row.get("precision")})
    return f"{', '.join(of) or 'ridge'} at {ridge:g}"


def _point(number: int, row: dict[str, Any], x: float, y: float, height: float) -> Point:
    return Point(
        number,
        x,
        y,
        _said(row, height),
        row["short_name"] or function(row["kernel"]),
        row["bound"] or "unknown",
        row["flops_per_byte"],
        row["roof_pct"],
        None if row["duration_ns"] is None else view.duration(row["duration_ns"] / 1e9),
    )


def _height(row: dict[str, Any]) -> float | None:
    """Operations per second as a part of the peak: the roof at its intensity times what is reached of it."""
    intensity, ridge, reached = (row[k] for k in ("flops_per_byte", "ridge_flops_per_byte", "roof_pct"))
    if not intensity or not ridge or not reached:
        return None
    return float(min(1.0, intensity / ridge) * reached / 100)


def _said(row: dict[str, Any], height: float) -> str:
    return f"{function(row['kernel'])}: {row['flops_per_byte']:.3g} operations per byte, {view.percent(height)} of peak"


def _decades(low: float, high: float) -> tuple[int, int]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return first, max(last, first + 1)


def _x(value: float, decades: tuple[int, int]) -> float:
    part = (math.log10(value) - decades[0]) / (decades[1] - decades[0])
    return round(BOX.left + part * (BOX.width - BOX.left - BOX.right), 1)


def _y(value: float, decades: tuple[int, int]) -> float:
    part = min(1.0, max(0.0, (math.log10(value) - decades[0]) / (decades[1] - decades[0])))
    return round(BOX.height - BOX.bottom - part * (BOX.height - BOX.bottom - BOX.top), 1)


def _roof_path(ridge: float, across: tuple[int, int], up: tuple[int, int]) -> str:
    """Rises with the bandwidth up to the ridge, flat from there on."""
    low = max(10.0 ** across[0], ridge * 10.0 ** up[0])
    right = BOX.width - BOX.right
    return f"M{_x(low, across):g} {_y(low / ridge, up):g}L{_x(ridge, across):g} {_y(1.0, up):g}H{right:g}"
