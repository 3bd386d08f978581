"""formats/gpu_queue.py against a count of every single nanosecond, on small inputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.formats import gpu_queue
from orchestrator.formats.events import MISSING
from orchestrator.formats.gpu_queue import COPY, GRAPH, KERNEL, LAST, SET, Gaps, Host, Launches, Spans, Work
from orchestrator.tables import SCHEMAS

PIECE = st.tuples(
    st.integers(0, 40), st.integers(0, 6), st.sampled_from((KERNEL, GRAPH, COPY, SET)), st.integers(0, 3),
    st.booleans(), st.none() | st.integers(-10, 45),
)  # fmt: skip
"""Start, length, kind, stream, communication, launch."""


@pytest.fixture(autouse=True, params=[3, 1 << 17], ids=["in-portions", "at-once"])
def portions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions so small that there are many."""
    monkeypatch.setattr(gpu_queue, "CHUNK", request.param)
    monkeypatch.setattr(gpu_queue, "PAIRS", request.param)


def work_of(pieces: list[tuple[Any, ...]]) -> Work:
    start, length, kind, stream, communicates, launched = zip(*pieces, strict=True)
    kinds, starts = np.array(kind, np.uint8), np.array(start, np.int64)
    return Work(
        start=starts,
        end=starts + np.array(length),
        kind=kinds,
        stream=np.array(stream),
        communication=np.array(communicates) & (kinds == KERNEL),
        launched=np.array([MISSING if at is None else at for at in launched], np.int64),
    )


def spans_of(rows: list[tuple[int, int, int, int]]) -> Spans:
    thread, start, length, name = (
        np.array(column, np.int64) for column in (zip(*rows, strict=True) if rows else ((),) * 4)
    )
    return Spans(thread, start, start + length, name, "name {}".format)


def lasting(pieces: list[tuple[int, int]]) -> Counter[int]:
    """How many of the pieces (start, end) there are in each nanosecond."""
    return Counter(ns for start, end in pieces for ns in range(start, end))


# ---------------------------------------------------------------- how busy


@given(st.lists(PIECE, min_size=1, max_size=12))
def test_times_are_those_of_every_single_nanosecond(pieces: list[tuple[Any, ...]]) -> None:
    work = work_of(pieces)
    found = gpu_queue.utilization(work)
    rows = list(
        zip(work.start.tolist(), work.end.tolist(), work.kind.tolist(), work.communication.tolist(), strict=True)
    )
    every = lasting([(s, e) for s, e, *_ in rows])
    kernels = lasting([(s, e) for s, e, kind, _ in rows if kind in (KERNEL, GRAPH)])
    copies = lasting([(s, e) for s, e, kind, _ in rows if kind in (COPY, SET)])
    talks = lasting([(s, e) for s, e, kind, talk in rows if talk])
    computes = lasting([(s, e) for s, e, kind, talk in rows if kind in (KERNEL, GRAPH) and not talk])
    first, last = min(s for s, *_ in rows), max(e for _, e, *_ in rows)
    assert (found["start_ns"], found["span_ns"]) == (first, last - first)
    assert (found["busy_ns"], found["idle_ns"]) == (len(every), last - first - len(every))
    assert (found["kernel_ns"], found["transfer_ns"], found["communication_ns"]) == (
        len(kernels),
        len(copies),
        len(talks),
    )
    assert found["exposed_transfer_ns"] == len(copies.keys() - kernels.keys())
    assert found["exposed_communication_ns"] == len(talks.keys() - computes.keys())
    assert found["overlapped_ns"] == sum(count >= 2 for count in every.values())
    assert found["max_concurrency"] == max(every.values(), default=0)
    assert found["concurrency"] == (sum(every.values()) / len(every) if every else None)
    assert found["streams"] == len({piece[3] for piece in pieces})
    counted = Counter(work.kind.tolist())
    assert (found["kernels"], found["graphs"]) == (counted[KERNEL], counted[GRAPH])
    assert found["transfers"] == counted[COPY] + counted[SET]
    assert found.keys() | {"capture", "pid", "device", "gpu"} == {c.name for c in SCHEMAS["gpu_utilization"]}


