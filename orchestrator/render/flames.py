"""The flame graphs of the page: which there are, and the bytes from which the page's script draws each.

The bytes are a line of JSON (see `_packed`), then columns with an entry for each frame of the graph, callers before
what they call: first the lowest bytes of all entries, then the next, and so on. That is gzip, and that is base64: a
third of the same as JSON, and read without making an object of each frame.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
    """The line of JSON has: frames (names), origins (a digit for each, into ORIGINS), unit, factor (of all weights),
    entries, left_out (how many), lost_outermost (weight of those without a caller), columns [name, bytes of an entry]:

    depth, 0 for the outermost; frame, a number into frames; own, the weight of the stacks that end there; lost, of what
    it calls and is left out."""
    tree = graph.tree
    kept, lost = _heaviest(tree, most)
    used, frame = np.unique(tree.frame[kept], return_inverse=True)
    names = [tree.names[number] for number in used.tolist()]
    own = tree.own[kept]
    factor = int(np.gcd.reduce(np.concatenate((own, lost)))) or 1
    columns = {"depth": tree.depth[kept], "frame": frame, "own": own // factor, "lost": lost[:-1][kept] // factor}
    widths = {name: (int(column.max()).bit_length() + 7) // 8 for name, column in columns.items()}
    head = {
        "frames": [view.visible(name) for name in names],
        "origins": "".join(str(graph.origin(name)) for name in names),
        "unit": graph.unit,
        "factor": factor,
        "entries": len(frame),
        "left_out": len(kept) - len(frame),
        "lost_outermost": int(lost[-1]) // factor,
        "columns": list(widths.items()),
    }
    planes = (_planes(columns[name], width) for name, width in widths.items())
    return _text(b"".join((json.dumps(head).encode(), b"\n", *planes)))


def _heaviest(tree: Tree, most: int) -> tuple[NDArray[np.bool_], Ints]:
    """Which of the entries are kept, and the weight that each lacks by that; the last is of those without a caller.

    None that is kept lacks its caller, which is no lighter and stands before it."""
    kept = np.zeros(len(tree.total) + 1, bool)
    kept[np.argsort(-tree.total, kind="stable")[:most]] = kept[-1] = True
    cut = ~kept[:-1] & kept[tree.parent]  # the parent of those without a caller is -1: the last
    lost = np.zeros(len(kept), np.int64)
    np.add.at(lost, tree.parent[cut], tree.total[cut])
    return kept[:-1], lost


def _planes(column: Ints, width: int) -> bytes:
    """The lowest bytes of all entries, then the next ones."""
    return bytes(column.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes())


def _text(data: bytes) -> str:
    """Packed, and as base64. What looks like a key by chance would be taken out of the page: then packed otherwise."""
    packed = (base64.b64encode(gzip.compress(data, level, mtime=0)).decode() for level in (6, 7, 8, 9))
    return next(text for text in packed if redact.value(text) == text)
