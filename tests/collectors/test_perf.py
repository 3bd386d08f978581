"""collectors/perf.py: its options, the command lines it asks for, what it makes of perf's words and files."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli import script
from pydantic import ValidationError

from orchestrator.collectors import perf as perf_module
from orchestrator.collectors.perf import HARDWARE, SOFTWARE, Perf
from orchestrator.errors import ParseError
from orchestrator.machine import Machine
from orchestrator.model import Artifact, Attached, Beside, Capture, Exit, Job, Launch, Target, TargetRun, Tool, Window

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "perf"
FEATURES = frozenset({"inline", "lost", "ns"})
ENV = ("env", "LC_ALL=C", "PERF_CONFIG=/dev/null", "DEBUGINFOD_URLS=")
DEFAULT = ",".join((*SOFTWARE, *HARDWARE))
FIELDS = "comm,pid,tid,time,event,period,ip,sym,dso"


def perf(**options: Any) -> Perf:
    return Perf.model_validate({"use": "perf", **options})


def job(features: frozenset[str] = FEATURES, version: str | None = "6.1.187", **more: Any) -> Job:
    tool = Tool("perf", "/usr/bin/perf", version, features)
    return Job("p2", "/scratch/p2 perf", Target(("python", "x.py"), "/usr/bin/python", "/", {}), tool, **more)


def only(launch: Launch) -> Beside:
    (beside,) = launch.beside
    assert launch.wrap is None
    return beside


# ---------------------------------------------------------------- options


def test_counters_are_the_default_and_the_modes_are_told_apart() -> None:
    assert (perf().mode, perf().label(), perf(mode="record").label()) == ("stat", "perf-stat", "perf-record")
    assert (perf().rate, perf().call_graph, perf().stack_size) == (99.0, "dwarf", 16384)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "top"}, "'stat', 'syscalls' or 'record'"),
        ({"mode": "syscalls", "events": ["cache-misses"]}, "syscalls counts system calls: give names as strace"),
        ({"events": ["-p"]}, "'-p' is no event"),
        ({"events": ["a b"]}, "'a b' is no event"),
        ({"rate": 99.5}, "perf takes whole numbers only"),
        ({"rate": 0}, "write 1"),
        ({"call_graph": "stack"}, "'dwarf', 'fp', 'lbr' or 'none'"),
        ({"stack_size": "64KiB"}, "less than or equal to 65528"),
        ({"mode": "record", "events": ["cache-misses"]}, "record samples time: give one of cpu-clock"),
        ({"mode": "record", "events": ["cycles", "cpu-clock"]}, "record samples time"),
        ({"follow": True}, "Extra inputs"),
    ],
)
def test_wrong_options_say_how_to_write_them(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        perf(**options)


# ---------------------------------------------------------------- command lines


def test_it_attaches_at_the_gate_and_waits_until_perf_counts() -> None:
    beside = only(perf().launch(job()))
    assert beside.argv == (
        *ENV, "/usr/bin/perf", "stat", "-x;", "-D", "1", "-e", DEFAULT, "-o", "/scratch/p2 perf/counters.csv",
        "-p", "{pids}",
    )  # fmt: skip
    assert (beside.when, beside.ready, beside.ready_value, beside.signal) == (
        "gate", "says", "Events enabled", "SIGINT",
    )  # fmt: skip


@pytest.mark.parametrize("version", ["5.4.0", "4.18", None])
def test_an_older_perf_does_not_say_so(version: str | None) -> None:
    assert only(perf().launch(job(version=version))).ready == "fds"


def test_samples_are_taken_with_stacks_and_a_clock_and_become_text() -> None:
    launch = perf(mode="record", size_cap="1MiB", time_cap="30s").launch(job())
    beside = only(launch)
    assert beside.argv[5:] == (
        "record", "-D", "1", "-N", "-k", "CLOCK_MONOTONIC", "-F", "99", "--call-graph", "dwarf,16384",
        "-o", "/scratch/p2 perf/perf.data", "-p", "{pids}",
    )  # fmt: skip
    assert (beside.size_cap_bytes, beside.size_path, beside.time_cap_s) == (1 << 20, "perf.data", 30.0)
    (after,) = launch.after
    assert after.produces == "script.txt"
    assert after.argv == (
        "sh", "-c",
        f'"$@" script --header --no-inline --show-lost-events --ns --max-stack 1024 -F {FIELDS} -i perf.data '
        "| head -c 1048576 >script.txt",
        "sh", *ENV, "/usr/bin/perf",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"call_graph": "fp", "rate": "1kHz"}, ("-F", "1000", "--call-graph", "fp")),
        ({"call_graph": "none"}, ("-F", "99")),
        ({"stack_size": 1001}, ("-F", "99", "--call-graph", "dwarf,1008")),
        ({"call_graph": "lbr", "events": ["cycles:u"]}, ("-F", "99", "-e", "cycles:u", "--call-graph", "lbr")),
    ],
)
def test_what_is_sampled_and_how_is_the_plans(options: dict[str, Any], words: tuple[str, ...]) -> None:
    argv = only(perf(mode="record", **options).launch(job())).argv
    assert argv[argv.index("-F") : argv.index("-o")] == words


def test_an_older_perf_is_asked_for_what_it_knows() -> None:
    (after,) = perf(mode="record").launch(job(frozenset())).after
    assert not any(option in after.argv[2] for option in ("--no-inline", "--show-lost-events", "--ns"))


@pytest.mark.parametrize("mode", ["stat", "record"])
def test_running_processes_and_windows(mode: str) -> None:
    assert only(perf(mode=mode).launch(job(pids=(11, 12)))).when == "start"
    assert only(perf(mode=mode).launch(job(window=Window(5, 10)))).when == "window"


def test_copies_of_the_stack_may_hold_the_environment() -> None:
    holds = {
        graph: next(
            e.holds_env for e in perf(mode="record", call_graph=graph).launch(job()).artifacts if e.role == "data"
        )
        for graph in ("dwarf", "fp")
    }
    assert holds == {"dwarf": True, "fp": False}


# ---------------------------------------------------------------- system calls

RANKS = (
    Attached(9397, ("torchrun",), 9397, is_python=True, wrapper="torchrun"),
    Attached(9492, ("python",), 9492, parent=9397, rank=0),
    Attached(9493, ("python",), 9493, parent=9397, rank=1),
    Attached(9500, ("sh",), 9493, parent=9493, rank=1),
)


@pytest.fixture
def calls_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that knows three of the usual calls, and processes of two threads."""
    known = {"/sys/kernel/tracing/events/syscalls": ["sys_enter_newstat", "sys_enter_write", "sys_enter_futex", "x"]}
    monkeypatch.setattr(
        perf_module.process, "names_in", lambda f: ["1", "2"] if f.startswith("/proc") else known.get(f, [])
    )


