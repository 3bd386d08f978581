"""profrun's part inside the target's Python, from outside: its settings, and the bell by which it asks for
something."""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator import process
from orchestrator.inject import boot

SITE = str(Path(boot.__file__).parent / "site")
"""The folder with nothing but our sitecustomize: the only one that is put on the target's path."""
_MARSHAL_VERSION = 2
"""Read by every Python 3."""


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """The file that our part reads. Raises OSError."""
    path.write_bytes(marshal.dumps(dict(settings), _MARSHAL_VERSION))


def environment(env: Mapping[str, str], settings: Path) -> dict[str, str]:
    """What to add to a program's environment: our folder before all others on Python's path, once."""
    others = [place for place in env.get("PYTHONPATH", "").split(os.pathsep) if place not in ("", SITE)]
    return {"PYTHONPATH": os.pathsep.join([SITE, *others]), boot.SETTINGS: str(settings)}


class Inside:
    """One pass's part inside. `folder` gets the settings, the bell, and what the processes write."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir()
        self._settings = folder / "settings"
        write_settings(self._settings, {**settings, "pids": process.pid_namespace("self")})
        self._path = folder / "bell"
        os.mkfifo(self._path, 0o600)
        # held for writing as well: else it would be readable for ever once the first process has closed it
        self._bell = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What to add to the target's environment: our folder before all others on Python's path."""
        return environment(env, self._settings)

    @property
    def places(self) -> tuple[str, ...]:
        """The folders that a process has to find for all this."""
        return str(Path(SITE).parent), str(self._path.parent)

    def fileno(self) -> int:
        return self._bell

    def calls(self) -> Iterator[tuple[str, int, str]]:
        """(what is asked for, by which process, by which of its rings) of those that have rung since the last look."""
        with contextlib.suppress(BlockingIOError):
            while text := os.read(self._bell, 1 << 16):
                self._rest += text
        *lines, self._rest = self._rest.split(b"\n")
        for line in lines:
            words = line.decode("utf-8", "replace").split(" ")
            if len(words) != 3 or not words[2].isdigit():
                continue
            if words[0] == "who":
                self._name(words[1], words[2])
            elif words[1].isdigit():
                yield words[0], int(words[1]), words[2]

    def answer(self, pid: int, ring: str) -> None:
        """Lets a process that has rung go on."""
        self._reply(str(pid), ring, "")

    def _name(self, who: str, ring: str) -> None:
        """Tells a process in another namespace of pids, `<its pid there>-<the namespace>`, what we know it by; 0 when
        it is not to be found."""
        pid, _, namespace = who.partition("-")
        if pid.isdigit() and namespace.isdigit():
            self._reply(who, ring, str(process.pid_here(int(pid), int(namespace)) or 0))

    def _reply(self, who: str, ring: str, said: str) -> None:
        with contextlib.suppress(OSError):  # it has ended, or has waited long enough
            fd = os.open(self._path.with_name(f"{who}.{ring}.reply"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, f"{said}\n".encode())
            finally:
                os.close(fd)

    def close(self) -> None:
        """Nobody is answered any more. What is left besides the processes' own files is removed."""
        os.close(self._bell)
        for place in (self._path, self._settings, *self._path.parent.glob("*.reply")):
            with contextlib.suppress(OSError):
                place.unlink()
        with contextlib.suppress(OSError):
            self._path.parent.rmdir()  # where no Python has run


def is_injected(env: Mapping[str, str]) -> bool:
    """Whether a process that was started with this environment loads our part, if it is a Python that looks at it."""
    return SITE in env.get("PYTHONPATH", "").split(os.pathsep) and bool(env.get(boot.SETTINGS))


def will_ring(pid: int) -> bool:
    """Whether that process is a Python which, on its way to the program, will ring for tools to come."""
    env, argv = process.environ_of(pid) or {}, process.argv_of(pid)
    exe = Path(process.exe_of(pid) or "").name
    is_first = exe.startswith("python") and is_injected(env) and boot.HELD not in env
    return is_first and not _keeps_us_out(argv) and is_within_reach(pid, env) is not False


def _keeps_us_out(argv: Sequence[str]) -> bool:
    """Whether Python was told not to look for our part: by -I, -E or -S among the options before the program."""
    for word in argv[1:]:
        if not word.startswith("-") or word in ("-", "-c", "-m"):
            return False
        if not word.startswith("--") and set("IES") & set(word):
            return True
    return False


def is_within_reach(pid: int, env: Mapping[str, str]) -> bool | None:
    """Whether that process, which may be in a container, finds what this environment names; None when unknown."""
    seen = [process.sees(pid, place) for place in (SITE, env.get(boot.SETTINGS, ""))]
    return False if False in seen else None if None in seen else True
