"""The meeting place of a run on several hosts, a program of its own beside the leading profrun: it tells the time, and
passes on what is said.

It prints `PORT TOKEN` once it listens on all interfaces. Whoever connects says `TOKEN ROOM`; whoever does not is sent
away. Lines after that:

    t                asks for the time: answered at once with `t NANOSECONDS`, this host's clock since the epoch
    say ROOM WORDS   passes `WORDS` on to all in that room, also to those who come later
    done COUNT       is done with its part; when so many in its room are, all in it hear `done`

A connection that ends is how each side learns that the other is gone."""

from __future__ import annotations

import contextlib
import errno
import resource
import secrets
import selectors
import socket
import time
from dataclasses import dataclass, field

LONGEST_LINE_BYTES = 4096
"""Whoever sends more without an end of line is sent away."""
STRANGERS_S = 10.0
"""Whoever has not said the token by then is sent away."""
PAUSE_S = 0.5
"""So long nobody is let in where there are no more descriptors."""


@dataclass(eq=False)
class _Guest:
    """One connection. room: None until it has said the token."""

    socket: socket.socket
    room: str | None = None
    rest: bytes = b""
    since: float = field(default_factory=time.monotonic)


@dataclass
class _Room:
    guests: list[_Guest] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    done: int = 0


class Hub:
    """All connections, served by one thread: an answer waits for nobody."""

    def __init__(self) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            self._listening = socket.create_server(("", 0), family=family, backlog=1024, dualstack_ipv6=dual)
        except OSError:  # IPv6 is compiled in and switched off
            self._listening = socket.create_server(("", 0), backlog=1024)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self.token = secrets.token_hex(16)
        self._rooms: dict[str, _Room] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._strangers: list[_Guest] = []
        self._open_at: float | None = None

    def serve(self, timeout_s: float | None = None) -> None:
        """Answers whoever has written by now, or first writes within that time."""
        if self._open_at is not None:
            timeout_s = PAUSE_S if timeout_s is None else min(timeout_s, PAUSE_S)
            self._open_again()
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._let_in()
            else:
                self._hear(key.data)
        for guest in [one for one in self._strangers if time.monotonic() - one.since > STRANGERS_S]:
            self._see_off(guest)

    def close(self) -> None:
        """Ends all connections."""
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._listening.close()
        self._selector.close()

    def _let_in(self) -> None:
        try:
            connection, _ = self._listening.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause()  # whoever knocks stays at the door, and would wake us without end
            return
        with contextlib.suppress(OSError):
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = _Guest(connection)
            self._strangers.append(guest)
            self._selector.register(connection, selectors.EVENT_READ, guest)

    def _pause(self) -> None:
        self._selector.unregister(self._listening)
        self._open_at = time.monotonic() + PAUSE_S

    def _open_again(self) -> None:
        if self._open_at is not None and time.monotonic() >= self._open_at:
            self._open_at = None
            self._selector.register(self._listening, selectors.EVENT_READ)

    def _hear(self, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._see_off(guest)
            return
        *lines, guest.rest = (guest.rest + data).split(b"\n")
        for line in lines:
            self._obey(guest, line.decode("utf-8", "replace"))
        if len(guest.rest) > LONGEST_LINE_BYTES:
            self._see_off(guest)

    def _obey(self, guest: _Guest, line: str) -> None:
        word, _, rest = line.partition(" ")
        if guest.room is None:
            self._greet(guest, word, rest)
        elif word == "t":
            self._tell(guest, f"t {time.time_ns()}")
        elif word == "say":
            name, _, words = rest.partition(" ")
            room = self._rooms.setdefault(name, _Room())
            room.said.append(words)
            for other in list(room.guests):
                self._tell(other, words)
        elif word == "done" and rest.isdigit():
            room = self._rooms[guest.room]
            room.done += 1
            if room.done == int(rest):
                for other in list(room.guests):
                    self._tell(other, "done")

    def _greet(self, guest: _Guest, token: str, name: str) -> None:
        if not secrets.compare_digest(token.encode(), self.token.encode()) or not name:
            self._see_off(guest)
            return
        self._strangers.remove(guest)
        guest.room = name
        room = self._rooms.setdefault(name, _Room())
        room.guests.append(guest)
        for words in room.said:
            self._tell(guest, words)

    def _tell(self, guest: _Guest, line: str) -> None:
        try:
            guest.socket.sendall(f"{line}\n".encode())
        except OSError:  # gone, or it does not read: nobody else shall wait for it
            self._see_off(guest)

    def _see_off(self, guest: _Guest) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(guest.socket)
        guest.socket.close()
        for guests in (self._strangers, self._rooms[guest.room].guests if guest.room in self._rooms else []):
            if guest in guests:
                guests.remove(guest)


def main() -> None:
    """Serves until it is ended by a signal, as it is when profrun goes."""
    with contextlib.suppress(OSError, ValueError):  # a descriptor for each task
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    hub = Hub()
    print(hub.port, hub.token, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            hub.serve(STRANGERS_S)


if __name__ == "__main__":
    main()
