"""How each kind of change to the machine is made, read back and judged. Who wants it, and what undoes it, is said
elsewhere; nothing here writes a journal."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from orchestrator import machine, privileged, process, redact
from orchestrator.model import Cannot, Change, Hold, Reply, Run, StepStatus, Wait, Write

_KINDS: Mapping[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Write, Run, Hold, Wait, Cannot)}
_LONGEST_SETTING_BYTES = 64 << 10
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})
_NOT_ALLOWED = frozenset({errno.EACCES, errno.EPERM})
_CHOSEN = re.compile(r"\[([^][\s]+)\]")
_HOLD_LIMIT_S = 15.0


@dataclass(frozen=True)
class Done:
    """What came of a change. `value`: what the setting says after it; None: that can't be read."""

    status: StepStatus
    value: str | None = None
    reason: str | None = None
    detail: str | None = None
    fix: str | None = None
    ran: bool = True
    """False: the command could not even be started."""
    late: bool = False
    """The command did not answer in time."""


# ---------------------------------------------------------------- settings


def read(path: str) -> str:
    """What a setting says; of a choice (`always [madvise] never`) what is chosen. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        text = os.read(fd, _LONGEST_SETTING_BYTES).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)
    chosen = _CHOSEN.findall(text)
    return chosen[0] if len(chosen) == 1 and " " in text else text


def in_force(change: Write, value: str | None) -> bool:
    """Whether the setting says what the change wants."""
    return value is not None and value in (change.text.strip(), change.reads)


def look(change: Write) -> tuple[str | None, Done | None]:
    """(what the setting says now, what is to be said of the change where nothing has to be written)."""
    if change.once:
        return None, None
    try:
        value = read(change.path)
    except OSError as error:
        return None, refusal(error, f"reading {change.path}")
    return value, Done("already", value) if in_force(change, value) else None


def write(change: Write, old: str | None) -> Done:
    """Writes the setting and reads it back. A user who may not write it asks the root helper."""
    try:
        machine.write_host(change.path, change.text)
    except OSError as error:
        refused = refusal(error, f"writing {change.text.strip()!r} to {change.path}")
        helped = _helped(change, refused) if error.errno in _NOT_ALLOWED else None
        if helped is None or helped.status != "applied":
            return _with_way_out(helped or refused)
    return Done("applied") if change.once else _read_back(change, old)


def _read_back(change: Write, old: str | None) -> Done:
    try:
        value = read(change.path)
    except OSError as error:
        return Done("failed", None, f"{change.path} can't be read back: {error.strerror}")
    if in_force(change, value):
        return Done("applied", value)
    wanted = change.text.strip()
    if value == old:
        return Done("failed", value, f"the kernel took {wanted} and ignored it: {change.path} still says {value}")
    return Done("clamped", value, f"{wanted} was written, and {change.path} says {value}", value)


def refusal(error: OSError, doing: str) -> Done:
    """A refusal of the system as a status, with the error's name."""
    status: StepStatus = "not_available" if error.errno in _ABSENT else "refused"
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    fix = "the file system is read-only, as in a container: set it on the host" if error.errno == errno.EROFS else None
    return Done(status, None, f"{doing}: {error.strerror}", name, fix)


def _helped(change: Write | Run, refused: Done) -> Done | None:
    """What the root helper made of a change that was refused to us; None where it is not for the helper."""
    other = None if os.geteuid() == 0 else privileged.instead(change)
    if other is None:
        return None
    found = privileged.available()
    if not found.allowed:
        return replace(refused, reason=f"{refused.reason}; {found.why}", fix=found.fix or privileged.sudoers_line())
    return judged(other, command(other, f"helper-{os.getpid()}"))


def _with_way_out(done: Done) -> Done:
    """One who was not allowed is told who is."""
    if done.fix or done.detail not in ("EACCES", "EPERM"):
        return done
    who = "root itself may not" if os.geteuid() == 0 else "run profrun as root"
    return replace(done, fix=f"{who}; in a container or a virtual machine, set it on the host")


# ---------------------------------------------------------------- commands


def run(change: Run, mark: str, give_up: Callable[[], bool] = lambda: False, cwd: str | None = None) -> Done:
    """Runs a command that changes the machine; one that was refused is asked of the root helper."""
    done = judged(change, command(change, mark, give_up, cwd))
    if done.status == "refused":
        done = _helped(change, done) or done
    return _with_way_out(done)


class Commands:
    """Runs commands one after the other. What has not answered once in time is not asked again: a driver that hangs
    costs its time limit once, not once for each command. `patient`: it is asked each time. Once `give_up` says so, the
    one that runs is ended, and no other is begun."""

    def __init__(self, *, patient: bool = False, give_up: Callable[[], bool] = lambda: False) -> None:
        self.patient, self._give_up = patient, give_up
        self._silent: set[str] = set()

    def run(self, change: Run, mark: str, give_up: Callable[[], bool] | None = None, cwd: str | None = None) -> Done:
        """As `run` above."""
        stops = give_up or self._give_up
        if give_up is None and stops():
            return Done("failed", None, "not tried: interrupted", ran=False)
        if change.through in self._silent:
            said = f"not tried: {change.through} has not answered before"
            return Done("failed", None, said, fix=_wake(change.through), ran=False)
        done = run(change, mark, stops, cwd)
        if not (done.late and change.through):
            return done
        if not self.patient:
            self._silent.add(change.through)
        return replace(done, fix=_wake(change.through))


