"""Where the time of the program's threads goes: the stacks of py-spy by state, place and part of the run; and behind
each wait what the other threads did meanwhile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from orchestrator.locating import frames, windows
from orchestrator.model import Capture, PassRecord
from orchestrator.tables import Coded, Table
from orchestrator.units import frequency

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BLAMES_THREADS = frozenset({"gil", "lock"})
"""The waits that end when another thread of the process does something."""
BLAMES_CHILDREN = frozenset({"child", "pipe", "lock"})
"""Those that may end when another process does."""
_KEY = ("part", "phase", "state", "function", "file", "below", "code", "native", "op")


def located(
    parts: Mapping[str, Sequence[Table]], captures: Sequence[Capture], passes: Sequence[PassRecord]
) -> dict[str, list[Table]]:
    """The table `host_time`, of every capture with `stack_spans`."""
    known = {capture.id: capture for capture in captures}
    made = []
    for table in parts.get("stack_spans", ()):
        if len(table):
            capture = known[table.columns["capture"][0]]
            course = windows.of_pass(parts, captures, capture.pass_id)
            made.append(_of_capture(table, capture, course))
    return {"host_time": made} if made else {}


def _of_capture(table: Table, capture: Capture, course: windows.Course) -> Table:
    spans = _Spans.of(table, bool(capture.options.get("native")))
    pid = course.pid or _first_pid(spans, capture)
    main = (pid, course.tid or pid)
    rate_hz = frequency(capture.options.get("rate", 100))
    rows: list[tuple[Any, ...]] = []
    lives = [spans.only(thread) for thread in spans.threads()]
    for life in lives:
        role = "main" if (life.pid, life.tid) == main else "thread" if life.pid == main[0] else "child"
        others = [one for one in lives if one is not life]
        for part in course.parts:
            rows += _rows(life, role, part, others, rate_hz)
    names = ("pid", "tid", "thread", "role", "part", "part_ns", "phase", "state", "function", "file", "line")
    blamed = ("behind", "behind_state", "behind_code", "behind_pct")
    more = ("below", "code", "native", "op", *blamed, "samples", "total_ns")
    made = Table.of("host_time", sorted(rows, key=_heaviest), (*names, *more), clock="epoch")
    return made.with_capture(capture.id, capture.rank)


def _heaviest(row: Sequence[Any]) -> tuple[Any, ...]:
    return (-row[-1], *(str(value) for value in row))


def _first_pid(spans: _Spans, capture: Capture) -> int | None:
    """Without steps: the program's own process, where it is Python; else the one with the most time."""
    pids: dict[Any, int] = defaultdict(int)
    for thread in spans.threads():
        pids[thread[0]] += spans.only(thread).length_ns
    if capture.run and capture.run.pid in pids:
        return capture.run.pid
    return max(pids, key=lambda pid: pids[pid], default=None)


@dataclass(frozen=True)
class _Spans:
    """Stacks in time, of all threads."""

    owner: NDArray[np.int64]
    """The place in `owners`."""
    owners: Sequence[tuple[Any, Any, Any]]
    """Pid, OS thread id and name."""
    stack: NDArray[np.int64]
    texts: Sequence[str]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    has_native: bool

    @classmethod
    def of(cls, table: Table, has_native: bool) -> _Spans:
        import numpy as np

        columns = table.columns
        owners: dict[Any, int] = {}
        texts: dict[Any, int] = {}
        threads = zip(columns["pid"], columns["tid"], columns["thread"], strict=True)
        owner = np.array([owners.setdefault(one, len(owners)) for one in threads], np.int64)
        stacks = columns["stack"]
        if isinstance(stacks, Coded):
            places = np.array([texts.setdefault(text, len(texts)) for text in stacks.texts], np.int64)
            stack = places[stacks.codes]
        else:
            stack = np.array([texts.setdefault(text, len(texts)) for text in stacks], np.int64)
        start_ns = np.asarray(columns["start_ns"], np.int64)
        end_ns = start_ns + np.asarray(columns["duration_ns"], np.int64)
        return cls(owner, list(owners), stack, list(texts), start_ns, end_ns, has_native)

    @cached_property
    def doings(self) -> list[frames.Doing]:
        """Of each distinct stack."""
        return [frames.read(text.split(";"), self.has_native) for text in self.texts]

    def threads(self) -> list[tuple[Any, Any, Any]]:
        return list(self.owners)

    def only(self, thread: tuple[Any, Any, Any]) -> _Life:
        import numpy as np

        mine = np.flatnonzero(self.owner == self.owners.index(thread))
        return _Life(*thread, self.stack[mine], self.start_ns[mine], self.end_ns[mine], self.doings)


@dataclass(frozen=True)
class _Life:
    """One thread's stacks in time."""

    pid: Any
    tid: Any
    name: Any
    stack: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    doings: Sequence[frames.Doing]

    @property
    def length_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def within(self, part: windows.Part) -> Iterator[tuple[int, int, int]]:
        """(place of the stack, start, end), clipped to the part."""
        import numpy as np

        start = np.maximum(self.start_ns, part.start_ns)
        end = np.minimum(self.end_ns, part.end_ns)
        inside = end > start
        return zip(self.stack[inside].tolist(), start[inside].tolist(), end[inside].tolist(), strict=True)


