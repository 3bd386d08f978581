"""Runs profrun as users do, in a process of its own, and reads what it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm
from waiting import LIMIT_S

COVERAGE = "PROFRUN_TEST_COVERAGE"
"""The variable that names the file of what profrun's processes have covered."""


@dataclass(frozen=True)
class Result:
    """What a user saw, and the report folder that stdout named."""

    code: int
    stdout: str
    stderr: str
    cwd: Path

    @property
    def folder(self) -> Path:
        return self.cwd / self.stdout.strip().splitlines()[-1]

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def captures(self) -> dict[str, dict[str, Any]]:
        """The captures by collector; of several repeats the last."""
        return {capture["collector"]: capture for capture in self.summary["captures"]}

    def statuses(self) -> dict[str, str]:
        return {name: capture["status"] for name, capture in self.captures().items()}


def command(*words: str | Path, measured: bool = True) -> list[str]:
    """The command line of profrun; `measured`: with its coverage, where that of the tests is measured."""
    return [sys.executable, *(_measured() if measured else []), "-m", "orchestrator", *map(str, words)]


def _measured() -> list[str]:
    """What measures profrun's own process, and only that, where the coverage of the tests is measured."""
    data = os.environ.get(COVERAGE)
    settings = f"--rcfile={Path(__file__).parent.parent / 'pyproject.toml'}"
    return ["-m", "coverage", "run", settings, "--parallel-mode", f"--data-file={data}"] if data else []


def environment(**changes: str | None) -> dict[str, str]:
    env = {**os.environ, "NO_COLOR": "1"}
    for name, text in changes.items():
        env.pop(name, None)
        if text is not None:
            env[name] = text
    return env


def profrun(
    *words: str | Path, cwd: Path, env: Mapping[str, str] | None = None, stdin: str = "", timeout_s: float = LIMIT_S
) -> Result:
    """Runs `profrun WORDS` in `cwd` to its end."""
    given = dict(env) if env is not None else environment()
    if warm.fits(given):
        texts, coverage = [str(word) for word in words], os.environ.get(COVERAGE)
        done = warm.run("orchestrator", texts, cwd, given, stdin, coverage, timeout_s)
    else:
        done = subprocess.run(
            command(*words), cwd=cwd, env=given, input=stdin, capture_output=True, text=True, timeout=timeout_s,
            errors="surrogateescape",
        )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr, cwd)


def write_plan(folder: Path, *collectors: str, **more: str) -> Path:
    """A small plan of these collectors, each in YAML's flow form; `more` adds top-level keys."""
    path = folder / "plan.yaml"
    lines = ["version: 1", "name: test", *(f"{key}: {text}" for key, text in more.items()), "collectors:"]
    path.write_text("\n".join([*lines, *(f"  - {item}" for item in collectors)]) + "\n")
    return path


def script(path: Path, text: str) -> Path:
    """An executable file."""
    path.write_text(text)
    path.chmod(0o755)
    return path
