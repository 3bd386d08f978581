"""strace: which system calls a process tree makes, how long they take, how many fail, and on which files.

How it is put around or beside the target follows from what strace leaves behind. A target that was started under
`--seccomp-bpf` stops at the chosen calls only (4 threads of 40,000 writes under %file: 0.16 s instead of 21 s), but it
can't be let go again: after strace is gone every chosen call fails with ENOSYS (strace 6.1), or the target is killed
(6.6 and later). So the filter is used only where strace stays to the end and the bare run left no process behind; else
strace attaches to the target at its gate and can be taken away at any time, unharmed.

Of processes that run already each family gets a strace of its own, as a summary doesn't tell processes apart. One that
was stopped before stays so: strace seizes it, waits beside it, and lets go of it still stopped (strace 6.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from pydantic import Field, field_validator, model_validator

from orchestrator import attached
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.model import Attached, Beside, Capture, Check, Expect, Job, Launch, Sign, ToolProbe, When, Wrap
from orchestrator.units import Duration, Size, show_duration

if TYPE_CHECKING:
    from orchestrator.formats.strace import Trace
    from orchestrator.machine import Machine

Class = Literal["file", "network", "process", "memory", "desc", "futex"]

COST_S = {"summary": 20e-6, "trace": 40e-6}
"""What strace adds to one call, as a first estimate: 20,000 calls of write or close by one thread on two idle cores
(x86-64 VM, strace 6.1), traced minus bare, divided by their number: 18 to 23 us counted, 31 to 45 us logged; up to
twice that on a busy machine."""
WORST_SLOWDOWN = 10.0
"""More than this can't be told from the share of strace in the wall time."""
READABLE = 0.99
"""A log is degraded when less than this share of it can be read, dropped lines counted as calls."""

_EXPRESSIONS: dict[str, str] = {**{name: f"%{name}" for name in get_args(Class)}, "futex": "/^futex"}
"""A class as strace's `-e trace` takes it. It has none for futex: the names are meant that begin so."""
_COLUMNS = "name,time-percent,total-time,min-time,max-time,avg-time,calls,errors"
_ALWAYS = "execve"
"""Traced with every choice of classes where profrun starts the target, so that a summary without it is a lost one."""
_FIRST_OF_A_THREAD = "set_robust_list"
"""A new thread under seccomp-bpf stops at every call until its first chosen one (strace 6.1); this is a first call."""

_NOTHING = "no system call of the chosen classes ended while strace watched"
_SIGNS = (
    Sign(
        r"ptrace\(PTRACE_(?:SEIZE|ATTACH), (\d+)\): Operation not permitted",
        "blocked",
        "strace may not trace process {0}: another tool traces it already, or it belongs to another user",
    ),
    Sign(r"PTRACE_\w+.*: Operation not permitted", "blocked", "strace may not trace the target"),
    Sign(
        r"ptrace\(PTRACE_(?:SEIZE|ATTACH), (\d+)\): No such process",
        "empty",
        "process {0} had ended before strace could attach to it",
    ),
    Sign(r"strace: (Can't .*|[Ii]nvalid .*|unrecognized .*|.*No space left on device)", "tool_failed", "strace: {0}"),
    Sign(r"Process \d+ detached", "empty", _NOTHING),
    Sign(
        r"Process \d+ attached[\s\S]*(?:killed after|processes of the tool were ended)",
        "tool_failed",
        "strace could not let go of the target and had to be killed: before 6.7 it hangs when a process is just being "
        "started (vfork); use a later one, or `mode: trace`, whose log survives that",
    ),
)


