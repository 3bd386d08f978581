"""Sorted directory listings: os.listdir, os.scandir and what is built on them (walk, glob, pathlib) go by name.

The order of a directory is the file system's own: two copies of one data set give two orders, and so two trainings.
Sorting has a price: a listing is read whole before its first entry is handed out, which a directory of many millions
of files feels in time and memory. Everything else, errors and descriptors included, stays as it was; a traceback that
comes out of a listing has one line more.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # importing typing would cost the target more than all of this file
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_KEEPERS = ("pathlib", "glob")
"""Standard modules in which some version keeps `os.scandir` or `os.listdir` as a class attribute from its import on."""


class Sorted:
    """Stands in for `os.listdir` or `os.scandir`. An object and no function: pathlib up to 3.10 keeps it as a class
    attribute, where a function would turn into a method and get one argument too many."""

    def __init__(self, original: Any, in_order: Callable[[Any], Any]) -> None:
        self.__wrapped__ = original
        self.__name__: str = original.__name__
        self.__qualname__ = self.__name__
        self.__doc__ = original.__doc__
        self.__module__ = "os"
        self._in_order = in_order

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._in_order(self.__wrapped__(*args, **kwargs))

    def __reduce__(self) -> str:
        """Pickled by its name, as a function is."""
        return self.__name__

    def __repr__(self) -> str:
        return f"<os.{self.__name__}, sorted>"


class Entries:
    """What `os.scandir` gives: an iterator that can be closed. It reads nothing before it is asked for an entry, so
    that an error comes where it always came."""

    __slots__ = ("_entries", "_scan")

    def __init__(self, scan: Any) -> None:
        self._scan = scan
        self._entries: Iterator[Any] | None = None

    def __iter__(self) -> Entries:
        return self

    def __next__(self) -> Any:
        if self._entries is None:
            self._entries = iter(sorted(self._scan, key=_name))
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())
        self._scan.close()


def _name(entry: Any) -> Any:
    return entry.name


def install() -> None:
    """Puts sorted listings in force, also where a module that is loaded already keeps the unsorted ones. The import
    system goes on using its own, unsorted."""
    orders: tuple[tuple[str, Callable[[Any], Any]], ...] = (("listdir", sorted), ("scandir", Entries))
    for name, in_order in orders:
        original = getattr(os, name)
        replacement = Sorted(original, in_order)
        if original in os.supports_fd:
            os.supports_fd.add(replacement)  # asked by shutil.rmtree, which is safe against races only then
        setattr(os, name, replacement)
        _replace_kept(original, replacement)


def _replace_kept(original: Any, replacement: Sorted) -> None:
    classes = [
        cls for module in _KEEPERS for cls in vars(sys.modules.get(module, object)).values() if isinstance(cls, type)
    ]
    for cls in classes:
        for name, kept in list(vars(cls).items()):
            if getattr(kept, "__func__", kept) is original:
                setattr(cls, name, replacement)


def in_force() -> bool:
    return isinstance(os.listdir, Sorted) and isinstance(os.scandir, Sorted)
