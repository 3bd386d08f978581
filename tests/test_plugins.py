"""Collectors, steps and rules from somebody else's installed package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli import Result, environment, profrun, write_plan

Run = Callable[..., Result]

COLLECTOR = '''
from typing import ClassVar, Literal
from orchestrator.collectors.base import Collector, Parsed
from orchestrator.model import Beside, Evidence, Expect, Finding, Launch, ToolProbe
from orchestrator.env_steps.base import Step
from orchestrator.model import Child
from orchestrator.tables import Table


class Peek(Collector):
    """Reads the command line of the target while it waits at the gate."""

    use: Literal["peek"]
    probe: ClassVar = ToolProbe("cp", install="coreutils")

    def launch(self, job):
        argv = (job.tool.path, "/proc/{pid}/stat", "stat.txt")
        beside = Beside(argv, when="gate", ready="file", ready_value="stat.txt")
        return Launch(beside=(beside,), artifacts=(Expect("stat", "stat.txt", "text"),))

    def parse(self, capture):
        state = capture.path("stat").read_text().rpartition(")")[2].split()[0]
        return Parsed(notes=(f"state at the gate: {state}",))


class Broken(Collector):
    use: Literal["broken"]

    def launch(self, job):
        raise RuntimeError("no idea what to do")

    def parse(self, capture):
        raise AssertionError


class Greeting(Step):
    use: Literal["greeting"]

    def child(self):
        return Child(set={"GREETING": "hello"})


def rule(report):
    yield Finding("named", "environment", "info", f"looked at {report.run.name}", "nothing to do", "high")
'''

ENTRY_POINTS = """
[profrun.collectors]
peek = friendly:Peek
broken = friendly:Broken
missing = not_there:Nothing
[profrun.environment]
greeting = friendly:Greeting
[profrun.rules]
named = friendly:rule
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    site = tmp_path / "site"
    (site / "friendly-1.0.dist-info").mkdir(parents=True)
    (site / "friendly.py").write_text(COLLECTOR)
    (site / "friendly-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: friendly\nVersion: 1.0\n")
    (site / "friendly-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)

    def run_with(*collectors: str, **more: str) -> Result:
        plan = write_plan(tmp_path, "{use: timing, warmup: 0, repeats: 1}", *collectors, report="{formats: []}", **more)
        env = environment(PYTHONPATH=str(site))
        return profrun(plan, "--", "sh", "-c", "echo $GREETING", cwd=tmp_path, env=env)

    return run_with


def test_a_collector_of_another_package_works_like_our_own(run: Run) -> None:
    result = run("{use: peek}", environment="[{use: greeting}]")
    assert result.code == 0, result.stderr
    assert result.stdout.splitlines()[0] == "hello"
    assert result.statuses() == {"timing": "ok", "peek": "ok"}
    assert result.captures()["peek"]["notes"] == ["state at the gate: T"]
    assert "named" in [f["rule"] for f in result.summary["findings"]]


def test_a_broken_one_costs_only_its_own_capture(run: Run) -> None:
    result = run("{use: broken}", "{use: peek}")
    assert result.code == 4
    assert result.statuses() == {"timing": "ok", "broken": "tool_failed", "peek": "ok"}
    assert "no idea what to do" in result.captures()["broken"]["reason"]


def test_one_that_can_not_be_loaded_is_named_with_its_package(run: Run) -> None:
    result = run("{use: missing}")
    assert result.code == 2
    assert "friendly" in result.stderr
    assert "not_there" in result.stderr
