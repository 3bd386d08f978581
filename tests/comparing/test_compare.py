"""Two made-up runs with planted differences: what is told, how sure, and what it is put down to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pyarrow.parquet as pq
import pytest
from two_runs import FILE, PID, Job, make, with_table

from orchestrator import tables
from orchestrator.compare import compare
from orchestrator.comparing import blame, gate, sides
from orchestrator.comparing.words import SURE, Change, Comparison, What
from orchestrator.model import Evidence, Exit, Finding, Metric
from orchestrator.report import Report, TableInfo, load
from orchestrator.tables import Table

LONG = Job(steps=800)
"""Of 8 s: enough samples for shares of a fifth."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return make(tmp_path_factory.mktemp("base") / "a", LONG, seed=1)


@pytest.fixture(scope="module")
def slower(tmp_path_factory: pytest.TempPathFactory, base: Report) -> Comparison:
    """tokenize takes 1.5 times as long: 15 % of the step."""
    return compare(base, make(tmp_path_factory.mktemp("slower") / "b", LONG.with_ms(tokenize=4.5), seed=6))


def change(comparison: Comparison, what: What, name: str) -> Change:
    return next(one for one in comparison.told(what) if one.name == name)


def against(base: Report, folder: Path, job: Job, seed: int = 3) -> Comparison:
    return compare(base, make(folder / "b", job, seed))


# ---------------------------------------------------------------- the step, and why


def test_a_slower_step_is_told_with_its_interval(slower: Comparison) -> None:
    step = slower.step
    assert step is not None and step.name == "step_s"
    assert step.verdict == "slower"
    assert step.low is not None and step.high is not None and step.low < 1.15 < step.high
    assert step.p_value is not None and step.p_value < 0.05
    assert (step.n_a, step.n_b) == (5, 5)
    assert step.share_of_step_pct == pytest.approx(15, abs=3)


def test_the_function_that_grew_is_blamed_with_its_callers(slower: Comparison) -> None:
    functions = [blame for blame in slower.attribution if blame.change.what == "function"]
    assert [blame.change.name for blame in functions] == ["tokenize"]
    assert functions[0].change.share_of_step_pct == pytest.approx(15, abs=6)
    assert [frame.partition(" ")[0] for frame in functions[0].chain] == ["<module>", "main", "tokenize"]
    assert "tokenize (train.py:80) grew by" in slower.headline
    assert slower.headline.startswith("B is 1")


def test_its_phase_is_blamed_too(slower: Comparison) -> None:
    assert [blame.change.name for blame in slower.attribution if blame.change.what == "phase"] == ["data"]


def test_what_stayed_is_not_blamed(slower: Comparison) -> None:
    sure = {one.name for one in slower.changes if one.what == "function" and one.verdict in SURE}
    assert sure == {"tokenize"}


def test_two_runs_of_the_same_program_blame_nothing(base: Report, tmp_path: Path) -> None:
    found = against(base, tmp_path, LONG)
    assert found.step is not None and found.step.verdict in ("same", "unsure")
    assert found.attribution == ()
    assert not [one for one in found.changes if one.verdict in SURE]
    assert "No change" in found.headline


def test_a_faster_step_is_put_down_to_what_shrank(base: Report, tmp_path: Path) -> None:
    found = against(base, tmp_path, LONG.with_ms(train_step=2.5))
    assert found.headline.startswith("B is 2") and "faster per step" in found.headline
    assert found.attribution[0].change.name == "train_step"
    assert "shrank by" in found.attribution[0].sentence


def test_a_new_function_is_told_as_new(base: Report, tmp_path: Path) -> None:
    found = against(base, tmp_path, LONG.with_ms(check_all=2.0))
    assert change(found, "function", "check_all").verdict == "new"
    assert "check_all (train.py:90) is new" in found.headline


def test_the_same_function_in_a_copy_of_the_file_is_the_same(base: Report, tmp_path: Path) -> None:
    found = against(base, tmp_path, replace(LONG, file="/tmp/elsewhere/slow_train.py"))
    assert not [one for one in found.told("function") if one.verdict in ("new", "gone")]


def test_too_few_samples_say_so(tmp_path: Path) -> None:
    short = Job(steps=80)
    found = compare(make(tmp_path / "a", short, 1), make(tmp_path / "b", short.with_ms(augment=2.5), 2))
    assert found.step is not None and found.step.verdict == "slower"
    assert not [blame for blame in found.attribution if blame.change.what == "function"]
    assert "perhaps augment" in found.headline and "can't be told from chance" in found.headline


