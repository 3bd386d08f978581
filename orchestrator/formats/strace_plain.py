"""The plain lines of a strace log, a block of text at a time: `PID STAMP NAME(ARGS) = RESULT <DURATION>`, as `strace -f
-ttt -T` writes them, whole or in two halves.

Each step is done for all lines of a block at once, on eight bytes at a time. A line that is not certainly plain is left
to the reader that takes every line there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.strace_spans import NONE, Spans

Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Flags: TypeAlias = NDArray[np.bool_]

_SHORTEST = 40
"""Bytes of a line that are looked at without asking."""
_LONGEST_NAME = 24
_KEPT_BYTES = 16 << 20
_PADDING = 128
"""Bytes behind a block, so that words can be read near its end without asking."""

UNKNOWN, REFUSED = -1, -2
WHOLE, UNSURE, BEGUN, ENDED, IDLE = range(5)

NOWHERE, BY_FD, BY_NAME, BY_FOLDER, BY_RESULT = range(5)
"""Where a call names its file: nowhere, by descriptor, by name (or descriptor), by folder and name, by its result."""

NEWLINE, SPACE, CLOSE, COMMA, EQUALS, GREATER, MINUS, ZERO, A, Z = b"\n ),=>-0AZ"


def _word(text: bytes) -> np.uint64:
    """Up to eight bytes as they are in memory."""
    word: np.uint64 = np.uint64(int.from_bytes(text, "little"))
    return word


_SPACES, _OPENS, _LESSES, _ZEROS = (_word(8 * byte) for byte in (b" ", b"(", b"<", b"0"))
_STAMP, _DURATION, _EXITED, _KILLED, _SIGNAL = map(
    _word, (b"00.00000", b".000000>", b"+++ exit", b"+++ kill", b"--- SIG")
)
_RESUMED, _RESUMES, _UNFINISHED, _UNFINISHED_2 = map(_word, (b"<... ", b" resumed", b"<unfinis", b"hed ...>"))
_ONES, _HIGHS, _NOT_A_DIGIT = (np.uint64(byte * 0x0101010101010101) for byte in (0x01, 0x80, 0x76))
_RANKS = np.uint64(0x0001020304050607)
_FAILED = _word(b"-1 E")
_MASKS = np.array([(1 << 8 * width) - 1 for width in range(9)], np.uint64)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_MIX_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_MIX_3 = np.uint64(0xFF51AFD7ED558CCD)


def _before(words: Words, stops: np.uint64 | Words) -> tuple[Words, Words]:
    """The bytes before the first one that is `stops` (eight times the same), as a mask; and 1 << 8 * their number, 0 if
    there is none. See https://graphics.stanford.edu/~seander/bithacks.html, "Determine if a word has a byte equal"."""
    differs = words ^ stops
    found = (differs - _ONES) & ~differs & _HIGHS
    first = (found & (~found + np.uint64(1))) >> np.uint64(7)
    return first - np.uint64(1), first


def _are_digits(values: Words) -> Flags:
    """Whether each byte is 0 to 9."""
    digits: Flags = (((values + _NOT_A_DIGIT) | values) & _HIGHS) == 0
    return digits


def _number(values: Words) -> Words:
    """Of eight digits, each a byte of 0 to 9."""
    values = (values * np.uint64(10) + (values >> np.uint64(8))) & np.uint64(0x00FF00FF00FF00FF)
    values = (values * np.uint64(100) + (values >> np.uint64(16))) & np.uint64(0x0000FFFF0000FFFF)
    number: Words = (values * np.uint64(10000) + (values >> np.uint64(32))) & np.uint64(0xFFFFFFFF)
    return number


class _Block:
    """A part of a log: whole lines. `words[i]` are the eight bytes from i on."""

    def __init__(self, text: bytes) -> None:
        padded = text + bytes(_PADDING)
        self.text = text
        self.bytes = np.frombuffer(padded, np.uint8)
        self.words: Words = np.ndarray((len(padded) - 7,), "<u8", padded, strides=(1,))
        self.ends: Ints = np.flatnonzero(self.bytes == NEWLINE)
        self.starts: Ints = np.concatenate(([0], self.ends[:-1] + 1))


