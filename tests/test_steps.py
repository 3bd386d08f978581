"""When steps had become steady, which stand out, and why."""

from __future__ import annotations

import pytest

from orchestrator import steps


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([10.0] * 10, 0),
        ([90.0, 30.0, 12.0, *[10.0] * 20], 2),
        ([None, *[10.0] * 12], 1),
        ([10.0] * 9, None),  # too few to tell
        ([None] * 40, None),
        ([50.0] * 5 + [10.0] * 15, 5),
        ([10.0, 100.0, *[10.0] * 12], 0),  # one stall is no warm-up
    ],
)
def test_warm_up(durations: list[float | None], expected: int | None) -> None:
    assert steps.warmup(durations) == expected


def test_stalls_that_keep_to_a_period() -> None:
    durations = [100.0 if step % 10 == 9 else 10.0 for step in range(60)]
    found = steps.stalls(durations, 5)
    assert found.steps == (9, 19, 29, 39, 49, 59)
    assert found.period == 10
    assert found.extra_ns == 6 * 90.0


def test_stalls_without_a_period_and_none_at_all() -> None:
    durations: list[float | None] = [10.0] * 30
    assert steps.stalls(durations, 0) == steps.Stalls((), None, 0.0)
    for step in (3, 4, 17):
        durations[step] = 50.0
    assert steps.stalls(durations, 0).period is None
    assert steps.stalls(durations, 5).steps == (17,)
    assert steps.stalls([None, None], 0).steps == ()


@pytest.mark.parametrize(
    ("places", "expected"),
    [([], None), ([5], None), ([5, 10], None), ([5, 10, 15], 5), ([5, 10, 15, 20, 25, 31], 5), ([1, 2, 3, 4], None)],
)
def test_period(places: list[int], expected: int | None) -> None:
    assert steps.period(places) == expected


def test_a_stall_is_put_down_to_what_grew_most() -> None:
    usual = {"checkpoint": None, "evaluation": None, "data": 1.0}
    assert steps.cause(100.0, {"checkpoint": 60.0, "evaluation": None, "data": 1.0}, usual) == "checkpoint"
    assert steps.cause(100.0, {"checkpoint": None, "evaluation": 90.0, "data": 1.0}, usual) == "evaluation"
    assert steps.cause(100.0, {"checkpoint": None, "evaluation": None, "data": 80.0}, usual) == "data"
    assert steps.cause(100.0, {"checkpoint": 30.0, "evaluation": 30.0, "data": 30.0}, usual) == "unknown"
