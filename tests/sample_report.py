"""A report such as a real run leaves, with names that try to break out of whatever shows them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from orchestrator import tables
from orchestrator.model import (
    Abstention,
    Artifact,
    Attached,
    Capture,
    Clock,
    Evidence,
    Exit,
    Finding,
    Headline,
    Metric,
    Outcome,
    Part,
    PassRecord,
    StepRecord,
    TargetRun,
    Tool,
)
from orchestrator.report import Report, RunInfo, TableInfo
from orchestrator.tables import Table

EVIL = "</script><script>document.documentElement.dataset.owned='1'</script><img src=x onerror=\"owned='2'\">"
QUOTES = 'say "it\'s" `ticked` | piped & <b>bold</b> \\ back'
LONG = "void gemm_kernel<" + ", ".join(f"Shape<{i}, {i * 2}>" for i in range(260)) + ">(Params)"
BIDI = "safe\u202egnp.exe\x1b[31m\x00"
STARTED_NS = 1_790_000_000_000_000_000
PYTHON = "/opt/venv/lib/python3.11"
ARGV = ("python", "scripts/demo/train_cnn.py", "--steps", "200", "--note", QUOTES)


def build(folder: Path) -> Report:
    """The full report; its tables are written below `folder`."""
    report = Report(
        run=RunInfo(
            id="cpu-quick-20260921T101320Z-kdmw",
            name="cpu-quick",
            started_at="2026-09-21T10:13:20Z",
            duration_s=47.3,
            command=ARGV,
            cwd="/home/ada/project",
            profrun_version="0.1.0",
        ),
        outcome=Outcome("ok", 0, "", 0),
        machine=MACHINE,
        environment=STEPS,
        passes=_passes(),
        captures=CAPTURES,
        metrics=METRICS,
        folder=folder,
    )
    return replace(report, tables={t.name: write(folder, t) for t in _tables()})


def job(folder: Path) -> Report:
    """Two looks at a job that ran already: a rank ended, another came, and one was left stopped."""
    launcher = Attached(7, ("torchrun", "t.py"), 7, 70, wrapper="torchrun", state_before="S", state_after="S")
    words, size = ("python", "t.py", EVIL), 3
    ranks = [
        Attached(8, words, 8, 80, 7, True, True, None, 0, 0, size, "R", 0, "S"),
        Attached(9, words, 9, 90, 7, True, True, None, 1, 1, size, "T", 0, "T", 99),
        Attached(11, words, 11, 110, 7, True, True, None, 2, 2, size, "S", 0, None),
    ]
    late = Attached(12, ("sh",), 8, 120, 8, state_after="T")
    looks = ((launcher, *ranks), (launcher, *(replace(one, state_after="R") for one in ranks[:1]), ranks[1], late))
    runs = [TargetRun(words, 7, 0, 1, 1.0, None, ended_by="detached", attached=look) for look in looks]
    passes = tuple(PassRecord(f"p0{n}", "profiled", ("py-spy",), run=run) for n, run in enumerate(runs, 1))
    return replace(bare(folder), outcome=Outcome("ok", 0, ""), passes=passes)


def bare(folder: Path) -> Report:
    """What is left of a run whose target could not be started: nothing but the fact."""
    run = RunInfo("x-20260921T101320Z-abcd", "x", "2026-09-21T10:13:20Z", 0.1, ("nope",), "/", "0.1.0")
    return Report(run, Outcome("not_started", 127, "nope was not found on PATH"), machine={}, folder=folder)


def write(folder: Path, table: Table) -> TableInfo:
    path = folder / "tables" / f"{table.name}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(tables.arrow(table.name, [table]), path)
    return TableInfo(f"tables/{table.name}.parquet", len(table))


def finding() -> Finding:
    return Finding(
        rule="file_io.fsync_in_loop",
        category="file_io",
        severity="major",
        title=f"fsync is called at every step {EVIL}",
        advice="Write the checkpoint every 50 steps, or without fsync; the loss of one step costs less than the wait.",
        confidence="high",
        where={"function": "save", "file": "train_cnn.py", "line": 88, "syscall": "fsync", "thread": None},
        cost_s=1.31,
        cost_pct=40.8,
        of="the bare run's 3.21 s of wall time",
        evidence=(
            Evidence("syscalls", "fsync", 200.0, "calls"),
            Evidence("syscall_paths", "/home/ada/project/ckpt.bin", 1.31, "s"),
        ),
        sources=("p10-strace",),
    )


HEALTHY = Finding(
    rule="native_cpu.convolution",
    category="native_cpu",
    severity="info",
    title="Most of a step is the convolution itself",
    advice="Nothing is wrong with that; a larger batch would use the processors better.",
    confidence="medium",
    where={"function": "CNN.forward", "file": "train_cnn.py", "line": 41},
    cost_s=1.1,
    cost_pct=36.7,
    of="the steady steps of a bare run",
    evidence=(Evidence("host_time", "CNN.forward", 1.1, "s"), Evidence("gpu_gaps", "at 2.8 s", 0.087, "s")),
    sources=("p09-py-spy",),
    healthy=True,
)
FEED = """collectors:
  - use: nsys
    trace: [cuda, nvtx]
