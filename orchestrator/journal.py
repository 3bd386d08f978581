"""What a run changes on the machine, on disk before it is changed: one file a run, where every later run finds it, and
what puts the machine back from it, however the run has ended and as often as it takes.

One JSON object a line: `begin` (who), `step` (what it found, wants, and what undoes that), `intent` (a change is about
to be made; what stood there), `done` (what came of it), `settled` (other values that settings have taken by our own
doing), `undone`, `end`. The owner and its keeper hold a lock on the file; a journal that nobody holds is a dead run's.

A line that was cut by a crash never happened: each is on disk before what it announces is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import pwd
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from orchestrator import changes, folder, process
from orchestrator.changes import Done
from orchestrator.locks import Holder, Locks
from orchestrator.model import IN_FORCE, Change, Run, Write

_PREFIX, _SUFFIX = "journal-", ".jsonl"
_LARGEST_BYTES = 64 << 20
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

    def close(self) -> None:
        """Lets the journal go; it stays where it is."""
        os.close(self.fd)

    def delete(self) -> None:
        """The run has left nothing: neither has the journal."""
        with contextlib.suppress(OSError):
            self.write("end")
        with contextlib.suppress(OSError):
            if os.fstat(self.fd).st_nlink:  # else it is deleted already, and another run may have taken its name
                self.path.unlink()
                _sync(self.path.parent)


# ---------------------------------------------------------------- making, opening


def about(run: str, report: str, claims: Iterable[str]) -> dict[str, Any]:
    """What a journal says of its run."""
    return {
        "run": run,
        "report": report,
        "claims": sorted(claims),
        "pid": os.getpid(),
        "born": process.born(os.getpid()),
        "uid": os.getuid(),
        "user": user_name(os.getuid()),
        "host": platform.node(),
        "boot_id": boot_id(),
        "cwd": os.getcwd(),  # noqa: PTH109 - a text is wanted
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def create(begin: Mapping[str, Any], *, public: bool = True) -> Journal:
    """A new journal, locked before anybody can see it. Not `public`: a command in it may hold a secret, and only its
    owner may read it. Raises OSError."""
    place = folder.state_folder()
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
    for line in lines:
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


def user_name(uid: int) -> str:
    """The user's name; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# ---------------------------------------------------------------- what was done


@dataclass
class Deed:
    """A change of a step, as far as it went."""

    n: int
    index: int
    use: str
    change: Change
    undo: Change | None
    intent: bool = False
    old: str | None = None
    done: Mapping[str, Any] | None = None
    undone: bool = False
    values: set[str] = field(default_factory=set)
    """What the setting has said by our own doing."""

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
    """All changes that were announced, in order. What is damaged is left out."""
    found: dict[int, Deed] = {}
    for entry in entries:
        event, n = entry.get("event"), entry.get("n")
        if event == "step":
            found |= {deed.n: deed for deed in _of_step(entry)}
        elif event == "settled":
            _settle(found, entry.get("values"))
        elif isinstance(n, int) and n in found:
            _note(found[n], entry)
    return list(found.values())


def _of_step(entry: Mapping[str, Any]) -> Iterator[Deed]:
    first, index = entry.get("first"), entry.get("index")
    wanted, undos = entry.get("changes"), entry.get("undos")
    if not (isinstance(first, int) and isinstance(index, int) and isinstance(wanted, list)):
        return
    undos = undos if isinstance(undos, list) and len(undos) == len(wanted) else [None] * len(wanted)
    for n, (data, undo) in enumerate(zip(wanted, undos, strict=True), first):
        change = changes.from_data(data)
        if change is not None:
            yield Deed(n, index, str(entry.get("use")), change, changes.from_data(undo))


def _note(deed: Deed, entry: Mapping[str, Any]) -> None:
    if entry["event"] == "intent":
        old = entry.get("old")
        deed.intent, deed.old = True, old if isinstance(old, str) else None
    elif entry["event"] == "done":
        deed.done = entry
        deed.values |= {value} if isinstance(value := entry.get("value"), str) else set()
    elif entry["event"] == "undone":
        deed.undone = entry.get("how") != "failed"


def _settle(found: Mapping[int, Deed], values: Any) -> None:
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, str) and name.isdigit() and int(name) in found:
            found[int(name)].values.add(value)


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
        return f"{self.use}: {self.part}: {self.reason or self.how}"


class _Setting:
    """One setting with all that was written to it. It goes back to what stood there before the first."""

    def __init__(self, written: Sequence[Deed]) -> None:
        self.deed, self.old = written[0], written[0].old
        self.path = _write_of(written[0]).path
        self._ours = {""}  # an ordinary file between being emptied and written; no setting of the kernel's is empty
        for deed in written:
            change = _write_of(deed)
            self._ours |= {change.text.strip(), *deed.values, *(x for x in (change.reads, deed.old) if x is not None)}
        self._cut_off = [deed for deed in written if deed.done is None]

    def is_ours(self, value: str) -> bool:
        """Whether it says what we made of it. A run that died between a write and its reading back does not know what
        the kernel made of that: a number between the old and the wanted one is the kernel's limit on the way there, and
        ours; any other value is somebody else's (a word is taken as it is or refused, never bent)."""
        return value in self._ours or any(_between(value, deed.old, _write_of(deed).text) for deed in self._cut_off)

    def verdict(self, how: How, value: str | None = None, reason: str | None = None, fix: str | None = None) -> Verdict:
        deed = self.deed
        return Verdict(deed.n, deed.index, deed.use, changes.part_of(deed.change), how, value, reason, fix)


