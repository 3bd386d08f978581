"""Rules about the ranks of a job: which of them the others wait for and why, what collectives cost all of them, and of
several hosts who is missing or has failed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.judging import Severity, confidence, severity, steady
from orchestrator.launchers.told import how_ended
from orchestrator.model import Abstention, Evidence, Finding, RankSeen, Task
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

SAME_FROM = 0.6
"""A rank is the straggler where it comes last in this share of the steps, and in more of them than chance gives."""
SIGMAS = 3.0
"""So many standard deviations above what chance gives: with n steps and k ranks, n/k and sqrt(n/k (1 - 1/k))."""
FEWEST_STEPS = 8
"""With fewer steps in common ranks are not compared."""
ROTATING_MAJOR_PCT = 25.0
"""Ranks that come last in turn: up to here `minor`. Ranks that share a machine take turns at its processors, and of two
the one that is later by chance costs 0.56 standard deviations of a step."""
STRETCH_STEPS, STRETCHES = 10, 3
"""Steps next to one another are no independent draws: something else on the machine may take a processor from one rank
for some of them. Only what is seen in so many stretches of so many steps, or in several passes, is above `minor`."""
EXPLAINS = 0.5
"""What holds at least this part of the lag is named as its reason."""
APART_PCT = 10.0
"""A host whose ranks all are behind all others' ranks is named where the two groups are at least this far apart."""
SAMPLERS = frozenset({"py-spy", "perf"})
"""Collectors whose samples tell sums over many steps, and nothing of a single one."""
FEED = "collectors: [{use: torch, activities: [cpu, cuda]}]"


@dataclass(frozen=True)
class Job:
    """The ranks of one pass. rows: by rank, its row of `ranks`; own, took: by step (down) and rank (across), in ns."""

    report: Report
    pass_id: str
    capture: str
    rows: Mapping[int, Mapping[str, Any]]
    own: pandas.DataFrame
    took: pandas.DataFrame
    data: pandas.DataFrame
    exact: bool
    """Single steps can be compared."""

    @property
    def step_ns(self) -> float:
        """What a step takes all ranks together, that shares are of."""
        return float(self.took.mean(axis=1).mean())

    @property
    def behind(self) -> pandas.Series:
        """By rank, how much more it has to do in a step than the mean rank."""
        means: pandas.Series = self.own.mean()
        return means - means.mean()

    @property
    def lost_pct(self) -> float:
        """What of a step all but the last rank wait, in the mean over all ranks: what equal work would give back."""
        late = self.own.max(axis=1) - self.own.mean(axis=1) if self.exact else self.behind.max()
        middle = late.median() if self.exact else late
        return float(100 * middle / self.step_ns)

    @property
    def last(self) -> tuple[int, float]:
        """The rank that comes last most often, and in which share of the steps."""
        counts = self.own.idxmax(axis=1).value_counts()
        return int(counts.index[0]), float(counts.iloc[0]) / len(self.own)

    def who(self, rank: int) -> str:
        host = self.rows[rank].get("host")
        several = len({row.get("host") for row in self.rows.values()}) > 1
        return f"rank {rank}" + (f" on {host}" if host and several else "")


def jobs(report: Report) -> list[Job]:
    """The passes whose ranks can be compared by their own work, that with the most steps first."""
    table, steps = report.table("ranks"), report.table("rank_steps")
    if table is None or steps is None:
        return []
    passes = {capture.id: capture.pass_id for capture in report.captures}
    collectors = {capture.id: capture.collector for capture in report.captures}
    found = []
    for capture, part in table[table["judged_by"] == "own work"].groupby("capture", sort=False):
        rows = {int(row["rank"]): row for row in _records(part)}
        mine = steps[(steps["capture"] == capture) & steps["own_ns"].notna() & steps["behind_ns"].notna()]
        own, took, data = (_wide(mine, name) for name in ("own_ns", "duration_ns", "data_wait_ns"))
        exact = not {collectors.get(str(name)) for name in mine["told_by"].dropna().unique()} & SAMPLERS
        if len(own) >= FEWEST_STEPS and len(own.columns) > 1:
            found.append(
                Job(report, passes.get(str(capture), str(capture)), str(capture), rows, own, took, data, exact)
            )
    return sorted(found, key=lambda job: (not job.exact, -len(job.own)))


def _wide(frame: pandas.DataFrame, name: str) -> pandas.DataFrame:
    return frame.pivot_table(index="step", columns="rank", values=name, aggfunc="first", dropna=False).astype("float64")


def _records(frame: pandas.DataFrame) -> list[dict[str, Any]]:
    plain = frame.astype(object).where(frame.notna(), None)
    return [{str(k): v for k, v in row.items()} for row in plain.to_dict("records")]


