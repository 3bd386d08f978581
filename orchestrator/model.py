"""The words of profrun: frozen dataclasses that every room shares. They hold data and answer about it; they do
nothing."""

from __future__ import annotations

import signal as _signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Status = Literal[
    "ok",
    "degraded",
    "empty",
    "target_failed",
    "tool_failed",
    "timed_out",
    "blocked",
    "unreadable",
    "skipped",
    "cancelled",
]
Trust = Literal["high", "distorted", "low"]
Verdict = Literal["ok", "warn", "missing", "blocked"]
Role = Literal["warmup", "bare", "profiled"]
When = Literal["start", "gate", "python", "window"]
Ready = Literal["tracer", "fds", "file", "says", "delay"]
EndedBy = Literal["itself", "window", "timeout", "interrupt", "detached"]

USABLE: frozenset[str] = frozenset({"ok", "degraded"})
"""The statuses of a capture whose data can be used."""

IMPORT = "import"
"""Stands for the pass of a capture that was imported."""

HARMLESS: frozenset[str] = USABLE | {"empty"}
"""The statuses that never turn a run into exit status 4: `empty` means that the target offered nothing."""


@dataclass(frozen=True)
class Check:
    """One answer of preflight: may this part of the plan work here, and if not, the one next step."""

    subject: str
    verdict: Verdict
    message: str
    fix: str | None = None


@dataclass(frozen=True)
class ToolProbe:
    """How to find a tool and learn what it offers. `features` maps a word to a regex looked for in the help text."""

    name: str
    version_args: tuple[str, ...] = ("--version",)
    version_regex: str = r"(\d+(?:\.\d+)+)"
    help_args: tuple[str, ...] | None = None
    features: tuple[tuple[str, str], ...] = ()
    places: tuple[str, ...] = ()
    """Globs of full paths to try after PATH, newest (sorted last) first."""
    install: str = ""
    """The one command or sentence that gets the tool."""


@dataclass(frozen=True)
class Tool:
    """A tool as found on this machine; `path` is None when it was not found."""

    name: str
    path: str | None
    version: str | None = None
    features: frozenset[str] = frozenset()
    trouble: str | None = None
    """Why it has told nothing of itself; with a path that is None, why what was found can't be started."""


@dataclass(frozen=True)
class Exit:
    """How a process ended, from its wait status: an exit code or the number of the signal that killed it."""

    code: int | None = None
    signal: int | None = None

    @property
    def status(self) -> int:
        """What a shell would show in `$?`: the code, or 128 + signal. Raises ValueError where neither is known."""
        if self.signal is not None:
            return 128 + self.signal
        if self.code is None:
            raise ValueError("an end without a code and without a signal")
        return self.code

    def describe(self) -> str:
        if self.signal is not None:
            try:
                return f"killed by {_signal.Signals(self.signal).name}"
            except ValueError:
                return f"killed by signal {self.signal}"
        return f"exit {self.code}"


@dataclass(frozen=True)
class Process:
    """A process that was seen: what the user needs to recognise it."""

    pid: int
    argv: tuple[str, ...]


@dataclass(frozen=True)
class SeenPython:
    """A Python process of the target as it was seen from outside, with the variables that decide how it runs.

    environ: None where it can't be read."""

    pid: int
    argv: tuple[str, ...]
    environ: Mapping[str, str | None] | None = None
    injected: bool | None = None
    """Whether its environment lets profrun's part in; None when unknown."""
    in_reach: bool | None = None
    """Whether it finds profrun's part there, as one in a container may not; None when unknown."""
    cpus: str | None = None
    """The CPUs that it may use, as 0-3,8."""
    nice: int | None = None
    personality: int | None = None


