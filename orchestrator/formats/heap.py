"""Keeps freed memory for the next array, while millions of rows are worked on.

glibc gives each large array back to the kernel when it is freed, and gets it anew for the next, cleared page by page:
at ten million rows a third of the time (mallopt(3): M_MMAP_MAX, M_TRIM_THRESHOLD, M_ARENA_MAX). And numpy asks for huge
pages, of which a kernel clears two megabytes where one byte is used."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

try:
    from numpy._core import multiarray as _multiarray
except ImportError:  # numpy before 2
    from numpy.core import multiarray as _multiarray  # type: ignore[no-redef]

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
TRIM_DEFAULT_BYTES, MMAP_DEFAULT = 128 << 10, 65536
NEVER = 2**31 - 1


@contextmanager
def kept() -> Iterator[None]:
    """Inside, freed memory stays with the process; behind it, what is free is given back. Changes nothing where the C
    library is not glibc. The limit of one arena is not taken back."""
    library = ctypes.CDLL(None)
    mallopt, trim = (getattr(library, name, None) for name in ("mallopt", "malloc_trim"))
    if mallopt is None or trim is None:
        yield
        return
    for option, value in ((M_ARENA_MAX, 1), (M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, NEVER)):
        mallopt(option, value)
    huge = getattr(_multiarray, "_set_madvise_hugepage", lambda _: True)
    before = huge(False)
    try:
        yield
    finally:
        huge(before)
        mallopt(M_MMAP_MAX, MMAP_DEFAULT)
        mallopt(M_TRIM_THRESHOLD, TRIM_DEFAULT_BYTES)
        trim(0)
