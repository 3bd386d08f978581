"""Environment step `cpu_idle`: are the processors that the target may use free? Measured over a window; waits, and
names who keeps them busy."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestrator import kernel, neighbours, process
from orchestrator.env_steps.waiting import Waiting
from orchestrator.model import Check, Judged
from orchestrator.names import numbers_in
from orchestrator.units import Duration, Percent

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_TOLD = 5
_WORTH_TELLING_PCT = 5.0
_UNEXPLAINED_CORES = 0.5
_STOLEN_PCT = 5.0
_WAITING_PCT = 5.0


class CpuIdle(Waiting):
    """Not idle: at least `of_cores` of the cores are each busier than `max_busy`."""

    use: Literal["cpu_idle"] = "cpu_idle"
    max_busy: Percent = Field(50.0, description="a core that works more than this share of the time is busy")
    of_cores: Percent = Field(25.0, description="not idle when this share of the target's cores, or more, are busy")
    over: Annotated[Duration, Field(gt=0, le=10)] = Field(2.0, description="how long each look takes, 10s at most")

    purpose: ClassVar[str] = "waits until the processors are idle, and names who keeps them busy"

    def checks(self, machine: Machine) -> list[Check]:
        if _reading(machine).cores:
            return []
        return [Check("cpu_idle", "missing", "/proc/stat does not tell how busy the processors are")]

    def look(self, machine: Machine) -> dict[str, Any]:
        """Of the time between two readings: cores_pct by core that the target may use; waiting_pct, in which some
        process waited for a core; stolen_pct, which a hypervisor took; top, who used most of a core. None: unknown."""
        first = _reading(machine)
        time.sleep(self.over)
        then = _reading(machine)
        every_core = {cpu: share for cpu in first.cores if (share := _share(first.cores[cpu], then.cores.get(cpu)))}
        cores = {cpu: share for cpu, share in every_core.items() if cpu in _usable(machine, every_core)}
        used = neighbours.cores_pct(first.processes, then.processes, then.uptime_s - first.uptime_s)
        own = neighbours.ours(machine, then.processes)
        own_cores = round(sum(used[pid] for pid in own & used.keys()) / 100)
        seen = {
            "cores": len(cores),
            "busy_cores": max(0, sum(share.busy_pct > self.max_busy for share in cores.values()) - own_cores),
            "cores_pct": {str(cpu): round(share.busy_pct, 1) for cpu, share in cores.items()},
            "procs_running": then.running,
            "waiting_pct": _waiting_pct(first, then),
            "stolen_pct": round(sum(share.stolen_pct for share in cores.values()) / max(1, len(cores)), 1),
            "top": _top(machine, {pid: pct for pid, pct in used.items() if pid not in own}),
        }
        worked_pct = sum(share.busy_pct - share.stolen_pct for share in every_core.values())
        unexplained_cores = (worked_pct - sum(used.values())) / 100
        return {**seen, "notes": list(_notes(machine, seen, unexplained_cores))}

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        if not seen["cores"]:
            return Judged("not_available", "/proc/stat does not tell how busy the processors are")
        if seen["busy_cores"] < max(1, math.ceil(self.of_cores / 100 * seen["cores"])):
            return None
        said = "; ".join((self._busy(seen), *self._who(seen, seen["top"]), *seen["notes"]))
        return Judged("failed", said, fix="end or pause what keeps them busy, or wait for it: `wait: 10m`")

    def content(self, seen: dict[str, Any]) -> str | None:
        """A few busy cores, or work that wanders over many and fills none, may still matter to who reads the times."""
        top = [one for one in seen["top"] if one["core_pct"] > self.max_busy]
        busy = [self._busy(seen)] if seen["busy_cores"] else []
        return "; ".join((*busy, *self._who(seen, top), *seen["notes"])) or None

    def _busy(self, seen: dict[str, Any]) -> str:
        verb = "is" if seen["busy_cores"] == 1 else "are"
        return f"{seen['busy_cores']} of {seen['cores']} cores {verb} busier than {self.max_busy:g} %"

    def _who(self, seen: dict[str, Any], top: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Who works, and whether they are more than there are cores for."""
        if top:
            told = (f"{neighbours.told(one)} {one['core_pct']:.0f} % of a core" for one in top)
            yield neighbours.some(told)
        if (seen["waiting_pct"] or 0) >= _WAITING_PCT:
            ready = "" if seen["procs_running"] is None else f" ({seen['procs_running']} ready to run at the end)"
            yield f"in {seen['waiting_pct']:g} % of the time some process waited for a core{ready}"

    def may_pass(self, seen: dict[str, Any]) -> bool:
        return bool(seen["cores"])


