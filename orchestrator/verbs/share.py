"""`profrun share`: the options, and what is said of the archive."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from orchestrator import arguments
from orchestrator.errors import UsageError


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    arguments.run_argument(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the archive (default: the run's id and .tar.zst, here)"
    )
    parser.add_argument(
        "--with",
        dest="extras",
        action="append",
        default=[],
        metavar="X[,Y]",
        help="raw: the tools' own files, as far as they are text; output: what the program printed (in both a secret "
        "may be left); names: of people, hosts and places, as they stand",
    )
    parser.add_argument(
        "--hide", action="append", default=[], metavar="TEXT", help="take this out, too; may be repeated"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Pack a report for somebody else, without what may be secret or tells of people and places."""
    from orchestrator import share
    from orchestrator.render.view import visible
    from orchestrator.units import show_bytes

    extras = {word for text in options.extras for word in text.split(",") if word}
    if unknown := sorted(extras - {*share.EXTRAS}):
        raise UsageError(f"--with {unknown[0]}: there is no such part", "", f"choose from {', '.join(share.EXTRAS)}")
    if "" in options.hide:
        raise UsageError('--hide "" hides nothing', "", "name the text that is to be taken out")
    done = share.share(share.Request(options.run, options.output, frozenset(extras), tuple(options.hide)))
    for line in done.told():
        print(f"profrun: {visible(line)}", file=sys.stderr)
    print(
        f"profrun: {show_bytes(done.bytes)}, with {share.ABOUT} that says the same; names of functions, files and "
        "arguments are in it: look before you pass it on",
        file=sys.stderr,
    )
    print(done.path)
    return 0
