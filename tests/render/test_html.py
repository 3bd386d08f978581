"""index.html: what it says, that names in it are nothing but text, and that it asks for nothing."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import sample_report
from flame_data import unpacked
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import redact
from orchestrator.model import Metric, Outcome
from orchestrator.render import html, pagedata
from orchestrator.report import Report
from orchestrator.tables import Table

USUAL_BYTES = 3_000_000


class Page(HTMLParser):
    """A page taken apart: its elements, its text, its scripts."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(source)
        self.close()
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open:
            self.scripts.append((self.elements[-1][1], data))
        else:
            self.texts.append(data)

    def block(self, name: str) -> Any:
        return next(json.loads(text) for attrs, text in self.scripts if attrs.get("id") == name)

    def flame(self, name: str) -> dict[str, Any]:
        """What a flame graph is drawn from, its columns as lists (the format stands in render/flames.py)."""
        packed = next(text for attrs, text in self.scripts if attrs.get("id") == name)
        return unpacked(packed)

    def grid(self, table: str) -> dict[str, Any]:
        """The columns of a table's data by their key."""
        section = next(a for t, a in self.elements if t == "section" and a.get("id") == f"table-{table}")
        return {c["key"]: c for c in self.block(str(section["data-grid"]))["columns"]}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return sample_report.build(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def source(report: Report) -> str:
    return html.render(report)


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_says_the_verdict_first(page: Page) -> None:
    told = page.text.index("The program takes 3.234 s (mean of 7 bare runs, ±1.9 %)")
    assert told < page.text.index("Nothing above the threshold") < page.text.index("Metrics over the bare passes")
    assert "4 of 5 collectors gave usable data (perf: blocked)" in page.text


def test_says_why_a_run_failed(report: Report) -> None:
    outcome = Outcome("target_failed", 137, "the target failed: killed by SIGKILL", target_signal=9)
    page = Page(html.render(replace(report, outcome=outcome)))
    assert "target failed The target failed: killed by SIGKILL." in page.text
    assert "target: killed by SIGKILL · profrun ended with 137" in page.text


def test_a_finding_shows_cost_place_evidence_and_advice(report: Report) -> None:
    page = Page(html.render(replace(report, findings=(sample_report.finding(),))))
    assert "1.31 s, 40.8 % of the bare run's 3.21 s of wall time" in page.text
    assert "function save file train_cnn.py:88 syscall fsync" in page.text
    assert "Write the checkpoint every 50 steps" in page.text
    links = {a["href"] for t, a in page.elements if t == "a"}
    anchors = {a.get("id") for _, a in page.elements}
    assert {"#table-syscalls", "#table-syscall_paths"} <= links
    assert {str(link)[1:] for link in links if str(link).startswith("#")} <= anchors


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> str:
    return html.render(sample_report.diagnosed(tmp_path_factory.mktemp("diagnosed")))


def test_the_headline_is_the_verdict_and_says_how_sure_it_is(diagnosed: str) -> None:
    page = Page(diagnosed)
    assert "ok Each step waits for its checkpoint: fsync takes 40.8 % of a bare run, in save" in page.text
    assert "confidence high · from p10-strace · bound by the program on the CPU" in page.text


def test_a_failure_is_told_before_any_headline(report: Report, diagnosed: str) -> None:
    failed = replace(sample_report.diagnosed(report.folder), outcome=Outcome("target_failed", 7, "the target failed"))
    text = Page(html.render(failed)).text
    assert "target failed The target failed." in text and "bound by the program" not in text


def test_sections_stand_in_reading_order_and_in_the_bar(diagnosed: str) -> None:
    page = Page(diagnosed)
    ids = [a["id"] for t, a in page.elements if t == "section" and str(a.get("aria-labelledby")).startswith("h-")]
    order = [
        "verdict", "findings", "steps", "timing", "where", "gpu", "flame", "tables", "kernels", "syscalls", "memory",
        "samples", "machine", "passes", "captures", "files",
    ]  # fmt: skip
    assert [i for i in ids if i in order] == order
    links = [str(a["href"])[1:] for t, a in page.elements if t == "a" and str(a["href"])[1:] in order]
    assert links[1 : len(order) + 1] == order  # the first is the way past the bar


def test_calm_findings_stand_apart_and_doubt_is_shown_at_the_source(diagnosed: str) -> None:
    page = Page(diagnosed)
    kinds = [a["class"] for t, a in page.elements if t == "article" and "finding" in str(a.get("class"))]
    assert kinds == ["finding major", "finding minor", "finding healthy"]
    assert "from p10-strace distorted , p11-nsys · rule" in page.text
    calm = page.text.index("Where the time goes, and nothing is wrong with that")
    assert page.text.index("fsync is called at every step") < calm < page.text.index("healthy Most of a step")
    rows = [a["data-row"] for t, a in page.elements if t == "a" and "data-row" in a]
    assert "/home/ada/project/ckpt.bin" in rows and len(rows) == 12


def test_evidence_of_a_moment_leads_to_it(diagnosed: str) -> None:
    page = Page(diagnosed)
    assert "GPU gap : at 2.8 s 87 ms" in page.text
    link = next(str(a["href"]) for t, a in page.elements if t == "a" and str(a["href"]).startswith("#gap-"))
    row = next(i for i, (t, a) in enumerate(page.elements) if t == "tr" and a.get("id") == link[1:])
    assert row and link == "#gap-1-2"


def test_rules_that_lacked_their_input_say_what_would_feed_them(diagnosed: str) -> None:
    text = Page(diagnosed).text
    told = text[text.index("What would tell more") :]
    assert told.startswith(
        "What would tell more 3 rules had nothing to judge by gpu.gaps no capture of the GPU's work."
    )
    assert told.count("use: nsys trace: [cuda, nvtx] Copy") == 1  # once for both rules that want it


def test_a_name_of_thousands_of_letters_is_short_and_whole_at_once(diagnosed: str) -> None:
    page = Page(diagnosed)
    heading = next(t for t in page.texts if t.startswith("A name of thousands of letters"))
    assert len(heading) == 240
    assert "kernel void gemm_kernel<Shape<0, 0>, " in page.text and page.text.count(sample_report.LONG) >= 3


def test_a_run_that_never_started_says_so_and_shows_no_figure(tmp_path: Path) -> None:
    page = Page(html.render(sample_report.bare(tmp_path)))
    for said in (
        "nope was not found on PATH.",
        "nothing could be: no capture of this run has data",
        "Not measured: no bare run of the target was timed",
        "Not measured: no capture of this run holds call stacks",
        "The target was not started.",
        "Nothing is known about the machine.",
    ):
        assert said in page.text
    assert [a["href"] for t, a in page.elements if t == "a" and str(a["href"]).startswith("./")] == ["./summary.json"]


def test_processes_that_ran_already_have_their_table(tmp_path: Path) -> None:
    page = Page(html.render(sample_report.job(tmp_path)))
    for said in ("Processes looked at", "1 of 3", "named, only starts others (torchrun)", "ended by itself"):
        assert said in page.text
    assert "stopped, and was not before" in page.text and "data-owned" not in str(page.elements)


def test_asks_for_nothing(page: Page) -> None:
    policy = next(a["content"] for t, a in page.elements if a.get("http-equiv") == "Content-Security-Policy")
    assert str(policy).startswith("default-src 'none'; base-uri 'none'; form-action 'none'; style-src 'sha256-")
    assert not [t for t, a in page.elements if t in ("img", "iframe", "link", "object") and a.get("href") != "data:,"]
    assert not [a for _, a in page.elements if "src" in a or "style" in a or any(k.startswith("on") for k in a)]
    assert all(str(a["href"]).startswith(("#", "./")) for t, a in page.elements if t == "a")


def test_only_its_own_script_and_style_have_the_policys_hash(page: Page) -> None:
    policy = str(next(a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"))
    own = [text for attrs, text in page.scripts if "type" not in attrs]
    assert len(own) == 2
    for text in own:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    data = {attrs["type"] for attrs, _ in page.scripts if "type" in attrs}
    assert data <= {"application/json", "text/plain"}  # none that runs


def test_names_are_inert_and_whole(page: Page, source: str) -> None:
    assert sample_report.EVIL not in source
    functions = page.grid("functions")["function"]["values"]
    assert {sample_report.EVIL, sample_report.LONG} <= set(functions)
    assert f"/home/ada/{sample_report.QUOTES}" in page.grid("syscall_paths")["path"]["values"]
    assert "safe\\u202egnp.exe\\x1b[31m\\x00" in functions  # direction marks and controls stand as escapes
    assert not set("\u202e\x00\x1b") & set(source)
    assert f"{sample_report.QUOTES} (/home/ada/project/odd names.py:7)" in page.flame("flame-1")["frames"]
    assert """python scripts/demo/train_cnn.py --steps 200 --note 'say "it'"'"'s" `ticked` | piped &""" in page.text


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), st.lists(st.text() | st.none() | st.integers())))
def test_inert_json_is_the_same_json(value: Any) -> None:
    text = pagedata.inert(value)
    assert json.loads(text) == value
    assert not set("<>&") & set(text)


