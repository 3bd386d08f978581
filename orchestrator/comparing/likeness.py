"""Whether two runs may be compared: the facts that decide how fast a program runs, and in which of them they differ."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.comparing import sides
from orchestrator.comparing.words import Side, Unlike
from orchestrator.model import IN_FORCE, USABLE, StepRecord
from orchestrator.report import Report
from orchestrator.units import show_bytes

Severity = Literal["refuse", "mark"]
NONE = "none"


@dataclass(frozen=True)
class Fact:
    """One fact of a run. severity: what it does when it differs; unknown facts only ever mark. needed: worth a word
    also where it is unknown of both."""

    name: str
    of: Callable[[Report], Any]
    severity: Severity
    note: str = ""
    needed: bool = False


def side(report: Report) -> Side:
    facts = {fact.name: _text(fact.of(report)) for fact in FACTS}
    run = report.run
    return Side(run.id, run.name, str(report.folder), run.started_at, facts)


def unlike(a: Report, b: Report) -> tuple[Unlike, ...]:
    """Everything in which the two differ or that is unknown of one, what refuses first."""
    found = [
        *_facts(a, b),
        *_failed(a, b),
        *_load(a, b),
        *_environment(a, b),
        *_clocks(a, b),
        *_plans(a, b),
        *_captures(a, b),
    ]
    return tuple(sorted(found, key=lambda one: (one.severity != "refuse", one.how != "differs")))


# ---------------------------------------------------------------- facts


def _cpu(name: str) -> Callable[[Report], Any]:
    return lambda report: (report.machine.get("cpu") or {}).get(name)


def _machine(name: str) -> Callable[[Report], Any]:
    return lambda report: report.machine.get(name)


def _target(name: str) -> Callable[[Report], Any]:
    """Of the program's Python: a program that is none of ours to ask has none."""
    return lambda report: (report.machine.get("target") or {}).get(name)


def _torch(report: Report) -> str | None:
    target = report.machine.get("target") or {}
    return target.get("torch") or (NONE if target.get("python") else None)


def _gpus(report: Report) -> str | None:
    gpus = report.machine.get("gpus")
    if gpus is None:
        return None
    names = [str(gpu.get("name")) for gpu in gpus for _ in range(int(gpu.get("count") or 1))]
    counted = {name: names.count(name) for name in sorted(names)}
    return ", ".join(f"{count} x {name}" for name, count in counted.items()) or NONE


def _driver(report: Report) -> str | None:
    gpus = report.machine.get("gpus")
    if gpus is None:
        return None
    return ", ".join(sorted({str(gpu["driver"]) for gpu in gpus if gpu.get("driver")})) or (None if gpus else NONE)


def _memory(report: Report) -> str | None:
    """To the GB: the kernel keeps a little less or more of it for itself."""
    size = report.machine.get("memory_bytes")
    return None if size is None else show_bytes(round(size / 1e9) * 1e9)


def _command(report: Report) -> str | None:
    return shlex.join(report.run.command) if report.run.command else None


def _ended(report: Report) -> str:
    """How the program itself ended: one that failed has done another amount of work."""
    code, signal = report.outcome.target_exit_code, report.outcome.target_signal
    return f"killed by signal {signal}" if signal else "not seen" if code is None else f"exit {code}"


def _variables(report: Report) -> str | None:
    known = report.machine.get("environment_variables")
    if known is None:
        return None
    own = {name: text for name, text in known.items() if name.startswith(_TELLING)}
    return " ".join(f"{name}={text}" for name, text in sorted(own.items())) or NONE


_TELLING = (
    "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "NUMEXPR_", "TORCH", "PYTORCH_", "CUDA_", "CUBLAS_", "CUDNN_",
    "NCCL_", "NVIDIA_", "HIP_", "LD_PRELOAD", "MALLOC_", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONMALLOC",
)  # fmt: skip
"""How the names begin of variables that change how fast a program runs."""

STEADY = "steady steps"


def _steady(report: Report) -> str:
    step = report.metrics.get("step_s")
    return NONE if step is None or step.value is None else "timed"


def _steps(report: Report) -> str | None:
    """Of a bare run, in the median."""
    steps = report.metrics.get("steps")
    return None if steps is None or steps.median is None else f"{steps.median:g}"


