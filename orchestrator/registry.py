"""The names that a plan may use, and the classes behind them: a built-in line here, or an entry point of an installed
package.

Entry-point groups: profrun.collectors, profrun.environment, profrun.launchers, profrun.rules. A class is imported when
its name is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from orchestrator.collectors.base import Collector
    from orchestrator.env_steps.base import Step
    from orchestrator.launchers.base import Launcher

COLLECTORS = {
    "timing": "orchestrator.collectors.timing:Timing",
    "py-spy": "orchestrator.collectors.py_spy:PySpy",
    "strace": "orchestrator.collectors.strace:Strace",
    "perf": "orchestrator.collectors.perf:Perf",
    "monitor": "orchestrator.collectors.monitor:Monitor",
    "nsys": "orchestrator.collectors.nsys:Nsys",
    "ncu": "orchestrator.collectors.ncu:Ncu",
    "torch": "orchestrator.collectors.torch:Torch",
    "dumps": "orchestrator.collectors.dumps:Dumps",
}

ENVIRONMENT = {
    "affinity": "orchestrator.env_steps.affinity:Affinity",
    "cpu_frequency": "orchestrator.env_steps.cpu_frequency:CpuFrequency",
    "drop_caches": "orchestrator.env_steps.drop_caches:DropCaches",
    "env": "orchestrator.env_steps.env:Env",
    "seeds": "orchestrator.env_steps.seeds:Seeds",
    "shell": "orchestrator.env_steps.shell:Shell",
    "gpu_clocks": "orchestrator.env_steps.gpu_clocks:GpuClocks",
    "gpu_idle": "orchestrator.env_steps.gpu_idle:GpuIdle",
    "cpu_idle": "orchestrator.env_steps.cpu_idle:CpuIdle",
    "wait_cool": "orchestrator.env_steps.wait_cool:WaitCool",
    "quiet_services": "orchestrator.env_steps.quiet_services:QuietServices",
}

LAUNCHERS = {
    "auto": "orchestrator.launchers.detect:Auto",
    "local": "orchestrator.launchers.local:Local",
    "mpi": "orchestrator.launchers.mpi:Mpi",
    "slurm": "orchestrator.launchers.slurm:Slurm",
    "torchrun": "orchestrator.launchers.torchrun:Torchrun",
}

RULES = {
    "data_quality": "orchestrator.diagnose.data_quality:RULES",
    "environment": "orchestrator.diagnose.environment:RULES",
    "hang": "orchestrator.diagnose.hang:RULES",
    "host": "orchestrator.diagnose.host:RULES",
    "gpu": "orchestrator.diagnose.gpu:RULES",
    "copies": "orchestrator.diagnose.copies:RULES",
    "communication": "orchestrator.diagnose.communication:RULES",
    "gpu_compute": "orchestrator.diagnose.gpu_compute:RULES",
    "machine_use": "orchestrator.diagnose.machine_use:RULES",
    "syscalls": "orchestrator.diagnose.syscalls:RULES",
    "kernels": "orchestrator.diagnose.kernels:RULES",
    "torch_ops": "orchestrator.diagnose.torch_ops:RULES",
    "torch_memory": "orchestrator.diagnose.torch_memory:RULES",
    "training": "orchestrator.diagnose.training:RULES",
    "job": "orchestrator.diagnose.job:RULES",
    "ranks": "orchestrator.diagnose.ranks:RULES",
}


def collector(name: str) -> type[Collector]:
    """The collector class of that name. Raises KeyError when nobody offers it."""
    found: type[Collector] = _load("profrun.collectors", COLLECTORS, name)
    return found


def environment_step(name: str) -> type[Step]:
    """The environment step of that name. Raises KeyError when nobody offers it."""
    found: type[Step] = _load("profrun.environment", ENVIRONMENT, name)
    return found


def launcher(name: str) -> type[Launcher]:
    """The launcher class of that name. Raises KeyError when there is none."""
    found: type[Launcher] = _load("profrun.launchers", LAUNCHERS, name)
    return found


def launcher_names() -> list[str]:
    return sorted({*LAUNCHERS, *_plugins("profrun.launchers")})


def collector_names() -> list[str]:
    return sorted({*COLLECTORS, *_plugins("profrun.collectors")})


def environment_names() -> list[str]:
    return sorted({*ENVIRONMENT, *_plugins("profrun.environment")})


def rules() -> list[Callable[..., Any]]:
    """All rules, the built-in ones first."""
    found = [_load("profrun.rules", RULES, name) for name in (*RULES, *_plugins("profrun.rules"))]
    return [rule for group in found for rule in (group if isinstance(group, (tuple, list)) else (group,))]


@cache
def _plugins(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _load(group: str, built_in: dict[str, str], name: str) -> Any:
    if name in built_in:
        module, _, attribute = built_in[name].partition(":")
        return getattr(importlib.import_module(module), attribute)
    point = _plugins(group)[name]
    try:
        return point.load()
    except Exception as error:  # somebody else's package: whatever it raises, the user needs its name
        raise UsageError(
            f"{name!r} comes from the installed package {point.dist and point.dist.name} and can't be loaded",
            f"{type(error).__name__}: {error}",
            f"mend or uninstall that package (entry point {point.value})",
        ) from error
