"""The signals that profrun itself gets while a target runs: noted and passed on by the pass, never lost."""

from __future__ import annotations

import contextlib
import os
import signal
from types import FrameType
from typing import Any

_WATCHED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context in which INT, TERM and HUP are noted. While `passing` they reach the target; else the second one ends
    profrun.

    A signal that was ignored at the start (nohup) stays ignored."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._before: dict[int, Any] = {}
        self.passing = False

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in _WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)
        with contextlib.suppress(OSError):
            os.write(self._write, b"!")
        if not self.passing and len(self._received) > 1:
            raise KeyboardInterrupt

    def fileno(self) -> int:
        """Readable when a signal has come in since `received` was last asked."""
        return self._read

    @property
    def received(self) -> tuple[int, ...]:
        """All signals so far, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 512)
        return tuple(self._received)
