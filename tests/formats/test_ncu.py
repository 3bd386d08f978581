"""formats/ncu.py against every real file of Nsight Compute 2021 to 2026, and against damaged ones."""

from __future__ import annotations

import ast
import csv
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import ncu, ncu_rep
from orchestrator.formats.ncu_launch import readable
from orchestrator.tables import Table

DURATION = "gpu__time_duration.sum"

REFUSED = {
    "csv_prelude_only_no_table.csv": "holds messages of ncu and no table: it saw no kernel, or ended before",
    "local2022.3_refused_2025.1.txt": r"ncu says: Failed to load report file '2025\.1\.0_gh200_pytorch_10k\.ncu-rep'",
    "log_a10g_single_kernel_wrong_result.txt": "is ncu's text for the console",
    "log_a10g_summary1024.txt": "is ncu's text for the console",
    "log_err_nvgpuctrperm.txt": r"not allowed to read the GPU's counters \(ERR_NVGPUCTRPERM\)",
    "log_pytorch_2025.1_gh200.txt": "is ncu's text for the console",
}
"""The files that hold no data to be read, and why."""


@pytest.fixture
def folder(shared: Path) -> Path:
    pytest.importorskip("ncu_report")
    return shared / "data" / "ncu"


def read(path: Path) -> dict[str, Table]:
    return {table.name: table for table in ncu.read(path).tables}


def rows(path: Path, name: str) -> list[dict[str, Any]]:
    return list(read(path)[name].rows())


def index(shared: Path) -> dict[str, str]:
    """What was counted when the files were collected, by file."""
    with (shared / "data" / "INDEX.tsv").open() as file:
        every = csv.DictReader(file, delimiter="\t")
        return {r["path"].removeprefix("ncu/"): r["verified_facts"] for r in every if r["path"].startswith("ncu/")}


def fact(facts: str, name: str) -> Any:
    """A number, or a list, as Python writes it."""
    found = re.search(rf"\b{re.escape(name)}=(\[.*?\](?= \w+[=/]|$)|\(.*?\)|\d+)", facts)
    assert found, f"{name} in {facts}"
    return ast.literal_eval(found[1])


# ---------------------------------------------------------------- every file


def test_every_file_is_read_or_refused_with_its_reason(shared: Path, folder: Path) -> None:
    files = index(shared)
    assert len(files) == 28
    assert set(files) == {path.name for path in folder.iterdir()}
    for file, facts in files.items():
        if file in REFUSED:
            with pytest.raises(ParseError, match=rf"{re.escape(file)} .*{REFUSED[file]}"):
                ncu.read(folder / file)
            continue
        content = ncu.read(folder / file)
        assert content.notes == (), file
        for table in content.tables:
            assert table.dropped == 0, file
            assert tables.arrow(table.name, [table.with_capture("p1-ncu")]).num_rows == len(table), file
        parts = {table.name: table for table in content.tables}
        (check_report if file.endswith(".ncu-rep") else check_csv)(parts, facts, file)


def check_report(parts: dict[str, Table], facts: str, file: str) -> None:
    profiles = list(parts["kernel_profiles"].rows())
    durations = [row["duration_ns"] for row in profiles]
    asked = [row for row in parts["kernel_metrics"].rows() if row["metric"] == DURATION]
    assert len(profiles) == fact(facts, "results"), file
    assert [row["launch"] for row in profiles] == list(range(len(profiles)))
    assert sum(d for d in durations if d is not None) == fact(facts, "duration_ns_sum"), file
    assert [row["value"] for row in asked].count(None) == fact(facts, "nan_durations"), file
    assert len(profiles) - len(asked) == fact(facts, "missing_durations"), file
    names = [row["short_name"] for row in profiles]
    for name, count in fact(facts, "names"):
        assert names.count(name) == count, file
    for name, total in fact(facts, "top"):
        assert sum(d or 0 for n, d in zip(names, durations, strict=True) if n == name) == total, file
    rules = [row["rule"] for row in parts["kernel_rules"].rows()]
    assert len(rules) == fact(facts, "rules"), file
    by_rule = ast.literal_eval(re.search(r"rules=\d+ (\{.*?\})", facts)[1])  # type: ignore[index]
    assert {name: rules.count(name) for name in by_rule} == by_rule, file
    low, high = map(float, re.search(r"grid_min/max=\((.*?), (.*?)\)", facts).groups())  # type: ignore[union-attr]
    blocks = [row["blocks"] for row in profiles if row["blocks"] is not None]
    assert (min(blocks), max(blocks)) == (low, high), file


def check_csv(parts: dict[str, Table], facts: str, file: str) -> None:
    units = "raw" in file  # the count of rows, launches and kernels took the row of units along
    profiles = list(parts["kernel_profiles"].rows())
    assert len(profiles) == fact(facts, "ids") - units, file
    assert len({row["kernel"] for row in profiles}) == fact(facts, "kernels") - units, file
    if units:
        assert len(profiles) == fact(facts, "rows") - units, file
    else:
        assert len(parts["kernel_metrics"]) + len(parts["kernel_rules"]) + unkept(file) == fact(facts, "rows"), file


