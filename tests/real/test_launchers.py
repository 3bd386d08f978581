"""Launchers of ranks, environment managers and other starters: profrun's part and the tools reach what they start."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest
from cli import Result, profrun, script, write_plan
from injecting import inject
from light_torch import LIGHT

from orchestrator import launching, tables
from orchestrator.formats import injected

FAST = {"report": "{formats: []}"}
ONCE = "{use: timing, warmup: 0, repeats: 1}"

LAUNCHER = """
import os, subprocess, sys
names = sys.argv[1].split(",")
ranks = [
    subprocess.Popen([sys.executable, *sys.argv[2:]], env={**os.environ, **dict.fromkeys(names, str(rank))})
    for rank in range(2)
]
sys.exit(max([rank.wait() for rank in ranks]))
"""
"""One process a rank, with its number in these variables, as accelerate, deepspeed and mpirun do."""

RANK = """
import os, sys, time
def work_of(rank):
    end = time.perf_counter() + 0.4
    while time.perf_counter() < end: sum(range(1000))
def work_of_rank_zero(): work_of(0)
def work_of_rank_one(): work_of(1)
rank = int(os.environ[sys.argv[1]])
(work_of_rank_zero, work_of_rank_one)[rank]()
sys.exit(3 * rank)
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def signed(result: Result) -> list[injected.Signed]:
    """The Python processes of the last pass in which our part was at work."""
    folder = result.folder / "raw" / f"{result.summary['passes'][-1]['id']}-target" / "python"
    return list(injected.read(folder).processes)


def notes(result: Result) -> list[str]:
    found: list[str] = result.summary["passes"][-1]["notes"]
    return found


@pytest.mark.tool("py-spy")
def test_every_rank_of_a_launcher_is_profiled_and_knows_its_number(tmp_path: Path) -> None:
    launcher, program = written(tmp_path / "launch.py", LAUNCHER), written(tmp_path / "t.py", RANK)
    plan = write_plan(tmp_path, "{use: py-spy}", **FAST)
    words = (sys.executable, launcher, "RANK,LOCAL_RANK", program, "RANK")
    result = profrun(plan, "--", *words, cwd=tmp_path)
    assert result.code == 3, "the launcher's own status"
    assert {one.rank for one in signed(result)} == {None, 0, 1}
    functions = tables.read(result.folder / "tables" / "functions.parquet")
    of = {one.rank: one.pid for one in signed(result)}
    for rank, name in enumerate(("work_of_rank_zero", "work_of_rank_one")):
        assert set(functions[functions.function == name]["pid"]) == {of[rank]}


def test_each_launchers_variable_tells_the_rank(tmp_path: Path) -> None:
    launcher, program = written(tmp_path / "launch.py", LAUNCHER), written(tmp_path / "t.py", "")
    for name in launching.RANKS:
        folder = tmp_path / name
        folder.mkdir()
        left = _injected(folder, (sys.executable, launcher, name, program))
        assert {one.rank for one in left} == {None, 0, 1}, name


def _injected(folder: Path, words: Sequence[str | Path]) -> tuple[injected.Signed, ...]:
    env = {name: text for name, text in os.environ.items() if name not in launching.RANKS}
    return inject(words, folder, folder / "inside", env)[1].content.processes


# ---------------------------------------------------------------- the real ones

STEPS = f"""{LIGHT}
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(5):
    optimizer.zero_grad(); model(torch.rand(2, 4)).sum().backward(); optimizer.step()
"""

LAUNCHES = {
    "accelerate": (
        "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
        "--mixed_precision", "no", "--dynamo_backend", "no",
    ),
    "deepspeed": ("-m", "deepspeed.launcher.runner", "--num_gpus", "2", "--no_local_rank"),
}  # fmt: skip


@pytest.mark.parametrize("package", LAUNCHES)
def test_a_real_launcher_has_the_steps_of_each_rank(package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"no {package} in this Python")
    program = written(tmp_path / "t.py", STEPS)
    plan = write_plan(tmp_path, ONCE, **FAST)
    result = profrun(plan, "--", sys.executable, *LAUNCHES[package], program, cwd=tmp_path)
    assert result.code == 0, result.stderr
    steps = tables.read(result.folder / "tables" / "steps.parquet")
    assert steps.groupby("rank").size().to_dict() == {0: 5, 1: 5}
    assert steps["pid"].nunique() == 2


# ---------------------------------------------------------------- other starters

HELLO = "import time; time.sleep(0.2); print('hello')"

THROUGH = {
    "one in the other": (
        *("env", "A=1", "nohup", "nice", "-n", "5", "timeout", "60", "taskset", "-c", "0", "stdbuf", "-oL"),
        *("setsid", "--wait"),
    ),
    "sudo": ("sudo", "-n", "--preserve-env=PYTHONPATH,PROFRUN_INJECT"),
    "conda": ("conda", "run"),
    "uv": ("uv", "run", "--no-project"),
}


@pytest.mark.parametrize("name", THROUGH)
def test_our_part_gets_through(name: str, tmp_path: Path) -> None:
    words = THROUGH[name]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this machine")
    if words[0] == "sudo" and os.geteuid() != 0:
        pytest.skip("sudo may ask for a password")
    result = profrun(write_plan(tmp_path, ONCE, **FAST), "--", *words, sys.executable, "-c", HELLO, cwd=tmp_path)
    assert result.code == 0, result.stderr
    (one,) = signed(result)
    assert not [note for note in notes(result) if f"not in force in pid {one.pid}" in note]


DROPPED = {
    "env -i": (("env", "-i"), "`env -i`: it empties the environment"),
    "env": (("env", "PYTHONPATH=/nowhere"), "`env`: it replaces PYTHONPATH, through which"),
    "sudo": (("sudo", "-n"), "`sudo`: gives the program an environment of its own"),
}


@pytest.mark.parametrize("name", DROPPED)
def test_what_drops_our_part_is_named_before_the_run_and_after_it(name: str, tmp_path: Path) -> None:
    words, said = DROPPED[name]
    if shutil.which(words[0]) is None:
        pytest.skip(f"no {words[0]} on this machine")
    if words[0] == "sudo" and os.geteuid() != 0:
        pytest.skip("sudo may ask for a password")
    result = profrun(write_plan(tmp_path, ONCE, **FAST), "--", *words, sys.executable, "-c", HELLO, cwd=tmp_path)
    assert result.code == 0
    assert said.replace("`", "") in result.stderr and "no steps, no seeds there" in result.stderr
    assert [said in note for note in notes(result) if "not in force" in note] == [True]


def test_a_launcher_that_is_not_known_to_drop_our_part_is_guessed(tmp_path: Path) -> None:
    conda = script(tmp_path / "conda", '#!/bin/sh\nshift\nunset PYTHONPATH PROFRUN_INJECT\n"$@"\n')
    result = profrun(write_plan(tmp_path, ONCE, **FAST), "--", conda, "run", sys.executable, "-c", HELLO, cwd=tmp_path)
    assert result.code == 0
    (note,) = [note for note in notes(result) if "not in force" in note]
    assert "what started it (`conda run`, it seems) has dropped profrun's variables" in note
    raw = json.loads((result.folder / "raw" / "run.json").read_text())
    assert raw["passes"][0]["run"]["pythons"][0]["injected"] is False