class Strace(Collector):
    """Counts system calls (`summary`), or records each one (`trace`), of the target and all its children."""

    use: Literal["strace"] = "strace"
    mode: Literal["summary", "trace"] = Field(
        "summary", description="summary: calls by count, errors and time; trace: each call, by thread and file"
    )
    classes: tuple[Class, ...] = Field(
        get_args(Class), min_length=1, description="which system calls; fewer classes slow the target down less"
    )
    time: Literal["wall", "system"] = Field(
        "wall", description="summary only: from entry to return, or the processor time inside the kernel"
    )
    size_cap: Size | None = Field(200 << 20, description="trace only: stop when the log has grown to this")
    time_cap: Duration | None = Field(300.0, description="trace only: stop after this long; the target goes on")
    strings: int = Field(32, ge=0, le=1 << 16, description="trace only: how much of a string argument is kept")
    events: int = Field(1000, ge=0, le=1 << 20, description="trace only: how many of the slowest calls are listed")
    max_slowdown: float | None = Field(
        5.0,
        gt=1,
        description="not run where it would make the program slower than this, going by the calls that an earlier perf "
        "with `mode: syscalls` has counted; null: run all the same; for a program that profrun starts only if set",
    )

    flush: Duration = Field(
        10.0, description="how long strace may take to write its data after the target has ended: it needs milliseconds"
    )

    probe: ClassVar[ToolProbe | None] = ToolProbe(
        "strace",
        version_args=("-V",),
        help_args=("-h",),
        features=(("seccomp", "--seccomp-bpf"), ("pgroup", r"-DD\b"), ("columns", r"-U COLUMNS|--summary-columns")),
        install="install strace 4.17 or later, such as `sudo apt-get install strace`",
    )
    claims: ClassVar[frozenset[str]] = frozenset({"ptrace"})
    capability: ClassVar[str | None] = "SYS_PTRACE"
    purpose: ClassVar[str] = "system calls by count, errors, time and class; with `mode: trace` by thread and file"
    slowdown: ClassVar[float] = 3.0

    @field_validator("classes")
    @classmethod
    def _once(cls, value: tuple[Class, ...]) -> tuple[Class, ...]:
        twice = sorted({name for name in value if value.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)} stands there twice")
        return value

    @model_validator(mode="after")
    def _possible(self) -> Strace:
        if self.mode == "trace" and self.time == "system":
            raise ValueError("a trace has wall times only: leave `time` out, or write `mode: summary`")
        return self

    def label(self) -> str:
        return self.use if self.mode == "summary" else f"{self.use}-{self.mode}"

    # ------------------------------------------------------------ before

    def checks(self, machine: Machine) -> list[Check]:
        found = super().checks(machine)
        permission = machine.ptrace()
        if self.tool(machine).path is None or permission.allowed:
            return found
        return [Check(self.use, "blocked", permission.why, permission.fix)]

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        traced = _traced(machine.attached)
        if traced and all(one.lead in traced for one in machine.attached):
            said, fix = attached.why_traced(next(iter(traced.values())))
            return Check(self.use, "blocked", said, fix)
        permission = machine.ptrace_of(one.pid for one in machine.attached)
        return None if permission.allowed else Check(self.use, "blocked", permission.why, permission.fix)

    def declines(self, facts: Mapping[str, Any], attaching: bool) -> str | None:
        rate = facts.get("syscalls_per_s")
        asked = attaching or "max_slowdown" in self.model_fields_set
        if rate is None or not asked or self.max_slowdown is None:
            return None
        slower = self._slowdown(rate)
        if slower <= self.max_slowdown:
            return None
        return (
            f"it would make the program about {slower:.1f} times as slow: perf has counted {rate:,.0f} system calls a "
            f"second; --set collectors.strace.max_slowdown=null runs it all the same"
        )

    def _slowdown(self, calls_per_s: float) -> float:
        """What to expect where a program makes so many calls a second undisturbed."""
        return 1 + calls_per_s * COST_S[self.mode]

    def launch(self, job: Job) -> Launch:
        """Around the target with a seccomp filter where that is safe, else beside it. Either way the target stays
        profrun's own child, and its exit status its own."""
        obstacle = self._no_filter(job)
        argv = (job.tool.path or "strace", *(("-DD",) if obstacle is None else ()), *self._options(job, obstacle))
        groups, notes = _groups(job.attached)
        parts = {self._file(lead): members for lead, members in groups.items()} or {self._file(): ()}
        besides = tuple(self._beside(argv, job, file, members) for file, members in parts.items())
        output = ("-o", f"{job.dir}/{self._file()}", "--")
        return Launch(
            wrap=Wrap((*argv, *output), order=80, keeps_child=True) if obstacle is None else None,
            beside=besides if obstacle is not None else (),
            artifacts=(
                Expect(self.mode, self._file("*") if groups else self._file(), f"strace-{self.mode}"),
                Expect("log", "*stderr.log", "text", required=False),
            ),
            signs=_SIGNS,
            notes=tuple(note for note in (obstacle, self._without_columns(job), self._foreseen(job), *notes) if note),
        )

    def _foreseen(self, job: Job) -> str:
        rate = job.facts.get("syscalls_per_s")
        if rate is None:
            return ""
        slower = f"about {self._slowdown(rate):.2f} times as slow was to be expected (estimate)"
        return f"perf had counted {rate:,.0f} system calls a second before: {slower}"

    def _no_filter(self, job: Job) -> str | None:
        """Why strace can't start the target under a seccomp filter; empty where that goes without saying, None where
        it can."""
        if job.pids or job.window or (self.mode == "trace" and (self.size_cap or self.time_cap)):
            return ""
        slower = "strace stops the target at every system call, not only at the chosen ones"
        if not {"seccomp", "pgroup"} <= job.tool.features:
            return f"{slower}: strace {job.tool.version or 'of this version'} lacks --seccomp-bpf or -DD"
        left = job.facts.get("leftovers")
        if left == 0:
            return None
        known = "no bare run has shown yet whether" if left is None else "the bare run has shown that"
        return f"{slower}: {known} the target leaves processes running, and such a filter can't be taken back"

    def _without_columns(self, job: Job) -> str:
        if self.mode == "trace" or "columns" in job.tool.features:
            return ""
        return f"strace {job.tool.version or 'of this version'} has no -U: shortest and longest times are unknown"

    def _beside(self, argv: tuple[str, ...], job: Job, file: str, members: Sequence[Attached]) -> Beside:
        """`members`: some of the processes; empty: all."""
        when: When = "window" if job.window else "start" if job.pids else "gate"
        pids = ",".join(str(one.pid) for one in members) or "{pids}"
        beside = Beside((*argv, "-o", f"{job.dir}/{file}", "-p", pids), when, ready="tracer", grace_s=self.flush)
        if self.mode == "summary":
            return beside
        return replace(beside, size_cap_bytes=self.size_cap, size_path=file, time_cap_s=self.time_cap)

    def _options(self, job: Job, obstacle: str | None) -> tuple[str, ...]:
        filtered = ("--seccomp-bpf",) if obstacle is None else ()
        calls = [_EXPRESSIONS[name] for name in self.classes]
        calls += [_ALWAYS] if not (job.pids or job.window) else []
        calls += [_FIRST_OF_A_THREAD] if filtered else []
        chosen = ("-f", *filtered, "-e", f"trace={','.join(calls)}")
        return (*chosen, *self._form(job))

    def _form(self, job: Job) -> tuple[str, ...]:
        if self.mode == "trace":
            return ("-ttt", "-T", "-yy", "-s", str(self.strings))
        wall = ("-w",) if self.time == "wall" else ()
        return ("-c", *wall, *(("-U", _COLUMNS) if "columns" in job.tool.features else ()))

    def expected_bytes(self) -> int:
        return self.size_cap or self.raw_bytes if self.mode == "trace" else self.raw_bytes

    def _file(self, lead: int | str | None = None) -> str:
        """`lead`: the first process of the family that it is of, where there are several."""
        stem, suffix = ("summary", "txt") if self.mode == "summary" else ("trace", "log")
        return f"{stem}.{suffix}" if lead is None else f"{stem}.{lead}.{suffix}"

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        paths = capture.paths(self.mode)
        if not paths:
            raise ParseError(f"strace left no {self._file()}")
        parts, lost = [], []
        for path in paths:
            try:
                parts.append(self._part(path, capture))
            except ParseError as error:  # the others may still tell something
                lost.append(error)
        if not parts:
            raise lost[0]
        return _together(parts, [*(str(error) for error in lost)])

    def _part(self, path: Path, capture: Capture) -> Parsed:
        """One file: of one family where there are several, else of all."""
        found = self._parse_summary(path, capture) if self.mode == "summary" else self._parse_trace(path, capture)
        word = path.name.split(".")[1]
        if not word.isdecimal():
            ranks = attached.ranks(_processes(capture))
            return replace(found, tables=tuple(table.with_ranks(ranks) for table in found.tables))
        return _of_family(found, int(word), _processes(capture))

    def _parse_summary(self, path: Path, capture: Capture) -> Parsed:
        from orchestrator.formats.strace import read_summary

        summary = read_summary(path, self.time)
        notes = self._pace(sum(summary.syscalls.columns["count"]), _watched_s(capture), capture)
        if summary.complete:
            return Parsed((summary.syscalls,), notes)
        return Parsed((summary.syscalls,), notes, "degraded", "the summary is cut: its total is missing or differs")

    def _parse_trace(self, path: Path, capture: Capture) -> Parsed:
        run = capture.run
        from orchestrator.formats.strace import read_trace

        known = {*([run.pid] if run and run.pid else []), *(one.pid for one in _processes(capture))}
        trace = read_trace(path, self.events, known)
        tables = (trace.syscalls, trace.paths, trace.events, trace.spans)
        span_s = (trace.last_ns - trace.first_ns) / 1e9 if trace.last_ns and trace.first_ns else _watched_s(capture)
        notes = (*self._pace(trace.calls, span_s, capture), *_unreturned(trace), *_left_out(trace))
        dropped = trace.syscalls.dropped
        if dropped > (1 - READABLE) * (trace.calls + dropped):
            reason = f"{dropped} lines could not be read, beside {trace.calls} calls that could"
            return Parsed(tables, notes, "degraded", reason, clock=trace.clock)
        return Parsed(tables, notes, clock=trace.clock) if trace.calls else Parsed((), notes, "empty", _NOTHING)

    def _pace(self, calls: int, span_s: float | None, capture: Capture) -> tuple[str, ...]:
        filtered = any("--seccomp-bpf" in argv for argv in capture.commands)
        return _pace(self.mode, calls, span_s, filtered or set(self.classes) == set(get_args(Class)))


