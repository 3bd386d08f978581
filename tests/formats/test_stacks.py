"""formats/stacks.py: tables made of weighted stacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.formats.stacks import NO_FRAMES, Row, functions_table, split_frame, stacks_table

MS = 1_000_000


def row(stack: str, weight_ms: int, thread: str = "MainThread", kind: str = "wall") -> Row:
    return Row(7, "python a.py", thread, kind, tuple(stack.split(";")) if stack else (), weight_ms * MS)


@pytest.mark.parametrize(
    ("frame", "parts"),
    [
        ("f (a.py:3)", ("f", "a.py", 3)),
        ("A.<lambda> (<frozen importlib._bootstrap>:1176)", ("A.<lambda>", "<frozen importlib._bootstrap>", 1176)),
        ("std::f<void (int)>::g (libx.so)", ("std::f<void (int)>::g", "libx.so", None)),
        ("f (dir:2/a.py:3)", ("f", "dir:2/a.py", 3)),
        ("0x7f", ("0x7f", None, None)),
        ("", ("", None, None)),
    ],
)
def test_a_frame_in_its_parts(frame: str, parts: tuple[str, str | None, int | None]) -> None:
    assert split_frame(frame) == parts


def test_equal_stacks_are_added_up_and_the_heaviest_comes_first() -> None:
    table = stacks_table(
        [row("a (x.py:1)", 10), row("a (x.py:1);b (x.py:2)", 30), row("a (x.py:1)", 25), row("", 1)], 100
    )
    assert [(r["stack"], r["samples"], r["weight_ns"]) for r in table.rows()] == [
        ("a (x.py:1)", 4, 35 * MS), ("a (x.py:1);b (x.py:2)", 3, 30 * MS), (NO_FRAMES, 0, MS),
    ]  # fmt: skip
    assert [(r["pid"], r["process"], r["thread"], r["kind"]) for r in table.rows()] == [
        (7, "python a.py", "MainThread", "wall")
    ] * 3


def test_stacks_of_threads_and_kinds_stay_apart() -> None:
    table = stacks_table([row("a (x.py:1)", 10), row("a (x.py:1)", 10, "t"), row("a (x.py:1)", 10, kind="gil")], 100)
    assert len(table) == 3


def test_self_and_total() -> None:
    rows = [
        row("main (x.py:1);f (x.py:5)", 200),
        row("main (x.py:1);f (x.py:6)", 300),
        row("main (x.py:2);f (x.py:5);g (y.py:9)", 100),
        row("", 400),
    ]
    found = {r["function"]: r for r in functions_table(rows, 100).rows()}
    assert list(found) == ["f", "g", "main"]  # the most time of its own first
    assert (found["f"]["self_samples"], found["f"]["total_samples"], found["f"]["line"]) == (50, 60, 6)
    assert (found["g"]["self_samples"], found["g"]["total_samples"], found["g"]["file"]) == (10, 10, "y.py")
    assert (found["main"]["self_samples"], found["main"]["total_samples"], found["main"]["line"]) == (0, 60, 1)
    assert (found["f"]["self_pct"], found["f"]["total_pct"]) == (50, 60)


def test_recursion_counts_once() -> None:
    (f,) = functions_table([row("f (x.py:1);f (x.py:2);f (x.py:1);f (x.py:3)", 100)], 100).rows()
    assert (f["self_samples"], f["total_samples"], f["total_pct"], f["line"]) == (10, 10, 100, 3)


def test_shares_are_of_one_kind() -> None:
    rows = [row("a (x.py:1)", 100), row("a (x.py:1)", 300, "t"), row("a (x.py:1)", 50, kind="gil")]
    found = {(r["thread"], r["kind"]): r["self_pct"] for r in functions_table(rows, 100).rows()}
    assert found == {("MainThread", "wall"): 25, ("t", "wall"): 75, ("MainThread", "gil"): 100}


def test_equal_names_in_two_files_are_two_functions() -> None:
    assert len(functions_table([row("f (x.py:1)", 1), row("f (y.py:1)", 1)], 100)) == 2


RECURSIVE = """
from orchestrator.formats.stacks import Row, functions_table
frames = (*(f"visit (a.py:{n})" for n in range(40)), "leaf (b.py:1)")
print(functions_table([Row(1, "p", "t", "wall", frames, 10)], 100.0).columns["line"])
"""


def test_a_rebuild_is_equal_where_frames_weigh_the_same() -> None:
    """A function that stands several times in one stack, each line as heavy as the other."""

    def lines(hash_seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        return subprocess.run([sys.executable, "-c", RECURSIVE], env=env, capture_output=True, text=True).stdout

    assert {lines(seed) for seed in ("1", "2", "3", "4")} == {"[1, 9]\n"}