def test_unknown_is_said_and_never_zero(page: Page) -> None:
    functions = page.grid("functions")
    row = functions["function"]["values"].index(sample_report.LONG)
    assert functions["file"]["values"][row] is None
    syscalls = page.grid("syscalls")
    row = syscalls["name"]["values"].index("restart_syscall")
    assert syscalls["total_ns"]["values"][row] is syscalls["share"]["values"][row] is None
    assert "tokens per s unknown" in page.text
    assert not {"None", "nan", "NaN", "<NA>"} & set(page.text.split())


def test_shares_name_their_whole(page: Page) -> None:
    share = page.grid("syscalls")["share"]
    assert share["unit"] == "of 3.81 s"
    assert sum(v for v in share["values"] if v is not None) == pytest.approx(1, abs=1e-4)
    by_class = page.grid("syscalls_by_class")
    assert dict(zip(by_class["class"]["values"], by_class["count"]["values"], strict=True))["desc"] == 200 + 12_044
    assert page.grid("functions")["self_pct"]["unit"] == "of 18.3 s"


def test_units_and_offsets(page: Page) -> None:
    total = page.grid("syscalls")["total_ns"]
    assert (total["unit"], total["factor"], total["values"][0]) == ("s", 1e9, 2_104_331_002)
    start = page.grid("syscall_events")["start_ns"]
    assert start["unit"] == "s after 14:13:20.000 UTC"
    assert start["values"][:2] == [0, 13_000_001]


