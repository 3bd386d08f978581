"""One night as a visible list of stages: the plan is run, its time judged against the nights before it, and told."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator import folder, history, journal, locks, process, redact, registry, runner
from orchestrator.comparing.words import Comparison
from orchestrator.env_steps.waiting import Waiting
from orchestrator.errors import EXIT_BUG, EXIT_GATE, BusyError, HistoryError, PreflightError, ProfrunError, UsageError
from orchestrator.historic import facts
from orchestrator.history import Night
from orchestrator.nights import kept, note, thin
from orchestrator.nights.judge import NEEDED, Judgement, Past, by_quickest, judge
from orchestrator.nights.words import FLAGGED, NEW_LEVEL, Cut, Nightly, Thinned, Told
from orchestrator.plan import Plan
from orchestrator.planfile import plans
from orchestrator.report import Report, load
from orchestrator.units import Times, show_duration

QUICK = "quick_step_s"
FIGURES = ("step_s", QUICK, "wall_s")
"""What a night is judged by: the step where the program has any, else the bare run."""
JUDGED = frozenset({"accepted", *FLAGGED})
QUIET = ("cpu_idle", "gpu_idle")
"""The steps that say whether the machine was quiet. A night waits for it, also where the plan would only look."""
QUIET_WAIT_S = 600.0
REPORT_S = 900.0
"""Beside its passes and waits a night makes a report: so long at most."""
_HOOK_S = 60.0
_LOOK_EVERY_S = 1.0
_TOLD_CHANGES = 8
_COMPARED_WITH = 5
"""Of the accepted nights, the newest; were it only the last one, a night that was odd itself would keep all to come
from being judged."""


@dataclass
class State:
    """A night while it happens; each stage fills in its part."""

    nightly: Nightly
    console: runner.Console
    started_at: str = field(default_factory=kept.utc)
    began: float = field(default_factory=time.monotonic)
    held: locks.Locks = field(default_factory=locks.Locks)
    cut: Cut | None = None
    plan: Plan = None  # type: ignore[assignment]
    report: Report = None  # type: ignore[assignment]
    nights: list[Night] = field(default_factory=list)
    """All judged nights of this name, the oldest first."""
    like: list[Night] = field(default_factory=list)
    """Those of the same environment."""
    flagged: frozenset[str] = frozenset()
    """The reports that stay whole, of other hosts, too: they may lie in the same folder."""
    told: Told = None  # type: ignore[assignment]
    thinned: list[Thinned] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    """What else is worth a word on stderr."""

    @property
    def where(self) -> str:
        return database(self.nightly, self.plan)


def run(nightly: Nightly, console: runner.Console) -> tuple[Told, list[str]]:
    """Runs a night: (what is to be told of it, troubles beside it). Raises ProfrunError where it could not begin, or
    could not be judged for a fault outside of it."""
    state = State(nightly, console)
    try:
        hold_name(state)
        try:
            for stage in STAGES:
                stage(state)
        except ProfrunError as error:
            _could_not(state, error.what, error.exit_code)
            raise
        except Exception as error:
            _could_not(state, f"a fault of profrun: {type(error).__name__}: {error}", EXIT_BUG)
            raise
        end(state)
        return state.told, state.troubles
    finally:
        state.held.release()


def database(nightly: Nightly, plan: Plan) -> str:
    """Where its nights are remembered: in the history that the plan or PROFRUN_HISTORY names, else beside its reports,
    as without any nothing can be judged."""
    asked = history.asked(plan.report.history)
    return asked if asked and asked != history.OFF else nightly.output


# ---------------------------------------------------------------- the stages


def hold_name(state: State) -> None:
    """One night of a name at a time."""
    name = state.nightly.name
    if same := state.held.take([f"nightly {name}"]):
        raise BusyError(
            f"a night of {name} is under way", same[0].text(), f"how it stands: profrun nightly list {name}"
        )


def hold_machine(state: State) -> None:
    """One nightly at a time on the machine: another one's end is waited for."""
    give_up_s = time.monotonic() + state.nightly.wait_s
    while others := state.held.take(["nightly"]):
        if time.monotonic() > give_up_s:
            raise locks.busy(others)
        time.sleep(_LOOK_EVERY_S)
    state.held.sign(journal.about("", state.nightly.output, ()))


