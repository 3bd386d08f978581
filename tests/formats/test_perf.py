"""formats/perf.py: the counters of perf stat in its three layouts, and the stacks of perf script."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParseError
from orchestrator.formats import perf
from orchestrator.formats.stacks import functions_table, stacks_table

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "perf"
LIBC = "/usr/lib/x86_64-linux-gnu/libc.so.6"


def stat(name: str) -> dict[str, perf.Counter]:
    return {counter.event: counter for counter in perf.read_stat(GOLDEN / name)}


def lines(*text: str) -> list[perf.Counter]:
    return perf.parse_stat("\n".join(text), "counters.csv")


# ---------------------------------------------------------------- perf stat


def test_counters_are_as_perf_prints_them() -> None:
    counters = stat("counters.csv")
    assert counters["task-clock"] == ("task-clock", 91.02, "msec", 100.0, None, 0.988, "CPUs utilized", None)
    assert counters["page-faults"] == ("page-faults", 89.0, None, 100.0, None, 977.815, "/sec", None)
    assert counters["major-faults"].value == 0.0, "a counted zero is one"
    assert counters["cycles"] == ("cycles", None, None, None, None, None, None, "not supported")


@pytest.mark.parametrize("name", ["counters.csv", "counters.json", "counters.txt"])
def test_the_three_layouts_say_the_same(name: str) -> None:
    counters = stat(name)
    assert list(counters) == [
        "task-clock", "context-switches", "cpu-migrations", "page-faults", "minor-faults", "major-faults", "cycles",
        "instructions",
    ]  # fmt: skip
    clock = counters["task-clock"]
    assert clock.value and 89 < clock.value < 92 and (clock.unit, clock.running_pct) == ("msec", 100.0)
    assert clock.metric_unit == "CPUs utilized" and clock.metric and 0.8 < clock.metric < 1
    assert counters["instructions"].value is None and counters["major-faults"].value == 0.0


def test_what_never_ran_is_unknown() -> None:
    assert {c.event: (c.value, c.unknown) for c in stat("counters_idle.csv").values()} == {
        "task-clock": (None, "not counted"), "page-faults": (None, "not counted"),
    }  # fmt: skip


def test_events_of_the_kernel_are_unknown_in_user_mode() -> None:
    counters = stat("counters_user_only.csv")
    assert counters["task-clock:u"].value == 91.03 and counters["page-faults:u"].value == 84.0
    for event in ("context-switches:u", "cpu-migrations:u"):
        assert (counters[event].value, counters[event].unknown) == (None, perf.USER_ONLY)


def test_repeats_have_a_variance() -> None:
    counters = stat("counters_repeated.csv")
    assert (counters["task-clock"].variance_pct, counters["page-faults"].variance_pct) == (6.73, 0.68)


def test_shared_counters_keep_their_share() -> None:
    (counter,) = lines("2718281828;;instructions;500000;33.25;1.84;insn per cycle")
    assert counter == ("instructions", 2718281828.0, None, 33.25, None, 1.84, "insn per cycle", None)


def test_commas_inside_of_an_event_and_figures_without_one() -> None:
    counters = lines("5,,cpu/event=0x3c,umask=0x0/,900,100.00,,", ",,,,,12.5,%  tma_backend_bound")
    assert [(c.event, c.value, c.metric) for c in counters] == [
        ("cpu/event=0x3c,umask=0x0/", 5.0, None), ("%  tma_backend_bound", None, 12.5),
    ]  # fmt: skip


def test_counters_become_a_table() -> None:
    table = perf.counters_table(perf.read_stat(GOLDEN / "counters.csv"))
    first = next(iter(table.rows()))
    assert (table.name, len(table)) == ("counters", 8)
    assert first == {
        "event": "task-clock", "value": 91.02, "unit": "msec", "running_pct": 100.0, "variance_pct": None,
        "metric": 0.988, "metric_unit": "CPUs utilized",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["counters_interval.csv", "forked.txt"])
def test_other_files_are_no_counters(name: str) -> None:
    with pytest.raises(ParseError, match="holds no counters of perf stat"):
        stat(name)


def test_no_line_is_no_counter(tmp_path: Path) -> None:
    assert lines("# started on Sun Nov 29 19:39:11 2026", "") == []
    with pytest.raises(ParseError, match="can't be read: No such file"):
        perf.read_stat(tmp_path / "none.csv")


def test_real_counters_of_others(shared: Path) -> None:
    folder = shared / "data" / "perf"
    desktop = {c.event: c for c in perf.read_stat(folder / "stat_sortnetsat_user_only_o_header.txt")}
    assert desktop["cycles:u"].value == 2_015_511_676_522 and desktop["task-clock:u"].metric == 49.651
    assert desktop["cache-misses:u"].metric_unit == "% of all cache refs"
    virtual = {c.event: c.value for c in perf.read_stat(folder / "self_stat_x_csv_vm_not_supported.csv")}
    assert virtual == {"task-clock": 1.0, "cycles": None, "page-faults": 103.0, "context-switches": 0.0}
    with pytest.raises(ParseError, match="holds 3 runs"):
        perf.read_stat(folder / "stat_two_sum_topdown_3runs.txt")


# ---------------------------------------------------------------- perf script


def script(name: str) -> perf.Script:
    return perf.read_script(GOLDEN / name)


def one(tmp_path: Path, *text: str) -> tuple[str, ...]:
    """The frames of a sample with these lines below its header."""
    path = tmp_path / "script.txt"
    path.write_text("\n".join(["worker 7/8 12.500000000: 10101010 cpu-clock: ", *(f"\t{x}" for x in text)]) + "\n\n")
    (sampled,) = perf.read_script(path).periods
    return sampled.frames


def test_a_thread_and_a_forked_child_are_told_apart() -> None:
    found = script("forked.txt")
    assert (found.events(), found.clock(), found.rate_hz) == (["cpu-clock:ppp"], "cpu-clock:ppp", 99.0)
    assert (found.count(), found.dropped, found.lost, found.rootless("cpu-clock:ppp")) == (16, 0, 0, 0)
    rows = found.rows("cpu-clock:ppp", 99.0)
    assert {(row.pid, row.process, row.thread, row.kind) for row in rows} == {
        (17550, "two", "MainThread", "cpu"), (17550, "two", "thread 17553", "cpu"), (17552, "two", "MainThread", "cpu"),
    }  # fmt: skip
    assert sum(row.weight_ns for row in rows) == 16 * 10101010
    thread = next(row for row in rows if row.thread == "thread 17553")
    assert thread.frames[:4] == (f"clone3 ({LIBC})", f"start_thread ({LIBC})", "thr (/demo/two)", "work (/demo/two)")


def test_rows_make_the_tables_of_all_stacks() -> None:
    rows = script("forked.txt").rows("cpu-clock:ppp", 99.0)
    assert sum(stacks_table(rows, 99.0).columns["samples"]) == 16
    functions = {row["function"] for row in functions_table(rows, 99.0).rows()}
    assert {"one", "two", "work", "main", "thr"} <= functions


def test_samples_without_stacks_stand_on_one_line() -> None:
    found = script("no_stacks.txt")
    assert found.count() == 3 and {s.frames for s in found.periods} == {("one (/demo/two)",)}


def test_an_inlined_function_lies_in_the_file_of_the_one_around_it() -> None:
    lib = "/opt/python3.11/lib/libpython3.11.so.1.0"
    frames = next(iter(script("inlined.txt").periods)).frames
    assert frames[-4:] == tuple(
        f"{name} ({lib})" for name in ("PyLong_FromLong", "_PyLong_FromMedium", "_PyObject_Malloc", "pymalloc_alloc")
    )
    assert frames[1] == "__libc_start_main_impl", "whose own function perf has left out"


def test_python_functions_are_called_as_python_calls_them() -> None:
    rows = script("python_names.txt").rows("cpu-clock:ppp", 99.0)
    shares = {row["function"]: row for row in functions_table(rows, 99.0).rows() if row["file"] == "/demo/py.py"}
    assert set(shares) == {"one", "two"} and shares["one"]["total_samples"] >= 3


def test_lost_samples_are_counted() -> None:
    found = script("lost.txt")
    assert (found.count(), found.lost, found.dropped) == (0, 117665 + 204350 + 143597, 0)


@pytest.mark.parametrize(
    ("line", "frame"),
    [
        ("7f01 [unknown] (/opt/torch/lib/libtorch_cpu.so)", "[libtorch_cpu.so] (/opt/torch/lib/libtorch_cpu.so)"),
        ("ffffffff81 [unknown] ([kernel.kallsyms])", "[kernel.kallsyms] ([kernel.kallsyms])"),
        ("ffffffffa0 [unknown] ([nf_conntrack])", "[nf_conntrack] ([nf_conntrack])"),
        ("7f01 [unknown] ([unknown])", "[unknown]"),
        ("7f01 [unknown] (/tmp/perf-7.map)", "[generated code] (/tmp/perf-7.map)"),
        ("7f01 py::Model.forward:/job/a b.py (/tmp/perf-7.map)", "Model.forward (/job/a b.py)"),
        ("3d6b vfs_read+0x1c (/lib/modules/4.1/build/vmlinux)", "vfs_read ([kernel.kallsyms])"),
        ("11 gone (/job/old.so (deleted))", "gone (/job/old.so)"),
        ("11 f(int, g (*)(char)) const+0x7 (/job/x.so)", "f(int, g (*)(char)) const (/job/x.so)"),
        ("11 f (/opt/My (x86)/x.so)", "f (/opt/My (x86)/x.so)"),
        ("11 Lorg/x;::run (/tmp/perf-7.map)", "Lorg/x,::run (/tmp/perf-7.map)"),
    ],
)
def test_frames_have_a_function_and_a_file(tmp_path: Path, line: str, frame: str) -> None:
    assert one(tmp_path, line) == (frame,)


def test_unknown_frames_in_a_row_are_one(tmp_path: Path) -> None:
    unknown = "7f01 [unknown] ([unknown])"
    assert one(tmp_path, "11 f (/x)", unknown, unknown, "22 g (/x)", unknown) == (
        "[unknown]", "g (/x)", "[unknown]", "f (/x)",
    )  # fmt: skip


def test_a_sample_with_nothing_below_it_is_one(tmp_path: Path) -> None:
    assert one(tmp_path) == ()


def test_a_cut_sample_is_left_out(tmp_path: Path) -> None:
    text = (GOLDEN / "forked.txt").read_text()
    (tmp_path / "cut.txt").write_text(text[: text.rindex("(/demo/two)")])
    found = perf.read_script(tmp_path / "cut.txt")
    assert (found.count(), found.dropped) == (15, 1)


def test_cycles_are_time_by_the_rate_that_their_period_follows(tmp_path: Path) -> None:
    periods = [1, 10, 3_000_000, 3_000_000, 3_000_000, 6_000_000]
    samples = (f"job 7/7 1.0: {p} cycles:P: \n\t11 f{p} (/x)\n" for p in periods)
    (tmp_path / "script.txt").write_text("\n".join(samples))
    rows = perf.read_script(tmp_path / "script.txt").rows("cycles:P", 100.0)
    weights = {row.frames[0]: row.weight_ns for row in rows}
    assert weights["f3000000 (/x)"] == 30_000_000 and weights["f6000000 (/x)"] == 20_000_000
    assert weights["f1 (/x)"] < 10, "the first samples of a thread come close together and stand for next to nothing"


def test_threads_and_processes_are_called_by_their_commands(tmp_path: Path) -> None:
    samples = ("data 7/8", "train 7/7", "train 7/9", "a b 1 7/10")
    (tmp_path / "s.txt").write_text("".join(f"{who} 1.0: 10 cpu-clock: \n\t11 f (/x)\n\n" for who in samples))
    rows = perf.read_script(tmp_path / "s.txt").rows("cpu-clock", 99)
    assert {row.process for row in rows} == {"train"}
    assert [row.thread for row in rows] == ["data", "MainThread", "thread 9", "a b 1"]


def test_threads_that_nsys_adds_to_the_program_are_no_work_of_it(tmp_path: Path) -> None:
    """Their names are as nsys 2022.4 gives them."""
    samples = ("train 7/7", "[NSys] 7/8", "[NSys Comms] 7/9", "*2CommsProcesso 7/10")
    (tmp_path / "s.txt").write_text("".join(f"{who} 1.0: 10 cpu-clock: \n\t11 f (/x)\n\n" for who in samples))
    rows = perf.read_script(tmp_path / "s.txt").rows("cpu-clock", 99)
    assert [(row.process, row.thread) for row in rows] == [("train", "MainThread")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("PERFILE2h\x00\x00\x01\n\x02\n", "is perf's binary data"),
        ("hello\nworld\n", "is not what `perf script` prints"),
        ("main;f 7\nmain;g 3\n", "is not what `perf script` prints"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "x.txt").write_text(text)
    with pytest.raises(ParseError, match=said):
        perf.read_script(tmp_path / "x.txt")


@given(st.text(max_size=300))
def test_nothing_but_a_parse_error_escapes(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_text("job 7/7 1.0: 5 cycles: \n\t11 f (/x)\n" + text, errors="replace")
    for read in (perf.read_script, perf.read_stat):
        try:
            read(path)
        except ParseError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("name", "event", "samples", "function"),
    [
        ("script_cycles_instructions.txt", "cycles", 111, "main"),
        ("script_dd.txt", "cpu-clock", 11, "fsnotify"),
        ("script_iperf_pidtid.txt", "cpu-clock", 201, "copy_user_enhanced_fast_string"),
        ("script_java.txt", "cycles", 2, "arrayOopDesc::base(BasicType) const"),
        ("script_js.txt", "cpu-clock", 2, "LazyCompile:~body_0 evalmachine.<anonymous>:1"),
        ("script_single_event.txt", "cpu-clock:uhH", 1, "boa_cli::main"),
        ("script_empty_line.txt", "cpu-clock:uhH", 2, "main"),
        ("self_script_cpu_clock_python.txt", "cpu-clock:ppp", 15, "_PyObject_Malloc"),
    ],
)
def test_real_samples_of_others(shared: Path, name: str, event: str, samples: int, function: str) -> None:
    path = shared / "data" / "perf" / name
    found = perf.read_script(path)
    assert (found.clock(), found.dropped) == (event, 0)
    assert found.count(event) == samples == path.read_text().count(f" {event}:")
    rows = found.rows(event, 99.0)
    assert function in functions_table(rows, 99.0).columns["function"]
    assert sum(row.weight_ns for row in rows) > 0
