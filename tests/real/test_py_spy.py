"""The real py-spy on real programs, with the very command lines that the collector asks for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from waiting import LIMIT_S, cpu_s, state, until

from orchestrator.attached import look
from orchestrator.collectors.base import Parsed
from orchestrator.collectors.py_spy import PySpy
from orchestrator.formats import pyspy
from orchestrator.machine import Machine
from orchestrator.model import Artifact, Capture, Exit, Job, Launch, Target, TargetRun, Window
from orchestrator.standalone import lives

pytestmark = pytest.mark.tool("py-spy")

TWO = """
import os, sys, time
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end: pass
def heavy(): spin(0.06)
def light(): spin(0.03)
while not os.path.exists(sys.argv[1]):
    heavy(); light()
raise SystemExit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
"""Runs until there is a file of that name."""

FAMILY = """
import multiprocessing, os, subprocess, sys, threading, time
CHILD = "import time\\ndef spawned():\\n  e = time.time() + 0.7\\n  while time.time() < e: pass\\nspawned()"
def forked():
    end = time.time() + 0.7
    while time.time() < end: pass
def brief():
    end = time.time() + 0.4
    while time.time() < end: pass
def lasting(): time.sleep(0.8)
def rest(): time.sleep(0.8)
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
threads = [threading.Thread(target=f, name=f.__name__) for f in (brief, lasting)]
[t.start() for t in threads]; [t.join() for t in threads]
worker = multiprocessing.get_context("fork").Process(target=forked)
worker.start()
subprocess.run([sys.executable, "-c", CHILD])
worker.join()
rest()
"""


@dataclass
class Attached:
    """The tools of a launch, started as profrun starts them."""

    launch: Launch
    folder: Path
    tools: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, pid: int) -> None:
        for beside in self.launch.beside:
            serial = len(self.tools)
            argv = [
                word.replace("{pid}", str(pid)).replace("{python}", str(pid)).replace("{n}", str(serial))
                for word in beside.argv
            ]
            logs = [self.folder / f"{serial or ''}.{name}.log".lstrip(".") for name in ("stdout", "stderr")]
            with logs[0].open("wb") as out, logs[1].open("wb") as err:
                self.tools.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err))

    def stop(self) -> None:
        for tool in self.tools:
            tool.send_signal(signal.SIGINT)
        self.wait()

    def wait(self) -> None:
        for tool in self.tools:
            tool.wait(LIMIT_S)

    def sampling(self) -> None:
        """Waits until it says that it samples, or has given up."""
        until(lambda: "Sampling process" in self.said() or all(tool.poll() is not None for tool in self.tools))

    def said(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("*.log")))

    def capture(self, collector: PySpy, wall_s: float) -> Capture:
        found = [(e, p) for e in self.launch.artifacts for p in sorted(self.folder.glob(e.glob)) if p.stat().st_size]
        artifacts = tuple(Artifact(e.role, p.name, e.format, p.stat().st_size, "", 0) for e, p in found)
        run = TargetRun((), 1, 0, 0, wall_s, Exit(0))
        options = collector.model_dump(mode="json")
        return Capture("c", "p", "py-spy", "ok", options=options, artifacts=artifacts, run=run, root=self.folder)


