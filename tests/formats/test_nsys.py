"""formats/nsys.py against real exports of nsys, old and new, and against what `nsys stats` prints of them."""

from __future__ import annotations

import csv
import io
import re
import sqlite3
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import pytest

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import nsys

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


def test_transfer_sizes_equal_gpumemsizesum(exports: Path) -> None:
    content = nsys.read(exports / "2021.2.1_rtx6000_db_query.sqlite")
    printed = read_csv((exports / "local2022.4.2_stats_db_gpumemsizesum.csv").read_text())
    ours = {
        row["name"]: (f"{row['bytes'] / 1e6:.3f}", str(row["count"])) for row in table(content, "gpu_transfer_summary")
    }
    assert ours == {line["Operation"]: (line["Total (MB)"], line["Count"]) for line in printed}


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


def test_transfers_equal_stats_of_2024_under_the_short_name(exports: Path) -> None:
    rows = table(nsys.read(exports / "2024.6.2_a100_gpt2.7b.sqlite"), "gpu_transfer_summary")
    printed = stats_text(exports / "2024.6.2_a100_gpt2.7b.stats.txt", "cuda_gpu_mem_time_sum")
    short = [{**line, "Operation": line["Operation"].replace("Host-to-Device", "HtoD")} for line in printed]
    equal_to_stats(rows, short, "Count", "Operation", exact)


# ---------------------------------------------------------------- every generation of the schema

KERNELS = re.compile(r"kernels=(\d+) sum_ns=(\d+) first=(\d+) last=(\d+)")
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
            assert sum(row["total_ns"] for row in table(content, "gpu_kernel_summary")) == total, file
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
    assert nsys.read(exports / "2026.2.1_h100x2_fastvideo_slice.sqlite").notes == ()


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
    assert {t.name for t in content.tables} == {"gpu_kernels", "gpu_kernel_summary"}


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
    [(8, "[CUDA memcpy DtoD]"), (10, "[CUDA memcpy PtoP]"), (12, "[CUDA Unified Memory memcpy DtoH]"),
     (99, "[CUDA memcpy kind 99]"), (nsys.MEMSET, "[CUDA memset]")],
)  # fmt: skip
def test_transfer_names(kind: int, name: str) -> None:
    assert nsys.transfer_name(kind) == name


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
def test_truncated_exports_are_refused(osrt_nvtx: Path, tmp_path: Path, part: float) -> None:
    whole = osrt_nvtx.read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(ParseError, match=r"cut\.sqlite is no readable export of nsys"):
        nsys.read(path)


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
