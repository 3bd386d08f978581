"""From nsys to ncu: plans that can't work, and whole runs with stand-ins for both tools."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli import environment, profrun, script, write_plan
from kernel_export import Kernel, make

FAST = {"report": "{formats: []}"}
FROM = "{use: ncu, kernels: {from: nsys, top: 2}}"
REPORT = "2025.2.1_rtx5060ti_2kernels.ncu-rep"
"""A real report of two kernels, each once, of grid 32,32,1 and block 32,32,1."""
PLAIN, SHARED = "_Z15transposeMatrixPfS_ii", "_Z21transposeMatrixSharedPfS_ii"
SHAPE = "32,32,1"


def steps(plain: str = "transposeMatrix", grid: str = SHAPE, block: str = SHAPE) -> list[Kernel]:
    """Twenty steps of two kernels; the arguments are what nsys says of the first."""
    first = Kernel(PLAIN, 0, 60, grid, block, f"{plain}(float *, float *, int, int)", plain)
    second = Kernel(SHARED, 70, 10, SHAPE, SHAPE, "transposeMatrixShared(float *, float *, int, int)")
    return [replace(kernel, start=100 * n + kernel.start) for n in range(20) for kernel in (first, second)]


class Tools:
    """Stand-ins for nsys and ncu: the first leaves a prepared export, the second writes down its words and leaves a
    report of another machine."""

    def __init__(self, folder: Path, report: Path) -> None:
        self.folder = folder
        self.export = folder / "export.sqlite"
        self.words = folder / "ncu.words"
        self.env = environment(PATH=f"{folder}:/usr/bin:/bin")
        self.seen(steps())
        script(folder / "nsys", f"""#!/bin/sh
case " $* " in *" --version "*) echo "NVIDIA Nsight Systems version 2022.4.2"; exit 0;; *" --help "*) exit 0;; esac
if [ "$1" = export ]; then while [ "$1" != --output ]; do shift; done; cp {self.export} "$2"; exit; fi
shift
while case "$1" in --output=*) echo report > "${{1#--output=}}.nsys-rep";; --*) ;; *) false;; esac; do shift; done
exec "$@"
""")  # fmt: skip
        self.ncu(f'cp {report} "$out.ncu-rep"')

    def seen(self, kernels: list[Kernel], graphs: int = 0) -> None:
        """What nsys has seen."""
        self.export.unlink(missing_ok=True)
        make(self.export, kernels, graphs)

    def ncu(self, does: str) -> None:
        """`does`: what it does before the target runs; $out is its export, $log its log."""
        script(self.folder / "ncu", f"""#!/bin/sh
case " $* " in *" --version "*) echo "Version 2022.3.0.0"; exit 0;; *" --help "*) exit 0;; esac
for word; do echo "$word"; done > {self.words}
while [ "$1" != --cache-control ]; do
    case "$1" in --export) out="$2";; --log-file) log="$2";; esac; shift
