"""Settings of the kernel and limits of its groups that bend a measurement and that no environment step changes, for
`profrun env show`."""

from __future__ import annotations

import contextlib
import gzip
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orchestrator import cpufreq, neighbours, process
from orchestrator.model import Knob
from orchestrator.units import show_bytes

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_CLOCK = "sys/devices/system/clocksource/clocksource0"
_PAGES = "sys/kernel/mm/transparent_hugepage"

MEANINGS: dict[str, tuple[str, dict[str, str]]] = {
    "proc/sys/kernel/perf_event_paranoid": (
        "perf_event_paranoid",
        {
            "-1": "all may use all of perf",
            "0": "all may count on whole processors",
            "1": "all may look at the kernel's code with perf",
            "2": "only root sees the kernel's code with perf",
            "3": "only root may use perf",
            "4": "only root may use perf",
        },
    ),
    "proc/sys/kernel/yama/ptrace_scope": (
        "ptrace_scope",
        {
            "0": "a user may trace all their processes",
            "1": "a program may trace what it has started",
            "2": "only root may trace",
            "3": "nobody may trace, until the next boot",
        },
    ),
    "proc/sys/kernel/randomize_va_space": (
        "address randomisation",
        {
            "0": "off",
            "1": "stack and libraries move",
            "2": "stack, libraries and heap move",
        },
    ),
    "proc/sys/kernel/numa_balancing": (
        "NUMA balancing",
        {"0": "off", "1": "pages move to where they are used", "2": "pages move by memory tier"},
    ),
    "proc/sys/kernel/nmi_watchdog": (
        "NMI watchdog",
        {"0": "off", "1": "takes one hardware counter from perf"},
    ),
}
"""Files of one number: what it is called, and what each value means (the kernel's Documentation/admin-guide/sysctl)."""


def processors(machine: Machine) -> Iterator[Knob]:
    """Which processors a program started here gets, and by which clock it reads the time."""
    allowed = process.cpus_allowed(machine.read("proc/self/status"))
    if allowed:
        online = machine.read("sys/devices/system/cpu/online")
        fewer = online is not None and online != allowed
        yield Knob("usable CPUs", allowed, online, note="fewer than there are" if fewer else None)
    yield from _quota(machine)
    isolated = machine.read("sys/devices/system/cpu/isolated")
    if isolated:
        yield Knob("isolated CPUs", isolated, note="set at boot: nothing runs there unless it is told to")
    yield from _choice(machine, "clock source", f"{_CLOCK}/current_clocksource", f"{_CLOCK}/available_clocksource")


def memory(machine: Machine) -> Iterator[Knob]:
    yield from _bracketed(machine, "huge pages", f"{_PAGES}/enabled")
    yield from _bracketed(machine, "huge page defrag", f"{_PAGES}/defrag")
    yield from _meanings(machine, "proc/sys/kernel/numa_balancing")
    yield from _number(machine, "swappiness", "proc/sys/vm/swappiness", "0 to 200")
    yield from _swap(machine)


def kernel(machine: Machine) -> Iterator[Knob]:
    for name in ("perf_event_paranoid", "yama/ptrace_scope", "randomize_va_space", "nmi_watchdog"):
        yield from _meanings(machine, f"proc/sys/kernel/{name}")
    hertz = _timer_hz(machine)
    if hertz:
        yield Knob("timer", f"{hertz} Hz", writer="nobody: built into the kernel")


_TUNERS = {
    "tuned": "sets governors and limits by its profile",
    "power-profiles-": "sets energy preference and turbo by its profile",
    "thermald": "lowers the clock when it gets warm",
    "auto-cpufreq": "sets governor and turbo by the load",
    "tlp": "sets governor and turbo by the power supply",
    "cpufreqd": "sets the governor by its rules",
    "irqbalance": "moves interrupts between processors",
}
"""Services that change such settings by themselves, by their names in the kernel's words (15 letters)."""


def services(machine: Machine) -> Iterator[Knob]:
    """The services that may undo what a step has set."""
    for one in sorted(neighbours.everyone(machine).values(), key=lambda one: one.pid):
        found = next((word for word in _TUNERS if one.name.startswith(word)), None)
        if found:
            yield Knob(one.name, f"runs, pid {one.pid}", note=_TUNERS[found])


# ---------------------------------------------------------------- how they are read


def _knob(
    machine: Machine, name: str, value: str, file: str, limits: str | None = None, note: str | None = None
) -> Knob:
    path = machine.path(file)
    fixed = not path.stat().st_mode & 0o222
    return Knob(name, value, limits, "nobody: read-only" if fixed else cpufreq.writer(path), str(path), note)