@dataclass(frozen=True)
class Attached:
    """A process that ran before profrun came to look at it, as it was found and as it was left.

    A rank's process and what it has started, as far as that is no rank of its own, are one *family*: tools that can't
    tell processes apart look at each family by itself. What belongs to no rank is the family of the named process."""

    pid: int
    argv: tuple[str, ...]
    lead: int
    """The pid of its family's first process."""
    born: int | None = None
    """Its start in clock ticks since boot: with the pid it names one process for ever."""
    parent: int | None = None
    """The pid of its parent among those that are looked at; None for a named process."""
    is_python: bool = False
    is_top_python: bool = False
    """It is Python, no wrapper, and has no such one above it within its family."""
    wrapper: str | None = None
    """What it is where it only starts the program proper: `conda run`, `uv run`, `torchrun` ..."""
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    """As its launcher has put them into its environment; None where that can't be read, or says nothing."""
    state_before: str | None = None
    """The kernel's letter: R, S, D, T, t ...; None: it came later."""
    tracer_before: int = 0
    """The pid of the process that traced it already; 0 for none."""
    state_after: str | None = None
    """Likewise, when the last tool had gone; None: it had ended."""
    tracer_after: int = 0


@dataclass(frozen=True)
class Armed:
    """A program that was started with `profrun arm` and waits to be woken."""

    folder: str
    """Absolute; the settings of our part inside, and one socket for each process that has one (`<pid>.sock`)."""
    pid: int
    """The program's first process."""
    session: str | None = None
    """nsys's session, where it was started with one."""
    nsys: str | None = None
    """The path of the nsys that it was started under."""
    tmpdir: str | None = None
    """The TMPDIR it was started with: nsys finds its sessions there."""
    is_ours: bool = True
    """It belongs to the user that profrun runs as."""


@dataclass(frozen=True)
class RankSeen:
    """A rank of a job, as it was seen on this host: its first process. Times: ns since the Unix epoch."""

    rank: int
    local_rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    pid: int | None = None
    started_ns: int | None = None
    """The start of its process; None: unknown."""
    ended_ns: int | None = None
    """None: unknown, or it had not ended when the pass had."""
    exit: Exit | None = None
    """None where nobody could tell: it is another process that waits for a rank's end."""
    started: tuple[int, ...] = ()
    """The pids of what it has started, as far as that was seen."""


@dataclass(frozen=True)
class TargetRun:
    """One run of the target as measured by profrun itself. Times: ns since the Unix epoch, seconds for durations."""

    argv: tuple[str, ...]
    pid: int | None
    started_ns: int
    ended_ns: int
    wall_s: float
    exit: Exit | None
    """None while it still runs (attached and left alone)."""
    user_s: float | None = None
    sys_s: float | None = None
    max_rss_bytes: int | None = None
    """None where the kernel's figure is not above profrun's own size (a child inherits it through fork)."""
    ended_by: EndedBy = "itself"
    start_error: str | None = None
    leftovers: tuple[Process, ...] = ()
    killed: tuple[Process, ...] = ()
    pythons: tuple[SeenPython, ...] = ()
    """The top-most Python processes, as far as they lived long enough to be seen."""
    attached: tuple[Attached, ...] = ()
    """The processes that were looked at, parents before children, where they ran already."""
    ranks: tuple[RankSeen, ...] = ()
    """The ranks that were seen on this host, the lowest first; empty for a program without ranks."""
    ranks_expected: int | None = None
    """How many ranks were to run on this host, as they or their launcher say; None: nobody has said."""
    ranks_chosen: tuple[int, ...] | None = None
    """The ranks that the collectors were to look at; None: all."""
    notes: tuple[str, ...] = ()

    def rank_by_pid(self) -> dict[int, int]:
        """The rank of each process of which it is known."""
        found = {one.pid: one.rank for one in self.attached if one.rank is not None}
        for seen in self.ranks:
            found |= {pid: seen.rank for pid in (seen.pid, *seen.started) if pid is not None}
        return found

    def failed_ranks(self) -> tuple[RankSeen, ...]:
        """The ranks of which it is known that they ended otherwise than well, in the order of their ends."""
        bad = [one for one in self.ranks if one.exit and one.exit.status]
        return tuple(sorted(bad, key=lambda one: (one.ended_ns or 0, one.rank)))

    def first_failed(self) -> RankSeen | None:
        """The rank that failed before the others; None where one that ended before it, nobody knows how, may have."""
        failed = self.failed_ranks()
        if not failed:
            return None
        end_ns = failed[0].ended_ns
        unknown = (one.ended_ns for one in self.ranks if one.exit is None)
        is_doubtful = any(other is None or end_ns is None or other <= end_ns for other in unknown)
        return None if is_doubtful else failed[0]

    def missing_ranks(self) -> tuple[int, ...]:
        """The ranks that were to run on this host and were not seen."""
        firsts = [one.rank - one.local_rank for one in self.ranks if one.local_rank is not None]
        first = min(firsts, default=0)
        wanted = range(first, first + (self.ranks_expected or 0))
        return tuple(sorted(set(wanted) - {one.rank for one in self.ranks}))


