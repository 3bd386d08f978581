"""The sampler reads the clock of the cores that are busy, and of no others."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.sampler import host
from orchestrator.sampler.proc import read


def stat(*cores: tuple[int, int]) -> str:
    """/proc/stat with (busy, idle) ticks of each core."""
    lines = [f"cpu{n} {busy} 0 0 {idle} 0 0 0 0 0 0" for n, (busy, idle) in enumerate(cores)]
    return "\n".join(["cpu 1 0 0 1 0 0 0 0 0 0", *lines, "ctxt 1"])


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Files that are read instead of this machine's, and under "asked" the cores whose clock was."""
    files: dict[str, Any] = {"asked": []}

    def answer(path: str) -> str:
        if path.endswith("scaling_cur_freq"):
            files["asked"].append(path.split("/")[-3])
            return "2000000\n"
        return files.get(path) or read(path)

    monkeypatch.setattr(host, "read", answer)
    return files


def test_of_busy_cores_only(machine: dict[str, Any]) -> None:
    machine["/proc/stat"] = stat((10, 10), (10, 10), (10, 10))
    sampler = host.Host()
    assert [core[2] for core in sampler.read()[1].values()] == [None, None, None], "nobody knows yet who is busy"
    machine["/proc/stat"] = stat((20, 10), (11, 19), (15, 15))
    assert [core[2] for core in sampler.read()[1].values()] == [2000.0, None, 2000.0]
    assert machine["asked"] == ["cpu0", "cpu2"]


def test_of_so_many_at_most(machine: dict[str, Any]) -> None:
    many = 3 * host.MOST_CLOCKS
    machine["/proc/stat"] = stat(*[(0, 0)] * many)
    sampler = host.Host()
    sampler.read()
    machine["/proc/stat"] = stat(*[(10, 0)] * many)
    sampler.read()
    assert len(machine["asked"]) == host.MOST_CLOCKS
