"""perf for real: what it counts is what the kernel says, what it samples is what the program does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, cpu_s, until

from orchestrator import tables

pytestmark = [pytest.mark.tool("perf"), pytest.mark.usefixtures("tracepoints")]

TWO_C = Path(__file__).resolve().parents[1] / "golden" / "perf" / "two.c"
PYTHON = (sys.executable, "-I", "-S")

WORK = """
import json, os, resource, sys, time
def work():
    memory = bytearray(24 << 20)
    end = time.process_time() + 0.3
    while time.process_time() < end:
        sum(range(1000))
    for _ in range(150):
        time.sleep(0.0005)
pid = os.fork()
work()
if pid == 0:
    os._exit(0)
os.waitpid(pid, 0)
both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
truth = {
    "cpu_s": sum(u.ru_utime + u.ru_stime for u in both),
    "faults": sum(u.ru_minflt + u.ru_majflt for u in both),
    "switches": sum(u.ru_nvcsw + u.ru_nivcsw for u in both),
}
json.dump(truth, open(sys.argv[1], "w"))
"""
SPIN = "import time\nend = time.process_time() + {seconds}\nwhile time.process_time() < end: sum(range(1000))\n"


def counters(result: Result) -> dict[str, dict[str, Any]]:
    frame = tables.read(result.folder / "tables" / "counters.parquet")
    return {row["event"]: row for row in frame.to_dict("records")}


def functions(result: Result) -> Any:
    return tables.read(result.folder / "tables" / "functions.parquet")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Counters and samples of a program that spends twice as long in `two` as in `one`."""
    compiler, folder = shutil.which("cc"), tmp_path_factory.mktemp("two")
    if compiler is None:
        pytest.skip("no C compiler on this machine")
    subprocess.run([compiler, "-O1", TWO_C, "-o", folder / "two", "-lpthread"], check=True)
    plan = write_plan(folder, "{use: perf, mode: record, rate: 499}", "{use: perf}", target="{ok_exit_codes: [7]}")
    return profrun(plan, "--", folder / "two", "40000000", "x", cwd=folder)


# ---------------------------------------------------------------- counters


def test_counters_are_what_the_kernel_says_of_a_target_and_its_child(tmp_path: Path) -> None:
    truth_file = tmp_path / "truth.json"
    plan = write_plan(tmp_path, "together: [{use: perf}, {use: perf, mode: record, time_cap: 200ms}]")
    result = profrun(plan, "--", *PYTHON, "-c", WORK, truth_file, cwd=tmp_path)
    counted, sampled = result.summary["captures"]
    assert result.code == 0 and counted["status"] == "ok", result.stderr
    found, truth = counters(result), json.loads(truth_file.read_text())
    assert found["task-clock"]["value"] / 1e3 == pytest.approx(truth["cpu_s"], rel=0.1)
    assert found["page-faults"]["value"] == pytest.approx(truth["faults"], rel=0.05, abs=300)
    assert found["context-switches"]["value"] == pytest.approx(truth["switches"], rel=0.1, abs=20)
    assert truth["switches"] >= 300, "each of the two has slept 150 times"
    (run,) = result.summary["passes"]
    utilized = result.summary["metrics"]["cpus_utilized"]["value"]
    assert utilized == pytest.approx(found["task-clock"]["value"] / 1e3 / run["wall_s"], rel=0.05)
    known, notes = found["cycles"]["value"], " ".join(counted["notes"])
    assert (known and known > 0) or "can't count cycles" in notes, "unknown, with a word, where nothing counts it"
    assert sampled["status"] == "degraded" and "size or time limit" in sampled["reason"], "a cap ends a recording"


def test_a_killed_target_keeps_its_signal_and_its_data(tmp_path: Path) -> None:
    program = f"import os\n{SPIN.format(seconds=0.4)}\nos.kill(os.getpid(), 9)"
    plan = write_plan(tmp_path, "together: [{use: perf}, {use: perf, mode: record}]")
    result = profrun(plan, "--", *PYTHON, "-c", program, cwd=tmp_path)
    assert result.code == 137 and result.summary["outcome"]["target_signal"] == 9
    assert [capture["status"] for capture in result.summary["captures"]] == ["ok", "ok"], "and they share a run"
    assert counters(result)["task-clock"]["value"] > 100
    assert functions(result)["self_samples"].sum() > 0


def test_a_window_counts_its_own_time_only(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: perf, events: [task-clock]}", window="{after: 200ms, for: 200ms}")
    result = profrun(plan, "--", *PYTHON, "-c", SPIN.format(seconds=1.5), cwd=tmp_path)
    assert result.statuses() == {"perf": "ok"}, result.stderr
    assert 0 < counters(result)["task-clock"]["value"] < 1300


# ---------------------------------------------------------------- system calls

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the kernel's tracepoints")
CALLS = (
    "import os\nfd = os.open('/dev/null', 1)\nfor _ in range(700): os.write(fd, b'x')\nfor _ in range(40): os.stat('/')"
)


@only_root
@pytest.mark.tool("strace")
def test_as_many_system_calls_as_strace_has_seen(tmp_path: Path) -> None:
    events = "[write, openat, newfstatat, stat, close, fstat, brk, mmap]"
    plan = write_plan(tmp_path, f"{{use: perf, mode: syscalls, events: {events}}}", "{use: strace}")
    result = profrun(plan, "--", *PYTHON, "-c", CALLS, cwd=tmp_path)
    assert result.statuses() == {"perf": "ok", "strace": "ok"}, result.stderr
    frame = tables.read(result.folder / "tables" / "syscalls.parquet")
    by_perf, by_strace = (
        dict(zip(rows["name"], rows["count"], strict=True))
        for rows in (frame[frame["capture"].str.contains(name)] for name in ("perf", "strace"))
    )
    assert by_perf["write"] == 700 and by_perf.get("newfstatat", 0) + by_perf.get("stat", 0) >= 40
    assert by_perf == {name: by_strace[name] for name in by_perf}
    mine = frame[frame["capture"].str.contains("perf")]
    assert mine["total_ns"].isna().all() and mine["errors"].isna().all(), "counted, not timed: unknown, not 0"
    assert result.summary["metrics"]["syscalls_per_s"]["value"] > 0
    assert "perf had counted" in result.captures()["strace"]["notes"][-2]