# ---------------------------------------------------------------- sums by key


class _Index:
    """Numbers by 64-bit key, looked up many at a time, by open addressing."""

    def __init__(self) -> None:
        self._size = 0
        self._resize(10)

    def _resize(self, bits: int) -> None:
        self._bits = bits
        self._keys = np.zeros(1 << bits, np.uint64)
        self._numbers = np.full(1 << bits, UNKNOWN)

    def __len__(self) -> int:
        return self._size

    def find(self, keys: Words) -> Ints:
        """UNKNOWN for keys that are not there."""
        return self._numbers[self._slots(keys)]

    def insert(self, keys: Words, numbers: Ints) -> None:
        """The keys must be distinct and new."""
        self._size += len(keys)
        if 2 * self._size > len(self._keys):
            taken = self._numbers != UNKNOWN
            keys, numbers = np.append(self._keys[taken], keys), np.append(self._numbers[taken], numbers)
            self._resize((4 * self._size).bit_length())
        while len(keys):  # of two that want the same place, the last has got it
            slots = self._slots(keys)
            self._keys[slots], self._numbers[slots] = keys, numbers
            lost = self._keys[slots] != keys
            keys, numbers = keys[lost], numbers[lost]

    def _slots(self, keys: Words) -> Ints:
        """Where each key is, or would be."""
        slots: Ints = ((keys * _MIX) >> np.uint64(64 - self._bits)).astype(np.int64)
        lost = np.flatnonzero((self._keys[slots] != keys) & (self._numbers[slots] != UNKNOWN))
        while len(lost):
            there = slots[lost] = (slots[lost] + 1) & (len(self._keys) - 1)
            lost = lost[(self._keys[there] != keys[lost]) & (self._numbers[there] != UNKNOWN)]
        return slots


class _Sums:
    """Sums by key: a column of `values` for each, and in `numbers` the number of what it is for."""

    def __init__(self, zero: tuple[int, ...], number: Callable[[Any], int] = lambda _: NONE) -> None:
        """`zero`: what each sum begins with."""
        self._zero, self._number = np.array(zero)[:, None], number
        self._forget()

    def _forget(self) -> None:
        self._index = _Index()
        self._owners: list[Any] = []
        self.numbers = np.zeros(0, np.int64)
        self.values = np.repeat(self._zero, 256, axis=1)

    def __len__(self) -> int:
        return len(self._index)

    def columns(self, keys: Words, owner: Callable[[int], Any]) -> Ints:
        """The column of each key. `owner` is asked, by the index of a key that is new, what that one is for; None is
        remembered, as REFUSED."""
        columns = self._index.find(keys)
        new = np.flatnonzero(columns == UNKNOWN)
        if not len(new):
            return columns
        _, first = np.unique(keys[new], return_index=True)
        first = new[np.sort(first)]
        owners = [owner(index) for index in first.tolist()]
        wanted = np.array([owner is not None for owner in owners])
        self._index.insert(keys[first], np.where(wanted, len(self._owners) + np.cumsum(wanted) - 1, REFUSED))
        owners = [owner for owner in owners if owner is not None]
        self._owners += owners
        self.numbers = np.append(self.numbers, np.array([*map(self._number, owners)], np.int64))
        if len(self._owners) > self.values.shape[1]:
            self.values = np.append(self.values, np.repeat(self._zero, len(self._owners), axis=1), axis=1)
        return self._index.find(keys)

    def taken(self) -> Iterator[tuple[Any, list[int]]]:
        """Each owner with its sums. After that nothing is known any more."""
        owners, sums = self._owners, self.values[:, : len(self._owners)].T.tolist()
        self._forget()
        return zip(owners, sums, strict=True)


# ---------------------------------------------------------------- lines


Part = TypeVar("Part", bound="_Fields")


class _Fields:
    """Arrays of one length, of which a part can be taken."""

    def part(self: Part, which: Ints | slice) -> Part:
        return type(self)(*(values[which] for values in vars(self).values()))


