"""The real ncu, run with the command lines that the collector asks for; without a GPU it must say what it lacked."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.collectors.ncu import Ncu
from orchestrator.machine import Machine
from orchestrator.model import Job, Target

pytestmark = pytest.mark.tool("ncu")


@pytest.mark.parametrize("status", [0, 7])
def test_without_kernels_the_target_runs_and_the_capture_is_empty(tmp_path: Path, status: int) -> None:
    """D20: the exit status is the target's own, there is no report, and the words of ncu say `empty`."""
    collector = Ncu.model_validate({"use": "ncu", "metrics": ["sm__cycles_elapsed.avg"]})
    argv = (sys.executable, "-c", f"print('hello'); raise SystemExit({status})")
    job = Job("p4", str(tmp_path), Target(argv, argv[0], "/", {}), collector.tool(Machine()))
    launch = collector.launch(job)
    assert launch.wrap is not None
    home = tmp_path / "home"
    home.mkdir()
    env = {**os.environ, **launch.child.set, "HOME": str(home)}
    ran = subprocess.run([*launch.wrap.argv, *argv], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert ran.returncode == status
    assert ran.stdout == "hello\n", "the words of ncu are not among the target's"
    assert not (tmp_path / "report.ncu-rep").exists()
    said = (tmp_path / "ncu.log").read_text()
    found = [sign for sign in launch.signs if re.search(sign.pattern, said)]
    assert found[0].status == "empty"
    assert list(home.iterdir()) == [], "nothing was written into the user's home"
