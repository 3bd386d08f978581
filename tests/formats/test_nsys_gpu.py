"""formats/nsys_gpu.py against SQL on real exports, against nsys itself, and on exports made so that the answer is
known."""

from __future__ import annotations

import csv
import io
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import nsys_gpu
from orchestrator.formats.nsys_export import opened

Rows = list[dict[str, Any]]

WORKED = {
    "2021.2.1_rtx6000_db_query": (12, 0, 204), "2021.x_rtx6000_db_query_older": (12, 0, 60),
    "2022.1.3_rtx2070s_pytorch_cudnn_nvtx": (59, 0, 17), "2023.3.1_t4_openmp_offload_many_copies": (50, 0, 200),
    "2023.3.1_t4_openmp_offload_resident": (50, 0, 3), "2024.6.2_a100_cudagraph_compile": (30, 10, 0),
    "2024.6.2_a100_gpt2.7b": (7328, 0, 294), "2024.6.2_a100_gpt_small": (2768, 0, 162),
    "2025.5.2_rtx3060_wsl_vecadd": (1, 0, 3), "2026.1.1_rtx3080_two_kernels": (2, 0, 1),
    "2026.2.1_h100x2_fastvideo_slice": (3442, 0, 926),
}  # fmt: skip
"""Real exports with work of GPUs, and how many kernels, graphs, and copies and sets they hold."""

WORK = ("KERNEL", "GRAPH_TRACE", "MEMCPY", "MEMSET")


def tables_of(path: Path) -> tuple[Rows, Rows, Rows]:
    """Utilization, gaps and launches; times counted from the start of the session, as in the file."""
    with opened(path) as export:
        makers = (nsys_gpu.gpu_utilization, nsys_gpu.gpu_gaps, nsys_gpu.gpu_launches)
        made = [table for make in makers for table in make(export)]
        found = [list(table.rows()) for table in made]
        assert [tables.arrow(table.name, [table]).num_rows for table in made] == [len(rows) for rows in found]
        for row in (*found[0], *found[1]):
            row["start_ns"] = int(row["start_ns"]) - (export.start_epoch_ns or 0)
    return found[0], found[1], found[2]


def asked(path: Path, sql: str) -> list[Any]:
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def union_of_work(path: Path) -> str:
    """SQL for the work of all kinds that the file has a table of."""
    names = {name for (name,) in asked(path, "SELECT name FROM sqlite_master")}
    kinds = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in WORK]
    return " UNION ALL ".join(f"SELECT globalPid, deviceId, start, end FROM {kind}" for kind in kinds if kind in names)


# ---------------------------------------------------------------- real files


@pytest.mark.parametrize("name", WORKED)
def test_busy_and_idle_of_real_files_as_sql_counts_them(shared: Path, name: str) -> None:
    path = shared / "data" / "nsys" / f"{name}.sqlite"
    busy, idle, _ = tables_of(path)
    found = asked(
        path,
        f"""WITH work AS ({union_of_work(path)}),
            seen AS (SELECT *, max(end) OVER (PARTITION BY globalPid, deviceId ORDER BY start, end
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS until FROM work)
            SELECT deviceId, globalPid >> 24 & 16777215, min(start), max(end) - min(start),
                sum(max(0, start - ifnull(until, start))), sum(start > until) FROM seen GROUP BY 1, 2 ORDER BY 1""",
    )
    columns = ("device", "pid", "start_ns", "span_ns", "idle_ns", "gaps")
    assert [tuple(row[column] for column in columns) for row in busy] == found
    assert all(row["busy_ns"] + row["idle_ns"] == row["span_ns"] for row in busy)
    assert sum(row["duration_ns"] for row in idle) == sum(row["idle_ns"] for row in busy)
    counted = tuple(sum(row[column] for row in busy) for column in ("kernels", "graphs", "transfers"))
    assert counted == WORKED[name]