@dataclass(frozen=True)
class _Lines(_Fields):
    """Lines that begin as plain ones do: `PID STAMP NAME(` or `PID STAMP <... NAME resumed>`. Places are in the block.

    line: serial number in the block. end, stamp, args: places. name: number of the call, UNKNOWN for one not known."""

    line: Ints
    end: Ints
    stamp: Ints
    pid: Ints
    name: Ints
    resumed: Flags
    args: Ints


def _heads(block: _Block, names: _Names) -> _Lines:
    line = np.flatnonzero(block.ends - block.starts >= _SHORTEST)
    start = block.starts[line]
    word = block.words[start]
    _, first = _before(word, _SPACES)
    width = (first * _RANKS) >> np.uint64(56)
    digits = (word ^ _ZEROS) << (np.uint64(64) - np.uint64(8) * width)
    good = (width > 0) & _are_digits(digits) & (block.bytes[start] != ZERO)
    stamp = start + width.astype(np.int64) + 1
    padded = np.flatnonzero((block.bytes[stamp] == SPACE) & good)
    for _ in range(8):  # a short number is padded
        stamp[padded] += 1
        padded = padded[block.bytes[stamp[padded]] == SPACE]
    good &= _are_digits(block.words[stamp] ^ _ZEROS)
    fraction = block.words[stamp + 8] ^ _STAMP
    good &= _are_digits(fraction) & (fraction & np.uint64(0xFF0000) == 0)
    good &= (block.bytes[stamp + 16] - ZERO <= 9) & (block.bytes[stamp + 17] == SPACE)
    good = np.flatnonzero(good)
    stamp = stamp[good]
    name, resumed, args = names.read(block, stamp + 18)
    pid = _number(digits[good]).astype(np.int64)
    return _Lines(line[good], block.ends[line[good]], stamp, pid, name, resumed, args)


class _Names:
    """The calls that are known, by number. `where`, `moves`, `plain`: what `add` was told of each."""

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.where = np.zeros(0, np.int64)
        self.moves = np.zeros(0, np.bool_)
        self.plain = np.zeros(0, np.bool_)
        self._lengths = np.zeros(1, np.int64)
        self._index = _Index()

    def add(self, text: bytes, where: int, moves: bool, plain: bool) -> None:
        if len(text) > _LONGEST_NAME or text in self.texts:
            return
        words = [np.array([_word(text[i : i + 8])]) for i in (0, 8, 16)]
        self._index.insert(self._key(*words), np.array([len(self.texts)]))
        self.texts.append(text)
        self.where, self.moves = np.append(self.where, where), np.append(self.moves, moves)
        self.plain = np.append(self.plain, plain)
        self._lengths = np.array([*map(len, self.texts), 0])

    @staticmethod
    def _key(first: Words, second: Words, third: Words | int) -> Words:
        key: Words = first * _MIX_2 ^ second * _MIX_3 ^ third * _MIX
        return key

    def read(self, block: _Block, at: Ints) -> tuple[Ints, Flags, Ints]:
        """What stands at these places: number of the call, whether it is resumed, and the place behind that."""
        resumed = block.words[at] & np.uint64(0xFFFFFFFFFF) == _RESUMED
        at = at + 5 * resumed
        stops = np.where(resumed, _SPACES, _OPENS)
        words = [block.words[at], block.words[at + 8], np.zeros(len(at), np.uint64)]
        (mask, first), (mask_2, first_2) = _before(words[0], stops), _before(words[1], stops)
        words[0] &= mask
        words[1] &= np.where(first == 0, mask_2, np.uint64(0))
        long = np.flatnonzero((first | first_2) == 0)
        third = block.words[at[long] + 16]
        mask, first = _before(third, stops[long])
        words[2][long] = third & np.where(first == 0, np.uint64(0), mask)
        name = self._index.find(self._key(*words))
        name[long[first == 0]] = UNKNOWN
        end = at + self._lengths[name]
        strange = resumed & ((block.words[end] != _RESUMES) | (block.bytes[end + 8] != GREATER))
        name[strange] = UNKNOWN
        return name, resumed, end + np.where(resumed, 9, 1)


