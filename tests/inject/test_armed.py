"""A process that waits to be woken, with the real torch: who may wake it, what it writes, that it goes on as before."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from light_torch import LIGHT
from waiting import LIMIT_S, until

from orchestrator import inside
from orchestrator.collectors.torch import Torch
from orchestrator.inject import armed as part
from orchestrator.model import Armed, Job, Target, Tool, Window
from orchestrator.standalone import let_in, wake

SERVER = (
    LIGHT
    + """
import os, sys, threading, time, warnings
import torch
torch._lazy_modules.discard("_inductor")
model, busy = torch.nn.Linear(8, 8), []
def work():
    while threading.main_thread().is_alive():
        with torch.no_grad():
            model(torch.ones(2, 8))
        busy[:] = [1]
        time.sleep(0.005)
threading.Thread(target=work).start()
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.ones(2, 8)).sum().backward()
        optimizer.step()
print("ready", flush=True)
for line in sys.stdin:
    exec(line)
    print("did", flush=True)
"""
)
"""Works in a thread of its own, and does in its main thread what it is told, line by line. The thread ends with the
main one: a daemon that Python ends in the midst of torch's C++ now and then aborts the program (-6), also alone."""


TORCHS_OWN = r"External init callback must run in same thread|^\[W\d+ [\d:.]+ collection\.cpp"
"""What torch itself says where it is recorded by another thread: once while the main thread stands still, and of
operators that were going on when the recording ended."""


