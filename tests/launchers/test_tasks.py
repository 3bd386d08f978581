"""A job of tasks, each with an agent: started here by a stand-in for srun, which gives each task of this host the
variables of a node of its own. What Slurm itself does is in tests/real/test_slurm.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, until

from orchestrator import tables
from orchestrator.launchers import task
from orchestrator.launchers.parted import parted
from orchestrator.launchers.tasks import Hub, Lead
from orchestrator.report import load, pass_from

SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
at = sys.argv.index("--") + 1
count = int(sys.argv[2])
if count == 0:
    sys.exit("srun: error: Unable to allocate resources: Requested node configuration is not available")
def started(rank):
    told = {{"PROCID": rank, "LOCALID": 0, "NODEID": rank, "STEP_NUM_TASKS": count, "STEP_NUM_NODES": count,
            "STEP_NODELIST": "localhost", "STEP_TASKS_PER_NODE": f"1(x{{count}})", "STEP_ID": 0}}
    env = {{f"SLURM_{{name}}": str(value) for name, value in told.items()}}
    return subprocess.Popen(sys.argv[at:], env={{**os.environ, **env, "SLURMD_NODENAME": f"n{{rank + 1}}"}})
tasks = [started(rank) for rank in range(count)]
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""
QUICK = {"report": "{formats: []}"}
ONCE = "{use: timing, warmup: 0, repeats: 1}"


def made(folder: Path) -> Path:
    """A folder with a stand-in for srun in bin/."""
    (folder / "bin").mkdir()
    script(folder / "bin" / "srun", SRUN)
    return folder


@pytest.fixture
def world(tmp_path: Path) -> Path:
    return made(tmp_path)


def variables(world: Path) -> dict[str, str]:
    return environment(PATH=f"{world / 'bin'}:{os.environ['PATH']}", SLURM_JOB_ID=None, SLURM_LAUNCH_NODE_IPADDR=None)


def run(world: Path, plan: Path, program: str, count: int = 2) -> Result:
    (world / "t.py").write_text(program)
    words = ("srun", "-n", str(count), "--", sys.executable, "t.py")
    return profrun(plan, "--", *words, cwd=world, env=variables(world))


def tasks(result: Result, number: int = -1) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = result.summary["passes"][number]["tasks"]
    return found


TELL = """
import os, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "SLURMD_NODENAME")
print(*(os.environ[name] for name in names), "MASTER_PORT" in os.environ)
end = time.process_time() + 0.2
while time.process_time() < end: pass
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """One job of two tasks, for several tests."""
    world = made(tmp_path_factory.mktemp("job"))
    return run(world, write_plan(world, ONCE, **QUICK), TELL)


def test_one_report_has_every_task_by_host_and_rank(told: Result) -> None:
    result = told
    assert result.code == 0, result.stderr
    assert {"0 2 0 localhost n1 True", "1 2 0 localhost n2 True"} <= set(result.stdout.splitlines())
    assert [(t["host"], t["ranks"], t["missing"]) for t in tasks(result)] == [("n1", [0], None), ("n2", [1], None)]
    for one in tasks(result):
        assert one["run"]["exit"] == {"code": 0, "signal": None}
        assert abs(one["clock_offset_ns"]) <= one["clock_error_ns"], "both are this host"
    captures = result.summary["captures"]
    assert [(c["id"], c["host"], c["rank"]) for c in captures] == [
        ("p01-timing@n1.r0", "n1", 0), ("p01-timing@n2.r1", "n2", 1),
    ]  # fmt: skip
    raw = result.folder / "raw"
    assert (raw / "p01-target@n2.r1" / "stdout.log").read_text().startswith("1 2 0")
    assert not (raw / "p01.tasks").exists(), "what the agents were told is gone"
    assert set(result.summary["machine"]["hosts"]) == {"n1", "n2"}
    runs = tables.read(result.folder / "tables" / "runs.parquet")
    assert sorted(runs["rank"]) == [0, 1]
    assert result.summary["run"]["command"][:3] == ["srun", "-n", "2"], "the command is as the user gave it"


def test_the_jobs_time_is_that_of_its_longest_task_and_its_cpu_time_all_of_theirs(told: Result) -> None:
    own = [one["run"] for one in tasks(told)]
    whole = told.summary["passes"][0]["run"]
    assert whole["wall_s"] == max(one["wall_s"] for one in own)
    assert whole["user_s"] == pytest.approx(sum(one["user_s"] for one in own))


