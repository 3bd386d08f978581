"""The history on the terminal: the names, or the runs of one name as plots and sentences."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from orchestrator.historic import facts, plot
from orchestrator.historic.changes import FEWEST, LEAST
from orchestrator.historic.trend import Change, Series, Trend, share_names
from orchestrator.render import view

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.historic.store import Row
    from orchestrator.history import Named
    from orchestrator.model import Metric

WIDEST = 110
LISTED = 10
"""The newest runs that are listed one by one."""
SHARES, SHARE_COLUMNS = 8, 28
FACTS_TOLD = 8
_STYLES = {"regressed": "bold red", "suspect": "yellow", "improved": "green", "accepted": "", "unjudged": "cyan"}


def console(color: bool | None = None, stream: TextIO | None = None) -> Console:
    from rich.console import Console

    system: Literal["auto"] | None = None if color is False or os.environ.get("NO_COLOR") else "auto"
    out = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False, color_system=system)
    out.width = min(out.width, WIDEST)
    return out


def show_names(named: Sequence[Named], total: int, shown: str, out: Console) -> None:
    """A row a name: how many runs, the newest, its time, and how that went."""
    glyphs = _glyphs(out)
    rows = [("name", "runs", "newest", "ended", "verdict", "step or wall", "trend")]
    for one in named:
        last = one.newest[-1].night
        metric, values = _main(one)
        known = [value for value in values if value is not None]
        trend = plot.line(values, min(known), max(known), glyphs) if known else ""
        took = value(last.metrics.get(metric), metric)
        when = last.started_at[:10]
        rows.append((one.name, str(one.runs), when, view.words(last.status), last.verdict or "", took, trend))
    out.print(_text(f"Runs in {shown}", "bold"), soft_wrap=True)
    out.print(_grid(rows, right=(1, 5), fold=0))
    if total > len(named):
        out.print(_text(f"  and {total - len(named)} names more, with older runs", "dim"))
    out.print(_text("profrun history NAME shows the runs of one name", "dim"))


def _main(one: Named) -> tuple[str, list[float | None]]:
    """The metric it is known by, and its values in the environment of the newest run."""
    same = [row.night for row in one.newest if row.night.fingerprint == one.newest[-1].night.fingerprint]
    metric = next((name for name in ("step_s", "wall_s") if any(name in night.metrics for night in same)), "step_s")
    return metric, [night.metrics[metric].value if metric in night.metrics else None for night in same]


def show_trend(told: Trend, rows: Sequence[Row], out: Console) -> None:
    """Plot and sentences for each environment, the shares, the newest runs."""
    for part in _parts(told, rows, out):
        out.print(part)


def _parts(told: Trend, rows: Sequence[Row], out: Console) -> Iterator[RenderableType]:
    glyphs = _glyphs(out)
    every_one = "1 run" if told.total == 1 else f"{told.total} runs"
    some = f"the newest {told.shown} of {told.total} runs" if told.shown < told.total else every_one
    span = f", {rows[0].night.started_at[:10]} to {rows[-1].night.started_at[:10]}" if rows else ""
    yield _text(f"{told.name}: {label(told.metric)} of {some}{span}", "bold")
    drawn = {one.fingerprint: points(one) for one in told.series if one.values}
    every = [point for own in drawn.values() for point in own]
    for number, one in enumerate(told.series, 1):
        yield ""
        yield from _environment(one, number, len(told.series))
        if one.values:
            yield from _plot(drawn[one.fingerprint], plot.bounds(every), one, told, out.width, glyphs)
        yield from _sentences(one, told)
    yield from _shares(of_newest(rows), len(told.series), glyphs)
    yield from _newest(rows, told.metric)


def _environment(one: Series, number: int, of: int) -> Iterator[RenderableType]:
    yield _text(title(one, number, of), "bold")
    for text in notes(one):
        yield _indented(text, "dim")


def title(one: Series, number: int, of: int) -> str:
    """Which of the environments it is, and what it is."""
    forms = {"cpu": "{}", "cores": "{} cores", "memory": "{}", "gpu": "{}", "driver": "driver {}", "torch": "torch {}"}
    known = {name: value for name, value in one.environment.items() if value not in (None, facts.NONE, 0)}
    words = [form.format(known[name]) for name, form in forms.items() if name in known]
    which = f"Environment {number} of {of}" if of > 1 else "Environment"
    return f"{which} ({one.fingerprint[:8]}): {', '.join(words) or 'nothing is known of it'}"


def notes(one: Series) -> Iterator[str]:
    """What sets it apart from the one before, and what is not known of it."""
    if one.unlike:
        since = "beside the one before, which differs in:" if one.beside else "not compared with the one before:"
        yield f"{since} {_differences(one.unlike)}"
    if one.unknown:
        yield f"not known, and so not known to be equal: {', '.join(one.unknown)}"


def _differences(found: Sequence[tuple[str, str, str]]) -> str:
    told = [f"{name} {view.short(a, 60)} -> {view.short(b, 60)}" for name, a, b in found[:FACTS_TOLD]]
    more = f" and {len(found) - FACTS_TOLD} more" if len(found) > FACTS_TOLD else ""
    return ", ".join(told) + more


def points(one: Series) -> list[plot.Point]:
    firsts = {change.shift.at for change in one.changes}
    found = []
    for index, (row, metric) in enumerate(zip(one.rows, one.values, strict=True)):
        low, high = metric.ci95 or (None, None)
        style = _STYLES.get(row.night.verdict or "", "")
        found.append(plot.Point(metric.value or 0.0, low, high, style, index in firsts))
    return found


def _plot(
    points: Sequence[plot.Point], ends: tuple[float, float], one: Series, told: Trend, width: int, glyphs: plot.Glyphs
) -> Iterator[RenderableType]:
    from rich.text import Text

    low, high = ends
    height = plot.HEIGHT if len(points) > 1 else 1
    ticks = [high, (low + high) / 2, low] if len(points) > 1 else [points[0].value]
    labels = [label or "" for label in view.aligned(ticks, told.unit or "")]
    room = max(map(len, labels))
    drawn, each = plot.binned(points, max(10, width - room - 6 - len(one.changes)))
    at = {0: labels[0], (height - 1) // 2: labels[1], height - 1: labels[2]} if height > 1 else {0: labels[0]}
    for number, cells in enumerate(plot.chart(drawn, low, high, glyphs, height)):
        line = Text(f"  {at.get(number, ''):>{room}} {glyphs.axis}", "dim")
        for mark, style in cells:
            line.append(mark, style)
        yield line
    first, last = one.rows[0].night.started_at[:10], one.rows[-1].night.started_at[:10]
    columns = len(drawn) + sum(point.first for point in drawn[1:])
    ends_line = f"{first}{last:>{max(columns - len(first), len(last) + 1)}}" if first != last else first
    yield _text(f"  {'':>{room}}  {ends_line}", "dim")
    yield _text(f"  {'':>{room}}  {_legend(each, drawn, ends, glyphs)}", "dim")


def _legend(each: int, drawn: Sequence[plot.Point], ends: tuple[float, float], glyphs: plot.Glyphs) -> str:
    """What the characters that are there mean."""
    told = [f"{each} runs a column: their median and range" if each > 1 else "a run a column"]
    if each == 1 and len(drawn) > 1 and any(point.low is not None for point in drawn):
        told.append(f"{glyphs.range} its 95 % interval")
    if any(point.first for point in drawn):
        told.append(f"{glyphs.first} before a new level")
    if any(not ends[0] <= point.value <= ends[1] for point in drawn):
        told.append(f"{glyphs.above}{glyphs.below} beyond the plot")
    return "; ".join(told)


def _sentences(one: Series, told: Trend) -> Iterator[RenderableType]:
    for text in sentences(one, told):
        yield _indented(text)


def sentences(one: Series, told: Trend) -> Iterator[str]:
    """When its level changed; that it can't be told, or that it did not; what does not count."""
    for change in one.changes:
        beside = f"; also new with it: {_differences(change.beside)}" if change.beside else ""
        yield sentence(change, told.unit) + beside
    if not one.changes and len(one.values) >= FEWEST:
        yield f"no change of the level by {100 * LEAST:g} % or more can be told"
    if not one.changes and 0 < len(one.values) < FEWEST:
        yield f"whether the level has changed can't be told of fewer than {FEWEST} runs"
    if one.left_out:
        told_of = (f"{'1 run' if n == 1 else f'{n} runs'} ({why})" for why, n in sorted(one.left_out.items()))
        yield "not counted: " + ", ".join(told_of)


