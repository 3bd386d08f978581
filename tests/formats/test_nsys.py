"""formats/nsys.py against real exports of nsys, old and new, and against what `nsys stats` prints of them."""

from __future__ import annotations

import contextlib
import csv
import io
import re
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import nsys, nsys_export

FIGURES = {
    "total_ns": "Total Time (ns)",
    "mean_ns": "Avg (ns)",
    "median_ns": "Med (ns)",
    "min_ns": "Min (ns)",
    "max_ns": "Max (ns)",
    "stddev_ns": "StdDev (ns)",
}


@pytest.fixture
def exports(shared: Path) -> Path:
    return shared / "data" / "nsys"


@pytest.fixture
def osrt_nvtx(golden: Path, tmp_path: Path) -> Path:
    """Our own recording of a small program with system calls and NVTX ranges, as a database again."""
    path = tmp_path / "osrt_nvtx.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript((golden / "nsys" / "osrt_nvtx.sql").read_text())
    db.close()
    return path


def table(content: nsys.Content, name: str) -> list[dict[str, Any]]:
    return next((list(t.rows()) for t in content.tables if t.name == name), [])


Rounding = Callable[[float], str]


def as_written(number: float) -> str:
    """One decimal as the SQLite inside nsys 2022 rounds: the number as one writes it, 841.15 becomes 841.2."""
    return str(Decimal(repr(float(number))).quantize(Decimal("0.1"), ROUND_HALF_UP))


def exact(number: float) -> str:
    """One decimal as the SQLite inside nsys 2024 rounds: the binary number itself, 841.15 becomes 841.1."""
    return str(Decimal(float(number)).quantize(Decimal("0.1"), ROUND_HALF_UP))


def figures(row: dict[str, Any], count: str, rounded: Rounding) -> dict[str, str]:
    """A row of a summary as `nsys stats --format csv` writes it."""
    whole = ("total_ns", "min_ns", "max_ns")
    shown = {FIGURES[name]: str(row[name]) if name in whole else rounded(row[name]) for name in FIGURES}
    return {count: str(row["count"]), **shown}


def equal_to_stats(
    rows: Iterable[dict[str, Any]], printed: list[dict[str, str]], count: str, name: str, rounded: Rounding = as_written
) -> None:
    """Every row has its line, every line its row, and all figures are the same to the last digit."""
    ours = sorted((str(row["name"]), sorted(figures(row, count, rounded).items())) for row in rows)
    keep = {count, *FIGURES.values()}
    theirs = sorted((line[name], sorted((k, v) for k, v in line.items() if k in keep)) for line in printed)
    assert theirs
    assert ours == theirs


