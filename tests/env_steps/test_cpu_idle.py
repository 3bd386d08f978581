"""Environment step `cpu_idle`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.proc import FakeProc
from pydantic import ValidationError

from orchestrator import resolve
from orchestrator.env_steps.cpu_idle import CpuIdle
from orchestrator.machine import Machine
from orchestrator.model import Judged, Wait
from orchestrator.planfile import plans

ANNAS_UID = 4_000_000_001


def step(**options: Any) -> CpuIdle:
    return CpuIdle.model_validate({"use": "cpu_idle", **options})


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    """Four cores; pid 50 is somebody's."""
    found = FakeProc(tmp_path, cores=4)
    found.process(50, "python", "python", "sweep.py", "--password=x1y2z3", uid=ANNAS_UID)
    return found


@pytest.fixture
def meanwhile(fake: FakeProc, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """What happens while the step sleeps; gives back how long it slept each time."""

    def happens(**what: Any) -> list[float]:
        slept: list[float] = []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            fake.passes(seconds, **what)

        monkeypatch.setattr("orchestrator.env_steps.cpu_idle.time.sleep", sleep)
        return slept

    return happens


def test_busy_cores_and_who_keeps_them_so(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    slept = meanwhile(busy=(1.0, 0.9, 0.1), used={50: 1.9, 1: 0.1}, running=3, waiting=0.25)
    one = step(max_busy="60%", of_cores="50%", over="5s", wait="2m")
    seen = one.look(fake.machine)
    assert slept == [5.0]
    assert seen == {
        "cores": 4,
        "busy_cores": 2,
        "cores_pct": {"0": 100.0, "1": 90.0, "2": 10.0, "3": 0.0},
        "procs_running": 3,
        "waiting_pct": 25.0,
        "stolen_pct": 0.0,
        "top": [
            {
                "pid": 50,
                "user": f"user {ANNAS_UID}",
                "command": "python sweep.py --password=[redacted]",
                "core_pct": 190.0,
            },
            {"pid": 1, "user": "root", "command": "[init]", "core_pct": 10.0},
        ],
        "notes": [],
    }
    assert one.judge(seen, seen) == Judged(
        "failed",
        f"2 of 4 cores are busier than 60 %; pid 50 (user {ANNAS_UID}, python sweep.py --password=[redacted]) "
        "190 % of a core, pid 1 (root, [init]) 10 % of a core; in 25 % of the time some process waited for a core (3 "
        "ready to run at the end)",
        fix="end or pause what keeps them busy, or wait for it: `wait: 10m`",
    )
    assert one.apply(seen) == (Wait(120.0, 1.0),)


@pytest.mark.parametrize(
    ("of_cores", "busy", "idle"),
    [
        ("50%", (1, 1, 0, 0), False),
        ("51%", (1, 1, 0, 0), True),
        ("50%", (1, 0.4, 0.4, 0.4), True),
        ("0%", (0, 0, 0, 0), True),
        ("0%", (1, 0, 0, 0), False),
        ("100%", (1, 1, 1, 0), True),
    ],
)
def test_how_many_cores_may_be_busy(
    fake: FakeProc, meanwhile: Callable[..., list[float]], of_cores: str, busy: tuple[float, ...], idle: bool
) -> None:
    meanwhile(busy=busy, used={50: sum(busy)})
    one = step(of_cores=of_cores)
    assert (one.objection(one.look(fake.machine)) is None) is idle


def test_idle_at_once_is_already_and_idle_later_applied(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    one = step()
    meanwhile(busy=(1, 1, 1, 1), used={50: 4.0})
    busy = one.look(fake.machine)
    meanwhile()
    idle = one.verify(fake.machine)
    assert one.judge(idle, idle) == Judged("already")
    assert one.judge(busy, idle) == Judged("applied")
    assert one.apply(busy) == (Wait(0.0, 1.0),)


def test_only_the_cores_that_the_target_may_use(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    fake.write("proc/self/status", "Cpus_allowed_list:\t1,3\n")
    meanwhile(busy=(1, 0, 1, 0), used={50: 2.0})
    seen = step().look(fake.machine)
    assert (seen["cores_pct"], seen["busy_cores"]) == ({"1": 0.0, "3": 0.0}, 0)


def bind(machine: Machine, option: str) -> None:
    """As a run tells the machine of a plan that binds its program."""
    plan = machine.path("plan.yaml")
    plan.write_text(f"version: 1\nenvironment: [{{use: affinity, {option}}}]\ncollectors: [{{use: timing}}]\n")
    resolve.tell(machine, resolve.without_command(plans.load(plan)))


def test_only_the_cores_that_the_plan_binds_the_target_to(
    fake: FakeProc, meanwhile: Callable[..., list[float]]
) -> None:
    bind(fake.machine, "cpus: 1-2")
    meanwhile(busy=(1, 0, 0, 1), used={50: 2.0})
    assert step().look(fake.machine)["cores_pct"] == {"1": 0.0, "2": 0.0}
    fake.write("sys/devices/system/node/node1/cpulist", "2-3\n")
    bind(fake.machine, "numa: 1")
    assert step().look(fake.machine)["cores_pct"] == {"2": 0.0, "3": 100.0}


@pytest.mark.parametrize(
    ("busy", "used", "said"),
    [
        ((1, 0, 0, 0), 1.0, "1 of 4 cores is busier than 50 %; pid 50 (user 4000000001, python x) 100 % of a core"),
        ((0.25,) * 4, 1.0, "pid 50 (user 4000000001, python x) 100 % of a core"),
        ((0.1, 0.1, 0, 0), 0.2, None),
    ],
    ids=["one core", "wandering", "next to nothing"],
)
def test_what_is_idle_enough_but_not_idle_is_told(
    fake: FakeProc, meanwhile: Callable[..., list[float]], busy: tuple[float, ...], used: float, said: str | None
) -> None:
    fake.process(50, "python", "python", "x", uid=ANNAS_UID)
    meanwhile(busy=busy, used={50: used})
    seen = step(of_cores="50%").look(fake.machine)
    assert step(of_cores="50%").judge(seen, seen) == Judged("already", said)


def test_a_target_that_runs_already_is_no_stranger(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    fake.process(60, "python", "python", "train.py")
    fake.process(61, "python", "python", "worker", parent=60)
    fake.write("proc/60/status", "Cpus_allowed_list:\t0-3\n")
    fake.machine.target_pids = (60,)
    meanwhile(busy=(1, 1, 1, 0), used={60: 1.02, 61: 0.98, 50: 1.0})
    seen = step().look(fake.machine)
    assert (seen["busy_cores"], [one["pid"] for one in seen["top"]]) == (1, [50])


def test_work_of_nobody_who_can_be_seen(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    fake.write(".dockerenv", "")
    fake.write("proc/self/cgroup", "0::/\n")
    fake.write("sys/fs/cgroup/cpu.max", "150000 100000\n")
    meanwhile(busy=(1, 1, 0, 0))
    judged = step().objection(step().look(fake.machine))
    assert judged and judged.reason == (
        "2 of 4 cores are busier than 50 %; 2.0 cores' worth of work is not explained by what can be seen: processes "
        "outside this container (docker) can't be seen from here; this control group may use 1.5 of the 4 cores "
        "(CPU quota)"
    )


def test_time_that_a_hypervisor_took(fake: FakeProc, meanwhile: Callable[..., list[float]]) -> None:
    meanwhile(busy=(0.3, 0.3, 0.3, 0.3), stolen=0.4, used={50: 1.2})
    judged = step().objection(step().look(fake.machine))
    assert judged and "4 of 4 cores" in (judged.reason or "")
    assert "40 % of the time was taken by the hypervisor" in (judged.reason or "")


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"self/cgroup": "0::/a/b"}, None),
        ({"self/cgroup": "0::/a/b", "a/cpu.max": "100000 100000", "a/b/cpu.max": "max 100000"}, 1.0),
        ({"self/cgroup": "4:cpu,cpuacct:/a", "cpu/a/cpu.cfs_quota_us": "5", "cpu/a/cpu.cfs_period_us": "10"}, 0.5),
        ({"self/cgroup": "nonsense", "cpu.max": "100000 0"}, None),
        ({"self/cgroup": "4:cpu:/a", "cpu/a/cpu.cfs_quota_us": "5", "cpu/a/cpu.cfs_period_us": "0"}, None),
        ({"self/cgroup": "4:cpu:/a", "cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "10"}, None),
    ],
)  # fmt: skip
def test_the_quota_of_a_control_group(
    fake: FakeProc, meanwhile: Callable[..., list[float]], files: dict[str, str], cores: float | None
) -> None:
    for name, text in files.items():
        fake.write(f"proc/{name}" if name == "self/cgroup" else f"sys/fs/cgroup/{name}", text)
    meanwhile()
    said = [f"this control group may use {cores:g} of the 4 cores (CPU quota)"] if cores else []
    assert step().look(fake.machine)["notes"] == said


def test_a_kernel_without_pressure_and_a_core_that_goes_offline(
    fake: FakeProc, meanwhile: Callable[..., list[float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (fake.root / "proc/pressure/cpu").unlink()
    fake.waited_us = None

    def sleep(seconds: float) -> None:
        fake.passes(seconds)
        stat = (fake.root / "proc/stat").read_text()
        fake.write("proc/stat", "\n".join(line for line in stat.splitlines() if not line.startswith("cpu3")))

    monkeypatch.setattr("orchestrator.env_steps.cpu_idle.time.sleep", sleep)
    seen = step().look(fake.machine)
    assert seen["waiting_pct"] is None
    assert list(seen["cores_pct"]) == ["0", "1", "2"]


def test_without_any_figures_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.env_steps.cpu_idle.time.sleep", lambda _: None)
    one, machine = step(wait="5m"), Machine(root=tmp_path)
    seen = one.look(machine)
    said = "/proc/stat does not tell how busy the processors are"
    assert one.judge(seen, seen) == Judged("not_available", said)
    assert not one.may_pass(seen)
    assert [(check.verdict, check.message) for check in one.checks(machine)] == [("missing", said)]


def test_checks_find_nothing_to_say_here() -> None:
    assert step().checks(Machine()) == []


@pytest.mark.parametrize("options", [{"over": 0}, {"over": "11s"}, {"max_busy": 50}, {"wait": "soon"}])
def test_what_is_no_option(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


def test_a_real_process_that_burns_is_named() -> None:
    burning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        named: list[int] = []
        while burning.pid not in named and time.monotonic() < deadline:
            # it is our own child, so no stranger; seen from another process's place it is
            named = [one["pid"] for one in _from_elsewhere(step(over="1s"))["top"]]
        assert burning.pid in named
    finally:
        burning.kill()
        burning.wait()


def _from_elsewhere(one: CpuIdle) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("orchestrator.neighbours.os.getpid", lambda: -1)
        return one.look(Machine())
