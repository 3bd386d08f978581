"""What the sampler wrote (its format stands in `orchestrator/sampler/__init__.py`): the table `samples`, and figures.

A rate needs two readings, so the first one has none. What was never known has one row without a value; a counter that
went backwards (iowait may: proc(5); a tree when one of its processes ends that nobody of it waits for) gives none.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.errors import ParseError
from orchestrator.model import Metric
from orchestrator.tables import Table
from orchestrator.units import show_bytes
from orchestrator.visible import VARIABLE, Visible, visible

FORMAT = "profrun-monitor/1"

THROTTLE_REASONS: Mapping[int, str] = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}  # fmt: skip
"""Bits of `throttle_mask`: nvmlClocksEventReasons in NVIDIA's nvml.h."""
UNSEEN_BYTES = 64 << 20
"""More memory in use than this belongs to some process, whether or not the driver shows it."""


@dataclass(frozen=True)
class Rate:
    """How a counter becomes a rate: its growth x `factor` over that of the column `of`, or over the time in ns."""

    metric: str
    factor: float = 1e9
    of: str | None = None


def _shares(*names: str) -> dict[str, Rate]:
    return {f"{name}_ticks": Rate(f"cpu_{name}_pct", 100.0, "all_ticks") for name in names}


def _per_s(*names: str) -> dict[str, Rate]:
    return {name: Rate(f"{name}_per_s") for name in names}


_BUSY = {"busy_ticks": Rate("cpu_pct", 100.0, "all_ticks")}
_CPU = {"cpu_ns": Rate("cpu_pct", 100.0)}
_BYTES = ("disk_read_bytes", "disk_write_bytes")
_PRESSURE = {
    f"{what}_us": Rate(f"pressure_{what}_pct", 1e5)
    for what in ("cpu_some", "io_some", "io_full", "memory_some", "memory_full")
}
RATES: Mapping[str, Mapping[str, Rate]] = {
    "host": {
        **_BUSY, **_shares("user", "system", "iowait", "steal"), **_PRESSURE,
        **_per_s("context_switches", "forks", "page_faults", "major_faults", "net_receive_bytes", "net_send_bytes"),
        **_per_s(*_BYTES), "throttled_us": Rate("throttled_pct", 1e5),
    },
    "core": _BUSY,
    "process": {
        **_CPU, **_per_s("read_bytes", "write_bytes", "voluntary_switches", "involuntary_switches", "minor_faults"),
        **_per_s("major_faults", *_BYTES), "system_ns": Rate("cpu_system_pct", 100.0),
        "queue_ns": Rate("queue_pct", 100.0), "main_queue_ns": Rate("main_queue_pct", 100.0),
    },
    "tree": _CPU,
    "monitor": _CPU,
}  # fmt: skip
"""The columns that are counters, by source; all others are values of the moment."""
_OF_PROCESSES = frozenset({"process", "memory", "gpu_process"})
_ONLY_FOR_OTHERS = frozenset({"all_ticks", "waited_ns"})

_TREE = ("cpu_ns", "rss_bytes", "threads", "processes")
_ROUNDED_NS = 20_000_000
"""The time of an ended child, user and system, stands with its parent in whole hundredths of a second."""


@dataclass(frozen=True)
class Samples:
    """What the file says. `damage`: why its end is not the end of the sampling; None where it is."""

    table: Table
    metrics: Mapping[str, Metric]
    notes: tuple[str, ...]
    damage: str | None
    gpus: int
    """How many GPUs were read at least once."""


def read_samples(
    path: Path,
    since_ns: int | None = None,
    until_ns: int | None = None,
    main: int | None = None,
    ranks: Mapping[int, int | None] | None = None,
) -> Samples:
    """The samples taken from `since_ns` to `until_ns` (Unix epoch). `main`: the target's first process, where a tool
    around it is the root of the tree. `ranks`: by pid, where somebody knows better than the processes' environments.
    Raises ParseError when it is no file of the sampler."""
    reading = _Reading(since_ns or 0, until_ns, main, ranks or {})
    lines = _lines(path)
    head = next(lines, None)
    if head is None or head.get("format") != FORMAT:
        raise ParseError(f"{path.name} is no file of the monitor: its first line is not {FORMAT}")
    try:
        reading.begin(head)
        for line in lines:
            reading.take(line)
        return reading.result()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ParseError(f"{path.name} can't be read: {type(error).__name__}: {error}") from error


