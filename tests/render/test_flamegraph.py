"""render/flamegraph.py: what it writes is read back, and the picture is looked at in a browser."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pandas
import pytest
from browser import Browser
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.formats import pyspy
from orchestrator.formats.folded import Tree
from orchestrator.render import flamegraph

ROWS = [
    ("main (a.py:1);f (a.py:5)", 300),
    ("main (a.py:1);f (a.py:5);g (/x/site-packages/lib.py:7)", 100),
    ("main (a.py:1);f (a.py:5)", 200),
    ("main (a.py:1);h (libc.so.6)", 399),
    ("other (<frozen importlib._bootstrap>:3)", 1),
]
EVIL = "<script>alert(1)</script> & \"q\" 'a' ]]> \x00\x1b (a.py:1)"
SVG = "{http://www.w3.org/2000/svg}"

names = st.text(st.characters(exclude_characters=";\n\r", exclude_categories=["Cs"]), min_size=1, max_size=5)
stacks = st.lists(st.tuples(st.lists(names, min_size=1, max_size=6).map(";".join), st.integers(0, 1000)), max_size=40)

SPEEDSCOPE = {
    "type": "object",
    "required": ["$schema", "shared", "profiles"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "name": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "exporter": {"type": "string"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "additionalProperties": False,
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "number"},
                            "col": {"type": "number"},
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name", "unit", "startValue", "endValue", "samples", "weights"],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {"enum": ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"]},
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "samples": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}
"""The `sampled` part of https://www.speedscope.app/file-format-schema.json."""


def of(rows: list[tuple[str, int]], unit: flamegraph.Unit = "ns") -> flamegraph.Stacks:
    return flamegraph.Stacks.of({"": rows}, unit)


def summed(rows: list[tuple[str, int]]) -> Counter[str]:
    weights: Counter[str] = Counter()
    for stack, weight in rows:
        weights[stack] += weight
    return weights


# ---------------------------------------------------------------- folded, speedscope


def test_folded_is_sorted_and_added_up() -> None:
    lines = flamegraph.folded(of(ROWS)).splitlines()
    assert lines[0] == "main (a.py:1);f (a.py:5) 500"
    assert len(lines) == 4 and lines == sorted(lines)
    assert flamegraph.folded(of([])) == ""


def test_folded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "x.folded"
    path.write_text(flamegraph.folded(of(ROWS)))
    assert {";".join(s.frames): s.weight for s in pyspy.read_raw(path).stacks} == summed(ROWS)


def test_speedscope_is_valid_and_complete() -> None:
    threads = {"7 MainThread": ROWS, "7 w": [(EVIL, 5)], "7 none": []}
    file = json.loads(flamegraph.speedscope(flamegraph.Stacks.of(threads), "p03-py-spy"))
    jsonschema.validate(file, SPEEDSCOPE)
    frames = file["shared"]["frames"]
    assert {"name": "g", "file": "/x/site-packages/lib.py", "line": 7} in frames
    assert {"name": "h", "file": "libc.so.6"} in frames
    main, other, nothing = file["profiles"]
    assert (main["name"], main["unit"], main["startValue"], main["endValue"]) == (
        "7 MainThread",
        "nanoseconds",
        0,
        1000,
    )
    assert len(main["samples"]) == len(main["weights"]) == 5
    read = [
        (";".join(frames[i]["name"] for i in sample), w)
        for sample, w in zip(main["samples"], main["weights"], strict=True)
    ]
    assert summed(read) == {"main;f": 500, "main;f;g": 100, "main;h": 399, "other": 1}
    assert frames[other["samples"][0][0]]["name"] == EVIL.rpartition(" (")[0]
    assert nothing["samples"] == []


def test_speedscope_of_samples_has_no_unit() -> None:
    assert json.loads(flamegraph.speedscope(of(ROWS, "samples"), "x"))["profiles"][0]["unit"] == "none"


