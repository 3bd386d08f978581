"""What others hold already when a run begins: the command's own profiler, tracers, variables, DCGM."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cli import profrun, write_plan
from fakes.proc import FakeProc

from orchestrator import occupied, process
from orchestrator.collectors.base import Collector
from orchestrator.env_steps.shell import Shell
from orchestrator.machine import Machine
from orchestrator.plan import collector_of

ALL = ("nsys", "ncu", "torch", "strace", "py-spy", "perf", "monitor", "timing")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One with a GPU and no other processes than init."""
    monkeypatch.setattr(Machine, "gpus", [{"index": 0}])
    found = FakeProc(tmp_path).machine
    found.target_env = {}
    return found


def barred(machine: Machine, *argv: str, **options: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """{collector: (verdict, what is said)}, for those in whose way something stands."""
    members: list[Collector] = [collector_of({"use": use, **options.get(use.replace("-", "_"), {})}) for use in ALL]
    found = occupied.holders(argv or ("python", "x.py"), members, (), machine)
    told = {member.use: occupied.checks(member, found, machine) for member in members}
    return {
        use: (checks[0].verdict, f"{checks[0].message} -> {checks[0].fix}") for use, checks in told.items() if checks
    }


def test_nothing_stands_in_the_way_of_a_plain_command(machine: Machine) -> None:
    assert barred(machine) == {}


# ---------------------------------------------------------------- the command is a profiler itself


@pytest.mark.parametrize(
    ("command", "name", "who"),
    [
        ("nsys profile -o x python x.py", "nsys", {"nsys", "ncu", "torch"}),
        ("/opt/nvidia/ncu --set full python x.py", "ncu", {"nsys", "ncu", "torch"}),
        ("compute-sanitizer python x.py", "compute-sanitizer", {"nsys", "ncu", "torch"}),
        ("env A=1 nice -n 5 strace -f python x.py", "strace", {"strace", "py-spy"}),
        ("gdb --args python x.py", "gdb", {"strace", "py-spy"}),
        ("py-spy record -o x -- python x.py", "py-spy", {"strace", "py-spy"}),
        ("memray run x.py", "memray", {"nsys"}),
        ("python -X dev -m memray run x.py", "memray", {"nsys"}),
        ("cuda-gdb --args ./x", "cuda-gdb", {"nsys", "ncu", "torch", "strace", "py-spy"}),
    ],
)
def test_a_profiler_in_the_command_bars_those_that_need_the_same(
    machine: Machine, command: str, name: str, who: set[str]
) -> None:
    found = barred(machine, *command.split())
    assert set(found) == who
    for verdict, said in found.values():
        assert verdict == "blocked"
        assert said.startswith(f"the command starts {name} itself, and ")
        assert f"leave {name} out of the command" in said
    assert list(occupied.about(command.split())) == []


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python -m cProfile -o x x.py", "cProfile"),
        ("python3.12 -m coverage run x.py", "coverage"),
        ("/venv/bin/viztracer x.py", "viztracer"),
        ("python /venv/bin/scalene x.py", "scalene"),
        ("valgrind --tool=callgrind ./x", "valgrind"),
        ("perf record -g python x.py", "perf"),
        ("rocprofv3 --hip-trace -- python x.py", "rocprofv3"),
    ],
)
def test_one_that_only_slows_down_is_a_warning(machine: Machine, command: str, name: str) -> None:
    assert barred(machine, *command.split()) == {}
    [check] = occupied.about(command.split())
    assert check.verdict == "warn" and check.fix == f"leave {name} out of the command"
    assert check.message.startswith(f"the command starts {name} itself")


@pytest.mark.parametrize(
    "command",
    [
        "python x.py nsys profile",
        "python nsys.py",
        "./trace x",
        "profile run",
        "nsys stats x.nsys-rep",
        "memray flamegraph x.bin",
        "py-spy record --nonblocking -- python x.py",
        "sh -c true",
        "nsys",
    ],
)
def test_what_only_looks_like_one(machine: Machine, command: str) -> None:
    assert occupied.profiler_in(command.split()) is None
    assert barred(machine, *command.split()) == {}


def test_the_option_that_gives_way_is_named(machine: Machine) -> None:
    nsys, strace = barred(machine, "nsys", "profile", "x"), barred(machine, "strace", "x")
    assert nsys["torch"][1].endswith("; or write `activities: [cpu]` in torch")
    assert strace["py-spy"][1].endswith("; or write `nonblocking: true` in py-spy")
    assert barred(machine, "memray", "run", "x")["nsys"][1].endswith(
        "or write `trace: [cuda, nvtx, cudnn, cublas]` in nsys"
    )
    assert "torch" not in barred(machine, "nsys", "profile", "x", torch={"activities": ["cpu"]})
    assert "py-spy" not in barred(machine, "strace", "x", py_spy={"nonblocking": True})
    assert barred(machine, "memray", "run", "x", nsys={"trace": ["cuda"]}) == {}


def test_without_a_gpu_its_tracing_is_nobody_s(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "gpus", [])
    found = barred(machine, "nsys", "profile", "x")
    assert set(found) == {"nsys", "ncu"}
    assert "NVIDIA's tools do not work inside one another" in found["nsys"][1]


