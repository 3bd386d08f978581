"""Ranks side by side: who comes last is told by own work, whatever tells what was waited."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rank_data import CAPTURE, MS, NOW, STEP, record, seen, steps, tables

from orchestrator.locating import ranks
from orchestrator.locating.gpu_arrays import Times
from orchestrator.model import Capture, Exit, PassRecord, RankSeen, TargetRun, Task
from orchestrator.tables import Coded, Table


def rows(made: dict[str, list[Table]], name: str = "ranks") -> list[dict[str, object]]:
    return [row for table in made.get(name, ()) for row in table.rows()]


def test_who_waits_is_not_the_slow_one() -> None:
    made = tables(3, lambda rank, step: (30 + 20 * rank) * MS)
    told = rows(made)
    assert [row["collective_pct"] for row in told] == [70, 50, 30], "of what all have alike, nothing is told by it"
    assert [row["behind_ns"] for row in told] == [-20 * MS, 0, 20 * MS]
    assert [(row["slowest_steps"], row["common_steps"]) for row in told] == [(0, 18), (0, 18), (18, 18)]
    assert {row["judged_by"] for row in told} == {"own work"} and {row["told_by"] for row in told} == {CAPTURE}
    assert [row["step_median_ns"] for row in told] == [STEP] * 3
    assert [(row["data_wait_pct"], row["cpu_pct"]) for row in told] == [(5, 50)] * 3


def test_each_step_is_compared_with_the_same_step_of_the_others() -> None:
    made = tables(2, lambda rank, step: (80 if rank == step % 2 else 40) * MS, many=6)
    found = rows(made, "rank_steps")
    assert [(row["rank"], row["step"], row["is_slowest"]) for row in found if row["step"] in (1, 2, 3)] == [
        (0, 1, None), (0, 2, True), (0, 3, False), (1, 1, None), (1, 2, False), (1, 3, True),
    ]  # fmt: skip
    assert [row["behind_ns"] for row in found[2:4]] == [20 * MS, -20 * MS]
    assert [row["own_ns"] for row in found[:3]] == [None, None, 80 * MS] and found[0]["collective_ns"] == 20 * MS


def test_without_collectives_whole_steps_are_compared_and_that_is_said() -> None:
    told = rows(tables(2, None))
    assert [(row["judged_by"], row["behind_ns"], row["slowest_steps"], row["told_by"]) for row in told] == [
        ("whole steps", 0, 0, None)
    ] * 2


def test_where_one_rank_is_not_told_of_none_is_compared_by_own_work() -> None:
    some = [steps(rank, 20) for rank in range(2)]
    waits = Table(
        "rank_steps", {"capture": [CAPTURE], "rank": [0], "step": [5], "collective_ns": [MS], "told_by": [CAPTURE]}
    )
    captures = [Capture(CAPTURE, "p01", "torch", "ok")]
    made = ranks.together({"steps": some, "rank_steps": [waits]}, captures, [record([])])
    assert {row["judged_by"] for row in rows(made)} == {"whole steps"}


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_of_a_program_with_one_rank(count: int) -> None:
    assert set(tables(count, lambda rank, step: 50 * MS)) == {"steps"}


def test_ranks_that_failed_or_were_not_seen_are_there() -> None:
    told = record([seen(0), seen(1, exit=Exit(9)), seen(2, exit=Exit(signal=11), host="n1")], expected=4)
    found = rows(tables(2, lambda rank, step: 50 * MS, told=told))
    assert [(row["rank"], row["exit_code"], row["exit_signal"], row["missing"]) for row in found] == [
        (0, 0, None, False), (1, 9, None, False), (2, None, 11, False), (3, None, None, True),
    ]  # fmt: skip
    assert found[2]["host"] == "n1" and found[2]["steps"] is None


def test_of_a_rank_that_was_started_again_the_end_is_of_the_life_that_made_the_steps() -> None:
    lives = [replace(seen(0), exit=Exit(signal=15)), replace(seen(0), pid=900, exit=Exit(1)), seen(1)]
    found = rows(tables(2, lambda rank, step: 50 * MS, told=record(lives)))
    assert [(row["pid"], row["exit_code"], row["exit_signal"]) for row in found] == [(100, None, 15), (101, 0, None)]


def test_on_several_hosts_a_rank_that_no_task_has_seen_is_missing() -> None:
    def task(number: int, ranks_: list[RankSeen]) -> Task:
        run = TargetRun(("x",), 1, NOW, NOW, 1.0, Exit(0), ranks=tuple(ranks_))
        return Task(number, f"n{number}", run=run, ranks=tuple(one.rank for one in ranks_))

    tasks = (
        task(0, [seen(0, world_size=4, host="n0")]),
        task(1, [seen(1, world_size=4, host="n1")]),
        Task(2, "n2", ranks=(2,)),
    )
    found = rows(tables(2, None, told=record([], tasks=tasks)))
    assert [(row["rank"], row["host"], row["missing"]) for row in found] == [
        (0, "n0", False), (1, "n1", False), (2, None, True), (3, None, True),
    ]  # fmt: skip


def test_waits_by_samples_of_stacks() -> None:
    """The main thread's samples that lie in gloo; those of other threads say nothing."""
    wait = "train (/src/a.py:3);all_reduce (/site-packages/torch/distributed/distributed_c10d.py:9);" + (
        "c10d::ProcessGroupGloo::AsyncWork::wait (libtorch_cpu.so);pthread_cond_wait (libc.so.6)"
    )
    work = "train (/src/a.py:2);at::native::mm (libtorch_cpu.so)"
    spans = []
    for n in range(20):
        for tid, stack, start, length in ((100, work, 0, 60), (100, wait, 60, 40), (999, wait, 0, 100)):
            spans.append((100, tid, "t", NOW + n * STEP + start * MS, length * MS, stack))
    table = Table.of("stack_spans", spans, clock="epoch").with_capture(CAPTURE)
    parts = {"steps": [steps(0, 20), steps(1, 20)], "stack_spans": [table]}
    (made,) = ranks.located(parts, [Capture(CAPTURE, "p01", "py-spy", "ok", options={"native": True})], [record([])])[
        "rank_steps"
    ]
    assert ranks.located(parts, [Capture(CAPTURE, "p01", "py-spy", "ok")], [record([])]) == {}, "no native frames"
    assert made.columns["collective_ns"] == [40 * MS] * 20 and set(made.columns["rank"]) == {0}


