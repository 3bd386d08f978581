"""Compares two reports: what has changed, by how much of the step, how sure that is, and why. Pure: reports in, words
out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from orchestrator.comparing import blame, likeness, numbers, pairing, sides, weighing
from orchestrator.comparing.numbers import Ratio
from orchestrator.comparing.sides import Looked, Measured, Sampled, View
from orchestrator.comparing.weighing import Scale, Weighed
from orchestrator.comparing.words import SURE, Change, Comparison, Verdict, What
from orchestrator.judging import MINOR_PCT
from orchestrator.model import USABLE, Finding, Metric
from orchestrator.report import Report


def compare(a: Report, b: Report, *, anyway: bool = False) -> Comparison:
    """B beside A. Runs that are unlike in what decides are refused, unless `anyway`: then that is only marked. Raises
    ReportError where a table can't be read."""
    found = likeness.unlike(a, b)
    made = Comparison(likeness.side(a), likeness.side(b), "", found, anyway=anyway and _refuses(found))
    if made.refused:
        return replace(made, headline=blame.headline(made))
    one, other = sides.both(a, b)
    scale = Scale.of_views(one, other)
    sampled = (sides.sampled(one), sides.sampled(other))
    figures = [*_figures(one, other, scale)]
    changes = weighing.costliest_first([
        *figures,
        *_phases(one, other, scale),
        *_functions(one, other, sampled, scale),
        *_kernels(one, other, scale),
        *_seen("op", sides.operators(one), sides.operators(other), scale),
        *_seen("syscall", sides.system_calls(one), sides.system_calls(other), scale),
        *_findings(one, other, scale),
    ])  # fmt: skip
    step = next((change for change in figures if change.name in (_step(one), "wall_s")), None)
    why = blame.attribution(step, changes, _chains(sampled[1] or sampled[0]))
    made = replace(made, step=step, changes=changes, attribution=why)
    return replace(made, headline=blame.headline(made), notes=tuple(_notes(a, b, made)))


def _refuses(found: tuple[Any, ...]) -> bool:
    return any(one.severity == "refuse" for one in found)


def _notes(a: Report, b: Report, made: Comparison) -> Iterator[str]:
    if a.run.id == b.run.id:
        yield "A and B are the same run"
    if made.step and made.step.name == QUICK:
        yield _noisy(made)
    if beset := _apart(made):
        yield (
            "the quickest steps have not changed: only some of the program's steps have, or the machine was otherwise "
            f"busy all through {beset}"
        )
    if busy := likeness.busy(a, b):
        yield busy
    if made.anyway:
        yield "these runs are unlike, and were compared all the same: what has changed may be what they ran on"
    cpu = next((change for change in made.changes if change.name == "step_cpu_s"), None)
    if made.step and made.step.verdict == "unsure" and cpu and cpu.verdict in ("slower", "faster") and cpu.ratio:
        by = f"{abs(100 * (cpu.ratio - 1)):.1f} % {'more' if cpu.verdict == 'slower' else 'less'}"
        yield f"though a step of B used {by} CPU time (--metric step_cpu_s), which other load changes less"


def _apart(made: Comparison) -> str:
    """The side whose usual step has grown, where the quickest steps have not; empty: neither."""
    step, quick = made.step, next((change for change in made.changes if change.name == QUICK), None)
    if step is None or step.name != "step_s" or quick is None or quick.verdict != "same":
        return ""
    ends = (step.low, step.high, quick.low, quick.high)
    low, high, quick_low, quick_high = (math.nan if end is None else end for end in ends)
    return "B" if step.verdict == "slower" and low > quick_high else "A" if high < quick_low else ""


def _noisy(made: Comparison) -> str:
    usual = next(change for change in made.changes if change.name == "step_s")
    by = "" if usual.ratio is None else f" (here {100 * (usual.ratio - 1):+.1f} %)"
    return (
        f"the runs of one side differ by more than {100 * sides.NOISY:g} %: the verdict and all shares are of their "
        f"quickest steps, which other load changes least; that the usual step{by} has changed is told only where those "
        "agree"
    )


