"""Which journals of dead runs are believed, what is told of them, and how patient that is."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import knobs
import pytest
from cli import command, environment
from waiting import LIMIT_S, until

from orchestrator import changes, folder, guard, journal, locks, restoring
from orchestrator.journal import Journal, Left
from orchestrator.locks import Locks
from orchestrator.model import Run, Write
from orchestrator.signals import TWINS_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to be two users")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def begun(tmp_path: Path, name: str = "r1", **options: Any) -> Journal:
    return journal.create(journal.about(name, str(tmp_path / "report"), ()), **options)


def ran(book: Journal, *undo: str, timeout_s: float = LIMIT_S) -> None:
    """As if a run had started `true`, which this undoes."""
    change, back = changes.as_data(Run(("true",), 5.0)), changes.as_data(Run(undo, timeout_s))
    book.write("step", index=0, use="shell", first=0, before={}, changes=[change], undos=[back])
    book.write("intent", n=0, old=None)
    book.write("done", n=0, status="applied", value=None, ran=True)


def wrote(book: Journal, path: Path) -> None:
    """As if a run had set this, which said `old`, to `new`."""
    path.write_text("new\n")
    change = changes.as_data(Write(str(path), "new"))
    book.write("step", index=0, use="x", first=0, before={}, changes=[change], undos=[None])
    book.write("intent", n=0, old="old")
    book.write("done", n=0, status="applied", value="new")


# ---------------------------------------------------------------- which are believed


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o602])
def test_a_journal_that_others_may_write_to_is_not_acted_upon(tmp_path: Path, mode: int) -> None:
    book = begun(tmp_path)
    ran(book, "touch", str(tmp_path / "undone"))
    book.close()
    book.path.chmod(mode)
    assert list(restoring.at_start(Locks())) == []
    done = restoring.restore(None)
    assert done.exit_code == 5
    assert f"others may write to it); next: look into it, then remove it: {book.path}" in done.text()
    assert not (tmp_path / "undone").exists()


def test_journals_behind_a_link_are_not_seen(tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may have laid it to a copy of old ones."""
    book = begun(tmp_path)
    ran(book, "touch", str(tmp_path / "undone"))
    book.close()
    (tmp_path / "link").symlink_to(state)
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "link"))
    assert not restoring.restore(None)
    assert not (tmp_path / "undone").exists()


