"""What ran before profrun came: whose process is whose, who can't be looked at, and that all are left as they were."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cli import script
from waiting import state, until

from orchestrator import attached, launching, process, runner
from orchestrator.errors import PreflightError, UsageError
from orchestrator.model import Attached
from orchestrator.resolve import Run

WAIT = "import time; time.sleep(600)"
PYTHON = (sys.executable, "-I", "-S")


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """What a test has started; with all that it has started it ends with the test."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for one in started:
        for pid in (*reversed(process.descendants(one.pid)), one.pid):
            process.send(pid, signal.SIGKILL)
        one.wait()


def python(tree: list[subprocess.Popen[bytes]], code: str = WAIT, **env: str) -> int:
    tree.append(subprocess.Popen([*PYTHON, "-c", code], env={**os.environ, **env}))
    pid = tree[-1].pid
    until(lambda: process.argv_of(pid)[-1:] == (code,))
    return pid


def grown(root: int, count: int) -> tuple[Attached, ...]:
    """The tree, once it has so many processes, each with a program of its own."""

    def found() -> tuple[Attached, ...]:
        seen = attached.look([root])
        words = {one.pid: one.argv for one in seen}
        own = all(one.argv and one.argv != words.get(one.parent or 0) for one in seen)
        return seen if own and len(seen) == count else ()

    return until(found)


# ---------------------------------------------------------------- who is who


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("/opt/conda/bin/python /opt/conda/bin/conda run -n x python t.py", "conda run"),
        ("/bin/sh /opt/conda/bin/conda run python t.py", "conda run"),
        ("micromamba -n x run python t.py", "micromamba run"),
        ("uv run t.py", "uv run"),
        ("uv pip install x", None),
        ("python3.11 /v/bin/torchrun --nproc-per-node 2 t.py", "torchrun"),
        ("python -u -X dev -m torch.distributed.run t.py", "torchrun"),
        ("python -m accelerate.commands.launch t.py", "accelerate launch"),
        ("accelerate launch t.py", "accelerate launch"),
        ("accelerate config", None),
        ("python -m deepspeed.launcher.launch t.py", "deepspeed"),
        ("/usr/bin/timeout 10 python t.py", "timeout"),
        ("python train.py torchrun", None),
        ("python -c torchrun", None),
        ("bash run.sh", None),
        ("-bash", None),
        ("", None),
    ],
)
def test_what_only_starts_the_program(argv: str, name: str | None) -> None:
    assert launching.wrapper_of(argv.split()) == name


JOB = """
import os, subprocess, sys
job = {**os.environ, "WORLD_SIZE": "2"}
code = "import subprocess, sys; subprocess.Popen(sys.argv[1:]).wait()"
for rank in "01":
    argv = [sys.executable, "-I", "-S", "-c", code, sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    subprocess.Popen(argv, env={**job, "RANK": rank, "LOCAL_RANK": rank})
subprocess.Popen(["sleep", "600"]).wait()
"""


