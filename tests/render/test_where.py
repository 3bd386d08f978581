"""Where the step goes: parts that add up to a named whole, functions below them, the queue of a GPU, system calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import sample_report

from orchestrator.render import gpustrip, html, markdown, syscalls, where
from orchestrator.report import Report
from orchestrator.tables import Table

MS = 1_000_000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return sample_report.build(tmp_path_factory.mktemp("report"))


def only(folder: Path, *tables: Table) -> Report:
    return replace(sample_report.bare(folder), tables={t.name: sample_report.write(folder, t) for t in tables})


def test_the_main_thread_is_told_of_its_steady_steps(report: Report) -> None:
    (split,) = where.hosts(report)
    assert (split.title, split.capture, split.whole_ns, split.whole) == (
        "Main thread", "p09-py-spy", 3_000 * MS, "the steady steps",
    )  # fmt: skip
    assert [(p.name, p.ns // MS) for p in split.parts] == [
        ("running Python", 300),
        ("running native code", 1740),
        ("waiting for the GIL", 90),
        ("waiting for a lock", 60),
        ("waiting for a file", 560),
        ("not told by the samples", 33),
        ("not sampled", 217),
    ]
    assert sum(p.share for p in split.parts) == pytest.approx(1.0)


def test_functions_stand_below_what_they_did(report: Report) -> None:
    (split,) = where.hosts(report)
    native = next(p for p in split.parts if p.key == "native")
    assert [(p.function, p.short, p.more) for p in native.places] == [
        ("CNN.forward", "demo/train_cnn.py:41", "in forward, calling Conv2d.forward"),
        ("train", "demo/train_cnn.py:88", "in backward, calling Tensor.backward"),
    ]
    gil = next(p for p in split.parts if p.key == "gil")
    assert gil.places[0].more == "in data, while others were in prefetch"
    assert next(p for p in split.parts if p.key == "unknown").places == ()  # nothing is known of where


def test_samples_that_stand_for_more_than_the_part_widen_the_whole(tmp_path: Path) -> None:
    row = {"pid": 1, "tid": 1, "role": "main", "part": "all", "part_ns": 100, "function": "f"}
    table = sample_report._of("host_time", "c", [{**row, "state": s, "total_ns": 80} for s in ("python", "new_word")])
    (split,) = where.hosts(only(tmp_path, table))
    assert (split.whole_ns, split.whole) == (160, "its whole life")
    assert [(p.name, p.kind, p.share) for p in split.parts] == [
        ("running Python", "python", 0.5),
        ("new word", "unknown", 0.5),
    ]


def test_the_gpu_is_split_into_work_and_causes_of_idleness(report: Report) -> None:
    (split,) = where.devices(report)
    assert [(p.key, p.ns // MS) for p in split.parts] == [
        ("computing", 2200), ("communicating", 350), ("copying", 150),
        ("host", 208), ("data", 760), ("sync", 30), ("between", 2),
    ]  # fmt: skip
    assert sum(p.ns for p in split.parts) == split.whole_ns == 3_700 * MS
    assert (split.whole, split.told) == ("the steady steps", "its queue is dense, with gaps")


def test_without_causes_the_span_of_the_gpu_is_told(report: Report) -> None:
    tables = {name: info for name, info in report.tables.items() if name != "gpu_time"}
    first, _ = where.devices(replace(report, tables=tables))
    assert (first.title, first.whole) == (
        "NVIDIA H100 80GB HBM3 (device 0)",
        "the time from its first work to its last",
    )
    assert [(p.key, p.share) for p in first.parts][-1] == ("idle", 0.3)


def test_nothing_measured_says_what_would_measure_it(tmp_path: Path) -> None:
    page = html.render(sample_report.bare(tmp_path))
    assert "Not measured: no capture of this run follows the main thread over time (py-spy does" in page
    assert 'id="syscalls"' not in page and 'id="gpu"' not in page


# ---------------------------------------------------------------- the queue of a GPU


def test_covered_is_the_union_of_spans_in_each_bin() -> None:
    starts, lengths = numpy.array([5, 0, 12, 14]), numpy.array([10, 8, 2, 6])
    parts = gpustrip.covered(starts, lengths, numpy.array([0.0, 5.0, 10.0, 15.0, 20.0, 25.0]))
    assert parts.tolist() == pytest.approx([1, 1, 1, 1, 0])
    apart = gpustrip.covered(numpy.array([0, 8]), numpy.array([2, 1]), numpy.array([0.0, 4.0, 8.0, 12.0]))
    assert apart.tolist() == pytest.approx([0.5, 0, 0.25])


@pytest.mark.parametrize("seed", range(5))
def test_covered_counts_every_unit_once(seed: int) -> None:
    random = numpy.random.default_rng(seed)
    starts, lengths = random.integers(0, 900, 60), random.integers(0, 40, 60)
    busy = numpy.zeros(1000)
    for start, length in zip(starts, lengths, strict=True):
        busy[start : start + length] = 1
    found = gpustrip.covered(starts, lengths, numpy.linspace(0.0, 1000.0, 101))
    assert found == pytest.approx(busy.reshape(100, 10).mean(axis=1))


def test_the_strip_shows_the_window_with_work_and_causes(report: Report) -> None:
    first, second = gpustrip.queues(report)
    assert (first.window_ns, first.window, first.known) == (3_700 * MS, "the steady steps", True)
    assert [s.kind for s in first.shapes] == ["native", "file"] and first.kinds == (("file", "idle: waiting for data"),)
    assert (second.shapes, second.gaps, second.known) == ((), (), False)


def test_gaps_are_listed_with_all_that_is_known_of_them(report: Report) -> None:
    longest = gpustrip.queues(report)[0].gaps[0]
    assert (longest.at, longest.lasted, longest.cause, longest.phase) == ("3.2 s", "88 ms", "waiting for data", "data")
    assert longest.python == f"{sample_report.QUOTES} (/home/ada/project/data.py:17)"
    assert longest.syscall == f"read /data/{sample_report.EVIL}" and longest.told_by == ("p09-py-spy", "p10-strace")
    assert longest.share == pytest.approx(88 / 3_700)


def test_gaps_of_older_reports_have_no_cause(tmp_path: Path) -> None:
    use = {"pid": 1, "device": 0, "gpu": "A", "start_ns": 0, "span_ns": 100, "idle_ns": 40, "kernel_ns": 60, "gaps": 1}
    gap = {"pid": 1, "device": 0, "start_ns": 10, "duration_ns": 40, "kind": "host", "thread": 1, "os_call_ns": 0}
    tables = (sample_report._of("gpu_utilization", "c", [use]), sample_report._of("gpu_gaps", "c", [gap]))
    (queue,) = gpustrip.queues(only(tmp_path, *tables))
    assert [(g.cause, g.phase, g.did, g.told_by) for g in queue.gaps] == [("cause not told", None, "its own code", ())]
    assert queue.shapes[0].path == f"M100 {gpustrip.BOX.height:g}V2H500V{gpustrip.BOX.height:g}z"


# ---------------------------------------------------------------- system calls


def test_system_calls_are_added_up_by_class(report: Report) -> None:
    (split,) = syscalls.splits(report)
    assert [(p.name, round(p.share, 3)) for p in split.parts[:3]] == [
        ("locks (futex)", 0.553), ("descriptors", 0.399), ("files by name", 0.042),
    ]  # fmt: skip
    assert sum(p.ns for p in split.parts) == split.whole_ns
    assert [(p.function, p.more) for p in split.parts[2].places] == [
        ("openat", "3,301 calls, 1,902 failed"),
        ("newfstatat", "9,120 calls, 2,011 failed"),
    ]


def test_report_md_says_the_same(report: Report) -> None:
    text = markdown.render(report)
    assert "## Where the step goes: Main thread in p09-py-spy" in text
    assert "| waiting for a file      | 18.7 % | 560 ms | `save` (demo/train_cnn.py:61) 18.7 %" in text
    assert "Of 3.7 s, the steady steps; its queue is dense, with gaps." in text
