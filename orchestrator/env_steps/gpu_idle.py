"""Environment step `gpu_idle`: do the GPUs that the target will use belong to it alone? By memory, utilisation over a
window and processes; waits, and names who is there."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from orchestrator import gpus, names, neighbours
from orchestrator.env_steps.waiting import Patterns, Waiting
from orchestrator.model import Check, Judged
from orchestrator.units import Duration, Percent, Size

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_DISPLAY_SERVERS = re.compile(
    r"X|Xorg(\.bin)?|Xwayland|gnome-shell|mutter(-x11-fram)?|kwin_wayland|kwin_x11|sway|weston|Hyprland|cosmic-comp|labwc"
    r"|wayfire|river|gamescope"
)
"""By the name that /proc/PID/stat has, 15 letters at most."""
_DISPLAY_MANAGERS = re.compile(r"gdm3?|sddm|lightdm|lxdm|xdm|ly|greetd")
_TEXT_MODE = (("isolate", "multi-user.target"), ("isolate", "graphical.target"))
"""How to stop, and start again, whatever draws where no display manager is known: of systemctl the words."""
_HIDDEN = "the processes of others can't be listed from here"
_FIND_IT = "wait for it (`wait: 10m`), or look on the host who it is: nvidia-smi, as root and outside of containers"
"""Where nobody is listed, nobody can be let be by name."""


class GpuIdle(Waiting):
    """Idle is not "no process is listed": inside a container none ever is."""

    use: Literal["gpu_idle"] = "gpu_idle"
    over: Annotated[Duration, Field(gt=0, le=10)] = Field(1.0, description="how long each look takes, 10s at most")
    max_utilization: Percent = Field(5.0, description="the most that any sample of that time may show")
    max_memory: Size = Field(500 * 2**20, description="the most memory of others; the driver itself takes some")
    allow: Patterns = Field((), description="regular expressions; a process whose command line has a match may stay")

    purpose: ClassVar[str] = "waits until nobody else uses the target's GPUs, and names who does"

    def checks(self, machine: Machine) -> list[Check]:
        found = gpus.look(machine)
        why_not = found.why_not or gpus.of_target(found, machine).why_none
        return [Check("gpu_idle", "missing", why_not)] if why_not else []

    def look(self, machine: Machine) -> dict[str, Any]:
        """gpus: those that the target will use; displays: the display servers of this machine, by what they are."""
        found = gpus.look(machine, window_s=self.over)
        chosen = gpus.of_target(found, machine)
        everyone = neighbours.everyone(machine)
        ours = neighbours.ours(machine, everyone)
        named = [(one, neighbours.describe(machine, one.pid)) for one in everyone.values() if _display(one.name)]
        return {
            "why_not": found.why_not or chosen.why_none,
            "silent": found.silent,
            "gpus": [self._seen(gpu, ours) for gpu in chosen.gpus],
            "displays": [who for one, who in named if _DISPLAY_SERVERS.fullmatch(one.name) and not self._may_stay(who)],
            "display_manager": next((one.name for one, _ in named if _DISPLAY_MANAGERS.fullmatch(one.name)), None),
            "notes": [*found.notes, *chosen.notes, *([_HIDDEN] if found.processes_hidden else [])],
        }

    def _seen(self, gpu: gpus.Gpu, ours: set[int]) -> dict[str, Any]:
        """One GPU. others_memory_bytes: without what belongs to the target and to who may stay; None: unknown."""
        by_kind = sorted(gpu.processes, key=lambda process: process.kind, reverse=True)
        listed = [*{process.pid: _described(process) for process in by_kind}.values()]  # one of both kinds: compute
        fine = [one for one in listed if one["pid"] in ours or self._may_stay(one)]
        theirs = [one["memory_bytes"] for one in fine]
        used = None if None in (gpu.memory_used_bytes, *theirs) else max(0, (gpu.memory_used_bytes or 0) - sum(theirs))
        return {
            "index": gpu.index,
            "uuid": gpu.uuid,
            "name": gpu.name,
            "utilization_pct": list(gpu.utilization_pct),
            "memory_used_bytes": gpu.memory_used_bytes,
            "others_memory_bytes": used,
            "display_active": gpu.display_active,
            "processes": [one for one in listed if one not in fine],
            "may_stay": len(fine),
            "unknown": dict(_unknown(gpu, used)),
        }

    def _may_stay(self, one: Mapping[str, Any]) -> bool:
        return any(re.search(pattern, one["command"] or "") for pattern in self.allow)

    # ------------------------------------------------------------ what is made of it

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        if seen["why_not"]:
            if seen["silent"]:
                return Judged("failed", seen["why_not"], fix=gpus.WAKE)
            return Judged("not_available", seen["why_not"])
        found = [(gpu, self._objections(gpu, seen).values()) for gpu in seen["gpus"]]
        said = [f"{_label(gpu)}: {', '.join(objections)}" for gpu, objections in found if objections]
        if said:
            return Judged("failed", "; ".join(names.folded([*said, *_notes(seen)])), fix=self._fix(seen))
        blind = any(len(gpu["unknown"]) == 2 for gpu in seen["gpus"])
        return Judged("not_available", "; ".join(_notes(seen))) if blind else None

    def content(self, seen: dict[str, Any]) -> str | None:
        return "; ".join(_notes(seen)) or None

    def may_pass(self, seen: dict[str, Any]) -> bool:
        """A display server does not go away by itself."""
        return any(self._objections(gpu, seen).keys() - {"display"} for gpu in seen["gpus"])

    def _objections(self, gpu: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, str]:
        """What speaks against a GPU's being idle, by its kind."""
        found = {}
        utilization, memory = max(gpu["utilization_pct"], default=None), gpu["others_memory_bytes"]
        if utilization is not None and utilization > self.max_utilization:
            found["utilization"] = f"up to {utilization} % busy ({self.max_utilization:g} % allowed)"
        displays = {one["pid"] for one in seen["displays"]}
        drawing = [one for one in gpu["processes"] if one["pid"] in displays or one["kind"] == "graphics"]
        others = [one for one in gpu["processes"] if one not in drawing]
        if memory is not None and memory > self.max_memory:
            found["memory"] = f"{_mib(memory)} in use{_whose(gpu)} ({_mib(self.max_memory)} allowed)"
        if others:
            found["processes"] = f"used by {neighbours.some(map(_told, others))}"
        if drawing or (gpu["display_active"] and displays):
            who = map(_told, drawing) if drawing else map(neighbours.told, seen["displays"])
            found["display"] = f"it draws for {neighbours.some(who)}"
        return found

    def _fix(self, seen: Mapping[str, Any]) -> str:
        kinds = {kind for gpu in seen["gpus"] for kind in self._objections(gpu, seen)}
        if kinds <= {"utilization", "memory"}:
            return _FIND_IT
        if "display" not in kinds:
            return "end what uses it, wait for it (`wait: 10m`), or let it be by name (`allow: [NAME]`)"
        manager = seen["display_manager"]
        run, undo = (("stop", manager), ("start", manager)) if manager else _TEXT_MODE
        snippet = f"{{use: shell, run: [systemctl, {', '.join(run)}], undo: [systemctl, {', '.join(undo)}]}}"
        return (
            f"stop the display server, which ends every desktop session: `systemctl {' '.join(run)}`, in the plan "
            f"before this step {snippet}; or let it be by name (`allow: [Xorg]`)"
        )


