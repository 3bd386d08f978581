"""perf: what the processor and the kernel count for a process tree (`stat`), how often it makes which system call
(`syscalls`), and where its native code spends its time on processors, kernel included (`record`).

perf attaches to the target at its gate and inherits every thread and child that comes after. Its descriptors appear
long before it counts (0.1 s with `record`, perf 6.1), so the gate opens when perf says that its events are enabled.
Call stacks are unwound from copies of the stack by default (`dwarf`): most distributions' code, Python's included, is
built without frame pointers, and stacks by `fp` then end after the first function or in nonsense.

Counting system calls stops nobody, unlike strace: it takes 0.1 to 0.2 us for each call (x86-64 VM, Linux 6.18). Only
perf's own end takes its time, about 40 ms for each kind of tracepoint: the kernel waits until no processor is in one;
so the calls that programs make in numbers have one each, and all others together are what is left of the total."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator import attached, process
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.formats import logs, perf, syscalls
from orchestrator.formats.stacks import functions_table, stacks_table
from orchestrator.model import (
    After,
    Attached,
    Beside,
    Capture,
    Check,
    Expect,
    Job,
    Launch,
    Metric,
    Sign,
    Tool,
    ToolProbe,
    When,
)
from orchestrator.tables import Table
from orchestrator.units import Duration, Frequency, Size, show_duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine

SOFTWARE = ("task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults")
HARDWARE = ("cycles", "instructions", "branches", "branch-misses", "cache-references", "cache-misses")
"""Two of them have counters of their own on most processors, so that all six fit beside one another."""
COMPLETE = 0.99
"""A recording is degraded when less than this share of its samples is in the tables."""
ROOTLESS = 0.2
"""Worth a word when more than this share of the stacks lacks its beginning."""

_INSTALL = "install the package linux-perf (Debian), linux-tools-generic (Ubuntu) or perf (others)"
_CONTAINER = "with --cap-add PERFMON and a seccomp profile that allows perf_event_open"
_SAYS_ENABLED = (5, 10)
"""The first perf that says when its events are enabled."""
_DEEPEST = 1024
"""Frames of one stack; perf's own limit of 127 cuts the stacks of nested imports."""
_REFUSED = (
    r"Access to performance monitoring and observability operations is limited|You may not have permission"
    r"|No permission to (?:enable|collect)|Operation not permitted|Permission denied"
)
_UNSUPPORTED = r"The (\S+) event is not supported|(\S+): PMU Hardware (?:or event type )?doesn't support"
_UNKNOWN_EVENT = r"event syntax error: '([^']*)'|Cannot find PMU `(\S+)'"
_NO_BRANCHES = r"doesn't support branch stack sampling"
_NO_TRACEPOINTS = r"No permissions to read \S+/events/|can't access trace events|unknown tracepoint"
_NO_CALL = r"events/syscalls/sys_enter_(\w+) not found"
_TRACEFS = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
_ALL_CALLS = "raw_syscalls:sys_enter"
SPARE_DESCRIPTORS = 100
"""perf holds a descriptor for each event and thread, and needs some for itself."""
_PACKAGE = re.compile(r"\blinux-(?:tools|perf)-\d\S+")
_CPUS = "CPUs utilized"
_SAMPLES = re.compile(r"\((?:~)?(\d+) samples\)")


