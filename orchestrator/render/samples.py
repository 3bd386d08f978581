"""What the monitor read over time as small charts that share their horizontal axis: the run of the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.render import plots, view
from orchestrator.render.plots import Box, Plot, Scale, Series, Shape, Zone

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import TargetRun
    from orchestrator.report import Report

BOX = Box(400, 140, 62, 18, 10, 26)
POINTS = 160
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
    end = max(last, run.ended_ns) if run else last
    x = plots.horizontal(BOX, 0.0, max((end - begin) / 1e9, 1e-9))
    zones = tuple(_outside(x, (first - begin) / 1e9, (last - begin) / 1e9))
    return Sampled(name, bool(zones), tuple(_charts(rows, begin, x, zones)))


_SHORT = 0.02
"""Less of the run than this, before the first reading or after the last, is no part that was left out."""


def _outside(x: Scale, first_s: float, last_s: float) -> Iterator[Zone]:
    for low, high in ((x.low, first_s), (last_s, x.high)):
        if high - low > _SHORT * (x.high - x.low):
            yield Zone("outside", x.at(low), round(x.at(high) - x.at(low), 1), "not sampled")


def _charts(rows: pandas.DataFrame, begin_ns: int, x: Scale, zones: Sequence[Zone]) -> Iterator[Chart]:
    for kind in KINDS:
        chosen = rows[(rows["source"] == kind.source) & (rows["metric"] == kind.metric)]
        subjects = list(dict.fromkeys(chosen["subject"].fillna("")))
        high = max(float(chosen["value"].max()), kind.least or 0.0) if len(chosen) else 0.0
        for subject in subjects[:GPUS]:
            part = chosen[chosen["subject"].fillna("") == subject].sort_values("time_ns")
            yield _chart(kind, str(subject), part, begin_ns, x, plots.vertical(BOX, 1.04 * high), zones)


def _chart(
    kind: Kind, subject: str, part: pandas.DataFrame, begin_ns: int, x: Scale, y: Scale, zones: Sequence[Zone]
) -> Chart:
    place = plots.grouped(len(part), POINTS)
    size = int((place == 0).sum())
    seconds = ((part["time_ns"] - begin_ns).astype("float64") / 1e9).groupby(place).mean().tolist()
    groups = part["value"].astype("float64").groupby(place)
    mean, low, high = groups.mean().tolist(), groups.min().tolist(), groups.max().tolist()
    xs = [x.at(s) for s in seconds]
    shapes = [
        Shape("fill", plots.band(xs, [0.0] * len(xs), mean, y)),
        *([Shape("range", plots.band(xs, low, high, y))] if size > 1 else []),
        Shape("curve", plots.line(xs, mean, y)),
    ]
    average, most = (_amount(v, kind.unit) for v in (float(part["value"].mean()), float(part["value"].max())))
    told = f"mean {average}, highest {most}, {len(part):,} readings"
    series = [Series("mean" if size > 1 else "", mean, kind.unit)]
    series += [Series("highest", high, kind.unit), Series("lowest", low, kind.unit)] if size > 1 else []
    who = f" {subject}" if subject else ""
    return Chart(
        kind.title,
        subject,
        _MEANINGS.get((kind.source, kind.metric), ""),
        told,
        Plot(
            BOX,
            label=f"{kind.title}{who} over time: {told}",
            x_name="",
            x_ticks=plots.ticks(x, "s", 6),
            y_ticks=plots.ticks(y, kind.unit, 3),
            shapes=tuple(shapes),
            data=plots.answers(xs, [f"after {t}" for t in view.aligned(seconds, "s")], series),
            zones=tuple(zones),
        ),
    )


def _amount(value: float, unit: str) -> str:
    factor, name = view.scale(unit, value)
    shown = value / factor
    return f"{shown:,.3g} {name}" if shown < 1000 else f"{shown:,.0f} {name}"
