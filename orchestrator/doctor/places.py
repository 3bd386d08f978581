"""Where reports and scratch files go: may they be written, is there room, and what file system is that."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator import folder
from orchestrator.doctor.words import Diagnosis, State
from orchestrator.errors import FolderError
from orchestrator.machine import Machine

_NETWORK = re.compile(
    r"nfs\d?|cifs|smb.*|9p|afs|lustre|gpfs|beegfs.*|ceph|panfs|wekafs|pvfs2|orangefs|glusterfs|"
    r"fuse\.(ceph|glusterfs|sshfs|s3fs|gcsfuse|rclone|goofys|mount-s3|dfuse|juicefs).*"
)
_IN_MEMORY = ("tmpfs", "ramfs")


def places(machine: Machine, reports: Path = Path("reports")) -> Iterator[Diagnosis]:
    """The report folder's parent, then scratch space."""
    yield _reports(reports)
    yield _scratch(machine)


def _reports(reports: Path) -> Diagnosis:
    try:
        return _place("report folder", reports.absolute(), "name another parent with -o DIR")
    except FileNotFoundError:
        said = "the directory that profrun was called in is gone: no report can be made in it"
        return Diagnosis("report folder", "blocked", said, "cd to one that exists, or name one with -o DIR")


def _scratch(machine: Machine) -> Diagnosis:
    try:
        scratch = folder.scratch()
    except FolderError as error:
        return Diagnosis("scratch space", "blocked", error.text(), error.next_step)
    folder.remove(scratch)
    found = _place("scratch space", scratch.parent, "set TMPDIR to a folder on another disk")
    wanted = os.environ.get("TMPDIR")
    if wanted and Path(wanted).absolute() != scratch.parent:
        return replace(
            found, said=f"{found.said}; TMPDIR={wanted} can't be used", fix=f"mkdir -p {wanted}, or unset TMPDIR"
        )
    return _on(_mount(machine, scratch.parent), found) if found.state == "ok" else found


def _place(subject: str, path: Path, fix: str) -> Diagnosis:
    """Whether files can be made there, and how much room there is."""
    # Path.exists raises an error where a folder on the way can't be entered
    there = next(p for p in (path, *path.parents) if os.path.exists(p))  # noqa: PTH110
    if not there.is_dir():
        return Diagnosis(subject, "blocked", f"{there} is no directory", fix, path=str(path))
    if not os.access(there, os.W_OK | os.X_OK):
        return Diagnosis(subject, "blocked", f"{there} can't be written", fix, path=str(path))
    free = shutil.disk_usage(there).free
    state: State = "ok" if free >= folder.NEEDED_BYTES else "blocked"
    return Diagnosis(subject, state, f"{free / 1e9:.1f} GB free", None if state == "ok" else fix, path=str(path))


# ---------------------------------------------------------------- file systems


@dataclass(frozen=True)
class Mount:
    """A mounted file system."""

    point: str
    kind: str
    options: tuple[str, ...]


def _mount(machine: Machine, path: Path) -> Mount | None:
    """The file system that a path lies on; of several on one mount point the last covers the others."""
    place = os.path.realpath(path)
    found = [m for m in _mounts(machine) if place == m.point or place.startswith(m.point.rstrip("/") + "/")]
    return max(reversed(found), key=lambda mount: len(mount.point), default=None)


def _mounts(machine: Machine) -> Iterator[Mount]:
    """/proc/self/mountinfo: id parent device root POINT OPTIONS fields... - KIND source (proc(5))."""
    for line in (machine.read("proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) > 5 and kind:
            point = re.sub(r"\\(\d{3})", lambda octal: chr(int(octal[1], 8)), words[4])
            yield Mount(point, kind[0], tuple(words[5].split(",")))


def _on(mount: Mount | None, found: Diagnosis) -> Diagnosis:
    """What the file system means for what the profilers write."""
    if mount is None:
        return found
    if _NETWORK.fullmatch(mount.kind):
        said = (
            f"{found.said}, on a network file system ({mount.kind}): it slows the profilers down, and some need locks"
        )
        return replace(found, said=said, fix="set TMPDIR to a folder on a local disk")
    if "noexec" in mount.options:
        said = f"{found.said}, mounted noexec: what torch.compile and Triton build there can't be run"
        return replace(found, said=said, fix="set TMPDIR to a folder on a disk that is mounted without noexec")
    if mount.kind in _IN_MEMORY:
        return replace(found, said=f"{found.said}, in memory ({mount.kind}): recordings take it from the program")
    return found