class Perf(Collector):
    """Counts events (`stat`), or samples stacks (`record`), of the target and all its threads and children."""

    use: Literal["perf"] = "perf"
    mode: Literal["stat", "syscalls", "record"] = Field(
        "stat",
        description="stat: counters of the whole run; syscalls: how often which system call was made, cheaply and "
        "without times; record: call stacks, by samples",
    )
    events: tuple[str, ...] = Field(
        (),
        description="stat: events as `perf list` names them, default the usual ones; syscalls: calls as strace names "
        "them, default the usual ones; record: one clock, default cycles where the processor counts them, else "
        "cpu-clock",
    )
    rate: Frequency = Field(99.0, description="record only: samples a second of each busy processor, a whole number")
    call_graph: Literal["dwarf", "fp", "lbr", "none"] = Field(
        "dwarf",
        description="record only: stacks from copies of the stack (dwarf: right for most code, large), from frame "
        "pointers (fp: small, right only for code built with them), from the processor's branch records (lbr: Intel, "
        "short), or none",
    )
    stack_size: Size = Field(
        16 << 10, ge=8, le=65528, description="dwarf only: how much of the stack is copied; less cuts deep stacks"
    )
    size_cap: Size = Field(512 << 20, ge=1, description="record only: stop when the data has grown to this")
    time_cap: Duration | None = Field(None, description="record only: stop after this long; the target goes on")

    probe: ClassVar[ToolProbe | None] = ToolProbe(
        "perf",
        version_regex=r"perf version (\d+(?:\.\d+)+)",
        help_args=("script", "-h"),
        features=(("inline", r"--inline\b"), ("lost", "--show-lost-events"), ("ns", r"--ns\b")),
        install=_INSTALL,
    )
    capability: ClassVar[str | None] = "PERFMON"
    purpose: ClassVar[str] = (
        "events that processor and kernel count; with `mode: syscalls` system calls, with `mode: record` native stacks"
    )
    slowdown: ClassVar[float] = 1.05

    @field_validator("events")
    @classmethod
    def _names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"[A-Za-z_{][^\s;]*", name):
                raise ValueError(f"{name!r} is no event as `perf list` names them")
        return value

    @field_validator("rate")
    @classmethod
    def _whole(cls, value: float) -> float:
        if value < 1 or value != int(value):
            raise ValueError(f"perf takes whole numbers only: write {round(value) or 1}")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Perf:
        if self.mode == "record" and (
            len(self.events) > 1 or any(perf.base_event(name) not in perf.CLOCKS for name in self.events)
        ):
            raise ValueError(f"record samples time: give one of {', '.join(perf.CLOCKS)}, or use `mode: stat`")
        if self.mode == "syscalls" and not all(map(str.isidentifier, self.events)):
            raise ValueError("syscalls counts system calls: give names as strace has them, such as openat")
        return self

    def label(self) -> str:
        return f"{self.use}-{self.mode}"

    def expected_bytes(self) -> int:
        return self.size_cap if self.mode == "record" else self.raw_bytes

    # ------------------------------------------------------------ before

    def checks(self, machine: Machine) -> list[Check]:
        found = super().checks(machine)
        tool = self.tool(machine)
        if tool.path is None:
            return found
        if tool.version is None:
            return [_no_perf(tool.path)]
        return [*self._counting(tool, machine, found)]

    def _counting(self, tool: Tool, machine: Machine, found: list[Check]) -> Iterator[Check]:
        """Counts, and records, a program that does nothing: what is allowed and what exists is proven, not guessed."""
        if (
            self.mode == "syscalls"
            and machine.is_root
            and not any(process.names_in(f"{place}/events") for place in _TRACEFS)
        ):
            yield self._no_tracepoints("", machine)  # perf would mount tracefs, and leave it there
            return
        answer = process.ask((*_perf(tool), "stat", "-x;", "-e", ",".join(self._counted()), "--", "true"))
        counters = [] if not answer.ok else perf.parse_stat(_rows(answer.stderr), "perf")
        failure = None if answer.ok else answer.stderr + (answer.error or "")
        if failure is None and self.mode == "record":
            tried = process.ask((*_perf(tool), "record", *self._sampling(), "-o", "-", "--", "true"))
            failure = None if tried.ok else tried.stderr + (tried.error or "")
        if failure is not None:
            yield self._refused(failure, machine)
            return
        if self.mode == "syscalls":  # what else it counts is only to know for how long
            yield from found
            return
        yield from found
        absent = [c.event for c in counters if c.unknown == "not supported"]
        if absent and (self.mode == "record" or len(absent) == len(counters)) and self.events:
            yield Check(self.use, "missing", f"this machine can't count {', '.join(absent)}", "leave `events` out")
        elif absent:
            virtual = set(HARDWARE) <= set(map(perf.base_event, absent))
            why = "; most virtual machines have no hardware counters" if virtual else ""
            yield Check(self.use, "ok", f"this machine can't count {', '.join(absent)}{why}")
        if any(c.event.endswith(":u") for c in counters) and not any(name.endswith(":u") for name in self.events):
            yield Check(
                self.use, "warn", "perf may look at user mode only: the kernel's part is missing", _fix(machine)
            )

    def _refused(self, said: str, machine: Machine) -> Check:
        if self.mode == "syscalls" and re.search(_NO_TRACEPOINTS, said):
            return self._no_tracepoints(said, machine)
        if re.search(_REFUSED, said) or "Function not implemented" in said:
            level = machine.perf_event_paranoid()
            setting = f" (kernel.perf_event_paranoid is {level})" if level is not None else ""
            return Check(self.use, "blocked", f"perf may not count events here{setting}", _fix(machine))
        if re.search(_NO_BRANCHES, said):
            return Check(self.use, "missing", "this processor records no branches", "use call_graph: dwarf")
        found = re.search(f"{_UNKNOWN_EVENT}|{_UNSUPPORTED}", said)
        if found:
            name = next(name for name in found.groups() if name)
            fix = "`perf list` names the events of this machine"
            return Check(self.use, "missing", f"perf can't use the event {name} here", fix)
        last = next((line for line in reversed(said.splitlines()) if line.strip()), "it said nothing")
        return Check(self.use, "blocked", f"perf failed: {last.strip()}", "try `perf stat true` by hand")

    def _no_tracepoints(self, said: str, machine: Machine) -> Check:
        unknown = re.search(_NO_CALL, said)
        if unknown:
            return Check(
                self.use, "missing", f"this kernel can't count the call {unknown[1]}", "leave it out of `events`"
            )
        if not machine.is_root:
            why = "only root may read the kernel's tracepoints, by which perf counts system calls"
            return Check(self.use, "blocked", why, "run profrun as root, or use strace, which needs no such right")
        why = "the kernel's tracepoints can't be read: tracefs is not mounted, or the kernel was built without"
        inside = ", in a container started with --privileged" if machine.in_container() else ""
        return Check(self.use, "missing", why, f"mount -t tracefs nodev /sys/kernel/tracing{inside}")

    def _counted(self) -> tuple[str, ...]:
        if self.mode == "syscalls":  # each kind more would make perf's end take longer
            return ("task-clock", _ALL_CALLS, *map(syscalls.tracepoint, self.events))
        return self.events or (SOFTWARE + HARDWARE if self.mode == "stat" else ("cpu-clock",))

    def _tracepoints(self) -> tuple[str, ...]:
        """The calls one by one: of the usual ones those that this kernel has, as far as it says."""
        here = {f"syscalls:{name}" for place in _TRACEFS for name in process.names_in(f"{place}/events/syscalls")}
        usual = (name for name in map(syscalls.tracepoint, syscalls.USUAL) if not here or name in here)
        return self._counted() if self.events else (*self._counted(), *usual)

    def launch(self, job: Job) -> Launch:
        return {"stat": self._stat, "syscalls": self._syscalls, "record": self._record}[self.mode](job)

    def _syscalls(self, job: Job) -> Launch:
        """One perf for each family, as its counters don't tell processes apart."""
        groups, notes = attached.groups(job.attached)
        parts = {f"syscalls.{lead}.csv": members for lead, members in groups.items()} or {"syscalls.csv": job.attached}
        events = self._tracepoints()
        if max(map(_threads, parts.values())) * len(events) > _descriptors():
            events = events[:2]
            notes += ("so many threads run that there is no descriptor for each call: only the total was counted",)
        argv = (*_perf(job.tool), "stat", "-x;", "-D", "1", "-e", ",".join(events))
        return Launch(
            beside=tuple(
                self._beside((*argv, "-o", f"{job.dir}/{name}"), job, [m.pid for m in members] if groups else None)
                for name, members in parts.items()
            ),
            artifacts=(
                Expect("syscalls", "syscalls*.csv", "perf-stat"),
                Expect("log", "*.log", "text", required=False),
            ),
            signs=_signs(job),
            notes=notes,
        )

    def _stat(self, job: Job) -> Launch:
        argv = (*_perf(job.tool), "stat", "-x;", "-D", "1", "-e", ",".join(self._counted()))
        return Launch(
            beside=(self._beside((*argv, "-o", f"{job.dir}/counters.csv"), job),),
            artifacts=(Expect("counters", "counters.csv", "perf-stat"), Expect("log", "*.log", "text", required=False)),
            signs=_signs(job),
        )

    def _record(self, job: Job) -> Launch:
        argv = (*_perf(job.tool), "record", "-D", "1", *self._sampling(), "-o", f"{job.dir}/perf.data")
        beside = replace(
            self._beside(argv, job), size_cap_bytes=self.size_cap, size_path="perf.data", time_cap_s=self.time_cap
        )
        stacks = self.call_graph == "dwarf"  # copies of the stack may hold what lies at its top: the environment
        return Launch(
            beside=(beside,),
            after=(After(self._script(job), "script.txt", needs="perf.data"),),
            artifacts=(
                Expect("script", "script.txt", "perf-script", derived_from="data"),
                Expect("data", "perf.data", "perf-data", required=False, holds_env=stacks),
                Expect("log", "*.log", "text", required=False),
            ),
            signs=_signs(job),
        )

    def _sampling(self) -> tuple[str, ...]:
        """No copies of programs go to ~/.debug (-N); the clock is the one that has an epoch in the file's header."""
        event = ("-e", self.events[0]) if self.events else ()
        size = f",{-(-self.stack_size // 8) * 8}" if self.call_graph == "dwarf" else ""
        graph = ("--call-graph", self.call_graph + size) if self.call_graph != "none" else ()
        return ("-N", "-k", "CLOCK_MONOTONIC", "-F", f"{self.rate:.0f}", *event, *graph)

    def _script(self, job: Job) -> tuple[str, ...]:
        """perf.data as text, so that nobody needs perf, this machine or its programs again. Inlined functions are left
        out: perf asks addr2line for each address (4 s for each sample of PyTorch, perf 6.1)."""
        known = {"inline": "--no-inline", "lost": "--show-lost-events", "ns": "--ns"}
        options = " ".join(option for feature, option in known.items() if feature in job.tool.features)
        fields = "comm,pid,tid,time,event,period,ip,sym,dso"
        script = f'"$@" script --header {options} --max-stack {_DEEPEST} -F {fields} -i perf.data'
        return ("sh", "-c", f"{script} | head -c {self.size_cap} >script.txt", "sh", *_perf(job.tool))

    def _beside(self, argv: Sequence[str], job: Job, pids: Sequence[int] | None = None) -> Beside:
        """`pids`: some of the processes; None: all."""
        when: When = "window" if job.window else "start" if job.pids else "gate"
        said = _version(job.tool) >= _SAYS_ENABLED
        return Beside(
            (*argv, "-p", "{pids}" if pids is None else ",".join(map(str, pids))),
            when,
            ready="says" if said else "fds",
            ready_value="Events enabled" if said else "",
            grace_s=self.flush,
        )

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        if self.mode == "syscalls":
            return _parse_syscalls(capture)
        role = "counters" if self.mode == "stat" else "script"
        path = capture.path(role)
        if path is None:
            raise ParseError(f"perf left no {role}")
        return self._parse_stat(path, capture) if self.mode == "stat" else self._parse_record(path, capture)

    def tells(self, capture: Capture) -> Mapping[str, Any]:
        """How many system calls a second the busiest family makes: what each costs under strace is known."""
        rates = [part.per_s for part in _Calls.of(capture) if part.per_s is not None]
        return {"syscalls_per_s": max(rates)} if rates else {}

    def _parse_stat(self, path: Path, capture: Capture) -> Parsed:
        counters = perf.read_stat(path)
        if not counters:
            return Parsed((), (), "tool_failed", "perf was killed before it wrote its counters")
        counted_s = _counted_s(counters, capture)
        counters = [_utilisation(counter, counted_s) for counter in counters]
        notes = tuple(_gaps(counters))
        known = [counter for counter in counters if counter.value is not None]
        if not known:
            idle = any(counter.unknown == "not counted" for counter in counters)
            why = "the target was never on a processor while perf counted" if idle else notes[0]
            return Parsed((), notes, "empty" if idle else "tool_failed", why)
        return Parsed((perf.counters_table(counters),), notes, metrics=_metrics(counters, counted_s))

    def _parse_record(self, path: Path, capture: Capture) -> Parsed:
        script, said = perf.read_script(path), _said(capture)
        found = _SAMPLES.search(said)
        recorded = int(found[1]) if found else 0
        event = script.clock()
        if event is None:
            return _no_samples(script, recorded, capture)
        rate_hz = script.rate_hz or self.rate
        rows = script.rows(event, rate_hz)
        ranks = attached.ranks(capture.run.attached if capture.run else ())
        tables = tuple(make(rows, rate_hz).with_ranks(ranks) for make in (stacks_table, functions_table))
        seen_s = sum(row.weight_ns for row in rows) / 1e9
        notes = tuple(self._notes(script, event, rate_hz, seen_s, capture))
        damage = _damage(script, recorded, said)
        return Parsed(tables, notes, "degraded", damage) if damage else Parsed(tables, notes)

    def _notes(self, script: perf.Script, event: str, rate_hz: float, seen_s: float, capture: Capture) -> Iterator[str]:
        count, run = script.count(event), capture.run
        used_s = run.user_s + run.sys_s if run and run.user_s is not None and run.sys_s is not None else None
        of = "" if used_s is None else f"; the target used {show_duration(used_s)} in all"
        yield f"{count:,} samples at {rate_hz:g} Hz stand for {show_duration(seen_s)} on processors{of}"
        if perf.base_event(event) == "cpu-clock" and not self.events:
            yield "sampled by the kernel's clock (cpu-clock): this machine counts no cycles, as most virtual ones"
        if "u" in event.partition(":")[2]:
            yield "user mode only: time in the kernel counts for nothing here"
        rootless = script.rootless(event) / count
        if self.call_graph != "none" and rootless > ROOTLESS:
            advice = "use call_graph: dwarf" if self.call_graph != "dwarf" else "set a larger stack_size"
            yield f"{100 * rootless:.0f} % of the stacks lack their beginning, the outermost callers: {advice}"
        if script.dropped:
            yield f"{script.dropped} lines of perf script could not be read"


