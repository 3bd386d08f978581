"""profrun that ends itself: `mortal.py POINT SIGNAL WHOM OUT -- ARGUMENTS OF PROFRUN`.

A point is the moment right before (even number) or right after (odd) something gets to the disk or the machine: an
entry of the journal, a setting, a held setting, a command. At POINT it sends itself SIGNAL; with WHOM `both` it kills
its keeper first. OUT gets a line for each point as it is passed: its number, apply or restore, what it is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from orchestrator import changes, cli, environment, journal, machine, process

POINT, SIGNAL, WHOM = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
PASSED = Path(sys.argv[4]).open("a", buffering=1)  # noqa: SIM115 - until the end of this process
STAGE = ["apply"]
COUNT = [0]


def pass_by(what: str) -> None:
    """One point, perhaps the last."""
    number = COUNT[0]
    COUNT[0] += 1
    PASSED.write(f"{number} {STAGE[0]} {what}\n")
    if number == POINT:
        if WHOM == "both":
            for pid in keepers():
                os.kill(pid, signal.SIGKILL)
        os.kill(os.getpid(), SIGNAL)


def keepers() -> list[int]:
    """Our own keeper, where it has been started."""
    return [pid for pid in process.children(os.getpid()) if "standalone/keeper.py" in " ".join(process.argv_of(pid))]


def between_points(room: Any, name: str) -> None:
    """Puts a point right before and right after each call of a function."""
    real = getattr(room, name)

    def watched(*args: Any, **more: Any) -> Any:
        pass_by(f"before {name}")
        answer = real(*args, **more)
        pass_by(f"after {name}")
        return answer

    setattr(room, name, watched)


def staged(real: Callable[..., Any]) -> Callable[..., Any]:
    """`Environment.restore`: what comes from here on puts the machine back."""

    def restore(*args: Any) -> Any:
        STAGE[0] = "restore"
        return real(*args)

    return restore


between_points(journal, "append")
between_points(machine, "write_host")
between_points(machine, "hold_host")
between_points(changes, "command")
environment.Environment.restore = staged(environment.Environment.restore)  # type: ignore[method-assign]
cli.main(sys.argv[sys.argv.index("--") + 1 :])
