"""`profrun import`: a report of files that somebody already has, with the same tables and pages as a run's."""

from __future__ import annotations

import os
import re
import shlex
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from orchestrator import __version__, folder, imported, process, redact, runner
from orchestrator.collectors.nsys import SIGNS, Nsys
from orchestrator.collectors.timing import Timing
from orchestrator.errors import EXIT_CAPTURE, FolderError, ParseError, UsageError
from orchestrator.formats.sniff import Found, sniff
from orchestrator.machine import Machine
from orchestrator.model import IMPORT, Artifact, Capture, Status
from orchestrator.plan import Plan
from orchestrator.report import Report, RunInfo, capture_record
from orchestrator.units import show_bytes

if TYPE_CHECKING:
    from orchestrator.render.console import Console

LARGE_BYTES = 1 << 30
"""Of a file that is larger it is said that it is copied."""
LONGEST_NAME_BYTES = 200
"""File systems take 255; an export's name is longer than its report's."""
EXPORT_LIMIT_S = 1800.0
PLAN = Plan(version=1, name=IMPORT, collectors=(Timing(),))
"""No plan made such a report. What is asked of one, such as the pages to write, is at its default."""
ELSEWHERE = {"measured": "elsewhere: what is known of that machine comes from the files"}


@dataclass(frozen=True)
class Request:
    """What the command line asks for."""

    files: tuple[Path, ...]
    output: Path | None = None
    name: str | None = None


@dataclass(frozen=True)
class _Given:
    """A file, and its kind or why it has none that can be read."""

    path: Path
    found: Found | None
    refusal: str | None = None


def run(request: Request, console: Console) -> Report:
    """Makes the report of the files. Those that can't be read are named in it with the reason.

    Raises UsageError for what is no file, and, with exit status 4, when none of them can be imported; FolderError when
    the disk does not take the report."""
    began = time.perf_counter()
    given = [_look(path) for path in _files(request.files)]
    if all(one.refusal for one in given):
        raise _nothing(given)
    name = request.name or _name(given[0].path)
    target = folder.create(request.output or Path(PLAN.report.directory), name, redact.in_text)
    try:
        captures = [_capture(number, one, target, console) for number, one in enumerate(given, 1)]
        target.write_json("raw/run.json", _raw(target, name, captures, time.perf_counter() - began))
    except OSError as error:
        folder.remove(target.path)
        if error.errno not in folder.DISK_TROUBLE:
            raise
        why = error.strerror or str(error)
        raise FolderError(f"{target.path} can't be written", why, "make room, or name a folder with -o DIR") from error
    except KeyboardInterrupt:
        folder.remove(target.path)
        raise
    target.write("run.log", "\n".join(console.logged) + "\n")
    report = runner.rebuild(target, PLAN, console)
    target.write("run.log", "\n".join(console.logged) + "\n")
    return report


# ---------------------------------------------------------------- the files


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    """The files, each once. Raises UsageError for the first path that is none."""
    seen: set[str] = set()
    for path in paths:
        _check_file(path, shown(str(path)))
        real = os.path.realpath(path)
        if real not in seen:
            seen.add(real)
            yield path


def _check_file(path: Path, name: str) -> None:
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{name} can't be imported", why, "name files that are there") from error
    if stat.S_ISDIR(mode):
        raise UsageError(f"{name} is a folder", "only files are imported", f"profrun import {shlex.quote(name)}/*")
    if not stat.S_ISREG(mode):
        kind = "a FIFO" if stat.S_ISFIFO(mode) else "no regular file"
        raise UsageError(f"{name} is {kind}", "it can be read only once, or never ends", "write it to a file first")


def _look(path: Path) -> _Given:
    try:
        found = sniff(path)
    except ParseError as error:
        return _Given(path, None, str(error).replace(path.name, shown(path.name)))
    return _Given(path, found, f"{shown(path.name)} is {found.words}; {found.instead}" if found.instead else None)


def shown(name: str) -> str:
    """A file's name on one line: bytes that are no UTF-8, line breaks and other control characters as escapes."""
    text = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _kept(name: str) -> str:
    """The name inside raw/: fit for any file system and for links, with room for what is put behind it."""
    clean = "".join(c if c.isprintable() and not "\ud800" <= c <= "\udfff" else "_" for c in name)
    data, suffix = clean.encode(), Path(clean).suffix.encode()
    if len(data) <= LONGEST_NAME_BYTES or len(suffix) >= LONGEST_NAME_BYTES:
        return data[:LONGEST_NAME_BYTES].decode("utf-8", "ignore")
    return data[: LONGEST_NAME_BYTES - len(suffix)].decode("utf-8", "ignore") + suffix.decode()


def _nothing(given: Sequence[_Given]) -> UsageError:
    what = "none of these files can be imported" if len(given) > 1 else "there is nothing to import"
    error = UsageError(what, "\n        ".join(one.refusal or "" for one in given), "name files of these kinds")
    error.exit_code = EXIT_CAPTURE
    return error


def _name(path: Path) -> str:
    """A report is called as its first file."""
    stem = Path(path.stem).stem if path.suffix == ".gz" else path.stem
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[:40].strip("-.") or IMPORT


# ---------------------------------------------------------------- a capture of each


