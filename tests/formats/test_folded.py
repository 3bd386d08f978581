"""formats/folded.py: real files of folded stacks, and others counted a second time by simple means."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import pyspy
from orchestrator.formats.folded import Content, Tree, read
from orchestrator.formats.pyspy import Thread
from orchestrator.formats.stacks import NO_FRAMES, Row, functions_table, stacks_table


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "stacks.folded"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def stacks(content: Content) -> dict[str, int]:
    return {row["stack"]: row["samples"] for row in content.tables[0].rows()}


def functions(content: Content) -> dict[str, tuple[int, int]]:
    return {row["function"]: (row["self_samples"], row["total_samples"]) for row in content.tables[1].rows()}


# ---------------------------------------------------------------- real files


def comments(path: Path) -> list[str]:
    """What austin says about a recording; the index of the shared files takes the numbers there for counts."""
    return re.findall(r"^# .* (\d+)$", path.read_text(errors="replace"), re.M)


def test_real_files_hold_what_the_index_says(shared: Path) -> None:
    with (shared / "data/INDEX.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if re.match("perf/folded|pyspy/raw", row["path"])]
    assert len(rows) >= 9
    for row in rows:
        path = shared / "data" / row["path"]
        facts = dict(re.findall(r"(\w+)=(\S+)", row["verified_facts"]))
        content, aside = read(path), comments(path)
        assert content.lines == int(facts["lines"]), row["path"]
        assert content.total + sum(map(int, aside)) == pytest.approx(float(facts["total"]), rel=1e-4), row["path"]
        notes = len(re.findall(r"^# ", path.read_text(errors="replace"), re.M)) - len(aside)
        assert content.unparsed + notes == int(facts["unparsed"]), row["path"]
        assert content.max_depth == int(facts["max_depth"]), row["path"]
        assert content.tables[0].dropped == content.unparsed


def test_a_file_of_py_spy_gives_the_tables_that_its_own_reader_gives(shared: Path) -> None:
    for name in ("self_raw_basic.txt", "self_raw_function.txt", "self_raw_subprocesses_threads.txt"):
        path = shared / "data/pyspy" / name
        profile = pyspy.read_raw(path)
        names = pyspy.thread_names(stack.thread for stack in profile.stacks)
        rows = [
            Row(thread.pid, thread.process, names.get((thread.pid, thread.tid or 0)), "wall", frames, 10**9 * weight)
            for thread, frames, weight in profile.stacks
        ]
        content = read(path, "wall")
        without = lambda table: Counter(  # noqa: E731
            tuple(value for column, value in row.items() if column != "weight_ns") for row in table.rows()
        )
        assert without(content.tables[0]) == without(stacks_table(rows, 1))
        assert without(content.tables[1]) == without(functions_table(rows, 1))


# ---------------------------------------------------------------- what a line may be


def test_spaces_counts_with_fractions_and_lines_without_any(tmp_path: Path) -> None:
    content = read(written(tmp_path, "a;core::array<[T; _]> f 1.5\na;b c 2\n\na;b c 2.\r\nno count here\na .25"))
    assert stacks(content) == {"a;b c": 4, "a;core::array<[T; _]> f": 2, "a": 0}
    assert (content.total, content.lines, content.unparsed, content.max_depth) == (5.75, 6, 1, 3)
    assert content.notes == ("some counts are fractional: samples are rounded", "1 lines have no count")
    (row,) = [row for row in content.tables[1].rows() if row["function"] == "b c"]
    assert row["self_pct"] == row["total_pct"] == pytest.approx(100 * 4 / 5.75)


def test_large_counts_stay_exact(tmp_path: Path) -> None:
    content = read(written(tmp_path, f"a;b {2**53 + 1}\na {2**53 + 2}\n"))
    assert content.total == 2**54 + 3 and stacks(content) == {"a;b": 2**53 + 1, "a": 2**53 + 2}
    content = read(written(tmp_path, "".join(f"a{n} {10**18 - 1}\n" for n in range(20))))
    assert content.total == pytest.approx(2e19), "more than fits 64 bits"


def test_bytes_that_are_no_text_are_shown_as_such(tmp_path: Path) -> None:
    assert stacks(read(written(tmp_path, b"a\xff;caf\xc3\xa9 3\n"))) == {"a\ufffd;café": 3}


def test_recursion_counts_once(tmp_path: Path) -> None:
    content = read(written(tmp_path, "f (a.py:1);g (a.py:5);f (a.py:2);g (a.py:6) 3\nf (a.py:1);g (a.py:5) 4\n"))
    assert functions(content) == {"g": (7, 7), "f": (0, 7)}
    assert {row["function"]: row["line"] for row in content.tables[1].rows()} == {"g": 5, "f": 1}


def test_processes_and_threads_of_py_spy_become_columns(tmp_path: Path) -> None:
    command = 'process 7:"python -c x;\ny"'
    text = f"{command};thread (8): w;f (a.py:1) 2\n{command};thread (8): w 3\nf (a.py:1) 1\n"
    content = read(written(tmp_path, text), "cpu")
    found = [
        (row["pid"], row["process"], row["thread"], row["stack"], row["samples"]) for row in content.tables[0].rows()
    ]
    process = "python -c x;\ny"
    assert found == [
        (7, process, "w", NO_FRAMES, 3),
        (7, process, "w", "f (a.py:1)", 2),
        (None, None, None, "f (a.py:1)", 1),
    ]
    assert set(content.tables[1].columns["kind"]) == {"cpu"} and content.lines == 5
    assert set(content.trees) == {Thread(7, process, 8, "w"), Thread()}


# ---------------------------------------------------------------- the tree


def shape(tree: Tree) -> dict[tuple[str, ...], tuple[int, int]]:
    """Self and total by path, walked by depth alone."""
    found, path = {}, []
    for depth, frame, own, total in zip(tree.depth, tree.frame, tree.own, tree.total, strict=True):
        path[int(depth) :] = [tree.names[frame]]
        found[tuple(path)] = (int(own), int(total))
    return found


FRAMES = st.sampled_from(["a", "b", "a!", "bb", "a;"])
STACKS = st.dictionaries(st.lists(FRAMES, min_size=1, max_size=7).map(tuple), st.integers(1, 9), min_size=1)


@settings(max_examples=200, deadline=None)
@given(weights=STACKS)
def test_tree_and_tables_are_those_of_a_plain_count(
    tmp_path_factory: pytest.TempPathFactory, weights: dict[tuple[str, ...], int]
) -> None:
    lines = [(tuple(";".join(stack).split(";")), count) for stack, count in weights.items()]
    own: Counter[tuple[str, ...]] = Counter()
    total: Counter[tuple[str, ...]] = Counter()
    function: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for stack, count in lines:
        own[stack] += count
        total.update({stack[: depth + 1]: count for depth in range(len(stack))})
        function[stack[-1]][0] += count
        for name in set(stack):
            function[name][1] += count
    folder = tmp_path_factory.mktemp("folded")
    content = read(written(folder, "".join(f"{';'.join(stack)} {count}\n" for stack, count in lines)))
    (tree,) = content.trees.values()
    assert shape(tree) == {path: (own[path], total[path]) for path in total}
    assert stacks(content) == {";".join(stack): count for stack, count in own.items()}
    assert functions(content) == {name: tuple(sums) for name, sums in function.items()}
    below = [[j for j in range(len(tree.depth)) if i < j < tree.end[i]] for i in range(len(tree.depth))]
    assert all(tree.depth[j] > tree.depth[i] for i, nodes in enumerate(below) for j in nodes)
    assert all(tree.parent[j] < 0 or j in below[tree.parent[j]] for j in range(len(tree.depth)))


def test_texts_are_a_sequence_like_any_other(tmp_path: Path) -> None:
    table = read(written(tmp_path, "a;b 3\na 2\nc 1\n")).tables[0]
    texts: Any = table.columns["stack"]
    assert list(texts) == ["a;b", "a", "c"] and list(texts[1:]) == ["a", "c"] and texts[-1] == "c" and len(texts) == 3
    assert tables.arrow("stacks", [table.with_capture("x")]).column("stack").to_pylist() == ["a;b", "a", "c"]


# ---------------------------------------------------------------- what holds none


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="is empty"):
        read(written(tmp_path, "\n# austin: 3\n"))
    with pytest.raises(ParseError, match="2 of its lines have no count"):
        read(written(tmp_path, "some text\nand more\na 1\n"))
    with pytest.raises(ParseError, match="can't be read: No such file"):
        read(tmp_path / "nothing")
    with pytest.raises(ParseError, match="can't be read"):
        read(tmp_path)
    with pytest.raises(ParseError, match="a line of more than 16 MiB"):
        read(written(tmp_path, b"x" * (17 << 20)))
    with pytest.raises(ParseError, match="no count"):
        read(written(tmp_path, ";" * (1 << 17) + " 3\n"))


PIECES = st.sampled_from([b"\n", b"a;b 3\n", b";", b" 7\n", b'process 1:"', b"f (a", b")"])


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.one_of(st.binary(max_size=30), PIECES), max_size=30))
def test_any_bytes_give_tables_or_an_error_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, text: list[bytes]
) -> None:
    try:
        content = read(written(tmp_path_factory.mktemp("any"), b"".join(text)))
    except ParseError as error:
        assert "\n" not in str(error)
        return
    for table in content.tables:
        assert tables.arrow(table.name, [table.with_capture("x")]).num_rows == len(table)