@pytest.mark.parametrize("runs", [1, 2])
def test_too_few_runs_say_so(tmp_path: Path, runs: int) -> None:
    few = Job(runs=runs)
    found = compare(make(tmp_path / "a", few, 1), make(tmp_path / "b", few.with_ms(train_step=10.0), 2))
    assert found.step is not None and found.step.ratio == pytest.approx(1.5, abs=0.1)
    assert found.step.verdict == "unsure"
    assert found.step.low is not None  # what the steps, or two runs, leave open
    assert "No change can be told" in found.headline
    assert found.attribution == ()
    judged = gate.gated(found, 3.0).gate
    assert judged is not None and judged.result == "unjudged"


def test_a_busy_machine_leaves_the_cpu_time_of_a_step(tmp_path: Path) -> None:
    busy = Job(steps=60, run_noise=0.3)
    found = compare(make(tmp_path / "a", busy, 1), make(tmp_path / "b", busy.with_ms(train_step=5.6), 2))
    assert found.step is not None and found.step.verdict == "unsure"
    assert change(found, "metric", "step_cpu_s").verdict == "slower"
    assert "% more CPU time" in found.notes[0]
    judged = gate.gated(found, 3.0, [gate.Wanted.of("step_cpu_s")]).gate
    assert judged is not None and judged.result == "failed"


CONTENDED = Job(steps=1200, runs=7, run_noise=0.004, step_noise=0.02, contended=0.5)
"""On a machine where a neighbour makes half of the steps 1.6 times as long, now more and now fewer."""


def test_where_runs_differ_much_the_quickest_steps_are_compared(tmp_path: Path) -> None:
    found = compare(make(tmp_path / "a", CONTENDED, 1), make(tmp_path / "b", CONTENDED.with_ms(tokenize=4.8), 2))
    step = found.step
    assert step is not None and step.name == "quick_step_s" and step.verdict == "slower"
    assert step.ratio == pytest.approx(1.18, abs=0.03)
    assert found.headline.startswith(f"B is {100 * (step.ratio - 1):.1f} % slower in its quickest steps")
    assert "the verdict and all shares are of their quickest steps" in found.notes[0]
    assert found.attribution[0].change.name == "tokenize"
    judged = gate.gated(found, 5.0).gate
    assert judged is not None and judged.result == "failed" and judged.judged[0].metric == "quick_step_s"


def test_a_neighbour_of_one_side_is_no_change_of_the_program(tmp_path: Path) -> None:
    """All runs of B had it for most of their time, and those of A had not: their usual step has doubtless changed."""
    calm, beset = replace(CONTENDED, contended=0.2), replace(CONTENDED, contended=0.8)
    found = compare(make(tmp_path / "a", calm, 1), make(tmp_path / "b", beset, 2))
    usual = change(found, "metric", "step_s")
    assert usual.low is not None and usual.low > 1 and usual.verdict == "unsure"
    assert "its quickest steps do not say so" in usual.evidence
    assert found.step is not None and found.step.name == "quick_step_s"
    assert found.step.verdict in ("same", "unsure") and not found.attribution
    judged = gate.gated(found, 10.0).gate  # the same would be seen if B's program had become slower in most steps
    assert judged is not None and judged.result == "unjudged"
    assert "but the usual step is +59" in judged.judged[0].reason
    by_usual = gate.gated(found, 10.0, [gate.Wanted.of("step_s")]).gate
    assert by_usual is not None and by_usual.result == "unjudged"


def test_on_a_quiet_machine_the_usual_step_is_judged(tmp_path: Path) -> None:
    """Also where the quickest steps are as they were: two of three have become slower, say."""
    even = replace(LONG, run_noise=0.003, step_noise=0.01)
    made = make(tmp_path / "b", even, 3)
    steps = made.table("steps")
    assert steps is not None
    longer = (1.4 * steps["duration_ns"]).astype(int)
    steps["duration_ns"] = steps["duration_ns"].where(steps["step"] % 3 == 0, longer)
    steps.to_parquet(made.folder / made.tables["steps"].path)
    found = compare(make(tmp_path / "a", even, 1), load(made.folder))
    assert found.step is not None and (found.step.name, found.step.verdict) == ("step_s", "slower")
    assert change(found, "metric", "quick_step_s").verdict == "same"
    assert "only some of the program's steps have" in found.notes[0]


def test_where_both_have_neighbours_the_quickest_steps_may_pass(tmp_path: Path) -> None:
    found = compare(make(tmp_path / "a", CONTENDED, 1), make(tmp_path / "b", CONTENDED, 2))
    judged = gate.gated(found, 10.0).gate
    assert judged is not None and judged.result == "passed" and judged.judged[0].metric == "quick_step_s"


