"""`--slurm "OPTIONS OF SBATCH"`: the run as a batch job. It is submitted (by submitit), its state and its output are
shown here as they come, and its exit status is ours. In the job, profrun leads from the first node, and its tasks are
started by srun; the report lies where it would lie without a job."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import folder, process
from orchestrator.errors import EXIT_PREFLIGHT, EXIT_TIMEOUT, PreflightError, UsageError
from orchestrator.signals import Signals

if TYPE_CHECKING:
    from orchestrator.plan import Plan

LOOK_S, ASK_S = 0.2, 1.0
"""How often the job's output is looked for, and Slurm asked for its state."""
ANSWER_S = 20.0
LATE_S = 5.0
"""How long after a job's end the rest of its output may take to be seen here."""
FORGOTTEN = 15
"""So many times in a row Slurm knows no such job, and it has forgotten it: it ended long ago."""
_UNKNOWN_JOB = "Invalid job id"
"""As scontrol says it."""
WARNED_S = 120
"""So long before its time limit the job is told, and still writes its report; a short job in its last quarter."""
OVER = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"}
)
_SHORT = {
    "A": "account", "B": "extra-node-info", "b": "begin", "C": "constraint", "c": "cpus-per-task", "D": "chdir",
    "d": "dependency", "F": "nodefile", "G": "gpus", "H": "hold", "J": "job-name", "L": "licenses", "M": "clusters",
    "m": "distribution", "N": "nodes", "n": "ntasks", "O": "overcommit", "p": "partition", "q": "qos",
    "S": "core-spec", "s": "oversubscribe", "t": "time", "w": "nodelist", "x": "exclude",
    "a": "array", "e": "error", "i": "input", "k": "no-kill", "o": "output", "Q": "quiet", "v": "verbose", "W": "wait",
}  # fmt: skip
_FLAGS = frozenset(
    """contiguous exclusive get-user-env hold ignore-pbs kill-on-invalid-dep nice no-kill no-requeue overcommit
    oversubscribe propagate quiet reboot requeue spread-job stepmgr use-min-nodes verbose x11""".split()  # noqa: SIM905
)
"""Options of sbatch(1) that stand without a value, or take it behind an = only."""
_NOT_OURS = {
    "array": "a run is one job", "output": "profrun reads it while the job runs", "error": "profrun reads it, too",
    "wrap": "the command stands after --", "wait": "it is waited for anyhow", "parsable": "", "test-only": "",
    "input": "it would be the batch script's",
}  # fmt: skip


