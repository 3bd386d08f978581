"""Weighted call stacks with their frames as numbers, and what is written of them: folded text, speedscope JSON, a
self-contained SVG, the tree that pages draw.

A stack is text: its frames from the root to the leaf, separated by ';', each `function (file:line)`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from orchestrator.formats.folded import Ints, Tree
from orchestrator.formats.stacks import is_own, split_frame
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from orchestrator.report import Report

Weighted = Iterable[tuple[str, int]]
Unit = Literal["ns", "samples"]

NARROW = 0.001
"""Frames with less than this share of everything are merged in a picture."""
_AT_ONCE = 4096
"""So many stacks are taken apart at once: what that takes is bounded, however many there are."""


@dataclass(frozen=True)
class Stacks:
    """Stacks of several threads.

    names: the text of each frame. frames: the numbers of the frames of all stacks, one stack behind the other; `first`
    says where each begins, and at its end where the last one ends. weights: of each stack, in `unit`. owner: of each
    stack, a number into `threads`, each named as the frames below its stacks, `COMMAND [PID];THREAD`, '' for none."""

    names: Sequence[str]
    frames: Ints
    first: Ints
    weights: Ints
    owner: Ints
    threads: Sequence[str]
    unit: Unit = "ns"

    @classmethod
    def of_table(cls, frame: pandas.DataFrame) -> Stacks:
        """Of rows of a table `stacks`, weighted by time where it is known, else by samples."""
        import pyarrow

        unit: Unit = "ns" if frame["weight_ns"].notna().any() else "samples"
        weights = frame["weight_ns" if unit == "ns" else "samples"].fillna(0).to_numpy("int64")
        owners = frame[["process", "pid", "thread"]]
        known = owners.drop_duplicates().astype(object)
        threads = [_label(*key) for key in known.where(known.notna(), None).itertuples(index=False, name=None)]
        owner = owners.groupby(list(owners), dropna=False, sort=False).ngroup().to_numpy("int64")
        texts = pyarrow.array(frame["stack"].fillna("stack unknown"), pyarrow.large_string())
        return cls(*_interned(texts), weights, owner, threads, unit)

    @classmethod
    def of(cls, threads: Mapping[str, Weighted], unit: Unit = "ns") -> Stacks:
        """Of the (stack, weight) pairs of each thread."""
        import pyarrow

        rows = [(text, weight, number) for number, pairs in enumerate(threads.values()) for text, weight in pairs]
        texts, weights, owner = zip(*rows, strict=True) if rows else ((), (), ())
        interned = _interned(pyarrow.array(texts, pyarrow.large_string()))
        return cls(*interned, np.array(weights, np.int64), np.array(owner, np.int64), list(threads), unit)

    def numbers(self, stack: int) -> list[int]:
        """The frames of one stack."""
        numbers: list[int] = self.frames[self.first[stack] : self.first[stack + 1]].tolist()
        return numbers

    def tree(self) -> Tree:
        """All stacks that have a weight, each on top of its thread's own frames."""
        ids = {name: number for number, name in enumerate(self.names)}
        below = [
            b"".join(ids.setdefault(level, len(ids)).to_bytes(4, "big") for level in thread.split(";") if level)
            for thread in self.threads
        ]
        numbers, first = self.frames.astype(">u4").tobytes(), (4 * self.first).tolist()
        weights: dict[bytes, int | float] = defaultdict(int)
        for owner, start, end, weight in zip(
            self.owner.tolist(), first, first[1:], self.weights.tolist(), strict=False
        ):
            if weight:
                weights[below[owner] + numbers[start:end]] += weight
        nothing = np.zeros(0, np.int64)
        return Tree.of(weights, list(ids)) if weights else Tree((), *[nothing] * 6)


