"""Captures -> canonical tables and metrics. Reads only raw/; what can't be read becomes the capture's status."""

from __future__ import annotations

import math
import re
import statistics
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import imported, stats, told, trust
from orchestrator.collectors.base import Parsed
from orchestrator.env_steps.base import Step
from orchestrator.model import IN_FORCE, Capture, Metric, PassRecord, StepRecord
from orchestrator.reading import Reader, updated
from orchestrator.tables import SCHEMAS, Table

if TYPE_CHECKING:
    import pandas

    from orchestrator.plan import Plan
    from orchestrator.tables import Piece, Stored

_LOG_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class Normalised:
    """The captures with their final status, the passes with their slowdown, the environment steps with what was really
    in force, the parts of each table, the metrics."""

    captures: tuple[Capture, ...]
    passes: tuple[PassRecord, ...]
    parts: Mapping[str, list[Piece]] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    environment: tuple[StepRecord, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    """What imported files say of the machine that they were made on."""


def normalise(
    captures: Sequence[Capture],
    passes: Sequence[PassRecord],
    plan: Plan,
    root: Path,
    log: Callable[[str], None],
    environment: Sequence[StepRecord] = (),
    store: Callable[[Table], Stored] | None = None,
) -> Normalised:
    """Reads every capture. An exception of a parser is that capture's `unreadable`, with its traceback in the log.
    store: where long tables may be put aside."""
    inner = {record.id: told.of_pass(record, root) for record in passes}
    timed = [
        _with_notes(record, (*inner[record.id].notes, *trust.words(record)))
        for record in trust.compared(passes, {id_: one.usual_step_s for id_, one in inner.items()})
    ]
    own = _told(captures, passes, inner)
    reading = Reader(captures, passes, own, store).read(log)
    names = dict.fromkeys((*own, *reading.parts))
    parts: dict[str, list[Piece]] = {name: [*own.get(name, ()), *reading.parts.get(name, ())] for name in names}
    seen = {id_: one for id_, one in reading.found.items() if isinstance(one, imported.Seen)}
    metrics: dict[str, Metric] = {}
    for id_, one in reading.found.items():
        if isinstance(one, Parsed) and id_ not in seen:
            metrics.update(one.metrics)
    done = [_judged(updated(c, reading.found[c.id]), timed, passes, plan) for c in captures]
    metrics.update(_of_files(seen, several=sum(capture.imported for capture in captures) > 1))
    metrics.update(_timing(timed))
    metrics.update(_of_steps(timed, inner))
    printed, no_numbers = _from_output(plan, timed, root)
    metrics.update(printed)
    timed = [_with_notes(record, no_numbers.get(record.id, ())) for record in timed]
    as_seen = _as_seen(environment, plan, timed, inner, _Watch(_watched(parts, captures, passes), log))
    return Normalised(tuple(done), tuple(timed), parts, metrics, as_seen, _elsewhere(seen))


def _told(
    captures: Sequence[Capture], passes: Sequence[PassRecord], inner: Mapping[str, told.Told]
) -> dict[str, list[Table]]:
    """The tables that the target's processes have told of; they go by the first capture of their pass."""
    parts: dict[str, list[Table]] = {}
    for record in passes:
        own = [capture.id for capture in captures if capture.pass_id == record.id]
        for place, one in (inner[record.id].of_tasks or {"": inner[record.id]}).items():
            named = (id_ for id_ in own if not place or id_.endswith(f"@{place}"))
            first = next(named, f"{record.id}@{place}" if place else record.id)
            for table in one.tables:
                parts.setdefault(table.name, []).append(table.with_capture(first))
    return parts


def _watched(
    parts: Mapping[str, Sequence[Piece]], captures: Sequence[Capture], passes: Sequence[PassRecord]
) -> list[Table]:
    """What the monitor has read in the passes that count."""
    counted = {record.id for record in passes if record.role != "warmup"}
    ours = {capture.id for capture in captures if capture.pass_id in counted}
    samples = (table for table in parts.get("samples", ()) if isinstance(table, Table))
    return [table for table in samples if ours & {*table.columns["capture"][:1]}]


def _of_files(seen: Mapping[str, imported.Seen], *, several: bool) -> dict[str, Metric]:
    """The figures of imported files; where there are several, each is called by its capture, too."""
    found = ((id_, name, metric) for id_, one in seen.items() for name, metric in one.metrics.items())
    return {f"{name}.{id_}" if several else name: metric for id_, name, metric in found}


def _elsewhere(seen: Mapping[str, imported.Seen]) -> dict[str, Any]:
    """The GPUs that imported files name, each model of a file once with its number."""
    found = [
        {"name": name, "count": one.gpus.count(name), "capture": id_}
        for id_, one in seen.items()
        for name in dict.fromkeys(one.gpus)
    ]
    return {"gpus": found} if found else {}


def _with_notes(record: PassRecord, notes: Sequence[str]) -> PassRecord:
    return replace(record, notes=(*record.notes, *(note for note in notes if note not in record.notes)))


def _of_steps(passes: Sequence[PassRecord], inner: Mapping[str, told.Told]) -> dict[str, Metric]:
    """The steady steps of the bare runs: one mean a run, so that the interval is that of runs, not of steps that lean
    on one another."""
    bare = [(p.id, inner[p.id]) for p in passes if p.role == "bare"]
    means = [(id_, t.step_s) for id_, t in bare if t.step_s is not None]
    quickest = [(id_, t.quick_step_s) for id_, t in bare if t.quick_step_s is not None]
    counts = [(id_, float(t.count)) for id_, t in bare if t.count]
    warmups = [(id_, float(t.warmup)) for id_, t in bare if t.warmup is not None]
    metrics = {}
    if means:
        metrics["step_s"] = stats.describe([s for _, s in means], "s", [id_ for id_, _ in means])
    if quickest:
        metrics["quick_step_s"] = stats.describe([s for _, s in quickest], "s", [id_ for id_, _ in quickest])
    if counts:
        metrics["steps"] = stats.describe([n for _, n in counts], "steps", [id_ for id_, _ in counts])
    if warmups:
        metrics["warmup_steps"] = stats.describe([n for _, n in warmups], "steps", [id_ for id_, _ in warmups])
    return metrics


def _as_seen(
    environment: Sequence[StepRecord],
    plan: Plan,
    passes: Sequence[PassRecord],
    inner: Mapping[str, told.Told],
    watch: _Watch,
) -> tuple[StepRecord, ...]:
    """The steps with what the target's processes really started with, in the first run that tells, and with what the
    monitor saw of them during the passes."""
    started = next((inner[p.id].started for p in passes if inner[p.id].started), ())
    done = []
    for step, record in _with_steps(plan, environment):
        if step is not None:
            record = _started_with(step, record, started) if started and record.status in IN_FORCE else record
            # the monitor of one host says nothing of another
            record = record if record.host else watch.over(step, record)
        done.append(record)
    return tuple(done)


def _with_steps(plan: Plan, records: Sequence[StepRecord]) -> Iterator[tuple[Step | None, StepRecord]]:
    """Each record with its step of the plan. A report that was added to has records of several runs, one after the
    other, and the plan of one of them."""
    turns = {use: cycle([step for step in plan.environment if step.use == use]) for use in {r.use for r in records}}
    return ((next(turns[record.use], None), record) for record in records)


def _started_with(step: Step, record: StepRecord, started: Sequence[Mapping[str, Any]]) -> StepRecord:
    answers = [step.seen(one) for one in started]
    reasons = list(dict.fromkeys(reason for _, reason in answers if reason))
    return replace(
        record,
        verified=answers[0][0] or record.verified,
        status="drifted" if reasons else record.status,
        reason="; ".join(reasons) or record.reason,
    )


@dataclass(frozen=True)
class _Watch:
    """What the monitor saw during the passes, for the steps that look at it."""

    samples: Sequence[Table]
    log: Callable[[str], None]

    def over(self, step: Step, record: StepRecord) -> StepRecord:
        """What a step finds that was not in force is kept, and not judged. Where nothing was sampled, it may say what
        that leaves open."""
        if not record.before or type(step).during is Step.during:
            return record
        try:
            seen, judged = step.during(record.before, self._frame)
        except Exception:  # a fault in one step, of another package perhaps, must not cost the report
            self.log(f"{step.use}: {traceback.format_exc()}")
            return record
        record = replace(record, during=seen or record.during)
        if judged is None or record.status not in (*IN_FORCE, "drifted"):
            return record
        if judged.status in IN_FORCE:
            reason = "; ".join(filter(None, (record.reason, judged.reason))) or None
            return replace(record, reason=reason, fix=record.fix or judged.fix)
        still_counts = record.status == "drifted" or record.fix or record.restored is False
        both = (judged.reason, record.reason if still_counts else None)
        reason = "; ".join(filter(None, both)) or None
        fix = "; ".join(dict.fromkeys(filter(None, (judged.fix, record.fix)))) or None
        return replace(record, status=judged.status, reason=reason, detail=judged.detail, fix=fix)

    @cached_property
    def _frame(self) -> pandas.DataFrame:
        import pandas

        nothing = pandas.DataFrame(columns=[column.name for column in SCHEMAS["samples"]])
        found = [pandas.DataFrame(dict(table.columns)) for table in self.samples]
        return pandas.concat(found, ignore_index=True) if found else nothing


def _judged(capture: Capture, timed: Sequence[PassRecord], passes: Sequence[PassRecord], plan: Plan) -> Capture:
    """What only the comparison with the bare pass shows: distortion, and a target that fails only under the tool."""
    record = next((p for p in timed if p.id == capture.pass_id), None)
    run, bare = (record.run if record else None), bare_run(passes)
    if record is None or run is None or run.start_error or record.role != "profiled":
        return capture
    if capture.trust == "high":
        capture = replace(capture, trust=trust.of(record))
    walls = trust.bare_walls(passes)
    if walls:
        capture = replace(capture, overhead_s=round(run.wall_s - statistics.mean(walls), 6))
    fine = plan.target.ok_exit_codes
    failed = run.exit is not None and run.ended_by == "itself" and run.exit.status not in fine
    if failed and bare and bare.exit and bare.exit.status in fine and capture.status in ("ok", "degraded", "empty"):
        reason = f"the target failed only under {capture.collector}: {run.exit.describe() if run.exit else ''}"
        return replace(capture, status="tool_failed", reason=f"{reason} (bare: {bare.exit.describe()})")
    if failed and run.exit and capture.status in ("ok", "degraded"):
        return replace(capture, notes=(*capture.notes, f"the target failed: {run.exit.describe()}"))
    return capture


def bare_run(passes: Sequence[PassRecord]) -> Any:
    """The first run of the target without tools (a warm-up is one too), or None."""
    return next((p.run for p in passes if p.role in ("warmup", "bare") and p.run), None)


def _timing(passes: Sequence[PassRecord]) -> dict[str, Metric]:
    """The figures of the bare passes: what the program takes when nobody looks."""
    runs = trust.alike(passes)
    metrics = {}
    for name, unit in (("wall_s", "s"), ("user_s", "s"), ("sys_s", "s"), ("max_rss_bytes", "bytes")):
        known = [(id_, getattr(run, name)) for id_, run in runs if getattr(run, name) is not None]
        if known:
            metrics[name] = stats.describe([v for _, v in known], unit, [id_ for id_, _ in known])
    return metrics


def _from_output(
    plan: Plan, passes: Sequence[PassRecord], root: Path
) -> tuple[dict[str, Metric], dict[str, list[str]]]:
    """The plan's own metrics, read from what the target printed: of the bare passes, or of all when there is none; and
    of passes what they printed instead of a number."""
    bare = [id_ for id_, _ in trust.alike(passes)] or [p.id for p in passes if p.run and p.role == "bare"]
    chosen = bare or [p.id for p in passes if p.run]
    metrics: dict[str, Metric] = {}
    notes: dict[str, list[str]] = {}
    for name, wanted in plan.metrics.items():
        printed = {id_: _output(root, id_, wanted.pattern) for id_ in chosen}
        known = {id_: value for id_, found in printed.items() if (value := wanted.value(found)) is not None}
        metrics[name] = stats.describe(list(known.values()), wanted.unit, list(known))
        for id_ in (id_ for id_, found in printed.items() if found and id_ not in known):
            odd = next(number for number in printed[id_] if not math.isfinite(number))
            notes.setdefault(id_, []).append(f"{name} is unknown here: the program printed {odd:g}")
    return metrics, notes


def _output(root: Path, pass_id: str, pattern: str) -> list[float]:
    """Every number that the pattern finds in the target's output of that pass, in order."""
    values = []
    for stream in ("stdout", "stderr"):
        path = root / "raw" / f"{pass_id}-target" / f"{stream}.log"
        if path.exists():
            with path.open("rb") as file:
                text = file.read(_LOG_LIMIT_BYTES).decode("utf-8", "replace")
            for found in re.finditer(pattern, text, re.M):
                try:
                    values.append(float(found[1]))
                except (TypeError, ValueError):  # a group that took no part, or no number
                    continue
    return values
