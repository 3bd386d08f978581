"""diagnose/torch_ops.py: what torch.profiler has counted, of real recordings on the CPU and of made-up ones of GPUs."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_report import bare, write

from orchestrator.diagnose import merged
from orchestrator.diagnose.torch_ops import RULES
from orchestrator.formats import kineto
from orchestrator.model import Abstention, Finding, Metric
from orchestrator.report import Report
from orchestrator.tables import Table

PROGRAM = """
import torch
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)

def record(name, body):
    def save(p):
        p.export_chrome_trace(name + ".json")
    when = schedule(wait=0, warmup=1, active=4, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=when, on_trace_ready=save) as p:
        for number in range(5):
            body(number)
            p.step()

class Items(torch.utils.data.Dataset):
    def __len__(self): return 320
    def __getitem__(self, place): return torch.randn(3, 32, 32).mul(2).add(1).clamp(0, 1)

def loading(**options):
    batches = iter(torch.utils.data.DataLoader(Items(), batch_size=16, **options))
    return lambda number: next(batches).sum()

net = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(60)])
optimizers = {name: torch.optim.AdamW(net.parameters(), **{name: True}) for name in ("maximize", "fused")}
def training(name):
    def step(number):
        optimizers[name].zero_grad()
        net(torch.ones(4, 8)).sum().backward()
        optimizers[name].step()
    return step

compiled = torch.compile(lambda t: (t * 2).relu().sum(), backend="eager", dynamic=False)
large, double = torch.randn(900, 900), torch.randn(1500, 1500, dtype=torch.float64)
record("alone", loading())
record("workers", loading(num_workers=1))
record("by_tensor", training("maximize"))
record("fused", training("fused"))
record("compiling", lambda number: compiled(torch.ones(4 + number, 8)))
record("converting", lambda number: double.float().sum())
record("product", lambda number: large @ large @ large @ large)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    subprocess.run([sys.executable, "-c", PROGRAM], cwd=folder, check=True, capture_output=True, timeout=600)
    return folder


def report(folder: Path, *tables: Table) -> Report:
    infos = {table.name: write(folder, table.with_capture("p02-torch")) for table in tables if len(table)}
    return replace(bare(folder), tables=infos)


def told(whole: Report) -> list[Finding]:
    return list(merged(one for rule in RULES for one in rule(whole) if isinstance(one, Finding)))


def of_trace(folder: Path, path: Path) -> list[Finding]:
    wanted = {"torch_ops", "gpu_transfer_summary"}
    return told(report(folder, *(t for t in kineto.read(path).tables if t.name in wanted)))


# ---------------------------------------------------------------- real recordings


def test_a_loader_without_workers_and_one_whose_workers_are_slow(recorded: Path, tmp_path: Path) -> None:
    alone = of_trace(tmp_path / "a", recorded / "alone.json")[0]
    assert (alone.category, alone.severity, alone.cause) == ("input_pipeline", "critical", "input_pipeline")
    assert alone.title.startswith("The program loads its data itself, without workers")
    assert "num_workers" in alone.advice and alone.cost_pct and alone.cost_pct > 30
    waits = of_trace(tmp_path / "b", recorded / "workers.json")[0]
    assert waits.title.startswith("The loader's workers do not keep up") and waits.category == "input_pipeline"


def test_an_optimizer_that_updates_one_tensor_at_a_time(recorded: Path, tmp_path: Path) -> None:
    found = {finding.rule: finding for finding in of_trace(tmp_path / "a", recorded / "by_tensor.json")}
    assert found["optimizer_by_tensor"].severity == "minor", "on a CPU it is the default"
    assert found["optimizer_by_tensor"].where == {"op": "Optimizer.step#AdamW.step"}
    assert "small_operators" in found
    assert "conversions" not in found, "counters of the steps are no data"
    fused = {finding.rule for finding in of_trace(tmp_path / "b", recorded / "fused.json")}
    assert "optimizer_by_tensor" not in fused


def test_compilation_within_the_steps(recorded: Path, tmp_path: Path) -> None:
    finding = of_trace(tmp_path, recorded / "compiling.json")[0]
    assert (finding.rule, finding.category, finding.severity) == ("compiling", "warmup", "critical")
    assert finding.title.startswith("torch.compile compiled 4 graphs within the 4 steps")
    assert "TORCH_LOGS=recompiles" in finding.advice


def test_conversions_of_real_data(recorded: Path, tmp_path: Path) -> None:
    finding = next(f for f in of_trace(tmp_path, recorded / "converting.json") if f.rule == "conversions")
    assert finding.title.startswith("Tensors are converted to another type once a step")


def test_a_program_that_computes_is_healthy(recorded: Path, tmp_path: Path) -> None:
    (finding,) = of_trace(tmp_path, recorded / "product.json")
    assert (finding.healthy, finding.severity, finding.category) == (True, "minor", "native_cpu")
    assert finding.where == {"op": "aten::mm"}


REAL = {
    "kineto2021_v100_w0_memory_events.pt.trace.json.gz": ["loader_waits", "optimizer_by_tensor"],
    "kineto2021_v100_autograd_api.pt.trace.json.gz": ["allocator_calls", "loader_waits"],
    "hta_v100_2rank_nccl_profile_memory.json.gz": [],
    "tl_mi300x_torch_compile_triton.json.gz": [],
}