# ---------------------------------------------------------------- starting perf


def _perf(tool: Tool) -> tuple[str, ...]:
    """perf as it is everywhere: numbers with a point, nobody's own settings, no downloads of debug symbols."""
    return ("env", "LC_ALL=C", "PERF_CONFIG=/dev/null", "DEBUGINFOD_URLS=", tool.path or "perf")


def _version(tool: Tool) -> tuple[int, ...]:
    return tuple(int(part) for part in (tool.version or "0").split("."))


def _rows(said: str) -> str:
    """The lines with counters, without what perf says beside them."""
    return "\n".join(line for line in said.splitlines() if line.count(";") >= 4)


def _no_perf(path: str) -> Check:
    """Debian's and Ubuntu's perf is a script that looks for the perf of the running kernel; it has found none."""
    said = process.ask([path, "--version"])
    package = _PACKAGE.search(said.stdout + said.stderr)
    if not package:
        return Check("perf", "missing", f"{path} does not say its version: it is no perf that works", _INSTALL)
    others = sorted(str(place) for place in Path("/usr/lib").glob("linux-tools*/**/perf"))
    other = f", or write `tools: {{perf: {others[-1]}}}`: another kernel's works as well" if others else ""
    what = f"{path} has found no perf for the running kernel"
    return Check("perf", "missing", what, f"sudo apt-get install {package[0]}{other}")


