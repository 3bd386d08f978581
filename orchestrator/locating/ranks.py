"""The ranks of a job side by side: what each step took of each of them, how much of it was waiting for the others, and
which rank came last.

Whoever waits in a collective is not the slow one. Ranks that train together leave a collective together, so their steps
are equally long; what tells them apart is their *own work*: the step without what they waited in collectives. The rank
with the most own work is the one that the others wait for. That needs no common clock. What a rank waited is told by

    the GPU    communication kernels (NCCL, RCCL) with no computing kernel beside them
    torch      spans of collectives (gloo:all_reduce, c10d::..., nccl:...) with no other operator beside them
    stacks     samples of the thread of the steps that lie in a collective

Where nothing tells it, whole steps are compared, and `judged_by` says so: then a slow rank shows only where ranks do
not wait for one another in each step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from orchestrator.formats.events import MISSING, Ints
from orchestrator.locating import frames
from orchestrator.locating.gpu_arrays import Flags, Times, ints, shared_ns, texts
from orchestrator.locating.gpu_window import Gpu, gpus, window
from orchestrator.model import Capture, PassRecord, RankSeen
from orchestrator.tables import Table

Parts: TypeAlias = Mapping[str, Sequence[Table]]

TABLES = ("ranks", "rank_steps")
OWN_WORK, WHOLE_STEPS = "own work", "whole steps"
WHOLE = 0.9
"""A step counts as recorded where so much of it lies in what was recorded."""
_STEP_COLUMNS = ("rank", "pid", "step", "start_ns", "duration_ns", "data_wait_ns", "collective_ns", "told_by")


# ---------------------------------------------------------------- one capture after the other


def located(parts: Parts, captures: Sequence[Capture], passes: Sequence[PassRecord]) -> dict[str, list[Table]]:
    """What the captures of a group know of their ranks: parts of `rank_steps` and `ranks` for `together` to put
    together. Of a program without ranks, nothing."""
    known = {capture.id: capture for capture in captures}
    courses = {record.id: list(_courses(parts, captures, record.id)) for record in passes}
    steps: list[Table] = []
    figures: list[Table] = []
    for gpu in gpus(parts):
        found = _rank_of(known.get(gpu.capture), gpu.pid, gpu.row.get("rank"), courses)
        if found is None:
            continue
        figures.append(_figures(gpu, found, _steps_of(parts, captures, gpu.capture)))
        course = _course(courses, known[gpu.capture], found)
        if course is not None and gpu.clock_error_ns is not None and gpu.communicating.any():
            steps.append(_waited(gpu.capture, course, _recorded(gpu.in_kernels), _exposed(gpu)))
    for name, spans in (("op_spans", _in_operators), ("stack_spans", _in_stacks)):
        for table in (t for t in parts.get(name, ()) if len(t) and t.clock == "epoch"):
            capture = known[str(table.columns["capture"][0])]
            if name == "stack_spans" and not capture.options.get("native"):
                continue  # Python's frames alone tell no wait: backward waits for the others, too
            for course in courses.get(capture.pass_id, ()):
                waits = spans(table, course)
                steps += [_waited(capture.id, course, *waits)] if waits is not None else []
    made = {"rank_steps": steps, "ranks": figures}
    return {name: tables for name, tables in made.items() if tables}


@dataclass(frozen=True)
class Course:
    """The steps of one rank in one pass, in their order. MISSING: unknown."""

    rank: int
    pid: int
    step: Ints
    steady: Flags
    start: Ints
    duration: Ints
    data: Ints
    cpu: Ints

    @property
    def timed(self) -> Flags:
        known: Flags = (self.start != MISSING) & (self.duration != MISSING)
        return known


def _courses(parts: Parts, captures: Sequence[Capture], pass_id: str) -> Iterator[Course]:
    """Of each rank; nothing where the steps' process has none."""
    ours = {capture.id for capture in captures if capture.pass_id == pass_id} | {pass_id}
    for table in parts.get("steps", ()):
        if len(table) and table.columns["capture"][0] in ours:
            ranks, pids = ints(table, "rank"), ints(table, "pid")
            for rank in np.unique(ranks[ranks != MISSING]).tolist():
                rows = np.flatnonzero(ranks == rank)
                rows = rows[pids[rows] == pids[rows[0]]]
                yield _course_of(table, rank, rows)


