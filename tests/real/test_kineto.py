"""What the reader of torch.profiler's traces computes, against what torch computes of the same recordings."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch_program

from orchestrator.formats import kineto

FIGURES = (
    "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns",
    "cpu_memory_bytes", "cpu_self_memory_bytes", "gpu_memory_bytes", "gpu_self_memory_bytes",
)  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    """The recordings of all programs, and when they began and ended (ns since the epoch)."""
    folder = tmp_path_factory.mktemp("torch")
    began = time.time_ns()
    torch_program.record(folder, *torch_program.PROGRAMS)
    return folder, began, time.time_ns()


def comparable(rows: Any, absent_is_zero: bool) -> list[tuple[Any, ...]]:
    """Rows in one order. key_averages() has 0 for what was not recorded."""
    zero = 0 if absent_is_zero else None
    keys = ("name", "device", "input_shapes", "count")
    shown = [(*(row[k] for k in keys), *(zero if row[k] is None else row[k] for k in FIGURES)) for row in rows]
    return sorted(shown, key=repr)


@pytest.mark.parametrize("program", list(torch_program.PROGRAMS))
def test_the_operators_of_a_trace_are_those_of_key_averages(recorded: tuple[Path, int, int], program: str) -> None:
    """Every row, every count, every nanosecond, every byte."""
    folder = recorded[0]
    content = kineto.read(folder / f"{program}.trace.json")
    (ours,) = [t for t in content.tables if t.name == "torch_ops"]
    theirs = kineto.averages(folder / f"{program}.averages.json")
    assert comparable(ours.rows(), absent_is_zero=True) == comparable(theirs.rows(), absent_is_zero=False)
    assert len(ours) > 10
    assert content.notes == ("no GPU events", "the trace names no rank: taken for rank 0")


def test_memory_and_gpu_are_unknown_where_they_were_not_recorded(recorded: tuple[Path, int, int]) -> None:
    (ops,) = [t for t in kineto.read(recorded[0] / "plain.trace.json").tables if t.name == "torch_ops"]
    assert {value for name in FIGURES[2:] for value in ops.columns[name]} == {None}
    (ops,) = [t for t in kineto.read(recorded[0] / "memory.trace.json").tables if t.name == "torch_ops"]
    assert None not in ops.columns["cpu_memory_bytes"]


def test_ranges_are_on_the_clock_of_the_machine(recorded: tuple[Path, int, int]) -> None:
    folder, began, ended = recorded
    (ranges,) = [t for t in kineto.read(folder / "window.trace.json").tables if t.name == "ranges"]
    rows = list(ranges.rows())
    assert ranges.clock == "epoch"
    assert all(began < row["start_ns"] <= row["start_ns"] + row["duration_ns"] < ended for row in rows)
    assert [row["name"] for row in rows if row["name"].startswith("ProfilerStep#")] == [
        "ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4",
    ]  # fmt: skip
    assert sum(row["name"] == "forward" for row in rows) == 3


def test_memory_adds_up_to_what_the_allocator_says(recorded: tuple[Path, int, int]) -> None:
    (memory,) = [t for t in kineto.read(recorded[0] / "memory.trace.json").tables if t.name == "memory"]
    rows = list(memory.rows())
    assert len(rows) > 50
    for before, after in pairwise(rows):
        assert after["allocated_bytes"] == before["allocated_bytes"] + after["bytes"]
    assert {row["device"] for row in rows} == {"cpu"}
    assert {"aten::empty", "aten::addmm"} & {row["op"] for row in rows}
