"""Reads from an export of nsys which kernels cost most in the steady part of a run, and which launches of them to look
at: what `ncu` is told when its kernels come from nsys.

SQLite does the sums; only the exposed time needs every kernel of that part in memory (about 200 bytes each).
Launches are counted as ncu counts them: those of one name in one process, over all its devices, in the order of the
calls that launched them, which is that of their correlation ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np

from orchestrator.formats.events import Ints
from orchestrator.formats.kernel_names import communicates, function
from orchestrator.formats.nsys_export import Export, opened
from orchestrator.model import Pick, Picks

By: TypeAlias = Literal["total_time", "exposed_time", "count"]
Span: TypeAlias = tuple[int, int]

MOST_PER_CHOSEN = 4
"""How many launches may pass ncu's filter for each that was chosen, before fewer are chosen."""
MOST_LAUNCHES = 200
"""More than this are not gone through to find each chosen kernel in a window of steps."""

_TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_SHAPE = ", ".join(_SIZES)


def choose(
    path: Path, top: int, by: By, launches: int = 1, steady_ns: Span | None = None, communication: bool = False
) -> Picks:
    """The `top` kernels by total time, by exposed time (no other kernel ran on the device) or by count, each with the
    most costly of its shapes and `launches` launches of that.

    steady_ns: the steady part in ns since the epoch. Where it is unknown, or of another time, it is the second half of
    the time between the first and the last kernel. communication: whether kernels that wait for other GPUs may be among
    them. Raises ParseError for a file that is no export, or a damaged one."""
    with opened(path) as export:
        return choose_in(export, top, by, launches, steady_ns, communication)


def choose_in(
    export: Export, top: int, by: By, launches: int, steady_ns: Span | None, communication: bool = False
) -> Picks:
    """The same of an open export."""
    in_graphs = tuple(_in_graphs(export))
    span, how = _span(export, steady_ns)
    if span is None:
        return Picks(notes=in_graphs)
    base: Literal["mangled", "function"] = "mangled" if _all_mangled(export) else "function"
    steady = _Steady(export, "mangledName" if base == "mangled" else "shortName", span)
    found = steady.kernels(by)
    barred = [] if communication else [k for k in found if communicates(*steady.names(k.key))]
    ranked = sorted((k for k in found if k not in barred), key=lambda k: (-k.cost, export.string(k.key)))[:top]
    fitting = {kernel.key: steady.numbers(kernel) for kernel in ranked}
    each = _affordable(fitting, launches)
    numbers = _shared(fitting, each)
    whole = sum(kernel.cost for kernel in found)
    picks = tuple(_pick(kernel, numbers[kernel.key], whole, *steady.names(kernel.key)) for kernel in ranked)
    merged = _merged(steady, ranked) if base == "function" else ()
    notes = (*_fewer(each, launches), *_left_out(steady, barred), *merged, *in_graphs)
    return Picks(picks, base, how, steady.until_seen(ranked, each), notes=notes)


def _all_mangled(export: Export) -> bool:
    """Whether every kernel has its mangled name, which is one kernel's only; exports of 2021 have none."""
    nameless = export.rows(_TABLE, where="mangledName IS NULL LIMIT 1") if export.has(_TABLE, "mangledName") else (1,)
    return not any(True for _ in nameless)


