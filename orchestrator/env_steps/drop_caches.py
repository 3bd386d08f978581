"""Environment step `drop_caches`: the first pass reads its files from the disk, as after a boot."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from orchestrator import cpufreq
from orchestrator.env_steps.base import Step
from orchestrator.model import Cannot, Change, Check, Judged, Knob, Run, Write
from orchestrator.units import show_bytes

if TYPE_CHECKING:
    from orchestrator.machine import Machine

_FILE = "proc/sys/vm/drop_caches"
_SYNC_LIMIT_S = 300.0
_FIX = "run profrun on the host, or in a container that may write /proc/sys (docker run --privileged)"


class DropCaches(Step):
    """Empties the kernel's caches once, before the first pass: a warm-up, or each pass after the first, fills them
    again. It can't be undone; all programs of the machine read from the disk for a while."""

    use: Literal["drop_caches"] = "drop_caches"
    level: Literal[1, 2, 3] = Field(3, description="1: pages of files; 2: names and inodes; 3: both")

    purpose: ClassVar[str] = "writes what is unwritten to the disks and empties the kernel's caches; once, no undo"

    def checks(self, machine: Machine) -> list[Check]:
        changes = self.apply(self.before(machine))
        return [
            Check(
                "drop_caches", "blocked" if cannot.status == "refused" else "missing", cannot.reason or "", cannot.fix
            )
            for cannot in changes
            if isinstance(cannot, Cannot)
        ]

    def before(self, machine: Machine) -> dict[str, Any]:
        """Bytes of the files' pages and of the names and inodes (Cached, SReclaimable in proc(5), meminfo)."""
        path = machine.path(_FILE)
        file = {"file": str(path)} if path.exists() else {}
        return {**self.verify(machine), **file, "read_only": cpufreq.is_read_only(path)}

    def apply(self, before: dict[str, Any]) -> tuple[Change, ...]:
        """Pages that are not yet on the disk can't be dropped: they are written first."""
        if "file" not in before:
            return (Cannot("caches", "not_available", "/proc/sys/vm/drop_caches is not there"),)
        if before["read_only"]:
            return (Cannot("caches", "refused", "/proc/sys is mounted read-only", "EROFS", _FIX),)
        return (Run(("sync",), _SYNC_LIMIT_S, "sync"), Write(before["file"], str(self.level), "caches", once=True))

    def verify(self, machine: Machine) -> dict[str, Any]:
        text = machine.read("proc/meminfo") or ""
        found = {name: re.search(rf"^{name}:\s*(\d+) kB", text, re.M) for name in ("Cached", "SReclaimable")}
        names = {"Cached": "cached_bytes", "SReclaimable": "reclaimable_bytes"}
        return {names[name]: int(match[1]) * 1024 for name, match in found.items() if match}

    def judge(self, before: dict[str, Any], verified: dict[str, Any]) -> Judged | None:
        """Pages in use, of a mapped file or a tmpfs, stay: how much is left says little, that there is more does."""
        was, now = (found.get("cached_bytes") for found in (before, verified))
        if self.level == 2 or was is None or now is None or now <= was:
            return None
        return Judged("drifted", "more is cached now than before: something on this machine reads files")

    @classmethod
    def knobs(cls, machine: Machine) -> list[Knob]:
        path, cached = machine.path(_FILE), cls().verify(machine).get("cached_bytes")
        value = None if cached is None else f"{show_bytes(cached)} of files"
        note = "what is dropped is read again when it is needed: no undo"
        return [Knob("caches", value, "drop 1, 2, 3", cpufreq.writer(path), str(path), note)] if path.exists() else []
