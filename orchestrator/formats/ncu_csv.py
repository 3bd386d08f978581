"""Reads what `ncu --csv` prints: the raw page, the details page, single sections and lists of metrics, also gzipped.

Around the table such a file may hold ncu's own lines (==PROF==, ==WARNING==) and whatever the program printed. A table
begins at its header, which has "ID", "Process ID" and "Kernel Name"; on the raw page a row of units follows, elsewhere
each row has its unit. Headers and names differ by version. Seen in output of 2021 to 2026; described in NVIDIA's Nsight
Compute CLI guide (--csv, --page, --print-units)."""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from orchestrator.errors import ParseError
from orchestrator.formats.ncu_launch import Launch, Losses, Rule, number, shape

KINDS = {"INF": "ok", "OPT": "optimization", "WRN": "warning", "ERR": "error"}
NO_VALUE = ("n/a", "no data")
LONGEST_LINE = 4 << 20
"""A raw page with every metric has lines of 100 kB."""
LONGEST_LAUNCH = 64 << 20
"""Characters; what is more is lost, so that no file takes all memory."""
_MOST_WARNINGS = 5
_LONGEST_QUOTE = 300

# ---------------------------------------------------------------- names and units

PEAK = ".avg.pct_of_peak_sustained_"
LABELS = {
    "Achieved Active Warps Per SM": "sm__warps_active.avg.per_cycle_active",
    "Achieved Occupancy": f"sm__warps_active{PEAK}active",
    "Active Warps Per Scheduler": "smsp__warps_active.avg.per_cycle_active",
    "Avg. Active Threads Per Warp": "smsp__thread_inst_executed_per_inst_executed.ratio",
    "Avg. Divergent Branches": "smsp__sass_branch_targets_threads_divergent.avg",
    "Avg. Executed Instructions Per Scheduler": "smsp__inst_executed.avg",
    "Avg. Issued Instructions Per Scheduler": "smsp__inst_issued.avg",
    "Avg. Not Predicated Off Threads Per Warp": "smsp__thread_inst_executed_pred_on_per_inst_executed.ratio",
    "Block Limit Barriers": "launch__occupancy_limit_barriers",
    "Block Limit Registers": "launch__occupancy_limit_registers",
    "Block Limit SM": "launch__occupancy_limit_blocks",
    "Block Limit Shared Mem": "launch__occupancy_limit_shared_mem",
    "Block Limit Warps": "launch__occupancy_limit_warps",
    "Block Size": "launch__block_size",
    "Branch Efficiency": "smsp__sass_average_branch_targets_threads_uniform.pct",
    "Branch Instructions": "smsp__inst_executed_op_branch.sum",
    "Branch Instructions Ratio": "derived__smsp__inst_executed_op_branch_pct",
    "Cluster Occupancy": "launch__occupancy_cluster_pct",
    "Cluster Size": "launch__cluster_size",
    "Compute (SM) [%]": f"sm__throughput{PEAK}elapsed",
    "Compute (SM) Throughput": f"sm__throughput{PEAK}elapsed",
    "DRAM Frequency": "dram__cycles_elapsed.avg.per_second",
    "DRAM Throughput": f"gpu__dram_throughput{PEAK}elapsed",
    "Driver Shared Memory Per Block": "launch__shared_mem_per_block_driver",
    "Duration": "gpu__time_duration.sum",
    "Dynamic Shared Memory Per Block": "launch__shared_mem_per_block_dynamic",
    "Elapsed Cycles": "gpc__cycles_elapsed.max",
    "Eligible Warps Per Scheduler": "smsp__warps_eligible.avg.per_cycle_active",
    "Executed Instructions": "smsp__inst_executed.sum",
    "Executed Ipc Active": "sm__inst_executed.avg.per_cycle_active",
    "Executed Ipc Elapsed": "sm__inst_executed.avg.per_cycle_elapsed",
    "Grid Size": "launch__grid_size",
    "Issue Slots Busy": f"sm__inst_issued{PEAK}active",
    "Issued Instructions": "smsp__inst_issued.sum",
    "Issued Ipc Active": "sm__inst_issued.avg.per_cycle_active",
    "Issued Warp Per Scheduler": "smsp__issue_active.avg.per_cycle_active",
    "L1/TEX Cache Throughput": f"l1tex__throughput{PEAK}active",
    "L1/TEX Hit Rate": "l1tex__t_sector_hit_rate.pct",
    "L2 Cache Throughput": f"lts__throughput{PEAK}elapsed",
    "L2 Compression Ratio": "lts__average_gcomp_output_sector_compression_achieved_rate.ratio",
    "L2 Compression Success Rate": "lts__average_gcomp_input_sector_success_rate.pct",
    "L2 Hit Rate": "lts__t_sector_hit_rate.pct",
    "Max Active Clusters": "launch__cluster_max_active",
    "Max Bandwidth": f"gpu__compute_memory_request_throughput{PEAK}elapsed",
    "Max Cluster Size": "launch__cluster_max_potential_size",
    "Mem Busy": f"gpu__compute_memory_access_throughput{PEAK}elapsed",
    "Mem Pipes Busy": f"sm__memory_throughput{PEAK}elapsed",
    "Memory [%]": f"gpu__compute_memory_throughput{PEAK}elapsed",
    "No Eligible": f"smsp__issue_inst0{PEAK}active",
    "One or More Eligible": f"smsp__issue_active{PEAK}active",
    "Overall GPU Occupancy": "launch__occupancy_cluster_gpu_pct",
    "Registers Per Thread": "launch__registers_per_thread",
    "# SMs": "launch__sm_count",
    "SM Active Cycles": "sm__cycles_active.avg",
    "SM Busy": f"sm__instruction_throughput{PEAK}active",
    "SM Frequency": "gpc__cycles_elapsed.avg.per_second",
    "SM [%]": f"sm__throughput{PEAK}elapsed",
    "SOL DRAM": f"gpu__dram_throughput{PEAK}elapsed",
    "SOL L1/TEX Cache": f"l1tex__throughput{PEAK}active",
    "SOL L2 Cache": f"lts__throughput{PEAK}elapsed",
    "Shared Memory Configuration Size": "launch__shared_mem_config_size",
    "Stack Size": "launch__stack_size",
    "Static Shared Memory Per Block": "launch__shared_mem_per_block_static",
    "# TPCs": "launch__tpc_count",
    "Theoretical Active Warps per SM": "sm__maximum_warps_avg_per_active_cycle",
    "Theoretical Occupancy": "sm__maximum_warps_per_active_cycle_pct",
    "Threads": "launch__thread_count",
    "Warp Cycles Per Executed Instruction": "smsp__average_warps_active_per_inst_executed.ratio",
    "Warp Cycles Per Issued Instruction": "smsp__average_warp_latency_per_inst_issued.ratio",
    "Waves Per SM": "launch__waves_per_multiprocessor",
}
"""Labels of the details page, as ncu's section files (*.section) of 2021 to 2025 give them; others stay as they are."""
_MEMORY = {
    "GPU Speed Of Light Throughput": f"gpu__compute_memory_throughput{PEAK}elapsed",
    "Memory Workload Analysis": "dram__bytes.sum.per_second",
}
"""The one label that two sections have, "Memory Throughput", by section."""

