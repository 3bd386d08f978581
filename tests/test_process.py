"""Starting, watching and ending processes: the one door."""

from __future__ import annotations

import ast
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, processes, state, unmistakable, until

from orchestrator import process
from orchestrator.model import Child, Exit
from orchestrator.signals import Signals


def spec(*argv: str, exe: str | None = None, env: dict[str, str] | None = None, out: int = 1) -> process.Spec:
    found = exe or (argv[0] if "/" in argv[0] else f"/bin/{argv[0]}")
    return process.Spec(found, argv, dict(os.environ) if env is None else env, "/", 0, out, 2, Child())


def _inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def finished(started: process.Started) -> process.Started:
    assert started.wait(LIMIT_S)
    return started


@pytest.fixture
def null() -> int:
    return os.open(os.devnull, os.O_RDWR)


# ---------------------------------------------------------------- questions


def test_a_question_and_its_answer() -> None:
    answer = process.ask(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (answer.stdout, answer.stderr, answer.exit) == ("out\n", "err\n", Exit(code=3))
    assert not answer.ok


def test_of_an_answer_no_more_is_kept_than_was_asked_for() -> None:
    answer = process.ask(["sh", "-c", "echo 123456789; echo abcdefghi >&2"], answer_bytes=4)
    assert (answer.ok, answer.stdout, answer.stderr) == (True, "1234", "abcd")


def test_a_question_that_nobody_answers_ends_with_its_whole_group() -> None:
    sleep = f"sleep {unmistakable(981)}"
    answer = process.ask(["sh", "-c", f"trap '' TERM; {sleep} & {sleep}"], timeout_s=0.3)
    assert answer.error == "no answer in 0.3 s"
    assert answer.exit is None
    until(lambda: not processes(sleep))


def test_a_tool_that_is_not_there() -> None:
    assert "can't be started" in str(process.ask(["no-such-tool-anywhere"]).error)


def test_a_question_is_put_in_its_own_directory_and_with_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("#!/bin/sh\necho $0\n")
    (tmp_path / "here").chmod(0o755)
    assert process.ask(["./here"], cwd=str(tmp_path)).ok
    assert process.ask(["here"], env={"PATH": str(tmp_path)}).ok
    assert "command not found" in str(process.ask(["ls"], env={"PATH": str(tmp_path)}).error)


def test_a_question_without_a_place_for_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(process.tempfile, "TemporaryFile", full)
    assert process.ask(["true"]).error == "true can't be started: [Errno 28] No space left on device"


def test_a_question_adds_nothing_and_leaves_no_thread() -> None:
    """Python 3.12 warns of a fork while a thread of `sh` still ends; `sh` lets background commands ignore SIGHUP."""
    answer = process.ask(["grep", "SigIgn", "/proc/self/status"])
    assert not int(answer.stdout.split()[1], 16) & 1 << (signal.SIGHUP - 1)
    assert [t.name for t in threading.enumerate() if "pid" in t.name] == []


@pytest.mark.parametrize("how", ["asked", "raised"])
def test_a_question_that_is_given_up_leaves_nobody(how: str) -> None:
    sleep = ["sleep", unmistakable(982)]

    def impatient() -> bool:
        if how == "raised":
            raise KeyboardInterrupt
        return True

    try:
        assert process.ask(sleep, give_up=impatient).error == "it was interrupted"
    except KeyboardInterrupt:
        assert how == "raised"
    until(lambda: not processes(" ".join(sleep)))


# ---------------------------------------------------------------- the target


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("exit 7", Exit(code=7)),
        ("kill -9 $$", Exit(signal=9)),
        ("kill -6 $$", Exit(signal=6)),
        ("exit 0", Exit(code=0)),
    ],
)
def test_wait_status(text: str, end: Exit, gated: bool) -> None:
    started = process.start(spec("sh", "-c", text), gated=gated)
    if gated:
        assert process.state(started.pid) == "T"
        started.open_gate()
    assert finished(started).exit == end
    assert started.start_error is None


