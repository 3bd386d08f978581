"""Reads pickles that hold nothing but plain data: a pickle can hold any program, and is refused where it does."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.errors import ParseError

_PLAIN = (
    pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE,
    pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT,
    pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8,
    pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT,
    pickle.EMPTY_TUPLE, pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3,
    pickle.MEMOIZE, pickle.BINPUT, pickle.LONG_BINPUT, pickle.BINGET, pickle.LONG_BINGET,
)  # fmt: skip
"""The opcodes of numbers, texts, lists, dicts and tuples. No class is looked up, and nothing is called."""


class _Reader(pickle._Unpickler):
    """The unpickler in Python, whose memo is as large as it is full; KeyError for any opcode that is not plain."""

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self.add((key, value))

    def set_items(self) -> None:
        self.add(self.pop_mark())  # type: ignore[attr-defined]

    def add(self, items: Any) -> None:
        """Keys are texts or numbers: to hash a tuple that is nested without end would end the process."""
        if not all(isinstance(key, (str, int)) for key in items[::2]):
            raise TypeError("a key is neither text nor a number")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))  # type: ignore[attr-defined]

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in _PLAIN},
        pickle.SETITEM[0]: set_item,
        pickle.SETITEMS[0]: set_items,
    }


def read(path: Path, most_bytes: int, smaller: str) -> Any:
    """The lists, dicts, texts and numbers of a pickle. Raises ParseError for every other file; `smaller` is how to get
    one that is not too large."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes <= most_bytes:
            return _Reader(BytesIO(path.read_bytes())).load()
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    except KeyError as error:
        raise ParseError(
            f"{path.name} holds more than plain data, and is not opened: it could run a program"
        ) from error
    except Exception as error:  # whatever a damaged pickle makes of the stack machine
        raise ParseError(f"{path.name} is a damaged pickle: {type(error).__name__}: {error}") from error
    raise ParseError(f"{path.name} is larger than {most_bytes >> 20} MiB: {smaller}")
