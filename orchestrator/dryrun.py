"""`profrun check`: what a run would do, as text or data. Starts neither the target nor a collector."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import changes, process, redact, resolve
from orchestrator.env_steps.base import too_late
from orchestrator.model import Cannot, Change, Hold, Job, Launch, Part, Pass, Run, Wait, Wrap, Write
from orchestrator.preflight import Preflight, ask
from orchestrator.render.console import aim, check_words
from orchestrator.render.environment import fold
from orchestrator.units import Times, show_duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine
    from orchestrator.plan import Plan

_PLACE = "{dir}"

Command = tuple[str, tuple[str, ...], str]
"""What it is for (before_each, with, target, beside, after), its words, and on what condition ("" for none)."""


@dataclass(frozen=True)
class Planned:
    """A change of the machine, what undoes it where it does not undo itself, and what the setting says now."""

    change: Change
    undo: Change | None = None
    now: str | None = None


@dataclass(frozen=True)
class Deed:
    """What an environment step would do. `variables`: of the program's environment, in the words of env(1)."""

    use: str
    planned: tuple[Planned, ...]
    variables: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """JSON-able; each change as it stands in the journal of a run, with the undo and the value of this moment."""
        made = [
            {
                "change": changes.as_data(changes.shown(one.change)),
                "undo": one.undo and changes.as_data(changes.shown(one.undo)),
                "now": one.now,
            }
            for one in self.planned
        ]
        return {"for": self.use, "changes": made, "variables": list(self.variables)}


@dataclass(frozen=True)
class DryRun:
    """The passes that would run with their commands, the checks, the expected cost."""

    run: resolve.Run
    found: Preflight
    deeds: tuple[Deed, ...]
    passes: tuple[tuple[Pass, tuple[Command, ...]], ...]
    estimate: resolve.Estimate
    limit_s: float | None

    @property
    def nothing_left(self) -> bool:
        return self.found.refusal(self.run.passes) is not None

    def data(self) -> Mapping[str, Any]:
        """The same, JSON-able."""
        target = self.run.target
        return {
            "name": self.run.name,
            "target": {"argv": redact.argv(target.argv), "exe": target.exe, "shims": target.shims},
            "splits": [split.text() for split in self.run.plan.splits],
            "checks": [asdict(check) for check in self.found.every()],
            "environment": [deed.data() for deed in self.deeds],
            "passes": [
                {
                    "id": planned.id,
                    "role": planned.role,
                    "collectors": [member.use for member in planned.members],
                    "commands": [_data(command) for command in commands],
                }
                for planned, commands in self.passes
            ],
            "estimate": asdict(self.estimate),
            "budget_s": self.limit_s,
            "nothing_left": self.nothing_left,
        }

    def text(self) -> str:
        """For people: the checks, then each pass with its commands below it, repeats in one."""
        return "\n".join([*self._head(), *self._checks(), *self._environment(), *self._passes(), *self._end()])

    def _head(self) -> Iterator[str]:
        yield f"plan {self.run.name}: {aim(self.run, self.estimate)}"
        for shim in self.run.target.shims:
            yield f"{shim} is a version manager's shim; {self.run.target.exe} is run"
        if self.run.target.argv == (resolve.NOBODY,):
            yield f"no command is given: {resolve.NOBODY} stands for it"
        yield from (split.text() for split in self.run.plan.splits)
        budget = self.run.plan.budget
        if budget is not None:
            limit = f"{budget.factor:g} times the bare run" if isinstance(budget, Times) else show_duration(budget)
            known = f" ({show_duration(self.limit_s)})" if isinstance(budget, Times) and self.limit_s else ""
            yield f"budget: {limit}{known}; passes that would go beyond it are left out"

    def _checks(self) -> Iterator[str]:
        for check in self.found.every():
            yield f"  {check.verdict:8}" + check_words(check).replace("\n", "\n" + " " * 8)

    def _environment(self) -> Iterator[str]:
        if self.deeds:
            yield "environment, undone in reverse"
        for deed in self.deeds:
            yield from _told(deed)

    def _passes(self) -> Iterator[str]:
        for commands, group in groupby(self.passes, key=lambda one: (one[0].role, one[0].members, one[1])):
            planned = [one for one, _ in group]
            ids = planned[0].id + (f" to {planned[-1].id}" if len(planned) > 1 else "")
            role = {"warmup": ", warm-up", "bare": ", bare", "profiled": ""}[planned[0].role]
            yield f"{ids}  {'+'.join(member.use for member in planned[0].members)}{role}"
            yield from map(_line, commands[2])

    def _end(self) -> Iterator[str]:
        words = [word for _, commands in self.passes for _, argv, _ in commands for word in argv]
        known = {
            "{dir}": "the capture's folder",
            "{pid}": "the process",
            "{pids}": "the processes",
            "{python}": "its Python process",
            "{n}": "0, 1, ...",
            "{who}": "of a rank its host, number and pid",
            "{launches}": "as many as it takes until each chosen kernel has come",
        }
        used = [f"{name} {meaning}" for name, meaning in known.items() if any(name in word for word in words)]
        if used:
            yield f"filled in when it runs: {', '.join(used)}"
        refusal = self.found.refusal(self.run.passes)
        lost = [m.use for m in self.run.collectors() if m.required and self.found.obstacle(m)]
        if refusal:
            yield refusal.what.partition(":\n")[0]
        elif lost:
            yield f"without {', '.join(lost)} the run ends in exit status 4 (`required: false` would allow that)"


