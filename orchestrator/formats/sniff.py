"""What kind of file this is, told by what it begins with and never by its name: what can be read, and what can't, with
what would serve instead."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.errors import ParseError

HEAD_BYTES = 1 << 16
"""As much is looked at, after unpacking."""
SQLITE = b"SQLite format 3\0"
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Found:
    """A file's kind. `words`: what it is, as `an SQLite export of nsys`. `instead`: where it can't be, what can."""

    kind: str
    words: str
    instead: str | None = None
    packed: bool = False
    """It is gzipped; the kind is that of what is inside."""


def sniff(path: Path) -> Found:
    """The kind of a file. Raises ParseError where there is nothing to look at."""
    head, packed = _head(path)
    if not head.data.strip():
        raise ParseError(f"{path.name} is empty" if not head.data else f"{path.name} holds nothing but blanks")
    for kind in _candidates(head):
        if kind.test(head):
            return Found(kind.name, kind.words, kind.instead, packed)
    return Found("text", f"text of a kind that is not known; it begins with {_first(head)!r}", _IMPORTABLE, packed)


@dataclass(frozen=True)
class _Head:
    """The beginning of a file, unpacked."""

    path: Path
    data: bytes

    @cached_property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace").lstrip("\ufeff")

    @cached_property
    def lines(self) -> list[str]:
        """The lines that say something, without the last one where it may be cut."""
        lines = self.text.splitlines()
        whole = lines[:-1] if len(self.data) == HEAD_BYTES and len(lines) > 1 else lines
        return [line for line in whole if line.strip()]

    @cached_property
    def tables(self) -> frozenset[str] | None:
        """The tables of a database; None where it is packed, or damaged: then the reader of exports has to say."""
        try:
            uri = f"{self.path.resolve().as_uri()}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True)) as db:
                db.text_factory = lambda raw: raw.decode("utf-8", "replace")
                return frozenset(str(name) for (name,) in db.execute("SELECT name FROM sqlite_master"))
        except (sqlite3.Error, ValueError):
            return None

    def share(self, pattern: re.Pattern[str], lines: int = 400) -> float:
        """The part of the first lines that the pattern matches from their beginning."""
        first = self.lines[:lines]
        return sum(bool(pattern.match(line)) for line in first) / len(first) if first else 0.0


def _head(path: Path) -> tuple[_Head, bool]:
    try:
        with path.open("rb") as file:
            data = file.read(HEAD_BYTES)
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror}") from error
    if not data.startswith(GZIP):
        return _Head(path, data), False
    try:
        inside = _inflated(data)
    except zlib.error as error:
        raise ParseError(f"{path.name} is a damaged gzip file: {error}") from error
    if not inside:
        raise ParseError(f"{path.name} is a gzip file with nothing in it")
    return _Head(path, inside), True


def _inflated(data: bytes) -> bytes:
    """The beginning of what is inside; a gzip file may have many members, one behind another."""
    inside = b""
    while data.startswith(GZIP) and len(inside) < HEAD_BYTES:
        member = zlib.decompressobj(31)
        inside += member.decompress(data, HEAD_BYTES - len(inside))
        data = member.unused_data
    return inside


def _first(head: _Head) -> str:
    return " ".join(head.lines[0].split())[:60] if head.lines else ""


# ---------------------------------------------------------------- the kinds


@dataclass(frozen=True)
class _Kind:
    name: str
    words: str
    test: Callable[[_Head], bool]
    instead: str | None = None


def _candidates(head: _Head) -> Iterator[_Kind]:
    """The kinds that come into question, the most certain first."""
    yield from _BINARY
    start = head.text.lstrip()[:1]
    yield from _MARKUP if start == "<" else _JSON if start in ("{", "[") else ()
    yield from _TEXT


def _begins(magic: bytes) -> Callable[[_Head], bool]:
    return lambda head: head.data.startswith(magic)


def _says(pattern: str, flags: re.RegexFlag = re.M) -> Callable[[_Head], bool]:
    """The pattern is found in the head; ^ is the beginning of a line."""
    compiled = re.compile(pattern, flags)
    return lambda head: compiled.search(head.text) is not None


def _starts(pattern: str) -> Callable[[_Head], bool]:
    """The pattern stands at the very beginning."""
    compiled = re.compile(r"\s*" + pattern, re.S)
    return lambda head: compiled.match(head.text) is not None


def _both(*tests: Callable[[_Head], bool]) -> Callable[[_Head], bool]:
    return lambda head: all(test(head) for test in tests)


_IMPORTABLE = (
    "what can be imported: nsys reports and SQLite exports, ncu reports and CSV, traces and memory snapshots of "
    "PyTorch, py-spy's raw, speedscope and chrometrace files, folded stacks, `perf script`, `perf stat`, strace logs "
    "and summaries"
)
_NSYS = "import the .sqlite or .nsys-rep that it was made from"
_NCU = "import the report (.ncu-rep), or what `ncu --csv` prints"
_SMI = "it says how a GPU was at a moment, not where a program's time went; the monitor collector records such values"
_CPU = "it describes a machine, not a program; profrun notes such facts by itself when it runs one"
_PYSPY = "record with `py-spy record --format raw` (or speedscope, chrometrace) and import that"

_BINARY = (
    _Kind(
        "nsys-sqlite",
        "an SQLite export of nsys",
        lambda h: h.data.startswith(SQLITE) and (h.tables is None or "StringIds" in h.tables),
    ),
    _Kind(
        "dlprof",
        "a database of DLProf",
        lambda h: h.data.startswith(SQLITE) and "expert_systems_feedback" in (h.tables or ()),
        "import the SQLite export of nsys that DLProf had made it from",
    ),
    _Kind(
        "sqlite",
        "an SQLite database, but no export of nsys (it has no table StringIds)",
        _begins(SQLITE),
        "export with `nsys export --type sqlite REPORT` and import that",
    ),
    _Kind("ncu-rep", "a report of ncu", _begins(b"NVR\0")),
    _Kind("nsys-rep", "a report of nsys", _begins(b"NVIDIA Tegra Profiler Report")),
    _Kind(
        "qdstrm",
        "raw data of nsys (.qdstrm)",
        _begins(b"QDSTRM"),
        "make a report of it with `QdstrmImporter -i FILE`, which comes with nsys, and import that",
    ),
    _Kind(
        "perf-data",
        "perf's binary data",
        _begins(b"PERFILE2"),
        "make text of it with `perf script -i perf.data >script.txt`, where it was recorded, and import that",
    ),
    _Kind(
        "memory-snapshot",
        "a snapshot of PyTorch's CUDA memory",
        lambda h: bool(re.match(rb"\x80[\x02-\x05]", h.data)) and b"segments" in h.data,
    ),
    _Kind(
        "pickle",
        "a Python pickle, but no snapshot of torch.cuda.memory",
        lambda h: bool(re.match(rb"\x80[\x02-\x05]", h.data)),
        "it is not opened, as a pickle may hold any program; " + _IMPORTABLE,
    ),
    _Kind("zip", "a zip archive", _begins(b"PK\x03\x04"), "unpack it and import the files in it"),
    _Kind("tar", "a tar archive", lambda h: h.data[257:262] == b"ustar", "unpack it and import the files in it"),
    _Kind("program", "a program", _begins(b"\x7fELF"), "to measure a program: profrun -- COMMAND"),
    _Kind(
        "binary",
        "binary data of a kind that is not known",
        lambda h: b"\0" in h.data and not h.data.startswith((b"\xff\xfe", b"\xfe\xff")),
        _IMPORTABLE,
    ),
)

_MARKUP = (
    _Kind("nvidia-smi", "what `nvidia-smi -q -x` printed", _says("<nvidia_smi_log"), _SMI),
    _Kind(
        "svg",
        "a picture, such as a flame graph",
        _says("<svg[ >]"),
        "samples can't be read back from it: import the folded stacks or the speedscope file that it was made from",
    ),
    _Kind("html", "a page", _says("<(?:!DOCTYPE )?html", re.I), "import the data that it was made from"),
)

_JSON = (
    _Kind(
        "speedscope",
        "a speedscope file",
        _says(r'speedscope\.app/file-format-schema|"profiles"\s*:\s*\[\s*\{\s*"type"\s*:\s*"(?:sampled|evented)"'),
    ),
    _Kind("py-spy-trace", "a chrome trace of py-spy", _says(r'"cat"\s*:\s*"py-spy"')),
    _Kind(
        "py-spy-dump", "what `py-spy dump --json` printed", _says(r'"os_thread_id"'), f"one look, no samples: {_PYSPY}"
    ),
    _Kind(
        "kineto",
        "a trace of PyTorch's profiler",
        lambda h: (
            _says(r'"(?:traceEvents|deviceProperties|distributedInfo|schemaVersion)"\s*:')(h)
            or (_starts(r"\[\s*\{")(h) and _says(r'"ph"\s*:\s*"[BEXiMsftC]"')(h) and _says(r'"ts"\s*:')(h))
        ),
    ),
    _Kind("perf-stat", "counters of `perf stat -j`", _says(r'"counter-value"')),
    _Kind(
        "nsys-json",
        "a JSON export of nsys",
        _starts(r'\{"data":\[|\{"(?:Type|table)"\s*:'),
        "import the report, or export it with `nsys export --type sqlite`",
    ),
    _Kind(
        "memory-timeline",
        "a memory timeline of torch.profiler (raw)",
        _starts(r"\[\s*\[\s*-?\d+\s*,\s*\d+\s*,\s*-?\d+\s*,\s*\d+\s*\]"),
        "it holds sums without operators: import the trace (export_chrome_trace) or a memory snapshot",
    ),
    _Kind(
        "json",
        "JSON of a kind that is not known",
        _starts(r"(?:\{\s*[\"}]|\[\s*(?:[\[{\"\]]|-?\d+\s*[,\]]))"),
        _IMPORTABLE,
    ),
)

_LOG_LINE = re.compile(
    r"(?:\[pid +\d+\] +|\d+ +)?(?:\d+:\d\d:\d\d(?:\.\d+)? +|\d+\.\d+ +|\( *\+ *[\d.]+\) +)*"
    r"(?:[a-z_]\w*\(|<\.\.\. \w+ resumed>|--- (?:SIG|stopped)|\+\+\+ \w+|(?:\^C)?strace: Process \d+)"
)
_ANSWERED = r"\) += +(?:-?\d|0x|\?)|<unfinished|resumed>"
_SAMPLE = r"^\S.*?\s-?\d+(?:/-?\d+)?\s+(?:\[\d+\]\s+)?(?:[\d.]+:\s+)?(?:\d+\s+)?[^\s:]\S*:[ \t]*(?:[0-9a-f]+ .*)?$"
_STACK = re.compile(r".*\S (?:\d+(?:\.\d*)?|\.\d+)$")
_COUNTED = r"^(?:[\d.]+|<not (?:supported|counted)>)[,;|\t][^,;|\t]*[,;|\t][\w.:/=\-]+[,;|\t][\d.%]*[,;|\t][\d.]*"
_OF_PERF = (
    r"^# started on |<not (?:supported|counted)>|[,;|\t](?:msec|task-clock|cpu-clock|cycles|instructions|branches"
    r"|page-faults|context-switches|cache-references|cache-misses|\w+-(?:loads|stores|misses|faults))(?::\w+)?[,;|\t]"
    r"|[,;|\t](?:Joules[,;|\t]|\w+/[\w.=,\-]+/)"
)
"""Five columns of numbers are no counters yet."""

_TEXT = (
    _Kind("ncu-csv", "CSV of ncu", _says(r'^"?ID"?,"?Process ID"?,')),
    _Kind(
        "ncu-log",
        "what ncu printed, which was not allowed to read the GPU's counters (ERR_NVGPUCTRPERM)",
        _says(r"^==ERROR== ERR_NVGPUCTRPERM"),
        "it holds no kernel: allow it (https://developer.nvidia.com/ERR_NVGPUCTRPERM) and record again",
    ),
    _Kind(
        "ncu-log",
        "a summary of ncu (--print-summary), which tells no launches apart",
        _says('"Metric Name".*"Minimum","Maximum"'),
        "print it without, or import the report (.ncu-rep)",
    ),
    _Kind(
        "ncu-log",
        "a source page of ncu",
        _says('^"(?:Address|#)","(?:Address|Source)"'),
        "import the report (.ncu-rep), or what `ncu --csv --page raw` prints",
    ),
    _Kind("ncu-log", "what ncu printed", _says(r"^==(?:PROF|ERROR|WARNING)=="), _NCU),
    _Kind(
        "nsys-stats",
        "the summary of `nsys stats`",
        _says(
            r"^\s*\*\* .+ \(\w+\):|^Time \(%\),|^Total \(MB\),|^Processing \[.+\] with \[|^SKIPPED: "
            r"|Executing '\w+' stats report|^\s*Time \(%\) +Total Time|^Generating SQLite file"
        ),
        _NSYS,
    ),
    _Kind("nsys-log", "what nsys printed", _says(r"^\s*Exporting \d+ events|^Exportation error|^Generated:"), _NSYS),
    _Kind(
        "key-averages",
        "the printed table of key_averages()",
        _says(r"Self CPU %.*CPU total %"),
        "its times are rounded and its names cut: import the trace (prof.export_chrome_trace)",
    ),
    _Kind(
        "nvidia-smi",
        "what nvidia-smi printed",
        _says(
            r"nvidia_gpu_exporter GPU capture|^# gpu +pwr|utilization\.gpu|^List of valid properties to query"
            r"|NVIDIA-SMI has failed|Failed to initialize NVML|^No devices were found"
            r"|^(?:\d+|[^,\n]+, [^,\n]+), GPU-[0-9a-f]{8}-|^==============NVSMI LOG"
        ),
        _SMI,
    ),
    _Kind(
        "cpu-facts",
        "facts about processors (cpufreq, /proc/cpuinfo or sysfs)",
        _says(
            r"^analyzing CPU \d+:|^processor\s*: \d+$|scaling_(?:cur|max|min)_freq\b"
            r"|^cpu0\n(?:\w+\n)*(?:kernel_max|possible)$"
        ),
        _CPU,
    ),
    _Kind(
        "py-spy-dump",
        "what `py-spy dump` printed",
        _says(r"^Process \d+: .*\nPython v\d"),
        f"one look, no samples: {_PYSPY}",
    ),
    _Kind("py-spy-log", "what py-spy said while it recorded", _says(r"^py-spy> "), f"it is not its data: {_PYSPY}"),
    _Kind("strace-log", "a log of strace", lambda h: _says(_ANSWERED)(h) and h.share(_LOG_LINE) >= 0.4),
    _Kind(
        "strace-summary",
        "a summary of strace",
        _says(r"^\s*(?:% time|seconds|calls)\b.*\bsyscall\b|^\s*syscall\b.*\bcalls\b"),
    ),
    _Kind(
        "map-table",
        "a table of mapped memory, made from a log of strace or the like",
        _says(r"^add: .*\blen: \d+.*\b(?:mmap|mprotect|munmap)$"),
        "import what strace itself has written",
    ),
    _Kind(
        "perf-stat",
        "counters of `perf stat`",
        lambda h: _says("Performance counter stats for")(h) or (_says(_COUNTED)(h) and _says(_OF_PERF)(h)),
    ),
    _Kind(
        "perf-script",
        "what `perf script` prints",
        _both(_says(_SAMPLE), _says(r"^\s*[0-9a-f]{3,} .+ \(.*\)$|: +\d* *[\w:-]+: +[0-9a-f]{3,} ")),
    ),
    _Kind("folded", "folded stacks", lambda h: h.share(_STACK) >= 0.5 and _says(r"^\S.*[;)].* [\d.]+$")(h)),
)


def kinds() -> Sequence[_Kind]:
    """All of them, for those who check that each is dealt with."""
    return (*_BINARY, *_MARKUP, *_JSON, *_TEXT)