def test_ranges_and_operators_are_weighed_as_the_quickest_steps_have_them(tmp_path: Path) -> None:
    """A neighbour of B's runs lengthens what B's tools saw, too: nothing of that is a change of the program."""
    ops = {"aten::mm": (10.0, 400.0)}
    calm = replace(CONTENDED, contended=0.2, ops=ops, slowdown=1.0)
    beset = replace(CONTENDED, contended=0.8, ops={"aten::mm": (10.0, 600.0)}, slowdown=1.0)
    a, b = (with_ranges(make(tmp_path / name, job, n)) for name, job, n in (("a", calm, 1), ("b", beset, 2)))
    found = compare(a, b)
    assert found.step is not None and found.step.name == "quick_step_s"
    assert change(found, "phase", "range forward").verdict in ("same", "unsure")
    assert not [one for one in found.told("op") if one.verdict in ("slower", "faster")]


def with_ranges(report: Report) -> Report:
    """With a range `forward` of 0.4 of each bare step."""
    steps = report.table("steps")
    assert steps is not None
    bare = steps[steps["capture"].str.endswith("-timing")]
    columns = {
        "pid": [PID] * len(bare), "name": ["forward"] * len(bare), "start_ns": (bare["start_ns"] + 1000).tolist(),
        "duration_ns": (0.4 * bare["duration_ns"]).astype(int).tolist(),
    }  # fmt: skip
    parts = [
        Table("ranges", {name: [v for v, c in zip(column, bare["capture"], strict=True) if c == capture]
                         for name, column in columns.items()}, clock="epoch").with_capture(capture)
        for capture in bare["capture"].unique()
    ]  # fmt: skip
    pq.write_table(tables.arrow("ranges", parts), report.folder / "tables" / "ranges.parquet")
    return replace(report, tables={**report.tables, "ranges": TableInfo("tables/ranges.parquet", len(bare))})


def test_few_steps_are_never_the_quickest(tmp_path: Path) -> None:
    short = replace(CONTENDED, steps=40)
    found = compare(make(tmp_path / "a", short, 1), make(tmp_path / "b", short, 2))
    assert found.step is not None and found.step.name == "step_s"


def test_other_numbers_of_steps_have_the_same_share_of_quickest(tmp_path: Path) -> None:
    """Of 60 steps five are a twelfth; five of 1200 would be quicker by chance alone."""
    few, many = (replace(CONTENDED, steps=steps, step_noise=0.05, contended=0.3) for steps in (70, 1200))
    one, other = sides.both(make(tmp_path / "a", few, 1), make(tmp_path / "b", many, 2))
    assert one.share == other.share == pytest.approx(5 / 67)
    assert {len(frame) for frame in other.quickest.values()} == {math.ceil(5 / 67 * 1197)}


def test_contended_pairs_raise_no_alarm_and_six_percent_are_caught(tmp_path: Path) -> None:
    verdicts: dict[float, list[str]] = {3.0: [], 3.6: []}
    for seed in range(10):
        a = make(tmp_path / f"{seed}a", CONTENDED, 1000 + seed)
        for ms, said in verdicts.items():
            found = compare(a, make(tmp_path / f"{seed}b{ms}", CONTENDED.with_ms(tokenize=ms), 2000 + seed))
            said += [found.step.verdict] if found.step else []
    assert sum(one in ("slower", "faster") for one in verdicts[3.0]) <= 1
    assert verdicts[3.6].count("slower") >= 8


def test_without_steps_the_run_is_what_is_compared(tmp_path: Path) -> None:
    bare = Job(steps=300, has_steps=False)
    found = compare(make(tmp_path / "a", bare, 1), make(tmp_path / "b", bare.with_ms(train_step=9.0), 2))
    assert found.step is not None and found.step.name == "wall_s"
    assert found.step.of == "A's run"
    assert "slower in wall time" in found.headline
    assert found.attribution[0].change.name == "train_step"


def test_a_run_beside_itself_is_no_change(base: Report) -> None:
    found = compare(base, base)
    assert found.notes == ("A and B are the same run",)
    assert found.step is not None and found.step.ratio == 1.0
    assert not [one for one in found.changes if one.verdict in SURE]


# ---------------------------------------------------------------- kernels, operators, system calls

GEMM, NEW_GEMM = "void sm80_xmma_gemm_f32_128x64<float>(Params)", "void sm80_xmma_gemm_f32_64x64<float>(Params)"
KERNELS = {GEMM: (8.0, 300.0, "64,1,1"), "relu": (8.0, 50.0, "256,1,1"), "softmax": (1.0, 400.0, "32,1,1")}


