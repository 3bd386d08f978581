"""Many ranks in one report: how long `profrun report` takes, and how much memory, beside as many reports of one rank.

The runs are made up as a job on as many hosts leaves them, a process and a GPU on each: an export of nsys a rank, with
its kernels, calls, copies and collectives, and the steps that profrun's own part has counted. Four kinds of ranks take
turns, of which the last is slower than the others: what each file holds is computed once, and linked to where it is
needed."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

REPO = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPO))
import benchhistory  # noqa: E402 - beside this file

from orchestrator.folder import fingerprint  # noqa: E402 - the checkout need not be installed
from orchestrator.inject import steps as layout  # noqa: E402
from orchestrator.inject.mapped import HEAD_BYTES  # noqa: E402
from orchestrator.model import Artifact, Capture, Exit, PassRecord, RankSeen, TargetRun, Task  # noqa: E402

RANKS, KERNELS = 64, 1_000_000
NIGHTS = 10_000
MOST_WALL, MOST_RSS = 0.6, 3.0
"""Of the sum of the reports of one rank each; of the largest of these."""
HEADINGS = ("", "one rank", "all in one report", "ratio", "goal")
EPOCH_NS = 1_790_000_000_000_000_000
PID = 4711
STEP_KERNELS = 2_000
"""Of which the last COLLECTIVES are those that wait for the other ranks."""
COLLECTIVES = 20
LATE_NS = 3_000_000
"""By so much the slower kind of ranks is late in each step."""
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT);
CREATE TABLE EXPORT_META_DATA (name TEXT NOT NULL, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
 demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL,
 gridX INTEGER NOT NULL, gridY INTEGER NOT NULL, gridZ INTEGER NOT NULL, blockX INTEGER NOT NULL,
 blockY INTEGER NOT NULL, blockZ INTEGER NOT NULL, staticSharedMemory INTEGER NOT NULL,
 dynamicSharedMemory INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL,
 contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER,
 bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL,
 globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
"""
KINDS = 4


# ---------------------------------------------------------------- what a rank leaves


@dataclass(frozen=True)
class Kind:
    """Ranks that are alike: their files, and when their steps begin and end."""

    export: Path
    steps: Path
    sha256: str
    ends_ns: int


def kind(folder: Path, number: int, kernels: int) -> Kind:
    """Computes what a rank leaves. In all kinds steps are equally long: who comes first waits in the collectives."""
    rng, alike = np.random.default_rng(number + 1), np.random.default_rng(0)
    steps = max(12, kernels // STEP_KERNELS)
    names = [f"void layer_{n % 80}::kernel<float, {n}>(float const*, float*, int)" for n in range(300)]
    names += [f"ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>) [{n}]" for n in range(3)]
    work = STEP_KERNELS - COLLECTIVES
    chosen = np.append(alike.integers(0, 300, work), 300 + alike.integers(0, 3, COLLECTIVES))
    usual = np.exp(alike.normal(np.log(9_000), 0.8, work))
    late = LATE_NS if number == KINDS - 1 else 0
    step_ns = int(usual.sum() * 1.3 + work * 1_500 + 2 * LATE_NS)
    starts, lengths = [], []
    for step in range(steps):
        took = np.append(usual * (1 + late / usual.sum()) * np.exp(rng.normal(0, 0.02, work)), np.zeros(COLLECTIVES))
        begin = np.append(np.cumsum(took[:work] + 1_500) - took[:work], np.zeros(COLLECTIVES))
        done = begin[work - 1] + took[work - 1] + 1_500
        wait = step_ns - 20_000 - done  # all leave the last collective together
        took[work:] = wait / COLLECTIVES - 500
        begin[work:] = done + np.arange(COLLECTIVES) * wait / COLLECTIVES
        starts.append(1_000_000_000 + step * step_ns + begin.astype(np.int64))
        lengths.append(np.maximum(took, 500).astype(np.int64))
    export = folder / f"kind{number}.sqlite"
    _export(export, np.concatenate(starts), np.concatenate(lengths), np.tile(chosen, steps), names)
    ends = EPOCH_NS + 1_000_000_000 + step_ns * (np.arange(steps + 1))
    log = folder / f"kind{number}.steps"
    log.write_bytes(_steps(ends.tolist()))
    return Kind(export, log, fingerprint(export), int(ends[-1]))


def _export(path: Path, start: Any, length: Any, name: Any, names: list[str]) -> None:
    gpid, count = PID << 24, len(start)
    strings = [*names, *(text.split("<")[0].removeprefix("void ") for text in names), "cudaLaunchKernel_v7000",
               "cudaMemcpyAsync_v3020"]  # fmt: skip
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path, isolation_level=None)
    database.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + SCHEMA + "BEGIN")

    def put(table: str, *columns: Any) -> None:
        size = next(len(column) for column in columns if isinstance(column, np.ndarray))
        rows = zip(*(c.tolist() if isinstance(c, np.ndarray) else [c] * size for c in columns), strict=True)
        database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(columns))})", rows)

    database.executemany("INSERT INTO StringIds VALUES (?,?)", enumerate(strings))
    serial = np.arange(count)
    grid = 1 + name % 97
    put("CUPTI_ACTIVITY_KIND_KERNEL", start, start + length, 0, 1, 7, serial, gpid, name, name + len(names), 32, grid,
        1, 1, 256, 1, 1, 0, 0)  # fmt: skip
    put("CUPTI_ACTIVITY_KIND_RUNTIME", start - 9_000, start - 5_000, 0, gpid | PID, serial, 2 * len(names), 0)
    copies = start[::50] + 100
    put("CUPTI_ACTIVITY_KIND_MEMCPY", copies, copies + 4_000, 0, 1, 13, count + serial[::50], gpid, 1 << 16, 1, 1, 2)
    put("CUPTI_ACTIVITY_KIND_RUNTIME", copies - 9_000, copies - 5_000, 0, gpid | PID, count + serial[::50],
        2 * len(names) + 1, 0)  # fmt: skip
    database.execute("INSERT INTO PROCESSES VALUES (?,?,'python')", (gpid, PID))
    database.execute("INSERT INTO TARGET_INFO_GPU VALUES (0,0,'NVIDIA H200')")
    database.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?,'','')", (EPOCH_NS,))
    database.execute("INSERT INTO EXPORT_META_DATA VALUES ('EXPORT_PRODUCT_VERSION','2025.3.1')")
    database.execute("COMMIT")
    database.close()