_CUT: Mapping[str, Any] = {"cut": True}


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Each line as an object; one that is none, as the last may be, is `_CUT`."""
    try:
        with path.open("rb") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except ValueError:
                    line = None
                yield line if isinstance(line, dict) else _CUT
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error


@dataclass
class _Rows:
    """The columns of the table while they grow."""

    time_ns: list[int] = field(default_factory=list)
    source: list[str] = field(default_factory=list)
    subject: list[str] = field(default_factory=list)
    metric: list[str] = field(default_factory=list)
    value: list[float | None] = field(default_factory=list)

    def add(self, t: int, source: str, subject: str, metric: str, value: float | None) -> None:
        self.time_ns.append(t)
        self.source.append(source)
        self.subject.append(subject)
        self.metric.append(metric)
        self.value.append(value)

    def of(self, source: str, metric: str, subjects: Iterable[str] | None = None) -> list[float]:
        """The known values of a metric, of all subjects or of some."""
        every = zip(self.source, self.metric, self.subject, self.value, strict=True)
        return [v for s, m, who, v in every if s == source and m == metric and v is not None
                and (subjects is None or who in subjects)]  # fmt: skip


class _Reading:
    """The file while it is read."""

    def __init__(self, since_ns: int, until_ns: int | None, main: int | None, ranks: Mapping[int, int | None]) -> None:
        self._since_ns, self._until_ns, self._main = since_ns, until_ns, main
        self._ranks = _Ranks(ranks)
        self._mappings: Mapping[str, Sequence[tuple[str, int]]] = {}
        self._rows = _Rows()
        self._last: dict[tuple[str, str], dict[str, tuple[int, float]]] = {}
        self._unknown: dict[tuple[str, str, str], int] = {}
        self._known: set[tuple[str, str, str]] = set()
        self._masks: list[tuple[int, str, int]] = []
        self._tree = _TreeView()
        self._gpus = _Gpus()
        self._said: list[str] = []
        self._reading_ns: list[int] = []
        self._started_ns = self._ended_ns = 0
        self._inside = True
        """Not while the tool around the target is by itself, before and after it."""
        self._end: str | None = None
        self._cut = 0

    def begin(self, head: Mapping[str, Any]) -> None:
        self._columns: Mapping[str, Sequence[str]] = head["columns"]
        self._interval_s = float(head["interval_s"])
        self._tree.roots = frozenset(head["pids"])
        if self._main is not None and self._main not in self._tree.roots:
            self._tree.roots = frozenset({self._main})
            self._tree.every = False

    def take(self, line: Mapping[str, Any]) -> None:
        """One line of any kind."""
        if line is _CUT:
            self._cut += 1
            return
        if "seen" in line:
            self._tree.see(line)
            self._ranks.see(line)
        elif "rank" in line:
            self._ranks.told[line["of"]] = line["rank"]
        elif "memory" in line:  # of the first and the last moment, which need not lie within the recorded time
            self._memory(line)
        elif "mappings" in line:
            self._mappings = line["mappings"]
        elif "environment" in line:
            self._gpus.environment = line["environment"]
        elif "devices" in line:
            self._gpus.see(line)
        elif "note" in line:
            self._said.append(line["note"])
        elif "end" in line:
            self._end = line["end"]
        elif line["t"] >= self._since_ns and (self._until_ns is None or line["t"] <= self._until_ns):
            self._sample(line)

    def _sample(self, line: Mapping[str, Any]) -> None:
        if "process" in line:
            self._inside = self._tree.every or any(int(pid) in self._tree.names for pid in line["process"])
        if not self._inside:
            return
        t, m = line["t"], line["m"]
        for source, columns in self._columns.items():
            for subject, values in line.get(source, {}).items():
                self._values(t, m, source, subject, columns, values)
        if "process" in line:
            processes = {
                int(pid): dict(zip(self._columns["process"], v, strict=True)) for pid, v in line["process"].items()
            }
            self._values(t, m, "tree", "", _TREE, self._tree.sums(processes))
        if "monitor" in line:
            self._reading_ns.append(line["monitor"][""][1])
        for uuid, values in line.get("gpu", {}).items():
            mask = values[self._columns["gpu"].index("throttle_mask")]
            self._masks += [(t, uuid, mask)] if mask is not None else []

    def _memory(self, line: Mapping[str, Any]) -> None:
        columns = self._columns["memory"]
        for pid, values in line["memory"].items():
            self._values(line["t"], line["m"], "memory", pid, columns, values)
        shares = [values[columns.index("pss_bytes")] for values in line["memory"].values()]
        known = [share for share in shares if share is not None]
        self._values(line["t"], line["m"], "tree", "", ("pss_bytes",), [sum(known) if known else None])

    def _values(
        self, t: int, m: int, source: str, subject: str, columns: Sequence[str], values: Sequence[float | None]
    ) -> None:
        before = self._last.get((source, subject), {})
        known = {c: (m, v) for c, v in zip(columns, values, strict=True) if v is not None}
        for column, value in zip(columns, values, strict=True):
            rate = RATES.get(source, {}).get(column)
            if column not in _ONLY_FOR_OTHERS:
                metric = rate.metric if rate else column
                self._add(t, source, subject, metric, _grown(rate, column, before, known) if rate else value)
        self._last[source, subject] = {**before, **known}

    def _add(self, t: int, source: str, subject: str, metric: str, value: float | None) -> None:
        key = (source, subject, metric)
        if value is None:
            self._unknown.setdefault(key, t)
        else:
            self._known.add(key)
            self._rows.add(t, *key, float(value))

    # ------------------------------------------------------------ what it comes to

    def result(self) -> Samples:
        chosen = self._gpus.visible()
        self._add_throttling()
        if chosen is not None and (self._rows.time_ns or self._since_ns):
            for device in self._gpus.devices:
                at = self._since_ns or self._rows.time_ns[0]
                self._rows.add(at, "gpu", device.uuid, "visible_to_target", float(device.uuid in chosen))
        never = {key: t for key, t in self._unknown.items() if key not in self._known}
        for (source, subject, metric), t in never.items():
            self._rows.add(t, source, subject, metric, None)
        error_ns = max(self._reading_ns, default=None)
        rank = self._ranks.column(self._rows.source, self._rows.subject)
        table = Table("samples", {**rank, **vars(self._rows)}, "epoch", error_ns, self._cut)
        metrics = {name: metric for name, metric in self._figures(chosen) if metric.n}
        return Samples(table, metrics, tuple(self._notes(never, metrics)), self._damage(), self._gpus_read())

    def _add_throttling(self) -> None:
        """A row of 0 or 1 for each reason that a GPU has ever given."""
        ever: dict[str, int] = {}
        for _, uuid, mask in self._masks:
            ever[uuid] = ever.get(uuid, 0) | mask
        for t, uuid, mask in self._masks:
            for bit, name in THROTTLE_REASONS.items():
                if ever[uuid] & bit:
                    self._rows.add(t, "gpu", uuid, f"throttle_{name}", float(bool(mask & bit)))

    def _figures(self, chosen: frozenset[str] | None) -> Iterator[tuple[str, Metric]]:
        of = self._rows.of
        yield "tree_cpu_pct", _mean(of("tree", "cpu_pct"), "%")
        yield "tree_rss_peak_bytes", _peak(of("tree", "rss_bytes"), "bytes")
        yield "tree_pss_peak_bytes", _peak(of("tree", "pss_bytes"), "bytes")
        yield "host_cpu_pct", _mean(of("host", "cpu_pct"), "%")
        yield "gpu_util_pct", _mean(of("gpu", "gpu_util_pct", chosen), "%")
        yield "gpu_memory_peak_bytes", _peak(of("gpu", "memory_used_bytes", chosen), "bytes")
        yield "monitor_cpu_pct", _mean(of("monitor", "cpu_pct"), "%")

    def _gpus_read(self) -> int:
        return len({subject for source, subject, _ in self._known if source == "gpu"})

    def _damage(self) -> str | None:
        if self._end is not None:
            return None
        return "the sampler has written no end: what came after its last line is missing"

    def _notes(self, never: Iterable[tuple[str, str, str]], metrics: Mapping[str, Metric]) -> Iterator[str]:
        if self._reading_ns:
            cost = metrics.get("monitor_cpu_pct")
            share = f"; the monitor used {cost.value:.1f} % of one processor" if cost and cost.value is not None else ""
            each = f"of {statistics.fmean(self._reading_ns) / 1e6:.2g} ms each{share}"
            yield f"{len(self._reading_ns)} readings, asked for every {1000 * self._interval_s:g} ms, {each}"
        yield from self._tree.notes()
        for pid, mappings in list(self._mappings.items())[:_MOST_NAMED]:
            if mappings:
                shown = ", ".join(f"{show_bytes(size)} {name.rpartition('/')[2]}" for name, size in mappings)
                yield f"memory of {pid} {self._tree.names.get(int(pid), '')} at the end: {shown}"
        yield from self._gpus.notes()
        if self._gpus_read() > 1 and "gpu_util_pct" in metrics:
            yield f"the figures of the GPUs are over all {self._gpus_read()}, also those that the program leaves idle"
        if self._gpus_read() and self._unseen():
            yield "GPU memory is in use by processes that the driver does not show here, as it is in a container"
        yield from _not_offered(never)
        yield from self._said
        if self._cut:
            yield f"{self._cut} lines are cut and were left out"

    def _unseen(self) -> bool:
        nobody = "gpu_process" not in self._rows.source
        return nobody and max(self._rows.of("gpu", "memory_used_bytes"), default=0) > UNSEEN_BYTES


def _grown(
    rate: Rate, column: str, before: Mapping[str, tuple[int, float]], known: Mapping[str, tuple[int, float]]
) -> float | None:
    """The rate between two readings; None where one of them is unknown, or the counter went backwards."""
    if column not in before or column not in known or (rate.of and (rate.of not in before or rate.of not in known)):
        return None
    (m0, v0), (m1, v1) = before[column], known[column]
    whole = known[rate.of][1] - before[rate.of][1] if rate.of else m1 - m0
    return rate.factor * (v1 - v0) / whole if whole > 0 and v1 >= v0 else None


def _mean(values: Sequence[float], unit: str) -> Metric:
    """No interval: samples of one run follow from one another."""
    return replace(_peak(values, unit), value=statistics.fmean(values) if values else None)


def _peak(values: Sequence[float], unit: str) -> Metric:
    least, most = min(values, default=None), max(values, default=None)
    return Metric(most, unit, n=len(values), min=least, max=most)


def _not_offered(never: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    """What the machine, or a GPU, never told. Of a process it may just have been too early."""
    fields: dict[tuple[str, str], list[str]] = {}
    for source, subject, metric in never:
        if source in ("host", "gpu"):
            fields.setdefault((source, subject), []).append(metric)
    for (source, subject), metrics in fields.items():
        who = f"GPU {subject}" if source == "gpu" else "this machine"
        yield f"not offered by {who}: {', '.join(sorted(metrics))}"


# ---------------------------------------------------------------- processes, GPUs

_MOST_NAMED = 5
"""Of so many processes a note speaks."""


@dataclass
class _Ranks:
    """Which process is of which rank: as it is known, else as its environment says, else as that of its parent."""

    known: Mapping[int, int | None]
    told: dict[int, int] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)

    def see(self, line: Mapping[str, Any]) -> None:
        self.parents.setdefault(line["seen"], line["parent"])

    def of(self, pid: int | None) -> int | None:
        seen: set[int] = set()
        while pid is not None and pid not in seen:
            if pid in self.known:
                return self.known[pid]
            if pid in self.told:
                return self.told[pid]
            seen.add(pid)
            pid = self.parents.get(pid)
        return None

    def column(self, sources: Sequence[str], subjects: Sequence[str]) -> dict[str, list[int | None]]:
        """The column `rank`, where one is known."""
        by_pid = {subject: self.of(int(subject)) for subject in {*subjects} if subject.isdecimal()}
        ranks = [
            by_pid.get(subject.rpartition("/")[2]) if source in _OF_PROCESSES else None
            for source, subject in zip(sources, subjects, strict=True)
        ]
        return {} if ranks.count(None) == len(ranks) else {"rank": ranks}


@dataclass
class _TreeView:
    """Which of the processes are the target's: all, or where a tool is around it, those that come from its first."""

    roots: frozenset[int] = frozenset()
    every: bool = True
    names: dict[int, str] = field(default_factory=dict)
    """The program of each, or the programs one after the other."""
    _cpu_ns: int = 0
    _pids: frozenset[int] = frozenset()

    def see(self, line: Mapping[str, Any]) -> None:
        pid = line["seen"]
        if self.every or pid in self.roots or line["parent"] in self.names or pid in self.names:
            before = f"{self.names[pid]} -> " if line["exec"] and pid in self.names else ""
            self.names[pid] = before + line["name"]

    def sums(self, processes: Mapping[int, Mapping[str, Any]]) -> list[float | None]:
        """The columns `_TREE`. CPU time includes that of children that have ended and were waited for, so that
        the short-lived ones count; memory that processes share counts for each of them."""
        own = {pid: row for pid, row in processes.items() if pid in self.names}
        if not own:
            return [None] * len(_TREE)
        rss_bytes, threads = ([row[x] for row in own.values() if row[x] is not None] for x in ("rss_bytes", "threads"))
        return [self._sum_ns(own), sum(rss_bytes) if rss_bytes else None, sum(threads), len(threads)]

    def _sum_ns(self, own: Mapping[int, Mapping[str, Any]]) -> int:
        total_ns = sum(int(row["cpu_ns"]) + int(row["waited_ns"]) for row in own.values())
        gone = len(self._pids - own.keys())
        if 0 < self._cpu_ns - total_ns <= gone * _ROUNDED_NS:  # rounded, not lost
            total_ns = self._cpu_ns
        self._cpu_ns, self._pids = total_ns, frozenset(own)
        return total_ns

    def notes(self) -> Iterator[str]:
        if self.names:
            shown = ", ".join(f"{pid} {name}" for pid, name in list(self.names.items())[:_MOST_NAMED])
            more = f" and {len(self.names) - _MOST_NAMED} more" if len(self.names) > _MOST_NAMED else ""
            yield f"processes of the target: {shown}{more}"


