"""From numbers to changes: what each thing on both sides amounts to, as a share of A's step, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.comparing import numbers
from orchestrator.comparing.numbers import ALPHA, SAME_WITHIN, TELL_FROM, Ratio
from orchestrator.comparing.sides import NOISY, Looked, Measured, View
from orchestrator.comparing.words import Change, Per, Verdict, What

PASS_SPREAD = 0.03
"""By how much one thing differs from one pass of a tool to the next at least, relative to itself: two passes of one
program seldom agree better."""
TOLD_FROM_PCT = 0.5
"""What takes a smaller share of the step on both sides is left out, unless it has changed for sure."""
_Z95 = 1.959964
Sides = tuple["float | None", "float | None"]
Interval = tuple["float | None", "float | None", "float | None"]
"""A ratio and the ends of its 95 % interval."""


@dataclass(frozen=True)
class Scale:
    """What the shares of a comparison are of, and by how much the bare runs of either side differ."""

    whole_a_s: float | None
    of: str
    spread: float | None
    runs: str
    """Of what kind the bare runs are, for the evidence."""
    tell_from: float = TELL_FROM
    """A smaller change of the whole is not told."""

    @classmethod
    def of_views(cls, a: View, b: View) -> Scale:
        both = [one for one in (a.spread, b.spread) if one is not None]
        pooled = math.sqrt(sum(one**2 for one in both) / len(both)) if len(both) == 2 else None
        what = "A's step" if a.step_s is not None and b.step_s is not None else "A's run"
        whole = a.step_s if what == "A's step" else (statistics.median(a.walls_s) if a.walls_s else None)
        least = NOISY if a.noisy else TELL_FROM
        return cls(whole, what, pooled, f"{len(a.bare)} and {len(b.bare)} bare runs", least)

    def or_of(self, looked: Looked, of: str) -> Scale:
        """Where no bare run was timed (files that somebody already had): what was seen is its own whole."""
        whole_ns = sum(thing.ns or 0.0 for thing in looked.things)
        return self if self.whole_a_s or not whole_ns else replace(self, whole_a_s=whole_ns / 1e9, of=of)

    def pct(self, ns: float | None) -> float | None:
        return None if ns is None or not self.whole_a_s else 100 * ns / 1e9 / self.whole_a_s


# ---------------------------------------------------------------- figures with one value a run


_COSTS = ("s", "ns", "bytes")
"""Units of what is better the less there is."""
_RATES = ("_per_s", "throughput")
"""Names of figures of which more is faster end so."""


def worse(name: str, unit: str | None) -> Literal["higher", "lower"] | None:
    """Which way a figure gets worse: rates by falling, times and memory by growing; None: nobody can tell by its unit
    or name, as of an accuracy."""
    if name.endswith(_RATES) or (unit or "").endswith("/s"):
        return "lower"
    return "higher" if unit in _COSTS else None


def of_runs(what: What, name: str, found: Ratio, unit: str | None, scale: Scale | None = None) -> Change:
    """A figure of the bare runs. With a scale it is a part of the step, in seconds."""
    least = scale.tell_from if scale else TELL_FROM
    verdict = directed(found.verdict(tell_from=least), name, unit)
    share = low = high = None
    if scale is not None and scale.whole_a_s and found.a is not None:
        a_pct = 100 * found.a / scale.whole_a_s
        share, low, high = (None if x is None else a_pct * (x - 1) for x in (found.value, found.low, found.high))
        if verdict in ("slower", "faster") and abs(share or 0.0) < 100 * least:
            verdict = "same"
    return Change(
        what, name, found.a, found.b, unit, verdict, found.value, found.low, found.high, found.most, found.p_value,
        found.n_a, found.n_b, "step" if scale and scale.of == "A's step" else "run", share, low, high,
        of=scale.of if scale else "", evidence=how(found, verdict),
    )  # fmt: skip


def directed(verdict: Verdict, name: str, unit: str | None) -> Verdict:
    """`slower` is said of what has grown: of a rate it is the other way round, and bytes are only more or less."""
    if verdict not in ("slower", "faster") or unit in ("s", "ns"):
        return verdict
    if worse(name, unit) == "lower":
        return "faster" if verdict == "slower" else "slower"
    return "more" if verdict == "slower" else "less"


_HOW = {"bootstrap": "medians of {}, bootstrap", "floor": "second quickest of {}, bootstrap"}


def how(found: Ratio, verdict: Verdict) -> str:
    """What a ratio rests on, in words, and why it is unsure."""
    runs = f"{found.n_a} and {found.n_b} runs"
    if found.method == "none":
        return f"{runs}: how much runs differ is unknown"
    if found.method == "steps":
        return f"the steps of {runs}: how much runs differ is unknown"
    told = _HOW.get(found.method, "means of {}, Student's t").format(runs)
    rank = "" if found.p_value is None else f"; Mann-Whitney p = {found.p_value:.2g}"
    if verdict == "unsure" and min(found.n_a, found.n_b) < numbers.FEW:
        return f"{told}{rank}: too few to tell"
    if found.method == "bootstrap" and found.low is None:
        return f"{told}{rank}: in some runs of A it is 0, and nothing bounds the ratio"
    if not found.agree:
        return f"{told}: the quickest runs of one side do not agree"
    return told + rank


# ---------------------------------------------------------------- what a tool has seen in one pass


@dataclass(frozen=True)
class Weighed:
    """How one kind of thing is weighed. floor: the least relative difference from pass to pass; compared: how many
    things are looked at at once: the more there are, the further off one of them is by chance (C. Bonferroni)."""

    what: What
    scale: Scale
    a: Looked
    b: Looked
    compared: int

    @property
    def z(self) -> float:
        return statistics.NormalDist().inv_cdf(1 - ALPHA / 2 / max(self.compared, 1))

    @property
    def per(self) -> Per:
        return self.b.per

    def change(self, one: Measured | None, other: Measured | None) -> Change:
        """The change of a pair; None: it is not there on that side."""
        if any(m is not None and m.ns is None for m in (one, other)):
            return self._by_count(one, other)
        a_ns, b_ns = (one.ns if one else 0.0) or 0.0, (other.ns if other else 0.0) or 0.0
        off_ns = self._off_ns(one, other)
        share, wide = self.scale.pct(b_ns - a_ns), self.scale.pct(_Z95 * off_ns)
        verdict = self._verdict(one, other, b_ns - a_ns, off_ns, share)
        sides = (a_ns / 1e9 if one else None, b_ns / 1e9 if other else None)
        return replace(
            self._made(one, other, sides, "s", verdict, _ratio_interval(a_ns, b_ns, off_ns)),
            share_of_step_pct=share,
            share_low_pct=None if share is None or wide is None else share - wide,
            share_high_pct=None if share is None or wide is None else share + wide,
            of=self.scale.of,
            evidence=self._evidence(one, other, verdict),
        )

    def _made(
        self, one: Measured | None, other: Measured | None, sides: Sides, unit: str, verdict: Verdict, ratio: Interval
    ) -> Change:
        known = other or one or _NOTHING
        return Change(
            self.what, known.name, *sides, unit, verdict, *ratio, n_a=one.seen if one else 0,
            n_b=other.seen if other else 0, per=self.per, where=known.where, sources=self.sources,
        )  # fmt: skip

    @property
    def sources(self) -> tuple[str, ...]:
        return f"A:{self.a.capture}", f"B:{self.b.capture}"

    def _off_ns(self, one: Measured | None, other: Measured | None) -> float:
        """The standard error of the growth: by sampling, and by how passes differ."""
        spread = max(self.scale.spread or 0.0, PASS_SPREAD)
        parts = [(m.off_ns, spread * (m.ns or 0.0)) for m in (one, other) if m]
        return math.sqrt(sum(off**2 + apart**2 for off, apart in parts))

    def _verdict(
        self, one: Measured | None, other: Measured | None, grown_ns: float, off_ns: float, share: float | None
    ) -> Verdict:
        if one is None or other is None:
            return self._alone(one, other, share)
        if share is None:
            return "unsure"
        is_told = abs(share) >= 100 * self.scale.tell_from
        if self.scale.spread is not None and abs(grown_ns) > self.z * off_ns and is_told:
            return "slower" if grown_ns > 0 else "faster"
        wide = self.scale.pct(_Z95 * off_ns) or 0.0
        return "same" if abs(share) + wide <= 100 * SAME_WITHIN else "unsure"

    def _alone(self, one: Measured | None, other: Measured | None, share: float | None) -> Verdict:
        """Of samples: would it be missed by chance, had it the same share on the other side?"""
        known = other or one or _NOTHING
        if known.off_ns:
            here, there = (self.b, self.a) if other else (self.a, self.b)
            expected = known.seen / max(here.whole, 1) * there.whole
            if math.exp(-expected) > ALPHA / max(self.compared, 1) or abs(share or 0.0) < 100 * self.scale.tell_from:
                return "unsure"
        return "new" if other else "gone"

    def _by_count(self, one: Measured | None, other: Measured | None) -> Change:
        """Where only numbers of calls are known: they are counts of one pass, and waver by more than Poisson's root."""
        a, b = one.count if one else None, other.count if other else None
        verdict: Verdict = "new" if one is None else "gone" if other is None else "unsure"
        interval: Interval = (None, None, None)
        if a and b and one and other:
            off = math.sqrt(_OVERDISPERSED * (1 / max(one.seen, 1) + 1 / max(other.seen, 1)) + 2 * PASS_SPREAD**2)
            interval = (b / a, b / a * math.exp(-_Z95 * off), b / a * math.exp(_Z95 * off))
            far = abs(math.log(b / a)) > max(self.z * off, math.log(_COUNT_FROM))
            verdict = ("more" if b > a else "less") if far else "same"
        made = self._made(one, other, (a, b), "calls", verdict, interval)
        return replace(made, evidence="counted in one pass a side, start-up included")

    def _evidence(self, one: Measured | None, other: Measured | None, verdict: Verdict) -> str:
        counts = [None if m is None else m.count for m in (one, other)]
        told = ""
        if any(count is not None for count in counts):
            told = " -> ".join("none" if count is None else f"{count:.4g}" for count in counts) + f" a {self.per}; "
        if (other or one or _NOTHING).off_ns:
            seen = [m.seen if m else 0 for m in (one, other)]
            told = f"{seen[0]} of {self.a.whole} and {seen[1]} of {self.b.whole} samples; "
        why = ""
        if verdict == "unsure":
            why = (
                "too few bare runs to know how runs differ" if self.scale.spread is None else "within what chance does"
            )
        return told + f"one pass a side{'; ' + why if why else ''}"


