"""What the root helper would be asked, whom profrun trusts with root, and what the user is told without it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import script
from interpreters import interpreter

from orchestrator import privileged
from orchestrator.model import Cannot, Change, Hold, Reply, Run, Wait, Write
from orchestrator.standalone import roothelper

CPU = "/sys/devices/system/cpu"
GOVERNOR = f"{CPU}/cpufreq/policy12/scaling_governor"
UUID = "GPU-01234567-89ab-cdef-0123-456789abcdef"
SUDO = ("sudo", "-n", privileged.HELPER)


# ---------------------------------------------------------------- the grammar

SETTINGS = [
    (GOVERNOR, "performance"),
    (f"{CPU}/cpufreq/policy0/scaling_min_freq", "800000"),
    (f"{CPU}/cpufreq/policy0/scaling_max_freq", "4800000"),
    (f"{CPU}/cpufreq/policy0/energy_performance_preference", "balance_performance"),
    (f"{CPU}/cpufreq/policy0/energy_performance_preference", "128"),
    (f"{CPU}/cpufreq/policy0/boost", "0"),
    (f"{CPU}/cpufreq/boost", "1"),
    (f"{CPU}/intel_pstate/no_turbo", "1"),
    (f"{CPU}/intel_pstate/max_perf_pct", "100"),
    (f"{CPU}/cpu127/cpuidle/state3/disable", "1"),
    (f"{CPU}/smt/control", "off"),
    ("/proc/sys/vm/drop_caches", "3"),
]


@pytest.mark.parametrize(("path", "text"), SETTINGS)
def test_a_write_is_asked_of_the_helper_with_its_part_and_its_words_for_errors(path: str, text: str) -> None:
    change = privileged.instead(Write(path, f"{text}\n", "policy12 governor"))
    assert change is not None
    assert change.argv == (*SUDO, "write", path, text)
    assert change.part == "policy12 governor"
    assert change.timeout_s > roothelper.LIMIT_S


OTHERS: list[Change] = [
    Write(f"{CPU}/cpufreq/policy0/scaling_setspeed", "1000000"),
    Write(GOVERNOR, "Performance; reboot"),
    Write(f"/tmp/fake{GOVERNOR}", "performance"),
    Write(f"{CPU}/cpu0/cpufreq/scaling_governor", "performance"),
    Write("/proc/sys/kernel/perf_event_paranoid", "1"),
    Run(("systemctl", "stop", "gdm"), 10),
    Run(("nvidia-smi", "-i", "0", "-rgc"), 10),
    Run(("nvidia-smi", "-i", UUID, "-pl", "300"), 10),
    Run(("nvidia-smi", "-q"), 10),
    Run(("nvidia-smi",), 10),
    Hold("/dev/cpu_dma_latency", "00000000"),
    Wait(10),
    Cannot("turbo", "not_available"),
]


@pytest.mark.parametrize("change", OTHERS)
def test_what_the_helper_does_not_do_is_not_asked_of_it(change: Change) -> None:
    assert privileged.instead(change) is None


@pytest.mark.parametrize("words", [("-pm", "1"), ("-lgc", "1410,1410"), ("-rgc",), ("-lmc", "877,877"), ("-rmc",)])
def test_a_command_of_nvidia_smi_keeps_its_part_and_its_replies(words: tuple[str, ...]) -> None:
    reply = Reply("not supported", "not_available", "not on this GPU")
    change = privileged.instead(Run(("/usr/bin/nvidia-smi", "-i", UUID, *words), 5.0, "GPU 0 clocks", (reply,)))
    assert change is not None
    assert change.argv == (*SUDO, "smi", "-i", UUID, *words)
    assert (change.part, change.replies[-1]) == ("GPU 0 clocks", reply)
    assert change.timeout_s > roothelper.SMI_LIMIT_S


@pytest.mark.parametrize(
    ("said", "status", "reason", "detail"),
    [
        ("profrun-root: EBUSY: Device or resource busy\n", "refused", "Device or resource busy", "EBUSY"),
        ("profrun-root: ENOENT: No such file or directory\n", "not_available", "No such file or directory", "ENOENT"),
        (
            "sudo: unable to resolve host x\nprofrun-root: EINVAL: Invalid argument\n",
            "refused",
            "Invalid argument",
            "EINVAL",
        ),
    ],
)
def test_the_helpers_words_are_understood(said: str, status: str, reason: str, detail: str) -> None:
    change = privileged.instead(Write(GOVERNOR, "performance"))
    assert change is not None
    reply, found = next((r, f) for r in change.replies if (f := re.search(r.pattern, said)))
    assert (reply.status, reply.reason.format(*found.groups())) == (status, reason)
    assert reply.detail is not None and reply.detail.format(*found.groups()) == detail


@pytest.mark.parametrize(
    ("text", "microseconds"),
    [("00000000", "0"), ("0000000a", "10"), ("85", "133"), ("0x1f", "31"), ("0x0000000a\n", "10")],
)
def test_a_latency_is_held_by_a_command_that_reads_the_text_as_the_kernel_does(text: str, microseconds: str) -> None:
    assert privileged.held(Hold("/dev/cpu_dma_latency", text)) == (*SUDO, "hold-latency", microseconds)


@pytest.mark.parametrize(
    "change",
    [Hold("/dev/sda", "00000000"), Hold("/dev/cpu_dma_latency", "-1"), Hold("/dev/cpu_dma_latency", "ffffffff"),
     Hold("/dev/cpu_dma_latency", "")],
)  # fmt: skip
def test_nothing_else_is_held(change: Hold) -> None:
    assert privileged.held(change) is None


# ---------------------------------------------------------------- the helper's own checks, without root


def test_only_the_kernels_own_file_systems_count(tmp_path: Path) -> None:
    kinds = {}
    for path in ("/proc/self/stat", "/sys/devices/system/cpu/online", tmp_path):
        descriptor = os.open(path, os.O_RDONLY)
        kinds[path] = roothelper.file_system(descriptor)
        os.close(descriptor)
    assert kinds["/proc/self/stat"] == "proc"
    assert kinds["/sys/devices/system/cpu/online"] == "sysfs"
    assert kinds[tmp_path] not in ("proc", "sysfs")


def test_a_file_in_the_place_of_a_setting_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The pattern alone would let it through: it is the file system that does not."""
    setting = tmp_path / "setting"
    setting.write_text("old")
    monkeypatch.setattr(roothelper, "SETTINGS", ((re.escape(str(setting)), "[a-z]+"),))
    assert roothelper.main(["write", str(setting), "new"]) == 64
    assert setting.read_text() == "old"
    monkeypatch.setattr(roothelper, "file_system", lambda descriptor: "sysfs")
    assert roothelper.main(["write", str(setting), "new"]) == 0
    assert setting.read_text() == "new"
    link = tmp_path / "link"
    link.symlink_to(setting)
    monkeypatch.setattr(roothelper, "SETTINGS", ((re.escape(str(link)), "[a-z]+"),))
    assert roothelper.main(["write", str(link), "evil"]) == 64
    assert setting.read_text() == "new"
    assert capsys.readouterr().err.splitlines()[-1] == "profrun-root: refused: a path through a link"


