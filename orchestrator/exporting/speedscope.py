"""Flame graphs for speedscope.app: a file for each capture and kind of time."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError
from orchestrator.render import flamegraph

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.report import Report


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """One profile a thread. Raises UsageError where the report has no stacks."""
    found = list(flamegraph.of_report(report))
    if not found:
        raise UsageError(
            "the report has no stacks",
            "no sampler took part",
            f"profrun --into {shlex.quote(str(report.folder))} --only py-spy",
        )
    for stem, title, rows in found:
        text = flamegraph.speedscope(flamegraph.Stacks.of_table(rows), title)
        yield target.write_clean(f"{stem}.speedscope.json", text)
