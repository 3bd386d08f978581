"""`profrun compare`: what has changed from one run to another, how sure that is, and why; and the gate for CI."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import arguments
from orchestrator.errors import EXIT_GATE, EXIT_PREFLIGHT

if TYPE_CHECKING:
    from orchestrator.comparing.gate import Wanted
    from orchestrator.comparing.words import Comparison
    from orchestrator.report import Report


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.epilog = (
        "exit status: 0 compared, and the gate passed where there is one; 3 the runs are unlike and were not compared; "
        "6 the gate failed, or could not be judged"
    )
    for name, which in (("a", "the older run"), ("b", "the one that is judged against it")):
        about = f"{which}: its folder, `latest`, or how its name in reports/ begins"
        parser.add_argument(name, type=arguments.report_folder, metavar=name.upper(), help=about)
    parser.add_argument(
        "--gate", type=_limit_pct, metavar="3%", help="exit 6 where B is worse by more, or where that can't be told"
    )
    parser.add_argument(
        "--metric",
        type=_wanted,
        action="append",
        default=[],
        metavar="NAME[=higher]",
        help="the figure at the gate, else what the verdict is of: the step time, or the wall time; =higher, =lower: "
        "what is better, where its unit does not tell (s, bytes, .../s do); may be repeated",
    )
    parser.add_argument("--anyway", action="store_true", help="compare also what is unlike, and say so")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="compare.html, .md and .json in a new folder there"
    )
    parser.add_argument("--json", action="store_true", help="the comparison as data (profrun/compare/1)")
    parser.add_argument("-v", "--verbose", action="store_true", help="every change, and what it rests on")
    arguments.color_option(parser)
    return parser


def _limit_pct(text: str) -> float:
    from orchestrator.units import percent

    try:
        return percent(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _wanted(text: str) -> Wanted:
    from orchestrator.comparing.gate import Wanted

    try:
        return Wanted.of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace) -> int:
    """What has changed from run A to run B, by how much of the step, how sure that is, and why."""
    from orchestrator import compare
    from orchestrator.comparing import gate
    from orchestrator.errors import ReportError, UsageError
    from orchestrator.exporting import github
    from orchestrator.report import load

    if options.metric and options.gate is None:
        raise UsageError("--metric needs --gate", "it names what is judged there", "--gate 3%")
    try:
        a, b = load(options.a), load(options.b)
        found = compare.compare(a, b, anyway=options.anyway)
    except ReportError as error:
        if options.gate is not None:
            error.exit_code = EXIT_GATE  # it can't be told, which is no pass
        raise
    if options.gate is not None:
        found = gate.gated(found, options.gate, options.metric)
        github.tell(found)
    _tell(found, options, _written(found, a, b, options.output) if options.output else None)
    return _status(found)


def _status(found: Comparison) -> int:
    if found.gate is not None and found.gate.result != "passed":
        return EXIT_GATE
    return EXIT_PREFLIGHT if found.refused else 0


def _tell(found: Comparison, options: argparse.Namespace, written: Path | None) -> None:
    from orchestrator.render import compared

    if options.json:
        print(json.dumps(compared.data(found), indent=1))
        return
    compared.show(found, verbose=options.verbose, color=False if options.no_color else None)
    if written:
        print(f"\n{written}")


def _written(found: Comparison, a: Report, b: Report, parent: Path) -> Path:
    """The folder with the comparison as a page, as Markdown and as data."""
    from orchestrator import folder, redact
    from orchestrator.render import compare_page, compared

    made = folder.fresh(parent, f"compare-{a.run.name}", redact.in_text)
    made.write_clean("compare.html", compare_page.render(found, a, b))
    made.write("compare.md", compared.as_markdown(found))
    made.write_json("compare.json", compared.data(found))
    return made.path
