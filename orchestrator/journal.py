"""What a run changes on the machine, on disk before it is changed: one file a run, where every later run finds it, and
what puts the machine back from it, however the run has ended and as often as it takes.

One JSON object a line: `begin` (who), `step` (what it found, wants, and what undoes that), `seen` (what settings say
just before a step's first change), `intent` (a change is about to be made; what stood there), `done` (what came of it),
`settled` (what settings say just after the step's last change), `pass` (the target is about to be started), `idle` (it
has ended), `undone`, `left` (the run ends, and not all could be put back), `end`. The owner and its keeper hold a lock
on the file; a journal that nobody holds is a dead run's. A line that was cut by a crash never happened: each is on disk
before what it announces is done.

Whose a value is. What a setting becomes between `seen` and `settled` is our doing: what was written, what the kernel
made of that, what it moved beside it. What it becomes at any other time is somebody else's doing. A setting goes back
to the last value that is not our doing, and only from a value that is; any other has been set since, and stays. A write
that was refused or ignored has done nothing. On the way back it is the same: what our writing back has moved is put
back again, what has changed while a command undid something is left as it is, and told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import platform
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from orchestrator import changes, folder, locks, privileged, process
from orchestrator.changes import Done
from orchestrator.locks import Holder, Locks
from orchestrator.model import IN_FORCE, Cannot, Change, Run, Write

FORMAT = 1
"""Of the entries. What another version of profrun has written is not guessed at."""

_PREFIX, _SUFFIX = "journal-", ".jsonl"
_LARGEST_BYTES, _MOST_LINES = 64 << 20, 100_000
_FOREIGN_BYTES = 64 << 10
"""Of a journal of another user only the first line counts: who it is."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LOOKS = 2
"""How often all settings are looked at again after they were put back: setting one may move another."""
_EVERYBODY_READS, _OWNER_READS = 0o644, 0o600

How = Literal["restored", "already", "released", "drifted", "gone", "failed"]


def append(fd: int, line: bytes) -> None:
    """Puts one line on the disk, or nothing of it. Every entry of every journal goes through here. Raises OSError."""
    before = os.fstat(fd).st_size
    try:
        if os.write(fd, line) != len(line):
            raise OSError(28, "No space left on device")
        os.fsync(fd)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, before)
        raise


@dataclass
class Journal:
    """An open journal, locked by us. `mirror` gets each entry, too: the report's copy."""

    path: Path
    fd: int
    entries: list[dict[str, Any]] = field(default_factory=list)
    damaged: int = 0
    """Lines that make no sense."""
    mirror: Callable[[dict[str, Any]], None] = lambda entry: None

    @property
    def about(self) -> Mapping[str, Any]:
        """The entry `begin`; empty where it is lost."""
        return next((entry for entry in self.entries if entry.get("event") == "begin"), {})

    @property
    def run(self) -> str:
        return str(self.about.get("run") or self.path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))

    @property
    def cwd(self) -> str | None:
        """Where the run's commands were started; None when that is gone."""
        place = self.about.get("cwd")
        return place if isinstance(place, str) and os.path.isdir(place) else None  # noqa: PTH112

    def write(self, event: str, **data: Any) -> None:
        """Writes an entry; what it announces must not be done before this returns. Raises OSError."""
        entry = {"event": event, "time_ns": time.time_ns(), **data}
        try:
            self.mirror(entry)
        except OSError:
            if event not in ("undone", "end"):  # the report's full disk keeps nobody from putting things back
                raise
        append(self.fd, json.dumps(entry, default=str).encode() + b"\n")
        self.entries.append(entry)

    def remains(self) -> bool:
        """Whether it has not been deleted."""
        return os.fstat(self.fd).st_nlink > 0

    def close(self) -> None:
        """Lets the journal go; it stays where it is."""
        os.close(self.fd)

    def delete(self) -> None:
        """The run has left nothing: neither has the journal."""
        with contextlib.suppress(OSError):
            self.write("end")
        with contextlib.suppress(OSError):
            if self.remains():  # else another run may have taken its name
                self.path.unlink()
                _sync(self.path.parent)