@pytest.mark.parametrize("gated", [False, True])
def test_nothing_is_added_to_the_run(tmp_path: Path, gated: bool) -> None:
    """Environment byte for byte, its own session, default signals, no descriptor of ours."""
    env = {"A": "1", "EMPTY": "", "BYTES": "\udcff"}
    out = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    code = (
        "import os;print(sorted(open('/proc/self/environ','rb').read().split(bytes(1))[:-1]));"
        "print(os.getsid(0)==os.getpid());"
        "print(os.listdir('/proc/self/fd'))"
    )
    started = process.start(spec(sys.executable, "-I", "-S", "-c", code, env=env, out=out), gated=gated)
    if gated:
        started.open_gate()
    given = {fd.name for fd in Path("/proc/self/fd").iterdir() if fd.name in "012" or _inheritable(int(fd.name))}
    finished(started)
    environ, session, descriptors = (tmp_path / "out").read_text().splitlines()
    assert environ == str([b"A=1", b"BYTES=\xff", b"EMPTY="])
    assert session == "True"
    assert len(set(ast.literal_eval(descriptors)) - given) == 1  # the listing itself
    status = process.start(spec("sh", "-c", "grep SigIgn /proc/self/status > " + str(tmp_path / "sig")))
    finished(status)
    ignored = int((tmp_path / "sig").read_text().split()[1], 16)
    assert not ignored & (1 << (signal.SIGPIPE - 1))


