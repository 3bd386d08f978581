"""How a night is judged: at once, when it is confirmed, when it is over, and what becomes the new level."""

from __future__ import annotations

import importlib
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.nights import judge as room
from orchestrator.nights.judge import Judgement, Past, judge

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def calm(count: int, center: float = 1.0, first: int = 0, *, starts: bool = False) -> list[Past]:
    """Accepted nights that lie 1 % apart."""
    offs = (0.0, 0.01, -0.01, 0.005, -0.005)
    return [Past(f"n{first + n}", center * (1 + offs[n % 5]), "accepted", starts and n == 0) for n in range(count)]


def after(past: Sequence[Past], *values: float) -> tuple[list[Past], list[Judgement]]:
    """The nights that follow, each judged by those before it, as `profrun nightly` remembers them."""
    nights, said = list(past), []
    for value in values:
        judged = judge(nights, value)
        said.append(judged)
        first = judged.adopted[:1]
        nights = [
            Past(n.run_id, n.value, "accepted", n.run_id in first) if n.run_id in judged.adopted else n for n in nights
        ]
        nights.append(Past(f"x{len(nights)}", value, "accepted" if judged.adopted else judged.verdict))
    return nights, said


def verdicts(past: Sequence[Past], *values: float) -> list[str]:
    return [one.verdict for one in after(past, *values)[1]]


def test_the_first_nights_are_learnt_from_and_say_how_many_are_missing() -> None:
    nights, said = after([], *([1.0, 9.0] * 4))
    assert [one.level for one in said[:7]] == [None] * 7
    assert said[2].reason == "learning: 3 of 7 nights"
    assert said[7].level is not None
    assert {night.verdict for night in nights[:7]} == {"accepted"}


def test_one_night_is_suspect_and_two_in_a_row_are_a_regression() -> None:
    _, said = after(calm(20), 1.08, 1.08)
    assert [one.verdict for one in said] == ["suspect", "regressed"]
    assert said[1].reason == "2 nights in a row"
    assert said[1].off == pytest.approx(0.08)
    low, high = said[1].interval or (0, 0)
    assert 0.03 < low < 0.08 < high < 0.13
    assert said[1].level is not None and said[1].level.center == 1.0


def test_faster_is_judged_as_slower_is() -> None:
    assert verdicts(calm(20), 0.92, 0.92) == ["suspect", "improved"]


def test_an_outlier_is_forgotten_and_one_on_either_side_confirms_nothing() -> None:
    assert verdicts(calm(20), 1.2, 1.0, 1.2, 0.8) == ["suspect", "accepted", "suspect", "suspect"]


def test_less_than_three_percent_is_never_worth_a_word() -> None:
    same = [Past(f"n{n}", 1.0, "accepted") for n in range(20)]
    assert verdicts(same, 1.029, 1.029, 1.029) == ["accepted"] * 3
    assert verdicts(same, 1.031, 1.031) == ["suspect", "regressed"]


def test_what_is_wide_by_chance_takes_more() -> None:
    rng = random.Random(4)
    noisy = [Past(f"n{n}", 1 + rng.gauss(0, 0.04), "accepted") for n in range(40)]
    assert verdicts(noisy, 1.07, 1.07) == ["accepted"] * 2
    assert verdicts(noisy, 1.2, 1.2) == ["suspect", "regressed"]


def test_three_nights_that_are_a_little_less_far_off_are_no_chance_either() -> None:
    rng = random.Random(2)
    noisy = [Past(f"n{n}", 1 + rng.gauss(0, 0.02), "accepted") for n in range(40)]
    level = room.level_of(noisy)
    assert level.limit(1, room.NEAR) < level.limit(1)
    value = level.center * (1 + (level.limit(1, room.NEAR) + level.limit(1)) / 2)
    _, said = after(noisy, value, value, value)
    assert [one.verdict for one in said] == ["accepted", "accepted", "regressed"]


def test_three_nights_tell_from_some_one_and_a_half_deviations_on() -> None:
    rng = random.Random(7)
    noisy = [Past(f"n{n}", 1 + rng.gauss(0, 0.04), "accepted") for n in range(60)]
    level = room.level_of(noisy)
    near, far = (level.center * (1 + off * level.sigma) for off in (1.5, 2.3))
    assert verdicts(noisy, near, near, near) == ["accepted"] * 3
    assert verdicts(noisy, far, far, far) == ["accepted", "accepted", "regressed"]


def test_a_regression_stays_until_a_night_is_nearer_to_the_old_level() -> None:
    said = verdicts(calm(20), *[1.1] * 30, 1.06, 1.02, 1.0)
    assert said == ["suspect", *["regressed"] * 30, "accepted", "accepted"], "and never becomes the level by itself"


