#!/usr/bin/env python3
"""A history of very many nights, and how soon profrun shows it: `scripts/benchhistory.py [NIGHTS]`; 10,000 by default,
of ten names. Exit status 1 where it takes more than a second."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))

from orchestrator.historic import store  # noqa: E402 - the checkout need not be installed
from orchestrator.historic.night import Night  # noqa: E402
from orchestrator.model import Metric  # noqa: E402

NAMES = 10
LIMIT_S = 1.0
_BATCH = 500
_FIRST = datetime(2020, 1, 1, 2, 17, tzinfo=timezone.utc)
_ENVIRONMENT = {"cpu": "AMD EPYC 7763", "cores": 64, "memory": "504 GiB", "gpu": "8 x NVIDIA H100", "gpus": 8}
_MORE = ("user_s", "sys_s", "max_rss_bytes", "steps", "warmup_steps", "gpu_time_s", "tokens_per_s", "host_cpu_pct")
_CATEGORIES = ("gpu_compute", "input_pipeline", "python_cpu", "file_io", "communication", "host_sync")


def history_rows(n: int, where: str | Path, names: int = NAMES, seed: int = 7) -> list[str]:
    """Fills the database `where` (a folder, a file or a URL) with n nights; gives back their names.

    As nights are: they spread by 1.5 %, one of 33 is disturbed by 15 %, the driver changes every 400 nights, the level
    every 150."""
    words = [f"train-{number}" for number in range(min(names, n))]
    made = _nights(n, words, random.Random(seed))
    while batch := list(islice(made, _BATCH)):
        with store.writing(store.place(where)) as connection:
            store.save(connection, batch)
    return words


def _nights(n: int, names: list[str], chance: random.Random) -> Iterator[store.Row]:
    for number in range(n):
        name, day = names[number % len(names)], number // len(names)
        begun = _FIRST + timedelta(days=day, seconds=number % len(names))
        driver = f"5{35 + 15 * (day // 400)}.104"
        level = 0.1 * (1 + 0.06 * ((day // 150) % 2)) * (1 + chance.gauss(0, 0.015))
        step_s = level * (1.15 if chance.random() < 0.03 else 1.0)
        night = Night(
            run_id=f"{name}-{begun:%Y%m%dT%H%M%SZ}-{number:06d}",
            name=name,
            started_at=f"{begun:%Y-%m-%dT%H:%M:%SZ}",
            path=f"/data/reports/{name}-{number:06d}",
            fingerprint=f"{name}-{driver}",
            environment={**_ENVIRONMENT, "driver": driver, "command": f"python {name}.py"},
            status="ok",
            exit_code=0,
            metrics=_metrics(step_s, chance),
            findings=tuple(_finding(category, chance) for category in _CATEGORIES[:4]),
            shares={category: round(100 * chance.random() / len(_CATEGORIES), 2) for category in _CATEGORIES},
            verdict="accepted",
            host="node-17",
        )
        yield store.Row(night, 60.0, {"kernel": "6.1.0"})


def _metrics(step_s: float, chance: random.Random) -> dict[str, Metric]:
    timed = {"step_s": step_s, "wall_s": 200 * step_s}
    known = {name: Metric(value, "s", (value * 0.99, value * 1.01), 5, value) for name, value in timed.items()}
    return {**known, **{name: Metric(chance.random(), None, None, 1) for name in _MORE}}


def _finding(category: str, chance: random.Random) -> dict[str, object]:
    told = {"rule": "where_the_time_goes", "category": category, "severity": "minor"}
    return {**told, "cost_pct": round(20 * chance.random(), 1), "title": f"The main thread is in {category}"}


def shown_s(*words: str) -> float:
    """How long `profrun history` takes from its start to its end: the best of three."""
    return min(_once(words) for _ in range(3))


def _once(words: tuple[str, ...]) -> float:
    argv = [sys.executable, "-m", "orchestrator", "history", *words]
    began = time.perf_counter()
    subprocess.run(argv, cwd=REPO, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        names = history_rows(n, place)
        size_mb = (Path(place) / store.FILE).stat().st_size / 1e6
        print(f"{n} nights of {len(names)} names: made in {time.perf_counter() - began:.1f} s, {size_mb:.0f} MB")
        views = {"history": (), "history NAME": (names[0],), "history NAME --last 1000": (names[0], "--last", "1000")}
        took = {what: shown_s("-o", place, *words) for what, words in views.items()}
    for what, seconds in took.items():
        print(f"profrun {what:26} {seconds:.2f} s {'' if seconds <= LIMIT_S else 'MORE THAN ' + str(LIMIT_S)}".rstrip())
    return int(max(took.values()) > LIMIT_S)


if __name__ == "__main__":
    sys.exit(main())