def read_csv(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


# ---------------------------------------------------------------- equal to `nsys stats`


def test_os_calls_equal_osrtsum(osrt_nvtx: Path, golden: Path) -> None:
    printed = read_csv((golden / "nsys" / "osrt_nvtx_osrtsum.csv").read_text())
    equal_to_stats(table(nsys.read(osrt_nvtx), "os_calls_summary"), printed, "Num Calls", "Name")


@pytest.mark.parametrize(
    ("name", "file", "count", "label"),
    [
        ("cuda_api_summary", "cudaapisum", "Num Calls", "Name"),
        ("gpu_transfer_summary", "gpumemtimesum", "Count", "Operation"),
    ],
)
def test_summaries_equal_stats_of_2022(exports: Path, name: str, file: str, count: str, label: str) -> None:
    content = nsys.read(exports / "2021.2.1_rtx6000_db_query.sqlite")
    printed = read_csv((exports / f"local2022.4.2_stats_db_{file}.csv").read_text())
    equal_to_stats(table(content, name), printed, count, label)


@pytest.mark.parametrize(("file", "column"), [("gpukernsum", "name"), ("gpukernsum_base", "short_name")])
def test_kernels_by_grid_equal_stats_of_2022(exports: Path, file: str, column: str) -> None:
    """nsys 2022 groups by name, grid and block; the same grouping of our rows of single kernels gives its table."""
    content = nsys.read(exports / "2021.2.1_rtx6000_db_query.sqlite")
    printed = read_csv((exports / f"local2022.4.2_stats_db_{file}.csv").read_text())
    shape = [",".join(line[k].split()) for line in printed for k in ("GridXYZ", "BlockXYZ")]
    whole = ("Instances", "Total Time (ns)", "Min (ns)", "Max (ns)")
    theirs = [
        (line["Name"], grid, block, *(int(line[k]) for k in whole))
        for line, grid, block in zip(printed, shape[::2], shape[1::2], strict=True)
    ]
    groups: dict[tuple[str, str, str], list[int]] = {}
    for row in table(content, "gpu_kernels"):
        groups.setdefault((row[column], row["grid"], row["block"]), []).append(row["duration_ns"])
    assert sorted((*key, len(d), sum(d), min(d), max(d)) for key, d in groups.items()) == sorted(theirs)


@pytest.mark.parametrize(
    ("name", "report", "count", "label"),
    [
        ("cuda_api_summary", "cudaapisum", "Num Calls", "Name"),
        ("gpu_transfer_summary", "gpumemtimesum", "Count", "Operation"),
    ],
)
def test_summaries_equal_stats_of_a_training_step(
    exports: Path, name: str, report: str, count: str, label: str
) -> None:
    """One output of `nsys stats` for all reports, of the same recording exported by another version."""
    rows = table(nsys.read(exports / "2022.1.3_rtx2070s_pytorch_cudnn_nvtx.sqlite"), name)
    text = (exports / "local2022.4.2_stats_csv_all_pytorch_cudnn.csv").read_text()
    printed = read_csv(text.split(f"/{report}.py]... \n", 1)[1].split("\n\n", 1)[0])
    equal_to_stats(rows, printed, count, label)


@pytest.mark.parametrize("file", ["2021.2.1_rtx6000_db_query", "2024.6.2_a100_gpt2.7b"])
@pytest.mark.parametrize(("name", "whole"), [("cuda_calls", "cuda_api_summary"), ("os_calls", "os_calls_summary")])
def test_calls_one_by_one_make_their_summary(exports: Path, file: str, name: str, whole: str) -> None:
    content = nsys.read(exports / f"{file}.sqlite")
    calls: dict[str, list[int]] = {}
    for row in table(content, name):
        calls.setdefault(row["name"], []).append(row["duration_ns"])
    summed = [(row["name"], row["count"], row["total_ns"], row["min_ns"]) for row in table(content, whole)]
    assert sorted((name, len(own), sum(own), min(own)) for name, own in calls.items()) == sorted(summed)
    starts = [row["start_ns"] for row in table(content, name)]
    assert starts == sorted(starts)


def test_calls_lead_to_what_they_launched(exports: Path) -> None:
    content = nsys.read(exports / "2024.6.2_a100_gpt2.7b.sqlite")
    calls = {(row["pid"], row["correlation"]): row for row in table(content, "cuda_calls")}
    kernels = table(content, "gpu_kernels")
    launches = [calls[kernel["pid"], kernel["correlation"]] for kernel in kernels]
    assert {"Launch" in call["name"] for call in launches} == {True}
    assert all(call["start_ns"] < kernel["start_ns"] for call, kernel in zip(launches, kernels, strict=True))
    assert {call["thread"] for call in launches} != {None}


def stats_text(path: Path, report: str) -> list[dict[str, str]]:
    """One table of the text that `nsys stats` prints on a terminal; columns are as wide as the dashes say."""
    block = path.read_text().split(f"({report}):", 1)[1].lstrip("\n").split("\n\n", 1)[0].splitlines()
    widths = [m.span() for m in re.finditer("-+", block[1])]
    spans = [(start, end if i < len(widths) - 1 else None) for i, (start, end) in enumerate(widths)]
    headings, *lines = [[line[a:b].strip() for a, b in spans] for line in (block[0], *block[2:])]
    return [dict(zip(headings, line, strict=True)) for line in lines]


@pytest.mark.parametrize("file", ["2024.6.2_a100_gpt2.7b", "2024.6.2_a100_cudagraph_compile"])
@pytest.mark.parametrize(
    ("name", "report", "count"),
    [
        ("os_calls_summary", "osrt_sum", "Num Calls"),
        ("cuda_api_summary", "cuda_api_sum", "Num Calls"),
        ("gpu_kernel_summary", "cuda_gpu_kern_sum", "Instances"),
    ],
)
def test_summaries_equal_stats_of_2024(exports: Path, file: str, name: str, report: str, count: str) -> None:
    """What `nsys stats` of 2024 printed of the same export; kernels are grouped by name there, as in our table."""
    rows = table(nsys.read(exports / f"{file}.sqlite"), name)
    printed = stats_text(exports / f"{file}.stats.txt", report)
    shortened = [{**row, "name": row["name"][:90]} for row in rows]  # long names are cut off on a terminal
    equal_to_stats(shortened, [{**line, "Name": line["Name"][:90]} for line in printed], count, "Name", exact)


def test_transfers_equal_stats_of_2024(exports: Path) -> None:
    """Under the names of that version, which are longer."""
    content = nsys.read(exports / "2024.6.2_a100_gpt2.7b.sqlite")
    text = exports / "2024.6.2_a100_gpt2.7b.stats.txt"
    by_time = stats_text(text, "cuda_gpu_mem_time_sum")
    equal_to_stats(table(content, "gpu_transfer_summary"), by_time, "Count", "Operation", exact)
    sizes_equal_stats(table(content, "gpu_transfer_sizes"), stats_text(text, "cuda_gpu_mem_size_sum"))


def sizes_equal_stats(rows: list[dict[str, Any]], printed: list[dict[str, str]]) -> None:
    """Sizes are shown in MB of a million bytes."""
    figures = {"total": "Total", "mean": "Avg", "median": "Med", "min": "Min", "max": "Max", "stddev": "StdDev"}
    ours = {(row["name"], str(row["count"]), *(f"{row[f'{k}_bytes'] / 1e6:.3f}" for k in figures)) for row in rows}
    assert printed
    assert ours == {
        (line["Operation"], line["Count"], *(line[f"{head} (MB)"] for head in figures.values())) for line in printed
    }


@pytest.mark.parametrize(
    ("file", "csv_file"),
    [
        ("2021.2.1_rtx6000_db_query.sqlite", "local2022.4.2_stats_db_gpumemsizesum.csv"),
        ("2022.1.3_rtx2070s_pytorch_cudnn_nvtx.sqlite", "local2022.4.2_stats_csv_all_pytorch_cudnn.csv"),
    ],
)
def test_transfer_sizes_equal_stats_of_2022(exports: Path, file: str, csv_file: str) -> None:
    text = (exports / csv_file).read_text()
    printed = read_csv(text.split("/gpumemsizesum.py]... \n", 1)[-1].split("\n\n", 1)[0])
    sizes_equal_stats(table(nsys.read(exports / file), "gpu_transfer_sizes"), printed)


def test_ranges_equal_nvtxsum(exports: Path, osrt_nvtx: Path, golden: Path) -> None:
    """Of PyTorch's own ranges, and of ours, with a domain, both styles and one that never ended."""
    text = (exports / "local2022.4.2_stats_csv_all_pytorch_cudnn.csv").read_text()
    printed = read_csv(text.split("/nvtxsum.py]... \n", 1)[1].split("\n\n", 1)[0])
    rows = table(nsys.read(exports / "2022.1.3_rtx2070s_pytorch_cudnn_nvtx.sqlite"), "range_summary")
    equal_to_stats(rows, printed, "Instances", "Range")
    printed = read_csv((golden / "nsys" / "osrt_nvtx_nvtxsum.csv").read_text())
    rows = table(nsys.read(osrt_nvtx), "range_summary")
    equal_to_stats(rows, printed, "Instances", "Range")
    assert {row["name"]: row["style"] for row in rows} == {line["Range"]: line["Style"] for line in printed}


REPORTS = {
    "cudaapisum": ("cuda_api_summary", "Num Calls", "Name"),
    "gpumemtimesum": ("gpu_transfer_summary", "Count", "Operation"),
    "nvtxsum": ("range_summary", "Instances", "Range"),
    "osrtsum": ("os_calls_summary", "Num Calls", "Name"),
}


@pytest.mark.tool("nsys")
@pytest.mark.parametrize("file", ["2024.6.2_a100_gpt_small", "2026.2.1_h100x2_fastvideo_slice"])
def test_equal_to_the_nsys_that_is_installed(exports: Path, tmp_path: Path, file: str) -> None:
    """Newer exports than the tool, which it reads all the same; it names transfers as its own version does."""
    copy = Path(shutil.copy(exports / f"{file}.sqlite", tmp_path / "report.sqlite"))
    copy.chmod(0o600)
    argv = ["nsys", "stats", "--format", "csv", "--force-export=false", "--report", ",".join(REPORTS), str(copy)]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=120).stdout
    content = nsys.read(exports / f"{file}.sqlite")
    compared = 0
    for report, (name, count, label) in REPORTS.items():
        text = said.split(f"/{report}.py]... \n", 1)[1].split("\n\n", 1)[0]
        rows = [{**row, "name": short_transfer(row["name"])} for row in table(content, name)]
        if "SKIPPED" in text:
            assert rows == []
        elif "no such function" not in text:
            equal_to_stats(rows, read_csv(text), count, label)
            compared += 1
    assert compared >= 2


