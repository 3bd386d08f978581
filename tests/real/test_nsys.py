"""The real nsys, run with the very command lines that the collector asks for."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from waiting import LIMIT_S

from orchestrator.collectors.nsys import Nsys
from orchestrator.formats import nsys
from orchestrator.machine import Machine
from orchestrator.model import Job, Launch, Target, Window

pytestmark = pytest.mark.tool("nsys")

PROGRAM = """
import sys, time
for i in range(7):
    open('/proc/self/status').read()
    time.sleep(0.01 * (i + 1))
print('hello')
sys.exit(7)
"""
RANGES = Path(__file__).resolve().parent.parent / "golden" / "nsys" / "ranges.c"


class Ran(NamedTuple):
    """One run of the target under nsys."""

    status: int
    stdout: str
    stderr: str
    wall_s: float
    launch: Launch
    dir: Path

    def content(self) -> nsys.Content:
        return nsys.read(self.dir / "report.sqlite")

    def table(self, name: str) -> list[dict[str, Any]]:
        return next((list(t.rows()) for t in self.content().tables if t.name == name), [])


SLEEPS = ("clock_nanosleep", "nanosleep", "select")
"""What `time.sleep` of Python calls: select up to 3.10."""


def planned(directory: Path, argv: tuple[str, ...], window: Window | None = None, **options: Any) -> Launch:
    collector = Nsys.model_validate({"use": "nsys", **options})
    target = Target(argv, argv[0], str(directory), dict(os.environ))
    machine = Machine()
    job = Job("p3", str(directory), target, collector.tool(machine), window=window, facts=machine.facts())
    return collector.launch(job)


def start(launch: Launch, argv: tuple[str, ...], directory: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    assert launch.wrap is not None
    return subprocess.Popen(
        [*launch.wrap.argv, *argv],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=directory,
        env={**os.environ, **env, **launch.child.set}, start_new_session=True,
    )  # fmt: skip


def finish(launch: Launch, process: subprocess.Popen[str], directory: Path, began: float) -> Ran:
    stdout, stderr = process.communicate(timeout=LIMIT_S)
    wall_s = time.monotonic() - began
    for after in launch.after:
        if not after.when_missing or not (directory / after.when_missing).exists():
            subprocess.run(after.argv, cwd=directory, capture_output=True, timeout=LIMIT_S, check=False)
    return Ran(process.returncode, stdout, stderr, wall_s, launch, directory)


def profile(directory: Path, *argv: str, env: dict[str, str] | None = None, **options: Any) -> Ran:
    began = time.monotonic()
    launch = planned(directory, argv, **options)
    return finish(launch, start(launch, argv, directory, env or {}), directory, began)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("nsys")
    return profile(folder, sys.executable, "-c", PROGRAM, env={"HF_TOKEN": "zqx-7731"})


def test_the_target_keeps_its_exit_status_and_output(ran: Ran) -> None:
    assert ran.status == 7
    assert "hello" in ran.stdout


def test_all_required_files_are_there(ran: Ran) -> None:
    for expect in ran.launch.artifacts:
        assert not expect.required or (ran.dir / expect.glob).stat().st_size > 0, expect.glob


def test_what_is_marked_as_holding_the_environment_holds_it(ran: Ran) -> None:
    """D10: why the raw files of nsys are named in the report."""
    holding = [e.role for e in ran.launch.artifacts if e.holds_env and (ran.dir / e.glob).exists()]
    text = {e.role: (ran.dir / e.glob).read_bytes() for e in ran.launch.artifacts if (ran.dir / e.glob).exists()}
    assert b"zqx-7731" in text["sqlite"]
    assert sorted(holding) == sorted(text)


def test_os_calls_equal_what_nsys_stats_prints(ran: Ran) -> None:
    """Digit for digit: nsys computes them with its own SQL in its own SQLite."""
    tool = Nsys.model_validate({"use": "nsys"}).tool(Machine())
    help_text = subprocess.run([str(tool.path), "stats", "--help-reports"], capture_output=True, text=True, check=False)
    report = "osrt_sum" if "osrt_sum" in help_text.stdout + help_text.stderr else "osrtsum"
    command = [str(tool.path), "stats", "--report", report, "--format", "csv", str(ran.dir / "report.sqlite")]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stdout
    lines = list(csv.DictReader(io.StringIO(printed[printed.index("Time (%)") :].strip())))
    theirs = {line["Name"]: [line[k] for k in list(line)[1:-1]] for line in lines}
    ours = {row["name"]: _as_printed(row) for row in ran.table("os_calls_summary")}
    assert len(ours) > 5
    assert ours == theirs


def _as_printed(row: dict[str, Any]) -> list[str]:
    """In the order of the columns of nsys: total, calls, mean, median, minimum, maximum, deviation."""
    whole = {"total_ns", "count", "min_ns", "max_ns"}
    names = ("total_ns", "count", "mean_ns", "median_ns", "min_ns", "max_ns", "stddev_ns")
    return [str(row[n]) if n in whole else _one_decimal(row[n]) for n in names]


def _one_decimal(number: float) -> str:
    return str(Decimal(repr(float(number))).quantize(Decimal("0.1"), ROUND_HALF_UP))


def test_the_sleeps_of_the_program_are_found(ran: Ran) -> None:
    sleeps = [row for row in ran.table("os_calls_summary") if row["name"] in SLEEPS]
    assert sum(row["count"] for row in sleeps) == 7
    assert 0.28e9 <= sum(row["total_ns"] for row in sleeps) < LIMIT_S * 1e9


def test_without_a_gpu_that_is_said(ran: Ran) -> None:
    if Machine().gpus:
        pytest.skip("this machine has a GPU")
    assert "no GPU to trace: the recording names no NVIDIA GPU" in ran.content().notes


def test_a_range_that_never_opens_leaves_no_report_and_says_so(tmp_path: Path) -> None:
    """D02."""
    ran = profile(tmp_path, sys.executable, "-c", "print('hi')", range="never@*", trace=["nvtx"])
    assert ran.status == 0
    assert not (tmp_path / "report.nsys-rep").exists()
    assert not (tmp_path / "report.sqlite").exists()
    said = ran.stderr + ran.stdout
    reasons = [sign.reason for sign in ran.launch.signs if re.search(sign.pattern, said)]
    assert reasons[0] == "capture range never opened: no NVTX range never@*"


@pytest.fixture(scope="module")
def ranges_program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small program with NVTX ranges, compiled against the header that comes with nsys."""
    headers = sorted(Path(shutil.which("nsys") or "/").resolve().parent.glob("nvtx/include"))
    compiler = shutil.which("cc")
    if not headers or not compiler:
        pytest.skip("no C compiler, or this nsys brings no NVTX header")
    program = tmp_path_factory.mktemp("ranges") / "ranges"
    subprocess.run([compiler, f"-I{headers[0]}", str(RANGES), "-o", str(program), "-ldl"], check=True)
    return str(program)


