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

from orchestrator import folder, process
from orchestrator.errors import BusyError

_EVERYBODY_READS = 0o644
"""Which is enough to lock it, and to see who has."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_LONGEST_BYTES = 4096
_PROC_LOCKS, _OWN_PIDS = Path("/proc/locks"), Path("/proc/self/ns/pid")
_FIRST_PIDS = 0xEFFFFFFC
"""The number of the first PID namespace (include/uapi/linux/nsfs.h, PID_NS_INIT_INO)."""
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
        self.lost: dict[str, str] = {}
        """Claims that can't be locked, and why: something else lies where their file should."""

    @property
    def claims(self) -> frozenset[str]:
        return frozenset(self._held)

    @property
    def fds(self) -> tuple[int, ...]:
        """Their descriptors: whoever inherits them goes on holding the locks."""
        return tuple(self._held.values())

    def take(self, claims: Iterable[str]) -> list[Holder]:
        """Takes all of these that are not held yet; else gives back who is in the way. What can't be locked is `lost`.
        Raises OSError where no lock can be taken at all."""
        wanted = sorted(set(claims) - self._held.keys())
        place = folder.state_folder() if wanted else Path()
        new: dict[str, int] = {}
        busy: list[Holder] = []
        self.lost = {}
        for claim in wanted:
            path = place / f"lock-{_SAFE.sub('-', claim)}"
            try:
                new[claim], free = _taken(path)
            except OSError as error:
                self.lost[claim] = f"{path} (owner {_owner(path) or 'unknown'}): {error.strerror}"
            else:
                busy += [] if free else [_holder(claim, new[claim])]
        if busy:
            _close(new)
        else:
            self._held |= new
        return busy

    def sign(self, about: Mapping[str, Any]) -> None:
        """Writes into each lock who holds it."""
        text = json.dumps({name: about.get(name) for name in ("pid", "user", "since", "report")}).encode()
        for fd in self._held.values():
            _write(fd, text[:_LONGEST_BYTES])

    def release(self) -> None:
        """Lets all go, also for those that have inherited them."""
        for fd in self._held.values():
            _write(fd, b"")
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


def is_locked(about: os.stat_result) -> bool | None:
    """Whether some process holds a lock on that file, also one that we may not open; None: that can't be seen from
    here."""
    return None if (found := _holders(about)) is None else bool(found)


def _holders(about: os.stat_result) -> list[int] | None:
    """Who has taken a lock on a file (proc_locks(5)); None where the kernel hides the locks of others, as it does from
    inside a container."""
    name = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        lines = [line.split() for line in _PROC_LOCKS.read_text().splitlines()]
    except OSError:
        return None
    found = [int(words[4]) for words in lines if words[1:2] == ["FLOCK"] and words[5:6] == [name]]
    return found if found or _sees_all() else None


def _sees_all() -> bool:
    """Whether this is the machine's first PID namespace: in others those outside are hidden."""
    with contextlib.suppress(OSError):
        return _OWN_PIDS.stat().st_ino == _FIRST_PIDS
    return False


def _taken(path: Path) -> tuple[int, bool]:
    """(the lock's descriptor, whether the lock is ours now). One that was removed before we had it locks nothing."""
    while True:
        fd = _open(path)
        try:
            free = _locked(fd)
            if not free or _is_there(fd, path):
                return fd, free
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _is_there(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except FileNotFoundError:
        return False


def _open(path: Path) -> int:
    """Opens the file, and makes it where it is missing. First without O_CREAT: with that, the kernel keeps even root
    from opening the file of another user in a folder like this one (fs.protected_regular)."""
    while True:
        try:
            return _open_existing(path)
        except FileNotFoundError:
            pass
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _EVERYBODY_READS)
            with contextlib.suppress(OSError):
                os.fchmod(fd, _EVERYBODY_READS)  # whatever the umask is
            return fd


def _open_existing(path: Path) -> int:
    """Its owner writes into it, all others only lock it. Anybody may have put anything there."""
    ours = path.lstat().st_uid == os.geteuid()
    flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, (os.O_RDWR if ours else os.O_RDONLY) | flags)
    except PermissionError:
        fd = os.open(path, os.O_RDONLY | flags)
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(fd)
        raise OSError(errno.EINVAL, "is no lock: it is no file, or has another name elsewhere")
    if ours and about.st_mode & _WRITABLE_BY_OTHERS:
        with contextlib.suppress(OSError):
            os.fchmod(fd, _EVERYBODY_READS)
    return fd


def _owner(path: Path) -> str | None:
    with contextlib.suppress(OSError):
        return folder.user_name(path.lstat().st_uid)
    return None


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _write(fd: int, text: bytes) -> None:
    with contextlib.suppress(OSError):  # one of somebody else, or a full disk: it locks all the same
        if os.fstat(fd).st_uid == os.geteuid():
            os.ftruncate(fd, 0)
            os.pwrite(fd, text, 0)


def _close(held: Mapping[str, int]) -> None:
    for fd in held.values():
        os.close(fd)


def _holder(claim: str, fd: int) -> Holder:
    """Who holds it: what its file says, unless the kernel knows of another (who may not write into the file). Anybody
    may have written it."""
    try:
        said = json.loads(os.pread(fd, _LONGEST_BYTES, 0))
    except (OSError, ValueError):
        said = {}
    said = said if isinstance(said, dict) else {}
    pid, known = said.get("pid"), _holders(os.fstat(fd)) or []
    if known and pid not in known and process.alive(known[0]):
        return Holder(claim, known[0], _owner(Path(f"/proc/{known[0]}")))
    words = {name: str(said[name])[:200] for name in ("user", "since", "report") if said.get(name)}
    return Holder(claim, pid if isinstance(pid, int) else None, **words)
