"""A log of `strace -f -ttt -T -y` of 1 GB: its calls by thread, and the files that they were about."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from parsebench.frame import PYTHON, Input, Look, Ours, Unable, digest, generated

WORK = """
import os, pathlib, subprocess
from concurrent.futures import ThreadPoolExecutor
def size(path):
    try:
        return len(path.read_bytes())
    except OSError:
        return 0
files = sorted(pathlib.Path(os.__file__).parent.glob("*.py"))[:200]
for path in files * 40:
    size(path)
with ThreadPoolExecutor(2) as pool:
    list(pool.map(size, files))
for folder in ("/usr/bin", "/usr/lib", "/etc", "/nowhere"):
    subprocess.run(["sh", "-c", f"ls -l {folder} | head -200 | sort | uniq -c | wc -l"])
"""


def generate(out: Path, scale: float) -> None:
    """Of one real recording, many copies."""
    sample = out.parent.parent / "sample.strace"
    if not sample.exists():
        if not shutil.which("strace"):
            raise Unable("strace is not installed: a recording of it is what the log is made of")
        argv = ["strace", "-f", "-ttt", "-T", "-y", "-o", str(sample), PYTHON, "-c", WORK]
        subprocess.run(argv, check=True, capture_output=True)
    generated("gen_strace.py", sample, out, max(1.0, 1000 * scale))


def ours(path: Path) -> Look:
    from orchestrator.formats.strace import read_trace

    trace = read_trace(path)
    calls, paths = trace.syscalls.columns, trace.paths.columns
    figures = ("thread", "name", "count", "errors", "total_ns", "min_ns", "max_ns")
    return lambda: {
        "calls": trace.calls,
        "threads": len(set(calls["thread"])),
        "ns": sum(calls["total_ns"]),
        "by thread and call": digest(zip(*(calls[name] for name in figures), strict=True)),
        "files": len(paths["path"]),
        "by file": digest(
            zip(*(paths[name] for name in ("path", "count", "errors", "total_ns", "bytes")), strict=True)
        ),
        "unreturned": trace.unreturned,
    }


LINE = re.compile(
    rb"(\d+) +\d+\.\d+ (?:(\w+)\(|<\.\.\. (\w+) resumed>)(.*)(?: <unfinished \.\.\.>|\) += (.+) <(\d+\.\d{6})>)\n"
)
FD = re.compile(rb"\d+<([^<>]*(?:->[^<>]*)?)(?:<[^<>]*>)?>")
STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"')
STRING_AT = re.compile(rb'(?:AT_FDCWD|\d+)(?:<([^<>]*)>)?, "((?:[^"\\]|\\.)*)"')
OPEN = {b"openat", b"open", b"creat"}
AT = {b"openat", b"newfstatat", b"statx", b"faccessat", b"faccessat2", b"readlinkat", b"unlinkat", b"mkdirat"}
BY_NAME = set(
    b"access chdir chmod chown chroot creat execve getcwd getxattr lchown lgetxattr link listxattr lstat mkdir mknod "
    b"mount open readlink removexattr rename rmdir setxattr stat statfs symlink truncate unlink".split()
)
MOVES = {
    b"read",
    b"write",
    b"pread64",
    b"pwrite64",
    b"readv",
    b"writev",
    b"sendto",
    b"recvfrom",
    b"sendmsg",
    b"recvmsg",
}


def peer(path: Path) -> Look:
    """One regular expression for each line, halves joined by thread, and dicts."""
    calls: dict[tuple[bytes, bytes], list[int]] = {}
    files: dict[bytes, list[Any]] = {}
    begun: dict[bytes, bytes] = {}
    other = 0
    with path.open("rb", buffering=1 << 20) as log:
        for line in log:
            found = LINE.fullmatch(line)
            if not found:
                other += exited(line, begun)
                continue
            thread, whole, resumed, args, result, seconds = found.groups()
            if result is None:
                begun[thread] = args
                continue
            if resumed:
                args = begun.pop(thread, b"") + args
            name, us = whole or resumed, int(seconds.replace(b".", b""))
            failed = result.startswith((b"-1 E", b"? E"))
            sums = calls.get((thread, name))
            if sums is None:
                sums = calls[thread, name] = [0, 0, 0, us, us]
            sums[0] += 1
            sums[1] += failed
            sums[2] += us
            if us < sums[3]:
                sums[3] = us
            if us > sums[4]:
                sums[4] = us
            file = named(name, args, result)
            if file:
                sums = files.get(file)
                if sums is None:
                    sums = files[file] = [0, 0, 0, None]
                sums[0] += 1
                sums[1] += failed
                sums[2] += us
                if name in MOVES:
                    sums[3] = (sums[3] or 0) + (int(result) if result.isdigit() else 0)
    return lambda: {
        "calls": sum(sums[0] for sums in calls.values()),
        "threads": len({thread for thread, _ in calls}),
        "ns": 1000 * sum(sums[2] for sums in calls.values()),
        "by thread and call": digest(call_rows(calls)),
        "files": len(files),
        "by file": digest(
            (name.decode("utf-8", "replace"), *sums[:2], 1000 * sums[2], sums[3]) for name, sums in files.items()
        ),
        "unreturned": other + len(begun),
    }


def exited(line: bytes, begun: dict[bytes, bytes]) -> int:
    """How many calls are known by this line not to return."""
    unfinished = begun.pop(line.split(None, 1)[0], None) is not None if b"+++ " in line or b"= ?" in line else False
    return 1 if line.rstrip().endswith(b"= ?") else int(unfinished)


def named(name: bytes, args: bytes, result: bytes) -> bytes | None:
    """The file that a call is about: what it has opened, the file of a descriptor, or one by its name."""
    if name in OPEN and (opened := FD.fullmatch(result)):
        return opened[1]
    if name in AT and (found := STRING_AT.match(args)):
        folder, last = found.groups()
        if not folder or last.startswith(b"/"):
            return last
        return folder.removesuffix(b"/") + b"/" + last if last else folder
    found = FD.match(args) or (STRING.match(args) if name in BY_NAME else None)
    return found[1] if found else None


def call_rows(calls: dict[tuple[bytes, bytes], list[int]]) -> Iterator[Iterable[Any]]:
    for (thread, name), (count, errors, *us) in calls.items():
        yield int(thread), name.decode(), count, errors, *(1000 * one for one in us)


INPUTS = (
    Input(
        "strace",
        "1 GB",
        "trace.log",
        generate,
        "a careful Python `re` loop",
        peer,
        (Ours("calls by thread, files, the slowest calls", ours, 3.0, 150_000_000),),
    ),
)
