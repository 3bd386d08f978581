"""The GPU's own time between two places of the program, by CUDA events that are read when the GPU has passed them:
nothing ever waits for it."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LIMIT = 10_000
"""So many pairs may be on their way to the GPU; what comes beyond goes without its time."""


def may_be_asked(cuda: Any) -> bool:
    """Whether CUDA is in use, and not recording a graph, which anything of ours would spoil."""
    return bool(cuda.is_initialized()) and not cuda.is_current_stream_capturing()


class GpuTimes:
    """Pairs of events whose GPU may still be on its way to them."""

    def __init__(self) -> None:
        self._pending: deque[tuple[Any, Any, Callable[[int], None]]] = deque()

    @staticmethod
    def mark(cuda: Any) -> Any:
        """An event at this place of the current stream; None where there can be none."""
        if not may_be_asked(cuda):
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, began: Any, ended: Any, tell: Callable[[int], None]) -> None:
        """Calls `tell` with the ns between the two once they are known, from one of the next calls of `collect`."""
        if began is not None and ended is not None and len(self._pending) < _LIMIT:
            self._pending.append((began, ended, tell))
        self.collect()

    def collect(self) -> None:
        while self._pending and self._pending[0][1].query():
            began, ended, tell = self._pending.popleft()
            tell(int(began.elapsed_time(ended) * 1e6))
