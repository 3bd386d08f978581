"""Whole runs through the command line, with the bare program and small stand-ins for tools that misbehave."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, kill, processes, unmistakable, until

from orchestrator.signals import TWINS_S

TIMING = "{use: timing, warmup: 0, repeats: 1}"
FAST = {"report": "{formats: []}"}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return write_plan(tmp_path, TIMING, **FAST)


def stand_in(folder: Path, name: str, body: str) -> Path:
    """A tool that answers questions about itself as the real one does and then does what the test wants."""
    version = {"py-spy": "py-spy 0.4.3", "nsys": "NVIDIA Nsight Systems version 2022.4.2", "ncu": "Version 2022.3.0"}
    help_text = "--format chrometrace --idle --threads --nonblocking --gil --subprocesses --duration"
    text = (
        f'#!/bin/sh\ncase " $* " in *" --version "*) echo "{version[name]}"; exit 0;;'
        f' *" --help "*) echo "{help_text}"; exit 0;; esac\n'
    )
    return script(folder / name, text + body)


# ---------------------------------------------------------------- the target's own life


@pytest.mark.parametrize(
    ("text", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -6 $$", 134), ("exit 126", 126)]
)
def test_the_exit_status_is_the_targets(plan: Path, tmp_path: Path, text: str, code: int) -> None:
    result = profrun(plan, "--", "sh", "-c", text, cwd=tmp_path)
    assert result.code == code
    assert result.summary["outcome"]["exit_code"] == code


def test_every_word_after_the_dashes_reaches_the_target(plan: Path, tmp_path: Path) -> None:
    words = ["-o", "x", "--help", "--", "-d", "3", "", "a b", "\udcff", "$HOME", "*"]
    code = "import sys,os; print([os.fsencode(a) for a in sys.argv[1:]])"
    result = profrun(plan, "--", sys.executable, "-c", code, *words, cwd=tmp_path)
    assert result.stdout.splitlines()[0] == str([os.fsencode(word) for word in words])


def test_without_dashes_the_command_begins_at_the_second_word(plan: Path, tmp_path: Path) -> None:
    result = profrun("--name", "named", plan, "echo", "-o", "--help", cwd=tmp_path)
    assert result.stdout.splitlines()[0] == "-o --help"
    assert result.folder.name.startswith("named-")


def test_paths_with_spaces(tmp_path: Path) -> None:
    odd = tmp_path / "a folder with 'quotes' and spaces"
    (odd / "tmp dir").mkdir(parents=True)
    (odd / "tr ain.py").write_text("print('trained')")
    plan = write_plan(odd, TIMING)
    env = environment(TMPDIR=str(odd / "tmp dir"))
    result = profrun(plan, "-o", odd / "re ports", "--", sys.executable, odd / "tr ain.py", cwd=odd, env=env)
    assert result.code == 0
    assert "trained" in result.stdout
    assert (result.folder / "index.html").exists()


def test_stdin_reaches_every_pass(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 1, repeats: 2}", **FAST)
    result = profrun(plan, "-v", "--", "cat", cwd=tmp_path, stdin="hello\n")
    assert result.stdout.splitlines()[:3] == ["hello"] * 3


def test_output_is_shown_once_and_kept_for_every_pass(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 2}", **FAST)
    result = profrun(plan, "--", "sh", "-c", "echo out; echo err >&2", cwd=tmp_path)
    assert result.stdout.splitlines()[:-1] == ["out"]
    assert result.stderr.splitlines().count("err") == 1
    for name in ("p01-target", "p02-target"):
        assert (result.folder / "raw" / name / "stdout.log").read_text() == "out\n"


def test_json_keeps_stdout_for_the_summary(plan: Path, tmp_path: Path) -> None:
    result = profrun(plan, "--json", "--", "echo", "noise", cwd=tmp_path)
    summary = json.loads(result.stdout)
    assert summary["schema"] == "profrun/summary/1"
    assert "noise" in result.stderr


def test_the_largest_memory_is_the_targets_own_or_unknown(plan: Path, tmp_path: Path) -> None:
    large = profrun(plan, "--", sys.executable, "-c", "x = b'x' * (400 << 20)", cwd=tmp_path)
    assert large.summary["passes"][0]["run"]["max_rss_bytes"] > 400 << 20
    small = profrun(plan, "--", "true", cwd=tmp_path)
    assert small.summary["passes"][0]["run"]["max_rss_bytes"] is None
    assert "max_rss_bytes" not in small.summary["metrics"]


def test_scratch_and_pass_are_filled_in(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        "{use: timing, warmup: 0, repeats: 2}",
        target="{before_each: [sh, -c, 'echo {pass} >> log'], env: {WHERE: '{scratch}/{pass}'}}",
        **FAST,
    )
    result = profrun(plan, "-v", "--", "sh", "-c", 'mkdir "$WHERE" && echo {pass} {other}', cwd=tmp_path)
    assert result.code == 0
    assert (tmp_path / "log").read_text().split() == ["p01", "p02"]
    assert "p01 {other}" in result.stdout


def test_a_failing_before_each_keeps_the_pass_from_running(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, target="{before_each: [sh, -c, 'echo sorry >&2; exit 3']}", **FAST)
    result = profrun(plan, "--", "touch", "ran", cwd=tmp_path)
    assert result.code == 4
    assert "sorry" in result.stderr
    assert not (tmp_path / "ran").exists()


def test_a_bare_run_that_fails_ends_the_run_unless_told_to_go_on(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 1, repeats: 2}", **FAST)
    stopped = profrun(plan, "--", "sh", "-c", "exit 7", cwd=tmp_path)
    assert [c["status"] for c in stopped.summary["captures"]] == ["target_failed", "cancelled", "cancelled"]
    went_on = profrun(plan, "--keep-going", "--", "sh", "-c", "exit 7", cwd=tmp_path)
    assert [c["status"] for c in went_on.summary["captures"]] == ["target_failed"] * 3
    assert stopped.code == went_on.code == 7


def test_metrics_are_read_from_the_output(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path,
        "{use: timing, warmup: 0, repeats: 3}",
        metrics="{loss: 'loss=([0-9.]+)', speed: {pattern: '([0-9]+) t/s', take: mean, unit: t/s}, none: 'x=([0-9])'}",
        **FAST,
    )
    result = profrun(plan, "--", "sh", "-c", "echo loss=2.5; echo loss=1.5; echo 10 t/s >&2; echo 30 t/s", cwd=tmp_path)
    metrics = result.summary["metrics"]
    assert (metrics["loss"]["value"], metrics["loss"]["n"]) == (1.5, 3)
    assert (metrics["speed"]["value"], metrics["speed"]["unit"]) == (20.0, "t/s")
    assert (metrics["none"]["value"], metrics["none"]["n"]) == (None, 0)


# ---------------------------------------------------------------- ends


BECOMES_SLEEP = "until grep -q ^sleep /proc/$!/comm; do :; done"
"""In a shell: the last that was put into the background is the program that it is to be."""


def test_a_time_out_leaves_nobody_alive(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(311)}"
    text = f"{sleep} & setsid {sleep} & {BECOMES_SLEEP}; sh -c '{sleep}; true' & touch up; wait"
    for limit in ("1s", "10s", "1m"):  # a slow machine may need longer to start them all
        plan = write_plan(tmp_path, TIMING, target=f"{{timeout: {limit}}}", **FAST)
        result = profrun(plan, "--", "sh", "-c", text, cwd=tmp_path)
        if (tmp_path / "up").exists():
            break
    assert result.code == 124
    assert "time-out" in result.stderr.splitlines()[-1]
    assert processes(sleep) == []
    killed = result.summary["passes"][0]["run"]["killed"]
    assert any("sleep" in p["argv"] for p in killed)


def test_what_the_target_leaves_running_is_named(plan: Path, tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(312)}"
    try:
        result = profrun(plan, "--", "sh", "-c", f"setsid {sleep} > /dev/null & {BECOMES_SLEEP}", cwd=tmp_path)
        assert result.code == 0
        assert [p["argv"] for p in result.summary["passes"][0]["run"]["leftovers"]] == [sleep.split()]
        assert "still running" in result.stderr
        assert len(processes(f"^{sleep}")) == 1
    finally:
        kill(f"^{sleep}")


def test_leftovers_are_ended_where_the_plan_says_so(tmp_path: Path) -> None:
    plan, sleep = write_plan(tmp_path, TIMING, leftovers="end", **FAST), f"sleep {unmistakable(313)}"
    result = profrun(plan, "--", "sh", "-c", f"setsid {sleep} > /dev/null & {BECOMES_SLEEP}", cwd=tmp_path)
    assert result.code == 0
    assert processes(sleep) == []


CAREFUL = """
import sys, time
print("up", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    open("ckpt", "w").close()
    sys.exit(42)
"""


def apart(running: subprocess.Popen[str], *numbers: int) -> None:
    """Sends signals, each when profrun has taken the one before; closer together they would be one wish."""
    for number in numbers:
        running.send_signal(number)
        until(lambda: running.poll() is not None or not pending(running.pid))
        time.sleep(3 * TWINS_S)


def pending(pid: int) -> bool:
    """Whether a signal waits for the process to take it."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd")))


