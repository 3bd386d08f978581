"""Looks at what runs already, with the real tools: it goes on as it was, whatever becomes of tools and of profrun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import light_job
import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, cpu_s, processes, state, until

from orchestrator import process, tables

FAST = {"report": "{formats: []}"}
PYTHON = f"'{sys.executable}' -I -S"
LOOP = """
import os, sys, time
def spin():
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end: pass
while not os.path.exists(sys.argv[1]):
    spin()
sys.exit(int(sys.argv[2]))
"""
"""Works until the file appears, then ends with the given status."""


class Place:
    """A folder with a program, and what was started there; all of that ends with the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.program, self.end = path / "t.py", path / "end"
        self.program.write_text(LOOP)
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str | Path, **env: str) -> subprocess.Popen[bytes]:
        self.started.append(subprocess.Popen([*map(str, words)], cwd=self.path, env={**os.environ, **env}))
        return self.started[-1]

    def python(self, status: int = 0, **env: str) -> subprocess.Popen[bytes]:
        """The program, at work."""
        one = self.start(sys.executable, "-I", "-S", self.program, self.end, str(status), **env)
        until(lambda: cpu_s(one.pid) > 0.05)
        return one

    def ended(self, one: subprocess.Popen[bytes]) -> int:
        """The status with which it ends when it is told to."""
        self.end.touch()
        return one.wait(LIMIT_S)

    def close(self) -> None:
        for one in self.started:
            for pid in (*reversed(process.descendants(one.pid)), one.pid):
                process.send(pid, signal.SIGKILL)
            one.wait()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    one = Place(tmp_path)
    yield one
    one.close()


def table(result: Result, name: str) -> Any:
    return tables.read(result.folder / "tables" / f"{name}.parquet")


def looked_at(result: Result) -> list[dict[str, Any]]:
    """The processes of the last pass."""
    found: list[dict[str, Any]] = result.summary["passes"][-1]["run"]["attached"]
    return found


def works(pid: int) -> bool:
    """Waits until it has used more of its time."""
    before = cpu_s(pid)
    return until(lambda: cpu_s(pid) > before)


# ---------------------------------------------------------------- jobs, trees, wrappers


@pytest.mark.tool("py-spy", "strace", "torchrun")
def test_both_ranks_of_a_job_are_seen_and_go_on(place: Place) -> None:
    launcher = place.start(
        shutil.which("torchrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}") or "torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        light_job.__file__,
        place.path,
        OMP_NUM_THREADS="1",
    )
    pids = {rank: int(until(lambda path=path: read(path))) for rank, path in ranks(place, "pid").items()}
    result = profrun("attach", "--pid", str(launcher.pid), "--duration", "2s", cwd=place.path)
    assert result.code == 0, result.stderr
    assert "light_job.py" in result.summary["run"]["command"][-2], "the program, not what has started it"
    assert ", 2 ranks)" in result.stderr and f"{pids[1]} rank 1 of 2" in result.stderr
    known = {one["pid"]: one for one in looked_at(result)}
    assert known[launcher.pid]["wrapper"] == "torchrun" and known[launcher.pid]["rank"] is None
    assert {rank: known[pid]["rank"] for rank, pid in pids.items()} == {0: 0, 1: 1}
    assert all(one["state_after"] in ("R", "S", "D") for one in known.values())
    stacks = table(result, "stacks")
    assert all("forward" in " ".join(stacks[stacks["pid"] == pid]["stack"]) for pid in pids.values())
    for path in ranks(place, "step").values():
        step = int(read(path) or 0)
        until(lambda path=path, step=step: int(read(path) or 0) > step)
    (place.path / "stop").touch()
    assert launcher.wait(LIMIT_S) == 1, "as torchrun says where a rank has failed"
    report = (result.folder / "report.md").read_text()
    assert "## Processes looked at" in report and "1 of 2" in report
    assert 'id="processes"' in (result.folder / "index.html").read_text()
    assert {int(rank) for rank in table(result, "syscalls")["rank"].dropna()} == {0, 1}


def ranks(place: Place, what: str) -> dict[int, Path]:
    return {rank: place.path / f"rank{rank}.{what}" for rank in range(2)}


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.tool("py-spy", "strace")
def test_what_was_stopped_before_stays_stopped(place: Place) -> None:
    run = script(place.path / "run.sh", f"#!/bin/sh\n{PYTHON} t.py end 0 &\n{PYTHON} t.py end 0 &\nwait\n")
    shell = place.start(run)
    goes, stands = until(lambda: tuple(children) if len(children := process.children(shell.pid)) == 2 else ())
    until(lambda: cpu_s(goes) > 0.05 and cpu_s(stands) > 0.05)
    os.kill(stands, signal.SIGSTOP)
    until(lambda: state(stands) == "T")
    used = cpu_s(stands)
    result = profrun("attach", "--pid", str(shell.pid), "--duration", "500ms", cwd=place.path)
    assert result.code == 0, result.stderr
    assert state(stands) == "T" and cpu_s(stands) == used and works(goes)
    known = {one["pid"]: (one["state_before"], one["state_after"]) for one in looked_at(result)}
    assert known[stands] == ("T", "T") and known[goes][1] in ("R", "S", "D")
    assert "stopped, as before" in (result.folder / "report.md").read_text()
    os.kill(stands, signal.SIGCONT)
    assert works(stands)
    assert place.ended(shell) == 0


