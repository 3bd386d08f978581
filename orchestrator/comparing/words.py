"""The words of a comparison: frozen dataclasses. A is the older run, the one that B is judged against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SCHEMA = "profrun/compare/1"

What = Literal["metric", "phase", "function", "kernel", "op", "syscall", "finding"]
Verdict = Literal["slower", "faster", "more", "less", "same", "unsure", "new", "gone", "renamed"]
"""slower, faster: of times and rates. more, less: of everything else (bytes, calls, the cost of a finding). same: any
change is smaller than is worth a word. unsure: the measurements don't tell."""
SURE: frozenset[str] = frozenset({"slower", "faster", "more", "less", "new", "gone", "renamed"})
"""The verdicts that something has changed."""
Per = Literal["run", "step"]
Judgement = Literal["passed", "failed", "unjudged"]


@dataclass(frozen=True)
class Side:
    """One of the two runs. facts: what it ran on and how, by name; None: unknown."""

    id: str
    name: str
    path: str
    started_at: str
    facts: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Unlike:
    """A fact in which the two runs differ, or that is unknown of one. refuse: they are not compared, unless that is
    asked for; mark: the comparison says so."""

    fact: str
    a: str | None
    b: str | None
    how: Literal["differs", "unknown"]
    severity: Literal["refuse", "mark"]
    note: str = ""
    """What that may do to the comparison."""


@dataclass(frozen=True)
class Change:
    """One thing on both sides. What tools have seen is per step, where there are steps (`per`), and scaled to the steps
    of the bare runs where a tool had stretched its own.

    ratio: b / a, with its 95 % interval (low, high); None: unknown, or there is none.
    share_of_step_pct: (b - a) as a share of `of`, signed, with its 95 % interval."""

    what: What
    name: str
    a: float | None
    b: float | None
    unit: str | None
    verdict: Verdict
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    most: float | None = None
    """The ratio is not above this, with 95 % confidence (one-sided: what a gate goes by)."""
    p_value: float | None = None
    """Of Mann-Whitney's U on the runs; None where there is no such test."""
    n_a: int | None = None
    n_b: int | None = None
    per: Per = "run"
    share_of_step_pct: float | None = None
    share_low_pct: float | None = None
    share_high_pct: float | None = None
    of: str = ""
    """What the share is of: A's step, or A's run."""
    where: Mapping[str, Any] = field(default_factory=dict)
    """file, line, kernel, op ... as in a finding."""
    now_called: str | None = None
    """Of a renamed kernel: its name in B."""
    evidence: str = ""
    """What it rests on, in words: how many runs, steps, samples; and why it is unsure."""
    sources: tuple[str, ...] = ()
    """The captures: those of A, then those of B, as `A:p07-py-spy`."""


@dataclass(frozen=True)
class Blame:
    """What made the step slower (or faster): something that grew (or shrank) beyond what chance explains."""

    change: Change
    sentence: str
    chain: tuple[str, ...] = ()
    """Of a function: who calls it, outermost first, itself last, each as `function (file:line)`."""


@dataclass(frozen=True)
class Gated:
    """One figure at the gate."""

    metric: str
    result: Judgement
    reason: str
    change: Change | None = None


@dataclass(frozen=True)
class Gate:
    """Whether B may pass. limit_pct: how much worse a figure may be."""

    limit_pct: float
    result: Judgement
    judged: tuple[Gated, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """Two runs beside each other. step: the figure the verdict is of (the step time, of runs that differ much that of
    their quickest steps; else the wall time); None: neither is known, or the runs were refused.

    changes: the costliest first. attribution: why the step changed, likewise; empty where it did not."""

    a: Side
    b: Side
    headline: str
    unlike: tuple[Unlike, ...] = ()
    step: Change | None = None
    changes: tuple[Change, ...] = ()
    attribution: tuple[Blame, ...] = ()
    gate: Gate | None = None
    anyway: bool = False
    """They are unlike, and were compared all the same."""
    notes: tuple[str, ...] = ()

    @property
    def refusals(self) -> tuple[Unlike, ...]:
        return tuple(one for one in self.unlike if one.severity == "refuse")

    @property
    def refused(self) -> bool:
        return bool(self.refusals) and not self.anyway

    def told(self, what: What) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.what == what)
