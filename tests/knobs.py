"""A machine of three settings and a bell, a step that changes them, and a run that dies where a test wants it to."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from orchestrator import changes, folder, guard, journal, machine
from orchestrator.env_steps.base import Step
from orchestrator.environment import Environment
from orchestrator.machine import Machine
from orchestrator.model import Change, Run, Write

BEFORE = {"governor": "powersave", "max": "3000000", "turbo": "1"}
WANTED = {"governor": "performance", "max": "2000000", "turbo": "0"}


class Knobs(Step):
    """Sets files of a folder, rings a bell there, and takes both back."""

    use: str = "knobs"
    place: str
    wanted: dict[str, str] = WANTED

    def claims(self, machine: Machine) -> tuple[str, ...]:
        return (f"cpu:{Path(self.place).name}",)

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        settings = [Write(f"{self.place}/{name}", text, name) for name, text in self.wanted.items()]
        return (*settings, Run(("sh", "-c", f"echo on >> {self.place}/bell"), 60.0, "bell"))

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        return Run(("sh", "-c", f"echo off >> {self.place}/bell"), 60.0) if isinstance(change, Run) else None


def make(place: Path) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in BEFORE.items():
        (place / name).write_text(f"{text}\n")
    return place


def settings(place: Path) -> dict[str, str]:
    return {name: (place / name).read_text().strip() for name in BEFORE}


def bell(place: Path) -> list[str]:
    file = place / "bell"
    return file.read_text().split() if file.exists() else []


def dies_at(point: int) -> Iterator[None]:
    """Ends this process with SIGKILL at the n-th moment just before or after something reaches disk or machine."""
    for number in range(10_000):
        if number == point:
            os.kill(os.getpid(), signal.SIGKILL)
        yield


def mortal(point: int) -> None:
    """From now on this process dies at that moment."""
    moments = dies_at(point)

    def wrapped(inner: Callable[..., Any]) -> Callable[..., Any]:
        def outer(*words: Any, **options: Any) -> Any:
            next(moments)
            answer = inner(*words, **options)
            next(moments)
            return answer

        return outer

    journal.append = wrapped(journal.append)
    machine.hold_host = wrapped(machine.hold_host)
    changes.command = wrapped(changes.command)


def in_child(work: Callable[[], None]) -> int:
    """Does the work in a forked process; gives back its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1]


def run(place: Path, report: Path, keeper: bool, steps: tuple[Step, ...] | None = None) -> Environment:
    """A run's part that changes the machine and puts it back, with or without a keeper."""
    chosen = steps or (Knobs(place=str(place)),)
    if not keeper:
        guard.Keeper = _none  # type: ignore[assignment,misc]
    held = guard.Guard(Machine(), lambda text: None)
    held.hold([claim for step in chosen for claim in step.claims(Machine())], None, lambda: ())
    held.open(report.name, folder.Folder(report), report / "scratch", changes=True, public=True)
    environment = Environment(Machine(), held.journal, held.why_none, before_first=held.before_first_change)
    environment.apply(chosen)
    environment.restore()
    held.close()
    return environment


def _none(*_: Any) -> None:
    raise OSError(11, "no more processes")