"""


def diagnosed(folder: Path) -> Report:
    """The full report with what the rules say of it: two findings, one of them calm, a headline, two abstentions."""
    sentence = "Each step waits for its checkpoint: fsync takes 40.8 % of a bare run, in save (train_cnn.py:88)"
    minor = replace(
        finding(),
        severity="minor",
        title=f"A name of thousands of letters: {LONG}",
        where={"kernel": LONG, "path": f"/home/{EVIL}"},
        cost_s=None,
        cost_pct=4.0,
        sources=("p10-strace", "p11-nsys"),
        evidence=tuple(Evidence("syscalls", f"call {i}", float(i), None) for i in range(9)),
    )
    return replace(
        build(folder),
        findings=(finding(), minor, HEALTHY),
        headline=Headline(sentence, "cpu", "high", ("p10-strace",)),
        abstentions=(
            Abstention("gpu.gaps", "no capture of the GPU's work", FEED),
            Abstention("gpu.copies", f"no copies were traced {EVIL}", FEED),
            Abstention("kernels.roofline", "no kernel was measured in depth", "collectors:\n  - use: ncu\n"),
        ),
    )


def _run(wall_s: float, user_s: float = 2.9) -> TargetRun:
    start = STARTED_NS
    return TargetRun(ARGV, 4242, start, start + int(wall_s * 1e9), wall_s, Exit(code=0), user_s, 0.21, 412_000_000)


WALLS = (3.187, 3.221, 3.209, 3.198, 3.405, 3.214, 3.203)


def _passes() -> tuple[PassRecord, ...]:
    warm = PassRecord("p01", "warmup", ("timing",), 1, _run(4.92))
    timed = [PassRecord(f"p0{i + 1}", "bare", ("timing",), i, _run(w)) for i, w in enumerate(WALLS, 1)]
    return (
        warm,
        *timed,
        PassRecord("p09", "profiled", ("py-spy",), 1, _run(3.31), 1.032, (1.012, 1.051)),
        PassRecord(
            "p10", "profiled", ("strace",), 1, _run(8.82), 2.749, (2.69, 2.81), notes=("seccomp filter in use",)
        ),
        PassRecord("p11", "profiled", ("nsys",), 1, _run(5.78), 1.801, (1.76, 1.84), attempts=2),
        PassRecord("p12", "profiled", ("perf",), 1, None),
    )


def _artifact(role: str, path: str, size: int, **more: Any) -> Artifact:
    return Artifact(
        role, path, path.rpartition(".")[2], size, "9f86d081884c7d659a2feaa0c55ad015" * 2, STARTED_NS, **more
    )


CAPTURES = (
    *(Capture(f"p0{i}-timing", f"p0{i}", "timing", "ok", tool=Tool("timing", None)) for i in range(1, 9)),
    Capture(
        "p09-py-spy",
        "p09",
        "py-spy",
        "ok",
        tool=Tool("py-spy", "/opt/venv/bin/py-spy", "0.4.3"),
        commands=(
            ("py-spy", "record", "--pid", "4242", "--idle", "--threads", "-f", "chrometrace", "-o", "a trace.json"),
        ),
        options={"rate": "100Hz", "subprocesses": True, "native": False, "duration": None},
        artifacts=(
            _artifact("trace", "raw/p09-py-spy/a trace #1.json", 1_912_000),
            _artifact("flamegraph", "raw/p09-py-spy/flame.svg", 80_112, derived_from="trace"),
        ),
        flush_s=0.21,
        clock=Clock(STARTED_NS, 1000.0, 7_000_000, "the time of its start"),
        overhead_s=0.10,
        notes=("asked for 100 samples a second, reached 99.2", "the program waited for 61 % of the samples"),
    ),
    Capture(
        "p10-strace",
        "p10",
        "strace",
        "ok",
        trust="distorted",
        tool=Tool("strace", "/usr/bin/strace", "6.1"),
        commands=(("strace", "-D", "--seccomp-bpf", "-f", "-c", "-w", "-o", "summary.txt", "--", *ARGV),),
        artifacts=(_artifact("summary", "raw/p10-strace/summary.txt", 4_201),),
        overhead_s=5.61,
    ),
    Capture(
        "p11-nsys",
        "p11",
        "nsys",
        "degraded",
        reason="no GPU on this machine: only calls into the operating system were traced",
        tool=Tool("nsys", "/usr/bin/nsys", "2022.4.2"),
        commands=(("nsys", "profile", "-t", "osrt,nvtx", "-s", "none", *ARGV), ("nsys", "export", "--type", "sqlite")),
        artifacts=(
            _artifact("report", "raw/p11-nsys/report.nsys-rep", 512_000, holds_env=True),
            _artifact("sqlite", "raw/p11-nsys/report.sqlite", 3_100_000, holds_env=True, truncated=True),
        ),
        attempt=2,
    ),
    Capture(
        "p12-perf",
        "p12",
        "perf",
        "blocked",
        reason=f"perf_event_paranoid is 3: run `sysctl kernel.perf_event_paranoid=1` {QUOTES}",
        required=False,
        tool=Tool("perf", None),
    ),
)

METRICS = {
    "wall_s": Metric(3.2339, "s", (3.1712, 3.2966), 7, 3.209, 0.0678, 3.187, 3.405, ("p06",)),
    "user_s": Metric(2.9021, "s", (2.8991, 2.9051), 7, 2.902, 0.0032, 2.898, 2.907),
    "sys_s": Metric(0.2113, "s", (0.2081, 0.2145), 7, 0.211, 0.0034, 0.206, 0.216),
    "max_rss_bytes": Metric(412_310_000.0, "bytes", (411_900_000.0, 412_720_000.0), 7, 412_300_000.0),
    "step_s": Metric(0.01613, "s", (0.01601, 0.01625), 3, 0.01613, 0.00002, 0.01611, 0.01615),
    "steps": Metric(200.0, "steps", (200.0, 200.0), 3, 200.0, 0.0, 200.0, 200.0),
    "warmup_steps": Metric(14.0, "steps", (14.0, 14.0), 3, 14.0, 0.0, 14.0, 14.0),
    "loss": Metric(2.3026, None, None, 1, 2.3026),
    "tokens_per_s": Metric(None, "1/s"),
}

MACHINE = {
    "hostname": "node-17",
    "os": "Debian GNU/Linux 12",
    "kernel": "6.1.0-18-amd64",
    "cpu": {"model": "AMD EPYC 7763", "logical": 16, "physical": 8, "frequency_mhz": 2450.0, "governor": None},
    "memory_bytes": 67_430_000_000,
    "gpus": [],
    "python": {"version": "3.11.7", "executable": "/opt/venv/bin/python", "torch": "2.13.0+cpu"},
    "driver": None,
    "container": False,
    "disks": [{"device": "nvme0n1", "size_bytes": 960_000_000_000}, {"device": "sda", "size_bytes": None}],
}

CORES = {str(n): n / 2 for n in range(64)}
UUIDS = ("GPU-5a3c12ef-1234-5678-9abc-0123456789ab", "GPU-7d01f2aa-4321-8765-cba9-ba9876543210")
SUDO = "ada ALL=(root) NOPASSWD: /usr/local/libexec/profrun-root"


_GPU = {
    "uuid": UUIDS[0],
    "utilization_pct": [0, 0, 1],
    "memory_used_bytes": 4_000_000,
    "display_active": False,
    "processes": [],
    "unknown": {},
}
_BUSY = {
    **_GPU,
    "uuid": UUIDS[1],
    "utilization_pct": [97, 99, None],
    "memory_used_bytes": None,
    "processes": [
        {"pid": 4711, "user": "bob", "command": f"python x.py {EVIL}", "kind": "compute", "memory_bytes": 12.3e9},
        {"pid": 9, "user": None, "command": None, "kind": "compute", "memory_bytes": None},
    ],
}
_NO_DISPLAY: dict[str, Any] = {"why_not": None, "displays": [], "display_manager": None, "notes": []}


_QUIET: dict[str, Any] = {"cores_pct": CORES, "procs_running": 1, "waiting_pct": None, "top": []}


def _frequency() -> StepRecord:
    """Sixteen policies: the governor set and put back, the highest clock limited by the processor, turbo refused."""
    parts = [
        part
        for n in range(16)
        for part in (
            Part(f"policy{n} governor", "applied", "performance", "powersave", "performance", "powersave", True),
            Part(
                f"policy{n} maximum",
                "clamped",
                "4 GHz",
                "2.9 GHz" if n % 4 else "2.8 GHz",
                "2.9 GHz" if n % 4 else "2.8 GHz",
                "2.9 GHz" if n % 4 else "2.8 GHz",
                None,
                detail="2.9 GHz" if n % 4 else "2.8 GHz",
            ),
        )
    ]
    turbo = Part(
        "turbo", "refused", "off", "on", reason="only root may write intel_pstate/no_turbo", detail="EACCES", fix=SUDO
    )
    return StepRecord(
        "cpu_frequency",
        "refused",
        {"governor": "performance", "max": "4GHz", "turbo": False, "max_cstate": None},
        {"driver": "intel_pstate", "policies": {f"policy{n}": {"governor": "powersave"} for n in range(16)}},
        {"driver": "intel_pstate", "policies": {f"policy{n}": {"governor": "performance"} for n in range(16)}},
        True,
        "turbo: only root may write intel_pstate/no_turbo",
        detail="EACCES",
        fix=SUDO,
        parts=(*parts, turbo),
    )


STEPS = (
    StepRecord("env", "applied", {"PYTHONHASHSEED": "37"}, {"PYTHONHASHSEED": None}, {"PYTHONHASHSEED": "37"}, True),
    StepRecord("cpu_idle", "already", {"wait": "2m", "max_busy": "60%", "of_cores": "25%", "over": "2s"}, None, _QUIET),
    StepRecord(
        "gpu_idle",
        "failed",
        {"wait": "5m", "over": "1s", "max_utilization": "5%", "max_memory": "500MiB", "allow": []},
        before={"gpus": [{**_GPU, "index": 1}, {**_BUSY, "index": 3}], **_NO_DISPLAY},
        verified={"gpus": [{**_GPU, "index": 1}, {**_BUSY, "index": 3}], **_NO_DISPLAY},
        reason="GPU 3: used by pid 4711 (bob, python x.py, 11,730 MiB)",
        fix="wait for it, or run on another GPU with CUDA_VISIBLE_DEVICES",
    ),
    StepRecord(
        "gpu_clocks",
        "clamped",
        {"graphics": "1600MHz", "memory": None, "persistence": True},
        {"gpus": {u: {"gpu": n, "graphics_mhz": 210, "max_graphics_mhz": 1980} for n, u in enumerate(UUIDS)}},
        {"gpus": {u: {"gpu": n, "graphics_mhz": 1530} for n, u in enumerate(UUIDS)}},
        True,
        "GPU 0-1 graphics: 1600 MHz is no clock of this GPU, the nearest is 1530 MHz",
        {
            u: {"gpu": n, "samples": 40, "held_down_pct": {"sw_power_cap": 25.0},
                "graphics_mhz": {"wanted": 1530, "min": 1515, "median": 1530, "max": 1530}}
            for n, u in enumerate(UUIDS)
        },
        {"gpus": {u: {"gpu": n, "graphics_mhz": 210} for n, u in enumerate(UUIDS)}},
        detail="1530 MHz",
        parts=(
            Part("GPU 0 persistence", "already", detail="on"),
            Part("GPU 1 persistence", "applied", restored=True),
            *(
                Part(f"GPU {n} graphics", "clamped", restored=True, detail="1530 MHz",
                     reason=f"GPU {n} graphics: 1600 MHz is no clock of this GPU, the nearest is 1530 MHz")
                for n in (0, 1)
            ),
        ),
    ),
    _frequency(),
    StepRecord(
        "wait_cool",
        "not_available",
        {"wait": "5m", "gpu": "50C", "cpu": None},
        reason="this machine has no thermal zone that it tells of",
    ),
    StepRecord("shell", "drifted", "gdm stopped", "running", "running", False, "something started it again"),
)  # fmt: skip


def _tables() -> Sequence[Table]:
    usual = (_stacks(), _functions(), _syscalls(), _paths(), _os_calls(), _kernels(), _events(), _runs())
    gpu = (_utilization(), _gaps(), _gpu_time(), _gpu_kernels(), _transfers(), _profiles(), _rules(), _host_time())
    return (*usual, _steps(), _torch_ops(), _memory(), _samples(), _counters(), *gpu)


NSYS, NCU = "05-profiled-nsys", "06-profiled-ncu"


def _of(name: str, capture: str, rows: Sequence[dict[str, Any]]) -> Table:
    """A table from rows that name only what they know."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return Table(name, {"capture": [capture] * len(rows), **{k: [row.get(k) for row in rows] for k in keys}})


