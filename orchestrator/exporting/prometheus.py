"""The figures of a run as Prometheus reads them from node_exporter's textfile collector.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/ (text, version 0.0.4). Units are base units and
stand at the end of the names (https://prometheus.io/docs/practices/naming/); what is unknown has no sample.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.model import IMPORT

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.model import Metric
    from orchestrator.report import Report

PREFIX = "profrun"
_UNITS: Mapping[str | None, tuple[str, str, float]] = {
    "s": ("_s", "_seconds", 1.0),
    "ms": ("_ms", "_seconds", 1e-3),
    "ns": ("_ns", "_seconds", 1e-9),
    "bytes": ("_bytes", "_bytes", 1.0),
    "%": ("_pct", "_ratio", 0.01),
    "1/s": ("_per_s", "_per_second", 1.0),
    "MHz": ("_mhz", "_hertz", 1e6),
    "W": ("_w", "_watts", 1.0),
    "C": ("_c", "_celsius", 1.0),
}
"""By unit: how our name ends, how theirs does, and the factor between them."""


_OWN = frozenset((
    "run_info", "run_started_timestamp_seconds", "run_duration_seconds", "run_exit_status", "captures", "findings",
    "finding_cost_ratio",
))  # fmt: skip
"""The names that are not of figures: a plan's own metric of such a name gets another."""


@dataclass
class Family:
    """All samples of one name."""

    name: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def text(self) -> str:
        told = self.help.replace("\\", "\\\\").replace("\n", " ")
        lines = [f"# HELP {self.name} {told}", f"# TYPE {self.name} gauge"]
        return "\n".join(
            (*lines, *(f"{self.name}{_labels(labels)} {_number(value)}" for labels, value in self.samples))
        )


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """One file, named by the plan: the next run of it takes its place."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", report.run.name) or "run"
    say("put it into the folder that node_exporter's --collector.textfile.directory names (-o does so)")
    yield target.write_clean(f"{PREFIX}-{name}.prom", render(report))


def render(report: Report) -> str:
    """The text of the file. Every sample has the label `plan`; the run's id is in one of them alone."""
    families: dict[str, Family] = {}

    def add(name: str, told: str, value: float | None, **labels: str) -> None:
        if value is not None:
            family = families.setdefault(name, Family(f"{PREFIX}_{name}", told))
            sample = {"plan": report.run.name, **labels}
            if any(sample == other for other, _ in family.samples):  # two names of ours that are one name of theirs
                sample["metric"] = told.partition(":")[0]
            family.samples.append((sample, value))

    for part in (_run, _figures, _findings):
        part(report, add)
    return "\n".join(family.text() for family in families.values()) + "\n"


def _run(report: Report, add: Callable[..., None]) -> None:
    run, outcome = report.run, report.outcome
    add("run_info", "The latest run of a plan.", 1, run=run.id, status=outcome.status, version=run.profrun_version)
    add("run_started_timestamp_seconds", "When it began, since the Unix epoch.", _moment(run.started_at))
    add("run_duration_seconds", "How long everything together took.", run.duration_s)
    add("run_exit_status", "Exit status of profrun.", outcome.exit_code)
    for status, count in sorted(Counter(capture.status for capture in report.captures).items()):
        add("captures", "Captures of tools, by what became of them.", count, status=status)


def _figures(report: Report, add: Callable[..., None]) -> None:
    for name, metric in sorted(report.metrics.items()):
        for suffix, what, value in _values(metric):
            _add_metric(add, name, metric, suffix, what, value)


def _findings(report: Report, add: Callable[..., None]) -> None:
    counts = Counter(finding.severity for finding in report.findings)
    for severity in ("critical", "major", "minor", "info"):
        add("findings", "Findings of the diagnosis, by severity.", counts[severity], severity=severity)
    costs: dict[tuple[str, ...], float] = {}
    for f in report.findings:
        if f.cost_pct is not None:
            key = (f.rule, f.category, f.severity, f.of or "")
            costs[key] = max(f.cost_pct / 100, costs.get(key, 0.0))
    for (rule, category, severity, of), share in sorted(costs.items()):
        told = "Share of `of` that a finding costs; of several by one rule the costliest."
        add("finding_cost_ratio", told, share, rule=rule, category=category, severity=severity, of=of)


def _values(metric: Metric) -> Iterator[tuple[str, str, float | None]]:
    low, high = metric.ci95 or (None, None)
    yield "", "mean over the bare runs, or the one value", metric.value
    yield "_ci95_low", "lower end of the 95 % interval of the mean", low
    yield "_ci95_high", "upper end of the 95 % interval of the mean", high


def _add_metric(
    add: Callable[..., None], name: str, metric: Metric, suffix: str, what: str, value: float | None
) -> None:
    base, _, number = name.partition(f".{IMPORT}-")
    ours, theirs, factor = _UNITS.get(metric.unit, ("", "", 1.0))
    stem = re.sub(r"[^A-Za-z0-9_]+", "_", base.removesuffix(ours) if ours else base).strip("_") or "value"
    file = {"file": f"{IMPORT}-{number}"} if number else {}
    unit = "" if metric.unit is None or theirs else f" ({metric.unit})"
    full = f"{stem}{suffix}{theirs}"
    full = f"metric_{full}" if full in _OWN else full
    add(full, f"{base}{unit}: {what}.", None if value is None else value * factor, **file)


def _moment(iso: str) -> float | None:
    try:
        return datetime.fromisoformat(iso.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return None


def _labels(labels: Mapping[str, str]) -> str:
    def text(value: str) -> str:
        clean = value.encode("utf-8", "replace").decode()
        return clean.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{text(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(float(value)) if not float(value).is_integer() else str(int(value))
    return "NaN" if math.isnan(value) else ("+Inf" if value > 0 else "-Inf")