def unkept(file: str) -> int:
    """Rows that give no row of a table: text (3 for each of 30 launches), and what stands in two sections (2)."""
    return {"csv_details_h200_sglang_decode.csv.gz": 150, "csv_details_rtx5090_gemv.csv": 2}.get(file, 0) + (
        2 if file == "csv_metrics_rtx5090_gemv.csv" else 0
    )


# ---------------------------------------------------------------- reports in detail


def test_one_launch_in_full(folder: Path) -> None:
    parts = read(folder / "2022.3.0_rtx3070_vecadd.ncu-rep")
    (duration,) = [row for row in parts["kernel_metrics"].rows() if row["metric"] == DURATION]
    assert (duration["launch"], duration["grid"], duration["block"]) == (0, "196,1,1", "256,1,1")
    assert (duration["kernel"], duration["value"], duration["unit"]) == ("VecAdd_kernel", 3232.0, "ns")
    assert [(r["section"], r["rule"], r["kind"]) for r in parts["kernel_rules"].rows()] == [
        ("Occupancy", "Occupancy", "warning"),
        ("SpeedOfLight", "SOLBottleneck", "warning"),
    ]


def test_advice_has_its_gain(folder: Path) -> None:
    rules = rows(folder / "2025.1.0_gh200_triton_silu_v6.ncu-rep", "kernel_rules")
    (occupancy,) = [r for r in rules if r["rule"] == "AchievedOccupancy" and r["launch"] == 1]
    assert occupancy["kind"] == "optimization"
    assert occupancy["speedup_pct"] == pytest.approx(25.738063425591236)
    assert occupancy["speedup_scope"] == "local"
    assert occupancy["message"].startswith("The difference between calculated theoretical (100.0%)")
    (bottleneck,) = [r for r in rules if r["rule"] == "SOLBottleneck" and r["launch"] == 1]
    assert (bottleneck["kind"], bottleneck["speedup_pct"]) == ("ok", None)
    assert bottleneck["message"].startswith("High Throughput: This workload")
    assert bottleneck["message"].endswith("in the Memory Workload Analysis section.")


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("see @url:the guide:https://docs.nvidia.com/a#b@.", "see the guide (https://docs.nvidia.com/a#b)."),
        ("@section:LaunchStats:Launch Statistics@ has it", "Launch Statistics has it"),
        ("at @source:/a/b.cu:12:line 12@ and @sass:0x7f10:there@", "at line 12 and there"),
        ("me@home", "me@home"),
        ("", None),
    ],
)
def test_links_of_messages_are_text(message: str, shown: str | None) -> None:
    assert readable(message) == shown


def test_a_failed_launch_is_unknown_not_zero(folder: Path) -> None:
    parts = read(folder / "2023.1.1_a10g_nan_failed_launch.ncu-rep")
    failed = [row for row in parts["kernel_metrics"].rows() if row["launch"] == 3]
    assert {row["grid"] for row in failed} == {None}
    assert next(row["value"] for row in failed if row["metric"] == DURATION) is None
    assert 0.0 not in {row["value"] for row in failed if row["metric"].startswith("sm__")}
    assert {r["kind"] for r in parts["kernel_rules"].rows() if r["launch"] == 3} == {"error"}
    profile = list(parts["kernel_profiles"].rows())[3]
    known = {name for name, value in profile.items() if value is not None}
    assert known == {"launch", "kernel", "short_name", "gpu", "sms"}


def test_text_is_no_metric(folder: Path) -> None:
    metrics = rows(folder / "2025.1.0_gh200_triton_silu_v6.ncu-rep", "kernel_metrics")
    names = {row["metric"] for row in metrics}
    assert "launch__registers_per_thread" in names
    assert "device__attribute_display_name" not in names


# ---------------------------------------------------------------- damaged reports


@pytest.mark.parametrize("kept", [0, 8, 20_000])
def test_reports_cut_before_their_first_launch_are_refused(folder: Path, tmp_path: Path, kept: int) -> None:
    path = tmp_path / "cut.ncu-rep"
    path.write_bytes((folder / "2022.3.0_rtx3070_vecadd.ncu-rep").read_bytes()[:kept])
    with pytest.raises(ParseError, match=r"cut\.ncu-rep is no report of ncu, or a damaged one"):
        ncu.read(path)


