"""formats/kineto.py against real traces of torch.profiler since 2020, and against small ones made here."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import random
import re
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import kineto
from orchestrator.tables import Table


@pytest.fixture
def traces(shared: Path) -> Path:
    return shared / "data" / "torch"


def table(content: kineto.Content, name: str) -> list[dict[str, Any]]:
    return next((list(t.rows()) for t in content.tables if t.name == name), [])


def known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


# ---------------------------------------------------------------- every generation of the format

FACTS = re.compile(
    r"events=(\d+) kernels=(\d+) kernel_us=(\S+) top=(None|\('(.*)', (\S+)\)) cats=(\{.*?\}) "
    r"rank=(\S+)/(\S+) memory_instants=(\d+)"
)
KERNEL, MEMORY = ("kernel", "Kernel"), ("gpu_memcpy", "Memcpy", "gpu_memset", "Memset")
CALL, RANGE = ("cuda_runtime", "cuda_driver", "Runtime"), ("user_annotation",)


def known_facts(traces: Path) -> list[tuple[str, str, re.Match[str]]]:
    with (traces.parent / "INDEX.tsv").open() as index:
        rows = [row for row in csv.DictReader(index, delimiter="\t") if row["path"].startswith("torch/")]
    found = [(r["path"].removeprefix("torch/"), r["gpu_platform"], FACTS.search(r["verified_facts"])) for r in rows]
    return [(file, device, facts) for file, device, facts in found if facts]


def number(text: str) -> int | None:
    return None if text == "None" else int(text)


def test_counts_and_sums_of_all_versions(traces: Path) -> None:
    """What was counted with plain json when the files were collected (of the categories, the seven most frequent)."""
    files = known_facts(traces)
    assert len(files) >= 19
    for file, device, facts in files:
        content = kineto.read(traces / file)
        counted = ast.literal_eval(facts[7])
        kernels = table(content, "gpu_kernels")
        assert counted.items() <= content.counted.items(), file
        assert len(kernels) == int(facts[2]) == sum(content.counted.get(name, 0) for name in KERNEL), file
        assert sum(row["duration_ns"] for row in kernels) == round(float(facts[3]) * 1000), file
        assert len(table(content, "gpu_transfers")) == sum(content.counted.get(name, 0) for name in MEMORY), file
        assert len(table(content, "ranges")) == sum(content.counted.get(name, 0) for name in RANGE), file
        calls = sum(row["count"] for row in table(content, "cuda_api_summary"))
        assert calls == sum(content.counted.get(name, 0) for name in CALL), file
        assert (content.rank, content.world_size) == (number(facts[8]) or 0, number(facts[9])), file
        assert any("names no rank" in note for note in content.notes) == (facts[8] == "None"), file
        assert len(table(content, "memory")) == int(facts[10]), file
        assert device.startswith(content.gpus[0] if content.gpus else ""), file
        assert not content.truncated, file
        summed = table(content, "gpu_kernel_summary")
        assert sum(row["total_ns"] for row in summed) == sum(row["duration_ns"] for row in kernels), file
        for part in content.tables:
            assert tables.arrow(part.name, [part.with_capture("p1-torch")]).num_rows == len(part) > 0, (file, part.name)
        if facts[4] != "None":
            assert summed[0]["name"].startswith(facts[5]), file
            assert summed[0]["total_ns"] == round(float(facts[6]) * 1000), file


@pytest.mark.parametrize(
    "file",
    ["hta_a100_8rank_rank3_control", "hta_a100_event_sync_multi_stream", "tl_mi300x_torch_compile_triton",
     "kineto2021_v100_w0_memory_events.pt.trace", "tl_h100_bert_with_metadata"],
)  # fmt: skip
def test_the_gpu_time_of_operators_is_all_work_of_the_gpu(traces: Path, file: str) -> None:
    """In traces whose whole work was launched inside operators; the operator is named in three ways there."""
    content = kineto.read(traces / f"{file}.json.gz")
    work = [*table(content, "gpu_kernels"), *table(content, "gpu_transfers")]
    operators = [row for row in table(content, "torch_ops") if row["device"] == "cpu"]
    assert sum(row["gpu_self_ns"] for row in operators) == sum(row["duration_ns"] for row in work) > 0


def test_an_operator_has_the_gpu_time_of_those_that_it_calls(traces: Path) -> None:
    rows = table(kineto.read(traces / "hta_a100_event_sync_multi_stream.json.gz"), "torch_ops")
    times = {row["name"]: (row["gpu_total_ns"], row["gpu_self_ns"]) for row in rows if row["device"] == "cpu"}
    (kernels,) = [row["gpu_total_ns"] for row in rows if row["name"] == "ampere_sgemm_128x64_nn"]
    assert kernels == 369_000
    assert times["aten::mm"] == (372_000, 372_000), "with three memory sets of 1 us"
    assert times["aten::matmul"] == (372_000, 0)


def exact(path: Path) -> list[dict[str, Any]]:
    """The events as plain json has them, times as exact decimals."""
    text = path.read_bytes()
    document = json.loads(gzip.decompress(text) if text[:2] == b"\x1f\x8b" else text, parse_float=Decimal)
    return list(document["traceEvents"])


@pytest.mark.parametrize(
    ("file", "base_ns"),
    [("hta_a100_nccl_2rank_baseTime", 1711964646000000000), ("hta_a100_alexnet_cuda_sync", 0)],
)
def test_times_are_ns_since_the_epoch_to_the_last_digit(traces: Path, file: str, base_ns: int) -> None:
    """After baseTimeNanoseconds since 2024, whole microseconds since the epoch before."""
    path = traces / f"{file}.json.gz"
    found = [(base_ns + int(e["ts"] * 1000), int(e["dur"] * 1000)) for e in exact(path) if e.get("cat") in RANGE]
    ranges = next(t for t in kineto.read(path).tables if t.name == "ranges")
    assert sorted((row["start_ns"], row["duration_ns"]) for row in ranges.rows()) == sorted(found)
    assert (ranges.clock, ranges.clock_error_ns) == ("epoch", 36_000)


def test_a_trace_with_a_start_of_its_own_has_relative_times(traces: Path) -> None:
    kernels = next(t for t in kineto.read(traces / "hta_large_int_2events.json.gz").tables if t.name == "gpu_kernels")
    assert (kernels.clock, list(kernels.columns["start_ns"])) == ("relative", [100_000])


def test_a_kernel_is_told_in_full(traces: Path) -> None:
    (kernel,) = table(kineto.read(traces / "hta_triton_cuda_driver_launch.json.gz"), "gpu_kernels")
    assert known(kernel) == {
        "rank": 0, "pid": 1670242, "device": 0, "stream": 7, "start_ns": 1727743122000000000 + 2413669097444592,
        "duration_ns": 1760, "name": "triton_poi_fused_add_cos_sin_0", "short_name": "triton_poi_fused_add_cos_sin_0",
        "grid": "1,1,1", "block": "128,1,1", "registers": 16, "shared_bytes": 0, "correlation": 35,
    }  # fmt: skip


def intervals(events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Starts and ends (ns) of events, in their order."""
    return sorted((int(e["ts"] * 1000), int(e["ts"] * 1000) + int(e["dur"] * 1000)) for e in events)


