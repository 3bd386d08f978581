"""locating/gpu_arrays.py against sets of whole numbers: what a clock of one tick would have seen."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.formats.events import MISSING
from orchestrator.locating.gpu_arrays import Times, ints, shared_ns, texts, within
from orchestrator.tables import Coded, Masked, Table

Spans = list[tuple[int, int]]
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda span: (span[0], sum(span))), max_size=12)


def times(spans: Spans) -> Times:
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    return Times.union(start, end)


def ticks(spans: Spans) -> set[int]:
    return {tick for start, end in spans for tick in range(start, end)}


def told(found: Times) -> Spans:
    return list(zip(found.start.tolist(), found.end.tolist(), strict=True))


@given(SPANS)
def test_a_union_holds_each_tick_once(spans: Spans) -> None:
    found = times(spans)
    assert ticks(told(found)) == ticks(spans) and found.ns == len(ticks(spans))
    assert all(end < start for (_, end), (start, _) in pairwise(told(found))), "disjoint"


@given(SPANS, SPANS)
def test_parts_inside_and_outside_of_a_window(spans: Spans, window: Spans) -> None:
    found, inside = times(spans), times(window)
    assert ticks(told(found.within(inside))) == ticks(spans) & ticks(window)
    assert ticks(told(found.rest(inside))) == ticks(window) - ticks(spans)
    assert found.within(inside).ns + found.rest(inside).ns == inside.ns


@given(SPANS, SPANS)
def test_what_is_left_without_a_part(spans: Spans, more: Spans) -> None:
    whole, part = times([*spans, *more]), times(spans)
    left = sorted(ticks(more) - ticks(spans))
    stretches = sum(tick - 1 not in left for tick in left)
    assert whole.without(part) == (len(left), stretches)


@given(SPANS, SPANS)
def test_how_much_of_each_span_lies_in_a_window(spans: Spans, window: Spans) -> None:
    start, end = (np.array([span[side] for span in spans], np.int64) for side in (0, 1))
    assert shared_ns(start, end, times(window)).tolist() == [len(ticks([span]) & ticks(window)) for span in spans]
    assert within(start, times(window)).tolist() == [first in ticks(window) for first, _ in spans]


@given(SPANS, st.integers(1, 8))
def test_short_gaps_are_bridged(spans: Spans, gap: int) -> None:
    found = told(times(spans).bridged(gap))
    assert all(start - end >= gap for (_, end), (start, _) in pairwise(found))
    assert ticks(spans) <= ticks(found) and sum(e - s for s, e in found) - len(ticks(spans)) <= gap * len(spans)


def test_columns_of_every_kind() -> None:
    codes = np.array([1, -1, 0], np.int8)
    masked = Masked(np.array([5, 6, 7]), np.array([True, False, True]))
    table = Table("t", {"coded": Coded(codes, (8, None)), "masked": masked, "list": [1, None, 3], "a": np.arange(3)})
    assert ints(table, "coded").tolist() == [MISSING, MISSING, 8]
    assert ints(table, "masked").tolist() == [5, MISSING, 7]
    assert ints(table, "list").tolist() == [1, MISSING, 3] and ints(table, "a").tolist() == [0, 1, 2]
    assert ints(table, "none").tolist() == [MISSING] * 3
    names = Table("t", {"name": Coded(codes, ("b", "a")), "list": ["x", None, "x"]})
    for column, wanted in (("name", ["a", None, "b"]), ("list", ["x", None, "x"]), ("none", [None] * 3)):
        numbers, found = texts(names, column)
        assert [found[n] for n in numbers.tolist()] == wanted
