"""scripts/bench compare: what counts as an alarm, and what as caught."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from orchestrator.comparing.words import Change, Verdict

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPO / "scripts"))
    return importlib.import_module("benchcompare")


def step(verdict: Verdict) -> Change:
    return Change("metric", "step_s", 1.0, 1.06, "s", verdict, 1.06, 1.04, 1.08, p_value=0.008)


@pytest.mark.parametrize(
    ("equal", "planted", "good"),
    [
        (["unsure", "same", "same", "unsure", "unsure"], ["slower"] * 4 + ["unsure"], True),
        (["slower", "faster", "same", "unsure", "unsure"], ["slower"] * 5, False),
        (["unsure"] * 5, ["slower", "slower", "slower", "unsure", "faster"], False),
    ],
)
def test_one_alarm_is_chance_and_four_of_five_are_caught(
    bench: Any, monkeypatch: pytest.MonkeyPatch, equal: list[Verdict], planted: list[Verdict], good: bool
) -> None:
    def pairs(count: int, slower_pct: float) -> Iterator[Any]:
        for number, (one, other) in enumerate(zip(equal, planted, strict=True), 1):
            yield bench.Pair(number, 0.0, step(one))
            yield bench.Pair(number, slower_pct, step(other))

    monkeypatch.setattr(bench, "pairs", pairs)
    rows, met = bench.run(5, 6.0)
    assert met is good
    assert rows[-1][0] == f"caught: {planted.count('slower')} of 5"
    assert {len(row) for row in rows} == {len(bench.HEADINGS)}


def test_its_program_is_slower_by_what_is_planted(bench: Any) -> None:
    assert bench.PROGRAM.count("augment(30)") == 1 and "range(70)" in bench.PROGRAM
    assert bench.PART == 30 / (30 + 70)
