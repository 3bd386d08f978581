"""index.html: the whole report as one page that works offline, asks nobody for anything, and shows names as text."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator.render import (
    charts,
    environment,
    flames,
    gpu,
    gpustrip,
    hang,
    kernels,
    memory,
    operators,
    pagedata,
    ranks,
    samples,
    stepchart,
    stepping,
    syscalls,
    view,
    where,
)

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

    from orchestrator.render.plots import Plot
    from orchestrator.render.stepping import Course, Phase, Stepping
    from orchestrator.report import Report

ASSETS = Path(__file__).parent / "assets"
OWN_FILES = ("report.md", "summary.json", "plan.yaml", "machine.json", "journal.jsonl", "run.log", "raw/run.json")
SCRIPTS = ("page.js", "tables.js", "links.js", "charts.js", "flame.js")
"""In this order; the first has what the others share."""
CHARTS = ("vendor/uPlot.LICENSE", "vendor/uPlot.iife.min.js", "vendor/uPlot.min.css")
"""The library that draws curves and bars: in the page only where there are any."""
SHOWN_TABLES = 4
"""The others lie in a part that is closed at first."""
KERNEL_TABLES = ("kernel_profiles", "kernel_metrics", "kernel_rules")
TIMELINES = ("timeline.perfetto-trace", "timeline.json.gz")


def render(report: Report) -> str:
    """The page. Every value is escaped where it is put in; its policy lets only its own script and style work."""
    from markupsafe import Markup

    parts = _parts(report)
    style, script = looks(drawn := _draws(parts)), behaviour(drawn)
    template = jinja().get_template("page.html.j2")
    return template.render(
        **parts,
        sections=_sections(report, parts),
        report=report,
        verdict=view.verdict(report),
        figures=view.figures(report),
        passes=view.passes(report),
        collectors=view.collectors(report),
        silent=[c for c in report.captures if view.silent(c)],
        captures=[c for c in report.captures if not view.silent(c)],
        strip=charts.strip(report),
        whiskers=charts.whiskers(report),
        drifted=view.drifted(report),
        trusts=view.trusts(report),
        copies=gpu.copies(report)[: gpustrip.SHOWN],
        roofline=kernels.roofline(report),
        flames=flames.flames(report),
        facts=view.facts(report.machine),
        environment=environment.told(report),
        environment_rows=environment.rows(report),
        files=_files(report),
        raw=[artifact for capture in report.captures for artifact in capture.artifacts],
        versions=_versions(report),
        anchors=_anchors(report),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
    )


def _parts(report: Report) -> dict[str, Any]:
    """What sections are made of that are left out without it."""
    grids = pagedata.grids(report)
    measured = kernels.kernels(report)
    own = (*syscalls.TABLES, *(KERNEL_TABLES if measured else ()))
    return {
        "stands": hang.stands(report),
        "steps": _steps(report),
        "splits": where.splits(report),
        "split_title": where.title(report),
        "queues": (queues := gpustrip.queues(report)),
        "ranks": ranks.ranks(report),
        "gpus_left_out": gpustrip.left_out(report),
        "moments": gpustrip.moments(queues),
        "operators": operators.grids(report),
        "every_grid": grids,
        "grids": [grid for grid in grids if grid.name not in own],
        "kernels": measured,
        "kernel_grids": [grid for grid in grids if grid.name in KERNEL_TABLES],
        "call_splits": syscalls.splits(report),
        "call_grids": [grid for grid in grids if grid.name in syscalls.TABLES],
        "memory": memory.held(report),
        "samples": samples.sampled(report),
        "processes": view.processes(report),
    }


def _sections(report: Report, parts: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """(id, name, count or 0) of the sections that this page has, in reading order."""
    named: tuple[tuple[str, str, Any], ...] = (
        ("verdict", "Verdict", True),
        ("findings", "Findings", True),
        ("stands", "Where it stood", parts["stands"]),
        ("steps", "Steps", parts["steps"]),
        ("ranks", "Ranks", parts["ranks"]),
        ("timing", "Runs", True),
        ("where", "Where", True),
        ("gpu", "GPU", parts["queues"]),
        ("flame", "Flame", True),
        ("tables", "Tables", True),
        ("kernels", "Kernels", parts["kernels"]),
        ("syscalls", "Syscalls", parts["call_grids"]),
        ("memory", "Memory", parts["memory"]),
        ("samples", "Samples", parts["samples"]),
        ("machine", "Machine", True),
        ("passes", "Trust", True),
        ("processes", "Processes", parts["processes"]),
        ("captures", "Commands", True),
        ("files", "Files", True),
    )
    counts = {"findings": len(report.findings)}
    return [(key, name, counts.get(key, 0)) for key, name, there in named if there]


@dataclass(frozen=True)
class Steps:
    """The section of the steps. `measured`: the processes with steady steps; `phases`: each with a row of theirs."""

    found: Stepping
    line: str
    charts: tuple[tuple[Course, Plot], ...]
    measured: tuple[Course, ...]
    phases: tuple[tuple[str, tuple[Phase, ...]], ...]

    @property
    def drawn(self) -> set[str]:
        return {kind for _, chart in self.charts for kind in chart.kinds}

    @property
    def legend(self) -> list[Phase]:
        """The phases that are drawn anywhere."""
        return [phase for phase in self.found.shown[0].phases if phase.key in self.drawn]

    @property
    def zones(self) -> list[tuple[str, str]]:
        """The grounds that are told apart anywhere."""
        return list(dict.fromkeys((zone.kind, zone.text) for _, chart in self.charts for zone in chart.zones))

    @property
    def stalled(self) -> bool:
        return any("stall" in mark.kind for _, chart in self.charts for mark in chart.marks)

    @property
    def cut(self) -> bool:
        return any("cut" in mark.kind for _, chart in self.charts for mark in chart.marks)


def _steps(report: Report) -> Steps | None:
    found = stepping.stepping(report)
    if found is None:
        return None
    high_ns = stepchart.top_ns(found.shown)
    measured = tuple(course for course in found.shown if course.mean_ns is not None)
    rows = zip(*(course.phases for course in measured), strict=True)
    return Steps(
        found,
        stepping.line(report, found),
        charts=tuple((course, stepchart.chart(course, high_ns)) for course in found.shown),
        measured=measured,
        phases=tuple((row[0].key, row) for row in rows),
    )


def _draws(parts: Mapping[str, Any]) -> bool:
    """Whether any chart needs the library."""
    return bool(parts["steps"] or parts["memory"] or parts["samples"])


def looks(draws: bool) -> str:
    """The page's style sheet; with that of the library before it, where charts are drawn."""
    return "\n".join(_asset(name) for name in ((CHARTS[2],) if draws else ()) + ("page.css",))