def short_transfer(name: str) -> str:
    kinds = {nsys_export.transfer_name(kind, long=True): nsys_export.transfer_name(kind) for kind in range(-1, 14)}
    return kinds.get(name, name)


# ---------------------------------------------------------------- every generation of the schema

KERNELS = re.compile(r"kernels=(\d+) sum_ns=(\d+) first=(\d+) last=(\d+)")
TOP = re.compile(r"devices=(\d+) streams=(\d+); top='(.*?)' n=(\d+) ns=(\d+)")
COPIES = re.compile(r"(memcpy|memset): n=(\d+) ns=(\d+) bytes=(\d+)")
TABLE_ROWS = re.compile(r"([A-Z_]+):(\d+)")
NVTX = re.compile(r"nvtx by eventType \[\(59, (\d+)\)\]")


def known_facts(exports: Path) -> list[tuple[str, str]]:
    with (exports.parent / "INDEX.tsv").open() as index:
        rows = list(csv.DictReader(index, delimiter="\t"))
    return [
        (r["path"].removeprefix("nsys/"), r["verified_facts"]) for r in rows if re.match(r"nsys/2.*sqlite$", r["path"])
    ]


def test_counts_and_totals_of_all_versions(exports: Path) -> None:
    """What was counted with plain SQL when the files were collected."""
    files = known_facts(exports)
    assert len(files) >= 14
    for file, facts in files:
        content = nsys.read(exports / file)
        kernels = table(content, "gpu_kernels")
        found = KERNELS.search(facts)
        if found:
            epoch = content.start_epoch_ns or 0
            first = min(row["start_ns"] for row in kernels) - epoch
            last = max(row["start_ns"] + row["duration_ns"] for row in kernels) - epoch
            total = sum(row["duration_ns"] for row in kernels)
            assert tuple(map(int, found.groups())) == (len(kernels), total, first, last), file
            summary = table(content, "gpu_kernel_summary")
            assert sum(row["total_ns"] for row in summary) == total, file
            counted = [len({row[column] for row in kernels}) for column in ("device", "stream")]
            devices, streams, top, count, top_ns = TOP.search(facts).groups()  # type: ignore[union-attr]
            assert counted == [int(devices), int(streams)], file
            assert summary[0]["name"].startswith(top), file
            assert (summary[0]["count"], summary[0]["total_ns"]) == (int(count), int(top_ns)), file
        else:
            assert kernels == [], file
        transfers = table(content, "gpu_transfers")
        for kind, count, total_ns, size in COPIES.findall(facts):
            ours = [row for row in transfers if kind in row["kind"]]
            figures_ = (len(ours), sum(r["duration_ns"] for r in ours), sum(r["bytes"] for r in ours))
            assert figures_ == (int(count), int(total_ns), int(size)), file
        ranges = NVTX.search(facts)
        assert len(table(content, "ranges")) == (int(ranges[1]) if ranges else 0), file
        calls = sum(row["count"] for row in table(content, "cuda_api_summary"))
        assert calls == int(dict(TABLE_ROWS.findall(facts)).get("CUPTI_ACTIVITY_KIND_RUNTIME", 0)), file