@dataclass(frozen=True)
class _Device:
    """A GPU as the sampler has found it."""

    index: int
    uuid: str
    name: str | None
    mig_uuids: tuple[str, ...] = ()


@dataclass
class _Gpus:
    """The GPUs, and which of them the target may use."""

    devices: Sequence[_Device] = ()
    through: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def see(self, line: Mapping[str, Any]) -> None:
        self.devices = [_Device(int(d["index"]), d["uuid"], d["name"]) for d in line["devices"]]
        self.through = line["through"]

    def visible(self) -> frozenset[str] | None:
        """Those that CUDA shows the target, by UUID. None where that is not restricted, or can't be told from
        outside."""
        if VARIABLE not in self.environment or not self.devices:
            return None
        seen = self._seen()
        return frozenset(self.devices[place].uuid for place in seen.places) if seen.sure else None

    def _seen(self) -> Visible:
        """The sampler does not ask for parts of GPUs: where they are named, nothing is known."""
        seen = visible(self.devices, self.environment)
        return replace(seen, sure=seen.sure and "MIG-" not in self.environment.get(VARIABLE, ""))

    def notes(self) -> Iterator[str]:
        if not self.devices:
            return
        shown = ", ".join(f"{d.index} {d.name} ({d.uuid})" for d in self.devices)
        yield f"GPUs, through {self.through}: {shown}"
        if VARIABLE not in self.environment:
            return
        seen, asked = self._seen(), f"{VARIABLE}={self.environment[VARIABLE]}"
        numbered = (
            f"{number} is GPU {self.devices[place].index} ({self.devices[place].uuid})"
            for number, place in enumerate(seen.places)
        )
        if not seen.sure:
            yield f"{asked}: which GPUs that is can't be told from outside"
        else:
            yield f"{asked}: the target's {', '.join(numbered)}" if seen.places else f"{asked}: it sees none of them"
        yield from seen.notes
