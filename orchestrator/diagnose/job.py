"""Rules about a job of several ranks as a whole: that all were there, and that all came to a good end."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.launchers.told import named, notes
from orchestrator.model import Evidence, Finding, PassRecord
from orchestrator.report import Report


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
    end the others for it, or these fail in their next collective."""
    for record in (one for one in report.passes if not one.tasks):
        failed = record.run.failed_ranks() if record.run and record.run.ended_by == "itself" else ()
        first = failed[0] if failed else None
        if record.run is None or first is None or first.exit is None:
            continue
        others = f", before {len(failed) - 1} other{'s' * (len(failed) > 2)}" if len(failed) > 1 else ""
        yield Finding(
            rule="failed_rank",
            category="data_quality",
            severity="critical",
            title=f"Rank {first.rank} ended with {first.exit.describe()}{others}",
            advice=f"Its traceback is in raw/{record.id}-target/stderr.log; what the others say comes after it. "
            + ". ".join(notes(record.run)),
            confidence="high",
            where={"pid": first.pid, "host": first.host},
            evidence=(Evidence("passes", f"{record.id} rank {first.rank}", first.exit.status, "exit status"),),
            sources=_captures(report, record),
        )
        return  # the other passes have the same to say


def _captures(report: Report, record: PassRecord) -> tuple[str, ...]:
    return tuple(capture.id for capture in report.captures if capture.pass_id == record.id)


RULES = (missing_ranks, failed_rank)
