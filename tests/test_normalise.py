"""What becomes of the runs' own figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import normalise, trust
from orchestrator.model import Exit, PassRecord, TargetRun
from orchestrator.plan import Plan


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


@pytest.mark.parametrize(
    ("take", "printed", "value", "note"),
    [
        ("last", "loss=1.5\nloss=nan\n", None, "loss is unknown here: the program printed nan"),
        ("last", "loss=inf\nloss=2.5\n", 2.5, None),
        ("mean", "loss=inf\nloss=2.5\n", None, "loss is unknown here: the program printed inf"),
        ("last", "nothing\n", None, None),
    ],
)
def test_what_is_no_number_is_unknown(
    tmp_path: Path, take: str, printed: str, value: float | None, note: str | None
) -> None:
    (tmp_path / "raw/p01-target").mkdir(parents=True)
    (tmp_path / "raw/p01-target/stdout.log").write_text(printed)
    wanted = {"loss": {"pattern": r"loss=(\S+)", "take": take}}
    plan = Plan.model_validate({"version": 1, "collectors": [{"use": "timing"}], "metrics": wanted})
    metrics, notes = normalise._from_output(plan, [bare(1, 10.0, Exit(0))], tmp_path)
    assert metrics["loss"].value == value
    assert notes == ({"p01": [note]} if note else {})
