"""formats/strace.py and formats/syscalls.py: real logs and summaries, counted a second time by simple means."""

from __future__ import annotations

import ast
import csv
import gzip
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import tables
from orchestrator.errors import ParseError
from orchestrator.formats import strace
from orchestrator.formats.strace import Trace, read_summary, read_trace
from orchestrator.formats.syscalls import syscall_class

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "strace"


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "trace.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def by_name(trace: Trace, column: str = "count") -> Counter[str]:
    sums: Counter[str] = Counter()
    for row in trace.syscalls.rows():
        sums[row["name"]] += row[column] or 0
    return sums


def paths(trace: Trace) -> dict[str, dict[str, Any]]:
    return {row["path"]: row for row in trace.paths.rows()}


def everything(trace: Trace) -> list[Any]:
    """All that a trace says, comparable."""
    tables = [[dict(t.columns), t.clock, t.dropped] for t in (trace.syscalls, trace.paths, trace.events)]
    spans = sorted(str(row) for row in trace.spans.rows())  # those that began together are in any order
    return [*tables, trace.calls, spans, trace.spans.dropped]


# ---------------------------------------------------------------- summaries


def by_ruler(text: str) -> list[dict[str, str]]:
    """The rows of a summary by the columns of its ruler: another way than the parser's."""
    lines = text.splitlines()
    top = next(i for i, line in enumerate(lines) if set(line) == {"-", " "})
    spans = [found.span() for found in re.finditer("-+", lines[top])]
    spans[-1] = (spans[-1][0], 1000)
    names = [lines[top - 1][a:b].strip() for a, b in spans]
    end = next(i for i, line in enumerate(lines) if i > top and set(line) == {"-", " "})
    return [dict(zip(names, (line[a:b].strip() for a, b in spans), strict=True)) for line in lines[top + 1 : end]]


def summaries(shared: Path) -> list[Path]:
    return [*sorted(GOLDEN.glob("summary_*.txt")), *(shared / "data/strace").glob("*_c_*.txt")]


def test_summaries_are_taken_over_digit_for_digit(shared: Path) -> None:
    assert len(summaries(shared)) >= 6
    for path in summaries(shared):
        summary, wanted = read_summary(path), by_ruler(path.read_text())
        assert summary.complete and summary.syscalls.dropped == 0
        for row, line in zip(summary.syscalls.rows(), wanted, strict=True):
            assert row["name"] == line["syscall"]
            assert str(row["count"]) == line["calls"] and str(row["errors"] or "") == line["errors"]
            assert f"{row['total_ns'] / 1e9:.6f}" == line["seconds"]
            assert row["mean_ns"] * row["count"] == pytest.approx(row["total_ns"])
            for column, label in (("min_ns", "shortest"), ("max_ns", "longest")):
                assert line.get(label) == (None if row[column] is None else f"{row[column] / 1e9:.6f}")


@pytest.mark.parametrize(
    ("name", "rows", "calls", "errors"),
    [
        ("self_c_python.txt", 28, 975, 102),
        ("self_c_w_f_sortcalls.txt", 37, 487, 82),
        ("summary_c_ecs251_conda_oldtotal.txt", 83, 238557, 7273),
        ("summary_c_f_oslab_newtotal.txt", 20, 155, 1),
    ],
)
def test_real_summaries_add_up_to_their_totals(shared: Path, name: str, rows: int, calls: int, errors: int) -> None:
    summary = read_summary(shared / "data/strace" / name, time="system")
    columns = summary.syscalls.columns
    assert (len(summary.syscalls), sum(columns["count"]), sum(columns["errors"])) == (rows, calls, errors)
    assert set(columns["time"]) == {"system"} and set(columns["thread"]) == set(columns["pid"]) == {None}


HEAD = "  calls    errors syscall\n--------- --------- ----------------\n"


