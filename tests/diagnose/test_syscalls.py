"""diagnose/syscalls.py: what a loop asks of the kernel at every step is told, and what starting up asks is not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_report import STARTED_NS, bare, write

from orchestrator.diagnose import merged
from orchestrator.diagnose.syscalls import START_UP, system_calls
from orchestrator.formats.syscalls import syscall_class
from orchestrator.model import Abstention, Capture, Finding, Metric, PassRecord, TargetRun
from orchestrator.report import Report
from orchestrator.tables import Table

MAIN = 100
STEPS, STEP_NS = 40, 10_000_000
FIRST_NS = STARTED_NS + 5_000_000_000
MS, US = 1_000_000, 1_000

Call = tuple[int, int, int, str, str | None, str | None]
"""thread, start after the first step, duration, name, path, error."""


def report(folder: Path, *tables: Table, collector: str = "strace", steps: int = STEPS, **more: Any) -> Report:
    """A run with `steps` steps of 10 ms each, alone and under the tool: the first five are warm-up."""
    run = TargetRun(("python", "x.py"), MAIN, STARTED_NS, STARTED_NS + 6 * 10**9, 6.0, None)
    passes = (
        PassRecord("p01", "bare", ("timing",), 1, run),
        PassRecord("p02", "profiled", (collector,), 1, run, 1.1, step_slowdown=1.05),
    )
    made = Table(
        "steps",
        {
            "pid": [MAIN] * steps,
            "step": list(range(steps)),
            "start_ns": [FIRST_NS + n * STEP_NS for n in range(steps)],
            "duration_ns": [STEP_NS] * steps,
            "data_wait_ns": [more.get("data_wait_ns", 0)] * steps,
            "warmup": [n < 5 for n in range(steps)],
            "profiled": [False] * steps,
        },
    )
    parts = [*tables, *([made] if steps else [])]
    metrics = {"wall_s": Metric(6.0, "s", n=1)}
    if steps:
        metrics |= {"step_s": Metric(0.01, "s"), "steps": Metric(steps), "warmup_steps": Metric(5.0)}
    return replace(
        bare(folder),
        passes=passes,
        captures=(Capture("p02-it", "p02", collector, "ok", run=run, trust=more.get("trust", "high")),),
        metrics=metrics,
        tables={table.name: write(folder, table.with_capture("p02-it")) for table in parts},
    )


def spans(calls: Iterable[Call]) -> Table:
    rows = [
        (MAIN if t < 200 else t, t, FIRST_NS + at, ns, name, syscall_class(name), path, error)
        for t, at, ns, name, path, error in calls
    ]
    return Table.of("syscall_spans", rows, clock="epoch")


def every_step(*calls: tuple[int, int, str, str | None, str | None], steps: int = STEPS) -> list[Call]:
    """Each of (thread, duration, name, path, error) in each step, one after the other."""
    found, at = [], 0
    for step in range(steps):
        at = step * STEP_NS
        for thread, ns, name, path, error in calls:
            found.append((thread, at, ns, name, path, error))
            at += ns
    return found


def start_up() -> list[Call]:
    """What importing asks, all of it before the first step."""
    return [
        (MAIN, -4_000_000_000 + n * 100 * US, 40 * US, name, f"/lib/{n}.py", "ENOENT" if n % 3 else None)
        for name in ("newfstatat", "openat", "read")
        for n in range(1000)
    ]


def found(report: Report) -> list[Finding]:
    return list(merged(one for one in system_calls(report) if isinstance(one, Finding)))


def rules(report: Report) -> dict[str, Finding]:
    return {one.rule: one for one in system_calls(report) if isinstance(one, Finding)}


QUICK = (MAIN, 20 * US, "lseek", "/data/x", None)
"""A call that costs next to nothing: what it took is strace's."""


# ---------------------------------------------------------------- calls one by one, in the steady steps


