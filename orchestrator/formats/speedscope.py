"""Reads speedscope files, such as py-spy's, profrun's own and those of many others, into the tables `stacks` and
`functions`.

Format: https://www.speedscope.app/file-format-schema.json. Profiles are `sampled` (stacks with weights) or `evented`
(frames opened and closed), in time or, with the unit `none`, in samples."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from orchestrator.errors import ParseError
from orchestrator.formats.stacks import Row, functions_table, stacks_table
from orchestrator.tables import Table

MOST_BYTES = 2 << 30
"""Of a file, after unpacking."""
_BLOCK_BYTES = 1 << 20
_NS = {"nanoseconds": 1.0, "microseconds": 1e3, "milliseconds": 1e6, "seconds": 1e9}
_THREAD = re.compile(r'(?:Process (\d+) )?Thread (\d+) "(.*)"', re.S)
"""How py-spy names its profiles."""


class _Frame(msgspec.Struct):
    name: str
    file: str | None = None
    line: int | None = None


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Event(msgspec.Struct, gc=False):
    type: str
    frame: int
    at: float


class _Profile(msgspec.Struct):
    type: str
    unit: str = "none"
    name: str = ""
    samples: list[msgspec.Raw] = []
    weights: list[float] | None = None
    events: list[_Event] = []


class _File(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]
    exporter: str | None = None


@dataclass(frozen=True)
class Content:
    """What a file holds. exporter: what wrote it, such as py-spy@0.4.1. frames: distinct ones.

    profiles: (name, unit, samples or None, sum of the weights in that unit) of each."""

    tables: tuple[Table, ...]
    exporter: str | None
    frames: int
    profiles: tuple[tuple[str, str, int | None, float], ...]


def read(path: Path) -> Content:
    """The stacks of all profiles of a file, also gzipped. Raises ParseError for one that is none, or that is damaged.

    Samples without a unit have no time; of spans that were opened and closed the number of samples is unknown."""
    try:
        file = msgspec.json.decode(_unpacked(path), type=_File)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    except (msgspec.DecodeError, zlib.error, RecursionError) as error:
        raise ParseError(f"{path.name} is no speedscope file, or a damaged one: {error}") from error
    try:
        return _content(file, path)
    except (IndexError, OverflowError, msgspec.DecodeError, ValueError) as error:
        raise ParseError(f"{path.name} is a damaged speedscope file: {error}") from error


def _unpacked(path: Path) -> bytes:
    with path.open("rb") as file:
        if file.peek(2)[:2] != b"\x1f\x8b":
            data, more = file.read(MOST_BYTES), file.read(1)
        else:
            data, more = _inflated(file.read(MOST_BYTES)), b""
    if more or len(data) > MOST_BYTES:
        raise ParseError(f"{path.name} is longer than {MOST_BYTES >> 30} GiB: record with a lower rate")
    return data


def _inflated(packed: bytes) -> bytes:
    return zlib.decompressobj(31).decompress(packed, MOST_BYTES + 1)


def _content(file: _File, path: Path) -> Content:
    units = {profile.unit for profile in file.profiles}
    if units - {"none", *_NS}:
        others = ", ".join(sorted(units - {"none", *_NS}))
        raise ParseError(f"{path.name} counts {others}: only profiles in time or in samples are read")
    if "none" in units and len(units) > 1:
        raise ParseError(f"{path.name} has profiles in time beside some in samples: they can't be added up")
    timed = "none" not in units
    frames = [_text(frame) for frame in file.shared.frames]
    weighed = [_sampled(p) if p.type == "sampled" else _evented(p) for p in file.profiles]
    rows = [row for p, stacks in zip(file.profiles, weighed, strict=True) for row in _rows(p, stacks, frames, timed)]
    if not rows:
        raise ParseError(f"{path.name} holds no samples")
    samples = [len(p.samples) if p.type == "sampled" else None for p in file.profiles]
    sums = [sum(stacks.values()) for stacks in weighed]
    about = tuple((p.name, p.unit, n, s) for p, n, s in zip(file.profiles, samples, sums, strict=True))
    return Content(_tables(rows, samples, timed), file.exporter, len(frames), about)


def _tables(rows: Sequence[Row], samples: Sequence[int | None], timed: bool) -> tuple[Table, Table]:
    """With what is unknown left out: the time of counts, the number of samples of spans."""
    counted = sum(count or 0 for count in samples)
    total_s = sum(row.weight_ns for row in rows) / 1e9
    rate_hz = 1e9 if not timed else counted / total_s if total_s else 0.0
    stacks, functions = stacks_table(rows, rate_hz), functions_table(rows, rate_hz)
    if not timed:
        return _without(stacks, "weight_ns"), functions
    if None in samples:
        return _without(stacks, "samples"), _without(functions, "self_samples", "total_samples")
    return stacks, functions


def _without(table: Table, *names: str) -> Table:
    return replace(table, columns={**table.columns, **{name: [None] * len(table) for name in names}})


def _text(frame: _Frame) -> str:
    place = f"{frame.file}:{frame.line}" if frame.file and frame.line else frame.file
    text = f"{frame.name} ({place})" if place else frame.name
    return text.replace(";", ",").replace("\n", " ")


def _sampled(profile: _Profile) -> dict[tuple[int, ...], float]:
    """Weights by stack; equal stacks are equal texts, and so decoded once."""
    weights = [1.0] * len(profile.samples) if profile.weights is None else profile.weights
    sums: dict[bytes, float] = {}
    for sample, weight in zip(profile.samples, weights, strict=True):
        key = bytes(sample)
        sums[key] = sums.get(key, 0.0) + weight
    decode = msgspec.json.Decoder(tuple[int, ...]).decode
    found: dict[tuple[int, ...], float] = {}
    for text, weight in sums.items():
        stack = decode(text)
        found[stack] = found.get(stack, 0.0) + weight
    return found


def _evented(profile: _Profile) -> dict[tuple[int, ...], float]:
    """How long each stack was on top. A frame that never closes ends with the last event."""
    found: dict[tuple[int, ...], float] = {}
    stack: tuple[int, ...] = ()
    before = profile.events[0].at if profile.events else 0.0
    for event in profile.events:
        if stack and event.at > before:
            found[stack] = found.get(stack, 0.0) + event.at - before
        before = event.at
        if event.type == "O":
            stack = (*stack, event.frame)
        elif event.frame in stack:
            stack = stack[: len(stack) - 1 - stack[::-1].index(event.frame)]
    return found


def _rows(profile: _Profile, stacks: dict[tuple[int, ...], float], frames: Sequence[str], timed: bool) -> Iterator[Row]:
    scale = _NS[profile.unit] if timed else 1.0
    found = _THREAD.fullmatch(profile.name)
    pid = int(found[1]) if found and found[1] else None
    thread = (found[3] or f"thread {found[2]}") if found else profile.name or None
    for stack, weight in stacks.items():
        if any(number < 0 for number in stack):
            raise IndexError("a frame's number is negative")
        yield Row(
            pid, None, thread, "time" if timed else "samples", tuple(frames[n] for n in stack), round(weight * scale)
        )
