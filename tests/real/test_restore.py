"""Whole runs that are killed, two at once, under sudo and as another user: the machine is left as it was found."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import knobs
import pytest
from cli import command, environment, profrun, write_plan
from waiting import kill, processes, state, unmistakable, until


class Place:
    """A folder with a machine of three settings, a plan that changes them, and where journals go."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cpu = knobs.make(path / "cpu")
        self.sleep = f"sleep {unmistakable(700)}"
        info = path / "plugin" / "plugin-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[profrun.environment]\nknobs = knobs:Knobs\n")
        folder = Path(knobs.__file__).parent
        env = {"PYTHONPATH": f"{info.parent}:{folder}:{folder.parent}", "PROFRUN_STATE": str(path / "state")}
        self.env = environment(**env)
        self.plan = self.write_plan(self.path)

    def write_plan(self, folder: Path, collector: str = "{use: timing, warmup: 0, repeats: 1}") -> Path:
        step = f"[{{use: knobs, place: {self.cpu}}}]"
        return write_plan(folder, collector, environment=step, report="{formats: []}")

    def start(self, *words: str | Path, **options: Any) -> subprocess.Popen[str]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        return subprocess.Popen(command(*words), cwd=self.path, env=self.env, text=True, **quiet)

    def running(self, *words: str | Path) -> subprocess.Popen[str]:
        """A run whose target has started under the plan's settings."""
        one = self.start(*words)
        until(lambda: processes(f"^{self.sleep}"))
        assert knobs.settings(self.cpu) == knobs.WANTED
        return one

    def is_as_before(self) -> bool:
        return knobs.settings(self.cpu) == knobs.BEFORE

    def keepers(self, owner: int) -> list[int]:
        found = processes(Path("standalone/keeper.py"))
        return [
            pid for pid in found if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(owner)
        ]

    def log(self) -> str:
        return (self.path / "reports/latest/run.log").read_text()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path)
    yield one
    kill(one.sleep)


def test_a_run_puts_back_what_it_changes(place: Place) -> None:
    script = f"cat {place.cpu}/governor"
    result = profrun(place.plan, "--", "sh", "-c", script, cwd=place.path, env=place.env)
    assert (result.code, result.stdout.splitlines()[0]) == (0, "performance")
    assert place.is_as_before()
    record = result.summary["environment"][0]
    assert (record["status"], record["restored"]) == ("applied", True)
    first = record["parts"][0]
    assert [first[name] for name in ("before", "wanted", "verified", "after")] == [
        "powersave", "performance", "performance", "powersave",
    ]  # fmt: skip
    assert list((place.path / "state").glob("journal-*")) == []


def test_killed_it_leaves_neither_a_setting_nor_a_process(place: Place) -> None:
    """The target ignores SIGTERM, and has a child in a session of its own without its environment."""
    script = f"trap '' TERM; env -i setsid {place.sleep} & exec {place.sleep}"
    run = place.running(place.plan, "--", "sh", "-c", script)
    until(lambda: len(processes(f"^{place.sleep}")) == 2)
    [keeper] = place.keepers(run.pid)
    run.kill()
    run.wait()
    until(lambda: state(keeper) in "XZ")
    assert processes(f"^{place.sleep}") == []
    assert place.is_as_before()
    assert knobs.bell(place.cpu) == ["on", "off"]
    assert "was killed; its keeper" in place.log()
    assert "put back: knobs: governor" in place.log()
    assert list((place.path / "state").glob("journal-*")) == []


