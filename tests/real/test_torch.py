"""torch-deep on the demo: exact steps, tables equal to torch's own, and a trace that other programs can open."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import hta
import pandas as pd
import perfetto_ui
import pytest
from cli import Result, environment, profrun

from orchestrator.formats import kineto

DEMO = Path(__file__).parents[2] / "scripts" / "demo" / "train_cnn.py"
ASKED = [f"ProfilerStep#{number}" for number in range(10, 20)]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The template as it is, on fewer steps, without what would need another tool."""
    folder, env = tmp_path_factory.mktemp("torch-deep"), environment(OMP_NUM_THREADS="1")
    less = ("--skip", "py-spy", "--set", "collectors.timing.repeats=1", "--set", "collectors.timing.warmup=0")
    result = profrun("torch-deep", *less, "--", sys.executable, DEMO, "--steps", "30", cwd=folder, env=env)
    assert result.code == 0, result.stderr
    return result


def table(result: Result, name: str) -> pd.DataFrame:
    return pd.read_parquet(result.folder / "tables" / f"{name}.parquet")


def file(result: Result, end: str) -> Path:
    (found,) = (result.folder / "raw" / result.captures()["torch"]["id"]).rglob(f"*{end}")
    return found


def test_the_window_holds_the_ten_steps_that_the_template_asks_for(deep: Result) -> None:
    ranges = table(deep, "ranges")
    assert sorted(name for name in ranges.name if name.startswith("ProfilerStep")) == ASKED
    steps = table(deep, "steps")
    own = steps[steps.capture == deep.captures()["torch"]["id"]]
    assert list(own.step) == list(range(30))
    assert list(own[own.profiled].step) == list(range(9, 20))  # and the one in which torch.profiler warms up


def test_operators_equal_key_averages_and_what_the_trace_itself_says(deep: Result) -> None:
    own = table(deep, "torch_ops")
    rows = json.loads(file(deep, ".averages.json").read_text())["rows"]
    assert len(own) == len(rows) > 20
    own["input_shapes"] = own.input_shapes.fillna("")
    by_key = {(row["key"], row["input_shapes"] or ""): row for row in rows}
    for op in own.to_dict("records"):
        row = by_key[op["name"], op["input_shapes"]]
        assert op["count"] == row["count"]
        assert op["cpu_total_ns"] == round(row["cpu_time_total"] * 1000)
        assert op["cpu_self_ns"] == round(row["self_cpu_time_total"] * 1000)
        assert op["cpu_self_memory_bytes"] == row["self_cpu_memory_usage"]
    assert own.gpu_self_ns.isna().all()  # no GPU here: unknown, not nothing
    # the same figures, worked out from the trace's events alone
    (derived,) = (t for t in kineto.read(file(deep, ".trace.json")).tables if t.name == "torch_ops")
    again = _by_name(pd.DataFrame({name: list(column) for name, column in derived.columns.items()}))
    for name, (count, self_ns) in _by_name(own).items():
        if name != "[memory]":
            assert again[name] == (count, pytest.approx(self_ns, abs=2 * count)), name


def _by_name(frame: pd.DataFrame) -> dict[str, tuple[int, int]]:
    summed = frame.groupby("name")[["count", "cpu_self_ns"]].sum()
    return {str(name): (int(row["count"]), int(row["cpu_self_ns"])) for name, row in summed.iterrows()}


def test_memory_adds_up(deep: Result) -> None:
    memory = table(deep, "memory").sort_values("time_ns", kind="stable")
    assert len(memory) > 100
    grown = memory["bytes"].iloc[1:].sum()
    assert memory.allocated_bytes.iloc[-1] - memory.allocated_bytes.iloc[0] == grown
    assert memory.op.notna().mean() > 0.5


def test_no_profiled_step_enters_an_average(deep: Result) -> None:
    steps = table(deep, "steps")
    bare = steps[steps.capture == deep.captures()["timing"]["id"]]
    assert not bare.profiled.any()
    steady = bare[~bare.warmup.astype(bool)]
    step_s: dict[str, Any] = deep.summary["metrics"]["step_s"]
    assert step_s["value"] == pytest.approx(steady.duration_ns.mean() / 1e9)
    assert deep.summary["metrics"]["steps"]["value"] == 30


def test_what_a_step_went_to_adds_up(deep: Result) -> None:
    steps = table(deep, "steps").query("step > 0")
    spent = steps[["forward_ns", "backward_ns", "optimizer_ns", "zero_grad_ns"]].sum(axis=1)
    assert (spent <= steps.duration_ns).all()
    assert spent.sum() > 0.5 * steps.duration_ns.sum()  # the rest makes the random batch
    assert steps.data_wait_ns.isna().all()  # the demo has no DataLoader: unknown, not nothing


def test_the_report_says_how_large_the_trace_is_and_that_it_is_whole(deep: Result) -> None:
    notes = " ".join(deep.captures()["torch"]["notes"])
    assert "not truncated" in notes
    assert "MB" in notes


@pytest.mark.tool("chromium")
def test_the_trace_opens_in_perfetto(deep: Result) -> None:
    with perfetto_ui.opened(file(deep, ".trace.json")) as ui:
        slices = ui.slices()
        assert ui.complaints() == []
    assert [name for name in sorted(slices) if name.startswith("ProfilerStep")] == ASKED
    own = table(deep, "torch_ops")
    assert slices["aten::conv2d"] == own[own.name == "aten::conv2d"]["count"].sum()


def test_the_folder_of_traces_opens_in_holistic_trace_analysis(deep: Result) -> None:
    ranks = hta.load(file(deep, ".trace.json").parent).ranks
    assert list(ranks) == [0]
    own = table(deep, "torch_ops")
    assert ranks[0]["aten::conv2d"] == own[own.name == "aten::conv2d"]["count"].sum()
