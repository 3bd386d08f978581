"""The runs: each program as a neutral copy under the plan, and its report beside its truth."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagbench import neutral, truth

REPO = Path(__file__).resolve().parents[2]
PYTHON = str(REPO / ".venv" / "bin" / "python")
"""The one that profrun and torch are installed in, whichever runs the benchmark."""
PROFRUN = str(REPO / "scripts" / "profrun")
PLAN = REPO / "profiles" / "why.yaml"
SHARED = REPO.parent / "shared" / "bottlenecks"
OWN = REPO / "tests" / "bottlenecks"
MOST_S = 600.0
"""Far more than a program and all passes of the plan take."""

HEADINGS = ("program", "truth", "found", "place", "severity", "share", "rank", "seconds", "")
_PLACES = ("function", "syscall", "op", "kernel")


@dataclass(frozen=True)
class Planted:
    """A program, or its repaired twin, and what its report has to say."""

    name: str
    source: str
    truth: truth.Truth
    repaired: bool = False


@dataclass(frozen=True)
class Result:
    """One run of one program. `trouble`: why there is no score."""

    planted: Planted
    seed: int
    score: truth.Score | None
    names: Mapping[str, str]
    seconds: float
    trouble: str = ""

    @property
    def right(self) -> bool:
        return self.score is not None and self.score.right

    def row(self) -> tuple[str, ...]:
        top = self.score.top if self.score else {}
        pct = top.get("cost_pct")
        rank = str(self.score.rank or "-") if self.score and not self.planted.truth.healthy else ""
        why = "" if self.right else f"WRONG: {self.score.why if self.score else self.trouble}"
        return (
            self.planted.name,
            self.planted.truth.text.partition(";")[0],
            top.get("category") or "-",
            self._place(top),
            top.get("severity") or "",
            f"{pct:.0f} %" if pct is not None else "",
            rank,
            f"{self.seconds:.0f}",
            why or "right",
        )

    def _place(self, finding: Mapping[str, Any]) -> str:
        """Where, in the program's own words again."""
        where = finding.get("where") or {}
        own = {new: old for old, new in self.names.items()}
        told = [re.sub(r"\w+", lambda m: own.get(m[0], m[0]), where[key]) for key in _PLACES if where.get(key)]
        return ", ".join(told)

    def told(self) -> dict[str, Any]:
        """As plain data, for --json."""
        score = self.score or truth.Score(False, None, {})
        return {
            "program": self.planted.name,
            "seed": self.seed,
            "truth": self.planted.truth.text,
            "right": self.right,
            "why": score.why or self.trouble,
            "rank": score.rank,
            "top": dict(score.top),
            "names": dict(self.names),
            "seconds": round(self.seconds, 1),
        }


def programs(folders: Iterable[Path], only: str = "") -> list[Planted]:
    """Every program of the folders, and the repaired twins of those that have the switch. Raises truth.BadTruth."""
    found = [one for folder in folders for path in sorted(folder.glob("*.py")) for one in _of(path)]
    return [one for one in found if re.search(only, one.name)]


def _of(path: Path) -> Iterator[Planted]:
    source = path.read_text()
    try:
        told = truth.truth_of(source)
    except (truth.BadTruth, SyntaxError) as error:
        raise truth.BadTruth(f"{path}: {error}") from error
    yield Planted(path.stem, source, told)
    if re.search(rf"^{neutral.SWITCH} = False$", source, re.MULTILINE):
        yield Planted(f"{path.stem}, repaired", source, truth.HEALTHY, repaired=True)


def run(planted: Planted, seed: int, plan: Path = PLAN) -> Result:
    """One program, once."""
    started = time.monotonic()
    try:
        copy = neutral.neutral(planted.source, seed, repaired=planted.repaired)
    except neutral.Unsafe as error:
        return Result(planted, seed, None, {}, 0.0, f"no neutral copy: {error}")
    with tempfile.TemporaryDirectory(prefix="profrun-bench-") as scratch:
        findings, trouble = _reported(copy.source, Path(scratch), plan)
    score = None if trouble else truth.scored(planted.truth.renamed(copy.names), findings)
    return Result(planted, seed, score, copy.names, time.monotonic() - started, trouble)


def _reported(source: str, scratch: Path, plan: Path) -> tuple[list[dict[str, Any]], str]:
    """The findings of a run under profrun, or why there are none to be had."""
    (scratch / "work").mkdir()
    (scratch / "work" / "program.py").write_text(source)
    argv = [PROFRUN, str(plan), "-o", str(scratch / "reports"), "-q", "--", PYTHON, "program.py"]
    env = {**os.environ, "PROFRUN_STATE": str(scratch / "state")}
    try:
        done = subprocess.run(argv, cwd=scratch / "work", env=env, stdin=subprocess.DEVNULL, timeout=MOST_S,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        summary = json.loads((scratch / "reports" / "latest" / "summary.json").read_text())
    except subprocess.TimeoutExpired:
        return [], f"not done after {MOST_S:.0f} s"
    except (OSError, ValueError):
        return [], f"no report: {done.stdout.strip()[-300:]}"
    outcome = summary["outcome"]
    failed = next((outcome[key] for key in ("target_exit_code", "target_signal") if outcome.get(key)), None)
    return summary["findings"], f"the program failed: {failed}" if failed else ""


def every(planted: Sequence[Planted], runs: int, jobs: int, plan: Path, told: Callable[[Result], None]) -> list[Result]:
    """All programs with as many seeds; `told` is called with each result as it comes."""
    turns = [(one, seed) for seed in range(1, runs + 1) for one in planted]
    results = []
    with ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(lambda turn: run(*turn, plan), turns):
            results.append(result)
            told(result)
    return results


def totals(results: Sequence[Result], runs: int) -> list[str]:
    """How many are right; with several runs, of each program that is not right in all."""
    lines = []
    for name in dict.fromkeys(result.planted.name for result in results):
        good = sum(result.right for result in results if result.planted.name == name)
        if runs > 1 and good < runs:
            lines.append(f"{name}: right in {good} of {runs} runs")
    good = sum(result.right for result in results)
    return [*lines, f"{good} of {len(results)} right"]