def _span(export: Export, steady_ns: Span | None) -> tuple[Span | None, str]:
    """Begin and end of the steady part in the recording's own time, and how it is known; None without a kernel."""
    if _TABLE not in export.columns:
        return None, ""
    ((first, last),) = export.db.execute(f"SELECT min(start), max(start) FROM {_TABLE} WHERE end IS NOT NULL")
    if first is None:
        return None, ""
    if steady_ns is not None and export.start_epoch_ns is not None:
        begin, end = (at - export.start_epoch_ns for at in steady_ns)
        if any(True for _ in export.rows(_TABLE, where=f"start BETWEEN {begin} AND {end} LIMIT 1")):
            return (begin, end), "in the steady steps"
    return (first + (last - first) // 2, last), "in the second half of the recording, as no steady steps are known"


# ---------------------------------------------------------------- the steady part


@dataclass
class _Kernel:
    """All steady launches of one name. `key`: the name's number; `shape`: grid and block that took longest in sum."""

    key: int
    shape: tuple[int, ...]
    shape_ns: int = 0
    count: int = 0
    total_ns: int = 0
    cost: int = 0


@dataclass
class _Steady:
    """The launches of an export that begin in `span`; kernels are told apart by the name in `column`."""

    export: Export
    column: str
    span: Span

    @property
    def _here(self) -> str:
        return f"end IS NOT NULL AND start BETWEEN {self.span[0]} AND {self.span[1]}"

    def names(self, key: int) -> tuple[str, str]:
        """The name that it is found by, and the demangled one."""
        found = next(iter(self.export.rows(_TABLE, "demangledName", where=f"{self.column} = {key} LIMIT 1")), (None,))
        match = self.export.string(key)
        return match, match if found[0] is None else self.export.string(found[0])

    def instances(self, key: int) -> int:
        """How many demangled names there are for the one it is found by; 0 where they are unknown."""
        if not self.export.has(_TABLE, "demangledName"):
            return 0
        asked = f"SELECT count(DISTINCT demangledName) FROM {_TABLE} WHERE {self.column} = {key} AND {self._here}"
        return int(self.export.db.execute(asked).fetchone()[0])

    def kernels(self, by: By) -> list[_Kernel]:
        """Every kernel, with what it costs."""
        found: dict[int, _Kernel] = {}
        asked = f"SELECT {self.column}, {_SHAPE}, count(*), sum(end - start) FROM {_TABLE} WHERE {self._here}"
        for row in self.export.db.execute(f"{asked} GROUP BY {self.column}, {_SHAPE}"):
            key, *sizes, count, total = map(int, row)
            kernel = found.setdefault(key, _Kernel(key, tuple(sizes), -1))
            if total > kernel.shape_ns:
                kernel.shape, kernel.shape_ns = tuple(sizes), total
            kernel.count, kernel.total_ns = kernel.count + count, kernel.total_ns + total
        alone = self._exposed() if by == "exposed_time" else {}
        for kernel in found.values():
            kernel.cost = {"total_time": kernel.total_ns, "count": kernel.count}.get(by, alone.get(kernel.key, 0))
        return list(found.values())

    def _exposed(self) -> Mapping[int, int]:
        """By name, the time (ns) in which no other kernel ran on its device."""
        start, end, device, key = self.export.ints(_TABLE, "start", "end", "deviceId", self.column, where=self._here)
        keys, place = np.unique(key, return_inverse=True)
        total = np.zeros(len(keys), np.int64)
        for one in np.unique(device):
            here = device == one
            np.add.at(total, place[here], exposed(start[here], end[here]))
        return dict(zip(keys.tolist(), total.tolist(), strict=True))

    def numbers(self, kernel: _Kernel) -> list[int]:
        """The numbers of its launches in its shape, among all of its name, in the process that has most of them."""
        process = "globalPid" if self.export.has(_TABLE, "globalPid") else "0"
        # the nodes of a graph share the correlation of its launch
        order = "correlationId, start" if self.export.has(_TABLE, "correlationId") else "start"
        number = f"row_number() OVER (PARTITION BY {process} ORDER BY {order})"
        inner = f"SELECT start, end, {_SHAPE}, {process} AS process, {number} AS number FROM {_TABLE}"
        shape = " AND ".join(f"{name} = {size}" for name, size in zip(_SIZES, kernel.shape, strict=True))
        asked = (
            f"SELECT process, number FROM ({inner} WHERE {self.column} = {kernel.key}) WHERE {self._here} AND {shape}"
        )
        by_process: dict[int, list[int]] = {}
        for process_id, found in self.export.db.execute(f"{asked} ORDER BY process, number"):
            by_process.setdefault(process_id, []).append(found)
        return max(by_process.values(), key=len, default=[])

    def until_seen(self, ranked: Sequence[_Kernel], launches: int) -> int:
        """How many launches of these names come, from the first on, until each has come so often in its shape."""
        missing = {(kernel.key, *kernel.shape): launches for kernel in ranked}
        keys = ", ".join(str(kernel.key) for kernel in ranked)
        asked = f"SELECT {self.column}, {_SHAPE} FROM {_TABLE} WHERE {self.column} IN ({keys}) AND {self._here}"
        seen = 0
        for row in islice(self.export.db.execute(f"{asked} ORDER BY start"), MOST_LAUNCHES):
            seen += 1
            if row in missing:
                missing[row] -= 1
            if not any(left > 0 for left in missing.values()):
                break
        return seen


def exposed(start: Ints, end: Ints) -> Ints:
    """For each interval the time in which no other one is open, in the unit of its ends.

    A sweep over all ends: where exactly one interval is open, the sum of the open ones' numbers is its number."""
    number = np.arange(len(start))
    times = np.concatenate((start, end))
    order = np.argsort(times, kind="stable")
    step = np.repeat(np.array([1, -1]), len(start))[order]
    alone = np.cumsum(step)[:-1] == 1
    which = np.cumsum(step * np.concatenate((number, number))[order])[:-1]
    result = np.zeros(len(start), np.int64)
    np.add.at(result, which[alone], np.diff(times[order])[alone])
    return result


# ---------------------------------------------------------------- which launches


def _affordable(fitting: Mapping[int, Sequence[int]], launches: int) -> int:
    """How many launches of each kernel to look at: 1 where too many others would be measured along with them.

    ncu's filter takes a list of names and a list of numbers, and measures every pair of them."""
    chosen = _shared(fitting, launches)
    pairs = len(chosen) * len({number for numbers in chosen.values() for number in numbers})
    return launches if pairs <= MOST_PER_CHOSEN * sum(map(len, chosen.values())) else 1


def _shared(fitting: Mapping[int, Sequence[int]], launches: int) -> dict[int, tuple[int, ...]]:
    """By kernel, the launches to look at: those in the middle.

    Numbers that stand there already are taken again where they fit: little is measured beyond what was chosen."""
    chosen: dict[int, tuple[int, ...]] = {}
    for key, numbers in sorted(fitting.items(), key=lambda item: len(item[1])):
        taken = {number for others in chosen.values() for number in others}
        again = [number for number in numbers if number in taken]
        first = max(0, min(len(numbers) // 2, len(numbers) - launches))
        chosen[key] = tuple((again if len(again) >= launches else numbers[first:])[:launches])
    return chosen


def _pick(kernel: _Kernel, numbers: tuple[int, ...], whole: int, match: str, demangled: str) -> Pick:
    grid, block = (",".join(map(str, sizes)) for sizes in (kernel.shape[:3], kernel.shape[3:]))
    share = round(kernel.cost / whole, 4) if whole else 0.0
    return Pick(demangled, function(demangled), match, grid, block, numbers, kernel.count, kernel.total_ns, share)


# ---------------------------------------------------------------- what the reader should know


def _fewer(each: int, launches: int) -> Iterator[str]:
    if each < launches:
        yield (
            f"{each} launch of each kernel is looked at instead of {launches}: they have too few numbers in common, "
            "and ncu measures every number of every name"
        )


def _merged(steady: _Steady, ranked: Sequence[_Kernel]) -> Iterator[str]:
    """Functions that are several kernels, as templates are: without mangled names they can't be told apart."""
    for kernel in ranked:
        several = steady.instances(kernel.key)
        if several > 1:
            yield (
                f"{steady.names(kernel.key)[0]} stands for {several} kernels of that function (a template's): cost and "
                "launches are theirs together, ncu is told the function and the numbers"
            )


def _left_out(steady: _Steady, barred: Sequence[_Kernel]) -> Iterator[str]:
    if barred:
        shown = ", ".join(sorted(f"{function(steady.names(k.key)[1])} ({k.count} launches)" for k in barred))
        yield f"left out, as they wait for other GPUs and would hang in kernel replay: {shown}"


def _in_graphs(export: Export) -> Iterator[str]:
    (durations,) = export.events("CUPTI_ACTIVITY_KIND_GRAPH_TRACE")
    if len(durations):
        yield (
            f"{len(durations)} launches of CUDA graphs ({durations.sum() / 1e6:.1f} ms) were traced as a whole: their "
            "kernels can't be chosen (`graphs: node` on nsys shows them)"
        )
