"""When a series of runs changed: the nights at which its level shifted, by how much, and how sure that is.

The method is that of P. Fearnhead and G. Rigaill, Changepoint Detection in the Presence of Outliers (JASA 2019): the
levels and change points with the least sum of bounded losses, min((x - level)^2, K^2), and a penalty for each change.
Since a single night can lose K^2 at most, a night that was disturbed makes no level of its own; two nights in a row at
a new level may. It needs one pass over the nights and numpy; the packages for this (ruptures, apache-otava) bring scipy
and more for the same, and take a disturbed night for a change or need many nights after one to see it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from orchestrator import stats

if TYPE_CHECKING:
    import numpy

OUTLIER_FROM = 3.0
"""K, in standard deviations of a night: what the authors recommend."""
PENALTY = 3.0
"""Of a change, times the variance and log n: half as much again as the 2 of the Schwarz criterion, which is for nights
that don't lean on one another."""
SURE = 1.9
"""So many times half its 95 % interval a change must be: for the place where it is largest was searched for. In normal
noise without a change the largest t of all places is beyond that in 1 of 100 series of 10 to 150 nights (simulated)."""
LEAST = 0.02
"""The least change worth a date, as a share of the level."""
SPREAD_FLOOR = 0.005
"""The least standard deviation of a night, as a share of the level: however alike the nights are."""
FEWEST = 8
"""Of fewer nights nobody can tell how far they spread."""
_FINEST, _LEVELS = 0.1, 1500
"""The grid of levels: its width in standard deviations, and at most so many."""


@dataclass(frozen=True)
class Shift:
    """A change of the level between two nights of a series, by their index: `at` is the first at the new level.

    before, after: the levels, as geometric means; ratio: after / before, with its 95 % interval. It is that of the two
    levels as they were found: that the place was searched for, too, is not in it. n_before, n_after: the nights behind
    each level, disturbed ones left out."""

    at: int
    before: float
    after: float
    ratio: float
    low: float
    high: float
    n_before: int
    n_after: int


def shifts(values: Sequence[float]) -> list[Shift]:
    """The changes of a series of positive values, the oldest first; none where there are too few of them."""
    if len(values) < FEWEST or min(values) <= 0 or not all(map(math.isfinite, values)):
        return []
    logs = [math.log(value) for value in values]
    sigma = spread(logs)
    return _worth_telling(logs, _segments([one / sigma for one in logs]), sigma)


def spread(logs: Sequence[float]) -> float:
    """The standard deviation of a night about its level, from how far nights in a row lie apart (1.4826 MAD): changes
    and disturbed nights hardly count. Of few nights it is known badly, by about 1 / sqrt(n): so much is added, since a
    spread that is taken for less than it is makes changes of nothing."""
    apart = [b - a for a, b in pairwise(logs)]
    middle = statistics.median(apart)
    mad = statistics.median(abs(one - middle) for one in apart)
    return max(1.4826 * mad / math.sqrt(2) * (1 + 1 / math.sqrt(len(logs))), SPREAD_FLOOR)


def _segments(scaled: Sequence[float]) -> list[int]:
    """Where new levels begin, by the least cost; scaled: in standard deviations.

    Kept for each level of a grid: the least cost of all nights so far if this is the level now, and when it began
    (functional pruning on a grid)."""
    import numpy as np

    levels = _grid(scaled)
    penalty = PENALTY * math.log(len(scaled))
    cost, began = np.zeros(len(levels)), np.zeros(len(levels), dtype=int)
    starts: list[int] = []
    best = 0.0
    for index, value in enumerate(scaled):
        anew = cost > best + penalty
        cost[anew], began[anew] = best + penalty, index
        cost += np.minimum((levels - value) ** 2, OUTLIER_FROM**2)
        least = int(cost.argmin())
        best = float(cost[least])
        starts.append(int(began[least]))
    found, at = [], starts[-1]
    while at > 0:
        found.append(at)
        at = starts[at - 1]
    return found[::-1]


def _grid(scaled: Sequence[float]) -> numpy.ndarray:
    import numpy as np

    low, high = min(scaled), max(scaled)
    return np.linspace(low, high, min(_LEVELS, int((high - low) / _FINEST) + 2))


def _worth_telling(logs: Sequence[float], starts: list[int], sigma: float) -> list[Shift]:
    """Those of the changes that are large enough and sure; the two levels of any other one are one level."""
    kept = list(starts)
    while kept:
        parts = _undisturbed([logs[a:b] for a, b in pairwise([0, *kept, len(logs)])], sigma)
        found = [_shift(at, *pair) for at, pair in zip(kept, pairwise(parts), strict=True)]
        weak = [one for one in found if not _is_sure(one) or abs(one.ratio - 1) < LEAST]
        if not weak:
            return found
        kept.remove(min(weak, key=lambda one: abs(math.log(one.ratio))).at)
    return []


def _is_sure(one: Shift) -> bool:
    """One night alone is no level."""
    half = math.log(one.high / one.ratio) if math.isfinite(one.high) and one.ratio else math.inf
    return min(one.n_before, one.n_after) > 1 and abs(math.log(one.ratio)) > SURE * half


def _undisturbed(parts: Sequence[Sequence[float]], sigma: float) -> list[list[float]]:
    """The nights of each level that are near it."""
    middles = [statistics.median(part) for part in parts]
    apart = [abs(one - middle) for part, middle in zip(parts, middles, strict=True) for one in part]
    most = OUTLIER_FROM * max(sigma, 1.4826 * statistics.median(apart))
    return [
        [one for one in part if abs(one - middle) <= most] or [middle]
        for part, middle in zip(parts, middles, strict=True)
    ]


def _shift(at: int, before: Sequence[float], after: Sequence[float]) -> Shift:
    """With the interval of the difference of two means with one variance (Student's t) of the logarithms."""
    a, b = statistics.fmean(before), statistics.fmean(after)
    df = len(before) + len(after) - 2
    squares = sum((one - a) ** 2 for one in before) + sum((one - b) ** 2 for one in after)
    scale = math.sqrt(squares / df * (1 / len(before) + 1 / len(after))) if df > 0 else math.inf
    half = max(stats.t975(df) * scale if df > 0 else math.inf, 0.0)
    low, high = (math.exp(b - a - half), math.exp(b - a + half)) if half < 50 else (0.0, math.inf)
    return Shift(at, math.exp(a), math.exp(b), math.exp(b - a), low, high, len(before), len(after))
