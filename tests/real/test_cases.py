"""Public failures of profilers and wrappers, run with the real tools: what profrun does instead."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, cpu_s, kill, state, unmistakable, until

ITEMS = {
    "timing": "{use: timing, warmup: 0, repeats: 1}",
    "py-spy": "{use: py-spy}",
    "strace": "{use: strace}",
    "nsys": "{use: nsys}",
}
TOOLS = [
    "timing",
    pytest.param("py-spy", marks=pytest.mark.tool("py-spy")),
    pytest.param("strace", marks=pytest.mark.tool("strace")),
    pytest.param("nsys", marks=pytest.mark.tool("nsys")),
]
ALL = pytest.mark.tool("py-spy", "strace", "nsys")
FAST = {"report": "{formats: []}"}

SPIN = """
import sys, time
def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
"""


def python(folder: Path, text: str, name: str = "t.py") -> Path:
    path = folder / name
    path.write_text(SPIN + textwrap.dedent(text))
    return path


def one(folder: Path, tool: str, **more: str) -> Path:
    return write_plan(folder, ITEMS[tool], **FAST, **more)


def everything(folder: Path, **more: str) -> Path:
    return write_plan(folder, *ITEMS.values(), **FAST, **more)


# ---------------------------------------------------------------- the target's own status (D01)


@pytest.mark.parametrize(("text", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
@pytest.mark.parametrize("tool", TOOLS)
def test_each_collector_alone_passes_the_status_on(tmp_path: Path, tool: str, text: str, code: int) -> None:
    assert profrun("cpu-quick", "--only", tool, "--", "sh", "-c", text, cwd=tmp_path).code == code


@ALL
@pytest.mark.parametrize(("text", "code"), [("exit 7", 7), ("kill -9 $$", 137)])
def test_all_collectors_together_pass_the_status_on(tmp_path: Path, text: str, code: int) -> None:
    result = profrun("cpu-quick", "--keep-going", "--", "sh", "-c", text, cwd=tmp_path)
    assert result.code == code
    assert result.summary["outcome"]["exit_code"] == code


@pytest.mark.tool("py-spy")
def test_a_python_that_fails_after_a_while_is_a_failure(tmp_path: Path) -> None:
    target = python(tmp_path, "spin(1.0); sys.exit(7)")
    result = profrun(one(tmp_path, "py-spy"), "--", sys.executable, target, cwd=tmp_path)
    assert result.code == 7
    assert result.statuses() == {"py-spy": "ok"}
    assert result.summary["outcome"]["target_exit_code"] == 7


# ---------------------------------------------------------------- launchers, children, arguments (D09, D21, D33, D38)


@pytest.mark.tool("py-spy")
def test_a_shell_script_as_launcher(tmp_path: Path) -> None:
    target = python(tmp_path, "spin(1.0)")
    run = script(tmp_path / "run.sh", f"#!/bin/sh\ntouch start\n'{sys.executable}' '{target}'\ntouch end\nexit 5\n")
    result = profrun(one(tmp_path, "py-spy"), "--", run, cwd=tmp_path)
    assert result.code == 5
    assert (tmp_path / "end").exists()
    assert result.statuses() == {"py-spy": "ok"}
    assert "spin" in functions(result)


@pytest.mark.tool("py-spy")
def test_children_are_seen(tmp_path: Path) -> None:
    target = python(
        tmp_path,
        """
        import multiprocessing
        def childwork():
            spin(1.0)
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            workers = [context.Process(target=childwork) for _ in range(2)]
            [worker.start() for worker in workers]
            [worker.join() for worker in workers]
        """,
    )
    result = profrun(one(tmp_path, "py-spy"), "--", sys.executable, target, cwd=tmp_path)
    assert result.statuses() == {"py-spy": "ok"}
    assert functions(result)["childwork"] > 0
    assert any(
        re.fullmatch(r"Python processes: (\d) seen, \1 profiled", note) for note in result.captures()["py-spy"]["notes"]
    )


def functions(result: Result) -> dict[str, int]:
    """Total samples of each function."""
    from orchestrator import tables

    frame = tables.read(result.folder / "tables" / "functions.parquet")
    return {str(name): int(total) for name, total in frame.groupby("function")["total_samples"].sum().items()}


@ALL
def test_arguments_arrive_byte_for_byte_under_every_collector(tmp_path: Path) -> None:
    odd = tmp_path / "a 'quoted' folder"
    odd.mkdir()
    target = python(odd, "print(sys.argv[1:], file=open('seen', 'a')); spin(0.3)", "tr ain.py")
    words = ["-o", "x", "--help", "--", "-d", "3", "", "a b"]
    result = profrun(everything(odd), "-o", odd / "re ports", "--", sys.executable, target, *words, cwd=odd)
    assert result.code == 0
    assert result.statuses() == dict.fromkeys(ITEMS, "ok")
    assert (odd / "seen").read_text().splitlines() == [str(words)] * 4


# ---------------------------------------------------------------- windows and interrupts (D12, D13)


@pytest.mark.parametrize("tool", TOOLS[1:])
def test_a_window_ends_the_recording_and_not_the_target(tmp_path: Path, tool: str) -> None:
    text = "while time.perf_counter() < end: spin(0.005); time.sleep(0.005); open(__file__).close()\nprint('done')"
    target = python(tmp_path, "end = time.perf_counter() + 4\n" + text)
    plan = one(tmp_path, tool, window="{after: 700ms, for: 800ms}")
    result = profrun(plan, "--", sys.executable, target, cwd=tmp_path)
    assert "done" in result.stdout
    assert result.code == 0
    assert result.statuses() == {tool: "ok"}
    assert result.summary["passes"][0]["wall_s"] > 3.9


CAREFUL = """
import os
print("up", flush=True)
try:
    spin(600)