def _capture(number: int, given: _Given, target: folder.Folder, console: Console) -> Capture:
    found, name = given.found, shown(given.path.name)
    if found is None or given.refusal:
        who = found.kind if found else "unknown"
        about = {"file": name}
        return Capture(f"{IMPORT}-{number}-{who}", IMPORT, who, "unreadable", given.refusal, None, options=about)
    kind = imported.KINDS[found.kind]
    size = given.path.stat().st_size
    if size > LARGE_BYTES:
        console.warn(f"{name}: {show_bytes(size)} are copied, so that the report stands alone")
    console.stage(f"copying {name}")
    about = {"file": name, "kind": found.kind}
    capture = Capture(f"{IMPORT}-{number}-{kind.collector}", IMPORT, kind.collector, "ok", trust=None, options=about)
    try:
        capture = _with_file(capture, given.path, found, kind, target)
    except PermissionError as error:
        return replace(capture, status="unreadable", reason=f"{name} can't be read: {error.strerror}")
    return _with_export(capture, target, console) if found.kind == "nsys-rep" else capture


def _with_file(capture: Capture, path: Path, found: Found, kind: imported.Kind, target: folder.Folder) -> Capture:
    """With its file in the report's folder, unpacked where its reader does not see through gzip."""
    unpacks = found.packed and not kind.opens_gzip
    name = f"{capture.id}/{_kept(path.name.removesuffix('.gz') if unpacks else path.name)}"
    with path.open("rb") as file:
        source = _Unpacked(file) if unpacks else file
        size, digest = target.take(source, name)
    role = "report" if found.kind == "nsys-rep" else kind.role
    artifact = Artifact(
        role, f"raw/{name}", found.kind, size, digest, path.stat().st_mtime_ns, holds_env=kind.holds_env
    )
    capture = replace(capture, artifacts=(artifact,))
    cut = isinstance(source, _Unpacked) and source.damage
    return replace(capture, status="degraded", reason=f"{shown(path.name)} {cut}") if cut else capture


class _Unpacked:
    """What is inside of a gzip file, as far as it is whole; `damage` says what was not."""

    def __init__(self, file: BinaryIO) -> None:
        self.damage: str | None = None
        self._file = file
        self._inflate = zlib.decompressobj(31)

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes, and none at the end. Files may hold several members, one behind another."""
        while not self.damage:
            packed = self._inflate.unconsumed_tail or self._next()
            if packed is None:
                return b""
            try:
                data = self._inflate.decompress(packed, size)
            except zlib.error as error:
                self.damage = f"is a damaged gzip file ({error}): what was whole was unpacked"
                return b""
            if data:
                return data
        return b""

    def _next(self) -> bytes | None:
        """More of the file; None at its end, which may come too early."""
        if self._inflate.eof:
            rest = self._inflate.unused_data or self._file.read(1 << 20)
            if not rest.strip(b"\0"):
                return None
            self._inflate = zlib.decompressobj(31)
            return rest
        packed = self._file.read(1 << 20)
        if not packed:
            self.damage = "is a gzip file that was cut off: what was whole was unpacked"
        return packed or None


# ---------------------------------------------------------------- reports of nsys


def _with_export(capture: Capture, target: folder.Folder, console: Console) -> Capture:
    """With the SQLite export that a report of nsys is read through."""
    report = capture.artifacts[0]
    name = f"{report.path}.sqlite"
    nsys = Machine().tool(Nsys.probe) if Nsys.probe else None
    if nsys is None or nsys.path is None:
        why = f"{Path(report.path).name} is read through an export of nsys, and there is no nsys here"
        return replace(capture, status="unreadable", reason=f"{why}: {_elsewhere(report)}")
    console.stage(f"exporting {Path(report.path).name}")
    argv = (
        *(nsys.path, "export", "--type", "sqlite", "--force-overwrite", "true"),
        *("--output", str(target.path / name), str(target.path / report.path)),
    )
    answer = process.ask(argv, timeout_s=EXPORT_LIMIT_S)
    capture = replace(capture, commands=(redact.argv(argv),))
    path = target.path / name
    if not path.is_file() or answer.error or answer.exit is None or answer.exit.status:
        status, why = _why_not(answer, nsys.version)
        return replace(capture, status=status, reason=f"{Path(report.path).name}: {why}; {_elsewhere(report)}")
    about = path.stat()
    export = Artifact(
        "sqlite", name, "sqlite", about.st_size, folder.fingerprint(path), about.st_mtime_ns,
        derived_from="report", holds_env=True,
    )  # fmt: skip
    return replace(capture, artifacts=(report, export))


def _why_not(answer: process.Answer, version: str | None) -> tuple[Status, str]:
    """What nsys's words mean, in those of its collector."""
    said = answer.stdout + answer.stderr
    for sign in SIGNS:
        if match := re.search(sign.pattern, said):
            groups = match.groups() or (match[0],)
            return "unreadable", f"nsys {version}: {sign.reason.format(*groups)}"
    lines = said.strip().splitlines()
    return (
        "unreadable",
        f"nsys {version} could not export it: {answer.error or (lines[-1] if lines else 'no reason given')}",
    )


def _elsewhere(report: Artifact) -> str:
    name = shlex.quote(Path(report.path).name)
    return f"where it was made: nsys export --type sqlite {name}, and import the .sqlite file"


# ---------------------------------------------------------------- the record


def _raw(target: folder.Folder, name: str, captures: Sequence[Capture], duration_s: float) -> dict[str, Any]:
    """raw/run.json: of a run that was none."""
    info = RunInfo(
        id=target.path.name,
        name=name,
        started_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        duration_s=round(duration_s, 3),
        command=(),
        cwd="",
        profrun_version=__version__,
        imported=True,
    )
    return {
        "schema": runner.RAW_SCHEMA,
        "run": asdict(info),
        "machine": ELSEWHERE,
        "environment": [],
        "environment_failed": False,
        "interrupted_by": None,
        "strict": False,
        "verify_repeatable": False,
        "passes": [],
        "captures": [capture_record(capture) for capture in captures],
    }
