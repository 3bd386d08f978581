"""One run at a time for each thing that it changes."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from pathlib import Path

import knobs
import pytest

from orchestrator import folder, guard, locks
from orchestrator.errors import BusyError
from orchestrator.locks import Locks
from orchestrator.machine import Machine

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files to another user")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def test_what_one_holds_another_can_not_have() -> None:
    first, second = Locks(), Locks()
    assert first.take(["gpu:A", "cpu:policy0"]) == []
    first.sign({"pid": os.getpid(), "user": "alice", "since": "today", "report": "/reports/x"})
    busy = second.take(["cpu:policy1", "gpu:A"])
    assert [(holder.claim, holder.pid, holder.user) for holder in busy] == [("gpu:A", os.getpid(), "alice")]
    assert second.claims == frozenset()
    error = locks.busy(busy)
    assert error.exit_code == 75
    for word in ("gpu:A", str(os.getpid()), "alice", "today", "/reports/x", "--wait"):
        assert word in error.text()


def test_all_or_none() -> None:
    first, second, third = Locks(), Locks(), Locks()
    first.take(["b"])
    assert [holder.claim for holder in second.take(["a", "b", "c"])] == ["b"]
    assert third.take(["a", "c"]) == []


def test_a_lock_ends_with_its_holder() -> None:
    def hold() -> None:
        assert Locks().take(["gpu:A"]) == []

    assert knobs.in_child(hold) == 0
    assert Locks().take(["gpu:A"]) == []


def test_what_is_let_go_is_free_also_where_it_was_inherited() -> None:
    first = Locks()
    first.take(["gpu:A"])
    inherited = [os.dup(fd) for fd in first.fds]
    first.release()
    assert Locks().take(["gpu:A"]) == []
    for fd in inherited:
        os.close(fd)


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[1]", b'{"pid": "x", "user": {}}', b"x" * 5000])
def test_whatever_a_lock_says_of_its_holder(state: Path, content: bytes) -> None:
    first = Locks()
    first.take(["gpu:A"])
    (state / "lock-gpu-A").write_bytes(content)
    busy = Locks().take(["gpu:A"])
    assert "another run holds gpu:A" in locks.busy(busy).text()


def _put_fifo(path: Path, _precious: Path) -> None:
    os.mkfifo(path)


STRANGE = [
    _put_fifo,
    lambda path, _: path.mkdir(),
    lambda path, file: path.symlink_to(file),
    lambda p, f: os.link(f, p),
]


@pytest.mark.parametrize("put", STRANGE, ids=["fifo", "folder", "link", "hard link"])
def test_something_else_in_the_place_of_a_lock(state: Path, tmp_path: Path, put: Callable[[Path, Path], None]) -> None:
    """Nothing of it is written to, only that claim is lost, and whose it is is said."""
    state.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("mine")
    put(state / "lock-gpu-A", tmp_path / "precious")
    said: list[str] = []
    held = guard.Guard(Machine(), said.append)
    held.hold(["gpu:A", "gpu:B"], None, lambda: ())
    assert (tmp_path / "precious").read_text() == "mine"
    assert f"gpu:A can't be locked: {state / 'lock-gpu-A'} (owner {getpass.getuser()}): " in said[0]
    assert [holder.claim for holder in Locks().take(["gpu:A", "gpu:B"])] == ["gpu:B"]
    (tmp_path / "report").mkdir()
    held.open("r", folder.Folder(tmp_path / "report"), tmp_path / "scratch", changes=True, public=True)
    assert held.journal and held.journal.about["claims"] == ["gpu:A", "gpu:B"], "another may mend it"
    held.close()


def test_everybody_may_lock_and_nobody_else_may_write(state: Path) -> None:
    before = os.umask(0o077)
    try:
        Locks().take(["gpu:A"])
    finally:
        os.umask(before)
    assert (state / "lock-gpu-A").stat().st_mode & 0o777 == 0o644
    (state / "lock-gpu-A").chmod(0o666)
    Locks().take(["gpu:A"])
    assert (state / "lock-gpu-A").stat().st_mode & 0o777 == 0o644


@needs_root
def test_the_lock_of_another_user_is_not_written_to(state: Path) -> None:
    state.mkdir(mode=0o700)
    (state / "lock-gpu-A").write_text("theirs")
    os.chown(state / "lock-gpu-A", 65534, 65534)
    own = Locks()
    assert own.take(["gpu:A"]) == []
    own.sign({"pid": 1, "user": "us"})
    assert (state / "lock-gpu-A").read_text() == "theirs"
    [holder] = Locks().take(["gpu:A"])
    assert (holder.pid, holder.user) == (os.getpid(), "root"), "the kernel knows"
    own.release()
    assert (state / "lock-gpu-A").read_text() == "theirs"


def test_who_holds_it_is_known_from_the_start() -> None:
    """Not only once there is a report."""
    held = guard.Guard(Machine(), lambda text: None)
    held.hold(["gpu:A"], None, lambda: ())
    [holder] = Locks().take(["gpu:A"])
    assert holder.pid == os.getpid() and holder.since


def test_a_lock_that_is_removed_before_it_is_ours_locks_nothing(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, seen = locks._locked, list[int]()

    def late(fd: int) -> bool:
        if not seen:
            (state / "lock-gpu-A").unlink()
        seen.append(fd)
        return real(fd)

    monkeypatch.setattr(locks, "_locked", late)
    first = Locks()
    assert first.take(["gpu:A"]) == [] and len(seen) == 2
    assert [holder.claim for holder in Locks().take(["gpu:A"])] == ["gpu:A"]


def test_waiting_ends_with_the_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    first, said = Locks(), list[str]()
    first.take(["gpu:A"])
    first.sign({"pid": os.getpid()})

    def nap(_: float) -> None:
        first.release()

    monkeypatch.setattr(guard.time, "sleep", nap)
    guard.Guard(Machine(), said.append).hold(["gpu:A"], 60.0, lambda: ())
    assert len(said) == 1
    assert "waiting, 60 s at most: another run holds gpu:A" in said[0]


def test_waiting_has_its_limit_and_hears_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    first, clock = Locks(), iter(range(0, 10_000, 7))
    first.take(["gpu:A"])
    first.sign({"pid": os.getpid()})
    monkeypatch.setattr(guard.time, "sleep", lambda _: None)
    monkeypatch.setattr(guard.time, "monotonic", lambda: next(clock))
    with pytest.raises(BusyError):
        guard.Guard(Machine(), lambda text: None).hold(["gpu:A"], 20.0, lambda: ())
    with pytest.raises(KeyboardInterrupt):
        guard.Guard(Machine(), lambda text: None).hold(["gpu:A"], 60.0, lambda: (15,))
    with pytest.raises(BusyError):
        guard.Guard(Machine(), lambda text: None).hold(["gpu:A"], None, lambda: ())


def test_a_keeper_at_work_is_waited_for_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock is held, but its holder is dead: its keeper is just putting the machine back."""
    first = Locks()
    first.take(["gpu:A"])
    first.sign({"pid": 2**22 + 1})
    monkeypatch.setattr(locks, "_holders", lambda _about: [2**22 + 1])
    monkeypatch.setattr(guard.time, "sleep", lambda _: first.release())
    said: list[str] = []
    second = guard.Guard(Machine(), said.append)
    second.hold(["gpu:A"], None, lambda: ())
    assert said and Locks().take(["gpu:A"]), "it was waited for, and is then held"


