"""The statistics of two samples: the ratio of medians with its interval, Mann-Whitney's U, and what they amount to.

A run is one block: its steps lean on one another (caches, clocks, the allocator), so they count as one value, their
median, however many they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import stats
from orchestrator.comparing.words import Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

ENOUGH = 4
"""From so many runs a side on, U can tell at the 5 % level: of 4 and 4 the most unlike order has p = 2/70."""
FEW = 3
"""With so many, Student's t on their logarithms is taken instead; below, the spread is not known well enough."""
ALPHA = 0.05
TELL_FROM = 0.01
"""A smaller change of a whole run is not told, however sure: the size of the environment or the order of linking do as
much (T. Mytkowicz et al., Producing wrong data without doing anything obviously wrong, ASPLOS 2009)."""
SAME_WITHIN = 0.03
"""An interval within this of 1 says that nothing has changed that is worth a word."""
RESAMPLES = 10_000
_SEED = 20240229

Method = Literal["bootstrap", "floor", "student", "steps", "none"]


@dataclass(frozen=True)
class Ratio:
    """b / a, its 95 % interval, its one-sided 95 % upper bound, and how that was come by; None: unknown."""

    a: float | None
    b: float | None
    value: float | None = None
    low: float | None = None
    high: float | None = None
    most: float | None = None
    p_value: float | None = None
    n_a: int = 0
    n_b: int = 0
    method: Method = "none"
    agree: bool = True
    """Of floors: whether the quickest runs of either side agree, as they do where nothing disturbs them; else there is
    no interval."""

    def verdict(self, within: float = SAME_WITHIN, tell_from: float = TELL_FROM) -> Verdict:
        """slower: b is larger. One run a side, or two, can't tell how much runs differ; only that they hardly can."""
        if self.value is None or self.low is None or self.high is None:
            return "unsure"
        few = self.method == "steps" or min(self.n_a, self.n_b) < FEW
        by_rank = self.method != "bootstrap" or (self.p_value is not None and self.p_value < ALPHA)
        apart = (self.low > 1 or self.high < 1) and by_rank and not few
        if apart and abs(math.log(self.value)) >= math.log1p(tell_from):
            return "slower" if self.value > 1 else "faster"
        tight = 1 - within <= self.low and self.high <= 1 + within
        return "same" if tight and self.method != "steps" else "unsure"