def begin(state: State) -> None:
    """Writes down that a night is under way. One that was begun and never ended is named, and does not count."""
    earlier = kept.night_begins(state.nightly.name)
    if earlier is None:
        return
    since = str(earlier.get("started_at"))
    by = "a kill" if earlier.get("boot_id") == journal.boot_id() else "a reboot"
    report = _report_since(Path(state.nightly.output), state.nightly.name, since)
    state.cut = Cut(since, by, str(report) if report else None)


def _report_since(reports: Path, name: str, since: str) -> Path | None:
    """The first report of that name that was begun then or later."""
    stamp = re.sub(r"[:-]", "", since)
    one = re.compile(re.escape(name) + r"-(\d{8}T\d{6}Z)-[a-z]{4}")
    found = sorted(path for path in reports.iterdir() if one.fullmatch(path.name)) if reports.is_dir() else []
    return next((path for path in found if path.name[len(name) + 1 :] >= stamp), None)


def run_plan(state: State) -> None:
    """The plan, once the machine is quiet: its steps wait for that."""
    nightly = state.nightly
    state.plan = plan_of(nightly)
    if not folder.has_room(Path(nightly.output)):
        thin_raw(state)  # what is old goes first, so that a full disk does not stay full
    request = runner.Request(
        plan=state.plan,
        command=nightly.command,
        output=Path(nightly.output),
        outputs=None,
        wait_s=max(0.0, nightly.wait_s - (time.monotonic() - state.began)),
    )
    state.report = runner.run(request, state.console)


def plan_of(nightly: Nightly) -> Plan:
    """The plan as a night runs it: in its folder, under its own name, within its budget, on a quiet machine."""
    try:
        os.chdir(nightly.cwd)
    except OSError as error:
        why = error.strerror or str(error)
        raise PreflightError(f"{nightly.cwd} can't be used", why, "make it, or install the nightly anew") from error
    plan = plans.load(plans.find(nightly.plan), [*nightly.sets, f"name={json.dumps(nightly.name)}"])
    planned = isinstance(plan.budget, Times) and not nightly.budget_given
    budget = plan.budget if planned else nightly.budget_s
    return plan.model_copy(update={"budget": budget, "environment": tuple(_quiet_steps(plan))})


def _quiet_steps(plan: Plan) -> Iterator[Any]:
    there = {step.use for step in plan.environment}
    for use in (use for use in QUIET if use not in there):
        on_fail = "ignore" if use == "gpu_idle" else "warn"  # there need not be a GPU
        yield registry.environment_step(use).model_validate({"use": use, "wait": QUIET_WAIT_S, "on_fail": on_fail})
    for step in plan.environment:
        only_looks = isinstance(step, Waiting) and step.use in QUIET and not step.wait
        yield step.model_copy(update={"wait": QUIET_WAIT_S}) if only_looks else step


def ends_after_s(plan: Plan, budget_s: float) -> float:
    """When a night with that plan is ended at the latest: its passes, its waits, its report."""
    return budget_s + sum(step.wait for step in plan.environment if isinstance(step, Waiting)) + REPORT_S


def judge_night(state: State) -> None:
    """Its figure against those of the nights before it in the same environment."""
    report, nightly = state.report, state.nightly
    history.record(report, state.where, state.troubles.append)
    print_, environment = history.fingerprint(report)
    known, unread = _known(state)
    state.flagged = frozenset(Path(night.path).name for night in known if night.verdict in FLAGGED)
    state.nights = list(_of_this_host(known))
    state.like = [night for night in state.nights if night.fingerprint == print_]
    name, lost = _figure_of(state)
    value = _figure(report.metrics, name) if name else None
    obstacle = unread or _obstacle(state, value, lost)
    past = list(_past(state.like, name)) if name else []
    judged = judge(past, value) if value is not None and not obstacle else Judgement("unjudged", obstacle)
    new, gone = _findings(state)
    notes = _beside(state) if name == QUICK and judged.verdict == "accepted" else ()
    state.told = Told(
        name=nightly.name,
        run_id=report.run.id,
        report=str(report.folder.absolute()),
        started_at=state.started_at,
        duration_s=0.0,
        judgement=judged,
        pages=tuple(page for page in ("index.html", "report.md") if (report.folder / page).exists()),
        metric=name,
        value_s=value,
        run_status=report.outcome.status,
        run_reason=report.outcome.reason,
        exit_code=report.outcome.exit_code or _exit_code(judged),
        starts_anew=tuple(_changed(state, environment)),
        cut=state.cut,
        new_findings=new,
        gone_findings=gone,
        notes=notes,
    )


