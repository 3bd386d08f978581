"""A series of runs as it is told: apart by what they can be compared in, with the dates at which they changed."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.historic import changes, facts
from orchestrator.historic.night import Night
from orchestrator.historic.store import Row
from orchestrator.model import Metric

COUNT = frozenset({"ok", "incomplete", "not_repeatable", "not_judged"})
"""Outcomes of runs whose times are those of the whole program on the machine as the plan wants it."""


@dataclass(frozen=True)
class Change:
    """A shift with its dates: `date` is that of the first night at the new level, `last_before` of the one before.

    beside: (fact, before, after) of what else was new that night."""

    date: str
    last_before: str
    run_id: str
    shift: changes.Shift
    beside: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Series:
    """The runs of one fingerprint, the oldest first. rows: those with a value; left_out: how many have none that
    counts, by why. unlike: (fact, before, here) of what differs from the series that begins before it. beside: that one
    was not over when this one began."""

    fingerprint: str
    environment: Mapping[str, Any]
    rows: tuple[Row, ...]
    values: tuple[Metric, ...]
    left_out: Mapping[str, int]
    changes: tuple[Change, ...]
    unlike: tuple[tuple[str, str, str], ...]
    beside: bool

    @property
    def unknown(self) -> list[str]:
        return facts.unknown(self.environment)


@dataclass(frozen=True)
class Trend:
    """The runs of one name by one metric. total: how many runs of that name there are; shown: the newest of them."""

    name: str
    metric: str
    unit: str | None
    total: int
    shown: int
    series: tuple[Series, ...]


def trend(name: str, metric: str, total: int, rows: Sequence[Row]) -> Trend:
    """rows: the oldest first."""
    apart: dict[str, list[Row]] = {}
    for row in rows:
        apart.setdefault(row.night.fingerprint, []).append(row)
    series: list[Series] = []
    before: Sequence[Row] = ()
    for own in apart.values():
        series.append(_series(metric, own, before))
        before = own
    units = [value.unit for one in series for value in one.values if value.unit]
    return Trend(name, metric, units[-1] if units else None, total, len(rows), tuple(series))


def _series(metric: str, rows: Sequence[Row], before: Sequence[Row]) -> Series:
    why = {row.night.run_id: _why_not(row.night, metric) for row in rows}
    counted = [row for row in rows if why[row.night.run_id] is None]
    values = [row.night.metrics[metric] for row in counted]
    found = changes.shifts([value.value or 0.0 for value in values])
    first = rows[0].night
    return Series(
        fingerprint=first.fingerprint,
        environment=first.environment,
        rows=tuple(counted),
        values=tuple(values),
        left_out=Counter(reason for reason in why.values() if reason),
        changes=tuple(_change(counted, shift) for shift in found),
        unlike=tuple(facts.differences(before[0].night.environment, first.environment)) if before else (),
        beside=bool(before) and before[-1].night.started_at > first.started_at,
    )


def _why_not(night: Night, metric: str) -> str | None:
    if night.status not in COUNT:
        return night.status.replace("_", " ")
    value = night.metrics[metric].value if metric in night.metrics else None
    return f"no {metric}" if value is None else None


def _change(rows: Sequence[Row], shift: changes.Shift) -> Change:
    last, first = rows[shift.at - 1], rows[shift.at]
    beside = facts.differences(last.context, first.context)
    return Change(first.night.started_at, last.night.started_at, first.night.run_id, shift, tuple(beside))


def share_names(rows: Sequence[Row]) -> list[str]:
    """The categories, that with the largest usual share first."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name, pct in row.night.shares.items():
            found.setdefault(name, []).append(pct)
    return sorted(found, key=lambda name: (-statistics.median(found[name]), name))


def as_data(told: Trend) -> dict[str, Any]:
    """The same, JSON-able."""
    return {
        "name": told.name,
        "metric": told.metric,
        "unit": told.unit,
        "runs": told.total,
        "shown": told.shown,
        "environments": [_series_data(one) for one in told.series],
    }


def _series_data(one: Series) -> dict[str, Any]:
    return {
        "fingerprint": one.fingerprint,
        "facts": dict(one.environment),
        "unknown": one.unknown,
        "unlike_the_one_before": [dict(zip(("fact", "before", "here"), d, strict=True)) for d in one.unlike],
        "not_counted": dict(one.left_out),
        "changes": [_change_data(change) for change in one.changes],
        "nights": [night_data(row.night, value) for row, value in zip(one.rows, one.values, strict=True)],
    }


def _change_data(change: Change) -> dict[str, Any]:
    return {
        "date": change.date,
        "last_before": change.last_before,
        "run_id": change.run_id,
        **{key: value for key, value in asdict(change.shift).items() if key != "at"},
        "also_new": [dict(zip(("fact", "before", "here"), d, strict=True)) for d in change.beside],
    }


def night_data(night: Night, value: Metric) -> dict[str, Any]:
    same = ("run_id", "started_at", "status", "exit_code", "verdict", "note", "path", "gone")
    measured = {"value": value.value, "ci95": value.ci95, "n": value.n}
    return {**{key: getattr(night, key) for key in same}, **measured, "shares": dict(night.shares)}
