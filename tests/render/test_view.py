"""The words that all renderers share: quantities, shares, the machine's facts, names made visible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import sample_report

from orchestrator.model import Exit, Metric, PassRecord, TargetRun
from orchestrator.render import view


@pytest.mark.parametrize(
    ("metric", "value", "interval", "half"),
    [
        (Metric(3.21432, "s", (3.2122, 3.2164), 5), "3.2143 s", "3.2122 to 3.2164 s", "±0.065 %"),
        (Metric(0.000_212, "s", (0.0002, 0.000_224), 5), "212 µs", "200 to 224 µs", "±5.7 %"),
        (Metric(1.5e9, "bytes"), "1.500 GB", None, None),
        (Metric(None, "s"), None, None, None),
        (Metric(0.0, "s", (0.0, 0.0)), "0 s", "0 to 0 s", None),
        (Metric(12.5, "tok/s"), "12.50 tok/s", None, None),
        (Metric(14.0, "steps", (14.0, 14.0), 3), "14 steps", "14 to 14 steps", "±0 %"),
        (Metric(0.005, "s", (-0.009, 0.019), 2), "5 ms", "0 to 19 ms", "±280 %"),
    ],
)
def test_a_metric_has_the_digits_that_its_interval_deserves(
    metric: Metric, value: str | None, interval: str | None, half: str | None
) -> None:
    found = view.figure("wall_s", metric)
    assert (found.value, found.interval, found.half_width_pct) == (value, interval, half)


def test_aligned_quantities_share_a_unit_and_never_round_to_nothing() -> None:
    assert view.aligned([3.1874, None, 0.0214, 0.0, 1e-6], "s") == ["3.187 s", None, "0.021 s", "0.000 s", "<0.001 s"]
    assert view.aligned([], "s") == []


@pytest.mark.parametrize(
    ("ratio", "interval", "text"),
    [
        (1.0321, (1.0119, 1.0512), "1.03× (1.01 to 1.05)"),
        (27.31, None, "27.3×"),
        (1234.5, None, "1,234×"),
        (None, None, None),
    ],
)
def test_slowdown(ratio: float | None, interval: tuple[float, float] | None, text: str | None) -> None:
    assert view.slowdown(ratio, interval) == text


def test_processes_that_ran_already_are_told_over_all_looks(tmp_path: Path) -> None:
    told = view.processes(sample_report.job(tmp_path))
    assert [(p.pid, p.rank, p.role, p.course, p.left, p.tone) for p in told] == [
        (7, "", "named, only starts others (torchrun)", "sleeping", "goes on", "good"),
        (8, "0 of 3", "child of 7", "running", "goes on", "good"),
        (9, "1 of 3", "child of 7", "stopped → stopped (traced by 99)", "stopped, as before", "good"),
        (11, "2 of 3", "child of 7", "sleeping → ended", "ended by itself", "good"),
        (12, "", "child of 8", "not there yet → stopped", "stopped, and was not before", "bad"),
    ]
    assert view.processes(sample_report.bare(tmp_path)) == []


def test_how_a_pass_ended() -> None:
    run = TargetRun(("x",), 1, 0, 1, 1.0, Exit(signal=9))
    record = PassRecord("p", "bare", ("timing",), run=run)
    assert view.ended(record) == "killed by SIGKILL"
    assert view.ended(replace(record, run=replace(run, ended_by="timeout"))) == "killed by SIGKILL (time-out)"
    assert view.ended(replace(record, run=replace(run, exit=None))) == "ended; how is unknown"
    assert view.ended(replace(record, run=replace(run, exit=None, ended_by="detached"))) == "still running"
    assert view.ended(replace(record, run=replace(run, start_error="no such file"))) == "not started: no such file"
    assert view.ended(replace(record, run=None)) is None


def test_trust_is_the_least_of_a_pass(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    trusts = {p.id: view.trust(report, p) for p in report.passes}
    assert (trusts["p02"], trusts["p09"], trusts["p10"], trusts["p12"]) == (None, "high", "distorted", None)


def test_any_machine_becomes_groups() -> None:
    machine = {
        "cpu": {"model": None, "caches": {"l3": "32 MB"}},
        "gpus": [{"index": 0, "memory_bytes": 8e9}, {"index": 1, "memory_bytes": None}],
        "load_average": [0.5, 1.25],
        "environment": {"TF_CONFIG": "x"},
        "empty": {},
        "driver": None,
    }
    assert view.facts(machine) == [
        ("host", [("load average", "0.5, 1.25"), ("empty", "none"), ("driver", None)]),
        ("CPU", [("model", None), ("caches", "l3: 32 MB")]),
        ("GPUs 0", [("index", "0"), ("memory", "8 GB")]),
        ("GPUs 1", [("index", "1"), ("memory", None)]),
        ("environment", [("TF_CONFIG", "x")]),
    ]


def test_shares_are_of_the_same_capture_and_kind(tmp_path: Path) -> None:
    report = sample_report.bare(tmp_path)
    frame = pd.DataFrame({"capture": ["a", "a", "b"], "total_ns": pd.array([30, 10, None], "Int64")})
    found = view.shares(report, "x_summary", frame)
    assert found is not None and found[1] == "its capture and kind"
    assert found[0].isna().tolist() == [False, False, True]
    assert found[0][:2].tolist() == [0.75, 0.25]
    assert view.shares(report, "x_summary", frame[:2])[1] == "40 ns"  # type: ignore[index]
    assert view.shares(report, "syscall_events", frame) is None  # the slowest calls are no parts of a whole


def test_percentages_of_functions_are_of_all_stacks(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    functions = report.table("functions")
    assert functions is not None
    assert view.sampled(report, functions) == "18.3 s"
    assert view.sampled(sample_report.bare(tmp_path), functions) == "all samples"
    assert view.sampled(report, pd.concat([functions, functions.assign(kind="gil")])) == "its capture and kind"


def test_rows_of_unknown_cost_come_last() -> None:
    frame = pd.DataFrame({"name": ["a", "b", "c"], "total_ns": pd.array([None, 1, 2], "Int64")})
    assert view.ranked(frame, 2)["name"].tolist() == ["c", "b"]
    assert view.ranked(frame[["name"]], 2)["name"].tolist() == ["a", "b"]


def test_a_shortened_name_keeps_both_ends() -> None:
    name = view.short(sample_report.LONG, 60)
    assert len(name) == 60 and name.startswith("void gemm_kernel<") and name.endswith(">>(Params)")


def test_what_cannot_be_seen_is_written_out() -> None:
    assert view.visible("a\u202eb\x1b[0m\udcff\x00\r") == "a\\u202eb\\x1b[0m\\udcff\\x00\\x0d"
    assert view.visible("日本語 naïve\tok\n") == "日本語 naïve\tok\n"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (7e-06, "s", "7 µs"),
        (202_000_000, "ns", "202 ms"),
        (13_600_000_000, "bytes", "13.6 GB"),
        (4.0, "calls", "4 calls"),
        ("dense", None, "dense"),
        (None, "s", None),
    ],
)
def test_evidence_is_written_in_the_multiple_that_reads_well(
    value: float | str | None, unit: str | None, text: str | None
) -> None:
    assert view.amount(value, unit) == text
