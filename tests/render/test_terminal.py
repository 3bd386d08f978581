"""`profrun show`: what it says of a report, in which words, and on which terminals."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import sample_report
from cli import environment, profrun
from conftest import REPO

from orchestrator.model import Abstention, Finding, Headline, Outcome
from orchestrator.render import terminal
from orchestrator.report import Report, summary
from orchestrator.tables import Table

ANSI = re.compile(r"\x1b\[[0-9;]*m")
MINUTE_NS = 60_000_000_000


class Terminal(io.StringIO):
    """What rich takes for a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def fine() -> Finding:
    advice = "Nothing is wrong here; a smaller model would take less."
    told = Finding("gpu.busy", "gpu_compute", "info", "The GPU computes", advice, "medium", healthy=True)
    return replace(told, cost_pct=91.04, of="the steady steps", where={"kernel": "sgemm"})


def lock() -> Finding:
    return Finding("lock.convoy", "lock_contention", "minor", "Threads wait for one lock", "Split it.", "low")


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """A diagnosed run, of which the terminal gets what it shows; its tables are our own and stay as they are."""
    full = sample_report.build(tmp_path)
    main = {"capture": "p09-py-spy", "pid": 7, "tid": 7, "thread": "MainThread", "role": "main", "part_ns": MINUTE_NS}
    spent = (
        ("steady", "file", "save", 31 * MINUTE_NS // 60),
        ("steady", "python", "train", 20 * MINUTE_NS // 60),
        ("warm-up", "python", "train", MINUTE_NS),
    )
    rows = [
        {**main, "part": part, "state": state, "function": name, "file": "/a/train_cnn.py", "line": 61, "total_ns": ns}
        for part, state, name, ns in spent
    ]
    names = list(rows[0])
    table = Table.of("host_time", [[row[name] for name in names] for row in rows], names)
    return replace(
        full,
        environment=(),
        tables={"host_time": sample_report.write(tmp_path, table)},
        headline=Headline("It waits for the disk: save is called in every step.", "cpu", "high", ("p10-strace",)),
        findings=(sample_report.finding(), lock(), fine()),
        abstentions=(
            Abstention("gpu.gaps", "a GPU trace", "{use: nsys}"),
            Abstention("io.reads", "paths", "{use: strace}"),
        ),
    )


def shown(
    report: Report, *, verbose: bool = False, color: bool | None = None, stream: io.StringIO | None = None
) -> str:
    out = stream or io.StringIO()
    terminal.show(report, verbose=verbose, color=color, stream=out)
    return "\n".join(line.rstrip() for line in out.getvalue().replace(str(report.folder), "FOLDER").splitlines()) + "\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_the_words(report: Report, verbose: bool, golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    wanted = golden / "show" / ("verbose.txt" if verbose else "brief.txt")
    assert shown(report, verbose=verbose) == wanted.read_text()


@pytest.mark.parametrize("columns", [40, 60, 110, 300])
def test_every_line_fits(report: Report, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(report, verbose=True)
    assert max(map(len, text.splitlines())) <= min(columns, terminal.WIDEST)
    for word in ("51.7 %", "33.3 %", "3.234 s", "p10", "lock.convoy"):
        assert word in text


def test_colours_are_the_terminals(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    coloured = shown(report, stream=Terminal())
    assert "\x1b[31m" in coloured
    plain = shown(report)
    assert ANSI.sub("", coloured).split() == plain.split()
    assert "\x1b" not in plain + shown(report, color=False, stream=Terminal())
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(report, stream=Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(report, stream=Terminal())


def test_no_name_steers_the_terminal(report: Report) -> None:
    named = replace(lock(), title=sample_report.BIDI, where={"path": sample_report.BIDI, "line": 3})
    text = shown(replace(report, findings=(named,)), verbose=True)
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text
    assert "[bold]" in shown(replace(report, findings=(replace(lock(), title="[bold]x[/bold]"),)))


def test_signs_that_a_terminal_does_not_know_are_not_used() -> None:
    assert [terminal.bar(share, 16, unicode=False) for share in (1.0, 0.5, 0.001)] == ["#" * 16, "#" * 8, "#"]
    assert [terminal.bar(share, 16) for share in (1.0, 0.5, 0.001)] == ["█" * 16, "█" * 8, "▏"]


def test_a_run_that_failed_says_so_first(tmp_path: Path) -> None:
    text = shown(sample_report.bare(tmp_path))
    assert text.splitlines()[1:3] == [
        "nope was not found on PATH.",
        "not started: exit 127",
    ]
    assert "nothing was measured to judge by" in text


def test_a_run_with_nothing_to_tell_is_short(report: Report) -> None:
    healthy = replace(report, findings=(), abstentions=(), outcome=Outcome("ok", 0, ""))
    assert "nothing above the threshold" in shown(healthy)


# ---------------------------------------------------------------- the verb


@pytest.fixture
def saved(report: Report) -> Report:
    (report.folder / "summary.json").write_text(json.dumps(summary(report)))
    return report


def test_the_verb_shows_a_report(saved: Report, tmp_path: Path) -> None:
    result = profrun("show", saved.folder, cwd=tmp_path, env=environment(COLUMNS="100"))
    assert (result.code, result.stderr) == (0, "")
    assert "It waits for the disk" in result.stdout
    assert "gpu.gaps" not in result.stdout


def test_the_verb_gives_the_summary(saved: Report, tmp_path: Path) -> None:
    result = profrun("show", saved.folder, "--json", cwd=tmp_path)
    assert json.loads(result.stdout) == json.loads((saved.folder / "summary.json").read_text())


def test_an_older_report_is_shown() -> None:
    """The example has been made before there were verdicts."""
    result = profrun("show", "example", cwd=REPO)
    assert (result.code, result.stderr) == (0, "")
    assert "Figures" in result.stdout and "Wall time" in result.stdout


def test_what_is_no_report_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "reports" / "mine-20260101T000000Z-abcd").mkdir(parents=True)
    (tmp_path / "reports" / "mine-20260101T000000Z-abcd" / "summary.json").write_text("{}")
    result = profrun("show", "other", cwd=tmp_path)
    assert result.code == 2
    assert "there is no report other" in result.stderr
    assert "reports/ has mine-20260101T000000Z-abcd" in result.stderr