def sentence(change: Change, unit: str | None) -> str:
    """`changed on 2026-11-12, after the run of 2026-11-11: 10.2 ms -> 11.3 ms, +10.8 % (95 %: +9.1 to +12.4 %; 18 and
    12 runs)`."""
    shift = change.shift
    before, after = view.aligned([shift.before, shift.after], unit or "")
    pct, low, high = (100 * (one - 1) for one in (shift.ratio, shift.low, shift.high))
    sure = f"95 %: {low:+.1f} to {high:+.1f} %; {shift.n_before} and {shift.n_after} runs"
    day, eve = change.date[:10], change.last_before[:10]
    if day == eve:
        day, eve = (view.moment(one)[:16] for one in (change.date, change.last_before))
    return f"changed on {day}, after the run of {eve}: {before} -> {after}, {pct:+.1f} % ({sure})"


def of_newest(rows: Sequence[Row]) -> list[Row]:
    """Those of the environment of the newest run."""
    return [row for row in rows if row.night.fingerprint == rows[-1].night.fingerprint]


def _shares(rows: Sequence[Row], environments: int, glyphs: plot.Glyphs) -> Iterator[RenderableType]:
    names = share_names(rows)
    if not names:
        return
    yield ""
    whose = " in the environment of the newest run" if environments > 1 else ""
    yield _text(f"Where the steps went{whose}, in % of the steady steps (gpu: of its window)", "bold")
    told = []
    for name in names[:SHARES]:
        values = [row.night.shares.get(name) for row in rows]
        known = [value for value in values if value is not None]
        points = values[-SHARE_COLUMNS:]
        top = max(known)
        now = f"{known[-1]:.1f} %" if values[-1] is not None else "not measured"
        usual = f"usual {statistics.median(known):.1f} %, most {top:.1f} %"
        told.append((name.replace("_", " "), plot.line(points, 0.0, top, glyphs), now, usual))
    yield _grid(told, right=(2,))
    if len(names) > SHARES:
        yield _text(f"  and {len(names) - SHARES} more with less (--json has them)", "dim")


