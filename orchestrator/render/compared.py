"""`profrun compare`: two runs beside each other on the terminal, as Markdown, and as data (profrun/compare/1)."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from orchestrator.comparing.words import SCHEMA, SURE, Change, Comparison, Unlike
from orchestrator.formats import kernel_names
from orchestrator.render import markdown, terminal, view

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

ROWS = 20
"""Changes on the terminal and in Markdown; -v, the page and the data have them all."""
WHATS: Mapping[str, str] = {
    "metric": "figure", "phase": "phase", "function": "function", "kernel": "kernel", "op": "operator",
    "syscall": "system call", "finding": "finding",
}  # fmt: skip
LABELS: Mapping[str, str] = {
    **view.LABELS,
    "step_s": "Step (median)", "step_mean_s": "Step (mean)", "step_p95_s": "Step (95th percentile)",
    "step_cpu_s": "Step (CPU time)",
}  # fmt: skip
"""Of the figures; `step_s` of a comparison is the usual step of each run, not their mean."""
_STYLES: Mapping[str, str] = {
    "slower": "red", "more": "yellow", "new": "yellow", "faster": "green", "less": "green", "gone": "green",
    "renamed": "cyan", "same": "dim", "unsure": "dim", "failed": "bold red", "unjudged": "bold yellow",
    "passed": "green", "refuse": "red", "mark": "yellow",
}  # fmt: skip
_VERDICTS: Mapping[str, str] = {"unsure": "can't be told", "same": "no change"}
_OF_FINDINGS: Mapping[str, str] = {"more": "louder", "less": "quieter"}


# ---------------------------------------------------------------- data


def data(comparison: Comparison) -> dict[str, Any]:
    """JSON-able; every unknown is a null."""
    refused = {"refused": comparison.refused}
    return {"schema": SCHEMA, **refused, **_plain(asdict(comparison))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, (str, int, type(None))) else str(value)


# ---------------------------------------------------------------- rows, as text


@dataclass(frozen=True)
class Row:
    """A change as text; "" where there is nothing to say."""

    share: str
    what: str
    name: str
    a: str
    b: str
    change: str
    verdict: str
    tone: str
    """The verdict as the word that colours go by."""
    evidence: str


def row(change: Change) -> Row:
    a, b = _sides(change)
    name = LABELS.get(change.name, change.name) if change.what == "metric" else change.name
    if change.now_called:
        name = f"{name} → {change.now_called}"
    verdict = _OF_FINDINGS.get(change.verdict, change.verdict) if change.what == "finding" else change.verdict
    place = _place(change)
    return Row(
        share=_signed(change.share_of_step_pct),
        what=WHATS[change.what],
        name=f"{name} ({place})" if place else name,
        a=a,
        b=b,
        change=_times(change),
        verdict=_VERDICTS.get(verdict, verdict),
        tone=change.verdict,
        evidence=change.evidence,
    )


def _sides(change: Change) -> tuple[str, str]:
    """Both values in one unit; findings in percent of their own run."""
    if change.unit in ("s", "ns", "bytes"):
        texts = view.aligned([change.a, change.b], change.unit)
    else:
        unit = "%" if change.what == "finding" else change.unit or ""
        texts = [None if v is None else f"{v:,.4g} {unit}".rstrip() for v in (change.a, change.b)]
    return texts[0] or "-", texts[1] or "-"


def _place(change: Change) -> str:
    file, line = change.where.get("file"), change.where.get("line")
    if change.what != "function" or not file:
        return ""
    name = str(file).rpartition("/")[2]
    return name if line is None else f"{name}:{line}"


def _signed(pct: float | None, digits: int = 1) -> str:
    return "" if pct is None else f"{pct:+.{digits}f} %"


def _times(change: Change) -> str:
    """+6.1 % (+4.8 to +7.3): of itself."""
    if change.ratio is None:
        return ""
    if not 0.1 < change.ratio < 10:
        return f"x {change.ratio:.3g}"
    told = _signed(100 * (change.ratio - 1))
    if change.low is None or change.high is None:
        return told
    return f"{told} ({100 * (change.low - 1):+.1f} to {100 * (change.high - 1):+.1f})"


def chosen(comparison: Comparison, most: int | None = ROWS) -> tuple[list[Change], int]:
    """What changed for sure, the costliest first, then the largest of what can't be told; and how many are left out."""
    parts = [one for one in comparison.changes if one.what not in ("metric", "finding")]
    sure = [one for one in parts if one.verdict in SURE]
    large = [one for one in parts if one.verdict == "unsure" and abs(one.share_of_step_pct or 0.0) >= _LARGE_PCT]
    ranked = [*sure, *large]
    kept = ranked if most is None else ranked[:most]
    return kept, len(ranked) - len(kept)


_LARGE_PCT = 3.0


def nothing(comparison: Comparison) -> str:
    """Why there is nothing among `chosen`."""
    if any(one.what not in ("metric", "finding") for one in comparison.changes):
        return "nothing that can be told from chance"
    return "not looked for: py-spy, nsys or torch in both plans would tell"


