"""HolisticTraceAnalysis (HTA) on a folder of traces, in a process of its own.

It declares JupyterLab among its dependencies: 106 packages, 500 MB and 40 s, of which a program that uses it as a
library needs few. So it is installed without them, on first use, into a folder inside the virtual environment (80 MB,
3 s)."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGES = ("HolisticTraceAnalysis==0.5.0", "plotly>=5.11", "narwhals", "psutil")
"""With those of its dependencies that it imports and this environment lacks."""
FOLDER = Path(sys.prefix) / "hta-0.5.0"

PROGRAM = """
import collections, json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1], include_last_profiler_step=True)
names = analysis.t.symbol_table.sym_table
found = {rank: collections.Counter(names[i] for i in frame["name"]) for rank, frame in analysis.t.traces.items()}
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Loaded:
    """What HTA has read: by rank, how often each name occurs among the events with a duration; and what it logged."""

    ranks: dict[int, dict[str, int]]
    said: str


def load(folder: Path) -> Loaded:
    """Reads all traces of a folder. Raises CalledProcessError where HTA gives up."""
    _install()
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, timeout=120)
    ranks = json.loads(done.stdout.splitlines()[-1])
    return Loaded({int(rank): names for rank, names in ranks.items()}, done.stderr)


def _install() -> None:
    with (FOLDER.parent / "hta.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (FOLDER / "complete").exists():
            return
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES]
        done = subprocess.run(pip, capture_output=True, text=True, timeout=300)
        if done.returncode:
            explain = f"HolisticTraceAnalysis can't be installed: {done.stderr.strip()[-300:]}"
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(explain)
        (FOLDER / "complete").touch()
