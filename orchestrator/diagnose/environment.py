"""Rules about the machine: what of the plan's state was not reached, who else was there, and what was not put back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from orchestrator.model import Evidence, Finding, StepRecord, StepStatus
from orchestrator.report import Report

Severity = Literal["critical", "major", "minor", "info"]

_SEVERITY: Mapping[StepStatus, Severity] = {
    "failed": "minor",
    "refused": "minor",
    "drifted": "minor",
    "clamped": "info",
    "not_available": "info",
}
_WORDS: Mapping[StepStatus, str] = {
    "failed": "did not work",
    "refused": "was refused",
    "drifted": "was not in force when the program ran",
    "clamped": "was applied only as far as this machine goes",
    "not_available": "is not possible on this machine",
}
_ADVICE: Mapping[StepStatus, str] = {
    "failed": "Look at the reason; until it is mended, times of different runs may differ because of it.",
    "refused": "Give the permission that the reason names, or take the step out of the plan.",
    "drifted": "Find out what changed it back; the figures of this run are those of the machine as it then was.",
    "clamped": "Write the value that was reached into the plan, so that every machine gets the same.",
    "not_available": "Compare with runs on this machine only, or choose one that can do it; else take the step out.",
}


def not_put_back(report: Report) -> Iterator[Finding]:
    """A setting stands as profrun has left it, for everybody who uses this machine."""
    left = [step for step in report.environment if step.restored is False]
    if not left:
        return
    names = ", ".join(step.use for step in left)
    why = "; ".join(f"{step.use}: {step.reason}" for step in left if step.reason)
    yield Finding(
        rule="machine_not_put_back",
        category="environment",
        severity="critical",
        title=f"The machine is not as it was found: {names}",
        advice=f"Run `profrun env restore` on it, and look with `profrun env show`.{f' ({why})' if why else ''}",
        confidence="high",
        evidence=tuple(Evidence("environment", step.use, "not put back") for step in left),
    )


def former_lock_gone(report: Report) -> Iterator[Finding]:
    """A GPU's clocks seem to have been locked before the run. There is no way to read a lock, so it was reset."""
    for step in report.environment:
        gpus = step.before.get("gpus", {}).values() if step.use == "gpu_clocks" and step.before else ()
        reset = {part.name for part in step.parts if part.after == "reset"}
        gone = [gpu for gpu in gpus if gpu.get("lock_seen") and f"GPU {gpu['gpu']} graphics" in reset]
        for gpu in gone:
            clock = f"{gpu['graphics_mhz']},{gpu['graphics_mhz']}"
            yield Finding(
                rule="former_lock_gone",
                category="environment",
                severity="minor",
                title=f"GPU {gpu['gpu']} is not as it was found, if its clock was locked: that was reset",
                advice=f"Before the run {gpu['lock_seen']}. If it was one, set it again: "
                f"nvidia-smi -i {gpu['gpu']} -lgc {clock}",
                confidence="medium",
                evidence=(Evidence("environment", f"GPU {gpu['gpu']} graphics before", gpu["graphics_mhz"], "MHz"),),
            )


def busy_gpu(report: Report) -> Iterator[Finding]:
    """Somebody else used a GPU that the program was measured on."""
    for step in _ended(report, "gpu_idle", "failed"):
        what, rest = _first(step.reason or "somebody else used it")
        advice = f"{rest}Times on a shared GPU say little. {_next(step, 'wait for it (`wait: 10m` on gpu_idle)')}"
        yield _found("busy_gpu", "major", f"The GPU was not idle: {what}", advice, step)


def busy_machine(report: Report) -> Iterator[Finding]:
    """The processors had other work when the runs began."""
    for step in _ended(report, "cpu_idle", "failed"):
        what, rest = _first(step.reason or "its processors were busy")
        advice = f"{rest}Small differences may come from that. {_next(step, 'wait for it (`wait: 10m` on cpu_idle)')}"
        yield _found("busy_machine", "minor", f"The machine was not idle: {what}", advice, step)


