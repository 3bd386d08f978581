"""What ncu has shown of each launch, as the rules about kernels look at it, and how much of the run each kernel is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.formats.kernel_names import function
from orchestrator.gpu_seen import seen
from orchestrator.judging import Whole, steady
from orchestrator.locating.gpu_names import BY_STEPS
from orchestrator.model import Evidence
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

QUOTE_CHARS = 240
UNKNOWN_PART = "the launches that ncu looked at (their part of the run is unknown)"


@dataclass(frozen=True)
class Launch:
    """One launch as ncu has measured it. rules: the texts and estimates of ncu's own rules, by rule."""

    capture: str
    number: int
    name: str
    shown: str
    row: Mapping[str, Any]
    rules: Mapping[str, Sequence[Rule]] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)

    def get(self, column: str) -> float | None:
        value = self.row.get(column)
        return None if value is None else float(value)

    @property
    def ns(self) -> float:
        return self.get("duration_ns") or 0.0

    @property
    def highest_pct(self) -> float | None:
        """The better used of the multiprocessors and memory."""
        sm, memory = self.get("sm_pct"), self.get("memory_pct")
        return None if sm is None or memory is None else max(sm, memory)

    def evidence(self, column: str, unit: str | None = "%") -> Evidence:
        value = self.row.get(column)
        return Evidence("kernel_profiles", f"{self.shown} launch {self.number}: {column}", _rounded(value), unit)

    def quoted(self, *rules: str) -> tuple[Evidence, ...]:
        """What ncu says itself."""
        told = [(rule, one) for rule in rules for one in self.rules.get(rule, ()) if one.message]
        return tuple(
            Evidence("kernel_rules", f"{self.shown} launch {self.number}: {rule}", _quote(one.message))
            for rule, one in told[:2]
        )

    def gain(self, *rules: str) -> float | None:
        """The largest of ncu's estimates for the launch as a whole, as a share of its time."""
        known = [one.speedup_pct for rule in rules for one in self.rules.get(rule, ()) if one.speedup_pct is not None]
        return max(known) / 100 if known else None


@dataclass(frozen=True)
class Rule:
    message: str
    speedup_pct: float | None
    """Of the whole launch; None where ncu gives none, or one of a part of the GPU only."""


METRICS = {
    "sectors": "memory_l2_theoretical_sectors_global",
    "ideal_sectors": "memory_l2_theoretical_sectors_global_ideal",
    "local_sectors": "memory_l2_theoretical_sectors_local",
    "fp32_peak": "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained",
    "fp64_peak": "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained",
}


def launches(report: Report) -> list[Launch]:
    frame = report.table("kernel_profiles")
    rows = _records(frame[frame["duration_ns"].notna()]) if frame is not None else []
    rules, metrics = _rules(report), _metrics(report)
    return [
        Launch(
            row["capture"],
            row["launch"],
            row["kernel"],
            row["short_name"] or function(row["kernel"]),
            row,
            rules.get((row["capture"], row["launch"]), {}),
            metrics.get((row["capture"], row["launch"]), {}),
        )
        for row in rows
        if row["duration_ns"] > 0 and math.isfinite(row["duration_ns"])
    ]


def _rules(report: Report) -> dict[tuple[str, int], dict[str, list[Rule]]]:
    frame = report.table("kernel_rules")
    found: dict[tuple[str, int], dict[str, list[Rule]]] = {}
    for row in _records(frame[frame["kind"].isin(("optimization", "warning"))]) if frame is not None else []:
        gain = row["speedup_pct"] if row["speedup_scope"] == "global" else None
        own = found.setdefault((row["capture"], row["launch"]), {})
        own.setdefault(row["rule"], []).append(Rule(row["message"] or "", gain))
    return found


def _metrics(report: Report) -> dict[tuple[str, int], dict[str, float]]:
    frame = report.table("kernel_metrics")
    if frame is None:
        return {}
    names = {metric: name for name, metric in METRICS.items()}
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in _records(frame[frame["metric"].isin(names) & frame["value"].notna()]):
        found.setdefault((row["capture"], row["launch"]), {})[names[row["metric"]]] = row["value"]
    return found


