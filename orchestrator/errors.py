"""Every error a user can meet: what happened, why, what to do next, and the exit status it ends in."""

from __future__ import annotations

from dataclasses import dataclass

EXIT_USAGE = 2
EXIT_PREFLIGHT = 3
EXIT_CAPTURE = 4
EXIT_ENVIRONMENT = 5
EXIT_GATE = 6
EXIT_BUG = 70
EXIT_BUSY = 75
EXIT_TIMEOUT = 124
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127


class ProfrunError(Exception):
    """An error that stops the run. Its text is what the user reads; `exit_code` is what profrun ends with."""

    exit_code = EXIT_USAGE

    def __init__(self, what: str, why: str = "", next_step: str = "") -> None:
        self.what, self.why, self.next_step = what, why, next_step
        super().__init__(self.text())

    def text(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why:  {self.why}")
        if self.next_step:
            lines.append(f"  next: {self.next_step}")
        return "\n".join(lines)


class UsageError(ProfrunError):
    """The command line makes no sense."""


class PreflightError(ProfrunError):
    """Nothing was run: this machine, or a folder on it, can't serve the plan."""

    exit_code = EXIT_PREFLIGHT


class ReportError(ProfrunError):
    """A report folder that can't be read, or is no report."""


class HistoryError(ProfrunError):
    """The database of the runs so far can't be read or written."""


class BusyError(ProfrunError):
    """Another run holds what this one would change, or the run that is asked for is not dead."""

    exit_code = EXIT_BUSY


class FolderError(PreflightError):
    """The report folder can't be made or written."""


class StartError(ProfrunError):
    """The target can't be started: 127 not found, 126 found but not executable."""

    def __init__(self, what: str, why: str, next_step: str, exit_code: int) -> None:
        super().__init__(what, why, next_step)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a plan: where it stands, what is wrong, and how to write it."""

    file: str
    line: int | None
    path: str
    message: str
    hint: str = ""
    instead: str = ""
    """The lines of YAML to write in its place."""

    def text(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        path = f"  {self.path}: " if self.path else "  "
        lines = [f"{place}:{path}{self.message}" + (f" ({self.hint})" if self.hint else "")]
        lines += ["    write instead:"] if self.instead else []
        return "\n".join([*lines, *(f"      {line}" for line in self.instead.splitlines())])


class PlanError(ProfrunError):
    """A plan that can't be used; all its problems at once."""

    def __init__(self, problems: list[Problem], next_step: str = "") -> None:
        self.problems = problems
        count = f"{len(problems)} problem" + ("s" if len(problems) > 1 else "")
        super().__init__(
            f"the plan has {count}:\n" + "\n".join("  " + p.text().replace("\n", "\n  ") for p in problems),
            "",
            next_step,
        )


class ParseError(Exception):
    """A tool's file that can't be read. A value of the run, not its end: the capture becomes `unreadable`."""
