"""Something before and after a call, without a frame of ours on the stack: a program's tracebacks stay as they were.

What stands in for a function gives out each of its calls as an object of its own, right before Python makes it; CPython
frees that object the moment the call has returned or raised, and so says when it is over."""

from __future__ import annotations

import sys
from sys import _getframe

from . import diary, pending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from functools import partial
    from typing import Any

    After = Callable[[], object]
    Before = Callable[[Any], "After | None"]
else:
    from _functools import partial  # functools itself would load much else


# ---------------------------------------------------------------- telling a call from a look

BIT = sys.version_info >= (3, 12)
"""From 3.12 on the lowest bit of a look-up tells that a call comes next."""
LOOKS: set[Any] = set()
CALLS: set[Any] = set()
"""The instructions, with that bit, that look an attribute up to keep it (`f = model.__call__`), or to call it."""


def learn(opmap: dict[str, int]) -> None:
    """Called with the names of the interpreter's instructions, before anything is put into a class."""
    for name in ("LOAD_ATTR", "LOAD_SUPER_ATTR"):
        if name in opmap:
            LOOKS.add(opmap[name] << 1)
            CALLS.add(opmap[name] << 1 | 1)
    if "LOAD_METHOD" in opmap and not BIT:
        CALLS.add(opmap["LOAD_METHOD"] << 1)
    pending.watch(_Call.__del__)


def _at(frame: Any) -> int:
    """The instruction that this frame is at."""
    code: bytes = frame.f_code.co_code
    place: int = frame.f_lasti
    return code[place] << 1 | (code[place + 1] & 1 if BIT else 0)


# ---------------------------------------------------------------- calls


class _Call(partial):  # type: ignore[type-arg]
    """A call that says when it is over."""

    __slots__ = ("after",)
    after: After

    def __del__(self) -> None:
        try:
            self.after()
        except BaseException as error:
            pending.fault(self.func, error)


def _call(bound: Any, before: Before, instance: Any) -> Any:
    """What Python is to call: the method itself, or a call that says when it is over."""
    try:
        after = before(instance)
    except Exception as error:
        if pending.is_the_programs(error):
            raise
        diary.trouble(bound, error)
        return bound
    if after is None:
        return bound
    call = _Call(bound)
    call.after = after
    return call


class AroundSpecial:
    """Stands in a class for a method that Python itself looks up when it calls it: `__call__`, `__next__`.
    `before(instance)` gives what to call when it is over, or None."""

    def __init__(self, method: Any, before: Before) -> None:
        self.method, self.before = method, before

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = self.method.__get__(instance, owner)
        if instance is None or _at(_getframe(1)) in LOOKS:
            return bound
        return _call(bound, self.before, instance)


class Around:
    """Stands in a class for any other method, also a static or a class method."""

    def __init__(self, method: Any, before: Before) -> None:
        self.method, self.before = method, before

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        bound = self.method.__get__(instance, owner)
        if instance is None and not isinstance(self.method, (classmethod, staticmethod)):
            return bound
        return self.watch(bound, instance, _getframe(1))

    def watch(self, bound: Any, instance: Any, caller: Any) -> Any:
        """What that frame is given: the call itself where it calls at once."""
        if _at(caller) in CALLS:
            return _call(bound, self.before, instance)
        return _Watched(bound, self.before, instance)


class _Begin:
    """Gives `_Watched` its calls."""

    def __get__(self, watched: Any, _owner: Any) -> Any:
        return _call(watched.__wrapped__, watched._before, watched._instance) if watched is not None else self


class _Watched:
    """Stands in for a function or a bound method, and begins when it is called: it may be kept, and called often."""

    def __init__(self, function: Any, before: Before, instance: Any) -> None:
        self.__wrapped__, self._before, self._instance = function, before, instance

    __call__ = _Begin()
    __doc__ = property(lambda self: self.__wrapped__.__doc__)
    __module__ = property(lambda self: self.__wrapped__.__module__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # a copy in the making
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __reduce__(self) -> Any:
        """Pickled and copied as the function is."""
        function = self.__wrapped__
        return function.__reduce__() if hasattr(function, "__self__") else function.__qualname__

    def __eq__(self, other: object) -> bool:
        return bool(self.__wrapped__ == getattr(other, "__wrapped__", other))

    def __hash__(self) -> int:
        return hash(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A function that is put into a class becomes a method."""
        return self if instance is None else _Watched(self.__wrapped__.__get__(instance, owner), self._before, instance)


def around_method(owner: Any, name: str, before: Before, kind: type[Around] = Around) -> None:
    """Puts an `Around` into the class that has the method. Raises AttributeError where none has."""
    home = next((kind for kind in owner.__mro__ if name in kind.__dict__), None)
    if home is None:
        raise AttributeError(f"{owner.__name__} has no {name}")
    setattr(home, name, kind(home.__dict__[name], before))


def around_special(owner: Any, name: str, before: Before) -> None:
    setattr(owner, name, AroundSpecial(owner.__dict__[name], before))


def around_function(module: Any, name: str, before: Before) -> None:
    """Replaces a function in this module, and in that where it was defined; `before` gets None."""
    function = getattr(module, name)
    watched = _Watched(function, before, None)
    for place in (module, sys.modules.get(function.__module__)):
        if getattr(place, name, None) is function:
            setattr(place, name, watched)