def shares(told: Row) -> str:
    """Of a finding, on both sides; empty where neither has one."""
    return "" if told.a == told.b == "-" else f"{told.a} → {told.b}"


def figures(comparison: Comparison) -> list[Change]:
    """The step and the run first, then what has an interval, then the rest."""
    known = comparison.told("metric")
    order = list(LABELS)
    return sorted(known, key=lambda c: (order.index(c.name) if c.name in order else len(order), c.low is None, c.name))


def findings(comparison: Comparison) -> list[Change]:
    """New, gone, louder, quieter."""
    return [one for one in comparison.told("finding") if one.verdict in SURE]


def likeness(comparison: Comparison) -> tuple[list[Unlike], list[str]]:
    """What differs, or is unknown of one; and the names of what is unknown of both."""
    both = [one.fact for one in comparison.unlike if one.a is None and one.b is None]
    return [one for one in comparison.unlike if one.fact not in both], both


def fact(value: str | None) -> str:
    return "unknown" if value is None else value


# ---------------------------------------------------------------- the terminal


def show(
    comparison: Comparison, *, verbose: bool = False, color: bool | None = None, stream: TextIO | None = None
) -> None:
    """Prints the comparison, the verdict first. Colours and width are the terminal's."""
    from rich.console import Console

    system: Literal["auto"] | None = None if color is False or os.environ.get("NO_COLOR") else "auto"
    out = Console(file=stream or sys.stdout, highlight=False, markup=False, emoji=False, color_system=system)
    out.width = min(out.width, terminal.WIDEST)
    for part in _parts(comparison, verbose, out):
        out.print(part)


def _parts(comparison: Comparison, verbose: bool, out: Console) -> Iterator[RenderableType]:
    for letter, side in (("A", comparison.a), ("B", comparison.b)):
        yield terminal._text(f"{letter}: {side.id}", "dim")
    yield terminal._text(comparison.headline, "bold")
    yield from (terminal._text(note, "yellow") for note in comparison.notes)
    yield from _gate(comparison)
    if not comparison.refused:
        yield from _why(comparison)
        yield from _changes(comparison, verbose, narrow=out.width < _WIDE)
        yield from _found(comparison)
        yield from _figures(comparison, verbose)
    yield from _unlike(comparison)


def _gate(comparison: Comparison) -> Iterator[RenderableType]:
    for one in comparison.gate.judged if comparison.gate else ():
        words = {"passed": "gate passed", "failed": "gate FAILED", "unjudged": "gate can't be judged"}[one.result]
        yield terminal._text(f"{words}: {one.metric} {one.reason}", _STYLES[one.result])


def _why(comparison: Comparison) -> Iterator[RenderableType]:
    if comparison.attribution:
        yield from terminal._heading("Why")
    for blame in comparison.attribution:
        yield terminal._text(f"  {blame.sentence}")
        if len(blame.chain) > 1:
            yield terminal._text(f"    called by {' > '.join(_frame(one) for one in blame.chain[:-1])}", "dim")


def _frame(text: str) -> str:
    """`train (/long/way/train.py:12)` with the file's name only."""
    function, _, place = text.rpartition(" (")
    return f"{function} ({place.rpartition('/')[2]}" if function else text


_WIDE = 100
"""In fewer columns the intervals of changes are left to -v and the other forms: they would break every line."""


def _changes(comparison: Comparison, verbose: bool, narrow: bool) -> Iterator[RenderableType]:
    kept, left_out = chosen(comparison, None if verbose else ROWS)
    yield from terminal._heading("What changed")
    if not kept:
        yield terminal._text(f"  {nothing(comparison)}")
        return
    head = [*_CHANGE_HEAD[:5], "change" if narrow else "change (95 %)", "verdict"]
    yield terminal._rows([head, *(list(_change_cells(one, narrow)) for one in kept)], right=(0, 3, 4), whole=(0, 1, 6))
    if left_out:
        yield terminal._text(f"  and {left_out} more: profrun compare -v, or --json", "dim")
    if verbose:
        for told in map(row, kept):
            yield terminal._text(f"  {told.name}: {told.change}; {told.evidence}", "dim")


_CHANGE_HEAD = ["of A", "what", "name", "A", "B"]


def _change_cells(change: Change, narrow: bool) -> Iterator[RenderableType | str]:
    told = row(change)
    by = told.change.partition(" (")[0] if narrow else told.change
    name = _kernel(change) if change.what == "kernel" else told.name
    yield from (told.share, told.what, view.short(name, 60), told.a, told.b, by)
    yield terminal._text(told.verdict, _STYLES.get(told.tone, ""))


def _kernel(change: Change) -> str:
    """Its bare name: there is no room for template arguments here."""
    was, now = kernel_names.function(change.name), kernel_names.function(change.now_called or change.name)
    if was != now:
        return f"{was} → {now}"
    return f"{was} (other template arguments)" if change.now_called else was


def _found(comparison: Comparison) -> Iterator[RenderableType]:
    told = findings(comparison)
    if told:
        yield from terminal._heading("Findings")
        yield terminal._rows([
            [terminal._text(row(one).verdict, _STYLES.get(one.verdict, "")), one.name, shares(row(one))]
            for one in told
        ])  # fmt: skip


