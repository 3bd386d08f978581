"""The work of one GPU as arrays, out of the tables of a capture, and the part of it that is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.gpu_queue import LAST
from orchestrator.formats.kernel_names import communicates
from orchestrator.locating.gpu_arrays import Flags, Times, ints, shared_ns, texts
from orchestrator.locating.gpu_names import BY_KERNELS, BY_STEPS
from orchestrator.tables import Coded, Table

Parts: TypeAlias = Mapping[str, Sequence[Table]]

STEPS_TOUCH_NS = 100_000
"""Steps that are nearer to one another than their own clock is exact (tables of steps say 0.1 ms) follow directly."""


@dataclass(frozen=True)
class Work:
    """Pieces of work of one kind. name: the place of each one's name in `names`."""

    start: Ints
    end: Ints
    name: Ints
    names: list[str]

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True)
class Gpu:
    """All that one capture knows of one GPU. row: its row of `gpu_utilization`."""

    capture: str
    row: Mapping[str, Any]
    kernels: Work
    transfers: Work
    bytes: Ints
    pageable: Ints
    """Of each transfer whether pageable memory was on one of its sides: 1, 0, or MISSING."""
    calls: Table | None
    clock_error_ns: int | None
    """None: its times are not those of other tools."""

    @property
    def pid(self) -> int | None:
        return None if self.row.get("pid") is None else int(self.row["pid"])

    @cached_property
    def communicating(self) -> Flags:
        """Which kernels pass data between GPUs."""
        some = np.array([communicates(name) for name in self.kernels.names] or [False], bool)
        return some[self.kernels.name]

    @cached_property
    def busy(self) -> Times:
        start, end = (
            np.concatenate((getattr(self.kernels, at), getattr(self.transfers, at))) for at in ("start", "end")
        )
        return Times.union(start, end)

    @cached_property
    def in_kernels(self) -> Times:
        return Times.union(self.kernels.start, self.kernels.end)


def gpus(parts: Parts) -> Iterator[Gpu]:
    """The GPUs of all captures, as `gpu_utilization` has them."""
    sorted_ = {name: [(t, _whose(t)) for t in parts.get(name, ())] for name in _OF_A_GPU}
    for table in parts.get("gpu_utilization", ()):
        rows = list(table.rows())
        named = {(row.get("pid"), row.get("device")) for row in rows if row.get("pid") is not None}
        for row in rows:
            mine = {name: [t for t, whose in tables if _is_of(row, *whose)] for name, tables in sorted_.items()}
            yield _gpu(mine, table, row, named)


_OF_A_GPU = ("gpu_utilization", "gpu_kernels", "gpu_graphs", "gpu_transfers", "cuda_calls")


def _gpu(tables: Parts, table: Table, row: Mapping[str, Any], named: set[tuple[Any, Any]]) -> Gpu:
    """tables: those of its capture and rank."""
    owner = (row.get("pid"), row.get("device"))
    alone = sum(len(t) for t in tables["gpu_utilization"]) == 1

    def mine(name: str) -> list[tuple[Table, Any]]:
        """With the rows of this GPU."""
        return [(t, slice(None) if alone else _of(t, owner, named)) for t in tables[name]]

    transfers = mine("gpu_transfers")
    return Gpu(
        capture=str(row["capture"]),
        row=row,
        kernels=_in_order(_work([*mine("gpu_kernels"), *mine("gpu_graphs")])),
        transfers=_work(transfers),
        bytes=_joined([ints(t, "bytes")[rows] for t, rows in transfers]),
        pageable=_joined([_pageable(t)[rows] for t, rows in transfers]),
        calls=next(iter(tables["cuda_calls"]), None),
        clock_error_ns=(table.clock_error_ns or 0) if table.clock == "epoch" else None,
    )


def _whose(table: Table) -> tuple[Any, frozenset[Any]]:
    """The capture of a table, and its ranks: one recording may have the processes of several in one file."""
    ranks = table.columns.get("rank", ())
    return next(iter(table.columns["capture"]), None), frozenset(ranks.texts if isinstance(ranks, Coded) else ranks)


def _is_of(row: Mapping[str, Any], capture: Any, ranks: frozenset[Any]) -> bool:
    return bool(row["capture"] == capture and (row.get("rank") is None or not ranks or row["rank"] in ranks))


