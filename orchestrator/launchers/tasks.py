"""The leader's side of a job of tasks: each pass is one start of srun or mpirun, whose every task is an agent
(`launchers.task`); what the agents leave becomes one record with its captures."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import collect, folder, process
from orchestrator.env_steps.base import Step
from orchestrator.launchers.clocks import Line, Reading, between
from orchestrator.launchers.nodes import Nodes, why_here_alone
from orchestrator.launchers.parted import Parted, hosts, names_hosts
from orchestrator.launchers.task import SCHEMA
from orchestrator.live import Context, tail
from orchestrator.model import Capture, Child, EndedBy, Exit, Pass, PassRecord, RankSeen, Status, TargetRun, Task
from orchestrator.report import capture_from, pass_from
from orchestrator.standalone import hub

HUB_S = 10.0
"""How long the meeting place may take to open."""
END_S = 60.0
"""How long after a first signal, or a time-out of the tasks' own, they may take to bring their data home, beyond what
their tools' flushing takes."""
ARRIVE_S = 10.0
"""How long the records of tasks that have ended may take to be seen here: file systems of many hosts are late."""
SOON_S = 2.0
"""Likewise where the job has failed: tasks that were killed have left none."""
ASK_SLURM_S = 10.0


class Hub:
    """The meeting place beside the leader, and the leader's own line to it. It ends with the leader."""

    def __init__(self, scratch: Path) -> None:
        """Raises OSError when it can't be started."""
        out, err = scratch / "hub.log", scratch / "hub.err"
        argv = (sys.executable, "-I", "-S", hub.__file__)
        self._helper = process.Helper(argv, out, err, dict(os.environ), scratch, signal.SIGTERM)
        self.port, self.word = self._opened(out, err)
        self._line = Line.to(["127.0.0.1"], self.port, self.word, "leader")

    def _opened(self, out: Path, err: Path) -> tuple[int, str]:
        deadline = time.monotonic() + HUB_S
        while time.monotonic() < deadline and not self._helper.ended():
            words = out.read_text().split() if out.read_bytes().endswith(b"\n") else []
            if len(words) == 2:
                return int(words[0]), words[1]
            time.sleep(0.005)
        self.close()
        raise OSError(
            f"the meeting place for the tasks has not opened: {tail(err).strip()[-300:] or 'it said nothing'}"
        )

    def say(self, room: str, words: str) -> bool:
        """Whether there was anybody to pass it on."""
        if self._line is None or self._helper.ended():
            return False
        self._line.say(f"say {room} {words}")
        return True

    def address(self) -> dict[str, Any]:
        """How others get here, JSON-able."""
        known = {"hostname": socket.gethostname(), "addresses": list(_addresses())}
        return {**known, "port": self.port, "token": self.word}

    def close(self) -> None:
        self._helper.stop(signal.SIGTERM, 2.0)


