"""diagnose/job.py: ranks that never came, and the one that failed first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_report import build, write

from orchestrator.diagnose.job import failed_rank, missing_ranks, no_progress
from orchestrator.model import Capture, Exit, PassRecord, RankSeen, TargetRun, Task
from orchestrator.report import Report
from orchestrator.tables import Table


def rank(number: int, end: Exit | None, ended_ns: int = 9) -> RankSeen:
    return RankSeen(number, number, 4, "node1", 100 + number, 1, ended_ns, end)


def report(folder: Path, *ranks: RankSeen, **more: Any) -> Report:
    facts: dict[str, Any] = {"ended_ns": 10, "wall_s": 1.0, "exit": Exit(0), "ranks_expected": 4, **more}
    run = TargetRun(("torchrun",), 1, 0, ranks=ranks, **facts)
    captures = (Capture("p01-timing", "p01", "timing", "ok"),)
    return replace(build(folder), passes=(PassRecord("p01", "bare", ("timing",), run=run),), captures=captures)


def test_a_whole_and_healthy_job_says_nothing(tmp_path: Path) -> None:
    whole = report(tmp_path, *(rank(number, Exit(0)) for number in range(4)))
    assert [*missing_ranks(whole), *failed_rank(whole)] == []
    assert [*missing_ranks(report(tmp_path / "b", ranks_expected=None))] == []


def test_missing_ranks_are_named(tmp_path: Path) -> None:
    (found,) = missing_ranks(report(tmp_path, rank(0, Exit(0)), rank(2, Exit(0))))
    assert found.title == "Rank 1, 3 of 4 on this host was never seen"
    assert [(one.value, one.unit) for one in found.evidence] == [(4, "ranks"), (2, "ranks")]
    assert (found.severity, found.confidence, found.sources) == ("major", "high", ("p01-timing",))


def test_of_tasks_on_several_hosts_nothing_is_told_here(tmp_path: Path) -> None:
    """That is told once, by diagnose/ranks.py."""
    few = report(tmp_path, rank(0, Exit(1)))
    of_tasks = replace(few, passes=tuple(replace(one, tasks=(Task(0),)) for one in few.passes))
    assert [*missing_ranks(few), *failed_rank(few)]
    assert [*missing_ranks(of_tasks), *failed_rank(of_tasks)] == []


def test_the_first_rank_to_fail_is_the_one_to_look_at(tmp_path: Path) -> None:
    ends = (rank(0, Exit(signal=15), 8), rank(1, Exit(9), 5), rank(2, Exit(1), 7), rank(3, None))
    (found,) = failed_rank(report(tmp_path, *ends, exit=Exit(1)))
    assert found.title == "Rank 1 ended with exit 9, before 2 others"
    assert found.where == {"pid": 101, "host": "node1"}
    assert "raw/p01-target/stderr.log" in found.advice and "how rank 3 ended is not known" in found.advice


def test_which_was_first_is_not_said_where_one_before_it_ended_nobody_knows_how(tmp_path: Path) -> None:
    (found,) = failed_rank(report(tmp_path, rank(0, Exit(signal=15), 8), rank(1, None, 5), exit=Exit(9)))
    assert found.title == "Rank 0 was killed by SIGTERM; how rank 1 ended, perhaps before it, is not known"


def test_a_job_that_was_started_again_and_ended_well(tmp_path: Path) -> None:
    lives = (rank(0, Exit(signal=15), 8), rank(1, Exit(7), 5), rank(0, Exit(0), 20), rank(1, Exit(0), 20))
    (found,) = failed_rank(report(tmp_path, *lives))
    assert found.title == "Rank 1 ended with exit 7, before 1 other; the job was started again, and ended well"
    assert found.severity == "major"


def test_no_step_for_long_before_the_time_out(tmp_path: Path) -> None:
    hung = stuck(tmp_path, ended_ns=30 * 10**9)
    (found,) = no_progress(hung)
    assert found.title == (
        "No step in the last 27 s of 30 s, until the time-out ended it; rank 0 in step (train.py:7), rank 1 in "
        "stand (train.py:3)"
    )
    assert (found.severity, found.evidence[1].value) == ("critical", 2)
    assert [*no_progress(stuck(tmp_path / "soon", ended_ns=4 * 10**9))] == [], "three seconds are not ten steps"
    assert [*no_progress(replace(hung, passes=(replace(hung.passes[0], run=None),)))] == []


def stuck(folder: Path, ended_ns: int) -> Report:
    """Two ranks of three steps of a second, and where they stood at last."""
    steps = [(number, 100 + number, 7, "train", step, step * 10**9, 10**9) for number in (0, 1) for step in range(3)]
    where = {0: "main (/x/train.py:9);step (/x/train.py:7)", 1: "main (/x/train.py:9);stand (/x/train.py:3)"}
    spans = [(100 + number, 7, "MainThread", 3 * 10**9, 10**9, stack) for number, stack in where.items()]
    columns = ["rank", "pid", "tid", "kind", "step", "start_ns", "duration_ns"]
    made = {
        "steps": Table.of("steps", steps, columns).with_capture("p01"),
        "stack_spans": Table.of("stack_spans", spans).with_capture("p01-py-spy"),
    }
    ends = [rank(number, None, ended_ns) for number in (0, 1)]
    base = report(folder, *ends, ended_by="timeout", ended_ns=ended_ns, wall_s=ended_ns / 1e9)
    captures = (*base.captures, Capture("p01-py-spy", "p01", "py-spy", "degraded"))
    return replace(base, captures=captures, tables={name: write(folder, table) for name, table in made.items()})


def test_what_profrun_has_ended_is_no_failure(tmp_path: Path) -> None:
    ended = report(tmp_path, *(rank(number, Exit(signal=2)) for number in range(4)), ended_by="window")
    assert [*failed_rank(ended)] == []
