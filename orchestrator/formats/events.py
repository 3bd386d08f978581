"""What readers of recorded events share: arrays with missing values, and the statistics of a summary table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.tables import Table

Ints: TypeAlias = NDArray[np.int64]

MISSING = -(2**63)
"""Stands for an unknown value inside arrays of integers."""


def names(numbers: Ints, name: Callable[[int], str]) -> list[str]:
    """The text of every number; each distinct number is asked for once."""
    shown = {int(n): name(int(n)) for n in np.unique(numbers)}
    return [shown[n] for n in numbers.tolist()]


def triples(x: Ints, y: Ints, z: Ints) -> list[str | None]:
    """x,y,z as text; few shapes stand behind many kernels."""
    found = list(zip(x.tolist(), y.tolist(), z.tolist(), strict=True))
    shown = {t: None if MISSING in t else "{},{},{}".format(*t) for t in set(found)}
    return [shown[t] for t in found]


def nullable(values: Ints) -> NDArray[Any]:
    """The array itself, or with None where it is MISSING."""
    gone = values == MISSING
    if not gone.any():
        return values
    shown = values.astype(object)
    shown[gone] = None
    return shown


def summary(table: str, keys: Ints, durations: Ints, name: Callable[[int], str], sizes: Ints | None = None) -> Table:
    """One row a key, the longest total first, with the figures of `nsys stats`. Median: mean of the middle two;
    deviation: n - 1, and 0 for one event."""
    if not len(keys):
        return Table(table, {})
    order = np.lexsort((durations, keys))
    key, values = keys[order], durations[order]
    first = np.flatnonzero(np.concatenate(([True], key[1:] != key[:-1])))
    count = np.diff(np.append(first, len(key)))
    total = np.add.reduceat(values, first)
    mean = total / count
    squares = np.add.reduceat((values - np.repeat(mean, count)) ** 2, first)
    columns: dict[str, Any] = {
        "count": count,
        "total_ns": total,
        "mean_ns": mean,
        "median_ns": (values[first + (count - 1) // 2] + values[first + count // 2]) / 2,
        "min_ns": values[first],
        "max_ns": values[first + count - 1],
        "stddev_ns": np.sqrt(squares / np.maximum(count - 1, 1)),
    }
    if sizes is not None and MISSING not in sizes:
        columns["bytes"] = np.add.reduceat(sizes[order], first)
    longest = np.argsort(-total, kind="stable")
    shown = [name(int(k)) for k in key[first][longest]]
    return Table(table, {"name": shown, **{k: v[longest] for k, v in columns.items()}})
