"""mpirun, as Open MPI has it: each of its processes under an agent of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from cli import profrun, write_plan

PROGRAM = """
import os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "OMPI_COMM_WORLD_RANK")
print(*(os.environ[name] for name in names))
sys.exit(3 * int(os.environ["RANK"]))
"""


@pytest.mark.tool("mpirun")
def test_the_processes_of_mpirun_are_the_tasks_of_one_report(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(PROGRAM)
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", report="{formats: []}")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    words = ("mpirun", *root, "--oversubscribe", "-np", "2", sys.executable, "t.py")
    result = profrun(plan, "--", *words, cwd=tmp_path)
    assert result.code == 3, result.stderr
    record = result.summary["passes"][0]
    assert [task["ranks"] for task in record["tasks"]] == [[0], [1]]
    place = record["tasks"][1]["place"]
    log = result.folder / "raw" / f"p01-target@{place}" / "stdout.log"
    assert log.read_text() == "1 2 1 2 127.0.0.1 1\n"
