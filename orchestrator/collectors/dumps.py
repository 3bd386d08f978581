"""dumps: two looks at a program that hangs - the stacks of all its processes and threads, which of them has moved
between the two, and what NCCL's flight recorders have kept of its collectives."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.formats import dumps as formats
from orchestrator.formats import flight_recorder
from orchestrator.model import Attached, Beside, Capture, Check, Expect, Job, Launch, Sign, Status, ToolProbe
from orchestrator.standalone import dumps
from orchestrator.tables import SCHEMAS, Table
from orchestrator.units import Duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine

COLUMNS = ("rank", *(column.name for column in SCHEMAS["threads"] if column.name != "capture"))


class Dumps(Collector):
    """Looks at every process of the tree when the window opens and when it closes; of a program that runs already."""

    use: Literal["dumps"] = "dumps"
    native: bool = Field(True, description="also the frames of compiled code, in a dump of their own after the others")
    limit: Duration = Field(20.0, gt=0, description="how long py-spy may take for one process; then it is left out")

    flush: Duration = Field(180.0, description="how long the second look may take, native stacks and files included")

    probe: ClassVar[ToolProbe | None] = ToolProbe("py-spy", help_args=("dump", "--help"), install="pip install py-spy")
    claims: ClassVar[frozenset[str]] = frozenset({"ptrace"})
    capability: ClassVar[str | None] = "SYS_PTRACE"
    purpose: ClassVar[str] = (
        "where each thread of a program that hangs stands, and which rank is missing from a collective"
    )

    def checks(self, machine: Machine) -> list[Check]:
        found = super().checks(machine)
        if any(check.verdict == "missing" for check in found):
            return found
        if not machine.target_pids:
            said = "looks at a program that runs already, and hangs"
            return [Check(self.use, "missing", said, "profrun hang --pid PID")]
        permission = machine.ptrace()
        if not permission.allowed:
            return [Check(self.use, "blocked", permission.why, permission.fix)]
        return found

    def launch(self, job: Job) -> Launch:
        argv = (
            *(sys.executable, "-I", "-S", dumps.__file__, "--pids", "{pids}", "--spy", job.tool.path or "py-spy"),
            *("--output", job.dir, "--limit", f"{self.limit:g}", "--ranks", _ranks(job.attached)),
            *(("--native",) if self.native else ()),
        )
        return Launch(
            beside=(Beside(argv, "window" if job.window else "start"),),
            artifacts=(
                Expect("look", "look.*.json", "profrun-dumps"),
                Expect("flight", "flight.*.pickle", "flight-recorder", required=False),
                Expect("log", "*stderr.log", "text", required=False),
            ),
            signs=(Sign(r"(?m)^(\w*Error: .+)", "tool_failed", "the two looks could not be taken: {0}"),),
        )

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        paths = sorted(capture.paths("look"))
        if len(paths) < 2:
            raise ParseError("only one look was taken: what has moved since is not known")
        looks = formats.read(paths[0], paths[1])
        known = {one.pid: one for one in (capture.run.attached if capture.run else ())}
        rows = [*_threads(looks, known), *_absent(looks, known)]
        tables = [Table.of("threads", rows, COLUMNS)]
        notes = [*_unread(looks), *_asked(looks)]
        collectives = _collectives(capture, looks, notes)
        tables += [collectives] if collectives is not None else []
        return Parsed(tuple(tables), tuple(notes), *_verdict(looks))


def _ranks(found: Iterable[Attached]) -> str:
    """The processes whose flight recorders can be asked, as PID:RANK: what a rank has started bears its number, too."""
    firsts: dict[int, int] = {}
    for one in found:
        if one.rank is not None and one.is_python:
            firsts.setdefault(one.rank, one.pid)
    return ",".join(f"{pid}:{rank}" for rank, pid in firsts.items())


def _threads(looks: formats.Looks, known: Mapping[int, Attached]) -> Iterator[tuple[Any, ...]]:
    """The rows of the table `threads` for what was seen."""
    for process, thread in looks.threads():
        one, place = known.get(process.pid), thread.place()
        native = thread.native if thread.moved is False else None
        yield (
            one.rank if one else None,
            process.pid,
            " ".join(process.argv) or None,
            thread.tid,
            thread.name,
            thread.state,
            thread.moved,
            looks.apart_ns / 1e6,
            None if thread.cpu_ns is None else thread.cpu_ns / 1e6,
            thread.switches,
            thread.wchan,
            thread.syscall,
            "launcher" if one and one.wrapper and thread.doing != "stopped" else thread.doing,
            thread.what,
            *((place.function, place.file, place.line) if place else (None, None, None)),
            formats.text(native or thread.frames),
            formats.text(thread.later),
            thread.unread,
            process.recorder,
            one.world_size if one else None,
        )


def _absent(looks: formats.Looks, known: Mapping[int, Attached]) -> Iterator[tuple[Any, ...]]:
    """Rows for the ranks of the job that were not found: `gone` where their launcher is there and they are not."""
    ranks = {one.rank: one for one in known.values() if one.rank is not None}
    size = max((one.world_size or 0 for one in ranks.values()), default=0)
    here = _here(looks, ranks.values())
    for rank in range(min(size, 1 << 16)):
        if rank not in ranks:
            state = "gone" if rank in here else "not seen"
            row = {"rank": rank, "state": state, "apart_ms": looks.apart_ns / 1e6, "world_size": size}
            yield tuple(row.get(name) for name in COLUMNS)


def _here(looks: formats.Looks, ranks: Iterable[Attached]) -> set[int]:
    """The ranks that were started on this machine by a launcher that was looked at, too."""
    sizes = {process.pid: process.local_world_size for process in looks.processes}
    found: set[int] = set()
    for one in ranks:
        size = sizes.get(one.pid)
        if one.rank is not None and one.local_rank is not None and size and one.parent is not None:
            first = one.rank - one.local_rank
            found |= set(range(first, first + min(size, 1 << 12)))
    return found


def _unread(looks: formats.Looks) -> Iterator[str]:
    """Which Python processes could not be read, and why; native stacks are told of once."""
    for process in looks.processes:
        if process.is_python and process.unread:
            yield f"process {process.pid} could not be read: {process.unread}"
    failed = {re.sub(r"\d+", "N", p.native_unread): p for p in looks.processes if p.native_unread}
    for process in failed.values():
        yield f"native stacks could not be read (process {process.pid}: {process.native_unread}); Python's were"


def _asked(looks: formats.Looks) -> Iterator[str]:
    """What has become of the flight recorders."""
    for one in looks.recorders:
        who, why = f"rank {one['rank']}'s flight recorder", f": {one['why']}" if one.get("why") else ""
        if one.get("file") and not one.get("fresh"):
            yield f"{who} has an older file, which was kept{why}"
        elif not one.get("file") and one.get("asked"):
            yield f"{who} was asked for a file and has written none"
        elif not one.get("file") and why and "no pipe" not in why:
            yield f"{who} could not be asked{why}"


def _collectives(capture: Capture, looks: formats.Looks, notes: list[str]) -> Table | None:
    """All files in one table; one that can't be read is a note, as the others may still tell who is behind."""
    files = {path.name: path for path in capture.paths("flight")}
    parts = []
    for one in looks.recorders:
        path: Path | None = files.get(str(one.get("file")))
        if path is not None:
            try:
                parts.append(
                    flight_recorder.read(path, one["rank"], one["pid"], one["written_ns"], bool(one.get("fresh")))
                )
            except ParseError as error:
                notes.append(str(error))
    if not parts:
        return None
    columns = {name: [value for part in parts for value in part.columns[name]] for name in flight_recorder.COLUMNS}
    return Table("collectives", columns, clock="epoch")


def _verdict(looks: formats.Looks) -> tuple[Status | None, str | None]:
    pythons = [process for process in looks.processes if process.is_python]
    unread = [process for process in pythons if process.unread]
    if not looks.processes:
        return "empty", "the program had ended before the first look"
    if unread:
        return "degraded", f"{len(unread)} of {len(pythons)} Python processes could not be read: {unread[0].unread}"
    if not looks.complete:
        return "degraded", "it was ended before it had read native stacks and flight recorders"
    return None, None
