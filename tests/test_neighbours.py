"""The other processes of a machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from fakes.proc import FakeProc

from orchestrator import neighbours
from orchestrator.machine import Machine


@pytest.fixture
def fake(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_a_process_is_told_by_pid_user_and_command_without_secrets(fake: FakeProc) -> None:
    fake.process(12, "python", "python", "train.py", "--api-key=abc123", "--token", "xyz789")
    one = neighbours.describe(fake.machine, 12)
    assert one == {"pid": 12, "user": "root", "command": "python train.py --api-key=[redacted] --token [redacted]"}
    assert neighbours.told(one) == "pid 12 (root, python train.py --api-key=[redacted] --token [redacted])"


def test_what_is_not_known_of_it_is_said(fake: FakeProc) -> None:
    fake.process(12, "kworker/0:1")
    fake.process(13, "a", "a" * 300, uid=4_000_000_000)
    assert neighbours.command(fake.machine, 12) == "[kworker/0:1]"
    assert neighbours.user(fake.machine, 13) == "user 4000000000"
    assert neighbours.command(fake.machine, 13) == "a" * 67 + "..."
    assert neighbours.told(neighbours.describe(fake.machine, 99)) == "pid 99 (who it is can't be seen from here)"


def test_trees_whatever_a_process_is_called(fake: FakeProc) -> None:
    fake.process(10, "a) S 1 (b", "x")
    fake.process(11, "child", "x", parent=10)
    fake.process(12, "grandchild", "x", parent=11)
    fake.process(20, "other", "x")
    all_ = neighbours.everyone(fake.machine)
    assert all_[10].name == "a) S 1 (b"
    assert neighbours.tree(10, all_) == {11, 12}
    assert [one.pid for one in neighbours.ancestors(12, all_)] == [11, 10, 1]
    fake.machine.target_pids = (10,)
    assert neighbours.ours(fake.machine, all_) - {os.getpid()} == {10, 11, 12}


def test_what_a_process_used_also_where_its_pid_was_somebody_elses(fake: FakeProc) -> None:
    fake.process(10, "old", "x")
    fake.process(11, "steady", "x")
    fake.passes(5, used={10: 1.0, 11: 1.0})
    first = neighbours.everyone(fake.machine)
    fake.ends(10)
    fake.process(12, "new", "x")
    fake.passes(2, used={11: 0.5, 12: 1.5})
    then = neighbours.everyone(fake.machine)
    assert neighbours.cores_pct(first, then, 2.0) == {1: 0.0, 11: 50.0, 12: 150.0}
    reused = {12: neighbours.Neighbour(12, 1, "earlier", 10_000, started_ticks=3)}
    assert neighbours.cores_pct(reused, then, 2.0)[12] == 150.0


def test_hidden_processes_are_told(fake: FakeProc) -> None:
    assert neighbours.unseen(fake.machine) is None
    fake.write(".dockerenv", "")
    assert "outside this container (docker)" in (neighbours.unseen(fake.machine) or "")
    fake.ends(1)
    assert "hidepid" in (neighbours.unseen(fake.machine) or "")


def test_this_machine() -> None:
    all_ = neighbours.everyone(Machine())
    assert os.getpid() in neighbours.ours(Machine(), all_)
    assert all_[os.getpid()].parent == os.getppid()
    assert sys.executable.rpartition("/")[2] in (neighbours.command(Machine(), os.getpid()) or "")


def test_an_unreadable_proc_is_an_empty_one(tmp_path: Path) -> None:
    assert neighbours.everyone(Machine(root=tmp_path)) == {}


def test_long_lists_end() -> None:
    assert neighbours.some("abcde") == "a, b, c and 2 more"
    assert neighbours.some("abc") == "a, b, c"