def on_gpu(folder: Path, seed: int, **kernels: tuple[float, float, str] | None) -> Report:
    merged = {name: one for name, one in {**KERNELS, **kernels}.items() if one is not None}
    return make(folder, Job(kernels=merged), seed)


def test_a_kernel_that_grew_is_told_and_one_renamed_is_no_news(tmp_path: Path) -> None:
    a = on_gpu(tmp_path / "a", 1)
    b = on_gpu(tmp_path / "b", 2, **{GEMM: None, NEW_GEMM: (8.0, 310.0, "64,1,1"), "softmax": (3.0, 400.0, "32,1,1")})
    found = compare(a, b)
    again = change(found, "kernel", GEMM)
    assert (again.verdict, again.now_called) == ("renamed", NEW_GEMM)
    grown = change(found, "kernel", "softmax")
    assert grown.verdict == "slower"
    assert grown.share_of_step_pct == pytest.approx(8, abs=1)
    assert "1 -> 3 a step" in grown.evidence
    assert not [one for one in found.told("kernel") if one.verdict in ("new", "gone")]


def test_new_and_gone_kernels_are_told(tmp_path: Path) -> None:
    a = on_gpu(tmp_path / "a", 1)
    b = on_gpu(tmp_path / "b", 2, softmax=None, flash_forward=(2.0, 90.0, "128,8,1"))
    found = compare(a, b)
    assert change(found, "kernel", "softmax").verdict == "gone"
    assert change(found, "kernel", "flash_forward").verdict == "new"


def test_recordings_without_a_bare_run_are_compared_by_their_gpu_time(tmp_path: Path) -> None:
    job = Job(kernels=KERNELS, runs=0, has_steps=False)
    more = replace(job, kernels={**KERNELS, "flash_forward": (2.0, 90.0, "128,8,1")})
    found = compare(make(tmp_path / "a", job, 1), make(tmp_path / "b", more, 2))
    assert found.step is None and "Nothing was timed" in found.headline
    new = change(found, "kernel", "flash_forward")
    assert (new.verdict, new.of) == ("new", "A's GPU time")
    assert new.share_of_step_pct == pytest.approx(100 * 180 / 3200, rel=0.05)


def test_operators_and_system_calls_that_grew_are_told(tmp_path: Path) -> None:
    ops, calls = {"aten::mm": (4.0, 500.0), "aten::add": (9.0, 20.0)}, {"read": (2.0, 100.0), "futex": (5.0, 9000.0)}
    job = Job(ops=ops, calls=calls)
    more = replace(job, ops={**ops, "aten::add": (9.0, 90.0)}, calls={**calls, "fsync": (1.0, 700.0)})
    found = compare(make(tmp_path / "a", job, 1), make(tmp_path / "b", more, 2))
    assert change(found, "op", "aten::add").verdict == "slower"
    assert not [one for one in found.told("op") if one.name == "aten::mm" and one.verdict in SURE]
    assert change(found, "syscall", "fsync").verdict == "new"
    assert not [one for one in found.told("syscall") if one.name == "futex" and one.verdict in SURE]


def test_what_other_threads_wait_is_not_why_a_step_is_slower(tmp_path: Path) -> None:
    waits = Job(
        calls={"write": (1.0, 100.0)}, calls_elsewhere={"clock_nanosleep": (1.0, 9900.0), "accept": (1.0, 50.0)}
    )
    slow = replace(
        waits.with_ms(train_step=10.0), calls={"write": (1.0, 5000.0)},
        calls_elsewhere={"clock_nanosleep": (1.0, 14900.0), "accept": (3.0, 5000.0)},
    )  # fmt: skip
    found = compare(make(tmp_path / "a", waits, 1), make(tmp_path / "b", slow, 2))
    assert [one.change.name for one in found.attribution if one.change.what == "syscall"] == ["write"]
    assert change(found, "syscall", "accept").verdict == "more"
    assert "clock_nanosleep" not in {one.name for one in found.told("syscall")}


def test_where_threads_are_unknown_only_numbers_of_calls_are_compared() -> None:
    calls = pandas.DataFrame({"thread": pandas.array([None, None], "Int64")})
    steps = pandas.DataFrame({"pid": [7], "tid": [7]})
    assert not sides._is_of_the_step(calls, steps).any()
    assert not sides._is_of_the_step(calls.assign(thread=7), None).any()
    assert sides._is_of_the_step(calls.assign(thread=[7, 8]), steps).tolist() == [True, False]


