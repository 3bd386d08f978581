"""Processes that ran before profrun came: the tree below those that are named, its ranks and its wrappers, and that
they are left as they were."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator import process
from orchestrator.errors import PreflightError, ProfrunError, UsageError
from orchestrator.launching import LAUNCHERS, SHELLS, Place, name_of, numbers, place_of, wrapper_of
from orchestrator.model import Attached

STOPPED = ("T", "t")
"""The kernel's letters of a process that stands still: stopped by a signal, or by its tracer."""
SETTLE_S = 1.0
"""How long a process may take to stop or to go on when it was told to."""
_LOOK_S = 0.01


# ---------------------------------------------------------------- who is there


def look(pids: Sequence[int]) -> tuple[Attached, ...]:
    """The named processes with all that they have started, parents before children, each once. profrun itself, which
    one of them may have started, and what is ours beside it are left out."""
    seen = _Looking()
    for root in roots(pids):
        for pid, parent in _tree(root):
            if process.alive(pid):
                seen.add(pid, parent)
    return tuple(seen.found.values())


def roots(pids: Iterable[int]) -> tuple[int, ...]:
    """Of these, once each, those that stand in the tree of no other."""
    named = tuple(dict.fromkeys(pids))
    below = {pid for root in named for pid in process.descendants(root)} if len(named) > 1 else set()
    return tuple(pid for pid in named if pid not in below)


def lives(one: Attached) -> bool:
    """Whether it is still there, and its number is not another process's by now."""
    return process.alive(one.pid) and one.born in (None, process.born(one.pid))


def families(attached: Iterable[Attached]) -> dict[int, tuple[Attached, ...]]:
    """The processes by the pid of their family's first one."""
    found: dict[int, tuple[Attached, ...]] = {}
    for one in attached:
        found[one.lead] = (*found.get(one.lead, ()), one)
    return found


MOST_GROUPS = 16
"""Of so many families each gets its own instance of a tool that can't tell processes apart."""


def groups(attached: Sequence[Attached]) -> tuple[dict[int, tuple[Attached, ...]], tuple[str, ...]]:
    """The families that such a tool looks at one by one, the lowest ranks first, and which ones it does not; none where
    all is one family."""
    every = families(attached)
    if len(every) < 2:
        return {}, ()
    order = sorted(every, key=lambda lead: (every[lead][0].rank is None, every[lead][0].rank))
    left = ", ".join(whose(every[lead][0]) for lead in order[MOST_GROUPS:])
    said = f"of {len(every)} groups of processes the first {MOST_GROUPS} were looked at; not: {left}"
    return {lead: every[lead] for lead in order[:MOST_GROUPS]}, (said,) if left else ()


def whose(first: Attached) -> str:
    """What to call a family, by its first process."""
    return f"process {first.pid}" if first.rank is None else f"rank {first.rank}"


def why_traced(one: Attached) -> tuple[str, str]:
    """Why a process that has a tracer can't get another, and what would help."""
    name = process.status_of(one.tracer_before).get("Name") or "another program"
    said = (
        f"process {one.pid} is traced by {name} (process {one.tracer_before}), and a process has one tracer at a time"
    )
    return said, f"end {name} first (process {one.tracer_before}), or let it detach"


def proper(attached: Sequence[Attached]) -> Attached | None:
    """The program that is meant: not what has only started it. None where there is no process at all."""
    programs = programs_of(attached)
    return programs[0] if programs else None


def programs_of(attached: Sequence[Attached]) -> tuple[Attached, ...]:
    """The program in each family that has one, of a job the ranks': not a wrapper, nor a shell that has started it."""
    chosen = [_program(members) for members in families(attached).values()]
    best = min(map(_rating, chosen), default=None)
    return tuple(one for one in chosen if _rating(one) == best)


def _program(family: Sequence[Attached]) -> Attached:
    """What a family is about: its first process, or what that has started, a Python before others."""
    by_starter = _starts_others(family[0])
    return min(family, key=lambda one: (_starts_others(one), bool(by_starter) and not one.is_top_python))


def _rating(one: Attached) -> tuple[int, bool]:
    return _starts_others(one), one.rank is None


def _starts_others(one: Attached) -> int:
    """0 for a program proper, 1 for a shell, 2 for what is known to do nothing but start another."""
    return 2 if one.wrapper else int(name_of(one.argv[:1]) in SHELLS)


def ranks(attached: Iterable[Attached]) -> dict[int, int]:
    """The rank by pid, where it is known."""
    return {one.pid: one.rank for one in attached if one.rank is not None}


def _tree(root: int) -> Iterator[tuple[int, int | None]]:
    """(pid, parent), parents before children, without us and what we have started; the parent of the root is None."""
    queue: list[tuple[int, int | None]] = [(root, None)]
    seen = {os.getpid()}
    while queue:
        pid, parent = queue.pop(0)
        if pid not in seen:  # a number that is given again meanwhile may turn up twice
            seen.add(pid)
            yield pid, parent
            queue += [(child, pid) for child in process.children(pid)]


