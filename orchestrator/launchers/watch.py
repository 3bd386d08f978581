"""The ranks of a job while it runs: who they are, what they have started, how each has ended."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator import launching, process
from orchestrator.model import RankSeen

OFTEN_S, SELDOM_S = 0.1, 1.0
"""How long after a look at the processes the next one comes: while ranks are still to be expected, and later."""
MOST = 4096
"""So many are followed; a job of more on one host is no job of ranks."""


@dataclass
class _Life:
    seen: RankSeen
    end: process.Onlooker


class Watch:
    """Looks at the tree below a process for those that a launcher has given a number. What profrun itself is told of
    being a rank is another job's."""

    def __init__(self, told: int | None = None, env: Mapping[str, str] | None = None, *, is_rank: bool = False) -> None:
        self._told = told
        """How many there will be on this host, as the command says."""
        self._is_rank = is_rank
        """What is followed is one rank of a job: how many its host has is not for it to say."""
        self._ours = launching.place_of(os.environ if env is None else env)
        self._images: dict[tuple[int, ...], launching.Place | None] = {}
        """What each program said that was looked at; None: of no rank, or one that only starts others."""
        self._here: int | None = None
        self._lives: list[_Life] = []
        self._below: dict[int, int] = {}
        """The rank of each process that a rank has started, by pid."""
        self._next_s = 0.0

    @property
    def expected(self) -> int | None:
        """How many there are to be on this host: as the ranks say themselves, else the command, else all of the job."""
        if self._is_rank:
            return None
        size = max((life.seen.world_size or 0 for life in self._lives), default=0)
        return self._here or self._told or size or None

    # ------------------------------------------------------------ while it runs

    def look(self, root: int, now_ns: int, *, at_once: bool = False) -> list[RankSeen]:
        """Takes note of those that are new and of those that have ended; gives back the latter. It looks at the
        processes only when it is time again."""
        ended = list(self._ends(now_ns))
        if at_once or time.monotonic() >= self._next_s:
            self._meet(root, now_ns)
            waiting = len(self._lives) < (self.expected or 0)
            self._next_s = time.monotonic() + (OFTEN_S if waiting else SELDOM_S)
        return ended

    def filenos(self) -> list[int]:
        """What becomes readable when a rank ends."""
        found = (life.end.fileno() for life in self._lives if life.seen.ended_ns is None)
        return [fd for fd in found if fd is not None]

    def living(self) -> set[int]:
        """The ranks that have not ended."""
        return {life.seen.rank for life in self._lives if life.seen.ended_ns is None}

    def rank_of(self, pid: int) -> int | None:
        """That of a process, also of one that a rank has started; None where none is known."""
        known = next((life.seen.rank for life in reversed(self._lives) if life.seen.pid == pid), None)
        return self._below.get(pid) if known is None else known

    def is_ours(self, rank: int, local_rank: int | None, size: int | None) -> bool:
        """Whether that is the place that profrun itself has been given: what it starts has inherited it. A launcher
        that it starts gives the same number, and with it a local one or another size."""
        return launching.numbers(self._ours) == (rank, local_rank, size)

    def close(self, now_ns: int) -> tuple[RankSeen, ...]:
        """All that were seen, by rank and start; nobody is followed any more."""
        list(self._ends(now_ns))
        for life in self._lives:
            life.end.close()
        below: dict[int, list[int]] = {}
        for pid, rank in self._below.items():
            below.setdefault(rank, []).append(pid)
        found = sorted((life.seen for life in self._lives), key=lambda one: (one.rank, one.started_ns or 0))
        return tuple(replace(one, started=tuple(below.get(one.rank, ()))) for one in found)

    # ------------------------------------------------------------ looking

    def _ends(self, now_ns: int) -> Iterator[RankSeen]:
        for life in self._lives:
            if life.seen.ended_ns is None and life.end.ended():
                life.seen = replace(life.seen, ended_ns=now_ns, exit=life.end.exit())
                yield life.seen

    def _meet(self, root: int, now_ns: int) -> None:
        """Down to the ranks, and for what they have started further down."""
        queue: list[tuple[int, int | None]] = [(root, None)]
        visited = {os.getpid()}
        while queue and len(visited) < MOST:
            pid, above = queue.pop()
            if pid in visited:
                continue
            visited.add(pid)
            place = self._place(pid)
            rank = above if place is None else launching.numbers(place)[0]
            if place is not None and rank != above:
                self._note(pid, place, now_ns)
            elif above is not None:
                self._below.setdefault(pid, above)
            queue += [(child, rank) for child in process.children(pid)]

    def _place(self, pid: int) -> launching.Place | None:
        """What that program says of a rank, read once; None for what is none, and while it is amid its exec."""
        image = process.image(pid)
        if image is None:
            return None
        if image not in self._images:
            argv, env = process.argv_of(pid), process.environ_of(pid)
            if not argv or env is None:
                return None
            place, here = launching.place_of(env), launching.ranks_here(env)
            is_none = (
                place[0] is None or place == self._ours or launching.wrapper_of(argv) in launching.LAUNCHERS.values()
            )
            self._images[image] = None if is_none else place
            self._here = self._here if is_none else max(self._here or 0, here or 0) or None
        return self._images[image]

    def _note(self, pid: int, place: launching.Place, now_ns: int) -> None:
        born_ns = process.born_ns(pid)
        if any(life.seen.pid == pid and life.seen.ended_ns is None for life in self._lives):
            return
        rank, local_rank, size = launching.numbers(place)
        if rank is not None:
            seen = RankSeen(rank, local_rank, size, os.uname().nodename, pid, born_ns or now_ns)
            self._lives.append(_Life(seen, process.Onlooker(pid)))


def name_of_rank(pid: int) -> str:
    """What names the files of a rank's process among those of all ranks and hosts, as the end of a word; empty for what
    is no rank: `node1-rank3-pid4711.`"""
    rank = launching.numbers(launching.place_of(process.environ_of(pid) or {}))[0]
    host = re.sub(r"[^A-Za-z0-9_-]", "-", os.uname().nodename)
    return "" if rank is None else f"{host}-rank{rank}-pid{pid}."
