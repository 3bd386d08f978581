"""The doctor's words: what was found of one tool, permission or place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "broken", "blocked", "unknown"]
Theme = Literal["tools", "GPU", "permissions", "machine", "places", "cron", "environment", "ranks"]

LIMIT_S = 10.0
"""So long a tool or a driver may take to answer a question."""
NOT_FOUND = "not found on PATH or in the usual places"


@dataclass(frozen=True)
class Diagnosis:
    """One tool, permission or place. `said`: what was tried and what came of it; `fix`: the one next step, if there is
    one, which an `ok` may have, too."""

    subject: str
    state: State
    said: str
    fix: str | None = None
    version: str | None = None
    path: str | None = None
    theme: Theme = "tools"
