"""Environment step `cpu_frequency`: the processors' clock, turbo, idle states and hyper-threads."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, StrictBool, StrictInt, WithJsonSchema, model_validator

from orchestrator import cpufreq, names
from orchestrator.cpufreq import Idle, Policy, Processors, show_khz
from orchestrator.env_steps import clock_option
from orchestrator.env_steps.base import Step
from orchestrator.model import IN_FORCE, Cannot, Change, Check, Hold, Judged, Knob, Write

if TYPE_CHECKING:
    import pandas as pd

    from orchestrator.machine import Machine

_CLOCK_WORDS = ("lowest", "base", "highest")
_TOLERANCE = 0.02
"""A clock that is off by more than this was not held."""
_BUSY_PCT = 50.0
"""The clock of an idle core says nothing."""
_NO_LIMIT_US = 2_000_000_000
"""What the kernel has where nobody holds /dev/cpu_dma_latency (PM_QOS_CPU_LATENCY_DEFAULT_VALUE)."""
_GOVERNORS = ("performance", "powersave", "schedutil", "ondemand", "conservative")
"""Those of the kernel; a driver may have others."""
_READ_ONLY_FIX = "run profrun on the host, or in a container that may write /sys (docker run --privileged)"
_NOT_HELD_FIX = (
    "look for what lowers it (`profrun env show` names services, turbostat or sensors heat and power), or pin a clock "
    "that all cores hold under this load"
)
_VIRTUAL_FIX = "set the clock on the host of this machine; here it can't be set"


Clock = Annotated[
    float | str,
    PlainValidator(clock_option.reader("a processor", "2GHz", _CLOCK_WORDS)),
    clock_option.WRITTEN,
    clock_option.schema("2GHz", _CLOCK_WORDS),
]


def _governor(value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[a-z_]+", value):
        return value
    near = difflib.get_close_matches(str(value).strip().lower(), _GOVERNORS, 1)
    way_out = f"did you mean {near[0]}?" if near else f"write {', '.join(_GOVERNORS[:-1])} or {_GOVERNORS[-1]}"
    raise ValueError(f"{value} is no governor; {way_out}")


Governor = Annotated[
    str,
    PlainValidator(_governor),
    WithJsonSchema({"type": "string", "pattern": "^[a-z_]+$", "examples": ["performance"]}),
]


@dataclass(frozen=True)
class _Bounds:
    """What the clock of a policy is to stay within, in kHz. None: left as it is."""

    low: int | None
    high: int | None


class CpuFrequency(Step):
    """Settings of the processors, for each cpufreq policy and within its limits. What is not given is left alone."""

    use: Literal["cpu_frequency"] = "cpu_frequency"
    governor: Governor | None = Field(
        None, description="who chooses the clock: performance, powersave, ... as the machine's driver offers"
    )
    min: Clock | None = Field(None, description="lowest clock: 2GHz, or lowest, base (without turbo), highest")
    max: Clock | None = Field(None, description="highest clock, likewise; the same as `min` pins it")
    turbo: StrictBool | None = Field(None, description="may the clock rise above its base")
    energy_preference: Literal["default", "performance", "balance_performance", "balance_power", "power"] | None = (
        Field(None, description="what a processor that chooses its clock itself should prefer")
    )
    max_cstate: Annotated[StrictInt, Field(ge=0)] | str | None = Field(
        None, description="the deepest idle state allowed, by the kernel's number (0: only polling) or name (C1E)"
    )
    disable_cstates: tuple[str, ...] = Field((), description="idle states that are not to be entered, by name")
    smt: StrictBool | None = Field(
        None, description="hyper-threads on or off. On: set clocks in a second step after this one"
    )

    purpose: ClassVar[str] = "sets governor, lowest and highest clock, turbo, energy preference, idle states, SMT"

    @model_validator(mode="after")
    def _makes_sense(self) -> CpuFrequency:
        if not self._asked():
            raise ValueError("sets nothing: give governor, min, max, turbo, energy_preference, max_cstate or smt")
        if isinstance(self.min, float) and isinstance(self.max, float) and self.min > self.max:
            raise ValueError(f"min {show_khz(self.min / 1e3)} is above max {show_khz(self.max / 1e3)}")
        words = [_CLOCK_WORDS.index(end) for end in (self.min, self.max) if isinstance(end, str)]
        if len(words) == 2 and words[0] > words[1]:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self

    def _asked(self) -> list[str]:
        """The options that are given, in the user's words."""
        options = ("smt", *_OF_POLICIES, "max_cstate", "disable_cstates")
        return [name for name in options if getattr(self, name) not in (None, ())]

    # ------------------------------------------------------------ before the run

    def checks(self, machine: Machine) -> list[Check]:
        """One for all settings that can't be made here for the same reason; and what comes near, but not to it."""
        before = self.before(machine)
        near = self._short(Processors.of(before))
        return [
            *([Check("cpu_frequency", "warn", near.reason or "", near.fix)] if near else []),
            *self._obstacles(before),
        ]

    def _obstacles(self, before: dict[str, Any]) -> list[Check]:
        return [
            Check("cpu_frequency", "blocked" if c.status == "refused" else "missing", f"{c.part}: {c.reason}", c.fix)
            for c in self.apply(before)
            if isinstance(c, Cannot) and c.status not in IN_FORCE
        ]

    def claims(self, machine: Machine) -> tuple[str, ...]:
        found = self._read(machine)
        whole = ("cpu:global",) if {"turbo", "smt", "max_cstate", "disable_cstates"} & {*self._asked()} else ()
        each = {"governor", "min", "max", "energy_preference"} & {*self._asked()}
        return (*whole, *(f"cpu:{name}" for name in (found.policies if each else ())))

    def before(self, machine: Machine) -> dict[str, Any]:
        return self._read(machine).told()

    def verify(self, machine: Machine) -> dict[str, Any]:
        return self.before(machine)

    def _read(self, machine: Machine) -> Processors:
        return cpufreq.read(machine, idle=self.max_cstate is not None or bool(self.disable_cstates))

    # ------------------------------------------------------------ what to change

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        """Hyper-threads first: they decide which policies there are. The governor before turbo, which older kernels
        turn on with it. Turbo before the limits where it comes and after them where it goes: a limit above the base
        can't be read, nor put back later, while there is none."""
        here = Processors.of(before)
        kept = self._kept(here)
        turbo = tuple(self._turbo(here, kept))
        changes = (
            *self._threads(here),
            *self._without_policies(here),
            *(change for name, policy in kept.items() for change in self._governing(here, name, policy)),
            *(turbo if self.turbo else ()),
            *(change for name, policy in kept.items() for change in self._limits(here, name, policy)),
            *(() if self.turbo else turbo),
            *self._idling(here),
        )
        return tuple(_told_once(changes))

    def _kept(self, here: Processors) -> Mapping[str, Policy]:
        """The policies that are left when hyper-threads are off."""
        gone = {*here.second_threads} if self.smt is False else set()
        return {name: policy for name, policy in here.policies.items() if not gone.issuperset(policy.cpus)}

    def _threads(self, here: Processors) -> Iterator[Change]:
        if self.smt is None:
            return
        wanted = "on" if self.smt else "off"
        if here.smt in ("on", "off"):
            yield _write(here, "smt/control", wanted, "SMT", here.smt)
            return
        if here.smt == "forceoff" and not self.smt:
            yield Cannot("SMT", "already", "turned off by the firmware or at boot")
            return
        reason = {"forceoff": "turned off by the firmware or at boot", "notsupported": "these processors have none"}
        yield Cannot("SMT", "not_available", reason.get(here.smt or "", "this kernel can't switch it"))

    def _without_policies(self, here: Processors) -> Iterator[Change]:
        """Each setting that needs a policy, where there is none."""
        if not here.policies:
            fix = _VIRTUAL_FIX if "virtual machine" in here.why_none else None
            for name in _OF_POLICIES:
                if getattr(self, name) is not None:
                    yield Cannot(name.replace("_", " "), "not_available", here.why_none, fix=fix)

    def _governing(self, here: Processors, name: str, policy: Policy) -> Iterator[Change]:
        """Under `performance` some drivers let nobody change the preference: it comes before, and else after."""
        changes = [*self._governor(here, name, policy), *self._preference(here, name, policy)]
        yield from reversed(changes) if self.governor == "performance" else changes

    def _governor(self, here: Processors, name: str, policy: Policy) -> Iterator[Change]:
        part = f"{name} governor"
        if self.governor is None:
            return
        if policy.governors and self.governor not in policy.governors:
            offered = f"the driver {policy.driver} offers {', '.join(policy.governors)}, not {self.governor}"
            yield Cannot(part, "not_available", offered, fix=_instead(self.governor, policy))
            return
        yield _write(here, f"cpufreq/{name}/scaling_governor", self.governor, part, policy.governor)

    def _preference(self, here: Processors, name: str, policy: Policy) -> Iterator[Change]:
        part, wanted = f"{name} energy preference", self.energy_preference
        if wanted is None:
            return
        if not policy.energy_preferences:
            yield Cannot(part, "not_available", f"the driver {policy.driver} has no such setting")
        elif wanted not in policy.energy_preferences:
            offered = ", ".join(policy.energy_preferences)
            yield Cannot(part, "not_available", f"the driver {policy.driver} offers {offered}, not {wanted}")
        elif policy.driver in cpufreq.HOLDING and (self.governor or policy.governor) == "performance" != wanted:
            reason = "under the governor performance this driver holds it at performance"
            yield Cannot(part, "refused", reason, "EBUSY", "give governor: powersave with it")
        else:
            path = f"cpufreq/{name}/energy_performance_preference"
            yield _write(here, path, wanted, part, policy.energy_preference)

    def _turbo(self, here: Processors, kept: Mapping[str, Policy]) -> Iterator[Change]:
        """A policy of its own can't have boost where the whole machine has none; all of it moves each of them."""
        if self.turbo is None or not here.policies:
            return
        on, boosting = "1" if self.turbo else "0", {n: p for n, p in kept.items() if p.boost is not None}
        if here.no_turbo is not None:
            yield _write(here, "intel_pstate/no_turbo", "0" if self.turbo else "1", "no_turbo", here.no_turbo)
            return
        if here.boost is not None and (self.turbo or not boosting):
            yield _write(here, "cpufreq/boost", on, "turbo", here.boost)
        for name, policy in boosting.items():
            yield _write(here, f"cpufreq/{name}/boost", on, f"{name} turbo", policy.boost)
        if here.boost is None and not boosting:
            yield Cannot("turbo", "not_available", "this processor, or its driver, has no turbo that can be switched")

    def _limits(self, here: Processors, name: str, policy: Policy) -> Iterator[Change]:
        """To raise both limits the upper one goes first, to lower them the lower one: they never cross."""
        bounds = self._bounds(here, policy)
        changes: list[Change] = []
        for end, asked, khz, now in (
            ("max", self.max, bounds.high, policy.max_khz),
            ("min", self.min, bounds.low, policy.min_khz),
        ):
            part = f"{name} {end} kHz"
            if asked is None:
                continue
            if khz is None:
                changes.append(Cannot(part, "not_available", f"the driver {policy.driver} does not say what that is"))
            else:
                changes.append(_write(here, f"cpufreq/{name}/scaling_{end}_freq", str(khz), part, _text(now)))
        lowers = bounds.high is not None and policy.min_khz is not None and bounds.high < policy.min_khz
        yield from reversed(changes) if lowers else changes

    def _bounds(self, here: Processors, policy: Policy) -> _Bounds:
        """What is asked for, as near to it as this policy comes."""
        return _Bounds(self._nearest(self.min, here, policy), self._nearest(self.max, here, policy))

    def _nearest(self, asked: float | str | None, here: Processors, policy: Policy) -> int | None:
        lowest, highest = policy.lowest_khz, self._ceiling(here, policy)
        if asked is None or lowest is None or highest is None:
            return None
        if isinstance(asked, str):
            return {"lowest": lowest, "base": policy.base_khz, "highest": highest}[asked]
        inside = min(max(asked / 1e3, lowest), highest)
        steps = {*policy.table_khz, highest} if policy.table_khz else {round(inside)}
        return min((khz for khz in steps if khz <= highest), key=lambda khz: abs(khz - inside))

    def _ceiling(self, here: Processors, policy: Policy) -> int | None:
        turbo = here.turbo() if self.turbo is None else self.turbo
        known = [khz for khz in (policy.highest_khz, policy.base_khz) if khz is not None]
        return min(known) if turbo is False and known else policy.highest_khz

    def _idling(self, here: Processors) -> Iterator[Change]:
        """The limit on the latency of waking up ends with whoever holds it, so that comes first; a state that it can't
        keep out, being no slower than one that is allowed, is disabled."""
        deep: list[Idle] = []
        if self.max_cstate is not None:
            allowed = _allowed(self.max_cstate, here.idle)
            if not allowed or not here.latency:
                yield Cannot("C-states", "not_available", _no_state(self.max_cstate, here))
            else:
                limit_us = max(state.latency_us for state in allowed)
                last, name = max((state.number, state.name) for state in allowed)
                yield _hold(here, limit_us, name)
                deep = [state for state in here.idle if state.number > last and state.latency_us <= limit_us]
        known = {state.name for state in here.idle}
        for name in self.disable_cstates:
            if name not in known:
                yield Cannot(name, "not_available", _no_state(name, here))
        for state in (*deep, *(state for state in here.idle if state.name in self.disable_cstates)):
            for cpu in state.cpus:
                path = f"cpu{cpu}/cpuidle/state{state.number}/disable"
                yield _write(here, path, "1", f"cpu{cpu} {state.name}", "1" if cpu in state.disabled else "0")

    # ------------------------------------------------------------ what has come of it

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """What no single file says: that the plan asks for more than there is, and what came or stayed in the way."""
        was, now = Processors.of(before), Processors.of(verified)
        new = [name for name in now.policies if name not in was.policies]
        if new and {*_OF_POLICIES} & {*self._asked()}:
            fix = "give smt in a step of its own before this one"
            return Judged("drifted", f"{names.together(new)} came with SMT, with settings of their own", fix=fix)
        held = now.latency_us
        if self.max_cstate is not None and (states := _allowed(self.max_cstate, was.idle)) and held is not None:
            limit_us = max(state.latency_us for state in states)
            if held > limit_us:
                allowed = "all idle states" if held >= _NO_LIMIT_US else f"idle states of up to {held} µs"
                return Judged("drifted", f"the kernel allows {allowed}, not only those of {limit_us} µs or less")
        looks = (self._locked(now), self._outgrown(now), self._below_max(was, now), self._short(was))
        return next(filter(None, looks), None) or self._held_below(was, now)

    def _locked(self, now: Processors) -> Judged | None:
        """To root, intel_pstate refuses turbo only where the processor's own register has it off."""
        if not self.turbo or now.no_turbo != "1" or now.read_only or os.geteuid() != 0:
            return None
        reason = "no_turbo: turbo is turned off by the firmware, or this processor has none"
        return Judged("refused", reason, "EPERM", "turn turbo on in the BIOS (Intel Turbo Boost), and boot again")

    def _below_max(self, was: Processors, now: Processors) -> Judged | None:
        """A lowest clock by itself can't rise above the highest that stands there."""
        low: dict[str, list[str]] = {}
        for name, policy in self._kept(was).items():
            top, asked = now.policies.get(name, policy).max_khz, self._bounds(was, policy).low
            if self.max is None and top is not None and asked is not None and asked > top:
                low.setdefault(show_khz(top), []).append(name)
        if not low:
            return None
        reason = "; ".join(f"{names.together(alike)} min: the highest clock is {top}" for top, alike in low.items())
        return Judged("clamped", reason, ", ".join(low), "give `max`, too")

    def _outgrown(self, now: Processors) -> Judged | None:
        """Turbo that has come on with this step may have raised what the highest clock is."""
        if self.max != "highest" or not self.turbo:
            return None
        low = [n for n, p in now.policies.items() if (p.max_khz or 0) < (p.highest_khz or 0) > (p.base_khz or 0)]
        if not low:
            return None
        reason = f"{names.together(low)}: the highest clock rose when turbo came on, after `max` was chosen"
        return Judged("clamped", reason, fix="give turbo in a step of its own before this one")

    def _short(self, was: Processors) -> Judged | None:
        """A clock that no policy has: the nearest was taken."""
        said: dict[tuple[str, float, int], list[str]] = {}
        for name, policy in self._kept(was).items():
            bounds = self._bounds(was, policy)
            ends: dict[tuple[float, int], list[str]] = {}
            for end, asked, khz in (("min", self.min, bounds.low), ("max", self.max, bounds.high)):
                if isinstance(asked, float) and khz is not None and abs(asked / 1e3 - khz) >= 1:
                    ends.setdefault((asked / 1e3, khz), []).append(end)
            for (wanted, khz), which in ends.items():
                said.setdefault((" and ".join(which), wanted, khz), []).append(name)
        if not said:
            return None
        reason = "; ".join(
            f"{names.together(alike)} {ends}: {show_khz(wanted)} is not there, the nearest is {show_khz(khz)}"
            for (ends, wanted, khz), alike in said.items()
        )
        return Judged("clamped", reason, *self._nearby(was, said))

    def _nearby(self, was: Processors, said: Mapping[tuple[str, float, int], list[str]]) -> tuple[str, str | None]:
        """(what was reached, what to do). Of processors of several kinds only some may lack a clock."""
        reached = list(dict.fromkeys(show_khz(khz) for _, _, khz in said))
        lacking = {name for alike in said.values() for name in alike}
        able = [cpu for name, policy in self._kept(was).items() if name not in lacking for cpu in policy.cpus]
        if able:
            bound = f"bind the program to the CPUs that reach it (affinity: cpus: {names.spans(able)})"
            fix = f"give lowest, base or highest, or {bound}"
            return f"{names.together(sorted(lacking, key=list(was.policies).index))}: {', '.join(reached)}", fix
        return ", ".join(reached), f"write {reached[0]} into the plan" if len(reached) == 1 else None

    def _held_below(self, was: Processors, now: Processors) -> Judged | None:
        pct, highest = now.most_pct, max((p.highest_khz or 0 for p in was.policies.values()), default=0)
        wanted = max((p.max_khz or 0 for p in now.policies.values()), default=0)
        if self.max is None or pct is None or not highest or wanted <= highest * pct / 100 * (1 + _TOLERANCE):
            return None
        top = show_khz(round(highest * pct / 100))
        reason = f"intel_pstate/max_perf_pct is {pct}: the clock stays at or below {top} whatever the policies say"
        return Judged("clamped", reason, top, "echo 100 | sudo tee /sys/devices/system/cpu/intel_pstate/max_perf_pct")

    def during(self, before: dict[str, Any], samples: pd.DataFrame) -> tuple[dict[str, Any], Judged | None]:
        """The clocks of busy cores, as the monitor read them beside how busy they were."""
        here = Processors.of(before)
        clocks = _busy_clocks(samples)
        if not clocks:
            return {}, None
        every = [khz for values in clocks.values() for khz in values]
        seen = {"busy_cores": len(clocks), "readings": len(every), **_spread_mhz(every)}
        off = [text for text in (self._off(here, p, clocks) for p in self._kept(here).values()) if text]
        if not off:
            return seen, None
        return seen, Judged("drifted", "clock not held: " + "; ".join(names.folded(off)), fix=_NOT_HELD_FIX)

    def watched(self) -> str:
        return "the processors' clocks hold" if self.min or self.max or self.turbo is False else ""

    def _off(self, here: Processors, policy: Policy, clocks: Mapping[int, list[float]]) -> str | None:
        from statistics import median

        bounds = self._bounds(here, policy)
        found = [khz for cpu in policy.cpus for khz in clocks.get(cpu, ())]
        if not found:
            return None
        middle = median(found)
        top = bounds.high or (policy.base_khz if self.turbo is False else None)
        if (bounds.low or 0) * (1 - _TOLERANCE) <= middle <= (top or float("inf")) * (1 + _TOLERANCE):
            return None
        wanted = " to ".join(dict.fromkeys(show_khz(khz) for khz in (bounds.low, top) if khz is not None))
        shown = ", ".join(show_khz(round(khz, -3)) for khz in (min(found), middle, max(found)))
        return f"cpu{names.spans(policy.cpus)} ran at {shown} (least, median, most), wanted {wanted}"

    # ------------------------------------------------------------ for `profrun env show`

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        here = cpufreq.read(machine, idle=True)
        policies = [knob for name, policy in here.policies.items() for knob in _policy_knobs(here, name, policy)]
        return [*policies, *_global_knobs(here), *_idle_knobs(here)]


