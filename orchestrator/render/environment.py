"""The environment steps in words: whether the machine was as the plan wants it and is back, step by step what was
wanted and read, settings that are alike told once, and who else was there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestrator import names
from orchestrator.cpufreq import show_khz
from orchestrator.model import IN_FORCE, Part, StepRecord
from orchestrator.render import view

if TYPE_CHECKING:
    from orchestrator.report import Report

RESTORE = "profrun env restore"
RESET = "reset"
"""What is said of a lock of clocks after the run: what it was before could not be read."""
FEW = 8
"""So many numbers of a kind are all shown."""
WIDE = 60
"""Characters of a name with the names of what it stands in; of a longer one both ends are kept."""

Pairs = tuple[tuple[str, str | None], ...]
"""Settings as (name, value); a value of None is unknown."""


@dataclass(frozen=True)
class Told:
    """One sentence on the whole environment."""

    tone: view.Tone
    text: str


@dataclass(frozen=True)
class Setting:
    """Parts of a step that went alike, under one name. `before`, `set` and `after`: None is unknown, "" is nobody's
    question."""

    name: str
    count: int
    tone: view.Tone
    status: str
    wanted: str
    before: str | None
    set: str | None
    after: str | None
    reason: str
    fix: str | None

    @property
    def course(self) -> str:
        """powersave → performance → powersave"""
        known = [text or view.UNKNOWN for text in (self.before, self.set, self.after) if text != ""]
        return known[0] if len(set(known)) == 1 else " → ".join(known)

    @property
    def readable(self) -> bool:
        """Whether there is a value to show; of a command there is none."""
        return bool(self.wanted or self.course)


@dataclass(frozen=True)
class Seen:
    """A list of alike things, mostly processes, that a step has read."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]


@dataclass(frozen=True)
class Row:
    """One step, as a reader wants it."""

    use: str
    tone: view.Tone
    status: str
    wanted: str
    put_back: str
    left_changed: bool
    reason: str | None
    fix: str | None
    settings: tuple[Setting, ...]
    each: tuple[Setting, ...]
    """Every part alone, where `settings` tells several as one."""
    moments: tuple[tuple[str, Pairs], ...]
    """What was wanted, and what was read before, once it was set, during the passes, and after: what is known of it."""
    details: tuple[tuple[str, Pairs], ...]
    """The same where `settings` has it already, in fewer words."""
    seen: tuple[Seen, ...]


def told(report: Report) -> list[Told]:
    """Whether the plan's state was reached, and whether the machine is back: the worst first."""
    steps = report.environment
    if not steps:
        text = "no plan made this report" if report.run.imported else "the plan changed nothing on this machine"
        return [Told("good", f"{text[0].upper()}{text[1:]}.")]
    return [*_left(steps), *(_lacking(steps) or _well(steps))]


def _left(steps: Sequence[StepRecord]) -> Iterator[Told]:
    """What is not as it was found, with the command that mends it."""
    left = [step for step in steps if step.restored is False]
    if left:
        why = "; ".join(f"{step.use}" + (f" ({step.reason})" if step.reason else "") for step in left)
        yield Told("bad", f"NOT put back: {why}. Next: {RESTORE}")


def _lacking(steps: Sequence[StepRecord]) -> list[Told]:
    missing = [step for step in steps if step.status not in IN_FORCE]
    if not missing:
        return []
    who = f"{len(missing)} of {len(steps)} steps" if len(steps) > 1 else "The plan's one step"
    which = ", ".join(f"{step.use} {status(step)}" for step in missing)
    tone: view.Tone = "bad" if any(step.status == "failed" for step in missing) else "warn"
    back = " What was changed was put back." if any(s.restored for s in steps) and not _any_left(steps) else ""
    return [Told(tone, f"{who} not in force: {which}.{back}")]


