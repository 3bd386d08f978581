"""`profrun doctor`: what it says is what happens here, and each gap has a fix that suits the system."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator import doctor, process, registry
from orchestrator.doctor import Diagnosis
from orchestrator.machine import Machine, Permission
from orchestrator.standalone import seize


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Diagnosis]:
    """What the doctor finds on this machine, with scratch space of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
        return {one.subject: one for one in doctor.doctor(Machine())}


@pytest.mark.tool("py-spy", "strace", "nsys", "ncu")
@pytest.mark.parametrize("name", ["py-spy", "strace", "nsys", "ncu"])
def test_a_tool_that_works_is_proven_to(found: Mapping[str, Diagnosis], name: str) -> None:
    one = found[name]
    assert one.state == "ok", one.said
    assert one.version
    assert one.path and os.access(one.path, os.X_OK)
    assert "small Python program" in one.said


@pytest.mark.tool("perf", "gdb")
@pytest.mark.parametrize("name", ["perf", "gdb"])
def test_other_tools_are_made_to_work(found: Mapping[str, Diagnosis], name: str) -> None:
    assert found[name].state == "ok", found[name].said


def test_it_speaks_of_permissions_and_places(found: Mapping[str, Diagnosis]) -> None:
    assert {"trace a child", "trace a sibling", "perf events", "report folder", "scratch space"} <= set(found)


def test_it_leaves_nothing_behind(found: Mapping[str, Diagnosis]) -> None:
    scratch = found["scratch space"].path
    assert scratch and list(Path(scratch).iterdir()) == []
    assert process.marked("profrun-") == []


# ---------------------------------------------------------------- gaps


def fake_tool(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_missing_tool_comes_with_the_command_that_gets_it() -> None:
    one = doctor.try_collector("py-spy", Machine(tools={"py-spy": "/nowhere/py-spy"}))
    assert one and one.state == "missing"
    assert one.fix == f"{sys.executable} -m pip install --upgrade py-spy"


def test_a_tool_that_dies_is_broken_and_its_last_words_are_told(tmp_path: Path) -> None:
    body = 'case "$*" in *--help*) echo chrometrace;; *) echo "Error: all is lost" >&2; exit 1;; esac'
    one = doctor.try_collector("py-spy", Machine(tools={"py-spy": fake_tool(tmp_path / "py-spy", body)}))
    assert one and one.state == "broken"
    assert "all is lost" in one.said


def test_a_file_that_is_no_program_is_broken(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_bytes(b"\x7fELF but cut")
    tool.chmod(0o755)
    one = doctor.try_collector("py-spy", Machine(tools={"py-spy": str(tool)}))
    assert one and one.state == "broken"


def test_a_collector_that_cannot_be_loaded_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.COLLECTORS, "py-spy", "orchestrator.collectors.nobody:Nobody")
    one = doctor.try_collector("py-spy", Machine())
    assert one and one.state == "broken" and "nobody" in one.said


def test_a_collector_without_a_tool_needs_no_doctor() -> None:
    assert doctor.try_collector("timing", Machine()) is None


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
    one = doctor.try_collector("py-spy", Refused())
    assert one and (one.state, one.fix) == ("blocked", "sudo sysctl kernel.yama.ptrace_scope=1")


@pytest.mark.parametrize("root", [True, False])
def test_only_root_is_spared_sudo(monkeypatch: pytest.MonkeyPatch, root: bool) -> None:
    monkeypatch.setattr(registry, "collector_names", list)
    monkeypatch.setattr(Refused, "is_root", root)
    fixes = [one.fix for one in doctor.doctor(Refused()) if one.subject.startswith("trace a")]
    assert fixes == [("" if root else "sudo ") + "sysctl kernel.yama.ptrace_scope=1"] * 2


# ---------------------------------------------------------------- permission to trace


def test_a_process_that_is_traced_already_is_refused() -> None:
    with process.stopped_child() as pid:
        assert process.state(pid) == "T"
        assert seize.seize(pid) == 0
        beside = process.ask([sys.executable, "-I", "-S", seize.__file__, str(pid)])
        assert beside.exit and beside.exit.status == errno.EPERM
    assert process.state(pid) is None
    assert seize.seize(pid) == errno.ESRCH


# ---------------------------------------------------------------- other systems, by their files


def machine_with(root: Path, **files: str) -> Machine:
    """A machine whose /etc and /proc hold these files; `__` in a name stands for `/`."""
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Machine(root=root)


@pytest.mark.parametrize(
    ("release", "tool", "fix"),
    [
        ("ID=debian", "strace", "sudo apt-get install strace"),
        ("ID=debian", "perf", "sudo apt-get install linux-perf"),
        ("ID=debian", "nsys", "enable Debian's component non-free, then sudo apt-get install nsight-systems"),
        ("ID=ubuntu\nID_LIKE=debian", "perf", "sudo apt-get install linux-tools-generic"),
        ("ID=ubuntu\nID_LIKE=debian", "ncu", "sudo apt-get install nsight-compute"),
        ('ID=linuxmint\nID_LIKE="ubuntu debian"', "perf", "sudo apt-get install linux-tools-generic"),
        ("NAME=Fedora\nID=fedora", "perf", "sudo dnf install perf"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "crontab", "sudo dnf install cronie"),
        ("ID=fedora", "nsys", None),
        ("ID=plan9", "strace", None),
        ("", "strace", None),
    ],
)
def test_the_fix_suits_the_system(tmp_path: Path, release: str, tool: str, fix: str | None) -> None:
    machine = machine_with(tmp_path, etc__os_release_="", **{"etc__os-release": release})
    machine.__dict__["gpus"] = []
    assert doctor.how_to_get(machine, tool) == fix


def test_nothing_of_nvidias_is_installed_beside_its_driver(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, **{"etc__os-release": "ID=debian"})
    machine.__dict__["gpus"] = [{"index": 0, "name": "H100"}]
    assert "apt-get" not in str(doctor.how_to_get(machine, "nsys"))


@pytest.mark.parametrize(
    ("level", "state"), [("-1", "ok"), ("1", "ok"), ("2", "ok"), ("3", "blocked"), ("4", "blocked")]
)
def test_perf_events_for_who_is_not_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, state: str
) -> None:
    monkeypatch.setattr(registry, "collector_names", list)
    monkeypatch.setattr(Machine, "is_root", False)
    machine = machine_with(tmp_path, proc__sys__kernel__perf_event_paranoid=level)
    one = next(one for one in doctor.doctor(machine) if one.subject == "perf events")
    assert one.state == state
    assert (one.fix is None) == (int(level) < 2)


