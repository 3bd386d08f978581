"""What somebody else holds already that a collector of this run would need: CUPTI, the GPU's counters, the one tracer
of a process that profrun starts. Asked before anything runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from orchestrator import launching, neighbours, process, sharing
from orchestrator.model import Check, Verdict

if TYPE_CHECKING:
    from orchestrator.collectors.base import Collector
    from orchestrator.env_steps.base import Step
    from orchestrator.machine import Machine


@dataclass(frozen=True)
class Holder:
    """Somebody who has what one tool at a time can have."""

    claims: frozenset[str]
    said: str
    fix: str
    verdict: Verdict = "blocked"
    """What it means for a collector that needs the same: that it can't work, or that it may not."""


def holders(
    argv: Sequence[str], collectors: Iterable[Collector], steps: Sequence[Step], machine: Machine
) -> tuple[Holder, ...]:
    """Everybody who may stand in these collectors' way. `argv`: the command that is about to be started; what is around
    processes that run already is for their collectors to know."""
    needed = {claim for collector in collectors for claim in collector.needed()}
    found = [*_counting(machine, steps)] if "counters" in needed and machine.gpus else []
    if not machine.target_pids:
        found = [*_in_command(argv), *_around_us(machine), *_in_environment(machine.target_env), *found]
    return tuple(holder for holder in found if holder.claims & needed)


def checks(collector: Collector, found: Iterable[Holder], machine: Machine) -> list[Check]:
    """What stands in this collector's way, with the one step out."""
    told = []
    for holder in found:
        shared = holder.claims & collector.needed()
        if shared & _OF_A_GPU and not machine.gpus:
            shared -= _OF_A_GPU
        for claim in sharing.by_weight(shared)[:1]:
            option = collector.does_without(claim)
            fix = f"{holder.fix}; or write `{option}` in {collector.use}" if option else holder.fix
            told.append(Check(collector.use, holder.verdict, f"{holder.said}, and {sharing.why_one(claim)}", fix))
    return told


def about(argv: Sequence[str]) -> Iterator[Check]:
    """What in the command itself bends every figure, though nobody's way is barred."""
    name = profiler_in(argv)
    if name is not None and not PROFILERS[name]:
        said = f"the command starts {name} itself: every figure of this run holds what {name} adds to the program"
        yield Check("target", "warn", said, f"leave {name} out of the command")


# ---------------------------------------------------------------- in the command

_CUPTI = frozenset({"cupti", "nvidia"})
_COUNTERS = frozenset({"cupti", "counters", "nvidia"})
_TRACER = frozenset({"ptrace"})
_PRELOAD = frozenset({"preload"})
_OF_A_GPU = frozenset({"cupti", "counters"})

_SLOW_ONLY = (
    "perf", "valgrind", "vtune", "amplxe-cl", "rocprof", "rocprofv2", "rocprofv3", "scalene", "viztracer",
    "pyinstrument", "kernprof", "austin", "fil-profile", "coverage",
)  # fmt: skip
_SLOW_MODULES = ("cProfile", "profile", "trace", "memory_profiler", "torch.utils.bottleneck")
"""Names that a program may have, too: they count behind `python -m`."""
PROFILERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("nsys", "ncu", "nv-nsight-cu-cli", "nvprof"), _COUNTERS),
    **dict.fromkeys(("compute-sanitizer", "cuda-memcheck"), _CUPTI),
    "cuda-gdb": _CUPTI | _TRACER,
    **dict.fromkeys(("strace", "ltrace", "gdb", "lldb", "rr", "py-spy"), _TRACER),
    **dict.fromkeys(("memray", "heaptrack", "uftrace"), _PRELOAD),
    **dict.fromkeys((*_SLOW_ONLY, *_SLOW_MODULES), frozenset()),
}
"""What a command can start that measures the program itself, and what it has of that which only one can have."""
_VERBS = {"nsys": ("profile", "launch", "start"), "py-spy": ("record", "top", "dump"), "memray": ("run", "attach")}
"""Where only some of a tool's verbs look at a program."""


