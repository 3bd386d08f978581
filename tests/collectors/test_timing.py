"""The timing collector: it adds nothing to a run, and says what profrun itself measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.collectors.timing import Timing
from orchestrator.errors import ParseError
from orchestrator.machine import Machine
from orchestrator.model import Capture, Exit, Job, Launch, Target, TargetRun, Tool

RUN = TargetRun(
    ("true",), 7, 1_000, 2_000, 0.5, Exit(code=3), user_s=0.2, sys_s=0.1, max_rss_bytes=4096, ended_by="itself"
)
CAPTURE = Capture("p02-timing", "p02", "timing", "ok", options={"role": "bare", "repeat": 2}, run=RUN)


def test_it_adds_nothing_to_a_run() -> None:
    job = Job("p01", "/tmp/x", Target(("true",), "/bin/true", "/", {}), Tool("timing", None))
    assert Timing().launch(job) == Launch()
    assert Timing().launch(job).commands() == ()


def test_its_defaults() -> None:
    assert (Timing().warmup, Timing().repeats, Timing().slowdown, Timing().can_attach) == (1, 5, 1.0, False)


def test_one_row_for_one_run() -> None:
    (table,) = Timing().parse(CAPTURE).tables
    assert table.name == "runs"
    assert list(table.rows()) == [
        {
            "pass_id": "p02",
            "role": "bare",
            "repeat": 2,
            "started_ns": 1_000,
            "wall_s": 0.5,
            "user_s": 0.2,
            "sys_s": 0.1,
            "max_rss_bytes": 4096,
            "exit_status": 3,
        }
    ]


@pytest.mark.parametrize(("ended", "status"), [(Exit(signal=9), 137), (Exit(code=0), 0), (None, None)])
def test_the_exit_status_is_a_shells(ended: Exit | None, status: int | None) -> None:
    (table,) = Timing().parse(replace(CAPTURE, run=replace(RUN, exit=ended))).tables
    assert table.columns["exit_status"] == [status]


def test_what_was_not_measured_stays_unknown() -> None:
    run = replace(RUN, user_s=None, sys_s=None, max_rss_bytes=None)
    (table,) = Timing().parse(replace(CAPTURE, run=run)).tables
    assert [table.columns[name] for name in ("user_s", "sys_s", "max_rss_bytes")] == [[None]] * 3


def test_a_capture_without_a_run_is_unreadable() -> None:
    with pytest.raises(ParseError, match="nothing is known about this run"):
        Timing().parse(replace(CAPTURE, run=None))


def test_what_runs_already_can_not_be_timed() -> None:
    check = Timing().obstacle_to_attach(Machine())
    assert check and check.verdict == "missing" and "runs already" in check.message and "-- COMMAND" in str(check.fix)
