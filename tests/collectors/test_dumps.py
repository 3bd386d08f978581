"""collectors/dumps.py and standalone/dumps.py: the two looks, what is made of them, and what may go wrong meanwhile."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from waiting import state, until

from orchestrator.collectors.dumps import Dumps
from orchestrator.errors import ParseError
from orchestrator.model import Artifact, Attached, Capture, Job, Target, TargetRun, Tool, Window
from orchestrator.standalone import dumps

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "dumps"


def collector(**options: Any) -> Dumps:
    return Dumps.model_validate({"use": "dumps", **options})


# ---------------------------------------------------------------- before


def test_the_command_looks_at_all_processes_in_its_window() -> None:
    ranks = (attached(4), attached(5, rank=3), attached(6, rank=3), attached(7, rank=1))
    job = Job(
        "p1", "/scratch/d", Target(("x",), "/x", "/", {}), Tool("py-spy", "/bin/py-spy"), pids=(4,), attached=ranks
    )
    (beside,) = collector(native=False, limit="5s").launch(replace(job, window=Window(for_s=5))).beside
    assert beside.when == "window" and beside.signal == "SIGINT"
    assert beside.argv[1:3] == ("-I", "-S") and "--native" not in beside.argv
    words = dict(zip(beside.argv[4::2], beside.argv[5::2], strict=False))
    assert (words["--pids"], words["--spy"], words["--output"]) == ("{pids}", "/bin/py-spy", "/scratch/d")
    assert words["--limit"] == "5" and words["--ranks"] == "5:3,7:1"


@pytest.mark.parametrize("options", [{"limit": 0}, {"rate": 5}, {"native": "maybe"}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        collector(**options)


def machine(pids: tuple[int, ...], allowed: bool = True) -> Any:
    permission = SimpleNamespace(allowed=allowed, why="ptrace is refused", fix="run profrun as root")
    tool = Tool("py-spy", "/bin/py-spy", "0.4.3")
    return SimpleNamespace(tool=lambda probe: tool, target_pids=pids, ptrace=lambda: permission)


def test_it_needs_a_process_that_runs_and_may_be_traced() -> None:
    assert [c.verdict for c in collector().checks(machine((4,)))] == ["ok"]
    assert collector().checks(machine(()))[0].fix == "profrun hang --pid PID"
    assert [c.verdict for c in collector().checks(machine((4,), allowed=False))] == ["blocked"]


# ---------------------------------------------------------------- after


def attached(pid: int, **more: Any) -> Attached:
    return Attached(pid, ("python",), pid, is_python=True, **more)


def capture(folder: Path, *ranks: Attached, source: Path = GOLDEN) -> Capture:
    shutil.copytree(source, folder / "raw")
    roles = {".json": "look", ".pickle": "flight"}
    files = [path for path in sorted((folder / "raw").iterdir()) if path.suffix in roles]
    artifacts = tuple(
        Artifact(roles[p.suffix], f"raw/{p.name}", "x", p.stat().st_size, hashlib.sha256(b"").hexdigest(), 0)
        for p in files
    )
    run = TargetRun(("torchrun",), 1, 0, 1, 1.0, None, attached=ranks)
    return Capture("p01-dumps", "p01", "dumps", "ok", artifacts=artifacts, run=run, root=folder)


def pids() -> list[int]:
    return [one["pid"] for one in json.loads((GOLDEN / "look.0.json").read_text())["processes"]]


def job(size: int = 2) -> tuple[Attached, ...]:
    """The launcher and the two ranks of the recording, as attached.look finds them."""
    launcher, *ranks = pids()
    found = (attached(pid, rank=n, local_rank=n, world_size=size, parent=launcher) for n, pid in enumerate(ranks))
    return attached(launcher, wrapper="torchrun"), *found


def test_the_tables_of_a_real_job(tmp_path: Path) -> None:
    parsed = collector().parse(capture(tmp_path, *job()))
    threads, collectives = (list(table.rows()) for table in parsed.tables)
    mains = {row["rank"]: row for row in threads if row["tid"] == row["pid"]}
    assert [(mains[n]["doing"], mains[n]["what"]) for n in (0, 1)] == [
        ("collective", "all_reduce"),
        ("file lock", "/srv/job/lock"),
    ]
    assert mains[None]["doing"] == "launcher" and mains[None]["rank"] is None
    assert mains[1]["function"] == "load_batch" and mains[1]["moved"] is False and mains[1]["world_size"] == 2
    assert {row["rank"]: row["seq"] for row in collectives} == {0: 2, 1: 1}
    assert parsed.status is None and parsed.notes == ()


def test_ranks_that_are_gone_and_ranks_on_other_machines_have_rows_too(tmp_path: Path) -> None:
    launcher, first, _ = job(size=4)
    rows = {row["rank"]: row for row in collector().parse(capture(tmp_path, launcher, first)).tables[0].rows()}
    assert [rows[n]["state"] for n in (1, 2, 3)] == ["gone", "not seen", "not seen"]
    alone = replace(first, parent=None)  # attached to by itself: its launcher would know of the others
    parsed = collector().parse(capture(tmp_path / "b", alone))
    assert {r["rank"]: r["state"] for r in parsed.tables[0].rows() if r["pid"] is None}[1] == "not seen"


def test_one_look_is_not_enough(tmp_path: Path) -> None:
    one = capture(tmp_path, *job())
    with pytest.raises(ParseError, match="only one look"):
        collector().parse(replace(one, artifacts=tuple(a for a in one.artifacts if "look.1" not in a.path)))


def changed(folder: Path, **more: Any) -> Path:
    """The recording with something changed in each process and in the whole second look."""
    shutil.copytree(GOLDEN, folder)
    for number in (0, 1):
        path = folder / f"look.{number}.json"
        content = json.loads(path.read_text())
        for process in content["processes"]:
            process.update(more.get("process", {}))
        path.write_text(json.dumps({**content, **more.get("look", {})}))
    return folder


def test_processes_that_could_not_be_read_are_told_with_the_reason(tmp_path: Path) -> None:
    why = {"dump": {"why": "Error: Permission denied"}, "native": {"why": "Error: libunwind"}}
    parsed = collector().parse(capture(tmp_path, *job(), source=changed(tmp_path / "x", process=why)))
    assert parsed.status == "degraded" and "3 of 3 Python processes" in (parsed.reason or "")
    assert len([note for note in parsed.notes if "could not be read: Error: Permission" in note]) == 3
    assert len([note for note in parsed.notes if note.startswith("native stacks could not be read")]) == 1


def test_what_has_become_of_the_recorders_is_told(tmp_path: Path) -> None:
    recorders = [
        {"pid": 1, "rank": 0, "asked": True, "why": "it wrote nothing within 15 s", "file": "flight.0.pickle",
         "written_ns": 5, "fresh": False},
        {"pid": 2, "rank": 1, "asked": True, "why": None, "file": None},
        {"pid": 3, "rank": 2, "asked": False, "why": "pipe_2.pipe can't be written to: No such device", "file": None},
        {"pid": 4, "rank": 3, "asked": False, "why": "it has no pipe to ask through (X)", "file": None},
    ]  # fmt: skip
    parsed = collector().parse(capture(tmp_path, *job(), source=changed(tmp_path / "x", look={"recorders": recorders})))
    assert parsed.notes == (
        "rank 0's flight recorder has an older file, which was kept: it wrote nothing within 15 s",
        "rank 1's flight recorder was asked for a file and has written none",
        "rank 2's flight recorder could not be asked: pipe_2.pipe can't be written to: No such device",
    )
    assert {row["fresh"] for row in parsed.tables[1].rows()} == {False}


def test_a_second_look_that_was_cut_short_is_degraded(tmp_path: Path) -> None:
    source = changed(tmp_path / "x")
    content = json.loads((source / "look.1.json").read_text())
    del content["recorders"]
    (source / "look.1.json").write_text(json.dumps(content))
    parsed = collector().parse(capture(tmp_path, *job(), source=source))
    assert parsed.status == "degraded" and "native stacks and flight recorders" in (parsed.reason or "")
    assert [table.name for table in parsed.tables] == ["threads"]


def test_a_damaged_recorder_file_does_not_take_the_rest_with_it(tmp_path: Path) -> None:
    source = changed(tmp_path / "x")
    (source / "flight.1.pickle").write_bytes(b"damaged")
    parsed = collector().parse(capture(tmp_path, *job(), source=source))
    assert {row["rank"] for row in parsed.tables[1].rows()} == {0} and "flight.1.pickle" in parsed.notes[0]


# ---------------------------------------------------------------- the program that looks


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    yield running
    running.kill()
    running.wait()


def fake_spy(folder: Path, body: str) -> str:
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_py_spy_that_hangs_is_ended_and_what_it_stopped_is_continued(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    spy = fake_spy(tmp_path, 'kill -STOP "$4"; exec sleep 1000')
    found = dumps.spy(spy, sleeper.pid, limit_s=0.5)
    assert "py-spy had not read it" in str(found["why"]) and "was continued" in str(found["why"])
    until(lambda: state(sleeper.pid) == "S")


def test_a_py_spy_that_fails_says_why(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    spy = fake_spy(tmp_path, "echo Error: Failed to find python version >&2; exit 1")
    assert dumps.spy(spy, sleeper.pid, limit_s=60) == {"why": "Error: Failed to find python version"}
    assert "can't be started" in str(dumps.spy(str(tmp_path / "no"), sleeper.pid, limit_s=60)["why"])
    assert dumps.spy(spy, sleeper.pid, limit_s=0) == {"why": "no time was left for it"}


def test_a_stopped_process_is_only_read(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: state(sleeper.pid) == "T")
    spy = fake_spy(tmp_path, f'echo "$@" >> {tmp_path}/words; echo "[]"')
    found = dumps.look([sleeper.pid], spy, 60)
    dumps.add_native(found, spy, 60)
    assert (tmp_path / "words").read_text() == f"dump --json --pid {sleeper.pid} --nonblocking\n"
    assert state(sleeper.pid) == "T"


def recorder(folder: Path, pid: int, **env: str) -> dumps.Recorder:
    names = {"TORCH_FR_DUMP_TEMP_FILE": str(folder / "trace_"), "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "p_")}
    return dumps.Recorder(pid, 3, {**names, **env})


def test_a_recorder_is_asked_through_its_pipe_and_its_fresh_file_kept(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    os.mkfifo(tmp_path / "p_3.pipe")
    pipe = os.open(tmp_path / "p_3.pipe", os.O_RDWR)

    def monitor() -> None:
        os.read(pipe, 1)
        (tmp_path / "trace_3").write_bytes(b"fresh.")

    (tmp_path / "trace_3").write_bytes(b"old.")
    os.utime(tmp_path / "trace_3", ns=((now := (tmp_path / "trace_3").stat().st_mtime_ns - 10**8), now))
    worker = threading.Thread(target=monitor)
    worker.start()
    (told,) = dumps.kept([recorder(tmp_path, sleeper.pid)], str(tmp_path))
    worker.join()
    os.close(pipe)
    assert (told["asked"], told["fresh"], told["why"]) == (True, True, None)
    assert (tmp_path / "flight.3.pickle").read_bytes() == b"fresh."


def test_without_a_pipe_an_older_file_is_kept_and_said_to_be_one(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "trace_3").write_bytes(b"old.")
    (told,) = dumps.kept([recorder(tmp_path, sleeper.pid)], str(tmp_path))
    assert (told["asked"], told["fresh"], told["file"]) == (False, False, "flight.3.pickle")
    assert "No such file" in str(told["why"])


@pytest.mark.parametrize("what", ["link", "folder", "earlier"])
def test_what_its_process_has_not_written_is_not_taken(
    what: str, tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    trace = tmp_path / "trace_3"
    if what == "link":
        trace.symlink_to("/etc/passwd")
    elif what == "folder":
        trace.mkdir()
    else:
        trace.write_bytes(b"of the run before.")
        os.utime(trace, (1, 1))
    (told,) = dumps.kept([recorder(tmp_path, sleeper.pid)], str(tmp_path))
    assert told["file"] is None and not (tmp_path / "flight.3.pickle").exists()


def test_a_plain_file_in_place_of_the_pipe_is_not_written_to(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    (tmp_path / "p_3.pipe").write_bytes(b"mine")
    one = recorder(tmp_path, sleeper.pid)
    one.ask()
    assert one.asked_ns is None and "is no pipe" in str(one.why)
    assert (tmp_path / "p_3.pipe").read_bytes() == b"mine"


def test_where_it_writes_if_nobody_said(tmp_path: Path) -> None:
    one = dumps.Recorder(1, 3, {"HOME": "/home/ada"})
    assert one.files() == [
        "/home/ada/.cache/torch/comm_lib_trace_rank_3",
        "/home/ada/.cache/torch/nccl_trace_rank_3",
        "/tmp/nccl_trace_rank_3",
    ]
    assert dumps.Recorder(1, 3, {"XDG_CACHE_HOME": "/c"}).files()[0] == "/c/torch/comm_lib_trace_rank_3"
