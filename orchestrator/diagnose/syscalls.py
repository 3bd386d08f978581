"""Rules about system calls: what the thread whose steps these are asks of the kernel at every step, and what that
costs.

Only calls in the loop count. `import torch` alone makes 18,000 stat, 2,300 read and 1,400 openat calls (torch 2.13,
CPython 3.11, strace 6.1) before the first step: calls with a time are taken from the steady steps. Where the table has
none, a call counts only when it was made at least once a step and BEYOND_START times as often as the start-ups of all
Python processes make it; of calls that a start-up does not make (fsync), once a step is enough. How many of those were
made in the steps nobody knows then: they are told of the whole run, and as minor, unless samples of the program's
stacks bear them out.

What a call costs without strace is not what it took under it (some 20 µs more each). Of the two things that can be
said, the larger is told: the time it took beyond the quickest calls of its kind, as a share of the same pass; or
the least that such a call takes alone (CALL_NS), as a share of the bare step. Samples with native frames limit both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator import judging
from orchestrator.judging import Confidence
from orchestrator.model import USABLE, Abstention, Capture, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

CALL_NS = 300
"""The least that a call from Python takes without tools: entering and leaving the kernel is 50 to 200 ns on processors
with the mitigations of 2018 on, and the interpreter's part comes on top (x86-64 VM, CPython 3.11: os.getppid 305 ns,
os.pread of 16 bytes 670 ns)."""
BY_NAME_NS = 1_000
"""Likewise of one that looks for a file by its name (there: os.stat in /tmp 1.9 µs, os.open and os.close 2.8 µs)."""
TOOL_NS = 50_000
"""No more than this of a call's time is taken for strace's (18 to 45 µs, `collectors.strace.COST_S`)."""
BEYOND_START = 10
START_UP: Mapping[str, int] = {
    "newfstatat": 18_000, "stat": 18_000, "lstat": 2_000, "fstat": 2_000, "statx": 2_000, "access": 500,
    "faccessat2": 500, "readlink": 500, "openat": 1_400, "open": 1_400, "read": 2_300, "pread64": 300, "lseek": 2_100,
    "close": 1_400, "mmap": 1_300, "munmap": 1_000, "brk": 650, "mprotect": 300, "madvise": 50, "getdents64": 350,
    "futex": 100, "clone": 3, "clone3": 3, "vfork": 3, "fork": 3, "execve": 3, "wait4": 3, "poll": 10, "connect": 3,
    "write": 20, "nanosleep": 3, "clock_nanosleep": 3, "sched_yield": 100,
}  # fmt: skip
"""What one start of a program with PyTorch makes of each (measured, rounded up); of others none."""
COMPLETE = 0.9
"""From this share of a thread's calls on, those with times stand for all of them."""

READS = ("read", "pread64", "readv", "preadv", "preadv2")
WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
SYNCS = ("fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range")
LOOKS = ("stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat")
OPENS = ("open", "openat", "openat2")
STARTS = ("execve", "execveat", "posix_spawn", "posix_spawnp")
STARTING = (*STARTS, "fork", "vfork", "clone", "clone3", "wait4", "waitid", "waitpid", "poll", "ppoll", "popen")
SLEEPS = ("nanosleep", "clock_nanosleep", "usleep", "sleep")
POLLS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "sched_yield", *SLEEPS)
MEMORY = ("mmap", "munmap", "mremap", "brk", "madvise")
RECEIVES = ("recvfrom", "recv", "recvmsg")
SENDS = ("sendto", "send", "sendmsg")
CONNECTS = ("connect", "socket", "shutdown")
_KERNEL = {"stat": "newfstatat", "lstat": "newfstatat", "open": "openat", "nanosleep": "clock_nanosleep",
           "usleep": "clock_nanosleep", "sleep": "clock_nanosleep", "fork": "clone", "recv": "recvfrom",
           "send": "sendto"}  # fmt: skip
"""What a call of a library, or an old one, is called by the kernel of x86-64."""

