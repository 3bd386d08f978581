"""The processors as the kernel shows them in /sys/devices/system/cpu: clocks, turbo, hyper-threads, idle states.

Files and their meaning: the kernel's Documentation/admin-guide/pm (cpufreq, intel_pstate, amd-pstate, cpuidle)."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.names import numbers_in

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from orchestrator.machine import Machine

_CPU = "sys/devices/system/cpu"
_LATENCY = "dev/cpu_dma_latency"
HOLDING = ("intel_pstate", "amd-pstate-epp")
"""Drivers that choose the clock themselves: two governors only, and `performance` holds the energy preference."""


@dataclass(frozen=True)
class Policy:
    """CPUs that have one clock setting in common. Frequencies in kHz. None, empty: the driver does not say."""

    cpus: tuple[int, ...]
    driver: str | None = None
    governor: str | None = None
    governors: tuple[str, ...] = ()
    min_khz: int | None = None
    max_khz: int | None = None
    lowest_khz: int | None = None
    highest_khz: int | None = None
    base_khz: int | None = None
    """The highest without turbo."""
    table_khz: tuple[int, ...] = ()
    """The only clocks that there are; empty: any within the limits."""
    energy_preference: str | None = None
    energy_preferences: tuple[str, ...] = ()
    boost: str | None = None


@dataclass(frozen=True)
class Idle:
    """An idle state of some CPUs. `disabled`: those of them that may not enter it."""

    number: int
    name: str
    latency_us: int
    cpus: tuple[int, ...] = ()
    disabled: tuple[int, ...] = ()


@dataclass(frozen=True)
class Processors:
    """What `read` has found. None: this machine has no such setting."""

    place: str
    """The folder that all of it is in."""
    policies: Mapping[str, Policy]
    no_turbo: str | None = None
    boost: str | None = None
    mode: str | None = None
    """active, passive, guided: how far the processor chooses its clock itself (intel_pstate, amd_pstate)."""
    most_pct: int | None = None
    """intel_pstate/max_perf_pct: a limit over all policies."""
    smt: str | None = None
    second_threads: tuple[int, ...] = ()
    """The CPUs that go when hyper-threads are turned off."""
    idle: tuple[Idle, ...] = ()
    latency: str | None = None
    """The file that holds idle states back as long as it is open."""
    latency_us: int | None = None
    """What all who hold it want, at most."""
    why_none: str = ""
    """Why there are no policies."""
    read_only: bool = False

    def told(self) -> dict[str, Any]:
        """As JSON-able words; what is unknown is left out. `of` reads it."""
        found = asdict(self)
        found["policies"] = {name: _known(policy) for name, policy in found["policies"].items()}
        return _known(found)

    @staticmethod
    def of(told: Mapping[str, Any]) -> Processors:
        """What `told` has written, also after its way through JSON."""
        return _adapter().validate_python(dict(told))

    def turbo(self) -> bool | None:
        """Whether the clock may rise above the base; None where that can't be told, or differs between policies."""
        if self.no_turbo is not None:
            return self.no_turbo == "0"
        if self.boost == "0":
            return False
        each = {policy.boost for policy in self.policies.values()} - {None} or {self.boost}
        return {"1": True, "0": False}.get(next(iter(each)) or "") if len(each) == 1 else None


@cache
def _adapter() -> TypeAdapter[Processors]:
    from pydantic import TypeAdapter

    return TypeAdapter(Processors)


def _known(found: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in found.items() if v not in (None, (), "") or k in ("policies", "place")}


def read(machine: Machine, *, idle: bool = False) -> Processors:
    """All of it; of the idle states, which are many small files, only where `idle` asks for them."""
    policies = dict(_policies(machine))
    mode = next((x for k in ("intel_pstate", "amd_pstate") if (x := _read(machine, f"{k}/status"))), None)
    latency = machine.path(_LATENCY)
    place = machine.path(_CPU)
    return Processors(
        place=str(place),
        policies=policies,
        no_turbo=_read(machine, "intel_pstate/no_turbo"),
        boost=_read(machine, "cpufreq/boost"),
        mode=mode,
        most_pct=_number(_read(machine, "intel_pstate/max_perf_pct")),
        smt=_read(machine, "smt/control"),
        second_threads=tuple(_second_threads(machine)),
        idle=tuple(_idle(machine)) if idle else (),
        latency=str(latency) if latency.exists() else None,
        latency_us=_held_us(latency),
        why_none="" if policies else _why_none(machine, mode),
        read_only=is_read_only(place),
    )


