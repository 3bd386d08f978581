"""The ranks of a job side by side: a row each, and how far each was behind in each step as a strip of colours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.model import Exit
from orchestrator.render import gpu, view

if TYPE_CHECKING:
    import numpy as np
    import pandas
    from numpy.typing import NDArray

    from orchestrator.report import Report

SHOWN = 12
"""Ranks in the table that is open: the worst and the most typical; the rest stands in one that is closed."""
ROWS, COLUMNS = 64, 160
"""Cells of the strip, at most: of more ranks or steps each cell shows the one of several that was furthest behind."""
WIDTH, CELL = 1000.0, 10.0
LEVELS = ((-0.03, "early"), (0.03, "even"), (0.1, "late"), (0.3, "later"))
LAST = "latest"
"""Up to which part of the median step behind the median rank a cell is of which class; LAST: beyond."""
WORDS: Mapping[str, str] = {
    "early": "ahead by 3 % of a step or more", "even": "within 3 %", "late": "behind by up to 10 %",
    "later": "up to 30 %", "latest": "more",
}  # fmt: skip
JUDGED: Mapping[str, str] = {
    "own work": "Compared is what each rank has to do itself: its steps without what it waited for others in "
    "collectives. Who waits long there is not the slow one.",
    "whole steps": "Compared are whole steps, as nothing tells what each rank waited for others in collectives: ranks "
    "that wait for one another have equally long steps. A pass under torch, nsys or py-spy with native frames tells.",
}


COLUMN_NAMES: Mapping[str, str] = {
    "host": "Host", "pid": "Process", "step": "Step, median", "p95": "95 % below", "behind": "Behind the median rank",
    "last": "Came last in", "waits": "Waits in collectives", "data": "Waits for data", "busy": "GPU busy",
    "exposed": "Exposed communication", "ended": "Ended",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One rank as text; "" where it does not apply, None where it is not known."""

    rank: int
    host: str | None
    pid: str | None
    step: str | None
    p95: str | None
    behind: str | None
    last: str | None
    """In which part of the steps it came last."""
    waits: str | None
    data: str | None
    busy: str | None
    exposed: str | None
    ended: str | None
    tone: str
    """bad: it failed or is missing; warn: the others wait for it."""


@dataclass(frozen=True)
class Heat:
    """The strip: a path for each class of cells, the rows' labels with their places, and what it says in words."""

    shapes: tuple[tuple[str, str], ...]
    last: str
    """A path of marks: in each column, at the rank that came last."""
    height: float
    labels: tuple[tuple[float, str], ...]
    first: int
    final: int
    """Numbers of the steps at its ends."""
    size: tuple[int, int]
    """Ranks and steps in a cell."""
    label: str

    @property
    def legend(self) -> list[tuple[str, str]]:
        return [(kind, WORDS[kind]) for kind, _ in self.shapes]