def test_a_summary_without_times_has_none(tmp_path: Path) -> None:
    (row,) = read_summary(written(tmp_path, f"{HEAD}       52         2 openat\n 52 2 total\n")).syscalls.rows()
    assert (row["count"], row["errors"], row["class"]) == (52, 2, "file")
    assert row["total_ns"] is row["mean_ns"] is row["min_ns"] is row["max_ns"] is None


def test_a_summary_without_errors_column_does_not_claim_that_there_were_none(tmp_path: Path) -> None:
    (row,) = read_summary(written(tmp_path, "  calls syscall\n------\n  52 openat\n  52 total\n")).syscalls.rows()
    assert row["errors"] is None


def test_columns_may_touch_where_a_number_is_wide(tmp_path: Path) -> None:
    head = "% time     seconds shortest  longest     calls syscall\n"
    text = (
        f"{head}100.00123456.0000000.00000112345.678901        52 futex\n100.00 123456.000000 0.000001 1.0 52 total\n"
    )
    summary = read_summary(written(tmp_path, text))
    (row,) = summary.syscalls.rows()
    assert (row["total_ns"], row["min_ns"], row["max_ns"]) == (123456 * 10**9, 1000, 12345678901000)


def test_two_personalities_are_added_up(tmp_path: Path) -> None:
    head = "    seconds  longest     calls    errors syscall\n"
    text = (
        f"{head}   0.000010 0.000009         5         1 openat\n   0.000010 0.000009 5 1 total\n"
        "System call usage summary for 32 bit mode:\n"
        f"{head}   0.000002 0.000011         2           openat\n   0.000002 0.000011 2   total\n"
    )
    summary = read_summary(written(tmp_path, text))
    (row,) = summary.syscalls.rows()
    assert (row["count"], row["errors"], row["total_ns"], row["max_ns"]) == (7, 1, 12000, 11000)
    assert summary.complete


def test_a_cut_summary_says_so_at_every_place(tmp_path: Path) -> None:
    text = (GOLDEN / "summary_wall.txt").read_bytes()
    total = re.search(rb"^total .* (\d+) +\d+$", text, re.M)
    assert total
    for end in range(200, len(text), 23):
        summary = read_summary(written(tmp_path, text[:end]))
        assert summary.complete == (end >= total.end(1)), end
        assert summary.syscalls.dropped <= 1


def test_lines_in_between_are_counted(tmp_path: Path) -> None:
    summary = read_summary(written(tmp_path, f"{HEAD}  4  1 openat\nhello from the target\n  4  1 total\n"))
    assert (len(summary.syscalls), summary.syscalls.dropped, summary.complete) == (1, 1, True)


# ---------------------------------------------------------------- logs: our own recordings


def test_a_log_counts_what_strace_itself_counted() -> None:
    path = GOLDEN / "trace_and_summary.log"
    trace, summary = read_trace(path), read_summary(path)
    counted = {row["name"]: row for row in summary.syscalls.rows()}
    assert by_name(trace) == {name: row["count"] for name, row in counted.items()}
    assert by_name(trace, "errors") == Counter({name: row["errors"] for name, row in counted.items()})
    for name, total_ns in by_name(trace, "total_ns").items():
        assert abs(total_ns - counted[name]["total_ns"]) <= 1000 * (counted[name]["count"] + 1), "cut to us, each"
    assert trace.syscalls.dropped == 0 and trace.calls == 98


def test_threads_and_processes_are_told_apart() -> None:
    path = GOLDEN / "trace_and_summary.log"
    main, thread, child = map(int, dict.fromkeys(re.findall(r"^(\d+) ", path.read_text(), re.M)))
    trace = read_trace(path)
    owner = {row["thread"]: row["pid"] for row in trace.syscalls.rows()}
    assert owner == {main: main, thread: main, child: child}
    assert {row["thread"]: row["count"] for row in trace.syscalls.rows() if row["name"] == "read"} == {thread: 6}


