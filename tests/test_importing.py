"""`profrun import` as users run it: what becomes of good files, of bad ones, and of what is no file."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli import Result, command, environment, script
from waiting import LIMIT_S

from orchestrator import cli
from orchestrator.imported import KINDS, gpu_metrics
from orchestrator.tables import Table

FOLDED = "main (a.py:1);work (a.py:5) 30\nmain (a.py:1);rest (a.py:9) 10\n"
STRACE = 'openat(AT_FDCWD, "/etc/hosts", O_RDONLY) = 3 <0.000050>\nclose(3) = 0 <0.000010>\n'
SVG = '<?xml version="1.0"?><svg width="10"></svg>\n'


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """`profrun WORDS` in an empty folder, in this process: to start one for each would take most of the time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def profrun(*words: str | Path) -> Result:
        with pytest.raises(SystemExit) as end:
            cli.main([*map(str, words)])
        said = capsys.readouterr()
        return Result(int(end.value.code or 0), said.out, said.err, tmp_path)

    return profrun


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def page(result: Result) -> str:
    return (result.folder / "index.html").read_text()


def test_a_file_becomes_a_capture_and_the_report_stands_alone(tmp_path: Path, run: Run) -> None:
    given = write(tmp_path / "stacks.txt", FOLDED)
    result = run("import", given)
    assert result.code == 0, result.stderr
    capture = result.captures()["folded"]
    (artifact,) = capture["artifacts"]
    assert capture["trust"] is None, "there is nothing to judge it by"
    assert "trust: None" not in page(result)
    assert (capture["id"], capture["status"]) == ("import-1-folded", "ok")
    assert artifact["path"] == "raw/import-1-folded/stacks.txt"
    assert artifact["sha256"] == hashlib.sha256(FOLDED.encode()).hexdigest() and artifact["bytes"] == len(FOLDED)
    assert "ok            stacks.txt: tool unknown; Sampled 40 samples" in result.stderr
    given.unlink()
    table = (result.folder / "tables" / "stacks.parquet").read_bytes()
    again = run("report", result.folder)
    assert again.code == 0 and (result.folder / "tables" / "stacks.parquet").read_bytes() == table
    assert (result.folder / "flamegraphs" / "import-1-folded.samples.svg").exists()


def test_the_pages_say_that_nothing_was_run(tmp_path: Path, run: Run) -> None:
    result = run("import", write(tmp_path / "log.txt", STRACE), "--name", "mine")
    markdown = (result.folder / "report.md").read_text()
    for text in (page(result), markdown):
        assert "measured elsewhere" in text and "log.txt" in text
        for wrong in ("bare run was not timed", "bare run of the target", "The target was not started", "end unknown"):
            assert wrong not in text
    machine = json.loads((result.folder / "machine.json").read_text())
    assert set(machine) == {"measured"}, "facts of this machine say nothing about that one"
    assert result.summary["run"]["command"] == [] and result.summary["run"]["imported"] is True
    assert result.folder.name.startswith("mine-") and not (result.folder / "plan.yaml").exists()


def test_the_others_go_on(tmp_path: Path, run: Run) -> None:
    files = (write(tmp_path / "a.svg", SVG), write(tmp_path / "b.txt", FOLDED), write(tmp_path / "c.txt", ""))
    result = run("import", *files)
    assert result.code == 4
    assert result.statuses() == {"svg": "unreadable", "folded": "ok", "unknown": "unreadable"}
    assert "unreadable    a.svg is a picture, such as a flame graph; samples can't be read back" in result.stderr
    assert "unreadable    c.txt is empty" in result.stderr
    assert result.stderr.rstrip().endswith("profrun: exit 4: 2 of 3 files gave nothing: a.svg, c.txt")


def test_without_a_file_that_can_be_read_no_report_is_made(tmp_path: Path, run: Run) -> None:
    result = run("import", write(tmp_path / "a.svg", SVG), "-o", tmp_path / "out")
    assert result.code == 4 and result.stdout == ""
    assert "profrun: there is nothing to import\n  why:  a.svg is a picture" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "can't be imported\n  why:  No such file or directory"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: os.mkfifo(path), "is a FIFO"),
    ],
)
def test_what_is_no_file_is_a_mistake(tmp_path: Path, make: object, said: str, run: Run) -> None:
    path = tmp_path / "it"
    make(path)  # type: ignore[operator]
    result = run("import", write(tmp_path / "b.txt", FOLDED), path)
    assert result.code == 2 and f"{path} {said}" in result.stderr and not (tmp_path / "reports").exists()