@dataclass(frozen=True)
class Target:
    """The program as it will be started: `exe` is the file really executed, `argv[0]` what the program sees."""

    argv: tuple[str, ...]
    exe: str
    cwd: str
    env: Mapping[str, str]
    shims: tuple[str, ...] = ()
    """Version-manager shims that were looked through to find `exe`, outermost first."""


@dataclass(frozen=True)
class Window:
    """The part of the run to record, in seconds after the target's start (`for_s` None: until the end), or, where
    `steps` is given, in the target's own steps after the first `skip`."""

    after_s: float = 0.0
    for_s: float | None = None
    then: Literal["stop", "continue"] = "continue"
    skip: int = 0
    steps: int | None = None

    def describe(self) -> str:
        """Its beginning, as the end of a sentence."""
        return f"after {self.skip} steps" if self.steps is not None else f"{self.after_s:g} s after its start"


@dataclass(frozen=True)
class Wrap:
    """A tool that starts the target itself. Lower `order` stands further out. `keeps_child`: the target stays our
    direct child (strace -D), so its wait status, signals and life are its own."""

    argv: tuple[str, ...]
    order: int = 50
    keeps_child: bool = False
    exits_with_target: bool = True
    """The tool passes the target's exit status on as its own."""


@dataclass(frozen=True)
class Beside:
    """A tool that runs beside the target. In `argv`, {pid} is the process to look at and {n} a serial number.

    when: start (before the target) · gate (the target is stopped before its exec; the tool attaches, then the target
    goes on) · python (once for each top-most Python process of the target's tree, from its start on) · window (when
    the window opens).
    ready: what says that it has attached: tracer (the target has a TracerPid) · fds (perf_event descriptors) · file
    (exists, `ready_value`) · says (the tool has printed what the regex `ready_value` finds) · delay (`ready_value`
    seconds)."""

    argv: tuple[str, ...]
    when: When = "gate"
    ready: Ready = "delay"
    ready_value: str = "0"
    signal: str = "SIGINT"
    grace_s: float = 10.0
    size_cap_bytes: int | None = None
    """Stop the tool when the file `size_path` has grown beyond this; the artifact is then marked truncated."""
    size_path: str | None = None
    time_cap_s: float | None = None
    """Stop the tool this long after the start of the recording; the target goes on."""
    name: str = ""
    """`wake` for what counts the steps of a program that runs already: it ends with the last one of the window. What
    has a name is profrun's own: what it prints to stdout is data, and no word of the tool."""


@dataclass(frozen=True)
class After:
    """A command run when the target and the tools have ended. `needs`, `when_missing`, `produces`: paths relative to
    the job's directory; it is run only if `needs` exists and `when_missing` does not (None: always), and must leave
    `produces` behind."""

    argv: tuple[str, ...]
    produces: str
    when_missing: str | None = None
    needs: str | None = None
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Expect:
    """A file the tool should leave in the job's directory."""

    role: str
    glob: str
    format: str
    required: bool = True
    holds_env: bool = False
    derived_from: str | None = None


