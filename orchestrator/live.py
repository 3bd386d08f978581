"""A pass while it runs: the target with its tools around and beside it, from the first start to the last end."""

from __future__ import annotations

import contextlib
import math
import os
import re
import select
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import keeper, process
from orchestrator.attached import Visit
from orchestrator.inject import boot
from orchestrator.inside import Inside, is_injected, is_within_reach, will_ring
from orchestrator.launchers.watch import Watch, name_of_rank
from orchestrator.launching import LAUNCHERS, bindings, numbers, place_of, wrapper_of
from orchestrator.model import (
    After,
    Beside,
    Child,
    EndedBy,
    Exit,
    Job,
    Launch,
    Pass,
    Picks,
    Process,
    SeenPython,
    Status,
    Target,
    Tool,
    Wrap,
)
from orchestrator.stdio import Relay, Stdin
from orchestrator.units import show_duration

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.folder import Folder
    from orchestrator.machine import Machine

PREPARE_LIMIT_S = 600.0
READY_LIMIT_S = 10.0
"""How long a tool may take to attach before the target goes on without it."""
EARLY_S, EARLY_TICK_S, TICK_S = 5.0, 0.02, 0.1
"""New Python processes are looked for often in the first seconds, then less: a look costs about 0.1 ms."""
PYTHON_LIMIT = 32
"""At most so many Python processes get a tool of their own in one pass."""
INTERRUPT_GRACE_S = 30.0
STOP_LADDER = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_LOG_TAIL_BYTES = 64 << 10
FULL_BYTES = 1 << 20
FOLLOWERS_S = 0.5
"""How long a wrapping tool may outlive the target before it is taken to follow what the target left running."""
AGENTS_S = 1.0
"""How long the agents of a tool may stay after it has ended."""
OUT_OF_OURS_S = 0.02
"""A target that has just told us that its window is over gets that long to leave our part of it."""
UNSEEN_S = 10.0
"""A target that was never seen under its tool is taken to have ended when that much more than its time has passed."""
RING_S = 5.0
"""How long tools wait for a Python to come as far as our part in it: under strace that may take a second or more."""
LET_GO_S = 15.0
"""At the end of a window in steps: how long the target waits for the tools to let go of it, and a rank for others."""
TOGETHER_S = 2.0
"""How long a rank that is through with its window is held there until the others are, whose tools are the same."""
BY_ITSELF_S = 1.0
"""How long a tool that ends with its target gets to do so before it is asked to."""


class Interrupts(Protocol):
    """The signals that profrun itself got; `fileno` becomes readable with each."""

    @property
    def received(self) -> tuple[int, ...]: ...

    def for_target(self) -> list[int]: ...

    def fileno(self) -> int: ...


class Observer(Protocol):
    """Who is shown the progress of a pass: time, the target's output on its way to the terminal, a first signal."""

    def tick(self, elapsed_s: float) -> None: ...
    def make_way(self, amid_line: bool) -> None: ...
    def interrupted(self, number: int) -> None: ...


@dataclass(frozen=True)
class Context:
    """What the passes of a run have in common."""

    run_id: str
    folder: Folder
    scratch: Path
    target: Target
    machine: Machine
    stdin: Stdin
    interrupts: Interrupts
    observer: Observer
    child: Child = field(default_factory=Child)
    """What the environment steps want of the target's own process."""
    end_leftovers: bool = False
    before_each: tuple[str, ...] = ()
    ok_exit_codes: frozenset[int] = frozenset({0})
    redact: Callable[[Iterable[str]], tuple[str, ...]] = tuple
    outputs: tuple[int, int] | None = None
    """The descriptors to which the target's stdout and stderr are passed on; None: files only."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    bare_wall_s: float | None = None
    pids: tuple[int, ...] = ()
    """Processes to attach to instead of starting the target; none in the tree of another."""
    on_start: Callable[[int], None] = lambda pid: None
    """Told the target's pid as soon as there is one."""
    picks: Picks | None = None
    """The kernels chosen from an earlier capture, for the member that asked for them."""
    inject: Mapping[str, Any] | None = None
    """Settings for profrun's part in the target's Python, beside those of steps and collectors; None keeps it out."""
    after_s: float = float("inf")
    """How long a command that comes after the target may take at most, whatever its collector allows it."""
    place: str = ""
    """Of a task of a job on several hosts: what tells its files and captures from those of the others, as n1.r0."""
    files: Path | None = None
    """What {scratch} stands for; None: a folder in `scratch`."""
    failed_flush_s: float = float("inf")
    """How long tools may take at most to write what they have of a target that has failed."""
    leads: bool = False
    """What is started starts the tasks of a job, and their agents tell of the ranks."""
    ask_to_end: Callable[[int], bool] = lambda number: False
    """Asks a target that is out of reach for that signal to end, in another way; False: it is to be sent."""
    patience_s: float = 0.0
    """How much longer than others it may then take."""
    all_done: Callable[[], bool] = lambda: True
    """Asked when the target is through with the window and could be ended: whether its partners elsewhere are, too."""
    ranks: tuple[int, ...] | None = None
    """The ranks that the collectors are to look at; None: all."""
    ranks_told: int | None = None
    """How many ranks the command says it will start on this host; None: it does not."""


