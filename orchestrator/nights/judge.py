"""How a night is judged: its time against the accepted nights of the same environment before it. Pure.

One night far off may be chance (a backup, a hot room): it is *suspect*. Two in a row, or three that are a little less
far off, are no chance: *regressed*, or *improved*. Such a change stays in force until a night comes that lies nearer to
the old level. No night that is off moves the level that it was judged by.

A drift so slow that every night looks like those before it is seen against the first nights of the level, which never
move. A faster program becomes the new level by itself after some nights, so that losing it again is seen; a slower one
only when somebody accepts it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Literal

from orchestrator.stats import SIGMA_PER_MAD, t975

Verdict = Literal["accepted", "suspect", "regressed", "improved", "unjudged"]

WINDOW = 20
"""Nights that make the level: the newest accepted ones."""
SPREAD_WINDOW = 60
"""Nights that say how far nights lie apart. A median deviation of 20 is off by a quarter; of 60, by a seventh."""
NEEDED = 7
"""Accepted nights without which nothing is judged: the median deviation of fewer says little of the spread."""
FLOOR = 0.03
"""The least change that is worth a word, as a share of the level."""
FAR, NEAR = 2.5, 1.6
"""In robust standard deviations: two nights in a row beyond the first, or three beyond the second, are no chance."""
DRIFT_FLOOR = 0.05
"""The least drift, as a share of the first nights: nights that depend on one another wander by less."""
NOISY, LESS = 0.02, 0.7
"""Where the usual step differs by more than this from one night to the next (as a robust standard deviation), nights
are judged by their quickest steps, if those differ by so much less."""
RECENT = 10
"""Nights whose median stands for now, where a drift is looked for."""
ADOPTED_AFTER = 7
"""Faster nights in a row that become the new level by themselves."""
TAIL = 0.1
"""So many nights may lie beyond a limit on its side: times have a long tail of slow ones, which no deviation tells."""
DEPENDENCE = 1.2
"""So much wider is the spread where each night is like the one before it (a lag-1 autocorrelation of 1): nights in a
row then say less than their number."""
MAD_EFFICIENCY = 0.37
"""A median deviation knows the spread as well as a standard deviation of 37 % of the values would (P. Rousseeuw and
C. Croux, Alternatives to the Median Absolute Deviation, 1993)."""
SIGMA_FLOOR = 0.005
"""The least spread from night to night, as a share of the level: some nights may have been alike by chance."""


@dataclass(frozen=True)
class Past:
    """An earlier night that was judged. value: its time in seconds; starts_level: before it there was another level."""

    run_id: str
    value: float
    verdict: Verdict
    starts_level: bool = False


@dataclass(frozen=True)
class Level:
    """What is usual: the median of so many nights, and how far a night lies from it by chance, as a share of it, which
    more nights may tell (`spread_nights`: also those of earlier levels)."""

    center: float
    sigma: float
    nights: int
    spread_nights: int
    tails: tuple[float, float] = (0.0, 0.0)
    """What lies beyond all but a tenth of the nights: faster, slower, as shares of the level."""

    def off(self, value: float) -> float:
        """How much slower (or, below 0, faster) that is, as a share of the level."""
        return value / self.center - 1

    def limit(self, way: float, far: float = FAR) -> float:
        """How far a night may be off by chance, on one side (way: 1 slower, -1 faster). Wider while median and spread
        rest on few nights, and where a tenth of the nights lie beyond it."""
        few = _student(self.spread_nights) / _student(SPREAD_WINDOW) * _alone(self.nights) / _alone(WINDOW)
        return max(far * self.sigma * few, way * self.tails[way > 0], FLOOR)

    def interval(self, value: float) -> tuple[float, float]:
        """How much slower the program has become, with 95 %: one night's chance, and that of the others' median."""
        half = _student(self.spread_nights) * self.sigma * _alone(self.nights)
        return self.off(value) - half, self.off(value) + half


def _student(nights: int) -> float:
    """Student's t for a spread that was estimated from the median deviation of so many nights."""
    return t975(max(1.0, MAD_EFFICIENCY * (nights - 1)))


def _alone(nights: int) -> float:
    """The spread of one night's distance from the median of so many others, in standard deviations of one night. The
    variance of a median is pi/2 times that of a mean."""
    return math.sqrt(1 + math.pi / 2 / nights)


@dataclass(frozen=True)
class Judgement:
    """What a night is, and why. off: by how much it is slower than the level, as a share of it, with 95 % within
    `interval`; None: there is no level yet. adopted: the nights that have become the new level with it."""

    verdict: Verdict
    reason: str
    off: float | None = None
    interval: tuple[float, float] | None = None
    level: Level | None = None
    adopted: tuple[str, ...] = ()


def judge(past: Sequence[Past], value: float) -> Judgement:
    """`past`: the judged nights of the same environment, the oldest first."""
    accepted = [night for night in past if night.verdict == "accepted"]
    if len(accepted) < NEEDED:
        return Judgement("accepted", f"learning: {len(accepted) + 1} of {NEEDED} nights")
    level = level_of(past)
    about = (level.off(value), level.interval(value), level)
    slide = _drift(past, value)
    way = _confirmed(past, level, value) or (math.copysign(1, slide) if slide else 0)
    if not way:
        beyond = abs(level.off(value)) > level.limit(math.copysign(1, level.off(value)))
        return Judgement("suspect", "one night so far", *about) if beyond else Judgement("accepted", "as usual", *about)
    in_row = 1 + _beyond(past, level, way)
    reason = f"{in_row} nights in a row" if not slide else f"a slow drift: {slide:+.1%} since the first nights"
    if way > 0:
        return Judgement("regressed", reason, *about)
    row = _row(past, way)
    adopted = tuple(night.run_id for night in row) if len(row) + 1 >= ADOPTED_AFTER else ()
    return Judgement("improved", reason, *about, adopted)


