"""One run as a visible list of stages. The machine is restored before anything is parsed."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import re
import shlex
import shutil
import signal
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import __version__, attached, collect, folder, history, picks, process, redact, registry, resolve
from orchestrator.environment import Environment, alike_once
from orchestrator.errors import EXIT_CAPTURE, FolderError, PreflightError, ReportError, UsageError
from orchestrator.guard import Guard
from orchestrator.launchers.tasks import Lead
from orchestrator.live import Context
from orchestrator.machine import Machine
from orchestrator.model import IN_FORCE, USABLE, Capture, Child, Outcome, Pass, PassRecord, Picks, Status, StepRecord
from orchestrator.normalise import Normalised, bare_run, normalise
from orchestrator.outcome import judge
from orchestrator.plan import Plan
from orchestrator.planfile.plans import dump
from orchestrator.preflight import Preflight, preflight
from orchestrator.repeatable import Verdict, compare
from orchestrator.report import (
    Report,
    RunInfo,
    TableInfo,
    capture_record,
    captures_from,
    load,
    machine_facts,
    pass_from,
    step_from,
    summary,
)
from orchestrator.signals import Signals
from orchestrator.stdio import Stdin
from orchestrator.tables import Table

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector

RAW_SCHEMA = "profrun/raw/1"


class Console(Protocol):
    """Who shows the run to the user. `logged` has everything that was shown, and what was only for the log."""

    logged: list[str]

    def begin(
        self, run: resolve.Run, checks: Preflight, estimate: resolve.Estimate, interpreter: str | None
    ) -> None: ...
    def pass_begins(self, planned: Pass, expected_s: float | None) -> None: ...
    def tick(self, elapsed_s: float) -> None: ...
    def make_way(self, amid_line: bool) -> None: ...
    def interrupted(self, number: int) -> None: ...
    def pass_ends(self, record: PassRecord, captures: Sequence[Capture]) -> None: ...
    def stage(self, name: str) -> None: ...
    def waits(self, text: str) -> None: ...
    def step_ends(self, record: StepRecord) -> None: ...
    def put_back(self, records: Sequence[StepRecord], known: str | None = None) -> None: ...
    def warn(self, text: str) -> None: ...
    def log(self, text: str) -> None: ...


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    plan: Plan
    command: tuple[str, ...] = ()
    output: Path | None = None
    into: Path | None = None
    keep_going: bool = False
    verify_repeatable: bool = False
    """Only compare two bare runs, step by step."""
    strict: bool = False
    show_all_output: bool = False
    outputs: tuple[int, int] | None = (1, 2)
    """Descriptors for the target's stdout and stderr; None: to files only."""
    pids: tuple[int, ...] = ()
    duration_s: float | None = None
    wait_s: float | None = None
    """How long to wait for another run that holds what this one changes; None: not at all."""


@dataclass
class State:
    """A run while it happens; each stage fills in its part."""

    request: Request
    console: Console
    machine: Machine
    signals: Signals
    started: float = field(default_factory=time.perf_counter)
    run: resolve.Run = None  # type: ignore[assignment]
    checks: Preflight = None  # type: ignore[assignment]
    folder: folder.Folder = None  # type: ignore[assignment]
    info: RunInfo = None  # type: ignore[assignment]
    earlier: dict[str, Any] | None = None
    """raw/run.json of the report that is added to, as it was."""
    scratch: Path | None = None
    guard: Guard | None = None
    environment: Environment | None = None
    lead: Lead | None = None
    """Of a job of tasks: what leads them."""
    facts: dict[str, Any] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    """What captures of this run have told the passes after them."""
    passes: list[PassRecord] = field(default_factory=list)
    captures: list[Capture] = field(default_factory=list)
    report: Report = None  # type: ignore[assignment]


def run(request: Request, console: Console) -> Report:
    """Runs a plan and gives back its report. Raises ProfrunError for what stops a run before it has begun, and when the
    disk does not take the report."""
    with Signals() as signals:
        state = State(request, console, Machine(request.plan.tools), signals)
        try:
            _run(state)
        except (OSError, MemoryError, ImportError) as error:
            lacking = _lacking(error)
            if state.folder is None or lacking is None:
                raise
            raise _unwritten(state, lacking) from error
        except KeyboardInterrupt:
            if state.folder and state.folder.raw("run.json").exists():
                console.warn(f"the report is not finished: profrun report {shlex.quote(str(state.folder.path))}")
            raise
        finally:
            tidy_up(state)
    return state.report


