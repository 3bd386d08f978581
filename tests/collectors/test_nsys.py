"""collectors/nsys.py: the command lines it asks for, what it makes of nsys's words, what it reads."""

from __future__ import annotations

import re
import shutil
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.collectors.base import Parsed
from orchestrator.collectors.nsys import Nsys, importer
from orchestrator.model import Artifact, Capture, Job, Launch, Sign, Target, Tool, Window

FLAGS = frozenset(
    {"session-new", "trace", "wait", "show-output", "kill", "sample", "cpuctxsw", "output", "force-overwrite",
     "stop-on-exit", "capture-range", "capture-range-end", "nvtx-capture"}
)  # fmt: skip
TRACES = frozenset(f"trace={t}" for t in ("cuda", "nvtx", "osrt", "cudnn", "cublas", "none"))


def nsys(**options: Any) -> Nsys:
    return Nsys.model_validate({"use": "nsys", **options})


def job(tool: Tool | None = None, env: dict[str, str] | None = None, **more: Any) -> Job:
    target = Target(("python", "train.py"), "/usr/bin/python", "/", env or {})
    return Job(
        "p3", "/scratch/p3-nsys", target, tool or Tool("nsys", "/opt/nsys/bin/nsys", "2022.4.2", FLAGS | TRACES), **more
    )


def wrap(launch: Launch) -> tuple[str, ...]:
    assert launch.wrap is not None
    return launch.wrap.argv


# ---------------------------------------------------------------- command lines


def test_the_command_line_leaves_nothing_to_defaults_that_differ_by_version() -> None:
    argv = wrap(nsys().launch(job()))
    assert argv[:2] == ("/opt/nsys/bin/nsys", "profile")
    assert argv[2].startswith("--session-new=profrun-")
    assert set(argv[3:]) == {
        "--trace=osrt,nvtx", "--wait=primary", "--show-output=true", "--sample=none", "--cpuctxsw=none", "--kill=none",
        "--output=/scratch/p3-nsys/report", "--force-overwrite=true", "--stop-on-exit=true",
    }  # fmt: skip
    assert "--" not in argv, "nsys of 2022 refuses it"


def test_with_a_gpu_cuda_and_its_libraries_are_traced() -> None:
    assert "--trace=cuda,nvtx,osrt,cudnn,cublas" in wrap(nsys().launch(job(facts={"gpus": [{"index": 0}]})))


def test_what_the_plan_asks_for_is_traced_also_without_a_gpu() -> None:
    assert "--trace=cuda,osrt" in wrap(nsys(trace=["cuda", "osrt"]).launch(job()))


def test_options_and_traces_of_other_versions_are_left_out() -> None:
    old = Tool("nsys", "/opt/nsys/bin/nsys", "2020.1", frozenset({"trace", "output", "trace=osrt", "trace=nvtx"}))
    launch = nsys(trace=["osrt", "syscall"]).launch(job(old))
    assert wrap(launch)[2:] == ("--trace=osrt", "--output=/scratch/p3-nsys/report")
    assert launch.notes == ("nsys 2020.1 can't trace syscall",)


def test_a_help_text_that_says_nothing_hides_nothing() -> None:
    argv = wrap(nsys().launch(job(Tool("nsys", "/opt/nsys/bin/nsys", None))))
    assert {"--trace=osrt,nvtx", "--kill=none", "--output=/scratch/p3-nsys/report"} <= set(argv)


def test_a_range_is_opened_for_plain_names_too_and_its_end_kills_nobody() -> None:
    launch = nsys(range="step@*", trace=["osrt"]).launch(job())
    assert "--trace=osrt,nvtx" in wrap(launch)
    assert {"--capture-range=nvtx", "--nvtx-capture=step@*", "--capture-range-end=stop"} <= set(wrap(launch))
    assert launch.child.set == {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}