@dataclass(frozen=True)
class Sign:
    """A regex that, seen in what the tool printed while data is missing, tells the true status. {0}, {1}: its
    groups. Below what was printed stands what profrun has noted: `asked to end` where the tool was, and its mishaps."""

    pattern: str
    status: Status
    reason: str


@dataclass(frozen=True)
class Child:
    """What a collector or environment step wants changed in the target's own process, before its exec."""

    set: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    affinity: tuple[int, ...] | None = None
    nice: int | None = None
    personality: int | None = None
    """Bits of personality(2) to be added to those that are set."""
    numa_node: int | None = None
    """Its CPUs, where `affinity` names none, and memory from there as long as there is some."""
    inject: Mapping[str, Any] = field(default_factory=dict)
    """Settings for what profrun adds to the target's own Python, by part: `seeds`, `torch`, ... (see inject/)."""

    def then(self, second: Child) -> Child:
        """What both want; the second wins where they differ."""
        return Child(
            set={**{k: v for k, v in self.set.items() if k not in second.unset}, **second.set},
            unset=(*(name for name in self.unset if name not in second.set), *second.unset),
            affinity=second.affinity if second.affinity is not None else self.affinity,
            nice=second.nice if second.nice is not None else self.nice,
            personality=second.personality if second.personality is not None else self.personality,
            numa_node=second.numa_node if second.numa_node is not None else self.numa_node,
            inject={**self.inject, **second.inject},
        )

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """The variables that a program gets which would have got `env`."""
        return {name: text for name, text in {**env, **self.set}.items() if name not in self.unset}


@dataclass(frozen=True)
class Launch:
    """How one collector takes part in one pass, as data: `profrun check` prints it, the runner executes it."""

    wrap: Wrap | None = None
    child: Child = field(default_factory=Child)
    beside: tuple[Beside, ...] = ()
    after: tuple[After, ...] = ()
    artifacts: tuple[Expect, ...] = ()
    signs: tuple[Sign, ...] = ()
    litter: tuple[str, ...] = ()
    """Regexes over what the tool and the target printed; group 1 names a temporary file that the tool may leave
    behind."""
    notes: tuple[str, ...] = ()

    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Every command line of this launch, in the order in which they start."""
        wrap = (self.wrap.argv,) if self.wrap else ()
        return (*wrap, *(b.argv for b in self.beside), *(a.argv for a in self.after))


@dataclass(frozen=True)
class Pick:
    """A kernel that an earlier capture has shown to be worth a closer look, with the launches to look at."""

    kernel: str
    """Its demangled name, as the earlier tool spells it."""
    function: str
    """The same without namespaces, template arguments and parameters: tools spell those differently."""
    match: str
    """The name to find it by: the mangled one where it is known, else `function`."""
    grid: str
    block: str
    """Its most costly shape, as x,y,z."""
    numbers: tuple[int, ...]
    """The launches of that shape to look at, among all launches of `match` in one process; the first is 1."""
    count: int
    """Launches of that name in the steady part."""
    total_ns: int
    """What they took in sum."""
    share: float
    """Of what the choice went by, the part that is this kernel's."""