def _utilization() -> Table:
    """Two GPUs: one mostly busy, with communication and copies; one of which little is known."""
    ms = 1_000_000
    known = {
        "pid": 4711, "device": 0, "gpu": "NVIDIA H100 80GB HBM3", "start_ns": STARTED_NS, "span_ns": 4000 * ms,
        "busy_ns": 2800 * ms, "idle_ns": 1200 * ms, "kernel_ns": 2600 * ms, "transfer_ns": 500 * ms,
        "communication_ns": 700 * ms, "exposed_transfer_ns": 200 * ms, "exposed_communication_ns": 400 * ms,
        "overlapped_ns": 500 * ms, "concurrency": 1.18, "max_concurrency": 3, "kernels": 18240, "graphs": 0,
        "transfers": 412, "streams": 3, "gaps": 5120, "queue_mean": 3.4, "queue_max": 211, "queue_empty_ns": 900 * ms,
    }  # fmt: skip
    unlike = {"device": 1, "span_ns": 4000 * ms, "busy_ns": 40 * ms, "idle_ns": 3960 * ms, "kernel_ns": 40 * ms}
    return _of("gpu_utilization", NSYS, [known, unlike])


def _gaps() -> Table:
    ms = 1_000_000
    host = {"pid": 4711, "device": 0, "before": "ampere_sgemm_128x64_tn", "after": EVIL, "thread": 4711, "kind": "host"}
    told = {"cause": "data", "phase": "data", "python": f"{QUOTES} (/home/ada/project/data.py:17)", "syscall": "read",
            "path": f"/data/{EVIL}", "told_by": "p09-py-spy,p10-strace"}  # fmt: skip
    return _of(
        "gpu_gaps",
        NSYS,
        [
            {**host, "start_ns": STARTED_NS + (i * 400 + 100) * ms, "duration_ns": (80 + i) * ms,
             "launched_ns": 79 * ms, "range": f"step {i}" if i % 3 else None, "os_call": "read",
             "os_call_ns": (70 + i) * ms, **told}
            for i in range(9)
        ]
        + [
            {**host, "start_ns": STARTED_NS + 3_800 * ms, "duration_ns": 30 * ms, "api": "cudaStreamSynchronize",
             "api_ns": 29 * ms, "cause": "sync", "python": "item (/home/ada/project/train_cnn.py:91)"},
            {**host, "start_ns": STARTED_NS + 3_900 * ms, "duration_ns": 2 * ms, "kind": "queued", "launched_ns": -9,
             "cause": "between"},
        ],
    )  # fmt: skip


