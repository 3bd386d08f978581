"""Environment step `wait_cool`: waits until GPUs and CPUs are no warmer than asked, so that each run begins alike."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from orchestrator import gpus, names
from orchestrator.env_steps.waiting import Waiting
from orchestrator.model import Cannot, Change, Check, Judged, StepStatus
from orchestrator.units import Celsius, Duration, show_duration

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.machine import Machine

_CPU_CHIPS = {
    "coretemp": r"Package id \d+|Physical id \d+",
    "k10temp": r"Tdie|Tctl",
    "zenpower": r"Tdie|Tctl",
    "cpu_thermal": r".*",
    "scpi_sensors": r".*cpu.*",
}
"""hwmon drivers that measure the processor, and the labels of its hottest spot."""
_CPU_ZONES = re.compile(r"x86_pkg_temp|TCPU|(cpu|soc|cluster|package)\S*", re.I)
"""Types of thermal zones, where there is no such chip."""


class WaitCool(Waiting):
    """Temperatures at the start decide how soon the clocks are lowered."""

    use: Literal["wait_cool"] = "wait_cool"
    gpu: Celsius | None = Field(None, description="what each of the target's GPUs must have come down to; null: any")
    cpu: Celsius | None = Field(None, description="what the processors must have come down to; null: any")
    wait: Duration = Field(300.0, description="how long to wait for it; 0 looks once")

    every_s: ClassVar[float] = 2.0
    purpose: ClassVar[str] = "waits until GPUs and CPUs have cooled down"

    @model_validator(mode="after")
    def _something(self) -> WaitCool:
        if self.gpu is None and self.cpu is None:
            raise ValueError("needs a temperature to wait for: gpu: 50C, cpu: 60C, or both")
        return self

    def checks(self, machine: Machine) -> list[Check]:
        return [Check("wait_cool", "missing", cannot.reason or "") for cannot in self._out_of_reach(self.look(machine))]

    def look(self, machine: Machine) -> dict[str, Any]:
        """Temperatures in °C by GPU and by sensor; why_not: what can't be read, and why."""
        nothing: dict[str, Any] = {"gpu": {}, "why_not": {}, "silent": False}
        seen = nothing if self.gpu is None else _gpu_temperatures(machine)
        cpu = {} if self.cpu is None else _cpu_temperatures(machine)
        if self.cpu is not None and not cpu:
            seen["why_not"]["CPU"] = "no sensor of the processors below /sys/class/hwmon or /sys/class/thermal"
        return {**seen, "cpu": cpu}

    def before(self, machine: Machine) -> dict[str, Any]:
        return self.look(machine)

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        waits = super().apply(before) if before["gpu"] or before["cpu"] else ()
        return (*self._out_of_reach(before), *waits)

    def _out_of_reach(self, seen: Mapping[str, Any]) -> Iterator[Cannot]:
        status: StepStatus = "failed" if seen["silent"] else "not_available"
        for part, why in seen["why_not"].items():
            fix = gpus.WAKE if seen["silent"] and part == "GPU" else None
            yield Cannot(part, status, f"{part}: temperature unknown: {why}", fix=fix)

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        still, after = ("still ", f" after {show_duration(self.wait)}") if self.wait else ("", "")
        hot = [
            f"{name} is {still}at {degrees:g} °C{after}, wanted {wanted:g} °C"
            for part, wanted in (("gpu", self.gpu), ("cpu", self.cpu))
            for name, degrees in seen[part].items()
            if wanted is not None and degrees > wanted
        ]
        return (
            Judged("failed", "; ".join(names.folded(hot)), fix="wait longer (`wait: 10m`) or ask for less")
            if hot
            else None
        )

    def content(self, seen: dict[str, Any]) -> str | None:
        known = [f"{name}: {degrees:g} °C" for name, degrees in (*seen["gpu"].items(), *seen["cpu"].items())]
        return ", ".join(names.folded(known)) or None


def _gpu_temperatures(machine: Machine) -> dict[str, Any]:
    found = gpus.look(machine)
    chosen = gpus.of_target(found, machine)
    known = {f"GPU {gpu.index}": float(gpu.temperature_c) for gpu in chosen.gpus if gpu.temperature_c is not None}
    mute = (gpu for gpu in chosen.gpus if gpu.temperature_c is None)
    why_not = {f"GPU {gpu.index}": gpu.why_unknown("temperature_c") for gpu in mute}
    why_none = found.why_not or chosen.why_none
    return {"gpu": known, "why_not": {"GPU": why_none} if why_none else why_not, "silent": found.silent}


def _cpu_temperatures(machine: Machine) -> dict[str, float]:
    """By label. The kernel gives thousandths of a degree (hwmon's sysfs-interface.rst, thermal's sysfs-api.rst)."""
    chips = sorted(machine.path("sys/class/hwmon").glob("hwmon*"))
    zones = sorted(machine.path("sys/class/thermal").glob("thermal_zone*"))
    sensors = [sensor for chip in chips for sensor in _chip(chip)] or [*map(_zone, zones)]
    known = [(degrees, label) for label, degrees in sensors if degrees is not None]
    return {label: degrees for degrees, label in sorted(known)}  # of two sockets with one label the warmer one


def _chip(chip: Path) -> Iterator[tuple[str, float | None]]:
    name = _text(chip / "name") or ""
    found = {path: _text(path.with_name(path.name.replace("input", "label"))) for path in chip.glob("temp*_input")}
    labels = {path: label or name for path, label in found.items()}
    wanted = {path: label for path, label in labels.items() if re.fullmatch(_CPU_CHIPS.get(name, "(?!)"), label)}
    if "Tdie" in wanted.values():  # Tctl is that plus an offset, on some processors
        wanted = {path: label for path, label in wanted.items() if label == "Tdie"}
    yield from ((label, _degrees(path)) for path, label in sorted(wanted.items()))


def _zone(zone: Path) -> tuple[str, float | None]:
    kind = _text(zone / "type") or ""
    return kind, _degrees(zone / "temp") if _CPU_ZONES.fullmatch(kind) else None


def _degrees(path: Path) -> float | None:
    text = _text(path) or ""
    return int(text) / 1000 if re.fullmatch(r"-?\d+", text) else None


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