@pytest.mark.usefixtures("calls_here")
def test_system_calls_are_counted_by_name_and_in_all() -> None:
    beside = only(perf(mode="syscalls").launch(job()))
    events = "task-clock,raw_syscalls:sys_enter,syscalls:sys_enter_newstat,syscalls:sys_enter_write"
    assert beside.argv[5:] == (
        "stat", "-x;", "-D", "1", "-e", f"{events},syscalls:sys_enter_futex",
        "-o", "/scratch/p2 perf/syscalls.csv", "-p", "{pids}",
    )  # fmt: skip
    assert (beside.when, beside.ready_value, perf(mode="syscalls").label()) == (
        "gate", "Events enabled", "perf-syscalls",
    )  # fmt: skip
    chosen = only(perf(mode="syscalls", events=["fstat", "getppid"]).launch(job())).argv[10]
    assert chosen.endswith("sys_enter,syscalls:sys_enter_newfstat,syscalls:sys_enter_getppid"), "whether known or not"


@pytest.mark.usefixtures("calls_here")
def test_each_family_has_a_perf_of_its_own_the_ranks_first() -> None:
    launch = perf(mode="syscalls").launch(job(pids=(9397,), attached=RANKS))
    assert [b.argv[-3:] for b in launch.beside] == [
        ("/scratch/p2 perf/syscalls.9492.csv", "-p", "9492"),
        ("/scratch/p2 perf/syscalls.9493.csv", "-p", "9493,9500"),
        ("/scratch/p2 perf/syscalls.9397.csv", "-p", "9397"),
    ]
    assert only(perf(mode="syscalls").launch(job(pids=(9493,), attached=RANKS[2:]))).argv[-1] == "{pids}"


