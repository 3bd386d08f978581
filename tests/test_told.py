"""What the target's Pythons have told: who kept us out, and the table of their steps."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from orchestrator import normalise, told
from orchestrator.inject.steps import TRAIN, Steps
from orchestrator.model import PassRecord


@pytest.mark.parametrize(
    ("line", "letter"),
    [
        ("python -I x.py", "I"),
        ("python3 -E -m pkg", "E"),
        ("python -uS x.py", "S"),
        ("python -Es x.py", "E"),
        ("python -Xdev -I x.py", "I"),
        ("python -Xdev x.py -I", None),
        ("python -W ignore x.py", None),
        ("python -X dev -I x.py", "I"),
        ("python -W ignore -S x.py", "S"),
        ("python -c pass -I", None),
        ("python -m pkg -S", None),
        ("python -cI", None),
        ("python -mES", None),
        ("python -XI", None),
        ("python --check-hash-based-pycs always -I x.py", "I"),
        ("python --version", None),
        ("python - -I", None),
        ("python", None),
    ],
)
def test_why_a_python_has_kept_us_out(line: str, letter: str | None) -> None:
    why = told.why_shut_out(line.split())
    assert (why is not None and f"-{letter} (" in why) if letter else why is None


@pytest.mark.parametrize(("count", "known"), [(4, False), (40, True), (240, True)])
def test_a_warm_up_that_can_t_be_told_is_unknown_and_not_0(tmp_path: Path, count: int, known: bool) -> None:
    folder = tmp_path / "raw" / "p01-target" / "python"
    folder.mkdir(parents=True)
    (folder / "1.0.diary").write_text("{'event': 'start', 'pid': 1, 'rank': None, 'time_ns': 1}\n")
    steps = Steps(str(folder / "1.0.steps"), None)
    steps.turn_to(TRAIN)
    for _ in range(count):
        sum(range(20_000))
        steps.tick()
    record = PassRecord("p01", "bare", ("timing",))
    said = told.of_pass(record, tmp_path)
    metrics = normalise._of_steps([record], {"p01": said})
    assert said.count == metrics["steps"].value == count
    assert (said.warmup is not None) is known
    assert ("warmup_steps" in metrics) is known
    assert ("step_s" in metrics) is known
    steady = said.tables[0].columns["duration_ns"][said.warmup :] if known else []
    quickest = statistics.median(sorted(steady)[:5]) / 1e9 if len(steady) > 50 else None
    assert said.quick_step_s == quickest
    assert ("quick_step_s" in metrics) is (quickest is not None)
