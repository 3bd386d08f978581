"""The trials: a played machine with all settings, a run of profrun on it that is ended at a chosen moment, and what is
then different from before, or still alive."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.fakes import sysfs
from tests.fakes.gpus import FakeGpus

REPO = Path(__file__).resolve().parents[2]
PYTHON = str(REPO / ".venv" / "bin" / "python")
"""The one that profrun is installed in, whichever runs the benchmark."""
FORMS = tuple(form for form in sysfs.FORMS if form not in ("none", "readonly"))
SETTLED_WITHIN_S = 90.0
_MARK = "RESTOREBENCH_TRIAL"

How = Literal["kill", "term", "both"]

PLAN = """\
version: 1
name: restore
leftovers: end
environment:
  - {use: env, set: {A: "1"}}
  - {use: seeds}
  - {use: affinity, nice: 1, aslr: false}
  - {use: gpu_idle, over: 100ms}
  - {use: cpu_idle, over: 100ms}
  - {use: quiet_services, over: 100ms}
  - {use: gpu_clocks, graphics: 1500MHz, memory: max, persistence: true}
  - {use: cpu_frequency, governor: performance, min: 2GHz, max: 2GHz, turbo: false, max_cstate: 1}
  - {use: drop_caches}
  - {use: shell, run: [sh, -c, "echo stopped > service"], undo: [sh, -c, "echo running > service"]}
collectors:
  - {use: timing, warmup: 0, repeats: 1}
"""
TARGET = ("sh", "-c", 'trap "" TERM; setsid sleep 300 & sleep 0.3; kill $!')


@dataclass(frozen=True)
class Trial:
    """One end of profrun: at a point (see mortal.py), or else so many seconds after its start."""

    form: str
    how: How
    point: int | None = None
    after_s: float | None = None
    stage: str = ""
    what: str = ""
    """What had just been done, or was just about to be; of a random end: what was passed last."""

    @property
    def moment(self) -> str:
        return f"point {self.point} ({self.stage}, {self.what})" if self.point is not None else f"{self.after_s:.2f} s"


@dataclass(frozen=True)
class Result:
    """What came of a trial. `wrong`: what differs from before, or lives on; empty when all is well."""

    trial: Trial
    wrong: tuple[str, ...]
    settled_s: float


class Machine:
    """A played machine in a folder: processors of a form, two GPUs, a file for a service's state."""

    def __init__(self, place: Path, form: str) -> None:
        self.place, self.mark = place, f"{place.name}-{os.getpid()}"
        sysfs.make(place / "root", form)
        self.gpus = FakeGpus(place, 2)
        (place / "caches").write_text("0\n")
        (place / "latency").write_bytes((2_000_000_000).to_bytes(4, sys.byteorder))  # nobody holds it
        (place / "service").write_text("running\n")
        (place / "plan.yaml").write_text(PLAN)

    def state(self) -> dict[str, str]:
        """Everything that a run may change, as it is."""
        service = {"service": (self.place / "service").read_text().strip()}
        return {**sysfs.snapshot(self.place / "root"), **self.gpus.changeable(), **service}

    def start(self, *argv: str) -> subprocess.Popen[bytes]:
        """A command for which this is the machine."""
        own = {"caches": "/proc/sys/vm/drop_caches", "latency": "/dev/cpu_dma_latency"}
        mounts = "".join(f"mount --bind '{self.place}/{name}' {path} 2>/dev/null; " for name, path in own.items())
        inner = sysfs.bound(self.place / "root", ["sh", "-c", f'{mounts}exec "$@"', "sh", *argv])
        env = {
            **os.environ, **self.gpus.env, _MARK: self.mark, "PROFRUN_STATE": str(self.place / "state"),
            "PYTHONPATH": f"{REPO}:{REPO / 'scripts'}", "TMPDIR": str(self.place / "tmp"),
        }  # fmt: skip
        (self.place / "tmp").mkdir(exist_ok=True)
        with (self.place / "said").open("ab") as said:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            return subprocess.Popen(inner, cwd=self.place, env=env, start_new_session=True, **quiet)

    def alive(self) -> list[int]:
        """The processes that a command on this machine has left."""
        sign = f"\0{_MARK}={self.mark}\0".encode()
        return [pid for pid in _pids() if sign in b"\0" + _environ(pid) + b"\0"]

    def journals(self) -> list[str]:
        """Those that tell of a change: a run that died before its first has left nothing to put back."""
        found = (self.place / "state").glob("journal-*")
        return [path.name for path in found if b'"event": "intent"' in path.read_bytes()]


