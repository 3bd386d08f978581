"""The signals that profrun itself gets: noted, and looked at by whoever runs then; never lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_FOR_TARGET = (signal.SIGUSR1, signal.SIGUSR2)
"""What schedulers send before time is over, for the program to save its state; profrun itself would die of them."""
TWINS_S = 0.1
"""Signals so close together are one wish: a closing terminal, `timeout` and service managers send two at once."""


class Patience:
    """Of whoever waits for something that should come to its end: with the first signal from now on `say` is called,
    with the second it is over."""

    def __init__(self, signals: Signals, say: Callable[[], None]) -> None:
        self._signals, self._say, self._before = signals, say, len(signals.received)
        self._said = False

    def is_over(self) -> bool:
        count = len(self._signals.received) - self._before
        if count > 0 and not self._said:
            self._said = True
            self._say()
        return count > 1


class Signals:
    """A context in which INT, TERM, HUP and QUIT are noted. While `held`, that is all: who runs looks at `received` and
    does what they ask for. Else the second one raises KeyboardInterrupt, with its number.

    A signal that was ignored at the start (nohup) stays ignored."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._for_target: list[int] = []
        self._last = float("-inf")
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()
        self.held = False
        self.at_first: Callable[[], None] = lambda: None
        """Called with the first one that comes while nobody holds them: what it does to what is going on."""

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (*_WATCHED, *_FOR_TARGET):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a child of ours just before its exec: nothing of this is its business
            return
        if number in _FOR_TARGET:
            self._for_target.append(number)
            return
        now, last = time.monotonic(), self._last
        self._last = now
        if now - last < TWINS_S:
            return
        self._received.append(number)
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")
        if not self.held and len(self._received) == 1:
            with contextlib.suppress(RuntimeError):  # amid another line on the same stream
                self.at_first()
        if not self.held and len(self._received) > 1:
            raise KeyboardInterrupt(number)

    def fileno(self) -> int:
        """Readable when a signal has come in since `received` was last asked."""
        return self._read

    def for_target(self) -> list[int]:
        """Those since the last call that are meant for the program, not for profrun."""
        taken, self._for_target = self._for_target, []
        return taken

    @property
    def received(self) -> tuple[int, ...]:
        """All signals so far, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 512)
        return tuple(self._received)
