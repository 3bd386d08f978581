"""Reads snapshots of PyTorch's CUDA memory (torch.cuda.memory._dump_snapshot) into the table `memory`.

Such a file is a pickle, which could hold any program: only plain data is read, and everything else refused. Its content
is described in torch/cuda/memory.py and c10/cuda/CUDACachingAllocator.h."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ParseError
from orchestrator.formats import plain_pickle
from orchestrator.tables import Table

MOST_BYTES = 512 << 20


@dataclass(frozen=True)
class Content:
    """What a snapshot holds. Sums over all devices, in bytes; events: by action."""

    memory: Table
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    events: Mapping[str, int]


def read(path: Path) -> Content:
    """The table `memory`, a row for each block taken or given back, and what was held when the snapshot was taken. In
    the table blocks have the size that was asked for; the allocator rounds some up.

    `op` is the innermost Python frame outside of torch. Raises ParseError for what is no snapshot."""
    snapshot = plain_pickle.read(path, MOST_BYTES, "record with fewer max_entries")
    try:
        return _content(snapshot)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ParseError(f"{path.name} is a pickle, but no snapshot of CUDA memory ({error!r})") from error


def _content(snapshot: Any) -> Content:
    segments = snapshot["segments"]
    held: dict[int, list[int]] = {}
    for segment in segments:
        sums = held.setdefault(segment["device"], [0, 0])
        sums[0] += _asked_for(segment)
        sums[1] += segment["total_size"]
    rows: list[tuple[Any, ...]] = []
    events: dict[str, int] = {}
    for device, trace in enumerate(snapshot["device_traces"]):
        for event in trace:
            events[event["action"]] = events.get(event["action"], 0) + 1
        rows += _rows(device, trace, *held.get(device, (0, 0)))
    reserved, allocated = (sum(segment[name] for segment in segments) for name in ("total_size", "allocated_size"))
    return Content(Table.of("memory", rows, clock="epoch"), len(segments), reserved, allocated, events)


def _asked_for(segment: Any) -> int:
    """Bytes of its blocks as they were asked for: events tell those, not what a block was rounded up to."""
    blocks = (block for block in segment["blocks"] if block["state"] == "active_allocated")
    return sum(block.get("requested_size", block["size"]) for block in blocks)


_TAKEN = {"alloc": 1, "free_requested": -1}
"""A block counts as allocated until its release is asked for, as in torch.cuda.memory_allocated()."""
_RESERVED = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _rows(device: int, trace: list[Any], allocated: int, reserved: int) -> list[tuple[Any, ...]]:
    """In the order of time. What was held at the end is known, what was held before follows from it backwards."""
    rows = []
    names: dict[int, str | None] = {}
    for event in reversed(trace):
        action, size = event["action"], event["size"]
        if action in _TAKEN:
            frames = event.get("frames") or []
            if id(frames) not in names:
                names[id(frames)] = _place(frames)
            changed = _TAKEN[action] * size
            time_ns, address = event["time_us"] * 1000, event["addr"]
            where = f"cuda:{device}"
            rows.append((None, None, None, time_ns, where, address, changed, allocated, reserved, names[id(frames)]))
            allocated -= changed
        reserved -= _RESERVED.get(action, 0) * size
    return rows[::-1]


def _place(frames: list[Any]) -> str | None:
    """Where in the program: the innermost Python frame, of torch's own only where there is no other."""
    python = [frame for frame in frames if frame["filename"].endswith(".py")]
    own = next((frame for frame in python if "/torch/" not in frame["filename"]), None)
    found = own or next(iter(python), None)
    return f"{found['name']} ({found['filename']}:{found['line']})" if found else next(_operators(frames), None)


def _operators(frames: list[Any]) -> Iterator[str]:
    """aten::bmm for at::_ops::bmm::call(...)."""
    for frame in frames:
        if frame["name"].startswith("at::_ops::"):
            yield "aten::" + frame["name"].split("::")[2]
