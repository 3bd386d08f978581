"""Waiting to be woken: a socket of this process, over which torch.profiler is switched on for a window. Until somebody
comes, one thread sleeps in accept(2), and nothing else is done.

A wake is one connection. In comes one message: a line of JSON, what to record, and with it the descriptor of the folder
for the files (so it may lie where this process could not open it). Out go lines: `ready` when it records, or will with
the next step; `done` when its files are whole; `no WHY`. A line `stop` ends the recording, the end of the connection
drops it. Of what comes, words and numbers that are known are taken, and nothing else."""

from __future__ import annotations

import _thread
import json
import os

from . import boot, diary

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .profiler import Profiler

REQUEST_BYTES = 1 << 14
_LOOK_S = 0.05
_SILENCE_S = 10.0
"""How long one who has connected may take to say what is wanted."""
_DEFAULTS: dict[str, Any] = {
    "activities": None, "shapes": True, "stacks": False, "memory": False, "flops": False, "history": 0,
    "max_s": 60.0, "max_rss_bytes": 1 << 30, "by_time_max_rss_bytes": 1 << 30, "skip": None, "steps": 0,
}  # fmt: skip
"""What may be asked for (collectors/torch.py), with the least that is recorded where it is not."""

_folder: str | None = None
_listening: Any = None
_path: str | None = None


def listen(folder: str | None = None) -> None:
    """Opens this process's socket, `<folder>/<pid>.sock`; the folder is the last time's where none is given."""
    global _folder, _listening, _path
    import _socket  # not socket: that one may have been replaced by something that wants its own loop

    _folder = folder or _folder
    if _listening is not None or _folder is None:
        return
    listening = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    path = f"{_folder}/{os.getpid()}.sock"
    try:
        _remove(path)  # of a process that had this number before
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(4)
    except OSError:  # the folder has gone
        listening.close()
        return
    _listening, _path = listening, path
    _thread.start_new_thread(_wait, (listening,))


def forked() -> None:
    """In a child that was forked off: the socket is its parent's."""
    global _listening, _path
    if _listening is not None:
        _listening.close()
    _listening = _path = None


def close() -> None:
    """The process ends."""
    if _path is not None and _listening is not None:
        _remove(_path)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


# ---------------------------------------------------------------- the thread


def _wait(listening: Any) -> None:
    import _socket

    while True:
        try:
            fd, _ = listening._accept()
        except OSError:  # the program has closed all descriptors: nobody can come any more
            return
        connection = _socket.socket(fileno=fd)
        try:
            if _may_come(connection):
                _serve(connection)
        except Exception as error:
            diary.trouble("a wake", error)
        finally:
            connection.close()
            diary.forget()


def _may_come(connection: Any) -> bool:
    """The user of this process, or root."""
    import _socket

    pid_uid_gid = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(pid_uid_gid[4:8], "little" if _is_little() else "big") in (0, os.geteuid())


def _is_little() -> bool:
    import sys

    return sys.byteorder == "little"


def _serve(connection: Any) -> None:
    connection.settimeout(_SILENCE_S)
    text, folder = _request(connection)
    try:
        wish = _understood(text)
        if folder is None or wish is None:
            _say(connection, "no it was not asked in words that are known here")
            return
        wish["dir"] = f"/proc/self/fd/{folder}"
        boot.sign_in(wish["dir"])
        _record(connection, wish)
    finally:
        if folder is not None:
            os.close(folder)


def _request(connection: Any) -> tuple[bytes, int | None]:
    """The message, and the one descriptor that has come with it."""
    import _socket

    room = _socket.CMSG_SPACE(4 * 8)
    text, extra, _, _ = connection.recvmsg(REQUEST_BYTES, room, _socket.MSG_CMSG_CLOEXEC)
    fds = [
        int.from_bytes(data[at : at + 4], "little" if _is_little() else "big")
        for level, kind, data in extra
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for at in range(0, len(data) - len(data) % 4, 4)
    ]
    for fd in fds[1:]:
        os.close(fd)
    return text, fds[0] if fds else None


def _understood(text: bytes) -> dict[str, Any] | None:
    """What is asked for, as far as it is known here; None for anything else."""
    try:
        asked = json.loads(text.decode("ascii"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(asked, dict):
        return None
    wish = dict(_DEFAULTS)
    for name, default in _DEFAULTS.items():
        value = asked.get(name, default)
        if not _fits(name, value):
            return None
        wish[name] = value
    return wish


def _fits(name: str, value: Any) -> bool:
    if name == "activities":
        return value is None or (isinstance(value, list) and bool(value) and all(v in ("cpu", "cuda") for v in value))
    if name == "skip":
        return value is None or (type(value) is int and 0 <= value < 1 << 40)
    if isinstance(_DEFAULTS[name], bool):
        return isinstance(value, bool)
    return type(value) in (int, float) and 0 <= value < 1 << 40 and (name == "max_s" or type(value) is int)


def _record(connection: Any, wish: dict[str, Any]) -> None:
    from . import training

    window = training.window_now()
    if window is None:
        _say(connection, "no torch has not been imported to its end")
        return
    connection.settimeout(_LOOK_S)
    profiler: Profiler = window.wake(wish)
    waits = wish["skip"] is not None
    told = wanted = False
    while not profiler.is_over():
        if not told and (waits or profiler.is_on()):
            told = _say(connection, "ready")
        word = _heard(connection)
        if word == "gone":
            window.drop(profiler)
            return
        if word == "stop" and not wanted:
            wanted = True
            profiler.end()
    _say(connection, "done")


def _heard(connection: Any) -> str:
    """`stop`; `gone` at the connection's end; nothing where nothing was said for a moment."""
    import _socket

    try:
        text: bytes = connection.recv(64)
    except _socket.timeout:
        return ""
    except OSError:
        return "gone"
    if not text:
        return "gone"
    return "stop" if b"stop\n" in text else ""


def _say(connection: Any, line: str) -> bool:
    try:
        connection.sendall((line + "\n").encode())
    except OSError:  # gone: the next look at it tells
        pass
    return True
