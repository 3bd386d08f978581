"""What is kept of a nightly between its nights, in the user's state folder: what is to be run, and how the newest night
stands. And the command line that starts one from an environment in which nothing is set."""

from __future__ import annotations

import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from orchestrator import folder, journal, process
from orchestrator.errors import UsageError
from orchestrator.nights.words import Nightly

SCHEMA = "profrun/nightly/1"

BARE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = (
    "PATH", "LANG", "LC_ALL", "LOGNAME", "USER", "TZ", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "CUDA_HOME",
    "PROFRUN_HISTORY",
)  # fmt: skip
"""What a nightly takes over from the shell that it is made in: where programs and libraries are found."""
_OWN = ("HOME", "SHELL", "XDG_STATE_HOME", "PROFRUN_STATE")
"""What stands in the entry itself."""
_OF_JOBS = ("SLURM_", "CUDA_VISIBLE_DEVICES")
"""What a scheduler gives its job, by how the names begin."""
KILL_AFTER_S = 600.0
"""Between the request to end and the kill: the program and the tools end, and the machine is put back."""


def home() -> Path:
    """The folder of all nightlies of this user on this machine; it outlives a reboot. Raises OSError."""
    given = os.environ.get("PROFRUN_STATE")
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    place = Path(given) if given else state / "profrun" / (platform.node() or "localhost")
    for one in (place, place / "nightly"):
        folder.made_state(one)
    return place / "nightly"


def path_of(name: str) -> Path:
    return home() / f"{name}.json"


def keep(nightly: Nightly) -> Path:
    """Writes it down. Raises OSError."""
    text = json.dumps({"schema": SCHEMA, **asdict(nightly)}, indent=1)
    folder.write_atomic(path_of(nightly.name), text.encode())
    return path_of(nightly.name)


def load(name: str) -> Nightly:
    """The nightly of that name, or of that file. Raises UsageError where there is none."""
    path = Path(name) if "/" in name else path_of(name)
    try:
        data = json.loads(path.read_text())
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not {SCHEMA}")
        known = {one.name: data[one.name] for one in fields(Nightly) if one.name in data}
        return Nightly(**{**known, **{key: tuple(known[key]) for key in ("fields", "command", "sets")}})
    except FileNotFoundError:
        there = (
            f"there are: {', '.join(names)}" if (names := every()) else "profrun nightly install NAME --at 02:30 ..."
        )
        raise UsageError(f"there is no nightly {name}", f"no file {path}", there) from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} can't be read", str(error), "make it anew: profrun nightly install") from error


def every() -> list[str]:
    """The names of all that are kept."""
    return sorted(path.stem for path in home().glob("*.json") if not path.stem.endswith(".night"))


def forget(name: str) -> bool:
    """Whether there was one."""
    there = path_of(name).exists()
    for path in (path_of(name), _night(name)):
        folder.discard(path)
    return there


# ---------------------------------------------------------------- how it is started


def taken_over(environ: Mapping[str, str], more: tuple[str, ...] = ()) -> dict[str, str]:
    """What the program gets of the environment that the nightly is made in."""
    found = {name: environ[name] for name in (*KEPT, *more) if environ.get(name)}
    places = [place for place in found.get("PATH", "").split(os.pathsep) if place.startswith("/")]
    return {**found, "PATH": os.pathsep.join(dict.fromkeys(places)) or BARE_PATH}


def bare(environ: Mapping[str, str], nightly: Nightly) -> dict[str, str]:
    """The environment of a night, whoever starts it: cron, a scheduler, or somebody by hand."""
    own = {name: environ[name] for name in _OWN if environ.get(name)}
    job = {name: text for name, text in environ.items() if name.startswith(_OF_JOBS) and "SLURM_JOB_ID" in environ}
    return {"SHELL": "/bin/sh", **own, **nightly.environment, **job}


def own_variables() -> dict[str, str]:
    """HOME, PATH, SHELL, and where the state lies, as the entry sets them."""
    places = {name: os.environ[name] for name in ("XDG_STATE_HOME", "PROFRUN_STATE") if os.environ.get(name)}
    return {"HOME": str(Path.home()), "PATH": BARE_PATH, "SHELL": "/bin/sh", **places}


def command(nightly: Nightly) -> list[str]:
    """What starts a night, without its environment."""
    return [nightly.python, "-I", "-m", "orchestrator", "nightly", "run", str(path_of(nightly.name))]


def timed(nightly: Nightly) -> list[str]:
    """The same, ended when its time is over: by another program, which also ends what hangs."""
    timeout = shutil.which("timeout", path=BARE_PATH)
    if nightly.end_after_s is None or timeout is None:
        return command(nightly)
    return [timeout, "-k", f"{KILL_AFTER_S:.0f}", f"{nightly.end_after_s:.0f}", *command(nightly)]


def in_bare_environment(nightly: Nightly) -> list[str]:
    """The same from any environment."""
    env = shutil.which("env", path=BARE_PATH) or "/usr/bin/env"
    return [env, "-i", *(f"{name}={text}" for name, text in own_variables().items()), *timed(nightly)]


# ---------------------------------------------------------------- the newest night


def _night(name: str) -> Path:
    return home() / f"{name}.night.json"


def night_begins(name: str) -> Mapping[str, Any] | None:
    """Writes down that one is under way; gives back an earlier one that never ended. Whoever calls holds the lock."""
    earlier = newest(name)
    me = {"pid": os.getpid(), "boot_id": journal.boot_id(), "host": platform.node()}
    _write_night(name, {"state": "running", "started_at": utc(), **me})
    return earlier if earlier.get("state") == "running" else None


def night_ends(name: str, **known: Any) -> None:
    """Writes down what has come of it."""
    _write_night(name, {**newest(name), "state": "ended", "ended_at": utc(), **known})


def newest(name: str) -> dict[str, Any]:
    """How the newest night stands; empty where there was none."""
    try:
        data = json.loads(_night(name).read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def is_under_way(night: Mapping[str, Any]) -> bool:
    return (
        night.get("state") == "running"
        and night.get("boot_id") == journal.boot_id()
        and process.alive(int(night.get("pid") or 0))
    )


def _write_night(name: str, data: Mapping[str, Any]) -> None:
    folder.write_atomic(_night(name), json.dumps(data, indent=1).encode())


def utc() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
