"""The data of a flame graph of the page, read back as the page's script reads them (the format: render/flames.py)."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any


def unpacked(text: str) -> dict[str, Any]:
    """The line of JSON, with each column under its name, as a list."""
    line, _, rest = gzip.decompress(base64.b64decode(text)).partition(b"\n")
    head: dict[str, Any] = json.loads(line)
    count = head["entries"]
    for name, width in head["columns"]:
        planes = [rest[k * count : (k + 1) * count] for k in range(width)]
        head[name] = [int.from_bytes(digits, "little") for digits in zip(*planes, strict=True)] or [0] * count
        rest = rest[width * count :]
    assert not rest
    return head
