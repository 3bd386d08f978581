"""What each GPU did over its span: computing, communicating, copying, idle; what its gaps waited for; its copies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import view

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

CAUSES = 8
"""Rows of what the gaps waited for."""
_SERIAL = re.compile(r"(?<![A-Za-z0-9_.])\d+$")
"""The number at the end of `step 17`, `ProfilerStep#17`: of what comes again and again the name is enough."""


@dataclass(frozen=True)
class Part:
    """A part of the span; the parts are disjoint and add up to it. `share` is of the span, 0 to 1."""

    key: str
    name: str
    ns: int
    share: float


@dataclass(frozen=True)
class Cause:
    """Gaps in which the launching thread did the same. `share` is of the device's idle time, 0 to 1."""

    kind: str
    did: str
    where: str | None
    count: int
    total_ns: int
    longest_ns: int
    share: float


@dataclass(frozen=True)
class Copies:
    """Transfers of one kind. `bandwidth` in bytes per second; `pageable` is the share of bytes from or to pageable
    memory, None where that is not known or does not apply."""

    name: str
    count: int
    total_ns: int
    size: float | None
    bandwidth: float | None
    pageable: float | None


@dataclass(frozen=True)
class Device:
    """One GPU in one capture."""

    capture: str
    name: str
    span_ns: int
    parts: tuple[Part, ...]
    facts: tuple[tuple[str, str | None], ...]
    causes: tuple[Cause, ...]
    idle_ns: int
    unexplained: int
    """Gaps that are not among those of which the causes are told: only the longest are kept."""

    @property
    def told(self) -> str:
        """The one line that a reader needs."""
        busy = view.percent(1 - self.idle_ns / self.span_ns)
        return f"busy for {busy} of the {view.duration(self.span_ns / 1e9)} from its first work to the end of its last"


def devices(report: Report, rows: Sequence[dict[str, Any]] | None = None) -> list[Device]:
    """The GPUs that did any work, capture by capture; or those of these rows."""
    known = known_rows(report)
    numbers = [_number(row) for row in known]
    chosen = known if rows is None else rows
    return [_device(row, gaps_of(report, row), numbers.count(_number(row)) > 1) for row in chosen]


def gaps_of(report: Report, row: dict[str, Any]) -> pandas.DataFrame | None:
    """Its rows of `gpu_gaps`; None where there is no such table."""
    frame = report.rows("gpu_gaps", [row["capture"]])
    return None if frame is None else rows_of(frame, row)


def known_rows(report: Report) -> list[dict[str, Any]]:
    """The rows of `gpu_utilization` that tell of a span and what of it was idle."""
    frame = report.table("gpu_utilization")
    found = [] if frame is None else records(frame)
    return [row for row in found if row["span_ns"] and row["idle_ns"] is not None]


def most_idle(report: Report, count: int) -> list[dict[str, Any]]:
    """So many of these rows, in their order: of more, those of the GPUs that were idle for the largest part."""
    rows = known_rows(report)
    ranked = sorted(range(len(rows)), key=lambda n: -rows[n]["idle_ns"] / rows[n]["span_ns"])
    return [rows[n] for n in sorted(ranked[:count])]


