"""Reports of a made-up training job, with planted differences and planted noise: what a comparison is tried on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from orchestrator import stats, tables
from orchestrator.model import Capture, Exit, Finding, Metric, Outcome, PassRecord, StepRecord, TargetRun, Tool
from orchestrator.report import Report, RunInfo, TableInfo, load, summary
from orchestrator.tables import Table

EPOCH_NS = 1_790_000_000_000_000_000
PID = 100
FILE = "/home/ada/job/train.py"
PLAN = """version: 1
name: job
target: {command: [python, train.py], env: {}, inject: true}
window: null
environment: []
collectors:
- {use: timing, repeats: 5, warmup: 1}
- {use: py-spy, rate: 100Hz, native: true}
"""
MACHINE: Mapping[str, Any] = {
    "hostname": "node-17",
    "os": "Debian GNU/Linux 12",
    "kernel": "6.1.0-18-amd64",
    "architecture": "x86_64",
    "cpu": {
        "model": "AMD EPYC 7763",
        "logical": 16,
        "usable": 16,
        "physical": 8,
        "governor": "performance",
        "smt": "on",
    },
    "memory_bytes": 67_430_000_000,
    "gpus": [],
    "container": None,
    "load_average": [0.3, 0.2, 0.1],
    "target": {"python": "3.11.7", "torch": "2.13.0+cpu"},
    "environment_variables": {"PATH": "/usr/bin"},
}
FUNCTIONS: Mapping[str, float] = {"train_step": 5.0, "tokenize": 3.0, "augment": 1.5, "log": 0.5}
"""The usual step, in ms by function."""


@dataclass(frozen=True)
class Job:
    """What is made. ms: of each function; kernels: (count a step, us each, grid); ops, calls: (count a step, us
    each)."""

    ms: Mapping[str, float] = field(default_factory=lambda: dict(FUNCTIONS))
    runs: int = 5
    steps: int = 80
    run_noise: float = 0.01
    """Relative standard deviation of the runs."""
    step_noise: float = 0.05
    """Of the steps of one run, each leaning on the one before."""
    contended: float = 0.0
    """The share of the steps, in one run more and in another less, that a neighbour makes 1.6 times as long: some tens
    of them in a row."""
    slowdown: float | None = None
    """Of the passes under a tool, by their steps."""
    has_steps: bool = True
    kernels: Mapping[str, tuple[float, float, str]] = field(default_factory=dict)
    ops: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    calls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of the thread that makes the steps."""
    calls_elsewhere: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of another thread."""
    findings: tuple[Finding, ...] = ()
    environment: tuple[StepRecord, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=lambda: dict(MACHINE))
    file: str = FILE
    plan: str = PLAN
    status: Any = "ok"
    """Of py-spy's capture."""
    exit_code: int = 0

    @property
    def step_ms(self) -> float:
        return sum(self.ms.values())

    def with_ms(self, **ms: float) -> Job:
        return replace(self, ms={**self.ms, **ms})

    def on(self, **machine: Any) -> Job:
        return replace(self, machine={**self.machine, **machine})


def with_table(report: Report, table: Table) -> Report:
    """The report, with one table more."""
    path = report.folder / "tables" / f"{table.name}.parquet"
    pq.write_table(tables.arrow(table.name, [table]), path)
    return replace(report, tables={**report.tables, table.name: TableInfo(f"tables/{table.name}.parquet", len(table))})


def make(folder: Path, job: Job | None = None, seed: int = 1) -> Report:
    """The report of one job, in `folder`; other seeds have other luck. As a reader loads it."""
    job, chance = job or Job(), np.random.default_rng(seed)
    made = _Made(job, folder, chance)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.yaml").write_text(job.plan)
    report = made.report(f"job-20260921T101320Z-{seed:04d}")
    from orchestrator.folder import Folder

    Folder(folder).write_json("summary.json", summary(report))
    return load(folder)


