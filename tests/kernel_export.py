"""Makes small exports of nsys that hold nothing but kernels, as nsys writes them since 2022."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


@dataclass(frozen=True)
class Kernel:
    """One launch: ns of the recording, sizes as x,y,z."""

    mangled: str
    start: int
    duration: int = 10
    grid: str = "64,1,1"
    block: str = "256,1,1"
    demangled: str = ""
    short: str = ""
    pid: int = 100
    device: int = 0
    stream: int = 7


def make(path: Path, kernels: Iterable[Kernel], graphs: int = 0, epoch_ns: int = 10**18) -> Path:
    """The export at `path`; launches are numbered in the order in which they are given."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers) + 1)

    rows = [
        (
            k.start, k.start + k.duration, k.device, 1, k.stream, correlation, k.pid << 24,
            number(k.demangled or k.mangled), number(k.short or k.mangled), number(k.mangled),
            *map(int, f"{k.grid},{k.block}".split(",")),
        )
        for correlation, k in enumerate(kernels, 1)
    ]  # fmt: skip
    columns = (
        "start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid", "demangledName", "shortName",
        "mangledName", *SIZES,
    )  # fmt: skip
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", ((n, text) for text, n in numbers.items()))
        db.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
        db.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?)", (epoch_ns,))
        db.execute("CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT)")
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (0, 'Some GPU')")
        if rows:
            db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({', '.join(f'{c} INTEGER' for c in columns)})")
            marks = ", ".join("?" * len(columns))
            db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", rows)
        if graphs:
            db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)")
            db.executemany("INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (0, 1000000)", [()] * graphs)
    db.close()
    return path
