"""Field types of a plan for what reaches a process: its command line and its environment."""

from __future__ import annotations

import os
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema


def word(value: Any) -> str:
    """One argument, or the value of one variable. A number is taken as it was written."""
    if value is None or isinstance(value, bool):
        raise ValueError("needs text: write it in quotes, exactly as it should arrive")
    if isinstance(value, (int, float)):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("needs text")
    return _carried(value)


def _carried(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL byte, which neither a command nor the environment can carry")
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise ValueError("holds half a character, which can't be encoded") from error
    return text


def _words(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    import json
    import shlex

    try:
        words = shlex.split(value)
    except ValueError:
        words = value.split()
    listed = ", ".join(w if w and w.replace("-", "").replace(".", "").isalnum() else json.dumps(w) for w in words)
    raise ValueError(f"needs a list of words, as no shell takes part: [{listed}]")


def _starts(words: tuple[str, ...]) -> tuple[str, ...]:
    if not words or not words[0]:
        raise ValueError("needs a program as its first word")
    return words


def _variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("is no name of an environment variable")
    return _carried(name)


Word = Annotated[str, BeforeValidator(word), WithJsonSchema({"type": ["string", "number"]})]
Command = Annotated[
    tuple[Word, ...], BeforeValidator(_words), AfterValidator(_starts), Field(examples=[["python", "train.py"]])
]
Variable = Annotated[str, AfterValidator(_variable)]
Environment = dict[Variable, Word]
