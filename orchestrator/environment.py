"""Brings the machine into the state that the plan asks for, and back: journal first, undone in reverse."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from orchestrator import changes, names, redact
from orchestrator import journal as journals
from orchestrator.changes import Done
from orchestrator.env_steps.base import too_late
from orchestrator.model import (
    IN_FORCE,
    Cannot,
    Change,
    Child,
    Hold,
    Judged,
    Part,
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
    _commands: changes.Commands = field(default_factory=changes.Commands)
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
        late = too_late(step, self.here)
        if late:
            return _record(step.use, wanted, {}, {}, [_part(late.part, late)], None)
        parts: list[Part] = []
        seen: dict[str, Any] = {}
        try:
            before = self._befores[index] = step.before(self.here)
            wishes = step.apply(before)
            first = self._announce(index, step, before, wishes)
            waited = None
            some: list[tuple[int, Change]] = []
            for n, change in enumerate(wishes, first):
                if isinstance(change, Wait):
                    self._make(some, parts)
                    first_seen, waited = self._wait(step, before, change)
                    before, seen, some = before or first_seen, waited, []
                else:
                    some.append((n, change))
            self._make(some, parts)
            self.child = self.child.then(step.child())
            seen = step.verify(self.here) if waited is None else waited
            parts = [_as_read(part, seen) for part in parts]
            judged = step.judge(before, seen)
        except Exception as error:  # a step of another package may raise anything; the machine must still be put back
            said = Judged("failed", _words(error))
            return _record(step.use, wanted, self._befores[index], seen, parts, said)
        return _record(step.use, wanted, before, seen, parts, judged)

    @property
    def _run(self) -> str:
        return self.journal.run if self.journal else "run"

    def _announce(self, index: int, step: Step, before: dict[str, Any], wishes: Sequence[Change]) -> int:
        """Writes what the step is about to do, and what would undo that; gives back the number of its first change."""
        first = self._numbers
        self._numbers += len(wishes)
        if all(isinstance(change, (Wait, Cannot)) for change in wishes):
            return first
        if self.journal is None:
            raise OSError(f"nothing is changed, as it could not be written down first: {self.why_none}")
        if not first or not any(entry["event"] == "step" for entry in self.journal.entries):
            self.before_first()
        undos = [step.restore(before, change) for change in wishes]
        for change in (*(wish for wish in wishes if not isinstance(wish, Cannot)), *undos):
            if not changes.survives(change):
                raise TypeError(f"{type(change).__name__} can't be written down as it is, so nobody could undo it")
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

    def _make(self, some: Sequence[tuple[int, Change]], parts: list[Part]) -> None:
        """Makes changes one after the other, and adds what came of each to `parts`. What settings have become by then
        is our doing, what they had become before is not."""
        works = not all(isinstance(change, Cannot) for _, change in some)
        if works:
            self._look("seen")
        for n, change in some:
            parts.append(self._change(n, change, journals.mark(self._run, "step", n)))
        moved = self._look("settled") if works else {}
        for at, (_, change) in enumerate(some, len(parts) - len(some)):
            if isinstance(change, Write):
                parts[at] = _moved(parts[at], moved.get(change.path))

    def _look(self, event: Literal["seen", "settled"]) -> dict[str, str]:
        """Notes which settings say something else than when they were seen last; gives back what, by path."""
        if self.journal is None:
            return {}
        known = journals.settings(self.journal.entries)
        found = {path: _read(path) for path in known}
        news = {path: value for path, value in found.items() if value is not None and value != known[path].says}
        if news:
            self.journal.write(event, values=news)
        return news

    def _change(self, n: int, change: Change, mark: str) -> Part:
        """Makes one change, with its intent before it and what came of it after it on disk."""
        name = changes.part_of(change)
        if isinstance(change, Cannot):
            return _part(change.part, change)
        if self.interrupts() > 1:
            return Part(name, "failed", reason="it was interrupted")
        if isinstance(change, Write):
            return self._write(n, change)
        if isinstance(change, Wait):
            raise TypeError("whoever waits changes nothing")
        self._note("intent", n, old=None)
        if isinstance(change, Hold):
            done, held = changes.hold(change)
            self._held += [held] if held else []
        else:
            done = self._commands.run(change, mark, lambda: self.interrupts() > 1)
        self._note("done", n, status=done.status, value=done.value, ran=done.ran)
        # what can't be read back is as it was wanted: what is held, and what a command says that it has done
        wanted = (change.shown or change.text) if isinstance(change, Hold) else change.wanted
        reached = (done.detail or wanted) if wanted and done.status in IN_FORCE else None
        return _part(name, done, wanted=wanted, before=change.was, verified=reached)

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

    def _wait(self, step: Step, before: dict[str, Any], change: Wait) -> tuple[dict[str, Any], dict[str, Any]]:
        """Looks until the step is content, for as long as it may take; gives back what it saw first, and last."""
        began = time.monotonic()
        first = seen = step.verify(self.here)
        while True:
            judged = step.judge(before or first, seen)
            left_s = change.limit_s - (time.monotonic() - began)
            if judged is None or judged.status in IN_FORCE or left_s <= 0 or self.interrupts():
                return first, seen
            if not step.may_pass(seen):
                return first, seen
            if self.observer:
                self.observer.waits(f"{step.use}: {judged.reason or judged.status}; waiting {left_s:.0f} s more")
            until = time.monotonic() + min(change.every_s, left_s)
            while time.monotonic() < until and not self.interrupts():
                time.sleep(min(_NAP_S, max(0.0, until - time.monotonic())))
            seen = step.verify(self.here)

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
        verdicts = journals.restore(self.journal, give_up=self._say_why_it_takes(self.interrupts()))
        journals.settle(self.journal, verdicts)
        for index, record in enumerate(self.records):
            own = [verdict for verdict in verdicts if verdict.index == index]
            self.records[index] = self._after(index, record, own)
        self.failed = self.failed or any(verdict.how == "failed" for verdict in verdicts)
        return verdicts

    def _say_why_it_takes(self, before: int) -> Callable[[], bool]:
        """Whoever is impatient is told what they wait for; that ends by itself, and is not left half done."""

        def told() -> bool:
            if self.observer and self.interrupts() > before:
                self.observer.waits("restore: the machine is being put back; what hangs is ended at its time limit")
            return False

        return told

    def _after(self, index: int, record: StepRecord, verdicts: Sequence[Verdict]) -> StepRecord:
        """The record with what the machine says now."""
        if not verdicts:
            return record
        bad = [verdict for verdict in verdicts if verdict.how == "failed"]
        left = [verdict for verdict in verdicts if verdict.how == "drifted"]
        good = [verdict for verdict in verdicts if verdict not in bad and verdict not in left]
        told_of = [alike_once((v.part, v.reason) for v in some) for some in (bad, left, good)]
        told_of[0] = told_of[0] and f"not put back: {told_of[0]}"
        said = "; ".join(filter(None, told_of))
        by_part = {verdict.part: verdict for verdict in verdicts}
        after = None if self.interrupts() > 1 else self._seen_after(self._steps[index])
        parts = (_part_after(part, by_part.get(part.name), after) for part in record.parts)
        return replace(
            record,
            restored=False if bad else None if len(left) == len(verdicts) else True,
            after=after,
            reason="; ".join(filter(None, (record.reason, said))) or None,
            fix=record.fix or next((verdict.fix for verdict in (*bad, *good) if verdict.fix), None),
            parts=tuple(parts),
        )

    def _seen_after(self, step: Step) -> dict[str, Any] | None:
        try:
            return step.verify(self.here) or None
        except Exception:  # as in _apply; the machine is as it was, only that can't be shown
            return None


def _words(error: Exception) -> str:
    if isinstance(error, OSError):
        return ": ".join(filter(None, (error.filename, error.strerror))) or str(error)
    return f"{type(error).__name__}: {error}"


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


def _as_read(part: Part, seen: Mapping[str, Any]) -> Part:
    """The part of a command with what its step has read of it."""
    value = seen.get("parts", {}).get(part.name)
    return replace(part, verified=value) if value is not None and part.wanted is not None else part


def _part_after(part: Part, verdict: Verdict | None, after: Mapping[str, Any] | None) -> Part:
    if verdict is None:
        return part
    good = {"restored": True, "already": True, "released": True, "failed": False, "drifted": False, "gone": None}
    reason = "; ".join(filter(None, (part.reason, verdict.reason))) or None
    value = (after or {}).get("parts", {}).get(part.name) or verdict.value
    return replace(part, after=value, restored=good[verdict.how], reason=reason, fix=part.fix or verdict.fix)


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
    if judged and not own and judged.status in ("applied", "already"):  # what is worth knowing all the same
        reason = "; ".join(filter(None, (reason, judged.reason))) or None
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


def told(parts: Iterable[Part]) -> str | None:
    """Why parts are as they are."""
    return alike_once((part.name, part.reason) for part in parts)


def alike_once(found: Iterable[tuple[str, str | None]]) -> str | None:
    """(name, why) of parts in words; those with the same reason are told once: `policy0-3 governor, max kHz: ...`."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, reason in found:
        if reason:
            groups.setdefault(_without_own_number(name, reason), []).append((name, reason))
    return "; ".join(map(_once, groups.values())) or None


_NUMBER = re.compile(r"\d+")


def _without_own_number(name: str, reason: str) -> str:
    """The same for parts whose reasons differ only in where they repeat the number of what they set."""
    number = _NUMBER.search(name)
    return re.sub(rf"(?<!\d){number[0]}(?!\d)", "#", reason) if number else reason


def _once(group: Sequence[tuple[str, str]]) -> str:
    name = names.together(name for name, _ in group)
    reason = "; ".join(names.folded(reason for _, reason in group))
    return f"{name}: {reason}" if name and not reason.startswith(name) else reason
