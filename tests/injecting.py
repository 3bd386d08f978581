"""Starts programs with profrun's part inside, without the rest of profrun, and reads what that has left."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from waiting import LIMIT_S

from orchestrator.formats import injected
from orchestrator.inside import Inside


@dataclass(frozen=True)
class Seen:
    """What a user sees of a program."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Left:
    """What the part inside has left. `rung`: what it has asked for."""

    content: injected.Content
    rung: tuple[str, ...]

    def steps(self) -> list[injected.Steps]:
        return [process.steps for process in self.content.processes if process.steps is not None]

    def events(self, name: str) -> list[Mapping[str, Any]]:
        return [event for process in self.content.processes for event in process.all(name)]


def bare(argv: Sequence[str | Path], cwd: Path, env: Mapping[str, str] | None = None) -> Seen:
    done = subprocess.run(
        [*map(str, argv)], cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
    )
    return Seen(done.returncode, done.stdout, done.stderr)


def inject(
    argv: Sequence[str | Path], cwd: Path, folder: Path, env: Mapping[str, str] | None = None, **settings: Any
) -> tuple[Seen, Left]:
    """Runs the program in `cwd` with these settings; `folder` must not exist yet."""
    inside, rung, over = Inside(folder, settings), [], threading.Event()

    def answer() -> None:
        while not over.wait(0.005):
            for word, pid, ring in inside.calls():
                rung.append(word)
                inside.answer(pid, ring)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        given = dict(os.environ if env is None else env)
        seen = bare(argv, cwd, {**given, **inside.environment(given)})
    finally:
        over.set()
        thread.join()
        inside.close()
    return seen, Left(injected.read(folder), tuple(rung))
