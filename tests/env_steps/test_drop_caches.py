"""Environment step `drop_caches`, on files that stand for the kernel's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator import cpufreq
from orchestrator.env_steps.drop_caches import DropCaches
from orchestrator.machine import Machine
from orchestrator.model import Cannot, Run, Write


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    place = tmp_path / "proc/sys/vm"
    place.mkdir(parents=True)
    (place / "drop_caches").write_text("")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nCached:     5000 kB\nSReclaimable:  300 kB\n")
    return Machine(root=tmp_path)


def step(**options: Any) -> DropCaches:
    return DropCaches.model_validate({"use": "drop_caches", **options})


def test_what_is_unwritten_is_written_first(machine: Machine, tmp_path: Path) -> None:
    sync, write = step().apply(step().before(machine))
    assert isinstance(sync, Run) and sync.argv == ("sync",)
    assert write == Write(str(tmp_path / "proc/sys/vm/drop_caches"), "3", "caches", once=True)
    assert step().restore({}, write) is None and step().restore({}, sync) is None
    assert step(level=1).apply(step().before(machine))[1] == Write(write.path, "1", "caches", once=True)
    assert step().checks(machine) == []


def test_a_container_may_not(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpufreq, "is_read_only", lambda path: True)
    (cannot,) = step().apply(step().before(machine))
    assert isinstance(cannot, Cannot) and (cannot.status, cannot.detail) == ("refused", "EROFS")
    assert [(c.verdict, "--privileged" in (c.fix or "")) for c in step().checks(machine)] == [("blocked", True)]


def test_a_kernel_without_it(tmp_path: Path) -> None:
    (cannot,) = step().apply(step().before(Machine(root=tmp_path)))
    assert isinstance(cannot, Cannot) and cannot.status == "not_available"
    assert DropCaches.knobs(Machine(root=tmp_path)) == []


def test_how_much_is_cached(machine: Machine, tmp_path: Path) -> None:
    assert step().verify(machine) == {"cached_bytes": 5000 * 1024, "reclaimable_bytes": 300 * 1024}
    assert step().verify(Machine(root=tmp_path / "nowhere")) == {}
    (knob,) = DropCaches.knobs(machine)
    assert (knob.value, knob.limits) == ("5.12 MB of files", "drop 1, 2, 3")


@pytest.mark.parametrize(("now", "judged"), [(100, False), (5000, False), (9000, True), (None, False)])
def test_caches_that_grow_are_told(now: int | None, judged: bool) -> None:
    before = {"cached_bytes": 5000 if now != 5000 else 5001}
    said = step().judge(before, {} if now is None else {"cached_bytes": now})
    assert bool(said) == judged
    assert step(level=2).judge(before, {"cached_bytes": 9000}) is None


@pytest.mark.parametrize("options", [{"level": 4}, {"level": 0}, {"each_pass": True}])
def test_what_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        step(**options)
