"""Plan -> Run: which program really runs, in which passes, and what that will cost."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import armed, attached, process
from orchestrator.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, PreflightError, StartError, UsageError
from orchestrator.launchers import detect
from orchestrator.launchers.base import Expected
from orchestrator.launchers.detect import Found
from orchestrator.launchers.parted import Parted, parted
from orchestrator.model import Attached, Child, Pass, Target, Window
from orchestrator.names import numbers_in
from orchestrator.units import Times
from orchestrator.visible import ORDER, VARIABLE

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.machine import Machine
    from orchestrator.plan import Plan

_MANAGERS = (("pyenv exec", "pyenv"), ("asdf exec", "asdf"), ("rbenv exec", "rbenv"))
"""What a version manager's shim script says, and the command that knows the real file (`pyenv which python`)."""
_SHIM_BYTES = 4096
LEAST_BUDGET_S = 60.0


@dataclass(frozen=True)
class Run:
    """A plan with everything decided: the program, the passes in order."""

    plan: Plan
    target: Target
    passes: tuple[Pass, ...]
    env_set: Mapping[str, str] = field(default_factory=dict)
    pids: tuple[int, ...] = ()
    """Processes that run already, to be looked at instead of a program to be started; none in the tree of another."""
    attached: tuple[Attached, ...] = ()
    """Those with all that they had started by then, parents before children."""
    env_unknown: str | None = None
    """Why `target.env` is not what those processes were started with; None: it is."""
    starter: Found | None = None
    """The launcher of ranks that is seen in the command, or was put before it."""
    expected: Expected = field(default_factory=Expected)
    """How many ranks it will start, as far as the command says."""

    @property
    def name(self) -> str:
        return self.plan.name or "run"

    @property
    def tasks(self) -> Parted | None:
        """Of a job that srun or mpirun starts: what starts its tasks, and what each of them is. None: it is one program
        on this host."""
        found = None if self.pids else parted(self.target.argv)
        return found if found and not found.refusal else None

    @property
    def program(self) -> tuple[str, ...]:
        """The command without what starts it as tasks elsewhere."""
        return self.tasks.command if self.tasks else self.target.argv

    def collectors(self) -> list[Collector]:
        """Each collector once, in the plan's order."""
        found: list[Collector] = []
        for planned in self.passes:
            found += [member for member in planned.members if member not in found]
        return found


def resolve(plan: Plan, command: Sequence[str], first_index: int = 1) -> Run:
    """The run that the plan means. `command` replaces the plan's target.

    Raises UsageError without a command, StartError when the program can't be found or executed."""
    words = tuple(command) or tuple(plan.target.command or ())
    if not words:
        raise UsageError(
            "there is no program to run",
            "neither the command line nor the plan's target.command names one",
            "profrun PLAN -- python train.py",
        )
    return started(plan, words, passes(plan, first_index))


def started(plan: Plan, words: tuple[str, ...], planned: tuple[Pass, ...]) -> Run:
    """The run of a command by the plan's launcher. Raises UsageError where it is no command for that one, StartError
    when what is to be started can't be found or executed."""
    try:
        argv = plan.launcher.argv(words)
    except ValueError as error:
        said = f"launcher: {{use: {plan.launcher.use}}} does not go with this command"
        raise UsageError(said, str(error).partition(": ")[0], str(error).partition(": ")[2]) from error
    found = target(argv, plan.target.cwd, plan.target.env)
    return Run(
        plan, found, planned, starter=detect.found(argv), expected=plan.launcher.expected(words, found.env)
    )  # fmt: skip


NOBODY = "COMMAND"
"""Stands for the program where none is named."""


def without_command(plan: Plan) -> Run:
    """The run that the plan means, with a stand-in where neither it nor anybody else names a program."""
    if plan.target.command:
        return resolve(plan, ())
    nobody = Target((NOBODY,), NOBODY, plan.target.cwd, {**os.environ, **plan.target.env})
    return Run(plan, nobody, passes(plan))


def attach(plan: Plan, pids: Sequence[int], duration_s: float | None, first_index: int = 1) -> Run:
    """The run that looks at processes which already run: one pass a group, for `duration_s` or until they end.

    Raises UsageError when one of them does not exist or is no process of a program, PreflightError when it is not ours
    to look at."""
    for pid in pids:
        refusal = attached.obstacle(pid)
        if refusal and not (isinstance(refusal, PreflightError) and _only_counted(plan)):
            raise refusal
    found = attached.look(pids)
    programs = attached.programs_of(found)
    if not programs:  # it has ended just now
        raise attached.gone(pids[0])
    env, env_unknown = _env_of([one.pid for one in programs])
    argv, exe = programs[0].argv, process.exe_of(programs[0].pid) or ""
    looked_at = Target(argv or (f"pid {pids[0]}",), exe, _cwd_of(programs[0].pid), env)
    looks = [p for p in passes(plan) if p.role == "profiled"]
    span = _window_to_attach(plan, duration_s, looks, found)
    planned = tuple(replace(p, id=f"p{i:02d}", index=i, window=span) for i, p in enumerate(looks, first_index))
    return Run(plan, looked_at, planned, pids=attached.roots(pids), attached=found, env_unknown=env_unknown)


