"""profrun hang on programs that hang, and on one that does not: what it says, and that it leaves them as they are."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli import environment, profrun
from waiting import state, until

from orchestrator import tables

pytestmark = pytest.mark.tool("py-spy")

JOB = """
import fcntl, os, sys
import torch
import torch.distributed as dist


def load_batch(path):
    with open(path) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def train(lock, here):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    if os.environ.get("RECORD"):
        serve_recorder(rank)
    open(f"{here}/rank{rank}", "w").close()
    if rank == 1:
        load_batch(lock)
    dist.all_reduce(torch.ones(8))


def serve_recorder(rank):
    # what NCCL's monitor does where a pipe is named, with torch's own recorder and writer (Gloo has no such monitor)
    import threading
    from torch._C._distributed_c10d import _dump_fr_trace

    path = os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + str(rank) + ".pipe"
    os.mkfifo(path)
    pipe = os.open(path, os.O_RDWR)

    def monitor():
        while os.read(pipe, 1):
            with open(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank), "wb") as file:
                file.write(_dump_fr_trace())

    threading.Thread(target=monitor, daemon=True).start()


train(*sys.argv[1:])
"""

LOCKED = """
import sys, threading
one, two = threading.Lock(), threading.Lock()
both = threading.Barrier(2)


def first():
    with one:
        both.wait()
        with two:
            pass


def second():
    with two:
        both.wait()
        with one:
            pass


threads = [threading.Thread(target=f, name=f.__name__, daemon=True) for f in (first, second)]
for thread in threads:
    thread.start()
open(sys.argv[1] + "/started", "w").close()
for thread in threads:
    thread.join()
"""

WORKS = """
import sys


def step(n):
    return sum(i * i for i in range(n))


open(sys.argv[1] + "/started", "w").close()
while True:
    for n in range(1000, 1100):
        step(n)
"""


@contextmanager
def program(folder: Path, source: str, *words: str | Path, launcher: tuple[str, ...] = (), **env: str) -> Iterator[Any]:
    script = folder / "job.py"
    script.write_text(source)
    argv = [*(launcher or (sys.executable,)), script, *words]
    with (folder / "out").open("w") as out:
        quiet = environment(OMP_NUM_THREADS="1", **env)
        running = subprocess.Popen(argv, cwd=folder, env=quiet, stdout=out, stderr=out, start_new_session=True)
    try:
        yield running
    finally:
        os.killpg(running.pid, 9)
        for child in tree(running.pid):
            os.kill(child, 9)
        running.wait()


def tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in map(int, children) for found in (child, *tree(child))]


def waits_in(pids: list[int], *calls: str) -> bool:
    """Whether their main threads wait in these functions of the kernel."""
    seen = [Path(f"/proc/{pid}/wchan").read_text() for pid in pids]
    return all(any(call in one for one in seen) for call in calls)


@contextmanager
def hung_job(folder: Path, **env: str) -> Iterator[Any]:
    """Two ranks: one waits for a file's lock, the other in all_reduce."""
    torchrun = (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with program(folder, JOB, folder / "lock", folder, launcher=torchrun, **env) as running:
            until(lambda: all((folder / f"rank{rank}").exists() for rank in (0, 1)) or running.poll() is not None)
            assert running.poll() is None, (folder / "out").read_text()
            until(lambda: waits_in(tree(running.pid), "locks_lock_inode_wait", "futex"))
            yield running


def hang(folder: Path, pid: int, *more: str) -> Any:
    return profrun("hang", "--pid", str(pid), "--duration", "2s", *more, cwd=folder)


@pytest.mark.tool("torchrun")
def test_the_rank_that_is_missing_from_a_collective_is_named_and_all_goes_on(tmp_path: Path) -> None:
    with hung_job(tmp_path) as running:
        before = {pid: state(pid) for pid in tree(running.pid)}
        result = hang(tmp_path, running.pid)
        assert {pid: state(pid) for pid in tree(running.pid)} == before
    assert result.code == 0, result.stderr
    found = [one for one in result.summary["findings"] if one["category"] == "communication"]
    assert len(found) == 1
    assert found[0]["severity"] == "critical" and found[0]["cost_s"] is None
    assert found[0]["title"].startswith("Rank 1 is not in all_reduce, where rank 0 has waited")
    assert f"stands in load_batch (job.py:{line_of(JOB, 'fcntl.flock')})" in found[0]["title"]
    assert "has not moved" in found[0]["title"] and str(tmp_path / "lock") in found[0]["title"]
    assert "Rank 1 is not in all_reduce" in result.stderr
    threads = tables.read(result.folder / "tables" / "threads.parquet")
    main = threads[(threads["tid"] == threads["pid"]) & threads["rank"].notna()].set_index("rank")
    assert main["doing"].to_dict() == {0: "collective", 1: "file lock"}
    assert main["moved"].tolist() == [False, False] and main["world_size"].tolist() == [2, 2]
    assert "c10d::Work::wait" in main["stack"][0], "native frames, too"
    assert result.summary["captures"][0]["status"] == "ok"
    page, text = (result.folder / "index.html").read_text(), (result.folder / "report.md").read_text()
    assert "Where it stood" in page and "Where it stood" in text


def line_of(source: str, words: str) -> int:
    return next(n for n, line in enumerate(source.splitlines(), 1) if words in line)


@pytest.mark.tool("torchrun")
def test_flight_recorders_are_asked_and_say_how_long_it_waits(tmp_path: Path) -> None:
    names = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(tmp_path / "pipe_"), "TORCH_FR_BUFFER_SIZE": "100"}
    with hung_job(tmp_path, RECORD="1", TORCH_FR_DUMP_TEMP_FILE=str(tmp_path / "flight_"), **names) as running:
        result = hang(tmp_path, running.pid)
    assert result.code == 0, result.stderr
    collectives = tables.read(result.folder / "tables" / "collectives.parquet")
    last = collectives.groupby("rank")["seq"].max().to_dict()
    assert last == {0: 2, 1: 1}, "rank 1 has called one collective less"
    waiting = collectives[~collectives["done"]]
    assert waiting["op"].tolist() == ["all_reduce"] and waiting["input_sizes"].tolist() == ["[[8]]"]
    assert waiting["function"].tolist() == ["train"] and waiting["fresh"].all()
    found = [one for one in result.summary["findings"] if one["category"] == "communication"]
    assert len(found) == 1 and found[0]["confidence"] == "high"
    assert "The flight recorder says the same: all_reduce, no. 2 of group 0 (default_pg)" in found[0]["advice"]
    kept = sorted(a["path"].rpartition("/")[2] for a in result.summary["captures"][0]["artifacts"])
    assert kept == ["flight.0.pickle", "flight.1.pickle", "look.0.json", "look.1.json"]


