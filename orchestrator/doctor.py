"""What works on this machine, proven by trying, and for each gap the one step that mends it on this system."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from orchestrator import collect, folder, process, registry
from orchestrator.collectors.base import Collector
from orchestrator.errors import FolderError
from orchestrator.live import Context
from orchestrator.machine import Machine
from orchestrator.model import USABLE, Capture, Pass, Target, ToolProbe
from orchestrator.signals import Signals
from orchestrator.stdio import Stdin

SCHEMA = "profrun/doctor/1"

State = Literal["ok", "missing", "broken", "blocked"]

_NOT_FOUND = "not found on PATH or in the usual places"


@dataclass(frozen=True)
class Diagnosis:
    """One tool or permission. `said`: what was tried and what came of it; `fix`: the one next step, if there is one."""

    subject: str
    state: State
    said: str
    fix: str | None = None
    version: str | None = None
    path: str | None = None


def doctor(machine: Machine) -> list[Diagnosis]:
    """Tries everything that profrun can use here: some seconds, about 25 where nsys hangs. Leaves nothing behind."""
    found = [*_collectors(machine), *_other_tools(machine), *_permissions(machine), *_places()]
    return [replace(one, fix=_as_we_are(machine, one.fix)) for one in found]


def _as_we_are(machine: Machine, fix: str | None) -> str | None:
    """Root needs no sudo, and may find none."""
    return fix.replace("sudo ", "") if fix and machine.is_root else fix


# ---------------------------------------------------------------- collectors: each looks at a small program of ours

_TRIAL_LIMIT_S = 20.0
_TRIAL = """
import time
def busy_for_the_doctor(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
busy_for_the_doctor(0.4)
"""


def _collectors(machine: Machine) -> Iterator[Diagnosis]:
    """Every collector that needs a tool, in one pass each on the small program."""
    found = (try_collector(name, machine) for name in registry.collector_names())
    return (one for one in found if one is not None)


def try_collector(name: str, machine: Machine) -> Diagnosis | None:
    """Lets one collector record the small program; None for one that needs no tool."""
    try:
        member = registry.collector(name).model_validate({"use": name, "flush": _TRIAL_LIMIT_S})
        checks = member.checks(machine)
    except Exception as error:  # a collector from another package may raise anything
        return Diagnosis(name, "broken", f"can't be used: {type(error).__name__}: {error}")
    if member.probe is None:
        return None
    tool = member.tool(machine)
    if tool.path is None:
        return Diagnosis(name, "missing", _NOT_FOUND, how_to_get(machine, name) or member.probe.install)
    obstacle = next((check for check in checks if check.verdict in ("missing", "blocked")), None)
    if obstacle:
        state: State = "blocked" if obstacle.verdict == "blocked" else "broken"
        return Diagnosis(name, state, obstacle.message, obstacle.fix, tool.version, tool.path)
    state, said = _tried(member, machine)
    warnings = [check for check in checks if check.verdict == "warn"]
    said = "; ".join([said, *(check.message for check in warnings)])
    return Diagnosis(name, state, said, next((w.fix for w in warnings), None), tool.version, tool.path)


def _tried(member: Collector, machine: Machine) -> tuple[State, str]:
    started = time.monotonic()
    try:
        capture = _trial(member, machine)
    except (OSError, FolderError) as error:
        return "broken", f"could not be tried: {error}"
    took_s = time.monotonic() - started
    if capture.status in USABLE:
        return "ok", f"recorded a small Python program in {took_s:.1f} s"
    if capture.status == "empty" and "cupti" in member.claims:
        return "ok", f"ran with a small Python program, which gives no GPU work, in {took_s:.1f} s"
    return "blocked" if capture.status == "blocked" else "broken", f"tried on a small Python program: {capture.reason}"


def _trial(member: Collector, machine: Machine) -> Capture:
    """The capture of one real pass, made and left in scratch space. Raises OSError, FolderError when there is none."""
    scratch = folder.scratch()
    try:
        stdin = Stdin(scratch / "stdin", passes=1)
        stdin.kind = "closed"
        env = {**os.environ, "TMPDIR": str(scratch)}  # nsys leaves files there
        target = Target(("python", "-I", "-S", "-c", _TRIAL), sys.executable, str(scratch), env)
        with Signals() as signals:
            context = Context(
                run_id=scratch.name,
                folder=folder.create(scratch, "doctor"),
                scratch=scratch,
                target=target,
                machine=machine,
                stdin=stdin,
                interrupts=signals,
                observer=_Nobody(),
                end_leftovers=True,
                facts={"gpus": machine.gpus},
            )
            planned = Pass("doctor", 1, "profiled", (member,), timeout_s=_TRIAL_LIMIT_S)
            _, captures = collect.run_pass(planned, context)
            if signals.received:
                raise KeyboardInterrupt
        return captures[0]
    finally:
        process.end(lambda: process.marked(scratch.name))
        folder.remove(scratch)


class _Nobody:
    """Watches a trial."""

    def tick(self, elapsed_s: float) -> None:
        """Shows nothing."""

    def make_way(self, amid_line: bool) -> None:
        """Shows nothing."""

    def interrupted(self, number: int) -> None:
        """Shows nothing."""


# ---------------------------------------------------------------- tools that no collector of today needs


def _other_tools(machine: Machine) -> Iterator[Diagnosis]:
    known = registry.collector_names()
    for name, trial, expected in _OTHERS:
        if name not in known:
            yield _other_tool(machine, name, trial, expected)
    yield _gpu(machine)


_OTHERS = (
    ("perf", ("stat", "-e", "task-clock", "true"), r"[1-9].* task-clock"),
    ("gdb", ("-batch", "-nx", "-ex", "print 40 + 2"), r"\$1 = 42"),
    ("crontab", ("-l",), r"\A(?![\s\S]*not allowed)"),
)
"""Name, arguments that make it work, and what it then prints (an empty crontab is one, too)."""


def _other_tool(machine: Machine, name: str, trial: tuple[str, ...], expected: str) -> Diagnosis:
    tool = machine.tool(ToolProbe(name, version_args=("-V",) if name == "crontab" else ("--version",)))
    if tool.path is None:
        return Diagnosis(name, "missing", f"{_NOT_FOUND}; no collector needs it yet", how_to_get(machine, name))
    answer = process.ask([tool.path, *trial], timeout_s=_TRIAL_LIMIT_S)
    worked = answer.exit is not None and re.search(expected, answer.stdout + answer.stderr)
    said = f"`{shlex.join([name, *trial])}` " + ("worked" if worked else f"failed: {_gist(answer)}")
    return Diagnosis(name, "ok" if worked else "broken", said, version=tool.version, path=tool.path)


def _gist(answer: process.Answer) -> str:
    lines = (answer.stderr.strip() or answer.stdout.strip()).splitlines()
    return answer.error or (lines[-1] if lines else "it printed nothing")


def _gpu(machine: Machine) -> Diagnosis:
    tool = machine.tool(ToolProbe("nvidia-smi", places=("/usr/lib/wsl/lib/nvidia-smi",)))
    facts = {"version": tool.version, "path": tool.path}
    if machine.gpus:
        names = ", ".join(f"{gpu['index']}: {gpu['name']} (driver {gpu['driver']})" for gpu in machine.gpus)
        return Diagnosis("nvidia-smi", "ok", names, **facts)
    if tool.path:
        return Diagnosis(
            "nvidia-smi", "broken", f"lists no GPU: {_gist(process.ask([tool.path, '-L']))}", None, **facts
        )
    if _nvidia_devices(machine):
        return Diagnosis(
            "nvidia-smi", "missing", "an NVIDIA GPU is on the bus, without its driver", "install NVIDIA's driver"
        )
    return Diagnosis("nvidia-smi", "missing", "no NVIDIA GPU here")


def _nvidia_devices(machine: Machine) -> bool:
    """Whether a display controller (PCI class 03) of NVIDIA's (vendor 10de) is on the bus."""
    devices = Path("/sys/bus/pci/devices").glob("*")
    ids = ((machine.read(f"{d}/class"), machine.read(f"{d}/vendor")) for d in (str(x)[1:] for x in devices))
    return any((kind or "").startswith("0x03") and vendor == "0x10de" for kind, vendor in ids)


# ---------------------------------------------------------------- permissions


def _permissions(machine: Machine) -> Iterator[Diagnosis]:
    for subject, allowed in (("trace a child", machine.ptrace()), ("trace a sibling", machine.ptrace_beside())):
        yield Diagnosis(subject, "ok" if allowed.allowed else "blocked", allowed.why, allowed.fix)
    yield _perf_events(machine)
    yield from _gpu_counters(machine)


def _perf_events(machine: Machine) -> Diagnosis:
    """kernel.perf_event_paranoid: above 2 (Debian, Ubuntu) perf is for root alone, above 1 it sees no kernel code."""
    level = machine.perf_event_paranoid()
    if level is None:
        return Diagnosis("perf events", "missing", "this kernel (or container) shows none")
    said = f"kernel.perf_event_paranoid is {level}"
    if machine.is_root or level < 2:
        return Diagnosis("perf events", "ok", said)
    fix = "sudo sysctl kernel.perf_event_paranoid=1"
    if level > 2:
        return Diagnosis("perf events", "blocked", f"{said}: only root may count", fix)
    return Diagnosis("perf events", "ok", f"{said}: the kernel's own code stays hidden", fix)


def _gpu_counters(machine: Machine) -> Iterator[Diagnosis]:
    """The driver's module parameter NVreg_RestrictProfilingToAdminUsers; asked only where there is a driver."""
    found = re.search(r"RmProfilingAdminOnly:\s*(\d)", machine.read("proc/driver/nvidia/params") or "")
    if found:
        allowed = machine.is_root or found[1] == "0"
        said = "the driver lets " + ("everybody" if found[1] == "0" else "only root") + " read them"
        yield Diagnosis("GPU counters", "ok" if allowed else "blocked", said, None if allowed else _GPU_COUNTERS_FIX)


_GPU_COUNTERS_FIX = (
    "as root, write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` to /etc/modprobe.d/profiling.conf and reboot"
)


# ---------------------------------------------------------------- places


def _places() -> Iterator[Diagnosis]:
    yield _place("report folder", Path("reports").absolute(), "name another parent with -o DIR")
    yield _scratch_place()


def _scratch_place() -> Diagnosis:
    try:
        scratch = folder.scratch()
    except FolderError as error:
        return Diagnosis("scratch space", "blocked", error.text(), error.next_step)
    folder.remove(scratch)
    found = _place("scratch space", scratch.parent, "set TMPDIR to a folder on another disk")
    wanted = os.environ.get("TMPDIR")
    if wanted and Path(wanted) != scratch.parent:
        return replace(
            found, said=f"{found.said}; TMPDIR={wanted} can't be used", fix=f"mkdir -p {wanted}, or unset TMPDIR"
        )
    return found


def _place(subject: str, path: Path, fix: str) -> Diagnosis:
    """Whether files can be made there, and how much room there is."""
    there = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Diagnosis(subject, "blocked", f"{there} can't be written", fix, path=str(path))
    free = shutil.disk_usage(there).free
    state: State = "ok" if free >= folder.NEEDED_BYTES else "blocked"
    return Diagnosis(subject, state, f"{free / 1e9:.1f} GB free", None if state == "ok" else fix, path=str(path))


# ---------------------------------------------------------------- how this system gets a tool

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
    "nsys": {"debian": "nsight-systems", "ubuntu": "nsight-systems"},
    "ncu": {"debian": "nsight-compute", "ubuntu": "nsight-compute"},
}
"""The package that has a tool, where it is not called like the tool; "" stands for all other systems."""

