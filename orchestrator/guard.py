"""What a run has in hand while it may change the machine: locks on what it changes, a journal, a keeper beside it."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import cgroups, folder, journal, keeper, locks, privileged, process, redact, restoring
from orchestrator.keeper import Keeper

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.journal import Journal
    from orchestrator.machine import Machine

_KEEPER_AT_WORK_S = 60.0
"""How long the keeper of a run that was killed may take to put the machine back: nobody has to ask to wait for that."""
_LOOK_EVERY_S = 0.2


class Guard:
    """Locks, journal and keeper of one run. `warn` shows the user a line."""

    def __init__(self, machine: Machine, warn: Callable[[str], None]) -> None:
        self._machine, self._warn = machine, warn
        self._locks = locks.Locks()
        self.journal: Journal | None = None
        self.why_none = ""
        self.keeper: Keeper | None = None
        self._claims: tuple[str, ...] = ()
        self._apart: int | None = None
        """The keeper that was put where it survives the end of a job."""

    # ------------------------------------------------------------ before anything is made

    def hold(self, claims: Sequence[str], wait_s: float | None, received: Callable[[], Sequence[int]]) -> None:
        """Takes what the run will change for itself alone, then puts back what dead runs have left.

        Raises BusyError when another run holds it longer than `wait_s` (None: at all), KeyboardInterrupt when a signal
        comes meanwhile."""
        self._claims = tuple(claims)
        meanwhile = "another run may change the same settings meanwhile"
        try:
            if claims and next(folder.state_places()) == folder.FOR_ALL:  # else two users would not know of each other
                privileged.place()
            self._take(claims, wait_s, received)
        except OSError as error:
            self._warn(f"no lock can be taken ({error.strerror}): {meanwhile}")
        for claim, why in self._locks.lost.items():
            self._warn(f"{claim} can't be locked: {why}: {meanwhile}; next: remove that file")
        self._locks.sign(journal.about("", "", ()))
        for line in restoring.at_start(self._locks):
            self._warn(line)

    def _take(self, claims: Sequence[str], wait_s: float | None, received: Callable[[], Sequence[int]]) -> None:
        began, told = time.monotonic(), False
        while busy := self._locks.take(claims):
            dead = all(holder.pid and not process.alive(holder.pid) for holder in busy)
            limit_s = max(wait_s or 0.0, _KEEPER_AT_WORK_S) if dead else wait_s
            if limit_s is None or time.monotonic() - began >= limit_s:
                raise locks.busy(busy)
            if not told:
                until = "" if math.isinf(limit_s) else f", {limit_s:g} s at most"
                self._warn(f"waiting{until}: {locks.busy(busy).what} ({busy[0].text()})")
                told = True
            if signals := received():
                raise KeyboardInterrupt(signals[0])
            time.sleep(_LOOK_EVERY_S)

    # ------------------------------------------------------------ once there is a report

    def open(self, run: str, report: Folder, scratch: Path, *, changes: bool, public: bool) -> None:
        """Opens the journal, where the run may change something, and starts the keeper."""
        about = journal.about(run, str(report.path.absolute()), self._claims)
        self._locks.sign(about)
        if changes:
            try:
                self.journal = journal.create(about, public=public)
                self.journal.mirror = _mirror(report)
            except OSError as error:
                self.why_none = f"no journal can be made: {error.strerror or error}"
        fds = (self.journal.fd,) if self.journal else ()
        known = {name: about[name] for name in ("run", "report", "pid", "cwd")}
        try:
            told = {**known, "scratch": str(scratch.absolute()), "journal": fds[0] if fds else None}
            self.keeper = Keeper(told, (*fds, *self._locks.fds))
        except OSError as error:
            self._warn(
                f"no keeper can be started ({error.strerror}): should profrun be killed, profrun env restore mends"
            )

    def before_first_change(self) -> None:
        """Waits until the keeper is there, and puts it where it survives the end of a job."""
        if self.keeper is None:
            return
        if not self.keeper.ready():
            self._warn("the keeper has not come up: should profrun be killed, profrun env restore mends")
        else:
            self._set_apart(self.keeper)

    def _set_apart(self, one: Keeper) -> None:
        self._apart = one.pid
        if note := cgroups.set_apart(self._machine, one.pid):
            self._warn(note)

    def pass_begins(self, mark: str, attached: Sequence[int]) -> None:
        if self.keeper:
            self.keeper.pass_begins(mark, attached)
            if self._apart not in (None, self.keeper.pid):  # somebody has ended that one: it was replaced
                self._set_apart(self.keeper)
        self._note("pass", **keeper.known_of(mark, attached))

    def started(self, pid: int) -> None:
        if self.keeper:
            self.keeper.started(pid)

    def pass_ends(self) -> None:
        if self.keeper:
            self.keeper.idle()
        self._note("idle")

    def _note(self, event: str, **known: Any) -> None:
        """In the journal, too: the keeper may be killed with us."""
        if self.journal:
            with contextlib.suppress(OSError):  # the machine can be put back without it
                self.journal.write(event, **known)

    def close(self) -> None:
        """The machine is as it was, as far as that was possible: lets everything go."""
        if self.keeper:
            self.keeper.bye()
        if self.journal:
            if not journal.deeds(self.journal.entries):
                self.journal.delete()
            elif self.journal.remains():
                self._note("left")
            self.journal.close()
        self._locks.release()
        self.keeper = self.journal = None


def _mirror(report: Folder) -> Callable[[dict[str, Any]], None]:
    return lambda entry: report.append("journal.jsonl", json.dumps(_shown(entry), default=str))


def _shown(entry: Mapping[str, Any]) -> Any:
    """An entry as the report may hold it: without the secrets of command lines and settings."""
    shown = redact.tree(dict(entry))
    for change in (*(shown.get("changes") or ()), *(shown.get("undos") or ())):
        if isinstance(change, dict) and change.get("argv"):
            change["argv"] = list(redact.argv(change["argv"]))
    return shown
