"""What the monitor read over time as small charts that share their horizontal axis: the run of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.render import plots, view
from orchestrator.render.plots import Plot, Series, Zone

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import TargetRun
    from orchestrator.report import Report

POINTS = 600
"""More readings than this are drawn as so many points: their mean, in a band from the lowest to the highest."""
SHOWN = 2
"""Of so many captures; the others are in the table."""
GPUS = 8


@dataclass(frozen=True)
class Kind:
    """A metric that is drawn: its unit, and where its axis ends at least (None: at what was read)."""

    source: str
    metric: str
    title: str
    unit: str
    least: float | None = None


KINDS = (
    Kind("tree", "cpu_pct", "CPU of the program", "%", 100.0),
    Kind("host", "cpu_pct", "CPU of the whole machine", "%", 100.0),
    Kind("tree", "rss_bytes", "Resident memory of the program", "bytes"),
    Kind("gpu", "gpu_util_pct", "GPU utilisation", "%", 100.0),
    Kind("gpu", "memory_used_bytes", "GPU memory in use", "bytes"),
    Kind("gpu", "power_w", "GPU power", "W"),
    Kind("gpu", "sm_clock_mhz", "GPU clock (SM)", "MHz"),
    Kind("gpu", "memory_clock_mhz", "GPU memory clock", "MHz"),
)
_MEANINGS = {
    ("tree", "cpu_pct"): "100 % is one processor",
    ("host", "cpu_pct"): "100 % is all processors",
    ("gpu", "gpu_util_pct"): "time in which any kernel ran",
}


@dataclass(frozen=True)
class Chart:
    """One metric of one subject."""

    title: str
    subject: str
    meaning: str
    told: str
    plot: Plot


@dataclass(frozen=True)
class Sampled:
    """One capture's charts. `outside`: the recording covers only a part of the run."""

    capture: str
    outside: bool
    charts: tuple[Chart, ...]


def sampled(report: Report) -> list[Sampled]:
    """The captures that have samples, of each what was really read."""
    frame = report.table("samples")
    if frame is None or frame.empty:
        return []
    passes = {p.id: p.run for p in report.passes}
    runs = {capture.id: passes.get(capture.pass_id) for capture in report.captures}
    found = []
    for name in list(dict.fromkeys(frame["capture"]))[:SHOWN]:
        rows = frame[(frame["capture"] == name) & frame["value"].notna() & frame["time_ns"].notna()]
        if len(rows):
            found.append(_sampled(str(name), rows, runs.get(name)))
    return [one for one in found if one.charts]


def _sampled(name: str, rows: pandas.DataFrame, run: TargetRun | None) -> Sampled:
    first, last = int(rows["time_ns"].min()), int(rows["time_ns"].max())
    begin = min(first, run.started_ns) if run else first
    length = ((max(last, run.ended_ns) if run else last) - begin) / 1e9
    zones = tuple(_outside(length, (first - begin) / 1e9, (last - begin) / 1e9))
    return Sampled(name, bool(zones), tuple(_charts(rows, begin, length, zones)))


_SHORT = 0.02
"""Less of the run than this, before the first reading or after the last, is no part that was left out."""


def _outside(length_s: float, first_s: float, last_s: float) -> Iterator[Zone]:
    for low, high in ((0.0, first_s), (last_s, length_s)):
        if high - low > _SHORT * length_s:
            yield Zone("outside", low, high, "not sampled")


def _charts(rows: pandas.DataFrame, begin_ns: int, length_s: float, zones: Sequence[Zone]) -> Iterator[Chart]:
    for kind in KINDS:
        chosen = rows[(rows["source"] == kind.source) & (rows["metric"] == kind.metric)]
        subjects = list(dict.fromkeys(chosen["subject"].fillna("")))
        high = 1.04 * max(float(chosen["value"].max()), kind.least or 0.0) if len(chosen) else 0.0
        for subject in subjects[:GPUS]:
            part = chosen[chosen["subject"].fillna("") == subject].sort_values("time_ns")
            average, most = (_amount(v, kind.unit) for v in (float(part["value"].mean()), float(part["value"].max())))
            told = f"mean {average}, highest {most}, {len(part):,} readings"
            meaning = _MEANINGS.get((kind.source, kind.metric), "")
            label = f"{kind.title}{f' {subject}' if subject else ''} over time: {told}"
            seconds, series = _curves(part, begin_ns)
            drawn = plots.plot(
                label, seconds, series, over="s", unit=kind.unit, high=high, ends=(0.0, length_s), zones=zones
            )
            yield Chart(kind.title, str(subject), meaning, told, drawn)


def _curves(part: pandas.DataFrame, begin_ns: int) -> tuple[list[float], list[Series]]:
    place = plots.grouped(len(part), POINTS)
    seconds = ((part["time_ns"] - begin_ns).astype("float64") / 1e9).groupby(place).mean().tolist()
    groups = part["value"].astype("float64").groupby(place)
    if len(groups) == len(part):
        return seconds, [Series("", groups.mean().tolist(), "curve", "line")]
    return seconds, [
        Series("mean", groups.mean().tolist(), "curve", "line"),
        Series("highest", groups.max().tolist(), role="high"),
        Series("lowest", groups.min().tolist(), role="low"),
    ]


def _amount(value: float, unit: str) -> str:
    factor, name = view.scale(unit, value)
    shown = value / factor
    return f"{shown:,.3g} {name}" if shown < 1000 else f"{shown:,.0f} {name}"
