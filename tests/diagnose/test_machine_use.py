"""diagnose/machine_use.py: what the samples say of the machine; a healthy program on a busy one has none of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_report import STARTED_NS, bare, write

from orchestrator.diagnose.machine_use import machine_use
from orchestrator.model import Abstention, Capture, Finding, Metric, PassRecord, SeenPython, TargetRun
from orchestrator.report import Report
from orchestrator.tables import Table

MAIN, GPU = 100, "GPU-1"
SECONDS = 12
"""A reading each second; the steps are those from the fifth on."""

Values = Mapping[tuple[str, str, str], Any]
"""By source, subject and metric: one value for all readings, or (start-up, steps)."""

QUIET: Values = {
    ("host", "", "cpu_pct"): 52.0,
    ("host", "", "cpu_steal_pct"): 0.0,
    ("host", "", "pressure_io_full_pct"): 0.2,
    ("host", "", "pressure_memory_some_pct"): 0.0,
    ("host", "", "memory_available_bytes"): 8e9,
    ("host", "", "throttled_pct"): 0.0,
    ("tree", "", "cpu_pct"): 195.0,
    ("tree", "", "threads"): 4.0,
    ("tree", "", "processes"): 1.0,
    ("monitor", "", "cpu_pct"): 1.0,
    ("process", "100", "cpu_pct"): 195.0,
    ("process", "100", "cpu_system_pct"): (60.0, 1.0),
    ("process", "100", "queue_pct"): 3.0,
    ("process", "100", "main_queue_pct"): 2.0,
    ("process", "100", "minor_faults_per_s"): (90_000.0, 300.0),
    ("process", "100", "major_faults_per_s"): (400.0, 0.0),
}
"""Two threads that are never without work, on two of four processors; importing made faults by the thousand."""


def samples(values: Values) -> Table:
    rows = [
        (STARTED_NS + second * 10**9, *key, (value[second > 4] if isinstance(value, tuple) else value))
        for second in range(SECONDS)
        for key, value in values.items()
    ]
    return Table.of("samples", rows, clock="epoch")


def report(folder: Path, values: Values, *, beside: tuple[str, ...] = (), steps: bool = True, **machine: Any) -> Report:
    python = SeenPython(MAIN, ("python",), {"OMP_NUM_THREADS": "16"}, cpus="0-1")
    run = TargetRun(("python",), MAIN, STARTED_NS, STARTED_NS + 12 * 10**9, 12.0, None, pythons=(python,))
    made = Table(
        "steps",
        {"pid": [MAIN] * 8, "step": list(range(8)), "start_ns": [STARTED_NS + (4 + n) * 10**9 for n in range(8)],
         "duration_ns": [10**9] * 8, "warmup": [False] * 8},
    )  # fmt: skip
    tables = [samples({**QUIET, **values}), *([made] if steps else [])]
    names = ("monitor", *beside)
    passes = (PassRecord("p01", "bare", ("timing",), 1, run), PassRecord("p02", "profiled", names, 1, run, 1.0))
    facts = {"cpu": {"logical": 4, "usable": 4}, "memory_bytes": 16 * 2**30, **machine}
    return replace(
        bare(folder),
        machine=facts,
        passes=passes,
        captures=tuple(Capture(f"p02-{name}", "p02", name, "ok", run=run) for name in names),
        metrics={"step_s": Metric(1.0, "s"), "steps": Metric(8.0), "warmup_steps": Metric(0.0)},
        tables={table.name: write(folder, table.with_capture("p02-monitor")) for table in tables},
    )


def found(whole: Report) -> list[Finding]:
    return [one for one in machine_use(whole) if isinstance(one, Finding)]


CROWDED: Values = {
    ("process", "100", "queue_pct"): 1400.0,
    ("process", "100", "main_queue_pct"): 70.0,
    ("tree", "", "threads"): 17.0,
}


def test_sixteen_threads_on_two_processors_are_told_with_what_the_main_thread_waits(tmp_path: Path) -> None:
    (finding,) = found(report(tmp_path, CROWDED))
    assert finding.title == (
        "16 threads at a time want 2 processors, and wait for their turn and for one another: 79 % of the steady steps "
        "of a bare run"
    )  # the main thread's 70 %, and 1400 of 1600 thread-seconds: 88 %
    assert (finding.category, finding.severity) == ("cpu_oversubscription", "critical")
    assert finding.cost_s == pytest.approx(8 * (0.7 + 0.875) / 2, abs=0.02)
    assert finding.advice.endswith("OMP_NUM_THREADS was 16.")


@pytest.mark.parametrize(
    "values",
    [
        {},
        {("process", "100", "queue_pct"): 90.0, ("process", "100", "main_queue_pct"): 45.0},
        {("process", "100", "queue_pct"): 90.0, ("process", "100", "cpu_pct"): 100.0},
        {("host", "", "pressure_io_full_pct"): 60.0, ("host", "", "disk_write_bytes_per_s"): 9e7},
        {("gpu", GPU, "throttle_sw_power_cap"): 1.0, ("gpu", GPU, "gpu_util_pct"): 90.0},
        {("gpu", GPU, "gpu_util_pct"): 0.0},
        {("gpu_process", f"{GPU}/100", "memory_used_bytes"): 9e9},
    ],
    ids=["two on two", "two on a busy machine", "one", "others' disk", "at its power cap",
         "no GPU for this torch", "its own"],
)  # fmt: skip
def test_a_healthy_program_is_left_in_peace(tmp_path: Path, values: Values) -> None:
    """Its import has made faults and waited for the disk: those of the steps count."""
    assert found(report(tmp_path, values)) == []


@pytest.mark.parametrize(
    ("values", "machine", "rule", "category", "severity", "title"),
    [
        (
            {("host", "", "throttled_pct"): 60.0},
            {},
            "quota",
            "cpu_oversubscription",
            "critical",
            "The container's CPU limit held the program back: 30 % of the steady steps of a bare run",
        ),
        (
            {
                ("process", "100", "minor_faults_per_s"): 100_000.0,
                ("process", "100", "cpu_system_pct"): 25.0,
                ("process", "100", "cpu_pct"): 100.0,
            },
            {},
            "page_faults",
            "memory_management",
            "major",
            "The program touches 410 MB of fresh memory a second: 25 % of the steady steps of a bare run",
        ),
        (
            {("process", "100", "major_faults_per_s"): 90.0, ("host", "", "pressure_memory_some_pct"): 40.0},
            {},
            "memory_short",
            "memory_management",
            "critical",
            "Memory runs short: the kernel takes pages away and brings them back: 40 % of the steady steps of a bare "
            "run",
        ),
        (
            {
                ("host", "", "pressure_io_full_pct"): 40.0,
                ("host", "", "disk_write_bytes_per_s"): 5e6,
                ("process", "100", "disk_write_bytes_per_s"): 5e6,
            },
            {},
            "disk",
            "file_io",
            "critical",
            "The program waits for the disk, to which it moves 5.0 MB/s: 40 % of the steady steps of a bare run",
        ),
        (
            {("host", "", "cpu_pct"): 95.0},
            {},
            "neighbours",
            "environment",
            "minor",
            "Other programs kept 1.8 of 4 processors busy while it was measured",
        ),
        (
            {("host", "", "cpu_steal_pct"): 35.0},
            {},
            "steal",
            "environment",
            "minor",
            "The hypervisor gave the processors to others (steal): 35 % of the steady steps of a bare run",
        ),
        (
            {("gpu", GPU, "throttle_sw_thermal_slowdown"): (0.0, 1.0)},
            {},
            "gpu_held_down",
            "environment",
            "minor",
            "The GPU slowed itself down in 100 % of the samples (sw thermal slowdown)",
        ),
        (
            {("gpu_process", f"{GPU}/77", "memory_used_bytes"): 9e9},
            {},
            "gpu_shared",
            "environment",
            "minor",
            "1 other process had memory on the GPU meanwhile",
        ),
        (
            {("gpu", GPU, "gpu_util_pct"): 0.0},
            {"target": {"torch": "2.5.1+cu124"}},
            "gpu_left_idle",
            "environment",
            "minor",
            "The steps were made on the CPU, while a GPU that torch could use did nothing",
        ),
    ],
)
def test_each_is_told_where_it_is_so(
    tmp_path: Path, values: Values, machine: Any, rule: str, category: str, severity: str, title: str
) -> None:
    (finding,) = found(report(tmp_path, values, **machine))
    assert (finding.rule, finding.category, finding.severity, finding.title) == (rule, category, severity, title)


def test_what_others_keep_it_waiting_for_is_not_its_own_doing(tmp_path: Path) -> None:
    """Its 16 ready threads are half of all that want a processor."""
    busy: Values = {**CROWDED, ("process", "100", "cpu_pct"): 100.0, ("host", "", "runnable"): 29.0}
    assert found(report(tmp_path, busy))[0].cost_pct == pytest.approx((70 + 100 * 14 / 15) / 2 / 2, abs=0.1)


def test_faults_cost_no_more_than_they_can(tmp_path: Path) -> None:
    """The kernel's time may be spent on other things; and where it is not known, the least is told."""
    one: Values = {("process", "100", "cpu_pct"): 100.0, ("process", "100", "cpu_system_pct"): 50.0}
    few: Values = {**one, ("process", "100", "minor_faults_per_s"): 4_000.0}
    assert found(report(tmp_path, few))[0].cost_pct == 4.0
    unknown: Values = {
        **few,
        ("process", "100", "minor_faults_per_s"): 80_000.0,
        ("process", "100", "cpu_system_pct"): None,
    }
    assert found(report(tmp_path, unknown))[0].cost_pct == 4.0


