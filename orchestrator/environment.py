"""Brings the machine into the state that the plan asks for, and back: journal first, undone in reverse."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import changes, redact
from orchestrator import journal as journals
from orchestrator.changes import Done
from orchestrator.model import (
    IN_FORCE,
    Cannot,
    Change,
    Child,
    Hold,
    Judged,
    Part,
    Run,
    StepRecord,
    StepStatus,
    Wait,
    Write,
)

if TYPE_CHECKING:
    from orchestrator.env_steps.base import Step
    from orchestrator.journal import Journal, Verdict
    from orchestrator.machine import Machine

JOURNAL = "journal.jsonl"
WORST: tuple[StepStatus, ...] = ("failed", "refused", "not_available", "drifted", "clamped", "applied", "already")
"""The statuses of a step, the worst first: a step is as good as the worst of its parts."""
_NAP_S = 0.1

Opinion = Done | Cannot | Judged
"""What tells a status with its reason, detail and fix."""


class Observer(Protocol):
    """Who is shown what a step waits for, and what has become of it."""

    def waits(self, text: str) -> None: ...
    def step_ends(self, record: StepRecord) -> None: ...


@dataclass
class Environment:
    """The steps as applied. `restore` undoes them; it can be called at any time and does its work once."""

    here: Machine
    journal: Journal | None = None
    why_none: str = ""
    """Why there is no journal; without one nothing is changed."""
    before_first: Callable[[], None] = lambda: None
    """Called before the first change: the keeper has to be there by then."""
    records: list[StepRecord] = field(default_factory=list)
    child: Child = field(default_factory=Child)
    interrupts: Callable[[], int] = lambda: 0
    """How many signals profrun has got: after the first no step is begun, with the second the one that runs ends."""
    observer: Observer | None = None
    failed: bool = False
    """A step that the plan wants to `fail` on was not applied, or one could not be undone."""
    _steps: list[Step] = field(default_factory=list)
    _befores: list[dict[str, Any]] = field(default_factory=list)
    _held: list[changes.Held] = field(default_factory=list)
    _numbers: int = 0
    _restored: bool = False

    # ------------------------------------------------------------ into the plan's state

    def apply(self, steps: Sequence[Step]) -> bool:
        """Applies the steps in order; False when one with `on_fail: fail` was not applied (the later ones are left
        out)."""
        for index, step in enumerate(steps):
            if self.interrupts():
                break
            self._steps.append(step)
            self._befores.append({})
            record = replace(self._apply(index, step), ignored=step.on_fail == "ignore")
            self.records.append(record)
            if self.observer and (record.status in IN_FORCE or step.on_fail != "ignore"):
                self.observer.step_ends(record)
            if record.status not in IN_FORCE and step.on_fail == "fail":
                self.failed = True
                return False
        return True

    def _apply(self, index: int, step: Step) -> StepRecord:
        wanted = _without_secrets(step.model_dump(mode="json", by_alias=True, exclude={"use", "on_fail"}))
        parts: list[Part] = []
        seen: dict[str, Any] = {}
        try:
            before = self._befores[index] = step.before(self.here)
            wishes = step.apply(before)
            first = self._announce(index, step, before, wishes)
            waited = None
            for n, change in enumerate(wishes, first):
                if isinstance(change, Wait):
                    waited = seen = self._wait(step, before, change)
                else:
                    parts.append(self._change(n, change, journals.mark(self._run, "step", n)))
            parts = self._settled(first, wishes, parts)
            self.child = merge(self.child, step.child())
            seen = step.verify(self.here) if waited is None else waited
            judged = step.judge(before, seen)
        except Exception as error:  # a step of another package may raise anything; the machine must still be put back
            said = Judged("failed", f"{type(error).__name__}: {error}")
            return _record(step.use, wanted, self._befores[index], seen, parts, said)
        return _record(step.use, wanted, before, seen, parts, judged)

    @property
    def _run(self) -> str:
        return self.journal.run if self.journal else "run"

    def _announce(self, index: int, step: Step, before: dict[str, Any], wishes: Sequence[Change]) -> int:
        """Writes what the step is about to do, and what would undo that; gives back the number of its first change."""
        first = self._numbers
        self._numbers += len(wishes)
        if not any(isinstance(change, (Write, Run, Hold)) for change in wishes):
            return first
        if self.journal is None:
            raise OSError(f"nothing is changed, as it could not be written down first: {self.why_none}")
        if not first or not any(entry["event"] == "step" for entry in self.journal.entries):
            self.before_first()
        undos = [step.restore(before, change) for change in wishes]
        self.journal.write(
            "step",
            index=index,
            use=step.use,
            first=first,
            before=before,
            changes=[changes.as_data(change) for change in wishes],
            undos=[changes.as_data(undo) for undo in undos],
        )
        return first

    def _change(self, n: int, change: Change, mark: str) -> Part:
        """Makes one change, with its intent before it and what came of it after it on disk."""
        name = changes.part_of(change)
        if isinstance(change, Cannot):
            return _part(change.part, change)
        if self.interrupts() > 1:
            return Part(name, "failed", reason="it was interrupted")
        if isinstance(change, Write):
            return self._write(n, change)
        self._note("intent", n, old=None)
        if isinstance(change, Hold):
            done, held = changes.hold(change)
            self._held += [held] if held else []
        elif isinstance(change, Run):
            done, held = changes.run(change, mark, lambda: self.interrupts() > 1), None
        else:
            done = Done("failed", reason=f"{type(change).__name__} is not known")
        self._note("done", n, status=done.status, value=done.value, ran=done.ran)
        return _part(name, done, wanted=change.text if isinstance(change, Hold) else None)

    def _write(self, n: int, change: Write) -> Part:
        old, done = changes.look(change)
        if done is None:
            self._note("intent", n, old=old)
            done = changes.write(change, old)
            self._note("done", n, status=done.status, value=done.value)
        return _part(changes.part_of(change), done, wanted=change.text.strip(), before=old, verified=done.value)

    def _note(self, event: str, n: int, **data: Any) -> None:
        if self.journal:
            self.journal.write(event, n=n, **data)

    def _settled(self, first: int, wishes: Sequence[Change], parts: list[Part]) -> list[Part]:
        """The parts once more: a later change of the run may have moved an earlier one. What it says then is our own
        doing, which has to be known when it is put back."""
        if self.journal is None:
            return parts
        moved: dict[str, str] = {}
        for deed in journals.deeds(self.journal.entries):
            if deed.is_setting and isinstance(deed.change, Write) and deed.intent and deed.done:
                value = _read(deed.change.path)
                if value is not None and value not in deed.values:
                    moved[str(deed.n)] = value
        if moved:
            self.journal.write("settled", values=moved)
        numbers = [n for n, change in enumerate(wishes, first) if not isinstance(change, Wait)]
        return [_moved(part, moved.get(str(n))) for n, part in zip(numbers, parts, strict=True)]

    def _wait(self, step: Step, before: dict[str, Any], change: Wait) -> dict[str, Any]:
        """Looks until the step is content, for as long as it may take; gives back what it saw last."""
        began = time.monotonic()
        while True:
            seen = step.verify(self.here)
            judged = step.judge(before, seen)
            left_s = change.limit_s - (time.monotonic() - began)
            if judged is None or judged.status in IN_FORCE or left_s <= 0 or self.interrupts():
                return seen
            if self.observer:
                self.observer.waits(f"{step.use}: {judged.reason or judged.status}; waiting {left_s:.0f} s more")
            until = time.monotonic() + min(change.every_s, left_s)
            while time.monotonic() < until and not self.interrupts():
                time.sleep(min(_NAP_S, max(0.0, until - time.monotonic())))

    # ------------------------------------------------------------ and back

    def restore(self) -> list[Verdict]:
        """Undoes what was applied, the last first; gives back what came of it. The journal goes when nothing is
        left."""
        if self._restored:
            return []
        self._restored = True
        for held in reversed(self._held):
            held.release()
        if self.journal is None:
            return []
        verdicts = journals.restore(self.journal)
        journals.settle(self.journal, verdicts)
        for index, record in enumerate(self.records):
            own = [verdict for verdict in verdicts if verdict.index == index]
            self.records[index] = self._after(index, record, own)
        self.failed = self.failed or any(verdict.how == "failed" for verdict in verdicts)
        return verdicts

    def _after(self, index: int, record: StepRecord, verdicts: Sequence[Verdict]) -> StepRecord:
        """The record with what the machine says now."""
        if not verdicts:
            return record
        bad = [verdict for verdict in verdicts if verdict.how == "failed"]
        left = [verdict for verdict in verdicts if verdict.how == "drifted"]
        said = "; ".join(f"{verdict.part}: {verdict.reason}" for verdict in (*bad, *left))
        by_part = {verdict.part: verdict for verdict in verdicts}
        return replace(
            record,
            restored=False if bad else None if len(left) == len(verdicts) else True,
            after=None if self.interrupts() > 1 else self._seen_after(self._steps[index]),
            reason="; ".join(filter(None, (record.reason, said))) or None,
            fix=record.fix or next((verdict.fix for verdict in bad if verdict.fix), None),
            parts=tuple(_part_after(part, by_part.get(part.name)) for part in record.parts),
        )

    def _seen_after(self, step: Step) -> dict[str, Any] | None:
        try:
            return step.verify(self.here) or None
        except Exception:  # as in _apply; the machine is as it was, only that can't be shown
            return None


def _read(path: str) -> str | None:
    try:
        return changes.read(path)
    except OSError:
        return None


def _without_secrets(options: dict[str, Any]) -> Any:
    """A step's options as they may be shown; a list of words may be a command line."""
    known = redact.tree(options)
    lists = {name: value for name, value in known.items() if isinstance(value, list)}
    words = {name: list(redact.argv(v)) for name, v in lists.items() if all(isinstance(word, str) for word in v)}
    return {**known, **words}


