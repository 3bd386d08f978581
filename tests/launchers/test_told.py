"""What is said of the ranks of a run."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.launchers.told import named, notes
from orchestrator.model import Exit, RankSeen, TargetRun

RUN = TargetRun(("torchrun",), 1, 0, 10**9, 1.0, Exit(0), ranks_expected=2)


def rank(number: int, end: Exit | None = None, ended_s: float = 1.0, world: int = 2) -> RankSeen:
    return RankSeen(number, number, world, "node1", 100 + number, 0, round(ended_s * 1e9), end)


def told(*ranks: RankSeen, **more: object) -> list[str]:
    return list(notes(replace(RUN, ranks=ranks, **more)))  # type: ignore[arg-type]


def test_nothing_is_said_of_a_good_end() -> None:
    assert told(rank(0, Exit(0)), rank(1, Exit(0))) == []
    assert told(ranks_expected=None) == []


def test_the_first_to_fail_is_told_first() -> None:
    failed = told(rank(0, Exit(signal=15), 3.5), rank(1, Exit(9), 3.1), exit=Exit(1))
    assert failed == ["rank 1 ended with exit 9; rank 0 was killed by SIGTERM 0.4 s later"]


def test_what_profrun_has_ended_is_no_failure() -> None:
    assert told(rank(0, Exit(signal=2)), rank(1, Exit(signal=2)), exit=Exit(1), ended_by="window") == []


def test_an_unknown_end_stays_unknown() -> None:
    (said,) = told(rank(0), rank(1), exit=Exit(1))
    assert said.startswith("how rank 0, 1 ended is not known")
    assert told(rank(0), rank(1)) == [], "the job has ended well"


def test_missing_ranks_are_named() -> None:
    assert told(rank(0, Exit(0)), rank(2, Exit(0)), ranks_expected=4) == [
        "4 ranks were to run here, and 0, 2 were seen: not rank 1, 3"
    ]
    assert told() == ["2 ranks were to run here, and none were seen: not rank 0, 1"]


def test_of_a_job_on_several_hosts_those_here_are_counted() -> None:
    here = (RankSeen(4, 0, 8, exit=Exit(0)), RankSeen(6, 2, 8, exit=Exit(0)))
    assert replace(RUN, ranks=here, ranks_expected=4).missing_ranks() == (5, 7)


def test_a_rank_that_was_started_again_is_told() -> None:
    assert told(rank(0, Exit(0)), rank(1, Exit(0)), rank(1, Exit(0))) == [
        "ranks were started more than once: rank 1 2 times"
    ]


def test_many_ranks_are_counted() -> None:
    assert named(range(64)) == "0, 1, 2, 3, 4, 5, 6, 7 and 56 more"


def test_a_rank_is_known_with_all_that_it_has_started() -> None:
    run = replace(RUN, ranks=(replace(rank(0), started=(7, 8)), rank(1)))
    assert run.rank_by_pid() == {100: 0, 7: 0, 8: 0, 101: 1}
