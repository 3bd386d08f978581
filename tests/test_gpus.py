"""gpus.py: the driver asked through the real nvidia-ml-py and by nvidia-smi, over GPUs that are played; and, without a
time limit that anybody would notice, of a driver that does not answer."""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli import script
from fakes.gpus import FakeGpus

from orchestrator import gpus, neighbours, process
from orchestrator.machine import Machine

US = f"C:{os.getpid()}:512:python"
XORG = "G:900:22:/usr/lib/xorg/Xorg"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the GPUs of this test's machine."""

    def make(count: int = 2, **settings: Any) -> FakeGpus:
        made = FakeGpus(tmp_path, count, **settings)
        for name, text in made.env.items():
            monkeypatch.setenv(name, text)
        return made

    return make


WAYS = pytest.mark.parametrize("nvml", [True, False], ids=["NVML", "nvidia-smi"])


@WAYS
def test_both_ways_tell_the_same(fake: Any, nvml: bool) -> None:
    fake(nvml=nvml, processes=f"{US} {XORG}", mem_used=600, util=78, lgc=1530, ac_gr=1410, ac_mem=2619, pm=1, mig=2)
    found = gpus.look(Machine())
    assert (found.through, found.driver) == ("NVML" if nvml else "nvidia-smi", "570.124.06")
    gpu = found.gpus[1]
    ours, xorg = gpu.processes
    assert (ours.pid, ours.kind, ours.memory_bytes) == (os.getpid(), "compute", 512 << 20)
    assert ours.user
    assert (ours.command or "").split() == " ".join(process.argv_of(os.getpid())).split()
    assert (xorg.kind, xorg.user, xorg.command) == ("graphics", None, "/usr/lib/xorg/Xorg"), "it is gone"
    assert gpu.supported == {mhz: tuple(range(345, 1981, 15)) for mhz in (1593, 2619)}
    assert replace(gpu, processes=(), supported={}) == gpus.Gpu(
        1, FakeGpus.uuid(1), "NVIDIA Example", "00000000:02:00.0", "9.0", True,
        (FakeGpus.mig_uuid(1, 0), FakeGpus.mig_uuid(1, 1)), 0, True, False, 1530, 1530, 2619, 1980, 2619,
        1410, 2619, 1980, 2619, {}, 600 << 20, 81559 << 20, (78,), 35, 2,
    )  # fmt: skip


@WAYS
def test_what_a_gpu_does_not_tell_is_unknown_and_named(fake: Any, nvml: bool) -> None:
    """D24: never 0, and all else is read."""
    fake(nvml=nvml, na="temperature.gpu clocks.applications.gr supported utilization.gpu", util=5)
    gpu = gpus.look(Machine()).gpus[0]
    assert (gpu.temperature_c, gpu.applications_graphics_mhz, gpu.supported, gpu.utilization_pct) == (
        None,
        None,
        {},
        (),
    )
    for name in ("temperature_c", "applications_graphics_mhz", "supported", "utilization_pct"):
        assert gpu.errors[name] == "NOT_SUPPORTED"
    assert (gpu.memory_used_bytes, gpu.sm_mhz) == (4 << 20, 1980)


@pytest.mark.parametrize(
    "text", ["[N/A]", "[Not Supported]", "Unknown Error", "[Unknown Error]", "ERR!", "N/A", "Unknown"]
)
def test_no_spelling_of_unknown_becomes_a_number(fake: Any, text: str) -> None:
    fake(1, nvml=False, na="temperature.gpu memory.used", na_text=text)
    gpu = gpus.look(Machine()).gpus[0]
    assert (gpu.temperature_c, gpu.memory_used_bytes, gpu.memory_total_bytes) == (None, None, 81559 << 20)
    assert gpu.errors["temperature_c"] == gpu.errors["memory_used_bytes"]


def test_fields_that_an_nvidia_smi_does_not_know_are_left_out(fake: Any) -> None:
    made = fake(1, nvml=False, unknown_fields="clocks_event_reasons.active compute_cap mig.mode.current")
    gpu = gpus.look(Machine()).gpus[0]
    assert (gpu.compute_capability, gpu.mig, gpu.clock_reasons) == (None, None, 1), "by its older name"
    assert gpu.errors["compute_capability"] == "FUNCTION_NOT_FOUND" and gpu.sm_mhz == 345
    assert [call.split("=")[0] for call in made.calls()][:3] == ["--query-gpu", "--help-query-gpu", "--query-gpu"]