@pytest.mark.tool("py-spy")
def test_the_program_in_a_wrapper_is_found(place: Place) -> None:
    conda = script(place.path / "conda", '#!/bin/sh\nshift\n"$@" &\nwait $!\n')
    wrapper = place.start(conda, "run", sys.executable, "-I", "-S", place.program, place.end, "5")
    program = until(lambda: next((p for p in process.children(wrapper.pid) if cpu_s(p) > 0.05), 0))
    result = profrun("attach", "--only", "py-spy", "--pid", str(wrapper.pid), "--duration", "1s", cwd=place.path)
    assert result.statuses() == {"py-spy": "ok"}, result.stderr
    assert result.summary["run"]["command"][-3:] == [str(place.program), str(place.end), "5"]
    assert f"processes: {wrapper.pid} conda run, {program}" in result.stderr
    assert "spin" in set(table(result, "functions")["function"])
    assert works(program) and place.ended(wrapper) == 5


def test_a_process_that_never_was_and_one_that_is_no_program(place: Place) -> None:
    for words, said in ((["4194300"], "there is no process 4194300"), ([str(dead(place))], ") has ended")):
        result = profrun("attach", "--pid", *words, cwd=place.path)
        assert result.code == 2 and said in result.stderr and "next: " in result.stderr
    assert not (place.path / "reports").exists()


def dead(place: Place) -> int:
    """A process that has ended and that its parent has yet to take note of."""
    pid = place.start("sh", "-c", "exit 3").pid
    until(lambda: state(pid) == "Z")
    return pid


# ---------------------------------------------------------------- its end, and what it leaves