_OVERDISPERSED = 4.0
_COUNT_FROM = 1.1
"""A number of calls is told to differ from a tenth more or less on."""
_NOTHING = Measured("", None)


def _ratio_interval(a_ns: float, b_ns: float, off_ns: float) -> Interval:
    if a_ns <= 0 or b_ns <= 0:
        return None, None, None
    half = _Z95 * off_ns / math.sqrt(a_ns * b_ns)
    return b_ns / a_ns, b_ns / a_ns * math.exp(-half), b_ns / a_ns * math.exp(half)


def worth_comparing(pairs: Iterable[tuple[Measured | None, Measured | None]], scale: Scale) -> int:
    """How many of the pairs take a share of the step worth telling on either side."""
    return sum(any((scale.pct(m.ns) or 0.0) >= TOLD_FROM_PCT for m in pair if m) for pair in pairs)


def costliest_first(changes: Sequence[Change]) -> tuple[Change, ...]:
    """By the size of their share of the step; what has none comes last."""
    return tuple(sorted(changes, key=lambda c: (c.share_of_step_pct is None, -abs(c.share_of_step_pct or 0.0), c.name)))


def shown(where: Mapping[str, Any]) -> str:
    """`file:line` of a place, or nothing."""
    file, line = where.get("file"), where.get("line")
    return "" if not file else str(file) if line is None else f"{file}:{line}"
