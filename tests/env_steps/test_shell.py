"""Environment step `shell`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.env_steps.shell import Shell
from orchestrator.model import Child, Run


def step(**options: Any) -> Shell:
    return Shell.model_validate({"use": "shell", **options})


def test_it_runs_and_undoes() -> None:
    both = step(run=["systemctl", "stop", "gdm"], undo=["systemctl", "start", "gdm"], timeout="5s")
    (change,) = both.apply({})
    assert change == Run(("systemctl", "stop", "gdm"), 5.0)
    assert both.restore({}, change) == Run(("systemctl", "start", "gdm"), 5.0)
    assert both.child() == Child()


def test_without_undo_nothing_is_restored() -> None:
    only = step(run=["true"])
    assert only.restore({}, *only.apply({})) is None


def test_a_command_that_is_not_there_is_told_before_anything_runs() -> None:
    checks = step(run=["sh", "-c", "true"], undo=["no-such-program-here"]).checks(None)  # type: ignore[arg-type]
    assert [(check.verdict, check.message.partition(" at ")[0]) for check in checks] == [
        ("ok", "sh"),
        ("missing", "no-such-program-here: command not found"),
    ]


@pytest.mark.parametrize("run", ["ls -l", [], [""], ["a", None], ["a\0"], {"a": "b"}])
def test_what_is_no_command_is_refused(run: object) -> None:
    with pytest.raises(ValidationError):
        step(run=run)
