"""torch.profiler's traces as HolisticTraceAnalysis reads them: a folder with one file a rank, each naming its own.

Its loader takes every .json and .gz of a folder, looks for `"rank": N`, and takes a file without for rank 0
(hta/common/trace_file.py): of two such files one is lost.
"""

from __future__ import annotations

import gzip
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.model import Capture
    from orchestrator.report import Report

_RANK = re.compile(rb'"rank":\s+(\d+)')
"""As HTA looks for it."""
_IN_NAME = re.compile(r"rank[-_]?(\d{1,9})(?!\d)", re.I)
_HEAD_BYTES = 1 << 20
"""torch writes it before the events."""
_BLOCK_BYTES = 1 << 20


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """A folder for each capture of the whole job, where there are several: what tasks on several hosts have recorded in
    one pass belongs together. Raises UsageError where there is no trace."""
    jobs: dict[str, list[Capture]] = {}
    for capture in report.captures:
        if _traces(capture):
            jobs.setdefault(capture.id.partition("@")[0], []).append(capture)
    if not jobs:
        feed = f"profrun --into {shlex.quote(str(report.folder))} --only torch, or profrun torch-deep -- COMMAND"
        raise UsageError("the report has no trace of torch.profiler", "none was taken, or raw/ is not there", feed)
    for name, captures in jobs.items():
        taken: set[int] = set()
        for capture in captures:
            yield from _capture(capture, f"{name}/" if len(jobs) > 1 else "", target, say, taken)
    say(f"read it: TraceAnalysis(trace_dir={str(target.path)!r})" + (", one folder a capture" if len(jobs) > 1 else ""))


def _traces(capture: Capture) -> list[Path]:
    paths = [capture.root / one.path for one in capture.artifacts if one.format == "kineto"]
    return sorted(path for path in paths if path.exists())


def _capture(
    capture: Capture, place: str, target: Folder, say: Callable[[str], None], taken: set[int]
) -> Iterator[Path]:
    for path in _traces(capture):
        with _opened(path) as file:
            head = file.read(_HEAD_BYTES)
            own = _RANK.search(head)
            rank = int(own[1]) if own else _guess(capture, path, taken)
            if rank in taken:
                say(f"{path.name} is left out: HTA takes one trace a rank, and there is one of rank {rank}")
                continue
            if not own:
                say(f"{path.name} names no rank: taken for {rank}")
            taken.add(rank)
            yield _written(file, head if own else _named(head, rank), target, f"{place}rank-{rank}.trace.json.gz")


def _guess(capture: Capture, path: Path, taken: set[int]) -> int:
    """By the capture, or the name of the file; else the first that is free."""
    if found := _IN_NAME.search(path.name):
        return int(found[1])
    if capture.rank is not None:
        return capture.rank
    return next(rank for rank in range(len(taken) + 1) if rank not in taken)


def _named(head: bytes, rank: int) -> bytes:
    """The beginning of a trace, with its rank."""
    return head.replace(b"{", b'{\n  "distributedInfo": {"rank": %d},' % rank, 1)


def _written(file: BinaryIO, head: bytes, target: Folder, name: str) -> Path:
    with target.stream(name) as out, gzip.GzipFile("", "wb", 6, out, mtime=0) as packed:
        packed.write(head)
        while block := file.read(_BLOCK_BYTES):
            packed.write(block)
    return target.path / name


def _opened(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path)) if packed else path.open("rb")