def test_waiting_for_the_disk_at_every_step_is_told_with_its_share(tmp_path: Path) -> None:
    calls = every_step(QUICK, QUICK, (MAIN, 4 * MS, "fsync", "/data/log", None))
    (finding,) = found(report(tmp_path, spans([*start_up(), *calls])))
    assert finding.title == (
        "The program waits for the disk (fsync and its like) 1.0 times a step: 40 % of the steady steps of a bare run"
    )
    assert (finding.rule, finding.category, finding.cause) == ("sync_in_loop", "file_io", "file_io:fsync")
    assert (finding.severity, finding.confidence, finding.of) == ("critical", "high", "the steady steps of a bare run")
    assert finding.where == {"syscall": "fsync", "path": "/data/log"}
    assert finding.cost_pct == pytest.approx(39.8, abs=0.1) and finding.cost_s == pytest.approx(0.1393, abs=0.001)
    assert [(e.row, e.value) for e in finding.evidence] == [("fsync", 35.0)], "the steady steps, not the warm-up"


@pytest.mark.parametrize(
    "calls",
    [
        start_up(),
        every_step(QUICK, (MAIN, 100 * US, "write", "/data/log", None)),
        every_step((MAIN, 9 * MS, "futex", None, None), (MAIN, 30 * US, "poll", "pipe:[7]", None)),
        [*start_up(), *every_step((300, 4 * MS, "fsync", "/data/log", None))],
        [(MAIN, 20 * STEP_NS, 9 * MS, "fsync", "/data/end", None)],
        every_step((300, 9 * MS, "clock_nanosleep", None, None), QUICK),
        every_step(*[(300, 5 * MS, "futex", None, "ETIMEDOUT")], steps=3),
    ],
    ids=["start-up", "a log", "waiting for a worker", "another thread", "once", "a timer thread", "some time-outs"],
)
def test_a_healthy_program_is_left_in_peace(tmp_path: Path, calls: list[Call]) -> None:
    assert found(report(tmp_path, spans(calls))) == []


@pytest.mark.parametrize(
    ("rule", "category", "calls", "title"),
    [
        (
            "stat_storm",
            "file_io",
            [(MAIN, 60 * US, "newfstatat", "/data/x", "ENOENT" if n % 2 else None) for n in range(60)],
            "Files are looked up (stat, access) 60.0 times a step, 50 % in vain: 24 %",
        ),
        (
            "failed_opens",
            "file_io",
            [(MAIN, 60 * US, "openat", f"/a/{n}", "ENOENT") for n in range(30)],
            "Files that are not there are opened 30.0 times a step: 12 %",
        ),
        (
            "opened_again",
            "file_io",
            [(MAIN, 100 * US, "openat", "/etc/x.json", None), (MAIN, 2 * MS, "read", "/etc/x.json", None)],
            "One file is opened and read again 1.0 times a step: 21 %",
        ),
        (
            "spawn_in_loop",
            "process_spawn",
            [
                (MAIN, 900 * US, "vfork", None, None),
                (555, 500 * US, "execve", "/bin/true", None),
                (MAIN, 6 * MS, "wait4", None, None),
            ],
            "Another program is started 1.0 times a step: 69 %",
        ),
        (
            "sleeping",
            "idle_wait",
            [(MAIN, 3 * MS, "clock_nanosleep", None, None)],
            "The main thread sleeps 1.0 times a step, 3.0 ms each: 30 %",
        ),
        (
            "polling",
            "idle_wait",
            [(MAIN, 70 * US, "poll", "socket:[5]", None)] * 120,
            "The main thread asks whether there is something to do 120.0 times a step: 60 %",
        ),
        (
            "memory_calls",
            "memory_management",
            [(MAIN, 120 * US, name, None, None) for name in ("mmap", "munmap") for _ in range(10)],
            "Memory is taken from the kernel or given back 20.0 times a step: 20 %",
        ),
        (
            "connect_in_loop",
            "network_io",
            [
                (MAIN, 500 * US, "connect", "socket:[5]", None),
                (MAIN, 30 * US, "sendto", "socket:[5]", None),
                (MAIN, 5 * MS, "recvfrom", "socket:[5]", None),
            ],
            "A new connection is made 1.0 times a step: 5 %",
        ),
    ],
)
def test_a_habit_is_told_by_how_often_and_what_it_costs(
    tmp_path: Path, rule: str, category: str, calls: list[Any], title: str
) -> None:
    """With the same start-up before it, and a quick call of another kind from which strace's own part is known."""
    told = rules(report(tmp_path, spans([*start_up(), *every_step(*[QUICK] * 2, *calls)])))
    assert told[rule].title == f"{title} of the steady steps of a bare run"
    assert told[rule].category == category and told[rule].cause.startswith(f"{category}:")
    assert {one.category for one in told.values()} == {category}


