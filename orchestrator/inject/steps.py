"""The steps of this process, as a log of what begins and ends, in memory that is a file: it is whole after any end,
also that by SIGKILL. Nothing is worked out here: what a step is spent on is found after the run, by the log's reader.

Layout, little endian: a head of 64 bytes (`<8sqq`: magic, what to add to a time to get ns since the Unix epoch, rank or
-1), then words of 8 bytes up to the first that is 0. A word is a time in ns with a code in its lowest CODE_BITS bits:
1 to 7 a phase begins, 8 to 14 it ends, and the codes below, some with more words after them.
"""

from __future__ import annotations

import struct
import sys
from _thread import get_ident, get_native_id
from time import perf_counter_ns, process_time_ns, time_ns

from . import diary
from .mapped import Mapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial
    from typing import Any
else:
    from _functools import partial

MAGIC = b"prsteps2"
HEAD = struct.Struct("<8sqq")
CODE_BITS = 5
PHASES = ("data", "forward", "backward", "optimizer", "zero_grad", "checkpoint", "evaluation")
ENDS = len(PHASES)
"""What to add to the code of a phase's begin to get that of its end."""
TRAIN, INFERENCE = 1, 2
STEP, START, LOSS, DIGEST, GPU, ANEW = range(2 * ENDS + 1, 2 * ENDS + 7)
"""STEP: a step has ended; then CPU ns << 1 (0: not asked for), with the lowest bit set where the step was profiled.
START: here a step begins; then CPU ns << 1. LOSS, DIGEST: of the step that ends next; then the bits of a double, of an
integer. GPU: (step << CODE_BITS); then ns. ANEW: (kind << CODE_BITS): what came before does not count."""
_SHORT_NS = 1_000_000
_SHORT_STEPS = 15
"""Of steps shorter than that, all but each 16th go without the CPU time: to ask for it takes some microseconds."""
_ROOM = 1 << 16
"""Words for which there is room at a time: some thousand steps."""
NEVER = 1 << 62
LIMIT = 1 << 24
"""Words beyond these are not kept: 128 MiB, a million steps or more."""
_OPTIMIZER = PHASES.index("optimizer")
CLAIMS = (1, 2, 2, 3, 1, 1, 2)
"""How much each phase says for its thread being the one whose steps these are: an optimizer's step says most, the next
of a DataLoader, which may be a thread that reads ahead, says least."""