def _gpu_time() -> Table:
    """One of the two GPUs, its window a little shorter than the span of its work."""
    ms = 1_000_000
    spent = {"busy": 2700, "copying": 150, "communicating": 350, "data": 760, "sync": 30, "between": 2, "host": 208}
    whole = {"pid": 4711, "device": 0, "window_ns": 3700 * ms, "window": "the steady steps",
             "start_ns": STARTED_NS + 100 * ms, "queue": "dense with gaps"}  # fmt: skip
    return _of("gpu_time", NSYS, [{**whole, "state": s, "total_ns": n * ms, "count": 9} for s, n in spent.items()])


def _gpu_kernels() -> Table:
    """Work on two streams between the long gaps of the first GPU."""
    ms, rows = 1_000_000, []
    for i in range(9):
        for k in range(40):
            start = STARTED_NS + (i * 400 + 190 + 7 * k) * ms
            if start < STARTED_NS + 4_000 * ms:
                rows += [{"start_ns": start, "duration_ns": 5 * ms, "stream": 7, "name": "ampere_sgemm_128x64_tn"}]
                rows += [{"start_ns": start + 3 * ms, "duration_ns": 3 * ms, "stream": 13, "name": EVIL}]
    return _of("gpu_kernels", NSYS, [{"pid": 4711, "device": 0, **row} for row in rows])