@contextmanager
def program(*argv: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running target that is gone when the test is over."""
    target = subprocess.Popen(argv, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield target
    finally:
        if target.poll() is None:
            os.killpg(target.pid, signal.SIGKILL)
        target.wait()


def attach(folder: Path, collector: PySpy, **job: Any) -> Attached:
    scratch = folder / "scratch with space"
    scratch.mkdir()
    asked = Job("p", str(scratch), Target((), "", "/", {}), collector.tool(Machine()), **job)
    return Attached(collector.launch(asked), scratch)


def record(folder: Path, collector: PySpy, *argv: str, seconds: float = 0.6) -> tuple[Parsed, int]:
    """A program from its start to its end under py-spy: what was recorded, and its exit status. When it has been
    sampled for so long, there is a file `enough` in the folder."""
    attached, began = attach(folder, collector), time.monotonic()
    with program(*argv) as target:
        attached.start(target.pid)
        attached.sampling()
        time.sleep(seconds)
        (folder / "enough").touch()
        status = target.wait(LIMIT_S)
    attached.wait()
    return collector.parse(attached.capture(collector, time.monotonic() - began)), status


def functions(parsed: Parsed, kind: str = "wall") -> dict[str, dict[str, Any]]:
    rows = next(table for table in parsed.tables if table.name == "functions").rows()
    return {row["function"]: row for row in rows if row["kind"] == kind}


def script(folder: Path, text: str) -> str:
    path = folder / "tr ain.py"
    path.write_text(text)
    return str(path)


def test_shares_agree_with_a_raw_capture_beside(tmp_path: Path) -> None:
    """At 100 Hz chance alone would move them by 3 points; so both look often."""
    raw = tmp_path / "raw.txt"
    collector = PySpy(rate=500)
    attached = attach(tmp_path, collector)
    with program(sys.executable, script(tmp_path, TWO), str(tmp_path / "enough")) as target:
        attached.start(target.pid)
        attached.sampling()
        spy = str(collector.tool(Machine()).path)
        beside = [spy, "record", "--pid", str(target.pid), "--rate", "1500", "--nonblocking", "--idle", "-f", "raw"]
        beside += ["--duration", "2", "-o", str(raw)]
        subprocess.run(beside, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        (tmp_path / "enough").touch()
        target.wait(LIMIT_S)
    attached.wait()
    found = functions(collector.parse(attached.capture(collector, 3)))
    stacks = pyspy.read_raw(raw).stacks
    samples = sum(s.weight for s in stacks)
    for name in ("heavy", "light"):
        share = 100 * sum(s.weight for s in stacks if any(f.startswith(f"{name} (") for f in s.frames)) / samples
        assert found[name]["total_pct"] == pytest.approx(share, abs=10)
    assert found["heavy"]["total_pct"] == pytest.approx(66.7, abs=12)


def test_threads_and_processes_count_for_as_long_as_they_live(tmp_path: Path) -> None:
    """D21: children are seen. The trace alone would let each thread and process go on until the very end."""
    argv = (sys.executable, script(tmp_path, FAMILY), str(tmp_path / "enough"))
    parsed, status = record(tmp_path, PySpy(), *argv, seconds=0)
    assert status == 0
    samples = {name: row["total_samples"] for name, row in functions(parsed).items()}
    assert 0 < samples["brief"] < samples["lasting"]
    assert min(samples["forked"], samples["spawned"]) > 0
    rows = next(table for table in parsed.tables if table.name == "functions").rows()
    to_the_end = max(row["total_samples"] for row in rows)  # of the main thread: from before the first to the last
    for name in ("brief", "lasting", "forked", "rest"):  # each is about a third of it, or less
        assert samples[name] < 0.75 * to_the_end, name
    assert "Python processes: 3 seen, 3 profiled" in parsed.notes


def test_without_subprocesses_only_the_parent_is_seen(tmp_path: Path) -> None:
    text = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'def child():\\n while i(): pass'])"
    text = text.replace("while i(): pass", "import time; time.sleep(0.8)").replace("'])", "\\nchild()'])")
    parsed, _ = record(tmp_path, PySpy(subprocesses=False), sys.executable, script(tmp_path, text), seconds=0)
    assert "child" not in functions(parsed) and "run" in functions(parsed)


def test_a_program_that_sleeps_has_samples(tmp_path: Path) -> None:
    """D29"""
    parsed, _ = record(tmp_path, PySpy(), sys.executable, "-c", "import time; time.sleep(2.5)", seconds=0)
    assert parsed.status is None
    assert sum(row["self_samples"] for row in functions(parsed).values()) > 0
    assert [note for note in parsed.notes if note.startswith("target was mostly waiting: on a processor in about")]


def test_who_holds_the_gil(tmp_path: Path) -> None:
    text = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n" + TWO
    parsed, _ = record(tmp_path, PySpy(gil=True), sys.executable, script(tmp_path, text), str(tmp_path / "enough"))
    assert "heavy" in functions(parsed, "gil")
    assert {row["thread"] for row in functions(parsed, "gil").values()} == {"MainThread"}


def test_the_exit_status_stays_its_own(tmp_path: Path) -> None:
    """D01"""
    parsed, status = record(tmp_path, PySpy(), sys.executable, script(tmp_path, TWO), str(tmp_path / "enough"), "7")
    assert status == 7 and "heavy" in functions(parsed)


def test_a_shell_script_around_python_runs_to_its_end(tmp_path: Path) -> None:
    """D09: py-spy attaches to the Python below the shell, or to nothing; the script never notices."""
    (tmp_path / "run.sh").write_text(
        f"'{sys.executable}' '{script(tmp_path, TWO)}' '{tmp_path}/enough'\necho end > '{tmp_path}/mark'\nexit 5\n"
    )
    collector = PySpy()
    attached = attach(tmp_path, collector)
    with program("sh", str(tmp_path / "run.sh")) as target:
        children = Path(f"/proc/{target.pid}/task/{target.pid}/children")
        python = int(until(children.read_text))
        until(lambda: cpu_s(python) > 0.1)
        attached.start(python)
        attached.sampling()
        time.sleep(0.6)
        (tmp_path / "enough").touch()
        status = target.wait(LIMIT_S)
    attached.wait()
    assert status == 5 and (tmp_path / "mark").read_text() == "end\n"
    assert "heavy" in functions(collector.parse(attached.capture(collector, 1)))


@pytest.mark.parametrize("how", ["duration", "interrupt"])
def test_the_end_of_sampling_is_not_the_end_of_the_target(tmp_path: Path, how: str) -> None:
    """D12, D22: it goes on, and is not left stopped."""
    collector = PySpy(duration=1) if how == "duration" else PySpy()
    window = Window(0, 1) if how == "interrupt" else None
    attached = attach(tmp_path, collector, window=window)
    with program(sys.executable, script(tmp_path, TWO), "no such file") as target:
        began = time.monotonic()
        attached.start(target.pid)
        attached.sampling()
        attached.tools[0].wait(LIMIT_S) if how == "duration" else time.sleep(0.7)
        attached.stop()
        most = 150 if how == "duration" else 100 * (time.monotonic() - began) + 50
        until(lambda: state(target.pid) in "RS")
        assert target.poll() is None
    parsed = collector.parse(attached.capture(collector, 1.5))
    assert 0 < sum(row["self_samples"] for row in functions(parsed).values()) < most


def meaning(attached: Attached) -> tuple[str, str]:
    said = attached.said()
    for sign in attached.launch.signs:
        hit = re.search(sign.pattern, said)
        if hit:
            return sign.status, sign.reason.format(*hit.groups())
    return "tool_failed", said


def test_a_target_that_has_ended(tmp_path: Path) -> None:
    """D30"""
    attached = attach(tmp_path, PySpy())
    with program(sys.executable, "-c", "print('hi')") as target:
        target.wait()
    attached.start(target.pid)
    attached.wait()
    assert meaning(attached) == ("empty", "it had ended before py-spy could attach")


def test_a_target_without_python(tmp_path: Path) -> None:
    attached = attach(tmp_path, PySpy(), window=Window(0, 1))
    with program("sleep", "600") as target:
        attached.start(target.pid)
        attached.tools[0].wait(LIMIT_S)
        attached.stop()
        assert target.poll() is None
    assert meaning(attached) == ("empty", "no Python process was found in the target")


@pytest.mark.tool("strace")
def test_a_target_that_strace_holds(tmp_path: Path) -> None:
    with program(sys.executable, script(tmp_path, TWO), "no such file") as target:
        strace = subprocess.Popen(
            ["strace", "-f", "-c", "-o", "/dev/null", "-p", str(target.pid)], stderr=subprocess.PIPE
        )
        assert strace.stderr is not None and b"attached" in strace.stderr.readline()
        (tmp_path / "alone").mkdir()
        alone = attach(tmp_path / "alone", PySpy())
        alone.start(target.pid)
        alone.tools[0].wait(LIMIT_S)
        alone.stop()
        collector = PySpy(duration=1)
        together = attach(tmp_path, collector, partners=("strace",))
        together.start(target.pid)
        together.tools[0].wait(LIMIT_S)
        together.stop()
        strace.terminate()
        strace.wait()
    status, reason = meaning(alone)
    assert status == "blocked" and reason.startswith("strace traces the target")
    assert "heavy" in functions(collector.parse(together.capture(collector, 1)))


def test_a_target_that_was_stopped_is_read_and_stays_stopped(tmp_path: Path) -> None:
    with program(sys.executable, script(tmp_path, TWO), "no such file") as target:
        until(lambda: cpu_s(target.pid) > 0.1)
        os.kill(target.pid, signal.SIGSTOP)
        until(lambda: state(target.pid) == "T")
        used = cpu_s(target.pid)
        collector = PySpy(duration=1)
        tools = attach(tmp_path, collector, pids=(target.pid,), attached=look([target.pid]))
        tools.start(target.pid)
        tools.tools[0].wait(LIMIT_S)
        tools.stop()
        assert (state(target.pid), cpu_s(target.pid)) == ("T", used)
    assert "spin" in functions(collector.parse(tools.capture(collector, 1)))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_target_of_another_user(tmp_path: Path) -> None:
    """D23: one line that says what is not allowed; the target is unharmed."""
    become = "import itertools, os, signal, sys, time; os.setgid(65534); os.setuid(65534)"
    code = f"{become}\n{Path(lives.__file__).read_text()}"  # what nobody can't read is read and imported before
    with program(sys.executable, script(tmp_path, TWO), str(tmp_path / "enough")) as target:
        watcher = subprocess.Popen(
            [sys.executable, "-c", code, str(target.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert watcher.stderr is not None
        assert watcher.stderr.readline() == f"process {target.pid} can't be looked at: Permission denied\n"
        (tmp_path / "enough").touch()
        assert target.wait(LIMIT_S) == 0
        assert watcher.communicate(timeout=LIMIT_S)[1] == ""


def test_lives(tmp_path: Path) -> None:
    """Each thread's end is told once and in time, and the CPU time of each process."""
    text = "import threading, time\nt = threading.Thread(target=time.sleep, args=(0.5,)); t.start(); t.join()\n" + TWO
    out = tmp_path / "out"
    with program(sys.executable, script(tmp_path, text), str(tmp_path / "enough")) as target, out.open("wb") as told:
        began_ns = time.time_ns()
        argv = [sys.executable, "-I", "-S", lives.__file__, str(target.pid)]
        with subprocess.Popen(argv, stdout=told, stderr=subprocess.PIPE) as watcher:
            until(out.read_text)  # of the thread, while the process goes on
            heard_ns = time.time_ns()
            until(lambda: cpu_s(target.pid) > 0.3)
            (tmp_path / "enough").touch()
            target.wait(LIMIT_S)
            assert (watcher.wait(LIMIT_S), watcher.stderr and watcher.stderr.read()) == (0, b"")
    ended_ns = time.time_ns()
    found = re.findall(rf"^died {target.pid} (\d+) (\d+)$", out.read_text(), re.M)
    (thread, thread_ns), (main, main_ns) = [(int(tid), int(ns)) for tid, ns in found]
    assert main == target.pid != thread
    assert began_ns < thread_ns < heard_ns and thread_ns < main_ns < ended_ns
    ((cpu_ns, seen_ns),) = re.findall(r"^cpu \d+ (\d+) (\d+)$", out.read_text(), re.M)
    assert 0 < int(cpu_ns) <= int(seen_ns) < ended_ns - began_ns
