"""Rules over `host_time`: what the thread that makes the steps does and waits for, and whose fault that is.

The method: of each sample of that thread in the steady steps the native leaf tells the state, Python's frames the place
(locating/frames.py). A wait for another thread or process is put to what those did meanwhile. Work that is the
program's purpose (PyTorch's and NumPy's own) is told, and no fault."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator import judging, stats
from orchestrator.formats.stacks import is_own, split_frame
from orchestrator.locating.frames import HELD
from orchestrator.model import USABLE, Abstention, Evidence, Finding
from orchestrator.report import Report

if TYPE_CHECKING:
    import pandas

ENOUGH_SAMPLES, MANY_SAMPLES = 30, 100
"""A share of 30 % has an interval (95 %, normal approximation) of +-16 points with 30 samples, of +-9 with 100."""
AT_WORK = frozenset({"python", "native"})
LOOP_CALLS, LOOP_NS = 100, 10_000.0
"""A function that calls one operator as many times a step, and spends less than that each time, goes over its tensor by
pieces: some microseconds of each call are PyTorch's dispatch. The layers of a deep network stay below."""

_CATEGORIES: dict[str, str] = {
    "file": "file_io",
    "network": "network_io",
    "child": "process_spawn",
    "sleep": "idle_wait",
    "memory": "memory_management",
    "gc": "memory_management",
    "device": "host_sync",
    "gil": "gil_contention",
    "lock": "lock_contention",
    "collective": "communication",
    "pipe": "idle_wait",
    "import": "python_cpu",
    "compile": "warmup",
    "python": "python_cpu",
    "native": "native_cpu",
    "unknown": "python_cpu",
}
_OF_PHASES = {"data": "input_pipeline", "checkpoint": "file_io"}
"""Whatever the thread does in these phases of a step is for one purpose."""
_SYSCALLS = {
    **dict.fromkeys(("open", "open64", "openat64", "creat", "opendir"), "openat"),
    **dict.fromkeys(("stat", "lstat", "stat64", "lstat64", "fstatat", "fstatat64"), "newfstatat"),
    **dict.fromkeys(("readdir", "readdir64", "scandir"), "getdents64"),
    **dict.fromkeys(("wait", "waitpid", "wait3"), "wait4"),
    "lseek64": "lseek",
    "pread": "pread64",
    "pwrite": "pwrite64",
    "recv": "recvfrom",
    "send": "sendto",
    "fork": "clone",
    "posix_spawn": "vfork",
    "nanosleep": "clock_nanosleep",
    "eaccess": "faccessat2",
}
"""What glibc calls on x86-64 for a function that is not a system call by the same name."""
_CALLS_OF = {"process_spawn": "clone", "gil_contention": "futex", "lock_contention": "futex"}
"""The call that these come down to, whatever the thread was in: the word of the rules over system calls."""
_BY_SYSCALLS = frozenset({"file_io", "network_io", "process_spawn", "idle_wait"})
_FILE_LOCKS = frozenset({"flock", "lockf", "fcntl"})
_PROFILED_STEP = "ProfilerStep*"
_PHASES = frozenset({"forward", "backward", "optimizer"})
_OF_OTHERS = frozenset({"gil", "lock", "pipe"})
"""The waits that are put to what others did meanwhile."""


COPIES_FROM_PCT = 15.0
"""Less in copies is what a batch on its way takes: it is collated, cast, written into its place."""


@dataclass
class Place:
    """The time of one category at one function."""

    category: str
    function: str
    file: str | None
    line: int | None
    pct: float = 0.0
    samples: int = 0
    is_purpose: bool = False
    """It is the framework's own work."""
    details: dict[str, float] = field(default_factory=dict)
    """The shares of what it consists of: native functions, operators, library functions."""
    called: dict[str, float] = field(default_factory=dict)
    """Likewise of the operators alone that were called outside of forward, backward and the optimizer."""
    fetched_pct: float = 0.0
    """Of it, what passes in the loader's next: the part that bare runs have timed."""
    worst_pct: float = 0.0
    is_calm: bool = False
    """It waits for somebody to ask, or for events of which stacks don't tell who awaits them."""
    is_guess: bool = False
    """Samples tell only where the thread was; that it worked there, or waited, is told of the whole process."""
    is_elsewhere: bool = False
    """It is what another thread or process did, for which this one waited."""

    @property
    def detail(self) -> str | None:
        return max(self.details, key=lambda one: (self.details[one], one), default=None)


