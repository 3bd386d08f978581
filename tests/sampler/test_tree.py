"""sampler/: what it reads from /proc, held against what the kernel tells elsewhere."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waiting import state, until

from orchestrator.sampler import proc, tree
from orchestrator.sampler.host import Host
from orchestrator.sampler.log import COLUMNS, Log
from orchestrator.sampler.tree import Stat, Threads, Tree


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(str(tmp_path / "log"))


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def row(of: Tree, pid: int) -> dict[str, Any]:
    return dict(zip(COLUMNS["process"], of.read()[str(pid)], strict=True))


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as program:
        yield program
        program.kill()


# ---------------------------------------------------------------- small files


def test_numbers_are_found_by_their_words() -> None:
    assert proc.numbers("a 1\nintr 5 6 7\nb 2\n", ("b", "a", "c")) == [2, 1, None]
    assert proc.numbers("MemAvailable:   12 kB\n\n", ("MemAvailable",), ":") == [12]
    assert proc.numbers("", ("a",)) == [None]


def test_what_is_not_there_is_empty() -> None:
    assert (proc.read("/proc/0/stat"), proc.names("/proc/0/task"), proc.cpu_ns(2**22 + 1)) == ("", [], None)


def test_the_host_has_every_column() -> None:
    host, cores = Host().read()
    known = dict(zip(COLUMNS["host"], host, strict=True))
    assert len(cores) == os.cpu_count() and all(len(core) == len(COLUMNS["core"]) for core in cores.values())
    assert 0 < (known["busy_ticks"] or 0) < (known["all_ticks"] or 0)
    assert (known["memory_available_bytes"] or 0) > 1 << 20


def test_pressure_that_the_kernel_does_not_tell_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.sampler.host.read", lambda p: "" if "pressure" in p else proc.read(p))
    known = dict(zip(COLUMNS["host"], Host().read()[0], strict=True))
    assert known["io_some_us"] is None and known["context_switches"]


CGROUPS = {
    "/proc/7/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box/job\n0::/box/job\n",
    "/sys/fs/cgroup/box/job/cpu.stat": "usage_usec 9\nnr_throttled 0\nthrottled_usec 0\n",
    "/sys/fs/cgroup/box/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 250000\n",
    "/sys/fs/cgroup/cpu,cpuacct/box/cpu.stat": "nr_periods 5\nthrottled_time 99000\n",
}


def test_a_group_that_is_held_back_is_seen_from_those_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    files = dict(CGROUPS)
    monkeypatch.setattr("orchestrator.sampler.host.read", lambda path: files.get(path) or proc.read(path))
    assert dict(zip(COLUMNS["host"], Host(7).read()[0], strict=True))["throttled_us"] == 250_000
    del files["/sys/fs/cgroup/box/cpu.stat"], files["/sys/fs/cgroup/box/job/cpu.stat"]
    assert dict(zip(COLUMNS["host"], Host(7).read()[0], strict=True))["throttled_us"] == 99
    monkeypatch.setattr("orchestrator.sampler.host.read", lambda path: "" if "cgroup" in path else proc.read(path))
    assert dict(zip(COLUMNS["host"], Host(7).read()[0], strict=True))["throttled_us"] is None


# ---------------------------------------------------------------- processes


def test_our_own_figures_are_those_of_getrusage(log: Log) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF)
    mine, usage = row(Tree([os.getpid()], log, gated=False), os.getpid()), resource.getrusage(resource.RUSAGE_SELF)
    begin, end = (1e9 * (of.ru_utime + of.ru_stime) for of in (before, usage))
    assert begin - 2000 <= mine["cpu_ns"] <= end + 2000  # each of two times is told in whole microseconds
    assert before.ru_minflt <= mine["minor_faults"] <= usage.ru_minflt
    assert 0 < mine["rss_bytes"] <= usage.ru_maxrss * 1024 * 1.05
    assert mine["threads"] == len(os.listdir("/proc/self/task"))  # noqa: PTH208


def test_traffic_is_counted(log: Log, tmp_path: Path) -> None:
    watched = Tree([os.getpid()], log, gated=False)
    before = row(watched, os.getpid())["write_bytes"]
    (tmp_path / "x").write_bytes(b"x" * 1_000_000)
    assert 1_000_000 <= row(watched, os.getpid())["write_bytes"] - before < 1_100_000


def test_switches_of_threads_that_have_ended_still_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "_THREADS_EVERY_NS", 0)
    counts = Threads()
    tasks = Path("/proc/self/task")
    first = counts.read(os.getpid(), os.listdir(tasks))  # noqa: PTH208
    assert first[:2] == [0, 0]
    slept, end = threading.Event(), threading.Event()

    def work() -> None:
        for _ in range(30):
            time.sleep(0.001)
        slept.set()
        end.wait()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    slept.wait()
    counts.read(os.getpid(), os.listdir(tasks))  # noqa: PTH208
    end.set()
    thread.join()
    assert (counts.read(os.getpid(), os.listdir(tasks))[0] or 0) >= 20  # noqa: PTH208


def test_switches_are_not_read_at_every_round(log: Log) -> None:
    watched = Tree([os.getpid()], log, gated=False)
    assert row(watched, os.getpid())["voluntary_switches"] == 0
    assert row(watched, os.getpid())["voluntary_switches"] is None


def test_the_wait_for_a_processor_is_counted_as_the_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads than processors: their queue grows, and no thread's faster than time itself."""
    monkeypatch.setattr(tree, "_THREADS_EVERY_NS", 0)
    spin = "import time, sys\nprint(flush=True)\nend = time.time() + 60\nwhile time.time() < end: pass"
    busy = [sys.executable, "-S", "-c", spin]
    only = {min(os.sched_getaffinity(0))}
    with subprocess.Popen(busy, stdout=subprocess.PIPE) as one, subprocess.Popen(busy, stdout=subprocess.PIPE) as two:
        for program in (one, two):
            os.sched_setaffinity(program.pid, only)
            assert program.stdout and program.stdout.readline()
        counts = Threads()
        began_ns, first = time.monotonic_ns(), counts.read(one.pid, [str(one.pid)])
        until(lambda: (counts.read(one.pid, [str(one.pid)])[2] or 0) > 100_000_000)
        last, ended_ns = counts.read(one.pid, [str(one.pid)]), time.monotonic_ns()
        one.kill()
        two.kill()
    waited_ns = (last[3] or 0) - (first[3] or 0)
    assert first[2] == 0 and 100_000_000 < waited_ns < ended_ns - began_ns
    assert last[2] == waited_ns


