"""Which Python will ring from inside, so that tools wait for it, and which never does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from orchestrator import inside
from orchestrator.inject import boot

SLEEPING = "import sys; print(flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("options", "changes", "rings"),
    [
        ((), {}, True),
        (("-X", "dev", "-u"), {}, True),
        (("-I",), {}, False),
        (("-uE",), {}, False),
        (("-S",), {}, False),
        ((), {boot.HELD: "1"}, False),
        ((), {"PYTHONPATH": ""}, False),
        ((), {boot.SETTINGS: "/nowhere/settings"}, False),
    ],
)
def test_which_python_will_ring(
    tmp_path: Path, options: tuple[str, ...], changes: Mapping[str, str], rings: bool
) -> None:
    settings = tmp_path / "settings"
    settings.write_bytes(b"")
    env = {**os.environ, **inside.environment({}, settings), **changes}
    words = [sys.executable, *options, "-c", SLEEPING, "-I"]
    with subprocess.Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as python:
        assert python.stdout and python.stdout.read(1)
        assert inside.will_ring(python.pid) is rings
        python.communicate()


def test_what_is_no_python_never_does(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_bytes(b"")
    env = {**os.environ, **inside.environment({}, settings)}
    with subprocess.Popen(
        ["sh", "-c", "echo; read x"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout and shell.stdout.read(1)
        assert not inside.will_ring(shell.pid)
        shell.communicate(b"\n")
    assert not inside.will_ring(2**22 + 1)