def covered_ns(spans: list[tuple[int, int]]) -> int:
    total, until = 0, -(2**63)
    for start, end in spans:
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total


def test_gpu_tables_against_plain_loops(traces: Path) -> None:
    """Busy and idle time, gaps, transfers and launches of each GPU, recounted from plain json."""
    with_launches = 0
    for file, _, facts in known_facts(traces):
        if facts[2] == "0" or (traces / file).stat().st_size > 800_000:
            continue
        content, events = kineto.read(traces / file), exact(traces / file)
        work = [e for e in events if e.get("cat") in KERNEL + MEMORY and "dur" in e]
        launched = {e["args"]["correlation"] for e in events if e.get("cat") in CALL and "correlation" in e["args"]}
        device_of = {id(e): e.get("args", {}).get("device", e["pid"]) for e in work}
        rows = table(content, "gpu_utilization")
        assert [row["device"] for row in rows] == sorted(set(device_of.values())), file
        for row in rows:
            mine = [e for e in work if device_of[id(e)] == row["device"]]
            kernels = [e for e in mine if e["cat"] in KERNEL]
            spans = intervals(mine)
            busy, span = covered_ns(spans), max(end for _, end in spans) - spans[0][0]
            assert (row["span_ns"], row["busy_ns"], row["idle_ns"]) == (span, busy, span - busy), file
            assert row["kernel_ns"] == covered_ns(intervals(kernels)), file
            assert (row["kernels"], row["transfers"]) == (len(kernels), len(mine) - len(kernels)), file
            gaps = [g for g in table(content, "gpu_gaps") if g["device"] == row["device"]]
            assert row["gaps"] == len(gaps) or row["gaps"] > len(gaps) == 10_000, file
            assert sum(g["duration_ns"] for g in gaps) == row["idle_ns"] or row["gaps"] > len(gaps), file
            launches = [r for r in table(content, "gpu_launch_summary") if r["device"] == row["device"]]
            seen = sum(e.get("args", {}).get("correlation") in launched for e in kernels)
            assert sum(r["count"] for r in launches) == seen, file
            with_launches += seen > 0
    assert with_launches > 8