@only_root
@pytest.mark.tool("strace")
def test_what_the_count_lets_expect_decides_about_strace(tmp_path: Path) -> None:
    loop = "import os\nfd = os.open('/dev/null', 1)\nwhile True: os.write(fd, b'x')"
    plan = write_plan(
        tmp_path, "{use: perf, mode: syscalls, events: [write]}", "{use: strace, max_slowdown: 1.01, required: false}"
    )
    ranks = [subprocess.Popen([*PYTHON, "-c", loop], env={**os.environ, "RANK": str(rank)}) for rank in (0, 1)]
    try:
        until(lambda: all(cpu_s(one.pid) > 0.05 for one in ranks))
        pids = [word for one in ranks for word in ("--pid", str(one.pid))]
        result = profrun(plan, *pids, "--duration", "500ms", cwd=tmp_path)
        assert all(one.poll() is None for one in ranks)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert result.code == 0 and result.statuses() == {"perf": "ok", "strace": "skipped"}, result.stderr
    assert "--set collectors.strace.max_slowdown=null" in result.captures()["strace"]["reason"]
    frame = tables.read(result.folder / "tables" / "syscalls.parquet")
    assert {(row["rank"], row["pid"]) for row in frame.to_dict("records")} == {(n, ranks[n].pid) for n in (0, 1)}
    assert set(frame["name"]) == {"write"} and (frame["count"] > 100).all()


# ---------------------------------------------------------------- samples


def test_shares_stacks_threads_and_children_are_the_programs(recorded: Result) -> None:
    assert recorded.code == 0 and recorded.statuses() == {"perf": "ok"}, recorded.stderr
    assert recorded.summary["outcome"]["target_exit_code"] == 7
    frame = functions(recorded)
    mine = frame[frame["file"] == str(recorded.cwd / "two")]
    shares = mine.groupby("function")["self_pct"].sum()
    assert shares["two"] / shares["one"] == pytest.approx(2, rel=0.5)
    assert mine["pid"].nunique() == 2, "a forked child"
    assert len(mine[mine["function"] == "thread"]) == 1, "and a thread, whose stack begins there"
    assert mine.groupby("function")["total_pct"].sum()["work"] == pytest.approx(100, abs=15)
    assert set(frame["kind"]) == {"cpu"}


def test_samples_and_counters_agree(recorded: Result) -> None:
    stacks = tables.read(recorded.folder / "tables" / "stacks.parquet")
    sampled, counted = stacks["weight_ns"].sum() / 1e6, counters(recorded)["task-clock"]["value"]
    assert sampled == pytest.approx(counted, rel=0.4)
    first, _ = recorded.summary["captures"]
    assert any(note.startswith(f"{stacks['samples'].sum():,} samples at 499 Hz") for note in first["notes"])


def test_a_rebuild_needs_no_perf(recorded: Result) -> None:
    files = [recorded.folder / "tables" / f"{name}.parquet" for name in ("stacks", "functions", "counters")]
    before = [tables.read(path) for path in files]
    for path in [*files, *recorded.folder.glob("raw/*/perf.data")]:
        path.unlink()
    broken = script(recorded.cwd / "perf", "#!/bin/sh\nexit 1\n").parent
    again = profrun("report", recorded.folder, cwd=recorded.cwd, env=environment(PATH=f"{broken}:/usr/bin:/bin"))
    assert again.code == 0, again.stderr
    assert all(old.equals(tables.read(path)) for old, path in zip(before, files, strict=True))


# ---------------------------------------------------------------- running processes


def test_a_running_process_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "together: [{use: perf}, {use: perf, mode: record, call_graph: fp}]")
    with subprocess.Popen([*PYTHON, "-c", SPIN.format(seconds=600)]) as target:
        result = profrun(plan, "--pid", str(target.pid), "--duration", "900ms", cwd=tmp_path)
        assert result.code == 0 and result.statuses() == {"perf": "ok"}, result.stderr
        assert target.poll() is None
        target.kill()
    assert 0 < counters(result)["task-clock"]["value"] < 20_000, "of 0.9 s, not of all that it has run"
    assert functions(result)["self_samples"].sum() > 0


def test_an_idle_process_is_empty_not_zero(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "together: [{use: perf}, {use: perf, mode: record}]")
    with subprocess.Popen(["sleep", "600"]) as target:
        result = profrun(plan, "--pid", str(target.pid), "--duration", "600ms", cwd=tmp_path)
        target.kill()
    assert result.code == 0, result.stderr
    assert [capture["status"] for capture in result.summary["captures"]] == ["empty", "empty"]
    assert not list((result.folder / "tables").glob("*.parquet"))


def test_ctrl_c_keeps_what_was_counted(tmp_path: Path) -> None:
    words = command(
        write_plan(tmp_path, "{use: perf}"), "--", *PYTHON, "-c", f"open('here', 'w')\n{SPIN.format(seconds=600)}"
    )
    with subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        until((tmp_path / "here").exists)
        time.sleep(0.3)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=LIMIT_S)
    result = Result(running.returncode, out, "", tmp_path)
    assert result.code == 130
    assert counters(result)["task-clock"]["value"] > 0
