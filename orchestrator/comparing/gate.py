"""The gate: whether B may pass, by how much worse a figure may be, and when that can't be told."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from orchestrator.comparing import likeness, weighing
from orchestrator.comparing.words import Change, Comparison, Gate, Gated, Judgement
from orchestrator.errors import UsageError

DEFAULT = "step_s"
"""The figure that is judged when none is named; of a program without steps it is `wall_s`, of runs that differ much
their quickest steps."""
_WORST: tuple[Judgement, ...] = ("failed", "unjudged", "passed")


@dataclass(frozen=True)
class Wanted:
    """A figure to be judged, and which way is worse; None: as its unit or name tells."""

    metric: str
    worse: Literal["higher", "lower"] | None = None

    @classmethod
    def of(cls, text: str) -> Wanted:
        """`step_s`, `accuracy=higher`: higher is better. Raises ValueError."""
        name, equals, better = text.partition("=")
        if equals and better not in ("higher", "lower"):
            raise ValueError(f"{text!r}: after = stands what is better, higher or lower")
        return cls(name, None if not equals else "lower" if better == "higher" else "higher")

    def worse_of(self, change: Change) -> Literal["higher", "lower"]:
        """Raises UsageError where nobody can tell: a gate that guesses lets the worse half of all changes pass."""
        found = self.worse or weighing.worse(change.name, change.unit)
        if found is None:
            what = f"--metric {self.metric}: is higher better, or lower?"
            told = f"its unit ({change.unit or 'none'}) does not tell"
            raise UsageError(what, told, f"--metric {self.metric}=higher, or {self.metric}=lower: which is better")
        return found


def gated(comparison: Comparison, limit_pct: float, wanted: Iterable[Wanted] = ()) -> Comparison:
    """The comparison with its gate. Raises UsageError for a figure that neither run has, or of which it is
    not known what is better."""
    named = tuple(wanted)
    lines: tuple[Gated, ...]
    if comparison.refused:
        names = ", ".join(one.fact for one in comparison.refusals)
        lines = (Gated((named[0].metric if named else DEFAULT), "unjudged", f"the runs were not compared: {names}"),)
    elif named:
        lines = tuple(_gated(_find(comparison, one), one, limit_pct) for one in named)
    elif lost := next((one for one in comparison.unlike if one.fact == likeness.STEADY and one.how == "differs"), None):
        said = (
            f"steady steps were timed in one run alone (A: {lost.a}, B: {lost.b}): name what to judge, --metric wall_s"
        )
        lines = (Gated(DEFAULT, "unjudged", said),)
    else:
        step = comparison.step
        line = _gated(step, Wanted(step.name if step else DEFAULT), limit_pct)
        lines = (_unless_usual(line, comparison, limit_pct),)
    result = min((line.result for line in lines), key=_WORST.index)
    return replace(comparison, gate=Gate(limit_pct, result, lines))


def _unless_usual(line: Gated, comparison: Comparison, limit_pct: float) -> Gated:
    """The quickest steps do not pass for all where the usual step is worse by more than the limit, and its interval
    leaves out that it is not: other load may have done that, and so may what has become slower in some steps only."""
    usual = next((one for one in comparison.told("metric") if one.name == DEFAULT), None)
    if line.result != "passed" or line.metric == DEFAULT or usual is None or usual.ratio is None or usual.low is None:
        return line
    if usual.low <= 1 or usual.ratio <= 1 + limit_pct / 100:
        return line
    said = (
        f"its quickest steps have passed ({line.reason}), but the usual step is {100 * (usual.ratio - 1):+.1f} %: some "
        "steps of the program are slower, or the machine was busier"
    )
    return replace(line, result="unjudged", reason=said)


def _find(comparison: Comparison, wanted: Wanted) -> Change:
    known = {change.name: change for change in comparison.told("metric")}
    if wanted.metric in known:
        return known[wanted.metric]
    near = difflib.get_close_matches(wanted.metric, known, 1)
    how = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"
    raise UsageError(f"--metric {wanted.metric}: neither run has such a figure", "", how)


def _gated(change: Change | None, wanted: Wanted, limit_pct: float) -> Gated:
    """failed: worse for sure, and by more than the limit. passed: with 95 % confidence it is not worse by more than
    that. Else it can't be told."""
    if change is None or change.ratio is None:
        return Gated(wanted.metric, "unjudged", "it is not known of both runs", change)
    is_higher_worse = wanted.worse_of(change) == "higher"
    limit = 1 + limit_pct / 100 if is_higher_worse else 1 - limit_pct / 100
    worse = change.ratio > limit if is_higher_worse else change.ratio < limit
    one_sided = is_higher_worse and change.most not in (None, change.high)
    bound = change.most if one_sided else change.high if is_higher_worse else change.low
    if change.n_a == change.n_b == 1:
        bound = None  # an interval of steps, if any: nobody knows how runs differ
    beyond = bound is None or (bound > limit if is_higher_worse else bound < limit)
    moved = change.verdict in ("slower", "faster", "more", "less")
    by = f"{100 * (change.ratio - 1):+.1f} %"
    at = f"the limit is {'+' if is_higher_worse else '-'}{limit_pct:g} %"
    if worse and moved:
        return Gated(wanted.metric, "failed", f"{by}, {at}", change)
    if not worse and not beyond:
        return Gated(wanted.metric, "passed", f"{by}, {at}", change)
    sure = " (95 %, one-sided)" if one_sided else ""
    reach = "how far off that may be is unknown" if bound is None else f"it may be {100 * (bound - 1):+.1f} %{sure}"
    return Gated(wanted.metric, "unjudged", f"{by}, but {reach}, {at}: {change.evidence}", change)
