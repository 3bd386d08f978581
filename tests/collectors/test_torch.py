"""The torch collector: what it asks of the part inside the target, and what it makes of what that left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collectors.base import Parsed
from orchestrator.collectors.torch import Torch
from orchestrator.errors import ParseError
from orchestrator.model import Artifact, Capture, Job, Target, Tool, Window
from orchestrator.plan import Together

TARGET = Target(("python", "train.py"), "/usr/bin/python", "/work", {})


def settings(window: Window | None = None, **options: Any) -> dict[str, Any]:
    job = Job("p2", "/scratch/p2-torch", TARGET, Tool("torch.profiler", None), window=window)
    inject = Torch.model_validate({"use": "torch", **options}).launch(job).child.inject
    assert set(inject) == {"torch"}
    return dict(inject["torch"])


def test_without_a_window_a_few_steps_are_recorded_and_never_the_whole_program() -> None:
    asked = settings()
    assert (asked["skip"], asked["steps"]) == (5, 10)
    assert asked["without_steps_after_s"] > 0
    assert asked["for_s"] > 0
    assert asked["max_s"] > 0
    assert asked["max_rss_bytes"] > 0
    assert asked["stacks"] is False


def test_a_window_in_steps_or_in_time_is_followed() -> None:
    by_steps = settings(Window(skip=2, steps=7))
    assert (by_steps["skip"], by_steps["steps"]) == (2, 7)
    assert "without_steps_after_s" not in by_steps
    by_time = settings(Window(after_s=1.5, for_s=2.0))
    assert (by_time["skip"], by_time["after_s"], by_time["for_s"]) == (None, 1.5, 2.0)


def test_it_says_nothing_of_options_that_are_off() -> None:
    assert settings(history=True, history_entries=7)["history"] == 7
    assert settings()["history"] == 0
    assert settings(activities=["cpu"])["activities"] == ["cpu"]


@pytest.mark.parametrize("other", [{"use": "nsys"}, {"use": "ncu"}, {"use": "torch"}])
def test_two_that_need_the_gpu_s_tracing_do_not_share_a_pass(other: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"can't share a pass: each traces the GPU through CUPTI"):
        Together.model_validate({"together": [{"use": "torch"}, other]})


def test_on_the_cpu_alone_it_shares_a_pass_with_nsys() -> None:
    shared = Together.model_validate({"together": [{"use": "torch", "activities": ["cpu"]}, {"use": "nsys"}]})
    assert [collector.use for collector in shared.together] == ["torch", "nsys"]


# ---------------------------------------------------------------- what was left


def parsed(folder: Path, *facts: dict[str, Any], rank: int | None = None) -> Parsed:
    home = folder / "raw" / "p2-torch"
    home.mkdir(parents=True, exist_ok=True)
    artifacts = []
    for number, one in enumerate(facts):
        path = home / f"{number}.facts.json"
        path.write_text(json.dumps(one))
        artifacts.append(Artifact("facts", str(path.relative_to(folder)), "json", 1, "", 0))
    capture = Capture("p2-torch", "p2", "torch", "ok", rank=rank, artifacts=tuple(artifacts), root=folder)
    return Torch.model_validate({"use": "torch"}).parse(capture)


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ((), "nothing was recorded: no Python process with torch came to its end in the target, or it could not write"),
        (
            ({"recorded": False, "why": "never", "steps": 4},),
            "the target ended after 4 steps, before the window opened",
        ),
        (
            ({"recorded": False, "why": "never", "steps": 0}, {"recorded": False, "why": "aside", "steps": 0}),
            "the target profiles itself with torch.profiler: profrun's stepped aside, as two would spoil both",
        ),
    ],
)
def test_why_there_is_no_trace(tmp_path: Path, facts: tuple[dict[str, Any], ...], reason: str) -> None:
    found = parsed(tmp_path, *facts)
    assert (found.status, found.reason) == ("empty", reason)


def test_a_program_without_steps_is_told_what_to_do(tmp_path: Path) -> None:
    reason = parsed(tmp_path, {"recorded": False, "why": "never", "steps": 0}).reason
    assert reason is not None
    assert "no training or inference step was seen" in reason
    assert "{after: 60s, for: 5s}" in reason


def test_a_trace_whose_end_is_missing_is_no_whole_one(tmp_path: Path) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    whole = json.dumps({"schemaVersion": 1, "traceEvents": [event, event]})
    for text, status in ((whole, None), (whole[:-20], "degraded")):
        folder = tmp_path / str(status)
        trace = folder / "raw" / "p2-torch" / "traces" / "0.trace.json"
        trace.parent.mkdir(parents=True)
        trace.write_text(text)
        found = parsed(folder, {"recorded": True, "by_steps": True, "pid": 1, "bytes": len(text)})
        assert found.status == status
    assert found.reason == "truncated: the end of the trace is missing"


@pytest.mark.parametrize(("rank", "reason"), [(1, None), (None, "no trace of rank 0")])
def test_of_a_task_that_is_one_rank_no_other_trace_is_missing(
    tmp_path: Path, rank: int | None, reason: str | None
) -> None:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1.0, "dur": 2.0}
    trace = tmp_path / "raw" / "p2-torch" / "traces" / "0.trace.json"
    trace.parent.mkdir(parents=True)
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    facts = {"recorded": True, "by_steps": True, "pid": 1, "rank": 1, "ranks_here": [0, 2]}
    assert parsed(tmp_path, facts, rank=rank).reason == reason


def test_damaged_facts_are_named(tmp_path: Path) -> None:
    home = tmp_path / "raw" / "p2-torch"
    home.mkdir(parents=True)
    (home / "1.facts.json").write_text("{")
    artifact = Artifact("facts", "raw/p2-torch/1.facts.json", "json", 1, "", 0)
    capture = Capture("p2-torch", "p2", "torch", "ok", artifacts=(artifact,), root=tmp_path)
    with pytest.raises(ParseError, match=r"1\.facts\.json can't be read"):
        Torch.model_validate({"use": "torch"}).parse(capture)
