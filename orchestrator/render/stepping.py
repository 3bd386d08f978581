"""What is told of the steps of a program: which run is shown, what a steady step takes, and what stalls cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import steps
from orchestrator.render import view

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import Role
    from orchestrator.report import Report

SHOWN = 4
"""Of so many processes the steps are drawn; of the others they are summarised."""

PHASES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "data": ("data wait", ("data_wait_ns",)),
    "forward": ("forward", ("forward_ns",)),
    "backward": ("backward", ("backward_ns",)),
    "optimizer": ("optimizer, zero_grad", ("optimizer_ns", "zero_grad_ns")),
    "checkpoint": ("checkpoint", ("checkpoint_ns",)),
    "evaluation": ("evaluation", ("evaluation_ns",)),
}
"""What a step is made of, in the order in which it is drawn, and the columns that are added up for it."""
OTHER = "other"
_ROLES: tuple[tuple[Role, str], ...] = (("bare", "bare run"), ("warmup", "warm-up run"), ("profiled", "profiled pass"))
"""Whose steps are shown, the best first: those of a run at which nobody looked."""


@dataclass(frozen=True)
class Phase:
    """One phase of the steady steps of one process. What is None was never seen there."""

    key: str
    name: str
    mean_ns: float | None
    share: float | None
    """Of the time of all steady steps, 0 to 1."""
    longest_ns: float | None


@dataclass(frozen=True)
class Stalls:
    """Steps of one cause that took much longer than the others."""

    cause: str
    count: int
    period: int | None
    extra_ns: float
    """What they took beyond the median, in sum."""


@dataclass(frozen=True)
class Course:
    """The steps of one process in one run. `table`: the rows of `steps`, in order. Averages are None where no step is
    known to be steady."""

    name: str
    rank: int | None
    kind: str
    table: pandas.DataFrame
    warmup: int | None
    steady: int
    mean_ns: float | None
    median_ns: float | None
    total_ns: float
    """Of all steady steps."""
    phases: tuple[Phase, ...]
    stalls: tuple[Stalls, ...]
    cpus: float | None
    """CPU time of the whole process per time of its steady steps."""
    gpu_ns: float | None
    """Mean time between the CUDA events at a steady step's ends."""

    @property
    def count(self) -> int:
        return len(self.table)

    def nearly_all_ns(self, share: float) -> float:
        """Such a share of the steady steps takes no longer; 0 without any."""
        steady = self.table["duration_ns"][steady_rows(self.table)].astype("float64")
        return float(steady.quantile(share)) if len(steady) else 0.0

    def told(self) -> Iterator[str]:
        """What a reader should know of it, in sentences."""
        if bool(self.table["profiled"].all()):
            yield f"{self.count:,} steps, each of them looked at closely: there is no average."
            return
        if self.mean_ns is None:
            yield f"{self.count:,} steps, too few or too uneven to tell a warm-up from the rest: there is no average."
            return
        mean, median = (view.duration((ns or 0.0) / 1e9) for ns in (self.mean_ns, self.median_ns))
        yield (
            f"A steady step takes {mean} in the mean and {median} in the median: "
            f"{self.steady:,} of {self.count:,} steps{_first(self.warmup)}."
        )
        if self.stalls:
            yield self._stalled()
        if self.cpus is not None:
            yield f"The process kept {self.cpus:.1f} processors busy meanwhile."
        if self.gpu_ns is not None:
            yield f"Between the CUDA events at its ends lie {view.duration(self.gpu_ns / 1e9)} in the mean."

    def _stalled(self) -> str:
        count, extra_ns = sum(s.count for s in self.stalls), sum(s.extra_ns for s in self.stalls)
        causes = "; ".join(
            f"{s.cause} {s.count}" + (f", every {s.period} steps" if s.period else "") for s in self.stalls
        )
        return (
            f"{count:,} stall{'' if count == 1 else 's'} of at least {steps.STALL_FROM:g} times the median ({causes}): "
            f"beyond the median {'it' if count == 1 else 'they'} took {view.duration(extra_ns / 1e9)}, "
            f"{view.percent(extra_ns / self.total_ns)} of all steady steps."
        )


