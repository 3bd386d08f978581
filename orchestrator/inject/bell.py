"""Asking profrun for something and waiting until it is done: tools that attach, a window that opens or closes.

The bell is a FIFO that profrun reads; the answer comes through a FIFO of this process. The wait is one system call, so
that a tool which attaches meanwhile sees next to nothing of us.

Who rings says its pid as profrun knows it. In a container with pids of its own that is another number than here, and
profrun is asked for it first."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S = 20.0
"""A profrun that has died must not stop the program for ever."""

_folder: str | None = None
_home: int | None = None
"""The namespace of profrun's pids; None where nobody has told."""
_rings = 0
_pids: dict[int, int] = {}
"""This process's pid, and what it is for profrun."""


def hang_in(folder: str, home: int | None = None) -> None:
    global _folder, _home
    _folder, _home = folder, home
    _pids.clear()


def pid() -> int:
    """Of this process, for profrun; what it is here where profrun does not know it."""
    own = os.getpid()
    if own not in _pids:
        _pids.clear()  # in a child that was forked off they are its parent's
        _pids[own] = (is_abroad() and _ask_for_pid(own)) or own
    return _pids[own]


def is_abroad() -> bool:
    """Whether pids are counted here otherwise than where profrun is."""
    return _home is not None and _namespace() not in (None, _home)


def _namespace() -> int | None:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return None


def tell(word: str, ring: int = 0) -> bool:
    """Tells profrun and does not wait. False when nobody is there to be told."""
    return _say(f"{word} {pid()} {ring}\n")


def _say(line: str) -> bool:
    try:
        bell = os.open(f"{_folder}/bell", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no reader: the pass is over
        return False
    try:
        os.write(bell, line.encode())
        return True
    except OSError:
        return False
    finally:
        os.close(bell)


def ring(word: str, wait_s: float = WAIT_S) -> bool:
    """Tells profrun and waits for its answer. False when nobody is there to answer, or it took too long."""
    return bool(_ring(word, str(pid()), lambda answer: wait_until_tools_are_ready(answer, wait_s)))


def _ask_for_pid(own: int) -> int | None:
    def read(answer: int) -> int:
        return int(os.read(answer, 64) or 0) if wait_until_tools_are_ready(answer, WAIT_S) else 0

    try:
        return _ring("who", f"{own}-{_namespace()}", read) or None
    except ValueError:
        return None


def _ring(word: str, who: str, wait: Callable[[int], int]) -> int:
    """What `wait` makes of the FIFO for the answer; 0 when nobody is there to give one."""
    global _rings
    _rings += 1
    reply = f"{_folder}/{who}.{_rings}.reply"  # an answer that comes too late is none to the next ring
    answer = -1
    try:
        _remove(reply)  # of a process that had this number before
        os.mkfifo(reply, 0o600)
        answer = os.open(reply, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return wait(answer) if _say(f"{word} {who} {_rings}\n") else 0
    except OSError:
        return 0
    finally:
        if answer >= 0:
            os.close(answer)
            _remove(reply)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def wait_until_tools_are_ready(answer: int, wait_s: float) -> bool:
    """Its name is what a sampling profiler shows for this time, and by which the report leaves it out."""
    import select

    poll = select.poll()  # unlike select it takes descriptors of any number
    poll.register(answer, select.POLLIN)
    return bool(poll.poll(wait_s * 1000))
