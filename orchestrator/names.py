"""Names that differ in their numbers as one: `policy0-127 governor`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

_NUMBER = re.compile(r"(?<![\w-])([A-Za-z]*)(0|[1-9]\d*)(?![\w-])")
"""The number of `policy12`, `cpu3`, `GPU 0`; not the digits within a UUID or a word."""
_HEAD = re.compile(r"(?:[A-Za-z]+ )?[A-Za-z]*\d[\d,-]* (?=[a-z])")
"""`policy0-3 `, `GPU 0,2 `: what is set stands behind it."""


def together(names: Iterable[str]) -> str:
    """Those of one form are one name with all their numbers; the forms are listed, each where it comes first. What
    several begin with is told once: `GPU 0-1 graphics, memory`."""
    return ", ".join(_beheaded(folded(names)))


def folded(texts: Iterable[str]) -> list[str]:
    """Names or sentences that differ in one number alone as one, with all their numbers."""
    found = list(dict.fromkeys(texts))
    for position in range(max((len(_NUMBER.findall(text)) for text in found), default=0)):
        forms: dict[tuple[str, str], list[str]] = {}
        for text in found:
            forms.setdefault(_around(text, position), []).append(text)
        found = [_joined(form, alike, position) for form, alike in forms.items()]
    return found


def _beheaded(names: Sequence[str]) -> Iterator[str]:
    """What several begin with stands before the first of them; what has no such beginning comes before them all."""
    heads = {name: head[0] if (head := _HEAD.match(name)) else "" for name in names}
    shared = [head for head, count in Counter(heads.values()).items() if head and count > 1]
    last: str | None = None
    for name in sorted(names, key=lambda name: shared.index(heads[name]) if heads[name] in shared else -1):
        own = heads[name]
        yield name.removeprefix(own) if own == last else name
        last = own if own in shared else None


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


def numbers_in(text: str) -> tuple[int, ...]:
    """0,1,2,8 for 0-2,8: how the kernel writes CPUs, and `spans` numbers. Raises ValueError."""
    words = [word.strip().partition("-") for word in text.split(",") if word.strip()]
    return tuple(n for first, _, last in words for n in range(int(first), int(last or first) + 1))


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