def where_the_time_goes(report: Report) -> Iterator[Finding | Abstention]:
    """One finding for each function that takes, or waits for, a share of the steady steps worth telling (3 %).

    Reasoning: a thread that makes the steps can only be made faster by what it does or waits for; so shares of its wall
    time are what could be won back at most. Each place is told once, by what it costs."""
    for capture in _captures(report):
        rows = _main_rows(report, capture)
        if rows is None:
            continue
        if not rows["native"].notna().any():
            yield Abstention(
                "where_the_time_goes", "native frames: they tell what is waited for", "{use: py-spy, native: true}"
            )
        found = _as_bare(places(rows, _is_at_work(report, capture)), _bare_data_pct(report))
        told = sorted(found, key=lambda place: -place.pct)
        firsts: set[str] = set()
        for place in told:
            finding = _finding(report, capture, place, rows, is_first=place.category not in firsts)
            if finding is not None:
                firsts.add(place.category)
                yield finding
        return
    if not _captures(report) and any(c.collector == "timing" and c.status in USABLE for c in report.captures):
        yield Abstention("where_the_time_goes", "samples of the program's stacks", "{use: py-spy, native: true}")


def shares(report: Report) -> dict[str, float]:
    """Category -> % of the same steady steps; of a run without samples what the loader took of its bare runs."""
    data_pct = _bare_data_pct(report)
    for capture in _captures(report):
        rows = _main_rows(report, capture)
        if rows is not None:
            found: dict[str, float] = {}
            for place in _as_bare(places(rows, _is_at_work(report, capture)), data_pct):
                found[place.category] = found.get(place.category, 0.0) + place.pct
            return {name: round(pct, 2) for name, pct in found.items()}
    return {} if data_pct is None else {"input_pipeline": round(data_pct, 2)}


def _captures(report: Report) -> list[str]:
    """Those with stacks in time, with native frames first: they tell more."""
    ours = [c for c in report.captures if c.collector == "py-spy" and c.status in USABLE]
    return [c.id for c in sorted(ours, key=lambda c: not c.options.get("native"))]


def _main_rows(report: Report, capture: str) -> pandas.DataFrame | None:
    """The rows of the thread of the steps in its steady part; without steps of the whole, its imports left out."""
    frame = judging.of_capture(report.table("host_time"), [capture])
    if frame is None:
        return None
    main = frame[frame["role"] == "main"]
    steady = main[main["part"] == "steady"]
    if len(steady):
        return steady
    every = main[main["part"] == "all"]
    whole = every[every["state"] != "import"]
    share = float(whole["total_ns"].sum() / every["total_ns"].sum()) if len(whole) else 0.0
    return whole.assign(part_ns=whole["total_ns"].sum(), kept=share) if len(whole) else None


def places(rows: pandas.DataFrame, at_work: bool | None = None) -> list[Place]:
    """The time of the rows by category and function. at_work: whether the process used a processor where samples leave
    it unknown what the thread did; None: that is unknown too, and nothing is made of them."""
    found: dict[tuple[Any, ...], Place] = {}
    for row in rows.to_dict("records"):
        one = _Row({key: None if value is _na() else value for key, value in row.items()})
        category, where, line = one.blamed()
        elsewhere = where != (one["function"] or "?", one["file"])
        unknown = one["state"] == "unknown"
        if unknown and at_work is None:
            continue
        if unknown and not at_work:
            category = "idle_wait"
        function, file = where
        code = one["behind_code"] if elsewhere else one["code"]
        purpose = category in ("native_cpu", "python_cpu") and code == "framework" and not unknown
        key = (category, function, file, purpose, elsewhere)
        place = found.setdefault(key, Place(category, function, file, line, is_purpose=purpose, is_elsewhere=elsewhere))
        place.is_guess |= unknown
        place.is_calm |= one["state"] in ("idle", "events")
        place.pct += one.pct
        place.samples += int(one["samples"] or 0)
        place.fetched_pct += one.pct if one["phase"] == "data" and "__next__" in (one["below"] or "__next__") else 0.0
        if one.pct > place.worst_pct:
            place.worst_pct, place.line = one.pct, line
        if not elsewhere and (told := one.detail()):
            place.details[told] = place.details.get(told, 0.0) + one.pct
            if one["op"] and one["phase"] not in _PHASES:
                place.called[told] = place.called.get(told, 0.0) + one.pct
    return _with_answers(_with_contention(_with_backward(found.values(), rows)))