def _of(table: Table, owner: tuple[Any, Any], named: set[tuple[Any, Any]]) -> Flags:
    """The rows of one GPU. Without a pid it is that of several processes: what no other GPU claims."""
    pid, device = ints(table, "pid"), ints(table, "device")
    if owner[0] is not None:
        mine: Flags = (pid == owner[0]) & (device == owner[1])
        return mine
    claimed = np.zeros(len(pid), bool)
    for other, number in named:
        claimed |= (pid == other) & (device == number)
    free: Flags = ~claimed & (device == owner[1])
    return free


def _in_order(work: Work) -> Work:
    """The same in the order of its starts."""
    if not (work.start[1:] < work.start[:-1]).any():
        return work
    order = np.argsort(work.start, kind="stable")
    return Work(work.start[order], work.end[order], work.name[order], work.names)


def _work(tables: Sequence[tuple[Table, Any]]) -> Work:
    """The pieces of several tables behind one another."""
    start, end, name, names = [], [], [], list[str]()
    for table, rows in tables:
        codes, words = _names(table)
        start.append(ints(table, "start_ns")[rows])
        end.append(start[-1] + np.maximum(ints(table, "duration_ns")[rows], 0))
        name.append(codes[rows] + len(names))
        names += words
    return Work(_joined(start), _joined(end), _joined(name), names)


def _names(table: Table) -> tuple[Ints, list[str]]:
    if table.name == "gpu_graphs":
        numbers = ints(table, "graph_id")
        known, codes = np.unique(numbers, return_inverse=True)
        return codes, ["[CUDA graph]" if n == MISSING else f"[CUDA graph {n}]" for n in known.tolist()]
    codes, words = texts(table, "kind" if table.name == "gpu_transfers" else "name")
    return codes, [word or "(unnamed)" for word in words]


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if len(arrays) > 1 else arrays[0] if arrays else np.empty(0, np.int64)


def _pageable(table: Table) -> Ints:
    """Whether a copy is from or to pageable memory: 1, 0, MISSING."""
    sides = []
    for column in ("source", "target"):
        codes, words = texts(table, column)
        sides.append(np.array([MISSING if w is None else int(w == "pageable") for w in words], np.int64)[codes])
    return np.maximum(*sides)


# ---------------------------------------------------------------- the window


@dataclass(frozen=True)
class Window:
    """The part of a recording that shares are of. steps: where it was laid out by them."""

    times: Times
    words: str
    steps: Steps | None = None


@dataclass(frozen=True)
class Steps:
    """The steps of a window in their order. data_ns: time of each in the DataLoader's next, MISSING if unknown."""

    capture: str
    start: Ints
    number: Ints
    data_ns: Ints


def window(gpu: Gpu, steps: Sequence[Table]) -> Window | None:
    """The steady steps of the GPU's process, as far as its work was recorded; without any from the first kernel to the
    last. None where no kernel ran."""
    kernels = gpu.in_kernels
    if not len(kernels):
        return None
    recorded = Times(kernels.start[:1], kernels.end[-1:])
    by_steps = (_steady(gpu, table, recorded) for table in steps)
    return next(filter(None, by_steps), Window(recorded, BY_KERNELS))


def _steady(gpu: Gpu, table: Table, recorded: Times) -> Window | None:
    """Warm-up is left out (where nobody can tell it, the first step). Of the steps that tools looked at closely and the
    others those are taken that were recorded for longer: a recording of a window holds little else."""
    if table.clock != "epoch" or gpu.clock_error_ns is None:
        return None
    start, duration, pid, number = (ints(table, name) for name in ("start_ns", "duration_ns", "pid", "step"))
    warm, profiled = (_flags(table, name) for name in ("warmup", "profiled"))
    warm = np.where(warm == MISSING, number == number.min(initial=LAST), warm == 1)
    known = (duration != MISSING) & (start != MISSING) & ~warm & ((gpu.pid is None) | (pid == gpu.pid))
    seen = np.where(known, shared_ns(start, start + np.where(known, duration, 0), recorded), 0)
    chosen = max(profiled != 1, profiled == 1, key=lambda kind: int(seen[kind].sum())) & (seen > 0)
    if not chosen.any():
        return None
    begin, length, number = start[chosen], duration[chosen], number[chosen]
    times = Times.union(begin, begin + length).bridged(STEPS_TOUCH_NS).within(recorded)
    order = np.argsort(begin, kind="stable")
    waited = ints(table, "data_wait_ns")[chosen][order]
    return Window(times, BY_STEPS, Steps(str(table.columns["capture"][0]), begin[order], number[order], waited))


def _flags(table: Table, name: str) -> Ints:
    values = table.columns.get(name, [None] * len(table))
    return np.array([MISSING if value is None else int(value) for value in values], np.int64)