def _run(state: State) -> None:
    try:
        for stage in (resolve_plan, check, hold_machine, open_folder, apply_environment, run_passes):
            stage(state)
    finally:
        restore(state)
    state.signals.at_first = lambda: state.console.warn(
        "the report is being finished; a second signal leaves it as it is"
    )
    for stage in (keep_raw, keep_log, normalise_and_render, remember, keep_log):
        stage(state)


# ---------------------------------------------------------------- the stages


def resolve_plan(state: State) -> None:
    """Which program, which passes."""
    if not process.alive(os.getpid()):
        why = "by it the target and its tools are found, followed and ended"
        raise PreflightError(
            "there is no /proc here", why, "mount -t proc proc /proc, or run profrun outside of this chroot"
        )
    request = state.request
    if request.verify_repeatable and (request.into or request.pids):
        other = "--into" if request.into else "--pid"
        raise UsageError(
            f"--verify-repeatable does not go with {other}", "it starts the program twice, for a report of its own", ""
        )
    if request.verify_repeatable:
        state.request = request = replace(request, plan=_twice_bare(request.plan))
    first = _next_index(state) if request.into else 1
    if request.pids:
        state.run = resolve.attach(request.plan, request.pids, request.duration_s, first)
    else:
        state.run = resolve.resolve(request.plan, request.command, first)
    if request.into:
        _check_same_command(request.into, redact.argv(state.run.target.argv))
        _check_complete(state.run)


def _twice_bare(plan: Plan) -> Plan:
    """The plan with two bare runs in place of its collectors. Raises UsageError where our part is kept out."""
    from orchestrator.collectors.timing import Timing

    if not plan.target.inject:
        raise UsageError(
            "--verify-repeatable works inside the target's Python", "target.inject is false", "set it to true"
        )
    stops = plan.window if plan.window and plan.window.then == "stop" else None
    bare = Timing(use="timing", warmup=0, repeats=2)
    return plan.model_copy(update={"collectors": (bare,), "window": stops, "budget": None})


def check(state: State) -> None:
    """What can work here."""
    resolve.tell(state.machine, state.run)
    state.checks = preflight(state.run, state.machine)


def hold_machine(state: State) -> None:
    """What the plan changes, for this run alone; and the machine as it was before runs that were killed."""
    state.guard = Guard(state.machine, state.console.warn)
    claims = [claim for step in state.run.plan.environment for claim in _claims(step, state.machine)]
    state.guard.hold(claims, state.request.wait_s, lambda: state.signals.received)


def _claims(step: Any, machine: Machine) -> tuple[str, ...]:
    try:
        return tuple(step.claims(machine))
    except Exception:  # a step of another package may raise anything; when it is applied, that is told
        return ()


def open_folder(state: State) -> None:
    """The report folder (a new one, or the one to add to), and scratch space on node-local disk."""
    variables = [step.child().set for step in state.run.plan.environment]
    scrub = redact.scrubber({k: v for env in (*variables, state.run.target.env) for k, v in env.items()})
    if state.request.into:
        state.folder, state.earlier = folder.Folder(state.request.into, scrub), read_raw(state.request.into)
    else:
        parent = state.request.output or Path(state.run.plan.report.directory)
        state.folder = folder.create(parent, state.run.name, scrub)
        _write_plan(state)
    state.info = _info(state)
    state.scratch = folder.scratch()
    (state.scratch / "files").mkdir()
    steps = state.run.plan.environment
    public = all(step.use in registry.ENVIRONMENT and step.use != "shell" for step in steps)
    _guard(state).open(state.info.id, state.folder, state.scratch, changes=bool(steps), public=public)
    state.facts = _facts(state)
    budget = resolve.estimate(state.run.passes, _known_bare_wall_s(state))
    state.console.begin(state.run, state.checks, budget, state.facts["target"].get("interpreter"))
    target = state.facts["target"]
    if "torch.distributed.run" in state.run.target.argv and target.get("python") and not target["torch"]:
        how = "name the Python that has it, or install torch there"
        state.console.warn(
            f"torchrun, which is to start the ranks, comes with torch: {target['interpreter']}; next: {how}"
        )


def apply_environment(state: State) -> None:
    """The machine into the plan's state; a step with `on_fail: fail` that does not work keeps the passes from
    running."""
    state.signals.held = True  # from here on the steps and passes see to them
    guard = _guard(state)
    state.environment = Environment(
        state.machine,
        guard.journal,
        guard.why_none,
        before_first=guard.before_first_change,
        interrupts=lambda: len(state.signals.received),
        observer=state.console,
    )
    steps = state.run.plan.environment
    _open_lead(state)
    if not state.environment.apply(state.lead.steps_here(steps) if state.lead else steps):
        state.console.warn("the environment could not be brought into the plan's state: no pass is run")
    elif state.lead:
        _prepare_nodes(state, state.lead)


