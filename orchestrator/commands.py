"""What each verb does, and the options it takes."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from orchestrator import __version__, arguments
from orchestrator.errors import EXIT_NOT_EXECUTABLE, EXIT_PREFLIGHT, FolderError, PreflightError, StartError, UsageError
from orchestrator.model import Outcome
from orchestrator.verbs import compare, export, history, nightly, share

if TYPE_CHECKING:
    from orchestrator.doctor import Verdict
    from orchestrator.machine import Machine
    from orchestrator.plan import Plan
    from orchestrator.render.console import Console
    from orchestrator.report import Report


def run(words: list[str]) -> int:
    """Runs the command line `words` and gives back the exit status."""
    own, command = split(words)
    own = _waiting(own)
    verb = own.pop(0) if own and own[0] in VERBS else "run"
    if verb == "import" and command is not None:  # files all the same, whose names may begin with a dash
        own, command = [*own, *(f"./{word}" if word.startswith("-") else word for word in command)], None
    parser = PARSERS[verb](_Parser(prog=f"profrun {verb}", description=VERBS[verb].__doc__, allow_abbrev=False))
    if verb in TAKE_PLAN and own and {"-h", "--help"} & {*own[1:]}:
        _explain(parser, verb, own[0])
    if verb in TAKE_COMMAND and command is None:
        own, command = _bare_command(parser, own, 1 if verb == "arm" else 2)
    try:
        options = parser.parse_intermixed_args(own) if verb in INTERMIXED else parser.parse_args(own)
    except UsageError:
        if verb in TAKE_PLAN and own and not own[0].startswith("-"):
            _find(own[0], [*own[1:], *(command or ())])  # `profrun sh -c ...`: the options were meant for the program
        raise
    if command is not None and verb not in MAY_TAKE_COMMAND:
        raise UsageError(f"{verb} takes no command", "there is something after --", f"profrun {verb} --help")
    options.command, options.own = tuple(command or ()), tuple(own)
    return VERBS[verb](options)


def _explain(parser: argparse.ArgumentParser, verb: str, plan: str) -> None:
    """The help of a verb with a template's name is about that template, too."""
    from orchestrator.planfile import plans

    found = {template.name: template.description for template in plans.templates()}
    if plan in found:
        at = "--pid PID" if plan in ATTACHES else "-- COMMAND [ARG...]"
        parser.usage = f"profrun {'' if verb == 'run' else verb + ' '}{plan} [options] {at}"
        parser.description = f"{found[plan]} (profrun templates {plan}: all of it, explained)"


