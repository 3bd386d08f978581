"""Statistics of repeated runs, checked against published constants and by simulation."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from orchestrator import stats
from orchestrator.model import Metric


@pytest.mark.parametrize(
    ("df", "quantile"),
    [  # scipy.stats.t.ppf(0.975, df)
        (1, 12.706204736174698), (2, 4.302652729749464), (4, 2.7764451051977934), (9, 2.262157162798205),
        (29, 2.0452296421327), (30, 2.0422724563012373), (31, 2.0395134463964077), (60, 2.000297821058262),
        (120, 1.979930405082422), (1e6, 1.95996635),
    ],
)  # fmt: skip
def test_quantiles_of_t(df: float, quantile: float) -> None:
    assert stats.t975(df) == pytest.approx(quantile, rel=1e-4)


def _share_below(t: float, df: float, steps: int = 4000) -> float:
    """The distribution function of Student's t by Simpson's rule over the angle whose tangent is t / sqrt(df)."""
    end = math.atan(t / math.sqrt(df))
    inner = sum((4 if i % 2 else 2) * math.cos(end * i / steps) ** (df - 1) for i in range(1, steps))
    area = (1 + inner + math.cos(end) ** (df - 1)) * end / steps / 3
    return 0.5 + math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi) * area


@pytest.mark.parametrize("df", [1, 1.3, 1.7, 2, 2.5, 3.5, 7.3, 15.5, 29.5, 30.5, 80])
def test_between_its_rows_the_table_errs_on_the_wide_side_and_little(df: float) -> None:
    assert 0.975 - 1e-5 < _share_below(stats.t975(df), df) < 0.976


def test_quantiles_of_t_fall_with_every_degree_of_freedom() -> None:
    values = [stats.t975(1 + step / 10) for step in range(600)]
    assert values == sorted(values, reverse=True)


def test_a_known_sample() -> None:
    """mean 10, s = sqrt(2.5), half = 2.7764 * s / sqrt(5) = 1.9632"""
    metric = stats.describe([8.0, 9.0, 10.0, 11.0, 12.0], "s")
    assert (metric.value, metric.median, metric.min, metric.max, metric.n, metric.unit) == (
        10.0,
        10.0,
        8.0,
        12.0,
        5,
        "s",
    )
    assert metric.stddev == pytest.approx(math.sqrt(2.5))
    assert metric.ci95 == (pytest.approx(10 - 1.96324, abs=1e-4), pytest.approx(10 + 1.96324, abs=1e-4))
    assert metric.outliers == ()


def test_what_too_few_values_do_not_say_is_none() -> None:
    assert stats.describe([], "s") == Metric(None, "s", n=0)
    one = stats.describe([3.0], "s")
    assert (one.value, one.ci95, one.stddev, one.n, one.median) == (3.0, None, None, 1, 3.0)
    assert stats.interval([3.0]) is None


@pytest.mark.parametrize(
    ("values", "apart"),
    [
        ([10, 10.1, 9.9, 10.05, 14], [4]),
        ([10, 10.1, 9.9, 10.05, 10.2], []),
        ([10, 10, 10, 10, 10.3], []),  # the others are equal, and 3 % is still nothing to name
        ([10, 10, 10, 10, 10.4], [4]),
        ([10, 15], []),
        ([1, 2, 3, 4, 5, 6], []),
        ([5, 10, 10, 10, 20], [0, 4]),
        ([0, 0, 0, 1], [3]),
        ([0, 0, 0], []),
        # Iglewicz & Hoaglin's rule as NIST shows it: 0.6745 * (x - median) / MAD > 3.5
        ([2.1, 2.6, 2.4, 2.5, 2.3, 2.1, 2.3, 2.6, 8.2, 8.3], [8, 9]),
    ],
)  # fmt: skip
def test_outliers_are_named(values: list[float], apart: list[int]) -> None:
    assert stats.outliers(values) == apart


def test_outliers_bear_the_names_of_their_passes() -> None:
    assert stats.describe([10, 10, 10, 14], "s", ["p01", "p02", "p03", "p04"]).outliers == ("p04",)
    assert stats.describe([10, 10, 10, 14], "s").outliers == ("4",)


def test_a_ratio_of_equal_runs_has_no_width() -> None:
    assert stats.ratio([4.0, 4.0], [2.0, 2.0]) == Metric(2.0, "x", ci95=(2.0, 2.0), n=2)


def test_a_ratio_contains_its_value() -> None:
    metric = stats.ratio([2.0, 2.2, 2.1], [1.0, 1.1, 0.9])
    assert metric.value == pytest.approx(2.1)
    assert metric.ci95 is not None
    assert metric.ci95[0] < 2.1 < metric.ci95[1]


def test_one_run_borrows_the_spread_of_the_other_side() -> None:
    """cv = 0.1 on three runs: half = 4.3027 * 0.1 * sqrt(1 + 1/3)"""
    metric = stats.ratio([2.0], [0.9, 1.0, 1.1])
    half = 4.3027 * 0.1 * math.sqrt(4 / 3)
    assert metric.ci95 == (pytest.approx(2 * math.exp(-half)), pytest.approx(2 * math.exp(half)))


@pytest.mark.parametrize(
    ("above", "below", "value"), [([], [1.0], None), ([1.0], [], None), ([1.0], [0.0], None), ([3.0], [2.0], 1.5)]
)
def test_a_ratio_that_cannot_be_said_is_none(above: list[float], below: list[float], value: float | None) -> None:
    metric = stats.ratio(above, below)
    assert (metric.value, metric.ci95) == (value, None)


@pytest.mark.parametrize(("n_above", "n_below"), [(5, 5), (3, 10), (1, 5)])
def test_the_interval_of_a_ratio_holds_the_truth_19_times_of_20(n_above: int, n_below: int) -> None:
    """Runs of 3 s and 2 s with 5 % spread, 2000 times: the share of intervals that hold 1.5."""
    chance = random.Random(5)
    hits = 0
    for _ in range(2000):
        above = [chance.gauss(3.0, 0.15) for _ in range(n_above)]
        below = [chance.gauss(2.0, 0.10) for _ in range(n_below)]
        low, high = stats.ratio(above, below).ci95 or (0.0, 0.0)
        hits += low <= 1.5 <= high
    assert 0.93 < hits / 2000 < 0.98


def test_the_mean_is_the_mean() -> None:
    values = [0.1] * 10
    assert stats.describe(values).value == statistics.fmean(values) == 0.1


def test_the_quickest_are_a_fiftieth_and_five_at_least() -> None:
    assert stats.quickest(range(1000, 0, -1)) == [*range(1, 21)]
    assert stats.quickest([7, 3, 9, 1, 8, 2, 6]) == [1, 2, 3, 6, 7]
    assert stats.quickest([2, 1]) == [1, 2]


@pytest.mark.parametrize(("hits", "samples"), [(6, 44), (5, 46), (30, 100), (160, 343), (15, 1000)])
def test_a_share_is_at_least_what_chance_would_hardly_exceed(hits: int, samples: int) -> None:
    """Were it that small, more hits would come about in some 5 % of all cases: counted, those with as many by half."""
    least = stats.least_share(hits / samples, samples)
    chance = [math.comb(samples, n) * least**n * (1 - least) ** (samples - n) for n in range(hits, samples + 1)]
    assert 0.03 < sum(chance) - chance[0] / 2 < 0.07


def test_of_no_samples_a_share_is_nothing() -> None:
    assert stats.least_share(1.0, 0) == 0.0
    assert 0 < stats.least_share(1.0, 20) < 1
