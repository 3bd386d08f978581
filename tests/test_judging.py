"""judging.py: what findings share: whose steps are looked at, and which of them count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pandas as pd

from orchestrator import judging
from orchestrator.report import Report

COLUMNS = ("capture", "rank", "pid", "step", "start_ns", "duration_ns", "warmup")


def told(*rows: tuple[Any, ...]) -> Report:
    frame = pd.DataFrame(rows, columns=COLUMNS).convert_dtypes()
    captures = [SimpleNamespace(id=one, pass_id="p01") for one in dict.fromkeys(frame["capture"])]
    return cast(Report, SimpleNamespace(table=lambda name: frame, captures=captures))


def test_equal_pids_on_two_hosts_are_two_processes() -> None:
    """In containers each rank may be process 42."""
    report = told(
        ("p01@b.r1", 1, 42, 0, 100, 30, False),
        ("p01@b.r1", 1, 42, 1, 200, 30, False),
        ("p01@a.r0", 0, 42, 0, 100, 10, False),
        ("p01@a.r0", 0, 42, 1, 200, 10, False),
    )
    steps = judging.steps_of(report, "p01")
    assert steps is not None and steps["rank"].tolist() == [0, 0]
    window = judging.steady_window(report, "p01")
    assert window is not None and (window.steps, window.spent_ns) == (2, 20)


def test_where_nobody_can_tell_the_warm_up_the_first_step_is_left_out() -> None:
    report = told(
        ("p01", None, 7, 0, 100, 90, None), ("p01", None, 7, 1, 200, 10, None), ("p01", None, 7, 2, 300, 10, None)
    )
    window = judging.steady_window(report, "p01")
    assert window is not None and (window.pid, window.start_ns, window.end_ns, window.steps) == (7, 200, 310, 2)
