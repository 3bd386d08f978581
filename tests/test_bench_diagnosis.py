"""scripts/bench diagnosis: its truths, its neutral copies, its scores; and one planted program from end to end."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPO = Path(__file__).resolve().parent.parent
OWN = sorted((REPO / "tests" / "bottlenecks").glob("*.py"))
LIMIT_S = 300


@pytest.fixture
def truth(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(REPO / "scripts"))
    return importlib.import_module("diagbench.truth")


@pytest.fixture
def neutral(truth: ModuleType) -> ModuleType:
    return importlib.import_module("diagbench.neutral")


@pytest.fixture
def runs(truth: ModuleType) -> ModuleType:
    return importlib.import_module("diagbench.runs")


def printed(source: str, folder: Path) -> tuple[int, str]:
    path = folder / "program.py"
    path.write_text(source)
    argv = [sys.executable, path.name]
    done = subprocess.run(argv, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S)
    return done.returncode, done.stdout


# ---------------------------------------------------------------- truths


@pytest.mark.parametrize(
    ("line", "categories", "place", "details", "alone"),
    [
        ("file_io at log (syscall fsync)", ("file_io",), "log", (("syscall", ("fsync",)),), False),
        ("input_pipeline at A.__getitem__", ("input_pipeline",), "A.__getitem__", (), False),
        ("native_cpu or python_cpu at f", ("native_cpu", "python_cpu"), "f", (), False),
        (
            "native_cpu at f (op aten::mm or aten::addmm); no other finding above minor",
            ("native_cpu",), "f", (("op", ("aten::mm", "aten::addmm")),), True,
        ),
        ("cpu_oversubscription", ("cpu_oversubscription",), None, (), False),
        ("healthy", (), None, (), False),
    ],
)  # fmt: skip
def test_a_truth_is_read(truth: ModuleType, line: str, categories: Any, place: Any, details: Any, alone: bool) -> None:
    told = truth.parsed(line)
    assert (told.categories, told.place, told.details, told.alone) == (categories, place, details, alone)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("print(1)", "the docstring has no `truth:` line"),
        ('"""truth: healthy\ntruth: healthy"""', "has 2 `truth:` lines, it needs one"),
        ('"""truth: slow at f"""', "`slow` is not a category"),
        ('"""truth: file_io in f"""', "is not `CATEGORY [at PLACE]"),
        ('"""truth: file_io at f; or so"""', "behind `;` only `no other finding above minor`"),
    ],
)
def test_a_truth_that_can_not_be_read_is_refused(truth: ModuleType, source: str, said: str) -> None:
    with pytest.raises(truth.BadTruth, match=re.escape(said)):
        truth.truth_of(source)


# ---------------------------------------------------------------- scores


def finding(category: str, severity: str = "critical", **where: str) -> dict[str, Any]:
    return {"rule": "r", "category": category, "severity": severity, "where": where, "cost_pct": 40.0}


@pytest.mark.parametrize(
    ("line", "findings", "rank", "why"),
    [
        ("file_io at f (syscall fsync)", [finding("file_io", function="f", syscall="fsync")], 1, ""),
        ("file_io at A.f", [finding("file_io", function="mod.A.f")], 1, ""),
        ("file_io at A.f", [finding("file_io", function="f")], 1, ""),  # Python 3.10 knows no class
        ("file_io at f", [finding("file_io", function="f.<locals>.<genexpr>")], 1, ""),
        ("file_io at f", [finding("file_io", function="self")], None, "at self, not at f"),
        ("file_io at A.f", [finding("file_io", function="B.f")], None, "at B.f, not at A.f"),
        ("file_io at f (syscall read)", [finding("file_io", function="f", syscall="pread64")], None, "syscall pread64"),
        ("file_io at f (syscall read)", [finding("file_io", function="f")], None, "syscall None"),
        ("file_io at f", [finding("idle_wait"), finding("file_io", function="f")], 2, "idle_wait is not file_io"),
        ("file_io at f", [finding("file_io", "info", function="f")], 1, "only told as info"),
        ("file_io at f", [], None, "no finding"),
        ("native_cpu at f; no other finding above minor", [finding("native_cpu", "info", function="f")], 1, ""),
        (
            "native_cpu at f; no other finding above minor",
            [finding("native_cpu", function="f"), finding("file_io", "major")], 1, "r is major beside it",
        ),
        ("healthy", [finding("native_cpu", "minor")], None, ""),
        ("healthy", [finding("native_cpu", "info"), finding("file_io", "major")], None, "r is major"),
        ("healthy", [], None, ""),
    ],
)  # fmt: skip
def test_a_report_is_right_where_its_first_finding_says_the_truth(
    truth: ModuleType, line: str, findings: list[dict[str, Any]], rank: int | None, why: str
) -> None:
    score = truth.scored(truth.parsed(line), findings)
    assert (score.rank, score.right) == (rank, not why)
    assert why in score.why


# ---------------------------------------------------------------- neutral copies

PROGRAM = '''\
"""Says what it does.

