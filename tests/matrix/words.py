"""What a fault is, and what must hold after each: the words of the fault matrix."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cli import Result, environment, profrun
from waiting import until


@dataclass(frozen=True)
class Place:
    """Where one fault happens: a folder of its own, with a PATH for fakes, a TMPDIR and a place for journals in it."""

    folder: Path
    bin: Path
    """First on PATH; empty."""
    tmp: Path
    state: Path

    @classmethod
    def made(cls, folder: Path) -> Place:
        place = cls(folder, folder / "bin", folder / "tmp", folder / "state")
        for path in (place.bin, place.tmp, place.state):
            path.mkdir(parents=True)
        return place

    def env(self, **changes: str | None) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        kept = {"PATH": path, "TMPDIR": str(self.tmp), "PROFRUN_STATE": str(self.state), "HOME": str(self.folder)}
        return environment(**{**kept, **changes})

    def profrun(self, *words: str | Path, **changes: str | None) -> Result:
        return profrun(*words, cwd=self.folder, env=self.env(**changes))


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong, and what the user must get all the same."""

    name: str
    """What was injected, as a reader of the table wants it."""
    inject: Callable[[Place], Result]
    """Makes it happen, and gives back what profrun's user saw."""
    code: int | tuple[int, ...]
    says: str
    """A regex for the words that the user must have seen: on stderr, or as the reason of a capture."""
    statuses: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    """What must have become of collectors, by their names: `ok` for those that the fault has nothing to do with."""
    needs: tuple[str, ...] = ()
    """Real tools."""
    report: bool = True
    """Whether there is a report folder at the end."""


@dataclass(frozen=True)
class Row:
    """A line of the printed table."""

    fault: Fault
    result: Result
    wrong: tuple[str, ...]
    """What does not hold; empty when all does."""

    def words(self) -> str:
        """What the user saw: the last line of profrun's own on stderr."""
        lines = [line for line in self.result.stderr.splitlines() if line.startswith("profrun")]
        return lines[-1] if lines else self.result.stderr.strip().rpartition("\n")[2]


def tried(fault: Fault, folder: Path) -> Row:
    """Injects the fault and checks all that must hold after any."""
    place = Place.made(folder)
    result = fault.inject(place)
    codes = fault.code if isinstance(fault.code, tuple) else (fault.code,)
    wrong = [f"exit status {result.code}, not {' or '.join(map(str, codes))}"] if result.code not in codes else []
    wrong += _of_words(fault, result) + (_of_report(fault, result) if fault.report else []) + _of_machine(place)
    return Row(fault, result, tuple(wrong))


def _of_words(fault: Fault, result: Result) -> list[str]:
    seen = result.stderr + (_reasons(result) if fault.report else "")
    wrong = [] if re.search(fault.says, seen) else [f"nobody said {fault.says!r}"]
    return wrong + ["a traceback"] * ("Traceback" in result.stderr) + ["a bug report"] * ("this is a bug" in seen)


def _reasons(result: Result) -> str:
    try:
        return "\n".join(str(capture["reason"]) for capture in result.summary["captures"])
    except (OSError, IndexError, ValueError):
        return ""


def _of_report(fault: Fault, result: Result) -> list[str]:
    try:
        found = result.statuses()
    except (OSError, IndexError, ValueError) as error:
        return [f"no report: {error}"]
    wrong = []
    for name, wanted in fault.statuses.items():
        if found.get(name) not in ((wanted,) if isinstance(wanted, str) else wanted):
            wrong.append(f"{name} is {found.get(name)}, not {wanted}")
    return wrong


def _of_machine(place: Place) -> list[str]:
    """Nothing alive, nothing stopped, no journal and no scratch space left."""
    sign = str(place.tmp).encode()

    def left() -> list[str]:
        """Processes that bear this place in their environment."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if sign in (folder / "environ").read_bytes() and (folder / "stat").read_text().split()[-50] != "Z":
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
            except (OSError, IndexError):
                continue
        return found

    try:
        until(lambda: not left())
    except AssertionError:
        return [f"alive: {line}" for line in left()]
    litter = [str(path.relative_to(place.folder)) for path in place.tmp.glob("profrun*")]
    journals = [str(path.relative_to(place.folder)) for path in place.state.rglob("*.jsonl")]
    return [f"left behind: {name}" for name in litter + journals]
