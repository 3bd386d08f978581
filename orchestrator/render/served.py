"""The frame in which `profrun open` shows a report: its page as it is, below a bar that hands recordings to two UIs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

from orchestrator.model import USABLE
from orchestrator.render import html, view

if TYPE_CHECKING:
    from orchestrator.report import Report

FOR_PERFETTO = ("chrometrace", "kineto")
"""Formats of raw files that Perfetto reads, besides profrun's own timelines."""


@dataclass(frozen=True)
class Recording:
    """A file that a UI can show. `path` is relative to the report; `size` its bytes as text."""

    path: str
    name: str
    size: str


def page(report: Report, perfetto: str, speedscope: str, for_guest: Callable[[str], str]) -> tuple[str, str]:
    """(the frame's page, its Content-Security-Policy). `for_guest` gives the path by which speedscope gets a file."""
    import jinja2
    from markupsafe import Markup

    style, script = ((html.ASSETS / f"served.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    loader = jinja2.FileSystemLoader(html.ASSETS)
    shown = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_visible, trim_blocks=True
    )
    text = shown.get_template("served.html.j2").render(
        report=report,
        perfetto=perfetto,
        traces=[(one.path, one) for one in traces(report)],
        speedscope=speedscope,
        profiles=[(f"{for_guest(one.path)}&{urlencode({'title': one.name})}", one) for one in profiles(report)],
        names=[urlsplit(address).netloc for address in (perfetto, speedscope)],
        style=Markup(style),
        script=Markup(script),
    )
    return text, policy(style, script)


def policy(style: str, script: str) -> str:
    """This style, this script, and files of this server alone; nobody may put it into a frame of his own."""
    own = (_hash(text) for text in (style, script))
    rules = ("default-src 'none'", "style-src {}", "script-src {}", "connect-src 'self'", "frame-src 'self'")
    more = ("img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
    return "; ".join((*rules, *more)).format(*own)


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _visible(value: object) -> object:
    return view.visible(value) if type(value) is str else value


def traces(report: Report) -> Iterator[Recording]:
    """The timelines of the whole run first, then what single tools have recorded for one."""
    for name in html.TIMELINES:
        yield from _there(report, name, "timeline")
    for capture in report.captures:
        for artifact in capture.artifacts if capture.status in USABLE else ():
            if artifact.format in FOR_PERFETTO:
                yield from _there(report, artifact.path, capture.id)


def profiles(report: Report) -> Iterator[Recording]:
    """The flame graphs."""
    for path in sorted((report.folder / "flamegraphs").glob("*.speedscope.json")):
        yield from _there(report, f"flamegraphs/{path.name}", path.name.removesuffix(".speedscope.json"))


def _there(report: Report, path: str, name: str) -> Iterator[Recording]:
    place = report.folder / path
    if place.is_file():
        yield Recording(path, name, view.size(place.stat().st_size) or view.UNKNOWN)
