"""The timeline of a real pass with five tools, asked with SQL in the real Perfetto UI: it has the events of the tables,
and those that the program has noted with its own clock stand where it says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import perfetto_ui
import pytest
import stamped
from cli import Result, profrun, write_plan

from orchestrator.report import load

pytestmark = [
    pytest.mark.tool("nsys", "strace", "py-spy", "chromium"),
    pytest.mark.skipif(
        not any(Path(place, "nvidia", "nvtx").is_dir() for place in sys.path), reason="no NVTX: pip install .[dev]"
    ),
]

TOOLS = """{together: [{use: nsys, trace: [osrt, nvtx]}, {use: strace, mode: trace},
  {use: py-spy, rate: 100, nonblocking: true}, {use: monitor, interval: 50ms}, {use: torch, activities: [cpu]}]}"""
MOST_NS = 1_000_000
"""How far off the clock of a tool may be."""


@dataclass(frozen=True)
class Ran:
    """A run of the program, what it has noted, and its timeline in the UI."""

    result: Result
    notes: list[tuple[str, int, int]]
    ui: perfetto_ui.Perfetto

    def times(self, what: str) -> list[tuple[int, int]]:
        return [(before, after) for name, before, after in self.notes if name == what]

    def slices(self, track: str, where: str) -> list[tuple[int, int]]:
        """Start and end of slices. Javascript's numbers would round times since the epoch."""
        first = self.notes[0][1]
        sql = f"""select s.ts - {first}, s.ts + s.dur - {first} from slice s join track t on s.track_id = t.id
            where t.name = '{track}' and {where} order by s.ts"""
        return [(first + start, first + end) for start, end in self.ui.query(sql)]

    def error_ns(self, collector: str) -> int:
        return int(self.result.captures()[collector]["clock"]["error_ns"])


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    folder = tmp_path_factory.mktemp("stamped")
    window = f"{{skip: {stamped.FIRST - 1}, steps: {stamped.LAST - stamped.FIRST + 2}}}"
    plan = write_plan(folder, TOOLS.replace("\n", ""), window=window, target="{retry: true}")
    result = profrun(plan, "--", sys.executable, stamped.__file__, folder / "notes.json", cwd=folder)
    assert result.code == 0, result.stderr
    notes = [tuple(note) for note in json.loads((folder / "notes.json").read_text())]
    with perfetto_ui.opened(result.folder / "timeline.perfetto-trace") as ui:
        yield Ran(result, notes, ui)


def assert_within(found: list[tuple[int, int]], noted: list[tuple[int, int]], error_ns: int) -> None:
    assert len(found) == len(noted)
    for (start, end), (before, after) in zip(found, noted, strict=True):
        assert before - error_ns <= start <= end <= after + error_ns


def test_perfetto_minds_nothing_in_it(ran: Ran) -> None:
    assert ran.ui.complaints() == []


def test_each_tool_states_its_clock_and_the_trace_repeats_it(ran: Ran) -> None:
    stated = {name: ran.error_ns(name) for name in ("nsys", "strace", "torch", "py-spy")}
    period_ns = 10_000_000
    assert max(stated["nsys"], stated["strace"], stated["torch"]) <= MOST_NS
    assert stated["py-spy"] <= 2 * period_ns + MOST_NS
    asked = ran.ui.query(
        """select c.string_value, e.int_value from slice s join track t on s.track_id = t.id
        join args c on c.arg_set_id = s.arg_set_id and c.key = 'debug.collector'
        join args e on e.arg_set_id = s.arg_set_id and e.key = 'debug.error_ns' where t.name = 'clocks'"""
    )
    assert dict(asked) == {**stated, "monitor": ran.error_ns("monitor")}


def test_the_timeline_has_the_events_of_the_tables(ran: Ran) -> None:
    report = load(ran.result.folder)
    wanted = {}
    for name, track in (("steps", "steps"), ("os_calls", "OS calls"), ("syscall_spans", "system calls")):
        frame = report.table(name)
        assert frame is not None
        wanted[track] = int(frame["start_ns"].notna().sum())
    ops, ranges = (report.table(name) for name in ("op_spans", "ranges"))
    assert ops is not None and ranges is not None
    wanted["torch"] = len(ops)
    wanted["ranges"] = int((~ranges["capture"].isin(ops["capture"])).sum())
    counted = ran.ui.query(
        "select t.name, count(*) from slice s join track t on s.track_id = t.id group by t.name order by t.name"
    )
    assert {name: count for name, count in counted if name in wanted} == wanted


def test_counters_and_stacks_hold_what_the_tables_hold(ran: Ran) -> None:
    report = load(ran.result.folder)
    samples, stacks = report.table("samples"), report.table("stack_spans")
    assert samples is not None and stacks is not None
    ((count, total),) = ran.ui.query("select count(*), sum(value) from counter")
    assert (count, total) == (samples["value"].notna().sum(), pytest.approx(samples["value"].sum()))
    ((drawn_ns,),) = ran.ui.query(
        "select sum(s.dur) from slice s join track t on s.track_id = t.id where t.name = 'Python' and s.depth = 0"
    )
    assert drawn_ns == stacks["duration_ns"].sum()