def _course_of(table: Table, rank: int, rows: Ints) -> Course:
    def column(name: str) -> Ints:
        found: Ints = ints(table, name)[rows]
        return found[order]

    order = np.argsort(ints(table, "step")[rows], kind="stable")
    warmup = table.columns.get("warmup", [None] * len(table))
    warm = np.array([MISSING if one is None else int(one) for one in warmup], np.int64)[rows][order]
    step = column("step")
    # where nobody can tell the warm-up, all but the first step, as everywhere (judging.py)
    steady = np.where(warm == MISSING, step != step.min(), warm == 0)
    timing = (column(name) for name in ("start_ns", "duration_ns", "data_wait_ns", "cpu_ns"))
    return Course(rank, int(column("pid")[0]), step, steady, *timing)


def _rank_of(
    capture: Capture | None, pid: int | None, told: Any, courses: Mapping[str, Sequence[Course]]
) -> int | None:
    """The rank of a process: as its row or capture has it, else by its steps."""
    if capture is None:
        return None
    for rank in (told, capture.rank):
        if rank is not None:
            return int(rank)
    by_pid = {one.pid: one.rank for one in courses.get(capture.pass_id, ())}
    return ((capture.run.rank_by_pid() if capture.run else {}) | by_pid).get(pid or 0)


def _course(courses: Mapping[str, Sequence[Course]], capture: Capture, rank: int) -> Course | None:
    return next((one for one in courses.get(capture.pass_id, ()) if one.rank == rank), None)


def _steps_of(parts: Parts, captures: Sequence[Capture], capture: str) -> list[Table]:
    """The tables of steps of its pass."""
    passes = {one.id: one.pass_id for one in captures}
    return [t for t in parts.get("steps", ()) if len(t) and passes.get(str(t.columns["capture"][0])) == passes[capture]]


def _figures(gpu: Gpu, rank: int, steps: Sequence[Table]) -> Table:
    """The GPU's part of the table `ranks`: shares of its window."""
    chosen = window(gpu, steps)
    columns: dict[str, Any] = {"capture": [gpu.capture], "rank": [rank], "pid": [gpu.pid], "gpu": [gpu.row.get("gpu")]}
    if chosen is not None and chosen.times.ns:
        times, some = chosen.times, gpu.communicating
        apart = Times.union(gpu.kernels.start[some], gpu.kernels.end[some]).within(times)
        shares = {"gpu_busy_pct": gpu.busy.within(times).ns, "comm_pct": apart.ns}
        shares["exposed_comm_pct"] = _without(apart, _computing(gpu).within(times)).ns
        columns |= {name: [round(100 * ns / times.ns, 3)] for name, ns in shares.items()}
    return Table("ranks", columns)


def _computing(gpu: Gpu) -> Times:
    some = ~gpu.communicating
    return Times.union(gpu.kernels.start[some], gpu.kernels.end[some])


def _exposed(gpu: Gpu) -> Times:
    some = gpu.communicating
    return _without(Times.union(gpu.kernels.start[some], gpu.kernels.end[some]), _computing(gpu))


def _recorded(times: Times) -> Times:
    """From the first to the last of them."""
    return Times(times.start[:1], times.end[-1:])


def _without(times: Times, others: Times) -> Times:
    """The times without those of the others."""
    if not len(times) or not len(others):
        return times
    edges = np.concatenate((times.start, times.end, others.start, others.end))
    change = np.concatenate(
        (np.full(len(times), 1), np.full(len(times), -1), np.full(len(others), -2), np.full(len(others), 2))
    )
    order = np.argsort(edges, kind="stable")
    edges, level = edges[order], np.cumsum(change[order])
    inside = np.flatnonzero((level[:-1] == 1) & (edges[1:] > edges[:-1]))
    return Times.union(edges[inside], edges[inside + 1])


_IN_COLLECTIVE = ("nccl:", "gloo:", "mpi:", "ucc:", "xccl:", "c10d::")


