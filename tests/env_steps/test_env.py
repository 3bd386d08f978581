"""Environment step `env`."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from orchestrator.env_steps.env import Env
from orchestrator.model import Child


def test_it_changes_the_targets_process_and_nothing_else() -> None:
    step = Env.model_validate({"use": "env", "set": {"A": "1", "N": 8}, "unset": ["B"]})
    assert step.child() == Child(set={"A": "1", "N": "8"}, unset=("B",))
    assert step.apply({}) == ()


@pytest.mark.parametrize(
    "options",
    [
        {"set": {"A": True}},
        {"set": {"A": None}},
        {"set": {"A=B": "1"}},
        {"set": {"": "1"}},
        {"set": {"A": "x\0y"}},
        {"unset": ["A=B"]},
        {"set": {"A": "1"}, "unset": ["A"]},
        {"sets": {}},
    ],
)
def test_what_no_environment_can_hold_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Env.model_validate({"use": "env", **options})
