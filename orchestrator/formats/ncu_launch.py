"""One launch as Nsight Compute measured it, whichever of its files told of it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_BYTES = 400_000_000
"""Memory for the tables of one file, roughly: 4 million values; 1000 launches with all metrics are 2 million."""
_ROW_BYTES = 100


@dataclass(frozen=True)
class Rule:
    """What one of ncu's rules says of a launch. speedup_pct: its estimate; scope: global (of the launch's duration) or
    local (of the part of the GPU that the rule looks at)."""

    section: str | None
    rule: str | None
    kind: str | None
    message: str | None
    speedup_pct: float | None = None
    scope: str | None = None


@dataclass(frozen=True)
class Launch:
    """metrics: {name: (value, unit)}, in base units (ns, byte, hz, byte/s, ...), None where ncu has no value."""

    number: int
    pid: int | None
    kernel: str
    short_name: str | None
    grid: str | None
    block: str | None
    gpu: str | None
    metrics: Mapping[str, tuple[float | None, str | None]]
    rules: tuple[Rule, ...] = ()

    def value(self, *names: str) -> float | None:
        """The first of these metrics that has a value."""
        return next((found for name in names if (found := self.metrics.get(name, (None,))[0]) is not None), None)

    @property
    def weight_bytes(self) -> int:
        """What its rows take in memory, roughly."""
        texts = len(self.kernel) + sum(len(rule.message or "") for rule in self.rules)
        return texts + _ROW_BYTES * (1 + len(self.metrics) + len(self.rules))


@dataclass
class Losses:
    """What could not be read of a file, filled while its launches are taken."""

    launches: int = 0
    rows: int = 0
    damage: list[str] = field(default_factory=list)
    """What is missing, in words; `notes` says what else the reader should know."""
    notes: list[str] = field(default_factory=list)


def number(value: Any) -> float | None:
    """A finite number, else None."""
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def shape(metrics: Mapping[str, tuple[float | None, str | None]], what: str) -> str | None:
    """Grid or block as x,y,z; a launch that failed has none."""
    found = [metrics.get(f"launch__{what}_dim_{axis}", (None,))[0] for axis in "xyz"]
    return None if None in found else ",".join(str(int(size)) for size in found if size is not None)


_URL = re.compile(r"@url:([^:@]*):([^@]*)@")
_PLACE = re.compile(r"@(?:section:[^:@]*|sass:[^:@]*|source:[^@]*:\d+):([^@]*)@")


def readable(message: str | None) -> str | None:
    """A rule's message with its links as text, as ncu's own CSV has them."""
    return _PLACE.sub(r"\1", _URL.sub(r"\1 (\2)", message)) if message else None
