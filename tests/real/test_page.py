"""The page in a real Chromium, opened from disk: what it draws, what it lets one do, and what it does not do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample_report
from axe_playwright_python.sync_playwright import Axe
from browser import Browser
from waiting import until

from orchestrator.render import html

pytestmark = pytest.mark.tool("chromium")

PEN = "document.querySelector('[data-canvas]').getContext('2d')"
ROW = 19
COUNTS_FRAMES = """{
  const [request, cancel] = [requestAnimationFrame.bind(window), cancelAnimationFrame.bind(window)];
  window.framesWanted = new Set();
  window.requestAnimationFrame = then => {
    const frame = request(time => { framesWanted.delete(frame); then(time); });
    framesWanted.add(frame);
    return frame;
  };
  window.cancelAnimationFrame = frame => { framesWanted.delete(frame); cancel(frame); };
}"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("a report")
    path = folder / "index.html"
    path.write_text(html.render(sample_report.diagnosed(folder)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        started.page.add_init_script(COUNTS_FRAMES)
        yield started


@pytest.fixture
def still(browser: Browser, file: Path) -> Browser:
    """The page as others have left it, in a wide window: for those who only look at it, or need not care."""
    if browser.page.url.partition("#")[0] != file.as_uri():
        browser.open(file)
    browser.resize(1280, 900)
    browser.prefer("light")
    return browser


@pytest.fixture
def page(still: Browser, file: Path) -> Browser:
    """The page, freshly opened, in a wide window."""
    still.open(file)
    return still


@pytest.fixture
def graph(still: Browser) -> Browser:
    """The page with its flame graph as it is at first."""
    for part, first in (("source", "flame-1"), ("order", "total"), ("view", "threads")):
        still.page.locator(f"[data-{part}]").select_option(first)
    still.page.locator("[data-search]").fill("")
    settle(still)
    return still


def flame(page: Browser, part: str) -> str:
    return str(page.js(f"document.querySelector('[data-{part}]').textContent"))


def type_into(page: Browser, selector: str, text: str) -> None:
    page.page.locator(selector).fill(text)


def column(page: Browser, table: str, index: int) -> list[str]:
    """The cells of a table's column as they are shown."""
    rows = f"[...document.querySelectorAll('#table-{table} tbody tr')]"
    return list(page.js(f"{rows}.map(r => r.children[{index}].textContent)"))


def sort_by(page: Browser, table: str, index: int) -> str | None:
    """Clicks on a column's head. What the head then says of its order."""
    page.page.locator(f"#table-{table} thead button").nth(index).click()
    return page.page.locator(f"#table-{table} thead th").nth(index).get_attribute("aria-sort")


def frame_at(page: Browser, row: int, part: float) -> tuple[float, float]:
    """Where in the window the flame graph's row is, at that part of its width."""
    page.js("document.querySelector('[data-graph]').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = page.page.locator("[data-graph]").bounding_box()
    assert box is not None
    return box["x"] + part * box["width"], box["y"] + ROW * row + 10


def settle(page: Browser) -> None:
    """Until it has heard of what was done to it, and every animation has come to its end."""
    page.js("new Promise(requestAnimationFrame)")
    page.js("new Promise(requestAnimationFrame)")
    until(lambda: page.js("framesWanted.size === 0"))


# ---------------------------------------------------------------- nothing gets in or out


def test_opens_without_a_request_or_an_error(page: Browser, file: Path) -> None:
    assert page.errors == []
    assert page.requests == [file.as_uri()]
    assert page.js("document.documentElement.dataset.error") is None


def test_no_script_in_a_name_runs(still: Browser) -> None:
    assert still.js("document.documentElement.dataset.owned") is None
    data = still.js("document.querySelectorAll('script[type]').length")
    assert still.js("document.scripts.length") == 1 + data
    assert sample_report.EVIL in column(still, "syscall_paths", 0)
    assert sample_report.EVIL in str(still.js("document.querySelector('.finding h3').textContent"))


def test_the_policy_stops_what_would_slip_through(page: Browser, file: Path) -> None:
    page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))")
    page.js(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.invalid/x.png'}))"
    )
    assert page.js("window.owned") is None
    assert page.js("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    until(lambda: page.requests == [file.as_uri()] or page.js("1") is None)
    assert sum("Content Security Policy" in error for error in page.errors) >= 3


# ---------------------------------------------------------------- the flame graph


def test_the_flame_graph_is_drawn(still: Browser) -> None:
    assert int(still.js("document.querySelector('[data-graph]').dataset.drawn")) > 100
    pixels = f"{PEN}.getImageData(0, 0, 1200, 200).data"
    assert still.js(f"new Set(new Uint32Array({pixels}.buffer)).size") > 20
    assert flame(still, "whole") == "100 % = 18.3 s (3 threads added up)"


def test_a_click_zooms_and_there_are_ways_back(graph: Browser) -> None:
    graph.click(*frame_at(graph, row=5, part=0.01))
    settle(graph)
    assert flame(graph, "at").startswith(
        "Module._call_impl (/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
    )
    assert "total 1.16 s, 6.3 % of 18.3 s · self 0 s, 0.0 %" in flame(graph, "at")
    graph.click(*frame_at(graph, row=6, part=0.9))  # what was a sliver at the left now fills the width
    settle(graph)
    assert flame(graph, "at").startswith("CNN.forward")
    graph.page.locator("[data-back]").click()
    settle(graph)
    assert flame(graph, "at").startswith("Module._call_impl")
    graph.page.locator("[data-graph]").press("Escape")
    settle(graph)
    assert flame(graph, "at").startswith("all")
    assert graph.js("document.querySelector('[data-reset]').disabled") is True
    graph.key("Backspace")
    settle(graph)
    assert flame(graph, "at").startswith("Module._call_impl")


def test_the_flame_graph_by_keyboard_and_as_a_screen_reader_has_it(graph: Browser) -> None:
    tree = graph.page.locator("[data-graph]")
    tree.focus()

    def item() -> tuple[str, ...]:
        found = graph.page.locator(f"#{tree.get_attribute('aria-activedescendant')}")
        names = ("aria-level", "aria-posinset", "aria-setsize", "aria-expanded")
        return (str(found.text_content()), *(str(found.get_attribute(name)) for name in names))

    assert item() == ("all: total 18.3 s, 100.0 % of 18.3 s, self 0 s, 0.0 %", "1", "1", "1", "true")
    for _ in range(4):
        graph.key("ArrowDown")
    assert flame(graph, "at").startswith("<module> (/home/ada/project/scripts/demo/train_cnn.py:120)")
    graph.key("ArrowUp")
    assert item() == ("MainThread: total 15.1 s, 82.5 % of 18.3 s, self 0 s, 0.0 %", "3", "1", "3", "false")
    graph.key("ArrowRight")
    assert flame(graph, "at").startswith("Worker 1, <b> total 1.60 s")
    graph.key("ArrowLeft")
    graph.key("Enter")
    settle(graph)
    assert item()[-1] == "true"
    assert graph.js("document.querySelector('[data-reset]').disabled") is False
    graph.key("Home")
    assert item()[0].startswith("all: ")


def test_search_counts_time_once_and_walks(graph: Browser) -> None:
    type_into(graph, "[data-search]", "site-packages/torch")
    assert flame(graph, "found") == "found in 4 places: 2.73 s, 14.9 %. Enter: next"
    graph.key("Enter")
    settle(graph)
    assert flame(graph, "at").startswith("Module._call_impl")
    type_into(graph, "[data-search]", "nowhere to be seen")
    assert flame(graph, "found") == "found nowhere"


def test_threads_merged_alone_and_another_kind(graph: Browser) -> None:
    graph.page.locator("[data-view]").select_option("merged")
    graph.click(*frame_at(graph, row=1, part=0.95))
    settle(graph)
    assert flame(graph, "at").startswith("Thread._bootstrap") and "total 3.20 s" in flame(graph, "at")
    graph.page.locator("[data-view]").select_option(index=2)
    assert flame(graph, "whole") == "100 % = 15.1 s"
    graph.page.locator("[data-source]").select_option("flame-2")
    until(lambda: flame(graph, "whole") == "100 % = 1.62 s")


def test_by_self_the_spenders_come_first_and_then_their_callers(graph: Browser) -> None:
    graph.page.locator("[data-order]").select_option("self")
    graph.click(*frame_at(graph, row=1, part=0.01))
    settle(graph)
    assert flame(graph, "at") == "Condition.wait (/opt/venv/lib/python3.11/threading.py) self 3.20 s, 17.5 % of 18.3 s"
    graph.page.locator("[data-graph]").press("ArrowDown")
    assert flame(graph, "at").endswith(
        "3.20 s, 17.5 % of 18.3 s in Condition.wait (/opt/venv/lib/python3.11/threading.py), called from here"
    )


def test_a_flame_has_its_first_row_at_the_bottom(graph: Browser) -> None:
    graph.page.locator("[data-direction]").click()
    assert flame(graph, "direction") == "Draw as icicle"
    rows = graph.js("Math.floor(document.querySelector('[data-graph]').clientHeight / 19)")
    graph.click(*frame_at(graph, row=rows - 3, part=0.99))
    assert flame(graph, "at").startswith("Worker 2, <b>")
    graph.key("ArrowDown")
    assert flame(graph, "at").startswith("python train_cnn.py [4242]")
    graph.page.locator("[data-direction]").click()


def test_the_functions_of_what_is_shown_are_a_table(graph: Browser) -> None:
    table = "top-functions"
    first = [column(graph, table, index)[0] for index in range(7)]
    assert first == [
        "Condition.wait",
        "/opt/venv/lib/python3.11/threading.py",
        "Python",
        "3.200",
        "17.5 %",
        "3.20",
        "17.5 %",
    ]
    assert sort_by(graph, table, 5) == "descending"
    assert column(graph, table, 0)[:2] == ["<module>", "train"]
    graph.page.locator("[data-view]").select_option(index=3)
    assert column(graph, table, 0) == ["Condition.wait", "Thread._bootstrap"]
    graph.page.locator("[data-view]").select_option(index=0)
    graph.page.locator(f"#table-{table} .name", has_text="_engine_run_backward").click()
    settle(graph)
    assert flame(graph, "found").startswith("found in 1 place: 960 ms")
    assert flame(graph, "at").startswith("_engine_run_backward")
    assert graph.js("document.activeElement === document.querySelector('[data-graph]')")


def test_motion_is_left_out_where_it_is_not_wanted(graph: Browser) -> None:
    graph.page.emulate_media(reduced_motion="reduce")
    graph.click(*frame_at(graph, row=5, part=0.01))
    assert graph.js("framesWanted.size") == 0
    graph.page.emulate_media(reduced_motion="no-preference")


# ---------------------------------------------------------------- tables


def test_tables_sort_with_the_unknown_last(still: Browser) -> None:
    assert column(still, "syscalls", 0)[:2] == ["futex", "fsync"]
    assert still.page.locator("#table-syscalls thead th").nth(4).get_attribute("aria-sort") == "descending"
    assert sort_by(still, "syscalls", 4) == "ascending"
    assert column(still, "syscalls", 0)[0] == "rt_sigaction" and column(still, "syscalls", 0)[-1] == "restart_syscall"
    sort_by(still, "syscalls", 0)
    assert column(still, "syscalls", 0) == sorted(column(still, "syscalls", 0))
    assert still.page.locator("#table-syscalls thead th").nth(4).get_attribute("aria-sort") is None


def test_tables_filter_and_show_more(page: Browser) -> None:
    count = page.page.locator("#table-functions [data-count]")
    more = page.page.locator("#table-functions [data-more]")
    assert count.text_content() == "Showing 12 of 608 rows."
    more.click()
    assert len(column(page, "functions", 0)) == 250
    more.click()
    type_into(page, "#table-functions [data-filter]", "CONVOLUTION native")
    assert column(page, "functions", 0) == ["at::native::convolution"]
    assert count.text_content() == "Showing 1 of 1 matching rows in this page."


def test_a_long_name_can_be_read_whole(page: Browser) -> None:
    cell = page.page.locator("#table-functions td", has_text="void gemm").first
    assert len(cell.text_content() or "") < 250
    cell.get_by_role("button").click()
    assert cell.locator("span").text_content() == sample_report.LONG
    assert cell.get_by_role("button").get_attribute("aria-expanded") == "true"


def test_operators_sort_by_either_time(still: Browser) -> None:
    assert column(still, "operators-1", 0)[:3] == ["aten::convolution_backward", "aten::addmm", "ProfilerStep*"]
    sort_by(still, "operators-1", 5)
    assert column(still, "operators-1", 0)[:3] == ["aten::convolution_backward", "ProfilerStep*", "aten::addmm"]


# ---------------------------------------------------------------- looks


def test_light_dark_and_the_choice_between(still: Browser) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    theme = still.page.locator("#theme")
    light = still.js(back)
    still.prefer("dark")
    dark = still.js(back)
    assert light != dark
    theme.click()
    assert (still.js(back), theme.text_content()) == (light, "Light")
    theme.click()
    still.prefer("light")
    assert still.js(back) == dark
    theme.click()


def test_a_link_into_a_closed_capture_opens_it(page: Browser) -> None:
    target = "document.querySelector('#captures details:nth-of-type(3)')"
    assert page.js(f"{target}.open") is False
    page.js(f"location.hash = {target}.id")
    until(lambda: page.js(f"{target}.open"))


@pytest.mark.parametrize("width", [360, 400])
def test_a_narrow_window_scrolls_only_inside_its_parts(still: Browser, width: int) -> None:
    still.resize(width, 800)
    settle(still)
    still.js("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert still.js("document.documentElement.scrollWidth") == width
    assert int(still.js("document.querySelector('[data-graph]').dataset.drawn")) > 50


def test_every_section_can_be_reached_from_the_bar(still: Browser) -> None:
    """Where the links do not fit they fade out at the side where there are more."""
    nav = "document.querySelector('.bar nav')"
    more = "['more-before', 'more-after'].map(name => nav.classList.contains(name))"
    hidden = """links => links.filter(a => {
      a.scrollIntoView({behavior: 'instant', inline: 'center', block: 'nearest'});
      const r = a.getBoundingClientRect();
      return document.elementFromPoint(r.left + r.width / 2, r.top + 12) !== a;
    }).map(a => a.textContent)"""
    for width in (360, 900, 1400):
        still.resize(width, 800)
        still.js(f"{nav}.scrollLeft = 0")
        settle(still)
        fits = width > 1300
        assert still.js(f"(nav => nav.scrollWidth <= nav.clientWidth + 1)({nav})") is fits
        assert still.js(f"(nav => {more})({nav})") == [False, not fits]
        assert still.js(f"({hidden})([...document.querySelectorAll('.bar nav a')])") == []
        settle(still)
        assert still.js(f"(nav => {more})({nav})") == [not fits, False]


def test_the_bar_follows_the_section_that_is_read(still: Browser) -> None:
    still.resize(600, 800)
    still.js("document.getElementById('files').scrollIntoView({behavior: 'instant'})")
    until(lambda: still.js("document.querySelector('.bar nav').scrollLeft") > 100)


def test_the_environment_fits_any_width_with_all_of_it_open(page: Browser) -> None:
    """The steps that are not as the plan wants them are open by themselves; the rest, and each setting, on a click."""
    steps = "[...document.querySelectorAll('#machine details.step')]"
    assert page.js(f"{steps}.map(d => d.open)") == [False, False, True, True, True, True, True]
    page.js("document.querySelectorAll('#machine details').forEach(d => { d.open = true })")
    heights = page.js(f"{steps}.map(d => d.getBoundingClientRect().height)")
    assert min(heights) > 60
    for width in (1280, 700, 360):
        page.resize(width, 800)
        assert page.js("document.documentElement.scrollWidth") == width
        inside = (
            f"{steps}.every(d => [...d.querySelectorAll('dl, p, summary')].every(e => e.scrollWidth <= d.clientWidth))"
        )
        assert page.js(inside)


def test_on_paper_all_is_open_and_nothing_is_there_to_press(page: Browser) -> None:
    page.page.emulate_media(media="print")
    page.js("dispatchEvent(new Event('beforeprint'))")
    try:
        page.resize(760, 1000)  # A4 less its margins
        assert page.js("document.documentElement.dataset.theme") == "light"
        assert page.js("[...document.querySelectorAll('details')].every(d => d.open)")
        for gone in (".bar", ".tools", ".filter", "[data-more]"):
            assert not page.page.locator(gone).first.is_visible(), gone
        for there in ("[data-canvas]", "#table-top-functions td >> nth=0", "#table-syscalls td >> nth=0"):
            assert page.page.locator(there).is_visible(), there
        assert len(page.page.pdf(format="A4")) > 50_000
    finally:
        page.js("dispatchEvent(new Event('afterprint'))")
        page.page.emulate_media(media="screen")


# ---------------------------------------------------------------- for everybody


FEWER = """{
  for (const details of document.querySelectorAll('details')) details.open = true;
  for (const body of document.querySelectorAll('tbody')) [...body.rows].slice(1).forEach(row => row.remove());
  [...document.querySelectorAll('section.grid')].slice(3).forEach(table => table.remove());
}"""
"""One of each kind: axe looks at every letter's ground."""


def faults(page: Browser, **options: Any) -> list[tuple[str, str, list[str]]]:
    """What axe calls serious or critical: the rule, what it asks for, and some of the elements."""
    found = Axe().run(page.page, options={"resultTypes": ["violations"], **options}).response["violations"]
    return [
        (fault["id"], fault["help"], [node["html"][:300] for node in fault["nodes"][:3]])
        for fault in found
        if fault["impact"] in ("serious", "critical")
    ]


def test_axe_finds_no_serious_fault(page: Browser) -> None:
    page.js("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert faults(page, rules={"color-contrast": {"enabled": False}}) == []
    page.js(FEWER)
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        settle(page)
        assert faults(page, runOnly=["color-contrast"]) == [], scheme


def test_everything_that_can_be_used_has_a_name(still: Browser) -> None:
    nodes = still.call("Accessibility.getFullAXTree")["nodes"]
    usable = [n for n in nodes if n.get("role", {}).get("value") in ("button", "link", "searchbox", "combobox", "tree")]
    assert len(usable) > 60
    assert [n["role"]["value"] for n in usable if not n.get("name", {}).get("value")] == []


def test_the_keyboard_goes_through_the_page_in_its_order(page: Browser) -> None:
    """From the way past the bar to the last link, each thing below or right of the one before, and none a trap."""
    places: list[dict[str, Any]] = []
    page.js("document.activeElement.blur()")
    page.key("Tab")
    assert page.js("document.activeElement.className") == "skip"
    page.key("Enter")
    assert page.js("document.activeElement.id") == "verdict"
    where = """(() => {
      const here = document.activeElement, section = here.closest('main > section')?.id ?? 'bar';
      const order = [...document.querySelectorAll('*')].indexOf(here);
      return {order, section, shown: here.matches(':focus-visible'), outline: getComputedStyle(here).outlineStyle};
    })()"""
    for _ in range(60):
        page.key("Tab")
        places.append(page.js(where))
    orders = [place["order"] for place in places]
    assert orders == sorted(set(orders))
    assert all(place["shown"] and place["outline"] != "none" for place in places)
    assert len({place["section"] for place in places}) >= 3
    assert page.js("document.querySelectorAll('[tabindex]:not([tabindex=\"0\"]):not(#verdict)').length") == 0


def test_headings_go_down_one_level_at_a_time(still: Browser) -> None:
    levels = still.js("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_a_report_without_anything_opens_too(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text(html.render(sample_report.bare(tmp_path)), encoding="utf-8")
    browser.open(path)
    assert browser.errors == []
    assert browser.js("document.documentElement.dataset.error") is None