def _is_at_work(report: Report, capture: str) -> bool | None:
    """Whether the process used a processor for the larger part of its steady steps; None where nobody counted."""
    pass_id = next((c.pass_id for c in report.captures if c.id == capture), "")
    of_pass = [c.id for c in report.captures if c.pass_id == pass_id]
    frame = judging.of_capture(report.table("steps"), of_pass)
    if frame is None:
        return None
    known = frame[frame["cpu_ns"].notna() & frame["duration_ns"].notna() & frame["warmup"].eq(False)]
    return bool(known["cpu_ns"].sum() > known["duration_ns"].sum() / 2) if len(known) else None


def _bare_data_pct(report: Report) -> float | None:
    """What the loader takes of the steady steps of the bare runs, in %; None where there is none to be seen."""
    bare = {record.id for record in report.passes if record.role == "bare"}
    frame = judging.of_capture(report.table("steps"), (c.id for c in report.captures if c.pass_id in bare))
    if frame is None:
        return None
    steady = frame[frame["warmup"].eq(False) & frame["data_wait_ns"].notna() & frame["duration_ns"].notna()]
    return 100 * float(steady["data_wait_ns"].sum() / steady["duration_ns"].sum()) if len(steady) else None


def _as_bare(found: list[Place], data_pct: float | None) -> list[Place]:
    """Workers and the program hand batches over the more slowly the more often samples stop them: where the bare runs
    have timed the loader's next, samples only tell where inside. What passes in making a loader is beside that."""
    waits = [place for place in found if place.category == "input_pipeline"]
    seen_pct = sum(place.fetched_pct for place in waits)
    if data_pct is not None and seen_pct > data_pct:
        for place in waits:
            place.pct -= place.fetched_pct * (1 - data_pct / seen_pct)
    return found


def _na() -> Any:
    import pandas

    return pandas.NA


class _Row(dict[str, Any]):
    """A row of `host_time`, unknown values as None."""

    @property
    def pct(self) -> float:
        return 100 * float(self["total_ns"]) / float(self["part_ns"])

    def blamed(self) -> tuple[str, tuple[str, str | None], int | None]:
        """The category, the function and file that it is put to, and the line."""
        state, own = self["state"], ((self["function"] or "?"), self["file"])
        place: tuple[tuple[str, str | None], int | None] = own, self["line"]
        is_own_lock = state == "lock" and not self["below"] and HELD.match(self["native"] or "")
        function, file, line = split_frame(self["behind"] or "")
        if file and is_own(file) and state in _OF_OTHERS and not is_own_lock:
            place = ((function, file), line)
            state = state if state == "gil" else self["behind_state"] or state
        category = _OF_PHASES.get(self["phase"]) or _CATEGORIES.get(state, "idle_wait")
        return category, *place

    def detail(self) -> str | None:
        """What it is that takes the time there."""
        if self["code"] == "framework":
            names = ("op", "phase")
        else:
            names = ("op", "below") if self["state"] in AT_WORK else ("native", "below")
        return next((str(self[name]) for name in names if self[name]), None)


def _with_contention(found: list[Place]) -> list[Place]:
    """A thread that waits for what others do in Python, and then queues up for the lock that they hold, suffers of one
    thing: at least a quarter of such waits is for the lock."""
    kept = []
    locks = {(place.function, place.file): place for place in found if place.category == "gil_contention"}
    for place in found:
        lock = locks.get((place.function, place.file))
        if lock and place.is_elsewhere and place.category == "python_cpu" and lock.pct >= (lock.pct + place.pct) / 4:
            lock.pct, lock.samples = lock.pct + place.pct, lock.samples + place.samples
        else:
            kept.append(place)
    return kept


def _with_answers(found: list[Place]) -> list[Place]:
    """A function that starts a child and then reads, reads the child's answer: from a pipe, which stacks can't tell
    from a file. At least a quarter of both is for the start."""
    kept = []
    starts = {(place.function, place.file): place for place in found if place.category == "process_spawn"}
    for place in found:
        start = starts.get((place.function, place.file))
        reads = place.category == "file_io" and (place.detail or "").startswith("read (")
        if start and reads and start.pct >= (start.pct + place.pct) / 4:
            start.pct, start.samples = start.pct + place.pct, start.samples + place.samples
        else:
            kept.append(place)
    return kept


