"""strace for real: its command lines leave the target its own master, and what is read is what was counted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cli import profrun, write_plan
from waiting import LIMIT_S, cpu_s, state, until

from orchestrator import tables
from orchestrator.collectors.strace import Strace
from orchestrator.formats.strace import read_summary, read_trace
from orchestrator.formats.syscalls import syscall_class
from orchestrator.machine import Machine
from orchestrator.model import Beside, Job, Sign, Target

pytestmark = pytest.mark.tool("strace")

SHELL_LOOP = "for i in 1 2 3 4 5; do cat /etc/passwd >/dev/null; ls /nothing 2>/dev/null; done; : | cat"


def strace(**options: Any) -> Strace:
    return Strace.model_validate({"use": "strace", **options})


def job(folder: Path, collector: Strace, **more: Any) -> Job:
    target = Target(("sh",), "/bin/sh", "/", dict(os.environ))
    return Job("p1", str(folder), target, collector.tool(Machine()), **more)


def wrapped(folder: Path, argv: Sequence[str], **options: Any) -> tuple[int, Path]:
    """Runs a program under the filter; gives its wait status and the file, once the tracer has written it."""
    collector = strace(**options)
    launch = collector.launch(job(folder, collector, facts={"leftovers": 0}))
    assert launch.wrap is not None, launch.notes
    status = subprocess.run([*launch.wrap.argv, *argv], check=False, timeout=LIMIT_S).returncode
    path = folder / launch.artifacts[0].glob
    until(lambda: path.exists() and path.read_bytes().endswith(b"\n"))
    return status, path


def attached(folder: Path, pids: Sequence[int], **options: Any) -> tuple[subprocess.Popen[bytes], Path]:
    """strace beside running processes, once it has them all."""
    collector = strace(**options)
    launch = collector.launch(job(folder, collector, pids=tuple(pids)))
    (beside,) = launch.beside
    tracer = subprocess.Popen(filled(beside, *pids), stderr=(folder / "stderr.log").open("wb"))
    until(lambda: tracer.poll() is not None or all(tracer_of(pid) == tracer.pid for pid in pids))
    return tracer, folder / launch.artifacts[0].glob


def filled(beside: Beside, *pids: int) -> list[str]:
    return [word.replace("{pids}", ",".join(map(str, pids))) for word in beside.argv]


def tracer_of(pid: int) -> int:
    found = re.search(r"TracerPid:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) if found else 0


def counts(path: Path) -> dict[str, tuple[int, int]]:
    return {row["name"]: (row["count"], row["errors"]) for row in read_summary(path).syscalls.rows()}


# ---------------------------------------------------------------- the same counts


def test_counts_equal_those_of_a_plain_strace(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    subprocess.run(["strace", "-f", "-c", "-o", plain, "sh", "-c", SHELL_LOOP], check=True)
    status, path = wrapped(tmp_path, ["sh", "-c", SHELL_LOOP])
    assert status == 0
    chosen = {
        name: both
        for name, both in counts(plain).items()
        if syscall_class(name) != "other" or name == "set_robust_list"
    }
    assert counts(path) == chosen and chosen["execve"][0] >= 12


def test_a_trace_holds_what_a_summary_counts(tmp_path: Path) -> None:
    _, summary = wrapped(tmp_path, ["sh", "-c", SHELL_LOOP])
    _, log = wrapped(tmp_path, ["sh", "-c", SHELL_LOOP], mode="trace", size_cap=None, time_cap=None)
    trace = read_trace(log)
    calls = dict.fromkeys(counts(summary), 0)
    for row in trace.syscalls.rows():
        calls[row["name"]] += row["count"]
    assert calls == {name: count for name, (count, _) in counts(summary).items()}
    assert trace.syscalls.dropped == 0 and None not in trace.syscalls.columns["pid"]
    passwd = next(row for row in trace.paths.rows() if row["path"] == "/etc/passwd")
    assert passwd["bytes"] == 5 * Path("/etc/passwd").stat().st_size


@pytest.mark.parametrize("name", ["file", "network", "process", "memory", "desc"])
def test_our_classes_are_straces_own(tmp_path: Path, name: str) -> None:
    program = (
        "import socket, subprocess, mmap; subprocess.run(['true']); socket.create_server(('127.0.0.1', 0)).close()"
    )
    out = tmp_path / "summary.txt"
    argv = ["strace", "-f", "-e", f"trace=%{name}", "-c", "-o", out, sys.executable, "-I", "-S", "-c", program]
    subprocess.run(argv, check=True)
    order = ["file", "network", "process", "memory", "desc"]
    seen = {call: syscall_class(call) for call in counts(out)}
    assert seen and all(kind in order[: order.index(name) + 1] for kind in seen.values()), seen


def test_threads_that_call_nothing_else_still_run_at_full_speed(tmp_path: Path) -> None:
    """Without the call that every thread makes first, a filter for files would stop each write of these threads. To be
    stopped is to give the processor up."""
    program = (
        "import os, resource, threading\n"
        "def work():\n"
        "    for _ in range(3000): os.write(sink, b'x')\n"
        "    stops.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw)\n"
        "sink, stops = os.open('/dev/null', 1), []\n"
        "thread = threading.Thread(target=work)\n"
        "thread.start(); thread.join()\n"
        "print(*stops)\n"
    )
    collector = strace(classes=["file"])
    launch = collector.launch(job(tmp_path, collector, facts={"leftovers": 0}))
    assert launch.wrap is not None
    argv = [*launch.wrap.argv, sys.executable, "-I", "-S", "-c", program]
    with_it, without = (
        int(subprocess.run(a, capture_output=True, text=True, check=True).stdout)
        for a in (argv, [word.replace(",set_robust_list", "") for word in argv])
    )
    assert with_it < 300 and without >= 3000


# ---------------------------------------------------------------- the target stays its own master


@pytest.mark.parametrize(("command", "status"), [("exit 7", 7), ("kill -9 $$", -9), ("kill -11 $$", -11)])
def test_the_exit_status_is_the_targets_own(tmp_path: Path, command: str, status: int) -> None:
    seen, path = wrapped(tmp_path, ["sh", "-c", command])
    assert seen == status
    assert counts(path)["execve"] == (1, 0), "and strace has written all the same"


def test_arguments_and_folders_arrive_byte_for_byte(tmp_path: Path) -> None:
    folder = tmp_path / "two words, ünd more"
    folder.mkdir()
    words = ["-o", "x", "--help", "--", "-p", "1", "", "a b", "|x", b"\xff\xfe"]
    program = "import os, sys; open(sys.argv[1], 'wb').write(b'\\0'.join(map(os.fsencode, sys.argv[2:])))"
    seen = folder / "seen"
    status, _ = wrapped(folder, [sys.executable, "-c", program, str(seen), *words])  # type: ignore[list-item]
    assert status == 0
    assert seen.read_bytes().split(b"\0") == [os.fsencode(word) for word in words]


def test_signals_to_the_targets_group_do_not_reach_strace(tmp_path: Path) -> None:
    """Ctrl-C, a time-out, even SIGKILL for the group: the tracer is in another one, and writes what it has."""
    collector = strace()
    launch = collector.launch(job(tmp_path, collector, facts={"leftovers": 0}))
    assert launch.wrap is not None
    program = (
        "import signal, sys\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})\n"
        "print('ready', flush=True)\n"
        "signal.sigwait({signal.SIGINT})\n"
        "sys.exit(42)\n"
    )
    argv = [*launch.wrap.argv, sys.executable, "-I", "-S", "-c", program]
    for number, status in ((signal.SIGINT, 42), (signal.SIGKILL, -9)):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as target:
            assert target.stdout and target.stdout.readline() == b"ready\n"
            os.killpg(target.pid, number)
            assert target.wait(LIMIT_S) == status
        until(lambda: (tmp_path / "summary.txt").read_bytes().endswith(b"\n"))
        assert counts(tmp_path / "summary.txt")["execve"][0] >= 1
        (tmp_path / "summary.txt").unlink()


def runs_on(pid: int) -> None:
    """Waits until the process has done something more."""
    before = cpu_s(pid)
    until(lambda: cpu_s(pid) > before + 0.05)


@pytest.mark.parametrize("mode", ["summary", "trace"])
def test_a_process_is_left_unharmed_when_strace_goes(tmp_path: Path, mode: str) -> None:
    program = "while True: open('/etc/passwd').close()"  # and nothing by vfork, at which strace before 6.7 can hang
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program]) as target:
        try:
            tracer, path = attached(tmp_path, [target.pid], mode=mode)
            runs_on(target.pid)
            tracer.send_signal(signal.SIGINT)
            tracer.wait(LIMIT_S)
            assert tracer_of(target.pid) == 0 and target.poll() is None
            runs_on(target.pid)
            assert target.poll() is None, "its calls still work"
        finally:
            target.kill()
    table = read_summary(path).syscalls if mode == "summary" else read_trace(path).syscalls
    assert {"openat", "close"} <= set(table.columns["name"])


def test_who_was_stopped_is_let_go_of_still_stopped(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: open('/etc/passwd').close()"]) as target:
        try:
            until(lambda: cpu_s(target.pid) > 0.05)
            os.kill(target.pid, signal.SIGSTOP)
            until(lambda: state(target.pid) == "T")
            used = cpu_s(target.pid)
            tracer, _ = attached(tmp_path, [target.pid])
            tracer.send_signal(signal.SIGINT)
            tracer.wait(LIMIT_S)
            assert (state(target.pid), tracer_of(target.pid), cpu_s(target.pid)) == ("T", 0, used)
            assert sign_of(tmp_path).status == "empty"
            os.kill(target.pid, signal.SIGCONT)
            runs_on(target.pid)
        finally:
            target.kill()


def test_the_ranks_of_a_job_are_counted_one_by_one(tmp_path: Path) -> None:
    """Each has a strace of its own, and what that printed is what the table says."""
    loop = "import os, sys, time\nfd = os.open('/dev/null', 1)\nwhile True: os.write(fd, b'x'); time.sleep(0.002)"
    argv = [sys.executable, "-I", "-S", "-c", loop]
    ranks = [subprocess.Popen(argv, env={**os.environ, "RANK": str(rank)}) for rank in (0, 1)]
    try:
        until(lambda: all(cpu_s(one.pid) > 0.01 for one in ranks))
        words = [word for one in ranks for word in ("--pid", str(one.pid))]
        result = profrun(write_plan(tmp_path, "{use: strace}"), *words, "--duration", "500ms", cwd=tmp_path)
        assert all(one.poll() is None and tracer_of(one.pid) == 0 for one in ranks)
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    assert result.statuses() == {"strace": "ok"}, result.stderr
    frame = tables.read(result.folder / "tables" / "syscalls.parquet")
    for rank, one in enumerate(ranks):
        (printed,) = result.folder.glob(f"raw/*-strace/summary.{one.pid}.txt")
        mine = frame[(frame["rank"] == rank) & (frame["pid"] == one.pid)]
        found = {row["name"]: (row["count"], row["errors"]) for row in mine.to_dict("records")}
        assert found == counts(printed) and found["write"][0] > 0


def test_a_filter_can_not_be_taken_back(tmp_path: Path) -> None:
    """Why the filter is used only where strace stays to the end: once it is gone, the target fails or is killed."""
    collector = strace(classes=["file"])
    launch = collector.launch(job(tmp_path, collector, facts={"leftovers": 0}))
    assert launch.wrap is not None
    program = "echo ready; read line; test -e /etc/passwd"
    with subprocess.Popen(
        [*launch.wrap.argv, "sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as target:
        assert target.stdout and target.stdin and target.stdout.readline() == b"ready\n"
        os.kill(tracer_of(target.pid), signal.SIGKILL)
        until(lambda: target.poll() is not None or tracer_of(target.pid) == 0)
        try:
            target.stdin.write(b"\n")
            target.stdin.flush()
        except BrokenPipeError:
            pass
        assert target.wait(LIMIT_S) != 0


# ---------------------------------------------------------------- what it says when it can't


def sign_of(folder: Path) -> Sign:
    said = (folder / "stderr.log").read_text()
    collector = strace()
    signs = collector.launch(job(folder, collector)).signs
    return next(sign for sign in signs if re.search(sign.pattern, said))


def test_a_second_tracer_is_refused(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as target:
        first, _ = attached(tmp_path, [target.pid])
        second, path = attached_again(tmp_path, target.pid)
        assert second != 0 and path.stat().st_size == 0
        assert sign_of(tmp_path).status == "blocked"
        first.send_signal(signal.SIGINT)
        first.wait(LIMIT_S)
        assert target.poll() is None
        target.kill()


def attached_again(folder: Path, pid: int) -> tuple[int, Path]:
    collector = strace()
    (beside,) = collector.launch(job(folder, collector, pids=(pid,))).beside
    with (folder / "stderr.log").open("wb") as stderr:
        return subprocess.run(
            filled(beside, pid), stderr=stderr, check=False, timeout=LIMIT_S
        ).returncode, folder / "summary.txt"


def test_an_idle_process_gives_nothing_and_a_gone_one_too(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as target:
        tracer, path = attached(tmp_path, [target.pid], classes=["file"])
        tracer.send_signal(signal.SIGINT)
        tracer.wait(LIMIT_S)
        assert path.stat().st_size == 0 and sign_of(tmp_path).status == "empty"
        target.kill()
    target.wait()
    status, _ = attached_again(tmp_path, target.pid)
    assert status == 1 and sign_of(tmp_path).reason.startswith("process {0} had ended")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_another_users_process_is_refused_in_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o055)
    collector = strace()
    with subprocess.Popen(["sleep", "600"]) as target:
        (beside,) = collector.launch(job(tmp_path, collector, pids=(target.pid,))).beside
        with (tmp_path / "stderr.log").open("wb") as stderr:
            done = subprocess.run(
                filled(beside, target.pid), stderr=stderr, check=False, user=65534, group=65534, timeout=LIMIT_S
            )
        assert done.returncode == 1 and target.poll() is None
        target.kill()
    assert sign_of(tmp_path).status == "blocked"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_somebody_who_is_not_root_gets_the_same(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for folder in tmp_path.parents[:3]:
        folder.chmod(folder.stat().st_mode | 0o055)
    collector = strace()
    launch = collector.launch(job(tmp_path, collector, facts={"leftovers": 0}))
    assert launch.wrap is not None
    argv = [*launch.wrap.argv, "sh", "-c", "exit 7"]
    assert subprocess.run(argv, check=False, user=65534, group=65534, timeout=LIMIT_S).returncode == 7
    until(lambda: (tmp_path / "summary.txt").read_bytes().endswith(b"\n"))
    assert counts(tmp_path / "summary.txt")["execve"] == (1, 0)
