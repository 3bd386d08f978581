"""Where the steps go: the main thread by what it did and in which function, the GPU by what it did or waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.render import gpu, view

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

SHOWN = 4
"""Of so many threads and of so many GPUs the bars are drawn; the others are in the tables."""
PLACES = 4
"""Functions told below each state."""
RARE = 0.005
"""Less of the whole than this is no part worth a line of its own."""

STATES: Mapping[str, tuple[str, str]] = {
    "python": ("running Python", "python"),
    "native": ("running native code", "native"),
    "import": ("importing modules", "setup"),
    "compile": ("compiling", "setup"),
    "gc": ("collecting garbage", "memory"),
    "memory": ("waiting for memory", "memory"),
    "device": ("waiting for the GPU", "device"),
    "gil": ("waiting for the GIL", "lock"),
    "lock": ("waiting for a lock", "lock"),
    "file": ("waiting for a file", "file"),
    "network": ("waiting for the network", "network"),
    "pipe": ("waiting for a pipe", "network"),
    "child": ("waiting for a child process", "child"),
    "sleep": ("sleeping", "idle"),
    "idle": ("idle", "idle"),
    "unknown": ("not told by the samples", "unknown"),
}
"""State of a thread -> its words and the class that colours it, in the order in which they are drawn."""
UNSEEN = "not sampled"

CAUSES: Mapping[str, tuple[str, str]] = {
    "host": ("idle: nothing was launched", "lock"),
    "data": ("idle: waiting for data", "file"),
    "copy": ("idle: waiting for a copy", "network"),
    "communication": ("idle: waiting for communication", "child"),
    "sync": ("idle: waiting for a synchronisation", "device"),
    "between": ("idle: between kernels", "idle"),
    "unknown": ("idle: cause not told", "unknown"),
}
"""Cause of a GPU's idleness -> its words and the class that colours it."""
_BUSY = {"communicating": "communicating, nothing computing beside it", "copying": "copying, no kernel beside it"}
QUEUES: Mapping[str, str] = {
    "sparse": "its queue is sparse: it waits for the program most of the time",
    "dense": "its queue is dense: there is nearly always work",
    "dense with gaps": "its queue is dense, with gaps",
}


@dataclass(frozen=True)
class Place:
    """A function in which a part was spent. `share` is of the whole, 0 to 1."""

    function: str
    file: str | None
    more: str
    """Its phase of the step, what it had called, whom it waited for."""
    ns: int
    share: float

    @property
    def short(self) -> str:
        """The file in its folder: what tells places apart at a glance."""
        return view.short("/".join((self.file or "").split("/")[-2:]), 90)


@dataclass(frozen=True)
class Part:
    """A part of a whole. `kind` is the class that colours it."""

    key: str
    kind: str
    name: str
    ns: int
    share: float
    places: tuple[Place, ...] = ()
    left: int = 0
    """Places that are not told."""


@dataclass(frozen=True)
class Split:
    """A whole and its parts, which are disjoint and add up to it. `whole` is its name, as the end of a sentence."""

    title: str
    capture: str
    whole_ns: int
    whole: str
    parts: tuple[Part, ...]
    told: str = ""

    @property
    def label(self) -> str:
        """The bar in words."""
        return f"{self.title}: " + ", ".join(f"{p.name} {view.percent(p.share)}" for p in self.parts)


def splits(report: Report) -> list[Split]:
    """The main threads, then the GPUs; empty where neither was looked at."""
    return [*hosts(report), *devices(report)]


def title(report: Report) -> str:
    """What the section is called: steps, where they are what is told of."""
    return f"Where the {'step' if report.tables.get('steps') else 'time'} goes"


# ---------------------------------------------------------------- the program's threads


def hosts(report: Report) -> list[Split]:
    """Each main thread over its steady steps, or over all of its life where it has none."""
    frame = report.table("host_time")
    if frame is None:
        return []
    main = frame[(frame["role"] == "main") & (frame["total_ns"].fillna(0) > 0)]
    keys = [k for k in ("capture", "rank", "pid", "tid") if k in main.columns]
    groups = [part for _, part in main.groupby(keys, dropna=False, sort=False)]
    return [_host(part, len(groups) > 1) for part in groups[:SHOWN]]


def _host(frame: pandas.DataFrame, several: bool) -> Split:
    chosen = next((part for name in ("steady", "all") if len(part := frame[frame["part"] == name])), frame)
    rows = gpu.records(chosen)
    first = rows[0]
    lives = {row["part"]: row["part_ns"] or 0 for row in rows}
    whole = max(sum(lives.values()), sum(row["total_ns"] for row in rows))
    rank = f", rank {first['rank']}" if first.get("rank") is not None else ""
    who = f", process {first['pid']}" if several and not rank else ""
    words = "the steady steps" if first["part"] == "steady" else "its whole life"
    parts = tuple(_states(rows, whole))
    return Split(f"Main thread{rank}{who}", first["capture"], whole, words, parts)