_OF_POLICIES = ("governor", "energy_preference", "turbo", "max", "min")


def _write(here: Processors, path: str, text: str, part: str, now: str | None) -> Change:
    """A read-only /sys is known before it is tried; a value that stands there already needs no writing."""
    if here.read_only and now != text:
        return Cannot(part, "refused", "/sys is mounted read-only", "EROFS", _READ_ONLY_FIX)
    return Write(f"{here.place}/{path}", text, part)


def _told_once(changes: Iterable[Change]) -> Iterator[Change]:
    """What is out of reach for one reason, as one."""
    alike: dict[Cannot, list[str]] = {}
    for change in changes:
        if isinstance(change, Cannot):
            alike.setdefault(replace(change, part=""), []).append(change.part)
        else:
            yield change
    for cannot, parts in alike.items():
        yield replace(cannot, part=names.together(parts))


def _awake(latency_us: int | None) -> str | None:
    """A limit on how long waking up may take, in words; None: unknown."""
    if latency_us is None:
        return None
    return "no limit" if latency_us >= _NO_LIMIT_US else f"awake within {latency_us} µs"


def _hold(here: Processors, limit_us: int, deepest: str) -> Hold:
    """Eight digits of hexadecimal text; what is four bytes long, as 0x85 is, would be read as a binary number
    (kernel/power/qos.c)."""
    was, wanted = _awake(here.latency_us), _awake(limit_us)
    return Hold(here.latency or "", f"{limit_us:08x}", f"C-states up to {deepest} ({limit_us} µs)", wanted, was)


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _instead(governor: str, policy: Policy) -> str:
    """What to write for a governor that is not offered."""
    near = difflib.get_close_matches(governor, policy.governors, 1)
    if near:
        return f"did you mean {near[0]}?"
    if governor == "userspace":
        return "give min and max the same clock"
    return "did you mean powersave? With this driver it follows the load" if policy.driver in cpufreq.HOLDING else ""


