"""The locating stage: tables of several tools are joined, by time and thread, into those that say where the time goes.

Each room of `locating` is pure: tables in, tables out."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence

from orchestrator.locating import gpu, host, ranks
from orchestrator.model import Capture, PassRecord
from orchestrator.tables import Piece, Table

Parts = Mapping[str, Sequence[Table]]
"""The parts of each canonical table, one for each capture that has filled it; `capture` is their first column."""

STAGES = (host.located, gpu.located, ranks.located)


def locate(
    parts: Parts, captures: Sequence[Capture], passes: Sequence[PassRecord], log: Callable[[str], None]
) -> dict[str, list[Table]]:
    """All tables, those of `locating` in their places. A fault in one room costs what that room makes."""
    known: dict[str, list[Table]] = {name: list(tables) for name, tables in parts.items()}
    for stage in STAGES:
        try:
            known.update(stage(known, captures, passes))
        except Exception:  # what the tools have found stands without it
            log(f"{stage.__module__}: {traceback.format_exc()}")
    return known


def across(
    parts: Mapping[str, Sequence[Piece]],
    captures: Sequence[Capture],
    passes: Sequence[PassRecord],
    log: Callable[[str], None],
) -> dict[str, list[Piece]]:
    """What is made of all captures together, once each has been looked at by itself: the ranks side by side."""
    known: dict[str, list[Piece]] = {name: list(pieces) for name, pieces in parts.items() if name not in ranks.TABLES}
    at_hand = {name: [one for one in pieces if isinstance(one, Table)] for name, pieces in parts.items()}
    try:
        known |= {name: list(made) for name, made in ranks.together(at_hand, captures, passes).items()}
    except Exception:
        log(f"{ranks.__name__}: {traceback.format_exc()}")
    return known