done
shift 2
{does}
exec "$@"
""")  # fmt: skip


@pytest.fixture
def tools(tmp_path: Path, shared: Path) -> Tools:
    folder = tmp_path / "tools"
    folder.mkdir()
    return Tools(folder, shared / "data" / "ncu" / REPORT)


def run(tmp_path: Path, tools: Tools, *collectors: str, words: tuple[Any, ...] = ()) -> Any:
    plan = write_plan(tmp_path, *collectors, **FAST)
    return profrun(plan, *words, "--", "true", cwd=tmp_path, env=tools.env)


def test_ncu_is_told_the_kernels_that_nsys_has_seen(tmp_path: Path, tools: Tools) -> None:
    pytest.importorskip("ncu_report")
    result = run(tmp_path, tools, "{use: nsys}", FROM)
    assert result.statuses() == {"nsys": "ok", "ncu": "ok"}
    words = tools.words.read_text().splitlines()
    assert words[words.index("--kernel-name-base") + 1] == "mangled"
    # 20 launches of each, those from the 11th on in the second half: one in the middle, the same for both
    assert words[words.index("--kernel-id") + 1] == f"::regex:^({PLAIN}|{SHARED})$:^(16)$"
    capture = result.captures()["ncu"]
    assert [pick["kernel"].partition("(")[0] for pick in capture["options"]["picks"]["kernels"]] == [
        "transposeMatrix",
        "transposeMatrixShared",
    ]
    assert capture["options"]["picks"]["source"] == "p01-nsys"
    assert "the 2 kernels with the most time in nsys" in capture["notes"][0]
    assert result.summary["tables"]["kernel_profiles"]["rows"] == 2


@pytest.mark.parametrize(
    ("seen", "measured"),
    [
        ({"plain": "gemm"}, "transposeMatrix"),
        ({"grid": "1,1,1"}, "transposeMatrix"),
        ({"block": "64,1,1"}, "transposeMatrix"),
    ],
)
def test_a_wrong_kernel_is_caught(tmp_path: Path, tools: Tools, seen: dict[str, str], measured: str) -> None:
    pytest.importorskip("ncu_report")
    tools.seen(steps(**seen))
    result = run(tmp_path, tools, "{use: nsys}", FROM)
    capture = result.captures()["ncu"]
    shape = f"grid {seen.get('grid', SHAPE)}, block {seen.get('block', SHAPE)}"
    reason = (
        f"p01-nsys chose {seen.get('plain', 'transposeMatrix')} ({shape}), "
        f"ncu measured {measured} (grid {SHAPE}, block {SHAPE})"
    )
    assert (capture["status"], capture["reason"]) == ("degraded", reason)
    again = profrun("report", result.folder, cwd=tmp_path, env=tools.env)
    assert again.captures()["ncu"]["reason"] == reason, "the choice is kept in the report"


def test_a_kernel_that_ncu_did_not_measure_is_named(tmp_path: Path, tools: Tools) -> None:
    pytest.importorskip("ncu_report")
    tools.seen([*steps(), *(Kernel("_Z4fillPf", 2000 + n, short="fill", demangled="fill(float *)") for n in range(9))])
    collector = "{use: ncu, kernels: {from: nsys, top: 3}}"
    capture = run(tmp_path, tools, "{use: nsys}", collector).captures()["ncu"]
    assert capture["status"] == "degraded"
    assert capture["reason"] == "p01-nsys chose fill (grid 64,1,1, block 256,1,1), ncu measured no launch of it"


def test_forbidden_counters_block_ncu_alone(tmp_path: Path, tools: Tools) -> None:
    """D19: the target runs, ncu prints the error and ends well; the other collectors go on."""
    tools.ncu('echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters." > "$log"')
    result = run(tmp_path, tools, "{use: nsys}", FROM, "{use: timing, warmup: 0, repeats: 1}")
    assert result.statuses() == {"nsys": "ok", "ncu": "blocked", "timing": "ok"}
    assert result.captures()["ncu"]["reason"].startswith("ERR_NVGPUCTRPERM: the GPU's counters are not allowed here; ")
    assert "kernel_profiles" not in result.summary["tables"], "no empty table, as if there were no kernels"


def test_without_kernels_in_nsys_the_target_is_not_started_for_ncu(tmp_path: Path, tools: Tools) -> None:
    tools.seen([], graphs=3)
    result = run(tmp_path, tools, "{use: nsys}", FROM)
    capture = result.captures()["ncu"]
    assert capture["status"] == "empty"
    assert capture["reason"].startswith(
        "p01-nsys shows no kernel to look at; 3 launches of CUDA graphs (3.0 ms) were traced as a whole"
    )
    assert not tools.words.exists()


def test_when_nsys_has_failed_ncu_is_skipped_and_the_others_go_on(tmp_path: Path, tools: Tools) -> None:
    tools.export.unlink()
    result = run(tmp_path, tools, "{use: nsys}", FROM, "{use: timing, warmup: 0, repeats: 1}")
    assert result.statuses() == {"nsys": "tool_failed", "ncu": "skipped", "timing": "ok"}
    assert result.captures()["ncu"]["reason"].startswith("its kernels come from nsys, and p01-nsys is tool_failed: ")


def test_an_unreadable_export_costs_only_ncu(tmp_path: Path, tools: Tools) -> None:
    tools.export.write_text("no database at all")
    result = run(tmp_path, tools, "{use: nsys}", FROM)
    assert result.statuses() == {"nsys": "unreadable", "ncu": "skipped"}
    assert result.captures()["ncu"]["reason"].startswith("its kernels come from p01-nsys: report.sqlite is no ")


def test_a_pass_of_ncu_alone_takes_the_recording_of_the_report_that_it_is_added_to(
    tmp_path: Path, tools: Tools
) -> None:
    pytest.importorskip("ncu_report")
    plan = write_plan(tmp_path, "{use: nsys}", FROM, **FAST)
    first = profrun(plan, "--only", "nsys", "--", "true", cwd=tmp_path, env=tools.env)
    assert not tools.words.exists()
    again = profrun(plan, "--only", "ncu", "--into", first.folder, "--", "true", cwd=tmp_path, env=tools.env)
    assert again.statuses() == {"nsys": "ok", "ncu": "ok"}
    assert f"::regex:^({PLAIN}|{SHARED})$:^(16)$" in tools.words.read_text().splitlines()
    assert again.captures()["ncu"]["options"]["picks"]["source"] == "p01-nsys"


def test_without_nsys_the_choice_of_collectors_is_refused(tmp_path: Path, tools: Tools) -> None:
    for words in (("--only", "ncu"), ("--skip", "nsys")):
        result = run(tmp_path, tools, "{use: nsys}", FROM, "{use: timing}", words=words)
        assert result.code == 2
        assert "ncu takes its kernels from nsys, and --only or --skip leaves that out" in result.stderr
        assert "--only ncu --into RUN" in result.stderr


def test_check_says_the_choice_in_words(tmp_path: Path, tools: Tools) -> None:
    plan = write_plan(tmp_path, "{use: nsys}", "{use: ncu, kernels: {from: nsys, by: exposed_time}}", **FAST)
    result = profrun("check", plan, "--json", "--", "true", cwd=tmp_path, env=tools.env)
    commands = json.loads(result.stdout)["passes"][1]["commands"]
    argv = next(command["argv"] for command in commands if command["for"] == "target")
    assert argv[argv.index("--kernel-id") + 1] == "the 5 kernels with the most exposed time in nsys"


def test_check_says_how_a_window_of_steps_is_filled(tmp_path: Path, tools: Tools) -> None:
    plan = write_plan(tmp_path, "{use: nsys}", FROM, window="{skip: 3, steps: 2}", **FAST)
    told = profrun("check", plan, "--", "true", cwd=tmp_path, env=tools.env).stdout
    assert "--kernel-name 'the 2 kernels with the most time in nsys' --launch-count '{launches}'" in told
    assert "{launches} as many as it takes until each chosen kernel has come" in told


@pytest.mark.parametrize(
    ("collectors", "place"),
    [
        ((FROM,), "plan.yaml:5:  collectors[0]"),
        ((FROM, "{use: nsys}"), "plan.yaml:5:  collectors[0]"),
        (("{use: nsys}", f"{{together: [{{use: py-spy}}, {FROM}]}}"), None),
        (("{use: timing}", f"{{together: [{{use: py-spy}}, {FROM}]}}"), "plan.yaml:6:  collectors[1].together[1]"),
    ],
)
def test_nsys_has_to_come_before(tmp_path: Path, collectors: tuple[str, ...], place: str | None) -> None:
    result = profrun("check", write_plan(tmp_path, *collectors, **FAST), "--", "true", cwd=tmp_path)
    if place is None:
        assert "takes its kernels from" not in result.stderr
        return
    assert result.code == 2
    assert f"{place}: takes its kernels from nsys, which does not come before it (add - {{use: nsys}}" in result.stderr


@pytest.mark.parametrize(
    ("collectors", "instead"),
    [
        (("{use: nsys, trace: [osrt]}", FROM), "write trace: [cuda, osrt] in - {use: nsys}"),
        (("{use: nsys, trace: [none]}", FROM), "write trace: [cuda] in - {use: nsys}"),
        (("{use: torch, activities: [cpu]}", FROM.replace("nsys", "torch")), "write activities: [cpu, cuda] in"),
        (("{use: nsys, trace: [osrt]}", "{use: torch, activities: [cpu]}", FROM), "in - {use: torch}"),
        (("{use: nsys, trace: [osrt]}", "{use: torch}", FROM), None),
        (("{use: nsys, trace: [osrt]}", "{use: nsys, trace: [cuda]}", FROM), None),
        (("{use: nsys, trace: [osrt]}", "{use: ncu}"), None),
        (("{use: nsys}", FROM), None),
    ],
)
def test_what_it_asks_has_to_look_at_kernels(tmp_path: Path, collectors: tuple[str, ...], instead: str | None) -> None:
    result = profrun("check", write_plan(tmp_path, *collectors, **FAST), "--", "true", cwd=tmp_path)
    assert (result.code == 2) == (instead is not None)
    assert ("whose options leave them out (" in result.stderr) == (instead is not None)
    assert (instead or "") in result.stderr


def test_in_one_pass_with_nsys_it_is_refused(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, f"{{together: [{{use: nsys}}, {FROM}]}}", **FAST)
    result = profrun("check", plan, "--", "true", cwd=tmp_path)
    assert result.code == 2
    assert "nsys and ncu can't share a pass: each traces the GPU through CUPTI" in result.stderr
