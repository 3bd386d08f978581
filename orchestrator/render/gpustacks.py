"""The GPU's time as stacks: each kernel and copy below the CUDA call that launched it, that below the operators and
ranges that were open on its thread, and those below the Python functions, where a profiler recorded them.

A kernel and its call have one correlation id within a process. What was open is known exactly where the same tool
recorded it; Python stacks of a sampler in the same pass are those of the last sample, a period and the error of the
clocks away.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from orchestrator.render.flamegraph import Stacks

if TYPE_CHECKING:
    import pandas

    from orchestrator.report import Report

MOST_ROWS = 4_000_000
"""Of all tables together: from more, no stacks are made."""
WITHOUT_CALL = "(its launch was not recorded)"
_PYTHON = re.compile(r"(.+)\((\d+)\): (.+)")
"""How torch.profiler writes a function: file(line): name."""


class Span(NamedTuple):
    """Times in ns. `name`: one frame, or several with ';' between them."""

    start: int
    end: int
    name: str


def stacks(report: Report) -> Iterator[tuple[str, Stacks, frozenset[str]]]:
    """(capture, stacks, the names of what ran on the GPU) of each capture that saw which call launched what."""
    names = ("gpu_kernels", "gpu_transfers", "cuda_calls", "op_spans", "ranges", "stack_spans")
    if sum(report.tables[name].rows for name in names if name in report.tables) > MOST_ROWS:
        return
    work, calls = _work(report), report.table("cuda_calls")
    if work is None or calls is None:
        return
    for capture, rows in work.groupby("capture", sort=False):
        own = calls[calls["capture"] == capture]
        if len(own):
            launched = rows.merge(own.drop_duplicates(["pid", "correlation"]), "left", on=["pid", "correlation"])
            yield str(capture), _of(report, str(capture), launched), frozenset(_frames(rows["work"]))


def _work(report: Report) -> pandas.DataFrame | None:
    """pid, correlation, work (a name), weight of all that GPUs did."""
    import pandas

    found = []
    for table, name in (("gpu_kernels", "name"), ("gpu_transfers", "kind")):
        if (frame := report.table(table)) is not None:
            part = frame[["capture", "pid", "correlation", name, "duration_ns"]]
            found.append(part.set_axis(["capture", "pid", "correlation", "work", "weight"], axis=1))
    return pandas.concat(found) if found else None


def _of(report: Report, capture: str, launched: pandas.DataFrame) -> Stacks:
    weights: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for (pid, thread), rows in launched.sort_values("start_ns").groupby(["pid", "thread"], dropna=False, sort=False):
        known = rows["start_ns"].notna().all()
        times = rows["start_ns"].tolist() if known else []
        open_then = _open(report, capture, pid, thread, times) if known else [""] * len(rows)
        who = f"process{'' if pid != pid else f' [{pid}]'};{f'thread {thread}' if known else WITHOUT_CALL}"
        columns = _frames(rows["name"].fillna("")), _frames(rows["work"]), rows["weight"].fillna(0).tolist()
        for above, call, work, weight in zip(open_then, *columns, strict=True):
            weights[who][";".join(part for part in (above, call, work) if part)] += int(weight)
    return Stacks.of({thread: list(rows.items()) for thread, rows in weights.items()})


def _frames(names: pandas.Series) -> list[str]:
    return [_frame(name) for name in names.tolist()]


def _frame(name: str) -> str:
    """As a frame of a stack."""
    found = _PYTHON.fullmatch(name)
    return (f"{found[3]} ({found[1]}:{found[2]})" if found else name).replace(";", ",")


def _open(report: Report, capture: str, pid: Any, thread: Any, times: Sequence[int]) -> Iterator[str]:
    """What was open on a thread at each time, in order."""
    exact = report.table("op_spans")
    if exact is None or not (exact["capture"] == capture).any():
        exact = report.table("ranges")
    spans = _spans(exact, [capture], pid, thread, "thread", "name")
    above: Iterator[str] = iter([""] * len(times))
    if exact is None or "kind" not in exact or not (exact["kind"] == "python").any():
        mates = _mates(report, capture)
        above = within(_spans(report.table("stack_spans"), mates, pid, thread, "tid", "stack"), times)
    for python, ops in zip(above, within(spans, times), strict=True):
        yield ";".join(part for part in (python, ops) if part)


def _mates(report: Report, capture: str) -> list[str]:
    """The captures of the same pass."""
    pass_of = {one.id: one.pass_id for one in report.captures}
    return [name for name, number in pass_of.items() if number == pass_of.get(capture)]


def _spans(
    frame: pandas.DataFrame | None, captures: Sequence[str], pid: Any, thread: Any, threads: str, names: str
) -> list[Span]:
    """Those of one thread by their start, the longer first."""
    if frame is None:
        return []
    rows = frame[frame["capture"].isin(captures) & (frame["pid"] == pid) & (frame[threads] == thread)]
    rows = rows[rows["duration_ns"].notna()]
    ends = rows["start_ns"] + rows["duration_ns"]
    shown = rows[names].tolist() if names == "stack" else _frames(rows[names])
    return sorted(map(Span, rows["start_ns"].tolist(), ends.tolist(), shown), key=lambda one: (one.start, -one.end))


def within(spans: Sequence[Span], times: Sequence[int]) -> Iterator[str]:
    """The spans that are open at each time, the outermost first. Both are in order of their times."""
    opened: list[Span] = []
    coming = 0
    for time in times:
        while coming < len(spans) and spans[coming].start <= time:
            span = spans[coming]
            coming += 1
            if span.end > time:
                opened.append(span)
        opened = [span for span in opened if span.end > time]
        yield ";".join(span.name for span in opened)
