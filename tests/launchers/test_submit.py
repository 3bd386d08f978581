"""The options of a batch job, and what is said where there is no Slurm."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import environment, profrun, write_plan

from orchestrator.errors import UsageError
from orchestrator.launchers.submit import _warned_s, options_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--nodes 2 --ntasks-per-node=4", {"nodes": "2", "ntasks-per-node": "4"}),
        ("-N2 -p gpu -t 1:00:00", {"nodes": "2", "partition": "gpu", "time": "1:00:00"}),
        ("--exclusive --gpus-per-task 1", {"exclusive": True, "gpus-per-task": "1"}),
        ("--comment 'two words' --exclusive=user", {"comment": "two words", "exclusive": "user"}),
        ("--nice --nodes 2 -k", {"nice": True, "nodes": "2", "no-kill": True}),
        ("--propagate=NOFILE --get-user-env -Q", {"propagate": "NOFILE", "get-user-env": True, "quiet": True}),
        ("", {}),
    ],
)
def test_options_of_sbatch(text: str, found: dict[str, str | bool]) -> None:
    assert options_of(text) == found


@pytest.mark.parametrize("text", ["--array 1-3", "--output x", "--nodes", "train.py", "'", "-Z 3", "--time 1 -- x"])
def test_what_can_not_be_used_is_said(text: str) -> None:
    with pytest.raises(UsageError):
        options_of(text)


@pytest.mark.parametrize(
    ("text", "why"), [("-o out.log", "profrun reads it while"), ("--parsable", "not possible here")]
)
def test_what_is_profruns_own_is_said_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        options_of(text)


@pytest.mark.parametrize(
    ("limit", "warned_s"),
    [
        (None, 120), ("60", 120), ("2", 30), ("2:00", 30), ("1:00:00", 120), ("0:01:00", 15), ("1-0", 120),
        ("0-0:2", 30), ("0", 120), ("UNLIMITED", 120),
    ],
)  # fmt: skip
def test_a_short_job_is_not_told_to_end_before_it_has_begun(limit: str | None, warned_s: int) -> None:
    assert _warned_s(limit) == warned_s


def test_without_slurm_the_way_out_is_named(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing}")
    result = profrun(plan, "--slurm", "-N2", "--", "true", cwd=tmp_path, env=environment(PATH="/nowhere"))
    assert result.code == 3
    assert "leave --slurm out" in result.stderr
    assert not (tmp_path / "reports").exists()


def test_a_job_does_not_look_at_a_process_of_this_host(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: monitor}")
    result = profrun(plan, "--slurm", "-N2", "--pid", "1", cwd=tmp_path)
    assert result.code == 2
    assert "exclude each other" in result.stderr
