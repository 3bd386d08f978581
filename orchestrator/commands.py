"""What each verb does, and the options it takes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator import __version__
from orchestrator.errors import EXIT_PREFLIGHT, UsageError
from orchestrator.model import Outcome

if TYPE_CHECKING:
    from orchestrator.plan import Plan


def run(words: list[str]) -> int:
    """Runs the command line `words` and gives back the exit status."""
    own, command = split(words)
    verb = own.pop(0) if own and own[0] in VERBS else "run"
    parser = PARSERS[verb](_Parser(prog=f"profrun {verb}", description=VERBS[verb].__doc__))
    if verb in TAKE_COMMAND and command is None:
        own, command = _bare_command(parser, own)
    options = parser.parse_args(own)
    if command is not None and verb not in TAKE_COMMAND:
        raise UsageError(f"profrun {verb} takes no command", "there is something after --", f"profrun {verb} --help")
    options.command = tuple(command or ())
    return VERBS[verb](options)


def split(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(profrun's own words, the command): at the first `--`; the command is None without one."""
    if "--" not in words:
        return list(words), None
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _bare_command(parser: argparse.ArgumentParser, words: list[str]) -> tuple[list[str], list[str] | None]:
    """Without `--` the command begins at the second word that is no option, and everything from there is its own."""
    seen, skip = 0, False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(word)
            skip = action is not None and action.nargs is None and action.const is None
        else:
            seen += 1
            if seen == 2:
                return words[:index], words[index:]
    return words, None


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours: one message, exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, "", f"{self.prog} --help")


# ---------------------------------------------------------------- run and check


def _run_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun [run] [PLAN] [options] [-- COMMAND [ARG...]]"
    parser.add_argument("plan", nargs="?", help="a plan file, or the name of a template; `auto` when left out")
    _plan_options(parser)
    parser.add_argument("--timeout", metavar="TIME", help="limit for each pass, such as 30m")
    parser.add_argument("--into", metavar="RUN", type=Path, help="add collectors to an existing report")
    parser.add_argument("--pid", type=int, action="append", metavar="PID", help="look at a process that runs")
    parser.add_argument("--duration", metavar="TIME", help="with --pid: for how long")
    parser.add_argument("--keep-going", action="store_true", help="go on after a first bare run that failed")
    parser.add_argument("--strict", action="store_true", help="warnings are failures")
    parser.add_argument("-n", "--dry-run", action="store_true", help="the same as `profrun check`")
    _output_options(parser)
    return parser


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="parent of the report folder")
    parser.add_argument("--name", help="name of the report")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a value of the plan")
    parser.add_argument("--only", action="append", default=[], metavar="X[,Y]", help="only these collectors")
    parser.add_argument("--skip", action="append", default=[], metavar="X[,Y]", help="all but these collectors")


def _output_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable result on stdout")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress, no output of the command")
    parser.add_argument("-v", "--verbose", action="store_true", help="the command's output in every pass")
    parser.add_argument("--no-color", action="store_true", help="no colour (NO_COLOR and TERM=dumb do the same)")


def run_plan(options: argparse.Namespace) -> int:
    """Run a plan against a command and write one report folder."""
    if options.dry_run:
        return check(options)
    from orchestrator import runner
    from orchestrator.render.console import Console
    from orchestrator.units import duration

    plan = _plan(options)
    outputs = (2, 2) if options.json else (1, 2)
    request = runner.Request(
        plan=plan,
        command=options.command,
        output=options.output,
        into=options.into.resolve() if options.into else None,
        keep_going=options.keep_going,
        strict=options.strict,
        show_all_output=options.verbose,
        outputs=None if options.quiet else outputs,
        pids=tuple(options.pid or ()),
        duration_s=duration(options.duration) if options.duration else None,
    )
    console = Console(quiet=options.quiet, color=False if options.no_color else None)
    report = runner.run(request, console)
    return _finish(report, options.json, console)


def _finish(report: Any, as_json: bool, console: Any) -> int:
    """The last words: the verdict on stderr, the report's path (or its summary) on stdout."""
    from orchestrator.report import summary

    console.end(report)
    print(json.dumps(_plain(summary(report)), indent=1) if as_json else report.folder, flush=True)
    outcome: Outcome = report.outcome
    return outcome.exit_code


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data, default=str))


def _plan(options: argparse.Namespace) -> Plan:
    """The plan that the options name, with their changes."""
    from orchestrator.planfile import plans

    sets = list(options.set)
    if options.name:
        sets.append(f"name={json.dumps(options.name)}")
    if getattr(options, "timeout", None):
        sets.append(f"target.timeout={options.timeout}")
    source = options.plan or _default_plan(options)
    plan = plans.load(plans.find(source, tuple(VERBS)), sets)
    if options.only or options.skip:
        plan = plans.select(plan, options.only, options.skip)
    return plan


def _default_plan(options: argparse.Namespace) -> str:
    into = getattr(options, "into", None)
    if into:
        return str(into / "plan.yaml")
    if not options.command and not getattr(options, "pid", None):
        raise UsageError(
            "there is nothing to run", "neither a plan nor a command is given", "profrun PLAN -- python train.py"
        )
    return "attach" if getattr(options, "pid", None) else "auto"


