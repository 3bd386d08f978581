"""What the queue of one GPU was doing, from arrays of its work, whatever tool recorded them: busy and idle time, the
gaps and what the launching thread did in them, how long launches took.

All times are int64 ns on one clock and nothing is rounded. Times are half open: work that ends when other work begins
isn't beside it. A reader of a format makes one `Work` for each GPU and asks:

    utilization(work)                   the columns of `gpu_utilization` but for pid, device and gpu
    gaps(work)                          the longest idle times, as places in the arrays that the work was given in
    gap_columns(gaps, thread, host)     the columns of `gpu_gaps` but for pid, device, before, after and thread
    launch_columns(launches, text)      the columns of `gpu_launch_summary` but for pid and device

What is waiting, by definition: work is in the queue from the *start* of the call that launched it (the call may return
after the work began) until it begins. Each kernel of a CUDA graph counts from the one call that launched the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import MISSING, Ints

KERNEL, GRAPH, COPY, SET = range(4)
"""What work is. GRAPH: the launch of a CUDA graph that was traced as a whole."""

LONGEST_GAPS = 10_000
"""How many gaps of a GPU are looked at one by one."""
CHUNK = 1 << 17
"""How many items are worked on at once: what is derived of them stays in the processor's cache, and memory small."""
PAIRS = 1 << 22
"""How many pairs of a gap and a call are held at once, about."""
LAST = 2**63 - 1
"""The end of what never ends, after all else."""

Flags: TypeAlias = NDArray[np.bool_]
Places: TypeAlias = NDArray[np.integer[Any]]


# ---------------------------------------------------------------- what is given


@dataclass(frozen=True)
class Work:
    """The work of one GPU, in any order, by whatever processes and streams. All arrays have one length.

    launched: start of the call that launched each, MISSING where that wasn't seen.
    stream: a number that differs between streams (of different processes and contexts too).
    communication: kernels for which `kernel_names.communicates`."""

    start: Ints
    end: Ints
    kind: NDArray[np.uint8]
    stream: Places
    communication: Flags
    launched: Ints

    def __len__(self) -> int:
        return len(self.start)

    def ordered(self) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Places, starts and ends in the order of the starts, in portions."""
        for first in range(0, len(self), CHUNK):
            last = min(first + CHUNK, len(self))
            place = np.arange(first, last) if self._order is None else self._order[first:last]
            start = self.start[place]
            yield place, start, np.maximum(self.end[place], start)

    @cached_property
    def _order(self) -> Ints | None:
        in_order = bool(np.all(self.start[1:] >= self.start[:-1]))
        return None if in_order else np.argsort(self.start, kind="stable")


@dataclass(frozen=True)
class Spans:
    """What threads did: calls, ranges (of one that never ended, the end is LAST), or samples (of 1 ns), in any order.

    thread: any number that tells threads apart. name: a number; `text` gives what to show for it."""

    thread: Ints
    start: Ints
    end: Ints
    name: Ints
    text: Callable[[int], str]


@dataclass(frozen=True)
class Host:
    """What is known of the threads that launch. None: it wasn't recorded at all."""

    calls: Spans | None = None
    ranges: Spans | None = None
    os_calls: Spans | None = None
    samples: Spans | None = None


@dataclass(frozen=True)
class Launches:
    """Kernels whose launch was seen, and the calls that launched them; `call` is the place of each kernel's in
    `call_start` and `call_end`. One call may have launched many kernels."""

    name: Ints
    start: Ints
    end: Ints
    call: NDArray[Any]
    call_start: Ints
    call_end: Ints


# ---------------------------------------------------------------- how busy it was


def utilization(work: Work) -> dict[str, int | float | None]:
    """The columns of `gpu_utilization` for one GPU that had some work. Time in which launches wait is a lower bound
    where some launches were not seen, and unknown where none were."""
    busy, kernel, transfer, communication, computing, overlapped = (_Union() for _ in range(6))
    spent, beside, counted = 0, [], np.zeros(4, np.int64)
    for place, start, end in work.ordered():
        kind, communicates = work.kind[place], work.communication[place]
        kernels = kind <= GRAPH
        counted += np.bincount(kind, minlength=4)
        spent += int((end - start).sum())
        beside.append(_second(start, end, busy.add(start, end)))
        overlapped.add(*beside[-1])
        for union, flags in ((kernel, kernels), (transfer, ~kernels), (communication, communicates),
                             (computing, kernels & ~communicates)):  # fmt: skip
            union.add(start[flags], end[flags])
    return {
        "start_ns": busy.first,
        "span_ns": busy.span,
        "busy_ns": busy.ns,
        "idle_ns": busy.idle,
        "kernel_ns": kernel.ns,
        "transfer_ns": transfer.ns,
        "communication_ns": communication.ns,
        "exposed_transfer_ns": busy.ns - kernel.ns,
        "exposed_communication_ns": kernel.ns - computing.ns,
        "overlapped_ns": overlapped.ns,
        "concurrency": spent / busy.ns if busy.ns else None,
        "max_concurrency": int(busy.ns > 0) + _most(*map(np.concatenate, zip(*beside, strict=True))),
        "kernels": int(counted[KERNEL]),
        "graphs": int(counted[GRAPH]),
        "transfers": int(counted[COPY] + counted[SET]),
        "streams": len(distinct(work.stream)),
        "gaps": busy.gaps,
        **_queue(work, busy),
    }