def _number(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["capture"], row.get("rank"), row["device"]


def _device(row: dict[str, Any], own: pandas.DataFrame | None, ambiguous: bool) -> Device:
    """`ambiguous`: several processes call a GPU by this number, and nothing says whether it is the same one."""
    kept = 0 if own is None else len(own)
    number = row["device"]
    name = " ".join(str(t) for t in (row["gpu"] or "GPU", f"(device {number})" if number is not None else "") if t)
    rank = f", rank {row['rank']}" if row.get("rank") is not None else ""
    process = f", as process {row['pid']} sees it" if ambiguous and row["pid"] is not None else ""
    return Device(
        capture=row["capture"],
        name=name + rank + process,
        span_ns=row["span_ns"],
        parts=_parts(row),
        facts=_facts(row),
        causes=() if own is None else _causes(own, row["idle_ns"]),
        idle_ns=row["idle_ns"],
        unexplained=max(0, (row["gaps"] or 0) - kept),
    )


def rows_of(frame: pandas.DataFrame, row: dict[str, Any]) -> pandas.DataFrame:
    """The rows of the GPU of a row of `gpu_utilization`, without attributes, which pandas copies at each operation."""
    frame = frame.copy(deep=False)
    frame.attrs = {}
    chosen = (frame["capture"] == row["capture"]) & (frame["device"] == row["device"])
    if row.get("rank") is not None and "rank" in frame.columns:
        chosen &= frame["rank"] == row["rank"]
    chosen &= frame["pid"].isna() if row["pid"] is None else frame["pid"] == row["pid"]
    return frame[chosen.fillna(False)]


def _parts(row: dict[str, Any]) -> tuple[Part, ...]:
    """Kernels hide what runs beside them: communication and copies count where nothing computes. What is not known is
    left out."""
    named = (
        ("compute", "computing", _less(row["kernel_ns"], row["exposed_communication_ns"])),
        ("communication", "communicating, nothing computing beside it", row["exposed_communication_ns"]),
        ("transfer", "copying, no kernel beside it", row["exposed_transfer_ns"]),
        ("idle", "idle", row["idle_ns"]),
    )
    return tuple(Part(key, name, ns, ns / row["span_ns"]) for key, name, ns in named if ns is not None)


def _less(whole: int | None, part: int | None) -> int | None:
    return None if whole is None or part is None else whole - part


def _facts(row: dict[str, Any]) -> tuple[tuple[str, str | None], ...]:
    span = row["span_ns"]
    empty = None if row["queue_empty_ns"] is None else view.percent(row["queue_empty_ns"] / span)
    graphs = (("CUDA graphs traced as a whole", f"{row['graphs']:,}"),) if row["graphs"] else ()
    many = row["max_concurrency"]
    return (
        ("kernels", None if row["kernels"] is None else f"{row['kernels']:,}"),
        *graphs,
        ("copies and sets", None if row["transfers"] is None else f"{row['transfers']:,}"),
        ("streams", view.plain(row["streams"])),
        ("at once while busy", None if many is None else f"{row['concurrency']:.2f} on average, at most {many:,}"),
        (
            "waiting in its queue",
            None if row["queue_mean"] is None else f"{row['queue_mean']:.1f} on average, at most {row['queue_max']:,}",
        ),
        ("queue empty", None if empty is None else f"{empty} of the span"),
        ("gaps", None if row["gaps"] is None else f"{row['gaps']:,}"),
    )


def _causes(gaps: pandas.DataFrame, idle_ns: int) -> tuple[Cause, ...]:
    """The gaps by what the launching thread did in them and in which range, the costliest first."""
    found: dict[tuple[str, str, str | None], list[int]] = {}
    for gap in records(gaps[[name for name in _TOLD if name in gaps.columns]]):
        where = gap["range"] and _SERIAL.sub("*", gap["range"])
        key = (gap["kind"] or view.UNKNOWN, did(gap), where)
        found.setdefault(key, []).append(gap["duration_ns"])
    ranked = sorted(found.items(), key=lambda item: -sum(item[1]))
    return tuple(
        Cause(kind, what, where, len(spans), sum(spans), max(spans), sum(spans) / idle_ns if idle_ns else 0.0)
        for (kind, what, where), spans in ranked[:CAUSES]
    )


_TOLD = ("range", "kind", "duration_ns", "api", "api_ns", "os_call", "os_call_ns", "function", "thread")


def did(gap: dict[str, Any]) -> str:
    """What the launching thread did for most of a gap: the call that covers half of it, else its own code. Without a
    record of system calls nobody knows whether it computed or waited."""
    half = (gap["duration_ns"] or 0) / 2
    for name, spent in (("api", "api_ns"), ("os_call", "os_call_ns")):
        if gap[name] is not None and (gap[spent] or 0) >= half:
            return str(gap[name])
    if gap["function"] is not None:
        return f"{gap['function']} (sampled)"
    if gap["thread"] is None:
        return "launch not seen"
    if gap["kind"] == "queued":
        return "launched before; waits on the device"
    return "no CUDA call; system calls were not recorded" if gap["os_call_ns"] is None else "its own code"


def copies(report: Report) -> list[tuple[str, list[Copies]]]:
    """(capture, transfers by kind, the longest first)."""
    frame = report.table("gpu_transfer_summary")
    if frame is None:
        return []
    found: dict[str, list[Copies]] = {}
    for row in sorted(records(frame), key=lambda r: -(r["total_ns"] or 0)):
        size, spent = row["bytes"], row["total_ns"]
        loose = None if "memset" in row["name"] else row["pageable_bytes"]  # a set reads no memory of the host
        found.setdefault(row["capture"], []).append(
            Copies(
                name=row["name"],
                count=row["count"],
                total_ns=spent,
                size=size,
                bandwidth=size / spent * 1e9 if size is not None and spent else None,
                pageable=loose / size if loose is not None and size else None,
            )
        )
    return list(found.items())


def rate(per_second: float | None) -> str | None:
    """12.3 GB/s."""
    return None if per_second is None else f"{view.size(per_second)}/s"


def records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    """The rows with None for what is not known."""
    columns = {name: view.values(frame[name]) for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