def _well(steps: Sequence[StepRecord]) -> list[Told]:
    near = [f"{s.use} {status(s)}" for s in steps if s.status == "clamped"]
    limit = f", as near as it goes: {', '.join(near)}," if near else ""
    if any(step.restored for step in steps) and not _any_left(steps):
        return [Told("good", f"The machine was brought into the plan's state{limit} and put back.")]
    rest = "" if _any_left(steps) else "; there was nothing to put back"
    return [Told("good", f"The machine was in the plan's state{limit.removesuffix(',')}{rest}.")]


def _any_left(steps: Sequence[StepRecord]) -> bool:
    return any(step.restored is False for step in steps)


def status(what: StepRecord | Part) -> str:
    """refused (EACCES), clamped (1530 MHz)"""
    clocks = [part for part in what.parts if part.name.endswith(_KHZ)] if isinstance(what, StepRecord) else []
    detail = _clock(what.detail) if any(part.detail == what.detail for part in clocks) else what.detail
    return view.words(what.status) + (f" ({detail})" if detail else "")


def outline(step: StepRecord) -> str:
    """What there is to say of a step beside its status, in one line: the reason, or the values that were set."""
    if step.reason:
        return step.reason
    set_to = (f"{s.name} {s.set}" for s in fold([p for p in step.parts if p.name]) if s.set)
    return view.short("; ".join(set_to), 2 * WIDE)


def put_back(step: StepRecord) -> str:
    """Whether what was changed is as it was."""
    if step.restored is None:
        return "nothing to put back"
    reset = any(part.after == RESET for part in step.parts)  # what stood there before could not be read
    return "not put back" if not step.restored else "put back, clock locks reset" if reset else "put back"


def rows(report: Report) -> list[Row]:
    """Every step in the order of the plan."""
    return [_row(step) for step in report.environment]


def _row(step: StepRecord) -> Row:
    parts = [part for part in step.parts if part.name]
    settings = tuple(_once(setting, step) for setting in fold(parts))
    readable = any(setting.readable for setting in settings)
    changed = bool(parts) or step.restored is not None
    then = "set" if changed else "then" if step.before not in (None, {}, step.verified) else "found"
    first = () if step.before == step.verified and not changed else (("before", step.before),)
    read = (*first, (then, step.verified), ("during", step.during), ("after", step.after))
    known = [(name, found) for name, value in read if (found := pairs(value))]
    wanted = pairs(_asked(step.wanted))
    during = [moment for moment in known if moment[0] == "during"]
    return Row(
        use=step.name,
        tone="bad" if step.restored is False else view.tone(step.status),
        status=status(step),
        wanted=view.settings(step.wanted) or "",
        put_back=put_back(step),
        left_changed=step.restored is False,
        reason=step.reason,
        fix=step.fix,
        settings=settings,
        each=tuple(_setting(_in_words(part), 1) for part in parts) if len(settings) < len(parts) else (),
        moments=tuple(during if readable else [*([("wanted", wanted)] if wanted else []), *known]),
        details=tuple(moment for moment in known if moment not in during) if readable else (),
        seen=tuple(_seen(step)),
    )


def _once(setting: Setting, step: StepRecord) -> Setting:
    """Without what the step itself says already."""
    said = setting.reason in (step.reason or "")
    return replace(setting, reason="" if said else setting.reason, fix=None if setting.fix == step.fix else setting.fix)


def _asked(wanted: Any) -> Any:
    """What was left to itself is no wish."""
    return {k: v for k, v in wanted.items() if v not in (None, [], ())} if isinstance(wanted, Mapping) else wanted


# ---------------------------------------------------------------- settings that are alike


def fold(parts: Sequence[Part]) -> list[Setting]:
    """The parts of a step, those that went alike under one name: `policy0-127 governor`."""
    alike: dict[Part, list[Part]] = {}
    for part in map(_in_words, parts):
        form = replace(part, name=names.shape(part.name), reason=part.reason and names.shape(part.reason))
        alike.setdefault(form, []).append(part)
    return [_setting(_as_one(group), len(group)) for group in alike.values()]


