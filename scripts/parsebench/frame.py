"""What a benchmark of a parser consists of, and how its sides are measured: as fresh processes, in turns."""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
GENERATORS = REPO.parent / "shared" / "bench"
PYTHON = str(REPO / ".venv" / "bin" / "python")
MODULES = ("nsys", "kineto", "strace", "folded")
MOST_GROWTH = 11.0
"""How much longer an input of ten times the size may take."""

Results = dict[str, Any]
Look = Callable[[], Results]
Reader = Callable[[Path], Look]


class Unable(Exception):
    """Why something can't be measured here, in one sentence."""


@dataclass(frozen=True)
class Ours:
    """One of our readers, with its goals. `what`: what it reads the input for."""

    what: str
    read: Reader
    times_faster: float
    most_rss_bytes: int | None = None


@dataclass(frozen=True)
class Input:
    """A file that is read by our readers and by a peer. `full_size` is that at scale 1, such as `500 MB`."""

    name: str
    full_size: str
    file_name: str
    generate: Callable[[Path, float], None]
    peer_name: str
    peer: Reader
    ours: tuple[Ours, ...]


def inputs(modules: Sequence[str]) -> list[Input]:
    """Those of the modules, in the order of the table."""
    return [one for name in modules for one in importlib.import_module(f"parsebench.{name}").INPUTS]


def generated(script: str, *words: object) -> None:
    """Runs one of the shared generators."""
    path = GENERATORS / script
    if not path.is_file():
        raise Unable(f"the generator {script} is not there: it is expected in {GENERATORS}")
    done = subprocess.run([PYTHON, path, *map(str, words)], capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"{script} failed: {_last_line(done.stderr)}")


def digest(rows: Iterable[Iterable[Any]]) -> int:
    """A number that is equal for equal rows, in any order; all sides hash with the same seed."""
    return sum(hash(tuple("None" if value is None else value for value in row)) for row in rows) % (1 << 64)


def differing(ours: Results, theirs: Results) -> list[str]:
    """The names of the peer's results that ours lack, or give differently."""
    return [name for name, value in theirs.items() if name not in ours or not _equal(ours[name], value)]


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)


# ---------------------------------------------------------------- a process


@dataclass(frozen=True)
class Run:
    """One process: `wall_s` from its start until its summaries are there, `cpu_s` and `rss_bytes` (of the largest, if
    it has children) until then."""

    wall_s: float
    cpu_s: float
    rss_bytes: int
    results: Results


def run(reader: Reader, path: Path, peer_path: Path | None) -> Run:
    """A reader in a fresh process. Raises Unable when it fails."""
    searched = [REPO / "scripts", REPO, *([peer_path.resolve()] if peer_path else [])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, searched)), "PYTHONHASHSEED": "0"}
    name = f"{reader.__module__}:{reader.__name__}"
    with tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        argv = [PYTHON, "-m", "parsebench", name, str(path)]
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout
            costs = process.stdout.readline()
            wall_s = time.perf_counter() - started
            results = process.stdout.read()
        if process.returncode:
            errors.seek(0)
            raise Unable(f"{name} failed: {_last_line(errors.read())}")
    cpu_s, rss_kib = json.loads(costs)
    return Run(wall_s, cpu_s, rss_kib << 10, json.loads(results))


