"""locating/gpu.py: where the GPU's time goes, against counting each tick, against SQL, and on programs made for it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpu_programs as programs
import numpy as np
import pytest
from gpu_programs import ADD, ALL_REDUCE, EPOCH_NS, GEMM, MS, US, Program, write_kineto, write_nsys
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.formats import kineto, nsys
from orchestrator.locating.gpu import located, queue
from orchestrator.locating.gpu_names import BY_KERNELS, BY_STEPS, activity, call_kind, family, own_frame, waits
from orchestrator.model import Capture
from orchestrator.tables import Table

Parts = dict[str, list[Table]]
Rows = list[dict[str, Any]]
CAPTURES = tuple(Capture(name, "p1", tool, "ok") for name, tool in (("gpu", "nsys"), ("steps", "torch")))
SAMPLED = Capture("stacks", "p1", "py-spy", "ok", options={"rate": 100})


def parts_of(path: Path) -> Parts:
    content = nsys.read(path) if path.suffix == ".sqlite" else kineto.read(path)
    found: Parts = {}
    for table in content.tables:
        found.setdefault(table.name, []).append(table.with_capture("gpu"))
    return found


def recorded(program: Program, folder: Path, write: Callable[[Program, Path], Path] = write_nsys) -> Parts:
    return parts_of(write(program, folder / ("a.sqlite" if write is write_nsys else "a.json")))


def rows(parts: Mapping[str, Sequence[Table]], name: str) -> Rows:
    for table in parts.get(name, ()):
        tables.arrow(name, [table])  # fits the schema
    return [row for table in parts.get(name, ()) for row in table.rows()]


def states(parts: Parts, *more: Capture) -> dict[str, int]:
    """Time in each state, of the only GPU."""
    found = located(parts, (*CAPTURES, *more), ())
    return {row["state"]: row["total_ns"] for row in rows(found, "gpu_time")}


# ---------------------------------------------------------------- time by state

PIECE = st.tuples(st.sampled_from((GEMM, ALL_REDUCE, "copy")), st.integers(0, 80), st.integers(1, 12))


def pieces(found: Sequence[tuple[str, int, int]]) -> Parts:
    """Tables of some work of one GPU; times as given."""

    def columns(some: list[tuple[str, int, int]], name: str) -> dict[str, Any]:
        some = sorted(some, key=lambda piece: piece[1])
        times = {"start_ns": np.array([s for _, s, _ in some]), "duration_ns": np.array([d for *_, d in some])}
        same = {"capture": ["gpu"] * len(some), "pid": [1] * len(some), "device": [0] * len(some)}
        return {**same, **times, name: [n for n, *_ in some]}

    kernels = [piece for piece in found if piece[0] != "copy"]
    copies = [("[CUDA memcpy HtoD]", *piece[1:]) for piece in found if piece[0] == "copy"]
    parts = {
        "gpu_utilization": [Table("gpu_utilization", {"capture": ["gpu"], "pid": [1], "device": [0]})],
        "gpu_kernels": [Table("gpu_kernels", columns(kernels, "name"))],
    }
    return {**parts, "gpu_transfers": [Table("gpu_transfers", columns(copies, "kind"))]} if copies else parts


@given(st.lists(PIECE, max_size=14), st.tuples(st.just(GEMM), st.integers(0, 80), st.integers(1, 12)))
def test_each_tick_of_the_window_is_in_one_state(
    found: list[tuple[str, int, int]], kernel: tuple[str, int, int]
) -> None:
    found = [*found, kernel]
    kernels = [(s, s + d) for name, s, d in found if name != "copy"]
    window = range(min(s for s, _ in kernels), max(e for _, e in kernels))
    at = {kind: {t for n, s, d in found if n == kind for t in range(s, s + d)} for kind in (GEMM, ALL_REDUCE, "copy")}
    wanted = {
        "computing": len([t for t in window if t in at[GEMM]]),
        "communicating": len([t for t in window if t in at[ALL_REDUCE] - at[GEMM]]),
        "copying": len([t for t in window if t in at["copy"] - at[GEMM] - at[ALL_REDUCE]]),
    }
    told = states(pieces(found))
    assert {state: told[state] for state in wanted} == wanted and told["busy"] == sum(wanted.values())
    assert sum(told.values()) - 2 * told["busy"] == len(window) - told["busy"], "and idle for the rest"


def test_the_window_of_a_real_file_as_sql_counts_it(shared: Path) -> None:
    path = shared / "data" / "nsys" / "2024.6.2_a100_gpt2.7b.sqlite"
    found = located(parts_of(path), CAPTURES, ())
    (first, *_), work = rows(found, "gpu_time"), rows(found, "gpu_work")
    db = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    ((begin, end, count, kernel_ns),) = db.execute(
        f"SELECT min(start), max(end), count(*), sum(end - start) FROM {kernels}"
    )
    ((copies, copy_ns),) = db.execute(
        f"SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY WHERE start < {begin}"
    )
    top = db.execute(
        f"SELECT value, count(*), sum(end - start) n FROM {kernels} JOIN StringIds s ON s.id = demangledName "
        "GROUP BY 1 ORDER BY n DESC"
    ).fetchone()
    db.close()
    assert (first["window"], first["window_ns"]) == (BY_KERNELS, end - begin)
    inside = [row for row in work if row["part"] == "window" and row["kind"] == "kernel"]
    assert (sum(r["count"] for r in inside), sum(r["total_ns"] for r in inside)) == (count, kernel_ns)
    assert (inside[0]["name"], inside[0]["count"], inside[0]["total_ns"]) == top
    before = [row for row in work if row["part"] == "before" and row["kind"] == "transfer"]
    assert (
        (sum(r["count"] for r in before), sum(r["total_ns"] for r in before)) == (copies, copy_ns) == (294, 4460346194)
    )


# ---------------------------------------------------------------- how the work lies


@pytest.mark.parametrize(
    ("gaps", "starved", "wanted"),
    [
        ([100_000], 1, "dense"),  # 10 % of the window: still dense
        ([101_000], 1, "dense with gaps"),
        ([100_000] * 5, 1, "sparse"),  # half of it
        ([99_800] * 5, 1, "sparse"),  # just under half, but of short gaps of the host's
        ([100_000] * 4 + [99_000], 1, "dense with gaps"),
        ([1_000] * 300, 1, "sparse"),
        ([1_000] * 300, 0, "dense"),  # the work was queued: it only follows slowly
        ([500_000], 0, "dense with gaps"),  # it waits for something, but not for the host
        ([], 1, "dense"),
    ],
)
def test_sparse_dense_and_with_gaps(gaps: list[int], starved: int, wanted: str) -> None:
    assert queue(1_000_000, np.array(gaps, np.int64), np.full(len(gaps), starved)) == wanted


def test_a_sequence_that_repeats(tmp_path: Path) -> None:
    found = located(recorded(programs.launch_bound(), tmp_path), CAPTURES, ())
    assert {row["period"] for row in rows(found, "gpu_time")} == {3}
    other = Program()
    for number in range(200):
        other.kernel((GEMM, ADD, "k")[number * number % 7 % 3], 10 * US)
    (tmp_path / "a.sqlite").unlink()
    wanted = located(recorded(other, tmp_path), CAPTURES, ())
    assert {row["period"] for row in rows(wanted, "gpu_time")} == {7}


# ---------------------------------------------------------------- causes


@pytest.mark.parametrize("write", [write_nsys, write_kineto])
@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (programs.input_pipeline, "data"),
        (programs.host_sync, "sync"),
        (programs.python_between, "host"),
        (programs.allocations, "host"),
        (programs.launch_bound, "host"),
    ],
)
def test_what_the_gpu_waits_for(make: Callable[[], Program], cause: str, write: Any, tmp_path: Path) -> None:
    told = states(recorded(make(), tmp_path, write))
    idle = {state: ns for state, ns in told.items() if state not in ("busy", "computing", "copying", "communicating")}
    assert idle[cause] >= 0.9 * sum(idle.values())


def test_a_scalar_that_is_fetched_is_a_wait_and_a_tensor_a_copy(tmp_path: Path) -> None:
    for size, cause in ((4, "sync"), (64 << 10, "copy")):
        program = Program()
        for _ in range(5):
            program.kernel(GEMM, 200 * US)
            program.copy("DtoH", size, 10 * US)
            program.compute(500 * US)
        path = tmp_path / f"{size}.sqlite"
        parts = parts_of(write_nsys(program, path))
        del parts["cuda_calls"]  # the gaps alone tell it, too
        assert (
            max(states(parts).items(), key=lambda item: item[1] * (item[0] != "busy" and item[0] != "computing"))[0]
            == cause
        )


def spans(name: str, capture: str, error_ns: int, *found: tuple[Any, ...], columns: Sequence[str]) -> Table:
    table = Table.of(name, found, columns, clock="epoch", clock_error_ns=error_ns)
    return table.with_capture(capture)


STACK = "main (/home/me/job.py:9);fit (/home/me/job.py:40);dumps (/usr/lib/python3.11/json/__init__.py:8)"
LOADING = "main (/home/me/job.py:9);__next__ (/x/site-packages/torch/utils/data/dataloader.py:7);get (/home/me/d.py:3)"


@pytest.mark.parametrize(
    ("gap_ns", "stack", "cause", "python"),
    [
        (15 * MS, STACK, "host", "fit (/home/me/job.py:40)"),
        (15 * MS, LOADING, "data", "get (/home/me/d.py:3)"),
        (11 * MS, STACK, "host", None),  # not longer than twice 1 ms and a period of 10 ms
    ],
)
def test_a_gap_is_told_by_stacks_of_the_same_pass_where_it_is_long_enough(
    gap_ns: int, stack: str, cause: str, python: str | None, tmp_path: Path
) -> None:
    program = programs.python_between(6, gap_ns + 3 * MS + 900 * US)  # the queue holds 4 ms when the host is done
    parts = recorded(program, tmp_path)
    columns = ("pid", "tid", "start_ns", "duration_ns", "stack")
    parts["stack_spans"] = [spans("stack_spans", "stacks", MS, (1, 4321, EPOCH_NS, 10**10, stack), columns=columns)]
    found = rows(located(parts, (*CAPTURES, SAMPLED), ()), "gpu_gaps")
    longest = max(found, key=lambda row: row["duration_ns"])
    assert (longest["cause"], longest["python"]) == (cause, python)
    assert longest["told_by"] == ("stacks" if python else None)
    elsewhere = replace(SAMPLED, pass_id="p2")
    assert {row["told_by"] for row in rows(located(parts, (*CAPTURES, elsewhere), ()), "gpu_gaps")} == {None}


def test_a_gap_is_told_by_system_calls_of_its_thread(tmp_path: Path) -> None:
    program = programs.python_between(4)
    parts = recorded(program, tmp_path)
    gap = max(rows(parts, "gpu_gaps"), key=lambda row: row["duration_ns"])
    call = (gap["start_ns"] + MS, 9 * MS, "read", "/data/x.bin")
    columns = ("pid", "thread", "start_ns", "duration_ns", "name", "path")
    calls = [(4321, 4321, *call), (4321, 99, gap["start_ns"], 14 * MS, "futex", None)]
    parts["syscall_spans"] = [spans("syscall_spans", "strace", 25 * US, *calls, columns=columns)]
    strace = Capture("strace", "p1", "strace", "ok")
    found = rows(located(parts, (*CAPTURES, strace), ()), "gpu_gaps")
    told = [(r["syscall"], r["path"], r["told_by"]) for r in found if r["start_ns"] == gap["start_ns"]]
    assert told == [("read", "/data/x.bin", "strace")]
    assert sum(row["syscall"] is not None for row in found) == 1


# ---------------------------------------------------------------- steps


def steps_table(starts: Sequence[int], duration_ns: int, warm: int, data_ns: int | None = None) -> Table:
    count = len(starts)
    columns: dict[str, Any] = {
        "capture": ["steps"] * count,
        "pid": [4321] * count,
        "step": list(range(count)),
        "start_ns": [EPOCH_NS + start for start in starts],
        "duration_ns": [duration_ns] * count,
        "data_wait_ns": [data_ns] * count,
        "warmup": [n < warm for n in range(count)],
        "profiled": [False] * count,
    }
    return Table("steps", columns, clock="epoch", clock_error_ns=100_000)


def stepping(count: int = 10) -> tuple[Program, list[int]]:
    """The first step takes ten times as long on the host as the others, which take 10 ms each."""
    program, starts = Program(), []
    for number in range(count):
        starts.append(program.now)
        program.compute(96 * MS if not number else 6 * MS)
        for _ in range(20):
            program.kernel(GEMM, 150 * US)
        program.compute(4 * MS - 20 * program.call_ns)
    return program, starts


def test_the_window_is_the_steady_steps(tmp_path: Path) -> None:
    program, starts = stepping()
    parts = recorded(program, tmp_path)
    parts["steps"] = [steps_table(starts, 10 * MS, warm=1)]
    found = located(parts, CAPTURES, ())
    first = rows(found, "gpu_time")[0]
    assert (first["window"], first["start_ns"], first["steps"]) == (BY_STEPS, EPOCH_NS + starts[1], 9)
    assert first["window_ns"] == max(w.end for w in program.work) - starts[1], "as far as work was recorded"
    kernels = [row for row in rows(found, "gpu_work") if row["kind"] == "kernel"]
    assert {row["part"]: row["count"] for row in kernels} == {"window": 9 * 20, "before": 20}
    gaps = [
        row for row in rows(found, "gpu_gaps") if row["duration_ns"] > MS and row["start_ns"] > EPOCH_NS + starts[1]
    ]
    assert [row["step"] for row in gaps] == list(range(1, 9)), "each begins in the tail of a step"


def test_steps_of_another_pass_or_clock_lay_out_nothing(tmp_path: Path) -> None:
    program, starts = stepping()
    parts = recorded(program, tmp_path)
    parts["steps"] = [steps_table(starts, 10 * MS, warm=1)]
    for captures, table in (
        ((CAPTURES[0], replace(CAPTURES[1], pass_id="p2")), parts["steps"][0]),
        (CAPTURES, replace(parts["steps"][0], clock="relative")),
        (CAPTURES, replace(parts["steps"][0], columns={**parts["steps"][0].columns, "pid": [7] * len(starts)})),
    ):
        found = located({**parts, "steps": [table]}, captures, ())
        assert {row["window"] for row in rows(found, "gpu_time")} == {BY_KERNELS}


@pytest.mark.parametrize(("data_ns", "cause"), [(6 * MS, "data"), (2 * MS, "host"), (None, "host")])
def test_the_time_of_the_loader_in_a_step_tells_what_its_gap_is(
    data_ns: int | None, cause: str, tmp_path: Path
) -> None:
    program, starts = stepping()
    parts = recorded(program, tmp_path)
    parts["steps"] = [steps_table(starts, 10 * MS, warm=1, data_ns=data_ns)]
    found = located(parts, CAPTURES, ())
    long = [row for row in rows(found, "gpu_gaps") if row["duration_ns"] > MS and row["step"]]
    assert {(row["cause"], row["told_by"]) for row in long} == {(cause, "steps" if cause == "data" else None)}


# ---------------------------------------------------------------- more gaps than are listed


def test_gaps_that_are_not_listed_share_the_causes_of_the_shortest(tmp_path: Path) -> None:
    parts = recorded(programs.launch_bound(20), tmp_path)
    whole = states(parts)
    (table,) = parts["gpu_gaps"]
    kept = np.sort(np.argsort(table.columns["duration_ns"], kind="stable")[len(table) // 2 :])
    half = {name: [list(column)[i] for i in kept] for name, column in table.columns.items()}
    found = states({**parts, "gpu_gaps": [replace(table, columns=half)]})
    assert found["busy"] == whole["busy"] and found["host"] == pytest.approx(whole["host"], rel=0.02)


# ---------------------------------------------------------------- names


def test_names_of_libraries() -> None:
    assert [family(n) for n in (GEMM, ADD, ALL_REDUCE)] == ["matrix product", "elementwise", "communication"]
    assert family("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128>>(Flash_fwd_params)") == "attention"
    assert family("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32") == "convolution"
    assert family("mine") is None
    calls = (
        "cudaLaunchKernel",
        "cuStreamSynchronize",
        "hipMemcpyWithStream",
        "cudaFree",
        "cuModuleLoadData",
        "cudaSetDevice",
    )
    assert [call_kind(name) for name in calls] == ["launch", "sync", "copy", "allocation", "loading", None]
    assert [name for name in ("cudaMemcpy", "cudaMemcpyAsync", "cudaEventSynchronize") if waits(name)] == [
        "cudaMemcpy",
        "cudaEventSynchronize",
    ]
    assert activity("nccl:all_reduce") == "communication" and activity("Optimizer.step#SGD.step") == "optimizer"
    assert activity(None, programs.NEXT) == "data" and activity("forward_pass_of_mine") is None
    assert own_frame(LOADING.split(";")) == "get (/home/me/d.py:3)" and own_frame(["a", "b (<frozen x>:1)"]) is None


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 400), st.booleans()), min_size=1, max_size=30))
def test_any_program_has_a_whole_window(tmp_path_factory: Any, found: list[tuple[int, int, bool]]) -> None:
    program = Program()
    for what, us, wait in found:
        program.compute(us * US)
        program.kernel((GEMM, ADD)[what % 2], (1 + us) * US, stream=7 + what % 3)
        if wait:
            program.item()
    parts = recorded(program, tmp_path_factory.mktemp("any"))
    told = located(parts, CAPTURES, ())
    window_ns = rows(told, "gpu_time")[0]["window_ns"]
    spent = {row["state"]: row["total_ns"] for row in rows(told, "gpu_time")}
    assert sum(spent.values()) - spent["busy"] == window_ns
    assert spent["unknown"] == 0 and all(row["cause"] for row in rows(told, "gpu_gaps"))
