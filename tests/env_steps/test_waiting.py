"""What the steps have in common that look and wait: they look as often as they have to, and not while only checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli import write_plan

from orchestrator import dryrun
from orchestrator.env_steps import cpu_idle, waiting
from orchestrator.environment import Environment
from orchestrator.machine import Machine
from orchestrator.model import Judged
from orchestrator.planfile import plans


class Looks(waiting.Waiting):
    """Likes what it sees at the n-th look."""

    use: str = "looks"
    until: int = 1
    hopeless: bool = False

    every_s = 0.0

    def look(self, machine: Machine) -> dict[str, Any]:
        SEEN.append(len(SEEN) + 1)
        return {"look": SEEN[-1]}

    def objection(self, seen: dict[str, Any]) -> Judged | None:
        return None if seen["look"] >= self.until else Judged("failed", f"look {seen['look']}")

    def may_pass(self, seen: dict[str, Any]) -> bool:
        return not self.hopeless


SEEN: list[int] = []


@pytest.mark.parametrize(
    ("options", "looks", "status"),
    [
        ({}, 1, "already"),
        ({"wait": 60}, 1, "already"),
        ({"until": 2}, 1, "failed"),
        ({"until": 3, "wait": 60}, 3, "applied"),
        ({"until": 3, "wait": 60, "hopeless": True}, 1, "failed"),
    ],
)
def test_it_looks_no_more_often_than_it_has_to(options: dict[str, Any], looks: int, status: str) -> None:
    SEEN.clear()
    here = Environment(Machine())
    here.apply((Looks.model_validate(options),))
    here.restore()
    [record] = here.records
    assert (len(SEEN), record.status) == (looks, status)
    assert (record.before, record.verified) == ({"look": 1}, {"look": looks})


def test_a_check_looks_at_nothing_that_takes_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = "[{use: cpu_idle, wait: 5m}, {use: gpu_idle}, {use: quiet_services}]"
    plan = plans.load(write_plan(tmp_path, "{use: timing, repeats: 1}", environment=steps))

    def sleep(_seconds: float) -> None:
        raise AssertionError("it takes time")

    for module in ("cpu_idle", "quiet_services"):
        monkeypatch.setattr(f"orchestrator.env_steps.{module}.time.sleep", sleep)
    text = dryrun.dry_run(plan, ("true",), Machine(), tmp_path).text()
    assert "waits up to 5 m" in text and "it takes time" not in text
    with pytest.raises(AssertionError):
        cpu_idle.CpuIdle().look(Machine())
