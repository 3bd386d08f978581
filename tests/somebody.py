"""Somebody who is not root, and what profrun does for them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import LIMIT_S

REPO = Path(__file__).resolve().parents[1]
NAME = f"profrun-test-{os.getpid()}"
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make a user")


@contextmanager
def new_home() -> Iterator[Path]:
    """The home of a new user, in a place that everybody may enter."""
    place = Path(tempfile.mkdtemp(prefix="profrun-user-", dir="/tmp"))
    place.chmod(0o755)
    subprocess.run(["userdel", NAME], capture_output=True)
    subprocess.run(["useradd", "--no-log-init", "--create-home", "--home-dir", place / "home", NAME], check=True)
    yield place / "home"
    subprocess.run(["userdel", NAME], check=True)
    shutil.rmtree(place)


def as_user(home: Path, *words: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs profrun as that user. The interpreter, its packages and the checkout may lie where only root can go: in a
    mount namespace of the command's own they are bound to places beside the home, in which (or `at`) it runs."""
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
    text = f'set -e\n{binds}\ncd "{at or home}"\nexec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", text, "sh", *switch, *(w.replace("PYTHON", str(python)) for w in words)],
        env=env,
        capture_output=True,
        text=True,
        timeout=2 * LIMIT_S,
    )