def substitute(words: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Replaces {name} for the given names only; every other brace is left alone."""
    pattern = re.compile("|".join(re.escape("{" + name + "}") for name in names))
    return tuple(pattern.sub(lambda found: names[found[0][1:-1]], word) for word in words)


@dataclass
class Aide:
    """A tool that runs beside the target."""

    beside: Beside
    argv: tuple[str, ...]
    helper: process.Helper
    awaited: bool = False

    def ask_to_stop(self) -> None:
        self.helper.ask_to_stop(getattr(signal, self.beside.signal))

    def stop(self, grace_s: float, give_up: Callable[[], bool]) -> None:
        self.helper.stop(getattr(signal, self.beside.signal), grace_s, give_up)


@dataclass
class Member:
    """A collector in this pass, with what has been started for it."""

    collector: Collector
    name: str
    job: Job
    launch: Launch
    tool: Tool
    aides: list[Aide] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flush_s: float | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    truncated: bool = False
    failure: str | None = None

    @property
    def dir(self) -> Path:
        return Path(self.job.dir)

    @property
    def wrap(self) -> Wrap | None:
        return self.launch.wrap


class Ladder:
    """Asking a target to end: one signal after the other, each with its patience in seconds."""

    def __init__(self, steps: Iterable[tuple[int, float]], after_s: float = 0.0) -> None:
        self._steps = list(steps)
        self._until = time.monotonic() + after_s
        self.sent: list[int] = []

    def next_signal(self) -> int | None:
        """The signal that is due now, or None."""
        if time.monotonic() < self._until or not self._steps:
            return None
        number, patience_s = self._steps.pop(0)
        self._until = time.monotonic() + patience_s
        self.sent.append(number)
        return number


@dataclass
class Inner:
    """The target under a tool that starts it itself (nsys, ncu): found among the tool's descendants, then followed."""

    pid: int | None = None
    found_at: float = 0.0
    gone_at: float | None = None
    last_at: float | None = None
    """When anything was last seen under the tool, where the target itself was not found."""
    outlived: bool = False
    """It went on when the tool had died; its exit status then is ours to take, as the nearest ancestor left."""
    exit: Exit | None = None

    @property
    def wall_s(self) -> float | None:
        return self.gone_at - self.found_at if self.gone_at is not None else None


class LivePass:
    """A pass while it runs: `start`, `follow`, `finish`, in this order."""

    def __init__(self, planned: Pass, context: Context, attempt: int) -> None:
        self.planned, self.context, self.attempt = planned, context, attempt
        self._of_task = f"@{context.place}" if context.place else ""
        self.mark = f"{context.run_id}/{planned.id}" + (f"{self._of_task}/" if self._of_task else "")
        self._place = context.scratch / f"{planned.id}.{attempt}"
        self.dir = self._place / f"{planned.id}-target{self._of_task}"
        self.dir.mkdir(parents=True)
        self.names = {"pass": planned.id, "scratch": str(context.files or context.scratch / "files")}
        self.visit = Visit(context.pids)
        self.target = self._target()
        self.members = self._members()
        self.started: process.Started | None = None
        self.inner = Inner()
        self.started_ns = self.ended_ns = time.time_ns()
        self._began = time.monotonic()
        self.ended_by: EndedBy = "itself"
        self.notes: list[str] = []
        self.mishaps: list[str] = []
        """Those of the notes that say what has gone wrong with a tool, or for all of them."""
        self.disk_full = False
        self.leftovers: list[Process] = []
        self.killed: list[Process] = []
        self._ladder: Ladder | None = None
        self.tool_stopped = False
        """Whether a tool around the target had to be ended: its exit status then is not the target's."""
        self._began_target = False
        """Whether a tool that becomes the target has been seen to have done so."""
        self._pythons: set[tuple[int, ...]] = set()
        self._looked_into, self._is_full = 0, False
        self._finishing_at: float | None = None
        self._expected: dict[tuple[int, ...], float] = {}
        """When each Python was seen first that is to ring before tools come."""
        self._rung: set[int] = set()
        """The pids of those that have."""
        self._before: set[int] = set()
        self._relays: list[Relay] = []
        self.window_opened = False
        self._window_closed = False
        self._window_since_s: float | None = None
        """When the window in seconds opened, on this pass's clock."""
        self._in_window: set[int] = set()
        """The processes that have begun the window's steps and have not told that they are done with them."""
        self._closing: dict[int, str] = {}
        """Those that are through with the window, with the ring by which they have said so: they wait."""
        self._closing_since = 0.0
        is_rank = bool(context.place) and context.ranks_told == 1  # its agent has the same number
        self.ranks = Watch(context.ranks_told, {} if is_rank else None, is_rank=is_rank)
        self._first_done: float | None = None
        self._done: set[int | None] = set()
        """The ranks that are done with them."""
        self.pythons: list[SeenPython] = []
        self._seen: set[tuple[int, ...]] = set()
        self.inside = Inside(self.dir / "python", self._settings()) if self._injects() else None

    def _mishap(self, text: str) -> None:
        self.notes.append(text)
        self.mishaps.append(text)

    # ------------------------------------------------------------ what will run

    def _target(self) -> Target:
        target, wanted = self.context.target, self.context.child
        env = wanted.environment(target.env)
        values = dict(zip(env, substitute(env.values(), self.names), strict=True))
        return replace(target, argv=substitute(target.argv, self.names), env={**values, process.MARKER: self.mark})

    def _members(self) -> list[Member]:
        labels = [collector.label() for collector in self.planned.members]
        members = []
        for index, collector in enumerate(self.planned.members):
            twin = labels[:index].count(labels[index])
            name = f"{self.planned.id}-{labels[index]}" + (f"-{twin + 1}" if twin else "") + self._of_task
            members.append(self._member(collector, name, tuple(x for i, x in enumerate(labels) if i != index)))
        return members

    def _member(self, collector: Collector, name: str, partners: tuple[str, ...]) -> Member:
        directory = self._place / name
        directory.mkdir()
        tool = collector.tool(self.context.machine)
        job = Job(
            pass_id=self.planned.id,
            dir=str(directory),
            target=self.target,
            tool=tool,
            pids=self.context.pids,
            attached=self.visit.found,
            armed=self.context.machine.armed,
            window=self.planned.window,
            duration_s=self.context.bare_wall_s,
            facts=self.context.facts,
            partners=partners,
            picks=self.context.picks if collector.needs() else None,
            attempt=self.attempt,
        )
        try:
            return Member(collector, name, job, collector.launch(job), tool)
        except Exception as error:  # a collector from another package may raise anything; the others go on
            return Member(collector, name, job, Launch(), tool, failure=f"{type(error).__name__}: {error}")

    def _injects(self) -> bool:
        return self.context.inject is not None and not self.context.pids

    def _settings(self) -> dict[str, Any]:
        """What profrun's part in the target's Python is told."""
        wanted = [self.context.child, *(member.launch.child for member in self.members)]
        window, profiled = self.planned.window, self.planned.role == "profiled"
        by_steps = window is not None and window.steps is not None and (profiled or window.then == "stop")
        return {
            **(self.context.inject or {}),
            **{name: part for child in wanted for name, part in child.inject.items()},
            "window": {"skip": window.skip, "steps": window.steps, "look": profiled} if window and by_steps else None,
            "hold": any(True for _ in self._besides("python")),
            "ranks": self.context.ranks,
            "tracer": os.getpid() if self.context.facts.get("yama_ptrace_scope") == 1 else None,
        }

    def interrupted(self) -> bool:
        """Whether profrun has got a signal."""
        return bool(self.context.interrupts.received)

    def hurried(self) -> bool:
        """Whether it has got a second one: nothing is waited for any more."""
        return len(self.context.interrupts.received) > 1

    def prepare(self) -> tuple[Status, str] | None:
        """Runs the plan's `before_each`; says why the pass can't be run when that fails."""
        if self.context.stdin.lost:
            return "skipped", self.context.stdin.lost
        if not self.context.pids and not Path(self.target.cwd).is_dir():
            return "target_failed", f"the directory that it runs in is not there any more: {self.target.cwd}"
        if not self.context.before_each or self.context.pids:  # what runs already must not lose its files to us
            return None
        argv = substitute(self.context.before_each, self.names)
        answer = process.ask(
            argv, timeout_s=PREPARE_LIMIT_S, env=self.target.env, cwd=self.target.cwd, give_up=self.interrupted
        )
        if answer.ok:
            return None
        status: Status = "cancelled" if self.interrupted() else "skipped"
        said = answer.error or f"{answer.exit.describe() if answer.exit else ''} {answer.stderr.strip()[-300:]}"
        return status, f"before_each ({' '.join(self.context.redact(argv))}) failed: {said.strip()}"

    # ------------------------------------------------------------ starting

    def start(self) -> None:
        """Starts the tools that come first, the target, and those that attach before it goes on."""
        self._before = {*process.marked(self.context.run_id), *process.descendants(os.getpid())}
        for member, beside in self._besides("start"):
            self._help(member, beside, self.context.pids[0] if self.context.pids else 0)
        if not self.context.pids:
            self._start_target()
        self.started_ns, self._began = self.started.started_ns if self.started else time.time_ns(), time.monotonic()
        for member in self.members:
            member.started_ns = self.started_ns

    def _start_target(self) -> None:
        gated = list(self._besides("gate"))
        spec = self._spec()
        self.started = process.start(spec, gated=bool(gated))
        self.context.on_start(self.started.pid)
        for fd in (spec.stdin, spec.stdout, spec.stderr):
            os.close(fd)
        if self.context.outputs:
            pairs = zip(("stdout", "stderr"), self.context.outputs, strict=True)
            self._relays = [Relay(self.dir / f"{name}.log", fd, self.context.observer.make_way) for name, fd in pairs]
        for member, beside in gated:
            self._help(member, beside, self.started.pid)
        for member in self.members:
            for aide in member.aides:
                if aide.beside.when == "gate":
                    self._await_ready(member, aide, self.started.pid)
        if gated:
            self.started.open_gate()

    def _besides(self, when: str) -> Iterator[tuple[Member, Beside]]:
        return ((m, b) for m in self.members for b in m.launch.beside if b.when == when)

    def _spec(self) -> process.Spec:
        wraps = sorted((m.wrap for m in self.members if m.wrap), key=lambda wrap: wrap.order)
        argv = self.target.argv
        if wraps:
            argv = (*(word for wrap in wraps for word in wrap.argv), self.target.exe, *self.target.argv[1:])
        return process.Spec(
            exe=wraps[0].argv[0] if wraps else self.target.exe,
            argv=argv,
            env=self._env(),
            cwd=self.target.cwd,
            stdin=self.context.stdin.open(),
            stdout=_create(self.dir / "stdout.log"),
            stderr=_create(self.dir / "stderr.log"),
            child=self._child(),
        )

    def _env(self) -> dict[str, str]:
        env = dict(self.target.env)
        for member in self.members:
            env.update(member.launch.child.set)
            for name in member.launch.child.unset:
                env.pop(name, None)
        if self.inside is None:
            return env
        shown = bindings(self.target.argv, env, self.inside.places)
        return {**env, **self.inside.environment(env), **shown}

    def _child(self) -> Child:
        """The first wish for each attribute counts, the environment steps' before the collectors'."""
        wishes = (self.context.child, *(m.launch.child for m in self.members))

        def first(name: str) -> Any:
            return next((getattr(wish, name) for wish in wishes if getattr(wish, name) is not None), None)

        return Child(**{name: first(name) for name in ("affinity", "nice", "personality", "numa_node")})

    def _help(self, member: Member, beside: Beside, pid: int) -> None:
        """Starts a tool beside the target; one that can't be started is that capture's failure."""
        serial = len(member.aides)
        pids = ",".join(map(str, self._trees(self.context.pids or (pid,))))
        python = self._python_above(pid)
        who = name_of_rank(python)
        names = {"pid": str(pid), "pids": pids, "python": str(python), "n": str(serial), "who": who}
        argv = substitute(beside.argv, names)
        stem = f"{serial}." if serial else ""
        env = {**os.environ, process.MARKER: self.mark}
        try:
            out, err = member.dir / f"{stem}stdout.log", member.dir / f"{stem}stderr.log"
            helper = process.Helper(argv, out, err, env, member.dir, getattr(signal, beside.signal))
        except OSError as error:
            member.failure = f"{argv[0]} can't be started: {error.strerror}"
            return
        member.aides.append(Aide(beside, argv, helper))
        member.commands.append(argv)

    def _trees(self, roots: Sequence[int]) -> list[int]:
        """Processes with their descendants. One that is attached to may have started profrun, which is left out."""
        found = list(dict.fromkeys(pid for root in roots for pid in (root, *process.descendants(root))))
        if not self.context.pids or os.getpid() not in found:
            return found
        note = "the process that is looked at has started profrun: a tool that follows its children sees profrun, too"
        self.notes += [note] if note not in self.notes else []
        ours = {os.getpid(), *process.descendants(os.getpid())}
        return [pid for pid in found if pid not in ours]

    def _python_above(self, pid: int) -> int:
        """The process itself or, where that is no Python (a launcher's script, say), its first Python descendant."""
        return next(iter(self._top_pythons(pid)), pid)

    def _top_pythons(self, *roots: int) -> list[int]:
        """The Python processes below these, our tools excepted. In what runs already those count that are the program:
        above them there may be the Python of a wrapper."""
        ours = {os.getpid(), *self._aide_pids()}
        return [pid for root in roots for pid in _top_pythons(root, ours, through_wrappers=bool(self.context.pids))]

    def _await_ready(self, member: Member, aide: Aide, pid: int) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while not (aide.helper.ended() or self._ready(member, aide, pid) or self.interrupted()):
            if time.monotonic() > deadline:
                member.notes.append(f"had not attached after {READY_LIMIT_S:g} s; the target went on without it")
                return
            time.sleep(0.002)

    def _ready(self, member: Member, aide: Aide, pid: int) -> bool:
        if aide.beside.ready == "tracer" and self.context.pids:  # it may be meant for some of them only
            return any(process.tracer_of(one.pid) == aide.helper.pid for one in self.visit.found)
        if aide.beside.ready == "tracer":
            return process.tracer_of(pid) != 0
        if aide.beside.ready == "fds":
            return process.perf_descriptors(aide.helper.pid) > 0
        if aide.beside.ready == "file":
            return (member.dir / aide.beside.ready_value).exists()
        if aide.beside.ready == "says":
            return any(re.search(aide.beside.ready_value, tail(path), re.M) for path in aide.helper.logs)
        time.sleep(float(aide.beside.ready_value))
        return True

    # ------------------------------------------------------------ while it runs

    def follow(self) -> None:
        """Until the target has ended or is left alone again: windows, limits, signals, output."""
        while not self._over():
            self._watch_ranks()
            self._see_pythons()
            self._attach_to_pythons()
            self._answer_bell()
            self._close_together()
            self._turn_window()
            self._watch_limits()
            self._watch_start()
            self._pass_signals_on()
            self._climb()
            self._cap_sizes()
            self._mend_stopped()
            process.reap_orphans(self.inner.pid)
            for relay in self._relays:
                relay.forward()
            self.context.stdin.pump()
            self.context.observer.tick(self._elapsed_s())
            self._sleep()
        self.ended_ns = (self.started.ended_ns if self.started else None) or self._now_ns()
        if self.inner.outlived and self.inner.pid is not None:
            self.inner.exit, self.ended_ns = process.take_exit(self.inner.pid), self._now_ns()
        self.context.stdin.close()

    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def _now_ns(self) -> int:
        """Since the epoch, by a clock that nobody sets while the pass runs."""
        return self.started_ns + round(self._elapsed_s() * 1e9)

    def _over(self) -> bool:
        if self.started is None:
            return self.ended_by != "itself" or not self.visit.goes_on()
        ended = self.started.wait(0)
        if not self.is_wrapped():
            return ended
        self._watch_inner(self.started.pid)
        return ended and not self._outlived()

    def _outlived(self) -> bool:
        """Whether the tool around the target has died and the target goes on: it is followed to its own end."""
        if self.inner.pid is None or not process.alive(self.inner.pid):
            return False
        if not self.inner.outlived:
            self.inner.outlived = True
            how = self.started.exit.describe() if self.started and self.started.exit else "ended"
            self._mishap(f"the tool around the target had gone ({how}) while the target ran on")
        return True

    def _sleep(self) -> None:
        readable, writable = self.context.stdin.watched()
        readable += [self.context.interrupts.fileno()]
        readable += [self.started.fileno()] if self.started and self.started.exit is None else []
        readable += [self.inside.fileno()] if self.inside else []
        readable += self.ranks.filenos()
        select.select(readable, writable, [], EARLY_TICK_S if self._elapsed_s() < EARLY_S else TICK_S)

    def _watch_ranks(self) -> None:
        if self.started and self.started.executing() and not self.context.leads:
            self.ranks.look(self.started.pid, self._now_ns())

    def is_wrapped(self) -> bool:
        """Whether a tool starts the target itself, so that our child is the tool."""
        return any(m.wrap and not m.wrap.keeps_child for m in self.members)

    def main_pid(self) -> int | None:
        """The target itself: our child, or what a wrapping tool has started; None while that is not known."""
        if self.started is None:
            return self.context.pids[0]
        return self.inner.pid if self.is_wrapped() else self.started.pid

    @property
    def tool_start_error(self) -> str | None:
        """Why the tool around the target could not be started; None where it could, or where there is none."""
        return self.started.start_error if self.started and any(m.wrap for m in self.members) else None

    def exit_is_the_tools(self) -> bool:
        """Whether the exit status of our child tells nothing of the target."""
        return bool(self.tool_start_error) or (self.is_wrapped() and self.tool_stopped)

    def _watch_inner(self, tool_pid: int) -> None:
        """Finds the target under its tool, and gives the tool its flush time once the target has ended."""
        now, flush_s = time.monotonic(), max(m.collector.flush for m in self.members)
        if self.inner.pid is None:
            self.inner.pid, self.inner.found_at = self._find_inner(tool_pid), now
        elif self.inner.gone_at is None:
            self.inner.gone_at = None if process.alive(self.inner.pid) else now
        if self._ladder is not None:
            return
        if self.inner.gone_at is not None and now > self.inner.gone_at + flush_s:
            self._stop_tool(f"the tool had not ended {now - self.inner.gone_at:.0f} s after the target")
        elif self.inner.pid is None and self._elapsed_s() > self._unseen_limit_s():
            if self.inner.last_at is None or self._strangers(tool_pid):
                self.inner.last_at = now
            elif now > self.inner.last_at + flush_s:
                self._stop_tool(
                    f"the tool had not ended after {self._elapsed_s():.0f} s, and the target was never seen"
                )

    def _watch_start(self) -> None:
        """A tool that becomes the target itself (strace -DD) does so within milliseconds, or hangs."""
        if self._began_target or self.is_wrapped() or not any(m.wrap for m in self.members):
            return
        if self.started is None or not self.started.executing():
            return
        argv = process.argv_of(self.started.pid)
        wraps = self._is_around(argv)
        self._began_target = bool(argv) and not wraps
        if wraps and self._ladder is None and self._elapsed_s() > self._unseen_limit_s():
            self._stop_tool(f"the tool had not started the target after {self._elapsed_s():.0f} s")

    def _unseen_limit_s(self) -> float:
        """After what time a target that was never seen under its tool has ended before the first look."""
        if self.context.bare_wall_s is None:
            return math.inf
        expected_s = self.context.bare_wall_s * math.prod(m.collector.slowdown for m in self.members)
        return UNSEEN_S + 10 * expected_s

    def _strangers(self, tool_pid: int) -> set[int]:
        """What runs under the tool and is not its own: the target may have become another program (env, exec)."""
        return {*process.descendants(tool_pid), *self._marked()} - {tool_pid, *self._tools()}

    def _stop_tool(self, why: str) -> None:
        self.tool_stopped = True
        self._mishap(f"{why}: it was stopped")
        self._ladder = Ladder(STOP_LADDER)

    def _find_inner(self, root: int) -> int | None:
        """The first descendant that runs the target's own command line (a script's interpreter may stand before it)."""
        names, words = {self.target.argv[0], self.target.exe}, self.target.argv[1:]
        for pid in process.descendants(root):
            argv = process.argv_of(pid)
            head, tail = argv[: len(argv) - len(words)], argv[len(argv) - len(words) :]
            if head and tail == words and names & set(head) and not self._is_around(head):
                return pid
        return None

    def _attach_to_pythons(self) -> None:
        """Starts the tools that want one instance for each top-most Python process; where processes are attached to,
        from the window's opening on."""
        wanted, root = list(self._wanted_by_pythons()), self.main_pid()
        if not wanted or root is None or self._is_full:
            return
        if not (self.started.executing() if self.started else self.window_opened):
            return
        for pid in self._top_pythons(*(self.context.pids or (root,))):
            identity = process.image(pid)
            if identity in self._pythons or identity is None or self._is_expected(pid, identity):
                continue
            self._pythons.add(identity)
            if not self._is_chosen(pid):
                continue
            if self._looked_into == PYTHON_LIMIT:
                self._is_full = True
                self.notes.append(f"more than {PYTHON_LIMIT} Python processes: the later ones were not looked at")
                break
            self._looked_into += 1
            if self.context.pids and pid not in (one.pid for one in self.visit.found):
                self.visit.meet()
            for member, beside in wanted:
                self._help(member, beside, pid)

    def _wanted_by_pythons(self) -> Iterator[tuple[Member, Beside]]:
        """From the start on or, where they have a window, as long as that is open."""
        yield from self._besides("python")
        if self.window_opened and not self._window_closed and not self.context.pids:
            yield from ((m, b) for m, b in self._besides("window") if _for_each_python(b))

    def _is_chosen(self, pid: int) -> bool:
        """Whether it is of a rank that the plan wants to be looked at; what is of no rank is."""
        rank = numbers(place_of(process.environ_of(pid) or {}))[0]
        return self.context.ranks is None or rank is None or rank in self.context.ranks

    def _is_expected(self, pid: int, identity: tuple[int, ...]) -> bool:
        """Whether it will ring as soon as it can be looked into: a tool that comes earlier finds no Python in it."""
        if self.inside is None or pid in self._rung or self.window_opened or not will_ring(pid):
            return False
        return time.monotonic() - self._expected.setdefault(identity, time.monotonic()) < RING_S

    def _see_pythons(self) -> None:
        """Notes how the first Python processes were started: whether a launcher has dropped what we had set."""
        root, known = self.main_pid(), self.pythons
        enough = known and self._elapsed_s() > EARLY_S and len(known) >= (self.ranks.expected or 0)
        if self.inside is None or root is None or enough or len(known) >= PYTHON_LIMIT:
            return
        if self.started and not self.started.executing():
            return
        for pid in self._top_pythons(root):
            identity = process.image(pid)
            if identity is None or identity in self._seen:
                continue
            argv, env = self.context.redact(process.argv_of(pid)), process.environ_of(pid)
            if not argv:  # amid its exec
                continue
            self._seen.add(identity)
            shown = None if env is None else {name: env.get(name) for name in boot.SHOWN}
            let_in = None if env is None else is_injected(env)
            in_reach = is_within_reach(pid, env) if env is not None and let_in else None
            known.append(SeenPython(pid, argv, shown, let_in, in_reach, *process.attributes_of(pid)))

    def _answer_bell(self) -> None:
        """What profrun's part in the target's Python asks for; the process waits until it is done."""
        for word, pid, ring in self.inside.calls() if self.inside else ():
            if word == "open":
                self._in_window.add(pid)
            if word == "python":  # it waits in its start-up: the tools that want to be there from the start attach now
                self._rung.add(pid)
                self._attach_to_pythons()
                self._await_new()
            elif word == "open" and not self.window_opened:
                self._note_window()
                self._open_window()
                self._await_new()
            elif word == "close" and not self._window_closed:
                self._closing_since = self._closing_since or time.monotonic()
                self._closing[pid] = ring
                continue
            elif word == "done":
                self._in_window.discard(pid)
                self._done.add(self.ranks.rank_of(pid))
                self._first_done = self._first_done or time.monotonic()
            if self.inside:
                self.inside.answer(pid, ring)

    def _close_together(self) -> None:
        """The window closes when all that are in it are through: tools beside a job are the same for all ranks. One for
        which others wait in a collective is not held for long."""
        others = (pid for pid in self._in_window - {*self._closing} if process.alive(pid))
        if not self._closing or (time.monotonic() - self._closing_since < TOGETHER_S and any(others)):
            return
        if not self._window_closed:
            self._close_steps()
        for pid, ring in self._closing.items():
            if self.inside:
                self.inside.answer(pid, ring)
        self._closing.clear()

    def _await_new(self) -> None:
        """Until the tools that were started just now have attached."""
        for member in self.members:
            for aide in member.aides:
                if (self.context.pids or aide.beside.when in ("python", "window")) and not aide.awaited:
                    aide.awaited = True
                    self._await_ready(member, aide, self.main_pid() or 0)

    def _close_steps(self) -> None:
        """The last step of the window has ended; the target waits until its tools have let go of it."""
        self._close_window("continue")
        deadline = time.monotonic() + LET_GO_S
        aides = [aide for member in self.members for aide in member.aides if aide.beside.when == "window"]
        while time.monotonic() < deadline and not self.interrupted() and not all(a.helper.ended() for a in aides):
            time.sleep(0.005)
        if not self.interrupted() and not all(aide.helper.ended() for aide in aides):
            self.notes.append(f"tools had not let go {LET_GO_S:g} s after the window; the target went on under them")

    def _aide_pids(self) -> set[int]:
        return {aide.helper.pid for member in self.members for aide in member.aides}

    def _stop_when_done(self) -> None:
        """Ends the target, where the plan says so, when all processes have done the window's steps: one rank may still
        save its own, or be on its way to them, while another has gone on."""
        window, since = self.planned.window, self._first_done
        if window is None or window.then != "stop" or since is None or self.ended_by == "window":
            return
        busy = any(map(process.alive, self._in_window)) or bool(self.ranks.living() - self._done)
        all_done = not busy and self.context.all_done()
        if all_done or time.monotonic() - since > LET_GO_S:
            self._close_window("stop")

    def _turn_window(self) -> None:
        """Opens and closes the plan's window for the tools that follow it."""
        window, elapsed_s = self.planned.window, self._elapsed_s()
        if window is None:
            return
        if window.steps is not None:
            (self._follow_steps if self.context.pids else self._stop_when_done)()
            return
        if not self.window_opened and elapsed_s >= window.after_s:
            self._note_window()
            self._open_window()
            self._window_since_s = self._elapsed_s() if self.context.pids else window.after_s
        since_s = self._window_since_s if self._window_since_s is not None else math.inf
        if window.for_s is not None and elapsed_s >= since_s + window.for_s:
            self._close_window(window.then)

    def _follow_steps(self) -> None:
        """In what runs already: what counts the steps is told at once, and the window closes when it has ended."""
        if not self.window_opened:
            self.window_opened = True
            self._open_window()
        counting = [aide for member in self.members for aide in member.aides if aide.beside.name == "wake"]
        if all(aide.helper.ended() for aide in counting):
            self._close_window("continue")

    def _note_window(self) -> None:
        window, self.window_opened = self.planned.window, True
        if window is None or self.planned.role != "profiled" or not self.started:
            return
        if window.steps is not None:
            last = window.skip + window.steps - 1
            self.notes.append(f"recorded only steps {window.skip} to {last}")
            return
        length = f" for {show_duration(window.for_s)}" if window.for_s is not None else ""
        self.notes.append(f"recorded only from {show_duration(window.after_s)} on{length}")

    def _open_window(self) -> None:
        pid = self.main_pid()
        for member, beside in self._besides("window"):
            member.started_ns = self._now_ns()
            if pid is not None and (self.context.pids or not _for_each_python(beside)):
                self._help(member, beside, pid)
        self._attach_to_pythons()
        if self.context.pids:  # the time that a user has asked for is that in which the tools look
            self._await_new()

    def _close_window(self, then: str) -> None:
        """Asks the tools of the window to end; `finish` waits for them, so that the target is not kept waiting."""
        self._window_closed = True
        for member in self.members:
            for aide in member.aides:
                if aide.beside.when == "window" and not aide.helper.asked_to_stop:
                    member.ended_ns = self._now_ns()
                    aide.ask_to_stop()
        if self.started is None:
            self.ended_by = "detached"
        elif then == "stop" and self._ladder is None:
            by_steps = self.planned.window is not None and self.planned.window.steps is not None
            self.ended_by, self._ladder = "window", Ladder(STOP_LADDER, OUT_OF_OURS_S if by_steps else 0.0)

    def _watch_limits(self) -> None:
        """The pass's time-out, and the signals that profrun itself got."""
        received, limit_s = self.context.interrupts.received, self.planned.timeout_s
        if received and self.ended_by != "interrupt":
            self.ended_by = "interrupt"
            self._ladder = Ladder(((received[0], INTERRUPT_GRACE_S + self.context.patience_s), *STOP_LADDER[1:]))
            self._climb()  # before a word is said, for which a terminal that stands still might keep us waiting
            self.context.observer.interrupted(received[0])
        elif len(received) > 1 and self._ladder and signal.SIGKILL not in self._ladder.sent:
            self._ladder = Ladder(STOP_LADDER[-1:] * (2 if self.context.leads else 1))  # first the agents are asked
        elif limit_s is not None and self._ladder is None and self._elapsed_s() > limit_s:
            self.ended_by, self._ladder = "timeout", Ladder(STOP_LADDER)

    def _pass_signals_on(self) -> None:
        pid = self.main_pid() if self.started else None
        for number in self.context.interrupts.for_target():
            if pid is not None:
                process.send(pid, number)

    def _climb(self) -> None:
        """Sends the next signal to a target that is to end. An attached process is never ended."""
        number = self._ladder.next_signal() if self._ladder and self.started else None
        if number is None or self.started is None or self._ladder is None or self.context.ask_to_end(number):
            return
        main = self.main_pid() if self.inner.gone_at is None else None
        if main is None:
            process.send_group(self.started.pid, number)
        elif len(self._ladder.sent) == 1 and number != signal.SIGKILL:
            process.send_group(main, number)
            process.continue_stopped([main])  # one that stands still would not hear it
        else:
            family = [main, *process.descendants(main)]
            for pid in reversed([pid for pid in family if pid not in keeper.apart(family)]):
                process.send(pid, number)
                process.send(pid, signal.SIGCONT)

    def _cap_sizes(self) -> None:
        for member in self.members:
            for aide in member.aides:
                cap, path = aide.beside.size_cap_bytes, member.dir / str(aide.beside.size_path)
                limit_s, since_ns = aide.beside.time_cap_s, member.started_ns or self.started_ns
                late = limit_s is not None and self._now_ns() - since_ns > limit_s * 1e9
                if not aide.helper.asked_to_stop and (late or (cap is not None and _size(path) > cap)):
                    member.truncated = True
                    aide.ask_to_stop()

    def _mend_stopped(self) -> None:
        """A tool that went away may have left the target stopped; nothing else of ours would ever continue it."""
        main = self.main_pid()
        if not any(aide.helper.ended() for member in self.members for aide in member.aides):
            return
        if self.context.pids:
            self.notes += self.visit.free()
        elif main is not None and process.continue_stopped([main]):
            self._mishap(f"a tool had left the target (pid {main}) stopped; it was continued")

    # ------------------------------------------------------------ after it

    def finish(self) -> None:
        """Lets the tools write what they have, ends what must not live on, runs the commands that come after."""
        self._finishing_at = ended = time.monotonic()
        if self.inside:
            self.inside.close()
            self.inside = None
        for member in self.members:
            self._stop_aides(member)
        self._await_tools(ended)
        self._sweep()
        if shutil.disk_usage(self.dir).free < FULL_BYTES:
            self.disk_full = True
            self._mishap(f"the disk of {self.dir} is full: what the target and the tools wrote there may be cut")
        for relay in self._relays:
            relay.close(self.hurried)
        for member in self.members:
            for after in member.launch.after:
                self._after(member, after)
            self._remove_litter(member)

    def abandon(self) -> None:
        """When profrun itself has failed: ends everything of this pass."""
        for member in self.members:
            for aide in member.aides:
                aide.helper.stop(signal.SIGKILL, 0.0)
        if not self.context.pids:
            process.end(lambda: [pid for pid in self._left() if process.alive(pid)], patience_s=0.5)
        else:
            self._leave()

    def _stop_aides(self, member: Member) -> None:
        """Ends the tools of a member; those that end with the target get a moment to do so by themselves."""
        began = time.monotonic()
        for aide in member.aides:
            grace_s = self._at_most(max(aide.beside.grace_s, member.collector.flush))
            if not aide.helper.asked_to_stop and not self.context.pids:
                aide.helper.wait(BY_ITSELF_S, self.hurried)
            aide.stop(grace_s, self.hurried)
            if aide.helper.killed:
                when = "at once, as a second signal asked for" if self.hurried() else f"after {grace_s:g} s"
                member.notes.append(f"killed {when}; its output may be cut")
        if member.aides:
            member.flush_s = round(time.monotonic() - began, 3)
            member.ended_ns = member.ended_ns or self.ended_ns

    def _await_tools(self, ended: float) -> None:
        """Waits for the processes of wrapping tools: tracers that are no children of ours, agents in the background."""
        wrapped = [m for m in self.members if m.wrap]
        if not wrapped:
            return
        # a tool that was our child has written what it had when it ended; a tracer beside the target writes now
        flush_s = self._at_most(max(m.collector.flush for m in wrapped)) if not self.is_wrapped() else AGENTS_S
        deadline, asked = ended + flush_s, False
        while tools := self._tools():
            now = time.monotonic()
            if now > deadline or self.hurried():
                self._mishap(f"{len(tools)} processes of the tool were ended {now - ended:.0f} s after the target")
                process.end(self._tools, patience_s=0.5)
                break
            if now - ended > FOLLOWERS_S and not asked:
                asked = True  # it follows what the target left running: what it has by now is this pass's data
                self._release(tools)
            time.sleep(0.01)
        since = self.inner.gone_at if self.inner.gone_at is not None else ended
        for member in wrapped:
            member.flush_s = round(time.monotonic() - since, 3)

    def _at_most(self, flush_s: float) -> float:
        """How long tools may take to write what they have: those of a failed target share one time."""
        ended = self.started.exit if self.started else None
        failed = ended is not None and self.ended_by == "itself" and ended.status not in self.context.ok_exit_codes
        since_s = time.monotonic() - self._finishing_at if self._finishing_at is not None else 0.0
        return min(flush_s, max(0.0, self.context.failed_flush_s - since_s)) if failed else flush_s

    def _release(self, tools: list[int]) -> None:
        """Ends the wait of tools that follow processes which the target left running.

        A tracer with a seccomp filter can't be taken away from what it traces (every filtered call would fail from then
        on, see seccomp(2), SECCOMP_RET_TRACE): there the processes are ended, and it writes by itself."""
        if any(m.wrap and m.wrap.keeps_child for m in self.members):
            self.killed += process.end(self._left_by_target)
            return
        for pid in tools:
            process.send(pid, signal.SIGTERM)

    def _left_by_target(self) -> list[int]:
        tools = self._tools()
        return [pid for pid in self._left() if pid not in tools]

    def _marked(self) -> list[int]:
        return [pid for pid in process.marked(self.mark) if process.alive(pid)]

    def _tools(self) -> list[int]:
        """Living processes of wrapping tools: of the tool's own file, or of its installation."""
        paths = [m.tool.path for m in self.members if m.wrap and m.tool.path]
        files = {os.path.realpath(path) for path in paths}
        homes = tuple(str(Path(file).parent) + "/" for file in files if str(Path(file).parent) not in _SYSTEM_PLACES)
        exes = {pid: os.path.realpath(process.exe_of(pid) or "") for pid in self._marked()}
        of_tools = [pid for pid, exe in exes.items() if exe in files or exe.startswith(homes or ("\0",))]
        return [*of_tools, *(pid for pid in exes if pid not in of_tools and self._is_around(process.argv_of(pid)))]

    def _is_around(self, argv: Sequence[str]) -> bool:
        """Whether a command line is that of a tool around the target: its file may be another than what we started, a
        script."""
        words = set(argv)
        return any(m.wrap and set(m.wrap.argv[1:]) <= words for m in self.members)

    def _sweep(self) -> None:
        """Ends what must not live on: everything after a time-out or an interrupt, else what the plan says."""
        if self.context.pids:
            self._leave()
            return
        if self.context.end_leftovers or self.ended_by in ("timeout", "interrupt"):
            self.killed += keeper.end(self._left)
        # one without a command line is ending right now
        self.leftovers = [seen for seen in map(process.describe, self._left()) if seen.argv]
        for pid in process.continue_stopped(self._left()):
            self._mishap(f"pid {pid} was left stopped; it was continued")
        process.reap_orphans()

    def _leave(self) -> None:
        """What runs on is as it was; what bears the mark of this pass can only be a tool, or of one."""
        ended = process.end(self._marked)
        self.killed += ended
        self.notes += [f"process {one.pid} of a tool had outlived it; it was ended" for one in ended]
        self.notes += self.visit.leave(self._marked())

    def _left(self) -> list[int]:
        ours = {*process.descendants(os.getpid()), *process.marked(self.mark)} - self._before - self._aide_pids()
        return sorted(pid for pid in ours - keeper.apart(ours) if process.alive(pid))

    def _remove_litter(self, member: Member) -> None:
        """Files that a tool left outside its directory and that nobody needs; they may hold the environment."""
        for pattern in member.launch.litter:
            for found in re.finditer(pattern, _texts((self.dir, member.dir))):
                with contextlib.suppress(OSError):
                    Path(found[1]).unlink()

    def _after(self, member: Member, after: After) -> None:
        if after.when_missing and (member.dir / after.when_missing).exists():
            return
        if after.needs and not (member.dir / after.needs).exists():
            return
        member.commands.append(after.argv)
        env = {**os.environ, process.MARKER: self.mark}
        limit_s = min(after.timeout_s, self.context.after_s)
        answer = process.ask(after.argv, timeout_s=limit_s, env=env, cwd=str(member.dir), give_up=self.hurried)
        for name, text in (("stdout.log", answer.stdout), ("stderr.log", answer.stderr + (answer.error or ""))):
            with contextlib.suppress(OSError), (member.dir / name).open("a", errors="surrogateescape") as log:
                log.write(text)


def _for_each_python(beside: Beside) -> bool:
    return any("{python}" in word for word in beside.argv)


def _texts(folders: Iterable[Path]) -> str:
    return "".join(tail(path) for folder in folders for path in sorted(folder.glob("*.log")))


_SYSTEM_PLACES = frozenset({"/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"})


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def tail(path: Path) -> str:
    """The last part of a log, for reasons and signs."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _size(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _top_pythons(root: int, but: set[int], *, through_wrappers: bool) -> list[int]:
    """The Python processes of a tree that have no Python among their ancestors in it, or none but that of a launcher of
    ranks, or of any wrapper."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        if pid in but:
            continue
        wrapper = wrapper_of(process.argv_of(pid))
        passed = wrapper in LAUNCHERS.values() or (through_wrappers and wrapper)
        if not passed and process.is_python(pid):
            found.append(pid)
        else:
            queue += process.children(pid)
    return found
