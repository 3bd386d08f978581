"""py-spy: where the Python code of a process tree spends its time, by sampling it from outside.

In a process that was stopped already (state T) py-spy finds no Python at all while it wants to stop it for each sample;
`--nonblocking` reads it, and either way it stays stopped (py-spy 0.4.3, Linux 6.18)."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from orchestrator import attached
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.formats import logs, pyspy
from orchestrator.formats.stacks import Row, Spans, functions_table, stacks_table
from orchestrator.model import Beside, Capture, Check, Clock, Expect, Job, Launch, Sign, Status, ToolProbe, Trust, When
from orchestrator.standalone import lives
from orchestrator.units import Duration, Frequency, frequency, show_duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine
    from orchestrator.tables import Table

ENOUGH = 0.8
"""A capture with less than this share of the samples asked for is degraded."""
HELD_UP = 0.05
"""Further behind than this share of the run, its samples are those of a program that was held up."""
WAITING = 0.1
"""A target that used less than this share of its time on processors was mostly waiting."""
_SIGMA = 3
"""py-spy waits a random time between samples, so their number is random too: so far below the mean it is no chance."""

_SAMPLING = "Sampling process"
"""What py-spy says once it has attached; a Python that waits for it in its start-up then goes on."""
_OUR_WAIT = "wait_until_tools_are_ready ("
"""The function of ours (inject/bell.py) in which a process waits for its tools: no time of the program."""
_NATIVE_BELOW = 6
"""So many native frames may lie below it."""
_REPLACED = "none of {0} samples could be read: the process has replaced its program (exec)"


class PySpy(Collector):
    """Samples every Python process of the target with py-spy, attached from outside: the target stays its own master.

    The main capture is a chrome trace with idle threads, from which all else is derived. With `idle: false` py-spy's
    trace has wrong times, so raw stacks are taken instead: those of threads on a processor."""

    use: Literal["py-spy"] = "py-spy"
    rate: Frequency = Field(100.0, description="samples a second of each thread, a whole number")
    subprocesses: bool = Field(True, description="also the Python processes that the target starts")
    native: bool = Field(False, description="also the frames of compiled extensions; slower")
    nonblocking: bool = Field(False, description="don't stop the target for a sample: less overhead, some wrong stacks")
    idle: bool = Field(True, description="also threads that wait")
    threads: bool = Field(True, description="tell the threads apart")
    gil: bool = Field(False, description="a second capture beside: which thread holds Python's lock (GIL), where")
    duration: Duration | None = Field(None, description="stop sampling after so many seconds; the target goes on")

    probe: ClassVar[ToolProbe | None] = ToolProbe(
        "py-spy",
        help_args=("record", "--help"),
        features=(("chrometrace", "chrometrace"), ("nonblocking", "--nonblocking"), ("gil", "--gil")),
        install="pip install py-spy",
    )
    claims: ClassVar[frozenset[str]] = frozenset({"ptrace"})
    capability: ClassVar[str | None] = "SYS_PTRACE"
    purpose: ClassVar[str] = "where Python code spends its time, waiting included, by function, thread and process"
    slowdown: ClassVar[float] = 1.05
    raw_bytes: ClassVar[int] = 4 << 20

    @field_validator("rate", "duration")
    @classmethod
    def _whole(cls, value: float | None) -> float | None:
        if value is not None and (value < 1 or value != int(value)):
            raise ValueError(f"py-spy takes whole numbers only: write {math.ceil(value) or 1}")
        return value

    @model_validator(mode="after")
    def _possible(self) -> PySpy:
        if self.native and self.nonblocking:
            raise ValueError(
                "native and nonblocking exclude each other: native stacks are read while the target stands"
            )
        return self

    # ------------------------------------------------------------ before

    def held(self) -> frozenset[str]:
        """Beside strace it does not stop the target, which for native stacks it has to."""
        return self.claims if self.native else frozenset()

    def needed(self) -> frozenset[str]:
        return frozenset() if self.nonblocking else self.claims

    def does_without(self, claim: str) -> str | None:
        if claim != "ptrace":
            return None
        return "nonblocking: true, native: false" if self.native else "nonblocking: true"

    def checks(self, machine: Machine) -> list[Check]:
        found = super().checks(machine)
        tool = self.tool(machine)
        if tool.path is None:
            return found
        if "chrometrace" not in tool.features:
            wanted = f"py-spy {tool.version or '(version unknown)'} has no `--format chrometrace`"
            silent = f"{tool.path} does not tell what it can: {tool.trouble}"
            fix = f"try `{tool.path} --version`" if tool.trouble else "pip install --upgrade py-spy"
            return [Check(self.use, "missing", silent if tool.trouble else wanted, fix)]
        permission = machine.ptrace()
        if not permission.allowed:
            return [Check(self.use, "warn" if self.nonblocking else "blocked", permission.why, permission.fix)]
        return found

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        pythons = [one for one in machine.attached if one.is_top_python]
        if self.native and pythons and all(one.tracer_before for one in pythons):
            said, fix = attached.why_traced(pythons[0])
            return Check(self.use, "blocked", said, f"{fix}; or leave `native` out to see its Python stacks")
        permission = machine.ptrace_of([one.pid for one in pythons] or machine.target_pids)
        return None if permission.allowed else Check(self.use, "blocked", permission.why, permission.fix)

    def launch(self, job: Job) -> Launch:
        """Attaches to each Python process as it appears: a target held before its exec has none yet, and what runs
        already may be a launcher that starts others later."""
        when: When = "window" if job.window and not job.pids else "python"
        why_spared = None if self.nonblocking else self._must_not_stop(job)
        return Launch(
            beside=tuple(
                Beside(argv, when, "says", _SAMPLING) if "record" in argv else Beside(argv, when, name="lives")
                for argv in self._argvs(job, "{python}" if when == "window" else "{pid}")
            ),
            artifacts=(
                Expect("profile", "profile.*", "chrometrace" if self.idle else "folded"),
                Expect("gil", "gil.*", "folded", required=False),
                Expect("log", "*.log", "text", required=False),
            ),
            signs=(*(_TRACED if self.native or not (self.nonblocking or why_spared) else ()), *_signs(when, job)),
            notes=tuple(self._notes_before(job, why_spared)),
        )

    def _argvs(self, job: Job, pid: str) -> Iterator[tuple[str, ...]]:
        """py-spy, what tells when threads have ended, and the second py-spy where it is wanted."""
        native = ("--native",) if self.native else ()
        stop_nobody = self.nonblocking or (not self.native and self._must_not_stop(job))
        nonblocking = ("--nonblocking",) if stop_nobody else ()
        if self.idle:
            form = ("--format", "chrometrace", "--idle", "--output", f"{job.dir}/profile.{{n}}.{{who}}chrometrace.json")
        else:
            form = ("--format", "raw", "--full-filenames", "--output", f"{job.dir}/profile.{{n}}.{{who}}raw.txt")
        yield (*self._record(job, pid), *native, *nonblocking, *form)
        yield (sys.executable, "-I", "-S", lives.__file__, pid)
        if self.gil:
            form = ("--format", "raw", "--full-filenames", "--output", f"{job.dir}/gil.{{n}}.{{who}}raw.txt")
            yield (*self._record(job, pid), "--gil", "--nonblocking", *form)

    def _record(self, job: Job, pid: str) -> tuple[str, ...]:
        spy = ("env", f"RUST_LOG={pyspy.VERBOSE}", job.tool.path or "py-spy", "record", "--pid", pid)
        tree = (*(("--subprocesses",) if self.subprocesses else ()), *(("--threads",) if self.threads else ()))
        limit = ("--duration", f"{self.duration:.0f}") if self.duration else ()
        return (*spy, "--rate", f"{self.rate:.0f}", *tree, *limit)

    @staticmethod
    def _must_not_stop(job: Job) -> str | None:
        """Why the target can't be stopped for a sample; py-spy can still read its memory, though no native stacks.

        A process has one tracer at a time."""
        if any(name.startswith("strace") for name in job.partners):
            return "strace holds it"
        if traced := [str(one.pid) for one in job.attached if one.is_python and one.tracer_before]:
            return f"another program traces process {', '.join(traced)}"
        stopped = [str(one.pid) for one in job.attached if one.is_python and one.state_before in attached.STOPPED]
        return f"process {', '.join(stopped)} was stopped already" if stopped else None

    def _notes_before(self, job: Job, why_spared: str | None) -> Iterator[str]:
        if why_spared and not self.native:
            yield f"sampled without stopping the target, as {why_spared}: some stacks may be wrong"
        elif why_spared and job.attached:
            yield f"{why_spared}: native stacks of it can't be read; leave `native` out to see its Python stacks"
        for one in job.attached:
            if one.wrapper and one.is_python:
                yield f"process {one.pid} ({one.wrapper}) only starts the program and was not sampled"

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        options = {"rate": self.rate, "idle": self.idle, **capture.options}
        rate_hz, idle = frequency(options["rate"]), bool(options["idle"])
        ranks = capture.run.rank_by_pid() if capture.run else {}
        reading = _Reading(rate_hz, _Logs.read(capture.paths("log")), dict(ranks))
        reading.take(capture.paths("profile"), "wall" if idle else "cpu")
        main = tuple(reading.rows)
        reading.take(capture.paths("gil"), "gil")
        quality = _Quality(reading, main, idle, capture)
        status, reason = quality.verdict()
        rows = reading.rows
        makers = (stacks_table, functions_table) if rows else ()
        tables = [make(rows, rate_hz) for make in makers]
        tables += [reading.spans_table()] if reading.spans else []
        ranked = tuple(table.with_ranks(reading.ranks) for table in tables)
        return Parsed(ranked, tuple(quality.notes()), status, reason, quality.trust(), clock=reading.clock())


_TRACED = (
    Sign(
        r"is traced by \d+ \((.+)\)",
        "blocked",
        "{0} traces the target, and a process has one tracer at a time: set nonblocking: true, or leave {0} out",
    ),
)
"""Why a py-spy that stops the target for each sample has left no file, before all other reasons."""


def _signs(when: When, job: Job) -> tuple[Sign, ...]:
    """What py-spy's messages mean when it has left no file, the most telling first."""
    version = job.tool.version or "of this version"
    blind = f"py-spy {version} does not know this Python: it reads CPython, and a new one only after an update"
    none = "no Python process was found in the target"
    ran = "" if job.duration_s is None else f"target ran {show_duration(job.duration_s)}: "
    gone = f"{ran}it had ended before py-spy could attach"
    known = when == "python"  # profrun itself has seen that it is Python
    is_python = Path(job.target.exe).name.startswith("python")
    return (
        Sign(
            "can't be looked at: Permission denied|Permission Denied: Try running again",
            "blocked",
            f"not allowed to look into the target: {_fix(job, other_user=True)}",
        ),
        Sign("Failed to suspend process", "blocked", f"not allowed to trace the target: {_fix(job, other_user=False)}"),
        Sign(r"Unsupported version of Python: (\S+)", "tool_failed", f"{blind} (Python {{0}})"),
        Sign("Failed to find python version", "tool_failed" if known else "empty", blind if known else none),
        Sign("Failed to get process executable name|No python processes found", "empty", gone),
        Sign(
            "Samples: 0 Errors: 0", "empty", "no thread was on a processor at a sample: use idle: true to see the waits"
        ),
        Sign(r"Samples: 0 Errors: (\d+)", "tool_failed", _REPLACED),
        Sign(r"(?m)^error: (.+)", "tool_failed", f"py-spy {version} refused its options: {{0}}"),
        Sign(r"(?m)^Error: (.+)", "tool_failed", "py-spy failed: {0}"),
        Sign(r"\A\s*asked to end(?![\s\S]*had not attached)", "empty", gone if is_python else none),
    )


