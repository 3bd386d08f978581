"""Who can share a pass: clashes in a user's words, the YAML to write instead, and `--auto-passes`, which writes it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml

from orchestrator import sharing
from orchestrator.collectors.base import Collector
from orchestrator.errors import PlanError, UsageError
from orchestrator.plan import Plan, collector_of
from orchestrator.planfile import plans

NSYS, NCU, TORCH, STRACE = {"use": "nsys"}, {"use": "ncu"}, {"use": "torch"}, {"use": "strace"}
PY_SPY, PERF, MONITOR = {"use": "py-spy"}, {"use": "perf"}, {"use": "monitor"}
TIMING, TORCH_CPU = {"use": "timing"}, {"use": "torch", "activities": ["cpu"]}
NATIVE = {"use": "py-spy", "native": True}


def members(*items: dict[str, Any]) -> tuple[Collector, ...]:
    return tuple(map(collector_of, items))


# ---------------------------------------------------------------- who can, and why not


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ((NSYS, NCU), "nsys and ncu can't share a pass: each traces the GPU through CUPTI, and CUPTI serves one"),
        ((NSYS, TORCH, NCU), "nsys, torch and ncu can't share a pass: each traces the GPU through CUPTI"),
        ((TORCH, {"use": "torch", "activities": ["cuda"]}), "torch and torch can't share a pass: each traces the GPU"),
        ((TORCH_CPU, TORCH), "torch and torch can't share a pass: each switches on torch.profiler, and a process has"),
        (({**NSYS, "gpu_metrics": True, "trace": ["osrt"]}, NCU), "nsys and ncu can't share a pass: each traces the"),
        ((STRACE, {**STRACE, "mode": "trace"}), "strace and strace-trace can't share a pass: each traces the process"),
        ((STRACE, NATIVE), "strace and py-spy can't share a pass: each traces the process (ptrace), and a process has"),
        ((NATIVE, NATIVE), "py-spy and py-spy can't share a pass: each traces the process (ptrace)"),
        ((MONITOR, TIMING), "timing can't share a pass: it measures the undisturbed run"),
    ],
)
def test_who_cannot_share_a_pass_is_told_with_the_reason(items: Any, said: str) -> None:
    found = sharing.clashes(members(*items))
    assert len(found) == 1 and found[0].startswith(said)


@pytest.mark.parametrize(
    "items",
    [
        (NSYS, STRACE, PY_SPY, PERF, MONITOR, TORCH_CPU),
        (NCU, STRACE, PY_SPY, PERF, MONITOR, TORCH_CPU),
        (STRACE, {**PY_SPY, "gil": True}),
        (STRACE, {**PY_SPY, "nonblocking": True}),
        (PERF, {**PERF, "mode": "record"}, MONITOR, MONITOR),
        (PY_SPY, PY_SPY, NATIVE),
        (TIMING,),
    ],
)
def test_who_can(items: Any) -> None:
    assert sharing.clashes(members(*items)) == ()
    assert sharing.passes(members(*items)) == (members(*items),)


def test_all_reasons_are_told_at_once_each_with_all_whom_it_concerns() -> None:
    found = sharing.clashes(members(NSYS, STRACE, TIMING, TORCH, NATIVE, MONITOR, NCU))
    assert [text.partition(" can't")[0] for text in found] == ["timing", "nsys, torch and ncu", "strace and py-spy"]


@pytest.mark.parametrize(
    ("items", "ways"),
    [
        ((NSYS, TORCH), ("`activities: [cpu]` in torch",)),
        ((STRACE, NATIVE), ("`nonblocking: true, native: false` in py-spy",)),
        ((NSYS, NCU, TORCH), ()),
        ((STRACE, STRACE), ()),
    ],
)
def test_an_option_that_keeps_them_together_is_named_where_it_is_enough(items: Any, ways: Any) -> None:
    assert sharing.ways_out(members(*items)) == ways


def test_the_named_options_do_keep_them_together() -> None:
    assert not sharing.clashes(members(STRACE, {"use": "py-spy", "nonblocking": True, "native": False}))
    assert not sharing.clashes(members(NSYS, TORCH_CPU))


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ((NSYS, TORCH, MONITOR, TIMING), [["nsys", "monitor"], ["torch"], ["timing"]]),
        ((TIMING, NSYS, MONITOR, TORCH, STRACE), [["timing"], ["nsys", "monitor", "strace"], ["torch"]]),
        ((NSYS, NCU, TORCH), [["nsys"], ["ncu"], ["torch"]]),
        ((TORCH_CPU, NSYS, TORCH, NCU), [["torch", "nsys"], ["torch"], ["ncu"]]),
        ((STRACE, NATIVE, PY_SPY), [["strace", "py-spy"], ["py-spy"]]),
        ((), []),
    ],
)
def test_the_passes_that_they_take_instead(items: Any, expected: Any) -> None:
    assert [[member.use for member in group] for group in sharing.passes(members(*items))] == expected


def test_what_chooses_from_another_s_kernels_comes_after_it() -> None:
    chooses = {"use": "ncu", "kernels": {"from": "torch"}}
    groups = sharing.passes(members(MONITOR, {"use": "torch", "activities": ["cpu"]}, chooses))
    assert [[member.use for member in group] for group in groups] == [["monitor", "torch"], ["ncu"]]


# ---------------------------------------------------------------- a plan that clashes


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def _write(text: str, name: str = "p.yaml") -> str:
        Path(name).write_text(dedent(text))
        return name

    return _write


CLASHING = """\
    version: 1
    collectors:
      - use: timing
        repeats: 2
      - together:
          - {use: nsys, trace: [cuda, nvtx], range: "a: b"}
          - use: torch
            stacks: true
          - {use: monitor, interval: 100ms}
          - {use: timing, repeats: 1}
      - together: [{use: py-spy, rate: 250}, {use: monitor}]
      - together: [{use: strace}, {use: py-spy, native: true}]
