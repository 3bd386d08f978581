"""Compares pages of `ncu --csv` with the report that they were printed from, number by number."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from orchestrator.formats import ncu, ncu_csv
from orchestrator.formats.ncu_csv import base_unit


def values(content: ncu.Content) -> dict[tuple[int, str], tuple[float | None, str | None]]:
    return {(r["launch"], r["metric"]): (r["value"], r["unit"]) for r in content.tables[1].rows()}


def printed(path: Path) -> list[tuple[int, str, str, str]]:
    """(launch, metric, unit, value) as a page has it, read with nothing but Python's csv."""
    rows = list(csv.reader(path.open()))
    head = rows[0]
    if "Metric Name" in head:
        at = [head.index(name) for name in ("Section Name", "Metric Name", "Metric Unit", "Metric Value")]
        cells = [(int(row[0]), [row[i] for i in at]) for row in rows[1:] if row[0].isdigit() and row[at[1]]]
        return [(n, ncu_csv.metric_name(name, section), unit, text) for n, (section, name, unit, text) in cells]
    first = head.index("Stream") + 1
    return [
        (int(row[0]), name, unit, text)
        for row in rows[2:]
        if row[0].isdigit()
        for name, unit, text in list(zip(head, rows[1], row, strict=True))[first:]
    ]


def compare(page: Path, report: Path) -> int:
    """Holds every number of a page against the report's, to the page's last digit. Gives how many there were."""
    ours, theirs = values(ncu.read(page)), values(ncu.read(report))
    compared = 0
    for launch, name, unit, text in printed(page):
        value = ours.get((launch, name), (None, None))[0]
        if value is None:
            assert not text.replace(".", "").replace(",", "").isdigit(), (name, text)
            continue
        factor, digits = base_unit(unit)[0], len(text.partition(".")[2])
        exact = theirs[launch, name][0]
        if exact is None:  # of a launch that failed: ncu itself prints 0 there where it scales
            assert (text, launch, report.name) == ("0.000000", 3, "2023.1.1_a10g_nan_failed_launch.ncu-rep")
            continue
        assert value == pytest.approx(float(text.replace(",", "")) * factor), name
        assert abs(value - exact) <= factor * 0.5000001 * 10**-digits + 1e-12 * abs(exact), (name, text, unit, exact)
        compared += 1
    return compared
