"""Functions that the plan names, timed as ranges: in a file of our own, as record_function where torch.profiler is on,
as NVTX ranges under nsys and ncu.

Layout, little endian: a head (`<8sqq`: magic, ranges that have ended, what to add to a start to get ns since the Unix
epoch) of 64 bytes, then 40 bytes a call (`<qqqqq`: index of the name, thread, start, duration, time of the GPU between
CUDA events at its ends or -1; ns)."""

from __future__ import annotations

import _thread
import struct
import sys
import time

from . import diary, imports, nvtx, pending
from .around import Around, _Call, around_function
from .gputimes import GpuTimes
from .mapped import Mapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from functools import partial
    from typing import Any
else:
    from _functools import partial

MAGIC = b"prrange2"
HEAD = struct.Struct("<8sqq")
RECORD = struct.Struct("<qqqqq")
_GPU_OFFSET = 4 * 8
LIMIT = 1 << 18
"""Calls beyond these are not recorded: a function that is called so often is no range."""
_LOOK_S, _LATER_LOOK_S, _SOON_S, _PATIENCE_S = 0.001, 0.05, 5.0, 600.0
"""The script's own functions are looked for so often, and for so long: mostly they are there in its first seconds."""
_GENERATES = 0x20 | 0x80 | 0x200
"""Flags of the code of generators, coroutines and both (inspect.CO_GENERATOR ...)."""


_recorder: _Recorder | None = None


def begin(names: Sequence[str], with_nvtx: bool) -> None:
    """Times the functions of these names as soon as they exist: `train.py:forward`, `model.Block.forward`."""
    global _recorder
    pending.watch(_Call.__del__)
    _recorder = _Recorder(with_nvtx)
    wanted = [_Wanted(index, name, _recorder) for index, name in enumerate(names)]
    for one in wanted:
        one.look_out()
    in_files = [one for one in wanted if one.file]
    if in_files:
        _thread.start_new_thread(_look_into_main, (in_files,))


def finish() -> None:
    """What the GPU has done by now is still told."""
    if _recorder is not None:
        _recorder.gpu.collect()


def forked() -> None:
    """In the child of a fork: another thread of its parent's may have held the lock, and would never give it back."""
    if _recorder is not None:
        _recorder.begin_anew()


def _look_into_main(wanted: list[_Wanted]) -> None:
    """The script itself is imported by nobody: its functions come to be while it runs."""
    began = time.monotonic()
    while wanted:
        try:
            wanted = [one for one in wanted if one.may_be_in_main()]
        except Exception as error:
            diary.trouble("the search for ranges", error)
            return
        spent_s = time.monotonic() - began
        if spent_s > _PATIENCE_S:
            return
        time.sleep(_LOOK_S if spent_s < _SOON_S else _LATER_LOOK_S)


class _Wanted:
    """A function that is waited for."""

    def __init__(self, index: int, name: str, recorder: _Recorder) -> None:
        self.index, self.name, self.found = index, name, False
        self.file, _, self.path = name.rpartition(":")
        self._recorder = recorder

    def look_out(self) -> None:
        if self.file:
            imports.when_file_imported(self.file, self._take_from_file)
            return
        words = self.name.split(".")
        for cut in range(1, len(words)):
            imports.when_imported(".".join(words[:cut]), partial(self._take, ".".join(words[cut:])))

    def may_be_in_main(self) -> bool:
        """Looks for it there. False when no more looks are needed."""
        main = sys.modules.get("__main__")
        file = getattr(main, "__file__", None)
        if file is None:  # not begun yet, or no file at all
            return not self.found
        if not imports.is_file(file, self.file):
            return False
        self._take(self.path, main)
        return not self.found

    def _take_from_file(self, module: Any) -> None:
        self._take(self.path, module)

    def _take(self, path: str, module: Any) -> None:
        """Puts the timer in its place, if the function is there by now."""
        *outer, last = path.split(".")
        owner = module
        for word in outer:
            owner = vars(owner).get(word) if hasattr(owner, "__dict__") else None
        function = vars(owner).get(last) if hasattr(owner, "__dict__") else None
        if function is None or self.found:
            return
        self.found = True
        if self.file:
            imports.forget_file(self._take_from_file)
        code = getattr(getattr(function, "__func__", function), "__code__", None)
        if code is not None and code.co_flags & _GENERATES:
            diary.write("note", text=f"{self.name} is a generator or a coroutine: its calls have no end to be timed")
            return
        where = f"{code.co_filename}:{code.co_firstlineno}" if code else None
        diary.write("range", index=self.index, name=self.name, where=where)
        if isinstance(owner, type):
            setattr(owner, last, Around(function, self._enter))
        else:
            around_function(owner, last, self._enter)

    def _enter(self, _instance: Any) -> Callable[[], None]:
        return self._recorder.enter(self.index, self.name)


class _Recorder:
    def __init__(self, with_nvtx: bool) -> None:
        self._file: Mapped | None = None
        self._stem: str | None = None
        self._count = 0
        self._with_nvtx = with_nvtx
        self._nvtx: nvtx.Ranges | None = None
        self._epoch_offset_ns = time.time_ns() - time.perf_counter_ns()
        self.begin_anew()

    def begin_anew(self) -> None:
        self.gpu, self._lock = GpuTimes(), _thread.allocate_lock()

    def enter(self, index: int, name: str) -> Callable[[], None]:
        """Begins a range; gives what ends it."""
        torch = sys.modules.get("torch")
        record: Any = None
        if torch is not None and hasattr(torch, "autograd") and torch.autograd._profiler_enabled():
            record = torch.autograd.profiler.record_function(name)
            record.__enter__()
        if self._with_nvtx:
            self._nvtx, self._with_nvtx = nvtx.ranges(torch), False
        if self._nvtx:
            self._nvtx.push(name)
        cuda = torch.cuda if torch is not None and hasattr(torch, "cuda") else None
        event = self.gpu.mark(cuda) if cuda is not None else None
        start = time.perf_counter_ns()
        return lambda: self._leave(index, start, record, cuda, event)

    def _leave(self, index: int, start: int, record: Any, cuda: Any, event: Any) -> None:
        duration = time.perf_counter_ns() - start
        if self._nvtx:
            self._nvtx.pop()
        if record is not None:
            record.__exit__(None, None, None)
        if self._count < LIMIT:
            with self._lock:  # any thread may call what is timed
                place = self._keep(index, start, duration)
            if event is not None and place is not None:
                self.gpu.between(event, self.gpu.mark(cuda), partial(self._set_gpu_ns, self._file, place))
            if self._count == LIMIT:
                diary.write("note", text=f"only the first {LIMIT} calls of the plan's ranges were recorded")

    @staticmethod
    def _set_gpu_ns(file: Mapped | None, place: int, duration: int) -> None:
        if file is not None and file.memory is not None:
            struct.pack_into("<q", file.memory, place + _GPU_OFFSET, duration)

    def _keep(self, index: int, start: int, duration: int) -> int | None:
        """Where it was written; None where it could not be."""
        stem = diary.stem()
        if stem != self._stem:  # the first call, or that of a child that was forked off
            self._stem, self._count = stem, 0
            self._file = None if stem is None else Mapped(stem + ".ranges", RECORD.size)
        if self._file is None:
            return None
        at = self._file.place(self._count)
        if self._file.memory is None:
            return None
        RECORD.pack_into(self._file.memory, at, index, _thread.get_native_id(), start, duration, -1)
        self._count += 1
        HEAD.pack_into(self._file.memory, 0, MAGIC, self._count, self._epoch_offset_ns)
        return at
