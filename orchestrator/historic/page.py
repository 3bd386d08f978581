"""The history of a name as one page: a picture and sentences for each environment, shares, every run. Needs no script,
works offline, and shows names as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.historic import plot, shown
from orchestrator.historic.trend import Series, Trend, share_names
from orchestrator.render import html, plots, view

if TYPE_CHECKING:
    from orchestrator.historic.store import Row
    from orchestrator.model import Metric

BOX = plots.Box(width=960, height=240, left=84, right=948, top=12, bottom=208)
SPARK = plots.Box(width=280, height=36, left=2, right=278, top=3, bottom=33)
_TONES = {"regressed": "bad", "suspect": "warn", "improved": "good"}


@dataclass(frozen=True)
class Dot:
    """A run in the picture, in its units. high, low: the ends of its interval; None: it has none."""

    x: float
    y: float
    high: float | None
    low: float | None
    tone: str
    text: str


@dataclass(frozen=True)
class Picture:
    """An environment: its runs, lines before new levels, and the labels of the axes."""

    title: str
    notes: tuple[str, ...]
    sentences: tuple[str, ...]
    dots: tuple[Dot, ...]
    levels: tuple[float, ...]
    ticks: tuple[tuple[float, str], ...]
    dates: tuple[str, str]
    box: plots.Box = BOX


@dataclass(frozen=True)
class Share:
    """A category: its course in the newest environment as a path, and in words."""

    name: str
    path: str
    text: str


def render(told: Trend, rows: Sequence[Row]) -> str:
    """The page. Every value is escaped where it is put in; its policy lets only its own style work."""
    import jinja2
    from markupsafe import Markup

    style = html.looks(draws=False) + (html.ASSETS / STYLE).read_text("utf-8")
    known = [shown.points(one) for one in told.series if one.values]
    ends = plot.bounds([point for own in known for point in own]) if known else (0.0, 1.0)
    loader = jinja2.FileSystemLoader(html.ASSETS)
    template = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(FILE)
    return template.render(
        told=told,
        label=shown.label(told.metric),
        pictures=[_picture(one, number, told, ends) for number, one in enumerate(told.series, 1)],
        shares=_shares(shown.of_newest(rows)),
        spark=SPARK,
        rows=[_row(row, told.metric) for row in reversed(rows)],
        style=Markup(style),
        policy=html.policy(style, ""),
    )


FILE, STYLE = "history.html.j2", "history.css"


def _picture(one: Series, number: int, told: Trend, ends: tuple[float, float]) -> Picture:
    across = plots.Scale(0, max(len(one.rows) - 1, 1), BOX.left + 8, BOX.right - 8)
    up = plots.Scale(*ends, BOX.bottom, BOX.top)
    firsts = [change.shift.at for change in one.changes]
    dots = tuple(
        Dot(
            across.at(index),
            up.at(point.value),
            None if point.high is None else up.at(point.high),
            None if point.low is None else up.at(point.low),
            _TONES.get(row.night.verdict or "", ""),
            f"{view.moment(row.night.started_at)[:16]}: {shown.value(metric, told.metric)}",
        )
        for index, (row, metric, point) in enumerate(zip(one.rows, one.values, shown.points(one), strict=True))
    )
    middle = (ends[0] + ends[1]) / 2
    labels = view.aligned([*ends, middle], told.unit or "")
    return Picture(
        title=view.visible(shown.title(one, number, len(told.series))),
        notes=tuple(map(view.visible, shown.notes(one))),
        sentences=tuple(map(view.visible, shown.sentences(one, told))),
        dots=dots,
        levels=tuple(across.at(at - 0.5) for at in firsts),
        ticks=tuple((up.at(at), label or "") for at, label in zip((*ends, middle), labels, strict=True)),
        dates=(one.rows[0].night.started_at[:10], one.rows[-1].night.started_at[:10]) if one.rows else ("", ""),
    )


def _shares(rows: Sequence[Row]) -> list[Share]:
    found = []
    for name in share_names(rows):
        values = [row.night.shares.get(name) for row in rows]
        known = [value for value in values if value is not None]
        across = plots.Scale(0, max(len(values) - 1, 1), SPARK.left, SPARK.right)
        up = plots.Scale(0, max(*known, 1.0), SPARK.bottom, SPARK.top)
        places = [(across.at(n), up.at(value)) for n, value in enumerate(values) if value is not None]
        path = " ".join(f"{'L' if n else 'M'}{x} {y}" for n, (x, y) in enumerate(places))
        text = f"last {known[-1]:.1f} %, usually {statistics.median(known):.1f} %, at most {max(known):.1f} %"
        found.append(Share(name.replace("_", " "), path, text))
    return found


def _row(row: Row, metric: str) -> tuple[str, ...]:
    night = row.night
    own: Metric | None = night.metrics.get(metric)
    interval = view.figure(metric, own).interval if own else None
    words = (view.words(night.status), night.verdict or "", night.note, night.path + " (gone)" * night.gone)
    return (view.moment(night.started_at)[:16], shown.value(own, metric), interval or "", *map(view.visible, words))