@pytest.mark.usefixtures("calls_here")
def test_where_descriptors_are_few_only_the_total_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_module, "_descriptors", lambda: 19)
    launch = perf(mode="syscalls").launch(job(pids=(9397,), attached=RANKS))
    assert {b.argv[10] for b in launch.beside} == {"task-clock,raw_syscalls:sys_enter"}
    assert "so many threads run" in launch.notes[0]


def counted(*files: Path, attached: tuple[Attached, ...] = RANKS) -> Capture:
    run = TargetRun(("x",), 9397, 10**18, 10**18 + 3 * 10**9, 3.0, None, attached=attached)
    artifacts = tuple(Artifact("syscalls", str(path), "perf-stat", 1, "", 0) for path in files)
    return Capture(
        "p2", "p2", "perf", "ok", started_ns=run.started_ns, ended_ns=run.ended_ns, run=run, artifacts=artifacts
    )


def test_counts_become_the_table_of_system_calls_with_nothing_but_counts() -> None:
    found = counted(*sorted((GOLDEN / "ranks").iterdir()))
    parsed = perf(mode="syscalls").parse(found)
    rows = [row for table in parsed.tables for row in table.rows()]
    writes = [(row.get("rank"), row["pid"], row["class"], row["count"]) for row in rows if row["name"] == "write"]
    assert writes[-2:] == [(0, 9492, "desc", 2980), (1, 9493, "desc", 5920)]
    assert {row["name"]: row["class"] for row in rows}["clock_nanosleep"] == "other"
    assert all(row["count"] and row["errors"] is row["total_ns"] is row["time"] is None for row in rows)
    rate = parsed.metrics["syscalls_per_s"]
    assert rate.unit == "1/s" and rate.n == 3 and 3000 < (rate.value or 0) < 3200
    assert " system calls, " in parsed.notes[0] and parsed.status is None
    (told,) = perf(mode="syscalls").tells(found).values()
    assert told == pytest.approx(6068 / 2.95, rel=0.05), "of the rank that makes most"
    assert perf().tells(counted()) == {}


def test_who_stands_still_makes_no_system_call(tmp_path: Path) -> None:
    parsed = perf(mode="syscalls").parse(counted(GOLDEN / "syscalls_stopped.csv", attached=()))
    assert (parsed.status, parsed.reason) == ("empty", "the target was never on a processor while perf counted")
    (tmp_path / "syscalls.csv").write_text(
        "5.0;msec;task-clock;1;100.00;0.1;CPUs utilized\n0;;raw_syscalls:sys_enter;1;100;;\n"
    )
    parsed = perf(mode="syscalls").parse(counted(tmp_path / "syscalls.csv"))
    assert (parsed.status, parsed.reason) == ("empty", "the target made no system call while perf counted")


@pytest.mark.parametrize(
    ("said", "root", "message", "fix"),
    [
        ("no_tracepoints", False, "only root may read the kernel's tracepoints", "run profrun as root"),
        ("no_tracepoints", True, "tracefs is not mounted", "mount -t tracefs"),
        ("no_such_call", True, "this kernel can't count the call nothing", "leave it out of `events`"),
    ],
)
def test_why_system_calls_can_not_be_counted(said: str, root: bool, message: str, fix: str) -> None:
    machine: Any = SimpleNamespace(is_root=root, in_container=lambda: None)
    check = perf(mode="syscalls")._refused((GOLDEN / "said" / f"{said}.txt").read_text(), machine)
    assert message in check.message and fix in str(check.fix)


def test_samples_bear_the_rank_of_their_process() -> None:
    found = capture("script", GOLDEN / "forked.txt")
    assert found.run is not None
    (pid, *_) = sorted(set(perf(mode="record").parse(found).tables[0].columns["pid"]))
    ranked = replace(found, run=replace(found.run, attached=(Attached(pid, ("x",), pid, rank=5),)))
    for table in perf(mode="record").parse(ranked).tables:
        assert {row["rank"] for row in table.rows() if row["pid"] == pid} == {5}
        assert {row["rank"] for row in table.rows() if row["pid"] != pid} == {None}


