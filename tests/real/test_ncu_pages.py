"""The real ncu prints the pages of every report that it can read: they hold what NVIDIA's package finds in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ncu_pages import compare

from orchestrator.errors import ParseError
from orchestrator.formats import ncu

pytestmark = pytest.mark.tool("ncu")

NUMBERS = {"raw": 14_127, "details": 2_372}
"""How many numbers the reports have that ncu 2022.3 can read; newer versions read more."""


@pytest.mark.parametrize("page", ["raw", "details"])
def test_pages_have_the_values_of_their_report(shared: Path, tmp_path: Path, page: str) -> None:
    pytest.importorskip("ncu_report")
    compared = 0
    for report in sorted((shared / "data" / "ncu").glob("*.ncu-rep")):
        printed = tmp_path / f"{report.stem}.csv"
        with printed.open("wb") as out:
            words = ["ncu", "--import", str(report), "--page", page, "--csv"]
            done = subprocess.run(words, stdout=out, stderr=subprocess.DEVNULL, timeout=120, check=False)
        if done.returncode == 0:
            compared += compare(printed, report)
        else:
            with pytest.raises(ParseError, match="ncu says: Failed to load report file"):
                ncu.read(printed)
    assert compared >= NUMBERS[page]
