"""Flame graphs of (stack, weight) pairs: folded text, speedscope JSON, a self-contained SVG, a tree for pages to draw.

A stack is text: its frames from the root to the leaf, separated by ';', each `function (file:line)`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from orchestrator.formats.stacks import split_frame
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas

Weighted = Iterable[tuple[str, int]]
Unit = Literal["ns", "samples"]

NARROW = 0.001
"""Frames with less than this share of everything are merged in a picture."""


def by_thread(frame: pandas.DataFrame) -> tuple[dict[str, list[tuple[str, int]]], Unit]:
    """The stacks of a table `stacks` by thread, each named as two frames, `COMMAND [PID];THREAD`; and their unit."""
    unit: Unit = "ns" if frame["weight_ns"].notna().any() else "samples"
    weights = frame["weight_ns" if unit == "ns" else "samples"].fillna(0).astype("int64")
    columns = (
        frame[name].astype(object).where(frame[name].notna(), None) for name in ("process", "pid", "thread", "stack")
    )
    found: dict[str, list[tuple[str, int]]] = {}
    for process, pid, thread, stack, weight in zip(*columns, weights.tolist(), strict=True):
        command = " ".join((process or "process").replace(";", ",").split())[:100]
        owner = f"{command} [{pid}]" if pid is not None else command
        found.setdefault(f"{owner};{(thread or 'all threads').replace(';', ',')}", []).append((stack, weight))
    return found, unit


def together(threads: Mapping[str, Weighted]) -> Iterator[tuple[str, int]]:
    """The stacks of all threads, each on top of its thread's own frames."""
    return ((f"{thread};{stack}", weight) for thread, rows in threads.items() for stack, weight in rows)


def folded(rows: Weighted) -> str:
    """One line for each distinct stack, `frame;frame WEIGHT`, sorted: what flamegraph.pl and others read."""
    weights: dict[str, int] = defaultdict(int)
    for stack, weight in rows:
        weights[stack.replace("\n", " ")] += weight
    return "".join(f"{stack} {weight}\n" for stack, weight in sorted(weights.items()))


def speedscope(threads: Mapping[str, Weighted], name: str, unit: Unit = "ns") -> str:
    """A file for speedscope.app: one `sampled` profile for each thread.

    Format: https://www.speedscope.app/file-format-schema.json"""
    ids: dict[str, int] = {}
    profiles = [_sampled(thread.replace(";", " · "), rows, unit, ids) for thread, rows in threads.items()]
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [_speedscope_frame(frame) for frame in ids]},
            "profiles": profiles,
            "name": name,
            "activeProfileIndex": 0,
            "exporter": "profrun",
        },
        ensure_ascii=False,
    )


def _sampled(thread: str, rows: Weighted, unit: Unit, ids: dict[str, int]) -> dict[str, Any]:
    samples, weights = [], []
    for stack, weight in rows:
        samples.append([ids.setdefault(frame, len(ids)) for frame in stack.split(";")])
        weights.append(weight)
    return {
        "type": "sampled",
        "name": thread,
        "unit": "nanoseconds" if unit == "ns" else "none",
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }


def _speedscope_frame(frame: str) -> dict[str, Any]:
    function, file, line = split_frame(frame)
    return {"name": function, **({"file": file} if file else {}), **({"line": line} if line else {})}


# ---------------------------------------------------------------- the tree behind the pictures


def tree(rows: Weighted, max_nodes: int = 50_000) -> dict[str, Any]:
    """The stacks as one tree, in preorder, the heaviest child first:

    frames: the names; nodes: arrays of equal length `depth` (0: a root), `frame` (index into frames), `total`, `self`;
    left_out: how many of the lightest nodes are missing because there were more than `max_nodes`."""
    graph = _Graph.of(rows)
    kept = graph.heaviest(max_nodes)
    ids: dict[str, int] = {}
    nodes: dict[str, list[int]] = {"depth": [], "frame": [], "total": [], "self": []}
    for node, depth in graph.preorder(kept):
        nodes["depth"].append(depth)
        nodes["frame"].append(ids.setdefault(graph.names[graph.frame[node]], len(ids)))
        nodes["total"].append(graph.total[node])
        nodes["self"].append(graph.own[node])
    return {"frames": list(ids), "nodes": nodes, "left_out": len(graph.frame) - 1 - len(kept)}