def test_files_are_named_as_they_are() -> None:
    found = paths(read_trace(GOLDEN / "trace.log"))
    for name in ("plain.txt", "two words.txt", r"a) = 5 \0740.000001\76", r"quo\"te,comma", r"caf\303\251"):
        row = found[f"/tmp/project/{name}"]
        assert row["bytes"] == 31 and {"openat", "write", "close"} <= set(row["names"].split(",")), name
    plain = found["/tmp/project/plain.txt"]
    assert plain["names"] == "newfstatat,close,openat,write" and (plain["count"], plain["errors"]) == (5, 1)
    lines = [line for line in (GOLDEN / "trace.log").read_text().splitlines() if '/tmp/project>, "plain' in line]
    assert len(lines) == 3
    pipe = next(row for name, row in found.items() if name.startswith("pipe:"))
    assert (pipe["bytes"], pipe["count"], pipe["names"]) == (12, 12, "read,write")
    talk = [row for name, row in found.items() if re.fullmatch(r"TCP:\[127\.0\.0\.1:\d+->127\.0\.0\.1:\d+\]", name)]
    assert sorted(row["names"] for row in talk) == ["close,recvfrom", "close,sendto"]
    assert [row["bytes"] for row in talk] == [5, 5]


def test_the_slowest_calls_are_kept_with_all_that_was_shown() -> None:
    text = (GOLDEN / "trace.log").read_text()
    slowest = sorted((float(x) for x in re.findall(r"<(\d+\.\d{6})>$", text, re.M)), reverse=True)
    trace = read_trace(GOLDEN / "trace.log", events=10)
    events = list(trace.events.rows())
    assert [event["duration_ns"] for event in events] == [round(s * 1e9) for s in slowest[:10]]
    poll = next(event for event in events if event["name"] == "poll")
    assert (poll["args"], poll["result"]) == ("NULL, 0, 10000", "? ERESTART_RESTARTBLOCK (Interrupted by signal)")
    start = re.search(r"^\d+ (\d+)\.(\d+) poll\(", text, re.M)
    assert start and poll["start_ns"] == int(start[1] + start[2]) * 1000
    assert (trace.events.clock, trace.events.clock_error_ns) == ("epoch", 25_000)
    read = next(event for event in events if event["name"] == "read")
    assert read["args"].endswith(', "q", 1') and read["result"] == "1", "both halves"
    begun = re.findall(r"^\d+ (\d+)\.(\d+) read\(.* <unfinished \.\.\.>$", text, re.M)
    assert read["start_ns"] in {int(a + b) * 1000 for a, b in begun}


def test_no_more_events_than_wanted() -> None:
    assert len(read_trace(GOLDEN / "trace.log", events=0).events) == 0
    whole = read_trace(GOLDEN / "trace.log", events=1 << 20)
    assert len(whole.events) == whole.calls


def test_a_log_from_the_terminal_without_times() -> None:
    trace = read_trace(GOLDEN / "terminal.log")
    assert by_name(trace) == by_name(read_trace(GOLDEN / "trace_and_summary.log"))
    assert trace.syscalls.dropped == 0 and len(trace.events) == 0
    assert set(trace.syscalls.columns["total_ns"]) == {None} and set(trace.paths.columns["total_ns"]) == {None}
    stamps = re.findall(r"^(?:\[pid +\d+\])? +(\d+\.\d{6}) ", (GOLDEN / "terminal.log").read_text(), re.M)
    assert trace.last_ns == round(sum(map(float, stamps)) * 1e9), "-r gives the time since the line before"
    assert trace.events.clock == "relative"


def test_what_is_left_in_the_middle_of_a_call_is_no_call() -> None:
    trace = read_trace(GOLDEN / "attached.log")
    assert (trace.calls, trace.unreturned, trace.syscalls.dropped, len(trace.syscalls)) == (0, 1, 0, 0)


def test_a_log_cut_anywhere_loses_one_line_at_most(tmp_path: Path) -> None:
    text = (GOLDEN / "trace.log").read_bytes()
    calls = 0
    for end in range(500, len(text), 37):
        trace = read_trace(written(tmp_path, text[:end]))
        assert trace.syscalls.dropped <= 1 and trace.calls >= calls
        calls = trace.calls