def _pids() -> Iterator[int]:
    return (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def profrun(point: int, number: int, whom: str) -> tuple[str, ...]:
    words = ("run", "./plan.yaml", "-q", "--keep-going", "-o", "reports", "--", *TARGET)
    return (PYTHON, "-m", "restorebench.mortal", str(point), str(number), whom, "passed", "--", *words)


def survey(form: str) -> tuple[list[Trial], float]:
    """(an end at every point that a run on this form of machine passes, how long the run takes)."""
    with tempfile.TemporaryDirectory(prefix="restorebench-") as place:
        machine = Machine(Path(place), form)
        before, began = machine.state(), time.monotonic()
        code = machine.start(*profrun(-1, 0, "us")).wait()
        took_s = time.monotonic() - began
        said = Path(place, "said").read_text()
        if code or machine.state() != before:
            raise SystemExit(f"{form}: an undisturbed run ends in {code}, or leaves the machine changed:\n{said}")
        lines = [line.split(" ", 2) for line in Path(place, "passed").read_text().splitlines()]
    return [Trial(form, "kill", int(number), None, stage, what) for number, stage, what in lines], took_s


def chosen(count: int, how: How, seed: int, workers: int) -> list[Trial]:
    """Half of them at points, taken evenly from all points of all forms; the rest at any time of a run."""
    dice, some = random.Random(seed), FORMS[:count]
    with ThreadPoolExecutor(workers) as pool:
        surveys = dict(zip(some, pool.map(survey, some), strict=True))
    points = [trial for trials, _ in surveys.values() for trial in trials]
    half = count - count // 2
    at_points = [points[len(points) * n // half] for n in range(half)]
    forms = [some[n % len(some)] for n in range(count - half)]
    at_random = [Trial(form, how, after_s=dice.uniform(0.0, surveys[form][1])) for form in forms]
    return [replace(trial, how=how) for trial in (*at_points, *at_random)]


def tried(trial: Trial) -> Result:
    """One trial, on a machine of its own."""
    with tempfile.TemporaryDirectory(prefix="restorebench-") as place:
        machine = Machine(Path(place), trial.form)
        before = machine.state()
        number = signal.SIGTERM if trial.how == "term" else signal.SIGKILL
        point = -1 if trial.point is None else trial.point
        running = machine.start(*profrun(point, number, "both" if trial.how == "both" else "us"))
        if trial.after_s is not None:
            _end_after(machine, running, trial, number)
        running.wait()
        began = time.monotonic()
        if trial.how == "both":
            machine.start(PYTHON, "-m", "orchestrator", "env", "restore").wait()
        left = _left(machine)
        settled_s = time.monotonic() - began
        wrong = [*_changed(before, machine.state()), *(f"alive: {_words(pid)}" for pid in left)]
        wrong += [f"journal left: {name}" for name in machine.journals()]
        for pid in machine.alive():
            os.kill(pid, signal.SIGKILL)
        said = Path(place, "said").read_text()[-500:] if wrong else ""
        return Result(trial, (*wrong, *([said] if said else ())), settled_s)


def _end_after(machine: Machine, running: subprocess.Popen[bytes], trial: Trial, number: int) -> None:
    try:
        running.wait(trial.after_s)
    except subprocess.TimeoutExpired:
        if trial.how == "both":
            for pid in machine.alive():
                if "standalone/keeper.py" in _words(pid):
                    os.kill(pid, signal.SIGKILL)
        running.send_signal(number)


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield f"{name}: {before.get(name, 'not there')} -> {after.get(name, 'gone')}"


def _left(machine: Machine) -> list[int]:
    """Who still lives when there was time enough to end."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    left = machine.alive()
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = machine.alive()
    return left


def _words(pid: int) -> str:
    try:
        return f"{pid} " + Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return str(pid)


def run(count: int, how: How, seed: int, workers: int) -> tuple[str, bool]:
    """(what to print, whether every trial has left the machine as it was)."""
    trials = chosen(count, how, seed, workers)
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(tried, trials))
    good = [result for result in results if not result.wrong]
    lines = [*_table(results), ""]
    lines += [f"{r.trial.form}, {r.trial.moment}: {'; '.join(r.wrong)}" for r in results if r.wrong]
    return "\n".join([*lines, f"{len(good)}/{len(results)}"]), len(good) == len(results)


def _table(results: Sequence[Result]) -> Iterator[str]:
    groups = Counter(_group(result.trial) for result in results)
    yield f"{'ended':44}{'trials':>8}{'as it was':>11}{'longest s':>11}"
    for name, count in sorted(groups.items()):
        own = [result for result in results if _group(result.trial) == name]
        good = sum(not result.wrong for result in own)
        yield f"{name:44}{count:>8}{good:>11}{max(result.settled_s for result in own):>11.1f}"


def _group(trial: Trial) -> str:
    if trial.point is None:
        return "at a random time"
    return f"while it {'applies' if trial.stage == 'apply' else 'restores'}, {trial.what}"
