"""Folded stacks, one `frame;frame;frame COUNT` a line, as perf's and py-spy's scripts, austin and many others write
them: read into a tree of frames, from which the tables `stacks` and `functions` are made.

Layout: https://github.com/brendangregg/FlameGraph (flamegraph.pl), https://github.com/jonhoo/inferno.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ParseError
from orchestrator.formats.pyspy import Thread, owner, thread_names
from orchestrator.formats.stacks import NO_FRAMES, split_frame
from orchestrator.tables import Table

Ints: TypeAlias = NDArray[np.int64]
Weights: TypeAlias = dict[bytes, int | float]

_LONGEST_LINE = 1 << 24
_DEEPEST = 1 << 16
"""Frames; no tool follows a stack further."""
_LONGEST_COMMAND = 1 << 16
_HEAD_BYTES = 700
"""So much of a long stack, or a little more, is looked up as a whole."""
_MOST_HEADS = 1 << 14
_COUNT = re.compile(rb"\d{1,18}(?:\.\d*)?|\.\d+")
_COMMENT = b"# "
"""Begins austin's notes about a recording, some of which end with a number."""
_OWNED = (b"process ", b"thread (")
_COMMAND_CLOSED = re.compile(rb'"(?:;[^\n]*)? \d+\s*$')


@dataclass(frozen=True)
class Content:
    """What a file of folded stacks holds. `tables`: `stacks` and `functions`, whose samples are the counts, rounded.

    lines: all of the file; unparsed: those of them that have no count. total: the sum of the counts. max_depth: frames
    of the deepest stack. trees: the stacks of each thread (one without a name, where the file doesn't tell threads)."""

    tables: tuple[Table, Table]
    notes: tuple[str, ...]
    lines: int
    unparsed: int
    total: int | float
    max_depth: int
    trees: Mapping[Thread, Tree]


def read(path: Path, kind: str | None = None) -> Content:
    """The stacks of a file, equal ones added up. `kind`: what was sampled, as in the table `stacks`, where known.

    Memory is bounded by the distinct stacks. The root frames by which py-spy names processes and threads become the
    columns of that name. Text that is no UTF-8 is shown with replacement characters. Raises ParseError when most of the
    lines have no count, or there are none."""
    reader = _Reader()
    try:
        with path.open("rb", buffering=1 << 20) as file:
            for line in _whole_lines(file, path):
                reader.take(line)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    if reader.unparsed >= max(1, reader.parsed):
        raise ParseError(f"{path.name} holds no folded stacks: {reader.unparsed} of its lines have no count at the end")
    if not reader.parsed:
        raise ParseError(f"{path.name} is empty: it holds no stacks")
    return reader.content(kind)


def _whole_lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The lines; those that a line break inside of a process's command has split are put together again."""
    held = b""
    while line := file.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE:
            raise ParseError(f"{path.name} holds no folded stacks: it has a line of more than 16 MiB")
        held += line
        if held[:8] != b"process " or len(held) > _LONGEST_COMMAND or _COMMAND_CLOSED.search(line):
            yield held
            held = b""
    if held:
        yield held


class _Frames(dict[bytes, bytes]):
    """The number of each frame's text, as four bytes that sort by it. `names` are the texts; `broken` are those that
    may be the beginning of a `function (file)` with a ';' in the file's name."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.broken: set[bytes] = set()

    def __missing__(self, text: bytes) -> bytes:
        number = self[text] = len(self.names).to_bytes(4, "big")
        self.names.append(text.decode("utf-8", "replace"))
        if b" (" in text and not text.endswith(b")"):
            self.broken.add(text)
        return number


class _Reader:
    """A stack is the bytes of its frames' numbers: a key for adding up, and for sorting."""

    def __init__(self) -> None:
        self.lines = self.parsed = self.unparsed = 0
        self.frames = _Frames()
        self.plain: Weights = {}
        self.owned: dict[Thread, Weights] = {}
        self._heads: dict[bytes, bytes] = {}
        """The keys of beginnings that many stacks share."""

    def take(self, line: bytes) -> None:
        self.lines += line.count(b"\n") or 1
        stack, _, count = line.rstrip().rpartition(b" ")
        if stack.startswith(_COMMENT) or not (stack or count):
            return
        key = self._key(stack) if stack and _COUNT.fullmatch(count) else b""
        if not 0 < len(key) <= 4 * _DEEPEST:
            self.unparsed += 1
            return
        self.parsed += 1
        weights = self.plain
        if stack.startswith(_OWNED):
            thread, texts = owner(stack.decode("utf-8", "replace"))
            weights, key = self.owned.setdefault(thread, {}), self._numbers(_encoded(texts or [NO_FRAMES]))
        elif self.frames.broken and not self.frames.broken.isdisjoint(names := stack.split(b";")):
            key = self._numbers(_mended(names))
        weights[key] = weights.get(key, 0) + (float(count) if b"." in count else int(count))

    def _key(self, stack: bytes) -> bytes:
        cut = stack.find(b";", _HEAD_BYTES)
        if cut < 0:
            return self._numbers(stack.split(b";"))
        head = self._heads.get(stack[:cut])
        if head is None:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            head = self._heads[stack[:cut]] = self._numbers(stack[:cut].split(b";"))
        return head + self._numbers(stack[cut + 1 :].split(b";"))

    def _numbers(self, names: Iterable[bytes]) -> bytes:
        return b"".join(map(self.frames.__getitem__, names))

    def content(self, kind: str | None) -> Content:
        trees = {thread: Tree.of(weights, self.frames.names) for thread, weights in self._by_thread().items()}
        total = sum(tree.weight for tree in trees.values())
        fractional = any(tree.own.dtype.kind == "f" for tree in trees.values())
        notes = ["some counts are fractional: samples are rounded"] if fractional else []
        notes += [f"{self.unparsed} lines have no count"] if self.unparsed else []
        tables = _stacks_table(trees, kind, self.unparsed), _functions_table(trees, kind, total)
        depth = max(int(tree.depth.max()) + 1 for tree in trees.values())
        return Content(tables, tuple(notes), self.lines, self.unparsed, total, depth, trees)

    def _by_thread(self) -> dict[Thread, Weights]:
        """With the names that threads are known by, which may have come late; one thread may have been told twice."""
        names = thread_names(self.owned)
        found: dict[tuple[int | None, str | None], tuple[Thread, Weights]] = {}
        for thread, weights in [*([(Thread(), self.plain)] if self.plain else []), *self.owned.items()]:
            name = None if thread.tid is None else names[thread.pid, thread.tid]
            _, sums = found.setdefault((thread.pid, name), (thread._replace(name=name), {}))
            for key, weight in weights.items():
                sums[key] = sums.get(key, 0) + weight
        return dict(found.values())


