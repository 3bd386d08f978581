"""Ranks while they run: found by what their environment says, followed to their ends."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from waiting import until

from orchestrator import process
from orchestrator.launchers.watch import Watch, name_of_rank
from orchestrator.model import Exit, RankSeen
from orchestrator.standalone import start_ranks

JOB = """
import os, subprocess, sys
def start(rank, script):
    return subprocess.Popen(["sh", "-c", script], env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "3"}, stdin=0)
ranks = [start(0, "read line; sleep 0 & read line"), start(1, "read line; exit 9")]
print("started", flush=True)
sys.exit(max(rank.wait() for rank in ranks))
"""
"""Two of three ranks, which end when they are told to; their starter takes note of each end at once."""


@contextmanager
def job(env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", JOB], env={**os.environ, **(env or {})}, **pipes) as started:
        assert started.stdout and started.stdout.readline() == b"started\n"
        yield started
        started.kill()


def seen_all(watch: Watch, pid: int) -> bool:
    watch.look(pid, time.time_ns(), at_once=True)
    return len(watch.filenos()) == 2


def ranks_of(pid: int) -> dict[str, int]:
    """The children of a process, by the rank that their environment names."""
    found = ((process.environ_of(child) or {}, child) for child in process.children(pid))
    return {env["RANK"]: child for env, child in found if "RANK" in env}


def test_ranks_are_found_and_their_ends_are_told() -> None:
    with job() as one:
        watch = Watch()
        until(lambda: seen_all(watch, one.pid))
        assert watch.expected == 3
        assert one.stdin
        for pid in process.children(one.pid):
            assert watch.rank_of(pid) in (0, 1)
            assert f"-rank{watch.rank_of(pid)}-pid{pid}." in name_of_rank(pid)
        one.stdin.write(b"\n\n\n\n")
        one.stdin.close()
        assert one.wait(60) == 9
        until(lambda: bool(watch.look(one.pid, time.time_ns()) or not watch.filenos()))
        seen = watch.close(time.time_ns())
    assert [(r.rank, r.world_size, r.exit) for r in seen] == [(0, 3, Exit(0)), (1, 3, Exit(9))]
    assert all(r.started_ns and r.ended_ns and r.started_ns < r.ended_ns for r in seen)


def test_what_profrun_itself_is_told_of_a_rank_is_another_jobs() -> None:
    with job() as one:
        until(lambda: len(ranks_of(one.pid)) == 2)  # a child has its own environment only from its exec on
        ranks = ranks_of(one.pid)
        watch = Watch(env={"RANK": "1", "WORLD_SIZE": "3"})
        until(lambda: bool(watch.look(one.pid, time.time_ns(), at_once=True) or watch.filenos()))
        assert (watch.rank_of(ranks["0"]), watch.rank_of(ranks["1"])) == (0, None)
        assert watch.is_ours(1, None, 3) and not watch.is_ours(0, None, 3)
        watch.close(0)


def test_a_job_of_another_size_has_ranks_of_the_same_number() -> None:
    """As on a master of Kubeflow's, whose own environment says RANK=0 of one."""
    with job() as one:
        watch = Watch(env={"RANK": "0", "WORLD_SIZE": "1"})
        until(lambda: seen_all(watch, one.pid))
        assert not watch.is_ours(0, None, 3)
        watch.close(0)


def test_the_command_says_how_many_there_are_to_be_until_they_say_it_themselves() -> None:
    assert Watch(4).expected == 4 and Watch().expected is None
    with job({"LOCAL_WORLD_SIZE": "2"}) as one:
        watch = Watch(4)
        until(lambda: seen_all(watch, one.pid))
        assert watch.expected == 2
        watch.close(0)


def test_an_end_that_nobody_can_tell_stays_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_PIDFD_GET_INFO", 0)  # as a kernel before 6.15 has it
    with subprocess.Popen(["sh", "-c", "exit 9"]) as child:
        onlooker = process.Onlooker(child.pid)
        until(onlooker.ended)
        assert onlooker.exit() == Exit(9), "nobody has taken note of it yet"
        child.wait()
        assert onlooker.ended() and onlooker.exit() is None
        onlooker.close()


def test_before_linux_6_15_the_rank_that_failed_is_known_by_profruns_own_starter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "_PIDFD_GET_INFO", 0)
    script = "read line; test $RANK = 0 || exit 9; exec sleep 60"
    argv = [sys.executable, "-I", "-S", start_ranks.__file__, "2", "sh", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as starter:
        watch = Watch()
        until(lambda: seen_all(watch, starter.pid))
        assert starter.stdin
        starter.stdin.write(b"\n\n")
        starter.stdin.close()
        ended = until(lambda: watch.look(starter.pid, time.time_ns()))
        assert starter.wait(60) == 9
        watch.close(time.time_ns())
    assert (ended[0].rank, ended[0].exit) == (1, Exit(9))


def test_a_rank_without_a_launcher_is_no_word_in_a_files_name() -> None:
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"]}) as child:
        until(lambda: process.argv_of(child.pid) == ("sleep", "60"))
        assert name_of_rank(child.pid) == ""
        child.kill()


def test_a_seen_rank_is_as_it_was_when_nobody_looked_further() -> None:
    assert RankSeen(3) == RankSeen(rank=3, local_rank=None, world_size=None, exit=None, started=())
