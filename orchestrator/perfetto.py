"""A Perfetto trace written piece by piece: tracks, and what happens on them. Nothing of it stays in memory but names.

The packets are made by Perfetto's own Python protos (https://perfetto.dev/docs/reference/synthetic-track-event). Those
of one content differ only in their time (and in a flow's number, or a counter's value), so that each is made once, and
is then repeated with those few bytes changed: millions of events would take minutes otherwise.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TracePacket, TrackEvent

SEQUENCE = 1
MOST_PARTS = 1 << 18
"""So many parts of packets are packed together, which makes some megabytes: Perfetto unpacks them."""
MOST_BYTES = 1 << 24
"""The same for what is longer than usual: names."""
MOST_NAMES, MOST_CHARACTERS = 1 << 19, 1 << 26
"""So many names are written once and then meant by number; further ones stand in full where they are used."""
KEPT = 1 << 14
"""So many packets are remembered."""

BEGIN, END = TrackEvent.TYPE_SLICE_BEGIN, TrackEvent.TYPE_SLICE_END
INSTANT, COUNTER = TrackEvent.TYPE_INSTANT, TrackEvent.TYPE_COUNTER
EPOCH_CLOCK, TRACE_CLOCK = 1, 6
"""BuiltinClock: REALTIME, and BOOTTIME, which times without a clock are on."""
_TIME_BYTES = 9
_TIME = 1 << 7 * _TIME_BYTES - 1
"""Stands for a time where a packet is made: of as many bytes as any time is written with."""
_VALUE = 0x1DEA_C0DE_1DEA_C0DE
"""The same for a flow, or the bytes of a counter's value: eight in any case."""

Encoded = list[bytes]


class Packet(NamedTuple):
    """A packet as it is written, but for its time and its value, which stand between these parts."""

    head: bytes
    middle: bytes
    tail: bytes


class Track:
    """A line of the timeline. Slices on one line lie within one another; those that would not get a line of the same
    name, which Perfetto shows as part of the first."""

    def __init__(self, describe: Callable[[], Lane]) -> None:
        self._describe = describe
        self.lanes: list[Lane] = []

    def lane(self) -> Lane:
        """One line more."""
        self.lanes.append(self._describe())
        return self.lanes[-1]

    def line(self) -> int:
        """The first line, for what needs no other."""
        return (self.lanes[0] if self.lanes else self.lane()).uuid


@dataclass
class Lane:
    """A track of the file, the packet that ends a slice on it, and the ends of those that are open, the innermost
    last."""

    uuid: int
    end: Packet
    open: list[tuple[int, bytes]] = field(default_factory=list)
    latest: int = -1
    """No slice that begins before can be added."""


class Kind(dict[int, Packet]):
    """Slices of one track that differ in their times only: the packet that begins them, by line."""

    def __init__(self, track: Track, begin: Callable[[int], Packet]) -> None:
        self.track, self._begin = track, begin

    def __missing__(self, uuid: int) -> Packet:
        packet = self[uuid] = self._begin(uuid)
        return packet


Slice = tuple[Kind, int, int, bytes, bytes, bytes]
"""A slice: what kind it is of; its start and end in ns, and both as `times` has them; its flow as `values` has it, or
nothing."""


