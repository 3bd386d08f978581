"""What a run shows on the terminal while it happens and when it is over; all of it on stderr."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

from orchestrator import redact
from orchestrator.model import HARMLESS, Capture, Check, Pass, PassRecord
from orchestrator.units import show_bytes, show_duration

if TYPE_CHECKING:
    from orchestrator.preflight import Preflight
    from orchestrator.report import Report
    from orchestrator.resolve import Estimate, Run

WIDTH = 78
_COLOURS = {"good": "32", "weak": "33", "bad": "31", "dim": "2", "strong": "1"}


class Console:
    """Plain lines everywhere; on a terminal one live line with the elapsed and the expected time of the pass."""

    def __init__(self, *, quiet: bool = False, color: bool | None = None, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        terminal = self._stream.isatty()
        self._color = terminal and not plain if color is None else color
        self._live = terminal and not quiet and os.environ.get("TERM") != "dumb" and "CI" not in os.environ
        self._head = ""
        self._expected_s: float | None = None
        self._shown_at = 0.0
        self._live_line = False
        self.logged: list[str] = []

    # ------------------------------------------------------------ a run

    def begin(self, run: Run, checks: Preflight, estimate: Estimate, interpreter: str | None) -> None:
        self._line(f"profrun {run.name}: {len(run.passes)} starts of {one_line(run.target.argv)}{cost(estimate)}")
        for shim in run.target.shims:
            self._line(f"{shim} is a version manager's shim; {run.target.exe} is run")
        if interpreter:
            self._line(interpreter)
        for _, found in checks.checks:
            for check in found:
                if check.verdict != "ok":
                    self.warn(check_words(check))

    def pass_begins(self, planned: Pass, total: int, expected_s: float | None) -> None:
        who = "+".join(member.use for member in planned.members)
        role = {"warmup": " warm-up", "bare": f" {planned.repeat}", "profiled": ""}[planned.role]
        number = f"[{planned.index:{len(str(total))}}/{total}]"
        self._head, self._expected_s = f"{number} {who}{role}", expected_s
        self._shown_at = time.monotonic()
        if not self._live:
            return
        self._show_live(0.0)

    def tick(self, elapsed_s: float) -> None:
        if self._live and time.monotonic() - self._shown_at > 0.25:
            self._show_live(elapsed_s)

    def _show_live(self, elapsed_s: float) -> None:
        self._shown_at = time.monotonic()
        expected = f" of about {show_duration(self._expected_s)}" if self._expected_s else ""
        self._stream.write(f"\r\x1b[K{self._head}  {show_duration(round(elapsed_s, 1))}{expected}")
        self._stream.flush()
        self._live_line = True

    def pass_ends(self, record: PassRecord, captures: Sequence[Capture]) -> None:
        wall = f"{record.run.wall_s:8.2f} s" if record.run else "    not run"
        status = " ".join(self._status(c, len(captures) > 1) for c in captures)
        dots = "." * max(3, WIDTH - len(self._head) - len(wall) - 12)
        self._line(f"{self._head} {self._paint('dim', dots)}{wall}  {status}")
        for capture in captures:
            if capture.reason and capture.status != "ok":
                self._line(f"      {capture.collector}: {capture.reason}")
        for note in record.notes:
            self._line(f"      {note}")
        if record.run and record.run.leftovers:
            names = "; ".join(f"{p.pid} {one_line(p.argv)}" for p in record.run.leftovers)
            self._line(f"      still running: {names}")

    def _status(self, capture: Capture, named: bool) -> str:
        colour = "good" if capture.status == "ok" else "weak" if capture.status in HARMLESS else "bad"
        return self._paint(colour, f"{capture.collector}: {capture.status}" if named else capture.status)

    def stage(self, name: str) -> None:
        if self._live:
            self._stream.write(f"\r\x1b[K{name} ...")
            self._stream.flush()
            self._live_line = True

    def warn(self, text: str) -> None:
        self._line(self._paint("weak", text), always=True)

    def log(self, text: str) -> None:
        """Kept for run.log."""
        self.logged.append(text)

    # ------------------------------------------------------------ its end

    def end(self, report: Report) -> None:
        """The figures, the findings, and in the last line the verdict."""
        wall = report.metrics.get("wall_s")
        if wall and wall.value is not None:
            interval = f" (95 % {wall.ci95[0]:.3f} to {wall.ci95[1]:.3f})" if wall.ci95 else ""
            self._line(f"bare run: {wall.value:.3f} s mean of {wall.n}{interval}")
        for record in report.passes:
            if record.slowdown is not None:
                self._line(f"{'+'.join(record.collectors)}: {record.slowdown:.2f} times the bare run")
        for finding in report.findings:
            self._line(f"{finding.severity}: {finding.title}")
        size = sum(a.bytes for c in report.captures for a in c.artifacts)
        self._line(f"report: {report.folder}/index.html ({show_bytes(size)} of raw data)")
        self._line(self._verdict(report), always=True)

    def _verdict(self, report: Report) -> str:
        outcome = report.outcome
        if outcome.exit_code == 0:
            return self._paint("good", "profrun: ok")
        return self._paint("bad", f"profrun: exit {outcome.exit_code}: {outcome.reason}")

    # ------------------------------------------------------------ lines

    def _line(self, text: str, *, always: bool = False) -> None:
        self.logged.append(text)
        if self._quiet and not always:
            return
        clear = "\r\x1b[K" if self._live_line else ""
        self._live_line = False
        self._stream.write(f"{clear}{text}\n")
        self._stream.flush()

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self._color else text


def one_line(argv: Sequence[str], width: int = 60) -> str:
    """A command line as one short line, without its secrets."""
    text = " ".join(shlex.join(redact.argv(argv)).split())
    return text if len(text) <= width else text[: width - 3] + "..."


def cost(estimate: Estimate) -> str:
    """What the run will take, in words; the unit is one bare run until one is known."""
    if estimate.seconds is not None:
        return f", about {show_duration(estimate.seconds)} and {show_bytes(estimate.raw_bytes)}"
    return f", about {estimate.bare_runs:.0f} times the bare run and {show_bytes(estimate.raw_bytes)}"


def check_words(check: Check) -> str:
    """A check as one line, with the next step."""
    return f"{check.subject}: {check.message}" + (f"  next: {check.fix}" if check.fix else "")