class Server:
    """The program, started as `profrun arm` starts it, or bare."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        (folder / "server.py").write_text(SERVER)
        self.errors = folder / "stderr"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, folder / "server.py"], env={**os.environ, **env}, cwd=folder, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n", self.errors.read_text()

    @property
    def pid(self) -> int:
        return self.process.pid

    def do(self, line: str) -> str:
        """Has a line done; gives what it has printed."""
        self.ask(line)
        return self.answer()

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        said = ""
        while (line := self.process.stdout.readline()) != "did\n":
            assert line, self.errors.read_text()
            said += line
        return said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("armed")
    inside.write_settings(folder / "settings", {"armed": True})
    return folder


@pytest.fixture(scope="module")
def server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    env = {"KINETO_LOG_LEVEL": "6", **inside.environment(os.environ, place / "settings")}
    one = Server(tmp_path_factory.mktemp("server"), env)
    yield one
    one.process.kill()
    one.process.wait()
    assert [line for line in one.errors.read_text().splitlines() if not re.search(TORCHS_OWN, line)] == []


class Waker:
    """What stands beside an armed program for the time of a window."""

    def __init__(self, home: Path, pid: int, *words: str | Path, **settings: Any) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", wake.__file__, home, str(pid), json.dumps(settings), *words],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def recording(self) -> Waker:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "recording\n", self.process.communicate()
        return self

    def ends(self) -> str:
        """Without being asked; gives what it says is wrong."""
        _, err = self.process.communicate(timeout=LIMIT_S)
        return err

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        return self.ends()

    def facts(self) -> dict[str, Any]:
        (path,) = self.home.glob("*.facts.json")
        return json.loads(path.read_text())

    def ops(self) -> set[str]:
        (path,) = self.home.glob("traces/*.trace.json")
        return {event["name"] for event in json.loads(path.read_text())["traceEvents"] if event.get("cat") == "cpu_op"}


def test_other_threads_are_recorded_again_and_again(server: Server, place: Path, tmp_path: Path) -> None:
    for number in range(2):
        awake = Waker(tmp_path / str(number), server.pid, "--folder", place).recording()
        server.do("busy.clear()")
        server.do("while not busy: time.sleep(0.01)")
        assert awake.stop() == ""
        assert awake.facts()["recorded"] and awake.facts()["cut"] is None
        assert "aten::linear" in awake.ops()
        assert sorted(path.name for path in awake.home.iterdir()) == [
            f"{server.pid}.0.diary", f"{server.pid}.averages.json", f"{server.pid}.facts.json", "traces",
        ]  # fmt: skip
    assert sorted(path.name for path in place.iterdir()) == [f"{server.pid}.sock", "settings"]


def test_a_main_thread_that_stands_still_keeps_nobody_waiting(server: Server, place: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    server.ask(f"open({str(tmp_path / 'fifo')!r}).read()")
    awake = Waker(tmp_path / "home", server.pid, "--folder", place, stacks=True, memory=True).recording()
    assert awake.stop() == ""
    (tmp_path / "fifo").write_text("")
    server.answer()
    assert awake.facts()["recorded"]


def test_steps_are_counted_from_the_wake_on(server: Server, place: Path, tmp_path: Path) -> None:
    server.do("net = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(net.parameters(), lr=0.1); train(3)")
    awake = Waker(tmp_path / "home", server.pid, "--folder", place, skip=1, steps=2).recording()
    server.do("train(8)")
    assert awake.ends() == ""
    facts = awake.facts()
    assert facts["by_steps"] and facts["cut"] is None
    (path,) = (tmp_path / "home").glob("traces/*.trace.json")
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert len({name for name in names if str(name).startswith("ProfilerStep")}) == 2


def test_steps_that_do_not_come_are_not_waited_for_for_ever(server: Server, place: Path, tmp_path: Path) -> None:
    awake = Waker(tmp_path / "home", server.pid, "--folder", place, skip=1 << 30, steps=2).recording()
    assert awake.stop() == ""
    assert (awake.facts()["recorded"], awake.facts()["why"]) == (False, "never")


def test_it_ends_by_itself_at_its_bounds(server: Server, place: Path, tmp_path: Path) -> None:
    awake = Waker(tmp_path / "home", server.pid, "--folder", place, max_s=0.2).recording()
    assert awake.ends() == ""
    assert "max_time" in awake.facts()["cut"]


def test_the_program_s_own_profiler_goes_before_ours(server: Server, place: Path, tmp_path: Path) -> None:
    server.do("own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); own.start()")
    awake = Waker(tmp_path / "first", server.pid, "--folder", place)
    assert awake.ends() == ""
    assert (awake.facts()["recorded"], awake.facts()["why"]) == (False, "aside")
    server.do("torch.ones(3) + 1; own.stop()")
    assert int(server.do("print(len(own.events()))")) > 0
    awake = Waker(tmp_path / "second", server.pid, "--folder", place).recording()
    server.do("own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); own.start()")
    server.do("torch.ones(3) + 1; own.stop()")
    assert awake.ends() == ""
    assert "profiler of its own" in awake.facts()["cut"]
    assert int(server.do("print(len(own.events()))")) > 0


def test_when_the_waker_dies_all_is_dropped(server: Server, place: Path, tmp_path: Path) -> None:
    awake = Waker(tmp_path / "first", server.pid, "--folder", place).recording()
    awake.process.kill()
    awake.ends()
    again = Waker(tmp_path / "second", server.pid, "--folder", place).recording()
    assert again.stop() == "" and again.facts()["recorded"]
    assert list((tmp_path / "first").rglob("*.json")) == []


def test_an_older_torch_is_asked_in_its_main_thread(server: Server, place: Path, tmp_path: Path) -> None:
    change = "profiler = sys.modules['_profrun.profiler']; before = profiler.of_all_threads; profiler.of_all_threads = "
    server.do(change + "lambda: None")
    awake = Waker(tmp_path / "home", server.pid, "--folder", place)
    server.ask("while not sys.modules['_profrun.profiler']._running[0]: time.sleep(0.01)")
    awake.recording()
    server.answer()
    server.do("torch.ones(3) + 1")
    awake.process.send_signal(signal.SIGINT)
    server.do("while sys.modules['_profrun.profiler']._running[0]: time.sleep(0.01)")
    assert awake.ends() == ""
    assert not awake.facts()["beside"] and "aten::add" in awake.ops() and "aten::linear" not in awake.ops()
    server.do("profiler.of_all_threads = before")


@pytest.mark.parametrize(
    "said", [b"", b"\n", b"{", b"[]", b"null", b"\xff\xfe", b'{"stacks": 1}', b'{"skip": -1}', b"[" * 9999], ids=repr
)
def test_what_is_not_understood_changes_nothing(said: bytes, server: Server, place: Path, tmp_path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(place / f"{server.pid}.sock"))
        with (tmp_path / "file").open("w") as file:
            socket.send_fds(connection, [said or b" "], [file.fileno()])
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100).startswith(b"no ")
    assert server.do("print(sys.modules['_profrun.profiler']._running)") == "[0]\n"


def test_without_a_folder_for_the_files_nothing_is_recorded(server: Server, place: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as connection:
        connection.connect(str(place / f"{server.pid}.sock"))
        connection.sendall(b"{}")
        assert connection.recv(100).startswith(b"no ")


def test_a_forked_child_listens_once_it_makes_steps(server: Server, place: Path, tmp_path: Path) -> None:
    server.do("net = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(net.parameters(), lr=0.1); train(1)")
    child = "(os.read(more, 1), train(1), os.read(more, 1), os._exit(0))"
    pid = int(server.do(f"more, go = os.pipe(); child = os.fork() or {child}; print(child)"))
    assert not (place / f"{pid}.sock").exists()
    server.do("os.write(go, b'1')")
    until((place / f"{pid}.sock").exists)
    awake = Waker(tmp_path / "home", pid, "--folder", place).recording()
    assert awake.stop() == "" and awake.facts()["pid"] == pid
    server.do("os.write(go, b'1'); os.waitpid(child, 0)")


def test_a_process_without_a_socket_is_named(place: Path, tmp_path: Path) -> None:
    awake = Waker(tmp_path / "home", os.getpid(), "--folder", place)
    assert "no process of the program listens" in awake.ends()
    assert awake.process.returncode == 1


def test_a_running_python_lets_our_part_in(tmp_path: Path) -> None:
    """What `sys.remote_exec` does with the script, done by the program itself, as this Python may have no such door."""
    one = Server(tmp_path, {"KINETO_LOG_LEVEL": "6"})
    folder = tmp_path / "armed-x"
    script = let_in.prepare(one.pid, str(folder))
    waiting = Waker(tmp_path / "home", one.pid, "--let-in", f"{one.pid}={folder}")
    names = "print(*sorted(name for name in globals() if name != '__warningregistry__'))"
    before = one.do(names)
    one.do(f"exec(compile(open({script!r}).read(), {script!r}, 'exec'))")
    assert one.do(names) == before
    waiting.recording()
    one.do("busy.clear()")
    one.do("while not busy: time.sleep(0.01)")
    assert waiting.stop() == "" and "aten::linear" in waiting.ops()
    one.do("net = torch.nn.Linear(8, 8); optimizer = torch.optim.SGD(net.parameters(), lr=0.1); train(1)")
    by_steps = Waker(tmp_path / "steps", one.pid, "--let-in", f"{one.pid}={folder}", skip=0, steps=2).recording()
    one.do("train(5)")
    assert by_steps.ends() == "" and by_steps.facts()["by_steps"]
    assert "Error" not in one.errors.read_text()
    ends_while_awake(one, tmp_path / "end", "--let-in", f"{one.pid}={folder}")


def ends_while_awake(one: Server, home: Path, *words: str) -> None:
    """What was recorded by a program's end is whole."""
    awake = Waker(home, one.pid, *words).recording()
    one.do("busy.clear()")
    one.do("while not busy: time.sleep(0.01)")
    one.ask("sys.exit(5)")
    assert one.process.wait(LIMIT_S) == 5
    awake.ends()
    assert "the program ended" in awake.facts()["cut"] and "aten::linear" in awake.ops()


def test_the_settings_that_are_understood_are_those_that_are_sent() -> None:
    target = Target(("x",), "/x", "/", {})
    job = Job("p01", "/d", target, Tool("torch", None), pids=(1,), armed=Armed("/f", 1), window=Window(for_s=1.0))
    (beside,) = Torch(use="torch").launch(job).beside
    sent = json.loads(beside.argv[6])
    assert set(sent) - {"after_s", "for_s"} == set(part._DEFAULTS) - {"steps"}
    wish = part._understood(json.dumps(sent).encode())
    assert wish is not None and wish == {"steps": 0, **{name: sent[name] for name in wish if name != "steps"}}
