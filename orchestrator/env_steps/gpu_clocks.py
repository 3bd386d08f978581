"""Environment step `gpu_clocks`: the clocks of the GPUs that the target will use, locked and put back.

NVML (or nvidia-smi) is read, nvidia-smi changes: its exit status is 0 also where it has changed nothing, so its words
count, and what is read afterwards. A lock can't be read at all: whether it holds is seen under load, by the monitor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, StrictBool, WithJsonSchema, model_validator

from orchestrator import gpus, privileged
from orchestrator.env_steps.base import Step
from orchestrator.formats.monitor import THROTTLE_REASONS
from orchestrator.gpus import Gpu
from orchestrator.model import Cannot, Change, Check, Judged, Knob, Reply, Run
from orchestrator.planfile.fields import Word
from orchestrator.units import frequency, write_frequency

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.machine import Machine

TOLERANCE = 0.02
"""A clock that is off by more than this was not held; GPUs change theirs in steps of 15 MHz or less."""
LOADED_PCT = 10.0
"""From this utilisation on a sample tells of the lock: an idle GPU runs at its lowest clock, whatever is locked."""
STRAY_SHARE = 0.05
"""So many of the samples under load may lie outside: a clock takes a moment to rise when work begins."""
_LEAST_HZ = 10e6
_VOLTA = 7.0
"""Compute capability of the first GPUs whose clocks can be locked; older ones have applications' clocks."""
_BY_SETTING, _IDLE = 0x2, 0x1
_WORDS = ("max", "min", "base")
_RESETS = {"-lgc": "-rgc", "-lmc": "-rmc", "-ac": "-rac"}


def _clock(value: Any) -> float | str:
    """Hz, or one of the words."""
    if value in _WORDS:
        return str(value)
    hertz = frequency(value)
    if hertz < _LEAST_HZ:
        raise ValueError(f"{value} is no clock of a GPU; write it like 1530MHz, or max, min, base")
    return hertz


Clock = Annotated[
    float | str,
    PlainValidator(_clock),
    PlainSerializer(lambda v: v if isinstance(v, str) else write_frequency(v), return_type=str),
    WithJsonSchema(
        {
            "anyOf": [{"enum": [*_WORDS]}, {"type": "string", "pattern": r"^\s*[0-9.]+\s*(Hz|kHz|MHz|GHz)\s*$"}],
            "examples": ["1530MHz"],
        }
    ),
]


@dataclass(frozen=True)
class _Target:
    """A GPU's clock of one kind as it is to be. mhz: None where it can't be, `why` says why; near: not what was asked
    for, but the nearest that there is."""

    mhz: int | None
    why: str | None = None
    near: bool = False