TINY_BYTES = 512
"""A sector; below it the call costs more than what it moves (Darshan and TAU count smaller accesses as small IO)."""
MANY = 10
"""Calls a step from which on a habit is seen, where each is cheap."""
STORM = 100
"""Likewise for calls that only ask whether there is something."""
SOME_STEPS = 0.5
"""A call in at least every second step is in the loop."""
AT_ONCE_NS = 50_000
"""A wait that took no more than this, beyond what strace adds, has not waited: it takes as long to wake a thread."""
SWITCH_NS = (3_000_000, 12_000_000)
"""How long CPython waits for its lock before it asks for it: sys.getswitchinterval, 5 ms, and what waking takes."""
SWITCHES_PER_S = 20.0
"""Of these waits, one thread that stands in the queue makes up to 200 a second."""
DELAYED_ACK_NS = (38_000_000, 46_000_000)
"""Linux holds back the acknowledgement of a small segment for 40 ms (TCP_DELACK_MIN), and Nagle's algorithm (RFC 896)
the next small segment for as long."""
POLLED = ("sleep", "idle", "pipe", "network", "lock", "child", "python")
"""States of `host_time` in which a thread that asks again and again is seen."""
MOST = 0.8
"""So much of the cases is the rule."""

_STATES: Mapping[str, tuple[str, ...]] = {
    "file_io": ("file",),
    "network_io": ("network",),
    "process_spawn": ("child", "pipe"),
    "idle_wait": ("sleep", "idle"),
    "lock_contention": ("lock",),
    "gil_contention": ("gil", "lock"),
    "memory_management": ("memory",),
}
"""Which states of `host_time` a category is made of."""


# ---------------------------------------------------------------- what was seen


