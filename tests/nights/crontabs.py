"""A crontab program that keeps its table in a file of the test: nothing of this machine's own is touched."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cli import environment, script

PROGRAM = """#!/bin/sh
# as Vixie's crontab(1) answers
case "$1" in
  -l) [ -e {table} ] || {{ echo "no crontab for ada" >&2; exit 1; }}; exec cat {table} ;;
  -r) exec rm {table} ;;
  -) cat > {table}.new
     tail -c 1 {table}.new | grep -q . && {{ echo "missing newline before EOF, can't install." >&2; exit 1; }}
     exec mv {table}.new {table} ;;
  *) echo "crontab: usage error" >&2; exit 1 ;;
esac
"""


class Crontab:
    """Its table, and the environment in which profrun finds it."""

    def __init__(self, place: Path) -> None:
        self.said: Callable[[], Any]
        """What was printed since it was last asked."""
        self.table = place / "table"
        self.state = place / "state"
        (place / "bin").mkdir(parents=True)
        self.program = script(place / "bin" / "crontab", PROGRAM.format(table=shlex.quote(str(self.table))))
        path = f"{place / 'bin'}:{os.environ['PATH']}"
        self.env = environment(PATH=path, PROFRUN_STATE=str(self.state), PROFRUN_HISTORY=None)

    def answers(self, text: str, code: int) -> None:
        script(self.program, f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n")