def _known(state: State) -> tuple[list[Night], str]:
    """(the nights before it, why they can't be known)."""
    try:
        nights = history.nights(state.nightly.name, where=state.where)
    except HistoryError as error:
        return [], f"the nights before it are unknown: {_said(error)}"
    nights = [night for night in nights if night.run_id != state.report.run.id]
    known = _not_to_come(nights)
    ours = list(_of_this_host(nights))
    if ours and not any(_of_this_host(known)):
        return [], f"this machine's clock is behind: its newest night is of {ours[-1].started_at}"
    return known, ""


def _not_to_come(nights: Sequence[Night]) -> list[Night]:
    """Without those of a clock that was ahead: such a one would be the newest for ever."""
    now = kept.utc()
    return [night for night in nights if night.started_at <= now]


def _said(error: ProfrunError) -> str:
    return "; ".join(part for part in (error.what, error.why) if part)


def _unjudged(state: State, why: str) -> None:
    """What was judged does not hold."""
    judged = Judgement("unjudged", why)
    code = state.report.outcome.exit_code or _exit_code(judged)
    state.told = replace(state.told, judgement=judged, exit_code=code)


def _of_this_host(nights: Sequence[Night], verdicts: Collection[str] = JUDGED) -> Iterator[Night]:
    """Those with these verdicts. A team's history also holds nights of other hosts, which may be alike and yet not as
    fast."""
    return (night for night in nights if night.verdict in verdicts and night.host in (None, platform.node()))


def _figure_of(state: State) -> tuple[str | None, str]:
    """(what the night is judged by, why it can't be): the step, unless too few nights before it had any. A program
    whose steps are gone has not become faster because its run is short."""
    accepted = [night for night in state.like if night.verdict == "accepted"]
    known = [name for name in FIGURES if _figure(state.report.metrics, name) is not None]
    if accepted and FIGURES[0] not in known and _figure(accepted[-1].metrics, FIGURES[0]) is not None:
        return FIGURES[0], "no steady steps were timed, which the nights before had"
    counts = {name: sum(_figure(night.metrics, name) is not None for night in accepted) for name in known}
    name = max(known, key=lambda name: min(counts[name], NEEDED), default=None)
    if name == FIGURES[0] and QUICK in known and by_quickest(*(list(_past(state.like, x)) for x in (name, QUICK))):
        return QUICK, ""
    return name, ""


def _beside(state: State) -> tuple[str, ...]:
    """What the usual step of a night says whose quickest steps are as usual: it may have grown in some steps only."""
    value = _figure(state.report.metrics, FIGURES[0])
    found = judge(list(_past(state.like, FIGURES[0])), value) if value is not None else None
    if found is None or found.off is None or found.verdict not in ("suspect", "regressed") or found.off < 0:
        return ()
    return (f"the usual step is {found.off:+.1%}: slower in some steps only, or the machine was busier",)


def _figure(metrics: Mapping[str, Any], name: str) -> float | None:
    """Its median over the bare runs: one that was disturbed does not move it."""
    metric = metrics.get(name)
    value = None if metric is None else metric.median if metric.median is not None else metric.value
    return value if value and value > 0 else None


def _past(nights: Sequence[Night], figure: str) -> Iterator[Past]:
    for night in nights:
        value = _figure(night.metrics, figure)
        if value is not None and night.verdict:
            yield Past(night.run_id, value, night.verdict, night.note.startswith(NEW_LEVEL))


def _obstacle(state: State, value: float | None, lost: str) -> str:
    """Why the night says nothing; empty where it does. lost: why there is no value, where it is known."""
    outcome, limit_s = state.report.outcome, state.nightly.end_after_s
    if outcome.status == "interrupted" and limit_s is not None and time.monotonic() - state.began > limit_s - 1:
        return f"its time was over after {show_duration(limit_s)}"
    if outcome.status not in ("ok", "incomplete"):
        return outcome.reason or outcome.status
    steps = [one for one in state.report.environment if not one.ignored]
    noisy = [one for one in steps if one.use in (*QUIET, "quiet_services") and one.status == "failed"]
    if noisy:
        return "not quiet: " + "; ".join(f"{one.use}: {one.reason or 'somebody was at work'}" for one in noisy)
    loose = [one for one in steps if one.status in ("failed", "drifted")]
    if loose:
        said = "; ".join(f"{one.name} {one.status}: {one.reason or 'see the report'}" for one in loose)
        return f"the machine was not as the plan wants it: {said}"
    return "" if value is not None else lost or "no time was measured: the plan has no `timing`"