def _in_operators(table: Table, course: Course) -> tuple[Times, Times] | None:
    """What was recorded of a process, and when it was in a collective with no other operator beside it. Python's
    functions and ranges (of the profiler, of DistributedDataParallel) enclose both, and tell neither."""
    mine = ints(table, "pid") == course.pid
    kind, kinds = texts(table, "kind")
    name, names = texts(table, "name")
    collective = np.array([(text or "").startswith(_IN_COLLECTIVE) for text in names], bool)[name] & mine
    if not collective.any():
        return None
    is_op = np.array([text == "op" for text in kinds], bool)[kind]
    start = ints(table, "start_ns")
    end = start + ints(table, "duration_ns")
    others = mine & is_op & ~collective
    waits = Times.union(start[collective], end[collective])
    work = Times.union(start[others], end[others])
    whole = Times(start[mine].min(keepdims=True), end[mine].max(keepdims=True))
    return whole, _without(waits, work)


def _in_stacks(table: Table, course: Course) -> tuple[Times, Times] | None:
    """The same by samples of its main thread, with native frames."""
    pid, tid = ints(table, "pid"), ints(table, "tid")
    mine = (pid == course.pid) & (tid == course.pid)
    if not mine.any():
        return None
    stack, stacks = texts(table, "stack")
    waits = (
        np.array([frames.read((text or "").split(";")).state == "collective" for text in stacks], bool)[stack] & mine
    )
    start = ints(table, "start_ns")
    end = start + ints(table, "duration_ns")
    steps = Times.union(course.start[course.timed], (course.start + course.duration)[course.timed])
    if not _overlap(start[waits], end[waits], steps).any():  # start-up has collectives, too
        return None
    return Times(start[mine].min(keepdims=True), end[mine].max(keepdims=True)), Times.union(start[waits], end[waits])


def _waited(capture: str, course: Course, recorded: Times, waits: Times) -> Table:
    """The steps of a rank that were recorded, with what each waited in collectives."""
    timed = course.timed
    start, length = course.start, np.where(timed, course.duration, 0)
    seen = shared_ns(start, start + length, recorded)
    chosen = np.flatnonzero(timed & (seen >= WHOLE * length) & (length > 0))
    spent = _overlap(start[chosen], start[chosen] + length[chosen], waits)
    count = len(chosen)
    columns = {
        "capture": [capture] * count, "rank": [course.rank] * count, "pid": [course.pid] * count,
        "step": course.step[chosen].tolist(), "collective_ns": spent.tolist(), "told_by": [capture] * count,
    }  # fmt: skip
    return Table("rank_steps", columns)


def _overlap(start: Ints, end: Ints, times: Times) -> Ints:
    """How much of each span lies in a set of times of any number of pieces."""
    if not len(times):
        return np.zeros(len(start), np.int64)
    upto = np.concatenate(([0], np.cumsum(times.end - times.start)))

    def before(moments: Ints) -> Ints:
        place = np.searchsorted(times.start, moments, "right") - 1
        inside = np.clip(
            moments - times.start[np.maximum(place, 0)], 0, (times.end - times.start)[np.maximum(place, 0)]
        )
        found: Ints = np.where(place < 0, 0, upto[np.maximum(place, 0)] + inside)
        return found

    return before(end) - before(start)


# ---------------------------------------------------------------- all together


_STEPS_ERROR_NS = 100_000
"""Where the table of steps does not tell."""


@dataclass
class _Rank:
    """What is known of one rank in one pass."""

    rank: int
    course: Course | None = None
    seen: RankSeen | None = None
    host: str | None = None
    waits: dict[int, int] = field(default_factory=dict)
    """By step."""
    told_by: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    missing: bool = False
    own: dict[int, int] = field(default_factory=dict)
    """By steady step: own work, or the whole step."""


def together(parts: Parts, captures: Sequence[Capture], passes: Sequence[PassRecord]) -> dict[str, list[Table]]:
    """The tables `ranks` and `rank_steps`; where there is one rank, neither. Imported files are as one pass."""
    made: dict[str, list[Table]] = {"ranks": [], "rank_steps": []}
    by_pass = dict.fromkeys([record.id for record in passes] + [capture.pass_id for capture in captures])
    records = {record.id: record for record in passes}
    error_ns = max((table.clock_error_ns or 0 for table in parts.get("steps", ())), default=0) or _STEPS_ERROR_NS
    for pass_id in by_pass:
        ours = [capture for capture in captures if capture.pass_id == pass_id]
        found = _ranks(parts, ours, captures, pass_id, records.get(pass_id))
        if len(found) > 1:
            rank_rows, step_rows = _rows(found)
            first = ours[0].id if ours else pass_id
            made["ranks"].append(Table("ranks", {"capture": [first] * len(found), **rank_rows}))
            if step_rows["rank"]:
                steps = {"capture": [first] * len(step_rows["rank"]), **step_rows}
                made["rank_steps"].append(Table("rank_steps", steps, clock="epoch", clock_error_ns=error_ns))
    return {name: tables for name, tables in made.items() if tables}


