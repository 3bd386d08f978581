"""The steps of a program: which run is told of, what a steady step takes and on what, how they are drawn."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_report

from orchestrator.model import Metric
from orchestrator.render import console, html, stepchart, stepping
from orchestrator.render.stepping import Course, Stepping
from orchestrator.report import Report
from orchestrator.tables import Table

MS = 1_000_000
COLUMNS = (
    "capture",
    "rank",
    "pid",
    "kind",
    "step",
    "start_ns",
    "duration_ns",
    "forward_ns",
    "warmup",
    "profiled",
    "stall",
)


def with_steps(folder: Path, rows: Sequence[Sequence[Any]], **metrics: Metric) -> Report:
    info = sample_report.write(folder / "other", Table.of("steps", rows, COLUMNS, clock="epoch"))
    found = {"steps": replace(info, path=f"other/{info.path}")}
    return replace(sample_report.build(folder), tables=found, metrics=metrics)


def process(
    count: int, *, capture: str = "p02-timing", rank: int | None = None, pid: int = 7, ms: float = 10.0,
    warm: int | None = 2, long: dict[int, float] | None = None, profiled: range = range(0),
) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """So many steps of equal length but for some, half of each in forward."""
    for i in range(count):
        took = int((long or {}).get(i, ms) * MS)
        stall = "data" if i in (long or {}) else None
        start = sample_report.STARTED_NS + i * int(ms * MS)
        seen = None if warm is None else i < warm
        yield (capture, rank, pid, "train", i, start, took, took // 2, seen, i in profiled, stall)


def found(report: Report) -> Stepping:
    told = stepping.stepping(report)
    assert told is not None
    return told


def drawn(course: Course) -> tuple[Any, dict[str, Any]]:
    chart = stepchart.chart(course, stepchart.top_ns([course]))
    return chart, json.loads(chart.data)


def test_the_middle_one_of_the_bare_runs_is_told_of(tmp_path: Path) -> None:
    told = found(sample_report.build(tmp_path))
    assert (told.where, told.runs) == ("bare run p03", 3)
    (course,) = told.courses
    assert (course.count, course.warmup, course.steady) == (200, 14, 186)
    steady = course.table[14:]["duration_ns"].astype(float)
    assert course.mean_ns == pytest.approx(steady.mean()) and course.median_ns == pytest.approx(steady.median())
    assert course.cpus == pytest.approx(1.7, rel=1e-3)


def test_shares_are_of_the_steady_steps_and_what_was_not_seen_is_unknown(tmp_path: Path) -> None:
    (course,) = found(sample_report.build(tmp_path)).courses
    phases = {phase.key: phase for phase in course.phases}
    assert phases["data"].mean_ns is phases["data"].share is None
    assert sum(phase.share or 0.0 for phase in course.phases) == pytest.approx(1.0)
    assert phases["checkpoint"].mean_ns == pytest.approx(4 * 88 * MS / 186)
    assert phases["optimizer"].longest_ns == 1.2 * MS


def test_stalls_have_their_causes_period_and_cost(tmp_path: Path) -> None:
    (course,) = found(sample_report.build(tmp_path)).courses
    assert [(s.cause, s.count, s.period) for s in course.stalls] == [("checkpoint", 4, 50), ("evaluation", 2, None)]
    assert course.stalls[0].extra_ns == pytest.approx(4 * 88 * MS, rel=0.01)
    said = " ".join(course.told())
    assert "186 of 200 steps (the first 14 are warm-up)" in said
    assert "6 stalls of at least 2 times the median (checkpoint 4, every 50 steps; evaluation 2)" in said
    assert "441 ms, 14.7 % of all steady steps." in said


@pytest.mark.parametrize(
    ("counts", "line"),
    [
        ([200, 200], "16.13 ms, mean of 198 steady steps in each of 2 runs (2 of 200 are warm-up)"),
        ([200, 150], "16.13 ms, mean of 148 to 198 steady steps in each of 2 runs (2 of 150 to 200 are warm-up)"),
        ([60], "16.13 ms, mean of 58 steady steps (2 of 60 are warm-up)"),
    ],
)
def test_one_line_for_the_terminal(tmp_path: Path, counts: list[int], line: str) -> None:
    rows = [row for run, count in enumerate(counts, 2) for row in process(count, capture=f"p0{run}-timing")]
    report = with_steps(tmp_path, rows, step_s=Metric(0.01613, "s", (0.01603, 0.01623), len(counts)))
    assert stepping.line(report, found(report)) == line
    assert ("step", line) in list(console._told(report))


def test_without_a_steady_step_there_is_no_average(tmp_path: Path) -> None:
    report = with_steps(tmp_path, list(process(8, warm=None)))
    (course,) = found(report).courses
    assert course.mean_ns is course.median_ns is course.cpus is None
    assert all(phase.mean_ns is None for phase in course.phases)
    said = "8 steps, too few or too uneven to tell a warm-up from the rest: there is no average"
    assert stepping.line(report, found(report)) == said
    page = html.render(report)
    assert said in page and "What a steady step takes" not in page


def test_steps_that_only_a_profiled_pass_made_are_said_to_be_such(tmp_path: Path) -> None:
    report = with_steps(tmp_path, list(process(40, capture="p09-py-spy", profiled=range(10, 15))))
    told = found(report)
    assert told.where == "profiled pass p09"
    assert (
        stepping.line(report, told) == "10 ms, mean of 33 steady steps (2 of 40 are warm-up) in the profiled pass p09"
    )
    assert told.courses[0].steady == 33  # neither warm-up nor what was looked at closely
    chart, data = drawn(told.courses[0])
    assert [(zone.kind, zone.start, zone.end) for zone in chart.zones] == [("warm", 0, 2), ("profiled", 10, 15)]
    assert data["zones"][1] == {"kind": "profiled", "start": 10, "end": 15, "text": "profiled"}


def test_ranks_share_an_axis_and_those_not_drawn_are_summarised(tmp_path: Path) -> None:
    rows = [row for rank in range(6) for row in process(30, rank=rank, pid=100 - rank, ms=10 + rank)]
    report = with_steps(tmp_path, rows, step_s=Metric(0.01, "s", None, 1))
    told = found(report)
    assert [course.name for course in told.shown] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert (
        told.rest()
        == "2 more processes made steps; their steady steps take from 14 ms (rank 4) to 15 ms (rank 5) in the mean."
    )
    assert stepping.line(report, told).endswith("(2 of 30 are warm-up; rank 0 of 6 processes)")
    high = stepchart.top_ns(told.shown)
    ends = [json.loads(stepchart.chart(course, high).data)["y"] for course in told.shown]
    assert ends == [ends[0]] * stepping.SHOWN
    assert html.render(report).count('data-plot="steps-') == stepping.SHOWN


def test_many_steps_are_thinned_and_no_stall_is_hidden(tmp_path: Path) -> None:
    (course,) = found(with_steps(tmp_path, list(process(20_000, long={12_345: 900.0, 15_000: 25.0})))).courses
    chart, data = drawn(course)
    assert len(data["x"]) <= stepchart.BARS
    assert len(chart.data) < 60_000
    assert set(data["notes"].values()) == {
        "stall: data, 90.0 times the median",
        "stall: data, 2.5 times the median",
    }
    longest = next(series for series in data["series"] if series["name"] == "longest")
    assert max(longest["values"]) == 900 and data["y"]["unit"] == "ms"
    cut = [mark for mark in chart.marks if "cut" in mark.kind]
    assert [(mark.label, "stall" in mark.kind) for mark in cut] == [("900 ms", True)]
    assert chart.note.startswith("Each bar is the mean of 17 steps")


def test_what_is_long_often_is_not_cut(tmp_path: Path) -> None:
    often = dict.fromkeys(range(10, 100, 10), 200.0)
    (course,) = found(with_steps(tmp_path, list(process(100, long=often)))).courses
    chart, _ = drawn(course)
    assert [mark.kind for mark in chart.marks] == ["stall"] * 9


def test_an_unknown_step_leaves_a_gap(tmp_path: Path) -> None:
    rows = [list(row) for row in process(20)]
    rows[0][6] = None
    (course,) = found(with_steps(tmp_path, rows)).courses
    _, data = drawn(course)
    took = next(series for series in data["series"] if series["name"] == "took")
    parts = [series["values"][0] for series in data["series"]]
    assert took["values"][:2] == [None, 10] and set(parts) == {None}