@dataclass(frozen=True)
class Seen:
    """The system calls of one pass that a loop of steps is judged by.

    own: by name (index) count, errors and total_ns of the main thread (of all where `kind` is tree). all: of all
    threads. spans: the single calls of the window, where they are known. kind: window (calls of the steady steps),
    thread (those of the whole pass of the main thread), tree (of all processes)."""

    report: Report
    capture: Capture
    kind: str
    own: pandas.DataFrame
    all: pandas.DataFrame
    steps: int | None
    span_ns: float | None
    """What shares are of: of the same pass."""
    spans: pandas.DataFrame | None = None
    pid: int | None = None
    starts: int = 1
    """Python processes that have started within the sums."""
    lasting: int = 1
    """Of these, those that lived at a time."""

    @cached_property
    def floor_ns(self) -> float:
        """What strace adds to a call: what its quickest kind of call took."""
        if self.capture.collector != "strace":
            return 0.0
        usual = self.own[self.own["count"] >= MANY]
        means = (usual["total_ns"] / usual["count"]).dropna() if len(usual) else usual["count"]
        return min(float(means.min()), TOOL_NS) if len(means) else TOOL_NS

    def count(self, names: Iterable[str], everyone: bool = False) -> float:
        """How often the loop makes these calls; 0 where start-up would explain as many."""
        return sum(self._beyond(name, "count", everyone) for name in names)

    def errors(self, names: Iterable[str]) -> float:
        return sum(self._beyond(name, "errors") for name in names)

    def _beyond(self, name: str, column: str, everyone: bool = False) -> float:
        table = self.all if everyone else self.own
        if name not in table.index or table[column].isna()[name]:
            return 0.0
        number, usual = float(table.at[name, column]), START_UP.get(name, 0)
        if self.kind == "window":
            return number
        if everyone or self.kind == "tree":
            usual *= self.lasting if name in STARTING else self.starts
        far = number > BEYOND_START * usual and number >= (self.steps or 1)
        return number - usual if far else 0.0

    def per_step(self, count: float) -> float | None:
        return count / self.steps if self.steps else None

    def blocked_ns(self, names: Iterable[str]) -> float:
        """What these calls took beyond what the tool adds."""
        total = 0.0
        for name in names:
            count = self._beyond(name, "count")
            if count and not self.own["total_ns"].isna()[name]:
                whole, calls = float(self.own.at[name, "total_ns"]), float(self.own.at[name, "count"])
                total += max(0.0, whole * count / calls - count * self.floor_ns)
        return total

    def share_pct(self, names: Iterable[str], category: str) -> float | None:
        """What part of the steady steps these calls cost; None where nothing tells."""
        names = tuple(names)
        least_ns = sum(self.count([name]) * _least_ns(name) for name in names)
        return self.pct(self.blocked_ns(names), least_ns, _STATES.get(category, ()))

    def pct(self, blocked_ns: float, least_ns: float, states: Iterable[str] = ()) -> float | None:
        """The larger of what they took in the same pass, and the least that they take without tools. Where somebody
        has looked at the program with less weight, no more than that has seen of it in these states."""
        shares = [100 * blocked_ns / self.span_ns if self.span_ns else None, self.least_pct(least_ns)]
        known = [share for share in shares if share is not None]
        seen = self._host_pct(states)
        return min(100.0, max(known), 100.0 if seen is None else seen) if known else None

    @cached_property
    def is_borne_out(self) -> bool:
        """Whether it is known how many of the calls are of the steps, or what they can have cost at most."""
        frame = self.report.table("host_time")
        return self.kind == "window" or (frame is not None and bool(frame["native"].notna().any()))

    def least_pct(self, cost_ns: float) -> float | None:
        """What this much, of the whole loop, is of the bare run's."""
        step, wall = (self.report.metrics.get(name) for name in ("step_s", "wall_s"))
        if self.steps and step and step.value:
            return 100 * cost_ns / self.steps / 1e9 / step.value
        return 100 * cost_ns / 1e9 / wall.value if wall and wall.value else None

    def _host(self, states: Iterable[str]) -> tuple[pandas.DataFrame, float] | None:
        """The rows of the main thread's time in these states, and all its time; of the steady steps."""
        frame, states = self.report.table("host_time"), tuple(states)
        if frame is None or not states:
            return None
        main = frame[(frame["role"] == "main") & frame["part"].isin(["steady", "all"])]
        whole_ns = float(main["total_ns"].sum())
        return (main[main["state"].isin([*states, "unknown"])], whole_ns) if whole_ns else None

    def _host_pct(self, states: Iterable[str]) -> float | None:
        """How much of its time the main thread spent so. Without native frames nobody can tell a call into the kernel
        from Python."""
        found, frame = self._host(states), self.report.table("host_time")
        if found is None or frame is None or not frame["native"].notna().any():
            return None
        return 100 * float(found[0]["total_ns"].sum()) / found[1]

    def waits_for_data(self, category: str, share_pct: float) -> bool:
        """Whether these calls are made while the step waits for its batch: then the input pipeline is the matter."""
        found = self._host(_STATES.get(category, ()))
        if found is not None and len(found[0]):
            rows = found[0]
            return bool(rows[rows["phase"] == "data"]["total_ns"].sum() > rows["total_ns"].sum() / 2)
        steps = judging.of_capture(self.report.table("steps"), self._passmates())
        if category == "memory_management" or steps is None or not steps["data_wait_ns"].notna().any():
            return False
        waited = 100 * float(steps["data_wait_ns"].sum()) / max(float(steps["duration_ns"].sum()), 1.0)
        return waited >= judging.MAJOR_PCT and waited >= MOST * share_pct

    def _passmates(self) -> list[str]:
        return [c.id for c in self.report.captures if c.pass_id == self.capture.pass_id]


def _least_ns(name: str) -> int:
    return BY_NAME_NS if name in LOOKS or name in OPENS else CALL_NS


def seen(report: Report) -> Seen | None:
    """What the best of the captures says: single calls before sums by thread before sums of all processes."""
    captures = [c for c in report.captures if c.status in USABLE]
    makers: tuple[Callable[[Report, Capture], Seen | None], ...] = (_of_spans, _of_threads, _of_all)
    found = (make(report, capture) for make in makers for capture in captures)
    return next((one for one in found if one is not None), None)


