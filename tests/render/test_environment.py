"""The environment steps in words: the line on the whole, settings told once, what was read, who was there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_report

from orchestrator.model import Part, StepRecord
from orchestrator.render import environment, html, markdown
from orchestrator.report import Report

SET = StepRecord("cpu_frequency", "applied", {"governor": "performance"}, restored=True)
LOOKED = StepRecord("cpu_idle", "already")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    return sample_report.bare(tmp_path)


def step(**changes: Any) -> StepRecord:
    return replace(SET, **changes)


@pytest.mark.parametrize(
    ("steps", "lines"),
    [
        ((), ["The plan changed nothing on this machine."]),
        ((SET, LOOKED), ["The machine was brought into the plan's state and put back."]),
        ((LOOKED,), ["The machine was in the plan's state; there was nothing to put back."]),
        (
            (step(status="clamped", detail="2.9 GHz"),),
            [
                "The machine was brought into the plan's state, as near as it goes: cpu_frequency clamped (2.9 GHz), "
                "and put back."
            ],
        ),
        (
            (SET, step(status="refused", detail="EACCES", restored=None), LOOKED),
            ["1 of 3 steps not in force: cpu_frequency refused (EACCES). What was changed was put back."],
        ),
        (
            (LOOKED, step(restored=False, reason="EROFS")),
            [
                "NOT put back: cpu_frequency (EROFS). Next: profrun env restore",
                "The machine was in the plan's state.",
            ],
        ),
        (
            (step(status="not_available", restored=None),),
            ["The plan's one step not in force: cpu_frequency not available."],
        ),
    ],
)
def test_one_line_says_whether_the_machine_was_right_and_is_back(
    report: Report, steps: tuple[StepRecord, ...], lines: list[str]
) -> None:
    assert [told.text for told in environment.told(replace(report, environment=steps))] == lines


def test_what_was_not_put_back_is_the_worst(report: Report) -> None:
    told = environment.told(replace(report, environment=(step(restored=False), replace(LOOKED, status="failed"))))
    assert [one.tone for one in told] == ["bad", "bad"]
    assert environment.told(replace(report, environment=(step(status="drifted"),)))[0].tone == "warn"


def test_128_policies_with_four_settings_are_four_lines(report: Report) -> None:
    """Of 512 settings those that went alike are told once; that of one policy that was limited stands alone."""
    kinds = ("governor", "minimum", "maximum", "energy preference")
    parts = tuple(Part(f"policy{n} {kind}", "applied", "b", "a", "b", "a", True) for n in range(128) for kind in kinds)
    limited = replace(parts[9], status="clamped", detail="2.9 GHz", verified="2.9 GHz")
    assert [s.name for s in environment.fold(parts)] == [f"policy0-127 {kind}" for kind in kinds]
    changed = environment.fold((*parts[:9], limited, *parts[10:]))
    assert [(s.name, s.count, s.course) for s in changed] == [
        ("policy0-127 governor", 128, "a → b → a"),
        ("policy0-1,3-127 minimum", 127, "a → b → a"),
        ("policy0-127 maximum", 128, "a → b → a"),
        ("policy0-127 energy preference", 128, "a → b → a"),
        ("policy2 minimum", 1, "a → 2.9 GHz → a"),
    ]
    whole = replace(report, environment=(step(parts=parts),))
    lines = markdown.render(whole).partition("## Environment")[2].splitlines()
    assert sum("→" in line for line in lines) == 4
    assert len(environment.rows(whole)[0].each) == 512
    assert "Each of the 512 settings" in html.render(whole)


def test_what_is_not_known_says_so_and_what_was_not_asked_is_left_out() -> None:
    known, refused, left = (
        environment.fold([part])[0]
        for part in (
            Part("a", "applied", "1", None, "1", None, True),
            Part("a", "refused", "1", "0", reason="only root may", detail="EACCES", fix="ask root"),
            Part("a", "applied", "1", "0", "1", "1", False),
        )
    )
    assert (known.before, known.set, known.after, known.course) == (None, "1", None, "unknown → 1 → unknown")
    assert (refused.set, refused.after, refused.status, refused.course) == ("", "", "refused (EACCES)", "0")
    assert (left.status, left.tone) == ("applied, not put back", "bad")


def test_settings_are_pairs_with_units_and_those_alike_are_told_once() -> None:
    read = {
        "driver": "intel_pstate",
        "policies": {f"policy{n}": {"governor": "powersave", "cpus": [n]} for n in range(2)},
        "memory_bytes": 8e9,
        "waiting_pct": None,
        "utilization_pct": [],
        "notes": ["told in the reason"],
        "cores_pct": {str(n): float(n) for n in range(12)},
        "core_pct": {"0": 1.5, "1": 2.0},
    }
    assert environment.pairs(read) == (
        ("driver", "intel_pstate"),
        ("policy0-1 governor", "powersave"),
        ("policy0 CPUs", "0"),
        ("policy1 CPUs", "1"),
        ("memory", "8 GB"),
        ("waiting", None),
        ("utilization", None),
        ("cores", "0 % to 11 %, of 12"),
        ("core", "1.5 %, 2 %"),
    )
    assert environment.pairs("running") == (("", "running"),)
    assert environment.pairs(None) == environment.pairs({}) == ()


def test_devices_are_told_by_their_number_or_the_beginning_of_their_uuid() -> None:
    uuid = sample_report.UUIDS[0]
    assert environment.pairs({"gpus": [{"index": 3, "sm_mhz": 1530, "processes": []}]}) == (
        ("GPU 3 sm", "1530 MHz"),
        ("GPU 3 processes", "none"),
    )
    assert environment.pairs({"gpus": {uuid: {"sm_mhz": 1530}}}) == (("GPU-5a3c12ef sm", "1530 MHz"),)


def test_of_who_was_there_the_latest_look_counts(report: Report) -> None:
    bob, ada = {"pid": 1, "user": "bob", "unit": None}, {"pid": 2, "user": "ada", "unit": "x.service"}
    looked = replace(LOOKED, before={"top": [bob], "soon": [{"in_s": 60}]}, verified={"top": [bob, ada], "soon": []})
    (row,) = environment.rows(replace(report, environment=(looked,)))
    assert [(seen.name, seen.columns) for seen in row.seen] == [("top", ("PID", "user", "unit"))]
    assert row.seen[0].rows == (("1", "bob", ""), ("2", "ada", "x.service"))


def test_clocks_are_written_as_people_write_them() -> None:
    parts = tuple(
        Part(f"policy{n} max kHz", "clamped", "2000000", "4800000", "1000000", detail="1000000") for n in range(4)
    )
    step = StepRecord("cpu_frequency", "clamped", detail="1000000", parts=parts)
    assert environment.status(step) == "clamped (1 GHz)"
    assert environment.outline(step) == "policy0-3 max 1 GHz"
    (setting,) = environment.fold(parts)
    assert (setting.wanted, setting.course, setting.status) == ("2 GHz", "4.8 GHz → 1 GHz", "clamped (1 GHz)")
    assert environment.pairs({"policy0": {"min_khz": 800000}}) == (("policy0 min", "800 MHz"),)


def test_of_gpus_what_changes_is_shown() -> None:
    gpu = {
        "gpu": 0,
        "uuid": "GPU-1",
        "pci": "01:00.0",
        "name": "H200",
        "busy": False,
        "sm_mhz": 1830,
        "persistence": True,
    }
    assert environment.pairs({"gpus": {"GPU-1": gpu}}) == (("GPU 0 sm", "1830 MHz"), ("GPU 0 persistence", "yes"))
