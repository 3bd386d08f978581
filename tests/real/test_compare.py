"""Two real runs, the second with a function made slower: what `profrun compare` says of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import cli
import pytest

PROGRAM = """
import sys, time

def fetch(seconds):
    time.sleep(seconds)

def train_step():
    time.sleep(0.03)

for _ in range(8):
    fetch(float(sys.argv[1]))
    train_step()
"""
"""It waits, and computes nothing: however busy the machine is, that takes as long."""
PLAN = """
version: 1
name: compared
collectors:
  - {use: timing, repeats: 4, warmup: 0}
  - {use: py-spy, rate: 200}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "job.py").write_text(PROGRAM)
    (folder / "plan.yaml").write_text(PLAN)
    waits = {"a": "0.02", "slow": "0.08"}
    found = {}
    for name, text in waits.items():
        done = cli.profrun("./plan.yaml", "-q", "--name", name, "--", sys.executable, "job.py", text, cwd=folder)
        assert done.code == 0, done.stderr
        found[name] = done.folder
    return found


@pytest.mark.tool("py-spy")
def test_a_function_that_takes_three_times_as_long_is_named_and_stops_the_gate(runs: dict[str, Path]) -> None:
    done = cli.profrun("compare", runs["a"], runs["slow"], "--gate", "10%", "--json", cwd=runs["a"])
    assert done.code == 6, done.stdout
    said = json.loads(done.stdout)
    assert said["step"]["name"] == "wall_s" and said["step"]["verdict"] == "slower"
    assert said["attribution"][0]["change"]["name"] == "fetch", said["headline"]
    assert [one["fact"] for one in said["unlike"] if one["severity"] == "refuse"] == []
    assert "command" in {one["fact"] for one in said["unlike"]}


@pytest.mark.tool("py-spy")
def test_the_folder_has_page_text_and_data(runs: dict[str, Path], tmp_path: Path) -> None:
    done = cli.profrun("compare", runs["a"], runs["slow"], "-o", tmp_path, "--no-color", cwd=tmp_path)
    assert done.code == 0, done.stderr
    (made,) = tmp_path.iterdir()
    assert done.stdout.strip().endswith(str(made))
    assert {path.name for path in made.iterdir()} == {"compare.html", "compare.md", "compare.json"}
    assert "fetch" in (made / "compare.md").read_text()
