"""Stand-alone (`python -I -S ncu_rep.py FILE PACKAGES MEMORY_BYTES CPU_S OUTPUT_BYTES`): what an .ncu-rep file holds.

NVIDIA's package `ncu_report`, found in the folder PACKAGES, reads it. On a damaged file that package may end its
process, print, or take all memory there is: so it works here, alone and within limits. On stdout, a line of JSON each:

    {"metrics": [[NAME, UNIT], ...]}       the metrics of the launches that follow
    {"launch": N, "demangled": ..., "function": ..., "values": [...], "texts": {NAME: TEXT}, "rules": [...]}
    {"end": {"lost": N, "cut": BYTE}}      launches that can't be read; where the file is cut off or damaged, or null
    {"error": TEXT}

The reader's interface is described in NVIDIA's "Python Report Interface". Of a file's build this much is needed here,
seen in reports of 2021 to 2025: "NVR" and a zero byte, then a header and blocks, each a protobuf message after its
length in 4 bytes. A block's message says in field 2 how many launches and in field 5 how many bytes follow it.
"""

from __future__ import annotations

import json
import math
import os
import resource
import struct
import sys
from pathlib import Path
from typing import Any, TextIO

TEXTS = ("device__attribute_display_name",)
"""The metrics that are text and wanted; the others are only names of other metrics."""
_LAUNCHES, _PAYLOAD = 2, 5
_COPIED_BYTES = 1 << 20


# ---------------------------------------------------------------- how far the file is whole


def varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, place after it) of protobuf's variable-length number, which has ten bytes at most."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise IndexError


def numbers(message: bytes) -> dict[int, int]:
    """{field: value} of the numbers that a protobuf message holds at its top level."""
    found: dict[int, int] = {}
    at = 0
    while at < len(message):
        key, at = varint(message, at)
        value, at = varint(message, at) if key & 7 in (0, 2) else (0, at)
        if key & 7 == 0:
            found[key >> 3] = value
        else:
            at += {1: 8, 2: value, 5: 4}[key & 7]
    return found


def whole(path: str) -> tuple[int, int, int]:
    """(launches in the whole blocks, place where the whole blocks end, size); 0 launches in files built otherwise."""
    size, launches, place = Path(path).stat().st_size, 0, 0
    with Path(path).open("rb") as file:
        if file.read(4) != b"NVR\0":
            return 0, 0, size
        after = 4
        while place < after <= size:
            place = after
            file.seek(place)
            try:
                (length,) = struct.unpack("<I", file.read(4))
                fields = numbers(file.read(min(length, size - place)))
            except (struct.error, IndexError, KeyError):
                break
            after = place + 4 + length + fields.get(_PAYLOAD, 0)
            launches += fields.get(_LAUNCHES, 0) if after <= size else 0
    return launches, place, size


def beginning(path: str, size: int) -> str:
    """A copy in memory of a file's first bytes; gives its path. The reader finds nothing in a file that is cut off."""
    copy = os.memfd_create("ncu-rep")
    with Path(path).open("rb") as file:
        while size > 0:
            size -= os.write(copy, file.read(min(size, _COPIED_BYTES)))
    return f"/proc/self/fd/{copy}"


# ---------------------------------------------------------------- what it holds


def tell(out: TextIO, what: dict[str, Any]) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def read(path: str, reader: Any, out: TextIO) -> None:
    launches, place, size = whole(path)
    cut = place if launches and place < size else None
    report = reader.load_report(path if cut is None else beginning(path, place))
    parts = [report.range_by_idx(i) for i in range(report.num_ranges())]
    told, lost = 0, 0
    metrics: list[list[str | None]] = []
    for number, action in enumerate(part.action_by_idx(i) for part in parts for i in range(part.num_actions())):
        try:
            found = [action.metric_by_name(name) for name in sorted(action.metric_names())]
            names = [[plain(metric.name()), plain(metric.unit())] for metric in found if not is_text(metric)]
            line = {"launch": number, **launch(action, found)}
        except Exception:  # what a damaged launch makes of the package
            lost += 1
            continue
        if names != metrics:
            metrics = names
            tell(out, {"metrics": metrics})
        tell(out, line)
        told += 1
    tell(out, {"end": {"lost": max(lost, launches - told), "cut": cut}})


def is_text(metric: Any) -> bool:
    return isinstance(metric.value(), str)


def launch(action: Any, metrics: list[Any]) -> dict[str, Any]:
    """Raises ValueError for a damaged one, of which the package knows no name."""
    if not action.name():
        raise ValueError
    return {
        "demangled": plain(action.name(action.NameBase_DEMANGLED)),
        "function": plain(action.name(action.NameBase_FUNCTION)),
        "values": [finite(metric.value()) for metric in metrics if not is_text(metric)],
        "texts": {metric.name(): plain(metric.value()) for metric in metrics if metric.name() in TEXTS},
        "rules": [rule(result) for result in action.rule_results()],
    }


def rule(result: Any) -> dict[str, Any]:
    message = result.rule_message() if result.has_rule_message() else {}
    gain = result.speedup_estimation() if result.has_speedup_estimation() else {}
    return {
        "section": plain(result.section_identifier()),
        "rule": plain(result.rule_identifier()),
        "type": message.get("type"),
        "title": plain(message.get("title")),
        "message": plain(message.get("message")),
        "speedup": finite(gain.get("speedup")),
        "scope": gain.get("type"),
    }


def finite(value: Any) -> Any:
    """None for what ncu did not collect: no value, or NaN after a launch that failed."""
    return None if value is None or not math.isfinite(value) else value


def plain(text: Any) -> str | None:
    """Text that can be encoded, whatever bytes a damaged file holds; None when there is none."""
    return str(text).encode("utf-8", "replace").decode() if text else None


def main(path: str, packages: str, memory_bytes: str, cpu_s: str, output_bytes: str) -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the package prints does not belong among the lines
    for kind, limit in (("AS", memory_bytes), ("CPU", cpu_s), ("FSIZE", output_bytes), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (int(limit), int(limit)))
    sys.path.append(packages)
    try:
        import ncu_report

        read(path, ncu_report, out)
    except Exception as error:  # the package raises whatever its C++ side throws
        tell(out, {"error": f"{type(error).__name__}: {error}".splitlines()[0]})


if __name__ == "__main__":
    main(*sys.argv[1:])