def _of_spans(report: Report, capture: Capture) -> Seen | None:
    """Single calls of the main thread in its steady steps; only where they are nearly all that there were."""
    window = judging.steady_window(report, capture.pass_id)
    for name in ("syscall_spans", "os_calls"):
        spans = judging.of_capture(report.table(name), [capture.id])
        if window is None or spans is None or not _is_complete(report, capture, spans, window.pid):
            continue
        inside = spans[(spans["start_ns"] >= window.start_ns) & (spans["start_ns"] < window.end_ns)]
        own = inside[(inside["thread"] == window.pid) & inside["name"].notna()]
        if len(own):
            own_sums, all_sums = _sums_of_spans(own), _sums_of_spans(inside)
            sizes = (window.steps, float(window.spent_ns))
            return Seen(report, capture, "window", own_sums, all_sums, *sizes, inside, window.pid)
    return None


def _is_complete(report: Report, capture: Capture, spans: pandas.DataFrame, pid: int) -> bool:
    sums = judging.of_capture(report.table("syscalls"), [capture.id])
    if sums is None or not sums["thread"].notna().any():
        return True
    there = float(sums[sums["thread"] == pid]["count"].sum())
    return float((spans["thread"] == pid).sum()) >= COMPLETE * there


def _sums_of_spans(spans: pandas.DataFrame) -> pandas.DataFrame:
    groups = spans.groupby("name")
    sums = groups["duration_ns"].agg(count="count", total_ns="sum")
    sums["errors"] = groups["error"].count() if "error" in spans.columns else 0
    return sums


def _of_threads(report: Report, capture: Capture) -> Seen | None:
    """Sums by thread over the whole pass: those of the main thread."""
    rows = judging.of_capture(report.table("syscalls"), [capture.id])
    if rows is None:
        return None
    window, run = judging.steady_window(report, capture.pass_id), capture.run
    pid = window.pid if window else run.pid if run else None
    own = rows[rows["thread"] == pid] if pid is not None else rows[:0]
    if not len(own):
        return None
    every = _sums(rows)
    sizes, processes = _whole(report, capture), _processes(report, capture, every)
    return Seen(report, capture, "thread", _sums(own), every, *sizes, None, pid, *processes)


def _of_all(report: Report, capture: Capture) -> Seen | None:
    """Sums over all processes."""
    for name in ("syscalls", "os_calls_summary"):
        rows = judging.of_capture(report.table(name), [capture.id])
        if rows is not None and len(rows):
            every = _sums(rows if "errors" in rows.columns else rows.assign(errors=0))
            sizes, processes = _whole(report, capture), _processes(report, capture, every)
            return Seen(report, capture, "tree", every, every, *sizes, None, None, *processes)
    return None


def _processes(report: Report, capture: Capture, sums: pandas.DataFrame) -> tuple[int, int]:
    """How many Python processes have started at most, and how many of them lived at a time; as far as anything tells:
    those that were seen from outside, the pids of the tables, the programs that were started (execve)."""
    run, samples = capture.run, report.table("samples")
    lasting = max(1, len(run.pythons), len(run.attached)) if run else 1
    if samples is not None:
        alive = samples[(samples["source"] == "tree") & (samples["metric"] == "processes")]["value"].dropna()
        lasting = max(lasting, int(alive.max())) if len(alive) else lasting
    pids = [judging.of_capture(report.table(name), [capture.id]) for name in ("syscalls", "syscall_spans", "os_calls")]
    told = [frame["pid"].nunique() for frame in (*pids, report.table("host_time")) if frame is not None]
    programs = sums.loc[[name for name in STARTS if name in sums.index], "count"].sum()
    return max(lasting, int(programs), *told, 1), lasting


