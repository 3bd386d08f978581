"""The timeline: which pass is drawn, where its events stand, and that all of them are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import perfetto_file
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from perfetto_file import Content, Event

from orchestrator import perfetto, runner, timeline
from orchestrator.folder import Folder
from orchestrator.model import Capture, Clock, Exit, Finding, Outcome, TargetRun
from orchestrator.report import Report, RunInfo, TableInfo
from orchestrator.tables import Table

NOW = 1_800_000_000_000_000_000
Rows = Sequence[Mapping[str, Any]]
RUN = TargetRun(("python", "/src/train.py", "--fast"), 10, NOW, NOW + 10**9, 1.0, Exit(0))


def capture(id_: str, **more: Any) -> Capture:
    return Capture(id_, id_.partition("-")[0], id_.partition("-")[2], "ok", run=RUN, **more)


def table(name: str, rows: Rows, clock: Any = "epoch") -> Table:
    columns = {
        column: [row.get(column) for row in rows] for column in dict.fromkeys(key for row in rows for key in row)
    }
    return Table(name, columns, clock=clock)


def report(path: Path, parts: Mapping[tuple[str, str], Rows], captures: Sequence[Capture] = (), **more: Any) -> Report:
    """A report with these rows, by capture and table."""
    names = dict.fromkeys(name for _, name in parts)
    tables = {}
    for name in names:
        own = [table(name, rows).with_capture(id_) for (id_, other), rows in parts.items() if other == name]
        tables[name] = TableInfo(f"tables/{name}.parquet", Folder(path).write_table(name, own))
    known = tuple(captures) or tuple(capture(id_) for id_ in dict.fromkeys(id_ for id_, _ in parts))
    info = RunInfo("r", "r", "2027-01-15T08:00:00Z", 1.0, RUN.argv, "/src", "1")
    return Report(info, Outcome("ok", 0, ""), {}, captures=known, tables=tables, folder=path, **more)


def drawn(path: Path, parts: Mapping[tuple[str, str], Rows], captures: Sequence[Capture] = (), **more: Any) -> Content:
    file = timeline.write(report(path, parts, captures, **more), Folder(path))
    assert file == path / "timeline.perfetto-trace"
    return perfetto_file.read(file)


def spans(events: Sequence[Event]) -> list[tuple[str, int, int | None]]:
    return [(one.name, one.start - NOW, one.end if one.end is None else one.end - NOW) for one in events]


def row(start: int, duration: int | None, **more: Any) -> dict[str, Any]:
    return {"pid": 10, "start_ns": NOW + start, "duration_ns": duration, **more}


# ---------------------------------------------------------------- lines and slices


def test_events_stand_on_lines_of_their_process_thread_and_stream(tmp_path: Path) -> None:
    kernel = {"device": 0, "stream": 7, "name": "void k<4>(int)", "short_name": "k", "grid": "8,1,1", "correlation": 5}
    gap = {"device": 0, "cause": "data", "syscall": "read", "path": "/data", "step": 3, "before": "k"}
    content = drawn(
        tmp_path,
        {
            ("p1-nsys", "gpu_kernels"): [row(50, 10, **kernel)],
            ("p1-nsys", "gpu_transfers"): [row(70, 5, device=0, stream=7, kind="[CUDA memcpy HtoD]", bytes=64)],
            ("p1-nsys", "gpu_gaps"): [row(60, 10, **gap)],
            ("p1-nsys", "cuda_calls"): [row(40, 5, thread=11, name="cudaLaunchKernel", correlation=5)],
            ("p1-nsys", "os_calls"): [row(1, 2, thread=10, name="poll")],
            ("p1-nsys", "ranges"): [row(0, 99, thread=11, name="forward", domain="default")],
            ("p1-strace", "syscall_spans"): [
                row(2, 1, thread=11, name="openat", path="/x", error="ENOENT", **{"class": "file"})
            ],
            ("p1-nsys", "steps"): [row(0, 100, step=3, kind="train", data_wait_ns=7, warmup=False)],
        },
    )
    thread = ("train.py [10]", "thread 11 [11]")
    (kernel_, copy), (call,) = content.on("stream 7"), content.on("CUDA calls")
    assert (kernel_.track, copy.track) == (("train.py [10]", "GPU 0", "stream 7"),) * 2
    assert spans([kernel_, copy]) == [("k", 50, 60), ("[CUDA memcpy HtoD]", 70, 75)]
    assert kernel_.args == {"name": "void k<4>(int)", "grid": "8,1,1"} and copy.args == {"bytes": 64}
    assert call.track == (*thread, "CUDA calls") and kernel_.flow == call.flow is not None
    (gap_,) = content.on("GPU 0", "gaps")
    assert (gap_.name, gap_.args["syscall"], gap_.args["path"], gap_.args["step"]) == ("gap: data", "read", "/data", 3)
    assert [one.name for one in content.on("train.py [10]", "MainThread [10]", "OS calls")] == ["poll"]
    assert spans(content.on(*thread, "ranges")) == [("forward", 0, 99)]
    (called,) = content.on(*thread, "system calls")
    assert (called.name, called.args) == ("openat", {"path": "/x", "error": "ENOENT", "class": "file"})
    (step,) = content.on("train.py [10]", "steps")
    assert (step.name, step.args) == ("step 3", {"kind": "train", "warmup": False, "data_wait_ns": 7})
    assert content.clocks == [{6: NOW, 1: NOW}], "the UI can tell the time of day"


def test_work_that_no_call_launched_has_no_arrow(tmp_path: Path) -> None:
    rows = [row(1, 1, device=0, stream=7, name="a", correlation=None), row(3, 1, device=0, stream=7, name="b")]
    content = drawn(tmp_path, {("p1-torch", "gpu_kernels"): rows})
    assert [(one.name, one.flow) for one in content.on("stream 7")] == [("a", None), ("b", None)]


def test_slices_that_do_not_lie_within_one_another_get_a_line_of_their_own(tmp_path: Path) -> None:
    inner = [row(0, 10, name="whole"), row(0, 4, name="first"), row(4, 0, name="moment"), row(4, 6, name="second")]
    across = [row(8, 10, name="across"), row(12, None, name="open still"), row(13, 2, name="within it")]
    rows = [{**one, "thread": 10} for one in (*inner, *across)]
    content = drawn(tmp_path, {("p1-nsys", "ranges"): rows[::-1]})
    assert [(name, start, end) for name, start, end in spans(content.on("ranges"))] == [
        ("whole", 0, 10), ("first", 0, 4), ("second", 4, 10), ("moment", 4, 4), ("across", 8, 18),
        ("open still", 12, None), ("within it", 13, 15),
    ]  # fmt: skip
    assert {one.name: one.depth for one in content.on("ranges")}["second"] == 1
    assert len({one.track for one in content.on("ranges")}) == 1, "all under one name, which Perfetto shows as one"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(1, 2)), min_size=1, max_size=40))
def test_no_slice_is_lost_or_bent(tmp_path_factory: pytest.TempPathFactory, times: list[tuple[int, int, int]]) -> None:
    rows = [row(start, length, thread=thread, name=f"{n}") for n, (start, length, thread) in enumerate(times)]
    content = drawn(tmp_path_factory.mktemp("drawn"), {("p1-nsys", "ranges"): rows})
    found = sorted((int(one.name), one.start - NOW, (one.end or 0) - one.start) for one in content.slices)
    assert found == [(n, start, length) for n, (start, length, _) in enumerate(times)]


def test_a_thread_of_which_one_tool_does_not_tell_the_process_is_found_by_another(tmp_path: Path) -> None:
    calls = [{**row(1, 1, thread=tid, name="read"), "pid": None} for tid in (11, 12)]
    content = drawn(
        tmp_path,
        {("p1-strace", "syscall_spans"): calls, ("p1-nsys", "os_calls"): [row(0, 5, thread=11, name="read")]},
    )
    assert {one.track for one in content.on("system calls")} == {
        ("train.py [10]", "thread 11 [11]", "system calls"),
        ("process not known", "thread 12", "system calls"),
    }


def test_ranges_of_torch_stand_among_its_operators(tmp_path: Path) -> None:
    forward, mine = row(0, 9, thread=10, name="forward"), row(0, 9, thread=10, name="mine")
    ops = [{**forward, "kind": "range"}, row(2, 3, thread=10, name="aten::mm", kind="op")]
    planned = {**forward, "name": "planned", "domain": "profrun"}
    parts = {("p1-torch", "ranges"): [forward, planned], ("p1-torch", "op_spans"): ops, ("p1-nsys", "ranges"): [mine]}
    content = drawn(tmp_path, parts)
    assert [(one.name, one.depth) for one in content.on("torch")] == [("forward", 0), ("aten::mm", 1)]
    assert sorted(one.name for one in content.on("ranges")) == ["mine", "planned"]


def test_many_rows_and_names_are_written_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "BATCH_ROWS", 64)
    monkeypatch.setattr(perfetto, "MOST_PARTS", 100)
    monkeypatch.setattr(perfetto, "MOST_NAMES", 50)
    rows = [row(10 * n, 15 if n % 5 == 0 else 5, thread=10, name=f"call {n}") for n in range(500)]
    content = drawn(tmp_path, {("p1-nsys", "os_calls"): rows})
    assert spans(content.on("OS calls")) == [
        (f"call {n}", 10 * n, 10 * n + (15 if n % 5 == 0 else 5)) for n in range(500)
    ]


# ---------------------------------------------------------------- stacks


def test_stacks_become_calls_that_last(tmp_path: Path) -> None:
    main, work = "main (/src/a.py:1)", "work (/src/a.py:{})"
    stacks = [
        (0, 10, main),
        (10, 10, f"{main};{work.format(5)}"),
        (20, 10, f"{main};{work.format(6)};sum"),
        (30, 5, main),
        (50, 5, main),
    ]
    rows = [row(start, length, tid=10, thread="MainThread", stack=text) for start, length, text in stacks]
    content = drawn(tmp_path, {("p1-py-spy", "stack_spans"): rows})
    assert spans(content.on("Python")) == [
        ("main (a.py)", 0, 35), ("work (a.py)", 10, 30), ("sum", 20, 30), ("main (a.py)", 50, 55),
    ]  # fmt: skip
    assert content.on("Python")[1].args == {"file": "/src/a.py"}
    assert {one.track for one in content.slices} == {("train.py [10]", "MainThread [10]", "Python")}


@pytest.mark.parametrize("rows_at_a_time", [1, 7, 1 << 12])
def test_long_stacks_are_read_in_small_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_a_time: int
) -> None:
    text = [";".join(f"{'f' * 400}{n % 9}{d} (/src/lib.so:{n})" for d in range(1 + n % 5)) for n in range(200)]
    rows = [row(10 * n, 10, tid=10, thread="MainThread", stack=text[n]) for n in range(200)]
    found = (finding(function="f" * 400 + "84"), finding(function="f" * 400))
    parts = {("p1-py-spy", "stack_spans"): rows}
    whole = drawn(tmp_path / "whole", parts, findings=found)
    for module, name, value in (
        (timeline, "BATCH_BYTES", 100), (timeline, "LONG_ROWS", rows_at_a_time), (timeline, "MOST_STACKS", 2),
        (timeline, "MOST_FRAMES", 3), (perfetto, "MOST_CHARACTERS", 4000), (perfetto, "MOST_BYTES", 5000),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    content = drawn(tmp_path / "pieces", parts, findings=found)
    assert (content.slices, content.instants) == (whole.slices, whole.instants)
    assert [one.start - NOW for one in content.instants if one.track == ("findings",)] == [440], "by its whole name"


# ---------------------------------------------------------------- counters


def test_samples_are_counters_of_what_they_are_of(tmp_path: Path) -> None:
    def sample(time: int, source: str, subject: str, metric: str, value: float | None) -> dict[str, Any]:
        return {"time_ns": NOW + time, "source": source, "subject": subject, "metric": metric, "value": value}

    rows = [
        sample(0, "host", "", "cpu_pct", 40.0),
        sample(5, "host", "", "cpu_pct", 60.5),
        sample(0, "process", "10", "rss_bytes", 1e9),
        sample(0, "gpu", "GPU-1", "sm_clock_mhz", None),
    ]
    memory = [{"pid": 10, "time_ns": NOW + 1, "device": "cuda:0", "allocated_bytes": 512}]
    content = drawn(tmp_path, {("p1-monitor", "samples"): rows, ("p1-torch", "memory"): memory})
    assert sorted((one.track, one.start - NOW, one.value) for one in content.values) == [
        (("host", "cpu_pct"), 0, 40.0),
        (("host", "cpu_pct"), 5, 60.5),
        (("train.py [10]", "allocated on cuda:0, bytes"), 1, 512.0),
        (("train.py [10]", "rss_bytes"), 0, 1e9),
    ]


# ---------------------------------------------------------------- which pass


def test_the_pass_with_the_most_tools_is_drawn(tmp_path: Path) -> None:
    sample = {"time_ns": NOW, "source": "host", "subject": "", "metric": "cpu_pct", "value": 1.0}
    many = [row(n, 1, thread=10, name="read") for n in range(9)]
    content = drawn(
        tmp_path,
        {
            ("p1-strace", "syscall_spans"): many,
            ("p2-nsys", "os_calls"): [row(0, 1, thread=10, name="poll")],
            ("p2-monitor", "samples"): [sample],
        },
    )
    assert [one.name for one in content.slices] == ["poll"] and len(content.values) == 1


def test_imported_files_are_no_pass(tmp_path: Path) -> None:
    captures = [Capture(id_, "import", "nsys", "ok") for id_ in ("i1-nsys", "i2-nsys")]
    few, more = ([row(n, 1, thread=10, name=name) for n in range(count)] for name, count in (("few", 1), ("more", 2)))
    content = drawn(tmp_path, {("i1-nsys", "os_calls"): few, ("i2-nsys", "os_calls"): more}, captures)
    assert {one.name for one in content.slices} == {"more"}


def test_times_that_are_only_relative_are_said_to_be(tmp_path: Path) -> None:
    rows = [{"pid": 10, "thread": 10, "name": "poll", "start_ns": start, "duration_ns": 5} for start in (-3, 7)]
    content = drawn(tmp_path, {("i1-nsys", "os_calls"): rows})
    assert [(one.start, one.end) for one in content.slices] == [(7, 12)] and content.clocks == []
    (said,) = content.instants
    assert said.args["clock"].startswith("relative") and said.start == 0


def test_what_is_on_another_clock_is_left_out_and_named(tmp_path: Path) -> None:
    relative = [{"pid": 10, "thread": 10, "name": "old", "start_ns": 7, "duration_ns": 5}]
    parts = {("p1-nsys", "os_calls"): relative, ("p1-torch", "op_spans"): [row(0, 1, thread=10, name="new")]}
    content = drawn(tmp_path, parts)
    assert [one.name for one in content.slices] == ["new"]
    assert [one.name for one in content.instants] == ["p1-torch", "p1-nsys: left out"]


def test_a_report_without_events_has_no_timeline(tmp_path: Path) -> None:
    functions = [{"pid": 10, "function": "f", "kind": "wall"}]
    assert timeline.write(report(tmp_path, {("p1-py-spy", "functions"): functions}), Folder(tmp_path)) is None
    unknown = [{"pid": 10, "step": 0, "start_ns": None, "duration_ns": None}]
    assert timeline.write(report(tmp_path, {("p1-timing", "steps"): unknown}), Folder(tmp_path)) is None
    assert not (tmp_path / timeline.FILE).exists()


# ---------------------------------------------------------------- what is said of it


def test_each_tool_says_how_good_its_clock_is(tmp_path: Path) -> None:
    clock = Clock(NOW, 1.0, 10_000, "the session's start")
    captures = [replace(capture("p1-nsys"), clock=clock), capture("p1-timing")]
    parts = {("p1-nsys", "os_calls"): [row(5, 1, thread=10, name="poll")], ("p1-timing", "steps"): [row(4, 1, step=0)]}
    content = drawn(tmp_path, parts, captures)
    nsys, timing = sorted(content.instants, key=lambda one: one.name)
    assert (nsys.track, nsys.start) == (("clocks",), NOW + 4)
    assert (nsys.args["error_ns"], nsys.args["known_by"], nsys.args["tables"]) == (10_000, clock.source, "os_calls")
    assert "error_ns" not in timing.args


def finding(**where: Any) -> Finding:
    return Finding("r", "file_io", "major", "Reads are small", "Read more at once", "high", where, cost_s=2.5)


@pytest.mark.parametrize(
    ("where", "moment"),
    [
        ({"syscall": "read"}, 20),
        ({"path": "/other"}, 60),
        ({"function": "load"}, 3),
        ({"kernel": "k"}, 80),
        ({"start_ns": NOW + 42}, 42),
        ({"function": "loa"}, None),
        ({"file": "a.py"}, None),
        ({}, None),
    ],
)
def test_a_finding_stands_at_the_longest_of_what_it_is_about(
    tmp_path: Path, where: dict[str, Any], moment: int | None
) -> None:
    calls = [(0, 5, "/a"), (20, 9, "/b"), (40, 9, "/b"), (60, 1, "/other")]
    content = drawn(
        tmp_path,
        {
            ("p1-strace", "syscall_spans"): [row(s, d, thread=10, name="read", path=p) for s, d, p in calls][::-1],
            ("p1-py-spy", "stack_spans"): [row(3, 1, tid=10, thread=None, stack="main (a.py:1);load (a.py:3)")],
            ("p1-torch", "gpu_kernels"): [row(80, 1, device=0, stream=1, name="void k(int)", short_name="k")],
        },
        findings=(finding(**where),),
    )
    found = [one for one in content.instants if one.track == ("findings",)]
    assert [one.start - NOW for one in found] == ([] if moment is None else [moment])
    for one in found:
        assert (one.name, one.args["severity"], one.args["cost_s"]) == ("Reads are small", "major", 2.5)


def test_a_fault_costs_the_timeline_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, layer: Any) -> None:
        raise ValueError("no such layer")

    told = report(tmp_path, {("p1-nsys", "os_calls"): [row(0, 1, thread=10, name="poll")]})
    (tmp_path / timeline.FILE).write_text("of an earlier profrun")
    said: list[str] = []
    monkeypatch.setattr(timeline._Drawing, "_layer", fail)
    runner._draw(told, Folder(tmp_path), SimpleNamespace(log=said.append))  # type: ignore[arg-type]
    assert "no such layer" in said[0]
    assert [path.name for path in tmp_path.iterdir()] == ["tables"], "not even a part of it"


# ---------------------------------------------------------------- numbers


@given(st.lists(st.integers(0, (1 << 63) - 1), min_size=1, max_size=20))
def test_times_are_numbers_of_protobuf(numbers: list[int]) -> None:
    for number, encoded in zip(numbers, perfetto.times(np.array(numbers, np.int64)), strict=True):
        assert sum((byte & 0x7F) << 7 * place for place, byte in enumerate(encoded)) == number
        assert [byte >> 7 for byte in encoded] == [1] * 8 + [0]


# ---------------------------------------------------------------- ranks


def ranked(rank: int, host: str | None, pid: int) -> dict[str, Any]:
    return {"rank": rank, "host": host, "pid": pid}


def test_ranks_are_processes_with_names_of_their_own_in_their_order(tmp_path: Path) -> None:
    parts = {
        ("p1-torch", "steps"): [row(0, 9, step=0, rank=1, pid=11), row(0, 9, step=0, rank=0, pid=10)],
        ("p1-torch", "ranks"): [ranked(1, "n0", 11), ranked(0, "n0", 10)],
    }
    content = drawn(tmp_path, {key: [{**one} for one in rows] for key, rows in parts.items()})
    names = [one.track[0] for one in content.on("steps")]
    assert sorted(names) == ["rank 0 · n0 · 10 [10]", "rank 1 · n0 · 11 [11]"]
    told = [one.track_descriptor for one in perfetto_file.packets(tmp_path / timeline.FILE)]
    processes = [one for one in told if one.HasField("process")]
    assert [one.process.process_name for one in processes] == ["rank 0 · n0 · 10", "rank 1 · n0 · 11"]
    assert [(one.process.legacy_sort_index, one.sibling_order_rank) for one in processes] == [(0, 0), (1, 1)]


def test_processes_of_two_hosts_may_have_one_number(tmp_path: Path) -> None:
    captures = [capture(f"p1-nsys@n{rank}.r{rank}", rank=rank, host=f"n{rank}") for rank in range(2)]
    parts: dict[tuple[str, str], Rows] = {
        (one.id, "gpu_kernels"): [row(rank, 5, device=0, stream=7, name=f"k{rank}", rank=rank)]
        for rank, one in enumerate(captures)
    }
    parts[captures[0].id, "ranks"] = [ranked(rank, f"n{rank}", 10) for rank in range(2)]
    parts[captures[0].id, "steps"] = [row(0, 9, step=0, rank=rank) for rank in range(2)]
    captures = [replace(one, pass_id="p1") for one in captures]
    content = drawn(tmp_path, parts, captures)
    found = {(one.name, one.track[0].partition(" [")[0]) for one in content.slices}
    assert found == {
        ("k0", "rank 0 · n0 · 10"), ("k1", "rank 1 · n1 · 10"),
        ("step 0", "rank 0 · n0 · 10"), ("step 0", "rank 1 · n1 · 10"),
    }  # fmt: skip


def test_of_too_many_events_those_of_the_middle_are_drawn_of_all_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "MOST_EVENTS", 40)
    monkeypatch.setattr("orchestrator.tables.PIECE_ROWS", 16)
    parts: dict[tuple[str, str], Rows] = {}
    for rank in range(2):
        kernels = [row(10 * n, 5, device=0, stream=7, name="k", pid=10 + rank) for n in range(100)]
        parts[f"p1-nsys{rank}", "gpu_kernels"] = kernels
        parts[f"p1-nsys{rank}", "steps"] = [row(100 * n, 90, step=n, pid=10 + rank) for n in range(10)]
    content = drawn(tmp_path, parts)
    starts = [one.start - NOW for one in content.slices if one.name == "k"]
    assert 30 <= len(starts) <= 44 and min(starts) >= 390 and max(starts) <= 600
    assert sum(one.name.startswith("step") for one in content.slices) == 20, "of these, all"
    said = [one.name for one in content.instants if one.name.startswith("single events are drawn")]
    assert said == ["single events are drawn from 0.000 s to 0.000 s"]


def test_imported_traces_of_a_job_are_drawn_together(tmp_path: Path) -> None:
    captures = [capture(f"trace{rank}", rank=rank) for rank in range(3)]
    captures = [replace(one, pass_id="import", collector="torch", run=None) for one in captures]
    parts: dict[tuple[str, str], Rows] = {
        (one.id, "op_spans"): [row(0, 5, thread=10, name=f"op{one.rank}", kind="op", pid=20 + (one.rank or 0))]
        for one in captures
    }
    assert {one.name for one in drawn(tmp_path / "ranks", parts, captures).slices} == {"op0", "op1", "op2"}
    alike = [replace(one, rank=0) for one in captures]
    assert len(drawn(tmp_path / "alone", parts, alike).slices) == 1, "of the same rank they are of different runs"
