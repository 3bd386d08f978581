"""DOOR: the report folder, and the only writer of profrun's own files. Every file appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from orchestrator.errors import FolderError

DISK_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM}
)
"""What a disk may answer to a write; any other error of the system is a fault of ours."""
NEEDED_BYTES = 64 << 20
"""Free space without which no run is begun: less would be lost in the middle."""

_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_UNPAIRED = re.compile("[\ud800-\udfff]")
_LETTERS = "abcdefghijkmnpqrstuvwxyz"


class Readable(Protocol):
    """What `Folder.take` copies from: a file, or something that looks into one."""

    def read(self, size: int, /) -> bytes: ...


class Folder:
    """One report folder. Texts written through it pass `scrub` first, which takes out what may be secret."""

    def __init__(self, path: Path, scrub: Callable[[str], str] = str) -> None:
        self.path = path
        self._scrub = scrub

    def write(self, name: str, text: str) -> Path:
        """Writes a text file, whole or not at all."""
        return self.write_clean(name, self._scrub(text))

    def write_clean(self, name: str, text: str) -> Path:
        """The same for a text made from what was scrubbed already: a page's own script must not be touched."""
        target = self.path / name
        write_atomic(target, text.encode("utf-8", "surrogateescape"))
        return target

    def write_json(self, name: str, data: Any) -> Path:
        """The same for a record. Bytes of a name that are no UTF-8 become JSON's escapes, so that every reader can."""
        text = json.dumps(data, indent=1, default=_jsonable, ensure_ascii=False) + "\n"
        return self.write(name, _UNPAIRED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))

    def append(self, name: str, line: str) -> None:
        """Appends one line and makes sure that it is on the disk: for journals."""
        with (self.path / name).open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.write(self._scrub(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_table(self, name: str, parts: list[Any]) -> int:
        """Writes the parts of one canonical table as tables/NAME.parquet; gives back its number of rows."""
        import pyarrow.parquet as pq

        from orchestrator import tables

        table = tables.mapped(tables.arrow(name, parts), self._scrub)
        target = self.path / "tables" / f"{name}.parquet"
        target.parent.mkdir(exist_ok=True)
        temporary = target.with_suffix(".tmp")
        pieces = tables.pieces(table)
        first = next(pieces)
        with pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
            for piece in chain([first], pieces):
                writer.write_table(piece)
        temporary.replace(target)
        return int(table.num_rows)

    def elsewhere(self, path: Path) -> Folder:
        """Another folder, kept clean of the same secrets."""
        return Folder(path, self._scrub)

    def raw(self, name: str) -> Path:
        return self.path / "raw" / name

    def take(self, source: Readable, name: str) -> tuple[int, str]:
        """Copies what can be read from `source` into raw/NAME; gives back its size and its SHA-256. Raises OSError."""
        target = self.raw(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size = hashlib.sha256(), 0
        with target.open("wb") as file:
            while block := source.read(1 << 20):
                digest.update(block)
                size += file.write(block)
        return size, digest.hexdigest()

    def move_in(self, source: Path, name: str) -> Path:
        """Moves a directory of raw files from scratch into raw/NAME, across file systems too.

        Raises OSError when the folder's disk does not take it; the source then is still complete."""
        target = self.raw(name)
        target.parent.mkdir(exist_ok=True)
        try:
            source.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            try:
                shutil.copytree(source, target, symlinks=True)
            except OSError:
                shutil.rmtree(target, ignore_errors=True)
                raise
            shutil.rmtree(source, ignore_errors=True)
        return target


def create(parent: Path, name: str, scrub: Callable[[str], str] = str) -> Folder:
    """Makes a new report folder `<name>-<UTC time>-<4 letters>` in `parent` and points `latest` at it.

    Raises FolderError when it can't be made, can't be written or has no room."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _has_room(parent)
        path = _exclusive(parent, f"{_SAFE.sub('-', name).strip('-.') or 'run'}-{stamp}")
        (path / "raw").mkdir()
    except OSError as error:
        raise FolderError(
            f"the report folder can't be made in {parent}",
            error.strerror or str(error),
            "name a folder that you may write with -o DIR",
        ) from error
    _point_latest(parent, path.name)
    return Folder(path, scrub)


def _has_room(parent: Path) -> None:
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        raise FolderError(
            f"no room for a report in {parent}",
            f"{free >> 20} MiB are free, {NEEDED_BYTES >> 20} MiB are needed to begin",
            "free some, or name a folder on another disk with -o DIR",
        )


def _exclusive(parent: Path, stem: str) -> Path:
    while True:
        path = parent / f"{stem}-{''.join(secrets.choice(_LETTERS) for _ in range(4))}"
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
            return path


def _point_latest(parent: Path, name: str) -> None:
    """`latest` is a convenience: a file system without links, or somebody's own file of that name, is no error."""
    link = parent / "latest"
    if link.exists() and not link.is_symlink():
        return
    temporary = parent / f".latest-{name}"
    with contextlib.suppress(OSError):
        temporary.symlink_to(name)
        temporary.replace(link)
    with contextlib.suppress(OSError):
        temporary.unlink()


def write_atomic(path: Path, data: bytes) -> None:
    """Writes beside the file and renames: a reader sees the old file or the new one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _jsonable(value: Any) -> Any:
    if isinstance(value, (frozenset, set)):
        return sorted(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} in a record")


def scratch() -> Path:
    """A new private directory on node-local disk for raw captures. Falls back where TMPDIR is missing, unwritable or
    full.

    Raises FolderError when no place can be written and has room."""
    for place in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "."):
        if place:
            with contextlib.suppress(OSError):
                if shutil.disk_usage(place).free >= NEEDED_BYTES:
                    return Path(tempfile.mkdtemp(prefix="profrun-", dir=place)).absolute()
    raise FolderError(
        "no place for temporary files",
        f"TMPDIR, /tmp, /var/tmp and this directory can't be written, or have less than {NEEDED_BYTES >> 20} MiB free",
        "set TMPDIR to a local disk with room",
    )


def remove(path: Path) -> None:
    """Removes a scratch directory; what can't be removed stays."""
    shutil.rmtree(path, ignore_errors=True)


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
