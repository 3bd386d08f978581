"""The verdict in one sentence, made of the findings and of how the GPU's work lies."""

from __future__ import annotations

from typing import Literal

from orchestrator.model import Finding, Headline
from orchestrator.report import Report

Bound = Literal["cpu", "gpu", "gaps", "none", "unknown"]

_ASIDE = frozenset({"data_quality", "environment"})
"""What these findings say is about the measurement, not about the program."""
_GPU = frozenset({"gpu_compute", "gpu_memory_bound", "low_occupancy", "small_grid"})
_OUTSIDE = frozenset({"file_io", "network_io", "idle_wait", "process_spawn"})
UNSEEN = "What bounds the program was not looked for: `profrun why -- COMMAND` does"
_QUEUES: dict[str, Bound] = {"sparse": "cpu", "dense": "gpu", "dense with gaps": "gaps"}


def of(report: Report) -> Headline | None:
    """None where nothing has been measured that would tell."""
    about = [one for one in report.findings if one.category not in _ASIDE]
    if not about:
        return None
    worst = about[0]
    calm = worst.healthy or worst.severity in ("minor", "info")
    if calm and not _has_looked(report):
        return Headline(f"{worst.title}. {UNSEEN}.", "unknown", "low", worst.sources)
    said = f"Nothing costly stands out. {worst.title}." if calm else f"{worst.title}."
    return Headline(said, _bound(report, worst), worst.confidence, worst.sources)


def _has_looked(report: Report) -> bool:
    """Whether anything would have shown what is costly."""
    host = report.table("host_time")
    if host is not None and host["native"].notna().any():
        return True
    frames = [report.table(name) for name in ("gpu_time", "kernel_profiles")]
    return any(frame is not None and len(frame) for frame in frames)


def _bound(report: Report, worst: Finding) -> Bound:
    """By the GPU's queue where there is one; else by what the thread of the steps does most."""
    frame = report.table("gpu_time")
    if frame is not None and len(frame):
        busiest = frame.sort_values("window_ns", ascending=False).iloc[0]
        return _QUEUES.get(str(busiest["queue"]), "unknown")
    if worst.category in _GPU:
        return "gpu"
    if worst.category in _OUTSIDE:
        return "none"
    return "cpu" if worst.rule == "where_the_time_goes" else _of_host(report)


_AT_WORK = frozenset({"python", "native", "memory", "gc", "import", "compile"})


def _of_host(report: Report) -> Bound:
    """By what the thread of the steps does for half of them, as its samples tell."""
    frame = report.table("host_time")
    if frame is None:
        return "unknown"
    steady = frame[(frame["role"] == "main") & frame["part"].isin(["steady", "all"])]
    work = steady[steady["state"].isin(list(_AT_WORK))]["total_ns"].sum()
    return "cpu" if work >= steady["total_ns"].sum() / 2 > 0 else "unknown"
