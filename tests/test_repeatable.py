"""Whether two runs were the same, told from their steps."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pytest

from orchestrator.repeatable import NO_STEPS, compare
from orchestrator.tables import Table

LOSSES = (3.0, 2.0, 1.0)


def steps(
    run: int, losses: Sequence[float | None] = LOSSES, digests: Sequence[str | None] = "abc", rank: int | None = None
) -> Table:
    ranks = {} if rank is None else {"rank": [rank] * len(losses)}
    return Table("steps", {"capture": [f"p0{run}"] * len(losses), **ranks, "loss": losses, "digest": digests})


def test_equal_to_the_last_bit() -> None:
    found = compare([steps(1), steps(2)])
    assert (found.equal, found.step) == (True, None)
    assert "3 steps with equal losses and parameters" in found.reason


@pytest.mark.parametrize(
    ("losses", "digests", "step", "said"),
    [
        ((3.0, 2.0, 1.0000000000000002), "abd", 2, "loss 1.0 and 1.0000000000000002"),
        ((3.0, nan, 1.0), "abc", 1, "loss 2.0 and nan"),
        ((3.0, None, 1.0), "abc", 1, "loss 2.0 and None"),
        (LOSSES, "xbc", 0, "parameters after it (a and x), at an equal loss"),
    ],
)
def test_the_first_step_that_differs_is_named(losses: Sequence[float], digests: str, step: int, said: str) -> None:
    found = compare([steps(1), steps(2, losses, digests)])
    assert (found.equal, found.step) == (False, step)
    assert f"from step {step} on" in found.reason and said in found.reason


def test_not_a_number_is_equal_to_itself() -> None:
    assert compare([steps(1, [nan] * 3), steps(2, [nan] * 3)]).equal is True


def test_one_run_is_shorter() -> None:
    found = compare([steps(1), steps(2, LOSSES[:2], "ab")])
    assert (found.equal, found.step) == (False, 2)
    assert "one run made 3 steps, the other 2" in found.reason


def test_runs_that_were_stopped_after_their_window_are_compared_as_far_as_both_went() -> None:
    found = compare([steps(1), steps(2, LOSSES[:2], "ab")], stopped=True)
    assert found.equal is True and "2 steps with equal losses" in found.reason
    assert compare([steps(1), steps(2, LOSSES[:2], "ax")], stopped=True).step == 1


def test_no_steps_can_t_be_told() -> None:
    assert (compare([]).equal, compare([]).reason) == (None, NO_STEPS)


def test_steps_in_one_run_only_can_t_be_told() -> None:
    found = compare([steps(1)])
    assert found.equal is None
    assert "in one run only" in found.reason


def test_steps_without_fingerprints_are_no_training_and_can_t_be_told() -> None:
    nothing = [None] * 3
    assert compare([steps(1, nothing, nothing), steps(2, nothing, nothing)]).equal is None


def test_ranks_are_compared_with_their_like() -> None:
    other = (9.0, 8.0, 7.0)
    runs = [steps(run, losses, rank=rank) for run in (1, 2) for rank, losses in enumerate((LOSSES, other))]
    assert compare(runs).equal is True
    found = compare([*runs[:3], steps(2, (9.0, 8.0, 0.0), "abd", rank=1)])
    assert (found.equal, found.step) == (False, 2)
    assert found.reason.startswith("rank 1: ")


def test_the_earliest_difference_of_all_ranks_counts() -> None:
    runs = [steps(1, rank=0), steps(1, rank=1), steps(2, digests="abx", rank=0), steps(2, digests="axx", rank=1)]
    found = compare(runs)
    assert found.step == 1 and found.reason.startswith("rank 1: ")


def test_a_rank_that_is_missing_in_one_run_can_t_be_told() -> None:
    found = compare([steps(1, rank=0), steps(1, rank=1), steps(2, rank=0)])
    assert found.equal is None
    assert found.reason.startswith("rank 1: ")


def test_two_processes_of_one_run_are_not_compared_with_each_other() -> None:
    first, second = (3.0, 2.0, 1.0), (30.0, 20.0, 10.0)
    assert compare([steps(1, first), steps(1, second), steps(2, first), steps(2, second)]).equal is True
