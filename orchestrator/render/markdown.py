"""report.md: the report as GitHub-flavoured Markdown that also reads well in a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.model import USABLE
from orchestrator.render import view

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import Finding
    from orchestrator.report import Report

ROWS = 15
"""Rows of each table here; the rest is in its Parquet file."""
NAME = 100
"""Characters of a name in a table; both its ends are kept."""

TOP = (
    "functions",
    "syscalls",
    "syscall_paths",
    "os_calls_summary",
    "gpu_kernel_summary",
    "gpu_transfer_summary",
    "cuda_api_summary",
)
"""The tables that a reader of a pull request or a terminal wants; all of them are in the page."""
_COLUMNS = ("function", "name", "path", "file", "line", "class", "kind", "self_samples", "total_samples", "count", "errors", "total_ns", "mean_ns", "max_ns")  # fmt: skip

Cell = str | None


def render(report: Report) -> str:
    """The report as Markdown; names stand in code spans, and nothing in them is taken for markup."""
    parts = (_head, _findings, _metrics, _passes, _captures, _tables, _machine, _environment)
    text = "\n".join(line for part in parts for line in (*part(report), ""))
    return re.sub(r"\n{3,}", "\n\n", view.visible(text)).rstrip("\n") + "\n"


def _head(report: Report) -> Iterator[str]:
    told = view.verdict(report)
    run, outcome = report.run, report.outcome
    yield f"# {escape(run.name)}: {escape(told.word)}"
    yield ""
    yield escape(told.sentence)
    yield ""
    yield code(shlex.join(run.command), None)
    yield ""
    took = view.duration(run.duration_s)
    yield f"in {code(run.cwd)} · started {escape(run.started_at)} · everything together took {took} · target: {told.target} · profrun ended with {outcome.exit_code} · profrun {escape(run.profrun_version)}"


def _findings(report: Report) -> Iterator[str]:
    yield "## Findings"
    yield ""
    if not report.findings:
        yield (
            "Nothing above the threshold."
            if report.tables
            else "Nothing was found, and nothing could be: no table was filled."
        )
    for finding in report.findings:
        yield from _finding(finding)


def _finding(finding: Finding) -> Iterator[str]:
    cost = [view.duration(finding.cost_s), f"{finding.cost_pct:.3g} %" if finding.cost_pct is not None else None]
    price = ", ".join(c for c in cost if c)
    share = f": {price} of {escape(finding.of or view.UNKNOWN)}" if price else ""
    yield f"- **{finding.severity}** {escape(finding.title)}{share} (confidence {finding.confidence})"
    where = " · ".join(f"{k} {code(str(v))}" for k, v in finding.where.items() if v is not None)
    if where:
        yield f"  {where}  "
    yield f"  {escape(finding.advice)}"
    for name, row, value, unit in finding.evidence:
        yield f"  - {view.title(name)}: {code(row)} {escape(view.plain(value) or view.UNKNOWN)} {escape(unit or '')}".rstrip()


def _metrics(report: Report) -> Iterator[str]:
    yield "## Timing"
    yield ""
    found = view.figures(report)
    if not found:
        yield "Not measured: no bare run of the target was timed."
        return
    head = (
        "Metric",
        ">Mean",
        "95 % interval of the mean",
        ">± of mean",
        ">Median",
        ">Smallest",
        ">Largest",
        ">Values",
        "Outliers",
    )
    yield from grid(
        head,
        [
            (escape(f.label), f.value, f.interval, f.half_width_pct, f.median, f.smallest, f.largest, None if f.n is None else str(f.n), escape(", ".join(f.outliers)) or "none")
            for f in found
        ],
    )  # fmt: skip


def _passes(report: Report) -> Iterator[str]:
    yield "## Passes"
    yield ""
    rows = [
        (
            escape(p.id),
            p.role,
            escape(p.collectors),
            p.wall,
            p.slowdown if p.slowdown or p.role == "profiled" else p.remark,
            p.trust or (p.remark if p.role == "profiled" else ""),
            _text(p.ended),
            escape("; ".join(p.notes)),
        )
        for p in view.passes(report)
    ]
    head = ("Pass", "Role", "Collectors", ">Wall time", "Slowdown (95 % interval)", "Trust", "Target", "Notes")
    yield from grid(head, rows) if rows else ["The target was not started."]


def _captures(report: Report) -> Iterator[str]:
    yield "## Captures"
    yield ""
    rows = []
    for c in (c for c in report.captures if not view.silent(c)):
        files = f"{len(c.artifacts)}, {view.size(sum(a.bytes for a in c.artifacts))}" if c.artifacts else "none"
        env = " (contains environment)" if any(a.holds_env for a in c.artifacts) else ""
        said = "; ".join(t for t in (c.reason, *c.notes) if t)
        rows.append((escape(c.id), view.words(c.status), escape(view.tool(c)), c.trust if c.status in USABLE else "", files + env, escape(said)))
    head = ("Capture", "Status", "Tool", "Trust", "Files", "Reason, notes")
    yield from grid(head, rows) if rows else ["No collector took part in this run."]


def _tables(report: Report) -> Iterator[str]:
    for name in (n for n in view.table_names(report) if n in TOP):
        frame = report.table(name)
        if frame is not None and not frame.empty:
            yield f"## {view.title(name)}"
            yield ""
            yield from _table(name, frame, report.tables[name].path)
            yield ""


def _table(name: str, frame: pandas.DataFrame, path: str) -> Iterator[str]:
    best = view.ranked(frame, ROWS)
    chosen = [c for c in _COLUMNS if c in frame.columns and frame[c].notna().any()]
    columns = [
        _column(c, [None if v is None or v != v else v for v in best[c].astype(object).where(best[c].notna(), None)])
        for c in chosen
    ]
    head = [("" if c in _NAMES else ">") + view.label(c.removesuffix("_ns")) for c in chosen]
    if part := view.shares(name, frame):
        head.append(f">share of {part[1]}")
        shares = part[0].loc[best.index]
        columns.append(
            [None if missing else f"{100 * v:.1f} %" for v, missing in zip(shares, shares.isna(), strict=True)]
        )
    yield from grid(head, list(zip(*columns, strict=True)))
    yield ""
    yield f"{len(best):,} of {len(frame):,} rows; all in {code(path)}"


_NAMES = ("function", "name", "path", "file", "class", "kind")


def _column(name: str, values: Sequence[object]) -> list[Cell]:
    if name in _NAMES:
        return [
            None if v is None else code(str(v)) if name not in ("class", "kind") else escape(str(v)) for v in values
        ]
    if name.endswith("_ns"):
        return view.aligned([None if v is None else float(str(v)) for v in values], "ns")
    return [None if v is None else str(v) if name == "line" else f"{v:,}" for v in values]


def _machine(report: Report) -> Iterator[str]:
    yield "## Machine"
    yield ""
    for group, pairs in view.facts(report.machine):
        yield f"- {escape(group)}: " + ", ".join(f"{escape(label)} {_text(text)}" for label, text in pairs)
    if not report.machine:
        yield "Nothing is known about it."


def _environment(report: Report) -> Iterator[str]:
    yield "## Environment"
    yield ""
    rows = [
        (escape(s.use), view.words(s.status), *(_text(view.plain(v)) for v in (s.wanted, s.before, s.verified)), view.restored(s), escape(s.reason or ""))
        for s in report.environment
    ]  # fmt: skip
    yield from (
        grid(("Step", "Status", "Wanted", "Before", "Verified", "Restored", "Reason"), rows)
        if rows
        else ["The plan changed nothing on this machine."]
    )


def _text(text: str | None) -> str:
    return view.UNKNOWN if text is None else escape(view.short(text, 2 * NAME))


def grid(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """A table, padded so that it is one in a terminal too. A heading that begins with `>` aligns its column to the right."""
    texts = [[view.UNKNOWN if cell is None else cell for cell in row] for row in rows]
    names = [h.removeprefix(">") for h in head]
    widths = [max(3, *(len(row[i]) for row in (names, *texts))) for i in range(len(head))]
    right = [h.startswith(">") for h in head]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    yield line(names)
    yield line(["-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True)])
    yield from map(line, texts)


def code(text: str, length: int | None = NAME) -> str:
    """A code span that shows `text` as it is: fenced by more backticks than it holds, its pipes escaped for tables."""
    text = re.sub(r"\s+", " ", view.visible(text if length is None else view.short(text, length))).strip() or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def escape(text: str) -> str:
    """Prose in which nothing is markup, on one line."""
    return re.sub(r"([\\`*\[\]<|#~]|(?<![^\W_])_|_(?![^\W_])|^>)", r"\\\1", re.sub(r"\s+", " ", view.visible(text)).strip())