_KHZ = " kHz"
"""What the name of a part ends with whose values are the kernel's bare numbers of kHz."""


def _in_words(part: Part) -> Part:
    """The same with its clocks as people write them."""
    if not part.name.endswith(_KHZ):
        return part
    return replace(
        part,
        name=part.name.removesuffix(_KHZ),
        wanted=_clock(part.wanted),
        before=_clock(part.before),
        verified=_clock(part.verified),
        after=_clock(part.after),
        detail=_clock(part.detail),
    )


def _clock(khz: str | None) -> str | None:
    return show_khz(int(khz)) if khz is not None and khz.isdecimal() else khz


def _as_one(group: Sequence[Part]) -> Part:
    reasons = [part.reason for part in group if part.reason]
    name = view.short(names.together(part.name for part in group), 2 * WIDE)
    return replace(group[0], name=name, reason="; ".join(names.folded(reasons)) or None)


def _setting(part: Part, count: int) -> Setting:
    silent = part.wanted is part.before is part.verified is part.after is None  # a command: there is nothing to read
    reached = not silent and (part.verified is not None or part.status in IN_FORCE)
    return Setting(
        name=part.name,
        count=count,
        tone="bad" if part.restored is False else view.tone(part.status),
        status=status(part) + (", not put back" if part.restored is False else ""),
        wanted=part.wanted or "",
        before="" if silent else part.before,
        set=part.verified if reached else "",
        after="" if silent or (part.after is None and part.restored is None) else part.after,
        reason=part.reason or "",
        fix=part.fix,
    )


# ---------------------------------------------------------------- what was read


_UNITS: Mapping[str, Callable[[Any], str | None]] = {
    "_bytes": view.size,
    "_s": view.duration,
    "_khz": show_khz,
    "_mhz": lambda value: f"{value:g} MHz",
    "_pct": lambda value: f"{view.plain(value)} %",
    "_us": lambda value: f"{view.plain(value)} µs",
    "_c": lambda value: f"{view.plain(value)} °C",
    "_w": lambda value: f"{view.plain(value)} W",
}
_TOLD_ELSEWHERE = frozenset({"why_not", "notes", "unknown", "not_told", "display_manager"})
"""What goes into a step's reason and advice."""
_ITS_OWN = frozenset(
    {
        "switches",
        "silent",
        "smi",
        "limit_s",
        "file",
        "read_only",
        "lock_seen",
        "trial",
        "parts",
        "missing",
        "may_stay",
        "fix",
    }
)
"""What a step has looked up for its own use."""
_UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22}\b")


def quantity(key: str, value: Any) -> tuple[str, str | None]:
    """(name, value with its unit): the key's ending says which. `memory_bytes`, 8e9 -> memory, 8 GB. No values at all
    of a quantity are unknown."""
    ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
    values = value if isinstance(value, (list, tuple)) else (value,)
    if not ending or not all(v is None or _is_number(v) for v in values):
        return view.label(key), view.plain(value)
    shown = [view.UNKNOWN if v is None else _UNITS[ending](v) or view.UNKNOWN for v in values]
    return view.label(key.removesuffix(ending)), None if value is None else ", ".join(shown) or None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def pairs(value: Any) -> Pairs:
    """Whatever a step has read as a flat list; those that differ only in the numbers of their names are told once."""
    if value is not None and not isinstance(value, Mapping):
        return (("", view.plain(value)),)
    found = []
    for key, prefix, leaf in _leaves(value or {}, ""):
        if not _rows(leaf):
            name, text = _range(key, leaf) if isinstance(leaf, Mapping) and leaf else quantity(key, leaf)
            found.append((f"{prefix}{_name(name)}", text))
    return _together(found)


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """(key, how the name of what stands there begins, the value) of everything in nested mappings and lists of them."""
    for key, value in values.items():
        name = f"{prefix}{_name(view.label(key))}"
        if key in _TOLD_ELSEWHERE or key in _ITS_OWN or (key == "wanted" and isinstance(value, Mapping)):
            continue
        if _records(value) and not _rows(value):
            for number, item in enumerate(value):
                yield from _leaves(_rest(item), f"{name.removesuffix('s')} {item.get('index', number)} ")
        elif isinstance(value, Mapping) and value and not _by_number(value):
            yield from _inner(key, value, prefix, name)
        else:
            yield key, prefix, value


