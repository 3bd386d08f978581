"""The verdict in one sentence, made of the findings and of what the locating stage has found."""

from __future__ import annotations

from orchestrator.model import Headline
from orchestrator.report import Report


def of(report: Report) -> Headline | None:
    """None where nothing has been measured that would tell."""
    worst = next((one for one in report.findings if one.category not in ("data_quality", "environment")), None)
    if worst is None:
        return None
    return Headline(f"{worst.title}.", confidence=worst.confidence, sources=worst.sources)
