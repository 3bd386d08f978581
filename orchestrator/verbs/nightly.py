"""`profrun nightly`: the options, and what is said of the entries and of a night."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import arguments
from orchestrator.errors import PreflightError, ProfrunError, UsageError

if TYPE_CHECKING:
    from orchestrator.nights.words import Nightly, Told

DEFAULT_PLAN = "night"
_BUDGET_S = 4 * 3600.0


def options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = (
        "profrun nightly install NAME --at 02:30 [PLAN] [options] -- COMMAND [ARG...]\n"
        "       profrun nightly print NAME --at 02:30 [--systemd | --slurm OPTIONS] [PLAN] [options] -- COMMAND\n"
        "       profrun nightly list [NAME] | remove NAME | run NAME | accept NAME [RUN]"
    )
    parser.add_argument(
        "what",
        choices=[*_DOES],
        metavar="|".join(_DOES),
        help="what to do; print keeps NAME as install does; run is what the entry calls",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the nightly, and of its reports")
    parser.add_argument(
        "more",
        nargs="?",
        metavar="PLAN",
        help=f"a file or a template's name (default: {DEFAULT_PLAN}); of accept: a run",
    )
    _entry_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (list and run)")
    parser.add_argument("-v", "--verbose", action="store_true", help="of run: its progress on stderr")
    return parser


def _entry_options(parser: argparse.ArgumentParser) -> None:
    own = parser.add_argument_group("install and print")
    own.add_argument("--at", metavar="TIME", help="02:30, 'mon-fri 02:30', or cron's five fields; this machine's time")
    own.add_argument(
        "--jitter", type=_minutes, default="15m", metavar="TIME",
        help="hosts begin up to so much after a time of day, each by the same minutes always (default: 15m); 0: none",
    )  # fmt: skip
    own.add_argument(
        "--budget", type=arguments.time_text, metavar="TIME", help="for the passes of a night (default: 4h)"
    )
    own.add_argument("-o", "--output", type=Path, metavar="DIR", help="parent of the report folders")
    own.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a value of the plan")
    own.add_argument("--env", action="append", default=[], metavar="NAME", help="also keep this variable as it is now")
    own.add_argument("--hook", metavar="CMD", help="a shell command that gets each night as JSON on its stdin")
    own.add_argument(
        "--max-raw", type=_size, default="20GB", metavar="SIZE", help="for the raw files of all nights (default: 20GB)"
    )
    own.add_argument(
        "--wait",
        type=arguments.wait_s,
        default="2h",
        metavar="TIME",
        help="for other runs of this machine (default: 2h)",
    )
    which = own.add_mutually_exclusive_group()
    which.add_argument(
        "--systemd", action="store_true", help="print a service and a timer instead of a crontab's entry"
    )
    which.add_argument("--slurm", nargs="?", const="", metavar="OPTIONS", help="print an entry of Slurm's scrontab")


def _minutes(text: str) -> int:
    from orchestrator.units import duration

    try:
        return round(duration(text) / 60)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _size(text: str) -> int:
    from orchestrator.units import size

    try:
        return size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def run(options: argparse.Namespace) -> int:
    """Run a plan every night, and say when the program has become slower: make, list, remove and run the entry."""
    takes_command = options.what in ("install", "print")
    if options.command and not takes_command:
        raise UsageError(f"nightly {options.what} takes no command", "there is something after --", _USAGE)
    if options.name is None and options.what != "list":
        raise UsageError(f"nightly {options.what} needs a NAME", "", _USAGE)
    if options.more and not (takes_command or options.what == "accept"):
        raise UsageError(f"too much: {options.more}", "", _USAGE)
    if (options.systemd or options.slurm is not None) and options.what != "print":
        raise UsageError("--systemd and --slurm only print", "profrun changes nothing there", "profrun nightly print")
    try:
        return _DOES[options.what](options)
    except OSError as error:
        why = f"{error.filename or 'the state folder'}: {error.strerror or error}"
        raise PreflightError("the state of a nightly can't be kept", why, "set XDG_STATE_HOME to a folder") from error


_USAGE = "profrun nightly --help"


# ---------------------------------------------------------------- the entry


def _made(options: argparse.Namespace) -> Nightly:
    """The nightly that is asked for, with everything that it needs looked up now: at night nobody is there to ask."""
    from orchestrator import nightly as room
    from orchestrator import resolve
    from orchestrator.nights import kept, schedule
    from orchestrator.nights.words import Nightly
    from orchestrator.plan import plain_name
    from orchestrator.planfile import plans
    from orchestrator.units import duration

    how = "profrun nightly {what} {name} --at {at} -- {command}".format
    said = {"what": options.what, "command": shlex.join(options.command) or "python train.py"}
    try:
        name = plain_name(options.name)
    except ValueError as error:
        fitting = re.sub(r"[^A-Za-z0-9_.-]+", "-", options.name).strip("-.") or "train"
        raise UsageError(f"NAME: {error}", "", how(name=fitting, at="02:30", **said)) from error
    if name.endswith(".night"):
        other = how(name=name.removesuffix(".night"), at=options.at or "02:30", **said)
        raise UsageError(f"NAME: {name} ends in .night", "so do the files of newest nights", other)
    if not options.at:
        raise UsageError("--at is missing", "when the night begins", how(name=name, at="02:30", **said))
    try:
        when = schedule.read(options.at, platform.node(), options.jitter)
    except ValueError as error:
        raise UsageError(f"--at: {error}", "", how(name=name, at="02:30", **said)) from error
    source = options.more or DEFAULT_PLAN
    found = plans.find(source)
    plan = plans.load(found, options.set)
    command = tuple(options.command) or tuple(plan.target.command or ())
    if not command:
        raise UsageError("there is no program to run", "", f"profrun nightly {options.what} {name} --at 02:30 -- CMD")
    resolve.resolve(plan, command)  # a program that is not there is told now
    budget_s = plan.budget if isinstance(plan.budget, float) else _BUDGET_S
    budget_s = duration(options.budget) if options.budget else budget_s
    made = Nightly(
        name=name,
        fields=when.fields,
        later_min=when.later_min,
        plan=str(found.absolute()) if "/" in source or found.name == source else source,
        command=command,
        cwd=str(Path.cwd()),
        output=str((options.output or Path(plan.report.directory)).absolute()),
        environment=kept.taken_over(os.environ, tuple(_asked(options.env))),
        python=sys.executable,
        sets=tuple(options.set),
        budget_s=budget_s,
        budget_given=options.budget is not None,
        hook=options.hook,
        most_raw_bytes=options.max_raw,
        wait_s=options.wait,
    )
    ends_s = room.ends_after_s(room.plan_of(made), budget_s) + made.wait_s
    return Nightly(**{**vars(made), "end_after_s": ends_s if math.isfinite(ends_s) else None})


def _asked(names: list[str]) -> Iterator[str]:
    for name in names:
        if name not in os.environ:
            raise UsageError(f"--env {name}: there is no such variable now", "", f"export {name}=...")
        yield name


def _line(made: Nightly) -> tuple[str, str]:
    """(what the entry says of itself, the crontab's line)."""
    from orchestrator.nights import crontab, kept, schedule

    says = schedule.Schedule(made.fields, made.later_min).says()
    return (
        f"{says}; to take it out: profrun nightly remove {made.name}",
        crontab.entry(" ".join(made.fields), shlex.join(kept.in_bare_environment(made))),
    )


def _install(options: argparse.Namespace) -> int:
    from orchestrator.nights import crontab, kept

    made = _made(options)
    about, line = _line(made)
    with crontab.held():
        table = crontab.read(kept.home())
        new = crontab.with_block(table, made.name, crontab.block(made.name, about, line))
        kept.keep(made)
        _change(table, new)
    _tell_made(made)
    if trouble := crontab.daemon_trouble():
        _say(trouble)
    print(line)
    return 0


def _change(table: bytes, new: bytes) -> None:
    """Whoever calls holds the crontab."""
    from orchestrator.nights import crontab, kept

    if copy := crontab.copied(table, kept.home()):
        _say(f"your crontab as it was: {copy}")
    crontab.unchanged(table, kept.home())
    crontab.write(new, kept.home())


def _tell_made(made: Nightly) -> None:
    from orchestrator import redact
    from orchestrator.nights import kept, schedule
    from orchestrator.units import show_duration

    says = schedule.Schedule(made.fields, made.later_min).says()
    following = schedule.next_after(made.fields, datetime.now())
    _say(f"{made.name}: {says}" + (f", next on {following:%Y-%m-%d %H:%M}" if following else ": never"))
    _say(f"  {shlex.join(redact.argv(made.command))}, in {made.cwd}; plan {made.plan}; reports in {made.output}")
    ends = f"; ended in any case after {show_duration(made.end_after_s)}" if made.end_after_s else ""
    _say(f"  its passes may take {show_duration(made.budget_s)}{ends}; kept in {kept.path_of(made.name)}")
    more = sorted(made.environment.keys() - {"PATH"})
    _say(f"  of this shell's environment it gets PATH{''.join(f', {name}' for name in more)}; --env NAME adds to that")


def _print(options: argparse.Namespace) -> int:
    """The entry refers to what is kept of the nightly: that is written, and no crontab is touched."""
    from orchestrator.nights import crontab, kept, scrontab, systemd

    made = _made(options)
    if made.name in _installed():
        why = "what is printed refers to what is kept of it, so that your crontab's entry would run something else"
        raise UsageError(f"{made.name} is in your crontab", why, f"another name, or profrun nightly remove {made.name}")
    about, line = _line(made)
    if options.systemd:
        text = systemd.units(made, kept.command(made), kept.own_variables(), kept.KILL_AFTER_S)
    elif options.slurm is not None:
        text = scrontab.entry(made, kept.command(made), kept.own_variables(), options.slurm)
    else:
        text = crontab.block(made.name, about, line).decode("utf-8", "surrogateescape")
    kept.keep(made)
    _tell_made(made)
    print(text, end="")
    return 0


def _installed() -> list[str]:
    """The nightlies in the crontab; none where there is no cron."""
    from orchestrator.nights import crontab, kept

    try:
        return crontab.names(crontab.read(kept.home()))
    except PreflightError:
        return []


def _remove(options: argparse.Namespace) -> int:
    from orchestrator.nights import crontab, kept

    name = options.name
    try:
        with crontab.held():
            table = crontab.read(kept.home())
            new = crontab.without_block(table, name)
            if new != table:
                _change(table, new)
    except crontab.NoCron:
        kept.load(name)
        _say(f"there is no cron here: take the timer or entry of {name} that was printed out by hand")
        _say(f"  then delete what that refers to: {shlex.quote(str(kept.path_of(name)))}")
        return 0
    if not kept.forget(name) and new == table:
        known = ", ".join(kept.every()) or "no nightly is installed"
        raise UsageError(f"there is no nightly {name}", known, "profrun nightly list")
    by_hand = "; it was not in your crontab: take a timer or entry that was printed out by hand" if new == table else ""
    _say(f"{name} is no longer run{by_hand}; its reports stay")
    return 0


def _list(options: argparse.Namespace) -> int:
    rows = list(_rows(options.name))
    if options.json:
        print(json.dumps(rows, indent=1))
        return 0
    if not rows:
        _say("there is no nightly; next: profrun nightly install NAME --at 02:30 -- COMMAND")
    for row in rows:
        print(f"{row['name']}: {row['says']}; {row['command']}")
        print(f"  next: {row['next'] or row['why_not']}")
        print(f"  last: {row['last']}" + (f"\n        {row['report']}" if row["report"] else ""))
    return 0


def _rows(only: str | None) -> Iterator[dict[str, Any]]:
    from orchestrator import redact
    from orchestrator.nights import crontab, kept, schedule

    try:
        table, why_none = crontab.read(kept.home()), ""
    except ProfrunError as error:
        table, why_none = b"", error.what
    installed = crontab.names(table)
    daemon = crontab.daemon_trouble() if installed else None
    for name in (name for name in kept.every() if only in (None, name)):
        made, newest = kept.load(name), kept.newest(name)
        following = schedule.next_after(made.fields, datetime.now())
        not_there = "" if name in installed else "it is not in your crontab (taken out by hand, or printed for a timer)"
        why_not = why_none or not_there or daemon or ("" if following else "never: there is no such day")
        yield {
            "name": name,
            "says": schedule.Schedule(made.fields, made.later_min).says(),
            "command": shlex.join(redact.argv(made.command)),
            "next": f"{following:%Y-%m-%d %H:%M}" if following and not why_not else None,
            "why_not": why_not or None,
            "last": _last(newest),
            "verdict": newest.get("verdict"),
            "report": newest.get("report"),
        }


def _last(newest: dict[str, Any]) -> str:
    from orchestrator.nights import kept

    if not newest:
        return "no night since it was installed or printed"
    since = newest.get("started_at")
    if newest.get("state") == "running":
        return f"{since}, under way" if kept.is_under_way(newest) else f"{since}, cut off: it has never ended"
    return f"{since}, {newest.get('sentence')}"


# ---------------------------------------------------------------- a night


def _night(options: argparse.Namespace) -> int:
    """Quiet when all is well: cron mails whatever is said."""
    from orchestrator import nightly as room
    from orchestrator.nights import kept, note

    nightly = kept.load(options.name)
    clean = kept.bare(os.environ, nightly)
    os.environ.clear()
    os.environ.update(clean)
    told, troubles = room.run(nightly, _console(options.verbose))
    lines = list(_worth_a_word(told, troubles))
    if lines:
        _say(f"nightly {told.name}: {'; '.join(lines)}; see {told.report}/night.md")
    if options.json:
        print(note.as_json(told))
    elif sys.stdout.isatty():
        print(f"{note.sentence(told)}\n{told.report}")
    return told.exit_code


def _console(verbose: bool) -> Any:
    from io import StringIO

    from orchestrator.render.console import Console

    return Console() if verbose else Console(quiet=True, color=False, stream=StringIO())


def _worth_a_word(told: Told, troubles: list[str]) -> Iterator[str]:
    from orchestrator.nights import note

    if told.exit_code or told.judgement.verdict != "accepted":
        yield note.sentence(told)
        if told.run_reason and told.run_reason not in note.sentence(told):
            yield told.run_reason
    if told.starts_anew:
        yield f"it starts anew, as this has changed: {', '.join(told.starts_anew)}"
    if told.cut:
        yield told.cut.text()
    yield from troubles


def _accept(options: argparse.Namespace) -> int:
    from orchestrator import nightly as room
    from orchestrator.nights import kept

    nightly = kept.load(options.name)
    os.environ.update(nightly.environment)
    run_id = None if options.more is None else Path(options.more).name
    for accepted in room.accept(nightly, run_id):
        print(accepted)
    _say(f"{nightly.name}: from the first of these on, this is what is usual")
    return 0


def _say(text: str) -> None:
    from orchestrator.render.view import visible

    print(f"profrun: {visible(text)}", file=sys.stderr, flush=True)


_DOES: dict[str, Callable[[argparse.Namespace], int]] = {
    "install": _install, "print": _print, "list": _list, "remove": _remove, "run": _night, "accept": _accept,
}  # fmt: skip
