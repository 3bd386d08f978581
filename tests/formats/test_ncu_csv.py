"""formats/ncu_csv.py: real output of `ncu --csv`, the same report by both ways, and what may lie around a table."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncu_pages import compare, values

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import ncu, ncu_csv
from orchestrator.formats.ncu_csv import base_unit, value_of

HEAD = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size"'
DETAILS = f'{HEAD},"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type"'
DETAILS += ',"Rule Description","Estimated Speedup Type","Estimated Speedup"\n'


def start(number: int, pid: int = 7) -> str:
    return f'"{number}","{pid}","p","127.0.0.1","void k<int>(float *, int)","1","7","(256, 1, 1)","(16, 2, 1)"'


def metric(number: int, name: str, unit: str, value: str, section: str = "S") -> str:
    return f'{start(number)},"0","9.0","{section}","{name}","{unit}","{value}",\n'


def rule(number: int, words: str) -> str:
    return f'{start(number)},"0","9.0","SpeedOfLight","","","",{words}\n'


def read(path: Path, text: str | bytes) -> ncu.Content:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return ncu.read(path)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    return tmp_path / "page.csv"


# ---------------------------------------------------------------- units and numbers


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [
        ("", 1, None), ("%", 1, "%"), ("cycle", 1, "cycle"), ("register/thread", 1, "register/thread"),
        ("ns", 1, "ns"), ("nsecond", 1, "ns"), ("us", 1e3, "ns"), ("usecond", 1e3, "ns"),
        ("ms", 1e6, "ns"), ("msecond", 1e6, "ns"), ("s", 1e9, "ns"), ("second", 1e9, "ns"),
        ("byte", 1, "byte"), ("Kbyte", 1e3, "byte"), ("Mbyte", 1e6, "byte"), ("Gbyte", 1e9, "byte"),
        ("Tbyte/s", 1e12, "byte/s"), ("Gbyte/second", 1e9, "byte/s"), ("Kbyte/block", 1e3, "byte/block"),
        ("Ghz", 1e9, "hz"), ("cycle/second", 1, "hz"), ("cycle/nsecond", 1e9, "hz"), ("cycle/usecond", 1e6, "hz"),
        ("sector/ms", 1e3, "sector/s"), ("sector/ns", 1e9, "sector/s"), ("%/Kbyte", 1e-3, "%/byte"),
        ("Kbyte/sector", 1e3, "byte/sector"), ("inst/cycle", 1, "inst/cycle"),
    ],
)  # fmt: skip
def test_units_have_their_base(unit: str, factor: float, base: str | None) -> None:
    found, name = base_unit(unit)
    assert (found, name) == (pytest.approx(factor), base)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0.0), ("12.50", 12.5), ("1,205.00", 1205.0), ("1,234,567", 1234567.0), ("-3", -3.0), ("1.5e+06", 1.5e6),
        ("2338 (8; 8; 16)", 2338.0), ("n/a", None), ("no data", None), ("nan", None), ("inf", None), ("9" * 400, None),
    ],
)  # fmt: skip
def test_numbers(text: str, value: float | None) -> None:
    assert value_of(text, "byte") == (value, "byte")


@pytest.mark.parametrize("text", ["CachePreferNone", "1,23", "12 (", "", "1_000", "0x10", "1.2.3", "12,345,6"])
def test_text_is_no_number(text: str) -> None:
    assert value_of(text, "") is None


# ---------------------------------------------------------------- case D11


def test_d11_chatter_warnings_and_units_by_block_and_row(page: Path) -> None:
    """Two raw tables, one in usecond and one in msecond, after a program's line that looks like a header."""
    raw = f'{HEAD},"gpu__time_duration.sum"\n'
    text = (
        '"ID","x"\n'
        "==PROF== Connected to process 7 (/bin/p)\n"
        "==WARNING== Failed to put section files under HOME\n"
        f'{raw}"","","","","","","","","","usecond"\n{start(0)},"1,234.50"\n'
        "loss 0.25\n"
        f'{raw}"","","","","","","","","","msecond"\n{start(1)},"1,234.50"\n'
        "==PROF== Disconnected from process 7\n"
    )
    content = read(page, text)
    assert values(content) == {
        (0, "gpu__time_duration.sum"): (1_234_500.0, "ns"),
        (1, "gpu__time_duration.sum"): (1_234_500_000.0, "ns"),
    }
    assert content.notes == (
        "ncu says: ==WARNING== Failed to put section files under HOME",
        "lines of page.csv that are not ncu's (the program's output): 2",
    )
    first = next(iter(content.tables[0].rows()))
    assert (first["duration_ns"], first["pid"], first["grid"], first["block"]) == (1_234_500.0, 7, "16,2,1", "256,1,1")


