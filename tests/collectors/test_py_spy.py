"""The py-spy collector: its command lines, what its messages mean, and what it makes of our own recordings."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pydantic import ValidationError

from orchestrator.collectors.base import Parsed
from orchestrator.collectors.py_spy import PySpy
from orchestrator.errors import ParseError
from orchestrator.machine import Machine, Permission
from orchestrator.model import (
    Artifact,
    Attached,
    Capture,
    Check,
    Exit,
    Job,
    Launch,
    Sign,
    Target,
    TargetRun,
    Tool,
    Window,
)

SPY = Tool("py-spy", "/opt/venv/bin/py-spy", "0.4.3", frozenset({"chrometrace", "nonblocking", "gil"}))
TARGET = Target(("python", "tr ain.py", "-o", "x", "--help", "--", ""), "/usr/bin/python", "/", {})
JOB = Job("p03", "/tmp/scratch space/p03-py-spy", TARGET, SPY)


def launch(job: Job = JOB, **options: Any) -> Launch:
    return PySpy(**options).launch(job)


def words(made: Launch, index: int = 0) -> tuple[str, ...]:
    return made.beside[index].argv


# ---------------------------------------------------------------- options


def test_native_and_nonblocking_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="native and nonblocking exclude each other"):
        PySpy(native=True, nonblocking=True)


@pytest.mark.parametrize(
    ("name", "value", "hint"), [("rate", 99.5, "100"), ("rate", 0, "1"), ("duration", "1500ms", "2")]
)
def test_fractions_are_refused_with_what_to_write(name: str, value: Any, hint: str) -> None:
    with pytest.raises(ValidationError, match=f"whole numbers only: write {hint}$|whole numbers only: write {hint} "):
        PySpy(**{name: value})


def test_units_are_read() -> None:
    assert (PySpy(rate="1kHz").rate, PySpy(duration="1m").duration) == (1000, 60)  # type: ignore[arg-type]


# ---------------------------------------------------------------- checks


def machine(tool: Tool, permission: Permission | None = None) -> Machine:
    allowed = permission or Permission(True, "a child could be traced")
    return cast(Machine, SimpleNamespace(tool=lambda probe: tool, ptrace=lambda: allowed, given={}.get))


def test_checks() -> None:
    refused = Permission(False, "tracing a child was refused", "start the container with --cap-add SYS_PTRACE")
    assert [c.verdict for c in PySpy().checks(machine(SPY))] == ["ok"]
    (missing,) = PySpy().checks(machine(replace(SPY, path=None)))
    assert (missing.verdict, missing.fix) == ("missing", "pip install py-spy")
    (old,) = PySpy().checks(machine(replace(SPY, version="0.3.0", features=frozenset())))
    assert (old.verdict, old.fix) == ("missing", "pip install --upgrade py-spy")
    (blocked,) = PySpy().checks(machine(SPY, refused))
    assert (blocked.verdict, blocked.message, blocked.fix) == ("blocked", refused.why, refused.fix)
    (warned,) = PySpy(nonblocking=True).checks(machine(SPY, refused))
    assert warned.verdict == "warn"


# ---------------------------------------------------------------- command lines


def test_it_attaches_to_each_python_process() -> None:
    made = launch()
    assert made.wrap is None  # the target is nobody's child but profrun's: its exit status and its end are its own
    assert [b.when for b in made.beside] == ["python", "python"]
    assert [b.signal for b in made.beside] == ["SIGINT", "SIGINT"]  # SIGTERM loses the data
    assert words(made) == (
        "env", "RUST_LOG=py_spy::config=info,py_spy::sampler=info",
        "/opt/venv/bin/py-spy", "record", "--pid", "{pid}", "--rate", "100", "--subprocesses", "--threads",
        "--format", "chrometrace", "--idle",
        "--output", "/tmp/scratch space/p03-py-spy/profile.{n}.{who}chrometrace.json",
    )  # fmt: skip
    assert words(made, 1)[1:3] == ("-I", "-S") and words(made, 1)[-1] == "{pid}"
    assert Path(words(made, 1)[3]).name == "lives.py"


def test_nothing_of_the_target_is_in_its_command_lines() -> None:
    assert not {"tr ain.py", "--help", ""} & {word for argv in launch(gil=True).commands() for word in argv}


def test_options_reach_the_command_line() -> None:
    argv = words(launch(rate=250, subprocesses=False, threads=False, native=True, duration=30))
    assert "--native" in argv and argv[argv.index("--rate") + 1] == "250" and argv[argv.index("--duration") + 1] == "30"
    assert not {"--subprocesses", "--threads", "--nonblocking"} & set(argv)
    assert "--nonblocking" in words(launch(nonblocking=True))


def test_without_idle_threads_it_takes_raw_stacks() -> None:
    made = launch(idle=False)
    assert words(made)[-5:] == (
        "--format", "raw", "--full-filenames", "--output", f"{JOB.dir}/profile.{{n}}.{{who}}raw.txt"
    )  # fmt: skip
    assert "--idle" not in words(made)
    assert made.artifacts[0].format == "folded"


def test_gil_is_a_second_capture_beside() -> None:
    made = launch(gil=True)
    assert len(made.beside) == 3
    assert {"--gil", "--nonblocking", "raw"} < set(words(made, 2)) and "--idle" not in words(made, 2)
    assert words(made, 2)[-1] == f"{JOB.dir}/gil.{{n}}.{{who}}raw.txt"


def test_attaching_is_to_each_python_that_is_there_or_comes() -> None:
    """Where the named process is no Python (a launcher's script, `conda run`), profrun finds those below it."""
    made = launch(replace(JOB, pids=(41, 42)))
    assert [b.when for b in made.beside] == ["python"] * 2
    assert words(made, 0)[words(made, 0).index("--pid") + 1] == "{pid}" and "--subprocesses" in words(made, 0)


def test_a_window_ends_the_recording_not_the_target() -> None:
    assert {b.when for b in launch(replace(JOB, window=Window(2, 5))).beside} == {"window"}
    assert {b.when for b in launch(replace(JOB, window=Window(2, 5), pids=(4,))).beside} == {"python"}


def running(pid: int = 4, **more: Any) -> Attached:
    return Attached(pid, ("python", "x.py"), pid, is_python=True, is_top_python=True, **{"state_before": "S", **more})


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (running(state_before="T"), "process 4 was stopped already"),
        (running(state_before="t", tracer_before=9), "another program traces process 4"),
    ],
)
def test_what_stands_already_is_not_stopped_again(found: Attached, said: str) -> None:
    """py-spy 0.4.3 finds no Python in a stopped process while it wants to stop it."""
    job = replace(JOB, pids=(4,), attached=(running(3), found))
    assert "--nonblocking" in words(launch(job)) and said in launch(job).notes[0]
    native = launch(job, native=True)
    assert "--nonblocking" not in words(native) and "native stacks of it can't be read" in native.notes[0]
    other = replace(JOB, pids=(3,), attached=(running(3),))
    assert "--nonblocking" not in words(launch(other)) and launch(other).notes == ()