def _exit_code(judged: Judgement) -> int:
    """A suspect night is told and fails nothing: half of them are chance."""
    return EXIT_GATE if judged.verdict in ("regressed", "unjudged") else 0


def _changed(state: State, environment: Mapping[str, Any]) -> Iterator[str]:
    """Why there is no earlier night of the same environment, though there are nights."""
    if state.nights and not state.like:
        for fact, before, now in facts.differences(state.nights[-1].environment, environment):
            yield f"{fact}: {before} -> {now}"


def _findings(state: State) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(new, gone) beside those of the newest accepted night. By rule: titles hold figures."""
    before = next((night for night in reversed(state.like) if night.verdict == "accepted"), None)
    if before is None:
        return (), ()
    now = {(one.rule, one.category): one.title for one in state.report.findings if one.severity != "info"}
    then = {(one["rule"], one["category"]): str(one["title"]) for one in before.findings if one["severity"] != "info"}
    new = tuple(title for key, title in now.items() if key not in then)
    return new, tuple(title for key, title in then.items() if key not in now)


def compare_night(state: State) -> None:
    """What has changed since the newest accepted night that can be compared with it. A fault in that costs nothing
    else. Where there are accepted nights and none is like it, the night is not judged."""
    there = [night for night in reversed(state.like) if night.verdict == "accepted" and Path(night.path).is_dir()]
    refused: list[str] = []
    for night in there[:_COMPARED_WITH]:
        found = _compared(state, night)
        if found is None:
            continue
        if not found.refused:
            changes = tuple(blame.sentence for blame in found.attribution[:_TOLD_CHANGES])
            noted = (*state.told.notes, *(f"compare: {one}" for one in found.notes))
            state.told = replace(state.told, against=night.path, headline=found.headline, changes=changes, notes=noted)
            return
        facts = "; ".join(f"{one.fact}: {one.a} -> {one.b}" for one in found.refusals)
        refused.append(f"not to be compared with {night.run_id}: {facts}")
    if refused and state.told.judgement.verdict != "unjudged":
        _unjudged(state, refused[0])


def _compared(state: State, night: Night) -> Comparison | None:
    from orchestrator.compare import compare

    try:
        return compare(load(Path(night.path)), state.report)
    except ProfrunError as error:
        state.troubles.append(f"it could not be compared with {night.run_id}: {error.what}")
    except Exception:
        state.console.log(f"compare: {traceback.format_exc()}")
        state.troubles.append(f"it could not be compared with {night.run_id}: a fault of profrun, see run.log")
    return None


def thin_raw(state: State) -> None:
    """Raw files of old nights, by age and then by size. Flagged nights, and this one, stay whole."""
    nightly = state.nightly
    whole = {*state.flagged, *([state.report.folder.name] if state.report else [])}
    try:
        done, more = thin.thin(
            Path(nightly.output), nightly.name, whole, state.plan.report.keep_raw, nightly.most_raw_bytes
        )
    except OSError as error:
        state.troubles.append(f"old raw files could not be looked through: {error.strerror or error}")
        return
    state.thinned += done
    if state.told:
        notes = (*state.told.notes, *([more] if more else []))
        state.told = replace(state.told, thinned=tuple(state.thinned), notes=notes)


def write_note(state: State) -> None:
    """night.md for people, night.json for programs."""
    state.told = replace(state.told, duration_s=round(time.monotonic() - state.began, 3))
    target = folder.Folder(state.report.folder, redact.in_text)
    try:
        target.write("night.md", note.page(state.told))
        target.write("night.json", note.as_json(state.told) + "\n")
    except OSError as error:
        state.troubles.append(f"the night can't be written down in its report: {error.strerror or error}")


def remember_night(state: State) -> None:
    """The verdict, for the nights to come."""
    told, judged = state.told, state.told.judgement
    try:
        adopted = [night for night in state.like if night.run_id in judged.adopted]
        _accept(state.where, adopted, f"faster for {len(adopted) + 1} nights in a row")
        history.set_verdict(told.run_id, note.remembered(told), note.remark(told), state.where)
    except HistoryError as error:
        if judged.verdict != "unjudged":
            _unjudged(state, f"it can't be remembered: {_said(error)}")


def _accept(where: str, nights: Sequence[Night], why: str) -> None:
    """The first of these begins a new level. Their reports keep that, too, as they outlive a database."""
    for number, night in enumerate(nights):
        says = why if number else f"{NEW_LEVEL}: {why}"
        history.set_verdict(night.run_id, "accepted", says, where)
        file = Path(night.path) / "night.json"
        with contextlib.suppress(OSError, ValueError):
            data = json.loads(file.read_text())
            data["remembered"] = {"verdict": "accepted", "note": says}
            folder.write_atomic(file, (json.dumps(data, indent=1) + "\n").encode())


def call_hook(state: State) -> None:
    """The user's own command, with night.json on its stdin."""
    file = state.report.folder / "night.json"
    _call(state, note.as_json(state.told), file if file.exists() else None)