def interrupted(words: list[str], tmp_path: Path, *signals: int) -> tuple[int, str]:
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    apart(running, *signals)
    _, said = running.communicate(timeout=LIMIT_S)
    return running.returncode, said


def test_an_interrupted_target_finishes_in_its_own_way(plan: Path, tmp_path: Path) -> None:
    code, said = interrupted(command(plan, "--", sys.executable, "-c", CAREFUL), tmp_path, signal.SIGINT)
    assert code == 42
    assert (tmp_path / "ckpt").exists()
    assert "SIGINT" in said.splitlines()[-1]
    assert (tmp_path / "reports" / "latest" / "summary.json").exists()


def test_a_second_interrupt_kills(plan: Path, tmp_path: Path) -> None:
    stubborn = "import signal,time; signal.signal(2, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    words = command(plan, "--", sys.executable, "-c", stubborn, tmp_path)
    code, _ = interrupted(words, tmp_path, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert processes("signal.SIG_IGN", tmp_path) == []


def test_term_is_passed_on(plan: Path, tmp_path: Path) -> None:
    code, _ = interrupted(command(plan, "--", "sh", "-c", "echo up; sleep 600"), tmp_path, signal.SIGTERM)
    assert code == 143


def test_a_window_that_stops_the_target_counts_as_success(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, window="{after: 200ms, for: 500ms, then: stop}", **FAST)
    result = profrun(plan, "--", "sleep", "600", cwd=tmp_path)
    assert result.code == 0
    assert 0.6 < result.summary["passes"][0]["wall_s"] < LIMIT_S


# ---------------------------------------------------------------- tools that misbehave


def nsys_plan(tmp_path: Path, body: str, **more: str) -> Path:
    tool = stand_in(tmp_path, "nsys", body)
    return write_plan(tmp_path, TIMING, "{use: nsys, flush: 1m}", tools=f"{{nsys: {tool}}}", **FAST, **more)


RUN_TARGET = """
[ "$1" = profile ] || exit 1
out=; while [ $# -gt 0 ]; do case "$1" in
  --output=*) out=${1#--output=};; --output|-o) out=$2; shift;;
  profile|export|--*) ;;
  *) break;; esac; shift; done
"""


def test_a_tool_that_says_generated_and_writes_nothing(tmp_path: Path) -> None:
    plan = nsys_plan(tmp_path, RUN_TARGET + '"$@"; code=$?; echo Generated:; exit $code')
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.code == 4
    capture = result.captures()["nsys"]
    assert capture["status"] == "tool_failed"
    assert "nsys" in result.stderr.splitlines()[-1]
    assert result.summary["outcome"]["target_exit_code"] == 0


def test_a_tool_that_is_slow_to_write_gets_its_time(tmp_path: Path) -> None:
    tail = '"$@"; code=$?; trap "exit 1" INT TERM; sleep 1; echo data > "$out.nsys-rep"; exit $code'
    plan = nsys_plan(tmp_path, RUN_TARGET + 'case "$out" in "") exit 0;; esac\n' + tail)
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert (result.folder / "raw/p02-nsys/report.nsys-rep").read_text() == "data\n"
    assert 0 < result.captures()["nsys"]["flush_s"] < 60


def test_a_tool_that_hangs_after_the_target_is_ended(tmp_path: Path) -> None:
    plan = nsys_plan(tmp_path, RUN_TARGET + '"$@"; trap "" INT TERM; mkfifo "$0.fifo"; read x < "$0.fifo"')
    plan.write_text(plan.read_text().replace("flush: 1m", "flush: 1s"))
    result = profrun(plan, "--", "true", cwd=tmp_path)  # it may have ended before anybody could see it
    assert result.code == 4
    assert processes(tmp_path / "nsys") == []


def test_a_target_that_has_become_another_program_is_no_hanging_tool(tmp_path: Path) -> None:
    plan = nsys_plan(tmp_path, RUN_TARGET + 'UNDER_TOOL=1 "$@"; echo x > "$out.nsys-rep"')
    plan.write_text(plan.read_text().replace("flush: 1m", "flush: 1s"))
    result = profrun(plan, "--", "env", "sh", "-c", '[ -z "$UNDER_TOOL" ] || sleep 14', cwd=tmp_path)
    (under,) = [one for one in result.summary["passes"] if "nsys" in one["collectors"]]
    assert under["wall_s"] > 12, under["notes"]
    assert [note for note in under["notes"] if "was stopped" in note] == []


def test_a_tool_that_dies_around_the_target(tmp_path: Path) -> None:
    body = f'TOOL=$$ "$@" & until [ -e {tmp_path}/up ]; do sleep 0.05; done; kill -9 $$'
    plan = nsys_plan(tmp_path, RUN_TARGET + body)
    plan.write_text(plan.read_text().replace(f"  - {TIMING}\n", ""))
    text = "touch up; while kill -0 $TOOL 2> /dev/null; do sleep 0.05; done; echo finished; exit 3"
    result = profrun(plan, "--", "sh", "-c", text, cwd=tmp_path)
    assert result.code == 3
    assert "finished" in result.stdout
    (record,) = result.summary["passes"]
    assert record["run"]["leftovers"] == []
    assert any("killed by SIGKILL" in note for note in record["notes"])
    assert result.captures()["nsys"]["status"] == "tool_failed"


def test_a_target_that_fails_only_under_a_tool(tmp_path: Path) -> None:
    plan = nsys_plan(tmp_path, RUN_TARGET + 'UNDER_TOOL=1 "$@"; code=$?; echo x > "$out.nsys-rep"; exit $code')
    result = profrun(plan, "--", "sh", "-c", 'test -z "$UNDER_TOOL"', cwd=tmp_path)
    assert result.code == 4
    assert result.captures()["nsys"]["status"] == "tool_failed"
    assert result.summary["outcome"]["target_exit_code"] == 0


def test_a_lost_report_is_tried_again_only_where_the_plan_allows_it(tmp_path: Path) -> None:
    body = RUN_TARGET + f'echo x >> {tmp_path}/starts; "$@"; exit 0'
    once = profrun(nsys_plan(tmp_path, body), "--", "true", cwd=tmp_path)
    assert (tmp_path / "starts").read_text().count("x") == 1
    (tmp_path / "starts").unlink()
    twice = profrun(nsys_plan(tmp_path, body, target="{retry: true}"), "--", "true", cwd=tmp_path)
    assert (tmp_path / "starts").read_text().count("x") == 2
    assert once.code == twice.code == 4
    assert (twice.folder / "raw/p02-nsys.attempt1").is_dir()
    assert twice.captures()["nsys"]["attempt"] == 2


def test_a_tool_that_leaves_the_target_stopped(tmp_path: Path) -> None:
    body = 'while [ $# -gt 0 ]; do [ "$1" = --pid ] && pid=$2; shift; done\n'
    body += f"echo Sampling process; until [ -e {tmp_path}/up ]; do sleep 0.05; done; kill -STOP $pid; exit 0"
    tool = stand_in(tmp_path, "py-spy", body)
    plan = write_plan(tmp_path, "{use: py-spy}", tools=f"{{py-spy: {tool}}}", **FAST)
    code = "import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT]); open('up', 'w').close()\n"
    code += "signal.sigwait([signal.SIGCONT]); print('done')"
    result = profrun(plan, "--", sys.executable, "-c", code, cwd=tmp_path)
    assert "done" in result.stdout
    assert result.code == 4
    assert any("continued" in note for note in result.summary["passes"][0]["notes"])


def test_a_missing_tool_lets_the_others_run(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, "{use: nsys}", tools="{nsys: /nowhere/nsys}", **FAST)
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.code == 4
    assert result.statuses() == {"timing": "ok", "nsys": "skipped"}
    assert "nsys" in result.stderr
    plan.write_text(plan.read_text().replace("{use: nsys}", "{use: nsys, required: false}"))
    assert profrun(plan, "--", "true", cwd=tmp_path).code == 0


def test_nothing_left_to_run_is_said_before_anything_runs(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: nsys}", tools="{nsys: /nowhere/nsys}", **FAST)
    result = profrun(plan, "--", "touch", "ran", cwd=tmp_path)
    assert result.code == 3
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "reports").exists()