# ---------------------------------------------------------------- around profrun, and in the environment


def test_a_profrun_that_is_traced_with_its_children(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "tracer_of", lambda pid: 4711)
    FakeProc(machine.path("")).process(4711, "strace", "strace", "-f", "profrun")
    found = barred(machine)
    assert set(found) == {"strace", "py-spy"}
    assert "profrun itself is traced, by pid 4711 (root, strace -f profrun), and with it all that" in found["strace"][1]
    monkeypatch.setattr(process, "tracer_of", lambda pid: 4711 if pid == os.getpid() else 0)
    assert barred(machine) == {}


def test_a_profrun_under_nsys_or_ncu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeProc(machine.path(""))
    fake.process(50, "ncu", "ncu", "profrun")
    fake.process(os.getpid(), "profrun", "profrun", parent=50)
    assert "profrun itself runs under ncu" in barred(machine)["nsys"][1]
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    found = barred(machine)
    assert set(found) == {"nsys", "ncu", "torch"}
    assert found["ncu"][0] == "blocked" and "start profrun without nsys" in found["ncu"][1]


@pytest.mark.parametrize(
    ("env", "who", "verdict", "said"),
    [
        ({"CUDA_INJECTION64_PATH": "/x/lib.so"}, {"nsys", "ncu", "torch"}, "warn", "loads lib.so into the program"),
        ({"NVTX_INJECTION64_PATH": "/x/lib.so"}, {"nsys", "ncu"}, "warn", "NVTX ranges to lib.so"),
        ({"KINETO_USE_DAEMON": "1"}, {"nsys", "ncu", "torch"}, "warn", "dynolog"),
        ({"LD_PRELOAD": "/a/libjemalloc.so:/m/libmemray.so"}, {"nsys"}, "blocked", "puts libmemray.so into"),
        ({"LD_PRELOAD": "/a/libasan.so.6 x.so"}, {"nsys"}, "warn", "LD_PRELOAD puts libasan.so.6 into"),
        ({"LD_PRELOAD": "/a/libjemalloc.so", "CUDA_INJECTION64_PATH": ""}, set(), "", ""),
    ],
)
def test_what_the_environment_lets_in(
    machine: Machine, env: dict[str, str], who: set[str], verdict: str, said: str
) -> None:
    machine.target_env = env
    found = barred(machine)
    assert set(found) == who
    for told, message in found.values():
        assert told == verdict and said in message
        assert f"environment: [{{use: env, unset: [{next(iter(env))}]}}]" in message


def test_what_runs_already_is_asked_by_the_collectors_themselves(machine: Machine) -> None:
    machine.target_env, machine.target_pids = {"CUDA_INJECTION64_PATH": "/x"}, (1,)
    assert barred(machine, "nsys", "profile", "x") == {}


# ---------------------------------------------------------------- DCGM


@pytest.mark.parametrize("name", ["nv-hostengine", "dcgm-exporter"])
def test_dcgm_is_named_to_those_that_read_counters_with_the_step_that_pauses_it(machine: Machine, name: str) -> None:
    FakeProc(machine.path("")).process(333, name, f"/usr/bin/{name}")
    found = barred(machine)
    assert set(found) == {"ncu"}
    verdict, said = found["ncu"]
    assert verdict == "warn" and f"{name} (process 333)" in said
    steps = yaml.safe_load(said.partition("in the plan: ")[2])["environment"]
    step = Shell.model_validate(steps[0])
    assert (step.run, step.undo) == (("dcgmi", "profile", "--pause"), ("dcgmi", "profile", "--resume"))
    both = barred(machine, nsys={"gpu_metrics": True})
    assert set(both) == {"ncu", "nsys"} and "`gpu_metrics: false` in nsys" in both["nsys"][1]
    assert occupied.holders(("x",), [collector_of({"use": "ncu"})], [step], machine) == ()


# ---------------------------------------------------------------- as a user sees it


@pytest.mark.tool("strace")
def test_a_command_that_starts_strace_runs_under_the_others(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", "{use: strace}", report="{formats: []}")
    result = profrun(plan, "--", "strace", "-o", "/dev/null", "true", cwd=tmp_path)
    assert result.code == 4
    capture = result.captures()["strace"]
    assert capture["status"] == "blocked"
    assert capture["reason"].startswith("the command starts strace itself, and a process has one tracer at a time")


@pytest.mark.tool("strace")
def test_a_run_for_which_nothing_is_left_does_not_start(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: strace}")
    result = profrun(plan, "--", "strace", "-o", "/dev/null", "touch", "ran", cwd=tmp_path)
    assert result.code == 3 and not (tmp_path / "ran").exists()
    assert "leave strace out of the command" in result.stderr


@pytest.mark.tool("strace")
def test_profrun_under_strace_says_why_strace_and_py_spy_cannot_work(tmp_path: Path) -> None:
    import subprocess

    from cli import command

    plan = write_plan(tmp_path, "{use: timing}", "{use: strace}")
    words = ["strace", "-f", "-o", "/dev/null", "-e", "trace=none", *command("check", plan, "--", "true")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "blocked strace: profrun itself is traced, by pid " in done.stdout
    alone = subprocess.run(
        [word for word in words if word != "-f"], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert "profrun itself" not in alone.stdout
