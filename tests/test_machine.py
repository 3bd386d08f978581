"""What is asked of the machine and its tools, and what of the answers is kept."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli import script

from orchestrator import process
from orchestrator.machine import Machine
from orchestrator.model import ToolProbe


def test_a_tool_that_said_nothing_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    body = f"#!/bin/sh\necho x >> {tmp_path}/asked\n[ -e {tmp_path}/well ] && echo version 1.2\n"
    path = str(script(tmp_path / "tool", body))
    probe = ToolProbe("tool")

    def version() -> str | None:
        return Machine({"tool": path}).tool(probe).version

    assert version() is None
    (tmp_path / "well").touch()
    assert [version(), version()] == ["1.2", "1.2"]
    assert (tmp_path / "asked").read_text().count("x") == 2


def test_a_home_that_can_not_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    path = str(script(tmp_path / "tool", "#!/bin/sh\necho version 1.2\n"))
    assert Machine({"tool": path}).tool(ToolProbe("tool")).version == "1.2"


# ---------------------------------------------------------------- tracing what runs already


@pytest.mark.parametrize(
    ("scope", "root", "container", "why", "fix"),
    [
        ("1", False, False, "ptrace_scope is 1: a program is traced by nobody but what has started it", "=0, or run"),
        ("2", False, False, "ptrace_scope is 2: only root may trace", "ptrace_scope=0, or run profrun as root"),
        ("3", False, False, "ptrace_scope is 3: nobody may trace", "lasts until the next boot"),
        ("1", True, True, "ptrace_scope is 1", "--cap-add SYS_PTRACE"),
        ("0", True, False, "process 7 may not be traced", "outside the sandbox"),
        ("0", False, False, "process 7 may not be traced", "run as the target's user or as root"),
    ],
)
def test_why_a_running_process_may_not_be_traced(
    scope: str, root: bool, container: bool, why: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D23: the one fix that applies, and root is not told to become root."""
    (tmp_path / "proc/sys/kernel/yama").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/yama/ptrace_scope").write_text(scope)
    if container:
        (tmp_path / ".dockerenv").touch()
    monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
    monkeypatch.setattr(process, "may_trace", lambda pid: False)
    found = Machine(root=tmp_path).ptrace_of([7, 8])
    assert not found.allowed and why in found.why and fix in str(found.fix)
    assert not (root and "sudo" in str(found.fix))


def test_one_of_them_that_may_be_traced_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "may_trace", lambda pid: pid == 8)
    assert Machine().ptrace_of([7, 8]).allowed and Machine().ptrace_of([]).allowed
    assert not Machine().ptrace_of([7]).allowed


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
def test_whom_we_may_trace_is_asked_of_the_kernel() -> None:
    become = "import os; from orchestrator import process; os.setgid(65534); os.setuid(65534)"
    code = f"{become}; print(process.may_trace({os.getpid()}))"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "False\n" and process.may_trace(os.getpid()) and process.may_trace(1 << 22)
