"""What is to be said of the ranks of a run: who never came, who ended badly, and whose end nobody could tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from orchestrator.model import RankSeen, TargetRun

MOST = 8
"""So many ranks are named in one sentence; the others are counted."""
_TELLERS = "it was the launcher that waited for them"


def notes(run: TargetRun) -> Iterator[str]:
    """In whole sentences without their stops."""
    missing = run.missing_ranks()
    if missing:
        seen = named(one.rank for one in run.ranks) if run.ranks else "none"
        yield f"{run.ranks_expected} ranks were to run here, and {seen} were seen: not rank {named(missing)}"
    if run.ended_by == "itself":
        yield from _failures(run)
    counts = Counter(one.rank for one in run.ranks)
    again = [f"rank {rank} {count} times" for rank, count in counts.items() if count > 1]
    if again:
        yield f"ranks were started more than once: {', '.join(again[:MOST])}"


def named(ranks: Iterable[int]) -> str:
    """Numbers in one line: 0, 1, 2 and 61 more."""
    numbers = sorted(set(ranks))
    more = f" and {len(numbers) - MOST} more" if len(numbers) > MOST else ""
    return ", ".join(map(str, numbers[:MOST])) + more


def _failures(run: TargetRun) -> Iterator[str]:
    failed = run.failed_ranks()
    if failed:
        first, *others = failed
        then = "".join(f"; {_end(one)}{_later(first, one)}" for one in others[: MOST - 1])
        more = f"; and {len(others) - MOST + 1} more" if len(others) >= MOST else ""
        yield f"{_end(first)}{then}{more}"
    unknown = [one.rank for one in run.ranks if one.exit is None]
    if unknown and run.exit and run.exit.status:
        yield f"how rank {named(unknown)} ended is not known: {_TELLERS}"


def _end(one: RankSeen) -> str:
    return f"rank {one.rank} {how_ended(one)}"


def how_ended(one: RankSeen) -> str:
    """`ended with exit 9`, `was killed by SIGTERM`."""
    if one.exit is None:
        return "came to an unknown end"
    return f"{'ended with' if one.exit.signal is None else 'was'} {one.exit.describe()}"


def _later(first: RankSeen, one: RankSeen) -> str:
    if first.ended_ns is None or one.ended_ns is None:
        return ""
    return f" {max(0, one.ended_ns - first.ended_ns) / 1e9:.1f} s later"