def test_a_gap_is_told_with_what_the_launching_thread_did(tmp_path: Path) -> None:
    """A copy waits for its launch while the thread sits in a synchronisation within a range; then two kernels of one
    graph, of which the second was there all along."""
    path = write(
        tmp_path / "x.json",
        event("step", 0, 100, "user_annotation"), event("wait", 5, 60, "user_annotation"),
        event("elsewhere", 5, 60, "user_annotation", thread=2),
        event("cudaLaunchKernel", 1, 2, "cuda_runtime", correlation=1),
        event("cudaDeviceSynchronize", 10, 50, "cuda_runtime", correlation=2),
        event("cudaMemcpyAsync", 62, 3, "cuda_runtime", correlation=3),
        event("cudaGraphLaunch", 66, 4, "cuda_runtime", correlation=4),
        event("k", 4, 6, "kernel", device=1, stream=7, correlation=1),
        event("Memcpy HtoD (Pageable -> Device)", 64, 4, "gpu_memcpy", device=1, stream=7, correlation=3, bytes=8),
        event("a", 70, 5, "kernel", device=1, stream=7, correlation=4),
        event("a", 80, 5, "kernel", device=1, stream=7, correlation=4),
        event("nobody's", 85, 5, "kernel", device=1, stream=7),
        deviceProperties=[{"id": 0, "name": "other"}, {"id": 1, "name": "NVIDIA H200"}],
    )  # fmt: skip
    content = kineto.read(path)
    first, _, last = table(content, "gpu_gaps")
    assert known(first) == {
        "rank": 0, "pid": 7, "device": 1, "start_ns": 10_000, "duration_ns": 54_000, "before": "k",
        "after": "[CUDA memcpy HtoD]", "thread": 1, "kind": "host", "launched_ns": 52_000,
        "api": "cudaDeviceSynchronize", "api_ns": 50_000, "range": "wait",
    }  # fmt: skip
    assert (last["before"], last["after"], last["kind"], last["launched_ns"]) == ("a", "a", "queued", -9_000)
    assert (last["api"], last["os_call"], last["samples"]) == (None, None, None)
    (busy,) = table(content, "gpu_utilization")
    assert (busy["gpu"], busy["span_ns"], busy["busy_ns"], busy["transfer_ns"]) == (
        "NVIDIA H200",
        86_000,
        25_000,
        4_000,
    )
    launches = {row["name"]: row for row in table(content, "gpu_launch_summary")}
    assert set(launches) == {"k", "a"}, "of the last kernel no launch was seen"
    assert [launches["a"][n] for n in ("count", "api_total_ns", "latency_mean_ns")] == [2, 4_000, 9_000]