class _Union:
    """How long at least one of many spans lasts, which come portion by portion in the order of their starts."""

    def __init__(self) -> None:
        self.first = self.until = self.idle = self.gaps = 0
        self.empty = True

    def add(self, start: Ints, end: Ints) -> Ints:
        """Takes the next spans in. When everything before each of them had ended (the very first: its own start)."""
        if not len(start):
            return start
        if self.empty:
            self.first = self.until = int(start[0])
            self.empty = False
        before = np.empty(len(start) + 1, np.int64)
        before[0] = self.until
        np.maximum(np.maximum.accumulate(end, out=before[1:]), self.until, out=before[1:])
        self.until = int(before[-1])
        idle = start - before[:-1]
        self.gaps += int(np.count_nonzero(idle > 0))
        self.idle += int(np.maximum(idle, 0, out=idle).sum())
        return before[:-1]

    @property
    def span(self) -> int:
        return self.until - self.first

    @property
    def ns(self) -> int:
        return self.span - self.idle


def _second(start: Ints, end: Ints, before: Ints) -> tuple[Ints, Ints]:
    """Spans of which at any time one fewer runs than of those given: of each the part until everything before it had
    ended. Of those that run at once, that leaves out the one that began first, and only that."""
    until = np.minimum(end, before)
    some = until > start
    return start[some], until[some]


def _most(start: Ints, end: Ints) -> int:
    """How many run at once at most; the starts are in their order."""
    over = np.searchsorted(np.sort(end, kind="stable"), start, "right")
    return int((np.arange(1, len(start) + 1) - over).max(initial=0))


def _queue(work: Work, busy: _Union) -> dict[str, int | float | None]:
    """How many launches waited. Their number falls at each beginning: before the one numbered k, as many wait as were
    launched less k, and after it none where the launch numbered k + 1 is later. So both are put in order each by
    itself."""
    launched = _launched(work)
    launched.sort(kind="stable")
    if not len(launched):
        return {"queue_mean": None, "queue_max": None, "queue_empty_ns": None}
    waited, most, done, empty = 0, 0, 0, max(int(launched[0]) - busy.first, 0)
    for place, start, _ in work.ordered():
        start = start[work.launched[place] != MISSING]
        if not len(start):
            continue
        waits = np.searchsorted(launched, start) - np.arange(done, done + len(start))
        most = max(most, int(waits.max()))
        waited += int((start - np.maximum(launched[done : done + len(start)], busy.first)).sum())
        done += len(start)
        following = np.append(launched[done - len(start) + 1 : done + 1], [busy.until] * (done == len(launched)))
        empty += int(np.maximum(following - start, 0).sum())
    return {"queue_mean": waited / busy.span if busy.span else None, "queue_max": most, "queue_empty_ns": empty}


def _launched(work: Work) -> Ints:
    """When each was launched, where that is known; at the latest when it began."""
    found, count = np.empty(len(work), np.int64), 0
    for first in range(0, len(work), CHUNK):
        part = slice(first, first + CHUNK)
        launched = np.minimum(work.launched[part], work.start[part])[work.launched[part] != MISSING]
        found[count : count + len(launched)] = launched
        count += len(launched)
    return found[:count]