# ---------------------------------------------------------------- what perf says


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("refused_stat", "blocked", "sudo sysctl kernel.perf_event_paranoid=1 (it is 2)"),
        ("refused_record", "blocked", "sudo sysctl kernel.perf_event_paranoid=1 (it is 2)"),
        ("no_process_stat", "empty", "had ended before perf could attach"),
        ("no_process_record", "empty", "had ended before perf could attach"),
        ("unknown_event", "tool_failed", "perf does not know the event foo"),
        ("not_supported", "tool_failed", "can't count the event instructions"),
        ("no_branches", "tool_failed", "use call_graph: dwarf"),
        ("disk_full_record", "tool_failed", "the disk is full"),
    ],
)
def test_words_without_a_file_tell_the_status(name: str, status: str, reason: str) -> None:
    said = (GOLDEN / "said" / f"{name}.txt").read_text()
    signs = perf().launch(job(facts={"perf_event_paranoid": 2})).signs
    sign = next(sign for sign in signs if re.search(sign.pattern, said))
    hit = re.search(sign.pattern, said)
    assert hit and sign.status == status
    assert reason in sign.reason.format(*hit.groups(default="?"))


@pytest.mark.parametrize(
    ("facts", "pids", "said"),
    [({"container": "docker"}, (), "--cap-add PERFMON"), ({}, (7,), "as the user who owns it"), ({}, (), "sysctl")],
)
def test_a_refusal_names_the_step_that_helps_here(
    facts: dict[str, Any], pids: tuple[int, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    signs = perf().launch(job(facts=facts, pids=pids)).signs
    assert said in next(sign.reason for sign in signs if sign.status == "blocked")


# ---------------------------------------------------------------- checks


def checked(folder: Path, body: str, **options: Any) -> list[tuple[str, str, str | None]]:
    """What the checks say of a perf that is this script; it answers as version 6.1 when it gets there."""
    path = script(folder / "perf", f'#!/bin/sh\n{body}\ncase "$1" in --version) echo "perf version 6.1.1";; esac\n')
    machine = Machine({"perf": str(path)})
    return [(check.verdict, check.message, check.fix) for check in perf(**options).checks(machine)]


def saying(name: str) -> str:
    return f'case "$1" in stat|record) cat "{GOLDEN}/said/{name}.txt" >&2; exit 255;; esac'


def test_a_missing_perf_is_missing(tmp_path: Path) -> None:
    (check,) = perf().checks(Machine({"perf": str(tmp_path / "none")}))
    assert check.verdict == "missing"


def test_a_perf_for_another_kernel_is_missing_with_the_package_that_helps(tmp_path: Path) -> None:
    ubuntu = (
        'printf "WARNING: perf not found for kernel 5.15.0-101\\n\\n  You may need to install the following packages '
        'for this specific kernel:\\n    linux-tools-5.15.0-101-generic\\n" >&2; exit 2'
    )
    ((verdict, said, fix),) = checked(tmp_path, ubuntu)
    assert verdict == "missing" and "no perf for the running kernel" in said
    assert str(fix).startswith("sudo apt-get install linux-tools-5.15.0-101-generic")
    ((verdict, said, fix),) = checked(tmp_path, "exit 3")
    assert verdict == "missing" and "does not say its version" in said and "linux-perf" in str(fix)


def test_a_refused_perf_is_blocked_with_the_step_that_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "is_root", False)
    monkeypatch.setattr(Machine, "in_container", lambda _: None)
    monkeypatch.setattr(Machine, "perf_event_paranoid", lambda _: 3)
    said = "perf may not count events here (kernel.perf_event_paranoid is 3)"
    assert checked(tmp_path, saying("refused_stat")) == [("blocked", said, "sudo sysctl kernel.perf_event_paranoid=1")]
    monkeypatch.setattr(Machine, "in_container", lambda _: "docker")
    monkeypatch.setattr(Machine, "is_root", True)
    ((_, _, fix),) = checked(tmp_path, saying("refused_stat"))
    assert "--cap-add PERFMON" in str(fix)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("unknown_event", {"events": ["foo"]}, "perf can't use the event foo here"),
        ("no_branches", {"mode": "record", "call_graph": "lbr"}, "this processor records no branches"),
        ("not_supported", {"mode": "record"}, "perf can't use the event instructions here"),
    ],
)
def test_what_does_not_exist_here_is_missing(tmp_path: Path, name: str, options: dict[str, Any], said: str) -> None:
    ((verdict, message, fix),) = checked(tmp_path, saying(name), **options)
    assert (verdict, message) == ("missing", said) and fix