def test_stacks_of_a_table_by_thread() -> None:
    row = {
        "process": "python -c 'a;\nb'",
        "pid": 7,
        "thread": "w;1",
        "stack": "f (a.py:1)",
        "samples": 3,
        "weight_ns": 30,
    }
    nameless = {**row, "process": None, "pid": None, "thread": None}
    frame = pandas.DataFrame([row, {**row, "stack": "g (a.py:2)"}, nameless]).astype(
        {"pid": "Int64", "weight_ns": "Int64"}
    )
    stacks = flamegraph.Stacks.of_table(frame)
    assert stacks.unit == "ns"
    assert flamegraph.folded(stacks).splitlines() == [
        "process;all threads;f (a.py:1) 30",
        "python -c 'a, b' [7];w,1;f (a.py:1) 30",
        "python -c 'a, b' [7];w,1;g (a.py:2) 30",
    ]
    (first, *_) = json.loads(flamegraph.speedscope(stacks, "x"))["profiles"]
    assert first["name"] == "python -c 'a, b' [7] · w,1"
    counted = flamegraph.Stacks.of_table(frame.assign(weight_ns=pandas.NA))
    assert (counted.unit, counted.weights.tolist()) == ("samples", [3, 3, 3])


@given(stacks)
def test_stacks_come_back_from_their_numbers(rows: list[tuple[str, int]]) -> None:
    stacks = of(rows)
    texts = [";".join(stacks.names[n] for n in stacks.numbers(i)) for i in range(len(rows))]
    assert list(zip(texts, stacks.weights.tolist(), strict=True)) == rows


def test_more_stacks_than_are_taken_apart_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flamegraph, "_AT_ONCE", 2)
    assert flamegraph.folded(of(ROWS)).splitlines()[0] == "main (a.py:1);f (a.py:5) 500"


# ---------------------------------------------------------------- tree


def paths(tree: Tree) -> Counter[str]:
    """The stacks of a tree, by their own weights."""
    stack: list[str] = []
    found: Counter[str] = Counter()
    for depth, frame, own in zip(tree.depth.tolist(), tree.frame.tolist(), tree.own.tolist(), strict=True):
        stack[depth:] = [tree.names[frame]]
        assert len(stack) == depth + 1
        found[";".join(stack)] += own
    return found


@given(stacks)
def test_a_tree_loses_nothing(rows: list[tuple[str, int]]) -> None:
    assert +paths(of(rows).tree()) == +summed(rows)


def test_a_tree_has_each_thread_below_its_process() -> None:
    tree = flamegraph.Stacks.of({"p [7];a": ROWS[:1], "p [7];b": ROWS[:1]}).tree()
    assert paths(tree)["p [7];b;main (a.py:1);f (a.py:5)"] == 300
    assert tree.total.tolist()[0] == 600


def test_deep_stacks_need_no_recursion() -> None:
    depth = sys.getrecursionlimit() * 3
    rows = [(";".join(["f (a.py:1)"] * depth), 7)]
    assert flamegraph.svg(of(rows), "deep").count("<rect") > depth


# ---------------------------------------------------------------- svg


def frames(svg: str) -> list[dict[str, Any]]:
    group = ET.fromstring(svg).find(f"{SVG}g[@id='frames']")
    assert group is not None
    return [
        {
            "tip": g.findtext(f"{SVG}title"),
            "text": g.findtext(f"{SVG}text"),
            **{k: float(g.find(f"{SVG}rect").get(k)) for k in ("x", "y", "width")},  # type: ignore[union-attr,arg-type]
        }
        for g in group
    ]


def test_the_picture_shows_every_wide_frame() -> None:
    found = {f["tip"].split("\n")[0]: f for f in frames(flamegraph.svg(of(ROWS, "samples"), "title"))}
    assert found["main (a.py:1)"]["tip"] == "main (a.py:1)\n999 samples (99.9%), itself 0 samples (0.0%)"
    assert found["all: 1000 samples"]["width"] > found["main (a.py:1)"]["width"] > found["f (a.py:5)"]["width"] * 1.6
    assert found["g (/x/site-packages/lib.py:7)"]["text"] == "g (lib.py:7)"  # without folders
    assert found["f (a.py:5)"]["y"] == found["h (libc.so.6)"]["y"]
    assert found["h (libc.so.6)"]["x"] >= found["f (a.py:5)"]["x"] + found["f (a.py:5)"]["width"]