def line_by_line(path: Path, events: int = 1000) -> Trace:
    """A log read by the thorough way alone."""
    log = strace._Log(events, strace.MOST_SPANS)
    for log._serial, line in enumerate(path.read_bytes().removesuffix(b"\n").split(b"\n")):
        log._line(line)
    return log.trace(())


@pytest.mark.parametrize("name", ["trace.log", "trace_and_summary.log", "terminal.log", "attached.log"])
def test_the_quick_way_through_lines_says_the_same_as_the_thorough_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    text = (GOLDEN / name).read_bytes()
    monkeypatch.setattr(strace, "_FIRST_BYTES", len(text) - 1)
    path = written(tmp_path, text * 3)
    assert everything(read_trace(path)) == everything(line_by_line(path))


@settings(max_examples=60, deadline=None)
@given(
    moves=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=8),
    losses=st.lists(st.floats(0, 1), max_size=5),
    events=st.integers(0, 20),
    cut=st.integers(0, 60),
)
def test_lost_and_exchanged_lines_mean_the_same_to_both_ways(
    tmp_path_factory: pytest.TempPathFactory,
    moves: list[tuple[float, float]],
    losses: list[float],
    events: int,
    cut: int,
) -> None:
    text = (GOLDEN / "trace.log").read_bytes()
    lines = text.splitlines(keepends=True)
    for first, second in moves:
        one, other = int(first * (len(lines) - 1)), int(second * (len(lines) - 1))
        lines[one], lines[other] = lines[other], lines[one]
    for place in losses:
        del lines[int(place * (len(lines) - 1))]
    path = written(tmp_path_factory.mktemp("moved"), text + b"".join(lines) + text[: len(text) - cut])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strace, "_FIRST_BYTES", len(text) - 1)
        patch.setattr(strace, "_BLOCK_BYTES", 5000)
        quick, thorough = read_trace(path, events), line_by_line(path, events)
    assert everything(quick) == everything(thorough)
    assert (quick.unreturned, quick.last_ns, quick.lines) == (thorough.unreturned, thorough.last_ns, quick.lines)


def test_most_lines_of_our_own_logs_go_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, slow = (GOLDEN / "trace.log").read_bytes(), []
    one = strace._Log._line
    monkeypatch.setattr(strace._Log, "_line", lambda log, line: slow.append(line) or one(log, line))
    monkeypatch.setattr(strace, "_FIRST_BYTES", len(text) - 1)
    trace = read_trace(written(tmp_path, text * 5))
    assert len(slow) - text.count(b"\n") < 0.3 * 4 * text.count(b"\n")
    assert trace.lines["all"] == 5 * text.count(b"\n")


def test_the_calls_are_told_one_by_one() -> None:
    trace = read_trace(GOLDEN / "trace.log", events=1 << 20)
    assert (len(trace.spans), trace.spans.dropped, trace.spans.clock) == (trace.calls, 0, "epoch")
    assert trace.spans.clock_error_ns == trace.events.clock_error_ns
    events = {(row["thread"], row["start_ns"]): row for row in trace.events.rows()}
    spans = list(trace.spans.rows())
    assert [row["start_ns"] for row in spans] == sorted(row["start_ns"] for row in spans)
    for row in spans:
        event = events[row["thread"], row["start_ns"]]
        assert (event["pid"], event["duration_ns"], event["name"]) == (row["pid"], row["duration_ns"], row["name"])
        failed = event["result"].startswith(("-1 ", "? "))
        assert f" {row['error']} " in event["result"] if failed else row["error"] is None
    by_path = Counter(row["path"] for row in spans if row["path"] is not None)
    assert by_path == {path: row["count"] for path, row in paths(trace).items()}