def _fix(machine: Machine) -> str:
    container = machine.in_container()
    if not machine.is_root and (machine.perf_event_paranoid() or 0) > 1:
        return f"sudo sysctl kernel.perf_event_paranoid=1{' on the host' if container else ''}"
    if container:
        return f"start the container ({container}) {_CONTAINER}"
    return "run profrun outside the sandbox that filters perf_event_open (seccomp)"


def _signs(job: Job) -> tuple[Sign, ...]:
    """What perf's messages mean when it has left no data, the most telling first."""
    return (
        Sign(_NO_BRANCHES, "tool_failed", "this processor records no branches: use call_graph: dwarf"),
        Sign(_UNKNOWN_EVENT, "tool_failed", "perf does not know the event {0}: see `perf list`"),
        Sign(_UNSUPPORTED, "tool_failed", "this machine can't count the event {0}"),
        Sign(
            r"No such process|Problems finding threads",
            "empty",
            "the target had ended before perf could attach to it",
        ),
        Sign(_REFUSED, "blocked", f"perf may not look at the target: {_advice(job)}"),
        Sign(r"No space left on device", "tool_failed", "perf could not write its data: the disk is full"),
        Sign(r"(?m)^(?:Error|ERROR): *\n?(.+)", "tool_failed", "perf: {0}"),
    )


