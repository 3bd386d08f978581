"""What a run has changed is put back from its journal, wherever the run has died, and as often as that takes."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import knobs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import until

from orchestrator import changes, journal, machine, privileged, restoring
from orchestrator.journal import Journal
from orchestrator.locks import Locks
from orchestrator.model import Hold, Reply, Run, Write

Begin = dict[str, Any]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def knob(tmp_path: Path) -> Path:
    path = tmp_path / "knob"
    path.write_text("old\n")
    return path


def begun(tmp_path: Path, **changed: Any) -> Journal:
    return journal.create({**journal.about("r1", str(tmp_path / "report"), ()), **changed})


def wrote(book: Journal, n: int, change: Write, old: str, value: str | None = None) -> None:
    """As if a run had written this; without `value` it died before it could read it back."""
    book.write("step", index=0, use="x", first=n, before={}, changes=[changes.as_data(change)], undos=[None])
    book.write("intent", n=n, old=old)
    if value is not None:
        book.write("done", n=n, status="applied", value=value)


# ---------------------------------------------------------------- the file


def test_nobody_sees_a_journal_that_is_not_locked(state: Path, tmp_path: Path) -> None:
    book = begun(tmp_path)
    assert [(left.state, left.run) for left in journal.left()] == [("alive", "r1")]
    book.close()
    assert [left.state for left in journal.left()] == ["dead"]


def test_a_journal_with_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    about = journal.about("r1", "report", ())
    assert journal.create(about).path.stat().st_mode & 0o777 == 0o644
    assert journal.create({**about, "run": "r2"}, public=False).path.stat().st_mode & 0o777 == 0o600


def test_a_line_that_is_cut_never_happened() -> None:
    whole = b'{"event": "begin"}\n{"event": "intent", "n": 0}\n'
    assert len(journal.parsed(whole)[0]) == 2
    for cut in range(1, len(whole)):
        entries, damaged = journal.parsed(whole[:-cut])
        assert len(entries) == whole[:-cut].count(b"\n")
        assert damaged == 0


def test_what_can_be_read_is_used_and_the_rest_is_counted(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    book.close()
    knob.write_text("new\n")
    lines = book.path.read_bytes().splitlines(keepends=True)
    book.path.write_bytes(b"".join([lines[0], b"\0\0\0\n", b"[1]\n", *lines[1:], b'{"event": "inte']))
    told = list(restoring.at_start(Locks()))
    assert knob.read_text() == "old"
    assert "2 lines can't be read" in told[0]
    assert "had left 1 setting: restored" in told[1]
    assert not book.path.exists()


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=300) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(repr).map(str.encode)
)
def test_no_content_of_a_journal_is_too_much(data: bytes) -> None:
    entries, _ = journal.parsed(data)
    journal.settings(entries)


@pytest.mark.parametrize("name", ["n", "first", "changes", "undos", "index", "old", "values", "status", "event"])
@pytest.mark.parametrize("value", [None, [], {}, "x", -1, [{"kind": "run", "argv": 1}], [{"kind": "write"}]])
def test_no_field_of_an_entry_is_relied_upon(name: str, value: Any) -> None:
    change = changes.as_data(Write("/nowhere/x", "1"))
    entries: list[Any] = [
        {"event": "step", "index": 0, "use": "x", "first": 0, "changes": [change], "undos": [None]},
        {"event": "intent", "n": 0, "old": "0"},
        {"event": "done", "n": 0, "status": "applied", "value": "1"},
        {"event": "seen", "values": {"/nowhere/x": "2"}},
        {"event": "settled", "values": {"/nowhere/x": "2"}},
    ]
    for entry in entries:
        if name in entry:
            journal.settings([*(other for other in entries if other is not entry), {**entry, name: value}])


def test_a_full_disk_leaves_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = begun(tmp_path)
    before, real = book.path.read_bytes(), os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:10]) if fd == book.fd else real(fd, data))
    with pytest.raises(OSError, match="No space left"):
        book.write("intent", n=0, old="x")
    assert book.path.read_bytes() == before


def test_changes_come_back_from_a_journal_as_they_were() -> None:
    replies = (Reply("not supp", "not_available", "no"),)
    for change in (Write("/a", "1", "x", reads="2"), Run(("a", "b"), 3.0, "p", replies), Hold("/dev/x", "0")):
        assert changes.from_data(json.loads(json.dumps(changes.as_data(change)))) == change


# ---------------------------------------------------------------- whose value it is


@pytest.mark.parametrize(
    ("old", "wanted", "done", "now", "how", "left"),
    [
        ("old", "new", "new", "new", "restored", "old"),
        ("old", "new", "new", "old", "already", "old"),
        ("old", "new", "new", "theirs", "drifted", "theirs"),
        ("0", "3", "1", "1", "restored", "0"),  # what it reads when it is in force
        ("old", "new", None, "new", "restored", "old"),  # died after the write
        ("old", "new", None, "old", "already", "old"),  # died before it
        ("old", "new", None, "theirs", "drifted", "theirs"),
        ("1000", "9000", None, "4000", "restored", "1000"),  # the kernel's limit on the way
        ("9000", "1000", None, "4000", "restored", "9000"),
        ("1000", "9000", None, "9500", "drifted", "9500"),
        ("1000", "9000", "9000", "4000", "drifted", "4000"),  # it was read back: 4000 is not ours
        ("old", "new", "new", "", "restored", "old"),
    ],
)
def test_only_what_is_ours_is_put_back(
    tmp_path: Path, knob: Path, old: str, wanted: str, done: str | None, now: str, how: str, left: str
) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), wanted), old, done)
    knob.write_text(now)
    assert [verdict.how for verdict in journal.restore(book)] == [how]
    assert knob.read_text() == left


def test_what_was_not_begun_is_not_undone(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path)
    undo = changes.as_data(Run(("touch", str(tmp_path / "undone")), 5.0))
    run = changes.as_data(Run(("true",), 5.0))
    book.write("step", index=0, use="x", first=0, before={}, changes=[run], undos=[undo])
    assert journal.restore(book) == []
    assert not (tmp_path / "undone").exists()


@pytest.mark.parametrize(("status", "undone"), [("applied", 1), ("failed", 1), ("refused", 0), ("not_available", 0)])
def test_a_command_that_did_nothing_needs_no_undo(tmp_path: Path, status: str, undone: int) -> None:
    book = begun(tmp_path)
    undo = changes.as_data(Run(("true",), 5.0))
    book.write(
        "step", index=0, use="x", first=0, before={}, changes=[changes.as_data(Run(("true",), 5.0))], undos=[undo]
    )
    book.write("intent", n=0, old=None)
    book.write("done", n=0, status=status, value=None)
    assert len(journal.restore(book)) == undone


def test_a_setting_that_was_written_twice_goes_back_to_the_first(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "one"), "old", "one")
    wrote(book, 1, Write(str(knob), "two"), "one", "two")
    knob.write_text("two")
    assert [verdict.how for verdict in journal.restore(book)] == ["restored"]
    assert knob.read_text() == "old"


def test_a_setting_that_is_gone_keeps_nobody(tmp_path: Path) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(tmp_path / "gone"), "new"), "old", "new")
    verdicts = journal.restore(book)
    assert [verdict.how for verdict in verdicts] == ["gone"]
    assert journal.settle(book, verdicts)


def test_setting_one_thing_moves_another_and_it_is_put_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with intel_pstate, where a new governor switches turbo on."""
    place, real = knobs.make(tmp_path / "cpu"), machine.hold_host

    def kernel(path: str, text: str) -> int:
        fd = real(path, text)
        if path.endswith("governor"):
            (place / "turbo").write_text("0")
        return fd

    monkeypatch.setattr(machine, "hold_host", kernel)
    book = begun(tmp_path)
    wrote(book, 0, Write(str(place / "governor"), "performance"), "powersave", "performance")
    wrote(book, 1, Write(str(place / "turbo"), "0"), "1", "0")
    (place / "governor").write_text("performance")
    (place / "turbo").write_text("0")
    assert {verdict.how for verdict in journal.restore(book)} == {"restored"}
    assert knobs.settings(place) == knobs.BEFORE


