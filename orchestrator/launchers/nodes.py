"""The leader's side of the nodes of a Slurm job: one agent on each (`launchers.node`) brings it into the plan's state
before the first pass, and puts it back after the last."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import folder, process, registry
from orchestrator.env_steps.base import Step
from orchestrator.launchers.node import END, ROOM, STEPS
from orchestrator.launchers.parted import Parted, own_host
from orchestrator.live import tail
from orchestrator.model import StepRecord
from orchestrator.report import step_from

if TYPE_CHECKING:
    from orchestrator.launchers.tasks import Hub

LEAVE_S = 120.0
"""How long the agents may take to put their hosts back once they were told to."""
LATE_S = 10.0
"""How long what they have written last may take to be seen here."""
LOOK_S = 0.1


FOR_TASKS = frozenset(
    f"{tool}_{what}"
    for tool in ("SLURM", "SRUN")
    for what in (
        *("GPUS_PER_TASK", "NTASKS_PER_GPU", "TRES_PER_TASK", "CPUS_PER_TASK", "CPUS_PER_GPU"),
        *("NTASKS_PER_NODE", "NTASKS_PER_SOCKET", "NTASKS_PER_CORE", "GPUS_PER_SOCKET", "MEM_PER_GPU"),
    )
)
"""What srun reads from its environment for the tasks of the program; with one agent on a node it would not fit."""


def in_allocation() -> bool:
    return bool(os.environ.get("SLURM_JOB_ID"))


def why_here_alone(parted: Parted) -> str | None:
    """Why the nodes of a job can't be prepared by an agent on each; None where they can."""
    if parted.kind == "slurm" and in_allocation():
        return None
    if parted.kind == "slurm":
        said = "the plan's environment is not applied: srun asks for nodes of its own, and this host is none of them"
        return f"{said}; next: run profrun in an allocation (salloc, sbatch), or let it submit the job: --slurm"
    return f"the plan's environment is applied on this host alone, and on no other that {parted.name} may use"


class Nodes:
    """The agents while they hold their hosts. Use `begin`, then `end`, whatever happens."""

    def __init__(self, hub: Hub, report: folder.Folder, scratch: Path) -> None:
        self._hub, self._report, self._scratch = hub, report, scratch
        self._home = report.raw("nodes").absolute()
        self._helper: process.Helper | None = None
        self._told: dict[str, Mapping[str, Any]] = {}
        self.count = int(os.environ.get("SLURM_JOB_NUM_NODES") or os.environ.get("SLURM_NNODES") or 1)

    @property
    def records(self) -> list[StepRecord]:
        """What has become of each step on each node but our own."""
        return [step_from(step) for host in sorted(self._told) for step in self._told[host]["records"]]

    @property
    def failed(self) -> bool:
        return any(told["failed"] or told["state"] == "failed" for told in self._told.values())

    def begin(
        self, steps: Sequence[Step], tools: Mapping[str, str], run_id: str, give_up: Callable[[], bool]
    ) -> str | None:
        """Waits until every node is in the plan's state, for as long as its steps may take. Gives back what has gone
        wrong; None: nothing."""
        self._write_spec(steps, tools, run_id)
        told = json.dumps([step.model_dump(mode="json", by_alias=True) for step in steps])
        number = str(self.count)
        argv = (
            *("srun", f"--nodes={number}", f"--ntasks={number}", "--ntasks-per-node=1", "--overlap"),
            *("--kill-on-bad-exit=0", "--cpu-bind=none"),
            *(sys.executable, "-I", "-m", "orchestrator.launchers.node", str(self._home / "spec.json")),
        )  # fmt: skip
        logs = self._scratch / "nodes.log", self._scratch / "nodes.err"
        env = {**{name: text for name, text in os.environ.items() if name not in FOR_TASKS}, STEPS: told}
        try:
            self._helper = process.Helper(argv, *logs, env, self._scratch, signal.SIGTERM)
        except OSError as error:
            return f"srun can't be started: {error.strerror}"
        while not give_up() and not self._helper.ended():
            self._look()
            if len(self._told) >= self.count:
                break
            time.sleep(LOOK_S)
        self._look()
        if len(self._told) < self.count and not give_up():
            said = [line for line in tail(logs[1]).splitlines() if line.strip()]
            left = self.count - len(self._told)
            return f"{left} of {self.count} nodes were not prepared: {said[-1] if said else 'srun ended'}"
        bad = [f"{host}: {told['why']}" for host, told in self._told.items() if told["state"] == "failed"]
        return "; ".join(bad) or None

    def end(self) -> str | None:
        """Lets the nodes be put back, and waits for that. Gives back which ones have not told that they are."""
        if self._helper is None:
            return None
        self._hub.say(ROOM, END)
        self._report.write_clean(f"raw/{self._home.name}/{END}", "")
        self._helper.wait(LEAVE_S)
        self._helper.stop(signal.SIGTERM, LEAVE_S)
        deadline = time.monotonic() + LATE_S
        while (late := self._not_back()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
            self._look()
        if not late:
            folder.remove(self._home)
            return None
        return f"{', '.join(late)} did not say that they were put back; next: on each of them, profrun env restore"

    def _not_back(self) -> list[str]:
        self._look()
        return sorted(host for host, told in self._told.items() if told["state"] == "ready" and told["records"])

    def _look(self) -> None:
        for path in self._home.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                told = json.loads(path.read_text("utf-8", "surrogateescape"))
                if "host" in told:
                    self._told[told["host"]] = told

    def _write_spec(self, steps: Sequence[Step], tools: Mapping[str, str], run_id: str) -> None:
        data = {
            "run_id": run_id,
            "report": str(self._report.path.absolute()),
            "public": all(step.use in registry.ENVIRONMENT and step.use != "shell" for step in steps),
            "tools": dict(tools),
            "leader": own_host() or f"{socket.gethostname()} is no node",
            "scratch": str(self._scratch / "files"),
            "hub": self._hub.address(),
        }
        self._report.write_clean("raw/nodes/spec.json", json.dumps(data))