def test_d11_units_by_row(page: Path) -> None:
    content = read(
        page,
        DETAILS + metric(0, "Duration", "usecond", "1,234.50") + metric(1, "Duration", "msecond", "1,234.50"),
    )
    assert list(values(content).values()) == [(1_234_500.0, "ns"), (1_234_500_000.0, "ns")]


@pytest.mark.parametrize(
    "line",
    ["1,2,3\n", '"5","hello"\n', '0,"a",b\n', '"0","7"x\n', ",,,\n", '"Multi" took 3 ms\n', '"', '"ID","Process ID"\n'],
)
def test_a_programs_output_is_never_a_metric(page: Path, line: str) -> None:
    alone = read(page, DETAILS + metric(0, "a", "", "1") + metric(0, "b", "", "2"))
    mixed = read(page, line + DETAILS + metric(0, "a", "", "1") + line.rstrip("\n") + "\n" + metric(0, "b", "", "2"))
    assert values(mixed) == values(alone) == {(0, "a"): (1.0, None), (0, "b"): (2.0, None)}
    assert mixed.notes, "what was passed over is counted"


# ---------------------------------------------------------------- rows


def test_rules_stand_in_rows_without_a_metric(page: Path) -> None:
    text = (
        DETAILS
        + metric(0, "Memory Throughput", "%", "12.5", "GPU Speed Of Light Throughput")
        + metric(0, "Memory Throughput", "Gbyte/s", "3", "Memory Workload Analysis")
        + rule(0, '"SOLBottleneck","OPT","It is slow.","global","25.50"')
        + rule(0, '"CPIStall","INF","first line, (see the "Local Memory" section),\nsecond line","",""')
        + rule(0, '"Broken","ERR","no metric"').replace("\n", ',"",""\n')
        + metric(1, "Warps", "n/a", "n/a")
    )
    content = read(page, text)
    assert content.notes == ()
    assert values(content) == {
        (0, "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"): (12.5, "%"),
        (0, "dram__bytes.sum.per_second"): (3e9, "byte/s"),
        (1, "Warps"): (None, "n/a"),
    }
    found = [tuple(r.values())[3:] for r in content.tables[2].rows()]
    assert found == [
        ("SpeedOfLight", "SOLBottleneck", "optimization", "It is slow.", 25.5, "global"),
        (
            "SpeedOfLight", "CPIStall", "ok", 'first line, (see the "Local Memory" section),\nsecond line', None, None,
        ),
        ("SpeedOfLight", "Broken", "error", "no metric", None, None),
    ]  # fmt: skip


def test_damaged_rows_are_counted(page: Path) -> None:
    good = metric(0, "a", "", "1")
    text = DETAILS + good + start(1) + '\n"2","7","p\n' + metric(3, "a", "", "2") + good[:60]
    content = read(page, text)
    assert [r["launch"] for r in content.tables[0].rows()] == [0, 3]
    assert content.tables[1].dropped == 3
    assert content.notes == ("damaged rows of page.csv that are left out: 3",)


