"""Reads the two looks that standalone/dumps.py takes at processes which may hang: what each thread is in, and whether
it has moved.

py-spy's dumps are lists of threads with their frames, the innermost first (py-spy dump --json); states, waits and times
are those of /proc (proc(5), /proc/PID/task/TID/{stat,wchan,syscall,schedstat,status})."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ParseError
from orchestrator.formats.stacks import is_own

STILL_SHARE = 0.01
"""A thread that used less than this share of a processor has only waited."""
WAKES_HZ = 2.0
"""One that waits for something is woken no more often than this, by whom it had not waited for."""
POLLS_HZ = 20.0
"""One that looks again and again whether its wait is over (torchrun, a lock file) wakes so often."""
_MOST_BYTES = 256 << 20
_MOST_FRAME_CHARS = 160


class Frame(NamedTuple):
    """One frame of a stack. file: None for a native one."""

    function: str
    file: str | None
    line: int | None
    shown: str = ""
    """Its file as a reader knows it."""

    def text(self) -> str:
        place = f"{self.shown or self.file}:{self.line}" if self.line else self.shown or self.file
        return (f"{self.function} ({place})" if place else self.function).replace(";", ",").replace("\n", " ")


@dataclass(frozen=True)
class Thread:
    """One thread at both looks. Frames from the root to the leaf; None where they could not be read."""

    tid: int
    name: str
    state: str | None
    moved: bool | None
    cpu_ns: int | None
    switches: int | None
    wchan: str | None
    syscall: str | None
    doing: str | None
    what: str | None
    frames: tuple[Frame, ...] | None
    later: tuple[Frame, ...] | None
    native: tuple[Frame, ...] | None
    unread: str | None

    def place(self) -> Frame | None:
        """Where the program stands: the innermost frame of its own code, else of any Python code."""
        frames = [frame for frame in self.later or self.frames or () if frame.file]
        return next((f for f in reversed(frames) if is_own(f.file or "")), frames[-1] if frames else None)


@dataclass(frozen=True)
class Process:
    """One process at both looks, its threads in the order of their numbers."""

    pid: int
    argv: tuple[str, ...]
    state: str | None
    threads: tuple[Thread, ...]
    is_python: bool
    local_world_size: int | None
    recorder: bool
    unread: str | None
    native_unread: str | None


@dataclass(frozen=True)
class Looks:
    """Both looks. recorders: what has become of the flight recorder of each rank, as the program has written it."""

    apart_ns: int
    began_ns: int
    processes: tuple[Process, ...]
    recorders: tuple[Mapping[str, Any], ...]
    complete: bool
    """Native stacks and flight recorders, which come last, were asked for, too."""

    def threads(self) -> Iterator[tuple[Process, Thread]]:
        return ((process, thread) for process in self.processes for thread in process.threads)


def read(first: Path, second: Path) -> Looks:
    """Raises ParseError when one of the files is damaged, or none of ours."""
    before, after = _load(first), _load(second)
    try:
        later = {one["pid"]: one for one in after["processes"]}
        apart_ns = max(1, int(after["began_ns"]) - int(before["ended_ns"]))
        pairs = [(one, later.get(one["pid"])) for one in before["processes"]]
        same = [(one, two if two and two["born"] == one["born"] else None) for one, two in pairs]
        found = tuple(_process(one, two, apart_ns, before["machine"]) for one, two in same)
        recorders = tuple(dict(one) for one in after.get("recorders", ()))
        return Looks(apart_ns, int(before["began_ns"]), found, recorders, "recorders" in after)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise ParseError(f"{first.name} and {second.name} are not what dumps.py writes ({error!r})") from error


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ParseError(f"{path.name} is larger than {_MOST_BYTES >> 20} MiB")
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path.name} is cut or damaged: {error}") from error
    if not isinstance(content, dict) or content.get("version") != 1:
        raise ParseError(f"{path.name} is not what dumps.py writes")
    return content


def _process(one: Mapping[str, Any], two: Mapping[str, Any] | None, apart_ns: int, machine: str) -> Process:
    reading = _Reading(one, two, apart_ns, machine)
    dump, native = (two or one).get("dump") or {}, (two or {}).get("native") or {}
    return Process(
        pid=int(one["pid"]),
        argv=tuple(map(str, one["argv"])),
        state="ended" if two is None else two["state"],
        threads=tuple(map(reading.thread, _tids(one, two))),
        is_python=bool(one["python"]),
        local_world_size=one["local_world_size"],
        recorder=bool(one["recorder"]),
        unread=dump.get("why"),
        native_unread=native.get("why"),
    )


def _tids(one: Mapping[str, Any], two: Mapping[str, Any] | None) -> list[str]:
    return sorted({*one["threads"], *(two["threads"] if two else ())}, key=int)


# ---------------------------------------------------------------- one thread


@dataclass(frozen=True)
class _Reading:
    """A process at the first and at the second look; None: it had ended."""

    one: Mapping[str, Any]
    two: Mapping[str, Any] | None
    apart_ns: int
    machine: str

    def thread(self, tid: str) -> Thread:
        before, after = self.one["threads"].get(tid), self.two["threads"].get(tid) if self.two else None
        seen, call = _seen(before, after, self.machine)
        frames, later = _frames(self.one.get("dump"), tid), _frames((self.two or {}).get("dump"), tid)
        native = _frames((self.two or {}).get("native"), tid)
        doing, what = _doing(seen, call, later or frames or (), native or ())
        cpu_ns, switches = self._used(tid)
        dump = (self.two or self.one).get("dump") or {}
        return Thread(
            tid=int(tid),
            name=_name((self.two or {}).get("dump"), tid) or _name(self.one.get("dump"), tid) or str(seen["name"]),
            state="ended" if after is None else after["state"],
            moved=self._moved(before, after, (frames, later), cpu_ns, switches, doing),
            cpu_ns=cpu_ns,
            switches=switches,
            wchan=seen["wchan"] if seen["wchan"] not in ("", "0") else None,
            syscall=call,
            doing=doing,
            what=what,
            frames=frames if frames is not None else later,
            later=later if later is not None and frames is not None and later != frames else None,
            native=native,
            unread=dump.get("why"),
        )

    def _used(self, tid: str) -> tuple[int | None, int | None]:
        """CPU time and context switches from after the first dump to before the second: what py-spy cost is no part."""
        ends = self.one["used"].get(tid), (self.two or {}).get("used", {}).get(tid)
        if ends[0] is None or ends[1] is None:
            return None, None
        cpu, switches = ((ends[0][2], ends[1][0]), (ends[0][3], ends[1][1]))
        return _grown(*cpu), _grown(*switches)

    def _moved(
        self,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
        frames: tuple[tuple[Frame, ...] | None, tuple[Frame, ...] | None],
        cpu_ns: int | None,
        switches: int | None,
        doing: str | None,
    ) -> bool | None:
        if before is None or after is None:
            return True
        if None not in frames and frames[0] != frames[1]:
            return True
        if self._is_still(cpu_ns, switches, doing):
            # whose frames were seen only once may have gone into another function meanwhile
            return False if (frames[0] is None) == (frames[1] is None) else None
        if cpu_ns is None or doing in SPINNING:
            return None
        return True

    def _is_still(self, cpu_ns: int | None, switches: int | None, doing: str | None) -> bool:
        if cpu_ns is None or switches is None or cpu_ns > STILL_SHARE * self.apart_ns:
            return False
        often_hz = POLLS_HZ if doing in WAITS else WAKES_HZ
        return switches <= 2 + often_hz * self.apart_ns / 1e9


def _seen(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, machine: str
) -> tuple[Mapping[str, Any], str | None]:
    """The thread as it was seen last, with its system call; the first py-spy may have hidden which one that is."""
    last: Mapping[str, Any] = after or before or {}
    call = _syscall(last["syscall"], machine)
    if call != _RESTART or before is None:
        return last, call
    return {**last, "syscall": before["syscall"], "at": before["at"]}, _syscall(before["syscall"], machine)


def _grown(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _of(dump: Mapping[str, Any] | None, tid: str) -> Mapping[str, Any] | None:
    threads = (dump or {}).get("threads") or ()
    return next((one for one in threads if str(one["os_thread_id"]) == tid), None)


def _name(dump: Mapping[str, Any] | None, tid: str) -> str | None:
    found = _of(dump, tid)
    return found["thread_name"] if found else None


def _frames(dump: Mapping[str, Any] | None, tid: str) -> tuple[Frame, ...] | None:
    """From the root to the leaf; None where the dump has no such thread: it is none of Python's."""
    found = _of(dump, tid)
    return None if found is None else tuple(_frame(one) for one in reversed(found["frames"]) if not _is_noise(one))