def gpu_tables(rank: int, pid: int, late: int, **more: object) -> dict[str, Table]:
    """In each step a kernel that computes, beside its end one of NCCL, until the step's end."""
    kernels = []
    for n in range(20):
        at = NOW + n * STEP
        kernels += [
            (pid, 0, 7, at, (40 + late) * MS, "gemm"),
            (pid, 0, 13, at + 20 * MS, 80 * MS, "ncclDevKernel_AllReduce"),
        ]
    names = ("pid", "device", "stream", "start_ns", "duration_ns", "name")
    made = Table.of("gpu_kernels", kernels, names, clock="epoch", clock_error_ns=1000)
    used = Table("gpu_utilization", {"pid": [pid], "device": [0], "gpu": ["H200"], "start_ns": [NOW]}, "epoch", 1000)
    return {one.name: one.with_capture(f"p01-nsys@n{rank}", rank) for one in (made, used)}


def test_waits_by_the_communication_that_nothing_hides() -> None:
    parts: dict[str, list[Table]] = {"steps": [steps(rank, 20, pid=7) for rank in range(2)]}
    for rank in range(2):
        for name, table in gpu_tables(rank, 7, 20 * rank).items():
            parts.setdefault(name, []).append(table)
    captures = [Capture(f"p01-nsys@n{rank}", "p01", "nsys", "ok", rank=rank, host=f"n{rank}") for rank in range(2)]
    parts["steps"] = [replace(t, columns={**t.columns, "capture": [captures[0].id] * 20}) for t in parts["steps"]]
    made = ranks.located(parts, captures, [record([])])
    found = rows(ranks.together({**parts, **made}, captures, [record([])]))
    assert [row["behind_ns"] for row in found] == [-10 * MS, 10 * MS]
    assert [(row["comm_pct"], row["exposed_comm_pct"]) for row in found] == [(80, 60), (80, 40)]
    assert [(row["gpu"], row["host"], row["gpu_busy_pct"]) for row in found] == [
        ("H200", "n0", 100),
        ("H200", "n1", 100),
    ]


