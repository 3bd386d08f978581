"""One pass for all that can share one, and several by `--auto-passes` for those that can't: with the real tools."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml
from cli import Result, profrun, write_plan
from light_torch import LIGHT

FAST = {"report": "{formats: []}"}
TRAINING = (
    LIGHT
    + """
import time, torch
torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(25):
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end: sum(range(1000))
    optimizer.zero_grad()
    model(torch.rand(8, 16)).sum().backward()
    optimizer.step()
"""
)
pytestmark = [
    pytest.mark.tool("nsys"),
    pytest.mark.skipif(not shutil.which("torchrun", path=str(Path(sys.executable).parent)), reason="no torch"),
]


def training(folder: Path) -> tuple[str, Path]:
    (folder / "train.py").write_text(TRAINING)
    return sys.executable, folder / "train.py"


def told(result: Result) -> dict[str, str | None]:
    return {name: capture["reason"] for name, capture in result.captures().items()}


@pytest.mark.tool("strace", "py-spy", "perf")
def test_all_that_can_share_a_pass_have_good_data_of_one(tmp_path: Path) -> None:
    everybody = "{use: nsys, trace: [osrt, nvtx]}, {use: strace}, {use: py-spy}, {use: perf}, {use: monitor}"
    plan = write_plan(tmp_path, f"together: [{everybody}, {{use: torch, activities: [cpu]}}]", **FAST)
    result = profrun(plan, "--", *training(tmp_path), cwd=tmp_path)
    assert result.code == 0, told(result)
    assert result.statuses() == dict.fromkeys(("nsys", "strace", "py-spy", "perf", "monitor", "torch"), "ok")
    assert len(result.summary["passes"]) == 1
    tables = result.summary["tables"]
    wanted = ("syscalls", "functions", "counters", "samples", "torch_ops", "os_calls_summary")
    assert [name for name in wanted if not tables.get(name, {}).get("rows")] == []


def test_those_that_cannot_are_split_and_run(tmp_path: Path) -> None:
    items = "together: [{use: nsys}, {use: torch}, {use: monitor}, {use: timing, warmup: 0, repeats: 1}]"
    plan, target = write_plan(tmp_path, items, **FAST), training(tmp_path)
    refused = profrun(plan, "--", *target, cwd=tmp_path)
    assert refused.code == 2 and "add --auto-passes" in refused.stderr
    assert not (tmp_path / "reports").exists()
    result = profrun(plan, "--auto-passes", "--", *target, cwd=tmp_path)
    assert result.code == 0, told(result)
    assert "plan.yaml:5: split into 3 passes, nsys+monitor, torch, timing: timing can't share a pass" in result.stderr
    assert [one["collectors"] for one in result.summary["passes"]] == [["nsys", "monitor"], ["torch"], ["timing"]]
    assert set(result.statuses().values()) == {"ok"}
    kept = yaml.safe_load((result.folder / "plan.yaml").read_text())["collectors"]
    assert [[one["use"] for one in item.get("together", [item])] for item in kept] == [
        ["nsys", "monitor"],
        ["torch"],
        ["timing"],
    ]
