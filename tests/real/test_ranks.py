"""Jobs of two ranks under every kind of tool: each rank has its own data, and one that dies keeps nobody waiting."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from cli import Result, environment, profrun, write_plan
from light_torch import LIGHT

from orchestrator import tables

pytest.importorskip("torch")

DEMO = Path(__file__).parents[2] / "scripts" / "demo" / "train_ddp.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HOST = os.uname().nodename
TEXT = {"report": "{formats: [markdown]}"}


def job(folder: Path, plan: Path, *options: str) -> Result:
    """The demo as two ranks."""
    env = environment(OMP_NUM_THREADS="1", **dict.fromkeys(("RANK", "WORLD_SIZE", "LOCAL_RANK")))
    return profrun(plan, "--", *TORCHRUN, DEMO, *options, cwd=folder, env=env)


def rows(result: Result, name: str) -> Any:
    return tables.read(result.folder / "tables" / f"{name}.parquet")


def ranks_of(result: Result) -> list[dict[str, Any]]:
    """Those of the first pass."""
    raw = json.loads((result.folder / "raw" / "run.json").read_text())
    found: list[dict[str, Any]] = raw["passes"][0]["run"]["ranks"]
    return found


# ---------------------------------------------------------------- a good end


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("trained")
    together = "together: [{use: py-spy}, {use: monitor, interval: 100ms}, {use: torch}]"
    plan = write_plan(folder, together, window="{skip: 5, steps: 10}", **TEXT)
    return job(folder, plan, "--steps", "25", "--slow-rank", "1", "--slow-by", "0.02")


@pytest.mark.tool("py-spy")
def test_both_ranks_are_in_one_report(trained: Result) -> None:
    assert trained.code == 0, trained.stderr
    assert trained.statuses() == {"py-spy": "ok", "monitor": "ok", "torch": "ok"}
    seen = ranks_of(trained)
    assert [(r["rank"], r["local_rank"], r["world_size"]) for r in seen] == [(0, 0, 2), (1, 1, 2)]
    assert [(r["host"], r["exit"]) for r in seen] == [(HOST, {"code": 0, "signal": None})] * 2
    assert rows(trained, "steps").groupby("rank").size().to_dict() == {0: 25, 1: 25}


@pytest.mark.tool("py-spy")
def test_each_rank_has_files_of_its_own(trained: Result) -> None:
    for pattern in ("p01-py-spy/profile.*.json", "p01-torch/traces/*.trace.json"):
        names = [path.name for path in trained.folder.glob(f"raw/{pattern}")]
        assert len(names) == 2
        for one in ranks_of(trained):
            assert any(f"{HOST}-rank{one['rank']}-pid{one['pid']}." in name for name in names)


@pytest.mark.tool("py-spy")
def test_the_window_holds_the_same_steps_of_both_ranks(trained: Result) -> None:
    steps = rows(trained, "steps")
    for _, part in steps[steps["profiled"]].groupby("rank"):
        assert {*range(5, 15)} <= {*part["step"]} <= {*range(4, 16)}
    functions = rows(trained, "functions")
    late = functions[functions["function"] == "dawdle"]
    assert set(late["rank"]) == {1}, "only that one dawdles"
    assert set(functions["rank"]) == {0, 1}
    assert {*rows(trained, "torch_ops")["rank"]} == {0, 1}


# ---------------------------------------------------------------- one that fails


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("failed")
    plan = write_plan(folder, "together: [{use: py-spy}, {use: monitor, interval: 100ms}]", **TEXT)
    return job(folder, plan, "--steps", "10000", "--fail-rank", "1", "--fail-step", "30")


@pytest.mark.tool("py-spy")
def test_a_rank_that_fails_gives_the_jobs_status_and_is_named(failed: Result) -> None:
    assert failed.code == 1, "torchrun's own"
    ends = {one["rank"]: one["exit"] for one in ranks_of(failed)}
    assert ends[1] == {"code": 9, "signal": None}
    assert ends[0] is not None and ends[0] != {"code": 0, "signal": None}
    assert "rank 1 ended with exit 9" in failed.stderr
    assert "the target failed: exit 1 (rank 1 before the others: exit 9)" in failed.stderr
    assert "rank 1 ended with exit 9" in (failed.folder / "report.md").read_text()
    (finding,) = [one for one in failed.summary["findings"] if one["rule"] == "failed_rank"]
    assert finding["title"].startswith("Rank 1 ended with exit 9")


@pytest.mark.tool("py-spy")
def test_what_the_other_rank_had_is_kept(failed: Result) -> None:
    steps = rows(failed, "steps")
    assert (steps["rank"] == 0).sum() >= 29 and (steps["rank"] == 1).sum() == 30
    assert set(rows(failed, "functions")["rank"]) == {0, 1}
    assert failed.statuses()["monitor"] == "ok"


# ---------------------------------------------------------------- tools around the whole job

RANK = """
import os, sys, time
time.sleep(0.5)
"""


@pytest.mark.tool("strace")
@pytest.mark.tool("py-spy")
def test_of_the_ranks_only_the_chosen_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text(RANK)
    plan = write_plan(
        tmp_path, "{use: strace, mode: trace}", "{use: py-spy}", launcher="{use: local, nproc_per_node: 3, ranks: [1]}",
        **TEXT,
    )  # fmt: skip
    result = profrun(plan, "--", sys.executable, tmp_path / "rank.py", cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert [one["rank"] for one in ranks_of(result)] == [0, 1, 2]
    assert {*rows(result, "syscalls")["rank"].dropna()} == {1}
    (note,) = [note for note in result.captures()["strace"]["notes"] if "the other ranks" in note]
    assert "syscall_paths" in note and "syscalls," not in note
    assert {*rows(result, "functions")["rank"]} == {1}
    assert len(list(result.folder.glob("raw/p02-py-spy/profile.*"))) == 1


def test_ranks_that_never_came_are_named(tmp_path: Path) -> None:
    (tmp_path / "rank.py").write_text("import time; time.sleep(0.5)")
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", **TEXT)
    words = ("sh", "-c", 'RANK=0 WORLD_SIZE=3 "$0" rank.py & RANK=2 WORLD_SIZE=3 "$0" rank.py; wait', sys.executable)
    result = profrun(plan, "--", *words, cwd=tmp_path)
    said = "3 ranks were to run here, and 0, 2 were seen: not rank 1"
    assert result.code == 0 and said in result.stderr and said in (result.folder / "report.md").read_text()
    (finding,) = [one for one in result.summary["findings"] if one["rule"] == "missing_ranks"]
    assert finding["title"] == "Rank 1 of 3 on this host was never seen"


STUCK = """
import ctypes, sys
from pathlib import Path
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    optimizer.zero_grad(); model(torch.rand(2, 4)).sum().backward(); optimizer.step()
mutex, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
library.pthread_mutex_lock(mutex)
Path("stuck").touch()
library.pthread_mutex_lock(mutex)
"""
"""A rank amid a call into C that ends for no signal, as a collective does not when another rank has died."""


def test_a_rank_that_waits_for_a_dead_one_is_ended_by_sigterm_also_while_it_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(LIGHT + STUCK)
    plan = write_plan(tmp_path, "{use: torch}", window="{skip: 1, steps: 5}", **TEXT)
    script = '"$0" stuck.py & while [ ! -e stuck ]; do sleep 0.05; done; kill -TERM $!; wait $!'
    words = ("sh", "-c", "RANK=0 WORLD_SIZE=1; export RANK WORLD_SIZE; " + script, sys.executable)
    result = profrun(plan, "--", *words, cwd=tmp_path, env=environment(RANK=None, WORLD_SIZE=None))
    assert result.code == 143
    assert "a rank was ended amid a call that did not end" in (result.folder / "report.md").read_text()