_TIMES_NS = {
    **dict.fromkeys(("ns", "nsecond", "nsec"), 1.0),
    **dict.fromkeys(("us", "usecond", "usec"), 1e3),
    **dict.fromkeys(("ms", "msecond", "msec"), 1e6),
    **dict.fromkeys(("s", "second", "sec"), 1e9),
}
_SCALES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SCALED = re.compile(r"([KMGTP])(byte|hz)")


@lru_cache(maxsize=4096)
def base_unit(unit: str) -> tuple[float, str | None]:
    """(factor, base unit) of a unit of ncu. Bases as in reports: ns, but .../s; byte; hz for cycles per second."""
    above, slash, below = unit.partition("/")
    factor, above = (_TIMES_NS[above], "ns") if above in _TIMES_NS else _scaled(above)
    if not slash:
        return factor, above or None
    divisor, below = (_TIMES_NS[below] / 1e9, "s") if below in _TIMES_NS else _scaled(below)
    return factor / divisor, "hz" if (above, below) == ("cycle", "s") else f"{above}/{below}"


def _scaled(unit: str) -> tuple[float, str]:
    found = _SCALED.fullmatch(unit)
    return (_SCALES[found[1]], found[2]) if found else (1.0, unit)


_NUMBER = re.compile(r"([-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf)(?: \(.*\))?")
"""With its thousands, and followed by its instances where those were asked for."""


