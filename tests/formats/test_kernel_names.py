"""formats/kernel_names.py: the bare function of a name, against what nsys and ncu say themselves."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator.formats.kernel_names import communicates, function


@pytest.mark.parametrize(
    ("demangled", "bare"),
    [
        ("saxpy", "saxpy"),
        ("kernVectorAdd(const float *, const float *, float *, int)", "kernVectorAdd"),
        ("void at::native::<unnamed>::apply<at::native::<unnamed>::List<(int)4>>(T1, T2)", "apply"),
        ("void at::native::(anonymous namespace)::apply<at::List<4>>(T1::Params)", "apply"),
        ("void fill<float, [lambda() (instance 3)]::operator()() const::[lambda(float)]>(int, T2)", "fill"),
        ("enable_if<!T7, void>::type kernel<int, (T1)((int)3 > (int)2)>(T1)", "kernel"),
        ("void cutlass::Kernel<cutlass::gemm::Gemm<A, B>>(T1::Params)", "Kernel"),
        ("void foo<1>::operator()(int)", "operator()"),
        ("void ns::Body<float>::operator()<int>(T1) const", "operator()"),
        ("void my_operator()", "my_operator"),
        ("Kernel<A->B>(T)", "Kernel"),
        ("void run<[lambda(int)->float (instance 1)]>(T1)", "run"),
        ("broken<(", "broken<("),
        ("", ""),
    ],
)
def test_the_function_of_a_name(demangled: str, bare: str) -> None:
    assert function(demangled) == bare


def test_it_is_the_short_name_that_nsys_gives_every_kernel(shared: Path) -> None:
    seen = 0
    for path in sorted((shared / "data" / "nsys").glob("20*.sqlite")):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'").fetchall():
                continue
            rows = db.execute(
                "SELECT DISTINCT d.value, s.value FROM CUPTI_ACTIVITY_KIND_KERNEL "
                "JOIN StringIds d ON d.id = demangledName JOIN StringIds s ON s.id = shortName"
            ).fetchall()
        assert {demangled: function(demangled) for demangled, _ in rows} == dict(rows), path.name
        seen += len(rows)
    assert seen > 100


def test_it_is_the_function_name_that_ncu_gives_every_kernel(shared: Path) -> None:
    reader = pytest.importorskip("ncu_report")
    seen = set()
    for path in sorted((shared / "data" / "ncu").glob("*.ncu-rep")):
        report = reader.load_report(str(path))
        for part in (report.range_by_idx(i) for i in range(report.num_ranges())):
            for one in (part.action_by_idx(i) for i in range(part.num_actions())):
                assert function(one.name(one.NameBase_DEMANGLED)) == one.name(one.NameBase_FUNCTION)
                seen.add(one.name(one.NameBase_FUNCTION))
    assert len(seen) > 20


@pytest.mark.parametrize(
    "name",
    [
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<(unsigned long)4096>)",
        "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)",
        "void ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs4K)",
        "nccl:all_reduce",
        "_Z42ncclDevKernel_AllReduce",
        "nvshmemi_barrier_on_stream_kernel(int)",
        "void c10d::symmetric_memory::one_shot_all_reduce_kernel<float, 8>(float**)",
        "void vllm::cross_device_reduce_1stage<half, 8>(vllm::RankData*)",
        "void deep_ep::internode::dispatch<false>(int4*)",
        "_ZN7deep_ep9internode8dispatchILb0EEEvP4int4",
        "NCCL_AllGather",
    ],
)
def test_kernels_that_pass_data_between_gpus(name: str) -> None:
    assert communicates(name)


@pytest.mark.parametrize(
    "name",
    [
        "ampere_sgemm_128x64_tn",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128>>(Flash_fwd_params)",
        "triton_red_fused_all_reduced_mean_3",
    ],
)
def test_kernels_that_compute(name: str) -> None:
    assert not communicates(name)
    assert not communicates(None)
