"""Stand-alone (`python -I -S dumps.py ...`): looks twice at processes that may hang, and leaves them as they are.

    --pids 1,2,3 --spy /usr/bin/py-spy --output DIR [--native] [--ranks 2:0,3:1] [--limit SECONDS]

The first look is taken at once, the second by SIGINT or SIGTERM. Each is written to DIR/look.N.json: of every thread
its state, its wait in the kernel, its CPU time and context switches before and after py-spy looked, and py-spy's dump
of every Python process. With the second look come native stacks, and what NCCL's flight recorders hold: a process that
has a pipe for it (TORCH_NCCL_DEBUG_INFO_PIPE_FILE) is asked for a fresh file, DIR/flight.RANK.pickle.

py-spy stops a process for an instant, which wakes its threads: so what they used meanwhile is not counted, a process
that is stopped or traced already is only read, and one that a killed py-spy has left stopped is continued.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

AT_ONCE = 4
"""So many py-spys at a time: a job may have 8 ranks and 64 workers."""
LOOK_LIMIT_S = 45.0
"""How long one look may take as a whole."""
LEAST_APART_S = 1.0
"""Between the two looks, whatever happens: shorter, nothing could be said of what has moved."""
RECORDER_LIMIT_S = 15.0
"""NCCL's monitor looks at its pipe once a second, and then writes."""
MOST_BYTES = 256 << 20
_WITH_DESCRIPTOR = {
    "x86_64": {0, 1, 5, 17, 18, 19, 20, 42, 43, 44, 45, 46, 47, 72, 73, 74, 75, 277, 288},
    "aarch64": {25, 32, 63, 64, 65, 66, 67, 68, 82, 83, 84, 202, 203, 206, 207, 211, 212, 242},
}
"""The system calls that wait and whose first argument is a descriptor: read, write, flock, fcntl, recv, fsync ..."""
_OLD_PLACE = "/tmp/nccl_trace_rank_"
_FLIGHT_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")


_Process = dict[str, Any]
"""What is written of a process."""


# ---------------------------------------------------------------- what /proc says


def _bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _text(path: str) -> str:
    return _bytes(path).decode("utf-8", "replace").strip()


def _fields(path: str) -> list[str]:
    """Those of a `stat` file from the third on: the state is the first."""
    return _text(path).rpartition(")")[2].split()


def _status(pid: int) -> dict[str, str]:
    lines = (line.partition(":") for line in _text(f"/proc/{pid}/status").splitlines())
    return {name: value.strip() for name, _, value in lines}


def state(pid: int) -> str | None:
    return next(iter(_fields(f"/proc/{pid}/stat")), None)


def environ(pid: int) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in _bytes(f"/proc/{pid}/environ").decode("utf-8", "replace").split("\0"))
    return {name: value for name, _, value in pairs if name}


def is_python(pid: int) -> bool:
    try:
        name = os.path.basename(os.readlink(f"/proc/{pid}/exe"))
    except OSError:
        return False
    return name.startswith(("python", "pypy")) or b"/libpython" in _bytes(f"/proc/{pid}/maps")


def use(pid: int) -> dict[str, tuple[int | None, int | None]]:
    """(CPU time in ns, context switches) of each thread so far; None where the kernel does not tell."""
    found = {}
    for tid in _tids(pid):
        status = _text(f"/proc/{pid}/task/{tid}/status")
        counts = [int(line.split()[1]) for line in status.splitlines() if "ctxt_switches:" in line]
        found[tid] = (_cpu_ns(pid, tid), sum(counts) if counts else None)
    return found


def _cpu_ns(pid: int, tid: str) -> int | None:
    """To the ns where the kernel keeps scheduler statistics, else to a tick of 10 ms."""
    exact = _text(f"/proc/{pid}/task/{tid}/schedstat").split()
    if exact:
        return int(exact[0])
    fields = _fields(f"/proc/{pid}/task/{tid}/stat")
    return (int(fields[11]) + int(fields[12])) * 10**9 // os.sysconf("SC_CLK_TCK") if len(fields) > 12 else None


def _tids(pid: int) -> list[str]:
    try:
        return sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return []


def threads(pid: int) -> dict[str, dict[str, object]]:
    """What each thread is doing as the kernel sees it. syscall: number and arguments, as /proc has them; at: what the
    descriptor stands for that it waits on."""
    found: dict[str, dict[str, object]] = {}
    for tid in _tids(pid):
        place = f"/proc/{pid}/task/{tid}"
        call = _text(f"{place}/syscall").split()
        found[tid] = {
            "name": _text(f"{place}/comm"),
            "state": next(iter(_fields(f"{place}/stat")), None),
            "wchan": _text(f"{place}/wchan"),
            "syscall": call[:7],
            "at": _descriptor(pid, call),
        }
    return found


def _descriptor(pid: int, call: list[str]) -> str | None:
    if len(call) < 2 or not call[0].isdigit() or int(call[0]) not in _WITH_DESCRIPTOR.get(platform.machine(), ()):
        return None
    try:
        return os.readlink(f"/proc/{pid}/fd/{int(call[1], 16)}")
    except OSError:
        return None


