"""diagnose/data_quality.py: processes that used the GPU and were not traced; runs that were disturbed, or too few."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli import environment, profrun, script, write_plan
from kernel_export import Kernel, make
from sample_report import bare, build, write

from orchestrator import stats
from orchestrator.diagnose.data_quality import distorted_passes, disturbed_runs, few_repeats, unseen_gpu_processes
from orchestrator.formats import nsys
from orchestrator.model import Capture, PassRecord, TargetRun
from orchestrator.report import Report
from orchestrator.tables import Table

GPU = "GPU-00000000-aaaa"
WORKERS = (501, 502, 503, 504)


Pids = tuple[int, ...]


def report(folder: Path, listed: Pids, tree: Pids, traced: Pids, **more: Any) -> Report:
    """A pass of nsys and monitor: what the driver listed, the target's processes, those with kernels."""
    whole = build(folder)
    export = make(folder / "report.sqlite", [Kernel("a", 10 * n, pid=pid) for n, pid in enumerate(traced)])
    kernels = next((t for t in nsys.read(export).tables if t.name == "gpu_kernels"), None)
    rows = [("gpu_process", f"{GPU}/{pid}", "memory_used_bytes") for pid in listed]
    rows += [("process", str(pid), "rss_bytes") for pid in tree]
    samples = Table(
        "samples",
        {
            "time_ns": [10**18] * len(rows),
            "source": [source for source, _, _ in rows],
            "subject": [subject for _, subject, _ in rows],
            "metric": [metric for _, _, metric in rows],
            "value": [1.0] * len(rows),
        },
        clock="epoch",
    )
    captures = (
        Capture("p02-nsys", "p02", "nsys", more.get("status", "ok"), options=more.get("options", {})),
        Capture("p02-monitor", more.get("monitored", "p02"), "monitor", "ok"),
    )
    tables = {"samples": write(folder, samples.with_capture("p02-monitor"))}
    if kernels is not None:
        tables["gpu_kernels"] = write(folder, kernels.with_capture("p02-nsys"))
    if "copied" in more:
        copies = Table("gpu_transfers", {"pid": list(more["copied"])})
        tables["gpu_transfers"] = write(folder, copies.with_capture("p02-nsys"))
    return replace(whole, captures=captures, tables=tables)


def test_workers_made_by_fork_that_were_not_traced_are_named(tmp_path: Path) -> None:
    """D36: four processes on the GPU, kernels of one."""
    (finding,) = unseen_gpu_processes(report(tmp_path, WORKERS, (500, *WORKERS), (501,)))
    assert finding.title == "4 processes used the GPU, kernels seen in 1"
    assert "`fork: true` on nsys" in finding.advice
    assert finding.where == {"pids": "502, 503, 504"}
    assert [evidence.value for evidence in finding.evidence] == [4, 1]
    assert finding.sources == ("p02-nsys", "p02-monitor")


def test_with_no_kernel_at_all_it_says_so_too(tmp_path: Path) -> None:
    (finding,) = unseen_gpu_processes(report(tmp_path, WORKERS[:2], WORKERS, ()))
    assert finding.title == "2 processes used the GPU, kernels seen in 0"


@pytest.mark.parametrize(
    ("listed", "tree", "traced", "more"),
    [
        (WORKERS, WORKERS, WORKERS, {}),
        ((501, 900, 901), (500, 501), (501,), {}),
        ((501,), (501,), (), {}),
        (WORKERS, WORKERS, (501,), {"monitored": "p03"}),
        (WORKERS, WORKERS, (501,), {"status": "tool_failed"}),
        (WORKERS, WORKERS, (), {"options": {"trace": ["osrt", "nvtx"]}}),
        (WORKERS, WORKERS, (501,), {"copied": WORKERS[1:]}),
    ],
    ids=["all seen", "others on the GPU", "one process", "another pass", "nsys has failed", "no cuda", "only copies"],
)
def test_where_there_is_nothing_to_tell_it_is_silent(
    tmp_path: Path, listed: Pids, tree: Pids, traced: Pids, more: dict[str, Any]
) -> None:
    assert list(unseen_gpu_processes(report(tmp_path, listed, tree, traced, **more))) == []


# ---------------------------------------------------------------- a whole run

PROGRAM = """
import os, time
first = os.getpid()
for _ in range(3):
    if os.fork() == 0:
        break
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
while not os.path.exists("listed"): time.sleep(0.01)
if os.getpid() == first:
    for _ in range(3):
        os.wait()
"""

LISTS = """
    if "query-compute-apps" in options:
        from pathlib import Path
        pids = Path(WHERE).read_text().split() if Path(WHERE).exists() else []
        for pid in pids:
            print(f"{stamp()}, {UUIDS[0]}, {pid}, 512", flush=True)
        options["rounds"] = options.get("rounds", 0) + (len(pids) == 4)
        if options["rounds"] == 10:  # the first of them have been read by now
            Path(WHERE).with_name("listed").touch()
    elif"""

EXPORTS = """
import sys; sys.path.insert(0, TESTS)
from pathlib import Path
from cli import environment, profrun, script, write_plan
from kernel_export import Kernel, make
make(Path(sys.argv[1]), [Kernel("a", 10, pid=int(Path(WHERE).read_text().split()[0]))])
"""


