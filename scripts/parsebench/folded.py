"""Folded stacks of 200 MB: self and total counts by function, and the flame graph's tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parsebench.frame import Input, Look, Ours, digest, generated


def generate(out: Path, scale: float) -> None:
    generated("gen_folded.py", out, max(100, round(100_000 * scale)), max(100, round(1_000_000 * scale)))


def ours(path: Path) -> Look:
    from orchestrator.formats import folded

    content = folded.read(path)
    functions = content.tables[1].columns
    figures = [functions[name] for name in ("function", "file", "self_samples", "total_samples")]
    (tree,) = content.trees.values()
    return lambda: {
        "stacks": len(content.tables[0]),
        "samples": content.total,
        "functions": digest(zip(*figures, strict=True)),
        "nodes": len(tree.depth),
        "tree": digest(_nodes(tree)),
    }


def _nodes(tree: Any) -> Iterator[tuple[int, int, int]]:
    """(hash of the path, self, total) of each node."""
    hashes: list[int] = []
    names = list(map(hash, tree.names))
    columns = (array.tolist() for array in (tree.parent, tree.frame, tree.own, tree.total))
    for parent, frame, own, total in zip(*columns, strict=True):
        hashes.append(hash((hashes[parent] if parent >= 0 else 0, names[frame])))
        yield hashes[-1], own, total


def peer(path: Path) -> Look:
    """A loop over lines and frames with dicts. A node of the tree: [self, total, nodes by frame]."""
    own: dict[str, int] = {}
    total: dict[str, int] = {}
    root: list[Any] = [0, 0, {}]
    stacks = 0
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            stack, _, shown = line.rpartition(" ")
            count = int(shown)
            stacks += 1
            node, seen = root, set()
            for frame in stack.split(";"):
                children = node[2]
                node = children.get(frame)
                if node is None:
                    node = children[frame] = [0, 0, {}]
                node[1] += count
                function = frame.rpartition(":")[0]
                if function not in seen:
                    seen.add(function)
                    total[function] = total.get(function, 0) + count
            node[0] += count
            own[function] = own.get(function, 0) + count
    rows = ((*name.split(" ("), own.get(name, 0), count) for name, count in total.items())
    return lambda: {
        "stacks": stacks,
        "samples": sum(own.values()),
        "functions": digest(rows),
        "nodes": sum(1 for _ in _walked(root)),
        "tree": digest(_walked(root)),
    }


def _walked(root: list[Any]) -> Iterator[tuple[int, int, int]]:
    """As `_nodes`."""
    left = [(0, root)]
    while left:
        above, node = left.pop()
        for frame, child in node[2].items():
            here = hash((above, hash(frame)))
            yield here, child[0], child[1]
            left.append((here, child))


INPUTS = (
    Input(
        "folded",
        "200 MB",
        "stacks.folded",
        generate,
        "a plain Python dict loop",
        peer,
        (Ours("self/total tables and the flame graph's tree", ours, 2.0, 400_000_000),),
    ),
)
