"""collectors/ncu.py: the command lines it asks for, what it makes of ncu's words."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.collectors.base import Parsed
from orchestrator.collectors.ncu import Ncu
from orchestrator.formats.kernel_names import COMMUNICATION
from orchestrator.machine import Machine
from orchestrator.model import Artifact, Capture, Job, Launch, Pick, Picks, Sign, Target, Tool, Window, Wrap

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
        f"--log-file /scratch/p4-ncu/ncu.log --kernel-name regex:^(?!.*(?i:{COMMUNICATION})) --launch-skip 0 "
        "--launch-count 10 --replay-mode kernel "
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
    assert f"ncu.log {words} --kernel-name" in line


def test_which_kernels_are_looked_at() -> None:
    line = argv(
        kernels="gemm|conv", launches=3, skip=5, replay="application", clock_control="none", cache_control="none"
    )
    assert " ".join(line).endswith(
        "--kernel-name regex:gemm|conv --launch-skip 5 --launch-count 3 --replay-mode application "
        "--clock-control none --cache-control none"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernels": "gemm|conv"}, f"--kernel-name regex:^(?!.*(?i:{COMMUNICATION})).*(gemm|conv) --launch-skip"),
        ({"kernels": "ncclDevKernel"}, "--kernel-name regex:ncclDevKernel --launch-skip"),
        ({"replay": "application"}, "ncu.log --launch-skip"),
        (
            {"kernels": {"name": "^void at::", "base": "demangled"}},
            f"--kernel-name-base demangled --kernel-name regex:^(?!.*(?i:{COMMUNICATION})).*(^void at::) --launch-skip",
        ),
    ],
)
def test_kernel_replay_leaves_out_what_waits_for_other_gpus(options: dict[str, Any], words: str) -> None:
    assert words in " ".join(argv(**options))


@pytest.mark.parametrize(
    ("option", "environment", "clocks"),
    [
        ("auto", (), "base"),
        ("auto", ("seeds", "gpu_clocks"), "none"),
        ("auto", ("gpu_clocks: GPU 0 persistence", "gpu_clocks: GPU 0 graphics"), "none"),
        ("auto", ("gpu_clocks: GPU 0 applications' clocks",), "none"),
        ("auto", ("gpu_clocks", "gpu_clocks: GPU 0 persistence"), "base"),
        ("auto", ("gpu_clocks: GPU 0 persistence", "gpu_clocks: GPU 0 memory"), "base"),
        ("base", ("gpu_clocks",), "base"),
        ("none", (), "none"),
    ],
)
def test_clocks_are_locked_once(option: str, environment: tuple[str, ...], clocks: str) -> None:
    """By the plan's own step, where that has worked, or by ncu."""
    job = Job("p4", "/scratch/p4-ncu", TARGET, TOOL, facts={"environment": environment})
    wrap = ncu(clock_control=option).launch(job).wrap
    assert wrap is not None
    assert wrap.argv[wrap.argv.index("--clock-control") + 1] == clocks


# ---------------------------------------------------------------- kernels that nsys has chosen

SGEMM = Pick("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn", "20,32,1", "128,1,1",
             (639, 640), 524, 10**9, 0.88)  # fmt: skip
FILL = Pick("void ns::fill<float>(T1)", "fill", "_ZN2ns4fillIfEEvT_$a.b", "64,1,1", "256,1,1", (7,), 20, 10**6, 0.02)
PICKS = Picks((SGEMM, FILL), "mangled", "in the steady steps", 45, source="p02-nsys")
FROM = {"from": "nsys", "top": 2}


def chosen(picks: Picks | None = PICKS, window: Window | None = None, **options: Any) -> Launch:
    return ncu(kernels=FROM, **options).launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL, window=window, picks=picks))


def after_log(launch: Launch) -> str:
    assert launch.wrap is not None
    return " ".join(launch.wrap.argv).partition("ncu.log ")[2].partition(" --replay-mode")[0]


