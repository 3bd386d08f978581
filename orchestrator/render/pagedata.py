"""What the page's script draws: tables and flame graphs, as JSON that is inert inside HTML and not too long."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.render import view

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

ROWS = 250
"""Rows of a table in the page; the rest is in its Parquet file."""
TEXT_BUDGET_BYTES = 1_000_000
"""For the text of all tables of the page together."""
NODES = 50_000
"""For all flame graphs of the page together."""

_IDENTIFIERS = frozenset(
    {"capture", "kind", "time", "process", "domain", "pid", "thread", "rank", "device", "stream", "line", "correlation"}
    | {"graph_id", "launch", "repeat", "step", "exit_status", "registers"}
)
"""Columns whose numbers are names: they are written without separators."""
_CODE = frozenset(
    {"name", "function", "file", "stack", "path", "args", "result", "kernel", "short_name", "metric", "names"}
)
_LIFTED = _IDENTIFIERS - {"line", "stream", "correlation", "launch", "repeat", "step", "exit_status", "registers"}


@dataclass(frozen=True)
class Grid:
    """A table of the page. `data`: {columns: [{key, label, unit, meaning, type, factor, places, values}], sort}."""

    name: str
    title: str
    meaning: str
    path: str
    total: int
    shown: int
    by: str | None
    """The label of the column by whose largest values the rows were chosen; None: the first rows."""
    same: tuple[tuple[str, str], ...]
    """Columns that have one value in every row."""
    empty: tuple[str, ...]
    """Columns in which no row has a value."""
    data: str


@dataclass(frozen=True)
class Flame:
    """One flame graph: the stacks of one kind of one capture. `data` is its JSON block."""

    label: str
    data: str


def inert(value: Any) -> str:
    """JSON for a <script type="application/json">: no character in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def grids(report: Report) -> list[Grid]:
    """Every table of the report that holds rows, in reading order."""
    budget = TEXT_BUDGET_BYTES // max(4, len(report.tables))
    found = []
    for name in view.table_names(report):
        frame = report.table(name)
        if frame is None or frame.empty:
            continue
        path = report.tables[name].path
        if name == "syscalls" and (classes := _by_class(frame)) is not None:
            found.append(_grid("syscalls_by_class", classes, path, budget))
        found.append(_grid(name, frame, path, budget))
    return found


def _by_class(frame: pandas.DataFrame) -> pandas.DataFrame | None:
    """Calls, errors and time of each class of system calls; None where no class is known."""
    if frame["class"].isna().all():
        return None
    keys = ["capture", "class", "time"]
    sums = frame.groupby(keys, dropna=False, sort=False)[["count", "errors", "total_ns"]].sum(min_count=1).reset_index()
    sums.attrs.update(frame.attrs)
    return sums


def _grid(name: str, frame: pandas.DataFrame, path: str, budget: int) -> Grid:
    described: Mapping[str, Mapping[str, str]] = frame.attrs.get("columns", {})
    chosen = _within(view.ranked(frame, ROWS), budget)
    empty = [c for c in frame.columns if frame[c].isna().all()]
    same = [c for c in frame.columns if c in _LIFTED and c not in empty and len(frame) > 1 and _constant(frame[c])]
    columns = [_column(c, frame, chosen, described.get(c, {})) for c in frame.columns if c not in {*empty, *same}]
    cost = view.cost_column(frame)
    if "self_pct" not in frame.columns and (part := view.shares(name, frame)):
        columns.append(_share(part, chosen))
    label = next((c["label"] for c in columns if c["key"] == cost), None)
    return Grid(
        name,
        view.title(name),
        view.TABLES.get(name, ("", ""))[1],
        path,
        total=len(frame),
        shown=len(chosen),
        by=label,
        same=tuple((view.words(c), str(frame[c].iloc[0])) for c in same),
        empty=tuple(view.words(c) for c in empty),
        data=inert({"columns": columns, "sort": cost}),
    )


def _constant(series: pandas.Series) -> bool:
    return int(series.nunique(dropna=False)) == 1


def _within(frame: pandas.DataFrame, budget: int) -> pandas.DataFrame:
    """As many of the first rows as have their text within the budget, at least one."""
    texts = [frame[c].fillna("").str.len() for c in frame.columns if str(frame[c].dtype).startswith("str")]
    if not texts:
        return frame
    spent = sum(texts[1:], texts[0]).cumsum()
    return frame.head(max(1, int((spent <= budget).sum())))