def _open_lead(state: State) -> None:
    """What leads the tasks, where the command is a job of them."""
    if state.run.tasks:
        state.lead = Lead(state.run.tasks, _scratch(state), state.run.plan.tools)
        if why_not := state.lead.open():
            state.console.warn(why_not)


def _prepare_nodes(state: State, lead: Lead) -> None:
    """The other hosts of the job into the plan's state."""
    environment, steps = state.environment, state.run.plan.environment
    if steps:
        state.console.stage("preparing the nodes of the job")
    said = lead.prepare(steps, state.folder, state.info.id, lambda: bool(state.signals.received))
    if said:
        state.console.warn(said)
    if environment is None:
        return
    for step in steps if not environment.records else ():  # what goes with the tasks, where no step was for this host
        environment.child = environment.child.then(step.child())
    for record in lead.nodes.records if lead.nodes else ():
        state.console.step_ends(record)
    insists = any(step.on_fail == "fail" for step in steps)
    left_out = bool(said) and lead.may_leave_here()
    environment.failed = environment.failed or (insists and (left_out or bool(lead.nodes and lead.nodes.failed)))


def run_passes(state: State) -> None:
    """Every start of the target, in order."""
    process.become_subreaper()
    stdin = Stdin(_scratch(state) / "stdin", len(state.run.passes))
    began = time.perf_counter()
    for planned in state.run.passes:
        refusal = _refusal(state, planned, time.perf_counter() - began)
        if refusal:
            state.captures += [_not_run(planned, member, *refusal) for member in planned.members]
            continue
        _run_pass(state, planned, stdin)
        _keep_so_far(state)


def restore(state: State) -> None:
    """The machine as it was, whatever happened before, and whoever is impatient."""
    state.signals.held = True
    if state.lead and (left := state.lead.leave()):
        state.console.warn(left)
    if state.environment:
        verdicts = state.environment.restore()
        fine = [(v.part, v.reason) for v in verdicts if v.how == "restored" and not v.fix]
        state.console.put_back(state.environment.records, alike_once(fine))
        for verdict in verdicts:
            if verdict.how == "drifted" or (verdict.how == "restored" and verdict.fix):
                state.console.warn(f"environment: {verdict.text}" + (f"; {verdict.fix}" if verdict.fix else ""))
    if state.guard:
        state.guard.close()
    state.signals.held = False


def keep_raw(state: State) -> None:
    """raw/run.json: all that a rebuild needs beside the tools' own files. Where the disk does not take it (OSError), it
    is kept in scratch space."""
    _see_to_plan(state)
    try:
        state.folder.write_json("raw/run.json", _raw(state))
    except OSError:
        with contextlib.suppress(OSError):
            state.folder.elsewhere(_scratch(state)).write_json("run.json", _raw(state))
        raise
    _clear_scratch(state)  # now: should profrun be killed while it parses, nobody would


def _see_to_plan(state: State) -> None:
    """A target that tidies up may have taken the folder for its own. Nothing is rebuilt without the plan."""
    if state.request.into or (state.folder.path / "plan.yaml").exists():
        return
    state.console.warn(
        f"{state.folder.path} was deleted while the run went on: what raw/ had of earlier passes is lost"
    )
    with contextlib.suppress(OSError):
        _write_plan(state)


def _keep_so_far(state: State) -> None:
    """What `profrun report` needs if nothing more is ever written; then profrun was killed."""
    with contextlib.suppress(OSError):
        state.folder.write_json("raw/run.json", {**_raw(state), "interrupted_by": signal.SIGKILL.value})


def _raw(state: State) -> dict[str, Any]:
    """With what --into adds to: one report ends in one outcome, that of all its runs."""
    environment, earlier = state.environment, state.earlier or _NOTHING
    elsewhere = state.lead.nodes.records if state.lead and state.lead.nodes else []
    steps = [asdict(record) for record in (*(environment.records if environment else ()), *elsewhere)]
    return {
        "schema": RAW_SCHEMA,
        "run": {**asdict(state.info), "duration_s": round(time.perf_counter() - state.started, 3)},
        "machine": {**state.facts, **({"hosts": dict(sorted(state.lead.hosts.items()))} if state.lead else {})},
        "environment": [*earlier["environment"], *steps],
        "environment_failed": earlier["environment_failed"] or bool(environment and environment.failed),
        "interrupted_by": next(iter(state.signals.received), None),  # of an earlier run: this one may make up for that
        "strict": state.request.strict,
        "verify_repeatable": state.request.verify_repeatable,
        "passes": [*earlier["passes"], *(asdict(p) for p in state.passes)],
        "captures": [*earlier["captures"], *(capture_record(c) for c in state.captures)],
    }