@pytest.mark.parametrize(("percent", "launches", "place"), [(99, 9, 2_841_141), (90, 9, 333_217), (10, 6, 277_363)])
def test_reports_that_are_cut_off_are_read_up_to_there(
    folder: Path, tmp_path: Path, percent: int, launches: int, place: int
) -> None:
    """NVIDIA's reader alone finds nothing in one that ends within the code of a kernel, as this one at 90 %."""
    whole = folder / "2023.1.1_a10g_11kernels.ncu-rep"
    path = tmp_path / "cut.ncu-rep"
    data = whole.read_bytes()
    path.write_bytes(data[: len(data) * percent // 100])
    content = ncu.read(path)
    assert content.notes == (f"cut.ncu-rep is cut off or damaged from byte {place} on: what follows is lost",)
    for part in content.tables:
        kept = [row for row in rows(whole, part.name) if row["launch"] < launches]
        assert list(part.rows()) == kept


def test_a_damaged_launch_is_left_out_and_counted(folder: Path, tmp_path: Path) -> None:
    whole = folder / "2023.1.1_a10g_11kernels.ncu-rep"
    data = bytearray(whole.read_bytes())
    data[2_880_113 - 9000 : 2_880_113 - 8000] = b"\xff" * 1000
    path = tmp_path / "hurt.ncu-rep"
    path.write_bytes(data)
    content = ncu.read(path)
    assert content.notes == ("damaged launches of hurt.ncu-rep that are left out: 1",)
    assert (len(content.tables[0]), content.tables[0].dropped) == (10, 1)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"gone\.ncu-rep can't be read: No such file"):
        ncu.read(tmp_path / "gone.ncu-rep")


def test_without_the_package_the_step_to_take_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ncu_report", None)
    (tmp_path / "report.ncu-rep").write_bytes(b"NVR\0")
    with pytest.raises(ParseError, match="-m pip install ncu-report"):
        ncu.read(tmp_path / "report.ncu-rep")


READER = """
import os, sys, time
class Action:
    NameBase_DEMANGLED, NameBase_FUNCTION = 1, 0
    def __init__(self, number): self.number = number
    def name(self, base=0):
        if self.number == 1: {deed}
        return "k"
    def metric_names(self): return ()
    def rule_results(self): return ()
class Range:
    def num_actions(self): return {launches}
    def action_by_idx(self, i): return Action(i + {first})
class Report:
    def num_ranges(self): return 1
    def range_by_idx(self, i): return Range()
def load_report(path):
    print("chatter of the package", flush=True)
    os.write(1, b"and of its library")
    return Report()
"""


def read_with(folder: Path, monkeypatch: pytest.MonkeyPatch, deed: str, *, first: int) -> ncu.Content:
    """Reads a report through a package that misbehaves at one launch: the second, or the only one."""
    (folder / "ncu_report").mkdir()
    (folder / "ncu_report/__init__.py").write_text(READER.format(deed=deed, launches=2 - first, first=first))
    monkeypatch.delitem(sys.modules, "ncu_report", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    (folder / "x.ncu-rep").write_bytes(b"NVR\0")
    return ncu.read(folder / "x.ncu-rep")


DEEDS = [
    ("os.abort()", "is a damaged report of ncu: NVIDIA's reader was killed by SIGABRT"),
    ("os.kill(os.getpid(), 11)", "is a damaged report of ncu: NVIDIA's reader was killed by SIGSEGV"),
    ("os._exit(3)", r"is a damaged report of ncu: NVIDIA's reader ended early \(.*library\)"),
    ("time.sleep(600)", "can't be read: NVIDIA's reader: no answer in 1 s"),
]


@pytest.mark.parametrize(("deed", "said"), DEEDS)
def test_the_death_of_the_reader_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, said: str
) -> None:
    if "sleep" in deed:
        monkeypatch.setattr(ncu_rep, "_TIME_S", 1.0)
    with pytest.raises(ParseError, match=said):
        read_with(tmp_path, monkeypatch, deed, first=1)


@pytest.mark.parametrize(("deed", "said"), DEEDS[:2])
def test_what_it_told_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deed: str, said: str) -> None:
    content = read_with(tmp_path, monkeypatch, deed, first=0)
    assert [row["kernel"] for row in content.tables[0].rows()] == ["k"]
    (note,) = content.notes
    assert note.startswith("launches that could be read: 1; x.ncu-rep ")
    assert re.search(said, note)


def test_its_memory_is_limited_and_what_it_prints_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = read_with(tmp_path, monkeypatch, "bytearray(2 << 30)", first=0)
    assert content.notes == ("damaged launches of x.ncu-rep that are left out: 1",)
    assert len(content.tables[0]) == 1


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    file=st.sampled_from(["2022.3.0_rtx3070_vecadd.ncu-rep", "2025.2.1_rtx5060ti_2kernels.ncu-rep"]),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=40)), min_size=1, max_size=20),
)
def test_damaged_reports_give_tables_or_a_reason(
    folder: Path, tmp_path: Path, file: str, changes: list[tuple[float, bytes]]
) -> None:
    data = bytearray((folder / file).read_bytes())
    for where, what in changes:
        place = int(where * len(data))
        data[place : place + len(what)] = what
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        for table in ncu.read(path).tables:
            tables.arrow(table.name, [table.with_capture("x")])
    except ParseError as error:
        assert str(error).startswith("x.ncu-rep ") and "no answer" not in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
