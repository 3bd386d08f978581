"""What py-spy writes: chrome traces, raw (folded) stacks, and its log; read as streams into distinct stacks.

Layouts: https://github.com/benfred/py-spy, chrometrace.rs, flamegraph.rs, main.rs and sampler.rs of 0.3 to 0.4.
"""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ParseError
from orchestrator.formats import logs

_BLOCK_CHARS = 1 << 20
_EVENT_CHARS = 16 * _BLOCK_CHARS
"""No event is longer; without a limit a broken file would be scanned again and again."""
_NOT_A_PROFILE = (
    (re.compile(r"<(\?xml|svg|!DOCTYPE)", re.I), "is a picture: its samples can't be read back"),
    (re.compile(r"\{"), "is not one of py-spy's chrome traces (a speedscope file opens at speedscope.app)"),
    (re.compile(r"Process \d+: "), "is a dump: one look at the program, not samples over time"),
    (re.compile(r"\s*py-spy> "), "is what py-spy said, not its data"),
)
_USE = "record with `py-spy record --format chrometrace` (or raw)"


class Thread(NamedTuple):
    """Whose stack it is; `tid` is the OS's number. None: the file doesn't tell."""

    pid: int | None = None
    process: str | None = None
    tid: int | None = None
    name: str | None = None


class Stack(NamedTuple):
    """One distinct stack: its frames, each `function (file:line)`, from the root to the leaf.

    weight: ns in a chrome trace, samples in a raw file."""

    thread: Thread
    frames: tuple[str, ...]
    weight: int


@dataclass(frozen=True)
class Profile:
    """The stacks of one file. `damage` says what could not be read of it."""

    stacks: list[Stack]
    damage: str | None = None
    spans: Spans | None = None
    """When each stack was on top; None where the file does not tell."""


@dataclass(frozen=True)
class Spans:
    """The stacks of a chrome trace in time, each as long as it was seen unchanged. Three arrays of one length: the
    place in `Profile.stacks`, start and duration, in ns since the trace's start."""

    stack: array[int]
    start_ns: array[int]
    duration_ns: array[int]


def read(path: Path, interval_ns: int, ended_ns: Mapping[tuple[int, int], int] | None = None) -> Profile:
    """Either of the two formats; arguments as in `read_chrometrace`. Raises ParseError when it is neither."""
    try:
        with path.open(errors="replace") as file:
            start = file.read(200).lstrip()
        if not start or any(pattern.match(start) for pattern, _ in _NOT_A_PROFILE):
            raise ParseError(_explain(path, start))
        return read_chrometrace(path, interval_ns, ended_ns) if start.startswith("[") else read_raw(path)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error


# ---------------------------------------------------------------- names of processes, threads and frames

_PROCESS = re.compile(r'process (\d+):"(.*)"', re.S)
_THREAD = re.compile(r"thread \((0[xX][0-9a-fA-F]+|\d+)\)(?:: (.*))?", re.S)


def _below(thread: Thread, name: str) -> Thread | None:
    """The thread that a root frame `process PID:"COMMAND"` or `thread (TID): NAME` names; None for any other frame."""
    found = _PROCESS.fullmatch(name)
    if found:
        return Thread(int(found[1]), found[2])
    found = _THREAD.fullmatch(name)
    return thread._replace(tid=int(found[1], 0), name=found[2]) if found else None


def thread_names(threads: Iterable[Thread]) -> dict[tuple[int | None, int], str]:
    """A name for each (pid, tid). A thread bears none before `threading` is imported; where two of a process bear the
    same, the OS's number is added."""
    names: dict[tuple[int | None, int], str | None] = {}
    for thread in threads:
        if thread.tid is not None:
            names[thread.pid, thread.tid] = thread.name or names.get((thread.pid, thread.tid))
    full = {k: name or ("MainThread" if k[0] == k[1] else f"thread {k[1]}") for k, name in names.items()}
    bearers = Counter((pid, name) for (pid, _), name in full.items())
    return {k: name if bearers[k[0], name] == 1 else f"{name} ({k[1]})" for k, name in full.items()}


def _safe(text: str) -> str:
    """Without what separates frames and stacks."""
    return text.replace(";", ",").replace("\n", " ") if ";" in text or "\n" in text else text


# ---------------------------------------------------------------- chrome traces


