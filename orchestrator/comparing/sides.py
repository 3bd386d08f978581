"""What a report says for a comparison: its bare runs with their steps, and what each tool has seen, per step."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from orchestrator import judging, stats, trust
from orchestrator.comparing import numbers
from orchestrator.comparing.words import Per
from orchestrator.model import USABLE, Capture, TargetRun
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

PHASES: Mapping[str, str] = {
    "data_wait_ns": "data",
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "zero_grad_ns": "zero_grad",
    "checkpoint_ns": "checkpoint",
    "evaluation_ns": "evaluation",
}
"""The phases of a step, by their column of `steps`."""


@dataclass(frozen=True)
class Measured:
    """Something that a tool has seen, in one pass. ns, count: per step, or per run where there are no steps; None:
    unknown. off_ns: the standard error of `ns` by sampling, 0 where every event was seen."""

    name: str
    ns: float | None
    count: float | None = None
    off_ns: float = 0.0
    where: Mapping[str, Any] = field(default_factory=dict)
    seen: int = 0
    """How many samples or events it rests on."""


@dataclass(frozen=True)
class Looked:
    """What one capture has seen of one kind of thing. whole: how many samples or events there were in all."""

    capture: str
    things: tuple[Measured, ...]
    per: Per
    whole: int = 0


class View:
    """A report as one side of a comparison. Tables are read when they are asked for, and once.

    share: so large a share of its steps are its quickest, as on the other side; None: too few. noisy: the runs of one
    side differ much; quick: so much that the quickest steps stand for all of them (`both`)."""

    def __init__(self, report: Report, *, share: float | None = None, noisy: bool = False, quick: bool = False) -> None:
        self.report, self.share, self.noisy, self.quick = report, share, noisy, quick

    # ---------------------------------------------------------------- the bare runs

    @cached_property
    def bare(self) -> list[str]:
        """The ids of the bare passes that ran to their end, and did not fail: one that failed has done other work."""
        fine = fine_statuses(self.report)
        runs = ((p.id, p.run) for p in self.report.passes if p.role == "bare" and p.run)
        return [id_ for id_, run in runs if trust.to_its_end(run) and not failed(run, fine)]

    @cached_property
    def walls_s(self) -> list[float]:
        runs = {p.id: p.run for p in self.report.passes}
        return [run.wall_s for id_ in self.bare if (run := runs[id_])]

    @cached_property
    def steps(self) -> dict[str, pandas.DataFrame]:
        """By bare pass, its steady steps; passes without are left out."""
        frames = ((id_, steady_steps(self.report, id_)) for id_ in self.bare)
        return {id_: frame for id_, frame in frames if frame is not None}

    @cached_property
    def quickest(self) -> dict[str, pandas.DataFrame]:
        """Of those of each run, the quickest."""
        return {id_: _quickest(frame, self.share) for id_, frame in self.steps.items()} if self.share else {}

    def of_steps(self, column: str, what: str = "usual") -> list[float]:
        """One value a bare run: the median, mean or 95th percentile of a column of its steady steps, the mean without
        the longest twentieth (most), or the median in its quickest ones (quick). Unknown values are left out; a run
        without any is, too."""
        what = ("quick" if self.quick else "median") if what == "usual" else what
        frames = self.quickest if what == "quick" else self.steps
        known = (frame[column].dropna().astype(float) for frame in frames.values() if column in frame)
        return [_one(values, what) for values in known if len(values)]

    def of_ranges(self) -> dict[str, list[float]]:
        """By range of the plan, one value a bare run: its usual time in ns, as often as it comes in a step (quick: in
        one of the quickest, without what does not come in each). Of the process whose steps these are: workers have
        time of their own."""
        frame = self.report.table("ranges")
        found: dict[str, list[float]] = {}
        for id_ in self.steps if frame is not None else ():
            rows = judging.of_capture(frame, [c.id for c in self.report.captures if c.pass_id == id_])
            steps = self.steps_in(id_)
            if rows is None or steps is None:
                continue
            rows = rows[rows["pid"].isna() | (rows["pid"] == steps["pid"].iloc[0])]
            if self.quick:
                counts = rows["name"].value_counts()
                each = rows["name"].isin(counts.index[counts >= len(steps)])
                steps = self.quickest[id_]
                rows = rows[each & _within(rows["start_ns"], steps)]
            for name, known in rows.dropna(subset=["duration_ns"]).groupby("name")["duration_ns"]:
                found.setdefault(str(name), []).append(float(known.median()) * len(known) / len(steps))
        return found

    @cached_property
    def step_s(self) -> float | None:
        """What stands for the steps of the bare runs."""
        values = sorted(self.of_steps("duration_ns"))
        if self.quick:
            return values[1] / 1e9
        return statistics.median(values) / 1e9 if values else None

    @cached_property
    def whole_s(self) -> float | None:
        """What shares are of: the step, else the run."""
        return self.step_s if self.step_s is not None else statistics.median(self.walls_s) if self.walls_s else None

    @cached_property
    def spread(self) -> float | None:
        """By how much the bare runs differ among themselves, relative to their mean; None: too few to say. By the
        quickest steps half of that of the usual ones: a neighbour does not make all functions alike slower."""
        found = numbers.spread(self.of_steps("duration_ns", "most" if self.quick else "median") or self.walls_s)
        return found / 2 if found is not None and self.quick else found

    # ---------------------------------------------------------------- what tools have seen

    def captures(self, *collectors: str) -> list[Capture]:
        """The usable captures of profiled passes by these collectors, the earlier named first."""
        usable = [c for c in self.report.captures if c.status in USABLE and c.collector in collectors]
        return sorted(usable, key=lambda c: collectors.index(c.collector))

    def rows(self, table: str, capture: Capture) -> pandas.DataFrame | None:
        return judging.of_capture(self.report.table(table), [capture.id])

    def steps_in(self, pass_id: str) -> pandas.DataFrame | None:
        """All steps of the first process of a pass."""
        return judging.steps_of(self.report, pass_id)

    def stretch(self, pass_id: str) -> float:
        """How many times as long a usual step of that pass took as what stands for a bare one; where that is unknown it
        is taken for a usual bare one."""
        record = next((p for p in self.report.passes if p.id == pass_id), None)
        found = (record.step_slowdown or record.slowdown) if record else None
        usual = self.of_steps("duration_ns", "median") if self.quick else []
        return (found or 1.0) * (statistics.fmean(usual) / 1e9 / self.step_s if usual and self.step_s else 1.0)


NOISY = 0.02
"""Where the bare runs of one side differ by more than this, relative to their median, something beside the program and
its machine is likely to have made them: other work, or a neighbour that shares the processor."""
LESS = 0.7
"""The quickest steps are gone by only where the quicker runs differ by so much less in them."""


def both(a: Report, b: Report) -> tuple[View, View]:
    """The two sides. By their quickest steps where the runs differ much, clearly less by those, and are enough."""
    one, other = View(a), View(b)
    noisy = is_noisy(one, other, "duration_ns")
    fewest = min((len(frame) for view in (one, other) for frame in view.steps.values()), default=0)
    share = stats.quick_share(fewest) if fewest >= stats.QUICK_FROM else None
    one, other = (View(report, share=share, noisy=noisy) for report in (a, b))
    if not share or not noisy or min(len(one.steps), len(other.steps)) < numbers.FLOOR_FROM:
        return one, other
    usual, left = (max(_rise(view.of_steps("duration_ns", how)) for view in (one, other)) for how in ("most", "quick"))
    if left >= LESS * usual:
        return one, other
    return View(a, share=share, noisy=True, quick=True), View(b, share=share, noisy=True, quick=True)


def is_noisy(a: View, b: View, column: str) -> bool:
    """Whether most runs of one side differ much in that column of their steps. Told by the mean of most steps: where
    nearly all have a neighbour, medians agree."""
    return any(_scatter(view.of_steps(column, "most")) > NOISY for view in (a, b))


def _scatter(runs: Sequence[float]) -> float:
    """The median distance of the runs from their median, as a standard deviation relative to it."""
    middle = statistics.median(runs) if runs else 0.0
    return stats.SIGMA_PER_MAD * statistics.median(abs(run / middle - 1) for run in runs) if middle > 0 else 0.0


def _rise(runs: Sequence[float]) -> float:
    """By how much the quicker third of the runs differ: longer ones may have been disturbed."""
    ordered = sorted(runs)
    low, high = ordered[1], ordered[max(2, len(ordered) // 3)]
    return high / low - 1 if low > 0 else math.inf


def fine_statuses(report: Report) -> frozenset[int]:
    """The exit statuses that the report's plan calls success; without a plan 0."""
    target = (plan(report) or {}).get("target")
    codes = target.get("ok_exit_codes") if isinstance(target, dict) else None
    if isinstance(codes, list) and all(isinstance(code, int) for code in codes):
        return frozenset(codes)
    return frozenset({0})


