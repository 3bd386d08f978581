"""formats/syscalls.py: the kernel's names of system calls and strace's, and which of them are counted one by one."""

from __future__ import annotations

import subprocess

import pytest

from orchestrator.formats.syscalls import USUAL, of_tracepoint, syscall_class, tracepoint


@pytest.mark.parametrize(("name", "event"), [("fstat", "newfstat"), ("write", "write"), ("umount2", "umount")])
def test_a_call_and_its_tracepoint(name: str, event: str) -> None:
    assert tracepoint(name) == f"syscalls:sys_enter_{event}"
    assert of_tracepoint(tracepoint(name)) == name


def test_other_events_are_no_calls() -> None:
    assert of_tracepoint("raw_syscalls:sys_enter") is None and of_tracepoint("task-clock") is None


def test_the_usual_calls_stand_there_once_and_of_every_class() -> None:
    assert len(set(USUAL)) == len(USUAL)
    assert {syscall_class(name) for name in USUAL} == {
        "file", "network", "process", "memory", "desc", "futex", "other",
    }  # fmt: skip


@pytest.mark.tool("strace")
def test_the_usual_calls_are_spelled_as_strace_spells_them() -> None:
    """`?name`: also where this processor's kernel has no such call; a name of nothing at all is refused."""
    argv = ["strace", "-o", "/dev/null", "-e", f"trace={','.join(USUAL)}", "true"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "invalid system call" not in done.stderr
