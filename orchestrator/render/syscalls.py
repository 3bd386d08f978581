"""The time in system calls by their class, as parts of a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.render import view
from orchestrator.render.where import Part, Place, Split

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

CALLS = 3
"""Told below each class."""
_CLASSES: Mapping[str, tuple[str, str]] = {
    "file": ("files by name", "file"),
    "desc": ("descriptors", "native"),
    "network": ("network", "network"),
    "process": ("processes", "child"),
    "memory": ("memory", "memory"),
    "futex": ("locks (futex)", "lock"),
    "other": ("other", "idle"),
}
TABLES = ("syscalls_by_class", "syscalls", "syscall_paths", "syscall_events", "os_calls_summary")


def splits(report: Report) -> list[Split]:
    """One for each capture and kind of time; none where no time is known."""
    frame = report.table("syscalls")
    if frame is None:
        return []
    known = frame[frame["total_ns"].fillna(0) > 0]
    return [_split(str(key[0]), key[1], part) for key, part in known.groupby(["capture", "time"], dropna=False)]


def _split(capture: str, time: Any, frame: pandas.DataFrame) -> Split:
    whole = int(frame["total_ns"].sum())
    sums = frame.assign(group=frame["class"].fillna("other")).groupby("group")["total_ns"].sum()
    ranked = sums.sort_values(ascending=False)
    parts = tuple(_part(str(name), int(ns), whole, frame) for name, ns in ranked.items())
    said = (
        "CPU time in the kernel"
        if str(time) == "system"
        else "from call to return, waiting included, all threads added"
    )
    return Split("Time in system calls by class", capture, whole, said, parts)


def _part(name: str, ns: int, whole: int, frame: pandas.DataFrame) -> Part:
    own = frame[frame["class"].fillna("other") == name].groupby("name")[["total_ns", "count", "errors"]].sum()
    ranked = own.sort_values("total_ns", ascending=False)
    told = ranked.head(CALLS).itertuples()
    places = tuple(_place(str(row.Index), int(row.total_ns), int(row.count), int(row.errors), whole) for row in told)
    words, kind = _CLASSES.get(name, (view.words(name), "unknown"))
    return Part(name, kind, words, ns, ns / whole, places, len(ranked) - len(places))


def _place(name: str, ns: int, count: int, errors: int, whole: int) -> Place:
    calls = f"{count:,} call{'' if count == 1 else 's'}" + (f", {errors:,} failed" if errors else "")
    return Place(name, None, calls, ns, ns / whole)
