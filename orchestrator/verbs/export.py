"""`profrun export`: the options, and where the files went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator import arguments


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    from orchestrator.exporting import FORMATS

    arguments.run_argument(parser)
    about = "; ".join(f"{name}: {text}" for name, text in FORMATS.items())
    parser.add_argument("--to", required=True, choices=[*FORMATS], help=about)
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="where to (default: exports/FORMAT in the report's folder)"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Write a report in the format of another program."""
    from orchestrator import exporting
    from orchestrator.errors import FolderError
    from orchestrator.render.view import visible
    from orchestrator.report import load

    place = options.output or options.run / "exports" / options.to

    def say(text: str) -> None:
        print(f"profrun: {visible(text)}", file=sys.stderr)

    try:
        written = exporting.export(load(options.run), options.to, place, say)
    except OSError as error:
        why = error.strerror or str(error)
        raise FolderError(f"{place} can't be written", why, "name another folder with -o DIR") from error
    for path in written:
        print(visible(str(path)))
    return 0
