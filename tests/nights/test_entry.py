"""`profrun nightly` as users call it: the entry made, shown, replaced and taken out, with a crontab of its own."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from cli import Result, profrun, write_plan

from orchestrator import commands
from orchestrator.errors import ProfrunError
from orchestrator.nights import kept, scrontab, systemd
from orchestrator.nights.words import Nightly
from tests.nights.crontabs import Crontab

OTHERS = b"MAILTO=ada\n# \xe9 in Latin-1\n5 4 * * * echo 10\\% done\n"


@pytest.fixture
def cron(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Crontab:
    """In the environment of this process, too, for the calls that need none of their own."""
    made = Crontab(tmp_path / "cron")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", made.env["PATH"])
    monkeypatch.setenv("PROFRUN_STATE", str(made.state))
    monkeypatch.delenv("PROFRUN_HISTORY", raising=False)
    made.said = capsys.readouterr
    return made


def nightly(cron: Crontab, *words: str | Path) -> Result:
    try:
        code = commands.run(["nightly", *map(str, words)])
    except ProfrunError as error:
        code, text = error.exit_code, error.text()
        print(text, file=sys.stderr)
    said = cron.said()
    return Result(code, said.out, said.err, Path.cwd())


def install(cron: Crontab, *more: str) -> Result:
    return nightly(cron, "install", "train", "--at", "02:30", "--jitter", "0", *more, "--", "sleep", "0")


def test_an_entry_is_put_in_replaced_and_taken_out_and_the_rest_stays(cron: Crontab) -> None:
    cron.table.write_bytes(OTHERS)
    first = install(cron)
    assert first.code == 0, first.stderr
    assert cron.table.read_bytes().startswith(OTHERS + b"# profrun: begin train\n")
    copy = Path(first.stderr.partition("your crontab as it was: ")[2].splitlines()[0])
    assert copy.read_bytes() == OTHERS and copy.parent == cron.state / "nightly"
    once = cron.table.read_bytes()
    assert install(cron).code == 0
    assert cron.table.read_bytes() == once
    assert nightly(cron, "remove", "train").code == 0
    assert cron.table.read_bytes() == OTHERS
    assert nightly(cron, "remove", "train").code == 2


def test_where_there_was_no_crontab_there_is_none_again(cron: Crontab) -> None:
    assert install(cron).code == 0
    assert "your crontab as it was" not in install(cron, "--budget", "1h").stdout
    assert cron.table.exists()
    nightly(cron, "remove", "train")
    assert not cron.table.exists()


def test_the_line_needs_nothing_of_the_shell_that_made_it(cron: Crontab, tmp_path: Path) -> None:
    plan = write_plan(tmp_path, "{use: timing}")
    done = install(cron, plan.name, "-o", "out", "--budget", "2h", "--set", "budget=1h")
    fields, line = done.stdout[:10], done.stdout[11:]
    words = shlex.split(line)
    assert fields == "30 2 * * *"
    assert words[:2] == ["/usr/bin/env", "-i"]
    assert {word.partition("=")[0] for word in words if "=" in word} == {"HOME", "PATH", "SHELL", "PROFRUN_STATE"}
    after = [word for word in words[2:] if "=" not in word]
    assert after[0] == "/usr/bin/timeout" and after[1:3] == ["-k", "600"]
    assert float(after[3]) > 2 * 3600
    assert after[4:-1] == [sys.executable, "-I", "-m", "orchestrator", "nightly", "run"]
    made = kept.load(after[-1])
    assert (made.plan, made.cwd, made.output) == (str(plan), str(tmp_path), str(tmp_path / "out"))
    assert (made.command, made.budget_s, made.sets) == (("sleep", "0"), 7200.0, ("budget=1h",))
    assert all(place.startswith("/") for place in made.environment["PATH"].split(":"))
    assert made.environment.keys() <= set(kept.KEPT)
    assert "2 h; ended in any case after" in done.stderr


def test_percent_signs_in_paths_are_escaped(cron: Crontab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / "100% odd's"
    monkeypatch.setenv("PROFRUN_STATE", str(odd))
    assert install(cron).code == 0
    line = cron.table.read_text().splitlines()[2]
    assert r"100\%" in line and "100%" not in line
    assert shlex.split(line.replace(r"\%", "%"))[-1] == str(odd / "nightly/train.json")


def test_variables_are_kept_that_are_asked_for(cron: Crontab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_DATA", "/data")
    install(cron, "--env", "MY_DATA")
    made = kept.load(str(cron.state / "nightly/train.json"))
    assert made.environment["MY_DATA"] == "/data"
    night = kept.bare({"HOME": "/home/ada", "EDITOR": "vi", "PATH": "/x", "SHELL": "/bin/csh"}, made)
    assert night["MY_DATA"] == "/data" and night["PATH"] == made.environment["PATH"]
    assert night["HOME"] == "/home/ada" and "EDITOR" not in night
    job = kept.bare({"SLURM_JOB_ID": "7", "CUDA_VISIBLE_DEVICES": "3"}, made)
    assert (job["SLURM_JOB_ID"], job["CUDA_VISIBLE_DEVICES"]) == ("7", "3")
    assert "CUDA_VISIBLE_DEVICES" not in kept.bare({"CUDA_VISIBLE_DEVICES": "3"}, made)
    unset = install(cron, "--env", "NOBODY_HAS_THIS")
    assert unset.code == 2 and "there is no such variable now" in unset.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["install", "train", "--", "true"], "--at is missing"),
        (["install", "train", "--at", "25:00", "--", "true"], "'25:00' is no time: write 02:30"),
        (["install", "--at", "02:30", "--", "true"], "needs a NAME"),
        (["install", "a/b", "--at", "02:30", "--", "true"], "can't name a folder"),
        (["install", "train", "--at", "02:30"], "there is no program to run"),
        (["install", "train", "--at", "02:30", "--", "no-such-program"], "no-such-program"),
        (["install", "train", "--at", "02:30", "no-such-plan", "--", "true"], "there is no template 'no-such-plan'"),
        (["install", "train", "--at", "02:30", "--set", "budget=x", "--", "true"], "budget"),
        (["install", "train", "--at", "02:30", "--systemd", "--", "true"], "only print"),
        (["run", "nothing"], "there is no nightly nothing"),
        (["list", "train", "more"], "too much: more"),
        (["list", "--", "true"], "takes no command"),
    ],
)
def test_mistakes_are_told_when_somebody_is_there(cron: Crontab, tmp_path: Path, words: list[str], says: str) -> None:
    done = nightly(cron, *words)
    assert done.code in (2, 127)
    assert says in done.stderr
    assert not cron.table.exists()


def test_no_cron_and_no_right_to_it_are_one_clear_message(cron: Crontab, monkeypatch: pytest.MonkeyPatch) -> None:
    cron.answers("You (ada) are not allowed to use this program (crontab)", 1)
    done = install(cron)
    assert done.code == 3
    assert "may not use cron" in done.stderr and "/etc/cron.allow" in done.stderr
    cron.answers("crontab: disk on fire", 1)
    assert "cron does not take that\n  why:  crontab: disk on fire" in install(cron).stderr
    monkeypatch.setenv("PATH", "/nowhere")
    done = nightly(cron, "install", "train", "--at", "02:30", "--", "/bin/true")
    assert done.code == 3
    assert "the program `crontab` is not on PATH" in done.stderr and "install cron" in done.stderr


def test_only_where_there_is_no_cron_nothing_is_taken_out(cron: Crontab, monkeypatch: pytest.MonkeyPatch) -> None:
    assert install(cron).code == 0
    file = cron.state / "nightly/train.json"
    cron.answers("crontab: disk on fire", 1)
    done = nightly(cron, "remove", "train")
    assert done.code == 3 and "disk on fire" in done.stderr and file.exists()
    monkeypatch.setenv("PATH", "/nowhere")
    done = nightly(cron, "remove", "train")
    assert done.code == 0 and "by hand" in done.stderr and str(file) in done.stderr
    assert file.exists()
    assert nightly(cron, "remove", "other").code == 2


def test_a_wait_for_ever_has_no_end(cron: Crontab) -> None:
    done = nightly(cron, "print", "x", "--at", "02:30", "--wait=inf", "--slurm", "", "--", "sleep", "0")
    assert done.code == 0, done.stderr
    assert "--time=" not in done.stdout and kept.load("x").end_after_s is None


def test_the_list_says_what_is_installed_and_how_it_went(cron: Crontab) -> None:
    assert "there is no nightly" in nightly(cron, "list").stderr
    install(cron)
    nightly(cron, "print", "other", "--at", "*/5 * * * *", "--", "sleep", "0")
    file = cron.state / "nightly/other.night.json"
    file.write_text(json.dumps({"state": "running", "started_at": "2026-11-30T02:30:00Z", "pid": 1, "boot_id": "x"}))
    rows = {row["name"]: row for row in json.loads(nightly(cron, "list", "--json").stdout)}
    assert rows["train"]["last"] == "no night since it was installed or printed"
    assert rows["train"]["next"] or "no cron daemon" in rows["train"]["why_not"]
    assert rows["other"]["next"] is None and "not in your crontab" in rows["other"]["why_not"]
    assert rows["other"]["last"] == "2026-11-30T02:30:00Z, cut off: it has never ended"
    told = nightly(cron, "list", "train").stdout
    assert told.startswith("train: every night at 02:30; sleep 0\n") and "other" not in told


def test_printing_changes_nothing_that_is_installed(cron: Crontab) -> None:
    install(cron)
    before = cron.table.read_bytes()
    done = nightly(cron, "print", "train", "--at", "02:30", "--", "true")
    assert done.code == 2 and "train is in your crontab" in done.stderr
    done = nightly(cron, "print", "other", "--at", "02:30", "--", "true")
    assert done.stdout.startswith("# profrun: begin other\n") and done.stdout.endswith("# profrun: end other\n")
    assert cron.table.read_bytes() == before


def test_a_night_by_hand_from_an_odd_shell_is_a_good_one_and_quiet(cron: Crontab, tmp_path: Path) -> None:
    quiet = "[{use: cpu_idle, max_busy: 100%, over: 10ms}]"
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", environment=quiet)
    made = nightly(cron, "install", "train", "--at", "* * * * *", plan, "--", "sh", "-c", "env; pwd")
    assert made.code == 0, made.stderr
    cron.env["PYTHONPATH"] = "/nowhere"
    (tmp_path / "away").mkdir()
    done = profrun("nightly", "run", "train", cwd=tmp_path / "away", env=cron.env)
    assert (done.code, done.stdout, done.stderr) == (0, "", "")
    report = (tmp_path / "reports/latest").resolve()
    assert {"night.md", "night.json", "index.html", "summary.json"} <= {file.name for file in report.iterdir()}
    assert json.loads((report / "summary.json").read_text())["run"]["name"] == "train"
    said = (report / "raw/p01-target/stdout.log").read_text()
    assert said.splitlines()[-1] == str(tmp_path) and "PYTHONPATH=/nowhere" not in said
    told = nightly(cron, "list").stdout
    assert "1 of 7 nights" in told and str(report) in told


def test_a_night_that_fails_is_one_line_on_stderr(cron: Crontab, tmp_path: Path) -> None:
    quiet = "[{use: cpu_idle, max_busy: 100%, over: 10ms}]"
    plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", environment=quiet)
    nightly(cron, "install", "train", "--at", "02:30", plan, "--", "sh", "-c", "exit 3")
    done = profrun("nightly", "run", cron.state / "nightly/train.json", cwd=tmp_path, env=cron.env)
    assert (done.code, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("profrun: nightly train: unjudged: ") and "the target failed: exit 3" in line
    assert line.endswith("/night.md")


MADE: dict[str, Any] = {
    "name": "train", "plan": "night", "command": ("true",), "cwd": "/data", "output": "/data/reports",
    "environment": {}, "python": "/venv/bin/python", "end_after_s": 5400.0,
}  # fmt: skip


def test_a_pair_of_systemd_units() -> None:
    made = Nightly(**MADE, fields=("30", "2", "*", "*", "mon-fri"))
    told = systemd.units(made, ["/venv/bin/python", "a b", "50%", "$x"], {"HOME": "/home/a da", "X": "$5 50%"}, 600.0)
    lines = told.splitlines()
    assert lines[0] == "# ~/.config/systemd/user/profrun-train.service"
    assert 'ExecStart=/venv/bin/python "a b" 50%% $$x' in lines
    assert 'Environment="HOME=/home/a da"' in lines and 'Environment="X=$5 50%%"' in lines
    assert {"TimeoutStartSec=5400", "TimeoutStopSec=600", "OnCalendar=Mon,Tue,Wed,Thu,Fri *-*-* 02:30:00"} <= set(lines)


def test_an_entry_of_slurm_s_scrontab() -> None:
    made = Nightly(**MADE, fields=("30", "2", "*", "*", "*"))
    told = scrontab.entry(made, ["/venv/bin/python", "x y"], {"HOME": "/home/ada"}, "--partition gpu --time=30")
    lines = told.splitlines()
    assert lines[0] == "# profrun: begin train" and lines[-1] == "# profrun: end train"
    assert "#SCRON --job-name=profrun-train" in lines and "#SCRON --chdir=/data" in lines
    assert "#SCRON --partition gpu --time=30" in lines and "#SCRON --time=90" not in lines
    assert lines[-2] == "30 2 * * * /usr/bin/env HOME=/home/ada /venv/bin/python 'x y'"
    assert "#SCRON --time=90" in scrontab.entry(made, ["true"], {}, "")


def test_a_name_that_files_of_nights_have_is_refused(cron: Crontab) -> None:
    done = nightly(cron, "install", "job.night", "--at", "02:30", "--", "true")
    assert done.code == 2 and "ends in .night" in done.stderr