# ---------------------------------------------------------------- who is waited for


def straggler(report: Report) -> Iterator[Finding | Abstention]:
    """One rank, or one host, comes last to the collectives nearly always, and all others wait for it. Judged by own
    work, the step without the waiting (locating/ranks.py): whoever waits long is not the slow one. (HTA: straggler
    detection; MegaScale, NSDI 2024, 5: stragglers by the time of the computation, not of the step.)

    It comes last in SAME_FROM of the steps and SIGMAS more often than chance gives; by samples, which tell no single
    steps, its own work is the most over all of them. It is above `minor` only where that lasts (STRETCHES). What it
    costs is what equal work would give back: its own work less that of the mean rank, as a share of a step."""
    found = jobs(report)
    if not found:
        yield from _not_comparable(report, "straggler")
        return
    job = found[0]
    rank, share = job.last
    count, chance = len(job.own), 1 / len(job.own.columns)
    often = share >= SAME_FROM and share - chance >= SIGMAS * math.sqrt(chance * (1 - chance) / count)
    if not job.exact:
        rank, often = int(job.behind.idxmax()), True
    pct = 100 * float(job.behind[rank]) / job.step_ns
    host = _slow_host(job)
    if host:
        pct = 100 * float(job.behind.max()) / job.step_ns
    grade = severity(pct)
    if grade is None or not (often or host):
        return
    lasts = bool(host) or _lasts(job, rank) or len({one.pass_id for one in found if _is_last(one, rank)}) > 1
    yield _straggler(job, rank, share, pct, grade if lasts else "minor", host, lasts=lasts)


def _lasts(job: Job, rank: int) -> bool:
    """Whether it is the one in each of several stretches of the steps: last in most of them or, by samples, in sum."""
    starts = range(0, len(job.own) - STRETCH_STEPS + 1, STRETCH_STEPS)
    stretches = [job.own.iloc[at : at + STRETCH_STEPS] for at in starts]
    last = [
        float((part.idxmax(axis=1) == rank).mean()) if job.exact else part.mean().idxmax() == rank for part in stretches
    ]
    return len(last) >= STRETCHES and min(last) >= SAME_FROM


def _is_last(job: Job, rank: int) -> bool:
    """Whether a pass has it for the one that costs the others something, too."""
    behind = job.behind
    return behind.idxmax() == rank and severity(100 * float(behind.max()) / job.step_ns) is not None


def _straggler(
    job: Job, rank: int, share: float, pct: float, grade: Severity, host: str | None, *, lasts: bool
) -> Finding:
    why, category, advice = _why(job, rank)
    whole = steady(job.report)
    late = (
        f"all {sum(r.get('host') == host for r in job.rows.values())} ranks of host {host}" if host else job.who(rank)
    )
    often = f" (it comes last in {100 * share:.0f} % of {len(job.own)} steps)" if job.exact and not host else ""
    row = job.rows[rank]
    return Finding(
        rule="rank_straggler",
        category=category,
        severity=grade,
        title=f"The other ranks wait for {late}{often}; equal work would make a step {pct:.0f} % shorter: {why}",
        advice=(_OF_HOST if host else advice),
        confidence=confidence(job.report, _sources(job), "low" if not lasts else "high" if job.exact else "medium"),
        where={**({} if host else {"rank": rank}), **({"host": row["host"]} if row.get("host") else {})},
        cost_pct=round(pct, 2),
        cost_s=whole.cost_s(pct),
        of=whole.of,
        evidence=(*_own_work(job), Evidence("rank_steps", f"rank {rank}: last", round(100 * share, 1), "% of steps")),
        sources=_sources(job),
        cause="straggler",
    )  # fmt: skip


def _own_work(job: Job) -> tuple[Evidence, ...]:
    """The ranks with the most and the least to do."""
    means = job.own.mean().sort_values(ascending=False)
    chosen = list(means.items())[:3] + (list(means.items())[3:][-1:])
    return tuple(
        Evidence("rank_steps", f"rank {rank}: own work in a step", round(ns / 1e9, 6), "s") for rank, ns in chosen
    )


def _sources(job: Job) -> tuple[str, ...]:
    told = [str(row["told_by"]) for row in job.rows.values() if row.get("told_by")]
    return tuple(dict.fromkeys((*told, job.capture)))


