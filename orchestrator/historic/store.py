"""The tables of the history, in SQLite or PostgreSQL, and what is written to and read from them.

One row a run (`profrun_runs`), and below it its metrics, findings and shares; the facts of an environment once for each
fingerprint. Every name begins with `profrun_`: a team's database holds other things, too."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from sqlalchemy import (
    URL,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    MetaData,
    Select,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from orchestrator import folder, redact
from orchestrator.errors import HistoryError
from orchestrator.historic.night import Night, NightVerdict
from orchestrator.model import Metric

SCHEMA = 1
FILE = "history.sqlite"
BUSY_S = 30.0
"""How long to wait for another run that writes at the same moment; one writes for some milliseconds."""
CONNECT_S = 10
"""How long a database server may take to answer at all."""
_LOCK = 0x70726F66
"""The number of PostgreSQL's advisory lock under which the tables are made: `prof`."""

_META = MetaData()
HISTORY = Table("profrun_history", _META, Column("schema", Integer, primary_key=True, autoincrement=False))
RUNS = Table(
    "profrun_runs",
    _META,
    Column("id", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("started_at", Text, nullable=False),
    Column("duration_s", Float),
    Column("host", Text),
    Column("path", Text, nullable=False),
    Column("gone", Boolean, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("context", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("exit_code", Integer, nullable=False),
    Column("verdict", Text),
    Column("note", Text, nullable=False),
    Index("profrun_runs_by_name", "name", "started_at", "id"),
)
FACTS = Table(
    "profrun_facts",
    _META,
    Column("fingerprint", Text, primary_key=True),
    Column("fact", Text, primary_key=True),
    Column("place", Integer, nullable=False),
    Column("value", Text, nullable=False),
)
METRICS = Table(
    "profrun_metrics",
    _META,
    Column("run_id", Text, primary_key=True),
    Column("metric", Text, primary_key=True),
    Column("value", Float),
    Column("unit", Text),
    Column("low", Float),
    Column("high", Float),
    Column("n", Integer),
    Column("median", Float),
    Column("stddev", Float),
    Column("min", Float),
    Column("max", Float),
    Column("outliers", Text, nullable=False),
)
FINDINGS = Table(
    "profrun_findings",
    _META,
    Column("run_id", Text, primary_key=True),
    Column("place", Integer, primary_key=True, autoincrement=False),
    Column("rule", Text, nullable=False),
    Column("category", Text, nullable=False),
    Column("severity", Text, nullable=False),
    Column("cost_pct", Float),
    Column("title", Text, nullable=False),
)
SHARES = Table(
    "profrun_shares",
    _META,
    Column("run_id", Text, primary_key=True),
    Column("category", Text, primary_key=True),
    Column("pct", Float, nullable=False),
)
_BELOW = (METRICS, FINDINGS, SHARES)
"""What belongs to a run."""
TABLES = (HISTORY, RUNS, FACTS, *_BELOW)


@dataclass(frozen=True)
class Row:
    """A run to be remembered. context: what else may have made it slower or faster, such as the kernel's version."""

    night: Night
    duration_s: float | None = None
    context: Mapping[str, str] = field(default_factory=dict)


# ---------------------------------------------------------------- which database


@dataclass(frozen=True)
class Place:
    """A database. file: that of SQLite; None: it is a server's."""

    url: URL
    file: Path | None

    @property
    def shown(self) -> str:
        """Its name, without a password."""
        return str(self.file) if self.file else self.url.render_as_string(hide_password=True)


_SUFFIXES = (".sqlite", ".db")


def place(where: str | Path) -> Place:
    """The database that is meant: a URL, a file that is there or ends in .sqlite, or a folder of reports. Raises
    HistoryError."""
    given = str(where)
    if "://" not in given:
        path = Path(given)
        is_file = path.suffix in _SUFFIXES or path.is_file()
        return _of_file(path if is_file else path / FILE)
    try:
        url = make_url(given)
        name = url.get_backend_name()
    except (ArgumentError, ValueError):
        raise HistoryError("that is no database's URL", redact.value(given), _EXAMPLE) from None
    if name == "sqlite":
        return _of_file(Path(url.database or FILE))
    if name not in ("postgresql", "postgres"):
        raise HistoryError(f"the history can't be kept in {name}", "it is kept in SQLite or PostgreSQL", _EXAMPLE)
    return Place(url.set(drivername="postgresql+psycopg"), None)


_EXAMPLE = "write it like postgresql://user@host/database, or name a folder of reports"


def _of_file(path: Path) -> Place:
    file = path.absolute()
    return Place(URL.create("sqlite", database=str(file)), file)


# ---------------------------------------------------------------- opening it


@contextlib.contextmanager
def writing(where: Place) -> Iterator[Connection]:
    """A transaction in which the tables are there. Raises HistoryError; nothing is written then."""
    with _told(where), _disposed(_engine(where, _writer)) as engine:
        if where.file:
            _made(where.file)
        with engine.begin() as connection:
            _ensure(connection, where)
            yield connection
        if where.file:
            for ending in ("", "-wal", "-shm"):
                folder.give(Path(f"{where.file}{ending}"))


@contextlib.contextmanager
def reading(where: Place) -> Iterator[Connection | None]:
    """A connection, or None where nothing has been remembered yet. Raises HistoryError."""
    if where.file and not where.file.exists():
        yield None
        return
    with _told(where), _disposed(_engine(where, _reader)) as engine, engine.connect() as connection:
        yield connection if _version(connection, where) is not None else None


@contextlib.contextmanager
def _disposed(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


def _engine(where: Place, sqlite_connect: Any) -> Engine:
    if where.file is None:
        return create_engine(where.url, poolclass=NullPool, connect_args={"connect_timeout": CONNECT_S})
    file = where.file
    engine = create_engine("sqlite://", creator=lambda: sqlite_connect(file), poolclass=NullPool)
    if sqlite_connect is _writer:  # a transaction that begins by reading could not wait for another's end
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return engine


def _made(file: Path) -> None:
    """An empty file that only its owner reads, as reports are."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.exists():
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        folder.give(file)


def _writer(file: Path) -> sqlite3.Connection:
    """Write-ahead log, so that readers and a writer are not in one another's way; not on a network's file system, whose
    hosts don't share the memory that it needs: there SQLite's older journal, with the locks of that system."""
    connection = sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
    wanted = "delete" if on_network(file.resolve()) else "wal"
    if connection.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
        with contextlib.suppress(sqlite3.OperationalError):  # another run is just about to; it stays as it is set
            connection.execute(f"PRAGMA journal_mode = {wanted}")
    return connection


def _reader(file: Path) -> sqlite3.Connection:
    """Where nothing can be written beside it, SQLite has to be told that nobody else does, either."""
    if os.access(file.parent, os.W_OK) and os.access(file, os.W_OK):
        return sqlite3.connect(file, timeout=BUSY_S, isolation_level=None)
    how = "mode=ro" if Path(f"{file}-wal").exists() else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(file))}?{how}", uri=True, timeout=BUSY_S, isolation_level=None)


_NETWORKS = ("nfs", "cifs", "smb", "9p", "fuse.sshfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "panfs")


def on_network(path: Path, mounts: str | None = None) -> bool:
    """Whether its file system may be another host's, too. mounts: what /proc/self/mountinfo says (proc(5): the mount
    point is field 5, the type follows the dash)."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
        except OSError:
            return False
    best, kind = "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind.removeprefix("fuse.").startswith(_NETWORKS) or kind.startswith(_NETWORKS)


def _ensure(connection: Connection, where: Place) -> None:
    if _version(connection, where) is not None:
        return
    if where.file is None:
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
    _META.create_all(connection)
    if _version(connection, where) is None:
        connection.execute(insert(HISTORY), {"schema": SCHEMA})


def _version(connection: Connection, where: Place) -> int | None:
    """The version of the tables; None where there are none. Raises HistoryError where a newer profrun has made them."""
    if not inspect(connection).has_table(HISTORY.name):
        return None
    found = connection.execute(select(func.max(HISTORY.c.schema))).scalar()
    if found is not None and found > SCHEMA:
        why = f"its tables are of version {found}, and this profrun knows {SCHEMA}"
        raise HistoryError(f"{where.shown} was written by a newer profrun", why, "use that one, or another database")
    return found


@contextlib.contextmanager
def _told(where: Place) -> Iterator[None]:
    """What goes wrong with the database as one clear error, without a password."""
    try:
        yield
    except (SQLAlchemyError, OSError, sqlite3.Error, ImportError) as error:
        raise _error(where, error) from None


def _error(where: Place, error: Exception) -> HistoryError:
    origin = error.orig if isinstance(error, DBAPIError) and error.orig else error
    said = " ".join(str(origin).split()) or type(origin).__name__
    password = str(where.url.password or "")
    said = redact.value(said.replace(password, redact.MASK) if password else said)
    what = f"the history in {where.shown} can't be used"
    if where.file is None:
        return HistoryError(what, said, _for_server(error))
    if isinstance(origin, sqlite3.OperationalError) or not isinstance(origin, sqlite3.DatabaseError):
        return HistoryError(what, said, _for_file(where.file, said))
    if "not a database" in said and where.file.suffix not in _SUFFIXES:
        return HistoryError(what, said, "name a database of SQLite, or a folder of reports (PROFRUN_HISTORY, --db)")
    file, parent = shlex.quote(str(where.file)), shlex.quote(str(where.file.parent))
    aside = f"mv {file} {file}.damaged && profrun history rebuild {parent}"
    return HistoryError(what, f"it is damaged: {said}", f"{aside} (verdicts of nights are lost)")


def _for_server(error: Exception) -> str:
    if isinstance(error, (ImportError, NoSuchModuleError)):
        return f"{sys.executable} -m pip install 'psycopg[binary]'"
    return "see that the server runs and lets you in: psql with the same URL"


def _for_file(file: Path, said: str) -> str:
    if "locked" in said:
        return f"see who holds it: fuser {file}"
    return "name another place: --db URL or FOLDER, PROFRUN_HISTORY, or report.history in the plan (`none`: no history)"


# ---------------------------------------------------------------- writing


def save(connection: Connection, rows: Sequence[Row]) -> None:
    """Remembers these runs, each with what has come of it by now; verdicts and notes of those that are known stay."""
    if not rows:
        return
    ids = [row.night.run_id for row in rows]
    for table in _BELOW:
        connection.execute(delete(table).where(table.c.run_id.in_(ids)))
    _upsert(connection, RUNS, [_run(row) for row in rows], keep=("id", "verdict", "note"))
    facts = {row.night.fingerprint: row.night.environment for row in rows}
    _upsert(connection, FACTS, [one for name, known in facts.items() for one in _facts(name, known)])
    for table, found in zip(_BELOW, (_metrics, _findings, _shares), strict=True):
        values = [one for row in rows for one in found(row.night)]
        if values:
            connection.execute(insert(table), values)


def _upsert(
    connection: Connection, table: Table, rows: list[dict[str, Any]], keep: Sequence[str] | None = None
) -> None:
    """keep: the columns that a row which is there has already keeps; None: all of them."""
    if not rows:
        return
    statement = _insert(connection)(table)
    if keep is None:
        connection.execute(statement.on_conflict_do_nothing(), rows)
        return
    changed = {column.name: statement.excluded[column.name] for column in table.c if column.name not in keep}
    connection.execute(statement.on_conflict_do_update(index_elements=list(table.primary_key), set_=changed), rows)


def _insert(connection: Connection) -> Any:
    """INSERT as this database knows it, with ON CONFLICT. Each brings much that the other has no use for."""
    if connection.dialect.name == "postgresql":
        from sqlalchemy.dialects.postgresql import insert as of_server

        return of_server
    from sqlalchemy.dialects.sqlite import insert as of_file

    return of_file


def _run(row: Row) -> dict[str, Any]:
    night = row.night
    told = {name: _storable(getattr(night, name)) for name in ("name", "started_at", "path", "fingerprint", "note")}
    return {
        **told,
        "id": _storable(night.run_id),
        "duration_s": row.duration_s,
        "host": night.host and _storable(night.host),
        "gone": night.gone,
        "context": _json(row.context),
        "status": night.status,
        "exit_code": night.exit_code,
        "verdict": night.verdict,
    }


def _facts(fingerprint: str, known: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for index, (name, value) in enumerate(known.items()):
        yield {"fingerprint": fingerprint, "fact": name, "place": index, "value": _json(value)}


def _metrics(night: Night) -> Iterator[dict[str, Any]]:
    for name, one in night.metrics.items():
        low, high = one.ci95 or (None, None)
        yield {
            "run_id": night.run_id,
            "metric": _storable(name),
            "low": low,
            "high": high,
            "outliers": _json(one.outliers),
            **{key: getattr(one, key) for key in ("value", "unit", "n", "median", "stddev", "min", "max")},
        }


def _findings(night: Night) -> Iterator[dict[str, Any]]:
    for index, one in enumerate(night.findings):
        yield {"run_id": night.run_id, "place": index, **one, "title": _storable(one["title"])}


def _shares(night: Night) -> Iterator[dict[str, Any]]:
    for name, pct in night.shares.items():
        yield {"run_id": night.run_id, "category": name, "pct": pct}


def _json(value: Any) -> str:
    """In ASCII, so that bytes which are no text survive."""
    return json.dumps(value, ensure_ascii=True)


def _storable(words: str) -> str:
    """Neither database takes half a surrogate pair (a byte that is no UTF-8), and PostgreSQL no NUL."""
    return words.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def set_verdict(connection: Connection, run_id: str, verdict: NightVerdict | None, note: str) -> bool:
    """Whether that run is remembered."""
    done = connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(verdict=verdict, note=_storable(note)))
    return done.rowcount > 0


def add_verdicts(connection: Connection, nights: Sequence[Night]) -> None:
    """Those of runs that are remembered without one."""
    for night in (night for night in nights if night.verdict):
        row = update(RUNS).where(RUNS.c.id == night.run_id, RUNS.c.verdict.is_(None))
        connection.execute(row.values(verdict=night.verdict, note=_storable(night.note)))


def paths(connection: Connection) -> list[tuple[str, str, str | None, bool]]:
    """(run id, path, host, whether its folder is known to be gone) of every run."""
    found = connection.execute(select(RUNS.c.id, RUNS.c.path, RUNS.c.host, RUNS.c.gone))
    return [(row[0], row[1], row[2], bool(row[3])) for row in found]


def mark_gone(connection: Connection, run_ids: Iterable[str]) -> None:
    for some in _pieces(list(run_ids)):
        connection.execute(update(RUNS).where(RUNS.c.id.in_(some)).values(gone=True))


def forget(connection: Connection, run_ids: Iterable[str]) -> None:
    for some in _pieces(list(run_ids)):
        for table in _BELOW:
            connection.execute(delete(table).where(table.c.run_id.in_(some)))
        connection.execute(delete(RUNS).where(RUNS.c.id.in_(some)))


_PIECE = 500
"""As many names in one statement as every SQLite takes."""


def _pieces(words: list[str]) -> Iterator[list[str]]:
    return (words[at : at + _PIECE] for at in range(0, len(words), _PIECE))


# ---------------------------------------------------------------- reading


def counts(connection: Connection) -> dict[str, int]:
    """Name -> number of runs, the name with the newest run first."""
    newest = func.max(RUNS.c.started_at)
    query = select(RUNS.c.name, func.count()).group_by(RUNS.c.name).order_by(newest.desc())
    return {row[0]: row[1] for row in connection.execute(query)}


def metric_names(connection: Connection, name: str) -> list[str]:
    """The metrics that the newest runs of that name have."""
    newest = _chosen(name, None, 20).subquery()
    query = select(METRICS.c.metric).distinct().where(METRICS.c.run_id.in_(select(newest.c.id)))
    return sorted(row[0] for row in connection.execute(query))


def _chosen(name: str, fingerprint: str | None, last: int | None) -> Select[Any]:
    query = select(RUNS).where(RUNS.c.name == name)
    query = query if fingerprint is None else query.where(RUNS.c.fingerprint == fingerprint)
    query = query.order_by(RUNS.c.started_at.desc(), RUNS.c.id.desc())
    return query if last is None else query.limit(last)


def nights(
    connection: Connection,
    name: str,
    fingerprint: str | None = None,
    last: int | None = None,
    metrics: Sequence[str] | None = None,
    findings: bool = True,
) -> list[Row]:
    """The runs of that name, the oldest first; metrics: only these."""
    chosen = _chosen(name, fingerprint, last)
    found = [dict(row) for row in connection.execute(chosen).mappings()][::-1]
    ids = select(chosen.subquery().c.id)
    measured = _by_run(connection, select(METRICS).where(METRICS.c.run_id.in_(ids), *_only(metrics)))
    shared = _by_run(connection, select(SHARES).where(SHARES.c.run_id.in_(ids)).order_by(SHARES.c.category))
    told = select(FINDINGS).where(FINDINGS.c.run_id.in_(ids)).order_by(FINDINGS.c.place)
    judged = _by_run(connection, told) if findings else {}
    known = environments(connection, {row["fingerprint"] for row in found})
    return [
        Row(
            replace(
                _night(row, known[row["fingerprint"]]),
                metrics={one["metric"]: _metric(one) for one in measured.get(row["id"], ())},
                findings=tuple(_finding(one) for one in judged.get(row["id"], ())),
                shares={one["category"]: one["pct"] for one in shared.get(row["id"], ())},
            ),
            row["duration_s"],
            json.loads(row["context"]),
        )
        for row in found
    ]


def _only(metrics: Sequence[str] | None) -> tuple[Any, ...]:
    return () if metrics is None else (METRICS.c.metric.in_(list(metrics)),)


def _by_run(connection: Connection, query: Select[Any]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in connection.execute(query).mappings():
        found.setdefault(row["run_id"], []).append(cast("Mapping[str, Any]", row))
    return found


def environments(connection: Connection, fingerprints: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Fingerprint -> the facts it is made of."""
    known: dict[str, dict[str, Any]] = {one: {} for one in fingerprints}
    for some in _pieces(sorted(known)):
        query = select(FACTS).where(FACTS.c.fingerprint.in_(some)).order_by(FACTS.c.place)
        for row in connection.execute(query).mappings():
            known[row["fingerprint"]][row["fact"]] = json.loads(row["value"])
    return known


def _night(row: Mapping[str, Any], environment: Mapping[str, Any]) -> Night:
    same = ("name", "started_at", "path", "host", "fingerprint", "status", "exit_code", "verdict", "note")
    kept = {key: row[key] for key in same}
    return Night(run_id=row["id"], environment=environment, gone=bool(row["gone"]), **kept)


def _metric(row: Mapping[str, Any]) -> Metric:
    ci95 = None if row["low"] is None or row["high"] is None else (row["low"], row["high"])
    same = {key: row[key] for key in ("value", "unit", "n", "median", "stddev", "min", "max")}
    return Metric(ci95=ci95, outliers=tuple(json.loads(row["outliers"])), **same)


def _finding(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("rule", "category", "severity", "cost_pct", "title")}


def newest(connection: Connection, metrics: Sequence[str], last: int, names: Sequence[str]) -> dict[str, list[Row]]:
    """Name -> its `last` newest runs, the oldest first, each with these metrics and nothing below it besides."""
    number = func.row_number().over(partition_by=RUNS.c.name, order_by=(RUNS.c.started_at.desc(), RUNS.c.id.desc()))
    ranked = select(RUNS, number.label("number")).where(RUNS.c.name.in_(list(names))).subquery()
    chosen = select(ranked).where(ranked.c.number <= last).order_by(ranked.c.number.desc())
    ids = select(ranked.c.id).where(ranked.c.number <= last)
    measured = _by_run(connection, select(METRICS).where(METRICS.c.run_id.in_(ids), *_only(metrics)))
    found: dict[str, list[Row]] = {name: [] for name in names}
    for row in map(dict, connection.execute(chosen).mappings()):
        own = {one["metric"]: _metric(one) for one in measured.get(row["id"], ())}
        found[row["name"]].append(Row(replace(_night(row, {}), metrics=own), row["duration_s"]))
    return found
