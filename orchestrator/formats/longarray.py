"""Reads a JSON document whose bulk is one long array, in pieces and as typed structs: plain or gzip, cut off or whole.

Neither the text nor its items are ever in memory as a whole. A file that is cut off, as a killed program leaves it,
gives all items that are complete.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

import msgspec

try:  # takes two thirds of the time; has no wheels for some processors
    from isal import isal_zlib as gzip
except ImportError:
    import zlib as gzip  # type: ignore[no-redef]

from orchestrator.errors import ParseError

Item = TypeVar("Item")
Mend = Callable[[bytes], bytes]

PIECE_BYTES = 1 << 19
"""So much that the text and its items stay in a processor's own cache: twice as fast as with pieces of 8 MB."""
LONGEST_ITEM_BYTES = 8 << 20
"""When so much text has no complete item in it, it is damaged."""
GZIP = b"\x1f\x8b"
BARE = re.compile(rb"\s*\[")
BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
"""Where one object of the array may end and the next begins; also found inside strings and nested arrays."""
END = re.compile(rb"\}\s*(?:,\s*(?=\{|\Z)|(?=\])|\Z)")
"""The same, or the end of the array, or of the text."""
TRIES = 5
"""Places tried for a cut before the search for damage. The first is nearly always right."""


class LongArray(Generic[Item]):
    """Iterates over lists of items. `document` is a struct with a field `key: msgspec.Raw` for the array, and fields
    for what else the object holds; a document that is a bare array is read as if it stood under that key.

    mend: makes JSON of known faults; tried on a piece that is no JSON.
    After the iteration: `head` and `tail` hold what stood before and behind the array, `dropped` counts items that
    don't fit the type, `cut` says that the file ends too early, or that nothing was read from some damage on.
    Raises ParseError when there is no such array."""

    def __init__(self, path: Path, key: str, item: type[Item], document: type[msgspec.Struct], mend: Mend) -> None:
        self.path, self.mend = path, mend
        self.head: Any = None
        self.tail: Any = None
        self.dropped = 0
        self.cut = False
        self._opening = b'{"%s":[' % key.encode()
        self._start = re.compile(rb'"%s"\s*:\s*\[' % key.encode())
        self._unfit = 0
        self._key = key
        self._document = msgspec.json.Decoder(document)
        self._typed = msgspec.json.Decoder(list[item])  # type: ignore[valid-type]
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])
        self._single = msgspec.json.Decoder(item)

    def __iter__(self) -> Iterator[list[Item]]:
        try:
            with self.path.open("rb") as file:
                yield from self._pieces(self._blocks(file))
        except OSError as error:
            raise ParseError(f"{self.path.name} can't be read: {error.strerror or error}") from error

    # ---------------------------------------------------------------- text

    def _blocks(self, file: BinaryIO) -> Iterator[bytes]:
        """The text in blocks of about a piece."""
        start = file.read(PIECE_BYTES)
        if not start:
            raise ParseError(f"{self.path.name} is empty")
        if start.startswith(GZIP):
            return self._unpacked(start, file)
        return chain((start,), iter(lambda: file.read(PIECE_BYTES), b""))

    def _unpacked(self, data: bytes, file: BinaryIO) -> Iterator[bytes]:
        """The content of a gzip file, all its members, up to where it is damaged."""
        unpacker = gzip.decompressobj(wbits=31)
        try:
            while data:
                if block := unpacker.decompress(data, PIECE_BYTES):
                    yield block
                data = unpacker.unconsumed_tail or unpacker.unused_data or file.read(1 << 20)
                if unpacker.eof and data.startswith(GZIP):
                    unpacker = gzip.decompressobj(wbits=31)
                elif unpacker.eof:
                    break
            if block := unpacker.flush():
                yield block
        except gzip.error:  # type: ignore[misc]
            self.cut = True

    def _pieces(self, blocks: Iterator[bytes]) -> Iterator[list[Item]]:
        text, bare = self._from_array(blocks)
        for block in blocks:
            items, text = self._complete(text, BETWEEN)
            yield items
            if not items and len(text) > LONGEST_ITEM_BYTES:
                self.cut = True
                return
            text += block
        yield self._last(text, b"}" if bare else b"")

    def _from_array(self, blocks: Iterator[bytes]) -> tuple[bytes, bool]:
        """The text from the first item on, and whether the document is a bare array."""
        text, searched = b"", 0
        for block in blocks:
            text += block
            if found := BARE.match(text):
                return text[found.end() :], True
            while found := self._start.search(text, searched):
                if self._is_head(text[: found.end()]):
                    return text[found.end() :], False
                searched = found.end()
            searched = max(searched, len(text) - 64)
        said = "is a damaged gzip file" if self.cut else f"holds no array {self._key}"
        raise ParseError(f"{self.path.name} {said}")

    def _is_head(self, text: bytes) -> bool:
        try:
            self.head = self._whole(text + b"]}")
        except msgspec.DecodeError:
            return False
        return True

    # ---------------------------------------------------------------- items

    def _complete(self, text: bytes, ends: re.Pattern[bytes]) -> tuple[list[Item], bytes]:
        """The items up to the last place that is the end of one, or up to some damage, and the text behind."""
        places = _places(text, ends)
        for end, after in islice(places, TRIES):
            if (items := self._until(text, end)) is not None:
                return self._kept(items), text[after:]
        earlier = [(0, 0), *reversed(list(places))]
        sound = bisect(earlier, False, lo=1, key=lambda place: self._until(text, place[0]) is None) - 1
        end, after = earlier[sound]
        return self._kept(self._until(text, end) or []), text[after:]

    def _until(self, text: bytes, end: int) -> list[Item] | None:
        try:
            return self._items(b"".join((b"[", memoryview(text)[:end], b"]")))
        except msgspec.DecodeError:
            return None

    def _last(self, text: bytes, closing: bytes) -> list[Item]:
        try:
            self.tail = self._whole(self._opening + text + closing)
            return self._kept(self._items(bytes(getattr(self.tail, self._key))))
        except msgspec.DecodeError:
            self.cut = True
            return self._complete(text, END)[0]

    def _kept(self, items: list[Item]) -> list[Item]:
        """The items, now that they are what is read: those left out beside them are lost."""
        self.dropped += self._unfit
        return items

    def _whole(self, text: bytes) -> Any:
        try:
            return self._document.decode(text)
        except msgspec.DecodeError:
            return self._document.decode(self.mend(text))

    def _items(self, text: bytes) -> list[Item]:
        """The items of an array, without those of another type. Raises DecodeError when it is no JSON, even mended."""
        self._unfit = 0
        try:
            return self._typed.decode(text)
        except msgspec.ValidationError:
            return self._fitting(text)
        except msgspec.DecodeError:
            return self._fitting(self.mend(text))

    def _fitting(self, text: bytes) -> list[Item]:
        items = []
        for raw in self._raw.decode(text):
            try:
                items.append(self._single.decode(raw))
            except msgspec.DecodeError:
                self._unfit += 1
        return items


def _places(text: bytes, ends: re.Pattern[bytes]) -> Iterator[tuple[int, int]]:
    """Ends of objects from the last to the first, each with the start of what follows."""
    at = len(text)
    while (at := text.rfind(b"}", 0, at)) >= 0:
        if found := ends.match(text, at):
            yield at + 1, found.end()
