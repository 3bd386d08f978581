"""What belongs together in two runs: functions that moved, kernels that were renamed."""

from __future__ import annotations

import pytest

from orchestrator.comparing.pairing import BY_NAME, BY_PLACE, paired, renamed
from orchestrator.comparing.sides import Measured


def function(name: str, file: str) -> Measured:
    return Measured(name, 1.0, where={"file": file})


def kernel(name: str, us: float = 100.0, count: float = 4.0) -> Measured:
    return Measured(name, us * 1e3, count)


@pytest.mark.parametrize(
    ("a", "b"),
    [("/a/train.py", "/a/train.py"), ("/a/job/train.py", "/b/job/train.py"), ("/a/train.py", "/b/slow.py")],
)
def test_a_function_is_found_where_it_went(a: str, b: str) -> None:
    one, other = function("load", a), function("load", b)
    assert paired([one], [other], BY_PLACE) == [(one, other)]


def test_functions_of_one_name_are_told_apart_by_their_files() -> None:
    a = [function("forward", "/x/encoder.py"), function("forward", "/x/decoder.py")]
    b = [function("forward", "/y/decoder.py"), function("forward", "/y/encoder.py")]
    assert paired(a, b, BY_PLACE) == [(a[0], b[1]), (a[1], b[0])]


def test_what_can_not_be_told_apart_stays_alone() -> None:
    a = [function("__init__", "/x/a.py"), function("__init__", "/x/b.py")]
    b = [function("__init__", "/y/c.py")]
    assert paired(a, b, BY_PLACE) == [(a[0], None), (a[1], None), (None, b[0])]


def test_new_and_gone_stay_alone() -> None:
    x, y, z = kernel("x"), kernel("y"), kernel("z")
    assert paired([x, y], [y, z], BY_NAME) == [(y, y), (x, None), (None, z)]


GRID = {"ampere_sgemm_128x64": ("8,1,1", "256,1,1"), "totally_other": ("8,1,1", "256,1,1")}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("void at::native::relu<float, 4>(Params)", "void at::native::relu<float, 8>(Params)"),
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_64x64_nn"),
        ("cudnn_v8_conv_fprop", "cudnn_v9_conv_fprop"),
    ],
)
def test_another_version_or_template_is_a_new_name(old: str, new: str) -> None:
    one, other = kernel(old), kernel(new, 110.0)
    assert renamed([one], [other], {}, {}) == [(one, other)]


def test_the_same_grid_makes_up_for_another_name() -> None:
    one, other = kernel("ampere_sgemm_128x64"), kernel("totally_other")
    assert renamed([one], [other], GRID, GRID) == [(one, other)]
    assert renamed([one], [other], {}, {}) == []


@pytest.mark.parametrize("other", [kernel("gemm_v2", us=300.0), kernel("gemm_v2", count=8.0)])
def test_other_work_is_no_new_name(other: Measured) -> None:
    assert renamed([kernel("gemm_v1")], [other], {}, {}) == []


def test_each_kernel_is_taken_once_and_the_most_alike_first() -> None:
    gone = [kernel("gemm_tile64_v1"), kernel("gemm_wide_v1")]
    new = [kernel("gemm_wide_v2"), kernel("gemm_tile32_v2")]
    assert {(a.name, b.name) for a, b in renamed(gone, new, {}, {})} == {
        ("gemm_wide_v1", "gemm_wide_v2"),
        ("gemm_tile64_v1", "gemm_tile32_v2"),
    }
