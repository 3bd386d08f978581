"""What captures hold, as tables: those that belong together are read, and then joined.

Where their files are large, that is done in a copy of this process, several at a time: neither their memory nor their
end is ours then, and what they find in many rows goes right into the report's folder. So a report of many ranks takes
the room of the few that are being read.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from orchestrator import imported, kernel, process, registry
from orchestrator.collectors.base import Parsed
from orchestrator.errors import ParseError
from orchestrator.machine import Machine
from orchestrator.model import Capture, PassRecord, TargetRun, Tool
from orchestrator.units import show_bytes

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.tables import Piece, Stored, Table

Found: TypeAlias = "Parsed | str | None"
"""What the files of a capture say, without its tables; a string says why they can't be read; None: there are none."""
Log: TypeAlias = Callable[[str], None]

HEAVY_BYTES = 8 << 20
"""From so much on files are read by a process of their own: a copy of ours costs some 20 ms."""
MANY = 8
"""Where all files together are so many times as large, smaller ones count as heavy, too: that part of it."""
LARGE_ROWS = 1 << 14
"""From so many rows on a part of a table is put into the report's folder by who has read it, instead of being handed
over."""
HANDED_OVER = frozenset({"samples", "host_time", "gpu_time", "gpu_utilization", "gpu_work", "ranks", "rank_steps"})
"""However long: what is made of all captures together looks into them."""
MOST_WORKERS = 8
ROOM_FOR_EACH_BYTES, ROOM_PER_BYTE = 256 << 20, 6
"""What a process needs that reads files: a share of its own, and this many times their size (exports of nsys, 150 MB
for a million kernels; traces of torch.profiler need less)."""

_PASS_OPTIONS = ("role", "repeat", "picks")


@dataclass(frozen=True)
class Group:
    """Captures that are read together. lost: why some of them are not read any more, by id."""

    captures: tuple[Capture, ...]
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        return sum(map(_bytes, self.captures))

    def without(self, place: int, why: str) -> Group:
        """The same without the capture at that place; 0: without the largest that is left."""
        left = [capture for capture in self.captures if capture.id not in self.lost]
        culprit = self.captures[place - 1] if place else max(left, key=_bytes)
        size = f"its files have {show_bytes(_bytes(culprit))}"
        return replace(self, lost={**self.lost, culprit.id: f"the process that read it {why} ({size})"})


@dataclass(frozen=True)
class Reading:
    """What has come of some captures."""

    found: Mapping[str, Found] = field(default_factory=dict)
    parts: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    logged: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reader:
    """Reads groups of captures. told: tables of their passes that are known already; store: see `folder.store`."""

    captures: Sequence[Capture]
    passes: Sequence[PassRecord]
    told: Mapping[str, Sequence[Table]]
    store: Callable[[Table], Stored] | None = None

    def read(self, log: Log) -> Reading:
        """All captures. A fault of a parser, or its death, costs its own capture."""
        found = groups(self.captures)
        least = HEAVY_BYTES if sum(one.bytes for one in found) < MANY * HEAVY_BYTES else HEAVY_BYTES // MANY
        heavy = {n: one for n, one in enumerate(found) if self.store is not None and one.bytes >= least}
        done = {n: self.group(one) for n, one in enumerate(found) if n not in heavy}
        done |= self._beside(heavy)
        parts: dict[str, list[Piece]] = {}
        for reading in (done[number] for number in range(len(found))):
            for name, pieces in reading.parts.items():
                parts.setdefault(name, []).extend(pieces)
            for text in reading.logged:
                log(text)
        return Reading({id_: one for reading in done.values() for id_, one in reading.found.items()}, parts)

    def group(self, group: Group, tell: Callable[[int], None] = lambda place: None, *, aside: bool = False) -> Reading:
        """One group. `tell` gets the place of each capture that is begun; 0: all have been read. aside: long parts are
        put aside."""
        from orchestrator.locate import locate

        found: dict[str, Found] = {}
        records = {record.id: record for record in self.passes}
        parts: dict[str, list[Table]] = {name: list(tables) for name, tables in self.told.items()}
        logged: list[str] = []
        for place, capture in enumerate(group.captures, 1):
            tell(place)
            parsed = group.lost.get(capture.id) or parse(capture, logged.append)
            if isinstance(parsed, Parsed):
                task = records[capture.pass_id].task_of(capture.id) if capture.pass_id in records else None
                for table in (one.led_by(task) if task else one for one in parsed.tables):
                    parts.setdefault(table.name, []).append(table.with_capture(capture.id, capture.rank))
                parsed = replace(parsed, tables=())
            found[capture.id] = parsed
        tell(0)
        known = [updated(capture, found.get(capture.id)) for capture in self.captures]
        told = {id(table) for tables in self.told.values() for table in tables}
        made = locate(parts, known, self.passes, logged.append)
        own = {name: [t for t in tables if id(t) not in told] for name, tables in made.items()}
        return Reading(found, {n: self._kept(n, tables, aside) for n, tables in own.items() if tables}, tuple(logged))

    def _kept(self, name: str, tables: Sequence[Table], aside: bool) -> list[Piece]:
        if not aside or self.store is None or name in HANDED_OVER:
            return list(tables)
        return [self.store(table) if len(table) >= LARGE_ROWS else table for table in tables]

    def _beside(self, heavy: Mapping[int, Group]) -> dict[int, Reading]:
        """Each group by a process of its own. One that has lost a process is read again, without the capture that did
        it."""
        waiting, running = deque(heavy.items()), dict[process.Worker, tuple[int, Group]]()
        done: dict[int, Reading] = {}
        most = _workers([group.bytes for group in heavy.values()])
        if heavy:
            _load()
        try:
            while waiting or running:
                while waiting and len(running) < most:
                    number, group = waiting.popleft()
                    try:
                        running[process.Worker(partial(self.group, group, aside=True))] = number, group
                    except OSError:  # no room for one more process
                        done[number] = self.group(group, aside=True)
                if not running:
                    continue
                worker = process.first_ended([*running])
                number, group = running.pop(worker)
                try:
                    done[number] = worker.result()
                except (process.Lost, MemoryError) as error:
                    waiting.append((number, group.without(worker.at, _why(error))))
                except RuntimeError:  # what it has can't be handed over, say: here that needs no handing over
                    done[number] = self.group(group, aside=True)
        finally:
            for worker in running:
                worker.kill()
        return done


