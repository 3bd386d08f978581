"""Reads .ncu-rep reports of Nsight Compute, of any version, through NVIDIA's own package `ncu_report` (no GPU needed).

The interface is described in NVIDIA's Nsight Compute guide ("Python Report Interface").
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from orchestrator.errors import ParseError
from orchestrator.tables import Table

Row: TypeAlias = tuple[Any, ...]

KINDS = {0: None, 1: "ok", 2: "optimization", 3: "warning", 4: "error"}
"""MsgType of a rule's message."""


def read(path: Path) -> tuple[Table, Table]:
    """`kernel_metrics` and `kernel_rules`. Raises ParseError for a file that is no report, or without the package.

    Launches count from 0, as ncu numbers them. Values that are text (a GPU's name) are no metrics and left out."""
    launches = _launches(path)
    metrics = Table.of("kernel_metrics", (row for n, launch in launches for row in _metrics(n, launch)))
    rules = Table.of("kernel_rules", (row for n, launch in launches for row in _rules(n, launch)))
    return metrics, rules


def _launches(path: Path) -> list[tuple[int, Any]]:
    """Every profiled launch. The package loads damaged files without complaint: as empty, or with unknown names."""
    try:
        import ncu_report
    except ImportError as error:
        raise ParseError(f"{path.name} needs NVIDIA's reader: pip install 'profrun[nvidia]' ({error})") from error
    try:
        report = ncu_report.load_report(str(path))
        ranges = [report.range_by_idx(i) for i in range(report.num_ranges())]
        found = [part.action_by_idx(i) for part in ranges for i in range(part.num_actions())]
    except Exception as error:  # the package raises whatever its C++ side throws
        raise ParseError(f"{path.name} is no readable report of ncu: {error}") from error
    if not found or any(launch.name() is None for launch in found):
        raise ParseError(f"{path.name} is no report of ncu, or a damaged one: no kernel can be read from it")
    return list(enumerate(found))


def _metrics(number: int, launch: Any) -> Iterator[Row]:
    kernel, grid, block = _name(launch), _shape(launch, "grid"), _shape(launch, "block")
    for name in sorted(launch.metric_names()):
        metric = launch.metric_by_name(name)
        value = metric.value()
        if not isinstance(value, str):
            yield None, number, kernel, grid, block, name, _number(value), metric.unit() or None


def _rules(number: int, launch: Any) -> Iterator[Row]:
    for rule in launch.rule_results():
        message = rule.rule_message() if rule.has_rule_message() else {}
        gain = rule.speedup_estimation() if rule.has_speedup_estimation() else {}
        text = ": ".join(part for part in (message.get("title"), message.get("message")) if part) or None
        kind = KINDS.get(message.get("type", 0))
        yield (
            None, number, _name(launch), rule.section_identifier(), rule.rule_identifier(), kind, text,
            _number(gain.get("speedup")),
        )  # fmt: skip


def _name(launch: Any) -> str:
    return str(launch.name(launch.NameBase_DEMANGLED) or launch.name())


def _shape(launch: Any, what: str) -> str | None:
    """Grid or block as x,y,z; a launch that failed has none."""
    found = [launch.metric_by_name(f"launch__{what}_dim_{axis}") for axis in "xyz"]
    if any(metric is None or metric.value() is None for metric in found):
        return None
    return ",".join(str(int(metric.value())) for metric in found)


def _number(value: Any) -> float | None:
    """None for what ncu did not collect: no value, or NaN after a launch that failed."""
    return None if value is None or not math.isfinite(value) else float(value)