def _figures(comparison: Comparison, verbose: bool) -> Iterator[RenderableType]:
    known = [one for one in figures(comparison) if verbose or one.low is not None or one.verdict in SURE]
    if known:
        yield from terminal._heading("Figures")
        yield terminal._rows([["", "A", "B", "change (95 %)", ""], *map(_figure_cells, known)], right=(1, 2))


def _figure_cells(change: Change) -> list[RenderableType | str]:
    told = row(change)
    return [told.name, told.a, told.b, told.change, terminal._text(told.verdict, _STYLES.get(told.tone, ""))]


def _unlike(comparison: Comparison) -> Iterator[RenderableType]:
    differing, unknown = likeness(comparison)
    if differing or unknown:
        yield from terminal._heading("Can't be compared" if comparison.refused else "Unlike")
    rows: list[list[RenderableType | str]] = [
        [
            terminal._text(one.fact, _STYLES[one.severity]),
            view.short(fact(one.a), 60),
            view.short(fact(one.b), 60),
            one.note,
        ]
        for one in differing
    ]
    if rows:
        yield terminal._rows([["", "A", "B", ""], *rows])
    if unknown:
        yield terminal._text(f"  unknown of both: {', '.join(unknown)}", "dim")
    if comparison.refused:
        yield terminal._text("  to compare them all the same: --anyway", "dim")


# ---------------------------------------------------------------- Markdown


def as_markdown(comparison: Comparison) -> str:
    """The same for a pull request."""
    sections = (_md_head, _md_why, _md_changes, _md_findings, _md_figures, _md_unlike)
    lines = [line for section in sections for line in (*section(comparison), "")]
    text = "\n".join(lines)
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return view.visible(text).rstrip("\n") + "\n"


def _md_head(comparison: Comparison) -> Iterator[str]:
    yield from (f"# {markdown.escape(comparison.headline)}", "")
    yield f"A: {markdown.code(comparison.a.id)} · B: {markdown.code(comparison.b.id)}"
    yield from (line for note in comparison.notes for line in ("", f"**Note:** {markdown.escape(note)}"))
    for one in comparison.gate.judged if comparison.gate else ():
        yield from ("", f"**Gate {one.result}:** {markdown.code(one.metric)} {markdown.escape(one.reason)}")


def _md_why(comparison: Comparison) -> Iterator[str]:
    if comparison.attribution:
        yield from ("## Why", "")
    for blame in comparison.attribution:
        yield f"- {markdown.escape(blame.sentence)}"
        if len(blame.chain) > 1:
            yield f"  called by {' > '.join(markdown.code(_frame(one)) for one in blame.chain[:-1])}"


def _md_changes(comparison: Comparison) -> Iterator[str]:
    if comparison.refused:
        return
    kept, left_out = chosen(comparison)
    yield from ("## What changed", "")
    if not kept:
        yield f"{nothing(comparison).capitalize()}."
        return
    of = next((one.of for one in kept if one.of), "A")
    head = (f">Share of {of}", "What", "Name", ">A", ">B", "Change (95 %)", "Verdict", "Evidence")
    yield from markdown.grid(head, (_md_cells(row(one)) for one in kept))
    if left_out:
        yield from ("", f"and {left_out} more, in compare.json")


def _md_cells(told: Row) -> Sequence[str]:
    evidence = markdown.escape(told.evidence)
    return (told.share, told.what, markdown.code(told.name), told.a, told.b, told.change, told.verdict, evidence)


def _md_findings(comparison: Comparison) -> Iterator[str]:
    told = [(one, row(one)) for one in findings(comparison)]
    if told and not comparison.refused:
        yield from ("## Findings", "")
        for one, cells in told:
            both = shares(cells)
            yield f"- {cells.verdict}: {markdown.escape(one.name)}" + (f" ({both})" if both else "")


def _md_figures(comparison: Comparison) -> Iterator[str]:
    known = [row(one) for one in figures(comparison)]
    if known:
        yield from ("## Figures", "")
        head = ("", ">A", ">B", "Change (95 %)", "Verdict", "Evidence")
        yield from markdown.grid(
            head,
            ((markdown.escape(r.name), r.a, r.b, r.change, r.verdict, markdown.escape(r.evidence)) for r in known),
        )


def _md_unlike(comparison: Comparison) -> Iterator[str]:
    differing, unknown = likeness(comparison)
    if differing or unknown:
        yield from ("## Can't be compared" if comparison.refused else "## Unlike", "")
    if differing:
        yield from markdown.grid(("Fact", "A", "B", "", ""), _md_facts(differing))
    if unknown:
        yield from ("", f"Unknown of both: {markdown.escape(', '.join(unknown))}")


def _md_facts(differing: Iterable[Unlike]) -> Iterator[Sequence[str]]:
    for one in differing:
        sides = (markdown.code(fact(one.a)), markdown.code(fact(one.b)))
        yield (markdown.escape(one.fact), *sides, one.severity, markdown.escape(one.note))
