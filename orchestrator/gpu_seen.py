"""What a recording has shown of each GPU, as the rules about GPUs look at it: one `Seen` for each row of `gpu_time`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.judging import Confidence, Severity, confidence, severity, steady
from orchestrator.locating.gpu_names import BY_STEPS
from orchestrator.model import Evidence, Finding
from orchestrator.report import Report
from orchestrator.tables import SCHEMAS

if TYPE_CHECKING:
    import pandas

SCANT_NS, SCANT_KERNELS = 1_000_000, 10
"""What is shorter, or has fewer kernels, is a sample of a program and no program."""
GPU_FEED = "collectors: [{use: nsys, trace: [cuda, nvtx, osrt]}]"


@dataclass(frozen=True, eq=False)
class Seen:
    """One GPU in one capture. states: ns and stretches by state. work: its rows of `gpu_work`; gaps: those of
    `gpu_gaps` that lie in the window. label: which one it is, where there are several."""

    report: Report
    capture: str
    gpu: str | None
    rank: int | None
    label: str
    window_ns: int
    window: str
    start_ns: int
    queue: str
    steps: int | None
    period: int | None
    states: dict[str, tuple[int, int]]
    work: pandas.DataFrame
    gaps: pandas.DataFrame

    def ns(self, *states: str) -> int:
        return sum(self.states.get(state, (0, 0))[0] for state in states)

    def pct(self, ns: float) -> float:
        """A time as a share of the window."""
        return 100 * ns / self.window_ns if self.window_ns else 0.0

    @property
    def of(self) -> str:
        """What shares are of, as the end of a sentence."""
        return self.window if self.window == BY_STEPS else f"the time {self.window}"

    def share(self, ns: float) -> str:
        """`23 % of the steady steps`."""
        return f"{shown_pct(self.pct(ns))} of {self.of}"

    @property
    def is_scant(self) -> bool:
        """Too little was recorded to judge a program by."""
        return self.window_ns < SCANT_NS or int(self.of_kind("kernel", "graph")["count"].sum()) < SCANT_KERNELS

    def often(self, count: int) -> str:
        """`2.0 times a step`, `17 times`."""
        if self.steps:
            return f"{count / self.steps:.1f} times a step"
        return "once" if count == 1 else f"{count:,} times"

    def finding(
        self, rule: str, category: str, title: str, advice: str, ns: float, *, most: Severity = "critical",
        sure: Confidence = "high", healthy: bool = False, **more: Any,
    ) -> Iterator[Finding]:  # fmt: skip
        """A finding that costs this much of the window, where that is worth telling; at most as severe as `most`."""
        pct = self.pct(ns)
        found = severity(pct)
        if found is None:
            return
        if self.is_scant:
            most, sure = "minor", "low"
        order: list[Severity] = ["critical", "major", "minor", "info"]
        yield Finding(
            rule=rule,
            category=category,
            severity=max(found, most, key=order.index),
            title=title + self.label,
            advice=advice,
            confidence=confidence(self.report, [self.capture], sure),
            cost_pct=round(pct, 2),
            cost_s=self._cost_s(pct),
            of=self.of,
            evidence=(*more.pop("evidence", ()), Evidence("gpu_time", self.capture, self.queue, "queue")),
            sources=(self.capture,),
            healthy=healthy,
            **more,
        )

    def _cost_s(self, pct: float) -> float:
        """In seconds of the bare run, where its steps are known; else in those of the recording."""
        bare = steady(self.report).cost_s(pct) if self.window == BY_STEPS else None
        return bare if bare is not None else round(self.window_ns * pct / 1e11, 6)

    def state(self, name: str) -> Evidence:
        """How long the GPU was in that state."""
        return Evidence("gpu_time", name, round(self.ns(name) / 1e9, 6), "s")

    def calls(self, *families: str) -> pandas.DataFrame:
        """The rows of `gpu_work` of calls in the window, by what they are for."""
        frame = self.work
        return frame[(frame["part"] == "window") & (frame["kind"] == "call") & frame["family"].isin(families)]

    def of_kind(self, *kinds: str, part: str = "window") -> pandas.DataFrame:
        return self.work[(self.work["part"] == part) & self.work["kind"].isin(kinds)]

    @property
    def kernels(self) -> int:
        return int(self.of_kind("kernel")["count"].sum())

    @property
    def kernel_median_ns(self) -> float | None:
        """The median of all kernels, as far as the medians of the names tell."""
        frame = self.of_kind("kernel").sort_values("median_ns")
        if not len(frame):
            return None
        upto = frame["count"].cumsum()
        return float(frame["median_ns"][upto >= upto.iloc[-1] / 2].iloc[0])


def shown_pct(pct: float) -> str:
    """`23 %`, `0.4 %`."""
    return f"{pct:.0f} %" if pct >= 1.5 else f"{pct:.1f} %"


def seen(report: Report) -> list[Seen]:
    """All GPUs that worked, in all captures. Those of the latest report are kept, as every rule asks for them."""
    if not _latest or _latest[0][0] is not report:
        _latest[:] = [(report, _all(report))]
    return _latest[0][1]


_latest: list[tuple[Report, list[Seen]]] = []


def no_more_than_idle(report: Report, pct: float) -> float:
    """What a loader takes while the GPU is at work costs nothing: at most the GPU's idle time for want of data."""
    frame = report.table("gpu_time")
    if frame is None or not len(frame):
        return pct
    data = frame[frame["state"] == "data"]
    return min(pct, float((100 * data["total_ns"] / data["window_ns"]).max()) if len(data) else 0.0)


