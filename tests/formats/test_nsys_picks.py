"""formats/nsys_picks.py: which kernels and launches it chooses, against plain SQL on real exports and by hand."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_export import Kernel, make

from orchestrator.errors import ParseError
from orchestrator.formats.nsys_picks import By, choose, exposed
from orchestrator.model import Pick

REAL = (
    "2021.2.1_rtx6000_db_query", "2021.x_rtx6000_db_query_older", "2022.1.3_rtx2070s_pytorch_cudnn_nvtx",
    "2023.3.1_t4_openmp_offload_many_copies", "2023.3.1_t4_openmp_offload_resident", "2024.6.2_a100_cudagraph_compile",
    "2024.6.2_a100_gpt2.7b", "2024.6.2_a100_gpt_small", "2025.5.2_rtx3060_wsl_vecadd", "2026.1.1_rtx3080_two_kernels",
    "2026.2.1_h100x2_fastvideo_slice",
)  # fmt: skip
"""Every shared export with a kernel."""


def ask(path: Path, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        return db.execute(sql, values).fetchall()


def launches(path: Path, pick: Pick, column: str) -> list[tuple[Any, ...]]:
    """Every launch of the pick's name: (process, start, grid and block), in the order of the calls."""
    return ask(
        path,
        "SELECT globalPid, start, gridX || ',' || gridY || ',' || gridZ, blockX || ',' || blockY || ',' || blockZ "
        f"FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = {column} WHERE value = ? "
        "ORDER BY globalPid, correlationId, start",
        pick.match,
    )


