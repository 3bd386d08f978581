"""render/flames.py: the bytes of the page's flame graphs, read back as the page's script reads them."""

from __future__ import annotations

import base64
import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import sample_report
from flame_data import unpacked
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import redact
from orchestrator.render import flamegraph, flames, gpustacks
from orchestrator.report import Report
from orchestrator.tables import Table

names = st.sampled_from(["f (a.py:1)", "g (a.py:2)", "h (/x/site-packages/b.py:3)", "k (c.so)"])
stacks = st.lists(
    st.tuples(st.lists(names, min_size=1, max_size=6).map(";".join), st.integers(0, 1 << 40)), min_size=1, max_size=40
)


def paths(head: dict[str, Any], column: str = "own") -> Counter[str]:
    stack: list[str] = []
    found: Counter[str] = Counter()
    for depth, frame, weight in zip(head["depth"], head["frame"], head[column], strict=True):
        stack[depth:] = [head["frames"][frame]]
        assert len(stack) == depth + 1
        found[";".join(stack)] += weight * head["factor"]
    return found


def packed(rows: list[tuple[str, int]], most: int = 1000) -> dict[str, Any]:
    graph = flames._Graph("x", "ns", flamegraph.Stacks.of({"": rows}).tree())
    return unpacked(flames._packed(graph, most))


