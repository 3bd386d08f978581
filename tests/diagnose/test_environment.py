"""diagnose/environment.py: what is said of a machine that was not as the plan wants it, or is not as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_report

from orchestrator import diagnose
from orchestrator.diagnose.environment import RULES
from orchestrator.model import Finding, Outcome, StepRecord
from orchestrator.render import view
from orchestrator.report import Report


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return replace(sample_report.bare(tmp_path), outcome=Outcome("ok", 0, ""))


def found(report: Report, *steps: StepRecord) -> list[Finding]:
    whole = replace(report, environment=steps)
    return [finding for rule in RULES for finding in rule(whole)]


def test_a_machine_as_the_plan_wants_it_and_as_it_was_is_no_finding(report: Report) -> None:
    fine = (StepRecord("cpu_frequency", "applied", restored=True), StepRecord("cpu_idle", "already"))
    assert found(report) == found(report, *fine) == []


@pytest.mark.parametrize(
    ("step", "rule", "severity", "title", "advice"),
    [
        (
            StepRecord("gpu_idle", "failed", reason="GPU 0: used by pid 7 (bob, python x.py)", fix="end what uses it"),
            "busy_gpu",
            "major",
            "The GPU was not idle: GPU 0: used by pid 7 (bob, python x.py)",
            "Times on a shared GPU say little. Next: end what uses it.",
        ),
        (
            StepRecord("cpu_idle", "failed", reason="2 of 2 cores are busier than 50 %; pid 7 (bob, x) 99 % of a core"),
            "busy_machine",
            "minor",
            "The machine was not idle: 2 of 2 cores are busier than 50 %",
            "pid 7 (bob, x) 99 % of a core. Small differences may come from that. Next: wait for it (`wait: 10m` on "
            "cpu_idle).",
        ),
        (
            StepRecord("gpu_clocks", "drifted", reason="clock lock not held: wanted 1830, saw 1620 / 1750 / 1830 MHz"),
            "clock_not_held",
            "major",
            "Clock lock not held: wanted 1830, saw 1620 / 1750 / 1830 MHz",
            "Next: lock a lower clock, one that the GPU holds under this load, or find what holds it down.",
        ),
        (
            StepRecord("gpu_clocks", "drifted", reason="GPU 0: persistence mode is off"),
            "step_not_in_force",
            "minor",
            "gpu_clocks was not in force when the program ran: GPU 0: persistence mode is off",
            "Find out what changed it back; the figures of this run are those of the machine as it then was.",
        ),
        (
            StepRecord("cpu_frequency", "refused", reason="only root may.", detail="EACCES", fix="sudo visudo"),
            "step_not_in_force",
            "minor",
            "cpu_frequency was refused (EACCES): only root may",
            "Give the permission that the reason names, or take the step out of the plan. Next: sudo visudo",
        ),
        (
            StepRecord("gpu_idle", "not_available", reason="there is no NVIDIA driver here"),
            "step_not_in_force",
            "info",
            "gpu_idle is not possible on this machine: there is no NVIDIA driver here",
            "Compare with runs on this machine only, or choose one that can do it; else take the step out.",
        ),
        (
            StepRecord("cpu_frequency", "clamped", detail="2.9 GHz"),
            "step_not_in_force",
            "info",
            "cpu_frequency was applied only as far as this machine goes (2.9 GHz)",
            "Write the value that was reached into the plan, so that every machine gets the same.",
        ),
        (
            StepRecord("seeds", "drifted", reason="a launcher dropped PYTHONHASHSEED"),
            "step_not_in_force",
            "minor",
            "seeds was not in force when the program ran: a launcher dropped PYTHONHASHSEED",
            "Find out what changed it back; the figures of this run are those of the machine as it then was.",
        ),
        (
            StepRecord("shell", "failed", reason="gdm: no such unit"),
            "step_not_in_force",
            "minor",
            "shell did not work: gdm: no such unit",
            "Look at the reason; until it is mended, times of different runs may differ because of it.",
        ),
    ],
    ids=lambda value: f"{value.use} {value.status}" if isinstance(value, StepRecord) else "",
)
def test_each_way_to_miss_the_plans_state_is_one_finding(
    report: Report, step: StepRecord, rule: str, severity: str, title: str, advice: str
) -> None:
    (finding,) = found(report, step)
    assert (finding.rule, finding.category, finding.severity) == (rule, "environment", severity)
    assert (finding.title, finding.advice) == (title, advice)
    assert [(e.table, e.row, e.value) for e in finding.evidence] == [
        ("environment", step.use, step.status.replace("_", " "))
    ]


def test_of_what_the_plan_ignores_there_is_no_more_than_a_note(report: Report) -> None:
    for use in ("gpu_idle", "shell"):
        (finding,) = found(report, StepRecord(use, "failed", ignored=True))
        assert finding.severity == "info"


def test_what_is_not_put_back_is_critical_and_comes_first(report: Report) -> None:
    steps = (
        StepRecord("gpu_idle", "failed"),
        StepRecord("gpu_clocks", "applied", restored=False, reason="no answer in 10 s"),
        StepRecord("shell", "applied", restored=True),
    )
    first, second = diagnose.findings(replace(report, environment=steps))
    assert (first.rule, first.severity) == ("machine_not_put_back", "critical")
    assert first.title == "The machine is not as it was found: gpu_clocks"
    assert "`profrun env restore`" in first.advice and "no answer in 10 s" in first.advice
    assert second.rule == "busy_gpu"


def test_figures_seen_during_the_passes_are_evidence(report: Report) -> None:
    during: dict[str, Any] = {"GPU-1": {"samples": 9, "graphics_mhz": {"min": 1620, "max": 1830}, "held": False}}
    (finding,) = found(report, StepRecord("gpu_clocks", "drifted", during=during))
    assert [(e.row, e.value) for e in finding.evidence] == [
        ("gpu_clocks", "drifted"),
        ("during GPU-1 samples", 9),
        ("during GPU-1 graphics_mhz min", 1620),
        ("during GPU-1 graphics_mhz max", 1830),
    ]


def test_the_verdict_stays_with_the_program_unless_the_machine_was_left_changed(report: Report) -> None:
    def sentence(*steps: StepRecord) -> str:
        whole = replace(report, environment=steps)
        return view.verdict(replace(whole, findings=diagnose.findings(whole))).sentence

    assert sentence(StepRecord("gpu_idle", "failed")) == sentence()
    assert sentence(StepRecord("shell", "applied", restored=False)).startswith("The machine is not as it was found")