def _sums(rows: pandas.DataFrame) -> pandas.DataFrame:
    timed = rows if "time" not in rows.columns else rows.assign(total_ns=rows["total_ns"].where(rows["time"] == "wall"))
    return timed.groupby("name")[["count", "errors", "total_ns"]].sum(min_count=1)


def _whole(report: Report, capture: Capture) -> tuple[int | None, float | None]:
    """The steps of the pass, and how long it took."""
    window, run = judging.steady_window(report, capture.pass_id), capture.run
    if window is not None:
        return window.steps, float(window.end_ns - window.start_ns)
    return None, (run.wall_s * 1e9 if run else None)


# ---------------------------------------------------------------- the rules


def _said(
    one: Seen, rule: str, category: str, names: tuple[str, ...], what: str, advice: str, **more: Any
) -> Iterator[Finding]:
    """The finding, where these calls cost enough. `what`: the sentence up to the share."""
    pct = one.share_pct(names, category) if more.get("pct") is None else more["pct"]
    severe, whole = judging.severity(pct), judging.steady(one.report)
    if severe is None or pct is None:
        return
    if not one.is_borne_out:
        severe = "minor"
    if category in _STATES and one.waits_for_data(category, pct):
        category = "input_pipeline"
    best: Mapping[str, Confidence] = {"window": "high", "thread": "medium", "tree": "low"}
    common = max((name for name in names if name in one.own.index), key=lambda n: one.own.at[n, "count"], default=None)
    call = more.get("call", common)
    family = more.get("family") or _KERNEL.get(call or "", call)
    yield Finding(
        rule=rule,
        category=category,
        severity=severe,
        title=f"{what}: {pct:.0f} % of {whole.of}",
        advice=advice,
        confidence=judging.confidence(one.report, [one.capture.id], best[one.kind]),
        where={k: v for k, v in (("syscall", call), ("path", more.get("path"))) if v is not None},
        cost_s=whole.cost_s(pct),
        cost_pct=round(pct, 2),
        of=whole.of,
        evidence=(*_counts(one, names), *more.get("evidence", ())),
        sources=(one.capture.id,),
        cause=category if category == "input_pipeline" or not family else f"{category}:{family}",
    )


def _counts(one: Seen, names: Iterable[str]) -> Iterator[Evidence]:
    """The calls behind it, the most frequent first."""
    there = one.own.loc[[name for name in names if name in one.own.index]].sort_values("count", ascending=False)
    for name, row in there[there["count"] > 0].head(3).iterrows():
        yield Evidence("syscalls", str(name), float(row["count"]), "calls")


def _often(one: Seen, count: float) -> str:
    """`12.0 times a step`, or how often in all where nobody knows how many of them are the steps'."""
    per_step = one.per_step(count)
    if one.kind != "window" or per_step is None:
        return f"{count:,.0f} times in the whole run"
    return f"{per_step:,.1f} times a step"


def _in_loop(one: Seen, count: float, least: float) -> bool:
    """Whether there are so many a step; without steps, many at all."""
    per_step = one.per_step(count)
    return count >= STORM if per_step is None else per_step >= least and count >= MANY


def tiny_io(one: Seen) -> Iterator[Finding]:
    """Reads, or writes, of a few bytes each: the kernel is entered for every one. Seen by the bytes and calls of one
    path, which a start-up never reads a thousand times; without paths (a summary) only their number is told."""
    for names, verb in ((READS, "Reads"), (WRITES, "Writes")):
        count = one.count(names)
        if not _in_loop(one, count, MANY):
            continue
        path = _tiny_path(one, names)
        size = "" if path is None else f" of {path['bytes'] / path['count']:.0f} bytes on average"
        what = f"{verb}{size} enter the kernel {_often(one, count)}"
        advice = (
            "Move more at a time: open the file buffered (`open(path, 'rb')`, a larger `buffering`), read it at once "
            "or map it (mmap, numpy.memmap), and collect what is written."
        )
        rows = () if path is None else (Evidence("syscall_paths", path["path"], float(path["bytes"]), "bytes"),)
        where = None if path is None else path["path"]
        if path is not None or not _knows_paths(one):
            yield from _said(one, "tiny_io", "file_io", names, what, advice, path=where, evidence=rows)