def _inner(key: str, value: Mapping[str, Any], prefix: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """A GPU is called by its number where that is known, several things by their own names alone; values of one
    quantity have its unit."""
    ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
    if ending:
        shorter = f"{prefix}{_name(view.label(key.removesuffix(ending)))} "
        yield from ((f"{inner}{ending}", shorter, number) for inner, number in value.items())
    elif isinstance(value.get("gpu"), int):
        yield from _leaves(_rest(value), f"{prefix}GPU {value['gpu']} ")
    else:
        yield from _leaves(value, prefix if _records(list(value.values())) else f"{name} ")


_DEVICE = frozenset(
    ("index", "gpu", "uuid", "pci", "name", "cuda", "compute_capability", "pstate", "busy", "default_applications_mhz")
)
"""What a device is called by, and what it is and can: the report has that of the machine."""


def _rest(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """What changes of a device."""
    return {k: v for k, v in item.items() if k not in _DEVICE and not (k == "applications_mhz" and v is None)}


def _by_number(value: Mapping[str, Any]) -> bool:
    """A number for each core, or the like."""
    return all(str(key).isdigit() and _is_number(v) for key, v in value.items())


def _range(key: str, value: Mapping[str, Any]) -> tuple[str, str | None]:
    """Of a number for each core the few, or the smallest and the largest of many."""
    if len(value) <= FEW:
        return quantity(key, list(value.values()))
    label, low = quantity(key, min(value.values()))
    return label, f"{low} to {quantity(key, max(value.values()))[1]}, of {len(value)}"


def _name(label: str) -> str:
    """Of a UUID the beginning is enough to tell devices apart."""
    return view.short(_UUID.sub(r"\1", label), WIDE // 2)


def _together(found: Iterable[tuple[str, str | None]]) -> Pairs:
    """Those of one value under one name, where the names differ in numbers only."""
    alike: dict[tuple[str, str | None], list[str]] = {}
    for name, text in found:
        alike.setdefault((names.shape(name), text), []).append(name)
    return tuple((names.together(alone), text) for (_, text), alone in alike.items())


def _records(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _rows(value: Any) -> bool:
    """A list for a table: processes, timers."""
    return _records(value) and not any(
        isinstance(cell, (Mapping, list, tuple)) for row in value for cell in row.values()
    )


def _seen(step: StepRecord) -> Iterator[Seen]:
    """Who was there when the step looked last: of each list the one of the latest moment."""
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    for values in (step.before, step.verified, step.during, step.after):
        for key, prefix, leaf in _leaves(values, "") if isinstance(values, Mapping) else ():
            if _rows(leaf) or leaf in ([], ()):
                found[f"{prefix}{view.label(key)}"] = leaf
    return (_table(name, rows) for name, rows in found.items() if rows)


def _table(name: str, rows: Sequence[Mapping[str, Any]]) -> Seen:
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if any(row.get(key) for row in rows)]
    heads = tuple(quantity(key, None)[0] for key in keys)
    return Seen(name, heads, tuple(tuple(_cell(key, row.get(key)) for key in keys) for row in rows))


def _cell(key: str, value: Any) -> str | None:
    """A process of no service has no unit; what is no process has no pid."""
    return "" if value is None and key in ("unit", "pid") else quantity(key, value)[1]