def _write_of(deed: Deed) -> Write:
    if not isinstance(deed.change, Write):
        raise AssertionError("only settings are asked for their path")
    return deed.change


def _between(value: str, old: str | None, wanted: str) -> bool:
    try:
        low, high = sorted((int(old or ""), int(wanted)))
        return low <= int(value) <= high
    except ValueError:
        return False


def restore(journal: Journal) -> list[Verdict]:
    """Puts back all that the journal holds, the last first, and looks again: setting one thing may have moved another.

    Can be killed and called again at any point. A command that undoes may then be run twice: that it has run can only
    be written after it has."""
    done = deeds(journal.entries)
    _end_unfinished(journal, done)
    settings = _settings(done)
    verdicts: dict[int, Verdict] = {}
    for deed in reversed(done):
        found = _undo(journal, deed, settings) if deed.intent else None
        if found:
            verdicts[deed.n] = found
            _written(journal, found)
    for _ in range(_LOOKS):
        if not _look_again(verdicts, settings):
            break
    return [_still(verdict, settings) for verdict in verdicts.values()]


def _settings(done: Iterable[Deed]) -> dict[int, _Setting]:
    """The settings that were written, by the number of the first write to each."""
    by_path: dict[str, list[Deed]] = {}
    for deed in done:
        if deed.is_setting and deed.intent:
            by_path.setdefault(_write_of(deed).path, []).append(deed)
    return {written[0].n: _Setting(written) for written in by_path.values()}


def _undo(journal: Journal, deed: Deed, settings: Mapping[int, _Setting]) -> Verdict | None:
    """None: there is nothing to undo."""
    if deed.is_setting:
        return _put_back(settings[deed.n]) if deed.n in settings else None
    part = changes.part_of(deed.change)
    if deed.undo is None:
        held = not isinstance(deed.change, (Run, Write)) and deed.ran
        return Verdict(deed.n, deed.index, deed.use, part, "released") if held else None
    if deed.undone or not deed.ran:
        return None
    came = _command(deed.undo, mark(journal.run, "undo", deed.n), journal.cwd)
    how: How = "restored" if came.status in IN_FORCE else "failed"
    return Verdict(deed.n, deed.index, deed.use, part, how, None, came.reason, came.fix)


def _command(undo: Change, name: str, cwd: str | None) -> Done:
    if isinstance(undo, Run):
        return changes.run(undo, name, cwd=cwd)
    if isinstance(undo, Write):
        return changes.write(undo, None)
    return Done("failed", reason=f"a {type(undo).__name__} undoes nothing")


def _put_back(setting: _Setting) -> Verdict:
    if setting.old is None:
        return setting.verdict("failed", reason=f"what {setting.path} said before is lost")
    try:
        value = changes.read(setting.path)
    except OSError as error:
        why = changes.refusal(error, f"reading {setting.path}")
        return setting.verdict("gone" if why.status == "not_available" else "failed", reason=why.reason)
    if value == setting.old:
        return setting.verdict("already", value)
    if not setting.is_ours(value):
        return setting.verdict("drifted", value, f"somebody else has set it to {value} meanwhile: left alone")
    came = changes.write(Write(setting.path, setting.old, setting.deed.change.part), value)
    return setting.verdict("restored" if came.status == "applied" else "failed", came.value, came.reason, came.fix)


def _look_again(verdicts: dict[int, Verdict], settings: Mapping[int, _Setting]) -> bool:
    """Puts back again what has moved since it was put back, or has come back; whether there was something."""
    moved = False
    for n, setting in reversed(list(settings.items())):
        before = verdicts[n]
        if before.how == "drifted" or _value(setting.path) in (setting.old, None):
            continue
        verdicts[n] = _rewritten(setting) if before.how in ("restored", "already") else _put_back(setting)
        moved = True
    return moved


def _rewritten(setting: _Setting) -> Verdict:
    """It said what it should a moment ago: what it says now is our own doing, whatever it is."""
    came = changes.write(Write(setting.path, setting.old or "", setting.deed.change.part), None)
    return setting.verdict("restored" if came.status == "applied" else "failed", came.value, came.reason, came.fix)


def _still(verdict: Verdict, settings: Mapping[int, _Setting]) -> Verdict:
    """The verdict, if the setting still says what it should."""
    setting = settings.get(verdict.n)
    if setting is None or verdict.how not in ("restored", "already"):
        return verdict
    value = _value(setting.path)
    if value in (setting.old, None):
        return verdict
    return setting.verdict("failed", value, f"{setting.old} was written back, and {setting.path} says {value}")


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


