"""formats/memsnap.py: real snapshots, and pickles that hold more than data."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ParseError
from orchestrator.formats import memsnap

PYTHON = {"name": "step", "filename": "/home/me/train.py", "line": 12}
TORCH = {"name": "forward", "filename": "/lib/torch/nn/linear.py", "line": 9}
OPERATOR = {"name": "at::_ops::bmm::call(at::Tensor const&)", "filename": "??", "line": 0}


def event(action: str, addr: int, size: int, time_us: int, *frames: dict[str, Any]) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time_us, "frames": list(frames)}


BLOCKS = [
    {"state": "active_allocated", "size": 1024, "requested_size": 1000},
    {"state": "active_allocated", "size": 512},
    {"state": "inactive", "size": 2560},
]
SNAPSHOT = {
    "segments": [{"device": 0, "total_size": 4096, "allocated_size": 1536, "blocks": BLOCKS}],
    "device_traces": [
        [
            event("segment_alloc", 8, 2048, 1),
            event("alloc", 8, 1024, 2, OPERATOR, TORCH, PYTHON),
            event("alloc", 16, 512, 3, OPERATOR),
            event("free_requested", 8, 1024, 4, TORCH),
            event("free_completed", 8, 1024, 5, TORCH),
        ]
    ],
    "allocator_settings": {"max_split_size": -1, "garbage_collection_threshold": 0.0},
}


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_what_was_held_follows_from_the_end(tmp_path: Path, protocol: int) -> None:
    content = memsnap.read(write(tmp_path / "f", SNAPSHOT, protocol))
    assert (content.segments, content.reserved_bytes, content.allocated_bytes) == (1, 4096, 1536)
    rows = [(r["bytes"], r["allocated_bytes"], r["reserved_bytes"], r["op"]) for r in content.memory.rows()]
    assert rows == [
        (1024, 2024, 4096, "step (/home/me/train.py:12)"),
        (512, 2536, 4096, "aten::bmm"),
        (-1024, 1512, 4096, "forward (/lib/torch/nn/linear.py:9)"),
    ]
    assert content.memory.columns["time_ns"] == [2000, 3000, 4000] and content.memory.clock == "epoch"


def test_real_snapshots(shared: Path) -> None:
    content = memsnap.read(shared / "data/torch/memsnap_ctx128_forward.pickle")
    assert (content.segments, content.reserved_bytes, content.allocated_bytes) == (516, 19667091456, 19498420224)
    assert content.events == {"segment_alloc": 289, "alloc": 2058, "free_requested": 1155, "free_completed": 1155}
    rows = list(content.memory.rows())
    assert len(rows) == 2058 + 1155 and rows[-1]["allocated_bytes"] == 19352504320
    assert min(row["allocated_bytes"] for row in rows) > 0 and all(row["op"] for row in rows)
    assert all(row["allocated_bytes"] <= row["reserved_bytes"] for row in rows)
    assert not len(memsnap.read(shared / "data/torch/memsnap_full_no_history.pickle").memory)


class Evil:
    """What a pickle may do to those who open it."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/profrun-was-here",)


@pytest.mark.parametrize("content", [Evil(), {"segments": [Evil()], "device_traces": []}, Path("/"), {1, 2}, b"abc"])
def test_nothing_but_data_is_opened(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ParseError, match="more than plain data"):
        memsnap.read(write(tmp_path / "f", content))
    assert not Path("/tmp/profrun-was-here").exists()


@pytest.mark.parametrize(
    "content", [[], {"segments": 1}, {"segments": [], "device_traces": [[1]]}, "text", {(1,): 2, (2,): 3}]
)
def test_other_data_is_no_snapshot(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ParseError, match=r"no snapshot|damaged"):
        memsnap.read(write(tmp_path / "f", content))


def test_a_memo_of_gigabytes_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"\x80\x02}r\xff\xff\xff\x7f.")
    with pytest.raises(ParseError, match="no snapshot"):
        memsnap.read(path)


GOOD = pickle.dumps(SNAPSHOT)


@given(st.integers(0, len(GOOD)), st.binary(max_size=4), st.integers(0, 4))
def test_damage_is_a_parse_error_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, at: int, new: bytes, gone: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pickle"
    path.write_bytes(GOOD[:at] + new + GOOD[at + gone :])
    with suppress(ParseError):
        memsnap.read(path)