@dataclass
class _Graph:
    """Nodes as parallel lists; node 0 is the root of all, and a node comes after its parent."""

    names: list[str] = field(default_factory=list)
    parent: list[int] = field(default_factory=lambda: [0])
    frame: list[int] = field(default_factory=lambda: [-1])
    own: list[int] = field(default_factory=lambda: [0])
    total: list[int] = field(default_factory=list)
    children: list[list[int]] = field(default_factory=list)
    """The heaviest first."""

    @classmethod
    def of(cls, rows: Weighted) -> _Graph:
        graph = cls()
        ids: dict[str, int] = {}
        below: list[dict[int, int]] = [{}]
        for stack, weight in rows:
            node = 0
            for name in stack.split(";"):
                frame = ids.setdefault(name, len(ids))
                child = below[node].get(frame)
                if child is None:
                    child = below[node][frame] = len(below)
                    below.append({})
                    graph.parent.append(node)
                    graph.frame.append(frame)
                    graph.own.append(0)
                node = child
            graph.own[node] += weight
        graph.names = list(ids)
        graph.total = graph._totals()
        graph.children = [sorted(kids.values(), key=lambda n: (-graph.total[n], n)) for kids in below]
        return graph

    def _totals(self) -> list[int]:
        total = list(self.own)
        for node in range(len(total) - 1, 0, -1):
            total[self.parent[node]] += total[node]
        return total

    def heaviest(self, count: int) -> set[int]:
        """The `count` heaviest nodes. None lacks its parent, which is no lighter and stands before it."""
        nodes: Iterable[int] = range(1, len(self.frame))
        if len(self.frame) - 1 > count:
            nodes = sorted(nodes, key=lambda n: (-self.total[n], n))[:count]
        return set(nodes)

    def preorder(self, kept: set[int]) -> Iterator[tuple[int, int]]:
        """(node, depth)"""
        open_nodes = [(node, 0) for node in reversed(self.children[0])]
        while open_nodes:
            node, depth = open_nodes.pop()
            if node in kept:
                yield node, depth
                open_nodes += [(child, depth + 1) for child in reversed(self.children[node])]

    def size(self, node: int) -> int:
        """How many nodes hang on it, itself included."""
        count, open_nodes = 0, [node]
        while open_nodes:
            count += 1
            open_nodes += self.children[open_nodes.pop()]
        return count


# ---------------------------------------------------------------- the picture

WIDTH, ROW, SIDE, TOP, BOTTOM = 1200.0, 18.0, 12.0, 58.0, 30.0
_CHAR = 6.65
"""Width of a character of 11 px in a monospaced font."""


class _Box(NamedTuple):
    """A frame in the picture: its place as shares of the width, its row, its name, what its tooltip says."""

    left: float
    width: float
    row: int
    name: str
    tip: str
    look: str


def svg(rows: Weighted, title: str, unit: Unit = "ns") -> str:
    """A flame graph in one file, the root on top: readable without script, a click zooms where scripts may run."""
    graph = _Graph.of(rows)
    picture = _Picture(graph, unit)
    boxes = list(picture.boxes())
    height = TOP + ROW * (1 + max((box.row for box in boxes), default=0)) + BOTTOM
    merged = f"{picture.merged_nodes} frames below {NARROW:.1%} are merged or left out" if picture.merged_nodes else ""
    return _PAGE.format(
        width=f"{WIDTH:g}",
        height=f"{height:g}",
        style=_STYLE,
        script=_SCRIPT.replace("SIDE", f"{SIDE:g}").replace("CHAR", f"{_CHAR:g}").replace("WIDTH", f"{WIDTH:g}"),
        title=_text(title),
        side=f"{SIDE:g}",
        right=f"{WIDTH - SIDE:g}",
        foot=f"{height - 12:g}",
        legend=_legend(),
        merged=_text(merged),
        boxes="\n".join(_draw(box) for box in boxes),
    )