@pytest.mark.parametrize("name", REAL)
def test_of_traces_of_others(tmp_path: Path, shared: Path, name: str) -> None:
    assert sorted(finding.rule for finding in of_trace(tmp_path, shared / "data" / "torch" / name)) == REAL[name]


# ---------------------------------------------------------------- made up, of GPUs


def ops(*rows: tuple[str, int, int], gpu: dict[str, int] | None = None) -> Table:
    """Rows of (operator, calls, ms on the CPU with all that it calls), in ten steps of 100 ms; gpu: ms by operator."""
    gpu = gpu or {}
    steps = [("ProfilerStep*", 10, 1000), *rows]
    full = [(1, n, "cpu", None, c, 10**6 * ms, 0, 10**6 * gpu.get(n, 0), 10**6 * gpu.get(n, 0)) for n, c, ms in steps]
    kernels = [(1, "some_kernel", "cuda", None, 9, 0, 0, 10**9, 10**9)] if gpu else []
    names = (
        "pid", "name", "device", "input_shapes", "count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns",
    )  # fmt: skip
    return Table.of("torch_ops", [*full, *kernels], names)


def found(folder: Path, *tables: Table) -> dict[str, Finding]:
    return {finding.rule: finding for finding in told(report(folder, *tables))}


def test_values_that_are_read_in_each_step(tmp_path: Path) -> None:
    item = ("aten::_local_scalar_dense", 30, 400)
    finding = found(tmp_path / "a", ops(item, gpu={"aten::mm": 1}))["values_to_host"]
    assert finding.title.startswith("Each step reads 3 values from the GPU and waits for it: 40 %")
    assert (finding.severity, finding.cost_pct, finding.cause) == ("minor", None, "gpu waits: sync")
    assert found(tmp_path / "b", ops(item)) == {}, "on a CPU nothing waits"
    assert found(tmp_path / "c", ops((item[0], 2, 400), gpu={"aten::mm": 1})) == {}, "now and then is no harm"


def test_an_optimizer_by_tensor_on_a_gpu_is_a_fault(tmp_path: Path) -> None:
    rows = (("Optimizer.step#Adam.step", 10, 400), ("aten::addcdiv_", 2000, 100))
    finding = found(tmp_path / "a", ops(*rows, gpu={"aten::mm": 1}))["optimizer_by_tensor"]
    assert (finding.severity, finding.cost_pct) == ("major", 20.0)
    assert found(tmp_path / "b", ops(*rows, ("aten::_foreach_add_", 10, 1), gpu={"aten::mm": 1})) == {}


def test_memory_that_is_asked_for_and_given_back(tmp_path: Path) -> None:
    finding = found(tmp_path, ops(("cudaMalloc", 20, 50), ("cudaFree", 20, 100)))["allocator_calls"]
    assert (finding.severity, finding.cost_pct, finding.where) == ("major", 15.0, {"op": "cudaFree"})
    assert finding.title.endswith("20 cudaMalloc, 20 cudaFree")


def test_conversions_on_a_gpu_are_told_without_copies_from_the_host(tmp_path: Path) -> None:
    gpu = {"aten::mm": 700, "aten::_to_copy": 300}
    rows = (("aten::mm", 100, 10), ("aten::_to_copy", 100, 10))
    assert found(tmp_path / "a", ops(*rows, gpu=gpu))["conversions"].cost_pct == 30.0
    copies = Table.of("gpu_transfer_summary", [("Memcpy HtoD (Pinned -> Device)", 290 * 10**6)], ("name", "total_ns"))
    assert found(tmp_path / "b", ops(*rows, gpu=gpu), copies) == {}


def test_copies_into_one_piece(tmp_path: Path) -> None:
    rows = (("aten::mm", 100, 10), ("aten::contiguous", 50, 10))
    finding = found(tmp_path, ops(*rows, gpu={"aten::mm": 800, "aten::contiguous": 200}))["layout_copies"]
    assert finding.title == "Tensors are copied into one piece 5 times a step: 20 % of the GPU's work"


def test_costs_are_in_seconds_of_the_bare_run(tmp_path: Path) -> None:
    whole = report(tmp_path, ops(("cudaMalloc", 20, 150)))
    metrics = {"step_s": Metric(0.05), "steps": Metric(110), "warmup_steps": Metric(10)}
    (finding,) = told(replace(whole, metrics=metrics))
    assert (finding.cost_s, finding.of) == (0.75, "the steady steps of a bare run")


def test_without_a_recording_it_abstains(tmp_path: Path) -> None:
    steps = Table.of("steps", [(1, 0, 10**9)], ("pid", "step", "duration_ns"))
    whole = report(tmp_path, steps)
    assert told(whole) == []
    (abstention,) = [one for rule in RULES for one in rule(whole) if isinstance(one, Abstention)]
    assert "use: torch" in abstention.feed
    nothing: list[Any] = [one for rule in RULES for one in rule(report(tmp_path / "none"))]
    assert nothing == []
