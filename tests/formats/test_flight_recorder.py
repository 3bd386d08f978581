"""formats/flight_recorder.py: real files of torch's recorder, older and newer ones, and pickles that are none."""

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
from orchestrator.formats import flight_recorder

ENTRY = {
    "frames": [
        {"name": "all_reduce", "filename": "/v/lib/python3.11/site-packages/torch/d.py", "line": 1},
        {"name": "step", "filename": "/srv/train.py", "line": 7},
    ],
    "record_id": 0, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 3, "p2p_seq_id": 0,
    "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000, "input_sizes": ((4, 2),), "output_sizes": ((4, 2),),
    "input_dtypes": ["Float"], "state": "started", "retired": False, "is_p2p": False,
}  # fmt: skip


def read(folder: Path, content: Any, **more: Any) -> list[dict[str, Any]]:
    path = folder / "trace_0"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
    told = {"rank": 0, "pid": 7, "written_ns": 9_000, "fresh": True, **more}
    return list(flight_recorder.read(path, **told).rows())


def nccl(*entries: dict[str, Any], **more: Any) -> dict[str, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "entries": list(entries), "pg_config": config, **more}


def test_the_ranks_of_a_real_job_and_what_they_wait_for(golden: Path) -> None:
    first, second = (
        list(flight_recorder.read(golden / "dumps" / f"flight.{rank}.pickle", rank, None, None, True).rows())
        for rank in (0, 1)
    )
    assert [(row["seq"], row["op"], row["done"]) for row in first] == [
        (1, "all_reduce", True),
        (2, "all_reduce", False),
    ]
    assert [(row["seq"], row["done"]) for row in second] == [(1, True)]
    assert (first[1]["function"], first[1]["file"]) == ("train", "/srv/job/job.py")
    assert first[1]["input_sizes"] == "[[8]]" and first[1]["description"] == "default_pg" and first[1]["ranks"] is None


def test_what_nccl_tells_beyond_that(tmp_path: Path) -> None:
    send = {**ENTRY, "is_p2p": True, "p2p_seq_id": 5, "profiling_name": "nccl:send 0->1", "state": "scheduled"}
    done = {**ENTRY, "state": "completed", "retired": False}
    rows = read(tmp_path, nccl(ENTRY, send, done))
    assert rows[0] == {
        "rank": 0, "pid": 7, "group": "0", "description": "default_pg", "ranks": "0,1", "seq": 3, "op": "all_reduce",
        "is_p2p": False, "state": "started", "done": False, "input_sizes": "[[4, 2]]", "output_sizes": "[[4, 2]]",
        "dtypes": "Float", "created_ns": 1_000, "waited_ns": 8_000, "function": "step", "file": "/srv/train.py",
        "line": 7, "fresh": True,
    }  # fmt: skip
    assert (rows[1]["seq"], rows[1]["op"], rows[1]["is_p2p"]) == (5, "send 0->1", True)
    assert rows[2]["done"] and rows[2]["waited_ns"] is None


def test_a_recorder_that_has_seen_nothing_and_one_without_stacks(tmp_path: Path) -> None:
    assert read(tmp_path, {"version": "2.10", "pg_config": {}}) == []
    bare = {key: value for key, value in ENTRY.items() if key not in ("frames", "input_dtypes", "retired")}
    assert [(row["function"], row["dtypes"]) for row in read(tmp_path, nccl(bare))] == [(None, None)]


class Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps(Harm()), "it could run a program"),
        (pickle.dumps({"version": "2.10", "entries": [Harm()]}, protocol=2), "it could run a program"),
        (pickle.dumps({"segments": []}, protocol=2), "none of a flight recorder"),
        (pickle.dumps([1, 2], protocol=2), "none of a flight recorder"),
        (pickle.dumps({"version": "2.10", "entries": [{"state": 1}]}, protocol=2), "none of a flight recorder"),
        (b"", "damaged pickle"),
        (b"not a pickle", "it could run a program"),
    ],
)
def test_what_is_no_such_file_is_refused(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ParseError, match=said):
        read(tmp_path, content)
    assert not (tmp_path / "harm").exists()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MOST_BYTES", 1 << 20)
    with pytest.raises(ParseError, match="larger than 1 MiB: start the program with a smaller TORCH_FR_BUFFER_SIZE"):
        read(tmp_path, b"x" * ((1 << 20) + 1))


@given(cut=st.integers(0, 1300), at=st.integers(0, 1300), byte=st.integers(0, 255))
def test_only_parse_errors_come_out_of_damaged_files(
    tmp_path_factory: pytest.TempPathFactory, cut: int, at: int, byte: int
) -> None:
    golden = Path(__file__).parents[1] / "golden" / "dumps" / "flight.0.pickle"
    content = bytearray(golden.read_bytes())
    content[at % len(content)] = byte
    folder = tmp_path_factory.mktemp("flight")
    for part in (bytes(content), bytes(content[:cut])):
        with suppress(ParseError):
            read(folder, part)
