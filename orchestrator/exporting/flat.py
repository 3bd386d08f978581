"""What CSV and Parquet have in common: the report as flat tables that those of other runs can be laid beside."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

    from orchestrator.report import Report

RUN = "run"
"""The first column of every table."""


@dataclass(frozen=True)
class Flat:
    """A table with its schema, and its rows piece by piece."""

    name: str
    schema: pyarrow.Schema
    pieces: Iterator[pyarrow.Table]


def flat(report: Report) -> Iterator[Flat]:
    """The canonical tables, the figures, the findings, and what the columns of all of them are."""
    own = [_small("metrics", _metrics(report)), _small("findings", _findings(report))]
    found = [*(_table(report, name) for name in sorted(report.tables)), *(table for table in own if table is not None)]
    columns = [row for table in found for row in _columns(table)]
    yield from found
    if columns:
        yield from (table for table in [_small("columns", columns)] if table is not None)


def _table(report: Report, name: str) -> Flat:
    import pyarrow as pa

    told = {b"meaning": b"the run that it is of"}
    known = report.schema(name)
    schema = pa.schema([pa.field(RUN, pa.string(), metadata=told), *known], metadata=known.metadata)

    def pieces() -> Iterator[Any]:
        for batch in report.batches(name):
            run = pa.repeat(pa.scalar(report.run.id), batch.num_rows)
            yield pa.Table.from_arrays([run, *batch.columns], schema=schema)

    return Flat(name, schema, pieces())


def _small(name: str, rows: list[dict[str, Any]]) -> Flat | None:
    """Of rows that are all there; None without any."""
    import pyarrow as pa

    if not rows:
        return None
    table = pa.Table.from_pylist(rows)
    return Flat(name, table.schema, iter([table]))


def _metrics(report: Report) -> list[dict[str, Any]]:
    rows = []
    for name, metric in sorted(report.metrics.items()):
        low, high = metric.ci95 or (None, None)
        figures = ("value", "unit", "n", "median", "stddev", "min", "max")
        numbers = {key: _number(getattr(metric, key)) for key in figures}
        rows.append({RUN: report.run.id, "name": name, **numbers, "ci95_low": _number(low), "ci95_high": _number(high)})
    return rows


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _findings(report: Report) -> list[dict[str, Any]]:
    told = ("rule", "category", "severity", "title", "cost_s", "cost_pct", "of", "confidence", "advice", "healthy")
    places = ("function", "file", "line", "thread", "kernel", "op", "syscall", "path")
    return [
        {
            RUN: report.run.id,
            **{key: _number(value) for key, value in asdict(finding).items() if key in told},
            **{f"where_{key}": None if (at := finding.where.get(key)) is None else str(at) for key in places},
        }
        for finding in report.findings
    ]


def _columns(table: Flat) -> Iterator[dict[str, Any]]:
    for field in table.schema:
        about = {key.decode(): text.decode() for key, text in (field.metadata or {}).items()}
        known = {"unit": about.get("unit"), "meaning": about.get("meaning")}
        yield {"table": table.name, "column": field.name, "type": str(field.type), **known}