@dataclass(frozen=True)
class _Share:
    """Of a core's time; what a hypervisor took from it counts as busy, too."""

    busy_pct: float
    stolen_pct: float


@dataclass(frozen=True)
class _Reading:
    """cores: by number the ticks of its /proc/stat line, user to steal."""

    uptime_s: float
    cores: Mapping[int, tuple[int, ...]]
    running: int | None
    waited_us: int | None
    processes: Mapping[int, neighbours.Neighbour]


def _reading(machine: Machine) -> _Reading:
    stat = machine.read("proc/stat") or ""
    lines = re.findall(r"^cpu(\d+)((?: \d+){8})", stat, re.M)
    running = re.search(r"^procs_running (\d+)", stat, re.M)
    waited = re.search(r"^some .*total=(\d+)", machine.read("proc/pressure/cpu") or "", re.M)
    return _Reading(
        float((machine.read("proc/uptime") or "0").split()[0]),
        {int(cpu): tuple(map(int, ticks.split())) for cpu, ticks in lines},
        int(running[1]) if running else None,
        int(waited[1]) if waited else None,
        neighbours.everyone(machine),
    )


def _share(first: tuple[int, ...], then: tuple[int, ...] | None) -> _Share | None:
    """None when its ticks stood still or are gone, as those of a core that was taken offline."""
    ticks = [max(0, b - a) for a, b in zip(first, then or first, strict=True)]
    idle, stolen, all_ = ticks[3] + ticks[4], ticks[7], sum(ticks)
    return _Share(100 * (all_ - idle) / all_, 100 * stolen / all_) if all_ else None


def _waiting_pct(first: _Reading, then: _Reading) -> float | None:
    """From the pressure stall information (psi.rst of the kernel); None where the kernel has none."""
    seconds = then.uptime_s - first.uptime_s
    if first.waited_us is None or then.waited_us is None or seconds <= 0:
        return None
    return round(min(100.0, (then.waited_us - first.waited_us) / 1e4 / seconds), 1)


def _usable(machine: Machine, cores: Iterable[int]) -> set[int]:
    """The cores that the target may use: as the plan binds it, as it inherits them from us, or has them already."""
    if machine.target_cpus:
        return set(machine.target_cpus)
    who = machine.target_pids[0] if machine.target_pids else "self"
    allowed = process.cpus_allowed(machine.read(f"proc/{who}/status"))
    return set(cores) if allowed is None else set(numbers_in(allowed))


def _top(machine: Machine, used: Mapping[int, float]) -> list[dict[str, Any]]:
    busiest = sorted((pid for pid in used if used[pid] >= _WORTH_TELLING_PCT), key=lambda pid: -used[pid])[:_TOLD]
    return [{**neighbours.describe(machine, pid), "core_pct": round(used[pid], 1)} for pid in busiest]


def _notes(machine: Machine, seen: Mapping[str, Any], unexplained_cores: float) -> Iterator[str]:
    unseen = neighbours.unseen(machine)
    if unexplained_cores >= _UNEXPLAINED_CORES:
        who = unseen or "by processes too short-lived to be seen, or by the kernel"
        yield f"{unexplained_cores:.1f} cores' worth of work is not explained by what can be seen: {who}"
    if seen["stolen_pct"] >= _STOLEN_PCT:
        yield f"{seen['stolen_pct']:g} % of the time was taken by the hypervisor: other virtual machines are busy"
    quota = kernel.tightest(machine, "cpu")
    if quota is not None and quota < seen["cores"]:
        yield f"this control group may use {quota:.3g} of the {seen['cores']} cores (CPU quota)"