_NOTHING: Mapping[str, Any] = {
    "environment": (), "environment_failed": False, "passes": (), "captures": ()
}  # fmt: skip


def normalise_and_render(state: State) -> None:
    """Tables, findings, pages; the same that `profrun report` does later."""
    state.report = rebuild(state.folder, state.run.plan, state.console)


def remember(state: State) -> None:
    """A row in the history of runs. Trouble with it is one warning."""
    history.record(state.report, history.asked(state.run.plan.report.history), state.console.warn)


def keep_log(state: State) -> None:
    """run.log: what was shown while it ran. Written before the page, which links to it, and again with what the parsers
    had to say."""
    state.folder.write("run.log", "\n".join(state.console.logged) + "\n")


def tidy_up(state: State) -> None:
    """Removes the scratch space, unless it holds what the report's disk has not taken."""
    _clear_scratch(state)
    for kept in (state.scratch, state.folder and state.folder.path):
        if kept and kept.exists():
            folder.hand_over(kept)


def _clear_scratch(state: State) -> None:
    if state.scratch and not any(_unmoved(state.scratch)):
        folder.remove(state.scratch)


def rebuild(target: folder.Folder, plan: Plan, console: Console) -> Report:
    """The report from raw/: parses, judges, diagnoses, renders, writes. Raises ReportError when raw/ holds no run."""
    from orchestrator import diagnose
    from orchestrator.locate import across

    raw = read_raw(target.path)
    _check_whole(target.path)
    console.stage("reading what the tools left")
    passes = [pass_from(p) for p in raw["passes"]]
    captures = list(captures_from(raw["captures"], passes, target.path))
    steps = [step_from(s) for s in raw["environment"]]
    target.clear_aside()
    try:
        result = normalise(captures, passes, plan, target.path, console.log, steps, target.store)
        parts = across(result.parts, result.captures, result.passes, console.log)
        shutil.rmtree(target.path / "tables", ignore_errors=True)
        written = {n: TableInfo(f"tables/{n}.parquet", target.write_table(n, pieces)) for n, pieces in parts.items()}
    finally:
        target.clear_aside()
    environment = result.environment
    report = Report(
        run=RunInfo(**{**raw["run"], "command": tuple(raw["run"]["command"])}),
        outcome=_outcome(raw, result.passes, result.captures, environment, plan, _repeatable(raw, result)),
        machine={**raw["machine"], **result.machine},
        environment=environment,
        passes=result.passes,
        captures=result.captures,
        tables=written,
        metrics=result.metrics,
        folder=target.path,
    )
    report = diagnose.diagnosed(report, console.log)
    target.write_json("machine.json", machine_facts(report))
    target.write_json("summary.json", summary(report))
    console.stage("writing the report")
    shown = load(target.path)  # as written, and so without secrets
    _draw(shown, target, console)
    render(shown, target, plan.report.formats)
    return shown


def _draw(report: Report, target: folder.Folder, console: Console) -> None:
    """The timeline. A fault in it costs nothing else."""
    from orchestrator import timeline

    (target.path / timeline.FILE).unlink(missing_ok=True)
    try:
        timeline.write(report, target)
    except Exception:
        console.log(f"the timeline: {traceback.format_exc()}")


def render(report: Report, target: folder.Folder, formats: Sequence[str]) -> None:
    """The flame graphs in three formats, and then the pages, which link to what is there."""
    from orchestrator.render import RENDERERS, flamegraph

    for stem, title, frame in flamegraph.of_report(report):
        stacks = flamegraph.Stacks.of_table(frame)
        target.write_clean(f"{stem}.folded", flamegraph.folded(stacks))
        target.write_clean(f"{stem}.speedscope.json", flamegraph.speedscope(stacks, title))
        target.write_clean(f"{stem}.svg", flamegraph.svg(stacks, title))
    for name in formats:
        file, module = RENDERERS[name]
        target.write_clean(file, importlib.import_module(module).render(report))


def read_raw(path: Path) -> dict[str, Any]:
    """raw/run.json of a report folder. Raises ReportError when there is none, or it is of another kind."""
    file = path / "raw" / "run.json"
    try:
        data = json.loads(file.read_text("utf-8", "surrogateescape"))
    except OSError as error:
        if (path / "summary.json").exists():
            why = "it was shared, or made smaller: it can be shown, not rebuilt or added to"
            raise ReportError(f"{path} has no raw files", why, f"profrun show {shlex.quote(str(path))}") from error
        raise ReportError(f"{path} holds no run", f"{file}: {error.strerror}", "name a report folder") from error
    except ValueError as error:
        raise ReportError(
            f"{file} is damaged", str(error), "nothing can be rebuilt from it; the tools' files are still there"
        ) from error
    if not isinstance(data, dict) or data.get("schema") != RAW_SCHEMA:
        raise ReportError(f"{file} is of another kind", f"not {RAW_SCHEMA}", "use the profrun that made it")
    try:
        list(captures_from(data["captures"], [*map(pass_from, data["passes"])], path))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise ReportError(f"{file} is damaged", said, f"profrun show {shlex.quote(str(path))}") from error
    return data


