"""trust.py: how far a pass is that of the program as it runs alone, and what that does to what is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from sample_report import STARTED_NS, bare

from orchestrator import judging, trust
from orchestrator.model import Capture, Exit, PassRecord, TargetRun
from orchestrator.report import pass_from, summary


def run(wall_s: float, ended_by: str = "itself") -> TargetRun:
    end = STARTED_NS + int(wall_s * 1e9)
    return TargetRun(("x",), 1, STARTED_NS, end, wall_s, Exit(0), ended_by=ended_by)  # type: ignore[arg-type]


BARE = tuple(PassRecord(f"p0{n}", "bare", ("timing",), n, run(wall_s)) for n, wall_s in enumerate((10.0, 10.2, 9.8), 1))
STEPS = {"p01": 0.100, "p02": 0.102, "p03": 0.098}


def slowed(wall_s: float, step_s: float | None = None) -> PassRecord:
    passes = (*BARE, PassRecord("p04", "profiled", ("nsys",), 1, run(wall_s)))
    return trust.compared(passes, {**STEPS, "p04": step_s})[-1]


@pytest.mark.parametrize(
    ("wall_s", "step_s", "expected"),
    [
        (10.3, 0.101, "high"),
        (10.3, None, "high"),
        (17.0, 0.101, "distorted"),
        (10.9, 0.140, "distorted"),
        (9.5, 0.060, "distorted"),
        (30.0, None, "distorted"),
        (110.0, None, "low"),
        (14.0, 1.200, "low"),
    ],
)
def test_a_pass_is_judged_by_its_wall_time_and_by_its_steps(wall_s: float, step_s: float | None, expected: str) -> None:
    assert trust.of(slowed(wall_s, step_s)) == expected


def test_steps_are_compared_with_an_interval(tmp_path: Path) -> None:
    record = slowed(10.9, 0.140)
    assert record.step_slowdown == pytest.approx(1.4)
    low, high = record.step_slowdown_ci95 or (0, 0)
    assert 1.2 < low < 1.4 < high < 1.6
    assert trust.words(record) == (f"a usual step took 1.40 times as long as alone ({low:.2f} to {high:.2f})",)
    (stored,) = summary(replace(bare(tmp_path), passes=(record,)))["passes"]
    assert pass_from(stored).step_slowdown_ci95 == record.step_slowdown_ci95


def test_what_chance_may_explain_bends_nothing() -> None:
    """Bare steps that vary by a third among themselves say nothing of 1.3 times as long."""
    uneven = {"p01": 0.070, "p02": 0.100, "p03": 0.130, "p04": 0.130}
    record = trust.compared((*BARE, PassRecord("p04", "profiled", ("nsys",), 1, run(10.0))), uneven)[-1]
    assert record.step_slowdown == pytest.approx(1.3) and trust.of(record) == "high"


def test_without_steps_or_bare_runs_nothing_is_compared() -> None:
    assert slowed(10.3).step_slowdown is None and trust.words(slowed(10.3)) == ()
    alone = trust.compared((PassRecord("p04", "profiled", ("nsys",), 1, run(10.0)),), {"p04": 0.1})[0]
    assert (alone.slowdown, alone.step_slowdown, trust.of(alone)) == (None, None, "high")
    cut = trust.compared((*BARE, PassRecord("p04", "profiled", ("x",), 1, run(10.0, "timeout"))), {})[-1]
    assert cut.slowdown is None


def test_a_finding_is_as_sure_as_its_least_bent_source(tmp_path: Path) -> None:
    slow, quick = replace(slowed(30.0), id="p04"), replace(slowed(10.0), id="p05")
    captures = (
        Capture("p04-strace", "p04", "strace", "ok", trust="distorted"),
        Capture("p04-perf", "p04", "perf", "ok", trust="low"),
        Capture("p05-py-spy", "p05", "py-spy", "ok"),
    )
    report = replace(bare(tmp_path), passes=(slow, quick), captures=captures)
    assert judging.confidence(report, ["p04-strace"]) == "medium"
    assert judging.confidence(report, ["p04-strace"], "medium") == "low"
    assert judging.confidence(report, ["p04-perf"]) == "low"
    assert judging.confidence(report, ["p04-strace", "p05-py-spy"]) == "high"
    assert judging.confidence(report, []) == "high"
    same_steps = replace(slow, step_slowdown=1.02)
    assert judging.confidence(replace(report, passes=(same_steps, quick)), ["p04-strace"]) == "high"
