"""Whether two runs were the same: the first step whose loss, or whose parameters after it, differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.tables import Table

NO_STEPS = "no training step was seen, so there is nothing to compare"


@dataclass(frozen=True)
class Verdict:
    """equal: None when it can't be told. `reason` says what was compared, or the first difference."""

    equal: bool | None
    reason: str
    step: int | None = None


def compare(tables: Sequence[Table], stopped: bool = False) -> Verdict:
    """Compares the `steps` of the runs, one table a process, each with its like in the other run: the same rank, or
    the same place in the order in which they started. Values must be equal to the last bit.

    stopped: profrun ended both runs at the plan's window; how many steps they still made after it is chance."""
    seen: Counter[Any] = Counter()
    alike: dict[Any, list[Table]] = {}
    for table in tables:
        rank, run = (table.columns.get(name, [None])[0] for name in ("rank", "capture"))
        alike.setdefault((rank, seen[rank, run]), []).append(table)
        seen[rank, run] += 1
    verdicts = [_of_process(rank, runs, stopped) for (rank, _), runs in alike.items()]
    unequal = [v for v in verdicts if v.equal is False]
    if unequal:
        return min(unequal, key=lambda v: v.step if v.step is not None else 0)
    return next((v for v in verdicts if v.equal is None), verdicts[0] if verdicts else Verdict(None, NO_STEPS))


def _of_process(rank: Any, runs: Sequence[Table], stopped: bool) -> Verdict:
    who = f"rank {rank}: " if rank is not None else ""
    if len(runs) < 2:
        return Verdict(None, f"{who}steps were seen in one run only")
    one, other = runs[0], runs[1]
    for step, (a, b) in enumerate(zip(_rows(one), _rows(other), strict=False)):
        different = _difference(a, b)
        if different:
            return Verdict(False, f"{who}the runs differ from step {step} on: {different}", step)
    least = min(len(one), len(other))
    if len(one) != len(other) and not stopped:
        return Verdict(False, f"{who}one run made {len(one)} steps, the other {len(other)}", least)
    if not any(digest is not None for _, digest in _rows(one)):
        return Verdict(None, f"{who}{NO_STEPS}")
    return Verdict(True, f"{who}{least} steps with equal losses and parameters in both runs")


def _rows(table: Table) -> list[tuple[float | None, str | None]]:
    return list(zip(table.columns["loss"], table.columns["digest"], strict=True))


def _difference(a: tuple[float | None, str | None], b: tuple[float | None, str | None]) -> str | None:
    """What differs between two steps, the loss first: it comes before the parameters."""
    if repr(a[0]) != repr(b[0]):  # by their texts: two NaN are the same
        return f"loss {a[0]} and {b[0]}"
    return f"parameters after it ({a[1]} and {b[1]}), at an equal loss" if a[1] != b[1] else None