def test_only_the_asked_range_is_recorded(ranges_program: str, tmp_path: Path) -> None:
    """Also for a text that the program has not registered."""
    ran = profile(tmp_path, ranges_program, range="crossing")
    assert ran.status == 0
    assert [(row["domain"], row["name"]) for row in ran.table("ranges")] == [("default", "crossing")]


def test_a_window_records_its_time_and_the_target_goes_on(tmp_path: Path) -> None:
    """`nsys profile --duration` would end before the target and report success for it."""
    stamps = tmp_path / "stamps.json"
    script = (
        "import json, sys, time\nstamps = []\n"
        "for i in range(40):\n    time.sleep(0.05)\n    stamps.append(time.time_ns())\n"
        f"json.dump(stamps, open({str(stamps)!r}, 'w'))\nsys.exit(9)\n"
    )
    argv = (sys.executable, "-c", script)
    began = time.monotonic()
    launch = planned(tmp_path, argv, Window(0.7, 0.5))
    process = start(launch, argv, tmp_path, {})
    time.sleep(0.7)
    with (tmp_path / "window.log").open("wb") as log:
        beside = subprocess.Popen(launch.beside[0].argv, stdout=log, stderr=log, start_new_session=True)
        time.sleep(0.5)
        os.killpg(beside.pid, signal.SIGINT)
        assert beside.wait(LIMIT_S) == 0
    ran = finish(launch, process, tmp_path, began)
    assert ran.status == 9
    assert len(json.loads(stamps.read_text())) == 40, "the target ran to its end"
    (sleeps,) = [row for row in ran.table("os_calls_summary") if row["name"] in SLEEPS]
    assert 1 <= sleeps["count"] < 35, "about ten of forty lie in the window"


def test_it_does_not_wait_for_what_the_target_leaves_behind(tmp_path: Path) -> None:
    """D15: with nsys's own default it would wait for all of that sleep."""
    pid_file = tmp_path / "pid"
    command = f"setsid sleep 600 </dev/null >/dev/null 2>&1 & echo $! > {pid_file}"
    ran = profile(tmp_path, "/bin/sh", "-c", command, trace=["osrt"])
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
    assert ran.status == 0
    assert ran.wall_s < LIMIT_S
    assert (tmp_path / "report.sqlite").exists()