def _frame(one: Mapping[str, Any]) -> Frame:
    name, file = str(one["name"]), str(one["filename"])
    if _is_native(one):
        return Frame(_plain_name(name), None, None, str(one["module"] or file).rpartition("/")[2])
    return Frame(name, file, int(one["line"]) or None, one["short_filename"] or file)


def _is_native(one: Mapping[str, Any]) -> bool:
    return one["module"] is not None or not str(one["filename"]).endswith((".py", ">", ".pyx"))


def _is_noise(one: Mapping[str, Any]) -> bool:
    """Frames that tell nothing: addresses without a name, and what only leads from Python to a function in C++."""
    return _is_native(one) and bool(re.match(r"0x[0-9a-f]+$|pybind11::cpp_function|_start$|clone3?$", one["name"]))


def _plain_name(name: str) -> str:
    return name if len(name) <= _MOST_FRAME_CHARS else name[: _MOST_FRAME_CHARS - 1] + "…"


# ---------------------------------------------------------------- what it is in

_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_PLACES = (
    ("launcher", r"torch/distributed/(elastic|launcher|run)\b", r""),
    ("data loader", r"torch/utils/data/dataloader\.py", r"(.*\.)?(_(next|get|try_get)_data|__next__)"),
    ("CUDA", r"torch/cuda/(__init__|streams)\.py", r"(.*\.)?synchronize"),
    ("rendezvous", r"torch/distributed/rendezvous\.py", r""),
    ("idle worker", r"concurrent/futures/thread\.py", r"_worker"),
    ("idle worker", r"multiprocessing/pool\.py", r"worker"),
    ("idle worker", r"torch/utils/data/_utils/worker\.py", r"_worker_loop"),
    ("child", r"/subprocess\.py|multiprocessing/popen_\w+\.py", r"(.*\.)?(wait|_wait|_try_wait|communicate|poll)"),
    ("queue", r"/queue\.py|multiprocessing/queues\.py", r"(.*\.)?(get|put|join)"),
    ("thread join", r"/threading\.py", r"(.*\.)?(join|_join|_wait_for_tstate_lock|_shutdown)"),
    ("lock", r"/threading\.py|multiprocessing/synchronize\.py", r"(.*\.)?(wait|wait_for|acquire|__enter__)"),
    ("events", r"asyncio/|/selectors\.py|/socketserver\.py", r"(.*\.)?(select|_run_once|serve_forever)"),
    ("network", r"/ssl\.py|/socket\.py", r"(.*\.)?(read|readinto|recv|accept|connect|sendall)"),
    ("pipe", r"multiprocessing/connection\.py", r"(.*\.)?(_poll|_recv|wait|recv|recv_bytes)"),
)
"""What a thread is in by its Python frames: a pattern in the file's path, and one for the whole function (empty: any).
The first that fits any frame counts; of collectives see `_collective`."""

