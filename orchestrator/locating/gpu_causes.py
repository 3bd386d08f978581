"""What a GPU waited for in each gap, and where the thread then was that launched what came next.

A gap has one cause, the first of these that fits:

    between        the next work was there before the gap, or nothing is known and it is short: from one to the next
    data           most of it lay in the DataLoader's next
    communication  most of it lay in a collective of the host
    copy           that thread was in a copy that blocks, or had just come out of one
    sync           it had waited until the queue was empty, or had fetched a scalar (`.item()`), and launched only then
    host           it launched late for another reason
    unknown        the next work was there all the time, and yet the GPU did not begin; or its launch was not seen

A gap after a synchronisation goes to that even where the thread did other things after it: had it not waited, these
would have been done beside the GPU's work. How much that would save, rules judge.

What other tools say of a single gap counts only where it is longer than twice the error of their clocks and one of
their periods; for shorter ones only sums mean anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.gpu_queue import Gaps, Spans, busiest, innermost
from orchestrator.locating.gpu_arrays import ints, texts
from orchestrator.locating.gpu_names import BUSY_PART, COLLECTIVE, activity, call_kind, own_frame, to_host, waits
from orchestrator.locating.gpu_window import Gpu, Steps
from orchestrator.model import Capture
from orchestrator.tables import Table

SHORT_NS = 10_000
"""A gap of which nothing is known is no longer one piece of work's way to the next from here on."""
QUEUED_NS = 100_000
"""Neither is one before work that was there: launching from a queue takes a few us."""
AFTER_NS = 5_000
"""A call that waited for the GPU may have come back this much before the gap: its stream was empty before others."""
SCALAR_BYTES = 64
"""A copy to the host up to this size fetches a number that the program looks at."""

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Beside:
    """What was recorded beside the GPU in one pass: tables on the epoch clock, of threads."""

    stacks: Sequence[Table] = ()
    syscalls: Sequence[Table] = ()
    ops: Sequence[Table] = ()
    periods_ns: Mapping[str, int] = field(default_factory=dict)
    """By capture, how far apart its samples are."""


def beside(gpu: Gpu, parts: Mapping[str, Sequence[Table]], captures: Sequence[Capture]) -> Beside:
    """The tables of the GPU's own capture, and those of its pass that share a clock with it."""
    own = next((c for c in captures if c.id == gpu.capture), None)
    mates = {c.id: c for c in captures if own is not None and c.pass_id == own.pass_id}

    def found(name: str) -> list[Table]:
        tables = [t for t in parts.get(name, ()) if len(t)]
        return [t for t in tables if _of(t) == gpu.capture or (_of(t) in mates and _shares_clock(gpu, t))]

    periods = {id_: round(1e9 / rate) for id_, c in mates.items() if (rate := c.options.get("rate"))}
    return Beside(found("stack_spans"), found("syscall_spans"), found("op_spans"), periods)


def _of(table: Table) -> str:
    return str(table.columns["capture"][0])


def _shares_clock(gpu: Gpu, table: Table) -> bool:
    return gpu.clock_error_ns is not None and table.clock == "epoch"


def explained(gpu: Gpu, rows: Sequence[Row], others: Beside) -> list[Row]:
    """The rows of `gpu_gaps` of one GPU, in their order, each with its cause and its place."""
    if not rows:
        return []
    start = np.array([row["start_ns"] for row in rows], np.int64)
    end = start + np.array([row["duration_ns"] for row in rows], np.int64)
    launched = np.array([MISSING if r["launched_ns"] is None else r["launched_ns"] for r in rows], np.int64)
    thread = np.array([MISSING if r["thread"] is None else r["thread"] for r in rows], np.int64)
    gaps = Gaps(start, end, np.zeros(0, np.int64), np.zeros(0, np.int64), launched)
    waited = _waited(gpu, gaps, thread)
    fetched = _fetched(gpu, start)
    op, python = _ops(gpu, gaps, thread, others)
    seen = _seen(gpu, gaps, thread, others)
    done = []
    for i, row in enumerate(rows):
        place: Row = {"python": python[i], "op": op[i], **seen[i]}
        at = place.get("at") or activity(place["op"], row["range"])
        told = {name: place.get(name) for name in ("python", "syscall", "path", "told_by")}
        cause = _cause(row, at, waited[i], fetched[i])
        done.append({**row, **told, "cause": cause, "phase": None if at == COLLECTIVE else at})
    return done


