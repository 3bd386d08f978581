"""Asking profrun for something and waiting until it is done: tools that attach, a window that opens or closes.

The bell is a FIFO that profrun reads; the answer comes through a FIFO of this process. The wait is one system call, so
that a tool which attaches meanwhile sees next to nothing of us."""

from __future__ import annotations

import os

WAIT_S = 20.0
"""A profrun that has died must not stop the program for ever."""

_folder: str | None = None


_rings = 0


def hang_in(folder: str) -> None:
    global _folder
    _folder = folder


def tell(word: str, ring: int = 0) -> bool:
    """Tells profrun and does not wait. False when nobody is there to be told."""
    try:
        bell = os.open(f"{_folder}/bell", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # no reader: the pass is over
        return False
    try:
        os.write(bell, f"{word} {os.getpid()} {ring}\n".encode())
        return True
    except OSError:
        return False
    finally:
        os.close(bell)


def ring(word: str, wait_s: float = WAIT_S) -> bool:
    """Tells profrun and waits for its answer. False when nobody is there to answer, or it took too long."""
    global _rings
    _rings += 1
    reply = f"{_folder}/{os.getpid()}.{_rings}.reply"  # an answer that comes too late is none to the next ring
    answer = -1
    try:
        _remove(reply)  # of a process that had this number before
        os.mkfifo(reply, 0o600)
        answer = os.open(reply, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        return tell(word, _rings) and wait_until_tools_are_ready(answer, wait_s)
    except OSError:
        return False
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