def _all(report: Report) -> list[Seen]:
    times, work = (_plain(report.table(name)) for name in ("gpu_time", "gpu_work"))
    if times is None or work is None:
        return []
    keys = [name for name in ("capture", "rank", "pid", "device") if name in times]
    several = len(times[[name for name in ("rank", "device") if name in times]].drop_duplicates()) > 1
    own = dict(iter(work.groupby("capture", sort=False)))
    found = []
    for capture, some in times.groupby("capture", sort=False):  # of many, all gaps at once would take much room
        gaps, done = _plain(report.rows("gpu_gaps", [str(capture)])), own.get(capture, work.iloc[:0])
        for _, rows in some.groupby(keys, dropna=False, sort=False):
            idle = None if gaps is None else _like(gaps, keys, rows)
            found.append(_seen(report, rows, _like(done, keys, rows), idle, several))
    return found


def _plain(frame: pandas.DataFrame | None) -> pandas.DataFrame | None:
    """Without attributes, which pandas copies at each operation."""
    if frame is not None:
        frame = frame.copy(deep=False)
        frame.attrs = {}
    return frame


def _like(frame: pandas.DataFrame, keys: list[str], rows: pandas.DataFrame) -> pandas.DataFrame:
    """The rows of the same GPU."""
    for key in keys:
        value = rows[key].iloc[0]
        if key in frame:
            frame = frame[frame[key].isna() if _unknown(value) else (frame[key] == value).fillna(False)]
    return frame


def _unknown(value: Any) -> bool:
    import pandas

    return value is pandas.NA or value is None


def _seen(
    report: Report, rows: pandas.DataFrame, work: pandas.DataFrame, gaps: pandas.DataFrame | None, several: bool
) -> Seen:
    first = rows.iloc[0]
    rank = None if "rank" not in rows or _unknown(first["rank"]) else int(first["rank"])
    device = None if _unknown(first["device"]) else int(first["device"])
    start, length = int(first["start_ns"]), int(first["window_ns"])
    if gaps is None:
        gaps = work.iloc[:0].reindex(columns=[column.name for column in SCHEMAS["gpu_gaps"]])
    return Seen(
        report=report,
        capture=str(first["capture"]),
        gpu=_name(report, rows),
        rank=rank,
        label=(f" (rank {rank})" if rank is not None else f" (GPU {device})") if several else "",
        window_ns=length,
        window=str(first["window"]),
        start_ns=start,
        queue=str(first["queue"]),
        steps=None if _unknown(first["steps"]) else int(first["steps"]),
        period=None if _unknown(first["period"]) else int(first["period"]),
        states={s: (int(ns), int(n)) for s, ns, n in zip(rows["state"], rows["total_ns"], rows["count"], strict=True)},
        work=work,
        gaps=gaps[(gaps["start_ns"] + gaps["duration_ns"] > start) & (gaps["start_ns"] < start + _reach(gaps, first))],
    )


def _reach(gaps: pandas.DataFrame, first: Any) -> int:
    """Up to where gaps count: of steps that are not in one piece, those that say their step."""
    if first["window"] != BY_STEPS or "step" not in gaps or not gaps["step"].notna().any():
        return int(first["window_ns"])
    inside = gaps[gaps["step"].notna()]
    return int((inside["start_ns"] + inside["duration_ns"]).max()) - int(first["start_ns"])


def _name(report: Report, rows: pandas.DataFrame) -> str | None:
    frame = report.table("gpu_utilization")
    if frame is None or "gpu" not in frame:
        return None
    found = frame[(frame["capture"] == rows["capture"].iloc[0]) & (frame["device"] == rows["device"].iloc[0])]["gpu"]
    known = found.dropna()
    return str(known.iloc[0]) if len(known) else None