class _Made:
    def __init__(self, job: Job, folder: Path, chance: np.random.Generator) -> None:
        self.job, self.folder, self.chance = job, folder, chance
        self.parts: dict[str, list[Table]] = {}
        self.usual_ms: list[float] = []

    def report(self, id_: str) -> Report:
        job = self.job
        passes, captures = [], []
        for number in range(1, job.runs + 1):
            passes.append(self._pass(f"p{number:02d}", "bare", ("timing",), number))
            captures.append(Capture(f"p{number:02d}-timing", f"p{number:02d}", "timing", "ok"))
        for use in ("py-spy", *(["nsys"] if job.kernels else []), *(["torch"] if job.ops else []), *self._strace()):
            record = self._pass(f"p{len(passes) + 1:02d}", "profiled", (use,), 1)
            passes.append(record)
            captures.append(self._capture(record, use))
        return Report(
            RunInfo(id_, "job", "2026-09-21T10:13:20Z", 60.0, ("python", "train.py"), "/home/ada/job", "0.1.0"),
            Outcome("ok", 0, "", job.exit_code),
            machine=job.machine,
            environment=job.environment,
            passes=tuple(passes),
            captures=tuple(captures),
            tables={name: self._written(name, parts) for name, parts in self.parts.items()},
            metrics={**self._metrics(passes), **job.metrics},
            findings=job.findings,
            folder=self.folder,
        )

    def _strace(self) -> list[str]:
        return ["strace"] if self.job.calls else []

    def _written(self, name: str, parts: Sequence[Table]) -> TableInfo:
        path = self.folder / "tables" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(tables.arrow(name, parts), path)
        return TableInfo(f"tables/{name}.parquet", sum(map(len, parts)))

    def _metrics(self, passes: Sequence[PassRecord]) -> dict[str, Metric]:
        walls = [p.run.wall_s for p in passes if p.role == "bare" and p.run]
        return {"wall_s": stats.describe(walls, "s"), "step_s": stats.describe([m / 1e3 for m in self.usual_ms], "s")}

    # ------------------------------------------------------------ passes and their steps

    def _pass(self, id_: str, role: Any, uses: tuple[str, ...], repeat: int) -> PassRecord:
        job, luck = self.job, float(math.exp(self.chance.normal(0, self.job.run_noise)))
        lean = np.zeros(job.steps)
        for place in range(1, job.steps):
            lean[place] = 0.8 * lean[place - 1] + 0.6 * self.chance.normal(0, job.step_noise)
        durations = (job.step_ms * luck * np.exp(lean) * 1e6 * self._contention()).astype(int)
        start_ns = EPOCH_NS + 10**12 * repeat + 10**9
        starts = start_ns + np.concatenate(([0], np.cumsum(durations)[:-1]))
        if job.has_steps:
            self._steps(f"{id_}-{uses[0]}", starts, durations)
        if role == "bare":
            self.usual_ms.append(float(durations.mean()) / 1e6)
        wall_s = 1.0 + float(durations.sum()) / 1e9
        run = TargetRun(
            ("python", "train.py"), PID, start_ns - 10**9, int(starts[-1] + durations[-1]), wall_s,
            Exit(job.exit_code), user_s=wall_s * 0.9, sys_s=wall_s * 0.05, max_rss_bytes=350_000_000,
        )  # fmt: skip
        slowdown = None if role == "bare" else job.slowdown
        return PassRecord(id_, role, uses, repeat, run, step_slowdown=slowdown)

    def _contention(self) -> Any:
        if not self.job.contended:
            return 1.0
        share = min(0.9, self.job.contended * float(self.chance.uniform(0.2, 1.8)))
        spells = self.chance.random(self.job.steps // 20 + 1) < share
        return np.where(np.repeat(spells, 20)[: self.job.steps], 1.6, 1.0)

    def _steps(self, capture: str, starts: Any, durations: Any) -> None:
        count = len(starts)
        columns = {
            "pid": [PID] * count,
            "tid": [PID] * count,
            "kind": ["train"] * count,
            "step": list(range(count)),
            "start_ns": starts.tolist(),
            "duration_ns": durations.tolist(),
            "data_wait_ns": (durations * self.job.ms.get("tokenize", 0.0) / self.job.step_ms).astype(int).tolist(),
            "cpu_ns": (self.job.step_ms * np.exp(self.chance.normal(0, 0.005, count)) * 1e6).astype(int).tolist(),
            "warmup": [place < 3 for place in range(count)],
            "profiled": [False] * count,
        }
        self.parts.setdefault("steps", []).append(Table("steps", columns, clock="epoch").with_capture(capture))

    # ------------------------------------------------------------ what the tools saw

    def _capture(self, record: PassRecord, use: str) -> Capture:
        capture = Capture(
            f"{record.id}-{use}", record.id, use, "ok", tool=Tool(use, f"/usr/bin/{use}"), run=record.run,
            options={"rate": "100Hz", "native": True} if use == "py-spy" else {},
        )  # fmt: skip
        {"py-spy": self._samples, "nsys": self._kernels, "torch": self._ops, "strace": self._calls}[use](capture)
        return replace(capture, status=self.job.status) if use == "py-spy" else capture

    def _add(self, name: str, capture: Capture, columns: Mapping[str, Sequence[Any]]) -> None:
        self.parts.setdefault(name, []).append(Table(name, columns).with_capture(capture.id))

    def _samples(self, capture: Capture) -> None:
        """One every 10 ms from the first step to the last; neighbours in time are often the same."""
        run, names = capture.run, list(self.job.ms)
        assert run is not None
        first_ns, last_ns = run.started_ns + 10**9, run.ended_ns
        times = np.arange(first_ns, last_ns, 10_000_000)
        shares = np.array(list(self.job.ms.values())) / self.job.step_ms
        drawn = self.chance.choice(len(names), len(times), p=shares)
        stacks = [self._stack(names[place]) for place in drawn]
        same = [PID] * len(times)
        self._add("stack_spans", capture, {
            "pid": same, "tid": same, "thread": ["MainThread"] * len(times), "start_ns": times.tolist(),
            "duration_ns": [10_000_000] * len(times), "stack": stacks,
        })  # fmt: skip
        self._add("host_time", capture, {
            "pid": [PID], "tid": [PID], "thread": ["MainThread"], "role": ["main"], "part": ["steady"],
            "state": ["native"], "function": ["train_step"], "file": [self.job.file],
            "samples": [len(times)], "total_ns": [int(last_ns - first_ns)],
        })  # fmt: skip

    def _stack(self, function: str) -> str:
        file = self.job.file
        return f"<module> ({file}:90);main ({file}:80);{function} ({file}:{10 * len(function)});mm (libtorch_cpu.so)"

    def _kernels(self, capture: Capture) -> None:
        steps, names = self.job.steps - 3, list(self.job.kernels)
        noise = {name: float(np.exp(self.chance.normal(0, 0.005))) for name in names}
        total = [int(steps * n * us * 1e3 * noise[name]) for name, (n, us, _) in self.job.kernels.items()]
        self._add("gpu_work", capture, {
            "device": [0] * len(names), "part": ["window"] * len(names), "kind": ["kernel"] * len(names),
            "name": names, "count": [int(steps * n) for n, _, _ in self.job.kernels.values()], "total_ns": total,
        })  # fmt: skip
        self._add("gpu_time", capture, {"device": [0], "state": ["busy"], "total_ns": [sum(total)], "steps": [steps]})
        grids = [grid for _, _, grid in self.job.kernels.values()]
        self._add("gpu_kernels", capture, {"name": names, "grid": grids, "block": ["256,1,1"] * len(names)})

    def _ops(self, capture: Capture) -> None:
        names, steps = ["ProfilerStep*", *self.job.ops], 10
        rows = [(1.0, 0.0), *self.job.ops.values()]
        self._add("torch_ops", capture, {
            "name": names, "device": ["cpu"] * len(names), "count": [int(steps * n) for n, _ in rows],
            "cpu_self_ns": [int(steps * n * us * 1e3) for n, us in rows],
        })  # fmt: skip

    def _calls(self, capture: Capture) -> None:
        own, other = self.job.calls, self.job.calls_elsewhere
        names, steps = [*own, *other], self.job.steps
        rows = [*own.values(), *other.values()]
        self._add("syscalls", capture, {
            "pid": [PID] * len(names), "thread": [PID] * len(own) + [PID + 1] * len(other),
            "name": names, "count": [int(steps * n) for n, _ in rows],
            "total_ns": [int(steps * n * us * 1e3) for n, us in rows], "time": ["wall"] * len(names),
        })  # fmt: skip