def of_report(report: Report) -> Iterator[tuple[str, str, pandas.DataFrame]]:
    """(file stem, title, rows) for each capture and kind of time in the table `stacks`."""
    frame = report.table("stacks")
    if frame is None:
        return
    for (capture, kind), rows in frame.groupby(["capture", "kind"], sort=True):
        stem = capture if kind == "wall" else f"{capture}.{kind}"
        words = kind if kind in ("samples", "time") else f"{kind} time"
        yield f"flamegraphs/{stem}", f"{report.run.name}: {capture} ({words})", rows


def _label(process: str | None, pid: int | None, thread: str | None) -> str:
    """A thread's name as two frames. A tool that knows of no threads has put all of them together."""
    command = " ".join((process or "process").replace(";", ",").split())[:100]
    return f"{command}{'' if pid is None else f' [{pid}]'};{(thread or 'all threads').replace(';', ',')}"


def _interned(texts: pyarrow.Array) -> tuple[list[str], Ints, Ints]:
    """(names, frames, first) of Stacks."""
    import pyarrow.compute as compute

    ids: dict[str, int] = {}
    frames, lengths = [np.zeros(0, np.int64)], [np.zeros(1, np.int64)]
    for start in range(0, len(texts), _AT_ONCE):
        parts = compute.split_pattern(texts.slice(start, _AT_ONCE), ";")
        coded = parts.flatten().dictionary_encode()
        numbers = np.array([ids.setdefault(name, len(ids)) for name in coded.dictionary.to_pylist()], np.int64)
        frames.append(numbers[coded.indices.to_numpy()])
        lengths.append(compute.list_value_length(parts).to_numpy())
    return list(ids), np.concatenate(frames), np.cumsum(np.concatenate(lengths))


def folded(stacks: Stacks) -> str:
    """One line for each distinct stack, `frame;frame WEIGHT`, sorted: what flamegraph.pl and others read."""
    weights: dict[str, int] = defaultdict(int)
    for stack, (owner, weight) in enumerate(zip(stacks.owner.tolist(), stacks.weights.tolist(), strict=True)):
        names = [
            name for name in (stacks.threads[owner], *map(stacks.names.__getitem__, stacks.numbers(stack))) if name
        ]
        weights[";".join(names).replace("\n", " ")] += weight
    return "".join(f"{stack} {weight}\n" for stack, weight in sorted(weights.items()))


def speedscope(stacks: Stacks, name: str) -> str:
    """A file for speedscope.app: one `sampled` profile for each thread.

    Format: https://www.speedscope.app/file-format-schema.json"""
    return json.dumps(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "shared": {"frames": [_speedscope_frame(frame) for frame in stacks.names]},
            "profiles": [_sampled(stacks, number) for number in range(len(stacks.threads))],
            "name": name,
            "activeProfileIndex": 0,
            "exporter": "profrun",
        },
        ensure_ascii=False,
    )


def _sampled(stacks: Stacks, thread: int) -> dict[str, Any]:
    rows = np.flatnonzero(stacks.owner == thread)
    return {
        "type": "sampled",
        "name": stacks.threads[thread].replace(";", " · "),
        "unit": "nanoseconds" if stacks.unit == "ns" else "none",
        "startValue": 0,
        "endValue": int(stacks.weights[rows].sum()),
        "samples": [stacks.numbers(row) for row in rows.tolist()],
        "weights": stacks.weights[rows].tolist(),
    }


def _speedscope_frame(frame: str) -> dict[str, Any]:
    function, file, line = split_frame(frame)
    return {"name": function, **({"file": file} if file else {}), **({"line": line} if line else {})}


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