def _rows(
    life: _Life, role: str, part: windows.Part, others: Sequence[_Life], rate_hz: float
) -> Iterator[tuple[Any, ...]]:
    """The lines of one thread and part, without their capture."""
    groups: dict[tuple[Any, ...], dict[int | None, int]] = defaultdict(lambda: defaultdict(int))
    waits: dict[tuple[Any, ...], list[tuple[int, int]]] = defaultdict(list)
    whole_ns = 0
    for place, start, end in life.within(part):
        doing = life.doings[place]
        if doing.state == "ours":
            continue
        whole_ns += end - start
        key = _key(part.name, doing)
        groups[key][doing.line] += end - start
        if doing.state in BLAMES_THREADS | BLAMES_CHILDREN:
            waits[key].append((start, end))
    for key, lines in groups.items():
        values = dict(zip(_KEY, key, strict=True))
        total_ns = sum(lines.values())
        line = max(lines, key=lambda one: (lines[one], one or 0))
        blamed = _behind(life, values["state"], waits[key], others) if key in waits and role == "main" else [_NOBODY]
        for *behind, share in blamed:
            yield (
                *(life.pid, life.tid, life.name, role, part.name, whole_ns),
                *(values[name] for name in ("phase", "state", "function", "file")),
                line,
                *(values[name] for name in ("below", "code", "native", "op")),
                *behind,
                None if behind[0] is None else round(100 * share, 1),
                *(round(total_ns * share * rate_hz / 1e9), round(total_ns * share)),
            )


def _key(part: str, doing: frames.Doing) -> tuple[Any, ...]:
    """What is told apart. The loader's work is put to the function of the program that it calls; what native code does
    is told by its operator, or its library's function where it waits."""
    function, file = doing.function, doing.file
    if doing.outer is not None:
        function, file = doing.outer.function, doing.outer.file
    native = doing.native if doing.state not in ("python", "native") else None
    return (part, doing.phase, doing.state, function, file, doing.below, doing.code, native, doing.op)


Blamed = tuple[str | None, str | None, str | None, float]
"""A function that others were in, its state, whose code that was, and its share of all that they did."""
_NOBODY: Blamed = (None, None, None, 1.0)
_TOLD = 5
"""So many functions share the blame for a wait; the rest of it stays with who waits."""


def _behind(life: _Life, state: str, waits: Sequence[tuple[int, int]], others: Sequence[_Life]) -> list[Blamed]:
    """What the others did while a thread waited, the most first; shares add up to one."""
    import numpy as np

    edges = np.array(sorted(waits), np.int64)
    times = edges.ravel()
    waited = np.concatenate(([0], np.cumsum(edges[:, 1] - edges[:, 0]))).repeat(2)[1:-1]
    spent: dict[_Place, float] = defaultdict(float)
    for other in others:
        same = other.pid == life.pid
        if not (same and state in BLAMES_THREADS) and not (not same and state in BLAMES_CHILDREN):
            continue
        overlap = np.interp(other.end_ns, times, waited) - np.interp(other.start_ns, times, waited)
        for place in np.flatnonzero(overlap > 0).tolist():
            doing = other.doings[other.stack[place]]
            if doing.function is None or (doing.state in _NO_CULPRITS and not frames.holds_lock(doing)):
                continue
            where = doing.outer or doing
            spent[doing.state, doing.code, where.function, where.file, where.line] += float(overlap[place])
    return _shared(spent)


_Place = tuple[str, str, "str | None", "str | None", "int | None"]
"""State, code, function, file, line."""


def _shared(spent: Mapping[_Place, float]) -> list[Blamed]:
    """Those who wait for Python's lock and the one who holds it are in one contention; so are those who queue up at
    another lock."""
    whole = sum(spent.values())
    if not whole:
        return [_NOBODY]
    states: dict[str, float] = defaultdict(float)
    for (state, *_), ns in spent.items():
        states[state] += ns
    contend = states["gil"] > _CONTENDED_GIL * (states["gil"] + states["python"]) > 0
    queue = not contend and states["lock"] > _CONTENDED * whole
    groups: dict[tuple[Any, ...], float] = defaultdict(float)
    lines: dict[tuple[Any, ...], dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    for (state, code, function, file, line), ns in spent.items():
        told = "gil" if contend and state == "python" else "lock" if queue and function in _queued(spent) else state
        groups[told, code, function, file] += ns
        lines[told, code, function, file][line] += ns
    ranked = sorted(groups, key=lambda one: (-groups[one], str(one)))[:_TOLD]
    found: list[Blamed] = []
    for told, code, function, file in ranked:
        known = lines[told, code, function, file]
        line = max(known, key=lambda one: (known[one], one or 0))
        found.append((f"{function} ({file}:{line})", told, code, groups[told, code, function, file] / whole))
    rest = 1 - sum(share for *_, share in found)
    return [*found, (None, None, None, rest)] if rest > 1e-6 else found


def _queued(spent: Mapping[_Place, float]) -> set[str | None]:
    """The functions in which threads wait for a lock."""
    return {function for state, _, function, _, _ in spent if state == "lock"}


_NO_CULPRITS = frozenset({"idle", "ours", "lock", "pipe"})
"""Threads that wait for others themselves keep nobody waiting."""
_CONTENDED_GIL = 0.15
"""Threads of which this share of their time in Python goes into waiting for its lock contend for it. One that works
alone for the one that waits hardly ever waits itself; as the lock changes hands every 5 ms (sys.getswitchinterval),
pieces of work that are no longer than that queue up little."""
_CONTENDED = 0.3
"""Threads of which this share of the time goes into waiting for a lock contend for it."""
