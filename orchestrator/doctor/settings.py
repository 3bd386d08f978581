"""Which settings of the machine profrun could change: clocks, governors, C-states; by itself, or through the root
helper."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator import privileged, registry
from orchestrator.doctor.words import Diagnosis
from orchestrator.machine import Machine
from orchestrator.model import Knob

_SHOWN = 3


def settings(machine: Machine) -> Iterator[Diagnosis]:
    """The root helper, then one line for each environment step that has settings here."""
    yield root_helper(machine)
    for name in registry.environment_names():
        try:
            knobs = registry.environment_step(name).knobs(machine)
        except Exception as error:  # a step of another package may raise anything
            yield Diagnosis(name, "broken", f"its settings can't be read: {type(error).__name__}: {error}")
            continue
        if knobs:
            yield _knobs(name, knobs)


def root_helper(machine: Machine) -> Diagnosis:
    """What sets clocks for an ordinary user, through `sudo -n`."""
    if machine.is_root:
        return Diagnosis("root helper", "ok", "not needed: profrun runs as root")
    answer = privileged.available()
    if answer.allowed:
        return Diagnosis("root helper", "ok", answer.why)
    return Diagnosis("root helper", "missing", f"{answer.why}: clocks and governors stay as they are", answer.fix)


def _knobs(name: str, knobs: list[Knob]) -> Diagnosis:
    """Told by who may write them; blocked where that is nobody that profrun can be, missing where some or all that the
    step is for are not there."""
    absent, there = [k for k in knobs if k.writer is None], [k for k in knobs if k.writer is not None]
    said = [f"{knob.name}: {knob.note or 'not to be set here'}" for knob in absent]
    if not there:
        return Diagnosis(name, "missing", "; ".join(said))
    rest = [knob for knob in there if not _ours(knob)]
    if not rest:
        said.append(f"can be changed: {_some(there)}")
        lacks = any(knob.value is None for knob in absent)
        return Diagnosis(name, "missing" if lacks else "ok", "; ".join(said))
    own = [knob for knob in there if _ours(knob)]
    said += [f"can be changed: {_some(own)}"] if own else []
    for writer in dict.fromkeys(knob.writer for knob in rest):
        who = "only by root" if writer == "root" else f"by {writer}"
        said.append(f"{who}: {_some([knob for knob in rest if knob.writer == writer])}")
    fix = privileged.available().fix if any(knob.writer == "root" for knob in rest) else None
    return Diagnosis(name, "ok" if own else "blocked", "; ".join(said), fix)


def _ours(knob: Knob) -> bool:
    """Whether profrun can change it, by itself or through the root helper."""
    if knob.writer == "root" and knob.path and privileged.is_for_helper(knob.path):
        return privileged.available().allowed
    return (knob.writer or "").startswith(("you", "the root helper"))


def _some(knobs: list[Knob]) -> str:
    names = [knob.name for knob in knobs[:_SHOWN]]
    more = len(knobs) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