def _advice(job: Job) -> str:
    if job.pids and os.geteuid() == 0:
        return f"start the container {_CONTAINER}"
    if job.pids:
        return "run profrun as the user who owns it, or as root"
    if job.facts.get("container"):
        return f"start the container {_CONTAINER}"
    level = job.facts.get("perf_event_paranoid")
    return f"sudo sysctl kernel.perf_event_paranoid=1{'' if level is None else f' (it is {level})'}"


def _threads(processes: Sequence[Attached]) -> int:
    return sum(len(process.names_in(f"/proc/{one.pid}/task")) for one in processes)


def _descriptors() -> int:
    """How many events one perf may open: it raises its own limit as far as it may (tools/perf/util/rlimit.c)."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return (1 << 20 if most == resource.RLIM_INFINITY else most) - SPARE_DESCRIPTORS


# ---------------------------------------------------------------- judging


def _counted_s(counters: Sequence[perf.Counter], capture: Capture) -> float | None:
    """How long perf counted. It may have begun after the collector (attached to what runs already), and ends up to a
    second after the target: of its own time and the recording's, the shorter is right."""
    watched_s = None
    if capture.started_ns is not None and capture.ended_ns is not None and capture.ended_ns > capture.started_ns:
        watched_s = (capture.ended_ns - capture.started_ns) / 1e9
    for counter in counters:
        used = counter.metric if counter.metric_unit == _CPUS and counter.unit == "msec" else None
        if counter.value and used and used >= 0.05:  # it has three decimals
            return min(counter.value / 1e3 / used, watched_s or math.inf)
    return watched_s