def split(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """(profrun's own words, the command): at the first `--`; the command is None without one."""
    if "--" not in words:
        return list(words), None
    at = list(words).index("--")
    return list(words[:at]), list(words[at + 1 :])


def _waiting(words: list[str]) -> list[str]:
    """`--wait` with its time in the same word: without one it must not take the plan's name for it. `--slurm` with its
    options, which look like ours."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--slurm":
            joined[-1] = f"--slurm={word}"
        elif joined and joined[-1] == "--wait" and _is_time(word):
            joined[-1] = f"--wait={word}"
        else:
            joined.append(word)
    return [f"--wait={arguments.FOREVER}" if word == "--wait" else word for word in joined]


def _is_time(text: str) -> bool:
    return bool(re.fullmatch(r"[\d.]+\s*(ms|s|m|min|h|d)?", text))


def _bare_command(parser: argparse.ArgumentParser, words: list[str], place: int) -> tuple[list[str], list[str] | None]:
    """Without `--` the command begins at the word that is no option and has this place among those, after the plan
    where the verb takes one; everything from there is its own."""
    seen, skip = 0, False
    for index, word in enumerate(words):
        if skip:
            skip = False
        elif word.startswith("-") and word != "-":
            action = parser._option_string_actions.get(word)
            skip = action is not None and action.nargs is None and action.const is None
        else:
            seen += 1
            if seen == place:
                return words[:index], words[index:]
    return words, None


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are ours: one message, exit status 2."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(_in_our_words(message), "", f"{self.prog} --help")


_WORDS = (
    (r"^argument [^:]*\|[^:]*: ", ""),
    (r"^argument ([^:]+): ", r"\1: "),
    (r"^unrecognized arguments: (-.*)", r"unknown option \1"),
    (r"^unrecognized arguments: (.*)", r"too much: \1"),
    (r"^the following arguments are required: (.*\|.*)", r"say what to do: \1"),
    (r"^the following arguments are required: (.*)", r"\1 is missing"),
    (r"expected one argument", "needs a value"),
    (r"invalid choice: (.*) \(choose from (.*)\)", r"\1 is not possible here; choose from \2"),
)
"""What argparse says, as patterns, and how profrun says it."""


def _in_our_words(message: str) -> str:
    for pattern, words in _WORDS:
        message = re.sub(pattern, words, message)
    return message


# ---------------------------------------------------------------- run and check


def _run_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun [run] [PLAN] [options] [-- COMMAND [ARG...]]"
    _plan_options(parser)
    parser.add_argument(
        "--into", metavar="RUN", type=arguments.maybe_report, help="add to an existing report; its plan is the default"
    )
    parser.add_argument(
        "--verify-repeatable",
        action="store_true",
        help="run the bare program twice and name the first step that differs; no collector runs",
    )
    parser.add_argument("--keep-going", action="store_true", help="go on after a first bare run that failed")
    parser.add_argument("--strict", action="store_true", help="warnings are failures")
    parser.add_argument(
        "--wait",
        metavar="TIME",
        type=arguments.wait_s,
        help="wait for another run that holds the same GPU or CPU settings; without a time: as long as it takes",
    )
    parser.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help='run as a batch job of Slurm with these options of sbatch, such as "--nodes 2 --ntasks-per-node 4"',
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="the same as `profrun check`; with --slurm: print the batch script"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="the command's output in every pass")
    arguments.shown_options(parser, "no progress, no output of the command")
    return parser


def _plan_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "plan",
        nargs="?",
        metavar="PLAN",
        help="a file (with a slash, or ending in .yaml), or a template's name; left out: auto, or attach with --pid",
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="parent of the report folder")
    parser.add_argument("--name", help="name of the report")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a value of the plan")
    parser.add_argument("--only", action="append", default=[], metavar="X[,Y]", help="only these collectors")
    parser.add_argument("--skip", action="append", default=[], metavar="X[,Y]", help="all but these collectors")
    _auto_passes_option(parser)
    parser.add_argument("--timeout", metavar="TIME", type=arguments.time_text, help="limit for each pass, such as 30m")
    parser.add_argument(
        "--pid",
        type=arguments.pid,
        action="append",
        default=[],
        help="look at a process that runs already; may be repeated",
    )
    parser.add_argument(
        "--duration",
        metavar="TIME",
        type=arguments.time_text,
        help="with --pid: how long each pass looks (default: until the process ends)",
    )


def _auto_passes_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--auto-passes", action="store_true", help="split what the plan has `together` and can't share one pass"
    )


def run_plan(options: argparse.Namespace) -> int:
    """Run a plan against a command and write one report folder."""
    if options.slurm is not None:
        return _submit(options)
    if options.dry_run:
        return check(options)
    from orchestrator import runner

    plan = _plan(options)
    _need_program(plan, options)
    outputs = (2, 2) if options.json else (1, 2)
    request = runner.Request(
        plan=plan,
        command=options.command,
        output=options.output,
        into=options.into.resolve() if options.into else None,
        keep_going=options.keep_going,
        verify_repeatable=options.verify_repeatable,
        strict=options.strict,
        show_all_output=options.verbose,
        outputs=None if options.quiet else outputs,
        pids=tuple(options.pid),
        duration_s=_duration_s(options),
        wait_s=options.wait,
    )
    console = arguments.console(options)
    report = runner.run(request, console)
    _finish(report, options, console)
    if "GITHUB_STEP_SUMMARY" in os.environ:
        from orchestrator.exporting import github

        github.tell(report)
    outcome: Outcome = report.outcome
    return outcome.exit_code


def _submit(options: argparse.Namespace) -> int:
    """The run as a batch job, or the script that would be submitted."""
    from orchestrator.launchers import submit

    plan = _plan(options)
    if options.pid:
        why = "the job starts the program, and --pid looks at one that runs on this host"
        raise UsageError("--slurm and --pid exclude each other", why, "leave one of them out")
    _need_program(plan, options)
    job = submit.Job(
        words=tuple(_for_the_job(options.own)),
        command=options.command,
        parent=(options.output or Path(plan.report.directory)).absolute(),
        options=submit.options_of(options.slurm),
        plan=plan,
        say=(lambda text: None)
        if options.quiet
        else lambda text: print(f"profrun: {text}", file=sys.stderr, flush=True),
    )
    if options.dry_run:
        print(job.script().rstrip())
        return 0
    return job.run()


def _for_the_job(own: Sequence[str]) -> Iterator[str]:
    """Our own words as the job is to have them: it is submitted, and not a dry run. Short flags may share a word."""
    for word in own:
        if re.fullmatch(r"-[nqv]+", word):
            word = word.replace("n", "")
        if word not in ("-", "--dry-run") and not word.startswith("--slurm="):
            yield word


def _need_program(plan: Plan, options: argparse.Namespace) -> None:
    if not (options.command or plan.target.command or options.pid):
        slurm = f" --slurm {shlex.quote(options.slurm)}" if options.slurm is not None else ""
        into = f" --into {shlex.quote(str(options.into))}" if options.into else ""
        why = "neither the command line nor the plan's target.command names one"
        how = f"profrun {options.plan or ''}{into}{slurm} -- python train.py"
        raise UsageError("there is no program to run", why, " ".join(how.split()))


def _finish(report: Report, options: argparse.Namespace, console: Console, *, rebuilt: bool = False) -> None:
    """The last words: the verdict on stderr, the report's path (or its summary) on stdout."""
    from orchestrator.report import summary

    console.end(report, rebuilt=rebuilt)
    print(json.dumps(_plain(summary(report)), indent=1) if options.json else report.folder, flush=True)


def _duration_s(options: argparse.Namespace) -> float | None:
    from orchestrator.units import duration

    return duration(options.duration) if options.duration else None


def _plain(data: Any) -> Any:
    return json.loads(json.dumps(data, default=str))


def _plan(options: argparse.Namespace) -> Plan:
    """The plan that the options name, with their changes."""
    from orchestrator.planfile import plans

    _check_target(options)
    source = options.plan or _default_plan(options)
    sets = [*options.set, *_own_sets(options)]
    plan = plans.load(_find(source, options.command), sets, auto_passes=options.auto_passes)
    if not options.plan and getattr(options, "into", None):
        plan = plans.completed(plan, options.only)
    if options.only or options.skip:
        plan = plans.select(plan, options.only, options.skip)
        if not getattr(options, "into", None):
            plans.check_needs(plan)
    return plan


def _own_sets(options: argparse.Namespace) -> Iterator[str]:
    """The options that stand for a --set."""
    from orchestrator.plan import plain_name

    if options.name is not None:
        try:
            yield f"name={json.dumps(plain_name(options.name))}"
        except ValueError as error:
            raise UsageError(f"--name: {error}") from error
    if options.timeout:
        yield f"target.timeout={options.timeout}"


def _check_target(options: argparse.Namespace) -> None:
    """Either a command is started or a process is looked at."""
    if options.pid and options.command:
        why = "--pid looks at a process that runs already, and the command would have to be started"
        raise UsageError("--pid and a command exclude each other", why, "leave one of them out")
    if options.duration and not options.pid:
        instead = "for a part of a run: --set 'window={after: 60s, for: 20s}'"
        raise UsageError("--duration needs --pid", "a program that profrun starts runs to its end", instead)
    if options.plan in ATTACHES and not (options.pid or options.command):
        how = f"profrun {options.plan} --pid PID" + (" --duration 30s" if options.plan != "hang" else "")
        raise UsageError(f"{options.plan} needs the process to look at", "", how)


def _find(name: str, command: Sequence[str]) -> Path:
    """The plan's file. Raises UsageError, also where a command's program stands in its place: -- was forgotten."""
    from orchestrator.planfile import plans

    try:
        path = plans.find(name, tuple(VERBS))
    except UsageError:
        _refuse_program(name, command)
        raise
    if path.suffix.lower() not in (".yaml", ".yml"):
        _refuse_program(name, command)
    return path


def _refuse_program(name: str, command: Sequence[str]) -> None:
    if name == "restore":
        raise UsageError("restore is a part of env", "", "profrun env restore")
    by = "python" if name.endswith(".py") else "sh"
    if name.endswith((".py", ".sh")) and not Path(name).exists():
        why = "and a program stands after --"
        raise UsageError(f"there is no file {name} here", why, f"profrun -- {shlex.join((by, name, *command))}")
    can_run = os.access(name, os.X_OK)
    if Path(name).is_file() and (can_run or name.endswith((".py", ".sh"))):
        start = () if can_run else (by,)
    elif "/" not in name and shutil.which(name):
        start = ()
    else:
        return
    meant = shlex.join((*start, name, *command))
    raise UsageError(f"{name} is a program, not a plan", "the command stands after --", f"profrun -- {meant}")


def _default_plan(options: argparse.Namespace) -> str:
    into = getattr(options, "into", None)
    if into and not (into / "plan.yaml").exists():
        what = "that report has no plan: it was imported" if (into / "raw" / "run.json").exists() else "no report there"
        raise UsageError(f"--into {into}: {what}", "", "name the report folder of a run")
    if into:
        return str(into / "plan.yaml")
    if not options.command and not options.pid:
        raise UsageError(
            "there is nothing to run", "neither a plan nor a command is given", "profrun PLAN -- python train.py"
        )
    return "attach" if options.pid else "auto"


def check(options: argparse.Namespace) -> int:
    """Validate a plan, resolve it, print every command that would run; run nothing."""
    if options.slurm is not None:
        options.dry_run = True
        return _submit(options)
    from orchestrator import dryrun
    from orchestrator.machine import Machine

    plan = _plan(options)
    machine = Machine(plan.tools)
    attach = (tuple(options.pid), _duration_s(options))
    result = dryrun.dry_run(plan, options.command, machine, options.output, attach)
    print(json.dumps(result.data(), indent=1) if options.json else result.text())
    return EXIT_PREFLIGHT if result.nothing_left else 0


def _check_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    _run_options(parser)  # any command line of a run can be checked as it stands
    parser.usage = "profrun check [PLAN] [options] [-- COMMAND [ARG...]]"
    return parser


# ---------------------------------------------------------------- the other verbs


def arm(options: argparse.Namespace) -> int:
    """Start a program with a torch.profiler, and an nsys session, that sleep until a later --pid run wakes them."""
    from orchestrator import armed, process, resolve
    from orchestrator.machine import Machine

    if not options.command:
        raise UsageError("there is no program to start", "", "profrun arm -- python train.py")
    target = resolve.target(options.command, ".", {})
    machine = Machine()
    session = f"profrun-{_session_name(options.name)}{os.getpid()}-{os.urandom(3).hex()}"
    nsys = _nsys_to_arm_with(options.nsys, machine, session)
    tools = {"session": session, "nsys": nsys[0]} if nsys else {}
    try:
        arms = armed.arm(target.env, settings={"nvtx": bool(nsys)}, **tools)
    except OSError as error:
        said = "there is no place where a program can wait to be woken"
        raise FolderError(said, error.strerror or str(error), "set PROFRUN_STATE to a folder of yours") from error
    print(_armed_words(os.getpid(), bool(nsys)), file=sys.stderr, flush=True)
    try:
        process.become(target, {**target.env, **arms.environment}, nsys)
    except OSError as error:
        armed.disarm(arms)
        raise StartError(f"{target.exe} can't be started", error.strerror or "", "", EXIT_NOT_EXECUTABLE) from error


def _session_name(name: str | None) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name)[:40] + "-" if name else ""


