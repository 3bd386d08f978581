"""Names and sentences that differ in their numbers, told as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import names


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ([], ""),
        (["policy0 governor"], "policy0 governor"),
        (["cpu3", "cpu0", "cpu1"], "cpu0-1,3"),
        (["GPU 0 graphics", "GPU 1 graphics", "GPU 0 memory", "GPU 1 memory"], "GPU 0-1 graphics, memory"),
        (["policy0 min", "turbo", "policy0 max"], "turbo, policy0 min, max"),
        (["GPU 0 graphics", "GPU 1 memory", "GPU 0 persistence"], "GPU 1 memory, GPU 0 graphics, persistence"),
        (["gpu:GPU-00000000-aaaa", "gpu:GPU-00000001-aaaa"], "gpu:GPU-00000000-aaaa, gpu:GPU-00000001-aaaa"),
        (["GPU 0: 35 °C", "GPU 1: 35 °C"], "GPU 0-1: 35 °C"),
    ],
)
def test_names_are_told_together(found: list[str], told: str) -> None:
    assert names.together(found) == told


def test_sentences_are_folded_where_one_number_differs() -> None:
    hot = ["GPU 0 is at 71 °C", "GPU 1 is at 71 °C", "GPU 2 is at 80 °C"]
    assert names.folded(hot) == ["GPU 0-1 is at 71 °C", "GPU 2 is at 80 °C"]


@given(st.sets(st.integers(0, 300)))
def test_spans_are_read_back(numbers: set[int]) -> None:
    assert names.numbers_in(names.spans(numbers)) == tuple(sorted(numbers))