def test_threads_that_wait_for_pythons_lock_are_known_by_its_five_milliseconds(tmp_path: Path) -> None:
    waits = [(thread, 5_100 * US, "futex", None, "ETIMEDOUT") for thread in (101, 102, 103)]
    calls = [(MAIN, step * STEP_NS, 8 * MS, "futex", None, None) for step in range(STEPS)]
    calls += [(thread, step * STEP_NS, *rest) for step in range(STEPS) for thread, *rest in waits]  # type: ignore[misc]
    (finding,) = found(report(tmp_path, spans([*calls, *every_step(QUICK)])))
    assert finding.cause == "gil_contention:futex" and finding.severity == "critical"
    assert finding.title.startswith("3 threads waited 105 times for Python's lock until they asked for it (5 ms): ")


def test_two_threads_that_pass_a_lock_to_and_fro_are_told(tmp_path: Path) -> None:
    calls = every_step(QUICK, *[(MAIN, 60 * US, "futex", None, None)] * 150)
    other = every_step(*[(101, 60 * US, "futex", None, None)] * 100)
    (finding,) = found(report(tmp_path, spans([*calls, *other])))
    assert (finding.rule, finding.category) == ("futex_convoy", "lock_contention")
    assert found(report(tmp_path, spans(calls))) == [], "nobody to share it with"


def test_answers_that_come_forty_milliseconds_late_are_told(tmp_path: Path) -> None:
    answer = (MAIN, 39_900 * US, "recvfrom", "TCP:[a->b]", None)
    pieces = [(MAIN, 30 * US, "sendto", "TCP:[a->b]", None)] * 2
    told = rules(report(tmp_path, spans(every_step(QUICK, *pieces, answer))))
    assert "35 of 35 answers came 40 ms late" in told["delayed_ack"].title
    assert "TCP_NODELAY" in told["delayed_ack"].advice
    assert "delayed_ack" not in rules(report(tmp_path, spans(every_step(QUICK, pieces[0], answer))))


def test_what_is_waited_for_in_the_data_phase_is_the_input_pipeline(tmp_path: Path) -> None:
    sleeps = spans(every_step(QUICK, (MAIN, 8 * MS, "clock_nanosleep", None, None)))
    (finding,) = found(report(tmp_path, sleeps, data_wait_ns=8_200_000))
    assert finding.category == finding.cause == "input_pipeline"
    phases = Table(
        "host_time",
        {"pid": [MAIN] * 2, "tid": [MAIN] * 2, "role": ["main"] * 2, "part": ["steady"] * 2,
         "phase": ["data", None], "state": ["sleep", "python"], "native": ["nanosleep (libc.so.6)", None],
         "total_ns": [300, 700]},
    )  # fmt: skip
    (finding,) = found(report(tmp_path, sleeps, phases))
    assert finding.category == "input_pipeline"
    assert finding.cost_pct == 30.0, "no more than a tool of less weight has seen of it"


# ---------------------------------------------------------------- sums


def sums(*rows: tuple[int | None, str, int, int, int | None], timed: str = "wall") -> Table:
    columns = ("pid", "thread", "name", "class", "count", "errors", "total_ns", "time")
    made = [(t, t, name, syscall_class(name), n, e, ns, timed) for t, name, n, e, ns in rows]
    return Table.of("syscalls", made, columns)


