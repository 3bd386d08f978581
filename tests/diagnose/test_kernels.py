"""diagnose/kernels.py: what holds single kernels back, by ncu's measurements, weighed by their part of the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_report import bare, write

from orchestrator.diagnose import merged
from orchestrator.diagnose.kernels import RULES
from orchestrator.formats import ncu
from orchestrator.model import Abstention, Finding
from orchestrator.report import Report
from orchestrator.tables import Table

NAME = "void work<(int)4>(float *)"
PLAIN: dict[str, Any] = {
    "pid": 1, "launch": 0, "kernel": NAME, "short_name": "work", "gpu": "NVIDIA A100-SXM4-80GB", "bound": "memory",
    "duration_ns": 1e6, "sm_pct": 30.0, "memory_pct": 91.0, "dram_pct": 91.0, "l1_pct": 20.0, "l2_pct": 30.0,
    "tensor_pct": 0.0, "blocks": 4320, "sms": 108, "waves": 10.0, "achieved_occupancy_pct": 90.0,
    "theoretical_occupancy_pct": 100.0, "registers": 32,
}  # fmt: skip
"""A kernel at the bandwidth of DRAM: nothing is wrong with it."""
WAITING: dict[str, Any] = {"bound": "latency", "memory_pct": 12.0, "dram_pct": 12.0}


def launches(*changes: dict[str, Any]) -> Table:
    rows = [{**PLAIN, "launch": number, **change} for number, change in enumerate(changes)]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return Table.of("kernel_profiles", [tuple(row.get(name) for name in names) for row in rows], names)


def rule(name: str, message: str, speedup: float | None = None, scope: str = "global") -> Table:
    columns = ("pid", "launch", "kernel", "rule", "kind", "message", "speedup_pct", "speedup_scope")
    return Table.of("kernel_rules", [(1, 0, NAME, name, "optimization", message, speedup, scope)], columns)


def metrics(**values: float) -> Table:
    columns = ("pid", "launch", "kernel", "metric", "value")
    return Table.of("kernel_metrics", [(1, 0, NAME, name, value) for name, value in values.items()], columns)


def summary(**ns: int) -> Table:
    names = [NAME if name == "work" else name for name in ns]
    return Table.of("gpu_kernel_summary", list(zip(names, ns.values(), strict=True)), ("name", "total_ns"))


def report(folder: Path, *tables: Table) -> Report:
    infos = {
        t.name: write(folder, t.with_capture("p02-nsys" if t.name.startswith("gpu_") else "p03-ncu")) for t in tables
    }
    return replace(bare(folder), tables=infos)


def told(folder: Path, *tables: Table) -> list[Finding]:
    whole = report(folder, *tables)
    return list(merged(one for rule in RULES for one in rule(whole) if isinstance(one, Finding)))


def abstained(whole: Report) -> list[Abstention]:
    return [one for rule in RULES for one in rule(whole) if isinstance(one, Abstention)]


# ---------------------------------------------------------------- one cause each


def test_a_kernel_at_the_limit_of_the_hardware_is_healthy(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, launches({}))
    assert (finding.healthy, finding.severity, finding.category) == (True, "minor", "gpu_memory_bound")
    assert finding.title == "work makes good use of the GPU: 91 % of what DRAM can do"


def test_a_matrix_product_on_tensor_cores_near_their_peak_is_healthy(tmp_path: Path) -> None:
    """Low occupancy is how such kernels are built."""
    gemm = {"sm_pct": 90.0, "memory_pct": 45.0, "dram_pct": 20.0, "bound": "compute", "tensor_pct": 90.0}
    few = {"theoretical_occupancy_pct": 12.5, "achieved_occupancy_pct": 12.4, "occupancy_limit": "shared memory"}
    (finding,) = told(tmp_path, launches({**gemm, **few, "kernel": "ampere_s16816gemm_128x64"}))
    assert finding.healthy and finding.category == "gpu_compute"
    assert finding.title.endswith("90 % of what the tensor cores can do")


def test_fewer_blocks_than_multiprocessors(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, launches({**WAITING, "blocks": 27, "waves": 0.06}))
    assert finding.title == "work has 27 blocks for 108 multiprocessors: 75 % of the GPU has nothing to do"
    assert (finding.category, finding.cost_pct) == ("small_grid", 75.0)


def test_the_number_of_multiprocessors_is_known_from_ncus_own_words(tmp_path: Path) -> None:
    text = "Small Grid: only 27 blocks, which is less than the GPU's 108 multiprocessors. More words follow here."
    whole = launches({**WAITING, "blocks": 27, "sms": None, "waves": None})
    (finding,) = told(tmp_path, whole, rule("LaunchConfiguration", text, 75.0))
    assert finding.cost_pct == 75.0
    assert any(evidence.value == text for evidence in finding.evidence)


def test_no_kernel_can_become_shorter_than_an_empty_one(tmp_path: Path) -> None:
    (finding,) = told(tmp_path, launches({**WAITING, "blocks": 1, "waves": 0.001, "duration_ns": 2500.0}))
    assert finding.cost_pct == 20.0


def test_the_tail_of_a_grid_that_begins_one_more_wave(tmp_path: Path) -> None:
    tail = {"waves": 1.25, "achieved_occupancy_pct": 62.0, "memory_pct": 45.0, "dram_pct": 45.0, "bound": "latency"}
    (finding,) = told(tmp_path, launches(tail))
    assert finding.rule == "kernel_tail" and finding.cost_pct == 37.5
    assert finding.title == "work ends in a wave that fills the GPU to 25 % only (1.25 waves)"


def test_few_warps_and_what_limits_them(tmp_path: Path) -> None:
    few = {"theoretical_occupancy_pct": 25.0, "achieved_occupancy_pct": 24.0, "occupancy_limit": "registers"}
    (finding,) = told(tmp_path, launches({**WAITING, "sm_pct": 30.0, **few}))
    assert (finding.category, finding.cost_pct) == ("low_occupancy", 50.0)
    assert "limited by registers" in finding.title and "fewer registers" in finding.advice


def test_latency_where_nothing_else_explains_it(tmp_path: Path) -> None:
    stall = rule("CPIStall", "Long Scoreboard Stalls: each warp spends 54.7 cycles being stalled.", 40.0)
    (finding,) = told(tmp_path, launches({**WAITING, "sm_pct": 30.0}), stall)
    assert finding.title == "work waits for latencies: computing reaches 30 % of its peak, memory 12 %"
    assert any("Long Scoreboard" in str(evidence.value) for evidence in finding.evidence)


SECTORS = {"memory_l2_theoretical_sectors_global": 4e6, "memory_l2_theoretical_sectors_global_ideal": 1e6}


def test_uncoalesced_access(tmp_path: Path) -> None:
    whole = launches({"dram_bytes": 128e6})
    finding = next(f for f in told(tmp_path, whole, metrics(**SECTORS)) if f.rule == "kernel_uncoalesced")
    assert finding.cost_pct == pytest.approx(68.2, abs=0.1)  # 75 % too much, at 91 % of the bandwidth
    assert finding.category == "gpu_memory_bound" and finding.severity == "major"


def test_excess_that_the_caches_absorb_costs_nothing(tmp_path: Path) -> None:
    """As in a real report (RMSNorm on an H100): ncu estimates 42 %, although DRAM moved no more than was asked for."""
    text = "This workload has uncoalesced global accesses"
    (finding,) = told(
        tmp_path, launches({"dram_bytes": 32e6}), metrics(**SECTORS), rule("UncoalescedGlobalAccess", text, 42.0)
    )
    assert finding.healthy


def test_registers_spilled_to_local_memory(tmp_path: Path) -> None:
    whole = metrics(memory_l2_theoretical_sectors_global=1e6, memory_l2_theoretical_sectors_local=1e6)
    finding = told(tmp_path, launches({}), whole)[0]
    assert finding.title == "work moves 50 % of its memory sectors for local memory, where registers are spilled to"
    assert finding.cost_pct == pytest.approx(45.5)


PEAKS = {
    "sm__sass_thread_inst_executed_op_ffma_pred_on.sum.peak_sustained": 64.0,
    "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained": 1.0,
}
DOUBLE = {"precision": "fp64", "flops": 1e9, "flops_per_byte": 4.0, "ridge_flops_per_byte": 2.0, "roof_pct": 80.0,
          "sm_pct": 80.0, "bound": "compute", "memory_pct": 30.0, "dram_pct": 30.0}  # fmt: skip


def test_doubles_on_a_gpu_that_has_few_units_for_them(tmp_path: Path) -> None:
    finding = told(tmp_path, launches(DOUBLE), metrics(**PEAKS))[0]
    assert finding.title == "work computes in fp64, at 80 % of its peak; fp32 is 64 times as fast on this GPU"
    assert finding.cost_pct == pytest.approx(78.8)


def test_doubles_where_they_are_at_home_are_left_alone(tmp_path: Path) -> None:
    equal = {name: 2.0 if "ffma" in name else 1.0 for name in PEAKS}
    assert all(finding.healthy for finding in told(tmp_path, launches(DOUBLE), metrics(**equal)))


SGEMM = {"kernel": "ampere_sgemm_128x64_tn", "short_name": "ampere_sgemm_128x64_tn", "bound": "compute",
         "sm_pct": 92.0, "memory_pct": 40.0, "dram_pct": 20.0}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rules"),
    [
        ({}, ["kernel_tensor_cores"]),
        ({"gpu": "NVIDIA GeForce GTX 1660 SUPER"}, ["kernel_at_a_limit"]),
        ({"gpu": "Tesla P100-PCIE-16GB"}, ["kernel_at_a_limit"]),
        ({"gpu": None}, ["kernel_at_a_limit"]),
        ({"tensor_pct": None}, ["kernel_at_a_limit"]),
        ({"kernel": "ampere_s1688gemm_128x128_tn"}, ["kernel_at_a_limit"]),
        ({"kernel": "cutlass_80_tensorop_s1688tf32gemm"}, ["kernel_at_a_limit"]),
    ],
)
def test_products_in_fp32_leave_tensor_cores_idle(tmp_path: Path, change: dict[str, Any], rules: list[str]) -> None:
    assert [finding.rule for finding in told(tmp_path, launches({**SGEMM, **change}))] == rules


@pytest.mark.parametrize(("gpu", "said"), [("NVIDIA A100-PCIE-40GB", "for TF32"), ("Tesla T4", "float16")])
def test_which_type_helps_depends_on_the_gpu(tmp_path: Path, gpu: str, said: str) -> None:
    assert said in told(tmp_path, launches({**SGEMM, "gpu": gpu}))[0].advice


def test_a_cache_at_its_limit_has_a_cost_only_where_the_roof_is_known(tmp_path: Path) -> None:
    held = {"memory_pct": 97.0, "dram_pct": 1.0, "l1_pct": 98.0}
    (unknown,) = told(tmp_path / "a", launches(held))
    assert (unknown.rule, unknown.severity, unknown.cost_pct) == ("kernel_cache", "minor", None)
    roof = {"precision": "fp32", "flops": 1e9, "roof_pct": 6.0}
    (known,) = told(tmp_path / "b", launches({**held, **roof}))
    assert (known.severity, known.cost_pct) == ("major", 90.0)


def test_estimates_of_ncu_for_what_only_it_sees(tmp_path: Path) -> None:
    conflicts = rule("SharedMemoryConflicts", "a 2.8 - way bank conflict", 25.0)
    busy = {"memory_pct": 65.0, "dram_pct": 62.0}
    assert told(tmp_path, launches(busy), conflicts)[0].cost_pct == 25.0
    local = rule("SharedMemoryConflicts", "a 2.8 - way bank conflict", 25.0, "local")
    assert all(finding.healthy for finding in told(tmp_path, launches(busy), local))


# ---------------------------------------------------------------- weights


def test_the_cost_follows_the_part_of_the_kernels_time(tmp_path: Path) -> None:
    whole = launches({**WAITING, "blocks": 27, "waves": 0.06})
    (finding,) = told(tmp_path / "a", whole, summary(work=20, other=80))
    assert (finding.severity, finding.cost_pct, finding.of) == ("major", 15.0, "the time of all kernels")
    assert finding.sources == ("p03-ncu", "p02-nsys")
    assert told(tmp_path / "b", whole, summary(work=3, other=97)) == []


def test_names_that_two_tools_spell_differently_are_the_same(tmp_path: Path) -> None:
    whole = launches({**WAITING, "blocks": 27, "waves": 0.06})
    spelt = {"void work<4>(float*)": 20, "other": 80}
    table = Table.of("gpu_kernel_summary", list(spelt.items()), ("name", "total_ns"))
    assert told(tmp_path, whole, table)[0].cost_pct == 15.0


def test_many_small_ones_are_told_together(tmp_path: Path) -> None:
    names = [f"k{n}" for n in range(8)]
    small = [{**WAITING, "kernel": name, "short_name": name, "blocks": 27, "waves": 0.06} for name in names]
    (finding,) = told(tmp_path, launches(*small), summary(**dict.fromkeys(names, 3), other=76))
    assert finding.title == "8 kernels have too few blocks for the GPU: k0, k1, k2 ..."
    assert finding.cost_pct == 18.0


def test_kernels_that_wait_for_other_gpus_are_left_out(tmp_path: Path) -> None:
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    assert told(tmp_path, launches({**WAITING, "blocks": 2, "kernel": name, "short_name": name})) == []


def test_in_the_window_of_the_gpu_it_can_be_critical(tmp_path: Path) -> None:
    time = {"pid": 1, "device": 0, "state": "busy", "total_ns": 900, "window_ns": 1000, "count": 1, "start_ns": 0,
            "window": "from first to last kernel", "queue": "dense"}  # fmt: skip
    work = {"pid": 1, "device": 0, "part": "window", "kind": "kernel", "name": NAME, "count": 9, "total_ns": 600}
    tables = [
        Table.of(name, [tuple(row.values())], tuple(row)) for name, row in (("gpu_time", time), ("gpu_work", work))
    ]
    (finding,) = told(tmp_path, launches({**WAITING, "blocks": 27, "waves": 0.06}), *tables)
    assert (finding.severity, finding.cost_pct) == ("critical", 45.0)


# ---------------------------------------------------------------- abstaining


def test_kernels_that_nobody_looked_into(tmp_path: Path) -> None:
    (abstention,) = abstained(report(tmp_path, summary(work=20)))
    assert "use: ncu" in abstention.feed


def test_launches_without_throughputs(tmp_path: Path) -> None:
    bare_launch = dict.fromkeys(("sm_pct", "memory_pct", "dram_pct", "bound"))
    whole = report(tmp_path, launches(bare_launch))
    assert told(tmp_path, launches(bare_launch)) == []
    assert [one.rule for one in abstained(whole)] == ["held_back"]


def test_without_a_gpu_nothing_is_said(tmp_path: Path) -> None:
    assert told(tmp_path) == [] and abstained(report(tmp_path)) == []


# ---------------------------------------------------------------- real reports


def real(folder: Path, path: Path) -> Report:
    return report(folder, *_without_empty(ncu.read(path).tables))


def _without_empty(tables: Iterable[Table]) -> list[Table]:
    return [table for table in tables if len(table)]


REAL = {
    "2022.4.0_a40_julia_setfull": ["kernel_spills"],
    "2025.1.0_h100pcie_rmsnorm_40rules": ["kernel_at_a_limit"],
    "2025.1.0_gh200_pytorch_10k": ["kernel_at_a_limit", "kernel_at_a_limit"],
    "2022.3.0_rtx3070_vecadd": ["kernel_small_grid"],
    "2025.1.0_rtx2060s_histogram_baseline": ["kernel_latency"],
    "2023.1.1_a10g_11kernels": ["kernel_cache"],
    "2023.1.1_a10g_metrics_all_12k": [],
}


@pytest.mark.parametrize("name", REAL)
def test_of_real_reports(tmp_path: Path, shared: Path, name: str) -> None:
    whole = real(tmp_path, shared / "data" / "ncu" / f"{name}.ncu-rep")
    found = merged(one for rule in RULES for one in rule(whole) if isinstance(one, Finding))
    assert [finding.rule for finding in found] == REAL[name]