def test_garbage_from_a_tool_is_unreadable_and_costs_only_its_own_capture(tmp_path: Path) -> None:
    body = 'if [ "$1" = export ]; then echo garbage > report.sqlite; exit 0; fi\n'
    plan = nsys_plan(tmp_path, body + RUN_TARGET + '"$@"; echo x > "$out.nsys-rep"')
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.statuses() == {"timing": "ok", "nsys": "unreadable"}
    assert result.code == 4
    assert "os_calls_summary" not in result.summary["tables"]


# ---------------------------------------------------------------- folders, environments, secrets


@pytest.mark.parametrize(("make", "words"), [("file", "can't be made"), ("proc", "can't be made")])
def test_an_output_folder_that_can_not_be_made(plan: Path, tmp_path: Path, make: str, words: str) -> None:
    (tmp_path / "file").write_text("")
    parent = {"file": tmp_path / "file", "proc": Path("/proc/reports")}[make]
    result = profrun(plan, "-o", parent, "--", "touch", "ran", cwd=tmp_path)
    assert result.code == 3
    assert words in result.stderr
    assert "-o DIR" in result.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY"])
def test_secrets_are_in_no_file(tmp_path: Path, name: str) -> None:
    plan = write_plan(
        tmp_path,
        TIMING,
        environment="[{use: env, set: {DB_PASSWORD: zqx-4412}}]",
        target="{env: {MY_SECRET: zqx-9923}}",
    )
    env = environment(**{name: "zqx-7731"})
    words = [
        "sh",
        "-c",
        "true",
        "--token",
        "zqx-7731",
        "--api-key=zqx-5555",
        "https://me:zqx-6666@host/?token=zqx-8888",
    ]
    result = profrun(plan, "--", *words, cwd=tmp_path, env=env)
    assert result.code == 0
    found = subprocess.run(["grep", "-rlaE", "zqx-[0-9]{4}", result.folder], capture_output=True, text=True).stdout
    assert found == ""