def _line(command: Command) -> str:
    role, argv, condition = command
    return _said(role, shlex.join(argv)) + (f"  # {condition}" if condition else "")


def _said(role: str, text: str) -> str:
    return f"    {role:11} {text}"


def _data(command: Command) -> dict[str, Any]:
    return dict(zip(("for", "argv", "if"), command, strict=True))


def dry_run(
    plan: Plan,
    command: Sequence[str],
    machine: Machine,
    output: Path | None,
    attach: tuple[Sequence[int], float | None] = ((), None),
) -> DryRun:
    """Resolves the plan and composes every command. `attach`: the processes to look at, and for how many seconds.

    Raises what a run would raise before its first start, but for a missing command."""
    run = _run(plan, command, attach)
    parent = output or Path(plan.report.directory)
    resolve.tell(machine, run)
    known_s = resolve.known_bare_wall_s(parent, redact.argv(run.target.argv)) if parent.is_dir() else None
    found = ask(run, machine)
    able = [replace(planned, members=able) for planned in run.passes if (able := found.able(planned))]
    facts = {
        "gpus": machine.gpus,
        "environment": tuple(step.use for step in plan.environment),
        **({"leftovers": 0} if run.passes and run.passes[0].role != "profiled" else {}),
    }
    return DryRun(
        run,
        found,
        tuple(_deed(step, machine) for step in plan.environment),
        tuple((planned, tuple(_commands(planned, run, machine, facts))) for planned in able),
        resolve.estimate(able, known_s),
        resolve.budget_s(plan.budget, known_s),
    )


def _run(plan: Plan, command: Sequence[str], attach: tuple[Sequence[int], float | None]) -> resolve.Run:
    if attach[0]:
        return resolve.attach(plan, *attach)
    return resolve.resolve(plan, command) if command else resolve.without_command(plan)


def _deed(step: Any, machine: Machine) -> Deed:
    """What an environment step would do, and what would take that back."""
    late = too_late(step, machine)
    if late:
        return Deed(step.use, (Planned(late),))
    try:
        before = step.before(machine)
        found = tuple(Planned(change, step.restore(before, change), _now(change)) for change in step.apply(before))
    except Exception as error:  # a step of another package may raise anything; the run goes on without it, too
        found = (Planned(Cannot("", "failed", f"{type(error).__name__}: {error}")),)
    child = step.child()
    words = (word for name in child.unset for word in ("-u", name))
    return Deed(step.use, found, (*_assignments(child.set), *words))


def _now(change: Change) -> str | None:
    if isinstance(change, Hold):
        return change.was
    with contextlib.suppress(OSError):
        return changes.read(change.path) if isinstance(change, Write) and not change.once else None
    return None


