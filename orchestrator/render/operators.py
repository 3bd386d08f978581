"""PyTorch's operators by their own time, shapes added up, with what their shares are parts of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.render import pagedata, view
from orchestrator.render.pagedata import Grid

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

SHOWN = 4
"""Of so many captures and ranks together; the others are in the table `torch_ops`."""
LABELS = {
    "name": "operator",
    "cpu_self_ns": "CPU self",
    "cpu_total_ns": "CPU total",
    "gpu_self_ns": "GPU self",
    "gpu_total_ns": "GPU total",
    "cpu_self_memory_bytes": "CPU memory",
    "gpu_self_memory_bytes": "GPU memory",
    "flops": "FLOP",
}
_MEANING = "self: without what it calls; total: with it; input shapes added up"
STEP = "ProfilerStep*"
_SUMS = (
    "count", "gpu_self_ns", "gpu_total_ns", "cpu_self_ns", "cpu_total_ns", "cpu_self_memory_bytes",
    "gpu_self_memory_bytes", "flops",
)  # fmt: skip


def operators(report: Report) -> list[tuple[str, pandas.DataFrame]]:
    """(capture and rank, operators with columns of `torch_ops`), the costliest first. Only the CPU's rows: the time of
    a kernel stands with the operator that launched it as well, and would count twice."""
    frame = report.table("torch_ops")
    if frame is None or frame.empty:
        return []
    own = frame[frame["device"] == "cpu"]
    ranked = "rank" in own.columns and own["rank"].notna().any()
    found = []
    for key, part in own.groupby(["capture", "rank"] if ranked else ["capture"], dropna=False, sort=True):
        sums = part.groupby("name", sort=False)[list(_SUMS)].sum(min_count=1).reset_index()
        sums.attrs.update(frame.attrs)
        cost = cost_column(sums)
        if cost is not None:
            name = str(key[0]) + (f", rank {key[1]}" if ranked else "")
            found.append((name, sums.sort_values(cost, ascending=False, kind="stable")))
    return found


def cost_column(frame: pandas.DataFrame) -> str | None:
    """The GPU's time where there is any, else the CPU's."""
    return next((c for c in ("gpu_self_ns", "cpu_self_ns") if (frame[c].fillna(0) > 0).any()), None)


def whole(frame: pandas.DataFrame, column: str) -> str:
    """What the shares of a column are parts of: `3.12 s of self CPU time`."""
    place = "GPU" if column.startswith("gpu") else "CPU"
    return f"{view.duration(float(frame[column].sum()) / 1e9)} of self {place} time"


def grids(report: Report) -> list[Grid]:
    """One table for each capture and rank, with shares of both times."""
    found = operators(report)
    info = report.tables.get("torch_ops")
    return [_grid(i, name, frame, info.path if info else "") for i, (name, frame) in enumerate(found[:SHOWN], 1)]


def _grid(serial: int, name: str, frame: pandas.DataFrame, path: str) -> Grid:
    chosen = frame.head(pagedata.ROWS)
    empty = [c for c in _SUMS if not (frame[c].fillna(0) != 0).any()]
    has_steps = bool((frame["name"] == STEP).any())
    described = frame.attrs.get("columns", {})
    columns: list[dict[str, Any]] = []
    for key in ("name", *(c for c in _SUMS if c not in empty)):
        column = pagedata.plain_column(key, frame, chosen, described.get(key, {}))
        columns.append({**column, "label": LABELS.get(key, column["label"])})
        if key in ("cpu_self_ns", "gpu_self_ns"):
            columns.append(_share(key, frame, chosen))
    return Grid(
        f"operators {serial}",
        name,
        _MEANING + (f"; {STEP} is a step itself, its own time is that outside of operators" if has_steps else ""),
        path,
        total=len(frame),
        shown=len(chosen),
        by="own time",
        same=(),
        empty=(),
        data=pagedata.inert({"columns": columns, "sort": cost_column(frame)}),
    )


def _share(key: str, frame: pandas.DataFrame, chosen: pandas.DataFrame) -> dict[str, Any]:
    total = float(frame[key].sum())
    values = [None if v is None or not total else round(v / total, 9) for v in view.values(chosen[key])]
    meaning = f"the row's part of the self {key[:3].upper()} time of all operators of this capture"
    head = {"key": f"{key}_share", "label": "share", "unit": f"of {whole(frame, key)}", "type": "share"}
    return {**head, "meaning": meaning, "values": values}