def test_transfers_tell_the_memory_that_they_touch(tmp_path: Path) -> None:
    copies = ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Host)")
    path = write(
        tmp_path / "x.json",
        *(event(name, 10 * n, 2, "gpu_memcpy", device=0, bytes=100) for n, name in enumerate(copies)),
        event("Memcpy PtoP (Device -> Device)", 40, 2, "gpu_memcpy", device=0, fromDevice=0, inDevice=0, toDevice=3),
        event("Memset (Managed)", 50, 1, "gpu_memset", device=0, bytes=7),
    )
    content = kineto.read(path)
    told = [(row["source"], row["target"], row["peer_device"]) for row in table(content, "gpu_transfers")]
    assert told == [
        ("pageable", "device", None), ("pinned", "device", None), ("device", None, None), ("device", "device", 3),
        (None, "managed", None),
    ]  # fmt: skip
    rows = {row["name"]: row for row in table(content, "gpu_transfer_summary")}
    pageable = {name: (r["pageable_count"], r["pageable_ns"], r["pageable_bytes"]) for name, r in rows.items()}
    assert pageable == {
        "[CUDA memcpy HtoD]": (1, 2_000, 100), "[CUDA memcpy DtoH]": (None, None, None),
        "[CUDA memcpy PtoP]": (0, 0, 0), "[CUDA memset]": (0, 0, 0),
    }  # fmt: skip
    sizes = {row["name"]: (row["count"], row["total_bytes"]) for row in table(content, "gpu_transfer_sizes")}
    assert sizes == {"[CUDA memcpy HtoD]": (2, 200), "[CUDA memcpy DtoH]": (1, 100), "[CUDA memset]": (1, 7)}


def test_transfers_have_the_names_of_nsys(traces: Path) -> None:
    rows = table(kineto.read(traces / "hta_a100_alexnet_cuda_sync.json.gz"), "gpu_transfer_summary")
    assert {row["name"] for row in rows} == {"[CUDA memcpy HtoD]", "[CUDA memset]"}
    assert all(row["bytes"] > 0 for row in rows)


def test_memory_events_name_their_operator(traces: Path) -> None:
    rows = table(kineto.read(traces / "tl_h100_bert_with_metadata.json.gz"), "memory")
    devices = Counter(row["device"] for row in rows)
    assert set(devices) == {"cpu", "cuda:0"}
    assert sum(row["op"] is not None for row in rows) > len(rows) / 2
    for before, after in pairwise(rows):
        if before["device"] == after["device"] == "cuda:0":
            assert after["allocated_bytes"] == before["allocated_bytes"] + after["bytes"]


@pytest.mark.parametrize(
    ("file", "rank", "said"),
    [
        ("hta_cpu_only_rank34_small.json.gz", 34, None),
        ("hta_a100_distributedInfo_missing.json.gz", 0, "the trace names no rank: taken for rank 0"),
        ("rank-70.pt.trace.json.gz", 70, "the trace names no rank: 70, from the name of the file"),
    ],
)
def test_the_rank_stands_in_every_table(traces: Path, tmp_path: Path, file: str, rank: int, said: str | None) -> None:
    """D39"""
    path = traces / file
    if not path.exists():
        path = tmp_path / file
        path.write_bytes((traces / "hta_large_int_2events.json.gz").read_bytes())
    content = kineto.read(path)
    assert (content.rank, [note for note in content.notes if "rank" in note]) == (rank, [said] if said else [])
    assert {value for part in content.tables for value in part.columns["rank"]} == {rank}


def test_calls_and_operators_are_told_one_by_one(traces: Path) -> None:
    content = kineto.read(traces / "hta_a100_alexnet_cuda_sync.json.gz")
    calls, spans = (table(content, name) for name in ("cuda_calls", "op_spans"))
    kinds = {"cpu_op": "op", "user_annotation": "range", "python_function": "python"}
    assert len(calls) == sum(content.counted.get(name, 0) for name in ("cuda_runtime", "cuda_driver"))
    for category, kind in kinds.items():
        assert sum(row["kind"] == kind for row in spans) == content.counted.get(category, 0)
    told = [(row["name"], row["start_ns"], row["duration_ns"]) for row in table(content, "ranges")]
    assert told == [(r["name"], r["start_ns"], r["duration_ns"]) for r in spans if r["kind"] == "range"]
    launched = {row["correlation"] for row in table(content, "gpu_kernels")}
    assert launched <= {row["correlation"] for row in calls}