except KeyboardInterrupt:
    time.sleep(0.5)
    open("ckpt", "w").close()
    sys.exit(42)
"""


@pytest.mark.parametrize("tool", TOOLS)
def test_an_interrupted_target_writes_its_checkpoint(tmp_path: Path, tool: str) -> None:
    words = command(one(tmp_path, tool), "--", sys.executable, python(tmp_path, CAREFUL))
    running = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert running.stdout is not None
    assert "up" in running.stdout.readline()
    time.sleep(0.5)
    running.send_signal(signal.SIGINT)
    out, said = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 42, said
    assert (tmp_path / "ckpt").exists()
    capture = Result(42, out, said, tmp_path).captures()[tool]
    assert capture["status"] in ("degraded", "cancelled")


# ---------------------------------------------------------------- leftovers (D15)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_daemonised_child_holds_nobody_up(tmp_path: Path, tool: str) -> None:
    sleep = ["sleep", unmistakable(597)]
    text = f"import subprocess; subprocess.Popen({sleep}, start_new_session=True); spin(0.5)"
    result = profrun(one(tmp_path, tool), "--", sys.executable, python(tmp_path, text), cwd=tmp_path)
    assert result.code == 0
    assert result.statuses() == {tool: "ok"}
    assert [p["argv"] for p in result.summary["passes"][0]["run"]["leftovers"]] == [sleep]
    kill(" ".join(sleep))


# ---------------------------------------------------------------- what the data says (D14, D20, D28, D29, D30)

WRITERS = """
import os, threading
def work():
    fd = os.open("/dev/null", os.O_WRONLY)
    for _ in range(2500):
        os.write(fd, b"x")
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
"""


@pytest.mark.tool("strace")
def test_strace_counts_all_threads_and_says_what_it_cost(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, ITEMS["timing"], "{use: strace, classes: [file]}", "{use: strace}", **FAST)
    result = profrun(plan, "--", sys.executable, python(tmp_path, WRITERS), cwd=tmp_path)
    assert result.code == 0
    filtered, full = (p for p in result.summary["passes"] if p["collectors"] == ["strace"])
    assert filtered["slowdown"] < full["slowdown"]
    from orchestrator import tables

    frame = tables.read(result.folder / "tables" / "syscalls.parquet")
    frame = frame[frame["capture"] == full["id"] + "-strace"]
    assert int(frame[frame["name"] == "write"]["count"].iloc[0]) >= 10_000
    capture = next(c for c in result.summary["captures"] if c["pass_id"] == full["id"])
    assert any("times as slow" in note for note in capture["notes"])


@pytest.mark.tool("ncu")
def test_ncu_without_a_kernel_is_empty(tmp_path: Path) -> None:
    if Path("/dev/nvidia0").exists():
        pytest.skip("there is a GPU here")
    plan = write_plan(tmp_path, "{use: ncu}", **FAST)
    result = profrun(plan, "--", "sh", "-c", "echo ran", cwd=tmp_path)
    assert result.code == 0
    assert "ran" in result.stdout
    capture = result.captures()["ncu"]
    assert capture["status"] == "empty"
    assert "--target-processes" in capture["command"]
    assert capture["artifacts"] == [] or all(a["role"] == "log" for a in capture["artifacts"])


@pytest.mark.tool("py-spy")
def test_py_spy_that_falls_behind_is_degraded(tmp_path: Path) -> None:
    target = python(
        tmp_path,
        """
        import threading
        def deep(n):
            return deep(n - 1) if n else spin(1.5)
        threads = [threading.Thread(target=deep, args=(80,)) for _ in range(40)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        """,
    )
    plan = write_plan(tmp_path, "{use: py-spy, rate: 2000}", **FAST)
    result = profrun(plan, "--", sys.executable, target, cwd=tmp_path)
    capture = result.captures()["py-spy"]
    assert capture["status"] == "degraded"
    assert "2000" in json.dumps([capture["reason"], *capture["notes"]])


@pytest.mark.tool("py-spy")
def test_a_program_that_waits_is_not_an_empty_profile(tmp_path: Path) -> None:
    result = profrun(one(tmp_path, "py-spy"), "--", sys.executable, python(tmp_path, "time.sleep(2)"), cwd=tmp_path)
    capture = result.captures()["py-spy"]
    assert capture["status"] == "ok"
    assert any("mostly waiting" in note for note in capture["notes"])
    assert functions(result)["<module>"] > 0


@pytest.mark.tool("py-spy")
def test_a_program_that_is_too_short_is_empty_and_no_failure(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, ITEMS["timing"], ITEMS["py-spy"])
    result = profrun(plan, "--", sys.executable, "-I", "-S", "-c", "print('hi')", cwd=tmp_path)
    assert result.code == 0
    capture = result.captures()["py-spy"]
    assert capture["status"] in ("empty", "ok", "degraded")  # one sample may have been taken
    assert capture["status"] != "empty" or "target ran" in capture["reason"]
    if capture["status"] == "empty":
        assert not list(result.folder.glob("flamegraphs/*"))


# ---------------------------------------------------------------- secrets (D10)


@ALL
def test_secrets_are_nowhere_but_in_files_that_are_marked(tmp_path: Path) -> None:
    env = environment(HF_TOKEN="zqx-7731-zqx")
    plan = write_plan(tmp_path, *ITEMS.values())
    result = profrun(plan, "--", sys.executable, python(tmp_path, "spin(0.5)"), cwd=tmp_path, env=env)
    assert result.code == 0
    found = subprocess.run(["grep", "-rla", "zqx-7731", result.folder], capture_output=True, text=True).stdout.split()
    marked = {a["path"] for c in result.summary["captures"] for a in c["artifacts"] if a["holds_env"]}
    assert {str(Path(p).relative_to(result.folder)) for p in found} <= marked
    assert "contains environment" in (result.folder / "index.html").read_text()


# ---------------------------------------------------------------- cron, other users (D17, D23)


@ALL
def test_from_cron_the_tools_are_found_beside_profrun(tmp_path: Path) -> None:
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    python3 = shutil.which("python3", path="/usr/bin:/bin")
    if python3 is None:
        pytest.skip("no python3 in /usr/bin")
    result = profrun(everything(tmp_path), "--", "python3", python(tmp_path, "spin(0.5)"), cwd=tmp_path, env=env)
    assert result.code == 0
    assert result.statuses() == dict.fromkeys(ITEMS, "ok")


# ---------------------------------------------------------------- rebuilt from raw/


@ALL
def test_a_report_is_rebuilt_from_raw_alone(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, *ITEMS.values(), "{use: strace, mode: trace}")
    result = profrun(plan, "--", sys.executable, python(tmp_path, "spin(0.5)"), cwd=tmp_path)
    assert result.code == 0
    before = {path.name: path.read_bytes() for path in (result.folder / "tables").iterdir()}
    assert {"runs", "stacks", "functions", "syscalls", "syscall_paths", "syscall_events", "os_calls_summary"} <= {
        name.partition(".")[0] for name in before
    }
    for entry in result.folder.iterdir():
        if entry.name not in ("raw", "plan.yaml"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    moved = tmp_path / "elsewhere"
    result.folder.rename(moved)
    again = profrun("report", moved, cwd=tmp_path, env={"PATH": "/nowhere"})
    assert again.code == 0
    assert {path.name: path.read_bytes() for path in (moved / "tables").iterdir()} == before


# ---------------------------------------------------------------- tools that die


@pytest.mark.tool("strace")
def test_a_log_that_breaks_off_with_its_tool_is_not_whole(tmp_path: Path) -> None:
    kills_its_tracer = """
    import os
    spin(0.3)
    os.kill(int(re.search(r"TracerPid:\\s*([1-9]\\d*)", open("/proc/self/status").read())[1]), 9)
    spin(0.3)
    """.replace("import os", "import os, re")
    plan = write_plan(tmp_path, "{use: strace, mode: trace}", **FAST)
    result = profrun(plan, "--", sys.executable, python(tmp_path, kills_its_tracer), cwd=tmp_path)
    assert result.code == 0
    capture = result.captures()["strace"]
    assert capture["status"] == "degraded"
    assert "killed by SIGKILL while the target ran" in capture["reason"]


# ---------------------------------------------------------------- attaching


@pytest.mark.tool("strace")
def test_a_process_that_has_started_profrun_is_looked_at_without_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys; sys.exit(subprocess.run([*sys.argv[1:], str(__import__('os').getpid())]).returncode)"
    )
    words = command("attach", "--only", "strace", "--duration", "1s", "--pid")
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=tmp_path, capture_output=True, text=True)
    result = Result(done.returncode, done.stdout, done.stderr, tmp_path)
    assert result.code == 0
    argv = result.captures()["strace"]["commands"][0]
    assert "," not in argv[argv.index("-p") + 1]
    assert "has started profrun" in done.stderr


@pytest.mark.tool("py-spy", "strace", "perf")
def test_a_process_that_ends_while_it_is_looked_at(tmp_path: Path) -> None:
    lives_until_py_spy_has_come = """
    import os
    from waiting import processes
    while not processes("py-spy record", f"--pid {os.getpid()}"):
        spin(0.05)
    spin(2)
    """
    env = environment(PYTHONPATH=str(Path(__file__).parents[1]))
    with subprocess.Popen([sys.executable, python(tmp_path, lives_until_py_spy_has_come)], env=env) as running:
        result = profrun("attach", "--pid", str(running.pid), "--duration", "10m", cwd=tmp_path)
    assert result.code == 0
    assert result.statuses() == {"py-spy": "ok", "monitor": "ok", "perf": "empty", "strace": "empty"}
    assert "had ended before this pass" in result.captures()["strace"]["reason"]


@pytest.mark.tool("py-spy")
def test_tools_end_when_asked_though_profrun_runs_in_the_background_of_a_script(tmp_path: Path) -> None:
    """A shell lets what it starts with & ignore SIGINT, and that is inherited."""
    with subprocess.Popen([sys.executable, python(tmp_path, "while True: spin(0.01)")]) as running:
        until(lambda: cpu_s(running.pid) > 0.2)
        words = command("attach", "--only", "py-spy", "--pid", str(running.pid), "--duration", "1s")
        line = f"{' '.join(words)} & wait $!"
        done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
        running.kill()
    assert done.returncode == 0, done.stderr
    assert not any("killed" in note for note in Result(0, done.stdout, "", tmp_path).captures()["py-spy"]["notes"])


@pytest.mark.usefixtures("tracepoints")
@pytest.mark.tool("py-spy", "strace", "perf")
def test_a_running_process_is_looked_at_and_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, python(tmp_path, "while True: spin(0.01); open(__file__).close()")]
    ) as running:
        until(lambda: cpu_s(running.pid) > 0.2)
        words = ["attach", "--pid", str(running.pid), "--duration", "2s"]
        result = profrun(*words, cwd=tmp_path)
        assert running.poll() is None
        until(lambda: state(running.pid) in "RS")
        running.kill()
    assert result.code == 0
    found = result.statuses()
    assert found.pop("strace") in ("ok", "skipped"), "what opens a file a hundred times a second may be too slow for it"
    assert found == {"py-spy": "ok", "monitor": "ok", "perf": "ok"}
    assert "spin" in functions(result)
