"""Quantities as people write them (30m, 100Hz, 512MiB, 2GHz, 30%, 10x) and as they read them back."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, PlainValidator, WithJsonSchema

_QUANTITY = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z%µμ]*)\s*$")

SECONDS: Mapping[str, float] = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0,
    "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
HERTZ: Mapping[str, float] = {"Hz": 1.0, "kHz": 1e3, "MHz": 1e6, "GHz": 1e9}
BYTES: Mapping[str, float] = {
    "B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


def parse(text: Any, units: Mapping[str, float], bare: float | None, example: str) -> float:
    """`text` as a number in the base unit. `bare`: the factor of a number without a unit; None refuses one.

    Raises ValueError that says how to write it."""
    if isinstance(text, bool) or not isinstance(text, (int, float, str)):
        raise ValueError(f"write it like {example}")
    match = _QUANTITY.match(str(text))
    if not match:
        raise ValueError(f"{text!r} is no quantity; write it like {example}")
    number, unit = float(match[1]), match[2]
    if not unit and bare is None and number != 0:
        raise ValueError(f"{text!r} has no unit; write it like {example}")
    factor = units.get(unit) if unit else (bare or 1.0)
    if factor is None:
        raise ValueError(f"{unit!r} is no unit here; use one of {', '.join(filter(str.isascii, units))}")
    if not math.isfinite(number * factor):
        raise ValueError("the number is too large")
    return number * factor


def duration(value: Any) -> float:
    """Seconds. A bare number counts as seconds; compound forms such as 1h30m are added up."""
    if isinstance(value, str) and re.fullmatch(r"\s*(?:[0-9.]+[a-zµμ]+){2,}\s*", value):
        return sum(parse(part, SECONDS, None, "1h30m") for part in re.findall(r"[0-9.]+[a-zµμ]+", value))
    return parse(value, SECONDS, 1.0, "30s or 5m")


def frequency(value: Any) -> float:
    """Hz. A bare number counts as Hz."""
    return parse(value, HERTZ, 1.0, "100Hz or 2GHz")


def size(value: Any) -> int:
    """Bytes. A bare number counts as bytes."""
    return int(parse(value, BYTES, 1.0, "512MiB"))


@dataclass(frozen=True)
class Times:
    """A multiple of how long the bare run takes."""

    factor: float


def celsius(value: Any) -> float:
    """Degrees Celsius. A bare number counts as such."""
    return parse(str(value).replace("°", "") if isinstance(value, str) else value, {"C": 1.0}, 1.0, "60C")


def budget(value: Any) -> float | Times:
    """Seconds, or a multiple of the bare run written 10x."""
    if isinstance(value, Times):
        return value
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*[x×]\s*", value) if isinstance(value, str) else None
    result = Times(parse(found[1], {}, 1.0, "10x")) if found else duration(value)
    if (result.factor if isinstance(result, Times) else result) <= 0:
        raise ValueError("a budget must be more than 0")
    return result


def percent(value: Any) -> float:
    """A share in percent, 0 to 100; the sign is needed, as 0.3 and 30 are both plausible without it."""
    result = parse(value, {"%": 1.0}, None, "3%")
    if result > 100:
        raise ValueError(f"{value!r} is more than 100%")
    return result


def show_duration(seconds: float) -> str:
    """1.53 s, 2 m 5 s, 3 h 10 m; small ones in ms, us, ns."""
    if not math.isfinite(seconds):
        return "unknown"
    if abs(seconds) < 60:
        for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
            if abs(seconds) >= factor or seconds == 0:
                return f"{seconds / factor:.3g} {unit}"
        return f"{seconds / 1e-9:.3g} ns"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest} s" if rest else f"{minutes} m"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} m" if minutes else f"{hours} h"


def show_bytes(count: float) -> str:
    """912 B, 1.4 MB: decimal units."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count:.0f} B"


def write_duration(seconds: float) -> str:
    """The shortest text that `duration` reads back as the same value."""
    return _write(seconds, SECONDS, ("d", "h", "m", "s", "ms", "us", "ns"), "s")


def write_frequency(hertz: float) -> str:
    """The shortest text that `frequency` reads back as the same value."""
    return _write(hertz, HERTZ, ("GHz", "MHz", "kHz", "Hz"), "Hz")


def _write_size(count: int) -> str:
    return _write(count, BYTES, ("TiB", "GiB", "MiB", "KiB", "B"), "B")


def _write_budget(value: float | Times) -> str:
    return f"{digits(value.factor)}x" if isinstance(value, Times) else write_duration(value)


def _write(value: float, units: Mapping[str, float], choice: tuple[str, ...], base: str) -> str:
    """In the largest unit that makes it a whole number, or else in the base unit with every digit."""
    for unit in choice:
        number = round(value / units[unit])
        if number >= 1 and number * units[unit] == value:
            return f"{number}{unit}"
    return f"{digits(value)}{base}"


def digits(number: float | str) -> str:
    """A number with all its digits and without an exponent. Raises ArithmeticError where the text is no number."""
    from decimal import Decimal

    text = format(Decimal(number if isinstance(number, str) else repr(float(number))), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _schema(pattern: str, example: str) -> WithJsonSchema:
    either = [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": 0}]
    return WithJsonSchema({"anyOf": either, "examples": [example]})


Duration = Annotated[
    float,
    BeforeValidator(duration),
    PlainSerializer(write_duration, return_type=str),
    _schema(r"^\s*([0-9.]+\s*(ns|us|µs|ms|s|m|min|h|d)?\s*)+$", "30s"),
]
Frequency = Annotated[
    float,
    BeforeValidator(frequency),
    PlainSerializer(write_frequency, return_type=str),
    _schema(r"^\s*[0-9.]+\s*(Hz|kHz|MHz|GHz)?\s*$", "100Hz"),
]
Size = Annotated[
    int,
    BeforeValidator(size),
    PlainSerializer(_write_size, return_type=str),
    _schema(r"^\s*[0-9.]+\s*([kKMGT]i?B|B)?\s*$", "512MiB"),
]
Percent = Annotated[
    float,
    BeforeValidator(percent),
    PlainSerializer(lambda v: f"{v:g}%", return_type=str),
    _schema(r"^\s*[0-9.]+\s*%\s*$", "3%"),
]
Celsius = Annotated[
    float,
    BeforeValidator(celsius),
    PlainSerializer(lambda v: f"{v:g}C", return_type=str),
    _schema(r"^\s*[0-9.]+\s*(°?C)?\s*$", "60C"),
]
Budget = Annotated[
    float | Times,
    PlainValidator(budget),
    PlainSerializer(_write_budget, return_type=str),
    _schema(r"^\s*([0-9.]+\s*(ns|us|µs|ms|s|m|min|h|d)?\s*)+$|^\s*[0-9.]+\s*[x×]\s*$", "2h"),
]
