"""What readers of recorded events share: arrays with missing values, and the statistics of a summary table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.tables import Coded, Masked, Table

Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.integer[Any]]

MISSING = -(2**63)
"""Stands for an unknown value inside arrays of integers."""
UNKNOWN = np.int8(-1)
"""The code of an unknown value in a Coded column."""

DENSE = 1 << 22
"""Numbers within so wide a range are counted in a table of all of them; others have to be sorted."""


def groups(numbers: Ints) -> tuple[Ints, Codes]:
    """The distinct numbers in ascending order, and for each number its place among them; in the narrowest type."""
    if not len(numbers):
        return numbers, np.empty(0, np.uint8)
    low, high = int(numbers.min()), int(numbers.max())
    if high - low >= DENSE:
        distinct, places = np.unique(numbers, return_inverse=True)
        return distinct, places.astype(np.min_scalar_type(len(distinct)))
    there = np.zeros(high - low + 1, bool)
    there[numbers - low] = True
    distinct = np.flatnonzero(there)
    place = np.zeros(len(there), np.min_scalar_type(len(distinct)))
    place[distinct] = np.arange(len(distinct))
    return distinct + low, place[numbers - low]


def names(numbers: Ints, name: Callable[[int], Any]) -> Coded:
    """The text (or other value) of every number; each distinct number is asked for once."""
    distinct, places = groups(numbers)
    return Coded(places, [name(number) for number in distinct.tolist()])


def nullable(values: Ints) -> Any:
    """The array itself, or with None where it is MISSING."""
    known = values != MISSING
    if known.all():
        return values
    if not known.any():
        return Coded(np.broadcast_to(UNKNOWN, len(values)), ())
    return Masked(np.where(known, values, 0), known)


def narrow(values: Ints) -> NDArray[Any]:
    """Names for things in four bytes each, where all of them fit. Not for what is summed up: sums would not fit."""
    fits = len(values) and values.min() >= -(2**31) and values.max() < 2**31
    return values.astype(np.int32) if fits else values


def statistics(places: Codes, values: Ints) -> dict[str, NDArray[Any]]:
    """Figures of the values of each group, with the formulas of `nsys stats`. Median: mean of the middle two;
    deviation: n - 1, and 0 for one value. `places`: the group of each value, all numbers from 0 on in use."""
    # few groups are brought together by counting, which is much faster than sorting; only the medians need an order
    order = np.argsort(places, kind="stable")
    values = values[order]
    count = np.bincount(places)
    first = np.cumsum(count) - count
    total = np.add.reduceat(values, first)
    mean = total / count
    median = np.empty(len(count))
    squares = np.empty(len(count))
    for group, (begin, size) in enumerate(zip(first.tolist(), count.tolist(), strict=True)):
        part = values[begin : begin + size]
        middle = [(size - 1) // 2, size // 2]
        part.partition(middle)
        median[group] = part[middle].sum() / 2
        off = part - mean[group]
        squares[group] = np.square(off, out=off).sum()  # off @ off would wake BLAS, whose threads spin beside ours
    return {
        "count": count,
        "total": total,
        "mean": mean,
        "median": median,
        "min": np.minimum.reduceat(values, first),
        "max": np.maximum.reduceat(values, first),
        "stddev": np.sqrt(squares / np.maximum(count - 1, 1)),
    }


def summary(
    table: str,
    keys: Ints,
    values: Ints,
    name: Callable[[int], Any],
    sizes: Ints | None = None,
    *,
    unit: str = "ns",
    summed: Mapping[str, Ints] = MappingProxyType({}),
) -> Table:
    """One row a key, the largest total first. summed: more columns, of which each row has its key's sum. sizes: the
    same for the column `bytes`, where all are known."""
    if not len(keys):
        return Table(table, {})
    distinct, places = groups(keys)
    found = statistics(places, values)
    columns = {figure if figure == "count" else f"{figure}_{unit}": column for figure, column in found.items()}
    if sizes is not None and MISSING not in sizes:
        summed = {"bytes": sizes, **summed}
    columns |= {column: _sums(places, added) for column, added in summed.items()}
    largest = np.argsort(-found["total"], kind="stable")
    shown = [name(key) for key in distinct[largest].tolist()]
    ordered: dict[str, Any] = {column: values[largest] for column, values in columns.items()}
    return Table(table, {"name": shown, **ordered})


def _sums(places: Codes, values: Ints) -> Ints:
    """The sum of each group's values."""
    total = np.zeros(int(places.max()) + 1 if len(places) else 0, np.int64)
    np.add.at(total, places, values)
    return total