# ---------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Calls(_Fields):
    """Calls that returned. Places are in the block.

    line: serial number of the line with the result, first: of that with the beginning, where `stamp` is. The arguments
    go from `args` to `args_end`, and on from `rest` to `rest_end`: two places on one line, or on two."""

    line: Ints
    first: Ints
    stamp: Ints
    pid: Ints
    name: Ints
    args: Ints
    args_end: Ints
    rest: Ints
    rest_end: Ints
    result: Ints
    result_end: Ints
    ns: Ints
    failed: Flags


def _durations(block: _Block, lines: _Lines) -> tuple[Ints, Flags]:
    """What `<0.000012>` at the end of each line says, in ns, and whether it is there."""
    tail, before = block.words[lines.end - 8], block.words[lines.end - 16] >> np.uint64(40)
    digits = tail ^ _DURATION
    seconds = (before >> np.uint64(16)) - np.uint64(ZERO)
    there = _are_digits(digits) & (digits & np.uint64(0xFF000000000000FF) == 0)
    there &= (before & np.uint64(0xFFFF) == np.uint64(0x3C20)) & (seconds <= 9)  # " <"
    return (_number(digits) * np.uint64(100) + seconds * np.uint64(10**9)).astype(np.int64), there


def _kinds(block: _Block, lines: _Lines, whole: Ints, ended: Ints) -> Ints:
    """What each line says of its thread: WHOLE (a call, or a signal), BEGUN or ENDED (half a call), IDLE (no call is
    under way after it), UNSURE. `whole` and `ended` are what is known already, as indexes."""
    kinds = np.full(len(lines.line), UNSURE)
    tail, body = block.words[lines.end - 8], block.words[lines.stamp + 18]
    unfinished = (tail == _UNFINISHED_2) & (block.words[lines.end - 16] == _UNFINISHED)
    unfinished &= (block.bytes[lines.end - 17] == SPACE) & (lines.end - 17 >= lines.args)
    known = lines.name != UNKNOWN
    kinds[body & np.uint64(0xFFFFFFFFFFFFFF) == _SIGNAL] = WHOLE
    kinds[(body == _EXITED) | (body == _KILLED) | (known & lines.resumed & (tail != _UNFINISHED_2))] = IDLE
    kinds[known & ~lines.resumed & unfinished] = BEGUN
    kinds[whole], kinds[ended] = WHOLE, ENDED
    return kinds


def _returned(block: _Block, names: _Names, lines: _Lines, ns: Ints) -> tuple[_Calls, Flags]:
    """Lines that end with a duration as calls, or second halves of calls; and whether they surely are."""
    equals = np.flatnonzero(block.bytes == EQUALS)
    equals = equals[(block.bytes[equals - 1] == SPACE) & (block.bytes[equals + 1] == SPACE)]
    equals = np.append(equals, len(block.bytes))
    at = equals[np.searchsorted(equals, lines.end - 13) - 1]
    good = (at > lines.args) & (at < lines.end - 13)
    at = np.where(good, at, lines.args + 1)
    result, result_end = at + 2, lines.end - 11
    word = block.words[result]
    letter = (word >> np.uint64(32)) & np.uint64(0xFF)
    failed = (word & np.uint64(0xFFFFFFFF) == _FAILED) & (letter >= A) & (letter <= Z)
    digit = block.bytes[result] - ZERO <= 9
    good &= (digit | failed) & _closed(block, lines.args, at - 2)
    good &= (block.bytes[result_end - 1] != GREATER) | _describes(word)
    good &= names.plain[lines.name] & (~names.moves[lines.name] | failed | (result_end - result <= 8))
    end = at - 1
    places = (lines.args, end, end, end, result, result_end)
    return _Calls(lines.line, lines.line, lines.stamp, lines.pid, lines.name, *places, ns, failed), good


def _describes(words: Words) -> Flags:
    """Whether each begins as a descriptor with its file does, `12<`."""
    before, found = _before(words, _LESSES)
    digits = (words ^ _ZEROS) & before
    return (found > 1) & _are_digits(digits)


