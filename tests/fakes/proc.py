"""A /proc below a folder, for `Machine(root=...)`: processes, processors and the clock, as a test sets them."""

from __future__ import annotations

import shutil
from pathlib import Path

from orchestrator.machine import Machine


class FakeProc:
    """Times are in clock ticks (hundredths of a second) as /proc has them."""

    def __init__(self, root: Path, cores: int = 2) -> None:
        self.root = root
        self.machine = Machine(root=root)
        self._ticks = [[0] * 8 for _ in range(cores)]
        self._used: dict[int, int] = {}
        self._shape: dict[int, tuple[int, str]] = {}
        self.seconds = 1000.0
        self.waited_us: int | None = 0
        self.process(1, "init", parent=0)
        self.write("proc/self/status", f"Cpus_allowed_list:\t0-{cores - 1}\n")
        self.passes(0)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def process(self, pid: int, name: str, *command: str, parent: int = 1, uid: int = 0) -> None:
        """A process with the name that the kernel gives it; without a command line it is a kernel thread."""
        self._shape[pid], self._used[pid] = (parent, name), 0
        self.write(f"proc/{pid}/status", f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
        self.write(f"proc/{pid}/comm", f"{name}\n")
        self.write(f"proc/{pid}/cmdline", "".join(f"{word}\0" for word in command))
        self._stat(pid)

    def ends(self, pid: int) -> None:
        del self._shape[pid]
        shutil.rmtree(self.root / f"proc/{pid}")

    def passes(
        self,
        seconds: float,
        *,
        busy: tuple[float, ...] = (),
        stolen: float = 0.0,
        used: dict[int, float] | None = None,
        waiting: float = 0.0,
        running: int = 1,
    ) -> None:
        """Time goes by. busy, stolen: shares of each core's time; used: cores that a process kept busy; waiting: the
        share of the time in which somebody waited for a core."""
        self.seconds += seconds
        for core, ticks in enumerate(self._ticks):
            share = busy[core] if core < len(busy) else 0.0
            for place, part in ((0, share), (3, 1 - share - stolen), (7, stolen)):
                ticks[place] += round(100 * seconds * part)
        for pid, cores in (used or {}).items():
            self._used[pid] += round(100 * seconds * cores)
            self._stat(pid)
        lines = [f"cpu{core} {' '.join(map(str, ticks))} 0 0" for core, ticks in enumerate(self._ticks)]
        self.write("proc/stat", "\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *lines, f"procs_running {running}", ""]))
        self.write("proc/uptime", f"{self.seconds:.2f} 1.00\n")
        if self.waited_us is not None:
            self.waited_us += round(1e6 * seconds * waiting)
            self.write("proc/pressure/cpu", f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self.waited_us}\n")

    def _stat(self, pid: int) -> None:
        parent, name = self._shape[pid]
        fields = ["S", parent, *[0] * 9, self._used[pid], 0, *[0] * 6, 500 + pid, 0, 0]
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {' '.join(map(str, fields))}\n")
