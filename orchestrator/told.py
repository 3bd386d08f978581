"""What the target's Python processes have told of one pass: their steps as a table, how they were started, notes."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import launching, stats, steps
from orchestrator.errors import ParseError
from orchestrator.formats import injected
from orchestrator.model import PassRecord, SeenPython
from orchestrator.tables import Table

_SHUT_OUT = {"I": "-I (isolated)", "E": "-E (its environment is ignored)", "S": "-S (no site)"}
_TAKES_VALUE, _LONG_WITH_VALUE = "WX", "--check-hash-based-pycs"
"""The options of Python with a value: the rest of the word or, where there is none, the next one."""


@dataclass(frozen=True)
class Told:
    """What one pass has told. `started`: how each process that matters was started, for the environment steps."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    started: tuple[Mapping[str, Any], ...] = ()
    step_s: float | None = None
    """Mean of the steady steps of the first process that made any (rank 0, where there are ranks)."""
    quick_step_s: float | None = None
    """Median of its quickest steady steps (`stats.quickest`); None where there are too few."""
    count: int | None = None
    warmup: int | None = None
    """How many of its steps came before the steady ones; None where that can't be told."""
    usual_step_s: float | None = None
    """Median of its steady steps: of those that a tool looked at closely, where there are any. It does not follow the
    one step in which a profiler starts or writes its file."""
    course: tuple[str, ...] = ()
    """Those of the notes that speak of its steps."""
    ranks: tuple[int, ...] = ()
    """Of the processes that made steps."""
    of_tasks: Mapping[str, Told] = field(default_factory=dict)
    """The same of each task of a job on several hosts, by its place."""


def of_pass(record: PassRecord, root: Path) -> Told:
    """Reads what the processes of this pass have left in the report folder `root`."""
    raw = root / "raw"
    if not record.tasks:
        return _of_run(record, raw / f"{record.id}-target" / "python")
    every: dict[str, Told] = {}
    for task in record.tasks:
        if task.place:
            folder = raw / f"{record.id}-target@{task.place}" / "python"
            own = _of_run(replace(record, run=task.run, tasks=()), folder)
            every[task.place] = replace(own, tables=tuple(table.led_by(task) for table in own.tables))
    return _together(every)


def _together(every: Mapping[str, Told]) -> Told:
    """What the tasks have told, as one: of the steps the first that made any speaks."""
    stepping = [one for one in every.values() if one.count is not None]
    first = min(stepping, key=lambda one: one.ranks or (0,), default=Told())
    notes = [note for one in every.values() for note in one.notes if note not in one.course]
    course = [note for note in first.course if note not in _ranks(first.ranks)]
    ranks = sorted(rank for one in stepping for rank in one.ranks)
    return replace(
        first,
        tables=tuple(table for one in every.values() for table in one.tables),
        notes=tuple(dict.fromkeys((*notes, *course, *_ranks(ranks)))),
        ranks=tuple(ranks),
        started=tuple(start for one in every.values() for start in one.started),
        of_tasks=every,
    )


def _of_run(record: PassRecord, folder: Path) -> Told:
    content = injected.read(folder)
    chosen = (record.run.ranks_chosen if record.run else None) or ()
    stepping = sorted(content.stepping(), key=lambda one: (bool(chosen) and one.rank not in chosen, one.rank or 0))
    tables, notes, course = [], [*content.notes, *_not_in_force(record, content.processes)], []
    for process in stepping:
        table, said = _steps_table(process)
        tables.append(table)
        course += said if process is stepping[0] else []
    ranks = [process.rank for process in stepping if process.rank is not None]
    course += _ranks(ranks)
    ranges = _ranges_table(content.processes, notes)
    started = tuple(_started(record, content.processes, stepping))
    first = tables[0] if tables else None
    steady = [d for d, n in _steady(first)] if first else []
    return Told(
        tables=(*tables, *([ranges] if ranges else [])),
        notes=tuple(dict.fromkeys((*notes, *course))),
        started=started,
        step_s=statistics.fmean(steady) / 1e9 if steady else None,
        quick_step_s=statistics.median(stats.quickest(steady)) / 1e9 if len(steady) >= stats.QUICK_FROM else None,
        count=len(first) if first else None,
        warmup=_count_of(first.columns["warmup"]) if first else None,
        usual_step_s=_usual_s(first) if first else None,
        course=tuple(course),
        ranks=tuple(ranks),
    )