def check(options: argparse.Namespace) -> int:
    """Validate a plan, resolve it, print every command that would run; run nothing."""
    from orchestrator import dryrun
    from orchestrator.machine import Machine

    plan = _plan(options)
    machine = Machine(plan.tools)
    result = dryrun.dry_run(plan, options.command, machine, options.output)
    print(json.dumps(result.data(), indent=1) if options.json else result.text())
    return EXIT_PREFLIGHT if result.nothing_left else 0


def _check_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun check [PLAN] [options] [-- COMMAND [ARG...]]"
    parser.add_argument("plan", nargs="?", help="a plan file, or the name of a template; `auto` when left out")
    _plan_options(parser)
    parser.add_argument("--json", action="store_true", help="the same as data")
    return parser


# ---------------------------------------------------------------- the other verbs


def templates(options: argparse.Namespace) -> int:
    """List the templates, or print one with its explanations."""
    from orchestrator.planfile import plans

    if options.name:
        print(plans.find(options.name).read_text(), end="")
        return 0
    known = plans.templates()
    width = max(len(template.name) for template in known)
    for template in known:
        print(f"{template.name:{width}}  {template.description}")
    return 0


def _templates_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", nargs="?", help="print this template")
    return parser


def init(options: argparse.Namespace) -> int:
    """Copy a template to edit."""
    from orchestrator import folder
    from orchestrator.planfile import plans

    source = plans.find(options.name)
    target = options.output
    if target.exists():
        raise UsageError(f"{target} exists", "it is not overwritten", "name another file with -o")
    try:
        folder.write_atomic(target, plans.template_text(source).encode())
    except OSError as error:
        raise UsageError(
            f"{target} can't be written", error.strerror or str(error), "name another file with -o"
        ) from error
    print(target)
    return 0


def _init_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", help="the template")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("plan.yaml"), metavar="FILE", help="default: plan.yaml"
    )
    return parser


def rebuild(options: argparse.Namespace) -> int:
    """Rebuild a report's tables, findings and pages from its raw/ folder and plan."""
    from orchestrator import folder, redact, runner
    from orchestrator.planfile import plans
    from orchestrator.render.console import Console

    path = options.run.resolve()
    runner.read_raw(path)
    plan = plans.load(path / "plan.yaml")
    console = Console(quiet=options.quiet)
    report = runner.rebuild(folder.Folder(path, redact.value), plan, console)
    _finish(report, options.json, console)
    return 0  # it could be rebuilt, whatever the run had ended in


def _rebuild_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("run", type=Path, help="the report folder")
    _output_options(parser)
    return parser


def doctor(options: argparse.Namespace) -> int:
    """What works on this machine, proven by trying, and the fix for what does not."""
    from orchestrator import doctor as room
    from orchestrator.machine import Machine

    found = room.doctor(Machine())
    print(room.as_json(found) if options.json else room.as_text(found))
    return 0


def _doctor_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("--json", action="store_true", help="the same as data")
    return parser


def schema(options: argparse.Namespace) -> int:
    """Print the JSON Schema of the plan, from which editors complete, or of summary.json."""
    if options.of == "summary":
        from orchestrator.report import json_schema
    else:
        from orchestrator.planfile.plans import json_schema
    print(json.dumps(json_schema(), indent=2))
    return 0


def _schema_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("of", nargs="?", choices=["plan", "summary"], default="plan", help="default: plan")
    return parser


def completion(options: argparse.Namespace) -> int:
    """Print the completion script for a shell, such as: source <(profrun completion bash)"""
    import shtab

    print(shtab.complete(_everything(), options.shell))
    return 0


def _completion_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])
    return parser


def _everything() -> argparse.ArgumentParser:
    """One parser with all verbs, for completion only."""
    parser = argparse.ArgumentParser(prog="profrun")
    verbs = parser.add_subparsers()
    for name, verb in VERBS.items():
        PARSERS[name](verbs.add_parser(name, help=verb.__doc__))
    return parser


VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": run_plan,
    "check": check,
    "templates": templates,
    "init": init,
    "doctor": doctor,
    "report": rebuild,
    "schema": schema,
    "completion": completion,
}
PARSERS: dict[str, Callable[[argparse.ArgumentParser], argparse.ArgumentParser]] = {
    "run": _run_options,
    "check": _check_options,
    "templates": _templates_options,
    "init": _init_options,
    "doctor": _doctor_options,
    "report": _rebuild_options,
    "schema": _schema_options,
    "completion": _completion_options,
}
TAKE_COMMAND = ("run", "check")


def bug_report() -> str:
    """Writes what is needed to mend a bug into a file, and says where it is."""
    text = (
        f"profrun {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"arguments: {len(sys.argv) - 1}\n\n{traceback.format_exc()}"
    )
    handle, path = tempfile.mkstemp(prefix="profrun-bug-", suffix=".log")
    with os.fdopen(handle, "w") as file:
        file.write(text)
    last = traceback.format_exc().strip().splitlines()[-1]
    return f"profrun: this is a bug in profrun: {last}\n  next: report it with {path}"