def _could_not(state: State, said: str, exit_code: int) -> None:
    """A night that could not begin, or be brought to its end, is worth an alarm as well."""
    known = {"verdict": "unjudged", "sentence": said, "exit_code": exit_code}
    about = {"schema": note.SCHEMA, "name": state.nightly.name, "started_at": state.started_at}
    report = str(state.report.folder.absolute()) if state.report else None
    _call(state, json.dumps({**about, "report": report, **known}, indent=1))
    with contextlib.suppress(OSError):  # what has ended the night may keep that from being written, too
        kept.night_ends(state.nightly.name, **known)
    for trouble in state.troubles:
        print(f"profrun: {trouble}", file=sys.stderr)


def _call(state: State, text: str, file: Path | None = None) -> None:
    """The hook, with the file that holds the text; without one, as on a full disk, with the text itself."""
    hook = state.nightly.hook
    if hook is None:
        return
    argv = ["sh", "-c", 'exec sh -c "$1" <"$2"', "sh", hook, str(file)]
    if file is None:
        argv = ["sh", "-c", 'printf "%s\\n" "$2" | sh -c "$1"', "sh", hook, redact.in_text(text)]
    answer = process.ask(argv, timeout_s=_HOOK_S)
    if not answer.ok:
        last = answer.stderr.strip().splitlines()[-1:] or [answer.exit.describe() if answer.exit else "no answer"]
        said = answer.error or last[0]
        state.troubles.append(f"the hook failed: {said}")


STAGES = (
    hold_machine, begin, run_plan, judge_night, compare_night, remember_night, thin_raw, write_note, call_hook,
)  # fmt: skip


def end(state: State) -> None:
    told = state.told
    kept.night_ends(
        told.name,
        run_id=told.run_id,
        report=told.report,
        verdict=note.verdict(told),
        sentence=note.sentence(told),
        exit_code=told.exit_code,
        troubles=state.troubles,
    )


# ---------------------------------------------------------------- accept


def accept(nightly: Nightly, run_id: str | None) -> list[str]:
    """Makes flagged nights the new level, from that run on or all of them since the last accepted night: their ids.
    Raises UsageError where there are none, BusyError while a night is under way."""
    held = locks.Locks()
    if busy := held.take([f"nightly {nightly.name}"]):
        raise BusyError(f"a night of {nightly.name} is under way", busy[0].text(), "wait for its end")
    try:
        where = database(nightly, plan_of(nightly))
        which = JUDGED if run_id is None else {*JUDGED, "unjudged"}  # whoever names one knows better
        nights = list(_of_this_host(_not_to_come(history.nights(nightly.name, where=where)), which))
        runs = _to_accept(nights, run_id)
        if not runs:
            newest = f"the newest is {nights[-1].run_id}: {nights[-1].verdict}" if nights else "there is no night yet"
            raise UsageError("there is no flagged night to accept", newest, f"profrun nightly list {nightly.name}")
        _accept(where, [night for night in nights if night.run_id in runs], "accepted by hand")
        return runs
    finally:
        held.release()


def _to_accept(nights: Sequence[Night], run_id: str | None) -> list[str]:
    ids = [night.run_id for night in nights]
    if run_id is not None:
        if run_id not in ids:
            raise UsageError(f"there is no night {run_id}", f"there are: {', '.join(ids[-5:])}", "")
        first = ids.index(run_id)
        return [night.run_id for night in nights[first:] if night.verdict in FLAGGED or night.run_id == run_id]
    row: list[str] = []
    for night in reversed(nights):
        if night.verdict == "accepted":
            break
        row.insert(0, night.run_id)
    return row
