"""One pass: the target runs once with its tools around and beside it, and leaves one capture for each."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import folder, process
from orchestrator.model import (
    After,
    Artifact,
    Beside,
    Capture,
    Child,
    Expect,
    Job,
    Launch,
    Pass,
    PassRecord,
    Process,
    Status,
    Target,
    TargetRun,
    Tool,
)
from orchestrator.stdio import Relay, Stdin

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.folder import Folder
    from orchestrator.machine import Machine

READY_LIMIT_S = 10.0
"""How long a tool may take to attach before the target goes on without it."""
EARLY_S, EARLY_TICK_S, TICK_S = 5.0, 0.02, 0.1
"""New Python processes are looked for often in the first seconds, then less: a look costs about 0.1 ms."""
PYTHON_LIMIT = 32
"""At most so many Python processes get a tool of their own in one pass."""
_STOP_LADDER = ((signal.SIGINT, 10.0), (signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_INTERRUPT_GRACE_S = 30.0
_LOG_TAIL_BYTES = 64 << 10


class Interrupts(Protocol):
    """The signals that profrun itself got; `fileno` becomes readable with each."""

    @property
    def received(self) -> tuple[int, ...]: ...

    def fileno(self) -> int: ...


class Observer(Protocol):
    """Who is shown the progress of a run."""

    def tick(self, elapsed_s: float) -> None: ...


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
    """Processes to attach to instead of starting the target."""


def run_pass(planned: Pass, context: Context, attempt: int = 1) -> tuple[PassRecord, list[Capture]]:
    """Runs one pass to its end. Whatever a tool does becomes the status of its capture; nothing is raised for it.

    Raises OSError only when profrun's own scratch can't be written."""
    live = _Live(planned, context, attempt)
    refused = live.before_each()
    if refused:
        return live.skipped(refused)
    live.start()
    live.follow()
    live.finish()
    return live.harvest()


def substitute(words: Iterable[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """Replaces {name} for the given names only; every other brace is left alone."""
    pattern = re.compile("|".join(re.escape("{" + name + "}") for name in names))
    return tuple(pattern.sub(lambda found: names[found[0][1:-1]], word) for word in words)


@dataclass
class _Member:
    """A collector in this pass."""

    collector: Collector
    name: str
    job: Job
    launch: Launch
    tool: Tool
    helpers: list[process.Helper] = field(default_factory=list)
    argvs: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    flush_s: float | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    truncated: bool = False
    failure: str | None = None

    @property
    def dir(self) -> Path:
        return Path(self.job.dir)


class _Ladder:
    """Asking a target to end: one signal after the other, each with its patience."""

    def __init__(self, steps: Iterable[tuple[int, float]]) -> None:
        self._steps = list(steps)
        self._until = 0.0
        self.sent: list[int] = []

    def next_signal(self) -> int | None:
        """The signal that is due now, or None."""
        if time.monotonic() < self._until or not self._steps:
            return None
        number, patience_s = self._steps.pop(0)
        self._until = time.monotonic() + patience_s
        self.sent.append(number)
        return number


class _Live:
    """A pass while it runs. The methods are called in the order in which they stand."""

    def __init__(self, planned: Pass, context: Context, attempt: int) -> None:
        self.planned, self.context, self.attempt = planned, context, attempt
        self.mark = f"{context.run_id}/{planned.id}"
        self.dir = context.scratch / f"{planned.id}-target"
        self.dir.mkdir()
        self.names = {"pass": planned.id, "scratch": str(context.scratch / "files")}
        self.target = self._target()
        self.members = self._members()
        self.started: process.Started | None = None
        self.inner: int | None = None
        self.ladder: _Ladder | None = None
        self.ended_by = "itself"
        self.notes: list[str] = []
        self.seen: set[tuple[int, int | None]] = set()
        self.before = set(process.marked(context.run_id))
        self.relays: list[Relay] = []
        self.window_open = False
        self.flush_deadline: float | None = None
        self.gone_at: float | None = None
        self.killed: list[Process] = []
        self.started_ns = time.time_ns()

    # ------------------------------------------------------------ what will run

    def _target(self) -> Target:
        target = self.context.target
        env = {**target.env, **self.context.child.set}
        env = {k: substitute((v,), self.names)[0] for k, v in env.items() if k not in self.context.child.unset}
        return replace(target, argv=substitute(target.argv, self.names), env={**env, process.MARKER: self.mark})

    def _members(self) -> list[_Member]:
        labels = [collector.label() for collector in self.planned.members]
        members = []
        for index, collector in enumerate(self.planned.members):
            twin = labels[:index].count(labels[index])
            name = f"{self.planned.id}-{labels[index]}" + (f"-{twin + 1}" if twin else "")
            members.append(self._member(collector, name, tuple(x for i, x in enumerate(labels) if i != index)))
        return members

    def _member(self, collector: Collector, name: str, partners: tuple[str, ...]) -> _Member:
        directory = self.context.scratch / name
        directory.mkdir()
        tool = collector.tool(self.context.machine)
        job = Job(
            pass_id=self.planned.id,
            dir=str(directory),
            target=self.target,
            tool=tool,
            pids=self.context.pids,
            window=self.planned.window,
            duration_s=self.context.bare_wall_s,
            facts=self.context.facts,
            partners=partners,
            attempt=self.attempt,
        )
        try:
            return _Member(collector, name, job, collector.launch(job), tool)
        except Exception as error:  # a collector from another package may raise anything; the others go on
            return _Member(collector, name, job, Launch(), tool, failure=f"{type(error).__name__}: {error}")

    def before_each(self) -> str | None:
        """Runs the plan's `before_each`; says why the pass can't be run when that fails."""
        if not self.context.before_each:
            return None
        argv = substitute(self.context.before_each, self.names)
        answer = process.ask(argv, timeout_s=600, env=self.target.env, cwd=self.target.cwd)
        if answer.ok:
            return None
        said = answer.error or f"{answer.exit.describe() if answer.exit else ''} {_last_line(answer.stderr)}"
        return f"before_each ({' '.join(self.context.redact(argv))}) failed: {said.strip()}"

    def skipped(self, reason: str) -> tuple[PassRecord, list[Capture]]:
        """The pass that could not be run."""
        return self._record(None), [self._store(member, "skipped", reason, None, []) for member in self.members]

    # ------------------------------------------------------------ starting

    def start(self) -> None:
        """Starts the tools that come first, the target, and those that attach before it goes on."""
        for member, beside in self._besides("start"):
            self._help(member, beside, self.context.pids[0] if self.context.pids else 0)
        if self.context.pids:
            self._mark_start()
            return
        gated = any(True for _ in self._besides("gate"))
        self.started = process.start(self._spec(), gated=gated)
        self._listen()
        if gated:
            pairs = [(member, b, self._help(member, b, self.started.pid)) for member, b in self._besides("gate")]
            for member, beside, helper in pairs:
                self._await_ready(member, beside, helper)
            self.started.open_gate()
        self._mark_start()

    def _besides(self, when: str) -> Iterable[tuple[_Member, Beside]]:
        return ((m, b) for m in self.members for b in m.launch.beside if b.when == when)

    def _mark_start(self) -> None:
        self.started_ns = self.started.started_ns if self.started else time.time_ns()
        for member in self.members:
            member.started_ns = member.started_ns or self.started_ns

    def _spec(self) -> process.Spec:
        wraps = sorted((m.launch.wrap for m in self.members if m.launch.wrap), key=lambda w: w.order)
        argv = self.target.argv
        if wraps:
            argv = (*(word for wrap in wraps for word in wrap.argv), self.target.exe, *self.target.argv[1:])
        stdin = self.context.stdin.open()
        stdout, stderr = (self._create(self.dir / f"{name}.log") for name in ("stdout", "stderr"))
        exe = wraps[0].argv[0] if wraps else self.target.exe
        return process.Spec(exe, argv, self._env(), self.target.cwd, stdin, stdout, stderr, self._child())

    @staticmethod
    def _create(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _env(self) -> dict[str, str]:
        env = dict(self.target.env)
        for member in self.members:
            env.update(member.launch.child.set)
            for name in member.launch.child.unset:
                env.pop(name, None)
        return env

    def _child(self) -> Child:
        """The first wish for each attribute counts, the environment steps' before the collectors'."""
        wishes = (self.context.child, *(m.launch.child for m in self.members))
        first: dict[str, Any] = {
            k: next((getattr(w, k) for w in wishes if getattr(w, k) is not None), None) for k in _ATTRIBUTES
        }
        return Child(**first)

    def _listen(self) -> None:
        if self.context.outputs:
            names = ("stdout", "stderr")
            pairs = zip(names, self.context.outputs, strict=True)
            self.relays = [Relay(self.dir / f"{name}.log", fd) for name, fd in pairs]

    def _help(self, member: _Member, beside: Beside, pid: int) -> process.Helper | None:
        """Starts a tool beside the target; one that can't be started is that capture's failure."""
        serial = str(len(member.helpers))
        pids = ",".join(map(str, self.context.pids or (pid, *process.descendants(pid))))
        argv = substitute(beside.argv, {"pid": str(pid), "pids": pids, "n": serial})
        stem = f"{serial}." if len(member.helpers) else ""
        env = {**os.environ, process.MARKER: self.mark}
        files = (member.dir / f"{stem}stdout.log", member.dir / f"{stem}stderr.log")
        try:
            helper = process.Helper(argv, *files, env, member.dir)
        except OSError as error:
            member.failure = f"{argv[0]} can't be started: {error.strerror}"
            return None
        member.helpers.append(helper)
        member.argvs.append(argv)
        return helper

    def _await_ready(self, member: _Member, beside: Beside, helper: process.Helper | None) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while helper and not helper.ended() and self.started:
            if self._ready(beside, helper, self.started.pid, member):
                return
            if time.monotonic() > deadline:
                member.notes.append(f"had not attached after {READY_LIMIT_S:g} s; the target went on without it")
                return
            time.sleep(0.002)

    @staticmethod
    def _ready(beside: Beside, helper: process.Helper, pid: int, member: _Member) -> bool:
        if beside.ready == "tracer":
            return process.tracer_of(pid) != 0
        if beside.ready == "fds":
            return process.perf_descriptors(helper.pid) > 0
        if beside.ready == "file":
            return (member.dir / beside.ready_value).exists()
        time.sleep(float(beside.ready_value))
        return True

    # ------------------------------------------------------------ while it runs

    def follow(self) -> None:
        """Until the target has ended or is left alone again: windows, limits, signals, output."""
        while not self._over():
            self._attach_to_pythons()
            self._turn_window()
            self._watch_limits()
            self._climb()
            self._cap_sizes()
            for relay in self.relays:
                relay.forward()
            self.context.stdin.pump()
            self.context.observer.tick(self._elapsed_s())
            self._sleep()
        self._ended_ns = self.started.ended_ns if self.started and self.started.ended_ns else time.time_ns()
        self.context.stdin.close()

    def _elapsed_s(self) -> float:
        return (time.time_ns() - self.started_ns) / 1e9

    def _over(self) -> bool:
        if self.started is None:
            return self.ended_by != "itself" or not any(process.alive(pid) for pid in self.context.pids)
        if self.started.wait(0):
            return True
        self._watch_inner()
        return False

    def _sleep(self) -> None:
        tick = EARLY_TICK_S if self._elapsed_s() < EARLY_S else TICK_S
        watched = [self.context.interrupts.fileno()]
        if self.started:
            watched.append(self.started.fileno())
        stdin = self.context.stdin.fileno()
        if stdin is not None:
            watched.append(stdin)
        select.select(watched, [], [], tick)

    def _main_pid(self) -> int | None:
        """The target itself: our child, or what a wrapping tool has started."""
        if self.started is None:
            return self.context.pids[0]
        if not self._foreign_parent():
            return self.started.pid
        return self.inner

    def _foreign_parent(self) -> bool:
        return any(m.launch.wrap and not m.launch.wrap.keeps_child for m in self.members)

    def _watch_inner(self) -> None:
        """Under a tool that starts the target itself: finds the target, and gives the tool its time when it has ended."""
        if not self._foreign_parent() or self.started is None:
            return
        if self.inner is None:
            self.inner = self._find_inner(self.started.pid)
            self._inner_found_at = time.perf_counter()
        elif self.gone_at is None and not process.alive(self.inner):
            self.gone_at = time.monotonic()
            self._inner_wall_s = time.perf_counter() - self._inner_found_at
            flush_s = max(m.collector.flush for m in self.members)
            self.flush_deadline = self.gone_at + flush_s
        elif self.flush_deadline and time.monotonic() > self.flush_deadline and self.ladder is None:
            self.notes.append("the tool did not end after the target and was stopped")
            self.ladder = _Ladder(_STOP_LADDER)

    def _find_inner(self, root: int) -> int | None:
        """The first descendant that runs the target's own command line (a script's interpreter may stand before it)."""
        words = self.target.argv[1:]
        for pid in process.descendants(root):
            argv = process.argv_of(pid)
            if argv and (not words or argv[-len(words) :] == words) and self._is_target(argv):
                return pid
        return None

    def _is_target(self, argv: tuple[str, ...]) -> bool:
        names = {self.target.argv[0], self.target.exe}
        tools = {m.launch.wrap.argv[0] for m in self.members if m.launch.wrap}
        return bool(names & set(argv)) and not ({argv[0]} & tools)

    def _attach_to_pythons(self) -> None:
        """Starts the tools that want one instance for each top-most Python process."""
        wanted = list(self._besides("python"))
        root = self._main_pid()
        if (
            not wanted
            or root is None
            or (self.started and not self.started.executing())
            or len(self.seen) >= PYTHON_LIMIT
        ):
            return
        for pid in _top_pythons(root, self._tool_pids_known()):
            identity = (pid, process.started_ticks(pid))
            if identity not in self.seen and identity[1] is not None:
                self.seen.add(identity)
                for member, beside in wanted:
                    self._help(member, beside, pid)
                if len(self.seen) == PYTHON_LIMIT:
                    self.notes.append(f"more than {PYTHON_LIMIT} Python processes: the later ones were not looked at")

    def _tool_pids_known(self) -> set[int]:
        return {helper.pid for member in self.members for helper in member.helpers}

    def _turn_window(self) -> None:
        """Opens and closes the plan's window for the tools that follow it."""
        window = self.planned.window
        if window is None:
            return
        elapsed = self._elapsed_s()
        if not self.window_open and elapsed >= window.after_s:
            self.window_open = True
            self._open_window()
        elif self.window_open and window.for_s is not None and elapsed >= window.after_s + window.for_s:
            self._close_window(window.then)

    def _open_window(self) -> None:
        pid = self._main_pid()
        for member, beside in self._besides("window"):
            if pid is not None:
                member.started_ns = time.time_ns()
                self._help(member, beside, pid)

    def _close_window(self, then: str) -> None:
        for member, beside in self._besides("window"):
            if member.ended_ns is None:
                member.ended_ns = time.time_ns()
                self._stop_helpers(member, beside)
        if self.started is None:
            self.ended_by = "detached"
        elif then == "stop" and self.ladder is None:
            self.ended_by, self.ladder = "window", _Ladder(_STOP_LADDER)

    def _watch_limits(self) -> None:
        """Time-out and the signals that profrun itself got."""
        received = self.context.interrupts.received
        if received and self.ended_by != "interrupt":
            self.ended_by = "interrupt"
            self.ladder = _Ladder(((received[0], _INTERRUPT_GRACE_S), *_STOP_LADDER[1:]))
        elif len(received) > 1 and self.ladder and signal.SIGKILL not in self.ladder.sent:
            self.ladder = _Ladder(_STOP_LADDER[-1:])
        limit = self.planned.timeout_s
        if limit is not None and self.ladder is None and self._elapsed_s() > limit:
            self.ended_by, self.ladder = "timeout", _Ladder(_STOP_LADDER)

    def _climb(self) -> None:
        """Sends the next signal to a target that is to end. An attached process is never ended."""
        number = self.ladder.next_signal() if self.ladder and self.started else None
        if number is None or self.started is None:
            return
        main = self._main_pid() if self.gone_at is None else None
        if main is None:
            process.send_group(self.started.pid, number)
        elif len(self.ladder.sent) == 1 if self.ladder else False:
            process.send_group(main, number)
        else:
            for pid in reversed([main, *process.descendants(main)]):
                process.send(pid, number)
                process.send(pid, signal.SIGCONT)

    def _cap_sizes(self) -> None:
        for member in self.members:
            for beside, helper in zip(member.launch.beside, member.helpers, strict=False):
                if beside.size_cap_bytes and beside.size_path and not helper.ended():
                    with contextlib.suppress(OSError):
                        if (member.dir / beside.size_path).stat().st_size > beside.size_cap_bytes:
                            member.truncated = True
                            helper.stop(getattr(signal, beside.signal), beside.grace_s)
        self._mend_stopped()

    def _mend_stopped(self) -> None:
        """A tool that went away may have left the target stopped; nothing else of ours would ever continue it."""
        main = self._main_pid()
        helpers = [h for m in self.members for h in m.helpers]
        if main is None or not any(h.ended() for h in helpers) or process.state(main) != "T":
            return
        if process.continue_stopped([main]):
            self.notes.append(f"a tool had left the target (pid {main}) stopped; it was continued")

    # ------------------------------------------------------------ after it

    def finish(self) -> None:
        """Lets the tools write what they have, ends what must not live on, runs the commands that come after."""
        ended = time.monotonic()
        for member in self.members:
            for beside in member.launch.beside or ():
                if member.ended_ns is None and member.helpers:
                    self._stop_helpers(member, beside)
        self._await_tools(ended)
        self._sweep()
        for relay in self.relays:
            relay.close()
        for member in self.members:
            for after in member.launch.after:
                self._after(member, after)

    def _stop_helpers(self, member: _Member, beside: Beside) -> None:
        """Tools that end with the target get a moment to do so by themselves."""
        began = time.monotonic()
        grace_s = max(beside.grace_s, member.collector.flush)
        for helper in member.helpers:
            if self.planned.window is None and not self.context.pids:
                helper.wait(1.0)
            helper.stop(getattr(signal, beside.signal), grace_s)
            if helper.killed:
                member.notes.append(f"killed after {grace_s:g} s; its output may be cut")
        member.flush_s = round(time.monotonic() - began, 3)
        member.ended_ns = member.ended_ns or time.time_ns()

    def _await_tools(self, ended: float) -> None:
        """Waits for the processes of wrapping tools: tracers that are no children of ours, agents in the background."""
        wrapped = [m for m in self.members if m.launch.wrap]
        if not wrapped:
            return
        deadline = ended + max(m.collector.flush for m in wrapped)
        asked = False
        while pids := [pid for pid in self._marked() if self._is_tool(pid)]:
            now = time.monotonic()
            if now > deadline:
                self.notes += [f"ended {process.describe(p).argv[:1]} after {now - ended:.1f} s" for p in pids]
                process.end(lambda: [pid for pid in self._marked() if self._is_tool(pid)])
                break
            if not asked and now - ended > 0.5 and len(self._marked()) > len(pids):
                asked = True  # it follows what the target left running: what it has now is this pass's data
                for pid in pids:
                    process.send(pid, signal.SIGTERM)
            time.sleep(0.01)
        flush_from = self.gone_at if self.gone_at is not None else ended
        for member in wrapped:
            member.flush_s = round(time.monotonic() - flush_from, 3)

    def _marked(self) -> list[int]:
        return [pid for pid in process.marked(self.mark) if process.alive(pid)]

    def _is_tool(self, pid: int) -> bool:
        """Whether it belongs to a wrapping tool: the tool's own file or one of its installation."""
        exe = process.exe_of(pid) or ""
        homes = {str(Path(m.tool.path).resolve().parent) for m in self.members if m.launch.wrap and m.tool.path}
        return any(os.path.realpath(exe).startswith(h + "/") for h in homes if h not in _SYSTEM_PLACES) or any(
            os.path.realpath(exe) == os.path.realpath(m.tool.path)
            for m in self.members
            if m.launch.wrap and m.tool.path
        )

    def _sweep(self) -> None:
        """Ends what must not live on: everything after a time-out or an interrupt, else what the plan says."""
        self.leftovers = [process.describe(pid) for pid in self._left()]
        if self.context.pids:
            process.continue_stopped(self.context.pids)
            return
        if self.context.end_leftovers or self.ended_by in ("timeout", "interrupt"):
            self.killed = process.end(self._left)
            self.leftovers = []
        continued = process.continue_stopped(self._left())
        self.notes += [f"pid {pid} was left stopped; it was continued" for pid in continued]
        process.reap_orphans()

    def _left(self) -> list[int]:
        ours = set(process.descendants(os.getpid())) | set(process.marked(self.mark))
        return sorted(pid for pid in ours - self.before - self._tool_pids_known() if process.alive(pid))

    def _after(self, member: _Member, after: After) -> None:
        if after.when_missing and (member.dir / after.when_missing).exists():
            return
        member.argvs.append(after.argv)
        answer = process.ask(after.argv, timeout_s=after.timeout_s, cwd=str(member.dir))
        for name, text in (("stdout.log", answer.stdout), ("stderr.log", answer.stderr + (answer.error or ""))):
            if text:
                with (member.dir / name).open("a", errors="surrogateescape") as log:
                    log.write(text)

    # ------------------------------------------------------------ what it left

    def harvest(self) -> tuple[PassRecord, list[Capture]]:
        """The record of the pass and a capture for each member; all files moved into the report."""
        run = self._run()
        said = _tail(self.dir / "stderr.log") + _tail(self.dir / "stdout.log")
        captures = [self._capture(member, run, said) for member in self.members]
        self._move(self.dir)
        return self._record(run), captures

    def _record(self, run: TargetRun | None) -> PassRecord:
        names = tuple(member.collector.use for member in self.members)
        return PassRecord(
            self.planned.id,
            self.planned.role,
            names,
            self.planned.repeat,
            run,
            attempts=self.attempt,
            notes=tuple(self.notes),
        )

    def _run(self) -> TargetRun:
        started = self.started
        argv = self.context.redact(self.target.argv)
        if started is None:
            wall_s = (self._ended_ns - self.started_ns) / 1e9
            return TargetRun(
                argv, self.context.pids[0], self.started_ns, self._ended_ns, wall_s, None, ended_by="detached"
            )
        foreign, usage = self._foreign_parent(), started.usage
        return TargetRun(
            argv=argv,
            pid=self._main_pid(),
            started_ns=started.started_ns,
            ended_ns=started.ended_ns or time.time_ns(),
            wall_s=self._wall_s(started),
            exit=started.exit,
            user_s=usage.ru_utime if usage and not foreign else None,
            sys_s=usage.ru_stime if usage and not foreign else None,
            max_rss_bytes=None if foreign else started.max_rss_bytes(),
            ended_by=self.ended_by,  # type: ignore[arg-type]
            start_error=started.start_error,
            leftovers=self._shown(self.leftovers),
            killed=self._shown(self.killed),
            notes=tuple(self.notes),
        )

    def _wall_s(self, started: process.Started) -> float:
        """Of the target alone where it was seen under its tool, else of the tool as well (and then that is noted)."""
        if self._foreign_parent() and self.gone_at is not None:
            return self._inner_wall_s
        if self._foreign_parent():
            self.notes.append("wall time includes the start and end of the tool around the target")
        return started.wall_s or 0.0

    def _shown(self, processes: Iterable[Process]) -> tuple[Process, ...]:
        return tuple(Process(p.pid, self.context.redact(p.argv)) for p in processes)

    def _capture(self, member: _Member, run: TargetRun, said: str) -> Capture:
        found = [(expect, path) for expect in member.launch.artifacts for path in _found(member.dir, expect)]
        missing = [e for e in member.launch.artifacts if e.required and not any(f is e for f, _ in found)]
        logs = "".join(_tail(path) for path in sorted(member.dir.glob("*.log")))
        status, reason = self._judge(member, missing, logs, said, run)
        return self._store(member, status, reason, run, found)

    def _judge(
        self, member: _Member, missing: list[Expect], logs: str, said: str, run: TargetRun
    ) -> tuple[Status, str | None]:
        """The capture's status, from what is there; the exit status of a tool proves nothing."""
        if run.start_error:
            return "target_failed", f"the target could not be started: {run.start_error}"
        if member.failure:
            return "tool_failed", member.failure
        if not missing and run.ended_by in ("timeout", "interrupt") and member.launch.artifacts:
            return "degraded", f"the pass was ended by {'its time-out' if run.ended_by == 'timeout' else 'a signal'}"
        if not missing:
            return self._judge_target(member, run)
        for sign in member.launch.signs:
            hit = re.search(sign.pattern, logs) or re.search(sign.pattern, said)
            if hit:
                return sign.status, sign.reason.format(*hit.groups(default="?"))
        if run.ended_by == "timeout":
            return "timed_out", f"the pass was ended after {run.wall_s:.1f} s; the tool had written nothing"
        if run.ended_by == "interrupt":
            return "cancelled", "interrupted; the tool had written nothing"
        names = ", ".join(expect.glob for expect in missing)
        return "tool_failed", f"the tool left no {names}: {_last_line(logs) or _last_line(said) or 'it said nothing'}"

    def _judge_target(self, member: _Member, run: TargetRun) -> tuple[Status, str | None]:
        if member.launch.artifacts:
            return ("degraded", "the log had reached its size limit") if member.truncated else ("ok", None)
        if run.ended_by in ("timeout", "interrupt"):
            return ("timed_out" if run.ended_by == "timeout" else "cancelled"), f"ended after {run.wall_s:.1f} s"
        if run.exit and run.ended_by == "itself" and run.exit.status not in self.context.ok_exit_codes:
            return "target_failed", f"the target failed: {run.exit.describe()}"
        return "ok", None

    def _store(
        self,
        member: _Member,
        status: Status,
        reason: str | None,
        run: TargetRun | None,
        found: list[tuple[Expect, Path]],
    ) -> Capture:
        """Moves the member's files into the report and describes them."""
        home, note = self._move(member.dir)
        artifacts = tuple(_artifact(expect, path, member.dir, home, member.truncated) for expect, path in found)
        wrap = (member.launch.wrap.argv,) if member.launch.wrap else ()
        commands = tuple(self.context.redact(argv) for argv in (*wrap, *member.argvs))
        options = {**member.collector.model_dump(mode="json"), "role": self.planned.role, "repeat": self.planned.repeat}
        capture = Capture(
            id=member.name,
            pass_id=self.planned.id,
            collector=member.collector.use,
            status=status,
            reason=reason,
            tool=member.tool,
            commands=commands,
            options=options,
            artifacts=artifacts,
            started_ns=member.started_ns,
            ended_ns=member.ended_ns or (run.ended_ns if run else None),
            flush_s=member.flush_s,
            helper_exits={str(i): helper.status() for i, helper in enumerate(member.helpers)},
            run=run,
            attempt=self.attempt,
            required=member.collector.required,
            notes=(*member.launch.notes, *member.notes, *([note] if note else [])),
            root=self.context.folder.path,
        )
        return capture

    def _move(self, directory: Path) -> tuple[Path, str | None]:
        """Into raw/. When the disk does not take it, it stays where it is and the note says where."""
        try:
            return self.context.folder.move_in(directory, directory.name), None
        except OSError as error:
            return (
                directory,
                f"its files could not be moved into the report ({error.strerror}); they are in {directory}",
            )


_ATTRIBUTES = ("affinity", "nice", "personality")
_SYSTEM_PLACES = frozenset({"/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"})


def _top_pythons(root: int, but: set[int]) -> list[int]:
    """The Python processes of a tree that have no Python among their ancestors in it."""
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        if pid in but:
            continue
        if process.is_python(pid):
            found.append(pid)
        else:
            queue += process.children(pid)
    return found


def _found(directory: Path, expect: Expect) -> list[Path]:
    return sorted(path for path in directory.glob(expect.glob) if path.is_file() and path.stat().st_size)


def _artifact(expect: Expect, path: Path, old: Path, home: Path, truncated: bool) -> Artifact:
    place = home / path.relative_to(old)
    facts = place.stat()
    shown = "/".join(place.parts[-3:]) if place.parts[-3] == "raw" else str(place)
    return Artifact(
        role=expect.role,
        path=shown,
        format=expect.format,
        bytes=facts.st_size,
        sha256=folder.fingerprint(place),
        mtime_ns=facts.st_mtime_ns,
        derived_from=expect.derived_from,
        holds_env=expect.holds_env,
        truncated=truncated,
    )


def _tail(path: Path) -> str:
    """The last part of a log, for reasons and signs."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_TAIL_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""
