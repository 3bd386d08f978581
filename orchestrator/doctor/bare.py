"""What is left of all this in cron's bare environment, and which Pythons there are."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator import gpus, process, registry
from orchestrator.doctor import system
from orchestrator.doctor.kernel import gist
from orchestrator.doctor.words import LIMIT_S, NOT_FOUND, Diagnosis
from orchestrator.machine import Machine
from orchestrator.model import ToolProbe

_PACKAGE = Path(__file__).parents[1]


def environment() -> dict[str, str]:
    """What cron gives to a job, and nothing else (crontab(5))."""
    try:
        user = pwd.getpwuid(os.getuid())
        name, home = user.pw_name, user.pw_dir
    except KeyError:
        name, home = str(os.getuid()), "/"
    return {"HOME": home, "LOGNAME": name, "PATH": "/usr/bin:/bin", "SHELL": "/bin/sh"}


def cron(machine: Machine) -> Iterator[Diagnosis]:
    """Each as seen from there: crontab, profrun, python, the tools."""
    yield _crontab(machine)
    yield _profrun()
    yield _python_there()
    yield _tools_there(machine)


def _crontab(machine: Machine) -> Diagnosis:
    path = machine.find(ToolProbe("crontab"))
    if path is None:
        return Diagnosis("crontab", "missing", NOT_FOUND, system.how_to_get(machine, "crontab"))
    answer = process.ask([path, "-l"], timeout_s=LIMIT_S)
    if "not allowed" in answer.stderr:
        fix = "let an administrator write your name into /etc/cron.allow"
        return Diagnosis("crontab", "blocked", f"`crontab -l`: {gist(answer)}", fix, path=path)
    if answer.ok or "no crontab" in answer.stderr:
        return Diagnosis("crontab", "ok", "`crontab -l` worked", path=path)
    return Diagnosis("crontab", "broken", f"`crontab -l` failed: {gist(answer)}", path=path)


def _profrun() -> Diagnosis:
    """profrun by its whole name, for its folder is not on cron's PATH."""
    installed = Path(sys.executable).parent / "profrun"
    argv = [str(installed)] if os.access(installed, os.X_OK) else [sys.executable, "-I", "-m", "orchestrator"]
    answer = process.ask([*argv, "--version"], timeout_s=LIMIT_S, env=environment(), cwd="/")
    if answer.ok:
        how = "by that name" if shutil.which("profrun", path=environment()["PATH"]) else f"as {shlex.join(argv)}"
        return Diagnosis("profrun from cron", "ok", f"starts in cron's bare environment {how}", path=argv[0])
    said = f"`{shlex.join(argv)} --version` failed in cron's bare environment: {gist(answer)}"
    return Diagnosis(
        "profrun from cron", "broken", said, "install profrun into its Python: scripts/setup", path=argv[0]
    )


def _python_there() -> Diagnosis:
    """A job that says `python` may get another one than the same words in this shell, or none."""
    here, there = (shutil.which("python", path=path) for path in (os.environ.get("PATH"), environment()["PATH"]))
    if here == there:
        return Diagnosis("python from cron", "ok", "the same as here" if here else "none, as here")
    fix = f"in the crontab, name the program in full: {here}" if here else None
    said = f"a bare `python` is {there or 'found nowhere'} there, and {here or 'nothing'} here"
    return Diagnosis("python from cron", "ok" if there else "missing", said, fix)


_FIND = """
import json, sys
sys.path.insert(0, sys.argv[1])
from orchestrator.doctor import bare
from orchestrator.machine import Machine
print(json.dumps(bare.found(Machine())))
"""


def _tools_there(machine: Machine) -> Diagnosis:
    """Looked for by a profrun in that environment; its own lookups go beyond PATH."""
    here = found(machine)
    argv = [sys.executable, "-I", "-c", _FIND, str(_PACKAGE.parent)]
    answer = process.ask(argv, timeout_s=LIMIT_S, env=environment(), cwd="/")
    try:
        there: Mapping[str, str | None] = json.loads(answer.stdout)
    except ValueError:
        return Diagnosis("tools from cron", "unknown", f"could not be looked for: {gist(answer)}")
    lost = {name: path for name, path in here.items() if path and not there.get(name)}
    if lost:
        said = f"not found in cron's bare environment: {', '.join(lost)}"
        paths = ", ".join(f"{name}: {json.dumps(path)}" for name, path in lost.items())
        return Diagnosis("tools from cron", "missing", said, f"write into the plan: tools: {{{paths}}}")
    other = [f"{name}: {there[name]} instead of {path}" for name, path in here.items() if path and there[name] != path]
    return Diagnosis("tools from cron", "ok", "; ".join(["all that are found here are found there", *other]))


def found(machine: Machine) -> dict[str, str | None]:
    """Where each collector's tool lies, and nvidia-smi."""
    probes = [gpus.SMI]
    for name in registry.COLLECTORS:
        probes += [probe] if (probe := registry.collector(name).probe) else []
    return {probe.name: machine.find(probe) for probe in probes}


def pythons(machine: Machine) -> Iterator[Diagnosis]:
    """profrun's own Python, and the one that a bare `python` would be."""
    own = ".".join(map(str, sys.version_info[:3]))
    yield Diagnosis(
        "profrun's Python", "ok", "runs profrun; the program under test has its own", None, own, sys.executable
    )
    path = shutil.which("python")
    if path is None:
        fix = system.how_to_get(machine, "python") or "write python3 instead"
        yield Diagnosis("python", "missing", "a bare `python` is found nowhere on PATH", fix)
        return
    answer = process.ask([path, "-V"], timeout_s=LIMIT_S)
    version = answer.stdout.removeprefix("Python").strip() or None
    if answer.ok:
        yield Diagnosis("python", "ok", "what a bare `python` starts", None, version, path)
    else:
        yield Diagnosis("python", "broken", f"`python -V` failed: {gist(answer)}", None, version, path)