def test_a_window_is_recorded_by_start_and_stop_in_the_same_session() -> None:
    launch = nsys().launch(job(env={"TMPDIR": "/big/tmp"}, window=Window(1.5, 2.0)))
    session = wrap(launch)[2].removeprefix("--session-new=")
    assert wrap(launch)[1] == "launch"
    assert not {"--output=/scratch/p3-nsys/report", "--kill=none"} & set(wrap(launch)), "these are no options of launch"
    (beside,) = launch.beside
    assert beside.when == "window"
    assert beside.grace_s == 120
    assert beside.argv[:4] == ("env", "TMPDIR=/big/tmp", "sh", "-c")
    assert beside.argv[5:7] == ("/opt/nsys/bin/nsys", session)
    assert "--output=/scratch/p3-nsys/report" in beside.argv


def test_every_attempt_of_every_run_has_a_session_of_its_own() -> None:
    """nsys says `Agent launcher failed` when the name is taken, be it by what an earlier target has left behind."""
    jobs = [Job("p3", d, job().target, job().tool, attempt=n) for d in ("/scratch/a", "/scratch/b") for n in (1, 2)]
    assert len({wrap(nsys().launch(j))[2] for j in jobs}) == 4


def test_the_importer_is_found_beside_the_real_nsys(tmp_path: Path) -> None:
    home = tmp_path / "nsight" / "target-linux-x64"
    beside = tmp_path / "nsight" / "host-linux-x64"
    for directory in (home, beside):
        directory.mkdir(parents=True)
    (home / "nsys").touch()
    (beside / "QdstrmImporter").touch()
    link = tmp_path / "nsys"
    link.symlink_to(home / "nsys")
    assert importer(str(link)) == home / "../host-linux-x64/QdstrmImporter"
    convert, export = nsys().launch(job(Tool("nsys", str(link), "2022.4.2", FLAGS))).after
    assert convert.when_missing == convert.produces == "report.nsys-rep"
    assert convert.argv[1:] == ("-i", "/scratch/p3-nsys/report.qdstrm", "-o", "/scratch/p3-nsys/report.nsys-rep")
    assert export.argv[:2] == (str(link), "export")
    assert (export.produces, export.when_missing) == ("report.sqlite", None), "always made of this run's report"


def test_everything_it_leaves_may_hold_the_environment() -> None:
    artifacts = {a.role: a for a in nsys().launch(job()).artifacts}
    assert {role: a.holds_env for role, a in artifacts.items()} == {"report": True, "sqlite": True, "qdstrm": True}
    assert {role for role, a in artifacts.items() if a.required} == {"report", "sqlite"}
    assert artifacts["sqlite"].derived_from == "report"


def test_unknown_traces_and_empty_lists_are_refused() -> None:
    for bad in (["cudda"], [], "cuda"):
        with pytest.raises(ValidationError):
            nsys(trace=bad)


# ---------------------------------------------------------------- what nsys says


def first(signs: tuple[Sign, ...], said: str) -> tuple[str, str] | None:
    """Status and reason, as the runner finds them."""
    for sign in signs:
        hit = re.search(sign.pattern, said)
        if hit:
            return sign.status, sign.reason.format(*hit.groups(default="?"))
    return None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("program_not_found", "nsys could not start nosuch"),
        ("file_not_found", "nsys could not start /nonexistent/prog"),
        ("not_executable", "nsys could not start the target: it is not executable"),
        ("unknown_option", "this version of nsys has no option --bogus=3"),
        ("unknown_trace", "this version of nsys refuses --trace nosuch"),
        ("no_tmpdir", "nsys could not start its agent: is TMPDIR there and writable?"),
        ("no_directory", "nsys could not write its report: No such file or directory; it is in TMPDIR"),
        ("file_exists", "nsys could not write its report: File exists; it is in TMPDIR"),
        ("disk_full", "nsys could not write its report: No space left on device; it is in TMPDIR"),
        ("tmpdir_full", "disk full: Invalid truncate size"),
        ("export_disk_full", "disk full: database or disk is full"),
        ("cut_qdstrm", "nsys was ended before its data was written"),
        ("range_never_opened", "nsys names no report"),
        (
            "hang",
            "nsys hung while it wrote its report; with `retry: true` in the plan's target such a pass is started again",
        ),
    ],
)
def test_its_own_words_tell_why_there_is_no_report(golden: Path, name: str, reason: str) -> None:
    said = (golden / "nsys" / "said" / f"{name}.txt").read_text()
    assert first(nsys().launch(job()).signs, said) == ("tool_failed", reason)


