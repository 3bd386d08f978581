"""The keeper: there before the first change, deaf to what ends others, and at work only when its owner was killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import knobs
import pytest
from waiting import processes, until

from orchestrator import cgroups, folder, guard, journal, keeper, process, restoring
from orchestrator.machine import Machine


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    (tmp_path / "report").mkdir()
    return tmp_path / "report"


@pytest.fixture
def kept(report: Path) -> Iterator[keeper.Keeper]:
    one = keeper.Keeper({"run": "r", "report": str(report), "pid": os.getpid(), "journal": None}, ())
    yield one
    one.bye()


def gone(pid: int) -> bool:
    return process.state(pid) in (None, "Z")


# ---------------------------------------------------------------- its life


def test_it_says_when_it_is_there_and_goes_with_a_word(report: Path) -> None:
    one = keeper.Keeper({"run": "r", "report": str(report), "journal": None}, ())
    assert one.ready()
    assert os.getsid(one.pid) == one.pid
    one.bye()
    assert gone(one.pid)
    assert not (report / "run.log").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_it_is_deaf_to_what_ends_others(kept: keeper.Keeper, number: int) -> None:
    os.kill(kept.pid, number)  # perhaps before its Python is up
    assert kept.ready()
    os.kill(kept.pid, number)
    kept.idle()
    assert process.alive(kept.pid)


def test_it_bears_no_mark_and_no_module_of_the_users_directory(
    tmp_path: Path, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(process.MARKER, "outer/p01")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("os", "signal", "json", "orchestrator", "encodings"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    one = keeper.Keeper({"run": "r", "report": str(report), "journal": None}, ())
    assert one.ready()
    assert process.MARKER not in (process.environ_of(one.pid) or {})
    one.bye()


def test_one_that_was_killed_is_replaced(kept: keeper.Keeper) -> None:
    assert kept.ready()
    first = kept.pid
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first))
    kept.pass_begins("r/p01")
    assert kept.pid != first
    assert kept.ready()


def test_while_it_waits_it_has_loaded_next_to_nothing() -> None:
    code = f"import sys; exec(open({str(keeper._SCRIPT)!r}).read(), {{'__name__': 'it'}}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"json", "re", "subprocess", "orchestrator", "dataclasses"} & set(done.stdout.split())


# ---------------------------------------------------------------- its work


@pytest.mark.parametrize("point", [0, 9, 14, 18, 26, 33])
def test_it_puts_the_machine_back(tmp_path: Path, report: Path, point: int) -> None:
    place = knobs.make(tmp_path / "cpu")

    def dying() -> None:
        knobs.mortal(point)
        knobs.run(place, report, keeper=True)

    assert os.WTERMSIG(knobs.in_child(dying)) == signal.SIGKILL
    until(lambda: not list(journal.left()))
    assert knobs.settings(place) == knobs.BEFORE
    assert knobs.bell(place) in ([], ["on", "off"], ["off"], ["on", "off", "off"])


def test_what_it_does_stands_in_the_report(tmp_path: Path, report: Path) -> None:
    place = knobs.make(tmp_path / "cpu")

    def dying() -> None:
        knobs.mortal(18)
        knobs.run(place, report, keeper=True)

    knobs.in_child(dying)
    until(lambda: "put back" in _text(report / "run.log"))
    assert "was killed; its keeper" in _text(report / "run.log")
    assert '"by": "keeper"' in _text(report / "journal.jsonl")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_nobody_starts_while_it_puts_back(tmp_path: Path, report: Path) -> None:
    """The lock is the keeper's as well; it is free when the machine is as it was."""
    place = knobs.make(tmp_path / "cpu")
    slow = knobs.Knobs(place=str(place))

    def dying() -> None:
        knobs.mortal(18)
        knobs.run(place, report, keeper=True, steps=(slow,))

    knobs.in_child(dying)
    held = guard.Guard(Machine(), lambda text: None)
    held.hold(slow.claims(Machine()), 120.0, lambda: ())
    assert knobs.settings(place) == knobs.BEFORE
    held.close()