def test_a_bare_environment_as_under_cron(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING)
    result = profrun(plan, "--", "sh", "-c", "true", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert result.code == 0
    assert (result.folder / "index.html").exists()


def test_a_missing_program_under_cron_says_so(tmp_path: Path) -> None:
    result = profrun(write_plan(tmp_path, TIMING), "--", "no-such-python", cwd=tmp_path, env={"PATH": "/usr/bin:/bin"})
    assert result.code == 127
    assert "command not found" in result.stderr


# ---------------------------------------------------------------- rebuilding and adding


def test_a_report_is_rebuilt_from_raw_and_the_plan(plan: Path, tmp_path: Path) -> None:
    result = profrun(plan, "--", "true", cwd=tmp_path)
    before = result.summary
    for entry in result.folder.iterdir():
        if entry.name not in ("raw", "plan.yaml"):
            subprocess.run(["rm", "-rf", entry], check=True)
    again = profrun("report", result.folder, cwd=tmp_path)
    assert again.code == 0
    assert again.summary == before


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    result = profrun("report", tmp_path, cwd=tmp_path)
    assert result.code == 2
    assert "holds no run" in result.stderr


def test_a_collector_is_added_to_a_report(tmp_path: Path) -> None:
    first = profrun(write_plan(tmp_path, TIMING, **FAST), "--", "true", cwd=tmp_path)
    more = profrun("--into", first.folder, "--set", "collectors.timing.repeats=2", "--", "true", cwd=tmp_path)
    assert more.folder == first.folder
    assert [p["id"] for p in more.summary["passes"]] == ["p01", "p02", "p03"]
    assert more.summary["metrics"]["wall_s"]["n"] == 3


def test_what_is_added_to_keeps_its_environment_and_how_it_ended(tmp_path: Path) -> None:
    """Of all runs that a report holds there is one outcome."""
    plan = write_plan(tmp_path, TIMING, environment='[{use: shell, run: ["true"], undo: ["false"]}]', **FAST)
    first = profrun(plan, "--", "true", cwd=tmp_path)
    assert first.code == 5
    other = '[{use: env, set: {A: "1"}}]'
    fine = write_plan(tmp_path, TIMING, environment=other, **FAST)
    more = profrun(fine, "--into", first.folder, "--", "true", cwd=tmp_path)
    assert [step["use"] for step in more.summary["environment"]] == ["shell", "env"]
    assert (more.code, more.summary["outcome"]["status"]) == (5, "environment_failed")
    again = profrun("report", first.folder, cwd=tmp_path)
    assert [step["use"] for step in again.summary["environment"]] == ["shell", "env"]


def test_a_collector_that_the_plan_lacks_is_added_too(tmp_path: Path) -> None:
    first = profrun(write_plan(tmp_path, TIMING, **FAST), "--", "sh", "-c", "true", cwd=tmp_path)
    stranger = profrun("--into", first.folder, "--", "true", cwd=tmp_path)
    assert stranger.code == 2
    assert "it holds runs of: sh -c true" in stranger.stderr
    more = profrun("--into", first.folder, "--only", "py-spy", cwd=tmp_path)
    assert more.statuses() == {"timing": "ok", "py-spy": "empty"}


def test_a_script_without_dashes_is_told_apart_from_a_plan(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('hi')")
    result = profrun("train.py", "data", cwd=tmp_path)
    assert result.code == 2
    assert result.stderr == (
        "profrun: train.py is a program, not a plan\n  why:  the command stands after --\n"
        "  next: profrun -- python train.py data\n"
    )


def test_the_path_stands_on_a_line_of_its_own(plan: Path, tmp_path: Path) -> None:
    result = profrun(plan, "--", "printf", "no newline", cwd=tmp_path)
    assert result.stdout.splitlines() == ["no newline", str(result.folder.relative_to(tmp_path))]


def test_a_step_that_fails_is_told_where_the_plan_wants_a_warning(tmp_path: Path) -> None:
    for on_fail, told in (("warn", True), ("ignore", False)):
        step = f'[{{use: shell, run: ["false"], on_fail: {on_fail}}}]'
        result = profrun(write_plan(tmp_path, TIMING, environment=step, **FAST), "--", "true", cwd=tmp_path)
        assert ("failed  false: exit 1" in result.stderr) == told
        assert ("false" in result.stderr) == told


def test_check_runs_nothing_and_prints_every_command(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, "{use: strace}", **FAST)
    result = profrun("check", plan, "--", "touch", "ran here", cwd=tmp_path)
    assert result.code == 0
    assert "touch 'ran here'" in result.stdout
    assert "strace" in result.stdout
    assert not (tmp_path / "ran here").exists()
    assert not (tmp_path / "reports").exists()
    assert profrun(plan, "-n", "--", "touch", "ran here", cwd=tmp_path).stdout == result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_the_verbs(tmp_path: Path, shell: str) -> None:
    result = profrun("completion", shell, cwd=tmp_path)
    assert result.code == 0
    assert all(verb in result.stdout for verb in ("check", "doctor", "templates", "keep-going"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "profrun PLAN"),
        (["run"], 2, "nothing to run"),
        (["--"], 2, "nothing to run"),
        (["chekc", "--", "true"], 2, "check"),
        (["./missing.yaml", "--", "true"], 2, "no such file"),
        (["report"], 2, "RUN is missing"),
        (["templates", "--", "true"], 2, "takes no command"),
        (["--frobnicate", "auto", "--", "true"], 2, "unknown option --frobnicate"),
        (["attach"], 2, "attach --pid PID"),
        (["--pid", "x"], 2, "--pid: 'x' is no process id"),
        (["--pid", "1", "--", "true"], 2, "exclude each other"),
        (["--duration", "3s", "--", "true"], 2, "--duration needs --pid"),
        (["--pid", "1", "--duration", "soon"], 2, "--duration: 'soon' is no quantity"),
        (["--timeout", "0", "--", "true"], 2, "--timeout: must be more than 0"),
        (["--timeout", "soon", "--", "true"], 2, "--timeout: 'soon' is no quantity"),
        (["--name", "a b", "--", "true"], 2, "--name: 'a b' can't name a folder"),
        (["--only", "", "--", "true"], 2, "--only names no collector"),
        (["sh", "-c", "true"], 2, "profrun -- sh -c true"),
        (["sh", "script"], 2, "profrun -- sh script"),
        (["--into", "nowhere"], 2, "--into nowhere: no report there"),
        (["templates", "./missing.yaml"], 2, "No such file"),
        (["init", "./missing.yaml"], 2, "No such file"),
        (["completion", "tcsh"], 2, "tcsh"),
    ],
)
def test_usage_errors(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    result = profrun(*words, cwd=tmp_path)
    assert result.code == code
    assert said in result.stdout + result.stderr
    assert "Traceback" not in result.stderr


# ---------------------------------------------------------------- streams that are closed, full or gone


def shell(words: list[str], redirections: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    line = f"{shlex.join(words)} {redirections}"
    return subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=LIMIT_S
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_an_empty_one(plan: Path, tmp_path: Path, closed: str) -> None:
    done = shell(command(plan, "--", "sh", "-c", "cat; echo out; echo err >&2; exit 7"), closed, tmp_path)
    assert done.returncode == 7
    kept = tmp_path / "reports" / "latest" / "raw" / "p01-target"
    assert [(kept / f"{name}.log").read_text() for name in ("stdout", "stderr")] == ["out\n", "err\n"]


@pytest.mark.parametrize("gone", ["| true", "2>&1 | true", ">/dev/full", "2>/dev/full"])
def test_a_reader_that_has_gone_changes_neither_report_nor_status(plan: Path, tmp_path: Path, gone: str) -> None:
    words = command(plan, "--", "sh", "-c", "sleep 0.3; echo out; exit 7")
    done = shell(words, f"{gone}; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 7
    assert "bug" not in done.stderr
    assert (tmp_path / "reports" / "latest" / "summary.json").exists()


def test_a_list_that_nobody_reads_to_its_end(tmp_path: Path) -> None:
    assert shell(command("--help"), "| true; exit ${PIPESTATUS[0]}", tmp_path).stderr == ""
    full = shell(command("templates"), "> /dev/full", tmp_path)
    assert full.returncode != 0
    assert "stdout can't be written: No space left on device" in full.stderr


def test_a_caller_that_ignores_the_end_of_children(plan: Path, tmp_path: Path) -> None:
    words = command(plan, "--", "sh", "-c", "exit 7")
    code = "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    assert subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, timeout=LIMIT_S).returncode == 7


def test_a_directory_that_was_removed(plan: Path, tmp_path: Path) -> None:
    plain = [sys.executable, "-m", "orchestrator"]  # `coverage run` can't start where there is no directory
    gone = shell(
        ["sh", "-c", 'mkdir gone && cd gone && rmdir ../gone && exec "$@"', "x", *plain, str(plan), "--", "true"],
        "",
        tmp_path,
    )
    assert gone.returncode == 126
    assert "can't be found" in gone.stderr


# ---------------------------------------------------------------- disks that fill up


def on_a_full_disk(plan: Path, tmp_path: Path, name: str, *target: str) -> Any:
    """profrun on a disk that takes every file but those of that name in the report."""
    code = textwrap.dedent(f"""
        import os, sys
        from orchestrator import folder
        from orchestrator.cli import main
        write = folder.write_atomic
        def full(path, data):
            if path.name == {name!r} and "reports" in path.parts:
                raise OSError(28, "No space left on device", str(path))
            write(path, data)
        folder.write_atomic = full
        main(sys.argv[1:])
    """)
    words = [sys.executable, "-c", code, str(plan), "--", *target]
    return subprocess.run(words, cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=LIMIT_S)


@pytest.mark.parametrize(("target", "code"), [(("true",), 4), (("sh", "-c", "exit 7"), 7)])
@pytest.mark.parametrize("name", ["run.json", "summary.json"])
def test_a_report_that_the_disk_does_not_take_can_still_be_made(
    plan: Path, tmp_path: Path, name: str, target: tuple[str, ...], code: int
) -> None:
    done = on_a_full_disk(plan, tmp_path, name, *target)
    assert done.returncode == code
    assert "can't be finished\n  why:  No space left on device" in done.stderr
    advice = done.stderr.split("make room, then: ")[1].strip()
    again = shell(["eval", advice.replace("profrun report", shlex.join(command("report")))], "", tmp_path)
    assert again.returncode == 0, again.stderr
    outcome = json.loads((tmp_path / "reports" / "latest" / "summary.json").read_text())["outcome"]
    assert outcome["exit_code"] == (7 if code == 7 else 0)


def test_a_report_that_can_not_even_be_begun(plan: Path, tmp_path: Path) -> None:
    done = on_a_full_disk(plan, tmp_path, "plan.yaml", "touch", "ran")
    assert done.returncode == 3
    assert "can't be written" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_copy_of_a_record_is_not_worth_a_run(plan: Path, tmp_path: Path) -> None:
    assert on_a_full_disk(plan, tmp_path, "command.json", "true").returncode == 0


# ---------------------------------------------------------------- signals at every stage


def signalled(words: list[str], tmp_path: Path, sleep: str, *numbers: int) -> tuple[int, str]:
    """(exit status, stderr) of a run that gets signals as soon as it has started `sleep`, and does not wait for it."""
    running = subprocess.Popen(
        words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert until(lambda: processes(f"^{sleep}") or running.poll() is not None) is not True
    apart(running, *numbers)
    _, said = running.communicate(timeout=LIMIT_S)
    assert processes(f"^{sleep}") == []
    assert list(Path(tmp_path, "tmp").glob("profrun-*")) == []
    return running.returncode, said


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def steps(tmp_path: Path, run: str = "true", undo: str = "true") -> str:
    """Two environment steps that note what they do; `run` and `undo` are what the second does as well."""
    note = f">> {tmp_path}/log"
    return (
        f"[{{use: shell, run: [sh, -c, 'echo on1 {note}'], undo: [sh, -c, 'echo off1 {note}']}},"
        f" {{use: shell, run: [sh, -c, 'echo on2 {note}; {run}'], undo: [sh, -c, '{undo}; echo off2 {note}']}}]"
    )


@pytest.mark.usefixtures("scratch")
def test_an_impatient_user_during_a_step_gets_the_machine_back(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(321)}"
    plan = write_plan(tmp_path, TIMING, environment=steps(tmp_path, run=sleep), **FAST)
    code, _ = signalled(command(plan, "--", "touch", "ran"), tmp_path, sleep, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert (tmp_path / "log").read_text().split() == ["on1", "on2", "off2", "off1"]
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("scratch")
def test_putting_the_machine_back_is_never_cut_short(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(1)}"
    plan = write_plan(tmp_path, TIMING, environment=steps(tmp_path, undo=sleep), **FAST)
    code, _ = signalled(command(plan, "--", "true"), tmp_path, sleep, signal.SIGTERM, signal.SIGTERM)
    assert code == 143
    assert (tmp_path / "log").read_text().split() == ["on1", "on2", "off2", "off1"]


@pytest.mark.usefixtures("scratch")
def test_before_each_is_not_waited_for(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(323)}"
    plan = write_plan(tmp_path, TIMING, target=f"{{before_each: [sh, -c, '{sleep}; true']}}", **FAST)
    code, said = signalled(command(plan, "--", "touch", "ran"), tmp_path, sleep, signal.SIGINT)
    assert code == 130
    assert "interrupted" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("scratch")
def test_a_second_signal_ends_what_comes_after_the_target_and_starts_nothing_again(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(324)}"
    body = f'[ "$1" = export ] && exec {sleep}\n{RUN_TARGET}"$@"; echo data > "$out.nsys-rep"'
    plan = nsys_plan(tmp_path, body.replace('[ "$1" = profile ] || exit 1\n', ""), target="{retry: true}")
    words = command(plan, "--", "sh", "-c", f"echo start >> {tmp_path}/starts")
    code, _ = signalled(words, tmp_path, sleep, signal.SIGINT, signal.SIGINT)
    assert code == 130
    assert (tmp_path / "starts").read_text().split() == ["start"] * 2  # the bare run, and one under nsys


@pytest.mark.usefixtures("scratch")
def test_quit_is_a_signal_like_the_others(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, environment=steps(tmp_path), **FAST)
    sleep = unmistakable(325)
    code, _ = signalled(command(plan, "--", "sleep", sleep), tmp_path, f"sleep {sleep}", signal.SIGQUIT)
    assert code == 131
    assert (tmp_path / "log").read_text().split() == ["on1", "on2", "off2", "off1"]


def test_a_schedulers_warning_reaches_the_target(plan: Path, tmp_path: Path) -> None:
    text = "trap 'echo saved; exit 0' USR1; echo up; while :; do sleep 0.05; done"
    running = subprocess.Popen(command(plan, "--", "sh", "-c", text), cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGUSR1)
    out, _ = running.communicate(timeout=LIMIT_S)
    assert out.splitlines()[0] == "saved"
    assert running.returncode == 0


# ---------------------------------------------------------------- who is there before, between and after


def test_orphans_that_have_ended_do_not_pile_up(plan: Path, tmp_path: Path) -> None:
    wait = 'while ps -eo ppid=,comm= | grep -q "^ *$PPID sleep"; do sleep 0.1; done'
    text = f"for i in 1 2 3 4 5 6 7 8; do (sleep 0.01 &); done; {wait}; echo none is left"
    result = profrun(plan, "--", "sh", "-c", text, cwd=tmp_path)
    assert result.stdout.splitlines()[0] == "none is left"


def test_what_before_each_has_started_is_no_leftover_of_the_target(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(326)}"
    prepare = f"[sh, -c, '{sleep} > /dev/null & {BECOMES_SLEEP}']"
    plan = write_plan(tmp_path, TIMING, target=f"{{before_each: {prepare}}}", leftovers="end", **FAST)
    try:
        result = profrun(plan, "--", "true", cwd=tmp_path)
        assert result.summary["passes"][0]["run"]["leftovers"] == []
        assert len(processes(f"^{sleep}")) == 1
    finally:
        kill(f"^{sleep}")


OUTLIVES_THE_TOOL = """
import os, time
def runs(pid):
    try:
        return ") Z" not in open(f"/proc/{pid}/stat").read()
    except OSError:
        return False
while not os.path.exists("tool"): time.sleep(0.01)
while runs(open("tool").read().strip()): time.sleep(0.01)
print("all is well")
"""


def profiled(tmp_path: Path, body: str) -> Result:
    """A run under a stand-in for py-spy, of a target that ends when the tool has ended."""
    tool = stand_in(tmp_path, "py-spy", f"cd {tmp_path}; echo $$ > new; mv new tool\n{body}")
    plan = write_plan(tmp_path, "{use: py-spy}", tools=f"{{py-spy: {tool}}}", **FAST)
    return profrun(plan, "--", sys.executable, "-c", OUTLIVES_THE_TOOL, cwd=tmp_path)


def test_what_a_tool_has_started_ends_and_is_no_leftover_of_the_target(tmp_path: Path) -> None:
    sleep = f"sleep {unmistakable(327)}"
    result = profiled(tmp_path, f"{sleep} & {BECOMES_SLEEP}; exit 0")
    assert result.summary["passes"][0]["run"]["leftovers"] == []
    assert (tmp_path / "tool").exists()
    assert processes(f"^{sleep}") == []


def test_a_failed_preparation_leaves_no_scratch_space(tmp_path: Path, scratch: Path) -> None:
    plan = write_plan(tmp_path, TIMING, target="{before_each: ['false']}", **FAST)
    assert profrun(plan, "--", "true", cwd=tmp_path).code == 4
    assert list(scratch.iterdir()) == []


def test_a_program_called_python_something_is_started_for_its_passes_only(plan: Path, tmp_path: Path) -> None:
    target = script(tmp_path / "python-train", f"#!/bin/sh\necho start >> {tmp_path}/starts\n")
    assert profrun(plan, "--", target, cwd=tmp_path).code == 0
    assert (tmp_path / "starts").read_text().split() == ["start"]


def test_a_window_that_never_opens_is_no_failure_of_the_tool(tmp_path: Path) -> None:
    tool = stand_in(tmp_path, "py-spy", "exit 1")
    plan = write_plan(tmp_path, "{use: py-spy}", tools=f"{{py-spy: {tool}}}", window="{after: 60s, for: 1s}", **FAST)
    result = profrun(plan, "--", "true", cwd=tmp_path)
    assert result.code == 0
    assert result.captures()["py-spy"]["status"] == "empty"
    assert "before the window opened" in result.captures()["py-spy"]["reason"]


def test_a_report_without_its_secrets_is_not_run_again(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, TIMING, target="{env: {MY_SECRET: zqx-9923}}", **FAST)
    words = ["--", "sh", "-c", 'echo "$MY_SECRET $2" >> seen', "x", "--token", "zqx-7731"]
    first = profrun(plan, *words, cwd=tmp_path)
    refused = profrun("--into", first.folder, cwd=tmp_path)
    assert refused.code == 2
    assert "without their secrets" in refused.stderr
    assert profrun(plan, "--into", first.folder, *words, cwd=tmp_path).code == 0
    assert (tmp_path / "seen").read_text().splitlines() == ["zqx-9923 zqx-7731"] * 2


def test_what_was_there_when_profrun_was_killed_can_still_be_read(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 2}", **FAST)
    sleep = f"sleep {unmistakable(328)}"
    text = f"echo x >> {tmp_path}/starts; [ $(wc -l < {tmp_path}/starts) = 1 ] || exec {sleep}"
    running = subprocess.Popen(command(plan, "--", "sh", "-c", text), cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        until(lambda: processes(f"^{sleep}"))
        running.kill()
        running.wait()
    finally:
        kill(f"^{sleep}")
    result = profrun("report", tmp_path / "reports" / "latest", cwd=tmp_path)
    assert result.code == 0
    assert [c["status"] for c in result.summary["captures"]] == ["ok"]
    assert (result.summary["outcome"]["status"], result.summary["outcome"]["exit_code"]) == ("interrupted", 137)


def test_a_tool_that_was_killed_is_named(tmp_path: Path) -> None:
    result = profiled(tmp_path, "kill -9 $$")
    assert result.code == 4
    assert "the tool itself was killed by SIGKILL" in result.captures()["py-spy"]["reason"]


def test_what_the_target_said_is_not_put_into_a_tools_mouth(tmp_path: Path) -> None:
    result = profiled(tmp_path, "exit 1")
    assert result.statuses()["py-spy"] != "ok"
    assert "all is well" in result.stdout
    assert "all is well" not in result.stderr


def test_a_traceback_of_a_parser_is_in_the_log(tmp_path: Path) -> None:
    code = "import sys; from orchestrator.collectors.timing import Timing; Timing.parse = lambda *_: 1 / 0\n"
    code += "from orchestrator.cli import main; main(sys.argv[1:])"
    plan = write_plan(tmp_path, TIMING, **FAST)
    subprocess.run([sys.executable, "-c", code, plan, "--", "true"], cwd=tmp_path, capture_output=True, timeout=LIMIT_S)
    assert "ZeroDivisionError" in (tmp_path / "reports" / "latest" / "run.log").read_text()
