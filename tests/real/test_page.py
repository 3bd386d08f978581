"""The page in a real Chromium, opened from disk: what it draws, what it lets one do, and what it does not do."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sample_report
from browser import Browser
from waiting import until

from orchestrator.render import html

pytestmark = pytest.mark.tool("chromium")

PEN = "document.querySelector('[data-canvas]').getContext('2d')"


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
    report = replace(sample_report.build(folder), findings=(sample_report.finding(),))
    path = folder / "index.html"
    path.write_text(html.render(report), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, file: Path) -> Browser:
    """The page, freshly opened, in a wide window."""
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.open(file)
    browser.js(COUNTS_FRAMES)
    return browser


def flame(page: Browser, part: str) -> str:
    return str(page.js(f"document.querySelector('[data-{part}]').textContent"))


def type_into(page: Browser, selector: str, text: str) -> None:
    page.js(f"document.querySelector({selector!r}).focus()")
    page.js(f"document.querySelector({selector!r}).value = ''")
    page.call("Input.insertText", text=text)


def column(page: Browser, table: str, index: int) -> list[str]:
    """The cells of a table's column as they are shown."""
    rows = f"[...document.querySelectorAll('#table-{table} tbody tr')]"
    return list(page.js(f"{rows}.map(r => r.children[{index}].textContent)"))


def frame_at(page: Browser, row: int, part: float) -> tuple[float, float]:
    """Where in the window the flame graph's row is, at that part of its width."""
    page.js("document.querySelector('[data-graph]').scrollIntoView({block: 'center', behavior: 'instant'})")
    left, top, width = page.js(
        "(() => { const r = document.querySelector('[data-graph]').getBoundingClientRect();"
        " return [r.left, r.top, r.width]; })()"
    )
    return left + part * width, top + 19 * row + 10


def settle(page: Browser) -> None:
    """Until it has heard of what was done to it, and every animation has come to its end."""
    page.js("new Promise(requestAnimationFrame)")
    page.js("new Promise(requestAnimationFrame)")
    until(lambda: page.js("framesWanted.size === 0"))


def test_opens_without_a_request_or_an_error(page: Browser, file: Path) -> None:
    assert page.errors == []
    assert page.requests == [file.as_uri()]
    assert page.js("document.documentElement.dataset.error") is None


def test_no_script_in_a_name_runs(page: Browser) -> None:
    assert page.js("document.documentElement.dataset.owned") is None
    assert page.js("document.scripts.length") == 1 + page.js(
        "document.querySelectorAll('[type=\"application/json\"]').length"
    )
    assert sample_report.EVIL in column(page, "syscall_paths", 0)
    assert sample_report.EVIL in str(page.js("document.querySelector('.finding h3').textContent"))


def test_the_policy_stops_what_would_slip_through(page: Browser, file: Path) -> None:
    page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.owned = 1'}))")
    page.js(
        "document.body.append(Object.assign(document.createElement('img'), {src: 'https://example.invalid/x.png'}))"
    )
    assert page.js("window.owned") is None
    assert page.js("fetch('https://example.invalid/').then(() => 'sent', () => 'refused')") == "refused"
    assert page.requests == [file.as_uri()]
    assert sum("Content Security Policy" in error for error in page.errors) >= 3


def test_the_flame_graph_is_drawn(page: Browser) -> None:
    assert int(page.js("document.querySelector('[data-graph]').dataset.drawn")) > 100
    pixels = f"{PEN}.getImageData(0, 0, 1200, 200).data"
    colours = f"new Set(new Uint32Array({pixels}.buffer)).size"
    assert page.js(colours) > 20
    assert flame(page, "whole") == "100 % = 18.3 s (3 threads added up)"


def test_a_click_zooms_and_escape_zooms_out(page: Browser) -> None:
    page.click(*frame_at(page, row=5, part=0.01))
    settle(page)
    assert flame(page, "at").startswith(
        "Module._call_impl (/opt/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
    )
    assert "total 1.16 s, 6.3 % of 18.3 s · self 0 s, 0.0 %" in flame(page, "at")
    page.click(*frame_at(page, row=7, part=0.9))  # what was a sliver at the left now fills the width
    settle(page)
    assert flame(page, "at").startswith("Module._call_impl")
    page.js("document.querySelector('[data-graph]').focus()")
    page.key("Escape")
    settle(page)
    assert page.js("document.querySelector('[data-reset]').disabled") is True


