"""Environment step `affinity`: the CPUs, the NUMA node, the priority and the address layout of the program alone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, PlainValidator, StrictBool, StrictInt, WithJsonSchema, model_validator

from orchestrator import process
from orchestrator.env_steps.base import Step, yaml_word
from orchestrator.model import Cannot, Change, Check, Child, StepStatus, Verdict
from orchestrator.names import numbers_in, spans

if TYPE_CHECKING:
    from orchestrator.machine import Machine

NO_RANDOM_ADDRESSES = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2)."""
_MOST_CPUS = 1 << 16
_NODE = "sys/devices/system/node"
_NICE_FIX = "allow it in /etc/security/limits.conf (USER - nice -20; systemd: LimitNICE=-20), or run as root"
_PERSONALITY_FIX = "a container's filter forbids it: docker run --security-opt seccomp=unconfined"
_MEMORY_FIX = "a container's filter forbids it: docker run --cap-add SYS_NICE"


def _cpus(value: Any) -> tuple[int, ...]:
    """0-7,16 as the kernel and taskset write it, or a list of numbers."""
    words = value if isinstance(value, (list, tuple)) else [value]
    if any(isinstance(word, bool) or not isinstance(word, (int, str)) for word in words):
        raise ValueError("write it like 0-7,16")
    try:
        found = numbers_in(",".join(map(str, words)))
    except ValueError:
        raise ValueError(f"{value!r} is no list of CPUs; write it like 0-7,16") from None
    if not found or max(found) >= _MOST_CPUS:
        raise ValueError(f"{value!r} names no CPU; write it like 0-7,16")
    return tuple(sorted(set(found)))


Cpus = Annotated[
    tuple[int, ...],
    PlainValidator(_cpus),
    PlainSerializer(spans, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\s*\d+(\s*-\s*\d+)?(\s*,\s*\d+(\s*-\s*\d+)?)*\s*$"},
                {"type": "integer", "minimum": 0},
                {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1},
            ],
            "examples": ["0-7,16"],
        }
    ),
]


