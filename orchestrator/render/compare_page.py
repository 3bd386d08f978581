"""The page of a comparison: what has changed from one run to another, as one file that works offline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.comparing import sides
from orchestrator.comparing.words import SURE, Change, Comparison
from orchestrator.render import compared, flamediff, html, pagedata, stepchart, stepping, view
from orchestrator.render.pagedata import Grid

if TYPE_CHECKING:
    from orchestrator.comparing.sides import Looked, Measured
    from orchestrator.render.plots import Plot
    from orchestrator.render.stepping import Course, Phase
    from orchestrator.report import Report

SCRIPTS = (*html.SCRIPTS, "diff.js")
ROWS = 400
"""Of each table."""
NAME = 600
"""Characters of a name."""
TONES: Mapping[str, view.Tone | str] = {
    "slower": "bad", "faster": "good", "same": "good", "unsure": "warn", "more": "warn", "less": "warn",
    "new": "warn", "gone": "warn", "renamed": "calm",
}  # fmt: skip
GATES: Mapping[str, view.Tone] = {"passed": "good", "failed": "bad", "unjudged": "warn"}
KINDS: Mapping[str, str] = {"op": "operator", "syscall": "system call", "metric": "figure"}


def render(made: Comparison, a: Report, b: Report) -> str:
    """The page. Every value is escaped where it is put in; its policy lets only its own script and style work."""
    from markupsafe import Markup

    parts = _parts(made, a, b)
    style, script = html.looks(bool(parts["steps"])), html.behaviour(bool(parts["steps"]), SCRIPTS)
    return html.jinja().get_template("compare.html.j2").render(
        **parts,
        made=made,
        version=b.run.profrun_version,
        both=[("A", made.a, a), ("B", made.b, b)],
        tone=tone(made),
        word=word(made),
        tiles=list(_tiles(made)),
        alike=alike(made),
        legend=legend(parts["steps"]),
        TONES=TONES,
        GATES=GATES,
        KINDS=KINDS,
        style=Markup(style),
        script=Markup(script),
        policy=html.policy(style, script),
    )  # fmt: skip


def _parts(made: Comparison, a: Report, b: Report) -> dict[str, Any]:
    """What sections are made of that are left out without it; of runs that were refused nothing is compared."""
    nothing: dict[str, Any] = {"steps": [], "changes": None, "diffs": [], "traces": []}
    shown = nothing if made.refused else {
        "steps": steps(a, b),
        "changes": _changes(made),
        "diffs": flamediff.diffs(a, b),
        "traces": traces(made, a, b),
    }  # fmt: skip
    named = (
        ("verdict", "Verdict", True),
        ("steps", "Steps", shown["steps"]),
        ("changes", "Changes", shown["changes"]),
        ("likeness", "Likeness", True),
        ("flame", "Flame", shown["diffs"]),
        ("trace", "Trace", shown["traces"]),
    )
    return {**shown, "sections": [(key, name) for key, name, there in named if there]}


# ---------------------------------------------------------------- the verdict


def word(made: Comparison) -> str:
    """What has become of the step, in a word."""
    if made.refused:
        return "not compared"
    if made.gate is not None:
        return f"gate {made.gate.result}"
    return made.step.verdict if made.step else "unknown"


def tone(made: Comparison) -> str:
    if made.refused:
        return "bad"
    if made.gate is not None:
        return GATES[made.gate.result]
    return TONES[made.step.verdict] if made.step else "warn"


def _tiles(made: Comparison) -> Iterator[tuple[str, str, str]]:
    """(label, figure, what stands below it)."""
    step = made.step
    if step is None:
        return
    what = compared.LABELS.get(step.name, step.name)
    for side, value, n in (("A", step.a, step.n_a), ("B", step.b, step.n_b)):
        yield f"{what}, {side}", quantity(value, step.unit), f"{n} run{'' if n == 1 else 's'}" if n else ""
    yield "B less A", signed(step.ratio and 100 * (step.ratio - 1)), interval(step)
    if step.p_value is not None:
        yield "Mann-Whitney's p", f"{step.p_value:.2g}", "how often chance alone is as unlike"
    sure = [c for c in made.changes if c.verdict in SURE and c.what not in ("metric", "phase")]
    yield "Changes", f"{len(sure)}", "that can be told, beside the figures"


def interval(step: Change) -> str:
    if step.low is None or step.high is None:
        return "no interval"
    return f"95 %: {signed(100 * (step.low - 1))} to {signed(100 * (step.high - 1))}"


def signed(pct: float | None, places: int = 1) -> str:
    """+5.7 %, with a true minus; what is rounded to nothing has no sign."""
    if pct is None:
        return view.UNKNOWN
    shown = f"{abs(pct):,.{places}f}"
    mark = "" if not float(shown.replace(",", "")) else "+" if pct > 0 else "−"
    return f"{mark}{shown} %"


def quantity(value: float | None, unit: str | None) -> str:
    """A figure in the multiple of its unit in which it reads well."""
    if value is None:
        return view.UNKNOWN
    if unit is not None and unit.startswith("%"):
        return f"{value:.1f} %"
    return view.amount(value, unit) or view.UNKNOWN


def alike(made: Comparison) -> list[tuple[str, str]]:
    """The facts in which both are equal."""
    unlike = {one.fact for one in made.unlike}
    known = ((name, text) for name, text in made.a.facts.items() if text is not None and name not in unlike)
    return [(view.words(name), text) for name, text in known if made.b.facts.get(name) == text]


# ---------------------------------------------------------------- steps


@dataclass(frozen=True)
class Steps:
    """The steps of one side. told: sentences."""

    side: str
    course: Course
    chart: Plot
    where: str
    told: tuple[str, ...]


def steps(a: Report, b: Report) -> list[Steps]:
    """A chart for each side, on one axis: of the first process that makes steps."""
    found = [(side, stepping.stepping(report)) for side, report in (("A", a), ("B", b))]
    shown = [(side, one, one.shown[0]) for side, one in found if one is not None and one.shown]
    high_ns = stepchart.top_ns([course for *_, course in shown])
    return [
        Steps(side, course, stepchart.chart(course, high_ns), one.where, tuple(course.told()))
        for side, one, course in shown
    ]


def legend(shown: Sequence[Steps]) -> list[Phase]:
    """The phases that are drawn anywhere."""
    kinds = {kind for one in shown for kind in one.chart.kinds}
    return [phase for one in shown[:1] for phase in one.course.phases if phase.key in kinds]


# ---------------------------------------------------------------- the table of changes


def _changes(made: Comparison) -> Grid | None:
    shown = made.changes[:ROWS]
    if not shown:
        return None
    columns = [
        _text("what", [KINDS.get(c.what, c.what) for c in shown], "what kind of thing it is"),
        _text("name", [_named(c) for c in shown], "", code=True),
        _text(
            "verdict", [c.verdict for c in shown], "unsure: the measurements don't tell; same: too little for a word"
        ),
        _told("change", [c.share_of_step_pct for c in shown], f"of {_of(shown)}"),
        _text("interval", [_interval(c) for c in shown], "95 % interval of it"),
        _amounts("a", "A", [c.a for c in shown], [_side(c, c.a, "new") for c in shown]),
        _amounts("b", "B", [c.b for c in shown], [_side(c, c.b, "gone") for c in shown]),
        _amounts("ratio", "ratio", [c.ratio for c in shown], [_ratio(c) for c in shown], "B / A"),
        _text("evidence", [c.evidence for c in shown], "what it rests on"),
    ]
    meaning = (
        "Of tools' figures one step of a bare run, of others a run. A kernel is part of an operator, an operator of a "
        "function: they do not add up"
    )
    return _grid("changes", "What changed", meaning, columns, len(made.changes), len(shown), "change")


def _of(changes: Sequence[Change]) -> str:
    return next((c.of for c in changes if c.of and c.what != "finding"), "A's step")


def _named(change: Change) -> str:
    file, line = change.where.get("file"), change.where.get("line")
    place = f" ({file}{f':{line}' if line else ''})" if file and change.what == "function" else ""
    now = f" → {change.now_called}" if change.now_called else ""
    return view.visible(view.short(change.name, NAME) + view.short(now, NAME) + place)


def _interval(change: Change) -> str:
    if change.share_low_pct is None or change.share_high_pct is None:
        return ""
    return f"{signed(change.share_low_pct)} to {signed(change.share_high_pct)}"


def _side(change: Change, value: float | None, absent: str) -> str:
    return "none" if value is None and change.verdict == absent else quantity(value, change.unit)


def _ratio(change: Change) -> str | None:
    if change.ratio is None:
        return "none" if change.verdict in ("new", "gone") else None
    return f"{change.ratio:.3g}x"


# ---------------------------------------------------------------- the trace, side by side


def traces(made: Comparison, a: Report, b: Report) -> list[Grid]:
    """Operators and the GPU's work of both runs, with their calls and times per step; what only one has, too."""
    one, other = sides.both(a, b)
    found = (
        ("operators", "Operators", sides.operators(one), sides.operators(other)),
        ("kernels", "GPU kernels, copies and sets", sides.kernels(one), sides.kernels(other)),
    )
    again = {c.name: c.now_called for c in made.told("kernel") if c.now_called}
    wholes = one.step_s, other.step_s
    grids = (_trace(name, title, x, y, again, wholes) for name, title, x, y in found if x and y and x.per == y.per)
    return [grid for grid in grids if grid is not None]


