"""What the kernel, and a container's walls, let profrun do: trace, count, and how much memory, time and processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from orchestrator import kernel, neighbours, process
from orchestrator.doctor.words import LIMIT_S, Diagnosis
from orchestrator.machine import Machine
from orchestrator.model import ToolProbe
from orchestrator.units import show_bytes

# ---------------------------------------------------------------- tracing


def tracing(machine: Machine) -> Iterator[Diagnosis]:
    """Tried on a child and on a sibling; for a process that profrun has not started, told from the kernel's setting."""
    for subject, allowed in (("trace a child", machine.ptrace()), ("trace a sibling", machine.ptrace_beside())):
        said = allowed.why if allowed.allowed else "; ".join((allowed.why, *_walls(machine)))
        yield Diagnosis(subject, "ok" if allowed.allowed else "blocked", said, allowed.fix, theme="permissions")
    yield _attaching(machine)


def _walls(machine: Machine) -> Iterator[str]:
    """What may stand behind a refusal."""
    scope = machine.yama_scope()
    if scope:
        yield f"kernel.yama.ptrace_scope is {scope}"
    if _filtered(machine):
        yield "a seccomp filter is on"
    if not machine.capable("SYS_PTRACE"):
        yield "profrun has no CAP_SYS_PTRACE"


def _filtered(machine: Machine) -> bool:
    return re.search(r"^Seccomp:\s*2", machine.read("proc/self/status") or "", re.M) is not None


def _attaching(machine: Machine) -> Diagnosis:
    """kernel.yama.ptrace_scope: from 1 on, a process lets only its ancestors trace it (Documentation/.../Yama.rst)."""
    scope, subject = machine.yama_scope() or 0, "trace with --pid"
    if machine.capable("SYS_PTRACE") and scope < 3:
        whose = "every process in here" if machine.has_users_of_its_own() else "the processes of every user"
        return Diagnosis(subject, "ok", f"profrun may trace {whose}")
    if scope == 0:
        said = "profrun may trace this user's processes; those of others need root"
        return Diagnosis(subject, "ok", said)
    said = f"kernel.yama.ptrace_scope is {scope}: a program that profrun has not started can't be looked at"
    if scope == 3:
        return Diagnosis(subject, "blocked", said, machine.ptrace().fix)
    fix = machine.grant("SYS_PTRACE") if machine.in_container() else "sudo sysctl kernel.yama.ptrace_scope=0"
    return Diagnosis(subject, "blocked", said, fix)


# ---------------------------------------------------------------- counting

_TASK_CLOCK = re.compile(r"^[\d.]+;[^;]*;task-clock", re.M)
_CYCLES = re.compile(r"^([^;]*);[^;]*;cycles", re.M)


def counting(machine: Machine) -> Iterator[Diagnosis]:
    """perf events of the kernel and of the processor, opened by `perf stat`; without perf, told from the settings."""
    level = machine.perf_event_paranoid()
    if level is None:
        said = "this kernel shows no kernel.perf_event_paranoid: it has no perf events"
        yield Diagnosis("perf events", "missing", said)
        return
    perf = machine.find(ToolProbe("perf"))
    if perf is None:
        yield _by_level(machine, level)
        return
    argv = (perf, "stat", "-x;", "-e", "task-clock,cycles", "--", "true")
    answer = process.ask(argv, timeout_s=LIMIT_S, env={**os.environ, "LC_ALL": "C"})
    if not _TASK_CLOCK.search(answer.stderr):
        yield _not_counted(machine, level, answer)
        return
    yield _counted(machine, level)
    yield _hardware(machine, answer.stderr)


def _counted(machine: Machine, level: int) -> Diagnosis:
    said = f"opened one; kernel.perf_event_paranoid is {level}"
    if level < 2 or machine.capable("PERFMON", "SYS_ADMIN"):
        return Diagnosis("perf events", "ok", said)
    fix = "sudo sysctl kernel.perf_event_paranoid=1" + (" on the host" if machine.in_container() else "")
    return Diagnosis("perf events", "ok", f"{said}: the kernel's own code stays hidden", fix)


def _not_counted(machine: Machine, level: int, answer: process.Answer) -> Diagnosis:
    if answer.error:
        return Diagnosis("perf events", "unknown", f"`perf stat`: {answer.error}")
    if not re.search("permi|access|limited", answer.stderr, re.I):
        said = f"`perf stat` could not open one: {gist(answer)}"
        return Diagnosis("perf events", "broken", said)
    said = f"`perf stat` was refused; kernel.perf_event_paranoid is {level}"
    walls = [word for word in _walls(machine) if "seccomp" in word]
    return Diagnosis("perf events", "blocked", "; ".join((said, *walls)), _lower(machine))


