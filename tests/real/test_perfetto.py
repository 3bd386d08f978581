"""A trace of torch.profiler in the real Perfetto UI."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import perfetto_ui
import pytest
import torch_program

from orchestrator.formats import kineto

pytestmark = pytest.mark.tool("chromium")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    torch_program.record(folder, "window", distributedInfo={"backend": "none", "rank": 0, "world_size": 1})
    return folder / "window.trace.json"


def test_perfetto_shows_every_event(trace: Path) -> None:
    events = json.loads(trace.read_text())["traceEvents"]
    written = Counter(event["name"] for event in events if event["ph"] in "Xi")
    (ranges,) = [t for t in kineto.read(trace).tables if t.name == "ranges"]
    base_ns = json.loads(trace.read_text())["baseTimeNanoseconds"]
    with perfetto_ui.opened(trace) as ui:
        assert ui.slices() == written
        assert ui.complaints() == []
        shown = ui.query("select ts, dur from slice where name = 'forward' order by ts")
    forward = [row for row in ranges.rows() if row["name"] == "forward"]
    assert shown == [[row["start_ns"] - base_ns, row["duration_ns"]] for row in forward]


def test_what_perfetto_can_not_read_is_told(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text('{"traceEvents": [{"ph": "X", "name": "say "hi"", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}')
    with pytest.raises(perfetto_ui.Refused, match="Failure parsing JSON"), perfetto_ui.opened(broken):
        pass
