"""What becomes of the runs' own figures."""

from __future__ import annotations

from orchestrator import normalise, trust
from orchestrator.model import Exit, PassRecord, TargetRun


def bare(number: int, wall_s: float, exit_: Exit, ended_by: str = "itself") -> PassRecord:
    run = TargetRun(("train",), 7, 0, int(wall_s * 1e9), wall_s, exit_, ended_by=ended_by)  # type: ignore[arg-type]
    return PassRecord(f"p{number:02}", "bare", ("timing",), number, run)


def test_a_program_that_dies_early_is_no_fast_one() -> None:
    passes = [bare(1, 10.0, Exit(0)), bare(2, 2.0, Exit(signal=9)), bare(3, 12.0, Exit(0))]
    assert trust.bare_walls(passes) == [10.0, 12.0], "nor is a pass with a tool beside it a slow one"
    assert (normalise._timing(passes)["wall_s"].value, normalise._timing(passes)["wall_s"].n) == (11.0, 2)


def test_runs_that_end_with_their_window_all_count() -> None:
    passes = [bare(1, 10.0, Exit(0), "window"), bare(2, 11.0, Exit(signal=2), "window")]
    assert normalise._timing(passes)["wall_s"].n == 2
