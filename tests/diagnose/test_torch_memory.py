"""diagnose/torch_memory.py: PyTorch's allocations, of real recordings and of made-up ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_report import bare, write

from orchestrator.diagnose.torch_memory import RULES
from orchestrator.formats import kineto, memsnap
from orchestrator.model import Abstention, Finding
from orchestrator.report import Report
from orchestrator.tables import Table

MIB = 1 << 20
STEPS = Table.of(
    "torch_ops", [(1, "ProfilerStep*", "cpu", 10, 10**9)], ("pid", "name", "device", "count", "cpu_total_ns")
)


def report(folder: Path, *tables: Table) -> Report:
    infos = {table.name: write(folder, table.with_capture("p02-torch")) for table in tables}
    return replace(bare(folder), tables=infos)


def found(folder: Path, *tables: Table) -> dict[str, Finding]:
    whole = report(folder, *tables)
    return {one.rule: one for rule in RULES for one in rule(whole) if isinstance(one, Finding)}


def memory(*events: tuple[int, int, str], device: str = "cuda:0", reserved: int = 0, before: int = 0) -> Table:
    """Events of (address, bytes, operator); bytes are negative where the block was given back."""
    held, rows = before, []
    for number, (address, size, op) in enumerate(events):
        held += size
        rows.append((1, 1, number, device, address, size, held, max(reserved, held), op))
    columns = ("pid", "thread", "time_ns", "device", "address", "bytes", "allocated_bytes", "reserved_bytes", "op")
    return Table.of("memory", rows, columns, clock="epoch")


def test_what_holds_the_peak(tmp_path: Path) -> None:
    events = [(1, 300 * MIB, "aten::mm"), (2, 500 * MIB, "aten::add"), (2, -500 * MIB, "aten::add"),
              (3, 700 * MIB, "aten::mm"), (1, -300 * MIB, "aten::mm")]  # fmt: skip
    told = found(tmp_path, memory(*events, before=MIB))
    peak = told["memory_peak"]
    assert list(told) == ["memory_peak"] and peak.severity == "info" and peak.healthy
    assert peak.title.startswith("PyTorch holds at most 1.05 GB at once on cuda:0, the most of it by aten::mm (1.05")
    assert peak.where == {"op": "aten::mm"} and peak.evidence[0].value == 1001 * MIB


def test_little_memory_of_the_host_is_nothing_to_tell(tmp_path: Path) -> None:
    assert found(tmp_path, memory((1, 300 * MIB, "aten::mm"), device="cpu"), STEPS) == {}


def test_memory_that_is_reserved_and_not_used(tmp_path: Path) -> None:
    gib = 1024 * MIB
    told = found(tmp_path / "a", memory((1, 4 * gib, "aten::mm"), reserved=8 * gib))
    assert "4.29 GB of GPU memory are reserved and not in use at the peak (50 %" in told["reserved_unused"].title
    assert told["reserved_unused"].severity == "minor" and "expandable_segments" in told["reserved_unused"].advice
    assert "reserved_unused" not in found(tmp_path / "b", memory((1, 4 * gib, "aten::mm"), reserved=5 * gib))


def blocks(size: int) -> list[tuple[int, int, str]]:
    return [(9, sign * size, "aten::empty") for _ in range(10) for sign in (1, -1)]


def test_large_blocks_that_are_taken_from_the_kernel_at_each_step(tmp_path: Path) -> None:
    told = found(tmp_path / "a", memory(*blocks(256 * MIB), device="cpu"), STEPS)["blocks_anew"]
    assert told.title == "Each step takes 268 MB in large blocks from the kernel, and gives them back"
    assert (told.severity, told.cost_pct, told.where) == ("minor", 16.4, {"op": "aten::empty"})
    assert found(tmp_path / "b", memory(*blocks(16 * MIB), device="cpu"), STEPS) == {}, "malloc keeps these"
    assert "blocks_anew" not in found(tmp_path / "c", memory(*blocks(256 * MIB)), STEPS), "a GPU's are cached"


def test_of_a_real_snapshot_and_a_real_trace(tmp_path: Path, shared: Path) -> None:
    snapshot = memsnap.read(shared / "data" / "torch" / "memsnap_ctx128_forward.pickle").memory
    peak = found(tmp_path / "a", snapshot)["memory_peak"]
    assert peak.title.startswith("PyTorch holds at most 19.4 GB at once on cuda:0, the most of it by einsum")
    trace = kineto.read(shared / "data" / "torch" / "hta_v100_2rank_nccl_profile_memory.json.gz")
    told = found(tmp_path / "b", next(table for table in trace.tables if table.name == "memory"))
    assert set(told) == {"memory_peak", "reserved_unused"}
    assert "4.1 GB were there before the recording" in told["memory_peak"].title


def test_where_only_operators_were_recorded_it_abstains(tmp_path: Path) -> None:
    kernels = Table.of("torch_ops", [("some_kernel", "cuda", 1)], ("name", "device", "count"))
    whole = report(tmp_path, kernels)
    told: list[Any] = [one for rule in RULES for one in rule(whole)]
    assert [type(one) for one in told] == [Abstention] and "memory: true" in told[0].feed
    assert [one for rule in RULES for one in rule(report(tmp_path / "cpu", STEPS))] == []