def test_faults_of_many_threads_cost_each_its_part(tmp_path: Path) -> None:
    """Sixteen threads at work spend 160 % of a processor in the kernel: a tenth of each one's time."""
    crowd: Values = {
        ("process", "100", "minor_faults_per_s"): 400_000.0,
        ("process", "100", "cpu_system_pct"): 160.0,
        ("process", "100", "cpu_pct"): 1600.0,
    }
    (finding,) = found(report(tmp_path, crowd))
    assert (finding.cost_pct, finding.severity, finding.cause) == (10.0, "minor", "memory_management")


def test_what_has_one_category_has_not_one_cause(tmp_path: Path) -> None:
    held: Values = {**CROWDED, ("host", "", "throttled_pct"): 60.0, ("host", "", "cpu_pct"): 95.0}
    told = {one.rule: one.cause for one in found(report(tmp_path, held))}
    assert told == {"oversubscribed": "cpu_oversubscription", "quota": "quota", "neighbours": "neighbours"}


def test_a_pass_with_other_tools_does_not_tell_who_else_was_at_work(tmp_path: Path) -> None:
    assert found(report(tmp_path, {("host", "", "cpu_pct"): 95.0}, beside=("py-spy",))) == []


def test_without_steps_the_whole_run_counts(tmp_path: Path) -> None:
    assert "page_faults" in {one.rule for one in found(report(tmp_path, {}, steps=False))}


