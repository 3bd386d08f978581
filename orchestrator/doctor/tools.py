"""Does each tool give data here? Every collector records a small program of ours, in a pass like any other."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Iterator

from orchestrator import collect, folder, process, registry
from orchestrator.collectors.base import Collector
from orchestrator.doctor import gpus, system
from orchestrator.doctor.kernel import gist
from orchestrator.doctor.words import LIMIT_S, NOT_FOUND, Diagnosis, State
from orchestrator.errors import FolderError, ParseError
from orchestrator.live import Context
from orchestrator.machine import Machine
from orchestrator.model import USABLE, Capture, Pass, Target, ToolProbe
from orchestrator.signals import Signals
from orchestrator.stdio import Stdin

_TRIAL_LIMIT_S = 15.0
_TRIAL = """
import time
def busy_for_the_doctor(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))
busy_for_the_doctor(0.4)
"""
_GPU_TRIAL = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *words):
    code = getattr(cuda, name)(*words)
    if code:
        sys.exit(f"{name} gave {code}")
device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuModuleLoadData", ctypes.byref(module), PTX)
call("cuModuleGetFunction", ctypes.byref(kernel), module, b"kernel_for_the_doctor")
for _ in range(3):
    call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, None, None)
call("cuCtxSynchronize")
"""
"""A kernel that does nothing, on the first GPU, by the driver's own library alone."""
_PTX = ".version 6.3\n.target sm_{}\n.address_size 64\n.visible .entry kernel_for_the_doctor() {{ ret; }}\n"
_NEWEST_PTX = 75
"""The newest architecture that version 6.3 of PTX knows; the driver compiles it for any later one."""


def collectors(machine: Machine) -> Iterator[Diagnosis]:
    """Every collector that needs a tool, in one pass each on the small program."""
    found = (try_collector(name, machine) for name in registry.collector_names())
    return (one for one in found if one is not None)


def try_collector(name: str, machine: Machine) -> Diagnosis | None:
    """Lets one collector, with its default options, record the small program; None for one that needs no tool."""
    try:
        member = registry.collector(name).model_validate({"use": name})
    except Exception as error:  # a collector from another package may raise anything
        return Diagnosis(name, "broken", f"can't be used: {type(error).__name__}: {error}")
    return try_member(member, machine) if member.probe else None


def try_member(member: Collector, machine: Machine) -> Diagnosis:
    """Lets one collector record the small program. Of one that needs no tool only the checks are asked."""
    mute = _mute(member, machine)
    if mute:
        return mute
    try:
        checks = member.checks(machine)
        tool = member.tool(machine)
    except Exception as error:  # a collector from another package may raise anything
        return Diagnosis(member.use, "broken", f"can't be used: {type(error).__name__}: {error}")
    obstacle = next((check for check in checks if check.verdict in ("missing", "blocked")), None)
    if obstacle:
        state: State = "blocked" if obstacle.verdict == "blocked" else "broken" if tool.path else "missing"
        fix = system.how_to_get(machine, member.use) if state == "missing" and not machine.given(member.use) else None
        return Diagnosis(member.use, state, obstacle.message, fix or obstacle.fix, tool.version, tool.path)
    warnings = [check for check in checks if check.verdict == "warn"]
    advice = next((check.fix for check in warnings), None)
    if member.probe is None:
        said = "; ".join(check.message for check in (warnings or checks)) or "needs no tool"
        return Diagnosis(member.use, "ok", said, advice)
    counters = next(gpus.counters(machine), None) if member.use == "ncu" else None
    if counters and counters.state == "blocked":
        return Diagnosis(member.use, "blocked", counters.said, counters.fix, tool.version, tool.path)
    tried = _tried(member, machine)
    said = "; ".join([tried.said, *(check.message for check in warnings)])
    return Diagnosis(member.use, tried.state, said, tried.fix or advice, tool.version, tool.path)


def _mute(member: Collector, machine: Machine) -> Diagnosis | None:
    """A tool that is not here, or that does not even tell its version: it is asked nothing more."""
    probe = member.probe
    if probe is None:
        return None
    path, how = machine.find(probe), system.how_to_get(machine, member.use)
    if path is None and machine.given(probe.name):
        return None
    if path is None:
        return Diagnosis(member.use, "missing", NOT_FOUND, how or probe.install)
    if probe.version_args is None:
        return None
    argv = [path, *probe.version_args]
    answer = process.ask(argv, timeout_s=LIMIT_S)
    if answer.error is None:
        return None
    said = f"`{shlex.join([probe.name, *argv[1:]])}`: {answer.error}"
    return Diagnosis(member.use, "broken", said, how and f"install it anew: {how}", path=path)


# ---------------------------------------------------------------- the trial


def _tried(member: Collector, machine: Machine) -> Diagnosis:
    started, on_gpu = time.monotonic(), "cupti" in member.held() and bool(machine.gpus)
    try:
        capture, saw = _trial(member, machine, on_gpu)
    except (OSError, FolderError) as error:
        return Diagnosis(member.use, "broken", f"could not be tried: {error}")
    took = f"in {time.monotonic() - started:.1f} s"
    run = capture.run
    what = "a small GPU program" if on_gpu else "a small Python program"
    if capture.status != "blocked" and run and run.exit and run.exit.code:
        said = f"the program that it was tried on, {what}, failed itself under it ({run.exit.describe()})"
        return Diagnosis(member.use, "unknown", said, _newer(member, machine))
    if capture.status in USABLE and not (on_gpu and saw == 0):
        return Diagnosis(member.use, "ok", f"recorded {what} {took}")
    if capture.status == "empty" and "cupti" in member.claims and not on_gpu:
        return Diagnosis(member.use, "ok", f"ran with a small Python program, which gives no GPU work, {took}")
    state: State = "blocked" if capture.status == "blocked" else "broken"
    said = capture.reason or "saw no kernel of a small GPU program"
    return Diagnosis(member.use, state, f"tried on a small program: {said}", _newer(member, machine))


