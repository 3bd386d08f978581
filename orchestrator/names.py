"""Names that differ in their numbers as one: `policy0-127 governor`."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<![\w-])([A-Za-z]*)(0|[1-9]\d*)(?![\w-])")
"""The number of `policy12`, `cpu3`, `GPU 0`; not the digits within a UUID or a word."""


def together(names: Iterable[str]) -> str:
    """Those of one form are one name with all their numbers; the forms are listed, each where it comes first."""
    found = list(dict.fromkeys(names))
    for position in range(max((len(_NUMBER.findall(name)) for name in found), default=0)):
        forms: dict[tuple[str, str], list[str]] = {}
        for name in found:
            forms.setdefault(_around(name, position), []).append(name)
        found = [_joined(form, alike, position) for form, alike in forms.items()]
    return ", ".join(found)


def shape(name: str) -> str:
    """The name without its numbers: equal for those that `together` makes one."""
    return _NUMBER.sub(r"\1#", name)


def spans(numbers: Iterable[int]) -> str:
    """0-3,7 for 0, 1, 2, 3 and 7."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _around(name: str, position: int) -> tuple[str, str]:
    """What stands before and behind the number at that position; the whole name where it has none."""
    numbers = list(_NUMBER.finditer(name))
    if position >= len(numbers):
        return name, ""
    return name[: numbers[position].start(2)], name[numbers[position].end(2) :]


def _joined(form: tuple[str, str], names: list[str], position: int) -> str:
    if len(names) == 1:
        return names[0]
    numbers = (int(_NUMBER.findall(name)[position][1]) for name in names)
    return f"{form[0]}{spans(numbers)}{form[1]}"