# ---------------------------------------------------------------- families


def _traced(found: Iterable[Attached]) -> dict[int, Attached]:
    """By its first process, each family that can't be traced, with the process in it that has a tracer already."""
    return {one.lead: one for one in found if one.tracer_before}


def _groups(found: Sequence[Attached]) -> tuple[dict[int, tuple[Attached, ...]], tuple[str, ...]]:
    """The families to be traced one by one, and what is to be said of the others. Where all have a tracer already,
    strace itself shall say so."""
    groups, notes = attached.groups(found)
    traced = {lead: one for lead, one in _traced(found).items() if lead in groups}
    if len(traced) == len(groups):
        return groups, notes
    left_out = (
        f"{attached.whose(groups[lead][0])} was left out: {attached.why_traced(one)[0]}" for lead, one in traced.items()
    )
    return {lead: members for lead, members in groups.items() if lead not in traced}, (*notes, *left_out)


def _processes(capture: Capture) -> tuple[Attached, ...]:
    return capture.run.attached if capture.run else ()


def _of_family(found: Parsed, lead: int, processes: Iterable[Attached]) -> Parsed:
    """The same, with the family named: in each row by its rank, and by its first process where strace names none."""
    first = next((one for one in processes if one.pid == lead), None)
    name = attached.whose(first) if first else f"process {lead}"
    tables = []
    for table in found.tables:
        size, columns = len(table), dict(table.columns)
        if table.name == "syscalls" and columns["pid"].count(None) == size:
            columns["pid"] = [lead] * size
        rank = {"rank": [first.rank] * size} if first and first.rank is not None else {}
        tables.append(replace(table, columns={**rank, **columns}))
    return replace(
        found,
        tables=tuple(tables),
        notes=tuple(f"{name}: {note}" for note in found.notes),
        reason=f"{name}: {found.reason}" if found.reason else None,
    )


