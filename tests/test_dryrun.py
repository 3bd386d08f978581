"""`profrun check`: what it prints is what a run starts, and it says before the run what will be missing."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cli import profrun, write_plan
from fakes import sysfs

from orchestrator.dryrun import DryRun, dry_run
from orchestrator.machine import Machine
from orchestrator.planfile import plans

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


def test_what_is_split_into_passes_is_told_and_shown(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "together: [{use: timing, warmup: 0, repeats: 1}, {use: monitor}]")
    assert profrun("check", plan, "--", "true", cwd=tmp_path).code == 2
    lines = check("--auto-passes", plan, "--", "true", cwd=tmp_path)
    said = "split into 2 passes, timing, monitor: timing can't share a pass: it measures the undisturbed run"
    assert lines[1] == f"{plan}:4: {said}"
    assert [line for line in lines if line.startswith("p0")] == ["p01  timing, bare", "p02  monitor"]
    data = json.loads("\n".join(check("--auto-passes", "--json", plan, "--", "true", cwd=tmp_path)))
    assert data["splits"] == [lines[1]]
    only = check("--auto-passes", "--only", "monitor", plan, "--", "true", cwd=tmp_path)
    assert [line for line in only if "split" in line] == []


@pytest.mark.tool("py-spy", "strace")
def test_beside_strace_py_spy_is_shown_as_it_will_run(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "together: [{use: strace}, {use: py-spy}]")
    assert [line for line in check(plan, "--", "true", cwd=tmp_path) if "--nonblocking" in line]


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
    text = re.sub(r'"--pid", "\d+"', '"--pid", "{pid}"', text).replace("profile.0.", "profile.{n}.{who}")
    words: list[str] = json.loads(text)
    return words


def test_nothing_in_the_plan_can_look_at_a_running_process(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING)
    lines = check(plan, "--pid", str(os.getpid()), cwd=tmp_path, code=3)
    assert lines[0].startswith(f"plan test: nothing in it can look at process {os.getpid()} (")
    assert lines[-1] == "nothing in this plan can run here"


@pytest.fixture
def told(tmp_path: Path) -> Callable[[str], DryRun]:
    """What check finds for one environment step on a machine with 128 processors."""
    sysfs.make(tmp_path, "intel_pstate", cpus=128)
    for name, content in (("dev/cpu_dma_latency", b"\x00\x94\x35\x77"), ("proc/sys/vm/drop_caches", b"0\n")):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)

    def told(step: str) -> DryRun:
        plan = plans.load(write_plan(tmp_path, TIMING, environment=f"[{step}]"))
        return dry_run(plan, ["true"], Machine(root=tmp_path), None)

    return told


def changes_of(found: DryRun) -> list[str]:
    lines = found.text().splitlines()
    first = lines.index("environment, undone in reverse") + 1
    return [line.strip() for line in lines[first : next(n for n, line in enumerate(lines) if line.startswith("p01"))]]


def test_settings_that_are_alike_stand_once_with_their_course(told: Callable[[str], DryRun]) -> None:
    found = told("{use: cpu_frequency, governor: powersave, max: 99GHz, turbo: false, max_cstate: 1}")
    governor, most, turbo, idle = changes_of(found)
    assert governor == "cpu_frequency policy0-127 governor: already: powersave"
    assert most.startswith("cpu_frequency policy0-127 max") and "4.8 GHz → 2.4 GHz" in most
    assert turbo == "cpu_frequency no_turbo: 0 → 1"
    assert idle == "cpu_frequency C-states up to C1 (1 µs): no limit → awake within 1 µs"
    assert "policy0-127 max: 99 GHz is not there, the nearest is 2.4 GHz" in found.text()


def test_what_can_not_be_done_or_undone_is_told_in_plain_words(told: Callable[[str], DryRun]) -> None:
    assert changes_of(told("{use: drop_caches}")) == ["drop_caches sync", "drop_caches caches: 3, without an undo"]
    (line,) = changes_of(told("{use: cpu_frequency, governor: ondemand}"))
    assert line == (
        "cpu_frequency policy0-127 governor: not available: the driver intel_pstate offers performance, powersave, "
        "not ondemand"
    )


def test_each_change_stands_in_the_data_with_what_the_setting_says_now(told: Callable[[str], DryRun]) -> None:
    (deed,) = told("{use: cpu_frequency, governor: performance}").data()["environment"]
    assert (deed["for"], len(deed["changes"])) == ("cpu_frequency", 128)
    one = deed["changes"][0]
    assert (one["change"]["kind"], one["change"]["text"], one["now"]) == ("write", "performance", "powersave")


def test_that_nobody_watches_is_told_once_and_only_of_what_could_be_seen(told: Callable[[str], DryRun]) -> None:
    steps = "{use: cpu_frequency, max: 2GHz}, {use: cpu_frequency, turbo: false}, {use: cpu_frequency, max_cstate: 1}"
    said = [line for line in told(steps).text().splitlines() if "nobody" in line]
    assert said == ["  warn    cpu_frequency: nobody looks whether the processors' clocks hold while the program runs"]
    assert "nobody" not in told("{use: cpu_frequency, governor: performance}").text()


def test_a_plan_that_insists_on_a_step_is_refused_by_its_name(told: Callable[[str], DryRun]) -> None:
    found = told("{use: cpu_frequency, governor: ondemand, on_fail: fail}")
    assert "the plan's environment can't be made here: cpu_frequency: policy0-127 governor: " in found.text()