def test_one_start_of_the_target_looks_at_every_chosen_launch() -> None:
    assert after_log(chosen()) == (
        "--kernel-name-base mangled "
        r"--kernel-id ::regex:^(ampere_sgemm_128x64_tn|_ZN2ns4fillIfEEvT_\$a\.b)$:^(7|639|640)$"
    )
    assert chosen().notes == (
        "the 2 kernels with the most time in nsys, in the steady steps: ampere_sgemm_128x64_tn (88 %), fill (2 %)",
        "up to 6 launches match the filter, of which 3 were chosen: ampere_sgemm_128x64_tn, number 639, 640; fill, "
        "number 7",
    )


def test_where_the_filter_takes_the_chosen_launches_alone_nothing_is_said() -> None:
    for kernels in ((SGEMM,), (SGEMM, replace(FILL, numbers=SGEMM.numbers))):
        assert len(chosen(replace(PICKS, kernels=kernels)).notes) == 1


def test_in_a_window_of_steps_it_takes_the_first_launches_until_each_was_seen() -> None:
    assert after_log(chosen(window=Window(skip=5, steps=2))) == (
        r"--kernel-name-base mangled --kernel-name regex:^(ampere_sgemm_128x64_tn|_ZN2ns4fillIfEEvT_\$a\.b)$ "
        "--launch-count 45 --profile-from-start off"
    )
    assert chosen(window=Window(skip=5, steps=2)).notes[1:] == (
        "the first 45 launches of these names are measured, so that each kernel is among them",
    )


def test_a_recording_that_began_late_is_told() -> None:
    assert chosen(replace(PICKS, late=True)).notes[-1].startswith("the recording of p02-nsys began after the program")


def test_before_anything_has_run_the_choice_is_said_in_words() -> None:
    assert after_log(chosen(None)) == "--kernel-id the 2 kernels with the most time in nsys"
    one = ncu(kernels={"from": "nsys", "top": 1, "by": "exposed_time"})
    assert after_log(one.launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL))) == (
        "--kernel-id the kernel with the most exposed time in nsys"
    )
    assert after_log(chosen(None, Window(skip=5, steps=2))) == (
        "--kernel-name the 2 kernels with the most time in nsys --launch-count {launches} --profile-from-start off"
    )


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("void f<int, (T1)3>(int*)", ["void f<int, (T1)3>(int**)", "xvoid f<int, (T1)3>(int*)"]),
        ("a::b[1]{2}|^c$\\d+?", ["a::b1{2}", "c"]),
        ("x" * 6000, ["x" * 4000]),
    ],
)
def test_the_filter_matches_that_name_alone(name: str, others: list[str]) -> None:
    picks = replace(PICKS, kernels=(replace(FILL, match=name),))
    word = (chosen(picks).wrap or Wrap(())).argv
    kernel_id = word[word.index("--kernel-id") + 1]
    assert kernel_id.count(":") == 4, "ncu parts the fields at colons"
    pattern = kernel_id.split(":")[3]
    assert re.search(pattern, name)
    assert not any(re.search(pattern, other) for other in others)


@pytest.mark.parametrize("name", ["2022.1.3_rtx2070s_pytorch_cudnn_nvtx", "2024.6.2_a100_gpt2.7b",
                                  "2024.6.2_a100_gpt_small", "2026.2.1_h100x2_fastvideo_slice"])  # fmt: skip