def test_all_versions_fit_the_canonical_schema(exports: Path) -> None:
    for path in sorted(exports.glob("2*.sqlite")):
        for part in nsys.read(path).tables:
            stored = tables.arrow(part.name, [part.with_capture("p1-nsys")])
            assert stored.num_rows == len(part) > 0, (path.name, part.name)


def test_files_of_2021_have_relative_times_and_no_version(exports: Path) -> None:
    content = nsys.read(exports / "2021.2.1_rtx6000_db_query.sqlite")
    assert (content.version, content.start_epoch_ns, content.gpus) == (None, None, ("Quadro RTX 6000",))
    kernels = next(t for t in content.tables if t.name == "gpu_kernels")
    assert kernels.clock == "relative"
    assert min(kernels.columns["start_ns"]) == 6294938980


def test_later_files_have_epoch_times(exports: Path) -> None:
    content = nsys.read(exports / "2024.6.2_a100_gpt_small.sqlite")
    kernels = next(t for t in content.tables if t.name == "gpu_kernels")
    assert (kernels.clock, kernels.clock_error_ns) == ("epoch", 10_000)
    assert kernels.columns["start_ns"][0] == 1765005418994234602 + 8897376854
    assert list(kernels.columns["start_ns"]) == sorted(kernels.columns["start_ns"])


def test_a_kernel_is_told_in_full(exports: Path) -> None:
    (kernel,) = table(nsys.read(exports / "2025.5.2_rtx3060_wsl_vecadd.sqlite"), "gpu_kernels")
    assert kernel["name"] == "kernVectorAdd(const float *, const float *, float *, int)"
    assert kernel["short_name"] == "kernVectorAdd"
    assert kernel["duration_ns"] == 38912
    assert re.fullmatch(r"\d+,\d+,\d+", kernel["grid"])
    assert kernel["registers"] > 0
    assert kernel["graph_id"] is None, "launched without a graph"