def _first(reason: str) -> tuple[str, str]:
    """What fits into a title, and the rest as a sentence before the advice."""
    what, _, rest = reason.partition("; ")
    return what, f"{rest.removesuffix('.')}. " if rest else ""


def clock_not_held(report: Report) -> Iterator[Finding]:
    """The GPU took the lock of its clocks, and ran at others."""
    for step in report.environment:
        if _is_lost_lock(step):
            reason = step.reason or ""
            usual = "lock a lower clock, one that the GPU holds under this load, or find what holds it down"
            monitors = tuple(c.id for c in report.captures if c.collector == "monitor")
            title = f"{reason[0].upper()}{reason[1:]}"
            yield _found("clock_not_held", "major", title, _next(step, usual), step, monitors)


def _is_lost_lock(step: StepRecord) -> bool:
    return step.use == "gpu_clocks" and step.status == "drifted" and "lock not held" in (step.reason or "")


def step_not_in_force(report: Report) -> Iterator[Finding]:
    """A step whose state was not reached, or not quite."""
    for step in report.environment:
        if step.status not in _SEVERITY or (step.use, step.status) in _OWN_RULES or _is_lost_lock(step):
            continue
        value = f" ({step.detail})" if step.detail else ""
        title = f"{step.use} {_WORDS[step.status]}{value}" + (f": {step.reason}" if step.reason else "")
        general = "" if step.status == "clamped" and step.fix else _ADVICE[step.status]  # a step knows better
        advice = " ".join(filter(None, (general, f"Next: {step.fix}" if step.fix else "")))
        yield _found("step_not_in_force", _SEVERITY[step.status], title, advice, step)


_OWN_RULES = {("gpu_idle", "failed"), ("cpu_idle", "failed")}


def _ended(report: Report, use: str, status: StepStatus) -> Iterator[StepRecord]:
    return (step for step in report.environment if (step.use, step.status) == (use, status))


def _next(step: StepRecord, usual: str) -> str:
    return f"Next: {step.fix or usual}."


def _found(
    rule: str, severity: Severity, title: str, advice: str, step: StepRecord, sources: tuple[str, ...] = ()
) -> Finding:
    return Finding(
        rule=rule,
        category="environment",
        severity="info" if step.ignored else severity,
        title=title.rstrip("."),
        advice=advice,
        confidence="high",
        evidence=(Evidence("environment", step.use, step.status.replace("_", " ")), *_numbers(step.during)),
        sources=sources,
    )


_UNITS = {"_mhz": "MHz", "_pct": "%"}


def _numbers(during: Any) -> Iterator[Evidence]:
    """The figures that were seen while the passes ran: of several GPUs those of the ones that were off."""
    seen = during if isinstance(during, Mapping) else {}
    gpus = [one for one in seen.values() if isinstance(one, Mapping) and "gpu" in one]
    for gpu in [one for one in gpus if "held_down_pct" in one] or gpus:
        rest = {key: value for key, value in gpu.items() if key != "gpu" and not _is_held(value)}
        yield from _figures(rest, f"GPU {gpu['gpu']}")
    yield from _figures({} if gpus else seen, "during")


def _is_held(value: Any) -> bool:
    """Whether no sample of a clock was off."""
    return isinstance(value, Mapping) and value.get("off") == 0


def _figures(values: Mapping[str, Any], name: str, unit: str | None = None) -> Iterator[Evidence]:
    """Every number, with the unit that the ending of its key names, or that of the group it stands in."""
    for key, value in values.items():
        ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
        label, own = f"{name} {key.removesuffix(ending).replace('_', ' ')}", _UNITS.get(ending, unit)
        if isinstance(value, Mapping):
            yield from _figures(value, label, own)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            counted = key == "off"
            yield Evidence("environment", f"{label} (samples)" if counted else label, value, None if counted else own)


RULES = (not_put_back, former_lock_gone, busy_gpu, busy_machine, clock_not_held, step_not_in_force)
