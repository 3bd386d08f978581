"""report.md, read back with a Markdown parser: what it says, and that no name in it is taken for markup."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import sample_report
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from orchestrator.model import Outcome
from orchestrator.render import markdown
from orchestrator.report import Report

WHERE = [f"Where the step goes: {who}" for who in ("Main thread in p09-py-spy", "GPU 0 in 05-profiled-nsys")]
GPUS = ["NVIDIA H100 80GB HBM3 (device 0) in 05-profiled-nsys", "GPU (device 1) in 05-profiled-nsys"]
PARSER = MarkdownIt("commonmark").enable("table")


def tokens(text: str) -> list[Token]:
    """Every token, those inside of lines too."""
    return [t for block in PARSER.parse(text) for t in (block, *(block.children or ()))]


def spans(text: str) -> list[str]:
    return [t.content for t in tokens(text) if t.type == "code_inline"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return sample_report.build(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def text(report: Report) -> str:
    return markdown.render(replace(report, findings=(sample_report.finding(),)))


def test_sections_stand_in_reading_order(text: str) -> None:
    headings = [line.lstrip("# ") for line in text.splitlines() if line.startswith("#")]
    assert headings[:6] == ["cpu-quick: ok", "Findings", "Steps", "Timing", *WHERE]
    assert headings[6:10] == [*GPUS, "Copies and sets of 05-profiled-nsys", "Functions"]
    assert headings[-8:-4] == ["Kernels in depth", "Operators of p09-py-spy", "Memory", "Samples of p10-strace"]
    assert headings[-4:] == ["Machine", "Environment", "Overhead and trust", "Captures"]


def test_what_the_rules_say_is_told_like_in_the_page(report: Report, tmp_path: Path) -> None:
    text = markdown.render(sample_report.diagnosed(tmp_path))
    assert text.splitlines()[2].startswith("Each step waits for its checkpoint: fsync takes 40.8 % of a bare run")
    assert "  - bent by the measuring: p10-strace (distorted)" in text
    calm = text.index("Where the time goes, and nothing is wrong with that:")
    assert text.index("**minor**") < calm < text.index("- **healthy** Most of a step is the convolution itself: 1.1 s")
    fences = [t for t in tokens(text) if t.type == "fence" and t.info == "yaml"]
    assert [f.content.splitlines()[1] for f in fences] == ["  - use: nsys", "  - use: ncu"]
    assert not [t for t in tokens(text) if t.type.startswith("html_")]


def test_processes_that_ran_already_have_their_table(tmp_path: Path) -> None:
    said = markdown.render(sample_report.job(tmp_path))
    assert "## Processes looked at" in said and "named, only starts others (torchrun)" in said
    assert any(span.startswith("python t.py </script>") for span in spans(said))
    assert not any(t.type.startswith("html") for t in tokens(said))


def test_says_the_figures(text: str) -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert ["Wall time", "3.234 s", "3.171 to 3.297 s", "±1.9 %", "3.209 s", "3.187 s", "3.405 s", "7", "p06"] in rows
    assert [
        "p10",
        "profiled",
        "strace",
        "8.820 s",
        "2.75× (2.69 to 2.81)",
        "distorted",
        "exit 0",
        "seccomp filter in use",
    ] in rows
    assert ["`futex`", "futex", "8,123", "41", "2.1 s", "259 µs", "301 ms", "55.3 %"] in rows
    assert ["`restart_syscall`", "other", "1", "1", "unknown", "unknown", "unknown", "unknown"] in rows
    assert "**Warning: drifted** shell: something started it again." in text
    assert "16.13 ms, mean of 186 steady steps in each of 3 runs (14 of 200 are warm-up). Below: bare run p03." in text
    assert ["backward", "7.32 ms", "45.3 %", "7.64 ms"] in rows
    assert ["data wait", "not seen", "not seen", "not seen"] in rows
    assert ["`aten::addmm`", "20", "31 ms", "34.1 %", "31 ms"] in rows
    assert "profrun itself measured 8 runs: all ok" in text
    assert "15 of 608 rows; all in `tables/functions.parquet`" in text


def test_each_step_of_the_environment_is_told_in_a_few_lines(text: str) -> None:
    told = text.partition("## Environment")[2].splitlines()
    assert told[2] == "**NOT put back: shell (something started it again). Next: profrun env restore**"
    assert told[4].startswith("**4 of 7 steps not in force: gpu_idle failed, cpu_frequency refused (EACCES)")
    for line in (
        "- **gpu_clocks** clamped (1530 MHz), put back; wanted: graphics: 1600MHz, persistence: yes",
        "  - GPU 0-1 graphics: clamped (1530 MHz)",
        "  - policy0-15 governor: powersave → performance → powersave, applied",
        "  - after: GPU 0-1 graphics 210 MHz",
        f"  - next: {sample_report.SUDO}",
    ):
        assert line in told


def test_no_name_becomes_markup(text: str) -> None:
    assert not [t for t in tokens(text) if t.type.startswith(("html_", "image", "link"))]
    assert sample_report.QUOTES in " ".join(spans(text))
    assert any(s.startswith("</script><script>document") for s in spans(text))
    fenced = next(t for t in tokens(text) if t.type == "fence")
    assert fenced.content.startswith("python scripts/demo/train_cnn.py") and "`ticked`" in fenced.content


def test_every_row_has_the_columns_of_its_head(text: str) -> None:
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("|")]
    assert len(blocks) == 16
    for lines in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert len({len(line) for line in lines}) == 1  # a table in a terminal too


def test_long_names_keep_both_ends(text: str) -> None:
    name = next(s for s in spans(text) if s.startswith("void gemm_kernel<"))
    assert name.endswith(">>(Params)") and len(name) == markdown.NAME


def test_a_failed_run_is_told(report: Report) -> None:
    outcome = Outcome("target_failed", 7, "the target failed: exit 7", 7)
    head = markdown.render(replace(report, outcome=outcome)).splitlines()
    assert (head[0], head[2]) == ("# cpu-quick: target failed", "The target failed: exit 7.")


def test_nothing_known_is_said_not_shown_as_zero(tmp_path: Path) -> None:
    text = markdown.render(sample_report.bare(tmp_path))
    for said in ("nope was not found", "Not measured", "The target was not started.", "Nothing is known about it."):
        assert said in text
    assert "|" not in text


NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp", "Zs"]), min_size=1, max_size=90)


@settings(max_examples=50, deadline=None)
@given(NAMES)
def test_code_and_prose_show_any_name_as_it_is(name: str) -> None:
    row = "\n".join(markdown.grid(("a", "b"), [(markdown.code(name), markdown.escape(name))]))
    found = [t for t in tokens(row) if t.type == "inline"][2:]
    shown = markdown.view.visible(name)
    assert [t.content for t in found[0].children or ()] == [shown]
    assert "".join(t.content for t in found[1].children or ()) == shown


def test_of_much_that_was_read_whole_values_are_shown_and_the_rest_is_counted() -> None:
    texts = [f"GPU {n} graphics 1830 MHz" for n in range(40)]
    told = markdown._some(texts)
    assert told.startswith("GPU 0 graphics 1830 MHz, GPU 1 graphics 1830 MHz, ")
    shown = told.count("MHz")
    assert told.endswith(f"1830 MHz, and {40 - shown} more") and len(told) < 330
    assert markdown._some(texts[:2]) == ", ".join(texts[:2])
