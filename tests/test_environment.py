"""The machine is brought into the plan's state and back, whatever happens in between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import folder
from orchestrator.env_steps.base import Step
from orchestrator.env_steps.env import Env
from orchestrator.env_steps.shell import Shell
from orchestrator.environment import Environment
from orchestrator.machine import Machine


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(Machine(), folder.create(tmp_path / "reports", "x"))


def note(log: Path, run: str, undo: str | None = None) -> Shell:
    """A step that notes in a file when it is applied and undone."""
    words = {"run": ("sh", "-c", f"echo {run} >> {log}"), "undo": undo and ("sh", "-c", f"echo {undo} >> {log}")}
    return Shell.model_validate(words)


def test_steps_are_undone_in_reverse(environment: Environment, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert environment.apply((note(log, "on1", "off1"), note(log, "on2", "off2")))
    environment.restore()
    environment.restore()
    assert log.read_text().split() == ["on1", "on2", "off2", "off1"]
    assert [record.restored for record in environment.records] == [True, True]


def test_a_step_without_undo_is_not_called_restored(environment: Environment, tmp_path: Path) -> None:
    environment.apply((note(tmp_path / "log", "on"), Env.model_validate({"set": {"A": "1"}})))
    environment.restore()
    assert [record.restored for record in environment.records] == [None, None]
    assert not environment.failed


def test_a_full_disk_does_not_keep_the_machine_as_it_is(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    environment.apply((note(log, "on", "off"),))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.Folder, "append", full)
    environment.restore()
    assert log.read_text().split() == ["on", "off"]
    assert environment.records[0].restored is True


def test_nothing_is_changed_that_the_journal_does_not_hold(
    environment: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.Folder, "append", full)
    environment.apply((note(tmp_path / "log", "on", "off"),))
    assert not (tmp_path / "log").exists()
    assert environment.records[0].status == "failed"


class Quits(Step):
    """A step of another package at its worst."""

    def verify(self, machine: Machine) -> dict[str, Any]:
        raise SystemExit(1)


def test_a_step_that_ends_profrun_is_undone_with_those_before_it(environment: Environment, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(SystemExit):
        environment.apply((note(log, "on", "off"), Quits(use="quits")))
    environment.restore()
    assert log.read_text().split() == ["on", "off"]


def test_after_a_signal_no_step_is_begun_and_with_the_second_the_running_one_ends(tmp_path: Path) -> None:
    log, got = tmp_path / "log", iter([0, 2])
    environment = Environment(Machine(), folder.create(tmp_path, "x"), interrupts=lambda: next(got, 2))
    sleeps = Shell.model_validate({"run": ("sleep", "97.3"), "undo": ("sh", "-c", f"echo off >> {log}")})
    environment.apply((sleeps, note(log, "on")))
    environment.restore()
    assert log.read_text().split() == ["off"]
    assert [(r.status, r.reason) for r in environment.records] == [("failed", "sleep 97.3: it was interrupted")]