def _allowed(wanted: int | str, idle: Iterable[Idle]) -> list[Idle]:
    """The states down to the wanted one; none where there is no such state."""
    states = list(idle)
    last = [s.number for s in states if wanted in (s.number, s.name)]
    if isinstance(wanted, int) and states:
        last = [min(wanted, max(state.number for state in states))]
    return [state for state in states if last and state.number <= max(last)]


def _no_state(wanted: int | str, here: Processors) -> str:
    if not here.idle:
        return "this machine shows no idle states"
    if not here.latency:
        return "/dev/cpu_dma_latency is not there, as in a container"
    known = dict.fromkeys(state.name for state in here.idle)
    return f"there is no idle state {wanted}, only {', '.join(known)}"


def _busy_clocks(samples: pd.DataFrame) -> dict[int, list[float]]:
    """kHz by core, of the moments in which it was busy."""
    cores = samples[samples["source"] == "core"]
    keys = ["time_ns", "subject"]
    busy = cores[(cores["metric"] == "cpu_pct") & (cores["value"] >= _BUSY_PCT)][keys]
    clocks = cores[(cores["metric"] == "clock_mhz") & cores["value"].notna()]
    found: dict[int, list[float]] = {}
    for core, mhz in clocks.merge(busy, on=keys)[["subject", "value"]].itertuples(index=False):
        found.setdefault(int(core), []).append(float(mhz) * 1e3)
    return found


