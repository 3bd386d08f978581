"""Environment step `wait_cool`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import gpus
from orchestrator.env_steps.wait_cool import WaitCool
from orchestrator.gpus import Gpu, Look, Selection
from orchestrator.machine import Machine
from orchestrator.model import Cannot, Judged, Wait

HWMON = "sys/class/hwmon/hwmon"


def step(**options: Any) -> WaitCool:
    return WaitCool.model_validate({"use": "wait_cool", **options})


def write(root: Path, files: dict[str, object]) -> Machine:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return Machine(root=root)


def chip(number: int, name: str, **sensors: int) -> dict[str, object]:
    """A hwmon chip; Package_id_0=55000 becomes the label `Package id 0`."""
    files: dict[str, object] = {f"{HWMON}{number}/name": name}
    for at, (label, value) in enumerate(sensors.items(), 1):
        files[f"{HWMON}{number}/temp{at}_input"] = value
        files[f"{HWMON}{number}/temp{at}_label"] = label.replace("_", " ")
    return files


def zone(number: int, kind: str, value: object) -> dict[str, object]:
    place = f"sys/class/thermal/thermal_zone{number}"
    return {f"{place}/type": kind, f"{place}/temp": value}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (chip(0, "coretemp", Package_id_0=55000, Core_0=54000, Core_1=60000), {"Package id 0": 55.0}),
        (
            {**chip(0, "coretemp", Package_id_0=55000), **chip(1, "coretemp", Package_id_1=61500)},
            {"Package id 0": 55.0, "Package id 1": 61.5},
        ),
        ({**chip(0, "k10temp", Tctl=71000), **chip(1, "k10temp", Tctl=66000)}, {"Tctl": 71.0}),
        (chip(0, "k10temp", Tctl=97000, Tdie=70000, Tccd1=69000), {"Tdie": 70.0}),
        (chip(0, "nvme", Composite=48000), {}),
        ({f"{HWMON}0/name": "cpu_thermal", f"{HWMON}0/temp1_input": 41000}, {"cpu_thermal": 41.0}),
        (zone(0, "acpitz", 27800), {}),
        ({**zone(0, "acpitz", 27800), **zone(1, "x86_pkg_temp", 64000)}, {"x86_pkg_temp": 64.0}),
        ({**zone(0, "cpu-0-thermal", 50000), **zone(1, "cpu-0-thermal", 52000)}, {"cpu-0-thermal": 52.0}),
        (zone(0, "x86_pkg_temp", ""), {}),
        (zone(0, "x86_pkg_temp", -1000), {"x86_pkg_temp": -1.0}),
        ({**chip(0, "coretemp", Package_id_0=55000), **zone(1, "x86_pkg_temp", 64000)}, {"Package id 0": 55.0}),
    ],
)  # fmt: skip
def test_the_sensors_of_processors(tmp_path: Path, files: dict[str, object], found: dict[str, float]) -> None:
    assert step(cpu="60C").look(write(tmp_path, files))["cpu"] == found


def test_it_waits_until_all_is_cool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = (Gpu(0, "GPU-0", temperature_c=71), Gpu(1, "GPU-1", temperature_c=50))
    monkeypatch.setattr(gpus, "look", lambda _machine: Look(made))
    monkeypatch.setattr(gpus, "of_target", lambda found, _machine: Selection(found.gpus))
    machine = write(tmp_path, chip(0, "coretemp", Package_id_0=65250))
    one = step(gpu="50C", cpu="60 °C", wait="5m")
    hot = one.before(machine)
    assert hot == {
        "gpu": {"GPU 0": 71.0, "GPU 1": 50.0},
        "cpu": {"Package id 0": 65.25},
        "why_not": {},
        "silent": False,
    }
    assert one.apply(hot) == (Wait(300.0, 2.0),)
    assert one.judge(hot, hot) == Judged(
        "failed",
        "GPU 0 is still at 71 °C after 5 m, wanted 50 °C; Package id 0 is still at 65.25 °C after 5 m, wanted 60 °C",
        fix="wait longer (`wait: 10m`) or ask for less",
    )
    made = (Gpu(0, "GPU-0", temperature_c=49), made[1])
    cool = one.look(write(tmp_path, chip(0, "coretemp", Package_id_0=59000)))
    assert one.judge(hot, cool) == Judged("applied", "GPU 0: 49 °C, GPU 1: 50 °C, Package id 0: 59 °C")
    assert one.judge(cool, cool) == Judged("already", "GPU 0: 49 °C, GPU 1: 50 °C, Package id 0: 59 °C")
    assert step(gpu=50, wait=0).judge(hot, hot) == Judged(
        "failed", "GPU 0 is at 71 °C, wanted 50 °C", fix="wait longer (`wait: 10m`) or ask for less"
    )


def test_what_can_not_be_read_is_told_by_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = Gpu(0, "GPU-0", errors={"temperature_c": "[N/A]"})
    monkeypatch.setattr(gpus, "look", lambda _machine: Look((silent, Gpu(1, "GPU-1", temperature_c=40))))
    monkeypatch.setattr(gpus, "of_target", lambda found, _machine: Selection(found.gpus))
    one, machine = step(gpu=50, cpu=60), Machine(root=tmp_path)
    seen = one.before(machine)
    gpu = Cannot("GPU 0", "not_available", "GPU 0: temperature unknown: [N/A]")
    why = "no sensor of the processors below /sys/class/hwmon or /sys/class/thermal"
    cpu = Cannot("CPU", "not_available", f"CPU: temperature unknown: {why}")
    assert one.apply(seen) == (gpu, cpu, Wait(300.0, 2.0))
    assert one.judge(seen, seen) == Judged("already", "GPU 1: 40 °C")
    assert [(check.verdict, check.message) for check in one.checks(machine)] == [
        ("missing", gpu.reason),
        ("missing", cpu.reason),
    ]


def test_a_driver_that_does_not_answer_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "look", lambda _machine: Look(why_not="no answer in 10 s", silent=True))
    monkeypatch.setattr(gpus, "of_target", lambda _found, _machine: Selection())
    one = step(gpu=50)
    (cannot,) = one.apply(one.before(Machine(root=tmp_path)))
    assert cannot == Cannot("GPU", "failed", "GPU: temperature unknown: no answer in 10 s", fix=gpus.WAKE)


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    assert step(cpu=60).look(Machine(root=tmp_path))["gpu"] == {}, "no driver is asked"


@pytest.mark.parametrize("options", [{}, {"gpu": "50F"}, {"gpu": True}, {"cpu": "cool"}])
def test_what_is_no_option(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


def test_temperatures_are_written_as_they_are_read() -> None:
    one = step(gpu="50.5 °C", cpu=60)
    assert (one.gpu, one.cpu) == (50.5, 60.0)
    assert one.model_dump(mode="json")["gpu"] == "50.5C"
    assert WaitCool.model_validate(one.model_dump(mode="json")) == one
