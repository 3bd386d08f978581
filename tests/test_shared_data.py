"""Every real file that there is, through `profrun import`: read, salvaged or refused, each for the right reason, and
the known facts of what is read. `pytest -s` shows the table."""

from __future__ import annotations

import ast
import csv
import gzip
import importlib.util
import io
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from orchestrator import importing
from orchestrator.formats.sniff import sniff
from orchestrator.model import Capture
from orchestrator.render.console import Console
from orchestrator.report import Report

EXPECTED = (
    ("cpufreq/*", "cpu-facts", "refused", "describes a machine, not a program"),
    ("ncu/*.ncu-rep", "ncu-rep", "read", ""),
    ("ncu/csv_prelude_only_no_table.csv", "ncu-log", "refused", "import the report (.ncu-rep)"),
    ("ncu/*.csv", "ncu-csv", "read", ""),
    ("ncu/*.csv.gz", "ncu-csv", "read", ""),
    ("ncu/log_err_nvgpuctrperm.txt", "ncu-log", "refused", "not allowed to read the GPU's counters"),
    ("ncu/*.txt", "ncu-log", "refused", "import the report (.ncu-rep)"),
    ("nsys/2023.3.1_no_gpu_driver0.sqlite", "nsys-sqlite", "empty", "no event"),
    ("nsys/2026.1.1_a100x4_julia.sqlite", "nsys-sqlite", "empty", "no event"),
    ("nsys/not_nsys_dlprof_dldb.sqlite", "dlprof", "refused", "a database of DLProf"),
    ("nsys/*.sqlite", "nsys-sqlite", "read", ""),
    ("nsys/*.json.gz", "nsys-json", "refused", "nsys export --type sqlite"),
    ("nsys/*export_error*.txt", "nsys-log", "refused", "what nsys printed"),
    ("nsys/*.stderr", "nsys-log", "refused", "what nsys printed"),
    ("nsys/*.txt", "nsys-stats", "refused", "import the .sqlite or .nsys-rep"),
    ("nsys/*.csv", "nsys-stats", "refused", "import the .sqlite or .nsys-rep"),
    ("nvidia-smi/*", "nvidia-smi", "refused", "how a GPU was at a moment"),
    ("perf/folded_*", "folded", "read", ""),
    ("perf/*script_*", "perf-script", "read", ""),
    ("perf/stat_two_sum_topdown_3runs.txt", "perf-stat", "refused", "3 runs of perf stat: split it"),
    ("perf/*stat_*", "perf-stat", "read", ""),
    ("pyspy/*dump*", "py-spy-dump", "refused", "one look, no samples"),
    ("pyspy/*.svg", "svg", "refused", "samples can't be read back"),
    ("pyspy/record_stderr*", "py-spy-log", "refused", "it is not its data"),
    ("pyspy/*raw_*", "folded", "read", ""),
    ("pyspy/self_chrometrace.json", "py-spy-trace", "read", ""),
    ("pyspy/speedscope_*", "speedscope", "read", ""),
    ("strace/not_strace_mapping_table.txt", "map-table", "refused", "import what strace itself has written"),
    ("strace/self_c_*", "strace-summary", "read", ""),
    ("strace/summary_*", "strace-summary", "read", ""),
    ("strace/snip_attach_15_threads_truncated.txt", "strace-log", "empty", "no system call returned"),
    ("strace/*", "strace-log", "read", ""),
    ("torch/derived_truncated_stream.json.gz", "kineto", "salvaged", "the end of the trace is missing"),
    ("torch/memsnap_full_no_history.pickle", "memory-snapshot", "salvaged", "no history was recorded"),
    ("torch/memsnap_*", "memory-snapshot", "read", ""),
    ("torch/memory_timeline.raw.gz", "memory-timeline", "refused", "import the trace"),
    ("torch/profiler_table_vllm.txt", "key-averages", "refused", "import the trace"),
    ("torch/*", "kineto", "read", ""),
)  # fmt: skip
"""The first row whose glob fits a file: its kind, what becomes of it, and words of the reason."""
VERDICTS = {"ok": "read", "degraded": "salvaged", "empty": "empty", "unreadable": "refused"}
COUNT = 172


