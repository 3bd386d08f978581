"""formats/pyspy.py against our own recordings, real files of others, and broken ones."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ParseError
from orchestrator.formats import pyspy
from orchestrator.formats.pyspy import Thread

INTERVAL_NS = 10_000_000


@pytest.fixture
def recorded(golden: Path) -> Path:
    return golden / "py-spy"


@pytest.fixture
def real(shared: Path) -> Path:
    return shared / "data" / "pyspy"


def by_leaf(profile: pyspy.Profile) -> Counter[tuple[int | None, str]]:
    """Weight by process and leaf function, without file and line."""
    weights: Counter[tuple[int | None, str]] = Counter()
    for thread, frames, weight in profile.stacks:
        weights[thread.pid, frames[-1].split(" (")[0] if frames else ""] += weight
    return weights


def share(weights: Counter[tuple[int | None, str]], function: str) -> float:
    return sum(w for (_, name), w in weights.items() if name == function) / sum(weights.values())


def event(phase: str, name: str, ts: int, tid: int = 1, file: str = "a.py", line: int = 3) -> dict[str, Any]:
    place = {"filename": file, "line": line}
    return {"args": place, "cat": "py-spy", "name": name, "ph": phase, "pid": 7, "tid": tid, "ts": ts}


def trace(folder: Path, events: list[dict[str, Any]]) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps(events))
    return path


# ---------------------------------------------------------------- chrome traces


def test_a_program_of_two_functions(recorded: Path) -> None:
    profile = pyspy.read(recorded / "two" / "profile.0.chrometrace.json", INTERVAL_NS)
    weights, counts = by_leaf(profile), by_leaf(pyspy.read(recorded / "two" / "gil.2.raw.txt", INTERVAL_NS))
    events = json.loads((recorded / "two" / "profile.0.chrometrace.json").read_text())
    assert profile.damage is None
    assert (
        sum(weights.values()) == (events[-1]["ts"] - events[0]["ts"]) * 1000
    )  # one thread: every moment has one stack
    assert share(weights, "heavy") == pytest.approx(share(counts, "heavy"), abs=0.05)  # of a second py-spy beside it
    assert {s.thread for s in profile.stacks} == {
        Thread(profile.stacks[0].thread.pid, "/opt/venv/bin/python two.py 1.5", profile.stacks[0].thread.pid, None)
    }


def test_the_end_of_a_thread_ends_its_last_stack(recorded: Path) -> None:
    path = recorded / "ends" / "profile.0.chrometrace.json"
    (pid,) = {s.thread.pid for s in pyspy.read(path, INTERVAL_NS).stacks if "rest" in "".join(s.frames)}
    never = by_leaf(pyspy.read(path, INTERVAL_NS))
    short = next(s for s in pyspy.read(path, INTERVAL_NS).stacks if s.thread.name == "brief;one")
    assert never[pid, "short"] > 2_500_000_000  # it ran for 0.5 s of the 2.9 s
    ended = pyspy.read(path, INTERVAL_NS, {(pid or 0, short.thread.tid or 0): 560_000_000})
    assert 400_000_000 < by_leaf(ended)[pid, "short"] < 560_000_000
    assert by_leaf(ended)[pid, "waiter"] == never[pid, "waiter"]


def test_the_end_of_a_process_ends_all_its_threads(tmp_path: Path) -> None:
    start = [event("B", "f", 0), event("B", "g", 0, tid=2)]
    path = trace(tmp_path, [*start, event("E", "f", 900), event("E", "g", 900, tid=2)])
    assert by_leaf(pyspy.read(path, INTERVAL_NS, {(7, 0): 300_000})) == {(7, "f"): 300_000, (7, "g"): 300_000}


def test_an_end_long_before_a_stack_is_not_its_own(tmp_path: Path) -> None:
    path = trace(tmp_path, [event("B", "f", 1_000_000), event("E", "f", 2_000_000)])
    assert by_leaf(pyspy.read(path, INTERVAL_NS, {(7, 0): 500_000_000})) == {(7, "f"): 1_000_000_000}


def test_forked_processes_share_a_pthread_address(recorded: Path) -> None:
    path = recorded / "forks" / "profile.0.chrometrace.json"
    events = json.loads(path.read_text())
    seen = {pid: [e["ts"] for e in events if e["pid"] == pid] for pid in {e["pid"] for e in events}}
    assert (
        len(seen) == 3 and len({e["tid"] for e in events}) == 1
    )  # the parent and two children, all in one list of frames
    weights: Counter[int | None] = Counter()
    for thread, _, weight in pyspy.read(path, INTERVAL_NS).stacks:
        weights[thread.pid] += weight // 1000
    parent = next(e["pid"] for e in events)
    assert weights[parent] == seen[parent][-1] - seen[parent][0]
    for child in seen.keys() - {parent}:  # each lives for one interval more after it was seen for the last time
        assert weights[child] == seen[child][-1] - seen[child][0] + INTERVAL_NS // 1000


def test_open_frames_are_closed_at_the_last_event(tmp_path: Path) -> None:
    path = trace(tmp_path, [event("B", "f", 0), event("B", "g", 0, tid=2), event("B", "h", 500)])
    assert by_leaf(pyspy.read(path, INTERVAL_NS)) == {(7, "f"): 500_000, (7, "g"): 500_000}


def test_names_with_separators_do_not_split_a_stack(tmp_path: Path) -> None:
    events = [
        event("B", 'process 7:"sh -c a;b\nc"', 0, file="", line=0),
        event("B", "thread (8): x;y", 0, file="", line=0),
        event("B", "f;g", 0, file="a;b.py"),
        event("B", "h", 500),
    ]
    (stack,) = pyspy.read(trace(tmp_path, events), INTERVAL_NS).stacks
    assert stack == (Thread(7, "sh -c a;b\nc", 8, "x;y"), ("f,g (a,b.py:3)",), 500_000)


def test_metadata_of_newer_versions_is_passed_over(tmp_path: Path) -> None:
    name = {"ph": "M", "name": "thread_name", "args": {"name": "1: MainThread"}}
    path = trace(tmp_path, [name, event("B", "f", 5), event("E", "f", 9)])
    assert by_leaf(pyspy.read(path, INTERVAL_NS)) == {(7, "f"): 4_000}


def test_a_frame_without_line_or_file(tmp_path: Path) -> None:
    events = [event("B", "0x7f", 0, file="libc.so.6", line=0), event("B", "x", 0, file="", line=0), event("B", "y", 1)]
    (stack,) = pyspy.read(trace(tmp_path, events), INTERVAL_NS).stacks
    assert stack.frames == ("0x7f (libc.so.6)", "x")


def test_no_samples_at_all(tmp_path: Path) -> None:
    assert pyspy.read(trace(tmp_path, []), INTERVAL_NS).stacks == []


def test_a_trace_larger_than_a_block(tmp_path: Path) -> None:
    events = [event(p, f"f{i % 50}", 10 * i + (p == "E") * 6) for i in range(20_000) for p in "BE"]
    path = trace(tmp_path, events)
    assert path.stat().st_size > 2 << 20
    weights = by_leaf(pyspy.read(path, INTERVAL_NS))
    assert weights[7, "f3"] == 400 * 6_000
    assert len(weights) == 50


def test_a_cut_trace_keeps_what_it_has(recorded: Path, tmp_path: Path) -> None:
    text = (recorded / "two" / "profile.0.chrometrace.json").read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: len(text) // 2])
    profile = pyspy.read(path, INTERVAL_NS)
    assert profile.damage is not None and "cut or damaged after" in profile.damage
    assert 0 < sum(by_leaf(profile).values()) < 1_500_000_000


@pytest.mark.parametrize(
    "text",
    [
        '[{"ph": "B"}]', "[1, 2]", '[{"ph":"B","pid":1,"tid":[],"ts":1}]', '[{"ph":"B","pid":1,"tid":1,"ts":1}]',
        '[{"ph":"B","pid":1,"tid":1,"ts":"x","name":"f","args":{"filename":"a","line":1}},'
        '{"ph":"E","pid":1,"tid":1,"ts":2,"name":"f","args":{"filename":"a","line":1}}]',
        "", "{}", "[" * 100_000, "hello", "a b c\n",
    ],
)  # fmt: skip
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ParseError, match=r"profile\.json"):
        profile = pyspy.read(path, INTERVAL_NS)
        raise AssertionError(profile)


def test_binary_rubbish_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 40)
    with pytest.raises(ParseError, match="holds no stacks"):
        pyspy.read(path, INTERVAL_NS)
    with pytest.raises(ParseError, match="No such file"):
        pyspy.read(tmp_path / "missing", INTERVAL_NS)


# ---------------------------------------------------------------- raw stacks


def test_raw_stacks(recorded: Path) -> None:
    profile = pyspy.read(recorded / "two" / "gil.2.raw.txt", INTERVAL_NS)
    text = (recorded / "two" / "gil.2.raw.txt").read_text()
    assert sum(s.weight for s in profile.stacks) == sum(int(line.rsplit(" ", 1)[1]) for line in text.splitlines())
    assert {s.thread.process for s in profile.stacks} == {"/opt/venv/bin/python two.py 1.5"}
    assert {s.frames[0] for s in profile.stacks if s.frames} == {
        f"<module> (/home/user/app/two.py:{n})" for n in (11, 12)
    }


@pytest.mark.parametrize(
    ("line", "thread", "frames"),
    [
        ("f (a.py:1);g (b.py:2) 3", Thread(), ("f (a.py:1)", "g (b.py:2)")),
        ("a;b;c 3", Thread(), ("a", "b", "c")),
        ('process 5:"p x;y";process 6:"q";thread (6): a;b;f (a.py:1) 3', Thread(6, "q", 6, "a;b"), ("f (a.py:1)",)),
        ("thread (0x7F): T;f (a.py:1) 3", Thread(None, None, 127, "T"), ("f (a.py:1)",)),
        ("thread (9);f (we;ird (x).py:1);g (b.py:2) 3", Thread(tid=9), ("f (we,ird (x).py:1)", "g (b.py:2)")),
        ('process 5:"python -c a\nb = 3\nc";f (<string>:1) 3', Thread(5, "python -c a\nb = 3\nc"), ("f (<string>:1)",)),
        ('process 5:"x" 3', Thread(5, "x"), ()),
    ],
)  # fmt: skip
def test_a_raw_line(tmp_path: Path, line: str, thread: Thread, frames: tuple[str, ...]) -> None:
    path = tmp_path / "raw.txt"
    path.write_text(line + "\n" + "last (z.py:9) 1\n")
    assert pyspy.read(path, INTERVAL_NS).stacks == [(thread, frames, 3), (Thread(), ("last (z.py:9)",), 1)]


def test_some_lines_that_are_no_stacks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "raw.txt"
    path.write_text("f (a.py:1) 3\n\ng (a.py:1) x\nh (a.py:1) 2\n")
    profile = pyspy.read(path, INTERVAL_NS)
    assert [s.weight for s in profile.stacks] == [3, 2]
    assert profile.damage == "1 lines of raw.txt are no stacks"


# ---------------------------------------------------------------- real files of others


@pytest.mark.parametrize(
    ("name", "total"),
    [
        ("raw_gevent_snip_issue179.txt", 999),
        ("self_raw_basic.txt", 605),
        ("self_raw_function.txt", 558),
        ("self_raw_subprocesses_threads.txt", 612),
    ],
)
def test_real_raw_files(real: Path, name: str, total: int) -> None:
    profile = pyspy.read(real / name, INTERVAL_NS)
    assert sum(s.weight for s in profile.stacks) == total
    assert profile.damage is None
    assert not [f for s in profile.stacks for f in s.frames if ";" in f or not f.endswith(")")]


def test_real_threads_of_a_raw_file(real: Path) -> None:
    threads = {s.thread for s in pyspy.read(real / "self_raw_subprocesses_threads.txt", INTERVAL_NS).stacks}
    assert {t.name for t in threads} == {"MainThread", "wörker;one", 'w"2 (x)', None}
    assert {t.pid for t in threads} == {23744, 23751}


def test_a_real_chrome_trace(real: Path) -> None:
    profile = pyspy.read(real / "self_chrometrace.json", INTERVAL_NS)
    assert max(len(s.frames) for s in profile.stacks) > 900
    assert {s.thread.pid for s in profile.stacks} == {23842}
    assert sum(s.weight for s in profile.stacks) == pytest.approx(13.946e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("flamegraph_0.4.1_deep_2682px.svg", "is a picture"),
        ("flamegraph_2019_inferno.svg", "is a picture"),
        ("self_flamegraph.svg", "is a picture"),
        ("dump_calendarbot_3.12_5threads.txt", "is a dump"),
        ("self_dump.txt", "is a dump"),
        ("self_dump_locals.txt", "is a dump"),
        ("self_dump_native.txt", "is a dump"),
        ("self_dump.json", "an event is not one of py-spy's"),
        ("record_stderr_behind_gil_271threads.txt", "is what py-spy said"),
        ("speedscope_0.4.1_3threads_1000hz.json.gz", "holds no stacks"),
    ],
)
def test_real_files_without_samples_say_what_to_use(real: Path, name: str, why: str) -> None:
    with pytest.raises(ParseError, match=why) as caught:
        pyspy.read(real / name, INTERVAL_NS)
    assert "py-spy record --format chrometrace" in str(caught.value)


def test_every_real_file_is_read_or_refused(real: Path) -> None:
    read, refused = 0, 0
    for path in sorted(real.iterdir()):
        try:
            read += bool(pyspy.read(path, INTERVAL_NS).stacks)
        except ParseError:
            refused += 1
    assert (read, refused) == (5, len(list(real.iterdir())) - 5)


# ---------------------------------------------------------------- names and logs


def test_thread_names() -> None:
    threads = [
        Thread(5, "p", 5), Thread(5, "p", 5, "MainThread"), Thread(5, "p", 6), Thread(5, "p", 7, "w"),
        Thread(5, "p", 8, "w"), Thread(9, "q", 9), Thread(9, "q", 10, "w"), Thread(9, "q"),
    ]  # fmt: skip
    assert pyspy.thread_names(threads) == {
        (5, 5): "MainThread", (5, 6): "thread 6", (5, 7): "w (7)", (5, 8): "w (8)", (9, 9): "MainThread", (9, 10): "w",
    }  # fmt: skip


def test_a_log(recorded: Path) -> None:
    texts = [(recorded / "ends" / f"{name}.log").read_text() for name in ("stdout", "stderr")]
    log = pyspy.read_log("".join(texts))
    assert log.samples and log.samples > 300 and log.errors == 0 and log.behind_s is None
    lived_s = sorted((ns - (log.started_ns or 0)) / 1e9 for ns in log.ended_ns.values())
    assert lived_s == pytest.approx([1.37, 2.88], abs=0.02)


def test_a_log_of_failures(recorded: Path) -> None:
    log = pyspy.read_log((recorded / "failures" / "shell.log").read_text())
    assert set(log.failed.values()) == {"Failed to find python version from target process"}
    assert log.samples is None and log.errors is None


def test_the_log_of_one_that_fell_behind(real: Path) -> None:
    log = pyspy.read_log((real / "record_stderr_behind_gil_271threads.txt").read_text())
    assert (log.samples, log.errors, log.behind_s) == (3, 51, 1.36)


def test_an_empty_log() -> None:
    assert pyspy.read_log("") == pyspy.Log()