def process(pid: int) -> _Process:
    argv = [word.decode("utf-8", "replace") for word in _bytes(f"/proc/{pid}/cmdline").split(b"\0")[:-1]]
    env, status = environ(pid), _status(pid)
    fields = _fields(f"/proc/{pid}/stat")
    local = next((env[name] for name in _LOCAL_SIZES if env.get(name, "").isdecimal()), None)
    return {
        "pid": pid,
        "born": int(fields[19]) if len(fields) > 19 else None,
        "argv": argv,
        "state": fields[0] if fields else None,
        "tracer": int(status.get("TracerPid", 0)),
        "python": is_python(pid),
        "local_world_size": int(local) if local else None,
        "recorder": _has_recorder(env),
        "threads": threads(pid),
    }


def _has_recorder(env: dict[str, str]) -> bool:
    """Whether it was started with a flight recorder that can be asked."""
    return bool(env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"))


# ---------------------------------------------------------------- py-spy


def spy(path: str, pid: int, *more: str, limit_s: float) -> dict[str, object]:
    """py-spy's dump as {"threads": ...} or, when there is none, {"why": ...}."""
    if limit_s <= 0:
        return {"why": "no time was left for it"}
    before = state(pid)
    try:
        done = subprocess.run(
            [path, "dump", "--json", "--pid", str(pid), *more], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=limit_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        said = f"py-spy had not read it after {limit_s:.0f} s, and was ended"
        return {"why": said + ("; the process stood, and was continued" if _continued(pid, before) else "")}
    except OSError as error:
        return {"why": f"py-spy can't be started: {error.strerror}"}
    try:
        return {"threads": json.loads(done.stdout)}
    except ValueError:
        return {"why": _last_words(done)}


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    return next((line.strip() for line in lines if line.startswith("Error")), lines[0] if lines else "it said nothing")


def _continued(pid: int, before: str | None) -> bool:
    """Continues what a killed py-spy has left stopped, as nobody else would."""
    until = time.monotonic() + 1.0
    while time.monotonic() < until and before not in ("T", "t", None):
        if state(pid) == "T":
            os.kill(pid, signal.SIGCONT)
            return True
        time.sleep(0.02)
    return False


def look(pids: list[int], path: str, limit_s: float) -> dict[str, Any]:
    """One look at all of them. used: of each thread, before and after py-spy."""
    began_ns, until = time.time_ns(), time.monotonic() + LOOK_LIMIT_S
    found = [process(pid) for pid in pids if state(pid) not in (None, "Z", "X")]
    before = {one["pid"]: use(one["pid"]) for one in found}

    def dump(one: _Process) -> None:
        only_read = one["state"] in ("T", "t") or one["tracer"]
        left_s = min(limit_s, until - time.monotonic())
        one["nonblocking"] = bool(only_read)
        one["dump"] = spy(path, one["pid"], *(("--nonblocking",) if only_read else ()), limit_s=left_s)

    _each(dump, [one for one in found if one["python"]])
    for one in found:
        after = use(one["pid"])
        one["used"] = {tid: [*used, *after.get(tid, (None, None))] for tid, used in before[one["pid"]].items()}
    return {
        "version": 1, "machine": platform.machine(), "began_ns": began_ns, "ended_ns": time.time_ns(),
        "processes": found,
    }  # fmt: skip


def add_native(found: dict[str, Any], path: str, limit_s: float) -> None:
    """Native stacks, in a dump of their own: reading symbols takes long, and fails where others work."""
    until = time.monotonic() + LOOK_LIMIT_S

    def dump(one: _Process) -> None:
        left_s = min(limit_s, until - time.monotonic())
        one["native"] = spy(path, one["pid"], "--native", limit_s=left_s)

    able = [one for one in found["processes"] if one["python"] and not one["nonblocking"]]
    _each(dump, [one for one in able if "threads" in one["dump"]])


def _each(do: Callable[[_Process], None], ones: Iterable[_Process]) -> None:
    with ThreadPoolExecutor(AT_ONCE, initializer=_shield) as pool:
        list(pool.map(do, ones))


def _shield() -> None:
    """What this thread starts does not get the signal that asks us for the second look: it goes to all of us."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})


# ---------------------------------------------------------------- NCCL's flight recorder


class Recorder:
    """The flight recorder of one rank: the file that it writes, and the pipe through which it is asked to."""

    def __init__(self, pid: int, rank: int, env: dict[str, str]) -> None:
        self.pid, self.rank, self.env = pid, rank, env
        self.asked_ns: int | None = None
        self.why: str | None = None

    def _there(self, path: str) -> str:
        """The path as the process sees it, which may live in a container."""
        return f"/proc/{self.pid}/root{path}" if path.startswith("/") else f"/proc/{self.pid}/cwd/{path}"

    def files(self) -> list[str]:
        """Where it may write, the likeliest first (torch/csrc/distributed/c10d/FlightRecorder.cpp, `getWriter`)."""
        named = next((self.env[name] for name in _FLIGHT_FILE if self.env.get(name)), None)
        cache = self.env.get("XDG_CACHE_HOME") or self.env.get("HOME", "/tmp") + "/.cache"
        usual = (f"{cache}/torch/comm_lib_trace_rank_", f"{cache}/torch/nccl_trace_rank_", _OLD_PLACE)
        return [f"{stem}{self.rank}" for stem in ((named,) if named else usual)]

    def ask(self) -> None:
        """Asks for a fresh file; says why not where that can't be done."""
        stem = self.env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
        if not stem:
            self.why = "it has no pipe to ask through (TORCH_NCCL_DEBUG_INFO_PIPE_FILE)"
            return
        path = self._there(f"{stem}{self.rank}.pipe")
        try:
            if not stat.S_ISFIFO(os.lstat(path).st_mode):
                self.why = f"{stem}{self.rank}.pipe is no pipe"
                return
            pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                self.asked_ns = time.time_ns()
                os.write(pipe, b"1")
            finally:
                os.close(pipe)
        except OSError as error:
            self.asked_ns, self.why = None, f"{stem}{self.rank}.pipe can't be written to: {error.strerror}"

    def fresh(self) -> bool:
        """Whether what was asked for is there, to its end."""
        found = next(filter(None, map(self._open, self.files())), None)
        if found is None:
            return False
        with os.fdopen(found, "rb") as file:
            facts = os.fstat(found)
            if facts.st_mtime_ns < (self.asked_ns or 0) - 10_000_000 or not facts.st_size:  # file systems tick
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() == b"."  # a pickle's last byte

    def _open(self, path: str) -> int | None:
        """Opens what the process itself may have written: no link to somewhere else, nobody else's file, none of an
        earlier process."""
        try:
            file = os.open(self._there(path), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        facts, owner = os.fstat(file), _status(self.pid).get("Uid", "").split()
        own = stat.S_ISREG(facts.st_mode) and str(facts.st_uid) in owner and facts.st_mtime >= _born_s(self.pid) - 1
        if own and facts.st_size <= MOST_BYTES:
            return file
        os.close(file)
        return None

    def keep(self, folder: str) -> dict[str, object]:
        """Copies its file, where there is one. asked: a fresh one was; fresh: it is."""
        told = {"pid": self.pid, "rank": self.rank, "asked": self.asked_ns is not None, "why": self.why}
        for path in self.files():
            file = self._open(path)
            if file is None:
                continue
            name = f"flight.{self.rank}.pickle"
            with os.fdopen(file, "rb") as source, open(f"{folder}/{name}", "wb") as copy:
                written_ns = os.fstat(file).st_mtime_ns
                shutil.copyfileobj(source, copy)
            fresh = self.asked_ns is not None and written_ns >= self.asked_ns - 10_000_000
            late = "" if fresh or self.asked_ns is None else f"it wrote nothing within {RECORDER_LIMIT_S:.0f} s"
            return {**told, "why": self.why or late or None, "file": name, "written_ns": written_ns, "fresh": fresh}
        return {**told, "file": None}


def _born_s(pid: int) -> float:
    """When a process was started, in s since the epoch; infinity where that can't be told, so that no file is its."""
    fields = _fields(f"/proc/{pid}/stat")
    boot = next((line.split()[1] for line in _text("/proc/stat").splitlines() if line.startswith("btime")), "inf")
    return float(boot) + int(fields[19]) / os.sysconf("SC_CLK_TCK") if len(fields) > 19 else float("inf")


def recorders(ranks: str) -> list[Recorder]:
    """One for each `PID:RANK`, as far as the process lives."""
    pairs = [tuple(map(int, pair.split(":"))) for pair in ranks.split(",") if pair]
    return [Recorder(pid, rank, environ(pid)) for pid, rank in pairs if state(pid) not in (None, "Z", "X")]


def kept(found: list[Recorder], folder: str) -> list[dict[str, object]]:
    """Asks all, waits for what they write, and keeps it."""
    for one in found:
        one.ask()
    until = time.monotonic() + RECORDER_LIMIT_S
    waiting = [one for one in found if one.asked_ns is not None]
    while time.monotonic() < until and not all(one.fresh() for one in waiting):
        time.sleep(0.05)
    return [one.keep(folder) for one in found]


# ---------------------------------------------------------------- twice


def _write(folder: str, name: str, content: object) -> None:
    """All of it or nothing, for whoever reads."""
    with open(f"{folder}/{name}.part", "w", encoding="utf-8") as file:
        json.dump(content, file)
    os.replace(f"{folder}/{name}.part", f"{folder}/{name}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pids", required=True)
    parser.add_argument("--spy", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--ranks", default="")
    parser.add_argument("--limit", type=float, default=20.0)
    options = parser.parse_args()
    pids = [int(pid) for pid in options.pids.split(",")]
    again = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: again.set())
    _write(options.output, "look.0.json", look(pids, options.spy, options.limit))
    time.sleep(LEAST_APART_S)
    while not again.wait(3600):
        pass
    second = look(pids, options.spy, options.limit)
    _write(options.output, "look.1.json", second)
    second["recorders"] = kept(recorders(options.ranks), options.output)
    if options.native:
        add_native(second, options.spy, options.limit)
    _write(options.output, "look.1.json", second)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
