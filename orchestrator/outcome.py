"""What a run ends in: the exit status and the sentence that says why. First match wins, in the order of the README."""

from __future__ import annotations

from collections.abc import Sequence
from signal import Signals

from orchestrator.errors import EXIT_CAPTURE, EXIT_ENVIRONMENT, EXIT_GATE, EXIT_TIMEOUT
from orchestrator.model import HARMLESS, IN_FORCE, Capture, Outcome, PassRecord, StepRecord, TargetRun
from orchestrator.repeatable import Verdict as Repeatable


def judge(
    passes: Sequence[PassRecord],
    captures: Sequence[Capture],
    environment: Sequence[StepRecord],
    *,
    ok_exit_codes: Sequence[int] = (0,),
    interrupted_by: int | None = None,
    environment_failed: bool = False,
    strict: bool = False,
    repeatable: Repeatable | None = None,
) -> Outcome:
    """The outcome of a run from what happened in it. Pure: `profrun report` comes to the same."""
    run = reference(passes)
    code, status, reason = (
        _interrupted(passes, interrupted_by)
        or _timed_out(passes)
        or _target_failed(run, ok_exit_codes)
        or _environment(environment, environment_failed)
        or _captures(captures)
        or (_warnings(captures, environment) if strict else None)
        or _not_repeatable(repeatable)
        or (0, "ok", f"repeatable: {repeatable.reason}" if repeatable else "")
    )
    ended = run.exit if run else None
    return Outcome(status, code, reason, ended.code if ended else None, ended.signal if ended else None)


def reference(passes: Sequence[PassRecord]) -> TargetRun | None:
    """The run whose exit status is the target's: the first bare one, else the first at all."""
    ran = [p for p in passes if p.run]
    return next((p.run for p in ran if p.role in ("warmup", "bare")), ran[0].run if ran else None)


Verdict = tuple[int, str, str]


def _interrupted(passes: Sequence[PassRecord], number: int | None) -> Verdict | None:
    """The target was passed the signal; an exit status that it chose itself after that is its own to report (one above
    128 is a shell's or a tool's word for the signal that killed it)."""
    if number is None:
        return None
    ended = next((p.run.exit for p in reversed(passes) if p.run and p.run.ended_by == "interrupt"), None)
    name = Signals(number).name
    if ended and ended.code and ended.code < 128:
        return ended.code, "interrupted", f"interrupted by {name}; the target ended by itself with exit {ended.code}"
    return 128 + number, "interrupted", f"interrupted by {name}"


def _timed_out(passes: Sequence[PassRecord]) -> Verdict | None:
    late = next((p for p in passes if p.run and p.run.ended_by == "timeout"), None)
    if late is None or late.run is None:
        return None
    who = "+".join(late.collectors)
    return EXIT_TIMEOUT, "timed_out", f"pass {late.id} ({who}) was ended by its time-out after {late.run.wall_s:.1f} s"


def _target_failed(run: TargetRun | None, fine: Sequence[int]) -> Verdict | None:
    if run is None or run.exit is None:
        return None
    if run.start_error:
        return run.exit.status, "target_failed", f"the target could not be started: {run.start_error}"
    if run.ended_by != "itself" or run.exit.status in fine:
        return None
    first = run.first_failed()
    who = f" (rank {first.rank} before the others: {first.exit.describe()})" if first and first.exit else ""
    return run.exit.status, "target_failed", f"the target failed: {run.exit.describe()}{who}"


def _environment(steps: Sequence[StepRecord], failed: bool) -> Verdict | None:
    if not failed:
        return None
    bad = [s for s in steps if s.restored is False] or [s for s in steps if s.status not in IN_FORCE]
    words = "; ".join(f"{s.use}: {s.reason or s.status.replace('_', ' ')}" for s in bad)
    left = any(s.restored is False for s in bad)
    what = "the machine could not be put back" if left else "the environment was not as the plan wants it"
    return EXIT_ENVIRONMENT, "environment_failed", f"{what}: {words}" + ("; next: profrun env restore" if left else "")


def _captures(captures: Sequence[Capture]) -> Verdict | None:
    bad = [c for c in captures if c.required and c.status not in HARMLESS]
    if not bad:
        return None
    if bad[0].imported:
        names = [str(capture.options.get("file", capture.id)) for capture in bad]
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        gave = f"{len(bad)} of {len(captures)} files gave nothing: {', '.join(names[:3])}{more}"
        return EXIT_CAPTURE, "incomplete", gave
    who: dict[tuple[str, str | None], dict[str, None]] = {}
    for capture in bad:
        who.setdefault((capture.status, capture.reason), {})[capture.collector] = None
    lost = (f"{', '.join(names)}: {status} ({reason})" for (status, reason), names in who.items())
    return EXIT_CAPTURE, "incomplete", "; ".join(lost)


def _not_repeatable(found: Repeatable | None) -> Verdict | None:
    if found is None or found.equal:
        return None
    if found.equal is None:
        return EXIT_GATE, "not_judged", f"whether the program is repeatable can't be told: {found.reason}"
    return EXIT_GATE, "not_repeatable", f"not repeatable: {found.reason}"


def _warnings(captures: Sequence[Capture], steps: Sequence[StepRecord]) -> Verdict | None:
    """Under --strict, what else would only be shown."""
    weak = [f"{c.collector}: {c.status}" for c in captures if c.status not in ("ok",)]
    weak += [f"{c.collector}: {c.trust}" for c in captures if c.trust not in (None, "high")]
    weak += [f"{s.use}: {s.status}" for s in steps if s.status not in ("applied", "already")]
    return (EXIT_CAPTURE, "incomplete", "--strict: " + "; ".join(weak)) if weak else None