def _steps(ends_ns: list[int]) -> bytes:
    """A log of steps as profrun's part writes it; no phases, no CPU time."""
    offset_ns = ends_ns[0] - 1
    words = [layout.TRAIN << layout.CODE_BITS | layout.ANEW, 1 << layout.CODE_BITS | layout.START, 0]
    for end in ends_ns[1:]:
        words += [(end - offset_ns) << layout.CODE_BITS | layout.STEP, 0]
    head = layout.HEAD.pack(layout.MAGIC, offset_ns, -1).ljust(HEAD_BYTES, b"\0")
    return head + struct.pack(f"<{len(words)}q", *words) + bytes(8)


# ---------------------------------------------------------------- a run of many


def run_folder(place: Path, kinds: list[Kind], ranks: list[int]) -> Path:
    """The folder of a run as it is before it is read: raw/ and the plan. Files are linked."""
    tasks, captures = [], []
    for number, rank in enumerate(ranks):
        like, host = kinds[rank % len(kinds)], f"n{rank}"
        where = f"{host}.r{number}"
        target = place / "raw" / f"p01-target@{where}" / "python"
        own = place / "raw" / f"p01-nsys@{where}"
        target.mkdir(parents=True)
        own.mkdir()
        os.link(like.export, own / "report.sqlite")
        os.link(like.steps, target / f"{PID}.0.steps")
        told = {"event": "start", "time_ns": EPOCH_NS, "rank": number, "program": ["train.py"]}
        (target / f"{PID}.0.diary").write_text(repr(told) + "\n")
        seen = RankSeen(number, 0, len(ranks), host, PID, EPOCH_NS, like.ends_ns, Exit(0))
        run = TargetRun(("python", "train.py"), PID, EPOCH_NS, like.ends_ns, 1.0, Exit(0), ranks=(seen,))
        tasks.append(Task(number, host, host, number, where, (number,), run, None, 0, EPOCH_NS, 50_000))
        file = own / "report.sqlite"
        kept = Artifact("sqlite", str(file.relative_to(place)), "sqlite", file.stat().st_size, like.sha256, 0)
        captures.append(Capture(
            f"p01-nsys@{where}", "p01", "nsys", "ok", artifacts=(kept,), options={"use": "nsys"}, rank=number,
            host=host, started_ns=EPOCH_NS, ended_ns=like.ends_ns,
        ))  # fmt: skip
    whole = TargetRun(("srun", "python", "train.py"), 1, EPOCH_NS, EPOCH_NS + 10**9, 1.0, Exit(0))
    record = PassRecord("p01", "profiled", ("nsys",), run=whole, tasks=tuple(tasks))
    _write_raw(place, record, captures)
    return place


def _write_raw(place: Path, record: PassRecord, captures: list[Capture]) -> None:
    from orchestrator.report import capture_record
    from orchestrator.runner import RAW_SCHEMA

    run = {
        "id": place.name, "name": "scale", "started_at": "2026-09-21T10:13:20Z", "duration_s": 1.0,
        "command": ["srun", "python", "train.py"], "cwd": "/", "profrun_version": "1",
    }  # fmt: skip
    raw = {
        "schema": RAW_SCHEMA, "run": run, "machine": {}, "environment": [], "environment_failed": False,
        "interrupted_by": None, "strict": False, "verify_repeatable": False, "passes": [asdict(record)],
        "captures": [capture_record(one) for one in captures],
    }  # fmt: skip
    (place / "raw" / "run.json").write_text(json.dumps(raw))
    plan = "version: 1\nname: scale\ntarget: {command: [srun, python, train.py]}\ncollectors: [{use: nsys}]\n"
    (place / "plan.yaml").write_text(plan)


