"""Methods whose calls are a phase of a step, at a cost that a step can bear: two words in the log for each call."""

from __future__ import annotations

from _thread import get_ident
from sys import _getframe
from time import perf_counter_ns

from . import pending
from .around import BIT, CALLS, Around, AroundSpecial
from .steps import CLAIMS, CODE_BITS, ENDS, Steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from functools import partial
    from typing import Any

    from .around import Before
else:
    from _functools import partial


def calls_of(steps: Steps, phase: int) -> type[partial[Any]]:
    """A class of calls that end the phase when they are over."""
    put, now, code = steps.put, perf_counter_ns, phase + 1 + ENDS

    class Call(partial):  # type: ignore[type-arg]
        __slots__ = ()

        def __del__(self) -> None:
            try:
                put(now() << CODE_BITS | code)
            except BaseException as error:  # perhaps the program's own: the handler of a signal that came just now
                pending.fault(self.func, error)

    pending.watch(Call.__del__)
    return Call


class Phase(Around):
    """An `Around` for a phase. The thread of the steps takes the short way."""

    def __init__(self, method: Any, steps: Steps, phase: int) -> None:
        super().__init__(method, partial(steps.begin, phase))
        self._steps, self._code, self._claim = steps, phase + 1, CLAIMS[phase]
        self._call = calls_of(steps, phase)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.given(instance, owner, _getframe(1))

    def given(self, instance: Any, owner: Any, caller: Any) -> Any:
        """What that frame is given."""
        if instance is None:
            return self.method.__get__(None, owner)
        steps = self._steps
        at, code = caller.f_lasti, caller.f_code.co_code
        calls = (code[at] << 1 | (code[at + 1] & 1 if BIT else 0)) in CALLS
        if calls and get_ident() == steps.owner and steps.claim >= self._claim:
            call = self._call(self.method, instance)
            steps.put(perf_counter_ns() << CODE_BITS | self._code)
            return call
        return self.watch(self.method.__get__(instance, owner), instance, caller)


class Loading(AroundSpecial):
    """The same for a DataLoader's next, which Python looks up by itself."""

    def __init__(self, method: Any, steps: Steps, phase: int, before: Before) -> None:
        """`before` is what the long way asks."""
        super().__init__(method, before)
        self._steps, self._code, self._claim = steps, phase + 1, CLAIMS[phase]

        class Call(calls_of(steps, phase)):  # type: ignore[misc]
            __slots__ = ()

            def __del__(self) -> None:
                steps.loading = False
                super().__del__()

        pending.watch(Call.__del__)
        self._call = Call

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        steps = self._steps
        if get_ident() == steps.owner and steps.claim >= self._claim and instance is not None:
            call = self._call(self.method, instance)  # first: if anything is raised from here on, it ends what is begun
            steps.loading = True
            steps.put(perf_counter_ns() << CODE_BITS | self._code)
            return call
        return AroundSpecial.__get__(self, instance, owner)


def stand_in(owner: Any, name: str, kind: Any, *more: Any) -> None:
    """Puts an object of that kind into the class in place of its method."""
    setattr(owner, name, kind(owner.__dict__[name], *more))