def test_a_launcher_is_named_and_not_sampled() -> None:
    agent = replace(running(3), wrapper="torchrun", is_top_python=False)
    assert launch(replace(JOB, pids=(3,), attached=(agent, running(4)))).notes == (
        "process 3 (torchrun) only starts the program and was not sampled",
    )


def test_a_process_that_may_not_be_traced_is_an_obstacle() -> None:
    asked: list[int] = []

    def refuse(pids: Iterable[int]) -> Permission:
        asked.extend(pids)
        return Permission(False, "process 4 may not be traced", "do this")

    machine: Any = SimpleNamespace(
        attached=(replace(running(3), is_top_python=False), running(4)), target_pids=(3,), ptrace_of=refuse
    )
    assert PySpy().obstacle_to_attach(machine) == Check("py-spy", "blocked", "process 4 may not be traced", "do this")
    assert asked == [4], "the Python, not the shell above it"
    machine.ptrace_of = lambda pids: Permission(True, "")
    assert PySpy().obstacle_to_attach(machine) is None


def test_ranks_are_those_of_the_launcher_and_of_the_family(golden: Path) -> None:
    """6938 and 6939 are children that were forked later: nobody but py-spy has seen them."""
    found = capture(golden / "py-spy" / "forks")
    assert found.run is not None
    run = replace(found.run, attached=(running(6931, rank=2),))
    parsed = PySpy().parse(replace(found, run=run))
    for name in ("stacks", "functions"):
        assert {(r["pid"], r["rank"]) for r in rows(parsed, name)} == {(6931, 2), (6938, 2), (6939, 2)}
    assert all("rank" not in table.columns for table in PySpy().parse(found).tables)


