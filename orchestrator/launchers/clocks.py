"""A line to the run's meeting place (standalone/hub.py), and what it is for first of all: how far this host's clock is
from that of the host that leads."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ROUND_TRIPS = 20
"""The shortest of so many counts: the others have waited somewhere on their way."""
CONNECT_S = 3.0
ANSWER_S = 2.0
GONE = "gone"
"""Heard once when the other side has ended."""


MOST_DRIFT = 1e-3
"""Clocks that are slewed into place move by 500 ppm at most (adjtimex(2), and so ntpd and chronyd by default); two of
them, against each other."""


@dataclass(frozen=True)
class Reading:
    """One comparison of clocks. at_ns: by this host's clock; offset_ns: to be added to it for that of the host that
    leads; error_ns: half the round trip, which bounds the error, however unlike its two ways are."""

    at_ns: int
    offset_ns: int
    error_ns: int


@dataclass(frozen=True)
class Offset:
    """What is to be added to a time t of a host's clock: offset_ns + drift * (t - at_ns)."""

    at_ns: int
    offset_ns: int
    error_ns: int
    drift: float = 0.0
    was_set: bool = False
    """One of the two clocks was set meanwhile; nobody knows when."""


def between(readings: Sequence[Reading], middle_ns: int) -> Offset | None:
    """The offset at the middle of a pass from the readings at its start and end; None without any.

    Between the two it is taken to grow evenly. What differs by less than the readings' own errors is no drift, and what
    grows faster than clocks drift is a clock that was set: all of it is the error then."""
    if not readings:
        return None
    first, last = readings[0], readings[-1]
    error_ns = max(first.error_ns, last.error_ns)
    span_ns, grown_ns = last.at_ns - first.at_ns, last.offset_ns - first.offset_ns
    if span_ns <= 0 or abs(grown_ns) <= first.error_ns + last.error_ns:
        best = min((first, last), key=lambda one: one.error_ns)
        return Offset(middle_ns, best.offset_ns, error_ns)
    drift = grown_ns / span_ns
    if abs(grown_ns) - first.error_ns - last.error_ns > MOST_DRIFT * span_ns:
        return Offset(middle_ns, first.offset_ns, abs(grown_ns) + error_ns, was_set=True)
    return Offset(middle_ns, first.offset_ns + round(drift * (middle_ns - first.at_ns)), error_ns, drift)


def addresses(hub: Mapping[str, Any]) -> list[str]:
    """Where to look for the hub from here: on this host only if the leader is on it, as a stranger may listen there."""
    return [*hub["addresses"], *(["127.0.0.1"] if hub["hostname"] == socket.gethostname() else [])]


class Line:
    """A connection to the hub. `fileno` is readable when there is something to be heard."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._rest, self._lines = connection, b"", list[str]()
        self._open = True

    @classmethod
    def to(cls, addresses: Sequence[str], port: int, token: str, room: str) -> Line | None:
        """The first of the addresses that answers; None where none does."""
        for address in dict.fromkeys(addresses):
            with contextlib.suppress(OSError):
                connection = socket.create_connection((address, port), CONNECT_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line = cls(connection)
                line.say(f"{token} {room}")
                if line._time() is not None:
                    return line
                connection.close()
        return None

    def say(self, text: str) -> None:
        """Sends one line; where nobody is there any more, that is heard, not raised."""
        with contextlib.suppress(OSError):
            self._socket.sendall(f"{text}\n".encode())

    def heard(self) -> list[str]:
        """The lines that have come since the last call; waits for none. The last one there will ever be is `gone`."""
        while self._open and select.select([self._socket], [], [], 0)[0]:
            self._receive()
        found, self._lines = self._lines, []
        return found

    def reading(self) -> Reading | None:
        """Compares the clocks; None where no answer comes."""
        best = None
        for _ in range(ROUND_TRIPS):
            before_ns = time.time_ns()
            there_ns, after_ns = self._time(), time.time_ns()
            if there_ns is None:
                return best
            trip_ns, middle_ns = after_ns - before_ns, (before_ns + after_ns) // 2
            if trip_ns >= 0 and (best is None or trip_ns < 2 * best.error_ns):
                best = Reading(middle_ns, there_ns - middle_ns, (trip_ns + 1) // 2)
        return best

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._open = False
        self._socket.close()

    def _time(self) -> int | None:
        """The other side's clock; other lines that come meanwhile are kept."""
        self.say("t")
        deadline = time.monotonic() + ANSWER_S
        while self._open and (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._socket], [], [], left_s)[0]:
                self._receive()
            answer = next((line for line in self._lines if line.startswith("t ")), None)
            if answer is not None:
                self._lines.remove(answer)
                return int(answer[2:])
        return None

    def _receive(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self._open = False
            self._lines.append(GONE)
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._lines += [line.decode("utf-8", "replace") for line in lines]
