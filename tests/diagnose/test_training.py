"""diagnose/training.py: warm-up, waiting for data and steps that stand out, in the steps of bare runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sample_report import bare, write

from orchestrator.diagnose.training import RULES
from orchestrator.model import Abstention, Capture, Exit, Finding, PassRecord, TargetRun
from orchestrator.report import Report
from orchestrator.tables import Table

MS = 10**6
COLUMNS = ("pid", "kind", "step", "start_ns", "duration_ns", "data_wait_ns", "warmup", "profiled", "stall")
Of = Callable[[int], object]


def none(step: int) -> None:
    return None


def steps(
    count: int = 200,
    ms: Of = lambda step: 10,
    wait: Of = none,
    stall: Of = none,
    warm: int | None = 10,
    after_s: float = 1,
) -> Table:
    """Steps of 10 ms, the first `warm` of them warm-up; the first begins `after_s` after the program."""
    now, rows = int(after_s * 1e9), []
    for step in range(count):
        took = int(float(str(ms(step))) * MS)
        waited = wait(step)
        spent = None if waited is None else int(float(str(waited)) * MS)
        rows.append((7, "train", step, now, took, spent, None if warm is None else step < warm, False, stall(step)))
        now += took
    return Table.of("steps", rows, COLUMNS, clock="epoch")


def report(folder: Path, table: Table | None, wall_s: float = 4.0, role: str = "bare") -> Report:
    run = TargetRun(("python",), 7, 0, int(wall_s * 1e9), wall_s, Exit(0))
    record = PassRecord("p01", "bare" if role == "bare" else "profiled", ("timing",), run=run)
    infos = {} if table is None else {"steps": write(folder, table.with_capture("p01-timing"))}
    captures = (Capture("p01-timing", "p01", "timing", "ok"),)
    return replace(bare(folder), passes=(record,), captures=captures, tables=infos)


def found(whole: Report) -> dict[str, Finding]:
    return {one.rule: one for rule in RULES for one in rule(whole) if isinstance(one, Finding)}


def test_even_steps_of_a_short_run_say_nothing(tmp_path: Path) -> None:
    """Half of this run is start-up, as of any short program that imports PyTorch."""
    assert found(report(tmp_path, steps(after_s=2))) == {}


# ---------------------------------------------------------------- steps that stand out


def every(period: int, name: str) -> Of:
    return lambda step: name if step % period == period - 1 else None


def test_checkpoints_at_a_regular_distance(tmp_path: Path) -> None:
    table = steps(ms=lambda step: 10 + 100 * (step % 20 == 19), stall=every(20, "checkpoint"))
    finding = found(report(tmp_path, table))["stalls"]
    assert (finding.category, finding.severity) == ("file_io", "critical")
    assert "(every 20 steps): a checkpoint is saved in them" in finding.title
    assert finding.cost_s == 1.0 and finding.cost_pct == 34.5  # 10 x 100 ms of 2.9 s
    assert [evidence.value for evidence in finding.evidence] == [10, 0.01, 0.11]


def test_evaluation_and_the_unknown_are_no_more_than_minor(tmp_path: Path) -> None:
    for name in ("evaluation", "unknown"):
        table = steps(ms=lambda step: 10 + 100 * (step % 25 == 24), stall=every(25, name))
        assert found(report(tmp_path / name, table))["stalls"].severity == "minor"


def test_where_many_are_slow_for_no_known_reason_none_stands_out(tmp_path: Path) -> None:
    table = steps(ms=lambda step: 10 + 15 * (step % 10 == 9), stall=every(10, "unknown"))
    assert "stalls" not in found(report(tmp_path, table))


def test_stalls_for_data_are_told_with_the_loader(tmp_path: Path) -> None:
    table = steps(ms=lambda step: 10 + 100 * (step % 20 == 19), stall=every(20, "data"))
    finding = found(report(tmp_path, table))["stalls"]
    assert (finding.category, finding.cause) == ("input_pipeline", "input_pipeline")
    assert "persistent_workers" in finding.advice


def test_one_stall_in_many_steps_is_not_worth_a_word(tmp_path: Path) -> None:
    table = steps(ms=lambda step: 10 + 30 * (step == 99), stall=lambda step: "unknown" if step == 99 else None)
    assert found(report(tmp_path, table)) == {}


# ---------------------------------------------------------------- data, warm-up, spread


def test_waiting_for_data(tmp_path: Path) -> None:
    finding = found(report(tmp_path / "a", steps(wait=lambda step: 6)))["data_wait"]
    assert (finding.category, finding.severity, finding.cause) == ("input_pipeline", "critical", "input_pipeline")
    assert (finding.cost_pct, finding.cost_s) == (60.0, 1.14)
    assert finding.of == "the steady steps of a bare run"
    assert found(report(tmp_path / "b", steps(wait=lambda step: 0.1))) == {}


def with_gpu(whole: Report, folder: Path, data_ns: int) -> Report:
    """A GPU that was busy but for this much of 1000 ns, in which it waited for data."""
    rows = [("busy", 1000 - data_ns, 1000), *([("data", data_ns, 1000)] if data_ns else [])]
    table = Table.of("gpu_time", rows, ("state", "total_ns", "window_ns")).with_capture("p02-nsys")
    return replace(whole, tables={**whole.tables, "gpu_time": write(folder, table)})


def test_a_loader_hidden_behind_the_gpu_costs_nothing(tmp_path: Path) -> None:
    whole = report(tmp_path, steps(wait=lambda step: 6))
    assert found(with_gpu(whole, tmp_path, 0)) == {}
    finding = found(with_gpu(whole, tmp_path, 200))["data_wait"]
    assert (finding.severity, finding.cost_pct, finding.cost_s) == ("major", 20.0, 0.38)
    assert finding.title.endswith("20 % of their time passes without work for the GPU")


def test_stalls_for_data_cost_no_more_than_the_gpu_waited(tmp_path: Path) -> None:
    whole = report(tmp_path, steps(ms=lambda step: 10 + 100 * (step % 20 == 19), stall=every(20, "data")))
    assert found(with_gpu(whole, tmp_path, 0)) == {}
    finding = found(with_gpu(whole, tmp_path, 50))["stalls"]
    assert (finding.severity, finding.cost_pct, finding.cost_s) == ("minor", 5.0, 0.145)


def test_a_long_warm_up_of_a_long_run(tmp_path: Path) -> None:
    slow = steps(count=900, ms=lambda step: 2000 if step < 10 else 100, after_s=30)
    finding = found(report(tmp_path / "a", slow, wall_s=140.0))["warming_up"]
    assert (finding.category, finding.severity, finding.cost_s) == ("warmup", "minor", 50.0)
    assert "30 s before the first step, then 10 slow steps" in finding.title
    assert found(report(tmp_path / "b", slow, wall_s=700.0))["warming_up"].severity == "minor"
    assert found(report(tmp_path / "c", slow, wall_s=3000.0)) == {}


def test_hours_that_are_mostly_warm_up_are_major(tmp_path: Path) -> None:
    slow = steps(count=200, ms=lambda step: 60_000 if step < 10 else 1000)
    assert found(report(tmp_path, slow, wall_s=800.0))["warming_up"].severity == "major"


def test_uneven_steps(tmp_path: Path) -> None:
    finding = found(report(tmp_path / "a", steps(ms=lambda step: 6 + 2 * (step % 5))))["uneven_steps"]
    assert (finding.category, finding.severity) == ("data_quality", "minor")
    assert found(report(tmp_path / "b", steps(count=25, ms=lambda step: 6 + 2 * (step % 5)))) == {}, (
        "15 steady ones are few"
    )


# ---------------------------------------------------------------- whose steps, and none


def test_steps_of_bare_runs_come_first(tmp_path: Path) -> None:
    """Of a pass under a tool only what was not looked at closely, and only where nothing else is known."""
    whole = report(tmp_path / "a", steps(wait=lambda step: 6), role="profiled")
    assert found(whole)["data_wait"].sources == ("p01-timing",)
    table = steps(wait=lambda step: 6)
    seen = replace(table, columns={**table.columns, "profiled": [True] * len(table)})
    assert found(report(tmp_path / "b", seen, role="profiled")) == {}


def test_steps_that_never_became_steady(tmp_path: Path) -> None:
    whole = report(tmp_path, steps(count=8, wait=lambda step: 6, warm=None))
    assert found(whole) == {}
    (abstention,) = [one for rule in RULES for one in rule(whole) if isinstance(one, Abstention)]
    assert abstention.lacks.startswith("steady steps") and "20 steps" in abstention.feed


def test_operators_without_steps(tmp_path: Path) -> None:
    ops = Table.of("torch_ops", [("aten::mm", "cpu", 1)], ("name", "device", "count")).with_capture("p02-torch")
    whole = replace(report(tmp_path, None), tables={"torch_ops": write(tmp_path, ops)})
    (abstention,) = [one for rule in RULES for one in rule(whole)]
    assert isinstance(abstention, Abstention) and abstention.feed.startswith("ranges:")
    assert [one for rule in RULES for one in rule(report(tmp_path / "none", None))] == []
