"""Rules about what keeps the GPU busy: which kernels, and whether they are what a GPU is for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.formats.kernel_names import function
from orchestrator.gpu_seen import Seen, seen, shown_pct
from orchestrator.locating.gpu_names import PRODUCTS
from orchestrator.model import Evidence, Finding
from orchestrator.report import Report
from orchestrator.units import show_duration

if TYPE_CHECKING:
    import pandas

BUSY_PCT = 50.0
"""From this share of the window on it is computing that most of the time goes to."""
LIGHT = frozenset({"elementwise", "reduction", "normalisation"})
"""They read and write much for what they compute: memory bounds them, and fusing them saves its traffic."""
LIGHT_PCT = 30.0
NAMED_FROM = 0.05

_SINGLE = re.compile(r"sgemm|scudnn|f32f32_f32f32_f32|_ffma_", re.I)
"""Matrix products and convolutions in FP32, without tensor cores."""
_WITH_TENSOR_CORES = re.compile(
    r"A100|A800|H100|H200|H800|GH200|B[123]00|GB\d00|A[24-6]\d\d\d|A10|A30|A40|L4|L40|RTX [3-9]\d|RTX \d\d\d\d Ada"
)
"""GPUs whose tensor cores take FP32 as TF32: Ampere and later."""


def busy(report: Report) -> Iterator[Finding]:
    """The GPU computes most of the time: these kernels are where the program's time goes. Nothing is wrong with that in
    itself; where it is dense, a faster program needs faster kernels."""
    for gpu in seen(report):
        kernels, computing_ns = _computing(gpu), gpu.ns("computing")
        if gpu.pct(computing_ns) < BUSY_PCT or not len(kernels):
            continue
        yield from gpu.finding(
            "gpu_busy",
            "gpu_compute",
            f"{_subject(kernels)} the GPU busy for {gpu.share(computing_ns)}{_copies(gpu)}",
            f"Where it has to be faster, look at these kernels in depth (`use: ncu`).{_precision(gpu, kernels)}",
            computing_ns,
            most="minor",
            healthy=True,
            where={"kernel": str(kernels["name"].iloc[0])},
            evidence=(gpu.state("computing"), *_rows(kernels)),
            cause="gpu computes",
        )


def memory_bound_kernels(report: Report) -> Iterator[Finding]:
    """Much of the time goes to kernels that compute little on what they read: elementwise, reductions, normalisation,
    unfused. What fusing would save is not measured, so this is never more than minor."""
    for gpu in seen(report):
        kernels = _computing(gpu)
        light = kernels[kernels["family"].isin(LIGHT)]
        ns = min(int(light["total_ns"].sum()), gpu.ns("computing"))
        if gpu.pct(ns) < LIGHT_PCT or not len(light):
            continue
        yield from gpu.finding(
            "light_kernels",
            "gpu_memory_bound",
            f"Kernels that do little with what they read take {gpu.share(ns)}: {_listed(light)}",
            "Fuse them: torch.compile, fused optimizers (`fused=True`), scaled_dot_product_attention; and store "
            "activations in 16 bits.",
            ns,
            most="minor",
            sure="medium",
            where={"kernel": str(light["name"].iloc[0])},
            evidence=tuple(_rows(light)),
        )


def _computing(gpu: Seen) -> pandas.DataFrame:
    """Kernels and graphs in the window but those that communicate, the longest first."""
    kernels = gpu.of_kind("kernel", "graph")
    return kernels[kernels["family"].fillna("") != "communication"].sort_values("total_ns", ascending=False)


def _subject(kernels: pandas.DataFrame) -> str:
    """`Matrix products (ampere_sgemm_128x64_tn ...) keep`, as far as most of the time is of a family that is known."""
    by_family = kernels.groupby("family")["total_ns"].sum().sort_values()
    whole = kernels["total_ns"].sum()
    if len(by_family) and 2 * by_family.iloc[-1] >= whole:
        family = str(by_family.index[-1])
        plural = _PLURALS.get(family, f"{family} kernels").capitalize()
        return f"{plural} ({_listed(kernels[kernels['family'] == family])}) keep"
    listed = _listed(kernels)
    return f"{listed} {'keep' if ', ' in listed else 'keeps'}"


_PLURALS = {"matrix product": "matrix products", "convolution": "convolutions", "reduction": "reductions"}


def _listed(kernels: pandas.DataFrame) -> str:
    """The two longest by their short names, with their part of the time of these kernels; a small second is none."""
    whole = int(kernels["total_ns"].sum())
    names = kernels.groupby(kernels["name"].map(_short))["total_ns"].sum().nlargest(2)
    names = names[(names >= NAMED_FROM * whole) | (names == names.max())]
    shown = [
        f"{name} {shown_pct(100 * int(ns) / whole)}" if len(names) > 1 else str(name) for name, ns in names.items()
    ]
    return ", ".join(shown)


def _short(name: str) -> str:
    short = name if name.startswith("[") else function(name)
    if short.lower() in ("kernel", "kernel2", "kentry") and (inside := re.search(r"<(?:[^<>]*?::)?(\w+)", name)):
        short = inside[1]  # CUTLASS and CK have one kernel, which is all template
    return short if len(short) <= 60 else f"{short[:57]}..."


def _copies(gpu: Seen) -> str:
    """What a reader should know of copies, where they are not in between."""
    moves = gpu.of_kind("transfer", part="before")
    before_ns = int(moves["total_ns"].sum())
    if gpu.steps is None and before_ns > gpu.window_ns:
        return (
            f" ({show_duration(gpu.window_ns / 1e9)}); copies before the first kernel took longer "
            f"({show_duration(before_ns / 1e9)})"
        )
    return ", with no copy in between" if len(moves) and not len(gpu.of_kind("transfer")) else ""


def _precision(gpu: Seen, kernels: pandas.DataFrame) -> str:
    """Advice for products in FP32 on a GPU whose tensor cores could do them."""
    products = kernels[kernels["family"].isin(PRODUCTS)]
    single = products[products["name"].str.contains(_SINGLE.pattern, case=False, regex=True)]
    if 2 * single["total_ns"].sum() < kernels["total_ns"].sum() or not _WITH_TENSOR_CORES.search(gpu.gpu or ""):
        return ""
    return (
        " They compute in FP32 without tensor cores: torch.set_float32_matmul_precision('high') takes TF32, "
        "torch.autocast 16 bits, several times as fast where the accuracy allows it."
    )


def _rows(kernels: pandas.DataFrame) -> Iterator[Evidence]:
    for _, row in kernels.head(3).iterrows():
        yield Evidence("gpu_work", str(row["name"]), round(int(row["total_ns"]) / 1e9, 6), "s")


RULES = (busy, memory_bound_kernels)