def _why(job: Job, rank: int) -> tuple[str, str, str]:
    """What the rank does with the time by which it is behind: what to say of it, its category, what to do."""
    others = [one for one in job.own.columns if one != rank]
    lag = float(job.own[rank].mean() - job.own[others].mean(axis=1).mean())
    data = float(job.data[rank].mean() - job.data[others].mean(axis=1).mean()) if job.data[rank].notna().any() else 0.0
    if lag > 0 and data >= EXPLAINS * lag:
        return f"its DataLoader takes {data / 1e6:.1f} ms a step longer", "input_pipeline", _OF_DATA
    busy = [job.rows[one].get("gpu_busy_pct") for one in job.own.columns]
    mine = job.rows[rank].get("gpu_busy_pct")
    known = [value for value in busy if value is not None]
    if mine is not None and len(known) == len(busy) and mine >= max(known):
        return "its GPU works longer on the same step", "communication", _OF_GPU
    return f"it has {lag / 1e6:.1f} ms a step more to do", "communication", _OF_WORK


_OF_DATA = (
    "Look at that rank's input: files on a slower disk or host, more or longer samples in its shard, fewer workers or "
    "processors. Give all ranks shards of equal cost."
)
_OF_GPU = (
    "Compare that GPU with the others: its clocks, power limit and temperature (monitor; nvidia-smi -q -d "
    "PERFORMANCE), other processes on it; then the sizes of its batches."
)
_OF_WORK = (
    "Give all ranks equal work (batches of equal length and number, no work that only one rank does, such as logging "
    "or checkpoints, between two collectives), and look at that rank's processors and clocks."
)
_OF_HOST = (
    "All ranks of that host are late, so it is the host: compare its GPUs' clocks, power limits and temperatures, its "
    "processors' frequencies, its disks and its other processes with those of another host (machine, monitor)."
)


def _slow_host(job: Job) -> str | None:
    """The host all of whose ranks have more to do than every rank elsewhere; None with one host, or one rank each."""
    by_host: dict[Any, list[float]] = {}
    for rank, ns in job.own.mean().items():
        by_host.setdefault(job.rows[int(rank)].get("host"), []).append(float(ns))
    if len(by_host) < 2 or None in by_host:
        return None
    slow = max(by_host, key=lambda host: min(by_host[host]))
    others = max(max(times) for host, times in by_host.items() if host != slow)
    apart = 100 * (min(by_host[slow]) - others) / job.step_ns
    return str(slow) if len(by_host[slow]) > 1 and apart >= APART_PCT else None


def rotating(report: Report) -> Iterator[Finding]:
    """Ranks come last in turn: each step waits for another one. No rank is slow; their work differs from step to step
    (batches of unequal length, the garbage collector, a disk or processors that they share). The cost is the median
    over the steps of what the mean rank waits for the last. (MegaScale, NSDI 2024, 6: jitter between ranks adds up, as
    every step takes as long as its slowest rank.)"""
    job = next((job for job in jobs(report) if job.exact), None)
    if job is None or job.last[1] >= SAME_FROM:
        return
    grade = severity(job.lost_pct)
    if grade is None:
        return
    most: Severity = "major" if job.lost_pct >= ROTATING_MAJOR_PCT else "minor"
    rank, share = job.last
    whole = steady(report)
    yield Finding(
        rule="rank_rotating",
        category="communication",
        severity=most,
        title=f"{job.lost_pct:.0f} % of a step is waiting for the rank that comes last, and that is another one each "
        f"time (most often rank {rank}, in {100 * share:.0f} % of {len(job.own)} steps)",
        advice="Make the ranks' work equal in each step: batches of equal length (by length in buckets, by number of "
        "tokens); garbage collection at fixed steps in all ranks (gc.disable, gc.collect every N steps); no more "
        "threads a rank than its share of the processors.",
        confidence=confidence(report, _sources(job), "medium"),
        cost_pct=round(job.lost_pct, 2),
        cost_s=whole.cost_s(job.lost_pct),
        of=whole.of,
        evidence=_own_work(job),
        sources=_sources(job),
        cause="straggler",
    )


def collectives(report: Report) -> Iterator[Finding]:
    """What every rank spends in collectives, beside waiting for a late one: the least of all ranks. On GPUs the rule on
    exposed communication says it (diagnose/communication.py); here collectives of the CPU (gloo, MPI)."""
    job = next(iter(jobs(report)), None)
    if job is None or any(row.get("exposed_comm_pct") is not None for row in job.rows.values()):
        return
    waits = {rank: float(row["collective_pct"]) for rank, row in job.rows.items() if row["collective_pct"] is not None}
    least = min(waits.values(), default=0.0)
    grade = severity(least)
    if grade is None:
        return
    whole = steady(report)
    most: Severity = "minor" if len(job.rows) <= 2 or grade == "minor" else "major"
    yield Finding(
        rule="exposed_communication",
        category="communication",
        severity=most,
        title=f"Collectives take {least:.0f} % of the steady steps in every rank, with no operator beside them",
        advice="Let them run beside the backward pass (DistributedDataParallel does, bucket by bucket: bucket_cap_mb), "
        "exchange less often (gradient accumulation with no_sync()) or less (compressed gradients); gloo on one "
        "machine copies through sockets, nccl does not.",
        confidence=confidence(report, _sources(job), "medium"),
        cost_pct=round(least, 2),
        cost_s=whole.cost_s(least),
        of=whole.of,
        evidence=tuple(
            Evidence("ranks", f"rank {rank}", value, "% of the steady steps in collectives")
            for rank, value in sorted(waits.items(), key=lambda one: one[1])[:4]
        ),
        sources=_sources(job),
        cause="exposed communication",
        healthy=most == "minor",
    )