def _host_time() -> Table:
    """The main thread's steady steps, those before them, and another thread's."""
    ms, demo = 1_000_000, "/home/ada/project/scripts/demo"
    main = {"pid": 4242, "tid": 4242, "thread": "MainThread", "role": "main", "part": "steady", "part_ns": 3000 * ms}
    known = (
        ("native", "forward", "CNN.forward", 41, "Conv2d.forward", "convolution (libtorch_cpu.so)", 1100),
        ("native", "backward", "train", 88, "Tensor.backward", "_engine_run_backward", 640),
        ("file", "checkpoint", "save", 61, "torch.save", "fsync (libc.so.6)", 560),
        ("python", "data", QUOTES, 17, None, None, 260),
        ("python", None, LONG, None, None, None, 40),
        ("gil", "data", EVIL, 9, None, None, 90),
        ("lock", None, "train", 90, "Queue.get", None, 60),
        ("unknown", None, None, None, None, None, 33),
    )
    columns = ("state", "phase", "function", "line", "below", "native")
    rows = [
        {
            **main,
            **dict(zip(columns, row[:-1], strict=True)),
            "file": row[2] and f"{demo}/train_cnn.py",
            "behind": "prefetch" if row[0] == "gil" else None,
            "samples": row[-1] // 10,
            "total_ns": row[-1] * ms,
        }
        for row in known
    ]
    warm = {**rows[0], "part": "warm-up", "part_ns": 900 * ms}
    return _of("host_time", "p09-py-spy", [*rows, warm, {**rows[0], "role": "thread", "tid": 4250}])  # fmt: skip


def _transfers() -> Table:
    kinds = {
        "[CUDA memcpy HtoD]": (4_100_000_000, 320_000_000, 3_900_000_000),
        "[CUDA memset]": (9_000_000, 90_000, None),
    }
    return _of(
        "gpu_transfer_summary",
        NSYS,
        [
            {"name": name, "count": 206, "total_ns": spent, "bytes": size, "pageable_bytes": loose}
            for name, (size, spent, loose) in kinds.items()
        ],
    )


def _profiles() -> Table:
    """A pooling kernel with too small a grid, one at the roof, and one that failed."""
    pool = "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, int>(int, float const*, long, long)"
    known = {
        "launch": 0, "kernel": pool, "grid": "20,1,1", "block": "256,1,1", "gpu": "NVIDIA H100 80GB HBM3",
        "bound": "latency", "duration_ns": 6_200.0, "sm_pct": 4.1, "memory_pct": 9.7, "dram_pct": 2.2, "l1_pct": 21.0,
        "l2_pct": 5.0, "tensor_pct": 0.0, "dram_bytes": 1_230_000.0, "flops": 2_000_000.0, "flops_per_byte": 1.6,
        "ridge_flops_per_byte": 20.0, "roof_pct": 6.5, "achieved_occupancy_pct": 11.3,
        "theoretical_occupancy_pct": 75.0,
        "occupancy_limit": "registers", "blocks": 20, "threads": 5120, "sms": 132, "waves": 0.025, "registers": 40,
        "static_shared_bytes": 0, "dynamic_shared_bytes": 16384,
    }  # fmt: skip
    dense = {**known, "launch": 1, "kernel": LONG, "bound": "compute", "duration_ns": 812_000.0, "sm_pct": 91.0,
             "flops_per_byte": 180.0, "roof_pct": 88.0, "blocks": 4096, "waves": 31.0, "tensor_pct": 84.0}  # fmt: skip
    return _of("kernel_profiles", NCU, [known, dense, {"launch": 2, "kernel": EVIL}])