def value_of(text: str, unit: str) -> tuple[float | None, str | None] | None:
    """(value, unit) in base units; value None for what ncu could not give; None for text."""
    if text in NO_VALUE:
        return None, base_unit(unit)[1]
    found = _NUMBER.fullmatch(text)
    if not found:
        return None
    factor, base = base_unit(unit)
    value = number(float(found[1].replace(",", "")))
    return None if value is None else number(value * factor), base


# ---------------------------------------------------------------- a table and its rows


@dataclass(frozen=True)
class Header:
    """The columns of a table: `place` by name, and how many cells a row may have."""

    names: tuple[str, ...]
    place: Mapping[str, int]
    lengths: frozenset[int]

    @property
    def raw(self) -> bool:
        return "Metric Name" not in self.place

    @property
    def fixed(self) -> int:
        """Where the metrics begin on the raw page."""
        known = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream")
        return max(self.place.get(name, 0) for name in (*known, "Block Size", "Grid Size", "Device", "CC")) + 1

    def get(self, row: list[str], name: str) -> str:
        place = self.place.get(name)
        return row[place] if place is not None and place < len(row) else ""


def header_of(row: list[str]) -> Header | None:
    """The header that a row is; None for any other, also for a program's line that begins with "ID"."""
    place = {name: i for i, name in reversed(list(enumerate(row)))}
    if row[:1] != ["ID"] or not {"Process ID", "Kernel Name"} <= set(row):
        return None
    if "Metric Name" not in place:
        return Header(tuple(row), place, frozenset({len(row)}))
    if not {"Metric Unit", "Metric Value"} <= set(row):
        return None
    measured = place["Metric Value"] + 1  # rows of metrics end there, or with an empty cell after it
    return Header(tuple(row), place, frozenset({measured, min(measured + 1, len(row)), len(row)}))


@dataclass
class _Growing:
    """A launch while its rows are read."""

    key: tuple[int, int]
    kernel: str
    grid: str | None
    block: str | None
    metrics: dict[str, tuple[float | None, str | None]] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    gpu: str | None = None
    read: int = 0

    def done(self) -> Launch:
        grid, block = self.grid or shape(self.metrics, "grid"), self.block or shape(self.metrics, "block")
        return Launch(*self.key, self.kernel, None, grid, block, self.gpu, self.metrics, tuple(self.rules))