def test_what_may_not_be_read_says_so(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "b.txt", FOLDED)
    path.chmod(0)
    if os.geteuid() == 0:  # who may read everything, as long as he has the power to
        powerless = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
        words = [*powerless, *command("import", path)]
        done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=LIMIT_S)
        result = Result(done.returncode, done.stdout, done.stderr, tmp_path)
    else:
        result = run("import", path)
    assert result.code == 4 and "b.txt can't be read: Permission denied" in result.stderr


def test_json_and_quiet(tmp_path: Path, run: Run) -> None:
    result = run("import", write(tmp_path / "b.txt", FOLDED), "--json", "-q")
    assert json.loads(result.stdout)["captures"][0]["status"] == "ok"
    assert result.stderr == "profrun: ok\n"


def test_the_same_file_twice_is_one(tmp_path: Path, run: Run) -> None:
    path = write(tmp_path / "b.txt", FOLDED)
    (tmp_path / "link.txt").symlink_to(path)
    result = run("import", path, tmp_path / "link.txt")
    assert len(result.summary["captures"]) == 1


def test_figures_of_several_files_are_told_apart(tmp_path: Path, run: Run) -> None:
    files = [write(tmp_path / name, FOLDED) for name in ("a.txt", "b.txt")]
    metrics = run("import", *files).summary["metrics"]
    assert {name: metric["value"] for name, metric in metrics.items()} == {
        "samples.import-1-folded": 40,
        "samples.import-2-folded": 40,
    }


def test_an_imported_report_takes_no_runs(tmp_path: Path, run: Run) -> None:
    made = run("import", write(tmp_path / "b.txt", FOLDED))
    result = run("--into", made.folder, "cpu-quick", "--", "true")
    assert result.code == 2 and "that report was imported" in result.stderr
    result = run("--into", made.folder)
    assert result.code == 2 and "that report has no plan: it was imported" in result.stderr


# ---------------------------------------------------------------- packed files


def test_a_packed_log_is_unpacked(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(STRACE[:40].encode()) + gzip.compress(STRACE[40:].encode()) + b"\0" * 20)
    result = run("import", path)
    assert result.statuses() == {"strace": "ok"}
    assert (result.folder / "raw/import-1-strace/log").read_text() == STRACE


def test_of_a_cut_packed_log_the_whole_part_is_read(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(os.urandom(4000).hex().encode())[:-3000])
    assert run("import", path).code == 4
    text = "".join(f"close({n}) = 0 <0.0000{n % 90 + 10}>\n" for n in range(4000))
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    capture = run("import", path).captures()["strace"]
    assert capture["status"] == "degraded" and "cut off: what was whole was unpacked" in capture["reason"]


# ---------------------------------------------------------------- reports of nsys

REPORT = b"NVIDIA Tegra Profiler Report 1.\n\x0b"
NSYS = """#!/bin/sh
case "$1" in
    --version) echo "NVIDIA Nsight Systems version 2022.4.2.1" ;;
    export) while [ "$1" != --output ]; do shift; done; {} ;;
esac
"""