def _cause(row: Row, at: str | None, waited: str | None, fetched: int) -> str:
    length, api = row["duration_ns"], row["api"] or ""
    in_call = row["api_ns"] is not None and 2 * row["api_ns"] >= length
    if row["kind"] == "queued" and not (in_call and call_kind(api) in ("launch", "loading", "allocation")):
        if in_call and call_kind(api) == "copy" and length >= SHORT_NS:
            return "copy"
        return "between" if length < QUEUED_NS else "unknown"
    if at in ("data", COLLECTIVE):
        return at
    if in_call and call_kind(api) == "copy":
        return "copy"
    if call_kind(api) in ("allocation", "loading") and (row["api_ns"] or 0) >= BUSY_PART * length:
        return "host"
    if waited and call_kind(waited) == "sync":
        return "sync"
    if fetched != MISSING:
        return "sync" if fetched <= SCALAR_BYTES else "copy"
    if waited:
        return "copy"
    if call_kind(api) == "sync":
        return "sync"
    if row["kind"] is None:
        return "between" if length < SHORT_NS else "unknown"
    return "host"


# ---------------------------------------------------------------- the tool that recorded the GPU


def _waited(gpu: Gpu, gaps: Gaps, thread: Ints) -> list[str | None]:
    """For each gap the call in which its thread had waited for the GPU when the gap began, and that came back before
    the thread launched what followed."""
    found: list[str | None] = [None] * len(gaps)
    if gpu.calls is None:
        return found
    code, names = texts(gpu.calls, "name")
    waiting = np.array([name is not None and waits(name) for name in names], bool)[code]
    start, tid = ints(gpu.calls, "start_ns")[waiting], ints(gpu.calls, "thread")[waiting]
    end, code = start + ints(gpu.calls, "duration_ns")[waiting], code[waiting]
    for one in np.unique(thread[thread != MISSING]).tolist():
        mine, wanted = np.flatnonzero(tid == one), np.flatnonzero(thread == one)
        mine = mine[np.argsort(end[mine], kind="stable")]
        place = np.searchsorted(end[mine], gaps.start[wanted] - AFTER_NS)
        limit = gaps.start[wanted] + np.where(gaps.launched[wanted] == MISSING, 0, gaps.launched[wanted])
        for gap, at, until in zip(wanted.tolist(), place.tolist(), limit.tolist(), strict=True):
            call = int(mine[at]) if at < len(mine) else -1
            if call >= 0 and end[call] <= until and start[call] <= gaps.start[gap]:
                found[gap] = names[code[call]]
    return found


def _fetched(gpu: Gpu, start: Ints) -> list[int]:
    """The size of the copy to the host that ended where each gap begins, MISSING where none did, or it is unknown."""
    moves = gpu.transfers
    host = np.array([to_host(name) for name in moves.names] or [False], bool)[moves.name]
    order = np.flatnonzero(host)[np.argsort(moves.end[host], kind="stable")]
    place = np.searchsorted(moves.end[order], start)
    known = np.append(moves.end[order], MISSING)[place] == start
    return [int(size) for size in np.where(known, np.append(gpu.bytes[order], MISSING)[place], MISSING)]


def _ops(gpu: Gpu, gaps: Gaps, thread: Ints, others: Beside) -> tuple[list[str | None], list[str | None]]:
    """For each gap the innermost operator or range, and the innermost function of the program, that covers most of
    it."""
    op: list[str | None] = [None] * len(gaps)
    python = list(op)
    for table in (t for t in others.ops if _of(t) == gpu.capture):
        kind, kinds = texts(table, "kind")
        name, names = texts(table, "name")
        start = ints(table, "start_ns")
        end, tid = start + ints(table, "duration_ns"), ints(table, "thread")
        frames = [_frame(text or "") for text in names]
        own = np.array([frame is not None and own_frame((frame,)) is not None for frame in frames], bool)[name]
        is_python = np.array([text == "python" for text in kinds], bool)[kind]
        for shown, chosen, text in ((op, ~is_python, names), (python, is_python & own, frames)):
            spans = Spans(tid[chosen], start[chosen], end[chosen], name[chosen], partial(_text, text))
            for place, found in enumerate(innermost(spans, gaps, thread)):
                shown[place] = found or shown[place]
    return op, python


def _text(texts_: Sequence[str | None], number: int) -> str:
    return texts_[number] or ""


def _frame(name: str) -> str | None:
    """`main (train.py:12)` for `train.py(12): main`, as torch.profiler writes it."""
    place, colon, function = name.partition("): ")
    file, bracket, line = place.rpartition("(")
    return f"{function} ({file}:{line})" if colon and bracket and line.isdigit() else None


# ---------------------------------------------------------------- other tools of the same pass


