"""The machine is brought into the plan's state and back, whatever happens in between."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import knobs
import pytest
from pydantic import Field
from waiting import until

from orchestrator import changes, environment, folder, guard, journal, machine, privileged
from orchestrator.env_steps.base import Step
from orchestrator.env_steps.cpu_idle import CpuIdle
from orchestrator.env_steps.env import Env
from orchestrator.env_steps.shell import Shell
from orchestrator.env_steps.wait_cool import WaitCool
from orchestrator.environment import Environment
from orchestrator.machine import Machine, Permission
from orchestrator.model import Cannot, Change, Hold, Judged, Part, Reply, Run, StepStatus, Wait, Write

Start = Callable[..., Environment]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Begins a run's part that changes the machine; its report is tmp_path/report."""
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(guard, "Keeper", knobs._none)
    (tmp_path / "report").mkdir()
    held = guard.Guard(Machine(), lambda text: None)
    held.open("r1", folder.Folder(tmp_path / "report"), tmp_path, changes=True, public=True)
    yield lambda **options: Environment(Machine(), held.journal, **options)
    held.close()


def note(log: Path, run: str, undo: str | None = None) -> Shell:
    """A step that notes in a file when it is applied and undone."""
    words = {"run": ("sh", "-c", f"echo {run} >> {log}"), "undo": undo and ("sh", "-c", f"echo {undo} >> {log}")}
    return Shell.model_validate(words)


class Does(Step):
    """A step of these changes."""

    use: str = "does"
    what: tuple[Any, ...] = ()
    verdict: Judged | None = None

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        return self.what

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        return self.verdict


def knob(tmp_path: Path, name: str = "knob", text: str = "old") -> str:
    path = tmp_path / name
    path.write_text(text + "\n")
    return str(path)


def kernel(monkeypatch: pytest.MonkeyPatch, takes: Callable[[str], str]) -> None:
    """A kernel that makes of what is written what it likes; it may raise."""
    real = machine.hold_host
    monkeypatch.setattr(machine, "hold_host", lambda path, text: real(path, takes(text)))


def entries(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "report/journal.jsonl").read_text().splitlines()]


# ---------------------------------------------------------------- there and back


def test_steps_are_undone_in_reverse(start: Start, tmp_path: Path) -> None:
    here, log = start(), tmp_path / "log"
    assert here.apply((note(log, "on1", "off1"), note(log, "on2", "off2")))
    here.restore()
    here.restore()
    assert log.read_text().split() == ["on1", "on2", "off2", "off1"]
    assert [record.restored for record in here.records] == [True, True]


