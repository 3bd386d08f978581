"""Where a program stood that hung: its threads at two looks, those of Python and those that tell most first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import view

if TYPE_CHECKING:
    from orchestrator.report import Report

SHOWN = 40
"""More threads of Python than this are only in the table."""
_ABSENT = {
    "gone": "its process is gone",
    "not seen": "on another machine, or outside of what was looked at",
    "ended": "has ended meanwhile",
}
_MOVED = {True: "moved", False: "has not moved", None: "unknown: it may only spin"}


@dataclass(frozen=True)
class Stand:
    """One thread. frames: its stack from the root to the leaf."""

    who: str
    thread: str
    moved: str
    still: bool
    doing: str
    place: str
    frames: tuple[str, ...]


@dataclass(frozen=True)
class Stands:
    """The threads of one capture, and how many are left out."""

    capture: str
    told: str
    rows: tuple[Stand, ...]
    more: int


def stands(report: Report) -> list[Stands]:
    """Each capture that has looked twice."""
    frame = report.table("threads")
    if frame is None or frame.empty:
        return []
    found = []
    for capture, part in frame.groupby("capture", sort=False):
        columns = {str(name): view.values(part[name]) for name in part}
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        found.append(_stands(str(capture), rows))
    return found


def _stands(capture: str, rows: list[dict[str, Any]]) -> Stands:
    telling = [row for row in rows if row["stack"] or row["unread"] or row["pid"] is None]
    shown = telling[:SHOWN]
    apart_s = max((row["apart_ms"] or 0) / 1000 for row in rows)
    still = sum(row["moved"] is False for row in telling)
    told = f"Two looks, {view.duration(apart_s)} apart: {still} of {len(telling)} Python threads had not moved"
    return Stands(capture, told, tuple(map(_stand, shown)), len(telling) - len(shown))


def _stand(row: dict[str, Any]) -> Stand:
    rank = f"rank {row['rank']}" if row.get("rank") is not None else ""
    process = f"process {row['pid']}" if row["pid"] is not None else ""
    place = f"{row['function']} ({row['file']}:{row['line']})" if row["function"] else row["unread"] or ""
    absent = _ABSENT.get(row["state"])
    return Stand(
        who=", ".join(filter(None, (rank, process))),
        thread=row["thread"] or "",
        moved=absent or _MOVED[row["moved"]],
        still=row["moved"] is False or absent is not None,
        doing=" ".join(filter(None, (row["doing"], row["what"] if row["doing"] != "lock" else None))),
        place=place,
        frames=tuple((row["stack"] or "").split(";")) if row["stack"] else (),
    )
