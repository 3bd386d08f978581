"""`profrun share`: an archive of a report for somebody else, without what may be secret or tells of people and places.

Everything in it is made anew of what was cleaned: tables first, then summary.json, then timeline and pages from those.
Nothing is copied as it stands. Of the tools' own files only texts can be cleaned, and those only on request.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

from orchestrator import __version__, folder, runner, tables
from orchestrator.errors import FolderError, UsageError
from orchestrator.render import RENDERERS
from orchestrator.report import Report, load, machine_facts
from orchestrator.units import show_bytes
from orchestrator.veil import LEFT_OUT, Veil, told_of

if TYPE_CHECKING:
    from orchestrator.model import Artifact

SUFFIX = ".tar.zst"
ABOUT = "SHARED.md"
EXTRAS = ("raw", "output", "names")
"""What can be asked for: see EXTRAS_HELP in the verb."""

Why = Literal["output", "environment", "raw", "binary", "damaged", "strange"]
REASONS: dict[Why, str] = {
    "output": "what the program printed (`--with output`)",
    "environment": "files in which a tool has kept the program's environment",
    "raw": "the tools' own files (`--with raw`: those that are text, cleaned)",
    "binary": "files of which nothing can be taken out: binary, or with lines of more than 64 MB",
    "damaged": "files that can't be read as what they should be",
    "strange": "files that are no part of the report",
}
"""Why something is left out, in the order in which it is told."""

UNSURE = (
    "not sure: the tools' files and the program's output were never cleaned before; of the run's secrets those are "
    "found that look like one, or that stand in this environment, too"
)
OWN = frozenset({"run.log", "journal.jsonl", "night.md"})
"""Texts of the report that are cleaned as they stand."""
MADE_ANEW = (
    "tables/", "flamegraphs/", "timeline.", "index.html", "report.md", "summary.json", "machine.json", "plan.yaml",
    ABOUT,
)  # fmt: skip
"""What is made of the cleaned tables and summary."""
_OUTPUT = re.compile(r"raw/[^/]*-target[^/]*/[^/]*\.log")
_GROUP_BYTES, _LONGEST_LINE_BYTES, _LOOK_BYTES = 4 << 20, 64 << 20, 1 << 16
_KEY_BEGINS, _KEY_ENDS = b"-----BEGIN ", b"-----END "


@dataclass(frozen=True)
class Request:
    """What the command line asks for. `extras`: of EXTRAS."""

    run: Path
    output: Path | None = None
    extras: frozenset[str] = frozenset()
    hide: tuple[str, ...] = ()


@dataclass(frozen=True)
class Left:
    """A file that is not in the archive."""

    path: str
    bytes: int
    why: Why


@dataclass
class Shared:
    """What became of a report: the archive, and what is not in it."""

    path: Path
    veil: Veil
    extras: frozenset[str] = frozenset()
    left: list[Left] = field(default_factory=list)
    bytes: int = 0

    def told(self) -> Iterator[str]:
        """What was left out and what was changed, a line each."""
        for why, reason in REASONS.items():
            found = [one for one in self.left if one.why == why]
            if found:
                files = f"{len(found)} file{'s' if len(found) > 1 else ''}"
                yield f"left out: {reason}: {files}, {show_bytes(sum(one.bytes for one in found))}"
        for kind, count in sorted(self.veil.taken.items()):
            if count:
                yield f"changed: {_changed(kind, count, self.veil.different.get(kind))}"
        if self.extras & {"raw", "output"}:
            yield UNSURE


def _changed(kind: str, count: int, different: int | None) -> str:
    places = f"in {count} place{'s' if count > 1 else ''}"
    if kind == "environment variable":
        return f"the values of environment variables: {LEFT_OUT} {places}"
    if different is None:
        return f"{kind}s: [redacted] {places}"
    plural = ("es" if kind.endswith("s") else "s") if different > 1 else ""
    return f"{different} {kind}{plural} got another name {places}"


def share(request: Request) -> Shared:
    """Writes the archive. Raises ReportError where there is no report, UsageError for a file that is there already,
    FolderError when the disk does not take it."""
    report = load(request.run)
    veil = _veil(report, request)
    shared = Shared(_target(request, veil(report.run.id)), veil, request.extras)
    place = folder.scratch()
    try:
        stage = folder.Folder(place / "report", veil)
        _fill(report, stage, shared)
        with folder.Folder(shared.path.parent).stream(shared.path.name) as file:
            _pack(stage.path, veil(report.run.id), _moment(report), file)
    except OSError as error:
        raise FolderError(
            f"{shared.path} can't be written", error.strerror or str(error), "name another place with -o"
        ) from error
    finally:
        folder.remove(place)
    shared.bytes = shared.path.stat().st_size
    return shared


def _target(request: Request, name: str) -> Path:
    """The archive's file. Raises UsageError where it can't be that."""
    given = request.output or Path(f"{name}{SUFFIX}")
    path = given / f"{name}{SUFFIX}" if given.is_dir() else given
    if not path.name.endswith((SUFFIX, ".tzst")):
        raise UsageError(f"{path} is no name for it", "what is written is a tar, packed with zstd", f"-o NAME{SUFFIX}")
    if path.exists():
        raise UsageError(f"{path} exists", "it is not overwritten", "name another file with -o, or remove it")
    return path


def _veil(report: Report, request: Request) -> Veil:
    """With the names of hosts and people that the report tells, and those of whoever shares it."""
    hosts, users = told_of(json.loads((report.folder / "summary.json").read_text("utf-8", "surrogateescape")))
    told = folder.user_name(report.folder.stat().st_uid), folder.user_name(os.geteuid())
    users |= {*told, *(os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))}
    hosts |= {os.uname().nodename, os.uname().nodename.partition(".")[0], *_hosts_in_tables(report)}
    return Veil(os.environ, hosts, users - {""}, request.hide, names="names" not in request.extras)


def _hosts_in_tables(report: Report) -> set[str]:
    import pyarrow.compute as compute

    found: set[str] = set()
    for name in report.tables:
        if "host" in report.schema(name).names:
            for batch in report.batches(name, ["host"]):
                found |= {*compute.unique(batch["host"]).to_pylist()} - {None, ""}
    return found


# ---------------------------------------------------------------- the cleaned report


def _fill(report: Report, stage: folder.Folder, shared: Shared) -> None:
    from orchestrator import timeline

    for name in sorted(report.tables):
        _table(report, name, stage, shared.veil)
    kept = _others(report, stage, shared)
    _summary(report, stage, shared, kept)
    shown = load(stage.path)
    stage.write_clean("machine.json", _json(machine_facts(shown)))
    timeline.write(shown, stage)
    runner.render(shown, stage, [name for name, (file, _) in RENDERERS.items() if (report.folder / file).exists()])
    stage.write_clean(ABOUT, _about(shown, shared))


def _table(report: Report, name: str, stage: folder.Folder, veil: Veil) -> None:
    """A table with every text cleaned, piece by piece."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = report.schema(name)
    with (
        stage.stream(report.tables[name].path) as target,
        pq.ParquetWriter(target, schema, compression="zstd") as writer,
    ):
        for batch in report.batches(name):
            piece = tables.mapped(pa.Table.from_batches([batch]), veil)
            writer.write_table(piece.cast(schema))


