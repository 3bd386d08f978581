"""Brings the machine into the state that the plan asks for, and back: journal first, undone in reverse."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator import machine, process, redact
from orchestrator.model import Change, Child, Run, StepRecord, Write

if TYPE_CHECKING:
    from orchestrator.env_steps.base import Step
    from orchestrator.folder import Folder
    from orchestrator.machine import Machine

JOURNAL = "journal.jsonl"


@dataclass
class Environment:
    """The steps as applied. `restore` undoes them; it can be called at any time and does its work once."""

    here: Machine
    folder: Folder
    applied: list[tuple[int, Step, dict[str, Any]]] = field(default_factory=list)
    records: list[StepRecord] = field(default_factory=list)
    child: Child = field(default_factory=Child)
    interrupts: Callable[[], int] = lambda: 0
    """How many signals profrun has got: after the first no step is begun, with the second the one that runs ends."""
    failed: bool = False
    """A step that the plan wants to `fail` on was not applied, or one could not be undone."""

    def apply(self, steps: tuple[Step, ...]) -> bool:
        """Applies the steps in order; False when one with `on_fail: fail` was not applied (the later ones are left
        out)."""
        for index, step in enumerate(steps):
            if self.interrupts():
                break
            record = self._apply(index, step)
            self.records.append(record)
            if record.status not in ("applied", "already", "clamped") and step.on_fail == "fail":
                self.failed = True
                return False
        return True

    def _apply(self, index: int, step: Step) -> StepRecord:
        wanted = redact.tree(step.model_dump(mode="json", by_alias=True, exclude={"use", "on_fail"}))
        try:
            before = step.before(self.here)
            changes = step.apply(before)
            self.applied.append((index, step, before))
            reason = None
            for change in changes:
                self._journal("apply", index, step, before, change)
                reason = reason or perform(change, lambda: self.interrupts() > 1)
            self.child = merge(self.child, step.child())
            verified = None if reason else step.verify(self.here)
        except Exception as error:  # a step of another package may raise anything; the machine must still be put back
            return StepRecord(step.use, "failed", wanted, reason=f"{type(error).__name__}: {error}")
        return StepRecord(step.use, "failed" if reason else "applied", wanted, before, verified, reason=reason)

    def restore(self) -> None:
        """Undoes what was applied, the last first."""
        while self.applied:
            index, step, before = self.applied.pop()
            restored, reason = self._undo(index, step, before)
            for record in self.records[index : index + 1]:  # none where something ended profrun amid the step
                self.records[index] = replace(record, restored=restored, reason=reason or record.reason)
            self.failed = self.failed or restored is False

    def _undo(self, index: int, step: Step, before: dict[str, Any]) -> tuple[bool | None, str | None]:
        """(whether it could be undone, why not); None where there is nothing to undo."""
        try:
            change, reason = None, None
            for done in step.apply(before):
                change = step.restore(before, done)
                with contextlib.suppress(OSError):  # a full disk is no reason to leave the machine as it is
                    self._journal("restore", index, step, before, change)
                reason = perform(change)
        except Exception as error:  # as in _apply
            return False, f"{type(error).__name__}: {error}"
        return (None if change is None else not reason), reason

    def _journal(self, event: str, index: int, step: Step, before: Any, change: Any) -> None:
        entry = {"time_ns": time.time_ns(), "event": event, "step": index, "use": step.use, "before": before}
        described = {"kind": type(change).__name__.lower(), **asdict(change)} if change else None
        self.folder.append(JOURNAL, json.dumps({**entry, "change": described}))


def perform(change: Change | None, give_up: Callable[[], bool] = lambda: False) -> str | None:
    """Makes one change to the machine; says why when it did not work. `give_up` ends a command that takes its time."""
    if change is None:
        return None
    if isinstance(change, Write):
        return machine.write_host(change.path, change.text)
    if not isinstance(change, Run):
        return f"{type(change).__name__} is not known yet"
    answer = process.ask(change.argv, timeout_s=change.timeout_s, give_up=give_up)
    if answer.ok:
        return None
    said = answer.error or f"{answer.exit.describe() if answer.exit else ''} {answer.stderr.strip()[-300:]}"
    return f"{' '.join(redact.argv(change.argv))}: {said.strip()}"


def merge(first: Child, second: Child) -> Child:
    """What both want of the target's process; the second wins where they differ."""
    return Child(
        set={**{k: v for k, v in first.set.items() if k not in second.unset}, **second.set},
        unset=(*(name for name in first.unset if name not in second.set), *second.unset),
        affinity=second.affinity if second.affinity is not None else first.affinity,
        nice=second.nice if second.nice is not None else first.nice,
        personality=second.personality if second.personality is not None else first.personality,
        inject={**first.inject, **second.inject},
    )