def test_an_improvement_becomes_the_level_so_that_its_loss_is_seen() -> None:
    nights, said = after(calm(20), *[0.9] * 8)
    assert [one.verdict for one in said] == ["suspect", *["improved"] * 7]
    assert [bool(one.adopted) for one in said] == [*[False] * 7, True]
    assert said[7].adopted == tuple(night.run_id for night in nights[21:27])
    assert verdicts(nights, 0.9, 1.0, 1.0) == ["accepted", "suspect", "regressed"]


def test_a_young_level_borrows_its_spread_from_the_one_before() -> None:
    young = room.level_of([*calm(20), *calm(2, 2.0, 20, starts=True)])
    old = room.level_of(calm(20))
    assert young.center == pytest.approx(2.01)
    assert young.sigma == pytest.approx(old.sigma, rel=0.3)
    assert young.limit(1, far=6) > old.limit(1, far=6)
    said = verdicts([*calm(20), *calm(2, 2.0, 20, starts=True)], 2.0, 1.0, 1.0)
    assert said == ["accepted", "suspect", "improved"]


def test_a_drift_that_every_night_hides_is_seen_from_the_first_nights() -> None:
    rng = random.Random(11)
    values = [(1 + 0.0015 * n) * (1 + rng.gauss(0, 0.004)) for n in range(90)]
    said = after(calm(20), *values)[1]
    first = next(n for n, one in enumerate(said) if one.verdict == "regressed")
    assert "a slow drift: +5." in said[first].reason
    assert [one.verdict for one in said[:first]].count("suspect") <= 2
    assert 30 <= first <= 50
    assert {one.verdict for one in said[first + 5 :]} == {"regressed"}


@pytest.mark.parametrize("count", range(1, room.NEEDED + room.RECENT - 1))
def test_too_few_nights_tell_of_no_drift(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_at(*_: object) -> None:
        raise AssertionError("the first nights and the newest are the same ones")

    monkeypatch.setattr(room, "_level", looked_at)
    assert room._drift(calm(count), 1.0) is None


def test_a_drift_that_was_mended_is_over_at_once() -> None:
    rng = random.Random(11)
    nights, _ = after(calm(20), *((1 + 0.0015 * n) * (1 + rng.gauss(0, 0.004)) for n in range(60)))
    assert nights[-1].verdict == "regressed"
    assert verdicts(nights, 1.0)[0] != "regressed"


def test_nights_that_depend_on_one_another_widen_the_spread() -> None:
    waves = [1 + 0.01 * (n // 5 % 2) for n in range(40)]
    shuffled = list(waves)
    random.Random(1).shuffle(shuffled)
    together, apart = (
        room.level_of([Past(f"n{n}", value, "accepted") for n, value in enumerate(values)])
        for values in (waves, shuffled)
    )
    assert together.sigma > 1.2 * apart.sigma


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module("benchnights")
    finally:
        sys.path.remove(str(SCRIPTS))


def test_simulated_nights_a_small_sample_of_the_benchmark(bench: ModuleType) -> None:
    quiet = bench.simulated(bench.Model(0.01), series=12, seed=1)
    assert quiet.false_per_100 <= 0.5
    assert quiet.caught[bench.WITHIN] >= 0.9
    usual = bench.simulated(bench.Model(0.015), series=25, seed=1)
    assert usual.false_per_100 <= 0.5
    assert usual.caught[bench.WITHIN] >= 0.7
    assert usual.good and "met" in usual.row()[-1]


def test_nights_drawn_from_real_runs(bench: ModuleType) -> None:
    real = bench.recorded()
    assert len(real.shares) == 30
    drawn = bench.simulated(real, series=12, seed=1)
    assert drawn.false_per_100 <= 0.5
    assert drawn.good


def test_the_benchmark_says_what_it_missed(bench: ModuleType) -> None:
    missed = bench.Result("loud", 0.7, {2: 0.1, 3: 0.2, 5: 0.3, 7: 0.4}, 0.01)
    assert not missed.good and missed.row()[-1].startswith("MISSED")
    assert bench.Result("loud", 0.4, {2: 0.1, 3: 0.2, 5: 0.3, 7: 0.4}, 0.03).good


def test_a_level_whose_nights_were_lost_is_none() -> None:
    lost = [*calm(8), Past("x", 1.2, "suspect", starts_level=True), *calm(8, 1.2, first=9)]
    lost[9] = Past("y", 1.2, "suspect", starts_level=True)
    assert judge(lost[:10], 1.0).verdict == "accepted"