_NATIVE = (
    ("collective", re.compile(r"\bc10d::(?:\w+::)*\w*Work\w*::(wait|synchronize)|\bc10d::(Reducer)\b")),
    (
        "collective",
        re.compile(r"\bProcessGroup(?:NCCL|Gloo|MPI|UCC)::(\w+)|\b(nccl(?:All|Reduce|Broad|Send|Recv|Group)\w*)"),
    ),
    ("CUDA", re.compile(r"\b((?:cuda|hip)(?:Stream|Device|Event)Synchronize\w*|cu(?:Stream|Ctx|Event)Synchronize)")),
)
"""Likewise by native frames; the group names it."""
_NATIVE_NAMES = {"Reducer": "all_reduce of gradients", "wait": "Work.wait", "synchronize": "Work.wait"}

_CALLS = {
    "lock": "futex",
    "child": "wait4 waitid",
    "sleep": "nanosleep clock_nanosleep pause",
    "network": "accept accept4 connect recvfrom recvmsg sendto sendmsg",
    "file lock": "flock fcntl",
    "file": "fsync fdatasync pread64 pwrite64 preadv pwritev openat newfstatat statx",
    "events": "epoll_wait epoll_pwait epoll_pwait2",
}
"""Likewise by system calls that say enough by themselves."""
_BY_CALL = {name: doing for doing, names in _CALLS.items() for name in names.split()}

