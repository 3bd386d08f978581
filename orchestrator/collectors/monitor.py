"""monitor: what the host, the target's processes and the GPUs do over time, read at an interval by a sampler of our
own that runs beside the target."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from orchestrator import gpus, launching, sampler
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.errors import ParseError
from orchestrator.model import Beside, Capture, Check, Clock, Expect, Job, Launch, Sign, Tool, When
from orchestrator.units import Duration, Size

if TYPE_CHECKING:
    from orchestrator.machine import Machine

LEAST_S = 0.01
"""Processors count their time in ticks of 10 ms."""
MAPS_EVERY = 10
"""Of running processes the memory maps are read at each such reading: the kernel walks through all their pages."""
_FILE = "samples.jsonl"
_BINDINGS = "nvidia-ml-py"


class Monitor(Collector):
    """Samples the host, the target's process tree and the GPUs."""

    use: Literal["monitor"] = "monitor"
    interval: Duration = Field(0.2, description="time between two readings; 10 ms or more")
    processes: bool = Field(True, description="each process of the target: CPU, memory, IO, context switches, faults")
    per_core: bool = Field(True, description="each processor by itself")
    gpus: bool | Literal["auto"] = Field(
        "auto", description="true: a capture without GPUs is degraded; auto: those that are there; false: none"
    )
    size_cap: Size | None = Field(200 << 20, description="stop when the file has grown to this; the target goes on")

    flush: Duration = Field(3.0, description="how long the sampler may take to end: all it had is in its file by then")

    purpose: ClassVar[str] = (
        "CPU, memory, IO, pressure of the host and of each process; GPUs' use, memory, clocks, power; over time"
    )
    slowdown: ClassVar[float] = 1.01
    from_afar: ClassVar[bool] = True

    @field_validator("interval")
    @classmethod
    def _long_enough(cls, value: float) -> float:
        if value < LEAST_S:
            raise ValueError("write 10ms or more: processors count their time in ticks of 10 ms")
        return value

    # ------------------------------------------------------------ before

    def tool(self, machine: Machine) -> Tool:
        """The sampler is profrun's own; the tool is what it asks where NVML does not answer."""
        path = machine.find(gpus.SMI) if self.gpus else None
        return Tool(gpus.SMI.name, path, machine.gpu_look.driver if path else None)

    def checks(self, machine: Machine) -> list[Check]:
        what = [
            "host",
            *(["processors"] if self.per_core else []),
            *(["processes"] if self.processes else []),
            *([] if machine.read("proc/pressure/cpu") is None else ["pressure"]),
        ]
        found = Check(self.use, "ok", f"{', '.join(what)} every {1000 * self.interval:g} ms")
        return [found, *([self._gpu_check(machine)] if self.gpus else [])]

    def _gpu_check(self, machine: Machine) -> Check:
        """What can be foreseen, from the one look that profrun takes anyhow."""
        found = machine.gpu_look
        if not found.gpus:
            said = f"no GPU is sampled: {found.why_not or 'there is none'}"
            fix = "set gpus: false where there is none" if self.gpus is True else None
            return Check(self.use, "warn" if self.gpus is True else "ok", said, fix)
        if found.through == "NVML":
            return Check(self.use, "ok", "GPUs through NVML")
        fix = f"{sys.executable} -m pip install {_BINDINGS}"
        return Check(self.use, "ok", f"GPUs through nvidia-smi; PCIe traffic needs {_BINDINGS}", fix)

    def launch(self, job: Job) -> Launch:
        when: When = "window" if job.window else "start" if job.pids else "gate"
        output = f"{job.dir}/{_FILE}"
        pids = ",".join(map(str, job.pids)) or "{pid}"
        argv = (
            *(sys.executable, "-I", str(Path(sampler.__file__).parent), "--pids", pids, "--output", output),
            *("--interval", f"{self.interval:g}", "--parent", str(os.getpid())),
            *(("--gated",) if when == "gate" else ()),
            *(("--ranks", ",".join(launching.RANKS)) if self.processes else ()),
            *(("--maps-every", str(MAPS_EVERY)) if self.processes and job.pids else ()),
            *(() if self.processes else ("--no-processes",)),
            *(() if self.per_core else ("--no-cores",)),
            *((() if job.tool.path is None else ("--nvidia-smi", job.tool.path)) if self.gpus else ("--no-gpus",)),
        )
        beside = Beside(
            argv, when, ready="file", ready_value=output, grace_s=self.flush, size_cap_bytes=self.size_cap,
            size_path=_FILE,
        )  # fmt: skip
        return Launch(
            beside=(beside,),
            artifacts=(
                Expect("samples", _FILE, "profrun-monitor"),
                Expect("log", "*stderr.log", "text", required=False),
            ),
            signs=(Sign(r"(?m)^(\w*Error: .+)", "tool_failed", "the sampler failed: {0}"),),
        )

    # ------------------------------------------------------------ after

    def parse(self, capture: Capture) -> Parsed:
        from orchestrator.formats.monitor import read_samples

        path = capture.path("samples")
        if path is None:
            raise ParseError(f"the sampler left no {_FILE}")
        run = capture.run
        ranks = {one.pid: one.rank for one in run.attached} if run else {}
        found = read_samples(path, capture.started_ns, capture.ended_ns, run.pid if run else None, ranks)
        if not len(found.table):
            why = "no reading lies within the run: it was too short, or the wall clock was set meanwhile"
            return Parsed((), found.notes, "empty", why)
        error_ns = found.table.clock_error_ns
        clock = None if error_ns is None else Clock(0, 1.0, error_ns, "Unix time before each reading")
        whole = Parsed((found.table,), found.notes, metrics=found.metrics, clock=clock)
        if found.damage:
            return replace(whole, status="degraded", reason=found.damage)
        if self.gpus is True and not found.gpus:
            return replace(whole, status="degraded", reason="no GPU could be read")
        return whole
