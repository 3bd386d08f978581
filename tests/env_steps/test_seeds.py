"""Environment step `seeds`: what it asks for, and what it makes of what a process really ran with."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.env_steps.env import Env
from orchestrator.env_steps.seeds import Seeds
from orchestrator.model import Child


def step(**options: Any) -> Seeds:
    return Seeds.model_validate({"use": "seeds", **options})


def started(environ: dict[str, str | None] | None = None, **inside: Any) -> dict[str, Any]:
    """A process that ran as `step(seed=37)` asks, but for what is given."""
    variables = {"PYTHONHASHSEED": "37", "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **(environ or {})}
    seeds = {
        "hash_randomization": 1,
        "random": 37,
        "numpy": None,
        "torch": 37,
        "torch_initial_seed": 37,
        "cudnn_deterministic": True,
        "cudnn_benchmark": False,
        "deterministic_algorithms": False,
        "sort_listings": False,
        "failed": {},
        **inside,
    }
    return {"environ": variables, "argv": ["python", "train.py"], "in_force": True, "why_not": None, "seeds": seeds}


def test_variables_before_the_start_and_the_rest_inside() -> None:
    assert step(seed=37).child() == Child(
        set={"PYTHONHASHSEED": "37", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        inject={
            "seeds": {
                "seed": 37,
                "cudnn_deterministic": True,
                "cudnn_benchmark": False,
            }
        },
    )
    more = step(deterministic_algorithms="warn", sort_listings=True).child().inject["seeds"]
    assert (more["deterministic_algorithms"], more["sort_listings"]) == ("warn", True)
    assert step().apply({}) == ()


def test_what_is_not_wanted_is_left_alone() -> None:
    child = step(deterministic=False, cublas_workspace=None, hash_seed=5).child()
    assert child.set == {"PYTHONHASHSEED": "5"}
    assert child.inject == {"seeds": {"seed": 0}}


def test_it_goes_together_with_what_others_want() -> None:
    seeds, env = step(seed=37).child(), Env.model_validate({"unset": ["PYTHONHASHSEED"]}).child()
    merged = Child(inject={"torch": {"stacks": True}}).then(seeds).then(env)
    assert merged.inject == {"torch": {"stacks": True}, **seeds.inject}
    assert merged.set == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**32},
        {"seed": True},
        {"seed": 1.5},
        {"hash_seed": "random"},
        {"deterministic": "yes"},
        {"deterministic_algorithms": True},
        {"deterministic_algorithms": "maybe"},
        {"cublas_workspace": "4096:8"},
        {"cublas_workspace": ""},
        {"sorted": True},
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        step(**options)


@pytest.mark.parametrize(
    ("workspace", "verdicts"), [(":4096:8", []), (":16:8", []), (":0:0", ["warn"]), (None, ["warn"])]
)
def test_torch_would_refuse_another_workspace(workspace: str | None, verdicts: list[str]) -> None:
    asked = step(deterministic_algorithms="error", cublas_workspace=workspace)
    assert [check.verdict for check in asked.checks(None)] == verdicts  # type: ignore[arg-type]
    assert step(cublas_workspace=workspace).checks(None) == []  # type: ignore[arg-type]


def test_what_was_asked_was_in_force() -> None:
    found, why = step(seed=37).seen(started())
    assert why is None
    assert (found["PYTHONHASHSEED"], found["CUBLAS_WORKSPACE_CONFIG"], found["random"]) == ("37", ":4096:8", 37)


def test_a_seed_of_the_program_s_own_is_its_right() -> None:
    found, why = step(seed=37).seen(started(torch_initial_seed=5))
    assert (found["torch_initial_seed"], why) == (5, None)


def test_what_it_was_not_asked_about_is_the_program_s_own_affair() -> None:
    process = started(cudnn_benchmark=True, deterministic_algorithms="error")
    assert step(seed=37, deterministic=False).seen(process)[1] is None


def test_without_torch_there_is_nothing_to_say_about_it() -> None:
    nothing = dict.fromkeys(("cudnn_deterministic", "cudnn_benchmark", "deterministic_algorithms"))
    assert step(seed=37, deterministic_algorithms="warn").seen(started(**nothing))[1] is None


@pytest.mark.parametrize(
    ("options", "process", "why"),
    [
        (
            {"seed": 37},
            started({"CUBLAS_WORKSPACE_CONFIG": None}),
            "CUBLAS_WORKSPACE_CONFIG was not set when Python started: a launcher dropped it",
        ),
        (
            {"seed": 37},
            started({"PYTHONHASHSEED": "1"}),
            "PYTHONHASHSEED was 1 instead of 37 when Python started: a launcher changed it",
        ),
        (
            {"seed": 37},
            started(cudnn_benchmark=True),
            "cudnn_benchmark was true instead of false: the program changed it",
        ),
        (
            {"seed": 37, "deterministic_algorithms": "error"},
            started(deterministic_algorithms="warn"),
            "deterministic_algorithms was warn instead of error: the program changed it",
        ),
        (
            {"seed": 37, "sort_listings": True},
            started(),
            "sort_listings was false instead of true: the program changed it",
        ),
        (
            {"seed": 0},
            started({"PYTHONHASHSEED": "0"}),
            "hashes are random although PYTHONHASHSEED is 0: python -R",
        ),
        (
            {"seed": 37},
            started(failed={"torch": "RuntimeError: no"}),
            "torch could not be set: RuntimeError: no",
        ),
    ],
)
def test_what_was_not_as_asked_is_said(options: dict[str, Any], process: dict[str, Any], why: str) -> None:
    assert step(**options).seen(process)[1] == why


def test_all_of_it_is_said() -> None:
    process = started({"PYTHONHASHSEED": None, "CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    assert str(step(seed=37).seen(process)[1]).count(": a launcher ") == 2


def test_a_python_that_loads_nothing_of_ours_is_not_said_to_be_seeded() -> None:
    process = {**started(), "in_force": False, "why_not": "python -I ignores PYTHONPATH", "seeds": None}
    found, why = step(seed=37).seen(process)
    assert why == "seeds are not in force: python -I ignores PYTHONPATH"
    assert found == {"PYTHONHASHSEED": "37", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_an_environment_that_nobody_could_read_is_unknown_and_not_wrong() -> None:
    found, why = step(seed=37).seen({**started(), "environ": None})
    assert (found["PYTHONHASHSEED"], why) == (None, None)


def test_a_process_that_ended_without_a_word_of_seeds_had_none() -> None:
    silent = {**started(), "seeds": None}
    assert step(seed=37).seen({**silent, "ended": False})[1] is None  # it was killed: nobody knows
    reason = step(seed=37).seen({**silent, "ended": True})[1]
    assert reason == "seeds are not in force: profrun's part could not start them in this Python"