def _addresses() -> Iterator[str]:
    """The names and numbers of this host, the one that other networks see first."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel chooses the interface that leads out
        yield probe.getsockname()[0]
    name = socket.gethostname()
    yield name
    with contextlib.suppress(OSError):
        yield from dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(name, None, socket.AF_INET))


@dataclass
class Lead:
    """Runs passes as jobs of tasks, on hosts that are prepared before the first and put back after the last."""

    parted: Parted
    scratch: Path
    tools: Mapping[str, str] = field(default_factory=dict)
    """The paths that the plan gives."""
    hub: Hub | None = None
    nodes: Nodes | None = None
    hosts: dict[str, Any] = field(default_factory=dict)
    """What is known of each host that has run a task."""

    def open(self) -> str | None:
        """Opens the meeting place; why there is none, where it can't be."""
        try:
            self.hub = Hub(self.scratch)
        except OSError as error:
            return f"{error}: the clocks of the hosts are not compared, and tasks are ended by signals alone"
        return None

    def steps_here(self, steps: Sequence[Step]) -> Sequence[Step]:
        """Those that are to be applied on the leader's own host: none where that runs no task."""
        return () if self.parted.leads_from_afar else steps

    def prepare(
        self, steps: Sequence[Step], report: folder.Folder, run_id: str, give_up: Callable[[], bool]
    ) -> str | None:
        """Brings the other hosts into the plan's state; what the tasks leave in {scratch} there goes with the agents.
        Gives back what has gone wrong; None: nothing."""
        why = why_here_alone(self.parted)
        if not steps and (why or not any("{scratch}" in word for word in self.parted.command)):
            return None
        if why or self.hub is None:
            return why or "the other nodes are not prepared: there is no meeting place"
        self.nodes = Nodes(self.hub, report, self.scratch)
        return self.nodes.begin(steps, self.tools, run_id, give_up)

    def may_leave_here(self) -> bool:
        """Whether tasks may run on other hosts than the leader's."""
        return self.parted.kind == "slurm" or names_hosts(self.parted, os.environ)

    def leave(self) -> str | None:
        """Lets all hosts be put back, and closes the meeting place; what is to be said of that."""
        said = self.nodes.end() if self.nodes else None
        if self.hub:
            self.hub.close()
        return said

    def run_pass(self, planned: Pass, context: Context, attempt: int) -> tuple[PassRecord, list[Capture]]:
        """As collect.run_pass, on all hosts of the job. Raises OSError likewise."""
        home = context.folder.raw(f"{planned.id}.tasks").absolute()
        self._write_spec(home, planned, context, attempt)
        asked: list[int] = []
        flush_s = max((member.flush for member in planned.members), default=0.0)
        ours = replace(
            context,
            target=replace(context.target, argv=self._argv(home / "spec.json")),
            child=Child(set=context.child.set, unset=context.child.unset),
            inject=None,
            picks=None,
            ranks_told=None,
            leads=True,
            ask_to_end=lambda number: self._ask(home, number, asked),
            patience_s=END_S + flush_s,
        )
        limit_s = planned.timeout_s and planned.timeout_s + END_S + flush_s
        bare = replace(planned, members=(), window=None, timeout_s=limit_s)
        record, _ = collect.run_pass(bare, ours, attempt)
        stories = _stories(home, ARRIVE_S if record.run and record.run.exit == Exit(0) else SOON_S)
        self.hosts |= {told["seat"]["host"]: told["facts"] for told in stories.values() if told.get("facts")}
        if asked or (record.run and record.run.ended_by == "timeout"):
            _end_steps(stories)
        merged = Merge(planned, record, stories, context).merged(self.parted)
        folder.remove(home)
        return merged

    def _argv(self, spec: Path) -> tuple[str, ...]:
        agent = (sys.executable, "-I", "-m", "orchestrator.launchers.task", str(spec), "--")
        return (*self.parted.start, *agent, *self.parted.command)

    def _ask(self, home: Path, number: int, asked: list[int]) -> bool:
        """Passes a wish to end on to the agents, who let the tools finish; a signal would not reach them all. The last
        resort is for the launcher itself."""
        asked.append(number)
        is_second_wish = len(asked) == 2 and number == signal.SIGKILL
        if self.hub is None or not (len(asked) == 1 or is_second_wish):
            return False
        stories = _stories(home).values()
        # before any task is there, the wish is for the launcher itself, which may wait for its nodes
        if not stories or not all(story["is_connected"] for story in stories):
            return False
        return self.hub.say(home.name.partition(".")[0], f"stop {int(number)} {len(asked)}")

    def _write_spec(self, home: Path, planned: Pass, context: Context, attempt: int) -> None:
        members = [member.model_dump(mode="json", by_alias=True) for member in planned.members]
        data = {
            "schema": SCHEMA,
            "kind": self.parted.kind,
            "run_id": context.run_id,
            "report": str(context.folder.path.absolute()),
            "attempt": attempt,
            "pass": {**_without(asdict(replace(planned, members=())), "members"), "members": members},
            # its variables come with the environment of the tasks
            "child": asdict(replace(context.child, set={}, unset=(), inject=dict(context.child.inject))),
            "inject": context.inject,
            "picks": asdict(context.picks) if context.picks else None,
            "facts": context.facts,
            "tools": dict(self.tools),
            "bare_wall_s": context.bare_wall_s,
            "ok_exit_codes": sorted(context.ok_exit_codes),
            "end_leftovers": context.end_leftovers,
            "scratch": str(context.files or context.scratch / "files"),
            "ranks": context.ranks,
            "hub": self.hub.address() if self.hub else None,
            "first": first_host() if self.parted.kind == "slurm" else None,
            "port": free_port(),
        }
        text = json.dumps(data, default=_jsonable)
        context.folder.write_clean(f"raw/{home.name}/spec.json", text)


def _jsonable(value: Any) -> Any:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def _without(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key != name}


