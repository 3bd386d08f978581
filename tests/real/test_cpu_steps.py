"""The steps that set processors, in whole runs: on this machine, and with a fake machine's processors in its place."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, write_plan
from fakes import sysfs
from waiting import LIMIT_S

REPO = Path(__file__).resolve().parents[2]
CPUS = sorted(os.sched_getaffinity(0))
LATENCY = Path("/dev/cpu_dma_latency")
PIN = "{use: cpu_frequency, governor: performance, min: 2GHz, max: 2GHz, turbo: false}"
HAS_POLICIES = any(Path("/sys/devices/system/cpu/cpufreq").glob("policy*"))


@pytest.fixture(autouse=True)
def locks_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another run on this machine may hold its processors: nothing is changed here that it could notice."""
    monkeypatch.setenv("PROFRUN_STATE", str(tmp_path / "state"))


def steps(result: Result) -> dict[str, dict[str, Any]]:
    return {step["use"]: step for step in result.summary["environment"]}


def outputs(result: Result) -> list[str]:
    return [path.read_text() for path in sorted(result.folder.glob("raw/*-target/stdout.log"))]


def plan(folder: Path, *wanted: str, collectors: tuple[str, ...] = ("{use: timing, warmup: 0, repeats: 1}",)) -> Path:
    return write_plan(folder, *collectors, environment=f"[{', '.join(wanted)}]")


# ---------------------------------------------------------------- this machine as it is (D40: no cpufreq)


@pytest.mark.skipif(HAS_POLICIES, reason="this machine's clock could be set: its other users would notice")
def test_without_cpufreq_the_run_goes_on(tmp_path: Path) -> None:
    result = profrun(plan(tmp_path, PIN), "--", "sh", "-c", "exit 3", cwd=tmp_path)
    step = steps(result)["cpu_frequency"]
    assert (result.code, step["status"]) == (3, "not_available")
    assert "no cpufreq" in step["reason"]
    assert [part["name"] for part in step["parts"]] == ["governor, turbo, max, min"]


@pytest.mark.skipif(not os.access(LATENCY, os.W_OK), reason=f"{LATENCY} is not ours to hold")
@pytest.mark.skipif(
    not Path("/sys/devices/system/cpu/cpu0/cpuidle/state1").is_dir(), reason="this machine shows no idle states"
)
def test_idle_states_are_held_back_as_long_as_the_run_lasts(tmp_path: Path) -> None:
    allowed_us = int(Path("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency").read_text())
    read = "import sys; print(int.from_bytes(open('/dev/cpu_dma_latency', 'rb').read(), sys.byteorder))"
    before = LATENCY.read_bytes()
    result = profrun(
        plan(tmp_path, "{use: cpu_frequency, max_cstate: 1}"), "--", sys.executable, "-c", read, cwd=tmp_path
    )
    assert result.code == 0 and steps(result)["cpu_frequency"]["status"] == "applied"
    assert all(0 <= int(text) <= allowed_us for text in outputs(result))
    assert LATENCY.read_bytes() == before


HAS = """
import os, time
bits = int(open("/proc/self/personality").read(), 16)
print(sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0), bool(bits & 0x0040000))
time.sleep(0.5)
"""