def _mended(names: list[bytes]) -> list[bytes]:
    """The frames of a stack of py-spy's, put together again; any other as it was."""
    _, texts = owner(b";".join(names).decode("utf-8", "replace"))
    return _encoded(texts) if all(text.endswith(")") for text in texts) else names


def _encoded(texts: Iterable[str]) -> list[bytes]:
    return [text.encode() for text in texts]


# ---------------------------------------------------------------- the tree


@dataclass(frozen=True)
class Tree:
    """Stacks by their common beginnings, as a flame graph draws them: arrays with an element for each node, in
    preorder.

    depth: 0 for a root. frame: index into `names`. own: weight of the stack that ends here, total: of all that pass.
    parent: index of the caller, -1 for a root. end: index behind the last node below."""

    names: Sequence[str]
    depth: Ints
    frame: Ints
    own: NDArray[Any]
    total: NDArray[Any]
    parent: Ints
    end: Ints

    @classmethod
    def of(cls, weights: Weights, names: Sequence[str]) -> Tree:
        """The tree of stacks, each the big-endian 32-bit numbers of its frames; none may be empty."""
        rows = sorted(weights)
        length = np.fromiter(map(len, rows), np.int64, len(rows)) // 4
        frame = np.frombuffer(b"".join(rows), ">u4").astype(np.int32)
        first = np.cumsum(length) - length
        shared = _shared(frame, first, length)
        fresh = length - shared
        last = np.cumsum(fresh) - 1
        depth = np.arange(last[-1] + 1) + np.repeat(length - 1 - last, fresh)
        frame = frame[depth + np.repeat(first, fresh)]
        total = sum(weights.values())
        exact = isinstance(total, int) and total < 1 << 63
        values = np.array([weights[row] for row in rows], np.int64 if exact else np.float64)
        own = np.zeros(len(depth), values.dtype)
        own[last] = values
        parent, end = _kin(depth)
        before = np.concatenate(([0], np.cumsum(own)))
        return cls(names, depth, frame.astype(np.int64), own, before[end] - before[:-1], parent, end)

    @property
    def weight(self) -> int | float:
        weight: int | float = self.own.sum().item()
        return weight

    def totals(self, key_of: Ints) -> NDArray[Any]:
        """Weight by the key of a frame; a stack that holds a key more than once counts once.

        Below a node, only those with other keys than its own count: of the nodes of one key, in preorder, those which
        begin before an earlier one has ended are below it."""
        key = key_of[self.frame]
        placed = np.sort((key << 32) + np.arange(len(key)))
        order = placed & 0xFFFFFFFF
        ended = np.maximum.accumulate(placed - order + self.end[order])
        outermost = order[np.concatenate(([True], placed[1:] >= ended[:-1]))]
        return _added(key[outermost], self.total[outermost], int(key_of.max()) + 1)


def _shared(frame: NDArray[np.int32], first: Ints, length: Ints) -> Ints:
    """How many frames each row has in common with the row before. Rows are sorted and distinct, one behind another."""
    back = np.concatenate(([0], length[:-1]))
    before = np.arange(len(frame)) - np.repeat(back, length)
    at = before - np.repeat(first - back, length)
    same = (frame == frame[before]) & (at < np.repeat(back, length))
    at[same] = len(frame)
    return np.minimum.reduceat(at, first)


