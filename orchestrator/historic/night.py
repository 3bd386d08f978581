"""The words of the history: a run as it is remembered, and the run's environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.model import Metric

NightVerdict = Literal["accepted", "suspect", "regressed", "improved", "unjudged"]
VERDICTS: tuple[NightVerdict, ...] = ("accepted", "suspect", "regressed", "improved", "unjudged")


@dataclass(frozen=True)
class Night:
    """A run as the history remembers it. `started_at` is UTC in ISO 8601, `path` its folder, absolute."""

    run_id: str
    name: str
    started_at: str
    path: str
    fingerprint: str
    """Equal for runs of which no fact of `environment` is known to differ."""
    environment: Mapping[str, Any]
    """The facts that make the fingerprint; None: unknown, and so not known to be equal."""
    status: str
    exit_code: int
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    findings: tuple[Mapping[str, Any], ...] = ()
    """Each with rule, category, severity, cost_pct (None: unknown), title; in the report's order."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Category of what the thread of the steps did -> % of the steady steps. `gpu: STATE` -> % of the GPU's window."""
    verdict: NightVerdict | None = None
    """What `profrun nightly` has made of it; None: it was not asked."""
    note: str = ""
    host: str | None = None
    gone: bool = False
    """Its folder is no longer there."""
