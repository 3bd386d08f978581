"""Programs with pids, users and files of their own, as in a container: started by profrun, or seen from outside."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, script, write_plan
from injecting import inject
from light_torch import LIGHT
from waiting import LIMIT_S, cpu_s, kill, processes, state, unmistakable, until

from orchestrator import process, tables
from orchestrator.inside import SITE
from orchestrator.signals import TWINS_S

PIDS = ("unshare", "--pid", "--fork", "--mount-proc")
USERS = ("unshare", "--map-root-user", "--user", "--pid", "--fork", "--mount-proc")
FILES = ("unshare", "--map-root-user", "--user", "--mount")
FAST = {"report": "{formats: []}"}


def allowed(words: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([*words, "true"], capture_output=True, timeout=LIMIT_S).returncode == 0
    except OSError:
        return False


def needs(words: tuple[str, ...]) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not allowed(words), reason=f"{' '.join(words)} is not allowed here")


KINDS = [pytest.param(PIDS, id="pids", marks=needs(PIDS)), pytest.param(USERS, id="users", marks=needs(USERS))]

STEPS = f"""{LIGHT}
import os, time, torch
torch.set_num_threads(1)
assert os.getpid() == 1
def work_inside():
    end = time.perf_counter() + 0.03
    while time.perf_counter() < end: sum(range(1000))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(14):
    work_inside()
    optimizer.zero_grad(); model(torch.rand(2, 4)).sum().backward(); optimizer.step()
"""

LOOP = """
import os, sys, time
def work_inside():
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end: os.stat("/")
while not os.path.exists(sys.argv[1]): work_inside()
sys.exit(5)
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def table(result: Result, name: str) -> Any:
    return tables.read(result.folder / "tables" / f"{name}.parquet")


def pythons(result: Result) -> list[dict[str, Any]]:
    """Those of the last pass, as they were seen from outside."""
    found: list[dict[str, Any]] = result.summary["passes"][-1]["run"]["pythons"]
    return found


# ---------------------------------------------------------------- pids of their own


@pytest.mark.parametrize("words", KINDS)
def test_a_process_learns_its_number_outside(words: tuple[str, ...], tmp_path: Path) -> None:
    program = (
        "import os, sys; print(os.getpid(), flush=True); pid = os.fork(); os.waitpid(pid, 0) if pid else sys.exit()"
    )
    seen, left = inject([*words, sys.executable, "-c", program], tmp_path, tmp_path / "inside", hold=True)
    (one,) = left.content.processes
    assert (seen.code, seen.stdout, seen.stderr) == (0, "1\n", "")
    assert one.pid == one.start["pid"] > 1
    assert left.rung == ("python",)


@pytest.mark.tool("py-spy")
@pytest.mark.parametrize("words", KINDS)
def test_steps_and_samples_of_a_first_process_are_of_the_same_one(words: tuple[str, ...], tmp_path: Path) -> None:
    """It has the number 1, under which the machine's own first process is known outside."""
    pytest.importorskip("torch")
    program = written(tmp_path / "t.py", STEPS)
    plan = write_plan(tmp_path, "{use: py-spy}", window="{skip: 4, steps: 6}", **FAST)
    result = profrun(plan, "--", *words, sys.executable, program, cwd=tmp_path)
    assert result.code == 0, result.stderr
    (pid,) = {one["pid"] for one in pythons(result)}
    assert set(table(result, "steps")["pid"]) == set(table(result, "functions")["pid"]) == {pid} != {1}
    assert "work_inside" in set(table(result, "functions")["function"])
    notes = result.summary["passes"][-1]["notes"]
    assert not [note for note in notes if "not in force" in note or "let go" in note], notes
    assert result.summary["passes"][-1]["run"]["leftovers"] == []


@pytest.mark.tool("strace")
@needs(PIDS)
def test_system_calls_of_a_first_process(tmp_path: Path) -> None:
    program = written(tmp_path / "t.py", "import os\nfor _ in range(500): os.stat('/')\nraise SystemExit(7)")
    plan = write_plan(tmp_path, "{use: strace}", **FAST)
    result = profrun(plan, "--", *PIDS, sys.executable, program, cwd=tmp_path)
    calls = table(result, "syscalls").groupby("name")["count"].sum()
    assert calls.filter(regex="stat").sum() >= 500
    assert result.summary["outcome"]["target_exit_code"] == 7


@needs(PIDS)
def test_a_first_process_that_is_deaf_to_everything_ends_with_its_container(tmp_path: Path) -> None:
    """The kernel keeps signals without a handler from it; SIGKILL from outside ends it, and all that is in there."""
    sleeps = unmistakable(77_701)
    program = script(tmp_path / "t.sh", f"#!/bin/sh\ntrap '' INT TERM\nsleep {sleeps} & sleep {sleeps}")
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", **FAST)
    words = command(plan, "--", *PIDS, program)
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as running:
        try:
            until(lambda: len(processes("^sleep", sleeps)) == 2)
            running.send_signal(signal.SIGINT)
            time.sleep(2 * TWINS_S)
            running.send_signal(signal.SIGINT)  # which is another wish, and kills
            assert running.wait(LIMIT_S) == 130
            assert processes("^sleep", sleeps) == []
        finally:
            running.kill()
            kill(sleeps)