def test_keeper_and_owner_killed(tmp_path: Path, report: Path) -> None:
    place = knobs.make(tmp_path / "cpu")

    def dying() -> None:
        knobs.run(place, report, keeper=True, steps=(knobs.Knobs(place=str(place)), _Killer()))

    knobs.in_child(dying)
    assert knobs.settings(place) == knobs.WANTED
    done = restoring.restore("report")
    assert done.exit_code == 0
    assert knobs.settings(place) == knobs.BEFORE


class _Killer(knobs.Step):
    """Kills the keeper, then its owner."""

    use: str = "killer"

    def before(self, machine: Machine) -> dict[str, str]:
        for pid in process.children(os.getpid()):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.kill(os.getpid(), signal.SIGKILL)
        return {}


def started(*argv: str, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env={**os.environ, process.MARKER: mark}, start_new_session=True)


def test_it_ends_the_pass_and_nothing_else() -> None:
    here, other = f"run-{os.getpid()}/p02", f"run-{os.getpid()}/p01"
    sleep = ("sleep", f"601.{os.getpid():07}")
    leftover = started(*sleep, mark=other)
    parent = started("sh", "-c", f"env -i setsid {' '.join(sleep)} & wait", mark=here)
    until(lambda: len(processes(f"^{' '.join(sleep)}")) == 2)
    keeper.end_pass([{"mark": here}, {"pid": parent.pid, "born": process.born(parent.pid)}])
    assert process.alive(leftover.pid)
    leftover.kill()
    leftover.wait()
    until(lambda: not processes(f"^{' '.join(sleep)}"))
    parent.wait()


def test_a_target_that_has_overwritten_its_environment_is_found_by_its_pid() -> None:
    target = started("sleep", "600", mark="nobody/knows")
    keeper.end_pass([{"mark": "run-x/p01"}, {"pid": target.pid, "born": process.born(target.pid)}])
    assert gone(target.pid)
    target.wait()


def test_a_pid_that_belongs_to_somebody_else_by_now_is_left_alone() -> None:
    stranger = started("sleep", "600", mark="x/y")
    keeper.end_pass([{"mark": "run-x/p01"}, {"pid": stranger.pid, "born": 1}])
    assert process.alive(stranger.pid)
    stranger.kill()
    stranger.wait()


def test_what_was_attached_to_goes_on() -> None:
    target = started("sleep", "600", mark="other/p01")
    tool = started("sleep", "600", mark="run-x/p01")
    born = {str(target.pid): process.born(target.pid)}
    os.kill(target.pid, signal.SIGSTOP)
    until(lambda: process.state(target.pid) == "T")
    keeper.end_pass([{"mark": "run-x/p01", "attached": born}])
    assert gone(tool.pid)
    tool.wait()
    until(lambda: process.state(target.pid) == "S")
    target.kill()
    target.wait()


def test_a_stopped_target_stays_stopped(kept: keeper.Keeper) -> None:
    target = started("sleep", "600", mark="other/p01")
    os.kill(target.pid, signal.SIGSTOP)
    until(lambda: process.state(target.pid) == "T")
    kept.pass_begins("run-x/p01", [target.pid])
    about = json.loads(kept._said["pass"])
    assert about["attached"] == {} and about["stopped"] == {str(target.pid): process.born(target.pid)}
    keeper.end_pass([about])
    assert process.state(target.pid) == "T"
    target.kill()
    target.wait()


def test_a_target_at_the_gate_does_not_outlive_profrun(tmp_path: Path) -> None:
    def gated() -> None:
        fd = os.open(os.devnull, os.O_RDWR)
        spec = process.Spec("/bin/sleep", ("sleep", "600"), {}, "/", fd, fd, fd, process.Child())
        (tmp_path / "pid").write_text(str(process.start(spec, gated=True).pid))
        os.kill(os.getpid(), signal.SIGKILL)

    knobs.in_child(gated)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: gone(pid))


# ---------------------------------------------------------------- its cgroup


def sysroot(tmp_path: Path, own: str, mountinfo: str = "") -> Machine:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/7").mkdir()
    (tmp_path / "proc/7/cgroup").write_text(own)
    (tmp_path / "proc/self/mountinfo").write_text(mountinfo)
    for mount in ("sys/fs/cgroup", "sys/fs/cgroup/freezer"):
        (tmp_path / mount).mkdir(parents=True, exist_ok=True)
        (tmp_path / mount / "cgroup.procs").write_text("")
    return Machine(root=tmp_path)