def _summary(report: Report, stage: folder.Folder, shared: Shared, kept: dict[str, str]) -> None:
    """summary.json and plan.yaml; of the tools' files only those are told that are there. kept: old path, new path."""
    from orchestrator.planfile import source

    data = json.loads((report.folder / "summary.json").read_text("utf-8", "surrogateescape"))
    for capture in data["captures"]:
        own = [artifact for artifact in capture["artifacts"] if artifact["path"] in kept]
        capture["artifacts"] = [{**artifact, "path": kept[artifact["path"]]} for artifact in own]
    stage.write_clean("summary.json", _json(shared.veil.tree(data)))
    plan = report.folder / "plan.yaml"
    if plan.exists():
        import yaml

        try:
            tree = yaml.safe_load(plan.read_text("utf-8"))
        except (ValueError, yaml.YAMLError):
            shared.left.append(Left("plan.yaml", plan.stat().st_size, "damaged"))
        else:
            stage.write_clean("plan.yaml", source.dump(shared.veil.tree(tree)))


def _json(data: Any) -> str:
    return json.dumps(data, indent=1) + "\n"


def _others(report: Report, stage: folder.Folder, shared: Shared) -> dict[str, str]:
    """The files of the report beside those; gives back the paths of the tools' files that are in, old and new."""
    artifacts = {artifact.path: artifact for capture in report.captures for artifact in capture.artifacts}
    kept: dict[str, str] = {}
    for path in sorted(report.folder.rglob("*")):
        name = path.relative_to(report.folder).as_posix()
        if name.startswith(MADE_ANEW) or path.is_symlink() or not path.is_file():
            continue
        why = _why_not(name, artifacts.get(name), shared.extras)
        new = "/".join(shared.veil(part) for part in name.split("/"))
        if why is None and not _cleaned(path, stage, new, shared.veil):
            why = "binary"
        if why:
            shared.left.append(Left(new, path.stat().st_size, why))
        else:
            kept[name] = new
    return kept