def test_what_moves_whatever_is_written_is_not_called_restored(
    tmp_path: Path, knob: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    knob.write_text("new")
    monkeypatch.setattr(machine, "hold_host", lambda path, text: os.open(os.devnull, os.O_RDONLY))
    verdicts = journal.restore(book)
    assert [verdict.how for verdict in verdicts] == ["failed"]
    assert not journal.settle(book, verdicts)
    book.close()
    assert [left.state for left in journal.left()] == ["dead"]


def test_an_undo_that_hangs_is_ended_and_the_journal_stays(tmp_path: Path) -> None:
    book = begun(tmp_path)
    undo = changes.as_data(Run(("sh", "-c", "trap '' TERM; sleep 600"), 0.2))
    book.write(
        "step", index=0, use="x", first=0, before={}, changes=[changes.as_data(Run(("true",), 5.0))], undos=[undo]
    )
    book.write("intent", n=0, old=None)
    verdicts = journal.restore(book)
    assert [(v.how, "no answer in 0.2 s" in str(v.reason)) for v in verdicts] == [("failed", True)]
    assert not journal.settle(book, verdicts)


# ---------------------------------------------------------------- what is not understood


@pytest.mark.parametrize(
    ("change", "undo"),
    [
        ({"kind": "write", "path": "{knob}", "text": "new", "since_version_2": True}, None),
        ({"kind": "press", "path": "{knob}"}, None),
        ({"kind": "run", "argv": ["true"], "timeout_s": 1.0}, {"kind": "press", "path": "{knob}"}),
        ({"kind": "write", "path": "{knob}\0", "text": "new"}, None),
        ({"kind": "run", "argv": ["true"], "timeout_s": 1.0}, {"kind": "run", "argv": ["true"], "timeout_s": "5"}),
        ({"kind": "run", "argv": ["true"], "timeout_s": 1.0}, {"kind": "run", "argv": [], "timeout_s": 5}),
        ({"kind": "run", "argv": ["true"], "timeout_s": 1.0}, {"kind": "run", "argv": "true", "timeout_s": 5}),
        (
            {
                "kind": "run",
                "argv": ["true"],
                "timeout_s": 1.0,
                "replies": [{"pattern": 5, "status": "x", "reason": ""}],
            },
            None,
        ),
    ],
)
def test_a_change_that_is_not_understood_is_told_and_its_journal_stays(
    tmp_path: Path, knob: Path, change: dict[str, Any], undo: dict[str, Any] | None
) -> None:
    for one in (change, undo or {}):
        if "path" in one:
            one["path"] = one["path"].format(knob=knob)
    book = begun(tmp_path)
    book.write("step", index=0, use="x", first=0, before={}, changes=[change], undos=[undo])
    book.write("intent", n=0, old="old")
    book.write("done", n=0, status="applied", value="new")
    book.close()
    assert "another version of profrun" in "".join(restoring.at_start(Locks()))
    done = restoring.restore(None)
    assert (done.exit_code, book.path.exists()) == (5, True)
    assert f"delete {book.path}" in done.text()


def test_a_change_whose_announcement_is_lost_is_told(tmp_path: Path) -> None:
    book = begun(tmp_path)
    book.write("intent", n=3, old="old")
    assert [(verdict.n, verdict.how) for verdict in journal.restore(book)] == [(3, "failed")]


def test_what_was_not_begun_need_not_be_understood(tmp_path: Path) -> None:
    book = begun(tmp_path)
    book.write("step", index=0, use="x", first=0, before={}, changes=[{"kind": "press"}], undos=[None])
    assert journal.restore(book) == []


def test_a_journal_of_another_format_is_left_alone(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path, format=journal.FORMAT + 1)
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    knob.write_text("new")
    assert [verdict.how for verdict in journal.restore(book)] == ["failed"]
    assert knob.read_text() == "new"


def test_whatever_goes_wrong_with_a_dead_run_s_journal_the_next_run_starts(
    tmp_path: Path, knob: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    book.close()

    def breaks(entries: Any) -> Any:
        raise ValueError("embedded null byte")

    monkeypatch.setattr(journal, "settings", breaks)
    assert "embedded null byte" in "".join(restoring.at_start(Locks()))
    assert book.path.exists()


# ---------------------------------------------------------------- the root helper


@pytest.mark.parametrize("undoing", [False, True])
def test_the_root_helper_is_waited_for(
    tmp_path: Path, knob: Path, monkeypatch: pytest.MonkeyPatch, undoing: bool
) -> None:
    """Its owner is dead; it can't be ended, and would write when all seemed to be put back."""
    late = tmp_path / "sudo"
    late.write_text(
        f'#!/bin/sh\ntouch {tmp_path}/up\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.01; done\necho "$5" > "$4"\n'
    )
    late.chmod(0o755)

    def instead(change: Any) -> Run | None:
        words = ("sudo", "-n", "helper", change.path, change.text) if isinstance(change, Write) else None
        return Run(words, 60.0) if words else None

    monkeypatch.setattr(privileged, "instead", instead)
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "new"), "old", "new" if undoing else None)
    words = ("-n", "helper", str(knob), "old" if undoing else "new")
    helper = subprocess.Popen((str(late), *words), start_new_session=True)
    until((tmp_path / "up").exists)
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    journal.restore(book)
    assert helper.poll() is not None or helper.wait(60) == 0
    assert knob.read_text().strip() == "old"