def plan(report: Report) -> dict[str, Any] | None:
    """The report's plan as it stands there; None where it can't be read."""
    import yaml

    try:
        tree = yaml.safe_load((report.folder / "plan.yaml").read_text("utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return tree if isinstance(tree, dict) else None


def failed(run: TargetRun, fine: Collection[int]) -> bool:
    """Whether the program ended by itself and not as the plan wants it."""
    return run.exit is not None and run.ended_by == "itself" and run.exit.status not in fine


def _one(values: pandas.Series[float], what: str) -> float:
    if what == "mean":
        return float(values.mean())
    p95 = float(values.quantile(0.95))
    if what == "most":
        return float(values[values <= p95].mean())
    return p95 if what == "p95" else float(values.median())


def _quickest(steps: pandas.DataFrame, share: float | None) -> pandas.DataFrame:
    most = max(stats.quickest(steps["duration_ns"].astype(float).tolist(), share))
    return steps[steps["duration_ns"] <= most]


def _within(start_ns: pandas.Series[int], steps: pandas.DataFrame) -> NDArray[Any]:
    """Which of these moments lie in one of the steps."""
    import numpy as np

    ordered = steps[steps["start_ns"].notna()].sort_values("start_ns")
    begins = ordered["start_ns"].to_numpy(np.int64)
    ends = begins + ordered["duration_ns"].to_numpy(np.int64)
    moments = start_ns.fillna(-1).to_numpy(np.int64)
    place = np.searchsorted(begins, moments, "right") - 1
    found: NDArray[Any] = (place >= 0) & (moments < np.append(ends, 0)[place])
    return found


def steady_steps(report: Report, pass_id: str) -> pandas.DataFrame | None:
    """Those of the first process that no tool looked at closely; None where there are none."""
    steps = judging.steps_of(report, pass_id)
    if steps is None:
        return None
    steady = judging.settled(steps)
    steady = steady[~steady["profiled"].fillna(False).astype(bool)]
    return steady if len(steady) else None


# ---------------------------------------------------------------- operators, system calls


def operators(view: View) -> Looked | None:
    """PyTorch's operators by the CPU time of their own, per step that torch.profiler recorded."""
    for capture in view.captures("torch"):
        frame = view.rows("torch_ops", capture)
        if frame is None:
            continue
        steps = _recorded_steps(view, capture, frame)
        ops = frame[(frame["device"] == "cpu") & ~frame["name"].str.contains("#", regex=False)]
        return _per_step(view, capture, ops, steps, "cpu_self_ns", "op")
    return None


def _recorded_steps(view: View, capture: Capture, frame: pandas.DataFrame) -> int | None:
    marked = frame[frame["name"] == "ProfilerStep*"]["count"].sum()
    if marked:
        return int(marked)
    steps = view.steps_in(capture.pass_id)
    seen = 0 if steps is None else int(steps["profiled"].fillna(False).astype(bool).sum())
    return seen or None


def system_calls(view: View) -> Looked | None:
    """System calls: the number of those of all threads, and the time in those of the step's own thread where strace
    tells threads apart; per step of the pass, start-up and end included. What other threads wait grows with every step,
    whatever made it slower: their time explains nothing."""
    for capture in view.captures("strace", "perf"):
        frame = view.rows("syscalls", capture)
        if frame is None:
            continue
        steps = view.steps_in(capture.pass_id)
        timed = frame.assign(total_ns=frame["total_ns"].where(_is_of_the_step(frame, steps)))
        return _per_step(view, capture, timed, None if steps is None else len(steps), "total_ns", "syscall")
    return None


def _is_of_the_step(calls: pandas.DataFrame, steps: pandas.DataFrame | None) -> pandas.Series[bool]:
    """Which calls the thread made whose steps these are; none where threads are unknown."""
    if steps is None or steps["tid"].isna().iloc[0]:
        return calls["thread"].isna() & False
    return (calls["thread"] == steps["tid"].iloc[0]).fillna(False).astype(bool)


_WAITS = frozenset((
    "futex", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "wait4", "waitid",
    "rt_sigtimedwait",
))  # fmt: skip
"""Calls in which a thread waits for others: that time says nothing of why; their number tells."""


def _per_step(
    view: View, capture: Capture, frame: pandas.DataFrame, steps: int | None, column: str, kind: str
) -> Looked:
    """The rows added up by name, per step, and as a bare step would have them."""
    parts, stretch = steps or 1, view.stretch(capture.pass_id)
    things = []
    for name, group in frame.groupby("name", sort=True):
        ns = group[column].sum() if group[column].notna().any() and name not in _WAITS else None
        count = int(group["count"].sum())
        per_ns = None if ns is None else float(ns) / parts / stretch
        things.append(Measured(str(name), per_ns, count / parts, where={kind: str(name)}, seen=count))
    return Looked(capture.id, tuple(things), "step" if steps else "run", sum(one.seen for one in things))


# ---------------------------------------------------------------- kernels


def kernels(view: View) -> Looked | None:
    """The GPU's work by name: of the steady steps where those are known, else of the whole recording. Of several GPUs
    the mean."""
    for capture in view.captures("nsys", "torch"):
        windowed = _windowed(view, capture)
        if windowed is not None:
            return windowed
        frame = view.rows("gpu_kernel_summary", capture)
        if frame is not None:
            return _all_kernels(view, capture, frame)
    return None


def _windowed(view: View, capture: Capture) -> Looked | None:
    work, time = view.rows("gpu_work", capture), view.rows("gpu_time", capture)
    steps = None if time is None else time["steps"].dropna()
    if work is None or time is None or steps is None or not len(steps) or not steps.iloc[0]:
        return None
    ours = work[(work["part"] == "window") & work["kind"].isin(["kernel", "graph", "transfer"])]
    gpus = max(1, len(time[["pid", "device"]].drop_duplicates()))
    return _gpu_things(capture, ours, int(steps.iloc[0]) * gpus, "step")


def _all_kernels(view: View, capture: Capture, frame: pandas.DataFrame) -> Looked:
    steps = view.steps_in(capture.pass_id)
    return _gpu_things(capture, frame, 1 if steps is None else len(steps), "run" if steps is None else "step")


def _gpu_things(capture: Capture, frame: pandas.DataFrame, parts: int, per: Per) -> Looked:
    things = []
    for name, group in frame.groupby("name", sort=True):
        count, ns = int(group["count"].sum()), float(group["total_ns"].sum())
        things.append(Measured(str(name), ns / parts, count / parts, where={"kernel": str(name)}, seen=count))
    return Looked(capture.id, tuple(things), per, sum(one.seen for one in things))


def shapes(view: View, capture: str, names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """By kernel, the grid and block of most of its launches."""
    frame = judging.of_capture(view.report.table("gpu_kernels"), [capture])
    if frame is None:
        return {}
    ours = frame[frame["name"].isin(list(names))]
    counted = ours.groupby(["name", "grid", "block"]).size().sort_values(ascending=False)
    found: dict[str, tuple[str, str]] = {}
    for name, grid, block in counted.index:
        found.setdefault(str(name), (str(grid), str(block)))
    return found


# ---------------------------------------------------------------- functions, by samples


BLOCKS = 20
"""The steady part is cut into so many pieces: how a function's share varies among them says what chance does to it,
also where samples lean on one another."""


@dataclass(frozen=True)
class Stack:
    """One stack of the main thread. pieces: its time in each of the BLOCKS; chain: frames of the program's own code."""

    function: str
    file: str | None
    line: int | None
    chain: tuple[str, ...]
    state: str
    op: str | None
    pieces: NDArray[Any]

    @property
    def ns(self) -> float:
        return float(self.pieces.sum())


@dataclass(frozen=True)
class Sampled:
    """The main thread's stacks in the steady steps, else in the whole run."""

    capture: str
    per: Per
    samples: int
    stacks: tuple[Stack, ...]

    def functions(self, whole_s: float) -> Looked:
        """Each function with the time of its own and of the native and library code that it calls, as a share of
        `whole_s`."""
        import numpy as np

        whole = np.sum([stack.pieces for stack in self.stacks], axis=0)
        groups: dict[tuple[str, str | None], list[Stack]] = {}
        for stack in self.stacks:
            groups.setdefault((stack.function, stack.file), []).append(stack)
        things = [self._measured(stacks, whole, whole_s) for stacks in groups.values()]
        return Looked(self.capture, tuple(things), self.per, self.samples)

    def _measured(self, stacks: Sequence[Stack], whole: NDArray[Any], whole_s: float) -> Measured:
        import numpy as np

        pieces = np.sum([stack.pieces for stack in stacks], axis=0)
        share, off = float(pieces.sum() / whole.sum()), share_error(pieces, whole, self.samples)
        lines: dict[int | None, float] = {}
        for stack in stacks:
            lines[stack.line] = lines.get(stack.line, 0.0) + stack.ns
        line = max(lines, key=lambda one: (lines[one], one or 0))
        where = {"function": stacks[0].function, "file": stacks[0].file, "line": line}
        seen = round(share * self.samples)
        return Measured(stacks[0].function, share * whole_s * 1e9, None, off * whole_s * 1e9, where, seen)

    def chain(self, function: str, file: str | None) -> tuple[str, ...]:
        """How that function is called where most of its time goes."""
        own = [stack for stack in self.stacks if (stack.function, stack.file) == (function, file)]
        times: dict[tuple[str, ...], float] = {}
        for stack in own:
            times[stack.chain] = times.get(stack.chain, 0.0) + stack.ns
        return max(times, key=lambda one: (times[one], one), default=())


def share_error(pieces: NDArray[Any], whole: NDArray[Any], samples: int) -> float:
    """The standard error of a share: the larger of what independent samples would have (binomial, by Agresti and
    Coull's centre so that a share of 0 has one too) and of what the pieces show (the ratio estimator of W. Cochran,
    Sampling Techniques, 1977, 6.4)."""
    import numpy as np

    share = float(pieces.sum() / whole.sum())
    centre = (share * samples + 2) / (samples + 4)
    binomial = float(np.sqrt(centre * (1 - centre) / (samples + 4)))
    used = whole > 0
    count = int(used.sum())
    if count < 2:
        return binomial
    off = pieces[used] - share * whole[used]
    return max(binomial, float(np.sqrt(count / (count - 1) * (off**2).sum()) / whole.sum()))


def sampled(view: View) -> Sampled | None:
    """What py-spy has seen of the thread that makes the steps; None without it."""
    for capture in sorted(view.captures("py-spy"), key=lambda c: not c.options.get("native")):
        spans = view.rows("stack_spans", capture)
        main = _main_thread(view, capture)
        if spans is None or main is None:
            continue
        ours = spans[(spans["pid"] == main[0]) & (spans["tid"] == main[1])]
        window = judging.steady_window(view.report, capture.pass_id)
        found = tuple(_stacks(ours, window, bool(capture.options.get("native"))))
        rate_hz = _rate_hz(capture)
        samples = round(sum(stack.ns for stack in found) * rate_hz / 1e9)
        if samples:
            return Sampled(capture.id, "step" if window and view.step_s else "run", samples, found)
    return None


def _rate_hz(capture: Capture) -> float:
    from orchestrator.units import frequency

    return frequency(capture.options.get("rate", 100))


def _main_thread(view: View, capture: Capture) -> tuple[int, int] | None:
    frame = view.rows("host_time", capture)
    main = None if frame is None else frame[frame["role"] == "main"]
    if main is None or not len(main):
        return None
    if "rank" in main.columns and main["rank"].notna().any():  # the same one on both sides
        main = main[(main["rank"] == main["rank"].min()).fillna(False)]
    times = main.groupby(["pid", "tid"])["total_ns"].sum()
    pid, tid = times.idxmax()
    return int(pid), int(tid)


def _stacks(spans: pandas.DataFrame, window: judging.Window | None, native: bool) -> Iterator[Stack]:
    import numpy as np

    start = spans["start_ns"].to_numpy(np.int64)
    end = start + spans["duration_ns"].to_numpy(np.int64)
    if not len(start):
        return
    first, last = (window.start_ns, window.end_ns) if window else (int(start.min()), int(end.max()))
    edges = np.linspace(first, last, BLOCKS + 1)
    codes, texts = spans["stack"].factorize()
    pieces = np.zeros((len(texts), BLOCKS))
    for block, (left, right) in enumerate(pairwise(edges)):
        inside = np.clip(np.minimum(end, right) - np.maximum(start, left), 0, None)
        pieces[:, block] = np.bincount(codes, inside, len(texts))
    yield from (
        stack for text, row in zip(texts, pieces, strict=True) if row.any() for stack in _read(text, row, native)
    )


def _read(text: str, pieces: NDArray[Any], native: bool) -> Iterator[Stack]:
    """A stack, told by the innermost function of the program's own code; none for what profrun itself has added."""
    from orchestrator.formats.stacks import is_own
    from orchestrator.locating.frames import Frame, read

    frames = text.split(";")
    doing = read(frames, native)
    if doing.state == "ours":
        return
    where = doing.outer or doing
    own = tuple(one for one in frames if (frame := Frame.of(one)).is_python and is_own(frame.file))
    function = where.function or "(outside of Python)"
    yield Stack(function, where.file, where.line, own, doing.state, doing.op, pieces)