SPINNING = frozenset({"collective", "CUDA"})
"""Waits in which a thread may use a whole processor: that it runs does not say that it gets anywhere."""
WAITS = frozenset({*SPINNING, *_CALLS, *(doing for doing, _, _ in _PLACES), "queue", "pipe"})

_RESTART = "restart_syscall"
"""A wait that a tracer has interrupted and that goes on: /proc no longer tells which one that is."""
_NUMBERS = {
    "x86_64": {
        0: "read", 1: "write", 5: "fstat", 7: "poll", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev",
        23: "select", 34: "pause", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto", 45: "recvfrom",
        46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync", 75: "fdatasync",
        202: "futex", 219: _RESTART, 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
        262: "newfstatat", 270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4", 295: "preadv",
        332: "statx", 441: "epoll_pwait2",
    },
    "aarch64": {
        22: "epoll_pwait", 25: "fcntl", 32: "flock", 56: "openat", 63: "read", 64: "write", 65: "readv", 66: "writev",
        67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 79: "newfstatat", 82: "fsync", 83: "fdatasync",
        95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 128: _RESTART, 202: "accept",
        203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg", 242: "accept4", 260: "wait4",
        291: "statx", 441: "epoll_pwait2",
    },
}  # fmt: skip
"""The system calls that can wait (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h)."""


def _syscall(call: Sequence[str], machine: str) -> str | None:
    """The call that a thread is in, by its number; None where it is in none, or /proc does not tell."""
    if not call or not call[0].isdigit():
        return None
    return _NUMBERS.get(machine, {}).get(int(call[0]), call[0])


def _doing(
    seen: Mapping[str, Any], call: str | None, frames: Sequence[Frame], native: Sequence[Frame]
) -> tuple[str | None, str | None]:
    """What a thread is in, and which one. Python frames tell most, as they name what the program wanted."""
    if seen["state"] in ("T", "t"):
        return "stopped", None
    collective = _collective(frames)
    if collective:
        return "collective", collective
    by_frames = _by_frames(frames) or _by_native(native)
    if by_frames and by_frames[0] != "lock":
        return by_frames
    return _by_call(seen, call) or by_frames or (("running", None) if seen["state"] == "R" else (None, None))


def _collective(frames: Iterable[Frame]) -> str | None:
    """The collective that the program called: the outermost, as some are made of others."""
    names = (frame.function for frame in frames if (frame.file or "").endswith(_COLLECTIVES))
    return next((name.strip("_") for name in names), None)


def _by_frames(frames: Sequence[Frame]) -> tuple[str, str | None] | None:
    for doing, file, function in _PLACES:
        for frame in reversed(frames):
            named = not function or re.fullmatch(function, frame.function)
            if frame.file and named and re.search(file, frame.file) and not _calls_on(frame, frames):
                return doing, None
    return None


def _calls_on(frame: Frame, frames: Sequence[Frame]) -> bool:
    """Whether it has called the program's own code: an event loop's callback, a data set, a worker's task. Then it is
    that which waits."""
    return any(is_own(one.file) for one in frames[frames.index(frame) + 1 :] if one.file)


def _by_native(frames: Iterable[Frame]) -> tuple[str, str | None] | None:
    for doing, pattern in _NATIVE:
        for frame in frames:
            found = pattern.search(frame.function) if not frame.file else None
            if found:
                what = next(filter(None, found.groups()), None)
                return doing, _NATIVE_NAMES.get(what or "", what)
    return None


def _by_call(seen: Mapping[str, Any], call: str | None) -> tuple[str, str | None] | None:
    at = seen["at"]
    if call in ("read", "write", "readv", "writev") and at:
        return _by_descriptor(at)
    if call in ("select", "pselect6", "poll", "ppoll"):
        watched = seen["syscall"][2 if call in ("poll", "ppoll") else 1]
        return ("sleep", None) if int(watched, 16) == 0 else None
    doing = _BY_CALL.get(call or "")
    return (doing, at) if doing else None


def _by_descriptor(at: str) -> tuple[str, str]:
    kinds = (("socket:", "network"), ("pipe:", "pipe"), ("anon_inode:", "events"))
    return next((doing for start, doing in kinds if at.startswith(start)), "file"), at


def text(frames: Sequence[Frame] | None) -> str | None:
    """A stack as one text, from the root to the leaf."""
    return ";".join(frame.text() for frame in frames) if frames else None