class Writer:
    """Writes a trace to `write`. `close` has to come last."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        self._parts: list[bytes] = []
        self._bytes = self._characters = 0
        self._uuid = 0
        self._numbers: dict[tuple[str, str], int] = {}
        first = self._packet()
        first.sequence_flags = TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._put(first)
        self.packet = lru_cache(KEPT)(self._made)
        """A packet of one event on a line: kind, line, name, arguments (name and value each), and `flow` or `counter`
        where it has such a value."""

    # tracks -----------------------------------------------------------------------------------------------------------

    def process(self, pid: int, name: str, command: tuple[str, ...] = (), place: int | None = None) -> Track:
        """place: where it stands among the others, where that is not by chance."""

        def describe(packet: Any) -> None:
            packet.track_descriptor.process.pid = pid
            if place is not None:
                packet.track_descriptor.process.legacy_sort_index = place
                packet.track_descriptor.sibling_order_rank = place
            packet.track_descriptor.process.process_name = name
            packet.track_descriptor.process.cmdline.extend(command)

        return self._track(describe)

    def thread(self, pid: int, tid: int, name: str) -> Track:
        def describe(packet: Any) -> None:
            packet.track_descriptor.thread.pid = pid
            packet.track_descriptor.thread.tid = tid
            packet.track_descriptor.thread.thread_name = name

        return self._track(describe)

    def track(self, name: str, parent: Track | None = None) -> Track:
        def describe(packet: Any) -> None:
            packet.track_descriptor.name = name
            if parent is not None:
                packet.track_descriptor.parent_uuid = parent.line()

        return self._track(describe)

    def counter(self, name: str, parent: Track | None = None) -> Track:
        def describe(packet: Any) -> None:
            packet.track_descriptor.name = name
            packet.track_descriptor.counter.SetInParent()
            if parent is not None:
                packet.track_descriptor.parent_uuid = parent.line()

        return self._track(describe)

    def _track(self, describe: Callable[[Any], None]) -> Track:
        def described() -> Lane:
            self._uuid += 1
            packet = self._packet()
            packet.track_descriptor.uuid = uuid = self._uuid
            describe(packet)
            self._put(packet)
            return Lane(uuid, self._made(END, uuid))

        return Track(described)

    # events -----------------------------------------------------------------------------------------------------------

    def slices(self, rows: Iterable[Slice]) -> None:
        """Slices by their start; of those that begin together the longest first."""
        parts = self._parts
        for kind, start, end, began, ended, flow in rows:
            for lane in kind.track.lanes:
                open_ = lane.open
                while open_ and open_[-1][0] <= start:
                    parts += (lane.end.head, open_.pop()[1], lane.end.middle)
                if start >= lane.latest and (not open_ or end <= open_[-1][0]):
                    break
            else:
                lane = kind.track.lane()
            packet = kind[lane.uuid]
            parts += (packet.head, began, packet.middle, flow, packet.tail)
            lane.open.append((end, ended))
            lane.latest = start
            if len(parts) > MOST_PARTS:
                self._flush()

    def event(self, packet: Packet, time: bytes, value: bytes = b"") -> None:
        """Any other event: an instant, a counter's value; the beginning or end of a slice, whose order the caller sees
        to."""
        self._add(packet.head, time, packet.middle, value, packet.tail)

    def clock(self, epoch_ns: int) -> None:
        """Says that times are counted from the Unix epoch."""
        packet = self._packet()
        for number in (TRACE_CLOCK, EPOCH_CLOCK):
            packet.clock_snapshot.clocks.add(clock_id=number, timestamp=epoch_ns)
        self._put(packet)

    def close(self, tracks: list[Track]) -> None:
        """Ends what is open on these, and writes the rest. What has no end stays open."""
        for lane in (lane for track in tracks for lane in track.lanes):
            while lane.open and lane.open[-1][0] != ENDLESS:
                self._add(lane.end.head, lane.open.pop()[1], lane.end.middle)
        self._flush()

    # packets ----------------------------------------------------------------------------------------------------------

    def _packet(self) -> Any:
        packet = TracePacket()
        packet.trusted_packet_sequence_id = SEQUENCE
        return packet

    def _made(
        self, kind: int, uuid: int, name: str = "", args: tuple[tuple[str, Any], ...] = (), value: str = ""
    ) -> Packet:
        packet = self._packet()
        packet.timestamp = _TIME
        packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        event = packet.track_event
        event.type, event.track_uuid = kind, uuid
        if name:
            self._name(event, "event_names", name)
        for key, text in args:
            self._annotate(event.debug_annotations.add(), key, text)
        if value == "flow":
            event.flow_ids.append(_VALUE)
        elif value == "counter":
            event.double_counter_value = np.uint64(_VALUE).view(np.float64).item()
        made = packet.SerializeToString()
        self._count(len(made))
        return _parted(made, bool(value))

    def _annotate(self, annotation: Any, key: str, value: Any) -> None:
        annotation.name_iid = self._number("debug_annotation_names", key)  # there are few
        if isinstance(value, bool):
            annotation.bool_value = value
        elif isinstance(value, int):
            annotation.int_value = value
        elif isinstance(value, float):
            annotation.double_value = value
        else:
            self._text(annotation, "string_value", "debug_annotation_string_values", value)

    def _name(self, of: Any, kind: str, text: str) -> None:
        self._text(of, "name", kind, text)

    def _text(self, of: Any, field: str, kind: str, text: str) -> None:
        """A text by its number, or in full where there are too many."""
        room = len(self._numbers) < MOST_NAMES and self._characters < MOST_CHARACTERS
        if room or (kind, text) in self._numbers:
            setattr(of, f"{field}_iid", self._number(kind, text))
        else:
            setattr(of, field, text.encode("utf-8", "replace").decode())

    def _number(self, kind: str, text: str) -> int:
        """The number by which packets name a text, which is written before its first use."""
        number = self._numbers.get((kind, text))
        if number is None:
            number = self._numbers[kind, text] = len(self._numbers) + 1
            self._characters += len(text)
            packet = self._packet()
            entry = getattr(packet.interned_data, kind).add()
            entry.iid = number
            if kind == "debug_annotation_string_values":
                entry.str = text.encode("utf-8", "surrogateescape")
            else:
                entry.name = text.encode("utf-8", "replace").decode()
            packet.sequence_flags = TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            self._put(packet)
        return number

    def _put(self, packet: Any) -> None:
        framed = _framed(packet.SerializeToString())
        self._add(framed)
        self._count(len(framed))

    def _count(self, size: int) -> None:
        self._bytes += size
        if self._bytes > MOST_BYTES:
            self._flush()

    def _add(self, *parts: bytes) -> None:
        self._parts += parts
        if len(self._parts) > MOST_PARTS:
            self._flush()

    def _flush(self) -> None:
        packed = TracePacket()
        packed.compressed_packets = zlib.compress(b"".join(self._parts), 1)
        self._write(_framed(packed.SerializeToString()))
        self._parts.clear()
        self._bytes = 0


ENDLESS = (1 << 62) - 1
"""The end of a slice that was still open when the recording ended."""


def times(values: NDArray[np.int64]) -> Encoded:
    """Times (ns, from 0 on) as they stand in packets: numbers of seven bits a byte, all of one length."""
    shifts = np.arange(_TIME_BYTES, dtype=np.uint64) * np.uint64(7)
    bits = (values.astype(np.uint64)[:, None] >> shifts) & np.uint64(0x7F)
    bits[:, :-1] |= np.uint64(0x80)
    return _cut(bits.astype(np.uint8), _TIME_BYTES)


def values(of: NDArray[Any]) -> Encoded:
    """Flows (uint64) or values of counters (float64) as they stand in packets."""
    return _cut(of.astype(of.dtype.newbyteorder("<")), 8)


def _cut(array: NDArray[Any], width: int) -> Encoded:
    raw = array.tobytes()
    return [raw[place : place + width] for place in range(0, len(raw), width)]


def _parted(packet: bytes, has_value: bool) -> Packet:
    """Parts a packet at its time, which stands right at its beginning, and at its value."""
    framed = _framed(packet)
    time = framed.index(times(np.array([_TIME]))[0])
    head, rest = framed[:time], framed[time + _TIME_BYTES :]
    if not has_value:
        return Packet(head, rest, b"")
    middle, _, tail = rest.rpartition(_VALUE.to_bytes(8, "little"))
    return Packet(head, middle, tail)


def _framed(packet: bytes) -> bytes:
    """A packet as an item of a Trace, which is a list of them: its field number, its length, itself."""
    length, size = b"", len(packet)
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return b"\n" + length + bytes([size]) + packet
