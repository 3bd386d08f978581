"""A real Slurm of two nodes: a run as a batch job, with a task on each node, one report, both hosts named."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli import Result, command, profrun, write_plan
from slurm_cluster import Cluster, cluster  # noqa: F401 - the fixture
from waiting import LIMIT_S, until

from orchestrator import tables

DDP = Path(__file__).resolve().parents[2] / "scripts" / "demo" / "train_ddp.py"
NODES = "--nodes 2 --ntasks-per-node 1"
PLAN = {
    "environment": "[{use: seeds, seed: 3}, {use: shell, run: [touch, '%s/applied'], undo: [touch, '%s/undone']}]",
    "report": "{formats: [markdown]}",
}


@dataclass(frozen=True)
class World:
    """A folder that both nodes see, and how profrun gets to the cluster."""

    folder: Path
    cluster: Cluster

    def run(self, *words: str | Path) -> Result:
        return profrun(*words, cwd=self.folder, env=self.cluster.env)


@pytest.fixture(scope="module")
def world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:  # noqa: F811
    yield World(tmp_path_factory.mktemp("slurm"), cluster)


@pytest.fixture(scope="module")
def job(world: World) -> Result:
    """One job of two ranks, for several tests."""
    more = {name: text.replace("%s", str(world.folder)) for name, text in PLAN.items()}
    plan = write_plan(world.folder, "{use: py-spy, rate: 50}", **more)
    return world.run(plan, "--slurm", NODES, "--", sys.executable, DDP, "--steps", "12")


def test_a_job_gives_one_report_with_both_hosts(job: Result) -> None:
    assert job.code == 0, job.stderr
    assert "is pending" in job.stderr or "is running on n[1-2]" in job.stderr
    assert "steps_per_s=" in job.stdout, "the program's output comes through"
    record = job.summary["passes"][0]
    assert [(task["host"], task["ranks"]) for task in record["tasks"]] == [("n1", [0]), ("n2", [1])]
    assert {task["missing"] for task in record["tasks"]} == {None}
    ids = {capture["id"] for capture in job.summary["captures"]}
    assert ids == {"p01-py-spy@n1.r0", "p01-py-spy@n2.r1"}
    assert {capture["status"] for capture in job.summary["captures"]} == {"ok"}


def test_the_clocks_of_the_nodes_are_compared(job: Result) -> None:
    for record in job.summary["passes"]:
        for task in record["tasks"]:
            assert abs(task["clock_offset_ns"]) <= task["clock_error_ns"], "both nodes are this host"


def test_the_steps_of_both_ranks_are_side_by_side(job: Result) -> None:
    steps = tables.read(job.folder / "tables" / "steps.parquet")
    found = {key: len(rows) for key, rows in steps.groupby(["capture", "rank"])}
    assert found == {("p01-py-spy@n1.r0", 0): 12, ("p01-py-spy@n2.r1", 1): 12}
    ranks = tables.read(job.folder / "tables" / "ranks.parquet")
    assert list(zip(ranks["rank"], ranks["host"], strict=True)) == [(0, "n1"), (1, "n2")]


def test_each_node_is_brought_into_the_plans_state_once_and_put_back(job: Result, world: World) -> None:
    told = [(step["use"], step["host"], step["status"]) for step in job.summary["environment"]]
    assert sorted(told, key=str) == [
        ("seeds", "n2", "applied"), ("seeds", None, "applied"), ("shell", "n2", "applied"), ("shell", None, "applied"),
    ]  # fmt: skip
    assert (world.folder / "undone").exists()
    assert not (job.folder / "raw" / "nodes").exists()


def test_a_failing_rank_is_the_jobs_status_and_the_other_keeps_its_data(world: World) -> None:
    (world.folder / "fail.py").write_text("import os, sys\nsys.exit(9 * int(os.environ['RANK']))")
    plan = write_plan(world.folder, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    result = world.run(plan, "--slurm", NODES, "--", sys.executable, "fail.py")
    assert result.code == 9, result.stderr
    assert {c["id"]: c["status"] for c in result.summary["captures"]} == {
        "p01-timing@n1.r0": "ok", "p01-timing@n2.r1": "target_failed",
    }  # fmt: skip


def test_the_batch_script_is_printed(world: World) -> None:
    plan = write_plan(world.folder, "{use: timing}")
    result = world.run(plan, "--slurm", f"{NODES} --gpus-per-task 1", "-n", "--", "python", "train.py")
    assert result.code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=1", "#SBATCH --gpus-per-task=1"} <= set(lines)
    assert lines[-1].endswith("-- python train.py")
    assert world.cluster.ask("squeue", "-h").strip() == "", "nothing was submitted"


def test_options_that_slurm_refuses_are_told(world: World) -> None:
    result = world.run(write_plan(world.folder, "{use: timing}"), "--slurm", "-p nowhere", "--", "true")
    assert result.code == 3
    assert "the job was not taken" in result.stderr
    assert "invalid partition" in result.stderr


def test_an_interrupt_takes_a_waiting_job_back(world: World) -> None:
    words = command(write_plan(world.folder, "{use: timing}"), "--slurm", "--nodes 9", "--", "true")
    job = subprocess.Popen(words, cwd=world.folder, env=world.cluster.env, stderr=subprocess.PIPE, text=True)
    assert job.stderr is not None
    until(lambda: "is pending" in job.stderr.readline())
    job.send_signal(signal.SIGINT)
    assert job.wait(LIMIT_S) == 130
    assert world.cluster.ask("squeue", "-h").strip() == ""