def test_what_is_kept_of_the_tasks_is_read_again(told: Result) -> None:
    report = load(told.folder)
    assert [one.place for one in report.passes[0].tasks] == ["n1.r0", "n2.r1"]
    assert [capture.run for capture in report.captures] == [one.run for one in report.passes[0].tasks]
    assert {asdict(record)["id"] for record in report.passes} == {"p01"}
    assert all(pass_from(json.loads(json.dumps(asdict(one)))) == one for one in report.passes)


@pytest.mark.tool("py-spy")
def test_a_task_has_tools_of_its_own_where_the_plan_wants_its_rank_looked_at(world: Path) -> None:
    named = """
import os, time
def rank_0(): spin()
def rank_1(): spin()
def spin():
    end = time.perf_counter() + 0.6
    while time.perf_counter() < end: sum(range(1000))
globals()[f"rank_{os.environ['RANK']}"]()
"""
    plan = write_plan(world, "{use: py-spy}", launcher="{use: slurm, ranks: [1]}", **QUICK)
    result = run(world, plan, named)
    assert [c["id"] for c in result.summary["captures"]] == ["p01-py-spy@n2.r1"]
    assert len(tasks(result)) == 2, "all of them ran"
    functions = tables.read(result.folder / "tables" / "functions.parquet")
    assert {name for name in functions["function"] if name.startswith("rank_")} == {"rank_1"}
    assert set(functions["rank"]) == {1}


def test_a_task_that_leaves_nothing_is_named(world: Path) -> None:
    lost = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getppid(), signal.SIGKILL)"
    result = run(world, write_plan(world, ONCE, **QUICK), lost)
    assert result.code == 137
    assert "was killed, or lost" in tasks(result)[1]["missing"]
    first, second = result.summary["captures"]
    assert (first["status"], second["status"], second["id"]) == ("ok", "target_failed", "p01-timing@n2.r1")


def test_a_task_that_ends_at_once_was_there(world: Path) -> None:
    plan = write_plan(world, ONCE, **QUICK)
    result = profrun(plan, "--", "srun", "-n", "2", "--", "true", cwd=world, env=variables(world))
    assert result.code == 0
    assert [one["rank"] for one in result.summary["passes"][-1]["run"]["ranks"]] == [0, 1]


def test_before_any_task_is_there_a_wish_to_end_is_for_the_launcher(tmp_path: Path) -> None:
    job = parted(("srun", "true"))
    assert job is not None
    lead = Lead(job, tmp_path, hub=Hub(tmp_path))
    try:
        assert lead._ask(tmp_path / "p01.tasks", signal.SIGINT, []) is False
    finally:
        lead.leave()


def test_a_launcher_that_starts_nothing_is_quoted(world: Path) -> None:
    result = run(world, write_plan(world, ONCE, **QUICK), "", count=0)
    assert result.code == 1
    assert "Requested node configuration is not available" in result.stderr
    assert tasks(result) == []


def test_a_host_that_does_not_see_the_reports_folder_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert task.main(["/no/such/folder/spec.json", "--", "true"]) == 3
    said = capsys.readouterr().err
    assert "does not see /no/such/folder/spec.json" in said
    assert "name such a folder with -o DIR" in said


def test_an_interrupt_reaches_all_tasks_and_keeps_what_there_is(world: Path) -> None:
    (world / "t.py").write_text("""
import os, pathlib, time
pathlib.Path(os.environ["RANK"]).touch()
try:
    time.sleep(600)
finally:
    print("ended in its own way", flush=True)
""")
    plan = write_plan(world, ONCE, **QUICK)
    words = command(plan, "--", "srun", "-n", "2", "--", sys.executable, "t.py")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = subprocess.Popen(words, cwd=world, env=variables(world), text=True, **pipes)  # type: ignore[call-overload]
    until(lambda: all((world / rank).exists() for rank in "01"))
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=LIMIT_S)
    result = Result(started.returncode, out, err, world)
    assert result.code == 130, err
    for one, place in zip(tasks(result), ("n1.r0", "n2.r1"), strict=True):
        assert one["run"]["ended_by"] == "interrupt"
        log = result.folder / "raw" / f"p01-target@{place}" / "stdout.log"
        assert log.read_text() == "ended in its own way\n"


def test_check_shows_the_job_as_it_will_start(world: Path) -> None:
    plan = write_plan(world, "{use: strace}", launcher="{use: slurm, options: [-n, '2']}", **QUICK)
    result = profrun("check", plan, "--", sys.executable, "t.py", cwd=world, env=variables(world))
    target = next(line for line in result.stdout.splitlines() if line.strip().startswith("target"))
    assert "srun -n 2 " in target
    assert target.endswith(f"{sys.executable} t.py")
    assert "let srun start profrun" not in result.stdout