@dataclass(frozen=True)
class Picks:
    """The kernels chosen from an earlier capture, the most costly first."""

    kernels: tuple[Pick, ...] = ()
    base: Literal["mangled", "function"] = "mangled"
    """Which kind of name `match` is."""
    steady: str = ""
    """Which part of the recording was looked at, as the end of a sentence."""
    launches: int = 0
    """How many launches of all these names come, from the first steady one, until each number has been seen."""
    late: bool = False
    """The recording began after the program: earlier launches are not counted in `numbers`."""
    source: str = ""
    """The capture that they were chosen from."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """What a collector is told about the pass it takes part in."""

    pass_id: str
    dir: str
    """Absolute directory for the tool's files; empty, made before the launch."""
    target: Target
    tool: Tool
    pids: tuple[int, ...] = ()
    """Processes to attach to; empty when profrun starts the target."""
    attached: tuple[Attached, ...] = ()
    """Those with all that they have started, parents before children, as found before the pass."""
    armed: Armed | None = None
    """Where they are of a program that waits to be woken."""
    window: Window | None = None
    duration_s: float | None = None
    """How long the bare run took, where that is known."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    partners: tuple[str, ...] = ()
    picks: Picks | None = None
    """The kernels chosen for it; None for a collector that chooses none, and before anything has run."""
    attempt: int = 1


@dataclass(frozen=True)
class Artifact:
    """A file that a tool left, by its path relative to the report folder."""

    role: str
    path: str
    format: str
    bytes: int
    sha256: str
    mtime_ns: int
    derived_from: str | None = None
    holds_env: bool = False
    truncated: bool = False


@dataclass(frozen=True)
class Clock:
    """epoch_ns = offset_ns + scale * tool_time; `error_ns` bounds the error, `source` says how it is known."""

    offset_ns: int
    scale: float
    error_ns: int
    source: str


@dataclass(frozen=True)
class Capture:
    """What one collector brought home from one pass."""

    id: str
    pass_id: str
    collector: str
    status: Status
    reason: str | None = None
    trust: Trust | None = "high"
    """None: imported, so there is no bare run to judge it by."""
    tool: Tool | None = None
    commands: tuple[tuple[str, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    started_ns: int | None = None
    ended_ns: int | None = None
    flush_s: float | None = None
    helper_exits: Mapping[str, int | None] = field(default_factory=dict)
    run: TargetRun | None = None
    clock: Clock | None = None
    overhead_s: float | None = None
    attempt: int = 1
    rank: int | None = None
    host: str | None = None
    required: bool = True
    notes: tuple[str, ...] = ()
    root: Path = field(default=Path(), compare=False)
    """The report folder; artifact paths are relative to it. Not stored."""

    @property
    def imported(self) -> bool:
        """It is a file that somebody already had: profrun has run nothing for it."""
        return self.pass_id == IMPORT

    def paths(self, role: str) -> tuple[Path, ...]:
        """The files of that role, as absolute paths."""
        return tuple(self.root / a.path for a in self.artifacts if a.role == role)

    @property
    def began_late(self) -> bool:
        """Whether its recording began later than the program: in a window, or in a range of the program's own.

        torch.profiler begins when the program imports torch, at the earliest."""
        if self.collector == "torch" or self.options.get("range"):
            return True
        return self.started_ns is not None and self.run is not None and self.started_ns > self.run.started_ns

    def path(self, role: str) -> Path | None:
        """The first file of that role, or None."""
        return next(iter(self.paths(role)), None)


@dataclass(frozen=True)
class Pass:
    """One run of the target, as planned: who takes part, and in which role."""

    id: str
    index: int
    role: Role
    members: tuple[Any, ...]
    """The collectors (`collectors.base.Collector`) that share this run."""
    repeat: int = 1
    window: Window | None = None
    timeout_s: float | None = None
    retry: int = 0
    needs: tuple[str, ...] = ()
    """Collectors whose capture of an earlier pass is read before this one starts."""


@dataclass(frozen=True)
class Task:
    """One task of a pass that srun or mpirun has started, perhaps on another host, as its agent tells of it."""

    index: int
    """Its number in the job, from 0."""
    host: str | None = None
    """As the launcher names it; None: it has not been heard of."""
    hostname: str | None = None
    """As that machine names itself, where that is another name."""
    node: int | None = None
    """The number of its host in the job, from 0."""
    place: str | None = None
    """What its captures and files bear behind an @: its host, and its rank, as n1.r0, or its number, as n1.t0."""
    ranks: tuple[int, ...] = ()
    """The global ranks of the processes in it, as far as they were told."""
    run: TargetRun | None = None
    """Its part of the run; None: it has left no record. Times are of its host's clock."""
    missing: str | None = None
    """Why nothing is known of it."""
    clock_offset_ns: int | None = None
    """To be added to a time of its host for that of the host that leads; None: not measured."""
    clock_at_ns: int = 0
    """By its host's clock, when that is so: the middle of the pass."""
    clock_error_ns: int | None = None
    """What bounds the error of that: half the shortest round trip."""
    clock_drift: float = 0.0
    """By how much that offset grows, in ns per ns, between the two times when it was measured."""
    notes: tuple[str, ...] = ()

    def led(self, time_ns: int | None) -> int | None:
        """A time of its host by the clock of the host that leads; as it is where the clocks were not compared."""
        if time_ns is None or self.clock_offset_ns is None:
            return time_ns
        return time_ns + self.clock_offset_ns + round(self.clock_drift * (time_ns - self.clock_at_ns))