# ---------------------------------------------------------------- what is said of it


def _part(name: str, said: Opinion, **values: str | None) -> Part:
    return Part(name, said.status, reason=said.reason, detail=said.detail, fix=said.fix, **values)  # type: ignore[arg-type]


def _moved(part: Part, value: str | None) -> Part:
    if value is None or part.status not in IN_FORCE:
        return part
    if value == part.wanted:  # only another setting has brought it there
        return replace(part, status="applied", verified=value, reason=None, detail=None)
    return replace(
        part, status="drifted", verified=value, detail=value, reason=f"another setting has moved it to {value}"
    )


def _part_after(part: Part, verdict: Verdict | None) -> Part:
    if verdict is None:
        return part
    good = {"restored": True, "already": True, "released": True, "failed": False, "drifted": False, "gone": None}
    reason = "; ".join(filter(None, (part.reason, verdict.reason))) or None
    return replace(part, after=verdict.value, restored=good[verdict.how], reason=reason, fix=part.fix or verdict.fix)


def _record(
    use: str, wanted: Any, before: dict[str, Any], seen: dict[str, Any], parts: Sequence[Part], judged: Judged | None
) -> StepRecord:
    """A step is as good as the worst of its parts, and as the step itself makes of what it has read."""
    worst = min((part.status for part in parts), key=WORST.index, default=None)
    status, own = worst or "applied", None
    if judged and (worst is None or WORST.index(judged.status) <= WORST.index(worst)):
        status, own = judged.status, judged
    alike = [part for part in parts if part.status == status]
    reason = own.reason if own and own.reason else told(alike)
    return StepRecord(
        use,
        status,
        wanted,
        before,
        seen or None,
        reason=reason,
        detail=own.detail if own and own.detail else _same(part.detail for part in alike),
        fix=own.fix if own and own.fix else next((part.fix for part in alike if part.fix), None),
        parts=tuple(parts),
    )


