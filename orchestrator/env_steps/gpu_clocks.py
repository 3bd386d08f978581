"""Environment step `gpu_clocks`: the clocks of the GPUs that the target will use, locked and put back.

NVML (or nvidia-smi) is read, nvidia-smi changes: its exit status is 0 also where it has changed nothing, so its words
count, and what is read afterwards. A lock can't be read at all: whether it holds is seen under load, by the monitor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, StrictBool, model_validator

from orchestrator import gpus, names, privileged
from orchestrator.env_steps import clock_option
from orchestrator.env_steps.base import Step
from orchestrator.formats.monitor import THROTTLE_REASONS
from orchestrator.gpus import Gpu
from orchestrator.model import Cannot, Change, Check, Judged, Knob, Reply, Run
from orchestrator.planfile.fields import Word

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.machine import Machine

TOLERANCE = 0.02
"""A clock that is off by more than this was not held; GPUs change theirs in steps of 15 MHz or less."""
LOADED_PCT = 10.0
"""From this utilisation on a sample tells of the lock: an idle GPU runs at its lowest clock, whatever is locked."""
STRAY_SHARE = 0.05
"""So many of the samples under load may lie outside: a clock takes a moment to rise when work begins."""
_VOLTA = 7.0
"""Compute capability of the first GPUs whose clocks can be locked; older ones have applications' clocks."""
_WORTH_TELLING_PCT = 5.0
"""What was there in fewer of the samples that were off is not told as their reason."""
_BY_SETTING, _IDLE = 0x2, 0x1
_WORDS = ("max", "min", "base")
_RESETS = {"-lgc": "-rgc", "-lmc": "-rmc", "-ac": "-rac"}