def _check_whole(path: Path) -> None:
    """Raises ReportError where raw files were deleted: what is made of those that are left would say less."""
    if (path / folder.THINNED).exists():
        why = f"profrun nightly has deleted raw files that were old, see {folder.THINNED}"
        raise ReportError(f"{path} can't be rebuilt or added to", why, "its tables and pages are there as before")


def _repeatable(raw: dict[str, Any], result: Normalised) -> Verdict | None:
    stopped = all(p.run is not None and p.run.ended_by == "window" for p in result.passes)
    steps = [table for table in result.parts.get("steps", ()) if isinstance(table, Table)]
    return compare(steps, stopped) if raw.get("verify_repeatable") else None


def _outcome(
    raw: dict[str, Any], passes: Any, captures: Any, environment: Any, plan: Plan, repeatable: Verdict | None = None
) -> Outcome:
    return judge(
        passes,
        captures,
        environment,
        ok_exit_codes=plan.target.ok_exit_codes,
        interrupted_by=raw["interrupted_by"],
        environment_failed=raw["environment_failed"] or _drifted(environment, plan),
        strict=raw["strict"],
        repeatable=repeatable,
    )


def _drifted(environment: Sequence[StepRecord], plan: Plan) -> bool:
    """Whether a step that the plan wants to `fail` on was applied, and yet the target did not run with it."""
    steps = zip(plan.environment, environment, strict=False)
    return any(step.on_fail == "fail" and record.status == "drifted" for step, record in steps)


# ---------------------------------------------------------------- a pass in the run


def _run_pass(state: State, planned: Pass, stdin: Stdin) -> None:
    able = state.checks.able(planned)
    for member in planned.members:
        obstacle = state.checks.obstacle(member)
        if obstacle:
            status: Status = "blocked" if obstacle.verdict == "blocked" else "skipped"
            reason = obstacle.message + (f"; {obstacle.fix}" if obstacle.fix else "")
            state.captures.append(_not_run(planned, member, status, reason))
    able = _willing(state, planned, able)
    able, found = _with_picks(state, planned, able)
    if not able:
        return
    planned = replace(planned, members=able)
    for attempt in range(1, planned.retry + 2):
        record, captures = _attempt(state, planned, stdin, attempt, found)
        if attempt > planned.retry or state.signals.received or not _worth_another(record, captures):
            break
        state.console.warn(f"{', '.join(_lost(captures))} lost its data; the pass is run again (target.retry)")
        for capture in captures:
            _set_aside(state.folder.raw(capture.id), attempt)
        for place in state.folder.raw("").glob(f"{planned.id}-target*"):
            if re.fullmatch(r"p\d+-target(@[^@]*\.[rt]\d+)?", place.name):
                _set_aside(place, attempt)
    state.passes.append(record)
    state.captures += captures
    state.told |= _told_by(planned, captures)


def _willing(state: State, planned: Pass, able: tuple[Collector, ...]) -> tuple[Collector, ...]:
    """The members that have nothing against taking part, after what earlier passes have told."""
    answers = [(member, member.declines(state.told, bool(state.run.pids))) for member in able]
    state.captures += [_not_run(planned, member, "skipped", why) for member, why in answers if why]
    return tuple(member for member, why in answers if not why)


def _told_by(planned: Pass, captures: Sequence[Capture]) -> dict[str, Any]:
    told: dict[str, Any] = {}
    by_use = {member.use: member for member in planned.members}
    for member, capture in ((by_use[capture.collector], capture) for capture in captures):
        with contextlib.suppress(Exception):  # whoever parses it later says what is wrong with it
            told.update(member.tells(capture) if capture.status in USABLE else {})
    return told


def _with_picks(state: State, planned: Pass, able: tuple[Collector, ...]) -> tuple[tuple[Collector, ...], Picks | None]:
    """The members that can take part, and the kernels for the one that has them chosen by an earlier capture."""
    if not planned.needs:
        return able, None
    state.console.stage(f"choosing kernels from {' or '.join(planned.needs)}")
    past = _past(state)
    answers = [(member, picks.chosen(member, past)) for member in able]
    for member, answer in answers:
        if isinstance(answer, tuple):
            state.captures.append(_not_run(planned, member, *answer))
    rest = tuple(member for member, answer in answers if not isinstance(answer, tuple))
    return rest, next((answer for _, answer in answers if isinstance(answer, Picks)), None)


