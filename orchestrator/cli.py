"""The command line: verbs, and errors to exit statuses. What a verb needs is imported when it is called."""

from __future__ import annotations

import os
import sys

from orchestrator import __version__

HELP = """\
profrun: one profiling plan, one command, one report folder

  profrun PLAN [options] -- COMMAND [ARG...]   run a plan (PLAN: a file, or a template's name)
  profrun -- COMMAND [ARG...]                  the plan auto: what works here, within ten times the bare run
  profrun why -- COMMAND [ARG...]              why it is slow: what bounds it, where, and what to do
  profrun PLAN --pid PID [--duration 30s]      look at a process that runs already (PLAN: such as attach)
  profrun arm -- COMMAND [ARG...]              start a program that a later `profrun wake --pid PID` can look into

  profrun templates [NAME]                     list the templates; print one, explained
  profrun init NAME [-o plan.yaml]             copy a template to edit
  profrun check PLAN [-- COMMAND...]           validate, resolve, print every command; run nothing
  profrun doctor [PLAN]                        what works on this machine (of that plan), and the fix for what does not
  profrun env show                             the settings of this machine that matter, and who may change them
  profrun env restore [RUN]                    put back what a run that was killed has left
  profrun show [RUN]                           the verdict and the findings of a report on the terminal
  profrun open [RUN]                           its page in the browser, with ways into Perfetto and speedscope
  profrun report RUN                           rebuild tables, findings and pages from raw/
  profrun import FILE...                       a report of files that nsys, ncu, PyTorch, py-spy, ... have left
  profrun compare A B [--gate 3%]              what changed from run A to run B, how sure that is, and why
  profrun history [NAME]                       the runs so far, how they went, and when that changed
  profrun nightly install NAME --at 02:30 ...  run a plan every night, and say when the program has become slower
  profrun share RUN -o run.tar.zst             an archive without secrets, names and addresses, for somebody else
  profrun export RUN --to FORMAT               for speedscope, perfetto, hta, csv, parquet, prometheus, mlflow, github
  profrun schema                               JSON Schema of the plan, for editors
  profrun completion bash|zsh|fish             completion for your shell
  profrun VERB --help, --version               every option of a verb; which profrun this is

Options of a run (all of them: profrun run --help):
  -o DIR            parent of the report folder         --set a.b=value    change the plan
  --name NAME       name of the report                  --only/--skip X    choose collectors
  --timeout 30m     limit for each pass                 -n, --dry-run      the same as `profrun check`
  --into RUN        add to an existing report           --keep-going       also after a bare run that failed
  --json            summary on stdout                   --strict           warnings are failures
  -q, --quiet       verdict and report's path only      -v, --verbose      the command's output in every pass
  --auto-passes     split collectors that can't share a pass
  --wait [10m]      for another run that holds the same GPU or CPU settings
  --slurm "-N 2 --ntasks-per-node 4"   as a batch job of Slurm, on many nodes
  --verify-repeatable   run the bare program twice; name the first training step that differs

RUN is a report's folder, `latest`, or how its name in reports/ begins.
Everything after the first -- reaches the command as it stands. Results go to stdout, progress to stderr.
Exit status: the command's own; 2 a mistake in plan or usage, 3 nothing can run here, 4 a required collector gave
nothing, 5 the environment, 6 not repeatable, or stopped by a gate, 75 another run holds this machine, 124 a time-out,
130/143 interrupted, 70 a bug in profrun.
"""


def main(argv: list[str] | None = None) -> None:
    """Entry point. Ends the process with the exit status."""
    words = sys.argv[1:] if argv is None else argv
    _open_missing()
    if words[0:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help", "help"):
        sys.exit(_plain(HELP) if words else _plain(HELP, to_stdout=False))
    if words[0] in ("-V", "--version"):
        sys.exit(_plain(f"profrun {__version__}\n"))
    sys.exit(_heard(words))


def _plain(text: str, *, to_stdout: bool = True) -> int:
    """Prints what needs no verb. A reader who has seen enough of it is no error."""
    try:
        print(text, end="", file=sys.stdout if to_stdout else sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0 if to_stdout else 2


def _open_missing() -> None:
    """Opens what the caller has closed of the three standard streams on nothing: else a file of ours would get that
    number, and be read and written as if it were the stream."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            setattr(sys, name, os.fdopen(fd, "w" if fd else "r"))


def _heard(words: list[str]) -> int:
    """Runs the verb, whether anybody listens or not. What stdout could not take changes a good exit status only, and
    not even that where a reader has just seen enough."""
    from contextlib import redirect_stderr, redirect_stdout
    from typing import TextIO, cast

    from orchestrator.errors import EXIT_PREFLIGHT
    from orchestrator.stdio import Lenient

    out, err = Lenient(sys.stdout), Lenient(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, err)):
        code = _guarded(words)
        out.flush()
        if out.error is not None and not isinstance(out.error, BrokenPipeError):
            print(f"profrun: stdout can't be written: {out.error.strerror}", file=sys.stderr)
            code = code or EXIT_PREFLIGHT
        err.flush()
        for fd, stream in ((1, out), (2, err)):
            if stream.error is not None:  # what is still buffered would make Python end with 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
        return code


def _guarded(words: list[str]) -> int:
    """Runs the verb; every error becomes its message and its exit status."""
    import signal

    from orchestrator.errors import EXIT_BUG, EXIT_PREFLIGHT, ProfrunError

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a caller that ignores it would keep from us how children end
    try:
        from orchestrator import commands

        return commands.run(words)
    except ProfrunError as error:
        print(f"profrun: {error.text()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        number = signal.Signals(error.args[0] if error.args else signal.SIGINT)
        print(f"profrun: interrupted by {number.name}", file=sys.stderr)
        return 128 + number
    except MemoryError:
        print("profrun: not enough memory\n  next: raise its limit (ulimit -v, or the job's)", file=sys.stderr)
        return EXIT_PREFLIGHT
    except Exception:  # the last net: a bug must leave a log that can be pasted, not a bare traceback
        from orchestrator.commands import bug_report

        print(bug_report(), file=sys.stderr)
        return EXIT_BUG
