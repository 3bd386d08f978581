"""What the target reads and what the user sees of what it writes: stdin for every pass, output passed on from files."""

from __future__ import annotations

import contextlib
import os
import select
import stat
from pathlib import Path

_BLOCK = 1 << 20


class Stdin:
    """profrun's stdin, handed to each pass. A terminal or device is passed on as it is, a file is read from where it
    stood; what comes through a pipe is kept while the first pass reads it and replayed to the others."""

    def __init__(self, spool: Path, passes: int) -> None:
        self._spool, self._once = spool, passes <= 1
        self._pipe: int | None = None
        self._pending = b""
        self._served = False
        self.kind, self._offset = _kind_of(0)

    def open(self) -> int:
        """A descriptor for the next pass; the caller closes it after the start."""
        if self.kind == "closed":
            return os.open(os.devnull, os.O_RDONLY)
        if self.kind == "file":
            fd = os.open("/proc/self/fd/0", os.O_RDONLY | os.O_CLOEXEC)
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

    def fileno(self) -> int | None:
        """The descriptor to watch for `pump`, or None when there is nothing to pump."""
        return 0 if self._pipe is not None and not self._pending else None

    def pump(self) -> None:
        """Moves what came in to the target and to the spool, as far as the target takes it."""
        if self._pipe is None:
            return
        if not self._pending and select.select([0], [], [], 0)[0]:
            self._pending = os.read(0, 1 << 16)
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
        with self._spool.open("ab") as spool:
            spool.write(self._pending[:written])
        self._pending = self._pending[written:]

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


class Relay:
    """Passes on what is appended to a file. Never blocks on a reader that has stopped reading its pipe."""

    def __init__(self, path: Path, fd: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._fd = fd
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode) or stat.S_ISSOCK(os.fstat(fd).st_mode)
        self._open = True

    def forward(self, *, final: bool = False) -> None:
        """Passes on what is new. `final`: to the end, even if the reader is slow."""
        while self._open:
            if self._is_pipe and not final and not select.select([], [self._fd], [], 0)[1]:
                return
            block = self._file.read(select.PIPE_BUF if self._is_pipe and not final else _BLOCK)
            if not block:
                return
            self._write(block)

    def _write(self, block: bytes) -> None:
        view = memoryview(block)
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:  # the reader has gone: the target's output stays in its file
            self._open = False

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.forward(final=True)
        self._file.close()