def _trace(
    name: str, title: str, a: Looked, b: Looked, again: Mapping[str, str], wholes: tuple[float | None, float | None]
) -> Grid | None:
    pairs = [*_pairs(a.things, b.things, again)]
    pairs.sort(key=lambda pair: (-abs(_ns(pair[1]) - _ns(pair[0])), (pair[0] or pair[1] or _NONE).name))
    shown = pairs[:ROWS]
    if not shown:
        return None
    firsts, seconds = [x for x, _ in shown], [y for _, y in shown]
    grown = [_ns(y) - _ns(x) for x, y in shown]
    whole_ns = (wholes[0] or 0.0) * 1e9 if a.per == "step" else 0.0
    columns = [
        _text("name", [_pair_name(x, y) for x, y in shown], "", code=True),
        _text("calls", [_calls(x, y) for x, y in shown], "whether it is called as often"),
        *(_counts(side, side_things, a.per) for side, side_things in (("A", firsts), ("B", seconds))),
        *(_times_of(side, side_things, a.per) for side, side_things in (("A", firsts), ("B", seconds))),
        _amounts("grown", "grew by", [abs(ns) for ns in grown], [_grown(ns) for ns in grown], "B less A", grown),
    ]
    if whole_ns:
        columns.append(_told("share", [100 * ns / whole_ns for ns in grown], "of A's step"))
    meaning = f"A: {a.capture}, B: {b.capture}; time of their own, per {a.per}"
    return _grid(name, title, meaning, columns, len(pairs), len(shown), "grown")