def test_where_the_kernel_does_not_count_the_queue_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "read", lambda path: "" if "schedstat" in path else proc.read(path))
    assert Threads().read(os.getpid(), [str(os.getpid())]) == [0, 0, None, None]


def test_children_come_and_go(log: Log, tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    watched = Tree([os.getpid()], log, gated=False)
    assert str(sleeper.pid) in watched.read()
    assert {event.get("seen") for event in events(tmp_path)} >= {os.getpid(), sleeper.pid}
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    ended = dict(zip(COLUMNS["process"], watched.read()[str(sleeper.pid)], strict=True))
    assert ended["cpu_ns"] > 0 and ended["rss_bytes"] is None, "a zombie has its time and nothing else"
    sleeper.wait()
    assert str(sleeper.pid) not in watched.read()


def test_it_lives_as_long_as_one_of_them(log: Log) -> None:
    program, pipes = "sleep 600 & echo $!; read line", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["sh", "-c", program], text=True, **pipes) as shell:  # type: ignore[call-overload]
        child = int(shell.stdout.readline())
        watched = Tree([shell.pid], log, gated=False)
        assert str(child) in watched.read() and watched.alive()
    assert watched.alive() and str(child) in watched.read(), "also when it has another parent now"
    os.kill(child, 9)
    until(lambda: state(child) in "XZ")
    assert not watched.alive()


def test_a_fork_counts_from_its_exec_on(log: Log, tmp_path: Path) -> None:
    begin, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(begin, 1)
        os.execv("/bin/sleep", ["sleep", "600"])
    try:
        gated = Tree([pid], log, gated=True)
        assert gated.read() == {} and gated.alive() and not (tmp_path / "log").read_text()
        assert str(pid) in Tree([pid], log, gated=False).read(), "one that runs already counts as it is"
        os.write(end, b"x")
        until(lambda: not Stat(pid).is_fork)
        assert str(pid) in gated.read() and [e["name"] for e in events(tmp_path) if "name" in e][-1] == "sleep"
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def test_an_exec_is_noticed_and_a_new_name_is_none(log: Log, tmp_path: Path) -> None:
    program = (
        "import ctypes, os; ctypes.CDLL(None).prctl(15, b'renamed', 0, 0, 0); print(flush=True); input(); "
        "os.execv('/bin/sleep', ['sleep', '600'])"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], **pipes) as target:  # type: ignore[call-overload]
        watched = Tree([target.pid], log, gated=False)
        watched.read()
        target.stdout.readline()
        watched.read()
        assert [event["exec"] for event in events(tmp_path) if "seen" in event] == [False]
        target.stdin.write(b"\n")
        target.stdin.flush()
        until(lambda: Stat(target.pid).name == "sleep")
        watched.read()
        assert [event["name"] for event in events(tmp_path) if event.get("exec")] == ["sleep"]
        target.kill()


def test_only_what_names_gpus_is_taken_from_an_environment(log: Log, tmp_path: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "2,3", "SECRET": "hunter2"}
    with subprocess.Popen(["/bin/sleep", "600"], env=env) as target:
        until(lambda: Stat(target.pid).name == "sleep" and proc.read(f"/proc/{target.pid}/environ"))
        watched = Tree([target.pid], log, gated=False)
        watched.read()
        watched.read()
        target.kill()
    assert [event["environment"] for event in events(tmp_path) if "environment" in event] == [
        {"CUDA_VISIBLE_DEVICES": "2,3"}
    ]
    assert "hunter2" not in (tmp_path / "log").read_text()


def test_an_environment_that_is_not_there_yet_is_asked_for_again(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the middle of an exec, which also has no stack yet: that is no second exec."""
    texts = {"environ": "", "stack": "0"}

    def read(path: str) -> str:
        if path.endswith("environ"):
            return texts["environ"]
        return proc.read(path).rpartition(")")[0] + ") S" + " 1" * 24 + " " + texts["stack"] if "stat" in path else ""

    monkeypatch.setattr(tree, "read", read)
    watched = Tree([os.getpid()], log, gated=False)
    watched.read()
    texts.update(environ="A=1\0CUDA_VISIBLE_DEVICES=\0", stack="7")
    watched.read()
    seen, given = events(tmp_path)
    assert seen["exec"] is False and given["environment"] == {"CUDA_VISIBLE_DEVICES": ""}