def test_of_many_calls_the_longest_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (GOLDEN / "trace.log").read_bytes()
    monkeypatch.setattr(strace, "_FIRST_BYTES", len(text) - 1)
    whole = read_trace(written(tmp_path, text * 7))
    some = read_trace(written(tmp_path, text * 7), spans=40)
    assert (len(some.spans), some.spans.dropped) == (40, whole.calls - 40)
    assert sorted(some.spans.columns["duration_ns"]) == sorted(whole.spans.columns["duration_ns"])[-40:]
    assert some.syscalls == whole.syscalls


def test_calls_whose_beginning_is_lost_are_not_told_one_by_one(tmp_path: Path) -> None:
    lines = "7 1700000000.000001 <... read resumed>) = 0 <0.5>\n7 1700000000.6 close(3</a>) = -1 EIO (x) <0.25>\n"
    trace = read_trace(written(tmp_path, lines))
    (row,) = trace.spans.rows()
    assert (row["name"], row["class"], row["path"], row["error"]) == ("close", "desc", "/a", "EIO")
    assert (row["thread"], row["start_ns"], row["duration_ns"]) == (7, 1_700_000_000_600_000_000, 250_000_000)
    assert (trace.calls, trace.spans.dropped) == (2, 1)


# ---------------------------------------------------------------- logs: other people's


def counted(text: str) -> tuple[Counter[str], int]:
    """Calls that returned, by name, and failures: line by line, with two patterns."""
    calls: Counter[str] = Counter()
    errors = 0
    for line in text.splitlines():
        whole = re.match(r"^(?:\[pid +\d+\] +|\d+ +)?(?:[\d:.]+ +)?(\w+)\(.*\) += (?!\?( <.*)?$)(.*)$", line)
        half = re.match(r"^(?:\[pid +\d+\] +|\d+ +)?(?:[\d:.]+ +)?<\.\.\. (\w+) resumed>.*\) += (?!\?$)(.*)$", line)
        found = whole or half
        if found:
            calls[found[1]] += 1
            errors += bool(re.match(r"(-1|\?) E", found[found.lastindex or 0]))
    return calls, errors


@pytest.mark.parametrize(
    ("name", "calls", "errors"),
    [
        ("full_cuda_primer.txt", 1276, None),
        ("full_f_asterisk_22949lines.log.gz", 18117, None),
        ("full_f_tt_y_oslab.log", 161, 1),
        ("self_f_r_x_s8.txt", 62, None),
        ("self_f_ttt_T_yy.txt", 973, None),
        ("self_ff.txt.23924", 56, None),
        ("self_ff.txt.23925", 164, None),
        ("snip_armv7_sigreturn_oldformat.txt", 16, 1),
        ("snip_attach_15_threads_truncated.txt", 0, 0),
        ("snip_pidfmt_waitid_restart_musl.txt", 13, 0),
        ("snip_select_resumed_old_space_paren.txt", 2, 0),
    ],
)
def test_real_logs_are_counted_right(shared: Path, tmp_path: Path, name: str, calls: int, errors: int | None) -> None:
    raw = (shared / "data/strace" / name).read_bytes()
    raw = gzip.decompress(raw) if name.endswith(".gz") else raw
    wanted, failed = counted(raw.decode("utf-8", "replace"))
    trace = read_trace(written(tmp_path, raw))
    assert by_name(trace) == wanted and trace.calls == sum(wanted.values()) == calls
    assert sum(by_name(trace, "errors").values()) == failed and errors in (None, failed)
    assert trace.syscalls.dropped == {"snip_attach_15_threads_truncated.txt": 4}.get(name, 0)