@dataclass(frozen=True)
class PassRecord:
    """One run of the target, as it happened."""

    id: str
    role: Role
    collectors: tuple[str, ...]
    repeat: int = 1
    run: TargetRun | None = None
    slowdown: float | None = None
    """Wall time divided by the mean wall time of the bare passes; None where there is none."""
    slowdown_ci95: tuple[float, float] | None = None
    step_slowdown: float | None = None
    """Its usual step (the median of the steady ones) divided by that of the bare passes; None where steps are unknown.
    Unlike the wall time it says nothing of the start-up."""
    step_slowdown_ci95: tuple[float, float] | None = None
    attempts: int = 1
    notes: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()
    """Of a run on several hosts, its parts; `run` then is that of the whole job. Empty: it was one program here."""

    def task_of(self, capture: str) -> Task | None:
        """The task that a capture of this pass comes from; None where the pass was one program."""
        return next((task for task in self.tasks if task.place and capture.endswith(f"@{task.place}")), None)

    def run_of(self, capture: str) -> TargetRun | None:
        """The run that it has looked at."""
        task = self.task_of(capture)
        return task.run if task else self.run


StepStatus = Literal["applied", "already", "clamped", "not_available", "refused", "drifted", "failed"]
IN_FORCE: frozenset[str] = frozenset({"applied", "already", "clamped"})
"""The statuses of a step that has brought the machine into the plan's state, or near it."""


@dataclass(frozen=True)
class Write:
    """A change to the machine: `text` written in one call to the file `path`, a setting below /proc, /sys or /dev.

    It undoes itself: what stood there before is written back, as long as what stands there is ours."""

    path: str
    text: str
    part: str = ""
    """What it sets, in the user's words: `policy0 governor`."""
    reads: str | None = None
    """What the file says when the change is in force, where that is not `text` (cpuidle takes 3 and says 1)."""
    once: bool = False
    """An order, not a setting: there is nothing to read back or to undo."""


@dataclass(frozen=True)
class Reply:
    """A regex that, seen in what a command printed, tells what has come of it, whatever its exit status; {0}, {1}: its
    groups."""

    pattern: str
    status: StepStatus
    reason: str
    detail: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Run:
    """A change to the machine: a command that makes it, and how long that may take."""

    argv: tuple[str, ...]
    timeout_s: float
    part: str = ""
    replies: tuple[Reply, ...] = ()
    """The first that fits counts. None fits: the exit status does."""
    through: str = ""
    """What answers it, where several commands speak to the same (a driver): once that has not answered in time, no
    other of them is tried."""
    wanted: str | None = None
    """What it sets, as a user reads it."""
    was: str | None = None
    """What stood there before, likewise; None: unknown."""


@dataclass(frozen=True)
class Hold:
    """A change that lasts as long as `path` stays open, with `text` written to it (/dev/cpu_dma_latency): the kernel
    takes it back when the process is gone."""

    path: str
    text: str
    part: str = ""
    shown: str | None = None
    """What is held, as a user reads it, where that is not `text` (hexadecimal microseconds)."""
    was: str | None = None
    """What held before, likewise; None: unknown."""


@dataclass(frozen=True)
class Wait:
    """No change: the step's `verify` and `judge` are asked every `every_s` until they are content, up to `limit_s`."""

    limit_s: float
    every_s: float = 1.0
    part: str = ""


@dataclass(frozen=True)
class Cannot:
    """A part of a step that is known to be out of reach here, or to be in place already, before anything is tried."""

    part: str
    status: StepStatus
    reason: str | None = None
    detail: str | None = None
    fix: str | None = None


