"""Deletes what the tools left of old nights, and nothing else: reports keep their summaries, tables and pages.

It goes from the folder of the reports down by descriptors: no link is followed, no other file system is entered, and
what is no report of this nightly is not touched. What is about to be deleted is written down in the report first."""

from __future__ import annotations

import calendar
import contextlib
import errno
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import folder
from orchestrator.nights.words import FLAGGED, Thinned, remembered
from orchestrator.units import show_bytes, show_duration

_RECORD = Path(folder.THINNED).name
_STAYS = frozenset({"run.json", _RECORD})
"""How the run went, and what of it was deleted."""
_LONGEST_NOTE_BYTES = 16 << 20
_LARGEST_LOG_BYTES = 1 << 20
"""What was printed stays, too, where it is short enough to be read."""
_STAMP = r"-(\d{8}T\d{6}Z)-[a-z]{4}"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class _Raw:
    """The raw files of one report that may go: their number and size."""

    report: str
    age_s: float
    files: int
    bytes: int
    flagged: bool


def thin(
    reports: Path, name: str, keep: Collection[str], keep_s: float | None, most_bytes: int, now_s: float | None = None
) -> tuple[list[Thinned], str | None]:
    """Deletes raw files of the nights `name`-TIME-xxxx in `reports`: of those older than `keep_s`, then, the oldest
    first, of others until all hold less than `most_bytes`. Flagged ones and those in `keep` stay whole.

    (what was deleted; what else is to be said, or None). Raises OSError where the folder can't be read."""
    now_s = time.time() if now_s is None else now_s
    root = os.open(reports, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        found = sorted(_found(root, name, keep, now_s), key=lambda raw: -raw.age_s)
        free = [raw for raw in found if raw.files and not raw.flagged and raw.report not in keep]
        old = [raw for raw in free if keep_s is not None and raw.age_s > keep_s]
        chosen = [(raw, f"older than {show_duration(keep_s or 0)}") for raw in old]
        left = sum(raw.bytes for raw in found) - sum(raw.bytes for raw in old)
        for raw in (raw for raw in free if raw not in old):
            if left <= most_bytes:
                break
            chosen.append((raw, f"all together hold more than {show_bytes(most_bytes)}"))
            left -= raw.bytes
        done = [thinned for raw, why in chosen if (thinned := _thinned(root, reports, raw, why))]
        holds = f"what stays holds {show_bytes(left)} of raw files, more than {show_bytes(most_bytes)}"
        too_much = f"{holds}: flagged nights stay whole"
        return done, too_much if left > most_bytes else None
    finally:
        os.close(root)


def _found(root: int, name: str, keep: Collection[str], now_s: float) -> Iterator[_Raw]:
    """The nights of that name that have ended or are kept, with what could be deleted of each."""
    pattern = re.compile(re.escape(name) + _STAMP)
    for entry in os.listdir(root):
        stamp = pattern.fullmatch(entry)
        if stamp is None:
            continue
        made_s = _seconds(stamp[1])
        with contextlib.suppress(OSError), _raw_of(root, entry) as raw:
            night = _night(root, entry)
            if night.get("name") != name and entry not in keep:
                continue
            sizes = [size for _, _, size in _files(raw)]
            yield _Raw(entry, now_s - made_s, len(sizes), sum(sizes), remembered(night)[0] in FLAGGED)


def _night(root: int, report: str) -> dict[str, Any]:
    """What the night has left in its report when it ended; empty where that is none of a nightly, or still runs."""
    outer = os.open(report, _DIRECTORY, dir_fd=root)
    try:
        fd = os.open("night.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=outer)
    except OSError:
        return {}
    finally:
        os.close(outer)
    with os.fdopen(fd, "rb") as file, contextlib.suppress(OSError, ValueError):
        data = json.loads(file.read(_LONGEST_NOTE_BYTES))
        return data if isinstance(data, dict) else {}
    return {}


def _seconds(stamp: str) -> float:
    return float(calendar.timegm(time.strptime(stamp, "%Y%m%dT%H%M%SZ")))


@contextlib.contextmanager
def _raw_of(root: int, report: str) -> Iterator[int]:
    """A descriptor of the report's raw/: of our own report, a folder in a folder. Raises OSError."""
    outer = os.open(report, _DIRECTORY, dir_fd=root)
    try:
        inner = os.open("raw", _DIRECTORY, dir_fd=outer)
        try:
            for fd in (outer, inner):
                if os.fstat(fd).st_uid != os.geteuid() and os.geteuid() != 0:
                    raise PermissionError(f"{report} belongs to another user")
            yield inner
        finally:
            os.close(inner)
    finally:
        os.close(outer)


def _files(raw: int) -> Iterator[tuple[str, str, int]]:
    """(folder below raw/, file, bytes) of all that may go."""
    device = os.fstat(raw).st_dev
    for place, folders, files, fd in os.fwalk(".", dir_fd=raw, follow_symlinks=False):
        folders[:] = [one for one in folders if _is_inside(one, fd, device)]
        for file in files:
            about = os.stat(file, dir_fd=fd, follow_symlinks=False)
            told = file == "command.json" or (file.endswith(".log") and about.st_size <= _LARGEST_LOG_BYTES)
            if stat.S_ISREG(about.st_mode) and not told and file not in _STAYS:
                yield place, file, about.st_size


def _is_inside(name: str, fd: int, device: int) -> bool:
    about = os.stat(name, dir_fd=fd, follow_symlinks=False)
    return stat.S_ISDIR(about.st_mode) and about.st_dev == device


def _thinned(root: int, reports: Path, found: _Raw, why: str) -> Thinned | None:
    """Deletes the raw files of one report; None where that did not work at all."""
    report = reports / found.report
    try:
        with _raw_of(root, found.report) as raw:
            files = list(_files(raw))
            is_full = not _written_down(raw, why, files)
            gone = [size for place, file, size in files if _deleted(raw, place, file)]
            if is_full:
                _written_down(raw, why, files)
    except OSError:
        return None
    return Thinned(report, len(gone), sum(gone), why) if gone else None


def _written_down(raw: int, why: str, files: list[tuple[str, str, int]]) -> bool:
    """On the disk before anything is deleted; False where there is no room even for that. Raises OSError."""
    listed = [{"path": os.path.normpath(f"{place}/{file}"), "bytes": size} for place, file, size in files]
    line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "why": why, "deleted": listed})
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(_RECORD, flags, 0o600, dir_fd=raw)
    try:
        os.write(fd, line.encode("utf-8", "surrogateescape") + b"\n")
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        return False
    finally:
        os.close(fd)
    return True


def _deleted(raw: int, place: str, file: str) -> bool:
    """One file, reached step by step so that no folder on the way can have become a link."""
    fd = os.dup(raw)
    try:
        for step in Path(place).parts:
            inner = os.open(step, _DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.unlink(file, dir_fd=fd)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