def test_ranges_of_workers_are_no_part_of_the_step(tmp_path: Path) -> None:
    report = make(tmp_path / "a", Job(runs=1, steps=10), 1)
    columns: dict[str, list[Any]] = {
        "pid": [PID] * 10 + [PID + 1] * 40,
        "name": ["load"] * 50,
        "duration_ns": [1000] * 10 + [9000] * 40,
    }
    ranges = Table("ranges", {**columns, "start_ns": list(range(50))}).with_capture("p01-timing")
    assert sides.View(with_table(report, ranges)).of_ranges() == {"load": [1000.0]}


def test_a_bare_run_that_failed_times_nothing(tmp_path: Path) -> None:
    report = make(tmp_path / "a", Job(runs=3), 1)
    first, second, *rest = report.passes
    assert second.run is not None
    broken = replace(second, run=replace(second.run, exit=Exit(1)))
    assert sides.View(replace(report, passes=(first, broken, *rest))).bare == ["p01", "p03"]


def test_a_renamed_kernel_is_no_cause() -> None:
    step = Change("metric", "step_s", 1.0, 1.2, "s", "slower", 1.2, share_of_step_pct=20.0)
    again = Change("kernel", "gemm", 0.5, 0.6, "s", "renamed", share_of_step_pct=10.0, now_called="gemm_2")
    assert blame.attribution(step, [again], lambda _: ()) == ()
    assert blame.attribution(step, [replace(again, verdict="slower")], lambda _: ()) != ()


# ---------------------------------------------------------------- findings and figures


def finding(cost_pct: float, rule: str = "where_the_time_goes", function: str = "tokenize") -> Finding:
    return Finding(
        rule, "python_cpu", "major", f"{cost_pct:g} % in {function}", "Do less.", "high",
        where={"function": function, "file": FILE}, cost_pct=cost_pct, of="the steady steps of a bare run",
        evidence=(Evidence("host_time", function, cost_pct, "%"),),
    )  # fmt: skip


def test_findings_are_new_gone_and_louder(tmp_path: Path) -> None:
    a = make(tmp_path / "a", Job(findings=(finding(20), finding(12, function="log"), finding(4, function="near"))), 1)
    b = make(tmp_path / "b", Job(findings=(finding(28), finding(15, function="fsync_each"))), 2)
    told = {one.where["function"]: one.verdict for one in compare(a, b).told("finding")}
    assert told == {"tokenize": "more", "log": "gone", "fsync_each": "new", "near": "unsure"}


def test_what_no_tool_could_have_found_is_neither_new_nor_gone(tmp_path: Path) -> None:
    seen = replace(finding(20), sources=("p06-py-spy",))
    a = make(tmp_path / "a", Job(findings=(seen,)), 1)
    blind = make(tmp_path / "b", Job(status="tool_failed"), 2)
    for one, other, side in ((a, blind, "B"), (blind, a, "A")):
        (told,) = compare(one, other).told("finding")
        assert (told.verdict, told.evidence) == ("unsure", f"py-spy gave nothing in {side}")
    (gone,) = compare(a, make(tmp_path / "c", Job(), 3)).told("finding")
    assert gone.verdict == "gone"


def test_a_rate_that_falls_is_slower(tmp_path: Path) -> None:
    rate = Metric(1000.0, "tok/s", (990.0, 1010.0), 5, 1000.0, 8.0)
    a = make(tmp_path / "a", Job(metrics={"tokens_per_s": rate}), 1)
    b = make(tmp_path / "b", Job(metrics={"tokens_per_s": replace(rate, value=900.0)}), 2)
    found = compare(a, b)
    assert change(found, "metric", "tokens_per_s").verdict == "slower"
    failed = gate.gated(found, 3.0, [gate.Wanted.of("tokens_per_s")]).gate
    assert failed is not None and failed.result == "failed"


# ---------------------------------------------------------------- false alarms


def pairs(folder: Path, ms: float) -> Iterator[Comparison]:
    """Five pairs of short runs that differ by 2 % among themselves, train_step taking `ms` in the second of each."""
    job = Job(steps=20, run_noise=0.02)
    for seed in range(5):
        a = make(folder / f"{seed}a{ms}", job, 1000 + seed)
        yield compare(a, make(folder / f"{seed}b{ms}", job.with_ms(train_step=ms), 2000 + seed))


def test_equal_pairs_raise_no_alarm_and_six_percent_are_caught(tmp_path: Path) -> None:
    verdicts = {ms: [one.step.verdict for one in pairs(tmp_path, ms) if one.step] for ms in (5.0, 5.6)}
    assert sum(one in ("slower", "faster") for one in verdicts[5.0]) <= 1
    assert verdicts[5.6].count("slower") >= 4
