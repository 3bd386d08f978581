"""report.md: the report as GitHub-flavoured Markdown that also reads well in a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.model import USABLE
from orchestrator.render import (
    environment,
    gpu,
    gpustrip,
    hang,
    kernels,
    memory,
    operators,
    ranks,
    samples,
    stepping,
    view,
    where,
)

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import Capture, Finding
    from orchestrator.report import Report

ROWS = 15
"""Rows of each table here; the rest is in its Parquet file."""
EVIDENCE = 6
"""Values told of a finding."""
NAME = 100
"""Characters of a name in a table; of a longer one both ends are kept."""

TABLES = (
    "functions",
    "syscalls",
    "syscall_paths",
    "os_calls_summary",
    "gpu_kernel_summary",
    "cuda_api_summary",
)
"""What a reader of a pull request or a terminal wants; all tables are in the page."""
_NAMES = ("function", "name", "path", "file")
_WORDS = ("rank", "class", "kind")
_NUMBERS = ("line", "self_samples", "total_samples", "count", "errors", "total_ns", "mean_ns", "max_ns")

Cell = str | None


def render(report: Report) -> str:
    """The report as Markdown; names stand in code spans, and nothing in them is taken for markup."""
    sections = (
        _head,
        _findings,
        _stands,
        _steps,
        _ranks,
        _timing,
        _where,
        _gpu,
        _tables,
        _kernels,
        _inside,
        _machine,
        _environment,
        _passes,
        _processes,
        _captures,
    )
    text = "\n".join(line for section in sections for line in (*section(report), ""))
    return re.sub(r"\n{3,}", "\n\n", view.visible(text)).rstrip("\n") + "\n"


def _head(report: Report) -> Iterator[str]:
    run, told = report.run, view.verdict(report)
    yield from (f"# {escape(run.name)}: {escape(told.word)}", "", escape(told.sentence), "")
    if run.imported:
        names = ", ".join(code(view.file_name(capture)) for capture in report.captures)
        yield f"imported {escape(view.moment(run.started_at))} from {names} · the command is not known here"
        return
    command = view.visible(shlex.join(run.command))
    fence = _fence(command, 3)
    yield from (f"{fence}sh", command, fence, "")
    facts = (
        f"in {code(run.cwd)}",
        f"started {escape(view.moment(run.started_at))}",
        f"everything together took {view.duration(run.duration_s)}",
        f"target: {told.target}",
        f"profrun {escape(run.profrun_version)} ended with {report.outcome.exit_code}",
    )
    yield " · ".join(facts)
    for text in view.drifted(report):
        yield from ("", f"**Warning: drifted** {escape(text)}")


def _findings(report: Report) -> Iterator[str]:
    yield from ("## Findings", "")
    grave, calm = view.findings(report)
    trusts = view.trusts(report)
    for finding in grave:
        yield from _finding(finding, trusts)
    if not grave:
        nothing = "Nothing was found, and nothing could be: no table was filled."
        yield "Nothing above the threshold." if report.tables else nothing
    if calm:
        yield from ("", "Where the time goes, and nothing is wrong with that:", "")
    for finding in calm:
        yield from _finding(finding, trusts)
    if report.abstentions:
        yield from ("", "What would tell more:", "")
    for feed, rules in view.abstentions(report):
        yield "- " + "; ".join(f"{code(one.rule)} {_ticked(one.lacks)}" for one in rules)
        yield from _fed(feed)


def _ticked(text: str) -> str:
    """Prose in which what stands between two backticks is code."""
    pieces = re.split(r"`([^`]+)`", text)
    return "".join(code(piece) if i % 2 else _padded(piece) for i, piece in enumerate(pieces))


def _padded(text: str) -> str:
    """Escaped, with the space at its ends kept."""
    return f"{' ' * text.startswith(' ')}{escape(text)}{' ' * (text.endswith(' ') and bool(text.strip()))}"


def _fed(feed: str) -> Iterator[str]:
    """The part of a plan that a rule asks for, inside of a list."""
    if feed:
        fence = _fence(feed, 3)
        yield from ("", f"  {fence}yaml", *(f"  {line}" for line in feed.splitlines()), f"  {fence}", "")


def _finding(finding: Finding, trusts: Mapping[str, str]) -> Iterator[str]:
    costs = (view.duration(finding.cost_s), None if finding.cost_pct is None else f"{finding.cost_pct:.3g} %")
    cost = ", ".join(c for c in costs if c)
    price = f": {cost} of {escape(finding.of or view.UNKNOWN)}" if cost else ""
    word = "healthy" if finding.healthy else finding.severity
    yield f"- **{word}** {escape(view.short(finding.title, 3 * NAME))}{price} (confidence {finding.confidence})"
    places = " · ".join(f"{escape(key)} {code(text)}" for key, text in view.places(finding))
    yield from (f"  - {line}" for line in (places, _ticked(finding.advice)) if line)
    for item in finding.evidence[:EVIDENCE]:
        said = escape(view.amount(item.value, item.unit) or view.UNKNOWN)
        yield f"  - {view.title(item.table)}: {code(item.row)} {said}"
    if bent := [f"{escape(name)} ({trusts[name]})" for name in finding.sources if trusts.get(name, "high") != "high"]:
        yield f"  - bent by the measuring: {', '.join(bent)}"


def _stands(report: Report) -> Iterator[str]:
    """The threads of a program that hung."""
    for one in hang.stands(report):
        yield from ("## Where it stood", "", f"{escape(one.told)}.", "")
        head = ("Process", "Thread", "Between the looks", "In", "Place")
        rows = [(r.who, escape(r.thread), r.moved, escape(r.doing), code(r.place) if r.place else "") for r in one.rows]
        yield from (*grid(head, rows), "")
        if one.more:
            yield from (f"{one.more} more are in the table of threads.", "")


def _timing(report: Report) -> Iterator[str]:
    head = ("Metric", ">Mean", "95 % interval", ">± of mean", ">Median", ">Smallest", ">Largest", ">Values", "Outliers")
    rows = [
        (
            *(escape(f.label), f.value, f.interval, f.half_width_pct, f.median, f.smallest, f.largest),
            *(view.plain(f.n), escape(", ".join(f.outliers)) or "none"),
        )
        for f in view.figures(report)
    ]
    if report.run.imported:
        yield from _section("Figures", ("Figure", ">Value"), [row[:2] for row in rows], "The files hold no figures.")
        yield from ("", f"{view.IMPORTED[0].upper()}{view.IMPORTED[1:]}.")
        return
    yield from _section("Timing", head, rows, "Not measured: no bare run of the target was timed.")


def _steps(report: Report) -> Iterator[str]:
    found = stepping.stepping(report)
    if found is None:
        return
    yield from ("## Steps", "", f"{escape(stepping.line(report, found))}. Below: {found.where}.")
    for course in found.shown:
        name = f"{course.name}: " if course.name else ""
        yield from ("", escape(name + " ".join(course.told())))
        if course.mean_ns is not None:
            yield from ("", *_phases(course), "")
    yield found.rest() or ""


def _ranks(report: Report) -> Iterator[str]:
    """The ranks furthest behind; all of them where there are few."""
    found = ranks.ranks(report)
    if found is None:
        return
    columns = found.columns
    head = (">Rank", *(name if key in ("host", "ended") else f">{name}" for key, name in columns))
    rows = [(str(row.rank), *(_text(getattr(row, key)) for key, _ in columns)) for row in found.shown]
    lead = f"{found.lead} In pass {found.where}."
    yield from ("## Ranks", "", escape(lead), "", *([found.judged, ""] if found.judged else []), *grid(head, rows), "")
    if found.rest:
        yield f"{len(found.rest):,} other ranks: {code(report.tables['ranks'].path)}"
    if found.heat:
        yield from ("", escape(f"{found.heat.label}."), "")


def _phases(course: stepping.Course) -> Iterator[str]:
    head = ("Phase", ">Mean", f">Share of {view.duration(course.total_ns / 1e9)}", ">Longest")
    unseen = ("not seen",) * 3
    rows = [
        (
            escape(p.name),
            *(
                (
                    view.duration(p.mean_ns / 1e9),
                    view.percent(p.share or 0.0),
                    view.duration((p.longest_ns or 0.0) / 1e9),
                )
                if p.mean_ns is not None
                else unseen
            ),
        )
        for p in course.phases
    ]
    return grid(head, rows)


def _passes(report: Report) -> Iterator[str]:
    passes = view.passes(report)
    stepped = any(row.step_slowdown for row in passes)
    slower = ("Slowdown (95 % interval)", *(["Of its usual step"] if stepped else []))
    head = ("Pass", "Role", "Collectors", ">Wall time", *slower, "Trust", "Target", "Notes")
    nothing = "The files were there already." if report.run.imported else "The target was not started."
    yield from _section("Overhead and trust", head, [_pass(row, stepped) for row in passes], nothing)


def _pass(row: view.PassRow, stepped: bool) -> tuple[Cell, ...]:
    compared = row.role == "profiled"
    steps = (row.step_slowdown if compared else "",) if stepped else ()
    slowdown, trust = (row.slowdown, row.trust or row.remark) if compared else (row.remark, "")
    ended = None if row.ended is None else escape(row.ended)
    return (row.id, row.role, row.collectors, row.wall, slowdown, *steps, trust, ended, escape("; ".join(row.notes)))


def _processes(report: Report) -> Iterator[str]:
    rows = [
        (str(p.pid), p.rank or "none", code(p.what), escape(p.role), escape(p.course), escape(p.left))
        for p in view.processes(report)
    ]
    if rows:
        head = (">Process", "Rank", "Command", "Role", "State before → after", "Now")
        yield from (*_section("Processes looked at", head, rows, ""), "")


def _captures(report: Report) -> Iterator[str]:
    head = ("Capture", "Status", "Tool", "Trust", "Files", "Reason, notes")
    rows = [_capture(c) for c in report.captures if not view.silent(c)]
    bare = sum(map(view.silent, report.captures))
    yield from _section("Captures", head, rows, "No tool took part in this run.")
    if bare:
        yield from ("", f"Beside these, profrun itself measured {bare} run{'s' if bare > 1 else ''}: all ok.")


def _capture(capture: Capture) -> tuple[Cell, ...]:
    files = capture.artifacts
    kept = f"{len(files)}, {view.size(sum(a.bytes for a in files))}" if files else "none"
    env = " (contains environment)" if any(a.holds_env for a in files) else ""
    said = escape("; ".join(t for t in (capture.reason, *capture.notes) if t))
    known = capture.trust or "not judged"
    trust = known if capture.status in USABLE else "no usable data"
    return (capture.id, view.words(capture.status), escape(view.tool(capture)), trust, kept + env, said)


def _tables(report: Report) -> Iterator[str]:
    for name in (n for n in view.table_names(report) if n in TABLES):
        frame = report.table(name)
        if frame is not None and not frame.empty:
            head, rows = _table(report, name, frame)
            yield from _section(view.title(name), head, rows, "")
            yield from ("", f"{len(rows):,} of {len(frame):,} rows; all in {code(report.tables[name].path)}", "")


def _table(report: Report, name: str, frame: pandas.DataFrame) -> tuple[list[str], list[Sequence[Cell]]]:
    best = view.ranked(frame, ROWS)
    chosen = [c for c in (*_NAMES, *_WORDS, *_NUMBERS) if c in frame.columns and frame[c].notna().any()]
    head = [("" if c in (*_NAMES, *_WORDS) else ">") + view.label(c.removesuffix("_ns")) for c in chosen]
    columns = [[None if v is None else _value(c, v) for v in view.values(best[c])] for c in chosen]
    if part := view.shares(report, name, frame):
        head.append(f">share of {part[1]}")
        columns.append([None if v is None else view.percent(v) for v in view.values(part[0].loc[best.index])])
    return head, list(zip(*columns, strict=True))


def _value(column: str, value: Any) -> Cell:
    if column in _NAMES:
        return code(value)
    if column.endswith("_ns"):
        return view.duration(value / 1e9)
    return str(value) if column == "line" or column in _WORDS else f"{value:,}"


def _inside(report: Report) -> Iterator[str]:
    """What PyTorch and the monitor have seen, each in a few lines."""
    for name, frame in operators.operators(report)[: operators.SHOWN]:
        cost = operators.cost_column(frame) or "cpu_self_ns"
        place = operators.LABELS[cost]
        head = ("Operator", ">Count", f">{place}", f">Share of {operators.whole(frame, cost)}", f">{place[:3]} total")
        whole = float(frame[cost].sum())
        best = frame.head(ROWS)
        columns = (view.values(best[c]) for c in ("name", "count", cost, cost.replace("self", "total")))
        rows = [
            (
                code(op),
                f"{count:,}",
                view.duration((own or 0) / 1e9),
                view.percent((own or 0) / whole),
                _value("total_ns", total),
            )
            for op, count, own, total in zip(*columns, strict=True)
        ]
        yield from (*_section(f"Operators of {escape(name)}", head, rows, ""), "")
    if lines := [f"- {escape(held.name)}: {escape(held.told)}" for held in memory.held(report)]:
        yield from ("## Memory", "", *lines, "")
    for one in samples.sampled(report):
        said = (f"- {escape(' '.join((c.title, c.subject)).strip())}: {escape(c.told)}" for c in one.charts)
        yield from (f"## Samples of {escape(one.capture)}", "", *said, "")


def _where(report: Report) -> Iterator[str]:
    """What the main thread and the GPUs did in the steps, the costliest function beside each part."""
    for split in where.splits(report):
        told = f"; {escape(split.told)}" if split.told else ""
        yield from (f"## {where.title(report)}: {escape(split.title)} in {escape(split.capture)}", "")
        yield from (f"Of {view.duration(split.whole_ns / 1e9)}, {escape(split.whole)}{told}.", "")
        rows = [
            (escape(p.name), view.percent(p.share), view.duration(p.ns / 1e9), _most(p.places)) for p in split.parts
        ]
        places = any(part.places for part in split.parts)
        head = ("Part", ">Share", ">Time", "Most of it in")
        yield from (*grid(head if places else head[:3], rows if places else [row[:3] for row in rows]), "")


def _most(places: Sequence[where.Place]) -> str:
    if not places:
        return ""
    at = f" ({escape(places[0].short)})" if places[0].file else ""
    return f"{code(places[0].function)}{at} {view.percent(places[0].share)}"


def _gpu(report: Report) -> Iterator[str]:
    """Each GPU over its span, what its gaps waited for, its copies."""
    for queue in gpustrip.queues(report):
        device = queue.device
        yield from (f"## {escape(device.name)} in {escape(device.capture)}", "", f"{escape(device.told)}.", "")
        yield from (*(f"- {name}: {_text(text)}" for name, text in device.facts if text is not None), "")
        yield from (*_longest(queue), "", *_gaps(device), "")
    for capture, rows in gpu.copies(report)[: gpustrip.SHOWN]:
        head = ("Kind", ">Count", ">Size", ">Time", ">Bandwidth", ">Bytes in pageable memory")
        yield from _section(f"Copies and sets of {escape(capture)}", head, [_copies(row) for row in rows], "")
        yield ""


def _longest(queue: gpustrip.Queue) -> Iterator[str]:
    if not queue.gaps:
        return
    yield from ("Its longest gaps:", "")
    head = (">After", ">Lasted", "It waited for", "Phase", "The launching thread was in", "System call")
    yield from grid(
        head,
        [
            (g.at, g.lasted, g.cause.removeprefix("waiting for "), escape(g.phase or "none"),
             code(g.python) if g.python else escape(g.did), code(g.syscall) if g.syscall else "none seen")
            for g in queue.gaps
        ],
    )  # fmt: skip


def _gaps(device: gpu.Device) -> Iterator[str]:
    if not device.causes:
        return
    more = f" (the longest; {device.unexplained:,} shorter ones are only counted)" if device.unexplained else ""
    yield from (f"What the launching thread did in the gaps{more}:", "")
    head = (
        "It did",
        "Inside",
        "Next work",
        ">Gaps",
        ">Together",
        f">Share of {view.duration(device.idle_ns / 1e9)} idle",
    )
    yield from grid(
        head,
        [
            (
                *(escape(c.did), code(c.where) if c.where else "no range", c.kind, f"{c.count:,}"),
                *(view.duration(c.total_ns / 1e9), view.percent(c.share)),
            )
            for c in device.causes
        ],
    )


def _copies(row: gpu.Copies) -> tuple[Cell, ...]:
    pageable = "not told" if row.pageable is None else view.percent(row.pageable)
    shown = (
        f"{row.count:,}",
        view.size(row.size),
        view.duration(row.total_ns / 1e9),
        gpu.rate(row.bandwidth),
        pageable,
    )
    return (code(row.name), *shown)


def _kernels(report: Report) -> Iterator[str]:
    """The launches that were measured one by one: what bounds them, how near to the peaks, the first advice."""
    found = kernels.kernels(report)
    if not found:
        return
    head = ("Kernel", "Grid × block", "Bound by", ">Time under ncu", "In percent of peak", "Launch", "First advice")
    rows = [
        (
            *(code(k.name), k.shape, k.bound, k.duration),
            ", ".join(f"{m.name} {m.pct:.3g}" for m in k.meters if m.pct is not None),
            escape("; ".join(f"{name}: {text}" for name, text in k.facts[:2])),
            escape(view.short(k.advice[0].text, NAME)) if k.advice else "none",
        )
        for k in found[:ROWS]
    ]
    yield from (*_section("Kernels in depth", head, rows, ""), "")


def _machine(report: Report) -> Iterator[str]:
    yield from ("## Machine", "")
    for group, pairs in view.facts(report.machine):
        yield f"- {escape(group)}: " + ", ".join(f"{escape(label)} {_text(text)}" for label, text in pairs)
    if not report.machine:
        yield "Nothing is known about it."


def _environment(report: Report) -> Iterator[str]:
    """Whether the machine was as the plan wants it, and of each step what it found and did, in a line a setting."""
    yield from ("## Environment", "")
    for told in environment.told(report):
        yield from ((f"**{escape(told.text)}**" if report.environment else escape(told.text)), "")
    for row in environment.rows(report):
        wanted = f"; wanted: {escape(view.short(row.wanted, NAME))}" if row.wanted else ""
        yield f"- **{escape(row.use)}** {escape(row.status)}, {row.put_back}{wanted}"
        yield from (f"  - {escape(line)}" for line in _step(row))


def _step(row: environment.Row) -> Iterator[str]:
    if row.reason:
        yield row.reason
    if row.fix:
        yield f"next: {row.fix}"
    for s in row.settings:
        wish = f" (wanted {s.wanted})" if s.wanted and s.wanted != s.set else ""
        status = s.status if s.status != row.status or not s.readable else ""
        said = ", ".join(text for text in (f"{s.course}{wish}", status) if text)
        yield f"{s.name}: {said}" + (f": {s.reason}" if s.reason else "")
    for moment, found in row.moments:
        if moment != "wanted":
            yield f"{moment}: {_some([f'{label} {text or view.UNKNOWN}'.strip() for label, text in found])}"
    for seen in row.seen:
        for cells in seen.rows[:ROWS]:
            yield f"{seen.name}: " + ", ".join(
                f"{column} {cell or view.UNKNOWN}" for column, cell in zip(seen.columns, cells, strict=True)
            )


def _some(texts: Sequence[str]) -> str:
    """As many as a reader will read, and how many more there are."""
    ends = [sum(map(len, texts[: n + 1])) + 2 * n for n in range(len(texts))]
    shown = max(1, sum(end <= 3 * NAME for end in ends))
    left = f", and {len(texts) - shown} more" if len(texts) > shown else ""
    return ", ".join(view.short(text, 3 * NAME) for text in texts[:shown]) + left


def _text(text: str | None) -> str:
    return view.UNKNOWN if text is None else escape(view.short(text, 2 * NAME))


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[Cell]], nothing: str) -> Iterator[str]:
    yield from (f"## {title}", "")
    yield from grid(head, rows) if rows else [nothing]


def grid(head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> Iterator[str]:
    """A table, padded so that it is one in a terminal too. `>` before a heading aligns its column to the right."""
    texts = [[view.UNKNOWN if cell is None else cell.replace("|", "\\|") for cell in row] for row in rows]
    names = [h.removeprefix(">") for h in head]
    right = [h.startswith(">") for h in head]
    widths = [max(3, *(len(row[i]) for row in (names, *texts))) for i in range(len(head))]

    def line(cells: Iterable[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return f"| {' | '.join(padded)} |"

    yield line(names)
    yield line("-" * (w - 1) + ":" if r else "-" * w for w, r in zip(widths, right, strict=True))
    yield from map(line, texts)


def code(text: str) -> str:
    """A code span that shows `text` as it is, in one line, its middle left out where it is long."""
    text = view.short(view.visible(re.sub(r"\s+", " ", text)).strip(), NAME) or " "
    fence = _fence(text, 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _fence(text: str, least: int) -> str:
    """More backticks than stand together anywhere in `text`."""
    return "`" * max(least, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


_MARKUP = re.compile(r"[\\`*\[\]<#~&]|(?<![^\W_])_|_(?![^\W_])|^[>+-]")


def escape(text: str) -> str:
    """Prose in which nothing is markup, in one line."""
    return _MARKUP.sub(r"\\\g<0>", view.visible(re.sub(r"\s+", " ", text)).strip())