class Affinity(Step):
    """Of the program's own processes, before it starts; its children inherit it. Nothing on the machine is changed, and
    tools that run beside the program stay where they are; one that starts it (strace, nsys, ncu) goes with it."""

    use: Literal["affinity"] = "affinity"
    cpus: Cpus | None = Field(None, description="the CPUs that the program may use: 0-7,16")
    numa: Annotated[StrictInt, Field(ge=0, lt=1024)] | None = Field(
        None, description="a NUMA node: its CPUs, unless `cpus` names others, and its memory first (others' when full)"
    )
    nice: Annotated[StrictInt, Field(ge=-20, le=19)] | None = Field(
        None, description="priority: -20 the highest, 19 the lowest; below 0 needs a right"
    )
    aslr: StrictBool = Field(True, description="false: the same addresses in each run (personality, not the machine's)")

    purpose: ClassVar[str] = "binds the program to CPUs or a NUMA node, sets its priority, fixes its addresses"

    @model_validator(mode="after")
    def _makes_sense(self) -> Affinity:
        if self.child() == Child():
            raise ValueError("sets nothing: give cpus, numa, nice or aslr: false")
        return self

    def child(self) -> Child:
        bits = None if self.aslr else NO_RANDOM_ADDRESSES
        return Child(affinity=self.cpus, numa_node=self.numa, nice=self.nice, personality=bits)

    def checks(self, machine: Machine) -> list[Check]:
        """What is out of reach, tried out beforehand: the program starts all the same."""
        verdicts: dict[StepStatus, Verdict] = {"clamped": "warn", "refused": "blocked"}
        return [
            Check("affinity", verdicts.get(c.status, "missing"), f"{c.part}: {c.reason}", c.fix)
            for c in self._out_of_reach(self.before(machine))
        ]

    def before(self, machine: Machine) -> dict[str, Any]:
        """What profrun itself has, which the program would get without this step, and what came of a trial."""
        trial = process.tried(self.child())
        nodes = [path.name[4:] for path in machine.path(_NODE).glob("node[0-9]*")]
        lacks_cpus = not set(self.cpus or ()) <= set(trial.cpus)
        return {
            "cpus": spans(os.sched_getaffinity(0)),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "trial": {"cpus": spans(trial.cpus), "refused": dict(trial.refused)},
            **({"usable": spans(_usable())} if lacks_cpus else {}),
            **({"nodes": spans(map(int, nodes))} if self.numa is not None else {}),
        }

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        return tuple(self._out_of_reach(before))

    def _out_of_reach(self, before: Mapping[str, Any]) -> Iterator[Cannot]:
        """What the program will not get. What it gets needs no change to the machine."""
        refused: Mapping[str, int] = before["trial"]["refused"]
        if self.cpus is not None and "usable" in before:
            yield _cpus_out_of_reach(self.cpus, before)
        if "numa_node" in refused:
            yield self._node_out_of_reach(refused["numa_node"], before)
        if "nice" in refused:
            reason = f"nice {self.nice} is not allowed here; the program runs with {before['nice']}"
            yield Cannot("nice", "refused", reason, _name(refused["nice"]), _NICE_FIX)
        if "personality" in refused:
            reason = "the addresses of the program stay random"
            yield Cannot("ASLR", "refused", reason, _name(refused["personality"]), _PERSONALITY_FIX)

    def _node_out_of_reach(self, number: int, before: Mapping[str, Any]) -> Cannot:
        part = f"NUMA node {self.numa}"
        if number == errno.ENOENT:
            there = f"there are {before['nodes']}" if before["nodes"] else "this machine shows none"
            return Cannot(part, "not_available", f"no such node: {there}")
        if number == errno.EINVAL:
            return Cannot(part, "not_available", "none of its CPUs, or of its memory, can be used here")
        status: StepStatus = "not_available" if number == errno.ENOSYS else "refused"
        reason = "its memory can't be preferred; its CPUs are used"
        fix = None if number == errno.ENOSYS else _MEMORY_FIX
        return Cannot(part, status, reason, _name(number), fix)

    def seen(self, started: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
        """As the base class has it: a launcher around the program, such as numactl, may have other ideas."""
        bits = started.get("personality")
        random = None if bits is None else not bits & NO_RANDOM_ADDRESSES
        found = {"cpus": started.get("cpus"), "nice": started.get("nice"), "aslr": random}
        wanted = {
            "cpus": None if self.cpus is None else spans(self.cpus),
            "nice": self.nice,
            "aslr": None if self.aslr else False,
        }
        off = [
            f"{name} {yaml_word(found[name])} instead of {yaml_word(asked)}"
            for name, asked in wanted.items()
            if asked is not None and found[name] not in (None, asked)
        ]
        return found, f"{', '.join(off)}: a launcher or the program itself changed it" if off else None


def _cpus_out_of_reach(wanted: tuple[int, ...], before: Mapping[str, Any]) -> Cannot:
    """A CPU that is off, not there, or outside of the cgroup's set."""
    usable = numbers_in(before["usable"])
    left, lost = sorted({*wanted} & {*usable}), sorted({*wanted} - {*usable})
    word, fix = "CPU" if len(lost) == 1 else "CPUs", f"choose from {before['usable']}, or widen the job's CPU set"
    reason = f"{word} {spans(lost)} can't be used here (usable: {before['usable']})"
    if left:
        return Cannot("CPUs", "clamped", reason, spans(left), fix)
    return Cannot("CPUs", "not_available", f"{reason}; the program may use all of these", fix=fix)


def _usable() -> tuple[int, ...]:
    """All CPUs that a process of ours can get, also those that profrun itself was kept from by taskset."""
    return process.tried(Child(affinity=tuple(range(max(os.sysconf("SC_NPROCESSORS_CONF"), 1))))).cpus


def _name(number: int) -> str:
    return errno.errorcode.get(number, str(number))
