"""What a Perfetto trace says, read by Perfetto's own protos: another way than that of its writer."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Event:
    """A slice, an instant (end = start) or a counter's value. track: the names from the process or group down."""

    track: tuple[str, ...]
    name: str
    start: int
    end: int | None = None
    args: dict[str, Any] = field(default_factory=dict)
    flow: int | None = None
    value: float | None = None
    depth: int = 0


@dataclass
class Content:
    slices: list[Event] = field(default_factory=list)
    instants: list[Event] = field(default_factory=list)
    values: list[Event] = field(default_factory=list)
    clocks: list[dict[int, int]] = field(default_factory=list)
    packets: int = 0

    def on(self, *track: str) -> list[Event]:
        """The slices of the tracks that end with these names, in the order of time."""
        found = [one for one in self.slices if one.track[-len(track) :] == track]
        return sorted(found, key=lambda one: (one.start, one.depth))


def packets(path: Path) -> Iterator[Any]:
    for packet in Trace.FromString(path.read_bytes()).packet:
        if packet.HasField("compressed_packets"):
            yield from Trace.FromString(zlib.decompress(packet.compressed_packets)).packet
        else:
            yield packet


def read(path: Path) -> Content:
    """Plays the packets in the order of their time, as Perfetto does; those of one time in that of the file."""
    content, reading = Content(), _Reading()
    events = []
    for packet in packets(path):
        content.packets += 1
        if packet.HasField("clock_snapshot"):
            content.clocks.append({clock.clock_id: clock.timestamp for clock in packet.clock_snapshot.clocks})
        elif packet.HasField("track_event"):
            events.append(packet)
        else:
            reading.learn(packet)
    for packet in sorted(events, key=lambda one: one.timestamp):
        reading.play(packet, content)
    return content


class _Reading:
    def __init__(self) -> None:
        self.texts: dict[tuple[str, int], str] = {}
        self.tracks: dict[int, tuple[str, int]] = {}
        self.processes: dict[int, int] = {}
        self.open: dict[int, list[Event]] = defaultdict(list)

    def learn(self, packet: Any) -> None:
        for entry in packet.interned_data.event_names:
            self.texts["name", entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_names:
            self.texts["key", entry.iid] = entry.name
        for entry in packet.interned_data.debug_annotation_string_values:
            self.texts["text", entry.iid] = entry.str.decode()
        if packet.HasField("track_descriptor"):
            self._track(packet.track_descriptor)

    def _track(self, track: Any) -> None:
        assert track.uuid not in self.tracks, "no track is described twice"
        if track.HasField("process"):
            self.processes[track.process.pid] = track.uuid
            self.tracks[track.uuid] = f"{track.process.process_name} [{track.process.pid}]", 0
        elif track.HasField("thread"):
            above = self.processes[track.thread.pid]
            self.tracks[track.uuid] = f"{track.thread.thread_name} [{track.thread.tid}]", above
        else:
            assert not track.parent_uuid or track.parent_uuid in self.tracks, "parents come first"
            self.tracks[track.uuid] = track.name, track.parent_uuid

    def _path(self, uuid: int) -> tuple[str, ...]:
        name, above = self.tracks[uuid]
        return (*(self._path(above) if above else ()), name)

    def play(self, packet: Any, content: Content) -> None:
        event, time = packet.track_event, packet.timestamp
        open_ = self.open[event.track_uuid]
        if event.type == TrackEvent.TYPE_SLICE_END:
            open_.pop().end = time
            return
        made = Event(
            self._path(event.track_uuid),
            self.texts["name", event.name_iid] if event.name_iid else event.name,
            time,
            args={self.texts["key", one.name_iid]: self._value(one) for one in event.debug_annotations},
            flow=event.flow_ids[0] if event.flow_ids else None,
            depth=len(open_),
        )
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            open_.append(made)
            content.slices.append(made)
        elif event.type == TrackEvent.TYPE_INSTANT:
            made.end = time
            content.instants.append(made)
        else:
            made.value = event.double_counter_value
            content.values.append(made)

    def _value(self, annotation: Any) -> Any:
        kind = annotation.WhichOneof("value")
        found = getattr(annotation, kind)
        return self.texts["text", found] if kind == "string_value_iid" else found