class Steps:
    """Steps as they happen."""

    def __init__(self, path: str | None, rank: int | None) -> None:
        self.begin_anew(path, rank)

    def begin_anew(self, path: str | None, rank: int | None) -> None:
        """As in a process that has just begun."""
        self.count, self.kind = 0, 0
        self.profiled = 0
        self.owner: int | None = None
        """The thread whose steps these are; what others do is left out."""
        self.claim = 0
        self.loading = False
        """Inside a DataLoader's next: what modules do there is part of it."""
        self.wake = NEVER
        self.on_wake: Callable[[], None]
        """This is called at the end of the next step after which as many as `wake` have ended: for windows."""
        self.on_end: Callable[[int], None] | None = None
        self.on_begin: Callable[[int], None] | None = None
        """Called with the number of the step that has ended, and of that which begins, after the window has turned."""
        self.on_record: Callable[[bool], object] = bool
        """Called when torch.profiler begins and ceases to record by steps."""
        self.loss: float | None = None
        self.digest: int | None = None
        self.keep_in(path, rank)

    def keep_in(self, path: str | None, rank: int | None) -> None:
        """Where the log goes; what was logged before is left behind."""
        self._file, self._rank = Mapped(path, 8, _ROOM), -1 if rank is None else rank
        self._words: Any = ()
        self._next = self._asked_ns = 0

    # ------------------------------------------------------------ the log

    def put(self, word: int) -> None:
        at = self._next
        self._next = at + 1
        try:
            self._words[at] = word
        except (IndexError, TypeError):
            self._put_in_more(at, word)

    def put_both(self, word: int, more: int) -> None:
        """Two words that belong together: what another thread, or the handler of a signal, puts does not part them."""
        at = self._next
        self._next = at + 2
        try:
            self._words[at : at + 2] = (word, more)
        except (IndexError, TypeError, ValueError):
            self._put_in_more(at, word)
            self._put_in_more(at + 1, more)

    def _put_in_more(self, at: int, word: int) -> None:
        """Makes room. Where there is none, the log is lost from here on."""
        if at >= LIMIT:
            if at == LIMIT:
                diary.write("note", text=f"the log of steps is full: what came after step {self.count} is not in it")
            self._words = _Nowhere()
            return
        self._file.place(at)
        words = self._file.words()
        if words is None:
            self._words = _Nowhere()
            return
        if at == 0:
            offset_ns = time_ns() - perf_counter_ns()
            HEAD.pack_into(self._file.memory, 0, MAGIC, offset_ns, self._rank)
        self._words = words
        words[at] = word

    # ------------------------------------------------------------ phases

    def begin(self, phase: int, _instance: Any = None) -> Callable[[], None] | None:
        """Enters a phase (its index). Gives what ends it, or None when this is not the thread of the steps."""
        if not self.admits(phase):
            return None
        self.put(perf_counter_ns() << CODE_BITS | phase + 1)
        return partial(self.end, phase)

    def end(self, phase: int) -> None:
        """Leaves it, and all that has begun in it; the reader overlooks what the end of a step has already ended."""
        self.put(perf_counter_ns() << CODE_BITS | phase + 1 + ENDS)

    def admits(self, phase: int) -> bool:
        """Whether this is the thread of the steps, or becomes it."""
        claim = CLAIMS[phase]
        if get_ident() != self.owner:
            if claim <= self.claim and not self._is_orphan(phase):
                return False
            self.owner = get_ident()
            diary.write("stepping", tid=get_native_id())  # as samplers know it
            self._start()
        if claim > self.claim:
            self.claim = claim
        return True

    def _is_orphan(self, phase: int) -> bool:
        """Whether the thread that these steps were of has ended, and this one trains on."""
        return phase == _OPTIMIZER and self.owner not in sys._current_frames()

    def is_mine(self) -> bool:
        """Whether this is the thread of the steps."""
        return get_ident() == self.owner

    def has_seen(self, phase: int) -> bool:
        """Whether this phase has ever begun."""
        mask = (1 << CODE_BITS) - 1
        return any(self._words[at] & mask == phase + 1 for at in range(min(self._next, len(self._words))))

    # ------------------------------------------------------------ ends of steps

    def turn_to(self, kind: int) -> None:
        """Of what kind the steps are from now on. They are counted anew: trained steps take the place of what looked
        like inference, a trial run before the training."""
        self.kind, self.count = kind, 0
        self.put(kind << CODE_BITS | ANEW)

    def tick(self) -> None:
        """A step has ended."""
        now, room = perf_counter_ns(), self._file.room
        cpu = 0 if now - self._asked_ns < _SHORT_NS and self.count & _SHORT_STEPS else process_time_ns()
        self._asked_ns = now
        if self.loss is not None or self.digest is not None:
            self._put_result()
        self.put_both(now << CODE_BITS | STEP, cpu << 1 | (self.profiled > 0))
        self.count = count = self.count + 1
        if self.on_end is not None:
            self.on_end(count - 1)
        if count >= self.wake:
            self.on_wake()
            self._start()  # what was done for the window is no step's time
        elif room != self._file.room:
            self._start()  # nor is it what it took to make room
        if self.on_begin is not None:
            self.on_begin(count)

    def _start(self) -> None:
        self.put_both(perf_counter_ns() << CODE_BITS | START, process_time_ns() << 1)

    def _put_result(self) -> None:
        if self.loss is not None:
            self.put_both(LOSS, struct.unpack("<q", struct.pack("<d", self.loss))[0])
        if self.digest is not None:
            self.put_both(DIGEST, struct.unpack("<q", struct.pack("<Q", self.digest))[0])
        self.loss = self.digest = None

    def set_gpu_ns(self, step: int, duration_ns: int) -> None:
        """What the GPU's own clock says of a step that has ended some time ago."""
        self.put_both(step << CODE_BITS | GPU, duration_ns)


class _Nowhere:
    """Where words go that can't be kept."""

    def __setitem__(self, _at: int | slice, _word: int | tuple[int, int]) -> None:
        pass

    def __len__(self) -> int:
        return 0