def test_a_target_that_can_not_be_executed(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\x7fELF nonsense")
    (tmp_path / "broken").chmod(0o755)
    started = finished(process.start(spec("x", exe=str(tmp_path / "broken"))))
    assert started.exit == Exit(code=126)
    assert "format" in str(started.start_error)
    started = finished(process.start(spec("x", exe=str(tmp_path / "missing"))))
    assert started.exit == Exit(code=127)


@pytest.mark.parametrize("missing", ["in Python", "in the kernel"])
def test_a_system_without_pidfd(monkeypatch: pytest.MonkeyPatch, missing: str, tmp_path: Path) -> None:
    def no(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", no)
    if missing == "in Python":
        monkeypatch.delattr(os, "pidfd_open")
    os.mkfifo(tmp_path / "word")
    started = process.start(spec("sh", "-c", f"read word <'{tmp_path}/word'; exit 7"))
    assert not started.wait(0.01)
    (tmp_path / "word").write_text("go\n")
    assert finished(started).exit == Exit(code=7)


def test_a_signal_to_a_target_before_its_exec_is_not_lost() -> None:
    with Signals() as got:
        started = process.start(spec("sleep", "600"), gated=True)
        process.send(started.pid, signal.SIGTERM)
        started.open_gate()
        assert finished(started).exit == Exit(signal=signal.SIGTERM)
        assert got.received == ()


def test_resources_of_the_target() -> None:
    started = finished(process.start(spec(sys.executable, "-c", "for _ in range(3000000): pass")))
    assert started.usage is not None
    assert started.usage.ru_utime > 0.02
    assert started.max_rss_bytes() is None  # the kernel's figure is this process's own, inherited through fork
    large = f"x = b'x' * {process.own_rss_bytes() + (100 << 20)}"
    assert (finished(process.start(spec(sys.executable, "-c", large))).max_rss_bytes() or 0) > process.own_rss_bytes()


# ---------------------------------------------------------------- the tree


def test_marked_processes_are_found_also_outside_the_session(tmp_path: Path) -> None:
    run = f"run-{os.getpid()}"
    env = {**os.environ, process.MARKER: f"{run}/p01"}
    started = process.start(spec("sh", "-c", "setsid sleep 600 & sleep 600", env=env))
    found = until(lambda: len(pids := process.marked(run)) == 3 and pids)
    assert started.pid in found
    assert process.marked(f"{run}y") == []
    ended = process.end(lambda: process.marked(run))
    assert len(ended) == 3
    assert process.marked(run) == []
    finished(started)


def test_a_process_that_ignores_term_is_killed(tmp_path: Path) -> None:
    run, out = f"run-{os.getpid()}", os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    env = {**os.environ, process.MARKER: run}
    started = process.start(
        spec("sh", "-c", "trap '' TERM INT; echo up; while :; do sleep 0.1; done", env=env, out=out)
    )
    until((tmp_path / "out").read_text)
    process.end(lambda: [p for p in process.marked(run) if process.alive(p)], patience_s=0.3)
    assert finished(started).exit == Exit(signal=9)


def test_stopped_processes_are_continued() -> None:
    started = process.start(spec("sleep", "600"))
    assert process.continue_stopped([started.pid]) == []
    process.send(started.pid, signal.SIGSTOP)
    until(lambda: state(started.pid) == process.state(started.pid) == "T")
    assert process.continue_stopped([started.pid]) == [started.pid]
    until(lambda: state(started.pid) == process.state(started.pid) == "S")
    process.send(started.pid, signal.SIGKILL)
    finished(started)


def test_python_processes_are_recognised() -> None:
    started = process.start(spec(sys.executable, "-c", "import time; time.sleep(600)"))
    until(started.executing)
    assert process.is_python(started.pid)
    assert not process.is_python(1) or Path("/proc/1/exe").readlink().name.startswith("python")
    process.send(started.pid, signal.SIGKILL)
    finished(started)


# ---------------------------------------------------------------- helpers


def test_a_helper_is_stopped_gently_first(tmp_path: Path) -> None:
    text = "trap 'echo flushed > done; exit 0' INT; echo up; while :; do sleep 0.05; done"
    helper = process.Helper(["sh", "-c", text], tmp_path / "o", tmp_path / "e", os.environ, tmp_path)
    until((tmp_path / "o").read_text)
    helper.stop(signal.SIGINT, LIMIT_S)
    assert (tmp_path / "done").exists()
    assert not helper.killed
    assert helper.status() == 0


def test_a_helper_that_hangs_is_killed(tmp_path: Path) -> None:
    text = "trap '' INT TERM; echo up; while :; do sleep 0.05; done"
    helper = process.Helper(["sh", "-c", text], tmp_path / "o", tmp_path / "e", os.environ, tmp_path)
    until((tmp_path / "o").read_text)
    process_wait = helper.wait
    helper.wait = lambda timeout_s, *_: process_wait(min(timeout_s, 0.2))  # type: ignore[method-assign]
    helper.stop(signal.SIGINT, 0.1)
    assert helper.killed
    assert helper.status() == 137


def test_a_helper_hears_the_interrupt_that_profrun_ignores(tmp_path: Path) -> None:
    """A script's `profrun ... &` ignores SIGINT, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = "print('up', flush=True); import time; time.sleep(600)"
        helper = process.Helper([sys.executable, "-c", code], tmp_path / "o", tmp_path / "e", os.environ, tmp_path)
        until((tmp_path / "o").read_text)
        helper.stop(signal.SIGINT, LIMIT_S)
        assert helper.status() == 130
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_who_is_in_a_hurry_kills_at_once(tmp_path: Path) -> None:
    text = "trap '' INT TERM; echo up; while :; do sleep 0.05; done"
    helper = process.Helper(["sh", "-c", text], tmp_path / "o", tmp_path / "e", os.environ, tmp_path)
    until((tmp_path / "o").read_text)
    began, asked = time.monotonic(), iter([False, True])
    helper.stop(signal.SIGINT, 2 * LIMIT_S, lambda: next(asked, True))
    assert helper.killed
    assert time.monotonic() - began < LIMIT_S


def test_a_worker_hands_over_columns_that_are_views_and_tells_what_it_cannot() -> None:
    def ended(what: Any) -> Any:
        worker = process.Worker(lambda _: what)
        assert process.first_ended([worker]) is worker
        return worker.result()

    numbers = memoryview(bytes(range(16))).cast("q")
    assert ended({"column": numbers})["column"].tolist() == numbers.tolist()
    with pytest.raises(RuntimeError, match=r"pickle"):
        ended(threading.Lock())