def test_the_log_of_a_daemon_with_halves_that_do_not_match(shared: Path, tmp_path: Path) -> None:
    raw = gzip.decompress((shared / "data/strace/full_f_asterisk_22949lines.log.gz").read_bytes())
    trace = read_trace(written(tmp_path, raw))
    begun = Counter(re.findall(rb"^\d+ +(\w+)\(", raw, re.M))
    assert begun[b"read"] == 5529 and begun[b"poll"] == 3516 and begun[b"futex"] == 3420
    assert trace.unreturned == sum(begun.values()) - trace.calls, "every call either returned or did not"
    threads = {int(tid) for tid in re.findall(rb"^(\d+)", raw, re.M)}
    assert set(trace.syscalls.columns["thread"]) <= threads


def test_real_logs_hold_what_the_index_says(shared: Path, tmp_path: Path) -> None:
    with (shared / "data/INDEX.tsv").open() as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if "top_calls=[(" in row["verified_facts"]]
    assert len(rows) == 11
    for row in rows:
        raw = (shared / "data" / row["path"]).read_bytes()
        trace = read_trace(written(tmp_path, gzip.decompress(raw) if row["path"].endswith(".gz") else raw))
        facts, _, calls = row["verified_facts"].partition(" top_calls=")
        of = {"lines": "all", "exits": "exited", "signals": "signal", "q_ret": "unknown result"}
        for name, value in re.findall(r"(\w+)=(\d+)", facts):
            assert trace.lines.get(of.get(name, name), 0) == int(value), (row["path"], name)
        for name, begun in ast.literal_eval(calls):
            assert 0 <= begun - by_name(trace)[name] <= trace.unreturned, (row["path"], name)


# ---------------------------------------------------------------- layouts


@pytest.mark.parametrize(
    ("head", "thread", "start_ns"),
    [
        ("", None, None),
        ("7", 7, None),
        ("[pid     7]", 7, None),
        ("7<sh>", 7, None),
        ("[pid 7<sh>] 12:00:01", 7, 43201 * 10**9),
        ("7     12:00:01.5", 7, 43201_500_000_000),
        ("12:00:01.000002 (+     0.000100)", None, 43201_000_002_000),
        ("1700000000", None, 1700000000 * 10**9),
        ("7 1700000000.000001 [   3] [00007f12ab34cd56]", 7, 1700000000_000001000),
    ],
)
def test_every_head_of_a_line_is_understood(
    tmp_path: Path, head: str, thread: int | None, start_ns: int | None
) -> None:
    trace = read_trace(written(tmp_path, f"{head} close(3) = 0 <0.00001>\n > /lib/libc.so.6(close+0x10) [0x1]\n"))
    (event,) = trace.events.rows()
    assert (event["name"], event["args"], event["result"], event["duration_ns"]) == ("close", "3", "0", 10_000)
    assert (event["start_ns"], event["thread"]) == (start_ns, thread)
    assert trace.syscalls.dropped == 0