def groups(captures: Sequence[Capture]) -> list[Group]:
    """Those of a pass that are of the same rank, in their order. Of imported files nobody knows what belongs together:
    several large ones of one tool are of several processes, of several tools they may be of one."""
    large = Counter(capture.collector for capture in captures if capture.imported and _bytes(capture) >= HEAVY_BYTES)
    found: dict[tuple[object, ...], list[Capture]] = {}
    for capture in captures:
        alone = capture.imported and large[capture.collector] > 1 and _bytes(capture) >= HEAVY_BYTES
        key = (capture.id,) if alone else (capture.pass_id, capture.host, capture.rank)
        found.setdefault(key, []).append(capture)
    return [Group(tuple(members)) for members in found.values()]


def parse(capture: Capture, log: Log) -> Found:
    """What the capture's files say, with tables."""
    if capture.status not in ("ok", "degraded", "target_failed") or (capture.run is None and not capture.artifacts):
        return None
    if capture.run and capture.run.start_error:
        return None
    try:
        if capture.imported:
            return imported.parse(capture)
        return _of_ranks(rebuilt(capture).parse(capture), capture.run)
    except ParseError as error:
        gone = [a.path for a in capture.artifacts if not (capture.root / a.path).exists()]
        return f"{', '.join(gone)} was deleted since the pass" if gone else str(error)
    except MemoryError:
        return "there was not enough memory to read it"
    except Exception as error:  # a fault in a parser must cost its own capture only
        log(f"{capture.id}: {traceback.format_exc()}")
        return f"its parser failed, which is a bug: {type(error).__name__}: {error} (traceback in run.log)"


def _of_ranks(parsed: Parsed, run: TargetRun | None) -> Parsed:
    """With the rank of each row whose process is known to be a rank's, and without those of ranks that nobody wanted to
    be looked at: a tool around a job sees them all."""
    ranks = run.rank_by_pid() if run else {}
    if not run or not ranks:
        return parsed
    tables = [table if "rank" in table.columns else table.with_ranks(ranks) for table in parsed.tables]
    if run.ranks_chosen is None:
        return replace(parsed, tables=tuple(tables))
    wanted, mixed = {None, *run.ranks_chosen}, [table.name for table in tables if "rank" not in table.columns]
    tables = [table if table.name in mixed else table.only("rank", wanted) for table in tables]
    note = [f"{', '.join(dict.fromkeys(mixed))}: what the other ranks did is in it, too"] if mixed else []
    return replace(parsed, tables=tuple(tables), notes=(*parsed.notes, *note))


def updated(capture: Capture, parsed: Found) -> Capture:
    """The capture with what its files say of it."""
    if isinstance(parsed, str):
        there = tuple(a for a in capture.artifacts if (capture.root / a.path).exists())
        return replace(capture, status="unreadable", reason=parsed, artifacts=there)
    if parsed is None:
        return capture
    if isinstance(parsed, imported.Seen):
        tool = Tool(parsed.tool, None, parsed.version) if parsed.tool else capture.tool
        capture = replace(capture, tool=tool, rank=parsed.rank)
    return replace(
        capture,
        status=parsed.status or capture.status,
        reason=parsed.reason or capture.reason,
        trust=parsed.trust or capture.trust,
        clock=capture.clock or parsed.clock,
        notes=(*capture.notes, *parsed.notes),
    )


def rebuilt(capture: Capture) -> Collector:
    """The collector of a capture, with the options that it had."""
    options = {k: v for k, v in capture.options.items() if k not in _PASS_OPTIONS}
    return registry.collector(capture.collector).model_validate(options)


def _bytes(capture: Capture) -> int:
    return sum(artifact.bytes for artifact in capture.artifacts)


def _workers(sizes: Sequence[int]) -> int:
    """How many groups are read at a time: as many as there are processors and memory for."""
    room = _room_bytes()
    each = ROOM_FOR_EACH_BYTES + ROOM_PER_BYTE * max(sizes, default=0)
    by_room = MOST_WORKERS if room is None else room // each
    return max(1, min(len(os.sched_getaffinity(0)), MOST_WORKERS, by_room))


def _room_bytes() -> int | None:
    """The memory that can still be had, which the limit of our container or job may make less; None: unknown."""
    known = [process.room_bytes(), kernel.tightest(Machine(), "memory")]
    return min((int(one) for one in known if one is not None), default=None)


def _load() -> None:
    """What every copy needs is loaded once."""
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401


def _why(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return "ran out of memory: read it where there is more of it (profrun report)"
    room = _room_bytes()
    free = f"; {show_bytes(room)} are free now" if room is not None else ""
    hint = f", most likely for want of memory{free}" if "SIGKILL" in str(error) else ""
    return f"was lost ({error}{hint}): read it where there is more memory (profrun report)"