def _nsys_to_arm_with(wanted: bool | None, machine: Machine, session: str) -> tuple[str, ...]:
    """The command before the program; by default where there is a GPU for it to see."""
    from orchestrator.collectors.nsys import Nsys

    gpu = wanted is not False and bool(machine.gpus)
    if wanted is False or (wanted is None and not gpu):
        return ()
    collector = Nsys(use="nsys")
    tool = collector.tool(machine)
    if tool.path is None and wanted:
        raise PreflightError("nsys was not found", "", collector.probe.install if collector.probe else "")
    return collector.arms(tool, session, gpu=gpu) if tool.path else ()


def _armed_words(pid: int, nsys: bool) -> str:
    said = f"profrun: armed; to look into it later: profrun wake --pid {pid} --duration 5s"
    if not nsys:
        return said
    return (
        f"{said}\nprofrun: nsys stands around the program: its output goes through a pipe, it has no terminal, calls "
        f"to the system take longer, and process {pid} is nsys, which does not pass SIGTERM on: signal the program "
        "itself (--no-nsys does without)"
    )


def _arm_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun arm [--nsys | --no-nsys] [--name NAME] -- COMMAND [ARG...]"
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--nsys", action="store_true", default=None, help="under nsys also where there is no GPU")
    which.add_argument("--no-nsys", dest="nsys", action="store_false", help="not under nsys, which costs some time")
    parser.add_argument("--name", help="a part of the name of nsys's session")
    return parser