@pytest.mark.tool("py-spy", "strace")
def test_the_program_is_bound_in_every_pass(tmp_path: Path) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, 0) + 2
    wanted = f"{{use: affinity, cpus: {CPUS[-1]}, nice: {nice}, aslr: false}}"
    collectors = ("{use: timing, warmup: 0, repeats: 1}", "{use: py-spy}", "{use: strace}")
    path = plan(tmp_path, wanted, collectors=collectors)
    result = profrun(path, "--", sys.executable, "-c", HAS, cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert outputs(result) == [f"[{CPUS[-1]}] {nice} True\n"] * 3
    step = steps(result)["affinity"]
    assert step["status"] == "applied", step["reason"]
    assert step["verified"] == {"cpus": str(CPUS[-1]), "nice": nice, "aslr": False}


@pytest.mark.skipif(len(CPUS) < 2 or not shutil.which("taskset"), reason="needs two CPUs and taskset")
def test_a_launcher_that_binds_elsewhere_is_told(tmp_path: Path) -> None:
    path = plan(tmp_path, f"{{use: affinity, cpus: {CPUS[0]}}}")
    result = profrun(path, "--", "taskset", "-c", str(CPUS[1]), sys.executable, "-c", HAS, cwd=tmp_path)
    step = steps(result)["affinity"]
    assert (result.code, step["status"]) == (0, "drifted")
    assert step["reason"] == f"cpus {CPUS[1]} instead of {CPUS[0]}: a launcher or the program itself changed it"


def test_cpus_that_are_not_there_are_told_and_the_program_runs(tmp_path: Path) -> None:
    result = profrun(plan(tmp_path, "{use: affinity, cpus: 4000-4001}"), "--", "sh", "-c", "exit 3", cwd=tmp_path)
    step = steps(result)["affinity"]
    assert (result.code, step["status"]) == (3, "not_available") and "can't be used here" in step["reason"]


# ---------------------------------------------------------------- where a fake machine's processors are this one's

SHOW = "cd /sys/devices/system/cpu/cpufreq && grep -h . policy*/scaling_{governor,m*_freq} | sort -u | xargs"
FORMS = {
    "intel_pstate": ("applied", None, "2000000 performance"),
    "acpi-cpufreq": ("clamped", "2.2 GHz", "2200000 performance"),
    "readonly": ("refused", "EROFS", "4800000 800000 powersave"),
}


def in_namespace(root: Path, path: Path, *target: str) -> Result:
    done = subprocess.run(
        sysfs.bound(root, command(path, "--", *target)),
        cwd=root.parent,
        env=environment(PYTHONPATH=str(REPO)),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    return Result(done.returncode, done.stdout, done.stderr, root.parent)


@pytest.fixture(scope="module")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("try")
    sysfs.make(root, "none")
    done = subprocess.run(sysfs.bound(root, ["true"]), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no mount namespace of our own here: {done.stderr.strip()}")


@pytest.mark.parametrize("form", FORMS)
def test_other_processors(form: str, tmp_path: Path, namespaces: None) -> None:
    place = sysfs.make(tmp_path / "root", form)
    found = sysfs.snapshot(place)
    result = in_namespace(tmp_path / "root", plan(tmp_path, PIN), "bash", "-c", SHOW)
    status, detail, shown = FORMS[form]
    step = steps(result)["cpu_frequency"]
    assert (result.code, step["status"], step["detail"]) == (0, status, detail), result.stderr
    assert {text.strip() for text in outputs(result)} == {shown}
    assert sysfs.snapshot(place) == found
    assert step["restored"] is (True if status in ("applied", "clamped") else None)


# ---------------------------------------------------------------- caches


def test_caches_are_dropped_once_before_the_passes(tmp_path: Path, namespaces: None) -> None:
    """Into a file that lies over the kernel's: this machine's other users want to keep their caches."""
    (tmp_path / "order").write_text("")
    mount = f"mount --bind {tmp_path / 'order'} /proc/sys/vm/drop_caches"
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    words = command(plan(tmp_path, "{use: drop_caches}"), "--", "true")
    argv = [*unshare, "sh", "-c", f'{mount} && exec "$@"', "sh", *words]
    done = subprocess.run(
        argv, cwd=tmp_path, env=environment(PYTHONPATH=str(REPO)), capture_output=True, text=True, timeout=LIMIT_S
    )
    step = steps(Result(done.returncode, done.stdout, done.stderr, tmp_path))["drop_caches"]
    assert (tmp_path / "order").read_text().strip() == "3", done.stderr
    assert step["status"] in ("applied", "drifted") and step["restored"] is None
    assert step["before"]["cached_bytes"] > 0 and step["verified"]["cached_bytes"] > 0
