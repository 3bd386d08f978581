"""Who can share a pass with whom: why not, in a user's words, and the passes that it takes instead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector

HELD_BY_ONE = {
    "cupti": ("traces the GPU through CUPTI", "CUPTI serves one tool at a time"),
    "ptrace": ("traces the process (ptrace)", "a process has one tracer at a time"),
    "torch.profiler": ("switches on torch.profiler", "a process has one at a time"),
    "counters": ("reads the GPU's hardware counters", "they serve one tool at a time"),
    "nvidia": ("starts the program under itself", "NVIDIA's tools do not work inside one another"),
    "preload": ("puts a library between the program and the system's (LD_PRELOAD)", "two of them can crash it"),
}
"""What a collector that claims it does, and why only one can; the most telling first."""


@dataclass(frozen=True)
class Split:
    """Collectors that were to share a pass and can't, and so have got several.

    at: the first of these passes' places in the plan's list; where: the file and line that had them together."""

    at: int
    members: tuple[Collector, ...]
    where: str = ""

    @property
    def passes(self) -> tuple[tuple[Collector, ...], ...]:
        return passes(self.members)

    def text(self) -> str:
        """One line for people."""
        parts = ", ".join("+".join(member.use for member in group) for group in self.passes)
        why = "; ".join(clashes(self.members)) or "one chooses its kernels from another's pass"
        place = f"{self.where}: " if self.where else ""
        return f"{place}split into {len(self.passes)} passes, {parts}: {why}"


# ---------------------------------------------------------------- why not


def clashes(members: Sequence[Collector]) -> tuple[str, ...]:
    """Why these can't share one pass, each reason once with all whom it concerns; empty when they can."""
    told = (f"{_named(sharers)} can't share a pass: {_reason(claim)}" for claim, sharers in _contested(members))
    return tuple(dict.fromkeys(told))


def ways_out(members: Sequence[Collector]) -> tuple[str, ...]:
    """What to write in a collector's options so that it can stay with the others."""
    return tuple(
        f"`{option}` in {member.use}"
        for claim, sharers in _contested(members)
        if len([one for one in sharers if one.does_without(claim) is None]) <= 1
        for member in sharers
        if (option := member.does_without(claim))
    )


_ALONE = "alone"


def _contested(members: Sequence[Collector]) -> Iterator[tuple[str, list[Collector]]]:
    """(claim, the collectors that have it), without those claims that a group contests which is named already."""
    told: list[set[int]] = []
    for member in members:
        if member.alone and len(members) > 1:
            yield _ALONE, [member]
    for claim in by_weight({claim for member in members for claim in member.held()}):
        places = {place for place, member in enumerate(members) if claim in member.held()}
        if len(places) > 1 and not any(places <= known for known in told):
            told.append(places)
            yield claim, [members[place] for place in sorted(places)]


def by_weight(claims: Iterable[str]) -> list[str]:
    """The most telling first; those that other packages have made up come last."""
    known = list(HELD_BY_ONE)
    return sorted(claims, key=lambda claim: (known.index(claim) if claim in known else len(known), claim))


def why_one(claim: str) -> str:
    """Why two can't hold it."""
    return HELD_BY_ONE.get(claim, ("", "one tool at a time can have it"))[1]


def _reason(claim: str) -> str:
    if claim == _ALONE:
        return "it measures the undisturbed run"
    does = HELD_BY_ONE.get(claim, (f"needs {claim}", ""))[0]
    return f"each {does}, and {why_one(claim)}"


def _named(members: Sequence[Collector]) -> str:
    labels = [member.label() for member in members]
    return f"{', '.join(labels[:-1])} and {labels[-1]}" if len(labels) > 1 else labels[0]


# ---------------------------------------------------------------- what instead


def passes(members: Sequence[Collector]) -> tuple[tuple[Collector, ...], ...]:
    """The same collectors in passes that they can share: each, in its order, in the first one that takes it, and not
    before the one from which it chooses its kernels."""
    groups: list[list[Collector]] = []
    for member in members:
        sources = [place for place, group in enumerate(groups) if any(one.use in member.needs() for one in group)]
        open_ = groups[max(sources) + 1 :] if sources else groups
        home = next((group for group in open_ if not clashes((*group, member))), None)
        if home is None:
            groups.append([member])
        else:
            home.append(member)
    return tuple(map(tuple, groups))


def as_yaml(members: Sequence[Collector]) -> str:
    """These passes as the lines of a plan's `collectors`, with the options that were given."""
    from orchestrator.planfile import source

    lines: list[str] = []
    for group in passes(members):
        written = [f"- {source.flow(_given(member))}" for member in group]
        lines += ["- together:", *(f"    {line}" for line in written)] if len(group) > 1 else written
    return "\n".join(lines)


def _given(member: Collector) -> dict[str, Any]:
    options: dict[str, Any] = member.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return {"use": member.use, **options}
