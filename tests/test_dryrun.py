"""`profrun check`: what it prints is what a run starts, and it says before the run what will be missing."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest
from cli import profrun, write_plan

TIMING = "{use: timing, warmup: 1, repeats: 3}"


def check(*words: str | Path, cwd: Path, code: int = 0) -> list[str]:
    result = profrun("check", *words, cwd=cwd)
    assert result.code == code, result.stderr
    assert not (cwd / "reports").exists()
    return result.stdout.splitlines()


def test_repeats_stand_once(tmp_path: Path) -> None:
    lines = check(write_plan(tmp_path, TIMING), "--", "true", cwd=tmp_path)
    assert lines == [
        "plan test: 4 starts of true, about 4 times the bare run and up to 16.4 kB of raw data",
        "p01  timing, warm-up",
        "    inside      steps",
        "    target      true",
        "p02 to p04  timing, bare",
        "    inside      steps",
        "    target      true",
    ]


def test_without_a_command_the_plan_is_checked_all_the_same(tmp_path: Path) -> None:
    lines = check(write_plan(tmp_path, TIMING), cwd=tmp_path)
    assert lines[1] == "no command is given: COMMAND stands for it"
    assert "    target      COMMAND" in lines


def test_all_that_the_plan_would_do_is_shown(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        TIMING,
        target="{before_each: [rm, -rf, '{scratch}/ckpt']}",
        environment="[{use: env, set: {A: '1', MY_TOKEN: x}, unset: [B]}, {use: shell, run: [echo, 1a], undo: [tac]}]",
        budget="10x",
    )
    lines = check(plan, "--", "true", cwd=tmp_path)
    assert "budget: 10 times the bare run; passes that would go beyond it are left out" in lines
    at = lines.index("environment, undone in reverse")
    assert lines[at + 1 : at + 4] == [
        "    env         A=1 'MY_TOKEN=[redacted]' -u B",
        "    shell       echo 1a",
        "      undo      tac",
    ]
    assert lines.count("    before_each rm -rf '{scratch}/ckpt'") == 2


def test_a_collector_that_will_be_missing_and_what_that_ends_in(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, "{use: nsys}", tools="{nsys: /nowhere/nsys}")
    lines = check(plan, "--", "true", cwd=tmp_path)
    assert lines[1:3] == [
        "  missing nsys: the plan's tools.nsys is /nowhere/nsys, which is no program that can be run",
        "          next: mend that path, or leave it out",
    ]
    assert lines[-1] == "without nsys the run ends in exit status 4 (`required: false` would allow that)"
    assert "4 starts" in lines[0], "what is left out is not counted"


def test_nothing_left_to_run(tmp_path: Path) -> None:
    lines = check(write_plan(tmp_path, "{use: nsys}", tools="{nsys: /no/nsys}"), "--", "true", cwd=tmp_path, code=3)
    assert lines[0] == "plan test: no start of true is possible"
    assert lines[-1] == "nothing in this plan can run here"


@pytest.mark.parametrize(("on_fail", "code"), [("fail", 3), ("warn", 0)])
def test_an_environment_that_can_not_be_made_is_told_before_the_run(tmp_path: Path, on_fail: str, code: int) -> None:
    step = f"[{{use: shell, run: [no-such-program], on_fail: {on_fail}}}]"
    plan = write_plan(tmp_path, TIMING, environment=step)
    lines = check(plan, "--", "true", cwd=tmp_path, code=code)
    assert lines[1] == "  missing shell: no-such-program: command not found"
    result = profrun(plan, "--", "touch", "ran", cwd=tmp_path)
    assert result.code == code
    assert (tmp_path / "ran").exists() == (code == 0)
    said = "no-such-program: command not found" if on_fail == "fail" else "can't be started: command not found"
    assert said in result.stderr


def test_a_look_at_a_running_process(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, "{use: strace}")
    lines = check(plan, "--pid", str(os.getpid()), "--duration", "2s", cwd=tmp_path)
    assert re.fullmatch(rf"plan test: looks at process {os.getpid()} \(.*\) with strace, for 2 s", lines[0])
    assert not any("target" in line for line in lines if line.startswith("    "))


@pytest.mark.tool("strace", "nsys", "py-spy")
def test_what_is_printed_is_what_runs(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        "{use: timing, warmup: 0, repeats: 1}",
        "{use: strace}",
        "{use: nsys}",
        "{use: py-spy}",
        report="{formats: []}",
    )
    words = [plan, "--", sys.executable, "-c", "import time; time.sleep(0.3)"]
    told = json.loads(profrun("check", "--json", *words, cwd=tmp_path).stdout)
    folder = profrun(*words, cwd=tmp_path).folder
    for number, name in enumerate(("strace", "nsys", "py-spy"), 2):
        capture = json.loads((folder / f"raw/p0{number}-{name}/command.json").read_text())
        first = _general(capture["command"])
        printed = [_general(command["argv"]) for command in told["passes"][number - 1]["commands"]]
        assert any(argv[: len(first)] == first for argv in printed), (first, printed)


def _general(argv: list[str]) -> list[str]:
    """Without what is known only when it runs: the capture's folder, the name made from it, the process, its number."""
    text = json.dumps(argv)
    for pattern, name in ((r"/[^\"= ]*/p\d+\.\d+/[a-z0-9-]+", "{dir}"), (r"profrun-[0-9a-f]{8}-1", "SESSION")):
        text = re.sub(pattern, name, text)
    text = re.sub(r'"--pid", "\d+"', '"--pid", "{pid}"', text).replace("profile.0.", "profile.{n}.")
    words: list[str] = json.loads(text)
    return words