def with_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A report of nsys, and an nsys that exports it by `body`, in which $2 is the output."""
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "nsys", NSYS.format(body))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    report = tmp_path / "app.nsys-rep"
    report.write_bytes(REPORT)
    return report


def export(path: Path) -> Path:
    """The least that an export can be: one call of the operating system."""
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'read')")
        db.execute("CREATE TABLE OSRT_API (start INTEGER, end INTEGER, nameId INTEGER)")
        db.execute("INSERT INTO OSRT_API VALUES (10, 25, 1)")
    return path


def test_a_report_of_nsys_is_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    ready = export(tmp_path / "ready.sqlite")
    result = run("import", with_nsys(tmp_path, monkeypatch, f'cp {ready} "$2"'))
    assert result.code == 0, result.stderr
    first, second = result.captures()["nsys"]["artifacts"]
    assert (first["role"], second["role"], second["derived_from"]) == ("report", "sqlite", "report")
    assert first["holds_env"] and second["holds_env"]
    assert result.summary["tables"]["os_calls_summary"]["rows"] == 1
    (tmp_path / "bin" / "nsys").unlink()
    assert run("report", result.folder).code == 0


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo 'Exportation error: Version number is invalid: 2025@5@2@266-1v0'; exit 1", "newer nsys (2025.5.2"),
        ("exit 1", "could not export it"),
        ("echo nothing", "could not export it: nothing"),
    ],
)
def test_a_report_that_nsys_can_not_export_has_a_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str, run: Run
) -> None:
    result = run("import", with_nsys(tmp_path, monkeypatch, body))
    reason = result.captures()["nsys"]["reason"]
    assert result.code == 4 and said in reason and "nsys export --type sqlite app.nsys-rep" in reason


# ---------------------------------------------------------------- GPU time


def test_graphs_are_gpu_time(shared: Path, tmp_path: Path, run: Run) -> None:
    exports = shared / "data" / "nsys"
    result = run("import", exports / "2024.6.2_a100_cudagraph_compile.sqlite")
    values = {name: metric["value"] for name, metric in result.summary["metrics"].items()}
    assert values["gpu_graph_time_s"] == 7.811141695 and values["gpu_graphs"] == 10
    assert values["gpu_kernel_time_s"] == 78270e-9 and values["gpu_kernels"] == 30
    assert values["gpu_time_s"] == pytest.approx(7.811141695 + 78270e-9)
    for text in (result.stderr, page(result), (result.folder / "report.md").read_text()):
        assert "7.811 s" in text and ("78.27 µs" in text or "78.3 µs" in text)
    assert [gpu["name"] for gpu in result.summary["machine"]["gpus"]] == ["NVIDIA A100-SXM4-80GB"]
    assert result.captures()["nsys"]["tool"]["version"] == "2024.6.2.225"


def test_all_kernels_are_counted(shared: Path, tmp_path: Path, run: Run) -> None:
    result = run("import", shared / "data/nsys/2024.6.2_a100_gpt2.7b.sqlite")
    metrics = result.summary["metrics"]
    assert (metrics["gpu_kernels"]["value"], metrics["gpu_kernel_time_s"]["value"]) == (7328, 3.389068613)
    assert "GPU kernel time 3.389 s; GPU kernels 7,328 launches" in result.stderr


def test_ranks_of_one_job_are_captures_with_their_rank(shared: Path, tmp_path: Path, run: Run) -> None:
    names = ("hta_a100_event_sync_multi_stream.json.gz", "hta_cpu_only_rank34_small.json.gz")
    result = run("import", *(shared / "data/torch" / name for name in names))
    assert [capture["rank"] for capture in result.summary["captures"]] == [0, 34]


def test_no_gpu_time_without_gpu_tables() -> None:
    assert gpu_metrics([Table.of("ranges", [])]) == {}


def test_every_kind_names_a_role() -> None:
    assert all(kind.role and kind.collector for kind in KINDS.values())


# ---------------------------------------------------------------- names and secrets


@pytest.mark.parametrize("name", [b"caf\xe9\n.txt", b"n" * 251 + b".txt", b"tab\t.txt"])
def test_any_name_of_a_file_will_do(tmp_path: Path, name: bytes, run: Run) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.write_text(FOLDED)
    result = run("import", path)
    assert result.code == 0, result.stderr
    told = name.decode("utf-8", "backslashreplace").replace("\n", "\\n").replace("\t", "\\t")
    assert f"ok            {told}: " in result.stderr
    assert result.captures()["folded"]["options"]["file"] == told
    for file in ("raw/run.json", "summary.json", "report.md", "index.html"):
        (result.folder / file).read_bytes().decode("utf-8")
    assert run("report", result.folder).code == 0


@pytest.mark.parametrize("file", ["nsys/2024.6.2_a100_gpt_small.sqlite", "ncu/csv_raw_h200_sglang_decode.csv.gz"])
def test_what_a_cut_file_has_lost_is_its_reason(shared: Path, tmp_path: Path, file: str, run: Run) -> None:
    data = (shared / "data" / file).read_bytes()
    path = tmp_path / Path(file).name
    path.write_bytes(data[: len(data) * 6 // 10])
    result = run("import", path)
    assert result.code == 0 and "degraded" in result.stderr and "damaged" in result.stderr
    (capture,) = result.summary["captures"]
    assert capture["status"] == "degraded" and "damaged" in capture["reason"]
    assert capture["reason"] not in capture["notes"]
    again = run("report", result.folder)
    assert again.code == 0 and "damaged" in again.stderr


def test_secrets_in_recorded_arguments_are_not_shown(tmp_path: Path, run: Run) -> None:
    line = 'openat(AT_FDCWD, "/home/u/token=ABC123DEF", O_RDONLY) = 3 <0.000050>\n'
    words = '["mysql", "--password=hunter3secret", "--api-key", "ABC123DEF456"], ["PGPASSWORD=hunter3secret"]'
    result = run("import", write(tmp_path / "log", f'execve("/bin/mysql", {words}) = 0 <0.1>\n{line}'))
    assert result.code == 0
    for file in ("index.html", "report.md", "summary.json", "tables/syscall_events.parquet"):
        if (result.folder / file).exists():
            data = (result.folder / file).read_bytes()
            assert b"hunter3secret" not in data and b"ABC123DEF" not in data, file


def test_a_name_may_begin_with_a_dash(tmp_path: Path, run: Run) -> None:
    write(tmp_path / "-x.txt", FOLDED)
    result = run("import", "--", "-x.txt")
    assert result.code == 0 and "ok            -x.txt: " in result.stderr