def _knows_paths(one: Seen) -> bool:
    return judging.of_capture(one.report.table("syscall_paths"), [one.capture.id]) is not None


def _tiny_path(one: Seen, names: tuple[str, ...]) -> Any:
    """The path with the most of these calls, where they move less than TINY_BYTES each."""
    paths = judging.of_capture(one.report.table("syscall_paths"), [one.capture.id])
    if paths is None:
        return None
    mostly = paths["names"].str.split(",").str[0].isin(names)
    tiny = paths[mostly & (paths["count"] >= 1000) & (paths["bytes"] < TINY_BYTES * paths["count"])]
    return None if not len(tiny) else tiny.loc[tiny["count"].idxmax()]


def opened_again(one: Seen) -> Iterator[Finding]:
    """The same file is opened at every step: what was read of it could be kept. Needs single calls with paths; what a
    data set opens are other files each time. One that is read in very many pieces is `tiny_io`'s."""
    if one.spans is None or "path" not in one.spans.columns:
        return
    opens = one.spans[one.spans["name"].isin(OPENS) & (one.spans["thread"] == one.pid) & one.spans["error"].isna()]
    times = opens["path"].value_counts()
    if not len(times) or not _in_loop(one, float(times.iloc[0]), SOME_STEPS):
        return
    path, count = str(times.index[0]), float(times.iloc[0])
    rows = one.spans[(one.spans["path"] == path) & (one.spans["thread"] == one.pid)]
    if not 0 < rows["name"].isin(READS).sum() <= STORM * count:
        return
    cost_ns = max(0.0, float(rows["duration_ns"].sum()) - len(rows) * one.floor_ns)
    least_ns = sum(map(_least_ns, rows["name"]))
    pct = one.pct(cost_ns, least_ns, _STATES["file_io"]) or 0.0
    advice = "Read it once and keep what was read, or keep it open."
    what = f"One file is opened and read again {_often(one, count)}"
    evidence = (Evidence("syscall_spans", path, count, "times opened"),)
    yield from _said(
        one, "opened_again", "file_io", (*OPENS, *READS), what, advice, path=path, pct=pct, evidence=evidence,
        family="openat",
    )  # fmt: skip


def sync_in_loop(one: Seen) -> Iterator[Finding]:
    """fsync and its like wait until the disk has it: milliseconds, where a write takes microseconds. No start-up makes
    them."""
    count = one.count(SYNCS)
    if _in_loop(one, count, SOME_STEPS):
        what = f"The program waits for the disk (fsync and its like) {_often(one, count)}"
        advice = (
            "Flush to disk every so many steps, or at the end: a log needs no fsync, and a checkpoint one for the "
            "whole. Write to a second thread where the loop must not wait."
        )
        yield from _said(one, "sync_in_loop", "file_io", SYNCS, what, advice, path=_path_of(one, SYNCS))


def stat_storm(one: Seen) -> Iterator[Finding]:
    """The program asks the file system again and again whether a file is there, or what it is like."""
    count = one.count(LOOKS)
    if _in_loop(one, count, MANY):
        failed = one.errors(LOOKS)
        said = f", {100 * failed / count:.0f} % in vain" if failed else ""
        what = f"Files are looked up (stat, access) {_often(one, count)}{said}"
        advice = "List the folder once (os.scandir brings the kind of each file along), and keep what was found."
        yield from _said(one, "stat_storm", "file_io", LOOKS, what, advice, path=_path_of(one, LOOKS))


def failed_opens(one: Seen) -> Iterator[Finding]:
    """Files are tried that are not there: a search through many folders, at every step."""
    failed = one.errors(OPENS)
    if _in_loop(one, failed, 1.0) and failed >= one.count(OPENS) / 2:
        what = f"Files that are not there are opened {_often(one, failed)}"
        advice = "Find the file once and keep its path; import modules at the beginning, not in the loop."
        yield from _said(one, "failed_opens", "file_io", OPENS, what, advice)


