"""Run + Machine -> checks: what of the plan can work here, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.env_steps.base import Step, too_late
from orchestrator.errors import PreflightError
from orchestrator.model import Check, Pass

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.machine import Machine
    from orchestrator.resolve import Run


@dataclass(frozen=True)
class Preflight:
    """The checks of each collector and each environment step, and with them who can take part."""

    checks: tuple[tuple[Collector, tuple[Check, ...]], ...]
    steps: tuple[tuple[Step, tuple[Check, ...]], ...] = ()

    def every(self) -> Iterator[Check]:
        """All checks, those of the collectors first."""
        return (check for _, checks in (*self.checks, *self.steps) for check in checks)

    def of(self, collector: Collector) -> tuple[Check, ...]:
        return next((checks for member, checks in self.checks if member is collector or member == collector), ())

    def obstacle(self, collector: Collector) -> Check | None:
        """Why it can't take part; None when it can."""
        return _obstacle(self.of(collector))

    def able(self, planned: Pass) -> tuple[Collector, ...]:
        """The members of a pass that can take part."""
        return tuple(member for member in planned.members if self.obstacle(member) is None)

    def refusal(self, passes: Iterable[Pass]) -> PreflightError | None:
        """Why nothing may run: a step that the plan insists on can't work, or no collector can; None when it may."""
        for step, checks in self.steps:
            if step.on_fail == "fail" and (bad := _obstacle(checks)):
                said = f"the plan's environment can't be made here: {step.use}: {bad.message}"
                return PreflightError(said, "", bad.fix or "")
        if any(self.able(planned) for planned in passes):
            return None
        bad_ones = [bad for _, checks in self.checks if (bad := _obstacle(checks))]
        said = "\n".join(f"  {check.subject}: {check.message}" for check in bad_ones)
        return PreflightError(f"nothing in this plan can run here:\n{said}", "", _fixes(bad_ones))


def preflight(run: Run, machine: Machine) -> Preflight:
    """Asks every collector and every environment step. Raises PreflightError when nothing may run."""
    found = ask(run, machine)
    refusal = found.refusal(run.passes)
    if refusal:
        raise refusal
    return found


def ask(run: Run, machine: Machine) -> Preflight:
    """What every collector and every environment step says of this machine."""
    members = tuple((member, tuple(_checks(member, machine, bool(run.pids)))) for member in run.collectors())
    steps = tuple((step, tuple(_of_step(step, machine))) for step in run.plan.environment)
    watched = any(member.use == "monitor" for member in run.collectors())
    return Preflight(members, steps if watched else tuple(_unwatched(steps)))


def _of_step(step: Step, machine: Machine) -> list[Check]:
    late = too_late(step, machine)
    return [Check(step.use, "missing", late.reason or "", late.fix)] if late else _asked(step, machine)


def _unwatched(steps: Sequence[tuple[Step, tuple[Check, ...]]]) -> Iterator[tuple[Step, tuple[Check, ...]]]:
    """What needs the monitor to be judged is told once, with the last such step; not of one that can't work anyhow."""
    alone = [step for step, checks in steps if step.watched() and _obstacle(checks) is None]
    for step, checks in steps:
        if not alone or step is not alone[-1]:
            yield step, checks
            continue
        what = " and ".join(dict.fromkeys(one.watched() for one in alone))
        said = f"nobody looks whether {what} while the program runs"
        subject = ", ".join(dict.fromkeys(one.use for one in alone))
        yield step, (*checks, Check(subject, "warn", said, "add the collector monitor to the plan"))


def _checks(collector: Collector, machine: Machine, attaching: bool) -> list[Check]:
    obstacle = collector.obstacle_to_attach(machine) if attaching else None
    return [obstacle] if obstacle else _asked(collector, machine)


def _asked(one: Collector | Step, machine: Machine) -> list[Check]:
    try:
        return one.checks(machine)
    except Exception as error:  # one from another package may raise anything; the others go on
        return [Check(one.use, "missing", f"its checks failed: {type(error).__name__}: {error}")]


def _obstacle(checks: Sequence[Check]) -> Check | None:
    return next((check for check in checks if check.verdict in ("missing", "blocked")), None)


def _fixes(checks: Sequence[Check]) -> str:
    return " · ".join(dict.fromkeys(check.fix for check in checks if check.fix)) or "profrun doctor"