def _column(
    name: str, frame: pandas.DataFrame, chosen: pandas.DataFrame, described: Mapping[str, str]
) -> dict[str, Any]:
    unit = described.get("unit")
    label = view.words(re.sub(r"(?<=.)_(ns|pct|s|bytes)$", "", name))
    column = {
        "key": name,
        "label": label,
        "unit": "",
        "meaning": described.get("meaning", ""),
        "factor": 1,
        "places": None,
    }
    series = chosen[name]
    if str(series.dtype).startswith("str"):
        texts = [None if v is None else view.visible(v) for v in view.values(series)]
        return {**column, "type": "code" if name in _CODE else "text", "values": texts}
    if name in _IDENTIFIERS:
        return {**column, "type": "id", "values": view.values(series)}
    if name in ("start_ns", "started_ns"):
        return {**column, **_offsets(frame[name], series, frame.attrs.get("clock", "relative"))}
    if name in ("self_pct", "total_pct") and (part := view.shares("functions", frame)):
        return {**column, "type": "share", "unit": f"of {part[1]}", "values": _parts(series / 100)}
    largest = float(frame[name].abs().max())
    factor, shown = view.scale(unit, largest)
    whole = factor == 1 and str(series.dtype).startswith("Int")
    places = None if whole or not unit else view.decimals(largest / factor / 1000)
    return {
        **column,
        "type": "number",
        "unit": shown,
        "factor": factor,
        "places": places,
        "values": view.values(series),
    }


def _offsets(whole: pandas.Series, series: pandas.Series, clock: str) -> dict[str, Any]:
    """Moments as seconds after the first of them; ns since the Unix epoch are more than a script's numbers can hold."""
    first = int(whole.min())
    epoch = clock.startswith("epoch") or first > 10**18
    moment = datetime.fromtimestamp(first / 1e9, tz=timezone.utc).strftime("%H:%M:%S.%f")[:-3]
    unit = f"s after {moment} UTC" if epoch else "s after the first row's"
    values = [None if v is None else v - first for v in view.values(series)]
    return {"type": "number", "unit": unit, "factor": 1e9, "places": 4, "values": values}


def _share(part: tuple[pandas.Series, str], chosen: pandas.DataFrame) -> dict[str, Any]:
    head = {"key": "share", "label": "share", "unit": f"of {part[1]}", "type": "share"}
    meaning = "the row's part of the sum over all rows of the table"
    return {**head, "meaning": meaning, "values": _parts(part[0].loc[chosen.index])}


def _parts(series: pandas.Series) -> list[float | None]:
    return [None if v is None else round(v, 5) for v in view.values(series)]


def flames(report: Report) -> list[Flame]:
    """A flame graph for each kind of stacks of each capture, processes and threads as its two lowest levels."""
    frame = report.table("stacks")
    if frame is None or frame.empty:
        return []
    groups = list(frame.groupby(["capture", "kind"], dropna=False, sort=False))
    return [_flame(str(capture), kind, part, NODES // len(groups)) for (capture, kind), part in groups]


ORIGINS = ("own", "lib", "native", "python")
"""Whose code a frame is, in the order of the script's colours."""
KINDS: Mapping[str, str] = {
    "wall": "all time, waiting included",
    "gil": "time holding Python's lock (GIL)",
    "cpu": "time on a processor",
}


def _flame(capture: str, kind: Any, part: pandas.DataFrame, nodes: int) -> Flame:
    from orchestrator.render import flamegraph

    timed = bool(part["weight_ns"].notna().any())
    weights = part["weight_ns" if timed else "samples"].fillna(0).astype("int64").tolist()
    tree = flamegraph.tree(zip(_stacks(part), weights, strict=True), nodes)
    unit = math.gcd(*tree["nodes"]["total"], *tree["nodes"]["self"]) or 1
    small = {k: [v // unit for v in tree["nodes"][k]] for k in ("total", "self")}
    data = {
        "frames": [view.visible(name) for name in tree["frames"]],
        "origins": [ORIGINS.index(flamegraph.origin(name)) for name in tree["frames"]],
        "nodes": {"depth": tree["nodes"]["depth"], "frame": tree["nodes"]["frame"], **small},
        "unit": "ns" if timed else "samples",
        "factor": unit,
        "left_out": tree["left_out"],
    }
    return Flame(f"{capture}: {KINDS.get(kind, kind)}", inert(data))


def _stacks(part: pandas.DataFrame) -> Iterator[str]:
    """Each stack below its process and its thread."""
    pids = (None if v is None else int(v) for v in view.values(part["pid"]))
    for pid, process, thread, stack in zip(
        pids, *(view.values(part[c]) for c in ("process", "thread", "stack")), strict=True
    ):
        who = f"{process or 'process'} [{pid if pid is not None else 'pid unknown'}]"
        yield ";".join((_part(who), _part(thread or "thread unknown"), stack or "stack unknown"))


def _part(name: str) -> str:
    return name.replace(";", ",")