def _together(parts: Sequence[Parsed], lost: Sequence[str]) -> Parsed:
    """All families as one. One that made no call is no harm where another did."""
    with_data = [part for part in parts if part.tables]
    if not with_data:
        return parts[0]
    reasons = [*(part.reason for part in with_data if part.reason), *lost]
    return Parsed(
        tuple(table for part in with_data for table in part.tables),
        tuple(note for part in parts for note in part.notes),
        "degraded" if reasons else None,
        "; ".join(reasons) or None,
        clock=next((part.clock for part in with_data if part.clock), None),
    )


# ---------------------------------------------------------------- judging


def _watched_s(capture: Capture) -> float | None:
    """How long strace watched."""
    if capture.started_ns is not None and capture.ended_ns is not None:
        return (capture.ended_ns - capture.started_ns) / 1e9
    return capture.run.wall_s if capture.run else None


def _pace(mode: str, calls: int, span_s: float | None, all_seen: bool) -> tuple[str, ...]:
    """How many calls a second strace saw, and by how much it slowed the target down at least. The calls of all threads
    go through one strace, one after the other, so that calls x COST_S of the wall time is strace's. That says nothing
    where strace stopped the target at more calls than it counted."""
    if not calls or not span_s or span_s <= 0:
        return ()
    rate = f"{calls:,} system calls in {show_duration(span_s)}, {calls / span_s:,.0f} a second"
    if not all_seen:
        return (f"{rate}; strace stopped the target at all others as well, which may have slowed it down much more",)
    share = calls * COST_S[mode] / span_s
    slower = f"{1 / (1 - share):.2f}" if share < 1 - 1 / WORST_SLOWDOWN else f"{WORST_SLOWDOWN:.0f}"
    cost = f"at about {show_duration(COST_S[mode])} for each"
    return (f"{rate}; {cost}, strace made the target at least {slower} times as slow (estimate)",)


def _unreturned(trace: Trace) -> tuple[str, ...]:
    if not trace.unreturned:
        return ()
    return (f"{trace.unreturned} calls had not returned when the log or their thread ended; the tables leave them out",)


def _left_out(trace: Trace) -> tuple[str, ...]:
    if not trace.spans.dropped:
        return ()
    return (f"of the calls one by one (syscall_spans) the {len(trace.spans):,} longest are kept; all are counted",)
