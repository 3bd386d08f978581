"""What the report will know of this process: a line for each event, written at once, so that any end leaves what was.

A line is the `repr` of a dict: no import is needed to write it, and `ast.literal_eval` reads it."""

from __future__ import annotations

import os
import time

from . import bell

TYPE_CHECKING = False  # importing typing would cost the target more than all of this file
if TYPE_CHECKING:
    from typing import Any

_folder: str | None = None
_file: str | None = None
_TROUBLES = 100
"""So many are told; a fault that comes with every step must not fill the disk."""
_troubles = 0


def open_in(folder: str | None = None) -> None:
    """Begins this process's diary, in the folder of the last time if none is given; a process that has replaced its
    program, or was forked, begins another one."""
    global _folder, _file
    _folder, _file = folder or _folder, None
    for serial in range(1000):
        path = f"{_folder}/{bell.pid()}.{serial}.diary"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        except OSError:  # the pass is over, or the disk is full
            return
        _file = path
        return


def forget() -> None:
    """In a child that was forked off: the diary is its parent's."""
    global _file
    _file = None


def stem() -> str | None:
    """The path of this process's files without their ending; None where there is no diary."""
    return None if _file is None else _file[: -len(".diary")]


def write(event: str, **facts: Any) -> None:
    """Adds a line. A full disk, or a folder that has gone with the end of its pass, costs only that line."""
    if _file is None:
        return
    try:
        fd = os.open(_file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:
        return
    try:
        line = repr(dict(facts, event=event, time_ns=time.time_ns())) + "\n"
        os.write(fd, line.encode("utf-8", "backslashreplace"))
    except OSError:
        pass
    finally:
        os.close(fd)


def trouble(where: Any, error: BaseException) -> None:
    """A fault of our own: told in the report, never to the program. `where` is a text or a function; may be called
    anywhere, also when the interpreter is half gone."""
    global _troubles
    try:
        _troubles += 1
        if _troubles <= _TROUBLES:
            name = where if isinstance(where, str) else getattr(where, "__name__", "a call")
            write("trouble", where=name, error=f"{type(error).__name__}: {error}")
    except Exception:
        pass
