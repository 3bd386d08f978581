"""`profrun open` in a real Chromium: the page in its frame, a trace in a real Perfetto UI, speedscope's address."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import perfetto_ui
import pytest
import sample_report
from browser import Browser
from waiting import until

from orchestrator import serve
from orchestrator.render import html
from orchestrator.report import Report

pytestmark = pytest.mark.tool("chromium")

TRACE = {"traceEvents": [{"ph": "X", "name": name, "ts": 5, "dur": 2, "pid": 1, "tid": 1} for name in ("one", "two")]}
FRAME = "document.getElementById('page')"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("a report #1")
    report = sample_report.build(folder)
    (folder / "timeline.perfetto-trace").write_text(json.dumps(TRACE))
    (folder / "flamegraphs").mkdir()
    (folder / "flamegraphs" / "p09-py-spy.speedscope.json").write_text('{"a": 1}')
    (folder / "index.html").write_text(html.render(report), encoding="utf-8")
    return report


@pytest.fixture(scope="module")
def ui(report: Report) -> Iterator[str]:
    with perfetto_ui.served(report.folder / "timeline.perfetto-trace") as address:
        yield address


@pytest.fixture(scope="module")
def site(report: Report, ui: str) -> Iterator[str]:
    """The address of the report; both UIs are that of the copy of Perfetto."""
    site = serve.Site(report, f"{ui}/index.html", f"{ui}/scope")
    with serve.Server(site, "127.0.0.1", 0, 600.0) as server:
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/{site.token}/"
        server.end()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        started.call("Network.setBlockedURLs", urls=["https://*"])
        yield started


@pytest.fixture
def page(browser: Browser, site: str) -> Browser:
    """The bar and the page below it, freshly opened in a wide window."""
    browser.resize(1280, 900)
    browser.open(site)
    return browser


def click(page: Browser, selector: str) -> None:
    """As a user does: only then may the page open a tab."""
    box = f"document.querySelector({selector!r}).getBoundingClientRect()"
    left, top, width, height = page.js(f"(({{x, y, width, height}}) => [x, y, width, height])({box})")
    page.click(left + width / 2, top + height / 2)


def state(page: Browser) -> str:
    return str(page.js("document.getElementById('state').textContent"))


def test_the_page_works_in_its_frame_and_can_not_leave_it(page: Browser, site: str, report: Report) -> None:
    until(lambda: page.js("document.activeElement.id") == "page")
    assert page.js("document.title") == f"{report.run.name} · profrun"
    assert page.js(f"{FRAME}.contentDocument") is None
    with page.inside(f"{site}report/index.html"):
        until(lambda: page.js("document.documentElement.dataset.ready"))
        assert page.js("document.documentElement.dataset.error") is None
        assert page.js("self.origin") == "null"
        assert page.js("fetch('summary.json').then(() => 'read', () => 'refused')") == "refused"
    assert page.errors
    assert all("Content Security Policy" in error for error in page.errors)


def test_the_bar_asks_for_nothing_and_complains_of_nothing(page: Browser, site: str) -> None:
    assert page.errors == []
    assert {asked for asked in page.requests if not asked.startswith("data:")} <= {site, f"{site}report/index.html"}


def test_perfetto_gets_the_timeline(page: Browser, ui: str) -> None:
    click(page, "#perfetto")
    until(lambda: state(page) not in ("", "Reading timeline.perfetto-trace ..."))
    assert state(page) == "Perfetto has timeline.perfetto-trace."
    assert page.errors == []
    with page.inside(ui):
        until(lambda: page.js("Boolean(globalThis.app?.trace?.engine)"))
        assert perfetto_ui.Perfetto(page).slices() == {"one": 1, "two": 1}
        assert "trust" not in str(page.js("document.querySelector('.pf-modal-dialog')?.innerText"))


def test_what_perfetto_does_not_get_is_told(page: Browser) -> None:
    page.js("document.getElementById('trace').options[0].value = 'gone.json'")
    click(page, "#perfetto")
    until(lambda: "Perfetto has not got" in state(page))
    assert "gone.json: the server answers 404; where the report was built anew" in state(page)


def test_speedscope_gets_an_address_that_it_may_read(page: Browser, ui: str) -> None:
    link = urlsplit(str(page.js("document.getElementById('speedscope').href")))
    asked = parse_qs(link.fragment)
    assert (f"{link.scheme}://{link.netloc}{link.path}", asked["title"]) == (f"{ui}/scope", ["p09-py-spy"])
    (address,) = asked["profileURL"]
    page.page.goto(f"{ui}/index.html")  # a page of speedscope's origin
    assert page.js(f"fetch({address!r}).then(answer => answer.json())") == {"a": 1}
    page.page.goto(f"{ui.replace('127.0.0.1', 'localhost')}/index.html")  # of another
    assert page.js(f"fetch({address!r}).then(() => 'read', () => 'refused')") == "refused"


def test_the_frame_passes_the_fragment_on(page: Browser, site: str) -> None:
    page.open(f"{site}#passes")
    until(lambda: page.js(f"{FRAME}.src").endswith("report/index.html#passes"))
    page.js("location.hash = 'timing'")
    until(lambda: page.js(f"{FRAME}.src").endswith("report/index.html#timing"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bar_fits_a_narrow_window(page: Browser, scheme: str, tmp_path: Path) -> None:
    page.prefer(scheme)
    page.resize(360, 640)
    assert page.js("document.documentElement.scrollWidth") == 360
    assert page.js(f"{FRAME}.getBoundingClientRect().height") > 320
    page.screenshot(tmp_path / "bar.png")
