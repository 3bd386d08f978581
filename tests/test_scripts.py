"""scripts/profrun and scripts/setup in a checkout of their own, where the programs that they call are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from waiting import LIMIT_S

REPO = Path(__file__).resolve().parent.parent

BASICS = ["bash", "cat", "cmp", "cp", "env", "find", "flock", "mkdir", "readlink", "rm", "sed", "sleep", "tail"]
"""The system's own programs that the scripts may use; nothing else is on their PATH."""

PYTHON = """
case "$*" in
  *sys.exit*version_info*) exit {fits} ;;
  *"import ensurepip"*) exit 0 ;;
  *"import pip"*) exit 0 ;;
  --version) echo "Python 3.99.0" ;;
  *"-m venv"*) mkdir -p "${@: -1}/bin" && cp "$0" "${@: -1}/bin/python" ;;
  *"-m pip"*) echo "pip $*" >>"$CALLS"; sleep 0.2; echo "collecting things"; exit {pip} ;;
  *) printf '%s\\0' "$PWD" "${VIRTUAL_ENV:-}" "$PATH" "$@" ;;
esac
"""


@dataclass(frozen=True)
class World:
    """A checkout in a folder with a space in its name, and the only PATH there is."""

    root: Path
    bin: Path

    def program(self, name: str, body: str = "exit 0") -> None:
        file = self.bin / name
        file.write_text(f"#!/usr/bin/env bash\n{body}\n")
        file.chmod(0o755)

    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def run(
        self, script: str | Path, *words: str | bytes, cwd: Path | None = None, **env: str
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {"PATH": str(self.bin), "CALLS": str(self.root / "calls"), **env}
        return subprocess.run(
            [self.root / "scripts" / script, *words],
            cwd=cwd or self.root,
            env=environment,
            capture_output=True,
            timeout=LIMIT_S,
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path / "check out", tmp_path / "bin")
    (made.root / "scripts").mkdir(parents=True)
    made.bin.mkdir()
    for script in ("profrun", "setup"):
        shutil.copy(REPO / "scripts" / script, made.root / "scripts")
    (made.root / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    for name in BASICS:
        (made.bin / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    made.program("id", 'case "$1" in -u) echo 1000 ;; *) echo ada ;; esac')
    made.program("apt-get", 'echo "apt-get $*" >>"$CALLS"')
    made.program("apt-cache")
    made.program("python3", PYTHON.replace("{fits}", "0").replace("{pip}", "0"))
    for tool in ("strace", "perf", "nsys", "ncu"):
        made.program(tool)
    return made


@pytest.fixture
def ready(world: World) -> World:
    """One in which setup has been run."""
    assert world.run("setup").returncode == 0
    return world


def told(done: subprocess.CompletedProcess[bytes]) -> tuple[str, str, list[bytes]]:
    """The VIRTUAL_ENV, the PATH and the arguments that profrun's interpreter got."""
    _, venv, path, *words = done.stdout.split(b"\0")[:-1]
    return venv.decode(), path.decode(), words


# ---------------------------------------------------------------- scripts/profrun


def test_arguments_arrive_byte_for_byte_and_the_folder_stays(ready: World, tmp_path: Path) -> None:
    words = [b"plan", b"--", b"", b"a b", b"*", b"$HOME", b"'\"\\", b"line\nbreak", b"\xff\xfe", b"--help"]
    done = ready.run("profrun", *words, cwd=tmp_path)
    assert told(done)[2] == [b"-I", b"-m", b"orchestrator", *words]
    assert done.stdout.split(b"\0")[0].decode() == str(tmp_path)
    assert done.stderr == b""


def test_it_may_be_called_through_a_link(ready: World, tmp_path: Path) -> None:
    link = tmp_path / "p"
    link.symlink_to(ready.root / "scripts" / "profrun")
    assert told(ready.run(link, "x", cwd=tmp_path))[2][-1] == b"x"


def test_without_an_environment_the_target_gets_the_one_of_the_checkout(ready: World) -> None:
    venv, path, _ = told(ready.run("profrun"))
    assert venv == f"{ready.root}/.venv"
    assert path == f"{ready.root}/.venv/bin:{ready.bin}"


@pytest.mark.parametrize("name", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_stays_the_targets_own(ready: World, name: str) -> None:
    venv, path, _ = told(ready.run("profrun", **{name: "/opt/mine"}))
    assert venv == ("/opt/mine" if name == "VIRTUAL_ENV" else "")
    assert path == str(ready.bin)


def test_the_first_use_sets_up_and_the_next_does_not(world: World) -> None:
    first = world.run("profrun", "x")
    assert told(first)[2][-1] == b"x"
    assert b"setup: making" in first.stderr
    assert [call.split()[0] for call in world.calls()] == ["pip"]
    assert world.run("profrun", "x").stderr == b""
    assert len(world.calls()) == 1


def test_another_pyproject_or_another_place_sets_up_again(ready: World) -> None:
    (ready.root / "pyproject.toml").write_text("[project]\nname = 'y'\n")
    assert b"installing" in ready.run("profrun").stderr
    moved = World(ready.root.with_name("moved"), ready.bin)
    shutil.copytree(ready.root, moved.root)
    assert b"installing" in moved.run("profrun").stderr


def test_when_setup_fails_nothing_is_run(world: World) -> None:
    world.program("python3", PYTHON.replace("{fits}", "0").replace("{pip}", "1"))
    done = world.run("profrun", "x")
    assert (done.returncode, done.stdout) == (1, b"")


# ---------------------------------------------------------------- scripts/setup


def test_setup_is_quick_and_silent_when_all_is_there(ready: World) -> None:
    for tool in ("gdb", "cc", "chromium", "sudo", "cron", "postgres", "sbatch", "mpirun"):
        ready.program(tool)
    again = ready.run("setup", "--for-tests")
    assert (again.returncode, again.stdout, again.stderr) == (0, b"", b"")
    assert len(ready.calls()) == 1


def test_two_setups_at_once_install_once(world: World) -> None:
    with ThreadPoolExecutor(2) as pool:
        codes = [done.returncode for done in pool.map(lambda _: world.run("setup"), range(2))]
    assert codes == [0, 0]
    assert len(world.calls()) == 1


def test_a_python_that_does_not_fit_is_refused(world: World) -> None:
    world.program("python3", PYTHON.replace("{fits}", "1"))
    done = world.run("setup")
    assert done.returncode == 1
    assert b"Python 3.10 to 3.14" in done.stderr


def test_a_failing_pip_shows_the_end_of_its_log_and_counts_as_not_done(world: World) -> None:
    world.program("python3", PYTHON.replace("{fits}", "0").replace("{pip}", "1"))
    done = world.run("setup")
    assert done.returncode == 1
    assert b"    collecting things" in done.stderr
    assert not (world.root / ".venv" / "profrun.stamp").exists()


def test_an_interpreter_that_is_gone_is_replaced(ready: World) -> None:
    (ready.root / ".venv" / "bin" / "python").unlink()
    done = ready.run("profrun", "x")
    assert told(done)[2][-1] == b"x"


def test_who_is_not_root_is_told_what_is_missing(world: World) -> None:
    (world.bin / "strace").unlink()
    done = world.run("setup")
    assert done.returncode == 0
    assert b"sudo apt-get install strace" in done.stderr
    assert not [call for call in world.calls() if call.startswith("apt-get")]


def test_root_gets_what_is_missing(world: World) -> None:
    world.program("id", "echo 0")
    (world.bin / "strace").unlink()
    assert world.run("setup").returncode == 0
    assert any(call.endswith("install --no-install-recommends strace") for call in world.calls())


def test_a_package_that_cannot_be_had_is_told_and_the_rest_goes_on(world: World) -> None:
    world.program("id", "echo 0")
    world.program("apt-get", 'echo "E: Unable to locate package"; exit 100')
    (world.bin / "strace").unlink()
    done = world.run("setup")
    assert done.returncode == 0
    assert b"E: Unable to locate package" in done.stderr
    assert b"going on without strace" in done.stderr


def test_nothing_of_nvidias_is_installed_on_a_gpu_host(world: World) -> None:
    world.program("id", "echo 0")
    world.program("nvidia-smi")
    (world.bin / "nsys").unlink()
    done = world.run("setup")
    assert done.returncode == 0
    assert b"has an NVIDIA GPU" in done.stderr
    assert not [call for call in world.calls() if call.startswith("apt-get")]


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has an NVIDIA driver")
def test_without_a_gpu_root_gets_nsys_and_ncu(world: World) -> None:
    world.program("id", "echo 0")
    for tool in ("nsys", "ncu"):
        (world.bin / tool).unlink()
    assert world.run("setup").returncode == 0
    packages = [call.split()[-1] for call in world.calls() if " install " in call]
    assert packages[-2:] == ["nsight-systems", "nsight-compute"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_a_checkout_of_somebody_else_without_its_environment_is_refused(world: World) -> None:
    for folder in (world.root, *world.root.parents):
        if folder.stat().st_uid == 0 and str(folder).startswith("/tmp/pytest-of-"):
            folder.chmod(0o755)
    script = world.root / "scripts" / "profrun"
    done = subprocess.run([script], env={"PATH": str(world.bin)}, user=65534, capture_output=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert b"can't write" in done.stderr and b"let its owner run scripts/setup" in done.stderr
