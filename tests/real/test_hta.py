"""Traces of torch.profiler in HolisticTraceAnalysis, which wants a rank in each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import hta
import pytest
import torch_program

RANK = '"rank": 0'


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a trace of rank 0."""
    folder = tmp_path_factory.mktemp("torch")
    torch_program.record(folder, "window", distributedInfo={"backend": "none", "rank": 0, "world_size": 2})
    text = (folder / "window.trace.json").read_text()
    assert text.count(RANK) == 1
    return text


def spans(trace: str) -> Counter[str]:
    """The events with a duration, without the span of the recording itself, which HTA leaves out."""
    events = json.loads(trace)["traceEvents"]
    return Counter(event["name"] for event in events if event["ph"] == "X" and event["cat"] != "Trace")


def test_a_trace_for_each_rank_is_loaded_whole(trace: str, tmp_path: Path) -> None:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.trace.json").write_text(trace.replace(RANK, f'"rank": {rank}'))
    loaded = hta.load(tmp_path)
    assert loaded.ranks == {0: spans(trace), 1: spans(trace)}
    assert "does not have the rank" not in loaded.said


def test_traces_without_a_rank_are_taken_for_one_another(trace: str, tmp_path: Path) -> None:
    """D39: this is why profrun writes the rank into its traces, also where there is but one process."""
    for name in ("one", "other"):
        (tmp_path / f"{name}.trace.json").write_text(trace.replace(RANK, '"node": 0'))
    loaded = hta.load(tmp_path)
    assert loaded.ranks == {0: spans(trace)}
    assert loaded.said.count("does not have the rank") == 2
