"""From tables to findings: every rule is a pure function of the report; those without their input say nothing."""

from __future__ import annotations

from orchestrator import registry
from orchestrator.model import Finding
from orchestrator.report import Report

_ORDER = {"critical": 0, "major": 1, "minor": 2, "info": 3}


def findings(report: Report) -> tuple[Finding, ...]:
    """What all rules find, the most severe and costly first."""
    found = [finding for rule in registry.rules() for finding in rule(report)]
    return tuple(sorted(found, key=lambda f: (_ORDER[f.severity], -(f.cost_s or 0.0), f.rule)))
