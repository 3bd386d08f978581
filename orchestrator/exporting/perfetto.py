"""The timeline for ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import timeline
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.report import Report


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """Made anew of the tables. Raises UsageError where nothing in them has a time, ReportError where one can't be
    read."""
    for name in report.tables:
        report.schema(name)
    written = timeline.write(report, target)
    if written is None:
        feed = "a run with nsys, torch, py-spy or monitor has one"
        raise UsageError("the report has no timeline", "nothing that was measured has a time of its own", feed)
    say("open it at https://ui.perfetto.dev, which reads it in the browser and sends it nowhere")
    yield written
