"""formats/ncu_profiles.py: held against what ncu's own rules say in real reports, and against numbers done by hand."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from orchestrator.formats import ncu
from orchestrator.formats.ncu_launch import Launch
from orchestrator.formats.ncu_profiles import bound, profile


@pytest.fixture
def reports(shared: Path) -> list[Path]:
    pytest.importorskip("ncu_report")
    return sorted((shared / "data" / "ncu").glob("*.ncu-rep"))


@cache
def read(path: Path) -> dict[str, list[dict[str, Any]]]:
    return {table.name: list(table.rows()) for table in ncu.read(path).tables}


def launch(**metrics: float | None) -> Launch:
    """A launch with these metrics, written as keywords."""
    return Launch(0, None, "k", None, "2,3,1", "32,1,1", None, {name: (v, None) for name, v in metrics.items()})


# ---------------------------------------------------------------- what bounds a launch


@pytest.mark.parametrize(
    ("sm", "memory", "expected"),
    [
        (59.9, 59.9, "latency"),
        (0.0, 0.0, "latency"),
        (60.0, 50.1, "balanced"),
        (60.0, 50.0, "compute"),
        (50.0, 60.0, "memory"),
        (79.9, 70.0, "balanced"),
        (80.0, 79.9, "compute"),
        (79.9, 80.0, "memory"),
        (97.7, 97.7, "compute"),
        (None, 90.0, None),
        (90.0, None, None),
    ],
)
def test_bound(sm: float | None, memory: float | None, expected: str | None) -> None:
    assert bound(sm, memory) == expected


def said_by_ncu(message: str) -> str | None:
    """What the rule SOLBottleneck says holds the launch back."""
    if re.search("typically indicate latency issues|grid is too small to fill", message):
        return "latency"
    if "well-balanced" in message:
        return "balanced"
    if found := re.search("(Compute|Memory) is more heavily utilized", message):
        return found[1].lower()
    if found := re.search("in the (Compute|Memory) Workload Analysis section", message):
        return found[1].lower()
    return None


def test_bound_is_what_ncu_says_in_every_real_report(reports: list[Path]) -> None:
    agreed: Counter[str] = Counter()
    for path in reports:
        parts = read(path)
        ours = {row["launch"]: row["bound"] for row in parts["kernel_profiles"]}
        for rule in parts["kernel_rules"]:
            if rule["rule"] == "SOLBottleneck" and (said := said_by_ncu(rule["message"])):
                assert ours[rule["launch"]] == said, (path.name, rule)
                agreed[said] += 1
    assert agreed == {"latency": 24, "memory": 17, "compute": 9, "balanced": 2}


# ---------------------------------------------------------------- occupancy


def test_the_occupancy_limit_is_what_ncu_says_in_every_real_report(reports: list[Path]) -> None:
    words = {
        "required registers": "registers",
        "required amount of shared memory": "shared memory",
        "number of warps within each block": "warps",
        "number of blocks that can fit on the SM": "blocks",
    }
    compared = 0
    for path in reports:
        parts = read(path)
        ours = {row["launch"]: row["occupancy_limit"] for row in parts["kernel_profiles"]}
        for rule in parts["kernel_rules"]:
            message = rule["message"] or ""
            said = ", ".join(short for long, short in words.items() if long in message)
            if re.search(r"occupancy \([\d.]+%\) is limited by|not impacted by any block limit", message):
                assert ours[rule["launch"]] == (said or None), (path.name, rule)
                compared += 1
    assert compared == 28


def test_limits_that_tie_are_all_named() -> None:
    row = profile(
        launch(
            launch__occupancy_limit_warps=4, launch__occupancy_limit_registers=4.0, launch__occupancy_limit_blocks=16
        )
    )
    assert row["occupancy_limit"] == "registers, warps"
    assert profile(launch())["occupancy_limit"] is None


# ---------------------------------------------------------------- the roofline


def read_profile(path: Path, number: int) -> dict[str, Any]:
    return read(path)["kernel_profiles"][number]


def test_the_point_under_the_roofline_by_hand(shared: Path) -> None:
    """H100 PCIe, launch 0: 1280 byte a cycle at 1.5927 GHz, 14592 fused operations (two each) at 1.0885 GHz."""
    pytest.importorskip("ncu_report")
    row = read_profile(shared / "data/ncu/2025.1.0_h100pcie_rmsnorm_40rules.ncu-rep", 0)
    bandwidth, peak = 1280 * 1592680824.3868036, 2 * 14592 * 1088497651.4929671
    assert row["precision"] == "fp32"
    assert row["dram_bytes"] == 491620096 + 251153664
    assert row["flops"] == pytest.approx(874_643_456)
    assert row["flops_per_byte"] == pytest.approx(874_643_456 / 742_773_760)
    assert row["ridge_flops_per_byte"] == pytest.approx(peak / bandwidth)
    rate = 874_643_456 / 408352e-9
    assert row["roof_pct"] == pytest.approx(100 * rate / (874_643_456 / 742_773_760 * bandwidth), rel=1e-3)


def test_below_the_ridge_the_roof_is_what_dram_gives(reports: list[Path]) -> None:
    """There the share of the roof is the share of DRAM's peak, which ncu gives by itself."""
    compared = 0
    for path in reports:
        for row in read(path)["kernel_profiles"]:
            if row["roof_pct"] is not None and row["flops_per_byte"] < row["ridge_flops_per_byte"]:
                assert row["roof_pct"] == pytest.approx(row["dram_pct"], rel=1e-3)
                compared += 1
    assert compared == 5


