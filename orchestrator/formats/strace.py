"""strace's two outputs as canonical tables: the summary of `-c`, and the log of calls, read as a stream.

The layouts follow strace's own sources (count.c, syscall.c, strace.c; versions 4 to 6) and recordings of each.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from orchestrator.errors import ParseError
from orchestrator.formats.strace_plain import BY_FD, BY_FOLDER, BY_NAME, BY_RESULT, NOWHERE, Plain
from orchestrator.formats.strace_spans import NONE, Spans
from orchestrator.formats.syscalls import syscall_class
from orchestrator.model import Clock
from orchestrator.tables import Table

# summary --------------------------------------------------------------------------------------------------------------

_SECONDS = r"\d{1,9}\.\d{6}"
_WHOLE = r"\d{1,15}"
_COLUMNS = {
    "% time": r"\d+\.\d\d|-?nan",
    "seconds": _SECONDS,
    "shortest": _SECONDS,
    "longest": _SECONDS,
    "wall-total": _SECONDS,
    "wall-min": _SECONDS,
    "wall-max": _SECONDS,
    "usecs/call": _WHOLE,
    "wall-avg": _WHOLE,
    "calls": _WHOLE,
    "errors": _WHOLE,
    "syscall": r"[A-Za-z_]\w*",
}
_COLUMN = "|".join(_COLUMNS)
_HEADER = re.compile(rf"\s*(?:(?:{_COLUMN})\s*)+")
_RULER_OR_TITLE = re.compile(r"[-\s]*|System call usage summary for .*")


@dataclass(frozen=True)
class Summary:
    """What `strace -c` printed. `complete`: the total at its end is there and agrees with the rows."""

    syscalls: Table
    complete: bool


def read_summary(path: Path, time: str = "wall") -> Summary:
    """The table `syscalls` of a `-c` summary, or of the one at the end of a `-C` log; no thread, no process.

    Takes every order and choice of columns (`-U`), old and new totals, and one table per personality. `time`, wall or
    system, is what `-w` decided: the file doesn't say. Its times have a resolution of 1 us. Raises ParseError for
    anything else.
    """
    reader = _SummaryReader()
    with _opened(path) as file:
        while text := file.readline(1 << 16):
            reader.line(text.decode("utf-8", "replace").rstrip("\n"))
    if reader.row is None:
        raise ParseError(f"{path.name} is no strace summary: it has no header line")
    if "calls" not in reader.row.groupindex:
        raise ParseError(f"{path.name} is a strace summary without the column `calls`")
    return Summary(reader.table(time), reader.complete)


class _SummaryReader:
    """`row` is the pattern of a row, made from the latest header."""

    def __init__(self) -> None:
        self.row: re.Pattern[str] | None = None
        self.complete = True
        self.dropped = 0
        self._calls: dict[str, list[int | None]] = {}
        self._sum = 0
        self._open = False

    def line(self, text: str) -> None:
        if _is_header(text):
            self.row, self._open, self._sum, self.complete = _row_pattern(text), True, 0, False
        elif self._open and self.row and not _RULER_OR_TITLE.fullmatch(text):
            if re.search(r"\btotal\b", text):
                self._open = False
                self.complete = self._sum in map(int, re.findall(rf"(?<!\S){_WHOLE}(?!\S)", text))
            elif match := self.row.fullmatch(text):
                self._add(match.groupdict())
            else:
                self.dropped += 1

    def _add(self, row: dict[str, str | None]) -> None:
        """One row; the same call may stand in the tables of two personalities."""
        calls, errors = int(row.get("calls") or 0), int(row.get("errors") or 0) if "errors" in row else None
        new = [calls, errors, *(_microseconds(row.get(column)) for column in ("seconds", "shortest", "longest"))]
        name = str(row["syscall"])
        old = self._calls.get(name)
        self._calls[name] = new if old is None else _merged(old, new)
        self._sum += calls

    def table(self, time: str) -> Table:
        rows = (
            (None, None, name, syscall_class(name), count, errors, total, _mean(total, count), shortest, longest, time)
            for name, (count, errors, total, shortest, longest) in self._calls.items()
        )
        return Table.of("syscalls", rows, dropped=self.dropped)


def _is_header(text: str) -> bool:
    if "syscall" not in text or not _HEADER.fullmatch(text):
        return False
    columns = re.findall(_COLUMN, text)
    return len(columns) == len(set(columns))


def _row_pattern(header: str) -> re.Pattern[str]:
    """A row of that table. Only `errors` may be blank, so the number of integers tells whether it is. A decimal ends
    after its last digit, whether or not a blank follows."""
    pattern, gap = r"\s*", ""
    for column in re.findall(_COLUMN, header):
        group = f"{gap}(?P<{re.sub(r'[^a-z]', '', column)}>{_COLUMNS[column]})"
        pattern += f"(?:{group})?" if column == "errors" else group
        gap = r"\s*" if _COLUMNS[column] == _SECONDS or column == "% time" else r"\s+"
    return re.compile(pattern + r"\s*")


def _microseconds(text: str | None) -> int | None:
    return None if text is None else int(text.replace(".", "")) * 1000


def _mean(total: int | None, count: int | None) -> float | None:
    return total / count if total is not None and count else None


def _merged(old: list[int | None], new: list[int | None]) -> list[int | None]:
    """Two rows of one call: count, errors, total, shortest, longest."""
    pairs = [None if a is None or b is None else (a, b) for a, b in zip(old, new, strict=True)]
    rules: tuple[Callable[[tuple[int, int]], int], ...] = (sum, sum, sum, min, max)
    return [pair and rule(pair) for rule, pair in zip(rules, pairs, strict=True)]


# log ------------------------------------------------------------------------------------------------------------------

_STAMP_ERROR_NS = 25_000
"""How late a stamp of -ttt is, measured against the program's own clock readings: 14 to 25 us."""
_BLOCK_BYTES = 1 << 21
_LONGEST_LINE = 1 << 26
_FIRST_BYTES = 1 << 16
_MOST_USES = 1 << 17
"""Distinct texts that name a file and are remembered."""
MOST_SPANS = 500_000
"""Calls that are told one by one: of more the longest."""