# ---------------------------------------------------------------- steps


def _steps_table(process: injected.Signed) -> tuple[Table, list[str]]:
    """The table `steps` of one process, with what can be said of its course."""
    told = process.steps
    if told is None:
        raise AssertionError("only processes that made steps have a table")
    usual = [None if profiled else d for d, profiled in zip(told.duration_ns, told.profiled, strict=True)]
    warm = _warmup(usual, told.profiled)
    first = warm if warm is not None else len(usual)
    out = steps.stalls(usual, first)
    middle = {name: _median(column[first:]) for name, column in told.phases.items()}
    middle_ns = _median(usual[first:])
    causes: dict[int, str] = {}
    for index in out.steps:
        spent = {name: column[index] for name, column in told.phases.items()}
        causes[index] = steps.cause((usual[index] or 0) - (middle_ns or 0), spent, middle)
    count = len(told)
    columns: dict[str, Sequence[Any]] = {
        **({"rank": [process.rank] * count} if process.rank is not None else {}),
        "pid": [process.pid] * count,
        "tid": [process.stepping_tid] * count,
        "kind": [told.kind] * count,
        "step": list(range(count)),
        "start_ns": told.start_ns,
        "duration_ns": told.duration_ns,
        **{f"{'data_wait' if name == 'data' else name}_ns": column for name, column in told.phases.items()},
        "cpu_ns": told.cpu_ns,
        "gpu_ns": told.gpu_ns,
        "warmup": [None if warm is None else index < warm for index in range(count)],
        "profiled": told.profiled,
        "stall": [causes.get(index) for index in range(count)],
        "loss": told.loss,
        "digest": told.digest,
    }
    return Table("steps", columns, clock="epoch", clock_error_ns=100_000), _course(
        told.kind, told.profiled, warm, out, causes
    )


def _ranks(ranks: Sequence[int]) -> list[str]:
    own = sorted(set(ranks))
    said = f"{len(own)} ranks made steps: {', '.join(map(str, own))}; what is said of the steps is said of rank "
    return [f"{said}{ranks[0]}"] if len(own) > 1 else []


def _warmup(usual: Sequence[float | None], profiled: Sequence[bool]) -> int | None:
    """The number of the first steady step, looked for among those that no tool looked at closely."""
    places = [number for number, seen in enumerate(profiled) if not seen]
    warm = steps.warmup([usual[number] for number in places])
    return None if warm is None else places[warm]


def _course(
    kind: str, profiled: Sequence[bool], warm: int | None, out: steps.Stalls, causes: Mapping[int, str]
) -> list[str]:
    what = f"{len(profiled)} {'training' if kind == 'train' else 'inference'} steps"
    if all(profiled):
        return [f"{what}, each of them looked at closely: no average is made of them"]
    if warm is None:
        return [f"{what}, too few or too uneven to tell a warm-up from the rest: no average is made of them"]
    notes = [f"{what}, the first {warm} of them warm-up" if warm else f"{what}, steady from the first"]
    if out.steps:
        words = sorted(set(causes.values()))
        every = f"every {out.period} steps" if out.period else "at no regular distance"
        notes.append(
            f"{len(out.steps)} steps took {steps.STALL_FROM:g} times the median or more ({every}; cause: "
            f"{', '.join(words)}), {out.extra_ns / 1e9:.3f} s more than usual in sum"
        )
    return notes


def _steady(table: Table) -> Iterator[tuple[int, int]]:
    """(duration in ns, number) of the steps that averages are made of."""
    columns = table.columns
    for number, (duration, warm, profiled) in enumerate(
        zip(columns["duration_ns"], columns["warmup"], columns["profiled"], strict=True)
    ):
        if duration is not None and warm is False and not profiled:
            yield duration, number


def _usual_s(table: Table) -> float | None:
    columns = table.columns
    marks = list(zip(columns["duration_ns"], columns["warmup"], columns["profiled"], strict=True))
    seen = _median(duration for duration, _, profiled in marks if profiled)
    usual = seen if seen is not None else _median(duration for duration, warm, _ in marks if warm is False)
    return None if usual is None else usual / 1e9


