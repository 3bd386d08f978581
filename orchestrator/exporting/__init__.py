"""`profrun export`: a report in the format of another program, one file of this room a format.

A format is a module with `export(report, target, say)`: it writes files into the folder `target`, yields their paths,
and says what a reader should know through `say`. It raises UsageError where the report has nothing for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.folder import Folder

if TYPE_CHECKING:
    from orchestrator.report import Report

FORMATS: Mapping[str, str] = {
    "speedscope": "flame graphs for speedscope.app",
    "perfetto": "the timeline for ui.perfetto.dev",
    "hta": "torch.profiler's traces, by rank, for HolisticTraceAnalysis",
    "csv": "all tables as CSV, and what their columns mean",
    "parquet": "all tables as Parquet, with the run in their first column",
    "prometheus": "the figures, for the textfile collector of node_exporter",
    "mlflow": "figures, facts and pages as a run of MLflow",
    "github": "a summary in Markdown, for the page of a CI job",
}
"""The formats, and what is in them."""


def export(report: Report, to: str, place: Path, say: Callable[[str], None]) -> list[Path]:
    """Writes a report in a format of FORMATS into the folder `place`; the files that were written."""
    module = importlib.import_module(f"orchestrator.exporting.{to}")
    return list(module.export(report, Folder(place), say))