def test_from_real_recordings_the_filter_takes_the_right_kernels(shared: Path, name: str) -> None:
    """Every launch that passes the filter, by plain SQL, is of a chosen kernel; and each chosen launch passes it."""
    path = shared / "data" / "nsys" / f"{name}.sqlite"
    collector = ncu(kernels={"from": "nsys", "top": 5, "by": "exposed_time"}, launches=3)
    recorded = Capture("p02-nsys", "p02", "nsys", "ok", artifacts=(Artifact("sqlite", path.name, "sqlite", 1, "", 0),),
                       root=path.parent)  # fmt: skip
    picks = collector.pick(recorded, None)
    wrap = collector.launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL, picks=picks)).wrap
    assert wrap is not None
    _, _, _, names, numbers = wrap.argv[wrap.argv.index("--kernel-id") + 1].split(":")
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        rows = db.execute(
            "SELECT value, row_number() OVER (PARTITION BY globalPid, mangledName ORDER BY correlationId, start), "
            "printf('%d,%d,%d', gridX, gridY, gridZ) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds ON id = mangledName"
        ).fetchall()
    passed = [row for row in rows if re.search(names, row[0]) and re.search(numbers, str(row[1]))]
    assert {name for name, _, _ in passed} == {pick.match for pick in picks.kernels}
    assert {(p.match, n, p.grid) for p in picks.kernels for n in p.numbers} <= set(passed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip": 3}, "with kernels that nsys chooses do not go `skip`: which launches"),
        ({"range": "step 7/"}, "do not go `range`: launches are numbered over the whole"),
        ({"replay": "range"}, "do not go `replay: range`: it looks at ranges"),
        ({"skip": 3, "range": "a/", "replay": "range"}, "`skip`: .*; `range`: .*; `replay: range`: "),
        ({"kernels": {"from": "perf"}}, "Input should be 'nsys' or 'torch'"),
        ({"kernels": {"from": "nsys", "top": 21}}, "less than or equal to 20"),
        ({"kernels": {"name": ""}}, "at least 1 character"),
        ({"kernels": ""}, "at least 1 character"),
        ({"kernels": "(gemm"}, r"'\(gemm' is no regular expression: missing \), unterminated subpattern at position 0"),
        ({"kernels": "gemm)"}, "unbalanced parenthesis at position 4"),
        ({"kernels": {"name": "[gemm"}}, "unterminated character set"),
        ({"kernels": {"name": "*gemm*"}}, "nothing to repeat at position 0"),
    ],
)
def test_what_excludes_one_another_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ncu(**{"kernels": FROM, **options})


@pytest.mark.parametrize("pattern", ["a++", "(?|a|b)", r"\Q(\E", "(?<n>a)", "[[:alpha:](]", "(*ACCEPT)", "a(?i)b"])
@pytest.mark.tool("ncu")
def test_what_only_perl_knows_is_left_to_ncu(pattern: str) -> None:
    words = argv(kernels=pattern)
    run = subprocess.run(
        ["ncu", "--kernel-name", words[words.index("--kernel-name") + 1], "true"], capture_output=True, text=True
    )
    assert "Invalid regex" not in run.stdout, "ncu takes it, also behind what leaves out communication"


def test_the_options_survive_the_report() -> None:
    for kernels in (FROM, {"name": "gemm", "base": "mangled"}, "gemm", None):
        one = ncu(kernels=kernels)
        assert Ncu.model_validate(one.model_dump(mode="json", by_alias=True)) == one
        assert Ncu.model_validate(one.model_dump(mode="json")) == one


def test_a_window_is_not_silently_ignored() -> None:
    notes = ncu().launch(Job("p4", "/scratch/p4-ncu", TARGET, TOOL, window=Window(1.0))).notes
    assert notes == (
        "a window in time does not apply to ncu: it takes the first launches that match (one in steps does)",
        "left out are those that wait for other GPUs (NCCL, NVSHMEM, ...): they would hang in kernel replay",
    )


@pytest.mark.parametrize("options", [{"kernels": "nccl"}, {"kernels": "AllReduce_Kernel"}, {"replay": "application"}])
def test_what_was_asked_for_is_not_said_to_be_left_out(options: dict[str, Any]) -> None:
    assert launch(**options).notes == ()


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
        (
            "no_kernels",
            "empty",
            "ncu says: No kernels were profiled. It looked for all kernels but those that "
            "wait for other GPUs (NCCL, NVSHMEM, ...), 10 from number 0 on",
        ),
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
        "It looked for kernels matching 'a{2}' but those that wait for other GPUs (NCCL, NVSHMEM, ...), "
        "3 from number 1 on, in all processes",
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
    assert [t.name for t in full.tables] == ["kernel_profiles", "kernel_metrics", "kernel_rules"]
    bare = ncu().parse(capture(folder, "2023.1.1_a10g_metrics_all_12k.ncu-rep"))
    assert [t.name for t in bare.tables] == ["kernel_profiles", "kernel_metrics"]


