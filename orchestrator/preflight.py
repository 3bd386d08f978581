"""Run + Machine -> checks: what of the plan can work here, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import launching, occupied
from orchestrator.env_steps.base import Step, too_late
from orchestrator.errors import PreflightError
from orchestrator.model import Check, Pass

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.launching import Hurdle
    from orchestrator.machine import Machine
    from orchestrator.occupied import Holder
    from orchestrator.resolve import Run


@dataclass(frozen=True)
class Preflight:
    """The checks of each collector and each environment step, and with them who can take part."""

    checks: tuple[tuple[Collector, tuple[Check, ...]], ...]
    steps: tuple[tuple[Step, tuple[Check, ...]], ...] = ()
    target: tuple[Check, ...] = ()
    """What of the command itself stands in the way."""

    def every(self) -> Iterator[Check]:
        """All checks: those of the command, of the collectors, of the steps."""
        yield from self.target
        for _, checks in (*self.checks, *self.steps):
            yield from checks

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
        return PreflightError(f"nothing in this plan can run here:\n{said}", "", _fixes([*self.target, *bad_ones]))


def preflight(run: Run, machine: Machine) -> Preflight:
    """Asks every collector and every environment step. Raises PreflightError when nothing may run."""
    found = ask(run, machine)
    refusal = found.refusal(run.passes)
    if refusal:
        raise refusal
    return found


def ask(run: Run, machine: Machine) -> Preflight:
    """What every collector and every environment step says of this machine."""
    hurdles = () if run.pids else launching.hurdles(run.program, _wanted_in_a_container(run))
    hurdles = tuple(one for one in hurdles if one.name not in run.plan.launcher.removes())
    held = occupied.holders(run.program, run.collectors(), run.plan.environment, machine)
    members = tuple((member, tuple(_checks(member, machine, run, hurdles, held))) for member in run.collectors())
    steps = tuple((step, tuple(_here(run, _of_step(step, machine)))) for step in run.plan.environment)
    watched = any(member.use == "monitor" for member in run.collectors())
    about = [_about(hurdle) for hurdle in hurdles if hurdle.far or run.plan.target.inject]
    about += [] if run.pids else [*occupied.about(run.program), *about_ranks(run, machine)]
    return Preflight(members, steps if watched else tuple(_unwatched(steps)), tuple(about))


def _here(run: Run, checks: Iterable[Check]) -> Iterator[Check]:
    """What this host lacks stands in nobody's way where it only leads the job: each task asks on its own."""
    return map(_only_here, checks) if run.tasks and run.tasks.leads_from_afar else iter(checks)


def _only_here(check: Check) -> Check:
    if check.verdict not in ("missing", "blocked"):
        return check
    said = f"on this host, which only leads the job: {check.message}; each task asks on its own host"
    return Check(check.subject, "warn", said, check.fix)


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


def _checks(
    collector: Collector, machine: Machine, run: Run, hurdles: Iterable[Hurdle], held: Iterable[Holder]
) -> list[Check]:
    taken = occupied.checks(collector, held, machine)
    obstacle = collector.obstacle_to_attach(machine) if run.pids else _out_of_reach(collector, hurdles)
    if obstacle:
        return [obstacle]
    lacks = _obstacle(taken)
    return [*_here(run, [lacks] if lacks else [*_asked(collector, machine), *taken])]


def _wanted_in_a_container(run: Run) -> tuple[str, ...]:
    return tuple(sorted({member.capability for member in run.collectors() if member.capability}))


def _about(hurdle: Hurdle) -> Check:
    meant = "what is measured is this command, not the program" if hurdle.far else "no steps, no seeds there"
    return Check("target", "warn", f"{hurdle.name}: {hurdle.why}; {meant}", hurdle.way)


def about_ranks(run: Run, machine: Machine) -> Iterator[Check]:
    """Which launcher was seen, how many ranks it will start, and what does not fit that number."""
    starter, count, chosen = run.starter, run.expected, run.plan.launcher.ranks
    if run.pids or (starter is None and run.plan.launcher.use == "auto" and chosen is None):
        return
    by = starter.name if starter else run.plan.launcher.use
    known = f"{count.world} ranks" if count.world else "how many ranks it starts is not known before they run"
    here = f", {count.here} of them on this host" if count.here and count.here != count.world else ""
    which = f"; the collectors look at {', '.join(map(str, chosen))}" if chosen else ""
    yield Check("launcher", "ok", f"{by}: {known}{here}{which}")
    beyond = [rank for rank in chosen or () if count.world and rank >= count.world]
    if beyond:
        said = f"there will be no rank {', '.join(map(str, beyond))}: the command starts 0 to {(count.world or 0) - 1}"
        yield Check("launcher", "warn", said, "mend launcher.ranks")
    cpus = machine.target_cpus
    if cpus and count.here and len(cpus) < count.here:
        said = f"{count.here} ranks share {len(cpus)} CPU{'s' * (len(cpus) > 1)}: each waits for the others"
        yield Check("affinity", "warn", said, "give affinity.cpus at least one CPU a rank, or leave cpus out")


def _out_of_reach(collector: Collector, hurdles: Iterable[Hurdle]) -> Check | None:
    """That it would say things of a client that nobody has asked for, or can't get in. The way out is told once, with
    the command."""
    for hurdle in hurdles:
        if collector.injects and not hurdle.gets_in:
            return Check(collector.use, "blocked", f"can't get into what `{hurdle.name}` starts: {hurdle.why}")
        if hurdle.far and not collector.from_afar and not collector.injects:
            return Check(collector.use, "blocked", f"would see `{hurdle.name}` alone: {hurdle.why}")
    return None


def _asked(one: Collector | Step, machine: Machine) -> list[Check]:
    try:
        return one.checks(machine)
    except Exception as error:  # one from another package may raise anything; the others go on
        return [Check(one.use, "missing", f"its checks failed: {type(error).__name__}: {error}")]


def _obstacle(checks: Sequence[Check]) -> Check | None:
    return next((check for check in checks if check.verdict in ("missing", "blocked")), None)


def _fixes(checks: Sequence[Check]) -> str:
    return " · ".join(dict.fromkeys(check.fix for check in checks if check.fix)) or "profrun doctor"
