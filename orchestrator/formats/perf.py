"""What perf writes: the counters of `perf stat` (-x, -j or its text) and the call stacks of `perf script`.

Layouts: tools/perf/util/stat-display.c and tools/perf/builtin-script.c of Linux 4.13 to 6.x."""

from __future__ import annotations

import json
import re
from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ParseError
from orchestrator.formats.pyspy import Thread, thread_names
from orchestrator.formats.stacks import Row
from orchestrator.tables import Table

# ---------------------------------------------------------------- perf stat


class Counter(NamedTuple):
    """One event as `perf stat` gives it; the fields are the columns of the table `counters`, then why the value is
    unknown. `running_pct` < 100: perf has scaled the value up, as more events were asked for than the processor has
    counters."""

    event: str
    value: float | None
    unit: str | None = None
    running_pct: float | None = None
    variance_pct: float | None = None
    metric: float | None = None
    metric_unit: str | None = None
    unknown: str | None = None


USER_ONLY = "can't be seen from user mode"
_IN_KERNEL = frozenset({"context-switches", "cs", "cpu-migrations", "migrations", "cgroup-switches"})
"""Events that never happen in user mode: perf prints 0 where it may look at user mode only (`event:u`)."""
_MISSING = re.compile(r"<(not supported|not counted)>")
_CSV = (
    r"(?P<value>[\d.]+|<not supported>|<not counted>|){s}(?P<unit>[^{s}]*){s}(?P<event>.*?)"
    r"(?:{s}(?P<variance>[\d.]+)%)?{s}(?P<runtime>\d*){s}(?P<running>[\d.]*)"
    r"(?:{s}(?P<metric>[^{s}]*){s}(?P<metric_unit>[^{s}]*))?{s}*"
)
_TEXT = re.compile(
    r"\s*(?P<value>[\d.,]+|<not supported>|<not counted>)\s+(?!seconds )(?:(?P<unit>[A-Za-z]+)\s+)?(?P<event>\S+)"
    r"(?:\s+#\s+(?P<metric>[\d.,]+)\s*(?P<metric_unit>\S.*?))?"
    r"(?:\s+\(\s*\+-\s*(?P<variance>[\d.]+)%\s*\))?(?:\s+\(\s*(?P<running>[\d.]+)%\))?\s*"
)
_MOST_CHARACTERS = 4 << 20
"""Counters take a few thousand; what is longer is something else."""
_RUN = "Performance counter stats for"
_JSON = {
    "value": "counter-value", "unit": "unit", "event": "event", "variance": "variance", "runtime": "event-runtime",
    "running": "pcnt-running", "metric": "metric-value", "metric_unit": "metric-unit",
}  # fmt: skip


def read_stat(path: Path) -> list[Counter]:
    """The counters of one `perf stat`, in its order. Raises ParseError when the file is none, or holds several runs."""
    try:
        with path.open(errors="replace") as file:
            return parse_stat(file.read(_MOST_CHARACTERS), path.name)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error


def parse_stat(text: str, name: str) -> list[Counter]:
    """The same from the text itself."""
    runs = text.count(_RUN)
    if runs > 1:
        raise ParseError(f"{name} holds {runs} runs of perf stat: split it, one file for each")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [counter for counter in map(_reader(lines, bool(runs)), lines) if counter]
    if lines and not found:
        raise ParseError(f"{name} holds no counters of perf stat for a whole run: record with `perf stat -x, -o FILE`")
    return found


def counters_table(counters: Iterable[Counter]) -> Table:
    """The table `counters`."""
    return Table.of("counters", (counter[:-1] for counter in counters))


def _reader(lines: Sequence[str], is_text: bool) -> Any:
    """The function that makes a counter of a line, or None of one that is something else."""
    if is_text:
        return lambda line: _matched(_TEXT.fullmatch(line.replace("\u202f", ",")))
    if lines and lines[0].lstrip().startswith("{"):
        return _from_json
    separator = next((mark for mark in ";,|\t" if any(line.count(mark) >= 4 for line in lines[:1])), ",")
    pattern = re.compile(_CSV.replace("{s}", re.escape(separator)))
    return lambda line: _matched(pattern.fullmatch(line))