# ---------------------------------------------------------------- figures and phases

QUICK = "quick_step_s"


def _step(view: View) -> str:
    """The figure that the verdict is of, where there are steps."""
    return QUICK if view.quick else "step_s"


def _figures(a: View, b: View, scale: Scale) -> Iterator[Change]:
    """The step first, where both have one, by the figure that the verdict is of; then the run; then everything that the
    reports have a figure of."""
    quick: Verdict | None = None
    if a.step_s is not None and b.step_s is not None:
        for name, column, what in sorted(_STEPS, key=lambda one: a.quick and one[0] != QUICK):
            found = _of_steps(a, b, column, what)
            if found.value is None:
                continue
            made = weighing.of_runs("metric", name, found, "s", scale)
            if a.quick and name == QUICK:
                quick = made.verdict
            yield _doubted(made, quick) if quick and sides.is_noisy(a, b, column) else made
    for made in _of_whole_runs(a, b, scale):
        is_time = made.name in ("wall_s", "user_s") or weighing.worse(made.name, made.unit) == "lower"
        yield _doubted(made, quick) if quick and is_time else made


def _of_whole_runs(a: View, b: View, scale: Scale) -> Iterator[Change]:
    if a.walls_s and b.walls_s:
        whole = None if scale.of == "A's step" else scale
        yield weighing.of_runs("metric", "wall_s", numbers.ratio(a.walls_s, b.walls_s), "s", whole)
    for name in sorted({*a.report.metrics, *b.report.metrics} - _TOLD_ELSEWHERE):
        yield _figure(name, a, b)


_STEPS = (
    ("step_s", "duration_ns", "median"),
    (QUICK, "duration_ns", "quick"),
    ("step_mean_s", "duration_ns", "mean"),
    ("step_p95_s", "duration_ns", "p95"),
    ("step_cpu_s", "cpu_ns", "median"),
)
"""Figures of the steady steps: name, column, and what is taken of each run. The CPU time of a step is what a busy
machine changes least."""
_TOLD_ELSEWHERE = {"step_s", QUICK, "wall_s", "warmup_steps"}


def _doubted(one: Change, quick: Verdict) -> Change:
    """A time of runs that differ much. That it has changed is told only if the quickest steps have, too: all runs of
    one side may have had the same neighbour."""
    if one.verdict not in ("slower", "faster") or one.verdict == quick:
        return one
    why = "; its quickest steps do not say so, and other load may have done it"
    return replace(one, verdict="unsure", evidence=one.evidence + why)


def _of_steps(a: View, b: View, column: str, what: str) -> Ratio:
    """Runs are blocks; with one run a side there is only how its steps differ."""
    one, other = a.of_steps(column, what), b.of_steps(column, what)
    if what == "median" and len(one) == len(other) == 1:
        steps = (next(iter(view.steps.values()))[column].dropna().astype(float).tolist() for view in (a, b))
        return _in_seconds(numbers.of_steps(*steps))
    return _in_seconds(numbers.floors(one, other) if a.quick and what == "quick" else numbers.ratio(one, other))


def _in_seconds(found: Ratio) -> Ratio:
    a, b = (None if ns is None else ns / 1e9 for ns in (found.a, found.b))
    return replace(found, a=a, b=b)


_OF_RUNS = ("user_s", "sys_s", "max_rss_bytes")
"""Figures of which the report has the value of each run."""


def _figure(name: str, a: View, b: View) -> Change:
    one, other = a.report.metrics.get(name), b.report.metrics.get(name)
    unit = next((metric.unit for metric in (one, other) if metric and metric.unit), None)
    if name in _OF_RUNS:
        return weighing.of_runs("metric", name, numbers.ratio(_each_run(a, name), _each_run(b, name)), unit)
    found = (
        numbers.of_figures(_kept(one), _kept(other)) if one and other and _known(one, other) else _values(one, other)
    )
    return weighing.of_runs("metric", name, found, unit)


