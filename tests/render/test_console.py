"""What a user sees while a run happens and when it is over: plain lines, one live line that never wraps, a summary."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import struct
import termios
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sample_report

from orchestrator import resolve
from orchestrator.env_steps.seeds import Seeds
from orchestrator.model import (
    Capture,
    Check,
    Exit,
    Headline,
    Metric,
    Outcome,
    Part,
    Pass,
    PassRecord,
    StepRecord,
    Target,
    TargetRun,
    Window,
)
from orchestrator.plan import Plan
from orchestrator.preflight import Preflight
from orchestrator.render import console
from orchestrator.render.console import Console

PLAN = Plan.model_validate({"version": 1, "name": "demo", "collectors": [{"use": "timing"}, {"use": "strace"}]})
ENVIRONMENT = PLAN.model_copy(update={"environment": (Seeds(), Seeds(seed=1))})
TIMING, STRACE = PLAN.each_collector()
PASSES = (Pass("p03", 3, "warmup", (TIMING,)), Pass("p04", 4, "bare", (TIMING,)), Pass("p05", 5, "profiled", (STRACE,)))
RUN = resolve.Run(PLAN, Target(("python", "train.py"), "/usr/bin/python", "/", {}), PASSES)
COST = resolve.Estimate(3, 5.0, None, 2_000_000)
NOTHING = Preflight(())


class Terminal:
    """A terminal of so many columns: what was written to it, and what its last line shows."""

    def __init__(self, columns: int) -> None:
        self._main, self._other = os.openpty()
        fcntl.ioctl(self._other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        self.stream = os.fdopen(self._other, "w")

    def written(self) -> str:
        os.set_blocking(self._main, False)
        read = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                read += os.read(self._main, 1 << 16)
        return read.decode().replace("\r\n", "\n")

    def close(self) -> None:
        self.stream.close()
        os.close(self._main)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)
    narrow = Terminal(40)
    yield narrow
    narrow.close()


def record(wall_s: float = 1.5, **changes: object) -> PassRecord:
    run = TargetRun(("x",), 1, 0, 1, wall_s, Exit(0))
    return replace(PassRecord("p04", "bare", ("timing",), run=run), **changes)  # type: ignore[arg-type]


def plain(**options: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(stream=out, **options), out


# ---------------------------------------------------------------- while it runs


def test_the_live_line_is_never_as_long_as_the_terminal_is_wide(terminal: Terminal) -> None:
    shown = Console(stream=terminal.stream)
    shown.begin(RUN, NOTHING, COST, None)
    terminal.written()
    together = replace(PASSES[2], members=(STRACE,) * 6)
    for planned in (*PASSES, together):
        shown.pass_begins(planned, 12345.6)
        shown._shown_at = 0.0
        shown.tick(123.4)
    shown.stage("reading what the tools left behind in the folder of the report")
    lines = re.split(r"\r\x1b\[K|\n", terminal.written())
    assert len(lines) >= 9
    assert max(map(len, lines)) < 40
    assert any("of about" in line for line in lines), "where there is room, the expected time is shown"


def test_the_targets_output_never_stands_behind_the_live_line(terminal: Terminal) -> None:
    shown = Console(stream=terminal.stream)
    shown.begin(RUN, NOTHING, COST, None)
    shown.pass_begins(PASSES[0], None)
    terminal.written()
    shown.make_way(False)
    assert terminal.written() == "\r\x1b[K"
    shown.make_way(True)  # a progress bar stands there: it must not be wiped out
    shown._shown_at = 0.0
    shown.tick(5.0)
    assert terminal.written() == ""
    shown.pass_ends(record(), ())
    assert terminal.written().startswith("\n[1/3] timing warm-up")


def test_passes_are_counted_as_this_run_starts_them(terminal: Terminal) -> None:
    shown = Console(stream=terminal.stream)
    shown.begin(RUN, NOTHING, COST, None)
    shown.pass_begins(PASSES[2], None)
    assert "[3/3] strace" in terminal.written()


@pytest.mark.parametrize(
    ("name", "text", "live", "colour"),
    [
        ("NO_COLOR", "1", True, False),
        ("NO_COLOR", "", True, True),
        ("TERM", "dumb", False, False),
        ("CI", "1", False, True),
    ],
)
def test_what_the_environment_asks_for(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, text: str, live: bool, colour: bool
) -> None:
    monkeypatch.setenv(name, text)
    shown = Console(stream=terminal.stream)
    shown.begin(RUN, NOTHING, COST, None)
    shown.pass_begins(PASSES[0], None)
    assert ("\r\x1b[K" in terminal.written() or shown._live_line) == live
    shown.warn("careful")
    assert ("\x1b[33m" in terminal.written()) == colour


def test_elsewhere_there_are_only_plain_lines() -> None:
    shown, out = plain()
    shown.begin(RUN, NOTHING, COST, "Python 3.12.1 (/usr/bin/python), no torch")
    shown.pass_begins(PASSES[1], 2.0)
    shown.tick(1.0)
    shown.stage("reading")
    shown.pass_ends(record(), [Capture("p04-timing", "p04", "timing", "ok")])
    first, second, third = out.getvalue().splitlines()
    assert first == "profrun demo: 3 starts of python train.py, about 5 times the bare run and up to 2 MB of raw data"
    assert second == "target: Python 3.12.1 (/usr/bin/python), no torch"
    assert re.fullmatch(r"\[2/3\] timing \d+ \.+   1\.500 s  ok", third)
    assert len(third) <= console.WIDTH
    assert shown.logged == out.getvalue().splitlines()


def test_quiet_keeps_warnings_and_the_verdict(tmp_path: Path) -> None:
    shown, out = plain(quiet=True)
    shown.begin(
        RUN, Preflight(((STRACE, (Check("strace", "missing", "strace was not found", "install it"),)),)), COST, None
    )
    shown.pass_ends(record(), [Capture("c", "p04", "timing", "tool_failed", "it broke")])
    shown.end(sample_report.build(tmp_path))
    assert out.getvalue() == "strace was not found\n  next: install it\nprofrun: ok\n"


def test_a_first_signal_is_answered() -> None:
    shown, out = plain()
    shown.interrupted(2)
    assert (
        out.getvalue() == "SIGINT is passed on: target and tools may finish in their own way; a second one kills them\n"
    )
    attached = replace(RUN, pids=(7,), passes=(replace(PASSES[2], window=Window(0.0, 30.0)),))
    shown.begin(attached, NOTHING, COST, None)
    shown.interrupted(15)
    assert out.getvalue().splitlines()[1:] == [
        "profrun demo: looks at process 7 (python train.py) with strace, for 30 s",
        "SIGTERM: profrun stops looking; the process goes on, and the tools write what they have",
    ]


def test_the_ranks_of_a_job_are_named_in_one_line(tmp_path: Path) -> None:
    shown, out = plain()
    first = sample_report.job(tmp_path).passes[0].run
    assert first is not None
    many = tuple(replace(first.attached[1], pid=pid) for pid in range(100, 115))
    for processes in (first.attached, many, first.attached[:1]):
        shown.begin(replace(RUN, pids=(7,), attached=processes, passes=()), NOTHING, COST, None)
    lines = out.getvalue().splitlines()
    assert lines[0] == "profrun demo: nothing in it can look at process 7 (python train.py, 3 ranks)"
    assert lines[1] == "processes: 7 torchrun, 8 rank 0 of 3, 9 rank 1 of 3, 11 rank 2 of 3"
    assert lines[3].endswith("111 below 8, and 3 more")
    assert lines[4:] == ["profrun demo: nothing in it can look at process 7 (python train.py)"]


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (resolve.Estimate(1, 1.1, None, 0), "1 start of python train.py, about one bare run and up to 0 B of raw data"),
        (
            resolve.Estimate(2, 3.0, 61.0, 5_000),
            "2 starts of python train.py, about 1 m 1 s and up to 5 kB of raw data",
        ),
        (
            resolve.Estimate(2, 3.0, 0.0312, 5_000),
            "2 starts of python train.py, about 31.2 ms and up to 5 kB of raw data",
        ),
        (resolve.Estimate(0, 0.0, None, 0), "no start of python train.py is possible"),
    ],
)
def test_the_cost_is_told_in_words(estimate: resolve.Estimate, words: str) -> None:
    assert console.aim(RUN, estimate) == words


# ---------------------------------------------------------------- its end


def lines(report: object, **options: bool) -> list[str]:
    shown, out = plain()
    shown.end(report, **options)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_the_summary_has_figures_what_is_missing_findings_and_the_verdict_last(tmp_path: Path) -> None:
    about_it = replace(
        sample_report.finding(), severity="info", title="Under strace the program took 2.7 times as long"
    )
    report = replace(sample_report.build(tmp_path), findings=(sample_report.finding(), about_it))
    (tmp_path / "index.html").write_text("")
    found = lines(report)
    labels = [line.split(" ", 2)[0] for line in found]
    assert labels[:4] == ["bare", "step", "slowdown", "drifted"]
    assert found[1] == "step          16.13 ms, mean of 186 steady steps in each of 3 runs (14 of 200 are warm-up)"
    assert "strace 2.75x (distorted)" in found[2]
    assert found[3] == "drifted       shell: something started it again."
    assert found[-2].startswith(f"report        {tmp_path}/index.html (")
    assert found[-1] == "profrun: ok"
    assert any(line.startswith("major         fsync is called") for line in found)
    assert not any(line.startswith("info ") for line in found), "what the slowdown says already is not said again"


def lost(tmp_path: Path, *captures: tuple[str, str, str], outcome: Outcome) -> list[str]:
    made = tuple(Capture(f"p{i}", f"p{i}", name, status, why) for i, (name, status, why) in enumerate(captures))  # type: ignore[arg-type]
    return lines(replace(sample_report.bare(tmp_path), captures=made, outcome=outcome))


def test_the_verdict_and_the_costliest_findings_are_told(tmp_path: Path) -> None:
    one = sample_report.finding()
    told = tuple(replace(one, title=f"finding {n}") for n in range(6))
    calm = replace(one, healthy=True, title="the GPU computes")
    headline = Headline("It waits for the disk.", "none", "high")
    report = replace(sample_report.build(tmp_path), findings=(*told[:2], calm, *told[2:]), headline=headline)
    stream = io.StringIO()
    Console(stream=stream).end(report)
    lines = stream.getvalue().splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("verdict")]
    assert lines[at] == "verdict       It waits for the disk."
    assert lines[at + 1] == "major         finding 0: 40.8 % of the bare run's 3.21 s of wall time (1.31 s)"
    assert [line.split(":")[0].split()[-1] for line in lines[at + 1 : at + 4]] == ["0", "1", "2"]
    assert lines[at + 4].strip() == f"and 3 findings more: profrun show {tmp_path}"
    assert lines[at + 5].startswith("report")
    assert lines[-1] == "profrun: ok"


def test_what_is_missing_is_told_once_for_each_reason(tmp_path: Path) -> None:
    found = lost(
        tmp_path,
        ("timing", "target_failed", "the target failed: exit 7"),
        ("timing", "cancelled", "the first bare run failed"),
        ("py-spy", "cancelled", "the first bare run failed"),
        ("strace", "empty", "nothing happened"),
        outcome=Outcome("target_failed", 7, "the target failed: exit 7"),
    )
    assert found == [
        "cancelled     timing, py-spy: the first bare run failed",
        "empty         strace: nothing happened",
        f"report        {tmp_path}",
        "profrun: exit 7: the target failed: exit 7",
    ]


def test_a_rebuilt_report_says_what_the_run_had_ended_in(tmp_path: Path) -> None:
    report = replace(sample_report.bare(tmp_path), outcome=Outcome("incomplete", 4, "nsys: tool_failed (it broke)"))
    assert (
        lines(report, rebuilt=True)[-1] == "profrun: rebuilt; the run had ended in exit 4: nsys: tool_failed (it broke)"
    )
    assert lines(replace(report, outcome=Outcome("ok", 0, "")), rebuilt=True)[-1] == "profrun: rebuilt"


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (Metric(1.2195, "s", None, 1, 1.2195), "1.220 s (one run)"),
        (Metric(0.005, "s", (-0.009, 0.019), 2), "5 ms, mean of 2"),
        (Metric(3.2143, "s", (3.2122, 3.2164), 5), "3.2143 s, mean of 5 (95 % interval 3.2122 to 3.2164 s)"),
    ],
)
def test_an_interval_is_shown_where_it_says_something(tmp_path: Path, metric: Metric, said: str) -> None:
    found = lines(replace(sample_report.bare(tmp_path), metrics={"wall_s": metric}, outcome=Outcome("ok", 0, "")))
    assert found[0] == f"bare run      {said}"


def test_names_can_not_steer_the_terminal_and_the_log_has_no_colours(terminal: Terminal) -> None:
    shown = Console(stream=terminal.stream)
    shown.begin(RUN, NOTHING, COST, None)
    shown.pass_begins(PASSES[1], None)
    shown.pass_ends(record(), [Capture("c", "p04", "timing", "tool_failed", "bad \x1b]0;title\x07 name")])
    assert "\x1b]0" not in terminal.written()
    assert shown.logged[-1] == "      timing: bad \\x1b]0;title\\x07 name"
    assert not any("\x1b" in line for line in shown.logged)


# ---------------------------------------------------------------- the environment

LOCKED = StepRecord(
    "gpu_clocks",
    "applied",
    parts=tuple(Part(f"GPU {n} graphics clock", "applied", "1530 MHz", "210 MHz", "1530 MHz") for n in (0, 1)),
)
REFUSED = StepRecord(
    "cpu_frequency", "refused", reason="policy0-3 governor: only root may", detail="EACCES", fix="sudo visudo"
)


def test_each_step_of_the_environment_is_a_line() -> None:
    shown, out = plain()
    for record in (LOCKED, REFUSED, StepRecord("cpu_idle", "already")):
        shown.step_ends(record)
    shown.put_back([replace(LOCKED, restored=True), REFUSED])
    assert out.getvalue().splitlines() == [
        "environment   gpu_clocks     applied  GPU 0-1 graphics clock 1530 MHz",
        "environment   cpu_frequency  refused (EACCES)  policy0-3 governor: only root may",
        "  next: sudo visudo",
        "environment   cpu_idle       already",
        "environment   machine put back",
    ]


def test_what_is_to_be_known_of_what_was_put_back_is_said() -> None:
    shown, out = plain()
    shown.put_back([replace(LOCKED, restored=True)], "GPU 0-1 graphics: reset, former lock unknown")
    assert out.getvalue() == "environment   machine put back; GPU 0-1 graphics: reset, former lock unknown\n"


def test_what_is_not_put_back_is_said_even_in_quiet() -> None:
    shown, out = plain(quiet=True)
    shown.step_ends(LOCKED)
    shown.step_ends(REFUSED)
    shown.put_back([replace(LOCKED, restored=False, reason="nvidia-smi gave no answer in 10 s")])
    shown.put_back([replace(LOCKED, restored=True)])
    assert out.getvalue().splitlines() == [
        "environment   cpu_frequency  refused (EACCES)  policy0-3 governor: only root may",
        "  next: sudo visudo",
        "NOT put back: gpu_clocks: nvidia-smi gave no answer in 10 s",
        "  next: profrun env restore",
    ]


def test_waiting_is_told_once_or_on_the_live_line(terminal: Terminal) -> None:
    shown, out = plain()
    live = Console(stream=terminal.stream)
    for left_s in (120, 119, 118):
        for one in (shown, live):
            one.waits(f"cpu_idle: 2 of 2 cores are busier than 50 %: pid 12 (ada, stress-ng); waiting {left_s} s more")
    (line,) = out.getvalue().splitlines()
    assert line.startswith("cpu_idle: 2 of 2 cores") and line.endswith("waiting 120 s more")
    lines = terminal.written().split("\r\x1b[K")
    assert len(lines) == 3 and "\n" not in "".join(lines)
    assert max(map(len, lines)) < 40
    shown.waits("gpu_idle: GPU 0 is busy; waiting 60 s more")
    assert len(out.getvalue().splitlines()) == 2
    live.step_ends(StepRecord("cpu_idle", "applied"))
    assert terminal.written().startswith("\r\x1b[Kenvironment   cpu_idle       \x1b[32mapplied\x1b[0m\n")


def test_a_step_that_can_not_work_is_told_once_where_it_is_applied() -> None:
    shown, out = plain()
    bad, odd = Check("gpu_idle", "missing", "no NVIDIA driver is here"), Check("seeds", "warn", "seeds: think twice")
    steps = tuple((step, (check,)) for step, check in zip(ENVIRONMENT.environment, (bad, odd), strict=True))
    shown.begin(RUN, Preflight((), steps), COST, None)
    assert out.getvalue().splitlines()[1:] == ["seeds: think twice"]