def _not_comparable(report: Report, rule: str) -> Iterator[Abstention]:
    """Where several ranks made steps, and of not all of them anything was seen of collectives."""
    table = report.table("ranks")
    if table is None or not (table["steps"].fillna(0) >= FEWEST_STEPS).any():
        return
    if not (table["judged_by"] == "own work").any():
        lacks = (
            "what each rank waits in collectives: whole steps are equally long in all ranks that wait for one another"
        )
        chosen = next(
            (record.run.ranks_chosen for record in report.passes if record.run and record.run.ranks_chosen), ()
        )
        feed = f"launcher: without ranks: {list(chosen)}, which leaves out the others" if chosen else FEED
        yield Abstention(rule, lacks, feed)


# ---------------------------------------------------------------- ranks that are not there


def lost_tasks(report: Report) -> Iterator[Finding]:
    """Of a job on several hosts a task has left no record, or a rank was not seen in any. (Of one host:
    diagnose/job.py.) Told once, of the pass that lacks most."""
    table = report.table("ranks")
    passes = {record.id: record for record in report.passes if record.tasks}
    if table is None or not passes:
        return
    by_pass = {capture.id: capture.pass_id for capture in report.captures}
    gone = table[table["missing"].fillna(False).astype(bool)]
    counts = [(len(part), str(capture), part) for capture, part in gone.groupby("capture", sort=False)]
    count, capture, part = max(counts, key=lambda one: one[0], default=(0, "", gone))
    record = passes.get(by_pass.get(capture, capture))
    if not count or record is None:
        return
    ranks = sorted(int(rank) for rank in part["rank"])
    said = [f"{task.host or f'task {task.index}'}: {task.missing}" for task in record.tasks if task.missing]
    yield Finding(
        rule="missing_ranks",
        category="data_quality",
        severity="major",
        title=f"{_named(ranks)} of {int((table['capture'] == capture).sum())} left nothing"
        + (f" ({'; '.join(said[:3])})" if said else ""),
        advice="What the report says of the job is said without them. Look into what the job's launcher has printed, "
        "and whether their hosts see the report's folder.",
        confidence="high",
        where={"rank": ", ".join(map(str, ranks[:8]))},
        evidence=(Evidence("ranks", _named(ranks), "missing"),),
        sources=(capture,),
    )


def failed_task(report: Report) -> Iterator[Finding]:
    """Of a job on several hosts a rank has failed; the first to do so, on the clock of the host that leads, is the one
    to look at: the launcher ends the others, or these fail in their next collective."""
    for record in report.passes:
        failed = [(task.led(one.ended_ns) or 0, task, one) for task in record.tasks for one in _failed(task)]
        if not failed or (record.run and record.run.ended_by != "itself"):
            continue
        _, task, first = min(failed, key=lambda one: (one[0], one[2].rank))
        others = f", before {len(failed) - 1} other{'s' * (len(failed) > 2)}" if len(failed) > 1 else ""
        if task.run and task.run.first_failed() is None:
            others = "; how another rank of that host ended, perhaps before it, is not known"
        yield Finding(
            rule="failed_rank",
            category="data_quality",
            severity="critical",
            title=f"Rank {first.rank} on {task.host} {how_ended(first)}{others}",
            advice="Look at what it wrote last, in its task's logs below raw/. What the others say comes after it.",
            confidence="high",
            where={"rank": first.rank, "host": task.host, "pid": first.pid},
            evidence=(
                Evidence("ranks", f"rank {first.rank}", first.exit.status if first.exit else None, "exit status"),
            ),
            sources=tuple(capture.id for capture in report.captures if capture.pass_id == record.id)[:1],
        )
        return  # the other passes have the same to say


def _failed(task: Task) -> tuple[RankSeen, ...]:
    return task.run.failed_ranks() if task.run else ()


def _named(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"Rank{'s' if len(ranks) > 1 else ''} {shown}"


RULES = (straggler, rotating, collectives, lost_tasks, failed_task)