@pytest.mark.parametrize(
    ("call", "args", "result", "path", "moved", "failed"),
    [
        ('read(3</a b>, "x) = 4 <1.0>", 9) = 2', '3</a b>, "x) = 4 <1.0>", 9', "2", "/a b", 2, 0),
        (r'write(1, "\") = 1", 4)   = 4', r'1, "\") = 1", 4', "4", None, None, 0),
        ('openat(AT_FDCWD</w>, "f", O_RDONLY) = 3</w/f>', 'AT_FDCWD</w>, "f", O_RDONLY', "3</w/f>", "/w/f", None, 0),
        ('openat(4</w>, "", O_PATH) = 5</w>(deleted)', '4</w>, "", O_PATH', "5</w>(deleted)", "/w", None, 0),
        ('open("f,g", 0) = -1 ENOENT (No such file)', '"f,g", 0', "-1 ENOENT (No such file)", "f,g", None, 1),
        ("ioctl(3</dev/x<char 1:3>>, 5) = -1 (errno 9)", "3</dev/x<char 1:3>>, 5", "-1 (errno 9)", "/dev/x", None, 1),
        ("read(3<UDP:[[::1]:5->[::1]:6]>, 1) = 1", "3<UDP:[[::1]:5->[::1]:6]>, 1", "1", "UDP:[[::1]:5->[::1]:6]", 1, 0),
        ('write(3<UNIX:[1->2,"/s"]>, "", 0) = 0', '3<UNIX:[1->2,"/s"]>, "", 0', "0", 'UNIX:[1->2,"/s"]', 0, 0),
        ("close(3<anon_inode:[eventpoll]>) = 0", "3<anon_inode:[eventpoll]>", "0", "anon_inode:[eventpoll]", None, 0),
        ("unlinkat(5</d/>, \"x\", 0) = 0", '5</d/>, "x", 0', "0", "/d/x", None, 0),
        ("lseek(3</a>, 1<<3, SEEK_SET) = 8", "3</a>, 1<<3, SEEK_SET", "8", "/a", None, 0),
        ('memfd_create("name", 0) = 5</memfd:name>(deleted)', '"name", 0', "5</memfd:name>(deleted)", None, None, 0),
        ("getppid()  = 1", "", "1", None, None, 0),
        ("fcntl(3</a>, F_GETFD) = 0x1 (flags FD_CLOEXEC)", "3</a>, F_GETFD", "0x1 (flags FD_CLOEXEC)", "/a", None, 0),
    ],
)  # fmt: skip
def test_arguments_result_and_file_are_parted(
    tmp_path: Path, call: str, args: str, result: str, path: str | None, moved: int | None, failed: int
) -> None:
    lines = [f"7 1700000000.000001 {call} <0.000010>"] * 3
    trace = read_trace(written(tmp_path, "\n".join(lines)))
    assert {(e["args"], e["result"]) for e in trace.events.rows()} == {(args, result)}
    assert trace.calls == 3 and sum(by_name(trace, "errors").values()) == 3 * failed
    rows = list(trace.paths.rows())
    assert [row["path"] for row in rows] == ([path] if path else [])
    assert [row["bytes"] for row in rows] == ([moved and 3 * moved] if path else [])


def test_halves_are_joined_only_when_they_belong_together(tmp_path: Path) -> None:
    text = (
        "1 1700000000.000001 read(3</a>,  <unfinished ...>\n"
        "2 1700000000.000002 futex(0x1, FUTEX_WAIT, 1, NULL <unfinished ...>\n"
        '1 1700000000.000003 <... read resumed>"x", 1) = 1 <0.000002>\n'
        "3 1700000000.000004 <... poll resumed> ) = 0 (Timeout) <0.5>\n"
        "2 1700000000.000005 <... close resumed>) = 0 <0.000009>\n"
        "1 1700000000.000006 read(3</a>,  <unfinished ...>\n"
        "1 1700000000.000007 +++ killed by SIGKILL (core dumped) +++\n"
    )
    trace = read_trace(written(tmp_path, text))
    assert by_name(trace) == {"read": 1, "poll": 1, "close": 1} and trace.unreturned == 2
    starts = {event["name"]: event["start_ns"] for event in trace.events.rows()}
    assert starts == {"read": 1700000000_000001000, "poll": None, "close": None}
    assert paths(trace)["/a"]["count"] == 1


def test_a_thread_that_calls_execve_goes_on_as_its_leader(tmp_path: Path) -> None:
    text = (
        '8 1700000000.000001 execve("/bin/x", ["x"], 0x1 /* 2 vars */ <unfinished ...>\n'
        "7 1700000000.000002 futex(0x1, FUTEX_WAIT, 1, NULL <unfinished ...>\n"
        "7 1700000000.000003 +++ superseded by execve in pid 8 +++\n"
        "7 1700000000.000004 <... execve resumed>) = 0 <0.000003>\n"
    )
    trace = read_trace(written(tmp_path, text))
    (row,) = trace.syscalls.rows()
    assert (row["name"], row["thread"], row["pid"], row["count"]) == ("execve", 7, 7, 1)
    assert trace.unreturned == 1 and paths(trace)["/bin/x"]["count"] == 1


