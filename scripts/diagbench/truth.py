"""What is wrong with a planted program, read from the `truth:` line of its docstring, and whether a report says so.

    truth: CATEGORY [or CATEGORY...] [at PLACE] [(syscall A or B)] [(op A or B)] [; no other finding above minor]
    truth: healthy

PLACE is the function, as `name` or `Class.name`. A healthy program has no finding above minor."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

CATEGORIES = {
    *("input_pipeline", "file_io", "network_io", "python_cpu", "native_cpu", "gil_contention", "lock_contention"),
    *(
        "process_spawn",
        "memory_management",
        "idle_wait",
        "cpu_oversubscription",
        "host_sync",
        "launch_bound",
        "transfers",
    ),
    *("gpu_compute", "gpu_memory_bound", "low_occupancy", "small_grid", "communication", "warmup", "environment"),
    "data_quality",
}
LOUD = ("critical", "major")
"""The severities above minor."""

_ALONE = "no other finding above minor"
_CLAIM = re.compile(
    r"(?P<categories>\w+(?: or \w+)*)(?: at (?P<place>[\w.]+))?(?P<details>(?: \((?:syscall|op) [^()]+\))*)"
)
_DETAIL = re.compile(r"\((syscall|op) ([^()]+)\)")
_INNER = re.compile(r"\.<locals>\.<(?:genexpr|listcomp|setcomp|dictcomp|lambda)>")
"""A comprehension is part of the function that it stands in."""


class BadTruth(ValueError):
    """A docstring without a truth that can be read: one sentence says what is wrong with it."""


@dataclass(frozen=True)
class Truth:
    """One of the categories, at the place, by one of the words of each detail (`syscall`, `op`)."""

    text: str
    categories: tuple[str, ...] = ()
    place: str | None = None
    details: tuple[tuple[str, tuple[str, ...]], ...] = ()
    alone: bool = False

    @property
    def healthy(self) -> bool:
        return not self.categories

    def renamed(self, names: Mapping[str, str]) -> Truth:
        """The same of a program whose own names are others."""
        place = self.place and ".".join(names.get(part, part) for part in self.place.split("."))
        return replace(self, place=place)


HEALTHY = Truth("healthy")


@dataclass(frozen=True)
class Score:
    """What a report says beside the truth. `rank`: that of the first finding that says it; None: none does."""

    right: bool
    rank: int | None
    top: Mapping[str, Any]
    why: str = ""


def truth_of(source: str) -> Truth:
    """From a program's text. Raises BadTruth."""
    lines = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    told = [line.removeprefix("truth:").strip() for line in lines if line.startswith("truth:")]
    if len(told) != 1:
        raise BadTruth(f"the docstring has {len(told) or 'no'} `truth:` line{'s' if told else ''}, it needs one")
    return parsed(told[0])


def parsed(text: str) -> Truth:
    """From what stands behind `truth:`. Raises BadTruth."""
    claim, *more = (part.strip() for part in text.split(";"))
    if more not in ([], [_ALONE]):
        raise BadTruth(f"`{'; '.join(more)}`: behind `;` only `{_ALONE}` is understood")
    if claim == "healthy":
        return HEALTHY
    found = _CLAIM.fullmatch(claim)
    if not found:
        raise BadTruth(f"`{claim}` is not `CATEGORY [at PLACE] [(syscall NAME)] [(op NAME)]`, nor `healthy`")
    categories = tuple(found["categories"].split(" or "))
    if unknown := sorted({*categories} - CATEGORIES):
        raise BadTruth(f"`{unknown[0]}` is not a category: {', '.join(sorted(CATEGORIES))}")
    details = tuple((kind, tuple(words.split(" or "))) for kind, words in _DETAIL.findall(found["details"]))
    return Truth(text, categories, found["place"], details, bool(more))


def same_place(function: str | None, place: str) -> bool:
    """Whether a finding's function is the truth's. Before Python 3.11 samplers know no class of a method."""
    told = _INNER.sub("", function or "")
    return told == place or told.endswith("." + place) or told == place.rpartition(".")[2]


def differing(truth: Truth, finding: Mapping[str, Any]) -> str:
    """In what a finding differs from the truth; empty: it says the truth."""
    where = finding.get("where") or {}
    if finding.get("category") not in truth.categories:
        return f"{finding.get('category')} is not {' or '.join(truth.categories)}"
    if truth.place and not same_place(where.get("function"), truth.place):
        return f"at {where.get('function')}, not at {truth.place}"
    for kind, words in truth.details:
        if not {*re.split(r"[^\w:.]+", where.get(kind) or "")} & {*words}:
            return f"{kind} {where.get(kind)}, not {' or '.join(words)}"
    return ""


def scored(truth: Truth, findings: Sequence[Mapping[str, Any]]) -> Score:
    """The truth has to be the first finding, and worth telling; a healthy program has none above minor."""
    top = findings[0] if findings else {}
    if truth.healthy:
        loud = _loud(findings)
        return Score(not loud, None, *((loud[0], _loudly(loud[0])) if loud else (top, "")))
    rank = next((number for number, one in enumerate(findings, 1) if not differing(truth, one)), None)
    why = differing(truth, top) if top else "no finding"
    if not why and truth.alone and (others := _loud(findings[1:])):
        why = f"{_loudly(others[0])} beside it"
    if not why and not truth.alone and top.get("severity") == "info":
        why = "only told as info"
    return Score(not why, rank, top, why)


def _loud(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in findings if one.get("severity") in LOUD]


def _loudly(finding: Mapping[str, Any]) -> str:
    return f"{finding.get('rule')} is {finding.get('severity')}"
