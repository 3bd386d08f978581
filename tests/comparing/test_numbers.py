"""The statistics of a comparison, against published values and by their false alarms."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.comparing import numbers

RUNS = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6)


def test_mann_whitney_is_exact() -> None:
    # E. Lehmann, Nonparametrics, 1975, table B: P(W <= w) of m = n = 4 is 1/70 at the least, of 5 and 5 1/252
    assert numbers.mann_whitney([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert numbers.mann_whitney([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]) == pytest.approx(2 / 252)
    assert numbers.mann_whitney([1, 2, 3], [4, 5, 6]) == pytest.approx(0.1)
    assert numbers.mann_whitney([1, 3, 5], [2, 4, 6]) == pytest.approx(0.7)
    assert numbers.mann_whitney([1, 1, 1], [1, 1, 1]) == 1.0


def test_mann_whitney_with_ties_counts_every_deal() -> None:
    # of the 70 ways to deal out 1 1 2 2 2 2 3 3, those as unlike as {1 1 2 2} | {2 2 3 3}
    assert numbers.mann_whitney([1, 1, 2, 2], [2, 2, 3, 3]) == pytest.approx(12 / 70)


def test_many_values_go_by_the_normal_approximation() -> None:
    a = [float(x) for x in range(15)]
    b = [x + 4.0 for x in a]
    exact = numbers.mann_whitney(a, b)
    ranks = numbers._doubled_ranks([*a, *b])
    approximate = numbers._by_normal(ranks, 15, abs(sum(ranks[:15]) - 15 * sum(ranks) / 30))
    assert approximate == pytest.approx(exact, rel=0.1)


@given(RUNS, RUNS)
def test_a_ratio_is_the_other_way_round_the_inverse(a: list[float], b: list[float]) -> None:
    there, back = numbers.ratio(a, b), numbers.ratio(b, a)
    assert there.value is not None and back.value is not None
    assert there.value * back.value == pytest.approx(1.0)
    assert there.p_value == back.p_value
    if there.low is not None and there.high is not None:
        assert there.low <= there.value * (1 + 1e-9) and there.value <= there.high * (1 + 1e-9)


@pytest.mark.parametrize("runs", [1, 2])
def test_one_run_or_two_a_side_are_never_told_apart(runs: int) -> None:
    found = numbers.ratio([1.0, 1.001][:runs], [2.0, 2.001][:runs])
    assert found.value == pytest.approx(2.0, rel=0.01)
    assert found.verdict() == "unsure"


def test_three_runs_a_side_tell_what_is_large() -> None:
    assert numbers.ratio([1.0, 1.01, 0.99], [1.4, 1.41, 1.39]).verdict() == "slower"
    assert numbers.ratio([1.0, 1.1, 0.9], [1.1, 1.2, 1.0]).verdict() == "unsure"


def test_what_is_tight_is_the_same() -> None:
    a = [1.0, 1.001, 0.999, 1.002, 0.998]
    assert numbers.ratio(a, [x * 1.004 for x in a]).verdict() == "same"


def test_false_alarms_are_rare_and_six_percent_are_found() -> None:
    """The noise of runs as planted: 2 %. One seed, so that it can't fail by chance."""
    chance = random.Random(7)

    def runs(middle: float) -> list[float]:
        return [middle * math.exp(chance.gauss(0, 0.02)) for _ in range(5)]

    alarms = sum(numbers.ratio(runs(1.0), runs(1.0)).verdict() in ("slower", "faster") for _ in range(60))
    caught = sum(numbers.ratio(runs(1.0), runs(1.06)).verdict() == "slower" for _ in range(60))
    assert alarms <= 3
    assert caught >= 51


def test_floors_see_through_neighbours() -> None:
    """Half of the runs, now more and now fewer, are up to 1.7 times as long."""
    rng = random.Random(8)

    def runs(factor: float) -> list[float]:
        beset = rng.uniform(0.2, 0.7)
        return [
            factor * rng.gauss(1, 0.005) * (rng.uniform(1.05, 1.7) if rng.random() < beset else 1) for _ in range(12)
        ]

    equal = [numbers.floors(runs(1), runs(1)).verdict(tell_from=0.02) for _ in range(40)]
    planted = [(runs(1), runs(1.06)) for _ in range(40)]
    assert sum(one in ("slower", "faster") for one in equal) <= 2
    assert sum(numbers.floors(*pair).verdict() == "slower" for pair in planted) >= 30
    assert sum(numbers.ratio(*pair).verdict() == "slower" for pair in planted) <= 20


def test_floors_that_do_not_agree_bound_nothing() -> None:
    even = [1.06, 1.061, 1.062, 1.06, 1.061, 1.06, 1.06]
    found = numbers.floors([1.08, 1.1, 1.13, 1.2, 1.25, 1.3, 1.31], even)
    assert (found.low, found.high, found.most) == (None, None, None) and found.verdict() == "unsure"
    assert numbers.floors(even, [1.03 * run for run in even]).verdict() == "slower"
    assert numbers.floors(even[:4], even[:4]).method == "bootstrap"


def test_steps_that_lean_on_one_another_widen_the_interval() -> None:
    chance = random.Random(3)

    def steps(lean: float) -> list[float]:
        found, last = [], 0.0
        for _ in range(300):
            last = lean * last + math.sqrt(1 - lean**2) * chance.gauss(0, 0.05)
            found.append(math.exp(last))
        return found

    loose, leaning = numbers.of_steps(steps(0.0), steps(0.0)), numbers.of_steps(steps(0.95), steps(0.95))
    assert loose.high is not None and loose.low is not None and leaning.high is not None and leaning.low is not None
    assert leaning.high / leaning.low > 1.5 * (loose.high / loose.low - 1) + 1
    assert loose.verdict() == leaning.verdict() == "unsure"


def test_blocks_grow_with_what_neighbours_share() -> None:
    chance = random.Random(5)
    free = [chance.gauss(0, 1) for _ in range(400)]
    walk = [sum(free[:n]) for n in range(1, 401)]
    assert numbers.block_length(free) == 20
    assert numbers.block_length(walk) > 90
    assert numbers.block_length([1.0]) == 1


def test_of_figures_agrees_with_the_runs_they_were_made_of() -> None:
    a, b = [1.0, 1.02, 0.98, 1.01], [1.1, 1.12, 1.08, 1.13]
    kept = [(statistics.fmean(x), statistics.stdev(x), len(x)) for x in (a, b)]
    found, direct = numbers.of_figures(*kept), numbers._of_few(a, b)
    assert (found.value, found.low, found.high) == pytest.approx((direct.value, direct.low, direct.high))


def test_nothing_is_made_of_nothing() -> None:
    assert numbers.ratio([], [1.0]).value is None
    assert numbers.ratio([0.0] * 5, [1.0] * 5).value is None
    assert numbers.ratio([0.0] * 5, [1.0] * 5).verdict() == "unsure"


def test_nothing_bounds_a_ratio_to_what_is_zero_in_some_runs(recwarn: pytest.WarningsRecorder) -> None:
    often, never = [0.0, 0.0, 0.01, 0.011, 0.012], [0.01, 0.011, 0.012, 0.013, 0.014]
    found = numbers.ratio(often, never)
    assert found.value == pytest.approx(1.2)
    assert (found.low, found.high, found.most, found.verdict()) == (None, None, None, "unsure")
    assert numbers.ratio(never, often).low == 0.0, "the other way round it is bounded"
    assert list(recwarn) == []