# ---------------------------------------------------------------- how it is measured


@dataclass(frozen=True)
class Cost:
    """What a report has cost: time, and the largest memory of all its processes together at one time."""

    wall_s: float
    rss_bytes: int


def report(folder: Path) -> Cost:
    """Makes the report from raw/ by a fresh process."""
    started = time.perf_counter()
    argv = [sys.executable, "-m", "orchestrator", "report", str(folder)]
    done = subprocess.Popen(argv, cwd=REPO, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch = _Watch(done.pid)
    _, said = done.communicate()
    wall_s = time.perf_counter() - started
    peak = watch.stop()
    if done.returncode:
        raise RuntimeError(f"profrun report ended with {done.returncode}: {said.decode(errors='replace')[-500:]}")
    return Cost(wall_s, peak)


class _Watch(threading.Thread):
    """Looks at the memory of a process and all below it; what they share counts once."""

    EVERY_S = 0.1

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self._end = pid, 0, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._end.wait(self.EVERY_S):
            self.peak = max(self.peak, sum(map(_pss, _tree(self.pid))))

    def stop(self) -> int:
        self._end.set()
        self.join()
        return self.peak


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in below:
        yield from _tree(int(child))


def _pss(pid: int) -> int:
    """Its part of the memory that it uses."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def measured(scratch: Path, scale: float, ranks: int, times: int) -> tuple[list[tuple[str, ...]], bool]:
    """The rows of the table, and whether all goals were met."""
    kinds = [kind(scratch, number, round(KERNELS * scale)) for number in range(KINDS)]
    single = {}
    for number in range(min(KINDS, ranks)):
        costs = [report(run_folder(scratch / f"one{number}-{n}", kinds, [number])) for n in range(times)]
        single[number] = Cost(statistics.median(c.wall_s for c in costs), max(c.rss_bytes for c in costs))
        for n in range(times):
            shutil.rmtree(scratch / f"one{number}-{n}")
    whole = report(folder := run_folder(scratch / "all", kinds, list(range(ranks))))
    check(folder, ranks)
    summed_s = sum(single[rank % len(single)].wall_s for rank in range(ranks))
    each = max(one.rss_bytes for one in single.values())
    wall, rss = whole.wall_s / summed_s, whole.rss_bytes / each
    usual = statistics.mean(one.wall_s for one in single.values())
    rows = [
        (f"{ranks} ranks, {round(KERNELS * scale):,} kernels each: wall", f"{usual:.1f} s (sum {summed_s:.0f} s)",
         f"{whole.wall_s:.1f} s", f"{wall:.2f}", _goal(wall, MOST_WALL)),
        ("  peak of all processes", f"{each / 1e9:.2f} GB", f"{whole.rss_bytes / 1e9:.2f} GB", f"{rss:.2f}",
         _goal(rss, MOST_RSS)),
    ]  # fmt: skip
    return rows, wall <= MOST_WALL and rss <= MOST_RSS


def _goal(value: float, most: float) -> str:
    return f"{'met' if value <= most else 'MISSED'}: at most {most:g}x"


def check(folder: Path, ranks: int) -> None:
    """That the report is whole: every rank with every kernel, and the slow ones named."""
    summary = json.loads((folder / "summary.json").read_text())
    bad = [one for one in summary["captures"] if one["status"] != "ok"]
    if bad:
        raise RuntimeError(f"{len(bad)} captures are not ok: {bad[0]['id']}: {bad[0]['reason']}")
    rows = {name: info["rows"] for name, info in summary["tables"].items()}
    if ranks > 1 and rows.get("ranks") != ranks:
        raise RuntimeError(f"{rows.get('ranks')} ranks in the report instead of {ranks}")


def history(scratch: Path, nights: int) -> tuple[list[tuple[str, ...]], bool]:
    """The same of a history of very many nights."""
    names = benchhistory.history_rows(nights, scratch)
    took = {words: benchhistory.shown_s("-o", str(scratch), *words) for words in ((), (names[0],))}
    most = benchhistory.LIMIT_S
    rows = [
        (f"profrun history{' NAME' * len(words)}, {nights:,} nights", "", f"{took_s:.2f} s", "",
         f"{'met' if took_s <= most else 'MISSED'}: at most {most:g} s")
        for words, took_s in took.items()
    ]  # fmt: skip
    return rows, max(took.values()) <= most


def run(options: Any) -> tuple[list[tuple[str, ...]], bool]:
    """As the options of scripts/bench say."""
    with tempfile.TemporaryDirectory(prefix="profrun-bench-", dir=options.keep) as scratch:
        rows, good = measured(Path(scratch), options.scale, options.ranks, options.n or 1)
    with tempfile.TemporaryDirectory(prefix="profrun-bench-") as scratch:
        more, soon = history(Path(scratch), round(NIGHTS * options.scale))
    return [*rows, *more], good and soon
