"""Which program really runs, and in which passes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml
from cli import script

from orchestrator import resolve
from orchestrator.errors import ProfrunError
from orchestrator.machine import Machine
from orchestrator.plan import Plan


def test_a_program_is_found_on_the_targets_own_path(tmp_path: Path) -> None:
    tool = script(tmp_path / "tool", "#!/bin/sh\n")
    found = resolve.target(("tool", "-o", ""), ".", {"PATH": str(tmp_path)})
    assert found.exe == str(tool)
    assert found.argv == ("tool", "-o", "")
    assert found.shims == ()


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("missing", 127, "no such file"),
        ("folder", 126, "is a directory"),
        ("plain.py", 126, "not executable"),
    ],
)
def test_a_target_that_can_not_run(tmp_path: Path, name: str, code: int, words: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.py").write_text("print()")
    with pytest.raises(ProfrunError, match=words) as caught:
        resolve.target((str(tmp_path / name),), ".", {})
    assert caught.value.exit_code == code
    assert caught.value.next_step


def test_a_program_that_is_nowhere() -> None:
    with pytest.raises(ProfrunError, match="command not found") as caught:
        resolve.target(("no-such-program",), ".", {})
    assert caught.value.exit_code == 127


def test_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ProfrunError, match="does not exist"):
        resolve.target(("true",), str(tmp_path / "gone"), {})


def test_a_link_is_not_followed_since_a_venv_is_known_by_it(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to("/bin/true")
    assert resolve.target(("python",), ".", {"PATH": str(tmp_path)}).exe == str(tmp_path / "python")


def test_a_version_managers_shim_is_looked_through(tmp_path: Path) -> None:
    real = tmp_path / "versions" / "3.12" / "bin" / "python"
    real.parent.mkdir(parents=True)
    script(real, "#!/bin/sh\n")
    manager = script(tmp_path / "pyenv", f'#!/bin/sh\n[ "$1 $2" = "which python" ] && echo {real}\n')
    (tmp_path / "shims").mkdir()
    shim = script(tmp_path / "shims" / "python", f'#!/bin/sh\nexec "{manager}" exec "$(basename "$0")" "$@"\n')
    found = resolve.target(("python", "t.py"), ".", {"PATH": f"{shim.parent}{os.pathsep}/usr/bin:/bin"})
    assert found.exe == str(real)
    assert found.argv == (str(real), "t.py")
    assert found.shims == (str(shim),)
    assert found.env["PATH"].startswith(str(real.parent))


def test_a_shim_whose_manager_fails_is_run_as_it_is(tmp_path: Path) -> None:
    manager = script(tmp_path / "pyenv", "#!/bin/sh\nexit 1\n")
    (tmp_path / "shims").mkdir()
    shim = script(tmp_path / "shims" / "python", f'#!/bin/sh\nexec "{manager}" exec python "$@"\n')
    found = resolve.target((str(shim),), ".", {})
    assert (found.exe, found.shims) == (str(shim), ())


# ---------------------------------------------------------------- whose environment it is


def _told(run: resolve.Run) -> Machine:
    machine = Machine()
    resolve.tell(machine, run)
    return machine


def _plan(steps: str) -> Plan:
    return Plan.model_validate({"version": 1, "collectors": [{"use": "timing"}], "environment": yaml.safe_load(steps)})


def test_what_one_step_removes_a_later_one_may_set() -> None:
    plan = _plan("[{use: env, unset: [CUDA_VISIBLE_DEVICES]}, {use: env, set: {CUDA_VISIBLE_DEVICES: '1'}}]")
    assert _told(resolve.resolve(plan, ("true",))).target_env["CUDA_VISIBLE_DEVICES"] == "1"


def test_a_program_that_runs_already_has_its_own_environment() -> None:
    """Not profrun's, and not the plan's."""
    plan = _plan("[{use: env, set: {CUDA_VISIBLE_DEVICES: '0'}}]")
    env = {"PATH": os.environ["PATH"], "CUDA_VISIBLE_DEVICES": "1"}
    with subprocess.Popen(["sleep", "300"], env=env) as one, subprocess.Popen(["sleep", "300"], env={}) as other:
        try:
            alone = _told(resolve.attach(plan, [one.pid], None))
            both = _told(resolve.attach(plan, [one.pid, other.pid], None))
        finally:
            one.kill()
            other.kill()
    assert (alone.target_env, alone.target_env_unknown, alone.target_pids) == (env, None, (one.pid,))
    assert "CUDA_VISIBLE_DEVICES" not in both.target_env and "see different GPUs" in (both.target_env_unknown or "")


def test_an_environment_that_can_not_be_read_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.process.environ_of", lambda _pid: None)
    with subprocess.Popen(["sleep", "300"]) as one:
        told = _told(resolve.attach(_plan("[]"), [one.pid], None))
        one.kill()
    assert told.target_env == {} and f"of {one.pid} can't be read" in (told.target_env_unknown or "")
