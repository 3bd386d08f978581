"""The tables that the page's script draws, as JSON that is inert inside HTML and not too long."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from orchestrator.render import view

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

ROWS = 250
"""Rows of a table in the page; the rest is in its Parquet file."""
LONG_ROWS = 500_000
"""Of a longer table only the rows that are shown are read; it need not fit into memory."""
ROWS_OF = {"stacks": 50, "stack_spans": 50}
STACK_CHARACTERS = 600
"""Fewer stacks, and of a long one both ends: the flame graph shows them all, the table's file has every letter."""
TEXT_BUDGET_BYTES = 1_000_000
"""For the text of all tables of the page together."""

_IDENTIFIERS = frozenset(
    {"capture", "kind", "time", "process", "domain", "pid", "thread", "rank", "device", "stream", "line", "correlation"}
    | {"tid", "graph_id", "launch", "repeat", "step", "exit_status", "registers"}
)
"""Columns whose numbers are names: they are written without separators."""
_CODE = frozenset(
    {
        "name",
        "function",
        "file",
        "stack",
        "path",
        "args",
        "result",
        "kernel",
        "short_name",
        "metric",
        "names",
        "op",
        "event",
    }
)
_BLANK = frozenset({"unit", "metric_unit", "stall", "below", "behind"})
"""Columns in which nothing means that there is none, such as the unit of a plain count."""
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

    @property
    def id(self) -> str:
        """Its name as a part of an element's id."""
        return self.name.replace(" ", "-")


def inert(value: Any) -> str:
    """JSON for a <script type="application/json">: no character in it can end the element or open a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def grids(report: Report) -> list[Grid]:
    """Every table of the report that holds rows, in reading order."""
    budget = TEXT_BUDGET_BYTES // max(4, len(report.tables))
    found = []
    for name in view.table_names(report):
        info = report.tables[name]
        is_long = info.rows > LONG_ROWS
        frame = report.longest(name, ROWS_OF.get(name, ROWS), view.COSTS) if is_long else report.table(name)
        if frame is None or frame.empty:
            continue
        path = report.tables[name].path
        if name == "syscalls" and (classes := _by_class(frame)) is not None:
            found.append(_grid(report, "syscalls_by_class", classes, path, budget))
        found.append(replace(_grid(report, name, frame, path, budget), total=info.rows))
    return found


def _by_class(frame: pandas.DataFrame) -> pandas.DataFrame | None:
    """Calls, errors and time of each class of system calls, by rank where there are several; None where no class is
    known."""
    if frame["class"].isna().all():
        return None
    ranked = "rank" in frame.columns and frame["rank"].nunique() > 1
    keys = ["capture", *(["rank"] if ranked else []), "class", "time"]
    sums = frame.groupby(keys, dropna=False, sort=False)[["count", "errors", "total_ns"]].sum(min_count=1).reset_index()
    sums.attrs.update(frame.attrs)
    return sums


def _grid(report: Report, name: str, frame: pandas.DataFrame, path: str, budget: int) -> Grid:
    described: Mapping[str, Mapping[str, str]] = frame.attrs.get("columns", {})
    chosen = _within(view.ranked(frame, ROWS_OF.get(name, ROWS)), budget)
    empty = [c for c in frame.columns if frame[c].isna().all()]
    same = [c for c in frame.columns if c in _LIFTED and c not in empty and len(frame) > 1 and _constant(frame[c])]
    shown = [c for c in frame.columns if c not in {*empty, *same}] or same
    columns = [_column(report, c, frame, chosen, described.get(c, {})) for c in shown]
    cost = view.cost_column(frame)
    if "self_pct" not in frame.columns and (part := view.shares(report, name, frame)):
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
    report: Report, name: str, frame: pandas.DataFrame, chosen: pandas.DataFrame, described: Mapping[str, str]
) -> dict[str, Any]:
    column = plain_column(name, frame, chosen, described)
    if name in ("self_pct", "total_pct"):
        unit = f"of {view.sampled(report, frame)}"
        return {
            **column,
            "type": "share",
            "unit": unit,
            "factor": 1,
            "places": None,
            "values": _parts(chosen[name] / 100),
        }
    return column


def plain_column(
    name: str, frame: pandas.DataFrame, chosen: pandas.DataFrame, described: Mapping[str, str]
) -> dict[str, Any]:
    """A column of a Grid's data: its rows in `chosen`, written in the unit that suits all of `frame`."""
    label = view.words(re.sub(r"(?<=.)_(ns|pct|s|bytes)$", "", name))
    head = {
        "key": name,
        "label": label,
        "meaning": described.get("meaning", ""),
        "unit": "",
        "factor": 1,
        "places": None,
    }
    return {**head, **_content(name, frame, chosen[name], described.get("unit"))}


def _content(name: str, frame: pandas.DataFrame, series: pandas.Series, unit: str | None) -> dict[str, Any]:
    """A column's type, values, and how to write them."""
    values = view.values(series)
    if not _numeric(series):
        nothing = "" if name in _BLANK else None
        texts = [nothing if v is None else view.visible(view.plain(v) or "") for v in values]
        if name == "stack":
            texts = [None if t is None else view.short(t, STACK_CHARACTERS) for t in texts]
        return {"type": "code" if name in _CODE else "text", "values": texts}
    if name in _IDENTIFIERS:
        return {"type": "id", "values": values}
    if unit == "ns" and (name in ("start_ns", "started_ns") or frame[name].min() > _EPOCH_NS):
        return _offsets(int(frame[name].min()), values, frame.attrs.get("clock", "relative"))
    largest = float(frame[name].abs().max())
    factor, shown = view.scale(unit, largest)
    whole = factor == 1 and str(series.dtype).startswith("Int")
    places = None if whole or not unit else view.decimals(largest / factor / 1000)
    return {"type": "number", "unit": shown, "factor": factor, "places": places, "values": values}


def _numeric(series: pandas.Series) -> bool:
    return str(series.dtype).lower().startswith(("int", "float"))


_EPOCH_NS = 10**18
"""Later than 2001: ns since the Unix epoch. They are more than a script's numbers can hold."""


def _offsets(first: int, values: list[int | None], clock: str) -> dict[str, Any]:
    """Moments as seconds after the first of them."""
    moment = datetime.fromtimestamp(first / 1e9, tz=timezone.utc).strftime("%H:%M:%S.%f")[:-3]
    epoch = clock.startswith("epoch") or first > _EPOCH_NS
    unit = f"s after {moment} UTC" if epoch else "s after the first row's"
    offsets = [None if v is None else v - first for v in values]
    return {"type": "number", "unit": unit, "factor": 1e9, "places": 4, "values": offsets}


def _share(part: tuple[pandas.Series, str], chosen: pandas.DataFrame) -> dict[str, Any]:
    head = {"key": "share", "label": "share", "unit": f"of {part[1]}", "type": "share"}
    meaning = "the row's part of the sum over all rows of the table"
    return {**head, "meaning": meaning, "values": _parts(part[0].loc[chosen.index])}


def _parts(series: pandas.Series) -> list[float | None]:
    return [None if v is None else round(v, 9) for v in view.values(series)]
