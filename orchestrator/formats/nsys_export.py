"""An export of nsys (`nsys export --type sqlite`) as an open file: which tables it has, their columns as arrays.

The schema is described in NVIDIA's Nsight Systems user guide ("SQLite Schema Reference"). Tables are made when they get
rows, columns come and go with the versions: everything is asked for before it is read.
Columns of numbers are read from the file's pages where that is possible (formats/sqlite_pages.py), else by SQL.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.errors import ParseError
from orchestrator.formats import sqlite_pages
from orchestrator.formats.events import MISSING, Ints
from orchestrator.formats.sqlite_pages import Codes, Pages, Surprise
from orchestrator.tables import Coded, Masked, Table

CLOCK_ERROR_NS = 10_000
"""How far the session's start in epoch time was found to be off, against clocks read inside the traced program."""

COPY_KINDS = ("Unknown", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
MANAGED_KINDS = {11: "HtoD", 12: "DtoH", 13: "DtoD"}
"""CUDA_MEMCPY_OPER: migrations of managed memory are numbered after the copies."""
MEMSET = -1
"""Stands beside the kinds of copies for setting memory, which has a table of its own."""
ENDS = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}
LONG_NAMES_SINCE = (2023, 3)
"""`nsys stats` of 2023.2.3 still writes HtoD, that of 2023.4.4 Host-to-Device, after ENUM_CUDA_MEMCPY_OPER.label."""


@contextmanager
def opened(path: Path) -> Iterator[Export]:
    """The export, opened so that nothing beside it is written or locked; whatever SQLite minds becomes a ParseError."""
    if not path.is_file() or not path.stat().st_size:
        raise ParseError(f"{path.name} is {'empty' if path.is_file() else 'missing'}")
    try:
        with ExitStack() as stack:
            yield _export(path, stack)
    # SystemError is what CPython's sqlite3 makes of some damaged schemas
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError, MemoryError, SystemError) as error:
        raise ParseError(f"{path.name} is no readable export of nsys: {error}") from error


def _export(path: Path, stack: ExitStack) -> Export:
    logged = path.with_name(path.name + "-wal")
    # a log beside the file holds what is not yet in it: then SQLite has to put both together
    immutable = "" if logged.is_file() and logged.stat().st_size else "&immutable=1"
    uri = f"{path.resolve().as_uri()}?mode=ro{immutable}"
    db = stack.enter_context(closing(sqlite3.connect(uri, uri=True, check_same_thread=False)))
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")  # paths and names may be any bytes
    try:
        pages = stack.enter_context(sqlite_pages.opened(path))
    except Surprise:
        pages = None
    try:
        export = Export(db, pages)
    except sqlite3.DatabaseError:
        db.execute("PRAGMA writable_schema = ON")  # SQLite reads a file that is too short only with this; no one writes
        export = Export(db, pages, damaged=True)
    if not export.has("StringIds", "value"):
        if export.damaged:
            raise ParseError(f"{path.name} is no readable export of nsys: it is damaged, its table StringIds is gone")
        raise ParseError(f"{path.name} is a database, but no export of nsys: it has no table StringIds")
    return export


@dataclass(frozen=True)
class _Layout:
    """Where a table begins and which columns its rows have, in order; no order where SQL has to be asked."""

    root: int
    order: tuple[str, ...] = ()