def _spread_mhz(khz: list[float]) -> dict[str, float]:
    from statistics import median

    return {f"{name}_mhz": round(of(khz) / 1e3) for name, of in (("min", min), ("median", median), ("max", max))}


# ---------------------------------------------------------------- knobs


def _policy_knobs(here: Processors, name: str, policy: Policy) -> Iterator[Knob]:
    def knob(what: str, file: str, value: str | None, limits: Iterable[str] = (), note: str | None = None) -> Knob:
        path = f"{here.place}/cpufreq/{name}/{file}"
        return Knob(f"{name} {what}", value, ", ".join(limits) or None, cpufreq.writer(path), path, note)

    span = [f"{_khz(policy.lowest_khz)} to {_khz(policy.highest_khz)}"]
    turbo = {policy.highest_khz} if policy.highest_khz else set()  # the table ends at the base
    steps = [show_khz(khz) for khz in sorted({*policy.table_khz, *turbo})] if policy.table_khz else span
    base = f"{show_khz(policy.base_khz)} without turbo" if policy.base_khz else None
    yield knob("governor", "scaling_governor", policy.governor, policy.governors, policy.driver)
    yield knob("min", "scaling_min_freq", _khz(policy.min_khz), steps)
    yield knob("max", "scaling_max_freq", _khz(policy.max_khz), steps, base)
    if policy.energy_preferences:
        file = "energy_performance_preference"
        yield knob("energy preference", file, policy.energy_preference, policy.energy_preferences)
    if policy.boost is not None:
        yield knob("turbo", "boost", _on(policy.boost == "1"), ("on", "off"))