@pytest.mark.parametrize("version", ["3.8", "3.9", "3.10", "3.12", "3.13"])
def test_any_python_from_3_8_runs_it(version: str) -> None:
    argv = [interpreter(version), "-IS", "-W", "error", roothelper.__file__, "version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    expected = (0, "profrun-root 1\n") if os.geteuid() == 0 else (77, "")
    assert (done.returncode, done.stdout) == expected


# ---------------------------------------------------------------- is it there


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An ordinary user, and the helper as a file that root alone can change; gives the folder for their sudo."""
    helper = script(tmp_path / "profrun-root", "")
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(privileged.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(privileged, "HELPER", str(helper))
    monkeypatch.setattr(privileged, "_flaw", lambda helper: None)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    privileged.available.cache_clear()
    yield folder
    privileged.available.cache_clear()


def test_sudo_is_asked_once_and_its_noise_does_not_count(user: Path) -> None:
    count = user / "count"
    script(
        user / "sudo", f"#!/bin/sh\necho call >>{count}\necho 'sudo: unable to resolve host' >&2\necho profrun-root 1\n"
    )
    assert privileged.available().allowed
    assert privileged.available().allowed
    assert count.read_text() == "call\n"
    assert privileged.why_not() is None


def test_a_sudo_that_never_answers_is_not_waited_for(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(user / "sudo", "#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(privileged, "_SUDO_LIMIT_S", 0.2)
    found = privileged.available()
    assert not found.allowed
    assert "no answer in 0.2 s" in found.why


def test_without_the_script_both_commands_are_told(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileged, "_flaw", lambda helper: f"the root helper {helper} is not installed")
    monkeypatch.setattr(privileged, "__file__", "/usr/lib/python3/site-packages/orchestrator/privileged.py")
    found, told = privileged.available(), privileged.why_not()
    assert found.fix is not None and told is not None
    first, second = found.fix.split(" && ")
    assert first == f"sudo install -D -o root -g root -m 0755 {roothelper.__file__} {privileged.HELPER}"
    assert second == f"echo '{privileged.sudoers_line()}' | sudo tee -a /etc/sudoers.d/profrun"
    assert told.splitlines()[1:] == [f"  {first}", f"  {second}"]


def test_sudo_is_left_alone_while_there_is_no_helper(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(user / "sudo", f"#!/bin/sh\ntouch {user}/asked\n")
    monkeypatch.setattr(privileged, "_flaw", lambda helper: "the root helper is not installed")
    assert not privileged.available().allowed
    assert not (user / "asked").exists()


def test_root_needs_no_helper(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(privileged.os, "geteuid", lambda: 0)
    found = privileged.available()
    assert (found.allowed, found.fix) == (False, None)
    assert privileged.why_not() is None


def test_a_helper_that_others_can_change_is_not_trusted(tmp_path: Path) -> None:
    helper = script(tmp_path / "profrun-root", "")
    helper.chmod(0o775)
    assert privileged._flaw(helper) == f"{helper} can be changed by others than root"
    link = tmp_path / "link"
    link.symlink_to(helper)
    assert privileged._flaw(link) == f"{link} is no file"
    assert privileged._flaw(tmp_path / "none") == f"the root helper {tmp_path / 'none'} is not installed"


def test_a_user_with_an_odd_name_stands_in_sudoers_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        pw_name = "DOMAIN\\anna schmidt"

    monkeypatch.setattr(privileged.pwd, "getpwuid", lambda uid: Entry)
    monkeypatch.setattr(privileged.os, "getuid", lambda: 1234)
    assert privileged.sudoers_line() == "#1234 ALL=(root) NOPASSWD: /usr/local/libexec/profrun-root"