# ---------------------------------------------------------------- making, opening


def about(run: str, report: str, claims: Iterable[str]) -> dict[str, Any]:
    """What a journal says of its run."""
    return {
        "format": FORMAT,
        "run": run,
        "report": report,
        "claims": sorted(claims),
        "pid": os.getpid(),
        "born": process.born(os.getpid()),
        "uid": os.getuid(),
        "user": folder.user_name(os.getuid()),
        "host": platform.node(),
        "boot_id": boot_id(),
        "cwd": os.getcwd(),  # noqa: PTH109 - a text is wanted
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def create(begin: Mapping[str, Any], *, public: bool = True) -> Journal:
    """A new journal, locked before anybody can see it. Not `public`: a command in it may hold a secret, and only its
    owner may read it. Raises OSError."""
    problem = OSError(errno.ENOENT, "there is no place for it")
    for place in folder.state_places():
        try:
            return _created(folder.made_state(place), begin, public)
        except OSError as error:  # it is full, perhaps: the next one is better than none
            problem = error
    raise problem


def _created(place: Path, begin: Mapping[str, Any], public: bool) -> Journal:
    path = place / f"{_PREFIX}{begin['run']}{_SUFFIX}"
    if os.path.lexists(path):  # of a run into the same report, which could not be put back
        path = place / f"{_PREFIX}{begin['run']}.{os.getpid()}{_SUFFIX}"
    unseen = place / f".{path.name}.{os.getpid()}"
    fd = os.open(unseen, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OWNER_READS)
    journal = Journal(path, fd)
    try:
        _lock(fd)
        os.fchmod(fd, _EVERYBODY_READS if public else _OWNER_READS)
        journal.write("begin", **begin)
        unseen.rename(path)
        _sync(place)
    except OSError:
        with contextlib.suppress(OSError):
            unseen.unlink()
        os.close(fd)
        raise
    return journal


def inherited(fd: int) -> Journal:
    """The journal that a keeper holds for its dead owner."""
    path = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")  # noqa: PTH115 - a deleted file is no Path
    return _loaded(Path(path), fd)


def _loaded(path: Path, fd: int) -> Journal:
    entries, damaged = parsed(_content(fd))
    return Journal(path, fd, entries, damaged)


def _content(fd: int) -> bytes:
    blocks, at = [], 0
    while at < _LARGEST_BYTES and (block := os.pread(fd, 1 << 20, at)):
        blocks.append(block)
        at += len(block)
    return b"".join(blocks)


def parsed(data: bytes) -> tuple[list[dict[str, Any]], int]:
    """(the entries of a journal, how many of its lines make no sense). A last line without its end never happened."""
    *lines, _ = data.split(b"\n")
    entries: list[dict[str, Any]] = []
    for line in lines[:_MOST_LINES]:
        with contextlib.suppress(ValueError, RecursionError):
            entry = json.loads(line)
            entries += [entry] if isinstance(entry, dict) and isinstance(entry.get("event"), str) else []
    return entries, len(lines) - len(entries)


def _lock(fd: int) -> None:
    """Raises BlockingIOError when another process holds it, OSError where the file system knows no locks."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sync(place: Path) -> None:
    fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def boot_id() -> str | None:
    """What tells this boot of the machine from the others."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


# ---------------------------------------------------------------- what was done


@dataclass
class Deed:
    """A change of a step, as far as it went."""

    n: int
    index: int
    use: str
    change: Change
    undo: Change | None
    strange: bool = False
    """What it was, or what undoes it, is not understood."""
    intent: bool = False
    old: str | None = None
    done: Mapping[str, Any] | None = None
    undone: bool = False
    stuck: bool = False
    """Undoing it has failed before."""

    @property
    def is_setting(self) -> bool:
        return isinstance(self.change, Write) and not self.change.once

    @property
    def ran(self) -> bool:
        """Whether there is something for a command to undo: neither was it refused, nor did it find nothing to do."""
        if self.done is None:
            return self.intent
        return bool(self.done.get("ran", True)) and self.done.get("status") in ("applied", "clamped", "failed")


def deeds(entries: Iterable[Mapping[str, Any]]) -> list[Deed]:
    """All changes that were announced, in order. What is damaged is left out, unless it was begun."""
    found: dict[int, Deed] = {}
    for entry in entries:
        event, n = entry.get("event"), entry.get("n")
        if event == "step":
            found |= {deed.n: deed for deed in _of_step(entry)}
        elif isinstance(n, int) and event in ("intent", "done", "undone"):
            if event == "intent" and n not in found:
                found[n] = Deed(n, -1, "unknown", Cannot(f"change {n}", "failed"), None, strange=True)
            if n in found:
                _note(found[n], entry)
    return list(found.values())


def _of_step(entry: Mapping[str, Any]) -> Iterator[Deed]:
    first, index = entry.get("first"), entry.get("index")
    wanted, undos = entry.get("changes"), entry.get("undos")
    if not (isinstance(first, int) and isinstance(index, int) and isinstance(wanted, list)):
        return
    undos = undos if isinstance(undos, list) and len(undos) == len(wanted) else [None] * len(wanted)
    for n, (data, undo_data) in enumerate(zip(wanted, undos, strict=True), first):
        change, undo = changes.from_data(data), changes.from_data(undo_data)
        strange = change is None or (undo is None and undo_data is not None)
        yield Deed(n, index, str(entry.get("use")), change or Cannot(f"change {n}", "failed"), undo, strange)


def _note(deed: Deed, entry: Mapping[str, Any]) -> None:
    if entry["event"] == "intent":
        old = entry.get("old")
        deed.intent, deed.old = True, old if isinstance(old, str) else None
    elif entry["event"] == "done":
        deed.done = entry
    else:
        deed.stuck = entry.get("how") == "failed"
        deed.undone = not deed.stuck


class Setting:
    """One setting with all that is known of it; `deed` is the first that wants it changed. See above: whose a value
    is."""

    def __init__(self, deed: Deed) -> None:
        self.deed, self.path = deed, _write_of(deed).path
        self.old: str | None = None
        """What it goes back to: the last value that is not our doing. None: unknown."""
        self.says: str | None = None
        """What it said last, as far as we have seen."""
        self.moved = False
        """Whether we have tried to change it, or something else that we did has."""
        self.others = False
        """Whether somebody else has set it since our first look."""
        self._ours: set[str] = set()
        self._open: list[Deed] = []
        """Writes of which is not known what came."""

    def seen(self, value: str) -> None:
        if value != self.says and not (self._open and self.is_ours(value)):
            self.others, self.old = self.old is not None, value
            self._ours, self._open = {value}, []
        self.says = value

    def settled(self, value: str) -> None:
        if self.old is not None:
            self.says, self.moved = value, True
            self._ours.add(value)

    def begins(self, deed: Deed) -> None:
        self.old = deed.old if self.old is None else self.old
        self.says, self.moved = deed.old, True
        self._ours |= {"", deed.old or ""}  # an ordinary file is empty for a moment; no setting of the kernel is
        self._open.append(deed)

    def ends(self, deed: Deed, done: Mapping[str, Any]) -> None:
        value, refused = done.get("value"), done.get("status") in ("refused", "not_available")
        if isinstance(value, str):
            self.says = value
            self._ours.add(value)
        if isinstance(value, str) or refused:
            self._open = [one for one in self._open if one is not deed]

    def is_ours(self, value: str) -> bool:
        """Whether it says what we made of it. A run that died between a write and its reading back does not know what
        the kernel made of that: a number between the old and the wanted one is the kernel's limit on the way there, and
        ours; any other value is somebody else's (a word is taken as it is or refused, never bent)."""
        return value in self._ours or any(_may_be_of(deed, value) for deed in self._open)

    def verdict(self, how: How, value: str | None = None, reason: str | None = None, fix: str | None = None) -> Verdict:
        return _verdict(self.deed, how, value, reason, fix)


def settings(entries: Sequence[Mapping[str, Any]]) -> dict[str, Setting]:
    """The settings that were to be changed, by path, in the order in which they were announced."""
    by_number = {deed.n: deed for deed in deeds(entries) if deed.is_setting}
    found: dict[str, Setting] = {}
    for deed in by_number.values():
        found.setdefault(_write_of(deed).path, Setting(deed))
    for entry in entries:
        event, n = entry["event"], entry.get("n")
        if event in ("seen", "settled"):
            for path, value in _values(entry):
                if path in found:
                    (found[path].seen if event == "seen" else found[path].settled)(value)
        elif isinstance(n, int) and n in by_number:
            deed = by_number[n]
            setting = found[_write_of(deed).path]
            if event == "intent":
                setting.begins(deed)
            elif event == "done":
                setting.ends(deed, entry)
    return found


def _values(entry: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    values = entry.get("values")
    return ((k, v) for k, v in (values.items() if isinstance(values, dict) else ()) if isinstance(v, str))


def _write_of(deed: Deed) -> Write:
    if not isinstance(deed.change, Write):
        raise AssertionError("only settings are asked for their path")
    return deed.change


def _may_be_of(deed: Deed, value: str) -> bool:
    change = _write_of(deed)
    if value in (change.text.strip(), change.reads):
        return True
    try:
        low, high = sorted((int(deed.old or ""), int(change.text)))
        return low <= int(value) <= high
    except ValueError:
        return False


# ---------------------------------------------------------------- putting back


@dataclass(frozen=True)
class Verdict:
    """What came of putting one change back. `drifted`: somebody else has set it meanwhile, so it is left alone;
    `gone`: the setting is not there any more. `value`: what it says now."""

    n: int
    index: int
    use: str
    part: str
    how: How
    value: str | None = None
    reason: str | None = None
    fix: str | None = None

    @property
    def text(self) -> str:
        failed = "not put back: " if self.how == "failed" and self.reason else ""
        return f"{self.use}: {self.part}: {failed}{self.reason or self.how}"


def restore(journal: Journal, *, patient: bool = False, give_up: Callable[[], bool] = lambda: False) -> list[Verdict]:
    """Puts back all that the journal holds, the last first, and looks again: setting one thing may have moved another.
    `patient`: what has not answered in time (a driver that hangs) is asked again by the next command, and a command
    that has failed to undo something before is tried once more. `give_up`: see `Commands`.

    Can be killed and called again at any point. A command that undoes may then be run twice: that it has run can only
    be written after it has."""
    if journal.about.get("format", FORMAT) != FORMAT:
        return [Verdict(-1, -1, "journal", journal.path.name, "failed", None, *_strange(journal))]
    done, known = deeds(journal.entries), settings(journal.entries)
    _end_unfinished(journal, done, known)
    return _WayBack(journal, known, changes.Commands(patient=patient, give_up=give_up)).go(done)


class _WayBack:
    """Undoes what was done: settings and commands in turn, as they come, from the last to the first."""

    def __init__(self, journal: Journal, known: Mapping[str, Setting], commands: changes.Commands) -> None:
        self._journal, self._known, self._commands = journal, known, commands
        self._first = {one.deed.n: one for one in known.values()}
        self._verdicts: dict[int, Verdict] = {}
        self._ours: set[str] = set()
        """The settings whose value was our doing when this stretch began: what moves them now is our doing, too."""
        self._right: set[str] = set()
        """Those of them that should say by now what they go back to."""

    def go(self, done: Sequence[Deed]) -> list[Verdict]:
        for are_settings, stretch in groupby(reversed(done), lambda deed: deed.is_setting or deed.undo is None):
            if are_settings:
                self._put_all_back(list(stretch))
            else:
                for deed in stretch:
                    self._judge(self._run(deed))
                self._ours, self._right = set(), set()
        return [self._still(verdict) for verdict in self._verdicts.values()]

    def _put_all_back(self, stretch: Iterable[Deed]) -> None:
        now = {path: _value(path) for path in self._known}
        self._ours = {path for path, value in now.items() if value is not None and self._known[path].is_ours(value)}
        self._right = {path for path in self._ours if now[path] == self._known[path].old}
        for deed in stretch:
            if not deed.is_setting:
                self._judge(self._without_undo(deed))
            elif (setting := self._first.get(deed.n)) and setting.moved:
                self._judge(self._put_back(setting))
        for _ in range(_LOOKS):
            if not self._look_again():
                break
        self._settle({path: now[path] for path in self._ours - self._right})

    def _put_back(self, setting: Setting) -> Verdict:
        return _put_back(setting, setting.path in self._ours)

    def _settle(self, before: Mapping[str, str | None]) -> None:
        """What we have moved that is not to be put back yet."""
        news = {path: value for path, was in before.items() if (value := _value(path)) is not None and value != was}
        for path, value in news.items():
            self._known[path].settled(value)
        if news:
            with contextlib.suppress(OSError):
                self._journal.write("settled", values=news)

    def _judge(self, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        self._verdicts[verdict.n] = verdict
        if verdict.n in self._first and _is_right(verdict):
            self._right.add(self._first[verdict.n].path)
        _written(self._journal, verdict)

    def _look_again(self) -> bool:
        """Puts back again what has moved since it was put back, or has come back; whether there was something."""
        moved = False
        for path, setting in reversed(list(self._known.items())):
            before = self._verdicts.get(setting.deed.n)
            if path in self._right and _value(path) not in (setting.old, None):
                again = _rewritten(setting)
            elif before and before.how in ("failed", "gone") and _value(path) is not None:
                again = self._put_back(setting)
            else:
                continue
            moved = True
            if before or not _is_right(again):
                self._verdicts[setting.deed.n] = again
            self._right |= {path} if _is_right(again) else set()
        return moved

    def _without_undo(self, deed: Deed) -> Verdict | None:
        if deed.strange:
            return self._not_understood(deed)
        held = not isinstance(deed.change, (Run, Write)) and deed.ran
        return _verdict(deed, "released", "let go") if held else None

    def _run(self, deed: Deed) -> Verdict | None:
        """None: there is nothing to undo."""
        if deed.strange:
            return self._not_understood(deed)
        if deed.undone or not deed.ran or deed.undo is None:
            return None
        if deed.stuck and not self._commands.patient:
            return _verdict(deed, "failed", "what should undo it has failed before")
        came = _command(deed.undo, mark(self._journal.run, "undo", deed.n), self._journal.cwd, self._commands)
        back = came.status in IN_FORCE
        value = deed.undo.wanted if back and isinstance(deed.undo, Run) else None
        if came.status == "already":  # somebody else was faster; there is nothing to say of it
            return _verdict(deed, "already", value)
        return _verdict(deed, "restored" if back else "failed", value, came.reason, came.fix)

    def _not_understood(self, deed: Deed) -> Verdict | None:
        return _verdict(deed, "failed", None, *_strange(self._journal)) if deed.ran and not deed.undone else None

    def _still(self, verdict: Verdict) -> Verdict:
        """The verdict with what the setting says now. What a command that undoes has made of it stays."""
        setting = self._first.get(verdict.n)
        value = _value(setting.path) if setting else None
        if setting is None or not _is_right(verdict) or value in (setting.old, None):
            return verdict
        if setting.path in self._right:
            return setting.verdict("failed", value, f"{setting.old} was written back, and {setting.path} says {value}")
        return replace(verdict, value=value, reason=f"{setting.old} was put back; the commands after it left {value}")


def _verdict(
    deed: Deed, how: How, value: str | None = None, reason: str | None = None, fix: str | None = None
) -> Verdict:
    return Verdict(deed.n, deed.index, deed.use, changes.part_of(deed.change), how, value, reason, fix)


def _strange(journal: Journal) -> tuple[str, str]:
    """(why it can't be undone, what to do)."""
    return (
        "not understood: written by another version of profrun, or damaged",
        f"put it back with that version, or by hand; then delete {journal.path}",
    )


def _is_right(verdict: Verdict) -> bool:
    return verdict.how in ("restored", "already")


def _command(undo: Change, name: str, cwd: str | None, commands: changes.Commands) -> Done:
    if isinstance(undo, Run):
        return commands.run(undo, name, cwd=cwd)
    if isinstance(undo, Write):
        return changes.write(undo, None)
    return Done("failed", reason=f"a {type(undo).__name__} undoes nothing")


def _put_back(setting: Setting, ours: bool) -> Verdict:
    """`ours`: what it says is our doing, whatever it is."""
    if setting.old is None:
        return setting.verdict("failed", reason=f"what {setting.path} said before is lost")
    try:
        value = changes.read(setting.path)
    except OSError as error:
        why = changes.refusal(error, f"reading {setting.path}")
        return setting.verdict("gone" if why.status == "not_available" else "failed", reason=why.reason)
    if value == setting.old and not setting.others:
        return setting.verdict("already", value)
    if value == setting.old or not (ours or setting.is_ours(value)):
        return setting.verdict("drifted", value, f"somebody else has set it to {value} meanwhile: left alone")
    return _rewritten(setting)


def _rewritten(setting: Setting) -> Verdict:
    came = changes.write(Write(setting.path, setting.old or "", setting.deed.change.part), None)
    if came.status != "applied":
        return setting.verdict("failed", came.value, came.reason, came.fix)
    return setting.verdict("restored", came.value, _THEIRS.format(setting.old) if setting.others else None)


_THEIRS = "back to {}, to which somebody else had set it meanwhile"


def _value(path: str) -> str | None:
    try:
        return changes.read(path)
    except OSError:
        return None


def _written(journal: Journal, verdict: Verdict) -> None:
    """A full disk is no reason to leave the machine as it is."""
    with contextlib.suppress(OSError):
        journal.write("undone", n=verdict.n, part=verdict.part, how=verdict.how, value=verdict.value)


def settle(journal: Journal, verdicts: Iterable[Verdict]) -> bool:
    """Deletes the journal when nothing is left to put back; else it stays, for the next start and `env restore`."""
    if any(verdict.how == "failed" for verdict in verdicts):
        return False
    journal.delete()
    return True


MARK = re.compile(r".+/(step|undo)-\d+\.")
"""What `mark` gives."""


def mark(run: str, what: str, n: int) -> str:
    """By which a command that changes the machine is found when profrun is gone."""
    return f"{run}/{what}-{n}."


def _end_unfinished(journal: Journal, done: Iterable[Deed], known: Mapping[str, Setting]) -> None:
    """Ends the commands that a dead owner had started and not waited for: what they would still do, nobody undoes. The
    root helper's can't be ended by a user: they are waited for, as long as they may take."""
    under_way = [deed for deed in done if deed.intent and not deed.undone]
    for deed in under_way:
        change, what = (deed.change, "step") if deed.done is None else (deed.undo, "undo")
        if isinstance(change, Run):
            name = mark(journal.run, what, deed.n)
            process.end(lambda name=name: process.marked(name), patience_s=1.0)  # type: ignore[misc]
    backs = [Write(one.path, one.old) for one in known.values() if one.old is not None and one.moved]
    ways = (deed.change if deed.done is None else deed.undo for deed in under_way)
    _await_helper([run for change in (*ways, *backs) if change and (run := privileged.instead(change))])


def _await_helper(asked: Sequence[Run]) -> None:
    """sudo and the helper itself both have the helper's path with the words after it at the end of their command."""
    ends = {run.argv[2:] for run in asked}
    deadline = time.monotonic() + max((run.timeout_s for run in asked), default=0.0)
    while ends and time.monotonic() < deadline:
        if not any(argv[-len(end) :] == end for argv in map(process.argv_of, process.everybody()) for end in ends):
            return
        time.sleep(0.05)


# ---------------------------------------------------------------- dead runs

State = Literal["dead", "alive", "foreign", "other machine", "other boot", "unreadable"]


@dataclass
class Left:
    """A journal that lies there, and whose it is. `journal`: locked by us; only of a dead run of ours."""

    path: Path
    state: State
    about: Mapping[str, Any]
    uid: int
    journal: Journal | None = None
    why: str = ""
    others: Sequence[Left] = ()
    """All that lie there, this one, too."""

    @property
    def run(self) -> str:
        return str(self.about.get("run") or self.path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))

    @property
    def who(self) -> str:
        """The run, as a user knows it."""
        report = self.about.get("report")
        user = folder.user_name(self.uid)
        words = (f"pid {self.about.get('pid', 'unknown')}", f"user {user}", self.about.get("since"))
        return f"{report or self.run} ({', '.join(str(word) for word in words if word)})"

    @property
    def was_killed(self) -> bool:
        """Whether it did not come to its own end."""
        return not any(entry["event"] == "left" for entry in (self.journal.entries if self.journal else ()))

    @property
    def slow(self) -> list[str]:
        """What only commands can put back, which may take their time, and have not failed before."""
        done = deeds(self.journal.entries) if self.journal and self.state == "dead" else []
        slow = (one for one in done if isinstance(one.undo, Run) and one.intent and one.ran)
        return [changes.part_of(one.change) for one in slow if not (one.undone or one.stuck)]

    @property
    def passing(self) -> list[Mapping[str, Any]]:
        """The pass in which the run died, as `keeper.end_pass` wants it; empty when it was in none."""
        entries = self.journal.entries if self.journal and self.state == "dead" else ()
        passes = [entry for entry in entries if entry["event"] in ("pass", "idle")]
        last = passes[-1] if passes else {}
        attached = last.get("attached")
        known = isinstance(attached, dict) and all(pid.isascii() and pid.isdigit() for pid in attached)
        return [last] if known and last["event"] == "pass" and last.get("mark") else []

    @property
    def claims(self) -> set[str]:
        """What it changes, as far as two runs can't share that."""
        claims = self.about.get("claims")
        return set(map(str, claims)) if isinstance(claims, list) else set()

    @property
    def began_ns(self) -> int:
        since = self.about.get("time_ns")
        return since if isinstance(since, int) else 0

    def is_covered(self) -> bool:
        """Whether another dead run has changed the same and is not put back yet: what it has set is nobody's wish."""
        dead = (one for one in self.others if one is not self and one.state in ("dead", "foreign", "unreadable"))
        return any(one.claims & self.claims and os.path.lexists(one.path) for one in dead)

    def is_of(self, name: str) -> bool:
        """Whether `name` is its run's id or its report folder."""
        report = self.about.get("report")
        return name == self.run or bool(report and Path(name).resolve() == Path(str(report)).resolve())


@dataclass(frozen=True)
class Mended:
    """What came of a dead run's journal. `busy`: who uses the same settings now, so that they were left alone;
    `ended`, `running`: processes of its last pass that were ended now, or run on."""

    left: Left
    verdicts: tuple[Verdict, ...] = ()
    busy: tuple[Holder, ...] = ()
    ended: tuple[str, ...] = ()
    running: tuple[str, ...] = ()

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.how == "failed"]


def left() -> list[Left]:
    """All journals of this machine that can be seen from here, the newest first: what two dead runs have changed one
    after the other goes back in reverse."""
    found = sorted(_everywhere(), key=lambda one: one.began_ns, reverse=True)
    for one in found:
        one.others = found
    return found


def _everywhere() -> Iterator[Left]:
    for place in folder.state_places():
        paths: list[Path] = []
        with contextlib.suppress(OSError):
            paths = sorted(folder.trusted_state(place).glob(f"{_PREFIX}*{_SUFFIX}"))
        for path in paths:
            with contextlib.suppress(FileNotFoundError):  # it has just been deleted
                if found := _found(path):
                    yield found


def _found(path: Path) -> Left | None:
    """None where there is no journal after all. One that is not ours, or that others could have written to, is never
    acted upon: whoever wrote it would choose what we run."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    about = path.lstat()
    ours = about.st_uid == os.geteuid()
    try:
        fd = os.open(path, (os.O_RDWR | os.O_APPEND if ours else os.O_RDONLY) | flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        if not ours and locks.is_locked(about) is not False:
            return Left(path, "alive", {}, about.st_uid)
        return Left(path, "unreadable" if ours else "foreign", {}, about.st_uid, why=error.strerror or "")
    if not _is_plain(fd):
        os.close(fd)
        return None
    if ours and os.fstat(fd).st_mode & _WRITABLE_BY_OTHERS:
        os.close(fd)
        return Left(path, "unreadable", {}, about.st_uid, why="others may write to it")
    journal = _loaded(path, fd) if ours else Journal(path, fd, parsed(os.pread(fd, _FOREIGN_BYTES, 0))[0][:1])
    if not ours and not journal.about:  # anybody may put a file there, and call it so
        os.close(fd)
        return None
    state, uid = _state(journal, about.st_uid), about.st_uid
    if state in ("dead", "other boot") and _is_plain(fd):  # it is still there, now that it is ours alone
        return Left(path, state, journal.about, uid, _loaded(path, fd))
    os.close(fd)
    return Left(path, state, journal.about, uid) if state not in ("dead", "other boot") else None


def _is_plain(fd: int) -> bool:
    about = os.fstat(fd)
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def _state(journal: Journal, uid: int) -> State:
    """Whoever holds it is alive, on whatever machine: one of the same name may share our state folder."""
    try:
        _lock(journal.fd)
    except OSError:
        return "alive"
    begin = journal.about
    if begin and begin.get("boot_id") != boot_id():
        if begin.get("host") != platform.node():
            return "other machine"
        return "other boot" if uid == os.geteuid() else "foreign"
    return "dead" if uid == os.geteuid() else "foreign"


def mend(
    found: Left, held: Locks, *, patient: bool = False, keep: bool = False, give_up: Callable[[], bool] = lambda: False
) -> Mended:
    """Puts back what a dead run has left, while nobody else uses the same settings. `patient`, `give_up`: see
    `restore`; `keep`: the journal stays."""
    journal = found.journal
    if journal is None:
        return Mended(found)
    if found.state == "other boot":
        journal.delete()
        journal.close()
        return Mended(found)
    own = Locks()
    try:
        with contextlib.suppress(OSError):  # no lock can be taken here: neither could the others
            if busy := own.take(found.claims - held.claims):
                return Mended(found, busy=tuple(busy))
        own.sign({**found.about, "pid": os.getpid()})
        verdicts = restore(journal, patient=patient, give_up=give_up)
        drifted = any(verdict.how == "drifted" for verdict in verdicts)
        if not (keep or (drifted and found.is_covered())):
            settle(journal, verdicts)
        return Mended(found, tuple(verdicts))
    except Exception as error:  # a damaged journal may ask for anything; the start of a run must not fail for it
        said = Verdict(-1, -1, "journal", journal.path.name, "failed", None, f"{type(error).__name__}: {error}")
        return Mended(found, (said,))
    finally:
        own.release()
        journal.close()
