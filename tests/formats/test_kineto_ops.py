"""formats/kineto_ops.py: nesting of all calls at once against a stack, call by call."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.formats import kineto_ops
from orchestrator.formats.kineto_events import Calls
from orchestrator.formats.kineto_ops import ROOT, joined, parents

Span = tuple[int, int, int]
"""Thread, start, duration."""


def calls(spans: list[Span]) -> Calls:
    """As a trace has them: in the order of the start, the longest first."""
    thread, start, duration = np.array(sorted(spans, key=lambda s: (s[1], -s[2])), np.int64).reshape(-1, 3).T
    zeros = np.zeros(len(start), np.int64)
    return Calls(zeros, zeros, start, start + duration, thread, zeros, zeros, zeros)


def by_stack(found: Calls) -> list[int]:
    stacks: dict[int, list[int]] = {}
    result = []
    for place, (start, end, thread) in enumerate(
        zip(found.start.tolist(), found.end.tolist(), found.thread.tolist(), strict=True)
    ):
        stack = stacks.setdefault(thread, [])
        while stack and (start >= found.end[stack[-1]] or end > found.end[stack[-1]]):
            stack.pop()
        result.append(stack[-1] if stack else ROOT)
        stack.append(place)
    return result


SPANS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 12)), max_size=40)


@given(SPANS, st.sampled_from([1, 2, 32]))
def test_parents(spans: list[Span], rounds: int) -> None:
    found = calls(spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_ops, "ROUNDS", rounds)
        assert parents(found).tolist() == by_stack(found)


def test_a_deep_stack_that_ends_level_by_level() -> None:
    """The slowest case for a search of all at once: each call that follows ends one level more."""
    depth = 20_000
    down = [(0, n, 4 * depth - 2 * n) for n in range(depth)]
    behind = [(0, 4 * depth - n, 1) for n in range(depth)]
    found = calls([*down, *behind])
    assert parents(found).tolist() == by_stack(found)


@given(st.lists(st.tuples(st.integers(-1, 10**6), st.integers(0, 9)), max_size=30))
def test_each_call_has_what_is_below_it(chosen: list[tuple[int, int]]) -> None:
    parent = np.array([place % (n + 1) - 1 for n, (place, _) in enumerate(chosen)], np.int64)
    values = [value for _, value in chosen]
    expected = list(values)
    for place in reversed(range(len(values))):
        if parent[place] != ROOT:
            expected[parent[place]] += expected[place]
    assert kineto_ops._with_children(np.array(values, np.int64), parent).tolist() == expected


def test_the_last_of_several_with_one_id_is_meant() -> None:
    ids, values = np.array([5, 3, 5]), np.array([10, 20, 30])
    assert joined(ids, values, np.array([5, 3, 4, 6])).tolist() == [30, 20, ROOT, ROOT]
    assert joined(ids[:0], values[:0], ids).tolist() == [ROOT] * 3


def test_the_order_of_calls_is_what_the_others_rely_on() -> None:
    found = calls([(0, 5, 1), (0, 0, 1), (0, 0, 9)])
    assert all(a <= b for a, b in pairwise(found.start.tolist()))
    assert parents(found).tolist() == [ROOT, 0, 0]