def test_a_step_without_undo_is_not_called_restored(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((note(tmp_path / "log", "on"), Env.model_validate({"set": {"A": "1"}})))
    here.restore()
    assert [record.restored for record in here.records] == [None, None]
    assert not here.failed


def test_the_report_tells_every_change_before_it_is_made(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((Does(what=(Write(knob(tmp_path), "new", "the knob"),)),))
    here.restore()
    told = entries(tmp_path)
    assert [entry["event"] for entry in told] == ["step", "seen", "intent", "done", "undone", "end"]
    assert (told[1]["values"], told[2]["old"]) == ({str(tmp_path / "knob"): "old"}, "old")
    assert (told[3]["value"], told[3]["status"]) == ("new", "applied")
    assert not list(journal.left())


def test_a_full_disk_does_not_keep_the_machine_as_it_is(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, log = start(), tmp_path / "log"
    here.apply((note(log, "on", "off"),))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.Folder, "append", full)
    monkeypatch.setattr(journal, "append", full)
    here.restore()
    assert log.read_text().split() == ["on", "off"]
    assert here.records[0].restored is True


@pytest.mark.parametrize("where", ["report", "state"])
def test_nothing_is_changed_that_the_journal_does_not_hold(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    if where == "report":
        monkeypatch.setattr(folder.Folder, "append", full)
    else:
        monkeypatch.setattr(journal, "append", full)
    here = start()
    here.apply((note(tmp_path / "log", "on", "off"),))
    assert here.records[0].status == "failed"
    here.restore()
    assert not (tmp_path / "log").exists()


def test_without_a_journal_nothing_is_changed(tmp_path: Path) -> None:
    here = Environment(Machine(), None, "the disk is full")
    here.apply((note(tmp_path / "log", "on"), Env.model_validate({"set": {"A": "1"}})))
    assert [record.status for record in here.records] == ["failed", "applied"]
    assert "the disk is full" in str(here.records[0].reason)
    assert not (tmp_path / "log").exists()


class Quits(Step):
    """A step of another package at its worst."""

    def verify(self, machine: Machine) -> dict[str, Any]:
        raise SystemExit(1)


def test_a_step_that_ends_profrun_is_undone_with_those_before_it(start: Start, tmp_path: Path) -> None:
    here, log = start(), tmp_path / "log"
    with pytest.raises(SystemExit):
        here.apply((note(log, "on", "off"), Quits(use="quits")))
    here.restore()
    assert log.read_text().split() == ["on", "off"]


class Breaks(Does):
    def verify(self, machine: Machine) -> dict[str, Any]:
        raise RuntimeError("sorry")


def test_a_step_that_breaks_amid_its_work_is_undone(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path)
    here.apply((Breaks(what=(Write(path, "new"),)),))
    assert (here.records[0].status, here.records[0].reason) == ("failed", "RuntimeError: sorry")
    here.restore()
    assert Path(path).read_text() == "old"
    assert here.records[0].restored is True


def test_after_a_signal_no_step_is_begun_and_with_the_second_the_running_one_ends(start: Start, tmp_path: Path) -> None:
    log, got = tmp_path / "log", iter([0, 1])
    here = start(interrupts=lambda: next(got, 2))
    sleeps = Shell.model_validate({"run": ("sleep", "97.3"), "undo": ("sh", "-c", f"echo off >> {log}")})
    here.apply((sleeps, note(log, "on")))
    here.restore()
    assert log.read_text().split() == ["off"]
    assert [(r.status, r.reason) for r in here.records] == [("failed", "sleep 97.3: it was interrupted")]


def test_the_keeper_is_waited_for_before_the_first_change_only(start: Start, tmp_path: Path) -> None:
    asked: list[str] = []
    path = knob(tmp_path)
    here = start(before_first=lambda: asked.append(Path(path).read_text()))
    here.apply(
        (Env.model_validate({"set": {"A": "1"}}), Does(what=(Write(path, "new"),)), note(tmp_path / "log", "on"))
    )
    assert asked == ["old\n"]


# ---------------------------------------------------------------- what came of a change


def test_a_setting_as_it_is_wanted_is_left_alone(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((Does(what=(Write(knob(tmp_path), "old\n"), Write(knob(tmp_path, "b", "1"), "3", reads="1"))),))
    assert [part.status for part in here.records[0].parts] == ["already", "already"]
    assert [entry["event"] for entry in entries(tmp_path)] == ["step", "seen"]
    assert here.restore() == []


@pytest.mark.parametrize(
    ("takes", "status", "said"),
    [
        (lambda text: text, "applied", None),
        (lambda text: "limit", "clamped", "new was written, and .* says limit"),
        (lambda text: "old", "failed", "the kernel took new and ignored it"),
    ],
)
def test_every_write_is_read_back(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: Any, status: str, said: str | None
) -> None:
    kernel(monkeypatch, lambda text: takes(text) if text == "new" else text)
    here, path = start(), knob(tmp_path)
    here.apply((Does(what=(Write(path, "new", "knob"),)),))
    record = here.records[0]
    assert record.status == status
    assert record.reason is None if said is None else re.search(said, record.reason or "")
    here.restore()
    assert Path(path).read_text().strip() == "old"
    assert here.records[0].parts[0].after == "old"


@pytest.mark.parametrize(
    ("number", "status", "detail"),
    [(13, "refused", "EACCES"), (16, "refused", "EBUSY"), (22, "refused", "EINVAL"), (30, "refused", "EROFS"),
     (2, "not_available", "ENOENT"), (19, "not_available", "ENODEV")],
)  # fmt: skip
def test_a_refusal_bears_the_name_of_its_error(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, status: str, detail: str
) -> None:
    def refuses(text: str) -> str:
        raise OSError(number, os.strerror(number))

    kernel(monkeypatch, refuses)
    here = start()
    assert not here.apply((Does(what=(Write(knob(tmp_path), "new"),), on_fail="fail"),))
    assert (here.records[0].status, here.records[0].detail) == (status, detail)
    assert os.strerror(number) in str(here.records[0].reason)
    assert here.failed
    here.restore()
    assert here.records[0].restored is True  # it says what it said before


def test_a_setting_that_is_not_there(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((Does(what=(Write(str(tmp_path / "none"), "1"),)),))
    assert (here.records[0].status, here.records[0].detail) == ("not_available", "ENOENT")
    assert not (tmp_path / "none").exists()


def test_an_order_is_neither_read_back_nor_undone(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path, text="0")
    here.apply((Does(what=(Write(path, "3", once=True),)),))
    here.restore()
    assert (here.records[0].status, here.records[0].restored, Path(path).read_text()) == ("applied", None, "3")


def test_a_choice_says_what_is_chosen(tmp_path: Path) -> None:
    assert changes.read(knob(tmp_path, text="always [madvise] never")) == "madvise"
    assert changes.read(knob(tmp_path, text="[7]")) == "[7]"


def test_what_is_held_lasts_until_the_end(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path)
    here.apply((Does(what=(Hold(path, "0", "latency"),)),))
    assert path in _open_files()
    here.restore()
    assert here.records[0].restored is True
    assert path not in _open_files()


def _open_files() -> set[str]:
    """What this process holds open."""
    return {os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()}


def test_a_command_s_own_words_count_more_than_its_exit_status(start: Start) -> None:
    replies = (Reply(r"(\w+) is not supported", "not_available", "{0} can't do that", "{0}"),)
    here = start()
    here.apply((Does(what=(Run(("echo", "K80 is not supported"), 5.0, "clocks", replies),)),))
    record = here.records[0]
    assert (record.status, record.detail, record.reason) == ("not_available", "K80", "clocks: K80 can't do that")


def test_a_user_is_refused_with_the_line_for_sudoers(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(text: str) -> str:
        raise OSError(13, "Permission denied")

    kernel(monkeypatch, refuses)
    monkeypatch.setattr(changes.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileged, "instead", lambda change: Run(("sudo", "-n", "x"), 5.0))
    monkeypatch.setattr(privileged, "available", lambda: Permission(False, "the root helper is missing", "visudo"))
    here = start()
    here.apply((Does(what=(Write(knob(tmp_path), "new"),)),))
    record = here.records[0]
    assert (record.status, record.detail, record.fix) == ("refused", "EACCES", "visudo")
    assert "the root helper is missing" in str(record.reason)


def test_a_user_asks_the_root_helper_on_the_way_there_and_back(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(text: str) -> str:
        raise OSError(13, "Permission denied")

    def helper(change: Change) -> Run | None:
        return Run(("sh", "-c", f"echo {change.text} > {change.path}"), 5.0) if isinstance(change, Write) else None

    here, path = start(), knob(tmp_path)
    kernel(monkeypatch, refuses)
    monkeypatch.setattr(changes.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileged, "instead", helper)
    monkeypatch.setattr(privileged, "available", lambda: Permission(True, "it answers"))
    here.apply((Does(what=(Write(path, "new"),)),))
    assert (here.records[0].status, Path(path).read_text()) == ("applied", "new\n")
    here.restore()
    assert (here.records[0].restored, Path(path).read_text()) == (True, "old\n")


def test_a_setting_that_another_one_moves_is_said_to_have_drifted(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = knob(tmp_path, "first", "a"), knob(tmp_path, "second", "x")
    real = machine.hold_host

    def moves(path: str, text: str) -> int:
        fd = real(path, text)
        if path == second:
            Path(first).write_text("moved")
        return fd

    monkeypatch.setattr(machine, "hold_host", moves)
    here = start()
    here.apply((Does(what=(Write(first, "b", "first"), Write(second, "y", "second"))),))
    assert [part.status for part in here.records[0].parts] == ["drifted", "applied"]
    here.restore()
    assert (Path(first).read_text(), Path(second).read_text()) == ("a", "x")
    assert not here.failed


def test_what_somebody_else_sets_meanwhile_is_left_alone_and_said(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path)
    here.apply((Does(what=(Write(path, "new", "knob"),)),))
    Path(path).write_text("theirs")
    here.restore()
    assert Path(path).read_text() == "theirs"
    assert "somebody else has set it to theirs" in str(here.records[0].reason)
    assert (here.records[0].restored, here.failed) == (None, False)


def test_what_can_not_be_put_back_fails_the_run_and_stays_in_the_journal(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, path = start(), knob(tmp_path)
    here.apply((Does(what=(Write(path, "new", "knob"),)),))

    def refuses(text: str) -> str:
        raise OSError(5, "Input/output error")

    kernel(monkeypatch, refuses)
    here.restore()
    assert (here.records[0].restored, here.failed) == (False, True)
    assert [left.state for left in journal.left()] == ["alive"]


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        (CpuIdle(max_busy="60%", wait="300"), {"wait": "5m", "max_busy": "60%", "of_cores": "25%", "over": "2s"}),  # type: ignore[arg-type]
        (WaitCool(gpu=50, wait=90), {"wait": "90s", "gpu": "50C", "cpu": None}),
    ],
)
def test_wishes_are_kept_with_their_units(
    start: Start, monkeypatch: pytest.MonkeyPatch, step: Step, wanted: Any
) -> None:
    monkeypatch.setattr(type(step), "look", lambda self, machine: {"gpu": {}, "cpu": {}, "why_not": {}, "cores": 0})
    here = start()
    here.apply((step,))
    assert here.records[0].wanted == wanted


def test_what_is_held_has_its_value_while_it_is_held(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((Does(what=(Hold(knob(tmp_path), "00000001", "C-states", "awake within 1 µs", "no limit"),)),))
    here.restore()
    (part,) = here.records[0].parts
    assert (part.before, part.wanted, part.verified, part.after) == (
        "no limit",
        "awake within 1 µs",
        "awake within 1 µs",
        "let go",
    )
    refused = Environment(Machine(), here.journal)
    refused.apply((Does(what=(Hold(str(tmp_path / "nowhere"), "1", "C-states"),)),))
    assert (refused.records[0].parts[0].wanted, refused.records[0].parts[0].verified) == ("1", None)


# ---------------------------------------------------------------- whose value it is


class Meanwhile(Does):
    """Somebody else sets a setting while the step looks around, or waits."""

    path: str
    text: str
    waiting: bool = False

    def before(self, machine: Machine) -> dict[str, Any]:
        return {} if self.waiting else self._set()

    def verify(self, machine: Machine) -> dict[str, Any]:
        return self._set() if self.waiting else {}

    def _set(self) -> dict[str, Any]:
        Path(self.path).write_text(self.text)
        return {}


def moving(monkeypatch: pytest.MonkeyPatch, moves: dict[tuple[str, str], tuple[str, str]]) -> None:
    """A kernel where writing one thing to a setting gives another setting a value: {(path, text): (path, text)}."""
    real = machine.hold_host

    def hold(path: str, text: str) -> int:
        fd = real(path, text)
        if (path, text) in moves:
            other, value = moves[path, text]
            Path(other).write_text(value)
        return fd

    monkeypatch.setattr(machine, "hold_host", hold)


@pytest.mark.parametrize("what", [(Wait(0.0),), (Wait(0.0), Run(("true",), 9.0)), (Run(("true",), 9.0), Wait(0.0))])
def test_what_comes_while_a_step_waits_is_somebody_elses(start: Start, tmp_path: Path, what: tuple[Any, ...]) -> None:
    here, path = start(), knob(tmp_path, text="powersave")
    waits = Meanwhile(what=what, path=path, text="schedutil", waiting=True)
    here.apply((Does(what=(Write(path, "performance", "governor"),)), waits))
    assert [verdict.how for verdict in here.restore() if verdict.part == "governor"] == ["drifted"]
    assert Path(path).read_text() == "schedutil"


def test_what_somebody_else_sets_between_two_steps_is_what_it_goes_back_to(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path, text="1")
    meanwhile = Meanwhile(what=(), path=path, text="5")
    here.apply((Does(what=(Write(path, "2", "it"),)), meanwhile, Does(what=(Write(path, "3", "it"),))))
    (verdict,) = here.restore()
    assert (verdict.how, Path(path).read_text()) == ("restored", "5")
    assert "somebody else had set it" in str(verdict.reason)


def test_what_somebody_else_sets_back_stays_as_it_is(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path, text="1")
    twice = (Does(what=(Write(path, "2"),)), Does(what=(Write(path, "3"),)))
    here.apply((*twice, Meanwhile(what=(Run(("true",), 9.0),), path=path, text="2")))
    assert [verdict.how for verdict in here.restore()] == ["drifted"]
    assert Path(path).read_text() == "2", "that once was ours, and is theirs now"


def test_a_refused_write_makes_no_value_ours(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(text: str) -> str:
        raise OSError(16, "Device or resource busy")

    here, path = start(), knob(tmp_path, text="powersave")
    with monkeypatch.context() as patch:
        kernel(patch, refuses)
        here.apply((Does(what=(Write(path, "performance"),)),))
    Path(path).write_text("performance")
    assert [verdict.how for verdict in here.restore()] == ["drifted"]
    assert Path(path).read_text() == "performance"


def test_nor_does_one_that_was_ignored(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, path = start(), knob(tmp_path, text="powersave")
    with monkeypatch.context() as patch:
        kernel(patch, lambda text: "powersave")
        here.apply((Does(what=(Write(path, "performance"),)),))
    assert here.records[0].status == "failed"
    Path(path).write_text("performance")
    assert [verdict.how for verdict in here.restore()] == ["drifted"]
    assert Path(path).read_text() == "performance"


@pytest.mark.parametrize("back", [{}, {"0": "powersave"}], ids=["there", "there and back"])
def test_what_was_right_already_is_put_back_when_we_have_moved_it(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: dict[str, str]
) -> None:
    governor, turbo = knob(tmp_path, "governor", "performance"), knob(tmp_path, "turbo", "0")
    moves = {(turbo, "1"): (governor, "schedutil"), **{(turbo, text): (governor, to) for text, to in back.items()}}
    moving(monkeypatch, moves)
    here = start()
    here.apply((Does(what=(Write(governor, "performance", "governor"), Write(turbo, "1", "turbo"))),))
    part = here.records[0].parts[0]
    assert (part.status, part.verified) == ("drifted", "schedutil")
    here.restore()
    assert (Path(governor).read_text(), Path(turbo).read_text()) == ("performance", "0")
    assert here.records[0].parts[0].after == "performance"


def test_what_putting_back_moves_goes_back_as_well(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was right already, and only the way back moves it; there is nothing to say of it."""
    governor, turbo = knob(tmp_path, "governor", "powersave"), knob(tmp_path, "turbo", "1")
    moving(monkeypatch, {(governor, "powersave"): (turbo, "0")})
    here = start()
    here.apply((Does(what=(Write(turbo, "1", "turbo"), Write(governor, "performance", "governor"))),))
    assert [(verdict.part, verdict.how) for verdict in here.restore()] == [("governor", "restored")]
    assert (Path(governor).read_text(), Path(turbo).read_text()) == ("powersave", "1")


def test_a_move_before_a_write_of_the_same_step_is_ours(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a governor that switches turbo on, which the next line of the step switches off again."""
    governor, turbo = knob(tmp_path, "governor", "powersave"), knob(tmp_path, "turbo", "0")
    moving(monkeypatch, {(governor, "performance"): (turbo, "1")})
    here = start()
    here.apply((Does(what=(Write(governor, "performance"), Write(turbo, "0"))),))
    here.restore()
    assert (Path(governor).read_text(), Path(turbo).read_text()) == ("powersave", "0")


def test_what_a_command_restores_is_not_overwritten(start: Start, tmp_path: Path) -> None:
    here, path = start(), knob(tmp_path, text="performance")
    tuned = Shell.model_validate(
        {"run": ("sh", "-c", f"echo powersave > {path}"), "undo": ("sh", "-c", f"echo performance > {path}")}
    )
    here.apply((tuned, Does(what=(Write(path, "userspace", "governor"),))))
    verdicts = here.restore()
    assert Path(path).read_text() == "performance\n"
    assert [(verdict.how, verdict.value) for verdict in verdicts if verdict.part == "governor"] == [
        ("restored", "performance")
    ]
    assert not here.failed


def test_a_setting_below_a_command_is_still_put_back_again(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    governor, turbo = knob(tmp_path, "governor", "powersave"), knob(tmp_path, "turbo", "1")
    moving(monkeypatch, {(governor, "powersave"): (turbo, "0")})
    steps = (Does(what=(Write(governor, "performance"),)), note(tmp_path / "log", "on", "off"))
    here = start()
    here.apply((*steps, Does(what=(Write(turbo, "0"),))))
    here.restore()
    assert (Path(governor).read_text(), Path(turbo).read_text()) == ("powersave", "1")


@dataclass(frozen=True)
class _OwnRun(Run):
    """A command of another package's making."""


@pytest.mark.parametrize("change", [_OwnRun(("touch", "{}"), 5.0), Run(("touch", Path("{}")), 5.0)])  # type: ignore[arg-type]
def test_what_could_not_be_read_from_the_journal_is_not_done(start: Start, tmp_path: Path, change: Run) -> None:
    change = replace(change, argv=tuple(type(word)(str(word).format(tmp_path / "made")) for word in change.argv))
    here = start()
    here.apply((Does(what=(change,)),))
    assert here.records[0].status == "failed"
    assert "can't be written down" in str(here.records[0].reason)
    assert not (tmp_path / "made").exists()
    assert here.restore() == []


# ---------------------------------------------------------------- waiting


class Patient(Step):
    """Content at the third look."""

    use: str = "patient"
    limit_s: float = 60.0
    looks: list[int] = Field(default_factory=list)

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        return (Wait(self.limit_s, 0.001),)

    def verify(self, machine: Machine) -> dict[str, Any]:
        self.looks.append(1)
        return {"looks": len(self.looks)}

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        return None if verified["looks"] >= 3 else Judged("failed", "somebody is there", fix="wait longer")


class Told:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def waits(self, text: str) -> None:
        self.lines.append(text)

    def step_ends(self, record: Any) -> None:
        self.lines.append(record.status)


def test_it_waits_until_the_step_is_content(start: Start) -> None:
    told = Told()
    here = start(observer=told)
    assert here.apply((Patient(),))
    assert here.records[0].verified == {"looks": 3}
    assert told.lines == ["patient: somebody is there; waiting 60 s more"] * 2 + ["applied"]


def test_waiting_has_its_limit(start: Start) -> None:
    here = start()
    here.apply((Patient(limit_s=0),))
    record = here.records[0]
    assert (record.status, record.reason, record.fix) == ("failed", "somebody is there", "wait longer")
    assert record.verified == {"looks": 1}


def test_a_signal_ends_the_waiting(start: Start) -> None:
    got = iter([0, 0, 0])
    here = start(interrupts=lambda: next(got, 1))
    here.apply((Patient(),))
    assert here.records[0].status == "failed"


# ---------------------------------------------------------------- how a step is judged


@pytest.mark.parametrize(
    ("parts", "judged", "status", "reason"),
    [
        (("already", "applied"), None, "applied", None),
        (("applied", "clamped"), None, "clamped", "b: no reason"),
        (("failed", "refused"), None, "failed", "a: no reason"),
        ((), None, "applied", None),
        (("applied",), Judged("drifted", "it moved"), "drifted", "it moved"),
        (("failed",), Judged("clamped", "a bit"), "failed", "a: no reason"),
        (("clamped",), Judged("clamped", "2.9 GHz is the limit", "2.9 GHz"), "clamped", "2.9 GHz is the limit"),
        ((), Judged("already", "nobody is there"), "already", "nobody is there"),
        (("applied",), Judged("already", "a note"), "applied", "a note"),
        (("failed",), Judged("already", "a note"), "failed", "a: no reason; a note"),
    ],
)
def test_a_step_is_as_good_as_its_worst_part(
    start: Start, parts: tuple[StepStatus, ...], judged: Judged | None, status: str, reason: str | None
) -> None:
    cans = tuple(
        Cannot(name, part, "no reason" if part not in ("applied", "already") else None)
        for name, part in zip("ab", parts, strict=False)
    )
    here = start()
    here.apply((Does(what=cans, verdict=judged),))
    assert (here.records[0].status, here.records[0].reason) == (status, reason)


def test_parts_that_failed_alike_are_told_once() -> None:
    names = [f"policy{n} governor" for n in (0, 1, 2, 3, 8)]
    parts = [Part(name, "refused", reason=f"writing to {name.split()[0]}/x: denied") for name in names]
    parts += [Part(f"policy{n} max kHz", "refused", reason=f"writing to policy{n}/x: denied") for n in range(2)]
    other = Part("boost", "refused", reason="no such knob")
    assert environment.told([*parts, other]) == (
        "policy0-3,8 governor, policy0-1 max kHz: writing to policy0-3,8/x: denied; boost: no such knob"
    )


def test_a_secret_of_a_command_is_in_no_report(start: Start, tmp_path: Path) -> None:
    here = start()
    here.apply((Shell.model_validate({"run": ["true", "--token", "hunter2hunter2"]}),))
    here.restore()
    assert "hunter2" not in (tmp_path / "report/journal.jsonl").read_text()
    assert "hunter2" not in str(here.records)


# ---------------------------------------------------------------- what does not answer


def test_what_has_not_answered_once_is_not_asked_again(start: Start, tmp_path: Path) -> None:
    """D25: the limit is paid once there and once on the way back, and what was not tried needs no undo."""
    slow, log = ("sh", "-c", f"echo x >> {tmp_path}/log; sleep 77.7"), tmp_path / "log"

    class Asks(Does):
        def restore(self, before: dict[str, Any], change: Change) -> Change | None:
            return change

    talks = [Run(slow, 0.3, part, through="the driver") for part in ("a", "b", "c")]
    other = Run(("true",), 5.0, "d")
    here = start()
    here.apply((Asks(what=(*talks, other)),))
    assert [part.status for part in here.records[0].parts] == ["failed", "failed", "failed", "applied"]
    assert here.records[0].reason == (
        "a: the driver: no answer in 0.3 s; b, c: not tried: the driver has not answered before"
    )
    verdicts = here.restore()
    assert [(verdict.part, verdict.how) for verdict in verdicts] == [("d", "restored"), ("a", "failed")]
    assert log.read_text().split() == ["x", "x"]


def test_commands_that_speak_to_nothing_in_common_are_each_tried(start: Start) -> None:
    here = start()
    here.apply((Does(what=(Run(("sleep", "77.8"), 0.2, "a"), Run(("true",), 5.0, "b"))),))
    assert [part.status for part in here.records[0].parts] == ["failed", "applied"]


# ---------------------------------------------------------------- what commands set


class Reads(Does):
    """It can read what its commands have set."""

    says: str = "on"

    def verify(self, machine: Machine) -> dict[str, Any]:
        return {"parts": {"lamp": self.says}}

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        return Run(("true",), 10, "lamp", wanted="off")


def test_what_a_command_sets_has_its_values(start: Start) -> None:
    here = start()
    lamp, lock = Run(("true",), 10, "lamp", wanted="on", was="off"), Run(("true",), 10, "lock", wanted="1830 MHz")
    here.apply((Reads(what=(lamp, lock), says="dim"), Does(what=(Run(("false",), 10, "lamp", wanted="on"),))))
    read, unread = here.records[0].parts
    assert (read.wanted, read.before, read.verified) == ("on", "off", "dim")
    assert (unread.wanted, unread.before, unread.verified) == ("1830 MHz", None, "1830 MHz"), "as its command said"
    assert here.records[1].parts[0].verified is None
    here.restore()
    assert [part.after for part in here.records[0].parts] == ["dim", "off"]


def test_what_is_for_a_programs_start_comes_too_late(start: Start) -> None:
    here = start()
    here.here.target_pids = (4711,)
    here.apply((Env.model_validate({"set": {"A": "1"}}), Does()))
    assert [record.status for record in here.records] == ["not_available", "applied"]
    assert here.records[0].fix == "let profrun start it" and not here.child.set


def test_whoever_is_impatient_is_told_what_is_waited_for(start: Start, tmp_path: Path) -> None:
    """The machine is put back all the same."""
    log, signals, said = tmp_path / "log", [15], list[str]()
    observer = SimpleNamespace(waits=said.append, step_ends=lambda record: None)
    here = start(interrupts=lambda: len(signals), observer=observer)
    signals.clear()
    here.apply((Shell(run=("true",), undo=("sh", "-c", f"touch {tmp_path}/began; sleep 1; echo off > {log}")),))
    signals.append(15)  # which has ended the pass
    thread = Thread(target=lambda: (until((tmp_path / "began").exists), signals.extend((2, 2, 2))))
    thread.start()
    assert [verdict.how for verdict in here.restore()] == ["restored"]
    thread.join()
    assert log.read_text() == "off\n"
    assert set(said) == {"restore: the machine is being put back; what hangs is ended at its time limit"}


def test_what_can_not_be_written_down_is_not_changed_and_that_is_said(tmp_path: Path) -> None:
    here = Environment(Machine(), None, "no journal can be made: No space left on device")
    here.apply((note(tmp_path / "log", "on", "off"),))
    [record] = here.records
    assert (record.status, record.reason) == (
        "failed",
        "nothing is changed, as it could not be written down first: no journal can be made: No space left on device",
    )
    assert not (tmp_path / "log").exists()
