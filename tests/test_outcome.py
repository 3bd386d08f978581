"""The exit status: which of several things that went wrong is told."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from orchestrator.model import Capture, Exit, PassRecord, StepRecord, TargetRun
from orchestrator.outcome import judge


def run(code: int | None = 0, number: int | None = None, **more: object) -> TargetRun:
    return TargetRun(("x",), 1, 0, 1, 1.0, Exit(code, number), **more)  # type: ignore[arg-type]


def record(role: str, target: TargetRun | None, id_: str = "p01") -> PassRecord:
    return PassRecord(id_, role, ("timing",), run=target)  # type: ignore[arg-type]


def capture(status: str, required: bool = True) -> Capture:
    return Capture("p02-nsys", "p02", "nsys", status, "it was so", required=required)  # type: ignore[arg-type]


def test_all_well() -> None:
    outcome = judge([record("bare", run())], [capture("ok")], [])
    assert (outcome.exit_code, outcome.status, outcome.target_exit_code) == (0, "ok", 0)


@pytest.mark.parametrize(("target", "status"), [(run(7), 7), (run(None, 9), 137), (run(None, 6), 134)])
def test_the_targets_own_status_is_passed_on(target: TargetRun, status: int) -> None:
    outcome = judge([record("bare", target)], [capture("tool_failed")], [])
    assert (outcome.exit_code, outcome.status) == (status, "target_failed")


def test_ok_exit_codes_count_as_success() -> None:
    assert judge([record("bare", run(3))], [], [], ok_exit_codes=(0, 3)).exit_code == 0


def test_the_bare_pass_decides_about_the_target() -> None:
    passes = [record("profiled", run(1), "p01"), record("bare", run(0), "p02")]
    assert judge(passes, [capture("ok")], []).exit_code == 0
    assert judge(passes[:1], [capture("ok")], []).exit_code == 1


def test_a_target_that_could_not_be_started() -> None:
    outcome = judge([record("bare", run(126, start_error="Exec format error"))], [], [])
    assert outcome.exit_code == 126
    assert "Exec format error" in outcome.reason


@pytest.mark.parametrize("status", ["tool_failed", "blocked", "skipped", "unreadable", "timed_out", "cancelled"])
def test_a_required_collector_without_data(status: str) -> None:
    outcome = judge([record("bare", run())], [capture(status)], [])
    assert (outcome.exit_code, outcome.status) == (4, "incomplete")
    assert "nsys" in outcome.reason
    assert "it was so" in outcome.reason
    assert judge([record("bare", run())], [capture(status, required=False)], []).exit_code == 0


@pytest.mark.parametrize("status", ["empty", "degraded"])
def test_what_is_no_failure_unless_strict(status: str) -> None:
    passes = [record("bare", run())]
    assert judge(passes, [capture(status)], []).exit_code == 0
    assert judge(passes, [capture(status)], [], strict=True).exit_code == 4


def test_the_order_of_reasons() -> None:
    late = record("profiled", run(None, 9, ended_by="timeout"), "p02")
    failed = record("bare", run(7))
    step = StepRecord("gpu_clocks", "failed", reason="no driver")
    everything: dict[str, Any] = {"passes": [failed, late], "captures": [capture("blocked")], "environment": [step]}
    everything["environment_failed"] = True
    assert judge(**everything, interrupted_by=signal.SIGTERM).exit_code == 143
    assert judge(**everything).exit_code == 124
    everything["passes"] = [failed]
    assert judge(**everything).exit_code == 7
    everything["passes"] = [record("bare", run())]
    assert judge(**everything).exit_code == 5
    everything["environment_failed"] = False
    assert judge(**everything).exit_code == 4


def test_an_interrupted_target_that_chose_its_status() -> None:
    interrupted = record("bare", run(42, ended_by="interrupt"))
    assert judge([interrupted], [], [], interrupted_by=signal.SIGINT).exit_code == 42
    by_signal = record("bare", run(None, 2, ended_by="interrupt"))
    assert judge([by_signal], [], [], interrupted_by=signal.SIGINT).exit_code == 130
    cleaned_up = record("bare", run(0, ended_by="interrupt"))
    assert judge([cleaned_up], [], [], interrupted_by=signal.SIGINT).exit_code == 130


def test_a_window_that_stops_the_target_is_success() -> None:
    assert judge([record("bare", run(None, 2, ended_by="window"))], [], []).exit_code == 0


@pytest.mark.parametrize(
    ("target", "code"), [(run(42, ended_by="interrupt"), 42), (run(137, ended_by="interrupt"), 130)]
)
def test_only_a_status_that_the_target_chose_itself_stands_for_an_interrupt(target: TargetRun, code: int) -> None:
    """137 is what a tool around it says of a target that was killed."""
    outcome = judge([record("bare", target)], [], [], interrupted_by=signal.SIGINT)
    assert (outcome.exit_code, outcome.status) == (code, "interrupted")
