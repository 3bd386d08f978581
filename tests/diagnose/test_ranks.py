"""Rules about ranks: the straggler and its reason, stragglers in turn, hosts; and silence where all is well."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from rank_data import MS, NOW, Work, record, report, seen, tables

from orchestrator import diagnose
from orchestrator.diagnose import ranks
from orchestrator.model import Abstention, Exit, Finding, TargetRun, Task


def told(folder: Path, count: int, work: Work | None, **more: object) -> list[Finding | Abstention]:
    collector = str(more.pop("collector", "torch"))
    made = tables(count, work, **more)  # type: ignore[arg-type]
    return [one for rule in ranks.RULES for one in rule(report(folder, made, more.get("told"), collector))]  # type: ignore[arg-type]


def only(found: Iterable[Finding | Abstention], rule: str) -> Finding | None:
    return next((one for one in found if isinstance(one, Finding) and one.rule == rule), None)


def noisy(seed: int, ms: float, spread: float) -> Work:
    rng = random.Random(seed)
    drawn: dict[tuple[int, int], int] = {}
    return lambda rank, step: drawn.setdefault((rank, step), round(max(1.0, rng.gauss(ms, spread)) * MS))


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    found = told(tmp_path, 4, lambda rank, step: (70 if rank == 2 else 50) * MS, many=32)
    finding = only(found, "rank_straggler")
    assert finding is not None and finding.where == {"rank": 2} and finding.confidence == "high"
    assert (finding.severity, finding.category, finding.cost_pct) == ("major", "communication", 15.0)
    assert (
        "wait for rank 2 (it comes last in 100 % of 30 steps); equal work would make a step 15 % shorter: it has 20"
        in finding.title
    )
    assert [e.value for e in finding.evidence][:2] == [0.07, 0.05] and finding.cause == "straggler"
    assert only(found, "rank_rotating") is None


def test_a_rank_that_is_late_for_a_short_while_is_no_more_than_minor(tmp_path: Path) -> None:
    """Ten steps next to one another can be late for one and the same reason: another program on the machine."""
    finding = only(told(tmp_path, 2, lambda rank, step: (80 if rank else 50) * MS, many=12), "rank_straggler")
    assert finding is not None and (finding.severity, finding.confidence) == ("minor", "low")


def test_a_slow_loader_is_the_reason(tmp_path: Path) -> None:
    def data(rank: int, step: int) -> int:
        return (30 if rank == 1 else 5) * MS

    finding = only(told(tmp_path, 2, lambda rank, step: (75 if rank else 50) * MS, data=data), "rank_straggler")
    assert finding is not None and finding.category == "input_pipeline"
    assert finding.title.endswith("its DataLoader takes 25.0 ms a step longer")


def test_ranks_that_come_last_in_turn_are_told_as_such(tmp_path: Path) -> None:
    found = told(tmp_path, 4, lambda rank, step: (90 if rank == step % 4 else 50) * MS)
    finding = only(found, "rank_rotating")
    assert (
        finding is not None and (finding.severity, finding.cost_pct) == ("major", 30.0) and finding.cause == "straggler"
    )
    assert "that is another one each time" in finding.title and only(found, "rank_straggler") is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [2.0, 9.0])
def test_two_healthy_ranks_have_nothing_above_minor(tmp_path: Path, seed: int, spread: float) -> None:
    found = told(tmp_path, 2, noisy(seed, 60, spread), many=60)
    assert {one.severity for one in found if isinstance(one, Finding)} <= {"minor", "info"}
    assert only(found, "rank_straggler") is None


def test_a_rank_that_is_last_by_chance_is_no_straggler(tmp_path: Path) -> None:
    assert only(told(tmp_path, 2, noisy(3, 60, 6), many=12), "rank_straggler") is None


def test_what_samples_tell_is_judged_over_all_steps(tmp_path: Path) -> None:
    """In each step a sampler is wrong by a period; in sum it is right."""
    uneven = noisy(1, 50, 15)
    found = told(tmp_path, 2, uneven, many=60, collector="py-spy")
    assert {one.rule for one in found if isinstance(one, Finding)} <= {"exposed_communication"}
    found = told(tmp_path, 2, lambda rank, step: uneven(rank, step) + 30 * rank * MS, many=60, collector="py-spy")
    finding = only(found, "rank_straggler")
    assert finding is not None and finding.where == {"rank": 1} and finding.confidence == "medium"
    assert 12 < (finding.cost_pct or 0) < 18 and "comes last in" not in finding.title


def test_a_slow_host_is_named_and_not_its_ranks(tmp_path: Path) -> None:
    hosts = record([seen(rank, host=f"n{rank // 2}") for rank in range(6)])
    found = told(tmp_path, 6, lambda rank, step: (75 if rank in (2, 3) else 50) * MS, told=hosts)
    finding = only(found, "rank_straggler")
    assert finding is not None and finding.where == {"host": "n1"}
    assert "all 2 ranks of host n1" in finding.title and "so it is the host" in finding.advice


def test_collectives_that_all_ranks_have_are_told_once_and_are_no_fault_of_two(tmp_path: Path) -> None:
    two = only(told(tmp_path, 2, lambda rank, step: 60 * MS), "exposed_communication")
    assert two is not None and (two.severity, two.cost_pct, two.healthy) == ("minor", 40.0, True)
    four = only(told(tmp_path / "4", 4, lambda rank, step: 60 * MS), "exposed_communication")
    assert four is not None and (four.severity, four.cause) == ("major", "exposed communication")


def test_without_collectives_the_rule_says_what_would_tell(tmp_path: Path) -> None:
    (abstention,) = told(tmp_path, 2, None)
    assert (
        isinstance(abstention, Abstention) and "torch" in abstention.feed and "equally long in all" in abstention.lacks
    )


def test_one_rank_and_few_steps_are_nothing_to_judge(tmp_path: Path) -> None:
    assert told(tmp_path, 1, lambda rank, step: 50 * MS) == []
    assert told(tmp_path / "few", 2, lambda rank, step: (50 + 40 * rank) * MS, many=6) == []


def test_of_several_hosts_the_first_to_fail_by_the_clock_that_leads_is_named(tmp_path: Path) -> None:
    def task(number: int, end: Exit, ended_ns: int, offset_ns: int) -> Task:
        one = seen(number, host=f"n{number}", world_size=3, exit=end, ended_ns=ended_ns)
        run = TargetRun(("x",), 1, NOW, NOW, 1.0, Exit(1), ranks=(one,))
        return Task(number, f"n{number}", run=run, ranks=(number,), clock_offset_ns=offset_ns, clock_error_ns=10)

    tasks = (
        task(0, Exit(1), NOW + 50, 0),
        task(1, Exit(9), NOW + 990, -960),
        Task(2, "n2", ranks=(2,), missing="its agent has left no record"),
    )
    job = record([], tasks=tasks)
    found = told(tmp_path, 2, None, told=job)
    failed, missing = only(found, "failed_rank"), only(found, "missing_ranks")
    assert failed is not None and failed.title == "Rank 1 on n1 ended with exit 9, before 1 other"
    assert missing is not None and missing.title == "Rank 2 of 3 left nothing (n2: its agent has left no record)"
    before = seen(3, host="n1", world_size=4, exit=None, ended_ns=NOW + 900)
    assert tasks[1].run is not None
    lost = replace(tasks[1], run=replace(tasks[1].run, ranks=(*tasks[1].run.ranks, before)))
    failed = only(told(tmp_path / "lost", 2, None, told=record([], tasks=(tasks[0], lost))), "failed_rank")
    assert failed is not None and failed.title.endswith(
        "how another rank of that host ended, perhaps before it, is not known"
    )


def test_what_is_said_of_many_gpus_is_said_of_the_costliest() -> None:
    def finding(rank: int, pct: float, **more: object) -> Finding:
        return Finding("gpu_idle", "launch_bound", "major", f"The GPU waits for {pct} % (rank {rank})", "", "high",
                       cost_pct=pct, **more)  # fmt: skip

    told_ = diagnose.merged([finding(rank, 20.0 + rank) for rank in range(64)])
    assert (
        len(told_) == diagnose.TOLD_ALIKE
        and told_[0].title == "The GPU waits for 83.0 % (rank 63, and less in 60 more)"
    )
    few = [finding(rank, 20.0 + rank) for rank in range(3)]
    assert diagnose.merged(few) == tuple(reversed(few))
    one = replace(few[0], title="no label")
    assert diagnose.merged([one] * 9 + few)[-1].title.endswith(("no label", "(rank 0)"))
