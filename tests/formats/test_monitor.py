"""formats/monitor.py: rates, sums over the tree, figures, and what is unknown, from a recording and from made lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ParseError
from orchestrator.formats.monitor import FORMAT, Samples, read_samples
from orchestrator.sampler import log

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "monitor"
STEP_NS = 100_000_000
EPOCH_NS = 1_700_000_000_000_000_000
GPU0, GPU1 = "GPU-0000-a", "GPU-1111-b"


def lines(*bodies: dict[str, Any], columns: dict[str, Iterable[str]], pids: Iterable[int] = (10,)) -> str:
    """A file of the sampler with one line every 0.1 s."""
    head = {
        "format": FORMAT,
        "columns": {k: list(v) for k, v in columns.items()},
        "interval_s": 0.1,
        "pids": list(pids),
    }
    every = [{"t": EPOCH_NS + n * STEP_NS, "m": n * STEP_NS, **body} for n, body in enumerate((head, *bodies))]
    return "".join(json.dumps(line) + "\n" for line in every)


def read(folder: Path, text: str, **more: Any) -> Samples:
    path = folder / "samples.jsonl"
    path.write_text(text)
    return read_samples(path, **more)


def series(samples: Samples, source: str, metric: str, subject: str = "") -> list[float | None]:
    return [
        row["value"]
        for row in samples.table.rows()
        if (row["source"], row["metric"], row["subject"]) == (source, metric, subject)
    ]


# ---------------------------------------------------------------- a recording


def test_the_recording_holds_what_its_programs_did() -> None:
    samples = read_samples(GOLDEN / "tree.jsonl")
    assert samples.damage is None and samples.table.clock == "epoch" and samples.table.dropped == 0
    shell, child = "21268", "21270"
    assert series(samples, "process", "cpu_pct", child) == pytest.approx([99.4, 99.9], abs=0.1)
    assert max(filter(None, series(samples, "process", "rss_bytes", shell))) == pytest.approx(38e6, rel=0.05)
    assert series(samples, "process", "children", shell)[:4] == [2, 2, 2, 1]
    assert "not offered" not in " ".join(samples.notes)
    assert any(note.endswith("21268 sh -> python, 21270 python, 21271 sleep") for note in samples.notes)


def test_the_tree_keeps_the_time_of_children_that_have_ended() -> None:
    """The 0.3 s of the child are whole only after its end, in the time that the shell has waited for."""
    samples = read_samples(GOLDEN / "tree.jsonl")
    rates = series(samples, "tree", "cpu_pct")
    assert None not in rates and sum(rate or 0 for rate in rates) / 1000 == pytest.approx(0.294, abs=0.005)
    assert samples.metrics["tree_cpu_pct"].n == len(rates) == 8


def test_the_figures_say_how_many_samples_are_behind_them() -> None:
    metrics = read_samples(GOLDEN / "tree.jsonl").metrics
    assert metrics["tree_rss_peak_bytes"].value == 38486016 and metrics["tree_rss_peak_bytes"].n == 9
    assert metrics["host_cpu_pct"].n == 9 and 0 < (metrics["monitor_cpu_pct"].value or 0) < 10
    assert "gpu_util_pct" not in metrics


def test_only_the_recorded_time_counts() -> None:
    whole = read_samples(GOLDEN / "tree.jsonl")
    times = sorted(set(whole.table.columns["time_ns"]))
    part = read_samples(GOLDEN / "tree.jsonl", since_ns=times[2], until_ns=times[5])
    assert sorted(set(part.table.columns["time_ns"])) == times[2:6]
    assert len(series(part, "host", "cpu_pct")) == 3, "the first has no rate"


def test_the_columns_are_those_of_the_sampler() -> None:
    """What the sampler writes and what is read from it are two programs. Newer columns stand behind the older ones, so
    that recordings of any age can be read."""
    for name in ("tree.jsonl", "ranks.jsonl"):
        head = json.loads((GOLDEN / name).read_text().partition("\n")[0])
        assert head["format"] == FORMAT == log.FORMAT
        assert head["columns"].keys() == log.COLUMNS.keys()
        for source, columns in head["columns"].items():
            assert columns == [*log.COLUMNS[source][: len(columns)]]


# ---------------------------------------------------------------- ranks, memory maps


def ranks_of(samples: Samples) -> dict[str, int | None]:
    return {row["subject"]: row["rank"] for row in samples.table.rows() if row["source"] in ("process", "memory")}


def test_each_process_bears_its_rank_and_a_child_that_of_its_parent() -> None:
    samples = read_samples(GOLDEN / "ranks.jsonl")
    assert ranks_of(samples) == {"13343": 0, "13344": 1, "13346": 1}
    assert {row["rank"] for row in samples.table.rows() if row["source"] in ("host", "tree", "monitor")} == {None}
    assert "rank" not in read_samples(GOLDEN / "tree.jsonl").table.columns, "nobody has one"


def test_who_knows_better_than_the_environment_is_believed() -> None:
    told = read_samples(GOLDEN / "ranks.jsonl", ranks={13343: None, 13344: 7})
    assert ranks_of(told) == {"13343": None, "13344": 7, "13346": 1}


def test_a_rank_is_inherited_where_the_environment_is_silent(tmp_path: Path) -> None:
    seen = [{"seen": pid, "parent": parent, "name": "x", "exec": False} for pid, parent in ((10, 1), (11, 10), (12, 9))]
    body = {"process": {"10": [1], "11": [1], "12": [1]}, "gpu_process": {"GPU-a/11": [5], "GPU-a/99": [5]}}
    columns = {"process": ["rss_bytes"], "gpu_process": ["memory_used_bytes"]}
    reading = _with_all(body)
    samples = read(tmp_path, lines(*seen, reading, columns={**columns, "process": PROCESS}), ranks={10: 3})
    assert ranks_of(samples) == {"10": 3, "11": 3, "12": None}
    on_gpu = {row["subject"]: row["rank"] for row in samples.table.rows() if row["source"] == "gpu_process"}
    assert on_gpu == {"GPU-a/11": 3, "GPU-a/99": None}


PROCESS = ("cpu_ns", "waited_ns", "rss_bytes", "threads")


def _with_all(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "process": {pid: [0, 0, *row, 1] for pid, row in body["process"].items()}}


def test_memory_maps_count_what_is_shared_in_parts() -> None:
    samples = read_samples(GOLDEN / "ranks.jsonl")
    assert series(samples, "memory", "pss_bytes", "13344") == [9775104, 9810944, 9810944, 9811968]
    assert series(samples, "memory", "anonymous_bytes", "13344")[-1] == 10854400, "the 8 MB that it holds are in there"
    sums = series(samples, "tree", "pss_bytes")
    assert sums[-1] == 3139584 + 9811968 + 1602560 and samples.metrics["tree_pss_peak_bytes"].value == sums[-1]
    (note,) = [note for note in samples.notes if note.startswith("memory of 13344")]
    assert note.startswith("memory of 13344 python at the end: 8.51 MB [anonymous], 913 kB libpython3.11.so.1.0")


def test_the_first_and_last_maps_count_though_they_lie_outside_the_recorded_time() -> None:
    whole = read_samples(GOLDEN / "ranks.jsonl")
    times = sorted(row["time_ns"] for row in whole.table.rows() if row["source"] == "host")
    part = read_samples(GOLDEN / "ranks.jsonl", since_ns=times[0] + 10**8, until_ns=times[-1] - 1)
    assert series(part, "memory", "pss_bytes", "13344") == series(whole, "memory", "pss_bytes", "13344")


# ---------------------------------------------------------------- rates


HOST = {"host": ("busy_ticks", "iowait_ticks", "all_ticks", "io_some_us", "net_send_bytes", "load_1m")}


def test_shares_rates_and_values_of_the_moment(tmp_path: Path) -> None:
    text = lines({"host": {"": [10, 0, 20, 0, 0, 0.5]}}, {"host": {"": [25, 5, 40, 50_000, 300, 0.7]}}, columns=HOST)
    samples = read(tmp_path, text)
    assert series(samples, "host", "cpu_pct") == [75]
    assert series(samples, "host", "cpu_iowait_pct") == [25]
    assert series(samples, "host", "pressure_io_some_pct") == [50]
    assert series(samples, "host", "net_send_bytes_per_s") == [3000]
    assert series(samples, "host", "load_1m") == [0.5, 0.7]


def test_unknown_is_one_row_without_a_value_and_never_0(tmp_path: Path) -> None:
    row = [10, 0, 20, None, 0, None]
    samples = read(tmp_path, lines({"host": {"": row}}, {"host": {"": row}}, columns=HOST))
    assert series(samples, "host", "pressure_io_some_pct") == [None]
    assert series(samples, "host", "load_1m") == [None]
    assert series(samples, "host", "cpu_pct") == [None], "no tick has passed"
    assert any("not offered by this machine" in n and "load_1m" in n for n in samples.notes)


def test_a_counter_that_goes_backwards_gives_no_rate(tmp_path: Path) -> None:
    rows = [[10, 5, 20, 0, 0, 0], [12, 3, 30, 0, 0, 0], [14, 4, 40, 0, 0, 0]]
    samples = read(tmp_path, lines(*({"host": {"": row}} for row in rows), columns=HOST))
    assert series(samples, "host", "cpu_iowait_pct") == [10]
    assert series(samples, "host", "cpu_pct") == [20, 20]


def test_what_is_read_less_often_has_its_rate_over_that_longer_time(tmp_path: Path) -> None:
    columns = {"process": ("cpu_ns", "waited_ns", "rss_bytes", "threads", "voluntary_switches")}
    rows = [[0, 0, 1, 1, 100], [0, 0, 1, 1, None], [0, 0, 1, 1, 120]]
    seen = {"seen": 10, "parent": 1, "name": "x", "exec": False}
    text = lines(seen, *({"process": {"10": row}} for row in rows), columns=columns)
    assert series(read(tmp_path, text), "process", "voluntary_switches_per_s", "10") == [100]


def test_a_tool_around_the_target_is_not_the_target(tmp_path: Path) -> None:
    columns = {"process": ("cpu_ns", "waited_ns", "rss_bytes", "threads")}
    seen = [
        {"seen": pid, "parent": parent, "name": "x", "exec": False} for pid, parent in ((10, 1), (11, 10), (12, 11))
    ]
    rows = {"10": [0, 0, 500, 9], "11": [0, 0, 20, 1], "12": [0, 0, 3, 2]}
    text = lines(*seen, {"process": rows}, columns=columns)
    assert series(read(tmp_path, text, main=11), "tree", "rss_bytes") == [23]
    assert series(read(tmp_path, text, main=10), "tree", "rss_bytes") == [523]
    assert len(read(tmp_path, text, main=99).table) == 0, "it was never seen"


def test_what_a_tool_does_before_and_after_the_target_is_left_out(tmp_path: Path) -> None:
    columns = {**HOST, "process": ("cpu_ns", "waited_ns", "rss_bytes", "threads")}
    seen = [{"seen": pid, "parent": parent, "name": "x", "exec": False} for pid, parent in ((10, 1), (11, 10))]
    tool = {"10": [0, 0, 1, 1]}
    rounds = [tool, {**tool, "11": [0, 0, 1, 1]}, tool]
    loads = [{"host": {"": [0, 0, n, 0, 0, n]}, "process": processes} for n, processes in enumerate(rounds)]
    text = lines(*seen, *loads, columns=columns)
    assert series(read(tmp_path, text, main=11), "host", "load_1m") == [1]
    assert series(read(tmp_path, text, main=10), "host", "load_1m") == [0, 1, 2]


# ---------------------------------------------------------------- GPUs

GPU = {
    "gpu": ("gpu_util_pct", "memory_used_bytes", "temperature_c", "throttle_mask"),
    "gpu_process": ("memory_used_bytes",),
}


def devices(*names: str) -> dict[str, Any]:
    uuids = (GPU0, GPU1)
    return {"devices": [{"uuid": uuids[n], "index": n, "name": x} for n, x in enumerate(names)], "through": "NVML"}


def gpu_file(*more: dict[str, Any], names: tuple[str, str] = ("A", "A"), **env: str) -> str:
    reading = {"gpu": {GPU0: [80, 2 << 30, None, 0x24], GPU1: [10, 3 << 30, 50, 0x1]}}
    return lines({"environment": env}, devices(*names), reading, *more, columns=GPU)


def test_what_a_gpu_does_not_offer_is_said_once(tmp_path: Path) -> None:
    samples = read(tmp_path, gpu_file())
    assert series(samples, "gpu", "temperature_c", GPU0) == [None]
    assert series(samples, "gpu", "gpu_util_pct", GPU0) == [80]
    assert [note for note in samples.notes if "not offered" in note] == [f"not offered by GPU {GPU0}: temperature_c"]


def test_throttling_has_a_series_for_each_reason_that_was_ever_given(tmp_path: Path) -> None:
    samples = read(tmp_path, gpu_file({"gpu": {GPU0: [80, 1, 40, 0x4]}}))
    assert series(samples, "gpu", "throttle_sw_power_cap", GPU0) == [1, 1]
    assert series(samples, "gpu", "throttle_sw_thermal_slowdown", GPU0) == [1, 0]
    assert series(samples, "gpu", "throttle_gpu_idle", GPU1) == [1]
    assert series(samples, "gpu", "throttle_gpu_idle", GPU0) == []


@pytest.mark.parametrize(
    ("env", "visible"),
    [
        ({"CUDA_VISIBLE_DEVICES": "1"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [1, 1]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-1111"}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "0,-1,1"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": ""}, [0, 0]),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, []),
        ({}, []),
    ],
)
def test_which_gpus_the_target_sees(tmp_path: Path, env: dict[str, str], visible: list[float]) -> None:
    samples = read(tmp_path, gpu_file(**env))
    seen = [series(samples, "gpu", "visible_to_target", uuid) for uuid in (GPU0, GPU1)]
    assert [value for values in seen for value in values] == visible
    if visible == [0, 1]:
        assert samples.metrics["gpu_util_pct"].value == 10, "the other one is somebody else's"
        assert samples.metrics["gpu_memory_peak_bytes"].value == 3 << 30


def test_unlike_gpus_have_no_numbers_unless_cuda_was_told_how_to_count(tmp_path: Path) -> None:
    unlike = ("A", "B")
    samples = read(tmp_path, gpu_file(names=unlike, CUDA_VISIBLE_DEVICES="1"))
    assert series(samples, "gpu", "visible_to_target", GPU1) == []
    assert any("CUDA_DEVICE_ORDER" in note for note in samples.notes)
    told = gpu_file(names=unlike, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert series(read(tmp_path, told), "gpu", "visible_to_target", GPU1) == [1]


def test_memory_that_belongs_to_nobody_is_said(tmp_path: Path) -> None:
    assert any("does not show here" in note for note in read(tmp_path, gpu_file()).notes)
    shown = gpu_file({"gpu_process": {f"{GPU0}/10": [2 << 30]}})
    assert not any("does not show here" in note for note in read(tmp_path, shown).notes)


# ---------------------------------------------------------------- broken files


def test_a_cut_last_line_costs_only_itself(tmp_path: Path) -> None:
    text = (GOLDEN / "tree.jsonl").read_text()
    samples = read(tmp_path, text[:-200])
    assert samples.damage and samples.table.dropped == 1
    assert any("1 lines are cut" in note for note in samples.notes)
    assert len(series(samples, "host", "load_1m")) == 9


@pytest.mark.parametrize("text", ["", "{}\n", "hello\n", "[1, 2]\n", "\0\0\0", '{"format": "profrun-monitor/1"}\n'])
def test_what_is_no_such_file_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    with pytest.raises(ParseError, match=r"samples\.jsonl"):
        read(tmp_path, text)


def test_wherever_the_file_ends_it_is_read_or_refused(tmp_path: Path) -> None:
    text = (GOLDEN / "tree.jsonl").read_text()
    for size in range(0, len(text), 97):
        try:
            samples = read(tmp_path, text[:size])
        except ParseError:
            continue
        assert samples.damage


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="No such file"):
        read_samples(tmp_path / "none.jsonl")
