"""diagnose/job.py: ranks that never came, and the one that failed first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_report import build

from orchestrator.diagnose.job import failed_rank, missing_ranks
from orchestrator.model import Capture, Exit, PassRecord, RankSeen, TargetRun, Task
from orchestrator.report import Report


def rank(number: int, end: Exit | None, ended_ns: int = 9) -> RankSeen:
    return RankSeen(number, number, 4, "node1", 100 + number, 1, ended_ns, end)


def report(folder: Path, *ranks: RankSeen, **more: Any) -> Report:
    facts: dict[str, Any] = {"exit": Exit(0), "ranks_expected": 4, **more}
    run = TargetRun(("torchrun",), 1, 0, 10, 1.0, ranks=ranks, **facts)
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


def test_what_profrun_has_ended_is_no_failure(tmp_path: Path) -> None:
    ended = report(tmp_path, *(rank(number, Exit(signal=2)) for number in range(4)), ended_by="window")
    assert [*failed_rank(ended)] == []