def behaviour(draws: bool, scripts: Sequence[str] = SCRIPTS) -> str:
    """The page's script: its files behind one another, in a function of their own; the library with its licence."""
    library = [f"/*\n{_asset(CHARTS[0])}*/", _asset(CHARTS[1])] if draws else []
    return "\n".join(('"use strict";\n(() => {', *library, *map(_asset, scripts), "})();"))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def policy(style: str, script: str) -> str:
    """The page's Content-Security-Policy: this style, this script, images that the page holds, and nothing else."""
    allowed = {"style-src": _hash(style), "script-src": _hash(script), "img-src": "data:"}
    closed = "default-src 'none'; base-uri 'none'; form-action 'none'"
    return "; ".join([closed, *(f"{key} {value}" for key, value in allowed.items())])


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _files(report: Report) -> list[str]:
    """The report's own files that are there, relative to it."""
    pictures = sorted(f"flamegraphs/{p.name}" for p in (report.folder / "flamegraphs").glob("*"))
    return [n for n in (*OWN_FILES, *TIMELINES) if n == "summary.json" or (report.folder / n).exists()] + pictures


def _anchors(report: Report) -> Mapping[str, str]:
    """Where captures and what findings call tables stand in the page; names of captures may hold anything."""
    captures = {capture.id: f"capture-{i}" for i, capture in enumerate(report.captures, 1)}
    return (
        {"metrics": "timing", "passes": "passes", "environment": "environment"}
        | captures
        | {name: f"table-{name}" for name, info in report.tables.items() if info.rows}
    )


def _versions(report: Report) -> list[tuple[str, str | None, str | None]]:
    """(what, version, path) of profrun and of each tool that took part."""
    tools = {(c.tool.name, c.tool.version, c.tool.path) for c in report.captures if c.tool and c.tool.path}
    return [("profrun", report.run.profrun_version, None), *sorted(tools, key=str)]


def ticked(text: str) -> Markup:
    """Prose, escaped, in which what stands between two backticks is code."""
    from markupsafe import Markup, escape

    pieces = [escape(view.visible(piece)) for piece in text.split("`")]
    if len(pieces) % 2 == 0:  # one tick is left over, and no mark
        pieces[-2:] = [pieces[-2] + "`" + pieces[-1]]
    return Markup("").join(Markup("<code>%s</code>") % p if i % 2 else p for i, p in enumerate(pieces))


def jinja() -> Environment:
    """Jinja with everything escaped; what is unknown says so, wherever it stands."""
    import jinja2
    from markupsafe import Markup

    unknown = Markup('<span class="unknown">unknown</span>')

    def finalize(value: Any) -> Any:
        if value is None:
            return unknown
        return view.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ASSETS),
        autoescape=True,
        finalize=finalize,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "shell": shlex.join,
        "safe_json": Markup,
        "link": lambda path: "./" + quote(path, errors="surrogateescape"),
        "short": view.short,
        "ticked": ticked,
    }
    environment.filters |= {"duration": view.duration, "size": view.size, "words": view.words, "plain": view.plain}
    environment.filters |= {"rate": gpu.rate, "percent": view.percent}
    environment.globals |= {"view": view, "SHOWN_TABLES": SHOWN_TABLES}
    return environment
