"""Arming a program and finding it again: whom to trust, what goes when, and how a running Python lets our part in."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli import command, environment, profrun, script
from waiting import LIMIT_S, state, until

from orchestrator import armed, attached
from orchestrator.collectors.nsys import Nsys
from orchestrator.collectors.torch import Torch
from orchestrator.inject import boot
from orchestrator.machine import Machine
from orchestrator.model import Armed, Job, Target, Tool, Window
from orchestrator.standalone import let_in

SHOW = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:], dict(os.environ)]))"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where armed programs have their folders."""
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as one:
        yield one
        one.kill()


def armed_sleep(place: Path) -> subprocess.Popen[str]:
    words = command("arm", "--no-nsys", "--", "sleep", "1000")
    return subprocess.Popen(words, env=environment(PROFRUN_STATE=str(place)), stderr=subprocess.PIPE, text=True)


def is_sleep(one: subprocess.Popen[str]) -> bool:
    return Path(f"/proc/{one.pid}/comm").read_text() == "sleep\n"


def folders(place: Path) -> list[Path]:
    return sorted(place.glob("armed-*"))


# ---------------------------------------------------------------- the verb


def test_the_program_takes_the_place_of_profrun(place: Path, tmp_path: Path) -> None:
    words = command("arm", "--no-nsys", "--", sys.executable, "-I", "-c", SHOW, "--word", "a b")
    env = environment(PROFRUN_STATE=str(place), SECRET="xyzzy", PYTHONPATH="/mine")
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        out, err = one.communicate(timeout=LIMIT_S)
    pid, argv, seen = json.loads(out)
    assert (pid, argv, one.returncode) == (one.pid, ["--word", "a b"], 0)
    assert f"profrun wake --pid {pid} --duration 5s" in err
    assert seen["PYTHONPATH"].endswith(":/mine") and seen["SECRET"] == "xyzzy"
    (folder,) = folders(place)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    held = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"xyzzy" not in held and b"--word" not in held


@pytest.mark.parametrize(("end", "status"), [("kill -TERM $$", -signal.SIGTERM), ("exit 9", 9)])
def test_its_end_is_its_own(end: str, status: int, place: Path) -> None:
    words = command("arm", "--no-nsys", "sh", "-c", end)  # without -- as well
    done = subprocess.run(words, env=environment(PROFRUN_STATE=str(place)), timeout=LIMIT_S, stderr=subprocess.PIPE)
    assert done.returncode == status


def test_what_can_t_be_started_is_told_as_a_shell_does(place: Path, tmp_path: Path) -> None:
    env = environment(PROFRUN_STATE=str(place))
    assert profrun("arm", "--", "no-such-program", cwd=tmp_path, env=env).code == 127
    (tmp_path / "data.txt").write_text("words")
    assert profrun("arm", "--", "./data.txt", cwd=tmp_path, env=env).code == 126
    broken = script(tmp_path / "broken", "#!/no/such/interpreter\n")
    result = profrun("arm", "--", broken, cwd=tmp_path, env=env)
    assert result.code == 126 and "can't be started" in result.stderr
    assert profrun("arm", cwd=tmp_path, env=env).code == 2
    assert folders(place) == []


def test_dead_programs_folders_go_with_the_next_one(place: Path) -> None:
    with armed_sleep(place) as first:
        until(lambda: is_sleep(first))
        (of_first,) = folders(place)
        with armed_sleep(place) as second:
            until(lambda: is_sleep(second))
            assert of_first in folders(place) and len(folders(place)) == 2
            first.kill()
            first.wait()
            with armed_sleep(place) as third:
                until(lambda: is_sleep(third))
                assert of_first not in folders(place) and len(folders(place)) == 2
                third.kill()
            second.kill()