_MEANINGS: tuple[tuple[str, Callable[[Sequence[str]], str | None]], ...] = (
    ("at", lambda frames: activity(*frames)),
    ("python", own_frame),
)
"""What is taken from a stack."""


def _seen(gpu: Gpu, gaps: Gaps, thread: Ints, others: Beside) -> list[Row]:
    """For each gap that is long enough what samples of stacks and traced system calls say of its thread."""
    found: list[Row] = [{} for _ in range(len(gaps))]
    for part in others.stacks:
        number, stacks = texts(part, "stack")
        for name, meaning in _MEANINGS:
            means = [meaning((stack or "").split(";")) or "" for stack in stacks]
            places = {text: place for place, text in enumerate(dict.fromkeys(means))}
            codes = np.array([places[text] for text in means], np.int64)[number]
            for place, text in _most(gpu, part, gaps, thread, codes, [*places], "tid", others):
                _add(found[place], gpu, part, **{name: text})
    for part in others.syscalls:
        call, names = texts(part, "name")
        about, paths = texts(part, "path")
        both, number = np.unique(call * len(paths) + about, return_inverse=True)
        shown = [f"{names[n // len(paths)]}\0{paths[n % len(paths)] or ''}" for n in both.tolist()]
        for place, text in _most(gpu, part, gaps, thread, number, shown, "thread", others):
            named, _, path = text.partition("\0")
            _add(found[place], gpu, part, syscall=named, path=path or None)
    return found


def _add(row: Row, gpu: Gpu, part: Table, **told: str | None) -> None:
    row.update({name: value for name, value in told.items() if value is not None})
    if _of(part) != gpu.capture:
        row["told_by"] = ", ".join(dict.fromkeys(filter(None, (*row.get("told_by", "").split(", "), _of(part)))))


def _most(
    gpu: Gpu, part: Table, gaps: Gaps, thread: Ints, number: Ints, shown: Sequence[str | None], tid: str, others: Beside
) -> Iterator[tuple[int, str]]:
    """The gaps that a table has something to say of: what took at least half of it in its thread."""
    start = ints(part, "start_ns")
    spans = Spans(ints(part, tid), start, start + ints(part, "duration_ns"), number, partial(_text, shown))
    texts_, ns, _ = busiest(spans, gaps, thread)
    error_ns = 0 if _of(part) == gpu.capture else max(gpu.clock_error_ns or 0, part.clock_error_ns or 0)
    least_ns = 2 * error_ns + others.periods_ns.get(_of(part), 0)
    length = gaps.end - gaps.start
    for place in np.flatnonzero((length > least_ns) & (2 * ns >= length)).tolist():
        if texts_[place]:
            yield place, str(texts_[place])


def with_steps(rows: Sequence[Row], steps: Steps, until: int) -> list[Row]:
    """The rows with the step in which each begins. Where a step's gaps are those of the host, and the DataLoader took
    at least half of them in sum, the longest are taken to be for data: how long it took is known, not when."""
    start = np.array([row["start_ns"] for row in rows], np.int64)
    place = np.searchsorted(steps.start, start, "right") - 1
    place[start >= until] = -1
    done = [{**row, "step": int(steps.number[at]) if at >= 0 else None} for row, at in zip(rows, place, strict=True)]
    late: dict[int, list[Row]] = {}
    for row, at in zip(done, place.tolist(), strict=True):
        if at >= 0 and row["cause"] in ("host", "sync", "data"):
            late.setdefault(at, []).append(row)
    for at, gaps in late.items():
        _wait_for_data(gaps, int(steps.data_ns[at]), steps.capture)
    return done


def _wait_for_data(gaps: Sequence[Row], data_ns: int, told_by: str) -> None:
    """Marks the longest of a step's gaps, up to the time that its DataLoader took."""
    left = data_ns - sum(row["duration_ns"] for row in gaps if row["cause"] == "data")
    rest = [row for row in gaps if row["cause"] != "data"]
    if 2 * left < sum(row["duration_ns"] for row in rest):
        return
    for row in sorted(rest, key=lambda row: -row["duration_ns"]):
        if 2 * left < row["duration_ns"]:
            return
        left -= row["duration_ns"]
        row |= {"cause": "data", "phase": "data", "told_by": row["told_by"] or told_by}


def as_table(table: Table, rows: Sequence[Row]) -> Table:
    """`gpu_gaps` with these rows in the place of its own."""
    names = list(dict.fromkeys((*table.columns, "cause", "phase", "step", "python", "syscall", "path", "told_by")))
    return replace(table, columns={name: [row.get(name) for row in rows] for name in names})
