"""The processes: a tree, each of which is followed until it is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from orchestrator.sampler.log import COLUMNS, Log, Number
from orchestrator.sampler.proc import cpu_ns, names, numbers, read

_THREADS_EVERY_NS, _MANY_EVERY_NS = 200_000_000, 1_000_000_000
MANY_THREADS = 64
"""What is counted by thread takes 30 us of reading for each: it is read no more often than this, and of a program with
many threads no more often than that."""
_PF_FORKNOEXEC = 0x40
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Stat:
    """What /proc/PID/stat says of a process. Raises LookupError when it is gone."""

    def __init__(self, pid: int) -> None:
        head, _, tail = read(f"/proc/{pid}/stat").rpartition(")")
        x = tail.split()
        if not x:
            raise LookupError(pid)
        self.name = head.partition("(")[2]
        self.ended = x[0] in "ZX"
        self.parent, self.is_fork = int(x[1]), bool(int(x[6]) & _PF_FORKNOEXEC)
        self.minor_faults, self.major_faults, self.threads = int(x[7]), int(x[9]), int(x[17])
        self.system_ns = int(x[12]) * _NS_PER_TICK
        self.used_ns = (int(x[11]) + int(x[12])) * _NS_PER_TICK
        self.waited_ns = (int(x[13]) + int(x[14])) * _NS_PER_TICK
        self.rss_bytes: int | None = int(x[21]) * _PAGE_BYTES
        self.started = int(x[19])
        self.image = (self.started, int(x[25]))
        """Changes with an exec: the second is the start of the stack, 0 in its first moment."""


class Threads:
    """What the kernel counts by thread, of one process: context switches, and the time in a queue for a processor. A
    thread that ends takes its own with it, so they are added up as they come."""

    def __init__(self) -> None:
        self._before: dict[str, list[int]] | None = None
        self._sums = [0, 0, 0]
        self._read_ns = -_MANY_EVERY_NS

    def read(self, pid: int, threads: Sequence[str]) -> list[Number]:
        """Voluntary and involuntary switches, and ns in the queue, since the first call; and of the main thread alone
        the ns in the queue since its start. None where it is too early for another reading."""
        every_ns = _MANY_EVERY_NS if len(threads) > MANY_THREADS else _THREADS_EVERY_NS
        if time.monotonic_ns() < self._read_ns + every_ns:
            return [None, None, None, None]
        self._read_ns = time.monotonic_ns()
        queued = {tid: _queue_ns(f"/proc/{pid}/task/{tid}/schedstat") for tid in threads}
        counts = {
            tid: [*_switches(f"/proc/{pid}/task/{tid}/status"), ns if ns is not None else 0]
            for tid, ns in queued.items()
        }
        for tid, now in counts.items():
            before = now if self._before is None else self._before.get(tid, [0, 0, 0])
            self._sums = [total + max(0, b - a) for total, a, b in zip(self._sums, before, now, strict=True)]
        self._before = counts
        known = any(ns is not None for ns in queued.values())
        return [*self._sums[:2], self._sums[2] if known else None, queued.get(str(pid))]


def _switches(path: str) -> list[int]:
    """Of one thread: the numbers of the last two lines; none when it is gone."""
    return [int(word) for word in read(path).split()[-3::2]] or [0, 0]


def _queue_ns(path: str) -> int | None:
    """For how long a thread was ready and no processor was free: the second number of its schedstat
    (Documentation/scheduler/sched-stats.rst). None when it is gone, or the kernel does not count it."""
    words = read(path).split()
    return int(words[1]) if len(words) == 3 else None


class Tree:
    """Processes and all that come from them, also when what lies between is gone.

    gated: the roots stand before their exec; nothing counts until then."""

    def __init__(self, roots: Iterable[int], log: Log, gated: bool, rank_names: Iterable[str] = ()) -> None:
        self._roots = tuple(roots)
        self._rank_names = tuple(rank_names)
        self._log = log
        self._gated = gated
        self._images: dict[int, tuple[int, int]] = {}
        self._unread = set(self._roots)
        """Those whose environment is still to be read."""
        self._threads: dict[int, Threads] = {}

    def read(self) -> dict[str, list[Number]]:
        """By process id the columns of `process`."""
        found: dict[str, list[Number]] = {}
        queue = list(self._known())
        for pid in queue:  # it grows meanwhile
            try:
                stat = Stat(pid)
            except LookupError:
                self._forget(pid)
                continue
            if self._gated and pid in self._roots and stat.is_fork:
                continue
            if self._notice(pid, stat) and stat.is_fork:
                stat.rss_bytes = None  # right after a vfork it is still its parent's
            self._read_environment(pid)
            threads = [] if stat.ended else names(f"/proc/{pid}/task")
            children = [int(x) for tid in threads for x in read(f"/proc/{pid}/task/{tid}/children").split()]
            queue += [child for child in children if child not in queue]
            found[str(pid)] = self._row(pid, stat, threads, len(children))
        return found

    def alive(self) -> bool:
        """Whether any of it still runs."""
        for pid in self._known():
            try:
                if not Stat(pid).ended:
                    return True
            except LookupError:
                continue
        return False

    def _known(self) -> dict[int, None]:
        return dict.fromkeys((*self._roots, *self._images))

    def _row(self, pid: int, stat: Stat, threads: list[str], children: int) -> list[Number]:
        used = cpu_ns(pid)
        cpu: list[Number] = [stat.used_ns if used is None else used, stat.waited_ns]
        if stat.ended:  # until its parent waits for it, its CPU time is nowhere else
            return [*cpu, *[None] * (len(COLUMNS["process"]) - len(cpu))]
        traffic = numbers(read(f"/proc/{pid}/io"), ("rchar", "wchar", "read_bytes", "write_bytes"), ":")
        counted = self._threads.setdefault(pid, Threads()).read(pid, threads)
        switches, queues = counted[:2], counted[2:]
        return [
            *cpu, stat.rss_bytes, stat.threads, children, *traffic, *switches, stat.minor_faults, stat.major_faults,
            stat.system_ns, *queues,
        ]  # fmt: skip

    def _notice(self, pid: int, stat: Stat) -> bool:
        """Writes down a new process, or that one has become another program; says whether there was such news."""
        before = self._images.get(pid)
        if before in (stat.image, (stat.started, 0)):
            self._images[pid] = stat.image
            return False
        same = before is not None and before[0] == stat.started
        if not same:
            self._forget(pid)
        self._images[pid] = stat.image
        self._unread.add(pid)
        self._log.write({"seen": pid, "parent": stat.parent, "name": stat.name, "exec": same})
        return True

    def _read_environment(self, pid: int) -> None:
        """Writes down what the environment says of a process's rank, and that of a root of the GPUs that it may use. It
        is empty for a moment in an exec, and for good where it is not ours to read."""
        text = read(f"/proc/{pid}/environ") if pid in self._unread else ""
        if not text:
            return
        self._unread.discard(pid)
        env = {name: value for name, _, value in (word.partition("=") for word in text.split("\0"))}
        rank = next((env[name] for name in self._rank_names if env.get(name, "").isdecimal()), None)
        if rank is not None:
            self._log.write({"rank": int(rank), "of": pid})
        if pid in self._roots:
            chosen = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")
            self._log.write({"environment": {name: env[name] for name in chosen if name in env}})

    def _forget(self, pid: int) -> None:
        self._images.pop(pid, None)
        self._threads.pop(pid, None)
        self._unread.discard(pid)