class _Picture:
    """Where each frame stands."""

    def __init__(self, graph: _Graph, unit: Unit) -> None:
        self.graph, self.unit = graph, unit
        self.all = graph.total[0] or 1
        self.merged_nodes = 0

    def boxes(self) -> Iterator[_Box]:
        everything = f"all: {self.amount(self.graph.total[0])}"
        yield _Box(0, 1, 0, everything, everything, "all")
        open_nodes = [(0, 0.0, 0)]
        while open_nodes:
            parent, left, row = open_nodes.pop()
            wide = [n for n in self.graph.children[parent] if self.graph.total[n] >= NARROW * self.all]
            for node in wide:
                yield self.box(node, left, row + 1)
                open_nodes.append((node, left, row + 1))
                left += self.graph.total[node] / self.all
            yield from self.narrow(self.graph.children[parent][len(wide) :], left, row + 1)

    def box(self, node: int, left: float, row: int) -> _Box:
        name, total, own = self.graph.names[self.graph.frame[node]], self.graph.total[node], self.graph.own[node]
        tip = f"{name}\n{self.amount(total)} ({total / self.all:.1%}), itself {self.amount(own)} ({own / self.all:.1%})"
        return _Box(left, total / self.all, row, name, tip, f"{origin(name)}{sum(name.encode()) % 3}")

    def narrow(self, nodes: list[int], left: float, row: int) -> Iterator[_Box]:
        """One box for all of them, where they fill one together."""
        count, total = sum(map(self.graph.size, nodes)), sum(self.graph.total[n] for n in nodes)
        self.merged_nodes += count
        if total >= NARROW * self.all:
            tip = f"{count} narrow frames\n{self.amount(total)} ({total / self.all:.1%})"
            yield _Box(left, total / self.all, row, f"({count} narrow frames)", tip, "narrow")

    def amount(self, weight: int) -> str:
        return show_duration(weight / 1e9) if self.unit == "ns" else f"{weight} samples"


_ORIGINS = {"own": "the program", "lib": "libraries", "native": "compiled code", "python": "the interpreter"}
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib(64)?/python[\d.]*/")


def origin(frame: str) -> str:
    """Whose code it is: a key of _ORIGINS."""
    file = split_frame(frame)[1]
    if file is None or file.startswith("<frozen"):
        return "python"
    if _LIBRARY.search(file):
        return "lib"
    return "own" if file.endswith((".py", ".ipynb", ".pyx")) or file.startswith("<") else "native"


_INVALID = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _text(text: str) -> str:
    """Escaped, without the characters that XML does not allow."""
    return escape(_INVALID.sub("\ufffd", text))


def _draw(box: _Box) -> str:
    inner = WIDTH - 2 * SIDE
    x, y, width = SIDE + box.left * inner, TOP + ROW * box.row, box.width * inner
    return (
        f'<g class="f {box.look}"><title>{_text(box.tip)}</title>'
        f'<rect x="{x:.2f}" y="{y:g}" width="{max(width - 0.5, 0.4):.2f}" height="{ROW - 1:g}" rx="2"/>'
        f'<text x="{x + 4:.2f}" y="{y + 12.5:g}">{_text(_fit(box.name, width))}</text></g>'
    )


_FOLDERS = re.compile(r" \([^()]*/")


def _fit(name: str, width: float) -> str:
    """What of the name fits in, without the folders of the file."""
    room, short = int((width - 8) / _CHAR), _FOLDERS.sub(" (", name)
    return "" if room < 3 else short if len(short) <= room else short[: room - 1] + "…"


def _legend() -> str:
    parts, x = [], SIDE
    for look, words in _ORIGINS.items():
        parts.append(f'<g class="{look}0"><rect x="{x:g}" y="34" width="11" height="11" rx="2"/></g>')
        parts.append(f'<text class="note" x="{x + 16:g}" y="43.5">{words}</text>')
        x += 30 + _CHAR * len(words)
    return "".join(parts)