def test_hidden_work_and_failed_tracing_are_told(exports: Path) -> None:
    notes = nsys.read(exports / "2024.6.2_a100_cudagraph_compile.sqlite").notes
    assert any(note.startswith("10 launches of CUDA graphs") for note in notes)
    notes = nsys.read(exports / "2025.3.2_a5000_cuda_profiling_failed.sqlite").notes
    assert "nsys says: CUDA profiling might have not been started correctly. (27 times)" in notes
    assert nsys.read(exports / "2023.3.1_no_gpu_driver0.sqlite").notes[0].startswith("no GPU to trace")
    (note,) = nsys.read(exports / "2026.2.1_h100x2_fastvideo_slice.sqlite").notes
    assert re.fullmatch(r"kernels of several processes or GPUs: process \d+ \(python3\) device 0, process .* 1", note)


# ---------------------------------------------------------------- ranges, names, odd values


def test_ranges_have_their_domain_and_registered_text(osrt_nvtx: Path, golden: Path) -> None:
    rows = table(nsys.read(osrt_nvtx), "ranges")
    named = [(row["domain"], row["name"]) for row in rows]
    assert named == [("default", "step"), ("data", "load")] * 3 + [("default", "crossing"), ("default", "open")]
    assert len({(row["pid"], row["thread"]) for row in rows}) == 1
    printed = {
        line["Range"]: int(line["Total Time (ns)"])
        for line in read_csv((golden / "nsys" / "osrt_nvtx_nvtxsum.csv").read_text())
    }
    ours = {"step": 0, "data:load": 0, "crossing": 0, "open": 0}
    for row in rows:
        ours[row["name"] if row["domain"] == "default" else f"{row['domain']}:{row['name']}"] += row["duration_ns"]
    assert ours == printed


def make(path: Path, script: str) -> Path:
    db = sqlite3.connect(path)
    db.executescript(script)
    db.close()
    return path


STRINGS = "CREATE TABLE StringIds (id INTEGER, value TEXT); INSERT INTO StringIds VALUES (1, 'add');"


def test_a_range_that_never_ended_has_no_duration(tmp_path: Path) -> None:
    script = (
        STRINGS
        + "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, domainId INT);"
    )
    script += f"INSERT INTO NVTX_EVENTS VALUES (5, NULL, 59, 'open', {(1 << 48) + (77 << 24) + 78}, 3);"
    (row,) = table(nsys.read(make(tmp_path / "x.sqlite", script)), "ranges")
    assert row == {"start_ns": 5, "duration_ns": None, "pid": 77, "thread": 78, "domain": None, "name": "open"}


def test_one_kernel_and_nothing_else(tmp_path: Path) -> None:
    """D35: tables and columns that are not there are unknown; the rest is read."""
    script = STRINGS + "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, demangledName INT);"
    script += "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 30, 1);"
    content = nsys.read(make(tmp_path / "x.sqlite", script))
    (kernel,) = table(content, "gpu_kernels")
    known = {"start_ns": 10, "duration_ns": 20, "name": "add", "short_name": "(unnamed)"}
    assert {k: v for k, v in kernel.items() if v is not None} == known
    (row,) = table(content, "gpu_kernel_summary")
    assert (row["name"], row["count"], row["total_ns"], row["median_ns"], row["stddev_ns"]) == ("add", 1, 20, 20, 0)
    assert {t.name for t in content.tables} - {"gpu_utilization"} == {"gpu_kernels", "gpu_kernel_summary"}


def test_no_kernel_table_at_all(tmp_path: Path) -> None:
    content = nsys.read(make(tmp_path / "x.sqlite", STRINGS))
    assert content.tables == ()
    assert content.notes == ("no GPU to trace: the recording names no NVIDIA GPU",)


def test_empty_tables_count_as_absent(tmp_path: Path) -> None:
    script = STRINGS + "CREATE TABLE OSRT_API (start INT, end INT, nameId INT, eventClass INT);"
    script += "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, demangledName INT);"
    content = nsys.read(make(tmp_path / "x.sqlite", script))
    assert content.tables == ()
    assert content.notes, "an empty kernel table does not hide that there was no GPU"