def svg(stacks: Stacks, title: str) -> str:
    """A flame graph in one file, the root on top: readable without script, a click zooms where scripts may run."""
    picture = _Picture(stacks.tree(), stacks.unit)
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

    def __init__(self, tree: Tree, unit: Unit) -> None:
        self.tree, self.unit = tree, unit
        self.all = int(tree.weight)
        self.merged_nodes = 0
        self._end, self._total, self._own = tree.end.data, tree.total.data, tree.own.data

    def boxes(self) -> Iterator[_Box]:
        everything = f"all: {self.amount(self.all)}"
        yield _Box(0, 1, 0, everything, everything, "all")
        opened = [(0, len(self.tree.depth), 0.0, 1)]  # the nodes between two, those on top of one another left out
        while opened:
            start, stop, left, row = opened.pop()
            siblings = sorted(self.siblings(start, stop), key=self._total.__getitem__, reverse=True)
            wide = [node for node in siblings if self._total[node] >= NARROW * self.all]
            for node in wide:
                yield self.box(node, left, row)
                opened.append((node + 1, self._end[node], left, row + 1))
                left += self._total[node] / self.all
            yield from self.narrow(siblings[len(wide) :], left, row)

    def siblings(self, start: int, stop: int) -> Iterator[int]:
        while start < stop:
            yield start
            start = self._end[start]

    def box(self, node: int, left: float, row: int) -> _Box:
        name, total, own = self.tree.names[self.tree.frame[node]], self._total[node], self._own[node]
        tip = f"{name}\n{self.amount(total)} ({total / self.all:.1%}), itself {self.amount(own)} ({own / self.all:.1%})"
        return _Box(left, total / self.all, row, name, tip, f"{origin(name)}{sum(name.encode()) % 3}")

    def narrow(self, nodes: list[int], left: float, row: int) -> Iterator[_Box]:
        """One box for all of them, where they fill one together."""
        count, total = sum(self._end[n] - n for n in nodes), sum(self._total[n] for n in nodes)
        self.merged_nodes += count
        if total and total >= NARROW * self.all:
            tip = f"{count} narrow frames\n{self.amount(total)} ({total / self.all:.1%})"
            yield _Box(left, total / self.all, row, f"({count} narrow frames)", tip, "narrow")

    def amount(self, weight: int) -> str:
        return show_duration(weight / 1e9) if self.unit == "ns" else f"{weight} samples"


_ORIGINS = {
    "own": "the program",
    "library": "libraries",
    "stdlib": "Python's library",
    "native": "compiled code",
    "interpreter": "the interpreter",
}


def origin(frame: str) -> str:
    """Whose code it is: a key of _ORIGINS."""
    file = split_frame(frame)[1]
    if file is None or file.startswith("<frozen"):
        return "interpreter"
    if not is_own(file):
        return "library" if "-packages/" in file else "stdlib"
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
.library0 rect{fill:#9cc2e8}.library1 rect{fill:#acccec}.library2 rect{fill:#8db7e2}
.stdlib0 rect{fill:#c3bbea}.stdlib1 rect{fill:#cec7ef}.stdlib2 rect{fill:#b8afe5}
.native0 rect{fill:#a3d1a9}.native1 rect{fill:#b2d9b7}.native2 rect{fill:#95c89c}
.interpreter0 rect{fill:#d2d2d8}.interpreter1 rect{fill:#dbdbe0}.interpreter2 rect{fill:#c8c8cf}
@media (prefers-color-scheme:dark){
svg{background:#17171c}.head{fill:#f0f0f4}.note{fill:#a5a5b0}text{fill:#f4f4f8}.f:hover rect{stroke:#f4f4f8}
.all rect{fill:#3a3a44}.narrow rect{fill:#2c2c34}
.own0 rect{fill:#a9601f}.own1 rect{fill:#9a571b}.own2 rect{fill:#b86a25}
.library0 rect{fill:#34608f}.library1 rect{fill:#2e5681}.library2 rect{fill:#3b6a9c}
.stdlib0 rect{fill:#5c4f94}.stdlib1 rect{fill:#534787}.stdlib2 rect{fill:#6658a2}
.native0 rect{fill:#3a7347}.native1 rect{fill:#34683f}.native2 rect{fill:#417f4f}
.interpreter0 rect{fill:#55555f}.interpreter1 rect{fill:#4c4c55}.interpreter2 rect{fill:#5e5e69}
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
