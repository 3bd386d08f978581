"""commands.py: what mistyped command lines are answered, and what help says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator import commands
from orchestrator.errors import ProfrunError, UsageError

REPO = Path(__file__).resolve().parents[1]
EXAMPLE = REPO / "reports" / "example"


def said(*words: str) -> str:
    with pytest.raises(ProfrunError) as refused:
        commands.run([*words])
    return refused.value.text()


@pytest.mark.parametrize(
    ("line", "what", "next_step"),
    [
        ("nightly", "say what to do: install|print|", "profrun nightly --help"),
        ("env", "say what to do: show|restore", "profrun env --help"),
        ("env store", "'store' is not possible here", "profrun env --help"),
        ("schema foo", "'foo' is not possible here", "profrun schema --help"),
        ("restore", "restore is a part of env", "profrun env restore"),
        ("nope.py --lr 1", "there is no file nope.py here", "profrun -- python nope.py"),
        ("cpu-quick", "there is no program to run", "profrun cpu-quick -- python train.py"),
        ("cpu-quick --slurm=-N2", "there is no program to run", "profrun cpu-quick --slurm -N2 -- python train.py"),
        ("cpu-quick --timeout 3q -- true", "use one of ns, us, ms, s, m, min, h, d", "profrun run --help"),
        ("show nope", "there is no report nope", "name the folder of a report"),
        ("compare latest latest --gate 3", "there is no report latest", "name the folder of a report"),
        ("import /etc/passwd", "there is nothing to import", "name files of these kinds"),
    ],
)
def test_a_mistake_is_told_with_the_next_step(
    line: str, what: str, next_step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said(*line.split())
    assert what in text
    assert next_step in text.partition("next:")[2]


def test_a_limit_without_its_unit_is_shown_a_small_one() -> None:
    assert "write it like 3%" in said("compare", str(EXAMPLE), str(EXAMPLE), "--gate", "3")


def test_a_report_without_raw_files_can_be_shown_and_compared(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("report", str(EXAMPLE))
    assert "has no raw files" in text
    assert f"profrun show {EXAMPLE}" in text
    assert commands.run(["compare", str(EXAMPLE), str(EXAMPLE), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"]["verdict"] in ("same", "unsure")


@pytest.mark.parametrize("dry", ["-n", "--dry-run", "-qn"])
def test_the_batch_script_that_is_printed_measures(dry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["cpu-quick", dry, "--slurm", "-N 2", "--", "python", "-n"]) == 0
    words = capsys.readouterr().out.splitlines()[-1].split()
    assert dry not in words[: words.index("--")]
    assert words[words.index("--") :] == ["--", "python", "-n"]


def test_what_can_be_run_can_be_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["check", "cpu-quick", "-n", "--strict", "--keep-going", "-v", "--", "true"]) == 0
    assert "cpu_idle    looks once" in capsys.readouterr().out


def test_help_of_a_template_is_about_it(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        commands.run(["hang", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: profrun hang [options] --pid PID\n")
    assert "A job that hangs" in text


def test_a_shell_that_is_not_named_is_asked_for() -> None:
    with pytest.raises(UsageError, match="bash"):
        commands.run(["completion"])