@given(st.lists(PIECE, min_size=1, max_size=12))
def test_waiting_launches_are_those_of_every_single_nanosecond(pieces: list[tuple[Any, ...]]) -> None:
    work = work_of(pieces)
    found = gpu_queue.utilization(work)
    known = [(at, s) for at, s in zip(work.launched.tolist(), work.start.tolist(), strict=True) if at != MISSING]
    if not known:
        assert found["queue_mean"] is found["queue_max"] is found["queue_empty_ns"] is None
        return
    waiting = lasting(known)
    span = range(int(work.start.min()), int(work.end.max()))
    assert found["queue_max"] == max(waiting.values(), default=0)
    assert found["queue_empty_ns"] == sum(waiting[ns] == 0 for ns in span)
    assert found["queue_mean"] == (sum(waiting[ns] for ns in span) / len(span) if span else None)


def test_times_are_exact_where_a_float_would_round() -> None:
    late = 1_790_000_000_000_000_001
    found = gpu_queue.utilization(work_of([(late, 1, KERNEL, 0, False, late - 1), (late + 3, 1, COPY, 0, False, None)]))
    assert (found["start_ns"], found["busy_ns"], found["idle_ns"], found["queue_empty_ns"]) == (late, 2, 2, 4)


# ---------------------------------------------------------------- gaps


@given(st.lists(PIECE, min_size=1, max_size=12), st.integers(0, 5))
def test_gaps_are_where_nothing_runs_and_the_longest_are_kept(pieces: list[tuple[Any, ...]], most: int) -> None:
    work = work_of(pieces)
    every = gpu_queue.gaps(work)
    busy = lasting(list(zip(work.start.tolist(), work.end.tolist(), strict=True)))
    # work of no duration ends a gap, too
    idle = {ns for ns in range(int(work.start.min()), int(work.end.max())) if ns not in busy}
    spans = list(zip(every.start.tolist(), every.end.tolist(), strict=True))
    assert lasting(spans) == dict.fromkeys(idle, 1)
    assert len(every) == gpu_queue.utilization(work)["gaps"]
    assert np.all(work.end[every.before] == every.start)
    assert np.all(work.start[every.after] == every.end)
    assert np.array_equal(work.launched[every.after], every.launched)
    kept = gpu_queue.gaps(work, most)
    assert sorted(kept.end - kept.start) == sorted(every.end - every.start)[len(every) - min(most, len(every)) :]
    assert kept.start.tolist() == sorted(kept.start.tolist())


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 9))
def test_of_many_gaps_the_longest_are_kept(idle: list[int], most: int) -> None:
    starts = np.cumsum([0, *(length + 1 for length in idle)]).tolist()
    found = gpu_queue.gaps(work_of([(start, 1, KERNEL, 0, False, None) for start in starts]), most)
    assert sorted(found.end - found.start, reverse=True) == sorted(filter(None, idle), reverse=True)[:most]


THREADS = st.sampled_from((1, 2, 3))
SPAN = st.tuples(THREADS, st.integers(0, 40), st.integers(0, 12), st.integers(0, 4))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), THREADS | st.just(MISSING)), max_size=6),
    st.lists(SPAN, max_size=12), st.lists(SPAN, max_size=12),
)  # fmt: skip
def test_what_a_thread_did_in_a_gap(
    windows: list[tuple[int, int, int]], calls: list[tuple[int, int, int, int]], ranges: list[tuple[int, int, int, int]]
) -> None:
    edges = np.cumsum([length for busy, idle, _ in windows for length in (busy, idle)]).reshape(-1, 2)
    start, end, thread = edges[:, 0], edges[:, 1], np.array([t for *_, t in windows], np.int64)
    none = np.zeros(len(start), np.int64)
    samples = Spans(*(column for column in vars(spans_of([(t, s, 1, n) for t, s, _, n in calls])).values()))
    host = Host(calls=spans_of(calls), ranges=spans_of(ranges), samples=samples)
    found = gpu_queue.gap_columns(Gaps(start, end, none, none, none), thread, host)
    for place, (a, b, t) in enumerate(zip(start.tolist(), end.tolist(), thread.tolist(), strict=True)):
        taken = Counter[int]()
        for tid, s, length, name in calls:
            taken[name] += max(0, min(s + length, b) - max(s, a)) * (tid == t)
        most = max(taken.values(), default=0)
        assert found["api_ns"][place] == (None if t == MISSING else min(most, b - a))
        best = min((name for name, ns in taken.items() if ns == most), default=None) if most else None
        assert found["api"][place] == (None if best is None else f"name {best}")
        inside = Counter(name for tid, s, _, name in calls if tid == t and a <= s < b)
        assert found["samples"][place] == (None if t == MISSING else sum(inside.values()))
        top = min(inside, key=lambda name: (-inside[name], name)) if inside else None
        assert found["function"][place] == (None if top is None else f"name {top}")
        over = [(s, -s - n, name) for tid, s, n, name in ranges if tid == t and 2 * (min(s + n, b) - max(s, a)) > b - a]
        innermost = {name for s, e, name in over if (s, e) == max(over)[:2]}
        assert found["range"][place] in ({f"name {name}" for name in innermost} or {None})


