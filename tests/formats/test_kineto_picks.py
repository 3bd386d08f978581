"""Kernels for ncu from a trace of torch.profiler."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.collectors.ncu import Ncu
from orchestrator.errors import ParseError
from orchestrator.formats import kineto_picks
from orchestrator.formats.kernel_names import function
from orchestrator.model import Artifact, Capture, Picks
from orchestrator.picks import Past, chosen


def kernel(name: str, ts: float, dur: float, number: int, grid: Iterable[int] = (64, 1, 1)) -> dict[str, Any]:
    args = {"grid": list(grid), "block": [256, 1, 1], "device": 0, "stream": 7, "correlation": number}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": args}


def trace(path: Path) -> Path:
    """Ten rounds of three kernels; one template has two shapes, one kernel waits for other GPUs."""
    events = []
    for n in range(10):
        for i, (name, dur, grid) in enumerate(
            (
                ("void at::native::wide<float>(int)", 30.0, (64, 1, 1)),
                ("void at::native::wide<float>(int)", 5.0, (8, 1, 1)),
                ("sgemm_128x64_nn", 20.0, (4, 4, 1)),
                ("ncclDevKernel_AllReduce(ncclDevKernelArgsStorage<4096ul>)", 90.0, (16, 1, 1)),
            )
        ):
            events.append(kernel(name, 1000.0 * n + 200 * i, dur, 4 * n + i + 1, grid))
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_the_costliest_kernels_by_function_and_shape(tmp_path: Path) -> None:
    picks = kineto_picks.choose(trace(tmp_path / "a.json"), 2, "total_time")
    assert picks.base == "function"
    wide, gemm = picks.kernels
    assert (wide.match, wide.grid, wide.block, wide.count) == ("wide", "64,1,1", "256,1,1", 10)
    assert wide.numbers == (15,), "the eighth of its shape, among all twenty of its name"
    assert (gemm.match, gemm.grid) == ("sgemm_128x64_nn", "4,4,1")
    assert any("ncclDevKernel_AllReduce" in note for note in picks.notes)


def test_a_template_of_several_kernels_is_told(tmp_path: Path) -> None:
    names = ("void wide<float>(int)", "void wide<half>(int)", "narrow(int)")
    events = [kernel(name, 100.0 * n + i, 0.5, 3 * n + i) for n in range(8) for i, name in enumerate(names)]
    (tmp_path / "a.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    picks = kineto_picks.choose(tmp_path / "a.json", 2, "total_time")
    assert [pick.match for pick in picks.kernels] == ["wide", "narrow"]
    assert [note.partition(" (")[0] for note in picks.notes] == ["wide stands for 2 kernels of that function"]


def test_a_trace_without_kernels_chooses_none(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 2}]}))
    assert kineto_picks.choose(path, 2, "count").kernels == ()
    path.write_text("no trace")
    with pytest.raises(ParseError):
        kineto_picks.choose(path, 2, "count")


def test_counts_of_a_real_trace(shared: Path) -> None:
    path = shared / "data" / "torch" / "tl_h100_timesformer.json.gz"
    picks = kineto_picks.choose(path, 20, "count")
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("cat") == "kernel"]
    first, last = min(e["ts"] for e in events), max(e["ts"] for e in events)
    named = Counter(function(e["name"]) for e in events if e["ts"] >= first + (last - first) / 2)
    assert [(pick.function, pick.count) for pick in picks.kernels] == sorted(
        named.most_common(20), key=lambda item: (-item[1], item[0])
    )[: len(picks.kernels)]
    assert picks.kernels[0].function == "elementwise_kernel"


def capture(folder: Path, collector: str, status: Any, role: str = "", path: str = "") -> Capture:
    artifacts = (Artifact(role, path, "", 1, "", 0),) if path else ()
    return Capture(f"p02-{collector}", "p02", collector, status, "it hung", artifacts=artifacts, root=folder)


def test_where_nsys_has_nothing_torch_is_asked(tmp_path: Path) -> None:
    trace(tmp_path / "a.json")
    ncu = Ncu.model_validate({"use": "ncu", "kernels": {"from": "nsys", "top": 1}})
    lost, seen = capture(tmp_path, "nsys", "tool_failed"), capture(tmp_path, "torch", "ok", "trace", "a.json")
    picks = chosen(ncu, Past([lost, seen], (), tmp_path))
    assert isinstance(picks, Picks) and picks.source == "p02-torch"
    assert [pick.function for pick in picks.kernels] == ["wide"]
    assert picks.late, "torch.profiler begins later than the program"
    assert any("nsys is tool_failed: it hung" in note for note in picks.notes)
    refused = chosen(ncu, Past([lost], (), tmp_path))
    assert refused == ("skipped", "its kernels come from nsys, and p02-nsys is tool_failed: it hung")
    told = chosen(Ncu.model_validate({"use": "ncu", "kernels": {"from": "torch"}}), Past([seen], (), tmp_path))
    assert isinstance(told, Picks) and len(told.kernels) == 2