def _with_backward(found: Iterable[Place], rows: pandas.DataFrame) -> list[Place]:
    """The framework's work in backward is that of the functions that ran forward: it is put to them, in proportion."""
    every = list(found)
    backward = rows[(rows["phase"] == "backward") & (rows["code"] == "framework") & rows["state"].isin(AT_WORK)]
    forward = rows[(rows["phase"] == "forward") & (rows["code"] == "framework") & rows["state"].isin(AT_WORK)]
    if not len(backward) or not len(forward):
        return every
    whole_ns = float(rows["part_ns"].iloc[0])
    moved = {(r.function, r.state): 0.0 for r in backward.itertuples()}
    for row in backward.itertuples():
        moved[row.function, row.state] += 100 * float(row.total_ns) / whole_ns
    weights = forward.groupby("function")["total_ns"].sum()
    shares = {function: float(ns) / float(weights.sum()) for function, ns in weights.items()}
    purposes = [place for place in every if place.is_purpose and place.category == "native_cpu"]
    for place in purposes:
        place.pct -= moved.get((place.function, "native"), 0.0)
    gone = sum(pct for (_, state), pct in moved.items() if state == "native")
    for place in purposes:
        place.pct += gone * shares.get(place.function, 0.0)
    return every


def _finding(report: Report, capture: str, place: Place, rows: pandas.DataFrame, is_first: bool) -> Finding | None:
    has_steps = bool((rows["part"] == "steady").any())
    severity, queue = judging.severity(place.pct), _queue(report)
    if severity is None or (queue and place.category == "host_sync"):
        return None
    least_pct = 100 * stats.least_share(min(1.0, place.pct / 100), int(rows["samples"].sum()))
    severity = judging.severity(least_pct) or "minor"  # of few samples a share may be large by chance
    fault = _fault(report, place, rows, least_pct) if place.is_purpose else None
    calm = (
        queue == "dense"
        or (place.is_purpose and not fault)
        or place.is_calm
        or place.is_guess
        or (not has_steps and place.category in ("python_cpu", "native_cpu"))
    )
    whole = judging.steady(report)
    if has_steps and "step_s" not in report.metrics:  # too few to tell a warm-up: all but the first (windows.py)
        whole = judging.Whole(None, "the steps after the first")
    kept = float(rows["kept"].iloc[0]) if "kept" in rows else 1.0
    of = whole.of if has_steps else "a bare run, its imports left out"
    where: dict[str, Any] = {"function": place.function}
    where |= {"file": place.file} if place.file else {}
    where |= {"line": place.line} if place.line else {}
    where |= _named(place) or ({"op": op} if place.is_purpose and (op := _costliest_op(report)) else {})
    return Finding(
        rule="where_the_time_goes",
        category=place.category,
        severity="minor" if calm else "major" if fault and severity == "critical" else severity,
        title=_title(place, _window(report, has_steps)) + (f", {fault[0]}" if fault else ""),
        advice=fault[1] if fault else _advice(place),
        confidence=_confidence(report, capture, place),
        where=where,
        cost_s=whole.cost_s(place.pct * kept),
        cost_pct=round(place.pct, 1),
        of=of,
        evidence=tuple(_evidence(place)),
        sources=(capture,),
        cause=_cause(place, queue) if is_first and not calm else f"{place.category}:{place.function}",
        healthy=place.is_purpose and not fault,
    )


def _fault(report: Report, place: Place, rows: pandas.DataFrame, least_pct: float) -> tuple[str, str] | None:
    """What speaks against the framework's work there being what the program is for, as the end of the title, and
    advice: it goes over a tensor by pieces, it copies, or it is NumPy's in a program that trains with PyTorch."""
    op = max(place.called, key=lambda name: place.called[name], default=None)
    if op is None or op != place.detail:
        return None
    if often := _often(report, op):
        return f"called {often}", _IN_ONE
    if op in judging.COPYING and least_pct >= COPIES_FROM_PCT:
        return "which only copies", _ONCE
    trains = rows["phase"].isin(["backward", "optimizer"]).any()
    of_numpy = sum(pct for name, pct in place.called.items() if name.startswith("numpy."))
    return ("NumPy's, beside the training", _AHEAD) if trains and of_numpy >= place.pct / 2 else None