def _closed(block: _Block, args: Ints, last: Ints) -> Flags:
    """Whether the arguments, which end at `last` or are followed by spaces from there on back, end with a bracket."""
    last = last.copy()
    for width, spaces in ((8, block.words[last - 7] == _SPACES), (1, None)):
        left = np.flatnonzero(spaces) if spaces is not None else np.flatnonzero(block.bytes[last] == SPACE)
        for _ in range(8):
            if not len(left):
                break
            last[left] -= width
            there = last[left]
            left = left[block.words[there - 7] == _SPACES if width == 8 else block.bytes[there] == SPACE]
    closed: Flags = (block.bytes[last] == CLOSE) & (last >= args)
    return closed


def _pairs(lines: _Lines, kinds: Ints, before: Ints) -> tuple[Ints, Ints]:
    """Which first and second halves belong together, as indexes. It is sure only when there is nothing of their thread
    between them but whole calls, and when it had no other call under way: `before` are the threads that had one when
    the block began."""
    index = np.flatnonzero(kinds != WHOLE)
    order = np.sort((lines.pid[index] << 32) + index) & 0xFFFFFFFF
    pid, kind, name = lines.pid[order], kinds[order], lines.name[order]
    goes_on = pid[1:] == pid[:-1]
    clear = ~np.isin(pid, before)
    clear[1:] = np.where(goes_on, kind[:-1] >= ENDED, clear[1:])
    paired = goes_on & (kind[:-1] == BEGUN) & (kind[1:] == ENDED) & (name[:-1] == name[1:]) & clear[:-1]
    return order[:-1][paired], order[1:][paired]


def _join(calls: _Calls, first: _Lines) -> None:
    """Makes whole calls of second halves. A first half may be without arguments."""
    end = first.end - 17
    some = np.flatnonzero(first.args < end)
    calls.first[:], calls.stamp[:] = first.line, first.stamp
    calls.rest[some] = calls.args[some]
    calls.args[some], calls.args_end[some] = first.args[some], end[some]


class Sink(Protocol):
    """The reader of all lines, which keeps what is said about threads, calls and files."""

    def tally(self, thread: bytes, name: bytes) -> Any:
        """What the sums of a call in a thread are for."""

    def use(self, name: bytes, args: bytes, key: bytes, result: bytes) -> Any:
        """What those of a call and a file are for; None where `key` alone doesn't tell the file."""

    def path(self, use: Any) -> int:
        """The number of its file."""

    def call(self, name: bytes) -> int:
        """The number of a call."""

    def error(self, name: bytes) -> int:
        """The number of an error."""

    def slow(self, ns: int, serial: int, *event: bytes) -> bool:
        """Takes note of a slow call: thread, stamp, name, arguments, result. Whether it was slow enough."""


