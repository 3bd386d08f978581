"""NVIDIA's GPUs: does the driver answer, may the counters be read, and who holds them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from orchestrator import gpus, process
from orchestrator.doctor import system
from orchestrator.doctor.kernel import gist
from orchestrator.doctor.words import Diagnosis
from orchestrator.machine import Machine

_MISMATCH = re.compile(r"driver/library version mismatch", re.I)
_RELOAD = (
    "reboot; or, with nothing on the GPU: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo nvidia-smi"
)
"""An update has put new libraries beside a driver that the kernel had loaded before."""


def look(machine: Machine) -> Iterator[Diagnosis]:
    """All that is to be said of NVIDIA's GPUs; two lines where there are none."""
    found = machine.gpu_look
    yield _driver(machine, found)
    yield smi(machine)
    yield from counters(machine)
    if found.gpus:
        yield from claims(machine)
    yield from _mig(found)


# ---------------------------------------------------------------- the driver


def _driver(machine: Machine, found: gpus.Look) -> Diagnosis:
    """The driver as it answers through NVML, or through nvidia-smi where NVML can't be asked."""
    if found.gpus:
        names = ", ".join(f"{gpu.index}: {gpu.name or 'unnamed'}" for gpu in found.gpus)
        said = f"answers through {found.through}; {names}"
        said += "; who else uses the GPUs can't be seen from here" if found.processes_hidden else ""
        return Diagnosis("NVIDIA driver", "ok", said, version=found.driver)
    why = found.why_not or "it lists no GPU"
    loaded = re.search(r"Kernel Module\D*?(\d+(?:\.\d+)+)", machine.read("proc/driver/nvidia/version") or "")
    version = loaded[1] if loaded else None
    if _MISMATCH.search(why):
        fix = f"restart the container: the host's driver ({version}) has changed" if machine.in_container() else _RELOAD
        return Diagnosis("NVIDIA driver", "broken", why, fix, version)
    if found.silent:
        fix = gpus.WAKE
        return Diagnosis("NVIDIA driver", "broken", why, fix, version)
    if loaded or machine.path("dev/dxg").exists():
        return _unreachable(machine, why, version)
    devices = system.nvidia_devices(machine)
    if not devices:
        return Diagnosis("NVIDIA driver", "missing", "no NVIDIA GPU here")
    return _undriven(machine, devices[0])


def _unreachable(machine: Machine, why: str, version: str | None) -> Diagnosis:
    """The driver is loaded, and does not answer us."""
    node = machine.path("dev/nvidiactl")
    if version and not node.exists():
        fix = system.let_gpus_in(machine) if machine.in_container() else "sudo nvidia-modprobe -c 0 -u"
        return Diagnosis("NVIDIA driver", "blocked", f"{why}; there is no /dev/nvidiactl", fix, version)
    if version and not os.access(node, os.R_OK | os.W_OK):
        group = "let an administrator add you to the group that owns it: ls -l /dev/nvidiactl"
        return Diagnosis("NVIDIA driver", "blocked", f"{why}; you may not open /dev/nvidiactl", group, version)
    return Diagnosis("NVIDIA driver", "broken", why, "sudo dmesg | grep -i nvrm says why", version)


def _undriven(machine: Machine, device: str) -> Diagnosis:
    said = f"an NVIDIA GPU is on the bus ({device}), without NVIDIA's driver"
    try:
        other = Path(os.readlink(machine.path(f"sys/bus/pci/devices/{device}/driver"))).name  # noqa: PTH115
    except OSError:
        other = ""
    said += f"; {other} drives it" if other else ""
    return Diagnosis("NVIDIA driver", "missing", said, system.get_driver(machine))


def smi(machine: Machine) -> Diagnosis:
    """nvidia-smi by itself: clocks are set through it."""
    path = machine.find(gpus.SMI)
    if path is None:
        there = machine.read("proc/driver/nvidia/version") is not None
        said = "not found; clocks are set through it" if there else "not found; without a GPU there is no use for it"
        return Diagnosis("nvidia-smi", "missing", said, system.get_driver(machine) if there else None)
    if machine.gpu_silence:
        said = f"the driver behind it gives no answer in {gpus.limit_s():g} s"
        return Diagnosis("nvidia-smi", "broken", said, path=path)
    answer = process.ask([path, "-L"], timeout_s=gpus.limit_s())
    listed = len(re.findall(r"^GPU \d+:", answer.stdout, re.M))
    if listed:
        return Diagnosis("nvidia-smi", "ok", f"lists {listed} GPU{'s' if listed > 1 else ''}", path=path)
    fix = _RELOAD if _MISMATCH.search(answer.stdout + answer.stderr) and not machine.in_container() else None
    return Diagnosis("nvidia-smi", "broken", f"`nvidia-smi -L` lists no GPU: {gist(answer)}", fix, path=path)