def _display(name: str) -> bool:
    return bool(_DISPLAY_SERVERS.fullmatch(name) or _DISPLAY_MANAGERS.fullmatch(name))


def _described(process: gpus.GpuProcess) -> dict[str, Any]:
    command = None if process.command is None else neighbours.short(process.command)
    known = {"pid": process.pid, "user": process.user, "command": command}
    return {**known, "kind": process.kind, "memory_bytes": process.memory_bytes}


def _unknown(gpu: gpus.Gpu, others_memory_bytes: int | None) -> Iterator[tuple[str, str]]:
    """What can't be judged, and why."""
    if not gpu.utilization_pct:
        yield "utilisation", gpu.why_unknown("utilization_pct")
    if gpu.memory_used_bytes is None:
        yield "memory in use", gpu.why_unknown("memory_used_bytes")
    elif others_memory_bytes is None:
        yield "memory in use by others", "the driver does not tell what the target uses"


def _notes(seen: Mapping[str, Any]) -> Iterator[str]:
    for gpu in seen["gpus"]:
        for what, why in gpu["unknown"].items():
            yield f"{_label(gpu)}: {what} unknown ({why})"
    yield from seen["notes"]


def _whose(gpu: Mapping[str, Any]) -> str:
    """Of memory that is in use."""
    if gpu["processes"]:
        return ""
    return " beside those that may stay" if gpu["may_stay"] else " of processes that can't be seen from here"


def _label(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['index']}"


def _told(one: Mapping[str, Any]) -> str:
    return neighbours.told(one, *([_mib(one["memory_bytes"])] if one["memory_bytes"] is not None else []))


def _mib(count: int) -> str:
    """As nvidia-smi shows it."""
    return f"{count / 2**20:,.0f} MiB"
