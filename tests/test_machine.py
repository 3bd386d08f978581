"""What is asked of the machine and its tools, and what of the answers is kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli import script

from orchestrator.machine import Machine
from orchestrator.model import ToolProbe


def test_a_tool_that_said_nothing_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    body = f"#!/bin/sh\necho x >> {tmp_path}/asked\n[ -e {tmp_path}/well ] && echo version 1.2\n"
    path = str(script(tmp_path / "tool", body))
    probe = ToolProbe("tool")

    def version() -> str | None:
        return Machine({"tool": path}).tool(probe).version

    assert version() is None
    (tmp_path / "well").touch()
    assert [version(), version()] == ["1.2", "1.2"]
    assert (tmp_path / "asked").read_text().count("x") == 2


def test_a_home_that_can_not_be_written_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    path = str(script(tmp_path / "tool", "#!/bin/sh\necho version 1.2\n"))
    assert Machine({"tool": path}).tool(ToolProbe("tool")).version == "1.2"