def test_names_that_are_no_utf8_are_kept(tmp_path: Path) -> None:
    script = STRINGS + "INSERT INTO StringIds VALUES (2, CAST(x'6361ff66e9' AS TEXT));"
    script += "CREATE TABLE OSRT_API (start INT, end INT, nameId INT); INSERT INTO OSRT_API VALUES (1, 3, 2);"
    (row,) = table(nsys.read(make(tmp_path / "x.sqlite", script)), "os_calls_summary")
    assert row["name"] == "ca\ufffdf\ufffd"


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("cudaMalloc_v3020", "cudaMalloc"),
        ("cudaStreamIsCapturing_v10000", "cudaStreamIsCapturing_v10000"),
        ("cuInit", "cuInit"),
    ],
)
def test_api_versions_are_cut_as_nsys_does(tmp_path: Path, name: str, kept: str) -> None:
    script = STRINGS + f"INSERT INTO StringIds VALUES (2, '{name}');"
    script += "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, nameId INT);"
    script += "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 3, 2);"
    (row,) = table(nsys.read(make(tmp_path / "x.sqlite", script)), "cuda_api_summary")
    assert row["name"] == kept


@pytest.mark.parametrize(
    ("kind", "name"),
    [(1, "[CUDA memcpy Host-to-Device]"), (10, "[CUDA memcpy Peer-to-Peer]"), (0, "[CUDA memcpy Unknown]"),
     (7, "[CUDA memcpy Device-to-Array]"), (13, "[CUDA memcpy Unified Device-to-Device]"),
     (99, "[CUDA memcpy kind 99]"), (nsys_export.MEMSET, "[CUDA memset]")],
)  # fmt: skip
def test_transfer_names_since_2023(kind: int, name: str) -> None:
    assert nsys_export.transfer_name(kind, long=True) == name


@pytest.mark.parametrize(
    ("version", "name"),
    [("2023.2.3.1001", "[CUDA memcpy HtoD]"), ("2023.4.4.54", "[CUDA memcpy Host-to-Device]"),
     ("2026.1.1", "[CUDA memcpy Host-to-Device]"), ("odd", "[CUDA memcpy HtoD]")],
)  # fmt: skip
def test_transfers_are_named_as_the_exporting_version_does(tmp_path: Path, version: str, name: str) -> None:
    script = STRINGS + "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);"
    script += f"INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_PRODUCT_VERSION', '{version}');"
    script += "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, copyKind INT, bytes INT);"
    script += "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 3, 1, 8);"
    (row,) = table(nsys.read(make(tmp_path / "x.sqlite", script)), "gpu_transfers")
    assert row["kind"] == name


@pytest.mark.parametrize(
    ("kind", "name"),
    [(8, "[CUDA memcpy DtoD]"), (10, "[CUDA memcpy PtoP]"), (12, "[CUDA Unified Memory memcpy DtoH]"),
     (99, "[CUDA memcpy kind 99]"), (nsys_export.MEMSET, "[CUDA memset]")],
)  # fmt: skip
def test_transfer_names(kind: int, name: str) -> None:
    assert nsys_export.transfer_name(kind) == name


# ---------------------------------------------------------------- what can't be read


def test_another_tools_database_is_refused(exports: Path) -> None:
    with pytest.raises(ParseError, match="is a database, but no export of nsys"):
        nsys.read(exports / "not_nsys_dlprof_dldb.sqlite")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "missing"),
        (b"", "empty"),
        (b"no database " * 500, "no readable export"),
        (b"SQLite format 3\0", "no readable"),
    ],
)
def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "report.sqlite"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ParseError, match=said):
        nsys.read(path)


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.95])
def test_an_export_cut_within_its_schema_is_refused(osrt_nvtx: Path, tmp_path: Path, part: float) -> None:
    whole = osrt_nvtx.read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ParseError, match=r"cut\.sqlite is no readable export of nsys"):
        nsys.read(path)


def test_of_an_export_that_was_cut_off_the_rest_is_read(exports: Path, tmp_path: Path) -> None:
    whole = (exports / "2024.6.2_a100_gpt2.7b.sqlite").read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: len(whole) // 10 * 7])
    content = nsys.read(path)
    kernels = next(t for t in content.tables if t.name == "gpu_kernels")
    assert (len(kernels), sum(kernels.columns["duration_ns"]), kernels.dropped) == (7328, 3389068613, 0)
    calls = next(t for t in content.tables if t.name == "os_calls_summary")
    assert calls.dropped > 10_000
    # 35571 calls were recorded; how many the last page held can't be known
    assert 0 <= 35571 - int(sum(calls.columns["count"])) - calls.dropped < 100
    assert (
        content.notes[0] == f"the file is damaged; rows that could not be read, at least: {calls.dropped} of OSRT_API"
    )


