"""`profrun doctor`: what it says is what happens here, and each gap has a fix that suits the system."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from cli import profrun, script
from fakes.gpus import FakeGpus

from orchestrator import doctor, folder, gpus, privileged, process, registry, resolve
from orchestrator.doctor import Verdict, bare, kernel, places, settings, system, tools
from orchestrator.doctor import gpus as doctors_gpus
from orchestrator.doctor.words import Diagnosis
from orchestrator.env_steps.base import Step
from orchestrator.errors import FolderError
from orchestrator.machine import Machine, Permission
from orchestrator.model import Check, Knob
from orchestrator.plan import Plan
from orchestrator.planfile import plans
from orchestrator.standalone import seize


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Diagnosis]:
    """What the doctor finds on this machine, with scratch space of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        return {one.subject: one for one in doctor.doctor(Machine()).found}


@pytest.mark.tool("py-spy", "strace", "nsys", "ncu")
@pytest.mark.parametrize("name", ["py-spy", "strace", "nsys", "ncu"])
def test_a_tool_that_works_is_proven_to(found: Mapping[str, Diagnosis], name: str) -> None:
    one = found[name]
    assert one.state == "ok", one.said
    assert one.version
    assert one.path and os.access(one.path, os.X_OK)
    assert "small Python program" in one.said


@pytest.mark.tool("gdb")
def test_other_tools_are_made_to_work(found: Mapping[str, Diagnosis]) -> None:
    assert found["gdb"].state == "ok", found["gdb"].said


def test_it_speaks_of_permissions_and_places(found: Mapping[str, Diagnosis]) -> None:
    spoken_of = {"trace a child", "trace a sibling", "trace with --pid", "perf events", "container", "limits"}
    assert spoken_of | {"report folder", "scratch space", "root helper", "crontab", "NVIDIA driver"} <= set(found)


def test_it_leaves_nothing_behind(found: Mapping[str, Diagnosis]) -> None:
    scratch = found["scratch space"].path
    assert scratch and list(Path(scratch).iterdir()) == []
    assert process.marked("profrun-") == []


# ---------------------------------------------------------------- gaps


def on(root: Path, files: Mapping[str, str] | None = None, **tools: str) -> Machine:
    """A machine whose /etc, /proc and /sys hold these files, with these tools."""
    for name, text in (files or {}).items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Machine(tools, root)


