"""Collector `nsys`: NVIDIA Nsight Systems around the target: CUDA, GPU work, NVTX ranges, operating-system calls."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from pydantic import Field

from orchestrator.collectors.base import Collector, Parsed
from orchestrator.model import After, Beside, Capture, Check, Child, Expect, Job, Launch, Sign, Tool, ToolProbe, Wrap
from orchestrator.units import Duration

if TYPE_CHECKING:
    from orchestrator.machine import Machine

Trace = Literal[
    "cuda", "nvtx", "osrt", "cudnn", "cublas", "cublas-verbose", "cusparse", "cusparse-verbose", "cusolver",
    "cusolver-verbose", "mpi", "ucx", "oshmem", "opengl", "opengl-annotations", "openacc", "openmp", "vulkan",
    "vulkan-annotations", "nvvideo", "python-gil", "syscall", "none",
]  # fmt: skip
WITH_GPU: tuple[Trace, ...] = ("cuda", "nvtx", "osrt", "cudnn", "cublas")
WITHOUT_GPU: tuple[Trace, ...] = ("osrt", "nvtx")

Export = Literal["jsonlines", "parquetdir", "arrowdir"]
_PLACES: dict[Export, tuple[str, str]] = {
    "jsonlines": ("report.jsonl", "report.jsonl"),
    "parquetdir": ("report_parquet", "report_parquet/*"),
    "arrowdir": ("report_arrow", "report_arrow/*"),
}
"""Where each further export goes, and the glob of its files."""

_FLAGS = (
    "session-new", "trace", "wait", "show-output", "kill", "sample", "cpuctxsw", "output", "force-overwrite",
    "stop-on-exit", "capture-range", "capture-range-end", "nvtx-capture", "backtrace", "trace-fork-before-exec",
    "cuda-graph-trace", "gpu-metrics-device", "gpu-metrics-devices",
)  # fmt: skip
_GPU_METRICS = ("gpu-metrics-devices", "gpu-metrics-device")
"""The first since 2024."""
_IMPORTER = "QdstrmImporter"
_IMPORTER_PLACES = ("../host-*/QdstrmImporter", "QdstrmImporter", "../*/QdstrmImporter")
_SYSTEM_IMPORTERS = "usr/lib/nsight-systems/host-*/QdstrmImporter"

_WINDOW = """\
trap 'exit 0' INT TERM
trap 'kill $! 2>/dev/null; "$0" stop --session="$1"' EXIT
"$0" start --session="$@" || exit
echo recording
sleep 2147483647 & wait"""
"""Records as long as it lives: $0 nsys, $1 the session, then the options of `nsys start`. For the plan's window:
`--delay` knows only whole seconds, and after `--duration` nsys ends before the target and its exit status is lost."""


class Nsys(Collector):
    """Runs the target under `nsys profile` (with a window: `nsys launch`, `start`, `stop`) and exports to SQLite."""

    use: Literal["nsys"]
    trace: tuple[Trace, ...] | None = Field(
        None,
        min_length=1,
        description="what to trace; default: cuda, nvtx, osrt, cudnn, cublas, and osrt, nvtx where there is no GPU",
    )
    range: str | None = Field(
        None,
        min_length=1,
        description="record only inside this NVTX range: `name`, `name@domain` or `name@*`; it opens about 0.1 s late",
    )
    sample: Literal["none", "process-tree"] = Field(
        "none", description="CPU samples; without a GPU nsys often hangs when it takes them"
    )
    backtrace: Literal["lbr", "fp", "dwarf", "none"] | None = Field(
        None, description="how the stacks of CPU samples are found; default: nsys's own, for compiled code lbr"
    )
    fork: bool = Field(
        False,
        description="trace also what a process made by fork does before an exec, such as multiprocessing's workers; "
        "NVIDIA warns that a program may crash or hang under it",
    )
    graphs: Literal["graph", "node"] | None = Field(
        None,
        description="CUDA graphs: `graph` traces each launch as a whole, `node` shows its kernels, at a cost; default: "
        "graph with a driver that can",
    )
    without_gpu: Literal["trace", "skip"] = Field(
        "trace", description="on a machine without a GPU: trace what there is, or don't run"
    )
    gpu_metrics: bool = Field(
        False, description="sample the use of the GPU's units as well; needs permission for its counters"
    )
    export: tuple[Export, ...] = Field((), description="files to write beside the SQLite one, for other programs")
    flush: Duration = Field(120.0, description="how long nsys may take to write its data after the target has ended")

    probe: ClassVar[ToolProbe | None] = ToolProbe(
        name="nsys",
        help_args=("profile", "--help"),
        features=(
            *((flag, rf"--{flag}[=\s]") for flag in _FLAGS),
            *((f"trace={t}", rf"-t, --trace=(?:(?!Select the API)[\s\S])*?'{t}'") for t in get_args(Trace)),
            *((f"export={e}", rf"--export=(?:(?!\n\s*-)[\s\S])*?\b{e}\b") for e in get_args(Export)),
        ),
        places=(
            "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
            "/opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
            "/usr/local/cuda-*/bin/nsys",
            "/usr/lib/nsight-systems/bin/nsys",
        ),
        install="apt-get install nsight-systems (Debian: non-free), or https://developer.nvidia.com/nsight-systems",
    )
    claims: ClassVar[frozenset[str]] = frozenset({"cupti", "counters", "nvidia", "preload"})
    purpose: ClassVar[str] = "CUDA calls, kernels, copies, NVTX ranges, operating-system calls, on one timeline"
    slowdown: ClassVar[float] = 1.5
    raw_bytes: ClassVar[int] = 32 << 20
    can_attach: ClassVar[bool] = False

    def checks(self, machine: Machine) -> list[Check]:
        """The tool, what it can trace here, and the importer without which some installations leave no report."""
        found = super().checks(machine)
        tool = self.tool(machine)
        if tool.path is None:
            return found
        if not machine.gpus and self.without_gpu == "skip":
            return [Check("nsys", "missing", "no NVIDIA GPU here, and the plan wants nsys for one (without_gpu: skip)")]
        if not machine.gpus:
            found.append(_without_gpu(self.traces(False, tool)))
        unknown = [t for t in self.trace or () if not _offers(tool, t)]
        if unknown:
            found.append(Check("nsys", "warn", f"nsys {tool.version} can't trace {', '.join(unknown)}: left out"))
        lacking = self._lacking(tool)
        if lacking:
            found.append(Check("nsys", "warn", f"nsys {tool.version} does not offer {', '.join(lacking)}: left out"))
        if self.fork:
            found.append(Check("nsys", "warn", "fork: true may make a program crash or hang (NVIDIA says so)"))
        if importer(tool.path) is None:
            message = f"no {_IMPORTER} near {tool.path}: a report that nsys leaves as .qdstrm can't be converted"
            found.append(Check("nsys", "warn", message, "install the whole Nsight Systems package"))
        return found

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        """Only a program that was started under nsys can be looked at, by the same nsys and the same user."""
        armed, tool = machine.armed, self.tool(machine)
        if armed is None:
            why, fix = (
                "nsys sees only what was started under it",
                "profrun arm --nsys -- COMMAND, then profrun wake --pid PID",
            )
        elif armed.session is None or armed.nsys is None:
            why, fix = (
                "the program was armed without nsys",
                "profrun arm --nsys -- COMMAND, then profrun wake --pid PID",
            )
        elif not armed.is_ours:
            why, fix = "the program was armed by another user, whose nsys answers only to them", "attach as that user"
        elif tool.path is not None and Path(tool.path).resolve() != Path(armed.nsys).resolve():
            why = f"the program was started under {armed.nsys}, and here nsys is {tool.path}"
            fix = f"--set tools.nsys={armed.nsys}"
        elif self.range:
            why, fix = f"range: {self.range} has to be known when the program starts", "leave range out"
        else:
            return None
        return Check(self.use, "missing", why, fix)

    def arms(self, tool: Tool, session: str, *, gpu: bool) -> tuple[str, ...]:
        """The command that starts a program which this session is to look at later."""
        return (tool.path or "nsys", "launch", *self._target(tool, session, self.traces(gpu, tool)))

    def _lacking(self, tool: Tool) -> list[str]:
        """The plan's wishes that this version does not know; when its help could not be understood, none."""
        flags = {
            "fork": self.fork and ("trace-fork-before-exec",),
            "graphs": self.graphs and ("cuda-graph-trace",),
            "backtrace": self.backtrace and ("backtrace",),
            "gpu_metrics": self.gpu_metrics and _GPU_METRICS,
        }
        unknown = [wish for wish, names in flags.items() if names and not {*names} & tool.features]
        lacking = [*unknown, *(f"export: {kind}" for kind in self.export if f"export={kind}" not in tool.features)]
        return lacking if tool.features else []

    def traces(self, gpu: bool, tool: Tool) -> tuple[Trace, ...]:
        """What will be traced: as asked, or what can work; only what this version offers."""
        wanted = self.trace or (WITH_GPU if gpu else WITHOUT_GPU)
        if self.range and "nvtx" not in wanted:
            wanted = (*wanted, "nvtx")
        return tuple(t for t in wanted if _offers(tool, t)) or ("none",)

    def held(self) -> frozenset[str]:
        """The GPU's counters are read only when they are asked for, and the system's calls are seen from a library."""
        left = {"counters": self.gpu_metrics, "preload": self.trace is None or "osrt" in self.trace}
        return self.claims - {claim for claim, wanted in left.items() if not wanted}

    def does_without(self, claim: str) -> str | None:
        others = [trace for trace in self.trace or WITH_GPU if trace != "osrt"]
        return {"preload": f"trace: [{', '.join(others) or 'none'}]", "counters": "gpu_metrics: false"}.get(claim)

    def without_kernels(self) -> str | None:
        if self.trace is None or "cuda" in self.trace:
            return None
        return f"trace: [{', '.join(('cuda', *(t for t in self.trace if t != 'none')))}]"

    def launch(self, job: Job) -> Launch:
        nsys = job.tool.path or "nsys"
        # a name must be new: the agent of an earlier session lives as long as what its target has left behind
        session = f"profrun-{zlib.crc32(job.dir.encode()):08x}-{job.attempt}"
        traces = self.traces(bool(job.facts.get("gpus")), job.tool)
        target, record = self._target(job.tool, session, traces), self._record(job)
        wrap: tuple[str, ...] = ()
        if job.armed and job.armed.session:
            nsys = job.armed.nsys or nsys
            beside = _window(job.armed.tmpdir, nsys, job.armed.session, record, self.flush)
        elif job.window:
            tmpdir = job.target.env.get("TMPDIR")
            wrap, beside = (nsys, "launch", *target), _window(tmpdir, nsys, session, record, self.flush)
        else:
            wrap, beside = (nsys, "profile", *target, *record, *_known(job.tool, {"kill": "none"})), ()
        exports = tuple(kind for kind in self.export if f"export: {kind}" not in self._lacking(job.tool))
        left_out = [t for t in self.trace or () if t not in traces]
        said = [f"nsys {job.tool.version} can't trace {', '.join(left_out)}"] if left_out else []
        if job.armed:
            said = ["what nsys traces was settled when the program was armed"] if self.trace or self.fork else []
        if lacking := self._lacking(job.tool):
            said.append(f"nsys {job.tool.version} does not offer {', '.join(lacking)}")
        return Launch(
            wrap=Wrap(wrap, order=10) if wrap else None,
            # without it nsys opens ranges only for names that the program has registered
            child=Child(
                {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if self.range else {}, inject={"nvtx": "nvtx" in traces}
            ),
            beside=beside,
            after=(*_after(nsys, job.dir), *_exports(nsys, job.dir, exports)),
            artifacts=(*ARTIFACTS, *(Expect(kind, _PLACES[kind][1], kind, False, True, "report") for kind in exports)),
            signs=self._signs(nsys),
            # nsys writes there first; after a hang the file stays, with the environment in it
            litter=(r"Generating '([^'\n]+\.qdstrm)'",),
            notes=tuple(said),
        )

    def _target(self, tool: Tool, session: str, traces: tuple[Trace, ...]) -> tuple[str, ...]:
        """Options of `profile` and `launch`: what is put into the target, and that only the target is waited for."""
        options: dict[str, str | None] = {"session-new": session, "trace": ",".join(traces), "nvtx-capture": self.range}
        options |= {"trace-fork-before-exec": "true" if self.fork else None, "cuda-graph-trace": self.graphs}
        return _known(tool, {**options, "wait": "primary", "show-output": "true"})

    def _record(self, job: Job) -> tuple[str, ...]:
        """Options of `profile` and `start`: what is recorded, when, and where to."""
        options: dict[str, str | None] = {"sample": self.sample, "cpuctxsw": self.sample, "backtrace": self.backtrace}
        options |= {name: "all" for name in _GPU_METRICS[: None if job.tool.features else 1] if self.gpu_metrics}
        options |= {"output": f"{job.dir}/report", "force-overwrite": "true", "stop-on-exit": "true"}
        return _known(
            job.tool, options | ({"capture-range": "nvtx", "capture-range-end": "stop"} if self.range else {})
        )

    def _signs(self, nsys: str) -> tuple[Sign, ...]:
        what = f"capture range never opened: no NVTX range {self.range}" if self.range else "nsys names no report"
        nothing = what.replace("{", "{{").replace("}", "}}")
        no_report = Sign(r"No reports were generated|Generated:\s*\Z", "tool_failed", nothing)
        return (*SIGNS, no_report, HANG, *(() if importer(nsys) else (NO_IMPORTER,)))

    def parse(self, capture: Capture) -> Parsed:
        """The canonical tables of the SQLite export; `empty` when nothing that was traced happened, `degraded`
        when rows of it could not be read.

        Without an export the run has already said why, and that stays."""
        from orchestrator.formats import nsys

        path = capture.path("sqlite")
        if path is None:
            return Parsed()
        content = nsys.read(path)
        if content.lost:
            rest = tuple(note for note in content.notes if note not in content.lost)
            return Parsed(content.tables, rest, "degraded", "; ".join(content.lost), clock=content.clock)
        if content.tables:
            return Parsed(content.tables, content.notes, clock=content.clock)
        return Parsed((), content.notes, "empty", "nsys recorded no event of what was traced")


def _without_gpu(traces: tuple[str, ...]) -> Check:
    """What can be traced on a machine without a GPU: not CUDA and NVIDIA's libraries on top of it."""
    empty = [trace for trace in traces if trace.startswith("cu")]
    rest = ", ".join(trace for trace in traces if trace not in empty) or "nothing"
    said = f"no NVIDIA GPU here: {rest} can be traced"
    return Check("nsys", "warn" if empty else "ok", said + (f", not {', '.join(empty)}" if empty else ""))


ARTIFACTS = (
    Expect("report", "report.nsys-rep", "nsys-rep", holds_env=True),
    Expect("sqlite", "report.sqlite", "sqlite", holds_env=True, derived_from="report"),
    Expect("qdstrm", "report.qdstrm", "qdstrm", required=False, holds_env=True),
)

SIGNS = (
    Sign(r"(?m)^(?:Program not found|No such file or directory): (.+)", "tool_failed", "nsys could not start {0}"),
    Sign(r"(?m)^Not executable$", "tool_failed", "nsys could not start the target: it is not executable"),
    Sign(r"unrecognised option '([^']+)'", "tool_failed", "this version of nsys has no option {0}"),
    Sign(r"Illegal (--\S+) argument[: ]+'?([^'\n]+)", "tool_failed", "this version of nsys refuses {0} {1}"),
    Sign(r"Agent launcher failed", "tool_failed", "nsys could not start its agent: is TMPDIR there and writable?"),
    Sign(
        r"Failed to create '[^']*': ([^\n.]+)", "tool_failed", "nsys could not write its report: {0}; it is in TMPDIR"
    ),
    Sign(r"(No space left on device|database or disk is full|Invalid truncate size)", "tool_failed", "disk full: {0}"),
    Sign(
        r"Version number is invalid: (\d+)@(\d+)@(\d+)",
        "unreadable",
        "the report is of a newer nsys ({0}.{1}.{2}) than the one here: read it with that version or a later one",
    ),
    Sign(r"Version number is invalid: (\d\S*)", "unreadable", "the report is of a newer nsys ({0}) than the one here"),
    Sign(r"Qdstrm file is incomplete|File is corrupted", "tool_failed", "nsys was ended before its data was written"),
    Sign(r"FATAL ERROR: .*", "tool_failed", "nsys crashed while it wrote its report"),
)
"""What nsys 2022.4 prints when it fails; its exit status is 1 in most of these cases, and 0 in some."""

HANG = Sign(
    r"Generating '[^']+'(?![\s\S]*Generated:)",
    "tool_failed",
    "nsys hung while it wrote its report; with `retry: true` in the plan's target such a pass is started again",
)
NO_IMPORTER = Sign(
    r"importer binary and its dependencies were not found",
    "tool_failed",
    f"nsys left only a .qdstrm, and there is no {_IMPORTER} to convert it: install the whole Nsight Systems package",
)


def importer(nsys: str) -> Path | None:
    """The program that turns .qdstrm into a report: beside nsys, or where Debian puts it and nsys does not look."""
    home = Path(nsys).resolve().parent
    found = [path for pattern in _IMPORTER_PLACES for path in sorted(home.glob(pattern))]
    return next(iter(found), None) or next(iter(sorted(Path("/").glob(_SYSTEM_IMPORTERS))), None)


def _offers(tool: Tool, trace: Trace) -> bool:
    """Whether this version can trace it; when its help could not be understood, everything is tried."""
    understood = any(feature.startswith("trace=") for feature in tool.features)
    return not understood or f"trace={trace}" in tool.features


def _known(tool: Tool, options: dict[str, str | None]) -> tuple[str, ...]:
    """The options that have a value and that this version has, as --name=value."""
    known = tool.features or options  # a help text that could not be understood hides nothing
    return tuple(f"--{name}={value}" for name, value in options.items() if value and name in known)


def _window(tmpdir: str | None, nsys: str, session: str, record: tuple[str, ...], flush_s: float) -> tuple[Beside, ...]:
    """Starts and stops the recording. Sessions are found through TMPDIR, so it must have the target's."""
    env = ("env", f"TMPDIR={tmpdir}") if tmpdir else ("env", "-u", "TMPDIR")
    argv = (*env, "sh", "-c", _WINDOW, nsys, session, *record)
    return (Beside(argv, when="window", ready="says", ready_value="^recording$", grace_s=flush_s),)


def _after(nsys: str, directory: str) -> tuple[After, ...]:
    """Converts what a missing importer left behind, then exports this run's report."""
    raw, report, sqlite = (f"{directory}/report.{end}" for end in ("qdstrm", "nsys-rep", "sqlite"))
    tool = importer(nsys)
    convert = After((str(tool), "-i", raw, "-o", report), "report.nsys-rep", "report.nsys-rep", needs="report.qdstrm")
    export = (nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", sqlite, report)
    return (*((convert,) if tool else ()), After(export, "report.sqlite", needs="report.nsys-rep"))


def _exports(nsys: str, directory: str, kinds: tuple[Export, ...]) -> tuple[After, ...]:
    """Further exports of this run's report."""
    report = f"{directory}/report.nsys-rep"
    return tuple(
        After(
            (nsys, "export", "--type", kind, "--force-overwrite", "true", "--output", f"{directory}/{place}", report),
            place,
            needs="report.nsys-rep",
        )
        for kind, (place, _) in _PLACES.items()
        if kind in kinds
    )