def _by_level(machine: Machine, level: int) -> Diagnosis:
    """Above 2 (Debian, Ubuntu) only root may count, above 1 the kernel's own code stays hidden."""
    said = f"not tried without perf; kernel.perf_event_paranoid is {level}"
    if level > 2 and not machine.capable("PERFMON", "SYS_ADMIN"):
        said += ": only root may count"
        return Diagnosis("perf events", "blocked", said, _lower(machine))
    return Diagnosis("perf events", "unknown", said)


def _lower(machine: Machine) -> str:
    return machine.grant("PERFMON") if machine.in_container() else "sudo sysctl kernel.perf_event_paranoid=1"


def _hardware(machine: Machine, said: str) -> Diagnosis:
    found = _CYCLES.search(said)
    count = found[1] if found else ""
    if count.strip("<>") == "not supported":
        what = "WSL" if machine.is_wsl() else "this machine (a virtual one?)"
        words = f"{what} shows no counters of the processor: perf samples by the clock, and counts no instructions"
        return Diagnosis("hardware events", "missing", words)
    if count.isdigit():
        return Diagnosis("hardware events", "ok", "counted the processor's cycles")
    words = "the processor's cycles were not counted: its counters may all be in use"
    return Diagnosis("hardware events", "unknown", words)


def gist(answer: process.Answer) -> str:
    """What a command said last, or why it said nothing."""
    lines = [line for line in (answer.stderr, answer.stdout) for line in line.strip().splitlines()[-1:]]
    return answer.error or (lines[0] if lines else "it printed nothing")


# ---------------------------------------------------------------- containers


def container(machine: Machine) -> Diagnosis:
    """Which walls are around profrun, and what they keep from it."""
    kind = machine.in_container()
    hidden = not neighbours.all_pids_here(machine)
    if kind is None and not hidden:
        below = "WSL, below Windows" if machine.is_wsl() else "none: this is the host itself"
        return Diagnosis("container", "ok", below)
    lacking = [(name, what) for name, what in _uses(machine) if not machine.capable(name, kind="CapBnd")]
    said = [kind or "of unknown kind"]
    said += [f"lacks {', '.join(f'{name} ({what})' for name, what in lacking)}"] if lacking else []
    said += ["a seccomp filter is on"] if _filtered(machine) else []
    said += ["the host's other processes are hidden: who else uses CPU or GPU can't be told"] if hidden else []
    said += [] if said[1:] else ["it keeps nothing from profrun"]
    fix = machine.grant(*(name for name, _ in lacking)) if lacking else None
    return Diagnosis("container", "blocked" if lacking else "ok", "; ".join(said), fix)


def _uses(machine: Machine) -> Iterator[tuple[str, str]]:
    """Each capability that something of profrun can use, and what."""
    yield "SYS_PTRACE", "tracing"
    yield "PERFMON", "perf"
    yield "SYS_NICE", "priorities above normal"
    if machine.read("proc/driver/nvidia/version"):
        yield "SYS_ADMIN", "GPU counters"


# ---------------------------------------------------------------- limits of the control group

_LITTLE_BYTES = 1 << 30
_FEW_PROCESSES = 64


def limits(machine: Machine) -> Diagnosis:
    """The control group's limits of memory, CPU time and processes, the tightest from here to the root."""
    memory, cpus, room = (kernel.tightest(machine, name) for name in ("memory", "cpu", "pids"))
    said = [f"memory {show_bytes(int(memory))}"] if memory is not None else []
    said += [f"CPU time of {cpus:.3g} CPUs"] if cpus is not None else []
    said += [f"room for {room:g} more processes"] if room is not None else []
    if room is not None and room < _FEW_PROCESSES:
        fix = "raise the control group's pids.max (docker: --pids-limit)"
        return Diagnosis("limits", "blocked", ", ".join(said), fix)
    if memory is not None and memory < _LITTLE_BYTES:
        fix = "raise the control group's memory limit (docker: --memory; Slurm: --mem): parsing alone may take 1 GB"
        return Diagnosis("limits", "blocked", ", ".join(said), fix)
    if cpus is not None:
        said.append("whoever has used that up stands still until the next tenth of a second, which shows as jitter")
        fix = "bind whole CPUs instead (docker: --cpuset-cpus in place of --cpus)"
        return Diagnosis("limits", "ok", ", ".join(said), fix)
    return Diagnosis("limits", "ok", ", ".join(said) or "the control group sets none")