def test_a_place_that_is_not_ours_alone_is_not_used(place: Path, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for strange in (tmp_path / "open", tmp_path / "link"):
        if not strange.exists():
            strange.symlink_to(tmp_path)
        env = environment(PROFRUN_STATE=str(strange))
        result = profrun("arm", "--no-nsys", "--", "true", cwd=tmp_path, env=env)
        assert result.code == 3 and "PROFRUN_STATE" in result.stderr


def test_a_place_too_deep_for_a_socket_is_told(tmp_path: Path) -> None:
    env = environment(PROFRUN_STATE=str(tmp_path / ("d" * 100)))
    result = profrun("arm", "--no-nsys", "--", "true", cwd=tmp_path, env=env)
    assert result.code == 3 and "too long for a socket" in result.stderr


# ---------------------------------------------------------------- finding


def test_an_armed_program_is_found_by_its_environment(place: Path) -> None:
    with armed_sleep(place) as one:
        until(lambda: is_sleep(one))
        found = armed.find(attached.look([one.pid]))
        assert found == Armed(str(folders(place)[0]), one.pid)
        one.kill()


def test_others_are_not(sleeping: subprocess.Popen[bytes]) -> None:
    assert armed.find(attached.look([sleeping.pid])) is None


@pytest.mark.parametrize("fault", ["open", "gone", "link", "words", "nothing", "fifo"])
def test_a_folder_that_is_not_trusted_arms_nobody(fault: str, tmp_path: Path) -> None:
    folder = tmp_path / "armed-12345678"
    folder.mkdir(mode=0o700)
    about = folder / "about.json"
    about.write_text(json.dumps({"pid": 1}))
    with subprocess.Popen(["sleep", "1000"], env={boot.SETTINGS: str(folder / "settings"), "PATH": "/bin"}) as one:
        until(lambda: boot.SETTINGS in Path(f"/proc/{one.pid}/environ").read_text())
        seen = attached.look([one.pid])
        assert armed.find(seen) == Armed(str(folder), 1)
        about.unlink()
        if fault == "open":
            about.write_text(json.dumps({"pid": 1}))
            folder.chmod(0o755)
        elif fault == "gone":
            folder.rmdir()
        elif fault == "link":
            (tmp_path / "other").write_text(json.dumps({"pid": 1}))
            about.symlink_to(tmp_path / "other")
        elif fault == "fifo":
            os.mkfifo(about)
        else:
            about.write_text('["pid"]' if fault == "words" else "")
        assert armed.find(seen) is None
        one.kill()


def test_what_the_folder_says_is_taken_as_far_as_it_makes_sense(tmp_path: Path) -> None:
    folder = tmp_path / "armed-12345678"
    folder.mkdir(mode=0o700)
    (folder / "about.json").write_text(json.dumps({"pid": 7, "session": "a b; rm", "nsys": 3, "tmpdir": "/t"}))
    with subprocess.Popen(["sleep", "1000"], env={boot.SETTINGS: str(folder / "settings"), "PATH": "/bin"}) as one:
        until(lambda: boot.SETTINGS in Path(f"/proc/{one.pid}/environ").read_text())
        assert armed.find(attached.look([one.pid])) == Armed(str(folder), 7, None, None, "/t")
        one.kill()


# ---------------------------------------------------------------- what the collectors make of it


def job(tmp_path: Path, **more: object) -> Job:
    target = Target(("sleep",), "/bin/sleep", "/", {})
    given = {"window": Window(for_s=2.0), "pids": (7,), **more}
    return Job("p01", str(tmp_path), target, Tool("nsys", "/opt/nsys"), **given)  # type: ignore[arg-type]


def test_torch_wakes_what_is_armed_and_says_how_to_arm_the_rest(tmp_path: Path) -> None:
    machine = Machine()
    refused = Torch(use="torch").obstacle_to_attach(machine)
    assert refused is not None and "profrun arm -- COMMAND" in (refused.fix or "")
    machine.armed = Armed("/f", 7)
    assert Torch(use="torch").obstacle_to_attach(machine) is None
    (wake,) = Torch(use="torch", stacks=True).launch(job(tmp_path, armed=machine.armed)).beside
    assert wake.when == "window" and wake.argv[-2:] == ("--folder", "/f")
    asked = json.loads(wake.argv[6])
    assert asked["stacks"] is True and asked["skip"] is None
    (wake,) = Torch(use="torch").launch(job(tmp_path, armed=machine.armed, window=Window(skip=2, steps=3))).beside
    assert [json.loads(wake.argv[6])[name] for name in ("skip", "steps")] == [2, 3]


def test_torch_leaves_the_gpu_to_the_nsys_that_is_there(tmp_path: Path) -> None:
    launch = Torch(use="torch").launch(job(tmp_path, armed=Armed("/f", 7, "s", "/opt/nsys"), facts={"gpus": ["one"]}))
    assert json.loads(launch.beside[0].argv[6])["activities"] == ["cpu"]
    assert "left to nsys" in launch.notes[0]


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "only what was started under it"),
        (Armed("/f", 7), "armed without nsys"),
        (Armed("/f", 7, "s", "/opt/nsys", is_ours=False), "another user"),
        (Armed("/f", 7, "s", "/opt/other/nsys"), "started under /opt/other/nsys"),
        (Armed("/f", 7, "s", "/opt/nsys"), None),
    ],
)
def test_nsys_looks_only_where_it_can(found: Armed | None, why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    machine.armed = found
    monkeypatch.setattr(Nsys, "tool", lambda *_: Tool("nsys", "/opt/nsys"))
    refused = Nsys(use="nsys").obstacle_to_attach(machine)
    assert (refused is None) if why is None else (refused is not None and why in refused.message)


def test_nsys_records_in_the_session_that_waits(tmp_path: Path) -> None:
    launch = Nsys(use="nsys").launch(job(tmp_path, armed=Armed("/f", 7, "waiting", "/opt/nsys", "/its/tmp")))
    (window,) = launch.beside
    assert launch.wrap is None
    assert window.argv[:2] == ("env", "TMPDIR=/its/tmp")
    assert window.argv[5:7] == ("/opt/nsys", "waiting")


# ---------------------------------------------------------------- a Python that lets our part in

PLAYED = """
import os, sys
class Played:
    def __call__(self, pid, path):
        print("asked for", pid, open(path).read().count("boot.start"))
        {then}
sys.remote_exec = Played()
sys.argv = ["let_in.py", *sys.argv[1:]]
sys.path.insert(0, {home!r})
import let_in
let_in._TAKEN_S = 0.05
sys.exit(let_in.main())
"""
"""Stands for an interpreter of 3.14, whose `sys.remote_exec` no other has."""


def played(tmp_path: Path, pid: int, folder: Path, then: str = "pass") -> subprocess.CompletedProcess[str]:
    text = PLAYED.format(home=str(Path(let_in.__file__).parent), then=then)
    words = [sys.executable, "-I", "-S", "-c", text, str(pid), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)


def test_the_script_is_handed_over_in_a_folder_of_the_process_s_user(
    tmp_path: Path, sleeping: subprocess.Popen[bytes]
) -> None:
    folder = tmp_path / "armed-x"
    done = played(tmp_path, sleeping.pid, folder)
    assert (done.returncode, done.stdout) == (0, f"asked for {sleeping.pid} 1\n")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["about.json", "settings"]
    assert json.loads((folder / "about.json").read_text())["born"] == let_in._born(sleeping.pid)


def test_what_is_refused_is_told(tmp_path: Path, sleeping: subprocess.Popen[bytes]) -> None:
    refused = "raise PermissionError(1, 'Operation not permitted')"
    done = played(tmp_path, sleeping.pid, tmp_path / "armed-x", refused)
    assert done.returncode == 1 and "does not let profrun's part in" in done.stderr
    (tmp_path / "armed-y").mkdir(mode=0o755)
    done = played(tmp_path, sleeping.pid, tmp_path / "armed-y")
    assert done.returncode == 1 and "not that user's alone" in done.stderr
    words = [sys.executable, let_in.__file__, str(sleeping.pid), str(tmp_path / "armed-z")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    if sys.version_info < (3, 14):
        assert done.returncode == 1 and "can't run anything" in done.stderr


def test_only_pythons_with_that_door_and_torch_are_open(
    place: Path, sleeping: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (one,) = attached.look([sleeping.pid])
    python = replace(one, is_python=True, argv=("python3.14", "server.py"))
    monkeypatch.setattr(armed.process, "exe_of", lambda _: "/usr/bin/python3.14")
    maps = "7f00 r-xp /lib/torch/lib/libtorch_cpu.so\n"
    monkeypatch.setattr(armed, "_maps", lambda _: maps)
    (found,) = armed.open_to_us([python])
    assert (found.pid, found.exe, found.is_in) == (one.pid, "/usr/bin/python3.14", False)
    assert found.folder.startswith(f"{place}/armed-{one.pid}-")
    assert armed.open_to_us([replace(python, argv=("python", "-X", "disable-remote-debug", "x.py"))]) == ()
    assert armed.open_to_us([one]) == ()
    monkeypatch.setattr(armed.process, "environ_of", lambda _: {"PYTHON_DISABLE_REMOTE_DEBUG": "1"})
    assert armed.open_to_us([python]) == ()
    monkeypatch.undo()
    monkeypatch.setenv("PROFRUN_STATE", str(place))
    monkeypatch.setattr(armed.process, "exe_of", lambda _: "/usr/bin/python3.13")
    monkeypatch.setattr(armed, "_maps", lambda _: maps)
    assert armed.open_to_us([python]) == ()
    monkeypatch.setattr(armed, "_maps", lambda _: maps + "/opt/lib/libpython3.14.so.1.0\n")
    assert len(armed.open_to_us([python])) == 1
    monkeypatch.setattr(armed, "_maps", lambda _: "/opt/lib/libpython3.14.so.1.0\n")
    assert armed.open_to_us([python]) == ()


def test_torch_has_them_let_our_part_in_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doors = (armed.Open(7, "/usr/bin/python3.14", "/a", False), armed.Open(8, "/usr/bin/python3.14", "/b", True))
    monkeypatch.setattr(armed, "open_to_us", lambda _: doors)
    assert Torch(use="torch").obstacle_to_attach(Machine()) is None
    lets, wake = Torch(use="torch").launch(job(tmp_path)).beside
    assert lets.argv == ("/usr/bin/python3.14", "-I", "-S", let_in.__file__, "7", "/a") and lets.when == "start"
    assert wake.argv[-4:] == ("--let-in", "7=/a", "--let-in", "8=/b")


def test_a_window_in_steps_needs_somebody_who_counts_them(sleeping: subprocess.Popen[bytes], tmp_path: Path) -> None:
    window = ("--set", "window={skip: 0, steps: 5}")
    result = profrun("wake", *window, "--only", "torch", "--pid", str(sleeping.pid), cwd=tmp_path)
    assert result.code == 2 and "profrun arm -- COMMAND" in result.stderr
    assert state(sleeping.pid) == "S"