def test_a_range_that_never_opened_is_named(golden: Path) -> None:
    said = (golden / "nsys" / "said" / "range_never_opened.txt").read_text()
    signs = nsys(range="never{0}@*").launch(job()).signs
    assert first(signs, said) == ("tool_failed", "capture range never opened: no NVTX range never{0}@*")


def test_what_a_normal_run_prints_is_no_sign() -> None:
    said = "FileNotFoundError: [Errno 2] No such file or directory: 'x'\n"
    said += "Generating '/tmp/nsys-report-1.qdstrm'\nGenerated:\n    /scratch/report.qdstrm\n"
    assert first(nsys().launch(job()).signs, said) is None


# ---------------------------------------------------------------- checks, parse


def machine(tool: Tool, gpus: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(tool=lambda probe: tool, gpus=gpus, given={}.get)


def test_checks_say_what_can_be_traced(tmp_path: Path) -> None:
    (tmp_path / "nsys").touch()
    (tmp_path / "QdstrmImporter").touch()
    tool = Tool("nsys", str(tmp_path / "nsys"), "2022.4.2", FLAGS | TRACES)
    found = nsys(trace=["osrt", "syscall"]).checks(machine(tool, []))
    assert [(c.verdict, c.message) for c in found[1:]] == [
        ("ok", "no NVIDIA GPU here: osrt can be traced"),
        ("warn", "nsys 2022.4.2 can't trace syscall: left out"),
    ]
    asked = nsys(trace=["cuda", "cudnn", "osrt"]).checks(machine(tool, []))[1]
    assert (asked.verdict, asked.message) == ("warn", "no NVIDIA GPU here: osrt can be traced, not cuda, cudnn")
    assert [c.verdict for c in nsys().checks(machine(tool, [{"index": 0}]))] == ["ok"]
    assert [c.verdict for c in nsys().checks(machine(Tool("nsys", None), []))] == ["missing"]


def capture(path: Path, role: str = "sqlite") -> Capture:
    artifact = Artifact(role, path.name, "sqlite", 1, "", 0)
    return Capture("p3-nsys", "p3", "nsys", "ok", artifacts=(artifact,), root=path.parent)


def test_parse_gives_the_tables_and_says_that_there_was_no_gpu(golden: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    db = sqlite3.connect(path)
    db.executescript((golden / "nsys" / "osrt_nvtx.sql").read_text())
    db.close()
    parsed = nsys().parse(capture(path))
    assert [t.name for t in parsed.tables] == ["os_calls_summary", "os_calls", "ranges", "range_summary"]
    assert parsed.notes == ("no GPU to trace: the recording names no NVIDIA GPU",)
    assert parsed.status is None, "the run's own status stays"


def test_a_recording_of_nothing_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE StringIds (id INT, value TEXT)")
    db.close()
    parsed = nsys().parse(capture(path))
    assert (parsed.status, parsed.reason) == ("empty", "nsys recorded no event of what was traced")


def test_without_an_export_the_reason_of_the_run_stays(tmp_path: Path) -> None:
    """A .qdstrm that nobody could convert is an artifact too, and no table."""
    assert nsys().parse(capture(tmp_path / "report.qdstrm", "qdstrm")) == Parsed()


@pytest.mark.tool("nsys")
def test_the_help_of_the_installed_version_is_understood() -> None:
    from orchestrator.machine import Machine

    tool = nsys().tool(Machine({"nsys": shutil.which("nsys") or ""}))
    assert {"output", "trace", "sample", "trace=osrt", "trace=nvtx", "trace=cuda"} <= tool.features
    assert re.fullmatch(r"20\d\d\.\d+(\.\d+)*", tool.version or "")


# ---------------------------------------------------------------- forks, graphs, further exports

WISHES = FLAGS | TRACES | {"trace-fork-before-exec", "cuda-graph-trace", "backtrace", "gpu-metrics-device"}
NEW = Tool("nsys", "/opt/nsys/bin/nsys", "2025.3.2", frozenset(WISHES | {"export=jsonlines", "export=parquetdir"}))
ALL = {"fork": True, "graphs": "node", "backtrace": "fp", "sample": "process-tree", "gpu_metrics": True}


def test_what_the_plan_wants_beyond_the_defaults() -> None:
    launch = nsys(**ALL).launch(job(NEW))
    assert {
        "--trace-fork-before-exec=true", "--cuda-graph-trace=node", "--backtrace=fp", "--sample=process-tree",
        "--gpu-metrics-device=all",
    } <= set(wrap(launch))  # fmt: skip
    assert launch.notes == ()
    assert not any("fork" in word or "graph" in word for word in wrap(nsys().launch(job(NEW))))


def test_in_a_window_they_belong_to_launch_or_to_start() -> None:
    launch = nsys(**ALL).launch(job(NEW, window=Window(1.0)))
    assert {"--trace-fork-before-exec=true", "--cuda-graph-trace=node"} <= set(wrap(launch))
    assert not {"--backtrace=fp", "--gpu-metrics-device=all"} & set(wrap(launch)), "these are no options of launch"
    assert {"--backtrace=fp", "--gpu-metrics-device=all"} <= set(launch.beside[0].argv)


def test_further_exports_where_the_tool_offers_them() -> None:
    launch = nsys(export=["jsonlines", "parquetdir"]).launch(job(NEW))
    assert [after.argv[3:7] for after in launch.after[-2:]] == [
        ("jsonlines", "--force-overwrite", "true", "--output"),
        ("parquetdir", "--force-overwrite", "true", "--output"),
    ]
    assert launch.after[-1].argv[7:] == ("/scratch/p3-nsys/report_parquet", "/scratch/p3-nsys/report.nsys-rep")
    more = {a.role: (a.glob, a.required, a.holds_env) for a in launch.artifacts[-2:]}
    assert more == {"jsonlines": ("report.jsonl", False, True), "parquetdir": ("report_parquet/*", False, True)}


def test_what_this_version_does_not_offer_is_left_out_and_told() -> None:
    old = nsys(**ALL, export=["jsonlines", "arrowdir"])
    said = "does not offer fork, graphs, backtrace, gpu_metrics, export: jsonlines, export: arrowdir"
    assert f"nsys 2022.4.2 {said}: left out" in [check.message for check in old.checks(machine(job().tool, []))]
    launch = old.launch(job())
    assert launch.notes == (f"nsys 2022.4.2 {said}",)
    assert len(launch.after) == len(nsys().launch(job()).after)
    assert not any("fork" in word or "graph" in word or "metrics" in word for word in wrap(launch))


def test_that_forks_may_hang_is_told() -> None:
    assert any("fork: true may make" in check.message for check in nsys(fork=True).checks(machine(NEW, [])))


def test_a_report_of_a_newer_nsys_is_named_as_such(shared: Path) -> None:
    """In the words of the real `nsys export` of 2022.4 on a report of 2025.5."""
    said = (shared / "data" / "nsys" / "local2022.4.2_export_error_2025.5.2_rtx3060_wsl_vecadd.txt").read_text()
    assert first(nsys().launch(job()).signs, said) == (
        "unreadable",
        "the report is of a newer nsys (2025.5.2) than the one here: read it with that version or a later one",
    )