def _ranks(
    parts: Parts, ours: Sequence[Capture], captures: Sequence[Capture], pass_id: str, record: PassRecord | None
) -> list[_Rank]:
    """All ranks of a pass, also those that were expected and not seen."""
    found: dict[int, _Rank] = {}

    def of(rank: int) -> _Rank:
        return found.setdefault(rank, _Rank(rank))

    for course in _courses(parts, captures, pass_id):
        of(course.rank).course = course
    for seen in _seen(record):  # of a job that was started again the life that made the steps, else the last
        one = of(seen.rank)
        if one.seen is None or one.course is None or one.course.pid not in (one.seen.pid, *one.seen.started):
            one.seen, one.host = seen, seen.host
    named = {capture.id: capture for capture in ours}
    for table in parts.get("ranks", ()):
        row = next(iter(table.rows()))
        if row["capture"] in named:
            one = of(row["rank"])
            one.figures |= {k: v for k, v in row.items() if k not in ("capture", "rank") and v is not None}
            one.host = one.host or named[row["capture"]].host
    for table in parts.get("rank_steps", ()):
        if len(table) and table.columns["capture"][0] in named:
            one = of(table.columns["rank"][0])
            if not one.waits:  # the GPU tells more than operators, and these more than samples: it comes first
                one.waits = dict(zip(table.columns["step"], table.columns["collective_ns"], strict=True))
                one.told_by = table.columns["told_by"][0]
    for rank in sorted(_expected(record) - set(found)):
        of(rank).missing = True
    return [found[rank] for rank in sorted(found)]


def _seen(record: PassRecord | None) -> Iterator[RankSeen]:
    runs = [] if record is None else [record.run, *(task.run for task in record.tasks)]
    for run in runs:
        yield from run.ranks if run else ()


def _expected(record: PassRecord | None) -> set[int]:
    """The ranks that there were to be on the hosts that were looked at."""
    if record is None:
        return set()
    sizes = [seen.world_size or 0 for seen in _seen(record)] if record.tasks else []
    told = {rank for task in record.tasks for rank in task.ranks}
    return {*range(max(sizes, default=0)), *told, *(record.run.missing_ranks() if record.run else ())}


def _rows(found: Sequence[_Rank]) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
    """The columns of both tables."""
    judged_by = OWN_WORK if _knows_waits(found) else WHOLE_STEPS
    common = _common(found, judged_by)
    middle = {step: float(np.median([one.own[step] for one in found if step in one.own])) for step in common}
    slowest = {step: _slowest(found, step) for step in common}
    steps: dict[str, list[Any]] = defaultdict(list)
    for one in found:
        for name, column in _step_rows(one, middle, slowest):
            steps[name] += column
    names = (*_STEP_COLUMNS, "own_ns", "behind_ns", "is_slowest")
    rows = [_row(one, common, middle, slowest, judged_by) for one in found]
    ranks = {name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)}
    return ranks, {name: steps[name] for name in names}


def _knows_waits(found: Sequence[_Rank]) -> bool:
    """Whether of all ranks that made steps it is known what they waited: one of whom it is not can't be compared."""
    stepping = [one for one in found if one.course is not None]
    return len(stepping) > 1 and all(one.waits for one in stepping)


def _common(found: Sequence[_Rank], judged_by: str) -> list[int]:
    """The steady steps that all ranks with steps have, and their own work in them. Where none was recorded that is
    steady (a window at the program's beginning), all that were recorded, but for the first step: they are compared with
    one another only."""
    shared = _shared(found, judged_by, steady=True)
    return shared or (_shared(found, judged_by, steady=False) if judged_by == OWN_WORK else [])


