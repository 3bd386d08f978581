"""Collector `ncu`: NVIDIA Nsight Compute around the target: the hardware counters of single kernels, and its advice."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from orchestrator.collectors.base import Collector, Parsed
from orchestrator.formats.kernel_names import COMMUNICATION, communicates, function
from orchestrator.model import Capture, Check, Child, Expect, Job, Launch, Pick, Picks, Sign, ToolProbe, Wrap

if TYPE_CHECKING:
    from orchestrator.machine import Machine

BASIC = ("LaunchStats", "Occupancy", "SpeedOfLight")
"""The sections of the basic set, which older versions call `default`: named where it does not come by itself."""

COUNTERS_FIX = (
    "on the host, as root, write `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d/profiling.conf and reboot; or give the container --cap-add=SYS_ADMIN"
)

_COUNTERS_TAKEN = (
    "another program reads the GPU's counters, as DCGM does where it runs: `dcgmi profile --pause` before the run and "
    "`dcgmi profile --resume` after it; in a plan: environment: [{{use: shell, run: [dcgmi, profile, --pause], "
    "undo: [dcgmi, profile, --resume]}}]"
)

LAUNCHES = 10
"""How many launches are looked at where the plan does not say."""
LONGEST_NAME = 5000
"""Longer names are matched by their beginning: one word of a command line may hold 128 KiB (MAX_ARG_STRLEN)."""
LONGEST_SHOWN = 48
"""Characters of a kernel's name in a sentence."""
MEASURES = {"total_time": "time", "exposed_time": "exposed time", "count": "launches"}
"""What a choice goes by, as the end of `the kernels with the most`."""

_TIMED_WINDOW = "a window in time does not apply to ncu: it takes the first launches that match (one in steps does)"

_WAITING = "those that wait for other GPUs (NCCL, NVSHMEM, ...)"

_BROKEN = ("missing ),", "unbalanced parenthesis", "unterminated character set", "nothing to repeat")
"""What Python's words for a broken regex begin with where Perl's syntax gives it no other meaning, ..."""
_PERL_ONLY = re.compile(r"\[:|\(\*[A-Z]")
"""... unless it holds one of these: classes such as [:alpha:], and verbs such as (*FAIL)."""


def _whole(pattern: str) -> str:
    """The regex for ncu, which alone knows all of its syntax. Raises ValueError where it is broken in any syntax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error as error:
        if error.msg.startswith(_BROKEN) and not _PERL_ONLY.search(pattern):
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    except (OverflowError, RecursionError):
        pass  # too large for Python alone
    return pattern


Regex: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_whole)]


class KernelNames(BaseModel):
    """Kernels by their names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Regex = Field(description="a regular expression (Perl's), found anywhere in the name")
    base: Literal["function", "demangled", "mangled"] = Field(
        "function", description="the name that it looks at: without or with arguments, or as the linker knows it"
    )