V2 = "30 20 0:26 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 20 0:27 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n"


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups.os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("as_root")
@pytest.mark.parametrize(
    ("own", "mounted", "moved"),
    [
        ("0::/system.slice/cron.service\n", V2, ["sys/fs/cgroup"]),
        ("4:freezer:/slurm/uid_1/job_2/step_0\n0::/\n", V2 + V1, ["sys/fs/cgroup/freezer"]),
        ("4:freezer:/\n0::/\n", V2 + V1, []),
        ("0::/somebody/elses\n", V2, []),
    ],
)
def test_root_takes_it_out_of_the_jobs_cgroup(tmp_path: Path, own: str, mounted: str, moved: list[str]) -> None:
    note = cgroups.set_apart(sysroot(tmp_path, own, mounted), 7)
    found = [
        str(file.parent.relative_to(tmp_path)) for file in tmp_path.rglob("cgroup.procs") if file.read_text() == "7"
    ]
    assert sorted(found) == sorted(moved)
    assert bool(note) is bool(moved)  # nothing moves in this tree of files, and that is seen


def test_without_root_it_says_who_would_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups.os, "geteuid", lambda: 1000)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    note = cgroups.set_apart(sysroot(tmp_path, "0::/system.slice/slurmstepd.scope/job_42/step_0\n", V2), 7)
    assert note is not None
    assert note.startswith("Slurm can end profrun and its keeper at once")
    assert "profrun env restore" in note


def test_the_users_own_systemd_is_asked_for_a_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busctl that does what systemd does, as far as it can be seen from here."""
    monkeypatch.setattr(cgroups.os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    root = tmp_path / "root"
    machine = sysroot(root, "0::/user.slice/user-1000.slice/session-3.scope\n", V2)
    (root / "run/user/1000").mkdir(parents=True)
    (root / "run/user/1000/bus").touch()
    busctl = tmp_path / "busctl"
    scope = "/user.slice/user-1000.slice/user@1000.service/app.slice/profrun-keeper-7.scope"
    busctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho 0::{scope} > {root}/proc/7/cgroup\n')
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(Machine, "in_container", lambda self: None)
    assert cgroups.set_apart(machine, 7) is None
    asked = (tmp_path / "asked").read_text().split()
    assert asked[-8:] == ["profrun-keeper-7.scope", "fail", "1", "PIDs", "au", "1", "7", "0"]


def test_the_state_folder_of_these_tests_is_their_own(state: Path) -> None:
    assert folder.state_folder() == state


def test_what_a_profrun_in_the_target_has_in_hand_goes_on(tmp_path: Path) -> None:
    """Its keeper, and its commands, which bear its own mark: nobody else would put its machine back."""
    sleep = f"sleep 603.{os.getpid():07}"
    inner = keeper.Keeper({"run": "inner", "report": str(tmp_path), "journal": None}, ())
    assert inner.ready()
    script = f"{process.MARKER}=inner/undo-3. setsid sh -c '{sleep}; true' & {process.MARKER}=inner/p01 {sleep} & wait"
    outer = started("sh", "-c", script, mark="outer/p01")
    until(lambda: len(processes(f"^{sleep}")) == 2)
    about = [{"mark": "outer/p01"}, {"pid": outer.pid, "born": process.born(outer.pid)}]
    keeper.end_pass([*about, {"pid": inner.pid, "born": process.born(inner.pid)}])
    [left] = processes(f"^{sleep}")
    assert (process.environ_of(left) or {})[process.MARKER] == "inner/undo-3."
    assert process.alive(inner.pid)
    os.killpg(os.getsid(left), signal.SIGKILL)
    inner.bye()
    outer.wait()


def test_one_that_replaces_another_is_set_apart_as_well(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    monkeypatch.setattr(cgroups, "set_apart", lambda _machine, pid: moved.append(pid))
    held = guard.Guard(Machine(), lambda text: None)
    held.open("r", folder.Folder(report), report / "scratch", changes=True, public=True)
    assert held.keeper
    held.before_first_change()
    first = held.keeper.pid
    held.pass_begins("r/p01", ())
    os.kill(first, signal.SIGKILL)
    until(lambda: gone(first))
    held.pass_begins("r/p02", ())
    held.pass_begins("r/p03", ())
    assert moved == [first, held.keeper.pid]
    held.close()
