"""The machine as a whole, and its processors one by one."""

from __future__ import annotations

import os

from orchestrator.sampler.log import Number
from orchestrator.sampler.proc import names, numbers, read

MOST_CLOCKS = 32
"""Of so many cores the clock is read: some kernels take 10 µs for one."""
_SECTOR_BYTES = 512
"""The unit of /proc/diskstats, whatever the disk's own."""


class Host:
    """What /proc says of the host. Of disks and networks those with a device behind them count: the bytes of a loop
    device, a bridge, a container's interface are somebody else's for a second time."""

    def __init__(self, pid: int | None = None) -> None:
        """`pid`: whose control group may be held back; None: one's own."""
        self._groups = _cpu_groups(pid)
        self._disks = _with_device("/sys/block")
        self._nets = _with_device("/sys/class/net") or {*names("/sys/class/net")} - {"lo"}
        self._last: dict[str, list[int]] = {}

    def read(self) -> tuple[list[Number], dict[str, list[Number]]]:
        """The columns of `host`, and by processor those of `core`."""
        stat = read("/proc/stat")
        lines = [line.split() for line in stat.splitlines() if line.startswith("cpu")]
        total, *cores = ([int(x) for x in line[1:9]] for line in lines)
        user, nice, system, _, iowait, irq, softirq, steal = total
        busy = {line[0][3:]: _busy(times) for line, times in zip(lines[1:], cores, strict=True)}
        clocks = self._clocks(busy)
        return [
            user + nice, system + irq + softirq, iowait, steal, *_busy(total),
            *numbers(stat, ("ctxt", "processes", "procs_running", "procs_blocked")),
            *_memory(), *self._traffic(), *_pressure(), _throttled_us(self._groups),
        ], {core: [*ticks, clocks.get(core)] for core, ticks in busy.items()}  # fmt: skip

    def _clocks(self, busy: dict[str, list[int]]) -> dict[str, Number]:
        """MHz of the cores that were busy half of the time or more: an idle one's clock says nothing, and to read it
        may wake it."""
        last, self._last = self._last, busy
        grown = {
            core: [now - was for now, was in zip(busy[core], last[core], strict=True)]
            for core in busy.keys() & last.keys()
        }
        chosen = sorted((c for c, (active, every) in grown.items() if every and 2 * active >= every), key=int)
        texts = {
            core: read(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq") for core in chosen[:MOST_CLOCKS]
        }
        return {core: int(text) / 1000 for core, text in texts.items() if text.strip().isdigit()}

    def _traffic(self) -> list[Number]:
        """Bytes since the start: read from and written to disks, received from and sent to the net."""
        disks = [x for x in map(str.split, read("/proc/diskstats").splitlines()) if x[2] in self._disks]
        lines = (line.partition(":") for line in read("/proc/net/dev").splitlines())
        nets = [rest.split() for name, _, rest in lines if name.strip() in self._nets]
        disk: list[Number] = [_SECTOR_BYTES * sum(int(x[n]) for x in disks) if disks else None for n in (5, 9)]
        return [*disk, *(sum(int(x[n]) for x in nets) if nets else None for n in (0, 8))]


def _with_device(folder: str) -> set[str]:
    return {name for name in names(folder) if os.path.exists(f"{folder}/{name}/device")}  # noqa: PTH110


def _busy(times: list[int]) -> list[int]:
    """Ticks in which a processor did something (a host that stole it included), and all ticks."""
    user, nice, system, idle, iowait, irq, softirq, steal = times
    busy = user + nice + system + irq + softirq + steal
    return [busy, busy + idle + iowait]


def _memory() -> list[Number]:
    load = read("/proc/loadavg").split()
    kib = numbers(read("/proc/meminfo"), ("MemAvailable", "SwapFree"), ":")
    faults = numbers(read("/proc/vmstat"), ("pgfault", "pgmajfault"))
    return [float(load[0]) if load else None, *(None if n is None else n * 1024 for n in kib), *faults]


def _pressure() -> list[Number]:
    """For how long some, or all, tasks have waited for a processor, for IO, for memory (psi.rst of the kernel)."""
    totals: dict[tuple[str, str], int] = {}
    for name in ("cpu", "io", "memory"):
        for line in read(f"/proc/pressure/{name}").splitlines():
            totals[name, line.partition(" ")[0]] = int(line.rpartition("total=")[2])
    wanted = (("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full"))
    return [totals.get(key) for key in wanted]


_CGROUP = "/sys/fs/cgroup"


def _cpu_groups(pid: int | None) -> list[str]:
    """The files that tell of a process's control groups for how long they were held back: its own and all above it, of
    version 2 and of 1, as far as they are to be seen from here."""
    found = []
    for line in read(f"/proc/{pid or 'self'}/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        place = _CGROUP if not controllers else f"{_CGROUP}/{controllers}"
        parts = [part for part in path.split("/") if part and part != ".."]
        found += [f"{'/'.join((place, *parts[:depth]))}/cpu.stat" for depth in range(len(parts), -1, -1)]
    return [file for file in dict.fromkeys(found) if _throttled_us([file]) is not None]


def _throttled_us(files: list[str]) -> Number:
    """For how long the tightest of these groups was held back by its quota, summed over processors; None without a
    quota's counter (cgroup-v2.rst: `throttled_usec`, cgroup-v1: `throttled_time`, ns)."""
    counted = (numbers(read(file), ("throttled_usec", "throttled_time")) for file in files)
    known = [us if us is not None else (ns or 0) // 1000 for us, ns in counted if (us, ns) != (None, None)]
    return max(known, default=None)
