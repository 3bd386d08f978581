"""The page's charts in a real Chromium: what they draw, what they answer to pointer and keys; links into tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import sample_report
from browser import Browser
from waiting import until

from orchestrator.render import html

pytestmark = pytest.mark.tool("chromium")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("charts")
    path = folder / "index.html"
    path.write_text(html.render(sample_report.diagnosed(folder)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser, file: Path) -> Browser:
    browser.resize(1280, 900)
    browser.prefer("light")
    browser.open(file)
    return browser


def chart(name: str) -> str:
    return f"document.querySelector('[data-plot={name}]')"


def area(page: Browser, name: str) -> list[float]:
    """Left, top, width, height of what the chart's axes span, in the window."""
    page.js(f"{chart(name)}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
    over = f"{chart(name)}.querySelector('.u-over').getBoundingClientRect()"
    return list(page.js(f"(r => [r.left, r.top, r.width, r.height])({over})"))


def mouse(page: Browser, kind: str, x: float, y: float, held: bool = False) -> None:
    page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if held else "none", clickCount=int(held))


def tip(page: Browser, name: str) -> str:
    return str(page.js(f"{chart(name)}.querySelector('.tip:not([hidden])')?.textContent ?? ''"))


INK = """(box, variable) => {
  box.style.color = `var(--${variable})`;
  const wanted = getComputedStyle(box).color.match(/\\d+/g);
  box.style.color = "";
  const canvas = box.querySelector("canvas");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4)
    count += data[i + 3] > 250 && wanted.every((value, k) => Math.abs(value - data[i + k]) < 3);
  return count;
}"""
COLUMN = """(box, x, top, height) => {
  const canvas = box.querySelector("canvas");
  const { left, top: above } = canvas.getBoundingClientRect();
  const place = [x - left, top - above, 1, height].map(Math.round);
  const { data } = canvas.getContext("2d").getImageData(...place);
  return Array.from({ length: data.length / 4 }, (_, i) => [...data.slice(4 * i, 4 * i + 3)].join());
}"""


def ink(page: Browser, name: str, colour: str) -> int:
    """How many pixels of the chart have the colour of that variable, within a rounding."""
    return int(page.js(f"({INK})({chart(name)}, {colour!r})"))


def test_every_chart_is_drawn(page: Browser) -> None:
    assert page.errors == []
    assert page.js("document.querySelectorAll('[data-plot]').length") == 13
    assert page.js("document.querySelectorAll('[data-plot] .uplot canvas').length") == 13
    for kind in ("forward", "backward", "checkpoint"):
        assert ink(page, "steps-1", f"phase-{kind}") > 200, kind
    assert ink(page, "steps-1", "phase-data") == 0  # never seen
    assert ink(page, "memory-1", "accent") > 200


def test_bars_stack_to_the_step(page: Browser) -> None:
    """Forward and backward have the height in the picture that they have in time."""
    left, top, width, height = area(page, "steps-1")
    high, forward, backward = page.js(
        "(d => [d.y.high, ...['forward', 'backward'].map(k => d.series.find(s => s.kind === k).values[120])])"
        "(JSON.parse(document.getElementById('steps-1').textContent))"
    )
    at = left + width * 120.5 / 200
    column = page.js(f"({COLUMN})({chart('steps-1')}, {at}, {top}, {height})")
    rgb = {"forward": "127,182,230", "backward": "44,104,176"}
    assert column.count(rgb["forward"]) == pytest.approx(height * forward / high, abs=2)
    assert column.count(rgb["backward"]) == pytest.approx(height * backward / high, abs=2)


def test_a_chart_answers_the_pointer(page: Browser) -> None:
    left, top, width, height = area(page, "steps-1")
    mouse(page, "mouseMoved", left + width * 49.5 / 200, top + height / 2)
    until(lambda: tip(page, "steps-1"))
    said = tip(page, "steps-1")
    assert said.startswith("step 49took101.") and "checkpoint88.00 ms" in said
    assert said.endswith("stall: checkpoint, 7.4 times the median")
    mouse(page, "mouseMoved", left + width * 3.5 / 200, top + height / 2)
    until(lambda: tip(page, "steps-1").startswith("step 3, warm-up"))
    mouse(page, "mouseMoved", 5, 5)
    until(lambda: tip(page, "steps-1") == "")


def test_a_chart_answers_the_keyboard(page: Browser) -> None:
    page.js(f"{chart('memory-1')}.focus()")
    page.key("ArrowRight")
    until(lambda: tip(page, "memory-1") == "after 0 msallocated55.75 MB")
    page.key("ArrowRight")
    until(lambda: tip(page, "memory-1") == "after 2.3 msallocated59.84 MB")
    page.key("Escape")
    until(lambda: tip(page, "memory-1") == "")