def _utilisation(counter: perf.Counter, counted_s: float | None) -> perf.Counter:
    """The same with the processors that were used while perf counted."""
    if counter.metric_unit != _CPUS or counter.value is None or counter.unit != "msec":
        return counter
    if not counted_s:
        return counter._replace(metric=None, metric_unit=None)
    return counter._replace(metric=round(counter.value / 1e3 / counted_s, 3))


def _gaps(counters: Sequence[perf.Counter]) -> Iterator[str]:
    """What could not be counted, or not all the time."""
    for why, words in (
        ("not supported", "this machine can't count {}"),
        ("not counted", "unknown, as never on a processor while perf counted: {}"),
        (perf.USER_ONLY, "unknown, as perf could look at user mode only: {}"),
        ("not printed", "perf printed no number for {}"),
    ):
        names = ", ".join(counter.event for counter in counters if counter.unknown == why)
        if names:
            yield words.format(names)
    shared = {c.event: c.running_pct for c in counters if c.running_pct is not None and c.running_pct < 99.5}
    if shared:
        least = min(shared.values())
        yield (
            f"more events than counters: {', '.join(shared)} were counted for as little as "
            f"{least:.0f} % of the time and scaled up; ask for fewer events at a time"
        )


def _metrics(counters: Sequence[perf.Counter], counted_s: float | None) -> dict[str, Metric]:
    value = {perf.base_event(c.event): c.value for c in counters if c.value is not None}
    busy_ms, switches = value.get("task-clock"), value.get("context-switches")
    cycles, instructions = value.get("cycles"), value.get("instructions")
    found: dict[str, Metric] = {}
    if counted_s and busy_ms is not None:
        found["cpus_utilized"] = Metric(busy_ms / 1e3 / counted_s, "CPUs", n=1)
    if counted_s and switches is not None:
        found["context_switches_per_s"] = Metric(switches / counted_s, "1/s", n=1)
    if cycles and instructions is not None:
        found["instructions_per_cycle"] = Metric(instructions / cycles, None, n=1)
    return found


