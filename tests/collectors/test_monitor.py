"""collectors/monitor.py: its options, the sampler's command line, what it foresees and what it makes of the file."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import launching
from orchestrator.collectors.monitor import Monitor
from orchestrator.errors import ParseError
from orchestrator.gpus import Gpu, Look
from orchestrator.model import Artifact, Beside, Capture, Job, Target, Tool, Window

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "monitor"


def monitor(**options: Any) -> Monitor:
    return Monitor.model_validate({"use": "monitor", **options})


def beside(collector: Monitor, smi: str | None = None, **more: Any) -> Beside:
    job = Job("p2", "/scratch/p2", Target(("x",), "/bin/x", "/", {}), Tool("nvidia-smi", smi), **more)
    (only,) = collector.launch(job).beside
    return only


def machine(files: Mapping[str, str], found: Look) -> Any:
    return SimpleNamespace(read=files.get, gpu_look=found, find=lambda probe: None)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    "options", [{"interval": "9ms"}, {"interval": 0}, {"interval": "-1s"}, {"gpus": "maybe"}, {"rate": 5}]
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        monitor(**options)


@pytest.mark.parametrize("gpus", [True, False, "auto"])
def test_options_survive_the_report(gpus: Any) -> None:
    collector = monitor(interval="10ms", gpus=gpus)
    assert Monitor.model_validate(collector.model_dump(mode="json", by_alias=True)) == collector
    assert collector.gpus == gpus and collector.interval == 0.01


# ---------------------------------------------------------------- the command line


def test_it_waits_at_the_gate_for_the_targets_own_program() -> None:
    found = beside(monitor())
    assert found.when == "gate" and found.ready == "file" and found.ready_value == "/scratch/p2/samples.jsonl"
    words = found.argv
    assert words[:2] == (sys.executable, "-I") and Path(words[2], "__main__.py").is_file()
    assert words[3:] == (
        *("--pids", "{pid}", "--output", "/scratch/p2/samples.jsonl", "--interval", "0.2"),
        *("--parent", str(os.getpid()), "--gated", "--ranks", ",".join(launching.RANKS)),
    )


def test_an_attached_process_and_a_window_have_no_gate() -> None:
    assert (attached := beside(monitor(), pids=(7, 8))).when == "start"
    assert attached.argv[attached.argv.index("--pids") + 1] == "7,8" and "--gated" not in attached.argv
    assert attached.argv[attached.argv.index("--maps-every") + 1] == "10"
    assert "--maps-every" not in beside(monitor(processes=False), pids=(7,)).argv
    assert (later := beside(monitor(), window=Window(1.0, 2.0))).when == "window" and "--gated" not in later.argv
    assert beside(monitor(), pids=(7,), window=Window(1.0, 2.0)).when == "window"


def test_options_reach_the_sampler() -> None:
    lean = beside(monitor(processes=False, per_core=False, gpus=False, interval="1s"), smi="/usr/bin/nvidia-smi")
    assert {"--no-processes", "--no-cores", "--no-gpus"} <= set(lean.argv) and "--nvidia-smi" not in lean.argv
    assert lean.argv[lean.argv.index("--interval") + 1] == "1"
    assert beside(monitor(), smi="/usr/bin/nvidia-smi").argv[-2:] == ("--nvidia-smi", "/usr/bin/nvidia-smi")


# ---------------------------------------------------------------- what it foresees


PRESSURE = {"proc/pressure/cpu": "some avg10=0.00"}
NO_GPU = Look(why_not="no NVIDIA driver is here")


def test_without_a_gpu_all_else_is_sampled() -> None:
    found = monitor().checks(machine({}, NO_GPU))
    assert [check.verdict for check in found] == ["ok", "ok"]
    assert "pressure" not in found[0].message and "no NVIDIA driver" in found[1].message
    assert "pressure" in monitor().checks(machine(PRESSURE, NO_GPU))[0].message
    assert [check.verdict for check in monitor(gpus=True).checks(machine({}, NO_GPU))] == ["ok", "warn"]
    assert len(monitor(gpus=False).checks(machine({}, NO_GPU))) == 1


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (Look((Gpu(0, "GPU-1"),), "NVML"), "GPUs through NVML"),
        (Look((Gpu(0, "GPU-1"),), "nvidia-smi"), "GPUs through nvidia-smi; PCIe traffic needs nvidia-ml-py"),
        (Look(why_not="no answer in 10 s", silent=True), "no GPU is sampled: no answer in 10 s"),
    ],
)
def test_how_the_gpus_will_be_asked(found: Look, message: str) -> None:
    check = monitor().checks(machine({}, found))[-1]
    assert (check.verdict, check.message) == ("ok", message)


# ---------------------------------------------------------------- what it makes of the file


def capture(root: Path, **more: Any) -> Capture:
    path = root / "samples.jsonl"
    kept = (Artifact("samples", path.name, "profrun-monitor", 1, "", 0),) if path.exists() else ()
    return Capture("p2-monitor", "p2", "monitor", "ok", artifacts=kept, root=root, **more)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    shutil.copy(GOLDEN / "tree.jsonl", tmp_path / "samples.jsonl")
    return tmp_path


def test_a_whole_recording_is_ok(recorded: Path) -> None:
    parsed = monitor().parse(capture(recorded))
    assert parsed.status is None and [table.name for table in parsed.tables] == ["samples"]
    assert parsed.metrics["tree_cpu_pct"].n == 8


def test_a_recording_without_its_end_is_degraded(recorded: Path) -> None:
    path = recorded / "samples.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    parsed = monitor().parse(capture(recorded))
    assert parsed.status == "degraded" and len(parsed.tables[0])


def test_gpus_that_were_asked_for_and_did_not_come_are_missing(recorded: Path) -> None:
    parsed = monitor(gpus=True).parse(capture(recorded))
    assert (parsed.status, parsed.reason) == ("degraded", "no GPU could be read")


def test_a_target_that_ended_before_the_first_reading_leaves_nothing(recorded: Path) -> None:
    parsed = monitor().parse(capture(recorded, started_ns=1, ended_ns=2))
    assert parsed.status == "empty" and not parsed.tables


def test_no_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"left no samples\.jsonl"):
        monitor().parse(capture(tmp_path))
