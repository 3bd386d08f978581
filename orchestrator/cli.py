"""The command line: verbs, and errors to exit statuses. What a verb needs is imported when it is called."""

from __future__ import annotations

import sys

from orchestrator import __version__

HELP = """\
profrun: one profiling plan, one command, one report folder

  profrun PLAN [options] -- COMMAND [ARG...]   run a plan (PLAN: a file, or a template's name)
  profrun -- COMMAND [ARG...]                  the plan that fits this machine
  profrun PLAN --pid PID [--duration 30s]      look at a process that runs

  profrun templates [NAME]                     list the templates; print one, explained
  profrun init NAME [-o plan.yaml]             copy a template to edit
  profrun check PLAN [-- COMMAND...]           validate, resolve, print every command; run nothing
  profrun doctor [--json]                      what works on this machine, proven by trying, and the fix for what does
  not profrun report RUN                           rebuild tables, findings and pages from raw/ profrun schema
  JSON Schema of the plan, for editors profrun completion bash|zsh|fish             completion for your shell

Options of a run (all of them: profrun run --help):
  -o DIR            parent of the report folder         --set a.b=value    change the plan
  --name NAME       name of the report                  --only/--skip X    choose collectors
  --timeout 30m     limit for each pass                 -n, --dry-run      the same as `profrun check`
  --into RUN        add collectors to a report          --keep-going       also after a bare run that failed
  --json            summary on stdout                   -q, -v             less, more

Everything after the first -- reaches the command as it stands. Results go to stdout, progress to stderr.
Exit status: the command's own; 2 usage, 3 nothing can run, 4 a collector gave nothing, 5 environment,
124 time-out, 130/143 interrupted, 70 a bug in profrun.
"""


def main(argv: list[str] | None = None) -> None:
    """Entry point. Ends the process with the exit status."""
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        sys.exit(0 if words else 2)
    if words[0] in ("-V", "--version"):
        print(f"profrun {__version__}")
        sys.exit(0)
    sys.exit(_guarded(words))


def _guarded(words: list[str]) -> int:
    """Runs the verb; every error becomes its message and its exit status."""
    from orchestrator import commands
    from orchestrator.errors import EXIT_BUG, ProfrunError

    try:
        return commands.run(words)
    except ProfrunError as error:
        print(f"profrun: {error.text()}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("profrun: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stdout = None
        return 0
    except Exception:  # the last net: a bug must leave a log that can be pasted, not a bare traceback
        print(commands.bug_report(), file=sys.stderr)
        return EXIT_BUG
