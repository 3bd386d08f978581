"""The tables of stacks come out the same every time, also where frames weigh the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """
from orchestrator.formats.stacks import Row, functions_table, stacks_table
rows = [Row(1, "p", "t", "wall", (f"f{n % 3} (a.py:{n})", f"g (b.py:{n})", "leaf (c.py:1)"), 10) for n in range(60)]
for table in (functions_table(rows, 100.0), stacks_table(rows, 100.0)):
    print([list(column) for column in table.columns.values()])
"""


def made(hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    root = Path(__file__).parents[2]
    return subprocess.run([sys.executable, "-c", CODE], env=env, cwd=root, capture_output=True, text=True).stdout


def test_a_rebuild_is_equal_where_frames_weigh_the_same() -> None:
    first = made("1")
    assert "leaf" in first
    assert {made(seed) for seed in ("2", "3", "4")} == {first}