def _only_counted(plan: Plan) -> bool:
    """Whether nobody is to look but the monitor, which reads what all may read of any process."""
    return all(collector.use == "monitor" for collector in plan.each_collector())


def _window_to_attach(plan: Plan, duration_s: float | None, looks: Sequence[Pass], found: Sequence[Attached]) -> Window:
    span = window(plan) or Window()
    if span.steps is not None and duration_s is None:
        _check_steps_are_counted(looks, found)
        return replace(span, then="continue")
    span = replace(span, skip=0, steps=None) if span.steps is not None else span
    return replace(span, for_s=duration_s if duration_s is not None else span.for_s, then="continue")


def _check_steps_are_counted(looks: Sequence[Pass], found: Sequence[Attached]) -> None:
    """In what runs already only the collector torch counts steps, and only where it can be woken."""
    told = "profrun PLAN --pid PID --duration 30s"
    if not (armed.find(found) or armed.open_to_us(found)):
        seen = "steps are seen only in a program that profrun has started, with `profrun arm -- COMMAND` at least"
        raise UsageError("the plan's window is in steps", seen, told)
    others = [p for p in looks if not any(collector.use == "torch" for collector in p.members)]
    if others:
        who = ", ".join(dict.fromkeys(collector.use for p in others for collector in p.members))
        why = f"in what runs already torch alone counts them, and {who} looks at another time"
        raise UsageError("the plan's window is in steps", why, f"{told}, or --only torch")


def tell(machine: Machine, run: Run) -> None:
    """Tells the machine which program it is asked for: that decides which GPUs and processes are meant.

    A program that runs already has the environment that it was started with: the plan can't change that."""
    wanted = Child()
    for step in run.plan.environment if not run.pids else ():
        wanted = wanted.then(step.child())
    machine.target_env = wanted.environment(run.target.env)
    machine.target_env_unknown = run.env_unknown
    machine.target_pids, machine.attached, machine.armed = run.pids, run.attached, armed.find(run.attached)
    machine.target_cpus = wanted.affinity or _cpus_of_node(machine, wanted.numa_node)


def _cpus_of_node(machine: Machine, node: int | None) -> tuple[int, ...]:
    """Those of a NUMA node; empty where there is no such node."""
    return () if node is None else numbers_in(machine.read(f"sys/devices/system/node/node{node}/cpulist") or "")


def _env_of(pids: Sequence[int]) -> tuple[dict[str, str], str | None]:
    """(what the processes were started with, why that is not known to be so). Where they differ in the GPUs that they
    see, neither's choice is taken."""
    known = [process.environ_of(pid) for pid in pids]
    if None in known:
        who = ", ".join(str(pid) for pid, env in zip(pids, known, strict=True) if env is None)
        return {}, f"the environment of {who} can't be read from here, so all GPUs are meant"
    first, *others = [env for env in known if env is not None]
    if all(env.get(name) == first.get(name) for env in others for name in (VARIABLE, ORDER)):
        return first, None
    shared = {name: text for name, text in first.items() if name not in (VARIABLE, ORDER)}
    return shared, f"the processes see different GPUs ({VARIABLE}), so all are meant"


