"""formats/longarray.py: whatever the layout, the size of the pieces and the place of a cut, what json reads is read."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchestrator.errors import ParseError
from orchestrator.formats import longarray
from orchestrator.formats.longarray import LongArray

ITEMS: list[dict[str, Any]] = [
    {"n": 1},
    {"n": 2, "text": "quoted \" }, {\" and [ ] { }"},
    {"n": 3, "inner": [{"a": 1}, {"b": [{"c": 2}, {"d": 3}]}], "text": "ünï"},
    {"n": 4, "text": "}, {"},
    {"inner": {"x": [{}, {}]}, "n": 5},
    {"n": 6},
]  # fmt: skip
BEFORE = {"about": {"items": 3, "list": [{"a": 1}, {"b": 2}]}, "first": 1}
BEHIND = {"last": [{"name": "x"}, {"name": "y"}], "more": "}, {"}


class One(msgspec.Struct):
    n: int
    text: str | None = None


class Whole(msgspec.Struct):
    items: msgspec.Raw
    first: int | None = None
    more: str | None = None


def same(text: bytes) -> bytes:
    return text


def of(path: Path, content: bytes, mend: Any = same) -> LongArray[One]:
    path.write_bytes(content)
    return LongArray(path, "items", One, Whole, mend)


def numbers(array: LongArray[One]) -> list[int]:
    return [item.n for items in array for item in items]


def written(indent: int | None) -> bytes:
    return json.dumps({**BEFORE, "items": ITEMS, **BEHIND}, indent=indent, ensure_ascii=False).encode()


@pytest.mark.parametrize("indent", [None, 0, 2])
@pytest.mark.parametrize("size", [3, 7, 40, 100, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
def test_all_items_and_what_stands_around_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, size: int, packed: bool
) -> None:
    monkeypatch.setattr(longarray, "PIECE_BYTES", size)
    monkeypatch.setattr(longarray, "LONGEST_ITEM_BYTES", 1 << 20)
    text = written(indent)
    array = of(tmp_path / "x", gzip.compress(text) if packed else text)
    assert numbers(array) == [1, 2, 3, 4, 5, 6]
    assert (array.head.first, array.tail.more, array.cut, array.dropped) == (1, "}, {", False, 0)


@pytest.mark.parametrize("size", [7, 100, 1 << 20])
def test_a_bare_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(longarray, "PIECE_BYTES", size)
    array = of(tmp_path / "x", b"\n" + json.dumps(ITEMS).encode() + b"\n")
    assert numbers(array) == [1, 2, 3, 4, 5, 6]
    assert not array.cut


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [50, 1 << 20])
def test_cut_off_anywhere_gives_what_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, size: int
) -> None:
    monkeypatch.setattr(longarray, "PIECE_BYTES", size)
    monkeypatch.setattr(longarray, "LONGEST_ITEM_BYTES", 1 << 20)
    text = written(indent)
    begin = text.index(b'"items": [') + len(b'"items": [')
    ends, position = [], begin
    for item in ITEMS:
        shown = json.dumps(item, indent=indent, ensure_ascii=False)
        shown = shown if indent is None else shown.replace("\n", "\n" + 2 * " " * indent)
        position = text.index(shown.encode(), position) + len(shown.encode())
        ends.append(position)
    for cut in range(begin, len(text)):
        array = of(tmp_path / "x", text[:cut])
        assert len(numbers(array)) == sum(end <= cut for end in ends), text[:cut]
        assert array.cut


def test_a_gzip_stream_of_several_members_that_is_cut_off(tmp_path: Path) -> None:
    many = b'{"items": [' + b",".join(b'{"n": %d}' % n for n in range(20_000)) + b"]}"
    half = len(many) // 2
    packed = gzip.compress(many[:half]) + gzip.compress(many[half:])
    assert numbers(of(tmp_path / "x", packed)) == list(range(20_000))
    array = of(tmp_path / "x", packed[: int(len(packed) * 0.8)])
    found = numbers(array)
    assert found == list(range(len(found)))
    assert 10_000 < len(found) < 20_000
    assert array.cut


def test_a_damaged_gzip_stream_gives_what_comes_before_the_damage(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(longarray, "PIECE_BYTES", 4096)
    text = b'{"items": [' + b",".join(b'{"n": %d}' % n for n in range(20_000)) + b"]}"
    packed = bytearray(gzip.compress(text))
    packed[-6] ^= 0xFF
    with pytest.raises(zlib.error, match="incorrect data check"):
        zlib.decompress(bytes(packed), wbits=31)
    array = of(tmp_path / "x", bytes(packed))
    found = numbers(array)
    assert found == list(range(len(found)))
    assert len(found) > 19_000
    assert array.cut


def test_items_of_another_type_are_left_out_and_counted(tmp_path: Path) -> None:
    array = of(tmp_path / "x", b'{"items": [{"n": 1}, {"n": "two"}, {"n": 3}, 4, null, {"m": 5}, {"n": 6}]}')
    assert numbers(array) == [1, 3, 6]
    assert (array.dropped, array.cut) == (4, False)
    array = of(tmp_path / "x", b'{"items": [{"n": 1}, {"n": "two"}, {"n": 3}, {"n": 4')
    assert numbers(array) == [1, 3]
    assert (array.dropped, array.cut) == (1, True)


def test_damage_in_the_middle_ends_the_reading_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [b'{"n": %d}' % n for n in range(1000)]
    many[617] = b'{"n": oops}'
    for size in (100, 1 << 20):
        monkeypatch.setattr(longarray, "PIECE_BYTES", size)
        array = of(tmp_path / "x", b'{"items": [' + b",".join(many) + b"]}")
        assert numbers(array) == list(range(617))
        assert array.cut


def test_known_faults_are_mended(tmp_path: Path) -> None:
    array = of(tmp_path / "x", b'{"items": [{"n": 1}, {"n": 2, "x": nan}]}', lambda text: text.replace(b"nan", b"null"))
    assert numbers(array) == [1, 2]
    assert not array.cut


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "x is empty"),
        (b"no json", "x holds no array items"),
        (b'{"items": 3}', "x holds no array items"),
        (b'{"broken: "items": [{"n": 1}]}', "x holds no array items"),
        (b"\x1f\x8b no gzip", "x is a damaged gzip file"),
        (gzip.compress(written(None), mtime=0)[:10], "x holds no array items"),
    ],
)
def test_what_holds_no_such_array_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(ParseError, match=said):
        numbers(of(tmp_path / "x", content))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="can't be read: No such file"):
        numbers(LongArray(tmp_path / "none.json", "items", One, Whole, same))
