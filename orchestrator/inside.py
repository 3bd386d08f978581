"""profrun's part inside the target's Python, from outside: its settings, and the bell by which it asks for
something."""

from __future__ import annotations

import contextlib
import marshal
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.inject import boot

SITE = str(Path(boot.__file__).parent / "site")
"""The folder with nothing but our sitecustomize: the only one that is put on the target's path."""
_MARSHAL_VERSION = 2
"""Read by every Python 3."""


class Inside:
    """One pass's part inside. `folder` gets the settings, the bell, and what the processes write."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        folder.mkdir()
        self._settings = folder / "settings"
        self._settings.write_bytes(marshal.dumps(dict(settings), _MARSHAL_VERSION))
        self._path = folder / "bell"
        os.mkfifo(self._path, 0o600)
        # held for writing as well: else it would be readable for ever once the first process has closed it
        self._bell = os.open(self._path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """What to add to the target's environment: our folder before all others on Python's path."""
        path = env.get("PYTHONPATH")
        return {"PYTHONPATH": f"{SITE}{os.pathsep}{path}" if path else SITE, boot.SETTINGS: str(self._settings)}

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
            if len(words) == 3 and words[1].isdigit() and words[2].isdigit():
                yield words[0], int(words[1]), words[2]

    def answer(self, pid: int, ring: str) -> None:
        """Lets a process that has rung go on."""
        with contextlib.suppress(OSError):  # it has ended, or has waited long enough
            fd = os.open(self._path.with_name(f"{pid}.{ring}.reply"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(fd, b"\n")
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