@WAYS
def test_utilisation_is_looked_at_more_than_once(fake: Any, nvml: bool) -> None:
    fake(1, nvml=nvml, util=78)
    assert len(gpus.look(Machine(), window_s=1.0).gpus[0].utilization_pct) >= 3


def test_memory_in_use_by_nobody_means_hidden_processes(fake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """D18: inside a container none is listed."""
    monkeypatch.setattr(neighbours, "all_pids_here", lambda machine: True)  # this machine may be a container itself
    made = fake(1, mem_used=814, util=78)
    found = gpus.look(Machine())
    assert found.processes_hidden and not found.gpus[0].processes
    made.set(0, mem_used=4)
    assert not gpus.look(Machine()).processes_hidden


def test_another_pid_namespace_is_not_looked_up_here(fake: Any, tmp_path: Path) -> None:
    """The driver's number 7 may be anybody here, unless the name fits."""
    fake(1, processes="C:7:512:python C:8:512:/usr/bin/train")
    root = tmp_path / "root"
    for pid, words in ((7, "sshd\0-D\0"), (8, "/usr/bin/train\0--lr\0")):
        (root / f"proc/{pid}").mkdir(parents=True)
        (root / f"proc/{pid}/cmdline").write_text(words)
    (root / "proc/self/ns").mkdir(parents=True)
    (root / "proc/self/ns/pid").symlink_to("pid:[4026539999]")
    found = gpus.look(Machine(root=root))
    assert found.processes_hidden
    assert [one.command for one in found.gpus[0].processes] == ["python", "/usr/bin/train --lr"]


def test_a_lost_gpu_does_not_hide_the_others(fake: Any) -> None:
    fake(3).set(1, lost=1)
    found = gpus.look(Machine())
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    assert found.notes == ("GPU 1 can't be read: GPU is lost",)


def test_no_driver_is_no_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.process.ask", lambda *words, **more: pytest.fail("asked"))
    machine = Machine({"nvidia-smi": "/nowhere"}, root=tmp_path)
    assert gpus.look(machine) == gpus.Look(why_not="no NVIDIA driver is here")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nv_tegra_release").touch()
    assert "nvpmodel" in (gpus.look(machine).why_not or "")


@WAYS
def test_a_driver_that_is_not_loaded(fake: Any, nvml: bool) -> None:
    fake(nvml=nvml, no_driver=1)
    assert "couldn't communicate with the NVIDIA driver" in (gpus.look(Machine()).why_not or "")


@pytest.mark.parametrize(
    ("way", "settings"), [("NVML", {"nvml_hang": 1}), ("nvidia-smi", {"smi_hang": 1, "nvml": False})]
)
def test_a_driver_that_hangs_is_asked_once(fake: Any, way: str, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """D25."""
    made = fake(**settings)
    machine = Machine()
    found = gpus.look(machine, timeout_s=0.5)
    assert (found.why_not, found.silent, found.gpus) == ("no answer of the GPUs' driver in 0.5 s", True, ())
    made.set(nvml_hang=0, smi_hang=0)
    assert gpus.look(machine).why_not == "no answer of the GPUs' driver in 0.5 s", "it is not asked again"
    assert gpus.look(Machine()).gpus, "another run asks again"


def test_the_limit_can_be_set_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", "2.5")
    assert gpus.limit_s() == 2.5
    for text in ("soon", "nan", "-1", "0", "inf", ""):
        monkeypatch.setenv("PROFRUN_GPU_LIMIT_S", text)
        assert gpus.limit_s() == 10.0


@pytest.mark.parametrize(
    ("error", "words"),
    [("FUNCTION_NOT_FOUND", "this driver, or what asks it, is too old to tell"), ("NO_DATA", "no data"),
     ("nvidia-smi: no", "nvidia-smi: no"), (None, "not offered by this GPU")],
)  # fmt: skip
def test_errors_have_words(error: str | None, words: str) -> None:
    gpu = gpus.Gpu(0, "GPU-0", errors={"mig": error} if error else {})
    assert gpu.why_unknown("mig") == words


@pytest.mark.parametrize("said", ["echo nonsense; exit 0", "exit 3", "printf '%s' '<xml'", "echo 'a, b, c'"])
def test_an_nvidia_smi_that_talks_nonsense_is_no_fault_of_ours(fake: Any, tmp_path: Path, said: str) -> None:
    fake(nvml=False)
    path = script(tmp_path / "odd-smi", f"#!/bin/sh\n{said}\n")
    assert gpus.look(Machine({"nvidia-smi": str(path)})).gpus == ()


def test_the_machines_facts_keep_their_shape(fake: Any) -> None:
    fake(1)
    assert Machine().gpus == [
        {
            "index": 0, "uuid": FakeGpus.uuid(0), "name": "NVIDIA Example", "pci": "00000000:01:00.0",
            "memory_mib": 81559, "driver": "570.124.06", "compute_capability": "9.0",
        }
    ]  # fmt: skip


def test_the_targets_gpus_are_chosen_by_their_uuid(fake: Any) -> None:
    """D16."""
    fake(4)
    found = gpus.look(Machine())
    chosen = gpus.selected(found, {"CUDA_VISIBLE_DEVICES": "2,3"})
    assert [gpu.uuid for gpu in chosen.gpus] == [FakeGpus.uuid(2), FakeGpus.uuid(3)]
    assert gpus.selected(found, {"CUDA_VISIBLE_DEVICES": "-1"}).why_none
    assert [gpu.index for gpu in gpus.named(found, ["3", "GPU-00000001"]).gpus] == [3, 1]
    assert gpus.named(found, ["7"]).why_none == "there is no GPU 7; there are 0-3"
    assert gpus.named(found, ["0", "7"]).missing == ("7",)
    assert gpus.selected(gpus.Look(why_not="no answer in 10 s"), {}).why_none == "no answer in 10 s"


def test_what_nvidia_smi_offers_stands_in_its_help(fake: Any) -> None:
    made = fake(1)
    assert {"-pm", "-lgc", "-lmc", "-ac", "-rac"} <= gpus.switches(Machine()).names
    made.set(options="-ac -rac")
    assert not {"-lgc", "-lmc"} & gpus.switches(Machine()).names


# ---------------------------------------------------------------- the real thing's words


@pytest.mark.parametrize(
    ("file", "processes"),
    [("telegraf_tesla-t4.xml", [("graphics", 22), ("compute", 1005)]), ("netdata_rtx-3060.xml", [("graphics", 4)]),
     ("k8s_qx-h100.xml", [])],
)  # fmt: skip
def test_real_xml(shared: Path, fake: Any, tmp_path: Path, file: str, processes: Any) -> None:
    path = shared / "data" / "nvidia-smi" / file
    uuid = path.read_text().partition("<uuid>")[2].partition("<")[0]
    fake(1, nvml=False, uuid=uuid)
    real = f'#!/bin/sh\ncase "$*" in "-q -x") exec cat {path};; esac\nexec {tmp_path}/gpus/bin/nvidia-smi "$@"\n'
    gpu = gpus.look(Machine({"nvidia-smi": str(script(tmp_path / "real-smi", real))})).gpus[0]
    assert [(one.kind, (one.memory_bytes or 0) >> 20) for one in gpu.processes][-2:] == processes


@pytest.mark.parametrize("version", ["h200_590.48.01", "geforce-rtx-2080-super_595.71.05"])
def test_the_questions_are_those_of_the_real_help(shared: Path, version: str) -> None:
    text = (shared / "data" / "nvidia-smi" / f"capture_linux-x86_64_nvidia-{version}.txt").read_text()
    listed = set(re.findall(r'"([a-z0-9_.]+)"', text.partition("help-query-gpu\n")[2]))
    assert {"driver_version", *gpus._QUESTIONS} <= listed


def test_the_real_help_is_understood(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "nvidia-smi" / "capture_linux-x86_64_nvidia-h200_590.48.01.txt"
    smi = script(tmp_path / "nvidia-smi", f"#!/bin/sh\nexec sed -n '30,326p' {path}\n")
    assert {"-pm", "-lgc", "-rgc", "-lmc", "-rmc", "-ac", "-rac"} <= gpus.switches(
        Machine({"nvidia-smi": str(smi)})
    ).names


def test_many_changes_at_once_leave_the_state_whole(fake: Any) -> None:
    """The stand-in itself: changes from several processes are not lost, and never half done."""
    import subprocess

    made = fake(4)
    began = time.monotonic()
    words = ["nvidia-smi", "-i"]
    running = [
        subprocess.Popen([*words, str(n), "-lgc", f"{mhz},{mhz}"], stdout=subprocess.DEVNULL, env={**os.environ})
        for mhz in (1500, 1515, 1530)
        for n in range(4)
        for _ in range(5)
    ]
    assert [one.wait() for one in running] == [0] * 60 and time.monotonic() - began < 60
    assert all(made.get(n, "lgc") in ("1500", "1515", "1530") for n in range(4))
    for n in range(4):
        subprocess.run([*words, str(n), "-rgc"], stdout=subprocess.DEVNULL, check=True)
    assert set(made.changeable().values()) == {"0"} and len(made.changes()) == 64
