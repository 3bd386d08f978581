"""summary.json: what is written is what is read back, and what its schema says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import sample_report
from cli import profrun, write_plan

from orchestrator.errors import ReportError
from orchestrator.model import StepRecord
from orchestrator.report import json_schema, load, machine_facts, step_from, summary


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    plan = write_plan(
        place,
        "{use: timing, warmup: 1, repeats: 3}",
        "{use: nsys, required: false}",
        tools="{nsys: /nowhere}",
        environment="[{use: env, set: {A: '1'}}]",
        report="{formats: []}",
    )
    return profrun(plan, "--", "sh", "-c", "setsid sleep 0.5 & echo x", cwd=place).folder


def test_a_summary_is_read_back_as_it_was(folder: Path) -> None:
    written = json.loads((folder / "summary.json").read_text())
    assert json.loads(json.dumps(summary(load(folder)))) == written


def test_what_was_looked_at_is_read_back_as_it_was(tmp_path: Path) -> None:
    report = sample_report.job(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps(summary(report)))
    assert load(tmp_path).passes == report.passes


def test_a_summary_obeys_its_schema(folder: Path) -> None:
    written = json.loads((folder / "summary.json").read_text())
    jsonschema.validate(written, json_schema())
    written["captures"][0]["status"] = "splendid"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(written, json_schema())


def test_the_contract_of_a_summary(folder: Path) -> None:
    """The keys that others rely on."""
    data = json.loads((folder / "summary.json").read_text())
    assert data["schema"] == "profrun/summary/1"
    wanted = {
        "run": {"id", "name", "started_at", "duration_s", "command", "cwd", "profrun_version"},
        "outcome": {"status", "exit_code", "target_exit_code", "target_signal", "reason"},
        "environment": {
            *("use", "status", "wanted", "before", "verified", "restored", "reason"),
            *("during", "after", "detail", "fix", "parts"),
        },
        "passes": {"id", "collectors", "wall_s", "slowdown", "exit_code"},
        "captures": {
            *("id", "collector", "status", "reason", "tool", "command", "artifacts", "trust", "overhead_s"),
        },
    }
    for name, keys in wanted.items():
        entry = data[name] if isinstance(data[name], dict) else data[name][0]
        assert keys <= entry.keys(), name
    assert {"path", "rows"} == data["tables"]["runs"].keys()
    assert {"value", "unit", "ci95", "n"} <= data["metrics"]["wall_s"].keys()
    assert data["metrics"]["wall_s"]["n"] == 3
    assert data["environment"][0]["restored"] is None  # it ends with the target: there is nothing to undo


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "holds no report"),
        ("{", "can't be read"),
        ("[]", "no summary of profrun"),
        ('{"schema": "x"}', "no summary of profrun"),
        ('{"schema": "profrun/x/1"}', "another kind"),
    ],
)
def test_what_is_no_summary_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with pytest.raises(ReportError, match=words):
        load(tmp_path)


def test_parts_of_a_step_survive_and_an_older_record_is_read(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    text = json.dumps(summary(report))
    jsonschema.validate(json.loads(text), json_schema())
    (tmp_path / "summary.json").write_text(text)
    again = load(tmp_path).environment
    assert [step.parts for step in again] == [step.parts for step in report.environment]
    assert again[3].during == report.environment[3].during and again[4].fix == sample_report.SUDO
    old = {"use": "env", "status": "applied", "wanted": {}, "before": None, "verified": None, "restored": None}
    assert step_from({**old, "reason": None}) == StepRecord("env", "applied", {})


def test_machine_json_has_the_settings_before_during_and_after(tmp_path: Path) -> None:
    report = sample_report.build(tmp_path)
    facts = json.loads(json.dumps(machine_facts(report)))
    assert facts["hostname"] == "node-17" and "settings" not in report.machine
    clocks = facts["settings"][3]
    assert clocks["use"] == "gpu_clocks" and clocks["restored"] is True
    assert clocks["during"][sample_report.UUIDS[0]]["graphics_mhz"]["median"] == 1530
    first = {"name": "policy0 governor", "before": "powersave", "verified": "performance", "after": "powersave"}
    assert facts["settings"][4]["parts"][0] == {**first, "restored": True}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["run"].update(id="../evil"),
        lambda data: data["tables"].update({"../../evil": {"path": "tables/steps.parquet", "rows": 1}}),
        lambda data: data["tables"]["steps"].update(path="../outside.parquet"),
        lambda data: data["tables"]["steps"].update(path="/etc/passwd"),
        lambda data: data["captures"][0].update(id="../../evil"),
        lambda data: next(c for c in data["captures"] if c["artifacts"])["artifacts"][0].update(path="raw/../../x"),
        lambda data: next(c for c in data["captures"] if c["artifacts"])["artifacts"][0].update(
            path="/a/profrun-main/x"
        ),
        lambda data: data["passes"][0].update(id=".."),
    ],
)
def test_a_report_from_elsewhere_names_nothing_outside_of_its_folder(tmp_path: Path, change: Any) -> None:
    data = json.loads(json.dumps(summary(sample_report.build(tmp_path))))
    change(data)
    (tmp_path / "summary.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match="can't be read"):
        load(tmp_path)


def test_files_that_stayed_in_our_scratch_space_are_still_the_reports(tmp_path: Path) -> None:
    """Its disk was full."""
    data = json.loads(json.dumps(summary(sample_report.build(tmp_path))))
    there = "/tmp/profrun-nu7hr_bn/p02.1/p02-strace/summary.txt"
    next(c for c in data["captures"] if c["artifacts"])["artifacts"][0].update(path=there)
    (tmp_path / "summary.json").write_text(json.dumps(data))
    assert there in [one.path for capture in load(tmp_path).captures for one in capture.artifacts]
