"""Reads columns of whole numbers straight from the pages of an SQLite file, many rows at a time; SQLite gives them one
by one.

The file format is described at https://www.sqlite.org/fileformat2.html. A table is a b-tree of pages; a row is a cell
of a leaf: length of the payload, rowid, header length, one serial type a column, the values. Types and lengths are
taken for all rows of some hundred pages at once. What this reader does not know is a Surprise, and SQL has to be asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import MISSING, Ints

Bytes: TypeAlias = NDArray[np.uint8]
Codes: TypeAlias = NDArray[np.int32]
Part = TypeVar("Part")

MAGIC = b"SQLite format 3\0"
INTERIOR, LEAF = 5, 13
BLOCK_BYTES = 2 << 20
"""Pages that are decoded together: enough to make numpy worth it, little enough to stay in the processor's cache."""
SPARE_BYTES = 4096
"""Behind a block, so that eight bytes can be read at its last value."""
MOST_THREADS = 4
DEEPEST = 20
MANY = 4096
"""From so many keys on they are hashed by Arrow; for fewer its import would take longer than sorting them."""
MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without a pattern, for mixing many values into one."""

NULL, EIGHT_BYTES, ZERO, ONE = 0, 6, 8, 9
"""Serial types: 1 to 6 are numbers of one to eight bytes, zero and one have none at all."""
LENGTH = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, 128))], np.uint8)
"""Bytes of a value, by its serial type; a type from 128 on takes more than one byte itself."""
SHIFT = np.array([0, 56, 48, 40, 32, 16, 0, *[0] * 121], np.uint8)
"""Eight bytes are read for a number of one to eight: those behind it are shifted out."""
KEPT = np.array([0, -1, -1, -1, -1, -1, -1, *[0] * 121])
CONSTANT = np.array([MISSING, *[0] * 8, 1, *[0] * 118])
"""What remains of those eight bytes, and what stands for a type without bytes."""


class Surprise(Exception):
    """Something in the file that this reader leaves to SQLite."""


@dataclass(frozen=True)
class Leaves:
    """The leaves of a table in the order of their rows, and the last rowid of each (0 for the very last: unknown)."""

    pages: Ints
    last_rowids: Ints


@dataclass(frozen=True)
class Pages:
    """An open SQLite file, read page by page; nothing is locked and nothing written."""

    fd: int
    size: int
    usable: int
    count: int

    def leaves(self, root: int, damaged: bool = False) -> Leaves:
        """The leaves below a table's root page. In a damaged file those that can't be reached are left out."""
        pages, keys = np.array([root], np.int64), np.zeros(1, np.int64)
        if damaged:
            return self._reachable(pages, keys)
        for _ in range(DEEPEST):
            # all pages of a level are of one kind: to look at each here would be to read the whole table twice
            if self.load(pages[:1])[0, 0] == LEAF:
                return Leaves(pages, keys)
            data = self.load(pages)
            if not (data[:, 0] == INTERIOR).all():
                raise Surprise("a page of another kind than its neighbours")
            pages, keys = self._children(data, keys)
        raise Surprise("a tree that does not end")

    def _reachable(self, pages: Ints, keys: Ints) -> Leaves:
        """The leaves of a tree with holes, in order: a page that is missing or of no known kind counts as a leaf."""
        found: list[tuple[int, int]] = []
        todo = list(zip(pages.tolist(), keys.tolist(), strict=True))
        seen: set[int] = set()
        while todo:
            page, key = todo.pop()
            if page in seen:
                continue
            seen.add(page)
            kind = self.load(np.array([page]))[0] if 0 < page <= self.count else None
            try:
                if kind is None or kind[0] != INTERIOR:
                    raise Surprise
                below, last = self._children(kind[None, :], np.array([key]))
                todo += list(zip(below.tolist(), last.tolist(), strict=True))[::-1]
            except Surprise:
                found.append((page, key))
        return Leaves(*(np.array(column, np.int64) for column in zip(*found, strict=True)))

    def _children(self, data: Bytes, keys: Ints) -> tuple[Ints, Ints]:
        """The pages below some interior pages, in order, and the largest rowid of each."""
        count = _two(data, 3)
        width = int(count.max())
        if int(count.sum()) + len(data) > self.count:
            raise Surprise("more pages than the file has")
        if 12 + 2 * width > self.usable:
            raise Surprise("more cells than fit")
        at = np.ndarray((len(data), width), ">u2", data, 12, (self.size, 2)).astype(np.int64)
        inside = np.arange(width) < count[:, None]
        if (at[inside] > self.usable - 5).any():
            raise Surprise("a cell beyond its page")
        pages = np.zeros((len(data), width + 1), np.int64)
        last = np.zeros_like(pages)
        row = np.nonzero(inside)[0]
        place = row * self.size + at[inside]
        flat = np.concatenate((data.ravel(), np.zeros(16, np.uint8)))
        pages[:, :width][inside] = _four(flat, place)
        last[:, :width][inside] = _varints(flat, place + 4)
        rows = np.arange(len(data))
        pages[rows, count] = _four(flat, rows * self.size + 8)
        last[rows, count] = keys
        kept = np.arange(width + 1) <= count[:, None]
        return pages[kept], last[kept]

    def load(self, pages: Ints) -> Bytes:
        """The pages' bytes, one row a page; neighbours in the file are read together."""
        return self.buffer(pages)[: len(pages) * self.size].reshape(len(pages), self.size)

    def buffer(self, pages: Ints) -> Bytes:
        """The pages' bytes one after the other, and some zeros."""
        if ((pages < 1) | (pages > self.count)).any():
            raise Surprise("a page that the file does not have")
        data = np.empty(len(pages) * self.size + SPARE_BYTES, np.uint8)
        data[len(pages) * self.size :] = 0
        view = memoryview(data.data)
        breaks = np.flatnonzero(np.diff(pages) != 1) + 1
        for first, end in zip([0, *breaks.tolist()], [*breaks.tolist(), len(pages)], strict=True):
            wanted = view[first * self.size : end * self.size]
            if os.preadv(self.fd, [wanted], (int(pages[first]) - 1) * self.size) != len(wanted):
                raise Surprise("the file became shorter while it was read")
        return data

    def columns(self, root: int, places: Sequence[int]) -> list[Ints]:
        """The columns at these places of the table's rows, in the order of the rows, MISSING for NULL."""
        blocks = self.blocks(root)
        rows = _Rows(len(blocks))
        for columns in _in_threads(lambda pages: self.decode(pages, places), blocks):
            rows.add(columns)
        return rows.columns()

    def combinations(
        self, root: int, places: Sequence[int], beside: Sequence[int] = ()
    ) -> tuple[Codes, list[Ints], list[Ints]]:
        """For each row which of the combinations of these columns it has; the combinations, column by column; and the
        columns `beside` as they are."""

        def work(pages: Ints) -> tuple[Codes, list[Ints], list[Ints]]:
            columns = self.decode(pages, [*places, *beside])
            return *distinct(columns[: len(places)]), columns[len(places) :]

        blocks = self.blocks(root)
        rows, found = _Rows(len(blocks)), _Rows(1)
        for codes, combinations, columns in _in_threads(work, blocks):
            rows.add([codes + np.int32(found.length), *columns])
            found.add(combinations)
        merged, distinct_ones = distinct(found.columns())
        codes, *columns = rows.columns()
        return merged[codes], distinct_ones, columns

    def blocks(self, root: int) -> list[Ints]:
        """The table's leaves, some hundred at a time, in the order of the rows."""
        leaves = self.leaves(root).pages
        step = max(BLOCK_BYTES // self.size, 1)
        return [leaves[i : i + step] for i in range(0, len(leaves), step)]

    def decode(self, pages: Ints, places: Sequence[int]) -> list[Ints]:
        """The columns of the rows on these leaves."""
        data = self.buffer(pages)
        try:
            return _values(data, _records(data, len(pages), self.size, self.usable), places)
        except (IndexError, ValueError) as error:  # a place beyond the pages, which only damage can lead to
            raise Surprise("a row that ends nowhere") from error

    def rest(self, root: int, places: Sequence[int]) -> tuple[list[Ints], int]:
        """What a damaged table still holds, and the number of rows that are lost (at least, when its end is)."""
        leaves = self.leaves(root, damaged=True)
        rows = _Rows(len(leaves.pages))
        rows.add([np.empty(0, np.int64) for _ in places])
        lost, before = 0, 0
        for page, last in zip(leaves.pages.tolist(), leaves.last_rowids.tolist(), strict=True):
            try:
                rows.add(self.decode(np.array([page]), places))
            except Surprise:
                lost += max(last - before, 1)
            before = max(last, before)
        return rows.columns(), lost


@contextmanager
def opened(path: Path) -> Iterator[Pages]:
    """The pages of an SQLite file. Raises Surprise where the file alone does not tell its content."""
    if any(_filled(path.with_name(path.name + suffix)) for suffix in ("-wal", "-journal")):
        raise Surprise("a log beside the file")
    fd = os.open(path, os.O_RDONLY)
    try:
        head = os.pread(fd, 100, 0)
        if len(head) < 100 or head[:16] != MAGIC:
            raise Surprise("no SQLite file")
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        if size < 512 or size & (size - 1) or head[20] > 32:
            raise Surprise("an unusual page size")
        yield Pages(fd, size, size - head[20], os.fstat(fd).st_size // size)
    finally:
        os.close(fd)


def _filled(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def distinct(columns: Iterable[Ints]) -> tuple[Codes, list[Ints]]:
    """For each row the number of its combination of values, and the combinations, column by column.

    Values are mixed into 64 bits: that two of a million combinations fall together happens once in 40 million files."""
    columns = list(columns)
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed *= MIX
        mixed += column.view(np.uint64)
    codes = _numbered(mixed.view(np.int64))
    example = np.empty(int(codes.max()) + 1 if len(codes) else 0, np.int64)
    example[codes] = np.arange(len(codes))
    return codes, [column[example] for column in columns]


def _numbered(keys: Ints) -> Codes:
    """A number for each distinct key, from 0 on; by hashing where the keys are so many that Arrow's import pays."""
    if len(keys) < MANY:
        return np.unique(keys, return_inverse=True)[1].astype(np.int32)
    import pyarrow as pa

    codes: Codes = pa.array(keys).dictionary_encode().indices.to_numpy()
    return codes


class _Rows:
    """Columns that grow block by block, at once in one piece: there is no room for two of millions of rows."""

    def __init__(self, blocks: int) -> None:
        self.blocks, self.length = blocks, 0
        self.arrays: list[Any] = []

    def add(self, columns: Sequence[Any]) -> None:
        rows = len(columns[0])
        end = self.length + rows
        if not self.arrays:  # most blocks have about as many rows as the first
            self.arrays = [np.empty(rows * self.blocks + rows // 16 * self.blocks, c.dtype) for c in columns]
        if end > len(self.arrays[0]):
            more = max(end, len(self.arrays[0]) * 3 // 2) - self.length
            self.arrays = [np.concatenate((a[: self.length], np.empty(more, a.dtype))) for a in self.arrays]
        for array, column in zip(self.arrays, columns, strict=True):
            array[self.length : end] = column
        self.length = end

    def columns(self) -> list[Any]:
        return [array[: self.length] for array in self.arrays]


def _in_threads(work: Callable[[Ints], Part], blocks: Sequence[Ints]) -> Iterator[Part]:
    """What `work` makes of each block, in their order; numpy lets go of the interpreter, so that threads help."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = min(cores + 1, MOST_THREADS, len(blocks))  # one more: each holds the interpreter for a part of its time
    if threads < 2:
        yield from map(work, blocks)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(work, blocks)


# ---------------------------------------------------------------- the rows of a block


@dataclass(frozen=True)
class _Records:
    """Where the rows of a block have their header (behind its length) and their values; how long the header is."""

    types: Ints
    values: Ints
    shortest: int


def _records(data: Bytes, pages: int, size: int, usable: int) -> _Records:
    grid = data[: pages * size].reshape(pages, size)
    if not (grid[:, 0] == LEAF).all():
        raise Surprise("a page that is no leaf")
    count = _two(grid, 3)
    width = int(count.max()) if pages else 0
    if 8 + 2 * width > usable:
        raise Surprise("more cells than fit")
    pointers = np.ndarray((pages, width), ">u2", data, 8, (size, 2))
    at = pointers[np.arange(width) < count[:, None]].astype(np.int64)
    place = np.repeat(np.arange(pages) * size, count)
    place += at
    if not len(place):
        return _Records(place, place, 127)
    length = data[place]
    long = length >= 128
    payload = length
    if long.any():
        second = data[place + 1]
        if (second[long] >= 128).any():
            raise Surprise("a long row")
        payload = np.where(long, (length.astype(np.int64) & 127) << 7 | second, length)
        place += long
    if int(payload.max()) > usable - 35 or int((at + payload).max()) > usable:
        raise Surprise("a row that goes on elsewhere")
    place += 1
    place += _varint_lengths(data, place)
    header = data[place]
    if (header >= 128).any():
        raise Surprise("a long header")
    values = place + header
    place += 1
    return _Records(place, values, int(header.min()) - 1)


def _values(data: Bytes, record: _Records, places: Sequence[int]) -> list[Ints]:
    """The wanted columns of all rows. As long as all rows have one type in a column, the next one's place is known;
    behind a column of many types the rows are looked up anew."""
    rows, wanted = len(record.types), set(places)
    deepest = max(wanted) + 1
    if not rows:
        return [np.empty(0, np.int64) for _ in places]
    if record.shortest < deepest:
        raise Surprise("a row with fewer columns")
    types = _gathered(data, record.types, deepest)
    found: dict[int, Ints] = {}
    base, run = record.values, _Run()
    for column in range(deepest):
        kind = np.ascontiguousarray(types[:, column])
        if (same := bool((kind == kind[0]).all())) or column in wanted:
            run.add(column, kind, same, column in wanted)
        if same:
            _known(kind[0])
            run.width += int(LENGTH[kind[0]])
            continue
        _known(kind.max())
        lengths = LENGTH.take(kind)
        found |= run.read(data, base)
        base = base + run.width + lengths
        run = _Run()
    found |= run.read(data, base)
    return [found[place] for place in places]


def _known(kind: Any) -> None:
    if kind >= 128:
        raise Surprise("a long value")


class _Run:
    """Columns whose place in a row is the same in all rows of a block."""

    def __init__(self) -> None:
        self.width = 0
        self.columns: list[tuple[int, int, Bytes, bool]] = []

    def add(self, column: int, kind: Bytes, same: bool, wanted: bool) -> None:
        if wanted:
            self.columns.append((column, self.width, kind, same))

    def read(self, data: Bytes, base: Ints) -> dict[int, Ints]:
        if not self.columns:
            return {}
        stored = [at for _, at, kind, same in self.columns if not same or NULL < kind[0] < ZERO]
        block = _gathered(data, base, max(stored) + 8) if stored else data.reshape(1, -1)
        return {column: _numbers(block, at, kind, same) for column, at, kind, same in self.columns}


def _numbers(block: Bytes, at: int, kind: Bytes, same: bool) -> Ints:
    """One column: big-endian numbers of the lengths that their types tell."""
    if same and kind[0] in (NULL, ZERO, ONE):
        return np.full(len(kind), CONSTANT[kind[0]])
    if ((kind > EIGHT_BYTES) & (kind != ZERO) & (kind != ONE)).any():
        raise Surprise("no whole number")
    value: Ints = np.ndarray((len(kind),), ">i8", block, at, (block.shape[1],)).astype(np.int64)
    if same:
        value >>= np.int64(SHIFT[kind[0]])
        return value
    value >>= SHIFT.take(kind)
    value &= KEPT.take(kind)
    value |= CONSTANT.take(kind)
    return value


def _gathered(data: Bytes, places: Ints, width: int) -> Bytes:
    """`width` bytes (or some more) from each place on, one row a place."""
    width = -(-width // 8) * 8
    view = np.ndarray((len(data) - width,), f"V{width}", data, strides=(1,))
    return np.ascontiguousarray(view[places]).view(np.uint8).reshape(len(places), width)


def _varint_lengths(data: Bytes, place: Ints) -> Any:
    """Lengths of the variable-length numbers there. Rowids ascend: when the first is as long as the last, all are; but
    for those of nine bytes, which are very large or negative."""
    ends = np.array([place[0], place[-1]])
    first, last = _lengths(data, ends).tolist()
    return first if first == last < 9 else _lengths(data, place)


def _lengths(data: Bytes, place: Ints) -> Ints:
    length = np.ones(len(place), np.int64)
    going = data[place] >= 128
    while going.any():
        length += going
        going &= data[place + length - 1] >= 128
        going &= length < 9
    return length


def _varints(data: Bytes, place: Ints) -> Ints:
    """Variable-length numbers, most significant first, seven bits a byte and eight in the ninth."""
    value = np.zeros(len(place), np.int64)
    going = np.ones(len(place), bool)
    for i in range(9):
        byte = data[place + i].astype(np.int64)
        value = np.where(going, value << 8 | byte if i == 8 else value << 7 | byte & 127, value)
        going &= byte >= 128
    return value


def _two(pages: Bytes, at: int) -> Ints:
    number: Ints = pages[:, at].astype(np.int64) << 8 | pages[:, at + 1]
    return number


def _four(data: Bytes, place: Ints) -> Ints:
    value = np.zeros(len(place), np.int64)
    for i in range(4):
        value = value << 8 | data[place + i]
    return value
