"""parquet.py: files behind one another, told from their rows as pyarrow reads them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import parquet

SCHEMA = pa.schema(
    [("a", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("f", pa.float64())], metadata={"table": "x"}
)
ROW = st.tuples(
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.text(max_size=5),
    st.none() | st.booleans(),
    st.none() | st.floats(allow_nan=False),
)


def empty(schema: pa.Schema = SCHEMA) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd"):
        pass
    return sink.getvalue()


def table(rows: list[tuple[object, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA.names)


def joined(paths: list[Path], to: Path) -> Path:
    with to.open("wb") as file:
        rows = parquet.join(paths, empty(), file)
    assert rows == pq.read_metadata(to).num_rows
    return to


@settings(max_examples=30)
@given(parts=st.lists(st.lists(ROW, max_size=8), max_size=4), group=st.integers(1, 9), indexed=st.booleans())
def test_rows_are_those_of_the_parts_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[list[tuple[object, ...]]], group: int, indexed: bool
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / f"{n}.parquet" for n in range(len(parts))]
    for path, rows in zip(paths, parts, strict=True):
        pq.write_table(table(rows), path, compression="zstd", row_group_size=group, write_page_index=indexed)
    whole = pq.read_table(joined(paths, folder / "all.parquet"))
    assert whole.schema.metadata == {b"table": b"x"} and whole.schema.names == SCHEMA.names
    assert whole.to_pylist() == [row for rows in parts for row in table(rows).to_pylist()]


def test_long_columns_and_statistics_survive(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.parquet" for n in range(20)]  # so many row groups have a list with a long head
    for n, path in enumerate(paths):
        pq.write_table(table([(1000 * n + i, f"part {n}", i % 2 == 0, None) for i in range(1000)]), path)
    whole = joined(paths, tmp_path / "all.parquet")
    assert pq.read_table(whole).equals(
        pa.concat_tables(map(pq.read_table, paths)).replace_schema_metadata({"table": "x"})
    )
    metadata = pq.read_metadata(whole)
    assert [metadata.row_group(n).column(0).statistics.min for n in range(20)] == list(range(0, 20_000, 1000))
    assert pq.read_table(whole, filters=[("s", "=", "part 7")])["a"].to_pylist() == list(range(7000, 8000))


def test_a_part_of_other_columns_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    with pytest.raises(parquet.Unlike, match=r"a\.parquet"):
        joined([tmp_path / "a.parquet"], tmp_path / "all.parquet")


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1\0\0\0\0PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"not one at all" * 9]
)
def test_what_is_no_parquet_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ValueError, match=r"Parquet|columns"):
        joined([tmp_path / "a.parquet"], tmp_path / "all.parquet")


@given(st.binary(max_size=200))
def test_any_footer_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        parquet.decoded(data)