def _told(deed: Deed) -> Iterator[str]:
    """For people: commands one by one with what undoes them, settings that are alike as one, with their course."""
    for one in deed.planned:
        if isinstance(one.change, Run):
            yield _said(deed.use, shlex.join(redact.argv(one.change.argv)))
            if isinstance(one.undo, Run):
                yield _said("  undo", shlex.join(redact.argv(one.undo.argv)))
        elif isinstance(one.change, Wait):
            limit_s = one.change.limit_s
            yield _said(deed.use, f"waits up to {show_duration(limit_s)}" if limit_s else "looks once")
        elif isinstance(one.change, Write) and one.change.once:
            yield _said(deed.use, f"{one.change.part or one.change.path}: {one.change.text.strip()}, without an undo")
    for setting in fold([part for one in deed.planned if (part := _part(one))]):
        status = "" if setting.status == "applied" else setting.status
        yield _said(deed.use, ": ".join(filter(None, (setting.name, status, setting.reason or setting.course))))
    if deed.variables:
        yield _said(deed.use, shlex.join(deed.variables))


def _part(one: Planned) -> Part | None:
    """A setting as the report would have it when all goes well; None for what is no setting."""
    change = one.change
    if isinstance(change, Cannot):
        return Part(change.part, change.status, reason=change.reason)
    if isinstance(change, Hold):
        wanted = change.shown or change.text
    elif isinstance(change, Write) and not change.once:
        wanted = one.now if one.now is not None and changes.in_force(change, one.now) else change.text.strip()
    else:
        return None
    return Part(changes.part_of(change), "already" if wanted == one.now else "applied", wanted, one.now, wanted)


def _assignments(variables: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{name}={redact.tree({name: text})[name]}" for name, text in variables.items())


def _commands(planned: Pass, run: resolve.Run, machine: Machine, facts: Mapping[str, Any]) -> Iterator[Command]:
    """The commands of a pass as they would start, in order; {dir} is the capture's directory."""
    launches = [_launch(member, planned, run, machine, facts) for member in planned.members]
    wraps: list[Wrap] = sorted((x.wrap for x in launches if x.wrap), key=lambda wrap: wrap.order)
    argv, exe = run.program, run.program[0] if run.tasks else run.target.exe
    if wraps:
        argv = (*(word for wrap in wraps for word in wrap.argv), exe, *argv[1:])
    argv = (*run.tasks.start, *argv) if run.tasks else argv
    if run.plan.target.before_each and not run.pids:
        yield "before_each", redact.argv(run.plan.target.before_each), ""
    for launch in launches:
        if launch.child.set:
            yield "with", _assignments(launch.child.set), ""
    if run.plan.target.inject and not run.pids:
        yield "inside", tuple(_parts(planned, run, launches)), ""
    if not run.pids:
        yield "target", redact.argv(argv), ""
    for launch in launches:
        yield from (("beside", redact.argv(beside.argv), "") for beside in launch.beside)
    for after in (after for launch in launches for after in launch.after):
        yield "after", redact.argv(after.argv), f"if there is no {after.when_missing}" if after.when_missing else ""


def _parts(planned: Pass, run: resolve.Run, launches: Sequence[Launch]) -> Iterator[str]:
    """What profrun's part in the target's Python does in this pass."""
    yield "steps"
    yield from ("ranges",) if run.plan.ranges else ()
    children = [*(step.child() for step in run.plan.environment), *(launch.child for launch in launches)]
    yield from dict.fromkeys(name for child in children for name, wanted in child.inject.items() if wanted)
    yield from ("window",) if planned.window and planned.window.steps is not None else ()


def _launch(member: Any, planned: Pass, run: resolve.Run, machine: Machine, facts: Mapping[str, Any]) -> Launch:
    marked = replace(run.target, env={**run.target.env, process.MARKER: planned.id})
    partners = tuple(other.label() for other in planned.members if other is not member)
    job = Job(
        planned.id, _PLACE, marked, member.tool(machine), pids=run.pids, attached=run.attached, armed=machine.armed,
        window=planned.window, facts=facts, partners=partners,
    )  # fmt: skip
    launched: Launch = member.launch(job)
    return launched
