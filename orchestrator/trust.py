"""How far looking at the program has bent it: each profiled pass against the bare ones, by its wall time and by its
steps.

A capture's status says whether its data are there; its trust says whether they are those of the program as it runs
alone. A slow strace pass is `ok`, and `distorted`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from orchestrator import stats
from orchestrator.model import PassRecord, TargetRun, Trust

DISTORTED_FROM = 1.5
"""A pass this many times slower than the bare one shows another program: its captures are `distorted`."""
LOW_FROM = 10.0
"""From here on hardly anything of the program's own times is left: their trust is `low`."""
STEPS_DISTORTED_FROM = 1.25
"""So are those of a pass whose usual step takes this many times as long as the bare ones, or as little, beyond what the
interval leaves to chance; steps of one run agree within this factor once they are steady (`steps.STEADY_WITHIN`)."""


def bare_walls(passes: Sequence[PassRecord]) -> list[float]:
    """Wall times of the bare passes; of the warm-ups where there are no others."""
    for role in ("bare", "warmup"):
        walls = [run.wall_s for _, run in alike(passes, role)]
        if walls:
            return walls
    return []


def alike(passes: Iterable[PassRecord], role: str = "bare") -> list[tuple[str, TargetRun]]:
    """(pass, run) of those that ran to their end (or to the window's) as the first of them did. One that ended
    otherwise did something else: a program that dies early is no fast one."""
    runs = [(p.id, p.run) for p in passes if p.role == role and p.run and to_its_end(p.run)]
    return [(id_, run) for id_, run in runs if run.ended_by == "window" or run.exit == runs[0][1].exit]


def to_its_end(run: TargetRun) -> bool:
    return run.start_error is None and run.ended_by in ("itself", "window")


def compared(passes: Sequence[PassRecord], usual_step_s: Mapping[str, float | None]) -> list[PassRecord]:
    """The passes with their slowdown, and that of their steps. `usual_step_s`: by the id of the pass."""
    walls = bare_walls(passes)
    known = {id_: step_s for id_, step_s in usual_step_s.items() if step_s is not None}
    steps = [known[p.id] for p in passes if p.role == "bare" and p.id in known]
    done = []
    for record in passes:
        if record.role == "profiled" and record.run:
            same = [p for p in passes if p.collectors == record.collectors and p.role == "profiled" and p.run]
            record = _stepped(_slowed(record, same, walls), same, known, steps)
        done.append(record)
    return done


def _slowed(record: PassRecord, alike: Iterable[PassRecord], bare: Sequence[float]) -> PassRecord:
    """The ratio of its wall time and that of the bare passes; the interval is that of all passes `alike`."""
    run = record.run
    if not bare or run is None or not to_its_end(run):
        return record
    own = [p.run.wall_s for p in alike if p.run]
    return replace(record, slowdown=run.wall_s / statistics.mean(bare), slowdown_ci95=stats.ratio(own, bare).ci95)


def _stepped(
    record: PassRecord, alike: Iterable[PassRecord], known: Mapping[str, float], bare: Sequence[float]
) -> PassRecord:
    """Likewise of its usual step."""
    if record.id not in known or not bare:
        return record
    own = [known[p.id] for p in alike if p.id in known]
    ratio = known[record.id] / statistics.mean(bare)
    return replace(record, step_slowdown=ratio, step_slowdown_ci95=stats.ratio(own, bare).ci95)


def of(record: PassRecord) -> Trust:
    """How far the program was bent in this pass."""
    ratios = [ratio for ratio in (record.slowdown, record.step_slowdown) if ratio is not None]
    if any(ratio >= LOW_FROM for ratio in ratios):
        return "low"
    if record.slowdown is not None and record.slowdown >= DISTORTED_FROM:
        return "distorted"
    return "distorted" if has_other_steps(record) else "high"


def has_other_steps(record: PassRecord) -> bool:
    """Whether its steps are not those of the bare runs."""
    ratio, interval = record.step_slowdown, record.step_slowdown_ci95
    if ratio is None:
        return False
    slow = ratio >= STEPS_DISTORTED_FROM and (interval[0] > 1 if interval else ratio >= DISTORTED_FROM)
    quick = ratio <= 1 / STEPS_DISTORTED_FROM and (interval[1] < 1 if interval else ratio <= 1 / DISTORTED_FROM)
    return slow or quick


def words(record: PassRecord) -> tuple[str, ...]:
    """What is to be said of its steps beside those of the bare runs."""
    if record.step_slowdown is None:
        return ()
    interval = record.step_slowdown_ci95
    within = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
    return (f"a usual step took {record.step_slowdown:.2f} times as long as alone{within}",)
