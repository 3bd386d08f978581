"""One run at a time for each GPU and CPU policy that it changes: a file for each, locked as long as the run, or the
keeper that puts the machine back after it, lives. The lock is the kernel's: nothing has to be cleaned up."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import folder
from orchestrator.errors import BusyError

_EVERYBODY_MAY = 0o666
_LONGEST_BYTES = 4096
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True)
class Holder:
    """Who holds a claim, by what the lock file says; None: it does not say."""

    claim: str
    pid: int | None = None
    user: str | None = None
    since: str | None = None
    report: str | None = None

    def text(self) -> str:
        words = [f"process {self.pid or 'unknown'}"]
        words += [f"of {self.user}"] if self.user else []
        words += [f"since {self.since}"] if self.since else []
        return " ".join(words) + (f", report {self.report}" if self.report else "")


class Locks:
    """The claims that are held. `take` adds to them all that are asked for, or none."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(self._held)

    @property
    def fds(self) -> tuple[int, ...]:
        """Their descriptors: whoever inherits them goes on holding the locks."""
        return tuple(self._held.values())

    def take(self, claims: Iterable[str]) -> list[Holder]:
        """Takes all of these that are not held yet; else gives back who is in the way. Raises OSError where no lock can
        be taken at all."""
        wanted = sorted(set(claims) - self._held.keys())
        place = folder.state_folder() if wanted else Path()
        new: dict[str, int] = {}
        busy: list[Holder] = []
        try:
            for claim in wanted:
                fd = _open(place / f"lock-{_SAFE.sub('-', claim)}")
                new[claim] = fd
                busy += [] if _locked(fd) else [_holder(claim, fd)]
        except OSError:
            _close(new)
            raise
        if busy:
            _close(new)
        else:
            self._held |= new
        return busy

    def sign(self, about: Mapping[str, Any]) -> None:
        """Writes into each lock who holds it."""
        text = json.dumps({name: about.get(name) for name in ("pid", "user", "since", "report")}).encode()
        for fd in self._held.values():
            with contextlib.suppress(
                OSError
            ):  # one that somebody else made without leave to write: it locks all the same
                os.ftruncate(fd, 0)
                os.pwrite(fd, text[:_LONGEST_BYTES], 0)

    def release(self) -> None:
        """Lets all go, also for those that have inherited them."""
        for fd in self._held.values():
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
        self._held.clear()


def busy(holders: Iterable[Holder]) -> BusyError:
    """What to tell whoever has to wait."""
    found = list(holders)
    who = dict.fromkeys(holder.text() for holder in found)
    return BusyError(
        f"another run holds {', '.join(holder.claim for holder in found)}",
        "; ".join(who),
        "wait for it, or let profrun do that: --wait 10m",
    )


def _open(path: Path) -> int:
    """Opens the file, and makes it where it is missing. First without O_CREAT: with that, the kernel keeps even root
    from opening the file of another user in a folder like this one (fs.protected_regular)."""
    while True:
        try:
            return _regular(_open_existing(path), path)
        except FileNotFoundError:
            pass
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _EVERYBODY_MAY)
            with contextlib.suppress(OSError):
                os.fchmod(fd, _EVERYBODY_MAY)  # whatever the umask is
            return fd


def _open_existing(path: Path) -> int:
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        return os.open(path, os.O_RDWR | flags)
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags)


def _regular(fd: int, path: Path) -> int:
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no file", str(path))


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close(held: Mapping[str, int]) -> None:
    for fd in held.values():
        os.close(fd)


def _holder(claim: str, fd: int) -> Holder:
    """What a lock's file says; anybody may have written it."""
    try:
        said = json.loads(os.pread(fd, _LONGEST_BYTES, 0))
    except (OSError, ValueError):
        said = {}
    said = said if isinstance(said, dict) else {}
    words = {name: str(said[name])[:200] for name in ("user", "since", "report") if said.get(name)}
    pid = said.get("pid")
    return Holder(claim, pid if isinstance(pid, int) else None, **words)
