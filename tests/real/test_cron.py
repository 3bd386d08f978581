"""A real cron daemon starts an entry of `profrun nightly` in its own bare environment, and a good report is there."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli import environment, profrun, write_plan
from waiting import until

from orchestrator.nights import crontab, kept

pytestmark = [
    pytest.mark.tool("cron", "crontab"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may start a cron daemon"),
]
QUIET = "[{use: cpu_idle, max_busy: 100%, over: 10ms}]"
"""Whatever else these tests do meanwhile."""


@pytest.fixture
def daemon() -> Iterator[None]:
    """The machine's own, or one that ends with the test."""
    if crontab.daemon_trouble() is None:
        yield
        return
    with subprocess.Popen(["cron", "-f"], start_new_session=True) as started:
        try:
            until(lambda: crontab.daemon_trouble() is None)
            yield
        finally:
            started.terminate()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[bytes]:
    """The crontab of the user who runs these tests: it is put back, also when the test fails."""
    (tmp_path / "before").mkdir()
    before = crontab.read(tmp_path / "before")
    yield before
    if crontab.read(tmp_path / "before") != before:
        crontab.write(before, tmp_path / "before")


def test_cron_runs_an_installed_entry_in_its_bare_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: bytes, daemon: None
) -> None:
    place = tmp_path / "50% of it"
    place.mkdir()
    monkeypatch.setenv("PROFRUN_STATE", str(place / "state"))
    env = environment(ONLY_HERE="1", PROFRUN_HISTORY=None)
    plan = write_plan(place, "{use: timing, warmup: 0, repeats: 1}", environment=QUIET)
    words = ("--at", "* * * * *", plan, "--budget", "5m", "--", "sh", "-c", "env; pwd")
    made = profrun("nightly", "install", "cron-test", *words, cwd=place, env=env)
    assert made.code == 0, made.stderr
    assert "no cron daemon" not in made.stderr

    newest = until(lambda: found if (found := kept.newest("cron-test")).get("state") == "ended" else None)
    gone = profrun("nightly", "remove", "cron-test", cwd=place, env=env)
    assert gone.code == 0, gone.stderr
    assert crontab.read(tmp_path / "before") == table

    assert (newest["exit_code"], newest["troubles"]) == (0, []), newest
    report = Path(newest["report"])
    assert report.parent == place / "reports"
    assert {"index.html", "report.md", "night.md", "night.json"} <= {file.name for file in report.iterdir()}
    summary = json.loads((report / "summary.json").read_text())
    assert (summary["outcome"]["exit_code"], summary["metrics"]["wall_s"]["n"]) == (0, 1)
    said = (report / "raw/p01-target/stdout.log").read_text().splitlines()
    assert said[-1] == str(place)
    assert "ONLY_HERE=1" not in said and f"PATH={kept.taken_over(os.environ)['PATH']}" in said
