"""What each environment step says on each form of the played machine: one run of profrun for each, and what its report
has of the step."""

from __future__ import annotations

import json
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from restorebench.trials import PYTHON, Machine
from tests.fakes import sysfs
from tests.fakes.gpus import MACHINE

_CPU = "{use: cpu_frequency, governor: performance, min: 2GHz, max: 2GHz, turbo: false, max_cstate: 1}"
_CLOCKS = "{use: gpu_clocks, graphics: 1830MHz, memory: max, persistence: true}"
_IDLE = "{use: gpu_idle, over: 200ms}"
_COOL = "{use: wait_cool, gpu: 50, wait: 1s}"


@dataclass(frozen=True)
class Case:
    """A step on a form of the machine. `gpus`: settings of all its GPUs; `second`: others of the second one."""

    step: str
    form: str
    processors: str = "none"
    gpus: Mapping[str, object] = field(default_factory=dict)
    second: Mapping[str, object] = field(default_factory=dict)
    loses: str = ""
    """Which of the settings can't be put back, as nobody can read it: expected, and not counted."""


def cases() -> Iterator[Case]:
    """All that is shown, in order."""
    yield from (Case(_CPU, form, form) for form in sysfs.FORMS)
    yield Case(_CLOCKS, "GPUs that accept")
    for way in ("clamp", "refuse", "ignore", "unsupported", "hang"):
        yield Case(_CLOCKS, f"GPUs that {way}", gpus={"lgc_way": way, "lmc_way": way, "pm_way": way})
    yield Case(_CLOCKS, "one GPU refuses", second={"lgc_way": "refuse", "lmc_way": "refuse"})
    yield Case(_CLOCKS, "a driver that hangs", gpus={"smi_hang": 1, "nvml_hang": 1})
    yield Case(_CLOCKS, "no driver", gpus={"no_driver": 1})
    yield Case(_CLOCKS, "a lock seems to be there", gpus={"lgc": "1200,1200", "lock_at_idle": 1}, loses="lgc")
    yield Case(_IDLE, "idle GPUs")
    yield Case(_IDLE, "busy, nobody listed", gpus={"mem_used": 814, "util": 78})
    draws = {"processes": "G:1:300:/usr/lib/xorg/Xorg", "mem_used": 300, "display": 1}
    yield Case(_IDLE, "a display server", gpus=draws)
    yield Case(_IDLE, "a driver that hangs", gpus={"smi_hang": 1, "nvml_hang": 1})
    yield Case(_COOL, "cool GPUs")
    yield Case(_COOL, "hot GPUs", gpus={"temperature": 71})


def shown() -> tuple[str, bool]:
    """(the table, whether every run has left the machine as it was)."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(_tried, cases()))
    return "\n".join(line for lines, _ in found for line in lines), all(same for _, same in found)


def _tried(case: Case) -> tuple[list[str], bool]:
    with tempfile.TemporaryDirectory(prefix="restorebench-") as place:
        machine = Machine(Path(place), case.processors)
        machine.gpus.set(**{k: v for k, v in case.gpus.items() if k in MACHINE})
        own = {k: v for k, v in case.gpus.items() if k not in MACHINE}
        for gpu in (0, 1):
            machine.gpus.set(gpu, **own, **(case.second if gpu else {}))
        plan = f"version: 1\nname: forms\nenvironment:\n  - {case.step}\ncollectors:\n  - {{use: timing, repeats: 1}}\n"
        Path(place, "plan.yaml").write_text(plan)
        before = machine.state()
        argv = (PYTHON, "-m", "restorebench.ruled", "run", "./plan.yaml", "-q", "-o", "reports", "--", "true")
        began = time.monotonic()
        code = machine.start(*argv).wait()
        took_s = time.monotonic() - began
        changed = [name for name, text in machine.state().items() if text != before[name]]
        summary = Path(place, "reports/latest/summary.json")
        if not summary.exists():
            return [f"{case.form}: exit {code}, and no report", Path(place, "said").read_text()], False
        (record,) = json.loads(summary.read_text())["environment"]
    expected = bool(case.loses) and all(name.endswith(f".{case.loses}") for name in changed)
    return list(_lines(case, record, code, took_s, changed, expected)), expected or not changed


def _lines(
    case: Case, record: Mapping[str, Any], code: int, took_s: float, changed: Sequence[str], expected: bool
) -> Iterator[str]:
    status = record["status"] + (f" ({record['detail']})" if record["detail"] else "")
    put_back = "MACHINE CHANGED: " + ", ".join(changed) if changed else "machine as it was"
    if changed and expected:
        put_back = f"machine as it was but for {', '.join(changed)}, as expected: it can't be read"
    yield f"{record['use']:14} {case.form:26} {status}, exit {code}, {took_s:.0f} s, {put_back}"
    for name in ("reason", "fix"):
        if record[name]:
            text = f"{name}: {record[name]}"
            yield from textwrap.wrap(text, 118, initial_indent=" " * 15, subsequent_indent=" " * 17)