def test_without_samples_it_abstains(tmp_path: Path) -> None:
    whole = report(tmp_path, {})
    (said,) = machine_use(replace(whole, tables={}))
    assert isinstance(said, Abstention) and "use: monitor" in said.feed
    assert list(machine_use(replace(whole, tables={}, run=replace(whole.run, imported=True)))) == []


FAULTING: Values = {("process", "100", "minor_faults_per_s"): 40_000.0, ("process", "100", "cpu_system_pct"): 32.0}


def at_work(*rows: tuple[str, str | None, str | None, float]) -> Table:
    """Of the main thread's steps: function, operator, phase and share."""
    names = ("role", "part", "state", "part_ns", "file", "function", "op", "phase", "total_ns")
    part_ns = 10**10
    told = [
        ("main", "steady", "native", part_ns, "/t.py", f, op, ph, round(pct / 100 * part_ns)) for f, op, ph, pct in rows
    ]
    return Table.of("host_time", told, names)


@pytest.mark.parametrize(
    ("rows", "function"),
    [
        ([("train", None, "backward", 70.0), ("extend", None, None, 20.0)], "train"),
        ([("train", None, "backward", 50.0), ("extend", "numpy.concatenate", None, 46.0)], "extend"),
        (
            [
                ("train", None, "backward", 50.0),
                ("extend", "numpy.concatenate", None, 10.0),
                ("eval", None, None, 40.0),
            ],
            None,
        ),
        ([("train", "aten::copy_", "backward", 46.0), ("extend", "numpy.dot", None, 40.0)], None),
    ],
    ids=[
        "most of the native work",
        "it copies as long as that",
        "it copies too little",
        "nobody copies beside the step",
    ],
)
def test_fresh_memory_is_put_to_who_works_on_it(tmp_path: Path, rows: Any, function: str | None) -> None:
    whole = report(tmp_path, FAULTING)
    table = at_work(*rows).with_capture("p02-monitor")
    (finding,) = found(replace(whole, tables={**whole.tables, "host_time": write(tmp_path, table)}))
    assert (finding.rule, finding.where.get("function")) == ("page_faults", function)
