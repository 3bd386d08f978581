"""The other processes of this machine: who they are and what they use. What profrun has started, or looks at, is no
neighbour."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import redact

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LONGEST_COMMAND = 70


@dataclass(frozen=True)
class Neighbour:
    """A process by what /proc/PID/stat says: `name` has 15 letters at most, times are in clock ticks."""

    pid: int
    parent: int
    name: str
    used_ticks: int
    started_ticks: int


def everyone(machine: Machine) -> dict[int, Neighbour]:
    """Every living process that can be seen from here, by its pid."""
    try:
        names = os.listdir(machine.path("proc"))  # noqa: PTH208 - names are wanted, and this is asked often
    except OSError:
        return {}
    found = (_neighbour(int(name), machine.read(f"proc/{name}/stat") or "") for name in names if name.isdigit())
    return {one.pid: one for one in found if one}


def _neighbour(pid: int, stat: str) -> Neighbour | None:
    """None when it has ended."""
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20 or fields[0] in "ZX":
        return None
    used = int(fields[11]) + int(fields[12])
    return Neighbour(pid, int(fields[1]), head.partition("(")[2], used, int(fields[19]))


def ours(machine: Machine, all_: Mapping[int, Neighbour]) -> set[int]:
    """profrun with all that it has started, and the target where it ran before."""
    return {pid for root in (os.getpid(), *machine.target_pids) for pid in (root, *tree(root, all_))}


def tree(root: int, all_: Mapping[int, Neighbour]) -> set[int]:
    """The descendants of a process."""
    children: dict[int, list[int]] = {}
    for one in all_.values():
        children.setdefault(one.parent, []).append(one.pid)
    found: set[int] = set()
    queue = [root]
    while queue:
        queue = [child for pid in queue for child in children.get(pid, ()) if child not in found]
        found.update(queue)
    return found


def ancestors(pid: int, all_: Mapping[int, Neighbour]) -> Iterator[Neighbour]:
    """Its parent, the parent of that, and so on."""
    seen = {pid}
    while (one := all_.get(pid)) and (parent := all_.get(one.parent)) and parent.pid not in seen:
        yield parent
        seen.add(parent.pid)
        pid = parent.pid


def cores_pct(first: Mapping[int, Neighbour], then: Mapping[int, Neighbour], seconds: float) -> dict[int, float]:
    """What each process has used between two readings, in percent of one core; also those that began meanwhile."""
    used = {}
    for pid, one in then.items():
        before = first.get(pid)
        same = before is not None and before.started_ticks == one.started_ticks
        ticks = one.used_ticks - (before.used_ticks if before and same else 0)
        used[pid] = 100 * ticks / _TICKS_PER_S / seconds if seconds > 0 else 0.0
    return used


def describe(machine: Machine, pid: int) -> dict[str, Any]:
    """What the user needs to recognise a process: pid, user, command. JSON-able; None: not to be seen from here."""
    return {"pid": pid, "user": user(machine, pid), "command": command(machine, pid)}


def told(one: Mapping[str, Any], *more: str) -> str:
    """The same in words: `pid 12 (anna, python train.py)`."""
    known = [text for text in (one["user"], one["command"]) if text] or ["who it is can't be seen from here"]
    return f"pid {one['pid']} ({', '.join((*known, *more))})"


def user(machine: Machine, pid: int) -> str | None:
    """Whose it is; None when it is gone."""
    uid = re.search(r"^Uid:\s*(\d+)", machine.read(f"proc/{pid}/status") or "", re.M)
    if uid is None:
        return None
    try:
        return pwd.getpwuid(int(uid[1])).pw_name
    except KeyError:
        return f"user {uid[1]}"


def command(machine: Machine, pid: int) -> str | None:
    """Its command line without secrets, shortened; a kernel thread's name in brackets; None when it is gone."""
    line = machine.read(f"proc/{pid}/cmdline")
    words = [word for word in (line or "").split("\0") if word]
    if words:
        return short(" ".join(redact.argv(words)))
    comm = machine.read(f"proc/{pid}/comm")
    return f"[{comm}]" if comm else None


def short(text: str) -> str:
    """A command line in one line that is not too long."""
    text = " ".join(redact.in_text(text).split())
    return text if len(text) <= _LONGEST_COMMAND else text[: _LONGEST_COMMAND - 3] + "..."


def unseen(machine: Machine) -> str | None:
    """Why not every process of this machine can be seen; None when nothing speaks for that."""
    if machine.read("proc/1/stat") is None:
        return "processes of other users can't be seen from here (/proc is mounted with hidepid)"
    container = machine.in_container()
    return f"processes outside this container ({container}) can't be seen from here" if container else None


_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""


def all_pids_here(machine: Machine) -> bool:
    """Whether we are where every process has its own number, and not in a container."""
    try:
        return os.readlink(machine.path("proc/self/ns/pid")) == _FIRST_PID_NAMESPACE  # noqa: PTH115
    except OSError:
        return True


def some(texts: Iterable[str], most: int = 3) -> str:
    """The first few, and how many more there are."""
    listed = list(texts)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {more} more" if more > 0 else "")