@dataclass(frozen=True)
class _Calls:
    """The system calls of one family. `lead`: its first process; None where all is one family."""

    lead: int | None
    counts: Mapping[str, int]
    total: int | None
    counted_s: float | None

    @classmethod
    def of(cls, capture: Capture) -> list[_Calls]:
        """Raises ParseError when a file is none of perf's."""
        return [cls._read(path, capture) for path in capture.paths("syscalls")]

    @classmethod
    def _read(cls, path: Path, capture: Capture) -> _Calls:
        counters = perf.read_stat(path)
        known = {counter.event: round(counter.value) for counter in counters if counter.value is not None}
        by_name = {syscalls.of_tracepoint(event): count for event, count in known.items()}
        lead, counts = path.name.split(".")[1], {name: count for name, count in by_name.items() if name and count}
        total = known.get(_ALL_CALLS)
        return cls(
            int(lead) if lead.isdecimal() else None,
            counts,
            None if total is None else max(total, sum(counts.values())),  # they are read one after the other
            _counted_s(counters, capture),
        )

    @property
    def per_s(self) -> float | None:
        return self.total / self.counted_s if self.total is not None and self.counted_s else None

    def table(self, ranks: Mapping[int, int]) -> Table:
        """The table `syscalls`, without what counting can't tell: errors and times."""
        rows = [
            (self.lead, None, name, syscalls.syscall_class(name), count, *[None] * 6)
            for name, count in sorted(self.counts.items(), key=lambda item: -item[1])
        ]
        return Table.of("syscalls", rows).with_ranks(ranks)


def _parse_syscalls(capture: Capture) -> Parsed:
    parts, run = _Calls.of(capture), capture.run
    totals = [part.total for part in parts if part.total is not None]
    if not sum(totals):
        what = "made no system call" if totals else "was never on a processor"
        return Parsed((), (), "empty", f"the target {what} while perf counted")
    ranks = attached.ranks(run.attached if run else ())
    tables = tuple(part.table(ranks) for part in parts if part.counts)
    rates = [part.per_s for part in parts if part.per_s is not None]
    metrics = {"syscalls_per_s": Metric(sum(rates), "1/s", n=len(rates))} if rates else {}
    named = sum(sum(part.counts.values()) for part in parts)
    rate = f", {sum(rates):,.0f} a second" if rates else ""
    notes = [f"{sum(totals):,} system calls{rate}, of which {named:,} were counted by name"]
    idle = len(parts) - len(totals)
    notes += [f"{idle} groups of processes were never on a processor"] if idle else []
    return Parsed(tables, tuple(notes), metrics=metrics)


def _said(capture: Capture) -> str:
    """What perf has printed."""
    return "".join(map(logs.read, capture.paths("log")))


def _damage(script: perf.Script, recorded: int, said: str) -> str | None:
    """What part of the samples is missing, and why; None where that is next to nothing."""
    if "failed to write perf data" in said:
        return "perf could not write all its data: No space left on device"
    kept = script.count()
    wanted = max(kept, recorded) + script.lost
    if kept >= COMPLETE * wanted:
        return None
    share = f"{kept:,} of {wanted:,} samples ({100 * kept / wanted:.0f} %) are there"
    if script.lost:
        return f"{share}: perf was too slow for {script.lost:,}; ask for a lower rate or a smaller stack_size"
    return f"{share}: the text of perf.data is cut; ask for a lower rate or set a larger size_cap"


def _no_samples(script: perf.Script, recorded: int, capture: Capture) -> Parsed:
    others = script.events()
    if others:
        return Parsed((), (), "tool_failed", f"sampled {', '.join(others)}, none of which stands for time")
    if any(artifact.truncated for artifact in capture.artifacts):
        return Parsed((), (), "tool_failed", "size_cap or time_cap had stopped perf before it took a sample")
    if script.lost:
        return Parsed((), (), "tool_failed", f"perf lost all {script.lost:,} samples: ask for a lower rate")
    if recorded:
        return Parsed((), (), "tool_failed", f"perf script printed none of the {recorded:,} samples of perf.data")
    used = ""
    if capture.run and capture.run.user_s is not None and capture.run.sys_s is not None:
        used = f": the target was on a processor for {show_duration(capture.run.user_s + capture.run.sys_s)}"
    return Parsed((), (), "empty", f"no sample was taken{used}")
