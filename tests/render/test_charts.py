"""The dot strip and the whiskers: where things lie, and what is missing when it is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import sample_report

from orchestrator.model import Metric
from orchestrator.render import charts
from orchestrator.report import Report


def _runs(report: Report, *walls: float) -> Report:
    passes = [
        replace(report.passes[1], id=f"p{i:02d}", run=replace(report.passes[1].run, wall_s=w))  # type: ignore[type-var]
        for i, w in enumerate(walls, 1)
    ]
    return replace(report, passes=tuple(passes), metrics={"wall_s": Metric(walls[0], "s")})


def test_slower_runs_lie_higher_and_the_mean_inside_its_band(tmp_path: Path) -> None:
    strip = charts.strip(sample_report.build(tmp_path))
    assert strip is not None and strip.band is not None and strip.mean_y is not None
    heights = dict(zip((w for w in sample_report.WALLS), (d.y for d in strip.dots if d.role == "bare"), strict=True))
    assert sorted(heights, key=lambda w: -heights[w]) == sorted(heights)
    assert strip.band[0] < strip.mean_y < strip.band[0] + strip.band[1]
    assert [d.name for d in strip.dots if d.outlier] == ["p06"]
    assert [y for y, _ in strip.ticks] == sorted((y for y, _ in strip.ticks), reverse=True)


def test_a_far_warm_up_does_not_squeeze_the_others(tmp_path: Path) -> None:
    strip = charts.strip(sample_report.build(tmp_path))
    assert strip is not None
    warm = strip.dots[0]
    assert (warm.role, warm.beyond, warm.y, warm.label) == ("warmup", True, charts.TOP, "4.920 s")
    assert strip.warm_until is not None and warm.x < strip.warm_until < strip.dots[1].x
    bare = [d.y for d in strip.dots[1:]]
    assert max(bare) - min(bare) > 0.5 * (charts.HEIGHT - charts.TOP - charts.BOTTOM)


def test_one_run_has_no_interval(tmp_path: Path) -> None:
    strip = charts.strip(_runs(sample_report.build(tmp_path), 0.0123))
    assert strip is not None and strip.band is None and strip.warm_until is None
    assert strip.label == "Wall time of one bare run, 12.30 ms"
    assert charts.TOP < strip.dots[0].y < charts.HEIGHT - charts.BOTTOM


def test_equal_runs_and_runs_of_no_time_still_have_an_axis(tmp_path: Path) -> None:
    for walls in ((2.0, 2.0, 2.0), (0.0, 0.0)):
        strip = charts.strip(_runs(sample_report.build(tmp_path), *walls))
        assert strip is not None and 2 <= len(strip.ticks) <= 8


def test_nothing_timed_nothing_drawn(tmp_path: Path) -> None:
    assert charts.strip(sample_report.bare(tmp_path)) is None
    assert charts.whiskers(sample_report.bare(tmp_path)) == {}


def test_whiskers_share_an_axis(tmp_path: Path) -> None:
    found = charts.whiskers(sample_report.build(tmp_path))
    assert list(found) == ["p09", "p10", "p11"]
    assert len({w.one for w in found.values()}) == 1
    assert found["p09"].one < found["p09"].at < found["p11"].at < found["p10"].at <= 97
    strace = found["p10"]
    assert strace.low is not None and strace.high is not None and strace.low < strace.at < strace.high
