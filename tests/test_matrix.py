"""The checks of the fault matrix themselves: each finds what it is there for."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import waiting
from cli import Result, write_plan
from matrix import words
from matrix.words import Fault, Place

HTML = "{directory: reports, formats: [html]}"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """A run in which nothing was wrong."""
    place = Place.made(tmp_path_factory.mktemp("healthy") / "place")
    plan = write_plan(place.folder, "{use: timing, warmup: 0, repeats: 1}", "{use: monitor}", report=HTML)
    return place.profrun(plan, "--", "sleep", "0.3")


Damage = Callable[[Place, Result], Result]


def tried(tmp_path: Path, healthy: Result, damage: Damage, says: str = "bare run", code: int = 0) -> tuple[str, ...]:
    """What is found wrong of a copy of the healthy run, once damaged."""

    def inject(place: Place) -> Result:
        shutil.copytree(healthy.cwd / "reports", place.folder / "reports", symlinks=True)
        return damage(place, replace(healthy, cwd=place.folder))

    return words.tried(Fault("damage", inject, code, says, {"timing": "ok"}), tmp_path / "place").wrong


def same(_place: Place, result: Result) -> Result:
    return result


def after(line: str) -> Damage:
    return lambda place, result: replace(result, stderr=result.stderr + line)


def ended(code: int, message: str) -> Damage:
    def damage(_place: Place, result: Result) -> Result:
        return replace(result, code=code, stderr=result.stderr.replace("profrun: ok", message))

    return damage


def on(name: str, change: Callable[[Path], object]) -> Damage:
    """Something happens to a file of the report."""

    def damage(_place: Place, result: Result) -> Result:
        change(result.folder / name)
        return result

    return damage


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 20)


def summarised(change: Callable[[dict[str, object]], object]) -> Callable[[Path], None]:
    def rewrite(path: Path) -> None:
        summary = json.loads(path.read_text())
        change(summary)
        path.write_text(json.dumps(summary))

    return rewrite


def touched(where: str, name: str) -> Damage:
    def damage(place: Place, result: Result) -> Result:
        (getattr(place, where) / name).touch()
        return result

    return damage


def running(program: str, **more: object) -> Damage:
    """A process that bears the place in its environment, or works in it."""

    def damage(place: Place, result: Result) -> Result:
        env = {**place.env(), **({"TMPDIR": ""} if more else {})}
        subprocess.Popen([sys.executable, "-c", program], env=env, cwd=place.folder if more else "/")
        waiting.until(lambda: words.alive(place))
        return result

    return damage


def locked(place: Place, result: Result) -> Result:
    file = (place.state / "lock-cpu").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    OPEN.append(file)
    return result


OPEN: list[object] = []
"""Kept open: the lock lasts as long."""
SLEEPS, STOPS = "import time; time.sleep(99)", "import os, signal, time; os.kill(os.getpid(), 19); time.sleep(99)"


def test_nothing_is_wrong_of_a_healthy_run(tmp_path: Path, healthy: Result) -> None:
    assert tried(tmp_path, healthy, same) == ()


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (ended(4, "profrun: exit 4: strace"), "exit status 4, not 0"),
        (ended(0, "profrun: exit 4: strace"), "exit status 0 and the message"),
        (ended(0, "fine"), "no message at the end"),
        (after("one thing more\n"), "after the message came 'one thing more'"),
        (after("Traceback (most recent call last):\n"), "a traceback"),
        (after("profrun: this is a bug in profrun\n"), "a bug report"),
        (on("index.html", Path.unlink), "index.html is missing"),
        (on("index.html", cut), "index.html is missing or cut"),
        (on("summary.json", cut), "no report that can be read"),
        (on("machine.json", cut), "no report that can be read"),
        (on("summary.json", summarised(lambda s: s["outcome"].update(exit_code=7))), "summary.json says exit status 7"),
        (on("summary.json", summarised(lambda s: s["tables"]["runs"].update(rows=9))), "table runs has 1 rows, not 9"),
        (on("summary.json", summarised(lambda s: s["captures"][0].update(status="empty"))), "timing is empty"),
        (on("raw/p02-monitor/samples.jsonl", cut), "raw/p02-monitor/samples.jsonl has"),
        (on("tables/runs.parquet", cut), "table runs can't be read"),
        (touched("tmp", "profrun-left"), "left behind: tmp/profrun-left"),
        (touched("state", "run.jsonl"), "left behind: state/run.jsonl"),
        (locked, "still locked: lock-cpu"),
        (running(SLEEPS), "alive (state"),
        (running(SLEEPS, here=True), "alive (state"),
        (running(STOPS), "alive (state T)"),
        (lambda place, result: Path("/nowhere/x").read_text(), "the injection failed"),
    ],
)
def test_what_is_wrong_is_found(
    tmp_path: Path, healthy: Result, damage: Damage, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage.__qualname__.startswith("running"):
        monkeypatch.setattr(waiting, "LIMIT_S", 3)
    wrong = tried(tmp_path, healthy, damage)
    assert any(found in one for one in wrong), wrong


def test_words_that_nobody_said_are_missed(tmp_path: Path, healthy: Result) -> None:
    assert tried(tmp_path, healthy, same, says="strace: .*") == ("nobody said 'strace: .*'",)