def test_columns_without_news_are_told_once(page: Page) -> None:
    assert "pid" not in page.grid("functions")
    assert "In every row: capture p09-py-spy , pid 4242 , thread MainThread , kind wall ." in page.text
    assert "Unknown in every row: pid, thread." in page.text


def test_says_how_much_of_a_table_is_shown(page: Page) -> None:
    assert len(page.grid("functions")["function"]["values"]) == pagedata.ROWS
    assert "This page holds the 250 rows with the largest self samples." in page.text


def test_long_names_cannot_make_the_page_heavy(report: Report) -> None:
    names = [("p11-nsys", f"{i}" + "x" * 4_000, 1, 1_000 - i) for i in range(600)]
    table = Table.of("gpu_kernel_summary", names, ("capture", "name", "count", "total_ns"))
    info = sample_report.write(report.folder / "long", table)
    heavy = replace(report, tables={"gpu_kernel_summary": replace(info, path=f"long/{info.path}")})
    source = html.render(heavy)
    shown = Page(source).grid("gpu_kernel_summary")["name"]["values"]
    assert shown[0] == names[0][1] and 10 < len(shown) < pagedata.ROWS
    assert len(source.encode()) < USUAL_BYTES / 2


def test_a_usual_page_is_small(source: str) -> None:
    assert len(source.encode()) < USUAL_BYTES / 4


def test_the_chart_library_is_only_where_charts_are_and_comes_with_its_licence(source: str, tmp_path: Path) -> None:
    library = (html.ASSETS / "vendor/uPlot.iife.min.js").read_text(encoding="utf-8")
    assert library in source and "Copyright (c) 2022 Leon Sorokin" in source
    assert library not in html.render(sample_report.bare(tmp_path))


def test_the_vendored_files_are_those_that_their_readme_names() -> None:
    told = (html.ASSETS / "vendor/README.md").read_text(encoding="utf-8")
    for name in html.CHARTS:
        assert f"`{hashlib.sha256((html.ASSETS / name).read_bytes()).hexdigest()}`" in told


def test_taking_out_secrets_leaves_the_page_whole(report: Report, source: str) -> None:
    scrub = redact.scrubber({"HF_TOKEN": "zqx-7731-zqx"})
    assert scrub(source) == source
    leaking = replace(report, run=replace(report.run, command=("python", "--x", "zqx-7731-zqx")))
    page = Page(scrub(html.render(leaking)))
    assert "zqx-7731" not in page.text and redact.MASK in page.text