def test_the_ranks_of_a_job_are_families_of_their_own(tree: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    """Also under a scheduler, which gives the launcher a number that is no rank."""
    launcher = script(tmp_path / "torchrun", f"#!{sys.executable}\n{JOB}")
    tree.append(subprocess.Popen([launcher], env={**os.environ, "SLURM_PROCID": "0"}))
    found = grown(tree[0].pid, 6)
    first, rest = found[0], found[1:]
    assert (first.wrapper, first.rank, first.is_python, first.is_top_python) == ("torchrun", None, True, False)
    families = attached.families(found)
    assert [len(members) for members in families.values()] == [2, 2, 2]
    for members in list(families.values())[1:]:
        assert len({one.rank for one in members}) == 1 and members[0].rank == members[0].local_rank
        assert [one.is_top_python for one in members] == [True, False]
    assert {one.rank for one in rest if one.world_size == 2} == {0, 1}
    assert [one.argv[-1] for one in rest if one.rank is None] == ["600"]
    programs = attached.programs_of(found)
    assert sorted(one.rank or 0 for one in programs) == [0, 1] and attached.proper(found) == programs[0]


def test_a_script_is_not_the_program(tree: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    run = script(tmp_path / "run.sh", f"#!/bin/sh\nsleep 600 &\n'{sys.executable}' -I -S -c '{WAIT}' &\nwait\n")
    tree.append(subprocess.Popen([run]))
    found = grown(tree[0].pid, 3)
    program = attached.proper(found)
    assert program is not None and program.argv[-1] == WAIT and program.is_top_python
    assert attached.proper(found[:1]) == found[0], "a shell with nothing below it is the program"
    assert attached.proper(()) is None


def test_a_process_below_another_is_there_once(tree: list[subprocess.Popen[bytes]]) -> None:
    outer = python(tree, f"import subprocess, sys; subprocess.Popen([*{PYTHON!r}, '-c', {WAIT!r}]).wait()")
    inner = until(lambda: next(iter(process.children(outer)), 0))
    until(lambda: process.argv_of(inner)[-1:] == (WAIT,))
    assert attached.roots([inner, outer, inner]) == (outer,)
    found = attached.look([inner, outer])
    assert [(one.pid, one.parent, one.lead) for one in found] == [(outer, None, outer), (inner, outer, outer)]


def test_we_ourselves_are_left_out() -> None:
    assert attached.look([os.getpid()]) == ()


# ---------------------------------------------------------------- who can't be looked at


def test_numbers_that_are_no_process_to_look_at(tree: list[subprocess.Popen[bytes]]) -> None:
    pid = python(tree, f"import threading, time; threading.Thread(target=time.sleep, args=[600]).start(); {WAIT}")
    thread = until(lambda: next((int(t.name) for t in Path(f"/proc/{pid}/task").iterdir() if t.name != str(pid)), 0))
    assert attached.obstacle(pid) is None
    tree.append(subprocess.Popen(["sh", "-c", "exit 3"]))
    dead = tree[-1].pid
    until(lambda: state(dead) == "Z")
    said = {
        thread: f"it belongs to process {pid} (",
        dead: f"process {os.getpid()}, its parent, has yet to take note",
        os.getpid(): "is profrun itself",
        2**40: "it has ended, or never was",
    }
    for number, words in said.items():
        error = attached.obstacle(number)
        assert isinstance(error, UsageError) and words in error.text() and error.next_step


def test_a_thread_of_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "2"
    fake.mkdir()
    (fake / "stat").write_text("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 42 0 0 0 0 0 0 0 0 0 0")
    (fake / "status").write_text("Name:\tkthreadd\nTgid:\t2\nPPid:\t0\nUid:\t0\t0\t0\t0\n")
    (fake / "cmdline").write_text("")
    monkeypatch.setattr(process, "_PROC", tmp_path)
    error = attached.obstacle(2)
    assert error is not None and error.what == "process 2 (kthreadd) is a thread of the kernel"


@pytest.mark.parametrize(
    ("us", "owner", "why", "fix"),
    [
        (4242, 0, "only root may look into it", "run profrun as root"),
        (4242, 4243, "only 4243 and root may look into it", "run profrun as 4243, or as root"),
        (4242, 4242, "does not let itself be looked at", "run profrun as root"),
        (0, 4242, "this root has no CAP_SYS_PTRACE", "--cap-add SYS_PTRACE, or run profrun as 4242"),
        (0, 0, "this root has no CAP_SYS_PTRACE", "start the container with --cap-add SYS_PTRACE"),
    ],
)
def test_what_the_kernel_keeps_closed(
    tree: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch, us: int, owner: int, why: str, fix: str
) -> None:
    """Root is told what it lacks, and never to become root."""
    pid = python(tree)
    monkeypatch.setattr(process, "is_readable", lambda pid: False)
    status = {"Name": "x", "Tgid": str(pid), "PPid": "1", "Uid": f"{owner} {owner} {owner} {owner}"}
    monkeypatch.setattr(process, "status_of", lambda pid: status)
    monkeypatch.setattr(os, "geteuid", lambda: us)
    error = attached.obstacle(pid)
    assert isinstance(error, PreflightError) and why in error.why and fix in error.next_step
    assert us != 0 or not any(words in error.text() for words in ("sudo", "as root"))


# ---------------------------------------------------------------- left as they were


def test_what_a_tool_has_left_stopped_goes_on(tree: list[subprocess.Popen[bytes]]) -> None:
    pid = python(tree)
    visit = attached.Visit([pid])
    assert visit.free() == [] and visit.leave() == []
    stop(pid)
    assert visit.free() == [f"a tool had left process {pid} stopped; it was continued"]
    assert state(pid) in "RS"
    stop(pid)
    assert len(visit.leave()) == 1
    assert [one.state_after in ("R", "S") for one in visit.found] == [True]


def test_what_was_stopped_stays_stopped(tree: list[subprocess.Popen[bytes]]) -> None:
    pid = python(tree)
    stop(pid)
    visit = attached.Visit([pid])
    assert visit.free() == [] and visit.leave() == [] and state(pid) == "T"
    os.kill(pid, signal.SIGCONT)
    until(lambda: state(pid) in "RS")
    [said] = visit.leave()
    assert f"kill -STOP {pid}" in said and state(pid) in "RS"
    assert [(one.state_before, one.state_after in ("R", "S")) for one in visit.found] == [("T", True)]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")


def test_who_comes_later_and_who_ends(tree: list[subprocess.Popen[bytes]], tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""
import os, subprocess, sys, time
while not os.path.exists({str(go)!r}): time.sleep(0.01)
subprocess.Popen([*{PYTHON!r}, '-c', {WAIT!r}], env={{'RANK': '3'}}).wait()
"""
    pid = python(tree, code)
    visit = attached.Visit([pid])
    go.touch()
    later = until(lambda: next((c for c in process.children(pid) if process.argv_of(c)[-1:] == (WAIT,)), 0))
    visit.meet()
    visit.meet()
    assert [(one.pid, one.state_before is None, one.rank) for one in visit.found] == [
        (pid, False, None),
        (later, True, 3),
    ]
    assert attached.ranks(visit.found) == {later: 3}
    os.kill(later, signal.SIGKILL)
    tree[0].wait()
    assert not visit.goes_on() and visit.leave() == []
    assert [one.state_after for one in visit.found] == [None, None]


def test_a_tracer_of_ours_that_stays_is_told(
    tree: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = python(tree)
    visit = attached.Visit([pid])
    monkeypatch.setattr(process, "tracer_of", lambda pid: 77)
    assert visit.leave([77]) == [f"process {pid} is still traced by process 77, a tool of this pass"]
    assert visit.leave([78]) == []


def test_a_number_that_was_given_again_is_another_process(tree: list[subprocess.Popen[bytes]]) -> None:
    pid = python(tree)
    [one] = attached.look([pid])
    other = replace(one, born=(one.born or 0) - 1)
    assert attached.lives(one) and not attached.lives(other)
    assert [gone.state_after for gone in attached.after([other])] == [None]

    def left(found: Sequence[Attached]) -> tuple[int, ...]:
        run = Run(None, None, (), pids=(pid,), attached=tuple(found))  # type: ignore[arg-type]
        stage = runner.State(None, None, None, None, run=run)  # type: ignore[arg-type]
        return runner._pids(stage)

    assert left([one]) == (pid,) and left([other]) == ()
