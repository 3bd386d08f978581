"""The page of a comparison in a real Chromium, opened from disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from browser import Browser
from two_runs import Job, make
from waiting import until

from orchestrator.compare import compare
from orchestrator.render import compare_page

pytestmark = pytest.mark.tool("chromium")

EVIL = "</script><img src=x onerror=\"document.documentElement.dataset.owned='1'\">"
JOB = Job(
    steps=200, kernels={"gemm": (8.0, 300.0, "64,1,1"), EVIL: (1.0, 9.0, "1,1,1")}, ops={"aten::mm": (4.0, 500.0)}
)
GRAPH = "document.querySelector('[data-graph]')"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two runs")
    a = make(folder / "a", JOB.with_ms(**{EVIL: 0.5}), 1)
    b = make(folder / "b", JOB.with_ms(**{EVIL: 0.5, "tokenize": 6.0, "augment": 0.5}), 2)
    path = folder / "compare.html"
    path.write_text(compare_page.render(compare(a, b), a, b), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, file: Path) -> Browser:
    browser.prefer("light")
    browser.open(file)
    return browser


def text(page: Browser, selector: str) -> str:
    return str(page.js(f"document.querySelector({selector!r}).textContent"))


def test_it_works_offline_and_asks_for_nothing(page: Browser, file: Path) -> None:
    assert page.requests == [file.as_uri()]
    assert page.errors == []
    assert page.js("document.documentElement.dataset.error ?? ''") == ""
    assert page.js("document.documentElement.dataset.owned ?? ''") == ""
    assert page.js("document.querySelectorAll('.chart canvas').length") == 2
    assert int(page.js(f"{GRAPH}.dataset.drawn")) > 5


PIXEL = """(() => {
  const canvas = document.querySelector('[data-canvas]');
  return [...canvas.getContext('2d').getImageData(canvas.width - 60, 3 * 19 + 9, 1, 1).data];
})()"""
"""Near the right edge of the fourth row: below all, the module and main stands the function that was zoomed in."""


@pytest.mark.parametrize(("name", "channel"), [("tokenize", 0), ("augment", 2)])
def test_what_grew_is_red_and_what_shrank_blue(page: Browser, name: str, channel: int) -> None:
    search = page.page.locator("[data-search]")
    search.fill(name)
    assert text(page, "[data-found]").startswith("found in 1 place")
    search.press("Enter")
    until(lambda: text(page, "[data-at]").startswith(name))
    search.fill("")  # what is found has a colour of its own
    page.page.locator("[data-graph]").press("Home")
    until(lambda: (pixel := page.js(PIXEL))[channel] - pixel[2 - channel] > 60)


def test_the_other_run_can_be_drawn(page: Browser) -> None:
    of_b = text(page, "[data-whole]")
    page.page.locator("[data-source]").select_option("flame-1:a")
    until(lambda: text(page, "[data-whole]") != of_b)
    page.page.locator("#table-top-functions [data-filter]").fill("tokenize")
    (row,) = page.js("[...document.querySelectorAll('#table-top-functions tbody tr')].map(row => row.innerText)")
    assert row.count("+") == 1, "its total grew, whichever run is drawn; it calls what takes the time"
    assert page.errors == []


def test_the_table_of_changes_is_sorted_and_filtered(page: Browser) -> None:
    table = page.page.locator("#table-changes")
    table.locator("[data-filter]").fill("function tokenize")
    (row,) = table.locator("tbody tr").all_inner_texts()
    assert "slower" in row and "+" in row
    table.locator("[data-filter]").fill("")
    table.get_by_role("button", name="ratio").click()
    ratios = table.locator("tbody tr td:nth-child(8)").all_inner_texts()
    known = [float(one.rstrip("x")) for one in ratios if one.endswith("x")]
    assert known == sorted(known, reverse=True) and len(known) > 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(page: Browser, scheme: str) -> None:
    page.prefer(scheme)
    found = Axe().run(page.page).response["violations"]
    assert [(one["id"], one["nodes"][0]["target"]) for one in found if one["impact"] in ("serious", "critical")] == []
