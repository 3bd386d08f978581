"""What PyTorch and the monitor saw: operators, memory, samples, each with units, denominators and axes from 0."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
import sample_report

from orchestrator.render import html, markdown, memory, operators, plots, samples
from orchestrator.report import Report
from orchestrator.tables import Table

SERIAL = itertools.count(1)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return sample_report.build(tmp_path_factory.mktemp("report"))


def only(report: Report, table: Table) -> Report:
    """The report with this table in place of the one of that name."""
    name = f"other-{next(SERIAL)}"
    info = sample_report.write(report.folder / name, table)
    return replace(report, tables={**report.tables, table.name: replace(info, path=f"{name}/{info.path}")})


# ---------------------------------------------------------------- operators


def test_operators_add_up_shapes_and_count_no_kernel_twice(report: Report) -> None:
    ((name, frame),) = operators.operators(report)
    assert name == "p09-py-spy"
    assert frame["name"].tolist()[:2] == ["aten::convolution_backward", "aten::addmm"]
    assert frame["gpu_self_ns"].tolist()[:2] == [60_000_000, 31_000_000]
    assert frame["count"].tolist()[0] == 40
    assert "wgrad_alg0_engine" not in set(frame["name"])


def test_operators_name_the_whole_of_each_share(report: Report) -> None:
    (grid,) = operators.grids(report)
    columns = {c["key"]: c for c in json.loads(grid.data)["columns"]}
    assert columns["gpu_self_ns_share"]["unit"] == "of 91 ms of self GPU time"
    assert columns["cpu_self_ns_share"]["unit"] == "of 67.5 ms of self CPU time"
    for key in ("gpu_self_ns_share", "cpu_self_ns_share"):
        assert sum(columns[key]["values"]) == pytest.approx(1.0, abs=1e-6)
    assert "cpu_self_memory_bytes" not in columns  # nowhere anything but 0 or unknown
    assert columns["gpu_self_memory_bytes"]["values"][-1] is None


def test_operators_of_ranks_stand_apart(report: Report) -> None:
    columns = ("capture", "rank", "pid", "name", "device", "count", "cpu_self_ns", "cpu_total_ns")
    rows = [("p09-py-spy", rank, 7, "aten::mm", "cpu", 1, 5_000, 5_000) for rank in range(6)]
    ranked = only(report, Table.of("torch_ops", rows, columns))
    assert [grid.title for grid in operators.grids(ranked)] == [f"p09-py-spy, rank {rank}" for rank in range(4)]


# ---------------------------------------------------------------- memory


def test_memory_tells_the_peak_and_whose_blocks_it_was(report: Report) -> None:
    (held,) = memory.held(report)
    assert held.name == "cuda:0, p09-py-spy"
    assert held.told.startswith("At most 60.8 MB were allocated at once, of 67.1 MB that the allocator had reserved")
    assert "41 MB of them were there before the recording" in held.told
    columns = {c["key"]: c["values"] for c in json.loads(held.grid.data)["columns"]}
    assert columns["op"] == ["aten::convolution", "aten::addmm", "outside of operators"]
    assert columns["peak_bytes"] == [14_745_600, 4_096_000, 1_000_000]
    assert columns["allocated_bytes"] == [147_456_000, 40_960_000, 10_000_000]
    assert columns["peak_share"][0] == pytest.approx(14_745_600 / 60_841_600)


def test_memory_that_was_freed_before_the_peak_is_not_in_it(report: Report) -> None:
    columns = ("capture", "rank", "pid", "time_ns", "device", "address", "bytes", "allocated_bytes", "op")
    events = [(1, 100, 100, "a"), (1, -100, 0, None), (1, 300, 300, "b"), (2, 400, 700, "c"), (2, -400, 300, None)]
    rows = [("p09-py-spy", 0, 7, i, "cpu", at, size, held, op) for i, (at, size, held, op) in enumerate(events)]
    (held,) = memory.held(only(report, Table.of("memory", rows, columns)))
    found = {c["key"]: c["values"] for c in json.loads(held.grid.data)["columns"]}
    assert dict(zip(found["op"], found["peak_bytes"], strict=True)) == {"c": 400, "b": 300, "a": 0}


def test_a_peak_between_many_events_is_not_thinned_away(report: Report) -> None:
    columns = ("capture", "rank", "pid", "time_ns", "device", "address", "bytes", "allocated_bytes", "op")
    rows = [("p", 0, 7, i, "cpu", i, 10, 9_000_000 if i == 7_777 else 1_000, "op") for i in range(20_000)]
    (held,) = memory.held(only(report, Table.of("memory", rows, columns)))
    told = json.loads(held.plot.data)
    assert len(told["x"]) <= memory.POINTS
    assert max(told["series"][0]["values"]) == 9
    assert [(mark.kind, mark.label) for mark in held.plot.marks] == [("peak", "9 MB")]


# ---------------------------------------------------------------- samples


def test_samples_draw_what_was_read_for_each_gpu(report: Report) -> None:
    (found,) = samples.sampled(report)
    assert [(c.title, c.subject[:8]) for c in found.charts] == [
        ("CPU of the program", ""),
        ("CPU of the whole machine", ""),
        ("Resident memory of the program", ""),
        *((title, gpu) for title in ("GPU utilisation", "GPU memory in use", "GPU power", "GPU clock (SM)")
          for gpu in ("GPU-8b6f", "GPU-1a2b")),
    ]  # fmt: skip
    assert found.charts[0].meaning == "100 % is one processor"
    assert found.charts[3].told == "mean 75.2 %, highest 88 %, 300 readings"


def test_samples_show_which_part_of_the_run_they_cover(report: Report) -> None:
    (found,) = samples.sampled(report)
    plot = found.charts[0].plot
    (zone,) = plot.zones
    assert (zone.start, zone.end) == pytest.approx((2.99, 8.82))  # the run took so long, the samples end before
    assert json.loads(plot.data)["ends"] == pytest.approx([0.0, 8.82])
    assert found.outside


@pytest.mark.parametrize(("index", "high", "unit"), [(0, 208.0, "%"), (1, 104.0, "%"), (2, 422.2, "MB")])
def test_axes_of_samples_end_above_what_was_read_and_shares_at_all(
    report: Report, index: int, high: float, unit: str
) -> None:
    y = json.loads(samples.sampled(report)[0].charts[index].plot.data)["y"]
    assert (y["unit"], y["high"]) == (unit, pytest.approx(high, rel=0.01))


def test_thinned_samples_keep_their_highest_and_lowest(report: Report) -> None:
    rows = [
        ("p10-strace", sample_report.STARTED_NS + i, "tree", "", "cpu_pct", 900.0 if i == 777 else 10.0)
        for i in range(5_000)
    ]
    columns = ("capture", "time_ns", "source", "subject", "metric", "value")
    (found,) = samples.sampled(only(report, Table.of("samples", rows, columns, clock="epoch")))
    series = {s["name"]: s["values"] for s in json.loads(found.charts[0].plot.data)["series"]}
    assert max(series["highest"]) == 900 and min(series["lowest"]) == 10
    assert len(series["mean"]) <= samples.POINTS


# ---------------------------------------------------------------- all of them


def test_what_was_not_recorded_has_no_section(report: Report, tmp_path: Path) -> None:
    names = ("steps", "operators", "memory", "samples")
    page = html.render(report)
    assert [name for name in names if f'<section id="{name}"' not in page] == []
    bare = html.render(sample_report.bare(tmp_path))
    assert [name for name in names if f'<section id="{name}"' in bare or f'href="#{name}"' in bare] == []
    text = markdown.render(sample_report.bare(tmp_path))
    assert not any(f"## {name.capitalize()}" in text for name in names)


@pytest.mark.parametrize(
    ("high", "unit", "texts"),
    [
        (0.0413, "s", ["0 ms", "20 ms", "40 ms"]),
        (870_000, "bytes", ["0 kB", "250 kB", "500 kB", "750 kB"]),
        (104, "%", ["0 %", "50 %", "100 %"]),
        (0.0, "W", ["0.00 W", "0.25 W", "0.50 W", "0.75 W", "1.00 W"]),
    ],
)
def test_ticks_are_round(high: float, unit: str, texts: list[str]) -> None:
    assert [text for _, text in plots.ticks(plots.Scale(0.0, high or 1.0, 0.0, 100.0), unit)] == texts
