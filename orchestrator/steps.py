"""Training and inference steps: when they had become steady, which stand out and how regularly, what they took."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

STEADY_AFTER = 5
"""So many steps in a row are looked at together."""
STEADY_WITHIN = 1.25
"""Steps are steady once the median of STEADY_AFTER in a row is within this factor of the second half's median."""
FIRST_WITHIN = 2.0
"""The first steady step itself is at most this many times that median."""
STALL_FROM = 2.0
"""A step that took this many times the steady median stands out."""
_WITHIN_PERIOD = 0.8
"""The share of the stalls that has to keep to a period for it to be called one."""


def warmup(durations: Sequence[float | None]) -> int | None:
    """How many steps come before the steady ones; None when they never become steady, or are too few to tell.

    The first i for which median(d[i:i+5]) <= 1.25 x median(second half) and d[i] <= 2 x that. Unknown durations belong
    to the warm-up."""
    known = [d for d in durations if d is not None]
    if len(known) < 2 * STEADY_AFTER:
        return None
    reference = statistics.median(known[len(known) // 2 :])
    for index in range(len(durations) - STEADY_AFTER + 1):
        first, block = durations[index], durations[index : index + STEADY_AFTER]
        steady = [d for d in block if d is not None]
        if first is None or len(steady) < STEADY_AFTER:
            continue
        if statistics.median(steady) <= STEADY_WITHIN * reference and first <= FIRST_WITHIN * reference:
            return index
    return None


@dataclass(frozen=True)
class Stalls:
    """Steps that took much longer than the others."""

    steps: tuple[int, ...]
    period: int | None
    """They come every so many steps; None when they keep to no period, or are too few to tell."""
    extra_ns: float
    """What they took beyond the steady median, in sum."""


def stalls(durations: Sequence[float | None], first: int) -> Stalls:
    """The steps from `first` on that stand out."""
    known = [(i, d) for i, d in enumerate(durations) if i >= first and d is not None]
    if not known:
        return Stalls((), None, 0.0)
    middle = statistics.median(d for _, d in known)
    out = [(i, d) for i, d in known if d >= STALL_FROM * middle]
    return Stalls(tuple(i for i, _ in out), period([i for i, _ in out]), sum(d - middle for _, d in out))


def period(places: Sequence[int]) -> int | None:
    """The distance that most of these places keep from one to the next; None when there is none, or they are under
    three."""
    gaps = [b - a for a, b in pairwise(places)]
    if len(gaps) < 2:
        return None
    common = statistics.mode(gaps)
    return common if gaps.count(common) >= _WITHIN_PERIOD * len(gaps) and common > 1 else None


CAUSES = ("checkpoint", "evaluation", "data")
"""What a stall is put down to, when it took the larger part of what the step had too much."""


def cause(extra_ns: float, spent_ns: Mapping[str, float | None], usual_ns: Mapping[str, float | None]) -> str:
    """Why a step took `extra_ns` longer than usual: the phase that grew by more than half of that, else `unknown`."""
    for name in CAUSES:
        grown = (spent_ns.get(name) or 0.0) - (usual_ns.get(name) or 0.0)
        if grown > extra_ns / 2:
            return name
    return "unknown"
