"""`profrun check`: what a run would do, as text or data. Starts neither the target nor a collector."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import process, redact, resolve
from orchestrator.errors import PreflightError
from orchestrator.model import Check, Job, Launch, Pass, Target, Wrap
from orchestrator.preflight import Preflight, preflight
from orchestrator.render.console import check_words, cost

if TYPE_CHECKING:
    from orchestrator.machine import Machine
    from orchestrator.plan import Plan

_PLACE = "{dir}"


@dataclass(frozen=True)
class DryRun:
    """The passes with their commands, the checks, the expected cost."""

    run: resolve.Run
    checks: tuple[Check, ...]
    passes: tuple[tuple[Pass, tuple[tuple[str, ...], ...]], ...]
    estimate: resolve.Estimate
    limit_s: float | None
    nothing_left: bool

    def data(self) -> Mapping[str, Any]:
        """The same, JSON-able."""
        return {
            "name": self.run.name,
            "target": {
                "argv": redact.argv(self.run.target.argv),
                "exe": self.run.target.exe,
                "shims": self.run.target.shims,
            },
            "checks": [asdict(check) for check in self.checks],
            "passes": [
                {"id": p.id, "role": p.role, "collectors": [m.use for m in p.members], "commands": commands}
                for p, commands in self.passes
            ],
            "estimate": asdict(self.estimate),
            "budget_s": self.limit_s,
            "nothing_left": self.nothing_left,
        }

    def text(self) -> str:
        """For people: one line for each start, the commands below it."""
        lines = [f"plan {self.run.name}: {self.estimate.starts} starts{cost(self.estimate)}"]
        if self.limit_s is not None:
            lines.append(f"budget: {self.limit_s:g} s; passes that would go beyond it are left out")
        lines += [f"  {check_words(check)}" for check in self.checks]
        for planned, commands in self.passes:
            who = "+".join(member.use for member in planned.members)
            lines.append(f"{planned.id}  {who}  {planned.role} {planned.repeat}")
            lines += [f"    {shlex.join(argv)}" for argv in commands]
        if self.nothing_left:
            lines.append("nothing in this plan can run here")
        return "\n".join(lines)


def dry_run(plan: Plan, command: Sequence[str], machine: Machine, output: Path | None) -> DryRun:
    """Resolves the plan and composes every command. Raises what a run would raise before its first start."""
    run = resolve.resolve(plan, command)
    parent = output or Path(plan.report.directory)
    known_s = resolve.known_bare_wall_s(parent, redact.argv(run.target.argv)) if parent.is_dir() else None
    checks, found = _checks(run, machine)
    facts = {"gpus": machine.gpus, **({"leftovers": 0} if run.passes[0].role != "profiled" else {})}
    passes = tuple((planned, _commands(planned, run.target, machine, facts)) for planned in run.passes)
    estimate = resolve.estimate(run.passes, known_s)
    return DryRun(run, checks, passes, estimate, resolve.budget_s(plan.budget, known_s), found is None)


def _checks(run: resolve.Run, machine: Machine) -> tuple[tuple[Check, ...], Preflight | None]:
    try:
        found = preflight(run, machine)
    except PreflightError as error:
        return (Check("preflight", "missing", error.what, error.next_step),), None
    return tuple(check for _, checks in found.checks for check in checks), found


def _commands(planned: Pass, target: Target, machine: Machine, facts: Mapping[str, Any]) -> tuple[tuple[str, ...], ...]:
    """The command lines of a pass as they would start, the target's own among them; {dir} is the capture's
    directory."""
    launches = [_launch(member, planned, target, machine, facts) for member in planned.members]
    wraps: list[Wrap] = sorted((x.wrap for x in launches if x.wrap), key=lambda wrap: wrap.order)
    started = (*(word for wrap in wraps for word in wrap.argv), *target.argv)
    beside = [b.argv for x in launches for b in x.beside]
    after = [a.argv for x in launches for a in x.after]
    return tuple(redact.argv(argv) for argv in (started, *beside, *after))


def _launch(member: Any, planned: Pass, target: Target, machine: Machine, facts: Mapping[str, Any]) -> Launch:
    tool = member.tool(machine)
    if member.probe is not None and tool.path is None:
        return Launch()
    marked = replace(target, env={**target.env, process.MARKER: planned.id})
    job = Job(planned.id, _PLACE, marked, tool, window=planned.window, facts=facts)
    launched: Launch = member.launch(job)
    return launched