def test_beside_strace_it_does_not_stop_the_target() -> None:
    made = launch(replace(JOB, partners=("strace",)))
    assert "--nonblocking" in words(made) and "strace holds it" in made.notes[0]
    assert launch(replace(JOB, partners=("nsys",))).notes == ()
    assert launch(replace(JOB, partners=("strace",)), nonblocking=True).notes == ()


# ---------------------------------------------------------------- what its messages mean


def meaning(made: Launch, log: str) -> tuple[str, str]:
    """As the runner reads signs: the first whose pattern is found."""
    sign: Sign
    for sign in made.signs:
        hit = re.search(sign.pattern, log)
        if hit:
            return sign.status, sign.reason.format(*hit.groups(default="?"))
    return "tool_failed", ""


@pytest.fixture
def failures(golden: Path) -> Path:
    return golden / "py-spy" / "failures"


@pytest.fixture(params=[0, 1000], ids=["root", "user"])
def uid(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(os, "geteuid", lambda: request.param)
    yield request.param


def test_a_target_that_was_too_short(failures: Path) -> None:
    """D30. Nothing at all is said where it had ended before profrun saw it."""
    for log in ((failures / "ended.log").read_text(), "\nasked to end"):
        assert meaning(launch(), log) == ("empty", "it had ended before py-spy could attach")
        timed = launch(replace(JOB, duration_s=0.02))
        assert meaning(timed, log) == ("empty", "target ran 20 ms: it had ended before py-spy could attach")


def test_no_python_at_all(failures: Path) -> None:
    empty = ("empty", "no Python process was found in the target")
    assert meaning(launch(replace(JOB, target=replace(TARGET, exe="/bin/sh"))), "\nasked to end") == empty
    assert meaning(launch(replace(JOB, window=Window(1, 1))), (failures / "shell.log").read_text()) == empty


def test_a_python_that_it_does_not_know(failures: Path) -> None:
    status, reason = meaning(launch(), (failures / "shell.log").read_text())
    assert status == "tool_failed" and "py-spy 0.4.3 does not know this Python" in reason


def test_another_tracer(failures: Path) -> None:
    status, reason = meaning(launch(), (failures / "traced.log").read_text())
    assert status == "blocked" and reason.startswith("strace traces the target") and "nonblocking: true" in reason


@pytest.mark.parametrize("name", ["other_user", "sandboxed"])
def test_a_refused_permission_names_the_fix_that_applies(failures: Path, name: str, uid: int) -> None:
    status, reason = meaning(launch(), (failures / f"{name}.log").read_text())
    assert status == "blocked" and reason.startswith("not allowed to")
    if uid == 0:
        assert "root" not in reason and "sudo" not in reason and "--cap-add SYS_PTRACE" in reason
    else:
        assert "root" in reason


def test_a_refused_permission_in_a_container_and_under_yama(failures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    log = (failures / "sandboxed.log").read_text()
    assert "--cap-add" in meaning(launch(replace(JOB, facts={"container": "docker"})), log)[1]
    yama = replace(JOB, facts={"yama_ptrace_scope": 1}, pids=(4,))
    assert "let profrun start it" in meaning(launch(yama), log)[1]


def test_other_messages(failures: Path) -> None:
    status, reason = meaning(launch(), (failures / "options.log").read_text())
    assert (status, reason) == ("tool_failed", "py-spy 0.4.3 refused its options: unexpected argument '--bogus' found")
    assert meaning(launch(), "Error: disk is full\n\nStack backtrace:\n 0: main") == (
        "tool_failed",
        "py-spy failed: disk is full",
    )
    unsupported = "Failed to profile python from process 1: Unsupported version of Python: 4.0.1"
    assert meaning(launch(), unsupported)[1].endswith("(Python 4.0.1)")


# ---------------------------------------------------------------- recordings


def capture(folder: Path, **options: Any) -> Capture:
    """A capture as the runner makes it of the files in a folder."""
    collector = PySpy(**options)
    artifacts = tuple(
        Artifact(expect.role, path.name, expect.format, path.stat().st_size, "", 0)
        for expect in collector.launch(JOB).artifacts
        for path in sorted(folder.glob(expect.glob))
    )
    run = TargetRun(("python",), 7, 0, 0, 1.5, Exit(0), user_s=1.4, sys_s=0.05)
    stored = {**collector.model_dump(mode="json"), "role": "profiled", "repeat": 1}
    return Capture("p03-py-spy", "p03", "py-spy", "ok", options=stored, artifacts=artifacts, run=run, root=folder)


def parse(folder: Path, **options: Any) -> Parsed:
    return PySpy().parse(capture(folder, **options))


def rows(parsed: Parsed, table: str) -> list[dict[str, Any]]:
    return next((list(t.rows()) for t in parsed.tables if t.name == table), [])


def test_two_functions(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "two", gil=True)
    assert (parsed.status, parsed.reason) == (None, None)
    wall = {r["function"]: r for r in rows(parsed, "functions") if r["kind"] == "wall"}
    gil = {r["function"]: r for r in rows(parsed, "functions") if r["kind"] == "gil"}
    assert (wall["heavy"]["file"], wall["heavy"]["line"], wall["heavy"]["thread"]) == (
        "/home/user/app/two.py",
        4,
        "MainThread",
    )
    assert wall["heavy"]["self_pct"] == pytest.approx(gil["heavy"]["self_pct"], abs=5)
    assert gil["heavy"]["self_samples"] == 100
    assert wall["<module>"]["total_pct"] == pytest.approx(100, abs=1)
    stacks = rows(parsed, "stacks")
    assert {r["process"] for r in stacks} == {"/opt/venv/bin/python two.py 1.5"}
    assert all(r["samples"] == round(r["weight_ns"] / 1e7) for r in stacks)
    assert "Python processes: 1 seen, 1 profiled" in parsed.notes
    assert not [note for note in parsed.notes if "waiting" in note]


def test_rate_reached(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "two", gil=True)
    seconds = sum(r["weight_ns"] for r in rows(parsed, "stacks") if r["kind"] == "wall") / 1e9
    said = re.search(r"Samples: (\d+)", (golden / "py-spy" / "two" / "stdout.log").read_text())
    assert said is not None
    assert parsed.notes[0] == f"asked for 100 samples a second of each thread, reached {int(said[1]) / seconds:.3g}"


def test_threads_and_processes_that_have_ended(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "ends")
    seconds = {r["function"]: r["total_samples"] / 100 for r in rows(parsed, "functions")}
    assert seconds["short"] == pytest.approx(0.5, abs=0.1)
    assert seconds["waiter"] == pytest.approx(0.8, abs=0.1)
    assert 0.25 < seconds["child"] < 0.55
    assert {r["thread"] for r in rows(parsed, "stacks")} == {"MainThread", "brief;one", "w"}
    assert "Python processes: 2 seen, 2 profiled" in parsed.notes


def test_without_the_lives_the_rate_shows_that_something_is_wrong(golden: Path, tmp_path: Path) -> None:
    for name in ("profile.0.chrometrace.json", "stdout.log"):
        shutil.copy(golden / "py-spy" / "ends" / name, tmp_path)
    parsed = parse(tmp_path)
    assert parsed.status == "degraded" and "samples a second were taken" in (parsed.reason or "")


def test_forked_workers(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "forks", rate=25)
    work = [r for r in rows(parsed, "functions") if r["function"] == "childwork"]
    assert len({r["pid"] for r in work}) == 2
    assert "Python processes: 3 seen, 3 profiled" in parsed.notes


def test_a_program_that_waits(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "waiting")
    (stack,) = rows(parsed, "stacks")
    assert stack["samples"] > 90
    (note,) = (note for note in parsed.notes if "waiting" in note)
    assert re.fullmatch(
        r"target was mostly waiting: on a processor in about \d of \d\d expected samples; the stacks show where", note
    )


def test_waiting_is_told_from_the_run_where_nobody_watched(golden: Path, tmp_path: Path) -> None:
    for name in ("profile.0.chrometrace.json", "stdout.log", "stderr.log"):
        shutil.copy(golden / "py-spy" / "waiting" / name, tmp_path)
    idle = capture(tmp_path)
    assert idle.run is not None
    slept = replace(idle, run=replace(idle.run, user_s=0.03, sys_s=0.03))
    assert [n for n in PySpy().parse(slept).notes if "in about 6 of 150 expected samples" in n]
    unknown = replace(idle, run=replace(idle.run, user_s=None))
    assert not [n for n in PySpy().parse(unknown).notes if "waiting" in n]


def test_a_process_that_replaced_its_program(golden: Path) -> None:
    parsed = parse(golden / "py-spy" / "exec")
    assert parsed.status == "degraded"
    assert re.search(r"^[\d.]+ of 100 samples a second were taken: 114 more could not be read", parsed.reason or "")
    assert rows(parsed, "stacks")


def test_one_that_fell_behind(golden: Path, tmp_path: Path) -> None:
    """The line is py-spy's own; 40 threads at 1000 Hz gave it."""
    late = "py-spy> 6.82s behind in sampling, results may be inaccurate. Try reducing the sampling rate\n"
    for path in (golden / "py-spy" / "two").iterdir():
        text = (
            path.read_text().replace("Samples: ", "Samples: 3\nof ") if path.name == "stdout.log" else path.read_text()
        )
        (tmp_path / path.name).write_text(text)
    (tmp_path / "stdout.log").write_text(late + "Wrote chrome trace to 'x'. Samples: 70 Errors: 2\n")
    parsed = parse(tmp_path)
    assert parsed.status == "degraded" and (parsed.reason or "").endswith("ask for a lower rate")
    assert parsed.trust == "distorted", "it held the program up"
    assert "py-spy was up to 6.82 s behind, and held the target up" in parsed.notes
    assert "2 samples could not be read" in parsed.notes


def write(folder: Path, trace: str, said: str) -> Path:
    (folder / "profile.0.chrometrace.json").write_text(trace)
    (folder / "stdout.log").write_text(f"py-spy> Wrote chrome trace to 'x'. {said}\n")
    return folder


def test_too_short_for_a_sample(tmp_path: Path) -> None:
    parsed = parse(write(tmp_path, "[]", "Samples: 0 Errors: 0"))
    assert (parsed.status, parsed.reason, parsed.tables) == ("empty", "target ran 1.5 s: too short for a sample", ())


def test_only_errors(tmp_path: Path) -> None:
    parsed = parse(write(tmp_path, "[]", "Samples: 0 Errors: 179"))
    assert parsed.status == "tool_failed" and "none of 179 samples could be read" in (parsed.reason or "")


def test_nobody_on_a_processor() -> None:
    """py-spy's raw file is empty then, which is as good as none."""
    said = "py-spy> Wrote raw flamegraph data to 'x'. Samples: 0 Errors: {}"
    status, reason = meaning(launch(idle=False), said.format(0))
    assert status == "empty" and "use idle: true" in reason
    status, reason = meaning(launch(idle=False), said.format(12))
    assert status == "tool_failed" and reason.startswith("none of 12 samples could be read")


def test_stacks_of_threads_on_a_processor(golden: Path, tmp_path: Path) -> None:
    shutil.copy(golden / "py-spy" / "two" / "gil.2.raw.txt", tmp_path / "profile.0.raw.txt")
    parsed = parse(tmp_path, idle=False)
    assert {r["kind"] for r in rows(parsed, "stacks")} == {"cpu"}
    assert max(r["samples"] for r in rows(parsed, "stacks")) == 100


def test_rubbish_is_a_parse_error(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"profile\.0\.chrometrace\.json"):
        parse(write(tmp_path, "<svg>", "Samples: 1 Errors: 0"))
    with pytest.raises(ParseError, match="cut or damaged"):
        parse(write(tmp_path, "[", "Samples: 1 Errors: 0"))


def test_one_bad_file_among_good_ones_degrades(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "py-spy" / "two", tmp_path, dirs_exist_ok=True)
    (tmp_path / "profile.3.chrometrace.json").write_text("rubbish")
    parsed = parse(tmp_path, gil=True)
    assert parsed.status == "degraded" and "profile.3.chrometrace.json" in (parsed.reason or "")
    assert len(rows(parsed, "stacks")) > 3


def test_processes_that_it_missed_are_named(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden / "py-spy" / "two", tmp_path, dirs_exist_ok=True)
    with (tmp_path / "stderr.log").open("a") as log:
        log.write("[x WARN  py_spy::sampler] Failed to profile python from process 99: Failed to suspend process\n")
        log.write("[x WARN  py_spy::sampler] Failed to profile python from process 98: Failed to find python version\n")
    notes = parse(tmp_path).notes
    assert "Python processes: 2 seen, 1 profiled; 99: Failed to suspend process" in notes
