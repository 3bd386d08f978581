"""Waiting for what a test is about, and telling its programs from others: right on a machine however slow and busy."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Answer = TypeVar("Answer")

LIMIT_S = 120.0
"""Whoever waits longer waits in vain. It says only that something does not hang, never how quick it is."""


def until(condition: Callable[[], Answer]) -> Answer:
    """Asks again and again until the answer is yes, and gives that answer."""
    give_up_s = time.monotonic() + LIMIT_S
    while not (answer := condition()):
        assert time.monotonic() < give_up_s, "waited in vain"
        time.sleep(0.01)
    return answer


def unmistakable(seconds: int) -> str:
    """A duration for `sleep` that nobody else on this machine uses, not even these tests in another checkout."""
    return f"{seconds}.{os.getpid():07}"


def processes(*patterns: str | Path) -> list[int]:
    """The living processes in whose command lines all of these are found; a path is taken as it is."""
    wanted = [re.escape(str(p)) if isinstance(p, Path) else p for p in patterns]
    return [pid for pid, line in _command_lines() if line and all(re.search(p, line) for p in wanted)]


def _command_lines() -> list[tuple[int, str]]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if folder.name != str(os.getpid()):
            found.append((int(folder.name), line))
    return found


def kill(*patterns: str | Path) -> None:
    """Ends what is left of these."""
    for pid in processes(*patterns):
        os.kill(pid, signal.SIGKILL)


def cpu_s(pid: int) -> float:
    """The CPU time that a process has used. Where it grows, the process runs."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def state(pid: int) -> str:
    """The kernel's letter for it: R, S, T, Z ...; X when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"