def _records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows as dicts, unknown values as None."""
    known = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in known.to_dict("records")]


# ---------------------------------------------------------------- how much of the run a kernel is


@dataclass(frozen=True)
class Weights:
    """The time of each kernel by name, in percent of `whole`. is_run: that is a part of the program's time."""

    whole: Whole
    pct: Mapping[str, float]
    is_run: bool
    sources: tuple[str, ...] = ()

    def of(self, name: str) -> float:
        """0 for a kernel that was not seen there."""
        exact = self.pct.get(name)
        if exact is not None:
            return exact
        plain, base = _plain(name), function(name)
        same = [pct for other, pct in self.pct.items() if _plain(other) == plain]
        alike = same or [pct for other, pct in self.pct.items() if function(other) == base]
        return sum(alike) if same or len(alike) == 1 else max(alike, default=0.0)


def _plain(name: str) -> str:
    """Without what versions of the tools spell differently: spaces, and the types before numbers."""
    return re.sub(r"\s|\((?:unsigned|signed|int|long|short|char|bool| )+\)(?=[-\d])", "", name)


def weights(report: Report, launches: Sequence[Launch]) -> Weights:
    """In the window of `gpu_time`; without that of all the time of kernels; without that of what ncu has measured."""
    return _in_window(report) or _of_kernel_time(report) or _of_launches(launches)


def _in_window(report: Report) -> Weights | None:
    gpus = [gpu for gpu in seen(report) if len(gpu.of_kind("kernel")) and gpu.window_ns]
    gpus = [gpu for gpu in gpus if gpu.capture == gpus[0].capture]
    if not gpus:
        return None
    first, total_ns = gpus[0], sum(gpu.window_ns for gpu in gpus)
    spent: dict[str, float] = {}
    for gpu in gpus:
        for name, ns in gpu.of_kind("kernel").groupby("name")["total_ns"].sum().items():
            spent[str(name)] = spent.get(str(name), 0.0) + float(ns)
    bare = steady(report).seconds if first.window == BY_STEPS else None
    whole = Whole(bare if bare is not None else total_ns / len(gpus) / 1e9, first.of)
    return Weights(whole, {name: 100 * ns / total_ns for name, ns in spent.items()}, True, (first.capture,))


def _of_kernel_time(report: Report) -> Weights | None:
    frame = report.table("gpu_kernel_summary")
    if frame is None or not frame["total_ns"].sum():
        return None
    capture = frame["capture"].iloc[0]
    by_name = frame[frame["capture"] == capture].groupby("name")["total_ns"].sum()
    total_ns = float(by_name.sum())
    pct = {str(name): 100 * float(ns) / total_ns for name, ns in by_name.items()}
    return Weights(Whole(total_ns / 1e9, "the time of all kernels"), pct, False, (capture,))


def _of_launches(launches: Sequence[Launch]) -> Weights:
    total_ns = sum(launch.ns for launch in launches)
    spent: dict[str, float] = {}
    for launch in launches:
        spent[launch.name] = spent.get(launch.name, 0.0) + launch.ns
    pct = {name: 100 * ns / total_ns for name, ns in spent.items()}
    return Weights(Whole(total_ns / 1e9, UNKNOWN_PART), pct, False)


def _quote(text: str) -> str:
    """Its beginning, up to a sentence's end where one is near."""
    text = " ".join(text.split())
    if len(text) <= QUOTE_CHARS:
        return text
    cut = text[:QUOTE_CHARS]
    end = cut.rfind(". ")
    return cut[: end + 1] if end > QUOTE_CHARS // 3 else f"{cut.rsplit(' ', 1)[0]} ..."


def _rounded(value: Any) -> float | str | None:
    return float(f"{value:.4g}") if isinstance(value, float) else value