class Page:
    """A file of CSV, read once by `launches`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.losses = Losses()
        self._header: Header | None = None
        self._units: list[str] | None = None
        self._growing: _Growing | None = None
        self._signs: dict[int, str] = {}
        self._warnings: dict[str, None] = {}
        self._messages = 0
        self._foreign = 0

    def launches(self) -> Iterator[Launch]:
        """In the order of the file, numbered as there. What is cut off, damaged or not ncu's is counted."""
        found = False
        for record in _records(self.path, self.losses):
            launch = self._take(record)
            if launch:
                found = True
                yield launch
        if not found and not self._growing:
            said = (*self.losses.damage, *self.losses.notes)
            raise ParseError("; ".join((f"{self.path.name} {self._why_nothing()}", *said)))
        if self._growing:
            yield self._growing.done()
        self._tell()

    def _take(self, record: str) -> Launch | None:
        """Takes a record; gives the launch before it when another begins."""
        row = _cells(record)
        header = header_of(row)
        if header:
            self._header, self._units = header, None
        elif self._header is None or not _BEGINS_A_ROW.match(record):
            self._note(record)
        elif len(row) not in self._header.lengths or not self._is_row(row):
            if _BEGINS_A_RECORD.match(record) and row[1:] and row[1].isdigit():
                self.losses.rows += 1
            else:
                self._foreign += 1
        elif row[0]:
            return self._add(self._header, row)
        elif self._units is None:
            self._units = row
        return None

    def _is_row(self, row: list[str]) -> bool:
        """A row of ncu: launch and process are numbers; in the raw page's row of units both are empty."""
        assert self._header is not None
        serial, pid = row[0], self._header.get(row, "Process ID")
        return (_is_int(serial) and _is_int(pid)) or (self._header.raw and serial == pid == "")

    def _add(self, header: Header, row: list[str]) -> Launch | None:
        def get(name: str) -> str:
            return header.get(row, name)

        finished, key = None, (int(row[0]), int(get("Process ID")))
        if self._growing is None or self._growing.key != key:
            shapes = (_dims(get("Grid Size")), _dims(get("Block Size")))
            finished, self._growing = self._growing, _Growing(key, sys.intern(get("Kernel Name")), *shapes)
        self._growing.read += len(row) + sum(map(len, row))
        if self._growing.read > LONGEST_LAUNCH:
            self.losses.rows += 1
        elif header.raw:
            units = self._units or [""] * len(row)
            for name, unit, text in zip(
                header.names[header.fixed :], units[header.fixed :], row[header.fixed :], strict=True
            ):
                self._keep(name, unit, text)
        elif get("Metric Name"):
            self._keep(metric_name(get("Metric Name"), get("Section Name")), get("Metric Unit"), get("Metric Value"))
        elif get("Rule Name"):
            self._growing.rules.append(_rule(get))
        else:
            self.losses.rows += 1
        return finished.done() if finished else None

    def _keep(self, name: str, unit: str, text: str) -> None:
        assert self._growing is not None
        if name == "device__attribute_display_name":
            self._growing.gpu = text
        elif text and (found := value_of(text, unit)):
            self._growing.metrics.setdefault(sys.intern(name), found)

    # ------------------------------------------------------------ what is no row

    def _note(self, record: str) -> None:
        """A line outside of the tables: ncu's own, or the program's."""
        line = record.strip()
        for i, (sign, _) in enumerate(_SIGNS):
            if i not in self._signs and (found := sign.search(line)):
                self._signs[i] = found[found.re.groups][:_LONGEST_QUOTE]
        if not line.startswith("=="):
            self._foreign += bool(line)
            return
        self._messages += 1
        if line.startswith(("==WARNING==", "==ERROR==")) and len(self._warnings) < _MOST_WARNINGS:
            self._warnings[line[:_LONGEST_QUOTE]] = None

    def _tell(self) -> None:
        losses, name = self.losses, self.path.name
        losses.notes += [f"ncu says: {line}" for line in self._warnings]
        if losses.rows:
            losses.damage.append(f"damaged rows of {name} that are left out: {losses.rows}")
        if self._foreign:
            losses.notes.append(f"lines of {name} that are not ncu's (the program's output): {self._foreign}")

    def _why_nothing(self) -> str:
        if self._signs:
            sign = min(self._signs)
            return _SIGNS[sign][1].format(self._signs[sign])
        if self._header:
            return "has the header of ncu's CSV and no launch"
        if self._messages:
            return "holds messages of ncu and no table: it saw no kernel, or ended before it had measured one"
        return 'is no CSV of ncu: it has no header with "ID", "Process ID" and "Kernel Name"'


