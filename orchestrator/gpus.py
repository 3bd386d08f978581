"""The GPUs as the driver tells of them: read through NVML or by nvidia-smi, always in a process of its own, because a
driver may never answer."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from orchestrator import neighbours, process
from orchestrator.formats.monitor import UNSEEN_BYTES
from orchestrator.model import ToolProbe
from orchestrator.names import spans
from orchestrator.standalone import nvml
from orchestrator.visible import ORDER, VARIABLE, visible

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from orchestrator.machine import Machine

SMI = ToolProbe("nvidia-smi", places=("/usr/lib/wsl/lib/nvidia-smi",))
"""Only looked for, never asked for its version: that is the driver's, and each question may mean to wait."""
WAKE = "reboot: a driver that hangs can't be unloaded (sudo dmesg | grep -i xid may say why)"
"""What helps against one that does not answer."""
LIMIT_VARIABLE = "PROFRUN_GPU_LIMIT_S"
"""The environment variable that shortens, or lengthens, how long a driver may take to answer."""
_LIMIT_S = 10.0
_SILENCE = "no answer"
"""In what `process.ask` says of a command that took too long."""


@dataclass(frozen=True)
class GpuProcess:
    """A process that the driver lists. user, command: None where it can't be seen from here (another namespace)."""

    pid: int
    kind: Literal["compute", "graphics"]
    memory_bytes: int | None = None
    user: str | None = None
    command: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU at one moment. Clocks in MHz; None: this GPU or its driver does not say, `errors` has why, by field."""

    index: int
    uuid: str
    name: str | None = None
    pci: str | None = None
    compute_capability: str | None = None
    mig: bool | None = None
    mig_uuids: tuple[str, ...] = ()
    pstate: int | None = None
    persistence: bool | None = None
    display_active: bool | None = None
    sm_mhz: int | None = None
    graphics_mhz: int | None = None
    memory_mhz: int | None = None
    max_graphics_mhz: int | None = None
    max_memory_mhz: int | None = None
    applications_graphics_mhz: int | None = None
    applications_memory_mhz: int | None = None
    default_applications_graphics_mhz: int | None = None
    default_applications_memory_mhz: int | None = None
    supported: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Graphics clocks by memory clock; empty when unknown."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilization_pct: tuple[int, ...] = ()
    """One value for each look at it within the window."""
    temperature_c: int | None = None
    clock_reasons: int | None = None
    """Bit mask of what holds the clocks down (NVML's clocks event reasons)."""
    processes: tuple[GpuProcess, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)

    def why_unknown(self, name: str) -> str:
        """Why a field is None, in words."""
        error = self.errors.get(name, "NOT_SUPPORTED")
        return _ERROR_WORDS.get(error) or (error.replace("_", " ").lower() if re.fullmatch("[A-Z_]+", error) else error)


_ERROR_WORDS = {
    "NOT_SUPPORTED": "not offered by this GPU",
    "NO_PERMISSION": "not told to this user",
    "FUNCTION_NOT_FOUND": "this driver, or what asks it, is too old to tell",
    "GPU_IS_LOST": "the GPU is lost",
}
"""NVML's names of errors, as far as they have better words."""


@dataclass(frozen=True)
class Look:
    """What the driver has answered. `why_not`: no GPU could be read, and why (no answer in 10 s, no driver ...)."""

    gpus: tuple[Gpu, ...] = ()
    through: Literal["NVML", "nvidia-smi"] | None = None
    driver: str | None = None
    why_not: str | None = None
    processes_hidden: bool = False
    """Other processes can't be listed from here, as in a container."""
    silent: bool = False
    """`why_not` is that the driver did not answer in time."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The GPUs that a program with a given environment will use, in the order in which CUDA numbers them; or those that
    somebody has named. missing: names that no GPU bears."""

    gpus: tuple[Gpu, ...] = ()
    notes: tuple[str, ...] = ()
    why_none: str | None = None
    missing: tuple[str, ...] = ()


def limit_s() -> float:
    """How long a driver may take to answer a question or a command."""
    with contextlib.suppress(ValueError):
        asked = float(os.environ.get(LIMIT_VARIABLE, ""))
        if 0 < asked < math.inf:
            return asked
    return _LIMIT_S


def look(machine: Machine, *, window_s: float = 0.0, timeout_s: float | None = None) -> Look:
    """Asks the driver once, or for utilisation over a window. Never raises; takes the window and the limit at most.

    One that has been silent once is not asked again by this `machine`: it would cost the limit at each question."""
    if machine.gpu_silence:
        return Look(why_not=machine.gpu_silence, silent=True)
    limit = limit_s() if timeout_s is None else timeout_s
    until = time.monotonic() + window_s + limit
    why_none = _no_driver(machine)
    if why_none:
        return Look(why_not=why_none)
    found = _through_nvml(machine, window_s, until)
    if found.why_not and not found.silent:
        found = _through_smi(machine, window_s, until, found.why_not)
    if found.silent:
        machine.gpu_silence = f"{_SILENCE} of the GPUs' driver in {limit:g} s"
        return replace(found, why_not=machine.gpu_silence)
    return replace(found, processes_hidden=_processes_hidden(machine, found.gpus))


def selected(found: Look, env: Mapping[str, str]) -> Selection:
    """Of all GPUs those that CUDA would show a program with this environment, by UUID."""
    if found.why_not:
        return Selection(why_none=found.why_not)
    if not found.gpus:
        return Selection(why_none="this machine has no GPU")
    seen = visible(found.gpus, env)
    return Selection(tuple(found.gpus[place] for place in seen.places), tuple(seen.notes), seen.why_none)


def of_target(found: Look, machine: Machine) -> Selection:
    """Those that the target will use, or uses; all of them where that can't be known."""
    chosen = selected(found, machine.target_env)
    unknown = machine.target_env_unknown
    return replace(chosen, notes=(*chosen.notes, unknown)) if unknown and chosen.gpus else chosen


def named(found: Look, names: Iterable[str]) -> Selection:
    """The GPUs that somebody has named, each by the driver's number, its UUID or the beginning of that."""
    places, notes, missing = [], [], []
    for name in names:
        seen = visible(found.gpus, {VARIABLE: name, ORDER: "PCI_BUS_ID"})
        places += seen.places
        notes += seen.notes
        missing += [] if seen.places else [name]
    why_none = found.why_not or (None if places else "; ".join(no_gpu(found, name) for name in missing))
    chosen = tuple(found.gpus[place] for place in dict.fromkeys(places))
    return Selection(chosen, tuple(notes), why_none, tuple(missing))


def no_gpu(found: Look, name: str) -> str:
    """That no GPU bears a name, and which there are."""
    there = spans(gpu.index for gpu in found.gpus)
    return f"there is no GPU {name}; there {'is' if len(found.gpus) == 1 else 'are'} {there or 'none'}"


def _no_driver(machine: Machine) -> str | None:
    """What can be told without asking: most machines have no GPU, and must not pay for the question."""
    signs = ("proc/driver/nvidia/version", "dev/dxg")
    if any(machine.path(sign).exists() for sign in signs) or machine.find(SMI):
        return None
    if machine.path("etc/nv_tegra_release").exists():
        return "a Jetson has no nvidia-smi: its clocks are set with nvpmodel and jetson_clocks"
    return "no NVIDIA driver is here"


# ---------------------------------------------------------------- NVML


def _through_nvml(machine: Machine, window_s: float, until: float) -> Look:
    argv = [sys.executable, "-I", nvml.__file__, f"{window_s:g}"]
    said = process.ask(argv, timeout_s=max(0.0, until - time.monotonic()))
    if said.exit is None:
        return Look(why_not=said.error, silent=_SILENCE in (said.error or ""))
    try:
        answer = json.loads(said.stdout)
    except ValueError:
        last = said.stderr.strip().splitlines()[-1:] or [said.exit.describe()]
        return Look(why_not=f"NVML can't be asked: {last[0]}")
    if "error" in answer:
        return Look(why_not=answer["error"])
    gpus = tuple(_gpu(machine, one) for one in answer["gpus"])
    return Look(gpus, "NVML", answer["driver"], notes=tuple(answer["notes"]))


def _gpu(machine: Machine, told: Mapping[str, Any]) -> Gpu:
    """A GPU from JSON's types. `told` may have fewer fields, and processes with the name that the driver knows."""
    known = {one.name for one in fields(Gpu)}
    supported = {int(mhz): tuple(sorted(map(int, clocks))) for mhz, clocks in told.get("supported", {}).items()}
    processes = tuple(_process(machine, **one) for one in told.get("processes", ()))
    lists = {name: tuple(told.get(name, ())) for name in ("mig_uuids", "utilization_pct")}
    flat = {name: value for name, value in told.items() if name in known}
    return Gpu(**{**flat, **lists, "supported": supported, "processes": processes})


# ---------------------------------------------------------------- processes


def _process(machine: Machine, pid: int, kind: Any, memory_bytes: int | None, name: str | None) -> GpuProcess:
    """With its user and command, where the process of that number here is the one that the driver means."""
    words = (machine.read(f"proc/{pid}/cmdline") or "").replace("\0", " ").strip()
    called = bool(words and name and words.split()[0].endswith(os.path.basename(name)))  # noqa: PTH119
    same = words and (called or neighbours.all_pids_here(machine))
    shown = None if not name or name.startswith("[") or name == "-" else name
    if not same:
        return GpuProcess(pid, kind, memory_bytes, None, shown)
    return GpuProcess(pid, kind, memory_bytes, neighbours.user(machine, pid), words)


def _processes_hidden(machine: Machine, gpus: Iterable[Gpu]) -> bool:
    """Whether processes may use a GPU that the driver does not list here."""
    unseen = any((gpu.memory_used_bytes or 0) > UNSEEN_BYTES and not gpu.processes and not gpu.mig for gpu in gpus)
    return unseen or not neighbours.all_pids_here(machine)


# ---------------------------------------------------------------- nvidia-smi

_NUMBERS = {
    "index": "index", "sm_mhz": "clocks.sm", "graphics_mhz": "clocks.gr", "memory_mhz": "clocks.mem",
    "max_graphics_mhz": "clocks.max.gr", "max_memory_mhz": "clocks.max.mem",
    "applications_graphics_mhz": "clocks.applications.gr", "applications_memory_mhz": "clocks.applications.mem",
    "default_applications_graphics_mhz": "clocks.default_applications.gr",
    "default_applications_memory_mhz": "clocks.default_applications.mem", "temperature_c": "temperature.gpu",
}  # fmt: skip
_BYTES = {"memory_used_bytes": "memory.used", "memory_total_bytes": "memory.total"}
_TEXTS = {"uuid": "uuid", "name": "name", "pci": "pci.bus_id", "compute_capability": "compute_cap"}
_SWITCHES = {"persistence": "persistence_mode", "display_active": "display_active", "mig": "mig.mode.current"}
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Two names of one thing: since driver 535, and before."""
_USE = "utilization.gpu"
_QUESTIONS = ("pstate", *_NUMBERS.values(), *_BYTES.values(), *_TEXTS.values(), *_SWITCHES.values(), *_REASONS, _USE)
_ERRORS = {"NOT_SUPPORTED": ("n/a", "not supported"), "NO_PERMISSION": ("insufficient permissions",)}
"""NVML's names of what nvidia-smi prints for the same."""
_NO_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')

Row = Mapping[str, str]


class _Silence(Exception):
    """nvidia-smi does not answer."""


class _Refusal(Exception):
    """Why nvidia-smi tells nothing."""


class _Smi:
    """Questions to nvidia-smi, all of them within one time limit. Raise _Silence and _Refusal."""

    def __init__(self, path: str, until: float) -> None:
        self._path, self._until = path, until

    def ask(self, *words: str) -> str:
        said = process.ask([self._path, *words], timeout_s=max(0.0, self._until - time.monotonic()))
        if said.exit is None:
            raise (_Silence if _SILENCE in (said.error or "") else _Refusal)(said.error)
        if not said.ok:
            lines = (said.stdout + said.stderr).strip().splitlines() or [said.exit.describe()]
            raise _Refusal(lines[0])
        return said.stdout

    def query(self, question: str, *names: str) -> list[Row]:
        """A row of cells for each line of the answer. For a field that this version does not know it refuses them all:
        then those that do not stand in its help are left out."""
        wanted = list(names)
        while True:
            try:
                text = self.ask(f"--query-{question}={','.join(wanted)}", "--format=csv,noheader,nounits")
            except _Refusal as refusal:
                unknown = _NO_FIELD.search(str(refusal))
                if not unknown or unknown[1] not in wanted or len(wanted) == 1:
                    raise
                listed = set(re.findall(r'"([a-z0-9_.]+)"', self.ask(f"--help-query-{question}")))
                wanted = [name for name in wanted if name != unknown[1] and (name in listed or not listed)]
            else:
                cells = ([cell.strip() for cell in line.split(",")] for line in text.splitlines())
                return [dict(zip(wanted, row, strict=True)) for row in cells if len(row) == len(wanted)]


def _through_smi(machine: Machine, window_s: float, until: float, why_no_nvml: str) -> Look:
    path = machine.find(SMI)
    if path is None:
        return Look(why_not=f"{why_no_nvml}; nvidia-smi: command not found")
    smi = _Smi(path, until)
    try:
        rows = [row for row in smi.query("gpu", "driver_version", *_QUESTIONS) if row.get("index", "").isdigit()]
        told = {row["uuid"]: _told(row) for row in rows}
        _watch_use(smi, window_s, told)
        _add_clocks(smi, told)
        _add_from_xml(smi, told)
        _add_parts(smi, told)
    except _Silence as silence:
        return Look(silent=True, why_not=str(silence))
    except _Refusal as refusal:
        said = str(refusal)
        return Look(why_not=said if "nvidia" in said.lower() else f"nvidia-smi: {said}")
    driver = next((row.get("driver_version") for row in rows), None)
    return Look(tuple(_gpu(machine, one) for one in told.values()), "nvidia-smi", driver)


def _number(cell: str | None) -> int | None:
    """None for `[N/A]`, `[Not Supported]`, `Unknown Error` and whatever else is no number; units are left out."""
    found = re.match(r"(0x[0-9a-fA-F]+|\d+)(?:\.\d+)?(?:\s|$)", cell or "")
    return int(found[1], 0 if found[1].startswith("0x") else 10) if found else None


def _unknown(cell: str | None) -> str:
    """The name of the error for a cell that holds no value."""
    if cell is None:
        return "FUNCTION_NOT_FOUND"
    said = cell.strip("[] ").lower()
    known = next((name for name, texts in _ERRORS.items() if said in texts), None)
    return known or said.upper().replace(" ", "_") or "NO_DATA"


def _told(row: Row) -> dict[str, Any]:
    """The fields of `Gpu` that stand in a row."""
    mib = {name: _number(row.get(cell)) for name, cell in _BYTES.items()}
    pstate = re.fullmatch(r"P(\d+)", row.get("pstate", ""))
    found: dict[str, Any] = {
        **{name: _number(row.get(cell)) for name, cell in _NUMBERS.items()},
        **{name: value if value is None else value << 20 for name, value in mib.items()},
        **{name: _word(row.get(cell)) for name, cell in _TEXTS.items()},
        **{name: {"Enabled": True, "Disabled": False}.get(row.get(cell, "")) for name, cell in _SWITCHES.items()},
    }
    cells = {**_NUMBERS, **_BYTES, **_TEXTS, **_SWITCHES, "pstate": "pstate"}
    found |= {"pstate": int(pstate[1]) if pstate else None}
    errors = {name: _unknown(row.get(cells[name])) for name, value in found.items() if value is None}
    reasons = [(_number(row[cell]), row[cell]) for cell in _REASONS if cell in row]
    found["clock_reasons"] = next((mask for mask, _ in reasons if mask is not None), None)
    if found["clock_reasons"] is None:
        errors["clock_reasons"] = _unknown(reasons[0][1] if reasons else None)
    use = _number(row.get(_USE))
    if use is None:
        errors["utilization_pct"] = _unknown(row.get(_USE))
    return {**found, "utilization_pct": [] if use is None else [use], "errors": errors}


def _word(cell: str | None) -> str | None:
    return None if not cell or cell.strip("[]").lower() in ("n/a", "not supported", "unknown error") else cell


def _watch_use(smi: _Smi, window_s: float, told: Mapping[str, dict[str, Any]]) -> None:
    """Asks for the utilisation until the window is over."""
    until = time.monotonic() + window_s
    while told and time.monotonic() + nvml.PERIOD_S <= until:
        time.sleep(nvml.PERIOD_S)
        for row in smi.query("gpu", "uuid", _USE):
            use = _number(row[_USE])
            if use is not None and row["uuid"] in told:
                told[row["uuid"]]["utilization_pct"].append(use)


def _add_clocks(smi: _Smi, told: Mapping[str, dict[str, Any]]) -> None:
    try:
        rows = smi.query("supported-clocks", "gpu_uuid", "memory", "graphics")
    except _Refusal as refusal:
        for row in told.values():
            row["errors"]["supported"] = str(refusal)
        return
    for cells in rows:
        memory, graphics = _number(cells.get("memory")), _number(cells.get("graphics"))
        if memory and graphics and cells.get("gpu_uuid") in told:
            told[cells["gpu_uuid"]].setdefault("supported", {}).setdefault(memory, []).append(graphics)
    for gpu in told.values():
        if "supported" not in gpu:
            gpu["errors"]["supported"] = "NOT_SUPPORTED"


def _add_from_xml(smi: _Smi, told: Mapping[str, dict[str, Any]]) -> None:
    """The processes of both kinds stand nowhere else."""
    from xml.etree import ElementTree

    try:
        root = ElementTree.fromstring(smi.ask("-q", "-x"))
    except (_Refusal, ElementTree.ParseError) as error:
        for row in told.values():
            row["errors"]["processes"] = str(error)
        return
    for gpu in root.iter("gpu"):
        known = told.get(gpu.findtext("uuid", "").strip(), {})
        known["processes"] = list(_listed(gpu))


def _listed(gpu: Element) -> Iterator[dict[str, Any]]:
    for one in gpu.iterfind("processes/process_info"):
        pid, used = _number(one.findtext("pid")), _number(one.findtext("used_memory"))
        if pid:
            kind = "compute" if "C" in one.findtext("type", "C") else "graphics"
            used_bytes = None if used is None else used << 20
            yield {"pid": pid, "kind": kind, "memory_bytes": used_bytes, "name": one.findtext("process_name")}


def _add_parts(smi: _Smi, told: Mapping[str, dict[str, Any]]) -> None:
    """The UUIDs of MIG's parts, which stand under their GPU in the list."""
    if not any(row["mig"] for row in told.values()):
        return
    parts: list[str] = []
    for line in smi.ask("-L").splitlines():
        found = re.search(r"\(UUID: ((?:GPU|MIG)-[^)]+)\)", line)
        if found and found[1].startswith("GPU-"):
            parts = told.get(found[1], {}).setdefault("mig_uuids", [])
        elif found:
            parts.append(found[1])


# ---------------------------------------------------------------- what nvidia-smi can set


@dataclass(frozen=True)
class Switches:
    """The short names of the options that this nvidia-smi offers (-lgc, -ac ...); `why_none`: they are not known."""

    names: frozenset[str] = frozenset()
    why_none: str | None = None
    silent: bool = False


def switches(machine: Machine) -> Switches:
    """What this nvidia-smi says in its help. It differs: -lgc came with driver 418, -ac goes with CUDA 14."""
    path = machine.find(SMI)
    if path is None:
        return Switches(why_none="nvidia-smi: command not found")
    said = process.ask([path, "--help"], timeout_s=limit_s())
    if said.exit is None:
        return Switches(why_none=f"nvidia-smi: {said.error}", silent=_SILENCE in (said.error or ""))
    return Switches(frozenset(re.findall(r"(?m)^\s*(-[a-z]+)\b", said.stdout + said.stderr)))
