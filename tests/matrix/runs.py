"""The whole fault matrix: runs its rows side by side, as most of a row is waiting, and shows what their users saw."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from matrix import interrupts, machine, target, tools
from matrix.words import Fault, Row, tried

JOBS = 6
OF: dict[str, Sequence[Fault]] = {
    "tool": tools.FAULTS, "target": target.FAULTS, "profrun": interrupts.FAULTS, "machine": machine.FAULTS,
}  # fmt: skip
"""The faults by what is at fault."""
ALL: dict[str, Fault] = {f"{whose}: {fault.name}": fault for whose, faults in OF.items() for fault in faults}
"""By a name that no other has."""


def absent(fault: Fault) -> list[str]:
    """The tools that it needs and this machine lacks."""
    beside = str(Path(sys.executable).parent)
    return [tool for tool in fault.needs if not (shutil.which(tool) or shutil.which(tool, path=beside))]


def row(name: str, folder: Path) -> Row:
    """One row. What a right one has left is removed: some leave a gigabyte."""
    place = Path(tempfile.mkdtemp(prefix="row-", dir=folder)) / "place"
    found = tried(ALL[name], place)
    if not found.wrong:
        shutil.rmtree(place.parent, ignore_errors=True)
    return found


def rows(
    names: Iterable[str], folder: Path, jobs: int = JOBS, seen: Callable[[str, Row], object] = lambda name, row: None
) -> dict[str, Row]:
    """These rows; `seen` is told of each when it is there. Those that wait longest come first."""

    def one(name: str) -> tuple[str, Row]:
        found = row(name, folder)
        seen(name, found)
        return name, found

    with ThreadPoolExecutor(jobs) as pool:
        return dict(pool.map(one, sorted(names, key=_waits, reverse=True)))


def _waits(name: str) -> bool:
    return bool(re.search("hang|never|stuck|does not end|deaf|ignor", name))


def shown(name: str, found: Row) -> str:
    """A row as text: how it ended, what was injected, the words that the user saw, and what is wrong."""
    code = "-" if found.result is None else found.result.code
    lines = [f"{'WRONG' if found.wrong else 'right'} {code:>4} {found.took_s:6.1f} s  {name}"]
    lines += [f"{'':21} {line.strip()}" for line in found.words().splitlines()]
    return "\n".join([*lines, *(f"{'':15} WRONG {wrong}" for wrong in found.wrong)])


def sums(found: dict[str, Row]) -> str:
    """All rows in one line, and the wrong ones."""
    wrong = [f"WRONG: {name}" for name in ALL if name in found and found[name].wrong]
    slowest = max(found, key=lambda name: found[name].took_s, default=None)
    told = f"; the slowest took {found[slowest].took_s:.1f} s: {slowest}" if slowest else ""
    return "\n".join([f"{len(found)} faults, {len(wrong)} wrong{told}", *wrong])


def table(found: dict[str, Row]) -> str:
    """All rows, in the order of the matrix."""
    return "\n".join([*(shown(name, found[name]) for name in ALL if name in found), sums(found)])


def kept(folder: Path) -> bool:
    """Whether something lies in a folder; else it is removed."""
    if any(folder.iterdir()):
        return True
    os.rmdir(folder)  # noqa: PTH106
    return False
