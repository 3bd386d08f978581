"""formats/ncu.py against real reports of Nsight Compute 2021 to 2025, and against files that are none."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import ncu

DURATION = "gpu__time_duration.sum"


@pytest.fixture
def reports(shared: Path) -> Path:
    pytest.importorskip("ncu_report")
    return shared / "data" / "ncu"


def read(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    metrics, rules = ncu.read(path)
    return list(metrics.rows()), list(rules.rows())


def known(reports: Path) -> dict[str, dict[str, int]]:
    """What was counted when the files were collected."""
    with (reports.parent / "INDEX.tsv").open() as index:
        rows = [r for r in csv.DictReader(index, delimiter="\t") if r["path"].endswith(".ncu-rep")]
    wanted = re.compile(r"\b(results|duration_ns_sum|nan_durations|missing_durations|rules)=(\d+)")
    return {r["path"].removeprefix("ncu/"): {k: int(v) for k, v in wanted.findall(r["verified_facts"])} for r in rows}


def test_all_versions_are_read_into_the_canonical_schema(reports: Path) -> None:
    facts = known(reports)
    assert len(facts) >= 12
    for file, fact in facts.items():
        parts = ncu.read(reports / file)
        for part in parts:
            assert tables.arrow(part.name, [part.with_capture("p1-ncu")]).num_rows == len(part), file
        metrics, rules = (list(part.rows()) for part in parts)
        durations = [row["value"] for row in metrics if row["metric"] == DURATION]
        launches = len({row["launch"] for row in metrics})
        assert launches == fact["results"], file
        assert sum(d for d in durations if d is not None) == fact["duration_ns_sum"], file
        assert durations.count(None) == fact["nan_durations"], file
        assert launches - len(durations) == fact["missing_durations"], file
        assert len(rules) == fact["rules"], file


def test_one_launch_in_full(reports: Path) -> None:
    metrics, rules = read(reports / "2022.3.0_rtx3070_vecadd.ncu-rep")
    (duration,) = [row for row in metrics if row["metric"] == DURATION]
    assert duration["kernel"] == "VecAdd_kernel"
    assert (duration["launch"], duration["grid"], duration["block"]) == (0, "196,1,1", "256,1,1")
    assert duration["value"] == 3232.0
    assert duration["unit"] in ("ns", "nsecond"), "the package has changed its spelling"
    assert [(r["section"], r["rule"], r["kind"]) for r in rules] == [
        ("Occupancy", "Occupancy", "warning"),
        ("SpeedOfLight", "SOLBottleneck", "warning"),
    ]


def test_advice_has_its_gain(reports: Path) -> None:
    _, rules = read(reports / "2025.1.0_gh200_triton_silu_v6.ncu-rep")
    (occupancy,) = [r for r in rules if r["rule"] == "AchievedOccupancy" and r["launch"] == 1]
    assert occupancy["kind"] == "optimization"
    assert occupancy["speedup_pct"] == pytest.approx(25.738063425591236)
    assert occupancy["message"].startswith("The difference between calculated theoretical (100.0%)")
    (bottleneck,) = [r for r in rules if r["rule"] == "SOLBottleneck" and r["launch"] == 1]
    assert (bottleneck["kind"], bottleneck["speedup_pct"]) == ("ok", None)
    assert bottleneck["message"].startswith("High Throughput: This workload")


def test_a_failed_launch_is_unknown_not_zero(reports: Path) -> None:
    metrics, rules = read(reports / "2023.1.1_a10g_nan_failed_launch.ncu-rep")
    failed = [row for row in metrics if row["launch"] == 3]
    assert {row["grid"] for row in failed} == {None}
    assert next(row["value"] for row in failed if row["metric"] == DURATION) is None
    assert 0.0 not in {row["value"] for row in failed if row["metric"].startswith("sm__")}
    assert {r["kind"] for r in rules if r["launch"] == 3} == {"error"}


def test_text_is_no_metric(reports: Path) -> None:
    metrics, _ = read(reports / "2025.1.0_gh200_triton_silu_v6.ncu-rep")
    names = {row["metric"] for row in metrics}
    assert "launch__registers_per_thread" in names
    assert "device__attribute_display_name" not in names


@pytest.mark.parametrize("kept", [0, 8, 20_000])
def test_truncated_reports_are_refused(reports: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes((reports / "2022.3.0_rtx3070_vecadd.ncu-rep").read_bytes()[:kept])
    with pytest.raises(ParseError, match=r"cut\.ncu-rep is no report of ncu, or a damaged one"):
        ncu.read(path)


def test_a_missing_file_is_refused(reports: Path, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"gone\.ncu-rep is no readable report of ncu"):
        ncu.read(tmp_path / "gone.ncu-rep")


def test_without_the_package_the_step_to_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    with pytest.raises(ParseError, match=r"pip install 'profrun\[nvidia\]'"):
        ncu.read(tmp_path / "report.ncu-rep")
