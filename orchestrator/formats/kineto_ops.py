"""The table `torch_ops` from the events of a torch.profiler trace: what `key_averages()` says, computed from the file.

Follows torch/autograd/profiler.py (`_parse_kineto_results`) and profiler_util.py (`_populate_cpu_children`,
`_remove_dup_nodes`, `FunctionEvent`) of PyTorch 2.13, also in what may surprise: memory counts for every call that is
open at the time, on whatever thread; a call whose only child has its name swallows that child; the time that the GPU
spent in a range is a row of its own, beside the rows of the kernels in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.kineto_events import CALL, OP, RANGE, SPAN, Args, Calls, Memory, Trace
from orchestrator.tables import Table

ROOT = -1
"""The parent of calls that nothing encloses."""

UNLISTED = {
    "profiler::_record_function_enter", "profiler::_record_function_enter_new", "profiler::_record_function_exit",
    "aten::is_leaf", "aten::output_nr", "aten::_version",
}  # fmt: skip
"""Names that torch leaves out (`_filter_name`)."""

CPU_TYPES = (0, 5)
GPU_TYPES = {1: "cuda", 6: "hip", 12: "xpu", 20: "privateuseone"}
"""c10::DeviceType of what torch counts as memory of the CPU, and of devices."""

COLUMNS = (
    "name", "device", "input_shapes", "count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns",
    "cpu_memory_bytes", "cpu_self_memory_bytes", "gpu_memory_bytes", "gpu_self_memory_bytes",
)  # fmt: skip
GPU_TIMES, MEMORY, GPU_MEMORY = slice(6, 8), slice(8, 12), slice(10, 12)


def torch_ops(trace: Trace, has_gpu: bool) -> Table:
    """As `key_averages(group_by_input_shape=True)`, or without shapes where none were recorded. What was not recorded
    is unknown, and so are the FLOPs, which no trace holds."""
    calls, shapes = _counted_as(trace)
    parts = (_of_calls(trace, calls, shapes), _outside_of_calls(trace.memory, calls), _of_work(trace))
    columns: list[Sequence[Any]] = [
        [value for values in column for value in values] for column in zip(*parts, strict=True)
    ]
    unknown = [None] * len(columns[0])
    has_memory = trace.memory.args or trace.about.get("profile_memory")
    for known, place in ((has_gpu, GPU_TIMES), (has_memory, MEMORY), (has_gpu, GPU_MEMORY)):
        if not known:
            columns[place] = [unknown] * len(columns[place])
    return Table("torch_ops", dict(zip(COLUMNS, columns, strict=True)))


def parents(calls: Calls) -> Ints:
    """The place of the innermost call on the same thread that encloses each; ROOT: none. Calls that overlap only in
    part don't enclose one another."""
    found = []
    ends = calls.end.tolist()
    stacks: dict[int, list[int]] = {int(thread): [] for thread in np.unique(calls.thread)}
    for place, (start, end, thread) in enumerate(zip(calls.start.tolist(), ends, calls.thread.tolist(), strict=True)):
        stack = stacks[thread]
        while stack and (start >= ends[stack[-1]] or end > ends[stack[-1]]):
            stack.pop()
        found.append(stack[-1] if stack else ROOT)
        stack.append(place)
    return np.array(found, np.int64)


def innermost(calls: Calls, time: Ints, thread: Ints) -> Ints:
    """The place of the innermost operator or range that is open on that thread at each time; ROOT: none."""
    places = np.flatnonzero(np.isin(calls.kind, (OP, RANGE)))
    calls = calls.at(places)
    parent = parents(calls)
    found = np.full(len(time), ROOT, np.int64)
    for number in np.unique(thread):
        asked, there = np.flatnonzero(thread == number), np.flatnonzero(calls.thread == number)
        before = np.searchsorted(calls.start[there], time[asked], "right")
        found[asked] = np.append(ROOT, there)[before]
    while (over := np.flatnonzero((found != ROOT) & (np.append(calls.end, 0)[found] < time))).size:
        found[over] = parent[found[over]]
    return np.append(places, ROOT)[found]


def device_name(args: Args) -> str:
    """cpu, cuda:0, ..."""
    if args.device_type in CPU_TYPES:
        return "cpu"
    return f"{GPU_TYPES.get(args.device_type or 0, f'type {args.device_type}')}:{args.device_id}"


# ---------------------------------------------------------------- the three kinds of rows


def _of_calls(trace: Trace, calls: Calls, shapes: list[str | None]) -> tuple[Iterable[Any], ...]:
    """One row for each name, input shapes, and whether it is a range."""
    parent, launched, swallowed = _without_doubles(calls, parents(calls), _launched(trace, calls))
    keep = np.flatnonzero(~swallowed)
    group, first, count = _grouped(calls.name[keep], calls.shapes[keep], calls.kind[keep] == RANGE)
    duration = calls.end - calls.start

    def summed(values: Ints) -> list[int]:
        result = np.zeros(len(count), np.int64)
        np.add.at(result, group, values[keep])
        return list(result.tolist())

    def own(values: Ints) -> Ints:
        children = np.zeros(len(values), np.int64)
        inner = keep[parent[keep] != ROOT]
        np.add.at(children, parent[inner], values[inner])
        return values - children

    memory = [_between(trace.memory, calls, changed) for changed in _changes(trace.memory)]
    return (
        [step_name(trace.names[n]) for n in calls.name[keep][first]],
        ["cpu"] * len(count),
        [shapes[n] for n in calls.shapes[keep][first]],
        count.tolist(),
        summed(duration),
        summed(own(duration)),
        summed(_with_children(launched, parent)),
        summed(launched),
        *(summed(values) for changed in memory for values in (changed, own(changed))),
    )