def _fix(job: Job, other_user: bool) -> str:
    """The one step that applies here; root is not told to become root."""
    root, yama = os.geteuid() == 0, job.facts.get("yama_ptrace_scope") or 0
    if root or job.facts.get("container"):
        return "start the container with --cap-add SYS_PTRACE, or leave the sandbox that filters ptrace"
    if other_user:
        return "run profrun as the user who owns it, or as root"
    if yama and job.pids:
        return "run `sudo sysctl kernel.yama.ptrace_scope=0`, or profrun as root, or let profrun start it"
    return "run profrun as root"


# ---------------------------------------------------------------- reading


def _serial(path: Path) -> int:
    """The number of the helper that left a file: 3 of profile.3.chrometrace.json and 3.stderr.log, 0 of stderr.log."""
    found = re.search(r"\d+", path.name)
    return int(found[0]) if found else 0


@dataclass(frozen=True)
class _Logs:
    """What py-spy said, by serial number, and what was seen of the lives of the target's threads."""

    spies: Mapping[int, pyspy.Log]
    died_ns: Mapping[tuple[int, int], int]
    """By (pid, tid), ns since the Unix epoch."""
    cpu_ns: int | None
    """CPU time of the watched processes, and how long they were seen, in sum."""
    seen_ns: int

    @classmethod
    def read(cls, paths: Iterable[Path]) -> _Logs:
        texts: dict[int, str] = {}
        for path in paths:
            texts[_serial(path)] = texts.get(_serial(path), "") + logs.read(path)
        told = "".join(texts.values())
        died = re.findall(r"^died (\d+) (\d+) (\d+)$", told, re.M)
        cpu = re.findall(r"^cpu \d+ (\d+) (\d+)$", told, re.M)
        return cls(
            spies={serial: pyspy.read_log(text) for serial, text in texts.items()},
            died_ns={(int(pid), int(tid)): int(ns) for pid, tid, ns in died},
            cpu_ns=sum(int(used) for used, _ in cpu) if cpu else None,
            seen_ns=sum(int(seen) for _, seen in cpu),
        )

    def ended_ns(self, serial: int) -> dict[tuple[int, int], int]:
        """When threads and (as thread 0) processes ended, in ns since the start of that py-spy's trace."""
        spy = self.spies.get(serial, pyspy.Log())
        if spy.started_ns is None:
            return {}
        ends = {**self.died_ns, **{(pid, 0): ns for pid, ns in spy.ended_ns.items()}}
        return {thread: ns - spy.started_ns for thread, ns in ends.items()}