def _policies(machine: Machine) -> Iterator[tuple[str, Policy]]:
    for path in sorted(machine.path(f"{_CPU}/cpufreq").glob("policy[0-9]*"), key=lambda p: int(p.name[6:])):
        at = f"cpufreq/{path.name}"
        cpus = _numbers(_read(machine, f"{at}/affected_cpus"))
        if cpus and _read(machine, f"{at}/scaling_governor") is not None:  # those of CPUs that are off can't be read
            yield path.name, _policy(machine, at, cpus)


def _policy(machine: Machine, at: str, cpus: tuple[int, ...]) -> Policy:
    def text(name: str) -> str | None:
        return _read(machine, f"{at}/{name}")

    table = _numbers(text("scaling_available_frequencies"))
    cppc_mhz = _number(_read(machine, f"cpu{cpus[0]}/acpi_cppc/nominal_freq"))
    return Policy(
        cpus=cpus,
        driver=text("scaling_driver"),
        governor=text("scaling_governor"),
        governors=tuple((text("scaling_available_governors") or "").split()),
        min_khz=_number(text("scaling_min_freq")),
        max_khz=_number(text("scaling_max_freq")),
        lowest_khz=_number(text("cpuinfo_min_freq")),
        highest_khz=_number(text("cpuinfo_max_freq")),
        base_khz=_number(text("base_frequency")) or (cppc_mhz * 1000 if cppc_mhz else max(table, default=None)),
        table_khz=table,
        energy_preference=text("energy_performance_preference"),
        energy_preferences=tuple((text("energy_performance_available_preferences") or "").split()),
        boost=text("boost"),
    )


def _second_threads(machine: Machine) -> Iterator[int]:
    """The kernel keeps the first thread of each core."""
    for path in machine.path(_CPU).glob("cpu[0-9]*"):
        siblings = numbers_in(_read(machine, f"{path.name}/topology/thread_siblings_list") or "")
        if len(siblings) > 1 and int(path.name[3:]) != min(siblings):
            yield int(path.name[3:])


def _idle(machine: Machine) -> Iterator[Idle]:
    cpus: dict[tuple[int, str, int], list[int]] = {}
    disabled: dict[tuple[int, str, int], list[int]] = {}
    for path in machine.path(_CPU).glob("cpu[0-9]*/cpuidle/state[0-9]*"):
        cpu, number = int(path.parts[-3][3:]), int(path.name[5:])
        at = f"cpu{cpu}/cpuidle/{path.name}"
        latency_us = _number(_read(machine, f"{at}/latency"))
        if latency_us is not None:
            key = (number, _read(machine, f"{at}/name") or path.name, latency_us)
            cpus.setdefault(key, []).append(cpu)
            if _read(machine, f"{at}/disable") not in (None, "0"):
                disabled.setdefault(key, []).append(cpu)
    for key in sorted(cpus):
        yield Idle(*key, tuple(sorted(cpus[key])), tuple(sorted(disabled.get(key, ()))))


def _held_us(path: Path) -> int | None:
    """The device gives the value in the machine's own byte order (kernel: Documentation/power/pm_qos_interface)."""
    import sys

    try:
        found = path.read_bytes()
    except OSError:
        return None
    return int.from_bytes(found, sys.byteorder) if len(found) == 4 else None


def _why_none(machine: Machine, mode: str | None) -> str:
    if mode == "off":
        return "the cpufreq driver of this machine is turned off"
    if is_virtual(machine):
        return "no cpufreq here: in a virtual machine its host decides about the clock"
    container = machine.in_container()
    if container:
        return f"no cpufreq is visible in this container ({container})"
    return "no cpufreq here: the kernel has no driver for this processor's clock, or the firmware keeps it"


def is_virtual(machine: Machine) -> bool:
    """Whether the processor says that it is a virtual one, or the kernel knows of a hypervisor."""
    flags = re.search(r"^flags\s*:.*\bhypervisor\b", machine.read("proc/cpuinfo") or "", re.M)
    return bool(flags) or machine.read("sys/hypervisor/type") is not None


def is_read_only(path: Path) -> bool:
    """Whether it lies in a file system that is mounted read-only, as /sys is in a container."""
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def writer(path: str | Path) -> str:
    """Who may change that setting, in the words of `model.Knob`."""
    if is_read_only(Path(path)):
        return "nobody: read-only file system"
    return "you" if os.access(path, os.W_OK) else "root"


def show_khz(khz: float) -> str:
    """3.5 GHz, 800 MHz."""
    return f"{khz / 1e6:g} GHz" if khz >= 1e6 else f"{khz / 1e3:g} MHz"


def _read(machine: Machine, name: str) -> str | None:
    return machine.read(f"{_CPU}/{name}")


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(word) for word in (text or "").split() if word.isdigit())
