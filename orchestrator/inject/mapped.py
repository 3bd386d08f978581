"""A file of records of one size, written through memory: it is whole after any end of the process, also by SIGKILL."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD_BYTES = 64
_ROOM = 1 << 12
"""Records for which the file is made larger at a time."""
_PAGE_BYTES = 4096


class Mapped:
    """A head of HEAD_BYTES, then records. `memory` is None where the file can't be written: then nothing is kept."""

    def __init__(self, path: str | None, record_bytes: int, more: int = _ROOM) -> None:
        """`more`: the number of records by which it grows."""
        self.path, self.room, self._more = path, 0, more
        self.memory: Any = None
        self._record_bytes = record_bytes

    def place(self, index: int) -> int:
        """The offset of a record. The file grows for it, one larger than the last at a time."""
        if index >= self.room:
            self._grow()
        return HEAD_BYTES + index * self._record_bytes

    def words(self) -> Any:
        """The records as an array of integers of 8 bytes; None where the file can't be written."""
        import ctypes

        if self.memory is None:
            return None
        return (ctypes.c_longlong * self.room).from_buffer(self.memory, HEAD_BYTES)

    def _grow(self) -> None:
        old, self.memory = self.memory, None
        self.room += self._more
        size = HEAD_BYTES + self.room * self._record_bytes
        if self.path is None:
            return
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            os.posix_fallocate(fd, 0, size)  # without room on the disk a write through memory would end the process
            self.memory = _map(fd, size, old)
        except OSError:
            pass
        finally:
            os.close(fd)


def _map(fd: int, size: int, old: Any) -> Any:
    """The file as an array of bytes in place of its old, smaller one. Module mmap would hold a descriptor, whose number
    the program may give to somebody else (daemons close all they find); ctypes is there, as torch needs it."""
    import ctypes

    read_write, shared = 3, 1
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = library.mmap(None, size, read_write, shared, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "mmap")
    begin = 0
    if old is not None:
        begin = ctypes.sizeof(old)
        library.munmap(ctypes.c_void_p(ctypes.addressof(old)), ctypes.c_size_t(begin))
    memory = (ctypes.c_char * size).from_address(address)
    for place in range(begin, size, _PAGE_BYTES):  # now, all at once, and not each in some step
        memory[place] = b"\0"
    return memory