def test_a_trace_without_work_of_the_gpu_says_so(traces: Path) -> None:
    """D39"""
    content = kineto.read(traces / "hta_a100_distributedInfo_missing.json.gz")
    assert content.notes[0] == "no GPU events, though the process saw NVIDIA A100-PG509-200"
    content = kineto.read(traces / "hta_cpu_only_rank34_small.json.gz")
    assert content.notes == ("no GPU events",)
    assert {part.name for part in content.tables} == {"ranges", "torch_ops", "op_spans"}


def test_the_stream_that_was_cut_off_gives_what_is_whole(traces: Path) -> None:
    content = kineto.read(traces / "derived_truncated_stream.json.gz")
    assert content.truncated
    note, _ = content.notes
    assert note == f"the trace is cut off or damaged: {sum(content.counted.values())} events could be read"
    kernels = next(t for t in content.tables if t.name == "gpu_kernels")
    assert (len(kernels), kernels.clock) == (146, "relative"), "the base of its times stood behind the events"


@pytest.mark.parametrize("file", ["memory_timeline.raw.gz", "memsnap_ctx128_forward.pickle", "profiler_table_vllm.txt"])
def test_other_files_of_torch_are_refused(traces: Path, file: str) -> None:
    with pytest.raises(ParseError, match=r"holds no (array traceEvents|events of a trace)"):
        kineto.read(traces / file)


def test_some_tables_alone_are_what_they_are_among_all(traces: Path) -> None:
    path = traces / "hta_mi250_rocm6.2.json.gz"
    whole = {part.name: list(part.rows()) for part in kineto.read(path).tables}
    for wanted in ({"gpu_kernel_summary", "gpu_utilization"}, {"torch_ops"}, {"gpu_launch_summary"}, {"gpu_gaps"}):
        content = kineto.read(path, wanted)
        assert {part.name: list(part.rows()) for part in content.tables} == {name: whole[name] for name in wanted}


# ---------------------------------------------------------------- small traces made here


def event(
    name: str, start: Any, duration: Any, category: str = "cpu_op", thread: Any = 1, **args: Any
) -> dict[str, Any]:
    place = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": start, "dur": duration}
    return {**place, "args": args} if args else place


def allocation(time: float, size: int, device: int = 0, thread: int = 1, **more: Any) -> dict[str, Any]:
    args = {"Device Type": device, "Device Id": 0 if device else -1, "Bytes": size, **more}
    return {
        "ph": "i",
        "cat": "cpu_instant_event",
        "name": "[memory]",
        "pid": 7,
        "tid": thread,
        "ts": time,
        "args": args,
    }


def write(path: Path, *events: dict[str, Any], **about: Any) -> Path:
    """A trace of rank 0, where nothing else is said."""
    about = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}, **about}
    path.write_text(json.dumps({**about, "traceEvents": events}))
    return path


def operators(path: Path) -> dict[str, dict[str, Any]]:
    return {row["name"]: known(row) for row in table(kineto.read(path), "torch_ops")}


def test_self_times_by_nesting_on_each_thread(tmp_path: Path) -> None:
    """Touching calls are neighbours; one that outlasts the call it began in is nobody's child."""
    path = write(
        tmp_path / "x.json",
        event("outer", 0, 10), event("inner", 0, 4), event("inner", 4, 6), event("late", 9.5, 1),
        event("elsewhere", 1, 2, thread=2), event("aten::is_leaf", 1, 1),
    )  # fmt: skip
    assert {name: (row["count"], row["cpu_total_ns"], row["cpu_self_ns"]) for name, row in operators(path).items()} == {
        "outer": (1, 10_000, 0),
        "inner": (2, 10_000, 10_000),
        "late": (1, 1_000, 1_000),
        "elsewhere": (1, 2_000, 2_000),
    }


