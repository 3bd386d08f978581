"""Rules over the program's own steps: how long it warms up, how long it waits for data, which steps stand out."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.gpu_seen import no_more_than_idle
from orchestrator.judging import Severity, severity
from orchestrator.model import IMPORT, Abstention, Evidence, Finding
from orchestrator.report import Report
from orchestrator.steps import STALL_FROM, period
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas

LONG_RUN_S = 60.0
"""A shorter run is a trial: that it mostly starts up is as it should be."""
LONG_JOB_S = 600.0
"""Below this, however much of it was warm-up, that is worth no more than a word."""
RARE = 0.05
"""Steps that are slow for no known reason stand out as long as they are no more than this part."""
SPREAD_LIMIT, SPREAD_STEPS = 0.25, 20
"""Steps vary much when the quartiles are this part of the median apart; of fewer steps quartiles say little."""


@dataclass(frozen=True, eq=False)
class Course:
    """The steps of one bare run: of its first process, without those that a tool looked at closely."""

    capture: str
    wall_s: float | None
    started_ns: int | None
    rows: pandas.DataFrame

    @property
    def steady(self) -> pandas.DataFrame:
        rows = self.rows
        return rows[rows["warmup"].notna() & ~rows["warmup"].fillna(True).astype(bool) & rows["duration_ns"].notna()]

    @property
    def total_ns(self) -> float:
        """Of the steady steps."""
        return float(self.steady["duration_ns"].sum())

    @property
    def is_long(self) -> bool:
        """It ran for a while, and when its steady steps began is known."""
        known = self.started_ns is not None and self.steady["start_ns"].notna().any()
        return bool(known and (self.wall_s or 0.0) >= LONG_RUN_S)

    def after_s(self, rows: pandas.DataFrame) -> float:
        """When the first of these steps began, counted from the program's start."""
        return (int(rows["start_ns"].min()) - (self.started_ns or 0)) / 1e9


def _courses(report: Report) -> list[Course]:
    """Those of the bare runs; where none has steps, of whatever run has, as far as no tool looked closely."""
    frame = report.table("steps")
    if frame is None or not len(frame):
        return []
    passes = {capture.id: capture.pass_id for capture in report.captures}
    roles = {record.id: record for record in report.passes}
    found = []
    for capture, rows in frame.groupby("capture", sort=False):
        record = roles.get(passes.get(str(capture), IMPORT))
        own = rows[(rows["pid"] == rows["pid"].iloc[0]) & ~rows["profiled"].fillna(False).astype(bool)]
        run = record.run if record else None
        course = Course(str(capture), run.wall_s if run else None, run.started_ns if run else None, own)
        found.append((record.role if record else "", course))
    bare = [course for role, course in found if role == "bare"]
    return bare or [course for role, course in found if role != "warmup"][:1]


# ---------------------------------------------------------------- steps that stand out

_STALLS: dict[str, tuple[str, str, Severity, str]] = {
    "checkpoint": (
        "file_io",
        "a checkpoint is saved in them",
        "critical",
        "Save less often, only what is needed, or beside the training (torch.distributed.checkpoint.async_save, or a "
        "thread that writes a copy on the CPU).",
    ),
    "evaluation": (
        "native_cpu",
        "the model is evaluated in them",
        "minor",
        "Evaluate less often or on fewer batches, under torch.inference_mode(), and with the larger batches that it "
        "allows.",
    ),
    "data": (
        "input_pipeline",
        "they wait for data",
        "critical",
        "Keep the loader ahead: more workers, a larger prefetch_factor, persistent_workers=True (without it all start "
        "anew at each epoch).",
    ),
    "unknown": (
        "idle_wait",
        "nothing that was measured tells why",
        "minor",
        "Look at them in the timeline: garbage collection, other work on the machine, memory that is taken from the "
        "kernel, or work that the program does now and then.",
    ),
}
"""By why they stand out: category, that in words, the most severe that it can be, and what to do."""