def counting(name: str) -> str:
    return f'case "$1" in stat) cat "{GOLDEN}/{name}.csv" >&2; esac'


def test_user_mode_only_is_a_warning(tmp_path: Path) -> None:
    checks = checked(tmp_path, counting("counters_user_only"))
    assert [verdict for verdict, _, _ in checks] == ["ok", "ok", "warn"]
    assert "user mode only" in checks[-1][1] and checks[-1][2]


def test_events_that_nothing_counts_are_named(tmp_path: Path) -> None:
    assert checked(tmp_path, counting("counters"))[1][1] == "this machine can't count cycles, instructions"
    none = "case \"$1\" in stat) echo '<not supported>;;cycles;0;100.00;;' >&2;; esac"
    assert checked(tmp_path, none, events=["cycles"])[-1] == (
        "missing", "this machine can't count cycles", "leave `events` out",
    )  # fmt: skip


# ---------------------------------------------------------------- reading


def capture(role: str, path: Path, cpu_s: float = 0.2, log: Path | None = None) -> Capture:
    run = TargetRun(("./worker",), 7, 10**18, 10**18 + 80_000_000, 0.08, Exit(7), user_s=cpu_s, sys_s=0.0)
    files = [Artifact(role, str(path), role, 1, "", 0), *([Artifact("log", str(log), "text", 1, "", 0)] if log else [])]
    return Capture(
        "p2-perf", "p2", "perf", "ok", started_ns=run.started_ns, ended_ns=run.ended_ns, run=run, artifacts=tuple(files)
    )


def test_counters_become_a_table_and_metrics() -> None:
    parsed = perf().parse(capture("counters", GOLDEN / "counters.csv"))
    (table,) = parsed.tables
    assert parsed.status is None and table.columns["value"][:2] == [91.02, 24.0]
    assert parsed.notes == ("this machine can't count cycles, instructions",)
    assert {name: (metric.value, metric.unit) for name, metric in parsed.metrics.items()} == {
        "cpus_utilized": (pytest.approx(1.13775), "CPUs"), "context_switches_per_s": (pytest.approx(300), "1/s"),
    }  # fmt: skip


def at(found: Capture, folder: Path, text: str) -> Capture:
    """The same capture with another file of counters."""
    (folder / "counters.csv").write_text(text + "\n")
    return replace(found, artifacts=(Artifact("counters", str(folder / "counters.csv"), "perf-stat", 1, "", 0),))


def test_processors_are_used_in_the_time_of_the_target_not_of_perf(tmp_path: Path) -> None:
    (table,) = perf().parse(capture("counters", GOLDEN / "counters.csv")).tables
    assert (table.columns["metric"][0], table.columns["metric_unit"][0]) == (1.138, "CPUs utilized")
    later = replace(capture("counters", GOLDEN / "counters.csv"), ended_ns=10**18 + 10**10)
    (table,) = perf().parse(later).tables
    assert table.columns["metric"][0] == 0.988, "perf began after the collector: its own time is right"
    idle = replace(later, ended_ns=None)
    (table,) = (
        perf(events=["task-clock"])
        .parse(at(idle, tmp_path, "1.00;msec;task-clock;9;100.00;0.001;CPUs utilized"))
        .tables
    )
    assert (table.columns["metric"], table.columns["metric_unit"]) == ([None], [None])


