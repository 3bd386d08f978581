"""What the target's Pythons have told: who kept us out, and the table of their steps."""

from __future__ import annotations

import pytest

from orchestrator import told


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