# ---------------------------------------------------------------- dead runs


def two_dead_runs(tmp_path: Path, knob: Path, **claims: Any) -> None:
    """Both have written the same setting, and the first could not be mended when the second began."""
    for run, old, new in (("a", "1", "2"), ("b", "2", "3")):
        book = begun(tmp_path, run=run, claims=claims[run])
        wrote(book, 0, Write(str(knob), new), old, new)
        book.close()
    os.utime(book.path, (1, 1))
    knob.write_text("3")


def test_two_dead_runs_are_undone_in_reverse(tmp_path: Path, knob: Path) -> None:
    two_dead_runs(tmp_path, knob, a=["cpu:x"], b=["cpu:x"])
    done = restoring.restore(None)
    assert (done.exit_code, knob.read_text(), journal.left()) == (0, "1", [])


def test_what_a_later_dead_run_has_set_is_not_somebody_elses_wish(tmp_path: Path, knob: Path, state: Path) -> None:
    """As long as that one can't be mended, the journal of the first stays."""
    two_dead_runs(tmp_path, knob, a=["cpu:x"], b=["cpu:x", "gpu:y"])
    busy = Locks()
    busy.take(["gpu:y"])
    list(restoring.at_start(Locks()))
    assert (knob.read_text(), len(list(state.glob("journal-*")))) == ("3", 2)
    busy.release()
    list(restoring.at_start(Locks()))
    assert (knob.read_text(), journal.left()) == ("1", [])