def options_of(text: str) -> dict[str, str | bool]:
    """The options of sbatch by their long names: "-N 2 --exclusive" is {"nodes": "2", "exclusive": True}. Raises
    UsageError for what can't be used here."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(
            f"--slurm {text!r} can't be read", str(error), '--slurm "--nodes 2 --ntasks-per-node 4"'
        ) from error
    found: dict[str, str | bool] = {}
    while words:
        name, value, used = _option(words)
        if name in _NOT_OURS:
            raise UsageError(f"--slurm: --{name} is not possible here", _NOT_OURS[name], "leave it out")
        found[name] = value
        del words[:used]
    return found


def _option(words: Sequence[str]) -> tuple[str, str | bool, int]:
    """(long name, value, how many words that was)."""
    word, following = words[0], words[1] if len(words) > 1 else None
    if word.startswith("--") and word != "--":
        name, sign, value = word[2:].partition("=")
        joined = value if sign else None
    elif re.fullmatch(r"-[A-Za-z].*", word) and word[1] in _SHORT:
        name, joined = _SHORT[word[1]], word[2:] or None
    else:
        raise UsageError(f"--slurm: {word} is no option of sbatch", "", '--slurm "--nodes 2 --ntasks-per-node 4"')
    if joined is not None:
        return name, joined, 1
    if name in _FLAGS or name in _NOT_OURS:
        return name, True, 1
    if following is None:
        raise UsageError(f"--slurm: {word} needs a value", "", f"{word} VALUE")
    return name, following, 2


def _warned_s(limit: str | bool | None) -> int:
    """How long before the end a job with this --time is told: a job that is shorter than that would never begin."""
    limit_s = _seconds(limit) if isinstance(limit, str) else None
    return WARNED_S if limit_s is None else max(1, min(WARNED_S, limit_s // 4))


def _seconds(text: str) -> int | None:
    """A time as sbatch(1) takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]];
    None for what is not one, or has no end."""
    days, dash, rest = text.rpartition("-")
    words = rest.split(":")
    if not all(word.isdecimal() for word in (*words, *([days] if dash else []))) or len(words) > 3:
        return None
    numbers = [int(word) for word in words]
    hours, minutes, seconds = (*numbers, 0, 0)[:3] if dash else numbers if len(numbers) == 3 else (0, *numbers, 0)[:3]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds or None


# ---------------------------------------------------------------- the job


@dataclass
class Job:
    """A batch job of Slurm's with the profrun that it runs."""

    words: tuple[str, ...]
    """profrun's own command line, without --slurm and the program."""
    command: tuple[str, ...]
    parent: Path
    """Where the report's folder will lie; absolute, and seen by all nodes."""
    options: Mapping[str, str | bool]
    plan: Plan
    say: Callable[[str], None]
    id: str = ""
    _told: str = ""
    _is_unanswered: bool = False
    _printed: dict[Path, int] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        """Where submitit keeps the script and the output of jobs."""
        return self.parent / ".slurm"

    def script(self) -> str:
        """The batch script as it would be submitted. Raises PreflightError where submitit is missing."""
        text: str = self._executor()._make_submission_file_text(self._line(), "profrun")
        return text

    def run(self) -> int:
        """Submits, follows, and gives back the exit status of the job's profrun. Raises PreflightError where it can't
        be submitted."""
        with Signals() as signals:
            signals.held = True
            try:
                job: Any = self._executor()._submit_command(self._line())
            except Exception as error:  # submitit raises what it likes for what sbatch has said
                said = str(error).strip().splitlines()
                raise PreflightError(
                    "the job was not taken", said[-1] if said else "", "mend the options of --slurm"
                ) from error
            self.id = str(job.job_id)
            self.say(f"job {self.id} is submitted; its output: {job.paths.stdout}")
            return self._follow(signals, Path(job.paths.stdout), Path(job.paths.stderr))

    def _executor(self) -> Any:
        if shutil.which("sbatch") is None:
            why = "there is no sbatch on PATH: this host is no login node of a Slurm cluster"
            raise PreflightError("--slurm needs Slurm", why, "run this where sbatch is, or leave --slurm out")
        try:
            from submitit import SlurmExecutor
        except ImportError as error:
            fix = f"{sys.executable} -m pip install submitit"
            raise PreflightError("--slurm needs the package submitit", str(error), fix) from error
        executor: Any = SlurmExecutor(folder=folder.private(self.home))  # the script may hold what is secret
        # what submitit would say by itself, and what it takes its results for, is not for this job
        executor.update_parameters(
            time=None, nodes=None, wckey=None, use_srun=False, additional_parameters=self._flags()
        )
        executor._num_tasks = lambda: 1
        return executor

    def _flags(self) -> dict[str, str | bool]:
        """The options as submitit spells them."""
        ours: dict[str, str | bool] = {
            "job-name": f"profrun-{self.plan.name}",
            "signal": f"B:TERM@{_warned_s(self.options.get('time'))}",
        }
        if "requeue" not in self.options:
            ours["no-requeue"] = True  # a second life would begin all passes anew, into the same output
        every = {**ours, **self.options}
        return {name if name == "open-mode" else name.replace("-", "_"): value for name, value in every.items()}

    def _line(self) -> str:
        """The command of the batch script. It becomes profrun itself: signals for the batch script reach it."""
        own = (sys.executable, "-I", "-m", "orchestrator", "run", *self.words, *self._launcher())
        program = ("--", *self.command) if self.command else ()
        return "exec " + shlex.join((*own, "-o", str(self.parent), *program))

    def _launcher(self) -> Iterator[str]:
        """srun starts the tasks, unless plan or command say otherwise."""
        from orchestrator.launchers.parted import parted

        command = self.command or self.plan.target.command or ()
        if self.plan.launcher.use == "auto" and parted(command) is None:
            yield from ("--set", "launcher.use=slurm")

    # ------------------------------------------------------------ while it runs

    def _follow(self, signals: Signals, out: Path, err: Path) -> int:
        asked, silent, next_s, last = 0, 0, 0.0, dict[str, str]()
        while True:
            self._print(out, 1)
            self._print(err, 2)
            if len(signals.received) > asked:
                asked = len(signals.received)
                self._cancel(asked, signals.received[-1], last.get("JobState"))
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + ASK_S
                state = self._ask()
                silent = silent + 1 if state is None else 0
                last = state or last
                self._tell(last)
                if last.get("JobState") in OVER or silent >= FORGOTTEN:
                    break
            time.sleep(LOOK_S)
        self._last(out, err)
        return self._status(last, out, asked, signals)

    def _ask(self) -> dict[str, str] | None:
        """What Slurm's controller says of the job; no accounting is needed for that. None: it does not know it (any
        more). Empty: it does not answer, which is said once, and it is asked again."""
        answer = process.ask(["scontrol", "show", "job", "-o", self.id], timeout_s=ANSWER_S)
        if answer.ok:
            return dict(re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", answer.stdout))
        if _UNKNOWN_JOB in answer.stdout + answer.stderr:
            return None
        if not self._is_unanswered:
            self._is_unanswered = True
            said = (answer.stderr.strip().splitlines() or [answer.error or "no answer"])[-1]
            self.say(f"Slurm does not tell the state of job {self.id} ({said}); it is asked again until it does")
        return {}

    def _tell(self, state: Mapping[str, str]) -> None:
        name, reason = state.get("JobState", ""), state.get("Reason", "")
        nodes = state.get("NodeList", "")
        more = f" on {nodes}" if name == "RUNNING" and nodes else f" ({reason})" if name == "PENDING" and reason else ""
        words = f"job {self.id} is {name.lower().replace('_', ' ')}{more}" if name else ""
        if words and words != self._told:
            self._told = words
            self.say(words)

    def _cancel(self, count: int, number: int, state: str | None) -> None:
        """First the profrun in the job is told, which ends the program and writes what there is; a job that does not
        run yet, and a second wish, end it at once."""
        if count == 1 and state == "RUNNING":
            name = signal.Signals(number).name
            self.say(f"{name} is passed on to job {self.id}, which keeps what there is; a second one cancels it")
            process.ask(["scancel", "--batch", f"--signal={name[3:]}", self.id], timeout_s=ANSWER_S)
        else:
            self.say(f"job {self.id} is cancelled")
            process.ask(["scancel", self.id], timeout_s=ANSWER_S)

    def _print(self, path: Path, fd: int) -> bool:
        """Passes on what the job has written since; whether that was anything."""
        try:
            with path.open("rb") as file:
                file.seek(self._printed.get(path, 0))
                text = file.read()
        except OSError:
            return False
        self._printed[path] = self._printed.get(path, 0) + len(text)
        while text:
            try:
                text = text[os.write(fd, text) :]
            except OSError:  # nobody reads it any more
                return False
        return path.exists()

    def _last(self, out: Path, err: Path) -> None:
        """The rest of the output, which a file system of many hosts may show late."""
        deadline = time.monotonic() + LATE_S
        while time.monotonic() < deadline and not out.exists():
            time.sleep(LOOK_S)
        self._print(out, 1)
        self._print(err, 2)

    # ------------------------------------------------------------ its end

    def _status(self, state: Mapping[str, str], out: Path, asked: int, signals: Signals) -> int:
        """That of the job's profrun, as Slurm has it or, where that has forgotten the job, as the report says."""
        if not out.exists():
            self.say(
                f"job {self.id} has left no {out}\n  why:  its nodes do not see {self.home}, or it never ran "
                f"({state.get('JobState', 'unknown to Slurm').lower()}, {state.get('Reason', 'no reason known')})\n"
                "  next: name a folder that all nodes share with -o DIR"
            )
            return 128 + signals.received[-1] if asked else EXIT_PREFLIGHT
        code, _, number = state.get("ExitCode", "").partition(":")
        if state.get("JobState") in OVER and code.isdecimal() and int(code):
            return int(code)
        if state.get("JobState") == "TIMEOUT":
            return EXIT_TIMEOUT
        if state.get("JobState") == "CANCELLED":
            return 128 + (signals.received[-1] if asked else signal.SIGTERM)
        if state.get("JobState") == "OUT_OF_MEMORY":  # its ExitCode is 0:125, which is no signal
            self.say(f"job {self.id} has used more memory than it was given\n  next: --slurm '--mem ...'")
            return 128 + signal.SIGKILL
        if number.isdecimal() and int(number):
            return 128 + int(number)
        return 0 if state.get("JobState") == "COMPLETED" else self._as_reported(out, state)

    def _as_reported(self, out: Path, state: Mapping[str, str]) -> int:
        from orchestrator.errors import ReportError
        from orchestrator.report import load

        with contextlib.suppress(OSError, IndexError, ReportError):
            return load(Path(out.read_text().split()[-1])).outcome.exit_code
        name = state.get("JobState", "")
        why = f"Slurm says {name.lower().replace('_', ' ')}" if name in OVER else "Slurm has forgotten it"
        self.say(f"how the program in job {self.id} ended is not known: {why}, and it has left no report")
        return EXIT_PREFLIGHT
