"""What a tool has printed, read in bounded memory however much that is."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

MOST_BYTES = 4 << 20


def read(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a log; of a longer one its beginning and its end, half of `most_bytes` each. Empty where there is
    none, or it can't be read."""
    with suppress(OSError), path.open("rb") as file:
        begin = file.read(most_bytes // 2)
        rest = path.stat().st_size - len(begin)
        if rest > most_bytes // 2:
            file.seek(-(most_bytes // 2), 2)
            begin += b"\n"
        return (begin + file.read(most_bytes // 2)).decode("utf-8", "replace")
    return ""
