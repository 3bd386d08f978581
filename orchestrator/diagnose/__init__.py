"""From tables to findings: every rule is a pure function of the report. One that lacks its input abstains, and says
what would feed it."""

from __future__ import annotations

import re
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from orchestrator import registry
from orchestrator.diagnose import headline
from orchestrator.model import Abstention, Finding
from orchestrator.report import Report

_ORDER = {"critical": 0, "major": 1, "minor": 2, "info": 3}
ALIKE = 0.8
"""Findings of one cause that cost this part of the costliest are about the same place."""
FAILED = "nothing: it failed, which is a bug in it (traceback in run.log)"
_SURE = {"high": 0, "medium": 1, "low": 2}


def diagnosed(report: Report, log: Callable[[str], None] = lambda text: None) -> Report:
    """The report with its findings, those who have abstained, and the verdict in one sentence. A fault in a rule, of
    another package perhaps, costs what that rule would have found."""
    told: list[Finding | Abstention] = []
    for rule in registry.rules():
        try:
            told += rule(report)
        except Exception:  # whatever it is, the other rules and the tables stand without it
            log(f"{rule.__module__}: {traceback.format_exc()}")
            told.append(Abstention(rule.__name__, FAILED, ""))
    found = merged(one for one in told if isinstance(one, Finding))
    silent = dict.fromkeys(one for one in told if isinstance(one, Abstention))
    report = replace(report, findings=found, abstentions=tuple(silent))
    return replace(report, headline=headline.of(report))


def merged(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The most severe and costly first; of those with one cause the first, which takes over what the others rest on.
    What a rule has to say of many GPUs is said of those that it costs most."""
    kept: dict[object, Finding] = {}
    said: Counter[str] = Counter()
    likewise: dict[str, int] = defaultdict(int)
    for finding in sorted(findings, key=_rank):
        key = finding.cause or (finding.rule, finding.title)
        first = kept.get(key)
        if first is None and _ONE_OF.search(finding.title):
            said[finding.rule] += 1
            if said[finding.rule] > TOLD_ALIKE:
                likewise[finding.rule] += 1
                continue
        kept[key] = finding if first is None else _joined(first, finding)
    return tuple(_with_others(kept.values(), likewise))


_ONE_OF = re.compile(r" \((?:rank|GPU) \d+\)$")
"""How a title ends that is of one of several GPUs (gpu_seen.Seen.label)."""
TOLD_ALIKE = 4
"""So many findings of one rule, each of another GPU, are told one by one."""
MOST_EVIDENCE = 16


def _with_others(findings: Iterable[Finding], likewise: Mapping[str, int]) -> Iterator[Finding]:
    """The costliest of each rule says how many more there are."""
    left = dict(likewise)
    for finding in findings:
        more = left.pop(finding.rule, 0) if _ONE_OF.search(finding.title) else 0
        yield replace(finding, title=f"{finding.title[:-1]}, and less in {more} more)") if more else finding


def _rank(finding: Finding) -> tuple[float | str, ...]:
    pct, seconds = finding.cost_pct or 0.0, finding.cost_s or 0.0
    return (_ORDER[finding.severity], -pct, -seconds, _SURE[finding.confidence], finding.rule, finding.title)


def _alike(first: Finding, other: Finding) -> bool:
    """Whether both cost about the same: then what one knows of the place holds for the other."""
    return bool(other.cost_pct and first.cost_pct and other.cost_pct >= ALIKE * first.cost_pct)


def _beside(first: Finding, other: Finding) -> dict[str, object]:
    """What the other knows of the place; of another function not its lines."""
    place = ("function", "file", "line")
    return {key: value for key, value in other.where.items() if key not in place or "function" not in first.where}


def _joined(first: Finding, other: Finding) -> Finding:
    function = None if "function" in first.where else other.where.get("function")
    advice = first.advice if other.advice in first.advice else f"{first.advice} {other.advice}"
    return replace(
        first,
        title=f"{first.title}: {function}" if function and _alike(first, other) else first.title,
        advice=advice,
        where={**_beside(first, other), **first.where},
        evidence=tuple(dict.fromkeys((*first.evidence, *other.evidence)))[: max(MOST_EVIDENCE, len(first.evidence))],
        sources=tuple(dict.fromkeys((*first.sources, *other.sources))),
    )
