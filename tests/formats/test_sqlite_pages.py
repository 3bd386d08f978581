"""formats/sqlite_pages.py against SQLite itself: every column is the same, or the reader says that it can't tell."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.formats import sqlite_pages
from orchestrator.formats.events import MISSING
from orchestrator.formats.sqlite_pages import Pages, Surprise


def tables(db: sqlite3.Connection) -> Iterator[tuple[str, int, list[str]]]:
    """Every table with its root page and its columns; the one that is the row's number is nameless."""
    for name, root in db.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'").fetchall():
        found = db.execute(f'PRAGMA table_info("{name}")').fetchall()
        alias = [row for row in found if row[5]]
        plain = len(alias) != 1 or alias[0][2].upper() != "INTEGER"
        yield name, root, [row[1] if plain or not row[5] else "" for row in found]


def by_sql(db: sqlite3.Connection, table: str, column: str) -> list[Any]:
    return [MISSING if v is None else v for (v,) in db.execute(f'SELECT "{column}" FROM "{table}" ORDER BY rowid')]


def whole_numbers(values: list[Any]) -> bool:
    return all(isinstance(value, int) for value in values)


def read(pages: Pages, root: int, places: list[int]) -> list[list[int]] | None:
    try:
        return [column.tolist() for column in pages.columns(root, places)]
    except Surprise:
        return None


def test_every_column_of_every_real_file(shared: Path) -> None:
    """All that SQLite gives as whole numbers is the same from the pages; nothing else is taken for numbers."""
    equal = refused = 0
    for path in sorted((shared / "data" / "nsys").glob("*.sqlite")):
        db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
        db.text_factory = lambda raw: raw.decode("utf-8", "replace")
        with sqlite_pages.opened(path) as pages:
            for table, root, columns in tables(db):
                for place, column in ((i, c) for i, c in enumerate(columns) if c):
                    expected = by_sql(db, table, column)
                    found = read(pages, root, [place])
                    if found is None:
                        refused += whole_numbers(expected)
                    else:
                        assert found == [expected], (path.name, table, column)
                        equal += 1
        db.close()
    assert equal > 1500, "most columns are read from the pages"
    assert refused < equal / 4, "SQL is asked for few of them"


def test_many_columns_at_once_are_those_one_by_one(shared: Path) -> None:
    path = shared / "data" / "nsys" / "2024.6.2_a100_gpt_small.sqlite"
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)
    found = {name: (root, columns) for name, root, columns in tables(db)}
    root, columns = found["CUPTI_ACTIVITY_KIND_KERNEL"]
    places = [columns.index(c) for c in ("blockX", "start", "gridX", "end", "demangledName")]
    with sqlite_pages.opened(path) as pages:
        together = pages.columns(root, places)
        assert [c.tolist() for c in together] == [pages.columns(root, [p])[0].tolist() for p in places]
        codes, shapes, beside = pages.combinations(root, places[:1] + places[2:3], places[1:2])
    assert beside[0].tolist() == together[1].tolist()
    assert [shape[codes].tolist() for shape in shapes] == [together[0].tolist(), together[2].tolist()]
    assert len(shapes[0]) == len(set(zip(together[0].tolist(), together[2].tolist(), strict=True))) < 200