@needs_root
def test_of_a_journal_of_another_user_only_the_first_line_is_read(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.mkdir(mode=0o700)
    begin = {"event": "begin", **journal.about("theirs", "report", ())}
    (state / "journal-theirs.jsonl").write_text(json.dumps(begin) + "\n" * (1 << 20))
    os.chown(state / "journal-theirs.jsonl", 65534, 65534)
    real, sizes = journal.parsed, list[int]()
    monkeypatch.setattr(journal, "parsed", lambda data: (sizes.append(len(data)), real(data))[1])
    (state / "journal-none.jsonl").touch()
    os.chown(state / "journal-none.jsonl", 65534, 65534)
    assert [(left.state, left.run) for left in journal.left()] == [("foreign", "theirs")]
    assert max(sizes) <= 64 << 10


def test_no_journal_has_endless_lines() -> None:
    entries, damaged = journal.parsed(b'{"event": "idle"}\n' * 100_007)
    assert (len(entries), damaged) == (100_000, 7)


def test_one_that_vanishes_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book, real = begun(tmp_path), Path.glob
    wrote(book, tmp_path / "knob")
    book.close()

    def glob(self: Path, pattern: str) -> Iterator[Path]:
        yield self / "journal-aaa.jsonl"
        yield from real(self, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    restoring.restore(None)
    assert (tmp_path / "knob").read_text() == "old"


@needs_root
def test_whether_a_private_journal_of_another_user_is_alive_the_kernel_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Path(tempfile.mkdtemp(prefix="profrun-test-", dir="/tmp"))
    place.chmod(0o1777)
    monkeypatch.setenv("PROFRUN_STATE", str(place))

    def as_nobody(wanted: list[str]) -> int:
        def look() -> None:
            os.setgid(65534)
            os.setuid(65534)
            # in a PID namespace of its own the kernel hides the locks of others: then it may be alive
            told = wanted if locks._sees_all() else ["alive"]
            assert [left.state for left in journal.left()] == told
            assert bool(list(restoring.at_start(Locks()))) is (told == ["foreign"])

        return knobs.in_child(look)

    try:
        book = begun(place, public=False)
        assert as_nobody(["alive"]) == 0
        book.close()
        assert as_nobody(["foreign"]) == 0
    finally:
        shutil.rmtree(place)


def test_a_full_folder_is_no_reason_to_change_nothing(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = journal.append, tmp_path / "full"
    monkeypatch.setattr(folder, "state_places", lambda: iter((full, state)))

    def append(fd: int, line: bytes) -> None:
        if str(full) in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(28, "No space left on device")
        real(fd, line)

    monkeypatch.setattr(journal, "append", append)
    assert begun(tmp_path).path.parent == state
    assert list(full.iterdir()) == []


# ---------------------------------------------------------------- what is told


def test_the_way_to_a_user_without_a_name() -> None:
    assert restoring._by_owner(Left(Path("j"), "foreign", {}, 4_242_424)).endswith(
        "sudo -u '#4242424' profrun env restore"
    )


def test_a_start_says_first_what_takes_time_and_does_not_try_in_vain_again(tmp_path: Path) -> None:
    book, tries = begun(tmp_path), tmp_path / "tries"
    ran(book, "sh", "-c", f"echo x >> {tries}; exit 9")
    book.close()
    telling = restoring.at_start(Locks())
    assert next(telling).startswith("putting back what ") and not tries.exists()
    said = list(telling)
    assert "1 could not be put back; next: profrun env restore r1: " in said[0]
    assert said[1] == f"shell: true: not put back: sh -c 'echo x >> {tries}; exit 9': exit 9"
    again = list(restoring.at_start(Locks()))
    assert tries.read_text() == "x\n" and "next: profrun env restore r1" in again[0]
    done = restoring.restore(None)
    assert tries.read_text() == "x\nx\n", "there it is tried"
    assert done.exit_code == 5 and book.path.exists()
    assert f"next: mend that, then again: profrun env restore r1; or put it back by hand, and remove {book.path}" in (
        done.text()
    )
    assert "1 could not be put back: " in done.text()


def test_a_run_that_ended_by_itself_was_not_killed(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    held = guard.Guard(knobs.Machine(), lambda text: None)
    held.open("r", folder.Folder(tmp_path / "r"), tmp_path, changes=True, public=True)
    assert held.journal
    ran(held.journal, "false")
    assert not journal.settle(held.journal, journal.restore(held.journal))
    held.close()
    assert restoring.restore(None).text().startswith("a run that could not put back all had left 1 setting")


# ---------------------------------------------------------------- whoever is impatient


def test_env_restore_says_what_it_waits_for_and_can_be_stopped(tmp_path: Path, state: Path) -> None:
    book = begun(tmp_path)
    ran(book, "sh", "-c", f"touch {tmp_path}/began; sleep 600")
    book.close()
    options: dict[str, Any] = {"env": environment(PROFRUN_STATE=str(state)), "text": True}
    one = subprocess.Popen(command("env", "restore"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    assert one.stderr
    until(lambda: (tmp_path / "began").exists())
    one.send_signal(signal.SIGTERM)
    assert "again to stop" in one.stderr.readline()
    time.sleep(2 * TWINS_S)  # two at once would be one wish
    one.send_signal(signal.SIGINT)
    out, _ = one.communicate(timeout=LIMIT_S)
    assert one.returncode == 128 + signal.SIGTERM
    assert "could not be put back" in out and book.path.exists()