def _count_of(marks: Sequence[bool | None]) -> int | None:
    """How many are marked; None where it is unknown of any."""
    known = [mark for mark in marks if mark is not None]
    return sum(known) if len(known) == len(marks) else None


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _ranges_table(processes: Iterable[injected.Signed], notes: list[str]) -> Table | None:
    rows = []
    for process in processes:
        try:
            found = injected.read_ranges(process)
        except ParseError as error:
            notes.append(str(error))
            continue
        rows += [(process.pid, r.thread, "profrun", r.name, r.start_ns, r.duration_ns, r.gpu_ns) for r in found]
    names = ("pid", "thread", "domain", "name", "start_ns", "duration_ns", "gpu_ns")
    return Table.of("ranges", rows, names, clock="epoch", clock_error_ns=100_000) if rows else None


# ---------------------------------------------------------------- how the processes were started


def why_shut_out(argv: Sequence[str]) -> str | None:
    """The option by which a Python keeps our part out; None when its command line has none."""
    words = iter(argv[1:])
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            return None
        if word.startswith("--"):
            _ = next(words, None) if word == _LONG_WITH_VALUE else None
            continue
        for place, letter in enumerate(word[1:], 2):
            if letter in _SHUT_OUT:
                return f"python was started with {_SHUT_OUT[letter]}"
            if letter in "cm":  # what comes after it is the program's
                return None
            if letter in _TAKES_VALUE:
                _ = next(words, None) if place == len(word) else None
                break
    return None


def _why_not(seen: SeenPython, command: Sequence[str]) -> str:
    hurdle = next(iter(launching.hurdles(command)), None)
    if seen.injected is False and hurdle:
        return f"`{hurdle.name}`: {hurdle.why}; {hurdle.way}"
    if seen.injected is False:
        by = launching.wrapper_of(command)
        starter = f"what started it (`{by}`, it seems)" if by else "what started it"
        return f"{starter} has dropped profrun's variables from its environment"
    if seen.in_reach is False:
        return (
            "profrun's own folder and the pass's are not to be seen where it runs, as in a container: show them there "
            "under the same paths, or run profrun inside"
        )
    return why_shut_out(seen.argv) or "it never signed in: no CPython, or it ended before it could"


def _command(record: PassRecord) -> tuple[str, ...]:
    return record.run.argv if record.run else ()


def _not_in_force(record: PassRecord, processes: Sequence[injected.Signed]) -> list[str]:
    """The Python processes that were seen from outside and in which nothing of ours was at work."""
    seen = record.run.pythons if record.run else ()
    silent = [python for python in seen if python.pid not in {process.pid for process in processes}]
    reasons: dict[str, list[int]] = {}
    for python in silent:
        reasons.setdefault(_why_not(python, _command(record)), []).append(python.pid)
    return [
        f"profrun's part is not in force in pid {', '.join(map(str, pids))}: {why} (no steps, no seeds there)"
        for why, pids in reasons.items()
    ]


def _started(
    record: PassRecord, processes: Sequence[injected.Signed], stepping: Sequence[injected.Signed]
) -> Iterator[Mapping[str, Any]]:
    """The processes that make the program: those with steps, else those with torch, else the first; and those into
    which our part was not let."""
    chosen = stepping or [p for p in processes if p.first("torch")] or list(processes[:1])
    pythons = {python.pid: python for python in (record.run.pythons if record.run else ())}
    for process in chosen:
        end = process.first("end") or {}
        yield {
            "pid": process.pid,
            "argv": process.start.get("program"),
            "environ": process.start.get("environ"),
            "seeds": end.get("seeds"),
            "ended": bool(end),
            "in_force": True,
            "why_not": None,
            **_attributes(pythons.get(process.pid)),
        }
    signed = {process.pid for process in processes}
    for python in pythons.values():
        if python.pid not in signed:
            environ = python.environ
            yield {
                "pid": python.pid,
                "argv": list(python.argv),
                "environ": environ,
                "seeds": None,
                "ended": False,
                "in_force": False,
                "why_not": _why_not(python, _command(record)),
                **_attributes(python),
            }


def _attributes(seen: SeenPython | None) -> dict[str, Any]:
    """What the kernel said of a process that was seen from outside."""
    return {name: getattr(seen, name, None) for name in ("cpus", "nice", "personality")}
