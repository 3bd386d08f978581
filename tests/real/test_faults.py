"""The fault matrix: whatever fails, the user gets the right exit status, one clear message and all captures before it;
the machine is as it was, and nothing lives on. tests/matrix/ has the faults; `scripts/faults` shows the table."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from matrix import runs
from matrix.words import Row


@pytest.fixture(scope="session")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The rows of all tests below that were selected, run side by side."""
    chosen = [item.callspec.params["fault"] for item in request.session.items if item.name.startswith("test_fault[")]
    able = [name for name in chosen if not runs.absent(runs.ALL[name])]
    found = runs.rows(able, tmp_path_factory.mktemp("faults"))
    print(runs.table(found))
    return found


@pytest.mark.parametrize("fault", runs.ALL)
def test_fault(fault: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if absent := runs.absent(runs.ALL[fault]):
        explain = f"{', '.join(absent)}: not on this machine"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(explain)
    found = request.getfixturevalue("rows").pop(fault, None) or runs.row(fault, tmp_path)  # once more, alone
    assert not found.wrong, "\n" + runs.shown(fault, found)


def test_there_are_enough_of_each_kind() -> None:
    assert len(runs.ALL) == sum(map(len, runs.OF.values()))
    assert len(runs.OF["tool"]) >= 35
    assert len(runs.ALL) >= 60