def templates(options: argparse.Namespace) -> int:
    """List the templates, or print one with its explanations."""
    from orchestrator.planfile import plans

    if options.name:
        print(_text(plans.find(options.name)), end="")
        return 0
    known = plans.templates()
    width = max(len(template.name) for template in known)
    for template in known:
        print(f"{template.name:{width}}  {template.description}")
    return 0


def _templates_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this template")
    return parser


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path} can't be read", why, "profrun templates lists what there is") from error


def init(options: argparse.Namespace) -> int:
    """Copy a template to edit."""
    from orchestrator import folder
    from orchestrator.planfile import plans

    source = plans.find(options.name)
    _text(source)
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
    shown = shlex.quote(f"./{target}" if str(target) == target.stem else str(target))
    print(f"edit it, then: profrun check {shown} -- python train.py", file=sys.stderr)
    return 0


def _init_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", metavar="NAME", help="the template")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("plan.yaml"),
        metavar="FILE",
        help="the file to write (default: plan.yaml)",
    )
    return parser


def import_files(options: argparse.Namespace) -> int:
    """Make a report of files that somebody already has: of nsys, ncu, PyTorch, py-spy, perf, strace."""
    from orchestrator import importing
    from orchestrator.plan import plain_name

    try:
        name = None if options.name is None else plain_name(options.name)
    except ValueError as error:
        raise UsageError(f"--name: {error}") from error
    console = arguments.console(options)
    report = importing.run(importing.Request(tuple(options.files), options.output, name), console)
    _finish(report, options, console)
    outcome: Outcome = report.outcome
    return outcome.exit_code