def _same(texts: Iterable[str | None]) -> str | None:
    """What all say; None when they differ."""
    found = set(texts)
    return found.pop() if len(found) == 1 else None


def told(parts: Sequence[Part]) -> str | None:
    """Why parts are as they are; those that are so alike are told once: `policy0-3 governor: ...`."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        if part.reason:
            groups.setdefault(_alike(part), []).append(part)
    said = [_told(group) for group in groups.values()]
    return "; ".join(said) or None


_NUMBER = re.compile(r"\d+")


def _alike(part: Part) -> str:
    """The same for parts that differ only in the number of what they set, in their name and wherever it is repeated."""
    number = _NUMBER.search(part.name)
    what = f"{part.name}\0{part.reason}"
    return re.sub(rf"(?<!\d){number[0]}(?!\d)", "#", what) if number else what


def _told(group: Sequence[Part]) -> str:
    name, reason = group[0].name, group[0].reason or ""
    if len(group) > 1 and (found := _NUMBER.search(name)):
        numbers = sorted(int(number[0]) for part in group if (number := _NUMBER.search(part.name)))
        name = f"{name[: found.start()]}{ranges(numbers)}{name[found.end() :]}"
    return f"{name}: {reason}" if name and not reason.startswith(name) else reason


def ranges(numbers: Iterable[int]) -> str:
    """Numbers in ascending order as 0-3,8."""
    return ",".join(f"{a}-{b}" if a != b else str(a) for a, b in _runs(numbers))


def _runs(numbers: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = None
    for number in numbers:
        if first is None or last is None:
            first = last = number
        elif number == last + 1:
            last = number
        elif number != last:
            yield first, last
            first = last = number
    if first is not None and last is not None:
        yield first, last


def merge(first: Child, second: Child) -> Child:
    """What both want of the target's process; the second wins where they differ."""
    return Child(
        set={**{k: v for k, v in first.set.items() if k not in second.unset}, **second.set},
        unset=(*(name for name in first.unset if name not in second.set), *second.unset),
        affinity=second.affinity if second.affinity is not None else first.affinity,
        nice=second.nice if second.nice is not None else first.nice,
        personality=second.personality if second.personality is not None else first.personality,
        numa_node=second.numa_node if second.numa_node is not None else first.numa_node,
        inject={**first.inject, **second.inject},
    )