def shown(page: Browser, name: str) -> str:
    return str(page.js(f"{chart(name)}.querySelector('.whole-view').hidden ? 'all' : 'a part'"))


def test_dragging_zooms_and_a_button_shows_all_again(page: Browser) -> None:
    left, top, width, height = area(page, "steps-1")
    y = top + height / 2
    mouse(page, "mouseMoved", left + width * 0.2, y)
    mouse(page, "mousePressed", left + width * 0.2, y, held=True)
    mouse(page, "mouseMoved", left + width * 0.3, y, held=True)
    mouse(page, "mouseReleased", left + width * 0.3, y, held=True)
    until(lambda: shown(page, "steps-1") == "a part")
    mouse(page, "mouseMoved", left + width * 0.5, y)
    until(lambda: tip(page, "steps-1").startswith(("step 49", "step 50", "step 51")))
    page.js(f"{chart('steps-1')}.querySelector('.whole-view').click()")
    until(lambda: shown(page, "steps-1") == "all")
    assert tip(page, "steps-1") == ""


def test_keys_zoom_around_what_is_read(page: Browser) -> None:
    page.js(f"{chart('steps-1')}.focus()")
    page.key("ArrowLeft")  # from the right end
    plus = "new KeyboardEvent('keydown', {key: '+', bubbles: true, cancelable: true})"
    for _ in range(4):
        page.js(f"{chart('steps-1')}.dispatchEvent({plus})")
    until(lambda: shown(page, "steps-1") == "a part")
    assert tip(page, "steps-1").startswith("step 199")
    for _ in range(20):
        page.key("ArrowLeft")
    until(lambda: tip(page, "steps-1").startswith("step 179"))  # the view has followed
    page.key("Escape")
    until(lambda: shown(page, "steps-1") == "all")


def test_charts_of_samples_zoom_together(page: Browser) -> None:
    left, top, width, height = area(page, "samples-1-1")
    y = top + height / 2
    mouse(page, "mouseMoved", left + 10, y)
    mouse(page, "mousePressed", left + 10, y, held=True)
    mouse(page, "mouseMoved", left + width * 0.3, y, held=True)
    mouse(page, "mouseReleased", left + width * 0.3, y, held=True)
    for name in ("samples-1-1", "samples-1-2", "samples-1-7"):
        until(lambda name=name: shown(page, name) == "a part")  # type: ignore[misc]


def test_charts_have_other_colours_in_the_dark(page: Browser) -> None:
    assert ink(page, "steps-1", "phase-forward") > 200
    before = page.js(f"{chart('steps-1')}.querySelector('canvas').toDataURL()")
    page.prefer("dark")
    until(lambda: page.js(f"{chart('steps-1')}.querySelector('canvas').toDataURL()") != before)
    assert ink(page, "steps-1", "phase-forward") > 200


def test_charts_fit_a_narrow_window(page: Browser) -> None:
    page.resize(400, 800)
    until(lambda: page.js(f"{chart('steps-1')}.querySelector('canvas').getBoundingClientRect().width") < 360)
    assert page.js("document.documentElement.scrollWidth") == 400


def rows(page: Browser, table: str) -> list[str]:
    return list(page.js(f"[...document.querySelectorAll('#table-{table} tbody tr')].map(r => r.textContent)"))


def test_evidence_leads_to_its_row(page: Browser) -> None:
    page.js("document.querySelector('a[data-row=\"fsync\"]').click()")
    assert len(rows(page, "syscalls")) == 1 and rows(page, "syscalls")[0].startswith("fsync")
    page.js("document.querySelector('a[data-row=\"call 3\"]').click()")
    assert len(rows(page, "syscalls")) == 10  # no such row: all of them
    assert page.js("location.hash") == "#table-syscalls"


def test_a_link_to_a_table_that_lies_in_a_closed_part_opens_it(page: Browser) -> None:
    more = "document.querySelector('details.more')"
    assert page.js(f"{more}.open") is False
    page.js("location.hash = '#table-counters'")
    until(lambda: page.js(f"{more}.open"))


def test_a_long_name_can_be_read_whole_with_the_keyboard(page: Browser) -> None:
    details = "[...document.querySelectorAll('.finding .where details.full')]"
    assert page.js(f"{details}.map(d => d.open)") == [False]
    page.js(f"{details}[0].querySelector('summary').focus()")
    page.key("Enter")
    until(lambda: page.js(f"{details}[0].open"))
    assert json.dumps(sample_report.LONG) == page.js(f"JSON.stringify({details}[0].lastElementChild.innerText)")