def _wake(program: str) -> str:
    return f"find out why {program} does not answer (sudo dmesg may say it), or reboot"


def command(
    change: Run, mark: str, give_up: Callable[[], bool] = lambda: False, cwd: str | None = None
) -> process.Answer:
    """Every command that changes the machine goes through here. By `mark` it is found when profrun is gone."""
    env = {**os.environ, process.MARKER: mark}
    return process.ask(change.argv, timeout_s=change.timeout_s, env=env, cwd=cwd, give_up=give_up)


def judged(change: Run, answer: process.Answer) -> Done:
    """What a command's answer means: what its own words say, else its exit status."""
    text = answer.stdout + answer.stderr
    for reply in change.replies:
        with contextlib.suppress(re.error):
            if found := re.search(reply.pattern, text):
                return _replied(reply, found)
    if answer.ok:
        return Done("applied")
    if answer.error and answer.error.startswith(f"{change.argv[0]} can't be started"):
        return Done("failed", None, answer.error, ran=False)
    said = answer.error or f"{answer.exit.describe() if answer.exit else ''} {answer.stderr.strip()[-300:]}"
    return Done("failed", None, f"{_called(change)}: {said.strip()}", late=_is_late(answer))


def _is_late(answer: process.Answer) -> bool:
    """Whether it was ended for its time limit: by us, or by the root helper's alarm."""
    if answer.exit is None:
        return (answer.error or "").startswith("no answer")
    return answer.exit.signal == signal.SIGALRM


def _called(change: Run) -> str:
    """The command as a user knows it: of a step's part, which says what it does, the program is enough."""
    return change.through or (Path(change.argv[0]).name if change.part else shlex.join(redact.argv(change.argv)))


def _replied(reply: Reply, found: re.Match[str]) -> Done:
    def filled(text: str | None) -> str | None:
        if text is None:
            return None
        for number, group in enumerate(found.groups()):
            text = text.replace("{" + str(number) + "}", (group or "").strip())
        return text

    return Done(reply.status, None, filled(reply.reason), filled(reply.detail), reply.fix)


# ---------------------------------------------------------------- what is held


class Held:
    """A change that lasts until `release`, or until we are gone."""

    def __init__(self, fd: int | None = None, holder: process.Attendant | None = None) -> None:
        self._fd, self._holder = fd, holder

    def release(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        if self._holder:
            self._holder.close()
        self._fd = self._holder = None


def hold(change: Hold) -> tuple[Done, Held | None]:
    """Makes a change that lasts as long as it is held; None where it could not be made."""
    try:
        return Done("applied"), Held(machine.hold_host(change.path, change.text))
    except OSError as error:
        refused = refusal(error, f"opening {change.path}")
        argv = privileged.held(change) if error.errno in _NOT_ALLOWED and os.geteuid() != 0 else None
    if argv is None:
        return refused, None
    found = privileged.available()
    if not found.allowed:
        fix = found.fix or privileged.sudoers_line()
        return replace(refused, reason=f"{refused.reason}; {found.why}", fix=fix), None
    try:
        holder = process.Attendant(argv)
    except OSError as error:
        return replace(refused, reason=f"{argv[0]} can't be started: {error.strerror}"), None
    if privileged.HELD in holder.says(_HOLD_LIMIT_S):
        return Done("applied"), Held(holder=holder)
    holder.close(1.0)
    return replace(refused, reason="the root helper did not hold it"), None


# ---------------------------------------------------------------- as data


def as_data(change: Change | None) -> dict[str, Any] | None:
    """A change as it stands in the journal."""
    return None if change is None else {"kind": type(change).__name__.lower(), **asdict(change)}


def from_data(data: Any) -> Change | None:
    """A change as it was written; None where the entry makes no sense."""
    try:
        kind = _KINDS[data["kind"]]
        known = {name: tuple(v) if isinstance(v, list) else v for name, v in data.items() if name != "kind"}
        if "replies" in known:
            known["replies"] = tuple(Reply(**reply) for reply in known["replies"])
        change: Change = kind(**known)
    except (TypeError, KeyError, AttributeError):
        return None
    return change if _fits(change, kind) and getattr(change, "argv", True) else None


def survives(change: Change | None) -> bool:
    """Whether it can be read again as it is, from a journal: else nobody could undo it."""
    return from_data(json.loads(json.dumps(as_data(change), default=str))) == change


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a type, down to the fields of a dataclass; a text also has to be one for the system."""
    if get_origin(wanted) is tuple:
        return isinstance(value, tuple) and all(_fits(one, get_args(wanted)[0]) for one in value)
    if get_origin(wanted) is Literal:
        return value in get_args(wanted)
    if isinstance(value, str) and "\0" in value:
        return False
    if wanted is float:
        return isinstance(value, (int, float))
    fields = _hints(wanted).items() if isinstance(wanted, type) and is_dataclass(wanted) else ()
    return isinstance(value, wanted) and all(_fits(getattr(value, name), of) for name, of in fields)


@functools.cache
def _hints(kind: type[Any]) -> Mapping[str, Any]:
    return get_type_hints(kind)


def shown(change: Change) -> Change:
    """The same without the secrets of its command line, for the report."""
    return replace(change, argv=redact.argv(change.argv)) if isinstance(change, Run) else change


def part_of(change: Change) -> str:
    """What a change is called."""
    if change.part:
        return change.part
    if isinstance(change, Run):
        return shlex.join(redact.argv(change.argv))
    return change.path if isinstance(change, (Write, Hold)) else ""
