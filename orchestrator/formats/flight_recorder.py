"""Reads what PyTorch's flight recorder has kept of a rank's collectives into the table `collectives`.

Its files are pickles of plain data (torch/csrc/distributed/c10d/FlightRecorderDetail.hpp, `dump`), written where
TORCH_FR_DUMP_TEMP_FILE says, with the rank at the end of their names. NCCL's recorder follows each collective through
scheduled, started and completed; Gloo's leaves it scheduled, and marks what is done as retired."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import ParseError
from orchestrator.formats import plain_pickle
from orchestrator.formats.stacks import is_own
from orchestrator.tables import SCHEMAS, Table

MOST_BYTES = 256 << 20
COLUMNS = ("rank", *(column.name for column in SCHEMAS["collectives"] if column.name != "capture"))


def read(path: Path, rank: int, pid: int | None, written_ns: int | None, fresh: bool) -> Table:
    """A row for each collective that the recorder remembers, the oldest first.

    written_ns: when the file was written, in ns since the epoch; fresh: it was asked for, and says what is now. Raises
    ParseError for what is no file of a flight recorder."""
    found = plain_pickle.read(path, MOST_BYTES, "start the program with a smaller TORCH_FR_BUFFER_SIZE")
    try:
        rows = [(rank, pid, *_row(entry, found, written_ns), fresh) for entry in _entries(found)]
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ParseError(f"{path.name} is a pickle, but none of a flight recorder ({error!r})") from error
    return Table.of("collectives", rows, COLUMNS, clock="epoch")


def _entries(found: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "version" not in found:
        raise KeyError("version")
    yield from found.get("entries", ())  # without any collective there is no list


def _row(entry: Mapping[str, Any], found: Mapping[str, Any], written_ns: int | None) -> tuple[Any, ...]:
    group, description = entry["process_group"]
    created_ns, done = int(entry["time_created_ns"]), bool(entry.get("retired")) or entry["state"] == "completed"
    place = _place(entry.get("frames") or ())
    return (
        str(group),
        None if description in ("", "undefined") else str(description),
        _ranks(found, group),
        int(entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]),
        str(entry["profiling_name"]).rpartition(":")[2],
        bool(entry.get("is_p2p")),
        str(entry["state"]),
        done,
        _sizes(entry.get("input_sizes")),
        _sizes(entry.get("output_sizes")),
        ", ".join(map(str, entry.get("input_dtypes") or ())) or None,
        created_ns,
        None if done or written_ns is None else max(0, written_ns - created_ns),
        *place,
    )


def _ranks(found: Mapping[str, Any], group: Any) -> str | None:
    """The members of a process group, as 0,1; None where the recorder has not been told (Gloo)."""
    config = found.get("pg_config", {}).get(group, {})
    ranks = json.loads(config.get("ranks") or "[]")
    return ",".join(str(int(rank)) for rank in ranks) or None


def _sizes(sizes: Any) -> str | None:
    return json.dumps([[int(n) for n in one] for one in sizes]) if sizes else None


def _place(frames: Any) -> tuple[str | None, str | None, int | None]:
    """Where the program called it: function, file, line of its innermost frame outside of Python's own and installed
    packages."""
    frame = next((f for f in frames if is_own(str(f["filename"]))), next(iter(frames), None))
    return (None, None, None) if frame is None else (str(frame["name"]), str(frame["filename"]), int(frame["line"]))