def spawn_in_loop(one: Seen) -> Iterator[Finding]:
    """Another program is started in every second step or more often: fork, exec, loading and its end take
    milliseconds, and the step waits. execve stands in the child, so those of all processes count; what it costs is the
    time in which the main thread starts and waits."""
    count = one.count(STARTS, everyone=True)
    if _in_loop(one, count, SOME_STEPS):
        what = f"Another program is started {_often(one, count)}"
        advice = (
            "Do it in the process itself (a library), ask once and keep the answer, or leave one helper running and "
            "talk to it through a pipe."
        )
        waits = (*STARTING, *(("read",) if one.kind == "window" else ()))
        yield from _said(one, "spawn_in_loop", "process_spawn", waits, what, advice, call="execve", family="clone")


def sleeping(one: Seen) -> Iterator[Finding]:
    """The main thread sleeps of its own accord. In a summary of all threads that may be any of them."""
    count = one.count(SLEEPS)
    if one.kind != "tree" and _in_loop(one, count, SOME_STEPS):
        mean_ms = one.blocked_ns(SLEEPS) / count / 1e6
        what = f"The main thread sleeps {_often(one, count)}, {mean_ms:.1f} ms each"
        advice = "Wait for the event itself (a queue, a condition, a future) instead of sleeping and looking again."
        yield from _said(one, "sleeping", "idle_wait", SLEEPS, what, advice)


def polling(one: Seen) -> Iterator[Finding]:
    """The main thread asks again and again whether something has come, and does not wait in between. Only calls that
    return at once count: an event loop waits in the same calls until there is something to do. Of sums, where all of
    a name return at once on average."""
    count, blocked_ns = _at_once(one)
    if one.kind == "tree" or not _in_loop(one, count, STORM):
        return
    pct = one.pct(blocked_ns, count * CALL_NS, POLLED)
    what = f"The main thread asks whether there is something to do {_often(one, count)}"
    advice = "Let it wait until there is: a blocking get, a poll with a time-out, an event."
    yield from _said(one, "polling", "idle_wait", POLLS, what, advice, pct=pct or 0.0)


def _at_once(one: Seen) -> tuple[float, float]:
    """How many of POLLS return at once, and what these took beyond what the tool adds."""
    if one.spans is not None:
        own = one.spans[one.spans["name"].isin(POLLS) & (one.spans["thread"] == one.pid)]
        spent = (own["duration_ns"] - one.floor_ns).clip(lower=0)
        quick = spent[spent <= AT_ONCE_NS]
        return float(len(quick)), float(quick.sum())
    counts = {name: one.count([name]) for name in POLLS if name in one.own.index and one.own["total_ns"].notna()[name]}
    quick = [name for name, count in counts.items() if count and one.blocked_ns([name]) <= AT_ONCE_NS * count]
    return sum(counts[name] for name in quick), one.blocked_ns(quick)


def futex_convoy(one: Seen) -> Iterator[Finding]:
    """Threads of one process stand in each other's way. A thread that waits for Python's lock gives up after 5 ms and
    asks for it (ETIMEDOUT), again and again: of these waits no other habit makes as many. Another lock is held against
    the main thread when it waits for it many times a step, and a second thread does so as often. One long wait (for a
    worker, for a result) is none of that."""
    if one.spans is None or not one.span_ns or "error" not in one.spans.columns:
        return
    waits = one.spans[(one.spans["name"] == "futex") & (one.spans["pid"].fillna(one.pid) == one.pid)]
    timed = waits[(waits["error"] == "ETIMEDOUT") & waits["duration_ns"].between(*SWITCH_NS)]
    if len(timed) >= SWITCHES_PER_S * one.span_ns / 1e9:
        threads = timed["thread"].nunique()
        what = f"{threads} threads waited {len(timed):,} times for Python's lock until they asked for it (5 ms)"
        advice = "Only one thread at a time runs Python: use processes, or code that lets go of the lock."
        evidence = (Evidence("syscall_spans", "futex ETIMEDOUT", float(len(timed)), "waits"),)
        yield from _said(one, "futex_convoy", "gil_contention", ("futex",), what, advice, evidence=evidence)
        return
    counts = waits["thread"].value_counts()
    own, others = float(counts.get(one.pid, 0)), counts.drop(one.pid, errors="ignore")
    if _in_loop(one, own, STORM) and len(others) and others.iloc[0] >= own / 4:
        what = f"The main thread waits for a lock, or wakes who does, {_often(one, own)}, with {len(others)} others"
        advice = "Hold the lock for less, hand over more at a time, or give each thread its own."
        yield from _said(one, "futex_convoy", "lock_contention", ("futex",), what, advice)


