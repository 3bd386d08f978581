"""sampler/gpus.py: the real nvidia-ml-py over a library that stands in for the driver, and an nvidia-smi that does."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli import script
from waiting import LIMIT_S, state, until

from orchestrator import sampler
from orchestrator.sampler import gpus
from orchestrator.sampler.gpus import Smi, Watch, number
from orchestrator.sampler.log import COLUMNS, Log

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "monitor"


def ended(pid: int) -> bool:
    """Whether the process is gone, or dead and not yet waited for."""
    return state(pid) in "XZ"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def of(path: Path, key: str) -> list[Any]:
    return [line[key] for line in lines(path) if key in line]


def named(values: list[Any]) -> dict[str, Any]:
    return dict(zip(COLUMNS["gpu"], values, strict=True))


@pytest.mark.parametrize(
    ("text", "value"),
    [("87", 87), ("251.50", 251.5), ("0x0000000000000024", 36), ("[N/A]", None), ("[Not Supported]", None),
     ("Unknown", None), ("[Unknown Error]", None), ("", None), (None, None), ("ERR!", None)],
)  # fmt: skip
def test_what_is_no_number_is_unknown(text: str | None, value: float | None) -> None:
    assert number(text) == value


# ---------------------------------------------------------------- NVML


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a library that stands in for the driver's."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler or not importlib.util.find_spec("pynvml"):
        pytest.skip("needs a C compiler and nvidia-ml-py")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", GOLDEN / "nvml.c"], check=True)
    return folder


@contextlib.contextmanager
def sampling(path: Path, *words: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """The sampler beside a sleeping target."""
    with subprocess.Popen(["sleep", "600"]) as target:
        argv = [sys.executable, "-I", Path(sampler.__file__).parent, "--pids", str(target.pid), "--output", path]
        with subprocess.Popen([*argv, "--interval", "0.05", *words], env={**os.environ, **env}) as program:
            try:
                yield program
            finally:
                program.kill()
                target.kill()


def test_two_gpus_through_nvml(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "samples"
    with sampling(path, LD_LIBRARY_PATH=str(library)):
        until(lambda: len(of(path, "gpu")) > 3)
    (devices,) = of(path, "devices")
    first, second = (device["uuid"] for device in devices)
    assert [device["index"] for device in devices] == [0, 1] and first.startswith("GPU-00000000-aaaa")
    reading = named(of(path, "gpu")[0][first])
    pcie = {name: reading.pop(name) for name in ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")}
    assert reading == {
        "gpu_util_pct": 87, "memory_util_pct": 40, "memory_used_bytes": 1 << 30, "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1215, "power_w": 251.5, "temperature_c": 61, "throttle_mask": 0x24,
    }  # fmt: skip
    assert list(pcie.values()) == [2_000_000, 5_000_000]
    quiet = named(of(path, "gpu")[0][second])
    assert (quiet["power_w"], quiet["temperature_c"], quiet["gpu_util_pct"]) == (None, None, 3)
    assert quiet["pcie_tx_bytes_per_s"] is None, "it is its turn in the next round"
    assert named(of(path, "gpu")[1][second])["pcie_tx_bytes_per_s"] == 2_000_000
    assert of(path, "gpu_process")[0] == {f"{first}/4711": [512 << 20]}


def test_a_driver_that_hangs_holds_nothing_up(tmp_path: Path, library: Path) -> None:
    path = tmp_path / "samples"
    with sampling(path, LD_LIBRARY_PATH=str(library), FAKE_NVML_HANG="1") as program:
        until(lambda: len(of(path, "host")) > 5)
        program.send_signal(signal.SIGINT)
        assert program.wait(LIMIT_S) == 0
    assert of(path, "end") == ["SIGINT"] and not of(path, "gpu")


# ---------------------------------------------------------------- nvidia-smi


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[Any]:
    """Starts a watch by a given nvidia-smi; gives it back with its file."""
    started: list[Watch] = []

    def start(program: Path) -> tuple[Watch, Path]:
        path = tmp_path / "samples"
        started.append(Watch(Log(str(path)), 0.05, [Smi(str(program))]))
        return started[-1], path

    yield start
    for watch in started:
        watch.end()


def test_two_gpus_through_an_old_nvidia_smi(watching: Any) -> None:
    """It refuses the newer name of a field, offers not everything, and stamps its lines."""
    _, path = watching(GOLDEN / "nvidia-smi")
    until(lambda: len(of(path, "gpu")) > 3 and of(path, "gpu_process"))
    assert [device["uuid"] for device in of(path, "devices")[-1]] == ["GPU-00000000-aaaa", "GPU-00000001-aaaa"]
    rows = {uuid: named(values) for line in of(path, "gpu")[:2] for uuid, values in line.items()}
    assert rows["GPU-00000000-aaaa"] == {
        "gpu_util_pct": 87, "memory_util_pct": 40, "memory_used_bytes": 1 << 30, "sm_clock_mhz": 1410,
        "memory_clock_mhz": 1215, "power_w": 251.5, "temperature_c": 61, "throttle_mask": 0x24,
        "pcie_tx_bytes_per_s": None, "pcie_rx_bytes_per_s": None,
    }  # fmt: skip
    other = rows["GPU-00000001-aaaa"]
    assert (other["power_w"], other["temperature_c"], other["memory_used_bytes"]) == (None, None, 2 << 30)
    assert of(path, "gpu_process")[0] == {"GPU-00000000-aaaa/4711": [512 << 20]}
    at = next(line["t"] for line in lines(path) if "gpu" in line)
    assert abs(at / 1e6 - round(at / 1e6)) < 1e-3, "its own time, which it gives in ms"
    assert abs(at - time.time_ns()) < LIMIT_S * 1e9, "it tells no zone: it is that of the machine"


@pytest.mark.parametrize(
    ("said", "expected"),
    [("echo 'NVIDIA-SMI has failed because it could not talk to the driver.'; exit 9", "NVIDIA-SMI has failed"),
     ("exit 0", "nvidia-smi has ended")],
)  # fmt: skip
def test_why_nvidia_smi_gives_nothing_is_said(watching: Any, tmp_path: Path, said: str, expected: str) -> None:
    _, path = watching(script(tmp_path / "nvidia-smi", f"#!/bin/sh\n{said}\n"))
    until(lambda: of(path, "note"))
    assert expected in of(path, "note")[0] and not of(path, "gpu")


def test_one_that_never_answers_is_given_up(watching: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(s=1000.0)
    times = SimpleNamespace(**{**vars(time), "monotonic": lambda: clock.s})
    monkeypatch.setattr(gpus, "time", times)
    program = script(tmp_path / "nvidia-smi", f"#!/bin/sh\ntrap '' TERM INT\necho $$ >{tmp_path}/pid\nexec sleep 600\n")
    watch, path = watching(program)
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    watch.look_after()
    assert not of(path, "note"), "it has its time"
    clock.s += gpus.SILENT_S + 1
    watch.look_after()
    watch.look_after()
    assert of(path, "note") == ["no GPU is sampled any more: no answer in 10 s"], "said once"
    pid = int((tmp_path / "pid").read_text())
    until(lambda: ended(pid))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_one_that_hangs_ends_with_the_sampler(tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "samples"
    (tmp_path / "libnvidia-ml.so.1").write_text("no library: NVML is not to be found, wherever this runs")
    hangs = f"#!/bin/sh\ntrap '' TERM INT\necho $$ >{tmp_path}/pid\nexec sleep 600\n"
    with sampling(
        path, "--nvidia-smi", str(script(tmp_path / "nvidia-smi", hangs)), LD_LIBRARY_PATH=str(tmp_path)
    ) as program:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text() and of(path, "host"))
        program.send_signal(number)
        program.wait(LIMIT_S)
    pid = int((tmp_path / "pid").read_text())
    until(lambda: ended(pid))
    assert of(path, "end") == (["SIGINT"] if number == signal.SIGINT else [])