def _why_not(name: str, artifact: Artifact | None, extras: frozenset[str]) -> Why | None:
    """Why a file stays here; None where it may go once it is cleaned."""
    if not name.startswith("raw/"):
        return None if name in OWN else "strange"
    if artifact is not None and artifact.holds_env:
        return "environment"
    if _OUTPUT.fullmatch(name):
        return None if "output" in extras else "output"
    return None if "raw" in extras else "raw"


def _about(report: Report, shared: Shared) -> str:
    rebuild = "`profrun report` can't rebuild it: what that is made of, the tools' own files, is not all here."
    lines = [
        "# A report that was made to be shared",
        "",
        f"profrun {__version__} made it of the report {report.run.id}. Open index.html in a browser, or read it with",
        "`profrun show FOLDER`. " + rebuild,
        "",
        *(f"- {line}" for line in shared.told()),
        "",
        "Names of functions, files and arguments are the program's own. What is no name, address or key by its looks",
        "was not recognised as one: look before you pass it on.",
    ]
    if shared.left:
        lines += ["", "## Left out", "", *(f"- {one.path} ({show_bytes(one.bytes)}, {one.why})" for one in shared.left)]
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- texts of the tools


def _cleaned(source: Path, stage: folder.Folder, name: str, veil: Veil) -> bool:
    """Writes a text file cleaned; False where it is no text, or one with lines that are too long to be read whole."""
    if name == "raw/run.json" or name.endswith(("/command.json", ".jsonl")):
        text = source.read_text("utf-8", "surrogateescape")
        with contextlib.suppress(ValueError):  # what is cut off is cleaned as text
            records = text.splitlines() if name.endswith(".jsonl") else [text]
            clean = [json.dumps(veil.tree(json.loads(record))) for record in records]
            stage.write_clean(name, "\n".join(clean) + "\n")
            return True
    try:
        with _opened(source) as file, stage.stream(name) as target:
            packed = gzip.GzipFile("", "wb", 6, target, mtime=0) if source.suffix == ".gz" else None
            for text in _groups(file):
                (packed or target).write(veil(text).encode("utf-8", "surrogateescape"))
            if packed:
                packed.close()
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error):
        return False
    return True


def _opened(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _groups(file: BinaryIO) -> Iterator[str]:
    """The text some megabytes at a time, at ends of lines, and not within a key of several lines. Raises ValueError
    where it is no text or a line is too long."""
    rest = b""
    first = True
    while block := file.read(_GROUP_BYTES):
        if first and b"\0" in block[:_LOOK_BYTES]:
            raise ValueError("no text")
        first = False
        rest += block
        cut = rest.rfind(b"\n") + 1
        begun = rest.rfind(_KEY_BEGINS, 0, cut)
        if begun >= 0 and rest.find(_KEY_ENDS, begun, cut) < 0 and cut - begun < _LOOK_BYTES:
            cut = begun
        if len(rest) - cut > _LONGEST_LINE_BYTES:
            raise ValueError("a line that is too long")
        yield rest[:cut].decode("utf-8")
        rest = rest[cut:]
    yield rest.decode("utf-8")


# ---------------------------------------------------------------- the archive


def _pack(stage: Path, top: str, moment_s: int, file: BinaryIO) -> None:
    """All files below `stage` in the order of their names, as nobody's, of one moment: equal reports, equal bytes."""
    import pyarrow as pa

    with (
        pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in _files(stage):
            about = tarfile.TarInfo(f"{top}/{path.relative_to(stage).as_posix()}")
            about.size, about.mtime, about.mode = path.stat().st_size, moment_s, 0o600
            with path.open("rb") as content:
                archive.addfile(about, content)


def _files(stage: Path) -> Iterable[Path]:
    return sorted((path for path in stage.rglob("*") if path.is_file()), key=lambda path: path.as_posix())


def _moment(report: Report) -> int:
    """When the run began, in s since the epoch; the epoch where that is not known."""
    try:
        return int(datetime.fromisoformat(report.run.started_at.replace("Z", "+00:00")).timestamp())
    except ValueError:
        return 0
