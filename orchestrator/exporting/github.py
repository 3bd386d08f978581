"""A summary in Markdown for the page of a CI job: GitHub shows what a step appends to the file that
GITHUB_STEP_SUMMARY names (1 MiB a step at most).

A job's page is seen by more people than its machine: what the job's environment holds of secrets is taken out."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import folder, redact
from orchestrator.comparing.words import Comparison
from orchestrator.render import markdown, view

if TYPE_CHECKING:
    from orchestrator.model import Finding
    from orchestrator.report import Report

VARIABLE = "GITHUB_STEP_SUMMARY"
FINDINGS = 12
"""So many are told; of more how many there are."""
_FIGURES = ("step_s", "wall_s", "max_rss_bytes")
_TITLE, _COMMAND = 160, 300
_MOST_BYTES = 900_000


def export(report: Report, target: folder.Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """summary.md."""
    yield target.write("summary.md", redact.scrubber(os.environ)(render(report)))


def render(report: Report) -> str:
    """The verdict, what a step takes, the findings."""
    told = view.verdict(report)
    lines = [f"## profrun: {markdown.escape(report.run.name)}, {markdown.escape(told.word)}", ""]
    lines += [markdown.escape(told.sentence), "", *_figures(report), *_findings(report)]
    command = view.short(" ".join(shlex.join(report.run.command).split()), _COMMAND)
    facts = [markdown.code(command)] if command else []
    facts += [markdown.escape(view.moment(report.run.started_at)), markdown.code(report.run.id)]
    return "\n".join([*lines, " · ".join(facts)]) + "\n"


def _figures(report: Report) -> Iterator[str]:
    shown = [view.figure(name, report.metrics[name]) for name in _FIGURES if name in report.metrics]
    if shown:
        head = ("", ">Mean", "95 % interval", ">Runs")
        rows = [(f.label, f.value, f.interval or "one run: none", view.plain(f.n)) for f in shown]
        yield from (*markdown.grid(head, rows), "")


def _findings(report: Report) -> Iterator[str]:
    grave, calm = view.findings(report)
    if not grave:
        yield from ("Nothing above the threshold." if report.tables else "Nothing was measured to judge by.", "")
    else:
        yield from (*markdown.grid(("", "Finding", "Cost", "Where"), map(_row, grave[:FINDINGS])), "")
    if len(grave) > FINDINGS:
        yield from (f"{len(grave) - FINDINGS} more are in the report.", "")
    if calm and not grave:
        yield from (f"Most time: {markdown.escape(view.short(calm[0].title, _TITLE))}.", "")


def _row(finding: Finding) -> tuple[str, str, str, str]:
    places = " ".join(markdown.code(text) for _, text in view.places(finding)[:2])
    title = markdown.escape(view.short(finding.title, _TITLE))
    return finding.severity, title, markdown.escape(view.price(finding)) or "not measured", places or "no one place"


CHANGES = 8


def gate(made: Comparison) -> str:
    """What a comparison has found, and what its gate says of it."""
    judged = made.gate.result if made.gate else "none"
    lines = [f"## profrun compare: gate {judged}", "", markdown.escape(made.headline), ""]
    rows = (
        [(markdown.code(one.metric), one.result, markdown.escape(one.reason)) for one in made.gate.judged]
        if made.gate
        else []
    )
    lines += [*markdown.grid(("Figure", "Result", "Why"), rows), ""] if rows else []
    lines += [f"- {markdown.escape(blame.sentence)}" for blame in made.attribution[:CHANGES]]
    lines += [f"- note: {markdown.escape(note)}" for note in made.notes]
    lines += [f"- unlike: {markdown.escape(one.fact)} {one.how}" for one in made.refusals]
    return "\n".join([*lines, "", f"A {markdown.code(made.a.id)} · B {markdown.code(made.b.id)}"]) + "\n"


def append(text: str) -> bool:
    """Adds Markdown to the page of the CI job that this is a step of; False where it is none, or does not take it."""
    place = os.environ.get(VARIABLE)
    if not place:
        return False
    path = Path(place)
    try:
        size = path.stat().st_size if path.exists() else 0
        if size + len(text.encode("utf-8", "surrogateescape")) > _MOST_BYTES:
            return False
        folder.Folder(path.parent, redact.scrubber(os.environ)).append(path.name, text)
    except OSError:
        return False
    return True


def tell(what: Report | Comparison) -> bool:
    """Adds what has just ended, likewise: a run, or a comparison with its gate."""
    return VARIABLE in os.environ and append(gate(what) if isinstance(what, Comparison) else render(what))