def read_chrometrace(path: Path, interval_ns: int, ended_ns: Mapping[tuple[int, int], int] | None = None) -> Profile:
    """The stacks of a chrome trace, weighted by time in ns. Raises ParseError when it is none.

    interval_ns: time between two samples. ended_ns: when threads (pid, OS tid), or whole processes (pid, 0), had ended,
    in ns since the trace's start.

    py-spy writes what has changed since the sample before, so a stack holds until the next change of its thread. Two
    things need care: a forked child's threads share their `tid` (a pthread address), and so the list of open frames,
    with the parent's; and a thread that has ended never closes its frames."""
    replay = _Replay(interval_ns // 1000, {thread: ns // 1000 for thread, ns in (ended_ns or {}).items()})
    damage = None
    try:
        try:
            for event in _events(path):
                replay.take(event)
        except EOFError as error:
            damage = str(error)
        stacks = replay.stacks()
        return Profile(stacks, damage, replay.spans())
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ParseError(f"{path.name}: an event is not one of py-spy's ({error!r}); {_USE}") from error


_GAP = re.compile(r"[\s,]*")


def _events(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON array, one after the other. Raises EOFError when the file ends before the array does."""
    scan = json.JSONDecoder().raw_decode
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_BLOCK_CHARS).lstrip()
        if not text.startswith("["):
            raise ParseError(_explain(path, text))
        at = 1
        count = 0
        while True:
            at = _GAP.match(text, at).end()  # type: ignore[union-attr]
            try:
                event, at = scan(text, at)
            except ValueError:
                if text.startswith("]", at):
                    return
                more = file.read(_BLOCK_CHARS)
                if not more or len(text) - at > _EVENT_CHARS:
                    raise EOFError(f"{path.name} is cut or damaged after {count} events") from None
                text, at = text[at:] + more, 0
                continue
            yield event
            count += 1


class _Node(NamedTuple):
    """A frame with all its callers; those that only name a process or thread have no text."""

    parent: int
    text: str | None
    thread: Thread


class _Replay:
    """Opens and closes frames as the events say, and adds up how long each stack was on top. Times in us."""

    def __init__(self, interval_us: int, ended_us: Mapping[tuple[int, int], int]) -> None:
        self.interval_us, self.ended_us = interval_us, ended_us
        self.nodes = [_Node(0, None, Thread())]
        self.known: dict[tuple[int, str, str, int | None], int] = {}
        self.open: dict[int, list[int]] = {}
        """By pthread address: the nodes from the root to the leaf."""
        self.doing: dict[tuple[int, int], tuple[int, int]] = {}
        """By pid and pthread address: the node last seen on top, and since when."""
        self.latest: dict[int, int] = {}
        """By pthread address: the process seen last."""
        self.sample = (0, 0, 0)
        """Pid, pthread address and time of the sample whose events are being read."""
        self.weights: dict[int, int] = {}
        self.seen = (array("q"), array("q"), array("q"))
        """What was on top, since when and until when, in us."""

    def take(self, event: Mapping[str, Any]) -> None:
        phase = event["ph"]
        if phase == "M":
            return
        sample = (event["pid"], event["tid"], event["ts"])
        if sample != self.sample:
            self.settle()
            self.sample = sample
        stack = self.open.setdefault(sample[1], [])
        if phase == "B":
            args = event["args"]
            stack.append(self.node(stack[-1] if stack else 0, event["name"], args["filename"], args["line"]))
        elif stack:
            stack.pop()

    def node(self, parent: int, name: str, file: str, line: int | None) -> int:
        key = (parent, name, file, line)
        node = self.known.get(key)
        if node is None:
            node = self.known[key] = len(self.nodes)
            above = self.nodes[parent].thread if parent else Thread(self.sample[0])
            thread = None if file else _below(above, name)
            place = f"{file}:{line}" if line else file
            text = None if thread else _safe(f"{name} ({place})" if place else name)
            self.nodes.append(_Node(parent, text, thread or above))
        return node

    def settle(self) -> None:
        """A sample has been read: what its thread was seen doing before has lasted until now."""
        pid, address, now = self.sample
        stack = self.open.get(address)
        if stack is not None:
            self.close((pid, address), now)
            self.doing[pid, address] = (stack[-1] if stack else 0, now)
            self.latest[address] = pid

    def close(self, key: tuple[int, int], now: int) -> None:
        node, since = self.doing.get(key, (0, now))
        if node:
            thread = self.nodes[node].thread
            for end in (self.ended_us.get((thread.pid or 0, tid)) for tid in (thread.tid or 0, 0)):
                if end is not None and since - _CLOCK_US <= end < now:
                    now = max(since, end)
            if now > since:
                self.weights[node] = self.weights.get(node, 0) + now - since
                for column, value in zip(self.seen, (node, since, now), strict=True):
                    column.append(value)

    def stacks(self) -> list[Stack]:
        """Closes what is open. A process that shared its address with one seen later had ended before that, as such
        processes take turns at each sample."""
        self.settle()
        for key, (_, since) in self.doing.items():
            end = self.sample[2]
            self.close(key, end if self.latest[key[1]] == key[0] else min(end, since + self.interval_us))
        return [Stack(self.nodes[n].thread, self.frames(n), us * 1000) for n, us in self.weights.items()]

    def spans(self) -> Spans:
        """In the order in which they ended."""
        places = {node: place for place, node in enumerate(self.weights)}
        nodes, since, until = self.seen
        return Spans(
            array("q", map(places.__getitem__, nodes)),
            array("q", (1000 * us for us in since)),
            array("q", (1000 * (b - a) for a, b in zip(since, until, strict=True))),
        )

    def frames(self, node: int) -> tuple[str, ...]:
        texts = []
        while node:
            node, text, _ = self.nodes[node]
            if text is not None:
                texts.append(text)
        return tuple(reversed(texts))


_CLOCK_US = 200_000
"""How far the time of a thread's end may be off. An end longer before is that of an earlier thread with its number."""


# ---------------------------------------------------------------- raw (folded) stacks


def read_raw(path: Path) -> Profile:
    """The stacks of a raw file, weighted in samples. Raises ParseError when most of its lines are none."""
    stacks: list[Stack] = []
    dropped, frames = 0, _Interned()
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in _whole_lines(file):
            body, _, count = line.rstrip().rpartition(" ")
            if body and count.isdecimal():
                thread, names = owner(body)
                stacks.append(Stack(thread, tuple(map(frames.__getitem__, names)), int(count)))
            elif line.strip():
                dropped += 1
    if dropped > len(stacks):
        raise ParseError(_explain(path, logs.read(path, 400)[:200]))
    return Profile(stacks, f"{dropped} lines of {path.name} are no stacks" if dropped else None)


class _Interned(dict[str, str]):
    """One string for all its copies: frames repeat thousands of times."""

    def __missing__(self, text: str) -> str:
        self[text] = text
        return text


_CLOSED = re.compile(r'"(;.*)? \d+$', re.S)


def _whole_lines(file: Iterable[str]) -> Iterator[str]:
    """The lines; those that a line break inside of a process's command has split are put together again."""
    held = ""
    for line in file:
        held += line
        if not held.startswith("process ") or _CLOSED.search(held):
            yield held
            held = ""
    if held:
        yield held


def owner(body: str) -> tuple[Thread, list[str]]:
    """The thread that the root frames name, and the other frames.

    A ';' may also stand in a command, which ends with '"'; in a thread's name, before the first `function (file)`;
    and in the name of a file, before its ')'."""
    thread, parts = Thread(), body.split(";")
    at = 0
    while at < len(parts) and parts[at].startswith(("process ", "thread (")):
        end = at + 1
        if parts[at].startswith("process "):
            while end < len(parts) and not parts[end - 1].endswith('"'):
                end += 1
        else:
            while end < len(parts) and " (" not in parts[end]:
                end += 1
        below = _below(thread, ";".join(parts[at:end]))
        if below is None:
            break
        thread, at = below, end
    frames = parts[at:]
    return thread, frames if all(f.endswith(")") for f in frames) else _mended(frames)


def _mended(parts: Iterable[str]) -> list[str]:
    """Frames `function (file:line)` whose file's name was split put together again, without the ';'."""
    frames: list[str] = []
    for part in parts:
        if frames and " (" in frames[-1] and not frames[-1].endswith(")"):
            frames[-1] += "," + part
        else:
            frames.append(part)
    return frames


def _explain(path: Path, text: str) -> str:
    why = next((why for pattern, why in _NOT_A_PROFILE if pattern.match(text)), "holds no stacks of py-spy")
    return f"{path.name} {why if text.strip() else 'is empty'}; {_USE}"


# ---------------------------------------------------------------- what py-spy says beside its data


@dataclass(frozen=True)
class Log:
    """What one py-spy said. Unknown is None."""

    samples: int | None = None
    errors: int | None = None
    behind_s: float | None = None
    """How far it had fallen behind at worst."""
    started_ns: int | None = None
    """Its start, ns since the Unix epoch: the zero of its chrome trace, to about 1 ms."""
    ended_ns: Mapping[int, int] = field(default_factory=dict)
    """When processes ended, by pid."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Why processes could not be read, by pid."""


_WROTE = re.compile(r"Samples: (\d+) Errors: (\d+)")
_BEHIND = re.compile(r"(\d+(?:\.\d+)?)s behind in sampling")
_STAMP = r"^\[(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.(\d{9})Z +\w+ +py_spy::"
_STARTED = re.compile(_STAMP + r"config\] config Config", re.M)
_ENDED = re.compile(_STAMP + r"sampler\] stopped sampling pid (\d+)", re.M)
_FAILED = re.compile(r"Failed to profile python from process (\d+): (.+)")

VERBOSE = "py_spy::config=info,py_spy::sampler=info"
"""The value of RUST_LOG with which py-spy tells when it started, when processes ended and why others were not read."""


def read_log(text: str) -> Log:
    """The log of one py-spy, stdout and stderr together, started with RUST_LOG=VERBOSE."""
    wrote, started = _WROTE.search(text), _STARTED.search(text)
    return Log(
        samples=int(wrote[1]) if wrote else None,
        errors=int(wrote[2]) if wrote else None,
        behind_s=max(map(float, _BEHIND.findall(text)), default=None),
        started_ns=_epoch_ns(started[1], started[2]) if started else None,
        ended_ns={int(pid): _epoch_ns(second, ns) for second, ns, pid in _ENDED.findall(text)},
        failed={int(pid): why.strip() for pid, why in _FAILED.findall(text)},
    )


def _epoch_ns(second: str, fraction_ns: str) -> int:
    try:
        return int(datetime.fromisoformat(second + "+00:00").timestamp()) * 1_000_000_000 + int(fraction_ns)
    except ValueError as error:
        raise ParseError(f"py-spy's log has no time of day in {second!r}") from error
