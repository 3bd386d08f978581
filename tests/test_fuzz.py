"""A small sample of scripts/fuzz: real files, damaged, go through every parser, and only ParseError comes out."""

from __future__ import annotations

import contextlib
import random
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ParseError

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fuzz"
DAMAGED = 12
"""Damaged variants of each file."""


def _script() -> Any:
    loader = SourceFileLoader("fuzz", str(SCRIPT))
    spec = spec_from_loader("fuzz", loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules["fuzz"] = module  # dataclasses look for their module there
    loader.exec_module(module)
    return module


fuzz = _script()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Cut off, with bytes changed, a piece twice, or a piece missing."""
    at, length = chance.randrange(len(data) + 1), chance.randrange(1, 200)
    piece = data[at : at + length]
    return chance.choice(
        (
            data[:at],
            data[:at] + chance.randbytes(len(piece)) + data[at + length :],
            data[:at] + piece * 3 + data[at + length :],
            data[:at] + data[at + length :],
            data[:at] + bytes([chance.choice(b'\x00\xff\n"{[;,-9')]) + data[at + 1 :],
        )
    )


@pytest.mark.parametrize("name", fuzz.PARSERS)
def test_only_parse_errors_come_out_of_a_damaged_file(name: str, tmp_path: Path) -> None:
    parser, chance = fuzz.PARSERS[name], random.Random(37)
    function = parser.function()
    path = tmp_path / f"input{parser.suffix}"
    seeds = [seed.read_bytes() for seed in parser.corpus()] or [b"", b"\x00" * 64]
    for seed in seeds[:: max(1, len(seeds) // 8)]:
        for data in (b"", *(damaged(seed, chance) for _ in range(DAMAGED))):
            path.write_bytes(data)
            with contextlib.suppress(ParseError):
                function(path)
