"""Which GPUs a program sees: CUDA's reading of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

VARIABLE, ORDER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"


class Device(Protocol):
    """A GPU as far as the rule needs it. index: the driver's number, in the order of PCI ids."""

    @property
    def index(self) -> int: ...
    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def mig_uuids(self) -> tuple[str, ...]: ...


@dataclass
class Visible:
    """What a program sees: places in the list of GPUs, in the order in which CUDA numbers them."""

    places: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sure: bool = True
    """Not where CUDA may number the GPUs in another order than the driver."""
    why_none: str | None = None


def visible(devices: Sequence[Device], env: Mapping[str, str]) -> Visible:
    """Those of the driver's GPUs that CUDA shows to a program with this environment.

    The list is of numbers, of GPU UUIDs (or their unique beginnings) or of MIG UUIDs; the first entry that is none of
    its kind ends it, and a GPU that stands there twice empties it (CUDA Programming Guide, "CUDA Environment
    Variables"; `torch.cuda._parse_visible_devices` for what that leaves open)."""
    text = env.get(VARIABLE)
    if text is None:
        return Visible(list(range(len(devices))))
    found = Visible()
    for word in (word.strip() for word in text.split(",")):
        hits = list(_hits(word, devices)) if _kind(word) == _kind(text) else []
        if len(hits) != 1:
            _end(found, word, text, len(hits))
            break
        if hits[0] in found.places and _kind(word) != "MIG":
            return Visible(why_none=f"{VARIABLE}={text} names GPU {devices[hits[0]].index} twice: CUDA then shows none")
        found.places += [] if hits[0] in found.places else hits
        if _kind(word) == "MIG":
            found.notes.append(f"{word} is a part (MIG) of GPU {devices[hits[0]].index}")
    return _ordered(found, devices, env) if _kind(text) == "number" else found


def _kind(word: str) -> str:
    start = word.strip()[:4]
    return {"GPU-": "GPU", "MIG-": "MIG"}.get(start, "number")


def _hits(word: str, devices: Sequence[Device]) -> Iterator[int]:
    """The places of the GPUs that an entry may mean. MIG-GPU-<UUID>/<instance>/<instance> is the form before R470."""
    parent = word.removeprefix("MIG-").partition("/")[0]
    number = re.match(r"[+-]?\d+", word)  # as strtol does: 1x is 1
    for place, device in enumerate(devices):
        if _kind(word) == "number":
            hit = bool(number) and int(number[0]) == device.index if number else False
        elif _kind(word) == "GPU":
            hit = device.uuid.startswith(word)
        else:
            hit = any(uuid.startswith(word) for uuid in device.mig_uuids) or device.uuid == parent
        if hit:
            yield place


def _end(found: Visible, word: str, text: str, hits: int) -> None:
    """Says why the list ends here."""
    why = f"{word!r} fits {hits} GPUs" if hits else f"{word!r} is none of its GPUs here"
    if word in ("", "-1"):
        why = "it is empty" if not text.strip() else f"{word!r} ends it"
    if found.places:
        found.notes.append(f"{VARIABLE}={text}: {why}; CUDA leaves out what follows")
    else:
        found.why_none = f"{VARIABLE}={text} shows the program no GPU: {why}"


def _ordered(found: Visible, devices: Sequence[Device], env: Mapping[str, str]) -> Visible:
    """Unless it is told to follow the PCI ids, CUDA gives the fastest GPU the number 0."""
    unlike = len({device.name for device in devices}) > 1
    if unlike and env.get(ORDER) != "PCI_BUS_ID" and 0 < len(found.places) < len(devices):
        found.sure = False
        found.notes.append(
            f"{VARIABLE} gives numbers, the GPUs are unlike and {ORDER} is not PCI_BUS_ID: CUDA puts the fastest first,"
            f" so these may be other GPUs than those with the driver's numbers; set {ORDER}=PCI_BUS_ID or give UUIDs"
        )
    return found
