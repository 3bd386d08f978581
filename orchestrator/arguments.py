"""The kinds of words on the command line that several verbs take: a report, a time, a process."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.render.console import Console

FOREVER = "inf"


def time_text(text: str) -> str:
    """A time as the plan takes it, checked here so that the message names the option."""
    from orchestrator.units import duration

    try:
        if duration(text) > 0:
            return text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    raise argparse.ArgumentTypeError(f"must be more than 0, and is {text}")


def wait_s(text: str) -> float:
    from orchestrator.units import duration

    return float("inf") if text == FOREVER else duration(time_text(text))


def report_folder(text: str) -> Path:
    """The report folder that RUN names. Raises UsageError where there is none."""
    from orchestrator import folder

    found = folder.lookup(text)
    if found is not None:
        return found
    known = folder.reports()
    there = f"{folder.REPORTS}/ has {', '.join(known[: -_NEWEST - 1 : -1])}" + (" ..." if len(known) > _NEWEST else "")
    why = "a report is the path of its folder, `latest`, or how a name in reports/ begins"
    none = f"there is none in {Path.cwd()}/{folder.REPORTS}: name the folder of a report"
    raise UsageError(f"there is no report {text}", why, there if known else none)


_NEWEST = 5


def maybe_report(text: str) -> Path:
    from orchestrator import folder

    return folder.lookup(text) or Path(text)


def run_argument(parser: argparse.ArgumentParser, **more: Any) -> None:
    about = "the report: its folder, `latest`, or how its name in reports/ begins"
    parser.add_argument("run", type=report_folder, metavar="RUN", help=about, **more)


def pid(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no process id; look it up: pgrep -af python")


def shown_options(parser: argparse.ArgumentParser, quiet: str) -> None:
    parser.add_argument("--json", action="store_true", help="summary.json on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help=quiet)
    color_option(parser)


def color_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-color", action="store_true", help="no colours (NO_COLOR and TERM=dumb do the same)")


def console(options: argparse.Namespace) -> Console:
    from orchestrator.render.console import Console

    return Console(quiet=options.quiet, color=False if options.no_color else None)