def test_the_next_start_mends_what_neither_owner_nor_keeper_could(place: Place) -> None:
    run = place.running(place.plan, "--", *place.sleep.split())
    [keeper] = place.keepers(run.pid)
    os.kill(keeper, signal.SIGKILL)
    run.kill()
    run.wait()
    assert knobs.settings(place.cpu) == knobs.WANTED
    plain = write_plan(place.path, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    result = profrun(plain, "--", "true", cwd=place.path, env=place.env)
    assert result.code == 0
    assert "a run that was killed had left 4 settings: restored" in result.stderr
    assert f"pid {run.pid}" in result.stderr
    assert place.is_as_before()


def test_env_restore(place: Place) -> None:
    run = place.running(place.plan, "--", *place.sleep.split())
    report = (place.path / "reports/latest").resolve()
    alive = profrun("env", "restore", "reports/latest", cwd=place.path, env=place.env)
    assert alive.code == 75
    assert str(run.pid) in alive.stderr
    for pid in (*place.keepers(run.pid), run.pid):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    done = profrun("env", "restore", report.name, "--json", cwd=place.path, env=place.env)
    assert done.code == 0
    [one] = json.loads(done.stdout)["runs"]
    assert (one["report"], one["state"], len(one["settings"])) == (str(report), "restored", 4)
    assert place.is_as_before()
    again = profrun("env", "restore", cwd=place.path, env=place.env)
    assert (again.code, again.stdout) == (0, "nothing to put back: no dead run has left any\n")
    unknown = profrun("env", "restore", "nobody", cwd=place.path, env=place.env)
    assert unknown.code == 2


def test_what_a_dead_run_has_left_running_is_named_and_ended_by_env_restore(place: Place) -> None:
    """Owner and keeper are killed; the target and its child in a session of its own run on."""
    run = place.running(place.plan, "--", "sh", "-c", f"setsid {place.sleep} & exec {place.sleep}")
    until(lambda: len(processes(f"^{place.sleep}")) == 2)
    pids = processes(f"^{place.sleep}")
    for pid in (*place.keepers(run.pid), run.pid):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    plain = write_plan(place.path, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    for told in (True, False):
        result = profrun(plain, "--", "true", cwd=place.path, env=place.env)
        assert (
            "a run that was killed has left running: " in result.stderr and "profrun env restore test-" in result.stderr
        )
        assert all(f"pid {pid}: {place.sleep}" in result.stderr for pid in pids)
        assert ("had left 4 settings: restored" in result.stderr) is told, "that is told once"
        assert place.is_as_before() and processes(f"^{place.sleep}") == pids
    done = profrun("env", "restore", cwd=place.path, env=place.env)
    assert done.code == 0 and "ended what a run that was killed had left running: " in done.stdout
    assert all(f"pid {pid}: {place.sleep}" in done.stdout for pid in pids)
    assert processes(f"^{place.sleep}") == [] and list((place.path / "state").glob("journal-*")) == []


def test_env_restore_ends_nothing_that_was_attached_to(place: Place) -> None:
    target = subprocess.Popen([sys.executable, "-c", f"import time\nwhile True: time.sleep(0.01)  # {place.sleep}"])
    run = place.start(place.write_plan(place.path, "{use: monitor}"), "--pid", str(target.pid))
    until(lambda: processes(Path("sampler"), str(target.pid)))
    for pid in (*place.keepers(run.pid), run.pid):
        os.kill(pid, signal.SIGKILL)
    run.wait()
    done = profrun("env", "restore", cwd=place.path, env=place.env)
    assert done.code == 0 and place.is_as_before()
    assert processes(Path("sampler"), str(target.pid)) == [] and state(target.pid) in "RS"
    target.kill()
    target.wait()


def test_two_runs_that_want_the_same(place: Place) -> None:
    run = place.running(place.plan, "--", *place.sleep.split())
    second = profrun(place.plan, "--", "true", cwd=place.path, env=place.env)
    assert second.code == 75
    assert "another run holds cpu:cpu" in second.stderr
    assert f"process {run.pid}" in second.stderr
    assert len(list((place.path / "reports").glob("test-*"))) == 1
    patient = place.start("--wait", place.plan, "--", "true", stderr=subprocess.PIPE)
    assert patient.stderr is not None
    assert "waiting: another run holds cpu:cpu" in patient.stderr.readline()
    os.kill(run.pid, signal.SIGINT)
    assert patient.wait() == 0
    patient.stderr.close()
    assert run.wait() == 130
    assert place.is_as_before()


def test_what_is_attached_to_is_neither_ended_nor_left_stopped(place: Place) -> None:
    code = f"import time\nwhile True: time.sleep(0.01)  # {place.sleep}"
    target = subprocess.Popen([sys.executable, "-c", code])
    plan = place.write_plan(place.path, "{use: monitor}")
    run = place.start(plan, "--pid", str(target.pid))
    until(lambda: processes(Path("sampler"), str(target.pid)))
    [keeper] = place.keepers(run.pid)
    os.kill(target.pid, signal.SIGSTOP)  # as a tool would leave it that dies amid a sample
    run.kill()
    run.wait()
    until(lambda: state(keeper) in "XZ")
    assert processes(Path("sampler"), str(target.pid)) == []
    assert state(target.pid) in "RS"
    assert place.is_as_before()
    target.kill()
    target.wait()


def test_a_time_out_ends_no_command_of_a_profrun_in_the_target(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    sleep = f"sleep {unmistakable(705)}"
    undo = f"PROFRUN_RUN=inner/undo-0. setsid sh -c 'until [ -e {tmp_path}/ended ]; do sleep 0.1; done; touch undone'"
    result = profrun("--timeout", "1s", plan, "--", "sh", "-c", f"{undo} & exec {sleep}", cwd=tmp_path)
    assert result.code == 124 and processes(f"^{sleep}") == []
    (tmp_path / "ended").touch()
    until(lambda: (tmp_path / "undone").exists())


def test_a_profrun_in_the_target_puts_back_what_it_has_changed(place: Place) -> None:
    """The outer one is killed: its keeper lets the inner one come to its end."""
    (place.path / "outer").mkdir()
    plan = write_plan(place.path / "outer", "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    outer = place.running(plan, "--", *command(place.plan, "--", *place.sleep.split()))
    outer.kill()
    outer.wait()
    until(lambda: not list((place.path / "state").glob("journal-*")))
    assert place.is_as_before() and knobs.bell(place.cpu) == ["on", "off"]
    until(lambda: not processes(f"^{place.sleep}"))


# ---------------------------------------------------------------- other users

needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")


@needs_root
def test_under_sudo_the_files_are_the_callers(place: Place) -> None:
    env = {**place.env, "SUDO_UID": "65534", "SUDO_GID": "65534"}
    result = profrun(place.plan, "-o", "mine/reports", "--", "true", cwd=place.path, env=env)
    assert result.code == 0
    made = [place.path / "mine", *(place.path / "mine").rglob("*")]
    assert len(made) > 12
    assert [path for path in made if path.lstat().st_uid != 65534] == []
    assert place.path.stat().st_uid == 0


@needs_root
def test_under_sudo_what_the_keeper_writes_is_the_callers(place: Place) -> None:
    place.env |= {"SUDO_UID": "65534", "SUDO_GID": "65534"}
    run = place.running(place.plan, "--", *place.sleep.split())
    [keeper] = place.keepers(run.pid)
    run.kill()
    run.wait()
    until(lambda: state(keeper) in "XZ")
    assert [path for path in (place.path / "reports").rglob("*") if path.lstat().st_uid != 65534] == []


@needs_root
def test_two_users_see_each_other_s_locks_and_journals(tmp_path: Path) -> None:
    """Root opens a folder for all; what it holds there, nobody else can have; what it has left, only it puts back."""
    everybody = Path("/tmp") / f"profrun-test-{unmistakable(1)}"
    everybody.mkdir()
    everybody.chmod(0o1777)
    code = """
import sys
sys.path[:0] = [{package!r}, {tests!r}]
import knobs, os
from orchestrator import journal, locks, restoring
os.setgroups([]), os.setgid(65534), os.setuid(65534)  # now: the checkout may lie where only root can go
theirs = locks.Locks().take(["gpu:A", "gpu:B"])
print([(holder.claim, holder.user) for holder in theirs])
print([(left.state, left.run) for left in journal.left()])
done = restoring.restore(None)
print(done.exit_code, "sudo profrun env restore" in done.text())
own = locks.Locks()
print(own.take(["gpu:C"]))
"""
    folder = Path(knobs.__file__).parent
    code = code.format(package=str(folder.parent), tests=str(folder))
    env = {**os.environ, "PROFRUN_STATE": str(everybody)}
    try:
        first = subprocess.run([sys.executable, "-c", _ROOTS, str(folder.parent)], env=env, check=True)
        assert first.returncode == 0
        held = subprocess.Popen([sys.executable, "-c", _HOLDS, str(folder.parent)], env=env, stdin=-1, stdout=-1)
        assert held.stdout and held.stdout.readline()
        said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd="/")
        held.communicate()
        assert said.stdout.splitlines() == [
            "[('gpu:A', 'root')]",
            "[('foreign', 'dead')]",
            "5 True",
            "[]",
        ], said.stderr
        again = subprocess.run(
            [sys.executable, "-c", _TAKES, str(folder.parent)], env=env, capture_output=True, text=True
        )
        assert again.stdout == "[]\n", again.stderr
    finally:
        shutil.rmtree(everybody)


_ROOTS = """
import sys; sys.path[:0] = sys.argv[1:]
from orchestrator import changes, journal
from orchestrator.model import Write
book = journal.create(journal.about("dead", "/nowhere", ()))
wish = changes.as_data(Write("/nowhere", "1"))
book.write("step", index=0, use="x", first=0, before={}, changes=[wish], undos=[None])
book.write("intent", n=0, old="0")
"""
_HOLDS = """
import sys; sys.path[:0] = sys.argv[1:]
from orchestrator.locks import Locks
own = Locks()
own.take(["gpu:A"])
own.sign({"pid": 1, "user": "root"})
print("held", flush=True)
sys.stdin.read()
"""
_TAKES = """
import sys; sys.path[:0] = sys.argv[1:]
from orchestrator.locks import Locks
print(Locks().take(["gpu:A", "gpu:C"]))
"""