@dataclass
class _Reading:
    """The rows of a capture's files, and what was wrong with them."""

    rate_hz: float
    logs: _Logs
    ranks: dict[int, int] = field(default_factory=dict)
    """The rank by pid; grows by those whom only the samples have shown."""
    rows: list[Row] = field(default_factory=list)
    damages: list[str] = field(default_factory=list)
    spans: Spans = field(default_factory=Spans)
    outside: set[tuple[int | None, int | None]] = field(default_factory=set)
    """The threads, as (pid, tid), that were seen without any frame of Python, such as autograd's."""

    def take(self, paths: Iterable[Path], kind: str) -> None:
        """Adds the files of one kind. One that can't be read is a damage, as the others may still tell something."""
        period_ns = round(1e9 / self.rate_hz)
        for path in paths:
            try:
                profile = pyspy.read(path, period_ns, self.logs.ended_ns(_serial(path)))
            except ParseError as error:
                self.damages.append(str(error))
                continue
            self.damages += [profile.damage] if profile.damage else []
            scale_ns = 1 if path.suffix == ".json" else period_ns
            names = pyspy.thread_names(stack.thread for stack in profile.stacks)
            self._inherit({thread.pid for thread, _, _ in profile.stacks if thread.pid is not None})
            spy = self.logs.spies.get(_serial(path), pyspy.Log())
            in_time = profile.spans if kind == "wall" and spy.started_ns is not None else None
            times = _times(in_time, len(profile.stacks), spy.started_ns or 0)
            for (thread, frames, weight), seen in zip(profile.stacks, times, strict=True):
                if any(frame.startswith(_OUR_WAIT) for frame in frames[-_NATIVE_BELOW:]):
                    continue
                if not frames:  # py-spy counts no sample of it, and draws it on until it sees a frame again
                    self.outside.add((thread.pid, thread.tid))
                    continue
                name = names.get((thread.pid, thread.tid)) if thread.tid is not None else None
                self.rows.append(Row(thread.pid, thread.process, name, kind, frames, weight * scale_ns))
                self.spans.add((thread.pid, thread.tid, name, frames), seen)

    @property
    def error_ns(self) -> int:
        """py-spy's zero is known to 1 ms, a change of the stack to two periods."""
        return round(2e9 / self.rate_hz) + 1_000_000

    def clock(self) -> Clock | None:
        zero_ns = next((log.started_ns for log in self.logs.spies.values() if log.started_ns is not None), None)
        return None if zero_ns is None else Clock(zero_ns, 1e3, self.error_ns, "when py-spy began, and its rate")

    def spans_table(self) -> Table:
        """The table `stack_spans`."""
        return self.spans.table(self.error_ns)

    def _inherit(self, pids: Iterable[int]) -> None:
        """What one py-spy has seen is a process and what it has started: where their rank is known, it is one."""
        known = {self.ranks[pid] for pid in pids if pid in self.ranks}
        if len(known) == 1:
            self.ranks.update({pid: min(known) for pid in pids if pid not in self.ranks})