def test_an_only_child_of_its_own_name_is_no_second_call(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        event("f", 0, 10, **{"External id": 1}), event("f", 1, 8, **{"External id": 2}),
        event("f", 2, 6, **{"External id": 3}), event("g", 3, 2), event("g", 6, 1),
        event("k", 20, 5, "kernel", **{"External id": 3, "correlation": 9}),
    )  # fmt: skip
    rows = operators(path)
    times = ("count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns")
    assert [rows["f"][name] for name in times] == [1, 10_000, 7_000, 5_000, 5_000]
    assert rows["g"]["count"] == 2


def test_what_was_not_recorded_is_unknown(tmp_path: Path) -> None:
    rows = operators(write(tmp_path / "x.json", event("f", 0, 1)))
    assert rows == {
        "f": {"rank": 0, "pid": 7, "name": "f", "device": "cpu", "count": 1, "cpu_total_ns": 1000, "cpu_self_ns": 1000}
    }


def test_memory_by_operator_and_outside(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        event("outer", 0, 10), event("inner", 2, 4),
        allocation(1, 100, Addr=2**64, **{"Total Allocated": 100, "Total Reserved": 0}), allocation(3, 50),
        allocation(3.5, 1000, device=1), allocation(20, -100), allocation(21, -1000, device=1),
        deviceProperties=[{"id": 0, "name": "GPU"}],
    )  # fmt: skip
    rows = operators(path)
    columns = ("cpu_memory_bytes", "cpu_self_memory_bytes", "gpu_memory_bytes", "gpu_self_memory_bytes")
    assert [rows["outer"][name] for name in columns] == [150, 100, 1000, 0]
    assert [rows["inner"][name] for name in columns] == [50, 50, 1000, 1000]
    assert (rows["[memory]"]["count"], *(rows["[memory]"][name] for name in columns)) == (2, -100, -100, -1000, -1000)
    events = table(kineto.read(path), "memory")
    assert [row["op"] for row in events] == ["outer", "inner", "inner", None, None]
    assert [row["device"] for row in events] == ["cpu", "cpu", "cuda:0", "cpu", "cuda:0"]
    assert (events[0]["address"], events[0]["allocated_bytes"], events[1]["allocated_bytes"]) == (None, 100, None)


def test_shapes_tell_rows_apart_as_key_averages_does(tmp_path: Path) -> None:
    """A list of tensors counts as [], so that calls with other lists fall together."""
    shapes = ([[2, 3], []], [[2, 3], []], [[4], []], [[[1, 2], [3]], []], [[[5]], []], [])
    path = write(tmp_path / "x.json", *(event("f", n, 0.5, **{"Input Dims": s}) for n, s in enumerate(shapes)))
    rows = table(kineto.read(path), "torch_ops")
    counted = {row["input_shapes"]: row["count"] for row in rows}
    assert counted == {"[[2, 3], []]": 2, "[[4], []]": 1, "[[], []]": 2, None: 1}


def test_the_span_of_a_range_on_the_gpu_is_no_kernel(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        event("ProfilerStep#4", 0, 10, "user_annotation", **{"External id": 1}),
        event("k", 2, 3, "kernel", **{"External id": 1, "device": 0, "stream": 7, "correlation": 5, "graph id": 0}),
        event("ProfilerStep#4", 2, 4, "gpu_user_annotation", **{"External id": 1}),
    )  # fmt: skip
    content = kineto.read(path)
    (kernel,) = table(content, "gpu_kernels")
    assert (kernel["name"], kernel["duration_ns"], kernel["graph_id"]) == ("k", 3000, None)
    assert [row["name"] for row in table(content, "ranges")] == ["ProfilerStep#4"]
    rows = [(r["name"], r["device"], r["gpu_total_ns"]) for r in table(content, "torch_ops")]
    assert rows == [("ProfilerStep*", "cpu", 3000), ("k", "cuda", 3000), ("ProfilerStep*", "cuda", 4000)]


