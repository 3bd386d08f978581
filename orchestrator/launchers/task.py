"""The agent of one task under srun or mpirun: runs the task's command as one pass on its own host, and leaves what it
found where the leading profrun picks it up.

    python -m orchestrator.launchers.task SPEC -- COMMAND [ARG...]

SPEC is a file of the leader's (`tasks.spec`) in the report folder, which all hosts see. It holds no secrets: the
variables come with the task's own environment, the command on the agent's command line."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import collect, folder, process, redact, resolve
from orchestrator.errors import EXIT_PREFLIGHT, EXIT_TIMEOUT, FolderError, ProfrunError
from orchestrator.launchers.clocks import GONE, Line, Reading, addresses
from orchestrator.launchers.seat import Seat, is_one_rank, meeting, seat_of
from orchestrator.live import Context
from orchestrator.machine import Machine
from orchestrator.model import Capture, Child, Pass, PassRecord, Pick, Picks, RankSeen, Target, TargetRun, Window
from orchestrator.plan import collector_of
from orchestrator.report import capture_record
from orchestrator.signals import Signals
from orchestrator.stdio import Stdin

SCHEMA = "profrun/task/1"
FAILED_FLUSH_S = 5.0
"""How long the tools of a target that has failed may take to write what they have: the job waits for this task's end
to learn of it."""
FIRST_S = 30.0
"""How long to wait for the first task to say where it is."""


@dataclass(frozen=True)
class Spec:
    """What the leader says of a pass, as in the file; `folder`: where the records go."""

    data: Mapping[str, Any]
    folder: Path

    @property
    def planned(self) -> Pass:
        told = {**self.data["pass"]}
        members = tuple(map(collector_of, told.pop("members")))
        window = Window(**told.pop("window")) if told.get("window") else told.pop("window", None)
        return Pass(**{**told, "members": members, "window": window, "needs": tuple(told["needs"])})

    @property
    def child(self) -> Child:
        told = self.data["child"]
        tuples = {"unset": tuple(told["unset"]), "affinity": told["affinity"] and tuple(told["affinity"])}
        return Child(**{**told, **tuples})

    @property
    def picks(self) -> Picks | None:
        told = self.data["picks"]
        if told is None:
            return None
        kernels = tuple(Pick(**{**one, "numbers": tuple(one["numbers"])}) for one in told["kernels"])
        return Picks(**{**told, "kernels": kernels, "notes": tuple(told["notes"])})


def read_spec(path: Path) -> Spec:
    """The leader's file. Raises ProfrunError where this host does not see it."""
    try:
        data = json.loads(path.read_text("utf-8", "surrogateescape"))
    except OSError as error:
        raise FolderError(
            f"{socket.gethostname()} does not see {path}: {error.strerror}",
            "the report folder has to lie on a file system that all hosts of the job share",
            "name such a folder with -o DIR",
        ) from error
    return Spec(data, path.parent)


# ---------------------------------------------------------------- the leader's orders


class Orders:
    """The signals that the task gets (srun and mpirun pass theirs on), and what the leader says: `stop NUMBER COUNT`,
    that it has got so many signals, NUMBER the last. The same wish may come both ways and counts once. A leader that is
    gone has no use for what comes later."""

    def __init__(self, signals: Signals, line: Line | None, size: int) -> None:
        self._signals, self._line, self._size = signals, line, size
        self._said_done = False
        self._told: list[int] = []
        self._all_done = line is None
        self._poll = select.epoll()
        for fileno in (signals.fileno(), *([line.fileno()] if line else [])):
            self._poll.register(fileno, select.EPOLLIN)

    @property
    def received(self) -> tuple[int, ...]:
        own = self._signals.received
        self._listen()
        return own if len(own) >= len(self._told) else (*own, *self._told[len(own) :])

    def for_target(self) -> list[int]:
        return self._signals.for_target()

    def fileno(self) -> int:
        return self._poll.fileno()

    def done(self) -> bool:
        """This task's part of the window is over; whether that of all tasks is."""
        if self._line and not self._said_done:
            self._line.say(f"done {self._size}")
            self._said_done = True
        self._listen()
        return self._all_done

    def close(self) -> None:
        self._poll.close()

    def _listen(self) -> None:
        for text in self._line.heard() if self._line else ():
            words = text.split()
            if words[:1] == ["stop"] and len(words) == 3:
                number, count = int(words[1]), int(words[2])
                self._told += [number] * (count - len(self._told))
            elif text == "done":
                self._all_done = True
            elif text == GONE and self._line:
                self._poll.unregister(self._line.fileno())
                self._all_done, self._line = True, None
                self._told += [signal.SIGTERM] if not self._told else []