_SIGNS = (
    (re.compile("ERR_NVGPUCTRPERM"), "holds no kernel: ncu was not allowed to read the GPU's counters ({0})"),
    (re.compile("^==ERROR== (.+)"), "holds no kernel; ncu says: {0}"),
    (
        re.compile(r"^Section: \S|^Metric Name {2,}"),
        "is ncu's text for the console, which is not read: give its .ncu-rep, or print it with --csv",
    ),
    (
        re.compile('"Metric Name".*"Minimum","Maximum"'),
        "is a summary of ncu (--print-summary), which tells no launches apart: print it without",
    ),
    (
        re.compile('^"(?:Address|#)","(?:Address|Source)"'),
        "is a source page of ncu, which is not read: give its .ncu-rep, or print --page raw",
    ),
)
"""Why a file has no launch, in the order of how much that explains."""


def metric_name(label: str, section: str) -> str:
    """The metric that a label of the details page stands for."""
    if label == "Memory Throughput":
        return _MEMORY.get(section, label)
    return LABELS.get(label, label)


def _rule(get: Callable[[str], str]) -> Rule:
    return Rule(
        section=get("Section Name") or None,
        rule=get("Rule Name"),
        kind=KINDS.get(get("Rule Type")),
        message=get("Rule Description") or None,
        speedup_pct=(value_of(get("Estimated Speedup"), "") or (None,))[0],
        scope=get("Estimated Speedup Type") or None,
    )


def _dims(text: str) -> str | None:
    """(16384, 1, 1) as x,y,z."""
    found = re.fullmatch(r"\((\d{1,10}), (\d{1,10}), (\d{1,10})\)", text)
    return ",".join(found.groups()) if found else None


def _is_int(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 19


# ---------------------------------------------------------------- lines


_BEGINS_A_ROW = re.compile(r'(?:"\d*"|\d*),')
_HEADER = '"ID","Process ID",'
_BEGINS_A_RECORD = re.compile(r'"(?:ID|\d+)","')


def _cells(record: str) -> list[str]:
    """The cells of a record. ncu leaves quotes in its messages as they are; it quotes all cells, but an empty last."""
    text = record.rstrip("\r\n")
    try:
        return next(csv.reader([text], strict=True), [])
    except csv.Error:
        last = [""] if text.endswith('",') else []
        return [*text.removesuffix(",").removeprefix('"').removesuffix('"').split('","'), *last]


def _records(path: Path, losses: Losses) -> Iterator[str]:
    """Lines, and rows of ncu with all lines of their messages. A row whose quotes never close ends where the next
    begins."""
    row = ""
    for line in (part for whole in _lines(path, losses) for part in _apart(whole)):
        begins = _BEGINS_A_RECORD.match(line)
        if row and (begins or len(row) > LONGEST_LINE):
            losses.rows += 1
            row = ""
        if not row and not begins:
            yield line
            continue
        row += line
        if row.count('"') % 2 == 0:
            yield row
            row = ""
    losses.rows += bool(row)


def _apart(line: str) -> list[str]:
    """A header by itself, where the program's last line had no end."""
    at = line.find(_HEADER)
    return [line[:at], line[at:]] if at > 0 else [line]


def _lines(path: Path, losses: Losses) -> Iterator[str]:
    """The lines of a file, of a gzipped one as far as it goes. Raises ParseError for one that can't be opened."""
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                if len(line) < LONGEST_LINE:
                    yield line
                else:
                    losses.rows += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        losses.damage.append(f"{path.name} is cut off or damaged: what follows is lost ({error})")
    except OSError as error:
        raise ParseError(f"{path.name} can't be read: {error.strerror or error}") from error


def _opened(path: Path) -> TextIO:
    """As text: ncu writes UTF-8, PowerShell's redirection UTF-16."""
    with path.open("rb") as file:
        first = file.read(2)
    wide = first in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    raw = gzip.open(path) if first == b"\x1f\x8b" else path.open("rb")  # noqa: SIM115 - closed with what is around it
    return TextIOWrapper(cast(BinaryIO, raw), "utf-16" if wide else "utf-8-sig", errors="replace", newline="\n")