def stalls(report: Report) -> Iterator[Finding]:
    """Steps that took at least twice the steady median, by their cause: what they took beyond the median, as a share of
    all steady steps, is what could be had back; of waiting for data no more than the GPU did."""
    courses = [course for course in _courses(report) if course.total_ns]
    for cause, (category, words, most, advice) in _STALLS.items():
        told = [(course, course.steady[course.steady["stall"] == cause]) for course in courses]
        told = [(course, rows) for course, rows in told if len(rows) and not _is_spread(cause, rows, course)]
        if not told:
            continue
        extra_ns = sum(_extra_ns(course, rows) for course, rows in told)
        whole_ns = sum(course.total_ns for course in courses)
        pct = 100 * extra_ns / whole_ns
        pct = no_more_than_idle(report, pct) if cause == "data" else pct
        found = severity(pct)
        if found is None:
            continue
        course, rows = told[0]
        every = period(rows["step"].astype(int).tolist())
        often = f"every {every} steps" if every else f"{len(rows)} of {len(course.steady):,} steps"
        middle_s = float(course.steady["duration_ns"].median()) / 1e9
        longest = rows.loc[rows["duration_ns"].astype("int64").idxmax()]
        yield Finding(
            rule="stalls",
            category=category,
            severity=_at_most(found, most),
            title=f"Some steps take {STALL_FROM:g} times as long as the others or more ({often}): {words}",
            advice=advice,
            confidence="high" if cause != "unknown" else "medium",
            cost_s=round(whole_ns * pct / 100 / len(courses) / 1e9, 6),
            cost_pct=round(pct, 1),
            of="the steady steps of a bare run",
            evidence=(
                Evidence("steps", f"stall = {cause}", len(rows), "steps"),
                Evidence("steps", "median step", round(middle_s, 6), "s"),
                Evidence("steps", f"step {longest['step']}, the longest", round(longest["duration_ns"] / 1e9, 6), "s"),
            ),
            sources=tuple(one.capture for one, _ in told),
            cause="input_pipeline" if cause == "data" else f"stalls: {cause}",
        )


def _is_spread(cause: str, rows: pandas.DataFrame, course: Course) -> bool:
    """Whether so many steps are slow for no known reason that they are only uneven."""
    return cause == "unknown" and len(rows) > RARE * len(course.steady)


def _extra_ns(course: Course, rows: pandas.DataFrame) -> float:
    middle = float(course.steady["duration_ns"].median())
    return float((rows["duration_ns"].astype(float) - middle).sum())


def _at_most(found: Severity, most: Severity) -> Severity:
    order: tuple[Severity, ...] = ("info", "minor", "major", "critical")
    return min(found, most, key=order.index)


# ---------------------------------------------------------------- warm-up, data, spread


def warming_up(report: Report) -> Iterator[Finding]:
    """From the program's start to its first steady step: start-up, loading, compilation, the first slow steps. Silent
    for runs under a minute, and no more than minor for those under ten."""
    courses = [course for course in _courses(report) if course.is_long]
    if not courses:
        return
    took_s = statistics.fmean(c.after_s(c.steady) for c in courses)
    wall_s = statistics.fmean(c.wall_s or 0.0 for c in courses)
    pct = 100 * took_s / wall_s
    found = severity(pct)
    if found is None:
        return
    first = courses[0]
    warm = int(first.rows["warmup"].fillna(False).astype(bool).sum())
    starting_s = round(statistics.fmean(c.after_s(c.rows) for c in courses), 6)
    slow = f", then {warm} slow steps" if warm else ""
    yield Finding(
        rule="warming_up",
        category="warmup",
        severity=_at_most(found, "minor" if wall_s < LONG_JOB_S else "major"),
        title=f"It takes {show_duration(took_s)} until the steps are steady: {show_duration(starting_s)} before the "
        f"first step{slow}",
        advice="Load data and weights while the rest starts, keep compiled code (TORCHINDUCTOR_FX_GRAPH_CACHE=1), and "
        "import only what is used; `python -X importtime` tells what imports cost.",
        confidence="high",
        cost_s=round(took_s, 6),
        cost_pct=round(pct, 1),
        of="a bare run",
        evidence=(Evidence("steps", "warmup", warm, "steps"), Evidence("runs", "start to first step", starting_s, "s")),
        sources=tuple(course.capture for course in courses),
    )


