"""An nsys export of 10 million kernels: the summaries of `nsys stats`, and everything that our reader makes of it."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parsebench.frame import Input, Look, Ours, Unable, generated

REPORTS = {
    "gpukernsum": "gpu_kernel_summary",
    "cudaapisum": "cuda_api_summary",
    "gpumemtimesum": "gpu_transfer_summary",
}
"""The reports of `nsys stats`, and our tables of the same."""
COLUMNS = {
    "count": ("Instances", "Num Calls", "Count"),
    "total_ns": ("Total Time (ns)",),
    "median_ns": ("Med (ns)",),
    "min_ns": ("Min (ns)",),
    "max_ns": ("Max (ns)",),
}
"""Our columns, and theirs of the same, which differ by report and version. Means and deviations are rounded there."""
NAMES = ("Name", "Operation")


def generate(out: Path, scale: float) -> None:
    generated("gen_nsys.py", out, max(1000, round(10_000_000 * scale)))


def summaries(path: Path) -> Look:
    from orchestrator.formats import nsys

    tables = nsys.summaries(path)
    return lambda: _results(tables)


def everything(path: Path) -> Look:
    from orchestrator.formats import nsys

    tables = nsys.read(path).tables
    return lambda: _results(tables)


def _results(tables: Any) -> dict[str, Any]:
    """Each summary as rows (name, figures of COLUMNS), sorted."""
    by_name = {table.name: table for table in tables}
    return {
        report: sorted(
            [_spelt(row["name"]), *(float(row[column]) for column in COLUMNS)] for row in by_name[table].rows()
        )
        for report, table in REPORTS.items()
    }


def peer(path: Path) -> Look:
    """`nsys stats`, which reads an export as it is and writes nothing beside it."""
    if not shutil.which("nsys"):
        raise Unable("nsys is not installed")
    argv = ["nsys", "stats", "--report", ",".join(REPORTS), "--format", "csv", str(path)]
    done = subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return lambda: dict(zip(REPORTS, map(_rows, _texts(done.stdout)), strict=True))


def _texts(said: str) -> list[str]:
    """The CSV of each report: what stands between its header line and the next empty one."""
    parts = [part.strip() for part in said.split("\n\n")]
    return [part[part.index("Time (%)") :] for part in parts if "Time (%)" in part]


def _rows(text: str) -> list[list[Any]]:
    table = csv.DictReader(io.StringIO(text))
    known = {*(table.fieldnames or ())}
    name, *figures = (next(name for name in names if name in known) for names in (NAMES, *COLUMNS.values()))
    return _sorted(table, name, figures)


def _sorted(rows: Iterable[Mapping[str, Any]], name: str, figures: Iterable[str]) -> list[list[Any]]:
    return sorted([_spelt(row[name]), *(float(row[figure]) for figure in figures)] for row in rows)


def _spelt(name: str) -> str:
    """As all versions would: `[CUDA memcpy HtoD]` of the older ones is `[CUDA memcpy Host-to-Device]` of the others."""
    return re.sub(r"(\w)\w*-to-(\w)\w*", r"\1to\2", name)


INPUTS = (
    Input(
        "nsys",
        "10 million kernels",
        "profile.sqlite",
        generate,
        "`nsys stats`",
        peer,
        (
            Ours("its three summaries", summaries, 10.0),
            Ours("everything: utilization, gaps, latency, transfers, ...", everything, 6.0, 3_000_000_000),
        ),
    ),
)