def _times(spans: pyspy.Spans | None, count: int, zero_ns: int) -> list[list[tuple[int, int]]]:
    """For each of the stacks when it was on top: start, ns since the Unix epoch, and duration."""
    times: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    if spans is not None:
        for place, start_ns, duration_ns in zip(spans.stack, spans.start_ns, spans.duration_ns, strict=True):
            times[place].append((zero_ns + start_ns, duration_ns))
    return times


# ---------------------------------------------------------------- judging


@dataclass(frozen=True)
class _Quality:
    """How good the samples are: what was asked for, what was reached, what is missing."""

    reading: _Reading
    main: tuple[Row, ...]
    """The rows of the main capture, without those of `gil`."""
    idle: bool
    capture: Capture

    @property
    def rate_hz(self) -> float:
        return self.reading.rate_hz

    def _spies(self) -> list[pyspy.Log]:
        serials = {_serial(path) for path in self.capture.paths("profile")}
        return [log for serial, log in self.reading.logs.spies.items() if serial in serials]

    def errors(self) -> int:
        return sum(log.errors or 0 for log in self._spies())

    def behind_s(self) -> float:
        return max((log.behind_s or 0.0 for log in self._spies()), default=0.0)

    def reached(self) -> float | None:
        """The share of the samples asked for that was taken; None where idle threads are left out or nobody counted."""
        spies, wanted = self._spies(), sum(row.weight_ns for row in self.main) / 1e9 * self.rate_hz
        samples = [log.samples for log in spies if log.samples is not None]
        if not self.idle or not wanted or not samples or len(samples) < len(spies):
            return None
        return sum(samples) / wanted

    def _likely(self) -> float:
        """The share that chance alone leaves, by the number of samples of the thread that lived longest."""
        by_thread: Counter[tuple[int | None, str | None]] = Counter()
        for row in self.main:
            by_thread[row.pid, row.thread] += row.weight_ns
        return 1 - _SIGMA / math.sqrt(max(by_thread.values()) / 1e9 * self.rate_hz or 1)

    def verdict(self) -> tuple[Status | None, str | None]:
        """The status and its reason, where they are not simply ok. Raises ParseError when no file could be read."""
        if not self.main:
            return self._nothing()
        reached, errors = self.reached(), self.errors()
        if reached is not None and reached < min(ENOUGH, self._likely()):
            exec_like = errors and not self.behind_s()
            cause = f"{errors} more could not be read, as after an exec" if exec_like else "ask for a lower rate"
            return "degraded", f"{reached * self.rate_hz:.3g} of {self.rate_hz:g} samples a second were taken: {cause}"
        if self.reading.damages:
            return "degraded", "; ".join(self.reading.damages)
        return None, None

    def trust(self) -> Trust | None:
        """Distorted where py-spy was so far behind that the program stood still for it."""
        run = self.capture.run
        return "distorted" if run and self.behind_s() > HELD_UP * run.wall_s else None

    def _nothing(self) -> tuple[Status, str]:
        run, errors = self.capture.run, self.errors()
        if self.reading.damages:
            raise ParseError("; ".join(self.reading.damages))
        if errors:
            return "tool_failed", _REPLACED.format(errors)
        return (
            "empty",
            f"target ran {show_duration(run.wall_s)}: too short for a sample" if run else "no sample was taken",
        )

    def notes(self) -> Iterator[str]:
        reached, errors = self.reached(), self.errors()
        if reached is not None:
            yield f"asked for {self.rate_hz:g} samples a second of each thread, reached {reached * self.rate_hz:.3g}"
        if errors:
            yield f"{errors} samples could not be read"
        if self.behind_s():
            yield f"py-spy was up to {show_duration(self.behind_s())} behind, and held the target up"
        yield from self._processes()
        if self.reading.outside:
            yield f"threads that were in no Python code, at times or always: {len(self.reading.outside)}; left out then"
        yield from self._waiting()

    def _processes(self) -> Iterator[str]:
        profiled = {row.pid for row in self.main if row.pid is not None}
        failed = {pid: why for log in self._spies() for pid, why in log.failed.items() if pid not in profiled}
        missed = {pid: why for pid, why in failed.items() if not why.startswith(_NOT_MISSED)}
        reasons = "".join(f"; {pid}: {why}" for pid, why in sorted(missed.items())[:5])
        if profiled or missed:
            yield f"Python processes: {len(profiled) + len(missed)} seen, {len(profiled)} profiled{reasons}"

    def _waiting(self) -> Iterator[str]:
        share, expected = self._cpu_share()
        if share is not None and share < WAITING:
            advice = "the stacks show where" if self.idle else "use idle: true to see where"
            yield (
                f"target was mostly waiting: on a processor in about {share * expected:.0f} of {expected:.0f} "
                f"expected samples; {advice}"
            )

    def _cpu_share(self) -> tuple[float | None, float]:
        """CPU time over lifetime, and the lifetime in samples: of the Python processes where seen, else of the run."""
        logs, run = self.reading.logs, self.capture.run
        if logs.cpu_ns is not None and logs.seen_ns:
            return logs.cpu_ns / logs.seen_ns, logs.seen_ns / 1e9 * self.rate_hz
        if run is None or run.user_s is None or run.sys_s is None or not run.wall_s:
            return None, 0
        return (run.user_s + run.sys_s) / run.wall_s, run.wall_s * self.rate_hz


_NOT_MISSED = ("Failed to find python version", "Failed to get process executable name")
"""Why a process could not be read that is not Python, or had ended already."""
