"""The whole `profrun doctor` as users of this machine call it: without root, and without a network."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import command
from somebody import as_user, only_root
from waiting import LIMIT_S

from orchestrator.doctor import bare
from orchestrator.machine import Machine


def by_subject(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """What a doctor has said in its JSON."""
    assert done.returncode == 0, done.stderr
    return {one["subject"]: one for one in json.loads(done.stdout)["found"]}


@only_root
@pytest.mark.tool("strace", "py-spy")
def test_for_somebody_who_is_not_root(home: Path) -> None:
    said = by_subject(as_user(home, "doctor", "--json", at=home.parent))
    assert said["trace a child"]["state"] == "ok"
    assert said["strace"]["state"] == said["py-spy"]["state"] == "ok", (said["strace"], said["py-spy"])
    assert said["report folder"]["state"] == "blocked"
    assert said["root helper"]["state"] in ("ok", "missing")
    assert [path for path in Path("/tmp").iterdir() if path.lstat().st_uid == home.stat().st_uid] == []


@only_root
@pytest.mark.tool("strace")
@pytest.mark.skipif(not shutil.which("unshare"), reason="unshare is not on this machine")
def test_a_plan_without_a_network(tmp_path: Path) -> None:
    words = ["unshare", "-n", *command("doctor", "io", "--only", "timing,strace", "--json", "--", "true")]
    said = by_subject(subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S))
    assert said["strace"]["state"] == "ok"


def test_profrun_starts_in_crons_bare_environment() -> None:
    said = {one.subject: one for one in bare.cron(Machine())}
    assert said["profrun from cron"].state == "ok", said["profrun from cron"].said