_NONE = sides.Measured("", None)


def _pairs(
    a: Sequence[Measured], b: Sequence[Measured], again: Mapping[str, str]
) -> Iterator[tuple[Measured | None, Measured | None]]:
    left = {one.name: one for one in b}
    for one in a:
        yield one, left.pop(one.name, None) or left.pop(again.get(one.name, ""), None)
    for other in left.values():
        yield None, other


def _ns(one: Measured | None) -> float:
    return (one.ns if one else 0.0) or 0.0


def _pair_name(one: Measured | None, other: Measured | None) -> str:
    names = dict.fromkeys(view.short(side.name, NAME) for side in (one, other) if side)
    return view.visible(" → ".join(names))


def _calls(one: Measured | None, other: Measured | None) -> str:
    if one is None or other is None:
        return "new" if one is None else "gone"
    named = "renamed, " if one.name != other.name else ""
    if one.count is None or other.count is None:
        return f"{named}number unknown"
    ratio = other.count / one.count if one.count else 0.0
    return named + ("as often" if abs(ratio - 1) < _AS_OFTEN else "more often" if ratio > 1 else "less often")


_AS_OFTEN = 0.01


def _counts(side: str, things: Sequence[Measured | None], per: str) -> dict[str, Any]:
    texts = ["none" if one is None else None if one.count is None else f"{one.count:,.4g}" for one in things]
    return _amounts(f"count_{side}", f"{side} calls", [one.count if one else None for one in things], texts, f"a {per}")


def _times_of(side: str, things: Sequence[Measured | None], per: str) -> dict[str, Any]:
    texts = ["none" if one is None else view.duration(None if one.ns is None else one.ns / 1e9) for one in things]
    return _amounts(f"time_{side}", f"{side} time", [one.ns if one else None for one in things], texts, f"a {per}")


def _grown(ns: float) -> str:
    return "0 s" if not ns else f"{'+' if ns > 0 else '−'}{view.duration(abs(ns) / 1e9)}"


# ---------------------------------------------------------------- grids


def _grid(
    name: str, title: str, meaning: str, columns: Sequence[Mapping[str, Any]], total: int, shown: int, sort: str
) -> Grid:
    data = pagedata.inert({"columns": columns, "sort": sort})
    return Grid(name, title, meaning, "", total, shown, "change", (), (), data)


def _text(label: str, values: Sequence[str], meaning: str, *, code: bool = False) -> dict[str, Any]:
    kind = "code" if code else "text"
    return {"key": label, "label": label, "unit": "", "meaning": meaning, "type": kind, "values": list(values)}


def _amounts(
    key: str,
    label: str,
    values: Sequence[float | None],
    texts: Sequence[str | None],
    meaning: str = "",
    signs: Sequence[float | None] | None = None,
) -> dict[str, Any]:
    """Numbers of several units, or with signs: sorted by `values`, shown as `texts`."""
    head = {"key": key, "label": label, "unit": "", "meaning": meaning, "type": "number", "factor": 1, "places": None}
    return {**head, "values": list(values), "texts": list(texts), **({} if signs is None else {"signs": list(signs)})}


def _told(key: str, pcts: Sequence[float | None], unit: str) -> dict[str, Any]:
    """What B has more than A, in shares of a whole, by their size."""
    texts = [None if pct is None else signed(pct) for pct in pcts]
    sizes = [None if pct is None else abs(pct) for pct in pcts]
    return {**_amounts(key, "grew by", sizes, texts, "B less A", pcts), "unit": unit}