# ---------------------------------------------------------------- files of their own

TMPFS = f"mount -t tmpfs none {shlex.quote(str(Path(SITE).parent))}"
"""Takes our folder away from a container's sight."""


@needs(FILES)
def test_a_program_that_does_not_see_our_folder_runs_as_ever_and_we_say_so(tmp_path: Path) -> None:
    program = written(tmp_path / "t.py", "import sys, time; time.sleep(0.3); print(sys.flags.safe_path); sys.exit(7)")
    start = f'{TMPFS} && exec "$0" "$@"'
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", **FAST)
    result = profrun(plan, "--", *FILES, "sh", "-c", start, sys.executable, program, cwd=tmp_path)
    target = result.folder / "raw" / f"{result.summary['passes'][0]['id']}-target"
    assert result.code == 7
    assert (target / "stderr.log").read_text() == ""
    assert (target / "stdout.log").read_text() == "False\n"
    assert [(one["injected"], one["in_reach"]) for one in pythons(result)] == [(True, False)]
    (note,) = [note for note in result.summary["passes"][0]["notes"] if "not in force" in note]
    assert "not to be seen where it runs, as in a container: show them there under the same paths" in note


APPTAINER = f"""#!/bin/sh
test "$1" = exec || exit 99
shift 2
exec {" ".join(FILES)} sh -c '
    mount -t tmpfs none /mnt && mkdir /mnt/shown && mount --rbind / /mnt/shown || exit 98
    {TMPFS}
    IFS=,
    for place in $APPTAINER_BIND; do mkdir -p "$place"; mount --bind "/mnt/shown$place" "$place" || exit 97; done
    exec "$0" "$@"
' "$@"
"""
"""Shows nothing of our folder in its container but what its variable asks for."""


@needs(FILES)
def test_an_apptainer_is_made_to_show_our_folder_in_its_container(tmp_path: Path) -> None:
    apptainer = script(tmp_path / "apptainer", APPTAINER)
    program = written(tmp_path / "t.py", "import os; print(os.environ['APPTAINER_BIND'])")
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", target="{env: {APPTAINER_BIND: /usr}}", **FAST)
    result = profrun(plan, "--", apptainer, "exec", "image.sif", sys.executable, program, cwd=tmp_path)
    assert result.code == 0, result.stderr
    target = result.folder / "raw" / f"{result.summary['passes'][0]['id']}-target"
    places = (target / "stdout.log").read_text().strip().split(",")
    assert places[:2] == ["/usr", str(Path(SITE).parent)]
    assert list((target / "python").glob("*.diary")), "our part was at work in there"


# ---------------------------------------------------------------- looked at while they run


class Enclosed:
    """A Python that runs in a container: its own pids, and its interpreter at a path that is nowhere outside."""

    def __init__(self, folder: Path) -> None:
        self.end = folder / "end"
        home = Path(sys.base_prefix)
        there = Path("/mnt/py", Path(sys.executable).resolve().relative_to(home))
        mounts = f"mount -t tmpfs none /mnt && mkdir /mnt/py && mount --bind {shlex.quote(str(home))} /mnt/py"
        program = written(folder / "t.py", LOOP)
        words = [*PIDS, "--mount", "sh", "-c", f'{mounts} && exec "$0" "$@"', there, "-S", program, self.end]
        env = {**os.environ, "LD_LIBRARY_PATH": "/mnt/py/lib"}
        self.started = subprocess.Popen([*map(str, words)], cwd=folder, env=env)
        (self.pid,) = until(lambda: process.children(self.started.pid))
        until(lambda: process.argv_of(self.pid)[:1] == (str(there),) and cpu_s(self.pid) > 0.05)

    def ended(self) -> int:
        self.end.touch()
        return self.started.wait(LIMIT_S)


@pytest.fixture
def enclosed(tmp_path: Path) -> Iterator[Enclosed]:
    one = Enclosed(tmp_path)
    yield one
    for pid in (*process.descendants(one.started.pid), one.started.pid):
        process.send(pid, signal.SIGKILL)
    one.started.wait()


@pytest.mark.tool("py-spy", "strace")
@needs((*PIDS, "--mount"))
def test_what_runs_in_a_container_is_looked_at_from_outside_and_goes_on(enclosed: Enclosed, tmp_path: Path) -> None:
    """py-spy finds an interpreter that is at another path, or at none, outside."""
    plan = write_plan(tmp_path, "{use: py-spy}", "{use: strace}", **FAST)
    result = profrun(plan, "--pid", str(enclosed.pid), "--duration", "1s", cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert "work_inside" in set(table(result, "functions")["function"])
    assert table(result, "syscalls")["count"].sum() > 0
    assert state(enclosed.pid) in "RS" and process.tracer_of(enclosed.pid) == 0
    assert enclosed.ended() == 5
