"""What a process's memory is made of: its maps, as the kernel adds them up (proc(5): smaps_rollup, smaps)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from orchestrator.sampler.proc import numbers, read

MOST_PROCESSES = 64
"""Of so many the maps are read, as the kernel walks through all pages of a process for that."""
MOST_MAPPINGS = 5
_SUMS = ("Rss", "Pss", "Anonymous", "Swap")
_SHARED = ("Shared_Clean", "Shared_Dirty")
_MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)")
_KIB = 1024


def sums(pid: str) -> list[int | None] | None:
    """The columns of `memory`; None when the process is gone, or not ours to look into."""
    text = read(f"/proc/{pid}/smaps_rollup").partition("\n")[2]
    if not text:
        return None
    rss, pss, anonymous, swap, *shared = numbers(text, (*_SUMS, *_SHARED), ":")
    both = None if None in shared else sum(kib for kib in shared if kib is not None)
    return [None if kib is None else kib * _KIB for kib in (rss, pss, anonymous, both, swap)]


def largest(pid: str) -> list[tuple[str, int]]:
    """(name, bytes) of the files and other mappings that take most of its memory; what is shared counts in parts."""
    total: Counter[str] = Counter()
    name = ""
    for line in read(f"/proc/{pid}/smaps").splitlines():
        if found := _MAPPING.fullmatch(line):
            name = found[1] or "[anonymous]"
        elif line.startswith("Pss:"):
            total[name] += int(line.split()[1]) * _KIB
    return [(name, size) for name, size in total.most_common(MOST_MAPPINGS) if size]


def of(pids: Iterable[str]) -> dict[str, list[int | None]]:
    """By process id the columns of `memory`."""
    known = ((pid, sums(pid)) for pid in list(pids)[:MOST_PROCESSES])
    return {pid: row for pid, row in known if row is not None}
