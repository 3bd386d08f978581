"""The hand-over from one capture to a later pass: which kernels the earlier one has shown to be worth a closer look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import told
from orchestrator.errors import ParseError
from orchestrator.model import HARMLESS, Capture, PassRecord, Picks, Status

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector

Refusal = tuple[Status, str]


@dataclass(frozen=True)
class Past:
    """What has been captured so far, in this run and in the report that it adds to."""

    captures: Sequence[Capture]
    passes: Sequence[PassRecord]
    root: Path


def chosen(collector: Collector, past: Past) -> Picks | Refusal | None:
    """The kernels for it, from the latest capture that has data; why there are none; None where it needs none.

    Nothing is raised: what a capture can't tell costs only the passes that ask it."""
    refusals: list[Refusal] = []
    for source in collector.needs():
        answer = _from(source, collector, past)
        if isinstance(answer, Picks):
            return _instead(answer, refusals)
        refusals.append(answer)
    # the second choice need not be in the plan: then only the first has something to say
    return refusals[0] if refusals else None


def _instead(picks: Picks, refusals: Sequence[Refusal]) -> Picks:
    """With the reason why a better source was not asked."""
    return replace(picks, notes=(*picks.notes, *(f"not from the better source: {reason}" for _, reason in refusals)))


def _from(source: str, collector: Collector, past: Past) -> Picks | Refusal:
    captures = [capture for capture in past.captures if capture.collector == source]
    usable = next((capture for capture in reversed(captures) if capture.status in HARMLESS), None)
    if usable is None:
        return "skipped", f"its kernels come from {source}, {_why_none(source, captures)}"
    try:
        picks = collector.pick(usable, _steady_ns(usable, past))
    except ParseError as error:
        return "skipped", f"its kernels come from {usable.id}: {error}"
    except Exception as error:  # a collector from another package may raise anything; the others go on
        return "skipped", f"its kernels can't be chosen from {usable.id}: {type(error).__name__}: {error}"
    if not picks.kernels:
        return "empty", "; ".join((f"{usable.id} shows no kernel to look at", *picks.notes))
    return replace(picks, source=usable.id, late=usable.began_late)


def _why_none(source: str, captures: Sequence[Capture]) -> str:
    if not captures:
        return f"and there is no capture of it; `--into` adds to a report that has one, or add {source} before it"
    return f"and {captures[-1].id} is {captures[-1].status}: {captures[-1].reason}"


def _steady_ns(capture: Capture, past: Past) -> tuple[int, int] | None:
    """Begin and end of the steady steps of that pass, in ns since the epoch; None where none were seen.

    A window in steps has left the warm-up out already, as far as the plan could say."""
    record = next((record for record in past.passes if record.id == capture.pass_id), None)
    steps = [t for t in told.of_pass(record, past.root).tables if t.name == "steps"] if record else []
    if not steps:
        return None
    columns = steps[0].columns
    known = zip(columns["start_ns"], columns["duration_ns"], columns["warmup"], columns["profiled"], strict=True)
    spans = [
        (start, start + duration)
        for start, duration, warmup, profiled in known
        if duration is not None and (warmup is False or profiled)
    ]
    return (spans[0][0], spans[-1][1]) if spans else None