_NSIGHT = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}


def how_to_get(machine: Machine, name: str) -> str | None:
    """The one command that gets a tool on this system; None where that is not known."""
    if name == "py-spy":
        return f"{sys.executable} -m pip install --upgrade py-spy"
    if name in _NSIGHT and (machine.gpus or _nvidia_devices(machine)):
        return f"install {_NSIGHT[name]} from where the GPU's driver came from, or load the cluster's CUDA module"
    family = _family(machine)
    if name not in _PACKAGES or family is None or (name in _NSIGHT and family not in _PACKAGES[name]):
        return None
    package = _PACKAGES[name].get(family) or _PACKAGES[name].get("", name)
    non_free = "enable Debian's component non-free, then " if name in _NSIGHT and family == "debian" else ""
    return f"{non_free}{_INSTALL[family]} {package}"


def _family(machine: Machine) -> str | None:
    release = machine.read("etc/os-release") or ""
    words = re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)', release, re.M)
    return next((word for word in " ".join(sorted(words, key=len)).split() if word in _INSTALL), None)


# ---------------------------------------------------------------- what the user sees


def as_json(found: Sequence[Diagnosis]) -> str:
    return json.dumps({"schema": SCHEMA, "found": [asdict(one) for one in found]}, indent=2, ensure_ascii=False)


_STYLES: dict[State, str] = {"ok": "green", "missing": "yellow", "broken": "red", "blocked": "red"}


def as_text(found: Sequence[Diagnosis], width: int | None = None, color: bool | None = None) -> str:
    """A table, then the fixes, each on a line of its own to be copied. Coloured on a terminal only."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "", "version", "tried"):
        table.add_column(title, no_wrap=title != "tried")
    for one in found:
        said = Text(one.said) if one.path is None else Text.assemble(one.said, (f"\n{one.path}", "dim"))
        table.add_row(one.subject, Text(one.state, _STYLES[one.state]), one.version or "", said)
    out = io.StringIO()
    terminal = sys.stdout.isatty() if color is None else color
    console = Console(file=out, width=width or shutil.get_terminal_size((110, 24)).columns, force_terminal=terminal)
    console.print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + _fixes(found)


def _fixes(found: Sequence[Diagnosis]) -> str:
    lines = [f"  {one.subject}: {one.fix}" for one in found if one.fix]
    return "\n\nWhat would help:\n" + "\n".join(lines) if lines else ""
