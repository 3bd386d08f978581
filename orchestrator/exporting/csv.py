"""All tables as CSV (RFC 4180, UTF-8): what is unknown is an empty field, an empty text is two quotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.exporting.flat import flat

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.report import Report


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """A file a table; units stand in the names of the columns, and in columns.csv with what each means."""
    from pyarrow import csv

    for table in flat(report):
        with target.stream(f"{table.name}.csv") as file, csv.CSVWriter(file, table.schema) as writer:
            for piece in table.pieces:
                writer.write_table(piece)
        yield target.path / f"{table.name}.csv"
    say("columns.csv says what each column means, and its unit")