def _outside_of_calls(memory: Memory, calls: Calls) -> tuple[Iterable[Any], ...]:
    """The row of allocations and releases while no call was open."""
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
    shapes = msgspec.json.decode(raw)
    if not shapes or not isinstance(shapes, list):
        return None
    return str([s if isinstance(s, list) and all(isinstance(n, int) for n in s) else [] for s in shapes])


def _counted_as(trace: Trace) -> tuple[Calls, list[str | None]]:
    """The calls that torch lists, with the numbers of the name and of the shapes that they are counted under, and those
    shapes; the last stands for none."""
    listed = np.array([name not in UNLISTED for name in trace.names], bool)
    numbers: dict[str, int] = {}
    same = np.array([numbers.setdefault(step_name(name), place) for place, name in enumerate(trace.names)], np.int64)
    texts = [*map(input_shapes, trace.shapes), None]
    distinct = [*dict.fromkeys(text for text in texts if text), None]
    number = {text: place for place, text in enumerate(distinct)}
    shown = np.array([number[text] for text in texts], np.int64)
    calls = trace.calls.at(np.flatnonzero(listed[trace.calls.name]))
    return replace(calls, name=same[calls.name], shapes=shown[calls.shapes]), distinct


def _launched(trace: Trace, calls: Calls) -> Ints:
    """GPU time (ns) of what each operator or range has launched itself.

    Since 2023, and in 2021, the work names its operator by an id. In between that id is but a copy of the number that
    joins it to the call of the runtime: then, and where there is none, the operator is the one around that call."""
    launched = np.zeros(len(calls), np.int64)
    work = trace.work.only(*({*np.unique(trace.work.kind).tolist()} - {SPAN}))
    external = work.ints(lambda a: a.external or a.external_2021 or None)
    correlation = work.ints(lambda a: a.correlation)
    if np.array_equal(external, correlation) or (external == MISSING).all():
        entry = trace.calls.only(CALL)
        around = innermost(calls, entry.start, entry.thread)
        owner = dict(zip(entry.correlation.tolist(), around.tolist(), strict=True))
        ids = correlation.tolist()
    else:
        places = np.flatnonzero(np.isin(calls.kind, (OP, RANGE)) & (calls.external >= 0))
        owner = dict(zip(calls.external[places].tolist(), places.tolist(), strict=True))
        ids = external.tolist()
    found = np.array([owner.get(i, ROOT) for i in ids], np.int64)
    np.add.at(launched, found[found != ROOT], work.duration[found != ROOT])
    return launched


def _without_doubles(calls: Calls, parent: Ints, launched: Ints) -> tuple[Ints, Ints, NDArray[np.bool_]]:
    """Parents and launched GPU time with every call that is the only child of one of its name made part of that one,
    and which calls those are."""
    nested = parent != ROOT
    children = np.bincount(parent[nested], minlength=len(parent))
    double = nested & (calls.name[parent] == calls.name) & (children[parent] == 1) if len(calls) else nested
    above, own = parent.tolist(), launched.tolist()
    for place in np.flatnonzero(double).tolist():
        up = above[place]
        if double[up]:
            up = above[place] = above[up]
        own[up], own[place] = own[place], 0
    merged = np.array(above, np.int64)
    orphan = nested & ~double & double[parent] if len(calls) else nested
    return np.where(orphan, merged[parent], merged), np.array(own, np.int64), double


def _with_children(values: Ints, parent: Ints) -> Ints:
    """Each call's value with those of all calls below it, which come later."""
    if not values.any():
        return values
    total, above = values.tolist(), parent.tolist()
    for place in range(len(total) - 1, -1, -1):
        if above[place] != ROOT:
            total[above[place]] += total[place]
    return np.array(total, np.int64)


def _changes(memory: Memory) -> tuple[Ints, Ints]:
    """Bytes allocated (or released, negative) by each event on the CPU, and on GPUs."""
    on = [(a.device_type, a.changed or 0) for a in memory.args]
    cpu = [changed if device in CPU_TYPES else 0 for device, changed in on]
    gpu = [changed if device in GPU_TYPES else 0 for device, changed in on]
    return np.array(cpu, np.int64), np.array(gpu, np.int64)


def _span(memory: Memory, calls: Calls) -> tuple[Ints, Ints]:
    """First memory event of each call, and the one after its last."""
    return np.searchsorted(memory.time, calls.start), np.searchsorted(memory.time, calls.end, "right")


def _between(memory: Memory, calls: Calls, changed: Ints) -> Ints:
    first, last = _span(memory, calls)
    total = np.append(0, np.cumsum(changed))
    result: Ints = total[last] - total[first]
    return result


def _grouped(name: Ints, shapes: Ints, kind: NDArray[np.bool_]) -> tuple[Ints, Ints, Ints]:
    """The group of each item, and of each group the first item and the size; groups in the order of appearance."""
    key = (name * (shapes.max(initial=0) + 1) + shapes) * 2 + kind
    _, first, group, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
    appearance = np.argsort(first)
    place = np.empty_like(appearance)
    place[appearance] = np.arange(len(appearance))
    return place[group], first[appearance], count[appearance]
