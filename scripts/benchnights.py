"""Simulated nights: how often the judge of `profrun nightly` cries wolf, and how soon it sees a program that has become
slower. By itself: `scripts/bench nights`."""

from __future__ import annotations

import json
import math
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.nights.judge import Past, Verdict, by_quickest, judge
from orchestrator.stats import SIGMA_PER_MAD

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "golden" / "nights" / "own-runs.json"
"""Step times of runs that were made one after the other, and how they were made."""
FIGURES = ("step_s", "quick_step_s")
"""What a night may be judged by."""
NIGHTS = 90
"""Of each series in which nothing changes: half a working year's worth."""
BEFORE = 30
"""Nights before the program becomes slower."""
SLOWER = 0.05
WITHIN = 3
MOST_FALSE_PER_100 = 0.5
LEAST_CAUGHT = 0.7
GOAL_NOISE = 0.015
"""Beyond this spread, or where nights depend on one another, a change of 5 % is not what three nights can tell."""
HEADINGS = ("nights", "wrongly `regressed`, of 100", "5 % slower: in 2", "in 3", "in 5", "in 7 nights", "goal")


@dataclass(frozen=True)
class Model:
    """How nights differ while the program is the same. noise: the standard deviation from night to night, as a share;
    dependence: how much a night is like the one before it (lag-1 autocorrelation); outliers: the share of nights that
    take 15 % more."""

    noise: float
    dependence: float = 0.0
    outliers: float = 0.03

    def name(self) -> str:
        words = f"noise {self.noise:.1%}, {self.outliers:.0%} outliers"
        return words + (f", dependent ({self.dependence:g})" if self.dependence else "")

    def times(self, seed: int) -> Iterator[tuple[float, ...]]:
        """Night after night by their one figure; the usual one takes 1."""
        rng, wander = random.Random(seed), 0.0
        fresh = self.noise * math.sqrt(1 - self.dependence**2)
        while True:
            wander = self.dependence * wander + rng.gauss(0, fresh)
            yield (1 + wander + (0.15 if rng.random() < self.outliers else 0.0),)


@dataclass(frozen=True)
class Recorded:
    """Nights drawn from runs that were really made, each with its usual step and its quickest steps, as shares of
    their medians."""

    shares: tuple[tuple[float, float], ...]

    @property
    def figure(self) -> int:
        """The one that such nights are judged by, in the end."""
        usual, quickest = (
            [Past(str(n), night[which], "accepted") for n, night in enumerate(self.shares)] for which in (0, 1)
        )
        return by_quickest(usual, quickest)

    @property
    def noise(self) -> float:
        return SIGMA_PER_MAD * statistics.median(abs(night[self.figure] - 1) for night in self.shares)

    def name(self) -> str:
        return f"{len(self.shares)} runs made here, {FIGURES[self.figure]} (noise {self.noise:.1%})"

    def times(self, seed: int) -> Iterator[tuple[float, ...]]:
        rng = random.Random(seed)
        while True:
            yield rng.choice(self.shares)


def recorded(path: Path = RECORDED) -> Recorded:
    made = json.loads(path.read_text())
    middles = [statistics.median(made[name]) for name in FIGURES]
    nights = zip(*(made[name] for name in FIGURES), strict=True)
    return Recorded(tuple((usual / middles[0], quickest / middles[1]) for usual, quickest in nights))


def verdicts(times: Iterator[tuple[float, ...]], nights: int, slower: float = 0.0, since: int = 0) -> list[Verdict]:
    """What the judge says of each night, by the figure that `profrun nightly` would take; from the night `since` on the
    program is slower by that share."""
    pasts: list[list[Past]] = [[], []]
    said: list[Verdict] = []
    for number in range(nights):
        values = [value * (1 + (slower if number >= since else 0.0)) for value in next(times)]
        chosen = len(values) > 1 and by_quickest(*pasts)
        judged = judge(pasts[chosen], values[chosen])
        said.append(judged.verdict)
        new = {run_id: run_id == judged.adopted[0] for run_id in judged.adopted}
        for past, value in zip(pasts, values, strict=False):
            past[:] = [Past(p.run_id, p.value, "accepted", new[p.run_id]) if p.run_id in new else p for p in past]
            past.append(Past(str(number), value, "accepted" if judged.adopted else judged.verdict))
    return said