_HEAD = re.compile(
    rb"\s*(?:\[pid\s+(\d{1,9})(?:<[^>]*>)?\]\s+|(\d{1,9})(?:<[^>]*>)?\s+(?=\S))?"  # [pid 12], 12, 12<comm>
    rb"(\d\d:\d\d:\d\d(?:\.\d{1,9})?|\d{1,12}\.\d{1,9}|\d{10,12})?\s*"  # -t, -tt; -r, -ttt; -ttt without fraction
    rb"(?:\(\+\s*\d+\.\d+\)\s*)?(?:\[\s*[0-9a-f?]+\]\s*)*"  # -r beside another stamp; -n, -i
)
_STAMP = re.compile(rb"(?:(\d\d):(\d\d):)?(\d{1,12})(?:\.(\d{1,9}))?")
_EPOCH = re.compile(rb"\d{10}")
_CALL = re.compile(rb"([A-Za-z_]\w*|\?{3,4})\(")
_RESUMED = re.compile(rb"<\.\.\. (\w+|\?{3,4}) resumed>")
_ENDED = re.compile(rb"\+\+\+ (exited|killed|superseded) (?:with|by)(?: execve in pid (\d{1,9}))? ?.*\+\+\+")
_SIGNAL = re.compile(rb"--- (?:SIG|stopped by ).* ---")
_ASIDE = re.compile(  # strace's own messages, dumps of -e read, stack frames of -k, empty lines
    rb"strace: .*|Process \d+ (?:attached|detached|resumed|suspended).*|\[ Process PID=.* \]|[|>] .*|"
)
_INTERRUPTED = re.compile(rb"(.*\w\(.*)(?:strace: )?Process \d+ attached")
_CALL_END = re.compile(rb'"(?:[^"\\]|\\.)*"|(?:\d|AT_FDCWD)<[^<>]*(?:->[^<>]*)*(?:<[^<>]*>)?>|(\)\s+= )', re.DOTALL)
"""Passes over strings and decorations, which may hold anything, to the end of the arguments."""
_RESULT = re.compile(rb"(.*?)\s*(?:<(\d{1,7}\.\d{1,9})>)?", re.DOTALL)
_FAILED = re.compile(rb"(?:-1|\?) (E[A-Z0-9]\w*|\(errno \d+\))")