def _from_json(line: str) -> Counter | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict):
        return None
    return _counter(**{ours: str(entry.get(theirs, "")) for ours, theirs in _JSON.items()})


def _matched(found: re.Match[str] | None) -> Counter | None:
    return _counter(**found.groupdict(default="")) if found else None


def _counter(
    value: str, unit: str, event: str, variance: str, running: str, metric: str, metric_unit: str, runtime: str = "?"
) -> Counter | None:
    """A line without an event is a figure that perf derives from several, or none of ours (`-I`, `-A`)."""
    derived = _number(metric), metric_unit.strip() or None
    if not event:
        return None if not derived[1] or derived[0] is None else Counter(derived[1], None, None, None, None, *derived)
    why = _MISSING.fullmatch(value)
    if why or _number(value) is None:
        return Counter(event, None, unit or None, unknown=why[1] if why else "not printed")
    base, _, modifier = event.partition(":")
    if base in _IN_KERNEL and modifier.startswith("u") and "k" not in modifier and not _number(value):
        return Counter(event, None, unit or None, unknown=USER_ONLY)
    share = _number(running) if running else 100.0 if runtime == "?" else None
    return Counter(event, _number(value), unit or None, share, _number(variance), *_known(derived))


def _known(derived: tuple[float | None, str | None]) -> tuple[float | None, str | None]:
    return derived if derived[0] is not None and derived[1] else (None, None)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


# ---------------------------------------------------------------- perf script

_CLOCKS_NS = ("cpu-clock", "task-clock")
"""Their period is a time in ns."""
CLOCKS = (*_CLOCKS_NS, "cycles", "cpu-cycles", "ref-cycles")
"""Events whose samples stand for time on a processor."""
_HEADER = re.compile(
    r"\s*(?P<comm>\S.*?)\s+(?:(?P<pid>-?\d+)/)?(?P<tid>-?\d+)\s+(?:\[\d+\]\s+)?(?:[\d.]+:\s+)?"
    r"(?:(?P<period>\d+)\s+)?(?P<event>[^\s:][^\s]*?):\s*(?P<leaf>[0-9a-f]+ .*\))?\s*"
)
_LONGEST = 1 << 16
"""No line that opens a sample is longer."""
_FRAME = re.compile(r"\s*(?P<address>[0-9a-f]+)\s+(?P<symbol>.*) \((?P<file>(?:[^()]|\(deleted\))*)\)\s*")
_ODD_FRAME = re.compile(r"\s*(?P<address>[0-9a-f]+)\s+(?P<symbol>.*?) \((?P<file>/.*)\)\s*")
"""One whose file has parentheses in its name."""
_LOST = re.compile(r"PERF_RECORD_LOST lost (\d+)")
_FREQUENCY = re.compile(r"sample_freq } = (\d+),.* freq = 1\b")
_OFFSET = re.compile(r"\+0x[0-9a-f]+$")
_MAP = re.compile(r"(?:.*/)?(?:perf-\d+\.map|jitted-.*)")
_STARTS = re.compile(r"(?:_start|__libc_start_\w+|start_thread|(?:__)?clone3?|ret_from_fork\w*|main)(?:[ @].*)?", re.S)
"""Where programs and threads begin."""
_KERNEL = "[kernel.kallsyms]"
_UNKNOWN = "[unknown]"


_OF_TOOLS = re.compile(r"\[NSys\b|\*\d+Comms")
"""Threads that nsys starts inside the target (2022.4): what they do is no work of the program."""


class Sampled(NamedTuple):
    """One stack of one thread under one event: frames from the root to the leaf, each `function (file)`."""

    event: str
    pid: int | None
    tid: int
    comm: str
    frames: tuple[str, ...]