@dataclass(frozen=True)
class Stepping:
    """The steps of one run. `where`: which it is. `courses`: by rank, else by their start."""

    where: str
    runs: int
    """How many runs of that role have steps."""
    courses: tuple[Course, ...]

    @property
    def shown(self) -> tuple[Course, ...]:
        return self.courses[:SHOWN]

    def rest(self) -> str | None:
        """The processes that are not drawn, in one sentence."""
        means = sorted((c.mean_ns, c.name) for c in self.courses[SHOWN:] if c.mean_ns is not None)
        left = len(self.courses) - SHOWN
        if left <= 0:
            return None
        if not means:
            return f"{left} more processes made steps."
        (low, fast), (high, slow) = means[0], means[-1]
        ends = f"from {view.duration(low / 1e9)} ({fast}) to {view.duration(high / 1e9)} ({slow})"
        return f"{left} more processes made steps; their steady steps take {ends} in the mean."


def stepping(report: Report) -> Stepping | None:
    """The steps of the bare run whose mean step is the middle one; without bare runs, of what there is."""
    frame = report.table("steps")
    if frame is None or frame.empty:
        return None
    passes = {capture.id: capture.pass_id for capture in report.captures}
    frame = frame.assign(run=frame["capture"].map(lambda name: passes.get(name, name)))
    for role, words in _ROLES:
        runs = [p.id for p in report.passes if p.role == role and (frame["run"] == p.id).any()]
        if runs:
            found = {name: tuple(_courses(frame[frame["run"] == name])) for name in runs}
            name = _middle(found)
            return Stepping(f"{words} {name}", len(runs), found[name])
    return None


def line(report: Report, found: Stepping) -> str:
    """The steps in one line: their mean over the runs, of how many, and how many are warm-up."""
    metric = report.metrics.get("step_s")
    first = found.courses[0]
    if metric is None or metric.value is None:
        if first.mean_ns is None:
            return next(first.told()).removesuffix(".")
        return f"{view.duration(first.mean_ns / 1e9)}, mean of {_counts([first])} in the {found.where}"
    runs = _bare(report)
    each = f" in each of {len(runs)} runs" if len(runs) > 1 else ""
    every = len({course.name for course in found.courses})  # a rank that was started again is one
    of = "" if every == 1 else f"; {first.name} of {every} processes"
    return f"{view.figure('step_s', metric).value}, mean of {_counts(runs, each, of)}"


def _counts(runs: Sequence[Course], each: str = "", of: str = "") -> str:
    """186 steady steps in each of 3 runs (14 of 200 are warm-up)"""
    warm = _span([c.warmup or 0 for c in runs]) if any(c.warmup for c in runs) else "none"
    steady, count = _span([c.steady for c in runs]), _span([c.count for c in runs])
    return f"{steady} steady steps{each} ({warm} of {count} are warm-up{of})"


def _bare(report: Report) -> list[Course]:
    """The first process of each bare run, where it has steady steps."""
    frame, passes = report.table("steps"), {c.id: c.pass_id for c in report.captures}
    bare = {p.id for p in report.passes if p.role == "bare"}
    groups = [] if frame is None else frame.groupby("capture", sort=False)
    runs = [next(_courses(part)) for name, part in groups if passes.get(str(name), str(name)) in bare]
    return [course for course in runs if course.steady]


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts, default=0), max(counts, default=0)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _first(warmup: int | None) -> str:
    if not warmup:
        return ""
    return f" (the first {warmup:,} are warm-up)" if warmup > 1 else " (the first is warm-up)"


