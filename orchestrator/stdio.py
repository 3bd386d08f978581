"""What the target reads and what the user sees of what it writes: stdin for every pass, output passed on from files."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

_BLOCK = 1 << 20
_NEWLINE = ord("\n")
_LOOK_S = 0.1
"""How often a relay that waits for a slow reader looks whether it should give up."""


class Stdin:
    """profrun's stdin, handed to each pass. A terminal or device is passed on as it is, a file is read from where it
    stood; what comes through a pipe is kept while the first pass reads it and replayed to the others."""

    def __init__(self, spool: Path, passes: int) -> None:
        self._spool, self._once = spool, passes <= 1
        self._pipe: int | None = None
        self._pending = b""
        self._served = False
        self.kind, self._offset = _kind_of(0)
        self.lost: str | None = None
        """Why the passes after the first can't be given the same; None while they can."""

    def open(self) -> int:
        """A descriptor for the next pass; the caller closes it after the start."""
        if self.kind == "closed":
            return os.open(os.devnull, os.O_RDONLY)
        if self.kind == "file":
            try:
                fd = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_CLOEXEC)
            except OSError:  # handed over by another user, and not ours to open
                fd = os.dup(0)
            os.lseek(fd, self._offset, os.SEEK_SET)
            return fd
        if self.kind == "device" or self._once:
            return os.dup(0)
        if self._served:
            return os.open(self._spool, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._served = True
        read_end, self._pipe = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._pipe, False)
        return read_end

    def watched(self) -> tuple[list[int], list[int]]:
        """The descriptors that must be readable, and those that must be writable, before `pump` can do anything."""
        if self._pipe is None:
            return [], []
        return ([], [self._pipe]) if self._pending else ([0], [])

    def pump(self) -> None:
        """Moves what came in to the target and to the spool, as far as the target takes it."""
        if self._pipe is None:
            return
        if not self._pending and select.select([0], [], [], 0)[0]:
            self._pending = _read(0)
            if not self._pending:
                self.close()
                return
        if self._pending:
            self._hand_on(self._pipe)

    def _hand_on(self, pipe: int) -> None:
        try:
            written = os.write(pipe, self._pending)
        except BlockingIOError:
            return
        except BrokenPipeError:
            self.close()
            return
        self._keep(self._pending[:written])
        self._pending = self._pending[written:]

    def _keep(self, data: bytes) -> None:
        if self.lost:
            return
        try:
            with self._spool.open("ab") as spool:
                spool.write(data)
        except OSError as error:
            self.lost = f"its stdin could not be kept: {error.strerror}: {self._spool.parent}"

    def close(self) -> None:
        """Ends the first pass's stdin."""
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe, self._pending = None, b""


def _kind_of(fd: int) -> tuple[str, int]:
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISREG(mode):
            return "file", os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        return "closed", 0
    return ("device" if stat.S_ISCHR(mode) else "pipe"), 0


def _read(fd: int) -> bytes:
    """What has come in; a source that can't be read has ended."""
    try:
        return os.read(fd, 1 << 16)
    except OSError:
        return b""


class Lenient:
    """A text stream that drops what nobody takes: a run goes on without the terminal or pipe that it was watched on."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.error: OSError | None = None
        """Why it has dropped something."""

    def write(self, text: str) -> int:
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[..., object], *words: str) -> None:
        try:
            action(*words)
        except OSError as error:
            self.error = self.error or error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Relay:
    """Passes on what is appended to a file. Never blocks on a reader that has stopped reading, nor on a terminal that
    stands still.

    `told` hears before each write to a terminal whether that ends amid a line. A last line that the target left open is
    closed, so that what profrun says next stands on its own."""

    def __init__(self, path: Path, fd: int, told: Callable[[bool], None] | None = None) -> None:
        self._file = path.open("rb", buffering=0)
        self._told = told if os.isatty(fd) else None
        self._fd, self._may_block = _own_end(fd)
        self._pending = memoryview(b"")
        self._amid_line = False
        self._open = True

    def forward(self, *, final: bool = False, give_up: Callable[[], bool] = lambda: False) -> None:
        """Passes on what is new. `final`: to the end, even if the reader is slow, unless `give_up` says not to."""
        while self._open:
            self._pending = self._pending or memoryview(self._file.read(_BLOCK))
            if not self._pending:
                return
            if not self._write():
                if not final or give_up():
                    return
                select.select([], [self._fd], [], _LOOK_S)

    def _write(self) -> bool:
        """Writes what is taken without waiting; False when that is nothing."""
        block = self._pending[: select.PIPE_BUF] if self._may_block else self._pending
        if (self._may_block or self._told) and not select.select([], [self._fd], [], 0)[1]:
            return False
        if self._told:
            self._told(block[-1] != _NEWLINE)
        try:
            written = os.write(self._fd, block)
        except BlockingIOError:
            return False
        except OSError:  # the reader has gone: the target's output stays in its file
            self._open = False
            return True
        self._amid_line = block[written - 1] != _NEWLINE
        self._pending = self._pending[written:]
        return True

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        with contextlib.suppress(OSError):
            self.forward(final=True, give_up=give_up)
            if self._amid_line and not self._pending:
                self._pending = memoryview(b"\n")
                self.forward(final=True, give_up=give_up)
        self._file.close()
        os.close(self._fd)


def _own_end(fd: int) -> tuple[int, bool]:
    """(A descriptor for the same stream, whether a write to it may wait for a reader). Pipes and terminals are opened
    once more, since others share the caller's own, and would find it non-blocking, too."""
    mode = os.fstat(fd).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)):
        return os.dup(fd), False
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), False
    except OSError:  # a socket, or another user's
        return os.dup(fd), True
