"""Environment step `shell`: a command of the user's own before the passes, and one that undoes it after them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestrator.env_steps.base import Step
from orchestrator.model import Change, Check, Run
from orchestrator.planfile.fields import Command
from orchestrator.units import Duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine


class Shell(Step):
    """A command that prepares the machine. It is run as it stands, without a shell."""

    use: Literal["shell"] = "shell"
    run: Command = Field(description="the command, as a list of words; it must end by itself, with status 0")
    undo: Command | None = Field(None, description="the command that takes it back, run after the passes")
    timeout: Annotated[Duration, Field(gt=0)] = Field(60.0, description="how long each of the two may take")

    purpose: ClassVar[str] = "runs a command before the passes and its undo after them"

    def checks(self, machine: Machine) -> list[Check]:
        return [_found(words[0]) for words in (self.run, self.undo) if words]

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        return (Run(self.run, self.timeout),)

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        return Run(self.undo, self.timeout) if self.undo else None


def _found(program: str) -> Check:
    path = shutil.which(program, path=os.environ.get("PATH", os.defpath))
    if path:
        return Check("shell", "ok", f"{program} at {path}")
    return Check("shell", "missing", f"{program}: command not found", "check its spelling or give its path")