"""


def uses(plan: Plan) -> list[list[str]]:
    return [[member.use for member in group] for group in plan.groups()]


SPLIT = [["timing"], ["nsys", "monitor"], ["torch"], ["timing"], ["py-spy", "monitor"], ["strace"], ["py-spy"]]


def test_every_clash_is_refused_at_once_with_its_line_and_the_yaml_to_write(write: Any) -> None:
    with pytest.raises(PlanError) as raised:
        plans.load(write(CLASHING))
    assert [(problem.line, problem.path) for problem in raised.value.problems] == [
        (5, "collectors[1]"),
        (12, "collectors[3]"),
    ]
    assert "--auto-passes" in raised.value.next_step
    assert raised.value.problems[0].instead.splitlines() == [
        "- together:",
        "    - {use: nsys, trace: [cuda, nvtx], range: 'a: b'}",
        "    - {use: monitor, interval: 100ms}",
        "- {use: torch, stacks: true}",
        "- {use: timing, repeats: 1}",
    ]


def test_what_is_told_to_write_instead_is_what_auto_passes_makes(write: Any) -> None:
    with pytest.raises(PlanError) as raised:
        plans.load(write(CLASHING))
    first, second = (yaml.safe_load(problem.instead) for problem in raised.value.problems)
    items = [{"use": "timing", "repeats": 2}, *first]
    items += [{"together": [{"use": "py-spy", "rate": 250}, {"use": "monitor"}]}, *second]
    by_hand = plans.load(write(yaml.safe_dump({"version": 1, "collectors": items}), "q.yaml"))
    split = plans.load(write(CLASHING), auto_passes=True)
    assert uses(split) == SPLIT
    assert split.groups() == by_hand.groups()


def test_the_split_plan_is_a_plan_like_any_other(write: Any) -> None:
    plan = plans.load(write(CLASHING), ["collectors.nsys.fork=true"], auto_passes=True)
    assert plan.source_map["collectors[2].stacks"] == ("p.yaml", 8)
    assert plan.groups()[1][0].model_dump()["fork"] is True
    again = plans.load(write(plans.dump(plan), "again.yaml"))
    assert again.groups() == plan.groups() and again.splits == ()


def test_what_was_split_is_told(write: Any) -> None:
    told = [split.text() for split in plans.load(write(CLASHING), auto_passes=True).splits]
    assert len(told) == 2
    assert told[0].startswith("p.yaml:5: split into 3 passes, nsys+monitor, torch, timing: timing can't share a pass")
    assert told[1].startswith("p.yaml:12: split into 2 passes, strace, py-spy: strace and py-spy can't share a pass")


def test_a_plan_without_clashes_stays_as_it_is(write: Any) -> None:
    path = write("version: 1\ncollectors: [{together: [{use: nsys}, {use: monitor}]}, {use: torch}]\n")
    assert plans.load(path, auto_passes=True) == plans.load(path)
    assert plans.load(path, auto_passes=True).splits == ()


def test_other_problems_are_told_all_the_same_and_on_their_lines(write: Any) -> None:
    text = """\
        version: 1
        collectors:
          - together: [{use: nsys}, {use: torch}]
          - together:
              - {use: strace, mod: trace}
              - {use: strace}
          - {use: ncu, skip: many}
          - together: 7
        """
    with pytest.raises(PlanError) as raised:
        plans.load(write(text), auto_passes=True)
    assert [problem.line for problem in raised.value.problems] == [5, 7, 8]
    with pytest.raises(PlanError, match="collectors: needs a list"):
        plans.load(write("version: 1\ncollectors: {together: []}\n"), auto_passes=True)


def test_ncu_beside_the_nsys_that_it_chooses_from_comes_after_it(write: Any) -> None:
    path = write("version: 1\ncollectors: [{together: [{use: nsys}, {use: ncu, kernels: {from: nsys}}]}]\n")
    assert uses(plans.load(path, auto_passes=True)) == [["nsys"], ["ncu"]]


@pytest.mark.parametrize(
    ("only", "skip", "left", "count"),
    [
        ((), (), SPLIT, 2),
        (("strace",), (), [["strace"]], 0),
        (("torch,monitor",), (), [["torch", "monitor"], ["monitor"]], 0),
        (("nsys,torch,monitor",), (), [["nsys", "monitor"], ["torch"], ["monitor"]], 1),
        ((), ("nsys", "timing"), [["torch", "monitor"], ["py-spy", "monitor"], ["strace"], ["py-spy"]], 1),
    ],
)
def test_those_that_are_chosen_share_what_they_can(write: Any, only: Any, skip: Any, left: Any, count: int) -> None:
    plan = plans.select(plans.load(write(CLASHING), auto_passes=True), only, skip)
    assert uses(plan) == left
    assert len(plan.splits) == count


def test_a_choice_can_be_made_of_a_choice(write: Any) -> None:
    plan = plans.select(plans.load(write(CLASHING), auto_passes=True), skip=["timing"])
    assert uses(plans.select(plan, ["nsys,monitor"])) == [["nsys", "monitor"], ["monitor"]]
    with pytest.raises(UsageError, match="no collector is left"):
        plans.select(plan, ["nsys"], ["nsys"])
