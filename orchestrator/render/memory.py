"""What PyTorch's allocators held over time, and which operators' blocks that was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import pagedata, plots, view
from orchestrator.render.pagedata import Grid
from orchestrator.render.plots import Mark, Plot, Series

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

POINTS = 2_000
"""More events than this are drawn as so many points, each the most and the least that was held meanwhile."""
SHOWN = 4
"""Of so many processes and devices together."""


@dataclass(frozen=True)
class Held:
    """The memory of one device in one process."""

    name: str
    told: str
    plot: Plot
    grid: Grid


def held(report: Report) -> list[Held]:
    """Each device of each process whose allocations were recorded, the one that held most first."""
    frame = report.table("memory")
    if frame is None or frame.empty or frame["allocated_bytes"].isna().all():
        return []
    frame = frame[frame["allocated_bytes"].notna() & frame["time_ns"].notna()]
    keys = ["capture", *(["rank"] if "rank" in frame and frame["rank"].nunique() > 1 else []), "pid", "device"]
    parts = [part.sort_values("time_ns", kind="stable") for _, part in frame.groupby(keys, dropna=False)]
    parts.sort(key=lambda part: -int(part["allocated_bytes"].max()))
    path = report.tables["memory"].path
    return [_held(i, part, keys, path) for i, part in enumerate(parts[:SHOWN], 1)]


def _held(serial: int, frame: pandas.DataFrame, keys: list[str], path: str) -> Held:
    first = frame.iloc[0]
    who = f", rank {first['rank']}" if "rank" in keys else ""
    name = f"{first['device']}{who}, {first['capture']}"
    peak = int(frame["allocated_bytes"].astype("int64").to_numpy().argmax())
    by_op = at_peak(frame, peak)
    return Held(name, _told(frame, peak, by_op), _plot(name, frame, peak), _grid(serial, name, by_op, frame, path))


def at_peak(frame: pandas.DataFrame, peak: int) -> pandas.DataFrame:
    """By operator: what of its blocks was alive when most was held, and all that it allocated."""
    until = frame.iloc[: peak + 1]
    last = until[until["address"].notna()].groupby("address", sort=False).tail(1)
    alive = last[last["bytes"] > 0].groupby(_ops(last))["bytes"].sum()
    made = frame[frame["bytes"] > 0]
    by_op = made.groupby(_ops(made))["bytes"].agg(["sum", "count", "max"])
    found = by_op.rename(columns={"sum": "allocated_bytes", "max": "largest_bytes"})
    found.insert(0, "peak_bytes", alive.reindex(found.index).fillna(0).astype("Int64"))
    return found.rename_axis("op").reset_index().sort_values(["peak_bytes", "allocated_bytes"], ascending=False)


def _ops(frame: pandas.DataFrame) -> pandas.Series:
    return frame["op"].fillna("outside of operators")


def _told(frame: pandas.DataFrame, peak: int, by_op: pandas.DataFrame) -> str:
    most = int(frame["allocated_bytes"].iloc[peak])
    known = int(by_op["peak_bytes"].sum())
    first = by_op.iloc[0]["op"] if len(by_op) else None
    told = f"At most {view.size(most)} were allocated at once"
    reserved = view.values(frame["reserved_bytes"].iloc[[peak]])[0]
    told += f", of {view.size(reserved)} that the allocator had reserved" if reserved else ""
    if known < 0.995 * most:
        told += f"; {view.size(most - known)} of them were there before the recording"
    return told + (f". Most of what is known was allocated in {first}." if known and first else ".")


def _plot(name: str, frame: pandas.DataFrame, peak: int) -> Plot:
    place = plots.grouped(len(frame), POINTS)
    size = int((place == 0).sum())
    groups = frame["allocated_bytes"].astype("float64").groupby(place)
    most, least = groups.max().tolist(), groups.min().tolist()
    seconds = ((frame["time_ns"] - int(frame["time_ns"].iloc[0])).astype("float64") / 1e9).tolist()
    op = frame["op"].iloc[peak]
    said = view.size(int(frame["allocated_bytes"].iloc[peak])) or ""
    told = f"most at once: {said}" + (f", in {op}" if isinstance(op, str) else "")
    series = [Series("allocated" if size == 1 else "most allocated", most, "curve", "line")]
    series += [Series("least allocated", least, role="low")] if size > 1 else []
    return plots.plot(
        f"Memory allocated on {name} over time: at most {said}",
        seconds[::size],
        series,
        over="s",
        unit="bytes",
        high=1.08 * max(most),
        marks=(Mark("peak", seconds[::size][place[peak]], max(most), told, said),),
    )


_MEANINGS = {
    "op": ("operator", "innermost operator in which it was allocated"),
    "peak_bytes": ("held at the peak", "blocks of it that were alive when most was allocated"),
    "allocated_bytes": ("allocated in all", "sum of all its allocations, freed or not"),
    "count": ("allocations", "how many"),
    "largest_bytes": ("largest", "its largest single allocation"),
}


def _grid(serial: int, name: str, by_op: pandas.DataFrame, frame: pandas.DataFrame, path: str) -> Grid:
    chosen = by_op.head(pagedata.ROWS)
    columns: list[dict[str, Any]] = []
    for key, (label, meaning) in _MEANINGS.items():
        described = {"meaning": meaning, "unit": "bytes" if key.endswith("bytes") else ""}
        columns.append({**pagedata.plain_column(key, by_op, chosen, described), "label": label})
        if key == "peak_bytes":
            columns.append(_share(frame, chosen))
    return Grid(
        f"memory {serial} by operator",
        "Largest allocations by operator",
        name,
        path,
        total=len(by_op),
        shown=len(chosen),
        by="held at the peak",
        same=(),
        empty=(),
        data=pagedata.inert({"columns": columns, "sort": "peak_bytes"}),
    )


def _share(frame: pandas.DataFrame, chosen: pandas.DataFrame) -> dict[str, Any]:
    most = int(frame["allocated_bytes"].max())
    values = [round(v / most, 9) if most else None for v in chosen["peak_bytes"].tolist()]
    head = {"key": "peak_share", "label": "share", "unit": f"of {view.size(most)}", "type": "share"}
    return {**head, "meaning": "the part of the most that was allocated at once", "values": values}