@pytest.mark.tool("strace")
def test_the_look_ends_with_the_process_and_not_with_what_it_leaves_running(place: Place) -> None:
    """strace would go on as long as the daemon does."""
    code = f"import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)\n{LOOP}"
    place.program.write_text(code)
    target = place.python(status=3)
    [daemon] = process.children(target.pid)
    place.started.append(target)
    run = subprocess.Popen(
        command("attach", "--only", "strace", "--pid", str(target.pid), "--duration", "10m"), cwd=place.path,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    until(lambda: process.tracer_of(target.pid))
    assert place.ended(target) == 3
    out, err = run.communicate(timeout=LIMIT_S)
    result = Result(run.returncode, out, err, place.path)
    assert (result.code, result.statuses()) == (0, {"strace": "ok"}), err
    assert process.alive(daemon) and process.tracer_of(daemon) == 0
    after = {one["pid"]: one["state_after"] for one in looked_at(result)}
    assert after[target.pid] is None and after[daemon] == "S"
    os.kill(daemon, signal.SIGKILL)


@pytest.mark.tool("py-spy")
def test_a_time_out_ends_the_look_alone(place: Place) -> None:
    target = place.python(status=4)
    result = profrun("attach", "--only", "py-spy", "--timeout", "1s", "--pid", str(target.pid), cwd=place.path)
    assert result.code == 124, result.stderr
    assert result.statuses() == {"py-spy": "degraded"}
    assert works(target.pid) and place.ended(target) == 4


@pytest.mark.tool("py-spy", "strace")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_profrun_is_ended_while_it_looks(place: Place, number: int) -> None:
    """The target is untouched and no tool is left; after Ctrl-C there is a report of what was seen."""
    target, stands = place.python(status=6), place.python()
    os.kill(stands.pid, signal.SIGSTOP)
    until(lambda: state(stands.pid) == "T")
    plan = write_plan(place.path, "{together: [{use: py-spy}, {use: strace}]}")
    words = command(plan, "--pid", str(target.pid), "--pid", str(stands.pid), "--duration", "10m")
    out = (place.path / "out").open("w")
    run = subprocess.Popen(words, cwd=place.path, stdout=out, stderr=out, env=environment())
    spies = until(lambda: processes("py-spy record", f"--pid {target.pid}"))
    until(lambda: any("Sampling process" in log.read_text() for log in logs(spies[0])))
    tracer = until(lambda: process.tracer_of(target.pid))
    run.send_signal(number)
    code = run.wait(LIMIT_S)
    until(lambda: not any(map(process.alive, [*spies, tracer])))
    until(lambda: process.tracer_of(target.pid) == 0 and state(stands.pid) == "T")
    assert works(target.pid)
    if number == signal.SIGINT:
        assert code == 130
        result = Result(code, read(place.path / "out"), "", place.path)
        assert result.statuses() == {"py-spy": "degraded", "strace": "degraded"}
        assert "spin" in set(table(result, "functions")["function"])
    os.kill(stands.pid, signal.SIGCONT)
    assert place.ended(target) == 6


def logs(pid: int) -> list[Path]:
    """What a tool prints into."""
    with os.scandir(f"/proc/{pid}/fd") as found:
        return [Path(entry.path).readlink() for entry in found if entry.name in "12"]


# ---------------------------------------------------------------- tools that misbehave

FAKE = """#!{python} -IS
import os, signal, sys, time
words = sys.argv[1:]
if "--version" in words or "--help" in words:
    print("py-spy 0.4.0 --format chrometrace --nonblocking --gil")
    sys.exit()
pid = int(words[words.index("--pid") + 1])
print("Sampling process", flush=True)
{body}
"""
BAD = {
    "stops it and goes": "os.kill(pid, signal.SIGSTOP)",
    "stops it and dies": "os.kill(pid, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)",
    "stops its child": "os.kill(int(open(f'/proc/{pid}/task/{pid}/children').read()), signal.SIGSTOP)",
    "leaves a daemon": "os.fork() or (os.setsid(), os.close(1), os.close(2), time.sleep(600))",
}


@pytest.mark.parametrize("what", BAD)
def test_a_tool_does_not_leave_anybody_stopped(place: Place, what: str) -> None:
    place.program.write_text(LOOP.replace("while not", "os.fork()\nwhile not", 1))
    target = place.python(status=2)
    child = until(lambda: next(iter(process.children(target.pid)), 0))
    fake = script(place.path / "py-spy", FAKE.format(python=sys.executable, body=BAD[what]))
    plan = write_plan(place.path, "{use: py-spy}", tools=f"{{py-spy: {fake}}}", **FAST)
    result = profrun(plan, "--pid", str(target.pid), "--duration", "500ms", cwd=place.path)
    assert result.code == 4 and result.statuses() == {"py-spy": "tool_failed"}, result.stderr
    assert works(target.pid) and works(child)
    assert not processes(fake)
    stopped = child if "child" in what else target.pid
    note = f"a tool had left process {stopped} stopped; it was continued"
    assert (note in result.stderr) is what.startswith("stops")
    assert (" of a tool had outlived it; it was ended" in result.stderr) is what.startswith("leaves")
    assert place.ended(target) == 2


def test_who_was_stopped_and_runs_now_is_named(place: Place) -> None:
    """It may be its user who has let it go on meanwhile: it is not stopped again."""
    target = place.python()
    os.kill(target.pid, signal.SIGSTOP)
    until(lambda: state(target.pid) == "T")
    fake = script(place.path / "py-spy", FAKE.format(python=sys.executable, body="os.kill(pid, signal.SIGCONT)"))
    plan = write_plan(place.path, "{use: py-spy}", tools=f"{{py-spy: {fake}}}", **FAST)
    result = profrun(plan, "--pid", str(target.pid), "--duration", "300ms", cwd=place.path)
    assert f"process {target.pid} was stopped when profrun came, and runs now" in result.stderr
    assert works(target.pid)
    ((before, after),) = [(one["state_before"], one["state_after"]) for one in looked_at(result)]
    assert before == "T" and after in ("R", "S", "D")


def test_what_is_slow_to_write_gets_its_time(place: Place) -> None:
    """The data comes a while after the tool was asked to end (D03)."""
    target = place.python()
    data = json.dumps({"traceEvents": []})
    body = f"""
def write(*_):
    time.sleep(1)
    open(words[words.index("--output") + 1], "w").write({data!r})
    sys.exit()
signal.signal(signal.SIGINT, write)
while True: time.sleep(600)
"""
    fake = script(place.path / "py-spy", FAKE.format(python=sys.executable, body=body))
    plan = write_plan(place.path, "{use: py-spy}", tools=f"{{py-spy: {fake}}}", **FAST)
    result = profrun(plan, "--pid", str(target.pid), "--duration", "300ms", cwd=place.path)
    capture = result.captures()["py-spy"]
    assert capture["flush_s"] >= 1 and any(a["role"] == "profile" for a in capture["artifacts"]), capture
    assert works(target.pid)


@pytest.mark.tool("py-spy")
def test_a_script_without_python_is_told_so_and_goes_on(place: Place) -> None:
    target = place.start("sh", "-c", "while ! [ -e end ]; do sleep 0.05; done; exit 9")
    result = profrun("attach", "--only", "py-spy", "--pid", str(target.pid), "--duration", "1s", cwd=place.path)
    assert result.code == 0 and result.statuses() == {"py-spy": "empty"}, result.stderr
    assert place.ended(target) == 9
