"""A torch.profiler trace of 500 MB, plain and packed: kernels, how long the GPU was idle, and operators."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from parsebench.frame import PYTHON, Input, Look, Ours, Unable, generated

PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "pytz", "tzdata", "plotly>=5.11", "narwhals", "psutil")
"""HTA without JupyterLab, which it declares and needs for its notebooks only; with pandas 3 it can't read kernels."""
FOLDER = Path(PYTHON).parent.parent / "hta-0.5.0-pandas-2"


def generate(out: Path, scale: float) -> None:
    _install()
    generated("gen_kineto.py", out, max(1.0, 500 * scale))


def generate_packed(out: Path, scale: float) -> None:
    plain = out.with_suffix("")
    generated("gen_kineto.py", plain, max(1.0, 500 * scale))
    with plain.open("rb") as source, gzip.open(out, "wb", compresslevel=1) as packed:
        shutil.copyfileobj(source, packed, 1 << 20)
    plain.unlink()


def three_tables(path: Path) -> Look:
    from orchestrator.formats import kineto

    content = kineto.read(path, {"gpu_kernel_summary", "gpu_utilization", "torch_ops"})
    return lambda: _results(content)


def two_tables(path: Path) -> Look:
    from orchestrator.formats import kineto

    content = kineto.read(path, {"gpu_kernel_summary", "gpu_utilization"})
    return lambda: _results(content)


def _results(content: Any) -> dict[str, Any]:
    """Kernels as rows (name, count, and total, least and most ns), sorted."""
    tables = {table.name: table for table in content.tables}
    rows = tables["gpu_kernel_summary"].rows()
    (gpu,) = tables["gpu_utilization"].rows()
    return {
        "kernels": sorted([r["name"], *(int(r[n]) for n in ("count", "total_ns", "min_ns", "max_ns"))] for r in rows),
        "idle_10us": round(gpu["idle_ns"] / 10_000),
        "exposed_communication_10us": round(gpu["exposed_communication_ns"] / 10_000),
        "events": dict(sorted(content.counted.items())),
    }


def hta(path: Path) -> Look:
    """HolisticTraceAnalysis: kernel breakdown and idle time, without rounding to microseconds."""
    sys.path.insert(0, str(FOLDER))
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    from hta.trace_analysis import TraceAnalysis

    analysis = TraceAnalysis(trace_files={0: str(path)}, trace_dir="", include_last_profiler_step=True)
    _, kernels = analysis.get_gpu_kernel_breakdown(visualize=False, duration_ratio=1.0, num_kernels=10**6)
    (times,) = analysis.get_temporal_breakdown(visualize=False).to_dict("records")
    return lambda: {
        "kernels": sorted(
            [name, round(total / mean), *(round(us * 1000) for us in (total, least, most))]
            for name, total, mean, least, most in zip(
                *(kernels[column] for column in ("name", "sum (us)", "mean (us)", "min (us)", "max (us)")), strict=True
            )
        ),
        # it adds up floats as large as a day in microseconds: the last digits of the sums are not the trace's
        "idle_10us": round(times["idle_time(us)"] / 10),
        "exposed_communication_10us": round(times["non_compute_time(us)"] / 10),
    }


def plain_json(path: Path) -> Look:
    """No more than the document in memory."""
    import orjson

    with gzip.open(path) as file:
        events = orjson.loads(file.read())["traceEvents"]

    def look() -> dict[str, Any]:
        spans = [event for event in events if event["ph"] == "X"]
        times: dict[str, list[int]] = {}
        for event in spans:
            if event["cat"] == "kernel":
                times.setdefault(event["name"], []).append(round(event["dur"] * 1000))
        return {
            "kernels": sorted([name, len(ns), sum(ns), min(ns), max(ns)] for name, ns in times.items()),
            "events": dict(sorted(Counter(event["cat"] for event in spans).items())),
        }

    return look


def _install() -> None:
    """HTA in a folder of its own, once."""
    if (FOLDER / "complete").exists():
        return
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(FOLDER), *PACKAGES]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        raise Unable(f"HolisticTraceAnalysis can't be installed: {done.stderr.strip()[-300:]}")
    (FOLDER / "complete").touch()


INPUTS = (
    Input(
        "kineto",
        "500 MB",
        "trace.json",
        generate,
        "HolisticTraceAnalysis",
        hta,
        (Ours("kernels, idle time, operators", three_tables, 25.0, 1_000_000_000),),
    ),
    Input(
        "kineto.gz",
        "500 MB",
        "trace.json.gz",
        generate_packed,
        "gzip + orjson.loads",
        plain_json,
        (Ours("kernels, idle time", two_tables, 3.0, 1_000_000_000),),
    ),
)
