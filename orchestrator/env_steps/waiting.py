"""What the steps have in common that change nothing: they look, and wait until they like what they see."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from orchestrator.env_steps.base import Step
from orchestrator.model import Change, Judged, Wait
from orchestrator.units import Duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from error
    return text


Patterns = tuple[Annotated[str, AfterValidator(_regex)], ...]


class Waiting(Step):
    """A step that looks and waits. Who stands in the way is named; nothing is ever stopped or ended."""

    wait: Duration = Field(0.0, description="how long to wait for it; 0 looks once")

    every_s: ClassVar[float] = 1.0

    def look(self, machine: Machine) -> dict[str, Any]:
        """What is seen now. JSON-able."""
        raise NotImplementedError

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        """Why what is seen is not what the plan wants; None when it is."""
        raise NotImplementedError

    def content(self, seen: dict[str, Any]) -> str | None:
        """What is worth saying of what is as the plan wants it."""
        return None

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        """Its first look takes time, too, and is the first of the wait: `before` has none."""
        return (Wait(self.wait, self.every_s),)

    def verify(self, machine: Machine) -> dict[str, Any]:
        return self.look(machine)

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """`already` where nothing had to be waited for."""
        waited = self.objection(before) is not None
        return self.objection(verified) or Judged("applied" if waited else "already", self.content(verified))
