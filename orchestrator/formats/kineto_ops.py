"""The table `torch_ops` from the events of a torch.profiler trace: what `key_averages()` says, computed from the file.

Follows torch/autograd/profiler.py (`_parse_kineto_results`) and profiler_util.py (`_populate_cpu_children`,
`_remove_dup_nodes`, `FunctionEvent`) of PyTorch 2.13, also in what may surprise: memory counts for every call that is
open at the time, on whatever thread; a call whose only child has its name swallows that child; the time that the GPU
spent in a range is a row of its own, beside the rows of the kernels in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import MISSING, Ints, groups
from orchestrator.formats.kineto_events import CALL, RANGE, SPAN, Calls, Memory, Trace, at
from orchestrator.tables import Table

ROOT = -1
"""The parent of calls that nothing encloses."""
NEVER = 2**63 - 1
"""When that ends."""
ROUNDS = 32

UNLISTED = {
    "profiler::_record_function_enter", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
    "aten::is_leaf", "aten::output_nr", "aten::_version",
}  # fmt: skip
"""Names that torch leaves out (`_filter_name`)."""

CPU_TYPES = (0, 5)
GPU_TYPES = {1: "cuda", 6: "hip", 12: "xpu", 20: "privateuseone"}
"""c10::DeviceType of what torch counts as memory of the CPU, and of devices."""

PLAIN_SHAPES = re.compile(rb"\[\[(?:\d+(?:, \d+)*)?\](?:, \[(?:\d+(?:, \d+)*)?\])*\]")
"""Shapes that stand in the file as Python shows them."""

COLUMNS = (
    "name", "device", "input_shapes", "count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns",
    "cpu_memory_bytes", "cpu_self_memory_bytes", "gpu_memory_bytes", "gpu_self_memory_bytes",
)  # fmt: skip
GPU_TIMES, MEMORY, GPU_MEMORY = COLUMNS[6:8], COLUMNS[8:12], COLUMNS[10:12]


def torch_ops(trace: Trace, has_gpu: bool) -> Table:
    """As `key_averages(group_by_input_shape=True)`, or without shapes where none were recorded. What was not recorded
    is unknown, and so are the FLOPs, which no trace holds."""
    calls, shapes = _counted_as(trace)
    parts = (_of_calls(trace, calls, shapes), _outside_of_calls(trace.memory, calls), _of_work(trace))
    columns = {name: list(chain(*column)) for name, *column in zip(COLUMNS, *parts, strict=True)}
    has_memory = len(trace.memory) or trace.about.get("profile_memory")
    for known, names in ((has_gpu, GPU_TIMES), (has_memory, MEMORY), (has_gpu, GPU_MEMORY)):
        if not known:
            columns.update({name: [None] * len(columns[name]) for name in names})
    return Table("torch_ops", columns)


def parents(calls: Calls) -> Ints:
    """The place of the innermost call on the same thread that encloses each; ROOT: none. Calls that overlap only in
    part don't enclose one another.

    All take the call that began before them for their parent; those whose parent ends too early take what it took, all
    at once, again and again. The few that are left after that, at the ends of deep stacks, follow one by one."""
    narrow = calls.thread.astype(np.min_scalar_type(calls.thread.max(initial=0)))  # sorts in no time
    order = np.argsort(narrow, kind="stable")
    thread, end = calls.thread[order], calls.end[order]
    least = end + (end == calls.start[order])  # a call without length is not within one that ends where it stands
    ends = np.append(end, NEVER)
    parent = np.arange(-1, len(order))
    parent[:-1][np.append(True, thread[1:] != thread[:-1])[: len(order)]] = ROOT
    parent[ROOT] = ROOT
    early = np.arange(len(order))
    for _ in range(ROUNDS):
        early = early[ends[parent[early]] < least[early]]
        parent[early] = parent[parent[early]]
    for place in early.tolist():
        above = place - 1
        while ends[above] < least[place]:
            above = parent[above]
        parent[place] = above
    found = np.empty(len(order), np.int64)
    found[order] = np.append(order, ROOT)[parent[:-1]]
    return found


def innermost(calls: Calls, time: Ints, thread: Ints) -> Ints:
    """The place of the innermost operator or range that is open on that thread at each time; ROOT: none."""
    if not len(time):
        return np.empty(0, np.int64)
    places = np.flatnonzero(calls.kind <= RANGE)
    calls = at(calls, places)
    parent = parents(calls)
    found = np.full(len(time), ROOT, np.int64)
    for number in np.unique(thread):
        asked, there = np.flatnonzero(thread == number), np.flatnonzero(calls.thread == number)
        before = np.searchsorted(calls.start[there], time[asked], "right")
        found[asked] = np.append(ROOT, there)[before]
    while (over := np.flatnonzero((found != ROOT) & (np.append(calls.end, 0)[found] < time))).size:
        found[over] = parent[found[over]]
    return np.append(places, ROOT)[found]


def device_name(kind: int, number: int) -> str:
    """cpu, cuda:0, ... of a c10::DeviceType and a device's number."""
    if kind in CPU_TYPES:
        return "cpu"
    shown = GPU_TYPES.get(kind, f"type {None if kind == MISSING else kind}")
    return f"{shown}:{None if number == MISSING else number}"


