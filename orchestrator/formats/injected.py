"""What profrun's part inside the target's Python has left: a diary, the steps and the ranges of each process.

Layouts: inject/diary.py, inject/steps.py, inject/ranges.py."""

from __future__ import annotations

import ast
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.errors import ParseError
from orchestrator.inject import ranges as ranges_layout
from orchestrator.inject import steps as layout
from orchestrator.inject.mapped import HEAD_BYTES

KINDS = {layout.TRAIN: "train", layout.INFERENCE: "inference"}


@dataclass(frozen=True)
class Steps:
    """The steps of one process, one list an entry. Times are ns; None is unknown.

    phases: by name, a list of ns a step; None for a phase of which this process never showed any."""

    kind: str
    start_ns: Sequence[int]
    """Since the Unix epoch."""
    duration_ns: Sequence[int | None]
    phases: Mapping[str, Sequence[int | None]]
    cpu_ns: Sequence[int | None]
    gpu_ns: Sequence[int | None]
    profiled: Sequence[bool]
    loss: Sequence[float | None]
    digest: Sequence[str | None]

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True)
class Signed:
    """A Python process of the target in which profrun's part was at work."""

    pid: int
    stem: Path
    """The path of its files without their ending."""
    events: tuple[Mapping[str, Any], ...]
    steps: Steps | None = None
    damage: str | None = None

    def first(self, event: str) -> Mapping[str, Any] | None:
        return next((e for e in self.events if e.get("event") == event), None)

    def all(self, event: str) -> Iterator[Mapping[str, Any]]:
        return (e for e in self.events if e.get("event") == event)

    @property
    def start(self) -> Mapping[str, Any]:
        return self.first("start") or {}

    @property
    def rank(self) -> int | None:
        return self.start.get("rank")

    @property
    def stepping_tid(self) -> int | None:
        """The thread whose steps these are, by the number that the kernel gives it; where it changed, the last."""
        found = [event.get("tid") for event in self.all("stepping")]
        return found[-1] if found else None


