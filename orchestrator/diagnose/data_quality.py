"""Rules about the measurement itself: how far its figures can be believed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from orchestrator.model import HARMLESS, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

SPREAD_LIMIT = 0.10
"""pyperf calls a benchmark unstable when its standard deviation is 10 % of the mean or more (pyperf, `check`
command)."""


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
        title=f"The bare runs vary by {spread:.0%} of their mean ({wall.n} runs)",
        advice="Compare nothing finer than that; look for other work on the machine, then raise timing.repeats.",
        confidence="high",
        evidence=(Evidence("metrics", "wall_s", wall.stddev, "s"), Evidence("metrics", "wall_s", wall.value, "s")),
        sources=tuple(c.id for c in report.captures if c.collector == "timing"),
    )


def distorted_passes(report: Report) -> Iterator[Finding]:
    """A tool slowed the program so much that its shares are those of another program."""
    for record in report.passes:
        captures = [c for c in report.captures if c.pass_id == record.id and c.trust == "distorted"]
        if not captures or record.slowdown is None:
            continue
        tools = ", ".join(c.collector for c in captures)
        yield Finding(
            rule="distorted_passes",
            category="data_quality",
            severity="info",
            title=f"Under {tools} the program took {record.slowdown:.1f} times as long as alone",
            advice="Trust counts and places from that pass, not durations or shares of the whole.",
            confidence="high",
            evidence=(Evidence("passes", record.id, round(record.slowdown, 2), "times the bare run"),),
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
    tables = [report.table(name) for name in ("gpu_kernels", "gpu_graphs", "gpu_transfers")]
    pids = [table[table["capture"] == capture]["pid"].dropna() for table in tables if table is not None]
    return {int(pid) for column in pids for pid in column.unique()}


def _gpu_users(samples: pandas.DataFrame | None, captures: Sequence[str]) -> set[int]:
    """The target's processes that the driver has listed; those of others on the same GPU are not in its tree."""
    if samples is None:
        return set()
    here = samples[samples["capture"].isin(captures)]
    listed = here[here["source"] == "gpu_process"]["subject"].str.split("/").str[-1]
    own = here[here["source"] == "process"]["subject"]
    return set(listed[listed.str.isdigit()].astype(int)) & set(own[own.str.isdigit()].astype(int))


RULES = (unstable_timing, distorted_passes, unseen_gpu_processes)
