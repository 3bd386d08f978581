"""Parquet files behind one another without unpacking them: the row groups of all as they are, and one footer for them.

The footer is in Thrift's compact protocol (thrift: doc/specs/thrift-compact-protocol.md), its fields are those of
parquet-format: src/main/thrift/parquet.thrift."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

MAGIC = b"PAR1"
_TAIL_BYTES = 8
"""At a file's end: the length of its footer, and MAGIC."""
_BLOCK_BYTES = 1 << 20

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, _MAP, STRUCT = range(1, 13)
_BOOL = (TRUE, FALSE)

Struct: TypeAlias = "dict[int, tuple[int, Any]]"
"""By number of the field: its type and value. A list's value is the type of its members, and these."""

SCHEMA, ROWS, GROUPS = 2, 3, 4
"""Fields of FileMetaData."""
COLUMNS, GROUP_OFFSET, ORDINAL = 1, 5, 7
"""Of RowGroup."""
CHUNK_OFFSET, CHUNK, CHUNK_INDEXES = 2, 3, (4, 6)
"""Of ColumnChunk: of old, where its own metadata are; these; the indexes of its pages."""
PAGES = (9, 10, 11, 14)
"""Of ColumnMetaData: the offsets of its pages with data, indexes, dictionary, and of its Bloom filter."""
MOST_ORDINALS = 1 << 15


class Unlike(ValueError):
    """A part does not have the columns that the whole is to have."""


@dataclass(frozen=True)
class _Part:
    """A file that is joined: where its row groups end, and its footer."""

    path: Path
    end: int
    about: Struct


def join(parts: Iterable[Path], like: bytes, out: BinaryIO) -> int:
    """Writes the row groups of the parts, in this order, as one file; gives back its number of rows.

    like: a file without rows, that has the columns and metadata of the whole. Raises OSError, ValueError for what is no
    Parquet file, Unlike where a part has other columns."""
    about = decoded(like[_footer_at(like[-_TAIL_BYTES:], len(like)) : -_TAIL_BYTES])
    groups: list[Struct] = []
    at = out.write(MAGIC)
    for part in map(_part, parts):
        if part.about.get(SCHEMA) != about[SCHEMA]:
            raise Unlike(f"{part.path.name} has other columns")
        groups += [_moved(group, at - len(MAGIC)) for group in part.about[GROUPS][1][1]]
        at += _copied(part, out)
    rows = sum(int(group[3][1]) for group in groups)
    for place, group in enumerate(groups):
        group.pop(ORDINAL, None)
        if len(groups) < MOST_ORDINALS:
            group[ORDINAL] = (I16, place)
    footer = encoded({**about, ROWS: (I64, rows), GROUPS: (LIST, (STRUCT, groups))})
    out.write(footer + struct.pack("<I", len(footer)) + MAGIC)
    return rows


def _part(path: Path) -> _Part:
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - _TAIL_BYTES))
        at = _footer_at(file.read(_TAIL_BYTES), size)
        file.seek(at)
        return _Part(path, at, decoded(file.read(size - _TAIL_BYTES - at)))


def _footer_at(tail: bytes, size: int) -> int:
    if len(tail) != _TAIL_BYTES or tail[4:] != MAGIC:
        raise ValueError("no Parquet file")
    at: int = size - _TAIL_BYTES - struct.unpack("<I", tail[:4])[0]
    if at < len(MAGIC):
        raise ValueError("no Parquet file")
    return at


def _copied(part: _Part, out: BinaryIO) -> int:
    """Copies what lies before the footer; gives back how much that is."""
    left = part.end - len(MAGIC)
    with part.path.open("rb") as file:
        file.seek(len(MAGIC))
        while left:
            block = file.read(min(left, _BLOCK_BYTES))
            if not block:
                raise ValueError(f"{part.path.name} has become shorter")
            left -= out.write(block)
    return part.end - len(MAGIC)


def _moved(group: Struct, by: int) -> Struct:
    """A row group whose bytes lie that much further on."""

    def shift(fields: Struct, *numbers: int) -> Struct:
        moved = {n: (fields[n][0], fields[n][1] + by) for n in numbers if n in fields and fields[n][1] > 0}
        return fields | moved

    kind, (of, columns) = group[COLUMNS]
    chunks = [shift(chunk, CHUNK_OFFSET, *CHUNK_INDEXES) for chunk in columns]
    chunks = [chunk | {CHUNK: (STRUCT, shift(chunk[CHUNK][1], *PAGES))} for chunk in chunks]
    return shift(group, GROUP_OFFSET) | {COLUMNS: (kind, (of, chunks))}


# ---------------------------------------------------------------- Thrift's compact protocol


def decoded(data: bytes) -> Struct:
    """A structure. Raises ValueError where the bytes are none."""
    try:
        return _Reader(data).struct()
    except (IndexError, KeyError, struct.error) as error:
        raise ValueError(f"no footer of a Parquet file: {error}") from error


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.known: dict[int, Callable[[], Any]] = {
            BYTE: self.byte, I16: self.zigzag, I32: self.zigzag, I64: self.zigzag, DOUBLE: lambda: self.take(8),
            BINARY: lambda: self.take(self.varint()), LIST: self.list, SET: self.list, STRUCT: self.struct,
        }  # fmt: skip

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while (byte := self.byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def zigzag(self) -> int:
        value = self.varint()
        return value >> 1 ^ -(value & 1)

    def list(self) -> tuple[int, list[Any]]:
        head = self.byte()
        of, size = head & 0x0F, head >> 4
        size = self.varint() if size == 15 else size
        take = self.byte if of in _BOOL else self.known[of]
        return of, [take() for _ in range(size)]

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            kind = head & 0x0F
            fields[number] = (kind, None if kind in _BOOL else self.known[kind]())
        return fields


def encoded(fields: Struct) -> bytes:
    """The bytes of a structure."""
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - last
        out += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + _zigzag(number)
        out += b"" if kind in _BOOL else _value(kind, value)
        last = number
    return bytes(out + b"\0")


def _value(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _zigzag(value)
    if kind in (BYTE, *_BOOL):
        return bytes([value])
    if kind == STRUCT:
        return encoded(value)
    if kind in (LIST, SET):
        return _list(*value)
    return value if kind == DOUBLE else _varint(len(value)) + bytes(value)


def _list(of: int, values: Sequence[Any]) -> bytes:
    size = len(values)
    head = bytes([size << 4 | of]) if size < 15 else bytes([0xF0 | of]) + _varint(size)
    return head + b"".join(_value(of, value) for value in values)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)
