"""Environment step `gpu_idle`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
from fakes.gpus import FakeGpus
from fakes.proc import FakeProc
from pydantic import ValidationError

from orchestrator import gpus
from orchestrator.env_steps.gpu_idle import GpuIdle
from orchestrator.gpus import Gpu, GpuProcess, Look, Selection
from orchestrator.machine import Machine
from orchestrator.model import Judged, Wait

MIB = 2**20
IDLE = Gpu(0, "GPU-0", "A100", memory_used_bytes=4 * MIB, utilization_pct=(0, 1, 0), display_active=False)


def step(**options: Any) -> GpuIdle:
    return GpuIdle.model_validate({"use": "gpu_idle", **options})


def gpu(**known: Any) -> Gpu:
    return Gpu(**{**vars(IDLE), **known})


def compute(pid: int, memory_mib: int | None = 100, command: str | None = "python other.py") -> GpuProcess:
    return GpuProcess(pid, "compute", None if memory_mib is None else memory_mib * MIB, "anna", command)


class Driver:
    """What gpus.look answers; a target sees all GPUs, or those that `selection` says."""

    def __init__(self, proc: FakeProc) -> None:
        self.proc, self.machine = proc, proc.machine
        self.answer = Look()
        self.selection: Selection | None = None
        self.windows: list[float] = []

    def has(self, *found: Gpu, hidden: bool = False) -> None:
        self.answer = Look(found, "NVML", "550", processes_hidden=hidden)

    def look(self, machine: Any, *, window_s: float = 0.0) -> Look:
        assert machine is self.machine
        self.windows.append(window_s)
        return self.answer

    def selected(self, found: Look, env: Any) -> Selection:
        assert (found, env) == (self.answer, self.machine.target_env)
        return self.selection or Selection(found.gpus)

    def judged(self, **options: Any) -> Judged | None:
        one = step(**options)
        return one.objection(one.look(self.machine))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver(FakeProc(tmp_path))
    monkeypatch.setattr(gpus, "look", made.look)
    monkeypatch.setattr(gpus, "selected", made.selected)
    return made


def test_an_idle_gpu(driver: Driver) -> None:
    driver.has(IDLE)
    one = step(wait="5m", over="2s")
    seen = one.look(driver.machine)
    assert driver.windows == [2.0]
    assert one.apply(seen) == (Wait(300.0, 1.0),)
    assert one.judge(seen, seen) == Judged("already")
    assert one.checks(driver.machine) == []
    assert driver.windows == [2.0, 0.0], "checks measure nothing"


def test_busy_without_any_process_as_inside_a_container(driver: Driver) -> None:
    """Case D18: 814 MiB in use, 78 % busy, no process listed."""
    driver.has(gpu(memory_used_bytes=814 * MIB, utilization_pct=(78, 71, 75)), hidden=True)
    assert driver.judged() == Judged(
        "failed",
        "GPU 0: up to 78 % busy (5 % allowed), 814 MiB in use of processes that can't be seen from here (500 MiB "
        "allowed); the processes of others can't be listed from here",
        fix="wait for it (`wait: 10m`), or look on the host who it is: nvidia-smi, as root and outside of containers",
    )
    driver.has(IDLE, hidden=True)
    one = step()
    seen = one.look(driver.machine)
    assert one.judge(seen, seen) == Judged("already", "the processes of others can't be listed from here")


def test_each_stranger_is_named(driver: Driver) -> None:
    driver.has(
        gpu(memory_used_bytes=12_292 * MIB, processes=(compute(9, 12_288, "python x.py --token abcdef"),)),
        gpu(index=1, uuid="GPU-1", processes=(compute(8, None, None),)),
    )
    judged = driver.judged()
    assert judged and judged.reason == (
        "GPU 0: 12,292 MiB in use (500 MiB allowed), used by pid 9 (anna, python x.py --token [redacted], 12,288 MiB); "
        "GPU 1: used by pid 8 (anna)"
    )


def test_one_busy_sample_is_enough(driver: Driver) -> None:
    driver.has(gpu(utilization_pct=(0, 0, 6)))
    assert (driver.judged() or Judged("applied")).reason == "GPU 0: up to 6 % busy (5 % allowed)"
    assert driver.judged(max_utilization="6%") is None


def test_memory_of_who_may_stay_does_not_count(driver: Driver) -> None:
    driver.has(gpu(memory_used_bytes=900 * MIB, processes=(compute(9, 880, "python -m notebook"),)))
    assert driver.judged(allow=["notebook"]) is None
    assert driver.judged(allow=["nothing"]) is not None
    left = driver.judged(allow=["notebook"], max_memory="10MiB")
    assert left and left.reason == "GPU 0: 20 MiB in use beside those that may stay (10 MiB allowed)"
    assert driver.judged(max_memory="1GiB", allow=["^nothing"]) is not None, "it is there, however small"


def test_a_target_that_runs_already_is_no_stranger(driver: Driver) -> None:
    driver.proc.process(60, "python", "python", "train.py")
    driver.proc.process(61, "python", "python", "train.py", parent=60)
    driver.machine.target_pids = (60,)
    driver.has(gpu(memory_used_bytes=9_000 * MIB, processes=(compute(61, 8_900),)))
    assert driver.judged() is None


def test_only_the_gpus_that_the_target_will_use(driver: Driver) -> None:
    """Case D16: the selection counts, by UUID, not the first GPU."""
    busy, free = gpu(utilization_pct=(99,)), gpu(index=2, uuid="GPU-2")
    driver.has(busy, gpu(index=1, uuid="GPU-1"), free)
    driver.selection = Selection((free,), ("CUDA_DEVICE_ORDER is not set and the GPUs differ",))
    one = step()
    seen = one.look(driver.machine)
    assert [each["uuid"] for each in seen["gpus"]] == ["GPU-2"]
    assert one.judge(seen, seen) == Judged("already", "CUDA_DEVICE_ORDER is not set and the GPUs differ")


@pytest.mark.parametrize(
    ("why_not", "why_none", "status"),
    [
        ("no answer in 10 s", None, "failed"),
        ("no NVIDIA driver is loaded", None, "not_available"),
        (None, "the program will use no GPU: CUDA_VISIBLE_DEVICES=-1", "not_available"),
    ],
)
def test_no_gpu_and_no_answer(driver: Driver, why_not: str | None, why_none: str | None, status: str) -> None:
    """Case D25: a driver that does not answer is not asked again and again."""
    driver.answer, driver.selection = Look(why_not=why_not, silent=status == "failed"), Selection(why_none=why_none)
    one = step(wait="5m")
    seen = one.look(driver.machine)
    fix = gpus.WAKE if status == "failed" else None
    assert one.judge(seen, seen) == Judged(status, why_not or why_none, fix=fix)  # type: ignore[arg-type]
    assert not one.may_pass(seen)
    assert [(check.verdict, check.message) for check in one.checks(driver.machine)] == [
        ("missing", why_not or why_none)
    ]


def test_what_a_gpu_does_not_offer_is_unknown_and_said(driver: Driver) -> None:
    """Case D24, and MIG, whose driver has no utilisation."""
    driver.has(gpu(mig=True, utilization_pct=(), errors={"utilization_pct": "not offered with MIG"}))
    one = step()
    seen = one.look(driver.machine)
    assert one.judge(seen, seen) == Judged("already", "GPU 0: utilisation unknown (not offered with MIG)")
    driver.has(gpu(mig=True, utilization_pct=(), memory_used_bytes=700 * MIB))
    assert (driver.judged() or Judged("applied")).status == "failed"
    driver.has(gpu(utilization_pct=(), memory_used_bytes=None))
    assert driver.judged() == Judged(
        "not_available",
        "GPU 0: utilisation unknown (not offered by this GPU); GPU 0: memory in use unknown (not offered by this GPU)",
    )
    driver.has(gpu(processes=(compute(9, None, "jupyter"),)))
    one = step(allow=["jupyter"])
    content = one.content(one.look(driver.machine))
    assert content == "GPU 0: memory in use by others unknown (the driver does not tell what the target uses)"


# ---------------------------------------------------------------- as the driver tells it


@pytest.fixture(params=["NVML", "nvidia-smi"])
def played(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpus:
    """Four GPUs, read in either way."""
    try:
        found = FakeGpus(tmp_path, 4, nvml=request.param == "NVML")
    except SkipTest as skip:
        pytest.skip(str(skip))
    for name, text in found.env.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    return found


def judged(**options: Any) -> Judged:
    one, machine = step(over="0.1s", **options), Machine()
    seen = one.look(machine)
    return one.judge(seen, seen) or Judged("applied")


def test_the_gpus_of_the_target_and_no_others(played: FakeGpus) -> None:
    """Case D16."""
    played.set(0, util=99, mem_used=9000)
    assert judged().status == "already"
    played.set(3, util=99, mem_used=9000)
    assert (judged().reason or "").startswith("GPU 3: up to 99 % busy (5 % allowed), 9,000 MiB in use")


def test_a_busy_gpu_without_processes(played: FakeGpus) -> None:
    """Case D18."""
    played.set(2, util=78, mem_used=814)
    found = judged()
    assert found.status == "failed"
    assert "GPU 2: up to 78 % busy (5 % allowed), 814 MiB in use of processes that can't be seen" in found.reason  # type: ignore[operator]
    assert "can't be listed from here" in found.reason  # type: ignore[operator]


def test_a_field_that_is_not_told(played: FakeGpus) -> None:
    """Case D24."""
    played.set(2, na="utilization.gpu temperature.gpu")
    found = judged()
    assert (found.status, (found.reason or "").partition(";")[0]) == (
        "already",
        "GPU 2: utilisation unknown (not offered by this GPU)",
    )


def test_a_driver_that_hangs(played: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case D25."""
    monkeypatch.setenv(gpus.LIMIT_VARIABLE, "1")
    played.set(nvml_hang=1, smi_hang=1)
    assert judged(wait="5m") == Judged("failed", "no answer of the GPUs' driver in 1 s", fix=gpus.WAKE)


