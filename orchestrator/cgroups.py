"""The keeper out of the job's cgroup: whoever ends a job by its cgroup ends everything in it, the keeper, too."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import process
from orchestrator.machine import write_host

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_MANAGERS = (
    (re.compile(r"slurm|/job_\d"), "Slurm"),
    (re.compile(r"kubepods"), "Kubernetes"),
    (re.compile(r"docker|containerd|libpod|crio|lxc"), "the container's manager"),
    (re.compile(r"pbs|torque"), "PBS"),
    (re.compile(r"htcondor"), "HTCondor"),
    (re.compile(r"\.(service|scope)(/|$)"), "systemd"),
)
"""Who ends all that is in a cgroup of such a name."""
_OUTSIDE = re.compile(r"/profrun-keeper-\d+\.scope$")
_MOVE_LIMIT_S = 2.0


@dataclass(frozen=True)
class Membership:
    """A line of /proc/PID/cgroup. `controllers` is empty for the one hierarchy of version 2."""

    controllers: str
    path: str

    @property
    def manager(self) -> str | None:
        """Who would end what is in it; None: nobody is known for that."""
        return next((name for pattern, name in _MANAGERS if pattern.search(self.path)), None)


def memberships(machine: Machine, pid: int | str) -> list[Membership]:
    """The cgroups of a process, one for each hierarchy; empty where that can't be read."""
    lines = (line.split(":", 2) for line in (machine.read(f"proc/{pid}/cgroup") or "").splitlines())
    return [Membership(fields[1], fields[2]) for fields in lines if len(fields) == 3]


def set_apart(machine: Machine, pid: int) -> str | None:
    """Moves a process of ours out of the cgroups that are ended as a whole; says who still would end it."""
    managed = [one for one in memberships(machine, pid) if one.manager]
    if managed and os.geteuid() == 0:
        for one in managed:
            _to_the_root(machine, one, pid)
    elif managed and all(one.manager == "systemd" for one in managed):
        _to_a_scope_of_its_own(machine, managed, pid)
    return _who_ends_it(machine, pid)


def _to_the_root(machine: Machine, one: Membership, pid: int) -> None:
    for mount in _mounts(machine, one.controllers):
        with contextlib.suppress(OSError):
            write_host(str(machine.path(mount.lstrip("/")) / "cgroup.procs"), str(pid))
            return


def _mounts(machine: Machine, controllers: str) -> Iterator[str]:
    """Where a hierarchy is mounted (proc(5), mountinfo: mount point in field 5, type and options after the dash)."""
    for line in (machine.read("proc/self/mountinfo") or "").splitlines():
        place, _, kind = line.partition(" - ")
        point, words = place.split()[4:5], kind.split()
        if not point or len(words) < 3:
            continue
        if words[0] == "cgroup2" if not controllers else set(controllers.split(",")) <= set(words[2].split(",")):
            yield point[0]


def _to_a_scope_of_its_own(machine: Machine, managed: list[Membership], pid: int) -> None:
    """Asks the user's own systemd for a scope with this process, as `systemd-run --user --scope` does for a new one."""
    bus = Path(os.environ.get("XDG_RUNTIME_DIR", "")) / "bus"
    if not bus.is_absolute() or not machine.path(str(bus).lstrip("/")).exists():
        return
    manager = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
    scope = (f"profrun-keeper-{pid}.scope", "fail", "1", "PIDs", "au", "1", str(pid), "0")
    argv = ("busctl", "--user", "call", *manager, "StartTransientUnit", "ssa(sv)a(sa(sv))", *scope)
    if not process.ask(argv, timeout_s=_MOVE_LIMIT_S).ok:
        return
    deadline = time.monotonic() + _MOVE_LIMIT_S  # the answer only says that it will be done
    while time.monotonic() < deadline and set(managed) <= set(memberships(machine, pid)):
        time.sleep(0.005)


def _who_ends_it(machine: Machine, pid: int, environ: Mapping[str, str] = os.environ) -> str | None:
    still = [one for one in memberships(machine, pid) if one.manager and not _OUTSIDE.search(one.path)]
    container = machine.in_container()
    if still:
        who, where = still[0].manager, f"it is in the cgroup {still[0].path}, and may not leave it"
    elif "SLURM_JOB_ID" in environ and os.geteuid() != 0:
        who, where = "Slurm", f"it is part of job {environ['SLURM_JOB_ID']}"
    elif container:
        who, where = "the container's manager", f"it can't live outside the container ({container})"
    else:
        return None
    return f"{who} can end profrun and its keeper at once ({where}); what is left then, profrun env restore puts back"