def _middle(runs: Mapping[str, tuple[Course, ...]]) -> str:
    """The run whose mean step is the middle one, or the slower one of two that are; the first where none is known."""
    means = sorted((courses[0].mean_ns, name) for name, courses in runs.items() if courses[0].mean_ns is not None)
    return means[len(means) // 2][1] if means else next(iter(runs))


def _courses(frame: pandas.DataFrame) -> Iterator[Course]:
    """Of each process, by rank where there are ranks, else by their start."""
    ranked = "rank" in frame.columns and bool(frame["rank"].notna().any())
    frame = frame.sort_values((["rank"] if ranked else []) + ["start_ns"], kind="stable")
    keys = ["rank", "pid"] if ranked else ["pid"]
    parts = [part.sort_values("step") for _, part in frame.groupby(keys, dropna=False, sort=False)]
    return (_course(part, ranked, len(parts) > 1) for part in parts)


def _course(frame: pandas.DataFrame, ranked: bool, several: bool) -> Course:
    steady = frame[steady_rows(frame)]
    took = steady["duration_ns"].astype("float64")
    total = float(took.sum())
    cpu, gpu = steady["cpu_ns"], steady["gpu_ns"]
    rank = view.values(frame["rank"])[0] if ranked else None
    known = frame["warmup"].notna().any()
    return Course(
        name=f"rank {rank}" if rank is not None else f"pid {view.values(frame['pid'])[0]}" if several else "",
        rank=rank,
        kind=str(frame["kind"].iloc[0]),
        table=frame,
        warmup=int(frame["warmup"].fillna(False).sum()) if known else None,
        steady=len(steady),
        mean_ns=float(took.mean()) if len(steady) else None,
        median_ns=float(took.median()) if len(steady) else None,
        total_ns=total,
        phases=tuple(_phases(steady, frame, total)),
        stalls=tuple(_stalls(frame, took)),
        cpus=float(cpu.sum()) / total if total and cpu.notna().all() else None,
        gpu_ns=float(gpu.mean()) if gpu.notna().any() else None,
    )


def steady_rows(frame: pandas.DataFrame) -> pandas.Series:
    """Which steps averages are made of: after the warm-up, not looked at closely, of a known length."""
    seen_closely = frame["profiled"].fillna(False).astype(bool)
    return ~frame["warmup"].fillna(True).astype(bool) & ~seen_closely & frame["duration_ns"].notna()


def phase_ns(frame: pandas.DataFrame, key: str) -> pandas.Series | None:
    """The time of a phase in each step, in ns; None for one that this process never showed."""
    known = [frame[c].astype("float64") for c in PHASES[key][1] if frame[c].notna().any()]
    return sum((c.fillna(0.0) for c in known[1:]), known[0].fillna(0.0)) if known else None


def other_ns(frame: pandas.DataFrame) -> pandas.Series:
    """What of each step lies in no phase that was seen."""
    rest = frame["duration_ns"].astype("float64")
    for column in (phase_ns(frame, key) for key in PHASES):
        rest = rest if column is None else rest - column
    return rest.clip(lower=0.0)


def _phases(steady: pandas.DataFrame, frame: pandas.DataFrame, total_ns: float) -> Iterator[Phase]:
    columns = {key: (PHASES[key][0], phase_ns(frame, key)) for key in PHASES} | {OTHER: (OTHER, other_ns(frame))}
    for key, (name, column) in columns.items():
        if column is None or steady.empty:
            yield Phase(key, name, None, None, None)
        else:
            own = column.loc[steady.index]
            share = float(own.sum()) / total_ns if total_ns else None
            yield Phase(key, name, float(own.mean()), share, float(own.max()))


def _stalls(frame: pandas.DataFrame, steady_ns: pandas.Series) -> Iterator[Stalls]:
    """The stalls by cause, the costliest first."""
    stalled = frame[frame["stall"].notna() & frame.index.isin(steady_ns.index)]
    middle = float(steady_ns.median()) if len(steady_ns) else 0.0
    found = [
        Stalls(str(cause), len(part), steps.period(part["step"].tolist()), float((part["duration_ns"] - middle).sum()))
        for cause, part in stalled.groupby("stall")
    ]
    yield from sorted(found, key=lambda s: -s.extra_ns)