def memory_calls(one: Seen) -> Iterator[Finding]:
    """Memory is taken from the kernel and given back at every step: each new page is cleared and mapped again."""
    count = one.count(MEMORY)
    if _in_loop(one, count, MANY):
        what = f"Memory is taken from the kernel or given back {_often(one, count)}"
        advice = (
            "Keep buffers and write into them (`out=`, in-place operators); or let the allocator keep what is freed: "
            "MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ in the environment, jemalloc or tcmalloc by LD_PRELOAD."
        )
        yield from _said(one, "memory_calls", "memory_management", MEMORY, what, advice)


def connect_in_loop(one: Seen) -> Iterator[Finding]:
    """A new connection for every request: a round trip before the first byte, more with TLS. What is sent and received
    over it would be so over a kept one too."""
    count = one.count(("connect",))
    if _in_loop(one, count, SOME_STEPS):
        what = f"A new connection is made {_often(one, count)}"
        advice = "Keep the connection open (requests.Session, a pool, keep-alive), and fetch ahead in another thread."
        yield from _said(one, "connect_in_loop", "network_io", CONNECTS, what, advice)


def delayed_ack(one: Seen) -> Iterator[Finding]:
    """Answers come 40 ms late, nearly every time: the other side holds back its acknowledgement, and this side the rest
    of a request that it sends in small pieces. Told only where two or more small sends come before each such wait."""
    if one.spans is None:
        return
    own = one.spans[one.spans["thread"] == one.pid]
    receives = own[own["name"].isin(RECEIVES)]
    late = receives[receives["duration_ns"].between(*DELAYED_ACK_NS)]
    sends = own["name"].isin(SENDS).sum()
    if len(late) >= MANY and len(late) >= MOST * len(receives) and sends >= 2 * len(late):
        what = f"{len(late):,} of {len(receives):,} answers came 40 ms late, as after a request in small pieces"
        advice = "Send a request by one call, or set TCP_NODELAY on the socket."
        yield from _said(one, "delayed_ack", "network_io", RECEIVES, what, advice)


def _path_of(one: Seen, names: tuple[str, ...]) -> str | None:
    """The path that most of these calls of the window are about."""
    if one.spans is None or "path" not in one.spans.columns:
        return None
    paths = one.spans[one.spans["name"].isin(names) & (one.spans["thread"] == one.pid)]["path"].value_counts()
    return str(paths.index[0]) if len(paths) else None


CHECKS = (
    tiny_io, opened_again, sync_in_loop, stat_storm, failed_opens, spawn_in_loop, sleeping, polling, futex_convoy,
    memory_calls, connect_in_loop, delayed_ack,
)  # fmt: skip

FEED = "collectors:\n  - {use: strace, mode: trace}"


def system_calls(report: Report) -> Iterator[Finding | Abstention]:
    """All of the rules above, on what the best capture has seen of the loop."""
    one = seen(report)
    if one is not None:
        for check in CHECKS:
            yield from check(one)
    elif not report.run.imported and any(record.run for record in report.passes):
        yield Abstention("system_calls", "no system calls were recorded", FEED)


RULES = (system_calls,)
