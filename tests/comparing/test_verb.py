"""`profrun compare` as users call it: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from two_runs import Job, make

from orchestrator import commands
from orchestrator.compare import compare
from orchestrator.comparing import gate
from orchestrator.errors import ProfrunError, UsageError
from orchestrator.render import compared
from orchestrator.report import Report

JOB = Job(steps=300)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Report]:
    folder = tmp_path_factory.mktemp("runs")
    other = replace(JOB, ops={}).on(architecture="aarch64")
    return {
        "a": make(folder / "a", JOB, 1),
        "again": make(folder / "again", JOB, 2),
        "slow": make(folder / "slow", JOB.with_ms(train_step=7.0), 3),
        "elsewhere": make(folder / "elsewhere", other, 4),
    }


def run(reports: dict[str, Report], *words: str) -> int:
    return commands.run(["compare", *(str(reports[word].folder) if word in reports else word for word in words)])


def test_equal_runs_pass_the_gate(reports: dict[str, Report], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reports, "a", "again", "--gate", "10%", "--no-color") == 0
    said = capsys.readouterr().out
    assert "No change" in said and "gate passed: step_s" in said


def test_a_slower_run_fails_it_and_names_the_function(
    reports: dict[str, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reports, "a", "slow", "--gate", "10%", "--no-color") == 6
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert lines[2].startswith("B is ") and "slower per step (95 %: " in lines[2]
    assert "gate FAILED: step_s" in said
    assert "train_step (train.py:100) grew by" in " ".join(said.split())
    assert "called by <module> (train.py:90) > main (train.py:80)" in said


def test_without_a_gate_a_slower_run_is_no_failure(
    reports: dict[str, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reports, "a", "slow") == 0
    assert "gate" not in capsys.readouterr().out


def test_unlike_runs_are_refused_with_both_values(
    reports: dict[str, Report], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(reports, "a", "elsewhere") == 3
    said = " ".join(capsys.readouterr().out.split())
    assert "can't be compared: architecture differs" in said
    assert "x86_64 aarch64" in said and "--anyway" in said
    assert run(reports, "a", "elsewhere", "--gate", "3%") == 6
    assert "gate can't be judged" in capsys.readouterr().out
    assert run(reports, "a", "elsewhere", "--anyway") == 0
    assert "compared all the same" in " ".join(capsys.readouterr().out.split())


def test_json_has_it_all(reports: dict[str, Report], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(reports, "a", "slow", "--json", "--gate", "3%") == 6
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "profrun/compare/1"
    assert data["step"]["name"] == "step_s" and data["step"]["verdict"] == "slower"
    assert data["gate"]["result"] == "failed"
    assert data["attribution"][0]["change"]["name"] == "train_step"
    assert {"a", "b", "ratio", "low", "high", "p_value", "share_of_step_pct", "evidence"} <= set(data["changes"][0])
    assert (data["a"]["id"], data["refused"]) == (reports["a"].run.id, False)


@pytest.mark.parametrize(
    "words", [("a",), ("a", "again", "--gate", "3"), ("a", "again", "--metric", "wall_s"), ("a", "nowhere")]
)
def test_mistakes_end_in_2(reports: dict[str, Report], words: tuple[str, ...]) -> None:
    with pytest.raises(ProfrunError) as caught:
        run(reports, *words)
    assert caught.value.exit_code == 2


def test_a_figure_that_nobody_has_names_the_near_one(reports: dict[str, Report]) -> None:
    with pytest.raises(UsageError, match="wall_s"):
        run(reports, "a", "again", "--gate", "3%", "--metric", "walls_s")


def test_markdown_says_the_same(reports: dict[str, Report]) -> None:
    found = gate.gated(compare(reports["a"], reports["slow"]), 3.0)
    text = compared.as_markdown(found)
    assert text.startswith("# B is ")
    assert "**Gate failed:** `step\\_s`" in text or "**Gate failed:** `step_s`" in text
    assert "## Why" in text and "## What changed" in text and "## Figures" in text
    assert "| function | `train_step (train.py:100)` |" in text


def test_markdown_of_refused_runs_names_what_differs(reports: dict[str, Report]) -> None:
    text = compared.as_markdown(compare(reports["a"], reports["elsewhere"]))
    assert "## Can't be compared" in text and "`aarch64`" in text and "What changed" not in text


def test_names_can_not_break_out(reports: dict[str, Report], tmp_path: Path) -> None:
    evil = "f\x1b[31m|`<script>"
    b = make(tmp_path / "b", replace(JOB, ms={**JOB.ms, evil: 3.0}), 5)
    found = compare(reports["a"], b)
    assert any(one.name == evil for one in found.changes)
    out = io.StringIO()
    compared.show(found, color=False, stream=out)
    for text in (out.getvalue(), compared.as_markdown(found)):
        assert "\x1b" not in text


def test_what_can_not_be_read_passes_no_gate(reports: dict[str, Report], tmp_path: Path) -> None:
    copy = tmp_path / "b"
    shutil.copytree(reports["again"].folder, copy)
    (copy / "tables/steps.parquet").write_bytes(b"nothing")
    for gate_, code in ((("--gate", "3%"), 6), ((), 2)):
        with pytest.raises(ProfrunError) as refused:
            commands.run(["compare", str(reports["a"].folder), str(copy), *gate_])
        assert refused.value.exit_code == code
