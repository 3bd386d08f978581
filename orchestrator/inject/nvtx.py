"""NVTX ranges around the steps and around named functions, for nsys and ncu: through torch where it was built with
CUDA, else through NVIDIA's library where the process can load it."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_LIBRARIES = ("libnvToolsExt.so.1", "libnvToolsExt.so", "libnvtx3interop.so.1")
_FOLDERS = ("nvidia/nvtx/lib", "nvidia/cu13/lib")
"""Where pip puts them, below site-packages."""


class Ranges:
    """`push(text)` begins a range of this thread, `pop()` ends the last one begun."""

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self.push, self.pop = push, pop


def ranges(torch: Any) -> Ranges | None:
    """What pushes and pops ranges; None where nothing here can."""
    if torch is not None and (torch.version.cuda or torch.version.hip):
        return Ranges(torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop)
    import ctypes

    for name in _places():
        try:
            return _of_library(ctypes.CDLL(name))
        except (OSError, AttributeError):
            continue
    return None


def _of_library(library: Any) -> Ranges:
    push = library.nvtxRangePushA
    return Ranges(lambda text: push(text.encode("utf-8", "replace")), library.nvtxRangePop)


def _places() -> Iterator[str]:
    """The names for the loader's own search, then pip's places by their paths."""
    yield from _LIBRARIES
    for place in sys.path:
        for folder in _FOLDERS:
            for name in _LIBRARIES:
                yield f"{place}/{folder}/{name}"