# ---------------------------------------------------------------- the three kinds of rows


def _of_calls(trace: Trace, calls: Calls, shapes: list[str | None]) -> tuple[Iterable[Any], ...]:
    """One row for each name, input shapes, and whether it is a range."""
    parent, launched, swallowed = _without_doubles(calls, parents(calls), _launched(trace, calls))
    keep = np.flatnonzero(~swallowed)
    group, first, count = _grouped(calls.name[keep], calls.shapes[keep], calls.kind[keep] == RANGE)
    duration = calls.end - calls.start

    def summed(values: Ints) -> list[int]:
        if not values.any():
            return [0] * len(count)
        result = np.zeros(len(count), np.int64)
        np.add.at(result, group, values[keep])
        return list(result.tolist())

    def own(values: Ints) -> Ints:
        if not values.any():
            return values
        children = np.zeros(len(values), np.int64)
        inner = keep[parent[keep] != ROOT]
        np.add.at(children, parent[inner], values[inner])
        return values - children

    shown = list(map(step_name, trace.names))
    memory = [_between(trace.memory, calls, changed) for changed in _changes(trace.memory)]
    return (
        [shown[n] for n in calls.name[keep][first].tolist()],
        ["cpu"] * len(count),
        [shapes[n] for n in calls.shapes[keep][first].tolist()],
        count.tolist(),
        summed(duration),
        summed(own(duration)),
        summed(_with_children(launched, parent)),
        summed(launched),
        *(summed(values) for changed in memory for values in (changed, own(changed))),
    )


def _outside_of_calls(memory: Memory, calls: Calls) -> tuple[Iterable[Any], ...]:
    """The row of allocations and releases while no call was open."""
    if not len(memory):
        return ((),) * len(COLUMNS)
    first, last = _span(memory, calls)
    change = np.zeros(len(memory.time) + 1, np.int64)
    np.add.at(change, first, 1)
    np.add.at(change, last, -1)
    outside = np.cumsum(change)[:-1] == 0
    if not outside.any():
        return ((),) * len(COLUMNS)
    cpu, gpu = (int(changed[outside].sum()) for changed in _changes(memory))
    return (["[memory]"], ["cpu"], [None], [int(outside.sum())], [0], [0], [0], [0], [cpu], [cpu], [gpu], [gpu])


def _of_work(trace: Trace) -> tuple[Iterable[Any], ...]:
    """One row for each name of a kernel, copy or memory set, and of a range whose work was on the GPU."""
    work = trace.work
    group, first, count = _grouped(work.name, np.zeros(len(work), np.int64), work.kind == SPAN)
    total = np.zeros(len(count), np.int64)
    np.add.at(total, group, work.duration)
    shown = [step_name(trace.names[n]) for n in work.name[first]]
    n, nothing = len(shown), [0] * len(shown)
    times = (nothing, nothing, total.tolist(), total.tolist())
    return (shown, ["cuda"] * n, [None] * n, count.tolist(), *times, nothing, nothing, nothing, nothing)


# ---------------------------------------------------------------- parts


def step_name(name: str) -> str:
    """The name that an event is counted under."""
    return "ProfilerStep*" if name.startswith("ProfilerStep#") else name


def input_shapes(raw: bytes) -> str | None:
    """`Input Dims` as key_averages shows them: a list of tensors is [] there, so that many are the same."""
    if PLAIN_SHAPES.fullmatch(raw):
        return raw.decode()
    shapes = msgspec.json.decode(raw) if raw else None
    if not shapes or not isinstance(shapes, list):
        return None
    return str([s if isinstance(s, list) and all(isinstance(n, int) for n in s) else [] for s in shapes])