def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on profrun takes itself for an ordinary user."""
    monkeypatch.setattr(Machine, "is_root", False)


def test_a_missing_tool_comes_with_the_command_that_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "find", lambda *_: None)
    one = tools.try_collector("py-spy", Machine())
    assert one and one.state == "missing"
    assert one.fix == f"{sys.executable} -m pip install --upgrade py-spy"


def test_a_path_of_the_plan_that_leads_nowhere_is_told() -> None:
    one = tools.try_collector("py-spy", Machine(tools={"py-spy": "/nowhere/py-spy"}))
    assert one and one.state == "missing"
    assert "/nowhere/py-spy" in one.said and one.fix == "mend that path, or leave it out"


def test_a_tool_that_dies_is_broken_and_its_last_words_are_told(tmp_path: Path) -> None:
    body = 'case "$*" in *--help*) echo chrometrace;; *) echo "Error: all is lost" >&2; exit 1;; esac'
    one = tools.try_collector("py-spy", Machine({"py-spy": str(script(tmp_path / "py-spy", f"#!/bin/sh\n{body}\n"))}))
    assert one and one.state == "broken"
    assert "all is lost" in one.said


def test_a_tool_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "LIMIT_S", 0.3)
    body = f"#!/bin/sh\ntrap '' TERM\necho x >> {tmp_path}/asked\nwhile :; do sleep 60; done\n"
    one = tools.try_collector("nsys", Machine({"nsys": str(script(tmp_path / "nsys", body))}))
    assert one and one.state == "broken"
    assert one.said == "`nsys --version`: no answer in 0.3 s"
    assert (tmp_path / "asked").read_text() == "x\n"


def test_a_file_that_is_no_program_is_broken(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_bytes(b"\x7fELF but cut")
    tool.chmod(0o755)
    one = tools.try_collector("py-spy", Machine(tools={"py-spy": str(tool)}))
    assert one and one.state == "broken"


@pytest.mark.tool("strace")
def test_of_a_tool_on_which_the_program_itself_fails_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_TRIAL", "raise SystemExit(3)")
    one = tools.try_collector("strace", Machine())
    assert one and one.state == "unknown"
    assert one.said.startswith("the program that it was tried on, a small Python program, failed itself under it (")


def test_a_collector_that_cannot_be_loaded_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.COLLECTORS, "py-spy", "orchestrator.collectors.nobody:Nobody")
    one = tools.try_collector("py-spy", Machine())
    assert one and one.state == "broken" and "nobody" in one.said


def test_a_collector_without_a_tool_needs_no_doctor() -> None:
    assert tools.try_collector("timing", Machine()) is None


@pytest.mark.parametrize(
    ("version", "capability", "needed"),
    [("2022.3.0.0", "9.0", None), ("2021.3.1", "9.0", "2022.3"), ("2024.3", "12.0", "2025.1"), ("2020.1", "7.0", None)],
)
def test_a_tool_older_than_the_gpu_is_told_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, capability: str, needed: str | None
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = script(tmp_path / "ncu", f"#!/bin/sh\necho Version {version}\n")
    machine = on(tmp_path, ncu=str(path))
    machine.__dict__["gpu_look"] = gpus.Look((gpus.Gpu(0, "GPU-1", compute_capability=capability),))
    said = tools._newer(registry.collector("ncu").model_validate({"use": "ncu"}), machine)
    assert (
        (said is None) if needed is None else (said or "").startswith(f"install ncu {needed} or newer: {version[:6]}")
    )


LIBCUDA = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int told(const char *name) {
  FILE *log = fopen(getenv("CALLS"), "a");
  fprintf(log, "%s\n", name);
  fclose(log);
  return getenv("FAILS") ? 100 : 0;
}
int cuInit(unsigned flags) { return told("cuInit"); }
int cuDeviceGet(int *device, int number) { return told("cuDeviceGet"); }
int cuCtxCreate_v2(void **context, unsigned flags, int device) { return told("cuCtxCreate"); }
int cuModuleLoadData(void **module, char *ptx) { return told(strstr(ptx, ".entry") ? "cuModuleLoadData" : "no ptx"); }
int cuModuleGetFunction(void **f, void *module, char *name) { return told(name); }
int cuLaunchKernel(void *f, int x, int y, int z) { return told("cuLaunchKernel"); }
int cuCtxSynchronize() { return told("cuCtxSynchronize"); }
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_the_small_gpu_program_says_what_failed(tmp_path: Path) -> None:
    (tmp_path / "cuda.c").write_text(LIBCUDA)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", "-o", "libcuda.so.1", "cuda.c"], cwd=tmp_path, check=True)
    machine = on(tmp_path)
    machine.__dict__["gpu_look"] = gpus.Look((gpus.Gpu(0, "GPU-1", compute_capability="9.0"),))
    program = tools._program(machine, True)
    assert ".target sm_75" in program
    env = {"CALLS": str(tmp_path / "calls"), "LD_LIBRARY_PATH": str(tmp_path)}
    words = [sys.executable, "-I", "-S", "-c", program]
    assert process.ask(words, env=env, timeout_s=60).ok
    called = (tmp_path / "calls").read_text().split()
    made = ["cuInit", "cuDeviceGet", "cuCtxCreate", "cuModuleLoadData", "kernel_for_the_doctor"]
    assert called == [*made, *3 * ["cuLaunchKernel"], "cuCtxSynchronize"]
    assert process.ask(words, env={**env, "FAILS": "1"}, timeout_s=60).stderr == "cuInit gave 100\n"


# ---------------------------------------------------------------- permission to trace


class Refused(Machine):
    """A machine on which nobody may trace, seen by a user who is not root."""

    is_root = False  # type: ignore[assignment]

    def ptrace(self) -> Permission:
        return Permission(
            False, "tracing was refused: Operation not permitted", "sudo sysctl kernel.yama.ptrace_scope=1"
        )

    ptrace_beside = ptrace


@pytest.mark.tool("py-spy")
def test_without_permission_to_trace_py_spy_is_blocked() -> None:
    one = tools.try_collector("py-spy", Refused())
    assert one and (one.state, one.fix) == ("blocked", "sudo sysctl kernel.yama.ptrace_scope=1")


@pytest.mark.parametrize("root", [True, False])
def test_only_root_is_spared_sudo(monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    monkeypatch.setattr(Refused, "is_root", root)
    fix = doctor._as_we_are(Refused(), next(kernel.tracing(Refused()))).fix
    assert fix == ("" if root else "sudo ") + "sysctl kernel.yama.ptrace_scope=1"


def test_what_may_stand_behind_a_refusal_is_told(tmp_path: Path) -> None:
    on(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": "2", "proc/self/status": "CapEff:\t0\nSeccomp:\t2\n"})
    said = next(kernel.tracing(Refused(root=tmp_path))).said
    assert said.endswith("kernel.yama.ptrace_scope is 2; a seccomp filter is on; profrun has no CAP_SYS_PTRACE")


def test_a_process_that_is_traced_already_is_refused() -> None:
    with process.stopped_child() as pid:
        assert process.state(pid) == "T"
        assert seize.seize(pid) == 0
        beside = process.ask([sys.executable, "-I", "-S", seize.__file__, str(pid)])
        assert beside.exit and beside.exit.status == errno.EPERM
    assert process.state(pid) is None
    assert seize.seize(pid) == errno.ESRCH


@pytest.mark.parametrize(
    ("scope", "files", "state", "fix"),
    [
        ("0", {}, "ok", None),
        ("1", {}, "blocked", "sudo sysctl kernel.yama.ptrace_scope=0"),
        ("1", {".dockerenv": ""}, "blocked", "start the container with --cap-add SYS_PTRACE"),
        ("1", {"proc/self/status": "CapEff:\t80000\n"}, "ok", None),
    ],
)
def test_a_process_that_runs_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, files: dict[str, str], state: str, fix: str | None
) -> None:
    nobody(monkeypatch)
    one = kernel._attaching(on(tmp_path, {"proc/sys/kernel/yama/ptrace_scope": scope, **files}))
    assert (one.state, one.fix) == (state, fix)


# ---------------------------------------------------------------- permission to count

LEVEL = "proc/sys/kernel/perf_event_paranoid"
COUNTS = "echo '0.44;msec;task-clock;440000;100.00;;' >&2; echo '{};;cycles;0;100.00;;' >&2"
REFUSES = "echo 'Error:\nAccess to performance monitoring and observability operations is limited.' >&2; exit 255"


def perf_of(tmp_path: Path, body: str) -> str:
    return str(script(tmp_path / "perf", f"#!/bin/sh\n{body}\n"))


@pytest.mark.parametrize(
    ("level", "body", "state", "fix"),
    [
        ("1", COUNTS.format("812345"), "ok", None),
        ("2", COUNTS.format("812345"), "ok", "sudo sysctl kernel.perf_event_paranoid=1"),
        ("3", REFUSES, "blocked", "sudo sysctl kernel.perf_event_paranoid=1"),
        ("-1", "echo 'perf: symbol lookup error' >&2; exit 127", "broken", None),
        ("2", None, "unknown", None),
        ("3", None, "blocked", "sudo sysctl kernel.perf_event_paranoid=1"),
    ],
)
def test_perf_events_for_who_is_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, body: str | None, state: str, fix: str | None
) -> None:
    nobody(monkeypatch)
    machine = on(tmp_path, {LEVEL: level}, perf=perf_of(tmp_path, body) if body else "/nowhere/perf")
    one = next(kernel.counting(machine))
    assert (one.subject, one.state, one.fix) == ("perf events", state, fix)


def test_a_container_is_given_the_capability_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody(monkeypatch)
    files = {LEVEL: "2", ".dockerenv": "", "proc/self/status": "CapEff:\t0\nSeccomp:\t2\n"}
    one = next(kernel.counting(on(tmp_path, files, perf=perf_of(tmp_path, REFUSES))))
    assert one.fix == "start the container with --cap-add PERFMON"
    assert one.said.endswith("a seccomp filter is on")


@pytest.mark.parametrize(
    ("cycles", "state"), [("812345", "ok"), ("<not supported>", "missing"), ("<not counted>", "unknown")]
)
def test_counters_of_the_processor(tmp_path: Path, cycles: str, state: str) -> None:
    machine = on(tmp_path, {LEVEL: "-1"}, perf=perf_of(tmp_path, COUNTS.format(cycles)))
    assert {one.subject: one.state for one in kernel.counting(machine)}["hardware events"] == state


def test_a_kernel_without_perf_events(tmp_path: Path) -> None:
    assert [one.state for one in kernel.counting(on(tmp_path))] == ["missing"]


# ---------------------------------------------------------------- containers and limits

START = "start the container with --cap-add SYS_PTRACE"
GROUPS = "sys/fs/cgroup"
ALL, BARE_DOCKER = "1ffffffffff", "a80425fb"


@pytest.mark.parametrize(
    ("sign", "bounds", "state", "fix"),
    [
        (".dockerenv", ALL, "ok", None),
        (".dockerenv", BARE_DOCKER, "blocked", f"{START} --cap-add PERFMON --cap-add SYS_NICE"),
        ("run/.containerenv", "800000", "blocked", f"{START} --cap-add PERFMON"),
        ("etc/hostname", BARE_DOCKER, "ok", None),
    ],
)  # fmt: skip
def test_what_a_container_lacks(tmp_path: Path, sign: str, bounds: str, state: str, fix: str | None) -> None:
    one = kernel.container(on(tmp_path, {sign: "", "proc/self/status": f"CapBnd:\t{bounds}\nSeccomp:\t2\n"}))
    if sign == "run/.containerenv":
        assert "SYS_NICE" not in one.said
    assert (one.state, one.fix) == (state, fix)


def test_in_a_container_the_hosts_processes_are_hidden(tmp_path: Path) -> None:
    machine = on(tmp_path, {"proc/self/ns/x": "", "proc/self/status": f"CapBnd:\t{ALL}\n"})
    (tmp_path / "proc/self/ns/pid").symlink_to("pid:[4026532999]")
    assert "the host's other processes are hidden" in kernel.container(machine).said


def test_each_kind_of_container_has_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = on(tmp_path)
    monkeypatch.setattr(Machine, "in_container", lambda _: "kubernetes")
    assert "securityContext" in machine.grant("PERFMON") and "nvidia.com/gpu" in system.let_gpus_in(machine)
    monkeypatch.setattr(Machine, "in_container", lambda _: "apptainer")
    assert "--add-caps CAP_PERFMON" in machine.grant("PERFMON") and "--nv" in system.let_gpus_in(machine)
    monkeypatch.setattr(Machine, "in_container", lambda _: "lxc")
    assert "perfmon out of lxc.cap.drop" in machine.grant("PERFMON")
    monkeypatch.setattr(Machine, "in_container", lambda _: "enroot")
    assert "NVIDIA_VISIBLE_DEVICES" in system.let_gpus_in(machine)


def test_enroot_is_known_by_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    machine = on(tmp_path, {".lock": ""})
    assert machine.in_container() is None
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/rc").touch()
    assert machine.in_container() == "enroot"


def test_what_no_container_without_root_can_be_given(tmp_path: Path) -> None:
    """There its root has all capabilities, and those that the kernel asks of the whole machine count for nothing."""
    files = {"run/.containerenv": "", "proc/self/status": f"CapEff:\t{ALL}\nCapBnd:\t{ALL}\n"}
    machine = on(tmp_path, {**files, "proc/self/uid_map": "0 1000 1\n1 100000 65536"})
    assert machine.capable("SYS_PTRACE") and not machine.capable("PERFMON", "SYS_ADMIN", "SYS_NICE")
    assert machine.grant("SYS_PTRACE") == START
    one = kernel.container(machine)
    assert one.state == "blocked" and "lacks PERFMON (perf), SYS_NICE" in one.said
    assert one.fix is not None and "on the host: sudo sysctl kernel.perf_event_paranoid=1" in one.fix
    plain = on(tmp_path / "host", {**files, "proc/self/uid_map": "         0          0 4294967295"})
    assert plain.capable("PERFMON") and kernel.container(plain).state == "ok"


@pytest.mark.parametrize(
    ("files", "state", "said"),
    [
        ({"proc/self/cgroup": "0::/"}, "ok", "the control group sets none"),
        (
            {"proc/self/cgroup": "0::/a/b", f"{GROUPS}/a/memory.max": "8589934592", f"{GROUPS}/a/b/memory.max": "max"},
            "ok", "memory 8",
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "150000 100000"}, "ok", "CPU time of 1.5 CPUs, "),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, "ok", "the control group sets none"),
        (
            {"proc/self/cgroup": "0::/", "sys/fs/cgroup/pids.max": "100", "sys/fs/cgroup/pids.current": "60"},
            "blocked", "room for 40 more processes",
        ),
        (
            {"proc/self/cgroup": "4:memory:/docker/x", f"{GROUPS}/memory/docker/x/memory.limit_in_bytes": "536870912"},
            "blocked", "memory 537 MB",
        ),
        (
            {"proc/self/cgroup": "4:memory:/", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"},
            "ok", "the control group sets none",
        ),
    ],
)  # fmt: skip
def test_limits_of_the_control_group(tmp_path: Path, files: dict[str, str], state: str, said: str) -> None:
    one = kernel.limits(on(tmp_path, files))
    assert one.state == state
    assert one.said.startswith(said)
    assert one.state == "ok" or one.fix


# ---------------------------------------------------------------- other systems, by their files


@pytest.mark.parametrize(
    ("release", "tool", "fix"),
    [
        ("ID=debian", "strace", "sudo apt-get install strace"),
        ("ID=debian", "perf", "sudo apt-get install linux-perf"),
        ("ID=debian", "nsys", "enable Debian's component non-free, then sudo apt-get install nsight-systems"),
        ("ID=ubuntu\nID_LIKE=debian", "perf", "sudo apt-get install linux-tools-generic"),
        ("ID=ubuntu\nID_LIKE=debian", "ncu", "sudo apt-get install nsight-compute"),
        ("ID=ubuntu\nID_LIKE=debian", "python", "sudo apt-get install python-is-python3"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', "perf", "sudo apt-get install linux-tools-generic"),
        ("NAME=Fedora\nID=fedora", "perf", "sudo dnf install perf"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "crontab", "sudo dnf install cronie"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "strace", "sudo zypper install strace"),
        ("ID=arch", "gdb", "sudo pacman -S gdb"),
        ("ID=alpine", "strace", "sudo apk add strace"),
        ("ID=fedora", "nsys", None),
        ("ID=arch", "python", None),
        ("ID=plan9", "strace", None),
        ("", "strace", None),
    ],
)
def test_the_fix_suits_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, tool: str, fix: str | None
) -> None:
    monkeypatch.delenv("MODULEPATH", raising=False)
    machine = on(tmp_path, {"etc/os-release": release})
    machine.__dict__["gpu_look"] = gpus.Look()
    assert system.how_to_get(machine, tool) == fix


def test_nothing_of_nvidias_is_installed_beside_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MODULEPATH", raising=False)
    machine = on(tmp_path, {"etc/os-release": "ID=debian"})
    machine.__dict__["gpu_look"] = gpus.Look((gpus.Gpu(0, "GPU-1"),))
    assert "apt-get" not in str(system.how_to_get(machine, "nsys"))
    monkeypatch.setenv("MODULEPATH", "/apps/modules")
    assert "module spider" in str(system.how_to_get(machine, "ncu"))


# ---------------------------------------------------------------- GPUs

LOADED = {"proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n"}
KEPT = {**LOADED, "proc/driver/nvidia/params": "RmMsg: \nRmProfilingAdminOnly: 1\n"}
TEE = "echo 'options {} NVreg_RestrictProfilingToAdminUsers=0' | sudo tee /etc/modprobe.d/nvidia-profiling.conf"


@pytest.mark.parametrize(
    ("files", "fix"),
    [
        ({"etc/os-release": "ID=ubuntu"}, f"{TEE.format('nvidia')} && sudo update-initramfs -u, then reboot"),
        (
            {"etc/os-release": "ID=debian", "etc/modprobe.d/nvidia.conf": "install nvidia modprobe -i nvidia-current"},
            f"{TEE.format('nvidia-current')} && sudo update-initramfs -u, then reboot",
        ),
        ({"etc/os-release": "ID=fedora"}, f"{TEE.format('nvidia')} && sudo dracut --force, then reboot"),
        ({"etc/os-release": "ID=alpine"}, f"{TEE.format('nvidia')}, then reboot"),
        ({".dockerenv": ""}, "start the container with --cap-add SYS_ADMIN"),
    ],
)
def test_gpu_counters_that_the_driver_keeps_for_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], fix: str
) -> None:
    nobody(monkeypatch)
    (one,) = doctors_gpus.counters(on(tmp_path, {**KEPT, **files}))
    assert (one.state, one.fix) == ("blocked", fix)
    assert "ERR_NVGPUCTRPERM" in one.said


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({"proc/driver/nvidia/params": "RmProfilingAdminOnly: 0"}, "ok"),
        ({"proc/self/status": "CapEff:\t200000\n"}, "ok"),  # SYS_ADMIN
        ({"proc/self/status": "CapEff:\t4000000000\n"}, "blocked"),  # PERFMON
        ({"proc/self/status": "CapEff:\t4000000000\n", "proc/driver/nvidia/version": "Kernel Module  570.1.2"}, "ok"),
    ],
)
def test_gpu_counters_by_driver_and_capability(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], state: str
) -> None:
    nobody(monkeypatch)
    (one,) = doctors_gpus.counters(on(tmp_path, {**KEPT, **files}))
    assert one.state == state


def test_under_windows_the_counters_are_allowed_in_windows(tmp_path: Path) -> None:
    machine = on(tmp_path, {"proc/sys/kernel/osrelease": "5.15.153.1-microsoft-standard-WSL2", "dev/dxg": ""})
    (one,) = doctors_gpus.counters(machine)
    assert one.state == "unknown" and (one.fix or "").startswith("in Windows")


def test_ncu_is_blocked_where_the_counters_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = script(tmp_path / "ncu", f"#!/bin/sh\necho Version 2022.3.0.0; echo $* >> {tmp_path}/asked\n")
    one = tools.try_collector("ncu", on(tmp_path, KEPT, ncu=str(path)))
    assert one and one.state == "blocked" and "ERR_NVGPUCTRPERM" in one.said
    assert "--export" not in (tmp_path / "asked").read_text()


def test_who_else_may_hold_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    machine = on(tmp_path, {"proc/812/comm": "nv-hostengine\n", "proc/77/comm": "ncu\n", "proc/5/comm": "bash\n"})
    found = {one.subject: one for one in doctors_gpus.claims(machine)}
    assert set(found) == {"DCGM", "other profilers"}
    assert "nv-hostengine (pid 812)" in found["DCGM"].said and "dcgmi profile --pause" in (found["DCGM"].fix or "")
    assert "ncu (pid 77)" in found["other profilers"].said


def test_gpus_that_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(tmp_path, mig=1)
    for name, text in fake.env.items():
        monkeypatch.setenv(name, text)
    found = {one.subject: one for one in doctors_gpus.look(on(tmp_path, LOADED))}
    assert found["NVIDIA driver"].state == "ok" and found["NVIDIA driver"].version == "570.124.06"
    assert "0: NVIDIA Example, 1: NVIDIA Example" in found["NVIDIA driver"].said
    assert (found["nvidia-smi"].state, found["nvidia-smi"].said) == ("ok", "lists 2 GPUs")
    assert "is split (MIG)" in found["MIG"].said


def test_a_driver_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeGpus(tmp_path, nvml_hang=1, smi_hang=1)
    for name, text in {**fake.env, gpus.LIMIT_VARIABLE: "0.5"}.items():
        monkeypatch.setenv(name, text)
    found = {one.subject: one for one in doctors_gpus.look(on(tmp_path, LOADED))}
    assert found["NVIDIA driver"].state == found["nvidia-smi"].state == "broken"
    assert "no answer of the GPUs' driver in 0.5 s" in found["NVIDIA driver"].said and "reboot" in (
        found["NVIDIA driver"].fix or ""
    )
    assert fake.calls() == []


@pytest.mark.parametrize(
    ("why", "files", "state", "fix"),
    [
        ("no NVIDIA driver is here", {}, "missing", None),
        ("Failed to initialize NVML: Driver/library version mismatch", LOADED, "broken", "reboot; or, "),
        ("Driver/library version mismatch", {**LOADED, ".dockerenv": ""}, "broken", "restart the container: "),
        ("Unknown Error", LOADED, "blocked", "sudo nvidia-modprobe"),
        ("Unknown Error", {**LOADED, ".dockerenv": ""}, "blocked", "start the container with --gpus all"),
        ("Unknown Error", {**LOADED, "dev/nvidiactl": ""}, "broken", "sudo dmesg"),
        ("no NVIDIA driver is here", {"etc/os-release": "ID=ubuntu"}, "missing", "sudo ubuntu-drivers install"),
    ],
)
def test_a_driver_that_does_not_answer(
    tmp_path: Path, why: str, files: dict[str, str], state: str, fix: str | None
) -> None:
    bus = "sys/bus/pci/devices/0000:01:00.0"
    card = {f"{bus}/class": "0x030200", f"{bus}/vendor": "0x10de"} if "etc/os-release" in files else {}
    one = doctors_gpus._driver(on(tmp_path, {**files, **card}), gpus.Look(why_not=why))
    assert one.state == state
    assert (one.fix or "").startswith(fix or "") and bool(one.fix) == bool(fix)
    assert one.version == ("535.183.01" if "proc/driver/nvidia/version" in files else None)


# ---------------------------------------------------------------- places


def test_a_tmpdir_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    one = {one.subject: one for one in places.places(Machine())}["scratch space"]
    assert one.state == "ok"
    assert "can't be used" in one.said and one.fix


def test_no_scratch_space_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise FolderError("no place for temporary files", "all full", "set TMPDIR to a local disk with room")

    monkeypatch.setattr(folder, "scratch", nowhere)
    one = {one.subject: one for one in places.places(Machine())}["scratch space"]
    assert (one.state, one.fix) == ("blocked", "set TMPDIR to a local disk with room")


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("nfs4", "rw", "on a network file system (nfs4)"),
        ("lustre", "rw", "on a network file system (lustre)"),
        ("fuse.sshfs", "rw", "on a network file system (fuse.sshfs)"),
        ("ext4", "rw,nosuid,noexec", "mounted noexec"),
        ("tmpfs", "rw", "in memory (tmpfs)"),
        ("xfs", "rw", "GB free"),
    ],
)
def test_the_file_system_of_scratch_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: str, said: str
) -> None:
    room = tmp_path / "my scratch"
    room.mkdir()
    monkeypatch.setenv("TMPDIR", str(room))
    point = str(room).replace(" ", "\\040")
    mounts = f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {point} {options} shared:3 - {kind} host:/x rw\n"
    one = places._scratch(on(tmp_path / "root", {"proc/self/mountinfo": mounts}))
    assert one.state == "ok" and said in one.said
    assert bool(one.fix) == (kind not in ("xfs", "tmpfs"))


def test_a_report_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "reports").touch()
    assert places._reports(tmp_path / "reports").said.endswith("is no directory")


# ---------------------------------------------------------------- cron


def test_cron_gives_next_to_nothing() -> None:
    assert set(bare.environment()) == {"HOME", "LOGNAME", "PATH", "SHELL"}
    assert bare.environment()["PATH"] == "/usr/bin:/bin"


def test_a_tool_that_only_this_shell_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(script(tmp_path / "nsys", "#!/bin/sh\n"))
    monkeypatch.setattr(bare, "found", lambda _: {"nsys": own, "a tool of ours": str(tmp_path / "x y")})
    one = bare._tools_there(Machine())
    assert one.state in ("missing", "ok") and "a tool of ours" in one.said
    assert f'a tool of ours: "{tmp_path}/x y"' in (one.fix or "")


@pytest.mark.parametrize(
    ("body", "state"),
    [
        ("echo 'no crontab for you' >&2; exit 1", "ok"),
        ("echo '0 3 * * * profrun night'", "ok"),
        ("echo 'You (you) are not allowed to use this program (crontab)' >&2; exit 1", "blocked"),
        ("echo 'must be suid' >&2; exit 1", "broken"),
    ],
)
def test_crontab(tmp_path: Path, body: str, state: str) -> None:
    machine = Machine({"crontab": str(script(tmp_path / "crontab", f"#!/bin/sh\n{body}\n"))})
    assert bare._crontab(machine).state == state


def test_a_bare_python_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    own, other = bare.pythons(on(tmp_path, {"etc/os-release": "ID=debian"}))
    assert own.state == "ok" and own.path == sys.executable
    assert (other.state, other.fix) == ("missing", "sudo apt-get install python-is-python3")


# ---------------------------------------------------------------- settings of the machine


@pytest.mark.parametrize(
    ("writer", "path", "helper", "state"),
    [
        ("you", None, False, "ok"),
        ("root", "/dev/cpu_dma_latency", False, "blocked"),
        ("root", "/dev/cpu_dma_latency", True, "ok"),
        ("nobody: read-only file system", None, True, "blocked"),
        (None, None, True, "missing"),
    ],
)
def test_a_setting_by_who_may_write_it(
    monkeypatch: pytest.MonkeyPatch, writer: str | None, path: str | None, helper: bool, state: str
) -> None:
    monkeypatch.setattr(privileged, "available", lambda: Permission(helper, "", None if helper else "install it"))
    one = settings._knobs("cpu", [Knob("C-states", None, writer=writer, path=path, note="no clock here")])
    assert one.state == state
    assert (one.fix == "install it") == (writer == "root" and not helper)


def test_the_root_helper_is_what_an_ordinary_user_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody(monkeypatch)
    monkeypatch.setattr(privileged, "available", lambda: Permission(False, "it is not installed", "sudo install"))
    assert (settings.root_helper(Machine()).state, settings.root_helper(Machine()).fix) == ("missing", "sudo install")


# ---------------------------------------------------------------- a plan


def plan_of(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "plan.yaml"
    file.write_text(f"version: 1\n{text}")
    return plans.load(file)


def for_plan(tmp_path: Path, text: str, **tools: str) -> Verdict:
    run = resolve.without_command(plan_of(tmp_path, text))
    return doctor.doctor_for(run, Machine(tools), tmp_path / "reports")


def test_a_plan_whose_tool_is_missing_can_not_be_served(tmp_path: Path) -> None:
    verdict = for_plan(tmp_path, "collectors: [{use: timing}, {use: strace}]", strace="/nowhere/strace")
    assert verdict.lacking == ("strace",)
    assert {one.subject: one.state for one in verdict.found}["timing"] == "ok"


def test_what_the_plan_does_not_insist_on_may_be_missing(tmp_path: Path) -> None:
    text = "collectors: [{use: timing}, {use: strace, required: false}]"
    verdict = for_plan(tmp_path, text, strace="/nowhere/strace")
    assert verdict.lacking == ()
    assert {one.subject: one.state for one in verdict.found}["strace"] == "missing"


def test_a_plan_of_which_nothing_is_left(tmp_path: Path) -> None:
    verdict = for_plan(tmp_path, "collectors: [{use: strace, required: false}]", strace="/nowhere/strace")
    assert verdict.lacking == ("nothing in it can run here",)


class Impossible(Step):
    """A step that no machine allows."""

    def checks(self, machine: Machine) -> list[Check]:
        return [Check(self.use, "blocked", "the file system is read-only", "leave it out")]


@pytest.mark.parametrize(("on_fail", "lacking"), [("fail", ("impossible",)), ("warn", ()), ("ignore", ())])
def test_a_step_that_the_plan_insists_on(tmp_path: Path, on_fail: str, lacking: tuple[str, ...]) -> None:
    plan = plan_of(tmp_path, "collectors: [{use: timing}]")
    step = Impossible.model_validate({"use": "impossible", "on_fail": on_fail})
    run = resolve.without_command(plan.model_copy(update={"environment": (step,)}))
    verdict = doctor.doctor_for(run, Machine(), tmp_path)
    assert verdict.lacking == lacking
    one = {one.subject: one for one in verdict.found}["impossible"]
    assert (one.state, one.theme, one.fix) == ("blocked", "environment", "leave it out")


def test_the_exit_status_of_a_plan(tmp_path: Path) -> None:
    plan = tmp_path / "p.yaml"
    plan.write_text("version: 1\ncollectors: [{use: timing}, {use: strace}]\ntools: {strace: /nowhere/strace}\n")
    result = profrun("doctor", "./p.yaml", "--json", cwd=tmp_path)
    assert result.code == 3, result.stderr
    data = json.loads(result.stdout)
    assert (data["plan"], data["can_be_served"], data["lacking"]) == ("p", False, ["strace"])
    result = profrun("doctor", "./p.yaml", "--skip", "strace", "--", "true", cwd=tmp_path)
    assert result.code == 0, result.stderr
    assert result.stdout.endswith("plan p can be served here\n")


def test_a_deleted_directory_is_no_bug(tmp_path: Path) -> None:
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); os.execv(sys.argv[2], sys.argv[2:])"
    gone = tmp_path / "gone"
    gone.mkdir()
    words = [sys.executable, "-m", "orchestrator", "doctor", "cpu-quick", "--only", "timing"]
    answer = process.ask([sys.executable, "-c", code, str(gone), *words], timeout_s=60)
    assert answer.exit and answer.exit.status == 3, answer.stderr
    assert "the directory that profrun was called in is gone" in " ".join(answer.stdout.split())
    assert "plan cpu-quick can't be served here: report folder" in answer.stdout


# ---------------------------------------------------------------- what the user sees

FOUND = (
    Diagnosis("strace", "ok", "recorded a small Python program in 0.2 s", None, "6.1", "/usr/bin/strace"),
    Diagnosis("perf", "missing", "not found " * 12, "sudo apt-get install linux-perf " + "and-more " * 9),
    Diagnosis("perf events", "blocked", "refused", "sudo sysctl x=1", theme="permissions"),
    Diagnosis("py-spy", "blocked", "refused", "sudo sysctl x=1", theme="permissions"),
)


def test_the_table_is_plain_when_nobody_looks_and_fixes_stay_whole() -> None:
    text = doctor.as_text(Verdict(FOUND), width=60, color=False)
    assert "\x1b" not in text
    assert max(map(len, text.partition("What would help")[0].splitlines())) <= 60
    assert f"  perf: {FOUND[1].fix}" in text.splitlines()
    assert "  perf events, py-spy: sudo sysctl x=1" in text.splitlines()
    assert "/usr/bin/strace" in text


def test_the_table_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in doctor.as_text(Verdict(FOUND), width=60, color=True)


def test_json_holds_all_of_it() -> None:
    data = json.loads(doctor.as_json(Verdict(FOUND)))
    assert data["schema"] == "profrun/doctor/1"
    assert (data["plan"], data["can_be_served"], data["lacking"]) == (None, None, [])
    assert tuple(Diagnosis(**one) for one in data["found"]) == FOUND