@dataclass(frozen=True)
class Case:
    """A file of INDEX.tsv, what was expected of it, and what became of it."""

    name: str
    facts: str
    path: Path
    kind: str
    verdict: str
    words: str
    report: Report
    capture: Capture

    @property
    def got(self) -> str:
        return VERDICTS.get(self.capture.status, self.capture.status)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """The rows of its capture."""
        frame = self.report.table(table)
        if frame is None:
            return []
        own = frame[frame["capture"] == self.capture.id]
        return own.astype(object).where(own.notna(), None).to_dict("records")

    def total(self, table: str, column: str) -> Any:
        return sum(row[column] for row in self.rows(table) if row[column] is not None)

    def fact(self, name: str) -> str | None:
        """The value of `name=...`, up to the next blank; in brackets up to the closing one."""
        found = re.search(rf"\b{name}=(\[.*?\](?= \w|$)|\(.*?\)(?= \w|$)|\S+)", self.facts)
        return found[1] if found else None

    @cached_property
    def text(self) -> str:
        data = self.path.read_bytes()
        return (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")


def _expected(name: str) -> tuple[str, str, str]:
    kind, verdict, words = next(row[1:] for row in EXPECTED if fnmatch(name, row[0]))
    if name.endswith(".ncu-rep") and importlib.util.find_spec("ncu_report") is None:
        return kind, "refused", "-m pip install ncu-report"
    return kind, verdict, words


@pytest.fixture(scope="module")
def cases(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Case]:
    """All files, imported into one report."""
    with (shared / "data" / "INDEX.tsv").open(newline="") as file:
        index = list(csv.DictReader(file, delimiter="\t"))
    paths = [shared / "data" / row["path"] for row in index]
    console = Console(quiet=True, stream=io.StringIO())
    output = tmp_path_factory.mktemp("imported")
    report = importing.run(importing.Request(tuple(paths), output, "everything"), console)
    return [
        Case(row["path"], row["verified_facts"], path, *_expected(row["path"]), report, capture)
        for row, path, capture in zip(index, paths, report.captures, strict=True)
    ]


def test_every_file_gets_its_verdict(cases: list[Case]) -> None:
    print()
    for case in cases:
        said = case.capture.reason or "; ".join(case.capture.notes)
        print(f"{case.got:9} {sniff(case.path).kind:16} {case.name:76} {said[:110]}")
    print(Counter(case.got for case in cases))
    assert len(cases) == COUNT
    for case in cases:
        assert (case.name, sniff(case.path).kind, case.got) == (case.name, case.kind, case.verdict)
        assert case.words in (case.capture.reason or ""), case.name


def test_every_row_of_the_table_is_needed(cases: list[Case]) -> None:
    used = {next(row[0] for row in EXPECTED if fnmatch(case.name, row[0])) for case in cases}
    assert used == {row[0] for row in EXPECTED}


def test_what_is_read_is_kept_whole_and_what_is_refused_is_not_kept(cases: list[Case]) -> None:
    for case in cases:
        files = [case.report.folder / artifact.path for artifact in case.capture.artifacts]
        if not files:
            assert case.got == "refused", case.name
        elif case.kind in ("strace-log",) and case.name.endswith(".gz"):
            assert files[0].read_text() == case.text
        else:
            assert files[0].read_bytes() == case.path.read_bytes(), case.name


# ---------------------------------------------------------------- facts


def nsys(case: Case) -> None:
    kernels, copies = case.rows("gpu_kernel_summary"), case.rows("gpu_transfer_summary")
    assert sum(row["count"] for row in kernels) == int(case.fact("kernels") or 0)
    assert sum(row["total_ns"] for row in kernels) == int(case.fact("sum_ns") or 0)
    top = re.search(r"top='(.+?)' n=(\d+) ns=(\d+)", case.facts)
    if top:
        first = kernels[0]
        plain = first["name"].replace("(anonymous namespace)", "<unnamed>")
        assert plain[: len(top[1])] == top[1]
        assert (first["count"], first["total_ns"]) == (int(top[2]), int(top[3]))
    for words, sets in (("memcpy", False), ("memset", True)):
        found = re.search(rf"{words}: n=(\d+) ns=(\d+) bytes=(\d+)", case.facts)
        own = [row for row in copies if ("memset" in row["name"]) is sets]
        sums = [sum(row[column] for row in own) for column in ("count", "total_ns", "bytes")]
        assert sums == (list(map(int, found.groups())) if found else [0, 0, 0])
    graphs = re.search(r"GRAPH_TRACE:(\d+)", case.facts)
    assert len(case.rows("gpu_graphs")) == (int(graphs[1]) if graphs else 0)


def kineto(case: Case) -> None:
    kernels = case.rows("gpu_kernel_summary")
    if case.fact("kernels") is None:
        assert "json error" in case.facts and kernels, "a file that others can't read at all"
        return
    assert sum(row["count"] for row in kernels) == int(case.fact("kernels") or 0)
    kernel_us = float(case.fact("kernel_us") or 0)
    assert sum(row["total_ns"] for row in kernels) / 1e3 == pytest.approx(kernel_us, rel=1e-5, abs=0.001)
    top = case.fact("top")
    if top and top != "None":
        name, us = ast.literal_eval(top)
        assert kernels[0]["name"].startswith(name)
        assert kernels[0]["total_ns"] / 1e3 == pytest.approx(us, rel=1e-5, abs=0.5)
    rank = (case.fact("rank") or "None").partition("/")[0]
    taken = any("taken for rank 0" in note for note in case.capture.notes)
    assert case.capture.rank == (int(rank) if rank != "None" else 0 if taken else None)
    assert len(case.rows("memory")) == int(case.fact("memory_instants") or 0)


def ncu_report(case: Case) -> None:
    profiles = case.rows("kernel_profiles")
    assert len(profiles) == int(case.fact("results") or 0)
    assert case.total("kernel_profiles", "duration_ns") == int(case.fact("duration_ns_sum") or 0)
    gone = int(case.fact("nan_durations") or 0) + int(case.fact("missing_durations") or 0)
    assert sum(row["duration_ns"] is None for row in profiles) == gone
    assert len(case.rows("kernel_rules")) == int(case.fact("rules") or 0)


def ncu_csv(case: Case) -> None:
    profiles = case.rows("kernel_profiles")
    units = int("_raw_" in case.name)  # the row of units below the header was counted, too
    assert len(profiles) == int(case.fact("ids") or 0) - units
    assert len({row["kernel"] for row in profiles}) == int(case.fact("kernels") or 0) - units


def folded(case: Case) -> None:
    total = float(case.fact("total") or 0)
    if "austin" in case.name:
        total -= 100 + 23873  # the numbers of its notes `# interval: 100` and `# duration: 23873`
    rows = case.rows("stacks")
    assert sum(row["samples"] for row in rows) == pytest.approx(total, rel=1e-5, abs=len(rows) / 2)
    deepest = max(row["stack"].count(";") + 1 for row in rows)
    named = 2 if "subprocesses" in case.name else 0  # frames that name a process or thread are columns
    assert int(case.fact("max_depth") or 0) - named - 1 <= deepest <= int(case.fact("max_depth") or 0)


def script(case: Case) -> None:
    event = case.capture.notes[0].split(" samples of ")[1]
    lines = [line for line in case.text.splitlines() if not line.startswith("#")]
    heads = sum(bool(re.search(rf"\s{re.escape(event)}:?\s*$", line)) for line in lines)
    assert case.total("stacks", "samples") == heads > 0


def perf_stat(case: Case) -> None:
    values = {row["event"].partition(":")[0]: row["value"] for row in case.rows("counters")}
    if case.name.endswith(".csv"):
        lines = (line.split(",") for line in case.text.splitlines() if line.count(",") > 4)
        shown = {event: value for value, _, event, *_ in lines}
    else:
        shown = {event: value for value, event in re.findall(r"^ +([\d,]+) +([a-z-]+):u", case.text, re.M)}
    assert len(shown) > 3
    for event, text in shown.items():
        known = None if text.startswith("<") else float(text.replace(",", ""))
        assert values[event] == known, event


def speedscope(case: Case) -> None:
    profiles = re.findall(r"'seconds', (\d+), ([\d.]+)\)", case.facts)
    by_thread: Counter[str] = Counter()
    for row in case.rows("stacks"):
        by_thread[row["thread"]] += row["weight_ns"]
    assert sorted(by_thread.values()) == sorted(round(float(s) * 1e9) for _, s in profiles)
    assert case.total("stacks", "samples") == sum(int(count) for count, _ in profiles)
    assert (case.capture.tool.name, case.capture.tool.version) == ("py-spy", "0.4.1") if case.capture.tool else False


def chrometrace(case: Case) -> None:
    assert case.total("stacks", "weight_ns") > 0 and {row["samples"] for row in case.rows("stacks")} == {None}


def strace_log(case: Case) -> None:
    counts: Counter[str] = Counter()
    for row in case.rows("syscalls"):
        counts[row["name"]] += row["count"]
    begun = ast.literal_eval(case.fact("top_calls") or "[]")
    unreturned = re.search(r"leave out: ([\d,]+)", "; ".join(case.capture.notes))
    missing = int(unreturned[1].replace(",", "")) if unreturned else 0
    assert begun
    for name, count in begun:  # calls that never returned are begun, and not in the table
        assert count - missing <= counts[name] <= count, (case.name, name)


def strace_summary(case: Case) -> None:
    seconds, numbers = re.findall(r"total row: [\d.]+ ([\d.]+) ([\d ]+)total", case.facts)[0]
    *_, calls, errors = map(int, numbers.split())
    assert case.total("syscalls", "count") == calls and case.total("syscalls", "errors") == errors
    assert len(case.rows("syscalls")) == int(re.findall(r"syscall rows=(\d+)", case.facts)[0])
    rows = len(case.rows("syscalls"))
    assert case.total("syscalls", "total_ns") / 1e9 == pytest.approx(float(seconds), abs=rows * 1e-6)
    assert {row["time"] for row in case.rows("syscalls")} == {None}


def snapshot(case: Case) -> None:
    metrics = {
        name.partition(".")[0]: m.value for name, m in case.report.metrics.items() if name.endswith(case.capture.id)
    }
    assert metrics["cuda_segments"] == int(case.fact("segments") or 0)
    assert metrics["cuda_reserved_bytes"] == int(case.fact("total_size") or 0)
    assert metrics["cuda_allocated_bytes"] == int(case.fact("allocated") or 0)
    actions = ast.literal_eval(re.findall(r"actions=(\{.*?\})", case.facts)[0])
    assert len(case.rows("memory")) == actions.get("alloc", 0) + actions.get("free_requested", 0)


CHECKS: dict[str, Callable[[Case], None]] = {
    "nsys-sqlite": nsys,
    "kineto": kineto,
    "ncu-rep": ncu_report,
    "ncu-csv": ncu_csv,
    "folded": folded,
    "perf-script": script,
    "perf-stat": perf_stat,
    "speedscope": speedscope,
    "py-spy-trace": chrometrace,
    "strace-log": strace_log,
    "strace-summary": strace_summary,
    "memory-snapshot": snapshot,
}


@pytest.mark.parametrize("kind", CHECKS)
def test_the_facts_of_what_is_read(cases: list[Case], kind: str) -> None:
    chosen = [case for case in cases if case.kind == kind and case.got in ("read", "salvaged")]
    assert chosen
    for case in chosen:
        try:
            CHECKS[kind](case)
        except AssertionError as error:
            raise AssertionError(f"{case.name}: {error}") from error


def test_the_checks_deal_with_every_kind_that_is_read(cases: list[Case]) -> None:
    assert {case.kind for case in cases if case.got != "refused"} == set(CHECKS)