def free_port() -> int:
    """A port that is free here, and so, most likely, on the first host of the job."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def first_host() -> tuple[str, str] | None:
    """The first host of the allocation that we are in, and its address; None outside of one."""
    name = next(hosts(os.environ.get("SLURM_JOB_NODELIST", "")), None)
    if name is None:
        return None
    answer = process.ask(["scontrol", "show", "node", name, "-o"], timeout_s=ASK_SLURM_S)
    found = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
    return name, found[1] if found else name


# ---------------------------------------------------------------- what the agents have left


Story = Mapping[str, Any]
"""What an agent has written: its seat and, when its pass had ended, the record, the captures, the readings."""


def _stories(home: Path, wait_s: float = 0.0) -> dict[int, Story]:
    """By the number of the task. Those that are still on their way are waited for."""
    deadline = time.monotonic() + wait_s
    while True:
        found = {int(path.stem): story for path in home.glob("[0-9]*.json") if (story := _story(path))}
        size = max((story["seat"]["size"] for story in found.values()), default=0)
        # opened by its name, a file may be seen while the listing is still an old one
        for index in set(range(size)) - {*found}:
            if story := _story(home / f"{index}.json"):
                found[index] = story
        complete = [story for story in found.values() if "record" in story]
        if len(complete) == size or time.monotonic() >= deadline:
            return found
        time.sleep(0.1)


def _story(path: Path) -> Story | None:
    try:
        told: Story = json.loads(path.read_text("utf-8", "surrogateescape"))
    except (OSError, ValueError):
        return None
    return told


def _end_steps(stories: Mapping[int, Story]) -> None:
    """What Slurm may still keep of steps whose srun was killed."""
    for step in {story["seat"]["step"] for story in stories.values()} - {None}:
        process.ask(["scancel", step], timeout_s=ASK_SLURM_S)


@dataclass(frozen=True)
class Merge:
    """One record and its captures from what the agents have left."""

    planned: Pass
    record: PassRecord
    stories: Mapping[int, Story]
    context: Context

    def merged(self, parted: Parted) -> tuple[PassRecord, list[Capture]]:
        tasks = tuple(self._task(index) for index in range(self.size))
        run = self.record.run and self._whole(self.record.run, tasks, parted)
        lost = [task for task in tasks if task.missing]
        notes = [f"task {task.index}: {task.missing}" for task in lost]
        if not tasks and run:
            notes.append(f"{parted.name} has started no task: {self._last_words(run)}")
        record = replace(
            self.record,
            collectors=tuple(member.use for member in self.planned.members),
            run=run,
            tasks=tasks,
            notes=(*self.record.notes, *notes, *_said_by_all(tasks)),
        )
        return record, [*self._captures(tasks), *self._lost(lost, notes)]

    @property
    def size(self) -> int:
        """How many tasks the job was to have, as those say that were there."""
        return max((story["seat"]["size"] for story in self.stories.values()), default=0)

    def _task(self, index: int) -> Task:
        story = self.stories.get(index)
        if story is None:
            return Task(
                index, missing="it has not been heard of: it was never started, or its host sees no report folder"
            )
        seat = story["seat"]
        known = Task(
            index=index,
            host=seat["host"],
            hostname=seat["hostname"] if seat["hostname"] != seat["host"] else None,
            node=seat["node"],
            place=story["place"],
            ranks=() if story["rank"] is None else (story["rank"],),
        )
        if "record" not in story:
            return replace(known, missing=f"it was on {known.host} and has left no record: it was killed, or lost")
        record = pass_from(story["record"])
        ranks = {seen.rank for seen in record.run.ranks} if record.run else set()
        found = replace(known, run=record.run, notes=record.notes, ranks=tuple(sorted({*known.ranks, *ranks})))
        return _timed(found, [Reading(**one) for one in story["readings"]])

    def _whole(self, run: TargetRun, tasks: Sequence[Task], parted: Parted) -> TargetRun:
        """The launcher's run with what only its tasks know: its own time and memory are not the program's."""
        runs = [task.run for task in tasks if task.run]
        all_there = len(runs) == len(tasks) > 0
        walls = [one.wall_s for one in runs]
        peaks = [one.max_rss_bytes for one in runs if one.max_rss_bytes is not None]
        return replace(
            run,
            argv=self.context.redact((*parted.start, *parted.command)),
            wall_s=max(walls) if all_there else run.wall_s,
            user_s=_sum([one.user_s for one in runs]) if all_there else None,
            sys_s=_sum([one.sys_s for one in runs]) if all_there else None,
            max_rss_bytes=max(peaks) if peaks else None,
            ended_by=_ended_by(run, runs),
            start_error=run.start_error or next((one.start_error for one in runs if one.start_error), None),
            leftovers=tuple(left for one in runs for left in one.leftovers),
            killed=tuple(dead for one in runs for dead in one.killed),
            pythons=(),
            ranks=tuple(sorted(_ranks(tasks), key=lambda seen: seen.rank)),
            ranks_expected=_expected(tasks),
            ranks_chosen=self.context.ranks,
        )

    def _captures(self, tasks: Sequence[Task]) -> Iterator[Capture]:
        for task in tasks:
            for record in self.stories.get(task.index, {}).get("captures", ()):
                yield replace(capture_from(record, self.context.folder.path), run=task.run)

    def _lost(self, lost: Sequence[Task], notes: Sequence[str]) -> Iterator[Capture]:
        """What a task that has left nothing was to bring home; where there was none at all, what the pass was."""
        run = self.record.run
        status: Status = "cancelled" if run and run.ended_by == "interrupt" else "target_failed"
        for member in self.planned.members:
            about = {"role": self.planned.role, "repeat": self.planned.repeat}
            alike = Capture(
                id=f"{self.planned.id}-{member.label()}",
                pass_id=self.planned.id,
                collector=member.use,
                status=status,
                reason=next(iter((*notes, *self.record.notes)), "it was not run"),
                options={**member.model_dump(mode="json", by_alias=True), **about},
                required=member.required,
                root=self.context.folder.path,
            )
            if not self.size:
                yield alike
            for task in lost:
                id_ = f"{alike.id}@{task.place or f't{task.index}'}"
                yield replace(alike, id=id_, host=task.host, reason=f"task {task.index}: {task.missing}")

    def _last_words(self, run: TargetRun) -> str:
        """Of the launcher, which has said why on stderr."""
        log = self.context.folder.raw(f"{self.planned.id}-target") / "stderr.log"
        lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
        how = run.start_error or (run.exit.describe() if run.exit else "it still runs")
        return f"{lines[-1][:300]} ({how})" if lines else how


def _timed(task: Task, readings: Sequence[Reading]) -> Task:
    """With what is to be added to its times. They were measured around the pass."""
    run = task.run
    found = between(readings, (run.started_ns + run.ended_ns) // 2 if run else 0)
    if found is None:
        return replace(task, notes=(*task.notes, "its clock was not compared with the leader's: it could not reach it"))
    said = "its clock, or the leader's, was set during the pass: its times are known no better than that"
    return replace(
        task, clock_offset_ns=found.offset_ns, clock_error_ns=found.error_ns, clock_drift=found.drift,
        clock_at_ns=found.at_ns, notes=(*task.notes, said) if found.was_set else task.notes,
    )  # fmt: skip


def _ranks(tasks: Sequence[Task]) -> Iterator[RankSeen]:
    """All ranks of the job, on the leader's clock."""
    for task in tasks:
        for seen in task.run.ranks if task.run else ():
            yield replace(seen, started_ns=task.led(seen.started_ns), ended_ns=task.led(seen.ended_ns))