@pytest.mark.parametrize("name", WORKED)
def test_launches_of_real_files_as_sql_joins_them(shared: Path, name: str) -> None:
    path = shared / "data" / "nsys" / f"{name}.sqlite"
    *_, launches = tables_of(path)
    found = asked(
        path,
        """SELECT s.value, k.deviceId, count(*), sum(r.end - r.start), min(k.start - r.start), max(k.start - r.start),
                avg(k.start - r.start), sum(k.end - k.start)
            FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN StringIds s ON s.id = k.demangledName
            JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
                ON r.correlationId = k.correlationId AND r.globalTid & ~16777215 = k.globalPid GROUP BY 1, 2""",
    )
    columns = ("name", "device", "count", "api_total_ns", "latency_min_ns", "latency_max_ns", "latency_mean_ns")
    shown = [(*(row[c] for c in columns), row["kernel_total_ns"]) for row in launches if "[CUDA" not in row["name"]]
    assert sorted(shown) == [(*row[:6], pytest.approx(row[6]), row[7]) for row in sorted(found)]


def test_graphs_traced_as_a_whole_are_work_of_the_gpu(shared: Path) -> None:
    path = shared / "data" / "nsys" / "2024.6.2_a100_cudagraph_compile.sqlite"
    (row,), _, launches = tables_of(path)
    assert row["kernel_ns"] == row["busy_ns"] == 7811141695 + 78270
    assert {"[CUDA graph 4]": 7811141695}.items() <= {r["name"]: r["kernel_total_ns"] for r in launches}.items()


def test_gaps_of_a_real_file_say_what_the_thread_did(shared: Path) -> None:
    _, idle, _ = tables_of(shared / "data" / "nsys" / "2021.2.1_rtx6000_db_query.sqlite")
    first, second = sorted(idle, key=lambda row: -row["duration_ns"])[:2]
    assert (first["kind"], first["os_call"], first["os_call_ns"], first["api"]) == (
        "host",
        "getc",
        4651663022,
        "cudaMemset",
    )
    assert (second["before"], second["after"], second["os_call"]) == ("[CUDA memset]", "[CUDA memcpy HtoD]", "read")
    assert first["samples"] is None  # none were taken
    _, idle, _ = tables_of(shared / "data" / "nsys" / "2025.5.2_rtx3060_wsl_vecadd.sqlite")
    (waited, *_) = sorted(idle, key=lambda row: -row["duration_ns"])
    assert (waited["kind"], waited["api"]) == ("queued", "cudaDeviceSynchronize")
    assert (waited["samples"], waited["function"]) == (1, "(in [vdso])")
    _, idle, _ = tables_of(shared / "data" / "nsys" / "2022.1.3_rtx2070s_pytorch_cudnn_nvtx.sqlite")
    assert "aten::cudnn_convolution, seq = 0" in {row["range"] for row in idle}


@pytest.mark.parametrize("name", ["2022.4.2_titanrtx_nvtx_only", "2025.3.2_a5000_cuda_profiling_failed"])
def test_without_work_there_is_nothing_to_say(shared: Path, name: str) -> None:
    assert tables_of(shared / "data" / "nsys" / f"{name}.sqlite") == ([], [], [])


# ---------------------------------------------------------------- nsys itself


