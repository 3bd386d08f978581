"""The differential flame graphs of two runs: the same frames of both, each with what it took a step in either run.

Frames are told apart by function and file. Lines move when a program is edited, and folders and numbers of processes
differ from run to run: none of them may make a frame look new.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import judging
from orchestrator.comparing import sides
from orchestrator.comparing.sides import View
from orchestrator.formats.folded import Tree
from orchestrator.formats.stacks import split_frame
from orchestrator.model import USABLE
from orchestrator.render import flamegraph, flames, view

if TYPE_CHECKING:
    import pandas

    from orchestrator.model import Capture
    from orchestrator.report import Report

MOST_FRAMES = 200_000
"""In each graph."""
MAIN, OTHERS = "the program", "other processes"
Per = Literal["step", "run"]


@dataclass(frozen=True)
class Diff:
    """One graph. per: what its times are of; whole_a_s, whole_b_s: all of it, in s."""

    label: str
    data: str
    per: Per
    whole_a_s: float
    whole_b_s: float
    told: str


@dataclass(frozen=True)
class _Seen:
    """What a sampler has seen: ns a step (or run) of a bare run, by the frames of the stack."""

    capture: str
    per: Per
    weights: Mapping[tuple[str, ...], int]
    part: str
    steps: int | None = None
    """In how many steady steps."""
    is_whole: bool = True
    """Of the whole run, start-up included."""


def diffs(a: Report, b: Report) -> list[Diff]:
    """One for each kind of time of which both runs have stacks."""
    return list(_diffs(a, b))


def _diffs(a: Report, b: Report) -> Iterator[Diff]:
    one, other = _kinds(a), _kinds(b)
    views = sides.both(a, b)
    for collector, kind in one:
        if (collector, kind) not in other:
            continue
        seen_a, seen_b = _alike(*views, one[collector, kind], other[collector, kind], kind)
        if seen_a and seen_b and seen_a.per == seen_b.per:
            label = f"{collector}: {flames.KINDS.get(kind, kind)}"
            told = f"A: {seen_a.capture}, {seen_a.part}; B: {seen_b.capture}, {seen_b.part}"
            whole_a_s, whole_b_s = (sum(seen.weights.values()) / 1e9 for seen in (seen_a, seen_b))
            yield Diff(label, _packed(seen_a.weights, seen_b.weights), seen_a.per, whole_a_s, whole_b_s, told)


def _alike(a: View, b: View, one: Capture, other: Capture, kind: str) -> tuple[_Seen | None, _Seen | None]:
    """Both a step, else both a run: what a run takes once (its start) would be less a step where there are more."""
    seen_a, seen_b = _seen(a, one, kind), _seen(b, other, kind)
    if seen_a and seen_b and seen_a.steps != seen_b.steps and (seen_a.is_whole or seen_b.is_whole):
        whole = _whole(a, one, kind, None), _whole(b, other, kind, None)
        return whole if all(whole) else (seen_a, seen_b)
    return seen_a, seen_b


def _kinds(report: Report) -> dict[tuple[str, str], Capture]:
    """The first usable capture with stacks, by its collector and their kind."""
    captures = {capture.id: capture for capture in report.captures if capture.status in USABLE}
    found: dict[tuple[str, str], Capture] = {}
    for capture, kind in _sampled(report):
        if capture in captures:
            found.setdefault((captures[capture].collector, kind), captures[capture])
    return found


def _sampled(report: Report) -> Iterator[tuple[str, str]]:
    """(capture, kind of time)"""
    stacks, spans = report.table("stacks"), report.table("stack_spans")
    if stacks is not None:
        yield from stacks[["capture", "kind"]].drop_duplicates().itertuples(index=False, name=None)
    if spans is not None:
        yield from ((capture, "wall") for capture in spans["capture"].unique())


def _seen(view: View, capture: Capture, kind: str) -> _Seen | None:
    """In the steady steps where the samples have times, else in the whole run."""
    report = view.report
    window = judging.steady_window(report, capture.pass_id)
    spans = judging.of_capture(report.table("stack_spans"), [capture.id]) if kind == "wall" else None
    if spans is not None and window is not None:
        weights = _weights(report, _clipped(spans, window), window.pid, window.steps * view.stretch(capture.pass_id))
        part = f"{window.steps:,} steady steps"
        return _Seen(capture.id, "step", weights, part, window.steps, is_whole=False) if weights else None
    return _whole(view, capture, kind, window.steps if window else None)


def _whole(view: View, capture: Capture, kind: str, steps: int | None) -> _Seen | None:
    """The whole run, per step where `steps` are given."""
    report = view.report
    frame = judging.of_capture(report.table("stacks"), [capture.id])
    rows = None if frame is None else frame[(frame["kind"] == kind) & frame["weight_ns"].notna()]
    if rows is None or not len(rows):
        return None
    rows = rows.assign(time=rows["weight_ns"].astype("int64"))
    main = rows.groupby("pid", dropna=False)["time"].sum().idxmax() if rows["pid"].notna().any() else None
    part = f"the whole run of {steps:,} steady steps" if steps else "the whole run"
    weights = _weights(report, rows, main, (steps or 1) * view.stretch(capture.pass_id))
    return _Seen(capture.id, "step" if steps else "run", weights, part, steps) if weights else None


def _clipped(spans: pandas.DataFrame, window: judging.Window) -> pandas.DataFrame:
    start = spans["start_ns"].clip(lower=window.start_ns)
    end = (spans["start_ns"] + spans["duration_ns"]).clip(upper=window.end_ns)
    return spans.assign(time=(end - start).clip(lower=0))


def _weights(report: Report, rows: pandas.DataFrame, main: Any, parts: float) -> dict[tuple[str, ...], int]:
    times = rows.groupby(["pid", "thread", "stack"], dropna=False, sort=False)["time"].sum()
    found: dict[tuple[str, ...], float] = defaultdict(float)
    frames: dict[str, str] = {}
    cwd = report.run.cwd.rstrip("/") + "/"
    for (pid, thread, stack), ns in times.items():
        if ns <= 0:
            continue
        for text in (path := str(stack).split(";")):
            if text not in frames:
                frames[text] = _frame(text, cwd)
        process = MAIN if main is None or pid == main else OTHERS
        key = (process, _thread(thread), *map(frames.__getitem__, path))
        found[key] += float(ns)
    return {key: round(ns / parts) for key, ns in found.items() if round(ns / parts)}


def _thread(name: Any) -> str:
    """Without the numbers that differ from run to run."""
    return re.sub(r"0x[0-9a-f]+|\d{3,}", "#", name) if isinstance(name, str) else "all threads"


_PLACE = re.compile(r".*?(?=/(?:(?:site|dist)-packages|lib(?:64)?/p(?:ython|ypy)\d[\d.]*)/)")

_ADDRESS = re.compile("0x[0-9a-f]+")
"""Of code without symbols; where it lies differs from run to run."""


def _frame(text: str, cwd: str) -> str:
    """`function (file)`: without the line, and without the folder of the program or of its libraries."""
    function, file, _ = split_frame(text)
    function = "(no symbol)" if _ADDRESS.fullmatch(function) else function
    if not file:
        return function
    deepest = max(file.rfind("/site-packages/"), file.rfind("/dist-packages/"))
    if deepest >= 0:
        return f"{function} ({file[deepest:]})"
    return f"{function} ({_PLACE.sub('', file, count=1).removeprefix(cwd)})"


def _packed(a: Mapping[tuple[str, ...], int], b: Mapping[tuple[str, ...], int]) -> str:
    """Two trees of one shape: a stack that one of the runs does not have weighs nothing there."""
    ids: dict[str, int] = {}
    keys = {
        path: b"".join(ids.setdefault(view.visible(name), len(ids)).to_bytes(4, "big") for name in path)
        for path in dict.fromkeys((*a, *b))
    }
    names = list(ids)
    tree_a, tree_b = (_tree(keys, weights, names) for weights in (a, b))
    return flames.pack(tree_b, lambda name: flames.ORIGINS.index(flamegraph.origin(name)), "ns", MOST_FRAMES, tree_a)


def _tree(keys: Mapping[tuple[str, ...], bytes], weights: Mapping[tuple[str, ...], int], names: list[str]) -> Tree:
    own: dict[bytes, int | float] = dict.fromkeys(keys.values(), 0)
    for path, weight in weights.items():
        own[keys[path]] += weight
    return Tree.of(own, names)