truth: healthy
"""
import functools
import threading
from collections import namedtuple
from dataclasses import dataclass, field

LIMIT = 40  # of what it counts
# vary: LIMIT 2..2
Point = namedtuple("Point", "x y")


@dataclass
class Item:
    """Named."""
    title: str
    weight: float = 1.0
    parts: list = field(default_factory=list)

    def heavier(self, by, *, times=1):
        return Item(title=self.title, weight=self.weight + by * times)


class Shelf(dict):
    def __missing__(self, key):
        self[key] = Item(key)
        return self[key]

    def copy(self):
        return "own copy"

    def weigh(self):
        return sum(item.weight for item in self.values())


class Worker(threading.Thread):
    def __init__(self, shelf):
        super().__init__()
        self.shelf, self.said = shelf, []

    def run(self):
        for number in range(3):
            self.said.append(scaled(number, factor=2))


def scaled(number, factor):
    def inner():
        nonlocal number
        number += 1
        return number * factor
    return inner()


count = 0


def counted():
    global count
    count += 1
    return count


shelf = Shelf()
heavy = shelf["a"].heavier(1.5, times=2)
worker = Worker(shelf)
worker.start()
worker.join()
triple = functools.partial(scaled, factor=3)
point = Point(x=1, y=2)
try:
    {}["missing"]
except KeyError as error:
    print(f"{error!r} {count=} {heavy.weight:.1f}", shelf.copy(), [x for x in worker.said])
print(triple(2), counted(), point.x, LIMIT, (lambda item: item.title)(heavy), shelf.weigh(), dict(list="list"))
match point:
    case Point(x=1, y=second):
        print(second)
'''


def test_a_neutral_copy_does_the_same_under_other_names(neutral: ModuleType, tmp_path: Path) -> None:
    copy = neutral.neutral(PROGRAM, seed=1, vary=False)
    assert printed(copy.source, tmp_path) == printed(PROGRAM, tmp_path)
    for own in ("Shelf", "scaled", "counted", "inner", "worker", "heavy", "Says", "Named", "of what"):
        assert own not in copy.source.replace('"', ""), own
    assert copy.names["scaled"] in copy.source and "__missing__" in copy.source and "def run" in copy.source


def test_names_and_sizes_come_of_the_seed(neutral: ModuleType) -> None:
    first, again, other = (neutral.neutral(PROGRAM, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert re.search(r"^n\d+ = 80$", first.source, re.MULTILINE)


def test_only_turns_that_are_no_size_of_the_data_are_varied(neutral: ModuleType) -> None:
    program = """\
import torch
def size():
    return [value for value in range(1000)]
for step in range(1000):
    torch.ones(1).backward()
for _ in range(1000):
    size()
rows = []
for _ in range(1000):
    rows.append(1)
for row in range(1000):
    rows[row]
for _ in range(10):
    size()
