"""The GPUs as the driver tells of them: read through NVML or by nvidia-smi, always in a process of its own, because a
driver may never answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from orchestrator.machine import Machine


@dataclass(frozen=True)
class GpuProcess:
    """A process that the driver lists. user, command: None where it can't be seen from here (another namespace)."""

    pid: int
    kind: Literal["compute", "graphics"]
    memory_bytes: int | None = None
    user: str | None = None
    command: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment. Clocks in MHz; None: this GPU or its driver does not say, `errors` has why, by field."""

    index: int
    uuid: str
    name: str | None = None
    pci: str | None = None
    mig: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    pstate: int | None = None
    persistence: bool | None = None
    display_active: bool | None = None
    sm_mhz: int | None = None
    graphics_mhz: int | None = None
    memory_mhz: int | None = None
    max_sm_mhz: int | None = None
    max_graphics_mhz: int | None = None
    max_memory_mhz: int | None = None
    applications_graphics_mhz: int | None = None
    applications_memory_mhz: int | None = None
    default_applications_graphics_mhz: int | None = None
    default_applications_memory_mhz: int | None = None
    supported: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Graphics clocks by memory clock; empty when unknown."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_pct: tuple[int, ...] = ()
    """One value for each look at it within the window."""
    temperature_c: int | None = None
    slowdown_c: int | None = None
    clock_reasons: int | None = None
    """Bit mask of what holds the clocks down (NVML's clocks event reasons)."""
    processes: tuple[GpuProcess, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Look:
    """What the driver has answered. `why_not`: no GPU could be read, and why (no answer in 10 s, no driver ...)."""

    gpus: tuple[Gpu, ...] = ()
    through: Literal["NVML", "nvidia-smi"] | None = None
    driver: str | None = None
    why_not: str | None = None
    processes_hidden: bool = False
    """Other processes can't be listed from here, as in a container."""


@dataclass(frozen=True)
class Selection:
    """The GPUs that a program with a given environment will use."""

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    why_none: str | None = None


def look(machine: Machine, *, window_s: float = 0.0, timeout_s: float = 10.0) -> Look:
    """Asks the driver once, or for utilisation over a window. Never raises; takes the window and the limit at most."""
    raise NotImplementedError


def selected(found: Look, env: Mapping[str, str]) -> Selection:
    """Of all GPUs those that CUDA would show a program with this environment, by UUID."""
    raise NotImplementedError
