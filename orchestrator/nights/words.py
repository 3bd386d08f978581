"""The words of the nights: what is run every night, and what has come of one. Frozen; they do nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from orchestrator.nights.judge import Judgement, Verdict

FLAGGED = frozenset({"suspect", "regressed", "improved"})
"""Nights of which everything is kept."""
NEW_LEVEL = "new level"
"""How the note of a night begins from which on a new level holds."""


def remembered(data: Any) -> tuple[Verdict | None, str]:
    """(verdict, note) as a night.json keeps them beside the report, for the day on which the database is lost."""
    known = data.get("remembered") if isinstance(data, Mapping) else None
    if not isinstance(known, Mapping) or known.get("verdict") not in get_args(Verdict):
        return None, ""
    return known["verdict"], str(known.get("note") or "")


@dataclass(frozen=True)
class Nightly:
    """What is run every night. All paths are absolute: nothing of the shell that it was made in is needed again.

    environment: what the program gets beside HOME and SHELL. budget_s: for its passes; end_after_s: when it is ended,
    come what may (None: never)."""

    name: str
    fields: tuple[str, ...]
    plan: str
    """A template's name, or a file."""
    command: tuple[str, ...]
    cwd: str
    output: str
    environment: Mapping[str, str]
    python: str
    sets: tuple[str, ...] = ()
    budget_s: float = 4 * 3600.0
    budget_given: bool = False
    """It was asked for, and outranks the plan's."""
    end_after_s: float | None = None
    most_raw_bytes: int = 20 * 10**9
    hook: str | None = None
    wait_s: float = 2 * 3600.0
    """How long it waits for another nightly, or another run that holds this machine."""
    later_min: int = 0


@dataclass(frozen=True)
class Cut:
    """An earlier night that was begun and never ended. by: `a reboot`, or `a kill`."""

    started_at: str
    by: str
    report: str | None = None

    def text(self) -> str:
        where = f"; what there is of it: {self.report}" if self.report else ""
        return f"the night of {self.started_at} was cut by {self.by}, and does not count{where}"


@dataclass(frozen=True)
class Thinned:
    """A report whose raw traces were deleted."""

    report: Path
    files: int
    bytes: int
    why: str


@dataclass(frozen=True)
class Told:
    """One night, as it is told: in night.md, in night.json (which the hook gets), and in one line.

    changes, against: what profrun compare says, and the earlier night that it is about."""

    name: str
    run_id: str
    report: str
    started_at: str
    duration_s: float
    judgement: Judgement
    pages: tuple[str, ...] = ()
    """Of the report, as far as the plan wants them."""
    metric: str | None = None
    value_s: float | None = None
    run_status: str = "ok"
    run_reason: str = ""
    exit_code: int = 0
    starts_anew: tuple[str, ...] = ()
    """Facts of the environment in which this night differs from those before it."""
    new_findings: tuple[str, ...] = ()
    gone_findings: tuple[str, ...] = ()
    against: str | None = None
    headline: str = ""
    changes: tuple[str, ...] = ()
    cut: Cut | None = None
    thinned: tuple[Thinned, ...] = ()
    notes: tuple[str, ...] = ()
