"""One night on one page: night.md for people, and the same as data for the hook. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from orchestrator.nights.judge import Judgement, Verdict
from orchestrator.nights.words import Told
from orchestrator.units import show_bytes, show_duration

SCHEMA = "profrun/night/1"
_FIGURES = {
    "step_s": "a step takes",
    "quick_step_s": "the quickest steps take",
    "wall_s": "a run takes",
}


def verdict(told: Told) -> str:
    """One word: what the night is. One that helps to learn what is usual is accepted for that, and not judged."""
    return "learning" if _is_learnt_from(told.judgement) else told.judgement.verdict


def sentence(told: Told) -> str:
    """The verdict in one sentence, with the figure, what is usual, and the interval of the change."""
    judged, level = told.judgement, told.judgement.level
    if told.value_s is None or told.metric is None:
        return f"{verdict(told)}: {_because(judged)}"
    took = f"{_FIGURES.get(told.metric, f'{told.metric} takes')} {show_duration(told.value_s)}"
    if level is None or judged.off is None or judged.interval is None:
        return f"{verdict(told)}: {took}; {_because(judged)}"
    low, high = judged.interval
    usual = f"the usual {show_duration(level.center)} (95 %: {low:+.1%} to {high:+.1%}; {level.nights} nights)"
    return f"{judged.verdict}: {took}, {judged.off:+.1%} against {usual}; {_because(judged)}"


def _because(judged: Judgement) -> str:
    learning = _is_learnt_from(judged)
    return judged.reason.removeprefix("learning: ") + (" that it takes to judge" if learning else "")


def _is_learnt_from(judged: Judgement) -> bool:
    return judged.level is None and judged.verdict == "accepted"


def remembered(told: Told) -> Verdict:
    """The verdict for the nights to come. What has become the new level counts as accepted."""
    return "accepted" if told.judgement.adopted else told.judgement.verdict


def remark(told: Told) -> str:
    """What stands beside the verdict in a list of nights, which shows their usual steps."""
    quick = told.metric == "quick_step_s" and told.judgement.level is not None
    return told.judgement.reason + (", by its quickest steps" if quick else "")


def page(told: Told) -> str:
    return "\n".join(_lines(told)).rstrip() + "\n"


def _lines(told: Told) -> Iterator[str]:
    yield f"# {told.name}, night of {told.started_at}"
    yield ""
    yield f"**{sentence(told)}**"
    yield ""
    if told.run_status != "ok":
        yield f"- The run: {told.run_status}" + (f": {told.run_reason}" if told.run_reason else "")
    yield from (f"- It starts anew, as this has changed: {fact}" for fact in told.starts_anew)
    if told.cut:
        yield f"- Before it: {told.cut.text()}"
    pages = ", ".join(f"[{name}]({name})" for name in told.pages)
    yield f"- It took {show_duration(told.duration_s)}. The report: {pages or told.report}"
    if told.metric == "quick_step_s":
        yield "- It is judged by its quickest steps: the usual one differs much from night to night"
    yield from (f"- {note}" for note in told.notes)
    yield from _section("What has changed", [told.headline, *told.changes] if told.against else [])
    yield from _section("Findings that are new", told.new_findings)
    yield from _section("Findings that are gone", told.gone_findings)
    yield from _section("Raw files that were deleted", [
        f"{one.report.name}: {one.files} files, {show_bytes(one.bytes)} ({one.why})" for one in told.thinned
    ])  # fmt: skip
    yield from _section("Next", list(_next(told)))


def _section(title: str, lines: list[str] | tuple[str, ...]) -> Iterator[str]:
    if lines:
        yield from ("", f"## {title}", "", *(f"- {line}" for line in lines if line))


def _next(told: Told) -> Iterator[str]:
    if told.against and told.judgement.verdict != "accepted":
        yield f"`profrun compare {shlex.quote(told.against)} {shlex.quote(told.report)}`"
    if told.judgement.verdict in ("regressed", "improved"):
        yield f"if that is how it should be from now on: `profrun nightly accept {told.name}`"


def data(told: Told) -> dict[str, Any]:
    """What the hook gets on its stdin, and night.json holds. Unknown is null."""
    judged = told.judgement
    plain = {key: value for key, value in asdict(told).items() if key not in ("judgement", "thinned")}
    return {
        "schema": SCHEMA,
        **plain,
        "verdict": verdict(told),
        "sentence": sentence(told),
        "reason": judged.reason,
        "remembered": {"verdict": remembered(told), "note": remark(told)},
        "change": judged.off,
        "change_ci95": judged.interval,
        "usual_s": judged.level.center if judged.level else None,
        "usual_nights": judged.level.nights if judged.level else None,
        "thinned": [{**asdict(one), "report": str(one.report)} for one in told.thinned],
    }


def as_json(told: Told) -> str:
    return json.dumps(data(told), indent=1, default=str)
