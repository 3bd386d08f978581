"""What a launch's metrics say together: what bounds it, what limits its occupancy, its place under the roofline.

The definitions are NVIDIA's own, from the section and rule files that come with Nsight Compute 2022.3 (also in its
Kernel Profiling Guide, "Roofline Charts"): SpeedOfLight.section, Occupancy.section, SpeedOfLight.py (the rule
SOLBottleneck), SpeedOfLight_RooflineChart.section and SpeedOfLight_Hierarchical*RooflineChart.section."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.formats.ncu_launch import Launch

LATENCY_PCT = 60.0
NO_BOUND_PCT = 80.0
BALANCED_PCT = 10.0
"""latency_bound_threshold, no_bound_threshold and balanced_threshold of the rule SOLBottleneck."""

PEAK = ".avg.pct_of_peak_sustained_"
UNITS = {
    "sm_pct": (f"sm__throughput{PEAK}elapsed",),
    "memory_pct": (f"gpu__compute_memory_throughput{PEAK}elapsed",),
    "dram_pct": (f"gpu__dram_throughput{PEAK}elapsed", f"dram__throughput{PEAK}elapsed"),
    "l1_pct": (f"l1tex__throughput{PEAK}active", f"l1tex__throughput{PEAK}elapsed"),
    "l2_pct": (f"lts__throughput{PEAK}elapsed",),
    "tensor_pct": (f"sm__pipe_tensor_cycles_active{PEAK}elapsed", f"sm__pipe_tensor_cycles_active{PEAK}active"),
}
"""Where the throughput of each unit stands; the second of two is taken where only that was collected."""

LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
"""Blocks that fit on a multiprocessor, by what each of its resources has room for."""


def profile(launch: Launch) -> dict[str, Any]:
    """The row of `kernel_profiles`, without capture."""
    units = {column: launch.value(*names) for column, names in UNITS.items()}
    return {
        "pid": launch.pid,
        "launch": launch.number,
        "kernel": launch.kernel,
        "short_name": launch.short_name,
        "grid": launch.grid,
        "block": launch.block,
        "gpu": launch.gpu,
        "bound": bound(units["sm_pct"], units["memory_pct"]),
        "duration_ns": launch.value("gpu__time_duration.sum"),
        **units,
        **_roofline(launch),
        "achieved_occupancy_pct": launch.value(f"sm__warps_active{PEAK}active"),
        "theoretical_occupancy_pct": launch.value("sm__maximum_warps_per_active_cycle_pct"),
        "occupancy_limit": occupancy_limit(launch),
        "blocks": _whole(_first(launch.value("launch__grid_size"), _product(launch.grid))),
        "threads": _whole(_first(launch.value("launch__thread_count"), _product(launch.grid, launch.block))),
        "sms": _whole(launch.value("device__attribute_multiprocessor_count", "launch__sm_count")),
        "waves": launch.value("launch__waves_per_multiprocessor"),
        "registers": _whole(launch.value("launch__registers_per_thread")),
        "static_shared_bytes": _whole(launch.value("launch__shared_mem_per_block_static")),
        "dynamic_shared_bytes": _whole(launch.value("launch__shared_mem_per_block_dynamic")),
    }


def bound(sm_pct: float | None, memory_pct: float | None) -> str | None:
    """What holds a launch back, by the throughputs of the multiprocessors and of memory, as SOLBottleneck says it.

    Both below 60 %: latency. One of them at 80 % or more: the higher one, compute where they are equal. Between: the
    higher one, or balanced where they are less than 10 apart."""
    if sm_pct is None or memory_pct is None:
        return None
    higher = max(sm_pct, memory_pct)
    if higher < LATENCY_PCT:
        return "latency"
    if higher < NO_BOUND_PCT and abs(sm_pct - memory_pct) < BALANCED_PCT:
        return "balanced"
    return "compute" if sm_pct >= memory_pct else "memory"


def occupancy_limit(launch: Launch) -> str | None:
    """The resource that lets the fewest blocks onto a multiprocessor, several where they tie; None where all warps
    fit."""
    if launch.value("sm__maximum_warps_per_active_cycle_pct") == 100.0:
        return None
    limits = {name: value for name, metric in LIMITS.items() if (value := launch.value(metric)) is not None}
    return ", ".join(name for name, value in limits.items() if value == min(limits.values())) or None


# ---------------------------------------------------------------- the roofline


@dataclass(frozen=True)
class Work:
    """Operations of one precision. flops: in all; rate and peak: a second; what was not collected is None."""

    precision: str
    flops: float | None
    rate: float | None
    peak: float | None

    @property
    def share(self) -> float:
        """Of its own peak; where that is unknown, the more operations the more."""
        return _ratio(self.rate, self.peak) or 1e-30 * (self.flops or 0.0)


SCALAR = {"fp32": ("f", 1, 2), "fp64": ("d", 1, 2), "fp16": ("h", 2, 4)}
"""By precision: letter in the metrics' names, operations of an addition or multiplication, of a fused one. The first
stands for a launch without any. Halves come in pairs, as newer versions count them (derived__..._hfma_pred_on_x4);
2022.3 counts half as many."""

_TENSOR = re.compile(r"sm__ops_path_tensor_(?:op_\w+?_)?src_((?:fp|bf|tf)\d+)\w*\.sum(?:\.per_cycle_elapsed)?")


def _roofline(launch: Launch) -> dict[str, Any]:
    """The point of the precision that is nearest to its peak, as its roofline chart has it, with DRAM as the memory."""
    dram_bytes = _dram_bytes(launch)
    works = [work for work in (*_scalar(launch), *_tensor(launch)) if work.flops is not None or work.rate is not None]
    found = max(works, key=lambda work: work.share, default=Work("", None, None, None))
    intensity = _ratio(found.flops, dram_bytes)
    bandwidth = _product_of(
        launch.value("dram__bytes.sum.peak_sustained"), launch.value("dram__cycles_elapsed.avg.per_second")
    )
    reached = _product_of(intensity, bandwidth)
    roof = None if reached is None or found.peak is None else min(found.peak, reached)
    return {
        "dram_bytes": dram_bytes,
        "precision": found.precision or None,
        "flops": found.flops,
        "flops_per_byte": intensity,
        "ridge_flops_per_byte": _ratio(found.peak, bandwidth),
        "roof_pct": _product_of(100.0, _ratio(found.rate, roof)),
    }


def _scalar(launch: Launch) -> Iterator[Work]:
    for precision, (letter, simple, fused) in SCALAR.items():
        weights = {f"{letter}add": simple, f"{letter}mul": simple, f"{letter}fma": fused}
        peak = launch.value(f"sm__sass_thread_inst_executed_op_{letter}fma_pred_on.sum.peak_sustained")
        total = _weighted(launch, weights, ".sum")
        cycle = _weighted(launch, weights, ".sum.per_cycle_elapsed")
        yield _work(launch, precision, total, cycle, _product_of(fused, peak))


def _weighted(launch: Launch, weights: dict[str, int], what: str) -> float | None:
    """Operations by instructions; None unless all kinds of them were counted."""
    counts = [
        _product_of(
            weight,
            launch.value(*(f"{unit}__sass_thread_inst_executed_op_{op}_pred_on{what}" for unit in ("smsp", "sm"))),
        )
        for op, weight in weights.items()
    ]
    return None if None in counts else sum(count for count in counts if count is not None)


def _tensor(launch: Launch) -> Iterator[Work]:
    """Tensor cores, by the type of what they multiply. Versions before 2023 count only their instructions, whose work
    depends on the GPU, so of those nothing is known."""
    for name in launch.metrics:
        if found := _TENSOR.fullmatch(name):
            base = name.removesuffix(".per_cycle_elapsed")
            cycle = launch.value(f"{base}.per_cycle_elapsed")
            yield _work(launch, f"{found[1]} tensor", launch.value(base), cycle, launch.value(f"{base}.peak_sustained"))


def _work(launch: Launch, precision: str, total: float | None, cycle: float | None, peak: float | None) -> Work:
    """From operations in all or a cycle, and from the peak a cycle."""
    hz = launch.value("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
    seconds = _product_of(1e-9, launch.value("gpu__time_duration.sum"))
    rate = _first(_product_of(cycle, hz), _ratio(total, seconds))
    peak_hz = launch.value("sm__cycles_elapsed.avg.per_second")
    return Work(precision, _first(total, _product_of(rate, seconds)), rate, _product_of(peak, peak_hz))


def _dram_bytes(launch: Launch) -> float | None:
    """Traffic with DRAM: counted, or as bandwidth times duration."""
    read, written = launch.value("dram__bytes_read.sum"), launch.value("dram__bytes_write.sum")
    both = None if read is None or written is None else read + written
    rate, ns = launch.value("dram__bytes.sum.per_second"), launch.value("gpu__time_duration.sum")
    return _first(launch.value("dram__bytes.sum"), both, _product_of(rate, ns, 1e-9))


# ---------------------------------------------------------------- arithmetic with what may be unknown


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _product_of(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    product = math.prod(known)
    return product if len(known) == len(values) and math.isfinite(product) else None


def _ratio(above: float | None, below: float | None) -> float | None:
    if above is None or not below:
        return None
    ratio = above / below
    return ratio if math.isfinite(ratio) else None


def _product(*shapes: str | None) -> float | None:
    """Number of blocks or threads of x,y,z."""
    return (
        _product_of(*(float(size) for shape in shapes for size in (shape or "").split(",") if size))
        if all(shapes)
        else None
    )


def _whole(value: float | None) -> int | None:
    """The nearest integer; None for what no column holds."""
    return round(value) if value is not None and abs(value) < 2**63 else None
