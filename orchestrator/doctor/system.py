"""How this very system is mended: its package manager, its container, its cluster's modules, Windows below it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator

from orchestrator.machine import Machine

_INSTALL = {
    "debian": "sudo apt-get install",
    "ubuntu": "sudo apt-get install",
    "fedora": "sudo dnf install",
    "rhel": "sudo dnf install",
    "suse": "sudo zypper install",
    "arch": "sudo pacman -S",
    "alpine": "sudo apk add",
}
"""By the words of ID and ID_LIKE in /etc/os-release."""

_PACKAGES: dict[str, dict[str, str]] = {
    "strace": {},
    "gdb": {},
    "perf": {"debian": "linux-perf", "ubuntu": "linux-tools-generic"},
    "crontab": {"debian": "cron", "ubuntu": "cron", "": "cronie"},
    "python": {"debian": "python-is-python3", "ubuntu": "python-is-python3", "fedora": "python-unversioned-command"},
    "nsys": {"debian": "nsight-systems", "ubuntu": "nsight-systems"},
    "ncu": {"debian": "nsight-compute", "ubuntu": "nsight-compute"},
}
"""The package that has a tool, where it is not called like the tool; "" stands for all other systems."""

_NSIGHT = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_ONLY_THERE = {*_NSIGHT, "python"}
"""Packages that only the systems named above have."""

_DRIVER = {
    "ubuntu": "sudo ubuntu-drivers install",
    "debian": "enable Debian's components contrib and non-free, then sudo apt-get install nvidia-driver",
    "fedora": "enable RPM Fusion (non-free), then sudo dnf install akmod-nvidia",
    "arch": "sudo pacman -S nvidia-open",
}

_INITRAMFS = {
    "debian": "sudo update-initramfs -u",
    "ubuntu": "sudo update-initramfs -u",
    "fedora": "sudo dracut --force",
    "rhel": "sudo dracut --force",
    "suse": "sudo dracut --force",
    "arch": "sudo mkinitcpio -P",
}
"""Where the driver may be loaded from the initial RAM disk, with the options that this holds."""


def how_to_get(machine: Machine, name: str) -> str | None:
    """The one command that gets a tool on this system; None where that is not known."""
    if name == "py-spy":
        return f"{sys.executable} -m pip install --upgrade py-spy"
    if name in _NSIGHT and "MODULEPATH" in os.environ:
        return (
            f"load the cluster's module that has it; `module spider {'nsight' if name == 'nsys' else 'cuda'}` names it"
        )
    if name in _NSIGHT and (machine.gpus or nvidia_devices(machine)):
        return f"install {_NSIGHT[name]} from where the GPU's driver came from"
    family = _family(machine)
    if name not in _PACKAGES or family is None or (name in _ONLY_THERE and family not in _PACKAGES[name]):
        return None
    package = _PACKAGES[name].get(family) or _PACKAGES[name].get("", name)
    non_free = "enable Debian's component non-free, then " if name in _NSIGHT and family == "debian" else ""
    return f"{non_free}{_INSTALL[family]} {package}"


def get_driver(machine: Machine) -> str:
    """How the driver of an NVIDIA GPU comes here."""
    if machine.is_wsl():
        return "install NVIDIA's driver in Windows, never in WSL; then wsl --shutdown"
    if machine.in_container():
        return let_gpus_in(machine)
    return _DRIVER.get(_family(machine) or "", "install NVIDIA's driver: https://www.nvidia.com/drivers")


def let_gpus_in(machine: Machine) -> str:
    """How a container gets the host's GPUs."""
    kind = machine.in_container()
    if kind == "kubernetes":
        return "ask for a GPU in the pod's resources.limits (nvidia.com/gpu: 1)"
    if kind == "apptainer":
        return "run apptainer with --nv"
    if kind == "enroot":
        return "enroot start --env NVIDIA_VISIBLE_DEVICES=all ... (with its hook 98-nvidia.sh)"
    if kind == "podman":
        return "start the container with --device nvidia.com/gpu=all (NVIDIA Container Toolkit)"
    return "start the container with --gpus all (NVIDIA Container Toolkit)"


def allow_counters(machine: Machine) -> str:
    """How programs of ordinary users, or of this container, get to read the GPU's counters (NVIDIA's page on
    ERR_NVGPUCTRPERM)."""
    if machine.is_wsl():
        return (
            "in Windows, NVIDIA Control Panel, Developer: Manage GPU Performance Counters, allow access to all users; "
            "then wsl --shutdown"
        )
    if machine.in_container() and machine.in_container() != "apptainer":
        return machine.grant("SYS_ADMIN")
    option = f"options {_module(machine)} NVreg_RestrictProfilingToAdminUsers=0"
    write = f"echo '{option}' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
    where = "on the host: " if machine.in_container() else ""
    return where + " && ".join((write, *_initramfs(machine))) + ", then reboot"


def _initramfs(machine: Machine) -> Iterator[str]:
    command = _INITRAMFS.get(_family(machine) or "")
    yield from (command,) if command else ()


def _module(machine: Machine) -> str:
    """Debian's own package calls the driver's module by another name."""
    theirs = machine.read("etc/modprobe.d/nvidia.conf") or ""
    return "nvidia-current" if "nvidia-current" in theirs else "nvidia"


def nvidia_devices(machine: Machine) -> list[str]:
    """The display controllers (PCI class 03) of NVIDIA's (vendor 10de) on the bus, by their PCI ids."""
    found = []
    for place in sorted(machine.path("sys/bus/pci/devices").glob("*")):
        name = f"sys/bus/pci/devices/{place.name}"
        if (machine.read(f"{name}/class") or "").startswith("0x03") and machine.read(f"{name}/vendor") == "0x10de":
            found.append(place.name)
    return found


def _family(machine: Machine) -> str | None:
    release = machine.read("etc/os-release") or ""
    words = re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', release, re.M)
    return next((word for word in " ".join(sorted(words, key=len)).split() if word in _INSTALL), None)