def test_a_gzipped_page_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    text = DETAILS + "".join(metric(n, f"m{n * 7919 % 1000}", "", str(n)) for n in range(3000))
    packed = gzip.compress(text.encode())
    content = read(tmp_path / "p.csv.gz", packed[: len(packed) // 2])
    assert 500 < len(content.tables[0]) < 3000
    assert "p.csv.gz is cut off or damaged" in content.notes[0]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_what_windows_made_of_it(page: Path, encoding: str) -> None:
    text = (DETAILS + metric(0, "a", "", "1")).replace("\n", "\r\n")
    assert values(read(page, text.encode(encoding))) == {(0, "a"): (1.0, None)}


def test_a_launch_of_endless_rows_is_bounded(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu_csv, "LONGEST_LAUNCH", 10_000)
    content = read(page, DETAILS + "".join(metric(0, f"m{n}", "", "1") for n in range(1000)))
    assert len(content.tables[1]) + content.tables[1].dropped == 1000
    assert 50 < len(content.tables[1]) < 150


def test_a_file_of_endless_launches_is_bounded(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "MOST_BYTES", 10_000)
    content = read(page, DETAILS + "".join(metric(n, "m", "", "1") for n in range(1000)))
    assert 30 < len(content.tables[0]) < 60
    assert "holds more than is kept" in content.notes[0]


# ---------------------------------------------------------------- files without data


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no CSV of ncu"),
        ("a,b\n1,2\n", "is no CSV of ncu"),
        (DETAILS, "has the header of ncu's CSV and no launch"),
        (f'{HEAD},"m"\n"","","","","","","","","","byte"\n', "has the header of ncu's CSV and no launch"),
        ("==PROF== Connected to process 1 (/x)\n", "it saw no kernel, or ended before"),
        ("hi\n==ERROR== The application returned an error code (1).\n", r"ncu says: The application returned an error"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user has no permission\n", "ERR_NVGPUCTRPERM"),
        (
            '"Process ID","Kernel Name","Metric Name","Metric Unit","Minimum","Maximum","Average"\n',
            "is a summary of ncu",
        ),
        ('"Kernel Name","k"\n"Address","Source","Samples"\n', "is a source page of ncu"),
        ("  k (1, 1, 1)\n    Section: GPU Speed Of Light\n", "is ncu's text for the console"),
    ],
)
def test_a_file_without_data_says_why(page: Path, text: str, why: str) -> None:
    with pytest.raises(ParseError, match=rf"page\.csv .*{why}"):
        read(page, text)


@pytest.mark.parametrize("kept", [2, 10, 200])
def test_a_broken_gzip_without_data_is_refused(page: Path, kept: int) -> None:
    with pytest.raises(
        ParseError, match=r"page\.csv (is no CSV of ncu.*|has the header .* no launch); page\.csv is cut off"
    ):
        read(page, gzip.compress(DETAILS.encode())[:kept] + b"\xff" * 8)


# ---------------------------------------------------------------- the same report by both ways


@pytest.mark.parametrize(
    ("page", "numbers"),
    [
        ("local2022.3_raw_gtx1660s.csv", 1321),
        ("local2022.3_raw_base_units_gtx1660s.csv", 1321),
        ("local2022.3_details_gtx1660s.csv", 56),
    ],
)
def test_a_page_has_the_values_of_its_report(shared: Path, page: str, numbers: int) -> None:
    pytest.importorskip("ncu_report")
    folder = shared / "data" / "ncu"
    assert compare(folder / page, folder / "2021.1.0_gtx1660s_grid1_nvtx.ncu-rep") == numbers


def test_a_page_has_the_rules_and_profiles_of_its_report(shared: Path) -> None:
    pytest.importorskip("ncu_report")
    folder = shared / "data" / "ncu"
    report = ncu.read(folder / "2021.1.0_gtx1660s_grid1_nvtx.ncu-rep")
    details = ncu.read(folder / "local2022.3_details_gtx1660s.csv")

    def told(content: ncu.Content) -> list[Any]:
        return sorted((r["launch"], r["section"], r["rule"], r["kind"], r["message"]) for r in content.tables[2].rows())

    assert told(details) == told(report)
    for name in ("local2022.3_raw_gtx1660s.csv", "local2022.3_details_gtx1660s.csv"):
        pairs = zip(ncu.read(folder / name).tables[0].rows(), report.tables[0].rows(), strict=True)
        for ours, theirs in pairs:
            known = {k: v for k, v in ours.items() if v is not None and k != "pid"}
            assert len(known) >= 2
            assert known == {
                k: pytest.approx(theirs[k], rel=6e-3, abs=6e-3) if isinstance(theirs[k], float) else theirs[k]
                for k in known
            }


# ---------------------------------------------------------------- any bytes

CELLS = st.sampled_from(
    ["", "0", "1", "7", "n/a", "12.5", "1,234", "Duration", "us", "(1, 1, 1)", 'a "b" c', "\n", '"']
)
LINES = st.one_of(
    st.sampled_from(
        [DETAILS, f'{HEAD},"m"\n', "==PROF== x\n", "==ERROR== {0} {\n", metric(0, "a", "us", "1"), '"0","7","\n']
    ),
    st.lists(CELLS, min_size=1, max_size=22).map(lambda cells: ",".join(f'"{cell}"' for cell in cells) + "\n"),
    st.text(max_size=40),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(lines=st.lists(LINES, max_size=12), noise=st.binary(max_size=20), packed=st.booleans())
def test_any_text_gives_tables_or_a_reason(page: Path, lines: list[str], noise: bytes, packed: bool) -> None:
    data = "".join(lines).encode("utf-8", "replace")
    page.write_bytes((gzip.compress(data) if packed else data) + noise)
    try:
        content = ncu.read(page)
    except ParseError as error:
        assert str(error).startswith("page.csv ")
        return
    for table in content.tables:
        tables.arrow(table.name, [table.with_capture("x")])