def test_what_was_not_recorded_is_unknown() -> None:
    gap = Gaps(*(np.array([value]) for value in (10, 20, 0, 1, MISSING)))
    found = gpu_queue.gap_columns(gap, np.array([7]), Host())
    assert {name for name, values in found.items() if values[0] is not None} == {"start_ns", "duration_ns"}
    known = Gaps(*(np.array([value]) for value in (10, 20, 0, 1, 12)))
    idle = gpu_queue.gap_columns(known, np.array([7]), Host(calls=spans_of([(8, 0, 30, 1)]), os_calls=spans_of([])))
    assert (idle["kind"], idle["launched_ns"], idle["api"], idle["api_ns"], idle["os_call_ns"]) == (
        ["host"], [2], [None], [0], [0],
    )  # fmt: skip


def test_a_launch_before_the_gap_waited_for_something_else() -> None:
    work = work_of([(0, 5, KERNEL, 0, False, -3), (8, 2, KERNEL, 1, False, 4), (15, 1, COPY, 0, False, 11)])
    found = gpu_queue.gap_columns(gpu_queue.gaps(work), np.array([1, 1]), Host())
    assert (found["kind"], found["launched_ns"]) == (["queued", "host"], [-1, 1])


def test_a_range_without_an_end_covers_what_comes_after_its_start() -> None:
    open_range = Spans(np.array([1]), np.array([2]), np.array([LAST]), np.array([0]), lambda _: "training")
    gap = Gaps(*(np.array([value]) for value in (10, 20, 0, 1, 12)))
    assert gpu_queue.gap_columns(gap, np.array([1]), Host(ranges=open_range))["range"] == ["training"]


# ---------------------------------------------------------------- launches


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1, max_size=5),
    st.lists(
        st.tuples(st.sampled_from((3, 5, 10**6)), st.integers(0, 60), st.integers(0, 9), st.integers(0, 99)),
        max_size=12,
    ),
)  # fmt: skip
def test_launches_by_name(calls: list[tuple[int, int]], kernels: list[tuple[int, int, int, int]]) -> None:
    opened = np.array([s for s, _ in calls], np.int64)
    closed = opened + np.array([length for _, length in calls])
    name, start, length, call = (np.array(c, np.int64) for c in (zip(*kernels, strict=True) if kernels else ((),) * 4))
    call = call % len(calls)
    found = gpu_queue.launch_columns(Launches(name, start, start + length, call, opened, closed), str)
    assert set(found["name"]) == set(map(str, name.tolist()))
    assert found["kernel_total_ns"] == sorted(found["kernel_total_ns"], reverse=True)
    for row in zip(*found.values(), strict=True):
        shown = dict(zip(found, row, strict=True))
        mine = np.flatnonzero(name == int(shown.pop("name")))
        latency = start[mine] - opened[call[mine]]
        spent = (closed - opened)[np.unique(call[mine])]
        assert shown == {
            "count": len(mine),
            "api_total_ns": spent.sum(),
            "api_median_ns": np.median(spent),
            "latency_mean_ns": latency.mean(),
            "latency_median_ns": np.median(latency),
            "latency_min_ns": latency.min(),
            "latency_max_ns": latency.max(),
            "queued_median_ns": np.median(np.maximum(start[mine] - closed[call[mine]], 0)),
            "kernel_total_ns": length[mine].sum(),
        }
