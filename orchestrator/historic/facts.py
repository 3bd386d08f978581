"""What must be equal for two runs to be compared: the machine, the software, the plan and the command; and where the
steps of a run went."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.errors import ProfrunError, ReportError
from orchestrator.model import StepRecord
from orchestrator.report import Report

NONE = "none"
"""A fact that is known: there is no such thing. Unknown is None."""
LEFT_OUT = (
    "name", "description", "extends", "report", "tools", "environment", "collectors", "budget", "leftovers", "metrics",
)  # fmt: skip
"""Of a plan: what only names it and its folders, what only limits or reads a run, and what is told in another form."""
_LEFT_OUT_OF_TARGET = ("command", "cwd", "timeout")
_PACE = re.compile(r"(?:OMP|KMP|MKL|OPENBLAS|CUDA|CUBLAS|CUDNN|NCCL|TORCH\w*|PYTORCH|TRITON|MALLOC)_\w+|LD_PRELOAD")
"""Environment variables by which a program may become slower or faster."""
_GIB = 1 << 30


def fingerprint(report: Report) -> tuple[str, dict[str, Any]]:
    """(fingerprint, the facts it is made of). Of two runs whose fingerprints are equal no fact is known to differ, and
    the same ones are unknown (None): `unknown` names them."""
    facts = {
        **_machine(report.machine),
        "environment": _lasting(report.environment),
        "command": shlex.join(report.run.command),
        "plan": _plan(report.folder),
    }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16], facts


def unknown(facts: Mapping[str, Any]) -> list[str]:
    """The facts that nothing is known of: two runs are not known to be equal in these."""
    return [name for name, value in facts.items() if value is None]


def context(report: Report) -> dict[str, str]:
    """What may make a program slower or faster and yet does not keep runs from being compared."""
    machine = report.machine
    variables = machine.get("environment_variables") or {}
    known = {
        "host": machine.get("hostname"),
        "system": machine.get("os"),
        "kernel": machine.get("kernel"),
        "profrun": report.run.profrun_version,
        "working directory": report.run.cwd,
        **{name: text for name, text in variables.items() if _PACE.fullmatch(name)},
    }
    return {name: str(value) for name, value in known.items() if value is not None}


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(fact, in a, in b) for each fact that differs, those inside the plan by their place in it. A fact that only one
    of them knows is one of these."""
    return [one for name in dict.fromkeys([*a, *b]) for one in _different(name, a.get(name), b.get(name))]


def _different(name: str, a: Any, b: Any) -> Iterator[tuple[str, str, str]]:
    if a == b:
        return
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        left, right = dict(_leaves(name, a)), dict(_leaves(name, b))
        for place in dict.fromkeys([*left, *right]):
            here, there = left.get(place, _missing(place, left)), right.get(place, _missing(place, right))
            if here != there:
                yield place, _word(here), _word(there)
    else:
        yield name, _word(a), _word(b)


DEFAULT = "the default"


def _missing(place: str, leaves: Mapping[str, Any]) -> str:
    """What a place holds that is not there: the default, or nothing, where the whole item of the list is missing."""
    item = place[: place.rfind("]") + 1]
    return DEFAULT if not item or any(other.startswith(item) for other in leaves) else NONE


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return "known"
    return "unknown" if value is None else value if isinstance(value, str) else json.dumps(value)


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, own in value.items():
            yield from _leaves(f"{place}.{name}", own)
    elif isinstance(value, (list, tuple)) and any(isinstance(own, (Mapping, list, tuple)) for own in value):
        for index, own in enumerate(value):
            yield from _leaves(f"{place}[{index}]", own)
    else:
        yield place, value


# ---------------------------------------------------------------- the machine and its software


def _machine(machine: Mapping[str, Any]) -> dict[str, Any]:
    """The memory in whole GiB: what the kernel leaves of it differs from one kernel to the next."""
    cpu, target = machine.get("cpu") or {}, machine.get("target") or {}
    memory = machine.get("memory_bytes")
    return {
        "cpu": cpu.get("model"),
        "cores": cpu.get("logical"),
        "usable cores": cpu.get("usable"),
        "governor": cpu.get("governor"),
        "SMT": cpu.get("smt"),
        "memory": None if memory is None else f"{round(memory / _GIB)} GiB",
        "architecture": machine.get("architecture"),
        **_gpus(machine.get("gpus")),
        "python": target.get("python"),
        **_torch(target),
    }


_LASTS = ("refused", "not_available", "clamped")
"""States of an environment step that are the same the next time: without a right, on a machine that has no such thing
or not so much of it, every run is like that one. A run in which a step has failed, or did not last, is of the
environment that its plan asks for; a comparison says what was not in force."""