def test_threads_of_an_attached_process_are_known_only_when_told(tmp_path: Path) -> None:
    path = written(
        tmp_path, "7 close(3) = 0\n8 close(3) = 0\n7 clone(flags=CLONE_VM|CLONE_THREAD) = 9\n9 close(4) = 0\n"
    )
    owner = lambda trace: {row["thread"]: row["pid"] for row in trace.syscalls.rows()}  # noqa: E731
    assert owner(read_trace(path)) == {7: None, 8: None, 9: None}
    assert owner(read_trace(path, processes=[7])) == {7: 7, 8: None, 9: 7}


# ---------------------------------------------------------------- what is no log


def test_other_files_are_refused(shared: Path, tmp_path: Path) -> None:
    table = shared / "data/strace/not_strace_mapping_table.txt"
    for read in (read_summary, read_trace):
        with pytest.raises(ParseError, match="is no strace"):
            read(table)
        with pytest.raises(ParseError, match="is empty"):
            read(written(tmp_path, ""))
        with pytest.raises(ParseError, match="can't be read"):
            read(tmp_path)
        with pytest.raises(ParseError, match="can't be read: No such file"):
            read(tmp_path / "nothing")
        with pytest.raises(ParseError, match="is no strace"):
            read(written(tmp_path, bytes(range(256)) * 5000))
    with pytest.raises(ParseError, match="is no strace log"):
        read_trace(shared / "data/strace/summary_c_f_oslab_newtotal.txt")
    with pytest.raises(ParseError, match="is no strace summary"):
        read_summary(GOLDEN / "trace.log")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strace, "_LONGEST_LINE", 1 << 21)
    with pytest.raises(ParseError, match="a line of more than 2 MiB"):
        read_trace(written(tmp_path, b"x" * (5 << 20)))


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from(["trace.log", "terminal.log", "attached.log", "trace_and_summary.log", "summary_wall.txt"]),
    spots=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=12), st.integers(0, 40)), min_size=1, max_size=12),
)
def test_damage_gives_an_error_in_one_sentence_or_a_table(
    tmp_path_factory: pytest.TempPathFactory, name: str, spots: list[tuple[float, bytes, int]]
) -> None:
    text = (GOLDEN / name).read_bytes()
    for place, new, length in spots:
        at = int(place * len(text))
        text = text[:at] + new + text[at + length :]
    path = written(tmp_path_factory.mktemp("damaged"), text)
    for read in (read_summary, read_trace):
        try:
            found = read(path)
        except ParseError as error:
            assert "\n" not in str(error)
            continue
        for table in (found.syscalls, *((found.paths, found.events) if isinstance(found, Trace) else ())):
            assert tables.arrow(table.name, [table.with_capture("p1-strace")]).num_rows == len(table)


GROWTH = """
import resource, sys
from pathlib import Path
from orchestrator.formats.strace import read_trace
size = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_trace(Path(sys.argv[1]))
before = size()
print(read_trace(Path(sys.argv[2])).calls, size() - before)
"""


def test_a_long_log_is_read_in_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path, (GOLDEN / "trace.log").read_bytes() * 2400)
    assert path.stat().st_size > 18 << 20
    argv = [sys.executable, "-c", GROWTH, GOLDEN / "trace.log", path]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=GOLDEN.parents[2])
    calls, growth_kib = map(int, done.stdout.split())
    assert calls == 2400 * read_trace(GOLDEN / "trace.log").calls
    assert growth_kib < 9 << 10


# ---------------------------------------------------------------- classes


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("openat", "file"), ("execve", "file"), ("sendto", "network"), ("sendfile", "network"), ("wait4", "process"),
        ("mmap", "memory"), ("read", "desc"), ("fstat", "desc"), ("futex", "futex"), ("futex_waitv", "futex"),
        ("nanosleep", "other"), ("syscall_0x1ff", "other"),
    ],
)  # fmt: skip
def test_a_call_of_several_classes_belongs_to_the_first(name: str, kind: str) -> None:
    assert syscall_class(name) == kind