def _import_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what it is, is told by its content")
    parser.add_argument(
        "-o", "--output", metavar="DIR", type=Path, help="parent of the report folder (default: reports)"
    )
    parser.add_argument("--name", help="name of the report (default: that of the first file)")
    arguments.shown_options(parser, "verdict and report's path only")
    return parser


def rebuild(options: argparse.Namespace) -> int:
    """Rebuild a report's tables, findings and pages from its raw/ folder and plan."""
    from orchestrator import folder, importing, redact, runner
    from orchestrator.planfile import plans

    path = options.run.resolve()
    imported = runner.read_raw(path)["run"].get("imported")
    plan = importing.PLAN if imported else plans.load(path / "plan.yaml")
    console = arguments.console(options)
    try:
        report = runner.rebuild(folder.Folder(path, redact.in_text), plan, console)
    except OSError as error:
        if error.errno not in folder.DISK_TROUBLE:
            raise
        raise FolderError(f"{path} can't be written", error.strerror or str(error), "make room there") from error
    _finish(report, options, console, rebuilt=True)
    return 0  # it could be rebuilt, whatever the run had ended in


def _rebuild_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    arguments.run_argument(parser)
    arguments.shown_options(parser, "no progress, no figures")
    return parser


def show(options: argparse.Namespace) -> int:
    """Show a report on the terminal: the verdict, the findings, where the time goes, the figures."""
    from orchestrator.report import load, summary

    report = load(options.run)
    if options.json:
        print(json.dumps(_plain(summary(report)), indent=1))
        return 0
    from orchestrator.render import terminal

    terminal.show(report, verbose=options.verbose, color=False if options.no_color else None)
    return 0