def _past(state: State) -> picks.Past:
    """What has been captured: earlier in the report that is added to, and in this run."""
    earlier = state.earlier or {"passes": [], "captures": []}
    passes = [*map(pass_from, earlier["passes"]), *state.passes]
    captures = captures_from(earlier["captures"], passes, state.folder.path)
    return picks.Past([*captures, *state.captures], passes, state.folder.path)


def _attempt(
    state: State, planned: Pass, stdin: Stdin, attempt: int, found: Picks | None
) -> tuple[PassRecord, list[Capture]]:
    wall_s = _bare_wall_s(state)
    expected_s = wall_s * resolve.slowdown(planned) if wall_s is not None else None
    state.console.pass_begins(planned, expected_s)
    guard = _guard(state)
    guard.pass_begins(f"{state.info.id}/{planned.id}", _pids(state))
    try:
        run_pass = state.lead.run_pass if state.lead else collect.run_pass
        record, captures = run_pass(planned, replace(_context(state, planned, stdin), picks=found), attempt)
    except OSError as error:
        record, captures = _cut_off(state, planned, error)
    guard.pass_ends()
    for capture in captures:
        with contextlib.suppress(OSError):  # for people; raw/run.json has it, too
            state.folder.write_json(f"raw/{capture.id}/command.json", capture_record(capture))
    state.console.pass_ends(record, captures)
    return record, captures


def _pids(state: State) -> tuple[int, ...]:
    """The named processes that are still there; a number that is another process's by now is none of them."""
    return tuple(one.pid for one in state.run.attached if one.parent is None and attached.lives(one))


def _cut_off(state: State, planned: Pass, error: OSError) -> tuple[PassRecord, list[Capture]]:
    """A pass that profrun itself could not bring to its end; the others may still be possible."""
    reason = f"profrun could not go on with it: {error.strerror or error}; what there is lies in {state.scratch}"
    captures = [_not_run(planned, member, "cancelled", reason) for member in planned.members]
    return PassRecord(planned.id, planned.role, tuple(m.use for m in planned.members), planned.repeat), captures


def _worth_another(record: PassRecord, captures: Sequence[Capture]) -> bool:
    ended_well = record.run is not None and record.run.ended_by == "itself"
    return ended_well and bool(_lost(captures))


def _lost(captures: Sequence[Capture]) -> list[str]:
    return list(dict.fromkeys(capture.collector for capture in captures if capture.status == "tool_failed"))


def _set_aside(path: Path, attempt: int) -> None:
    if path.exists():
        path.rename(path.with_name(f"{path.name}.attempt{attempt}"))


def _context(state: State, planned: Pass, stdin: Stdin) -> Context:
    plan, request = state.run.plan, state.request
    first = planned.index == state.run.passes[0].index
    return Context(
        run_id=state.info.id,
        folder=state.folder,
        scratch=_scratch(state),
        target=state.run.target,
        machine=state.machine,
        stdin=stdin,
        interrupts=state.signals,
        observer=state.console,
        child=state.environment.child if state.environment else Child(),
        end_leftovers=plan.leftovers == "end",
        before_each=tuple(plan.target.before_each or ()),
        ok_exit_codes=frozenset(plan.target.ok_exit_codes),
        redact=redact.argv,
        outputs=request.outputs if first or request.show_all_output else None,
        facts={**state.facts, **state.told, **_left_by_bare(state), "environment": _in_force(state)},
        bare_wall_s=_bare_wall_s(state),
        pids=_pids(state),
        on_start=_guard(state).started,
        ranks=plan.launcher.ranks,
        ranks_told=state.run.expected.here,
        inject={"ranges": plan.ranges, "digest": request.verify_repeatable} if plan.target.inject else None,
    )


def _left_by_bare(state: State) -> dict[str, Any]:
    """How many processes the bare runs left running; unknown before there was one."""
    bare = [p.run for p in state.passes if p.role in ("warmup", "bare") and p.run]
    return {"leftovers": sum(len(run.leftovers) for run in bare)} if bare else {}


def _in_force(state: State) -> tuple[str, ...]:
    """The environment steps that hold while the passes run, and of each the parts that do, as `use: part`."""
    records = state.environment.records if state.environment else []
    parts = (f"{record.use}: {part.name}" for record in records for part in record.parts if part.status in IN_FORCE)
    return (*(record.use for record in records if record.status in IN_FORCE), *parts)