_FD = re.compile(rb"\d+<(/[^<>]*|[^</>][^<>\[]*(?:\[(?:->|[^<>])*?\](?=>))?)(?:<[^<>]*>)?>(?:\(deleted\))?")
"""3</path>, 3</dev/null<char 1:3>>, 3<pipe:[7]>, 3<TCP:[a->b]>. strace writes < and > in a path as \\74 and \\76."""
_STRING = rb'"((?:[^"\\]|\\.)*)"'
_NAMED = re.compile(_STRING, re.DOTALL)
_NAMED_AT = re.compile(rb"(?:(?:AT_FDCWD|\d+)(?:<([^<>]*)>)?, )?" + _STRING, re.DOTALL)

_NEW_TASK = frozenset((b"clone", b"clone3", b"fork", b"vfork"))
_OPEN = frozenset((b"open", b"creat", b"openat", b"openat2"))
_AT = frozenset(
    b"newfstatat fstatat64 statx faccessat faccessat2 unlinkat mkdirat mknodat fchmodat fchmodat2 fchownat linkat "
    b"renameat renameat2 readlinkat utimensat utimensat_time64 futimesat execveat name_to_handle_at open_tree".split()
)
_MOVES_BYTES = frozenset(
    b"read pread64 readv preadv preadv2 write pwrite64 writev pwritev pwritev2 recv recvfrom recvmsg send sendto "
    b"sendmsg sendfile sendfile64 splice tee vmsplice copy_file_range".split()
)

# Tallies and uses are lists, for speed. Both begin with: how often, failures, ns in all.
_COUNT, _ERRORS, _TOTAL = range(3)
# A tally, for a call in a thread, goes on with: shortest, longest.
_MIN, _MAX = 3, 4
# A use, for a call and a file: bytes read and written; the number of the file, which is no sum.
_BYTES, _PATH = 3, 4
_Sums = list[int]


@dataclass(frozen=True)
class Trace:
    """What a log says. Its tables count the calls that returned, as `strace -c` does."""

    syscalls: Table
    paths: Table
    events: Table
    """The slowest calls, slowest first; empty for a log without times (`-T`)."""
    spans: Table
    """The calls one by one, by start: all, or the longest, the others being counted as dropped. Empty likewise."""
    calls: int
    unreturned: int
    """Calls seen to start and not to return: still running at the end, cut off, or such as exit_group."""
    first_ns: int | None
    last_ns: int | None
    """The stamps of the first and the last line, on the clock of `events`."""
    clock: Clock | None = None
    """Of stamps in Unix time."""
    lines: Mapping[str, int] = field(default_factory=dict)
    """How many lines there are: `all`; `unfinished` and `resumed`, the halves of calls; `unknown result`, with `= ?`,
    also before an error; `signal`; `exited` and `killed`."""


def read_trace(path: Path, events: int = 1000, processes: Collection[int] = (), spans: int = MOST_SPANS) -> Trace:
    """The tables `syscalls` (by thread), `syscall_paths`, `syscall_events` (the `events` slowest) and `syscall_spans`
    (at most `spans`) of a log of calls.

    Memory is bounded by the number of distinct threads, calls and files, not by the length of the log. Understood: a
    leading pid or [pid N] or none; the stamps -r, -t, -tt, -ttt or none; -T, -y, -yy, -i, -n, -k, -Y; calls in two
    halves (unfinished, resumed), also where one half is missing. Lines that aren't strace's are counted as dropped.
    `processes`: pids known to be processes, where the log alone can't tell them from threads. A time is None where the
    log has none. Raises ParseError when nothing of strace is found.
    """
    log = _Log(events, spans)
    with _opened(path) as file:
        for text in _blocks(file, path):
            log.feed(text)
            if not log.recognised and file.tell() > _BLOCK_BYTES:
                break
    if not log.recognised:
        raise ParseError(f"{path.name} is no strace log: no line of it is a system call")
    return log.trace(processes)