# ---------------------------------------------------------------- where they lie


def test_a_folder_of_somebody_else_is_not_used(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(mode=0o777)
    (tmp_path / "theirs").chmod(0o777)
    state.symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="no folder of ours"):
        folder.state_folder()
    with pytest.raises(OSError, match="no folder of ours"):
        folder.trusted_state(state)
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "theirs"))
    with pytest.raises(OSError, match="no folder of ours"):
        folder.state_folder()


@needs_root
def test_a_folder_below_one_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root's own folder in the home that sudo has kept: its owner may have put any other in its place."""
    (tmp_path / "home" / "state").mkdir(parents=True, mode=0o700)
    os.chown(tmp_path / "home", 65534, 65534)
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "home" / "state"))
    with pytest.raises(OSError, match="belongs to another user"):
        folder.state_folder()
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "home" / "new"))
    with pytest.raises(OSError, match="belongs to another user"):
        folder.state_folder()
    assert not (tmp_path / "home" / "new").exists()


def test_without_root_the_users_own_state_folder_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROFRUN_STATE")
    monkeypatch.setattr(folder, "FOR_ALL", tmp_path / "nobody" / "made" / "this")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    places = [str(place) for place in folder.state_places()]
    assert places[1].startswith(str(tmp_path / "home" / "profrun"))
    assert places[2] == f"/tmp/profrun-{os.getuid() + 1}"


def test_root_opens_a_place_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    monkeypatch.delenv("PROFRUN_STATE")
    monkeypatch.setattr(folder, "FOR_ALL", tmp_path / "run")
    assert folder.state_folder() == tmp_path / "run"
    assert (tmp_path / "run").stat().st_mode & 0o7777 == 0o1777