def test_a_program_that_will_use_no_gpu(played: FakeGpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    found = judged()
    assert (found.status, "CUDA_VISIBLE_DEVICES=-1" in (found.reason or "")) == ("not_available", True)


# ---------------------------------------------------------------- display servers

XORG = GpuProcess(70, "graphics", 60 * MIB, "root", "/usr/lib/xorg/Xorg :0")


@pytest.mark.parametrize(
    ("manager", "run", "undo"),
    [
        ("gdm3", "stop gdm3", "start, gdm3"),
        ("sddm", "stop sddm", "start, sddm"),
        (None, "isolate multi-user.target", "isolate, graphical.target"),
    ],
)
def test_a_display_server_and_how_to_stop_it(driver: Driver, manager: str | None, run: str, undo: str) -> None:
    driver.proc.process(70, "Xorg", "/usr/lib/xorg/Xorg", ":0")
    if manager:
        driver.proc.process(69, manager, manager)
    driver.has(gpu(processes=(XORG,), display_active=True))
    one = step(wait="5m")
    seen = one.look(driver.machine)
    judged = one.judge(seen, seen)
    assert judged and judged.status == "failed"
    assert judged.reason == "GPU 0: it draws for pid 70 (root, /usr/lib/xorg/Xorg :0, 60 MiB)"
    words = run.replace(" ", ", ")
    assert f"`systemctl {run}`" in (judged.fix or "")
    assert f"{{use: shell, run: [systemctl, {words}], undo: [systemctl, {undo}]}}" in (judged.fix or "")
    assert not one.may_pass(seen), "it does not go away by itself"


def test_a_compositor_that_the_driver_does_not_list(driver: Driver) -> None:
    driver.proc.process(71, "gnome-shell", "/usr/bin/gnome-shell")
    driver.has(gpu(display_active=True))
    judged = driver.judged()
    assert judged and judged.reason == "GPU 0: it draws for pid 71 (root, /usr/bin/gnome-shell)"
    driver.has(IDLE)
    assert driver.judged() is None, "it draws on another GPU"


def test_a_display_server_may_be_let_be(driver: Driver) -> None:
    driver.proc.process(70, "Xorg", "/usr/lib/xorg/Xorg", ":0")
    driver.has(gpu(memory_used_bytes=100 * MIB, processes=(XORG,), display_active=True))
    assert driver.judged(allow=["Xorg"]) is None


def test_a_stranger_beside_a_display_server_is_worth_waiting_for(driver: Driver) -> None:
    driver.has(gpu(processes=(XORG, compute(9))))
    one = step(wait="5m")
    assert one.apply(one.look(driver.machine)) == (Wait(300.0, 1.0),)


def test_a_process_of_both_kinds_is_told_once(driver: Driver) -> None:
    driver.has(gpu(processes=(compute(9), GpuProcess(9, "graphics", 5 * MIB, "anna", "python other.py"))))
    assert (driver.judged() or Judged("applied")).reason == "GPU 0: used by pid 9 (anna, python other.py, 100 MiB)"


@pytest.mark.parametrize("options", [{"allow": ["("]}, {"over": "1m"}, {"max_utilization": 5}, {"max_memory": "x"}])
def test_what_is_no_option(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)
