"""What a run shows on the terminal while it happens and when it is over; all of it on stderr."""

from __future__ import annotations

import os
import select
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from signal import Signals
from typing import TYPE_CHECKING, TextIO

from orchestrator import attached, redact
from orchestrator.model import (
    HARMLESS,
    IN_FORCE,
    USABLE,
    Attached,
    Capture,
    Check,
    Metric,
    Pass,
    PassRecord,
    StepRecord,
)
from orchestrator.render import environment, stepping, view
from orchestrator.units import show_bytes, show_duration

if TYPE_CHECKING:
    from orchestrator.preflight import Preflight
    from orchestrator.report import Report
    from orchestrator.resolve import Estimate, Run

WIDTH = 78
SHOWN = 12
"""Processes that are named in one line; the others are counted."""
LABEL = 13
"""Columns of the words on the left of the summary: the longest status, and a space more between."""
TOLD = 3
"""Findings that are told at the end of a run; the others are in the report."""
ENOUGH = 3
"""Of two runs the 95 % interval is many times as wide as what they differ by, and often reaches below zero."""
_COLOURS = {"good": "32", "weak": "33", "bad": "31", "dim": "2"}


class Console:
    """Plain lines everywhere; on a terminal one live line with the elapsed and the expected time of the pass."""

    def __init__(self, *, quiet: bool = False, color: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        terminal = self._stream.isatty()
        self._color = terminal and not plain if color is None else color
        self._live = terminal and not quiet and os.environ.get("TERM") != "dumb" and "CI" not in os.environ
        self._passes: tuple[Pass, ...] = ()
        self._attached = False
        self._head = ""
        self._expected_s: float | None = None
        self._shown_at = 0.0
        self._live_line = False
        self._amid_line = False
        self._waited = ""
        self.logged: list[str] = []

    # ------------------------------------------------------------ a run

    def begin(self, run: Run, checks: Preflight, estimate: Estimate, interpreter: str | None) -> None:
        self._passes, self._attached = run.passes, bool(run.pids)
        self._line(f"profrun {run.name}: {aim(run, estimate)}")
        for shim in run.target.shims:
            self._line(f"{shim} is a version manager's shim; {run.target.exe} is run")
        if interpreter:
            self._line(f"target: {interpreter}")
        for split in run.plan.splits:
            self._line(split.text())
        if len(run.attached) > 1:
            self._line(f"processes: {looked_at(run.attached)}")
        told_later = [check for _, own in checks.steps for check in own if check.verdict in ("missing", "blocked")]
        for check in checks.every():
            if check.verdict != "ok" and check not in told_later:
                self.warn(check_words(check))

    def waits(self, text: str) -> None:
        """An environment step, named up to the first colon, waits: a live line, or elsewhere one line for the step."""
        step = text.partition(":")[0]
        if self._live and self._moves():
            self._show(text)
        elif not self._live and self._waited != step:
            self._line(text)
        self._waited = step

    def step_ends(self, record: StepRecord) -> None:
        """One line for an environment step: what has become of it, and why it is not what was asked for."""
        self._waited = ""
        status, about = environment.status(record), environment.outline(record)
        tone = {"good": "good", "warn": "weak", "bad": "bad"}[view.tone(record.status)]
        lines = (
            f"environment   {record.name:{LABEL + 1}} {word}" + (f"  {about}" if about else "")
            for word in (status, self._paint(tone, status))
        )
        amiss = record.status not in IN_FORCE
        self._line(*lines, always=amiss)
        if record.fix and amiss:
            self._line(f"  next: {record.fix}", always=True)

    def put_back(self, records: Sequence[StepRecord], known: str | None = None) -> None:
        """The end of the environment: the machine is as it was, or what is left and the command that mends it. `known`:
        what is to be said of what was put back."""
        left = [record for record in records if record.restored is False]
        for record in left:
            self.warn(f"NOT put back: {record.name}" + (f": {record.reason}" if record.reason else ""))
        if left:
            self.warn(f"  next: {environment.RESTORE}")
        elif any(record.restored for record in records):
            self._line("environment   machine put back" + (f"; {known}" if known else ""))

    def pass_begins(self, planned: Pass, expected_s: float | None) -> None:
        who = "+".join(member.use for member in planned.members)
        role = {"warmup": " warm-up", "bare": f" {planned.repeat}", "profiled": ""}[planned.role]
        total = len(self._passes)
        number = planned.index - self._passes[0].index + 1
        self._head, self._expected_s = f"[{number:{len(str(total))}}/{total}] {who}{role}", expected_s
        self._amid_line = False
        if self._live:
            self._show_pass(0.0)

    def tick(self, elapsed_s: float) -> None:
        if self._live and not self._amid_line and time.monotonic() - self._shown_at > 0.25 and self._moves():
            self._show_pass(elapsed_s)

    def _moves(self) -> bool:
        """Whether the terminal takes text now: one that was stopped with Ctrl-S must not hold up the pass."""
        return bool(select.select([], [self._stream], [], 0)[1])

    def make_way(self, amid_line: bool) -> None:
        """The target is about to write to the terminal; `amid_line`: it will leave a line open (a progress bar does),
        which the live line must not wipe out."""
        if self._live_line:
            self._write("")
        self._amid_line = amid_line

    def interrupted(self, number: int) -> None:
        """A first signal has come, and the pass is being ended."""
        name = Signals(number).name
        if self._attached:
            self.warn(f"{name}: profrun stops looking; the process goes on, and the tools write what they have")
        else:
            self.warn(f"{name} is passed on: target and tools may finish in their own way; a second one kills them")

    def pass_ends(self, record: PassRecord, captures: Sequence[Capture]) -> None:
        wall = _clock(record.run.wall_s, 3) if record.run and not record.run.start_error else "not run"
        words = list(_fates(captures))
        dots = "." * max(3, self._columns() - len(self._head) - LABEL - 15)
        coloured = " ".join(self._paint(tone, word) for tone, word in words)
        self._line(
            f"{self._head} {dots} {wall:>9}  {' '.join(word for _, word in words)}",
            f"{self._head} {self._paint('dim', dots)} {wall:>9}  {coloured}",
        )
        for said in dict.fromkeys(f"{c.collector}: {c.reason}" for c in captures if c.reason and c.status != "ok"):
            self._line(f"      {said}")
        for note in record.notes:
            self._line(f"      {note}")
        if record.run and record.run.leftovers:
            names = "; ".join(f"{p.pid} {one_line(p.argv)}" for p in record.run.leftovers)
            self._line(f"      still running: {names}")

    def stage(self, name: str) -> None:
        if self._live:
            self._show(f"{name} ...")

    def warn(self, text: str) -> None:
        self._line(text, self._paint("weak", view.visible(text)), always=True)

    def log(self, text: str) -> None:
        """Kept for run.log."""
        self.logged.append(text)

    # ------------------------------------------------------------ its end

    def end(self, report: Report, *, rebuilt: bool = False) -> None:
        """The figures, what is missing and why, the findings, where the report is; in the last line the verdict."""
        for label, text in _told(report):
            self._line(f"{label:{LABEL}} {text}")
        verdict, tone = _verdict(report, rebuilt)
        self._line(verdict, self._paint(tone, view.visible(verdict)), always=True)

    # ------------------------------------------------------------ lines

    def _line(self, text: str, coloured: str | None = None, *, always: bool = False) -> None:
        """A line that stays, and goes into the log without its colours; no name in it can steer the terminal."""
        clean = view.visible(text)
        self.logged.append(clean)
        if self._quiet and not always:
            return
        lead = "\n" if self._amid_line else ""
        self._amid_line = False
        self._write(f"{lead}{clean if coloured is None else coloured}\n")

    def _show_pass(self, elapsed_s: float) -> None:
        self._shown_at = time.monotonic()
        text = f"{self._head}  {_clock(elapsed_s)}"
        longer = f"{text} of about {_clock(self._expected_s)}" if self._expected_s else text
        self._show(longer if len(longer) < self._columns(wide=True) else text)

    def _show(self, text: str) -> None:
        """The live line, never so long that the terminal wraps it: what is wrapped can't be taken back."""
        self._write(text[: self._columns(wide=True) - 1])
        self._live_line = True

    def _write(self, text: str) -> None:
        self._stream.write(("\r\x1b[K" if self._live_line else "") + text)
        self._stream.flush()
        self._live_line = False

    def _columns(self, *, wide: bool = False) -> int:
        """The width to fill: the terminal's, and for lines that stay no more than WIDTH."""
        try:
            columns = os.get_terminal_size(self._stream.fileno()).columns or WIDTH
        except (OSError, ValueError):
            return WIDTH
        return columns if wide else min(columns, WIDTH)

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._color else text


def _fates(captures: Sequence[Capture]) -> Iterator[tuple[str, str]]:
    """(tone, words) for what has become of each collector; of the tasks of a job, how many have the same fate."""
    every = Counter(capture.collector for capture in captures)
    for (collector, status), count in Counter((c.collector, c.status) for c in captures).items():
        some = f"{count} of {every[collector]} " if count < every[collector] else ""
        yield _tone(status), f"{collector}: {some}{status}" if len(every) > 1 or some else status


def _tone(status: str) -> str:
    return "good" if status == "ok" else "weak" if status in HARMLESS else "bad"


def _verdict(report: Report, rebuilt: bool) -> tuple[str, str]:
    """The last line, and the tone of it."""
    outcome = report.outcome
    ended = f"exit {outcome.exit_code}: {outcome.reason}"
    if rebuilt:
        return "profrun: rebuilt" + (f"; the run had ended in {ended}" if outcome.exit_code else ""), "good"
    good = "profrun: ok" + (f", {outcome.reason}" if outcome.reason else "")
    return (f"profrun: {ended}", "bad") if outcome.exit_code else (good, "good")


def _told(report: Report) -> Iterator[tuple[str, str]]:
    """The summary's lines as (label, text)."""
    wall = report.metrics.get("wall_s")
    if wall and wall.value is not None:
        yield "bare run", _mean(wall)
    yield from _imported(report)
    if steps := stepping.stepping(report):
        yield "step", stepping.line(report, steps)
    slower = [f"{'+'.join(p.collectors)} {_slowdown(report, p)}" for p in report.passes if p.slowdown is not None]
    if slower:
        yield "slowdown", ", ".join(slower)
    yield from (("drifted", text) for text in view.drifted(report))
    if not report.run.imported:
        yield from _lost(report)
    yield from _found(report)
    size = sum(a.bytes for c in report.captures for a in c.artifacts)
    pages = (report.folder / name for name in ("index.html", "report.md"))
    page = next((page for page in pages if page.exists()), report.folder)
    yield "report", str(page) + (f" ({show_bytes(size)} of raw data)" if size else "")


def _found(report: Report) -> Iterator[tuple[str, str]]:
    """The verdict and the costliest findings."""
    if report.headline:
        yield "verdict", report.headline.sentence
    grave = [f for f in report.findings if f.severity != "info" and not f.healthy]
    for one in grave[:TOLD]:
        told = "%" in one.title  # then only the seconds are news
        price = (view.duration(one.cost_s) or "") if told else view.price(one)
        yield one.severity, one.title + (f" ({price})" if told and price else f": {price}" if price else "")
    if len(grave) > TOLD:
        yield "", f"and {_plural(len(grave) - TOLD, 'finding')} more: profrun show {shlex.quote(str(report.folder))}"


def _imported(report: Report) -> Iterator[tuple[str, str]]:
    """What each imported file is and holds, or why it gives nothing, in one line."""
    for capture in report.captures if report.run.imported else ():
        if capture.status not in USABLE:
            reason = capture.reason or "no reason is known"
            name = view.file_name(capture)
            yield capture.status, reason if reason.startswith(name) else f"{name}: {reason}"
        else:
            names = [n for n in report.metrics if n.partition(".")[2] in ("", capture.id)]
            figures = [view.figure(n, report.metrics[n]) for n in names]
            held = [f"{figure.label.removesuffix(f', {capture.id}')} {figure.value}" for figure in figures]
            said = [capture.reason] if capture.reason else [] if held else capture.notes[:1]
            about = "; ".join((view.tool(capture), *held, *said))
            yield capture.status, f"{view.file_name(capture)}: {about}"


def _mean(wall: Metric) -> str:
    shown = view.figure("wall_s", wall)
    if (wall.n or 1) == 1:
        return f"{shown.value} (one run)"
    sure = shown.interval if (wall.n or 0) >= ENOUGH else None
    return f"{shown.value}, mean of {wall.n}" + (f" (95 % interval {sure})" if sure else "")


def _slowdown(report: Report, record: PassRecord) -> str:
    trust = view.trust(report, record)
    return f"{record.slowdown:.2f}x" + (f" ({trust})" if trust not in (None, "high") else "")


def _lost(report: Report) -> Iterator[tuple[str, str]]:
    """What gave no full data and why, the same reason once; what the verdict will say is left to it."""
    who: dict[tuple[str, str], dict[str, None]] = {}
    for capture in report.captures:
        reason = capture.reason or "no reason is known"
        if capture.status not in ("ok", report.outcome.status) and reason not in report.outcome.reason:
            who.setdefault((capture.status, reason), {})[capture.collector] = None
    return ((status, f"{', '.join(names)}: {reason}") for (status, reason), names in who.items())


def _clock(seconds: float, places: int = 1) -> str:
    """Seconds with a fixed number of decimals, so that a running clock and a column of times stand still."""
    return f"{seconds:.{places}f} s" if seconds < 60 else show_duration(seconds)


# ---------------------------------------------------------------- words that `check` uses, too


def one_line(argv: Sequence[str], width: int = 60) -> str:
    """A command line as one short line, without its secrets."""
    text = " ".join(shlex.join(redact.argv(argv)).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def aim(run: Run, estimate: Estimate) -> str:
    """What the run will do, in one sentence."""
    if not run.pids:
        if not estimate.starts:
            return f"no start of {one_line(run.target.argv)} is possible"
        return f"{_plural(estimate.starts, 'start')} of {one_line(run.target.argv)}, {cost(estimate)}"
    named = f"process{'es' if len(run.pids) > 1 else ''} {', '.join(map(str, run.pids))}"
    count = len(attached.programs_of(run.attached))
    ranks = f", {count} ranks" if count > 1 and attached.ranks(run.attached) else ""
    who = f"{named} ({one_line(run.target.argv)}{ranks})"
    if not run.passes:
        return f"nothing in it can look at {who}"
    tools = ", then ".join("+".join(m.use for m in p.members) for p in run.passes)
    window = run.passes[0].window
    if window is not None and window.steps is not None:
        return f"looks at {who} with {tools}, for {_plural(window.steps, 'step')}"
    if window is None or window.for_s is None:
        return f"looks at {who} with {tools}, until it ends or you press Ctrl-C"
    return f"looks at {who} with {tools}, for {show_duration(window.for_s)}{' each' if len(run.passes) > 1 else ''}"


def looked_at(processes: Sequence[Attached]) -> str:
    """The processes in one line: `4711 torchrun, 4712 rank 0 of 2, 4713 rank 1 of 2, 4720 below 4713`."""
    words = [f"{one.pid}{_place(one)}" for one in processes[:SHOWN]]
    more = len(processes) - len(words)
    return ", ".join([*words, *([f"and {more} more"] if more else [])])


def _place(one: Attached) -> str:
    if one.wrapper:
        return f" {one.wrapper}"
    if one.rank is not None and one.lead == one.pid:
        return f" rank {one.rank}" + (f" of {one.world_size}" if one.world_size is not None else "")
    return f" below {one.lead}" if one.lead != one.pid else ""


def cost(estimate: Estimate) -> str:
    """What the run will take, in words; the unit is one bare run until one is known."""
    times = f"{estimate.bare_runs:.0f}"
    time_s = estimate.seconds
    known = None if time_s is None else show_duration(round(time_s, 1) or time_s)
    return (
        f"about {known or ('one bare run' if times == '1' else f'{times} times the bare run')} "
        f"and up to {show_bytes(estimate.raw_bytes)} of raw data"
    )


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def check_words(check: Check) -> str:
    """A check in one line, and its next step in another."""
    said = check.message if check.message.startswith(check.subject) else f"{check.subject}: {check.message}"
    return said + (f"\n  next: {check.fix}" if check.fix else "")
