"""Environment step `quiet_services`: is any of this machine's own upkeep at work (cron jobs, updates, file indexes,
backups, scrubs), or about to begin? Waits, and names it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestrator import neighbours, process
from orchestrator.env_steps.waiting import Patterns, Waiting
from orchestrator.model import Check, Judged
from orchestrator.neighbours import Neighbour
from orchestrator.units import Duration, show_duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine


@dataclass(frozen=True)
class _Service:
    """names: what /proc/PID/stat calls its processes, 15 letters at most. idles: it is always there, and counts only
    while it works."""

    what: str
    names: str
    idles: bool = False


_SERVICES = (
    _Service("file index", r"updatedb(\..*)?"),
    _Service("package update", r"apt(-get|-key|itude|\.systemd\.dai)?|dpkg(-\w*)?|dnf|yum|zypper|pacman|needrestart"),
    _Service("package update", r"unattended-upgr|packagekitd|snapd|fwupd(mgr)?|PackageKit", idles=True),
    _Service("manual index", r"mandb|man-db"),
    _Service("desktop search", r"tracker-miner-.*|tracker-extract.*|localsearch.*|baloo_file.*", idles=True),
    _Service("backup", r"restic|borg|rsync|rclone|duplicity|rsnapshot"),
    _Service("backup", r"bacula-fd|veeamagent|duplicati.*", idles=True),
    _Service("disk upkeep", r"btrfs|fstrim|e2scrub.*|xfs_scrub|fsck.*|mdadm-checkarra|smartctl"),
    _Service("virus scan", r"clamscan"),
    _Service("virus scan", r"clamd|freshclam|clamonacc", idles=True),
    _Service("driver build", r"dkms"),
    _Service("log rotation", r"logrotate"),
)
_CRONS = re.compile(r"cron|crond|anacron|atd|fcron|CRON", re.I)
_WORKING_CORE_PCT = 5.0
_SOON_S = 3600.0
_SNIPPET = "{{use: shell, run: [systemctl, stop, {0}], undo: [systemctl, start, {0}]}}"


class QuietServices(Waiting):
    """Upkeep comes at its own times and shows up as noise in one run out of many."""

    use: Literal["quiet_services"] = "quiet_services"
    over: Annotated[Duration, Field(gt=0, le=10)] = Field(1.0, description="how long each look takes, 10s at most")
    allow: Patterns = Field((), description="regular expressions; what has a match in its command line may run")

    purpose: ClassVar[str] = "waits until no cron job, update, file index, backup or scrub runs, and names what does"

    def checks(self, machine: Machine) -> list[Check]:
        if neighbours.everyone(machine):
            return []
        return [Check("quiet_services", "missing", "/proc does not list the processes of this machine")]

    def look(self, machine: Machine) -> dict[str, Any]:
        """running: what is at work, each with its share of one core; soon: the timers of the next hour."""
        first, first_s = neighbours.everyone(machine), _uptime_s(machine)
        time.sleep(self.over)
        then, then_s = neighbours.everyone(machine), _uptime_s(machine)
        used = neighbours.cores_pct(first, then, then_s - first_s)
        unseen = neighbours.unseen(machine)
        running = [*self._running(machine, then, used), *_raid_checks(machine)]
        notes = [unseen] if unseen else []
        return {"running": running, "processes": len(then), "notes": notes, "soon": _timers(machine)}

    def _running(
        self, machine: Machine, all_: Mapping[int, Neighbour], used: Mapping[int, float]
    ) -> Iterator[dict[str, Any]]:
        """A service and what it has started is told once."""
        what = _at_work(machine, all_)
        for pid, service in what.items():
            if any(parent.pid in what for parent in neighbours.ancestors(pid, all_)):
                continue
            core_pct = sum(used.get(one, 0.0) for one in (pid, *neighbours.tree(pid, all_)))
            one = neighbours.describe(machine, pid)
            working = core_pct >= _WORKING_CORE_PCT or not service.idles
            if working and not any(re.search(pattern, one["command"] or "") for pattern in self.allow):
                unit = _unit(machine.read(f"proc/{pid}/cgroup") or "")
                yield {"what": service.what, **one, "core_pct": round(core_pct, 1), "unit": unit}

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        if not seen["processes"]:
            return Judged("not_available", "/proc does not list the processes of this machine")
        if not seen["running"]:
            return None
        said = f"at work now: {neighbours.some(map(_told, seen['running']))}"
        return Judged("failed", "; ".join([said, *seen["notes"]]), fix=_fix(seen["running"]))

    def content(self, seen: dict[str, Any]) -> str | None:
        return "; ".join(seen["notes"]) or None

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """With what the timers of the next hour will start."""
        soon = [f"{timer['timer']} in {show_duration(timer['in_s'])}" for timer in verified["soon"]]
        notes = [*verified["notes"], *([f"due within the hour: {neighbours.some(soon)}"] if soon else [])]
        judged = super().judge(before, {**verified, "notes": notes})
        keep_away = f"stop it for the run: {_SNIPPET.format(verified['soon'][0]['timer'])}" if soon else None
        return replace(judged, fix=judged.fix or keep_away) if judged else None


def _at_work(machine: Machine, all_: Mapping[int, Neighbour]) -> dict[int, _Service]:
    """By pid every process that may be upkeep: jobs of cron and its like, and services by their names. What has
    started profrun is none: that is how a nightly run begins."""
    above_us = {one.pid for one in neighbours.ancestors(os.getpid(), all_)}
    ours = neighbours.ours(machine, all_) | above_us
    found = {}
    for pid, one in all_.items():
        parent = all_.get(one.parent)
        if pid in ours or one.parent == 2 or _CRONS.fullmatch(one.name):
            continue
        if parent and _CRONS.fullmatch(parent.name):
            found[pid] = _Service("cron job", one.name)
        elif service := next((x for x in _SERVICES if re.fullmatch(x.names, one.name)), None):
            found[pid] = service
    return found


def _raid_checks(machine: Machine) -> Iterator[dict[str, Any]]:
    """Arrays that the kernel checks or rebuilds: `[==>...]  check = 12.6% (...)` below their line in /proc/mdstat."""
    array = ""
    for line in (machine.read("proc/mdstat") or "").splitlines():
        array = line.partition(" ")[0] if line.startswith("md") else array
        if found := re.search(r"(check|resync|recovery|reshape)\s*=\s*([\d.]+)%", line):
            yield {"what": f"RAID {found[1]}", "pid": None, "command": f"{array}, {found[2]} % done", "unit": None}


def _timers(machine: Machine) -> list[dict[str, Any]]:
    """The timers of systemd that are due within the next hour; none where there is no systemd."""
    if not machine.path("run/systemd/system").is_dir():
        return []
    answer = process.ask(["systemctl", "list-timers", "--all", "--output=json"], timeout_s=5.0)
    try:
        said = json.loads(answer.stdout) if answer.ok else []
    except ValueError:  # before version 246 it has no JSON
        return []
    listed = said if isinstance(said, list) else []
    due = [(str(timer.get("unit")), timer.get("next")) for timer in listed if isinstance(timer, dict)]
    soon = [(unit, next_us / 1e6 - time.time()) for unit, next_us in due if isinstance(next_us, int)]
    return [{"timer": unit, "in_s": round(in_s)} for unit, in_s in soon if 0 <= in_s <= _SOON_S]


def _unit(groups: str) -> str | None:
    """The service of systemd that a process belongs to, from its /proc/PID/cgroup; that of a user with `--user`."""
    found = re.search(r"/([^/\n]+\.service)$", groups, re.M)
    if found is None:
        return None
    return f"--user {found[1]}" if "/user@" in groups and not found[1].startswith("user@") else found[1]


def _told(one: Mapping[str, Any]) -> str:
    if one["pid"] is None:
        return f"{one['what']} of {one['command']}"
    return f"{one['what']}: {neighbours.told(one)} {one['core_pct']:.0f} % of a core"


def _fix(running: list[dict[str, Any]]) -> str:
    units = sorted({one["unit"] for one in running if one["unit"]})
    stop = f", or stop it for the run: `systemctl stop {units[0]}`" if units else ""
    return f"wait for it (`wait: 10m`){stop}, or let it be by name (`allow: [NAME]`)"


def _uptime_s(machine: Machine) -> float:
    return float((machine.read("proc/uptime") or "0").split()[0])
