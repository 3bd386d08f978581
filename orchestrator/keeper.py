"""The keeper: a process of its own that outlives profrun, ends what profrun had started, and puts the machine back.

It waits in standalone/keeper.py, and does what is written here only when its owner has died without a farewell."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from orchestrator import folder, journal, process, redact
from orchestrator.attached import STOPPED, look
from orchestrator.model import Process

READY_LIMIT_S = 15.0
_STARTED_LATE_S = 0.2
_INNER_PATIENCE_S = 30.0
_SCRIPT = Path(__file__).parent / "standalone" / "keeper.py"


# ---------------------------------------------------------------- the owner's side


class Keeper:
    """The keeper as its owner sees it. Should somebody have ended it, the next word to it starts another."""

    def __init__(self, run: Mapping[str, Any], fds: Sequence[int]) -> None:
        """`run`: what `act` is to know. `fds`: journal and locks, which it goes on holding.

        Raises OSError when it can't be started."""
        self._fds = tuple(fds)
        self._said = {"run": json.dumps(run)}
        self._attendant = self._start()

    def _start(self) -> process.Attendant:
        argv = (sys.executable, "-I", "-S", str(_SCRIPT), str(_SCRIPT.parents[1]), _place_of("sh"))
        env = {name: text for name, text in os.environ.items() if name != process.MARKER}
        attendant = process.Attendant(argv, env, self._fds, deaf=True)
        for word, about in self._said.items():
            attendant.tell(f"{word} {about}".rstrip())
        self._ready: bool | None = None
        return attendant

    @property
    def pid(self) -> int:
        return self._attendant.pid

    def ready(self) -> bool:
        """Whether it is there, and deaf to what ends others; waits for that, as long as it takes to start a Python."""
        if self._ready is None:
            self._ready = bool(self._attendant.says(READY_LIMIT_S))
        return self._ready

    def pass_begins(self, mark: str, attached: Sequence[int] = ()) -> None:
        """From now on this pass is under way: everything marked so is ended if we die. Processes that are attached to
        are never ended, and go on if a dying tool leaves them stopped."""
        self._tell("pass", json.dumps(known_of(mark, attached)))

    def started(self, pid: int) -> None:
        """The target of the pass."""
        self._tell("target", json.dumps({"pid": pid, "born": process.born(pid)}))

    def idle(self) -> None:
        """The pass is over; what it has left running may stay."""
        self._tell("idle", "")

    def bye(self) -> None:
        """Everything is as it should be: the keeper goes."""
        self._attendant.tell("bye")
        self._attendant.close()

    def _tell(self, word: str, about: str) -> None:
        for old in ("pass", "target", "idle") if word != "target" else ():
            self._said.pop(old, None)
        self._said[word] = about
        if not self._attendant.tell(f"{word} {about}".rstrip()):
            self._attendant.close(0.0)
            with contextlib.suppress(OSError):
                self._attendant = self._start()


def known_of(mark: str, attached: Sequence[int]) -> dict[str, Any]:
    """A pass, as far as `end_pass` has to know it."""
    found = look(attached)
    return {
        "mark": mark,
        "attached": {one.pid: one.born for one in found if one.state_before not in STOPPED},
        "stopped": {one.pid: one.born for one in found if one.state_before == "T" and not one.tracer_before},
    }


def _place_of(package: str) -> str:
    """The folder that it is imported from. `sh`, once it is loaded, hides what it was loaded from."""
    found = PathFinder.find_spec(package)
    if found is None or found.origin is None:
        return ""
    return str(Path(found.origin).parents[1 if found.submodule_search_locations else 0])


# ---------------------------------------------------------------- the keeper's side


def act(run: bytes, passing: Sequence[bytes]) -> None:
    """What the dead owner can't do any more: ends the pass, puts the machine back, notes in the report what it did."""
    ctypes.CDLL(None).prctl(15, b"profrun-keeper", 0, 0, 0)  # PR_SET_NAME: `ps` shows who is at work
    about = _data(run)
    said = [f"profrun (pid {about.get('pid')}) was killed; its keeper (pid {os.getpid()}) goes on"]
    ended: list[str] = []
    with contextlib.suppress(Exception):  # whatever goes wrong there, the machine is put back
        ended = end_pass([_data(line) for line in passing])
    said += [f"ended {one}" for one in ended]
    try:
        said += _put_back(about)
    except Exception as error:
        said.append(f"the machine could not be put back: {type(error).__name__}: {error}; next: profrun env restore")
        raise
    finally:
        _log(about, said)


