"""The whole `profrun doctor` as users of this machine call it: without root, and without a network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli import command

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


def found(words: list[str], cwd: Path, **changes: str) -> dict[str, dict[str, Any]]:
    """What a doctor, called with these words, says in its JSON, by subject."""
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **changes}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {one["subject"]: one for one in json.loads(done.stdout)["found"]}


@root
@pytest.mark.tool("strace", "py-spy")
def test_for_somebody_who_is_not_root(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    mine = tmp_path / "scratch"
    mine.mkdir()
    os.chown(mine, 65534, 65534)
    python = (*NOBODY, sys.executable)  # not by `command`: the file of what is covered is not theirs to write
    if subprocess.run([*python, "-c", "import orchestrator, pydantic"], capture_output=True, cwd="/").returncode:
        pytest.skip("this Python or its packages lie where others can't go")
    words = [*python, "-m", "orchestrator", "doctor", "--json"]
    said = found(words, tmp_path, TMPDIR=str(mine), HOME="/nonexistent", PATH=os.defpath)
    assert said["trace a child"]["state"] == "ok"
    assert said["strace"]["state"] == said["py-spy"]["state"] == "ok"
    assert said["report folder"]["state"] == "blocked"
    assert said["root helper"]["state"] in ("ok", "missing")
    assert said["profrun from cron"]["state"] == "ok"
    assert list(mine.iterdir()) == []


@root
@pytest.mark.tool("strace")
@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not on this machine")
def test_a_plan_without_a_network(tmp_path: Path) -> None:
    words = ["unshare", "-n", *command("doctor", "io", "--only", "timing,strace", "--json", "--", "true")]
    assert found(words, tmp_path)["strace"]["state"] == "ok"