@dataclass(frozen=True)
class Ranks:
    """The section. where: the pass it is of."""

    where: str
    lead: str
    judged: str | None
    shown: tuple[Row, ...]
    rest: tuple[Row, ...]
    heat: Heat | None

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Those that are known of any rank."""
        rows = (*self.shown, *self.rest)
        return [(key, name) for key, name in COLUMN_NAMES.items() if any(getattr(row, key) is not None for row in rows)]


def ranks(report: Report) -> Ranks | None:
    """The ranks in the pass that tells most of them; None where there is one rank."""
    frame = report.table("ranks")
    if frame is None or frame.empty:
        return None
    passes = {capture.id: capture.pass_id for capture in report.captures}
    parts = {str(capture): gpu.records(part) for capture, part in frame.groupby("capture", sort=False)}
    capture, rows = max(parts.items(), key=lambda one: _worth(one[1]))
    steps = report.rows("rank_steps", [capture])
    cells = None if steps is None else _lag(steps)
    ordered = sorted(rows, key=_interest)
    chosen = {row["rank"] for row in (rows if len(rows) <= SHOWN else _chosen(ordered))}
    told = [_row(row, rows) for row in sorted(rows, key=lambda row: row["rank"])]
    return Ranks(
        where=passes.get(capture, capture),
        lead=_lead(rows),
        judged=JUDGED.get(next((row["judged_by"] for row in rows if row["judged_by"]), "")),
        shown=tuple(row for row in told if row.rank in chosen),
        rest=tuple(row for row in told if row.rank not in chosen),
        heat=_heat(cells, _median_step(rows)) if cells is not None and min(cells.shape) > 1 else None,
    )


def _worth(rows: Sequence[dict[str, Any]]) -> tuple[int, int, int]:
    judged = {row["judged_by"] for row in rows}
    known = sum(row["common_steps"] or 0 for row in rows)
    timed = sum(row["step_median_ns"] is not None for row in rows)
    return 2 * ("own work" in judged) + ("whole steps" in judged), known, timed


def _chosen(ordered: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The worst, and the one in the middle."""
    return [*ordered[: SHOWN - 1], ordered[(len(ordered) + SHOWN) // 2]]


def _interest(row: dict[str, Any]) -> tuple[Any, ...]:
    """The order in which ranks matter: those that failed, then those furthest behind."""
    return (not _failed(row), -(row["behind_ns"] or 0.0), -(row["step_median_ns"] or 0.0), row["rank"])


def _failed(row: dict[str, Any]) -> bool:
    return bool(row["missing"] or row["exit_code"] or row["exit_signal"])


def _median_step(rows: Sequence[dict[str, Any]]) -> float:
    known = sorted(row["step_median_ns"] for row in rows if row["step_median_ns"])
    return float(known[len(known) // 2]) if known else 0.0


def _row(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Row:
    common, step_ns = row["common_steps"], _median_step(rows)
    late = step_ns and (row["behind_ns"] or 0) >= 0.03 * step_ns
    end = Exit(row["exit_code"], row["exit_signal"])
    known = row["exit_code"] is not None or row["exit_signal"] is not None
    return Row(
        rank=row["rank"],
        host=row["host"],
        pid=view.plain(row["pid"]),
        step=_time(row["step_median_ns"]),
        p95=_time(row["step_p95_ns"]),
        behind=_signed(row["behind_ns"]),
        last=view.percent(row["slowest_steps"] / common) if common and row["slowest_steps"] is not None else None,
        waits=_percent(row["collective_pct"]),
        data=_percent(row["data_wait_pct"]),
        busy=_percent(row["gpu_busy_pct"]),
        exposed=_percent(row["exposed_comm_pct"]),
        ended="missing" if row["missing"] else end.describe() if known else None,
        tone="bad" if _failed(row) else "warn" if late else "",
    )


def _time(ns: float | None) -> str | None:
    return None if ns is None else view.duration(ns / 1e9)


def _signed(ns: float | None) -> str | None:
    if ns is None:
        return None
    return ("−" if ns < 0 else "") + (view.duration(abs(ns) / 1e9) or "")


def _percent(pct: float | None) -> str | None:
    return None if pct is None else view.percent(pct / 100)


def _lead(rows: Sequence[dict[str, Any]]) -> str:
    """64 ranks on 8 hosts; the slowest is rank 3, 3 ms a step behind the median rank."""
    hosts = {row["host"] for row in rows} - {None}
    gone = sum(bool(row["missing"]) for row in rows)
    said = f"{len(rows)} ranks" + (f" on {len(hosts)} hosts" if len(hosts) > 1 else "")
    said += f", {gone} of them missing" if gone else ""
    known = [row for row in rows if row["behind_ns"] is not None]
    if not known:
        return f"{said}. Their steps can't be compared: too few of them have steps that all others have, too."
    slow = max(known, key=lambda row: row["behind_ns"])
    times = f"{slow['slowest_steps']} of {slow['common_steps']}"
    who = f"rank {slow['rank']}" + (f" on {slow['host']}" if slow["host"] and len(hosts) > 1 else "")
    return (
        f"{said}. Furthest behind is {who}: {_signed(slow['behind_ns'])} a step in the mean against the median rank; "
        f"it comes last in {times} steps that all have."
    )


# ---------------------------------------------------------------- the strip


def _lag(steps: pandas.DataFrame) -> pandas.DataFrame | None:
    """How far behind, in ns: a row a step that all ranks have, a column a rank."""
    known = steps[steps["behind_ns"].notna()]
    if known.empty:
        return None
    wide = known.pivot_table(index="step", columns="rank", values="behind_ns", aggfunc="first")
    return wide.dropna().astype("float64")


def _heat(cells: pandas.DataFrame, step_ns: float) -> Heat:
    import numpy

    lag = cells.to_numpy().T / max(step_ns, 1.0)  # ranks down, steps across
    each = -(-lag.shape[0] // ROWS), -(-lag.shape[1] // COLUMNS)
    worst = _grouped(_grouped(lag, each[0]).T, each[1]).T
    kinds = [kind for _, kind in LEVELS] + [LAST]
    level = numpy.searchsorted([limit for limit, _ in LEVELS], worst)
    level[worst == LEVELS[0][0]] = 0
    width = WIDTH / worst.shape[1]
    shapes = tuple((kind, _cells(level == n, width)) for n, kind in enumerate(kinds) if (level == n).any())
    ranks_, numbers = [int(rank) for rank in cells.columns], [int(step) for step in cells.index]
    late = worst.argmax(axis=0)
    marks = "".join(f"M{(x + 0.5) * width:.1f} {y * CELL + 3:g}v{CELL - 6:g}" for x, y in enumerate(late.tolist()))
    slow = ranks_[int(numpy.bincount(lag.argmax(axis=0)).argmax())]
    share = float((lag.argmax(axis=0) == ranks_.index(slow)).mean())
    return Heat(
        shapes,
        marks,
        CELL * worst.shape[0],
        tuple(_labels(ranks_, each[0], worst.shape[0])),
        numbers[0],
        numbers[-1],
        each,
        f"How far each of {len(ranks_)} ranks was behind the median rank in each of {len(numbers)} steps; rank {slow} "
        f"came last in {view.percent(share)} of them, the furthest by {view.percent(float(lag.max()))} of a step",
    )


def _grouped(array: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """The largest of each so many rows."""
    import numpy

    return numpy.maximum.reduceat(array, numpy.arange(0, len(array), size), axis=0)


def _cells(chosen: NDArray[np.bool_], width: float) -> str:
    """One path of all cells of a class; neighbours in a row as one."""
    return "".join(_line(row, y, width) for y, row in enumerate(chosen.tolist()))


def _line(row: Sequence[bool], y: int, width: float) -> str:
    drawn, x = [], 0
    while x < len(row):
        end = next((i for i in range(x, len(row)) if not row[i]), len(row))
        if end > x:
            drawn.append(f"M{x * width:.1f} {y * CELL:g}H{end * width:.1f}V{(y + 1) * CELL:g}H{x * width:.1f}z")
        x = max(end, x + 1)
    return "".join(drawn)


def _labels(ranks_: Sequence[int], each: int, rows: int) -> Iterator[tuple[float, str]]:
    """As many as can be read: of each row where there are few."""
    every = max(1, -(-rows // 16))
    for row in range(0, rows, every):
        first, last = ranks_[row * each], ranks_[min(len(ranks_), (row + 1) * each) - 1]
        yield (row + 0.5) * CELL, f"rank {first}" if first == last else f"{first} to {last}"
