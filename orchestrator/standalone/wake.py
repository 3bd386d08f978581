"""Stand-alone (`python -I -S wake.py DIR PIDS SETTINGS ...`): wakes an armed program and brings home what it records.

DIR gets the files of the program's processes, PIDS are those that are meant, with commas between, SETTINGS is the JSON
that they get (inject/armed.py has the protocol). Prints `recording` when every process that listens records, or will
with its next step. By steps it ends when all of them have theirs; by time it ends them when it gets SIGINT or SIGTERM.
Whoever of them it has left gives up what it has.

`--folder FOLDER` holds the sockets. `--let-in PID=FOLDER`: the socket of that process will be there in a moment.
"""

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import time
from pathlib import Path

LET_IN_S = 15.0
_LINE_BYTES = 1 << 12
_KEPT = (".facts.json", ".averages.json", ".memory.pickle", ".trace.json", ".diary")
"""What is brought home, by the ends of the files' names."""


class Sleeper:
    """One process of the program."""

    def __init__(self, pid: int, connection: socket.socket, place: Path) -> None:
        self.pid, self.connection, self.place = pid, connection, place
        self.is_ready = self.is_over = False
        self.why: str | None = None
        self._rest = b""

    def fileno(self) -> int:
        return self.connection.fileno()

    def hear(self) -> None:
        """Takes what it says; its silence for ever is an end, too."""
        try:
            text = self.connection.recv(_LINE_BYTES)
        except OSError:
            text = b""
        *lines, self._rest = (self._rest + text)[-_LINE_BYTES:].split(b"\n")
        for line in lines:
            word, _, rest = line.decode("ascii", "replace").partition(" ")
            self.is_ready = self.is_ready or word == "ready"
            self.is_over = self.is_over or word in ("done", "no")
            self.why = rest if word == "no" else self.why
        if not text and not self.is_over:
            self.is_over, self.why = True, "it ended, or its thread did, before it had written what it recorded"

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.connection.sendall(b"stop\n")


def main() -> int:
    """The exit status: 1 where nothing could be woken."""
    options = _options()
    asked = _ask_signals()
    found = [sleeper for pid in options.pids if (sleeper := _woken(pid, options))]
    if not found:
        said = "was started without it: its Python ignores PYTHONPATH (-E, -I, -S), or it has not imported torch yet"
        _tell(f"no process of the program listens: it {said}")
        return 1
    _follow(found, asked)
    for sleeper in found:
        _bring_home(sleeper, Path(options.dir))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("dir")
    parser.add_argument("pids", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("settings")
    parser.add_argument("--folder", default="")
    parser.add_argument("--let-in", action="append", default=[])
    options = parser.parse_args()
    options.let_in = {int(pid): folder for pid, _, folder in (text.partition("=") for text in options.let_in)}
    return options


def _ask_signals() -> int:
    """A descriptor that becomes readable with a signal that asks for the end."""
    reading, writing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writing)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return reading


def _tell(text: str) -> None:
    print("wake:", text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------- waking


def _woken(pid: int, options: argparse.Namespace) -> Sleeper | None:
    """The process, told what to record; None where it has no socket, or does not answer."""
    path = _awaited(pid, options)
    if path is None:
        return None
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        owner = Path(f"/proc/{pid}").stat()
        if _peer_uid(connection) != owner.st_uid:
            _tell(f"the socket of process {pid} is another user's")
            return None
        place = _place(options.dir, pid, owner)
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            socket.send_fds(connection, [options.settings.encode() + b"\n"], [folder])
        finally:
            os.close(folder)
    except OSError as error:
        _tell(f"process {pid} can't be woken: {error.strerror or error}")
        return None
    return Sleeper(pid, connection, place)


def _awaited(pid: int, options: argparse.Namespace) -> str | None:
    until = time.monotonic() + (LET_IN_S if pid in options.let_in else 0.0)
    while (path := _socket_of(pid, options.let_in.get(pid, options.folder))) is None:
        if time.monotonic() >= until:
            if pid in options.let_in:
                _tell(f"process {pid} has not let profrun's part in within {LET_IN_S:g} s")
            return None
        time.sleep(0.02)
    return path


def _socket_of(pid: int, folder: str) -> str | None:
    """By its pid as it counts itself, and in the file system that it sees: it may be in a container."""
    own = _own_pid(pid)
    paths = (f"{folder}/{own}.sock", f"/proc/{pid}/root{folder}/{own}.sock")
    for path in paths:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                return path
    return None


def _own_pid(pid: int) -> str:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("NSpid:"):
                return line.split()[-1]
    return str(pid)


def _peer_uid(connection: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _place(directory: str, pid: int, owner: os.stat_result) -> Path:
    """A folder that the process may write to: it is let in by its descriptor, whatever lies above."""
    place = Path(directory, "woken", str(pid))
    place.mkdir(mode=0o700, parents=True)
    if owner.st_uid != os.geteuid():
        os.chown(place, owner.st_uid, owner.st_gid)
    return place


# ---------------------------------------------------------------- following


def _follow(sleepers: list[Sleeper], asked: int) -> None:
    """Until all of them have written what they have; a second signal leaves at once, and they drop it."""
    told, signals = False, 0
    while waiting := [sleeper for sleeper in sleepers if not sleeper.is_over]:
        if not told and all(sleeper.is_ready for sleeper in waiting):
            told = True
            print("recording", flush=True)
        readable = select.select([asked, *(sleeper.fileno() for sleeper in waiting)], [], [])[0]
        for sleeper in waiting:
            if sleeper.fileno() in readable:
                sleeper.hear()
        if asked in readable:
            signals += len(os.read(asked, 64))
            for sleeper in waiting:
                sleeper.stop()
        if signals > 1:
            return


def _bring_home(sleeper: Sleeper, directory: Path) -> None:
    """Moves its files, and only files: what lies there was made by somebody else's program."""
    sleeper.connection.close()
    if sleeper.why:
        _tell(f"process {sleeper.pid}: {sleeper.why}")
    for below in ("", "traces"):
        with contextlib.suppress(OSError):
            for path in sorted((sleeper.place / below).iterdir()):
                if path.name.endswith(_KEPT):
                    _move(path, directory / below / path.name)
    shutil.rmtree(sleeper.place, ignore_errors=True)
    with contextlib.suppress(OSError):
        sleeper.place.parent.rmdir()


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    source.rename(target)
    about = target.lstat()  # now that nobody else can put another one in its place
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
        target.unlink()
    elif about.st_uid != os.geteuid():
        os.chown(target, os.geteuid(), os.getegid(), follow_symlinks=False)


if __name__ == "__main__":
    sys.exit(main())
