"""Runs the fault matrix and shows what was injected, the exit status, and the words that the user saw."""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests"), str(REPO)]
from matrix import runs  # noqa: E402 - a folder is started as a program, not as a package


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/faults", description=__doc__, epilog="Exit status 1: something does not hold in a row."
    )
    parser.add_argument("-k", dest="pattern", default="", help="only rows in whose name this regex is found")
    parser.add_argument("--jobs", type=int, default=runs.JOBS, help=f"how many at a time (default: {runs.JOBS})")
    options = parser.parse_args()
    chosen = [name for name in runs.ALL if re.search(options.pattern, name)]
    absent = {name: lacks for name in chosen if (lacks := runs.absent(runs.ALL[name]))}
    folder = Path(tempfile.mkdtemp(prefix="profrun-faults-"))
    able = [name for name in chosen if name not in absent]
    found = runs.rows(able, folder, options.jobs, lambda name, row: print(runs.shown(name, row), flush=True))
    print(runs.sums(found))
    for name, lacks in absent.items():
        print(f"not run, for want of {', '.join(lacks)}: {name}")
    if runs.kept(folder):
        print(f"what the wrong ones left: {folder}")
    return 1 if any(row.wrong for row in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
