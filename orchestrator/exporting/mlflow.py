"""A run of MLflow: figures, facts and pages, written through MLflow itself, so that it goes where the user's runs go.

Its layouts on disk and its servers' schemas change with its versions; its client's calls have stayed. The client alone
is in `mlflow-skinny`.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import redact
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.report import Report

PAGES = ("index.html", "report.md", "summary.json", "machine.json", "plan.yaml")
TRACKING, EXPERIMENT = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"
ALLOW = "MLFLOW_ALLOW_FILE_STORE"
"""MLflow 3 came to write to a plain folder only where this is set; the client alone has no other local store."""
LONGEST_PARAMETER = 500
"""What every store of MLflow takes."""


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """A finished run in the experiment named as the plan (or MLFLOW_EXPERIMENT_NAME), at MLFLOW_TRACKING_URI; without
    that in `target`/mlruns. Raises UsageError where MLflow is missing, or does not take it."""
    tracking, place = _tracking(), _place(target)
    try:
        run_id = _logged(tracking.MlflowClient(tracking_uri=place), report)
    except Exception as error:  # MLflow's own, those of its stores and of the network: the user needs what it says
        why = redact.in_text(f"{type(error).__name__}: {error}".partition("\n")[0])
        raise UsageError(
            f"MLflow did not take the run at {redact.value(place)}", why, f"set {TRACKING}, or mend that"
        ) from error
    say(f"run {run_id} in {redact.value(place)}")
    if TRACKING not in os.environ:
        say(f"to look at it: {ALLOW}=true mlflow ui --backend-store-uri {place}")
        yield target.path / "mlruns"


def _tracking() -> Any:
    """The part of MLflow that has its client. What it does is nobody else's business."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        return importlib.import_module("mlflow.tracking")
    except ImportError as error:
        how = "pip install mlflow-skinny, into the environment that profrun runs in"
        raise UsageError("MLflow is not installed here", "its client writes the run", how) from error


def _place(target: Folder) -> str:
    """The address to write to."""
    if given := os.environ.get(TRACKING):
        return given
    os.environ.setdefault(ALLOW, "true")
    return (target.path.absolute() / "mlruns").as_uri()


def _logged(client: Any, report: Report) -> str:
    """Writes the run; gives back its id."""
    name = os.environ.get(EXPERIMENT) or report.run.name
    known = client.get_experiment_by_name(name)
    experiment = known.experiment_id if known else client.create_experiment(name)
    started_ms = _moment_ms(report)
    run = client.create_run(experiment, start_time=started_ms, run_name=report.run.id, tags=_tags(report))
    run_id: str = run.info.run_id
    for key, value in _metrics(report):
        client.log_metric(run_id, key, value, timestamp=started_ms)
    for key, text in _parameters(report).items():
        client.log_param(run_id, key, text[:LONGEST_PARAMETER])
    for page in PAGES:
        if (report.folder / page).exists():
            client.log_artifact(run_id, str(report.folder / page))
    ended_ms = started_ms + round(1000 * report.run.duration_s)
    client.set_terminated(run_id, "FAILED" if report.outcome.exit_code else "FINISHED", ended_ms)
    return run_id


def _metrics(report: Report) -> Iterator[tuple[str, float]]:
    """Every figure that is known, with the ends of its interval; what findings cost, by category."""
    for name, metric in sorted(report.metrics.items()):
        low, high = metric.ci95 or (None, None)
        for suffix, value in (("", metric.value), ("_ci95_low", low), ("_ci95_high", high)):
            if value is not None:
                yield _key(f"{name}{suffix}"), float(value)
    costs: dict[str, float] = {}
    for finding in report.findings:
        if finding.cost_pct is not None and not finding.healthy:
            costs[finding.category] = max(finding.cost_pct, costs.get(finding.category, 0.0))
    yield from ((f"finding_{category}_pct", cost) for category, cost in sorted(costs.items()))


def _parameters(report: Report) -> dict[str, str]:
    """What the run was of, and on."""
    machine = report.machine
    target, cpu = _part(machine, "target"), _part(machine, "cpu")
    gpus = [str(gpu.get("name")) for gpu in machine.get("gpus") or () if isinstance(gpu, Mapping)]
    known = {
        "command": " ".join(report.run.command),
        "python": target.get("python"),
        "torch": target.get("torch"),
        "cpu": cpu.get("model"),
        "cores": cpu.get("logical"),
        "gpus": ", ".join(gpus),
        "driver": machine.get("driver"),
        "kernel": machine.get("kernel"),
        "profrun": report.run.profrun_version,
    }
    return {key: str(value) for key, value in known.items() if value not in (None, "")}


def _part(machine: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = machine.get(name)
    return part if isinstance(part, Mapping) else {}


def _tags(report: Report) -> dict[str, str]:
    headline = {"profrun.headline": report.headline.sentence} if report.headline else {}
    return {"profrun.run": report.run.id, "profrun.status": report.outcome.status, **headline}


def _key(name: str) -> str:
    """MLflow takes letters, digits, and _ - . : / and spaces in a name."""
    return re.sub(r"[^\w .:/-]", "_", name)


def _moment_ms(report: Report) -> int:
    try:
        return round(1000 * datetime.fromisoformat(report.run.started_at.replace("Z", "+00:00")).timestamp())
    except ValueError:
        return 0