def _opened(path: Path) -> BinaryIO:
    try:
        file = path.open("rb")
        if not file.peek(1):
            file.close()
            raise ParseError(f"{path.name} is empty: strace wrote nothing")
        return file
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error


def _blocks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """The file as texts of whole lines: a short one, which makes most calls known, and then of about 2 MiB each."""
    size = _FIRST_BYTES
    while block := file.read(size):
        size = _BLOCK_BYTES
        if block[-1:] != b"\n":
            block += file.readline(_LONGEST_LINE)
        if block[-1:] != b"\n":
            if len(block) >= _LONGEST_LINE:
                raise ParseError(f"{path.name} is no strace log: it has a line of more than {_LONGEST_LINE >> 20} MiB")
            block += b"\n"
        yield block


def _nanoseconds(seconds: bytes) -> int:
    whole, _, fraction = seconds.partition(b".")
    return int(whole) * 10**9 + int(fraction.ljust(9, b"0"))


class _Log:
    """Two ways through a line: `Plain` takes most of the layout that we record ourselves, many at a time; `_line` takes
    every line there is. Both end in the same tallies."""

    def __init__(self, events: int, spans: int) -> None:
        self.recognised = 0
        self.dropped = 0
        self.unreturned = 0
        self._timed = False
        self._in_summary = False
        self._interrupted = b""
        """The beginning of a line that strace's own message has broken in two."""
        self._serial = 0
        """Of the line that is read."""
        self._spans = Spans(spans)
        self._plain = Plain(self, self._spans)
        self._calls: dict[bytes, int] = {}
        self._paths: dict[bytes, int] = {}
        self._errors: dict[bytes, int] = {}
        """Numbers in the order of appearance."""
        self._tallies: dict[tuple[bytes, bytes], _Sums] = {}
        self._places: dict[bytes, dict[bytes, _Sums]] = {}
        """What each file was used for, by call."""
        self._pending: dict[bytes, tuple[bytes, bytes]] = {}
        """The first halves of calls, and their stamps, by thread."""
        self._parents: dict[bytes, tuple[bytes, bool]] = {}
        self._slowest = _Slowest(events)
        self._clock = _Clock()
        self._lines: Counter[str] = Counter()

    def feed(self, text: bytes) -> None:
        """Count the lines of a text."""
        count, joined, left = self._plain.take(text, self._serial, self._pending, self._slowest.floor)
        after = self._serial + count
        self._lines.update(dict.fromkeys(("unfinished", "resumed"), joined))
        for self._serial, line in left:
            self._line(line)
        self._serial = after
        if last := _HEAD.match(text, text.rfind(b"\n", 0, -1) + 1):
            self._clock.see(last[3])
        if len(self._plain.uses) > _MOST_USES:
            self._settle()

    # what Plain asks for ----------------------------------------------------------------------------------------------

    def tally(self, thread: bytes, name: bytes) -> _Sums:
        return self._tallies.setdefault((thread, name), [0, 0, 0, 1 << 62, -1])

    def use(self, name: bytes, args: bytes, key: bytes, result: bytes) -> _Sums | None:
        where = _where(name)
        if where == BY_RESULT and result[-1:] == b">" and not _FD.fullmatch(result):
            return None
        path, end = _path(where, args, key)
        return self._use(path, name) if end <= len(key) else None

    def path(self, use: _Sums) -> int:
        return use[_PATH]

    def call(self, name: bytes) -> int:
        return self._calls.setdefault(name, len(self._calls))

    def error(self, name: bytes) -> int:
        return self._errors.setdefault(name, len(self._errors))

    def slow(self, ns: int, serial: int, *event: bytes) -> bool:
        return self._slowest.add(ns, serial, *event)

    def _settle(self) -> None:
        """Adds what Plain has counted."""
        for tally, (count, errors, total, shortest, longest) in self._plain.tallies.taken():
            _add(tally, count, errors, total)
            tally[_MIN], tally[_MAX] = min(tally[_MIN], shortest), max(tally[_MAX], longest)
        for use, sums in self._plain.uses.taken():
            _add(use, *sums)

    # every line -------------------------------------------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        line, self._interrupted = self._interrupted + line, b""
        if line.endswith(b" attached") and (interrupted := _INTERRUPTED.fullmatch(line)):
            self._interrupted = interrupted[1]
            return
        head = _HEAD.match(line)
        assert head is not None  # every part of it is optional
        thread, text = head[1] or head[2] or b"", line[head.end() :].rstrip()
        stamp = self._clock.shown(head[3] or b"")
        if resumed := _RESUMED.match(text):
            self._lines["resumed"] += 1
            stamp, text = self._whole(thread, resumed[1], text[resumed.end() :])
        if call := _CALL.match(text):
            known = self._call(thread, stamp, call[1], text[call.end() :])
            self.dropped += not known
        elif ended := _ENDED.fullmatch(text):
            self._lines["killed" if ended[1] == b"killed" else "exited"] += 1
            known = self._ended(thread, ended[2])
        else:
            known = _SIGNAL.fullmatch(text) is not None
            self._lines["signal"] += known
            self.dropped += not (known or self._aside(text))
        self.recognised += known

    def _aside(self, text: bytes) -> bool:
        """Whether it is rightly neither call nor signal; so is the summary that ends a log of -C."""
        self._in_summary |= _is_header(text.decode("ascii", "replace"))
        return self._in_summary or _ASIDE.fullmatch(text) is not None

    def _whole(self, thread: bytes, name: bytes, rest: bytes) -> tuple[bytes, bytes]:
        """A call from its halves, with the stamp of the first. That is missing where strace came in between, or if a
        part of the log is lost: the call counts all the same."""
        stamp, begun = self._pending.pop(thread, (b"", b""))
        if begun.startswith(name + b"("):
            return stamp, begun + rest
        self.unreturned += bool(begun)
        return b"", name + b"(" + rest

    def _ended(self, thread: bytes, superseded: bytes | None) -> bool:
        """A thread is gone. One that called execve lives on under its leader's number."""
        self.unreturned += self._pending.pop(thread, None) is not None
        if superseded and (execve := self._pending.pop(superseded, None)):
            self._pending[thread] = execve
        return True

    def _call(self, thread: bytes, stamp: bytes, name: bytes, rest: bytes) -> bool:
        """A call from what follows its bracket. False when the line breaks off."""
        if rest.endswith(b"<unfinished ...>"):
            self._lines["unfinished"] += 1
            self.unreturned += thread in self._pending
            self._pending[thread] = stamp, name + b"(" + rest.removesuffix(b"<unfinished ...>").removesuffix(b" ")
            return True
        end = next((m for m in _CALL_END.finditer(rest) if m.lastindex), None)
        result = end and _RESULT.fullmatch(rest, end.end())
        self._lines["unknown result"] += bool(result and result[1][:1] == b"?")
        if (result and result[1][:3] in (b"?", b"? <")) or rest.endswith(b"<detached ...>"):
            self.unreturned += 1
            return True
        if not end or not result or not result[1] or (self._timed and not result[2]):
            return False
        self._returned(thread, stamp, name, rest[: end.start()].rstrip(), result[1], result[2])
        return True

    def _returned(
        self, thread: bytes, stamp: bytes, name: bytes, args: bytes, result: bytes, seconds: bytes | None
    ) -> None:
        ns = _nanoseconds(seconds or b"0")
        failed, path = _FAILED.match(result), NONE
        tally, where, moves = self.tally(thread, name), _where(name), name in _MOVES_BYTES
        _add(tally, 1, failed is not None, ns)
        if where:
            use = self._use(_path(where, args, _key(where, args, result))[0], name)
            _add(use, 1, failed is not None, ns, int(result[:15]) if moves and result.isdigit() else 0)
            path = use[_PATH]
        if seconds is not None:
            self._timed = True
            tally[_MIN], tally[_MAX] = min(tally[_MIN], ns), max(tally[_MAX], ns)
            if ns >= self._slowest.floor:
                self._slowest.add(ns, self._serial, thread, stamp, name, args, result)
            self._keep(thread, stamp, ns, name, path, self.error(failed[1]) if failed else NONE)
            self._plain.know(name, where, moves, name not in _NEW_TASK)
        if name in _NEW_TASK and not failed and (child := re.match(rb"\d{1,9}", result)):
            self._parents[child[0]] = (thread, b"CLONE_THREAD" in args)

    def _keep(self, thread: bytes, stamp: bytes, ns: int, name: bytes, path: int, error: int) -> None:
        """One call more among those that are told one by one."""
        start = _stamp_ns(stamp)
        if start is None:
            self._spans.skip()
        else:
            self._spans.add_one(start, ns, int(thread or NONE), self.call(name), path, error)

    def _use(self, path: bytes, name: bytes) -> _Sums:
        """What a call does to a file."""
        number = self._paths.setdefault(path, len(self._paths)) if path else NONE
        return self._places.setdefault(path, {}).setdefault(name, [0, 0, 0, 0, number])

    # results ----------------------------------------------------------------------------------------------------------

    def trace(self, processes: Collection[int]) -> Trace:
        self._settle()
        roots = {b"%d" % pid for pid in processes}
        clock = self._clock
        on_clock: dict[str, Any] = {"clock": clock.kind}
        if clock.kind == "epoch":
            on_clock["clock_error_ns"] = _STAMP_ERROR_NS
        spans = self._span_columns(roots)
        return Trace(
            syscalls=Table.of("syscalls", self._syscall_rows(roots), dropped=self.dropped + bool(self._interrupted)),
            paths=Table.of("syscall_paths", self._path_rows()),
            events=Table.of("syscall_events", self._event_rows(roots), **on_clock),
            spans=Table("syscall_spans", spans, dropped=self._spans.count - len(spans["start_ns"]), **on_clock),
            calls=sum(tally[_COUNT] for tally in self._tallies.values()),
            unreturned=self.unreturned + len(self._pending),
            first_ns=_stamp_ns(clock.first),
            last_ns=_stamp_ns(clock.last),
            clock=Clock(0, 1e9, _STAMP_ERROR_NS, "Unix time in the log's stamps") if clock.kind == "epoch" else None,
            lines={"all": self._serial, **self._lines},
        )

    def _syscall_rows(self, roots: set[bytes]) -> Iterator[tuple[Any, ...]]:
        """By total time, longest first."""
        for (thread, call), tally in sorted(self._tallies.items(), key=lambda item: (-item[1][_TOTAL], item[0])):
            name, timed = call.decode("ascii", "replace"), tally[_MAX] >= 0
            times = (tally[_TOTAL], tally[_TOTAL] / tally[_COUNT], tally[_MIN], tally[_MAX]) if timed else (None,) * 4
            counts = (tally[_COUNT], tally[_ERRORS])
            yield self._process(thread, roots), _number(thread), name, syscall_class(name), *counts, *times, "wall"

    def _path_rows(self) -> Iterator[tuple[Any, ...]]:
        """By total time, longest first."""
        sums_of = {path: [sum(c) for c in zip(*uses.values(), strict=True)] for path, uses in self._places.items()}
        for path, sums in sorted(sums_of.items(), key=lambda place: (-place[1][_TOTAL], place[0])):
            uses = self._places[path]
            if path:
                names = sorted(uses, key=lambda name: (-uses[name][_COUNT], name))
                moved = sums[_BYTES] if _MOVES_BYTES.intersection(uses) else None
                total = sums[_TOTAL] if self._timed else None
                yield _text(path), sums[_COUNT], sums[_ERRORS], total, moved, _text(b",".join(names))

    def _event_rows(self, roots: set[bytes]) -> Iterator[tuple[Any, ...]]:
        for ns, thread, stamp, *texts in self._slowest.events():
            yield self._process(thread, roots), _number(thread), _stamp_ns(stamp), ns, *map(_text, texts)

    def _span_columns(self, roots: set[bytes]) -> dict[str, Any]:
        def process(thread: int) -> int | None:
            return self._process(b"%d" % thread if thread != NONE else b"", roots)

        names = (name.decode("ascii", "replace") for name in self._calls)
        calls = [(name, syscall_class(name)) for name in names]
        return self._spans.columns(process, calls, [*map(_text, self._paths)], [*map(_text, self._errors)])

    def _process(self, thread: bytes, roots: set[bytes]) -> int | None:
        """The process of a thread: itself, if it was forked, called execve or is a root; else its creator's."""
        for _ in range(1 << 10):  # numbers are used again in long logs, so that the chain might have no end
            parent, is_thread = self._parents.get(thread, (b"", False))
            if not is_thread:
                known = parent or thread in roots or (thread, b"execve") in self._tallies
                return _number(thread) if known else None
            thread = parent
        return None