def mark(run: str, what: str, n: int) -> str:
    """By which a command that changes the machine is found when profrun is gone."""
    return f"{run}/{what}-{n}."


def _end_unfinished(journal: Journal, done: Iterable[Deed]) -> None:
    """Ends the commands that a dead owner had started and not waited for: what they would still do, nobody undoes. The
    root helper's can't be ended by a user: they are waited for, as long as they may take."""
    for deed in done:
        change, what = (deed.change, "step") if deed.done is None else (deed.undo, "undo")
        if deed.intent and isinstance(change, Run) and not deed.undone:
            name = mark(journal.run, what, deed.n)
            process.end(lambda name=name: process.marked(name), patience_s=1.0)  # type: ignore[misc]
            _await(change)


def _await(change: Run) -> None:
    deadline = time.monotonic() + change.timeout_s
    while change.argv[0] == "sudo" and time.monotonic() < deadline:
        if not any(process.argv_of(pid) == change.argv and process.alive(pid) for pid in process.everybody()):
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

    @property
    def run(self) -> str:
        return str(self.about.get("run") or self.path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX))

    @property
    def who(self) -> str:
        """The run, as a user knows it."""
        report = self.about.get("report")
        words = (f"pid {self.about.get('pid', 'unknown')}", f"user {user_name(self.uid)}", self.about.get("since"))
        return f"{report or self.run} ({', '.join(str(word) for word in words if word)})"

    def is_of(self, name: str) -> bool:
        """Whether `name` is its run's id or its report folder."""
        report = self.about.get("report")
        return name == self.run or bool(report and Path(name).resolve() == Path(str(report)).resolve())


@dataclass(frozen=True)
class Mended:
    """What came of a dead run's journal. `busy`: who uses the same settings now, so that they were left alone."""

    left: Left
    verdicts: tuple[Verdict, ...] = ()
    busy: tuple[Holder, ...] = ()

    @property
    def failed(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.how == "failed"]


def left() -> Iterator[Left]:
    """All journals of this machine that can be seen from here, the oldest first in each place."""
    for place in folder.state_places():
        with contextlib.suppress(OSError):
            for path in sorted(place.glob(f"{_PREFIX}*{_SUFFIX}"), key=lambda path: path.lstat().st_mtime_ns):
                if found := _found(path):
                    yield found


def _found(path: Path) -> Left | None:
    """None where there is no journal after all. One that is not ours is never acted upon: whoever wrote it would choose
    what we run."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    ours = path.lstat().st_uid == os.geteuid()
    try:
        fd = os.open(path, (os.O_RDWR | os.O_APPEND if ours else os.O_RDONLY) | flags)
    except FileNotFoundError:
        return None
    except OSError as error:
        uid = path.lstat().st_uid
        return Left(path, "foreign" if uid != os.geteuid() else "unreadable", {}, uid, why=error.strerror or "")
    if not _is_plain(fd):
        os.close(fd)
        return None
    journal, uid = _loaded(path, fd), os.fstat(fd).st_uid
    state = _state(journal, uid)
    if state in ("dead", "other boot") and _is_plain(fd):  # it is still there, now that it is ours alone
        return Left(path, state, journal.about, uid, _loaded(path, fd))
    os.close(fd)
    return Left(path, state, journal.about, uid) if state not in ("dead", "other boot") else None


def _is_plain(fd: int) -> bool:
    about = os.fstat(fd)
    return stat.S_ISREG(about.st_mode) and about.st_nlink == 1


def _state(journal: Journal, uid: int) -> State:
    begin = journal.about
    if begin and begin.get("boot_id") != boot_id():
        if begin.get("host") != platform.node():
            return "other machine"
        return "other boot" if uid == os.geteuid() else "foreign"
    try:
        _lock(journal.fd)
    except BlockingIOError:
        return "alive"
    except OSError:  # no locks on this file system: what the process table says has to do
        pid = begin.get("pid")
        if isinstance(pid, int) and process.born(pid) == begin.get("born"):
            return "alive"
    return "dead" if uid == os.geteuid() else "foreign"


def mend(found: Left, locks: Locks) -> Mended:
    """Puts back what a dead run has left, while nobody else uses the same settings."""
    journal = found.journal
    if journal is None:
        return Mended(found)
    if found.state == "other boot":
        journal.delete()
        journal.close()
        return Mended(found)
    own, claims = Locks(), [str(claim) for claim in _list(found.about.get("claims"))]
    try:
        with contextlib.suppress(OSError):  # no lock can be taken here: neither could the others
            if busy := own.take(set(claims) - locks.claims):
                return Mended(found, busy=tuple(busy))
        own.sign({**found.about, "pid": os.getpid()})
        verdicts = restore(journal)
        settle(journal, verdicts)
        return Mended(found, tuple(verdicts))
    finally:
        own.release()
        journal.close()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
