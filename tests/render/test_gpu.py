"""The sections of the GPUs and of single kernels: parts that add up, causes of gaps, names, rooflines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sample_report

from orchestrator.render import gpu, html, kernels, markdown
from orchestrator.report import Report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return sample_report.build(tmp_path_factory.mktemp("report"))


def test_the_parts_add_up_to_the_span(report: Report) -> None:
    first, second = gpu.devices(report)
    assert sum(part.ns for part in first.parts) == first.span_ns
    assert [(p.key, p.share) for p in first.parts] == [
        ("compute", 0.55),
        ("communication", 0.1),
        ("transfer", 0.05),
        ("idle", 0.3),
    ]
    assert [p.key for p in second.parts] == ["idle"], "what is not known is no part"
    assert dict(second.facts)["gaps"] is None


def test_gaps_are_told_by_what_the_launching_thread_did(report: Report) -> None:
    device = gpu.devices(report)[0]
    assert [(c.did, c.where, c.count) for c in device.causes] == [
        ("read", "step *", 6),
        ("read", None, 3),
        ("cudaStreamSynchronize", None, 1),
        ("launched before; waits on the device", None, 1),
    ]
    assert device.causes[0].share == pytest.approx(sum((80 + i) * 1e6 for i in range(9) if i % 3) / device.idle_ns)
    assert device.unexplained == 5120 - 11
    assert not gpu.devices(report)[1].causes


def test_a_call_that_covers_less_than_half_of_a_gap_is_not_what_it_waited_for() -> None:
    gap = {"duration_ns": 100, "api": "cudaLaunchKernel", "api_ns": 49, "os_call": None, "os_call_ns": 0}
    assert gpu.did({**gap, "function": None, "thread": 1, "kind": "host"}) == "its own code"
    unrecorded = {**gap, "os_call_ns": None, "function": None, "thread": 1, "kind": "host"}
    assert gpu.did(unrecorded) == "no CUDA call; system calls were not recorded"
    assert gpu.did({**gap, "function": "collate", "thread": 1, "kind": "host"}) == "collate (sampled)"
    assert gpu.did({**gap, "function": None, "thread": None, "kind": None}) == "launch not seen"


def test_processes_that_number_their_gpus_alike_are_told_apart(tmp_path: Path) -> None:
    row = {"device": 0, "gpu": "A", "span_ns": 10, "idle_ns": 4, "kernel_ns": 6, "gaps": 1}
    busy = sample_report._of("gpu_utilization", "c", [{**row, "pid": 1}, {**row, "pid": 2}])
    idle = {"device": 0, "duration_ns": 4, "kind": "host", "thread": 1, "os_call_ns": 0}
    waits = {**idle, "pid": 2, "os_call": "read", "os_call_ns": 4}
    gaps = sample_report._of("gpu_gaps", "c", [{**idle, "pid": 1}, waits])
    report = sample_report.bare(tmp_path)
    report = replace(report, tables={t.name: sample_report.write(tmp_path, t) for t in (busy, gaps)})
    assert [(d.name, [c.did for c in d.causes]) for d in gpu.devices(report)] == [
        ("A (device 0), as process 1 sees it", ["its own code"]),
        ("A (device 0), as process 2 sees it", ["read"]),
    ]


def test_copies_have_their_bandwidth_and_no_invented_share(report: Report) -> None:
    ((_, (up, sets)),) = gpu.copies(report)
    assert gpu.rate(up.bandwidth) == "12.8 GB/s" and up.pageable == pytest.approx(0.951, abs=1e-3)
    assert sets.pageable is None


def test_a_kernel_shows_its_grid_against_the_gpu(report: Report) -> None:
    dense, pool, failed = kernels.kernels(report)
    assert (dense.bound, pool.name, pool.bound, failed.bound) == ("compute", "max_pool_forward_nchw", "latency", None)
    assert (
        dict(pool.facts)["grid against GPU"] == "20 blocks on 132 multiprocessors, 0.025 waves: 112 have nothing to do"
    )
    assert dict(pool.facts)["theoretical occupancy"] == "75 %, limited by registers"
    occupancy = pool.meters[-1]
    assert (occupancy.name, occupancy.pct, occupancy.mark) == ("occupancy", 11.3, 75.0)
    assert [a.kind for a in pool.advice] == ["warning", "optimization"] and pool.advice[1].speedup == "84.8 %"
    assert (failed.meters, failed.facts, failed.duration) == ((), (), None)


def test_the_roofline_holds_the_kernels_below_the_roof(report: Report) -> None:
    chart = kernels.roofline(report)
    assert chart is not None and len(chart.points) == 2 and len(chart.roofs) == 1
    compute_side, memory_side = chart.points
    assert memory_side.x < compute_side.x and memory_side.y > compute_side.y
    assert [(p.number, p.name, p.reached) for p in chart.points] == [
        (1, "gemm_kernel", 88.0),
        (2, "max_pool_forward_nchw", 6.5),
    ]
    assert chart.roofs[0].text == "ridge at 20" and memory_side.x < chart.roofs[0].x < compute_side.x
    # 1.6 of 20 operations per byte allow 8 % of the peak; of that 6.5 % are reached
    assert "1.6 operations per byte, 0.5 % of peak" in memory_side.text


def test_without_a_gpu_there_is_no_section(tmp_path: Path) -> None:
    empty = sample_report.bare(tmp_path)
    assert (gpu.devices(empty), gpu.copies(empty), kernels.kernels(empty), kernels.roofline(empty)) == (
        [],
        [],
        [],
        None,
    )
    assert 'id="gpu"' not in html.render(empty)


def test_the_pages_show_them(report: Report) -> None:
    page, text = html.render(report), markdown.render(report)
    assert 'id="gpu"' in page and 'id="kernels"' in page
    assert "busy for 70.0 % of the 4 s" in text and "20 blocks on 132 multiprocessors" in text