@dataclass(frozen=True)
class Content:
    """All of one pass, by the processes' starts."""

    processes: tuple[Signed, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def stepping(self) -> list[Signed]:
        """The processes that made steps."""
        return [process for process in self.processes if process.steps is not None]


def read(folder: Path) -> Content:
    """Everything in that folder; what can't be read costs its own process, and a note."""
    processes = sorted((_process(path) for path in folder.glob("*.diary")), key=lambda p: p.start.get("time_ns", 0))
    notes = [f"pid {p.pid}: {p.damage}" for p in processes if p.damage]
    troubles = {f"{e['where']}: {e['error']}" for p in processes for e in p.all("trouble")}
    notes += [f"profrun's part in the program could not do all of its work: {text}" for text in sorted(troubles)]
    notes += sorted({str(e["text"]) for p in processes for e in p.all("note")})
    return Content(tuple(processes), tuple(notes))


def _process(path: Path) -> Signed:
    stem = path.with_suffix("")
    pid = int(path.name.split(".")[0]) if path.name.split(".")[0].isdigit() else -1
    events, damage, steps = tuple(_events(path)), None, None
    try:
        steps = read_steps(stem.with_name(stem.name + ".steps"))
    except ParseError as error:
        damage = str(error)
    return Signed(pid, stem, events, steps, damage)


def _events(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a diary; a last one that was cut off is left out."""
    try:
        text = path.read_text(errors="backslashreplace")
    except OSError:
        return
    for line in text.splitlines():
        try:
            event = ast.literal_eval(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        if isinstance(event, dict):
            yield event


def read_steps(path: Path) -> Steps | None:
    """The steps of one process; None when it made none. Raises ParseError for a file of another kind."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    if len(data) < HEAD_BYTES or data[: len(layout.MAGIC)] != layout.MAGIC:
        raise ParseError(f"{path.name} holds no steps")
    _, offset_ns, _rank = layout.HEAD.unpack_from(data)
    words = memoryview(data)[HEAD_BYTES : len(data) - (len(data) - HEAD_BYTES) % 8].cast("q")
    log = _Log(offset_ns)
    log.read(words)
    return log.steps()


_OTHER = len(layout.PHASES)


class _Log:
    """A log of steps while it is read. Each part of a step's time is counted once: what is nested goes to the inner
    phase."""

    def __init__(self, offset_ns: int) -> None:
        self._offset_ns, self._kind, self._seen = offset_ns, 0, 0
        self._rows: list[tuple[int, int | None, list[int], bool]] = []
        self._losses: dict[int, float] = {}
        self._digests: dict[int, str] = {}
        self._gpu: dict[int, int] = {}
        self._open: list[int] = []
        self._start: int | None = None
        self._cpu: list[int | None] = []
        self._asked: tuple[int, int] | None = None
        """CPU time when it was asked for last, and at which step."""
        self._since = 0
        self._spent = [0] * (_OTHER + 1)

    def read(self, words: memoryview) -> None:
        """Up to the first word that is 0, or that no step can hold."""
        mask, codes, at = (1 << layout.CODE_BITS) - 1, _CODES, 0
        while at < len(words):
            word = words[at]
            code = word & mask
            if word <= 0 or code > layout.ANEW or at + codes.get(code, 0) >= len(words):
                return
            time_ns, more = word >> layout.CODE_BITS, words[at + 1 : at + 1 + codes.get(code, 0)]
            at += 1 + len(more)
            if code <= _OTHER:
                self._begin(code - 1, time_ns)
            elif code <= 2 * _OTHER:
                self._end(code - 1 - layout.ENDS, time_ns)
            else:
                self._other(code, time_ns, *more)

    def _pass(self, time_ns: int) -> None:
        self._spent[self._open[-1] if self._open else _OTHER] += time_ns - self._since
        self._since = time_ns

    def _begin(self, phase: int, time_ns: int) -> None:
        self._pass(time_ns)
        self._open.append(phase)
        self._seen |= 1 << phase

    def _end(self, phase: int, time_ns: int) -> None:
        if phase in self._open:  # else the end of a step has ended it already
            self._pass(time_ns)
            while self._open.pop() != phase:
                pass

    def _other(self, code: int, value: int, more: int = 0) -> None:
        step = len(self._rows)
        if code == layout.STEP:
            self._step(value, more)
        elif code == layout.START:
            self._restart(value, more >> 1)
        elif code == layout.LOSS:
            self._losses[step] = struct.unpack("<d", struct.pack("<q", more))[0]
        elif code == layout.DIGEST:
            self._digests[step] = f"{more & 0xFFFFFFFFFFFFFFFF:016x}"
        elif code == layout.GPU:
            self._gpu[value] = more
        elif code == layout.ANEW:
            self._kind = value
            if step:
                self._rows, self._cpu, self._losses, self._digests, self._gpu = [], [], {}, {}, {}
                self._asked = None

    def _step(self, time_ns: int, more: int) -> None:
        self._pass(time_ns)
        cpu, start = more >> 1, self._start
        duration = time_ns - start if start is not None else None
        begun_ns = (time_ns if start is None else start) + self._offset_ns
        self._rows.append((begun_ns, duration, self._spent, bool(more & 1)))
        self._cpu.append(None)
        if cpu:
            self._share_cpu(cpu)
        self._restart(time_ns, None)

    def _share_cpu(self, cpu_ns: int) -> None:
        """Short steps are asked for their CPU time together: each gets the same part of it."""
        end = len(self._rows)
        if self._asked is not None and end > self._asked[1]:
            then_ns, first = self._asked
            self._cpu[first:end] = [(cpu_ns - then_ns) // (end - first)] * (end - first)
        self._asked = cpu_ns, end

    def _restart(self, time_ns: int, cpu_ns: int | None) -> None:
        self._start = self._since = time_ns
        if cpu_ns:
            self._asked = cpu_ns, len(self._rows)
        self._spent, self._open = [0] * (_OTHER + 1), []

    def steps(self) -> Steps | None:
        if self._kind not in KINDS or not self._rows:
            return None
        starts, durations, spent, profiled = zip(*self._rows, strict=True)
        count = len(starts)
        return Steps(
            kind=KINDS[self._kind],
            start_ns=list(starts),
            duration_ns=list(durations),
            phases={
                name: [row[index] for row in spent] if self._seen >> index & 1 else [None] * count
                for index, name in enumerate(layout.PHASES)
            },
            cpu_ns=self._cpu,
            gpu_ns=[self._gpu.get(step) for step in range(count)],
            profiled=list(profiled),
            loss=[self._losses.get(step) for step in range(count)],
            digest=[self._digests.get(step) for step in range(count)],
        )


_CODES = dict.fromkeys((layout.STEP, layout.START, layout.LOSS, layout.DIGEST, layout.GPU), 1)
"""How many words follow the first one."""


@dataclass(frozen=True)
class Range:
    """One call of a function that the plan names; times in ns, the start since the Unix epoch."""

    name: str
    thread: int
    start_ns: int
    duration_ns: int
    gpu_ns: int | None
    """Between CUDA events at its ends."""


def read_ranges(process: Signed) -> list[Range]:
    """The calls that one process has recorded. Raises ParseError for a file of another kind."""
    path = process.stem.with_name(process.stem.name + ".ranges")
    try:
        data = path.read_bytes()
    except OSError:
        return []
    if data[: len(ranges_layout.MAGIC)] != ranges_layout.MAGIC:
        raise ParseError(f"{path.name} holds no ranges")
    _, count, offset_ns = ranges_layout.HEAD.unpack_from(data)
    names = {event["index"]: str(event["name"]) for event in process.all("range")}
    end = min(len(data), HEAD_BYTES + count * ranges_layout.RECORD.size)
    whole = data[HEAD_BYTES : end - (end - HEAD_BYTES) % ranges_layout.RECORD.size]
    try:
        rows = list(ranges_layout.RECORD.iter_unpack(whole))
    except struct.error as error:
        raise ParseError(f"{path.name} is damaged: {error}") from error
    return [
        Range(names.get(index, "?"), thread, start + offset_ns, long, None if gpu < 0 else gpu)
        for index, thread, start, long, gpu in rows
    ]