def _counted_as(trace: Trace) -> tuple[Calls, list[str | None]]:
    """The calls that torch lists, with the numbers of the name and of the shapes that they are counted under, and those
    shapes."""
    listed = np.array([name not in UNLISTED for name in trace.names], bool)
    numbers: dict[str, int] = {}
    same = np.array([numbers.setdefault(step_name(name), place) for place, name in enumerate(trace.names)], np.int64)
    texts: dict[str | None, int] = {}
    shown = np.zeros(len(trace.raws), np.int64)
    for number in np.unique(trace.calls.shapes).tolist():
        shown[number] = texts.setdefault(input_shapes(trace.raws[number]), len(texts))
    calls = trace.calls if listed.all() else at(trace.calls, np.flatnonzero(listed[trace.calls.name]))
    return replace(calls, name=same[calls.name], shapes=shown[calls.shapes]), list(texts)


def _launched(trace: Trace, calls: Calls) -> Ints:
    """GPU time (ns) of what each operator or range has launched itself.

    Since 2023, and in 2021, the work names its operator by an id. In between that id is but a copy of the number that
    joins it to the call of the runtime: then, and where there is none, the operator is the one around that call."""
    launched = np.zeros(len(calls), np.int64)
    work = at(trace.work, np.flatnonzero(trace.work.kind != SPAN))
    if np.array_equal(work.external, work.correlation) or (work.external == MISSING).all():
        entry = trace.calls.only(CALL)
        ids, owners, wanted = entry.correlation, innermost(calls, entry.start, entry.thread), work.correlation
    else:
        owners = np.flatnonzero((calls.kind <= RANGE) & (calls.external >= 0))
        ids, wanted = calls.external[owners], work.external
    found = joined(ids, owners, wanted)
    np.add.at(launched, found[found != ROOT], work.duration[found != ROOT])
    return launched


def joined(ids: Ints, values: Ints, wanted: Ints) -> Ints:
    """For each wanted id the value of the last with that id, ROOT where there is none."""
    order = np.argsort(ids, kind="stable")
    place = np.searchsorted(ids[order], wanted, "right") - 1
    known = (place >= 0) & (np.append(ids[order], MISSING)[place] == wanted) & (wanted != MISSING)
    found: Ints = np.where(known, np.append(values[order], ROOT)[place], ROOT)
    return found


def _without_doubles(calls: Calls, parent: Ints, launched: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Parents and launched GPU time with every call that is the only child of one of its name made part of that one,
    and which calls those are."""
    nested = parent != ROOT
    children = np.bincount(parent[nested], minlength=len(parent))
    double = nested & (calls.name[parent] == calls.name) & (children[parent] == 1) if len(calls) else nested
    places, merged, own = np.flatnonzero(double), parent.copy(), launched.copy()
    while (inner := places[double[merged[places]]]).size:
        merged[inner] = merged[merged[inner]]
    np.add.at(own, merged[places], launched[places])
    own[places] = 0
    orphan = np.flatnonzero(nested & ~double)
    orphan = orphan[double[parent[orphan]]]
    merged[orphan] = merged[parent[orphan]]
    return merged, own, double


def _with_children(values: Ints, parent: Ints) -> Ints:
    """Each call's value with those of all calls below it: at first of those one step below, then two, four, ..."""
    total: Ints = values.copy()
    above = np.append(parent, ROOT)
    while (nested := np.flatnonzero(above != ROOT)).size:
        np.add.at(total, above[nested], total[nested])
        above = above[above]
    return total


def _changes(memory: Memory) -> tuple[Ints, Ints]:
    """Bytes allocated (or released, negative) by each event on the CPU, and on GPUs."""
    cpu, gpu = (np.isin(memory.device_type, list(types)) for types in (CPU_TYPES, GPU_TYPES))
    return np.where(cpu, memory.changed, 0), np.where(gpu, memory.changed, 0)


def _span(memory: Memory, calls: Calls) -> tuple[Ints, Ints]:
    """First memory event of each call, and the one after its last."""
    return np.searchsorted(memory.time, calls.start), np.searchsorted(memory.time, calls.end, "right")


def _between(memory: Memory, calls: Calls, changed: Ints) -> Ints:
    if not changed.any():
        return np.zeros(len(calls), np.int64)
    first, last = _span(memory, calls)
    total = np.append(0, np.cumsum(changed))
    result: Ints = total[last] - total[first]
    return result


def _grouped(name: Ints, shapes: Ints, kind: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """The group of each item, and of each group the first item and the size; groups in the order of appearance."""
    same_name = groups(name * 2 + kind)[1].astype(np.int64)  # few, so that the numbers of both together are small
    _, group = groups(same_name * (shapes.max(initial=0) + 1) + shapes)
    count = np.bincount(group)
    first = np.empty(len(count), np.int64)
    first[group[::-1]] = np.arange(len(group))[::-1]
    appearance = np.argsort(first)
    place = np.empty_like(appearance)
    place[appearance] = np.arange(len(appearance))
    return place[group], first[appearance], count[appearance]