"""
    counts = re.findall(r"range\((\d+)\)", neutral.neutral(program, seed=3).source)
    assert [count == "1000" for count in counts] == [True, False, False, True, True, False]
    assert all(800 <= int(count) <= 1200 for count in counts[1:3]) and counts[-1] == "10"


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("from os import *", "line 1: `import *`"),
        ("x = 1\nexec('x = 2')", "line 2: `exec` sees names as text"),
        ("class A:\n    b = 1\nprint(getattr(A(), 'b'))", "line 3: `getattr` by the text 'b', an own name"),
        ("def f(a):\n    pass\nname = 'a'\nf(**{name: 1})", "line 4: `**` in a call of the own `f`"),
        ("class A:\n    pass\nprint(A().__dict__)", "line 3: a name or docstring is used as text"),
        ("def f():\n    pass\nprint(getattr(f, input()))", "line 3: `getattr` by a name that is only known as"),
        ("# vary: SIZE 1..2", "`# vary: SIZE`: the module gives no number of that name"),
    ],
)
def test_what_can_not_be_renamed_for_certain_is_refused(neutral: ModuleType, program: str, said: str) -> None:
    with pytest.raises(neutral.Unsafe, match=re.escape(said)):
        neutral.neutral(program, seed=1)


def test_without_a_switch_there_is_no_repaired_twin(neutral: ModuleType) -> None:
    assert "True" in neutral.neutral("REPAIRED = False", 1, repaired=True).source
    with pytest.raises(neutral.Unsafe, match="no `REPAIRED = False`"):
        neutral.neutral("print(1)", 1, repaired=True)


# ---------------------------------------------------------------- the corpus


def shrunken(source: str) -> str:
    """The same program with few steps, and hardly a sleep."""
    fewer = re.sub(r"(for \w+ in range)\(\d{2,}\):", r"\1(5):", source)
    return re.sub(r"sleep\(0\.\d+", "sleep(0.001", fewer)


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.stem)
def test_every_program_of_the_corpus_has_a_neutral_copy(runs: ModuleType, neutral: ModuleType, path: Path) -> None:
    for planted in runs.programs([path.parent], f"^{path.stem}(, repaired)?$"):
        copy = neutral.neutral(planted.source, 1, repaired=planted.repaired)
        place = planted.truth.renamed(copy.names).place
        compile(copy.source, path.name, "exec")
        assert path.stem not in copy.source and "truth" not in copy.source
        assert place is None or (place != planted.truth.place and place.rpartition(".")[2] in copy.source)


def test_the_corpus_is_broad(runs: ModuleType) -> None:
    planted = runs.programs([OWN[0].parent])
    kinds = {category for one in planted for category in one.truth.categories}
    assert sum(one.repaired for one in planted) == sum(not one.truth.healthy for one in planted) >= 20
    assert sum(one.truth.healthy and not one.repaired for one in planted) >= 6 and len(kinds) >= 11


@pytest.mark.parametrize("name", ["http_per_step", "slow_workers"])
def test_a_copy_of_a_program_of_the_corpus_prints_the_same(neutral: ModuleType, tmp_path: Path, name: str) -> None:
    source = shrunken((REPO / "tests" / "bottlenecks" / f"{name}.py").read_text())
    told = printed(source, tmp_path)
    assert told[0] == 0 and told[1]
    assert printed(neutral.neutral(source, 1, vary=False).source, tmp_path) == told


# ---------------------------------------------------------------- the benchmark


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, REPO / "scripts" / "bench", "diagnosis", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """What names a place and what it waits for, and no more."""
    path = tmp_path / "plan.yaml"
    path.write_text(
        "version: 1\ncollectors:\n  - {use: timing, warmup: 0, repeats: 1}\n"
        "  - together: [{use: py-spy, native: true}, {use: monitor}]\n"
    )
    return path


WAITS = '''\
"""Sleeps between its steps.

truth: {}
"""
import time


def {}():
    time.sleep(0.05)


for _ in range(60):
    pause()
print("done")
'''


@pytest.mark.tool("py-spy")
def test_a_planted_program_is_told_by_its_kind_and_place(tmp_path: Path, plan: Path) -> None:
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "rest.py").write_text(WAITS.format("idle_wait at pause", "pause"))
    (folder / "wrong.py").write_text(WAITS.format("network_io at pause", "pause"))
    done = bench(str(folder), "--plan", str(plan), "--json")
    assert done.returncode == 1, done.stderr
    rest, wrong = json.loads(done.stdout)
    assert rest["right"] and rest["rank"] == 1 and rest["top"]["category"] == "idle_wait", done.stdout
    assert rest["top"]["where"]["function"] == rest["names"]["pause"] != "pause"
    assert not wrong["right"] and wrong["why"] == "idle_wait is not network_io"


def test_a_folder_without_programs_is_told(tmp_path: Path) -> None:
    done = bench(str(tmp_path))
    assert done.returncode == 1 and f"no program in {tmp_path}" in done.stderr
    (tmp_path / "one.py").write_text("print(1)")
    done = bench(str(tmp_path))
    assert done.returncode == 1 and "one.py: the docstring has no `truth:` line" in done.stderr