def _show_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    arguments.run_argument(parser, nargs="?", default="latest")
    parser.add_argument("--json", action="store_true", help="summary.json on stdout")
    parser.add_argument("-v", "--verbose", action="store_true", help="evidence, and what could not be judged and why")
    arguments.color_option(parser)
    return parser


def open_report(options: argparse.Namespace) -> int:
    """Serve a report to this machine alone and show it in the browser, with ways into Perfetto and speedscope."""
    from orchestrator import serve
    from orchestrator.report import load
    from orchestrator.units import duration

    request = serve.Request(
        host=options.host,
        port=options.port,
        idle_s=duration(options.idle),
        browser=options.browser,
        perfetto=options.perfetto_ui or serve.PERFETTO,
        speedscope=options.speedscope_ui or serve.SPEEDSCOPE,
    )
    serve.serve(load(options.run), request)
    return 0  # it was there for as long as it was wanted


def _open_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    arguments.run_argument(parser, nargs="?", default="latest")
    parser.add_argument("--port", type=_port, default=0, help="the port (default: any that is free)")
    parser.add_argument("--host", default="127.0.0.1", help="another address of this machine's own, such as ::1")
    parser.add_argument(
        "--idle", type=arguments.time_text, default="2h", metavar="TIME", help="end after so long unused (default: 2h)"
    )
    parser.add_argument("--no-browser", dest="browser", action="store_false", help="only print the address")
    parser.add_argument("--perfetto-ui", type=_address, metavar="URL", help="a copy of ui.perfetto.dev")
    parser.add_argument("--speedscope-ui", type=_address, metavar="URL", help="a copy of www.speedscope.app")
    return parser


def _port(text: str) -> int:
    if text.isdecimal() and int(text) < 1 << 16:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no port: a number up to 65535")


def _address(text: str) -> str:
    if re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+(/[!-~]*)?", text) and "#" not in text:
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is no address such as https://ui.example.org")


def doctor(options: argparse.Namespace) -> int:
    """What works on this machine, proven by trying, and the fix for what does not."""
    from orchestrator import doctor as room
    from orchestrator.machine import Machine

    verdict = _for_plan(options) if options.plan or options.command else room.doctor(Machine())
    print(room.as_json(verdict) if options.json else room.as_text(verdict, color=False if options.no_color else None))
    return EXIT_PREFLIGHT if verdict.lacking else 0


def _for_plan(options: argparse.Namespace) -> Verdict:
    """What works of a plan: by default of the one that `profrun -- COMMAND` runs."""
    from orchestrator import doctor as room
    from orchestrator import resolve
    from orchestrator.machine import Machine
    from orchestrator.planfile import plans

    path = _find(options.plan or "auto", options.command)
    plan = plans.load(path, options.set, auto_passes=options.auto_passes)
    if options.only or options.skip:
        plan = plans.select(plan, options.only, options.skip)
    run = resolve.resolve(plan, options.command) if options.command else resolve.without_command(plan)
    machine = Machine(plan.tools)
    resolve.tell(machine, run)
    return room.doctor_for(run, machine, options.output or Path(plan.report.directory))


def _doctor_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun doctor [PLAN] [options] [-- COMMAND [ARG...]]"
    parser.add_argument(
        "plan", nargs="?", metavar="PLAN", help="look only at what it uses; exit status 3 when it can't be served"
    )
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="parent of the report folder")
    parser.add_argument("--set", action="append", default=[], metavar="a.b=value", help="change a value of the plan")
    parser.add_argument("--only", action="append", default=[], metavar="X[,Y]", help="only these collectors")
    parser.add_argument("--skip", action="append", default=[], metavar="X[,Y]", help="all but these collectors")
    _auto_passes_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments.color_option(parser)
    return parser


def env(options: argparse.Namespace) -> int:
    """Show the machine's settings, or put back what a dead run has left."""
    return _ENV[options.what](options)


def _env_show(options: argparse.Namespace) -> int:
    from orchestrator import knobs
    from orchestrator.machine import Machine

    if options.run:
        raise UsageError("env show takes no RUN", "it shows the settings as they are now", "profrun env show")
    found = knobs.collect(Machine())
    print(knobs.as_json(found) if options.json else knobs.as_text(found, color=False if options.no_color else None))
    return 0