class Silent:
    """Nobody is shown the progress of a task."""

    def tick(self, elapsed_s: float) -> None: ...
    def make_way(self, amid_line: bool) -> None: ...
    def interrupted(self, number: int) -> None: ...


# ---------------------------------------------------------------- one pass


@dataclass
class Agent:
    """This task: its place in the job, the leader's wishes, its line to the leader."""

    spec: Spec
    seat: Seat
    command: tuple[str, ...]
    line: Line | None
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What its host says of itself, once it was asked."""

    @property
    def place(self) -> str:
        """What its files and captures are called by: host and rank, or task where it is not one rank."""
        return f"{self.seat.host}.{'r' if is_one_rank(self.command) else 't'}{self.seat.index}"

    def run(self) -> int:
        """Runs the pass; gives back the exit status of the task."""
        report = folder.Folder(Path(self.spec.data["report"]), redact.scrubber(os.environ))
        self._write(report, {})
        scratch, files = folder.scratch(), Path(self.spec.data["scratch"])
        made = not files.exists()
        folder.private(files)
        readings = self._readings()
        with Signals() as signals:
            signals.held = True
            orders = Orders(signals, self.line, self.seat.size)
            try:
                record, captures = self._pass(report, scratch, orders)
            finally:
                orders.close()
                folder.remove(scratch)
                if made:
                    folder.remove_empty(files)
        readings += self._readings()
        record = replace(record, run=self._own(record.run))
        told = {"record": asdict(record), "captures": [capture_record(c) for c in captures]}
        facts = self.facts if self.seat.local in (0, None) else None
        self._write(report, {**told, "readings": [asdict(one) for one in readings], "facts": facts})
        return status_of(record.run)

    def _pass(self, report: folder.Folder, scratch: Path, orders: Orders) -> tuple[PassRecord, list[Capture]]:
        machine, planned = Machine(self.spec.data["tools"]), self.spec.planned
        self.facts = machine.facts()
        target = self._target()
        machine.target_env, machine.target_cpus = (
            self.spec.child.environment(target.env),
            self.spec.child.affinity or (),
        )
        unable = {member.label(): why for member in planned.members if (why := obstacle(member, machine))}
        able = tuple(member for member in planned.members if member.label() not in unable)
        planned = replace(planned, members=able if self._is_chosen() else ())
        context = self._context(report, scratch, target, machine, orders)
        process.become_subreaper()
        record, captures = collect.run_pass(planned, context, self.spec.data["attempt"])
        lost = [self._unable(self.spec.planned, *one, report) for one in unable.items()] if self._is_chosen() else []
        shown = [replace(c, host=self.seat.host, rank=self._rank()) for c in (*captures, *lost)]
        return record, shown

    def _target(self) -> Target:
        """The command on this host. Raises StartError."""
        port = self.spec.data["port"]
        address = self._address_of_first()
        env = {**os.environ}
        env |= meeting(env, self.seat, self.command, (address, port), self.spec.data["run_id"])
        found = resolve.target(self.command, ".", {})
        # a version manager's shim puts its own folder first on PATH
        return replace(found, env={**found.env, **env, "PATH": found.env.get("PATH", os.defpath)})

    def _address_of_first(self) -> str:
        """Where the first task is. Slurm knows it; else that task writes down the name of its host."""
        known = self.spec.data["first"]
        if known and known[0] == self.seat.first:
            return str(known[1])
        if self.seat.first:
            return self.seat.first
        if self.seat.size in (1, self.seat.local_size):
            return "127.0.0.1"
        deadline = time.monotonic() + FIRST_S
        while time.monotonic() < deadline:
            for told in self.spec.folder.glob("0.json"):
                return str(json.loads(told.read_text())["seat"]["hostname"])
            time.sleep(0.1)
        return self.seat.hostname

    def _context(
        self, report: folder.Folder, scratch: Path, target: Target, machine: Machine, orders: Orders
    ) -> Context:
        data = self.spec.data
        return Context(
            run_id=data["run_id"],
            folder=report,
            scratch=scratch,
            files=Path(data["scratch"]),
            place=self.place,
            target=target,
            machine=machine,
            stdin=Stdin(scratch / "stdin", 1),
            interrupts=orders,
            observer=Silent(),
            child=self.spec.child,
            end_leftovers=data["end_leftovers"],
            ok_exit_codes=frozenset(data["ok_exit_codes"]),
            redact=redact.argv,
            outputs=(1, 2),
            facts={**data["facts"], **self.facts},
            bare_wall_s=data["bare_wall_s"],
            picks=self.spec.picks,
            inject=data["inject"],
            ranks=None if data["ranks"] is None else tuple(data["ranks"]),
            ranks_told=1 if self._rank() is not None else None,
            all_done=orders.done,
            failed_flush_s=FAILED_FLUSH_S,
        )

    def _own(self, run: TargetRun | None) -> TargetRun | None:
        """Its run under the names of the job's hosts. How many ranks the host has is no matter of one of them."""
        if run is None:
            return None
        named = tuple(replace(one, host=self.seat.host) for one in run.ranks or self._itself(run))
        return replace(run, ranks=named, ranks_expected=None if self._rank() is not None else run.ranks_expected)

    def _itself(self, run: TargetRun) -> tuple[RankSeen, ...]:
        """This task as a rank that has ended before anybody could see it."""
        rank = self._rank()
        if rank is None or run.exit is None:
            return ()
        here = RankSeen(rank, self.seat.local, self.seat.size, pid=run.pid, exit=run.exit)
        return (replace(here, started_ns=run.started_ns, ended_ns=run.ended_ns),)

    def _rank(self) -> int | None:
        return self.seat.index if is_one_rank(self.command) else None

    def _is_chosen(self) -> bool:
        """Whether the collectors are to look at this task."""
        ranks = self.spec.data["ranks"]
        return ranks is None or self._rank() is None or self._rank() in ranks

    def _unable(self, planned: Pass, label: str, why: tuple[str, str], report: folder.Folder) -> Capture:
        member = next(one for one in planned.members if one.label() == label)
        options = {**member.model_dump(mode="json", by_alias=True), "role": planned.role, "repeat": planned.repeat}
        status, reason = why
        return Capture(
            f"{planned.id}-{label}@{self.place}", planned.id, member.use, status, reason,  # type: ignore[arg-type]
            options=options, required=member.required, root=report.path,
        )  # fmt: skip

    def _readings(self) -> list[Reading]:
        found = self.line.reading() if self.line else None
        return [found] if found else []

    def _write(self, report: folder.Folder, more: Mapping[str, Any]) -> None:
        """Its record; the first one says only that it is there."""
        known = {"schema": SCHEMA, "seat": asdict(self.seat), "place": self.place, "rank": self._rank()}
        known |= {"is_connected": self.line is not None}
        name = self.spec.folder.relative_to(report.path) / f"{self.seat.index}.json"
        report.write_json(str(name), {**known, **more})


