"""A window in steps holds exactly the steps asked for, under every collector that can follow one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli import Result, profrun, write_plan
from light_torch import LIGHT

SKIP, STEPS, ALL = 3, 4, 12
WINDOW = f"{{skip: {SKIP}, steps: {STEPS}}}"
ASKED = list(range(SKIP, SKIP + STEPS))

PROGRAM = f"""{LIGHT}
import os, sys, time
import torch
torch.set_num_threads(1)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)

def inside():
    time.sleep(0.06)
    for _ in range(3): sum(range(300_000))

def outside():
    time.sleep(0.06)
    for _ in range(3): sum(range(300_000))

for step in range({ALL}):
    os.write(log, b"step %d" % step)
    inside() if {SKIP} <= step < {SKIP + STEPS} else outside()
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
print("made", step + 1)
"""
TIMING = "{use: timing, warmup: 0, repeats: 1}"


def run(tmp_path: Path, *collectors: str, window: str = WINDOW, program: str = PROGRAM, **more: str) -> Result:
    (tmp_path / "train.py").write_text(program)
    plan = write_plan(tmp_path, *collectors, window=window, **more)
    return profrun(plan, "--", sys.executable, "train.py", tmp_path / "log", cwd=tmp_path)


def table(result: Result, name: str) -> pd.DataFrame:
    return pd.read_parquet(result.folder / "tables" / f"{name}.parquet")


def steps_of(result: Result, collector: str) -> pd.DataFrame:
    steps = table(result, "steps")
    return steps[steps.capture == result.captures()[collector]["id"]]


def notes_of(result: Result, collector: str) -> str:
    capture = result.captures()[collector]
    return " ".join(next(p["notes"] for p in result.summary["passes"] if p["id"] == capture["pass_id"]))


@pytest.mark.tool("strace")
def test_strace_sees_the_calls_of_these_steps_and_no_other(tmp_path: Path) -> None:
    result = run(tmp_path, TIMING, "{use: strace, mode: trace, classes: [desc]}")
    assert (result.code, result.statuses()["strace"]) == (0, "ok"), result.stderr
    calls = table(result, "syscall_events")
    written = [args for args in calls[calls.name == "write"].args if "step " in args]
    assert sorted(int(args.partition("step ")[2].split('"')[0]) for args in written) == ASKED
    assert f"recorded only steps {ASKED[0]} to {ASKED[-1]}" in notes_of(result, "strace")
    assert list(steps_of(result, "strace").query("profiled").step) == ASKED
    assert not steps_of(result, "timing").profiled.any()


@pytest.mark.tool("py-spy")
def test_py_spy_samples_these_steps_and_no_other(tmp_path: Path) -> None:
    result = run(tmp_path, "{use: py-spy, rate: 200}")
    assert (result.code, result.statuses()["py-spy"]) == (0, "ok"), result.stderr
    functions = set(table(result, "functions").function)
    assert "inside" in functions
    assert "outside" not in functions
    stacks = table(result, "stacks")
    assert not stacks["stack"].str.contains("wait_until_tools_are_ready").any()  # in which the program waits for us
    in_it = stacks[stacks["stack"].str.contains("inside")].weight_ns.sum()
    asked_ns = steps_of(result, "py-spy").query("profiled").duration_ns.sum()
    assert 0.3 < in_it / asked_ns < 2


@pytest.mark.tool("nsys")
def test_nsys_holds_the_nvtx_ranges_of_these_steps(tmp_path: Path) -> None:
    result = run(tmp_path, "{use: nsys, trace: [osrt, nvtx]}", target="{retry: true}")
    assert (result.code, result.statuses()["nsys"]) == (0, "ok"), result.stderr
    ranges = table(result, "ranges")
    assert list(ranges[ranges.name.str.startswith("step ")].sort_values("start_ns").name) == [
        f"step {n}" for n in ASKED
    ]


@pytest.mark.tool("perf")
def test_perf_counts_no_more_than_these_steps(tmp_path: Path) -> None:
    result = run(tmp_path, "{use: perf, mode: stat, events: [task-clock]}")
    assert (result.code, result.statuses()["perf"]) == (0, "ok"), result.stderr
    clock = table(result, "counters").query("event == 'task-clock'").iloc[0]
    used_ms = steps_of(result, "perf").query("profiled").cpu_ns.sum() / 1e6
    assert clock["value"] == pytest.approx(used_ms, rel=0.5)


def test_torch_records_these_steps_and_a_run_that_is_stopped_counts_as_success(tmp_path: Path) -> None:
    window = f"{{skip: {SKIP}, steps: {STEPS}, then: stop}}"
    result = run(tmp_path, TIMING, "{use: torch}", window=window)
    assert (result.code, result.statuses()) == (0, {"timing": "ok", "torch": "ok"}), result.stderr
    names = table(result, "ranges").name
    assert sorted(n for n in names if n.startswith("ProfilerStep")) == [f"ProfilerStep#{n}" for n in ASKED]
    for collector in ("timing", "torch"):  # both were ended after the window, none at its own end
        assert SKIP + STEPS <= len(steps_of(result, collector)) < ALL
    assert "made" not in result.stderr


RANKS = """
import os, sys, time
if "RANK" not in os.environ:
    for rank in "01":
        os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, *sys.argv])
    os.wait(), os.wait()
    sys.exit()
""" + PROGRAM.replace("    inside()", f"    time.sleep(0.3 * int(os.environ['RANK']) * (step > {SKIP}))\n    inside()")


def test_the_first_rank_that_is_done_does_not_end_the_others(tmp_path: Path) -> None:
    window = f"{{skip: {SKIP}, steps: {STEPS}, then: stop}}"
    result = run(tmp_path, TIMING, "{use: torch}", window=window, program=RANKS)
    assert (result.code, result.statuses()["torch"]) == (0, "ok"), result.stderr
    names = table(result, "ranges").groupby("rank").name
    assert [sorted(n for n in of if n.startswith("ProfilerStep")) for _, of in names] == [
        [f"ProfilerStep#{n}" for n in ASKED]
    ] * 2


def test_a_window_that_never_opens_says_how_far_the_program_got(tmp_path: Path) -> None:
    result = run(tmp_path, "{use: py-spy}", "{use: torch}", window="{skip: 100, steps: 2}")
    captures = result.captures()
    assert {name: capture["status"] for name, capture in captures.items()} == {"py-spy": "empty", "torch": "empty"}
    assert captures["py-spy"]["reason"].endswith(f"before the window opened, after 100 steps: it made {ALL}")
    assert captures["torch"]["reason"] == f"the target ended after {ALL} steps, before the window opened"


def test_a_program_without_steps_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, "{use: py-spy}", program="import time; time.sleep(0.5)")
    capture: dict[str, Any] = result.captures()["py-spy"]
    assert capture["status"] == "empty"
    assert "no training or inference step was seen in it" in capture["reason"]


def test_steps_can_t_be_seen_in_a_process_that_runs_already(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: py-spy}", window=WINDOW)
    result = profrun(plan, "--pid", str(os.getpid()), cwd=tmp_path)
    assert result.code == 2
    assert "the plan's window is in steps" in result.stderr
    assert "--duration 30s" in result.stderr
