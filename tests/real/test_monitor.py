"""The monitor for real, through profrun: what it says of a target is what the target did."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas
import pytest
from cli import Result, command, environment, profrun, script, write_plan
from waiting import LIMIT_S, kill, processes, unmistakable, until

from orchestrator import tables

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "monitor"
SHARED_WORK = """
import json, os, subprocess, sys, time
began = time.monotonic()
hold = b"x" * 200_000_000
while time.monotonic() - began < 1.6:
    until = time.process_time() + 0.03
    while time.process_time() < until: pass
    time.sleep(0.03)
    subprocess.run([sys.executable, "-I", "-S", "-c", "sum(range(1_000_000))"])
with open("/dev/null", "wb") as sink:
    [sink.write(bytes(1000)) for _ in range(1000)]
print(json.dumps({"cpu_s": sum(os.times()[:4]), "wall_s": time.monotonic() - began}))
"""


@pytest.fixture
def no_nvml(tmp_path: Path) -> dict[str, str]:
    """An environment in which NVML is not to be found, so that nvidia-smi is asked, and a stand-in for that."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "libnvidia-ml.so.1").write_text("no library")
    (tmp_path / "bin" / "nvidia-smi").symlink_to(GOLDEN / "nvidia-smi")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    return environment(PATH=path, LD_LIBRARY_PATH=str(tmp_path / "bin"), XDG_CACHE_HOME=str(tmp_path))


def samples(result: Result) -> pandas.DataFrame:
    return tables.read(result.folder / "tables" / "samples.parquet")


def values(frame: pandas.DataFrame, source: str, metric: str, subject: str | None = None) -> list[float]:
    rows = frame[(frame.source == source) & (frame.metric == metric) & frame.value.notna()]
    return list(rows.value if subject is None else rows[rows.subject == subject].value)


def test_cpu_memory_and_cost_are_what_they_were(tmp_path: Path) -> None:
    """A third of a processor, 200 MB, and children that live for less than an interval."""
    plan = write_plan(tmp_path, "{use: monitor}")
    done = profrun(plan, "--", sys.executable, "-I", "-S", "-c", SHARED_WORK, cwd=tmp_path)
    assert done.code == 0 and done.statuses() == {"monitor": "ok"}, done.stderr
    said = json.loads(next((done.folder / "raw").glob("*-target/stdout.log")).read_text())
    metrics = done.summary["metrics"]
    assert metrics["tree_cpu_pct"]["value"] == pytest.approx(100 * said["cpu_s"] / said["wall_s"], rel=0.4)
    assert 200e6 < metrics["tree_rss_peak_bytes"]["value"] < 260e6
    assert metrics["tree_cpu_pct"]["n"] >= 2
    assert 0 < metrics["monitor_cpu_pct"]["value"] < 25
    frame = samples(done)
    cores = set(frame[frame.source == "core"].subject)
    assert cores == {str(n) for n in range(os.cpu_count() or 0)}
    assert all(0 <= value <= 100 for value in values(frame, "host", "cpu_pct"))
    run = frame[frame.value.notna()].time_ns
    capture = done.captures()["monitor"]
    assert capture["started_ns"] <= run.min() and run.max() <= capture["ended_ns"]


def test_a_shell_that_becomes_a_program_is_seen_from_its_first_moment(tmp_path: Path) -> None:
    """Not profrun's own fork before it, which is larger than the whole target."""
    plan = write_plan(tmp_path, "{use: monitor, interval: 20ms}")
    done = profrun(plan, "--", "sh", "-c", "sleep 0.3; exec sleep 0.3", cwd=tmp_path)
    notes = " ".join(done.captures()["monitor"]["notes"])
    assert "sh -> sleep" in notes, notes
    assert max(values(samples(done), "process", "rss_bytes")) < 10e6


def test_a_window_and_an_attached_process(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) as busy:
        time.sleep(0.1)
        plan = write_plan(tmp_path, "{use: monitor, interval: 100ms}")
        done = profrun(plan, "--pid", str(busy.pid), "--duration", "600ms", cwd=tmp_path)
        assert busy.poll() is None
        busy.kill()
    assert done.statuses() == {"monitor": "ok"}, done.stderr
    assert done.summary["metrics"]["tree_cpu_pct"]["value"] > 0
    assert set(samples(done).query("source == 'process'").subject) == {str(busy.pid)}