def test_the_share_of_the_peak_is_what_ncu_says(reports: list[Path]) -> None:
    """The rule SOLFPRoofline: `achieved 7% of this device's fp32 peak performance`."""
    compared = 0
    for path in reports:
        parts = read(path)
        ours = {row["launch"]: row for row in parts["kernel_profiles"]}
        for rule in parts["kernel_rules"]:
            if found := re.search(r"achieved\D*(\d+)% of this device's fp32 peak", rule["message"] or ""):
                row = ours[rule["launch"]]
                assert row["precision"] == "fp32"
                share = (row["roof_pct"] or 0.0) * row["flops_per_byte"] / row["ridge_flops_per_byte"]
                assert round(share) == int(found[1])
                compared += 1
    assert compared == 9


def test_tensor_cores_count_where_they_are_nearer_to_their_peak(shared: Path) -> None:
    """H200, from a raw page: bf16 at 989 Tflop/s and 4.8 TB/s have their ridge at 206, at base clocks a bit higher."""
    row = read_profile(shared / "data/ncu/csv_raw_h200_sglang_decode.csv.gz", 21)
    assert row["precision"] == "bf16 tensor"
    assert row["flops"] == 553_648_128 == 2 * 132 * 2**21
    assert row["flops_per_byte"] == pytest.approx(32.459, abs=1e-3)
    assert 200 < row["ridge_flops_per_byte"] < 215


def test_operations_are_unknown_unless_all_kinds_were_counted() -> None:
    fused = {"smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 10.0}
    adds = {
        "sm__sass_thread_inst_executed_op_fadd_pred_on.sum": 3.0,
        "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 4.0,
    }
    assert profile(launch(**fused))["flops"] is None
    assert profile(launch(**fused, **adds))["flops"] == 27.0
    assert profile(launch(**fused, **adds))["flops_per_byte"] is None


def test_traffic_is_counted_or_bandwidth_times_duration() -> None:
    name = "dram__bytes"
    assert profile(launch(**{f"{name}_read.sum": 5.0}))["dram_bytes"] is None
    assert profile(launch(**{f"{name}_read.sum": 5.0, f"{name}_write.sum": 2.0}))["dram_bytes"] == 7.0
    timed = {f"{name}.sum.per_second": 2e9, "gpu__time_duration.sum": 500.0}
    assert profile(launch(**timed))["dram_bytes"] == pytest.approx(1000.0)
    assert profile(launch(**timed, **{f"{name}.sum": 999.0}))["dram_bytes"] == 999.0


def test_the_shape_counts_blocks_and_threads_where_ncu_does_not() -> None:
    row = profile(launch())
    assert (row["blocks"], row["threads"]) == (6, 192)
    assert profile(launch(launch__grid_size=7.0))["blocks"] == 7


def test_what_no_column_holds_is_unknown() -> None:
    row = profile(launch(launch__registers_per_thread=1e300, launch__occupancy_limit_warps=None))
    assert (row["registers"], row["occupancy_limit"]) == (None, None)
