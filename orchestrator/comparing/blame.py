"""Why the step has changed: the functions, kernels, operators, calls and phases that grew (or shrank) with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

from orchestrator.comparing.words import SURE, Blame, Change, Comparison, What
from orchestrator.formats import kernel_names

PART_OF_IT = 0.1
"""What explains a smaller part of the step's change than this is not blamed for it."""
TOLD = 5
_FIRST: dict[What, int] = {"function": 0, "kernel": 1, "op": 2, "syscall": 3, "phase": 4}
"""Which of several that say the same is told first: the one that a reader can go to."""
_NAMES: dict[str, str] = {
    "function": "{name}",
    "kernel": "kernel {name}",
    "op": "operator {name}",
    "syscall": "system call {name}",
    "phase": "{name}",
}
Chains = Callable[[Change], tuple[str, ...]]


def attribution(step: Change | None, changes: Iterable[Change], chains: Chains) -> tuple[Blame, ...]:
    """What grew when the step has grown for sure (or shrank), the most first within its kind. Nothing is blamed for a
    step that can't be told to differ: in twenty functions one grows by chance."""
    if step is None or step.verdict not in ("slower", "faster") or step.share_of_step_pct is None:
        return ()
    grown = [one for one in changes if one.what in _FIRST and _explains(one, step.share_of_step_pct)]
    ranked = sorted(grown, key=lambda one: (_FIRST[one.what], -abs(one.share_of_step_pct or 0.0)))
    kinds: dict[What, int] = {}
    told = []
    for one in ranked:
        kinds[one.what] = kinds.get(one.what, 0) + 1
        if kinds[one.what] <= TOLD:
            told.append(Blame(one, sentence(one), chains(one) if one.what == "function" else ()))
    return tuple(told)


def _explains(change: Change, step_pct: float) -> bool:
    share = change.share_of_step_pct
    if share is None or change.verdict not in SURE - {"more", "less", "renamed"} or share * step_pct <= 0:
        return False
    return abs(share) >= PART_OF_IT * abs(step_pct)


def sentence(change: Change) -> str:
    """`tokenize (data.py:12) grew by 5.7 % of A's step (4.1 to 7.3 %)`."""
    share = change.share_of_step_pct or 0.0
    verb = {"new": "is new:", "gone": "is gone:"}.get(change.verdict, "grew by" if share > 0 else "shrank by")
    return f"{named(change)} {verb} {abs(share):.1f} % of {change.of}{_interval(change)}"


def named(change: Change) -> str:
    """The name of what changed, with its place."""
    file, line = change.where.get("file"), change.where.get("line")
    said = kernel_names.function(change.name) if change.what == "kernel" else change.name
    name = _NAMES.get(change.what, "{name}").format(name=short(said))
    place = PurePosixPath(str(file)).name if file else ""
    return f"{name} ({place}{f':{line}' if line else ''})" if place else name


def short(name: str, most: int = 80) -> str:
    """Names of kernels fill pages."""
    return name if len(name) <= most else f"{name[: most - 3]}..."


def _interval(change: Change) -> str:
    if change.share_low_pct is None or change.share_high_pct is None:
        return ""
    ends = sorted((change.share_low_pct, change.share_high_pct))
    if (change.share_of_step_pct or 0.0) < 0:
        ends = [-ends[1], -ends[0]]
    return f" (95 %: {ends[0]:.1f} to {ends[1]:.1f} %)"


# ---------------------------------------------------------------- the first sentence


_OF_STEP = {"quick_step_s": "in its quickest steps"}


def headline(comparison: Comparison) -> str:
    """What has become of the step, and why."""
    step = comparison.step
    if comparison.refused:
        names = ", ".join(one.fact for one in comparison.refusals)
        return f"These runs can't be compared: {names} {'differ' if len(comparison.refusals) > 1 else 'differs'}"
    if step is None or step.ratio is None:
        return "Nothing was timed on both sides: there is no bare run to compare"
    what = _OF_STEP.get(step.name, "per step") if step.per == "step" else "in wall time"
    change = f"{abs(100 * (step.ratio - 1)):.1f} %"
    within = "" if step.low is None or step.high is None else f" (95 %: {_between(step.low, step.high)})"
    if step.verdict in ("slower", "faster"):
        return f"B is {change} {step.verdict} {what}{_toward(step)}: {_why(comparison)}"
    if step.verdict == "same":
        return f"No change: B takes as long as A {what}{within}"
    way = "slower" if step.ratio > 1 else "faster"
    was = f"was {change} {way}" if abs(step.ratio - 1) >= 0.0005 else "took as long as A"
    return f"No change can be told: B {was} {what}{within}; {step.evidence}"


def _between(low: float, high: float) -> str:
    return f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %"


def _toward(step: Change) -> str:
    """The interval of a sure change, in the direction of its sentence."""
    if step.low is None or step.high is None:
        return ""
    sign = 1 if step.verdict == "slower" else -1
    ends = sorted(sign * 100 * (end - 1) for end in (step.low, step.high))
    return f" (95 %: {ends[0]:.1f} to {ends[1]:.1f} %)"


def _why(comparison: Comparison) -> str:
    told = comparison.attribution
    first = next((one for one in told if one.change.what != "phase"), told[0] if told else None)
    if first is None:
        return _unexplained(comparison)
    also = [one for one in told if one.change.what == first.change.what and one is not first]
    more = f", and {len(also)} more" if also else ""
    share = first.change.share_of_step_pct or 0.0
    verb = {"new": "is new, at", "gone": "is gone, with"}.get(
        first.change.verdict, "grew by" if share > 0 else "shrank by"
    )
    return f"{named(first.change)} {verb} {abs(share):.1f} % of {first.change.of}{more}"


def _unexplained(comparison: Comparison) -> str:
    """Honest about what is not known: the likeliest, or what would have to be measured."""
    step = comparison.step
    seen = [one for one in comparison.changes if one.what in ("function", "kernel", "op")]
    same_way = [one for one in seen if step and (one.share_of_step_pct or 0.0) * (step.share_of_step_pct or 0.0) > 0]
    if not seen:
        what = "shrank" if step and step.verdict == "faster" else "grew"
        return f"what {what} was not measured (py-spy, nsys or torch in both plans would tell)"
    if not same_way:
        return "which function or kernel it is can't be told from what was seen"
    likely = max(same_way, key=lambda one: abs(one.share_of_step_pct or 0.0))
    return f"perhaps {named(likely)}, but that can't be told from chance ({likely.evidence})"