def _lasting(records: Iterable[StepRecord]) -> dict[str, str]:
    """What the environment steps can bring about here, by step, and by part where one part differs."""
    found: dict[str, str] = {}
    for record in records:
        parts = {f"{record.use}: {part.name}": part for part in record.parts if part.status in _LASTS}
        found[record.use] = record.status if record.status in _LASTS and not parts else "in force"
        found |= {name: f"{part.status} {part.verified or ''}".strip() for name, part in parts.items()}
    return found


def _gpus(gpus: Any) -> dict[str, Any]:
    if not isinstance(gpus, (list, tuple)):
        return {"gpu": None, "gpus": None, "driver": None}
    if not gpus:
        return {"gpu": NONE, "gpus": 0, "driver": NONE}
    models = Counter(gpu.get("name") for gpu in gpus)
    drivers = sorted({gpu.get("driver") for gpu in gpus} - {None})
    names = None if None in models else ", ".join(f"{n} x {name}" if n > 1 else name for name, n in models.items())
    return {"gpu": names, "gpus": len(gpus), "driver": ", ".join(drivers) or None}


def _torch(target: Mapping[str, Any]) -> dict[str, Any]:
    """torch's version tells the CUDA it was built for, as 2.4.0+cu121; one from PyPI does not."""
    if not target.get("python"):
        return {"torch": None, "cuda": None}
    torch = target.get("torch")
    if not torch:
        return {"torch": NONE, "cuda": NONE}
    built = re.search(r"\+(?:cu(\d+)(\d)|(cpu|rocm[\d.]*|xpu))", torch)
    return {"torch": torch, "cuda": None if not built else f"{built[1]}.{built[2]}" if built[1] else NONE}


# ---------------------------------------------------------------- the plan


def _plan(folder: Path) -> dict[str, Any] | None:
    """What the plan asks for beyond the defaults, so that a later profrun with more of them finds it the same; None
    where there is none that can be read."""
    try:
        text = (folder / "plan.yaml").read_text("utf-8", "surrogateescape")
    except OSError:
        return None
    if text not in _KNOWN:
        _KNOWN[text] = _slim(folder / "plan.yaml")
    return _KNOWN[text]


_KNOWN: dict[str, dict[str, Any] | None] = {}
"""What the plans ask for, by their text: the nights of one plan have the same, and it takes a while to check."""


def _slim(path: Path) -> dict[str, Any] | None:
    from orchestrator.planfile import plans

    try:
        plan = plans.load(path)
    except ProfrunError:
        return None
    kept = plan.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=set(LEFT_OUT))
    target = {key: value for key, value in kept.pop("target", {}).items() if key not in _LEFT_OUT_OF_TARGET}
    passes = [[_asked(member) for member in group] for group in plan.groups()]
    steps = [{key: value for key, value in _asked(step).items() if key != "wait"} for step in plan.environment]
    asked = {**kept, "target": target, "environment": steps, "passes": passes}
    return {key: value for key, value in asked.items() if value not in ({}, [])}


def _asked(part: Any) -> dict[str, Any]:
    return {"use": part.use, **part.model_dump(mode="json", by_alias=True, exclude_defaults=True)}


# ---------------------------------------------------------------- where the steps went


def shares(report: Report) -> dict[str, float]:
    """Category -> % of the steady steps that the thread of the steps was in it, as its samples tell, in a run that has
    them; without samples what the bare runs' loader took. `gpu: STATE` -> % of the window of the first GPU."""
    from orchestrator.diagnose import host

    try:
        return {**host.shares(report), **_gpu_shares(report)}
    except (ReportError, ArithmeticError, LookupError, TypeError, ValueError):
        return {}  # a table that is gone, damaged or odd; the rest of the run is known


_IDLE_FOR = ("host", "data", "copy", "communication", "sync", "between", "unknown")


def _gpu_shares(report: Report) -> dict[str, float]:
    frame = report.table("gpu_time")
    if frame is None or not len(frame) or not frame["window_ns"].iloc[0]:
        return {}
    first = frame.iloc[0]
    own = frame[(frame["capture"] == first["capture"]) & (frame["device"] == first["device"])]
    spent = {str(row["state"]): float(row["total_ns"] or 0) for row in own[["state", "total_ns"]].to_dict("records")}
    beside = {state: spent.get(state, 0.0) for state in ("communicating", "copying")}
    parts = {"computing": spent.get("busy", 0.0) - sum(beside.values()), **beside}
    parts |= {f"idle, {cause}": spent.get(cause, 0.0) for cause in _IDLE_FOR}
    whole_ns = float(first["window_ns"])
    return {f"gpu: {name}": round(100 * ns / whole_ns, 2) for name, ns in parts.items() if ns > 0}
