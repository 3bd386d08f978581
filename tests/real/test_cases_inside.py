"""Public failures of profilers that work in the program or follow it there, run for real: what profrun does instead."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from cli import Result, command, environment, profrun, script, write_plan
from light_torch import LIGHT
from waiting import LIMIT_S, kill, processes, unmistakable, until

FAST = {"report": "{formats: []}"}
needs_torch = pytest.mark.skipif(not shutil.which("torchrun", path=str(Path(sys.executable).parent)), reason="no torch")


def python(folder: Path, text: str) -> Path:
    path = folder / "t.py"
    path.write_text(textwrap.dedent(text))
    return path


def table(result: Result, name: str) -> pandas.DataFrame:
    from orchestrator import tables

    return tables.read(result.folder / "tables" / f"{name}.parquet")


# ---------------------------------------------------------------- a bounded recording of a program without steps (D06)

MATMULS = """
import sys, time, torch
torch.set_num_threads(1)
a, began, done = torch.rand(8, 8), time.time_ns(), 0
while time.time_ns() < began + float(sys.argv[1]) * 1e9 or done < 100_000:
    a @ a
    done += 1
print(began)
"""


@needs_torch
def test_a_loop_of_tiny_operators_stays_within_bounds(tmp_path: Path) -> None:
    """82 s, 10 GB of memory and a trace of 1.7 GB, where nothing bounds it."""
    plan = write_plan(tmp_path, "{use: torch}", "{use: torch, stacks: true}", report="{formats: [markdown]}")
    result = profrun(plan, "--", sys.executable, python(tmp_path, MATMULS), "6", cwd=tmp_path)
    assert result.code == 0
    assert "with stacks each step costs about ten times the data" in result.stderr
    said = (result.folder / "report.md").read_text()
    for planned, capture in zip(result.summary["passes"], result.summary["captures"], strict=True):
        run = planned["run"]
        began_ns = int((result.folder / "raw" / f"{planned['id']}-target" / "stdout.log").read_text())
        assert run["wall_s"] < (began_ns - run["started_ns"]) / 1e9 + 6 + 60
        assert run["max_rss_bytes"] < 1e9
        trace = next(a for a in capture["artifacts"] if a["role"] == "trace")
        assert 1e6 < trace["bytes"] < 200e6
        assert any(note.startswith("a trace of ") and "truncated" in note for note in capture["notes"])
        assert capture["notes"][0] in said
    ops = table(result, "torch_ops")
    assert set(ops[ops.name == "aten::mm"]["capture"]) == {"p01-torch", "p02-torch"}
    assert ops[ops.name == "aten::mm"]["count"].min() > 100


@needs_torch
def test_a_recording_that_gets_too_large_or_too_long_is_ended_and_says_so(tmp_path: Path) -> None:
    plan = write_plan(
        tmp_path, "{use: torch, max_memory: 4MiB}", "{use: torch, max_time: 200ms}", window="{after: 300ms}", **FAST
    )
    result = profrun(plan, "--", sys.executable, python(tmp_path, MATMULS), "2", cwd=tmp_path)
    large, long = result.summary["captures"]
    assert large["status"] == long["status"] == "degraded"
    assert large["reason"] == "truncated: it had taken 4 MiB of memory (max_memory)"
    assert long["reason"].startswith("truncated: it had recorded for") and "max_time" in long["reason"]
    assert result.code == 0


@needs_torch
def test_a_program_that_takes_its_time_before_the_first_step_is_recorded_by_steps(tmp_path: Path) -> None:
    """What is recorded of a program without steps gives way to the steps, once they come."""
    target = python(
        tmp_path,
        """
        import time, torch
        torch.set_num_threads(1)
        end = time.perf_counter() + 6
        while time.perf_counter() < end:
            torch.rand(8)
            time.sleep(0.01)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.rand(2, 4)).sum().backward()
            optimizer.step()
        """,
    )
    result = profrun(write_plan(tmp_path, "{use: torch}", **FAST), "--", sys.executable, target, cwd=tmp_path)
    capture = result.captures()["torch"]
    assert capture["status"] == "ok"
    assert not any("recorded by time" in note for note in capture["notes"])
    ops = table(result, "torch_ops")
    assert ops[ops.name == "aten::addmm"]["count"].tolist() == [10]
    assert len(table(result, "steps")) == 20


# ---------------------------------------------------------------- ranks (D07)

RANKS = f"""{LIGHT}
import os, signal, sys, time, torch
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
def spin():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end: sum(range(1000))
def work_of_rank_zero(): spin()
def work_of_rank_one(): spin()
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(20):
    (work_of_rank_zero, work_of_rank_one)[rank]()
    optimizer.zero_grad()
    with torch.profiler.record_function(("range_of_rank_zero", "range_of_rank_one")[rank]):
        model(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    if sys.argv[1:] == [str(rank)] and step == 8:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@needs_torch
@pytest.mark.tool("py-spy")
def test_two_ranks_under_torchrun_leave_two_of_everything(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "together: [{use: torch}, {use: py-spy, subprocesses: true}]", **FAST)
    torchrun = Path(sys.executable).with_name("torchrun")
    result = profrun(plan, "--", torchrun, "--nproc-per-node=2", python(tmp_path, RANKS), cwd=tmp_path)
    assert result.code == 0
    assert set(result.statuses().values()) == {"ok"}
    traces = [Path(a["path"]).name for a in result.captures()["torch"]["artifacts"] if a["role"] == "trace"]
    assert sorted(re.findall(r"-(rank\d+)-pid", " ".join(traces))) == ["rank0", "rank1"]
    notes = result.captures()["torch"]["notes"]
    assert "2 ranks: 0, 1" in notes
    assert [note for note in notes if "a trace of" in note and not note.startswith(("rank 0: ", "rank 1: "))] == []
    assert "2 ranks made steps: 0, 1" in " ".join(result.summary["passes"][0]["notes"])
    assert table(result, "steps").groupby("rank").size().to_dict() == {0: 20, 1: 20}
    ops = table(result, "torch_ops")
    assert ops[ops.name == "range_of_rank_zero"]["rank"].tolist() == [0]
    assert ops[ops.name == "range_of_rank_one"]["rank"].tolist() == [1]
    functions = table(result, "functions")
    pids = {name: set(functions[functions.function == f"work_of_rank_{name}"].pid) for name in ("zero", "one")}
    assert len(pids["zero"]) == len(pids["one"]) == 1 and pids["zero"] != pids["one"]


@needs_torch
def test_a_rank_that_has_left_no_trace_is_named(tmp_path: Path) -> None:
    target = python(tmp_path, RANKS)
    launcher = script(
        tmp_path / "launch",
        "#!/bin/sh\nexport WORLD_SIZE=2\n"
        f"RANK=1 '{sys.executable}' '{target}' 1 &\nRANK=0 '{sys.executable}' '{target}' 1\nwait\n",
    )
    result = profrun(write_plan(tmp_path, "{use: torch}", **FAST), "--", launcher, cwd=tmp_path)
    capture = result.captures()["torch"]
    assert (capture["status"], capture["reason"]) == ("degraded", "no trace of rank 1")
    assert set(table(result, "torch_ops")["rank"]) == {0}
    assert table(result, "steps").groupby("rank").size().to_dict() == {0: 20, 1: 9}


# ---------------------------------------------------------------- two profilers in one program (D27)


@pytest.mark.parametrize("others", ["{use: nsys}", "{use: ncu}", "{use: torch}"])
def test_profilers_that_clash_are_refused_when_the_plan_is_read(tmp_path: Path, others: str) -> None:
    plan = write_plan(tmp_path, f"together: [{{use: torch}}, {others}]")
    result = profrun(plan, "--", "touch", "ran", cwd=tmp_path)
    assert result.code == 2
    assert "can't share a pass: each traces the GPU through CUPTI" in result.stderr
    assert "write instead:\n        - {use: torch}\n" in result.stderr and "add --auto-passes" in result.stderr
    assert not (tmp_path / "ran").exists() and not (tmp_path / "reports").exists()


@needs_torch
def test_the_program_s_own_profiler_keeps_its_data(tmp_path: Path) -> None:
    target = python(
        tmp_path,
        """
        import sys, torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
            for _ in range(20):
                optimizer.zero_grad()
                model(torch.rand(2, 4)).sum().backward()
                optimizer.step()
        own.export_chrome_trace("own.json")
        sys.exit(3)
        """,
    )
    result = profrun(write_plan(tmp_path, "{use: torch}", **FAST), "--", sys.executable, target, cwd=tmp_path)
    assert result.code == result.summary["outcome"]["target_exit_code"] == 3
    events = json.loads((tmp_path / "own.json").read_text())["traceEvents"]
    assert sum(event["name"] == "aten::addmm" for event in events) == 20
    capture = result.captures()["torch"]
    assert capture["status"] == "empty" and "stepped aside" in capture["reason"]


# ---------------------------------------------------------------- conda run between profrun and Python (D32)

CONDA = """#!/bin/sh
trap '' TERM
shift
"$@" &
wait $!
"""
TRAIN = f"""{LIGHT}
import signal, sys, time, torch
signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which a shell lets its children ignore, once it does so itself
torch.set_num_threads(1)
def inner_python():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end: sum(range(1000))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(int(sys.argv[1])):
    inner_python()
    optimizer.zero_grad()
    model(torch.rand(2, 4)).sum().backward()
    optimizer.step()
    if step == 3: open("steps", "w").close()
"""


@pytest.fixture
def conda(tmp_path: Path) -> dict[str, str]:
    """An environment whose `conda run ARGS` starts ARGS in the background and takes no notice of SIGTERM."""
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "conda", CONDA)
    return environment(PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}")


