"""Stand-alone (`python -I -S lives.py PID`): when the threads of a process and its descendants end, and their CPU time.

In py-spy's trace the last stack of an ended thread goes on, so somebody else has to tell when that was. On stdout:

    died PID TID NS        the thread was gone; ns since the Unix epoch, right to half of PERIOD_S
    cpu PID CPU_NS NS      the CPU time (user and system) that the process used while it was seen, and how long that was

On stderr: why PID can't be looked into, where that is so. Ends with the last of the processes, or by SIGINT or SIGTERM.
"""

import itertools
import os
import signal
import sys
import time

PERIOD_S = 0.05
_CHILDREN_EVERY = 4
"""Looking for new processes costs a read for each thread, so not every round does it."""
_NS_PER_TICK = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

_EPOCH_NS = time.time_ns() - time.monotonic_ns()
"""The wall clock is read once: it may be set meanwhile."""


class Life:
    """What was seen of one process."""

    def __init__(self) -> None:
        self.tids: frozenset[int] = frozenset()
        self.seen: list[tuple[int, int]] = []
        """(time, CPU time used by then) when it was first and last seen, in ns."""

    def look(self, pid: int) -> None:
        now_ns, cpu_ns = _EPOCH_NS + time.monotonic_ns(), _cpu_ns(pid)
        tids = frozenset() if cpu_ns is None else _tids(pid)
        for tid in self.tids - tids:
            print("died", pid, tid, (self.seen[-1][0] + now_ns) // 2, flush=True)
        self.tids = tids
        if cpu_ns is not None:
            self.seen[1:] = [(now_ns, cpu_ns)]

    def close(self, pid: int) -> None:
        if self.seen:
            (first_ns, before_ns), (last_ns, cpu_ns) = self.seen[0], self.seen[-1]
            print("cpu", pid, cpu_ns - before_ns, last_ns - first_ns, flush=True)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return ""


def _cpu_ns(pid: int) -> int | None:
    """None when the process has ended, reaped or not."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return None if not fields or fields[0] in "ZX" else (int(fields[11]) + int(fields[12])) * _NS_PER_TICK


def _tids(pid: int) -> frozenset[int]:
    try:
        return frozenset(map(int, os.listdir(f"/proc/{pid}/task")))  # noqa: PTH208
    except OSError:
        return frozenset()


def obstacle(pid: int) -> str | None:
    """Why another process may not look into this one, as far as /proc shows it."""
    try:
        os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115
    except PermissionError:
        return f"process {pid} can't be looked at: Permission denied"
    except OSError:
        return None
    tracer = next((x.split()[1] for x in _read(f"/proc/{pid}/status").splitlines() if x.startswith("TracerPid:")), "0")
    name = _read(f"/proc/{tracer}/comm").strip()
    return None if tracer == "0" or name.startswith("py-spy") else f"process {pid} is traced by {tracer} ({name})"


def watch(root: int) -> None:
    """Watches until all have ended, or for as long as nobody interrupts."""
    lives = {root: Life()}
    try:
        for turn in itertools.count():
            for pid, life in list(lives.items()):
                life.look(pid)
                if not life.tids:
                    lives.pop(pid).close(pid)
                for tid in life.tids if turn % _CHILDREN_EVERY == 0 else ():
                    for child in _read(f"/proc/{pid}/task/{tid}/children").split():
                        lives.setdefault(int(child), Life())
            if not lives:
                return
            time.sleep(PERIOD_S)
    finally:
        for pid, life in lives.items():
            life.close(pid)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        why = obstacle(int(sys.argv[1]))
        if why:
            print(why, file=sys.stderr, flush=True)
        watch(int(sys.argv[1]))
    except KeyboardInterrupt:
        pass
