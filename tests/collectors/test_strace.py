"""collectors/strace.py: its options, the command lines it asks for, what it makes of strace's words and files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.collectors.strace import COST_S, Strace
from orchestrator.errors import ParseError
from orchestrator.machine import Permission
from orchestrator.model import (
    Artifact,
    Attached,
    Beside,
    Capture,
    Check,
    Exit,
    Job,
    Launch,
    Target,
    TargetRun,
    Tool,
    Window,
)

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "strace"
FEATURES = frozenset({"seccomp", "pgroup", "columns"})
ALL = "%file,%network,%process,%memory,%desc,/^futex"
COLUMNS = "name,time-percent,total-time,min-time,max-time,avg-time,calls,errors"


def strace(**options: Any) -> Strace:
    return Strace.model_validate({"use": "strace", **options})


def job(features: frozenset[str] = FEATURES, version: str = "6.1", **more: Any) -> Job:
    tool = Tool("strace", "/usr/bin/strace", version, features)
    return Job("p2", "/scratch/p2 strace", Target(("python", "x.py"), "/usr/bin/python", "/", {}), tool, **more)


def only(launch: Launch) -> Beside:
    (beside,) = launch.beside
    assert launch.wrap is None
    return beside


NOTHING_LEFT = {"leftovers": 0}

# ---------------------------------------------------------------- options


def test_all_classes_and_a_summary_are_the_default() -> None:
    assert strace().classes == ("file", "network", "process", "memory", "desc", "futex")
    assert (strace().mode, strace().time, strace().label(), strace(mode="trace").label()) == (
        "summary", "wall", "strace", "strace-trace",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"classes": ["files"]}, "'file', 'network', 'process', 'memory', 'desc' or 'futex'"),
        ({"classes": []}, "at least 1 item"),
        ({"classes": ["file", "desc", "file"]}, "file stands there twice"),
        ({"mode": "trace", "time": "system"}, "a trace has wall times only"),
        ({"mode": "traces"}, "'summary' or 'trace'"),
        ({"size_cap": "2 apples"}, "apples"),
        ({"events": -1}, "greater than or equal to 0"),
        ({"follow": True}, "Extra inputs"),
    ],
)
def test_wrong_options_say_how_to_write_them(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        strace(**options)


# ---------------------------------------------------------------- command lines


def test_where_the_bare_run_left_nothing_behind_the_target_is_started_under_a_filter() -> None:
    launch = strace().launch(job(facts=NOTHING_LEFT))
    assert launch.wrap is not None and not launch.beside
    assert launch.wrap.argv == (
        "/usr/bin/strace", "-DD", "-f", "--seccomp-bpf", "-e", f"trace={ALL},execve,set_robust_list",
        "-c", "-w", "-U", COLUMNS, "-o", "/scratch/p2 strace/summary.txt", "--",
    )  # fmt: skip
    assert launch.wrap.keeps_child and launch.wrap.order == 80 and launch.notes == ()


@pytest.mark.parametrize(("facts", "said"), [({}, "no bare run has shown yet"), ({"leftovers": 2}, "has shown that")])
def test_else_it_attaches_at_the_gate_and_can_be_taken_away(facts: dict[str, Any], said: str) -> None:
    launch = strace(classes=["file"]).launch(job(facts=facts))
    beside = only(launch)
    assert beside.argv == (
        "/usr/bin/strace", "-f", "-e", "trace=%file,execve", "-c", "-w", "-U", COLUMNS,
        "-o", "/scratch/p2 strace/summary.txt", "-p", "{pids}",
    )  # fmt: skip
    assert (beside.when, beside.ready, beside.signal, beside.grace_s) == ("gate", "tracer", "SIGINT", 10.0)
    (note,) = launch.notes
    assert said in note


def test_an_older_strace_is_asked_for_what_it_knows() -> None:
    launch = strace().launch(job(frozenset(), "4.21", facts=NOTHING_LEFT))
    assert not {"--seccomp-bpf", "-DD", "-U"} & set(only(launch).argv)
    assert [note.split(": ")[-1] for note in launch.notes] == [
        "strace 4.21 lacks --seccomp-bpf or -DD",
        "shortest and longest times are unknown",
    ]


def test_system_time_is_what_strace_gives_without_w() -> None:
    assert "-w" not in only(strace(time="system").launch(job())).argv


def test_a_running_process_is_attached_to_with_all_its_children() -> None:
    launch = strace().launch(job(pids=(11, 12), facts=NOTHING_LEFT))
    beside = only(launch)
    assert beside.when == "start" and beside.argv[-2:] == ("-p", "{pids}") and launch.notes == ()
    assert f"trace={ALL}" in beside.argv, "it will call no execve"


def test_a_window_is_strace_coming_and_going() -> None:
    beside = only(strace().launch(job(window=Window(5, 10), facts=NOTHING_LEFT)))
    assert beside.when == "window" and beside.argv[-1] == "{pids}" and "--seccomp-bpf" not in beside.argv


def test_a_trace_is_capped_in_size_and_time_from_outside() -> None:
    launch = strace(mode="trace", strings=80, size_cap="3MiB", time_cap="1m").launch(job(facts=NOTHING_LEFT))
    beside = only(launch)
    assert beside.argv[-9:-2] == ("-ttt", "-T", "-yy", "-s", "80", "-o", "/scratch/p2 strace/trace.log")
    assert (beside.size_cap_bytes, beside.size_path, beside.time_cap_s) == (3 << 20, "trace.log", 60.0)
    assert only(strace(mode="trace").launch(job())).size_cap_bytes == 200 << 20


def test_a_trace_without_caps_may_be_filtered_too() -> None:
    launch = strace(mode="trace", size_cap=None, time_cap=None).launch(job(facts=NOTHING_LEFT))
    assert launch.wrap is not None and "--seccomp-bpf" in launch.wrap.argv and "-c" not in launch.wrap.argv


def test_the_summary_or_the_log_is_what_must_be_left() -> None:
    for mode, name in (("summary", "summary.txt"), ("trace", "trace.log")):
        (needed,) = (e for e in strace(mode=mode).launch(job()).artifacts if e.required)
        assert (needed.role, needed.glob, needed.holds_env) == (mode, name, False)


# ---------------------------------------------------------------- processes that run already

RANKS = (
    Attached(9397, ("torchrun",), 9397, is_python=True, wrapper="torchrun"),
    Attached(9492, ("python",), 9492, parent=9397, rank=0),
    Attached(9493, ("python",), 9493, parent=9397, rank=1),
    Attached(9500, ("sh",), 9493, parent=9493, rank=1),
)


def test_each_family_has_a_strace_and_a_file_of_its_own() -> None:
    launch = strace().launch(job(pids=(9397,), attached=RANKS))
    assert [b.argv[-4:] for b in launch.beside] == [
        ("-o", "/scratch/p2 strace/summary.9492.txt", "-p", "9492"),
        ("-o", "/scratch/p2 strace/summary.9493.txt", "-p", "9493,9500"),
        ("-o", "/scratch/p2 strace/summary.9397.txt", "-p", "9397"),
    ]
    assert launch.artifacts[0].glob == "summary.*.txt" and launch.notes == ()
    one = strace().launch(job(pids=(9493,), attached=RANKS[2:]))
    assert only(one).argv[-3:] == ("/scratch/p2 strace/summary.txt", "-p", "{pids}")
    logs = strace(mode="trace").launch(job(pids=(9397,), attached=RANKS)).beside
    assert [b.size_path for b in logs] == ["trace.9492.log", "trace.9493.log", "trace.9397.log"]


def test_more_families_than_sixteen_are_not_all_looked_at() -> None:
    many = tuple(Attached(100 + n, ("python",), 100 + n, rank=n) for n in reversed(range(18)))
    launch = strace().launch(job(pids=(1,), attached=many))
    assert [b.argv[-1] for b in launch.beside] == [str(100 + n) for n in range(16)]
    assert launch.notes == ("of 18 groups of processes the first 16 were looked at; not: rank 16, rank 17",)


def test_who_has_a_tracer_already_is_left_out() -> None:
    traced = (*RANKS[:2], replace(RANKS[2], tracer_before=os.getpid()), RANKS[3])
    launch = strace().launch(job(pids=(9397,), attached=traced))
    assert [b.argv[-1] for b in launch.beside] == ["9492", "9397"]
    (note,) = launch.notes
    assert re.fullmatch(
        r"rank 1 was left out: process 9493 is traced by \S+ \(process \d+\), and a process has .*", note
    )


def test_where_all_have_a_tracer_it_is_blocked_and_says_by_whom() -> None:
    traced = tuple(replace(one, tracer_before=os.getpid()) for one in RANKS)
    allowed = Permission(True, "")
    machine: Any = SimpleNamespace(attached=traced, ptrace_of=lambda pids: allowed)
    check = strace().obstacle_to_attach(machine)
    assert (
        check
        and check.verdict == "blocked"
        and f"(process {os.getpid()})" in check.message
        and "end " in str(check.fix)
    )
    machine.attached = (RANKS[0], *traced[1:])
    assert strace().obstacle_to_attach(machine) is None, "one can be traced"
    machine.ptrace_of = lambda pids: Permission(False, "process 9397 may not be traced", "do this")
    assert strace().obstacle_to_attach(machine) == Check(
        "strace", "blocked", "process 9397 may not be traced", "do this"
    )


BUSY = {"syscalls_per_s": 500_000.0}


def test_what_would_slow_a_running_program_down_too_much_is_not_run() -> None:
    why = strace().declines(BUSY, True)
    assert why == (
        "it would make the program about 11.0 times as slow: perf has counted 500,000 system calls a second; "
        "--set collectors.strace.max_slowdown=null runs it all the same"
    )
    assert strace(max_slowdown=5).declines(BUSY, False) == why, "where the plan says so, also for one that is started"
    assert "21.0 times" in str(strace(mode="trace").declines(BUSY, True)), "to log a call costs more than to count it"
    for collector, facts, attaching in (
        (strace(), {"syscalls_per_s": 10_000.0}, True),
        (strace(), {}, True),
        (strace(), BUSY, False),
        (strace(max_slowdown=12), BUSY, True),
        (strace(max_slowdown=None), BUSY, True),
    ):
        assert collector.declines(facts, attaching) is None


def test_what_is_to_be_expected_is_said_before_it_runs() -> None:
    (note,) = strace().launch(job(facts={**NOTHING_LEFT, "syscalls_per_s": 10_000.0})).notes
    assert note.startswith("perf had counted 10,000 system calls a second before: about 1.20 times as slow")


# ---------------------------------------------------------------- what strace says


@pytest.mark.parametrize(
    ("said", "status", "reason"),
    [
        (
            "strace: attach: ptrace(PTRACE_SEIZE, 19443): Operation not permitted\n",
            "blocked",
            "strace may not trace process 19443: another tool traces it already, or it belongs to another user",
        ),
        ("strace: test_ptrace_get: PTRACE_TRACEME: Operation not permitted", "blocked", "may not trace the target"),
        (
            "strace: attach: ptrace(PTRACE_SEIZE, 999999): No such process\n",
            "empty",
            "process 999999 had ended before strace could attach to it",
        ),
        ("strace: Can't fopen '/nonexist/x': No such file or directory\n", "tool_failed", "Can't fopen '/nonexist/x'"),
        ("strace: invalid system call 'x'\n", "tool_failed", "strace: invalid system call 'x'"),
        ("strace: Process 7 attached\nstrace: Process 7 detached\n", "empty", "no system call of the chosen classes"),
        (
            "strace: Process 7 attached\nstrace: Process 8 attached\nkilled after 10 s",
            "tool_failed",
            "before 6.7 it hangs",
        ),
    ],
)
def test_words_without_a_file_tell_the_status(said: str, status: str, reason: str) -> None:
    sign = next(sign for sign in strace().launch(job()).signs if re.search(sign.pattern, said))
    hit = re.search(sign.pattern, said)
    assert hit and sign.status == status
    assert reason in sign.reason.format(*hit.groups(default="?"))


# ---------------------------------------------------------------- checks


def machine(path: str | None, allowed: bool) -> Any:
    permission = SimpleNamespace(allowed=allowed, why="tracing a child was refused", fix="add SYS_PTRACE")
    return SimpleNamespace(tool=lambda _: Tool("strace", path, "6.1"), given={}.get, ptrace=lambda: permission)


def test_a_refused_trace_blocks_and_a_missing_strace_is_missing() -> None:
    assert [c.verdict for c in strace().checks(machine("/usr/bin/strace", True))] == ["ok"]
    (blocked,) = strace().checks(machine("/usr/bin/strace", False))
    assert (blocked.verdict, blocked.message, blocked.fix) == (
        "blocked", "tracing a child was refused", "add SYS_PTRACE",
    )  # fmt: skip
    (missing,) = strace().checks(machine(None, False))
    assert missing.verdict == "missing" and "apt-get install strace" in str(missing.fix)


# ---------------------------------------------------------------- reading


def capture(root: Path, role: str, name: str, wall_s: float = 0.1, pid: int | None = None) -> Capture:
    run = TargetRun(("./worker",), pid, 10**18, 10**18 + round(wall_s * 1e9), wall_s, Exit(7))
    return Capture(
        "p2-strace", "p2", "strace", "ok", started_ns=run.started_ns, ended_ns=run.ended_ns, run=run, root=root,
        artifacts=(Artifact(role, name, f"strace-{role}", 1, "", 0),),
    )  # fmt: skip


def of_ranks(mode: str, *files: Path, attached: tuple[Attached, ...] = RANKS) -> Capture:
    found = capture(Path("/"), mode, "x", wall_s=3.07)
    assert found.run is not None
    artifacts = tuple(Artifact(mode, str(path), mode, 1, "", 0) for path in files)
    return replace(found, artifacts=artifacts, run=replace(found.run, attached=attached))


def test_the_tables_of_ranks_are_what_strace_printed_for_each() -> None:
    parsed = strace().parse(of_ranks("summary", *sorted((GOLDEN / "ranks").iterdir())))
    rows = [row for table in parsed.tables for row in table.rows()]
    writes = [(row.get("rank"), row["pid"], row["count"], row["total_ns"]) for row in rows if row["name"] == "write"]
    assert writes == [(None, 9397, 6, 237_000), (0, 9492, 2740, 86_679_000), (1, 9493, 4560, writes[2][3])]
    assert parsed.status is None
    assert [note.partition(" system")[0] for note in parsed.notes] == [
        "process 9397: 100", "rank 0: 2,740", "rank 1: 4,560",
    ]  # fmt: skip


def test_one_bad_summary_does_not_spoil_the_others(tmp_path: Path) -> None:
    (tmp_path / "summary.9493.txt").write_text("Killed\n")
    parsed = strace().parse(of_ranks("summary", GOLDEN / "ranks" / "summary.9492.txt", tmp_path / "summary.9493.txt"))
    assert parsed.status == "degraded" and "no strace summary" in str(parsed.reason) and len(parsed.tables) == 1
    with pytest.raises(ParseError, match="no strace summary"):
        strace().parse(of_ranks("summary", tmp_path / "summary.9493.txt"))


def test_logs_of_ranks_tell_threads_and_ranks_apart(tmp_path: Path) -> None:
    for lead in (9492, 9493):
        (tmp_path / f"trace.{lead}.log").write_text(
            f'{lead} 1700000000.000100 write(3</dev/null>, "x", 1) = 1 <0.000010>\n'
            f'{lead + 7} 1700000000.000200 write(3</dev/null>, "x", 1) = 1 <0.000020>\n'
        )
    files = sorted(tmp_path.iterdir())
    parsed = strace(mode="trace").parse(of_ranks("trace", *files))
    calls = [row for table in parsed.tables if table.name == "syscalls" for row in table.rows()]
    assert {(row["rank"], row["thread"]) for row in calls} == {(0, 9492), (0, 9499), (1, 9493), (1, 9500)}
    assert all(set(table.columns["rank"]) in ({0}, {1}) for table in parsed.tables)
    assert parsed.notes[0].startswith("rank 0: 2 system calls")


def test_a_summary_becomes_one_table() -> None:
    parsed = strace().parse(capture(GOLDEN, "summary", "summary_wall.txt", wall_s=0.1))
    (table,) = parsed.tables
    assert table.name == "syscalls" and parsed.status is None
    total = int((GOLDEN / "summary_wall.txt").read_text().split()[-2])
    assert sum(table.columns["count"]) == total
    slower = 1 / (1 - total * COST_S["summary"] / 0.1)
    assert parsed.notes == (
        f"{total:,} system calls in 100 ms, {total / 0.1:,.0f} a second; at about 20 us for each, strace made the "
        f"target at least {slower:.2f} times as slow (estimate)",
    )


def test_a_target_that_did_nothing_but_calls_is_not_given_an_absurd_figure() -> None:
    parsed = strace().parse(capture(GOLDEN, "summary", "summary_wall.txt", wall_s=0.001))
    assert "at least 10 times as slow" in parsed.notes[0]


@pytest.mark.parametrize(("filtered", "said"), [(True, "at least 1.02 times"), (False, "at all others as well")])
def test_the_slowdown_is_estimated_only_where_all_stops_were_counted(filtered: bool, said: str) -> None:
    command = ("strace", "--seccomp-bpf") if filtered else ("strace",)
    found = replace(capture(GOLDEN, "summary", "summary_wall.txt"), commands=(command,))
    (note,) = strace(classes=["file", "desc"]).parse(found).notes
    assert said in note


def test_system_time_is_called_so() -> None:
    (table,) = strace(time="system").parse(capture(GOLDEN, "summary", "summary_default.txt")).tables
    assert set(table.columns["time"]) == {"system"}


def test_a_cut_summary_is_degraded(tmp_path: Path) -> None:
    text = (GOLDEN / "summary_wall.txt").read_text()
    (tmp_path / "summary.txt").write_text(text[: text.rindex("total")])
    parsed = strace().parse(capture(tmp_path, "summary", "summary.txt"))
    assert parsed.status == "degraded" and "cut" in str(parsed.reason)
    assert len(parsed.tables[0]) == text.count("\n") - 4


def test_a_trace_becomes_four_tables() -> None:
    parsed = strace(mode="trace", events=5).parse(capture(GOLDEN, "trace", "trace.log"))
    assert [(table.name, table.clock) for table in parsed.tables] == [
        ("syscalls", "relative"), ("syscall_paths", "relative"), ("syscall_events", "epoch"),
        ("syscall_spans", "epoch"),
    ]  # fmt: skip
    assert len(parsed.tables[2]) == 5 and parsed.status is None
    assert "at about 40 us for each" in parsed.notes[0]
    assert parsed.notes[1].startswith("3 calls had not returned"), "tgkill of itself, exit, exit_group"


def test_the_pid_of_the_run_is_a_process(tmp_path: Path) -> None:
    (tmp_path / "trace.log").write_text("7 1700000000.000001 close(3) = 0 <0.000010>\n")
    (table, *_) = strace(mode="trace").parse(capture(tmp_path, "trace", "trace.log", pid=7)).tables
    assert table.columns["pid"] == [7]


def test_a_log_full_of_other_things_is_degraded(tmp_path: Path) -> None:
    (tmp_path / "trace.log").write_text((GOLDEN / "trace.log").read_text() + "hello\n" * 9)
    parsed = strace(mode="trace").parse(capture(tmp_path, "trace", "trace.log"))
    assert parsed.status == "degraded" and str(parsed.reason).startswith("9 lines could not be read")


def test_a_log_in_which_no_call_ended_is_empty() -> None:
    parsed = strace(mode="trace").parse(capture(GOLDEN, "trace", "attached.log"))
    assert (parsed.status, parsed.tables) == ("empty", ())
    assert parsed.notes == ("1 calls had not returned when the log or their thread ended; the tables leave them out",)


def test_a_file_of_something_else_is_an_error() -> None:
    with pytest.raises(ParseError, match="is no strace log"):
        strace(mode="trace").parse(capture(GOLDEN, "trace", "worker.c"))
    with pytest.raises(ParseError, match="left no"):
        strace().parse(capture(GOLDEN, "trace", "trace.log"))