def _add(sums: _Sums, *more: int) -> None:
    for place, value in enumerate(more):
        sums[place] += value


def _where(name: bytes) -> int:
    if name in _OPEN:
        return BY_RESULT
    if name in _AT:
        return BY_FOLDER
    kind = syscall_class(name.decode("ascii", "replace"))
    return {"file": BY_NAME, "desc": BY_FD, "network": BY_FD}.get(kind, NOWHERE)


def _key(where: int, args: bytes, result: bytes) -> bytes:
    """The text that names the file of a call: its result, or its first arguments (or less, where a comma stands in the
    name)."""
    if where == BY_RESULT and result[-1:] == b">":
        return result
    if where >= BY_FOLDER:
        return b",".join(args.split(b",", 2)[:2])
    return args.partition(b",")[0]


def _path(where: int, args: bytes, key: bytes) -> tuple[bytes, int]:
    """The file of a call (empty: none is named), and how much of the arguments was needed to see it."""
    if where == BY_RESULT and (opened := _FD.fullmatch(key)):
        return opened[1], 0
    if where >= BY_FOLDER and (named := _NAMED_AT.match(args)):
        return _joined(named[1], named[2]), named.end()
    if where == BY_NAME and (named := _NAMED.match(args)):
        return named[1], named.end()
    by_fd = _FD.match(args)
    return (by_fd[1], by_fd.end()) if by_fd else (b"", 0)


