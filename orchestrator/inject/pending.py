"""Something done by the main thread as soon as it is between two instructions: torch.profiler records the thread that
has started it, and what the handler of a signal raises belongs to the program."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import sys
import time

from . import diary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_kept: list[Any] = []
"""What C code will call must not be freed."""
_LATER_S = 0.001
_again: list[type] = []
"""The classes of exceptions that are raised a second time."""


def in_main_thread(function: Callable[[], object]) -> None:
    """Called from any thread. A long call into C delays it."""
    import ctypes

    def call(_argument: Any) -> int:
        try:
            function()
        except BaseException as error:
            fault(function, error)
        return 0

    pointer = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(call)
    _kept.append(pointer)
    ctypes.pythonapi.Py_AddPendingCall(pointer, None)


def fault(where: Any, error: BaseException) -> None:
    """Something was raised in our part where nothing may come out of it: our own fault is told in the report, what was
    meant for the program is raised there a moment later."""
    if is_the_programs(error):
        _raise_later(error)
    else:
        diary.trouble(where, error)


_codes: set[Any] = set()


def watch(finalizer: Any) -> None:
    """What the handler of a signal raises before the first line of a `__del__` of ours, none of its `try` can catch:
    Python would print it as ignored."""
    if not _codes:
        before = sys.unraisablehook

        def hook(ignored: Any) -> None:
            if getattr(ignored.object, "__code__", None) in _codes and ignored.exc_value is not None:
                _raise_later(ignored.exc_value)
            else:
                before(ignored)

        sys.unraisablehook = hook
    _codes.add(finalizer.__code__)


def _raise_later(error: BaseException) -> None:
    _thread.start_new_thread(_raise_in, (_thread.get_ident(), error))


def is_the_programs(error: BaseException) -> bool:
    """Whether it comes from the handler of a signal, which Python calls wherever the main thread is just then."""
    if not isinstance(error, Exception) or type(error) in _again:
        return True
    handlers = [_signal.getsignal(number) for number in range(1, _signal.NSIG)]
    plain = [getattr(handler, "__func__", handler) for handler in handlers]
    codes = [getattr(handler, "__code__", getattr(type(handler).__call__, "__code__", None)) for handler in plain]
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _raise_in(thread: int, error: BaseException) -> None:
    import ctypes

    time.sleep(_LATER_S)
    if type(error) is KeyboardInterrupt:
        os.kill(os.getpid(), _signal.SIGINT)
        return
    kind = again = type(error)
    if kind not in _again:  # only a class can be raised like this: one that knows what this one was told
        names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        names["__init__"] = lambda self, *_: kind.__init__(self, *error.args)
        again = type(kind.__name__, (kind,), names)
        _again.append(again)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(again))
