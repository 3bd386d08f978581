"""profrun --verify-repeatable on real trainings: equal runs, a planted difference, and nothing to compare."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli import Result, profrun, write_plan
from light_torch import LIGHT

pytest.importorskip("torch")

TRAIN = f"""{LIGHT}
import random, sys, torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
unseeded = random.Random()
for step in range(25):
    planted = unseeded.random() if step >= 17 and "planted" in sys.argv else 0.0
    optimizer.zero_grad()
    (model(torch.rand(2, 4)).pow(2).sum() + planted).backward()
    optimizer.step()
"""


def verify(folder: Path, text: str, *words: str) -> Result:
    target = folder / "t.py"
    target.write_text(text)
    plan = write_plan(folder, "{use: py-spy}", environment="[{use: seeds, seed: 37}]", report="{formats: [markdown]}")
    return profrun(plan, "--verify-repeatable", "--", sys.executable, target, *words, cwd=folder)


def rebuilt(result: Result) -> Result:
    again = profrun("report", result.folder, cwd=result.cwd)
    assert again.code == 0
    assert "profrun: rebuilt" in again.stderr
    return again


def test_seeds_make_two_runs_equal(tmp_path: Path) -> None:
    from orchestrator import tables

    result = verify(tmp_path, TRAIN)
    outcome = result.summary["outcome"]
    assert (result.code, outcome["status"]) == (0, "ok")
    assert result.stderr.splitlines()[-1] == "profrun: ok, " + outcome["reason"]
    assert "25 steps with equal losses and parameters in both runs" in outcome["reason"]
    assert result.summary["environment"][0]["verified"]["torch"] == 37
    assert set(result.statuses()) == {"timing"}, "no collector of the plan runs"
    frame = tables.read(result.folder / "tables" / "steps.parquet")
    one, other = (rows for _, rows in frame.groupby("capture"))
    assert len(one) == len(other) == 25
    assert one.loss.notna().all() and one.digest.nunique() == 25
    assert one.loss.tolist() == other.loss.tolist() and one.digest.tolist() == other.digest.tolist()
    rebuilt(result)
    assert result.summary["outcome"] == outcome


def test_a_planted_generator_is_found_at_its_first_step(tmp_path: Path) -> None:
    result = verify(tmp_path, TRAIN, "planted")
    outcome = result.summary["outcome"]
    assert (result.code, outcome["exit_code"], outcome["status"]) == (6, 6, "not_repeatable")
    assert "the runs differ from step 17 on: loss" in outcome["reason"]
    assert "step 17" in result.stderr.splitlines()[-1]
    assert "step 17" in (result.folder / "report.md").read_text()
    again = rebuilt(result)
    assert "the run had ended in exit 6" in again.stderr and "step 17" in again.stderr.splitlines()[-1]
    assert result.summary["outcome"] == outcome


def test_without_steps_it_can_t_be_told(tmp_path: Path) -> None:
    result = verify(tmp_path, "pass")
    outcome = result.summary["outcome"]
    assert (result.code, outcome["exit_code"], outcome["status"]) == (6, 6, "not_judged")
    assert "can't be told" in result.stderr.splitlines()[-1]
    rebuilt(result)
    assert json.loads((result.folder / "summary.json").read_text())["outcome"] == outcome


def test_it_is_a_run_of_its_own(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing}")
    result = profrun(plan, "--verify-repeatable", "--pid", "1", cwd=tmp_path)
    assert result.code == 2
    assert "--verify-repeatable does not go with --pid" in result.stderr