def test_the_flame_graph_by_keyboard(page: Browser) -> None:
    page.js("document.querySelector('[data-graph]').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.key(key)
    assert flame(page, "at").startswith("<module> (/home/ada/project/scripts/demo/train_cnn.py:120)")
    page.key("ArrowUp")
    assert flame(page, "at").startswith("MainThread total 15.1 s")
    page.key("ArrowRight")
    assert flame(page, "at").startswith("Worker 1, <b> total 1.60 s")
    page.key("ArrowLeft")
    page.key("Enter")
    settle(page)
    assert page.js("document.querySelector('[data-reset]').disabled") is False


def test_search_counts_time_once_and_walks(page: Browser) -> None:
    type_into(page, "[data-search]", "site-packages/torch")
    assert flame(page, "found") == "found in 4 places: 2.73 s, 14.9 %. Enter: next"
    page.key("Enter")
    settle(page)
    assert flame(page, "at").startswith("Module._call_impl")
    type_into(page, "[data-search]", "nowhere to be seen")
    assert flame(page, "found") == "found nowhere"


def test_threads_merged_alone_and_another_kind(page: Browser) -> None:
    def choose(part: str, value: str) -> None:
        page.js(f"(() => {{ const s = document.querySelector('[data-{part}]'); s.value = {value}; s.onchange(); }})()")

    choose("view", "'merged'")
    page.click(*frame_at(page, row=1, part=0.95))
    settle(page)
    assert flame(page, "at").startswith("Thread._bootstrap") and "total 3.20 s" in flame(page, "at")
    choose("view", "s.options[2].value")
    assert flame(page, "whole") == "100 % = 15.1 s"
    choose("source", "'flame-2'")
    assert flame(page, "whole") == "100 % = 1.62 s"


def test_tables_sort_with_the_unknown_last(page: Browser) -> None:
    assert column(page, "syscalls", 0)[:2] == ["futex", "fsync"]
    button = "document.querySelectorAll('#table-syscalls thead button')"
    sort = "document.querySelectorAll('#table-syscalls thead th')[{}].getAttribute('aria-sort')"
    assert page.js(sort.format(4)) == "descending"
    page.js(f"{button}[4].click()")
    assert page.js(sort.format(4)) == "ascending"
    assert column(page, "syscalls", 0)[0] == "rt_sigaction" and column(page, "syscalls", 0)[-1] == "restart_syscall"
    page.js(f"{button}[0].click()")
    assert column(page, "syscalls", 0) == sorted(column(page, "syscalls", 0))
    assert page.js(sort.format(4)) is None


def test_tables_filter_and_show_more(page: Browser) -> None:
    count = "document.querySelector('#table-functions [data-count]').textContent"
    more = "document.querySelector('#table-functions [data-more]')"
    assert page.js(count) == "Showing 12 of 608 rows."
    page.js(f"{more}.click()")
    assert len(column(page, "functions", 0)) == 250
    page.js(f"{more}.click()")
    type_into(page, "#table-functions [data-filter]", "CONVOLUTION native")
    assert column(page, "functions", 0) == ["at::native::convolution"]
    assert page.js(count) == "Showing 1 of 1 matching rows in this page."


def test_a_long_name_can_be_read_whole(page: Browser) -> None:
    cell = "[...document.querySelectorAll('#table-functions td')].find(c => c.textContent.startsWith('void gemm'))"
    assert len(page.js(f"{cell}.textContent")) < 250
    page.js(f"{cell}.querySelector('button').click()")
    assert page.js(f"{cell}.querySelector('span').textContent") == sample_report.LONG
    assert page.js(f"{cell}.querySelector('button').getAttribute('aria-expanded')") == "true"


def chart(page: Browser, name: str) -> list[float]:
    """Where a chart is in the window: left, top, width, height."""
    box = f"document.querySelector('[data-plot={name}] svg')"
    page.js(f"{box}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    return list(
        page.js(f"(({{left, top, width, height}}) => [left, top, width, height])({box}.getBoundingClientRect())")
    )


def tip(page: Browser, name: str) -> str:
    return str(page.js(f"document.querySelector('[data-plot={name}] .tip:not([hidden])')?.textContent ?? ''"))


def test_a_chart_answers_the_pointer(page: Browser) -> None:
    left, top, width, height = chart(page, "steps-1")
    page.click(left + width * (64 + 670 * 49.5 / 200) / 760, top + height / 2)
    said = tip(page, "steps-1")
    assert said.startswith("step 49took101.") and "checkpoint88.0 ms" in said
    assert said.endswith("stall: checkpoint, 7.4 times the median")
    page.click(5, 5)
    assert tip(page, "steps-1") == ""


def test_a_chart_answers_the_keyboard(page: Browser) -> None:
    page.js("document.querySelector('[data-plot=memory-1]').focus()")
    page.key("ArrowRight")
    page.key("ArrowRight")
    assert tip(page, "memory-1") == "after 2.3 msallocated59.84 MB"
    page.key("ArrowLeft")
    assert tip(page, "memory-1") == "after 0.0 msallocated55.75 MB"
    page.key("Escape")
    assert tip(page, "memory-1") == ""


def test_charts_have_other_colours_in_the_dark(page: Browser) -> None:
    fill = "getComputedStyle(document.querySelector('.plot .backward')).fill"
    light = page.js(fill)
    page.prefer("dark")
    assert page.js(fill) != light


def test_operators_sort_by_either_time(page: Browser) -> None:
    table = "operators-1"
    assert column(page, table, 0)[:3] == ["aten::convolution_backward", "aten::addmm", "ProfilerStep*"]
    page.js(f"document.querySelectorAll('#table-{table} thead button')[5].click()")
    assert column(page, table, 0)[:3] == ["aten::convolution_backward", "ProfilerStep*", "aten::addmm"]


def test_light_dark_and_the_choice_between(page: Browser) -> None:
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.js(back)
    page.prefer("dark")
    dark = page.js(back)
    assert light != dark
    page.js("document.querySelector('#theme').click()")
    assert (page.js(back), page.js("document.querySelector('#theme').textContent")) == (light, "Light")
    page.js("document.querySelector('#theme').click()")
    page.prefer("light")
    assert page.js(back) == dark
    page.js("document.querySelector('#theme').click()")


def test_a_link_into_a_closed_capture_opens_it(page: Browser) -> None:
    target = "document.querySelector('#captures details:nth-of-type(3)')"
    assert page.js(f"{target}.open") is False
    page.js(f"location.hash = {target}.id")
    page.js("new Promise(requestAnimationFrame)")
    assert page.js(f"{target}.open") is True


def test_a_narrow_window_scrolls_only_inside_its_parts(page: Browser) -> None:
    page.resize(360, 800)
    settle(page)
    assert page.js("document.documentElement.scrollWidth") == 360
    assert int(page.js("document.querySelector('[data-graph]').dataset.drawn")) > 50


@pytest.mark.parametrize("width", [360, 600, 900, 1024, 1280, 1400])
def test_every_section_can_be_reached_from_the_bar(page: Browser, width: int) -> None:
    """Where the links do not fit they fade out at the side where there are more."""
    page.resize(width, 800)
    settle(page)
    nav, links = "document.querySelector('.bar nav')", "[...document.querySelectorAll('.bar nav a')]"
    assert page.js(f"{links}.length") >= 15
    more = "['more-before', 'more-after'].map(name => nav.classList.contains(name))"
    assert page.js(f"(nav => nav.scrollWidth > nav.clientWidth + 1)({nav})") is (width < 1280)
    assert page.js(f"(nav => {more})({nav})") == [False, width < 1280]
    for number in range(page.js(f"{links}.length")):
        page.js(f"{links}[{number}].scrollIntoView({{behavior: 'instant', inline: 'center', block: 'nearest'}})")
        found = "(a => { const r = a.getBoundingClientRect();"
        found += " return document.elementFromPoint(r.left + r.width / 2, r.top + 12) === a; })"
        assert page.js(f"{found}({links}[{number}])"), number
    settle(page)
    assert page.js(f"(nav => {more})({nav})") == [width < 1280, False]


def test_the_bar_follows_the_section_that_is_read(page: Browser) -> None:
    page.resize(600, 800)
    page.js("document.getElementById('files').scrollIntoView({behavior: 'instant'})")
    until(lambda: page.js("document.querySelector('.bar nav').scrollLeft") > 100)


def test_everything_that_can_be_used_has_a_name_and_its_place_in_the_tab_order(page: Browser) -> None:
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    usable = [
        n for n in nodes if n.get("role", {}).get("value") in ("button", "link", "searchbox", "combobox", "application")
    ]
    assert len(usable) > 60
    assert [n["role"]["value"] for n in usable if not n.get("name", {}).get("value")] == []
    assert page.js("document.querySelectorAll('[tabindex]:not([tabindex=\"0\"]):not(#verdict)').length") == 0
    page.js("document.activeElement.blur()")
    page.key("Tab")
    assert page.js("document.activeElement.className") == "skip"


def test_headings_go_down_one_level_at_a_time(page: Browser) -> None:
    levels = page.js("[...document.querySelectorAll('h1, h2, h3, h4')].map(h => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def test_a_report_without_anything_opens_too(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text(html.render(sample_report.bare(tmp_path)), encoding="utf-8")
    browser.open(path)
    assert browser.errors == []
    assert browser.js("document.documentElement.dataset.error") is None


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