class KernelsFrom(BaseModel):
    """The kernels that cost most in an earlier pass, in its steady part (without warm-up)."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    from_: Literal["nsys", "torch"] = Field(
        alias="from",
        description="the collector to ask; it stands earlier in the plan. Where nsys has seen no kernel, torch is "
        "asked, if that stands there too",
    )
    top: int = Field(5, ge=1, le=20, description="how many kernels")
    by: Literal["total_time", "exposed_time", "count"] = Field(
        "total_time", description="what they have most of: time, time in which no other kernel ran, or launches"
    )

    def words(self) -> str:
        """Which kernels, for people."""
        several = f"the {self.top} kernels" if self.top > 1 else "the kernel"
        return f"{several} with the most {MEASURES[self.by]} in {self.from_}"


def _form(value: Any) -> str:
    """Which form of `kernels` was meant."""
    if isinstance(value, KernelsFrom) or (isinstance(value, Mapping) and {"from", "from_", "top", "by"} & set(value)):
        return "chosen"
    return "named" if isinstance(value, (KernelNames, Mapping)) else "text"


Kernels: TypeAlias = Annotated[
    Annotated[Regex, Tag("text")] | Annotated[KernelNames, Tag("named")] | Annotated[KernelsFrom, Tag("chosen")],
    Discriminator(_form),
]


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
    kernels: Kernels | None = Field(
        None,
        description="only kernels whose function name matches this regex; {name: REGEX, base: demangled}; or "
        "{from: nsys, top: 5, by: total_time}: those that nsys (or torch) has shown to cost most",
    )
    launches: int | None = Field(
        None,
        ge=1,
        description="how many launches to look at, each of which is replayed several times; default: 10, and 1 of each "
        "chosen kernel",
    )
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
    clock_control: Literal["auto", "base", "none"] = Field(
        "auto",
        description="base: ncu locks the clocks to their base; none: they are left as they are; auto: none where the "
        "plan's gpu_clocks has set them, else base",
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
    claims: ClassVar[frozenset[str]] = frozenset({"cupti", "counters", "nvidia"})
    capability: ClassVar[str | None] = "SYS_ADMIN"
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

    def obstacle_to_attach(self, machine: Machine) -> Check | None:
        said = "ncu reads the GPU's counters from inside the program, and so only of one that it has started itself"
        return Check(self.use, "missing", said, "let profrun start it: profrun PLAN -- COMMAND, or leave ncu out")

    @model_validator(mode="after")
    def _goes_together(self) -> Ncu:
        """What ncu's own options exclude, said before anything runs."""
        if not isinstance(self.kernels, KernelsFrom):
            return self
        by = self.kernels.from_
        clashes = (
            (self.skip, f"`skip`: which launches are looked at follows from what {by} has seen"),
            (self.range, "`range`: launches are numbered over the whole program, not inside a range"),
            (self.replay == "range", "`replay: range`: it looks at ranges of the program, and so at no chosen kernels"),
        )
        found = [why for given, why in clashes if given]
        if found:
            raise ValueError(f"with kernels that {by} chooses do not go {'; '.join(found)}")
        return self

    def needs(self) -> tuple[str, ...]:
        if not isinstance(self.kernels, KernelsFrom):
            return ()
        return ("nsys", "torch") if self.kernels.from_ == "nsys" else ("torch",)

    def pick(self, capture: Capture, steady_ns: tuple[int, int] | None) -> Picks:
        from orchestrator.errors import ParseError
        from orchestrator.formats import kineto_picks, nsys_picks

        by_nsys = capture.collector == "nsys"
        path = capture.path("sqlite" if by_nsys else "trace")
        if path is None or not isinstance(self.kernels, KernelsFrom):
            raise ParseError(f"it left no {'SQLite file' if by_nsys else 'trace'}")
        choose = nsys_picks.choose if by_nsys else kineto_picks.choose
        communication = self.replay != "kernel"
        return choose(path, self.kernels.top, self.kernels.by, self.launches or 1, steady_ns, communication)

    def launch(self, job: Job) -> Launch:
        by_steps = job.window is not None and job.window.steps is not None
        log = f"{job.dir}/ncu.log"  # its messages would otherwise stand among the target's output
        argv = (
            job.tool.path or "ncu",
            *("--target-processes", "all"),
            *("--export", f"{job.dir}/report", "--force-overwrite", "--log-file", log),
            *self._what(),
            *self._which(job.picks, by_steps),
            # our part in the target's Python switches it on at the window's first step, in all threads at once: an NVTX
            # range would leave out what autograd's threads launch
            *(("--profile-from-start", "off") if by_steps else ()),
            *("--replay-mode", self.replay),
            *("--clock-control", self._clocks(job), "--cache-control", self.cache_control),
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
            signs=self._signs(job.picks),
            notes=tuple(self._notes(job, by_steps)),
        )

    def _clocks(self, job: Job) -> str:
        """Two that lock the clocks would work against one another, and ncu's end would undo the plan's lock: one of the
        graphics clock counts, also where another part of the step did not work. Before the run there are no parts."""
        if self.clock_control != "auto":
            return self.clock_control
        steps = job.facts.get("environment", ())
        parts = [step for step in steps if step.startswith("gpu_clocks: ")]
        locked = any("graphics" in part or "applications" in part for part in parts) if parts else "gpu_clocks" in steps
        return "none" if locked else "base"

    def _what(self) -> tuple[str, ...]:
        """What to collect of a kernel."""
        basic = self.set in ("basic", "default")
        named = (*BASIC, *self.sections) if basic and (self.sections or self.metrics) else self.sections
        set_ = () if basic or self.set == "none" else ("--set", self.set)
        sections = (word for section in named for word in ("--section", section))
        return (*set_, *sections, *(("--metrics", ",".join(self.metrics)) if self.metrics else ()))

    def _which(self, picks: Picks | None, by_steps: bool) -> tuple[str, ...]:
        """Which kernels to look at."""
        if isinstance(self.kernels, KernelsFrom):
            return _chosen(picks, by_steps) if picks else _in_words(self.kernels, by_steps)
        base = self.kernels.base if isinstance(self.kernels, KernelNames) else "function"
        pattern = self._pattern()
        name = ("--kernel-name", f"regex:{pattern}") if pattern else ()
        inside = ("--nvtx", "--nvtx-include", self.range) if self.range else ()
        return (
            *(("--kernel-name-base", base) if base != "function" else ()),
            *name,
            *inside,
            *("--launch-skip", str(self.skip), "--launch-count", str(self.launches or LAUNCHES)),
        )

    def _pattern(self) -> str:
        """The regex for the names. Kernel replay leaves out what waits for other GPUs, as far as the names of that base
        tell it, unless it is asked for."""
        wanted = self._wanted()
        if not self._bars():
            return wanted
        return f"^(?!.*(?i:{COMMUNICATION}))" + (f".*({wanted})" if wanted else "")

    def _wanted(self) -> str:
        return self.kernels if isinstance(self.kernels, str) else getattr(self.kernels, "name", "")

    def _bars(self) -> bool:
        """Whether the filter leaves out kernels that wait for other GPUs."""
        return self.replay == "kernel" and not communicates(self._wanted())

    def _notes(self, job: Job, by_steps: bool) -> Iterator[str]:
        if job.window and not by_steps:
            yield _TIMED_WINDOW
        if not isinstance(self.kernels, KernelsFrom):
            yield from (f"left out are {_WAITING}: they would hang in kernel replay",) if self._bars() else ()
            return
        if job.picks is None:
            return
        shown = ", ".join(f"{_short(pick.function)} ({100 * pick.share:.0f} %)" for pick in job.picks.kernels)
        yield f"{self.kernels.words()}, {job.picks.steady}: {shown}"
        yield from job.picks.notes
        yield from _beyond(job.picks, by_steps)
        if job.picks.late and not by_steps:
            yield (
                f"the recording of {job.picks.source} began after the program, and ncu counts from its start: it looks "
                "at launches that come earlier than those chosen"
            )

    def _signs(self, picks: Picks | None) -> tuple[Sign, ...]:
        """What ncu prints when there is no report; it ends with 0 when it saw no kernel."""
        looked = f"It looked for {self._looked_for(picks)}, in all processes"
        looked = looked.replace("{", "{{").replace("}", "}}")
        return (
            Sign(r"(ERR_NVGPUCTRPERM)", "blocked", f"{{0}}: the GPU's counters are not allowed here; {COUNTERS_FIX}"),
            Sign("a driver resource was unavailable", "blocked", _COUNTERS_TAKEN),
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

    def _looked_for(self, picks: Picks | None) -> str:
        if picks is not None:
            return _numbered(picks)
        pattern = self._wanted()
        chosen = f"kernels matching {pattern!r}" if pattern else "all kernels"
        but = f" but {_WAITING}" if self._bars() else ""
        return f"{chosen}{but}, {self.launches or LAUNCHES} from number {self.skip} on"

    def parse(self, capture: Capture) -> Parsed:
        """Tables `kernel_profiles`, `kernel_metrics`, `kernel_rules`; `degraded` when some are lost, or not of the
        kernels that were chosen.

        Without a report the run has already said why, and that stays."""
        from orchestrator.formats import ncu

        path = capture.path("report")
        if path is None:
            return Parsed()
        content = ncu.read(path)
        profiles = (table for table in content.tables if table.name == "kernel_profiles")
        measured = Counter((row["kernel"], row["grid"], row["block"]) for table in profiles for row in table.rows())
        amiss = "; ".join((*content.lost, *_amiss(capture.options.get("picks") or {}, measured)))
        tables = tuple(table for table in content.tables if len(table))
        notes = tuple(note for note in content.notes if note not in content.lost)
        return Parsed(tables, notes, "degraded" if amiss else None, amiss or None)


# ---------------------------------------------------------------- kernels that an earlier pass has chosen


def _chosen(picks: Picks, by_steps: bool) -> tuple[str, ...]:
    """The filter for the chosen launches, all in one start of the target: `--kernel-id` can be given only once, but
    takes a regex for the names and one for the numbers (Nsight Compute CLI guide, "kernel-id": invocation-nr).

    Where a window decides when ncu begins to count, it takes all launches of these names until each must have come."""
    names = "|".join(_escaped(pick.match) for pick in picks.kernels)
    base = ("--kernel-name-base", picks.base)
    if by_steps:
        return *base, "--kernel-name", f"regex:^({names})$", "--launch-count", str(picks.launches)
    numbers = "|".join(map(str, _numbers(picks)))
    return *base, "--kernel-id", f"::regex:^({names})$:^({numbers})$"


def _in_words(kernels: KernelsFrom, by_steps: bool) -> tuple[str, ...]:
    """The same for people, before anything is chosen."""
    if by_steps:
        return "--kernel-name", kernels.words(), "--launch-count", "{launches}"
    return "--kernel-id", kernels.words()


def _numbers(picks: Picks) -> list[int]:
    return sorted({number for pick in picks.kernels for number in pick.numbers})


def _numbered(picks: Picks) -> str:
    """The chosen launches, for people."""
    return "; ".join(f"{_short(pick.function)}, number {_listed(pick.numbers)}" for pick in picks.kernels)


def _beyond(picks: Picks, by_steps: bool) -> Iterator[str]:
    """How many launches pass the filter beside those that were chosen."""
    chosen = sum(len(pick.numbers) for pick in picks.kernels)
    if by_steps and picks.launches > chosen:
        yield f"the first {picks.launches} launches of these names are measured, so that each kernel is among them"
    most = len(picks.kernels) * len(_numbers(picks))
    if not by_steps and most > chosen:
        yield f"up to {most} launches match the filter, of which {chosen} were chosen: {_numbered(picks)}"


def _escaped(name: str) -> str:
    """The name as a regex that matches it alone; `.` stands for the colon, which parts the fields of a kernel-id."""
    begin = re.sub(r"[\\^$.|?*+()\[\]{}]", r"\\\g<0>", name[:LONGEST_NAME]).replace(":", ".")
    return begin if len(name) <= LONGEST_NAME else f"{begin}.*"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_SHOWN else f"{name[:LONGEST_SHOWN]}..."


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


Measured: TypeAlias = tuple[str, str | None, str | None]


def _amiss(picks: Mapping[str, Any], measured: Counter[Measured]) -> Iterator[str]:
    """What was measured in place of the chosen launches, and how many of them are missing.

    The mangled name is part of ncu's filter; functions are compared, as its demangled names are spelled otherwise than
    those of nsys. So a template's kernels of one shape are counted together."""
    wanted: Counter[Measured] = Counter()
    for pick in (Pick(**pick) for pick in picks.get("kernels", ())):
        wanted[pick.function, pick.grid, pick.block] += len(pick.numbers)
    there: Counter[Measured] = Counter()
    for (name, grid, block), count in measured.items():
        there[function(name), grid, block] += count
    known = {name for name, _, _ in wanted}
    for one, count in wanted.items():
        if there[one] >= count:
            continue
        others = [other for other in there if other[0] == one[0]] or [other for other in there if other[0] not in known]
        yield f"{picks.get('source')} chose {_told(*one, count)}, {_instead(there[one], others)}"


def _instead(measured: int, others: Sequence[Measured]) -> str:
    if measured:
        return f"ncu measured {measured} of them"
    return f"ncu measured {_told(*others[0])}" if others else "ncu measured no launch of it"


def _told(name: str, grid: str | None, block: str | None, launches: int = 1) -> str:
    several = f"{launches} launches of " if launches > 1 else ""
    return f"{several}{name} (grid {grid or 'unknown'}, block {block or 'unknown'})"
