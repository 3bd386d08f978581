"""Ways to run profrun amid a fault: on any target, under the limits of a shell, with something at an exact point."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import warm
from cli import Result, command, script, write_plan
from matrix.words import Fault, Place
from waiting import LIMIT_S

TIMING = "{use: timing, warmup: 0, repeats: 1}"
STRACE = "{use: strace}"
PY_SPY = "{use: py-spy}"
NSYS = "{use: nsys}"
LATEST = "reports/latest"


def planned(place: Place, *collectors: str, **more: str) -> Path:
    """A plan of these collectors, without pages; of one bare run where none is named."""
    return write_plan(place.folder, *(collectors or (TIMING,)), **{"report": "{formats: []}", **more})


def ran(place: Place, *target: str | Path, collectors: Iterable[str] = (), **more: str) -> Result:
    """profrun with such a plan on this target."""
    return place.profrun(planned(place, *collectors, **more), "--", *target)


def python(place: Place, code: str) -> tuple[str, str]:
    """The command of a Python program."""
    program = place.folder / "target.py"
    program.write_text(code)
    return sys.executable, str(program)


def shelled(
    place: Place,
    line: str,
    *target: str | Path,
    collectors: Iterable[str] = (),
    env: dict[str, str | None] | None = None,
    **more: str,
) -> Result:
    """bash runs `line`, in which "$@" is profrun with such a plan on this target. The report is the latest one, whoever
    could read profrun's stdout."""
    # coverage would fail by the limits as well, and write its own traceback
    words = command(planned(place, *collectors, **more), "--", *target, measured=False)
    done = subprocess.run(
        ["bash", "-c", line, "bash", *words], cwd=place.folder, env=place.env(**(env or {})), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="surrogateescape", timeout=LIMIT_S,
    )  # fmt: skip
    return Result(done.returncode, f"{done.stdout}\n{LATEST}\n", done.stderr, place.folder)


def with_patch(place: Place, patch: str) -> str:
    """The name of a module in the place's folder that is profrun after that code has run in it."""
    (place.folder / "patched.py").write_text(f"{patch}\nfrom orchestrator.cli import main\nmain()\n")
    return "patched"


def patched(place: Place, patch: str, *target: str | Path, collectors: Iterable[str] = (), **more: str) -> Result:
    """Such a profrun with such a plan on this target."""
    words = [str(planned(place, *collectors, **more)), "--", *map(str, target)]
    done = warm.run(with_patch(place, patch), words, place.folder, place.env(), "", None, LIMIT_S)
    return Result(done.returncode, f"{done.stdout}\n{LATEST}\n", done.stderr, place.folder)


def at_write(name: str, does: str) -> str:
    """A patch: `does` happens when profrun is about to write that file of the report."""
    return f"""
import os, time
from orchestrator import folder
write = folder.write_atomic
def patched(path, data):
    if path.name == {name!r} and "reports" in path.parts:
        folder.write_atomic = write
        {does}
    write(path, data)
folder.write_atomic = patched
"""


def signals(*numbers: int, to: str = "$PPID") -> str:
    """A line for a shell: sends these signals, far enough apart to be several wishes."""
    return "; sleep 0.4; ".join(f"kill -{signal.Signals(number).name[3:]} {to}" for number in numbers)


def nsys(place: Place, asked: str, asked_to_run: str) -> Path:
    """A stand-in for nsys, first on PATH. What it does before it tells its version, and what when it is to run the
    target, which is a line for sh: "$@"; its file is to be "$out.nsys-rep"."""
    lines = (
        "#!/bin/sh",
        f'case " $* " in *" --version "*) {asked}; echo "NVIDIA Nsight Systems version 2022.4.2"; exit;; esac',
        '[ "$1" = profile ] || { echo garbage > report.sqlite; exit; }',
        "for word do case $word in --output=*) out=${word#--output=};; esac; done",
        "while :; do case $1 in */sh) break;; esac; shift; done",
        asked_to_run,
    )
    return script(place.bin / "nsys", "\n".join(lines) + "\n")


def kept(result: Result, *lines: str, log: str = "p01-target/stdout.log") -> list[str]:
    """What is wrong with the target's output as the report has it."""
    text = (result.folder / "raw" / log).read_text(errors="replace")
    return [f"{log} lacks {line!r}" for line in lines if line not in text]


def fault(
    name: str,
    inject: Callable[[Place], Result],
    code: int | tuple[int, ...],
    says: str,
    statuses: Mapping[str, str | tuple[str, ...]] | None = None,
    needs: tuple[str, ...] = (),
    *,
    report: bool = True,
    also: Callable[[Place, Result], Iterable[str]] = lambda place, result: (),
) -> Fault:
    """A fault; `also` finds what does not hold of what only this fault can break."""

    def checked(place: Place) -> Result:
        result = inject(place)
        wrong = [*also(place, result)]
        assert not wrong, f"{'; '.join(wrong)}; {result.stderr[-1000:]}"
        return result

    return Fault(name, checked, code, says, statuses or {}, needs, report)
