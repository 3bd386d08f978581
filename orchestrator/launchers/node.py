"""The agent of one node of a Slurm job: brings its host into the plan's state, holds that while the leader runs the
passes, and puts it back.

    python -m orchestrator.launchers.node SPEC

It ends when the leader says so, or is gone; a signal has the same effect."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from orchestrator import folder, redact
from orchestrator.environment import Environment
from orchestrator.errors import ProfrunError
from orchestrator.guard import Guard
from orchestrator.launchers.clocks import GONE, Line, addresses
from orchestrator.launchers.seat import Seat, seat_of
from orchestrator.launchers.task import Spec, read_spec
from orchestrator.machine import Machine
from orchestrator.model import Child, StepRecord
from orchestrator.plan import step_of
from orchestrator.signals import Signals

STEPS = "PROFRUN_STEPS"
"""The variable with the plan's environment steps as JSON: what is in them may be secret, and is in no file."""
ROOM = "nodes"
END = "end"


class _Told:
    """What the steps say while they are at work: srun takes it to the leader."""

    def waits(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def step_ends(self, record: StepRecord) -> None: ...


class Node:
    """This node: the plan's steps, applied once, whatever number of tasks it has."""

    def __init__(self, spec: Spec, seat: Seat, signals: Signals) -> None:
        self._spec, self._seat, self._signals = spec, seat, signals
        steps = json.loads(os.environ.pop(STEPS, "[]"))
        self._steps = tuple(map(step_of, steps)) if seat.host != spec.data["leader"] else ()
        report = folder.Folder(Path(spec.data["report"]), redact.scrubber(os.environ))
        self._report = report
        self._own = report.elsewhere(report.raw(f"node@{seat.host}"))
        self._machine = Machine(spec.data["tools"])
        wanted = Child()
        for step in self._steps:
            wanted = wanted.then(step.child())
        self._machine.target_env = wanted.environment(os.environ)
        self._machine.target_cpus = wanted.affinity or ()
        self._files = Path(spec.data["scratch"])

    def serve(self, hold: Callable[[], None]) -> int:
        """Applies, tells, holds, restores, tells. Gives back the exit status."""
        scratch, made = folder.scratch(), not self._files.exists()
        guard = Guard(self._machine, lambda text: print(f"{self._seat.host}: {text}", file=sys.stderr, flush=True))
        environment = Environment(self._machine)
        try:
            if self._steps:
                environment = self._apply(guard, scratch)
            self._tell("ready", environment)
            hold()
        except ProfrunError as error:  # another run holds this host
            self._tell("failed", environment, error.text())
            return error.exit_code
        finally:
            environment.restore()
            guard.close()
            for place in (scratch, *([self._files] if made else [])):
                folder.remove(place)
        self._tell("restored", environment)
        return 0

    def _apply(self, guard: Guard, scratch: Path) -> Environment:
        self._own.write_json("machine.json", self._machine.facts())
        guard.hold([claim for step in self._steps for claim in step.claims(self._machine)], None, self._received)
        run_id = f"{self._spec.data['run_id']}@{self._seat.host}"
        guard.open(run_id, self._own, scratch, changes=True, public=bool(self._spec.data["public"]))
        environment = Environment(
            self._machine,
            guard.journal,
            guard.why_none,
            before_first=guard.before_first_change,
            interrupts=lambda: len(self._received()),
            observer=_Told(),
        )
        environment.apply(self._steps)
        return environment

    def _received(self) -> Sequence[int]:
        return self._signals.received

    def _tell(self, state: str, environment: Environment, why: str | None = None) -> None:
        records = [asdict(replace(record, host=self._seat.host)) for record in environment.records]
        told: Mapping[str, Any] = {
            "host": self._seat.host, "state": state, "records": records, "failed": environment.failed, "why": why,
        }  # fmt: skip
        name = self._spec.folder.relative_to(self._report.path) / f"{self._seat.host}.json"
        with contextlib.suppress(OSError):  # the host is put back all the same
            self._report.write_json(str(name), told)


def holding(line: Line | None, signals: Signals, home: Path) -> None:
    """Until the leader says that it is over (where no line leads to it, by a file) or is gone, or a signal comes."""
    while not signals.received:
        if (line and {END, GONE} & set(line.heard())) or (home / END).exists():
            return
        select.select([signals.fileno(), *([line.fileno()] if line else [])], [], [], 1.0)


def main(words: Sequence[str]) -> int:
    try:
        spec = read_spec(Path(words[0]))
        hub = spec.data["hub"]
        seat = seat_of(os.environ, "slurm")
        own = [os.environ[name] for name in ("SLURM_LAUNCH_NODE_IPADDR",) if os.environ.get(name)]
        line = Line.to([*own, *addresses(hub)], hub["port"], hub["token"], ROOM)
        with Signals() as signals:
            signals.held = True
            return Node(spec, seat, signals).serve(lambda: holding(line, signals, spec.folder))
    except ProfrunError as error:
        print(f"profrun: {error.text()}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
