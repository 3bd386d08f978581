"""profrun as a library: `load_report`, the notebook of the README, and reports that it can't read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest
import sample_report
from conftest import REPO

import orchestrator
from orchestrator import folder, load_report, tables
from orchestrator.errors import ReportError, UsageError
from orchestrator.model import Headline
from orchestrator.report import Report, json_schema, summary


@pytest.fixture
def saved(tmp_path: Path) -> Report:
    place = tmp_path / "run"
    place.mkdir()
    headline = Headline("It waits for the disk.", "none", "high", ("p10-strace",))
    report = replace(sample_report.build(place), findings=(sample_report.finding(),), headline=headline)
    save(place, summary(report))
    return report


def save(place: Path, data: Any) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    (place / "summary.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return place


# ---------------------------------------------------------------- what a notebook sees


def notebook() -> str:
    """The example of the README."""
    (block,) = re.findall(
        r"```python\n(from orchestrator import load_report\n.*?)```", (REPO / "README.md").read_text(), re.S
    )
    return str(block)


def test_the_notebook_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(REPO)
    names: dict[str, Any] = {}
    exec(compile(notebook(), "README.md", "exec"), names)
    assert re.search(r"^0\.\d{4} s, 0\.\d{4} to 0\.\d{4}$", capsys.readouterr().out, re.M)
    assert names["functions"].attrs["columns"]["self_pct"]["unit"] == "%"
    assert len(names["steps"]) > 100
    assert {"severity", "title", "cost_pct", "advice"} <= set(names["report"].findings_frame().columns)


def test_a_report_is_read_from_wherever_it_lies(saved: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (saved.folder, str(saved.folder), "run", "./run", "run/", "run/summary.json"):
        loaded = load_report(name)
        assert (loaded.findings, loaded.headline, loaded.metrics) == (saved.findings, saved.headline, saved.metrics)
        assert len(loaded.table("steps")) == saved.tables["steps"].rows
    assert repr(load_report("run")).startswith("<Report cpu-quick-20260921T101320Z-kdmw: ok, 1 findings,")


def test_tables_tell_their_units_and_meanings(saved: Report) -> None:
    frame = load_report(saved.folder).table("steps")
    assert isinstance(frame, pd.DataFrame)
    assert frame.attrs["row"] == "a step of the program"
    assert frame.attrs["columns"]["duration_ns"]["unit"] == "ns"
    assert all(frame.attrs["columns"][name]["meaning"] for name in frame.columns)
    assert frame["data_wait_ns"].isna().all()


def test_what_is_done_to_a_table_stays_with_whoever_did_it(saved: Report) -> None:
    report = load_report(saved.folder)
    mine = report.table("runs")
    mine["mine"] = 1
    assert "mine" not in report.table("runs").columns


def test_a_table_that_was_written_anew_is_read_anew(saved: Report) -> None:
    before = load_report(saved.folder).table("runs")
    sample_report.write(saved.folder, tables.Table("runs", {"capture": ["x"], "wall_s": [1.0]}))
    after = load_report(saved.folder).table("runs")
    assert (len(before), list(after["capture"])) == (saved.tables["runs"].rows, ["x"])


def test_the_contents_are_told(saved: Report) -> None:
    frame = load_report(saved.folder).contents()
    assert list(frame.columns) == ["name", "rows", "row_is"]
    assert dict(zip(frame["name"], frame["rows"], strict=True)) == {n: i.rows for n, i in saved.tables.items()}
    assert all(frame["row_is"])


def test_every_table_says_what_a_row_of_it_is() -> None:
    assert set(tables.ROW_IS) == set(tables.SCHEMAS)


def test_findings_are_a_frame(saved: Report) -> None:
    (row,) = load_report(saved.folder).findings_frame().to_dict("records")
    told = (row["severity"], row["cost_pct"], row["where_file"], row["where_line"])
    assert told == ("major", 40.8, "train_cnn.py", 88)
    none = replace(saved, findings=()).findings_frame()
    assert len(none) == 0 and "severity" in none.columns


def test_a_table_that_was_not_filled_is_none_and_a_wrong_name_an_error(saved: Report) -> None:
    report = load_report(saved.folder)
    assert report.table("collectives") is None
    with pytest.raises(KeyError, match="'fuctions'; did you mean 'functions'"):
        report.table("fuctions")


def test_the_library_is_typed_and_loaded_only_when_asked_for() -> None:
    assert (Path(orchestrator.__file__).parent / "py.typed").exists()
    code = (
        "import sys, orchestrator; print('json' in sys.modules); orchestrator.load_report; print('json' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        orchestrator.nonsense  # type: ignore[attr-defined]  # noqa: B018


# ---------------------------------------------------------------- older, newer, broken ones


def test_an_older_summary_is_read(saved: Report) -> None:
    """Without what came later: headline, abstentions, causes of findings, parts of steps, trust in steps."""
    data = json.loads((saved.folder / "summary.json").read_text())
    for name in ("headline", "abstentions"):
        del data[name]
    for finding in data["findings"]:
        del finding["cause"], finding["healthy"]
    for step in data["environment"]:
        del step["parts"]
    for record in data["passes"]:
        record.pop("step_slowdown", None)
        record.pop("step_slowdown_ci95", None)
    save(saved.folder, data)
    report = load_report(saved.folder)
    assert (report.headline, report.abstentions) == (None, ())
    assert report.findings == saved.findings
    jsonschema.validate(json.loads(json.dumps(summary(report), default=str)), json_schema())


@pytest.mark.parametrize(
    ("data", "what", "why", "then"),
    [
        (None, "holds no report", "no summary.json in it", "name a report folder"),
        ("{", "can't be read", "Expecting property name", "rebuild it: profrun report"),
        ({"schema": "profrun/summary/1"}, "can't be read", "KeyError: 'passes'", "rebuild it: profrun report"),
        (
            {"schema": "profrun/summary/2", "run": {"profrun_version": "3.1.4"}},
            "written by a newer profrun",
            "'profrun/summary/2' instead of 'profrun/summary/1'",
            "read it with profrun 3.1.4",
        ),
        ({"schema": "profrun/summary/9"}, "written by a newer", "summary/9", "the profrun that wrote it"),
        ({"schema": "other/1"}, "can't be read", "no summary of profrun", "rebuild it"),
        ([], "can't be read", "no summary of profrun", "rebuild it"),
    ],
)
def test_what_can_not_be_read_says_why(tmp_path: Path, data: Any, what: str, why: str, then: str) -> None:
    if data is not None:
        save(tmp_path, data)
    with pytest.raises(ReportError) as caught:
        load_report(tmp_path)
    first, second, third = caught.value.text().splitlines()
    assert (what in first, why in second, then in third) == (True, True, True), caught.value.text()


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="there is no such folder"):
        load_report(tmp_path / "nowhere")


def test_a_table_whose_file_is_damaged_says_so(saved: Report) -> None:
    (saved.folder / "tables" / "steps.parquet").write_bytes(b"PAR1")
    (saved.folder / "tables" / "runs.parquet").unlink()
    report = load_report(saved.folder)
    for name in ("steps", "runs"):
        with pytest.raises(ReportError, match=f"(?s){name}.parquet can't be read.*rebuild it: profrun report"):
            report.table(name)


# ---------------------------------------------------------------- which report is meant


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    names = (
        "cpu-quick-20260101T000000Z-zzzz",
        "cpu-quick-20260301T000000Z-aaaa",
        "cpu-deep-20260201T000000Z-mmmm",
        "kept",
    )
    for name in names:
        save(tmp_path / "reports" / name, "{}")
    (tmp_path / "reports" / "no-report").mkdir()
    return tmp_path / "reports"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cpu-quick", "cpu-quick-20260301T000000Z-aaaa"),
        ("cpu-q", "cpu-quick-20260301T000000Z-aaaa"),
        ("cpu-quick-20260101", "cpu-quick-20260101T000000Z-zzzz"),
        ("cpu-d", "cpu-deep-20260201T000000Z-mmmm"),
        ("kept", "kept"),
        ("latest", "cpu-quick-20260301T000000Z-aaaa"),
        ("no-report", None),
        ("nothing", None),
    ],
)
def test_a_report_is_found_by_how_its_name_begins(runs: Path, text: str, found: str | None) -> None:
    assert folder.lookup(text, runs) == (runs / found if found else None)


def test_latest_is_where_the_link_points(runs: Path) -> None:
    (runs / "latest").symlink_to("cpu-deep-20260201T000000Z-mmmm")
    assert folder.lookup("latest", runs) == runs / "cpu-deep-20260201T000000Z-mmmm"


def test_what_means_several_is_refused(runs: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)runs of 2 names.*begin with cpu.*cpu-deep, cpu-quick"):
        folder.lookup("cpu", runs)
    save(runs / "cpu-20250101T000000Z-bbbb", "{}")
    assert folder.lookup("cpu", runs) == runs / "cpu-20250101T000000Z-bbbb"
