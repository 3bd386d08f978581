"""Collector `ncu`: NVIDIA Nsight Compute around the target: the hardware counters of single kernels, and its advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from orchestrator.collectors.base import Collector, Parsed
from orchestrator.model import Capture, Check, Child, Expect, Job, Launch, Sign, ToolProbe, Wrap

if TYPE_CHECKING:
    from orchestrator.machine import Machine

BASIC = ("LaunchStats", "Occupancy", "SpeedOfLight")
"""The sections of the basic set, which older versions call `default`: named where it does not come by itself."""

COUNTERS_FIX = (
    "on the host, as root, write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d/profiling.conf and reboot; or give the container --cap-add=SYS_ADMIN"
)


_TIMED_WINDOW = "a window in time does not apply to ncu: it takes the first launches that match (one in steps does)"


class Ncu(Collector):
    """Runs the target under `ncu`, which replays each chosen kernel until all counters are collected."""

    use: Literal["ncu"]
    set: str = Field(
        "basic",
        min_length=1,
        description="section set: basic, detailed, full, ...; none: only `sections` and `metrics`",
    )
    sections: tuple[str, ...] = Field(
        (), description="sections beside the set, such as SourceCounters or regex:Memory.*"
    )
    metrics: tuple[str, ...] = Field((), description="metrics beside the set, such as sm__cycles_elapsed.avg")
    kernels: str | None = Field(None, min_length=1, description="only kernels whose function name matches this regex")
    launches: int = Field(10, ge=1, description="how many launches to look at; each is replayed several times")
    skip: int = Field(0, ge=0, description="how many matching launches to let pass first")
    range: str | None = Field(
        None,
        description="only kernels launched inside this NVTX range, by the thread that pushed it, in ncu's form: "
        "`step 7/` (a step), `train.py:forward/` (one of the plan's ranges)",
    )
    replay: Literal["kernel", "application", "range"] = Field(
        "kernel",
        description="what is repeated; kernels that wait for the host or for peers (NCCL) hang in kernel replay",
    )
    clock_control: Literal["base", "none"] = Field(
        "base", description="base: ncu locks the clocks to their base; none: they are left to the plan's gpu_clocks"
    )
    cache_control: Literal["all", "none"] = Field("all", description="all: caches are flushed before each replay")

    probe: ClassVar[ToolProbe | None] = ToolProbe(
        name="ncu",
        version_regex=r"Version (\d+(?:\.\d+)+)",
        places=(
            "/opt/nvidia/nsight-compute/*/ncu",
            "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Compute/ncu",
            "/usr/local/cuda-*/bin/ncu",
        ),
        install="apt-get install nsight-compute (Debian: non-free), or https://developer.nvidia.com/nsight-compute",
    )
    claims: ClassVar[frozenset[str]] = frozenset({"cupti"})
    purpose: ClassVar[str] = "hardware counters, occupancy and advice for single kernels"
    slowdown: ClassVar[float] = 20.0
    raw_bytes: ClassVar[int] = 16 << 20
    can_attach: ClassVar[bool] = False

    def checks(self, machine: Machine) -> list[Check]:
        """The tool, and a GPU for it to look at."""
        found = super().checks(machine)
        if self.tool(machine).path and not machine.gpus:
            message = "no NVIDIA GPU here: the target will run, no kernel can be seen"
            found.append(Check("ncu", "warn", message, "run it on a machine with a GPU, or leave ncu out"))
        return found

    def launch(self, job: Job) -> Launch:
        by_steps = job.window is not None and job.window.steps is not None
        log = f"{job.dir}/ncu.log"  # its messages would otherwise stand among the target's output
        argv = (
            job.tool.path or "ncu",
            *("--target-processes", "all"),
            *("--export", f"{job.dir}/report", "--force-overwrite", "--log-file", log),
            *self._what(),
            *self._which(),
            # our part in the target's Python switches it on at the window's first step, in all threads at once: an NVTX
            # range would leave out what autograd's threads launch
            *(("--profile-from-start", "off") if by_steps else ()),
            *("--replay-mode", self.replay),
            *("--clock-control", self.clock_control, "--cache-control", self.cache_control),
        )
        return Launch(
            wrap=Wrap(argv, order=10),
            # else ncu writes its section files into the user's home
            child=Child(
                {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"},
                inject={"nvtx": by_steps or bool(self.range), "cuda_profiler": by_steps},
            ),
            artifacts=(
                Expect("report", "report.ncu-rep", "ncu-rep", holds_env=True),
                Expect("log", "ncu.log", "text", required=False),
            ),
            signs=self._signs(),
            notes=(_TIMED_WINDOW,) if job.window and not by_steps else (),
        )

    def _what(self) -> tuple[str, ...]:
        """What to collect of a kernel."""
        basic = self.set in ("basic", "default")
        named = (*BASIC, *self.sections) if basic and (self.sections or self.metrics) else self.sections
        set_ = () if basic or self.set == "none" else ("--set", self.set)
        sections = (word for section in named for word in ("--section", section))
        return (*set_, *sections, *(("--metrics", ",".join(self.metrics)) if self.metrics else ()))

    def _which(self) -> tuple[str, ...]:
        """Which kernels to look at."""
        name = ("--kernel-name", f"regex:{self.kernels}") if self.kernels else ()
        inside = ("--nvtx", "--nvtx-include", self.range) if self.range else ()
        return (*name, *inside, "--launch-skip", str(self.skip), "--launch-count", str(self.launches))

    def _signs(self) -> tuple[Sign, ...]:
        """What ncu prints when there is no report; it ends with 0 when it saw no kernel."""
        chosen = f"kernels matching {self.kernels!r}" if self.kernels else "all kernels"
        looked = f"It looked for {chosen}, {self.launches} from number {self.skip} on, in all processes"
        looked = looked.replace("{", "{{").replace("}", "}}")
        return (
            Sign(r"(ERR_NVGPUCTRPERM)", "blocked", f"{{0}}: the GPU's counters are not allowed here; {COUNTERS_FIX}"),
            Sign(r"(==ERROR== (?!The application returned).+)", "tool_failed", "ncu says: {0}"),
            Sign(r"unrecognised option '([^']+)'", "tool_failed", "this version of ncu has no option {0}"),
            Sign(
                r"No metrics to collect found in sections",
                "tool_failed",
                f"this version of ncu has nothing for set {self.set}, sections {', '.join(self.sections) or 'none'}",
            ),
            Sign(r"(No kernels were profiled\.)\s*==WARNING== (.+)", "empty", f"ncu says: {{0}} {{1}} {looked}"),
            Sign(r"(No kernels were profiled\.)", "empty", f"ncu says: {{0}} {looked}"),
        )

    def parse(self, capture: Capture) -> Parsed:
        """Tables `kernel_metrics` and `kernel_rules`. Without a report the run has already said why, and that stays."""
        from orchestrator.formats import ncu

        path = capture.path("report")
        if path is None:
            return Parsed()
        return Parsed(tuple(table for table in ncu.read(path) if len(table)))