Change = Write | Run | Hold | Wait | Cannot
"""What an environment step wants done to the machine."""


@dataclass(frozen=True)
class Judged:
    """What a step makes of what it has read. `detail` stands behind the status: the value that it was clamped to, the
    name of the error that refused it."""

    status: StepStatus
    reason: str | None = None
    detail: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Part:
    """One setting of a step: what was wanted, what stood there before, what was read back after the change, and after
    the end of the run (None: unknown)."""

    name: str
    status: StepStatus
    wanted: str | None = None
    before: str | None = None
    verified: str | None = None
    after: str | None = None
    restored: bool | None = None
    reason: str | None = None
    detail: str | None = None
    fix: str | None = None


@dataclass(frozen=True)
class Knob:
    """A setting of this machine as `profrun env show` prints it. None: unknown, or there is none."""

    name: str
    value: str | None
    limits: str | None = None
    writer: str | None = None
    """Who may change it: `you`, `root`, `the root helper`, `nobody: read-only file system` ..."""
    path: str | None = None
    note: str | None = None


@dataclass(frozen=True)
class StepRecord:
    """One environment step, as it happened."""

    use: str
    status: StepStatus
    wanted: Any = None
    before: Any = None
    verified: Any = None
    restored: bool | None = None
    """None: there was nothing to restore."""
    reason: str | None = None
    during: Any = None
    """What was seen while the passes ran; None: nobody looked."""
    after: Any = None
    """What was read after the machine was put back; None: not read."""
    detail: str | None = None
    fix: str | None = None
    parts: tuple[Part, ...] = ()
    ignored: bool = False
    """The plan wants no word of it when it does not work (`on_fail: ignore`)."""
    host: str | None = None
    """Of a job on several hosts, the one that it was applied on, but for that of the leader: None."""

    @property
    def name(self) -> str:
        return f"{self.use} on {self.host}" if self.host else self.use


@dataclass(frozen=True)
class Metric:
    """A figure with its unit, its 95 % interval (None where there are too few values) and the number of values behind
    it."""

    value: float | None
    unit: str | None = None
    ci95: tuple[float, float] | None = None
    n: int | None = None
    median: float | None = None
    stddev: float | None = None
    min: float | None = None
    max: float | None = None
    outliers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """A value that a finding rests on: where it stands, by the name of its table and the key of its row."""

    table: str
    row: str
    value: float | str | None
    unit: str | None = None


@dataclass(frozen=True)
class Finding:
    """One thing worth telling, with its cost, its evidence and what to do."""

    rule: str
    category: str
    severity: Literal["critical", "major", "minor", "info"]
    title: str
    advice: str
    confidence: Literal["high", "medium", "low"]
    where: Mapping[str, Any] = field(default_factory=dict)
    cost_s: float | None = None
    cost_pct: float | None = None
    of: str | None = None
    evidence: tuple[Evidence, ...] = ()
    sources: tuple[str, ...] = ()
    cause: str = ""
    """Findings of the same cause are told as one, the costliest; empty: it stands alone."""
    healthy: bool = False
    """It says where the time goes, and that nothing is wrong with that."""


@dataclass(frozen=True)
class Abstention:
    """A rule that had nothing to judge by: what it lacks, and the part of a plan that would feed it."""

    rule: str
    lacks: str
    feed: str


@dataclass(frozen=True)
class Headline:
    """The verdict: in one sentence where the time goes, and what bounds the program.

    bound: cpu (the host), gpu, gaps (the GPU is busy but for gaps), none (it waits for something outside), unknown."""

    sentence: str
    bound: Literal["cpu", "gpu", "gaps", "none", "unknown"] = "unknown"
    confidence: Literal["high", "medium", "low"] = "low"
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What the last line on stderr says, and the exit status of profrun."""

    status: str
    exit_code: int
    reason: str
    target_exit_code: int | None = None
    target_signal: int | None = None
