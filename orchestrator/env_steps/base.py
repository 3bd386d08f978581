"""The interface of an environment step: a frozen pydantic model; its fields are its options, its methods return data.

A new step is one file beside this one and one line in `registry.py`. It changes nothing itself: `apply` and `restore`
say what should change, and the runner writes both into the journal before it does the first. So the machine can be put
back by a process that knows nothing of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.model import Cannot, Change, Check, Child, Judged, Knob

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.machine import Machine


def yaml_word(value: Any) -> str:
    """A value as a plan has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Step(BaseModel):
    """One environment step of a plan. Subclasses narrow `use` to a Literal and add their options as fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    use: str
    on_fail: Literal["warn", "fail", "ignore"] = Field(
        "warn", description="when it can't be applied: say so and go on, stop before anything runs, or go on silently"
    )

    injects: ClassVar[bool] = False
    """Works through profrun's part in the target's Python."""
    purpose: ClassVar[str] = ""
    """One line for the tables of README and `profrun templates`."""

    def checks(self, machine: Machine) -> list[Check]:
        """What this step needs and whether this machine has it. Changes nothing."""
        return []

    def claims(self, machine: Machine) -> tuple[str, ...]:
        """What it changes that two runs can't share, such as `gpu:UUID` and `cpu:policy0`: each is locked."""
        return ()

    def before(self, machine: Machine) -> dict[str, Any]:
        """What there was, as far as `apply` and the report need it. JSON-able: it is kept in the journal."""
        return {}

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        """What to do to the machine, in order."""
        return ()

    def verify(self, machine: Machine) -> dict[str, Any]:
        """What the machine says after the changes, and again after they were undone; empty: there is nothing to read.

        Each `Write` is read back without it. `parts`: of what commands have set what each setting says, by its part."""
        return {}

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """What the step makes of `verified`; None when it has nothing to object."""
        return None

    def may_pass(self, seen: dict[str, Any]) -> bool:
        """Whether what `judge` has against `seen` may pass, so that a `Wait` can help."""
        return True

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        """What undoes one change of `apply`; None for one that needs nothing, as `Write` and `Hold` do."""
        return None

    def during(self, before: dict[str, Any], samples: pd.DataFrame) -> tuple[dict[str, Any], Judged | None]:
        """What the monitor saw while the passes ran (rows of the table `samples`), and what that says of the step.

        Empty when the samples don't tell."""
        return {}, None

    def watched(self) -> str:
        """What `during` looks after, as in "the clocks hold"; empty where that is nothing that was asked for."""
        return ""

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        """The settings that a step of this kind could change here, as they are now, for `profrun env show`."""
        return []

    def child(self) -> Child:
        """What it wants changed in the target's own process; that ends with the process: nothing is left to restore."""
        return Child()

    def seen(self, started: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """What of `child` a Python process of the target really ran with, and why that is not what was asked.

        `started` is what is known of that process: environ (as it started; None inside: not set; None: unknown), argv,
        in_force (is what profrun adds to a Python active there?), why_not, seeds (`Seeds.read_back`, or None),
        ended (has it come to Python's own end, at which that is read?), and cpus, nice, personality (None: unknown)."""
        return {}, None


def too_late(step: Step, machine: Machine) -> Cannot | None:
    """Why a step can do nothing here: it is for a program's start, and this one runs already."""
    if not machine.target_pids or step.child() == Child():
        return None
    reason = "the program runs already: what it was started with is left alone"
    return Cannot("the program", "not_available", reason, fix="let profrun start it")