def _each_run(view: View, name: str) -> list[float]:
    runs = {p.id: p.run for p in view.report.passes}
    known = (getattr(runs[id_], name) for id_ in view.bare)
    return [float(value) for value in known if value is not None]


def _known(one: Metric, other: Metric) -> bool:
    return all(metric.value is not None and metric.stddev is not None for metric in (one, other))


def _kept(metric: Metric) -> tuple[float, float, int]:
    return metric.value or 0.0, metric.stddev or 0.0, metric.n or 0


def _values(one: Metric | None, other: Metric | None) -> Ratio:
    a, b = (metric.value if metric else None for metric in (one, other))
    ratio = b / a if a and b is not None and a > 0 else None
    return Ratio(a, b, ratio, n_a=(one.n or 0) if one else 0, n_b=(other.n or 0) if other else 0)


def _phases(a: View, b: View, scale: Scale) -> Iterator[Change]:
    """The parts of a step, and the plan's ranges, as the bare runs have timed them themselves: no tool stood beside."""
    if scale.of != "A's step":
        return
    here, there = (
        {**{name: view.of_steps(column) for column, name in sides.PHASES.items()}, **_ranges(view)} for view in (a, b)
    )
    for name, one in here.items():
        if one and there.get(name):
            compared = numbers.floors if a.quick else numbers.ratio
            found = _in_seconds(compared(one, there[name]))
            yield weighing.of_runs("phase", name, found, "s", scale)


def _ranges(view: View) -> dict[str, list[float]]:
    return {f"range {name}": values for name, values in view.of_ranges().items()}


# ---------------------------------------------------------------- what tools have seen


def _seen(
    what: What, a: Looked | None, b: Looked | None, scale: Scale, keys: Any = pairing.BY_NAME
) -> Iterator[Change]:
    """The changes of one kind of thing, those that are told."""
    if a is None or b is None or a.per != b.per:
        return
    pairs = pairing.paired(a.things, b.things, keys)
    scale = scale.or_of(a, f"A's {_ALL_OF[what]}") if what in _ALL_OF else scale
    weigh = Weighed(what, scale, a, b, weighing.worth_comparing(pairs, scale))
    yield from filter(_is_told, (weigh.change(*pair) for pair in pairs))


_ALL_OF: dict[What, str] = {"op": "time in operators"}


def _is_told(change: Change) -> bool:
    """What takes next to nothing of the step, before and after, is left out."""
    if change.share_of_step_pct is None:
        return change.verdict in SURE
    return abs(change.share_of_step_pct) >= weighing.TOLD_FROM_PCT or change.verdict in SURE - {"new", "gone"}


def _functions(a: View, b: View, sampled: tuple[Sampled | None, Sampled | None], scale: Scale) -> Iterator[Change]:
    one, other = sampled
    if one and other and one.per == other.per and a.whole_s and b.whole_s:
        looked = one.functions(a.whole_s), other.functions(b.whole_s)
        yield from _seen("function", *looked, scale, pairing.BY_PLACE)


def _chains(sampled: Sampled | None) -> Callable[[Change], tuple[str, ...]]:
    return lambda change: sampled.chain(change.name, change.where.get("file")) if sampled else ()


def _kernels(a: View, b: View, scale: Scale) -> Iterator[Change]:
    """By name; what is left on both sides may be the same under another name."""
    one, other = sides.kernels(a), sides.kernels(b)
    if one is None or other is None or one.per != other.per:
        return
    pairs = pairing.paired(one.things, other.things, pairing.BY_NAME)
    gone, new = [x for x, y in pairs if x and not y], [y for x, y in pairs if y and not x]
    again = _renamed(a, b, one, other, gone, new)
    scale = scale.or_of(one, "A's GPU time")
    told = {id(thing) for pair in again for thing in pair}
    rest = [pair for pair in pairs if not told & {*map(id, pair)}]
    weigh = Weighed("kernel", scale, one, other, weighing.worth_comparing([*rest, *again], scale))
    for x, y in again:
        change = replace(weigh.change(x, y), name=x.name, now_called=y.name)
        yield replace(change, verdict="renamed" if change.verdict in ("same", "unsure") else change.verdict)
    yield from filter(_is_told, (weigh.change(*pair) for pair in rest))


