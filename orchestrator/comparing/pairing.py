"""What of two runs belongs together: by name, by place, and kernels that have got another name."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import PurePosixPath
from typing import TypeVar

from orchestrator.comparing.sides import Measured
from orchestrator.formats import kernel_names

Thing = TypeVar("Thing")
Key = Callable[[Thing], Hashable]
Pair = tuple["Thing | None", "Thing | None"]


def paired(a: Iterable[Thing], b: Iterable[Thing], keys: Sequence[Key[Thing]]) -> list[Pair[Thing]]:
    """(a, b) of what has the same key; a key counts where it is the only such one on both sides. The first of `keys` is
    tried on all, the next on what is left. What stays alone has None beside it."""
    left_a, left_b = list(a), list(b)
    found: list[Pair[Thing]] = []
    for key in keys:
        of_a, of_b = _only(left_a, key), _only(left_b, key)
        both = [known for known in of_a if known in of_b]
        found += [(of_a[known], of_b[known]) for known in both]
        taken = set(both)
        left_a = [one for one in left_a if key(one) not in taken]
        left_b = [one for one in left_b if key(one) not in taken]
    return [*found, *((one, None) for one in left_a), *((None, one) for one in left_b)]


def _only(things: Iterable[Thing], key: Key[Thing]) -> dict[Hashable, Thing]:
    groups: dict[Hashable, list[Thing]] = {}
    for one in things:
        groups.setdefault(key(one), []).append(one)
    return {known: ones[0] for known, ones in groups.items() if len(ones) == 1}


def _file(thing: Measured, parts: int) -> Hashable:
    path = PurePosixPath(str(thing.where.get("file") or ""))
    return thing.name, path.parts[-parts:] if parts else ()


BY_NAME: tuple[Key[Measured], ...] = (lambda one: one.name,)
BY_PLACE: tuple[Key[Measured], ...] = (
    lambda one: (one.name, one.where.get("file")),
    lambda one: _file(one, 2),
    lambda one: _file(one, 1),
    lambda one: _file(one, 0),
)
"""A function is the same in another checkout, in another folder, and in a copy of the file by another name."""


# ---------------------------------------------------------------- renamed kernels

_ALIKE_TIME = 1.5
_ALIKE_COUNT = 1.02
_ALIKE_NAME = 0.6
"""How alike two bare names are (difflib's ratio) that differ by a version, a tile or a type."""
Shapes = Mapping[str, tuple[str, str]]


def renamed(
    gone: Sequence[Measured], new: Sequence[Measured], shapes_a: Shapes, shapes_b: Shapes
) -> list[tuple[Measured, Measured]]:
    """Kernels that are launched as often, take about as long, and have the same grid or nearly the same name: the most
    alike first, each once."""
    ranked = sorted(
        (
            (likeness, one, other)
            for one in gone
            for other in new
            if (likeness := _alike(one, other, shapes_a, shapes_b))
        ),
        key=lambda found: (-found[0], found[1].name, found[2].name),
    )
    taken: set[int] = set()
    found = []
    for _, one, other in ranked:
        if not taken & {id(one), id(other)}:
            taken |= {id(one), id(other)}
            found.append((one, other))
    return found


def _alike(one: Measured, other: Measured, shapes_a: Shapes, shapes_b: Shapes) -> float:
    """More than 0 where they may be the same work."""
    if not (one.ns and other.ns and one.count and other.count):
        return 0.0
    if _apart(one.count, other.count) > _ALIKE_COUNT or _apart(one.ns, other.ns) > _ALIKE_TIME:
        return 0.0
    names = SequenceMatcher(None, _bare(one.name), _bare(other.name), autojunk=False).ratio()
    grid = shapes_a.get(one.name)
    same_grid = grid is not None and grid == shapes_b.get(other.name)
    return names + same_grid if same_grid or names >= _ALIKE_NAME else 0.0


def _apart(a: float, b: float) -> float:
    return max(a, b) / min(a, b)


def _bare(name: str) -> str:
    """Without namespaces, template arguments and numbers."""
    return re.sub(r"\d+", "#", kernel_names.function(name))
