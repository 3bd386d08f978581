"""Rules about the measurement itself: how far its figures can be believed."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.model import Evidence, Finding
from orchestrator.report import Report

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


RULES = (unstable_timing, distorted_passes)
