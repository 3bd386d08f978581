"""Recordings of programs with one known bottleneck, from import to the first finding; and of such without one."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import gpu_programs as programs
import pytest
from gpu_programs import MS, Program, write_kineto, write_nsys

from orchestrator import importing, runner
from orchestrator.importing import Request
from orchestrator.render.console import Console
from orchestrator.report import Report

Importer = Callable[..., Report]
WRITERS = {"nsys": write_nsys, "kineto": write_kineto}


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Importer:
    """The report of files, as `profrun import` makes it; only the pages are left out."""
    monkeypatch.setattr(runner, "render", lambda *_: None)

    def run(*files: Path) -> Report:
        return importing.run(Request(files, tmp_path / "reports"), Console(quiet=True, stream=io.StringIO()))

    return run


def recorded(program: Program, tool: str, folder: Path, name: str = "recording") -> Path:
    return WRITERS[tool](program, folder / f"{name}.{'sqlite' if tool == 'nsys' else 'json'}")


PLANTED = {
    "launch_bound": (programs.launch_bound, "launch_bound", "nsys kineto"),
    "host_sync": (programs.host_sync, "host_sync", "nsys kineto"),
    "transfers": (programs.transfers, "transfers", "nsys kineto"),
    "input_pipeline": (programs.input_pipeline, "input_pipeline", "nsys kineto"),
    "communication": (programs.communication, "communication", "nsys kineto"),
    "python": (programs.python_between, "python_cpu", "nsys kineto"),
    "allocations": (programs.allocations, "memory_management", "nsys kineto"),
    "files": (programs.files, "file_io", "nsys"),
}
HEALTHY = {
    "graphed": (programs.graphed, "nsys kineto"),
    "dense": (programs.dense, "nsys kineto"),
    "looked at": (lambda: programs.dense(look=True), "nsys kineto"),
    "sync now and then": (lambda: programs.host_sync(60, every=30), "nsys kineto"),
    "copied once": (lambda: programs.transfers(pinned=True), "nsys kineto"),
    "loaded ahead": (lambda: programs.input_pipeline(wait_ns=MS // 10), "nsys"),
    "reduced beside": (lambda: programs.communication(overlapped=True), "nsys kineto"),
}


@pytest.mark.parametrize(("name", "tool"), [(n, t) for n, (_, _, tools) in PLANTED.items() for t in tools.split()])
def test_the_planted_bottleneck_comes_first(name: str, tool: str, tmp_path: Path, imported: Importer) -> None:
    make, category, _ = PLANTED[name]
    report = imported(recorded(make(), tool, tmp_path))
    first = report.findings[0]
    assert (first.category, first.severity in ("critical", "major")) == (category, True), first.title
    assert first.cost_pct is not None and first.cost_s is not None and first.of and first.evidence
    assert report.headline is not None and report.headline.sentence.startswith(first.title[:30])


@pytest.mark.parametrize(("name", "tool"), [(n, t) for n, (_, tools) in HEALTHY.items() for t in tools.split()])
def test_a_healthy_program_gets_nothing_above_minor(name: str, tool: str, tmp_path: Path, imported: Importer) -> None:
    report = imported(recorded(HEALTHY[name][0](), tool, tmp_path))
    assert {finding.severity for finding in report.findings} <= {"minor", "info"}, report.findings
    assert report.findings[0].healthy and report.findings[0].category == "gpu_compute"


def test_the_rank_that_the_others_wait_for(tmp_path: Path, imported: Importer) -> None:
    """Rank 1 computes for 9 ms a step, the other for 6: it waits in its collective until both are there."""
    ranks = [programs.communication(rank=0), programs.communication(rank=1, compute_ns=9 * MS)]
    ranks[0].work = [w if w.stream == 7 else longer(w, 3 * MS) for w in ranks[0].work]
    files = [recorded(program, "kineto", tmp_path, f"rank{program.rank}") for program in ranks]
    report = imported(*files)
    found = next(finding for finding in report.findings if finding.rule == "straggler")
    assert "wait for rank 1" in found.title and "computes longer" in found.title


def longer(work: programs.Work, ns: int) -> programs.Work:
    return programs.Work(work.kind, work.name, work.start, work.end + ns, work.stream, work.correlation)