def _expected(tasks: Sequence[Task]) -> int | None:
    """How many ranks the job was to have; None where a task does not say."""
    counts = [1 if _is_rank(task) else task.run.ranks_expected if task.run else None for task in tasks]
    return None if None in counts or not counts else sum(count or 0 for count in counts)


def _is_rank(task: Task) -> bool:
    return task.place is None or re.search(r"\.r\d+$", task.place) is not None


def _ended_by(run: TargetRun, runs: Sequence[TargetRun]) -> EndedBy:
    """As the leader saw it; what the tasks have ended by themselves has a name, too."""
    found = {one.ended_by for one in runs}
    if run.ended_by == "itself" and "timeout" in found:
        return "timeout"
    if run.ended_by == "itself" and "window" in found:
        return "window"
    return run.ended_by


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _said_by_all(tasks: Sequence[Task]) -> Iterator[str]:
    """The notes of the tasks, each once, with those who have it."""
    who: dict[str, list[int]] = {}
    for task in tasks:
        for note in task.notes:
            who.setdefault(note, []).append(task.index)
    for note, indices in who.items():
        few = ", ".join(map(str, indices[:8])) + (", ..." if len(indices) > 8 else "")
        yield note if len(indices) == len(tasks) else f"{'tasks' if len(indices) > 1 else 'task'} {few}: {note}"