@pytest.mark.parametrize(("restricted", "state"), [("0", "ok"), ("1", "blocked")])
def test_gpu_counters_that_the_driver_keeps_for_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restricted: str, state: str
) -> None:
    monkeypatch.setattr(registry, "collector_names", list)
    monkeypatch.setattr(Machine, "is_root", False)
    machine = machine_with(tmp_path, proc__driver__nvidia__params=f"RmMsg: \nRmProfilingAdminOnly: {restricted}\n")
    assert {one.subject: one.state for one in doctor.doctor(machine)}["GPU counters"] == state


def test_a_tmpdir_that_is_not_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "collector_names", list)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    one = next(one for one in doctor.doctor(Machine()) if one.subject == "scratch space")
    assert one.state == "ok"
    assert "can't be used" in one.said and one.fix


# ---------------------------------------------------------------- what the user sees

FOUND = [
    Diagnosis("strace", "ok", "recorded a small Python program in 0.2 s", None, "6.1", "/usr/bin/strace"),
    Diagnosis("perf", "missing", "not found " * 12, "sudo apt-get install linux-perf " + "and-more " * 9),
]


def test_the_table_is_plain_when_nobody_looks_and_fixes_stay_whole() -> None:
    text = doctor.as_text(FOUND, width=60, color=False)
    assert "\x1b" not in text
    assert max(map(len, text.partition("What would help")[0].splitlines())) <= 60
    assert f"  perf: {FOUND[1].fix}" in text.splitlines()
    assert "/usr/bin/strace" in text


def test_the_table_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in doctor.as_text(FOUND, width=60, color=True)


def test_json_holds_all_of_it() -> None:
    data = json.loads(doctor.as_json(FOUND))
    assert data["schema"] == "profrun/doctor/1"
    assert [Diagnosis(**one) for one in data["found"]] == FOUND