def test_strings_behind_a_hole_are_read(exports: Path, tmp_path: Path) -> None:
    """A page of the table of names is gone; nearly all kernels keep theirs."""
    whole = (exports / "2024.6.2_a100_gpt_small.sqlite").read_bytes()
    hole = whole.index(b"cudaStreamSynchronize_v3020") // 4096 * 4096
    path = tmp_path / "hole.sqlite"
    path.write_bytes(whole[:hole] + bytes(4096) + whole[hole + 4096 :])
    content = nsys.read(path)
    assert "of StringIds" in content.notes[0]
    names = [row["name"] for row in table(content, "cuda_api_summary")]
    unknown = [name for name in names if re.fullmatch(r"\(string \d+\)", name)]
    assert 0 < len(unknown) < len(names)
    assert sum(row["count"] for row in table(content, "cuda_api_summary")) == 3988


CHANGES = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), max_size=20)


@settings(max_examples=80, deadline=None)
@given(changes=CHANGES, cut=st.one_of(st.just(0), st.integers(0, 2**20)))
def test_whatever_the_bytes_are(
    tmp_path_factory: pytest.TempPathFactory, small: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    broken = bytearray(small)
    for place, byte in changes:
        broken[place % len(broken)] = byte
    path = tmp_path_factory.mktemp("broken") / "x.sqlite"
    path.write_bytes(bytes(broken[: len(broken) - cut % len(broken)]))
    with contextlib.suppress(ParseError):
        for part in nsys.read(path).tables:
            assert tables.arrow(part.name, [part.with_capture("p1-nsys")]).num_rows == len(part)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A kernel, a copy, a call, a range and their names, each a few times."""
    script = STRINGS
    for kind, more in (
        ("KERNEL", "demangledName, shortName, gridX, gridY, gridZ, graphId"),
        ("MEMCPY", "copyKind, bytes, srcKind, dstKind, srcDeviceId, dstDeviceId"),
        ("RUNTIME", "nameId, globalTid, returnValue, x, y, z"),
    ):
        fields = f"start INT, end INT, deviceId INT, streamId INT, correlationId INT, globalPid INT, {more}"
        script += f"CREATE TABLE CUPTI_ACTIVITY_KIND_{kind} ({fields});"
        for i in range(30):
            script += f"INSERT INTO CUPTI_ACTIVITY_KIND_{kind} VALUES ({i * 9}, {i * 9 + 5}, 0, 7, {i}, {77 << 24}, "
            script += f"1, {i % 3}, 1, 2, 3, NULL);"
    script += "CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, domainId INT);"
    for i in range(30):
        script += f"INSERT INTO NVTX_EVENTS VALUES ({i}, {i + 50}, 59, 'step {i}', {77 << 24}, 0);"
    path = tmp_path_factory.mktemp("small") / "x.sqlite"
    return make(path, f"PRAGMA page_size = 1024; BEGIN; {script} COMMIT;").read_bytes()


def test_values_of_the_wrong_type_are_refused(tmp_path: Path) -> None:
    script = (
        STRINGS + "CREATE TABLE OSRT_API (start, end, nameId); INSERT INTO OSRT_API VALUES ('soon', 'later', x'00');"
    )
    with pytest.raises(ParseError, match="no readable export"):
        nsys.read(make(tmp_path / "x.sqlite", script))


def test_reading_leaves_the_file_and_its_folder_alone(osrt_nvtx: Path) -> None:
    osrt_nvtx.chmod(0o400)
    before = osrt_nvtx.read_bytes()
    nsys.read(osrt_nvtx)
    assert [p.name for p in osrt_nvtx.parent.iterdir()] == [osrt_nvtx.name]
    assert osrt_nvtx.read_bytes() == before


# ---------------------------------------------------------------- graphs, memory, GPUs


def test_graphs_that_were_traced_as_a_whole(exports: Path) -> None:
    """Their GPU time is a hundred thousand times that of the kernels beside them."""
    content = nsys.read(exports / "2024.6.2_a100_cudagraph_compile.sqlite")
    graphs = table(content, "gpu_graphs")
    assert sum(row["duration_ns"] for row in graphs) == 7811141695
    assert sum(row["duration_ns"] for row in table(content, "gpu_kernels")) == 78270
    assert {row["device"] for row in graphs} == {0}
    assert all(row["graph_id"] and row["graph_exec_id"] and row["pid"] for row in graphs)


def test_memory_that_transfers_read_and_write(exports: Path) -> None:
    content = nsys.read(exports / "2026.2.1_h100x2_fastvideo_slice.sqlite")
    moved = Counter((row["kind"], row["source"], row["target"]) for row in table(content, "gpu_transfers"))
    assert moved == {
        ("[CUDA memcpy Host-to-Device]", "pageable", "device"): 4,
        ("[CUDA memcpy Host-to-Device]", "pinned", "device"): 446,
        ("[CUDA memcpy Device-to-Host]", "device", "pinned"): 4,
        ("[CUDA memcpy Device-to-Device]", "device", "device"): 450,
        ("[CUDA memset]", None, "device"): 22,
    }
    slow = {row["name"]: row["pageable_count"] for row in table(content, "gpu_transfer_summary")}
    assert slow["[CUDA memcpy Host-to-Device]"] == 4
    assert sum(slow.values()) == 4


def test_peer_and_managed_copies(tmp_path: Path) -> None:
    script = STRINGS + "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, copyKind INT, "
    script += "bytes INT, srcKind INT, dstKind INT, srcDeviceId INT, dstDeviceId INT);"
    script += "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1, 4, 0, 10, 64, 2, 2, 0, 3), "
    script += "(5, 7, 3, 10, 32, 2, 2, 1, 3), (8, 9, 0, 11, 16, 4, 6, NULL, NULL), (10, 11, 0, 5, 8, 3, 7, NULL, NULL);"
    rows = table(nsys.read(make(tmp_path / "x.sqlite", script)), "gpu_transfers")
    assert [(row["kind"], row["source"], row["target"], row["peer_device"]) for row in rows] == [
        ("[CUDA memcpy PtoP]", "device", "device", 3),
        ("[CUDA memcpy PtoP]", "device", "device", 1),
        ("[CUDA Unified Memory memcpy HtoD]", "managed", "managed", None),
        ("[CUDA memcpy AtoA]", "array", None, None),
    ]


def test_the_three_summaries_alone_are_those_of_everything(exports: Path) -> None:
    path = exports / "2024.6.2_a100_gpt2.7b.sqlite"
    whole = nsys.read(path)
    for one in nsys.summaries(path):
        assert list(one.rows()) == table(whole, one.name) != []


def test_tables_of_others_are_left_alone(tmp_path: Path) -> None:
    script = STRINGS + "CREATE TABLE SystemInfo (a TEXT); INSERT INTO SystemInfo VALUES ('x');"
    script += "CREATE VIEW CUPTI_ACTIVITY_KIND_MEMSET AS SELECT 1 AS start, 3 AS end, 8 AS bytes;"
    script += "CREATE TABLE OSRT_API (start INT, end INT, nameId INT, 'odd \" name' BLOB);"
    script += "INSERT INTO OSRT_API VALUES (1, 3, 1, x'00');"
    content = nsys.read(make(tmp_path / "x.sqlite", script))
    assert [row["count"] for row in table(content, "os_calls_summary")] == [1]
    assert [row["bytes"] for row in table(content, "gpu_transfers")] == [8], "a view is read as well as a table"


@pytest.mark.parametrize("where", ["end IS NOT NULL", "nameId = 2", "nameId IN (2, 3) AND end IS NOT NULL", "1",
                                   "start BETWEEN 3 AND 9 AND nameId = 2", "start % 2 = 1"])  # fmt: skip
def test_conditions_mean_what_they_mean_in_sql(tmp_path: Path, where: str) -> None:
    script = STRINGS + "CREATE TABLE OSRT_API (start INT, end INT, nameId INT);"
    script += "".join(f"INSERT INTO OSRT_API VALUES ({i}, {i + 1 if i % 4 else 'NULL'}, {i % 5});" for i in range(20))
    with nsys_export.opened(make(tmp_path / "x.sqlite", script)) as export:
        found = export.ints("OSRT_API", "start", "nameId", where=where)
        expected = export.db.execute(f"SELECT start, nameId FROM OSRT_API WHERE {where}").fetchall()
        assert list(zip(*(column.tolist() for column in found), strict=True)) == expected
        assert 0 < len(expected) <= 20


def test_columns_that_readings_of_a_damaged_table_give_unlike_are_read_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = STRINGS + "CREATE TABLE T (a INT, b INT); INSERT INTO T VALUES (1, 10), (2, 20), (3, 30);"
    with nsys_export.opened(make(tmp_path / "x.sqlite", script)) as export:
        real = export._read

        def reaching_less(table: str, columns: Sequence[str]) -> Sequence[Any]:
            found = real(table, columns)
            return found if list(columns) == ["a"] else [column[:2].copy() for column in found]

        monkeypatch.setattr(export, "_read", reaching_less)
        assert [list(column) for column in export.ints("T", "a")] == [[1, 2, 3]]
        assert [list(column) for column in export.ints("T", "a", "b", where="a = 2")] == [[2], [20]]
        assert [list(column) for column in export.ints("T", "a", "b")] == [[1, 2], [10, 20]]