def _refusal(state: State, planned: Pass, spent_s: float) -> tuple[Status, str] | None:
    """Why a pass is not run at all; None when it is."""
    if state.environment and state.environment.failed:
        return "cancelled", "the environment was not applied"
    if state.signals.received:
        return "cancelled", "the run was interrupted"
    failed = _failed_bare(state)
    if failed and not state.request.keep_going:
        return "cancelled", f"the first bare run failed ({failed}); --keep-going runs the other passes all the same"
    if state.run.pids and not _pids(state):
        return "empty", f"process {', '.join(map(str, state.run.pids))} had ended before this pass"
    for place in (state.folder.path, _scratch(state)):
        if shutil.disk_usage(place).free < folder.NEEDED_BYTES:
            return "skipped", f"the disk of {place} is nearly full"
    return _over_budget(state, planned, spent_s)


def _failed_bare(state: State) -> str | None:
    bare = bare_run(state.passes)
    if bare is None or bare.ended_by == "window":
        return None
    if bare.ended_by == "timeout":
        return "time-out"
    fine = bare.exit is not None and bare.exit.status in state.run.plan.target.ok_exit_codes
    return None if fine else str(bare.start_error or bare.exit.describe())


def _over_budget(state: State, planned: Pass, spent_s: float) -> tuple[Status, str] | None:
    wall_s, budget = _bare_wall_s(state), state.run.plan.budget
    limit_s = resolve.budget_s(budget, wall_s)
    if limit_s is None:
        return None
    expected_s = wall_s * resolve.slowdown(planned) if wall_s is not None else None
    if spent_s + (expected_s or 0.0) <= limit_s:
        return None
    needed = "how long it takes is unknown" if expected_s is None else f"about {expected_s:.1f} s needed"
    words = f"{spent_s:.1f} s spent, {needed}, {limit_s:.1f} s allowed"
    return "skipped", f"it would go beyond the budget: {words}"


def _bare_wall_s(state: State) -> float | None:
    bare = [p.run.wall_s for p in state.passes if p.role in ("warmup", "bare") and p.run]
    return bare[-1] if bare else None


def _not_run(planned: Pass, member: Collector, status: Status, reason: str) -> Capture:
    options = {**member.model_dump(mode="json"), "role": planned.role, "repeat": planned.repeat}
    name = f"{planned.id}-{member.label()}"
    return Capture(name, planned.id, member.use, status, reason, options=options, required=member.required)


# ---------------------------------------------------------------- facts of the run


def _write_plan(state: State) -> None:
    scrub = state.folder.scrub
    state.folder.write_clean("plan.yaml", dump(_named(state.run), lambda tree: redact.texts(tree, scrub)))


def _named(run: resolve.Run) -> Plan:
    """The plan with the command that was really given, so that the report stands alone; without secrets."""
    changes = {"command": redact.argv(run.target.argv), "env": redact.tree(dict(run.plan.target.env))}
    return run.plan.model_copy(update={"target": run.plan.target.model_copy(update=changes)})


def _info(state: State) -> RunInfo:
    if state.earlier:
        known = state.earlier["run"]
        return RunInfo(**{**known, "command": tuple(known["command"])})
    return RunInfo(
        id=state.folder.path.name,
        name=state.run.name,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        duration_s=0.0,
        command=redact.argv(state.run.target.argv),
        cwd=state.run.target.cwd,
        profrun_version=__version__,
    )


def _facts(state: State) -> dict[str, Any]:
    target = state.run.target
    shown = redact.environment(target.env, state.run.plan.report.env_show)
    # what another start of a running process's executable says need not hold for that process (its venv is not in it)
    interpreter = {} if state.run.pids else _interpreter(_program_file(state.run), target.env)
    return {
        **state.machine.facts(),
        "target": {"executable": target.exe, "shims": list(target.shims), **interpreter},
        "environment_variables": {name: text for name, text in shown.items() if text != redact.HIDDEN},
        "hidden_environment_variables": sum(text == redact.HIDDEN for text in shown.values()),
    }


def _program_file(run: resolve.Run) -> str:
    """The program's own file; of a job of tasks as it is on this host."""
    if not run.tasks:
        return run.target.exe
    return shutil.which(run.program[0], path=run.target.env.get("PATH")) or run.program[0]


_PYTHON = re.compile(r"(?:python|pypy)[\d.]*[a-z]?")
"""Names of interpreters; a program called python-train must not be started to be asked what it is."""
_ASK_PYTHON = """
import sys, json
try:
    from importlib.metadata import version
    torch = version("torch")
except Exception:
    torch = None
print(json.dumps([sys.version.split()[0], torch, sys.executable]))
"""


