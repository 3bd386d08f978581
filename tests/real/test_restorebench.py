"""scripts/bench restore with a few trials: every one leaves the played machine as it was."""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from fakes import sysfs
from waiting import LIMIT_S

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("restorebench.trials")


def bench(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, SCRIPTS / "bench", "restore", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=10 * LIMIT_S)


@pytest.fixture
def playable(tmp_path: Path) -> None:
    if not (shutil.which("cc") or shutil.which("gcc")):
        pytest.skip("needs a C compiler for the GPUs that are played")
    sysfs.make(tmp_path / "root", "none")
    done = subprocess.run(sysfs.bound(tmp_path / "root", ["true"]), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"needs a mount namespace of its own: {done.stderr.strip()}")


@pytest.mark.usefixtures("playable")
@pytest.mark.parametrize(("words", "last"), [(("-n", "4"), "4/4"), (("--how", "both", "-n", "2"), "2/2")])
def test_however_it_ends_the_machine_is_as_it_was(words: tuple[str, ...], last: str) -> None:
    done = bench(*words)
    assert (done.stdout.splitlines()[-1:], done.returncode) == ([last], 0), done.stdout + done.stderr


@pytest.mark.usefixtures("playable")
def test_a_machine_that_is_changed_is_seen(trials: ModuleType, tmp_path: Path) -> None:
    """The bench itself: a setting that stays, a journal, and a process that lives on."""
    machine = trials.Machine(tmp_path / "here", "acpi-cpufreq")
    before = machine.state()
    assert list(trials._changed(before, machine.state())) == []
    machine.gpus.set(1, lgc="1500,1500")
    (machine.place / "service").write_text("stopped\n")
    wrong = list(trials._changed(before, machine.state()))
    assert wrong == ["1.lgc: 0 -> 1500,1500", "service: running -> stopped"]
    (machine.place / "state").mkdir()
    (machine.place / "state/journal-a.jsonl").write_text('{"event": "begin"}\n')
    (machine.place / "state/journal-b.jsonl").write_text('{"event": "begin"}\n{"event": "intent", "n": 0}\n')
    assert machine.journals() == ["journal-b.jsonl"]
    one = machine.start("sleep", "60")
    assert one.pid in machine.alive()
    one.kill()
    one.wait()


@pytest.mark.usefixtures("playable")
def test_the_forms_do_with_a_setting_as_a_kernel_does(trials: ModuleType, tmp_path: Path) -> None:
    """A plain file would take any clock; idle states are held back in a played device, and let go at the end."""
    machine = trials.Machine(tmp_path / "here", "intel_pstate")
    for path in machine.place.glob("root/sys/devices/system/cpu/cpufreq/policy*/scaling_max_freq"):
        path.write_text("1000000\n")
    step = "[{use: cpu_frequency, min: 2GHz, max_cstate: 1}]"
    (machine.place / "plan.yaml").write_text(f"version: 1\nenvironment: {step}\ncollectors: [{{use: timing}}]\n")
    before, free = machine.state(), (machine.place / "latency").read_bytes()
    argv = (trials.PYTHON, "-m", "restorebench.ruled", "run", "./plan.yaml", "-q", "-o", "reports", "--", "true")
    assert machine.start(*argv).wait(10 * LIMIT_S) == 0, (machine.place / "said").read_text()
    (record,) = json.loads((machine.place / "reports/latest/summary.json").read_text())["environment"]
    assert (record["status"], record["detail"], record["fix"]) == ("clamped", "1 GHz", "give `max`, too")
    assert record["restored"] is True and machine.state() == before
    held = [part for part in record["parts"] if part["name"].startswith("C-states")]
    assert [part["status"] for part in held] in (["applied"], ["not_available"])
    assert (machine.place / "latency").read_bytes() == free