def distinct(values: Places) -> list[int]:
    """The values that occur, sorted."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    if high - low > 1 << 24:
        return [int(v) for v in np.unique(values)]
    seen = np.zeros(high - low + 1, bool)
    for first in range(0, len(values), CHUNK):
        seen[values[first : first + CHUNK] - low] = True
    return [int(v) + low for v in np.flatnonzero(seen)]


# ---------------------------------------------------------------- gaps


@dataclass(frozen=True)
class Gaps:
    """Times of idleness between two pieces of work, in their order.

    before: place, in the work as given, of what ended last before each. after: of what began at its end.
    launched: start of the call that launched that, MISSING where unknown."""

    start: Ints
    end: Ints
    before: Ints
    after: Ints
    launched: Ints

    def __len__(self) -> int:
        return len(self.start)


def gaps(work: Work, most: int = LONGEST_GAPS) -> Gaps:
    """The longest gaps, at most that many; of those as long as the last one, any."""
    busy, shortest, latest = _Union(), 0, -1
    found = np.empty((5, 0), np.int64)  # length, start, end, before, after
    for place, start, end in work.ordered():
        idle_from = busy.add(start, end)
        new = np.flatnonzero(start - idle_from > shortest)
        highest = np.flatnonzero(end >= np.append(idle_from[1:], busy.until))
        before = np.append(latest, place[highest])[np.searchsorted(highest, new)]
        latest = int(place[highest[-1]]) if len(highest) else latest
        length = (start - idle_from)[new]
        found = np.hstack((found, (length, idle_from[new], start[new], before, place[new])))
        if found.shape[1] > most + CHUNK:
            found = _longest(found, most)
            shortest = int(found[0].min(initial=LAST))
    _, start, end, before, after = _longest(found, most)
    return Gaps(start, end, before, after, work.launched[after])


def _longest(found: Ints, most: int) -> Ints:
    surplus = found.shape[1] - most
    return (
        found[:, np.sort(np.argpartition(found[0], surplus)[surplus:])]
        if 0 < surplus < found.shape[1]
        else found[:, :most]
    )


def gap_columns(gaps: Gaps, thread: Ints, host: Host) -> dict[str, Any]:
    """Columns of `gpu_gaps`. `thread` is the one that launched what came after each gap, as `host` numbers threads,
    MISSING where unknown: then, and where nothing of the kind was recorded, what it did is unknown too."""
    length, seen, known = gaps.end - gaps.start, gaps.launched != MISSING, thread != MISSING
    api, api_ns, _ = busiest(host.calls, gaps, thread)
    os_call, os_call_ns, _ = busiest(host.os_calls, gaps, thread)
    function, _, samples = busiest(host.samples, gaps, thread)
    return {
        "start_ns": gaps.start,
        "duration_ns": length,
        "kind": _where(seen, np.where(gaps.launched > gaps.start, "host", "queued")),
        "launched_ns": _where(seen, gaps.launched - gaps.start),
        "api": api,
        "api_ns": _where(known & (host.calls is not None), np.minimum(api_ns, length)),
        "range": innermost(host.ranges, gaps, thread),
        "os_call": os_call,
        "os_call_ns": _where(known & (host.os_calls is not None), np.minimum(os_call_ns, length)),
        "samples": _where(known & (host.samples is not None), samples),
        "function": function,
    }


def _where(known: Flags, values: NDArray[Any]) -> list[Any]:
    return [value if told else None for told, value in zip(known.tolist(), values.tolist(), strict=True)]


def busiest(spans: Spans | None, gaps: Gaps, thread: Ints) -> tuple[list[str | None], Ints, Ints]:
    """For each gap the name that took most of it in that thread (all spans of one name together), how much that was,
    and how much all of them took."""
    best, most, every = np.zeros((3, len(gaps)), np.int64)
    if spans is None:
        return [None] * len(gaps), most, every
    parts = [_summed(gap, spans.name[span], ns) for span, gap, ns in _overlaps(spans, gaps.start, gaps.end, thread)]
    if parts:
        gap, name, total = _summed(*map(np.concatenate, zip(*parts, strict=True)))
        np.add.at(every, gap, total)
        upwards = np.lexsort((-name, total, gap))  # of equals the lowest number, so that it is always the same one
        best[gap[upwards]], most[gap[upwards]] = name[upwards], total[upwards]
    found = most > 0
    shown = {number: spans.text(number) for number in np.unique(best[found]).tolist()}
    return [shown[n] if some else None for n, some in zip(best.tolist(), found.tolist(), strict=True)], most, every


def _summed(gap: Ints, name: Ints, ns: Ints) -> tuple[Ints, Ints, Ints]:
    """The sum for each gap and name."""
    if not len(gap):
        return gap, name, ns
    order = np.lexsort((name, gap))
    gap, name = gap[order], name[order]
    first = np.flatnonzero(np.append(True, (gap[1:] != gap[:-1]) | (name[1:] != name[:-1])))
    return gap[first], name[first], np.add.reduceat(ns[order], first)


def innermost(spans: Spans | None, gaps: Gaps, thread: Ints) -> list[str | None]:
    """The name of the span of that thread that covers more than half of each gap; of several the one that began last,
    and of those the one that ended first."""
    best = np.full(len(gaps), -1, np.int64)
    length = gaps.end - gaps.start
    middle = gaps.start + length // 2  # is in every span that covers more than half
    for span, gap, _ in _overlaps(spans, middle, middle + 1, thread) if spans else ():
        assert spans is not None
        covered = np.minimum(spans.end[span], gaps.end[gap]) - np.maximum(spans.start[span], gaps.start[gap])
        enough, have = covered > length[gap] // 2, np.flatnonzero(best >= 0)
        span, gap = np.concatenate((best[have], span[enough])), np.concatenate((have, gap[enough]))
        inwards = np.lexsort((-spans.end[span], spans.start[span], gap))
        best[gap[inwards]] = span[inwards]
    return [spans.text(int(spans.name[n])) if spans and n >= 0 else None for n in best.tolist()]


def _overlaps(spans: Spans, start: Ints, end: Ints, thread: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
    """All pairs of a span and a window that overlap and are of one thread, with the time (ns) that they share, in
    portions. The windows are in their order and apart from one another, so that those of a span stand in a row."""
    wanted = distinct(thread[thread != MISSING])
    for offset in range(0, len(spans.start) if wanted else 0, CHUNK):
        part = slice(offset, offset + CHUNK)
        mine = np.flatnonzero(np.isin(spans.thread[part], wanted))
        opened, closed = spans.start[part][mine], spans.end[part][mine]
        first = np.searchsorted(end, opened, "right")
        some = np.flatnonzero(np.append(start, LAST)[first] < closed)
        count = np.searchsorted(start, closed[some], "left") - first[some]
        for span, gap in _spread(mine[some] + offset, first[some], count):
            same = np.flatnonzero(spans.thread[span] == thread[gap])
            span, gap = span[same], gap[same]
            yield span, gap, np.minimum(spans.end[span], end[gap]) - np.maximum(spans.start[span], start[gap])


def _spread(item: Ints, first: Ints, count: Ints) -> Iterator[tuple[Ints, Ints]]:
    """Each item with the `count` numbers from `first` on, in portions."""
    before = np.append(0, np.cumsum(count))
    cuts = np.searchsorted(before, np.arange(0, before[-1] + PAIRS, PAIRS))
    for a, b in zip(cuts[:-1].tolist(), np.minimum(cuts[1:], len(item)).tolist(), strict=True):
        number = np.arange(before[b] - before[a]) + np.repeat(first[a:b] - before[a:b] + before[a], count[a:b])
        yield np.repeat(item[a:b], count[a:b]), number


# ---------------------------------------------------------------- launches


def launch_columns(launches: Launches, text: Callable[[int], str]) -> dict[str, Any]:
    """The columns of `gpu_launch_summary`, the names with most time on the GPU first. The time of a call that launched
    several kernels of one name counts once for that name."""
    seen = np.zeros(len(launches.call_start), bool)
    seen[launches.call] = True
    shared = int(np.count_nonzero(seen)) < len(launches.call)
    rows = [(text(number), *_launch_figures(launches, places, shared)) for number, places in _grouped(launches.name)]
    rows.sort(key=lambda row: -row[-1])
    names = ("name", "count", "api_total_ns", "api_median_ns", "latency_mean_ns", "latency_median_ns", "latency_min_ns",
             "latency_max_ns", "queued_median_ns", "kernel_total_ns")  # fmt: skip
    return dict(zip(names, map(list, zip(*rows, strict=True)) if rows else ([] for _ in names), strict=True))


def _launch_figures(launches: Launches, places: Ints, shared: bool) -> tuple[Any, ...]:
    """Of the kernels of one name. `shared`: some calls launched more than one kernel."""
    call, start = launches.call[places], launches.start[places]
    once = np.unique(call) if shared else call
    spent = launches.call_end[once] - launches.call_start[once]
    latency = start - launches.call_start[call]
    queued = np.maximum(start - launches.call_end[call], 0)
    return (
        len(places), int(spent.sum()), _median(spent),
        int(latency.sum()) / len(places), _median(latency), int(latency.min()), int(latency.max()),
        _median(queued), int((launches.end[places] - start).sum()),
    )  # fmt: skip


def _median(values: Ints) -> float:
    """The middle one, or the mean of the middle two. Changes the order of the values."""
    low, high = (len(values) - 1) // 2, len(values) // 2
    values.partition((low, high))
    return (int(values[low]) + int(values[high])) / 2


def _grouped(numbers: Places) -> Iterator[tuple[int, Ints]]:
    """Each number that occurs, and its places."""
    low, high = int(numbers.min(initial=0)), int(numbers.max(initial=0))
    small = high - low < 1 << 16
    sortable = (numbers - low).astype(np.uint16) if small else numbers  # of 16 bits, they are sorted much faster
    order = np.argsort(sortable, kind="stable")
    in_order = sortable[order]
    cuts = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
    for places in np.split(order, cuts) if len(order) else ():
        yield int(numbers[places[0]]), places
