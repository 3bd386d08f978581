"""`profrun history`: the runs so far, how they went, and when that changed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from orchestrator import arguments
from orchestrator.errors import UsageError

REBUILD = "rebuild"
LAST = 100


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun history [NAME] [options]\n       profrun history rebuild [DIR] [--prune]"
    parser.add_argument("what", nargs="?", metavar="NAME", help="the runs of that name; without: all names")
    parser.add_argument("directory", nargs="?", type=Path, metavar="DIR", help="rebuild: from the reports in it")
    parser.add_argument(
        "--metric", metavar="M", help="of which figure (default: step_s, or wall_s where there are no steps)"
    )
    parser.add_argument("--last", type=_count, default=LAST, metavar="N", help=f"the newest N runs; else {LAST}")
    parser.add_argument("--html", type=Path, metavar="FILE", help="a page of the same")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="the folder of the reports (default: reports)")
    parser.add_argument(
        "--db", metavar="URL", help="another database: postgresql://..., or a file; else PROFRUN_HISTORY"
    )
    parser.add_argument("--prune", action="store_true", help="rebuild: forget runs whose folder is gone")
    arguments.color_option(parser)
    return parser


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of runs: 1 or more")


def run(options: argparse.Namespace) -> int:
    """The runs so far: their names, or of one name the trend and when it changed."""
    if options.what == REBUILD:
        return _rebuild(options)
    _only_for_rebuild(options)
    return _names(options) if options.what is None else _one(options)


def _only_for_rebuild(options: argparse.Namespace) -> None:
    for given, name in ((options.directory, "DIR"), (options.prune, "--prune")):
        if given:
            raise UsageError(f"{name} goes with `history rebuild` only", "", "profrun history --help")


def _where(options: argparse.Namespace) -> Any:
    return options.db or options.output


def _names(options: argparse.Namespace) -> int:
    from orchestrator import history

    for given, name in ((options.metric, "--metric"), (options.html, "--html")):
        if given:
            raise UsageError(f"{name} is for the runs of one name", "", "profrun history NAME")
    named, total = history.overview(_where(options))
    if options.json:
        print(json.dumps([_named(one) for one in named], indent=1))
        return 0
    shown = history.shown(_where(options))
    if not named:
        print(f"no runs yet in {shown}")
        print("a run is remembered when it ends; for runs of before: profrun history rebuild", file=sys.stderr)
        return 0
    from orchestrator.historic import shown as terminal

    terminal.show_names(named, total, shown, terminal.console(False if options.no_color else None))
    return 0


def _named(one: Any) -> dict[str, Any]:
    from dataclasses import asdict

    last = one.newest[-1].night
    metrics = {name: asdict(metric) for name, metric in last.metrics.items()}
    same = ("run_id", "started_at", "status", "exit_code", "verdict", "path", "gone", "fingerprint")
    return {"name": one.name, "runs": one.runs, "newest": {key: getattr(last, key) for key in same}, "metrics": metrics}


def _one(options: argparse.Namespace) -> int:
    from orchestrator import history
    from orchestrator.historic import trend

    found = history.series(options.what, options.metric, options.last, _where(options))
    told = trend.trend(found.name, found.metric, found.total, found.rows)
    if options.html:
        _page(options.html, told, found)
    if options.json:
        print(json.dumps(trend.as_data(told), indent=1))
    elif not options.html:
        from orchestrator.historic import shown as terminal

        terminal.show_trend(told, found.rows, terminal.console(False if options.no_color else None))
    return 0


def _page(file: Path, told: Any, found: Any) -> None:
    from orchestrator import folder
    from orchestrator.historic import page

    try:
        folder.write_atomic(file.absolute(), page.render(told, found.rows).encode())
    except OSError as error:
        raise UsageError(f"{file} can't be written", error.strerror or str(error), "name another file") from error
    print(file)


def _rebuild(options: argparse.Namespace) -> int:
    from orchestrator import history

    if options.output and options.directory:
        raise UsageError("the folder is given twice", f"{options.directory} and -o {options.output}", "leave one out")
    done = history.rebuild(options.directory or options.output, options.db, options.prune, _tick())
    for name, why in done.damaged:
        print(f"profrun: {name} is left out: {why}", file=sys.stderr)
    if options.json:
        from dataclasses import asdict

        print(json.dumps(asdict(done), indent=1))
        return 0
    parts = ["1 run" if done.found == 1 else f"{done.found} runs"]
    parts += [f"{n} {word}" for n, word in (
        (done.gone, "whose folder is gone marked so"), (done.forgotten, "whose folder is gone forgotten"),
        (done.imported, "reports of imported files left out"), (len(done.damaged), "damaged folders left out"),
    ) if n]  # fmt: skip
    print(f"{done.shown}: {', '.join(parts)}")
    return 0


def _tick() -> Any:
    """On a terminal, how far it is."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        return None

    def tick(done: int, of: int) -> None:
        print(f"\rreading reports: {done} of {of}", end="\n" if done == of else "", file=sys.stderr, flush=True)

    return tick
