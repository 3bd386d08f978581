"""All tables as Parquet, with the run in their first column: those of many runs can be read as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.exporting.flat import flat

if TYPE_CHECKING:
    from orchestrator.folder import Folder
    from orchestrator.report import Report


def export(report: Report, target: Folder, say: Callable[[str], None]) -> Iterator[Path]:
    """A file a table; unit and meaning of each column stand in its field's metadata."""
    import pyarrow.parquet as pq

    for table in flat(report):
        with (
            target.stream(f"{table.name}.parquet") as file,
            pq.ParquetWriter(file, table.schema, compression="zstd") as writer,
        ):
            for piece in table.pieces:
                writer.write_table(piece)
        yield target.path / f"{table.name}.parquet"