@dataclass(frozen=True)
class Result:
    """What became of many series of one kind of nights. caught: by nights, the share of changes that were seen."""

    name: str
    false_per_100: float
    caught: dict[int, float]
    noise: float
    dependence: float = 0.0

    @property
    def power_is_a_goal(self) -> bool:
        return self.noise <= GOAL_NOISE and not self.dependence

    @property
    def good(self) -> bool:
        seen = not self.power_is_a_goal or self.caught[WITHIN] >= LEAST_CAUGHT
        return seen and self.false_per_100 <= MOST_FALSE_PER_100

    def row(self) -> tuple[str, ...]:
        power = f", {LEAST_CAUGHT:.0%} in {WITHIN}" if self.power_is_a_goal else ""
        goal = f"{'met' if self.good else 'MISSED'}: at most {MOST_FALSE_PER_100:g} of 100{power}"
        return self.name, f"{self.false_per_100:.2f}", *(f"{share:.0%}" for share in self.caught.values()), goal


def simulated(kind: Model | Recorded, series: int, seed: int) -> Result:
    """`series` half years in which nothing changes, and as many in which the program becomes slower after a month."""
    times: Callable[[int], Iterator[tuple[float, ...]]] = kind.times
    said = [verdicts(times(seed + number), NIGHTS) for number in range(series)]
    wrong = sum(one.count("regressed") for one in said)
    later = [verdicts(times(seed + series + n), BEFORE + 7, SLOWER, BEFORE)[BEFORE:] for n in range(series)]
    caught = {within: sum("regressed" in one[:within] for one in later) / series for within in (2, WITHIN, 5, 7)}
    dependence = kind.dependence if isinstance(kind, Model) else 0.0
    return Result(kind.name(), 100 * wrong / (series * NIGHTS), caught, kind.noise, dependence)


KINDS = (
    Model(0.005), Model(0.01), Model(0.015), Model(0.02), Model(0.03), Model(0.015, outliers=0.0),
    Model(0.015, outliers=0.05), Model(0.01, 0.3), Model(0.015, 0.3), Model(0.01, 0.6), Model(0.015, 0.6),
    Model(0.02, 0.3), Model(0.03, 0.3),
)  # fmt: skip


PROGRAM = ("python", "scripts/demo/train_cnn.py", "--steps", "600", "--batch", "8")
ONE_RUN = (
    "cpu-quick", "-q", "--json", "--only", "timing", "--set", "collectors.timing.repeats=5",
    "--set", "collectors.timing.warmup=0", "--set", "environment=[{use: affinity, nice: -15}]",
)  # fmt: skip
RUNS = 30


def record(profrun: str) -> None:
    """Makes the runs of `RECORDED`: each is a run of profrun, as a night is one."""
    root = RECORDED.parents[3]
    values: dict[str, list[float]] = {name: [] for name in FIGURES}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PROFRUN_HISTORY": "none"}
    with tempfile.TemporaryDirectory(prefix="profrun-bench-") as scratch:
        for _ in range(RUNS):
            argv = [profrun, *ONE_RUN, "-o", scratch, "--", *PROGRAM]
            done = subprocess.run(argv, cwd=root, env=env, check=True, stdout=subprocess.PIPE)
            metrics = json.loads(done.stdout)["metrics"]
            for name in FIGURES:
                values[name].append(metrics[name]["median"])
    how = f"{RUNS} runs, one after the other, of {' '.join(PROGRAM)}, one thread, nice -15"
    made = {
        "made_by": f"scripts/bench nights --record: {how}",
        "each": "the median of five bare runs: of each the mean steady step, and the median of its quickest 2 %",
        **values,
    }
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text(json.dumps(made, indent=1) + "\n")


def run(series: int, seed: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of the table, and whether all goals were met."""
    kinds: tuple[Model | Recorded, ...] = (*KINDS, *((recorded(),) if RECORDED.exists() else ()))
    results = [simulated(kind, series, seed) for kind in kinds]
    return [HEADINGS, *(result.row() for result in results)], all(result.good for result in results)