class GpuClocks(Step):
    """Locks clocks, by UUID, of the GPUs that the target will use. What is not given is left alone."""

    use: Literal["gpu_clocks"] = "gpu_clocks"
    graphics: Clock | None = Field(None, description="the SM's clock: 1530MHz, or max, min, base of each GPU")
    memory: Clock | None = Field(None, description="the memory's clock, likewise")
    persistence: StrictBool | None = Field(
        True, description="keep the driver loaded: without it settings may go with the program that made them"
    )
    applications: Literal["auto", "always", "never"] = Field(
        "auto", description="applications' clocks (-ac) instead of locks; auto: where clocks can't be locked"
    )
    devices: tuple[Word, ...] = Field(
        (), description="GPUs by nvidia-smi's number or by UUID; where none is given, those that the target will use"
    )

    purpose: ClassVar[str] = "locks the clocks of the target's GPUs, and watches whether they hold"

    @model_validator(mode="after")
    def _makes_sense(self) -> GpuClocks:
        if self.graphics is None and self.memory is None and not self.persistence:
            raise ValueError("sets nothing: give graphics, memory or persistence")
        return self

    # ------------------------------------------------------------ before the run

    def checks(self, machine: Machine) -> list[Check]:
        found = machine.gpu_look
        chosen = self._chosen(found, machine)
        why_not = _no_clocks(machine) or chosen.why_none
        if why_not:
            return [Check("gpu_clocks", "missing", why_not)]
        locked = [f"GPU {gpu.index}: {said}" for gpu in chosen.gpus if (said := lock_seen(gpu))]
        fix = "note the former lock down: it can't be read, so profrun resets it at the end"
        helper = None if machine.is_root else privileged.available()
        lacks = [helper] if helper and not helper.allowed else []
        return [
            Check("gpu_clocks", "ok", f"{_named(chosen.gpus)}, read through {found.through}"),
            *(Check("gpu_clocks", "warn", note) for note in chosen.notes),
            *(Check("gpu_clocks", "warn", said, fix) for said in locked),
            *(Check("gpu_clocks", "warn", f"only root may set clocks, and {one.why}", one.fix) for one in lacks),
        ]

    def claims(self, machine: Machine) -> tuple[str, ...]:
        return tuple(f"gpu:{gpu.uuid}" for gpu in self._chosen(machine.gpu_look, machine).gpus)

    def before(self, machine: Machine) -> dict[str, Any]:
        """gpus: by UUID, what each is and does, and `wanted`; switches: what nvidia-smi offers; why_not, notes."""
        found = gpus.look(machine)
        chosen = self._chosen(found, machine)
        why_not = _no_clocks(machine) or chosen.why_none
        offered = gpus.Switches(why_none=why_not, silent=found.silent) if why_not else gpus.switches(machine)
        return {
            "why_not": offered.why_none,
            "silent": offered.silent,
            "switches": sorted(offered.names),
            "smi": machine.find(gpus.SMI),
            "limit_s": gpus.limit_s(),
            "driver": found.driver,
            "gpus": {gpu.uuid: self._known(number, gpu) for number, gpu in enumerate(chosen.gpus)},
            "notes": list(chosen.notes),
        }

    def _chosen(self, found: gpus.Look, machine: Machine) -> gpus.Selection:
        return gpus.named(found, self.devices) if self.devices else gpus.selected(found, machine.target_env)

    def _known(self, number: int, gpu: Gpu) -> dict[str, Any]:
        """cuda: its number for the target; gpu: the driver's."""
        wanted = {
            kind: vars(_nearest(gpu, kind, asked))
            for kind, asked in (("graphics", self.graphics), ("memory", self.memory))
            if asked is not None
        }
        return {**_now(gpu), "cuda": number, "lock_seen": lock_seen(gpu), "wanted": wanted}

    # ------------------------------------------------------------ what to change

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        """Persistence first, and so undone last: without it the driver may forget what was set."""
        if before.get("why_not"):
            status: Literal["failed", "not_available"] = "failed" if before["silent"] else "not_available"
            return (Cannot("GPUs", status, before["why_not"]),)
        changes = [change for uuid, gpu in before["gpus"].items() for change in self._changes(before, uuid, gpu)]
        return tuple(sorted(changes, key=lambda change: "persistence" not in change.part))

    def _changes(self, before: Mapping[str, Any], uuid: str, gpu: Mapping[str, Any]) -> Iterator[Run | Cannot]:
        name = f"GPU {gpu['gpu']}"
        if self.persistence is not None:
            yield self._persist(before, uuid, gpu)
        targets = {kind: _Target(**wanted) for kind, wanted in gpu["wanted"].items()}
        for kind, target in targets.items():
            if target.mhz is None:
                yield Cannot(f"{name} {kind}", "not_available", target.why)
        possible = {kind: target for kind, target in targets.items() if target.mhz is not None}
        if possible and self._by_applications(before, gpu):
            yield self._applications(before, uuid, gpu, possible)
            return
        for kind, target in possible.items():
            option = {"graphics": "-lgc", "memory": "-lmc"}[kind]
            part = f"{name} {kind}"
            if option in before["switches"]:
                replies = self._clamped(target, part, getattr(self, kind))
                yield _run(before, uuid, part, option, f"{target.mhz},{target.mhz}", replies=replies)
            else:
                yield Cannot(part, "not_available", f"this nvidia-smi has no {option}")

    def _persist(self, before: Mapping[str, Any], uuid: str, gpu: Mapping[str, Any]) -> Run | Cannot:
        part, on = f"GPU {gpu['gpu']} persistence", self.persistence
        if gpu["persistence"] is on:
            return Cannot(part, "already", None, "on" if on else "off")
        return _run(before, uuid, part, "-pm", "1" if on else "0")

    def _by_applications(self, before: Mapping[str, Any], gpu: Mapping[str, Any]) -> bool:
        if self.applications == "auto":
            old = gpu["compute_capability"] is not None and float(gpu["compute_capability"]) < _VOLTA
            return "-ac" in before["switches"] and ("-lgc" not in before["switches"] or old)
        return self.applications == "always"

    def _applications(
        self, before: Mapping[str, Any], uuid: str, gpu: Mapping[str, Any], targets: Mapping[str, _Target]
    ) -> Run | Cannot:
        """Both clocks in one command: what is not asked for stays as it is."""
        part = f"GPU {gpu['gpu']} applications' clocks"
        was = gpu["applications_mhz"] or {}
        pair = [targets[kind].mhz if kind in targets else was.get(kind) for kind in ("memory", "graphics")]
        if "-ac" not in before["switches"]:
            return Cannot(
                part, "not_available", "this nvidia-smi has no -ac: drivers lock clocks instead since CUDA 13"
            )
        if None in pair:
            return Cannot(part, "not_available", "this GPU has none, and -ac needs both: give graphics and memory")
        near = [reply for kind, one in targets.items() for reply in self._clamped(one, kind, getattr(self, kind))]
        return _run(before, uuid, part, "-ac", f"{pair[0]},{pair[1]}", replies=near)

    @staticmethod
    def _clamped(target: _Target, part: str, asked: Any) -> tuple[Reply, ...]:
        if not target.near:
            return ()
        shown = asked if isinstance(asked, str) else f"{asked / 1e6:g} MHz"
        reason = f"{part}: {shown} is no clock of this GPU, the nearest is {target.mhz} MHz"
        return (Reply(r'locks set to "', "clamped", reason, f"{target.mhz} MHz"),)

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        """A lock can't be read, so it is reset; applications' clocks and persistence mode get their former value."""
        if not isinstance(change, Run) or len(change.argv) < 4:
            return None
        _, _, uuid, option, *_ = change.argv
        gpu = before["gpus"][uuid]
        if option == "-pm":
            return _run(before, uuid, change.part, "-pm", "1" if gpu["persistence"] else "0")
        was, default = gpu["applications_mhz"], gpu["default_applications_mhz"]
        if option == "-ac" and was and was != default and None not in was.values():
            return _run(before, uuid, change.part, "-ac", f"{was['memory']},{was['graphics']}")
        replies = () if option == "-ac" else _reset(gpu["lock_seen"])
        return _run(before, uuid, change.part, _RESETS[option], replies=replies)

    # ------------------------------------------------------------ what has come of it

    def verify(self, machine: Machine) -> dict[str, Any]:
        """gpus: by UUID, as they are now."""
        found = gpus.look(machine)
        chosen = self._chosen(found, machine)
        now = {gpu.uuid: _now(gpu) for gpu in chosen.gpus}
        return {"gpus": now} if now else {"why_not": chosen.why_none}

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """What nvidia-smi said to have done and the driver does not confirm. At rest no clock tells of its lock."""
        said = [
            f"GPU {now['gpu']}: {text}"
            for uuid, now in verified.get("gpus", {}).items()
            if uuid in before.get("gpus", {})
            for text in self._unconfirmed(before, before["gpus"][uuid], now)
        ]
        return Judged("drifted", "; ".join(said)) if said else None

    def _unconfirmed(self, before: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
        if self.persistence is not None and now["persistence"] is (not self.persistence):
            yield f"persistence mode is {'on' if now['persistence'] else 'off'}"
        for kind, wanted in was["wanted"].items():
            mhz, applications = wanted["mhz"], now["applications_mhz"] or {}
            if mhz is None:
                continue
            if self._by_applications(before, was):
                if applications.get(kind) not in (mhz, None):
                    yield f"the applications' {kind} clock is {applications[kind]} MHz, not {mhz} MHz"
            elif now["busy"] and now[f"{kind}_mhz"] and abs(now[f"{kind}_mhz"] - mhz) > TOLERANCE * mhz:
                yield f"at work its {kind} clock is {now[f'{kind}_mhz']} MHz, not {mhz} MHz"

    def during(self, before: dict[str, Any], samples: pd.DataFrame) -> tuple[dict[str, Any], Judged | None]:
        """The clocks under load, by UUID: least, median and most in MHz, and what held them down in which share."""
        seen: dict[str, Any] = {}
        said: list[str] = []
        held_down: set[str] = set()
        for uuid, gpu in before.get("gpus", {}).items():
            under_load = _under_load(samples, uuid)
            for kind, column in (("graphics", "sm_clock_mhz"), ("memory", "memory_clock_mhz")):
                mhz = gpu["wanted"].get(kind, {}).get("mhz")
                if mhz is None or under_load is None or column not in under_load:
                    continue
                clocks = under_load[column].dropna()
                if clocks.empty:
                    continue
                least, middle, most = (round(x) for x in (clocks.min(), clocks.median(), clocks.max()))
                reasons = _reasons(under_load)
                seen.setdefault(uuid, {"gpu": gpu["gpu"], "samples": len(clocks), "held_down": reasons})
                seen[uuid][f"{kind}_mhz"] = {"wanted": mhz, "min": least, "median": middle, "max": most}
                if ((clocks - mhz).abs() > TOLERANCE * mhz).mean() <= STRAY_SHARE:
                    continue
                held_down |= {*reasons}
                why = "".join(
                    f"; {name} in {share:.0%} of samples".replace("%", " %") for name, share in reasons.items()
                )
                which = f"GPU {gpu['gpu']} {kind}: " if len(before["gpus"]) > 1 or kind == "memory" else ""
                saw = f"{least} / {middle} / {most} MHz (min/median/max)"
                said.append(f"{which}clock lock not held: wanted {mhz} MHz, saw {saw} under load{why}")
        return seen, Judged("drifted", " · ".join(said), fix=_fix(held_down)) if said else None

    # ------------------------------------------------------------ for `profrun env show`

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        found = gpus.look(machine)
        if found.silent:
            return [Knob("GPUs", None, note=found.why_not)]
        return [knob for gpu in found.gpus for knob in _knobs(gpu, machine)]


# ---------------------------------------------------------------- what a GPU is and can


def _named(chosen: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in chosen)


def _no_clocks(machine: Machine) -> str | None:
    """Why this machine's GPUs, if it has some, have no clocks to be set here."""
    if "microsoft" in (machine.read("proc/sys/kernel/osrelease") or "").lower():
        return "under WSL the clocks belong to Windows: lock them there, with nvidia-smi -lgc as administrator"
    return None


def _now(gpu: Gpu) -> dict[str, Any]:
    """What a GPU is and does, as the report and the journal keep it."""
    pairs = {
        name: {kind: getattr(gpu, f"{name}_{kind}_mhz") for kind in ("memory", "graphics")}
        for name in ("applications", "default_applications")
    }
    names = ("uuid", "pci", "name", "compute_capability", "persistence", "pstate", "sm_mhz", "graphics_mhz",
             "memory_mhz", "max_graphics_mhz", "max_memory_mhz")  # fmt: skip
    reasons = [name for bit, name in THROTTLE_REASONS.items() if (gpu.clock_reasons or 0) & bit]
    return {
        "gpu": gpu.index,
        **{name: getattr(gpu, name) for name in names},
        **{f"{name}_mhz": pair if any(pair.values()) else None for name, pair in pairs.items()},
        "clock_reasons": None if gpu.clock_reasons is None else reasons,
        "busy": max(gpu.utilization_pct, default=0) >= LOADED_PCT,
        "not_told": dict(gpu.errors),
    }


def _nearest(gpu: Gpu, kind: str, asked: float | str) -> _Target:
    """The clock of this GPU that comes nearest to what is asked for. Where a GPU does not list its clocks, what is
    asked for up to its highest one."""
    memory = max(gpu.supported, default=None)
    listed = sorted(gpu.supported) if kind == "memory" else list(gpu.supported.get(memory or 0, ()))
    most = max(listed, default=getattr(gpu, f"max_{kind}_mhz"))
    if asked == "max":
        return _Target(most, None if most else "this GPU does not tell its highest clock")
    if asked == "min":
        return _Target(min(listed, default=None), None if listed else "this GPU does not list its clocks")
    if asked == "base":
        base = getattr(gpu, f"default_applications_{kind}_mhz")
        return _Target(base, None if base else "this GPU does not tell its base clock: give it in MHz")
    mhz = float(asked) / 1e6
    nearest = min(listed, key=lambda one: abs(one - mhz)) if listed else round(min(mhz, most or mhz))
    return _Target(nearest, near=nearest != mhz)


def lock_seen(gpu: Gpu) -> str | None:
    """Why a lock seems to be in force already; None when nothing speaks for one. There is no way to read it.

    Two signs: the driver says that a setting holds the clock, and it is not the default applications' clock (on most
    GPUs a lock shows as `applications_clocks_setting`); or a GPU that nobody uses, which says that it is not idling,
    keeps up a clock between its lowest and its highest one."""
    mask, mhz = gpu.clock_reasons, gpu.graphics_mhz
    if mask is None or mhz is None:
        return None
    if mask & _BY_SETTING and mhz not in (gpu.default_applications_graphics_mhz, gpu.applications_graphics_mhz):
        return f"its clock is held at {mhz} MHz by a setting, which looks like a lock"
    unused = not any(gpu.utilization_pct) and not gpu.processes
    lowest = min((clock for clocks in gpu.supported.values() for clock in clocks), default=None)
    if unused and not mask & (_IDLE | _BY_SETTING) and lowest and lowest < mhz < (gpu.max_graphics_mhz or 0):
        return f"nobody uses it, and yet its clock stays at {mhz} MHz, which looks like a lock"
    return None


# ---------------------------------------------------------------- nvidia-smi's words

_REPLIES = (
    Reply(
        r"(?m)^(.*(?:Insufficient Permissions|does not have permission).*?)\.?$", "refused", "nvidia-smi: {0}", "EPERM"
    ),
    Reply(r"(?m)^(.* is not supported for GPU \S+?)\.?(?: Run .*)?$", "not_available", "nvidia-smi: {0}"),
    Reply(r"Invalid combination of input arguments", "not_available", "this nvidia-smi does not know the option"),
    Reply(r"(?m)^(.*(?:GPU is lost|No devices were found).*)$", "failed", "nvidia-smi: {0}"),
    Reply(r"(Persistence mode is already \w+)", "already", "nvidia-smi: {0}"),
)
"""Printed with exit status 0 as with any other: `... Treating as warning and moving on.`"""


def _reset(lock: str | None) -> tuple[Reply, ...]:
    """What is said when a lock was reset: whether there was one before can't be read."""
    warning = f"; before the run {lock}: set it again" if lock else ""
    return (Reply(r"All done", "applied", f"reset, former lock unknown{warning}"),)


def _run(
    before: Mapping[str, Any],
    uuid: str,
    part: str,
    option: str,
    value: str | None = None,
    replies: Sequence[Reply] = (),
) -> Run:
    argv = (before["smi"], "-i", uuid, option, *([] if value is None else [value]))
    return Run(argv, before["limit_s"], part, (*_REPLIES, *replies))


# ---------------------------------------------------------------- the monitor's samples


def _under_load(samples: pd.DataFrame, uuid: str) -> pd.DataFrame | None:
    """A GPU's readings while it worked: a row for each, a column for each metric; None where there are none.

    It had to work in the reading before as well: the driver's utilisation looks back over up to a second."""
    own = samples[(samples.source == "gpu") & (samples.subject == uuid)]
    keys = [name for name in ("capture", "time_ns") if name in own]
    if own.empty:
        return None
    wide = own.pivot_table(index=keys, columns="metric", values="value", aggfunc="last").sort_index()
    if "gpu_util_pct" not in wide:
        return None
    loaded = wide.gpu_util_pct >= LOADED_PCT
    runs = loaded.groupby(level=0) if len(keys) > 1 else loaded.groupby(lambda _: 0)
    found = wide[loaded & runs.shift(1, fill_value=False)]
    return None if found.empty else found


def _reasons(under_load: pd.DataFrame) -> dict[str, float]:
    """What held the clocks down, as the share of the samples, the most frequent first; a lock itself is left out."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bit not in (_IDLE, _BY_SETTING)]
    shares = {name: float(under_load[f"throttle_{name}"].mean()) for name in known if f"throttle_{name}" in under_load}
    return dict(sorted(((name, share) for name, share in shares.items() if share > 0), key=lambda pair: -pair[1]))


def _fix(held_down: set[str]) -> str:
    if any("thermal" in name for name in held_down):
        return "let the GPU cool (wait_cool) or better its cooling, or lock a clock that it can hold"
    if held_down:
        return "lock a clock that the GPU can hold within its power limit, or raise that: nvidia-smi -pl"
    return "see whether another program sets clocks (DCGM, a clock daemon), and nvidia-smi -q -d PERFORMANCE under load"


# ---------------------------------------------------------------- as it is now


def _knobs(gpu: Gpu, machine: Machine) -> Iterator[Knob]:
    writer = "you" if machine.is_root else "the root helper" if privileged.available().allowed else "root"
    lowest = min((clock for clocks in gpu.supported.values() for clock in clocks), default=None)
    on = {True: "on", False: "off", None: None}[gpu.persistence]
    yield Knob(f"GPU {gpu.index}", gpu.name, note=f"{gpu.uuid}, {gpu.pci}")
    yield Knob(f"GPU {gpu.index} persistence", on, "on, off", writer)
    note = lock_seen(gpu) or "whether it is locked can't be read"
    yield Knob(
        f"GPU {gpu.index} graphics clock",
        _mhz(gpu.graphics_mhz),
        _span(lowest, gpu.max_graphics_mhz),
        writer,
        note=note,
    )
    low = min(gpu.supported, default=None)
    yield Knob(f"GPU {gpu.index} memory clock", _mhz(gpu.memory_mhz), _span(low, gpu.max_memory_mhz), writer)
    if gpu.applications_graphics_mhz is not None:
        pair = f"{gpu.applications_memory_mhz},{gpu.applications_graphics_mhz} MHz"
        default = f"default {gpu.default_applications_memory_mhz},{gpu.default_applications_graphics_mhz} MHz"
        yield Knob(f"GPU {gpu.index} applications' clocks", pair, default, writer, note="memory,graphics")


def _mhz(clock: int | None) -> str | None:
    return None if clock is None else f"{clock} MHz"


def _span(least: int | None, most: int | None) -> str | None:
    return None if most is None else f"up to {most} MHz" if least is None else f"{least}-{most} MHz"