def _meanings(machine: Machine, file: str) -> Iterator[Knob]:
    value, (name, meanings) = machine.read(file), MEANINGS[file]
    if value is not None:
        meaning = f" ({meanings[value]})" if value in meanings else ""
        yield _knob(machine, name, value + meaning, file, ", ".join(meanings))


def _number(machine: Machine, name: str, file: str, limits: str) -> Iterator[Knob]:
    value = machine.read(file)
    if value is not None:
        yield _knob(machine, name, value, file, limits)


def _choice(machine: Machine, name: str, file: str, choices: str) -> Iterator[Knob]:
    value = machine.read(file)
    if value is not None:
        note = None if value in _FAST_CLOCKS else "reading the time takes a system call"
        yield _knob(machine, name, value, file, ", ".join((machine.read(choices) or "").split()) or None, note)


_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")


def _bracketed(machine: Machine, name: str, file: str) -> Iterator[Knob]:
    """`always [madvise] never`: the chosen word stands in brackets."""
    text = machine.read(file) or ""
    chosen = re.search(r"\[(.+?)\]", text)
    if chosen:
        yield _knob(machine, name, chosen[1], file, ", ".join(re.sub(r"[][]", "", text).split()))


def _swap(machine: Machine) -> Iterator[Knob]:
    info = machine.read("proc/meminfo") or ""
    total, free = (re.search(rf"^{word}:\s*(\d+) kB", info, re.M) for word in ("SwapTotal", "SwapFree"))
    if total and free:
        all_, used = int(total[1]) * 1024, (int(total[1]) - int(free[1])) * 1024
        value = f"{show_bytes(used)} of {show_bytes(all_)} in use" if all_ else "none"
        note = "what was swapped out is read from the disk when it is used" if used else None
        yield Knob("swap", value, note=note)


def _quota(machine: Machine) -> Iterator[Knob]:
    quota = tightest(machine, "cpu")
    if quota is not None:
        note = "of the container or job: beyond it all threads stand still for the rest of each period"
        yield Knob("CPU quota", f"{quota:.3g} CPUs", note=note)


def tightest(machine: Machine, what: str) -> float | None:
    """The smallest limit of our control groups up to the root: `memory` in bytes, `cpu` in processors, `pids` in
    processes that may still be started; None where nothing limits them."""
    found = [limit for place in _groups(machine, what) if (limit := _limit(machine, place, what)) is not None]
    return min(found, default=None)


def _groups(machine: Machine, what: str) -> Iterator[str]:
    """The control group of this process and all above it, in version 2 and in the hierarchy of version 1."""
    for line in (machine.read("proc/self/cgroup") or "").splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        tops = [f"sys/fs/cgroup/{what}"] if what in controllers.split(",") else []
        tops += ["sys/fs/cgroup"] if not controllers else []
        own = PurePosixPath(path.lstrip("/") or ".")
        yield from (f"{top}/{place}".removesuffix("/.") for top in tops for place in (own, *own.parents))


_UNLIMITED_BYTES = 1 << 60
"""What version 1 shows for no limit is a little below 2^63."""


def _limit(machine: Machine, place: str, what: str) -> float | None:
    """`max 100000` or `150000 100000` in cpu.max (the kernel's Documentation/admin-guide/cgroup-v2), -1 in
    cpu.cfs_quota_us of version 1: no limit."""

    def whole(name: str) -> int | None:
        text = machine.read(f"{place}/{name}") or ""
        return int(text) if text.isdecimal() else None

    if what == "memory":
        limit = whole("memory.max") or whole("memory.limit_in_bytes")
        return limit if limit is not None and limit < _UNLIMITED_BYTES else None
    if what == "pids":
        most, now = whole("pids.max"), whole("pids.current")
        return None if most is None or now is None else most - now
    quota, _, period = (machine.read(f"{place}/cpu.max") or "").partition(" ")
    second = quota.isdecimal() and period.isdecimal()
    share, of = (int(quota), int(period)) if second else (whole("cpu.cfs_quota_us"), whole("cpu.cfs_period_us"))
    return share / of if share is not None and of else None


def _timer_hz(machine: Machine) -> str | None:
    release = machine.read("proc/sys/kernel/osrelease")
    text = machine.read(f"boot/config-{release}") or ""
    if not text:
        with contextlib.suppress(OSError, EOFError):
            text = gzip.decompress(machine.path("proc/config.gz").read_bytes()).decode(errors="replace")
    found = re.search(r"^CONFIG_HZ=(\d+)", text, re.M)
    return found[1] if found else None