def obstacle(member: Any, machine: Machine) -> tuple[str, str] | None:
    """Why a collector can't take part on this host, as (status, reason); None when it can."""
    try:
        checks = member.checks(machine)
    except Exception as error:  # one from another package may raise anything; the others go on
        return "skipped", f"its checks failed: {type(error).__name__}: {error}"
    bad = next((check for check in checks if check.verdict in ("missing", "blocked")), None)
    if bad is None:
        return None
    reason = bad.message + (f"; {bad.fix}" if bad.fix else "")
    return "blocked" if bad.verdict == "blocked" else "skipped", reason


def status_of(run: TargetRun | None) -> int:
    """The exit status of the task: its target's own, but for one that was ended because its part was done."""
    if run is None:
        return EXIT_PREFLIGHT
    if run.ended_by == "window":
        return 0
    if run.ended_by == "timeout":
        return EXIT_TIMEOUT
    return run.exit.status if run.exit else EXIT_PREFLIGHT


def main(words: Sequence[str]) -> int:
    """`words`: SPEC -- COMMAND. Gives back the exit status."""
    command = tuple(words[2:])
    try:
        spec = read_spec(Path(words[0]))
        seat = seat_of(os.environ, spec.data["kind"])
        hub = spec.data["hub"]
        own = [os.environ[name] for name in ("SLURM_LAUNCH_NODE_IPADDR",) if os.environ.get(name)]
        line = Line.to([*own, *addresses(hub)], hub["port"], hub["token"], spec.data["pass"]["id"]) if hub else None
        return Agent(spec, seat, command, line).run()
    except ProfrunError as error:
        print(f"profrun: {error.text()}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
