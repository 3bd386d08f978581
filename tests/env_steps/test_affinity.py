"""Environment step `affinity`: what it wants of the program, tried out beforehand and looked at in the run."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import names, process
from orchestrator.env_steps.affinity import NO_RANDOM_ADDRESSES, Affinity
from orchestrator.env_steps.base import too_late
from orchestrator.machine import Machine
from orchestrator.model import Cannot, Child

ONE = min(os.sched_getaffinity(0))


def step(**options: Any) -> Affinity:
    return Affinity.model_validate({"use": "affinity", **options})


def told(wanted: Affinity) -> list[tuple[str, str, str | None]]:
    changes = wanted.apply(wanted.before(Machine()))
    return [(c.part, c.status, c.detail) for c in changes if isinstance(c, Cannot)]


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("written", "cpus"),
    [("0-3,8", (0, 1, 2, 3, 8)), (5, (5,)), ([1, 0], (0, 1)), (["0-1", 4], (0, 1, 4)), (" 2 , 0 ", (0, 2))],
)
def test_cpus_as_they_are_written(written: object, cpus: tuple[int, ...]) -> None:
    assert step(cpus=written).child() == Child(affinity=cpus)
    assert Affinity.model_validate(step(cpus=written).model_dump(mode="json")) == step(cpus=written)


def test_all_of_it_is_the_program_s_own() -> None:
    wanted = step(cpus="0", numa=0, nice=-5, aslr=False)
    assert wanted.child() == Child(affinity=(0,), numa_node=0, nice=-5, personality=NO_RANDOM_ADDRESSES)
    assert wanted.claims(Machine()) == ()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cpus": ""},
        {"cpus": "all"},
        {"cpus": "3-1"},
        {"cpus": "-1"},
        {"cpus": True},
        {"cpus": 10**9},
        {"nice": -21},
        {"nice": "high"},
        {"numa": -1},
        {"aslr": True},
        {"core": 1},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


# ---------------------------------------------------------------- tried out


def test_what_can_be_had_is_not_objected_to() -> None:
    wanted = step(cpus=ONE, nice=os.getpriority(os.PRIO_PROCESS, 0) + 1)
    assert told(wanted) == [] and wanted.checks(Machine()) == []


def test_cpus_that_are_not_there() -> None:
    assert told(step(cpus=[ONE, 4095])) == [("CPUs", "clamped", str(ONE))]
    assert told(step(cpus="4000-4095")) == [("CPUs", "not_available", None)]
    (check,) = step(cpus=[ONE, 4095]).checks(Machine())
    assert check.verdict == "warn" and check.message.startswith("CPUs: CPU 4095 can't be used here (usable: ")


def test_a_node_that_is_not_there() -> None:
    assert told(step(numa=1023)) == [("NUMA node 1023", "not_available", None)]


@pytest.mark.parametrize(
    ("refused", "options", "part"),
    [
        ({"nice": errno.EACCES}, {"nice": -5}, ("nice", "refused", "EACCES")),
        ({"personality": errno.EPERM}, {"aslr": False}, ("ASLR", "refused", "EPERM")),
        ({"numa_node": errno.EPERM}, {"numa": 0}, ("NUMA node 0", "refused", "EPERM")),
        ({"numa_node": errno.ENOSYS}, {"numa": 0}, ("NUMA node 0", "not_available", "ENOSYS")),
        ({"numa_node": errno.EINVAL}, {"numa": 0}, ("NUMA node 0", "not_available", None)),
    ],
)
def test_what_is_refused_is_told_beforehand(
    refused: dict[str, int], options: dict[str, Any], part: tuple[str, str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "tried", lambda child: process.Tried((0,), refused))
    assert told(step(**options)) == [part]
    (check,) = step(**options).checks(Machine())
    assert check.verdict == ("blocked" if part[1] == "refused" else "missing")


def test_a_program_that_runs_already_is_left_alone() -> None:
    here = Machine()
    here.target_pids = (4711,)
    change = too_late(step(nice=5), here)
    assert change and change.status == "not_available" and too_late(step(nice=5), Machine()) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_somebody_else_may_not_raise_its_priority() -> None:
    """In a process of its own, as there is no way back from what it gives up."""
    code = (
        "import os, sys; from orchestrator import process; from orchestrator.model import Child\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "print(dict(process.tried(Child(nice=-5)).refused))"
    )
    answer = process.ask([sys.executable, "-c", code], timeout_s=60, cwd=str(Path(__file__).parents[2]))
    assert answer.stdout.strip() == f"{{'nice': {errno.EACCES}}}", answer.stderr


# ---------------------------------------------------------------- in the program

PROGRAM = """
import json, os, sys
def has():
    with open("/proc/self/personality") as file:
        bits = int(file.read(), 16)
    return sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), bool(bits & 0x0040000)
reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, json.dumps(has()).encode())
    os._exit(0)
os.wait()
print(json.dumps([has(), json.loads(os.read(reading, 1000))]))
"""


def started(child: Child, tmp_path: Path) -> tuple[process.Started, str]:
    out = tmp_path / "out"
    with Path(os.devnull).open("r+b") as null, out.open("wb") as file:
        fds = (null.fileno(), file.fileno(), null.fileno())
        spec = process.Spec(sys.executable, (sys.executable, "-c", PROGRAM), dict(os.environ), "/", *fds, child)
        running = process.start(spec)
        assert running.wait(60)
    return running, out.read_text()


def test_the_program_and_its_children_have_it(tmp_path: Path) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 3
    ours = sorted(os.sched_getaffinity(0))
    _, text = started(step(cpus=ONE, nice=nice, aslr=False).child(), tmp_path)
    assert json.loads(text) == [[[ONE], nice, True]] * 2
    assert sorted(os.sched_getaffinity(0)) == ours, (
        "profrun, and with it the tools beside the program, stay as they are"
    )


def test_what_is_refused_does_not_keep_the_program_from_starting(tmp_path: Path) -> None:
    running, text = started(Child(affinity=(4095,), nice=os.getpriority(os.PRIO_PROCESS, 0), numa_node=1023), tmp_path)
    assert running.exit and running.exit.code == 0
    assert json.loads(text)[0][0] == sorted(os.sched_getaffinity(0))


@pytest.mark.skipif(not Path("/sys/devices/system/node/node0").is_dir(), reason="this kernel shows no NUMA nodes")
def test_a_node_gives_cpus_and_memory() -> None:
    trial = process.tried(Child(numa_node=0))
    listed = names.numbers_in(Path("/sys/devices/system/node/node0/cpulist").read_text())
    if errno.ENOSYS in trial.refused.values() or errno.EPERM in trial.refused.values():
        pytest.skip(f"memory can't be bound here: {trial.refused}")
    assert trial == process.Tried(tuple(sorted({*listed} & {*trial.cpus})), {})


def test_what_the_kernel_says_of_a_process() -> None:
    cpus, nice, bits = process.attributes_of(os.getpid())
    assert cpus == names.spans(os.sched_getaffinity(0))
    assert nice == os.getpriority(os.PRIO_PROCESS, 0) and bits is not None
    assert process.attributes_of(2**22 + 1) == (None, None, None)


# ---------------------------------------------------------------- what it really ran with


@pytest.mark.parametrize(
    ("process_has", "why"),
    [
        ({"cpus": "0-1", "nice": 5, "personality": 0x40000}, None),
        ({"cpus": None, "nice": None, "personality": None}, None),
        ({"cpus": "1", "nice": 5, "personality": 0x40000}, "cpus 1 instead of 0-1"),
        ({"cpus": "0-1", "nice": 0, "personality": 0}, "nice 0 instead of 5, aslr true instead of false"),
    ],
)
def test_a_launcher_with_other_ideas_is_told(process_has: dict[str, Any], why: str | None) -> None:
    found, said = step(cpus="0-1", nice=5, aslr=False).seen(process_has)
    assert said == (why and f"{why}: a launcher or the program itself changed it")
    assert found["cpus"] == process_has["cpus"]