BASELINE = Pick("Baseline(int)", "Baseline", "_Z8Baselinei", "128,128,1", "32,32,1", (5,), 10, 1, 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"grid": "8,1,1"}, "p02-nsys chose Baseline (grid 8,1,1, block 32,32,1), ncu measured Baseline "
                            "(grid 128,128,1, block 32,32,1)"),
        ({"block": "64,1,1"}, "p02-nsys chose Baseline (grid 128,128,1, block 64,1,1), ncu measured Baseline "
                              "(grid 128,128,1, block 32,32,1)"),
        ({"function": "Other"}, "p02-nsys chose Other (grid 128,128,1, block 32,32,1), ncu measured Baseline "
                                "(grid 128,128,1, block 32,32,1)"),
        ({"numbers": tuple(range(1, 11))}, None),
        ({"numbers": tuple(range(1, 13))}, "p02-nsys chose 12 launches of Baseline (grid 128,128,1, block 32,32,1), "
                                           "ncu measured 10 of them"),
        ({"numbers": (5, 6), "grid": "8,1,1"}, "p02-nsys chose 2 launches of Baseline (grid 8,1,1, block 32,32,1), "
                                               "ncu measured Baseline (grid 128,128,1, block 32,32,1)"),
    ],
)  # fmt: skip
def test_what_was_measured_is_what_was_chosen(shared: Path, change: dict[str, Any], reason: str | None) -> None:
    """Against a real report of ten launches of one kernel."""
    pytest.importorskip("ncu_report")
    picks = asdict(replace(PICKS, kernels=(replace(BASELINE, **change),)))
    made = capture(shared / "data" / "ncu", "2025.1.0_rtx2060s_histogram_baseline.ncu-rep")
    parsed = ncu(kernels=FROM).parse(replace(made, options={"picks": json.loads(json.dumps(picks))}))
    assert (parsed.status, parsed.reason) == ("degraded" if reason else None, reason)
    assert len(parsed.tables[0]) == 10, "what there is is shown"


def test_a_chosen_kernel_that_was_not_measured_is_named(shared: Path) -> None:
    pytest.importorskip("ncu_report")
    picks = asdict(replace(PICKS, kernels=(BASELINE, FILL)))
    made = capture(shared / "data" / "ncu", "2025.1.0_rtx2060s_histogram_baseline.ncu-rep")
    parsed = ncu(kernels=FROM).parse(replace(made, options={"picks": picks}))
    assert parsed.status == "degraded"
    assert parsed.reason == "p02-nsys chose fill (grid 64,1,1, block 256,1,1), ncu measured no launch of it"


def test_kernels_of_one_template_need_their_launches_each(shared: Path) -> None:
    """They have one function and one shape: what is measured of one does not stand for the other."""
    pytest.importorskip("ncu_report")
    made = capture(shared / "data" / "ncu", "2025.1.0_rtx2060s_histogram_baseline.ncu-rep")
    for count, reason in (
        (5, None),
        (6, "chose 12 launches of Baseline (grid 128,128,1, block 32,32,1), ncu measured 10"),
    ):
        numbers = tuple(range(1, count + 1))
        two = tuple(replace(BASELINE, match=match, numbers=numbers) for match in ("_Z8BaselineIiE", "_Z8BaselineIfE"))
        parsed = ncu(kernels=FROM).parse(replace(made, options={"picks": asdict(replace(PICKS, kernels=two))}))
        assert reason in parsed.reason if reason and parsed.reason else parsed.reason is reason


def test_without_a_report_the_reason_of_the_run_stays(tmp_path: Path) -> None:
    assert ncu().parse(capture(tmp_path)) == Parsed()


def test_it_can_look_only_at_what_it_has_started() -> None:
    check = Ncu(use="ncu").obstacle_to_attach(Machine())
    assert check and check.verdict == "missing" and "started itself" in check.message and "-- COMMAND" in str(check.fix)
