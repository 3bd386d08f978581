"""Processes of profrun that start warm: forked from a Python that has loaded the large packages which profrun uses, and
none of profrun. To load them again for each of hundreds of runs would be a third of the tests' time.

As a program (`warm.py FD`) it is that Python; requests come in through the socket."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TextIO

PACKAGES = (
    "jinja2", "msgspec", "pandas", "pyarrow.parquet", "pydantic", "rich.console", "rich.table",
    "sqlalchemy.dialects.sqlite", "yaml",
)  # fmt: skip
OF_THE_START = ("PYTHON", "LD_", "LC_", "LANG")
"""Variables of these beginnings are read when a program starts: it has to start with them."""
MAX_BYTES = 1 << 20


# ---------------------------------------------------------------- who asks


def fits(env: Mapping[str, str]) -> bool:
    """Whether a process in this environment may be forked."""
    started, wanted = ({k: v for k, v in e.items() if k.startswith(OF_THE_START)} for e in (os.environ, env))
    return started == wanted


def run(
    module: str,
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    stdin: str,
    coverage: str | None,
    limit_s: float,
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE WORDS` to its end, as subprocess.run has it."""
    pipes = [os.pipe() for _ in range(4)]
    (stdin_read, stdin_write), (out_read, out_write), (err_read, err_write), (told_read, told_write) = pipes
    asked = {"module": module, "words": list(words), "cwd": str(cwd), "env": dict(env), "coverage": coverage}
    theirs = [stdin_read, out_write, err_write, told_write]
    socket.send_fds(_warm(), [json.dumps(asked).encode()], theirs)
    for fd in theirs:
        os.close(fd)
    said: dict[int, str] = {}
    files = [os.fdopen(fd, errors="surrogateescape") for fd in (out_read, err_read, told_read)]
    pid = int(files[2].readline())
    readers = [threading.Thread(target=_read_all, args=(file, said), daemon=True) for file in files]
    for reader in readers:
        reader.start()
    with contextlib.suppress(BrokenPipeError), os.fdopen(stdin_write, "w", errors="surrogateescape") as to:
        to.write(stdin)
    give_up_s = time.monotonic() + limit_s
    for reader in readers:
        reader.join(max(0.0, give_up_s - time.monotonic()))
    if any(reader.is_alive() for reader in readers):
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired([module, *words], limit_s)
    return subprocess.CompletedProcess([module, *words], int(said[told_read]), said[out_read], said[err_read])


def _read_all(file: TextIO, said: dict[int, str]) -> None:
    with file:
        said[file.fileno()] = file.read()


@cache
def _warm() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_BYTES)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # threads and forks don't go together
    with theirs:
        subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], env=env, pass_fds=[theirs.fileno()])
    return ours


# ---------------------------------------------------------------- the warm Python


def main() -> None:
    for name in PACKAGES:
        __import__(name)
    requests = socket.socket(fileno=int(sys.argv[1]))
    while True:
        text, fds, _, _ = socket.recv_fds(requests, MAX_BYTES, 4)
        if not text:
            return
        pid = os.fork()
        if pid == 0:
            requests.close()
            _part(fds)
            _become(json.loads(text), fds[:3])
            return
        for fd in fds:
            os.close(fd)
        os.waitpid(pid, 0)


def _part(fds: Sequence[int]) -> None:
    """Goes on as a child of its own, whose number and exit status it tells; whoever has forked it has not to wait."""
    if os.fork():
        os._exit(0)
    pid = os.fork()
    if pid == 0:
        os.close(fds[3])
        return
    for fd in fds[:3]:
        os.close(fd)
    os.write(fds[3], b"%d\n" % pid)
    os.write(fds[3], b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


def _become(request: dict[str, Any], fds: list[int]) -> None:
    """Runs the module as a Python does that has just started."""
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = str(Path.cwd())
    tempfile.tempdir = None
    time.tzset()
    sys.argv = ["", *request["words"]]
    if request["coverage"]:
        _measure(request["coverage"])
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


def _measure(data: str) -> None:
    import atexit

    from coverage import Coverage

    settings = str(Path(__file__).parent.parent / "pyproject.toml")
    measured = Coverage(data_file=data, data_suffix=True, config_file=settings)
    measured.start()
    atexit.register(lambda: (measured.stop(), measured.save()))


if __name__ == "__main__":
    main()
