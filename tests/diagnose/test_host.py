"""What the thread of the steps does and waits for: one finding a place, put to whose fault it is; calm where that is
the program's purpose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest

from orchestrator import diagnose
from orchestrator.diagnose import headline, host
from orchestrator.model import Abstention, Capture, Finding, Metric, Outcome
from orchestrator.report import Report, RunInfo

RUN = RunInfo("r", "n", "2026-01-01T00:00:00Z", 1.0, ("python", "train.py"), "/home/me", "0")
FILE = "/home/me/train.py"
OWN = {"function": "work", "file": FILE, "line": 12, "code": "own"}
FRAMEWORK = {"function": "forward", "file": FILE, "line": 5, "code": "framework", "state": "native"}


class Made(Report):
    """A report whose table `host_time` is in memory."""

    rows: list[dict[str, Any]]
    ops: tuple[tuple[str, int, int], ...] = ()
    """(operator, calls, ns in all of them)"""

    def table(self, name: str) -> pandas.DataFrame | None:
        if name == "torch_ops" and self.ops:
            return pandas.DataFrame(self.ops, columns=["name", "count", "cpu_total_ns"]).assign(
                device="cpu", cpu_self_ns=0
            )
        if name != "host_time" or not self.rows:
            return None
        columns = [
            "phase",
            "state",
            "function",
            "file",
            "line",
            "below",
            "code",
            "native",
            "op",
            "behind",
            "behind_state",
            "behind_code",
        ]
        whole = sum(row["pct"] for row in self.rows)
        frame = pandas.DataFrame(
            [
                {
                    **dict.fromkeys(columns),
                    "part": "steady",
                    **row,
                    "total_ns": int(row["pct"] * 1e7),
                    "samples": 5 * row["pct"],
                }
                for row in self.rows
            ]
        ).astype({name: "string" for name in columns if name != "line"})
        return frame.assign(capture="p1-py-spy", role="main", part_ns=int(whole * 1e7))


def report(*rows: dict[str, Any], native: bool = True, trust: Any = "high") -> Report:
    capture = Capture("p1-py-spy", "p1", "py-spy", "ok", trust=trust, options={"native": native})
    timing = Capture("p0-timing", "p0", "timing", "ok")
    metrics = {"step_s": Metric(0.1, "s"), "steps": Metric(101, "steps"), "warmup_steps": Metric(1, "steps")}
    made = Made(RUN, Outcome("ok", 0, ""), {}, captures=(capture, timing), metrics=metrics, folder=Path())
    object.__setattr__(made, "rows", list(rows))
    return made


def findings(*rows: dict[str, Any], **more: Any) -> list[Finding]:
    found = [one for one in host.where_the_time_goes(report(*rows, **more)) if isinstance(one, Finding)]
    return list(diagnose.merged(found))


def test_a_wait_for_files_with_its_cost_and_place() -> None:
    wait = {**OWN, "state": "file", "native": "fsync (libc.so.6)", "pct": 60}
    (first, *rest) = findings(wait, {**FRAMEWORK, "op": "aten::addmm", "pct": 40})
    assert (first.category, first.severity, first.cost_pct, first.cost_s) == ("file_io", "critical", 60, 6)
    assert first.where == {"function": "work", "file": FILE, "line": 12, "syscall": "fsync"}
    assert first.of == "the steady steps of a bare run"
    assert first.confidence == "high"
    assert all(one.healthy and one.severity == "minor" for one in rest)


@pytest.mark.parametrize(
    ("row", "category", "function"),
    [
        ({"state": "network", "native": "recv (libc.so.6)"}, "network_io", "work"),
        ({"state": "child", "native": "poll (libc.so.6)"}, "process_spawn", "work"),
        ({"state": "sleep", "native": "clock_nanosleep (libc.so.6)"}, "idle_wait", "work"),
        ({"state": "gc", "native": "gc_collect_main (libpython3.11.so)"}, "memory_management", "work"),
        ({"state": "device", "native": "cudaStreamSynchronize (libcudart.so)"}, "host_sync", "work"),
        ({"state": "python"}, "python_cpu", "work"),
        ({"state": "native", "code": "library", "below": "compress (bz2.py)"}, "native_cpu", "work"),
        ({"state": "sleep", "phase": "data"}, "input_pipeline", "work"),
        ({"state": "native", "code": "framework", "phase": "checkpoint"}, "file_io", "work"),
        ({"state": "gil", "behind": "tally (/home/me/t.py:4)", "behind_state": "python"}, "gil_contention", "tally"),
        (
            {"state": "lock", "native": "Queue", "behind": "score (/home/me/s.py:9)", "behind_state": "gil"},
            "gil_contention",
            "score",
        ),
        (
            {
                "state": "lock",
                "native": "_queue_SimpleQueue_get",
                "behind": "make (/home/me/s.py:9)",
                "behind_state": "file",
            },
            "file_io",
            "make",
        ),
        (
            {"state": "lock", "native": "lock_PyThread_acquire_lock (libpython3.11.so)", "behind": "send (/x.py:9)"},
            "lock_contention",
            "work",
        ),
        (
            {"state": "pipe", "phase": "data", "behind": "Set.__getitem__ (/home/me/d.py:3)", "behind_state": "sleep"},
            "input_pipeline",
            "Set.__getitem__",
        ),
    ],
)
def test_whose_fault_a_wait_is(row: dict[str, Any], category: str, function: str) -> None:
    (first, *_) = findings({**OWN, **row, "pct": 50}, {**FRAMEWORK, "pct": 50})
    assert (first.category, first.where["function"], first.severity) == (category, function, "critical")


def test_a_program_whose_work_is_the_framework_s_has_no_finding_above_minor() -> None:
    found = findings({**FRAMEWORK, "op": "aten::mm", "pct": 96}, {**OWN, "state": "python", "pct": 4})
    assert {one.severity for one in found} == {"minor"}
    assert (found[0].category, found[0].where["op"], found[0].healthy) == ("native_cpu", "aten::mm", True)


@pytest.mark.parametrize(
    ("start_pct", "said"), [(25, [("process_spawn", 60)]), (5, [("file_io", 35), ("process_spawn", 5)])]
)
def test_what_a_child_answers_is_no_file(start_pct: int, said: list[tuple[str, int]]) -> None:
    start = {**OWN, "state": "child", "native": "vfork (libc.so.6)", "pct": start_pct}
    found = findings(
        start, {**OWN, "state": "file", "native": "read (libc.so.6)", "pct": 35}, {**FRAMEWORK, "pct": 65 - start_pct}
    )
    assert [(one.category, one.cost_pct) for one in found if not one.healthy] == said


@pytest.mark.parametrize(
    ("calls", "each_ns", "phase", "severity"),
    [(2560, 5_000, None, "major"), (900, 5_000, None, "minor"), (2560, 50_000, None, "minor"),
     (2560, 5_000, "optimizer", "minor")],
)  # fmt: skip
def test_an_operator_called_very_often_for_very_little_is_a_loop(
    calls: int, each_ns: int, phase: str | None, severity: str
) -> None:
    made = report({**FRAMEWORK, "op": "aten::gt", "phase": phase, "pct": 60}, {**OWN, "state": "python", "pct": 40})
    object.__setattr__(made, "ops", (("aten::gt", calls, calls * each_ns), ("ProfilerStep*", 10, 10**9)))
    (first,) = [one for one in host.where_the_time_goes(made) if isinstance(one, Finding) and one.where.get("op")]
    assert (first.severity, "256 times a step" in first.title) == (severity, severity == "major")


@pytest.mark.parametrize(
    ("op", "phase", "trains", "severity", "words"),
    [("numpy.concatenate", None, False, "major", "which only copies"), ("aten::cat", "forward", True, "minor", ""),
     ("numpy.multiply", None, True, "major", "NumPy's, beside the training"),
     ("numpy.multiply", None, False, "minor", "")],
)  # fmt: skip
def test_the_framework_s_work_beside_the_training_is_a_fault(
    op: str, phase: str | None, trains: bool, severity: str, words: str
) -> None:
    rest = {**FRAMEWORK, "function": "learn", "phase": "backward" if trains else None, "op": "aten::mm", "pct": 60}
    found = findings({**FRAMEWORK, "function": "grow", "op": op, "phase": phase, "pct": 40}, rest)
    (first,) = [one for one in found if one.where["function"] in ("grow", "forward")]
    assert (first.severity, words in first.title) == (severity, True)


def test_backward_is_put_to_the_functions_that_ran_forward() -> None:
    rows = (
        {**FRAMEWORK, "phase": "forward", "op": "aten::addmm", "pct": 30},
        {**FRAMEWORK, "function": "<module>", "phase": "backward", "pct": 70},
    )
    (first,) = findings(*rows)
    assert (first.where["function"], first.cost_pct) == ("forward", 100)


def test_what_is_below_the_interval_of_a_measurement_is_not_told() -> None:
    found = findings({**OWN, "state": "file", "pct": 2}, {**FRAMEWORK, "pct": 98})
    assert [one.category for one in found] == ["native_cpu"]


def test_few_samples_or_a_bent_run_make_it_less_sure() -> None:
    wait = {**OWN, "state": "file", "pct": 60}
    assert findings(wait, {**FRAMEWORK, "pct": 40}, trust="distorted")[0].confidence == "medium"
    assert findings({**wait, "pct": 4})[0].confidence == "low"


def test_without_native_frames_it_says_what_would_tell() -> None:
    told = list(host.where_the_time_goes(report({**OWN, "state": "unknown", "pct": 100}, native=False)))
    assert [one.feed for one in told if isinstance(one, Abstention)] == ["{use: py-spy, native: true}"]


def test_without_samples_it_abstains() -> None:
    bare = report()
    (told,) = host.where_the_time_goes(replace(bare, captures=bare.captures[1:]))
    assert isinstance(told, Abstention)


@pytest.mark.parametrize(
    ("fetched_pct", "bare_pct", "pct"),
    [(60.0, 20.0, 20.0), (50.0, 20.0, 30.0), (60.0, 90.0, 60.0)],
    ids=["the loader's next", "with making a loader beside it", "samples never add to what they have seen"],
)
def test_the_loader_s_share_is_that_of_the_bare_runs(fetched_pct: float, bare_pct: float, pct: float) -> None:
    waits = host.Place("input_pipeline", "get", None, None, pct=60.0, fetched_pct=fetched_pct)
    found = host._as_bare([waits, host.Place("file_io", "log", None, None, pct=9.0)], bare_pct)
    assert [place.pct for place in found] == pytest.approx([pct, 9.0])


def test_waits_for_python_s_lock_and_for_who_holds_it_are_one_thing() -> None:
    there = {"behind": "score (/home/me/s.py:9)", "function": "<module>", "file": FILE, "line": 3, "code": "library"}
    wait = {**there, "state": "lock", "native": "Queue", "behind_state": "python", "pct": 45}
    (first, *_) = findings(
        wait, {**there, "state": "gil", "behind_state": "python", "pct": 25}, {**FRAMEWORK, "pct": 30}
    )
    assert (first.category, first.where["function"], first.cost_pct) == ("gil_contention", "score", 70)
    (first, *_) = findings(
        wait, {**there, "state": "gil", "behind_state": "python", "pct": 5}, {**FRAMEWORK, "pct": 50}
    )
    assert (first.category, first.cost_pct) == ("python_cpu", 45)


def test_what_samples_leave_unknown_is_told_of_the_whole_process_or_not_at_all() -> None:
    made = report({**OWN, "state": "unknown", "pct": 100})
    rows = made.table("host_time")
    assert rows is not None
    assert host.places(rows, None) == []
    (waits,), (works,) = host.places(rows, False), host.places(rows, True)
    assert (waits.category, works.category) == ("idle_wait", "python_cpu")
    finding = host._finding(made, "p1-py-spy", waits, rows, is_first=True)
    assert finding is not None
    assert (finding.confidence, "waited for the larger part" in finding.title) == ("low", True)


def test_where_no_warm_up_can_be_told_shares_are_not_of_the_steady_steps() -> None:
    made = report({**OWN, "state": "file", "native": "fsync (libc.so.6)", "pct": 100})
    few = replace(made, metrics={"wall_s": Metric(9.0, "s")})
    object.__setattr__(few, "rows", made.rows)  # type: ignore[attr-defined]
    (found,) = [one for one in host.where_the_time_goes(few) if isinstance(one, Finding)]
    assert (found.of, found.cost_s, found.cost_pct) == ("the steps after the first", None, 100)


def test_nothing_costly_is_said_only_where_somebody_has_looked() -> None:
    calm = Finding("r", "native_cpu", "minor", "PyTorch holds 3 GB", "", "high")
    seen = report({**FRAMEWORK, "native": "mkl (libtorch.so)", "pct": 100})
    object.__setattr__(seen, "findings", (calm,))
    blind = report({**OWN, "state": "unknown", "pct": 100}, native=False)
    object.__setattr__(blind, "findings", (calm,))
    (told, unseen) = (headline.of(seen), headline.of(blind))
    assert told is not None
    assert unseen is not None
    assert told.sentence.startswith("Nothing costly stands out")
    assert (unseen.sentence, unseen.confidence) == (f"{calm.title}. {headline.UNSEEN}.", "low")


def test_a_rule_that_fails_costs_what_it_would_have_found_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(report: Report) -> list[Finding]:
        raise ZeroDivisionError(report.run.id)

    log: list[str] = []
    other = Finding("other", "file_io", "major", "it waits for the disk", "", "high")
    monkeypatch.setattr("orchestrator.registry.rules", lambda: [broken, lambda report: [other]])
    told = diagnose.diagnosed(Report(RUN, Outcome("ok", 0, ""), {}), log.append)
    assert told.findings == (other,)
    assert told.abstentions == (Abstention("broken", diagnose.FAILED, ""),)
    assert "ZeroDivisionError" in log[0]


@pytest.mark.parametrize(
    ("state", "category", "bound"),
    [("native", "memory_management", "cpu"), ("lock", "lock_contention", "unknown"), ("file", "file_io", "none")],
)
def test_what_bounds_a_program_is_told_by_what_its_steps_do(state: str, category: str, bound: str) -> None:
    """Whichever rule has found the worst."""
    seen = report({**OWN, "state": state, "pct": 80}, {**OWN, "state": "sleep", "pct": 20})
    worst = Finding("page_faults", category, "critical", "It is slow", "", "high")  # type: ignore[arg-type]
    object.__setattr__(seen, "findings", (worst,))
    told = headline.of(seen)
    assert told is not None and told.bound == bound


@pytest.mark.parametrize(("times", "severity"), [(1, "major"), (0.05, "minor")])
def test_of_few_samples_a_share_may_be_large_by_chance(times: float, severity: str) -> None:
    """6 of 44: the least that may be is 7 %."""
    made = report({**OWN, "state": "file", "native": "write (libc.so.6)", "pct": 14}, {**FRAMEWORK, "pct": 86})
    frame = made.table("host_time")
    assert frame is not None
    few = frame.assign(samples=(frame["samples"] * times * 0.9).round().astype(int))
    (place,) = [one for one in host.places(few) if one.category == "file_io"]
    found = host._finding(made, "p1-py-spy", place, few, is_first=True)
    assert found is not None and found.severity == severity


def test_copying_is_a_fault_where_it_takes_more_than_a_batch_on_its_way() -> None:
    for pct, severity in ((60, "major"), (16, "minor")):
        copies = {**FRAMEWORK, "native": "copy (libtorch.so)", "op": "aten::cat", "function": "grow", "pct": pct}
        found = findings(copies, {**FRAMEWORK, "function": "train", "phase": "forward", "pct": 100 - pct})
        assert {one.where["function"]: one.severity for one in found}["grow"] == severity
