"""Reads what Nsight Compute leaves: reports (.ncu-rep) of any version, and what `ncu --csv` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ParseError
from orchestrator.formats.ncu_csv import Page
from orchestrator.formats.ncu_launch import MOST_BYTES, Launch
from orchestrator.formats.ncu_profiles import profile
from orchestrator.formats.ncu_rep import Report
from orchestrator.tables import SCHEMAS, Table

SUFFIX = ".ncu-rep"
_MAGIC = b"NVR\0"


@dataclass(frozen=True)
class Content:
    """What a file holds: `kernel_profiles`, `kernel_metrics` and `kernel_rules`, each also when it has no rows.

    notes: what was lost, what is no part of ncu's data, and what ncu warned of. lost: the first of them."""

    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def read(path: Path) -> Content:
    """The tables of a report or CSV (also gzipped), told apart by what the file begins with, else by its suffix.

    Raises ParseError for a file without a launch, with the reason, and for a report without NVIDIA's package."""
    source: Page | Report = Report(path) if _is_report(path) else Page(path)
    profiles, metrics, rules = _Rows("kernel_profiles"), _Rows("kernel_metrics"), _Rows("kernel_rules")
    room_bytes = MOST_BYTES
    for launch in source.launches():
        room_bytes -= launch.weight_bytes
        if room_bytes < 0:
            source.losses.damage.append(
                f"{path.name} holds more than is kept: launch {launch.number} and those after it"
            )
            break
        row = profile(launch)
        profiles.extend([tuple(row[name] for name in profiles.columns)])
        metrics.extend(_metrics(launch))
        rules.extend(_rules(launch))
    losses = source.losses
    return Content(
        (profiles.table(losses.launches), metrics.table(losses.rows), rules.table()),
        (*losses.damage, *losses.notes),
        tuple(losses.damage),
    )


def _is_report(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC or path.suffix == SUFFIX
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error


class _Rows:
    """A table while rows are added to it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: dict[str, list[Any]] = {c.name: [] for c in SCHEMAS[name] if c.name != "capture"}

    def extend(self, rows: Iterable[tuple[Any, ...]]) -> None:
        stores = list(self.columns.values())
        for row in rows:
            for store, value in zip(stores, row, strict=True):
                store.append(value)

    def table(self, dropped: int = 0) -> Table:
        return Table(self.name, self.columns, dropped=dropped)


def _metrics(launch: Launch) -> Iterator[tuple[Any, ...]]:
    head = (launch.pid, launch.number, launch.kernel, launch.grid, launch.block)
    for name, (value, unit) in launch.metrics.items():
        yield (*head, name, value, unit)


def _rules(launch: Launch) -> Iterator[tuple[Any, ...]]:
    head = (launch.pid, launch.number, launch.kernel)
    for rule in launch.rules:
        yield (*head, rule.section, rule.rule, rule.kind, rule.message, rule.speedup_pct, rule.scope)