@pytest.mark.parametrize("name", REAL)
def test_the_chosen_launches_have_the_chosen_shape_in_the_steady_part(shared: Path, name: str) -> None:
    path = shared / "data" / "nsys" / f"{name}.sqlite"
    picks = choose(path, 5, "total_time", 2)
    ((first, last),) = ask(path, "SELECT min(start), max(start) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    middle = first + (last - first) // 2
    column = "mangledName" if picks.base == "mangled" else "shortName"
    assert (picks.base == "function") == name.startswith("2021")
    assert picks.kernels
    for pick in picks.kernels:
        every = launches(path, pick, column)
        by_process = [[row for row in every if row[0] == pid] for pid in dict.fromkeys(row[0] for row in every)]
        assert 1 <= len(pick.numbers) <= 2
        found = [[own[n - 1] for n in pick.numbers] for own in by_process if len(own) >= max(pick.numbers)]
        wanted = [(pick.grid, pick.block, True)] * len(pick.numbers)
        assert wanted in [[(grid, block, at >= middle) for _, at, grid, block in rows] for rows in found]


@pytest.mark.parametrize("name", REAL)
def test_the_kernels_are_those_that_plain_sql_ranks_first(shared: Path, name: str) -> None:
    path = shared / "data" / "nsys" / f"{name}.sqlite"
    column = "shortName" if name.startswith("2021") else "mangledName"
    for by, cost in (("total_time", "sum(end - start)"), ("count", "count(*)")):
        ranked = ask(
            path,
            f"SELECT {cost}, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE start >= (SELECT "
            "min(start) + (max(start) - min(start)) / 2 FROM CUPTI_ACTIVITY_KIND_KERNEL) "
            f"GROUP BY {column} ORDER BY 1 DESC",
        )
        picks = choose(path, 3, by).kernels  # type: ignore[arg-type]
        measure = [pick.count if by == "count" else pick.total_ns for pick in picks]
        assert measure == [row[0] for row in ranked[:3]]
        whole = sum(row[0] for row in ranked)
        assert [pick.share for pick in picks] == [round(row[0] / whole, 4) for row in ranked[:3]]


def test_on_one_stream_all_time_is_exposed(shared: Path) -> None:
    path = shared / "data" / "nsys" / "2024.6.2_a100_gpt2.7b.sqlite"
    assert choose(path, 5, "exposed_time").kernels == choose(path, 5, "total_time").kernels


def test_kernels_inside_graphs_are_told(shared: Path) -> None:
    path = shared / "data" / "nsys" / "2024.6.2_a100_cudagraph_compile.sqlite"
    assert choose(path, 5, "total_time").notes == (
        "10 launches of CUDA graphs (7811.1 ms) were traced as a whole: their kernels can't be chosen (`graphs: node` "
        "on nsys shows them)",
    )


@pytest.mark.parametrize("name", ["2022.4.2_titanrtx_nvtx_only", "2026.1.1_a100x4_julia"])
def test_without_kernels_nothing_is_chosen(shared: Path, name: str) -> None:
    assert choose(shared / "data" / "nsys" / f"{name}.sqlite", 5, "total_time").kernels == ()


def test_other_files_are_refused(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="no export of nsys"):
        choose(shared / "data" / "nsys" / "not_nsys_dlprof_dldb.sqlite", 5, "total_time")
    with pytest.raises(ParseError, match="is missing"):
        choose(tmp_path / "gone.sqlite", 5, "total_time")


# ---------------------------------------------------------------- by hand


def test_launches_are_counted_over_all_devices_of_one_process(tmp_path: Path) -> None:
    kernels = [
        Kernel("a", 0),
        Kernel("a", 100, device=1),
        Kernel("b", 150),
        *(Kernel("a", 200 + n, pid=200) for n in range(3)),
        Kernel("a", 900),
        Kernel("a", 910, grid="9,1,1", duration=1000),
        Kernel("a", 2000, grid="9,1,1"),
    ]
    (pick,) = choose(make(tmp_path / "x.sqlite", kernels), 1, "total_time", 2, (10**18 + 900, 10**18 + 2000)).kernels
    assert (pick.grid, pick.numbers) == ("9,1,1", (4, 5)), "a's third launch in process 100 has another shape"


def test_numbers_are_shared_where_that_fits(tmp_path: Path) -> None:
    """ncu measures every number of every name: with numbers of their own, two kernels make four measurements."""
    kernels = [k for n in range(40) for k in (Kernel("a", 100 * n, 50), Kernel("b", 100 * n + 50, 20))]
    kernels = [*kernels[:61], *(k for k in kernels[61:] if k.mangled == "a")]
    picks = choose(make(tmp_path / "x.sqlite", kernels), 2, "total_time", 1)
    assert [(pick.match, pick.numbers) for pick in picks.kernels] == [("a", (25,)), ("b", (25,))], "not 31 for a"


@pytest.mark.parametrize(("names", "each"), [("abcd", 3), ("abcde", 1)])
def test_where_few_numbers_are_shared_it_is_one_launch_of_each(tmp_path: Path, names: str, each: int) -> None:
    """Three launches each of five kernels make 15 numbers, and so 75 measurements; of four, 48 for 12."""
    before = [Kernel(name, 0, 1) for at, name in enumerate(names) for _ in range(10 * at)]
    steady = [Kernel(name, 1000 + n, 1) for n in range(3) for name in names]
    path = make(tmp_path / "x.sqlite", [*before, *steady])
    picks = choose(path, 5, "total_time", 3, (10**18 + 1000, 10**18 + 2000))
    assert [len(pick.numbers) for pick in picks.kernels] == [each] * len(names)
    assert all(10 * at < number <= 10 * at + 3 for at, p in enumerate(picks.kernels) for number in p.numbers)
    assert picks.launches == len(names) * each
    said = "1 launch of each kernel is looked at instead of 3: they have too few numbers in common"
    assert [note.startswith(said) for note in picks.notes] == [True] * (each == 1)


def test_exposed_time_ranks_what_nothing_hides(tmp_path: Path) -> None:
    path = make(
        tmp_path / "x.sqlite",
        [
            Kernel("hidden", 100, 90, stream=8), Kernel("wide", 100, 100), Kernel("alone", 200, 40),
            Kernel("c", 300, 1, device=1),
        ],
    )  # fmt: skip
    span = (10**18, 10**18 + 10**9)
    assert [k.match for k in choose(path, 2, "total_time", steady_ns=span).kernels] == ["wide", "hidden"]
    picks = choose(path, 4, "exposed_time", steady_ns=span).kernels
    assert [(k.match, k.share) for k in picks] == [("alone", 0.7843), ("wide", 0.1961), ("c", 0.0196), ("hidden", 0)]


def test_communication_is_left_out_and_named(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<(unsigned long)4096>)"
    path = make(
        tmp_path / "x.sqlite", [Kernel("_Z23ncclDevKernel_AllReduce", 10, 500, demangled=name), Kernel("a", 20)]
    )
    picks = choose(path, 5, "total_time", steady_ns=(10**18, 10**18 + 100))
    assert [pick.match for pick in picks.kernels] == ["a"]
    assert picks.kernels[0].share == 0.0196, "of all kernels, also those left out"
    assert picks.notes == (
        "left out, as they wait for other GPUs and would hang in kernel replay: ncclDevKernel_AllReduce (1 launches)",
    )
    every = choose(path, 5, "total_time", steady_ns=(10**18, 10**18 + 100), communication=True)
    assert [pick.function for pick in every.kernels] == ["ncclDevKernel_AllReduce", "a"]


def test_the_steady_part_is_that_of_the_steps_or_the_second_half(tmp_path: Path) -> None:
    path = make(tmp_path / "x.sqlite", [Kernel("early", 0, 900), Kernel("late", 1000, 5), Kernel("end", 2000, 1)])
    assert choose(path, 1, "total_time").kernels[0].match == "late"
    by_steps = choose(path, 1, "total_time", steady_ns=(10**18 - 5, 10**18 + 500))
    assert (by_steps.kernels[0].match, by_steps.steady) == ("early", "in the steady steps")
    elsewhere = choose(path, 1, "total_time", steady_ns=(1, 2))
    assert elsewhere.steady == "in the second half of the recording, as no steady steps are known"


def test_how_many_launches_of_the_chosen_come_until_each_was_seen(tmp_path: Path) -> None:
    kernels = [Kernel("a", 10 * n) for n in range(7)] + [Kernel("x", 100), Kernel("b", 110, 900), Kernel("a", 120)]
    path = make(tmp_path / "x.sqlite", kernels)
    assert choose(path, 2, "total_time", steady_ns=(10**18, 10**18 + 200)).launches == 8, "x is none of them"


Interval = st.tuples(st.integers(0, 60), st.integers(0, 20))


@given(st.lists(Interval, max_size=12))
def test_exposed_time_is_that_of_a_count_over_every_tick(intervals: list[tuple[int, int]]) -> None:
    ends = [(start, start + length) for start, length in intervals]
    ticks = sorted({t for end in ends for t in end})
    slow = [0] * len(ends)
    for begin, end in pairwise(ticks):
        open_ = [n for n, (a, b) in enumerate(ends) if a <= begin and end <= b]
        if len(open_) == 1:
            slow[open_[0]] += end - begin
    start, end_ = (np.array([e[side] for e in ends], np.int64) for side in (0, 1))
    assert exposed(start, end_).tolist() == slow


@pytest.mark.parametrize("by", ["total_time", "exposed_time", "count"])
@given(cut=st.integers(0, 20_000), noise=st.binary(max_size=64))
def test_damage_lets_only_a_parse_error_escape(tmp_path_factory: Any, by: By, cut: int, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    whole = make(folder / "whole.sqlite", [Kernel("a", n) for n in range(50)]).read_bytes()
    path = folder / "cut.sqlite"
    path.write_bytes(whole[:cut] + noise + whole[cut + len(noise) :])
    try:
        assert choose(path, 3, by).launches >= 0
    except ParseError as error:
        assert str(error).startswith("cut.sqlite is ")