def serve(name: str, path: Path) -> None:
    """The other end of `run`: reads, says what it has cost, and shows the results."""
    module, _, function = name.partition(":")
    # whatever a reader prints goes where it does no harm
    with contextlib.redirect_stdout(sys.stderr):
        look = getattr(importlib.import_module(module), function)(path)
        spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        # not its own ru_maxrss, which begins with that of the process that has started it
        own_kib = int(re.findall(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())[0])
    cpu_s = sum(one.ru_utime + one.ru_stime for one in spent)
    print(json.dumps([cpu_s, max(own_kib, spent[1].ru_maxrss)]), flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        results = json.dumps(look())
    print(results)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


# ---------------------------------------------------------------- an input


@dataclass
class Measured:
    """The runs of one reader on one file, and of what it is compared with (on the same, in the same turn)."""

    runs: list[Run] = field(default_factory=list)

    @property
    def wall_s(self) -> float:
        return statistics.median(run.wall_s for run in self.runs)

    @property
    def cpu_s(self) -> float:
        return statistics.median(run.cpu_s for run in self.runs)

    @property
    def rss_bytes(self) -> int:
        return max(run.rss_bytes for run in self.runs)

    @property
    def results(self) -> Results:
        return self.runs[-1].results

    def longer(self, other: Measured) -> float:
        """How many times longer: the median of the pairs, as what is measured in turns has had the same luck."""
        return statistics.median(a.wall_s / b.wall_s for a, b in zip(self.runs, other.runs, strict=True))


@dataclass(frozen=True)
class Row:
    """A line of the table; `missed` is about its goals."""

    cells: tuple[str, ...]
    missed: bool = False


HEADINGS = ("", "compared with", "wall", "CPU", "ratio", "goal", "peak RSS", "goal", "results")


def measured(one: Input, folder: Path, scale: float, turns: int, peer_path: Path | None) -> Iterator[Row]:
    """The rows of an input: the peer, and for each of our readers one against it, and one against a tenth of the size.

    Files that are in the folder already are taken as they are."""
    whole, tenth = (_made(one, folder, share) for share in (scale, scale / 10))
    peer, ours, small = Measured(), [Measured() for _ in one.ours], [Measured() for _ in one.ours]
    for _ in range(turns):
        peer.runs.append(run(one.peer, whole, peer_path))
        for reader, large_runs, small_runs in zip(one.ours, ours, small, strict=True):
            large_runs.runs.append(run(reader.read, whole, peer_path))
            small_runs.runs.append(run(reader.read, tenth, peer_path))
    size = f"{whole.stat().st_size / 1e6:,.0f} MB"
    yield Row((f"{one.name}, {size}: {one.peer_name}", "", *_costs(peer), "", "", _mb(peer.rss_bytes), "", ""))
    for reader, large_runs, small_runs in zip(one.ours, ours, small, strict=True):
        yield _against_peer(reader, large_runs, one.peer_name, peer)
        yield _against_tenth(large_runs, small_runs, whole.stat().st_size / tenth.stat().st_size)


def _made(one: Input, folder: Path, scale: float) -> Path:
    place = folder / f"{one.name}-{scale:g}"
    path = place / one.file_name
    if not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        print(f"making {one.name} at {scale:g} of {one.full_size}", file=sys.stderr)
        one.generate(path, scale)
    with path.open("rb") as file:
        while file.read(1 << 24):  # into the page cache, for all sides alike
            pass
    return path


def _against_peer(reader: Ours, ours: Measured, peer_name: str, peer: Measured) -> Row:
    times = peer.longer(ours)
    differences = differing(ours.results, peer.results)
    slow = times < reader.times_faster
    large = reader.most_rss_bytes is not None and ours.rss_bytes > reader.most_rss_bytes
    limit = "" if reader.most_rss_bytes is None else f"{_verdict(large)}: at most {_mb(reader.most_rss_bytes)}"
    goal = f"{_verdict(slow)}: at least {reader.times_faster:g}x"
    same = f"DIFFER: {', '.join(differences)}" if differences else f"{len(peer.results)} equal"
    cells = (f"  {reader.what}", peer_name, *_costs(ours), f"{times:.1f}x faster", goal, _mb(ours.rss_bytes), limit)
    return Row((*cells, same), slow or large or bool(differences))


def _against_tenth(large: Measured, small: Measured, sizes: float) -> Row:
    """How much longer ten times the size takes. The two files may differ by a little more or less than that."""
    growth = large.longer(small) * 10 / sizes
    goal = f"{_verdict(growth > MOST_GROWTH)}: at most {MOST_GROWTH:g}x"
    cells = ("    grows by", "a tenth of it", *_costs(small), f"{growth:.1f}x longer", goal, _mb(small.rss_bytes))
    return Row((*cells, "", ""), growth > MOST_GROWTH)


def _costs(measured: Measured) -> tuple[str, str]:
    return f"{measured.wall_s:.2f} s", f"{measured.cpu_s:.2f} s"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _verdict(missed: bool) -> str:
    return "MISSED" if missed else "met"