def reported(path: Path, *command: str) -> Rows:
    """What nsys prints as CSV of a copy of the export (it writes into it)."""
    done = subprocess.run(
        ["nsys", *command, "-f", "csv", str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    return list(csv.DictReader(io.StringIO(done.stdout.partition("...")[2].lstrip())))


@pytest.mark.tool("nsys")
def test_gaps_and_launches_are_those_that_nsys_reports(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "copy.sqlite"
    shutil.copyfile(shared / "data" / "nsys" / "2022.1.3_rtx2070s_pytorch_cudnn_nvtx.sqlite", path)
    _, idle, launches = tables_of(path)
    starving = reported(path, "analyze", "-r", "gpu-starv:gap=0:rows=1000")
    gaps = sorted((row["start_ns"], row["duration_ns"]) for row in idle)
    assert sorted((int(row["Start (ns)"]), int(row["Duration (ns)"])) for row in starving) == gaps
    executed = reported(path, "stats", "--report", "kernexecsum")
    figures = [
        (r["Kernel Name"], int(r["Count"]), float(r["AMed (ns)"]))
        for r in executed
        if r["API Name"] == "cudaLaunchKernel"
    ]
    assert len(figures) == len(executed)
    assert sorted(figures) == sorted((row["name"], row["count"], row["api_median_ns"]) for row in launches)


# ---------------------------------------------------------------- a run with stalls


@pytest.fixture(scope="module")
def training(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A made-up run of two ranks, with stalls of their data loaders and correlation ids that both use."""
    path = tmp_path_factory.mktemp("nsys") / "training.sqlite"
    maker = shared / "bench" / "gen_nsys.py"
    command = [sys.executable, str(maker), str(path), "20000", "--kernels-per-step", "200"]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_stalls_are_found_with_their_thread_and_range(training: Path) -> None:
    _, idle, _ = tables_of(training)
    stalls = asked(
        training,
        """SELECT n.start, n.end, globalTid & 16777215, (globalTid >> 24 & 16777215) - 4711 FROM NVTX_EVENTS n
            JOIN StringIds s ON s.id = n.textId WHERE s.value = 'dataloader' AND n.end - n.start > 1000000""",
    )
    assert len(stalls) > 3
    for start, end, thread, device in stalls:
        (gap,) = [
            row for row in idle
            if row["device"] == device and row["start_ns"] <= start and row["start_ns"] + row["duration_ns"] >= end
        ]  # fmt: skip
        assert (gap["thread"], gap["range"], gap["kind"]) == (thread, "dataloader", "host")
        assert gap["launched_ns"] >= end - start
        assert gap["duration_ns"] < end - start + 200_000


def test_launches_are_joined_within_their_process(training: Path) -> None:
    busy, _, launches = tables_of(training)
    assert [(row["pid"], row["device"], row["gpu"]) for row in busy] == [
        (4711, 0, "NVIDIA H200"),
        (4712, 1, "NVIDIA H200"),
    ]
    assert sum(row["count"] for row in launches) == 20_000
    assert all(700 <= row["latency_min_ns"] <= row["latency_max_ns"] < 100_000_000 for row in launches)


# ---------------------------------------------------------------- exports made by hand

PID = {4711: 4711 << 24 | 1 << 48, 4712: 4712 << 24 | 1 << 48}
COLUMNS = {
    "StringIds": "id, value",
    "TARGET_INFO_GPU": "id, name",
    "TARGET_INFO_CUDA_DEVICE": "gpuId, cudaId, pid",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start, end, deviceId, streamId, correlationId, globalPid, demangledName",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start, end, deviceId, streamId, correlationId, globalPid, copyKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, globalTid, correlationId, nameId",
    "NVTX_EVENTS": "start, end, eventType, globalTid, text, textId",
    "OSRT_API": "start, end, eventClass, globalTid, nameId",
    "COMPOSITE_EVENTS": "id, start, globalTid",
    "SAMPLING_CALLCHAINS": "id, symbol, module, unresolved, stackDepth",
}
NAMES = [
    (0, "gemm"),
    (1, "ncclDevKernel_AllReduce"),
    (2, "cudaLaunchKernel_v7000"),
    (3, "poll"),
    (4, "PyEval"),
    (5, "/lib/libc.so.6"),
]


@pytest.fixture
def export(tmp_path: Path) -> Callable[..., Path]:
    """Writes an export with these rows; a table that is not named does not exist."""

    def made(**content: Iterable[tuple[Any, ...]]) -> Path:
        path = tmp_path / "made.sqlite"
        path.unlink(missing_ok=True)
        with sqlite3.connect(path) as db:
            for name, rows in {"StringIds": NAMES, **content}.items():
                name = next(full for full in COLUMNS if full.endswith(name))
                db.execute(f"CREATE TABLE {name} ({', '.join(c + ' INTEGER' for c in COLUMNS[name].split(', '))})")
                db.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(COLUMNS[name].split(', ')))})", rows)
        db.close()
        return path

    return made


def kernel(
    start: int, end: int | None, correlation: int, pid: int = 4711, device: int = 0, name: int = 0
) -> tuple[Any, ...]:
    return (start, end, device, 7, correlation, PID[pid], name)


def test_two_processes_on_one_gpu_are_one_row(export: Callable[..., Path]) -> None:
    kernels = [kernel(0, 10, 1), kernel(5, 20, 1, pid=4712), kernel(30, 40, 2)]
    calls = [(-5, -4, PID[4711] + 9, 1, 2), (2, 4, PID[4712] + 8, 1, 2), (25, 29, PID[4711] + 9, 2, 2)]
    for told in ({"TARGET_INFO_GPU": [(3, "T4")]}, {"CUDA_DEVICE": [(3, 0, 4711), (3, 0, 4712)]}):
        (row,), (gap,), launches = tables_of(export(KERNEL=kernels, RUNTIME=calls, **told))
        assert (row["pid"], row["device"], row["span_ns"], row["busy_ns"]) == (None, 3, 40, 30)
        assert (row["overlapped_ns"], row["max_concurrency"], row["streams"]) == (5, 2, 2)
        assert (gap["pid"], gap["device"], gap["thread"], gap["launched_ns"]) == (None, 3, 9, 5)
        assert [(r["pid"], r["count"], r["latency_mean_ns"]) for r in launches] == [(4711, 2, 5.0), (4712, 1, 3.0)]


def test_one_number_of_two_processes_may_mean_two_gpus(export: Callable[..., Path]) -> None:
    kernels = [kernel(0, 10, 1), kernel(5, 20, 1, pid=4712)]
    gpus = [(2, "A100"), (3, "H100")]
    told = tables_of(export(KERNEL=kernels, TARGET_INFO_GPU=gpus, CUDA_DEVICE=[(3, 0, 4711), (2, 0, 4712)]))[0]
    assert [(r["pid"], r["device"], r["gpu"], r["busy_ns"]) for r in told] == [
        (4711, 0, "H100", 10),
        (4712, 0, "A100", 15),
    ]
    unknown = tables_of(export(KERNEL=kernels))[0]
    assert [(r["pid"], r["device"], r["gpu"], r["busy_ns"]) for r in unknown] == [
        (4711, 0, None, 10),
        (4712, 0, None, 15),
    ]


def test_many_kernels_of_one_graph_launch_count_its_call_once(export: Callable[..., Path]) -> None:
    kernels = [kernel(10 + 10 * i, 15 + 10 * i, 5) for i in range(4)]
    (row,), _, (launch,) = tables_of(export(KERNEL=kernels, RUNTIME=[(0, 8, PID[4711] + 1, 5, 2)]))
    assert (launch["count"], launch["api_total_ns"], launch["latency_median_ns"]) == (4, 8, 25.0)
    assert (row["queue_max"], row["queue_empty_ns"]) == (4, 5)


@pytest.mark.parametrize("far", [0, 10**12], ids=["dense", "far-apart"])
def test_calls_that_share_an_id_and_work_whose_call_is_unknown(export: Callable[..., Path], far: int) -> None:
    calls = [(0, 9, PID[4711] + 1, 5, 2), (2, 8, PID[4711] + 1, 5, 2), (20, 21, PID[4711] + 1, 7 + far, 2)]
    kernels = [
        kernel(10, 15, 5),
        kernel(22, 30, 7 + far),
        kernel(40, 50, 6),
        kernel(60, 61, 99),
        kernel(70, None, 7 + far),
    ]
    (row,), idle, (launch,) = tables_of(export(KERNEL=kernels, RUNTIME=calls))
    assert (row["kernels"], launch["count"], launch["latency_min_ns"], launch["latency_max_ns"]) == (4, 2, 2, 10)
    assert [(g["kind"], g["thread"], g["api"]) for g in idle] == [
        ("host", 1, "cudaLaunchKernel"), (None, None, None), (None, None, None),
    ]  # fmt: skip


def test_a_gap_with_all_that_nsys_records_of_a_thread(export: Callable[..., Path]) -> None:
    thread = PID[4711] + 1
    path = export(
        KERNEL=[kernel(0, 100, 1), kernel(200, 300, 2, name=1)],
        RUNTIME=[(-10, -5, thread, 1, 2), (160, 190, thread, 2, 2)],
        NVTX_EVENTS=[
            (0, 400, 59, thread, "step", None), (90, 195, 60, thread, "load", None),
            (120, 150, 59, thread, "part", None), (100, None, 59, thread + 1, "another thread", None),
            (0, 0, 75, thread, "a domain", None),
        ],
        OSRT_API=[(100, 155, 27, thread, 3), (0, 500, 31, thread, 4), (0, 500, 27, thread + 1, 4)],
        COMPOSITE_EVENTS=[(1, 100, thread), (2, 110, thread), (3, 150, thread), (4, 200, thread), (5, 120, thread + 1)],
        SAMPLING_CALLCHAINS=[(n, 4, 5, int(n == 3), 0) for n in range(1, 6)] + [(1, 3, 5, 0, 1)],
    )  # fmt: skip
    (row,), (gap,), _ = tables_of(path)
    assert (row["communication_ns"], row["exposed_communication_ns"]) == (100, 100)
    assert gap == {
        "pid": 4711, "device": 0, "start_ns": 100, "duration_ns": 100, "before": "gemm",
        "after": "ncclDevKernel_AllReduce", "thread": 1, "kind": "host", "launched_ns": 60, "api": "cudaLaunchKernel",
        "api_ns": 30, "range": "load", "os_call": "poll", "os_call_ns": 55, "samples": 3, "function": "PyEval",
    }  # fmt: skip
    told_later = {"cause", "phase", "step", "python", "syscall", "path", "told_by"}  # by locating/gpu.py
    assert gap.keys() | {"capture"} | told_later == {column.name for column in tables.SCHEMAS["gpu_gaps"]}
    with sqlite3.connect(path) as db:  # the rows' numbers have a hole
        db.execute("DELETE FROM NVTX_EVENTS WHERE text = 'step'")
        db.execute("INSERT INTO NVTX_EVENTS SELECT * FROM NVTX_EVENTS WHERE text = 'part'")
        db.execute("DELETE FROM NVTX_EVENTS WHERE rowid = 3")
    db.close()
    assert tables_of(path)[1][0]["range"] == "load"
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM SAMPLING_CALLCHAINS WHERE id IN (1, 2)")
        db.execute("DELETE FROM COMPOSITE_EVENTS WHERE id = 2")
    db.close()
    assert tables_of(path)[1][0]["samples"] == 2


def test_only_the_longest_gaps_are_kept(export: Callable[..., Path]) -> None:
    kernels = [kernel(1000 * i, 1000 * i + 500 - i % 7, 2 * i) for i in range(12_000)]
    (row,), idle, _ = tables_of(export(KERNEL=kernels))
    assert (row["gaps"], len(idle)) == (11_999, 10_000)
    assert min(gap["duration_ns"] for gap in idle) == 501
    assert [gap["start_ns"] for gap in idle] == sorted(gap["start_ns"] for gap in idle)


NUMBER = st.none() | st.integers(-3, 60) | st.sampled_from((-(2**63), 2**63 - 1, 2**40, PID[4711], PID[4711] + 1))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_whatever_the_rows_hold_only_a_parse_error_escapes(export: Callable[..., Path], data: st.DataObject) -> None:
    content = {
        name: data.draw(st.lists(st.tuples(*[NUMBER] * len(columns.split(", "))), max_size=4))
        for name, columns in COLUMNS.items()
        if name != "StringIds"
    }
    path = export(**content)
    try:
        busy, idle, _ = tables_of(path)
    except ParseError:
        return
    assert all(row["busy_ns"] + row["idle_ns"] == row["span_ns"] for row in busy)
    assert len(idle) == sum(row["gaps"] for row in busy)