def _often(report: Report, op: str) -> str | None:
    """How often it is called and how long it takes, where that is a loop over pieces (LOOP_CALLS)."""
    frame = report.table("torch_ops")
    if frame is None:
        return None
    per_name = frame[frame["device"] == "cpu"].groupby("name")[["count", "cpu_total_ns"]].sum()
    if op not in per_name.index or _PROFILED_STEP not in per_name.index:
        return None
    calls, steps = float(per_name["count"][op]), float(per_name["count"][_PROFILED_STEP])
    each_ns = float(per_name["cpu_total_ns"][op]) / calls if calls else math.inf
    if calls < LOOP_CALLS * steps or each_ns > LOOP_NS:
        return None
    return f"{calls / steps:,.0f} times a step, {each_ns / 1000:.1f} us each"


_IN_ONE = (
    "One operator on the whole tensor in place of a loop over its pieces: a mask, where(), clamp(), gather(), a batch. "
    "Each call costs some microseconds before it computes."
)
_ONCE = (
    "What grows by concatenation is copied whole each time: reserve room and write into it, or collect in a list and "
    "join once."
)
_AHEAD = "Do it ahead, in the workers of a DataLoader or another thread, or once before the steps."


def _window(report: Report, has_steps: bool) -> str:
    if not has_steps:
        return "the run"
    return "the steady steps" if "step_s" in report.metrics else "the steps after the first"


def _queue(report: Report) -> str | None:
    """How the work of the busiest GPU lies; None without one. Where it is dense, the host is not what the steps wait
    for; and what the host waits for on the GPU is for the GPU's rules to tell."""
    frame = report.table("gpu_time")
    if frame is None or not len(frame):
        return None
    return str(frame.sort_values("window_ns", ascending=False)["queue"].iloc[0])


def _cause(place: Place, queue: str | None) -> str:
    """The words of the rules that know of the same: with a GPU why it waits for the host, else the system call."""
    if queue and place.category != "input_pipeline":
        return f"gpu waits: {place.category}"
    call = _CALLS_OF.get(place.category) or _named(place).get("syscall")
    return f"{place.category}:{call}" if call else place.category


def _named(place: Place) -> dict[str, str]:
    """The system call or operator behind it."""
    if place.detail is None:
        return {}
    name, is_native, _ = place.detail.partition(" (")
    if name.startswith(("aten::", "numpy.")):
        return {"op": name}
    plain = name.lstrip("_").lower()
    names_call = place.category in _BY_SYSCALLS or plain in _FILE_LOCKS
    return {"syscall": _SYSCALLS.get(plain, plain)} if is_native and names_call else {}


def _costliest_op(report: Report) -> str | None:
    """PyTorch's operator with the most time of its own on the CPU: where native frames end in a library that can't be
    walked through (MKL), they name none."""
    frame = report.table("torch_ops")
    if frame is None:
        return None
    own = frame[frame["name"].str.startswith("aten::") & (frame["device"] == "cpu")]
    spent = own.groupby("name")["cpu_self_ns"].sum()
    return str(spent.idxmax()) if len(spent) else None


def _evidence(place: Place) -> Iterator[Evidence]:
    yield Evidence("host_time", f"{place.category} {place.function}", round(place.pct, 1), "% of the window")
    yield Evidence("host_time", f"{place.category} {place.function}", place.samples, "samples")
    for name, pct in sorted(place.details.items(), key=lambda item: -item[1])[:3]:
        yield Evidence("host_time", name, round(pct, 1), "% of the window")


def _confidence(report: Report, capture: str, place: Place) -> judging.Confidence:
    """By the number of samples, and by how far the run was bent by taking them."""
    if place.samples < ENOUGH_SAMPLES or place.is_guess:
        return "low"
    return judging.confidence(report, [capture], "high" if place.samples >= MANY_SAMPLES else "medium")


# ---------------------------------------------------------------- words