# ---------------------------------------------------------------- counters

_PERFMON_FROM = 565
"""From this driver on CAP_PERFMON is enough (NVIDIA's page on ERR_NVGPUCTRPERM)."""


def counters(machine: Machine) -> Iterator[Diagnosis]:
    """The driver's parameter NVreg_RestrictProfilingToAdminUsers, as it is in force; asked only where there is a
    driver."""
    found = re.search(r"RmProfilingAdminOnly:\s*(\d)", machine.read("proc/driver/nvidia/params") or "")
    if not found:
        if machine.is_wsl() and machine.path("dev/dxg").exists():
            said = "Windows decides who may read them, which can't be told from here; if ncu says ERR_NVGPUCTRPERM:"
            yield Diagnosis("GPU counters", "unknown", said, system.allow_counters(machine))
        return
    if found[1] == "0":
        yield Diagnosis("GPU counters", "ok", "the driver lets everybody read them")
        return
    version = re.search(r"Kernel Module\D*?(\d+)\.", machine.read("proc/driver/nvidia/version") or "")
    enough = ("SYS_ADMIN", "PERFMON") if version and int(version[1]) >= _PERFMON_FROM else ("SYS_ADMIN",)
    if machine.capable(*enough):
        yield Diagnosis("GPU counters", "ok", "the driver lets only root read them, as profrun may here")
        return
    said = f"the driver lets only root read them (CAP_{enough[-1]}): ncu would say ERR_NVGPUCTRPERM"
    yield Diagnosis("GPU counters", "blocked", said, system.allow_counters(machine))


_DCGM = ("nv-hostengine", "dcgm-exporter")
_PROFILERS = ("ncu", "nsys", "cuda-gdb", "nvprof")


def claims(machine: Machine) -> Iterator[Diagnosis]:
    """Who else may hold the counters: DCGM, another profiler, or the lock file that one of another user left."""
    running = list(_running(machine))
    dcgm = [(pid, name) for pid, name in running if name in _DCGM]
    if dcgm:
        said = f"{_listed(dcgm)} runs; while DCGM watches its profiling metrics, it holds the GPU's counters"
        yield Diagnosis(
            "DCGM", "unknown", said, "dcgmi profile --pause before the run, dcgmi profile --resume after it"
        )
    others = [(pid, name) for pid, name in running if name in _PROFILERS]
    if others:
        said = f"{_listed(others)} runs: a second profiler on the same GPU gets no data, or waits"
        yield Diagnosis("other profilers", "blocked", said, "wait for its end")
    lock = Path(os.environ.get("TMPDIR", "/tmp"), "nsight-compute-lock")
    if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
        said = f"{lock} belongs to another user: ncu waits for it, or fails"
        yield Diagnosis("ncu's lock", "blocked", said, "export TMPDIR=$(mktemp -d)", path=str(lock))


def _listed(running: list[tuple[str, str]]) -> str:
    return ", ".join(f"{name} (pid {pid})" for pid, name in running)


def _running(machine: Machine) -> Iterator[tuple[str, str]]:
    """The pid and name (15 characters at most) of each process that can be seen."""
    for place in machine.path("proc").glob("[0-9]*"):
        name = machine.read(f"proc/{place.name}/comm")
        if name:
            yield place.name, name


def _mig(found: gpus.Look) -> Iterator[Diagnosis]:
    """A GPU in parts has one clock for all of them, and no counters of the units that the parts share."""
    for gpu in found.gpus:
        if gpu.mig:
            parts = len(gpu.mig_uuids)
            said = f"GPU {gpu.index} is split (MIG) into {parts} part{'' if parts == 1 else 's'}: "
            said += "its clocks are those of all, counters of shared units (L2, memory) can't be read"
            fix = f"sudo nvidia-smi -i {gpu.index} -mig 0, with nothing on it, where the whole GPU is to be measured"
            yield Diagnosis("MIG", "ok", said, fix)