def test_neighbours_of_a_block_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of many blocks, read by several threads, whose rowids grow from one byte to three."""
    monkeypatch.setattr(sqlite_pages, "BLOCK_BYTES", 4096)
    db = sqlite3.connect(tmp_path / "x.sqlite")
    db.execute("PRAGMA page_size = 512")
    db.execute("CREATE TABLE t (a INT, b INT)")
    numbers = [(i * 7919 % 100_003, None if i % 11 == 0 else -(2 ** (i % 63))) for i in range(20_000)]
    db.executemany("INSERT INTO t VALUES (?, ?)", numbers)
    db.commit()
    (_, root, _), *_ = tables(db)
    db.close()
    with sqlite_pages.opened(tmp_path / "x.sqlite") as pages:
        a, b = pages.columns(root, [0, 1])
    assert list(zip(a.tolist(), b.tolist(), strict=True)) == [(x, MISSING if y is None else y) for x, y in numbers]


# ---------------------------------------------------------------- odd databases

NUMBERS = st.one_of(
    st.none(),
    st.integers(-2, 3),
    st.sampled_from([s * 2**bits + d for bits in (7, 8, 15, 16, 23, 31, 47, 62) for d in (-1, 0, 1) for s in (1, -1)]),
    st.integers(-(2**63) + 1, 2**63 - 1),
)
VALUES = st.one_of(
    NUMBERS, st.floats(allow_nan=False), st.text(max_size=80), st.binary(max_size=80), st.just("x" * 900)
)
ROWIDS = st.one_of(st.integers(1, 300), st.integers(-(2**63), 2**63 - 1))


@st.composite
def databases(draw: st.DrawFn) -> list[str | tuple[str, list[Any]]]:
    """Statements that make a table `t`, in one of the many ways that a file may look."""
    size = draw(st.sampled_from([512, 1024, 4096, 65536]))
    kinds = draw(st.lists(st.sampled_from(["INT", "INTEGER", "", "TEXT", "REAL", "BLOB"]), min_size=1, max_size=6))
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
    key = draw(st.sampled_from(["", "", "", ", id INTEGER PRIMARY KEY", ", id INT PRIMARY KEY", ", g INT AS (c0 + 1)"]))
    tail = draw(st.sampled_from(["", "", ", id INT, PRIMARY KEY (id)) WITHOUT ROWID"])) if not key else ""
    statements: list[Any] = [
        "PRAGMA synchronous = OFF",
        f"PRAGMA page_size = {size}",
        f"PRAGMA auto_vacuum = {draw(st.sampled_from([0, 1]))}",
    ]
    statements.append(f"PRAGMA encoding = '{draw(st.sampled_from(['UTF-8', 'UTF-16le']))}'")
    statements.append(f"CREATE TABLE t ({columns}{key}{tail or ')'}")
    odd = draw(st.booleans())
    row = st.lists(VALUES if odd else NUMBERS, min_size=len(kinds), max_size=len(kinds))
    rows = draw(st.dictionaries(ROWIDS, row, max_size=40))
    number = "id" if "id" in key or tail else "rowid"
    names = ", ".join([number, *(f"c{i}" for i in range(len(kinds)))])
    marks = ", ".join("?" * (len(kinds) + 1))
    statements += [(f"INSERT INTO t ({names}) VALUES ({marks})", [n, *values]) for n, values in rows.items()]
    if draw(st.booleans()):
        statements.append("DELETE FROM t WHERE c0 > 0")
    if draw(st.integers(0, 5)) == 0:
        statements.append("ALTER TABLE t ADD COLUMN late INT DEFAULT 7")
    return statements


@settings(max_examples=150, deadline=None)
@given(databases())
def test_odd_databases(tmp_path_factory: pytest.TempPathFactory, statements: list[Any]) -> None:
    path = tmp_path_factory.mktemp("odd") / "x.sqlite"
    db = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        db.execute(*(statement if isinstance(statement, tuple) else (statement,)))
    stored = [row for row in db.execute("PRAGMA table_xinfo(t)").fetchall() if not row[6]]
    plain = len(stored) == len(db.execute("PRAGMA table_xinfo(t)").fetchall())
    ((_, root, columns),) = tables(db)
    without_rowid = any(isinstance(s, str) and "WITHOUT ROWID" in s for s in statements)
    with sqlite_pages.opened(path) as pages:
        for place, column in ((i, c) for i, c in enumerate(columns) if c and plain):
            found = read(pages, root, [place])
            if without_rowid:
                assert found is None or found == [[]]
            elif found is not None:
                assert found == [by_sql(db, "t", column)], column
    db.close()


def test_plain_numbers_are_not_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "x.sqlite", isolation_level=None)
    db.execute("CREATE TABLE t (name TEXT, a INT, b REAL)")
    db.executemany("INSERT INTO t VALUES (?, ?, ?)", [("a" * n, n, n / 2) for n in range(50)])
    ((_, root, _),) = tables(db)
    db.close()
    with sqlite_pages.opened(tmp_path / "x.sqlite") as pages:
        assert read(pages, root, [1]) == [list(range(50))], "short texts before it are stepped over"
        assert read(pages, root, [0]) is None
        assert read(pages, root, [2]) is None


@pytest.mark.parametrize("log", ["x.sqlite-wal", "x.sqlite-journal"])
def test_a_log_beside_the_file(tmp_path: Path, log: str) -> None:
    sqlite3.connect(tmp_path / "x.sqlite").execute("CREATE TABLE t (a INT)").connection.close()
    (tmp_path / log).write_bytes(b"something")
    with pytest.raises(Surprise, match="log"), sqlite_pages.opened(tmp_path / "x.sqlite"):
        pass


# ---------------------------------------------------------------- damage


def numbered(path: Path, rows: int) -> tuple[int, bytes]:
    """A table of the numbers from 0 on; its root page and the file's bytes."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA page_size = 512")
    db.execute("CREATE TABLE t (a INT)")
    db.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(rows)])
    db.commit()
    ((_, root, _),) = tables(db)
    db.close()
    return root, path.read_bytes()


def test_what_is_left_of_a_table_with_a_hole(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    root, whole = numbered(path, 3000)
    path.write_bytes(whole[: 512 * 20] + bytes(512) + whole[512 * 21 :])
    with sqlite_pages.opened(path) as pages:
        with pytest.raises(Surprise):
            pages.columns(root, [0])
        (left,), lost = pages.rest(root, [0])
    gap = np.flatnonzero(np.diff(left) != 1)
    assert len(left) + lost == 3000
    assert len(gap) == 1 and 10 < lost < 120, "one leaf, and nothing of another"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), min_size=1, max_size=12), st.integers(0, 20_000)
)
def test_damage_is_a_surprise(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    """Whatever the bytes are: columns, or a Surprise; and what is left never holds more rows than bytes."""
    path = tmp_path_factory.mktemp("damaged") / "x.sqlite"
    root, whole = numbered(path, 1500)
    broken = bytearray(whole)
    for place, byte in changes:
        broken[100 + place % (len(broken) - 100)] = byte
    path.write_bytes(bytes(broken[: len(broken) - cut % len(broken)]))
    try:
        with sqlite_pages.opened(path) as pages:
            read(pages, root, [0])
            (left,), lost = pages.rest(root, [0])
            assert len(left) < len(whole)
            assert lost >= 0
    except Surprise:
        pass
