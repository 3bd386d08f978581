"""`profrun show`: a report on the terminal. The verdict first, then findings, where the time goes, figures, passes."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TextIO

from orchestrator.render import console, view, where
from orchestrator.units import show_duration

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.model import Finding
    from orchestrator.report import Report

WIDEST = 110
"""Longer lines are hard to read."""
BAR = 24
"""Columns of the longest bar."""
_STYLES: Mapping[str, str] = {
    "critical": "bold red", "major": "red", "minor": "yellow", "info": "cyan", "fine": "green",
    "good": "green", "warn": "yellow", "bad": "red", "high": "", "distorted": "yellow", "low": "red",
}  # fmt: skip


def show(report: Report, *, verbose: bool = False, color: bool | None = None, stream: TextIO | None = None) -> None:
    """Prints the report. Colours and width are the terminal's (NO_COLOR, TERM=dumb and COLUMNS are heeded); `color`
    False does without them."""
    from rich.console import Console

    system: Literal["auto"] | None = None if color is False or os.environ.get("NO_COLOR") else "auto"
    out = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False, color_system=system)
    out.width = min(out.width, WIDEST)
    for part in _parts(report, verbose, out):
        out.print(part)


def _parts(report: Report, verbose: bool, out: Console) -> Iterator[RenderableType]:
    yield from _verdict(report)
    yield from _findings(report, verbose)
    yield from _abstentions(report, verbose)
    yield from _whereabouts(report, out.width, unicode=out.encoding.startswith("utf"))
    yield from _figures(report)
    yield from _passes(report)
    yield ""
    yield _text(str(report.folder), "dim")


def _text(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(view.visible(text), style)


def _heading(text: str) -> Iterator[RenderableType]:
    yield ""
    yield _text(text, "bold")


def _rows(
    rows: Sequence[Sequence[RenderableType | str]], right: Sequence[int] = (), whole: Sequence[int] = (0,)
) -> RenderableType:
    """A grid indented by two. right: columns of numbers; whole: others that are not broken where room is scarce."""
    from rich.padding import Padding
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    for place in range(len(rows[0])):
        firm = place in right or place in whole
        grid.add_column(justify="right" if place in right else "left", no_wrap=firm, overflow="fold")
    for row in rows:
        grid.add_row(*(_text(cell) if isinstance(cell, str) else cell for cell in row))
    return Padding(grid, (0, 0, 0, 2))


# ---------------------------------------------------------------- what it says


def _verdict(report: Report) -> Iterator[RenderableType]:
    told, run = view.verdict(report), report.run
    what = shlex.join(run.command) if run.command else "imported files"
    yield _text(f"{run.name}: {view.short(' '.join(what.split()), 200)}", "dim")
    said = report.headline
    yield _text(said.sentence if said else told.sentence, "bold")
    if said:
        yield _text(f"bound by {view.BOUNDS[said.bound]} · confidence {said.confidence}", "dim")
    if report.outcome.exit_code:
        why = f", {report.outcome.reason}" if said else ""  # else the sentence above has said it
        yield _text(f"{told.word}: exit {report.outcome.exit_code}{why}", _STYLES["bad"])
    for text in view.drifted(report):
        yield _text(f"drifted: {text}", _STYLES["warn"])


def _findings(report: Report, verbose: bool) -> Iterator[RenderableType]:
    yield from _heading("Findings")
    if not report.findings:
        yield _text("  nothing above the threshold" if report.tables else "  nothing was measured to judge by")
        return
    for number, finding in enumerate(report.findings):
        yield from ([""] if number else [])
        yield _rows(list(_finding(finding, verbose)))


def _finding(finding: Finding, verbose: bool) -> Iterator[tuple[RenderableType, RenderableType]]:
    label = "fine" if finding.healthy else finding.severity
    yield _text(label, _STYLES[label]), _text(finding.title, "" if finding.healthy else "bold")
    price, sure = view.price(finding), f"confidence {finding.confidence}"
    about = [("takes" if finding.healthy else "cost", price), ("where", place(finding)), ("do", finding.advice)]
    for name, text in about:
        if text:
            yield _text(name, "dim"), _text(f"{text}; {sure}" if text == price else text)
    for item in finding.evidence if verbose else ():
        value = f"{view.plain(item.value) or view.UNKNOWN} {item.unit or ''}".rstrip()
        yield _text("seen", "dim"), _text(f"{item.table}: {view.short(item.row, 80)}: {value}")
    if verbose:
        yield _text("rule", "dim"), _text(", ".join((finding.rule, *finding.sources)) + ("" if price else f"; {sure}"))


def place(finding: Finding) -> str:
    """`save (train_cnn.py:88), syscall fsync`."""
    known = {key: str(value) for key, value in finding.where.items() if value is not None}
    file, line, function = known.pop("file", ""), known.pop("line", ""), known.pop("function", "")
    source = f"{file}:{line}" if file and line else file
    named = f"{function} ({source})" if function and source else function or source
    return ", ".join([*([named] if named else []), *(f"{view.words(key)} {text}" for key, text in known.items())])


def _abstentions(report: Report, verbose: bool) -> Iterator[RenderableType]:
    if not report.abstentions:
        return
    count = len(report.abstentions)
    if not verbose:
        rules = "one rule" if count == 1 else f"{count} rules"
        yield ""
        yield _text(f"{rules} had nothing to judge by (-v says what they lack)", "dim")
        return
    yield from _heading("Not judged")
    told = [(one, f"; fed by {one.feed}" if one.feed else "") for one in report.abstentions]
    yield _rows([(one.rule, f"lacks {one.lacks}{feed}") for one, feed in told], whole=())


def _whereabouts(report: Report, width: int, *, unicode: bool) -> Iterator[RenderableType]:
    columns, room = min(BAR, width // 4), max(0, width - BAR - 36)
    for split in where.splits(report):
        yield from _heading(f"{split.title}: {show_duration(split.whole_ns / 1e9)}, {split.whole}")
        most = max((part.share for part in split.parts), default=1.0)
        rows = [
            (part.name, view.percent(part.share), bar(part.share / most, columns, unicode=unicode), _first(part, room))
            for part in split.parts
        ]
        yield _rows(rows, right=(1,), whole=(2,))


def _first(part: where.Part, room: int) -> str:
    """The function in which most of it was spent, in so many columns."""
    if not part.places or room < len("in function (f.py:1)"):
        return ""
    first = part.places[0]
    file = f" ({first.file.rpartition('/')[2]})" if first.file else ""
    return view.short(f"in {first.function}{file}", room)


def bar(share: float, columns: int, *, unicode: bool = True) -> str:
    """A bar of so much of the columns, in eighths of one where the terminal has signs for that."""
    if not unicode:
        return "#" * max(1, round(share * columns))
    eighths = max(1, round(share * columns * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _figures(report: Report) -> Iterator[RenderableType]:
    figures = [one for one in view.figures(report) if one.value is not None]
    if not figures:
        return
    yield from _heading("Figures")
    rows = []
    for one in figures:
        several = (one.n or 1) > 1
        spread = f"95 % interval {one.interval}" if one.interval and (one.n or 0) >= console.ENOUGH else ""
        count = f"mean of {one.n}" if several else ""
        odd = f"outliers {', '.join(one.outliers)}" if one.outliers else ""
        rows.append((one.label, str(one.value), ", ".join(text for text in (count, spread, odd) if text)))
    yield _rows(rows, right=(1,))


def _passes(report: Report) -> Iterator[RenderableType]:
    rows = [row for row in view.passes(report) if row.role not in ("warm-up",) and not row.role.startswith("bare")]
    if not rows:
        return
    yield from _heading("Passes")
    told = []
    for row in rows:
        trust = _text(f"trust {row.trust}", _STYLES[row.trust]) if row.trust else _text(row.remark, "dim")
        told.append((row.id, row.collectors, row.wall or "not run", row.slowdown or "", trust))
    yield _rows(told, right=(2,))