FACTS: tuple[Fact, ...] = (
    Fact("command", _command, "mark", "other arguments may mean other work"),
    Fact("how the program ended", _ended, "refuse", "it has done another amount of work"),
    Fact(STEADY, _steady, "mark", "what was timed of one run alone is not compared"),
    Fact("steps of a bare run", _steps, "mark", "wall times tell of another amount of work"),
    Fact("host", _machine("hostname"), "mark", "machines of one make differ by some percent"),
    Fact("architecture", _machine("architecture"), "refuse"),
    Fact("CPU", _cpu("model"), "refuse", needed=True),
    Fact("CPUs", _cpu("logical"), "refuse", needed=True),
    Fact("usable CPUs", _cpu("usable"), "refuse"),
    Fact("CPU governor", _cpu("governor"), "refuse", "other clocks", needed=True),
    Fact("SMT", _cpu("smt"), "refuse"),
    Fact("memory", _memory, "mark"),
    Fact("GPUs", _gpus, "refuse", needed=True),
    Fact("GPU driver", _driver, "refuse", needed=True),
    Fact("kernel", _machine("kernel"), "mark"),
    Fact("operating system", _machine("os"), "mark"),
    Fact("container", _machine("container"), "mark"),
    Fact("Python", _target("python"), "refuse"),
    Fact("torch", _torch, "refuse"),
    Fact("environment variables", _variables, "mark"),
    Fact("profrun", lambda report: report.run.profrun_version, "mark"),
)


def _text(value: Any) -> str | None:
    return None if value is None or value == "" else str(value)


def _facts(a: Report, b: Report) -> Iterator[Unlike]:
    for fact in FACTS:
        here, there = _text(fact.of(a)), _text(fact.of(b))
        if (here is None or there is None) and (here != there or fact.needed):
            yield Unlike(fact.name, here, there, "unknown", "mark", fact.note)
        elif here != there:
            yield Unlike(fact.name, here, there, "differs", fact.severity, fact.note)


def _failed(a: Report, b: Report) -> Iterator[Unlike]:
    """Two runs that failed alike are no measure of the program either."""
    if _ended(a) == _ended(b) and (_has_failed(a) or _has_failed(b)):
        fact, note = "what a program that failed has done", "nobody knows how much of its work that was"
        yield Unlike(fact, _ended(a), _ended(b), "differs", "refuse", note)


def _has_failed(report: Report) -> bool:
    """By the run whose exit status is the target's: the first bare one, else the first at all."""
    ran = sorted((p for p in report.passes if p.run), key=lambda p: p.role not in ("warmup", "bare"))
    first = ran[0].run if ran else None
    return first is not None and sides.failed(first, sides.fine_statuses(report))


# ---------------------------------------------------------------- the state of the machine

_BUSY_FROM = 0.5
"""A load average of this many processes for each CPU, before the run began, is other work that gets in its way."""


def _load(a: Report, b: Report) -> Iterator[Unlike]:
    """Other work on the machine comes and goes between two runs, and no statistics of either's own runs can see it."""
    here, there = _busy(a), _busy(b)
    if here and there and here[0] != there[0] and max(here[1], there[1]) > _BUSY_FROM:
        yield Unlike("load before", here[0], there[0], "differs", "mark", "other work on the machine comes and goes")


def busy(a: Report, b: Report) -> str:
    """That other work was there before both runs, with how much; empty where it was not."""
    here, there = _busy(a), _busy(b)
    if here is None or there is None or min(here[1], there[1]) <= _BUSY_FROM:
        return ""
    return f"the machine was busy before both runs: a load of {here[0]}, and of {there[0]}"


def _busy(report: Report) -> tuple[str, float] | None:
    """The load average of the last minute, in words and for each CPU."""
    cpus, loads = _cpu("usable")(report), report.machine.get("load_average")
    return (f"{loads[0]:.2g} on {cpus} CPUs", loads[0] / cpus) if cpus and loads else None


def _environment(a: Report, b: Report) -> Iterator[Unlike]:
    """What the environment steps brought about: clocks, affinity, seeds. One that was not in force is another state."""
    here, there = _states(a.environment), _states(b.environment)
    unwatched = {*_states(one for one in (*a.environment, *b.environment) if one.ignored)}
    for name in dict.fromkeys((*here, *there)):
        if here.get(name) != there.get(name):
            one, other = here.get(name, _NOT_SET), there.get(name, _NOT_SET)
            severity: Severity = "mark" if name in unwatched else "refuse"
            yield Unlike(name, one, other, "differs", severity, "another state of the machine")


_NOT_SET = "not in the plan"


_WAITS = ("cpu_idle", "gpu_idle", "quiet_services", "wait_cool", "shell", "env", "drop_caches")
"""Steps that look, wait or do something once: what they find differs from run to run, and only whether they were in
force tells."""


def _states(records: Iterable[StepRecord]) -> dict[str, str]:
    """What each environment step has brought about, by its part where it has any: the value, or why not."""
    found: dict[str, str] = {}
    for record in records:
        name = f"environment {record.use}"
        if record.use in _WAITS or record.status not in IN_FORCE or not record.parts:
            found[name] = "in force" if record.status in IN_FORCE else record.status
            continue
        for part in record.parts:
            value = part.verified or part.wanted
            found[f"{name}: {part.name}"] = f"{value}" if part.status in IN_FORCE else f"{value} ({part.status})"
    return found


_CLOCKS = (
    ("GPU clock", "gpu", "sm_clock_mhz"),
    ("GPU memory clock", "gpu", "memory_clock_mhz"),
    ("CPU clock", "core", "clock_mhz"),
)
_CLOCK_WITHIN = 0.03