def test_times_of_the_epoch_with_decimals_lose_no_digit(tmp_path: Path) -> None:
    """Some versions wrote them so; read as floats, an inner call would end after the outer one."""
    text = json.dumps({"traceEvents": [event("outer", 1, 10.123), event("inner", 2, 9.122)]})
    path = tmp_path / "x.json"
    path.write_text(
        text.replace('"ts": 1,', '"ts": 1709230425123456.789,').replace('"ts": 2,', '"ts": 1709230425123457.790,')
    )
    rows = operators(path)
    assert (rows["outer"]["cpu_total_ns"], rows["outer"]["cpu_self_ns"]) == (10_123, 1_001)
    path.write_text(path.read_text().replace("cpu_op", "user_annotation"))
    (ranges,) = [t for t in kineto.read(path).tables if t.name == "ranges"]
    assert list(ranges.columns["start_ns"]) == [1709230425123456789, 1709230425123457790]
    assert ranges.clock == "epoch"


def test_names_with_quotes_and_numbers_that_are_none_are_mended(tmp_path: Path) -> None:
    """Kineto writes both as they are: neither Perfetto nor json can read such a file."""
    text = json.dumps({"traceEvents": [event("NAME", 0, 1), event("f", 2, 1, x="NAN", y=["NAN"])]}, indent=2)
    path = tmp_path / "x.json"
    path.write_text(text.replace("NAME", 'say "hi"').replace('"NAN"', "-nan"))
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(path.read_text())
    assert set(operators(path)) == {'say "hi"', "f"}
    assert not [note for note in kineto.read(path).notes if "could" in note]


def test_odd_values_are_unknown_or_told(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.json",
        event("k", 0, 1, "kernel", device=2**70, stream="0x0", grid="grid(1,)"), event("f", 0, 1),
        event("unfinished", 0, None), {**event("g", 0, 1), "dur": "long"},
    )  # fmt: skip
    content = kineto.read(path)
    (kernel,) = table(content, "gpu_kernels")
    assert (kernel["device"], kernel["stream"], kernel["grid"], kernel["registers"]) == (None, None, None, None)
    assert content.notes == ("2 of 5 events could not be read",)


def test_what_the_profiler_says_of_itself_is_told(tmp_path: Path) -> None:
    early = "INFO:2024-05-22 17:15:23 1:1 CuptiActivityProfiler.cpp:333] Record counts: CUPTI stopped early? = 1"
    warned = ["WARNING:2024-05-22 17:15:23 1:1 X.cpp:1] dropped 3 records"] * 2
    path = write(tmp_path / "x.json", event("f", 0, 1), INFO=[early], WARNING=warned)
    content = kineto.read(path)
    assert content.truncated
    assert content.notes[1:] == (
        "torch.profiler says: CUPTI stopped early, so that the end of the GPU's work is missing",
        "torch.profiler says: dropped 3 records (2 times)",
    )


def test_a_trace_without_events(tmp_path: Path) -> None:
    content = kineto.read(write(tmp_path / "x.json", distributedInfo={"rank": 2, "world_size": 4, "backend": "none"}))
    assert (content.tables, content.notes) == ((), ("the trace holds no events",))
    assert (content.rank, content.world_size) == (2, 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "x.json is empty"),
        (b'{"traceEvents": [{"ph": "X", "na', "x.json is cut off or damaged before its first event"),
        (b'{"traceEvents": {}}', "x.json holds no array traceEvents"),
        (b'{"traceEvents": [{"ph":"X","cat":"cpu_op","ts":1e300,"dur":1}]}', "x.json is no readable trace"),
        (b'{"baseTimeNanoseconds":1%040d,"traceEvents":[{"ph":"X","cat":"cpu_op","dur":1}]}' % 0, "no readable trace"),
        (b'{"traceEvents": [[1, 2]]}', "x.json holds no events of a trace"),
        (b"[" * 100_000, "x.json is no readable trace"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=said):
        kineto.read(path)


