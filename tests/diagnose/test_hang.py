"""diagnose/hang.py: who is missing from which collective, what else waits, and silence where nothing does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_report import build, write

from orchestrator.collectors.dumps import COLUMNS
from orchestrator.diagnose.hang import RULES
from orchestrator.formats import flight_recorder
from orchestrator.model import Capture, Finding
from orchestrator.tables import Table

S_NS = 10**9


def thread(**more: Any) -> dict[str, Any]:
    """The main thread of rank 0, as it stands in its training loop and has not moved."""
    row = {
        "rank": 0, "pid": 100, "process": "python train.py", "tid": more.get("pid", 100), "thread": "MainThread",
        "state": "S", "moved": False, "apart_ms": 5000.0, "cpu_ms": 0.0, "switches": 0, "function": "train",
        "file": "/srv/train.py", "line": 30, "stack": "train (train.py:30)", "recorder": False, "world_size": 2,
    }  # fmt: skip
    return {**row, **more}


def waits(rank: int, op: str = "all_reduce", **more: Any) -> dict[str, Any]:
    return thread(rank=rank, pid=100 + rank, doing="collective", what=op, **more)


def elsewhere(rank: int, **more: Any) -> dict[str, Any]:
    place = {"function": "load_batch", "file": "/srv/data.py", "line": 12}
    return thread(**{"rank": rank, "pid": 100 + rank, "doing": "file lock", "what": "/srv/lock", **place, **more})


def absent(rank: int, state: str) -> dict[str, Any]:
    return {"rank": rank, "state": state, "apart_ms": 5000.0, "world_size": 2}


def call(rank: int, seq: int, **more: Any) -> dict[str, Any]:
    """A collective that is over."""
    row = {
        "rank": rank, "pid": 100 + rank, "group": "0", "description": "default_pg", "ranks": "0,1", "seq": seq,
        "op": "all_reduce", "is_p2p": False, "state": "completed", "done": True, "input_sizes": "[[8]]",
        "function": "train", "file": "/srv/train.py", "line": 30, "fresh": True,
    }  # fmt: skip
    return {**row, **more}


def waiting_call(rank: int, seq: int, **more: Any) -> dict[str, Any]:
    return call(rank, seq, **{"state": "started", "done": False, "waited_ns": 90 * S_NS, **more})


def findings(folder: Path, threads: Sequence[dict[str, Any]], calls: Sequence[dict[str, Any]] = ()) -> list[Finding]:
    tables = {}
    for name, columns, rows in (("threads", COLUMNS, threads), ("collectives", flight_recorder.COLUMNS, calls)):
        if rows:
            table = Table.of(name, [tuple(row.get(c) for c in columns) for row in rows], columns)
            tables[name] = write(folder, table.with_capture("p01-dumps"))
    report = replace(build(folder), captures=(Capture("p01-dumps", "p01", "dumps", "ok"),), tables=tables)
    return [finding for rule in RULES for finding in rule(report)]


def only(found: list[Finding]) -> Finding:
    assert [one.rule for one in found] == [found[0].rule]
    return found[0]


# ---------------------------------------------------------------- by stacks


def test_the_rank_that_is_missing_is_named_with_its_place(tmp_path: Path) -> None:
    found = only(findings(tmp_path, [waits(0), elsewhere(1)]))
    assert found.title == (
        "Rank 1 is not in all_reduce, where rank 0 has waited for 5 s and more: it stands in load_batch (data.py:12), "
        "where it waits for a file's lock (/srv/lock), and has not moved for 5 s"
    )
    assert (found.severity, found.category, found.confidence) == ("critical", "communication", "high")
    assert found.where["function"] == "load_batch" and found.where["ranks"] == "1" and found.cost_s is None
    assert "lslocks" in found.advice and "TORCH_FR_BUFFER_SIZE=2000" in found.advice
    assert [(e.row, e.value) for e in found.evidence] == [
        ("rank 0", "train (train.py:30): all_reduce"),
        ("rank 1", "load_batch (data.py:12): file lock"),
    ]


def test_a_rank_that_gets_on_may_only_be_slow(tmp_path: Path) -> None:
    found = only(findings(tmp_path, [waits(0), elsewhere(1, doing="running", what=None, moved=True)]))
    assert (found.severity, found.confidence) == ("major", "medium")
    assert "only be slow" in found.advice and "--duration" in found.advice


@pytest.mark.parametrize(
    ("state", "severity", "said"),
    [("gone", "critical", "its process is gone"), ("not seen", "major", "on another machine, or outside")],
)
def test_a_rank_that_is_not_here(state: str, severity: str, said: str, tmp_path: Path) -> None:
    found = only(findings(tmp_path, [waits(0), absent(1, state)]))
    assert found.severity == severity and said in found.title


def test_ranks_in_different_collectives(tmp_path: Path) -> None:
    found = only(findings(tmp_path, [waits(0), waits(1), waits(2, "barrier", line=40)]))
    assert "Rank 2 is not in all_reduce, where ranks 0 and 1 have waited" in found.title
    assert "it is in barrier, called in train (train.py:40)" in found.title
    assert (found.severity, found.confidence) == ("critical", "medium")


def test_all_wait_in_the_same_collective(tmp_path: Path) -> None:
    found = only(findings(tmp_path, [waits(0), waits(1)]))
    assert found.severity == "major" and found.title == "All 2 ranks wait in all_reduce, and none has moved"
    apart = only(findings(tmp_path / "b", [waits(0), waits(1, line=50)]))
    assert apart.severity == "critical" and "train (train.py:30) and train (train.py:50)" in apart.title


def test_a_worker_with_its_ranks_number_does_not_stand_for_it(tmp_path: Path) -> None:
    worker = elsewhere(0, pid=300, doing="idle worker")
    assert "Rank 1" in only(findings(tmp_path, [waits(0), worker, elsewhere(1)])).title


def test_ranks_that_wait_for_the_gpu_while_another_stands_elsewhere(tmp_path: Path) -> None:
    spinning = thread(doing="CUDA", moved=None)
    found = only(findings(tmp_path, [spinning, elsewhere(1)]))
    assert found.rule == "rank_apart" and found.severity == "critical"
    assert "Rank 1 stands in load_batch (data.py:12)" in found.title and "rank 0 waits for the GPU" in found.title
    assert findings(tmp_path / "b", [spinning, thread(rank=1, pid=101, doing="CUDA", moved=None)]) == []


def test_gloo_has_no_recorder_that_could_be_asked_next_time(tmp_path: Path) -> None:
    gloo = thread(tid=7, thread="pt_gloo_runloop", stack=None, function=None)
    assert "TORCH_FR" not in only(findings(tmp_path, [waits(0), gloo, elsewhere(1)])).advice


# ---------------------------------------------------------------- by flight recorders


def test_a_recorder_that_agrees_makes_it_certain(tmp_path: Path) -> None:
    calls = [call(0, 1), waiting_call(0, 2), call(1, 1)]
    found = only(findings(tmp_path, [waits(0), elsewhere(1)], calls))
    assert "rank 0 has waited for 90 s" in found.title and found.confidence == "high"
    assert "all_reduce, no. 2 of group 0 (default_pg)" in found.advice


def test_a_recorder_alone_tells_who_is_behind(tmp_path: Path) -> None:
    """NCCL's collectives return at once: the caller's stack is somewhere else."""
    calls = [call(0, 1), waiting_call(0, 2), call(1, 1)]
    found = only(findings(tmp_path, [thread(moved=True), elsewhere(1, doing="pause", moved=None)], calls))
    assert found.rule == "rank_behind" and found.severity == "critical"
    assert found.title.startswith("Rank 1 has not come to all_reduce, no. 2 of group 0 (default_pg), called in train")
    assert "rank 0 has waited for 90 s; rank 1 stands in load_batch (data.py:12)" in found.title


@pytest.mark.parametrize(
    "calls",
    [
        [call(0, 2), call(1, 1)],
        [waiting_call(0, 2, waited_ns=S_NS // 10), call(1, 1)],
        [waiting_call(0, 2), waiting_call(1, 2)],
        [waiting_call(0, 2, is_p2p=True, op="send 0->1"), call(1, 1, is_p2p=True, op="recv 0<-1")],
        [waiting_call(0, 2, group="1", ranks="0,2"), call(1, 1)],
        [waiting_call(0, 2)],
    ],
)
def test_nobody_is_behind(calls: list[dict[str, Any]], tmp_path: Path) -> None:
    """It has ended, has just begun, all are in it, it has no common count, it is another group's, the other was not
    asked."""
    assert findings(tmp_path, [thread(moved=True), thread(rank=1, pid=101, moved=True)], calls) == []


@pytest.mark.parametrize(
    ("differs", "said"),
    [({"op": "barrier"}, "rank 1 barrier in train"), ({"input_sizes": "[[6]]"}, "rank 1 all_reduce of [[6]] in train")],
)
def test_ranks_that_have_called_different_things(differs: dict[str, str], said: str, tmp_path: Path) -> None:
    calls = [waiting_call(0, 2), waiting_call(1, 2, **differs)]
    found = only(findings(tmp_path, [thread(moved=True), thread(rank=1, pid=101, moved=True)], calls))
    assert found.rule == "collectives_differ" and found.severity == "critical" and said in found.title


# ---------------------------------------------------------------- without ranks


def lone(**more: Any) -> dict[str, Any]:
    return thread(**{"rank": None, "world_size": None, **more})


@pytest.mark.parametrize(
    ("doing", "category"),
    [
        ("lock", "lock_contention"), ("queue", "idle_wait"), ("file", "file_io"), ("network", "network_io"),
        ("data loader", "input_pipeline"), ("child", "process_spawn"), ("rendezvous", "communication"),
    ],
)  # fmt: skip
def test_a_main_thread_that_waits(doing: str, category: str, tmp_path: Path) -> None:
    found = only(findings(tmp_path, [lone(doing=doing)]))
    assert (found.rule, found.category, found.severity) == ("main_thread_waits", category, "major")
    assert "process 100" in found.title and "train (train.py:30)" in found.title and "5 s" in found.title


@pytest.mark.parametrize(
    "threads",
    [
        [],
        [lone(moved=True, doing="running")],
        [lone(moved=None, doing="CUDA")],
        [lone(doing="events")],
        [lone(doing="idle worker")],
        [lone(doing=None)],
        [lone(doing="launcher")],
        [lone(doing="lock", stack=None, function=None)],
        [lone(doing="child"), lone(pid=200, moved=True, doing="running")],
        [lone(doing="data loader"), lone(pid=200, moved=True, doing="file")],
        [lone(doing="thread join"), lone(tid=101, thread="work", moved=True)],
        [waits(0, moved=True), waits(1, moved=True)],
        [waits(0, moved=True), elsewhere(1, moved=True)],
    ],
)
def test_silence_where_nothing_hangs(threads: list[dict[str, Any]], tmp_path: Path) -> None:
    assert findings(tmp_path, threads) == []


def test_two_threads_that_wait_for_locks(tmp_path: Path) -> None:
    more = [lone(tid=n, thread=name, doing="lock", line=n) for n, name in ((101, "first"), (102, "second"))]
    found = only(findings(tmp_path, [lone(doing="thread join"), *more]))
    assert (
        found.rule == "threads_locked"
        and "first in train (train.py:101); second in train (train.py:102)" in found.title
    )