def data_wait(report: Report) -> Iterator[Finding]:
    """The time in the DataLoader's next: with workers the program waits there, without it loads the data itself. Either
    way the step could have begun; where a GPU still works off what it was given before, it costs nothing."""
    courses = [c for c in _courses(report) if c.total_ns and c.steady["data_wait_ns"].notna().any()]
    if not courses:
        return
    waited_ns = sum(float(c.steady["data_wait_ns"].fillna(0).sum()) for c in courses)
    whole_ns = sum(c.total_ns for c in courses)
    seen_pct = min(100.0, 100 * waited_ns / whole_ns)
    pct = no_more_than_idle(report, seen_pct)
    found = severity(pct)
    if found is None:
        return
    where = "in the loader" if pct == seen_pct else "without work for the GPU"
    yield Finding(
        rule="data_wait",
        category="input_pipeline",
        severity=found,
        title=f"The steps wait for their data: {pct:.0f} % of their time passes {where}",
        advice="Let workers load the next batches while a step computes (num_workers, prefetch_factor, "
        "persistent_workers=True), and make each item cheaper to load.",
        confidence="high",
        cost_s=round(whole_ns * pct / 100 / len(courses) / 1e9, 6),
        cost_pct=round(pct, 1),
        of="the steady steps of a bare run",
        evidence=(Evidence("steps", "data_wait_ns", round(waited_ns / len(courses) / 1e9, 6), "s"),),
        sources=tuple(course.capture for course in courses),
        cause="input_pipeline",
    )


def uneven_steps(report: Report) -> Iterator[Finding]:
    """Half of the steady steps lie further apart than a quarter of the median: a mean of few says little then."""
    spreads = {c.capture: _spread(c.steady["duration_ns"].tolist()) for c in _courses(report)}
    known = {capture: spread for capture, spread in spreads.items() if spread is not None}
    spread = statistics.median(known.values()) if known else 0.0
    if spread < SPREAD_LIMIT:
        return
    yield Finding(
        rule="uneven_steps",
        category="data_quality",
        severity="minor",
        title=f"The steps are uneven: the middle half of them lies {100 * spread:.0f} % of the median apart",
        advice="Compare runs by many steps. If the inputs differ in size, sort or pad them; if not, other work on the "
        "machine or changing clocks do it.",
        confidence="high",
        evidence=(Evidence("steps", "quartiles of duration_ns", round(100 * spread, 1), "% of the median apart"),),
        sources=tuple(known),
    )


def _spread(durations_ns: Sequence[float]) -> float | None:
    if len(durations_ns) < SPREAD_STEPS:
        return None
    low, middle, high = statistics.quantiles(durations_ns, n=4)
    return (high - low) / middle if middle else None


def not_steady(report: Report) -> Iterator[Abstention]:
    """Steps that never became steady, or PyTorch's work without any steps."""
    courses = _courses(report)
    if courses and not any(len(course.steady) for course in courses):
        lacks = "steady steps: there were too few of them, or they were too uneven to tell the warm-up"
        yield Abstention("stalls", lacks, "target: {command: [...]}  # let it make 20 steps or more")
    ops = report.table("torch_ops")
    if not courses and ops is not None and len(ops) and not report.run.imported:
        lacks = "the program's steps: it calls no optimizer and no outermost module, or not in a way that was seen"
        yield Abstention("stalls", lacks, "ranges: [train.py:train_step]  # the function that is one step")


RULES = (stalls, warming_up, data_wait, uneven_steps, not_steady)