def ratio(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """b / a of two samples of runs, one value a run.

    From ENOUGH runs a side on the ratio of the medians, with a bootstrap interval (percentiles of RESAMPLES resamples
    of the runs; B. Efron and R. Tibshirani, An Introduction to the Bootstrap, 1993, 13.3) and U's p. With fewer the
    ratio of the means, and Student's t (`stats.ratio`), which pays for every run that is missing by its width."""
    if not a or not b or min(statistics.median(a), statistics.median(b)) <= 0:
        return Ratio(statistics.median(a) if a else None, statistics.median(b) if b else None, n_a=len(a), n_b=len(b))
    if min(len(a), len(b)) < ENOUGH:
        return _of_few(a, b)
    middle_a, middle_b = statistics.median(a), statistics.median(b)
    low, high, most = _percentiles(_resampled(a, seed=_SEED), _resampled(b, seed=_SEED + 1))
    p = mann_whitney(a, b)
    return Ratio(middle_a, middle_b, middle_b / middle_a, low, high, most, p, len(a), len(b), "bootstrap")


def _of_few(a: Sequence[float], b: Sequence[float]) -> Ratio:
    found = stats.ratio(b, a)
    low, high = found.ci95 or (None, None)
    p = mann_whitney(a, b) if min(len(a), len(b)) > 1 else None
    method: Method = "none" if found.ci95 is None else "student"
    mean_a, mean_b = statistics.fmean(a), statistics.fmean(b)
    return Ratio(mean_a, mean_b, found.value, low, high, high, p, len(a), len(b), method)


FLOOR_FROM = 5
"""Runs a side from which on there is a second quickest that says something."""
AGREE = 0.02
"""Runs that nothing disturbs differ by less than this in their quickest steps."""


def floors(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """b / a of two samples of runs of which other load only ever lengthens some, and those by much: of their second
    smallest values, with a bootstrap interval. A neighbour that is there through most runs of one side moves their
    median, and gives every test of ranks its p; the quickest runs it moves only where it is there all the time, and
    then seldom so that the second and the third agree within AGREE. With fewer runs than FLOOR_FROM as any sample
    (`ratio`)."""
    if min(len(a), len(b)) < FLOOR_FROM or min(*a, *b) <= 0:
        return ratio(a, b)
    (_, low_a, next_a, *_), (_, low_b, next_b, *_) = sorted(a), sorted(b)
    if max(next_a / low_a, next_b / low_b) > 1 + AGREE:
        return Ratio(low_a, low_b, low_b / low_a, n_a=len(a), n_b=len(b), method="floor", agree=False)
    low, high, most = _percentiles(_resampled(a, _SEED, second=True), _resampled(b, _SEED + 1, second=True))
    return Ratio(low_a, low_b, low_b / low_a, low, high, most, None, len(a), len(b), "floor")


def of_steps(a: Sequence[float], b: Sequence[float]) -> Ratio:
    """b / a of the steps of one run a side: the ratio of their medians with a moving-block bootstrap interval (H.
    Kuensch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics 17, 1989). It
    knows nothing of how runs differ, and so never tells."""
    if not len(a) or not len(b) or min(statistics.median(a), statistics.median(b)) <= 0:
        return ratio((), ())
    middle_a, middle_b = float(statistics.median(a)), float(statistics.median(b))
    low, high, most = _percentiles(_blocks(a, seed=_SEED), _blocks(b, seed=_SEED + 1))
    return Ratio(middle_a, middle_b, middle_b / middle_a, low, high, most, None, 1, 1, "steps")


def of_figures(a: tuple[float, float, int], b: tuple[float, float, int]) -> Ratio:
    """b / a where only (mean, standard deviation, number) of each side are kept: as with few runs, by Welch's t."""
    (mean_a, spread_a, n_a), (mean_b, spread_b, n_b) = a, b
    if min(mean_a, mean_b) <= 0 or min(n_a, n_b) < 2:
        return Ratio(mean_a, mean_b, mean_b / mean_a if mean_a > 0 else None, n_a=n_a, n_b=n_b)
    parts = ((spread_a / mean_a) ** 2 / n_a, (spread_b / mean_b) ** 2 / n_b)
    value, whole = mean_b / mean_a, sum(parts)
    df = whole**2 / (parts[0] ** 2 / (n_a - 1) + parts[1] ** 2 / (n_b - 1)) if whole else math.inf
    half = stats.t975(df) * math.sqrt(whole) if whole else 0.0
    return _around(mean_a, mean_b, value, half, n_a, n_b)


def _around(a: float, b: float, value: float, half: float, n_a: int, n_b: int) -> Ratio:
    low, high = value * math.exp(-half), value * math.exp(half)
    return Ratio(a, b, value, low, high, high, None, n_a, n_b, "student")


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation of the runs relative to their mean; None for fewer than FEW."""
    if len(values) < FEW or statistics.fmean(values) <= 0:
        return None
    return statistics.stdev(values) / statistics.fmean(values)


# ---------------------------------------------------------------- resampling


def _resampled(values: Sequence[float], seed: int, *, second: bool = False) -> NDArray[Any]:
    """The medians, or second smallest values, of RESAMPLES samples drawn from the values, with replacement."""
    import numpy as np

    drawn = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    samples = np.asarray(values, float)[drawn]
    return np.asarray(np.partition(samples, 1, axis=1)[:, 1] if second else np.median(samples, axis=1))


_STEP_RESAMPLES = 1000
_MOST_STEPS = 5000
"""Of longer runs the last: they are the steadiest."""


def _blocks(values: Sequence[float], seed: int) -> NDArray[Any]:
    """The medians of samples put together of blocks of neighbouring steps."""
    import numpy as np

    steps = np.asarray(values, float)[-_MOST_STEPS:]
    length = block_length(steps)
    starts = np.random.default_rng(seed).integers(
        0, len(steps) - length + 1, (_STEP_RESAMPLES, -(-len(steps) // length))
    )
    inside = np.arange(length)
    return np.array([np.median(steps[(row[:, None] + inside).ravel()[: len(steps)]]) for row in starts])


def block_length(values: Sequence[float] | NDArray[Any]) -> int:
    """How many neighbours stay together: at least the root of their number, more where a step is much like the one
    before: (2 r / (1 - r^2))^(2/3) n^(1/3), r the correlation of neighbours (E. Carlstein, The use of subseries values
    for estimating the variance of a general statistic, Annals of Statistics 14, 1986); a quarter of them at most."""
    import numpy as np

    steps = np.asarray(values, float)
    count = len(steps)
    off = steps - steps.mean()
    whole = float((off**2).sum())
    r = min(max(float((off[1:] * off[:-1]).sum()) / whole, 0.0), 0.99) if whole and count > 1 else 0.0
    wanted = (2 * r / (1 - r * r)) ** (2 / 3) * count ** (1 / 3)
    return max(1, min(math.ceil(max(math.sqrt(count), float(wanted))), count // 4))


def _percentiles(a: NDArray[Any], b: NDArray[Any]) -> tuple[float | None, float | None, float | None]:
    """None each where a resample of `a` is 0, as of a figure that is 0 in some runs: nothing bounds the ratio then."""
    import numpy as np

    if not (a > 0).all():
        return None, None, None
    low, high, most = np.percentile(b / a, [50 * ALPHA, 100 - 50 * ALPHA, 100 - 100 * ALPHA])
    return float(low), float(high), float(most)


# ---------------------------------------------------------------- ranks


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p of Mann-Whitney's U: of all ways to deal out these values, the share that is as unlike.

    Exact, also with ties, up to 20 values a side (the sum of mid-ranks, counted by the number of subsets that reach
    it); beyond by the normal approximation with its correction for ties (E. Lehmann, Nonparametrics, 1975)."""
    ranks = _doubled_ranks([*a, *b])
    own, whole = sum(ranks[: len(a)]), sum(ranks)
    expected = len(a) * whole / len(ranks)
    off = abs(own - expected)
    if off == 0:
        return 1.0
    if max(len(a), len(b)) > _EXACT_UP_TO:
        return _by_normal(ranks, len(a), off)
    ways = _ways(ranks, len(a))
    return sum(n for total, n in ways.items() if abs(total - expected) >= off - 1e-9) / sum(ways.values())


_EXACT_UP_TO = 20


def _doubled_ranks(values: Sequence[float]) -> list[int]:
    """Twice the mid-rank of each: a whole number."""
    ordered = sorted(values)
    first = {value: place for place, value in reversed(list(enumerate(ordered, 1)))}
    last = dict(zip(ordered, range(1, len(ordered) + 1), strict=True))
    return [first[value] + last[value] for value in values]


def _ways(ranks: Sequence[int], size: int) -> dict[int, int]:
    """By sum, how many choices of `size` of the ranks have it."""
    ways: list[dict[int, int]] = [{0: 1}, *({} for _ in range(size))]
    for rank in ranks:
        for taken in range(size, 0, -1):
            for total, count in ways[taken - 1].items():
                ways[taken][total + rank] = ways[taken].get(total + rank, 0) + count
    return ways[size]


def _by_normal(ranks: Sequence[int], size: int, off: float) -> float:
    count = len(ranks)
    mean = sum(ranks) / count
    variance = size * (count - size) / (count * (count - 1)) * sum((rank - mean) ** 2 for rank in ranks)
    return 2 * statistics.NormalDist().cdf(-max(off - 1, 0) / math.sqrt(variance)) if variance else 1.0
