"""What a plan's launcher puts before the command, and what comes of the copies that profrun starts itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from orchestrator import preflight, resolve
from orchestrator.errors import UsageError
from orchestrator.launchers.base import Expected
from orchestrator.launchers.local import Local
from orchestrator.launchers.torchrun import Torchrun
from orchestrator.machine import Machine
from orchestrator.plan import Plan
from orchestrator.planfile import plans
from orchestrator.preflight import about_ranks
from orchestrator.standalone import start_ranks


def plan(launcher: object) -> Plan:
    return Plan.model_validate({"version": 1, "collectors": [{"use": "timing"}], "launcher": launcher})


def test_what_a_login_node_lacks_keeps_no_tool_from_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    asked = {"version": 1, "collectors": [{"use": "strace"}], "tools": {"strace": "/nowhere/strace"}}
    asked["environment"] = [{"use": "gpu_clocks", "on_fail": "fail"}]
    machine = Machine(tools=asked["tools"])

    def verdicts(*command: str) -> list[str]:
        run = resolve.resolve(Plan.model_validate(asked), command)
        found = preflight.ask(run, machine)
        return [
            next((c.verdict for c in checks if c.verdict != "ok"), "ok") for _, checks in found.checks + found.steps
        ]

    job = ("srun", "-n", "2", sys.executable, "t.py")
    assert verdicts(*job) == ["warn", "warn"], "each task asks on its own host"
    assert verdicts(*job[3:]) == ["missing", "missing"]
    monkeypatch.setenv("SLURMD_NODENAME", "node0")
    assert verdicts(*job) == ["missing", "missing"], "this host runs tasks, too"


# ---------------------------------------------------------------- torchrun


def test_torchrun_starts_the_command_as_it_is_by_the_torch_of_its_own_python() -> None:
    made = Torchrun(nproc_per_node=2)
    command = ("/opt/venv/bin/python", "-X", "dev", "train.py", "--lr", "1")
    own = ("/opt/venv/bin/python", "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    assert made.argv(command) == (*own, "--no-python", *command)
    assert made.expected(command, {}) == Expected(2, 2)
    assert made.argv(("./run.sh", "x"))[0] == "torchrun"


def test_a_rendezvous_that_the_plan_names_is_left_alone() -> None:
    made = Torchrun(nproc_per_node=2, options=("--nnodes=2", "--rdzv-endpoint", "node0:29400"))
    assert "--standalone" not in made.argv(("python", "t.py"))
    assert made.expected(("python", "t.py"), {}) == Expected(4, 2)


def test_without_a_number_the_command_is_the_launcher_itself() -> None:
    command = ("torchrun", "--nproc-per-node", "3", "train.py")
    assert Torchrun().argv(command) == command
    assert Torchrun().expected(command, {}) == Expected(3, 3)


@pytest.mark.parametrize("use", ["torchrun", "local"])
def test_no_launcher_is_put_before_another(use: str) -> None:
    chosen = plan({"use": use, "nproc_per_node": 2})
    with pytest.raises(UsageError, match="does not go with this command") as refused:
        resolve.resolve(chosen, ("torchrun", "--nproc-per-node", "2", "train.py"))
    assert "by torchrun already" in refused.value.why and refused.value.next_step


# ---------------------------------------------------------------- the plan


def test_a_plan_says_it_by_use_and_keeps_it(tmp_path: Path) -> None:
    chosen = plan({"use": "torchrun", "nproc_per_node": 2, "ranks": [7, 0, 7]})
    assert chosen.launcher.ranks == (0, 7)
    (tmp_path / "again.yaml").write_text(plans.dump(chosen))
    assert plans.load(tmp_path / "again.yaml").launcher == chosen.launcher
    without = Plan.model_validate({"version": 1, "collectors": [{"use": "timing"}]})
    assert plan({"use": "auto"}).launcher == without.launcher


@pytest.mark.parametrize(
    ("launcher", "place"),
    [
        ("torchrun", ("launcher",)),
        ({"use": "torchrn"}, ("launcher", "use")),
        ({"use": "local"}, ("launcher", "nproc_per_node")),
        ({"use": "auto", "ranks": [-1, 0]}, ("launcher", "ranks", 0)),
        ({"use": "auto", "ranks": []}, ("launcher", "ranks")),
        ({"use": "torchrun", "nproc": 2}, ("launcher", "nproc")),
    ],
)
def test_its_errors_are_told_where_they_stand(launcher: object, place: tuple[str | int, ...]) -> None:
    with pytest.raises(ValidationError) as refused:
        plan(launcher)
    assert [error["loc"] for error in refused.value.errors()] == [place]


# ---------------------------------------------------------------- local


def started(count: int, script: str) -> subprocess.CompletedProcess[str]:
    argv = Local(nproc_per_node=count).argv(("sh", "-c", script))
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def test_each_copy_is_told_its_place() -> None:
    done = started(3, 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"')
    lines = sorted(done.stdout.splitlines())
    assert done.returncode == 0
    assert [line.rpartition(" ")[0] for line in lines] == ["0 0 3 3", "1 1 3 3", "2 2 3 3"]
    assert len({line.rpartition(" ")[2] for line in lines}) == 1, "they meet at one address"


def test_one_that_fails_ends_the_others_and_gives_its_status() -> None:
    done = started(2, 'test "$RANK" = 1 && exit 9; trap "echo ended; exit 3" TERM; while :; do sleep 0.05; done')
    assert (done.returncode, done.stdout) == (9, "ended\n")


def test_one_that_is_killed_gives_the_status_of_a_shell() -> None:
    assert started(2, 'test "$RANK" = 0 && kill -KILL $$; exec sleep 60').returncode == 128 + signal.SIGKILL


def test_a_command_that_is_not_there_is_127() -> None:
    argv = (sys.executable, "-I", "-S", start_ranks.__file__, "2", "/no/such/program")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (127, "/no/such/program: No such file or directory\n")


def test_an_address_that_was_chosen_before_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_PORT", "12345")
    assert start_ranks.environment(1, 2, 999)["MASTER_PORT"] == "12345"
    assert start_ranks.environment(1, 2, 999)["RANK"] == "1" != os.environ.get("RANK")


# ---------------------------------------------------------------- what is told before the run

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py")


def told(launcher: object, command: tuple[str, ...], cpus: tuple[int, ...] = ()) -> list[tuple[str, str, str]]:
    machine = Machine()
    machine.target_cpus = cpus
    return [
        (check.subject, check.verdict, check.message)
        for check in about_ranks(resolve.resolve(plan(launcher), command), machine)
    ]


def test_check_names_the_launcher_and_the_ranks_that_it_expects() -> None:
    assert told({"use": "auto"}, (sys.executable, "train.py")) == []
    assert told({"use": "auto"}, TORCHRUN) == [("launcher", "ok", "torchrun: 2 ranks")]
    several = (*TORCHRUN[:-1], "--nnodes", "2", "train.py")
    assert told({"use": "auto"}, several) == [("launcher", "ok", "torchrun: 4 ranks, 2 of them on this host")]
    assert told({"use": "local", "nproc_per_node": 3}, (sys.executable, "t.py")) == [
        ("launcher", "ok", "local: 3 ranks")
    ]


def test_ranks_that_there_will_not_be_and_cpus_that_are_too_few_are_named_beforehand() -> None:
    one, two, three = told({"use": "auto", "ranks": [0, 7]}, TORCHRUN, cpus=(5,))
    assert one == ("launcher", "ok", "torchrun: 2 ranks; the collectors look at 0, 7")
    assert two == ("launcher", "warn", "there will be no rank 7: the command starts 0 to 1")
    assert three == ("affinity", "warn", "2 ranks share 1 CPU: each waits for the others")
    assert len(told({"use": "auto"}, TORCHRUN, cpus=(4, 5))) == 1
