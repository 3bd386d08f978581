"""The statistics of repeated runs: mean and interval, outliers, the ratio of two means. Unknown is None."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from orchestrator.model import Metric

_T975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_Z975, _Z95 = 1.959964, 1.644854

_OUTLIER_FROM = 3.5
SIGMA_PER_MAD = 1.4826
_SPREAD_FLOOR = 0.01
"""The least robust standard deviation, as a share of the median: however alike the other runs are, one within 3.5 % of
their median is not worth a name."""


def t975(df: float) -> float:
    """The 0.975 quantile of Student's t for `df` >= 1 degrees of freedom: half a 95 % interval, in standard errors.

    Up to 30 from the table in NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2; between its rows log t is
    taken as linear in 1/df, which is up to 3 % too wide between 1 and 2 and good to four digits from 5 on. Beyond 30
    by the expansion in Abramowitz & Stegun, 26.7.5, good to four digits there."""
    if df >= len(_T975):
        z, n = _Z975, df
        return z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    low = max(int(df), 1)
    share = (1 / low - 1 / max(df, 1.0)) / (1 / low - 1 / (low + 1))
    return float(_T975[low - 1] ** (1 - share) * _T975[low] ** share)


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean by Student's t; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = t975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def outliers(values: Sequence[float]) -> list[int]:
    """Which values stand apart, by index: |x - median| > 3.5 robust standard deviations (1.4826 MAD).

    The modified z-score of B. Iglewicz and D. Hoaglin, How to Detect and Handle Outliers (ASQC, 1993). Fewer than three
    values have none.
    """
    if len(values) < 3:
        return []
    median = statistics.median(values)
    distances = [abs(value - median) for value in values]
    sigma = max(SIGMA_PER_MAD * statistics.median(distances), _SPREAD_FLOOR * abs(median))
    return [index for index, distance in enumerate(distances) if distance > _OUTLIER_FROM * sigma]


def describe(values: Sequence[float], unit: str | None = None, names: Sequence[str] = ()) -> Metric:
    """The mean of the values and everything that says how much it is worth. `names`: whose they are, for outliers."""
    if not values:
        return Metric(None, unit, n=0)
    apart = outliers(values)
    return Metric(
        value=statistics.fmean(values),
        unit=unit,
        ci95=interval(values),
        n=len(values),
        median=statistics.median(values),
        stddev=statistics.stdev(values) if len(values) > 1 else None,
        min=min(values),
        max=max(values),
        outliers=tuple(names[index] for index in apart) if names else tuple(str(index + 1) for index in apart),
    )


def ratio(above: Sequence[float], below: Sequence[float]) -> Metric:
    """mean(above) / mean(below) with its 95 % interval, such as a slowdown; each is None where it can't be said.

    By the delta method on the logarithm (G. Casella and R. Berger, Statistical Inference, 2002, 5.5.4): its variance is
    cv_a^2 / n_a + cv_b^2 / n_b, cv the coefficient of variation, with Welch-Satterthwaite degrees of freedom. A side
    with one value is taken to spread, relative to its mean, as the other does; with one on both there is no interval.
    """
    if not above or not below or statistics.fmean(above) <= 0 or statistics.fmean(below) <= 0:
        return Metric(None, "x", n=len(above))
    value = statistics.fmean(above) / statistics.fmean(below)
    half = _log_half_width(above, below)
    ci95 = None if half is None else (value * math.exp(-half), value * math.exp(half))
    return Metric(value, "x", ci95=ci95, n=len(above))


QUICK_FROM = 50
"""Of fewer steps none is quick."""


def quick_share(count: int) -> float:
    """Which share of so many steps are its quickest: 2 %, or 5 steps."""
    return max(0.02, 5 / count)


def quickest(values: Sequence[float], share: float | None = None) -> list[float]:
    """The smallest of them, ascending: that share, else what `quick_share` says. Of the times of many steps they are
    what other load on the machine, which only ever adds, changes least (J. Chen and J. Revels, Robust benchmarking in
    noisy environments, 2016)."""
    return sorted(values)[: math.ceil((share or quick_share(len(values))) * len(values))] if values else []


def least_share(share: float, samples: int) -> float:
    """What a share of so many independent samples is at least, with 95 % confidence: the lower end of the score
    interval (E. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22, 1927)."""
    if samples <= 0:
        return 0.0
    square = _Z95**2 / samples
    middle = share + square / 2
    return max(0.0, (middle - math.sqrt(square * share * (1 - share) + square**2 / 4)) / (1 + square))


def _log_half_width(above: Sequence[float], below: Sequence[float]) -> float | None:
    """Half the width of the interval of log(mean(above) / mean(below)); None when neither side shows a spread."""
    n_a, n_b = len(above), len(below)
    if n_a == n_b == 1:
        return None
    a = _relative_variance(above if n_a > 1 else below) / n_a
    b = _relative_variance(below if n_b > 1 else above) / n_b
    if a + b == 0:
        return 0.0
    if min(n_a, n_b) == 1:
        return t975(max(n_a, n_b) - 1) * math.sqrt(a + b)
    df = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    return t975(df) * math.sqrt(a + b)


def _relative_variance(values: Sequence[float]) -> float:
    return statistics.variance(values) / statistics.fmean(values) ** 2
