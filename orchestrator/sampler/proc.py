"""Reading /proc: small files, of processes that may end at any moment."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable


def read(path: str) -> str:
    """A file of /proc; empty when there is none, or it is not ours to read."""
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def names(path: str) -> list[str]:
    """What is in a folder; nothing when it is not there."""
    try:
        return os.listdir(path)  # noqa: PTH208
    except OSError:
        return []


def numbers(text: str, wanted: Iterable[str], separator: str | None = None) -> list[int | None]:
    """The numbers behind the wanted words, of a file of lines that begin with a word and a number."""
    rest = dict(line.split(separator, 1) for line in text.splitlines() if line)
    return [int(rest[word].split(None, 1)[0]) if word in rest else None for word in wanted]


def cpu_ns(pid: int) -> int | None:
    """CPU time of all threads of a process, also of those that have ended; None when it is gone.

    The clock of clock_getcpuclockid(3): right to the ns, where /proc/PID/stat has hundredths of a second."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return None