def test_damage_of_any_kind_is_an_error_of_its_own_or_none(traces: Path, tmp_path: Path) -> None:
    """200 copies of a real trace, each with some of its bytes changed."""
    whole = gzip.decompress((traces / "hta_triton_cuda_driver_launch.json.gz").read_bytes())
    chance, path, read = random.Random(5), tmp_path / "x.json", 0
    for _ in range(200):
        text = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            text[chance.randrange(len(text))] = chance.choice(b'0-9{}[],:"\\ e\xff\0n')
        path.write_bytes(text)
        try:
            for part in kineto.read(path).tables:
                tables.arrow(part.name, [part.with_capture("p1-torch")])
            read += 1
        except ParseError:
            pass
    assert read > 100


MEASURE = """
import resource, sys
from pathlib import Path
from orchestrator.formats import kineto
peaks = []
for path in sys.argv[1:]:
    kineto.read(Path(path))
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
print(peaks[1] - peaks[0])
"""


def test_a_big_trace_is_never_in_memory_as_a_whole(tmp_path: Path) -> None:
    """D06: traces of gigabytes exist."""
    filler = "x" * 400
    line = json.dumps(event("aten::mm", 0, 1, filler=filler, **{"External id": 5, "Input Dims": [[1, 2], [2, 3]]}))
    lines = [line.replace('"ts": 0', f'"ts": {n}') for n in range(120_000)]
    big = tmp_path / "big.json"
    big.write_text('{"traceEvents": [\n' + ",\n".join(lines) + "\n]}")
    small = write(tmp_path / "small.json", event("f", 0, 1))
    repository = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", MEASURE, str(small), str(big)]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert big.stat().st_size > 60_000_000
    assert int(done.stdout) < big.stat().st_size


# ---------------------------------------------------------------- key_averages()


def average(**more: Any) -> dict[str, Any]:
    return {"key": "aten::mm", "device_type": "CPU", "count": 3, "input_shapes": "[[2, 3], [3, 4]]", **more}


def averages(path: Path, *rows: Any, **more: Any) -> Table:
    path.write_text(json.dumps({"schema": 1, "rows": rows, **more}))
    return kineto.averages(path, rank=1, pid=77)


def test_averages_are_kept_digit_for_digit(tmp_path: Path) -> None:
    row = average(
        cpu_time_total=1234.5670000000003, self_cpu_time_total=0.001, device_time_total=7.0005,
        self_device_time_total=0, cpu_memory_usage=-8, self_cpu_memory_usage=0, device_memory_usage=2**40,
        self_device_memory_usage=5, flops=144,
    )  # fmt: skip
    (found,) = averages(tmp_path / "a.json", row).rows()
    assert found == {
        "rank": 1, "pid": 77, "name": "aten::mm", "device": "cpu", "input_shapes": "[[2, 3], [3, 4]]", "count": 3,
        "cpu_total_ns": 1234567, "cpu_self_ns": 1, "gpu_total_ns": 7000, "gpu_self_ns": 0,
        "cpu_memory_bytes": -8, "cpu_self_memory_bytes": 0, "gpu_memory_bytes": 2**40, "gpu_self_memory_bytes": 5,
        "flops": 144,
    }  # fmt: skip


def test_averages_that_were_not_recorded_are_unknown(tmp_path: Path) -> None:
    part = averages(tmp_path / "a.json", average(input_shapes=None, cpu_time_total=None), average(device_type="CUDA"))
    first, second = part.rows()
    assert known(first) == {"rank": 1, "pid": 77, "name": "aten::mm", "device": "cpu", "count": 3}
    assert second["device"] == "cuda"
    assert tables.arrow("torch_ops", [part.with_capture("p1-torch")]).num_rows == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a.json is no dump of key_averages()"),
        ('{"schema": 1, "rows": [{"key": 3}]}', "a.json is no dump of key_averages()"),
        ('{"schema": 2, "rows": []}', "in version 2; this profrun reads version 1"),
        (None, "a.json can't be read: No such file"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "a.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ParseError, match=re.escape(said)):
        kineto.averages(path)
