"""Ranks that are made up: their steps, what they do in each, and the report of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.folder import Folder
from orchestrator.locating import ranks
from orchestrator.model import Capture, Exit, Outcome, PassRecord, RankSeen, TargetRun
from orchestrator.report import Report, RunInfo, TableInfo
from orchestrator.tables import Table

NOW = 1_800_000_000_000_000_000
MS = 1_000_000
STEP = 100 * MS
CAPTURE = "p01-torch"
Work = Callable[[int, int], int]
"""What a rank has to do itself in a step, in ns."""


def steps(rank: int, count: int, data: Work = lambda rank, step: 5 * MS, pid: int | None = None) -> Table:
    """Steps of equal length, the first two of them warm-up."""
    pid = 100 + rank if pid is None else pid
    rows = [(rank, pid, "train", n, NOW + n * STEP, STEP, data(rank, n), STEP // 2, n < 2, False) for n in range(count)]
    names = ("rank", "pid", "kind", "step", "start_ns", "duration_ns", "data_wait_ns", "cpu_ns", "warmup", "profiled")
    return Table.of("steps", rows, names, clock="epoch", clock_error_ns=100_000).with_capture(CAPTURE)


def operators(rank: int, count: int, work: Work) -> Table:
    """In each step an operator for as long as the rank has to do, then a collective until its end; the collective has
    begun beside the last 10 ms of the operator."""
    rows = []
    for n in range(count):
        own = work(rank, n)
        rows.append((100 + rank, NOW + n * STEP, own, "aten::mm", "op"))
        rows.append((100 + rank, NOW + n * STEP + own - 10 * MS, STEP - own + 10 * MS, "gloo:all_reduce", "op"))
        rows.append((100 + rank, NOW + n * STEP, STEP, "ProfilerStep#1", "range"))
    made = Table.of("op_spans", rows, ("pid", "start_ns", "duration_ns", "name", "kind"), clock="epoch")
    return replace(made, columns={**made.columns, "thread": made.columns["pid"]}).with_capture(CAPTURE)


def seen(rank: int, **more: Any) -> RankSeen:
    return RankSeen(rank, rank, pid=100 + rank, **{"exit": Exit(0), **more})


def record(ranks_: Sequence[RankSeen], expected: int | None = None, **more: Any) -> PassRecord:
    run = TargetRun(
        ("torchrun", "train.py"), 1, NOW, NOW + STEP, 1.0, Exit(0), ranks=tuple(ranks_), ranks_expected=expected
    )
    return PassRecord("p01", "profiled", ("torch",), run=run, **more)


def tables(
    count: int,
    work: Work | None,
    many: int = 20,
    data: Work = lambda rank, step: 5 * MS,
    told: PassRecord | None = None,
) -> dict[str, list[Table]]:
    """The tables `steps`, `ranks`, `rank_steps` of so many ranks and steps; work None: nothing tells it."""
    parts: dict[str, list[Table]] = {"steps": [steps(rank, many, data) for rank in range(count)]}
    parts["op_spans"] = [operators(rank, many, work) for rank in range(count)] if work else []
    passes = [told or record([seen(rank) for rank in range(count)])]
    captures = [Capture(CAPTURE, "p01", "torch", "ok", run=passes[0].run)]
    parts |= ranks.located(parts, captures, passes)
    for name in ranks.TABLES:
        parts.setdefault(name, [])
    return {"steps": parts["steps"], **ranks.together(parts, captures, passes)}


def report(
    folder: Path, made: dict[str, list[Table]], told: PassRecord | None = None, collector: str = "torch"
) -> Report:
    """A report with these tables."""
    written = {n: TableInfo(f"tables/{n}.parquet", Folder(folder).write_table(n, parts)) for n, parts in made.items()}
    info = RunInfo("r", "r", "2027-01-15T08:00:00Z", 1.0, ("torchrun",), "/", "1")
    passes = (told or record([]),)
    captures = (Capture(CAPTURE, "p01", collector, "ok", run=passes[0].run),)
    return Report(info, Outcome("ok", 0, ""), {}, passes=passes, captures=captures, tables=written, folder=folder)