Clock = Annotated[
    float | str,
    PlainValidator(clock_option.reader("a GPU", "1530MHz", _WORDS)),
    clock_option.WRITTEN,
    clock_option.schema("1530MHz", _WORDS),
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
        if self.graphics is self.memory is self.persistence is None:
            raise ValueError("sets nothing: give graphics, memory or persistence")
        return self

    # ------------------------------------------------------------ before the run

    def checks(self, machine: Machine) -> list[Check]:
        found = machine.gpu_look
        chosen = self._chosen(found, machine)
        out_of_reach = _no_clocks(machine, chosen)
        if out_of_reach:
            return [Check("gpu_clocks", "missing", out_of_reach.reason or "", out_of_reach.fix)]
        locked = [f"GPU {gpu.index}: {said}" for gpu in chosen.gpus if (said := lock_seen(gpu))]
        fix = "note the former lock down: it can't be read, so profrun resets it at the end"
        helper = None if machine.is_root else privileged.available()
        lacks = [helper] if helper and not helper.allowed else []
        return [
            Check("gpu_clocks", "ok", f"{_named(chosen.gpus)}, read through {found.through}"),
            *(Check("gpu_clocks", "missing", gpus.no_gpu(found, name), _LIST) for name in chosen.missing),
            *(Check("gpu_clocks", "warn", note) for note in _notes(chosen)),
            *(Check("gpu_clocks", "warn", said, fix) for said in locked),
            *(Check("gpu_clocks", "warn", f"only root may set clocks, and {one.why}", one.fix) for one in lacks),
        ]

    def claims(self, machine: Machine) -> tuple[str, ...]:
        return tuple(f"gpu:{gpu.uuid}" for gpu in self._chosen(machine.gpu_look, machine).gpus)

    def before(self, machine: Machine) -> dict[str, Any]:
        """gpus: by UUID, what each is and does, and `wanted`; switches: what nvidia-smi offers; why_not, fix, notes;
        missing: by name of the plan's GPUs that are not there, why."""
        found = gpus.look(machine)
        chosen = self._chosen(found, machine)
        none = _no_clocks(machine, chosen)
        offered = gpus.Switches(why_none=none.reason, silent=found.silent) if none else gpus.switches(machine)
        return {
            "why_not": offered.why_none,
            "silent": offered.silent,
            "fix": gpus.WAKE if offered.silent else none and none.fix,
            "switches": sorted(offered.names),
            "smi": machine.find(gpus.SMI),
            "limit_s": gpus.limit_s(),
            "driver": found.driver,
            "gpus": {gpu.uuid: self._known(number, gpu) for number, gpu in enumerate(chosen.gpus)},
            "missing": {name: gpus.no_gpu(found, name) for name in chosen.missing},
            "notes": _notes(chosen),
        }

    def _chosen(self, found: gpus.Look, machine: Machine) -> gpus.Selection:
        return gpus.named(found, self.devices) if self.devices else gpus.of_target(found, machine)

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
            return (Cannot("GPUs", status, before["why_not"], fix=before["fix"]),)
        missing = (Cannot(f"GPU {name}", "not_available", why, fix=_LIST) for name, why in before["missing"].items())
        changes = [change for uuid, gpu in before["gpus"].items() for change in self._changes(before, uuid, gpu)]
        return (*missing, *sorted(changes, key=lambda change: "persistence" not in change.part))

    def _changes(self, before: Mapping[str, Any], uuid: str, gpu: Mapping[str, Any]) -> Iterator[Run | Cannot]:
        name = f"GPU {gpu['gpu']}"
        if self.persistence is not None:
            yield self._persist(before, uuid, gpu)
        targets = {kind: _Target(**wanted) for kind, wanted in gpu["wanted"].items()}
        for kind, target in targets.items():
            if target.mhz is None:
                yield Cannot(f"{name} {kind}", "not_available", target.why, fix=f"give {kind} in MHz")
        possible = {kind: target for kind, target in targets.items() if target.mhz is not None}
        if possible and self._by_applications(before, gpu):
            yield self._applications(before, uuid, gpu, possible)
            return
        for kind, target in possible.items():
            option = {"graphics": "-lgc", "memory": "-lmc"}[kind]
            part = f"{name} {kind}"
            if option in before["switches"]:
                asked = getattr(self, kind)
                change = _run(
                    before, uuid, part, option, f"{target.mhz},{target.mhz}", self._clamped(target, part, asked)
                )
                yield replace(change, wanted=_asked(asked, target), was=_mhz(gpu[f"{kind}_mhz"]))
            else:
                yield Cannot(part, "not_available", f"this nvidia-smi has no {option}", fix=_NEWER)

    def _persist(self, before: Mapping[str, Any], uuid: str, gpu: Mapping[str, Any]) -> Run | Cannot:
        part, on = f"GPU {gpu['gpu']} persistence", self.persistence
        if gpu["persistence"] is on:
            return Cannot(part, "already", None, "on" if on else "off")
        change = _run(before, uuid, part, "-pm", "1" if on else "0")
        return replace(change, wanted=_ON[on], was=_ON[gpu["persistence"]])

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
            reason = "this nvidia-smi has no -ac, which went with CUDA 14"
            return Cannot(part, "not_available", reason, fix="write applications: auto, which locks clocks instead")
        if None in pair:
            reason = "this GPU has none, and -ac needs both"
            return Cannot(part, "not_available", reason, fix="give graphics and memory")
        near = [reply for kind, one in targets.items() for reply in self._clamped(one, kind, getattr(self, kind))]
        change = _run(before, uuid, part, "-ac", f"{pair[0]},{pair[1]}", near)
        return replace(change, wanted=_pair(*pair), was=_pair(was.get("memory"), was.get("graphics")))

    @staticmethod
    def _clamped(target: _Target, part: str, asked: Any) -> tuple[Reply, ...]:
        if not target.near:
            return ()
        reason = f"{part}: {_asked(asked, target)} is no clock of this GPU, the nearest is {target.mhz} MHz"
        return (Reply(r'locks set to "', "clamped", reason, f"{target.mhz} MHz"),)

    def restore(self, before: dict[str, Any], change: Change) -> Change | None:
        """A lock can't be read, so it is reset; applications' clocks and persistence mode get their former value."""
        if not isinstance(change, Run) or len(change.argv) < 4:
            return None
        _, _, uuid, option, *_ = change.argv
        gpu = before["gpus"][uuid]
        if option == "-pm":
            return replace(
                _run(before, uuid, change.part, "-pm", "1" if gpu["persistence"] else "0"), wanted=change.was
            )
        was, default = gpu["applications_mhz"], gpu["default_applications_mhz"]
        if option == "-ac":
            kept = was and was != default and None not in was.values()
            words = ("-ac", f"{was['memory']},{was['graphics']}") if kept else (_RESETS[option], None)
            return replace(_run(before, uuid, change.part, *words), wanted=change.was)
        replies = _reset(gpu if option == "-lgc" else {})
        return replace(_run(before, uuid, change.part, _RESETS[option], None, replies), wanted="reset")

    # ------------------------------------------------------------ what has come of it

    def verify(self, machine: Machine) -> dict[str, Any]:
        """gpus: by UUID, as they are now. parts: what can be read of what was set; a lock can't."""
        found = gpus.look(machine)
        chosen = self._chosen(found, machine)
        now = {gpu.uuid: _now(gpu) for gpu in chosen.gpus}
        return {"gpus": now, "parts": dict(_readable(now.values()))} if now else {"why_not": chosen.why_none}

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """What nvidia-smi said to have done and the driver does not confirm. A single clock tells of no lock: whether
        it holds is seen `during` the run."""
        said = [
            f"GPU {now['gpu']}: {text}"
            for uuid, now in verified.get("gpus", {}).items()
            if uuid in before.get("gpus", {})
            for text in self._unconfirmed(before, before["gpus"][uuid], now)
        ]
        told = "; ".join([*names.folded(said), *before.get("notes", ())])
        return Judged("drifted" if said else "already", told, fix=_OTHERS if said else None) if told else None

    def _unconfirmed(self, before: Mapping[str, Any], was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
        if self.persistence is not None and now["persistence"] is (not self.persistence):
            yield f"persistence mode is {'on' if now['persistence'] else 'off'}"
        for kind, wanted in was["wanted"].items():
            mhz, applications = wanted["mhz"], now["applications_mhz"] or {}
            if mhz and self._by_applications(before, was) and applications.get(kind) not in (mhz, None):
                yield f"the applications' {kind} clock is {applications[kind]} MHz, not {mhz} MHz"

    def watched(self) -> str:
        return "" if self.graphics is None and self.memory is None else "the GPUs' clocks hold"

    def during(self, before: dict[str, Any], samples: pd.DataFrame) -> tuple[dict[str, Any], Judged | None]:
        """The clocks under load, by UUID: least, median and most in MHz, how many samples were off, and what held the
        clocks down in which share of those."""
        seen: dict[str, Any] = {}
        said: list[str] = []
        doubts: list[str] = []
        held_down: set[str] = set()
        for uuid, gpu in before.get("gpus", {}).items():
            under_load = _under_load(samples, uuid)
            wanted = {kind: one["mhz"] for kind, one in gpu["wanted"].items() if one["mhz"] is not None}
            looks = {kind: look for kind, mhz in wanted.items() if (look := _looked(under_load, kind, mhz))}
            for kind, look in looks.items():
                seen.setdefault(uuid, {"gpu": gpu["gpu"], "samples": look.count})[f"{kind}_mhz"] = look.data()
                if look.held:
                    continue
                seen[uuid]["held_down_pct"] = {**seen[uuid].get("held_down_pct", {}), **look.held_down_pct}
                held_down |= {*look.held_down_pct}
                which = f"GPU {gpu['gpu']} {kind}: " if len(before["gpus"]) > 1 or kind == "memory" else ""
                said.append(f"{which}clock lock not held: {look.text()}")
            if wanted.keys() - looks.keys() and not self._by_applications(before, gpu):
                doubts.append(f"GPU {gpu['gpu']} {_why_unseen(samples, uuid)}")
        if said:
            return seen, Judged("drifted", " · ".join(said), fix=_fix(held_down))
        return seen, _unsure(doubts, watched=not samples.empty) if doubts else None

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


def _no_clocks(machine: Machine, chosen: gpus.Selection) -> Cannot | None:
    """Why no clocks can be set here; None where nothing speaks against it."""
    if machine.is_wsl():
        said = "under WSL the clocks belong to Windows"
        return Cannot("GPUs", "not_available", said, fix="lock them there: nvidia-smi -lgc as administrator")
    if chosen.why_none:
        return Cannot("GPUs", "not_available", chosen.why_none, fix=_LIST if chosen.missing else None)
    if machine.find(gpus.SMI) is None:
        said = "nvidia-smi is not here, and clocks are set through it"
        capability = "give the container the driver's `utility`: -e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        install = "install the part of the driver that has it (nvidia-utils), or put it on PATH"
        return Cannot("GPUs", "not_available", said, fix=capability if machine.in_container() else install)
    return None


def _notes(chosen: gpus.Selection) -> list[str]:
    """What there is to know of the choice."""
    split = [f"GPU {gpu.index} is split (MIG): its clocks are those of all its parts" for gpu in chosen.gpus if gpu.mig]
    return [*chosen.notes, *split]


def _asked(asked: Any, target: _Target) -> str:
    """A clock as the plan asks for it, and what that is."""
    return f"{asked} ({target.mhz} MHz)" if isinstance(asked, str) else f"{asked / 1e6:g} MHz"


def _readable(now: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Of what can be set that which can be read, by the part's name."""
    for gpu in now:
        if gpu["persistence"] is not None:
            yield f"GPU {gpu['gpu']} persistence", _ON[gpu["persistence"]] or ""
        if clocks := gpu["applications_mhz"]:
            yield f"GPU {gpu['gpu']} applications' clocks", _pair(clocks["memory"], clocks["graphics"]) or ""


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

_OF_GPU = r"(?: for GPU [0-9A-Fa-f:.]*[0-9A-Fa-f])?"
"""Which GPU it is, the part's name says already."""
_LIST = "`nvidia-smi -L` lists them"
_NEWER = "update the driver (-lgc came with 418, -lmc later), or leave the setting out"
_OTHERS = "see whether another program sets it (DCGM, a daemon), and nvidia-smi -q"
_LEAVE_OUT = "leave the setting out, or name other GPUs (`devices`)"
_REPLIES = (
    Reply(rf"(?m)^(.*?){_OF_GPU}(: Insufficient Permissions)", "refused", "nvidia-smi: {0}{1}", "EPERM"),
    Reply(rf"(?m)^(.*does not have permission.*?){_OF_GPU}\.?$", "refused", "nvidia-smi: {0}", "EPERM"),
    Reply(rf"(?m)^(.*?){_OF_GPU}(: Not Supported)", "not_available", "nvidia-smi: {0}{1}", fix=_LEAVE_OUT),
    Reply(rf"(?m)^(.* is not supported){_OF_GPU}\.?(?: Run .*)?$", "not_available", "nvidia-smi: {0}", fix=_LEAVE_OUT),
    Reply(
        r"Invalid combination of input arguments",
        "not_available",
        "this nvidia-smi does not know the option",
        None,
        _NEWER,
    ),
    Reply(r"(?m)^(.*(?:GPU is lost|No devices were found).*)$", "failed", "nvidia-smi: {0}"),
    Reply(r"(Persistence mode is already \w+)", "already", "nvidia-smi: {0}"),
)
"""Printed with exit status 0 as with any other: `... Treating as warning and moving on.`"""


_RESET = "reset, former lock unknown"


def _reset(gpu: Mapping[str, Any]) -> tuple[Reply, ...]:
    """What is said when a lock was reset: whether there was one before can't be read. `gpu`: empty where nothing is
    known of one."""
    if not gpu.get("lock_seen"):
        return (Reply(r"All done", "applied", _RESET),)
    mhz = gpu["graphics_mhz"]
    again = f"if that was a lock, set it again: nvidia-smi -i {gpu['gpu']} -lgc {mhz},{mhz}"
    return (Reply(r"All done", "applied", f"{_RESET}; found before the run: {gpu['lock_seen']}", fix=again),)


def _run(
    before: Mapping[str, Any],
    uuid: str,
    part: str,
    option: str,
    value: str | None = None,
    replies: Sequence[Reply] = (),
) -> Run:
    argv = (before["smi"], "-i", uuid, option, *([] if value is None else [value]))
    return Run(argv, before["limit_s"], part, (*_REPLIES, *replies), through=gpus.SMI.name)


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


@dataclass(frozen=True)
class _Look:
    """The clocks of one kind that a GPU had at work. held_down_pct: of those that were off the share, by its reason,
    in which something held the clocks down; the most frequent first."""

    wanted: int
    least: int
    middle: int
    most: int
    count: int
    off: int
    held_down_pct: Mapping[str, float]

    @property
    def held(self) -> bool:
        return self.off <= STRAY_SHARE * self.count

    def data(self) -> dict[str, int]:
        return {"wanted": self.wanted, "min": self.least, "median": self.middle, "max": self.most, "off": self.off}

    def text(self) -> str:
        saw = f"saw {self.least} / {self.middle} / {self.most} MHz (min/median/max) under load"
        reasons = "".join(f"; {name} in {pct:.0f} % of these" for name, pct in self.held_down_pct.items())
        return f"wanted {self.wanted} MHz, {saw}, {self.off} of {self.count} samples off{reasons}"


_COLUMNS = {"graphics": "sm_clock_mhz", "memory": "memory_clock_mhz"}


def _looked(under_load: pd.DataFrame | None, kind: str, wanted: int) -> _Look | None:
    """None where the monitor has no such clock."""
    if under_load is None or _COLUMNS[kind] not in under_load:
        return None
    known = under_load[under_load[_COLUMNS[kind]].notna()]
    if known.empty:
        return None
    clocks = known[_COLUMNS[kind]]
    off = (clocks - wanted).abs() > TOLERANCE * wanted
    least, middle, most = (round(x) for x in (clocks.min(), clocks.median(), clocks.max()))
    return _Look(wanted, least, middle, most, len(clocks), int(off.sum()), _held_down_pct(known[off]))


def _held_down_pct(off: pd.DataFrame) -> dict[str, float]:
    """What held the clocks down; a lock itself is left out, and what was there too seldom to be the reason."""
    known = [name for bit, name in THROTTLE_REASONS.items() if bit not in (_IDLE, _BY_SETTING)]
    shares = {name: 100 * float(off[f"throttle_{name}"].mean()) for name in known if f"throttle_{name}" in off}
    worth = {name: round(pct, 1) for name, pct in shares.items() if pct >= _WORTH_TELLING_PCT}
    return dict(sorted(worth.items(), key=lambda pair: -pair[1]))


def _why_unseen(samples: pd.DataFrame, uuid: str) -> str:
    """Why the monitor's samples don't tell of a GPU's lock."""
    own = samples[(samples.source == "gpu") & (samples.subject == uuid)]
    looks = int((own.metric == "gpu_util_pct").sum())
    if not looks:
        return "was not watched" if own.empty else "does not tell how busy it is"
    return f"was never {LOADED_PCT:g} % busy in two samples running, of {looks}"


def _unsure(doubts: Sequence[str], *, watched: bool) -> Judged:
    """Locks that are said to be there, and were not seen. The step stays as it is, with this as its reason."""
    said = "nvidia-smi said so; a lock can't be read back, and"
    if not watched:
        return Judged("applied", f"{said} no monitor watched it", fix="add the collector monitor to the plan")
    return Judged("applied", f"{said} {'; '.join(names.folded(doubts))}")


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
    on = _ON[gpu.persistence]
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
        pair = _pair(gpu.applications_memory_mhz, gpu.applications_graphics_mhz)
        default = f"default {gpu.default_applications_memory_mhz},{gpu.default_applications_graphics_mhz} MHz"
        yield Knob(f"GPU {gpu.index} applications' clocks", pair, default, writer, note="memory,graphics")


_ON = {True: "on", False: "off", None: None}


def _mhz(clock: int | None) -> str | None:
    return None if clock is None else f"{clock} MHz"


def _pair(memory: int | None, graphics: int | None) -> str | None:
    """Applications' clocks as -ac has them."""
    return None if memory is None or graphics is None else f"{memory},{graphics} MHz"


def _span(least: int | None, most: int | None) -> str | None:
    return None if most is None else f"up to {most} MHz" if least is None else f"{least}-{most} MHz"