def profiler_in(argv: Sequence[str]) -> str | None:
    """The tool that a command starts around its program; None where it starts none that is known."""
    for words in launching.layers(argv):
        as_typed = launching.without_interpreter(words)
        name = launching.name_of(as_typed)
        is_module = "-m" in words[1 : len(words) - len(as_typed) + 1]
        known = name in PROFILERS and (is_module or name not in _SLOW_MODULES)
        if known and ("--nonblocking" not in words) and set(_VERBS.get(name, words)) & set(words):
            return name
    return None


def _in_command(argv: Sequence[str]) -> Iterator[Holder]:
    name = profiler_in(argv)
    if name is not None and PROFILERS[name]:
        fix = f"leave {name} out of the command: profrun starts the tools itself"
        yield Holder(PROFILERS[name], f"the command starts {name} itself", fix)


# ---------------------------------------------------------------- around profrun

_NVIDIA_AROUND = ("ncu", "nvprof")
_SESSION = "NSYS_PROFILING_SESSION_ID"
"""nsys puts it into the environment of all that it starts."""


def _around_us(machine: Machine) -> Iterator[Holder]:
    """What profrun itself was started under, as far as it also sees what profrun starts."""
    if process.tracer_of(os.getpid()):
        with process.stopped_child() as child:
            tracer = process.tracer_of(child)
        if tracer:
            name = neighbours.told(neighbours.describe(machine, tracer))
            said = f"profrun itself is traced, by {name}, and with it all that it starts"
            yield Holder(_TRACER, said, "start profrun without that")
    everybody = neighbours.everyone(machine)
    above = {one.name for one in neighbours.ancestors(os.getpid(), everybody)}
    names = [name for name in _NVIDIA_AROUND if name in above]
    for name in ["nsys"] if os.environ.get(_SESSION) else names:
        yield Holder(_COUNTERS, f"profrun itself runs under {name}", f"start profrun without {name}")


# ---------------------------------------------------------------- in the program's environment

_VARIABLES = {
    "CUDA_INJECTION64_PATH": (_CUPTI, "loads {0} into the program: as a rule a client of CUPTI"),
    "NVTX_INJECTION64_PATH": (frozenset({"nvidia"}), "hands the program's NVTX ranges to {0}"),
    "KINETO_USE_DAEMON": (
        frozenset({"cupti", "torch.profiler"}), "lets a daemon (dynolog) switch on torch.profiler in it at any time"
    ),
}  # fmt: skip
"""Variables by which something else is let in, whom it may bar, and what they do; {0} is their value."""
_LIBRARIES = re.compile(r"memray|heaptrack|uftrace|scalene|lib[alt]san|libvtune|libmcount")


def _in_environment(env: Mapping[str, str]) -> Iterator[Holder]:
    for name, (claims, does) in _VARIABLES.items():
        if env.get(name):
            yield Holder(claims, f"{name} {does.format(PurePath(env[name]).name)}", _without(name), "warn")
    for word in re.split(r"[ :]+", env.get("LD_PRELOAD", "")):
        if _LIBRARIES.search(PurePath(word).name):
            said = f"LD_PRELOAD puts {PurePath(word).name} into the program"
            yield Holder(_PRELOAD, said, _without("LD_PRELOAD"), "blocked" if "memray" in word else "warn")


def _without(variable: str) -> str:
    return f"add to the plan: environment: [{{use: env, unset: [{variable}]}}]"


# ---------------------------------------------------------------- who reads the GPU's counters

_READERS = ("nv-hostengine", "dcgm-exporter")
_PAUSED = "environment: [{use: shell, run: [dcgmi, profile, --pause], undo: [dcgmi, profile, --resume]}]"


def _counting(machine: Machine, steps: Sequence[Step]) -> Iterator[Holder]:
    """NVIDIA's Data Center GPU Manager: while it collects profiling metrics nobody else can (Nsight Compute, FAQ)."""
    if any({"dcgmi", "--pause"} <= set(getattr(step, "run", ())) for step in steps):
        return
    there = [one for one in neighbours.everyone(machine).values() if one.name in _READERS]
    for one in there[:1]:
        said = f"{one.name} (process {one.pid}) is NVIDIA's DCGM: it may be reading the GPU's counters"
        yield Holder(frozenset({"counters"}), said, f"pause it meanwhile, in the plan: {_PAUSED}", "warn")
