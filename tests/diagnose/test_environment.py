"""diagnose/environment.py: what is said of a machine that was not as the plan wants it, or is not as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample_report

from orchestrator import diagnose
from orchestrator.diagnose.environment import RULES
from orchestrator.model import Finding, Outcome, Part, StepRecord
from orchestrator.render import environment, view
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
    first, second = diagnose.diagnosed(replace(report, environment=steps)).findings
    assert (first.rule, first.severity) == ("machine_not_put_back", "critical")
    assert first.title == "The machine is not as it was found: gpu_clocks"
    assert "`profrun env restore`" in first.advice and "no answer in 10 s" in first.advice
    assert second.rule == "busy_gpu"


def test_a_lock_that_seemed_to_be_there_and_was_reset_is_told(report: Report) -> None:
    """Of the GPU whose lock profrun has touched, and of no other."""
    seen = {"lock_seen": "its clock is held at 1200 MHz by a setting, which looks like a lock", "graphics_mhz": 1200}
    before = {"gpus": {"GPU-a": {"gpu": 0, **seen}, "GPU-b": {"gpu": 1, **seen}, "GPU-c": {"gpu": 2}}}
    parts = tuple(Part(f"GPU {n} graphics", "applied", after=after) for n, after in enumerate(("reset", None, "reset")))
    step = StepRecord("gpu_clocks", "applied", before=before, restored=True, parts=parts)
    (finding,) = found(report, step)
    assert (finding.rule, finding.severity) == ("former_lock_gone", "minor")
    assert finding.title.startswith("GPU 0 is not as it was found") and "1200 MHz" in finding.advice
    assert "nvidia-smi -i 0 -lgc 1200,1200" in finding.advice
    assert environment.put_back(step) == "put back, clock locks reset"


def test_the_figures_of_the_gpus_that_were_off_are_evidence(report: Report) -> None:
    off = {
        "gpu": 0,
        "samples": 99,
        "graphics_mhz": {"wanted": 1830, "min": 1620, "off": 9},
        "memory_mhz": {"wanted": 5000, "min": 5000, "off": 0},
        "held_down_pct": {"sw_power_cap": 80.0},
    }
    held = {"gpu": 1, "samples": 99, "graphics_mhz": {"wanted": 1830, "min": 1830, "off": 0}}
    (finding,) = found(report, StepRecord("gpu_clocks", "drifted", during={"GPU-a": off, "GPU-b": held}))
    assert [(e.row, e.value, e.unit) for e in finding.evidence[1:]] == [
        ("GPU 0 samples", 99, None),
        ("GPU 0 graphics wanted", 1830, "MHz"),
        ("GPU 0 graphics min", 1620, "MHz"),
        ("GPU 0 graphics off (samples)", 9, None),
        ("GPU 0 held down sw power cap", 80.0, "%"),
    ]


def test_the_figures_of_the_processors_are_evidence(report: Report) -> None:
    (finding,) = found(report, StepRecord("cpu_frequency", "drifted", during={"busy_cores": 2, "min_mhz": 800}))
    assert [(e.row, e.value, e.unit) for e in finding.evidence[1:]] == [
        ("during busy cores", 2, None),
        ("during min", 800, "MHz"),
    ]


def test_what_a_step_itself_advises_is_not_contradicted(report: Report) -> None:
    step = StepRecord("cpu_frequency", "clamped", detail="1 GHz", reason="the highest clock is 1 GHz", fix="give `max`")
    assert found(report, step)[0].advice == "Next: give `max`"


def test_the_verdict_stays_with_the_program_unless_the_machine_was_left_changed(report: Report) -> None:
    def sentence(*steps: StepRecord) -> str:
        whole = replace(report, environment=steps)
        return view.verdict(diagnose.diagnosed(whole)).sentence

    assert sentence(StepRecord("gpu_idle", "failed")) == sentence()
    assert sentence(StepRecord("shell", "applied", restored=False)).startswith("The machine is not as it was found")
