"""Run + Machine -> checks: what of the plan can work here, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import PreflightError
from orchestrator.model import Check, Pass

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.machine import Machine
    from orchestrator.resolve import Run


@dataclass(frozen=True)
class Preflight:
    """The checks of each collector, and with them who can take part."""

    checks: tuple[tuple[Collector, tuple[Check, ...]], ...]

    def of(self, collector: Collector) -> tuple[Check, ...]:
        return next((checks for member, checks in self.checks if member is collector or member == collector), ())

    def obstacle(self, collector: Collector) -> Check | None:
        """Why it can't take part; None when it can."""
        return next((c for c in self.of(collector) if c.verdict in ("missing", "blocked")), None)

    def able(self, planned: Pass) -> tuple[Collector, ...]:
        """The members of a pass that can take part."""
        return tuple(member for member in planned.members if self.obstacle(member) is None)


def preflight(run: Run, machine: Machine, *, attaching: bool = False) -> Preflight:
    """Asks every collector. Raises PreflightError when none of them could do anything here."""
    result = Preflight(tuple((member, tuple(_checks(member, machine, attaching))) for member in run.collectors()))
    if not any(result.able(planned) for planned in run.passes):
        obstacles = [check for member in run.collectors() if (check := result.obstacle(member))]
        raise PreflightError(
            "nothing in this plan can run here:\n" + "\n".join(f"  {c.subject}: {c.message}" for c in obstacles),
            "",
            _fixes(obstacles),
        )
    return result


def _checks(collector: Collector, machine: Machine, attaching: bool) -> list[Check]:
    if attaching and not collector.can_attach:
        return [
            Check(collector.use, "missing", "can't look at a process that already runs", "start the program under it")
        ]
    try:
        return collector.checks(machine)
    except Exception as error:  # a collector from another package may raise anything; the others go on
        return [Check(collector.use, "missing", f"its checks failed: {type(error).__name__}: {error}")]


def _fixes(checks: Sequence[Check]) -> str:
    return " · ".join(dict.fromkeys(check.fix for check in checks if check.fix)) or "profrun doctor"
