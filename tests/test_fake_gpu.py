"""profrun from its command line on a machine whose GPUs are played: what it locks, whom it asks, what it leaves."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import Result, command, environment, profrun, write_plan
from fakes.gpus import FakeGpus
from waiting import until

LOCK = "[{use: gpu_clocks, graphics: 1830MHz, memory: max}]"
TIMING = "{use: timing, repeats: 1}"
FINE = ("sh", "-c", "sleep 0.1")


def env_of(fake: FakeGpus, tmp_path: Path, **more: str) -> dict[str, str]:
    return environment(**fake.env, PROFRUN_STATE=str(tmp_path / "state"), CUDA_VISIBLE_DEVICES=None, **more)


def run(fake: FakeGpus, tmp_path: Path, steps: str, *target: str, **env: str) -> Result:
    plan = write_plan(tmp_path, env.pop("collector", TIMING), environment=steps)
    return profrun(plan, "--", *target, cwd=tmp_path, env={**env_of(fake, tmp_path), **env})


def record(result: Result, use: str = "gpu_clocks") -> dict[str, Any]:
    return next(step for step in result.summary["environment"] if step["use"] == use)


# ---------------------------------------------------------------- D05: whatever happens, the lock goes


@pytest.mark.parametrize("nvml", [True, False], ids=["NVML", "nvidia-smi"])
@pytest.mark.parametrize("code", [0, 1])
def test_the_lock_ends_with_the_run(tmp_path: Path, code: int, nvml: bool) -> None:
    fake = FakeGpus(tmp_path, nvml=nvml)
    before = fake.changeable()
    seen = 'nvidia-smi --query-gpu=persistence_mode --format=csv,noheader; grep lgc= "$FAKE_GPUS"'
    done = run(fake, tmp_path, LOCK, "sh", "-c", f"{seen}; exit {code}")
    assert done.code == code, done.stderr
    assert (
        "Enabled\nEnabled\n0.lgc=1830\n1.lgc=1830"
        in next((done.folder / "raw").glob("*-target/stdout.log")).read_text()
    )
    assert fake.changeable() == before and len(fake.calls("-rgc")) == 2
    step = record(done)
    assert (step["status"], step["restored"]) == ("applied", True)
    assert all("former lock unknown" in part["reason"] for part in step["parts"] if "graphics" in part["name"])


def test_the_lock_ends_when_profrun_is_ended(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path)
    before = fake.changeable()
    plan = write_plan(tmp_path, TIMING, environment=LOCK)
    argv = command(plan, "--", "sh", "-c", f"touch {tmp_path}/running; exec sleep 300")
    with subprocess.Popen(argv, cwd=tmp_path, env=env_of(fake, tmp_path), stdout=subprocess.DEVNULL) as program:
        until(lambda: (tmp_path / "running").exists())
        assert fake.get(1, "lgc") == "1830"
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 143
    assert fake.changeable() == before and len(fake.calls("-rgc")) == 2


def test_a_plan_without_rights_runs_and_says_so(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, deny=1)
    done = run(fake, tmp_path, LOCK, *FINE)
    step = record(done)
    assert done.code == 0 and (step["status"], step["detail"]) == ("refused", "EPERM")
    assert "does not have permission to change clocks" in step["reason"] and not fake.calls("-rgc")


def test_a_plan_that_insists_does_not_run(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, lgc_way="unsupported")
    done = run(fake, tmp_path, "[{use: gpu_clocks, graphics: max, on_fail: fail}]", "touch", str(tmp_path / "ran"))
    assert done.code == 5 and not (tmp_path / "ran").exists()
    assert record(done)["status"] == "not_available" and fake.get(0, "pm") == "0"


# ---------------------------------------------------------------- D16: the target's GPUs and no others


def test_only_the_gpus_that_the_target_sees(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, 4)
    fake.set(0, processes="C:1:5000:other", mem_used=5000, util=99)
    fake.set(2, util=40)
    steps = "[{use: gpu_idle, over: 200ms, max_utilization: 50%}, {use: gpu_clocks, graphics: 1830MHz}]"
    done = run(
        fake, tmp_path, steps, "sleep", "1", CUDA_VISIBLE_DEVICES="2,3", collector="{use: monitor, interval: 100ms}"
    )
    assert done.code == 0, done.stderr
    mine = {FakeGpus.uuid(2), FakeGpus.uuid(3)}
    assert {call.split()[1] for call in fake.changes()} == mine
    assert record(done, "gpu_idle")["status"] in ("applied", "already"), "the busy one is not the target's"
    told = record(done)["before"]["gpus"]
    assert {uuid: (gpu["cuda"], gpu["gpu"], gpu["pci"]) for uuid, gpu in told.items()} == {
        FakeGpus.uuid(2): (0, 2, "00000000:03:00.0"), FakeGpus.uuid(3): (1, 3, "00000000:04:00.0")
    }  # fmt: skip
    assert done.summary["metrics"]["gpu_util_pct"]["value"] == 20, "of the two that it sees"
    notes = " ".join(done.captures()["monitor"]["notes"])
    assert f"the target's 0 is GPU 2 ({FakeGpus.uuid(2)}), 1 is GPU 3 ({FakeGpus.uuid(3)})" in notes


# ---------------------------------------------------------------- D18: busy without a process


def test_a_gpu_that_is_busy_without_a_process_is_not_idle(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, 1, mem_used=814, util=78)
    step = record(run(fake, tmp_path, "[{use: gpu_idle, over: 500ms}]", *FINE), "gpu_idle")
    assert step["status"] == "failed" and "78 %" in step["reason"], step


# ---------------------------------------------------------------- D25: a driver that does not answer


@pytest.mark.parametrize("hangs", [{"nvml_hang": 1, "smi_hang": 1}, {"smi_hang": 1, "nvml": False}])
def test_a_hanging_driver_costs_its_limit_and_no_more(tmp_path: Path, hangs: dict[str, Any]) -> None:
    """All questions of a run together: steps, facts, collectors."""
    fake = FakeGpus(tmp_path, **hangs)
    steps = "[{use: gpu_idle, over: 200ms}, {use: gpu_clocks, graphics: max}]"
    done = run(fake, tmp_path, steps, "touch", str(tmp_path / "ran"), PROFRUN_GPU_LIMIT_S="1.5")
    assert done.code == 0 and (tmp_path / "ran").exists(), done.stderr
    step = record(done)
    assert step["status"] == "failed" and "no answer of the GPUs' driver in 1.5 s" in step["reason"]
    assert len(fake.calls()) <= 1, "it is asked once"
    assert done.summary["machine"]["gpus"] == []


# ---------------------------------------------------------------- D31: a lock that does not hold


def test_a_lock_that_is_not_held_under_load_is_told(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, 1, util=95, sm_sequence="1830 1750 1620", reasons=4)
    done = run(fake, tmp_path, LOCK, "sleep", "1.5", collector="{use: monitor, interval: 50ms}")
    step = record(done)
    assert step["status"] == "drifted", step
    assert "clock lock not held: wanted 1830 MHz, saw 1620 / 17" in step["reason"]
    assert "1830 MHz (min/median/max) under load, " in step["reason"]
    assert step["reason"].endswith("samples off; sw_power_cap in 100 % of these")
    assert step["during"][FakeGpus.uuid(0)]["memory_mhz"]["median"] == 2619
    assert "clock lock not held" in (done.folder / "report.md").read_text()


def test_a_lock_that_is_held_is_shown_as_held(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, 1, util=95)
    done = run(fake, tmp_path, LOCK, "sleep", "1", collector="{use: monitor, interval: 50ms}")
    step = record(done)
    assert step["status"] == "applied" and step["restored"] is True
    clocks = step["during"][FakeGpus.uuid(0)]["graphics_mhz"]
    assert clocks == {"wanted": 1830, "min": 1830, "median": 1830, "max": 1830, "off": 0}
    assert "nvidia-smi said so" not in step["reason"]


def test_without_a_monitor_nobody_looks(tmp_path: Path) -> None:
    fake = FakeGpus(tmp_path, 1)
    plan = write_plan(tmp_path, TIMING, environment=LOCK)
    said = profrun("check", plan, "--json", "--", "true", cwd=tmp_path, env=env_of(fake, tmp_path))
    assert "nobody looks whether the GPUs' clocks hold" in json.dumps(json.loads(said.stdout))
    unseen = record(run(fake, tmp_path, LOCK, *FINE))
    assert unseen["status"] == "applied" and unseen["fix"] == "add the collector monitor to the plan"
    assert "nvidia-smi said so; a lock can't be read back, and no monitor watched it" in unseen["reason"]


# ---------------------------------------------------------------- a program that runs already


def test_of_a_program_that_runs_already_its_own_gpus_are_meant(tmp_path: Path) -> None:
    """D16. The plan's variables come too late for it."""
    fake = FakeGpus(tmp_path)
    steps = f"[{{use: env, set: {{CUDA_VISIBLE_DEVICES: '0'}}}}, {{use: seeds}}, {LOCK[1:-1]}]"
    plan = write_plan(tmp_path, "{use: monitor, interval: 100ms}", environment=steps)
    env = env_of(fake, tmp_path)
    with subprocess.Popen(["sleep", "300"], env={**env, "CUDA_VISIBLE_DEVICES": "1"}) as program:
        try:
            checked = profrun("check", plan, "--pid", str(program.pid), cwd=tmp_path, env=env).stdout
            done = profrun(plan, "--pid", str(program.pid), "--duration", "500ms", cwd=tmp_path, env=env)
        finally:
            program.kill()
    assert done.code == 0, done.stderr
    assert {call.split()[1] for call in fake.changes()} == {FakeGpus.uuid(1)}
    for use in ("env", "seeds"):
        step = record(done, use)
        assert (step["status"], step["fix"]) == ("not_available", "let profrun start it")
    assert "seeds: the program runs already" in checked and "PYTHONHASHSEED=" not in checked
