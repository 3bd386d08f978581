"""The flame graphs of the page: which there are, and the bytes from which the page's script draws each.

The bytes are a line of JSON (see `pack`), then columns with an entry for each frame of the graph, callers before
what they call: first the lowest bytes of all entries, then the next, and so on. That is gzip, and that is base64: a
third of the same as JSON, and read without making an object of each frame.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from orchestrator import redact
from orchestrator.render import flamegraph, gpustacks, view

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from orchestrator.formats.folded import Ints, Tree
    from orchestrator.render.flamegraph import Unit
    from orchestrator.report import Report

MOST_FRAMES = 2_000_000
"""In all flame graphs of the page together; of more, the lightest are left out and counted."""
ORIGINS = ("own", "library", "stdlib", "native", "interpreter", "operator", "kernel")
"""Whose code a frame is, in the order of the script's colours."""
KINDS: Mapping[str, str] = {
    "wall": "all time, waiting included",
    "gil": "time holding Python's lock (GIL)",
    "cpu": "time on a processor",
}


@dataclass(frozen=True)
class Flame:
    """One flame graph: the stacks of one kind of one capture, on top of their processes and threads."""

    label: str
    data: str
    """Letters, digits, '+', '/' and '='."""


@dataclass(frozen=True)
class _Graph:
    label: str
    unit: Unit
    tree: Tree
    on_gpu: frozenset[str] = frozenset()
    """The names of kernels and copies."""

    def origin(self, frame: str) -> int:
        whose = flamegraph.origin(frame)
        if self.on_gpu:
            whose = "kernel" if frame in self.on_gpu else "operator" if whose == "interpreter" else whose
        return ORIGINS.index(whose)


def flames(report: Report) -> list[Flame]:
    """A flame graph for each kind of stacks of each capture, and for the GPU's time below what launched it."""
    graphs = [graph for graph in _graphs(report) if graph.tree.weight]
    return [Flame(graph.label, _packed(graph, MOST_FRAMES // len(graphs))) for graph in graphs]


def _graphs(report: Report) -> Iterator[_Graph]:
    frame = report.table("stacks")
    if frame is not None:
        for (capture, kind), rows in frame.groupby(["capture", "kind"], dropna=False, sort=False):
            stacks = flamegraph.Stacks.of_table(rows)
            yield _Graph(f"{capture}: {KINDS.get(kind, kind)}", stacks.unit, stacks.tree())
    for capture, stacks, on_gpu in gpustacks.stacks(report):
        yield _Graph(f"{capture}: the GPU's time, below what launched it", stacks.unit, stacks.tree(), on_gpu)


def _packed(graph: _Graph, most: int) -> str:
    return pack(graph.tree, graph.origin, graph.unit, most)


def pack(tree: Tree, origin: Callable[[str], int], unit: Unit, most: int, other: Tree | None = None) -> str:
    """A tree of stacks as the page's script reads it; with the weights of the same stacks in another run, where `other`
    (a tree of the same shape) has them.

    The line of JSON has: frames (names), origins (a digit for each, into ORIGINS), unit, factor (of all weights),
    entries, left_out (how many), lost_outermost (weight of those without a caller), columns [name, bytes of an entry]:

    depth, 0 for the outermost; frame, a number into frames; own, the weight of the stacks that end there; lost, of what
    it calls and is left out. Of the other run: other_own, other_lost, other_lost_outermost."""
    kept = _heaviest(tree.total + (0 if other is None else other.total), most)
    used, frame = np.unique(tree.frame[kept], return_inverse=True)
    names = [tree.names[number] for number in used.tolist()]
    weights = {f"{name}own": one.own[kept] for name, one in (("", tree), ("other_", other)) if one is not None}
    lost = {f"{name}lost": _lost(one, kept) for name, one in (("", tree), ("other_", other)) if one is not None}
    factor = int(np.gcd.reduce(np.concatenate((*weights.values(), *lost.values())))) or 1
    weights |= {name: column[:-1][kept] for name, column in lost.items()}
    columns = {
        "depth": tree.depth[kept],
        "frame": frame,
        **{name: column // factor for name, column in weights.items()},
    }
    widths = {name: (int(column.max()).bit_length() + 7) // 8 for name, column in columns.items()}
    head = {
        "frames": [view.visible(name) for name in names],
        "origins": "".join(str(origin(name)) for name in names),
        "unit": unit,
        "factor": factor,
        "entries": len(frame),
        "left_out": len(kept) - len(frame),
        **{f"{name}_outermost": int(column[-1]) // factor for name, column in lost.items()},
        "columns": list(widths.items()),
    }
    planes = (_planes(columns[name], width) for name, width in widths.items())
    return _text(b"".join((json.dumps(head).encode(), b"\n", *planes)))


def _heaviest(total: NDArray[Any], most: int) -> NDArray[np.bool_]:
    """Which of the entries are kept. None of them lacks its caller, which is no lighter and stands before it."""
    kept = np.zeros(len(total), bool)
    kept[np.argsort(-total, kind="stable")[:most]] = True
    return kept


def _lost(tree: Tree, kept: NDArray[np.bool_]) -> Ints:
    """The weight that each entry lacks by what is left out; the last is of those without a caller."""
    there = np.append(kept, True)
    cut = ~kept & there[tree.parent]  # the parent of those without a caller is -1: the last
    lost = np.zeros(len(there), np.int64)
    np.add.at(lost, tree.parent[cut], tree.total[cut])
    return lost


def _planes(column: Ints, width: int) -> bytes:
    """The lowest bytes of all entries, then the next ones."""
    return bytes(column.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())


def _text(data: bytes) -> str:
    """Packed, and as base64. What looks like a key by chance would be taken out of the page: then packed otherwise."""
    packed = (base64.b64encode(gzip.compress(data, level, mtime=0)).decode() for level in (6, 7, 8, 9))
    return next(text for text in packed if redact.value(text) == text)
