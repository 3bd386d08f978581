"""What dead runs have left on this machine, put back and told: at the next start, and by `profrun env restore`, which
also ends what the target of such a run has left running."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from orchestrator import folder, journal, keeper
from orchestrator.errors import EXIT_BUSY, EXIT_ENVIRONMENT, BusyError
from orchestrator.journal import Left, Mended
from orchestrator.locks import Locks

SCHEMA = "profrun/restore/1"


def at_start(locks: Locks) -> Iterator[str]:
    """Puts back what dead runs have left, as far as it is ours to do; says so, a line for each. Raises nothing."""
    for left in journal.left():
        if left.state in ("dead", "other boot"):
            if left.slow:
                yield f"putting back what {left.who} has left changed: {', '.join(left.slow)}"
            yield from _told(_mended(left, locks))
        elif left.state == "foreign":
            yield f"a run of another user was killed and may have left settings changed: {left.who}; {_by_owner(left)}"


def _mended(left: Left, locks: Locks, give_up: Callable[[], bool] | None = None) -> Mended:
    """Puts back what it has left. What its last pass has left running is ended only when the user wants it mended, who
    may `give_up`: else the journal stays as long as that runs."""
    by_user = give_up is not None
    passing = left.passing
    ended = keeper.end_pass(passing) if by_user and keeper.running(passing) else []
    running = keeper.running(passing)
    mended = journal.mend(left, locks, patient=by_user, keep=bool(running), give_up=give_up or (lambda: False))
    return replace(mended, ended=tuple(ended), running=tuple(running))


def _told(mended: Mended, *, by_user: bool = False) -> Iterator[str]:
    if mended.left.state == "other boot":
        yield f"{mended.left.who} was killed before the machine was started anew, which has undone what it had changed"
    elif mended.busy:
        yield f"{mended.left.who} was killed; what it has left is put back later: {mended.busy[0].claim} is in use"
    if mended.left.journal and mended.left.journal.damaged:
        lost = mended.left.journal.damaged
        yield f"{mended.left.path}: {lost} line{'' if lost == 1 else 's'} can't be read; what it says else is put back"
    if mended.ended:
        yield f"ended what a run that was killed had left running: {'; '.join(mended.ended)}"
    if mended.running:
        what, run = "; ".join(mended.running), mended.left.run
        yield f"a run that was killed has left running: {what}; to end that: profrun env restore {run}"
    if any(verdict.how not in ("already", "released") for verdict in mended.verdicts):
        who = "a run that was killed" if mended.left.was_killed else "a run that could not put back all"
        how = _how(mended) + ("" if by_user or not mended.failed else f"; next: profrun env restore {mended.left.run}")
        yield f"{who} had left {_settings(len(mended.verdicts))}: {how}: {mended.left.who}"
        yield from (verdict.text for verdict in mended.verdicts if verdict.how in ("failed", "drifted"))


def _how(mended: Mended) -> str:
    if mended.failed:
        return f"{len(mended.failed)} could not be put back"
    drifted = sum(verdict.how == "drifted" for verdict in mended.verdicts)
    return "restored" if not drifted else f"restored, but for {drifted} that somebody else has set since"


def _settings(count: int) -> str:
    return f"{count} setting{'' if count == 1 else 's'}"


def _by_owner(left: Left) -> str:
    if left.state == "unreadable":
        return f"next: look into it, then remove it: {left.path}"
    user = folder.user_name(left.uid)
    user = shlex.quote(f"#{user}" if user.isdecimal() else user)
    return "next: sudo profrun env restore" if left.uid == 0 else f"next: sudo -u {user} profrun env restore"


# ---------------------------------------------------------------- profrun env restore


class Restored:
    """What `env restore` has done: for every journal that it was about, what became of it."""

    def __init__(self, found: Sequence[Mended], name: str | None) -> None:
        self._found, self._name = found, name

    def __bool__(self) -> bool:
        """Whether there was any."""
        return bool(self._found)

    @property
    def exit_code(self) -> int:
        if any(one.failed or one.left.state in ("foreign", "unreadable") for one in self._found):
            return EXIT_ENVIRONMENT
        return EXIT_BUSY if any(one.busy for one in self._found) else 0

    def text(self) -> str:
        """What was done, in lines; what a journal of somebody else says of itself stands in them."""
        return "\n".join(self._lines()) or self._nothing()

    def _nothing(self) -> str:
        return f"nothing to put back of {self._name}" if self._name else "nothing to put back: no dead run has left any"

    def _lines(self) -> Iterator[str]:
        for one in self._found:
            left = one.left
            if left.state in ("foreign", "unreadable"):
                why = f" ({left.why})" if left.why else ""
                yield f"{left.who}: not ours to put back{why}; {_by_owner(left)}"
            elif left.state == "other machine":
                yield f"{left.who}: of the machine {left.about.get('host')}; next: profrun env restore there"
            elif not (one.verdicts or one.busy or one.ended or one.running or left.state == "other boot"):
                yield f"{left.who}: had changed nothing"
            yield from _told(one, by_user=True)
            yield from (f"  {v.use}: {v.part}: {v.how}" for v in one.verdicts if v.how not in ("failed", "drifted"))
            yield from (f"  next: {fix}" for fix in dict.fromkeys(v.fix or _mend(left) for v in one.failed))

    def data(self) -> dict[str, Any]:
        return {"schema": SCHEMA, "exit_code": self.exit_code, "runs": [_data(one) for one in self._found]}

    def json(self) -> str:
        return json.dumps(self.data(), indent=1)


def _mend(left: Left) -> str:
    return f"mend that, then again: profrun env restore {left.run}; or put it back by hand, and remove {left.path}"


def _data(one: Mended) -> dict[str, Any]:
    left = one.left
    state = "failed" if one.failed else "busy" if one.busy else "restored" if left.state == "dead" else left.state
    known = {name: left.about.get(name) for name in ("report", "pid", "since", "host")}
    return {
        "run": left.run,
        "user": folder.user_name(left.uid),
        **known,
        "state": state,
        "settings": [asdict(verdict) for verdict in one.verdicts],
        "in_use": [asdict(holder) for holder in one.busy],
        "ended": list(one.ended),
        "running": list(one.running),
        "journal": str(left.path),
    }


def restore(name: str | None, give_up: Callable[[], bool] = lambda: False) -> Restored:
    """Puts back what dead runs have left: all, or the one whose id or report folder this is. Once `give_up` says so,
    what takes time is left as it is.

    Raises BusyError when that one is alive."""
    every = list(journal.left())
    found = [left for left in every if name is None or left.is_of(name)]
    _let_go(left for left in every if left not in found)
    alive = [left for left in found if left.state == "alive"]
    if name is not None and alive:
        _let_go(found)
        raise BusyError(f"that run is alive: {alive[0].who}", "it puts the machine back itself", "wait for its end")
    locks = Locks()
    return Restored([_mended(left, locks, give_up) for left in found if left.state != "alive"], name)


def _let_go(found: Iterable[Left]) -> None:
    for left in found:
        if left.journal:
            left.journal.close()
