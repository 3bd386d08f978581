"""The page of a comparison: what it says, and the data of its pictures."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import flame_data
import pytest
from two_runs import Job, make, with_table

from orchestrator.compare import compare
from orchestrator.comparing.words import Comparison, Gate, Gated
from orchestrator.render import compare_page, flamediff
from orchestrator.report import Report
from orchestrator.tables import Table

EVIL = "</script><img src=x onerror=alert(1)>"
JOB = Job(
    steps=200,
    kernels={"gemm_a": (8.0, 300.0, "64,1,1"), "softmax": (1.0, 400.0, "32,1,1"), EVIL: (1.0, 9.0, "1,1,1")},
    ops={"aten::mm": (4.0, 500.0), "aten::add": (9.0, 20.0)},
)


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make(tmp_path_factory.mktemp("pair") / "a", JOB, 1)


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> Report:
    kernels = {"gemm_b": (8.0, 310.0, "64,1,1"), "flash": (2.0, 90.0, "128,8,1"), EVIL: (1.0, 9.0, "1,1,1")}
    job = replace(JOB.with_ms(tokenize=6.0, added=1.0), kernels=kernels, ops={"aten::mm": (4.0, 500.0)})
    return make(tmp_path_factory.mktemp("pair") / "b", job, 2)


@pytest.fixture(scope="module")
def made(a: Report, b: Report) -> Comparison:
    return compare(a, b)


@pytest.fixture(scope="module")
def page(made: Comparison, a: Report, b: Report) -> str:
    return compare_page.render(made, a, b)


def grid(page: str, name: str) -> dict[str, dict[str, Any]]:
    """The columns of a table of the page, by label, and by unit where several have it."""
    found = re.search(rf'id="data-{name}">(.*?)</script>', page)
    assert found
    return {column["key"]: column for column in json.loads(found[1])["columns"]}


def test_it_says_what_was_found(page: str, made: Comparison) -> None:
    assert "B is 40" in made.headline or "slower per step" in made.headline
    head = page.partition("<main")[2].partition("</h1>")[0]
    assert "slower" in head and "tokenize" in head
    assert "called by" in page, "the callers of a function that grew"
    assert page.count("data-plot=") == 2


def test_names_are_inert(page: str) -> None:
    assert EVIL not in page and "<img" not in page


def test_changes_are_sorted_by_size_and_shown_with_their_sign(page: str, made: Comparison) -> None:
    columns = grid(page, "changes")
    sizes = [v for v in columns["change"]["values"] if v is not None]
    assert sizes == sorted(sizes, reverse=True)
    place = columns["name"]["values"].index("tokenize (/home/ada/job/train.py:80)")
    assert columns["change"]["texts"][place].startswith("+") and columns["change"]["signs"][place] > 0
    assert columns["change"]["unit"] == "of A's step"
    absent = [i for i, word in enumerate(columns["verdict"]["values"]) if word == "new"]
    assert absent and all(columns["a"]["texts"][i] == "none" for i in absent)


def test_the_traces_side_by_side(page: str) -> None:
    columns = grid(page, "kernels")
    calls = dict(zip(columns["name"]["values"], columns["calls"]["values"], strict=True))
    assert calls == {"gemm_a → gemm_b": "renamed, as often", "softmax": "gone", "flash": "new", EVIL: "as often"}
    place = columns["name"]["values"].index("flash")
    assert [columns[key]["texts"][place] for key in ("count_A", "count_B", "time_A", "time_B", "grown")] == [
        "none", "2", "none", columns["time_B"]["texts"][place], "+" + columns["time_B"]["texts"][place],
    ]  # fmt: skip
    assert 0.17e6 < columns["time_B"]["values"][place] < 0.19e6
    ops = grid(page, "operators")
    assert dict(zip(ops["name"]["values"], ops["calls"]["values"], strict=True))["aten::add"] == "gone"


# ---------------------------------------------------------------- the differential flame graph


def functions(diff: flamediff.Diff) -> dict[str, tuple[int, int]]:
    """Own time of each frame, in ns a step: (A, B)."""
    data = flame_data.unpacked(diff.data)
    found: dict[str, tuple[int, int]] = {}
    for frame, own, other in zip(data["frame"], data["own"], data["other_own"], strict=True):
        name = data["frames"][frame]
        before = found.get(name, (0, 0))
        found[name] = (before[0] + other * data["factor"], before[1] + own * data["factor"])
    return found


def through(diff: flamediff.Diff, name: str) -> tuple[float, float]:
    """Time of all that is below frames of that name, in ms a step: (A, B)."""
    data = flame_data.unpacked(diff.data)
    sums, inside = [0, 0], None
    for depth, frame, own, other in zip(data["depth"], data["frame"], data["own"], data["other_own"], strict=True):
        if inside is not None and depth <= inside:
            inside = None
        if inside is None and data["frames"][frame].startswith(name):
            inside = depth
        if inside is not None:
            sums = [sums[0] + other * data["factor"], sums[1] + own * data["factor"]]
    return sums[0] / 1e6, sums[1] / 1e6


def test_times_are_a_step_of_each_run(a: Report, b: Report) -> None:
    (diff,) = flamediff.diffs(a, b)
    assert (diff.label, diff.per) == ("py-spy: all time, waiting included", "step")
    assert diff.whole_a_s == pytest.approx(0.010, rel=0.05) and diff.whole_b_s == pytest.approx(0.014, rel=0.05)
    before, after = through(diff, "tokenize (train.py)")
    assert before == pytest.approx(3.0, rel=0.25) and after == pytest.approx(6.0, rel=0.25)
    assert through(diff, "added (train.py)")[0] == 0.0 < through(diff, "added (train.py)")[1]


def test_stacks_of_whole_runs_are_a_run_where_one_made_more_steps(tmp_path: Path) -> None:
    """Start-up is no less of a longer run."""

    def report(name: str, steps: int) -> Report:
        made = make(tmp_path / name, replace(JOB, steps=steps), 1)
        (capture,) = (one.id for one in made.captures if one.collector == "py-spy")
        columns: dict[str, list[Any]] = {
            "pid": [100],
            "thread": ["MainThread"],
            "kind": ["cpu"],
            "stack": ["load (a.py:1)"],
        }
        return with_table(made, Table("stacks", {**columns, "weight_ns": [10**9]}).with_capture(capture))

    a, b = report("a", 40), report("b", 80)
    of_runs = next(one for one in flamediff.diffs(a, b) if "all time" not in one.label)
    assert (of_runs.per, of_runs.whole_a_s, of_runs.whole_b_s) == ("run", 1.0, 1.0)
    assert next(one for one in flamediff.diffs(a, a) if "all time" not in one.label).per == "step"


def test_lines_folders_processes_and_addresses_make_no_frame_new(a: Report, tmp_path: Path) -> None:
    moved = make(tmp_path / "b", replace(JOB, file="/home/ada/job/train.py"), 3)
    spans = moved.table("stack_spans")
    assert spans is not None
    spans["stack"] = spans["stack"].str.replace(r"train.py:(\d)", r"train.py:9\1", regex=True)
    for text, wanted in (
        ("f (/opt/x/lib/python3.11/site-packages/torch/nn/m.py:3)", "f (/site-packages/torch/nn/m.py)"),
        ("f (/usr/lib/python3.11/threading.py:9)", "f (/lib/python3.11/threading.py)"),
        ("f (/home/ada/job/sub/t.py:9)", "f (sub/t.py)"),
        ("0x7f12ab (libgomp.so)", "(no symbol) (libgomp.so)"),
        ("plain", "plain"),
    ):
        assert flamediff._frame(text, "/home/ada/job/") == wanted
    (diff,) = flamediff.diffs(a, moved)
    own = functions(diff)
    assert own and all((one > 0) == (other > 0) for one, other in own.values())


def test_a_run_beside_itself_is_equal(a: Report) -> None:
    (diff,) = flamediff.diffs(a, a)
    assert all(one == other for one, other in functions(diff).values())


# ---------------------------------------------------------------- what is not there


def test_refused_runs_are_not_compared(a: Report, tmp_path: Path) -> None:
    other = make(tmp_path / "b", JOB.on(cpu={"model": "Intel Xeon", "logical": 16}), 2)
    made = compare(a, other)
    assert made.refused
    text = compare_page.render(made, a, other)
    assert "not compared" in text and "Intel Xeon" in text
    assert 'id="changes"' not in text and "data-compared" not in text.partition("<script>")[0]


def test_the_gate_is_what_the_page_is_of(made: Comparison, a: Report, b: Report) -> None:
    gate = Gate(3.0, "failed", (Gated("step_s", "failed", "40 % slower, and 3 % may be", made.step),))
    text = compare_page.render(replace(made, gate=gate), a, b)
    assert "gate failed" in text and "40 % slower, and 3 % may be" in text
    assert "no figure may be more than 3 % worse" in text


@pytest.mark.parametrize(
    ("pct", "text"), [(5.66, "+5.7 %"), (-1234.0, "−1,234.0 %"), (0.04, "0.0 %"), (None, "unknown")]
)
def test_signed(pct: float | None, text: str) -> None:
    assert compare_page.signed(pct) == text