def _states(rows: Sequence[dict[str, Any]], whole: int) -> Iterator[Part]:
    order = list(STATES)
    found = _sums(rows, lambda row: row["state"] or "unknown")
    for state in sorted(found, key=lambda s: order.index(s) if s in order else len(order)):
        name, kind = STATES.get(state, (view.words(state), "unknown"))
        own = [row for row in rows if (row["state"] or "unknown") == state]
        places, left = _places(own, whole)
        yield Part(state, kind, name, found[state], found[state] / whole, places, left)
    unseen = whole - sum(found.values())
    if unseen > RARE * whole:
        yield Part("unseen", "unseen", UNSEEN, unseen, unseen / whole)


def _places(rows: Sequence[dict[str, Any]], whole: int) -> tuple[tuple[Place, ...], int]:
    """The costliest functions, and how many others there are."""
    found = _sums(rows, lambda row: (row["function"], row["file"]))
    ranked = sorted(found, key=lambda key: -found[key])
    told = [key for key in ranked[:PLACES] if found[key] >= RARE * whole and key[0] is not None]
    return tuple(_place(key, rows, found[key], whole) for key in told), len(ranked) - len(told)


def _place(key: tuple[str, str | None], rows: Sequence[dict[str, Any]], ns: int, whole: int) -> Place:
    own = sorted((r for r in rows if (r["function"], r["file"]) == key), key=lambda r: -r["total_ns"])
    line = f":{own[0]['line']}" if own[0]["line"] is not None else ""
    said = (
        (own[0]["phase"], "in {}"),
        (own[0]["below"] or own[0]["native"], "calling {}"),
        (own[0]["behind"], "while others were in {}"),
    )
    more = ", ".join(form.format(text) for text, form in said if text)
    return Place(key[0], f"{key[1]}{line}" if key[1] else None, more, ns, ns / whole)


def _sums(rows: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], Any]) -> dict[Any, int]:
    found: dict[Any, int] = {}
    for row in rows:
        found[key(row)] = found.get(key(row), 0) + row["total_ns"]
    return found


# ---------------------------------------------------------------- the GPUs


def devices(report: Report) -> list[Split]:
    """Each GPU over the window of `gpu_time`; without that table, over the span of its work."""
    frame = report.table("gpu_time")
    if frame is None:
        return [_spanned(device) for device in gpu.devices(report)[:SHOWN]]
    keys = [k for k in ("capture", "rank", "pid", "device") if k in frame.columns]
    groups = [gpu.records(part) for _, part in frame.groupby(keys, dropna=False, sort=False)]
    return [_device(rows) for rows in groups[:SHOWN] if rows[0]["window_ns"]]


def _device(rows: Sequence[dict[str, Any]]) -> Split:
    first = rows[0]
    spent = {row["state"]: row["total_ns"] or 0 for row in rows}
    whole = max(first["window_ns"], spent.get("busy", 0) + sum(spent.get(cause, 0) for cause in CAUSES))
    computing = spent.get("busy", 0) - sum(spent.get(state, 0) for state in _BUSY)
    named = [
        ("computing", "native", "computing", computing),
        *((state, kind, _BUSY[state], spent.get(state, 0)) for state, kind in _KINDS.items()),
        *((cause, kind, name, spent.get(cause, 0)) for cause, (name, kind) in CAUSES.items()),
    ]
    parts = tuple(Part(key, kind, name, ns, ns / whole) for key, kind, name, ns in named if ns > 0)
    number = f" {first['device']}" if first["device"] is not None else ""
    rank = f", rank {first['rank']}" if first.get("rank") is not None else ""
    told = QUEUES.get(first["queue"], first["queue"] or "")
    return Split(f"GPU{number}{rank}", first["capture"], whole, first["window"] or "the window", parts, told)


_KINDS = {"communicating": "setup", "copying": "memory"}


def _spanned(device: gpu.Device) -> Split:
    """What is known of a GPU whose gaps have no causes."""
    kinds = {"compute": "native", "communication": "setup", "transfer": "memory", "idle": "unknown"}
    parts = tuple(Part(p.key, kinds[p.key], p.name, p.ns, p.share) for p in device.parts if p.ns > 0)
    return Split(device.name, device.capture, device.span_ns, "the time from its first work to its last", parts)