def _joined(folder: bytes | None, name: bytes) -> bytes:
    """A name relative to a folder that strace shows (`-y`). An empty one means what is open there itself."""
    if not folder or name.startswith(b"/"):
        return name
    return folder.removesuffix(b"/") + b"/" + name if name else folder


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


def _number(text: bytes) -> int | None:
    return int(text) if text else None


class _Slowest:
    """The N slowest calls; of equally slow ones the earliest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._heap: list[tuple[Any, ...]] = []

    @property
    def floor(self) -> int:
        """No quicker call than this is worth adding."""
        if len(self._heap) < self._size:
            return -1
        return int(self._heap[0][0]) if self._size else 1 << 62

    def add(self, ns: int, serial: int, *event: bytes) -> bool:
        """Keep it, if it is slow enough. `serial`: of its line."""
        item = (ns, -serial, *event)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, item)
            return True
        return bool(self._heap) and heapq.heappushpop(self._heap, item) is not item

    def events(self) -> Iterator[tuple[Any, ...]]:
        for ns, _, *event in sorted(self._heap, reverse=True):
            yield ns, *event


class _Clock:
    """The stamps of a log: Unix time (-ttt), time of day (-t, -tt), time since the line before (-r), or none."""

    def __init__(self) -> None:
        self.first = b""
        self.last = b""

    @property
    def kind(self) -> Literal["epoch", "relative"]:
        return "epoch" if _EPOCH.match(self.first) else "relative"

    def see(self, stamp: bytes | None) -> None:
        if stamp and _EPOCH.match(stamp):
            self.last = stamp

    def shown(self, stamp: bytes) -> bytes:
        """The stamp of the next line; one of -r becomes the time since the first line."""
        if not stamp:
            return stamp
        if not self.first:
            self.first = stamp
        elif b":" not in stamp and not _EPOCH.match(stamp):
            now = (_stamp_ns(self.last) or 0) + (_stamp_ns(stamp) or 0)
            stamp = b"%d.%09d" % divmod(now, 10**9)
        self.last = stamp
        return stamp


def _stamp_ns(stamp: bytes) -> int | None:
    """ns since the epoch, midnight or the log's first line, by the kind of stamp."""
    match = _STAMP.fullmatch(stamp)
    if not match:
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups()[:3])
    return (hours * 3600 + minutes * 60 + seconds) * 10**9 + int((match[4] or b"").ljust(9, b"0"))
