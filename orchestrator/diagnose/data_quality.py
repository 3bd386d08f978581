"""Rules about the measurement itself: how far its figures can be believed."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.model import HARMLESS, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

SPREAD_LIMIT = 0.10
"""pyperf calls a benchmark unstable when its standard deviation is 10 % of the mean or more (pyperf, `check`
command)."""
FEWEST_RUNS = 3
"""Bare runs that give an interval worth having."""
SAME_WORK = 0.05
"""Runs whose CPU time differs by no more than this had the same to do."""


def unstable_timing(report: Report) -> Iterator[Finding]:
    """The bare passes differ among themselves too much for small differences to mean anything."""
    wall = report.metrics.get("wall_s")
    if wall is None or not wall.value or wall.stddev is None or wall.n is None or wall.n < 3:
        return
    spread = wall.stddev / wall.value
    if spread < SPREAD_LIMIT:
        return
    yield Finding(
        rule="unstable_timing",
        category="data_quality",
        severity="minor",
        title=f"The bare runs vary by {100 * spread:.0f} % of their mean ({wall.n} runs)",
        advice="Compare nothing finer than that; look for other work on the machine, then raise timing.repeats.",
        confidence="high",
        evidence=(Evidence("metrics", "wall_s", wall.stddev, "s"), Evidence("metrics", "wall_s", wall.value, "s")),
        sources=tuple(c.id for c in report.captures if c.collector == "timing"),
    )


def few_repeats(report: Report) -> Iterator[Finding]:
    """With one bare run nothing is known of chance: of a slowdown, or a difference to another run, nobody can say
    whether it is one. Two give an interval by Student's t that is 13 standard errors wide to each side, three 4."""
    bare = [record for record in report.passes if record.role == "bare" and record.run]
    profiled = [record for record in report.passes if record.role == "profiled" and record.run]
    attached = any(record.run and record.run.attached for record in report.passes)
    if report.run.imported or attached or not profiled or len(bare) >= FEWEST_RUNS:
        return
    what = {0: "No bare run was made", 1: "One bare run was made"}.get(len(bare), f"{len(bare)} bare runs were made")
    yield Finding(
        rule="few_repeats",
        category="data_quality",
        severity="info",
        title=f"{what}: too few to tell small differences from chance",
        advice=f"Set timing.repeats to {FEWEST_RUNS} or more before you say that something is faster or slower.",
        confidence="high",
        evidence=(Evidence("runs", "bare", len(bare), "runs"),),
        sources=tuple(c.id for c in report.captures if c.collector == "timing"),
    )


def disturbed_runs(report: Report) -> Iterator[Finding]:
    """Some bare runs took longer than the others, and had no more to do: their CPU time is that of the others. Then the
    program waited, for a processor, a disk, a network that others used. Outliers are those of `stats.outliers`."""
    wall, runs = report.metrics.get("wall_s"), {p.id: p.run for p in report.passes if p.role == "bare" and p.run}
    if wall is None or wall.median is None or len(runs) < FEWEST_RUNS:
        return
    used = {
        id_: run.user_s + run.sys_s for id_, run in runs.items() if run.user_s is not None and run.sys_s is not None
    }
    usual_s = statistics.median(used.values()) if used else None
    late = [
        id_
        for id_ in wall.outliers
        if id_ in used and usual_s and runs[id_].wall_s > wall.median and used[id_] <= (1 + SAME_WORK) * usual_s
    ]
    if not late:
        return
    worst = max(late, key=lambda id_: runs[id_].wall_s)
    yield Finding(
        rule="disturbed_runs",
        category="data_quality",
        severity="minor",
        title=f"{', '.join(late)} took up to {runs[worst].wall_s / wall.median:.2f} times the usual time for the same "
        "work: the machine had something else to do",
        advice="Wait for an idle machine (`use: cpu_idle`), or repeat the run; the median is less bent than the mean.",
        confidence="medium",
        evidence=tuple(Evidence("runs", id_, round(runs[id_].wall_s, 6), "s") for id_ in late),
        sources=tuple(c.id for c in report.captures if c.pass_id in late),
    )


def distorted_passes(report: Report) -> Iterator[Finding]:
    """A tool slowed the program, or its steps, so much that its shares are those of another program (`trust`)."""
    for record in report.passes:
        captures = [c for c in report.captures if c.pass_id == record.id and c.trust in ("distorted", "low")]
        ratios = [ratio for ratio in (record.slowdown, record.step_slowdown) if ratio is not None]
        if not captures or not ratios:
            continue
        tools = ", ".join(c.collector for c in captures)
        by_steps = record.step_slowdown is not None and record.step_slowdown == max(ratios)
        evidence = [
            Evidence("passes", f"{record.id} {name}", round(ratio, 2), "times the bare run")
            for name, ratio in (("wall", record.slowdown), ("step", record.step_slowdown))
            if ratio is not None
        ]
        yield Finding(
            rule="distorted_passes",
            category="data_quality",
            severity="info",
            title=f"Under {tools} {'a step' if by_steps else 'the program'} took {max(ratios):.1f} times as long as "
            "alone",
            advice="Trust counts and places from that pass, not durations or shares of the whole.",
            confidence="high",
            evidence=tuple(evidence),
            sources=tuple(c.id for c in captures),
        )


def unseen_gpu_processes(report: Report) -> Iterator[Finding]:
    """More processes of the target had the GPU open than kernels were seen of: the others were not traced."""
    for capture in (c for c in report.captures if c.collector == "nsys" and c.status in HARMLESS):
        passmates = [c.id for c in report.captures if c.pass_id == capture.pass_id]
        users = _gpu_users(report.table("samples"), passmates)
        if len(users) < 2 or "cuda" not in (capture.options.get("trace") or ("cuda",)):
            continue
        seen = _traced(report, capture.id)
        unseen = sorted(users - seen)
        if not unseen:
            continue
        yield Finding(
            rule="unseen_gpu_processes",
            category="data_quality",
            severity="major",
            title=f"{len(users)} processes used the GPU, kernels seen in {len(users & seen)}",
            advice="Processes made by fork are traced with `fork: true` on nsys; better, let the program start them by "
            "spawn. The figures of the GPU leave out what the others did.",
            # what ran only before a window opened is not lost, and looks the same
            confidence="medium" if capture.began_late else "high",
            where={"pids": ", ".join(map(str, unseen))},
            evidence=(
                Evidence("samples", "gpu_process", len(users), "processes"),
                Evidence("gpu_kernels", capture.id, len(users & seen), "processes"),
            ),
            sources=tuple(passmates),
        )


def _traced(report: Report, capture: str) -> set[int]:
    """The processes of which any work on a GPU was recorded."""
    names = ("gpu_kernels", "gpu_graphs", "gpu_transfers")
    tables = [report.rows(name, [capture], ["pid"]) for name in names]
    pids = [table["pid"].dropna() for table in tables if table is not None]
    return {int(pid) for column in pids for pid in column.unique()}


def _gpu_users(samples: pandas.DataFrame | None, captures: Sequence[str]) -> set[int]:
    """The target's processes that the driver has listed; those of others on the same GPU are not in its tree."""
    if samples is None:
        return set()
    here = samples[samples["capture"].isin(captures)]
    listed = here[here["source"] == "gpu_process"]["subject"].str.split("/").str[-1]
    own = here[here["source"] == "process"]["subject"]
    return set(listed[listed.str.isdigit()].astype(int)) & set(own[own.str.isdigit()].astype(int))


RULES = (unstable_timing, few_repeats, disturbed_runs, distorted_passes, unseen_gpu_processes)
