"""Environment step `env`: variables set and removed for the target and for the tools that start it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from orchestrator.env_steps.base import Step
from orchestrator.model import Child
from orchestrator.planfile.fields import Environment, Variable


class Env(Step):
    """Variables of the target's environment."""

    use: Literal["env"] = "env"
    set_: Environment = Field({}, alias="set", description="variables to set, as NAME: value")
    unset: tuple[Variable, ...] = Field((), description="variables to remove")

    purpose: ClassVar[str] = "sets and removes environment variables of the target"

    @model_validator(mode="after")
    def _one_or_the_other(self) -> Env:
        both = sorted(set(self.set_) & set(self.unset))
        if both:
            raise ValueError(f"both sets and unsets {', '.join(both)}")
        return self

    def child(self) -> Child:
        return Child(set=self.set_, unset=self.unset)