@dataclass
class Script:
    """The samples of one `perf script`: how often each stack was seen, and the periods of those samples."""

    periods: dict[Sampled, Tally[int | None]] = field(default_factory=dict)
    lost: int = 0
    """Samples that perf says it has lost."""
    dropped: int = 0
    """Lines that could not be read."""
    rate_hz: float | None = None
    """Samples a second as the kernel granted them."""

    def events(self) -> list[str]:
        """What was sampled, the most samples first."""
        tally: Tally[str] = Tally()
        for sampled, periods in self.periods.items():
            tally[sampled.event] += sum(periods.values())
        return [event for event, _ in tally.most_common()]

    def clock(self) -> str | None:
        """The event that stands for time; None where none of them does."""
        return next((event for event in self.events() if base_event(event) in CLOCKS), None)

    def count(self, event: str | None = None) -> int:
        """Samples of that event, or of all."""
        chosen = (p for sampled, p in self.periods.items() if event in (None, sampled.event))
        return sum(sum(periods.values()) for periods in chosen)

    def rootless(self, event: str) -> int:
        """Samples of that event whose stack does not reach the start of its program or thread."""
        return sum(
            sum(periods.values())
            for sampled, periods in self.periods.items()
            if sampled.event == event and not (sampled.frames and _STARTS.fullmatch(sampled.frames[0]))
        )

    def rows(self, event: str, rate_hz: float) -> list[Row]:
        """The stacks of one event with their time on a processor: its period where that is in ns; else a sample of
        median period stands for 1 / rate, as the kernel sets the period to meet the rate. Tools' threads are left
        out."""
        every = [(sampled, periods) for sampled, periods in self.periods.items() if sampled.event == event]
        chosen = [(sampled, periods) for sampled, periods in every if not _OF_TOOLS.match(sampled.comm)]
        ns_of = self._scale(event, rate_hz, chosen)
        names = thread_names(Thread(s.pid, None, s.tid, None) for s, _ in chosen)
        process_of = _process_names(sampled for sampled, _ in chosen)
        rows = []
        for s, periods in chosen:
            process = process_of[s.pid if s.pid is not None else s.tid]
            thread = s.comm if s.comm != process else names[s.pid, s.tid]
            weight_ns = round(sum(ns_of(period) * n for period, n in periods.items()))
            rows.append(Row(s.pid, process, thread, "cpu", s.frames, weight_ns))
        return rows

    @staticmethod
    def _scale(event: str, rate_hz: float, chosen: Iterable[tuple[Sampled, Tally[int | None]]]) -> Any:
        all_periods: Tally[int | None] = Tally()
        for _, periods in chosen:
            all_periods.update(periods)
        if None in all_periods:
            return lambda _: 1e9 / rate_hz
        if base_event(event) in _CLOCKS_NS:
            return float
        median = _median({period: n for period, n in all_periods.items() if period})
        return lambda period: period / median * 1e9 / rate_hz if median else 0.0


def base_event(event: str) -> str:
    """`cycles` of `cycles:P` and of `cpu_core/cycles/P`."""
    return event.split("/")[1] if event.count("/") >= 2 else event.partition(":")[0]


def _median(tally: dict[int, int]) -> int:
    half, seen = sum(tally.values()) / 2, 0
    for value in sorted(tally):
        seen += tally[value]
        if seen >= half:
            return value
    return 0


def _process_names(samples: Iterable[Sampled]) -> dict[int, str]:
    """A process is called as its first thread; by another's name only where that one was never seen."""
    names: dict[int, str] = {}
    for s in samples:
        pid = s.pid if s.pid is not None else s.tid
        if s.tid == pid or pid not in names:
            names[pid] = s.comm
    return names


def read_script(path: Path) -> Script:
    """The samples of a `perf script` with comm, tid, event and, where there are any, pid, period, ip, sym and dso.

    Raises ParseError when most of the file is something else. A sample that the file's end has cut is left out."""
    reading = _Reading()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                reading.take(line)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    script = reading.end()
    if script.dropped > script.count():
        what = "is perf's binary data" if reading.first.startswith("PERFILE2") else "is not what `perf script` prints"
        raise ParseError(f"{path.name} {what}; make text of it with `perf script -i perf.data >script.txt`")
    return script