class _Looking:
    """What has been found so far; a process is understood by its parent."""

    def __init__(self) -> None:
        self.found: dict[int, Attached] = {}
        self._places: dict[int, Place] = {}

    def add(self, pid: int, parent_pid: int | None) -> None:
        parent = self.found.get(parent_pid) if parent_pid is not None else None
        env, argv, is_python = process.environ_of(pid) or {}, process.argv_of(pid), process.is_python(pid)
        place, wrapper = place_of(env), wrapper_of(argv)
        above = self._places[parent.pid] if parent else None
        place = place if place[0] or above is None else above
        own = parent is None or (place[0] is not None and place != above)
        lead = pid if parent is None or own else parent.lead
        known = (None,) * 3 if wrapper in LAUNCHERS.values() else numbers(place)
        rank, local_rank, world_size = (
            known if parent is None or own else (parent.rank, parent.local_rank, parent.world_size)
        )
        self._places[pid] = place
        self.found[pid] = Attached(
            pid=pid,
            argv=argv,
            lead=lead,
            born=process.born(pid),
            parent=parent.pid if parent else None,
            is_python=is_python,
            is_top_python=is_python and not wrapper and not self._python_above(parent, lead),
            wrapper=wrapper,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            state_before=process.state(pid),
            tracer_before=process.tracer_of(pid),
        )

    def _python_above(self, one: Attached | None, lead: int) -> bool:
        while one is not None and one.lead == lead:
            if one.is_python and not one.wrapper:
                return True
            one = self.found.get(one.parent) if one.parent is not None else None
        return False


# ---------------------------------------------------------------- who can't be looked at


def obstacle(pid: int) -> ProfrunError | None:
    """Why that process can't be looked at by anybody, or not by us; None where nothing is known against it."""
    status = process.status_of(pid)
    who = " ".join(process.argv_of(pid)) or status.get("Name", "")
    if not status or process.state(pid) == "X":
        return _hidden(pid) or gone(pid)
    if pid == os.getpid():
        return UsageError(f"process {pid} is profrun itself", "", "name the program's process: pgrep -af python")
    if status.get("Tgid") != str(pid):
        whose = f"it belongs to process {status.get('Tgid')} ({who})"
        return UsageError(f"{pid} is a thread, no process", whose, f"name the process: --pid {status.get('Tgid')}")
    if process.state(pid) == "Z":
        parent = f"process {status.get('PPid')}, its parent, has yet to take note of that"
        return UsageError(f"process {pid} ({who}) has ended", parent, "look up the one that runs: pgrep -af python")
    if process.is_of_kernel(pid):
        named = "name the process of a program: pgrep -af python"
        return UsageError(f"process {pid} ({who}) is a thread of the kernel", "it runs no program", named)
    return None if process.is_readable(pid) else _closed(pid, who, status)


def gone(pid: int) -> UsageError:
    return UsageError(f"there is no process {pid}", "it has ended, or never was", "look it up: pgrep -af python")


def _hidden(pid: int) -> ProfrunError | None:
    """That it is there, though /proc does not show it."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        why = "/proc is mounted so that each user sees only their own processes (hidepid)"
        return PreflightError(f"process {pid} is another user's", why, "run profrun as that user, or as root")
    except (OSError, OverflowError):
        pass
    return None


def _closed(pid: int, who: str, status: Mapping[str, str]) -> ProfrunError:
    """That the kernel keeps us from looking into it, and the one thing that would help."""
    uid = int(status.get("Uid", "0").split()[0])
    owner = _user(uid)
    if os.geteuid() == 0:
        why = "this root has no CAP_SYS_PTRACE, as in a container"
        fix = "start the container with --cap-add SYS_PTRACE" + (f", or run profrun as {owner}" if uid else "")
    elif uid == os.geteuid():
        why = "it does not let itself be looked at: it has other rights than you, or has asked for that (prctl)"
        fix = "run profrun as root"
    else:
        who_may = [owner, "root"] if uid else [owner]
        why, fix = f"only {' and '.join(who_may)} may look into it", f"run profrun as {', or as '.join(who_may)}"
    return PreflightError(f"process {pid} ({who}) of user {owner} can't be looked at", why, fix)


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---------------------------------------------------------------- left as they were


def after(attached: Iterable[Attached]) -> tuple[Attached, ...]:
    """The same processes with the state that they are in now."""
    return tuple(
        replace(one, state_after=process.state(one.pid), tracer_after=process.tracer_of(one.pid))
        if lives(one)
        else replace(one, state_after=None, tracer_after=0)
        for one in attached
    )


class Visit:
    """One look at processes that run: who was there, who came, and what the tools must not leave behind."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.found = look(pids)

    def goes_on(self) -> bool:
        """Whether one of the named processes still lives."""
        return any(lives(one) for one in self.found if one.parent is None)

    def meet(self) -> None:
        """Takes note of those that came after the beginning."""
        known = {(one.pid, one.born) for one in self.found}
        alive = [one.pid for one in self.found if one.parent is None and lives(one)]
        came = (one for one in look(alive) if (one.pid, one.born) not in known)
        self.found += tuple(replace(one, state_before=None, tracer_before=0) for one in came)

    def free(self) -> list[str]:
        """Continues those that a tool has left stopped; says which."""
        ran = (one for one in self.found if one.state_before not in STOPPED)
        freed = process.continue_stopped(one.pid for one in ran if _stands(one.pid) and lives(one))
        _until(lambda: not any(_stands(pid) for pid in freed))
        return [f"a tool had left process {pid} stopped; it was continued" for pid in freed]

    def leave(self, tools: Collection[int] = ()) -> list[str]:
        """When the last tool is gone: everybody as before, and `found` with the state that each is in then; says what
        was amiss. `tools`: what of ours should have ended and has not."""
        self.meet()
        said = self.free()
        self.found = after(self.found)
        # it may be its user who has let it go on: to stop it again would be worse than to say so
        said += [
            f"process {one.pid} was stopped when profrun came, and runs now (kill -STOP {one.pid} stops it again)"
            for one in self.found
            if one.state_before == "T" and not one.tracer_before and one.state_after not in (None, *STOPPED)
        ]
        said += [
            f"process {one.pid} is still traced by process {one.tracer_after}, a tool of this pass"
            for one in self.found
            if one.tracer_after in tools
        ]
        return said


def _stands(pid: int) -> bool:
    return process.state(pid) in STOPPED


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SETTLE_S
    while not done() and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
