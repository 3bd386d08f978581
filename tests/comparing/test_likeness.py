"""Which differences between two runs refuse a comparison, which are only marked, and that both values are named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from two_runs import MACHINE, PLAN, Job, make

from orchestrator.compare import compare
from orchestrator.comparing.words import Comparison, Unlike
from orchestrator.model import Part, StepRecord

GPU = {"name": "NVIDIA A100", "driver": "550.54"}


def beside(folder: Path, other: Job, job: Job | None = None) -> Comparison:
    return compare(make(folder / "a", job or Job(steps=30), 1), make(folder / "b", other, 2))


def only(comparison: Comparison) -> Unlike:
    (one,) = comparison.unlike
    return one


def test_equal_runs_are_alike(tmp_path: Path) -> None:
    assert beside(tmp_path, Job(steps=30)).unlike == ()


@pytest.mark.parametrize(
    ("machine", "fact", "a", "b"),
    [
        ({"cpu": {**MACHINE["cpu"], "model": "Intel Xeon 8480"}}, "CPU", "AMD EPYC 7763", "Intel Xeon 8480"),
        ({"cpu": {**MACHINE["cpu"], "governor": "powersave"}}, "CPU governor", "performance", "powersave"),
        ({"cpu": {**MACHINE["cpu"], "usable": 4}}, "usable CPUs", "16", "4"),
        ({"target": {"python": "3.11.7", "torch": "2.9.0"}}, "torch", "2.13.0+cpu", "2.9.0"),
        ({"target": {"python": "3.13.1", "torch": "2.13.0+cpu"}}, "Python", "3.11.7", "3.13.1"),
        ({"gpus": [GPU, GPU]}, "GPUs", "none", "2 x NVIDIA A100"),
    ],
)
def test_another_machine_or_torch_is_refused(
    tmp_path: Path, machine: Mapping[str, Any], fact: str, a: str, b: str
) -> None:
    found = beside(tmp_path, Job(steps=30).on(**machine))
    one = next(one for one in found.unlike if one.fact == fact)
    assert (one.a, one.b, one.how, one.severity) == (a, b, "differs", "refuse")
    assert found.refused and found.step is None and found.changes == ()
    assert fact in found.headline


def test_another_driver_is_refused(tmp_path: Path) -> None:
    new = {**GPU, "driver": "570.86"}
    one = only(beside(tmp_path, Job(steps=30).on(gpus=[new]), Job(steps=30).on(gpus=[GPU])))
    assert (one.fact, one.a, one.b, one.severity) == ("GPU driver", "550.54", "570.86", "refuse")


def clocks(status: Any, verified: str) -> tuple[StepRecord, ...]:
    part = Part("graphics", status, wanted="1530 MHz", verified=verified)
    return (StepRecord("gpu_clocks", status, parts=(part,)),)


@pytest.mark.parametrize(
    ("status", "verified", "said"),
    [("applied", "1410 MHz", "1410 MHz"), ("refused", "1530 MHz", "refused")],
)
def test_other_clocks_are_refused(tmp_path: Path, status: Any, verified: str, said: str) -> None:
    held = Job(steps=30, environment=clocks("applied", "1530 MHz"))
    found = beside(tmp_path, replace(held, environment=clocks(status, verified)), held)
    refused = [one for one in found.unlike if one.fact.startswith("environment gpu_clocks")]
    assert refused and all(one.severity == "refuse" for one in refused)
    assert any(said in str(one.b) for one in refused)


def test_anyway_compares_and_says_so(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", Job(steps=30), 1), make(tmp_path / "b", Job(steps=30).on(architecture="aarch64"), 2)
    found = compare(a, b, anyway=True)
    assert not found.refused and found.anyway
    assert found.step is not None
    assert "unlike" in found.notes[0]


def test_a_program_that_failed_did_other_work(tmp_path: Path) -> None:
    one = only(beside(tmp_path, Job(steps=30, exit_code=1)))
    assert (one.fact, one.a, one.b, one.severity) == ("how the program ended", "exit 0", "exit 1", "refuse")


def test_programs_that_failed_alike_are_no_measure(tmp_path: Path) -> None:
    failed = Job(steps=30, exit_code=1)
    found = beside(tmp_path, failed, failed)
    assert (only(found).severity, only(found).a, only(found).b) == ("refuse", "exit 1", "exit 1")
    assert found.refused and found.step is None


def test_an_exit_status_that_the_plan_calls_success_is_no_failure(tmp_path: Path) -> None:
    plan = PLAN.replace("inject: true", "inject: true, ok_exit_codes: [0, 3]")
    fine = Job(steps=30, exit_code=3, plan=plan)
    found = beside(tmp_path, fine, fine)
    assert found.unlike == () and found.step is not None


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        (lambda job: job.on(hostname="node-18"), "host"),
        (lambda job: job.on(kernel="6.12.0"), "kernel"),
        (lambda job: job.on(load_average=[11.0, 4.0, 1.0]), "load before"),
        (lambda job: job.on(environment_variables={"OMP_NUM_THREADS": "4"}), "environment variables"),
        (lambda job: replace(job, plan=PLAN.replace("rate: 100Hz", "rate: 200Hz")), "plan collectors.py-spy.rate"),
        (lambda job: replace(job, plan=PLAN.replace("repeats: 5", "repeats: 9")), "plan collectors.timing.repeats"),
        (lambda job: replace(job, status="degraded"), "capture py-spy"),
    ],
)
def test_what_may_differ_is_marked(tmp_path: Path, change: Any, fact: str) -> None:
    found = beside(tmp_path, change(Job(steps=30)))
    one = only(found)
    assert (one.fact, one.how, one.severity) == (fact, "differs", "mark")
    assert one.a != one.b and None not in (one.a, one.b)
    assert not found.refused and found.step is not None


def test_a_load_before_both_runs_is_a_note(tmp_path: Path) -> None:
    found = beside(tmp_path, *[Job(steps=30).on(load_average=[11.0, 4.0, 1.0])] * 2)
    assert [one.fact for one in found.unlike] == []
    assert any(note.startswith("the machine was busy before both runs: a load of 11") for note in found.notes)


def test_another_window_is_another_plan(tmp_path: Path) -> None:
    other = Job(steps=30, plan=PLAN.replace("window: null", "window: {skip: 5, steps: 20}"))
    one = only(beside(tmp_path, other))
    assert (one.fact, one.a, one.severity) == ("plan window", "none", "refuse")
    assert one.b is not None and "20" in one.b


def test_options_of_a_collector_that_only_one_plan_has_are_one_difference(tmp_path: Path) -> None:
    other = Job(steps=30, plan=PLAN + "- {use: strace, mode: summary, classes: [file]}\n")
    one = only(beside(tmp_path, other))
    assert (one.fact, one.a, one.b) == ("plan collectors.strace", "none", "used")


def test_unknown_facts_are_marked_and_never_refused(tmp_path: Path) -> None:
    found = beside(tmp_path, Job(steps=30).on(gpus=None, target={}))
    assert {(one.fact, one.a, one.b) for one in found.unlike} == {
        ("GPUs", "none", None),
        ("GPU driver", "none", None),
        ("Python", "3.11.7", None),
        ("torch", "2.13.0+cpu", None),
    }
    assert all((one.how, one.severity) == ("unknown", "mark") for one in found.unlike)
    assert not found.refused


def test_what_is_unknown_of_both_is_named_where_it_matters(tmp_path: Path) -> None:
    blind = Job(steps=30).on(cpu={**MACHINE["cpu"], "governor": None, "smt": None})
    one = only(beside(tmp_path, blind, blind))
    assert (one.fact, one.a, one.b, one.how) == ("CPU governor", None, None, "unknown")


def test_a_report_without_a_plan_says_so(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a", Job(steps=30), 1), make(tmp_path / "b", Job(steps=30), 2)
    (tmp_path / "b" / "plan.yaml").unlink()
    one = only(compare(a, b))
    assert (one.fact, one.b, one.how) == ("plan", None, "unknown")