def _shared(found: Sequence[_Rank], judged_by: str, *, steady: bool) -> list[int]:
    known = []
    for one in found:
        course = one.course
        if course is None:
            continue
        chosen = course.timed & (course.steady if steady else course.step != course.step.min())
        took = zip(course.step[chosen].tolist(), course.duration[chosen].tolist(), strict=True)
        if judged_by == WHOLE_STEPS:
            one.own = dict(took)
        else:
            one.own = {step: max(0, ns - one.waits[step]) for step, ns in took if step in one.waits}
        known.append(set(one.own))
    return sorted(set.intersection(*known)) if len(known) > 1 else []


def _slowest(found: Sequence[_Rank], step: int) -> int | None:
    """The rank with the most own work in a step; None where several have equally much."""
    most = max(one.own[step] for one in found if step in one.own)
    last = [one.rank for one in found if one.own.get(step) == most]
    return last[0] if len(last) == 1 else None


def _step_rows(
    one: _Rank, middle: Mapping[int, float], slowest: Mapping[int, int | None]
) -> Iterator[tuple[str, list[Any]]]:
    course = one.course
    if course is None:
        return
    steps = course.step.tolist()
    yield "rank", [one.rank] * len(steps)
    yield "pid", [course.pid] * len(steps)
    yield "step", steps
    for name, column in (("start_ns", course.start), ("duration_ns", course.duration), ("data_wait_ns", course.data)):
        yield name, [None if value == MISSING else value for value in column.tolist()]
    yield "collective_ns", [one.waits.get(step) for step in steps]
    yield "told_by", [one.told_by if step in one.waits else None for step in steps]
    yield "own_ns", [one.own.get(step) for step in steps]
    yield "behind_ns", [round(one.own[step] - middle[step]) if step in middle else None for step in steps]
    yield "is_slowest", [slowest[step] == one.rank if step in slowest else None for step in steps]


def _row(
    one: _Rank, common: Sequence[int], middle: Mapping[int, float], slowest: Mapping[int, int | None], judged_by: str
) -> dict[str, Any]:
    seen, course = one.seen, one.course
    end = seen.exit if seen else None
    row: dict[str, Any] = {
        "host": one.host, "rank": one.rank, "local_rank": seen.local_rank if seen else None,
        "pid": course.pid if course else seen.pid if seen else one.figures.get("pid"),
        "gpu": one.figures.get("gpu"), "steps": len(course.step) if course else None,
        **(_of_steps(one, course) if course else {}),
        **{name: one.figures.get(name) for name in ("gpu_busy_pct", "comm_pct", "exposed_comm_pct")},
        "common_steps": len(common) if course and common else None,
        "slowest_steps": sum(slowest[step] == one.rank for step in common) if course and common else None,
        "own_median_ns": float(np.median([one.own[s] for s in common])) if course and common else None,
        "behind_ns": float(np.mean([one.own[s] - middle[s] for s in common])) if course and common else None,
        "judged_by": judged_by if course and common else None, "told_by": one.told_by,
        "exit_code": end.code if end else None, "exit_signal": end.signal if end else None, "missing": one.missing,
    }  # fmt: skip
    return row


def _of_steps(one: _Rank, course: Course) -> dict[str, Any]:
    """What the steady steps of a rank took, and which part of them went where."""
    chosen = course.steady & course.timed
    took = course.duration[chosen]
    if not len(took):
        return {}
    every = dict(zip(course.step[course.timed].tolist(), course.duration[course.timed].tolist(), strict=True))
    recorded = [step for step in one.own if step in one.waits] or [step for step in one.waits if step in every]
    known = [(step, every[step]) for step in recorded]
    whole = sum(ns for _, ns in known)
    return {
        "step_median_ns": float(np.median(took)),
        "step_p95_ns": float(np.percentile(took, 95)),
        "data_wait_pct": _share(course.data[chosen], took),
        "cpu_pct": _share(course.cpu[chosen], took),
        "collective_pct": round(100 * sum(one.waits[step] for step, _ in known) / whole, 3) if whole else None,
    }


def _share(part: Ints, whole: Ints) -> float | None:
    """Of the steps of which both are known."""
    known = part != MISSING
    return round(100 * float(part[known].sum()) / float(whole[known].sum()), 3) if known.any() else None