def _interpreter(exe: str, env: Any) -> dict[str, Any]:
    """Which Python the target gets, and which torch; asked of that interpreter, without importing torch."""
    python = _python_of(exe)
    if python is None:
        return {"interpreter": None}
    answer = process.ask([python, "-c", _ASK_PYTHON], env=env, timeout_s=10)
    try:
        version, torch, path = json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"interpreter": None}
    words = f"Python {version} ({path})" + (f", torch {torch}" if torch else ", no torch")
    return {"interpreter": words, "python": version, "torch": torch}


def _python_of(exe: str) -> str | None:
    """The interpreter that will run it: itself, or the one on a script's first line."""
    if _PYTHON.fullmatch(Path(exe).name):
        return exe
    try:
        with Path(exe).open("rb") as file:
            first = file.readline(512).decode("utf-8", "replace")
    except OSError:
        return None
    words = first[2:].split() if first.startswith("#!") else []
    return words[0] if words and _PYTHON.fullmatch(Path(words[0]).name) and os.access(words[0], os.X_OK) else None


def _known_bare_wall_s(state: State) -> float | None:
    """The bare wall time of the latest report on the same command, for the estimate."""
    return resolve.known_bare_wall_s(state.folder.path.parent, state.info.command, but=state.folder.path)


def _next_index(state: State) -> int:
    into = state.request.into
    if into is None or not (into / "raw").is_dir():
        raise UsageError(f"--into {into}: no report there", "", "name an existing report folder")
    _check_whole(into)
    numbers = [int(p["id"][1:]) for p in read_raw(into)["passes"] if p["id"][1:].isdigit()]
    return max(numbers, default=0) + 1


def _check_same_command(into: Path, command: Sequence[str]) -> None:
    """One report is of one program: what is compared in it must be comparable."""
    run = read_raw(into)["run"]
    if run.get("imported"):
        why = "its files were measured elsewhere, and a run here can't be compared with them"
        raise UsageError(f"--into {into}: that report was imported", why, "leave --into out")
    known = run["command"]
    if list(command) != known:
        why = f"it holds runs of: {shlex.join(known)}"
        raise UsageError(f"--into {into}: that report is of another command", why, "give that command, or leave it out")


def _check_complete(run: resolve.Run) -> None:
    """A report's own plan has the command and its environment without their secrets: nothing can be run with that."""
    given = (*run.target.argv, *run.plan.target.env.values())
    if not run.pids and any(redact.MASK in word for word in given):
        why = "a report keeps its command, and its plan's target.env, without their secrets"
        raise UsageError("that report's plan can't be run again", why, "name your own plan, and the command after --")


def _guard(state: State) -> Guard:
    if state.guard is None:
        raise AssertionError("the guard comes before the folder")
    return state.guard


def _scratch(state: State) -> Path:
    if state.scratch is None:
        raise AssertionError("scratch is made with the folder")
    return state.scratch


def _unmoved(scratch: Path) -> list[Path]:
    """What the report's disk did not take; it must not be thrown away."""
    return [*scratch.glob("p*.*/*"), *scratch.glob("run.json")]


_REMEDIES = {
    errno.ENOSPC: "make room", errno.EDQUOT: "make room",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.ENOMEM: "raise the limit on memory (ulimit -v, or the job's)",
}  # fmt: skip
"""What helps, by what was missing."""


def _lacking(error: Exception) -> int | None:
    """The number of what the machine did not give, disk or memory; None for a fault of ours."""
    no_room = isinstance(error, ImportError) and re.search("failed to map|cannot allocate", str(error), re.I)
    if isinstance(error, MemoryError) or no_room:
        return errno.ENOMEM
    number = error.errno if isinstance(error, OSError) else None
    return number if number in (errno.ENOMEM, *folder.DISK_TROUBLE) else None


def _unwritten(state: State, number: int) -> FolderError:
    """What to say when the disk has not taken the report: why, and how the report can still be made. The exit status is
    the run's own, or that of data that is lost."""
    path, why, remedy = state.folder.path, os.strerror(number), _REMEDIES.get(number, "mend that")
    if not state.passes:
        return FolderError(f"{path} can't be written", why, f"{remedy}, or name a folder on another disk with -o DIR")
    kept = _scratch(state) / "run.json"
    report = shlex.quote(str(path))
    first = f"mv {shlex.quote(str(kept))} {report}/raw/ && " if kept.exists() else ""
    result = FolderError(
        f"the report in {path} can't be finished", why, f"{remedy}, then: {first}profrun report {report}"
    )
    records = state.environment.records if state.environment else []
    result.exit_code = (
        _outcome(_raw(state), state.passes, state.captures, records, state.run.plan).exit_code or EXIT_CAPTURE
    )
    return result