class _Frame(NamedTuple):
    """A frame as perf prints it; `file` is "inlined" where the function was inlined into the next frame's."""

    address: str
    symbol: str
    file: str


class _Reading:
    """Puts lines together to samples. A header opens a sample, the next one closes it; blank lines mean nothing."""

    def __init__(self) -> None:
        self.script = Script()
        self.head: re.Match[str] | None = None
        self.frames: list[_Frame] = []
        self.whole = True
        self.first = ""
        self.known: dict[str, _Frame | None] = {}

    def take(self, line: str) -> None:
        self.whole = line.endswith("\n")
        self.first = self.first or line
        if not line.strip():
            return
        if line.startswith("#"):
            found = _FREQUENCY.search(line)
            self.script.rate_hz = float(found[1]) if found and self.script.rate_hz is None else self.script.rate_hz
        elif frame := self._frame(line) if self.head else None:
            self.frames.append(frame)
        elif not self._begins(line):
            self.script.dropped += 1

    def _begins(self, line: str) -> bool:
        """Whether it opens a sample, or tells of lost ones."""
        lost, found = _LOST.search(line), _HEADER.fullmatch(line) if len(line) < _LONGEST else None
        if lost:
            self.script.lost += int(lost[1])
        elif found:
            self._close()
            leaf = self._frame(found["leaf"]) if found["leaf"] else None
            self.head, self.frames = found, [leaf] if leaf else []
        return bool(lost or found)

    def _frame(self, line: str) -> _Frame | None:
        """The frame that a line is; kept by its text, as frames repeat thousands of times."""
        if line not in self.known:
            found = _FRAME.fullmatch(line) or _ODD_FRAME.fullmatch(line)
            self.known[line] = _Frame(**found.groupdict()) if found else None
        return self.known[line]

    def _close(self) -> None:
        if self.head is None:
            return
        pid, period = (int(self.head[name]) if self.head[name] else None for name in ("pid", "period"))
        event = self.head["event"].rstrip(":")
        sampled = Sampled(event, pid, int(self.head["tid"]), self.head["comm"], _stack(self.frames))
        self.script.periods.setdefault(sampled, Tally())[period] += 1
        self.head = None

    def end(self) -> Script:
        if self.whole:
            self._close()
        return self.script


def _stack(frames: Sequence[_Frame]) -> tuple[str, ...]:
    """Frames from the root to the leaf. An inlined function lies in the file of the one at its address that was not; a
    run of unknown frames becomes one."""
    names: list[str] = []
    around = _Frame("", "", "")
    for frame in reversed(frames):
        if frame.file != "inlined":
            around = frame
        name = _name(frame.symbol, around.file if around.address == frame.address else "")
        if name != _UNKNOWN or not names or names[-1] != _UNKNOWN:
            names.append(name)
    return tuple(names)


def _name(symbol: str, file: str) -> str:
    """`function (file)`; `[module] (file)` where the address has no symbol; Python functions as Python names them."""
    symbol = _OFFSET.sub("", symbol).replace(";", ",")
    python = re.fullmatch(r"py::(.*?):(.*)", symbol)
    if python:
        return f"{python[1]} ({python[2]})"
    file = file.replace(";", ",").removesuffix(" (deleted)")
    file = _KERNEL if file.startswith("[kernel.") or file.endswith("/vmlinux") else file
    if symbol == _UNKNOWN:
        return _UNKNOWN if file in (_UNKNOWN, "") else f"{_module(file)} ({file})"
    return f"{symbol} ({file})" if file and file != _UNKNOWN else symbol


def _module(file: str) -> str:
    """What stands for a function without a name: [libtorch.so]."""
    if _MAP.fullmatch(file):
        return "[generated code]"
    return file if file.startswith("[") else f"[{file.rpartition('/')[2]}]"