def _data(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def end_pass(passing: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ends what the pass had started; gives back what that was. A process that was attached to goes on, if it did so
    before."""
    if not passing:
        return []
    ours, stay = _ours(passing), _alive(passing, "stopped")
    ended = end(ours)
    time.sleep(_STARTED_LATE_S)  # for what was just between its fork and its exec
    ended += end(ours)
    tree = (pid for root in _alive(passing, "attached") for pid in (root, *process.descendants(root)))
    process.continue_stopped(pid for pid in tree if pid not in stay)
    return [_shown(one) for one in ended]


def _alive(passing: Sequence[Mapping[str, Any]], which: str) -> list[int]:
    """The processes of that list of the pass that are still the ones which were meant."""
    known = (passing[0].get(which) or {}) if passing else {}
    return [int(pid) for pid, born in known.items() if process.born(int(pid)) == born]


def end(pids: Callable[[], list[int]]) -> list[Process]:
    """Ends every process that `pids` names; a profrun among them first, which gets the time to put back what it has
    changed. Should that not be enough, its keeper goes on: see `apart`. Gives back what had to be ended."""

    def inner() -> list[int]:
        return [pid for pid in pids() if any(map(_is_keeper, process.children(pid)))]

    return [*process.end(inner, _INNER_PATIENCE_S), *process.end(pids)]


def apart(pids: Iterable[int]) -> set[int]:
    """Of these what must not be ended, as nobody else would put the machine back: keepers, ours or that of a profrun in
    the target, and the commands with which a run changes its machine and puts it back, with all that they start."""
    roots = [pid for pid in pids if _is_keeper(pid) or _changes_machine(pid)]
    return {pid for root in roots for pid in (root, *process.descendants(root))}


def running(passing: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the pass had started and what still runs."""
    return [_shown(process.describe(pid)) for pid in _ours(passing)() if process.alive(pid)] if passing else []


def _shown(one: Process) -> str:
    return f"pid {one.pid}: {' '.join(redact.argv(one.argv))}"


def _ours(passing: Sequence[Mapping[str, Any]]) -> Callable[[], list[int]]:
    mark = str(passing[0].get("mark") or "")
    targets = {about["pid"]: about.get("born") for about in passing[1:] if isinstance(about.get("pid"), int)}
    visited = passing[0].get("attached") or passing[0].get("stopped")
    return _marked(mark) if visited else _tree(mark, targets)


def _marked(mark: str) -> Callable[[], list[int]]:
    return lambda: process.marked(mark) if mark else []


def _tree(mark: str, targets: Mapping[int, Any]) -> Callable[[], list[int]]:
    """The pass's processes: those that bear its mark, its target (whose environment may be overwritten by now), what
    descends from them, and who lives in a session that one of them leads."""

    def found() -> list[int]:
        roots = [*_marked(mark)(), *(pid for pid, born in targets.items() if process.born(pid) == born)]
        family = {pid for root in roots for pid in (root, *process.descendants(root))}
        leaders = {pid for pid in family if process.session(pid) == pid}
        leaders |= {pid for pid in targets if process.born(pid) is None}  # a dead leader's number is not given again
        family |= {pid for pid in process.everybody() if process.session(pid) in leaders}
        return sorted(family - apart(family))

    return found


def _is_keeper(pid: int) -> bool:
    return str(_SCRIPT.relative_to(_SCRIPT.parents[2])) in " ".join(process.argv_of(pid)[3:4])


def _changes_machine(pid: int) -> bool:
    return bool(journal.MARK.match((process.environ_of(pid) or {}).get(process.MARKER, "")))


def _put_back(about: Mapping[str, Any]) -> list[str]:
    """Restores what the journal holds; gives back what to tell."""
    fd = about.get("journal")
    if not isinstance(fd, int):
        return []
    book = journal.inherited(fd)
    book.mirror = _mirror(about)
    verdicts = journal.restore(book)
    if journal.settle(book, verdicts):
        return [f"put back: {verdict.text}" for verdict in verdicts]
    return [*(verdict.text for verdict in verdicts), "some of it could not be put back; next: profrun env restore"]


def _mirror(about: Mapping[str, Any]) -> Callable[[dict[str, Any]], None]:
    report = folder.Folder(Path(str(about.get("report"))), redact.in_text)
    return lambda entry: report.append("journal.jsonl", json.dumps({**entry, "by": "keeper"}))


def _log(about: Mapping[str, Any], said: Sequence[str]) -> None:
    report = Path(str(about.get("report")))
    scratch = [place for place in (Path(str(about.get("scratch"))),) if place.is_dir()]
    for line in (*said, *(f"what the pass had written by then lies in {place}" for place in scratch)):
        with contextlib.suppress(OSError):
            folder.Folder(report, redact.in_text).append("run.log", line)
    for place in (report, *scratch):
        with contextlib.suppress(OSError):
            folder.hand_over(place)