def test_ranks_in_one_recording_are_told_apart_by_their_process() -> None:
    """nsys above torchrun: one file, whose rows bear the rank of their process."""
    both = [gpu_tables(rank, 100 + rank, 20 * rank) for rank in (1, 0)]
    parts: dict[str, list[Table]] = {"steps": [steps(rank, 20) for rank in range(2)]}
    for name in both[0]:
        columns = {
            key: [value for one in both for value in one[name].columns[key]]
            for key in both[0][name].columns
            if key not in ("capture", "rank", "pid")
        }
        pids = [pid for one in both for pid in one[name].columns["pid"]]
        coded = Coded(np.array([100, 101]).searchsorted(pids), [100, 101])
        whole = Table(name, {"pid": coded, **columns}, "epoch", 1000).with_ranks({100: 0, 101: 1})
        parts[name] = [whole.with_capture(CAPTURE)]
    found = rows(
        ranks.together(
            {**parts, **ranks.located(parts, [Capture(CAPTURE, "p01", "nsys", "ok")], [record([])])},
            [Capture(CAPTURE, "p01", "nsys", "ok")],
            [record([])],
        )
    )
    assert [(row["rank"], row["behind_ns"], row["exposed_comm_pct"]) for row in found] == [
        (0, -10 * MS, 60),
        (1, 10 * MS, 40),
    ]


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=12)


@given(SPANS, SPANS)
def test_times_without_others_are_those_that_no_other_covers(
    some: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    def units(spans: list[tuple[int, int]]) -> set[int]:
        return {unit for start, length in spans for unit in range(start, start + length)}

    def times(spans: list[tuple[int, int]]) -> Times:
        start = np.array([start for start, _ in spans], np.int64)
        return Times.union(start, start + np.array([length for _, length in spans], np.int64))

    left = ranks._without(times(some), times(others))
    assert {unit for start, end in left.pieces() for unit in range(start, end)} == units(some) - units(others)
    begin = np.arange(0, 70, 7)
    assert ranks._overlap(begin, begin + 7, times(some)).tolist() == [
        len(units(some) & set(range(at, at + 7))) for at in begin.tolist()
    ]


def test_an_imported_job_is_one_pass() -> None:
    captures = [Capture(f"trace{rank}", "import", "torch", "ok", rank=rank) for rank in range(2)]
    figures = [Table("ranks", {"capture": [one.id], "rank": [one.rank], "comm_pct": [5.0]}) for one in captures]
    found = rows(ranks.together({"ranks": figures}, captures, list[PassRecord]()))
    assert [(row["rank"], row["comm_pct"], row["judged_by"]) for row in found] == [(0, 5.0, None), (1, 5.0, None)]


def test_a_window_amid_the_warm_up_is_compared_all_the_same() -> None:
    """The steady steps begin after it: then its own steps are compared with one another."""
    made = tables(2, lambda rank, step: (30 + 20 * rank) * MS, many=6)
    some = [replace(t, columns={**t.columns, "warmup": [True] * 6}) for t in made["steps"]]
    waits = [
        Table(
            "rank_steps",
            {name: t.columns[name][:4] for name in ("capture", "rank", "step", "collective_ns", "told_by")},
        )
        for t in (table.only("rank", {rank}) for table in made["rank_steps"] for rank in range(2))
    ]
    captures = [Capture(CAPTURE, "p01", "torch", "ok")]
    found = rows(ranks.together({"steps": some, "rank_steps": waits}, captures, [record([])]))
    assert [(row["common_steps"], row["slowest_steps"], row["behind_ns"]) for row in found] == [
        (3, 0, -10 * MS), (3, 3, 10 * MS),
    ]  # fmt: skip
