"""The interface of a collector: a frozen pydantic model whose fields are its options and whose methods return data.

A new collector is one file beside this one, one line in `registry.py` and one folder of golden files. It starts no
process and writes no file: `launch` says what should run, the runner runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.model import Capture, Check, Clock, Job, Launch, Metric, Picks, Status, Tool, ToolProbe, Trust
from orchestrator.tables import Table
from orchestrator.units import Duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine


@dataclass(frozen=True)
class Parsed:
    """What a capture's files say. `status`, `reason` and `trust` are set only where the data shows another state than
    the run did."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    status: Status | None = None
    reason: str | None = None
    trust: Trust | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    clock: Clock | None = None
    """How the tool's times become those of the tables, where these are on the epoch's clock."""


class Collector(BaseModel):
    """One collector of a plan. Subclasses narrow `use` to a Literal and add their options as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    use: str
    required: bool = Field(True, description="a run without usable data from this collector ends in exit status 4")
    timeout: Duration | None = Field(None, description="time limit of the pass; default: the target's")
    flush: Duration = Field(60.0, description="how long the tool may take to write its data after the target has ended")
    repeats: int = Field(1, ge=1, le=1000, description="how many passes, each one start of the target")

    probe: ClassVar[ToolProbe | None] = None
    """The tool that it needs; None for those that need nothing."""
    claims: ClassVar[frozenset[str]] = frozenset()
    """What only one collector of a pass can hold: ptrace, cupti ... (sharing.HELD_BY_ONE)."""
    purpose: ClassVar[str] = ""
    """One line for the tables of README and `profrun templates`."""
    slowdown: ClassVar[float] = 1.1
    """Wall time under this collector over bare wall time, as a first guess for `check`."""
    raw_bytes: ClassVar[int] = 1 << 20
    """Raw data to expect of one pass, as a first guess for `check`."""
    injects: ClassVar[bool] = False
    """Works through profrun's part in the target's Python."""
    can_attach: ClassVar[bool] = True
    """Can look at any process that already runs."""
    capability: ClassVar[str | None] = None
    """What a container has to be given for it (capabilities(7), without CAP_); None where nothing."""
    from_afar: ClassVar[bool] = False
    """Says something also of a program that is started elsewhere, by whoever is asked for it, such as in a docker
    container."""
    alone: ClassVar[bool] = False
    """Measures the undisturbed run: it shares a pass with nobody."""

    def label(self) -> str:
        """The name of its folders and captures; a class may tell its modes apart."""
        return self.use

    def held(self) -> frozenset[str]:
        """Which of `claims` it really takes; a class may ask its options."""
        return self.claims

    def needed(self) -> frozenset[str]:
        """What nobody outside of the run may hold: more than `held`, where it gives way to its partners alone."""
        return self.held()

    def does_without(self, claim: str) -> str | None:
        """What to write in its options so that it leaves a claim to others; None where it can't."""
        return None

    def needs(self) -> tuple[str, ...]:
        """The collectors from whose captures of earlier passes it can choose its kernels, the best first; none when it
        chooses none. The first stands earlier in the plan."""
        return ()

    def without_kernels(self) -> str | None:
        """What to write instead, where its options leave out the kernels that others choose from; None where not."""
        return None

    def pick(self, capture: Capture, steady_ns: tuple[int, int] | None) -> Picks:
        """The kernels to look at, chosen from a usable capture of one of `needs()` before the machine is restored.

        steady_ns: begin and end of the target's steady steps in that pass, in ns since the epoch, where steps were
        seen. Raises ParseError when the capture can't be read."""
        raise NotImplementedError

    def expected_bytes(self) -> int:
        """Raw data to expect of one pass at most; a class may ask its options."""
        return self.raw_bytes

    def tool(self, machine: Machine) -> Tool:
        """The tool as found on this machine."""
        if self.probe is None:
            return Tool(self.use, None)
        return machine.tool(self.probe)

    def checks(self, machine: Machine) -> list[Check]:
        """What this collector needs and whether this machine has it. Starts no target."""
        if self.probe is None:
            return []
        tool = self.tool(machine)
        if tool.path is None and not tool.trouble and (given := machine.given(self.probe.name)):
            said = f"the plan's tools.{self.probe.name} is {given}, which is no program that can be run"
            return [Check(self.use, "missing", said, "mend that path, or leave it out")]
        if tool.path is None:
            fix = f"mend it, or give the path of another as the plan's tools.{self.probe.name}"
            said = f"{self.probe.name} was not found"
            return [Check(self.use, "missing", tool.trouble or said, fix if tool.trouble else self.probe.install)]
        if tool.trouble:
            return [Check(self.use, "warn", f"{tool.path} does not tell its version: {tool.trouble}")]
        return [Check(self.use, "ok", f"{self.probe.name} {tool.version or '(version unknown)'} at {tool.path}")]

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        """Why it can't look at the processes that already run (`machine.target_pids`, `machine.armed`), with what would
        make it possible; None where it can."""
        if self.can_attach:
            return None
        said = "can't look at a process that already runs"
        return Check(self.use, "missing", said, "start the program with it: profrun PLAN -- COMMAND")

    def tells(self, capture: Capture) -> Mapping[str, Any]:
        """What later passes of the run may go by (`Job.facts`), read from a usable capture before the machine is
        restored, and so in no time. Raises ParseError when it can't be read."""
        return {}

    def declines(self, facts: Mapping[str, Any], attaching: bool) -> str | None:
        """Why it had better not run, after what earlier passes have told; None: nothing speaks against it."""
        return None

    def launch(self, job: Job) -> Launch:
        """How it takes part in the pass."""
        raise NotImplementedError

    def parse(self, capture: Capture) -> Parsed:
        """The canonical tables of its files. Raises ParseError when they can't be read; needs neither tool nor GPU."""
        raise NotImplementedError