def test_what_runs_already_bears_its_rank_and_shows_its_memory(tmp_path: Path) -> None:
    child = "import time; hold = bytearray(b'x' * 30_000_000); print('ready', flush=True); time.sleep(600)"
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-I', '-S', '-c', {child!r}])"
    argv = [sys.executable, "-I", "-S", "-c", program]
    with subprocess.Popen(argv, env=environment(RANK="3"), stdout=subprocess.PIPE) as parent:
        assert parent.stdout and parent.stdout.readline() == b"ready\n"
        done = profrun(
            write_plan(tmp_path, "{use: monitor, interval: 50ms}"), "--pid", str(parent.pid), "--duration", "500ms",
            cwd=tmp_path,
        )  # fmt: skip
        (below,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert parent.poll() is None
        os.kill(int(below), signal.SIGKILL)
    frame = samples(done)
    assert (
        set(frame.query("source == 'process'")["rank"]) == {3} and frame.query("source == 'host'")["rank"].isna().all()
    )
    assert min(values(frame, "memory", "anonymous_bytes", below)) > 30e6
    assert max(values(frame, "memory", "pss_bytes", str(parent.pid))) < 30e6, "each by itself"
    assert any(note.startswith(f"memory of {below} python") for note in done.captures()["monitor"]["notes"])


def test_only_the_window_is_sampled(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: monitor, interval: 50ms}", window="{after: 200ms, for: 400ms, then: stop}")
    done = profrun(plan, "--", "sleep", "600", cwd=tmp_path)
    assert done.statuses() == {"monitor": "ok"}, done.stderr
    assert 1 <= len(values(samples(done), "host", "load_1m")) <= 400, "of 12,000 in all of its time"


# ---------------------------------------------------------------- GPUs that are played


def test_gpus_by_their_uuid_and_which_of_them_are_the_targets(tmp_path: Path, no_nvml: dict[str, str]) -> None:
    """D16 and D24."""
    plan = write_plan(tmp_path, "{use: monitor, interval: 100ms, gpus: true}")
    env = {**no_nvml, "CUDA_VISIBLE_DEVICES": "1"}
    done = profrun(plan, "--", "sleep", "2", cwd=tmp_path, env=env)
    assert done.statuses() == {"monitor": "ok"}, done.captures()
    frame = samples(done)
    used, other = "GPU-00000001-aaaa", "GPU-00000000-aaaa"
    assert values(frame, "gpu", "visible_to_target", used) == [1]
    assert values(frame, "gpu", "visible_to_target", other) == [0]
    assert set(values(frame, "gpu", "gpu_util_pct", other)) == {87}
    assert set(values(frame, "gpu", "temperature_c", other)) == {61}
    assert values(frame, "gpu", "temperature_c", used) == []
    assert done.summary["metrics"]["gpu_util_pct"]["value"] == 3, "of the GPU that the target sees"
    assert set(values(frame, "gpu_process", "memory_used_bytes")) == {512 << 20}
    notes = done.captures()["monitor"]["notes"]
    assert [note for note in notes if note.startswith(f"not offered by GPU {used}")]


def test_an_nvidia_smi_that_hangs_costs_no_sample(tmp_path: Path, no_nvml: dict[str, str]) -> None:
    """D25: it answers profrun's own questions and then never again."""
    (tmp_path / "bin" / "nvidia-smi").unlink()
    hangs = (
        f'#!/bin/sh\ncase "$*" in *loop-ms*) trap \'\' TERM INT; exec sleep 600;; esac\nexec {GOLDEN}/nvidia-smi "$@"\n'
    )
    script(tmp_path / "bin" / "nvidia-smi", hangs)
    plan = write_plan(tmp_path, "{use: monitor, interval: 100ms}")
    done = profrun(plan, "--", "sleep", "0.6", cwd=tmp_path, env=no_nvml)
    assert done.statuses() == {"monitor": "ok"} and values(samples(done), "host", "cpu_pct")
    assert done.captures()["monitor"]["flush_s"] < 60


# ---------------------------------------------------------------- its end


def test_nothing_is_left_when_profrun_is_killed(tmp_path: Path, no_nvml: dict[str, str]) -> None:
    """D37: neither the sampler nor its nvidia-smi; what was sampled is in the file."""
    plan, sleep = write_plan(tmp_path, "{use: monitor, interval: 100ms}"), unmistakable(411)
    env = {**no_nvml, "TMPDIR": str(tmp_path)}
    ours = f"{re.escape(str(tmp_path))}.*(samples.jsonl|nvidia-smi)"
    with subprocess.Popen(command(plan, "--", "sleep", sleep), cwd=tmp_path, env=env, stderr=subprocess.DEVNULL) as run:
        try:
            file = until(lambda: next(tmp_path.glob("**/samples.jsonl"), None))
            until(lambda: '"gpu":' in file.read_text() and len(processes(ours)) >= 2)
            run.send_signal(signal.SIGKILL)
            run.wait()
            until(lambda: not processes(ours))
        finally:
            kill(f"^sleep {sleep}")
    last = json.loads(file.read_text().splitlines()[-1])
    assert "end" not in last and time.time_ns() - last["t"] < LIMIT_S * 1e9


def test_a_sampler_whose_parent_is_gone_does_not_begin(tmp_path: Path) -> None:
    from orchestrator import sampler

    argv = [sys.executable, "-I", Path(sampler.__file__).parent, "--pids", str(os.getpid()), "--parent", "1"]
    done = subprocess.run([*argv, "--output", tmp_path / "x"], check=False, timeout=LIMIT_S)
    assert done.returncode == 0 and not (tmp_path / "x").exists()
