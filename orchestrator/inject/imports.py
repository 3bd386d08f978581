"""Something right after a module was imported: nothing is imported for it, and the import itself is not touched."""

from __future__ import annotations

import sys

from . import diary, pending
from .around import Around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Then = Callable[[Any], object]

_waiting: dict[str, list[Then]] = {}
_files: list[tuple[str, Then]] = []
"""(end of a file's path, what to call) for modules that are known by their file only."""


class _Finder:
    """Looks on, as the first of sys.meta_path, until the modules that are waited for have come."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _waiting and not _files:
            return None
        for finder in sys.meta_path:
            find = None if finder is _Finder else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if name in _waiting or any(is_file(spec.origin, end) for end, _ in _files):
                    _watch(spec)
                return spec
        return None


def when_imported(name: str, then: Then) -> None:
    """Calls `then(module)` after the module has been executed; at once where that is past."""
    module = sys.modules.get(name)
    if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
        _tell(name, [then], module)
        return
    _waiting.setdefault(name, []).append(then)
    _look_out()


def when_file_imported(end: str, then: Then) -> None:
    """Calls `then(module)` after a module was executed whose file is `end`, or has a path that ends in it."""
    _files.append((end, then))
    _look_out()


def forget_file(then: Then) -> None:
    """What was waited for has come in another way."""
    _files[:] = [(end, other) for end, other in _files if other != then]
    _rest()


def is_file(path: str | None, end: str) -> bool:
    """Whether the path is that file's, in whole parts: `train.py` is not `pretrain.py`."""
    return bool(path) and (f"/{path}").endswith("/" + (end[2:] if end.startswith("./") else end).lstrip("/"))


def _look_out() -> None:
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def _rest() -> None:
    if not _waiting and not _files and _Finder in sys.meta_path:
        sys.meta_path.remove(_Finder)


def _watch(spec: Any) -> None:
    """Gives the loader a class of the same name that tells when the module has been executed, for that one time."""
    loader, kind = spec.loader, type(spec.loader)
    if isinstance(loader, type) or not hasattr(kind, "exec_module"):
        return

    def after() -> None:
        loader.__class__ = kind
        module = sys.modules.get(spec.name)
        callbacks = [then for end, then in _files if is_file(spec.origin, end)]
        _tell(spec.name, [*_waiting.pop(spec.name, ()), *callbacks], module)
        _rest()

    try:
        watched = {"exec_module": Around(kind.exec_module, lambda _loader: after)}
        loader.__class__ = type(kind.__name__, (kind,), watched)
    except TypeError:  # a loader of another make, whose class can't be changed
        diary.write("note", text=f"{spec.name} was imported by a {kind.__name__}: nothing is known of it")


def _tell(name: str, callbacks: list[Then], module: Any) -> None:
    for then in callbacks:
        try:
            then(module)
        except BaseException as error:
            pending.fault("the import of " + name, error)
