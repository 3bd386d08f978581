"""Staying out of what torch.compile compiles: there our hooks vanish, and the rest of us it never looks at. It reads
this file, so what is called here is kept to words that it knows."""

from __future__ import annotations

import sys
from functools import partial
from sys import _getframe

from . import diary
from .phases import Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

is_compiling: Callable[[], bool] = bool


def begin(torch: Any) -> None:
    global is_compiling
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", bool)


def hook(then: Callable[[Any], None]) -> Callable[[Any, Any, Any], None]:
    """An optimizer's hook that does nothing where it is compiled."""

    def called(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if not is_compiling():
            then(optimizer)

    return called


class OptimizerPhase(Phase):
    """Stands in for an optimizer's method, and is that method itself where it is compiled."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if is_compiling():
            return partial(self.method, instance)
        return self.given(instance, owner, _getframe(1))


def hide(trace_rules: Any) -> None:
    """Keeps torch.compile from compiling our own functions where they are called from what it has compiled in part."""
    package = __name__.rpartition(".")[0] + "."
    for name in [name for name in sys.modules if name.startswith(package) and name != __name__]:
        try:
            trace_rules.add(name)
        except Exception as error:
            diary.trouble("torch.compile", error)
            return
