"""One run at a time for each thing that it changes."""

from __future__ import annotations

import os
from pathlib import Path

import knobs
import pytest

from orchestrator import folder, guard, locks
from orchestrator.errors import BusyError
from orchestrator.locks import Locks
from orchestrator.machine import Machine


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


def test_a_lock_that_is_a_link_is_not_followed(state: Path, tmp_path: Path) -> None:
    state.mkdir(mode=0o700)
    (tmp_path / "precious").write_text("mine")
    (state / "lock-gpu-A").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic links"):
        Locks().take(["gpu:A"])
    assert (tmp_path / "precious").read_text() == "mine"


def test_everybody_may_lock_whatever_the_umask(state: Path) -> None:
    before = os.umask(0o077)
    try:
        Locks().take(["gpu:A"])
    finally:
        os.umask(before)
    assert (state / "lock-gpu-A").stat().st_mode & 0o777 == 0o666


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
    monkeypatch.setattr(guard.time, "sleep", lambda _: first.release())
    guard.Guard(Machine(), lambda text: None).hold(["gpu:A"], None, lambda: ())


# ---------------------------------------------------------------- where they lie


def test_a_folder_of_somebody_else_is_not_used(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "theirs").mkdir(mode=0o777)
    (tmp_path / "theirs").chmod(0o777)
    state.symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match="no folder of ours"):
        folder.state_folder()
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "theirs"))
    with pytest.raises(OSError, match="no folder of ours"):
        folder.state_folder()


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