def _newest(rows: Sequence[Row], metric: str) -> Iterator[RenderableType]:
    yield ""
    yield _text("The newest runs", "bold")
    told = [("started", label(metric), "95 % interval", "ended", "run", "verdict")]
    for row in rows[-LISTED:]:
        night = row.night
        own = night.metrics.get(metric)
        interval = view.figure(metric, own).interval if own else None
        place = night.run_id.rpartition("-")[2] + (" (gone)" if night.gone else "")
        verdict = " ".join(filter(None, (night.verdict, f"({night.note})" if night.note else "")))
        ended = view.words(night.status) + (f" ({night.exit_code})" if night.exit_code else "")
        told.append((view.moment(night.started_at)[:16], value(own, metric), interval or "", ended, place, verdict))
    yield _grid(told, right=(1,))


def value(metric: Metric | None, name: str) -> str:
    if metric is None:
        return "not measured"
    told = view.figure(name, metric)
    return told.value or view.UNKNOWN


def label(metric: str) -> str:
    return view.LABELS.get(metric, metric).lower() if metric in view.LABELS else metric


def _glyphs(out: Console) -> plot.Glyphs:
    return plot.UNICODE if out.encoding.lower().startswith("utf") else plot.ASCII


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(view.visible(text), style)


def _indented(text: str, style: str = "") -> RenderableType:
    from rich.padding import Padding

    return Padding(_text(text, style), (0, 0, 0, 2))


def _grid(rows: Sequence[Sequence[str]], right: Sequence[int] = (), fold: int = -1) -> RenderableType:
    """A grid indented by two. right: columns of numbers; fold: the one that is broken where room is scarce."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for place in range(len(rows[0])):
        firm = place != fold % len(rows[0])
        grid.add_column(justify="right" if place in right else "left", no_wrap=firm, overflow="fold")
    for row in rows:
        grid.add_row(*(_text(cell) for cell in row))
    return Padding(grid, (0, 0, 0, 2))
