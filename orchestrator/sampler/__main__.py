"""The rounds: everything is read at a steady beat, until the target or profrun ends, or a signal says so."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Collection
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[2])  # instead of this folder, whose names are no top-level modules

from orchestrator.sampler import maps  # noqa: E402
from orchestrator.sampler.gpus import Nvml, Smi, Source, Watch, die_with_parent  # noqa: E402
from orchestrator.sampler.host import Host  # noqa: E402
from orchestrator.sampler.log import COLUMNS, FORMAT, Log, now  # noqa: E402
from orchestrator.sampler.tree import Tree  # noqa: E402

MOST_SHARE = 0.1
"""It reads less often than it was asked to where reading would take more than this share of one processor."""
PATIENCE = 3
"""After so many rounds in a row that took too long."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Sampler:
    """Reads everything at each round and writes it down."""

    def __init__(self, options: argparse.Namespace, log: Log) -> None:
        self._log, self._options = log, options
        self._interval_ns = round(options.interval * 1e9)
        self._costly = 0
        self._host = Host(options.pids[0])
        self._tree = Tree(options.pids, log, options.gated, options.ranks)
        self._rounds = 0
        self._gpus = Watch(log, options.interval, _sources(options))

    def run(self) -> str:
        """Gives back what has ended it."""
        due_ns = time.monotonic_ns()
        while True:
            self._spare(self._round())
            if not self._tree.alive():
                return "the target has ended"
            due_ns += self._interval_ns
            late_ns = max(0, time.monotonic_ns() - due_ns)
            due_ns += -(-late_ns // self._interval_ns) * self._interval_ns  # rounds that are past are left out
            stop = signal.sigtimedwait(STOPS, max(0, due_ns - time.monotonic_ns()) / 1e9)
            if stop:
                self._gpus.end()
                self._round(is_last=True)
                return signal.Signals(stop.si_signo).name

    def _round(self, is_last: bool = False) -> int:
        """One reading of all; gives back the CPU time in ns that it took, but for what is read seldom."""
        began_ns, at = time.thread_time_ns(), now()
        host, cores = self._host.read()
        processes = self._tree.read() if self._options.processes else {}
        self._gpus.look_after()
        own = [time.process_time_ns() + self._gpus.cpu_ns(), time.monotonic_ns() - at[1]]
        found = {"host": {"": host}, "core": cores if self._options.cores else {}, "process": processes}
        self._log.write({**{source: rows for source, rows in found.items() if rows}, "monitor": {"": own}}, at)
        used_ns = time.thread_time_ns() - began_ns
        if self._options.maps_every and (is_last or self._rounds % self._options.maps_every == 0):
            self._read_maps(processes, is_last)
        self._rounds += 1
        return used_ns

    def _read_maps(self, pids: Collection[str], is_last: bool) -> None:
        at, memory = now(), maps.of(pids)
        if memory:
            self._log.write({"memory": memory}, at)
        if is_last:
            self._log.write({"mappings": {pid: maps.largest(pid) for pid in memory}})

    def _spare(self, used_ns: int) -> None:
        """Doubles the interval where many processes would make reading them a load of its own."""
        self._costly = self._costly + 1 if used_ns > MOST_SHARE * self._interval_ns else 0
        if self._costly == PATIENCE:
            self._costly = 0
            self._interval_ns *= 2
            every = f"one every {self._interval_ns / 1e6:g} ms from here on"
            self._log.write({"note": f"a reading takes {used_ns / 1e6:.1f} ms of CPU time: {every}"})


def _sources(options: argparse.Namespace) -> list[Source]:
    """The ways to the GPUs, the cheaper one first."""
    smi = options.nvidia_smi and shutil.which(options.nvidia_smi)
    return [Nvml(), *([Smi(smi)] if smi else [])] if options.gpus else []


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="sampler", description="Samples the host, a process tree and the GPUs.")
    parser.add_argument("--pids", required=True, type=_pids, metavar="PID,...", help="the roots of the tree")
    parser.add_argument("--output", required=True, metavar="FILE")
    parser.add_argument("--interval", type=float, default=0.2, metavar="S", help="seconds between two readings")
    parser.add_argument("--parent", type=int, default=os.getppid(), metavar="PID", help="who started it")
    parser.add_argument("--gated", action="store_true", help="the tree counts from the exec of its root on")
    parser.add_argument("--no-processes", dest="processes", action="store_false", help="leave the tree out")
    parser.add_argument("--no-cores", dest="cores", action="store_false", help="leave the single processors out")
    parser.add_argument("--no-gpus", dest="gpus", action="store_false", help="leave the GPUs out")
    parser.add_argument(
        "--maps-every", type=int, default=0, metavar="N", help="memory maps at each Nth reading; 0: never"
    )
    parser.add_argument("--ranks", type=_words, default=(), metavar="NAME,...", help="variables that tell a rank")
    parser.add_argument("--nvidia-smi", metavar="PATH", help="what to ask where NVML can't be asked")
    return parser.parse_args()


def _words(text: str) -> list[str]:
    return text.split(",")


def _pids(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    options = _options()
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are waited for; threads leave them to us
    die_with_parent()
    if os.getppid() != options.parent:  # which ended before it could be told from another
        return
    log = Log(options.output)
    log.write({"format": FORMAT, "columns": COLUMNS, "interval_s": options.interval, "pids": options.pids})
    log.write({"end": Sampler(options, log).run()})
    os._exit(0)  # a thread that waits for a driver may never end


if __name__ == "__main__":
    main()
