"""The main job as an ordinary user: all collectors work without root."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from somebody import as_user, only_root
from waiting import state, until

TARGET = """
import time
def heavy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
heavy(1.0)
"""

pytestmark = [pytest.mark.tool("py-spy", "strace", "nsys"), only_root]


def test_all_four_captures_are_ok(home: Path) -> None:
    target = home / "t.py"
    target.write_text(TARGET)
    words = ["cpu-quick", "--set", "collectors.timing.repeats=2", "--", "PYTHON", str(target)]
    done = as_user(home, *words)
    assert done.returncode == 0, done.stderr
    folder = home / done.stdout.strip().splitlines()[-1]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["machine"]["user_is_root"] is False
    assert {c["collector"]: c["status"] for c in summary["captures"]} == dict.fromkeys(
        ("timing", "py-spy", "strace", "nsys"), "ok"
    )
    assert folder.stat().st_uid == home.stat().st_uid


@pytest.mark.tool("py-spy", "strace")
def test_a_process_of_somebody_else_is_refused_and_unharmed(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.1)"]) as running:
        done = as_user(home, "attach", "--pid", str(running.pid), "--duration", "1s")
        assert running.poll() is None
        until(lambda: state(running.pid) in "RS")
        running.kill()
    assert done.returncode == 3, done.stderr
    assert "of user root can't be looked at" in done.stderr and "next: run profrun as root\n" in done.stderr
    assert not (home / "reports").exists()