def test_four_processes_that_nvidia_smi_lists_and_kernels_of_one(tmp_path: Path, golden: Path) -> None:
    """D36, from the sampler's own reading of nvidia-smi to the finding in the report."""
    where, tools = repr(str(tmp_path / "pids")), tmp_path / "bin"
    smi = (golden / "monitor" / "nvidia-smi").read_text()
    begin, end = smi.index('        if "query-compute-apps"'), smi.index(' "query-gpu"')
    lists = LISTS.replace("WHERE", where).replace("\n    ", "\n        ").lstrip("\n")
    tools.mkdir()
    (tools / "libnvidia-ml.so.1").write_text("no library")
    script(tools / "nvidia-smi", smi[:begin] + lists + smi[end:])
    (tmp_path / "export.py").write_text(EXPORTS.replace("TESTS", repr(str(golden.parent))).replace("WHERE", where))
    script(tools / "nsys", f"""#!/bin/sh
case " $* " in *" --version "*) echo "NVIDIA Nsight Systems version 2022.4.2"; exit 0;; *" --help "*) exit 0;; esac
if [ "$1" = export ]; then
    while [ "$1" != --output ]; do shift; done
    exec {sys.executable} {tmp_path}/export.py "$2"
fi
shift
while case "$1" in --output=*) echo report > "${{1#--output=}}.nsys-rep";; --*) ;; *) false;; esac; do shift; done
exec "$@"
""")  # fmt: skip
    plan = write_plan(tmp_path, "{together: [{use: nsys}, {use: monitor, interval: 50ms}]}", report="{formats: []}")
    env = environment(PATH=f"{tools}:/usr/bin:/bin", LD_LIBRARY_PATH=str(tools))
    result = profrun(plan, "--", sys.executable, "-c", PROGRAM, cwd=tmp_path, env=env)
    assert result.statuses() == {"nsys": "ok", "monitor": "ok"}, result.stderr
    findings = {finding["rule"]: finding for finding in result.summary["findings"]}
    assert findings["unseen_gpu_processes"]["title"] == "4 processes used the GPU, kernels seen in 1"
    assert findings["unseen_gpu_processes"]["category"] == "data_quality"


# ---------------------------------------------------------------- runs


def timed(folder: Path, *walls: float, cpu_s: tuple[float, ...] = (), **more: Any) -> Report:
    """Bare runs of these times, and one under a tool."""
    used = cpu_s or tuple(9.0 for _ in walls)
    ids = [f"p{number:02}" for number in range(1, len(walls) + 1)]
    runs = [TargetRun(("x",), 1, 0, 0, wall, None, cpu, 0.5) for wall, cpu in zip(walls, used, strict=True)]
    passes = [PassRecord(id_, "bare", ("timing",), run=run) for id_, run in zip(ids, runs, strict=True)]
    profiled = PassRecord("p99", "profiled", ("strace",), run=TargetRun(("x",), 1, 0, 0, 30.0, None), **more)
    captures = [Capture(f"{id_}-timing", id_, "timing", "ok") for id_ in ids]
    metrics = {"wall_s": stats.describe(list(walls), "s", ids)} if walls else {}
    return replace(bare(folder), passes=(*passes, profiled), captures=tuple(captures), metrics=metrics)


def test_a_run_that_took_longer_for_the_same_work_is_named(tmp_path: Path) -> None:
    (finding,) = disturbed_runs(timed(tmp_path, 10.0, 10.1, 14.0, 9.9, 10.0))
    assert finding.title.startswith("p03 took up to 1.40 times the usual time for the same work: ")
    assert finding.sources == ("p03-timing",)


@pytest.mark.parametrize(
    ("walls", "cpu_s"),
    [((10.0, 10.1, 9.9, 10.0), ()), ((10.0, 10.1, 14.0, 9.9, 10.0), (9.0, 9.0, 13.0, 9.0, 9.0)), ((10.0, 14.0), ())],
    ids=["alike", "it had more to do", "too few to tell"],
)
def test_runs_that_were_not_disturbed_are_not_named(
    tmp_path: Path, walls: tuple[float, ...], cpu_s: tuple[float, ...]
) -> None:
    assert list(disturbed_runs(timed(tmp_path, *walls, cpu_s=cpu_s))) == []


def test_too_few_bare_runs_are_told(tmp_path: Path) -> None:
    (finding,) = few_repeats(timed(tmp_path, 10.0))
    assert (finding.severity, finding.title) == (
        "info",
        "One bare run was made: too few to tell small differences from chance",
    )
    assert list(few_repeats(timed(tmp_path, 10.0, 10.1, 9.9))) == []
    (none,) = few_repeats(timed(tmp_path))
    assert none.title.startswith("No bare run was made")
    imported = timed(tmp_path)
    assert list(few_repeats(replace(imported, run=replace(imported.run, imported=True)))) == []


def test_a_pass_is_distorted_by_what_it_did_to_the_steps(tmp_path: Path) -> None:
    whole = timed(tmp_path, 10.0, slowdown=1.1, step_slowdown=1.6)
    assert list(distorted_passes(whole)) == []
    bent = Capture("p99-strace", "p99", "strace", "ok", trust="distorted")
    (finding,) = distorted_passes(replace(whole, captures=(bent,)))
    assert finding.title == "Under strace a step took 1.6 times as long as alone"
    assert [evidence.value for evidence in finding.evidence] == [1.1, 1.6]