def summary(**more: tuple[int, int]) -> Table:
    """What start-up makes, in a summary of all processes, and more."""
    rows = [(None, name, count, count // 10, count * 30 * US) for name, count in START_UP.items() if name not in more]
    return sums(*rows, *((None, name, count, 0, count * ns) for name, (count, ns) in more.items()))


def test_a_start_up_alone_says_nothing_in_a_summary(tmp_path: Path) -> None:
    assert found(report(tmp_path, summary())) == []
    assert found(report(tmp_path, summary(futex=(90, 300 * MS)))) == [], "idle threads wait there"
    assert found(report(tmp_path, summary(newfstatat=(100_000, 30 * US)))) == [], "it imports five times as much"
    assert found(report(tmp_path, summary(clock_nanosleep=(400, 9 * MS)))) == [], "any thread may have slept"


def test_what_a_start_up_does_not_explain_is_told_of_a_summary(tmp_path: Path) -> None:
    (finding,) = found(report(tmp_path, summary(fsync=(STEPS, 4 * MS))))
    assert (finding.rule, finding.confidence) == ("sync_in_loop", "low")
    assert finding.cost_pct == pytest.approx(100 * STEPS * 3.97 / 350, rel=0.02)


def test_tiny_reads_are_told_by_the_bytes_of_their_file(tmp_path: Path) -> None:
    """Each costs little more than what strace adds: told by their number and the least that a call takes."""
    count = 2_000 * STEPS
    calls = sums((MAIN, "read", count, 0, count * 20 * US), (MAIN, "openat", 1400, 0, 1400 * 40 * US))
    columns = ("path", "count", "errors", "total_ns", "bytes", "names")
    where = Table.of("syscall_paths", [("/data/x", count, 0, count * 20 * US, 16 * count, "read,openat")], columns)
    (finding,) = found(report(tmp_path, calls, where))
    assert (finding.rule, finding.confidence, finding.where["path"]) == ("tiny_io", "medium", "/data/x")
    assert finding.title.startswith("Reads of 16 bytes on average enter the kernel 77,700 times in the whole run: ")
    assert finding.cost_pct == pytest.approx(6.66, abs=0.01)
    large = Table.of("syscall_paths", [("/data/x", count, 0, count * 20 * US, 4096 * count, "read,openat")], columns)
    assert found(report(tmp_path, calls, large)) == []


def test_counts_without_times_are_told_by_the_least_that_they_cost(tmp_path: Path) -> None:
    reads = Table.of("syscalls", [("read", "desc", 400_000)], ("name", "class", "count"))
    (finding,) = found(report(tmp_path, reads, collector="perf"))
    assert finding.rule == "tiny_io" and finding.severity == "minor", "nobody knows how many are of the steps"
    few = Table.of("syscalls", [("read", "desc", 20_000)], ("name", "class", "count"))
    assert found(report(tmp_path, few, collector="perf")) == []


def test_looks_that_cost_no_more_than_strace_adds_are_told_by_the_least_that_they_cost(tmp_path: Path) -> None:
    """A thousand files are looked at in each step; no other kind of call tells what strace's own part is."""
    looks = [(MAIN, 50 * US, "newfstatat", f"/data/{n}", None) for n in range(1000)]
    (finding,) = found(report(tmp_path, spans(every_step(*looks))))
    assert (finding.rule, finding.cost_pct) == ("stat_storm", 10.0), "1 µs each"


def test_a_program_without_steps_is_judged_by_its_run(tmp_path: Path) -> None:
    (finding,) = found(report(tmp_path, summary(fsync=(500, 4 * MS)), steps=0))
    assert (
        finding.title
        == "The program waits for the disk (fsync and its like) 500 times in the whole run: 33 % of a bare run"
    )
    assert found(report(tmp_path, summary(fsync=(20, 4 * MS)), steps=0)) == []


def test_the_imports_of_sixteen_workers_are_no_storm(tmp_path: Path) -> None:
    """Each was started as a program of its own; had they been forked, nothing in a summary told how many they are."""
    looks = (17 * 18_000, 30 * US)
    assert found(report(tmp_path / "a", summary(newfstatat=looks, execve=(17, MS)))) == []
    (finding,) = found(report(tmp_path / "b", summary(newfstatat=looks, execve=(1, MS))))
    assert finding.severity == "minor" and "288,000 times in the whole run" in finding.title


def test_processes_are_known_by_the_tables_too(tmp_path: Path) -> None:
    alive = Table.of("samples", [(STARTED_NS, "tree", "", "processes", 17.0)], clock="epoch")
    calls = (summary(newfstatat=(17 * 18_000, 30 * US), execve=(1, MS)), alive)
    assert found(report(tmp_path / "alive", *calls)) == []
    each = sums(*((pid, "newfstatat", 18_000, 0, 18_000 * 30 * US) for pid in range(500, 517)))
    assert found(report(tmp_path / "pids", each)) == []


def seen_by_samples(state: str, ns: int, native: str | None = "x (libc.so.6)") -> Table:
    columns = ("pid", "tid", "role", "part", "phase", "state", "native", "total_ns")
    rows = [(MAIN, MAIN, "main", "steady", None, state, native, ns)]
    return Table.of("host_time", [*rows, (MAIN, MAIN, "main", "steady", None, "python", None, 1000 - ns)], columns)


def test_samples_with_native_frames_bear_sums_out_and_limit_them(tmp_path: Path) -> None:
    """By their number alone these reads take all of the run."""
    reads = Table.of("syscalls", [("read", "desc", 400_000)], ("name", "class", "count"))
    (finding,) = found(report(tmp_path / "a", reads, seen_by_samples("file", 200), collector="perf"))
    assert (finding.severity, finding.cost_pct) == ("major", 20.0)
    assert found(report(tmp_path / "b", reads, seen_by_samples("file", 10), collector="perf")) == []
    without = report(tmp_path / "c", reads, seen_by_samples("file", 200, None), collector="perf")
    assert found(without)[0].severity == "minor"


def test_calls_for_memory_cost_no_more_than_samples_saw_of_them(tmp_path: Path) -> None:
    calls = spans(every_step(QUICK, *[(MAIN, 120 * US, "mmap", None, None)] * 20))
    assert found(report(tmp_path / "a", calls, seen_by_samples("memory", 50)))[0].cost_pct == 5.0
    assert found(report(tmp_path / "b", calls, seen_by_samples("file", 50))) == []


def test_an_event_loop_that_waits_is_not_polling(tmp_path: Path) -> None:
    """Its waits, of 75 us each on average beyond strace's part; and likewise in sums."""
    waits = [(MAIN, 95 * US, "epoll_wait", None, None)] * 100
    assert found(report(tmp_path / "a", spans(every_step(QUICK, *waits)))) == []
    calls = sums((MAIN, "epoll_wait", 20_000, 0, 20_000 * 95 * US), (MAIN, "lseek", 9000, 0, 9000 * 20 * US))
    assert found(report(tmp_path / "b", calls)) == []
    mixed = [*waits[:20], *[(MAIN, 40 * US, "epoll_wait", None, None)] * 100]
    (finding,) = found(report(tmp_path / "c", spans(every_step(QUICK, *mixed))))
    assert (finding.rule, finding.cause) == ("polling", "idle_wait:epoll_wait")
    assert "100.0 times a step: 20 %" in finding.title, "those that return at once"


def test_what_is_done_to_disks_in_two_ways_is_told_twice(tmp_path: Path) -> None:
    looks = [(MAIN, 60 * US, "stat", "/data/x", None)] * 60
    told = found(report(tmp_path, spans(every_step(QUICK, *looks, (MAIN, 2 * MS, "fsync", "/data/log", None)))))
    assert {one.cause for one in told} == {"file_io:newfstatat", "file_io:fsync"}, "as the kernel calls them"


def test_a_trace_that_keeps_only_the_longest_calls_is_not_taken_for_all(tmp_path: Path) -> None:
    some = spans(every_step(QUICK, (MAIN, 4 * MS, "fsync", "/data/log", None)))
    many = sums((MAIN, "fsync", 5, 0, 20 * MS), (MAIN, "lseek", 500_000, 0, 10**9))
    assert "sync_in_loop" not in rules(report(tmp_path, some, many))


def test_a_bent_pass_is_believed_less(tmp_path: Path) -> None:
    calls = spans(every_step(QUICK, (MAIN, 4 * MS, "fsync", "/data/log", None)))
    whole = report(tmp_path, calls, trust="distorted")
    assert found(whole)[0].confidence == "high", "its steps took as long as the bare ones"
    passes = (whole.passes[0], replace(whole.passes[1], slowdown=3.0, step_slowdown=3.0))
    assert found(replace(whole, passes=passes))[0].confidence == "medium"


def test_without_system_calls_it_abstains_and_says_what_would_feed_it(tmp_path: Path) -> None:
    (said,) = system_calls(report(tmp_path))
    assert isinstance(said, Abstention) and "use: strace" in said.feed
    imported = report(tmp_path)
    assert list(system_calls(replace(imported, run=replace(imported.run, imported=True)))) == []
