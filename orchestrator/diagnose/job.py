"""Rules about a job of several ranks as a whole: that all were there, that they went on making steps, and that all came
to a good end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from orchestrator.launchers.told import how_ended, named, notes
from orchestrator.locating import frames
from orchestrator.model import Evidence, Finding, PassRecord
from orchestrator.report import Report
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas

STUCK_STEPS, STUCK_S = 10, 2.0
"""A program stands still that has made no step for so many times its longest one, and for so long."""


def missing_ranks(report: Report) -> Iterator[Finding]:
    """Fewer ranks were seen than the job was to have on this host, as its ranks (WORLD_SIZE, LOCAL_WORLD_SIZE) or its
    launcher's own options say. What is said of the job then leaves a part of it out. Told once, of the pass that misses
    most."""
    # of tasks on several hosts: diagnose/ranks.py
    found = [(len(record.run.missing_ranks()), record) for record in report.passes if record.run and not record.tasks]
    count, record = max(found, key=lambda one: one[0], default=(0, None))
    run = record.run if record else None
    if not count or record is None or run is None:
        return
    seen = len({one.rank for one in run.ranks})
    yield Finding(
        rule="missing_ranks",
        category="data_quality",
        severity="major",
        title=f"Rank {named(run.missing_ranks())} of {run.ranks_expected} on this host was never seen",
        advice="Look for its message in the job's stderr; on another host profrun has to be started, too.",
        confidence="high" if run.ranks else "medium",
        evidence=(
            Evidence("passes", f"{record.id} ranks expected", run.ranks_expected, "ranks"),
            Evidence("passes", f"{record.id} ranks seen", seen, "ranks"),
        ),
        sources=_captures(report, record),
    )


def failed_rank(report: Report) -> Iterator[Finding]:
    """A rank ended with an error while its job ran by itself: the first one to end so is the one to look at. Launchers
    end the others for it, or these fail in their next collective. Of a job that was started again and ended well it is
    `major`: its times contain both."""
    for record in (one for one in report.passes if not one.tasks):
        failed = record.run.failed_ranks() if record.run and record.run.ended_by == "itself" else ()
        if record.run is None or not failed:
            continue
        first = record.run.first_failed() or failed[0]
        others = f", before {len(failed) - 1} other{'s' * (len(failed) > 2)}" if len(failed) > 1 else ""
        if record.run.first_failed() is None:
            unknown = [one.rank for one in record.run.ranks if one.exit is None]
            others = f"; how rank {named(unknown)} ended, perhaps before it, is not known"
        is_mended = record.run.exit is not None and record.run.exit.status == 0
        code = first.exit.status if first.exit else None
        again = "; the job was started again, and ended well" if is_mended else ""
        yield Finding(
            rule="failed_rank",
            category="data_quality",
            severity="major" if is_mended else "critical",
            title=f"Rank {first.rank} {how_ended(first)}{others}{again}",
            advice=f"Its traceback is in raw/{record.id}-target/stderr.log; what the others say comes after it. "
            + ". ".join(notes(record.run)),
            confidence="high",
            where={"pid": first.pid, "host": first.host},
            evidence=(Evidence("passes", f"{record.id} rank {first.rank}", code, "exit status"),),
            sources=_captures(report, record),
        )
        return  # the other passes have the same to say


def no_progress(report: Report) -> Iterator[Finding]:
    """A time-out ended a program that had made steps, and then none for long (STUCK_STEPS, STUCK_S): what its steps say
    is said of the time before. Where a sampler looked on, with the place in which each process stood at last."""
    found = [one for record in report.passes if (one := _stuck(report, record)) is not None]
    seen = (one for one in found if any(evidence.table == "stack_spans" for evidence in one.evidence))
    first = next(seen, found[0] if found else None)  # all passes have the same to say; where it stands, not all
    if first:
        yield first


def _stuck(report: Report, record: PassRecord) -> Finding | None:
    run = record.run
    if run is None or run.ended_by != "timeout":
        return None
    captures = _captures(report, record)
    ours = (record.id, *captures)
    steps = report.rows("steps", ours, ["rank", "pid", "tid", "step", "start_ns", "duration_ns"])
    known = steps.dropna(subset=["start_ns", "duration_ns"]) if steps is not None else None
    if known is None or known.empty:
        return None
    silent_s = (run.ended_ns - int((known["start_ns"] + known["duration_ns"]).max())) / 1e9
    if silent_s < max(STUCK_S, STUCK_STEPS * float(known["duration_ns"].max()) / 1e9):
        return None
    stood = list(_places(report, ours, known))
    which = f"; {', '.join(f'{one.row} in {one.value}' for one in stood[:4])}" if stood else ""
    return Finding(
        rule="no_progress",
        category="communication" if len(run.ranks) > 1 else "data_quality",
        severity="critical",
        title=f"No step in the last {show_duration(silent_s)} of {show_duration(run.wall_s)}, until the time-out "
        f"ended it{which}",
        advice="It hung, or a step takes that long: then give it a longer --timeout. While it stands, `profrun hang "
        "--pid PID` says who waits for whom. All that is said of the steps is said of the time before.",
        confidence="high",
        evidence=(
            Evidence("passes", f"{record.id} without a step", round(silent_s, 1), "s"),
            Evidence("steps", "last step", int(known["step"].max())),
            *stood,
        ),
        sources=captures,
    )


def _places(report: Report, captures: tuple[str, ...], steps: pandas.DataFrame) -> Iterator[Evidence]:
    """Where the thread of the steps was when a sampler last saw it, by process."""
    spans = report.rows("stack_spans", captures, ["pid", "tid", "start_ns", "stack"])
    if spans is None:
        return
    for (pid, tid), part in steps.groupby(["pid", "tid"]):
        own = spans[(spans["pid"] == pid) & (spans["tid"] == tid)].dropna(subset=["start_ns", "stack"])
        if own.empty:
            continue
        doing = frames.read(str(own.loc[own["start_ns"].idxmax(), "stack"]).split(";"))
        rank = part["rank"].iloc[0]
        who = f"pid {pid}" if rank is None or rank != rank else f"rank {int(rank)}"
        if doing.function is not None:
            line = f":{doing.line}" if doing.line else ""
            place = f" ({PurePosixPath(doing.file).name}{line})" if doing.file else ""
            yield Evidence("stack_spans", who, f"{doing.function}{place}")


def _captures(report: Report, record: PassRecord) -> tuple[str, ...]:
    return tuple(capture.id for capture in report.captures if capture.pass_id == record.id)


RULES = (missing_ranks, no_progress, failed_rank)