def by_quickest(usual: Sequence[Past], quickest: Sequence[Past]) -> bool:
    """Whether to judge by the quickest steps of each night rather than by its usual one, which differs much more from
    night to night."""
    if min(len(_values(usual)), len(_values(quickest))) < NEEDED:
        return False
    noise, left = _wobble(usual), _wobble(quickest)
    return noise > NOISY and left < LESS * noise


def _wobble(past: Sequence[Past]) -> float:
    """How far a night lies from the one before it, as a robust standard deviation of one night: a drift is no noise."""
    values = _values(past)[-SPREAD_WINDOW:]
    steps = [abs(after - before) for before, after in pairwise(values)]
    return SIGMA_PER_MAD * statistics.median(steps) / math.sqrt(2) / statistics.median(values)


def level_of(past: Sequence[Past]) -> Level:
    """The level of the accepted nights since it began. How far nights lie apart by chance is told by all of them that
    nothing has confirmed, those off the level, too; while the level is young also by those of the levels before it,
    each as a share of its own level."""
    levels = [level for level in _levels(past) if _values(level)]  # a history may have lost some
    newest = _values(levels[-1])[-WINDOW:]
    spread = [night.value / statistics.median(_values(level)) for level in levels for night in level]
    return _level(newest, spread[-SPREAD_WINDOW:])


def _values(nights: Sequence[Past]) -> list[float]:
    return [night.value for night in nights if night.verdict == "accepted"]


def _level(values: Sequence[float], shares: Sequence[float]) -> Level:
    middle = statistics.median(shares)
    mad = statistics.median(abs(share - middle) for share in shares)
    sigma = max(SIGMA_PER_MAD * mad, SIGMA_FLOOR)
    sigma *= 1 + DEPENDENCE * _dependence([(share - middle) / sigma for share in shares])
    ordered, beyond = sorted(shares), int(TAIL * len(shares))
    tails = (ordered[beyond] - 1, ordered[-1 - beyond] - 1)
    return Level(statistics.median(values), sigma, len(values), len(shares), tails)


def _dependence(offs: Sequence[float]) -> float:
    """How much each night is like the one before it, as far as that is no chance: the lag-1 autocorrelation, with what
    lies beyond two standard deviations taken to lie there, less its own standard deviation among nights that have
    nothing to do with one another (1 by the root of their number)."""
    clipped = [min(max(off, -2.0), 2.0) for off in offs]
    mean = statistics.fmean(clipped)
    centred = [off - mean for off in clipped]
    total = sum(off * off for off in centred)
    found = sum(a * b for a, b in pairwise(centred)) / total if total else 0.0
    return max(0.0, found - 1 / math.sqrt(len(offs)))


def _levels(past: Sequence[Past]) -> list[list[Past]]:
    """The nights of each level, without those of a change: what is off and was not confirmed by the night after it is
    chance. (Were it left out, the spread would stay as small as it seemed at first.)"""
    levels: list[list[Past]] = [[]]
    for night, following in zip_longest(past, past[1:]):
        if night.starts_level and levels[-1]:
            levels.append([])
        if night.verdict == "accepted" or (night.verdict == "suspect" and following and following.verdict in _CHANCE):
            levels[-1].append(night)
    return levels


_CHANCE = ("accepted", "suspect")


def _confirmed(past: Sequence[Past], level: Level, value: float) -> int:
    """1: slower for sure, -1: faster for sure, 0: neither."""
    for way in (1, -1):
        offs = [way * level.off(x) for x in (*(night.value for night in past[-2:]), value)]
        if min(offs[-2:]) > level.limit(way) or (len(offs) == 3 and min(offs) > level.limit(way, NEAR)):
            return way
        changed = [night.value for night in _row(past, way)]
        if changed and offs[-1] > max(FLOOR, way * level.off(statistics.median(changed)) / 2):
            return way
    return 0


def _beyond(past: Sequence[Past], level: Level, way: float) -> int:
    """How many of the newest nights in a row lie on that side, beyond what is near."""
    return next(
        (n for n, night in enumerate(reversed(past)) if way * level.off(night.value) <= level.limit(way, NEAR)),
        len(past),
    )


def _row(past: Sequence[Past], way: float) -> list[Past]:
    """The newest nights in a row that were judged so."""
    wanted = "regressed" if way > 0 else "improved"
    row: list[Past] = []
    for night in reversed(past):
        if night.verdict != wanted:
            break
        row.insert(0, night)
    return row


def _drift(past: Sequence[Past], value: float) -> float | None:
    """How far the nights have slid away from the first ones of their level, as a share; None: not for sure."""
    level = _levels(past)[-1]
    first = level[: max(0, min(WINDOW, len(level) - RECENT + 1))]
    if len(_values(first)) < NEEDED:
        return None
    center = statistics.median(_values(first))
    anchor = _level(_values(first), [night.value / center for night in first])
    now = statistics.median([*_values(level)[1 - RECENT :], value])
    slid, way = anchor.off(now), math.copysign(1, anchor.off(now))
    far = way * slid > max(DRIFT_FLOOR, anchor.limit(way)) and way * anchor.off(value) > FLOOR
    return slid if far else None