def _env_restore(options: argparse.Namespace) -> int:
    from orchestrator import restoring
    from orchestrator.render import view
    from orchestrator.signals import Patience, Signals

    name = options.run and str(arguments.maybe_report(options.run))
    with Signals() as signals:
        signals.held = True  # half of it would be no better than none; but what hangs must not keep the user
        patience = Patience(signals, lambda: print(_PUTTING_BACK, file=sys.stderr, flush=True))
        done = restoring.restore(name, patience.is_over)
        interrupted_by = signals.received[0] if patience.is_over() else None
    if name and not done and not Path(name).is_dir():
        raise UsageError(f"there is no run {name}", "it is no report folder, and has left nothing", "leave RUN out")
    print(done.json() if options.json else "\n".join(map(view.visible, done.text().splitlines())))
    return done.exit_code if interrupted_by is None else 128 + interrupted_by


_PUTTING_BACK = "profrun: putting back what dead runs have left; again to stop, and leave it as it is"
_ENV: dict[str, Callable[[argparse.Namespace], int]] = {"show": _env_show, "restore": _env_restore}


def _env_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.usage = "profrun env show | restore [RUN]  [--json]"
    parser.add_argument(
        "what",
        choices=[*_ENV],
        metavar="|".join(_ENV),
        help="show: the settings; restore: put back what dead runs have left",
    )
    parser.add_argument("run", nargs="?", metavar="RUN", help="restore: only of this report folder, or this run's id")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments.color_option(parser)
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
    of = ["plan", "summary"]
    parser.add_argument(
        "of", nargs="?", choices=of, metavar="|".join(of), default="plan", help="of what (default: plan)"
    )
    return parser


def completion(options: argparse.Namespace) -> int:
    """Print the completion script for a shell. For bash: source <(profrun completion bash)"""
    import shtab

    print(shtab.complete(_everything(), options.shell))
    return 0


def _completion_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    shells = ["bash", "zsh", "fish"]
    parser.add_argument("shell", choices=shells, metavar="|".join(shells), help="whose completion it is")
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
    "arm": arm,
    "templates": templates,
    "init": init,
    "doctor": doctor,
    "env": env,
    "report": rebuild,
    "show": show,
    "open": open_report,
    "import": import_files,
    "compare": compare.run,
    "history": history.run,
    "nightly": nightly.run,
    "share": share.run,
    "export": export.run,
    "schema": schema,
    "completion": completion,
}
PARSERS: dict[str, Callable[[argparse.ArgumentParser], argparse.ArgumentParser]] = {
    "run": _run_options,
    "check": _check_options,
    "arm": _arm_options,
    "templates": _templates_options,
    "init": _init_options,
    "doctor": _doctor_options,
    "env": _env_options,
    "report": _rebuild_options,
    "show": _show_options,
    "open": _open_options,
    "import": _import_options,
    "compare": compare.options,
    "history": history.options,
    "nightly": nightly.options,
    "share": share.options,
    "export": export.options,
    "schema": _schema_options,
    "completion": _completion_options,
}
TAKE_PLAN = ("run", "check", "doctor")
ATTACHES = ("attach", "hang", "wake")
"""Templates that look at what runs already."""
TAKE_COMMAND = (*TAKE_PLAN, "arm")
INTERMIXED = ("nightly",)
"""Those that take more words than one, with options between them."""
MAY_TAKE_COMMAND = (*TAKE_COMMAND, "nightly")
"""Those after whose own words one may stand, but only behind --."""


def bug_report() -> str:
    """Writes what is needed to mend a bug into a file, and says where it is; without room for a file it is all here."""
    text = (
        f"profrun {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
        f"arguments: {len(sys.argv) - 1}\n\n{traceback.format_exc()}"
    )
    try:
        with tempfile.NamedTemporaryFile("w", prefix="profrun-bug-", suffix=".log", delete=False) as file:
            file.write(text)
    except OSError:
        return f"profrun: this is a bug in profrun; please report:\n{text}"
    last = traceback.format_exc().strip().splitlines()[-1]
    return f"profrun: this is a bug in profrun: {last}\n  next: report it with {file.name}"