_DOES = {
    "file_io": "waits for files",
    "network_io": "waits for the network",
    "process_spawn": "starts processes and waits for them",
    "idle_wait": "waits, with nothing to do",
    "memory_management": "manages memory",
    "host_sync": "waits for the GPU",
    "gil_contention": "waits while threads contend for Python's lock",
    "lock_contention": "waits for a lock",
    "python_cpu": "runs Python",
    "native_cpu": "runs native code",
    "input_pipeline": "waits for its data",
    "communication": "waits for other ranks",
    "warmup": "compiles",
}
_ELSEWHERE = {
    "file_io": "waits for files",
    "network_io": "waits for the network",
    "process_spawn": "starts processes",
    "idle_wait": "sleeps",
    "python_cpu": "runs Python",
    "native_cpu": "runs native code",
    "memory_management": "manages memory",
}
_ADVICE = {
    "file_io": "Do it less often, in larger pieces, or in another thread.",
    "network_io": "Ask for the next piece before it is needed, keep the connection open, or ask for several at once.",
    "process_spawn": "Ask once and keep the answer, keep one child and talk to it, or do it inside the program.",
    "idle_wait": "Find out what the wait is for: remove it, or let something useful happen meanwhile.",
    "memory_management": "Reuse what is allocated; for the collector, gc.freeze() after the start and fewer cycles.",
    "host_sync": "Keep values on the GPU and look at them every N steps: .item(), .cpu() and print(tensor) wait for "
    "all work queued so far.",
    "gil_contention": "Only one thread runs Python at a time: use processes, or move the work into code that releases "
    "the lock (NumPy, PyTorch).",
    "lock_contention": "Hold the lock for less work, or split what it protects.",
    "python_cpu": "Replace the loop by operations on whole arrays (NumPy, PyTorch), or move it out of the step.",
    "native_cpu": "Do it less often or in another process; look for a faster library or a cheaper setting.",
    "input_pipeline": "Load ahead: DataLoader(num_workers=N, persistent_workers=True, prefetch_factor=K); make the "
    "loading of one sample cheaper, or prepare it once and store it.",
    "communication": "Look which rank comes last, and why; overlap communication with work (DDP's buckets), send less.",
    "warmup": "Keep shapes and types constant, or mark them dynamic, so that nothing is compiled again.",
}
_BY_CALL: Mapping[str, str] = {
    "fsync": "Flush to disk every N steps or in another thread; without need for durability leave it out.",
    "fdatasync": "Commit every N steps, in one transaction.",
    "read": "Read in larger pieces: a buffered file, one read of the whole, or mmap.",
    "write": "Write in larger pieces: a buffer that is flushed now and then.",
    "open": "Open it once and keep it open.",
    "stat": "Look once and remember what was found.",
}


def _title(place: Place, window: str) -> str:
    name = _told(place)
    what = f": {name} in {_shown(place)}" if name and name != place.function else f" in {_shown(place)}"
    if place.is_guess:
        used = "waited for the larger part of them" if place.category == "idle_wait" else "was at work in most of them"
        return f"The main thread is in {_shown(place)} for {place.pct:.0f} % of {window}; the process {used}"
    if place.is_purpose:
        return f"{place.pct:.0f} % of {window} is the framework's own work{what}"
    if place.is_elsewhere and place.category in _ELSEWHERE:
        other = f"another thread or process, which {_ELSEWHERE[place.category]}: {_shown(place)}"
        return f"The main thread waits for {place.pct:.0f} % of {window} for {other}"
    if place.category == "gil_contention" or (place.category == "input_pipeline" and not name):
        what = f": {_shown(place)}"
    return f"The main thread {_DOES[place.category]} for {place.pct:.0f} % of {window}{what}"


def _told(place: Place) -> str | None:
    """What is behind it, in words that say more than the sentence does already."""
    name = place.detail.partition(" (")[0].lstrip("_") if place.detail else ""
    if place.category == "lock_contention" and name not in _FILE_LOCKS:
        return None
    return "the garbage collector" if name.startswith("gc_collect") else name or None


def _shown(place: Place) -> str:
    file = PurePosixPath(place.file).name if place.file else None
    return f"{place.function} ({file}:{place.line})" if file and place.line else place.function


def _advice(place: Place) -> str:
    if place.is_guess:
        return "`profrun why -- COMMAND` takes native frames, which tell what it does or waits for there."
    if place.is_purpose:
        return (
            "It computes there. Whether less would do (copies, repeated concatenation, many small operators) was not "
            "measured; else a lower precision, a smaller model, more or faster processors."
        )
    call = (place.detail or "").partition(" (")[0]
    special = next((text for name, text in _BY_CALL.items() if name in call), None)
    return special if special and place.category == "file_io" else _ADVICE[place.category]


RULES = (where_the_time_goes,)
