"""Reads from a trace of torch.profiler which kernels cost most: what `ncu` is told when its kernels come from torch.

The trace's kernels are put into the form of an export of nsys, in memory, so that both choose alike. A trace knows no
mangled names: kernels are told apart by their function's name."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from orchestrator.formats import kineto
from orchestrator.formats.kernel_names import function
from orchestrator.formats.nsys_export import Export
from orchestrator.formats.nsys_picks import By, Span, choose_in
from orchestrator.model import Picks
from orchestrator.tables import Table

_KERNELS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, correlationId INTEGER, "
    "demangledName INTEGER, shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, "
    "blockY INTEGER, blockZ INTEGER)"
)


def choose(
    path: Path, top: int, by: By, launches: int = 1, steady_ns: Span | None = None, communication: bool = False
) -> Picks:
    """As nsys_picks.choose, from a Chrome trace of torch.profiler. Raises ParseError when it can't be read."""
    found = next((table for table in kineto.read(path).tables if table.name == "gpu_kernels"), None)
    with closing(sqlite3.connect(":memory:")) as db:
        if found is not None:
            _fill(db, found)
        return choose_in(Export(db), top, by, launches, steady_ns, communication)


def _fill(db: sqlite3.Connection, kernels: Table) -> None:
    """Times in the trace's own clock, which is the epoch's where the trace says so."""
    numbers: dict[str, int] = {}
    db.execute(_KERNELS)
    rows = _rows(kernels, numbers)
    db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 12)})", rows)
    db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", ((n, text) for text, n in numbers.items()))
    db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    first = int(min(kernels.columns["start_ns"], default=0))
    db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (first if kernels.clock == "epoch" else None,))


def _rows(kernels: Table, numbers: dict[str, int]) -> Iterator[tuple[Any, ...]]:
    """Kernels without a shape, as old traces have them, can't be found again and are left out."""
    first = int(min(kernels.columns["start_ns"], default=0))
    for row in kernels.rows():
        sizes = [*(row["grid"] or "").split(","), *(row["block"] or "").split(",")]
        if len(sizes) != 6:
            continue
        start, name = int(row["start_ns"]) - first, row["name"]
        full, short = (numbers.setdefault(text, len(numbers) + 1) for text in (name, function(name)))
        device, correlation = (None if row[key] is None else int(row[key]) for key in ("device", "correlation"))
        yield start, start + int(row["duration_ns"]), device, correlation, full, short, *map(int, sizes)
