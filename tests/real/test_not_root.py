"""The main job as an ordinary user: all collectors work without root."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import LIMIT_S, state, until

REPO = Path(__file__).resolve().parents[2]
NAME = f"profrun-test-{os.getpid()}"

TARGET = """
import time
def heavy(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(1000))
heavy(1.0)
"""

pytestmark = [
    pytest.mark.tool("py-spy", "strace", "nsys"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a user"),
]


@pytest.fixture
def home() -> Iterator[Path]:
    """The home of a new user, in a place that everybody may enter."""
    place = Path(tempfile.mkdtemp(prefix="profrun-user-", dir="/tmp"))
    place.chmod(0o755)
    subprocess.run(["userdel", NAME], capture_output=True)
    subprocess.run(["useradd", "--no-log-init", "--create-home", "--home-dir", place / "home", NAME], check=True)
    yield place / "home"
    subprocess.run(["userdel", NAME], check=True)
    shutil.rmtree(place)


def as_user(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs profrun as that user. The interpreter, its packages and the checkout may lie where only root can go: in a
    mount namespace of the command's own they are bound to places beside the home."""
    libraries = next(Path(p) for p in sys.path if p.endswith("site-packages"))
    bound = {"python": Path(sys.base_prefix), "packages": libraries, "bin": Path(sys.prefix) / "bin", "checkout": REPO}
    for name in bound:
        (home.parent / name).mkdir()
    binds = "\n".join(f'mount --bind "{source}" "{home.parent / name}"' for name, source in bound.items())
    python = home.parent / "python" / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    env = {
        "HOME": str(home),
        "PATH": f"{home.parent / 'bin'}:/usr/bin:/bin",
        "PYTHONPATH": f"{home.parent / 'checkout'}:{home.parent / 'packages'}",
        "LD_LIBRARY_PATH": str(home.parent / "python" / "lib"),  # of an interpreter built as a shared library
        "PYTHONDONTWRITEBYTECODE": "1",
        "NO_COLOR": "1",
    }
    switch = ["setpriv", f"--reuid={NAME}", f"--regid={NAME}", "--clear-groups", str(python), "-m", "orchestrator"]
    text = f'set -e\n{binds}\ncd "{home}"\nexec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", text, "sh", *switch, *(w.replace("PYTHON", str(python)) for w in words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )


def test_all_four_captures_are_ok(home: Path) -> None:
    target = home / "t.py"
    target.write_text(TARGET)
    words = ["cpu-quick", "--set", "collectors.timing.repeats=2", "--", "PYTHON", str(target)]
    done = as_user(home, *words)
    assert done.returncode == 0, done.stderr
    folder = home / done.stdout.strip().splitlines()[-1]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["machine"]["user_is_root"] is False
    assert {c["collector"]: c["status"] for c in summary["captures"]} == dict.fromkeys(
        ("timing", "py-spy", "strace", "nsys"), "ok"
    )
    assert folder.stat().st_uid == home.stat().st_uid


@pytest.mark.tool("py-spy", "strace")
def test_a_process_of_somebody_else_is_refused_and_unharmed(home: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time\nwhile True: time.sleep(0.1)"]) as running:
        done = as_user(home, "attach", "--pid", str(running.pid), "--duration", "1s")
        assert running.poll() is None
        until(lambda: state(running.pid) in "RS")
        running.kill()
    assert done.returncode == 3, done.stderr
    assert "of user root can't be looked at" in done.stderr and "next: run profrun as root\n" in done.stderr
    assert not (home / "reports").exists()
