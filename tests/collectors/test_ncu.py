"""collectors/ncu.py: the command lines it asks for, what it makes of ncu's words."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.collectors.base import Parsed
from orchestrator.collectors.ncu import Ncu
from orchestrator.model import Artifact, Capture, Job, Launch, Sign, Target, Tool, Window

TARGET = Target(("python", "train.py"), "/usr/bin/python", "/", {})
TOOL = Tool("ncu", "/opt/ncu/ncu", "2022.3.0.0")


def ncu(**options: Any) -> Ncu:
    return Ncu.model_validate({"use": "ncu", **options})


def launch(**options: Any) -> Launch:
    return ncu(**options).launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL))


def argv(**options: Any) -> tuple[str, ...]:
    wrap = launch(**options).wrap
    assert wrap is not None
    return wrap.argv


def test_the_command_line_of_the_defaults() -> None:
    assert " ".join(argv()) == (
        "/opt/ncu/ncu --target-processes all --export /scratch/p4-ncu/report --force-overwrite "
        "--log-file /scratch/p4-ncu/ncu.log --launch-skip 0 --launch-count 10 --replay-mode kernel "
        "--clock-control base --cache-control all"
    )
    assert "--" not in argv(), "ncu of 2022 refuses it"


def test_nothing_is_written_into_the_users_home() -> None:
    assert launch().child.set == {"NV_COMPUTE_PROFILER_DISABLE_STOCK_FILE_DEPLOYMENT": "1"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"set": "full"}, "--set full"),
        ({"set": "none", "metrics": ["a.sum", "b.avg"]}, "--metrics a.sum,b.avg"),
        ({"set": "none", "sections": ["SourceCounters"]}, "--section SourceCounters"),
        (
            {"metrics": ["a.sum"]},
            "--section LaunchStats --section Occupancy --section SpeedOfLight --metrics a.sum",
        ),
        ({"set": "full", "sections": ["SourceCounters"]}, "--set full --section SourceCounters"),
    ],
)
def test_what_is_collected(options: dict[str, Any], words: str) -> None:
    line = " ".join(argv(**options))
    assert f"ncu.log {words} --launch-skip" in line


def test_which_kernels_are_looked_at() -> None:
    line = argv(
        kernels="gemm|conv", launches=3, skip=5, replay="application", clock_control="none", cache_control="none"
    )
    assert " ".join(line).endswith(
        "--kernel-name regex:gemm|conv --launch-skip 5 --launch-count 3 --replay-mode application "
        "--clock-control none --cache-control none"
    )


def test_a_window_is_not_silently_ignored() -> None:
    notes = ncu().launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL, window=Window(1.0))).notes
    assert notes == (
        "a window in time does not apply to ncu: it takes the first launches that match (one in steps does)",
    )


# ---------------------------------------------------------------- what ncu says


def first(signs: tuple[Sign, ...], said: str) -> tuple[str, str] | None:
    """Status and reason, as the runner finds them."""
    for sign in signs:
        hit = re.search(sign.pattern, said)
        if hit:
            return sign.status, sign.reason.format(*hit.groups(default="?"))
    return None


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("unknown_option", "tool_failed", "this version of ncu has no option --bogus"),
        ("unknown_set", "tool_failed", "this version of ncu has nothing for set nosuch, sections none"),
        ("bad_section", "tool_failed", "ncu says: ==ERROR== Option '--section nosuch' did not match any section."),
        ("bad_regex", "tool_failed", "ncu says: ==ERROR== Invalid regex provided to --kernel option."),
        ("not_executable", "tool_failed", "ncu says: ==ERROR== 'nosuch' does not exist or is not an executable."),
        ("no_directory", "tool_failed", "ncu says: ==ERROR== Unable to write to file report.ncu-rep."),
        ("no_kernels", "empty", "ncu says: No kernels were profiled. It looked for all kernels, 10 from number 0 on"),
        ("target_failed", "empty", "ncu says: No kernels were profiled."),
    ],
)
def test_its_own_words_tell_why_there_is_no_report(golden: Path, name: str, status: str, reason: str) -> None:
    said = (golden / "ncu" / "said" / f"{name}.txt").read_text()
    options = {"set": "nosuch"} if name == "unknown_set" else {}
    found = first(launch(**options).signs, said)
    assert found is not None
    assert found[0] == status
    assert found[1].startswith(reason)


def test_the_hint_and_the_filter_are_told(golden: Path) -> None:
    said = "==WARNING== No kernels were profiled.\n==WARNING== Try --target-processes all.\n"
    assert first(launch(kernels="a{2}", launches=3, skip=1).signs, said) == (
        "empty",
        "ncu says: No kernels were profiled. Try --target-processes all. "
        "It looked for kernels matching 'a{2}', 3 from number 1 on, in all processes",
    )


def test_forbidden_counters_are_blocked_with_the_fix(shared: Path) -> None:
    """D19, in the words of a real machine."""
    said = (shared / "data" / "ncu" / "log_err_nvgpuctrperm.txt").read_text()
    status, reason = first(launch().signs, said) or ("", "")
    assert status == "blocked"
    assert reason.startswith("ERR_NVGPUCTRPERM")
    assert "NVreg_RestrictProfilingToAdminUsers=0" in reason
    assert "--cap-add=SYS_ADMIN" in reason


# ---------------------------------------------------------------- checks, parse


def machine(tool: Tool, gpus: list[dict[str, Any]]) -> Any:
    return SimpleNamespace(tool=lambda probe: tool, gpus=gpus, given={}.get)


def test_without_a_gpu_the_check_warns() -> None:
    found = ncu().checks(machine(TOOL, []))
    assert [c.verdict for c in found] == ["ok", "warn"]
    assert found[1].message == "no NVIDIA GPU here: the target will run, no kernel can be seen"
    assert [c.verdict for c in ncu().checks(machine(TOOL, [{"index": 0}]))] == ["ok"]
    assert [c.verdict for c in ncu().checks(machine(Tool("ncu", None), []))] == ["missing"]


def capture(folder: Path, *files: str) -> Capture:
    artifacts = tuple(Artifact("report", name, "ncu-rep", 1, "", 0) for name in files)
    return Capture("p4-ncu", "p4", "ncu", "ok", artifacts=artifacts, root=folder)


def test_parse_leaves_out_a_table_without_rows(shared: Path) -> None:
    pytest.importorskip("ncu_report")
    folder = shared / "data" / "ncu"
    full = ncu().parse(capture(folder, "2022.3.0_rtx3070_vecadd.ncu-rep"))
    assert [t.name for t in full.tables] == ["kernel_metrics", "kernel_rules"]
    bare = ncu().parse(capture(folder, "2023.1.1_a10g_metrics_all_12k.ncu-rep"))
    assert [t.name for t in bare.tables] == ["kernel_metrics"]


def test_without_a_report_the_reason_of_the_run_stays(tmp_path: Path) -> None:
    assert ncu().parse(capture(tmp_path)) == Parsed()
