"""Programs that wait to be woken: started with `profrun arm`, or let in by Python itself, from 3.14 on.

An armed program has a folder that only its user can enter, with the settings of our part inside, a few words about it
(`about.json`), and one socket for each of its processes that has torch."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator import folder, inside, process
from orchestrator.inject import boot
from orchestrator.model import Armed, Attached

PREFIX = "armed-"
_SOCKET_PATH_BYTES = 107
"""What fits into an address (unix(7))."""
_LONGEST_NAME = "/4194304.sock"
_ABOUT_BYTES = 1 << 14
_SESSION = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_REMOTE_EXEC = (3, 14)
"""The first Python in which another process may have a script run."""


# ---------------------------------------------------------------- arming


@dataclass(frozen=True)
class Arms:
    """What a program is armed with: its folder, and what is to be added to its environment."""

    folder: Path
    environment: Mapping[str, str]


def arm(
    env: Mapping[str, str], *, nsys: str | None = None, session: str | None = None, settings: Mapping[str, Any]
) -> Arms:
    """Makes the folder for the program that this process is about to become. `settings`: for our part inside. Raises
    OSError when there is no place for it."""
    path = _new_folder()
    about = {"pid": os.getpid(), "born": process.born(os.getpid()), "session": session, "nsys": nsys}
    try:
        inside.write_settings(path / "settings", {**settings, "armed": True})
        folder.write_atomic(path / "about.json", json.dumps({**about, "tmpdir": env.get("TMPDIR")}).encode())
    except OSError:
        folder.remove(path)
        raise
    # without it torch.profiler writes its own log among the program's output
    quiet = {"KINETO_LOG_LEVEL": env.get("KINETO_LOG_LEVEL", "6")}
    return Arms(path, {**quiet, **inside.environment(env, path / "settings")})


def disarm(arms: Arms) -> None:
    """The program could not be started."""
    folder.remove(arms.folder)


def _new_folder() -> Path:
    """In the first place for what the runs of this machine tell one another where a socket's path is not too long. Not
    in XDG_RUNTIME_DIR, which goes with the user's last session while the program runs on."""
    problem = OSError("there is no place for it")
    for place in folder.state_places():
        if len(os.fsencode(f"{place}/{PREFIX}12345678{_LONGEST_NAME}")) > _SOCKET_PATH_BYTES:
            problem = OSError(f"the path of {place} is too long for a socket")
            continue
        try:
            made = folder.made_state(place)
            remove_dead(made)
            return Path(tempfile.mkdtemp(prefix=PREFIX, dir=made))
        except OSError as error:
            problem = error
    raise problem


def remove_dead(place: Path) -> None:
    """Removes the folders of programs of this user that have ended."""
    for path in sorted(place.glob(f"{PREFIX}*")):
        with contextlib.suppress(OSError):
            about = _about(path, os.geteuid())
            if about is not None and not _lives(path, about):
                folder.remove(path)


def _lives(path: Path, about: Mapping[str, Any]) -> bool:
    """Its first process, or one that it has left behind with a socket."""
    pid, born = about.get("pid"), about.get("born")
    if isinstance(pid, int) and process.alive(pid) and process.born(pid) == born:
        return True
    return any(_is_in(int(sock.stem), path) for sock in path.glob("*.sock") if sock.stem.isdecimal())


def _is_in(pid: int, path: Path) -> bool:
    return process.alive(pid) and _folder_of(pid) == str(path)


# ---------------------------------------------------------------- finding


def find(attached: Iterable[Attached]) -> Armed | None:
    """The armed program that these processes belong to, by the environment of the first that tells; None where none
    does, or what it tells of is not the folder of its own user."""
    for one in attached:
        place = _folder_of(one.pid)
        found = None if place is None else _armed(Path(place), one.pid)
        if found is not None:
            return found
    return None


def _armed(path: Path, pid: int) -> Armed | None:
    owner = _owner_of(pid)
    about = None if owner is None else _about(_seen_from_here(path, pid), owner)
    if about is None:
        return None
    session, nsys, tmpdir = about.get("session"), about.get("nsys"), about.get("tmpdir")
    return Armed(
        folder=str(path),
        pid=about["pid"],
        session=session if isinstance(session, str) and _SESSION.fullmatch(session) else None,
        nsys=nsys if isinstance(nsys, str) else None,
        tmpdir=tmpdir if isinstance(tmpdir, str) else None,
        is_ours=owner == os.geteuid(),
    )


def _seen_from_here(path: Path, pid: int) -> Path:
    """Its process may be in a container, with a file system of its own."""
    return path if path.is_dir() else Path(f"/proc/{pid}/root{path}")


def _about(path: Path, owner: int) -> dict[str, Any] | None:
    """What a folder says of its program; None for one that is not this user's alone, or says nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        seen = os.fstat(fd)
        if seen.st_uid != owner or stat.S_IMODE(seen.st_mode) & 0o077:
            return None
        file = os.open("about.json", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        with open(file, "rb") as text:  # noqa: PTH123 - a descriptor
            about = json.loads(text.read(_ABOUT_BYTES))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)
    return about if isinstance(about, dict) and isinstance(about.get("pid"), int) else None


def _folder_of(pid: int) -> str | None:
    """The folder of our part inside that a process was started with; a pass of profrun's own has one, too."""
    settings = (process.environ_of(pid) or {}).get(boot.SETTINGS, "")
    path = Path(settings).parent
    return str(path) if settings.startswith("/") and path.name.startswith(PREFIX) else None


def _owner_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}").stat().st_uid
    return None


# ---------------------------------------------------------------- letting our part in


@dataclass(frozen=True)
class Open:
    """A process whose Python lets our part in while it runs."""

    pid: int
    exe: str
    folder: str
    """Where its socket is, or will be."""
    is_in: bool
    """It has been let in before."""


def open_to_us(attached: Iterable[Attached]) -> tuple[Open, ...]:
    """Those of CPython from 3.14 on which have torch and have not closed that door."""
    return tuple(found for one in attached if one.is_python and (found := _opened(one)))


def _opened(one: Attached) -> Open | None:
    env, exe, maps = process.environ_of(one.pid), process.exe_of(one.pid), _maps(one.pid)
    place = _let_in_place(one.pid)
    if env is None or exe is None or place is None or "/libtorch" not in maps or boot.SETTINGS in env:
        return None
    if (_version(exe, maps) or (0, 0)) < _REMOTE_EXEC or env.get("PYTHON_DISABLE_REMOTE_DEBUG"):
        return None
    closed = any(re.fullmatch(r"(-X)?disable[-_]remote[-_]debug.*", word) for word in one.argv)
    return None if closed else Open(one.pid, exe, place, Path(place, f"{one.pid}.sock").exists())


def _version(exe: str, maps: str) -> tuple[int, int] | None:
    """Of an interpreter, by its shared library's name, or by its own."""
    found = re.search(r"/libpython(\d)\.(\d+)t?\.so", maps) or re.search(r"python(\d)\.(\d+)t?$", exe)
    return (int(found[1]), int(found[2])) if found else None


def _maps(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""


def _let_in_place(pid: int) -> str | None:
    """Where the folder of one that was let in lies: named by the process, as its environment says nothing of it."""
    identity = _identity(pid)
    for place in folder.state_places() if identity else ():
        with contextlib.suppress(OSError):
            return str(folder.made_state(place) / f"{PREFIX}{identity}")
    return None


def _identity(pid: int) -> str | None:
    born = process.born(pid)
    return None if born is None else f"{pid}-{born}"