def _renamed(
    a: View, b: View, one: Looked, other: Looked, gone: list[Measured], new: list[Measured]
) -> list[tuple[Measured, Measured]]:
    if not gone or not new:
        return []
    shapes = (
        sides.shapes(a, one.capture, (x.name for x in gone)),
        sides.shapes(b, other.capture, (y.name for y in new)),
    )
    return pairing.renamed(gone, new, *shapes)


# ---------------------------------------------------------------- findings


def _findings(a: View, b: View, scale: Scale) -> Iterator[Change]:
    """New, gone, louder, quieter. A rule has no interval: what is near the threshold comes and goes by chance."""
    pairs = pairing.paired(_faults(a.report), _faults(b.report), _SAME_FINDING)
    grown = (b.step_s or 1.0) / (a.step_s or 1.0) if a.step_s and b.step_s else 1.0
    for one, other in pairs:
        found, blind = _finding(one, other, grown, scale), ""
        if one and not other:
            blind = _blind(one, a.report, b.report, "B")
        elif other and not one:
            blind = _blind(other, b.report, a.report, "A")
        yield replace(found, verdict="unsure", share_of_step_pct=None, evidence=blind) if blind else found


def _blind(finding: Finding, there: Report, here: Report, side: str) -> str:
    """What saw that finding there and has seen nothing here, in words; empty: it could have been found here, too."""
    tools = dict.fromkeys(capture.collector for capture in there.captures if capture.id in finding.sources)
    seeing = {capture.collector for capture in here.captures if capture.status in USABLE}
    return "" if not tools or seeing & {*tools} else f"{' and '.join(tools)} gave nothing in {side}"


_SAME_FINDING: tuple[pairing.Key[Finding], ...] = (
    lambda one: (*_place(one), re.sub(r"[\d.]+", "#", one.title)),
    lambda one: _place(one),
    lambda one: (one.rule, one.category),
)


def _faults(report: Report) -> list[Finding]:
    return [finding for finding in report.findings if not finding.healthy]


def _place(finding: Finding) -> tuple[Any, ...]:
    where = finding.where
    file = PurePosixPath(str(where.get("file") or "")).name
    return (finding.rule, file, *(where.get(key) for key in ("function", "kernel", "op", "syscall", "path")))


def _finding(one: Finding | None, other: Finding | None, grown: float, scale: Scale) -> Change:
    known = other or one
    assert known is not None
    a, b = one.cost_pct if one else None, other.cost_pct if other else None
    share = None if (one and a is None) or (other and b is None) else (b or 0.0) * grown - (a or 0.0)
    return Change(
        "finding",
        known.title,
        a,
        b,
        "% of its own run",
        _finding_verdict(one, other, a, b),
        share_of_step_pct=share,
        of=known.of or scale.of,
        where={"rule": known.rule, "category": known.category, "severity": known.severity, **known.where},
        evidence="found by a rule: not tested",
        sources=(
            *(f"A:{s}" for s in (one.sources if one else ())),
            *(f"B:{s}" for s in (other.sources if other else ())),
        ),
    )


def _finding_verdict(one: Finding | None, other: Finding | None, a: float | None, b: float | None) -> Verdict:
    if one is None or other is None:
        cost = b if other else a
        near = cost is not None and cost < 2 * MINOR_PCT
        return "unsure" if near else "new" if other else "gone"
    if a is None or b is None or abs(b - a) < MINOR_PCT:
        return "same"
    return "more" if b > a else "less"