def test_shared_counters_are_told_and_instructions_per_cycle_known(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text("2000;;cycles:u;900;60.00;;\n3000;;instructions:u;900;40.00;1.5;insn per cycle\n")
    parsed = perf(events=["cycles", "instructions"]).parse(capture("counters", path))
    assert parsed.metrics["instructions_per_cycle"].value == 1.5
    assert "cycles:u, instructions:u were counted for as little as 40 %" in parsed.notes[0]


def test_what_user_mode_can_not_see_is_unknown_not_zero() -> None:
    parsed = perf().parse(capture("counters", GOLDEN / "counters_user_only.csv"))
    values = dict(zip(parsed.tables[0].columns["event"], parsed.tables[0].columns["value"], strict=True))
    assert values["context-switches:u"] is None and "context_switches_per_s" not in parsed.metrics
    assert "unknown, as perf could look at user mode only: context-switches:u, cpu-migrations:u" in parsed.notes


def test_a_target_that_only_waited_is_empty() -> None:
    parsed = perf().parse(capture("counters", GOLDEN / "counters_idle.csv"))
    assert (parsed.status, parsed.tables) == ("empty", ()) and "never on a processor" in str(parsed.reason)


def test_no_chosen_event_or_no_line_at_all_is_the_tools_failure(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    for text, said in (("<not supported>;;cycles;0;100.00;;\n", "can't count cycles"), ("# started on\n\n", "killed")):
        path.write_text(text)
        parsed = perf().parse(capture("counters", path))
        assert parsed.status == "tool_failed" and said in str(parsed.reason)


def test_samples_become_stacks_and_functions() -> None:
    parsed = perf(mode="record").parse(capture("script", GOLDEN / "forked.txt", cpu_s=0.18))
    assert [table.name for table in parsed.tables] == ["stacks", "functions"] and parsed.status is None
    assert parsed.notes[0] == "16 samples at 99 Hz stand for 162 ms on processors; the target used 180 ms in all"
    assert "cpu-clock" in parsed.notes[1], "no cycles were counted"


def test_stacks_without_their_beginning_are_told() -> None:
    found = capture("script", GOLDEN / "python_names.txt")
    notes = {graph: perf(mode="record", call_graph=graph).parse(found).notes for graph in ("dwarf", "fp", "none")}
    assert "larger stack_size" in notes["dwarf"][-1] and "call_graph: dwarf" in notes["fp"][-1]
    assert not any("beginning" in note for note in notes["none"])


def test_lost_and_cut_samples_are_told_with_their_share(tmp_path: Path) -> None:
    text = (GOLDEN / "forked.txt").read_text()
    (tmp_path / "lost.txt").write_text(text + "two 1/1 12904.4: PERF_RECORD_LOST lost 16\n")
    parsed = perf(mode="record").parse(capture("script", tmp_path / "lost.txt"))
    assert parsed.status == "degraded" and str(parsed.reason).startswith("16 of 32 samples (50 %) are there: perf was")
    log = GOLDEN / "said" / "recorded.txt"
    parsed = perf(mode="record").parse(capture("script", GOLDEN / "forked.txt", log=log))
    assert parsed.status == "degraded" and "16 of 117 samples (14 %)" in str(parsed.reason) and len(parsed.tables) == 2
    log = GOLDEN / "said" / "disk_full_record.txt"
    parsed = perf(mode="record").parse(capture("script", GOLDEN / "forked.txt", log=log))
    assert parsed.status == "degraded" and "No space left" in str(parsed.reason)


def test_no_sample_is_empty_or_the_tools_failure(tmp_path: Path) -> None:
    path = tmp_path / "script.txt"
    path.write_text("# cmdline : perf\n#\n")
    parsed = perf(mode="record").parse(capture("script", path, cpu_s=0.002))
    assert (parsed.status, parsed.reason) == ("empty", "no sample was taken: the target was on a processor for 2 ms")
    cut = capture("script", path)
    parsed = perf(mode="record").parse(replace(cut, artifacts=(replace(cut.artifacts[0], truncated=True),)))
    assert parsed.status == "tool_failed" and "before it took a sample" in str(parsed.reason)
    for text, log, said in (
        ((GOLDEN / "lost.txt").read_text(), None, "perf lost all 465,612 samples"),
        ("#\n", GOLDEN / "said" / "recorded.txt", "none of the 117 samples"),
        ("x 7/7 1.0: 5 page-faults: \n\t11 f (/x)\n", None, "sampled page-faults, none of which stands for time"),
    ):
        path.write_text(text)
        parsed = perf(mode="record").parse(capture("script", path, log=log))
        assert parsed.status == "tool_failed" and said in str(parsed.reason)


def test_a_file_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ParseError, match="perf left no counters"):
        perf().parse(capture("script", GOLDEN / "forked.txt"))
