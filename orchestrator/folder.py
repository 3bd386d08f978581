"""DOOR: the report folder, and the only writer of profrun's own files. Every file appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import pwd
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from orchestrator.errors import FolderError, UsageError

DISK_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM}
)
"""What a disk may answer to a write; any other error of the system is a fault of ours."""
NEEDED_BYTES = 64 << 20
"""Free space without which no run is begun: less would be lost in the middle."""

REPORTS = Path("reports")
"""Where the folders of runs are made, and looked for by name."""

SCRATCH = "profrun-"
"""How the names of temporary folders begin."""

THINNED = "raw/thinned.jsonl"
"""In a report: a line for each time that raw files of it were deleted."""

_ASIDE = ".aside"
"""In a report's folder, where the parts of tables wait for one another while it is made."""
_SAFE = re.compile(r"[^A-Za-z0-9._-]+")
_STAMP = re.compile(r"-(\d{8}T\d{6}Z)-[a-z]{4}$")
_UNPAIRED = re.compile("[\ud800-\udfff]")
_LETTERS = "abcdefghijkmnpqrstuvwxyz"


class Readable(Protocol):
    """What `Folder.take` copies from: a file, or something that looks into one."""

    def read(self, size: int, /) -> bytes: ...


class Folder:
    """One report folder. Texts written through it pass `scrub` first, which takes out what may be secret."""

    def __init__(self, path: Path, scrub: Callable[[str], str] = str) -> None:
        self.path = path
        self.scrub = scrub

    def write(self, name: str, text: str) -> Path:
        """Writes a text file, whole or not at all."""
        return self.write_clean(name, self.scrub(text))

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
            give(self.path / name)
            file.write(self.scrub(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[BinaryIO]:
        """A binary file to be written piece by piece; it is there when that has come to its end, or not at all. What is
        written must be made from what was scrubbed already."""
        target = self.path / name
        temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        _make(target.parent)
        try:
            with temporary.open("wb") as file:
                give(temporary)
                yield file
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)

    def write_table(self, name: str, parts: Sequence[Any]) -> int:
        """Writes the parts of one canonical table as tables/NAME.parquet, in their order; gives back its number of
        rows. Parts that `store` has put aside are moved in, and never unpacked."""
        from orchestrator import parquet, tables

        target = self.path / "tables" / f"{name}.parquet"
        if not any(isinstance(part, tables.Stored) for part in parts):
            return self._parquet(target, tables.arrow(name, parts))
        schema = tables.schema(name, parts)
        runs = [(aside, list(run)) for aside, run in groupby(parts, lambda part: isinstance(part, tables.Stored))]
        files: list[Path] = []
        for aside, run in runs:
            if aside:
                files += [self._aligned(part, schema) for part in run]
            else:
                files.append(self._aside(name))
                self._parquet(files[-1], tables.arrow(name, run, like=parts))
        _make(target.parent)
        with self.stream(f"tables/{name}.parquet") as file:
            rows = parquet.join(files, _without_rows(schema), file)
        for path in files:
            path.unlink()
        return rows

    def store(self, table: Any) -> Any:
        """Puts a part of a canonical table (`tables.Table`) aside in a file, to be given to `write_table`; gives back
        what stands for it (`tables.Stored`)."""
        from orchestrator import tables

        path = self._aside(table.name)
        rows = self._parquet(path, tables.arrow(table.name, [table]))
        named = frozenset(table.columns)
        return tables.Stored(table.name, path, rows, named, table.clock, table.clock_error_ns, table.dropped)

    def clear_aside(self) -> None:
        """Removes what was put aside and not moved in."""
        shutil.rmtree(self.path / _ASIDE, ignore_errors=True)

    def _aside(self, name: str) -> Path:
        place = self.path / _ASIDE
        _make(place)
        return place / f"{name}.{secrets.token_hex(8)}.parquet"

    def _aligned(self, part: Any, schema: Any) -> Path:
        """The file of a part, with those columns that only others have had."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        known = pq.read_schema(part.path).names
        if known == schema.names:
            return Path(part.path)
        path = self._aside(part.name)
        with pq.ParquetFile(part.path) as file, pq.ParquetWriter(path, schema, compression="zstd") as writer:
            for place in range(file.num_row_groups):
                piece = file.read_row_group(place)
                columns = [piece[n] if n in known else pa.nulls(len(piece), schema.field(n).type) for n in schema.names]
                writer.write_table(pa.table(columns, schema=schema))
        part.path.unlink()
        return path

    def _parquet(self, target: Path, table: Any) -> int:
        """One file with these rows, without secrets; it appears whole."""
        import pyarrow.parquet as pq

        from orchestrator import tables

        _make(target.parent)
        temporary = target.with_suffix(".tmp")
        pieces = tables.pieces(tables.mapped(table, self.scrub))
        first = next(pieces)
        with pq.ParquetWriter(temporary, first.schema, compression="zstd") as writer:
            for piece in chain([first], pieces):
                writer.write_table(piece)
        give(temporary)
        temporary.replace(target)
        return int(table.num_rows)

    def elsewhere(self, path: Path) -> Folder:
        """Another folder, kept clean of the same secrets."""
        return Folder(path, self.scrub)

    def raw(self, name: str) -> Path:
        return self.path / "raw" / name

    def take(self, source: Readable, name: str) -> tuple[int, str]:
        """Copies what can be read from `source` into raw/NAME; gives back its size and its SHA-256. Raises OSError."""
        target = self.raw(name)
        _make(target.parent)
        digest, size = hashlib.sha256(), 0
        with target.open("wb") as file:
            give(target)
            while block := source.read(1 << 20):
                digest.update(block)
                size += file.write(block)
        return size, digest.hexdigest()

    def move_in(self, source: Path, name: str) -> Path:
        """Moves a directory of raw files from scratch into raw/NAME, across file systems too.

        Raises OSError when the folder's disk does not take it; the source then is still complete."""
        target = self.raw(name)
        _make(target.parent)
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
        hand_over(target)
        return target


def _without_rows(schema: Any) -> bytes:
    """A Parquet file of these columns that holds nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, schema, compression="zstd"):
        pass
    return bytes(sink.getvalue())


def create(parent: Path, name: str, scrub: Callable[[str], str] = str) -> Folder:
    """Makes a new report folder `<name>-<UTC time>-<4 letters>` in `parent` and points `latest` at it.

    Raises FolderError when it can't be made, can't be written or has no room."""
    made = fresh(parent, name, scrub, inside=("raw",))
    _point_latest(parent, made.path.name)
    return made


def fresh(parent: Path, name: str, scrub: Callable[[str], str] = str, inside: Sequence[str] = ()) -> Folder:
    """Likewise a new folder for what is no report; `inside`: the names of folders in it."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        _make(parent, ours=True)
        _check_room(parent)
        path = _exclusive(parent, f"{_SAFE.sub('-', name).strip('-.') or 'run'}-{stamp}")
        for own in inside:
            (path / own).mkdir()
        hand_over(path)
    except OSError as error:
        raise FolderError(
            f"the report folder can't be made in {parent}",
            error.strerror or str(error),
            "name a folder that you may write with -o DIR",
        ) from error
    return Folder(path, scrub)


def lookup(text: str, parent: Path = REPORTS) -> Path | None:
    """The report folder that a user means: its path, `latest`, or how its name in `parent` begins; of several runs of
    one name the newest. A report's page or summary stands for its folder. None when there is none.

    Raises UsageError where runs of several names begin so."""
    path = Path(text)
    path = path.parent if path.name in ("index.html", "summary.json") and path.is_file() else path
    if len(path.parts) != 1 or _is_report(path):
        return path if path.is_dir() else None
    if _is_report(parent / path):
        return (parent / path).resolve() if (parent / path).is_symlink() else parent / path
    found = [name for name in reports(parent) if text == "latest" or name.startswith(text)]
    names = sorted({_STAMP.sub("", name) for name in found})
    if len(names) > 1 and text not in (*names, "latest"):
        said = f"runs of {len(names)} names in {parent} begin with {text}"
        raise UsageError(said, ", ".join(names[:_TOLD]) + (" ..." if len(names) > _TOLD else ""), "write more of it")
    own = [name for name in found if text == "latest" or _STAMP.sub("", name) == (text if text in names else names[0])]
    return parent / own[-1] if own else None


_TOLD = 8


def reports(parent: Path = REPORTS) -> list[str]:
    """The names of the report folders in there, the newest last. What was not named by profrun comes first."""
    try:
        names = [entry.name for entry in os.scandir(parent) if not entry.is_symlink() and _is_report(Path(entry.path))]
    except OSError:
        return []
    return sorted(names, key=lambda name: (found[1] if (found := _STAMP.search(name)) else "", name))


def _is_report(path: Path) -> bool:
    return any((path / name).exists() for name in ("summary.json", "raw/run.json"))


def has_room(parent: Path) -> bool:
    """Whether a run may be begun there, as far as the disk is concerned."""
    try:
        return shutil.disk_usage(parent).free >= NEEDED_BYTES
    except OSError:
        return True


def _check_room(parent: Path) -> None:
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
        _chown(temporary)
        temporary.replace(link)
    with contextlib.suppress(OSError):
        temporary.unlink()


def write_atomic(path: Path, data: bytes) -> None:
    """Writes beside the file and renames: a reader sees the old file or the new one. Raises OSError."""
    _make(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        give(temporary)
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
                    return Path(tempfile.mkdtemp(prefix=SCRATCH, dir=place)).absolute()
    raise FolderError(
        "no place for temporary files",
        f"TMPDIR, /tmp, /var/tmp and this directory can't be written, or have less than {NEEDED_BYTES >> 20} MiB free",
        "set TMPDIR to a local disk with room",
    )


def private(path: Path) -> Path:
    """Makes a folder that its owner alone may enter, where it is missing. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def remove_empty(path: Path) -> None:
    """Removes a folder in which nothing is left."""
    with contextlib.suppress(OSError):
        path.rmdir()


def remove(path: Path) -> None:
    """Removes a scratch directory; what can't be removed stays."""
    shutil.rmtree(path, ignore_errors=True)


def discard(path: Path) -> None:
    """Removes a file of ours that is no longer needed; what can't be removed stays."""
    with contextlib.suppress(OSError):
        path.unlink()


# ---------------------------------------------------------------- whose it is, under sudo


def caller() -> tuple[int, int] | None:
    """(uid, gid) of the user who called profrun through sudo; None where it runs as the user himself."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() != 0 or not (uid.isdecimal() and gid.isdecimal()) or uid == "0":
        return None
    return int(uid), int(gid)


def hand_over(path: Path) -> None:
    """Under sudo: gives a folder with all that is in it to the user who called. No link is followed, no file that has
    another name elsewhere is given; what can't be given stays root's."""
    if caller() is None:
        return
    _chown(path)
    for _, folders, files, fd in os.fwalk(path, onerror=None, follow_symlinks=False):
        for name in (*folders, *files):
            _chown(Path(name), fd)


def give(path: Path) -> None:
    """Under sudo: what is made in a folder of the user who called is his."""
    to = caller()
    with contextlib.suppress(OSError):
        if to and path.parent.stat().st_uid == to[0]:
            _chown(path)


def _chown(path: Path, folder_fd: int | None = None) -> None:
    to = caller()
    if to is None:
        return
    with contextlib.suppress(OSError):
        about = os.stat(path, dir_fd=folder_fd, follow_symlinks=False)
        if stat.S_ISDIR(about.st_mode) or about.st_nlink == 1:
            os.chown(path, *to, dir_fd=folder_fd, follow_symlinks=False)


def _make(path: Path, *, ours: bool = False) -> None:
    """Makes a folder and those above it. `ours`: it is part of a report, whoever owns the place where it is made."""
    missing = [place for place in (path, *path.parents) if not place.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for place in reversed(missing):
        _chown(place) if ours else give(place)


# ---------------------------------------------------------------- what the runs of this machine tell one another

FOR_ALL = Path("/run/profrun")
_OPEN_TO_ALL = 0o1777


def state_places() -> Iterator[Path]:
    """Where journals and locks may lie, the best first: where every user of the machine sees them, else in the user's
    own state folder, by host, as a home may be shared by many. PROFRUN_STATE names the only one."""
    given = os.environ.get("PROFRUN_STATE")
    if given:
        yield Path(given)
        return
    yield FOR_ALL
    home = os.environ.get("XDG_STATE_HOME") or (os.environ["HOME"] + "/.local/state" if os.environ.get("HOME") else "")
    if home.startswith("/"):
        yield Path(home) / "profrun" / (platform.node() or "localhost")
    yield Path("/tmp") / f"profrun-{os.geteuid()}"


def state_folder() -> Path:
    """The first of these places that can be used; it is made where it is missing. Raises OSError."""
    problem = OSError(errno.ENOENT, "there is no place for it")
    for place in state_places():
        try:
            return made_state(place)
        except OSError as error:
            problem = error
    raise problem


def made_state(place: Path) -> Path:
    """One of these places, made where it is missing. Raises OSError when it can't be used, or can't be trusted."""
    shared = place == FOR_ALL
    if not os.path.lexists(place):
        if shared and os.geteuid() != 0:
            raise FileNotFoundError(errno.ENOENT, "only root can make it", str(place))
        _refuse_strange(place.parent)
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
    about = place.lstat()
    if shared and stat.S_ISDIR(about.st_mode) and os.geteuid() == about.st_uid == 0:
        place.chmod(_OPEN_TO_ALL)
    trusted_state(place)
    if not os.access(place, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    return place


def trusted_state(place: Path) -> Path:
    """One of these places, in which nobody but root and its users can have put anything in the name of others. Raises
    OSError when it is not there, or is not so: a link, a folder of somebody else, below a folder of somebody else."""
    _refuse_strange(place.parent)
    about = place.lstat()
    sticky = about.st_uid == 0 and bool(about.st_mode & stat.S_ISVTX)
    own = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(about.st_mode) or not (own or sticky):
        raise PermissionError(errno.EPERM, "it is no folder of ours", str(place))
    return place


def _refuse_strange(place: Path) -> None:
    """Whoever owns a folder on the way (the home that sudo has kept, say) could lead us anywhere."""
    fine = {0, os.geteuid(), Path("/").lstat().st_uid}  # in a user namespace, root may be seen as another
    for one in (place, *place.parents):
        if os.path.lexists(one) and one.lstat().st_uid not in fine:
            raise PermissionError(errno.EPERM, f"{one} belongs to another user", str(place))


def user_name(uid: int) -> str:
    """The user's name; the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
