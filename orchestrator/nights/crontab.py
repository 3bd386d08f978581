"""The user's crontab: one marked block for each nightly; every other byte of it stays as it is."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from orchestrator import folder, locks, process
from orchestrator.errors import PreflightError, UsageError

LONGEST_LINE = 998
"""Vixie's cron, and Debian's, take a command of up to 998 bytes."""
_NONE_YET = re.compile(r"no crontab", re.I)
_DAEMONS = {"cron", "crond", "cronie", "fcron", "anacron-crond", "busybox-crond"}
_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.1
_INSTALL = "install cron (Debian: sudo apt-get install cron; Fedora: sudo dnf install cronie)"
_ELSE = "use another timer: profrun nightly print NAME --systemd ..."


def entry(fields: str, command: str) -> str:
    """A line of a crontab. `%` would end the command there (crontab(5)). Raises UsageError for what no line can say."""
    if "\n" in command or "\r" in command or "\0" in command:
        raise UsageError("a crontab's line can't hold a line break", repr(command), "use names without one")
    escaped = command.replace("%", r"\%")
    if len(escaped.encode("utf-8", "surrogateescape")) > LONGEST_LINE:
        raise UsageError(
            "the crontab's line is too long", f"cron takes {LONGEST_LINE} bytes", "use shorter paths, or --systemd"
        )
    return f"{fields} {escaped}"


def block(name: str, about: str, line: str) -> bytes:
    begin, end = marks(name)
    return b"\n".join([begin, f"# {about}".encode(), line.encode("utf-8", "surrogateescape"), end, b""])


def marks(name: str) -> tuple[bytes, bytes]:
    return f"# profrun: begin {name}".encode(), f"# profrun: end {name}".encode()


def with_block(table: bytes, name: str, new: bytes) -> bytes:
    """The crontab with this block: in the place of the one of that name, or at the end."""
    place = _place(table, name)
    if place:
        return table[: place[0]] + new + table[place[1] :]
    return table + (b"\n" if table and not table.endswith(b"\n") else b"") + new


def without_block(table: bytes, name: str) -> bytes:
    place = _place(table, name)
    return table[: place[0]] + table[place[1] :] if place else table


def names(table: bytes) -> list[str]:
    """The nightlies that the crontab has a block for."""
    return [found.decode() for found in re.findall(rb"^# profrun: begin ([\w.-]+)[ \t\r]*$", table, re.M)]


def _place(table: bytes, name: str) -> tuple[int, int] | None:
    """Where the block begins and ends. Raises UsageError where somebody has changed its marks."""
    begin, end = marks(name)
    starts, ends = list(_lines(table, begin)), list(_lines(table, end))
    if not starts and not ends:
        return None
    if len(starts) != 1 or len(ends) != 1 or starts[0][0] > ends[0][0]:
        why = f"it has {len(starts)} lines `{begin.decode()}` and {len(ends)} lines `{end.decode()}`"
        raise UsageError("the crontab's block can't be told from the rest", why, "mend that by hand: crontab -e")
    return starts[0][0], ends[0][1]


def _lines(table: bytes, line: bytes) -> Iterator[tuple[int, int]]:
    """Where lines of exactly that text stand; each with its line break."""
    return ((m.start(), m.end()) for m in re.finditer(rb"^" + re.escape(line) + rb"[ \t\r]*(?:\n|\Z)", table, re.M))


# ---------------------------------------------------------------- the real one


class NoCron(PreflightError):
    """The program `crontab` is not there: nobody has a crontab here."""


@contextlib.contextmanager
def held() -> Iterator[None]:
    """One profrun of this user at a time reads, changes and writes the crontab; others wait. Raises BusyError."""
    lock = locks.Locks()
    give_up_s = time.monotonic() + _TIMEOUT_S
    while others := lock.take([f"crontab {os.geteuid()}"]):
        if time.monotonic() > give_up_s:
            raise locks.busy(others)
        time.sleep(_LOOK_EVERY_S)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _file(place: Path, content: bytes) -> Iterator[Path]:
    """A file of this call alone."""
    file = place / f"crontab-{secrets.token_hex(8)}.tmp"
    folder.write_atomic(file, content)
    try:
        yield file
    finally:
        folder.discard(file)


def read(place: Path) -> bytes:
    """The crontab of this user, by way of a file in the folder `place`; empty where there is none yet. Raises NoCron,
    PreflightError: not for this user."""
    if shutil.which("crontab") is None:
        raise NoCron("there is no cron here", "the program `crontab` is not on PATH", f"{_INSTALL}, or {_ELSE}")
    with _file(place, b"") as file:
        answer = process.ask(["sh", "-c", 'exec crontab -l > "$1"', "sh", str(file)], timeout_s=_TIMEOUT_S)
        table = file.read_bytes()
    if answer.ok:
        return table
    if answer.exit is not None and _NONE_YET.search(answer.stderr):
        return b""
    raise _refusal(answer)


def copied(table: bytes, place: Path) -> Path | None:
    """A copy of the crontab as it is, before it is changed; None where there is nothing to lose. Raises OSError."""
    if not table:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    taken = sum(1 for _ in place.glob(f"crontab-{stamp}*.bak"))
    copy = place / (f"crontab-{stamp}.bak" if not taken else f"crontab-{stamp}-{taken}.bak")
    folder.write_atomic(copy, table)
    return copy


def unchanged(table: bytes, place: Path) -> None:
    """Raises PreflightError where the crontab is no longer this one: somebody else would lose what is new in it."""
    if read(place) != table:
        why = "it is another one than a moment ago, and nothing was written"
        raise PreflightError("somebody else changes your crontab", why, "call the same again")


def write(table: bytes, place: Path) -> None:
    """Makes this the user's crontab; an empty one is none. By way of stdin: of a file's name Vixie's crontab(1) takes
    the first 99 bytes. Raises PreflightError where cron does not take it."""
    with _file(place, table) as new:
        argv = ["sh", "-c", 'exec crontab - < "$1"', "sh", str(new)] if table else ["crontab", "-r"]
        answer = process.ask(argv, timeout_s=_TIMEOUT_S)
    if not answer.ok:
        raise _refusal(answer)


def _refusal(answer: process.Answer) -> PreflightError:
    said = (answer.error or answer.stderr or answer.stdout).strip().splitlines()
    why = said[0] if said else "it says nothing"
    if re.search(r"not allowed|permission denied|pam", answer.stderr, re.I):
        user = folder.user_name(os.geteuid())
        how = f"let root add {user} to /etc/cron.allow (and take it out of /etc/cron.deny), or {_ELSE}"
        return PreflightError(f"{user} may not use cron", why, how)
    return PreflightError("cron does not take that", why, "see what there is: crontab -l")


def daemon_trouble() -> str | None:
    """Why nothing of the crontab will be started, and what helps; None where cron is at work."""
    if any(Path(argv[0]).name in _DAEMONS for pid in process.everybody() if (argv := process.argv_of(pid))):
        return None
    return "no cron daemon runs here, so nothing starts it; next: sudo service cron start (or: systemctl start cron)"