def _clocks(a: Report, b: Report) -> Iterator[Unlike]:
    """The clocks as the monitor saw them at work: nine of ten readings were no higher."""
    here, there = _seen_mhz(a), _seen_mhz(b)
    for name, *_ in _CLOCKS:
        one, other = here.get(name), there.get(name)
        if one and other and abs(one / other - 1) > _CLOCK_WITHIN:
            said = (f"{one:.0f} MHz", f"{other:.0f} MHz")
            yield Unlike(name, *said, "differs", "mark", "nothing held it: gpu_clocks and cpu_frequency do")


def _seen_mhz(report: Report) -> dict[str, float]:
    frame = report.table("samples")
    if frame is None:
        return {}
    seen = {
        name: frame.loc[(frame["source"] == source) & (frame["metric"] == metric), "value"].dropna()
        for name, source, metric in _CLOCKS
    }
    return {name: float(values.quantile(0.9)) for name, values in seen.items() if len(values)}


# ---------------------------------------------------------------- plans


@dataclass(frozen=True)
class _Plan:
    """The parts of a plan that decide what is measured, by their path."""

    leaves: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, report: Report) -> _Plan | None:
        tree = sides.plan(report)
        try:
            return None if tree is None else cls(dict(_leaves(tree)))
        except (AttributeError, TypeError):  # valid YAML of another shape
            return None


_REFUSES = ("window", "launcher", "target.inject")
"""Parts of a plan without which the bare runs are not the same: other steps, another number of processes. (What the
environment steps have brought about is compared as such.)"""
_IGNORED = (
    "version", "name", "description", "extends", "target.command", "target.cwd", "target.timeout", "target.retry",
    "environment", "budget", "leftovers", "tools", "report", "metrics",
)  # fmt: skip
_IGNORED_OPTIONS = ("required", "timeout", "flush", "size_cap", "time_cap", "max_time", "max_memory", "max_slowdown")


def _leaves(tree: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if key == "collectors":
            yield from _options(value or ())
        elif isinstance(value, dict) and key in ("target", "launcher"):
            members = ((f"{key}.{name}", one) for name, one in value.items() if one is not None)
            yield from ((name, _said(one)) for name, one in members if name not in _IGNORED)
        elif key not in _IGNORED and value is not None:
            yield key, _said(value)


def _options(items: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """The options of each collector by its name; of the same collector used twice, as `torch 2`."""
    seen: dict[str, int] = {}
    for item in items:
        for one in item.get("together") or (item,):
            use = str(one.get("use"))
            seen[use] = seen.get(use, 0) + 1
            label = f"collectors.{use}" + (f" {seen[use]}" if seen[use] > 1 else "")
            yield label, "used"
            told = ((k, v) for k, v in one.items() if v is not None and k not in ("use", *_IGNORED_OPTIONS))
            yield from ((f"{label}.{k}", _said(v)) for k, v in told)


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _plans(a: Report, b: Report) -> Iterator[Unlike]:
    here, there = _Plan.of(a), _Plan.of(b)
    if here is None or there is None:
        yield Unlike("plan", "known" if here else None, "known" if there else None, "unknown", "mark")
        return
    paths = dict.fromkeys((*here.leaves, *there.leaves))
    differing = [path for path in paths if here.leaves.get(path) != there.leaves.get(path)]
    alone = {path for path in differing if "used" in (here.leaves.get(path), there.leaves.get(path))}
    for path in differing:
        if any(path.startswith(f"{one}.") for one in alone):
            continue  # the options of a collector that the other plan has not
        severity: Severity = "refuse" if path.startswith(_REFUSES) else "mark"
        yield Unlike(f"plan {path}", here.leaves.get(path, NONE), there.leaves.get(path, NONE), "differs", severity)


# ---------------------------------------------------------------- captures


def _captures(a: Report, b: Report) -> Iterator[Unlike]:
    """A capture that is degraded or lost tells less, and one that was bent by measuring tells of another program."""
    here, there = _told(a), _told(b)
    for name in dict.fromkeys((*here, *there)):
        one, other = here.get(name), there.get(name)
        if one is None or other is None:
            continue  # the plans differ, and that is said
        if one != other:
            yield Unlike(f"capture {name}", one, other, "differs", "mark", "what hangs on it may only seem to differ")
        elif one.startswith("degraded"):
            yield Unlike(f"capture {name}", one, other, "unknown", "mark", "what is lost is unknown of both")


def _told(report: Report) -> dict[str, str]:
    """By collector, the worst of its captures: its status, and how far it was bent."""
    warm = {p.id for p in report.passes if p.role == "warmup"}
    told: dict[str, str] = {}
    for capture in report.captures:
        if capture.pass_id in warm or told.get(capture.collector, "ok") != "ok":
            continue
        bent = f", {capture.trust}" if capture.trust not in ("high", None) and capture.status in USABLE else ""
        told[capture.collector] = capture.status + bent
    return told
