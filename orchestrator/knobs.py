"""Every knob of this machine that matters for measuring, for `profrun env show`: its value, its limits, who may change
it; then what runs hold now, and what dead ones have left."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from orchestrator import journal, kernel, names, privileged, registry
from orchestrator.machine import Machine
from orchestrator.model import Knob

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA = "profrun/knobs/1"

_GROUPS: dict[str, tuple[tuple[str, ...], Callable[[Machine], Iterator[Knob]] | None]] = {
    "CPU": (("cpu_frequency",), kernel.processors),
    "GPU": (("gpu_clocks",), None),
    "memory": (("drop_caches",), kernel.memory),
    "kernel": ((), kernel.kernel),
    "services": ((), kernel.services),
}
"""In the order in which they are shown: the environment steps whose knobs belong there, and what no step sets."""


@dataclass(frozen=True)
class Group:
    """Knobs of one kind. Those of a step of another package stand under its name."""

    name: str
    knobs: tuple[Knob, ...]


@dataclass(frozen=True)
class Found:
    """What there is. `troubles`: what could not be read, and why; `held`: runs that go on, with what they keep for
    themselves; `left`: runs that died before they had put it back."""

    groups: tuple[Group, ...]
    troubles: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    why_not_root: str | None = None
    """Why what only root may change is out of reach, and what an administrator does about it; None where it isn't."""


def collect(machine: Machine) -> Found:
    """Reads all of it; changes nothing. Takes as long as the GPUs' driver does, 10 s at most."""
    troubles: list[str] = []
    of_steps = {name: _of_step(name, machine, troubles) for name in registry.environment_names()}
    groups = []
    for title, (steps, own) in _GROUPS.items():
        knobs = [knob for step in steps for knob in of_steps.pop(step, ())]
        groups.append(Group(title, tuple(_named([*knobs, *(own(machine) if own else ())]))))
    groups += [Group(name, tuple(_named(knobs))) for name, knobs in of_steps.items()]
    held, left = _runs(troubles)
    for_helper = any(_is_for_helper(knob) for group in groups for knob in group.knobs)
    return Found(
        tuple(group for group in groups if group.knobs),
        tuple(troubles),
        held,
        left,
        why_not_root=privileged.why_not() if for_helper else None,
    )


def _of_step(name: str, machine: Machine, troubles: list[str]) -> list[Knob]:
    try:
        return registry.environment_step(name).knobs(machine)
    except Exception as error:  # a step of another package may raise anything
        troubles.append(f"{name}: its settings can't be read: {type(error).__name__}: {error}")
        return []


def _named(knobs: Iterable[Knob]) -> Iterator[Knob]:
    """With the root helper as the writer where it is."""
    for knob in knobs:
        through = _is_for_helper(knob) and privileged.available().allowed
        yield replace(knob, writer="the root helper") if through else knob


def _is_for_helper(knob: Knob) -> bool:
    """Those of GPUs have no path: nvidia-smi sets them."""
    return knob.writer == "root" and (knob.path is None or privileged.is_for_helper(knob.path))


def _runs(troubles: list[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(those that go on, those that died)."""
    held, left = [], []
    for run in journal.left():
        if run.journal:
            run.journal.close()
        if run.state == "alive":
            claims = run.about.get("claims")
            what = names.together(map(str, claims)) if isinstance(claims, list) else ""
            held.append(f"{what}: {run.who}" if what else f"{run.who}: holds no setting")
        elif run.state in ("dead", "foreign"):
            left.append(run.who)
        elif run.state == "unreadable":
            troubles.append(f"the journal {run.path}: {run.why}")
    return tuple(held), tuple(left)


# ---------------------------------------------------------------- what the user sees


def as_json(found: Found) -> str:
    return json.dumps({"schema": SCHEMA, **asdict(found)}, indent=2, ensure_ascii=False)


def fold(knobs: Iterable[Knob]) -> list[Knob]:
    """Those that are alike but for the first number in their names as one: `policy0-127 governor`. Those that differ in
    more stand next to each other."""
    kinds: dict[str, dict[Knob, list[str]]] = {}
    for knob in knobs:
        kind = re.sub(r"\d+", "#", knob.name, count=1)
        kinds.setdefault(kind, {}).setdefault(replace(knob, name=kind, path=None), []).append(knob.name)
    return [replace(knob, name=names.together(same)) for alike in kinds.values() for knob, same in alike.items()]


def as_text(found: Found, width: int | None = None, color: bool | None = None) -> str:
    """One table, then what is in the way of changing it. Coloured on a terminal only."""
    from rich.console import Console

    out = io.StringIO()
    terminal = sys.stdout.isatty() if color is None else color
    columns = width or shutil.get_terminal_size((120, 24)).columns
    console = Console(file=out, width=columns, force_terminal=terminal, highlight=False)
    console.print(_table(found))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join((*lines, *_endings(found)))


def _table(found: Found) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title, whole in (("", True), ("now", False), ("set by", True), ("possible", False)):
        table.add_column(title, no_wrap=whole, overflow="fold")
    for number, group in enumerate(found.groups):
        if number:
            table.add_row()
        table.add_row(Text(group.name, "bold"))
        for knob in fold(group.knobs):
            value = Text(knob.value, "bold") if knob.value is not None else Text("unknown", "dim")
            who, _, why = (knob.writer or "").partition(": ")
            said = Text.assemble(knob.limits or "", (_aside(knob, why), "dim"))
            table.add_row(Text(f"  {knob.name}"), value, Text(who, _STYLES.get(who, "dim")), said)
    return table


_STYLES = {"you": "green", "the root helper": "green", "root": "yellow"}


def _aside(knob: Knob, why: str) -> str:
    said = "; ".join(text for text in (knob.note, why) if text)
    return f" ({said})" if said and knob.limits else said


def _plain(text: str) -> str:
    """Without what could steer the terminal: another user's journal says what that user likes."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _endings(found: Found) -> Iterator[str]:
    for title, lines in (
        ("What could not be read:", found.troubles),
        ("Held by runs that go on:", found.held),
        ("Left by runs that died, to be put back by `profrun env restore`:", found.left),
    ):
        if lines:
            yield from ("", title, *(f"  {_plain(line)}" for line in lines))
    if found.why_not_root:
        yield from ("", *found.why_not_root.splitlines())
