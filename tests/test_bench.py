"""scripts/bench parse: what it measures, and what it says of results that differ and of goals that are missed."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


@pytest.fixture
def frame(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("parsebench.frame")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, SCRIPTS / "bench", "parse", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120)


def test_both_sides_of_a_small_input_say_the_same(shared: Path, tmp_path: Path) -> None:
    done = bench("-n", "1", "--only", "folded", "--scale", "0.002", "--keep", str(tmp_path))
    assert "5 equal" in done.stdout and "a plain Python dict loop" in done.stdout, done.stdout + done.stderr
    assert "met: at most 400 MB" in done.stdout
    assert done.returncode == ("MISSED" in done.stdout)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folded-0.0002", "folded-0.002"]


def test_what_can_not_be_measured_is_a_goal_that_is_missed(tmp_path: Path) -> None:
    (tmp_path / "folded-0.002").mkdir()
    (tmp_path / "folded-0.002/stacks.folded").write_text("of no use\n")
    (tmp_path / "folded-0.0002").symlink_to("folded-0.002")
    done = bench("-n", "1", "--only", "folded", "--scale", "0.002", "--keep", str(tmp_path))
    assert done.returncode == 1 and "folded: not measured" in done.stdout, done.stderr
    assert "parsebench.folded:peer failed: ValueError" in done.stdout


def test_results_are_compared_by_what_the_peer_knows(frame: ModuleType) -> None:
    assert frame.differing({"a": 1, "b": 2.0, "more": 3}, {"a": 1, "b": 2.0 + 1e-12}) == []
    assert frame.differing({"a": 1, "b": 2.0}, {"a": 2, "b": 2.01, "c": 0}) == ["a", "b", "c"]
    assert frame.differing({"rows": [["x", 1.0]]}, {"rows": [["x", 1.0 + 1e-12]]}) == []
    assert frame.differing({"rows": [["x", 1]]}, {"rows": [["x", 1], ["y", 2]]}) == ["rows"]


def test_a_digest_is_of_the_rows_whatever_their_order(frame: ModuleType) -> None:
    rows = [("a", 1, None), ("b", 2, 3.5)]
    assert frame.digest(rows) == frame.digest(reversed(rows)) != frame.digest(rows[:1])


def test_a_reader_is_a_fresh_process_and_its_failure_is_told(
    frame: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reader_of_a_test.py").write_text(
        "def read(path):\n    print('noise')\n    data = bytearray(b'x') * (80 << 20)\n"
        "    return lambda: {'size': len(data), 'text': path.read_text()}\n"
        "def fail(path):\n    raise ValueError('of no use')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(frame, "PYTHON", sys.executable)
    one, file = importlib.import_module("reader_of_a_test"), tmp_path / "in"
    file.write_text("text")
    run = frame.run(one.read, file, tmp_path)
    assert run.results == {"size": 80 << 20, "text": "text"}
    assert 80 << 20 < run.rss_bytes < 200 << 20 and run.cpu_s > 0 and run.wall_s > 0
    with pytest.raises(frame.Unable, match=r"reader_of_a_test:fail failed: ValueError: of no use"):
        frame.run(one.fail, file, tmp_path)


def test_a_generator_that_is_not_there_is_named(
    frame: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(frame, "GENERATORS", tmp_path)
    with pytest.raises(frame.Unable, match=r"gen_folded.py is not there: it is expected in"):
        frame.generated("gen_folded.py")
