"""Collector `timing`: the bare runs that all else is compared with. It needs no tool and adds nothing to a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.model import Capture, Check, Job, Launch
from orchestrator.tables import Table

if TYPE_CHECKING:
    from orchestrator.machine import Machine


class Timing(Collector):
    """Runs the target undisturbed, several times: wall, user and system time, largest memory, exit status."""

    use: Literal["timing"] = "timing"
    warmup: int = Field(
        1, ge=0, le=100, description="runs before those that count: they fill caches and are not averaged"
    )
    repeats: int = Field(5, ge=1, le=1000, description="runs that count; three or more give an interval worth having")

    purpose: ClassVar[str] = "bare runs: mean, median, spread, 95 % interval, outliers"
    slowdown: ClassVar[float] = 1.0
    from_afar: ClassVar[bool] = True
    raw_bytes: ClassVar[int] = 4096
    can_attach: ClassVar[bool] = False
    alone: ClassVar[bool] = True

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        said = "a program that runs already can't be timed from its start to its end"
        return Check(self.use, "missing", said, "let profrun start it: profrun PLAN -- COMMAND, or leave timing out")

    def launch(self, job: Job) -> Launch:
        return Launch()

    def parse(self, capture: Capture) -> Parsed:
        """Table `runs`, one row: what profrun itself measured. `capture.options` has the pass's `role` and `repeat`."""
        run = capture.run
        if run is None:
            raise ParseError("nothing is known about this run of the target")
        row = (
            capture.pass_id,
            capture.options.get("role"),
            capture.options.get("repeat"),
            run.started_ns,
            run.wall_s,
            run.user_s,
            run.sys_s,
            run.max_rss_bytes,
            run.exit.status if run.exit else None,
        )
        return Parsed(tables=(Table.of("runs", [row]),))