class Plain:
    """Counts the calls of plain lines. A call is taken once `know(name, where, moves, plain)` has been told of it:
    `where` it names its file (NOWHERE to BY_RESULT), whether its result is a number of bytes, and whether counting is
    all that has to be done."""

    def __init__(self, sink: Sink, spans: Spans) -> None:
        _keep_memory()
        self._sink = sink
        self._spans = spans
        self._names = _Names()
        self.know = self._names.add
        self.tallies = _Sums((0, 0, 0, 1 << 62, -1))
        """Of the calls of a thread: how often, failures, ns in all, shortest, longest."""
        self.uses = _Sums((0, 0, 0, 0), sink.path)
        """Of a file by a call: how often, failures, ns in all, bytes."""
        self._errors = _Sums((), int)

    def take(
        self, text: bytes, serial: int, begun: Iterable[bytes], floor_ns: int
    ) -> tuple[int, int, Iterable[tuple[int, bytes]]]:
        """Counts what is plain in a text of whole lines, and takes note of what is slower than the floor. The number of
        lines; that of the calls whose halves were joined; the lines that are not plain, with their serial numbers.

        serial: of the first line. begun: threads that have a call under way, of which only the first half is known."""
        block = _Block(text)
        calls = self._calls(block, np.array([int(thread) for thread in begun if thread.isdigit()], np.int64))
        counted, path = self._count_uses(block, calls)
        if not counted.all():
            calls, path = calls.part(np.flatnonzero(counted)), path[counted]
        self._count(calls)
        self._note(block, calls, serial, floor_ns)
        self._keep(block, calls, path)
        left = np.ones(len(block.ends), np.bool_)
        left[calls.line] = left[calls.first] = False
        places = zip(np.flatnonzero(left).tolist(), block.starts[left].tolist(), block.ends[left].tolist(), strict=True)
        joined = int(np.count_nonzero(calls.line != calls.first))
        return len(left), joined, ((serial + line, text[start:end]) for line, start, end in places)

    def _calls(self, block: _Block, before: Ints) -> _Calls:
        """The whole ones, and then those in two halves."""
        lines = _heads(block, self._names)
        ns, timed = _durations(block, lines)
        index = np.flatnonzero(timed & (lines.name != UNKNOWN))
        returned, good = _returned(block, self._names, lines.part(index), ns[index])
        resumed = lines.resumed[index]
        whole, ended = np.flatnonzero(good & ~resumed), np.flatnonzero(good & resumed)
        first, second = _pairs(lines, _kinds(block, lines, index[whole], index[ended]), before)
        calls = returned.part(np.concatenate((whole, np.searchsorted(index, second))))
        _join(calls.part(slice(len(whole), None)), lines.part(first))
        return calls

    def _count(self, calls: _Calls) -> None:
        def owner(index: int) -> Any:
            return self._sink.tally(b"%d" % calls.pid[index], self._names.texts[calls.name[index]])

        column = self.tallies.columns((calls.pid << 16 | calls.name).astype(np.uint64), owner)
        count, errors, total, shortest, longest = self.tallies.values
        np.add.at(count, column, 1)
        np.add.at(errors, column, calls.failed.astype(np.int64))
        np.add.at(total, column, calls.ns)
        np.minimum.at(shortest, column, calls.ns)
        np.maximum.at(longest, column, calls.ns)

    def _count_uses(self, block: _Block, calls: _Calls) -> tuple[Flags, Ints]:
        """Which calls can be counted here: not those whose file can't be told from where it should be named. And the
        number of each one's file."""
        where = self._names.where[calls.name]
        counted: Flags = where == NOWHERE
        path = np.full(len(where), NONE)
        index = np.flatnonzero(where != NOWHERE)
        calls, where = calls.part(index), where[index]
        start, end = _keys(block, calls, where)

        def owner(at: int) -> Any:
            args = _arguments(block, calls, at)
            result = block.text[calls.result[at] : calls.result_end[at]]
            return self._sink.use(self._names.texts[calls.name[at]], args, block.text[start[at] : end[at]], result)

        column = self.uses.columns(_hashes(block, start, end, calls.name), owner)
        count, errors, total, moved = self.uses.values
        if (column == REFUSED).any():
            good = np.flatnonzero(column != REFUSED)
            column, index, calls = column[good], index[good], calls.part(good)
        np.add.at(count, column, 1)
        np.add.at(errors, column, calls.failed.astype(np.int64))
        np.add.at(total, column, calls.ns)
        moving = np.flatnonzero(self._names.moves[calls.name])
        np.add.at(moved, column[moving], _results(block, calls.part(moving)))
        counted[index] = True
        path[index] = self.uses.numbers[column]
        return counted, path

    def _keep(self, block: _Block, calls: _Calls, path: Ints) -> None:
        """Hands over those that took long enough, one by one."""
        count = len(calls.ns)
        if self._spans.floor_ns >= 0:
            long = np.flatnonzero(calls.ns > self._spans.floor_ns)
            calls, path = calls.part(long), path[long]
        call_of = np.array([*map(self._sink.call, self._names.texts)], np.int64)
        self._spans.add(
            count,
            start=_times(block, calls.stamp),
            ns=calls.ns,
            thread=calls.pid,
            name=call_of[calls.name],
            path=path,
            error=self._error(block, calls),
        )

    def _error(self, block: _Block, calls: _Calls) -> Ints:
        """The number of each one's error: what stands behind `-1 `."""
        failed = np.flatnonzero(calls.failed)
        start = calls.result[failed] + 3
        (mask, first), (mask_2, _) = (_before(block.words[start + at], _SPACES) for at in (0, 8))
        keys = block.words[start] & mask
        keys ^= np.where(first == 0, block.words[start + 8] & mask_2, np.uint64(0)) * _MIX_2

        def owner(index: int) -> int:
            return self._sink.error(block.text[start[index] : start[index] + 24].partition(b" ")[0])

        column = self._errors.columns(keys, owner)
        errors = np.full(len(calls.ns), NONE)
        errors[failed] = self._errors.numbers[column]
        return errors

    def _note(self, block: _Block, calls: _Calls, serial: int, floor_ns: int) -> None:
        slow = calls.part(np.flatnonzero(calls.ns > floor_ns))
        for at in np.lexsort((slow.line, -slow.ns)).tolist():
            stamp, result = slow.stamp[at], block.text[slow.result[at] : slow.result_end[at]]
            texts = (b"%d" % slow.pid[at], block.text[stamp : stamp + 17], self._names.texts[slow.name[at]])
            args = _arguments(block, slow, at).rstrip()[:-1]
            if not self._sink.slow(int(slow.ns[at]), serial + int(slow.line[at]), *texts, args, result):
                break