def test_files_are_named_with_what_they_hold(page: Page) -> None:
    hrefs = [a["href"] for t, a in page.elements if t == "a"]
    assert "./raw/p09-py-spy/a%20trace%20%231.json" in hrefs
    assert (
        page.text.count("contains environment") == 5
    )  # in the capture's line, at both its files, in the list of files
    assert "cut off at its limit" in page.text


def test_settings_that_were_not_put_back_stand_out(page: Page) -> None:
    bad = [a for t, a in page.elements if t == "span" and a.get("class") == "chip bad"]
    assert "NOT put back: shell (something started it again). Next: profrun env restore" in page.text and bad
    assert "drifted shell gdm stopped not put back something started it again." in page.text


def test_a_step_shows_what_was_wanted_read_and_left(page: Page) -> None:
    assert "clamped (1530 MHz) gpu_clocks graphics: 1600MHz, persistence: yes put back GPU 0-1 graphics" in page.text
    assert "Setting Status GPU 0 persistence already (on) GPU 1 persistence applied GPU 0-1 graphics 2×" in page.text
    assert "during GPU 0-1 samples 40 GPU 0-1 held down sw power cap 25 % GPU 0-1 graphics wanted 1530 MHz" in page.text
    assert "before GPU 0-1 graphics 210 MHz GPU 0-1 max graphics 1980 MHz set GPU 0-1 graphics 1530 MHz" in page.text
    assert "policy0-15 governor 16× applied performance powersave performance powersave" in page.text
    assert "Each of the 33 settings" in page.text and "policy15 governor applied performance" in page.text
    assert f"Next: {sample_report.SUDO}" in page.text
    opened = [a for t, a in page.elements if t == "details" and "step" in str(a.get("class")) and "open" in a]
    assert len(opened) == 5  # all but those that are as the plan wants them


def test_who_was_there_is_a_table(page: Page) -> None:
    assert "GPU 3 processes PID user command kind memory 4711 bob python x.py </script>" in page.text
    assert "9 unknown unknown compute unknown" in page.text


def test_what_drifted_is_a_warning_next_to_the_verdict(page: Page) -> None:
    said = page.text.index("drifted shell: something started it again. What the plan set")
    assert page.text.index("profrun ended with") < said < page.text.index("Wall time")


def test_steps_are_told_drawn_and_added_up(page: Page) -> None:
    assert "Step: 16.13 ms, mean of 186 steady steps in each of 3 runs (14 of 200 are warm-up)." in page.text
    assert "The chart shows the bare run p03, the middle one of 3 by its mean step." in page.text
    assert "Phase Mean Share of 3 s Longest data wait not seen forward 4.29 ms 26.6 % 4.47 ms" in page.text
    data = page.block("steps-1")
    assert len(data["x"]) == 200 and data["zones"] == [{"kind": "warm", "start": 0, "end": 14, "text": "warm-up"}]
    assert data["notes"]["49"].startswith("stall: checkpoint, ")
    titles = [a["aria-label"] for t, a in page.elements if "data-plot" in a]
    assert titles[0] == "Duration of each of 200 steps, by phase" and all(titles)


def test_a_counter_without_a_unit_is_a_plain_count(page: Page) -> None:
    counters = page.grid("counters")
    assert counters["unit"]["values"] == ["msec", "", "", ""]
    assert counters["value"]["values"] == [4289.09, 1119, 12_044_331_902, None]


def test_bytes_that_are_no_text_do_not_break_it(report: Report) -> None:
    run = replace(report.run, command=("python", "\udcff.py"), cwd="/tmp/\udc80")
    text = html.render(replace(report, run=run, metrics={"m": Metric(float("nan"))}))
    text.encode("utf-8")
    assert "\\udcff.py" in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("set `a: <b>` now", "set <code>a: &lt;b&gt;</code> now"),
        ("one ` tick & no more", "one ` tick &amp; no more"),
        ("`x` and `y", "<code>x</code> and `y"),
        ("", ""),
    ],
)
def test_ticks_are_code_and_nothing_else_is_markup(text: str, shown: str) -> None:
    assert html.ticked(text) == shown