def test_the_programs_own_system_call_is_there(ran: Ran) -> None:
    path = f"extract_arg(s.arg_set_id, 'debug.path') = '{stamped.MISSING}'"
    found = ran.slices("system calls", f"{path} and extract_arg(s.arg_set_id, 'debug.error') = 'ENOENT'")
    assert_within(found, ran.times("open"), ran.error_ns("strace"))


def test_its_range_and_its_sleep_are_there(ran: Ran) -> None:
    error_ns = ran.error_ns("nsys")
    assert_within(ran.slices("ranges", f's.name = "{stamped.RANGE}"'), ran.times("range"), error_ns)
    main = "t.id in (select tt.id from thread_track tt join thread using (utid) where is_main_thread)"
    sleeps = ran.slices("OS calls", f"s.name in ('clock_nanosleep', 'nanosleep', 'select') and {main}")
    for before, after in ran.times("sleep"):
        own = [one for one in sleeps if before - error_ns <= one[0] and one[1] <= after + error_ns]
        assert [end - start >= stamped.SLEEP_S * 1e9 for start, end in own] == [True]


def test_what_torch_recorded_is_there(ran: Ran) -> None:
    found = ran.slices("torch", f's.name = "{stamped.RECORDED}"')
    assert_within(found, ran.times("function"), ran.error_ns("torch"))


def test_the_busy_function_is_there(ran: Ran) -> None:
    """py-spy sees a change at its next sample: never early, and late where the machine keeps it waiting. What its clock
    is off by shows in all of them, and so in the best."""
    error_ns, noted = ran.error_ns("py-spy"), ran.times("busy")
    found = ran.slices("Python", "s.name = 'busy (stamped.py)'")
    late = []
    for before, after in noted:
        own = [one for one in found if before - error_ns <= one[0] <= after]  # in parts, where a sample failed
        assert own
        late.append((own[0][0] - before, abs(own[-1][1] - after)))
    assert all(any(before - error_ns <= start <= after for before, after in noted) for start, _ in found)
    assert [min(column) <= error_ns for column in zip(*late, strict=True)] == [True, True]


def test_its_memory_is_in_the_counters(ran: Ran) -> None:
    """The readings while the program holds its memory show it, those in its ranges before do not."""
    samples = load(ran.result.folder).table("samples")
    assert samples is not None
    first, error_ns = ran.notes[0][1], ran.error_ns("monitor")
    sql = f"""select c.ts - {first}, c.value from counter c join process_counter_track t on c.track_id = t.id
        where t.name = 'rss_bytes' order by c.ts"""
    read = pd.DataFrame(ran.ui.query(sql), columns=["time", "value"])

    def within(what: str) -> Any:
        times = [(before - first, after - first) for before, after in ran.times(what)]
        masks = [read["time"].between(before + error_ns, after - error_ns) for before, after in times]
        return read["value"][pd.concat(masks, axis=1).any(axis=1)]

    held, free = within("busy"), pd.concat([within("range"), within("function")])
    assert len(held) and (held.min() - free > stamped.BYTES / 2).all()


COUNTED = """select t.name, count(*) from slice s join track t on s.track_id = t.id group by t.name"""


def test_a_recording_of_a_gpu_is_there_as_a_whole(shared: Path, tmp_path: Path) -> None:
    """With arrows from each call to the kernel or copy that it launched."""
    file = shared / "data" / "nsys" / "2024.6.2_a100_gpt_small.sqlite"
    result = profrun("import", file, "-o", tmp_path, cwd=tmp_path)
    assert result.code == 0, result.stderr
    report = load(result.folder)
    rows = {name: report.tables[name].rows for name in ("gpu_kernels", "gpu_transfers", "gpu_gaps", "cuda_calls")}
    with perfetto_ui.opened(result.folder / "timeline.perfetto-trace") as ui:
        assert ui.complaints() == []
        counted = dict(ui.query(COUNTED))
        ((arrows,),) = ui.query("select count(*) from flow")
    on_gpu = sum(count for name, count in counted.items() if name.startswith("stream "))
    assert on_gpu == rows["gpu_kernels"] + rows["gpu_transfers"]
    assert (counted["gaps"], counted["CUDA calls"]) == (rows["gpu_gaps"], rows["cuda_calls"])
    calls, kernels, copies = (report.table(name) for name in ("cuda_calls", "gpu_kernels", "gpu_transfers"))
    assert calls is not None and kernels is not None and copies is not None
    launched = {*calls["correlation"].dropna()}
    assert arrows == sum(int(table["correlation"].isin(launched).sum()) for table in (kernels, copies))