def test_narrow_frames_are_merged_and_that_is_said() -> None:
    rows = [("main (a.py:1)", 99_000), *((f"main (a.py:1);f{i} (a.py:2);g (a.py:3)", 20) for i in range(50))]
    svg = flamegraph.svg(of(rows, "samples"), "title")
    (merged,) = (f for f in frames(svg) if "narrow" in f["tip"])
    assert merged["tip"] == "100 narrow frames\n1000 samples (1.0%)"
    assert "100 frames below 0.1% are merged or left out" in svg
    assert len(frames(svg)) == 3
    assert "merged or left out" not in flamegraph.svg(of(ROWS), "title")


def test_names_can_not_break_out() -> None:
    svg = flamegraph.svg(of([(EVIL, 10), (f"a;{EVIL}", 5)]), f"title {EVIL}")
    tree = ET.fromstring(svg)  # well-formed, although the name holds characters that XML does not allow
    assert [s.text is not None and "alert" not in s.text for s in tree.iter(f"{SVG}script")] == [True]
    assert any(
        f["tip"].startswith("<script>alert(1)</script> & \"q\" 'a' ]]> \ufffd\ufffd (a.py:1)\n") for f in frames(svg)
    )


def test_the_picture_asks_for_nothing() -> None:
    svg = flamegraph.svg(of(ROWS), "title")
    assert re.findall(r"https?://[^\"' ]+", svg) == ["http://www.w3.org/2000/svg"]
    assert "@import" not in svg and "href" not in svg and "url(" not in svg
    assert "prefers-color-scheme:dark" in svg


def test_an_empty_picture() -> None:
    (everything,) = frames(flamegraph.svg(of([]), "nothing"))
    assert everything["tip"] == "all: 0 s"


@pytest.mark.parametrize(
    ("frame", "whose"),
    [
        ("f (train.py:3)", "own"),
        ("f (/home/u/train.py:3)", "own"),
        ("<module> (<string>:1)", "own"),
        ("f (/opt/v/lib/python3.11/site-packages/torch/x.py:3)", "library"),
        ("f (/usr/lib/python3.11/threading.py:3)", "stdlib"),
        ("gemm (libmkl.so)", "native"),
        ("f (<frozen importlib._bootstrap>:3)", "interpreter"),
        ("(no Python frame)", "interpreter"),
    ],
)
def test_whose_code_it_is(frame: str, whose: str) -> None:
    assert flamegraph.origin(frame) == whose


@pytest.mark.tool("chromium")
def test_a_click_zooms_and_another_zooms_out(tmp_path: Path) -> None:
    (tmp_path / "flame.svg").write_text(flamegraph.svg(of(ROWS), "title"))
    with Browser() as browser:
        browser.open(tmp_path / "flame.svg")

        def frame(name: str, what: str) -> Any:
            all_frames = "[...document.querySelectorAll('#frames > g')]"
            return browser.js(f"{all_frames}.find(g => g.textContent.startsWith('{name}')).{what}")

        def width(name: str) -> float:
            return float(frame(name, "querySelector('rect').getAttribute('width')"))

        before = width("g")
        assert before == pytest.approx(0.1 * 1176, abs=1)
        frame("g", "dispatchEvent(new MouseEvent('click'))")
        assert width("g") == width("main") == pytest.approx(1176, abs=1)
        assert frame("h", "style.display") == "none"
        frame("all", "dispatchEvent(new MouseEvent('click'))")
        assert width("g") == pytest.approx(before, abs=1)
        assert frame("h", "style.display") == ""
        assert browser.errors == [] and len(browser.requests) == 1  # the picture itself


def test_flame_graph_of_a_real_recording(golden: Path) -> None:
    profile = pyspy.read(golden / "py-spy" / "two" / "profile.0.chrometrace.json", 10_000_000)
    rows = [(";".join(s.frames), s.weight) for s in profile.stacks if s.frames]
    (heavy,) = (f for f in frames(flamegraph.svg(of(rows), "two.py")) if f["tip"].startswith("heavy"))
    assert re.search(r"^heavy \(/home/user/app/two.py:4\)\n\d+ ms \(6\d\.\d%\), itself", heavy["tip"])
    assert heavy["text"] == "heavy (two.py:4)"