def _kin(depth: Ints) -> tuple[Ints, Ints]:
    """The parent (-1: none) and the end of each node, from the depths in preorder, level by level."""
    parent, end = np.full(len(depth), -1), np.full(len(depth), len(depth))
    order = np.argsort(depth.astype(np.uint16), kind="stable")
    above = order[:0]
    for level in np.split(order, np.cumsum(np.bincount(depth))[:-1]):
        end[level[:-1]] = level[1:]
        if len(above):
            parent[level] = above[np.searchsorted(above, level) - 1]
            end[level] = np.minimum(end[level], end[parent[level]])
        above = level
    return parent, end


def _added(keys: Ints, values: NDArray[Any], size: int) -> NDArray[Any]:
    """The sums of the values by key; those of integers are exact."""
    sums = np.zeros(size, values.dtype)
    np.add.at(sums, keys, values)
    return sums


# ---------------------------------------------------------------- tables


class _Texts(Sequence[str]):
    """The stacks that end at nodes of trees, `frame;frame;frame`, each made when it is asked for: together they may be
    as long as the file, and many times longer than the trees."""

    def __init__(self, trees: Sequence[Tree], tree: Ints, node: Ints) -> None:
        self._trees, self._tree, self._node = trees, tree, node
        self._views = [(tree.names, tree.frame.data, tree.parent.data) for tree in trees]

    def __len__(self) -> int:
        return len(self._node)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        if isinstance(index, slice):
            return _Texts(self._trees, self._tree[index], self._node[index])
        names, frame, parent = self._views[self._tree[index]]
        node, shown = self._node[index], []
        while node >= 0:
            shown.append(names[frame[node]])
            node = parent[node]
        return ";".join(reversed(shown))


def _stacks_table(trees: Mapping[Thread, Tree], kind: str | None, dropped: int) -> Table:
    """The heaviest stack first."""
    threads, forest = list(trees), list(trees.values())
    ends = [np.flatnonzero(tree.own) for tree in forest]
    tree = np.repeat(np.arange(len(forest)), list(map(len, ends)))
    node = np.concatenate(ends)
    weight = np.concatenate([tree.own[end] for tree, end in zip(forest, ends, strict=True)])
    order = np.argsort(-weight, kind="stable")
    owners = [threads[number] for number in tree[order].tolist()]
    columns: dict[str, Sequence[Any]] = {
        "pid": [thread.pid for thread in owners],
        "process": [thread.process for thread in owners],
        "thread": [thread.name for thread in owners],
        "kind": [kind] * len(order),
        "stack": _Texts(forest, tree[order], node[order]),
        "samples": _samples(weight[order]),
        "weight_ns": [None] * len(order),
    }
    return Table("stacks", columns, dropped=dropped)


def _functions_table(trees: Mapping[Thread, Tree], kind: str | None, total: int | float) -> Table:
    """The most samples of its own first."""
    functions = _Functions.of(next(iter(trees.values())).names)
    rows = []
    for thread, tree in trees.items():
        for name, file, line, own, passing in functions.lines(tree):
            if name == NO_FRAMES:
                continue
            shares = (100 * own / (total or 1), 100 * passing / (total or 1))
            counts = (round(own), round(passing))
            owned = (thread.pid, thread.name, kind)
            rows.append((-own, -passing, (*owned, name, file, line, *counts, *shares)))
    return Table.of("functions", (row for _, _, row in sorted(rows, key=lambda row: row[:2])))


def _samples(weights: NDArray[Any]) -> Sequence[int]:
    rounded: list[int] = (np.rint(weights) if weights.dtype.kind == "f" else weights).astype(np.int64).tolist()
    return rounded


@dataclass(frozen=True)
class _Functions:
    """The functions to which frames belong: `of_frame` and `line` by frame, `names` (function, file) by function."""

    of_frame: Ints
    line: list[int | None]
    names: list[tuple[str, str | None]]

    @classmethod
    def of(cls, frames: Sequence[str]) -> _Functions:
        numbers: dict[tuple[str, str | None], int] = {}
        parts = [split_frame(frame) for frame in frames]
        of_frame = [numbers.setdefault(part[:2], len(numbers)) for part in parts]
        return cls(np.array(of_frame, np.int64), [part[2] for part in parts], list(numbers))

    def lines(self, tree: Tree) -> Iterator[tuple[str, str | None, int | None, Any, Any]]:
        """(function, file, line with the most samples, own, total) of the functions in a tree."""
        each = np.arange(len(tree.names))
        own = _added(tree.frame, tree.own, len(each))
        passing = tree.totals(each)
        functions_own = _added(self.of_frame, own, len(self.names))
        # by own samples where the function has some; among equals the order of the text: a rebuild must be equal
        weight = np.where(functions_own[self.of_frame] > 0, own, passing)
        order = sorted(np.flatnonzero(passing).tolist(), key=lambda frame: (weight[frame], tree.names[frame]))
        line = {int(self.of_frame[frame]): self.line[frame] for frame in order}
        total = tree.totals(self.of_frame)
        for function, shown in sorted(line.items()):
            yield (*self.names[function], shown, functions_own[function].item(), total[function].item())
