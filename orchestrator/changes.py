"""How each kind of change to the machine is made, read back and judged. Who wants it, and what undoes it, is said
elsewhere; nothing here writes a journal."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

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
            return helped or refused
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


# ---------------------------------------------------------------- commands


def run(change: Run, mark: str, give_up: Callable[[], bool] = lambda: False, cwd: str | None = None) -> Done:
    """Runs a command that changes the machine; one that was refused is asked of the root helper."""
    done = judged(change, command(change, mark, give_up, cwd))
    return (_helped(change, done) or done) if done.status == "refused" else done


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
    return Done("failed", None, f"{' '.join(redact.argv(change.argv))}: {said.strip()}")


def _replied(reply: Reply, found: re.Match[str]) -> Done:
    def filled(text: str | None) -> str | None:
        if text is None:
            return None
        for number, group in enumerate(found.groups()):
            text = text.replace("{" + str(number) + "}", (group or "").strip())
        return text

    return Done(reply.status, None, filled(reply.reason), filled(reply.detail))


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
        known = {name: text for name, text in data.items() if name != "kind"}
        if kind is Run:
            replies = tuple(Reply(**reply) for reply in known.get("replies", ()))
            known |= {"argv": tuple(map(str, known["argv"])), "replies": replies}
        if kind in (Write, Hold) and not (isinstance(known["path"], str) and isinstance(known["text"], str)):
            return None
        change: Change = kind(**known)
    except (TypeError, KeyError, AttributeError):
        return None
    return change


def shown(change: Change) -> Change:
    """The same without the secrets of its command line, for the report."""
    return replace(change, argv=redact.argv(change.argv)) if isinstance(change, Run) else change


def part_of(change: Change) -> str:
    """What a change is called."""
    if change.part:
        return change.part
    if isinstance(change, Run):
        return " ".join(redact.argv(change.argv))
    return change.path if isinstance(change, (Write, Hold)) else ""