def test_two_threads_in_a_deadlock_are_named_with_their_places(tmp_path: Path) -> None:
    with program(tmp_path, LOCKED, tmp_path) as running:
        until(lambda: (tmp_path / "started").exists())
        until(lambda: len(list(Path(f"/proc/{running.pid}/task").iterdir())) == 3)
        until(lambda: waits_in([running.pid], "futex"))
        result = hang(tmp_path, running.pid, "--set", "collectors.dumps.native=false")
        assert state(running.pid) == "S"
    found = result.summary["findings"]
    assert [one["rule"] for one in found] == ["threads_locked"], result.stderr
    places = [line_of(LOCKED, "        with two"), line_of(LOCKED, "        with one")]
    assert found[0]["severity"] == "major" and found[0]["category"] == "lock_contention"
    assert f"first in first (job.py:{places[0]}); second in second (job.py:{places[1]})" in found[0]["title"]


def test_a_program_that_works_gives_no_finding(tmp_path: Path) -> None:
    with program(tmp_path, WORKS, tmp_path) as running:
        until(lambda: (tmp_path / "started").exists())
        result = hang(tmp_path, running.pid)
        assert running.poll() is None
    assert result.code == 0 and result.summary["findings"] == []
    threads = tables.read(result.folder / "tables" / "threads.parquet")
    assert threads["moved"].tolist() == [True]


def test_a_stopped_program_is_read_without_being_woken(tmp_path: Path) -> None:
    with program(tmp_path, WORKS, tmp_path) as running:
        until(lambda: (tmp_path / "started").exists())
        os.kill(running.pid, 19)
        until(lambda: state(running.pid) == "T")
        result = hang(tmp_path, running.pid)
        assert state(running.pid) == "T"
    found = result.summary["findings"]
    assert [one["rule"] for one in found] == ["main_thread_waits"], result.stderr
    assert "is stopped" in found[0]["title"] and f"kill -CONT {running.pid}" in found[0]["advice"]


def test_without_a_process_it_says_what_it_needs(tmp_path: Path) -> None:
    result = profrun("hang", cwd=tmp_path)
    assert result.code == 2 and "profrun hang --pid PID" in result.stderr
    started = profrun("hang", "--", "true", cwd=tmp_path)
    assert started.code == 3 and "profrun hang --pid PID" in started.stderr
