"""tables.py: columns of few values or with unknown ones, in memory, in Arrow and in a report."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestrator import tables
from orchestrator.folder import Folder
from orchestrator.tables import Coded, Masked, Table

NAMES = Coded(np.array([0, 1, -1, 0], np.int8), ["add", "mul"])
NUMBERS = Masked(np.array([5, 0, 7, 8]), np.array([True, False, True, True]))


def test_they_are_sequences() -> None:
    assert list(NAMES) == ["add", "mul", None, "add"]
    assert [NAMES[i] for i in range(4)] == list(NAMES)
    assert list(NAMES[1:3]) == ["mul", None]
    assert list(NAMES.take([3, 2])) == ["add", None]
    assert list(NUMBERS) == [5, None, 7, 8]
    assert [NUMBERS[i] for i in range(4)] == list(NUMBERS)
    assert list(NUMBERS[:2]) == [5, None]
    assert list(NUMBERS.take([2, 1])) == [7, None]
    assert len(NAMES) == len(NUMBERS) == 4
    assert "mul" in NAMES and None in NAMES and "div" not in NAMES


def kernels(**columns: object) -> Table:
    data = {"start_ns": [1, 2, 3, 4], "name": NAMES, "registers": NUMBERS, **columns}
    return Table("gpu_kernels", data).with_capture("p1-nsys")  # type: ignore[arg-type]


def test_arrow_keeps_texts_encoded_until_they_are_stored() -> None:
    other = kernels(name=["sub", None, "add", "sub"])
    whole = tables.arrow("gpu_kernels", [kernels(), other])
    assert pa.types.is_dictionary(whole.schema.field("name").type)
    assert whole.column("registers").to_pylist() == [5, None, 7, 8] * 2
    (stored,) = tables.pieces(tables.mapped(whole, str.upper))
    assert stored.schema.field("name").type == pa.string()
    assert stored.schema.field("name").metadata == whole.schema.field("name").metadata != {}
    assert stored.schema.metadata == whole.schema.metadata
    assert stored.column("name").to_pylist() == ["ADD", "MUL", None, "ADD", "SUB", None, "ADD", "SUB"]


def test_encoded_numbers_and_nothing_at_all() -> None:
    shared = Coded(np.array([0, 0, 1, -1], np.int16), [16, None])
    none = Coded(np.broadcast_to(np.int8(-1), 4), ())
    whole = tables.arrow("gpu_kernels", [kernels(registers=shared, grid=none)])
    assert whole.column("registers").to_pylist() == [16, 16, None, None]
    assert whole.column("grid").to_pylist() == [None] * 4


@pytest.mark.parametrize("rows_a_piece", [3, 1 << 20])
def test_a_report_holds_plain_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_piece: int) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", rows_a_piece)
    assert Folder(tmp_path, str.upper).write_table("gpu_kernels", [kernels(), kernels()]) == 8
    path = tmp_path / "tables" / "gpu_kernels.parquet"
    assert pq.read_schema(path).field("name").type == pa.string()
    assert pq.read_table(path).column("name").to_pylist() == ["ADD", "MUL", None, "ADD"] * 2
    assert tables.read(path).attrs["columns"]["start_ns"]["unit"] == "ns"


def test_an_empty_table_is_stored_with_its_columns(tmp_path: Path) -> None:
    assert Folder(tmp_path, str).write_table("gpu_kernels", []) == 0
    assert "name" in pq.read_schema(tmp_path / "tables" / "gpu_kernels.parquet").names


def test_columns_that_an_older_report_has_not_yet_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "steps.parquet"
    today = tables.arrow("steps", [Table.of("steps", [(0, 100, 5, 77)], ("step", "start_ns", "duration_ns", "tid"))])
    pq.write_table(today.drop_columns(["tid"]), path)
    frame = tables.read(path)
    assert set(frame.columns) == set(today.column_names) and "rank" not in frame
    assert (str(frame["tid"].dtype), frame["tid"].isna().all()) == ("Int64", True)
    assert frame.attrs["columns"]["tid"]
    assert list(tables.read(path, ["step", "tid"])) == ["step", "tid"]


def test_rows_bear_the_rank_of_their_process_where_one_is_known() -> None:
    table = Table("syscalls", {"pid": [7, 8, None], "name": ["a", "b", "c"]})
    assert dict(table.with_ranks({8: 1}).columns) == {"rank": [None, 1, None], **table.columns}
    assert table.with_ranks({9: 1}) is table
    nameless = Table("syscall_paths", {"path": ["x"]})
    assert nameless.with_ranks({9: 1}) is nameless


def test_of_a_long_table_the_longest_rows_are_read_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "PIECE_ROWS", 7)
    lengths = np.random.default_rng(1).permutation(100)
    longest = Masked(lengths, lengths != 99)
    part = Table("gpu_kernels", {"duration_ns": longest, "correlation": np.arange(100)}).with_capture("p1-nsys")
    Folder(tmp_path, str).write_table("gpu_kernels", [part])
    path = tmp_path / "tables" / "gpu_kernels.parquet"
    frame, total = tables.longest(path, 5, ["total_ns", "bytes", "duration_ns"])
    assert total == 100 and sorted(frame["duration_ns"]) == [94, 95, 96, 97, 98]
    assert frame["correlation"].is_monotonic_increasing and frame.attrs["columns"]["duration_ns"]["unit"] == "ns"
    first, _ = tables.longest(path, 5, ["registers"])
    assert first["correlation"].tolist() == [0, 1, 2, 3, 4], "where nothing tells, the first"
    few = tables.read(path, ["correlation", "no such column"], ["p1-nsys"])
    assert list(few.columns) == ["correlation"] and len(few) == 100
    assert len(tables.read(path, captures=["another"])) == 0