def _rules() -> Table:
    text = "The grid is smaller than the GPU. See Launch Statistics."
    rule = {"launch": 0, "kernel": "max_pool", "section": "LaunchStats", "rule": "LaunchConfiguration"}
    return _of(
        "kernel_rules",
        NCU,
        [
            {**rule, "kind": "ok", "message": "nothing wrong"},
            {**rule, "kind": "optimization", "message": text, "speedup_pct": 84.8},
            {**rule, "kind": "warning", "message": EVIL},
        ],
    )


def _stacks() -> Table:
    torch, demo = f"{PYTHON}/site-packages/torch", "/home/ada/project/scripts/demo"
    main = f"<module> ({demo}/train_cnn.py:120)"
    boot = f"{main};_find_and_load (<frozen importlib._bootstrap>:1176)"
    loop = f"{main};train ({demo}/train_cnn.py:88)"
    call = f"Module._call_impl ({torch}/nn/modules/module.py:1787)"
    forward = f"{loop};{call};CNN.forward ({demo}/train_cnn.py:41);{call}"
    convolve = f"{forward};Conv2d.forward ({torch}/nn/modules/conv.py:553)"
    step = f"{loop};wrapper ({torch}/optim/optimizer.py:533);SGD.step ({torch}/optim/sgd.py:124)"
    wait = f"Thread._bootstrap ({PYTHON}/threading.py:1002);Condition.wait ({PYTHON}/threading.py:327)"
    heavy = {
        f"{convolve};_conv_forward ({torch}/nn/modules/conv.py:548);at::native::convolution (libtorch_cpu.so)": 74,
        f"{forward};Linear.forward ({torch}/nn/modules/linear.py:134);addmm (libtorch_cpu.so)": 31,
        f"{forward};relu ({torch}/nn/functional.py:1704)": 11,
        f"{loop};backward ({torch}/_tensor.py:648);_engine_run_backward ({torch}/autograd/graph.py:865)": 96,
        f"{step};_multi_tensor_sgd ({torch}/optim/sgd.py:465)": 18,
        f"{step};zero_grad ({torch}/optim/optimizer.py:1020)": 3,
        f"{loop};synthetic_batch ({demo}/data.py:17);randn (libtorch_cpu.so)": 12,
        f"{boot};_load_unlocked (<frozen importlib._bootstrap>:690);<module> ({torch}/__init__.py:2100)": 40,
        f"{boot};{EVIL} (/home/ada/project/{EVIL}.py:1)": 4,
        f"{main};{QUOTES} (/home/ada/project/odd names.py:7);{BIDI}": 6,
        f"{main};{LONG}": 9,
        main: 1,
    }
    hook, leaf = "callback_{0} (/home/ada/project/hooks.py:{0})", "leaf_{0} (" + PYTHON + "/json/encoder.py:{0})"
    wide = {f"{loop};{hook.format(i % 40)};{leaf.format(i)}": 1 + i % 3 for i in range(600)}
    deep = {";".join([loop, *(f"recurse (/home/ada/project/tree.py:{i})" for i in range(90))]): 5}
    rows = [("MainThread", "wall", s, n) for s, n in (heavy | wide | deep).items()]
    rows += [(f"Worker {i}; <b>", "wall", wait, 160) for i in (1, 2)]
    rows += [("MainThread", "gil", s, n // 2 + 1) for s, n in heavy.items()]
    columns = ("capture", "pid", "process", "thread", "kind", "stack", "samples", "weight_ns")
    full = [("p09-py-spy", 4242, "python train_cnn.py", t, k, s, n, n * 10_000_000) for t, k, s, n in rows]
    return Table.of("stacks", full, columns)


def _functions() -> Table:
    columns = (
        "capture",
        "pid",
        "thread",
        "kind",
        "function",
        "file",
        "line",
        "self_samples",
        "total_samples",
        "self_pct",
        "total_pct",
    )
    named = [
        ("_engine_run_backward", f"{PYTHON}/site-packages/torch/autograd/graph.py", 865, 96, 96),
        ("at::native::convolution", "libtorch_cpu.so", None, 74, 74),
        (EVIL, f"/home/ada/project/{EVIL}.py", 1, 4, 4),
        (QUOTES, "/home/ada/project/odd names.py", 7, 0, 6),
        (LONG, None, None, 9, 9),
        (BIDI, None, None, 6, 6),
        ("train", "/home/ada/project/scripts/demo/train_cnn.py", 88, 1, 245),
        ("counted nowhere", "x.py", 3, None, None),
    ]
    named += [(f"leaf_{i}", f"{PYTHON}/json/encoder.py", i, 1 + i % 3, 1 + i % 3) for i in range(600)]
    whole = 1830  # samples of the wall stacks above
    rows = [
        (
            "p09-py-spy",
            4242,
            "MainThread",
            "wall",
            f,
            file,
            line,
            own,
            total,
            own and 100 * own / whole,
            total and 100 * total / whole,
        )
        for f, file, line, own, total in named
    ]
    return Table.of("functions", rows, columns)


def _syscalls() -> Table:
    columns = ("capture", "name", "class", "count", "errors", "total_ns", "mean_ns", "min_ns", "max_ns", "time")
    known = [
        ("futex", "futex", 8_123, 41, 2_104_331_002),
        ("fsync", "desc", 200, 0, 1_310_044_120),
        ("read", "desc", 12_044, 0, 210_000_311),
        ("openat", "file", 3_301, 1_902, 88_120_004),
        ("newfstatat", "file", 9_120, 2_011, 70_551_300),
        ("mmap", "memory", 1_401, 0, 21_331_400),
        ("clone3", "process", 12, 0, 2_031_000),
        ("sendto", "network", 4, 0, 31_000),
        ("rt_sigaction", "other", 68, None, 9_120),
        ("restart_syscall", "other", 1, 1, None),
    ]
    rows = [
        (
            "p10-strace",
            name,
            group,
            count,
            errors,
            total,
            total and total / count,
            total and total // count // 3,
            total and total // 7,
            "wall",
        )
        for name, group, count, errors, total in known
    ]
    return Table.of("syscalls", rows, columns)


def _paths() -> Table:
    rows = [
        ("p10-strace", "/home/ada/project/ckpt.bin", 400, 0, 1_310_044_120, 81_920_000, "fsync,write"),
        ("p10-strace", f"/home/ada/{QUOTES}", 3, 3, 41_000, None, "openat"),
        ("p10-strace", EVIL, 1, 1, 9_000, 0, "openat"),
    ]
    return Table.of("syscall_paths", rows, ("capture", "path", "count", "errors", "total_ns", "bytes", "names"))


def _summary(table: str, capture: str, rows: Sequence[tuple[str, int, int]]) -> Table:
    columns = ("capture", "name", "count", "total_ns", "mean_ns", "median_ns", "min_ns", "max_ns", "stddev_ns")
    full = [
        (capture, n, c, t, t / c, t / c * 0.8, t // c // 4, t // 3, t / c / 7 if c > 1 else None) for n, c, t in rows
    ]
    return Table.of(table, full, columns)


def _os_calls() -> Table:
    rows = [
        ("pthread_cond_wait", 812, 9_310_220_117),
        ("poll", 31, 5_002_113_000),
        ("fopen64", 201, 12_331_041),
        ("open64", 1, 4_120),
    ]
    return _summary("os_calls_summary", "p11-nsys", rows)


def _kernels() -> Table:
    return _summary(
        "gpu_kernel_summary",
        "p11-nsys",
        [(LONG, 400, 812_331_000), ("ampere_sgemm_128x64_tn", 800, 512_110_400), (EVIL, 2, 6_100)],
    )


def _events() -> Table:
    columns = ("capture", "pid", "thread", "start_ns", "duration_ns", "name", "args", "result")
    rows = [
        (
            "p10-strace",
            4242,
            4242 + i % 3,
            STARTED_NS + i * 13_000_001,
            9_000_000 - i * 30_000,
            "fsync",
            f"{3 + i}</home/ada/ckpt.bin>",
            "0",
        )
        for i in range(80)
    ]
    return Table.of("syscall_events", rows, columns, clock="epoch")


def _runs() -> Table:
    columns = (
        "capture",
        "pass_id",
        "role",
        "repeat",
        "started_ns",
        "wall_s",
        "user_s",
        "sys_s",
        "max_rss_bytes",
        "exit_status",
    )
    rows = [
        (
            f"p0{i + 1}-timing",
            f"p0{i + 1}",
            "bare",
            i,
            STARTED_NS + i * 4_000_000_000,
            w,
            2.9,
            0.21,
            412_000_000 + i * 1000,
            0,
        )
        for i, w in enumerate(WALLS, 1)
    ]
    return Table.of("runs", rows, columns, clock="epoch")


def _steps() -> Table:
    """Three bare runs and one under a profiler: 14 slow steps, a checkpoint every 50, an evaluation every 80."""
    columns = (
        "capture",
        "pid",
        "kind",
        "step",
        "start_ns",
        "duration_ns",
        "data_wait_ns",
        "forward_ns",
        "backward_ns",
        "optimizer_ns",
        "zero_grad_ns",
        "checkpoint_ns",
        "evaluation_ns",
        "cpu_ns",
        "warmup",
        "profiled",
        "stall",
    )
    rows = []
    for run in (2, 3, 4, 9):
        start = STARTED_NS + run * 4_000_000_000
        for i in range(200):
            forward, backward = 4_100_000 + 37_000 * (i * 7 % 11), 7_000_000 + 53_000 * (i * 5 % 13)
            slow = 1 + 9 * 0.7**i if i < 14 else 1.0
            checkpoint, evaluation = (88_000_000 if i % 50 == 49 else 0), (45_000_000 if i % 80 == 79 else 0)
            work = int((forward + backward) * slow) + run * 20_000
            took = work + 2_100_000 + checkpoint + evaluation
            stall = "checkpoint" if checkpoint else "evaluation" if evaluation else None
            usual = (None, int(forward * slow), int(backward * slow), 1_050_000, 150_000, checkpoint, evaluation)
            seen = run == 9 and 20 <= i < 30
            more = (int(took * 1.7), i < 14, seen, None if seen else stall)
            name = "p09-py-spy" if run == 9 else f"p0{run}-timing"
            rows.append((name, 4240 + run, "train", i, start, took, *usual, *more))
            start += took
    return Table.of("steps", rows, columns, clock="epoch")


def _torch_ops() -> Table:
    columns = (
        "capture",
        "pid",
        "name",
        "device",
        "input_shapes",
        "count",
        "cpu_total_ns",
        "cpu_self_ns",
        "gpu_total_ns",
        "gpu_self_ns",
        "cpu_self_memory_bytes",
        "gpu_self_memory_bytes",
    )
    back = "aten::convolution_backward"

    def gpu(ms: int) -> tuple[int, int]:
        return ms * 1_000_000, ms * 1_000_000

    known = [
        ("ProfilerStep*", "cpu", None, 10, 146_000_000, 21_000_000, 91_000_000, 0, 0, 0),
        (back, "cpu", "[[32, 1, 28, 28]]", 20, 31_000_000, 29_000_000, *gpu(40), 0, 9_000_000),
        (back, "cpu", "[[32, 20, 12, 12]]", 20, 11_000_000, 9_000_000, *gpu(20), 0, 1_000_000),
        ("aten::addmm", "cpu", "[[500]]", 20, 8_000_000, 7_500_000, 31_000_000, 31_000_000, 0, 64_000),
        (EVIL, "cpu", None, 1, 1_000_000, 1_000_000, 0, 0, None, None),
        ("wgrad_alg0_engine", "cuda", None, 40, 0, 0, 60_000_000, 60_000_000, 0, 0),
    ]  # fmt: skip
    return Table.of("torch_ops", [("p09-py-spy", 4249, *row) for row in known], columns)


def _memory() -> Table:
    """Ten steps that each take three blocks and give them back, on top of what was there before."""
    columns = (
        "capture",
        "rank",
        "pid",
        "thread",
        "time_ns",
        "device",
        "address",
        "bytes",
        "allocated_bytes",
        "reserved_bytes",
        "op",
    )
    rows, held, now = [], 41_000_000, STARTED_NS
    blocks = [(4096, 14_745_600, "aten::convolution"), (8192, 4_096_000, "aten::addmm"), (16384, 1_000_000, None)]
    for _ in range(10):
        for sign, order in ((1, blocks), (-1, blocks[::-1])):
            for address, size, op in order:
                held += sign * size
                now += 2_300_000
                rows.append(("p09-py-spy", 0, 4249, 4249, now, "cuda:0", address, sign * size, held, 67_108_864, op))
    return Table.of("memory", rows, columns, clock="epoch")


def _samples() -> Table:
    rows: list[tuple[Any, ...]] = []
    for i in range(300):
        now = STARTED_NS + i * 10_000_000
        rows += [
            ("p10-strace", now, "tree", "", "cpu_pct", 140 + 60 * math.sin(i / 9)),
            ("p10-strace", now, "tree", "", "rss_bytes", 4e8 * min(1, i / 80) + 1e6 * (i % 7)),
            ("p10-strace", now, "host", "", "cpu_pct", 31 + 8 * math.sin(i / 5)),
            ("p10-strace", now, "core", "0", "cpu_pct", 50.0),
        ]
        for gpu in ("GPU-8b6f1c0e-5d2a-4c1e-9f53-0c1b7a2d3e4f", "GPU-1a2b3c4d-aaaa-bbbb-cccc-0123456789ab"):
            busy = 88.0 if i % 60 > 8 else 3.0
            rows += [
                ("p10-strace", now, "gpu", gpu, "gpu_util_pct", busy),
                ("p10-strace", now, "gpu", gpu, "memory_used_bytes", 2.1e10 * min(1, i / 40)),
                ("p10-strace", now, "gpu", gpu, "power_w", 90 + 5 * busy),
                ("p10-strace", now, "gpu", gpu, "sm_clock_mhz", 1980.0 if busy > 50 else 345.0),
            ]
    rows.append(("p10-strace", STARTED_NS, "gpu", "GPU-1a2b3c4d-aaaa-bbbb-cccc-0123456789ab", "memory_clock_mhz", None))
    return Table.of(
        "samples", rows, clock="epoch", columns=("capture", "time_ns", "source", "subject", "metric", "value")
    )


def _counters() -> Table:
    rows = [
        ("p10-strace", "task-clock", 4289.09, "msec", 100.0, None, 1.33, "CPUs utilized"),
        ("p10-strace", "context-switches", 1119.0, None, 100.0, None, 260.895, "/sec"),
        ("p10-strace", "cycles", 12_044_331_902.0, None, 83.3, None, 2.81, "GHz"),
        ("p10-strace", "branch-misses", None, None, None, None, None, None),
    ]
    columns = ("capture", "event", "value", "unit", "running_pct", "variance_pct", "metric", "metric_unit")
    return Table.of("counters", rows, columns)