_PAGE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{title}</title>
<style>{style}</style>
<text class="head" x="{side}" y="22">{title}</text>
<text class="note hint" x="{right}" y="43.5" text-anchor="end"/>
{legend}
<g id="frames">
{boxes}
</g>
<text class="note" x="{side}" y="{foot}">{merged}</text>
<script><![CDATA[{script}]]></script>
</svg>
"""

_STYLE = """
svg{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;max-width:100%;height:auto}
svg{background:#fff}.head{font:600 16px system-ui,sans-serif;fill:#1c1c22}.note{fill:#62626c}text{fill:#17171c}
.f{cursor:pointer}.f text{pointer-events:none}.f:hover rect{stroke:#17171c;stroke-width:1.2}.up{opacity:.45}
.all rect{fill:#e4e4ea}.narrow rect{fill:#ececf1}
.own0 rect{fill:#f5a862}.own1 rect{fill:#f7b678}.own2 rect{fill:#f29b50}
.lib0 rect{fill:#9cc2e8}.lib1 rect{fill:#acccec}.lib2 rect{fill:#8db7e2}
.native0 rect{fill:#a3d1a9}.native1 rect{fill:#b2d9b7}.native2 rect{fill:#95c89c}
.python0 rect{fill:#cfcbdd}.python1 rect{fill:#d8d5e4}.python2 rect{fill:#c5c0d6}
@media (prefers-color-scheme:dark){
svg{background:#17171c}.head{fill:#f0f0f4}.note{fill:#a5a5b0}text{fill:#f4f4f8}.f:hover rect{stroke:#f4f4f8}
.all rect{fill:#3a3a44}.narrow rect{fill:#2c2c34}
.own0 rect{fill:#a9601f}.own1 rect{fill:#9a571b}.own2 rect{fill:#b86a25}
.lib0 rect{fill:#34608f}.lib1 rect{fill:#2e5681}.lib2 rect{fill:#3b6a9c}
.native0 rect{fill:#3a7347}.native1 rect{fill:#34683f}.native2 rect{fill:#417f4f}
.python0 rect{fill:#5a5470}.python1 rect{fill:#514b66}.python2 rect{fill:#635c7a}
}
@media print{.hint{display:none}}
"""

_SCRIPT = """
(() => {
  const svg = document.currentScript.closest("svg"), inner = WIDTH - 2 * SIDE;
  const frames = [...svg.querySelectorAll("#frames > g")].map(g => {
    const rect = g.querySelector("rect"), text = g.querySelector("text");
    const at = n => Number(rect.getAttribute(n));
    return {g, rect, text, left: at("x") - SIDE, width: at("width") + 0.5, y: at("y"),
            name: g.querySelector("title").textContent.split("\\n")[0].replace(/ \\([^()]*\\//, " (")};
  });
  svg.querySelector(".hint").textContent = "click a frame to zoom in, its callers or \\u201call\\u201d to zoom out";
  const zoom = to => {
    const scale = inner / to.width, near = 0.3;
    for (const f of frames) {
      const above = f.y < to.y && f.left <= to.left + near && f.left + f.width >= to.left + to.width - near;
      const left = above ? 0 : (f.left - to.left) * scale, width = above ? inner : f.width * scale;
      const shown = above || (f.y >= to.y && left > -near && left + width < inner + near * scale);
      f.g.style.display = shown ? "" : "none";
      f.g.classList.toggle("up", above && f !== to);
      if (!shown) continue;
      f.rect.setAttribute("x", SIDE + left);
      f.rect.setAttribute("width", Math.max(width - 0.5, 0.4));
      f.text.setAttribute("x", SIDE + left + 4);
      const room = Math.floor((width - 8) / CHAR);
      f.text.textContent = room < 3 ? "" : f.name.length <= room ? f.name : f.name.slice(0, room - 1) + "\\u2026";
    }
  };
  for (const f of frames) f.g.addEventListener("click", () => zoom(f));
  svg.dataset.ready = "yes";
})();
"""
