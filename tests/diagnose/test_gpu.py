"""The rules about GPUs on real files, and on programs whose figures are known: what they say, and where they don't."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gpu_programs as programs
import pytest
from gpu_programs import GEMM, MS, US, Program, write_nsys

from orchestrator import diagnose, importing, runner
from orchestrator.diagnose import copies, gpu, gpu_compute
from orchestrator.importing import Request
from orchestrator.model import Abstention, Finding
from orchestrator.render.console import Console
from orchestrator.report import Report

Importer = Callable[..., Report]


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Importer:
    """The report of a file, as `profrun import` makes it; only the pages are left out."""
    monkeypatch.setattr(runner, "render", lambda *_: None)

    def run(file: Path | Program) -> Report:
        path = write_nsys(file, tmp_path / "recording.sqlite") if isinstance(file, Program) else file
        return importing.run(Request((path,), tmp_path / "reports"), Console(quiet=True, stream=io.StringIO()))

    return run


def verdict(report: Report) -> str:
    assert report.headline is not None
    return report.headline.sentence


def told(report: Report, rule: str) -> Finding:
    return next(finding for finding in report.findings if finding.rule == rule)


# ---------------------------------------------------------------- real files


def test_the_verdict_on_a_language_model(shared: Path, imported: Importer) -> None:
    report = imported(shared / "data" / "nsys" / "2024.6.2_a100_gpt2.7b.sqlite")
    said = verdict(report)
    assert "ampere_sgemm_128x64_tn" in said and "from the first kernel to the last (3.93 s)" in said
    assert "copies before the first kernel took longer (4.46 s)" in said
    first = report.findings[0]
    assert (first.category, first.healthy, first.where["kernel"]) == ("gpu_compute", True, "ampere_sgemm_128x64_tn")
    assert "set_float32_matmul_precision" in first.advice, "an A100 that computes in FP32"
    assert told(report, "copies_first").cost_s == pytest.approx(4.460346)
    assert "pageable" in told(report, "copies_first").title
    assert {finding.severity for finding in report.findings} == {"minor"}


def test_the_verdict_before_and_after_the_copies_have_gone(shared: Path, imported: Importer) -> None:
    many, resident = (
        imported(shared / "data" / "nsys" / f"2023.3.1_t4_openmp_offload_{name}.sqlite")
        for name in ("many_copies", "resident")
    )
    assert verdict(many).startswith(
        "Copies between host and GPU take 96 % of the time from the first kernel to the last"
    )
    assert "98 x memcpy Host-to-Device" in verdict(many) and "pageable memory" in verdict(many)
    assert many.findings[0].severity == "critical" and many.findings[0].category == "transfers"
    assert "nvkernel_solve_F1L210_2 keeps the GPU busy for 100 %" in verdict(resident)
    assert "with no copy in between" in verdict(resident)
    assert {finding.severity for finding in resident.findings} == {"minor"}


# ---------------------------------------------------------------- costs


def test_a_wait_for_the_gpu_costs_no_more_than_the_gpu_has_worked(imported: Importer) -> None:
    """1 ms of the GPU and 20 ms of the host a step: without the wait the host's 20 ms stay, and are its own matter."""
    program = Program()
    for _ in range(20):
        for _ in range(10):
            program.kernel(GEMM, 100 * US)
        program.item()
        program.compute(20 * MS)
    report = imported(program)
    waits, host = told(report, "synchronisations"), told(report, "gpu_waits_for_host.native_cpu")
    assert report.findings[0] is host and host.cost_pct == pytest.approx(90, abs=2)
    assert waits.cost_pct == pytest.approx(100 * 1 / 21, abs=1) and waits.severity == "minor"
    assert "(19 times)" in waits.title, "the last comes after the last kernel"


def test_copies_cost_their_own_time_and_that_of_the_waits(imported: Importer) -> None:
    """8 ms of copying and 4 ms of kernels a step."""
    report = imported(programs.transfers())
    first = told(report, "copies")
    assert first.cost_pct == pytest.approx(100 * 11 * 8.1 / (11 * 8.1 + 12 * 4.1), abs=1.5), "the first is before"
    assert first.cost_s == pytest.approx(first.cost_pct / 100 * (11 * 8.1 + 12 * 4.1) / 1000, rel=0.02)
    assert "Pin the memory" in first.advice, "what pageable_copies says is merged into it"
    assert len([finding for finding in report.findings if finding.category == "transfers"]) == 1


def test_small_copies_are_told_to_be_put_together(imported: Importer) -> None:
    program = Program()
    for _ in range(40):
        for _ in range(10):
            program.copy("HtoD", 4 << 10, 2 * US)
        program.kernel(GEMM, 150 * US)
    report = imported(program)
    assert report.findings[0].category == "transfers" and "Put small tensors together" in report.findings[0].advice
    (small,) = copies.small_copies(report)
    assert small.title.startswith("390 small copies (median 4.1 kB)")


def test_the_first_launches_are_warm_up_and_no_fault(imported: Importer) -> None:
    program = Program()
    for number in range(2_000):
        program.call_ns = 8 * MS if number < 10 else 100 * US if number % 50 == 0 else 5 * US
        program.kernel(GEMM, 300 * US)
    report = imported(program)
    warm = told(report, "warming_up")
    assert (warm.category, warm.severity) == ("warmup", "minor") and warm.cost_pct == pytest.approx(11, abs=1)
    assert report.findings[0].healthy
    short = replace_work(program, 12)
    assert told(imported(short), "warming_up").severity == "major", "there is little else to judge by"


def replace_work(program: Program, kernels: int) -> Program:
    """The same program, ended after so many kernels."""
    return replace(program, work=program.work[:kernels], calls=program.calls[:kernels])


def test_little_was_recorded_so_little_is_said(imported: Importer) -> None:
    program = Program()
    for _ in range(3):
        program.kernel(GEMM, 5 * US)
        program.compute(100 * US)
    report = imported(program)
    assert {(finding.severity, finding.confidence) for finding in report.findings} == {("minor", "low")}


def test_a_sequence_of_tiny_kernels_is_one_for_a_graph(imported: Importer) -> None:
    report = imported(programs.launch_bound())
    assert "The same 3 kernels come again" in told(report, "launch_bound").advice
    assert "1,800 tiny kernels (median 3 us)" in told(report, "launch_bound").title


def test_kernels_that_do_little_are_told_to_be_fused(imported: Importer) -> None:
    report = imported(programs.python_between(ns=US))
    (light,) = gpu_compute.memory_bound_kernels(report)
    assert (light.category, light.severity) == ("gpu_memory_bound", "minor") and "vectorized_elementwise" in light.title


# ---------------------------------------------------------------- silence


def test_without_a_gpu_the_rules_say_nothing(imported: Importer, tmp_path: Path) -> None:
    given = tmp_path / "stacks.txt"
    given.write_text("main (a.py:1);work (a.py:5) 30\n")
    report = imported(given)
    assert [one for rule in (*gpu.RULES, *copies.RULES, *gpu_compute.RULES) for one in rule(report)] == []


def test_with_a_gpu_that_nobody_recorded_it_is_said_what_would(imported: Importer, tmp_path: Path) -> None:
    given = tmp_path / "stacks.txt"
    given.write_text("main (a.py:1);work (a.py:5) 30\n")
    report = imported(given)
    own = replace(report, run=replace(report.run, imported=False), machine={"gpus": [{"name": "A100"}]})
    wanted = Abstention("gpu", "what ran on the GPU", gpu.GPU_FEED)
    assert list(gpu.not_recorded(own)) == [wanted] and wanted in diagnose.diagnosed(own).abstentions