def _global_knobs(here: Processors) -> Iterator[Knob]:
    if not here.policies:
        yield Knob("clock", None, note=here.why_none)
    for what, file, on in (
        ("turbo", "intel_pstate/no_turbo", None if here.no_turbo is None else here.no_turbo == "0"),
        ("turbo", "cpufreq/boost", None if here.boost is None else here.boost == "1"),
    ):
        if on is not None:
            path = f"{here.place}/{file}"
            yield Knob(what, _on(on), "on, off", cpufreq.writer(path), path)
    if here.smt is not None:
        path, can = f"{here.place}/smt/control", here.smt in ("on", "off")
        yield Knob("SMT", here.smt, "on, off" if can else None, cpufreq.writer(path) if can else "nobody", path)
    if here.latency:
        states = ", ".join(dict.fromkeys(f"{s.name} {s.latency_us} µs" for s in here.idle)) or None
        yield Knob("C-states", _awake(here.latency_us), states, cpufreq.writer(here.latency), here.latency)


def _idle_knobs(here: Processors) -> Iterator[Knob]:
    for state in here.idle:
        for cpu in state.cpus:
            path = f"{here.place}/cpu{cpu}/cpuidle/state{state.number}/disable"
            value = "disabled" if cpu in state.disabled else "enabled"
            yield Knob(f"cpu{cpu} {state.name}", value, "enabled, disabled", cpufreq.writer(path), path)


def _khz(khz: int | None) -> str | None:
    return None if khz is None else show_khz(khz)


def _on(value: bool) -> str:
    return "on" if value else "off"