@dataclass
class Export:
    """An open export: which tables and columns it has, its strings, its clock.

    lost: rows of a damaged file that could not be read, by table; at least so many."""

    db: sqlite3.Connection
    pages: Pages | None = None
    damaged: bool = False
    columns: dict[str, set[str]] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    _layouts: dict[str, _Layout] = field(default_factory=dict)
    _cache: dict[tuple[str, str], Ints] = field(default_factory=dict)
    _encoded: dict[str, tuple[Codes, dict[str, Ints]]] = field(default_factory=dict)

    _lock: RLock = field(default_factory=RLock)

    def __post_init__(self) -> None:
        asked = "SELECT name, rootpage, sql FROM sqlite_master WHERE type IN ('table', 'view')"
        for table, root, sql in self.db.execute(asked).fetchall():
            found = self.db.execute(f"PRAGMA table_xinfo({_quoted(table)})").fetchall()
            self.columns[table] = {name for _, name, *_ in found}
            # the number of a row is not among its values; and such tables have them in another order, or elsewhere
            plain = not any(hidden for *_, hidden in found) and not re.search(r"WITHOUT\s+ROWID", sql or "", re.I)
            self._layouts[table] = _Layout(root or 0, tuple(_stored(found)) if plain and root else ())

    def has(self, table: str, column: str) -> bool:
        return column in self.columns.get(table, ())

    def holds(self, table: str) -> bool:
        """Whether the table has rows; some exports also make the empty ones."""
        return any(True for _ in self.rows(table, where="1 LIMIT 1"))

    def rows(self, table: str, *columns: str, where: str = "1") -> Iterator[tuple[Any, ...]]:
        """The table's rows; columns that it does not have are None, a missing table has no rows."""
        if table not in self.columns:
            return
        shown = [_quoted(c) if c in self.columns[table] else "NULL" for c in columns] or ["1"]
        seen = 0
        try:
            for row in self.db.execute(f"SELECT {', '.join(shown)} FROM {_quoted(table)} WHERE {where}"):
                yield row
                seen += 1
        except sqlite3.DatabaseError as error:
            if not _malformed(error):
                raise
            yield from self._behind(table, shown, where, seen)

    def _behind(self, table: str, shown: Sequence[str], where: str, seen: int) -> Iterator[tuple[Any, ...]]:
        """The rows behind a damaged place, from the last one back; what lies between is counted as lost."""
        source = f"FROM {_quoted(table)} WHERE {where}"
        behind: list[tuple[Any, ...]] = []
        last = before = 0
        try:
            numbers = self.db.execute(f"SELECT rowid {source}")
            before = next(islice(numbers, seen - 1, None), (0,))[0] if seen else 0
            for number, *row in self.db.execute(f"SELECT rowid, {', '.join(shown)} {source} ORDER BY rowid DESC"):
                if number <= before:
                    break
                behind.append(tuple(row))
                last = number
        except sqlite3.DatabaseError:
            pass
        self.lost[table] = max(self.lost.get(table, 0), last - before - 1, 1)
        yield from reversed(behind)

    def ints(self, table: str, *columns: str, where: str = "1") -> tuple[Ints, ...]:
        """The columns as arrays, with MISSING for NULL and for columns that this schema lacks.

        They are kept, shared and not to be written to. `where` is SQL; its simple forms
        (IS NOT NULL, =, IN, BETWEEN, joined by AND) cost next to nothing."""
        if table not in self.columns:
            return tuple(np.empty(0, np.int64) for _ in columns)
        terms = _terms(where)
        if terms is None:
            return self._asked(table, columns, where)
        held = self._held(table, *columns, *(column for column, _ in terms))
        chosen = _chosen(held, terms)
        return tuple(held[column][chosen] for column in columns)

    def encode(self, table: str, columns: Sequence[str], beside: Sequence[str] = ()) -> None:
        """Reads these columns, of which there are few combinations in many rows, and those `beside`, all at once and
        in the least room. Others of the table are read when they are asked for."""
        if table not in self.columns:
            return
        columns, beside = ([c for c in names if self.has(table, c)] for names in (columns, beside))
        try:
            root, places = self._layouts[table].root, self._places(table, [*columns, *beside])
            codes, found, plain = self._pages.combinations(root, places[: len(columns)], places[len(columns) :])
        except (Surprise, ValueError):
            plain = list(self._read(table, [*columns, *beside]))
            codes, found = sqlite_pages.distinct(plain[: len(columns)])
            plain = plain[len(columns) :]
        self._encoded[table] = codes, dict(zip(columns, found, strict=True))
        self._keep(table, beside, plain)

    def combinations(self, table: str, *columns: str, where: str = "1") -> tuple[Codes, tuple[Ints, ...]]:
        """For each row which of the combinations of these columns it has, and the combinations, column by column: a
        few hundred that stand for millions of rows. All columns must be among those that were encoded."""
        if table not in self._encoded:
            return np.empty(0, np.int32), tuple(np.empty(0, np.int64) for _ in columns)
        codes, found = self._encoded[table]
        terms = _terms(where) or ()
        held = self._held(table, *(column for column, _ in terms))
        if any(len(values) != len(codes) for values in held.values()):
            raise ValueError(f"the rows of {table} are damaged: its columns do not belong together")
        lacking = np.full(max(map(len, found.values()), default=0), MISSING)
        return codes[_chosen(held, terms)], tuple(found.get(column, lacking) for column in columns)

    def _held(self, table: str, *columns: str) -> dict[str, Ints]:
        """These columns, of the same rows, whatever another thread reads meanwhile."""
        with self._lock:
            self._fill(table, *columns)
            return {column: self._column(table, column) for column in columns}

    def _fill(self, table: str, *columns: str) -> None:
        """Sees to it that these columns are kept; two threads that want the same do not both read it."""
        with self._lock:
            wanted = [c for c in dict.fromkeys(columns) if self.has(table, c) and (table, c) not in self._cache]
            codes, found = self._encoded.get(table, (None, {}))
            here = [column for column in wanted if column in found]
            self._keep(table, here, [found[column][codes] for column in here])
            rest = [column for column in wanted if column not in found]
            if rest:
                self._keep(table, *self._alike(table, rest))

    def _alike(self, table: str, columns: list[str]) -> tuple[list[str], Sequence[Ints]]:
        """These columns as they are read; of a damaged table another reading may reach other rows than an earlier one
        has, and then all are read anew, together. Raises ValueError where that can't be."""
        found = self._read(table, columns)
        kept = {name: len(values) for (owner, name), values in self._cache.items() if owner == table}
        if all(length == len(found[0]) for length in kept.values()):
            return columns, found
        if table in self._encoded:
            raise ValueError(f"the rows of {table} are damaged: its columns do not belong together")
        together = [*kept, *columns]
        return together, self._read(table, together)

    def _keep(self, table: str, columns: Sequence[str], found: Sequence[Ints]) -> None:
        for column, values in zip(columns, found, strict=True):
            values.flags.writeable = False
            self._cache[table, column] = values

    def _column(self, table: str, column: str) -> Ints:
        if (table, column) in self._cache:
            return self._cache[table, column]
        return np.broadcast_to(np.int64(MISSING), self._length(table))

    def _length(self, table: str) -> int:
        """The number of the table's rows, as the columns that were read have them."""
        kept = [len(values) for (name, _), values in list(self._cache.items()) if name == table]
        if kept or not self.columns.get(table):
            return kept[0] if kept else 0
        self._fill(table, some := min(self.columns[table]))
        return len(self._cache[table, some])

    @property
    def _pages(self) -> Pages:
        if self.pages is None:
            raise Surprise("a file that is left to SQLite")
        return self.pages

    def _places(self, table: str, columns: Sequence[str]) -> list[int]:
        order = self._layouts[table].order
        if not set(columns) <= set(order):
            raise Surprise("columns that SQLite makes")
        return [order.index(column) for column in columns]

    def _read(self, table: str, columns: Sequence[str]) -> Sequence[Ints]:
        """Whole columns: from the pages, else by SQL, else what a damaged file still has of them."""
        root = self._layouts[table].root
        try:
            return self._pages.columns(root, self._places(table, columns))
        except Surprise:
            pass
        try:
            return self._asked(table, columns, "1")
        except sqlite3.DatabaseError as error:
            if not _malformed(error):
                raise
        try:
            found, lost = self._pages.rest(root, self._places(table, columns))
        except Surprise:
            found, lost = [np.empty(0, np.int64) for _ in columns], 1
        self.lost[table] = max(self.lost.get(table, 0), lost)
        return found

    def _asked(self, table: str, columns: Sequence[str], where: str) -> tuple[Ints, ...]:
        shown = [f"ifnull({_quoted(c)}, {MISSING})" if self.has(table, c) else str(MISSING) for c in columns]
        cursor = self.db.execute(f"SELECT {', '.join(shown)} FROM {_quoted(table)} WHERE {where}")
        flat = np.fromiter(chain.from_iterable(cursor), np.int64)
        return tuple(np.ascontiguousarray(column) for column in flat.reshape(-1, len(columns)).T)

    def events(self, table: str, *columns: str, where: str = "1") -> tuple[Ints, ...]:
        """Duration and the columns of the events that have an end."""
        start, end, *more = self.ints(table, "start", "end", *columns, where=f"{where} AND end IS NOT NULL")
        return (end - start, *more)

    @cached_property
    def strings(self) -> dict[int, str]:
        return dict(self.rows("StringIds", "id", "value"))

    def string(self, number: int) -> str:
        return self.strings.get(number) or ("(unnamed)" if number == MISSING else f"(string {number})")

    @cached_property
    def start_epoch_ns(self) -> int | None:
        found = next(iter(self.rows("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")), (None,))
        return found[0] or None

    @cached_property
    def gpus(self) -> tuple[str, ...]:
        return tuple(str(name or "unnamed GPU") for (name,) in self.rows("TARGET_INFO_GPU", "name"))

    @cached_property
    def version(self) -> str | None:
        tables = ("META_DATA_EXPORT", "EXPORT_META_DATA")  # since 2023.3; 2022.1 to 2023.2; none before
        found = chain.from_iterable(self.rows(t, "value", where="name = 'EXPORT_PRODUCT_VERSION'") for t in tables)
        return next((value for (value,) in found), None)

    def transfer_name(self, kind: int) -> str:
        """What `nsys stats` of the version that made this export calls a kind of copy."""
        released = re.match(r"(\d+)\.(\d+)", self.version or "")
        return transfer_name(kind, released is not None and tuple(map(int, released.groups())) >= LONG_NAMES_SINCE)

    def timed(self, name: str, start: Ints, columns: Mapping[str, Any]) -> Table:
        """A table of events in the order of their start (ns of the session), on the best clock that there is."""
        data = {"start_ns": start + (self.start_epoch_ns or 0), **columns}
        if (start[1:] < start[:-1]).any():
            data = dict(zip(data, _in_order(list(data.values()), np.argsort(start, kind="stable")), strict=True))
        if self.start_epoch_ns is None:
            return Table(name, data)
        return Table(name, data, clock="epoch", clock_error_ns=CLOCK_ERROR_NS)