def test_a_living_journal_of_another_machine_of_this_name_is_alive(tmp_path: Path) -> None:
    """Two machines may share the folder where journals are."""
    book = begun(tmp_path, boot_id="another")
    assert [left.state for left in journal.left()] == ["alive"]
    assert restoring.restore(None).exit_code == 0 and book.path.exists()


def test_a_journal_of_before_the_last_boot_is_dropped(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path, boot_id="another")
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    knob.write_text("new")
    book.close()
    assert "started anew" in "".join(restoring.at_start(Locks()))
    assert knob.read_text() == "new"
    assert list(journal.left()) == []


def test_a_journal_of_another_machine_stays(tmp_path: Path) -> None:
    begun(tmp_path, boot_id="another", host="elsewhere").close()
    done = restoring.restore(None)
    assert "of the machine elsewhere" in done.text()
    assert len(list(journal.left())) == 1


def test_a_journal_with_a_second_name_is_not_believed(tmp_path: Path, state: Path) -> None:
    """Somebody may have given a file of ours a name in a folder that all may write to."""
    book = begun(tmp_path)
    book.close()
    os.link(book.path, state / "journal-r2.jsonl")
    assert list(journal.left()) == []


def test_what_a_living_run_uses_is_left_alone(tmp_path: Path, knob: Path) -> None:
    book = begun(tmp_path, claims=["cpu:policy0"])
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    knob.write_text("new")
    book.close()
    living = Locks()
    assert living.take(["cpu:policy0"]) == []
    done = restoring.restore(None)
    assert (done.exit_code, knob.read_text()) == (75, "new")
    assert "cpu:policy0 is in use" in done.text()
    assert list(restoring.at_start(living)) != []  # the locks are its own
    assert knob.read_text() == "old"


def test_a_second_try_mends_what_the_first_could_not(
    tmp_path: Path, knob: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = begun(tmp_path)
    wrote(book, 0, Write(str(knob), "new"), "old", "new")
    knob.write_text("new")
    book.close()

    def refused(path: str, text: str) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(machine, "hold_host", refused)
        done = restoring.restore(None)
    assert done.exit_code == 5
    assert "Input/output error" in done.text()
    assert done.data()["runs"][0]["state"] == "failed"
    done = restoring.restore("r1")
    assert (done.exit_code, knob.read_text()) == (0, "old")
    assert restoring.restore(None).text() == "nothing to put back: no dead run has left any"


def test_a_run_is_found_by_its_report(tmp_path: Path) -> None:
    begun(tmp_path).close()
    assert not restoring.restore("r2")
    assert restoring.restore(str(tmp_path / "report"))


# ---------------------------------------------------------------- wherever it dies


def test_a_run_that_dies_anywhere_is_put_back_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before and after lines of the journal, writes to the machine and commands: every third of these moments, now
    one before and now one after (`scripts/bench restore` takes all of them)."""
    died = 0
    for point in range(0, 200, 3):
        place = knobs.make(tmp_path / str(point))
        monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / f"state{point}"))
        if knobs.in_child(_dying(point, place, tmp_path / "report")) == 0:
            break
        died += 1
        restoring.restore(None)
        assert knobs.settings(place) == knobs.BEFORE, point
        rings = knobs.bell(place)
        assert rings in ([], ["on", "off"], ["on", "off", "off"], ["off"]), (point, rings)
        assert list(journal.left()) == [], point
    assert died > 12


def _dying(point: int, place: Path, report: Path) -> Callable[[], None]:
    def work() -> None:
        knobs.mortal(point)
        knobs.run(place, report, keeper=False)

    report.mkdir(exist_ok=True)
    return work


def test_whoever_puts_back_may_die_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for point in range(1, 60, 2):
        place = knobs.make(tmp_path / str(point))
        monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / f"state{point}"))
        knobs.in_child(_dying(22, place, tmp_path / "report"))

        def half(point: int = point) -> None:
            knobs.mortal(point)
            restoring.restore(None)

        if knobs.in_child(half) == 0:
            assert point > 8
            break
        restoring.restore(None)
        assert knobs.settings(place) == knobs.BEFORE, point
        assert list(journal.left()) == [], point
