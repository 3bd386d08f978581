"""What works on this machine, proven by trying, and for each gap the one step that mends it on this system."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.doctor import bare, gpus, kernel, places, settings, tools
from orchestrator.doctor.words import Diagnosis, State, Theme
from orchestrator.preflight import about_ranks

if TYPE_CHECKING:
    from orchestrator.env_steps.base import Step
    from orchestrator.machine import Machine
    from orchestrator.resolve import Run

SCHEMA = "profrun/doctor/1"


@dataclass(frozen=True)
class Verdict:
    """What was found. For a plan: its name, and what of it can't be served (empty: all that it insists on can)."""

    found: tuple[Diagnosis, ...]
    plan: str | None = None
    lacking: tuple[str, ...] = ()


def doctor(machine: Machine) -> Verdict:
    """Tries everything that profrun can use here, one after the other: some seconds. A tool or driver that gives no
    answer costs ten, one that hangs while it records half a minute. Leaves nothing behind."""
    found = (
        *_themed("tools", (*tools.collectors(machine), *tools.others(machine), *bare.pythons(machine))),
        *_themed("GPU", gpus.look(machine)),
        *_themed("permissions", (*kernel.tracing(machine), *kernel.counting(machine), kernel.container(machine))),
        *_themed("machine", (kernel.limits(machine), *settings.settings(machine))),
        *_themed("places", places.places(machine)),
        *_themed("cron", bare.cron(machine)),
    )
    return Verdict(tuple(_as_we_are(machine, one) for one in found))


def doctor_for(run: Run, machine: Machine, reports: Path) -> Verdict:
    """Tries only what a plan uses. What it insists on and can't get is `lacking`."""
    members = [(member, tools.try_member(member, machine)) for member in run.collectors()]
    steps = [(step, _step(step, machine)) for step in run.plan.environment]
    where = list(places.places(machine, reports))
    usable = {id(member) for member, one in members if one.state in ("ok", "unknown")}
    lacking = [
        *(member.use for member, _ in members if member.required and id(member) not in usable),
        *(step.use for step, one in steps if step.on_fail == "fail" and one.state != "ok"),
        *(one.subject for one in where if one.state == "blocked"),
        *(() if usable else ("nothing in it can run here",)),
    ]
    on_gpu = any("cupti" in member.held() for member, _ in members) or any("gpu" in step.use for step, _ in steps)
    found = (
        *_themed("tools", (one for _, one in members)),
        *_themed("GPU", gpus.look(machine) if on_gpu else ()),
        *_themed("environment", (one for _, one in steps)),
        *_themed("ranks", (Diagnosis(one.subject, "ok", one.message, one.fix) for one in about_ranks(run, machine))),
        *_themed("places", where),
    )
    return Verdict(tuple(_as_we_are(machine, one) for one in found), run.name, tuple(dict.fromkeys(lacking)))


def _step(step: Step, machine: Machine) -> Diagnosis:
    """What it says itself of this machine; it is not tried, as that would change the machine."""
    try:
        checks = step.checks(machine)
    except Exception as error:  # a step of another package may raise anything
        return Diagnosis(step.use, "broken", f"its checks failed: {type(error).__name__}: {error}")
    obstacle = next((check for check in checks if check.verdict in ("missing", "blocked")), None)
    if obstacle:
        state: State = "blocked" if obstacle.verdict == "blocked" else "missing"
        return Diagnosis(step.use, state, obstacle.message, obstacle.fix)
    told = [check for check in checks if check.verdict == "warn"] or list(checks)
    fix = next((check.fix for check in told if check.fix), None)
    return Diagnosis(step.use, "ok", "; ".join(check.message for check in told) or "nothing stands against it", fix)


def _themed(theme: Theme, found: Iterable[Diagnosis]) -> Iterator[Diagnosis]:
    return (replace(one, theme=theme) for one in found)


def _as_we_are(machine: Machine, one: Diagnosis) -> Diagnosis:
    """Root needs no sudo, and may find none."""
    return replace(one, fix=one.fix.replace("sudo ", "")) if one.fix and machine.is_root else one


# ---------------------------------------------------------------- what the user sees


def as_json(verdict: Verdict) -> str:
    data = {
        "schema": SCHEMA,
        "plan": verdict.plan,
        "can_be_served": None if verdict.plan is None else not verdict.lacking,
        "lacking": verdict.lacking,
        "found": [asdict(one) for one in verdict.found],
    }
    return json.dumps(data, indent=2, ensure_ascii=False)


_STYLES: dict[State, str] = {"ok": "green", "missing": "yellow", "unknown": "yellow", "broken": "red", "blocked": "red"}


def as_text(verdict: Verdict, width: int | None = None, color: bool | None = None) -> str:
    """A table by theme, then the fixes, each on a line of its own to be copied. Coloured on a terminal only."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("", "", "version", "tried"):
        table.add_column(title, no_wrap=title != "tried")
    for theme, group in groupby(verdict.found, lambda one: one.theme):
        table.add_row(Text(theme, "bold"))
        for one in group:
            said = Text(one.said) if one.path is None else Text.assemble(one.said, (f"\n{one.path}", "dim"))
            table.add_row(f"  {one.subject}", Text(one.state, _STYLES[one.state]), one.version or "", said)
    out = io.StringIO()
    terminal = sys.stdout.isatty() if color is None else color
    console = Console(file=out, width=width or shutil.get_terminal_size((110, 24)).columns, force_terminal=terminal)
    console.print(table)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join([*lines, *_fixes(verdict.found), *_judgement(verdict)])


def _fixes(found: Sequence[Diagnosis]) -> Iterator[str]:
    """One line for what several gaps have in common."""
    wanted = sorted((one for one in found if one.fix), key=lambda one: [x.fix for x in found].index(one.fix))
    yield from ("", "What would help:") if wanted else ()
    for fix, group in groupby(wanted, lambda one: one.fix):
        yield f"  {', '.join(one.subject for one in group)}: {fix}"


def _judgement(verdict: Verdict) -> Iterator[str]:
    if verdict.plan is not None:
        yield ""
        yield (
            f"plan {verdict.plan} can't be served here: {', '.join(verdict.lacking)}"
            if verdict.lacking
            else f"plan {verdict.plan} can be served here"
        )