def _keep_memory() -> None:
    """After this the C library keeps what is freed, up to a few times that much, instead of asking the system again for
    each block: mallopt(3), M_MMAP_THRESHOLD. Nothing of it is touched."""
    bytearray(_KEPT_BYTES)


def _arguments(block: _Block, calls: _Calls, at: int) -> bytes:
    """All that stands between the call's first bracket and its result."""
    args = block.text[calls.args[at] : calls.args_end[at]]
    return args + block.text[calls.rest[at] : calls.rest_end[at]]


def _keys(block: _Block, calls: _Calls, where: Ints) -> tuple[Ints, Ints]:
    """The places of the text that names each call's file: its result, or its first one or two arguments."""
    opened = (where == BY_RESULT) & (block.bytes[calls.result_end - 1] == GREATER)
    commas = np.append(np.flatnonzero(block.bytes == COMMA), [len(block.bytes)] * 2)
    comma = commas[np.searchsorted(commas, calls.args) + (where >= BY_FOLDER)]
    start = np.where(opened, calls.result, calls.args)
    return start, np.where(opened, calls.result_end, np.minimum(comma, calls.args_end))


def _hashes(block: _Block, start: Ints, end: Ints, seed: Ints) -> Words:
    """Of the text between two places each."""
    left, length = np.arange(len(start)), end - start
    hashes: Words = (seed.astype(np.uint64) << np.uint64(32)) + length.astype(np.uint64)
    while len(left):
        mixed = hashes[left] ^ (block.words[start] & _MASKS[np.minimum(length, 8)]) * _MIX_2
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX_3
        mixed ^= block.words[start + 8] & _MASKS[np.clip(length - 8, 0, 8)]
        mixed *= _MIX_3
        hashes[left] = mixed ^ (mixed >> np.uint64(31))
        more = np.flatnonzero(length > 16)
        left, start, length = left[more], start[more] + 16, length[more] - 16
    return hashes


def _times(block: _Block, stamp: Ints) -> Ints:
    """Stamps such as 1700000000.123456 in ns."""
    tens = _number(block.words[stamp] ^ _ZEROS).astype(np.int64)
    units = (block.bytes[stamp + 8] - ZERO) * np.int64(10) + (block.bytes[stamp + 9] - ZERO)
    micros = _number((block.words[stamp + 11] ^ _ZEROS) << np.uint64(16)).astype(np.int64)
    times: Ints = (tens * 100 + units) * 10**9 + micros * 1000
    return times


def _results(block: _Block, calls: _Calls) -> Ints:
    """The results as numbers; 0 for those that are none."""
    width = np.minimum(calls.result_end - calls.result, 8).astype(np.uint64)
    digits = (block.words[calls.result] ^ _ZEROS) << (np.uint64(64) - np.uint64(8) * width)
    return np.where(_are_digits(digits) & ~calls.failed, _number(digits), np.uint64(0)).astype(np.int64)