@needs_torch
@pytest.mark.tool("py-spy")
def test_py_spy_and_steps_are_of_the_python_under_conda(tmp_path: Path, conda: dict[str, str]) -> None:
    words = ("conda", "run", sys.executable, python(tmp_path, TRAIN), "20")
    result = profrun(write_plan(tmp_path, "{use: py-spy}", **FAST), "--", *words, cwd=tmp_path, env=conda)
    assert result.code == 0
    assert result.statuses() == {"py-spy": "ok"}
    inner = table(result, "functions").query("function == 'inner_python'")
    steps = table(result, "steps")
    assert len(steps) == 20
    assert set(inner.pid) == set(steps.pid) != {result.summary["passes"][0]["run"]["pid"]}


@needs_torch
@pytest.mark.tool("py-spy")
def test_a_signal_reaches_the_python_under_conda(tmp_path: Path, conda: dict[str, str]) -> None:
    target = python(tmp_path, TRAIN)
    words = command(write_plan(tmp_path, "{use: py-spy}", **FAST), "--", "conda", "run", sys.executable, target, "9999")
    with subprocess.Popen(words, cwd=tmp_path, env=conda, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        until((tmp_path / "steps").exists)
        running.send_signal(signal.SIGTERM)
        out, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 143, said
    assert processes(target) == []
    result = Result(143, out.decode(), said.decode(), tmp_path)
    assert result.statuses() == {"py-spy": "degraded"}
    assert "inner_python" in set(table(result, "functions").function)


# ---------------------------------------------------------------- variables that must be there before the start (D34)

SHOWS = """
import os, subprocess, sys, time
code = "import os; print(os.environ.get('CUBLAS_WORKSPACE_CONFIG'), os.environ.get('PYTHONHASHSEED'))"
exec(code)
sys.stdout.flush()
subprocess.run([sys.executable, "-c", code])
time.sleep(0.2)
"""


def seeded(folder: Path, *words: str | Path, on_fail: str = "warn") -> tuple[Result, dict[str, Any], str]:
    """The result, what it says of the step, and what the target saw of its own variables."""
    more = {"environment": f"[{{use: seeds, seed: 37, on_fail: {on_fail}}}]", "report": "{formats: [markdown]}"}
    plan = write_plan(folder, "{use: timing, warmup: 0, repeats: 1}", **more)
    result = profrun(plan, "--", *words, cwd=folder)
    return result, result.summary["environment"][0], (result.folder / "raw/p01-target/stdout.log").read_text()


def test_variables_are_there_before_the_start_and_in_children(tmp_path: Path) -> None:
    result, step, seen = seeded(tmp_path, sys.executable, python(tmp_path, SHOWS))
    assert seen.splitlines() == [":4096:8 37"] * 2
    assert (step["status"], step["reason"]) == ("applied", None)
    assert step["verified"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8" and step["verified"]["PYTHONHASHSEED"] == "37"
    assert result.code == 0 and "not in force" not in result.stderr


DROPPED = "CUBLAS_WORKSPACE_CONFIG was not set when Python started: a launcher dropped it"


@pytest.mark.parametrize(
    ("launcher", "options", "found", "reason"),
    [
        (["env", "-u", "CUBLAS_WORKSPACE_CONFIG"], [], {"CUBLAS_WORKSPACE_CONFIG": "not set"}, DROPPED),
        (["env", "-i"], [], {"CUBLAS_WORKSPACE_CONFIG": "not set", "PYTHONHASHSEED": "not set"}, DROPPED),
        (["env", "-i"], [], {}, "what started it has dropped profrun's variables"),
        ([], ["-I"], {"PYTHONHASHSEED": "37"}, "seeds are not in force: python was started with -I (isolated)"),
    ],
)
def test_what_a_launcher_drops_is_seen_and_said(
    tmp_path: Path, launcher: list[str], options: list[str], found: dict[str, str], reason: str
) -> None:
    words = (*launcher, sys.executable, *options, python(tmp_path, SHOWS))
    run = script(tmp_path / "run.sh", "#!/bin/sh\n" + " ".join(f"'{word}'" for word in words) + "\n")
    result, step, _ = seeded(tmp_path, run)
    assert (result.code, step["status"]) == (0, "drifted")
    assert {name: step["verified"][name] for name in found} == found
    for place in (step["reason"], result.stderr, (result.folder / "report.md").read_text()):
        assert reason in place


def test_a_dropped_variable_is_a_failure_where_the_plan_says_so(tmp_path: Path) -> None:
    words = ("env", "-u", "CUBLAS_WORKSPACE_CONFIG", sys.executable, python(tmp_path, SHOWS))
    result, _, _ = seeded(tmp_path, *words, on_fail="fail")
    assert result.code == result.summary["outcome"]["exit_code"] == 5
    assert DROPPED in result.stderr.splitlines()[-1]
    profrun("report", result.folder, cwd=tmp_path)
    assert result.summary["outcome"]["exit_code"] == 5


# ---------------------------------------------------------------- samplers that outlive profrun (D37)

FAKE_SMI = """#!{python}
import signal, sys, time
[signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
words = next((w for w in sys.argv if w.startswith("--query-gpu=")), "=").partition("=")[2].split(",")
known = {{"uuid": "GPU-0", "index": "0", "name": "fake", "timestamp": "2020/01/01 00:00:00.000"}}
while True:
    print(", ".join(known.get(word, "[N/A]") for word in words), flush=True)
    if not any(w.startswith("--loop-ms") for w in sys.argv): break
    time.sleep(0.1)
"""


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[str]:
    """A target of its own kind; what is left of it is ended."""
    yield (name := unmistakable(571))
    kill(f"^sleep {name}")


@pytest.mark.tool("py-spy")
def test_samplers_die_with_a_killed_profrun(tmp_path: Path, endless: str) -> None:
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "nvidia-smi", FAKE_SMI.format(python=sys.executable))
    (tmp_path / "bin" / "libnvidia-ml.so.1").write_text("no library, so that nvidia-smi is asked")
    paths = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(tmp_path / "bin")}
    env = environment(**paths, TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    plan = write_plan(tmp_path, "together: [{use: monitor, interval: 100ms}, {use: py-spy}]", **FAST)
    target = (sys.executable, "-c", f"import subprocess; subprocess.run(['sleep', '{endless}'])")
    kinds = {
        "monitor": ("sampler", "samples.jsonl", tmp_path),
        "nvidia-smi": ("nvidia-smi", "--loop-ms", tmp_path),
        "py-spy": ("py-spy", "record", tmp_path),
    }

    def alive() -> set[str]:
        return {name for name, words in kinds.items() if processes(*words)}

    with subprocess.Popen(command(plan, "--", *target), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as running:
        until(lambda: alive() == set(kinds))
        running.send_signal(signal.SIGKILL)
        running.wait()
        until(lambda: not alive())