def _cwd_of(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:  # somebody else's, or just gone
        return "unknown"


def target(words: tuple[str, ...], cwd: str, env_set: Mapping[str, str]) -> Target:
    """The program as it will be started. Raises StartError (127 not found, 126 not executable)."""
    try:
        place = str(Path(cwd).expanduser().absolute())
    except (OSError, RuntimeError) as error:  # the directory that profrun stands in was removed; an unknown ~user
        why = "the directory that profrun was started in was removed" if isinstance(error, OSError) else str(error)
        what, fix = f"the target's directory {cwd} can't be found", "cd to one that is there, or mend target.cwd"
        raise StartError(what, why, fix, EXIT_NOT_EXECUTABLE) from error
    if not Path(place).is_dir():
        raise StartError(f"the target's directory {place} does not exist", "", "mend target.cwd", EXIT_NOT_EXECUTABLE)
    env = {**os.environ, **env_set}
    exe, shims = _real(_executable(words[0], place, env), words[0], env)
    if not shims:
        return Target(words, exe, place, env)
    # a manager's shim also puts the chosen version first on PATH, for what the program itself starts
    env["PATH"] = os.pathsep.join([str(Path(exe).parent), env.get("PATH", os.defpath)])
    return Target((exe, *words[1:]), exe, place, env, shims)


def _executable(word: str, cwd: str, env: Mapping[str, str]) -> str:
    if os.sep in word:
        path = str(Path(cwd, word))
    else:
        found = shutil.which(word, path=env.get("PATH", os.defpath))
        if found is None:
            raise StartError(
                f"{word}: command not found",
                "no such program on PATH",
                "check its spelling or give its path",
                EXIT_NOT_FOUND,
            )
        path = str(Path(found).absolute())
    _check_executable(path)
    return path


def _check_executable(path: str) -> None:
    if not Path(path).exists():
        raise StartError(f"{path}: no such file", "", "check its spelling or give its path", EXIT_NOT_FOUND)
    if Path(path).is_dir():
        raise StartError(f"{path} is a directory", "", "name a program in it", EXIT_NOT_EXECUTABLE)
    if not os.access(path, os.X_OK):
        hint = f"python {path}" if path.endswith(".py") else f"chmod +x {path}"
        raise StartError(f"{path} is not executable", "it lacks the permission to be run", hint, EXIT_NOT_EXECUTABLE)


def _real(path: str, word: str, env: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Looks through a version manager's shim: measuring a shell script that starts Python is not what anybody wants."""
    manager = _manager(path)
    if manager is None:
        return path, ()
    answer = process.ask([manager, "which", Path(word).name], env=env, timeout_s=10)
    found = answer.stdout.strip()
    if not answer.ok or not os.access(found, os.X_OK):
        return path, ()
    return found, (path,)


def _manager(path: str) -> str | None:
    if Path(path).parent.name != "shims":
        return None
    if Path(path).resolve().name == "mise":
        return str(Path(path).resolve())
    with Path(path).open("rb") as file:
        head = file.read(_SHIM_BYTES).decode("utf-8", "replace")
    for line in head.splitlines():
        for sign, name in _MANAGERS:
            words = line.replace('"', "").split()
            if sign.split()[1] in words and any(Path(w).name == name for w in words):
                return next(w for w in words if Path(w).name == name)
    return None


def passes(plan: Plan, first_index: int = 1) -> tuple[Pass, ...]:
    """The passes of a plan in order: every start of the target. The collectors of a `together` share theirs."""
    planned: list[Pass] = []
    for group in plan.groups():
        for role, repeat in _starts(group):
            index = first_index + len(planned)
            planned.append(
                Pass(
                    id=f"p{index:02d}",
                    index=index,
                    role=role,  # type: ignore[arg-type]
                    members=group,
                    repeat=repeat,
                    window=window(plan),
                    timeout_s=_timeout_s(plan, group),
                    retry=1 if plan.target.retry else 0,
                    needs=tuple(need for collector in group for need in collector.needs()),
                )
            )
    return tuple(planned)


def _starts(group: tuple[Collector, ...]) -> list[tuple[str, int]]:
    """(role, serial number) of each start: a pass that holds nothing but `timing` is bare."""
    repeats = max(collector.repeats for collector in group)
    if any(collector.use != "timing" for collector in group):
        return [("profiled", i + 1) for i in range(repeats)]
    warmups = max(getattr(collector, "warmup", 0) for collector in group)
    return [("warmup", i + 1) for i in range(warmups)] + [("bare", i + 1) for i in range(repeats)]


def _timeout_s(plan: Plan, group: tuple[Collector, ...]) -> float | None:
    own = [collector.timeout for collector in group if collector.timeout is not None]
    return max(own) if own else plan.target.timeout


def window(plan: Plan) -> Window | None:
    """The plan's window, in seconds or in steps."""
    if plan.window is None:
        return None
    found = plan.window
    return Window(found.after, found.for_, found.then, found.skip, found.steps)


@dataclass(frozen=True)
class Estimate:
    """What a run will cost: starts of the target, time as a multiple of one bare run (and in seconds where that is
    known)."""

    starts: int
    bare_runs: float
    seconds: float | None
    raw_bytes: int


def estimate(passes: Sequence[Pass], bare_wall_s: float | None) -> Estimate:
    """The cost of the passes by the collectors' typical slowdowns; a shared pass is as slow as all its tools
    together."""
    factors = [slowdown(planned) for planned in passes]
    total = sum(factors)
    raw = sum(member.expected_bytes() for planned in passes for member in planned.members)
    return Estimate(len(passes), total, total * bare_wall_s if bare_wall_s is not None else None, raw)


def slowdown(planned: Pass) -> float:
    """The expected wall time of a pass as a multiple of the bare run's."""
    factor = 1.0
    for member in planned.members:
        factor *= member.slowdown
    return factor


def budget_s(budget: float | Times | None, bare_wall_s: float | None) -> float | None:
    """The budget in seconds; None when there is none, or it is a multiple of a bare run that is not known.

    A multiple is never taken as less than a minute: the tools' own starts would eat it up."""
    if isinstance(budget, Times):
        return max(budget.factor * bare_wall_s, LEAST_BUDGET_S) if bare_wall_s is not None else None
    return budget


def _mtime(path: Path) -> float:
    """0 for what was removed a moment ago, or is not ours to see."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def known_bare_wall_s(parent: Path, command: Sequence[str], but: Path | None = None) -> float | None:
    """The mean bare wall time in the newest report in `parent` that ran the same command; None when there is none."""
    for file in sorted(parent.glob("*/summary.json"), key=_mtime, reverse=True)[:20]:
        try:
            data = json.loads(file.read_text())
            if file.parent != but and not file.parent.is_symlink() and data["run"]["command"] == list(command):
                return float(data["metrics"]["wall_s"]["value"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