def whole(rows: list[tuple[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for stack, weight in rows:
        found[stack] += weight
    return +found


@given(stacks.filter(lambda rows: any(weight for _, weight in rows)))
def test_nothing_is_lost(rows: list[tuple[str, int]]) -> None:
    head = packed(rows)
    assert +paths(head) == whole(rows)
    assert (head["left_out"], head["lost_outermost"], sum(head["lost"])) == (0, 0, 0)


@given(stacks.filter(lambda rows: any(weight for _, weight in rows)), st.integers(1, 8))
def test_of_too_many_the_lightest_are_left_out_and_their_weight_is_kept(rows: list[tuple[str, int]], most: int) -> None:
    every, some = packed(rows), packed(rows, most)
    assert some["entries"] == min(most, every["entries"]) and some["entries"] + some["left_out"] == every["entries"]
    kept = sum(some["own"]) + sum(some["lost"]) + some["lost_outermost"]
    assert kept * some["factor"] == sum(whole(rows).values())
    assert not +paths(some) - whole(rows)


def test_weights_share_a_factor_and_take_few_bytes() -> None:
    head = packed([("f;g", 30_000_000_000), ("f", 20_000_000_000)])
    assert (head["factor"], head["own"], dict(head["columns"])) == (
        10_000_000_000, [2, 3], {"depth": 1, "frame": 1, "own": 1, "lost": 0},
    )  # fmt: skip


def test_what_looks_like_a_key_by_chance_is_packed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    first = flames._text(b"x" * 100)
    monkeypatch.setattr(redact, "value", lambda text: "" if text == first else text)
    other = flames._text(b"x" * 100)
    assert other != first and gzip.decompress(base64.b64decode(other)) == b"x" * 100


# ---------------------------------------------------------------- the graphs of a report


def report_of(folder: Path, *tables: Table) -> Report:
    report = sample_report.bare(folder)
    return replace(report, tables={table.name: sample_report.write(folder, table) for table in tables})


def row(table: str, **values: Any) -> Table:
    return Table.of(table, [tuple(values.values())], tuple(values))


def test_stacks_without_time_are_counted_and_without_weight_not_drawn(tmp_path: Path) -> None:
    columns = ("capture", "pid", "process", "thread", "kind", "stack", "samples", "weight_ns")
    rows = [("a", None, None, None, "wall", "f;g", 3, None), ("b", 1, "p", "t", "gil", "f", 0, 0)]
    (flame,) = flames.flames(report_of(tmp_path, Table.of("stacks", rows, columns)))
    head = unpacked(flame.data)
    assert flame.label == "a: all time, waiting included"
    assert (head["unit"], head["factor"], paths(head)) == (
        "samples",
        3,
        Counter({"process;all threads;f;g": 3}) | paths(head),
    )
    assert paths(head)["process;all threads;f;g"] == 3


MODULE = "torch/nn/modules/module.py(1784): _call_impl"


def gpu(folder: Path, *more: Table) -> Report:
    """Two kernels and a copy: one launched from two operators deep, the copy from no operator, one from nowhere."""
    work = ("capture", "pid", "start_ns", "duration_ns", "correlation")
    kernels = [("c", 7, 200, 40, 1, "gemm<a;b>"), ("c", 7, 250, 10, 99, "ghost")]
    copies = [("c", 7, 300, 5, 2, "CUDA memcpy HtoD")]
    calls = [("c", 7, 70, 110, 5, "cudaLaunchKernel", 1), ("c", 7, 70, 160, 5, "cudaMemcpyAsync", 2)]
    return report_of(
        folder,
        Table.of("gpu_kernels", kernels, (*work, "name")),
        Table.of("gpu_transfers", copies, (*work, "kind")),
        Table.of("cuda_calls", calls, ("capture", "pid", "thread", "start_ns", "duration_ns", "name", "correlation")),
        *more,
    )


SPANS = ("capture", "pid", "thread", "start_ns", "duration_ns", "name", "kind")


def test_the_gpus_time_lies_below_what_launched_it(tmp_path: Path) -> None:
    spans = [
        ("c", 7, 70, 105, 20, "aten::mm", "op"), ("c", 7, 70, 100, 50, "aten::linear", "op"),
        ("c", 7, 70, 90, 100, MODULE, "python"), ("c", 7, 71, 90, 100, "another thread's", "op"),
    ]  # fmt: skip
    ((capture, stacks, on_gpu),) = gpustacks.stacks(gpu(tmp_path, Table.of("op_spans", spans, SPANS)))
    module = "_call_impl (torch/nn/modules/module.py:1784)"
    assert (capture, flamegraph.folded(stacks).splitlines()) == ("c", [
        "process [7];(its launch was not recorded);ghost 10",
        f"process [7];thread 70;{module};aten::linear;aten::mm;cudaLaunchKernel;gemm<a,b> 40",
        f"process [7];thread 70;{module};cudaMemcpyAsync;CUDA memcpy HtoD 5",
    ])  # fmt: skip
    assert on_gpu == {"gemm<a,b>", "ghost", "CUDA memcpy HtoD"}


def test_its_frames_are_told_apart(tmp_path: Path) -> None:
    (flame,) = flames.flames(
        gpu(tmp_path, row("op_spans", **dict(zip(SPANS, ("c", 7, 70, 100, 50, MODULE, "python"), strict=True))))
    )
    head = unpacked(flame.data)
    origins = {name: flames.ORIGINS[int(digit)] for name, digit in zip(head["frames"], head["origins"], strict=True)}
    assert (origins["gemm<a,b>"], origins["cudaLaunchKernel"]) == ("kernel", "operator")
    assert origins["_call_impl (torch/nn/modules/module.py:1784)"] == "own"


def test_stacks_of_a_sampler_in_the_same_pass_stand_below_ranges(tmp_path: Path) -> None:
    ranges = row("ranges", capture="c", pid=7, thread=70, domain=None, name="step 3", start_ns=100, duration_ns=100)
    sampled = row(
        "stack_spans",
        capture="s",
        pid=7,
        tid=70,
        thread="t",
        start_ns=105,
        duration_ns=30,
        stack="f (a.py:1);g (a.py:2)",
    )
    report = gpu(tmp_path, ranges, sampled)
    one = sample_report.CAPTURES[0]
    captures = (replace(one, id="c", pass_id="p1"), replace(one, id="s", pass_id="p1"))
    ((_, stacks, _),) = gpustacks.stacks(replace(report, captures=captures))
    assert "process [7];thread 70;f (a.py:1);g (a.py:2);step 3;cudaLaunchKernel;gemm<a,b> 40" in flamegraph.folded(
        stacks
    )
    elsewhere = (captures[0], replace(captures[1], pass_id="p2"))
    ((_, stacks, _),) = gpustacks.stacks(replace(report, captures=elsewhere))
    assert "process [7];thread 70;step 3;cudaLaunchKernel;gemm<a,b> 40" in flamegraph.folded(stacks)


def test_of_too_much_no_stacks_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpustacks, "MOST_ROWS", 4)
    assert list(gpustacks.stacks(gpu(tmp_path))) == []


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30)), max_size=12), st.lists(st.integers(0, 90), max_size=8)
)
def test_what_is_open_at_a_time(spans: list[tuple[int, int]], times: list[int]) -> None:
    named = [gpustacks.Span(start, start + length, f"{n}") for n, (start, length) in enumerate(spans)]
    ordered = sorted(named, key=lambda one: (one.start, -one.end))
    found = list(gpustacks.within(ordered, sorted(times)))
    assert found == [";".join(s.name for s in ordered if s.start <= time < s.end) for time in sorted(times)]


def test_the_flame_graphs_of_the_sample_hold_all_time(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    frame = report.table("stacks")
    assert isinstance(frame, pandas.DataFrame)
    first, second = flames.flames(report)
    assert (first.label, second.label) == (
        "p09-py-spy: all time, waiting included", "p09-py-spy: time holding Python's lock (GIL)",
    )  # fmt: skip
    wall = frame[frame["kind"] == "wall"]
    assert sum(paths(unpacked(first.data)).values()) == wall["weight_ns"].sum()
