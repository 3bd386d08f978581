"""A clock as an option of a step: a frequency, or a word for one that each device knows by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import PlainSerializer, WithJsonSchema

from orchestrator.units import frequency, write_frequency

_LEAST_HZ = 10e6

WRITTEN = PlainSerializer(lambda v: v if isinstance(v, str) else write_frequency(v), return_type=str)


def reader(owner: str, example: str, words: tuple[str, ...]) -> Callable[[Any], float | str]:
    """What reads it: Hz as a float, or one of the words. `owner`: whose clock it is, for messages."""

    def read(value: Any) -> float | str:
        if value in words:
            return str(value)
        hertz = frequency(value)
        if hertz < _LEAST_HZ:
            raise ValueError(f"{value} is no clock of {owner}; write it like {example}, or {', '.join(words)}")
        return hertz

    return read


def schema(example: str, words: tuple[str, ...]) -> WithJsonSchema:
    quantity = {"type": "string", "pattern": r"^\s*[0-9.]+\s*(Hz|kHz|MHz|GHz)\s*$"}
    return WithJsonSchema({"anyOf": [{"enum": [*words]}, quantity], "examples": [example]})