def _program(machine: Machine, on_gpu: bool) -> str:
    if not on_gpu:
        return _TRIAL
    digits = re.sub(r"\D", "", str(machine.gpus[0].get("compute_capability") or ""))
    target = min(int(digits or _NEWEST_PTX), _NEWEST_PTX)
    return f"PTX = {_PTX.format(target).encode()!r}\n{_GPU_TRIAL}{_TRIAL}"


def _trial(member: Collector, machine: Machine, on_gpu: bool) -> tuple[Capture, int | None]:
    """The capture of one real pass, made and left in scratch space, and on a GPU how many kernels are in it (None where
    nobody looked). Raises OSError, FolderError when there is no such space."""
    scratch = folder.scratch()
    try:
        stdin = Stdin(scratch / "stdin", passes=1)
        stdin.kind = "closed"
        env = {**os.environ, "TMPDIR": str(scratch)}  # nsys leaves files there
        words = (sys.executable, "-I", "-S", "-c", _program(machine, on_gpu))  # Python finds its library by the first
        target = Target(words, sys.executable, str(scratch), env)
        with Signals() as signals:
            context = Context(
                run_id=scratch.name,
                folder=folder.create(scratch, "doctor"),
                scratch=scratch,
                target=target,
                machine=machine,
                stdin=stdin,
                interrupts=signals,
                observer=_Nobody(),
                end_leftovers=True,
                facts={"gpus": machine.gpus},
                after_s=_TRIAL_LIMIT_S,
            )
            quick = _plain(member).model_copy(update={"flush": _TRIAL_LIMIT_S})
            planned = Pass("doctor", 1, "profiled", (quick,), timeout_s=_TRIAL_LIMIT_S)
            _, captures = collect.run_pass(planned, context)
            if signals.received:
                raise KeyboardInterrupt
        return captures[0], _kernels(member, captures[0]) if on_gpu and captures[0].status in USABLE else None
    finally:
        process.end(lambda: process.marked(scratch.name))
        folder.remove(scratch)


def _plain(member: Collector) -> Collector:
    """The same without what only the plan's own program has: kernels of an earlier pass, ranges."""
    needless = ("kernels", "range") if member.needs() or getattr(member, "range", None) else ()
    return member.model_copy(update={name: None for name in needless if name in type(member).model_fields})


def _kernels(member: Collector, capture: Capture) -> int | None:
    try:
        tables = {table.name: len(table) for table in member.parse(capture).tables}
    except ParseError:
        return 0
    return max(tables.get("gpu_kernels", 0), tables.get("kernel_profiles", 0))


class _Nobody:
    """Watches a trial."""

    def tick(self, elapsed_s: float) -> None:
        """Shows nothing."""

    def make_way(self, amid_line: bool) -> None:
        """Shows nothing."""

    def interrupted(self, number: int) -> None:
        """Shows nothing."""


# ---------------------------------------------------------------- tools and GPUs that don't know one another

_SINCE = (
    (10.0, {"ncu": (2025, 1), "nsys": (2024, 6)}),
    (8.9, {"ncu": (2022, 3), "nsys": (2022, 4)}),
    (8.6, {"ncu": (2020, 2), "nsys": (2020, 4)}),
    (8.0, {"ncu": (2020, 1), "nsys": (2020, 3)}),
)
"""By compute capability: the versions in the first CUDA toolkit that knows such GPUs (12.8, 11.8, 11.1, 11.0)."""


def _newer(member: Collector, machine: Machine) -> str | None:
    """What would mend a tool that is older than the GPU that it looks at; None where that is not the cause."""
    known = re.match(r"(\d+)\.(\d+)", member.tool(machine).version or "")
    capability = max((float(gpu.get("compute_capability") or 0) for gpu in machine.gpus), default=0.0)
    needed = next((versions.get(member.use) for since, versions in _SINCE if capability >= since), None)
    if known is None or needed is None or (int(known[1]), int(known[2])) >= needed:
        return None
    return (
        f"install {member.use} {needed[0]}.{needed[1]} or newer: {known[0]} is older than a GPU of compute capability "
        f"{capability}"
    )


# ---------------------------------------------------------------- tools that no collector of today needs


def others(machine: Machine) -> Iterator[Diagnosis]:
    """gdb, made to work."""
    tool = machine.tool(ToolProbe("gdb"))
    if tool.path is None:
        said = f"{NOT_FOUND}; no collector needs it yet"
        yield Diagnosis("gdb", "missing", said, system.how_to_get(machine, "gdb"))
        return
    answer = process.ask([tool.path, "-batch", "-nx", "-ex", "print 40 + 2"], timeout_s=LIMIT_S)
    worked = "$1 = 42" in answer.stdout
    said = "`gdb -batch -nx -ex 'print 40 + 2'` " + ("worked" if worked else f"failed: {gist(answer)}")
    yield Diagnosis("gdb", "ok" if worked else "broken", said, version=tool.version, path=tool.path)
