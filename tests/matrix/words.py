"""What a fault is, and what must hold after each: the words of the fault matrix."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from cli import Result, environment, profrun
from waiting import state, until

MESSAGE = "profrun: "
"""The line that says how a run ended, and why, begins with it; what belongs to it is indented below."""


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
    """A regex for the words that the user must have seen: on stderr; where profrun ended well, in the report's reasons
    and notes as well."""
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
    result: Result | None
    """None where the injection itself has failed."""
    wrong: tuple[str, ...]
    """What does not hold; empty when all does."""
    took_s: float = 0.0

    def words(self) -> str:
        """What the user saw: the line that tells of the fault, and the last one, how the run ended and why."""
        if self.result is None:
            return "nothing"
        said = self.result.stderr
        last = said[message.start() :].strip() if (message := _message(said)) else said.strip().rpartition("\n")[2]
        told = (line.strip() for line in said.splitlines() if re.search(self.fault.says, line))
        first = next(told, "") if self.fault.says else ""
        return last if first in last else f"{first}\n{last}"


def tried(fault: Fault, folder: Path) -> Row:
    """Injects the fault and checks all that must hold after any."""
    place, began_s, result = Place.made(folder), time.monotonic(), None
    try:
        result = fault.inject(place)
        wrong = [*_of_end(fault, result), *(_of_report(fault, result) if fault.report else [])]
    except (AssertionError, OSError, LookupError, ValueError, subprocess.SubprocessError) as error:
        wrong = [f"the injection failed: {type(error).__name__}: {error}"]
    wrong += _of_machine(place)
    return Row(fault, result, tuple(wrong), time.monotonic() - began_s)


# ---------------------------------------------------------------- how it ended, and what was said


def _of_end(fault: Fault, result: Result) -> list[str]:
    codes = fault.code if isinstance(fault.code, tuple) else (fault.code,)
    said, wrong = result.stderr, []
    if result.code not in codes:
        wrong += [f"exit status {result.code}, not {' or '.join(map(str, codes))}"]
    seen = said + (_reasons(result) if fault.report and result.code == 0 else "")
    if not re.search(fault.says, seen):
        wrong += [f"nobody said {fault.says!r}"]
    wrong += ["a traceback"] * ("Traceback" in seen) + ["a bug report"] * ("this is a bug" in seen)
    if fault.says and result.code >= 0:  # one that was killed has no last word
        wrong += _of_message(said, result.code)
    return wrong


def _message(said: str) -> re.Match[str] | None:
    return next(reversed(list(re.finditer(rf"(?m)^{MESSAGE}(.*)", said))), None)


def _of_message(said: str, code: int) -> list[str]:
    """One message, and nothing but its own further lines after it."""
    message = _message(said)
    if message is None:
        return ["no message at the end"]
    rest = [line for line in said[message.end() :].splitlines() if line and not line.startswith(" ")]
    wrong = [f"after the message came {rest[0]!r}"] if rest else []
    if (message[1].startswith("ok")) != (code == 0):
        wrong += [f"exit status {code} and the message {message[0]!r}"]
    return wrong + ["a message without a reason"] * (code != 0 and len(message[1].split()) < 2)


def _reasons(result: Result) -> str:
    """What the report says of its captures and passes."""
    try:
        summary = result.summary
    except (OSError, IndexError, ValueError):
        return ""
    texts = [str(capture["reason"]) for capture in summary["captures"]]
    return "\n".join(texts + [str(note) for one in summary["captures"] + summary["passes"] for note in one["notes"]])


# ---------------------------------------------------------------- what it left


def _of_report(fault: Fault, result: Result) -> list[str]:
    try:
        folder, summary, found = result.folder, result.summary, result.statuses()
        for name in ("machine.json", "raw/run.json"):
            json.loads((folder / name).read_text())
    except (OSError, IndexError, ValueError) as error:
        return [f"no report that can be read: {error}"]
    wrong = []
    for name, wanted in fault.statuses.items():
        if found.get(name) not in ((wanted,) if isinstance(wanted, str) else wanted):
            said = next((c["reason"] for c in summary["captures"] if c["collector"] == name), None)
            wrong.append(f"{name} is {found.get(name)} ({said}), not {wanted}")
    if result.code >= 0 and summary["outcome"]["exit_code"] != result.code:
        wrong.append(f"summary.json says exit status {summary['outcome']['exit_code']}")
    return wrong + _of_page(folder) + _of_tables(folder, summary) + _of_files(folder, summary)


def _of_page(folder: Path) -> list[str]:
    """The page is there where the plan wants it, which is the default, and whole."""
    plan = yaml.safe_load((folder / "plan.yaml").read_text())
    if "html" not in plan["report"]["formats"]:
        return []
    page = folder / "index.html"
    whole = page.exists() and page.read_text().rstrip().endswith("</html>")
    return [] if whole else ["index.html is missing or cut"]


def _of_tables(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    from orchestrator import tables

    wrong = []
    for name, told in summary["tables"].items():
        try:
            rows = len(tables.read(folder / told["path"]))
        except Exception as error:  # whatever a reader says of it
            wrong.append(f"table {name} can't be read: {error}")
            continue
        wrong += [f"table {name} has {rows} rows, not {told['rows']}"] if rows != told["rows"] else []
    return wrong


def _of_files(folder: Path, summary: Mapping[str, Any]) -> list[str]:
    """What summary.json names is there, as long as it says."""
    files = [artifact for capture in summary["captures"] for artifact in capture["artifacts"]]
    sizes = {f["path"]: (folder / f["path"]).stat().st_size if (folder / f["path"]).exists() else None for f in files}
    return [
        f"{f['path']} has {sizes[f['path']]} bytes, not {f['bytes']}" for f in files if sizes[f["path"]] != f["bytes"]
    ]


# ---------------------------------------------------------------- the machine after it


def _of_machine(place: Place) -> list[str]:
    """Nothing alive, so nothing stopped, no scratch space, no journal and no lock left."""
    with contextlib.suppress(AssertionError):
        until(lambda: not alive(place))
    wrong = [f"alive (state {state(pid)}): {line}" for pid, line in alive(place).items()]
    for pid in alive(place):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    litter = [*place.tmp.glob("profrun*"), *place.state.rglob("*.jsonl")]
    wrong += [f"left behind: {path.relative_to(place.folder)}" for path in litter]
    return wrong + [f"still locked: {path.name}" for path in place.state.rglob("lock-*") if _is_locked(path)]


def alive(place: Place) -> dict[int, str]:
    """The processes, with their command lines, that bear this place in their environment or work in it."""
    sign, home, found = str(place.tmp).encode(), f"{place.folder}/", {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            here = sign in (folder / "environ").read_bytes() or f"{(folder / 'cwd').readlink()}/".startswith(home)
            pid = int(folder.name)
            if here and state(pid) not in ("Z", "X") and pid != os.getpid():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                found[pid] = line.strip()
    return found


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False