def transfer_name(kind: int, long: bool = False) -> str:
    """As `nsys stats` of 2022 spells it, or as later versions do."""
    if kind == MEMSET:
        return "[CUDA memset]"
    managed = kind in MANAGED_KINDS
    short = MANAGED_KINDS.get(kind) or (COPY_KINDS[kind] if 0 <= kind < len(COPY_KINDS) else f"kind {kind}")
    if not long:
        return f"[CUDA Unified Memory memcpy {short}]" if managed else f"[CUDA memcpy {short}]"
    whole = f"{ENDS[short[0]]}-to-{ENDS[short[-1]]}" if "to" in short else short
    return f"[CUDA memcpy {'Unified ' if managed else ''}{whole}]"


def without_version(name: str) -> str:
    """cudaMalloc for cudaMalloc_v3020: four digits are cut off, as nsys does; longer ones are part of the name."""
    return name[:-6] if name[-6:-4] == "_v" else name


def _in_order(columns: Sequence[Any], order: Ints) -> Iterator[Any]:
    """The columns with their rows in this order. Columns that share their codes do so afterwards."""
    codes: dict[int, Any] = {}
    for column in columns:
        if isinstance(column, Coded):
            if id(column.codes) not in codes:
                codes[id(column.codes)] = column.codes[order]
            yield Coded(codes[id(column.codes)], column.texts)
        elif isinstance(column, Masked):
            yield column.take(order)
        else:
            yield column[order] if isinstance(column, np.ndarray) else [column[place] for place in order.tolist()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _malformed(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is damaged, and not the question wrong."""
    return type(error) is sqlite3.DatabaseError or "disk I/O error" in str(error)


def _stored(found: Sequence[tuple[Any, ...]]) -> Iterator[str]:
    """The columns in their order; the one that is the row's number goes by a name that nobody asks for."""
    keys = [name for _, name, _, _, _, key, _ in found if key]
    for _, name, kind, _, _, key, _ in found:
        yield "" if key and len(keys) == 1 and str(kind).upper() == "INTEGER" else name


# ---------------------------------------------------------------- conditions

_Term = tuple[str, Any]
_TERM = re.compile(
    r"(?P<null>\w+) IS NOT NULL|(?P<equal>\w+) = (?P<number>-?\d+)|(?P<among>\w+) IN \((?P<numbers>[-\d, ]+)\)"
    r"|(?P<between>\w+) BETWEEN (?P<low>-?\d+) AND (?P<high>-?\d+)|1"
)


def _chosen(held: Mapping[str, Ints], terms: Sequence[_Term]) -> Any:
    """What to index a table's columns with: all of them, or a mask."""
    masks = [test(held[column]) for column, test in terms]
    mask = np.logical_and.reduce(masks) if masks else None
    return slice(None) if mask is None or mask.all() else mask


def _terms(where: str) -> list[_Term] | None:
    """The columns of a condition, each with its test on arrays; None when it is not one of the simple forms."""
    terms: list[_Term] = []
    place = 0
    while found := _TERM.match(where, place):
        terms += _term(found)
        place = found.end()
        if place == len(where):
            return terms
        if not where.startswith(" AND ", place):
            return None
        place += len(" AND ")
    return None


def _term(found: re.Match[str]) -> Iterator[_Term]:
    if column := found["null"]:
        yield column, lambda values: values != MISSING
    elif column := found["equal"]:
        yield column, lambda values: values == int(found["number"])
    elif column := found["among"]:
        numbers: NDArray[Any] = np.array([int(n) for n in found["numbers"].split(",")])
        yield column, lambda values: np.isin(values, numbers)
    elif column := found["between"]:
        yield column, lambda values: (values >= int(found["low"])) & (values <= int(found["high"]))
